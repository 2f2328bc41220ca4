"""Figures that are more than a test metric: rows in percent of other rows, paths into a result, short
versions on other data, and who keeps which edge."""

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

import graphfed
from graphfed.cli import main
from graphfed.data.datasets import load
from graphfed.errors import InputError
from graphfed.methods.lumos.assignment import optimum
from graphfed.methods.settings import value
from graphfed.reproductions import lumos_workloads
from graphfed.reproductions.base import Measured, Paper, Printed, Quick, Relative, Row, Runs, point
from graphfed.reproductions.figures import metric_of, relative_to
from graphfed.reproductions.lumos import PAPER as LUMOS
from graphfed.reproductions.lumos_workloads import draw_workloads, workloads, workloads_cells
from graphfed.reproductions.reproduce import Reproduction, reproduce
from graphfed.runs.run import Result

pytestmark = pytest.mark.slow


GAIN = Runs(
    name="gain",
    title="One row against others",
    source="made up",
    metrics=("accuracy", "bytes.total"),
    called={"bytes.total": "bytes in all"},
    seeds=(1, 2),
    options={"data": "digits", "clients": 3, "rounds": 3},
    quick=Quick(
        seeds=(0,),
        options={"data": "social", "split": "random:0.5,0.2,0.3", "rounds": 1},
        settings={"data.num_nodes": 200, "hidden": 4},
    ),
    rows=(
        Row("averaging", "fedavg", seeds=(0, 1), printed={"accuracy": Printed(50.0, 1.0)}),
        Row(
            "one hop",
            "fedgcn",
            settings={"hops": 1},
            relative=(Relative("averaging", {"accuracy": 12.5, "bytes.total": -3}), Relative("two hops")),
        ),
        Row("two hops", "fedgcn", quick=False),
    ),
)
SCORES = Runs(
    name="scores",
    title="What decides in each task",
    source="made up",
    metrics=("score",),
    x="rate",
    options={"clients": 2, "rounds": 2},
    settings={"lr": 0.1},
    rows=(
        point("a", 0.1, "fedavg", panel="nodes", options={"data": "digits"}),
        point(
            "a",
            0.1,
            "central",
            panel="links",
            options={"data": "social", "task": "link_prediction"},
            settings={"data.num_nodes": 100},
        ),
    ),
)


@pytest.fixture
def toy(own_folder: Path) -> Paper:
    return Paper("toy", "A toy", "Nobody", "nowhere", (GAIN, SCORES))


def cells(table: Table) -> list[list[str]]:
    """A table's lines."""
    return [
        list(line) for line in zip(*([str(c) for c in column.cells] for column in table.columns), strict=True)
    ]


# ---- rows beside each other --------------------------------------------------------------------------------


def test_a_row_is_compared_seed_by_seed_over_the_seeds_that_both_rows_have(
    toy: Paper, own_folder: Path
) -> None:
    found = reproduce(toy, "gain", out="r")
    (item,) = found.items
    options: dict[str, Any] = {"clients": 3, "rounds": 3, "threads": 1, "out": False}
    averaging = {s: graphfed.run("fedavg", preset="paper", seed=s, **options) for s in (0, 1)}
    one = {s: graphfed.run("fedgcn", preset="paper", hops=1, seed=s, **options) for s in (1, 2)}
    two = {s: graphfed.run("fedgcn", preset="paper", seed=s, **options) for s in (1, 2)}
    against_averaging, against_two = item["rows"][1]["relative"]
    gain = 100 * (one[1].test["accuracy"] / averaging[1].test["accuracy"] - 1)
    assert against_averaging["to"] == "averaging"
    assert against_averaging["ours"]["accuracy"]["mean"] == pytest.approx(gain)
    assert against_averaging["ours"]["accuracy"]["std"] is None, "one seed is in both rows"
    assert against_averaging["printed"] == {"accuracy": 12.5, "bytes.total": -3}
    gains = [100 * (one[s].test["accuracy"] / two[s].test["accuracy"] - 1) for s in (1, 2)]
    assert against_two["ours"]["accuracy"]["values"] == pytest.approx(gains)
    assert against_two["ours"]["accuracy"]["std"] == pytest.approx(np.std(gains, ddof=1))
    more = 100 * (one[1].bytes["total"] / two[1].bytes["total"] - 1)
    assert against_two["ours"]["bytes.total"]["values"][0] == pytest.approx(more)
    assert against_two["printed"] == {"accuracy": None, "bytes.total": None}
    assert [row["relative"] for row in (item["rows"][0], item["rows"][2])] == [[], []]
    assert json.loads((own_folder / "r/reproduce.json").read_text()) == found.to_json()


def test_the_table_and_the_drawing_of_comparisons_have_both_figures(toy: Paper, own_folder: Path) -> None:
    figures, relative = reproduce(toy, "gain", out="r").tables()
    assert [column.header for column in figures.columns] == [
        "row", "accuracy: ours (%)", "accuracy: printed (%)", "accuracy: difference", "bytes in all: ours",
        "runs", "seconds",
    ]  # fmt: skip
    assert [column.header for column in relative.columns] == [
        "row", "compared with", "accuracy: ours", "accuracy: paper", "bytes in all: ours",
        "bytes in all: paper",
    ]  # fmt: skip
    first, second = cells(relative)
    assert first[:2] + first[3:4] + first[5:] == ["one hop", "averaging", "+12.50 %", "-3.00 %"]
    assert second[:2] + second[3:4] + second[5:] == ["one hop", "two hops", "-", "-"]
    texts = "".join(ET.parse(own_folder / "r/gain-relative.svg").getroot().itertext())
    for word in ("one hop", "against averaging", "against two hops", "accuracy, relative difference (%)"):
        assert word in texts
    assert "bytes in all, relative difference (%)" in texts


@given(
    st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=1, max_size=5),
    st.permutations(range(5)),
)
def test_the_other_rows_figure_and_the_percentage_give_the_rows_own(
    figures: list[tuple[float, float]], order: Sequence[int]
) -> None:
    seeds = [*range(len(figures))]
    shuffled = [seed for seed in order if seed < len(figures)]
    row = {"seeds": seeds, "ours": {"m": {"values": [own_figure for own_figure, _ in figures]}}}
    other = {"seeds": shuffled, "ours": {"m": {"values": [figures[seed][1] for seed in shuffled]}}}
    percentages = relative_to(row, other, "m")["values"]
    assert [b * (1 + p / 100) for (_, b), p in zip(figures, percentages, strict=True)] == pytest.approx(
        [a for a, _ in figures]
    )


def test_nothing_is_a_percentage_of_zero_or_of_nothing() -> None:
    row = {"seeds": [0], "ours": {"m": {"values": [1.0]}}}
    for nothing in (0.0, None):
        other = {"seeds": [0], "ours": {"m": {"values": [nothing]}}}
        assert relative_to(row, other, "m")["mean"] is None
    assert relative_to({"seeds": [0], "ours": {"m": {"values": [None]}}}, row, "m")["mean"] is None


# ---- metrics -----------------------------------------------------------------------------------------------


def test_score_is_what_decides_in_the_runs_task(toy: Paper) -> None:
    (item,) = reproduce(toy, "scores", out="r").items
    options: dict[str, Any] = {"clients": 2, "rounds": 2, "threads": 1, "out": False}
    nodes = graphfed.run("fedavg", preset="paper", lr=0.1, **options)
    social = {"data": "social", "task": "link_prediction", "settings": {"data.num_nodes": 100, "lr": 0.1}}
    links = graphfed.run("central", preset="paper", **social, **options)
    means = [row["ours"]["score"]["mean"] for row in item["rows"]]
    assert means == [100 * nodes.test["accuracy"], 100 * links.test["auc"]]


def test_a_path_leads_to_a_number_of_the_result(finished: Result) -> None:
    assert metric_of(finished, "seconds.per_round") == finished.seconds["per_round"]
    assert metric_of(finished, "bytes.by_transfer.model") == finished.bytes["by_transfer"]["model"]
    assert metric_of(finished, "val.accuracy") == finished.val["accuracy"]
    pooled = finished.details["test_pooled"]["accuracy"]
    assert metric_of(finished, "details.test_pooled.accuracy") == pooled


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("scor", "did you mean 'score'"),
        ("second.per_round", "no 'second' in its result; did you mean 'seconds'"),
        ("seconds.per_rond", "did you mean 'per_round'"),
        ("bytes.total.more", "there is nothing below"),
        ("details.test_confusion", "is no number"),
        ("hashes.data", "no 'hashes' in its result"),
    ],
)
def test_a_path_that_leads_nowhere_says_where_it_stops(metric: str, message: str, finished: Result) -> None:
    with pytest.raises(InputError) as refusal:
        metric_of(finished, metric)
    assert message in str(refusal.value)


# ---- short versions ----------------------------------------------------------------------------------------


def test_what_runs_on_other_data_for_short_has_no_printed_figures_and_says_so(toy: Paper) -> None:
    (item,) = reproduce(toy, "gain", quick=True, out="r").items
    assert item["title"] == "One row against others (quick: on social)"
    assert [row["label"] for row in item["rows"]] == ["averaging", "one hop"]
    assert all(figure is None for row in item["rows"] for figure in row["printed"].values())
    (against,) = item["rows"][1]["relative"]
    assert against["to"] == "averaging"
    assert against["printed"] == {"accuracy": None, "bytes.total": None}
    assert item["rows"][0]["changed_settings"].items() >= {"rounds": 1, "hidden": 4, "lr": 0.5}.items()


# ---- who keeps which edge ----------------------------------------------------------------------------------


def balances_paper(steps: int = 20) -> Paper:
    """Balancers on a generated graph of 80 nodes, and on digits."""
    eighty = {"data.num_nodes": 80}
    item = Measured(
        name="fig7",
        kind="workloads",
        title="Who keeps what",
        source="made up",
        measure=workloads,
        cells=workloads_cells,
        draw=draw_workloads,
        reads="structure",
        panels=("small", "digits"),
        seeds=(3,),
        options={"data": "social"},
        quick=Quick(settings={"data.num_nodes": 50}),
        rows=(
            *(
                Row(
                    f"small {name}",
                    "lumos",
                    panel="small",
                    series=name,
                    settings={"balancer": name, **eighty},
                )
                for name in ("none", "local")
            ),
            Row(
                "small mcmc",
                "lumos",
                panel="small",
                series="mcmc",
                settings={"balancer": "mcmc", "mcmc_steps": steps, **eighty},
                printed={"largest": Printed(7)},
            ),
            Row(
                "small oracle",
                "lumos",
                panel="small",
                series="oracle",
                settings={"balancer": "oracle", **eighty},
            ),
            Row(
                "digits greedy",
                "lumos",
                panel="digits",
                series="greedy",
                options={"data": "digits"},
                settings={"balancer": "greedy"},
                quick=False,
            ),
        ),
    )
    return Paper("balances", "A toy", "Nobody", "nowhere", (item,))


@pytest.fixture
def balances(own_folder: Path, as_known: Callable[[Paper], Paper]) -> Paper:
    return as_known(balances_paper())


def test_workloads_are_of_every_device_and_the_curve_ends_where_balancing_did(
    balances: Paper, own_folder: Path
) -> None:
    found = reproduce(balances, out="r")
    (item,) = found.items
    assert [row["label"] for row in item["rows"]] == [
        "small none", "small local", "small mcmc", "small oracle", "digits greedy",
    ]  # fmt: skip
    graph = load("social", num_nodes=80)
    degree = np.bincount(graph.edges.ravel(), minlength=80)
    none, _, mcmc, oracle, digits = item["rows"]
    assert none["largest"] == degree.max()
    assert none["workloads"]["values"] == np.unique(degree).tolist()
    assert oracle["largest"] == optimum(graph.edges, 80).maximum
    assert (mcmc["printed"], mcmc["difference"]) == (7, mcmc["largest"] - 7)
    assert digits["clients"] == 1797
    for row in item["rows"]:
        workloads = row["workloads"]
        assert sum(workloads["clients"]) == row["clients"]
        kept = int(np.dot(workloads["values"], workloads["clients"]))
        assert kept == row["pairs_kept"] >= row["edges"]
        assert row["mean"] == pytest.approx(kept / row["clients"])
        assert row["curve"]["largest"][-1] == row["largest"] == workloads["values"][-1] >= oracle["largest"]
        assert row["curve"]["comparisons"][-1] == row["comparisons"]
        assert row["curve"]["largest"] == sorted(row["curve"]["largest"], reverse=True)
    assert json.loads((own_folder / "r/reproduce.json").read_text()) == found.to_json()
    texts = "".join(ET.parse(own_folder / "r/fig7.svg").getroot().itertext())
    for word in ("small", "digits", "local", "mcmc", "largest workload", "comparisons so far"):
        assert word in texts
    (table,) = found.tables()
    assert cells(table)[2][:3] == ["small mcmc", str(mcmc["largest"]), "7"]


def test_what_was_balanced_is_read_and_an_interruption_keeps_it(
    balances: Paper, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun = lumos_workloads.balanced, []

    def stop_at_the_third(config: Any, graph: Any) -> dict[str, Any]:
        begun.append(value(config.settings, "balancer"))
        if len(begun) == 3:
            raise KeyboardInterrupt
        return real(config, graph)

    monkeypatch.setattr(lumos_workloads, "balanced", stop_at_the_third)
    messages: list[str] = []
    with pytest.raises(KeyboardInterrupt, match="graphfed resume"):
        reproduce(balances, out="r", log=messages.append)
    again = graphfed.resume("r")
    assert isinstance(again, Reproduction)
    assert begun == ["none", "local", "mcmc", "mcmc", "oracle", "greedy"]
    assert messages == ["1 item to measure"]
    assert reproduce(balances, out="r").to_json() == again.to_json()
    assert len(begun) == 6
    with pytest.raises(InputError, match="had another mcmc_steps than is asked now"):
        reproduce(balances_paper(steps=30), out="r")


def test_the_short_version_of_workloads_leaves_out_rows_and_their_panels(balances: Paper) -> None:
    (item,) = reproduce(balances, quick=True, out="r").items
    assert [row["clients"] for row in item["rows"]] == [50] * 4
    assert item["panels"] == ("small",)


def test_a_data_set_without_all_its_features_can_be_balanced_and_is_not_listed_as_missing(
    real_data: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fig7 = LUMOS.by_name["fig7"]
    exact = ("without trimming", "local", "oracle")
    rows = tuple(row for row in fig7.rows if row.panel == "LastFM" and row.series in exact)
    paper = dataclasses.replace(LUMOS, items=(dataclasses.replace(fig7, rows=rows, panels=("LastFM",)),))
    (item,) = reproduce(paper, data_dir=real_data, out="r").items
    largest = {row["series"]: row["largest"] for row in item["rows"]}
    # The largest degree, and the exact optimum, which our balancer reaches.
    assert (largest["without trimming"], largest["local"], largest["oracle"]) == (216, 15, 15)
    assert main(["reproduce", "--list", "--data-dir", str(real_data)]) == 0
    assert "lastfm" in (listed := capsys.readouterr().out)
    assert "lastfm (missing)" not in listed
    assert "facebook (missing)" not in listed


# ---- Lumos -------------------------------------------------------------------------------------------------


def test_lumos_is_compared_with_the_figures_that_the_paper_prints() -> None:
    items = LUMOS.by_name
    printed = {
        (name, row.label, relative.to, metric): figure
        for name, item in items.items()
        for row in item.rows
        for relative in row.relative
        for metric, figure in relative.printed.items()
    }
    # Section VIII of the paper.
    rounds = "details.clients.embeddings.mean"
    for key, figure in {
        ("fig3", "GCN, Lumos", "GCN, central", "accuracy"): -16.29,
        ("fig3", "GAT, Lumos", "GAT, LPGNN", "accuracy"): 5.10,
        ("fig3", "GCN, Lumos", "GCN, naive FedGNN", "accuracy"): 74.29,
        ("fig4", "GAT, Lumos", "GAT, central", "auc"): -9.12,
        ("fig4", "GCN, Lumos", "GCN, naive FedGNN", "auc"): 22.94,
        ("fig5", "supervised Lumos 4", "supervised Lumos 0.5", "score"): 10.26,
        ("fig5", "unsupervised Lumos 1", "unsupervised Lumos 0.5", "score"): 8.88,
        ("fig6", "unsupervised GCN", "unsupervised GCN, without virtual nodes", "score"): 8.26,
        ("fig8", "supervised, local", "supervised, without trimming", rounds): -34.19,
        ("fig8", "unsupervised, oracle", "unsupervised, without trimming", "seconds.per_round"): -10.34,
    }.items():
        assert printed[key] == figure
    largest = {row.label: row.printed["largest"].mean for row in items["fig7"].rows if row.printed}
    assert largest == {"Facebook mcmc, the paper's steps": 39, "LastFM mcmc, the paper's steps": 16}


@pytest.mark.parametrize(
    "names", [("fig8",), pytest.param([*LUMOS.by_name], marks=pytest.mark.on_demand)], ids=["one", "every"]
)
def test_the_figures_of_lumos_run_in_their_short_versions_which_need_no_file(
    names: Sequence[str], own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder / "cache"))
    items = {item["item"]: item for item in reproduce("lumos", names, quick=True, out="r").items}
    assert [*items] == [*names]
    saved = {row["label"]: row["relative"] for row in items["fig8"]["rows"]}
    for task in ("supervised", "unsupervised"):
        # One end keeps an edge where both did, and whatever is sent in an epoch is for kept edges.
        for balancer in ("local", "oracle"):
            (against,) = saved[f"{task}, {balancer}"]
            assert against["ours"]["details.clients.embeddings.mean"]["mean"] == pytest.approx(-50)
    if len(items) > 1:
        assert items["fig7"]["panels"] == ("Facebook",)
        assert all(0 < row["ours"]["auc"]["mean"] < 100 for row in items["fig4"]["rows"])
    for item in items.values():
        for plot in (item["plot"], item.get("relative_plot")):
            assert plot is None or ET.parse(own_folder / "r" / plot).getroot().tag.endswith("svg")
