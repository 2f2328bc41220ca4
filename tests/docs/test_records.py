"""Figures in pages are those of the records: when a record changes, so does the page, or the build fails."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("math_core", reason="the extra 'docs' is not installed")
pytest.importorskip("sphinx", reason="the extra 'docs' is not installed")

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/_ext"))

from recorded_figures import RecordError, Records  # noqa: E402

from graphfed.reproductions import PAPERS, plots  # noqa: E402
from graphfed.reproductions.reproduce import find_paper  # noqa: E402
from graphfed.reproductions.tables import cells_of, relative_cells  # noqa: E402

RESULTS = ROOT / "benchmarks/results"
ITEMS = [
    f"{paper}/{item['item']}"
    for paper in PAPERS
    for item in json.loads((RESULTS / f"reproduce_{paper}.json").read_text())["items"]
]
#: One item of each kind of every paper.
DRAWN = {
    (paper, item["kind"]): f"{paper}/{item['item']}"
    for paper in PAPERS
    for item in json.loads((RESULTS / f"reproduce_{paper}.json").read_text())["items"]
}.values()
LUMOS = ("lumos/fig3", "GCN, Lumos", "accuracy")


@pytest.fixture(scope="module")
def records() -> Records:
    return Records(RESULTS)


def changed_copy(folder: Path) -> Path:
    """The records, with another accuracy of Lumos: 12.3 ± 0.4."""
    copy = folder / "results"
    shutil.copytree(RESULTS, copy)
    path = copy / "reproduce_lumos.json"
    content = json.loads(path.read_text())
    (item,) = [item for item in content["items"] if item["item"] == "fig3"]
    (row,) = [row for row in item["rows"] if row["label"] == "GCN, Lumos"]
    row["ours"]["accuracy"] |= {"mean": 12.3, "std": 0.4}
    path.write_text(json.dumps(content))
    return copy


# ---- the functions -----------------------------------------------------------------------------------------


def test_a_figure_is_the_mean_and_deviation_that_the_record_has(records: Records, tmp_path: Path) -> None:
    row = records.row(*LUMOS[:2])
    values = row["ours"]["accuracy"]["values"]
    mean = sum(values) / len(values)
    std = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    assert records.ours(*LUMOS) == f"{mean:.1f} ± {std:.1f}"
    assert records.ours(*LUMOS, places=2) == f"{mean:.2f} ± {std:.2f}"
    assert records.mean(*LUMOS) == pytest.approx(mean)
    assert records.count_seeds(*LUMOS[:2]) == len(values) == len(row["seeds"])
    assert Records(changed_copy(tmp_path)).ours(*LUMOS) == "12.3 ± 0.4"


def test_a_printed_figure_has_the_decimals_that_were_printed(records: Records) -> None:
    central = ("fedgcn/cora", "central GCN", "accuracy")
    assert records.printed(*central) == "80.69 ± 0.65"
    gap = records.mean(*central) - 80.69
    assert records.difference(*central) == f"{gap:+.1f}"
    assert records.printed("fedgat/table1", "central GCN", "accuracy") == "80.5"


def test_a_row_is_found_by_its_label_or_by_panel_series_and_x(records: Records) -> None:
    label = records.row("sapgnn/fig4", "Cora P=2 PPGNN 0.0")
    assert records.row("sapgnn/fig4", "Cora, P=2 | PPGNN", x=0) == label
    assert records.row("sapgnn/fig4", "PPGNN", panel="Cora P=2", x=0) == label
    assert records.row("sapgnn/fig4", "Cora P=2 | Cora P=2 PPGNN 0.0") == label


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('ours("lumos/fig3", "GCN, Lumoss", "accuracy")', r"lumos/fig3: no row 'GCN, Lumoss'; did you mean 'GCN, Lumos'"),
        ('ours("lumos/fig33", "GCN, Lumos", "accuracy")', r"no item 'fig33' in the record of lumos; did you mean 'fig3'"),
        ('ours("lumoss/fig3", "GCN, Lumos", "accuracy")', r"no record 'reproduce_lumoss' .* did you mean 'reproduce_lumos'"),
        ('ours("lumos/fig3", "GCN, Lumos", "accurac")', r"'GCN, Lumos' has no ours 'accurac'; did you mean 'accuracy'"),
        ('printed("lumos/fig3", "GCN, Lumos", "accuracy")', r"nothing is printed for accuracy of 'GCN, Lumos'"),
        ('mean("sapgnn/fig4", "PPGNN", "accuracy", x=0)', r"'PPGNN at x = 0' is \d+ rows, .*; add"),
        ('relative("lumos/fig3", "GCN, Lumos", "GCN, LPGN", "accuracy")', r"did you mean 'GCN, LPGNN'"),
        ('value("split_learning", "grahps[0].ratios")', r"split_learning: nothing at grahps"),
        ('value("split_learning", "graphs[0]")', r"a dict of \d+ at graphs\[0\]; a figure is one number or text"),
        ('value("split_learning", "graphs[")', r"graphs\[ is no JMESPath"),
        ('number("split_learning", "machine.system")', r"no number"),
        ('means("lumos/fig3", "^Lumos", "accuracy")', r"no row matches '\^Lumos'"),
        ('gaps("lumos/fig5", "supervised | Lumos", "supervised | Lumoss", "score")', r"did you mean 'supervised | Lumos'"),
        ('meen("lumos/fig3", "GCN, Lumos", "accuracy") > 1', r"'meen' is undefined"),
        ('mean("lumos/fig3"', r"unexpected"),
        ('mean("lumos/fig3") > 1', r"missing 2 required positional arguments"),
    ],
)  # fmt: skip
def test_a_name_that_no_record_has_is_an_error_that_says_the_nearest(
    records: Records, expression: str, message: str
) -> None:
    with pytest.raises(RecordError, match=message):
        records.evaluate(expression)


def test_claims_compare_rows_with_each_other(records: Records) -> None:
    panel = [row for row in records.item("lumos/fig5")["rows"] if row["panel"] == "supervised"]
    series = sorted({row["series"] for row in panel})
    at = {(row["series"], row["x"]): row["ours"]["score"]["mean"] for row in panel}
    one, two = series[:2]
    expected = [at[one, x] - at[two, x] for name, x in at if name == one]
    names = (f"supervised | {one}", f"supervised | {two}")
    assert records.gaps("lumos/fig5", *names, "score") == pytest.approx(expected)
    assert records.evaluate(f'min(gaps("lumos/fig5", "{names[0]}", "{names[1]}", "score")) > -100') is True
    assert min(records.means("lumos/fig3", "^GCN", "accuracy")) < records.mean(*LUMOS)


@pytest.mark.parametrize("item", ITEMS)
def test_every_item_of_a_record_has_a_table(records: Records, item: str) -> None:
    _, asked = records.asked(item)
    found = records.item(item)
    columns, lines = cells_of(asked, found)
    assert len(lines) >= len(found["rows"])
    assert all(len(line) == len(columns) for line in lines)
    if any(row["relative"] for row in found["rows"]):
        assert relative_cells(found)[1]


@pytest.mark.parametrize("item", ITEMS)
def test_a_record_has_the_rows_seeds_and_printed_figures_that_the_program_asks(
    records: Records, item: str
) -> None:
    """A record may have fewer seeds than the program runs by itself."""
    _, asked = records.asked(item)
    recorded = records.item(item)
    assert (recorded["kind"], recorded["title"]) == (asked.kind, asked.title)
    rows = recorded["rows"]
    if len(rows) == len(asked.rows):  # an item that measures something may have several rows for one
        assert [row["label"] for row in rows] == [row.label for row in asked.rows]
    by_label = {row.label: row for row in asked.rows}
    for row in rows:
        of = by_label.get(row["label"])
        if of is None or not isinstance(row.get("printed"), dict):
            continue
        there = {metric: of.printed.get(metric) for metric in row["printed"]}
        printed = {m: None if p is None else {"mean": p.mean, "std": p.std} for m, p in there.items()}
        assert row["printed"] == printed, row["label"]
        assert {*row["seeds"]} <= {*asked.seeds_of(of)}
        compared = {there["to"]: there["printed"] for there in row["relative"]}
        for other in of.relative if compared else ():
            assert compared[other.to] == {metric: other.printed.get(metric) for metric in compared[other.to]}


@pytest.mark.slow
@pytest.mark.parametrize("item", DRAWN)
def test_every_kind_of_item_is_drawn_in_the_words_of_the_program(records: Records, item: str) -> None:
    paper, asked = records.asked(item)
    picture = plots.draw(asked, records.item(item)).decode()
    assert picture.count("<path")
    title = find_paper(paper).by_name[asked.name].title
    assert title.split()[0] in picture


def test_runs_that_did_not_reach_a_target_are_counted_and_not_averaged(tmp_path: Path) -> None:
    every = {"values": [1.0, 2.0, 3.0], "mean": 2.0, "std": 1.0}
    some, none = (
        {"values": values, "mean": None, "std": None} for values in ([4.0, None, 2.0], [None, None])
    )
    (tmp_path / "times.json").write_text(
        json.dumps({"every": every, "some": some, "none": none, "text": "x"})
    )
    records = Records(tmp_path)
    assert records.reached("times", "every") == "2.0 ± 1.0"
    assert records.reached("times", "every", ".0f", per=0.001) == "2000 ± 1000"
    assert records.reached("times", "some", ".2f") == "3.00 in 2 of 3 runs"
    assert records.reached("times", "none") == "not reached"
    with pytest.raises(RecordError, match="no values of runs at text"):
        records.reached("times", "text")


# ---- the pages ---------------------------------------------------------------------------------------------

PAGE = r"""# Figures

Lumos has {{ ours("lumos/fig3", "GCN, Lumos", "accuracy") }} %, in mean $\mathbf{W} h$.

$$ h = \sum_{v} x_v \tag{26} $$

```{reproduction-table} lumos/fig3
:rows: ^GCN, Lumos$
```

```{reproduction-plot} lumos/fig3
```

```{claim} mean("lumos/fig3", "GCN, Lumos", "accuracy") > mean("lumos/fig3", "GCN, LPGNN", "accuracy")
Lumos is above LPGNN.
```

```{record-table} fedgraph_machines data.cora.policies
:rows: full=full batches; fastgcn=FastGCN
round, wall s | round | .3f | 1
near, wall ms | to.near.wall | .0f | 0.001
```

```{record-table} fedgat_sums
:rows: direct, matrix=direct, bytes of the matrices
MB in a round | round_bytes."{}" | .3f | 1e6
```
"""

WRONG = r"""# Wrong

{{ ours("lumos/fig3", "GCN, Lumoss", "accuracy") }} and {{ hours("lumos/fig3") }}

$$ \nothing{x} $$

```{reproduction-table} lumos/fig3
:rows: ^Nothing
```

```{reproduction-table} lumos/fig3
:metrics: auc
```

```{claim} mean("lumos/fig3", "GCN, Lumos", "accuracy")
No relation.
```

```{record-table} fedgraph_machines data.cora.policies
:rows: nobody=nobody
round | round | .3f | 1
```
"""

CONF = """
extensions = ["myst_parser", "records"]
myst_enable_extensions = ["dollarmath", "substitution"]
html_math_renderer = "mathml"
html_theme = "basic"
suppress_warnings = ["config.cache"]  # as in docs/conf.py
"""


def build(folder: Path, results: Path, pages: dict[str, str]) -> tuple[Any, str]:
    """Build pages; return the finished process and the first page as HTML."""
    docs = folder / "docs"
    docs.mkdir(exist_ok=True)
    (docs / "conf.py").write_text(CONF)
    for name, text in pages.items():
        (docs / f"{name}.md").write_text(text)
    html = folder / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-D", f"records_folder={results}", str(docs), str(html)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'docs/_ext'}", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    page = html / "index.html"
    return done, page.read_text() if page.exists() else ""


@pytest.mark.slow
def test_a_changed_record_changes_the_sentence_table_and_picture_and_contradicts_the_claim(
    records: Records, tmp_path: Path
) -> None:
    """The folder is built twice; the second build finds pages that have not changed."""
    done, page = build(tmp_path, RESULTS, {"index": PAGE})
    assert done.returncode == 0, done.stderr
    assert f"Lumos has {records.ours(*LUMOS)} %" in page
    assert f"<p>{records.ours(*LUMOS, places=2)}</p>" in page
    assert "benchmarks/results/reproduce_lumos.json" in page
    commits = json.loads((RESULTS / "reproduce_lumos.json").read_text())["commits"]["fig3"]
    assert f"commit {', '.join(commits[:-1])} and {commits[-1]}; seeds 0-2" in page
    assert "<p>Lumos is above LPGNN.</p>" in page
    full = "data.cora.policies.full"
    assert f"<p>{records.reached('fedgraph_machines', f'{full}.round', '.3f')}</p>" in page
    assert f"<p>{records.reached('fedgraph_machines', f'{full}.to.near.wall', '.0f', per=0.001)}</p>" in page
    assert "<p>not reached</p>" in page
    sent = records.value("fedgat_sums", 'round_bytes."direct, matrix"', ".3f", per=1e6)
    assert f"<p>{sent}</p>" in page
    assert '<math display="block">' in page
    assert '<span class="eqno">(26)</span>' in page
    assert 'src="_images/lumos-fig3.svg"' in page
    assert "http" not in page.partition("<body>")[2].replace("https://www.sphinx-doc.org", "")
    drawn = (tmp_path / "html/_images/lumos-fig3.svg").read_text()

    done, page = build(tmp_path, changed_copy(tmp_path), {"index": PAGE})
    assert done.returncode == 1
    assert "index.md:14: ERROR: claim: the records contradict this sentence" in done.stderr
    assert "Lumos has 12.3 ± 0.4 %" in page
    assert "<p>12.30 ± 0.40</p>" in page
    assert (tmp_path / "html/_images/lumos-fig3.svg").read_text() != drawn


@pytest.mark.slow
def test_unknown_names_fail_the_build_with_file_line_and_the_nearest_name(tmp_path: Path) -> None:
    done, _ = build(tmp_path, RESULTS, {"index": WRONG})
    assert done.returncode == 1
    for message in (
        "index.md:3: WARNING: Substitution error:RecordError: lumos/fig3: no row 'GCN, Lumoss'; did you mean "
        "'GCN, Lumos'?",
        "index.md:3: WARNING: Substitution error:UndefinedError: 'hours' is undefined",
        r'index.md:5: WARNING: mathematics: \nothing{x}: Unknown command "\nothing"',
        "index.md:7: ERROR: reproduction-table: lumos/fig3: no row matches '^Nothing'",
        "index.md:11: ERROR: reproduction-table: lumos/fig3: 'GCN, central' has no ours 'auc'",
        "index.md:15: ERROR: claim: mean(",
        "index.md:19: ERROR: record-table: fedgraph_machines: no values of runs at data.cora.policies.nobody",
    ):
        assert message in done.stderr, done.stderr
