"""The README, the docs and CONTRIBUTING say what is true: snippets run, commands exist, files are there."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import graphfed
from graphfed.cli import app
from graphfed.methods.registry import METHODS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_the_python_of_the_readme_runs(capsys):
    (block,) = blocks("python")
    exec(compile(block, "README.md", "exec"), {})
    printed = re.fullmatch(r"test accuracy (0\.\d+), (\d+) bytes crossed\n", capsys.readouterr().out)
    assert printed
    assert float(printed[1]) > 0.6
    # 20 rounds of 1 210 weights to and from 5 clients, and 5 counts of 8 bytes.
    assert int(printed[2]) == 20 * 2 * 5 * (64 * 16 + 16 + 16 * 10 + 10) * 4 + 5 * 8


def test_the_demo_table_in_the_readme_is_the_demos():
    """The table shows the methods that `make demo` compares, and its claims hold: a short run gives the same
    order."""
    (table,) = [b for b in blocks("text") if "digits" in b]
    shown = re.findall(r"^│ (\w+) ", table, re.MULTILINE)
    demo = re.search(r"compare ([\w ]+) --data digits --seeds ([\d,]+)", (ROOT / "Makefile").read_text())
    assert demo
    assert shown == demo[1].split()
    assert f"seeds {demo[2].replace(',', ', ')}" in table
    means = dict(re.findall(r"^│ (\w+) +│ +([\d.]+) ±", table, re.MULTILINE))
    comparison = graphfed.compare(shown, data="digits", seeds=[0, 1, 2], out=False)
    for row in comparison.rows:
        assert 100 * row["test"]["accuracy"]["mean"] == pytest.approx(float(means[row["method"]]), abs=1.0)


def test_every_command_of_the_readme_is_one_that_graphfed_knows():
    """Options and arguments are parsed for real; only the work behind them is left out."""
    lines = [line[2:].split("#")[0] for block in blocks("console") for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("graphfed ")]
    assert len(commands) >= 4
    for arguments in commands:
        result = CliRunner().invoke(app, [*arguments, "--help"])
        assert result.exit_code == 0, arguments


def test_the_readme_lists_every_method_and_no_other():
    rows = set(re.findall(r"^\| `(\w+)`", README, re.MULTILINE))
    assert rows == {*METHODS} - {"skeleton", "exchange_toy"}


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/design.md",
        "docs/data.md",
        "docs/errors.md",
        "docs/report.md",
        "docs/runs.md",
    ],
)
def test_every_file_that_the_docs_name_exists(name):
    """A path is written from the root, from the package, or, where its folder is plain, as a bare name."""
    written = {"model_card.md"}  # into the folder of a run
    named = set(re.findall(r"`((?:[\w.-]+/)*[\w.-]+(?:\.(?:py|md)|/))`", (ROOT / name).read_text()))
    missing = [
        n
        for n in named - written
        if not (ROOT / n).exists() and not list((ROOT / "graphfed").rglob(n.strip("/")))
    ]
    assert not missing


def test_the_configuration_file_of_the_docs_runs(tmp_path):
    (block,) = blocks("yaml", (ROOT / "docs/runs.md").read_text())
    (tmp_path / "experiment.yaml").write_text(block)
    arguments = [
        "run",
        "--config",
        str(tmp_path / "experiment.yaml"),
        "--rounds",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    files = set(re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs/runs.md").read_text(), re.MULTILINE))
    assert files == {f.name for f in (tmp_path / "run").iterdir()}


def test_the_readmes_description_is_the_one_the_example_writes(tmp_path):
    source = (ROOT / "examples/bank_fraud/make_data.py").read_text()
    (block,) = blocks("yaml")
    assert block in source
    assert len(block.splitlines()) == 10
