"""The pages of docs/ say what is true: every block is run or says why not, links lead somewhere, and the site
is built without a warning.

A block of commands, Python or YAML follows a comment: ``run``, ``run, needs: <library or real data>``,
``refused: <what is said>``, ``file: <name>`` (written for the blocks below it) or ``not run: <reason>``. The
blocks of a page are run in order, in one folder. A block of text after ``output`` is among what the block
above it prints, up to blanks and lines of tables; after ``output, within N %`` its figures may be off by as
much, and durations, spreads, losses and best rounds by any amount."""

import importlib.util
import json
import os
import pkgutil
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest
import typer.main

import graphfed
from graphfed import plugins
from graphfed.cli import app, main
from graphfed.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT / "docs").as_posix()
    for path in (ROOT / "docs").rglob("*.md")
    if not path.relative_to(ROOT / "docs").parts[0].startswith("_")
)
TEXTS = [*(f"docs/{page}" for page in PAGES), "README.md", "CONTRIBUTING.md"]
#: Scripts in cells: the tutorial, and the sources of the notebooks.
SCRIPTS = [
    "docs/tutorial/three_banks.py",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "examples/notebooks").glob("*.py")),
]
EXTENSIONS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/_ext").glob("*.py"))
#: Blocks that are not code a reader could type: output, and what Sphinx fills in.
OTHER_FENCES = {
    "text",
    "{eval-rst}",
    "{flow-picture}",
    "{help-pages}",
    "{include}",
    "{messages-table}",
    "{verdicts}",
    "{description-keys}",
    "{methods-table}",
    "{module-texts}",
    "{toctree}",
    "{record-table}",
    "{reproduction-table}",
    "{reproduction-plot}",
    "{claim}",
}
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>.*?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE
)
#: A module, function or class of the package as pages write it.
DOTTED = re.compile(r"\bgraphfed(?:\.[A-Za-z_]\w*)+")
OUTPUT = re.compile(r"output(?:, within (\d+) %)?")
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
    return [
        block for block in every_block(page) if block.language in ("console", "python", "yaml", "bash", "sh")
    ]


def every_block(page: str) -> list[Block]:
    found = BLOCK.finditer((ROOT / "docs" / page).read_text())
    return [Block(m["mark"] or "", m["language"], m["text"]) for m in found]


def runs(page: str) -> bool:
    return any(block.mark.startswith(("run", "refused", "file")) for block in blocks(page))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_whether_it_is_run(page: str) -> None:
    for block in blocks(page):
        assert MARK.fullmatch(block.mark), f"{page}: {block.text}"
        assert block.language != "yaml" or block.mark.startswith("file: ")
        assert block.language in ("yaml", "python") or not block.mark.startswith("file: ")
    for block in every_block(page):
        assert block.language != "text" or not block.mark or OUTPUT.fullmatch(block.mark), block.mark


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_fenced_in_a_way_that_these_tests_do_not_see(page: str) -> None:
    fences = re.findall(r"^.*(?:```|~~~).*$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    opened = [fence.removeprefix("```").split()[0] for fence in fences if fence != "```"]
    assert len(opened) * 2 == len(fences)
    assert [word for word in opened if word not in OTHER_FENCES] == [b.language for b in blocks(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)])
def test_the_blocks_of_a_page_do_what_it_says_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_MODULES", {})
    printed = ""
    for block in every_block(page):
        if block.language == "text":
            output = OUTPUT.fullmatch(block.mark)
            assert not output or among(block.text, printed, int(output[1] or 0)), printed
            continue
        if block not in blocks(page) or block.mark.startswith("not run") or not here(block.needs):
            continue
        if block.mark.startswith("file: "):
            Path(block.mark.removeprefix("file: ")).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, page, "exec"), {})
        else:
            printed = ""
            for line in commands(block):
                capsys.readouterr()
                words = shlex.split(line, comments=True)
                if words[0] == "python":
                    runpy.run_path(str(ROOT / words[1]))["main"](Path(words[2]))
                    continue
                code = main(words[1:])
                if block.mark.startswith("refused: "):
                    assert code == InputError.exit_code
                    assert block.mark.removeprefix("refused: ") in capsys.readouterr().err
                else:
                    out, error = capsys.readouterr()
                    assert code == 0, error
                    printed += out


def among(text: str, printed: str, percent: int) -> bool:
    """Whether the words of a text stand one after the other in what was printed."""
    expected, found = (tokens(side, rough=percent > 0) for side in (text, printed))
    return any(
        all(
            a == b or (percent > 0 and close(a, b, percent))
            for a, b in zip(expected, found[i : i + len(expected)], strict=False)
        )
        for i in range(len(found) - len(expected) + 1)
    )


def tokens(text: str, *, rough: bool) -> list[str]:
    """The words, without the lines of tables; rough: without durations, spreads, losses and rounds."""
    if rough:
        text = re.sub(r"(?<=[ .])[\d.:]+ m?s\b|± [\d.]+|loss [\d.]+|round \d+ of \d+|\d+:\d\d", "", text)
    return re.findall(r"[^\s━─┃│┏┓┡┩└┘┳╇┴]+", text)


def close(one: str, other: str, percent: int) -> bool:
    a, b = (re.fullmatch(r"([\d.]*\d)([,;]?)", word) for word in (one, other))
    if a is None or b is None or a[2] != b[2]:
        return False
    return abs(float(a[1]) - float(b[1])) <= percent / 100 * float(a[1])


def test_a_text_that_is_not_what_was_printed_is_noticed() -> None:
    printed = "a ┃ 10.0 ± 0.3 ┃ 1.2 s\nround 7 of 9, loss 0.5\n"
    assert among("a 10.0 ± 0.3", printed, 0)
    assert not among("a 10.1 ± 0.3", printed, 0)
    assert among("a 10.1 ± 0.9 │ 3 s\nround 8 of 9, loss 0.9", printed, 2)
    assert not among("a 10.3 ± 0.3", printed, 2)
    assert not among("b 10.0 ± 0.3", printed, 2)


def here(needed: str | None) -> bool:
    if needed == "real data":
        return bool(os.environ.get("GRAPHFED_DATA"))
    return needed is None or importlib.util.find_spec(needed) is not None


def commands(block: Block) -> list[str]:
    """The lines of a console block; every one must be graphfed's, or make an example's data."""
    lines = block.text.splitlines()
    assert all(re.match(r"\$ (graphfed|python examples/\S+/make_data\.py) ", line) for line in lines), (
        block.text
    )
    return [line.removeprefix("$ ") for line in lines]


@pytest.mark.parametrize("name", [*TEXTS, *SCRIPTS])
def test_every_command_line_in_the_text_is_one_that_graphfed_takes(name: str) -> None:
    # A command in a comment of the tutorial may go on in its next line.
    text = (ROOT / name).read_text().replace("\n# ", "\n")
    lines = re.findall(r"(?<!`)``?(graphfed\s[^`]+)`", text)
    lines += re.findall(r"^\$ (graphfed .*)$", text, re.MULTILINE)
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        parse(["run" if word == "COMMAND" else word for word in words])


def parse(words: list[str]) -> None:
    """Raise unless the command exists and takes these options. Nothing is run; values are not looked at."""
    command = typer.main.get_command(app)
    while True:
        _, rest = command.make_parser(command.context_class(command)).parse_args(words)[:2]
        if not hasattr(command, "commands"):
            assert not rest, f"{command.name} has no use for {rest}"
            return
        if not rest:
            return
        command, words = command.commands[rest[0]], rest[1:]


@pytest.mark.parametrize("name", [*TEXTS, *SCRIPTS])
def test_every_link_and_every_file_that_is_named_leads_somewhere(name: str) -> None:
    path = ROOT / name
    text = path.read_text()
    prose = "\n".join(re.findall(r"^# (.*)$", text, re.MULTILINE)) if path.suffix == ".py" else text
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose)
    targets += re.findall(r"^\[[^\]]+\]: (\S+)", prose, re.MULTILINE)
    for target in targets:
        file, _, heading = target.partition("#")
        if not target.startswith("http"):
            linked = path.parent / file if file else path
            assert linked.exists(), target
            assert not heading or heading in anchors(linked), target
    written = {"model_card.md", "trials/0001.json", "chosen-seed0/"}  # into folders of runs and sweeps
    named = set(re.findall(r"`((?:[\w.-]+/)*[\w.-]+(?:\.(?:py|md)|/))`", text))
    named |= set(re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:yaml|json))`", text))
    bases = (ROOT, ROOT / "graphfed", ROOT / "docs")
    missing = [n for n in named - written if not any((base / n).exists() for base in bases)]
    assert [n for n in missing if not list((ROOT / "graphfed").rglob(n.strip("/")))] == []


def anchors(page: Path) -> set[str]:
    """What the headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", [*TEXTS, *SCRIPTS, *EXTENSIONS])
def test_every_name_of_the_package_that_is_written_down_exists(name: str) -> None:
    written_by_the_reader = {"graphfed.methods.skeleton"}
    groups_of_entry_points = {f"graphfed.{kind}" for kind in ("rules", "datasets", "partitions", "audits")}
    written = set(DOTTED.findall(re.sub(r"https?://\S+", "", (ROOT / name).read_text())))
    for dotted in sorted(written - written_by_the_reader - groups_of_entry_points):
        try:
            pkgutil.resolve_name(dotted)
        except (ImportError, AttributeError):
            pytest.fail(f"{name} names {dotted}, which does not exist")


def test_the_page_on_runs_lists_the_files_that_a_run_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    from_file = ["--partition", "partition.safetensors"]
    assert main(["data", "partition", "digits", "--clients", "2", "--out", from_file[1]]) == 0
    assert main(["run", "fedavg", *from_file, "--rounds", "1", "--out", "on_a_file"]) == 0
    assert main(["run", "fedavg", "--clients", "2", "--rounds", "1", "--out", "run"]) == 0
    page = (ROOT / "docs/runs.md").read_text().partition("## result.json")[0]
    files = set(re.findall(r"^\| `([\w.]+)` \|", page, re.MULTILINE))
    assert files == {f.name for f in Path("on_a_file").iterdir()}
    assert files - {"partition.safetensors"} == {f.name for f in Path("run").iterdir()}


def test_the_audit_page_lists_every_check_and_no_other() -> None:
    from graphfed.audit.registry import CHECKS

    text = (ROOT / "docs/audit.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [*CHECKS]


def test_the_page_on_python_documents_every_public_name() -> None:
    text = (ROOT / "docs/python.md").read_text()
    documented = set(re.findall(r"^\.\. auto\w+:: graphfed\.(\w+)$", text, re.MULTILINE))
    assert documented == set(graphfed.__all__) - {"__version__"}


# ---- the site ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages. `make docs` runs the same command; the tutorial is executed on the way. Sphinx-Gallery
    writes beside its sources, so that a copy of them is built."""
    pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")
    folder = tmp_path_factory.mktemp("site")
    made = shutil.ignore_patterns("_tutorial", "_notebooks", "_plots", "sg_execution_times.rst")
    shutil.copytree(ROOT / "docs", folder / "docs", ignore=made)
    shutil.copytree(ROOT / "examples/notebooks", folder / "examples/notebooks")
    shutil.copytree(ROOT / "benchmarks/results", folder / "benchmarks/results")
    for included in ("README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / included, folder)
    (folder / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", "html"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "temporary")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
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
        if given.get("src"):
            self.fetched.append(str(given["src"]))
        if tag == "link" and given.get("rel") not in ("index", "search", "next", "prev"):
            self.fetched.append(str(given["href"]))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.slow
def test_the_site_has_every_page_and_needs_nothing_from_the_network(site: Path) -> None:
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert {page.replace(".md", ".html") for page in PAGES} <= built
    assert "_tutorial/three_banks.html" in built
    for path in site.rglob("*.html"):
        for target in Page(path).fetched:
            assert "//" not in target, f"{path.name} fetches {target}"
            assert (path.parent / target.partition("?")[0]).exists(), f"{path.name}: {target}"
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", path.read_text()), path.name


@pytest.mark.slow
def test_the_tutorial_is_executed_and_shows_what_it_printed_and_drew(site: Path) -> None:
    page = Page(site / "_tutorial/three_banks.html")
    for expected in ("37682 of 59899 edges join two banks", "isolated", "fedgcn/partial_sums", "report.html"):
        assert expected in page.text
    assert any("three_banks" in name and name.endswith(".png") for name in page.fetched)


@pytest.mark.slow
def test_the_notebooks_are_shown_with_the_outputs_that_they_have(site: Path) -> None:
    for script in (ROOT / "examples/notebooks").glob("*.py"):
        page = Page(site / f"_notebooks/{script.stem}.html")
        cells = json.loads(script.with_suffix(".ipynb").read_text())["cells"]
        printed = [o["text"][0] for cell in cells for o in cell.get("outputs", ()) if "text" in o]
        assert printed
        assert [line for line in printed if line.strip() not in page.text] == []
        assert any(name.endswith(".png") for name in page.fetched)
