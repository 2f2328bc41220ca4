"""The README says what is true: its blocks run, its tables are the program's. Its command lines, links and
file names are checked with those of the pages, in test_docs.py."""

import re
import runpy
import shlex
from pathlib import Path

import pytest
from shipped import SHIPPED

import graphfed
from graphfed.cli import main

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
    # 20 rounds of 4 810 weights to 5 clients and gradients back; the scale of 64 features is little beside.
    training = 20 * 2 * 5 * (64 * 64 + 64 + 64 * 10 + 10) * 4 + 5 * 8
    assert training < int(printed[2]) < 1.01 * training


@pytest.mark.slow
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


def test_the_readme_lists_every_method_and_no_other():
    rows = set(re.findall(r"^\| `(\w+)`", README, re.MULTILINE))
    assert rows == {*SHIPPED}


@pytest.mark.slow
def test_the_commands_for_ones_own_graph_give_what_they_promise(tmp_path, monkeypatch):
    """The block is run as printed: a model and its report, a prediction for every account, a comparison."""
    (block,) = [block for block in blocks("console") if "make_data.py" in block]
    monkeypatch.chdir(tmp_path)
    for line in block.splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True)
        if words[0] == "python":
            make_data = runpy.run_path(str(ROOT / words[1]))["main"]
            make_data(Path(words[2]))
        else:
            assert main(words[1:]) == 0, line
    accounts = Path("bank/accounts.csv").read_text().splitlines()[1:]
    assert len(Path("predictions.csv").read_text().splitlines()) == len(accounts) + 1
    assert Path("bank/run/report.html").exists()


def test_the_readmes_description_is_the_one_the_example_writes(tmp_path):
    source = (ROOT / "examples/bank_fraud/make_data.py").read_text()
    (block,) = blocks("yaml")
    assert block in source
    assert len(block.splitlines()) == 12
