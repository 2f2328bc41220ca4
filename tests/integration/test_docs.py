"""The pages of docs/ say what is true: every block is run or says why not, links lead somewhere, and the site
is built without a warning.

A block of commands, Python or YAML follows a comment: ``run``, ``run, needs: <library or real data>``,
``refused: <what is said>``, ``file: <name>`` (written for the blocks below it) or ``not run: <reason>``. The
blocks of a page are run in order, in one folder."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer.main

from graphfed.cli import app, main
from graphfed.errors import InputError
from graphfed.methods.registry import METHODS, get_method

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)
MARK = re.compile(r"run|run, needs: .+|refused: .+|file: \S+|not run: .+")


@dataclass(frozen=True)
class Block:
    mark: str
    language: str
    text: str

    @property
    def needs(self) -> str | None:
        """What must be here for it to run."""
        return self.mark.partition("needs: ")[2] or None


def blocks(page: str) -> list[Block]:
    """The blocks of a page that a reader could type; ``text`` is output or a sketch."""
    found = BLOCK.finditer((ROOT / "docs" / page).read_text())
    every = [Block(m["mark"] or "", m["language"], m["text"]) for m in found]
    return [block for block in every if block.language in ("console", "python", "yaml", "bash", "sh")]


def runs(page: str) -> bool:
    return any(block.mark.startswith(("run", "refused", "file")) for block in blocks(page))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_whether_it_is_run(page: str) -> None:
    for block in blocks(page):
        assert MARK.fullmatch(block.mark), f"{page}: {block.text}"
        assert (block.language == "yaml") == block.mark.startswith("file: ")


@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)])
def test_the_blocks_of_a_page_do_what_it_says_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.mark.startswith("not run") or not here(block.needs):
            continue
        if block.language == "yaml":
            Path(block.mark.removeprefix("file: ")).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, page, "exec"), {})
        else:
            for line in commands(block):
                capsys.readouterr()
                code = main(shlex.split(line, comments=True)[1:])
                if block.mark.startswith("refused: "):
                    assert code == InputError.exit_code
                    assert block.mark.removeprefix("refused: ") in capsys.readouterr().err
                else:
                    assert code == 0, capsys.readouterr().err


def here(needed: str | None) -> bool:
    if needed == "real data":
        return bool(os.environ.get("GRAPHFED_DATA"))
    return needed is None or importlib.util.find_spec(needed) is not None


def commands(block: Block) -> list[str]:
    """The lines of a console block; every one must be graphfed's."""
    lines = block.text.splitlines()
    assert all(line.startswith("$ graphfed ") for line in lines), block.text
    return [line.removeprefix("$ ") for line in lines]


@pytest.mark.parametrize("page", [*PAGES, "../README.md", "../CONTRIBUTING.md"])
def test_every_command_in_the_text_has_the_options_it_is_shown_with(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    lines = re.findall(r"`(graphfed [a-z][^`\n]*)`", text) + re.findall(
        r"^\$ (graphfed .*)$", text, re.MULTILINE
    )
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        command = typer.main.get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command = command.commands[words.pop(0)]
        known = {
            name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)
        }
        given = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert given <= known | {"--help", "--install-completion", "--show-completion"}, line


@pytest.mark.parametrize("page", [*PAGES, "../README.md", "../CONTRIBUTING.md"])
def test_every_link_and_every_file_that_is_named_leads_somewhere(page: str) -> None:
    path = (ROOT / "docs" / page).resolve()
    text = path.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert target.startswith("http") or (path.parent / target).exists(), target
    written = {"model_card.md", "trials/0001-seed0.json", "chosen-seed0/"}  # into folders of runs and sweeps
    named = set(re.findall(r"`((?:[\w.-]+/)*[\w.-]+(?:\.(?:py|md)|/))`", text))
    named |= set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:yaml|json))`", text))
    bases = (ROOT, ROOT / "graphfed", ROOT / "docs")
    missing = [n for n in named - written if not any((base / n).exists() for base in bases)]
    assert [n for n in missing if not list((ROOT / "graphfed").rglob(n.strip("/")))] == []


def test_the_page_on_choosing_names_every_method_and_no_other() -> None:
    text = (ROOT / "docs/choosing.md").read_text()
    chosen = re.findall(r"^\| .* \| `(\w+)` \| .* \|$", text, re.MULTILINE)
    assert sorted(chosen) == sorted(name for name in METHODS if name not in ("skeleton", "exchange_toy"))


def test_the_page_on_runs_lists_the_files_that_a_run_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["run", "fedavg", "--clients", "2", "--rounds", "1", "--out", "run"]) == 0
    files = set(re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs/runs.md").read_text(), re.MULTILINE))
    assert files == {f.name for f in Path("run").iterdir()}


def test_the_audit_page_lists_every_check_and_no_other() -> None:
    from graphfed.audit.registry import CHECKS

    text = (ROOT / "docs/audit.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [*CHECKS]


def test_the_figures_of_reproduce_are_those_of_the_recorded_run_and_the_recipe() -> None:
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


# ---- the site ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages. `make docs` runs the same command; the tutorial is executed on the way."""
    pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    places = ["-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "html")]
    told = subprocess.run([*command, *places], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr[-3000:]
    return folder / "html"


class Page(HTMLParser):
    """What a browser would fetch for a page, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text = ""
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.fetched.append(str(given["src"]))
        if tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.fetched.append(str(given["href"]))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_site_has_every_page_and_needs_nothing_from_the_network(site: Path) -> None:
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {page.replace(".md", ".html") for page in PAGES} <= built
    assert "_tutorial/three_banks.html" in built
    for path in site.rglob("*.html"):
        for target in Page(path).fetched:
            assert "//" not in target, f"{path.name} fetches {target}"
            assert (path.parent / target.partition("?")[0]).exists(), f"{path.name}: {target}"


def test_the_tutorial_is_executed_and_shows_what_it_printed_and_drew(site: Path) -> None:
    page = Page(site / "_tutorial/three_banks.html")
    for told in ("2579 of 4181 edges join two banks", "│ isolated │", "fedgcn/partial_sums", "report.html"):
        assert told in page.text
    assert any("three_banks" in name and name.endswith(".png") for name in page.fetched)


def test_the_pages_made_from_the_program_are_those_of_this_program(site: Path) -> None:
    commands = Page(site / "commands.html").text
    for words in ("graphfed run", "graphfed data partition", "graphfed doctor"):
        assert f"Usage: {words}" in commands
    choosing = Page(site / "choosing.html").text
    for name in METHODS:
        if name not in ("skeleton", "exchange_toy"):
            assert get_method(name).summary in choosing
    python = Page(site / "python.html").text
    assert "graphfed.run(" in python
    assert "make_graph(" in python
