"""The pages on sweeps, audits and reproductions: every command and snippet is run, every file is there."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from graphfed.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("sweeps.md", "audit.md", "reproduce.md")


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / "docs" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    lines = [line[2:] for block in blocks(page, "console") for line in block.splitlines()]
    assert lines
    return [shlex.split(line)[1:] for line in lines]


def needs(arguments: list[str]) -> str | None:
    """The optional library that a command needs."""
    return "optuna" if "--optuna" in arguments else "tensorboard" if "tensorboard" in arguments else None


@pytest.mark.parametrize("page", ["sweeps.md", "audit.md"])
def test_the_commands_of_the_page_run_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in commands(page):
        library = needs(arguments)
        if library is None or importlib.util.find_spec(library) is not None:
            assert main(arguments) == 0, arguments


def test_the_commands_of_reproduce_run_on_the_real_data(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in commands("reproduce.md"):
        assert main(arguments) == 0, arguments


def test_the_recipe_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("reproduce.md", "yaml")
    Path("my.yaml").write_text(block)
    assert main(["reproduce", "my.yaml", "--quick"]) == 0
    assert Path("runs/reproduce-my-quick/digits.svg").exists()


def test_the_python_of_the_pages_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks("sweeps.md", "python")
    exec(compile(block, "docs/sweeps.md", "exec"), {})
    assert capsys.readouterr().out.startswith("{'lr': 0.5}")


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_the_page_names_exists(page: str) -> None:
    named = set(
        re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|yaml|json))`", (ROOT / "docs" / page).read_text())
    )
    missing = [n for n in named if not any((base / n).exists() for base in (ROOT, ROOT / "graphfed"))]
    assert [n for n in missing if not n.startswith("trials/")] == []


def test_the_audit_page_lists_every_check_and_no_other() -> None:
    from graphfed.audit.registry import CHECKS

    text = (ROOT / "docs/audit.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [*CHECKS]


def test_the_figures_of_the_page_are_those_of_the_recorded_run_and_the_recipe() -> None:
    import json

    from graphfed.experiment.recipe import read_recipe

    recorded = json.loads((ROOT / "benchmarks/results/reproduce_fedgcn.json").read_text())
    text = (ROOT / "docs/reproduce.md").read_text()
    recipe = read_recipe("fedgcn")
    for item in recorded["items"]:
        for row, asked in zip(item["rows"], recipe.items[item["item"]].rows, strict=True):
            assert (row["label"], (row["printed"] or {}).get("mean")) == (asked.label, asked.printed)
            if item["item"] == "library":
                continue
            for told in (row["ours"], row["printed"]):
                assert told is None or f"{told['mean']:.2f} ± {told['std']:.2f}" in text
