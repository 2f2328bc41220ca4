"""`graphfed doctor`: what it finds on this machine, on broken ones, and that it never falls over itself."""

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import graphfed
from graphfed.cli import doctor as checks
from graphfed.cli import main
from graphfed.cli.doctor import EXTRAS, Finding, checkup
from graphfed.errors import DONE, FAILED

ROOT = Path(__file__).resolve().parents[2]


def found(findings: list[Finding], what: str) -> Finding:
    (finding,) = [f for f in findings if f.what == what]
    return finding


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """doctor in a process of its own, where libraries can be missing."""
    folder = str(Path(graphfed.__file__).parents[1])
    path = os.pathsep.join(p for p in (environment.pop("before", ""), folder) if p)
    return subprocess.run(
        [sys.executable, "-m", "graphfed", "doctor", *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_where_the_tests_run_a_run_is_possible_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["doctor", "--json"]) == DONE
    content = json.loads(capsys.readouterr().out)
    assert content["ok"]
    checks = {row["what"]: row for row in content["checks"]}
    assert checks["torch"]["found"].split("+")[0].count(".") == 2
    assert checks["graphfed"]["found"] == graphfed.__version__
    assert {row["group"] for row in content["checks"]} == {
        "libraries", "threads", "device", "memory", "folders", "extras",
    }  # fmt: skip
    assert all(row["fix"] for row in content["checks"] if row["level"] != "ok")
    assert not list(tmp_path.iterdir())


def test_the_page_fits_80_columns_and_ends_with_the_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["doctor"]) == DONE
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "ok  torch" in " ".join(lines).replace("   ", "  ")
    assert lines[-1].startswith("0 problems, ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("raise ImportError('libcudart.so.99: cannot open')", "ImportError: libcudart.so.99: cannot open"),
        ("raise OSError('wrong ELF class')", "OSError: wrong ELF class"),
        ("import no_such_module_of_anyone", "No module named 'no_such_module_of_anyone'"),
    ],
)
@pytest.mark.slow
def test_a_torch_that_does_not_load_is_a_problem_with_its_fix_and_exit_1(
    content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(content)
    done = process("--json", before=str(tmp_path))
    assert done.returncode == FAILED
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert not result["ok"]
    (problem,) = [row for row in result["checks"] if row["level"] == "problem"]
    assert problem["what"] == "torch"
    assert message in problem["found"]
    assert problem["fix"] == "pip install --force-reinstall torch"


def test_a_library_that_only_some_runs_need_is_a_warning_and_runs_are_possible(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.metadata.version

    def without(distribution: str) -> str:
        if distribution == "networkx":
            raise importlib.metadata.PackageNotFoundError
        return real(distribution)

    monkeypatch.setattr(importlib.metadata, "version", without)
    finding = found(checkup(), "networkx")
    assert (finding.level, finding.found, finding.fix) == (
        "warning", "not installed", "pip install networkx",
    )  # fmt: skip
    assert main(["doctor"]) == DONE
    assert "runs are possible" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environ", "what", "level"),
    [
        ({}, "OMP_NUM_THREADS", "ok"),
        ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS", "ok"),
        ({"OMP_NUM_THREADS": "1,2"}, "OMP_NUM_THREADS", "ok"),
        ({"OMP_NUM_THREADS": "100000"}, "OMP_NUM_THREADS", "warning"),
        ({"OMP_NUM_THREADS": "all"}, "OMP_NUM_THREADS", "warning"),
        ({"OMP_NUM_THREADS": "0"}, "OMP_NUM_THREADS", "warning"),
    ],
)
def test_settings_of_threads_that_make_runs_slow_are_warnings(
    environ: dict[str, str], what: str, level: str
) -> None:
    finding = found(checkup(environ), what)
    assert finding.level == level
    assert bool(finding.fix) == (level == "warning")


@pytest.mark.parametrize(
    ("content", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("", None), ("x y", None)]
)
def test_the_limit_of_a_control_group_is_read_in_cores(
    content: str, cores: float | None, tmp_path: Path
) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert checks._quota(tmp_path / "cpu.max") == cores
    assert checks._quota(tmp_path / "none") is None


def test_a_limit_below_the_cores_is_a_warning_that_names_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "usable_cores", lambda: 16)
    monkeypatch.setattr(checks, "_quota", lambda: 2.5)
    assert "--threads 2" in found(checkup(), "limit").fix


def test_a_folder_of_data_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    assert found(checkup({"GRAPHFED_DATA": str(tmp_path)}), "GRAPHFED_DATA").level == "ok"
    gone = found(checkup({"GRAPHFED_DATA": str(tmp_path / "none")}), "GRAPHFED_DATA")
    assert (gone.level, "is not a folder" in gone.found) == ("warning", True)
    assert found(checkup({}), "GRAPHFED_DATA").found == "not set"


def test_folders_that_cannot_be_written_are_warnings_with_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert found(checkup(), "runs/").level == "ok"
    (tmp_path / "runs").write_text("a file")
    finding = found(checkup(), "runs/")
    assert (finding.level, "--out" in finding.fix) == ("warning", True)
    (tmp_path / "runs").unlink()
    # Root may write anywhere: ask as another would.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert "cannot be written" in found(checkup(), "runs/").found


def test_an_extra_that_is_not_installed_says_what_for_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        importlib.metadata, "requires", lambda _: ["torch>=2", 'no-such-library>=1; extra == "metis"']
    )
    finding = found(checkup(), "metis")
    assert finding.found == "not installed: no-such-library (for the partition 'metis')"
    assert finding.fix == "pip install '.[metis]' in the clone of graphfed"
    assert found(checkup(), "rl").found.startswith("installed")


def test_the_libraries_and_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])
    looked_at = {finding.what for finding in checkup() if finding.group == "libraries"}
    assert looked_at == {"python", "graphfed", *(line.split(">")[0] for line in project["dependencies"])}


@pytest.mark.slow
def test_every_library_of_a_runtime_extra_is_imported_by_the_package() -> None:
    """What only tests or pages import belongs to the extras `dev` and `docs`."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    nodes = [
        node for path in (ROOT / "graphfed").rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
    ]
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported = {name.partition(".")[0] for name in names}
    provided = importlib.metadata.packages_distributions()
    found = {_normal(name) for module in imported for name in provided.get(module, [])}
    for extra in set(extras) - {"dev", "docs"}:
        named = {line.partition(">")[0] for line in extras[extra]}
        assert {name for name in named if _normal(name) not in found} == set(), extra


def _normal(distribution: str) -> str:
    """The name of a distribution as package registries compare it."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def test_a_check_that_fails_itself_is_a_finding_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("no such thing here")

    monkeypatch.setattr(checks, "_memory", fail)
    findings = checkup()
    assert found(findings, "memory").found == "RuntimeError: no such thing here"
    assert found(findings, "runs/").level in ("ok", "warning")
