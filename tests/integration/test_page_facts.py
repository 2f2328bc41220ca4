"""Pages say in prose what the code, the tree and the records have."""

import json
import math
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphfed
from graphfed.cli import main
from graphfed.crypto.accept import bytes_of_accept
from graphfed.crypto.compare import bytes_of_comparison, bytes_of_opening
from graphfed.crypto.ot import bytes_of_set_up
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.partition import partition
from graphfed.federation import Federation
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.tasks import FORECASTING, LINK_PREDICTION
from graphfed.privacy.gaussian import gaussian_sigma
from graphfed.reproductions import PAPERS
from graphfed.reproductions.reproduce import find_paper
from graphfed.runs.settings import parse_settings
from graphfed.tasks.registry import default_settings

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


def test_every_row_of_the_page_on_choosing_can_be_read_without_the_row_above_it() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (`.+?`.*?) \| .+ \|$", (ROOT / "docs/choosing.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 20
    refers = re.compile(r"\b(as|the) (above|below|before|same|two|former|latter)\b", re.IGNORECASE)
    assert [condition for condition, _ in rows if refers.search(condition)] == []


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


# ---- report ------------------------------------------------------------------------------------------------


def test_the_page_on_the_report_explains_every_section_of_a_report() -> None:
    template = (PACKAGE / "report/page.html.jinja").read_text()
    explained = re.findall(r"^- \*\*(.+?)\*\*", (ROOT / "docs/report.md").read_text(), re.MULTILINE)
    assert [title for title in explained if title != "The first sentence"] == re.findall(
        r"<h2>(.+?)</h2>", template
    )


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


def test_the_security_page_calls_nothing_that_a_method_uses_yet_to_come() -> None:
    used = {line for path in (PACKAGE / "methods").rglob("*.py") for line in path.read_text().splitlines()}
    assert any("secure.compare import" in line for line in used)
    assert "to come" not in page("security.md")


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


# ---- transfers ---------------------------------------------------------------------------------------------


def test_the_noise_and_the_false_edges_of_naive_fedgnn_on_the_page_of_lumos_follow_from_its_bounds() -> None:
    nodes, features, epsilon, delta = 22_470, 4_714, 2.0, 1e-5
    false_edges = nodes * (nodes - 1) / 2 / (1 + math.exp(epsilon))
    free = gaussian_sigma(epsilon, delta, math.sqrt(features))
    bounded = gaussian_sigma(epsilon, delta, math.sqrt(2 * 30))
    text = page("papers/lumos.md")
    assert (
        rf"$\epsilon = 2$ makes ${false_edges / 1e7:.1f} \cdot 10^7$ false edges and $\sigma = {free:.0f}$"
        in text
    )
    assert (
        rf"$B = 30$ makes $\Delta = \sqrt{{60}}$ and $\sigma = {bounded:.0f}$ in place of {free:.0f}" in text
    )
    assert f"Noise of standard deviation {free:.0f} covers" in text


def test_the_docstring_of_gather_says_that_every_client_must_be_present() -> None:
    """tests/federation/test_roster.py shows that it refuses absent clients, and that `collect` takes the
    rows of those that are there."""
    content = " ".join((Federation.gather.__doc__ or "").split())
    assert "Every client must be present; use `collect` if some may be absent." in content


# ---- figures in prose --------------------------------------------------------------------------------------


def record(name: str) -> dict[str, Any]:
    """A record of benchmarks/results."""
    content: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    return content


class FedGraph:
    """The recorded figures of FedGraph, by item, row and metric."""

    def __init__(self) -> None:
        self.items = {item["item"]: item for item in record("reproduce_fedgraph")["items"]}


#: Figures that the prose on results types: the paper's, and settings. All others come from records.
TYPED = {
    "cnfgnn": (
        "below 0.5",  # the paper's ratio of passes
        "the first 5, 25, 50, 75 or 90 %",  # settings of table9
        "with the 95 % interval over the seeds",
        # test_how_much_of_the_test_the_mask_concerns compares these with the data.
        "no reading in 10 % of the test windows",
        "7 % of the readings that the test counts",
    ),
    "fedgraph": (
        "mean 0.8, variance 0.1",  # the default partition
        "variance 0.1 and 1, and GraphSAGE with 0.5",  # settings of fig9
        "From variance 0.1 to 1",
        "for 0.5 and 1 had 20 episodes, the one for 0.1 had",
        "dropout 0.5, Adam 0.01",  # settings
        "90.16 % on Cora, 78.7 % on PubMed, 87.9 % on CiteSeer and 96.27 % on Reddit",  # the paper
        "The paper's target for CiteSeer, 87.9 %",
        "about 5 s to 75 %",  # the paper's text
        "about 15 s to 73 %",
        "about 10 % more accurate",
        "about 10 % on Cora and CiteSeer, and on Reddit from about 90 to about 70 %",
        "claims a gain of about 10 %",
        "about 0.2, 0.4 and 0.6 for the variances 0.1, 0.5 and 1",
        "FedGraph reaches 75 % first; the other schemes that reach it need less than 1.6 times",  # a claim
        "stays below 80 %",  # a claim
        "in less than 0.85 of its time",  # likewise, as those that follow
        "and less than 0.6",
        "take less than 2.5 times as long",
        "in less than 0.7 of the time of full batches",
        "takes less than 0.4 of the modelled seconds",
        "needs more than 0.85 of the seconds of a round with all nodes",
        "more than 0.8 on DBLP",
        "needs less than 0.7 of the seconds of full batches and of GraphSAGE, to the early one less than 0.8",
        "`round_time=0.2`",  # a setting
    ),
}


@pytest.mark.parametrize("paper", TYPED)
def test_every_figure_in_the_prose_on_results_is_of_a_record_or_a_printed_one(paper: str) -> None:
    """A figure of a record is an expression; the build fails where the record does not have it, and where it
    contradicts a claim."""
    text = prose(f"papers/{paper}.md", "## Results", "## Open questions")
    assert "```{claim} " in (ROOT / f"docs/papers/{paper}.md").read_text()
    for known in TYPED[paper]:
        assert known in text, known
        text = text.replace(known, "")
    assert re.findall(r".{0,30}\d+\.\d+.{0,20}|.{0,30}\d+ %.{0,20}", text) == []


def prose(name: str, start: str, end: str) -> str:
    """A section of a page without its tables, directives and expressions, in one line."""
    section = (ROOT / "docs" / name).read_text().partition(f"\n{start}\n")[2].partition(f"\n{end}\n")[0]
    section = re.sub(r"```{record-table}.*?\n```", "", section, flags=re.DOTALL)
    lines = [line for line in section.splitlines() if not line.startswith(("|", "```", ":"))]
    return re.sub(r"{{.*?}}", "", " ".join(lines))


def test_every_figure_of_a_record_on_the_page_on_policies_is_the_recorded_one() -> None:
    text = page("policies.md")
    r = FedGraph()
    ddpg, bandit = r.items["fig6"]["rows"]
    returns = ddpg["returns"]
    assert (bandit["best"], len(returns), len(bandit["returns"])) == ({"share": 0.05, "chance": 0.5}, 300, 59)
    later = sum(returns[40:60]) / 20
    each = ddpg["seconds"] / len(returns)
    whole, other = (f"{row['seconds']:_.0f}".replace("_", " ") for row in (ddpg, bandit))
    for sentence in (
        f"the recorded 300 episodes of 300 rounds took {whole} s on one core, {each:.0f} s each",
        f"the 59 episodes of the bandit {other} s",
        f"returns {bandit['final']:.1f} without noise",
        f"returned {ddpg['first']:.1f} in the mean of the first twenty, {later:.1f} in those from 41 to 60, "
        f"and {ddpg['last']:.1f} in the last twenty of 300",
        f"after episode {ddpg['kept']}, returns {ddpg['final']:.1f} without noise",
    ):
        assert sentence in text
    assert 25 < 100 * each / 60 < 35
    assert "about half an hour" in text


def test_the_commands_on_the_page_that_learn_policies_ask_what_the_reproduction_asks() -> None:
    text = (ROOT / "docs/papers/fedgraph.md").read_text()
    lines = re.findall(r"^\$ graphfed policy (.*)$", text, re.MULTILINE)
    learned = {policy.name: policy for item in find_paper("fedgraph").items for policy in item.policies}
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        pairs = list(zip(words[::2], words[1::2], strict=True))
        given = {key.removeprefix("--"): value for key, value in pairs if key != "--set"}
        asked = learned[given.pop("out").rpartition("/")[2]]
        assert given.pop("threads") == "1"
        assert given == {"episodes": str(asked.episodes), **{k: str(v) for k, v in asked.options.items()}}
        assert parse_settings([value for key, value in pairs if key == "--set"]) == {
            "preset": "paper",
            **asked.settings,
        }


# ---- notes of records --------------------------------------------------------------------------------------

RECORDS = sorted(path.stem for path in (ROOT / "benchmarks/results").glob("reproduce_*.json"))


@pytest.mark.parametrize("name", RECORDS)
def test_no_note_of_a_record_claims_a_number_of_seeds_that_no_row_has(name: str) -> None:
    for item in record(name)["items"]:
        counts = {len(row["seeds"]) for row in item["rows"] if "seeds" in row}
        for note in item["notes"]:
            claimed = {int(number) for number in re.findall(r"\b(\d+) seeds?\b", note)}
            assert claimed <= counts, (item["item"], note)


def test_rows_of_forecasters_that_are_trained_by_different_schedules_say_so_in_the_notes() -> None:
    """In the paper's module, in the record, and on the page."""
    recorded = {item["item"]: item for item in record("reproduce_cnfgnn")["items"]}
    unequal = []
    for name, item in find_paper("cnfgnn").by_name.items():
        configs = {row.label: settings_of(item, row) for row in item.rows}
        schedules = {schedule_of(c) for c in configs.values() if c is not None}
        if len(schedules) < 2:
            continue
        unequal.append(name)
        for notes in (item.notes, recorded[name]["notes"] if name in recorded else item.notes):
            content = " ".join(notes)
            assert all(schedule in content for schedule in schedules), name
            assert "client_state=reset" in content, name
    assert {"table7", "table9"} <= {name.partition("-")[0] for name in unequal}
    text = prose("papers/cnfgnn.md", "## Results", "## Open questions")
    assert "`teacher=1`" in text
    assert "`teacher=1000`" in text
    assert "Adam begins anew in every round" in text


def schedule_of(config: Any) -> str:
    """The setting that decides the schedule of scheduled sampling."""
    name = "teacher" if config.teacher_fraction is None else "teacher_fraction"
    return f"{name}={getattr(config, name):g}"


def settings_of(item: Any, row: Any) -> Any:
    """The settings that a row trains with; None of one that is not trained by steps."""
    method = get_method(row.method)
    given = item.settings_of(row)
    config = method.config(**{**default_settings(method, preset=given.pop("preset", "default")), **given})
    return config if hasattr(config, "teacher") else None


def test_the_defaults_of_forecasters_are_those_that_the_page_on_forecasting_names() -> None:
    text = page("forecasting.md")
    names = ("gru_fedavg", "gru_fmtl", "gru_local", "gru_central", "cnfgnn")
    schedule = {name: get_method(name).config(**default_settings(get_method(name))).teacher for name in names}
    assert schedule.pop("gru_fedavg") == 1.0
    assert set(schedule.values()) == {1000.0}
    assert "`gru_fedavg` has `teacher=1`" in text
    assert "the others have `teacher=1000`" in text


def test_how_much_of_the_test_the_mask_concerns(real_data: Path) -> None:
    """The shares on CNFGNN's page: of a sensor's windows those without a reading, and of the readings that
    are forecast those whose window has a missing one."""
    missing = load("metr_la_20", data_dir=real_data).missing
    before = np.concatenate([np.zeros((1, missing.shape[1])), missing.cumsum(0)])
    windows = len(missing) - 23
    test = slice(round(0.8 * windows), windows)
    read = (before[12 : windows + 12] - before[:windows])[test]
    known = 12 - (before[24:] - before[12 : windows + 12])[test]
    assert f"no reading in {100 * (read == 12).mean():.0f} % of the test windows" in page("papers/cnfgnn.md")
    share = known[read > 0].sum() / known.sum()
    assert f"{100 * share:.0f} % of the readings that the test counts" in page("papers/cnfgnn.md")


def test_no_cause_is_given_for_the_order_of_rows_on_20_sensors() -> None:
    text = page("papers/cnfgnn.md")
    assert "less for a graph to tell" not in text
    assert "No experiment here says why." in text


# ---- modelled time -----------------------------------------------------------------------------------------


def test_seconds_of_the_time_model_are_called_modelled_wherever_they_are_shown() -> None:
    named = {
        (item.name, metric, called)
        for paper in PAPERS
        for item in find_paper(paper).items
        for metric, called in getattr(item, "called", {}).items()
    }
    for path in (*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/papers").glob("*.md")):
        found = re.findall(r"([\w.]*facts\.modelled_seconds): ([a-z][\w %.']+)", path.read_text())
        named |= {(path.name, metric, called) for metric, called in found}
    modelled = [entry for entry in named if entry[1].endswith("facts.modelled_seconds")]
    assert len(modelled) > 10
    assert [entry for entry in modelled if "modelled" not in entry[2]] == []
    learning = (PACKAGE / "methods/fedgraph/policy/result.py").read_text()
    assert "modelled seconds" in learning


@pytest.mark.parametrize("words", ["modelled time of a round", "much less wall time, or none"])
def test_the_help_on_policies_says_that_its_time_is_modelled(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policy", "--help"]) == 0
    assert words in " ".join(capsys.readouterr().out.split())


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
