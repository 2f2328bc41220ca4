"""Pages say in prose what the code, the tree and the records have."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import graphfed
from graphfed.cli import main
from graphfed.crypto.accept import bytes_of_accept
from graphfed.crypto.compare import bytes_of_comparison, bytes_of_opening
from graphfed.crypto.ot import bytes_of_set_up
from graphfed.federation import Federation
from graphfed.methods.registry import get_method
from graphfed.reproductions import PAPERS
from graphfed.reproductions.reproduce import find_paper
from graphfed.runs.config import parse_settings
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


def test_the_docstring_of_gather_says_that_every_client_must_be_present() -> None:
    """tests/federation/test_roster.py shows that it refuses absent clients, and that `collect` takes the
    rows of those that are there."""
    told = " ".join((Federation.gather.__doc__ or "").split())
    assert "Every client must be present; use `collect` if some may be absent." in told


# ---- figures in prose --------------------------------------------------------------------------------------


def record(name: str) -> dict[str, Any]:
    """A record of benchmarks/results."""
    content: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
    return content


NEAR, EARLY = (f"to_target.{name}.facts.modelled_seconds" for name in ("near", "early"))
WALL = "to_target.near.seconds"


class FedGraph:
    """The recorded figures of FedGraph, by item, row and metric."""

    def __init__(self) -> None:
        self.items = {item["item"]: item for item in record("reproduce_fedgraph")["items"]}

    def row(self, item: str, label: str) -> dict[str, Any]:
        (found,) = [row for row in self.items[item]["rows"] if row["label"] == label]
        return dict(found)

    def mean(self, item: str, label: str, metric: str = "accuracy") -> float:
        mean = self.row(item, label)["ours"][metric]["mean"]
        assert mean is not None, (item, label, metric)
        return float(mean)

    def means(self, item: str, metric: str) -> dict[str, float]:
        """Of every row that has one."""
        rows = self.items[item]["rows"]
        every = {row["label"]: row["ours"][metric]["mean"] for row in rows}
        return {label: mean for label, mean in every.items() if mean is not None}

    def faster(self, item: str, metric: str) -> tuple[float, float]:
        """How many times as fast FedGraph is as the others: the least and the largest."""
        every = self.means(item, metric)
        own = every.pop("FedGraph")
        return min(every.values()) / own, max(every.values()) / own

    def gains(self, item: str) -> list[float]:
        """What sharing embeddings gains over none, with either policy."""
        return [
            self.mean(item, f"{share}, {policy}") - self.mean(item, f"none, {policy}")
            for share in ("hidden", "all")
            for policy in ("FedGraph", "full batches")
        ]


def fedgraph_sentences() -> list[str]:
    """What docs/reproduce.md says of FedGraph's record, with the figures of the record."""
    r = FedGraph()
    return [*of_learning(r), *of_fig7(r), *of_other_items(r), *of_rounds()]


def of_learning(r: FedGraph) -> list[str]:
    ddpg, bandit = r.items["fig6"]["rows"]
    returns = ddpg["returns"]
    runs = [item for item in r.items.values() if item["kind"] == "runs" and "-" not in item["item"]]
    three, two = (
        [f"`{item['item']}`" for item in runs if {len(row["seeds"]) for row in item["rows"]} == {count}]
        for count in (3, 2)
    )
    assert len(three) + len(two) == len(runs)
    return [
        f"three seeds in {', '.join(three[:-1])} and {three[-1]}, two (`--seeds 0,1`) in "
        f"{', '.join(two[:-1])} and {two[-1]}",
        "the record has {:.3f}, {:.3f}, {:.3f} and {:.3f}".format(*returns[:4]),
        f"where the record has {returns[4]:.1f})",
        f"the last 20 of the 300 episodes return {ddpg['last']:.1f} in the mean",
        f"the actor that is kept returns {ddpg['final']:.1f}, the tuned constant {bandit['final']:.1f}",
    ]


def of_fig7(r: FedGraph) -> list[str]:
    near, wall = r.means("fig7", NEAR), r.means("fig7", WALL)
    fixed = {label: mean for label, mean in near.items() if label not in ("FedGraph", "tuned constant")}
    spread = [r.row("fig7", label)["ours"][NEAR]["std"] for label in near]
    citeseer = r.row("fig7-citeseer", "FedGraph")["ours"][NEAR]
    dblp = r.means("fig7-dblp", "accuracy")
    # What the words say, without a figure.
    assert in_order(near)[0] == "FedGraph"
    assert in_order(fixed)[0] == "GraphSAGE"
    assert in_order(wall)[:2] == ["central", "full batches"]
    assert (citeseer["reached"], len(citeseer["values"])) == (2, 3)
    return [
        f"in {near['FedGraph']:.2f} modelled seconds, the tuned constant in {near['tuned constant']:.2f}, "
        f"GraphSAGE, the fastest of the fixed schemes, in {near['GraphSAGE']:.2f}, full batches in "
        f"{near['full batches']:.2f}, each over three seeds",
        f"whose deviations of {min(spread):.2f} to {max(spread):.2f} overlap",
        "So it is {:.1f} to {:.1f} times as fast".format(*r.faster("fig7", NEAR)),
        "To 75 % (`fig7_targets`) it is {:.1f} to {:.1f} times as fast".format(
            *r.faster("fig7_targets", EARLY)
        ),
        f"40 episodes got {dblp['FedGraph']:.1f} % where the tuned constant stands at "
        f"{dblp['tuned constant']:.1f}, but full batches at {dblp['full batches']:.1f}",
        f"full batches are near central in {r.mean('fig7-citeseer', 'full batches', NEAR):.2f} modelled "
        "seconds, and one of three runs",
        f"(central: {r.mean('fig7-citeseer', 'central'):.1f})",
        f"full batches took {wall['full batches']:.1f} wall seconds on Cora, GraphSAGE "
        f"{wall['GraphSAGE']:.1f}, the tuned constant {wall['tuned constant']:.1f}, the constant "
        f"{wall['constant']:.1f} and FedGraph {wall['FedGraph']:.1f}",
    ]


def of_other_items(r: FedGraph) -> list[str]:
    first, lead = {}, {}
    for variance in ("0.1", "0.5", "1"):
        times = {k: v for k, v in r.means("fig9", NEAR).items() if k.endswith(f" {variance}")}
        one, other = in_order(times)[:2]
        first[variance] = [label.removesuffix(f" {variance}") for label in (one, other)]
        lead[variance] = 100 * (1 - times[one] / times[other])
    more = {
        scheme: 100 * (r.mean("fig9", f"{scheme} 1", NEAR) / r.mean("fig9", f"{scheme} 0.1", NEAR) - 1)
        for scheme in ("FedGraph", "tuned constant", "GraphSAGE", "constant", "full batches")
    }
    samplers = [more[scheme] for scheme in ("tuned constant", "GraphSAGE", "constant")]
    twelve, eight = r.means("fig12", "accuracy"), r.means("fig8", NEAR)
    gains = [*r.gains("fig10"), *r.gains("fig10-citeseer")]
    hidden, share_all, none = (r.mean("fig10_disjoint", label) for label in ("hidden", "all", "none"))
    # What the words say, without a figure.
    assert first == {
        "0.1": ["FedGraph", "GraphSAGE"],
        "0.5": ["GraphSAGE", "FedGraph"],
        "1": ["FedGraph", "full batches"],
    }
    assert in_order(twelve)[0] == "FedGraph"
    return [
        f"near central in {eight['constant']:.3f} modelled seconds and it is in {eight['FedGraph']:.3f}",
        f"it ends at {twelve['FedGraph']:.1f} %, below every other scheme (the tuned constant: "
        f"{twelve['tuned constant']:.1f})",
        f"With variance 0.1 FedGraph is there first, {lead['0.1']:.0f} percent before GraphSAGE; with 0.5 "
        f"GraphSAGE is, {lead['0.5']:.0f} percent before FedGraph; with 1 FedGraph is, {lead['1']:.0f} "
        "percent before full batches: two seeds",
        f"From 0.1 to 1 GraphSAGE and the two constants take {min(samplers):.0f} to {max(samplers):.0f} "
        f"percent more time, FedGraph {more['FedGraph']:.0f} percent (its policies there had 20 episodes), "
        f"and full batches {-more['full batches']:.0f} percent less",
        f"sharing gains {min(gains):.1f} to {max(gains):.1f} points on Cora and CiteSeer",
        f"gains {hidden - none:.1f} points over none; sharing from the first layer on "
        f"{share_all - hidden:.1f} more",
    ]


def of_rounds() -> list[str]:
    """Of benchmarks/results/fedgraph.json."""
    rows = {row["case"]: row for row in record("fedgraph")["rows"]}
    copies, disjoint = (
        {k: v["median"] for k, v in rows[case]["ms"].items()} for case in ("copies", "disjoint")
    )
    modelled = rows["copies"]["modelled_ms"]
    return [
        f"took {copies['full']:.1f} ms with full batches, {copies['graphsage']:.1f} with GraphSAGE and "
        f"{copies['constant']:.1f} with the constant where clients have copies (modelled: "
        f"{modelled['full']:.1f}, {modelled['graphsage']:.1f} and {modelled['constant']:.1f} ms), and "
        f"{disjoint['full']:.1f}, {disjoint['graphsage']:.1f} and {disjoint['constant']:.1f} ms where they "
        "have none",
    ]


def in_order(figures: dict[str, float]) -> list[str]:
    """Labels, that of the least figure first."""
    return sorted(figures, key=lambda label: figures[label])


#: Figures in FedGraph's prose that the record cannot have, with where they are from.
OF_ELSEWHERE = (
    "90.16 % on Cora and 87.9 % on CiteSeer",  # the paper
    "The paper's target there, 87.9 %",  # the paper
    "To 75 %",  # the paper's text
    "mean 0.8, variance 0.1",  # the default partition
    "the variance of the clients' shares, 0.1, 0.5 and 1",  # settings of fig9
    "dropout 0.5 and Adam 0.01",  # settings
    "reward.target=0.9016",
    "reward.target=0.879",
    "random_plain:0.6,0.2,0.2",
    "were 0.693, 12.166, 6.915 and 5.044",  # measured on another processor, once
    "went another way (19.4",  # likewise
    # One run each, not recorded.
    "DBLP has 79.1 % instead of 61.9, and Cora without copies 84.0 instead of 79.0",
    "1 024 reach 89.6 % on Cora",
)


def test_every_figure_in_the_prose_on_fedgraph_is_one_of_its_record() -> None:
    """Whoever writes another sentence with a figure adds it to `fedgraph_sentences`, from the record."""
    text = prose("reproduce.md", "## FedGraph", "## Your own tables")
    sentences = fedgraph_sentences()
    assert [sentence for sentence in sentences if sentence not in text] == []
    for known in (*sentences, *OF_ELSEWHERE):
        text = text.replace(known, "")
    assert re.findall(r".{0,30}\d+\.\d+.{0,20}|.{0,30}\d+ %.{0,20}", text) == []


def prose(name: str, start: str, end: str) -> str:
    """A section of a page without its tables, in one line."""
    section = (ROOT / "docs" / name).read_text().partition(f"\n{start}\n")[2].partition(f"\n{end}\n")[0]
    return " ".join(line for line in section.splitlines() if not line.startswith("|"))


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
    text = (ROOT / "docs/reproduce.md").read_text().partition("## FedGraph")[2]
    lines = re.findall(r"^\$ graphfed policy (ddpg .*)$", text, re.MULTILINE)
    learned = {policy.name: policy for item in find_paper("fedgraph").items for policy in item.policies}
    assert len(lines) == 2
    for line in lines:
        kind, *words = shlex.split(line)
        pairs = list(zip(words[::2], words[1::2], strict=True))
        given = {key.removeprefix("--"): value for key, value in pairs if key != "--set"}
        asked = learned[given.pop("out").rpartition("/")[2]]
        assert (kind, given.pop("threads")) == (asked.kind, "1")
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
        schedules = {c.teacher for c in configs.values() if c is not None}
        if len(schedules) < 2:
            continue
        unequal.append(name)
        for notes in (item.notes, recorded[name]["notes"] if name in recorded else item.notes):
            told = " ".join(notes)
            assert all(f"teacher={k:g}" in told for k in schedules), name
            assert "client_state=reset" in told, name
    assert {"table7", "table9"} <= {name.partition("-")[0] for name in unequal}
    text = prose("reproduce.md", "## CNFGNN", "## FedGAT")
    assert "`teacher=1`" in text
    assert "`teacher=1000`" in text
    assert "Adam begins anew in every round" in text


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


def test_no_cause_is_given_for_the_order_of_rows_on_20_sensors() -> None:
    text = page("reproduce.md")
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
    for path in (ROOT / "docs").glob("*.md"):
        found = re.findall(r"([\w.]*facts\.modelled_seconds): ([a-z][\w %.']+)", path.read_text())
        named |= {(path.name, metric, called) for metric, called in found}
    modelled = [entry for entry in named if entry[1].endswith("facts.modelled_seconds")]
    assert len(modelled) > 10
    assert [entry for entry in modelled if "modelled" not in entry[2]] == []
    learning = (PACKAGE / "studies/policy_learning.py").read_text()
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
