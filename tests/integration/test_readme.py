"""The README says what is true: its blocks run, its tables are the program's. Its command lines, links and
file names are checked with those of the pages, in test_docs.py."""

import re
import runpy
import shlex
import time
from pathlib import Path

import pytest
from shipped import SHIPPED

from graphfed.cli import main
from graphfed.methods.registry import get_method

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


LINE = re.compile(r"(\w+) +accuracy (0\.\d+), +([\d.]+) MB sent, ([\d.]+) MB in set-up")


def test_the_python_of_the_readme_prints_what_stands_below_it(capsys):
    """Accuracies may differ a little on another machine; bytes may not. It takes a few seconds."""
    (block,) = blocks("python")
    (shown,) = [b for b in blocks("text") if "MB sent" in b]
    started = time.monotonic()
    exec(compile(block, "README.md", "exec"), {})
    assert time.monotonic() - started < 30
    printed, expected = (LINE.findall(text) for text in (capsys.readouterr().out, shown))
    assert len(block.splitlines()) <= 10
    assert [line[0] for line in printed] == ["isolated", "fedavg", "fedgcn", "central"]
    assert [(line[0], *line[2:]) for line in printed] == [(line[0], *line[2:]) for line in expected]
    for ours, readmes in zip(printed, expected, strict=True):
        assert float(ours[1]) == pytest.approx(float(readmes[1]), abs=0.02)
    # 60 rounds of 4 810 weights to 10 clients and gradients back; the scale of 64 features adds little.
    training = 60 * 2 * 10 * (64 * 64 + 64 + 64 * 10 + 10) * 4 / 1e6
    (fedavg,) = [line for line in printed if line[0] == "fedavg"]
    assert training < float(fedavg[2]) < 1.01 * training


def test_the_parts_of_the_readme_that_the_program_decides_are_up_to_date(tmp_path):
    """The rows of a real report, and links; `python scripts/readme.py` writes them."""
    script = runpy.run_path(str(ROOT / "scripts/readme.py"))
    assert script["brought_up_to_date"](README, tmp_path / "run") == README
    assert len(re.findall(r"^\| .* \| `.*` \| .* \| [\d.]+ \w?B \|$", README, re.MULTILINE)) == 3


def test_the_picture_of_the_readme_is_the_one_of_the_front_page():
    pytest.importorskip("docutils", reason="the extra 'docs' is not installed")
    script = runpy.run_path(str(ROOT / "scripts/readme.py"))
    assert script["PICTURE"].read_text() == script["picture"]()
    assert script["PICTURE"].relative_to(ROOT).as_posix() in README


def test_the_papers_of_the_methods_in_the_readme_are_those_that_the_methods_name():
    for name, cell in re.findall(r"^\| `(\w+)` \| (.*) \|$", README, re.MULTILINE):
        paper = get_method(name).paper
        for number in re.findall(r"arXiv:([\d.]+)\]\(https://arxiv.org/abs/\1\)", cell):
            assert number in paper, name
        assert cell.startswith("reference") == paper.startswith("no paper"), name
        for author in re.findall(r"([A-Z]\w+) (?:et al|and)", cell):
            assert author in paper, name


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
