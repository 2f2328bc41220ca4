"""Figures in the pages come from records. This checks them without building the pages: every expression has a
value, every claim holds, and on the pages of results no figure with the unit of a result is typed by hand."""

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("jmespath", reason="the extra 'docs' is not installed")

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

from recorded_figures import Records  # noqa: E402

PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.md")
    if not path.relative_to(DOCS).parts[0].startswith("_")
)
EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
CLAIM = re.compile(r"^`{3,}\{claim\} (.*)$", re.MULTILINE)
ITEM = re.compile(r"^`{3,}\{reproduction-(?:table|plot)\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def records() -> Records:
    return Records(ROOT / "benchmarks/results")


@pytest.mark.parametrize("page", PAGES)
def test_every_figure_of_a_page_has_a_record_and_every_claim_holds(records: Records, page: str) -> None:
    text = (DOCS / page).read_text()
    for expression in EXPRESSION.findall(text):
        assert str(records.evaluate(expression.strip()))
    for item in ITEM.findall(text):
        assert records.item(item)["rows"]
    assert [claim for claim in CLAIM.findall(text) if records.evaluate(claim) is not True] == []


# ---- figures that are typed by hand ------------------------------------------------------------------------

#: A number with the unit of a result, or with a deviation.
TYPED = re.compile(
    r"\d ?(?:%|percent\b|points of percent|[kMG]i?B\b|[mu]?s\b|seconds\b|minutes\b|hours\b|± ?\d)(?!\w)"
)
#: Typed figures that are no results of ours, by page: what the paper prints, settings, and what another test
#: compares with the data.
REVIEWED: dict[str, tuple[str, ...]] = {
    "benchmarks.md": ("one of 1 MB", "one of 50 MB"),  # sizes of messages
    "papers/cnfgnn.md": (
        "The first 70 % of them are for training, the last 20 % for testing",  # the default split
    ),
    "papers/cnfgnn_results.md": (
        "(2.173E-3 and 1.429E-3 GB)",  # printed
        "clearly worse at 5 percent only",  # printed
        "Training sees the first 5, 25, 50, 75 or 90 %",  # rows of the paper's Table 9
        "where training sees 5, 25 or 50 percent of the sensors, and better where it sees 75 or 90 percent",
        # tests/integration/test_page_facts.py compares these with the data.
        "no reading in 10 % of the test windows",
        "7 % of the readings that the test counts",
    ),
    "papers/claims.md": ("with its 95 % interval",),
    "papers/lumos_results.md": ("the paper prints 8 to 14 percent everywhere",),
    "papers/fedgraph_results.md": (
        "within 5 %, up to their scale",  # how near a solution must come to count
        '"early" is 75 % on Cora',  # a target of the paper's text
        # What the paper prints or says.
        "90.16 % on Cora and 87.9 % on CiteSeer",
        "about 5 s to 75 % on Cora and the others more than 10 s",
        "about 10 % more accurate",
        "falls by about 10 % on Cora",
        "a gain of about 10 %",
        "target for CiteSeer, 87.9 %,",
    ),
}


def typed(text: str) -> list[str]:
    """The lines of a page's prose with such a figure, without what is generated, code and mathematics. A
    claim may have the numbers of its own expression, which the build checks."""
    text = re.sub(r"^`{3,}\{claim\} (.*)\n((?:.*\n)*?)`{3,}$", _without_own_numbers, text, flags=re.MULTILINE)
    text = re.sub(r"^(`{3,})(?!\{claim\}).*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    for pattern in (r"<!--.*?-->", r"\{\{.*?\}\}", r"\$\$.*?\$\$", r"\$[^$\n]+\$", r"`[^`\n]*`"):
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return [line for line in text.splitlines() if TYPED.search(line)]


def _without_own_numbers(claim: re.Match[str]) -> str:
    """The sentence of a claim without the numbers of its expression, and without its fence."""
    own = {*re.findall(r"\d+(?:\.\d+)?", claim[1])}
    return re.sub(r"\d+(?:\.\d+)?", lambda number: "" if number[0] in own else number[0], claim[2])


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(("papers/", "benchmarks"))])
def test_no_figure_of_a_result_is_typed_by_hand(page: str) -> None:
    text = (DOCS / page).read_text()
    known = REVIEWED.get(page, ())
    assert [words for words in known if words not in text] == [], "no longer there: take it off the list"
    for words in known:
        text = text.replace(words, "")
    assert typed(text) == []


def test_a_figure_that_is_typed_by_hand_is_noticed() -> None:
    assert typed("It reaches 81.3 % there.\n\nIt takes 5 s, or 3.2 GB.") == [
        "It reaches 81.3 % there.",
        "It takes 5 s, or 3.2 GB.",
    ]
    assert typed("```{claim} 1 > 0\nOurs is at 81.3 ± 0.5.\n```") == ["Ours is at 81.3 ± 0.5."]
    assert typed("```{claim} 2 < 35\nIt stays below 35 %.\n```") == []
    assert (
        typed('{{ ours("a", "b", "c") }} %, `timeout=5 s` and\n```text\n3 s\n```\nin 20 rounds of 3 steps')
        == []
    )
