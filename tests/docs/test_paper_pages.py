"""The statements of a paper that the code cites by number are on the paper's page.

A module in graphfed/methods/<paper>/, graphfed/reproductions/<paper>.py and SHARED cite the paper's own statements:
`Eq. (26)` is `\\tag{26}` in docs/papers/<paper>.md, `Alg. 2` a heading `Algorithm 2`, `Theorem 3` is
`Theorem 3`. A statement of another paper names it directly in front or behind: `Eq. 2 of Li et al. 2018`,
`Li et al. 2018, Eq. 2`, or stands in a module of another paper's method (OTHERS)."""

import json
import re
from pathlib import Path

import pytest

from graphfed.reproductions import PAPERS
from graphfed.reproductions.reproduce import find_paper

ROOT = Path(__file__).resolve().parents[2]
#: Modules in a paper's folder that are another paper's method, all of whose citations are of that paper.
OTHERS = {"methods/lumos/lpgnn.py"}
#: Modules of shared folders that implement statements of a paper.
SHARED = {
    "cnfgnn": ("methods/forecasters/multi_task.py",),
    "lumos": (
        "methods/baselines/central.py",
        "methods/common/link_prediction.py",
        "privacy/bins.py",
        "privacy/local.py",
    ),
}
NUMBERS = r"\(?\d+\)?(?:(?:,| and| to|-|,? or) ?\(?\d+\)?)*"
CITED = re.compile(rf"\b(Eq|Alg|Theorem|Thm)(?:uation|orithm|orem)?s?\.? ?({NUMBERS})(?![.\d])")
KINDS = {"Eq": "Eq", "Alg": "Algorithm", "Theorem": "Theorem", "Thm": "Theorem"}
#: A name and a year in front of a citation, or behind it: it is of that work.
AUTHORS = r"[A-Z][\w-]+(?: et al\.|(?:, [A-Z][\w-]+)*,? and [A-Z][\w-]+)?,? \(?\d{4}\)?"
OF_OTHERS = re.compile(rf"{AUTHORS},? {CITED.pattern}|{CITED.pattern}(?: and [\w ]*)? (?:of|in) {AUTHORS}")


def modules_of(paper: str) -> list[Path]:
    """The modules that implement a paper."""
    package = ROOT / "graphfed"
    own = [*(package / "methods" / paper).rglob("*.py"), package / f"reproductions/{paper}.py"]
    shared = [package / name for name in SHARED.get(paper, ())]
    return sorted(path for path in (*own, *shared) if path.relative_to(package).as_posix() not in OTHERS)


def cited(text: str) -> set[str]:
    """What a text cites of its own paper: ``{"Eq 26", "Algorithm 2"}``."""
    text = OF_OTHERS.sub("", " ".join(text.split()))
    return {f"{KINDS[kind]} {number}" for kind, numbers in CITED.findall(text) for number in spelt(numbers)}


def spelt(numbers: str) -> list[str]:
    """``(4)-(6)`` or ``12 to 14``: every number in between."""
    ends = [int(number) for number in re.findall(r"\d+", numbers)]
    if len(ends) == 2 and re.search(r"\d\)?(?: to |-)\(?\d", numbers):
        return [str(number) for number in range(ends[0], ends[1] + 1)]
    return [str(number) for number in ends]


def stated(page: str) -> set[str]:
    """What a page states."""
    found = {
        f"Eq {number}" for tag in re.findall(r"\\tag\{([^}]*)\}", page) for number in re.findall(r"\d+", tag)
    }
    found |= {f"Algorithm {number}" for number in re.findall(r"^#+ .*\bAlgorithm (\d+)", page, re.MULTILINE)}
    return found | {f"Theorem {number}" for number in re.findall(r"\bTheorem (\d+)", page)}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_statement_that_a_papers_modules_cite_is_on_its_page(paper: str) -> None:
    page = stated((ROOT / f"docs/papers/{paper}.md").read_text())
    missing = {
        path.relative_to(ROOT).as_posix(): sorted(gone)
        for path in modules_of(paper)
        if (gone := cited(path.read_text()) - page)
    }
    assert missing == {}


# ---- the results on the page -------------------------------------------------------------------------------


def results_of(paper: str) -> str:
    """The page of a paper's results, which is a page of its own for most papers."""
    own = ROOT / "docs/papers" / f"{paper}_results"
    page = own.with_suffix(".md")
    return (page if page.exists() else own.with_name(f"{paper}.md")).read_text()


#: CNFGNN's items on data sets that need many hours are not recorded; the record of FedGCN has no commits.
IN_PART = {"cnfgnn"}
WITHOUT_COMMITS = {"fedgcn"}
#: Recorded with two of the three seeds, which the page says.
FEWER_SEEDS = {("fedgraph", item) for item in ("fig8", "fig9", "fig11", "fig12")}


@pytest.mark.parametrize("paper", PAPERS)
def test_a_papers_page_shows_every_item_of_its_record_which_are_those_of_the_program(paper: str) -> None:
    """The build makes tables and drawings from the record (docs/_ext/records.py)."""
    record = json.loads((ROOT / f"benchmarks/results/reproduce_{paper}.json").read_text())
    page = results_of(paper)
    recorded = [item["item"] for item in record["items"]]
    shown = re.findall(rf"^```{{reproduction-(?:table|plot)}} {paper}/(\S+)$", page, re.MULTILINE)
    assert {*shown} == {*recorded}
    items = find_paper(paper).by_name
    assert {*recorded} <= {*items} if paper in IN_PART else {*recorded} == {*items}
    assert paper in WITHOUT_COMMITS or {*record["commits"]} == {*recorded}


@pytest.mark.parametrize("paper", PAPERS)
def test_the_rows_of_a_record_have_the_seeds_of_the_program(paper: str) -> None:
    """tests/docs/test_records.py compares their labels and what is printed."""
    items = find_paper(paper).by_name
    for item in json.loads((ROOT / f"benchmarks/results/reproduce_{paper}.json").read_text())["items"]:
        if item["kind"] != "runs":
            continue
        for row, asked in zip(item["rows"], items[item["item"]].rows, strict=True):
            seeds = tuple(items[item["item"]].seeds_of(asked))
            if (paper, item["item"]) in FEWER_SEEDS:
                seeds = seeds[:2]
            assert tuple(row["seeds"]) == seeds, (item["item"], row["label"])


@pytest.mark.parametrize("paper", PAPERS)
def test_a_page_shows_how_rows_compare_wherever_the_paper_prints_it(paper: str) -> None:
    page = results_of(paper)
    for item in json.loads((ROOT / f"benchmarks/results/reproduce_{paper}.json").read_text())["items"]:
        compared = [there for row in item["rows"] for there in row.get("relative", ())]
        if any(value is not None for there in compared for value in there["printed"].values()):
            directive = rf"```{{reproduction-table}} {paper}/{item['item']}\n(?::.*\n)*:relative:"
            assert re.search(directive, page), item["item"]
