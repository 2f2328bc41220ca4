"""The mutants of scripts/mutants.py: each is wrong in one place, compiles, and takes a function's place."""

import gc
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from graphfed.methods.registry import METHODS

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "mutants.py"
#: A file of reasons for every package.
REASONS = SCRIPT.parent / "equivalent_mutants"
SOURCE = '''
"""Text that is left alone."""
LIMIT = 3


def count(numbers: list[int], least: int = 1) -> int:
    """The numbers of at least `least`."""
    total = 0
    for number in numbers:
        if number >= least:
            total += 1
    if total < 0:
        raise ValueError(f"impossible: {total + 1}")
    return total


class Box:
    size = 2

    def fits(self, width: int) -> bool:
        def small() -> bool:
            return width <= self.size

        return small() and not width == 0
'''


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    described = importlib.util.spec_from_file_location("mutants_script", SCRIPT)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    monkeypatch.setitem(sys.modules, "mutants_script", module)
    described.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "toy.py").write_text(SOURCE)
    return module


def test_every_kind_of_place_in_a_function_is_changed_and_nothing_else(mutants: Any, tmp_path: Path) -> None:
    found = mutants.mutants_of(tmp_path / "toy.py")
    assert {(mutant.function, mutant.before, mutant.after) for mutant in found} == {
        ("count", "total = 0", "total = 1"),
        ("count", "if number >= least:", "if not number >= least:"),
        ("count", "if number >= least:", "if number > least:"),
        ("count", "total += 1", "deleted"),
        ("count", "total += 1", "total -= 1"),
        ("count", "total += 1", "total += 2"),
        ("count", "if total < 0:", "if not total < 0:"),
        ("count", "if total < 0:", "if total <= 0:"),
        ("count", "if total < 0:", "if total < 1:"),
        ("count", "raise ValueError(f'impossible: {total + 1}')", "deleted"),
        ("count", "return total", "return None"),
        ("Box.fits", "return width <= self.size", "return None"),
        ("Box.fits", "return width <= self.size", "return width < self.size"),
        ("Box.fits", "return small() and (not width == 0)", "return None"),
        ("Box.fits", "return small() and (not width == 0)", "return small() or not width == 0"),
        ("Box.fits", "return small() and (not width == 0)", "return small() and width == 0"),
        ("Box.fits", "return small() and (not width == 0)", "return small() and (not width != 0)"),
        ("Box.fits", "return small() and (not width == 0)", "return small() and (not width == 1)"),
    }


def test_a_mutant_takes_the_place_of_what_is_imported(mutants: Any, tmp_path: Path) -> None:
    """Also inside a function that is made anew in every call."""
    path = tmp_path / "toy.py"
    for after, expected in (
        ("return width < self.size", (2, False)),
        ("if number > least:", (1, True)),
        ("total += 2", (4, True)),
    ):
        toy: dict[str, Any] = {}
        exec(compile(SOURCE, str(path), "exec"), toy)
        assert (toy["count"]([0, 1, 2]), toy["Box"]().fits(2)) == (2, True)
        (mutant,) = (mutant for mutant in mutants.mutants_of(path) if mutant.after == after)
        gc.freeze()  # as a test run does once its tests are collected
        mutants.Imported([str(path)]).install(mutant)
        assert (toy["count"]([0, 1, 2]), toy["Box"]().fits(2)) == expected


def test_a_sample_takes_one_mutant_of_a_line_before_a_second(
    mutants: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graphfed").mkdir()
    (tmp_path / "toy.py").rename(tmp_path / "graphfed" / "toy.py")
    drawn = mutants.sample(("toy.py",), 8, 0)
    assert len({mutant.line for mutant in drawn}) == 8
    assert drawn == mutants.sample(("toy.py",), 8, 0)
    assert len(mutants.sample(("toy.py",), 10**6, 0)) == 18


def test_every_package_names_files_and_tests_that_are_there(mutants: Any) -> None:
    root = SCRIPT.parent.parent
    for package in mutants.PACKAGES.values():
        assert all([*(root / "graphfed").glob(pattern)] for pattern in package.files)
        assert all((root / test).exists() for test in (*package.tests, *mutants.LAWS))
        assert {*package.methods} <= {*METHODS}
    assert {path.stem for path in REASONS.iterdir()} == {*mutants.PACKAGES}


@pytest.mark.parametrize("name", sorted(path.stem for path in REASONS.iterdir()))
@pytest.mark.sampled(4)
def test_every_reason_names_a_mutant_that_there_is(
    name: str, mutants: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reason whose code has moved or changed would excuse nothing, or another mutant than was meant."""
    monkeypatch.setattr(mutants, "ROOT", ROOT)
    path, patterns = REASONS / f"{name}.json", mutants.PACKAGES[name].files
    reasons = json.loads(path.read_text())
    files = [file for pattern in patterns for file in (ROOT / "graphfed").glob(pattern)]
    known = {mutant.key for file in files for mutant in mutants.mutants_of(file)}
    assert {*reasons} <= known, f"{path.name}: {sorted({*reasons} - known)[:3]}"
    assert reasons, name
