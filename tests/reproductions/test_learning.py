"""Reproductions that learn a sampling policy before their runs, and show when runs reached a target."""

import dataclasses
import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from rich.table import Table

import graphfed
from graphfed.errors import InputError
from graphfed.methods.fedgraph.learned_policy import PolicyFile, write_policy
from graphfed.reproductions import plots, policies
from graphfed.reproductions.base import (
    Curves,
    Item,
    Measured,
    Paper,
    Quick,
    Relative,
    Row,
    Runs,
    Target,
    same_runs,
)
from graphfed.reproductions.fedgraph import DATA, TUNED
from graphfed.reproductions.fedgraph import PAPER as FEDGRAPH
from graphfed.reproductions.fedgraph_returns import (
    draw_returns,
    returns,
    returns_cells,
    returns_of,
    settled_from,
)
from graphfed.reproductions.figures import POINTS, _by_place, curve_of, metric_of
from graphfed.reproductions.policies import Policy
from graphfed.reproductions.reproduce import Reproduction, reproduce
from graphfed.runs.run import Result
from graphfed.studies.plan import statistic

pytestmark = pytest.mark.slow

#: The records of this repository.
RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

FEW = Policy(
    name="few",
    options={"data": "digits", "clients": 2, "rounds": 4},
    settings={"ddpg.lr": 0.001, "reward.target": 0.5},
    episodes=30,
)
SHORT = Quick(seeds=(0,), options={"rounds": 2, "data": "social"}, settings={"data.num_nodes": 100})
HALF, NEAR = "to_target.half.facts.modelled_seconds", "to_target.near.bytes"


def times(
    policy: Policy = FEW, *, half: float = 0.5, against: str = "facts.modelled_seconds", **row: Any
) -> Runs:
    """Full batches, a learned policy and central training; row: of the one that is learned."""
    return Runs(
        name="times",
        title="When",
        source="made up",
        metrics=("accuracy", HALF, NEAR, "last.facts.modelled_seconds"),
        called={"facts.modelled_seconds": "seconds of the model"},
        targets={"half": Target(share=half), "near": Target(row="central", less=0.2), "none": None},
        against=against,
        seeds=(0, 1),
        options={"data": "digits", "clients": 2, "rounds": 8},
        quick=SHORT,
        rows=(
            Row("full", "fedgraph", settings={"policy": "full", "lr": 0.05}, relative=(Relative("learned"),)),
            Row("learned", "fedgraph", policy=policy, **{"settings": {"lr": 0.05}, **row}),
            Row("central", "central", settings={"optimizer": "adam", "lr": 0.01, "local_steps": 3}),
        ),
    )


def paper_of(item: Runs) -> Paper:
    others = same_runs(
        item,
        Runs,
        "others",
        title="Other targets",
        metrics=("to_target.none.seconds", "to_target.near.round"),
    )
    by_bytes = same_runs(
        item,
        Curves,
        "by_bytes",
        title="By bytes",
        metrics=("accuracy",),
        against="bytes",
        rows=("full", "central"),
    )
    learning = Measured(
        name="learning",
        kind="returns",
        title="How they learned",
        source="made up",
        measure=returns,
        cells=returns_cells,
        draw=draw_returns,
        quick=SHORT,
        rows=(Row("ours", policy=FEW),),
    )
    items: tuple[Item, ...] = (item, others, by_bytes, learning)
    return Paper("toy", "A toy", "Nobody", "nowhere", items)


@pytest.fixture
def toy(own_folder: Path, as_known: Callable[[Paper], Paper]) -> Paper:
    return as_known(paper_of(times()))


#: The rest of what stands in the file of a learned policy.
WHOLE: dict[str, Any] = {
    "dataset": "digits",
    "clients": 2,
    "partition": "random",
    "rounds": 3,
    "reward": {},
    "policy_saw_test": False,
    "peak_rss_mb": 100.0,
    "hashes": {},
    "versions": {},
}
FINAL: dict[str, Any] = {"accuracy": {"best": 0.5, "final": 0.5}, "modelled_seconds": 1.0}


class Learned:
    """What learns in place of `learn_policy`, which needs an extra: it writes an actor that decides for the
    fraction `share` of the training nodes, and all neighbours, whatever it observes."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.share = 1.0

    def learn(self, asked: dict[str, Any], folder: Path, command: str, progress: bool) -> None:
        if (folder / "result.json").exists():
            return
        self.asked.append({**asked, "folder": folder})
        size = (64 + 1) * 16 + (16 + 1) * 10
        tensors = {
            "pca.mean": torch.zeros(size, dtype=torch.float64),
            "pca.components": torch.zeros(1, size, dtype=torch.float64),
            "pca.scale": torch.ones((), dtype=torch.float64),
            "actor.0.weight": torch.zeros(6, 3),
            # The tanh of 100 is 1.
            "actor.0.bias": torch.tensor([2 * self.share - 1, 1.0, 1.0] * 2).mul(100).clamp(max=100),
        }
        folder.mkdir(parents=True)
        write_policy(folder / "policy.safetensors", tensors, PolicyFile("ddpg", 2, 2, size, {}))
        (folder / "result.json").write_text(
            json.dumps(
                {
                    **WHOLE,
                    "seed": 0,
                    "returns": [3.0, -1.0, 2.0],
                    "details": {"components": 1, "kept_episode": 2},
                    "final": {**FINAL, "return": 2.5},
                    "seconds": {"total": 9.0, "rounds": 1.0, "evaluation": 0.5, "learning": 0.0},
                }
            )
        )


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> Learned:
    found = Learned()
    monkeypatch.setattr(policies, "_learn", found.learn)
    return found


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all of the toy in r, for the tests that only read it or change a copy."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr(policies, "_learn", Learned().learn)
        reproduce(paper_of(times()), out="r")
    return folder


@pytest.fixture
def ended(toy: Paper, made: Path, own_folder: Path, learned: Learned) -> Paper:
    """The toy, all of which has run into the folder r."""
    shutil.copytree(made / "r", own_folder / "r")
    return toy


def cells(table: Table) -> list[list[str]]:
    """A table's lines."""
    columns = ([str(cell) for cell in column.cells] for column in table.columns)
    return [list(line) for line in zip(*columns, strict=True)]


def lines_of(folder: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]


# ---- when a run reached a target ---------------------------------------------------------------------------


def test_a_target_is_reached_in_the_first_round_that_is_as_good(ended: Paper) -> None:
    (item,) = reproduce(ended, "times", out="r").items
    full, _, central = item["rows"]
    best = [Result.read(f"r/times/central-seed{seed}").val["accuracy"] for seed in (0, 1)]
    target = np.mean(best) - 0.2
    assert item["targets"]["half"] == {"share": 0.5, "of": None, "less": 0.0}
    assert item["targets"]["near"] == {"share": pytest.approx(target), "of": "central", "less": 0.2}
    assert item["targets"]["none"] is None
    # The target is not in the first round, and not the best one, or this would show nothing.
    runs = [lines_of(f"r/times/full-seed{seed}") for seed in (0, 1)]
    expected = []
    for run in runs:
        number = next(n for n, line in enumerate(run) if line["val"]["accuracy"] >= 0.5)
        assert 0 < number < len(run) - 1
        expected.append(run[number]["facts"]["modelled_seconds"])
    figure = full["ours"]["to_target.half.facts.modelled_seconds"]
    assert figure == {**statistic(expected), "reached": 2}
    last = full["ours"]["last.facts.modelled_seconds"]
    assert last == statistic([run[-1]["facts"]["modelled_seconds"] for run in runs])
    reached = [next(n for n in lines_of(f"r/times/central-seed{s}") if n["val"]["accuracy"] >= target)
               for s in (0, 1)]  # fmt: skip
    assert central["ours"]["to_target.near.bytes"]["values"] == [line["bytes"] for line in reached]


def test_what_is_as_good_as_the_target_has_reached_it_and_a_round_without_validation_has_not(
    finished: Result, own_folder: Path
) -> None:
    lines = [
        {"round": n, "val": val, "bytes": 10 * n, "seconds": 0.5 * n}
        for n, val in [
            (1, {"accuracy": 0.2}),
            (2, None),
            (3, {"accuracy": None}),
            (4, {"accuracy": 0.75}),
            (5, {"accuracy": 0.5}),
        ]
    ]
    (own_folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = finished.model_copy(update={"folder": own_folder})
    for share, found in ((0.2, 1), (0.21, 4), (0.75, 4), (0.76, None)):
        assert metric_of(run, "to_target.t.round", {"t": share}) == found
    assert metric_of(run, "to_target.t.seconds", {"t": 0.5}) == 2.0
    assert metric_of(run, "to_target.t.round", {"t": None}) is None
    assert metric_of(run, "last.bytes") == 50
    assert metric_of(run, "last.facts.modelled_seconds") is None, "fedavg says nothing of itself"


def test_a_running_mean_reaches_a_target_later_than_a_lucky_round_and_not_before_five_evaluations(
    finished: Result, own_folder: Path
) -> None:
    """Means of five: 0.42 in round 6 (1, 2, 3, 5, 6; round 4 has no evaluation), 0.5 in 7 and in 8."""
    scores = {1: 0.1, 2: 0.9, 3: 0.2, 5: 0.4, 6: 0.5, 7: 0.5, 8: 0.9}
    lines = [
        {"round": n, "val": None if n == 4 else {"accuracy": scores[n]}, "bytes": n, "seconds": 0.0}
        for n in range(1, 9)
    ]
    (own_folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = finished.model_copy(update={"folder": own_folder})
    assert metric_of(run, "to_target.t.round", {"t": 0.45}) == 2
    # (0.9 + 0.2 + 0.4 + 0.5 + 0.5) / 5 = 0.5
    for share, found in ((0.05, 6), (0.42, 6), (0.45, 7), (0.501, None)):
        assert metric_of(run, "to_target_mean.t.round", {"t": share}) == found, share


def test_a_target_that_only_some_seeds_reach_has_no_mean_and_says_how_many_did(
    ended: Paper, own_folder: Path
) -> None:
    best = [max(line["val"]["accuracy"] for line in lines_of(f"r/times/full-seed{s}")) for s in (0, 1)]
    assert best[0] != best[1]
    found = reproduce(paper_of(times(half=float(np.mean(best)))), "times", out="r")
    figure = found.items[0]["rows"][0]["ours"]["to_target.half.facts.modelled_seconds"]
    assert (figure["mean"], figure["reached"]) == (None, 1)
    assert sum(value is None for value in figure["values"]) == 1
    figures, _ = found.tables()
    target = found.items[0]["targets"]["near"]["share"]
    assert f"target near: {target:.4g} on the validation part, 0.2 less than central" in str(figures.caption)
    assert "target none" not in str(figures.caption)
    column = [c.header for c in figures.columns].index("modelled seconds to half: ours")
    assert cells(figures)[0][column] == "not reached (1 of 2 did)"
    assert cells(figures)[2][column] == "-", "central has no time model"


def test_an_item_that_shows_the_same_runs_has_the_targets_that_it_asks_for(ended: Paper) -> None:
    (item,) = reproduce(ended, "others", out="r").items
    assert [*item["targets"]] == ["near", "none"]
    row = item["rows"][0]
    assert row["ours"]["to_target.none.seconds"] == statistic([None, None]), "no target, nothing to reach"
    assert "reached" in row["ours"]["to_target.near.round"]
    assert "curve" not in row


# ---- curves by time ----------------------------------------------------------------------------------------


@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 1)), min_size=1, max_size=6),
        min_size=1,
        max_size=3,
    )
)
def test_a_curve_by_time_has_at_every_point_the_last_value_so_far(
    steps: list[list[tuple[float, float]]],
) -> None:
    curves = []
    for run in steps:
        ends = np.cumsum([length for length, _ in run])
        curves.append([(float(end), value) for end, (_, value) in zip(ends, run, strict=True)])
    x, values = _by_place(curves)
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    assert len(x) == (POINTS if first < last else int(first == last))
    assert not x or (x[0], x[-1]) == (first, last)
    for curve, row in zip(curves, values, strict=True):
        assert row == [[value for place, value in curve if place <= at][-1] for at in x]


def test_rows_are_drawn_by_the_time_of_their_runs_and_one_without_any_as_a_level(
    ended: Paper, own_folder: Path
) -> None:
    (item,) = reproduce(ended, "times", out="r").items
    assert (item["against"], item["curves_plot"]) == ("facts.modelled_seconds", "times-curves.svg")
    full, _, central = (row["curve"] for row in item["rows"])
    results = [Result.read(own_folder / f"r/times/full-seed{seed}") for seed in (0, 1)]
    assert full == {"metric": "accuracy", **curve_of("accuracy", results, "facts.modelled_seconds")}
    ends = [lines_of(f"r/times/full-seed{s}")[-1]["facts"]["modelled_seconds"] for s in (0, 1)]
    assert full["x"][-1] == pytest.approx(min(ends), rel=1e-5)
    assert full["mean"] == pytest.approx(np.mean(full["values"], axis=0), rel=1e-5)
    assert central["x"] == []
    assert central["chosen"]["mean"] > 0
    texts = "".join(ET.parse(own_folder / "r/times-curves.svg").getroot().itertext())
    for word in ("full", "learned", "central, at best", "seconds of the model", "validation accuracy (%)"):
        assert word in texts


@pytest.mark.parametrize(("longest", "scale"), [(5.0, "linear"), (500.0, "log")])
def test_the_axis_of_time_is_logarithmic_where_one_row_takes_many_times_as_long_as_another(
    longest: float, scale: str
) -> None:
    item = {"called": {}, "against": "seconds"}
    rows = [
        {
            "label": label,
            "x": [0.5, end],
            "mean": [1.0, 2.0],
            "std": [None, None],
            "chosen": {"mean": 2.0},
            "best_x": {"mean": end},
        }
        for label, end in (("a", 1.0), ("b", longest))
    ]
    ((chart,),) = plots.curves(item, "accuracy", rows)
    axes = Figure().subplots()
    chart.draw(axes)
    assert axes.get_xscale() == scale


def test_an_item_of_curves_may_be_by_another_place_than_the_round(ended: Paper, own_folder: Path) -> None:
    found = reproduce(ended, "by_bytes", out="r")
    full, central = found.items[0]["rows"]
    ends = [lines_of(f"r/times/full-seed{seed}")[-1]["bytes"] for seed in (0, 1)]
    assert full["x"][-1] == pytest.approx(min(ends), rel=1e-5)
    assert central["x"] == [0.0], "nothing is sent, so that all rounds are at one place"
    (table,) = found.tables()
    assert table.columns[4].header == "bytes, at the end"
    assert "bytes" in "".join(ET.parse(own_folder / "r/by_bytes.svg").getroot().itertext())


# ---- policies ----------------------------------------------------------------------------------------------


def test_policies_are_learned_before_the_runs_that_use_them_and_once(toy: Paper, learned: Learned) -> None:
    messages: list[str] = []
    found = reproduce(toy, "learning", out="alone", log=messages.append)
    assert messages == ["1 policy to learn; 1 item to measure"]
    assert [path.name for path in Path("alone").iterdir() if path.is_dir()] == ["policies"]
    learned.asked.clear()
    messages.clear()
    found = reproduce(toy, out="r", log=messages.append)
    assert messages[-1].startswith("1 policy to learn; 1 item to measure; 6 runs to do, about ")
    (asked,) = learned.asked
    assert asked == {
        "threads": 1,
        "data": "digits",
        "clients": 2,
        "rounds": 4,
        "episodes": 30,
        "settings": {"preset": "paper", "ddpg.lr": 0.001, "reward.target": 0.5},
        "data_dir": None,
        "folder": Path("r/policies/few"),
    }
    # All nodes and all neighbours, as full batches: the run has read that file.
    full, row, _ = found.items[0]["rows"]
    assert row["policy"] == "few"
    assert row["ours"]["accuracy"] == full["ours"]["accuracy"]
    assert row["changed_settings"]["policy"] == "ddpg"
    assert "policy_file" not in row["changed_settings"], "a path of one machine"
    assert found.items[0]["rows"][0]["relative"][0]["ours"]["accuracy"]["values"] == [0.0, 0.0]
    again = graphfed.resume("r")
    assert isinstance(again, Reproduction)
    assert again.to_json() == found.to_json() == json.loads(Path("r/reproduce.json").read_text())
    assert len(learned.asked) == 1
    shutil.move("r", "elsewhere")
    assert reproduce(toy, out="elsewhere").items == found.items, "folders may be moved"


def test_runs_with_another_policy_than_the_one_that_is_there_are_refused(
    ended: Paper, learned: Learned
) -> None:
    shutil.rmtree("r/policies/few")
    learned.share = 0.1
    with pytest.raises(InputError, match="used another policy 'few' than the one that is there now"):
        reproduce(ended, "times", out="r")
    for seed in (0, 1):
        shutil.rmtree(f"r/times/learned-seed{seed}")
    full, row, _ = reproduce(ended, "times", out="r").items[0]["rows"]
    assert row["ours"]["accuracy"] != full["ours"]["accuracy"]


def test_the_short_version_learns_shortly_on_its_own_data(toy: Paper, learned: Learned) -> None:
    (item,) = reproduce(toy, "learning", quick=True, out="r").items
    (asked,) = learned.asked
    assert (asked["data"], asked["rounds"], asked["clients"]) == ("social", 2, 2)
    assert asked["settings"]["data.num_nodes"] == 100
    assert item["title"] == "How they learned (quick: on social)"
    assert toy.by_name["learning"].policies[0].data == "digits"


def test_returns_are_shown_with_their_moving_mean_and_the_kept_actor(ended: Paper, own_folder: Path) -> None:
    found = reproduce(ended, "learning", out="r")
    (row,) = found.items[0]["rows"]
    assert row["moving_mean"] == pytest.approx([3.0, 1.0, 4 / 3])
    assert (row["policy"], row["folder"]) == ("few", "policies/few")
    (table,) = found.tables()
    (line,) = cells(table)
    assert line[:7] == ["ours", "ddpg", "3", "1.33", "1.33", "2.50", "3"]
    assert line[7] == "the actor after episode 2"
    texts = "".join(ET.parse(own_folder / "r/learning.svg").getroot().itertext())
    for word in ("ours", "episode", "return, and its moving mean"):
        assert word in texts


def test_returns_settle_where_the_moving_mean_stays_within_a_twentieth_of_its_end(own_folder: Path) -> None:
    returns = [0.0] * 10 + [100.0] * 50
    content = {
        **WHOLE,
        "seed": 0,
        "returns": returns,
        "details": {"kept_episode": 20},
        "final": {**FINAL, "return": 100.0},
        "seconds": {"rounds": 1.0, "evaluation": 1.0, "learning": 1.0},
    }
    (own_folder / "result.json").write_text(json.dumps(content))
    row = returns_of(own_folder)
    # The last 20 have at most one 0 from episode 29 on.
    assert (row["settled"], row["first"], row["last"]) == (29, 50.0, 100.0)
    assert row["kept"] == 20
    assert (row["moving_mean"][27], row["moving_mean"][28]) == (90.0, 95.0)
    del content["final"]
    (own_folder / "result.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="it has no 'final'"):
        returns_of(own_folder)


def test_the_constants_that_are_run_are_those_of_the_recorded_searches() -> None:
    record = json.loads((RESULTS / "fedgraph_constants.json").read_text())
    best = {search["data"]: search["best"] for search in record["searches"]}
    assert set(best) == set(DATA) == set(TUNED)
    for data in DATA:
        chosen = TUNED[data]["batch_fraction"], TUNED[data]["probability"]
        assert chosen == (best[data]["share"], best[data]["chance"])


def test_a_policy_that_was_learned_is_one_line_of_the_table_and_one_drawing() -> None:
    record = json.loads((RESULTS / "reproduce_fedgraph.json").read_text())
    items = {item["item"]: item for item in record["items"]}
    for data in DATA:
        found = items["fig6" if data == "cora" else f"fig6-{data}"]
        (line,) = returns_cells(found)[1]
        assert line[:2] == ["DDPG", "ddpg"]
        assert line[6:8] == [
            str(found["rows"][0]["settled"]),
            f"the actor after episode {found['rows'][0]['kept']}",
        ]
        assert len(draw_returns(found)[0]) == 1


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_from_where_values_settle_all_are_close_to_the_last_and_the_one_before_is_not(
    values: list[float],
) -> None:
    place = settled_from(values)
    is_close = [abs(value - values[-1]) <= 0.05 * abs(values[-1]) for value in values]
    assert all(is_close[place:])
    assert place == 0 or not is_close[place - 1]


# ---- what is refused before anything is learned ------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (times(settings={"layers": 3}),
         "'few' cannot be used: it is learned with layers 2, and the row has 3"),
        (times(options={"clients": 3}),
         "'few' cannot be used: it is learned with clients 2, and the row has 3"),
        (times(settings={"hidden": 8}), "learned with hidden 16, and the row has 8"),
        (times(dataclasses.replace(FEW, settings={"ddpg.rate": 1})), "there is no setting 'ddpg.rate'"),
        (times(dataclasses.replace(FEW, settings={"reward.targt": 1})), "did you mean 'reward.target'"),
        (times(dataclasses.replace(FEW, settings={"hiden": 8})), "did you mean 'hidden'"),
        (times(against="facts.modeled"), "fedgraph has no fact 'modeled'; did you mean 'modelled_seconds'"),
        (times(against="rounds"), "no place 'rounds'; did you mean 'round'"),
    ],
)  # fmt: skip
def test_a_policy_that_does_not_fit_and_a_place_that_is_not_there_are_refused_before_anything_is_learned(
    item: Runs, message: str, own_folder: Path, learned: Learned
) -> None:
    with pytest.raises(InputError) as refusal:
        reproduce(paper_of(item), "times", out="r")
    assert message in str(refusal.value)
    assert not (own_folder / "r").exists()
    assert learned.asked == []


# ---- the paper ---------------------------------------------------------------------------------------------


def test_fedgraph_has_the_figures_that_the_text_of_the_paper_says() -> None:
    items: dict[str, Any] = FEDGRAPH.by_name
    assert {item.base or item.name for item in items.values()} == {
        "fig6", "fig7", "fig7_targets", "fig8", "fig9", "fig10", "fig10_disjoint", "fig11", "fig12",
        "balanced", "balanced_large",
    }  # fmt: skip
    early = "to_target.early.facts.modelled_seconds"
    rows = {row.label: row for row in items["fig7"].rows}
    assert {name: row.printed[early].mean for name, row in rows.items() if row.printed} == {
        "FedGraph": 5, "full batches": 10, "GraphSAGE": 10, "FastGCN": 10,
    }  # fmt: skip
    assert items["fig7"].targets["early"] == Target(share=0.75)
    targets = {name: items[name].targets["printed"] for name in ("fig7", "fig7-citeseer", "fig7-dblp")}
    assert targets == {"fig7": Target(share=0.9016), "fig7-citeseer": Target(share=0.879), "fig7-dblp": None}
    for name in ("fig10", "fig10-citeseer"):
        assert items[name].rows[0].relative[0].printed == {"accuracy": 10}
    assert items["fig10-dblp"].rows[0].relative[0].printed == {}
    episodes = {policy.name: policy.episodes for item in items.values() for policy in item.policies}
    assert episodes["cora-ddpg"] == 300


def test_the_short_version_of_fedgraph_learns_and_needs_no_file(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3", reason="the extra 'rl' is not installed")
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder / "cache"))
    messages: list[str] = []
    (item,) = reproduce("fedgraph", "fig7", quick=True, out="r", log=messages.append).items
    assert messages[-1].startswith("1 policy to learn; 7 runs to do, about ")
    assert [row["policy"] for row in item["rows"]][:2] == ["cora-ddpg", None]
    constant = item["rows"][1]["changed_settings"]
    assert (constant["batch_fraction"], item["rows"][1]["label"]) == (0.05, "tuned constant")
    (returns,) = reproduce("fedgraph", "fig6", quick=True, out="r", log=messages.append).items
    assert messages[-1] == "1 item to measure", "fig6 has the policies of fig7"
    assert [len(row["returns"]) for row in returns["rows"]] == [2]
    used = json.loads((own_folder / "r/fig7/FedGraph-seed0/manifest.json").read_text())["config"]["training"]
    assert used["policy"] == "ddpg"
    assert Path(used["policy_file"]).samefile("r/policies/cora-ddpg/policy.safetensors")


@pytest.mark.on_demand
def test_every_figure_of_fedgraph_runs_in_its_short_version(own_folder: Path) -> None:
    pytest.importorskip("stable_baselines3", reason="the extra 'rl' is not installed")
    for data in (None, "citeseer", "dblp"):
        items = reproduce("fedgraph", data=data, quick=True, out="r").items
        for item in items:
            for plot in ("plot", "relative_plot", "curves_plot"):
                assert not item.get(plot) or ET.parse(own_folder / "r" / item[plot]).getroot().tag
    written = json.loads((own_folder / "r/reproduce.json").read_text())["items"]
    assert [item["item"] for item in written] == [*FEDGRAPH.by_name]
