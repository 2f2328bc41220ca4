"""Reproductions: missing data is named, the predicted cost is said first, nothing is run twice."""

import dataclasses
import json
import multiprocessing
import os
import pkgutil
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from endless_reproduction import PROGRAM
from matplotlib.figure import Figure

import graphfed
from graphfed import reproductions
from graphfed.data.datasets import load
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.errors import GraphfedError, InputError
from graphfed.reproductions import PAPERS, plots, runner
from graphfed.reproductions.base import (
    Curves,
    Item,
    Measured,
    Paper,
    Place,
    Printed,
    Quick,
    Relative,
    Row,
    Runs,
    Target,
    paragraphs,
    point,
    same_runs,
)
from graphfed.reproductions.reproduce import Reproduction, find_paper, reproduce
from graphfed.reproductions.sapgnn import class_counts, count_classes, counts_cells, draw_counts
from graphfed.runs.checkpoint import newest_round
from graphfed.runs.config import make_config
from graphfed.runs.reopen import read_manifest
from graphfed.runs.run import Result, has_checkpoint, load_inputs
from graphfed.studies import plan

pytestmark = pytest.mark.slow


def small(*, clients: int = 3, rounds: int = 4, threads: int = 1, **options: Any) -> Runs:
    """Two methods on digits."""
    return Runs(
        name="small",
        title="Two methods on digits",
        source="made up",
        notes=("a note",),
        metrics=("accuracy",),
        seeds=(0, 1),
        options={"data": "digits", "clients": clients, "rounds": rounds, "threads": threads, **options},
        quick=Quick(seeds=(0,), options={"rounds": 1}),
        rows=(
            Row("averaging", "fedavg", printed={"accuracy": Printed(50.0, 1.0)}),
            Row("one hop", "fedgcn", settings={"hops": 1, "partition.beta": 1}),
        ),
    )


def other(*metrics: str) -> Runs:
    """One of another metric."""
    return Runs(
        name="other",
        title="Another",
        source="made up",
        metrics=metrics or ("loss",),
        options={"clients": 2, "rounds": 1},
        quick=Quick(seeds=(0,)),
        rows=(Row("averaging", "fedavg", printed={"loss": Printed(2.0)}),),
    )


def paper_of(*items: Item) -> Paper:
    return Paper("toy", "A toy", "Nobody", "nowhere", items)


@pytest.fixture
def toy(own_folder: Path, as_known: Callable[[Paper], Paper]) -> Paper:
    return as_known(paper_of(small(), other()))


def test_figures_stand_beside_the_printed_ones_in_the_papers_unit(toy: Paper, own_folder: Path) -> None:
    found = reproduce(toy, "small", out="r")
    (item,) = found.items
    averaging, hop = item["rows"]
    alone = [
        graphfed.run("fedavg", preset="paper", clients=3, rounds=4, seed=s, threads=1, out=False)
        for s in (0, 1)
    ]
    ours = averaging["ours"]["accuracy"]
    assert ours["values"] == [100 * run.test["accuracy"] for run in alone]
    assert averaging["printed"] == {"accuracy": {"mean": 50.0, "std": 1.0}}
    assert averaging["difference"] == {"accuracy": ours["mean"] - 50}
    assert hop["printed"] == {"accuracy": None}
    assert hop["difference"] == {"accuracy": None}
    assert {"rounds": 4, "hops": 1, "optimizer": "sgd"}.items() <= hop["changed_settings"].items()
    assert json.loads((own_folder / "r/reproduce.json").read_text()) == found.to_json()
    assert Result.read(own_folder / "r/small/one hop-seed1").method == "fedgcn"


def test_the_plot_is_an_svg_that_names_every_row_and_both_figures(toy: Paper, own_folder: Path) -> None:
    reproduce(toy, "small", quick=True, out="r")
    texts = "".join(ET.parse(own_folder / "r/small.svg").getroot().itertext())
    for word in ("averaging", "one hop", "ours", "printed", "test accuracy (%)"):
        assert word in texts
    first = (own_folder / "r/small.svg").read_bytes()
    reproduce(toy, "small", quick=True, out="r")
    assert (own_folder / "r/small.svg").read_bytes() == first


def test_the_cost_is_logged_before_the_first_run_and_every_run_that_ended_is_read(
    toy: Paper, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    real = plan.execute

    def count(config: Any, *args: Any, **kwargs: Any) -> Result:
        assert "to do" in messages[-1], "a run started before its cost was logged"
        ran.append(config.seed)
        if len(ran) == 3:
            raise KeyboardInterrupt
        return real(config, *args, **kwargs)

    monkeypatch.setattr(plan, "execute", count)
    messages: list[str] = []
    with pytest.raises(KeyboardInterrupt, match="graphfed resume"):
        reproduce(toy, "small", out="r", log=messages.append)
    assert messages[0] == "timing the first rounds of small: averaging"
    assert messages[-1].startswith("4 runs to do, about ")
    again = graphfed.resume("r")
    assert isinstance(again, Reproduction)
    assert len(ran) == 5
    messages.clear()
    assert reproduce(toy, "small", out="r", log=messages.append).to_json() == again.to_json()
    assert messages == ["every run has ended; reading the results"]
    assert len(ran) == 5


def test_another_item_can_join_the_folder_and_the_quick_version_or_a_changed_item_cannot(
    toy: Paper, own_folder: Path
) -> None:
    reproduce(toy, "other", out="r")
    assert [item["item"] for item in reproduce(toy, out="r").items] == ["small", "other"]
    with pytest.raises(InputError, match="holds something else"):
        reproduce(toy, quick=True, out="r")
    with pytest.raises(InputError, match="had another clients than is asked now"):
        reproduce(paper_of(small(clients=4), other()), out="r")


def test_the_file_keeps_the_items_that_were_made_before_in_the_order_of_the_paper(
    toy: Paper, own_folder: Path
) -> None:
    reproduce(toy, "other", out="r")
    before = json.loads((own_folder / "r/reproduce.json").read_text())["items"]
    assert [item["item"] for item in reproduce(toy, "small", out="r").items] == ["small"]
    after = json.loads((own_folder / "r/reproduce.json").read_text())["items"]
    assert [item["item"] for item in after] == ["small", "other"]
    assert after[1] == before[0]


def test_several_items_are_run_in_their_order_into_one_folder_and_resumed(
    toy: Paper, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[int, int]] = []
    real = plan.execute

    def note(config: Any, *args: Any, **kwargs: Any) -> Result:
        ran.append((config.clients, config.seed))
        return real(config, *args, **kwargs)

    monkeypatch.setattr(plan, "execute", note)
    messages: list[str] = []
    found = reproduce(toy, ["other", "small", "other"], seeds=[0, 1], out="r", log=messages.append)
    assert [item["item"] for item in found.items] == ["other", "small"]
    assert ran == [(2, 0), (2, 1), (3, 0), (3, 0), (3, 1), (3, 1)]
    assert messages[-1].startswith("6 runs to do")
    written = json.loads((own_folder / "r/reproduce.json").read_text())["items"]
    assert [item["item"] for item in written] == ["small", "other"], "in the order of the paper"
    again = graphfed.resume("r")
    assert isinstance(again, Reproduction)
    assert again.items == found.items
    with pytest.raises(InputError, match="toy has no item 'smal'; did you mean 'small'"):
        reproduce(toy, ["small", "smal"], out="s")
    assert not (own_folder / "s").exists()


def test_a_metric_that_is_no_share_is_not_in_percent(toy: Paper) -> None:
    (item,) = reproduce(toy, "other", out="r").items
    alone = graphfed.run("fedavg", preset="paper", clients=2, rounds=1, out=False)
    assert item["rows"][0]["ours"]["loss"]["mean"] == alone.test["loss"]


def test_the_notes_of_an_item_are_the_paragraphs_of_a_text() -> None:
    text = """
        One note
        on two lines.

        Another "note".
    """
    assert paragraphs(text) == ("One note on two lines.", 'Another "note".')


@pytest.mark.parametrize(
    ("rows", "targets", "message"),
    [
        ((Row("a", "fedavg"), Row("a", "fedgcn")), {}, "small has two rows 'a'"),
        ((Row("a", "fedavg", relative=(Relative("b"),)), Row("bb")), {}, "no row 'b'; did you mean 'bb'"),
        ((Row("a", "fedavg"),), {"near": Target(row="central")}, "no row 'central'"),
    ],
)  # fmt: skip
def test_rows_that_could_not_be_distinguished_or_are_not_there_are_refused_when_the_item_is_made(
    rows: tuple[Row, ...], targets: dict[str, Target], message: str
) -> None:
    """Before the runs, at whose end they would be needed."""
    with pytest.raises(InputError, match=message):
        Runs(name="small", title="", source="", metrics=("accuracy",), rows=rows, targets=targets)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (dataclasses.replace(small(), settings={"hosp": 1}), "fedavg has no setting 'hosp'"),
        (other("lossy"), "other: fedavg has no metric 'lossy'; did you mean 'loss'"),
        (other("last.byte"), "no place 'byte'; did you mean 'bytes'"),
        (other("to_target.most.round"), "no target 'most'"),
    ],
)
def test_what_no_run_has_is_refused_before_anything_is_written(
    item: Item, message: str, own_folder: Path
) -> None:
    with pytest.raises(InputError) as refusal:
        reproduce(paper_of(item), out="r")
    assert message in str(refusal.value)
    assert not (own_folder / "r").exists()


def lines_paper(rounds: int = 3, split_clients: int = 3) -> Paper:
    """Lines over clients and over a setting, other metrics of the same runs, and counts."""
    fig4 = Runs(
        name="fig4",
        title="Two methods over clients",
        source="made up",
        metrics=("accuracy",),
        x="clients",
        panels=("Social", "Digits"),
        seeds=(0, 1),
        options={"rounds": rounds, "threads": 1},
        quick=Quick(seeds=(0,), options={"rounds": 1}),
        rows=(
            point(
                "averaging", 2, "fedavg", panel="Digits", options={"clients": 2},
                printed={"accuracy": Printed(50.0, 1.0)},
            ),
            point(
                "averaging", 4, "fedavg", panel="Digits", options={"clients": 4},
                printed={"accuracy": Printed(40), "macro_f1": Printed(30.5)},
            ),
            point("one hop", 3, "fedgcn", panel="Digits", options={"clients": 3}, settings={"hops": 1}),
            *(
                point(
                    "averaging", beta, "fedavg", panel="Social", options={"data": "social"},
                    settings={"partition.beta": beta}, seeds=(5,),
                )
                for beta in (1, 0.5)
            ),
        ),
    )  # fmt: skip
    fig3 = Measured(
        name="fig3",
        kind="class_counts",
        title="Who has which class",
        source="made up",
        measure=class_counts,
        cells=counts_cells,
        draw=draw_counts,
        options={"partition": "label_skew", "split": "random:0.2,0.2,0.2", "clients": 2},
        rows=(
            Row("alpha 0", "isolated", printed={"0": Printed(500), "1": Printed(578)}),
            Row("alpha 0.5", "isolated", settings={"partition.alpha": 0.5}),
            Row("three", "isolated", options={"clients": split_clients}),
        ),
    )
    return Paper(
        "lines",
        "A toy with lines",
        "Nobody",
        "nowhere",
        (
            fig4,
            same_runs(fig4, Runs, "fig5", title="The same, as F1", metrics=("macro_f1", "accuracy")),
            fig3,
        ),
    )


#: The rows of fig4, one for each value of over.
LABELS = [
    "Digits averaging 2",
    "Digits averaging 4",
    "Digits one hop 3",
    "Social averaging 1",
    "Social averaging 0.5",
]


@pytest.fixture
def lines(own_folder: Path) -> Paper:
    return lines_paper()


def test_a_point_is_called_after_its_panel_series_and_x_unless_it_has_a_label() -> None:
    assert [row.label for row in lines_paper().items[0].rows] == LABELS
    assert point("a", 0.5, "fedavg").label == "a 0.5"
    assert point("a", 0.5, "fedavg", panel="p", label="own").label == "own"


def test_a_row_has_its_own_options_settings_and_seeds_before_those_of_its_item() -> None:
    item = small()
    row = Row("r", "fedgcn", options={"clients": 7}, settings={"preset": "default", "hops": 1}, seeds=(5,))
    assert item.options_of(row) == {"data": "digits", "clients": 7, "rounds": 4, "threads": 1}
    assert item.settings_of(row) == {"preset": "default", "hops": 1}
    assert item.settings_of(item.rows[0]) == {"preset": "paper"}, "the papers' settings"
    assert (item.seeds_of(row), item.seeds_of(item.rows[0])) == ((5,), (0, 1))


def test_every_row_has_every_metric_of_the_item_in_json_and_on_the_screen(lines: Paper) -> None:
    (item,) = reproduce(lines, "fig5", out="r").items
    for row in item["rows"]:
        for part in ("ours", "printed", "difference"):
            assert [*row[part]] == ["macro_f1", "accuracy"]
    alone = [
        graphfed.run("fedavg", preset="paper", clients=4, rounds=3, seed=s, threads=1, out=False)
        for s in (0, 1)
    ]
    four = item["rows"][1]
    assert four["ours"]["macro_f1"]["values"] == [100 * run.test["macro_f1"] for run in alone]
    assert four["difference"]["macro_f1"] == four["ours"]["macro_f1"]["mean"] - 30.5
    assert four["difference"]["accuracy"] == four["ours"]["accuracy"]["mean"] - 40
    (table,) = reproduce(lines, "fig5", out="r").tables()
    figures = ("ours (%)", "printed (%)", "difference")
    groups = [f"{metric}: {name}" for metric in ("macro f1", "accuracy") for name in figures]
    assert [column.header for column in table.columns] == ["row", *groups, "runs", "seconds"]
    assert [*table.columns[7].cells] == ["2", "2", "2", "1", "1"]


def test_an_item_that_shows_other_metrics_of_another_ones_runs_runs_nothing_of_its_own(
    lines: Paper, own_folder: Path
) -> None:
    alone = reproduce(lines, "fig5", out="alone").items[0]
    assert [path.name for path in Path("alone").iterdir() if path.is_dir()] == ["fig4"]
    messages: list[str] = []
    four, five, _ = reproduce(lines, out="both", log=messages.append).items
    assert messages[-1].startswith("1 item to measure; 8 runs to do, about ")
    assert [row["folders"] for row in four["rows"]] == [row["folders"] for row in five["rows"]]
    assert [row["ours"] for row in five["rows"]] == [row["ours"] for row in alone["rows"]]
    assert [row["ours"]["accuracy"] for row in four["rows"]] == [r["ours"]["accuracy"] for r in five["rows"]]


def test_points_are_drawn_in_a_panel_for_each_panel_and_metric_with_one_legend(
    lines: Paper, own_folder: Path
) -> None:
    reproduce(lines, "fig5", quick=True, out="r")
    picture = ET.parse(own_folder / "r/fig5.svg").getroot()
    ids = [element.get("id", "") for element in picture.iter()]
    assert sum(bool(re.fullmatch(r"axes_\d+", name)) for name in ids) == 4
    assert sum(name.startswith("legend") for name in ids) == 1
    texts = ["".join(text.itertext()) for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    for word, count in {
        "clients": 4,
        "Social": 2,
        "averaging": 1,
        "one hop": 1,
        "printed": 1,
        "test macro f1 (%)": 2,
    }.items():
        assert texts.count(word) == count, word
    assert texts.index("Social") < texts.index("Digits"), "the panels are in the order that the item says"


def test_the_legend_lies_inside_the_picture_and_noise_does_not_fill_an_axis(
    lines: Paper, own_folder: Path
) -> None:
    """Of one metric, whose picture is narrow; an axis of percent spans 5 points at least."""
    (item,) = reproduce(lines, "fig4", quick=True, out="r").items
    for row in item["rows"]:
        row["printed"] = {"accuracy": None}
        row["series"] += " with a name as long as this"
        row["ours"]["accuracy"] = {"mean": 50 + row["x"] / 100, "std": None, "values": []}
    picture = ET.fromstring(plots.draw(lines.by_name["fig4"], item))
    svg = "{http://www.w3.org/2000/svg}"
    (legend,) = [g for g in picture.iter(f"{svg}g") if g.get("id", "").startswith("legend")]
    width = float(picture.get("viewBox", "").split()[2])
    texts = ["".join(text.itertext()) for text in legend.iter(f"{svg}text")]
    places = [float(text.get("x", "")) for text in legend.iter(f"{svg}text")]
    # About 6 points a letter.
    ends = [place + 6 * len(text) for place, text in zip(places, texts, strict=True)]
    assert len(ends) == 3
    assert all(0 <= place < end <= width for place, end in zip(places, ends, strict=True))
    for chart in (chart for row in plots.lines(item) for chart in row):
        axes = Figure().subplots()
        chart.draw(axes)
        assert np.diff(axes.get_ylim()) == pytest.approx(5.0)


def test_class_counts_are_of_labelled_nodes_by_owner_and_nothing_is_trained(
    lines: Paper, own_folder: Path
) -> None:
    (item,) = reproduce(lines, "fig3", seeds=[3], out="r").items
    assert not [path for path in Path("r").iterdir() if path.is_dir()]
    assert [row["label"] for row in item["rows"]] == ["alpha 0", "alpha 0.5", "three"]
    graph = load("digits")
    split = make_split(graph, "random:0.2,0.2,0.2", 3)
    some = split.train | split.val | split.test
    for row, (clients, alpha) in zip(item["rows"], [(2, 0.0), (2, 0.5), (3, 0.0)], strict=True):
        parts = partition(graph, "label_skew", clients, 3, alpha=alpha)
        client = parts.held_client[np.argsort(parts.held_node)]
        for key, among in (("all", np.ones_like(some)), ("split", some)):
            for k in range(clients):
                counted = [int(((graph.y == c) & (client == k) & among).sum()) for c in range(10)]
                assert row["counts"][key][k] == counted
                assert row["totals"][key][k] == sum(counted)
    assert [row["printed"] for row in item["rows"]] == [[500, 578], None, None]
    assert item["rows"][2]["clients"] == ["0", "1", "2"]
    assert json.loads((own_folder / "r/reproduce.json").read_text())["items"][0]["rows"][2]["printed"] is None
    texts = "".join(ET.parse(own_folder / "r/fig3.svg").getroot().itertext())
    total = item["rows"][0]["totals"]["split"][0]
    for word in ("alpha 0.5", "three", "share of its nodes (%)", f"0: {total} (500)"):
        assert word in texts


@pytest.mark.parametrize(("labels", "owners"), [("one", 1), ("all", 3)])
def test_a_node_that_several_clients_have_counts_where_it_is_owned(labels: str, owners: int) -> None:
    settings = {"partition.labels": labels}
    inputs = load_inputs(make_config("isolated", partition="edges_uniform", clients=3, settings=settings))
    assert len(inputs.partition.held_node) == 3 * inputs.graph.num_nodes
    counts = count_classes(inputs, np.ones(inputs.graph.num_nodes, dtype=bool))
    assert counts.sum(0).tolist() == (owners * np.bincount(inputs.graph.y)).tolist()


def test_a_partition_that_cannot_be_made_leaves_no_folder(own_folder: Path) -> None:
    with pytest.raises(InputError, match="11 clients are too many"):
        reproduce(lines_paper(split_clients=11), out="r")
    assert not (own_folder / "r").exists()


# ---- seeds and jobs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("0,2", (0, 2)), ("0-3", (0, 1, 2, 3)), ("7-7,1", (7, 1)), (3, (3,)), ([1, "4-5"], (1, 4, 5))],
)
def test_seeds_are_numbers_and_ranges(text: Any, seeds: tuple[int, ...]) -> None:
    assert plan.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["3-1", "0-", "0-1-2", "1.5", "0-99999999999", "", True, None])
def test_what_is_no_number_and_no_range_is_no_seed(text: Any) -> None:
    with pytest.raises(InputError, match="cannot be read; write whole numbers"):
        plan.parse_seeds(text)


def test_more_seeds_run_what_is_missing_and_resuming_goes_on_with_the_last_ones(
    toy: Paper, own_folder: Path
) -> None:
    messages: list[str] = []
    reproduce(toy, "small", out="r", log=messages.append)
    (more,) = reproduce(toy, "small", seeds=range(1, 4), out="r", log=messages.append).items
    costs = [line for line in messages if "to do" in line]
    assert [line.split(",")[0] for line in costs] == ["4 runs to do", "4 runs to do"]
    assert [row["seeds"] for row in more["rows"]] == [[1, 2, 3]] * 2
    again = graphfed.resume("r")
    assert isinstance(again, Reproduction)
    assert [row["seeds"] for row in again.items[0]["rows"]] == [[1, 2, 3]] * 2
    (whole,) = reproduce(toy, "small", out="r").items
    assert [row["seeds"] for row in whole["rows"]] == [[0, 1]] * 2


def test_only_the_rows_of_a_pattern_are_run_with_the_row_that_a_target_follows(
    own_folder: Path, toy: Paper
) -> None:
    compared = Row("third", "fedavg", relative=(Relative("averaging"), Relative("one hop")))
    near, metric = Target(row="one hop", less=0.1), "to_target.near.round"
    item = dataclasses.replace(
        small(), rows=(*small().rows, compared), metrics=("accuracy", metric), targets={"near": near}
    )
    paper = dataclasses.replace(toy, items=(item, other("accuracy")))
    messages: list[str] = []
    (found,) = reproduce(paper, rows="thi?d", seeds=[0], out="r", log=messages.append).items
    assert [row["label"] for row in found["rows"]] == ["one hop", "third"]
    assert [each["to"] for each in found["rows"][1]["relative"]] == ["one hop"]
    assert sorted(path.name for path in Path("r/small").iterdir()) == ["one hop-seed0", "third-seed0"]
    (whole,) = reproduce(paper, "small", seeds=[0], out="r", log=messages.append).items
    assert [row["label"] for row in whole["rows"]] == ["averaging", "one hop", "third"]
    assert [line.split(",")[0] for line in messages if "to do" in line] == ["2 runs to do", "1 run to do"]


def test_resuming_goes_on_with_the_rows_of_the_last_command(toy: Paper, own_folder: Path) -> None:
    reproduce(toy, "small", rows="one*", out="r")
    again = graphfed.resume("r")
    assert isinstance(again, Reproduction)
    assert [row["label"] for row in again.items[0]["rows"]] == ["one hop"]


@pytest.mark.parametrize("name", PAPERS)
def test_a_row_that_is_run_alone_has_the_settings_that_it_has_among_others(name: str) -> None:
    rows = [(item, row) for item in find_paper(name).items for row in item.rows]
    for item, row in rows:
        some = item.with_rows(row.label)
        (alone,) = [each for each in some.rows if each.label == row.label]
        assert some.settings_of(alone) == item.settings_of(row), f"{item.name}, {row.label}"
        assert some.options_of(alone) == item.options_of(row)


@pytest.mark.parametrize("pattern", ["one hopp", "", "*x"])
def test_a_pattern_of_no_row_is_answered_with_the_rows_that_there_are(
    pattern: str, toy: Paper, own_folder: Path
) -> None:
    with pytest.raises(InputError, match=re.escape(f"no row is called {pattern!r}; ")) as raised:
        reproduce(toy, "small", rows=pattern, out="r")
    assert "one hop" in str(raised.value)
    assert not Path("r").exists()


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the runs that are timed before the first one."""
    methods: list[str] = []
    real = runner.execute

    def count(config: Any, *args: Any, **kwargs: Any) -> Result:
        methods.append(config.method.name)
        assert config.rounds <= runner.TRIAL_ROUNDS
        return real(config, *args, **kwargs)

    monkeypatch.setattr(runner, "execute", count)
    return methods


def test_only_rows_without_any_run_are_timed(toy: Paper, own_folder: Path, timed: list[str]) -> None:
    reproduce(toy, "small", out="r")
    assert timed == ["fedavg", "fedgcn"]
    shutil.rmtree("r/small/one hop-seed0")
    reproduce(toy, "small", seeds=[0, 1, 2], out="r")
    assert timed == ["fedavg", "fedgcn"]
    shutil.rmtree("r/small")
    reproduce(toy, "small", out="r")
    assert timed == ["fedavg", "fedgcn"] * 2


def test_one_run_of_each_method_and_data_set_is_timed_and_others_are_estimated_by_their_rounds(
    own_folder: Path, timed: list[str]
) -> None:
    rounds = {"2": 2, "30": 30, "130": 130}
    rows = [Row(label, "fedavg", options={"rounds": n}, seeds=(0,)) for label, n in rounds.items()]
    item = dataclasses.replace(small(), rows=(*rows, Row("social", "fedavg", options={"data": "social"})))
    _, planned = runner.plan([item], Place(own_folder, None, plan.InputCache()), "")
    seconds = [run.seconds for run in runner.to_run(planned, plan.InputCache(), lambda _: None)]
    assert timed == ["fedavg", "fedavg"]
    assert seconds[2] - seconds[1] == pytest.approx(100 / 28 * (seconds[1] - seconds[0]))


def test_runs_in_processes_of_their_own_give_the_same_figures(
    lines: Paper, own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = reproduce(lines, out="one"), reproduce(lines, jobs=2, out="two", progress=True)
    for alone, beside in zip(one.items[:2], two.items[:2], strict=True):
        for a, b in zip(alone["rows"], beside["rows"], strict=True):
            assert {**a, "seconds": 0} == {**b, "seconds": 0}
    assert one.items[2] == two.items[2]
    progress = capsys.readouterr().err.splitlines()
    assert [line.partition(" ")[0] for line in progress] == [f"[{n}/8]" for n in range(1, 9)]
    names = sorted(re.search(r"fig4: (.*), seed", line)[1] for line in progress)
    assert names == sorted([*LABELS, *LABELS[:3]])
    assert all(" left" in line for line in progress[:-1])


def test_a_run_has_one_thread_unless_its_options_say_otherwise(own_folder: Path) -> None:
    reproduce(paper_of(small(threads=2), other()), quick=True, out="r")
    threads = [
        read_manifest(path)["threads"] for path in ("r/small/averaging-seed0", "r/other/averaging-seed0")
    ]
    assert threads == [2, 1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_stops_a_run_is_reported_alike_for_one_job_and_for_several(
    jobs: int, toy: Paper, own_folder: Path
) -> None:
    reproduce(toy, "small", seeds=[0], out="r")
    (own_folder / "r/small/one hop-seed2").write_text("in the way")
    with pytest.raises(InputError, match=r"output folder .*one hop-seed2 cannot be made"):
        reproduce(toy, "small", seeds=[0, 1, 2], jobs=jobs, out="r")
    (own_folder / "r/small/one hop-seed2").unlink()
    (item,) = reproduce(toy, "small", seeds=[0, 1, 2], jobs=jobs, out="r").items
    assert [len(row["seeds"]) for row in item["rows"]] == [3, 3]


@pytest.mark.parametrize("jobs", [0, True, 1.5, 10_000])
def test_jobs_must_be_a_number_of_processes(jobs: Any, toy: Paper, own_folder: Path) -> None:
    with pytest.raises(InputError, match="give a whole number from 1 to"):
        reproduce(toy, jobs=jobs, out="r")
    assert not (own_folder / "r").exists()


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGKILL"])
def test_whatever_ends_the_caller_ends_every_process_and_what_it_ran_is_saved(
    how: str, own_folder: Path
) -> None:
    (own_folder / "endless.py").write_text(PROGRAM)
    words = "reproduce endless small --seeds 0 --jobs 2 --out r --no-progress"
    environment = {**os.environ, "PYTHONPATH": str(Path(graphfed.__file__).parents[1])}
    runs = [own_folder / "r/small" / name for name in ("averaging-seed0", "one hop-seed0")]
    with subprocess.Popen(
        [sys.executable, "endless.py", *words.split()],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_until(lambda: all(map(has_checkpoint, runs)))
        if how == "Ctrl-C":  # reaches every process of the terminal
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGKILL)
        printed = process.communicate(timeout=60)[1]
    wait_until(lambda: not alive(process.pid))
    assert process.returncode == (-signal.SIGKILL if how == "SIGKILL" else 130)
    if how != "SIGKILL":
        assert printed.splitlines()[3:] == ["interrupted; go on with: graphfed resume r"]
    for run in runs:
        assert newest_round(run, ["local"])[0]
        assert not (run / ".lock").exists()


def test_a_process_that_is_killed_is_reported_and_what_the_others_ran_is_saved(own_folder: Path) -> None:
    toy = paper_of(small(rounds=1000000, checkpoint_every=0.2))
    runs = [own_folder / "r/small" / name for name in ("averaging-seed0", "one hop-seed0")]

    def kill_one() -> None:
        wait_until(lambda: all(map(has_checkpoint, runs)))
        multiprocessing.active_children()[0].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(GraphfedError, match=r"ended before its run did.*fewer --jobs"):
        reproduce(toy, "small", seeds=[0], jobs=2, out="r")
    killer.join()
    assert multiprocessing.active_children() == []
    assert all(newest_round(run, ["local"])[0] for run in runs)


def wait_until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.05)


def alive(group: int) -> bool:
    """Whether a process of the group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# ---- names, data, the command ------------------------------------------------------------------------------


def test_names_that_are_not_there_are_answered_with_the_nearest(toy: Paper) -> None:
    with pytest.raises(InputError, match="did you mean 'fedgcn'"):
        reproduce("fedgnc")
    with pytest.raises(InputError, match="did you mean 'small'"):
        reproduce(toy, "smal")


def test_the_folder_of_ones_own_paper_says_how_to_go_on(own_folder: Path) -> None:
    paper = paper_of(other())
    reproduce(paper, out="r")
    with pytest.raises(InputError, match=r"calling graphfed\.reproduce with the same paper and out='r'"):
        graphfed.resume("r")
    assert [item["item"] for item in reproduce(paper, out="r").items] == ["other"]


def test_missing_data_is_named_with_its_files_before_anything_is_written(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_folder / "cache"))
    with pytest.raises(InputError) as refusal:
        reproduce("fedgcn", "cora")
    message = str(refusal.value)
    assert "fedgcn/cora needs data set 'cora'" in message
    assert "ind.cora" in message
    assert "--data-dir" in message
    assert list(own_folder.iterdir()) == []


def test_the_papers_are_the_modules_that_have_one() -> None:
    modules = [info.name for info in pkgutil.iter_modules(reproductions.__path__)]
    found = [name for name in modules if hasattr(import_module(f"graphfed.reproductions.{name}"), "PAPER")]
    assert sorted(PAPERS) == sorted(found) == [find_paper(name).name for name in PAPERS]


@pytest.mark.parametrize("name", PAPERS)
def test_every_item_of_a_paper_is_made_of_runs_that_can_be_asked_for(name: str, own_folder: Path) -> None:
    paper = find_paper(name)
    assert any(row.printed for item in paper.items for row in item.rows)
    assert len(paper.by_name) == len(paper.items)
    place = Place(own_folder / "r", None, plan.InputCache())
    for whole in paper.items:
        for item in (whole, whole.short()):
            _, planned = runner.plan([item], place, "")
            assert len(planned) == (len(item.rows) if isinstance(item, Runs) else 0)
            for row in item.rows if isinstance(item, Measured) and not item.policies else ():
                item.config(row, item.seeds_of(row)[0], None)
            shown = (*item.metrics, item.against) if isinstance(item, Runs) else ()
            assert not isinstance(item, Runs) or {*item.called} <= {*shown}, item.name
            assert not isinstance(item, Curves) or len(item.metrics) == 1


def test_the_quick_version_of_fedgcn_on_cora_runs_on_the_real_data(real_data: Path, own_folder: Path) -> None:
    (item,) = reproduce("fedgcn", "cora", quick=True, data_dir=real_data, out="r").items
    means = {row["label"]: row["ours"]["accuracy"]["mean"] for row in item["rows"]}
    # What the paper claims: the exchange brings FedGCN close to central training, which FedAvg is far from.
    assert means["FedGCN 2 hops even"] > means["central GCN"] - 3
    assert means["FedAvg even"] < means["FedGCN 1 hop even"] < means["central GCN"]


def test_the_command_lists_papers_and_prints_a_table(toy: Paper, capsys: pytest.CaptureFixture[str]) -> None:
    from graphfed.cli import main

    assert main(["reproduce", "--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in PAPERS)
    assert main(["reproduce", "toy", "small", "--quick", "--out", "r", "--no-progress"]) == 0
    printed = capsys.readouterr()
    assert "3 runs" not in printed.err
    assert "2 runs to do" in printed.err
    assert "50.00 ± 1.00" in printed.out
    assert main(["reproduce", "toy", "small", "--quick", "--out", "r", "--json"]) == 0
    content = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert content == json.loads(Path("r/reproduce.json").read_text())
    words = "reproduce toy other --seeds 3-4 --jobs 2 --out s --no-progress"
    assert main(words.split()) == 0
    assert ", 2 at a time" in capsys.readouterr().err
    written = json.loads(Path("s/reproduce.json").read_text())
    assert written["items"][0]["rows"][0]["seeds"] == [3, 4]
    assert main(["reproduce", "toy", "other", "small", "--quick", "--out", "r"]) == 0
    printed = capsys.readouterr().out
    assert 0 <= printed.find("toy/other") < printed.find("toy/small")
    assert main(["reproduce", "toy", "--seeds", "4-3"]) == 2
    assert "'4-3' cannot be read" in capsys.readouterr().err
