"""README.md has our figures typed, and behind each one a comment with the record that it is from.

A mark is an HTML comment directly behind a figure and its unit, with an expression of the functions that the
pages use (docs/_ext/recorded_figures.py):

    82.0 ± 0.2 %<!-- record: ours("fedgcn/cora", "FedGCN 2 hops even", "accuracy") -->

A comment inside a table could hold a "|", which ends a cell. So the marks of a table stand in one comment behind
it: a line for each cell of its last two columns, row by row.

The figure must be what the expression gives. Every figure with a unit, a deviation or decimals needs a mark,
outside blocks and code."""

import re
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("jmespath", reason="the extra 'docs' is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/_ext"))

from recorded_figures import RecordError, Records  # noqa: E402

README = (ROOT / "README.md").read_text()
NUMBER = r"[-+]?\d+(?: \d{3})*(?:\.\d+)?"
UNIT = r"(?:%|percent|points|[kMG]i?B|[mu]?s|seconds|minutes|times)"
#: A figure with its unit, and what it is marked with.
MARKED = re.compile(
    rf"(?P<figure>{NUMBER}(?: ± {NUMBER})?)(?: {UNIT})?<!-- record: (?P<expression>.*?) -->", re.DOTALL
)
#: A figure that needs a mark.
FIGURE = re.compile(
    rf"(?<![\w.:/]){NUMBER}(?: ± {NUMBER}| {UNIT}(?!\w))|(?<![\w.:/-])[-+]?\d+\.\d+(?![\w.]*\d)"
)
#: What looks like a figure of ours and is none, with the reason.
NO_FIGURES = (
    "Python 3.11",  # a version
    "30 seconds",  # what a reader may expect; tests/integration/test_readme.py runs the block
)
#: What another test compares with the program: the rows of a report (tests/integration/test_readme.py).
COMPARED = re.compile(r"^\| what it is \| transfer \|.*\n(?:\|.*\n)+", re.MULTILINE)


#: A table and the comment with its marks.
TABLE = re.compile(
    r"^(?P<table>(?:\|.*\n)+)\n<!-- records of the figures above, in their order:\n(?P<marks>(?:.+\n)+?)-->",
    re.MULTILINE,
)


def with_marks(found: re.Match[str]) -> str:
    """Return a table with its marks behind the cells of its last two columns."""
    head, rule, *rows = found["table"].splitlines()
    marks = found["marks"].splitlines()
    assert len(marks) == 2 * len(rows), "one mark for each of the last two cells of each row"
    for n, row in enumerate(rows):
        *cells, ours, printed, _ = row.split("|")
        first, second = (f"<!-- record: {mark} -->" for mark in marks[2 * n : 2 * n + 2])
        rows[n] = "|".join([*cells, f"{ours.rstrip()}{first} ", f"{printed.rstrip()}{second} ", ""])
    return "\n".join([head, rule, *rows])


def problems(text: str, records: Records) -> list[str]:
    """Return what is wrong with the marks of a text."""
    text = TABLE.sub(with_marks, text)
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = COMPARED.sub("", text)
    found = []
    for mark in MARKED.finditer(text):
        try:
            value = str(records.evaluate(" ".join(mark["expression"].split())))
        except RecordError as error:
            found.append(f"{mark['figure']}: {error}")
            continue
        if value != mark["figure"]:
            found.append(f"{mark['figure']} is {value} in the records: {mark['expression']}")
    rest = MARKED.sub("", text)
    found += [f"behind no figure: {mark}" for mark in re.findall(r"<!-- record: .*? -->", rest, re.DOTALL)]
    rest = re.sub(r"`[^`\n]*`", "", re.sub(r"\]\([^)]*\)", "]", rest))
    for known in NO_FIGURES:
        rest = rest.replace(known, "")
    return found + [f"no mark behind {figure[0]}" for figure in FIGURE.finditer(rest)]


MARKS = TABLE.sub(with_marks, README)


@pytest.fixture(scope="module")
def records() -> Records:
    return Records(ROOT / "benchmarks/results")


def test_every_figure_in_the_readme_is_marked_and_is_that_of_its_record(records: Records) -> None:
    assert problems(README, records) == []


def test_a_changed_record_contradicts_the_readme(tmp_path: Path) -> None:
    """Every figure of the record changes, so every figure of the README that is from it is wrong."""
    name = next(re.finditer(r'record: \w+\("(\w+)", "', MARKS))[1]
    copy = tmp_path / "results"
    shutil.copytree(ROOT / "benchmarks/results", copy)
    path = copy / f"{name}.json"
    path.write_text(re.sub(r"(\d)\.(\d)", r"1\1.\2", path.read_text()))
    wrong = problems(README, Records(copy))
    assert len(wrong) == len(re.findall(rf'record: \w+\("{name}", "', MARKS)) > 0
    assert all("in the records" in problem for problem in wrong)


CENTRAL = '<!-- record: ours("fedgcn/cora", "central GCN", "accuracy") -->'


def test_a_figure_that_its_record_does_not_have_is_noticed(records: Records) -> None:
    figure = records.ours("fedgcn/cora", "central GCN", "accuracy")
    assert problems(f"central reaches {figure} %{CENTRAL} there", records) == []
    assert problems(f"central reaches 99.9 ± 0.1 %{CENTRAL} there", records) == [
        f"99.9 ± 0.1 is {figure} in the records: {CENTRAL[13:-4]}"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("it reaches 81.3 ± 0.5 there", "no mark behind 81.3 ± 0.5"),
        ("it reaches 81 % there", "no mark behind 81 %"),
        ("it takes 1.9 GB", "no mark behind 1.9 GB"),
        ("0.10 times as long", "no mark behind 0.10 times"),
        ("an error of 7.80, no more", "no mark behind 7.80"),
        (f"central {CENTRAL}", f"behind no figure: {CENTRAL}"),
        ('5<!-- record: ours("fedgcn/cora", "central", "accuracy") -->', "5: fedgcn/cora: no row 'central'; did you mean 'central GCN'?"),
    ],
)  # fmt: skip
def test_a_figure_without_a_mark_and_a_mark_without_a_figure_are_noticed(
    records: Records, text: str, problem: str
) -> None:
    assert problems(text, records) == [problem]


def test_code_links_and_versions_are_no_figures(records: Records) -> None:
    text = (
        "`lr=0.01` on Python 3.11, arXiv:1602.05629, Apache-2.0, [a](b-1.5) and\n```text\n81.3 ± 0.5\n```\n"
    )
    assert problems(text, records) == []
