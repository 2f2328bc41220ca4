"""Pages say in prose what the code, the tree and the records have."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphfed
from graphfed.crypto.accept import bytes_of_accept
from graphfed.crypto.compare import bytes_of_comparison, bytes_of_opening
from graphfed.crypto.ot import bytes_of_set_up
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.partition import partition
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.tasks import FORECASTING, LINK_PREDICTION

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(graphfed.__file__).parent


def page(name: str) -> str:
    """The text of a page with the figures of the records, and every run of blanks as one space."""
    pytest.importorskip("jmespath", reason="the extra 'docs' is not installed")
    sys.path.insert(0, str(ROOT / "docs/_ext"))
    from recorded_figures import Records

    records = Records(ROOT / "benchmarks/results")
    text = (ROOT / "docs" / name).read_text()
    filled = re.sub(
        r"\{\{(.*?)\}\}", lambda found: str(records.evaluate(found[1].strip())), text, flags=re.DOTALL
    )
    return " ".join(filled.split())


# ---- choosing ----------------------------------------------------------------------------------------------


def section_of(method: Method) -> str:
    """Where the page on choosing must list a method, by what the method declares of itself."""
    only_weights = re.fullmatch(
        r"(gradients, or )?weights( and control variates)?, every round", method.sends.summary
    )
    sections = {
        "One sensor at each client": FORECASTING in method.tasks,
        "References in one place": method.pooled,
        "One node at each client": method.partition == "ego",
        "Clients that share nodes": method.requires.nodes_per_client == "at least one",
        "Nothing may leave a client": method.sends.summary == "nothing",
        "A model for every client": method.personal,
        "Weights or gradients only": only_weights is not None,
        "Missing neighbours": any("generator" in name for name in method.sends.messages),
        "Methods that use cross-client edges": True,
    }
    return next(title for title, belongs in sections.items() if belongs)


def test_the_page_on_choosing_lists_every_method_where_its_declarations_put_it() -> None:
    sections = re.split(r"^## ", (ROOT / "docs/choosing.md").read_text(), flags=re.MULTILINE)[1:]
    found = {
        name: section.partition("\n")[0]
        for section in sections
        for name in re.findall(r"^\| .+? \| `(\w+)` \| .+ \|$", section, re.MULTILINE)
    }
    assert found == {name: section_of(get_method(name)) for name in METHODS.own}


def test_the_page_on_choosing_names_the_methods_that_predict_links() -> None:
    (content,) = re.findall(r"\(`--task link_prediction`\)(.*?)\.\s", page("choosing.md"))
    can = {name for name in METHODS.own if LINK_PREDICTION in get_method(name).tasks}
    assert {*re.findall(r"`(\w+)`", content)} == can


# ---- design ------------------------------------------------------------------------------------------------


def test_the_page_on_the_design_names_every_folder_and_top_level_module_and_no_other() -> None:
    table = (ROOT / "docs/design.md").read_text().partition("## Where things are")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    folders = {path.parent.relative_to(PACKAGE).as_posix() + "/" for path in PACKAGE.rglob("*.py")} - {"./"}
    folders |= {"data/graphs/files/"}  # of files that are no modules
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert named == folders | modules


# ---- security ----------------------------------------------------------------------------------------------


def test_the_bytes_of_comparisons_on_the_security_page_are_those_of_the_protocol() -> None:
    text = page("security.md").partition("## Comparisons between pairs")[2].partition("## Counting")[0]
    compared = {bits: sum(bytes_of_comparison(1, bits)) + 2 * bytes_of_opening(1) for bits in (3, 8, 10, 16)}
    accepted = {bits: sum(bytes_of_accept(bits)) / 1000 for bits in (8, 10)}
    first, *others = (
        f"{compared[bits]} bytes ({bits} bits)" if bits == 3 else f"{compared[bits]} ({bits})"
        for bits in compared
    )
    assert f"{first}, {others[0]}, {others[1]} or {others[2]}" in text
    assert f"{accepted[8]:.1f} kB (8 bits) or {accepted[10]:.1f} kB (10)" in text
    assert f"set-up takes {sum(bytes_of_set_up()) / 1000:.1f} kB" in text


# ---- notes of records --------------------------------------------------------------------------------------


def test_how_much_of_the_test_the_mask_concerns(real_data: Path) -> None:
    """The shares on CNFGNN's page: of a sensor's windows those without a reading, and of the readings that
    are forecast those whose window has a missing one."""
    missing = load("metr_la_20", data_dir=real_data).missing
    before = np.concatenate([np.zeros((1, missing.shape[1])), missing.cumsum(0)])
    windows = len(missing) - 23
    test = slice(round(0.8 * windows), windows)
    read = (before[12 : windows + 12] - before[:windows])[test]
    known = 12 - (before[24:] - before[12 : windows + 12])[test]
    text = page("papers/cnfgnn_results.md")
    assert f"no reading in {100 * (read == 12).mean():.0f} % of the test windows" in text
    share = known[read > 0].sum() / known.sum()
    assert f"{100 * share:.0f} % of the readings that the test counts" in text


def test_the_table_of_the_defaults_is_that_of_its_record() -> None:
    """And central is within two points of the best plain GCN of PyG."""
    folder = ROOT / "benchmarks"
    command = [sys.executable, str(folder / "defaults.py"), "--table"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    scores, costs = printed.split("\n\n")
    page = (folder / "README.md").read_text()
    assert scores in page
    assert costs in page
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in scores.splitlines()]
    compared = 0
    for row in rows:
        cells = dict(zip(head, row, strict=True))
        plain = [float(cells[name]) for name in ("pyg_gcn", "pyg_gcn_wide") if cells[name]]
        if plain and cells["central"]:
            assert float(cells["central"]) >= max(plain) - 2, cells["graph"]
            compared += 1
    assert compared >= 12


def test_the_sizes_of_overlapping_clients_on_the_page_on_data_are_those_of_cora(real_data: Path) -> None:
    graph = load("cora", real_data)
    assert isinstance(graph, Graph)
    ratios = {}
    for variance in (0.1, 0.5, 1.0):
        sizes = [
            np.bincount(
                partition(graph, "overlapping", 20, seed, variance=variance).held_client, minlength=20
            )
            for seed in range(5)
        ]
        ratios[variance] = [size.min() / size.max() for size in sizes]
    low, medium, high = (f"{np.mean(ratio):.2f}" for ratio in ratios.values())
    text = page("data.md")
    assert f"is {low}, {medium} and {high} on average" in text
    assert f"for single seeds at 0.1 it is between {min(ratios[0.1]):.2f} and {max(ratios[0.1]):.2f}" in text
