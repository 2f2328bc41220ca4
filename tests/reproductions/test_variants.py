"""Items on several data sets, curves by round, and items on sensors that train nothing."""

import dataclasses
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
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
from graphfed.data.sensors.series import Sensors
from graphfed.errors import InputError
from graphfed.methods.cnfgnn.costs import training_numbers
from graphfed.reproductions.base import (
    Curves,
    Measured,
    Paper,
    Printed,
    Quick,
    Relative,
    Row,
    Runs,
    on_data,
    same_runs,
)
from graphfed.reproductions.cnfgnn import PAPER as CNFGNN
from graphfed.reproductions.cnfgnn_sensors import (
    BINS,
    _bins,
    draw_histograms,
    draw_operations,
    draw_visible,
    first_by_id,
    histograms,
    histograms_cells,
    operations,
    operations_cells,
    visible_cells,
    visible_sensors,
)
from graphfed.reproductions.figures import metric_of
from graphfed.reproductions.reproduce import Reproduction, reproduce
from graphfed.runs.run import Result


def table(data: str) -> Runs:
    """Two methods on digits, and otherwise on social."""
    social = data == "social"
    hop = Row("one hop", "fedgcn", settings={"hops": 1}, relative=(Relative("averaging", {"accuracy": 3}),))
    return Runs(
        name="table",
        title="Two methods",
        source="made up",
        notes=("of all data", f"of {data}"),
        metrics=("accuracy", "macro_f1") if social else ("accuracy",),
        seeds=(3,) if social else (0, 1),
        options={"clients": 3, "rounds": 2, **({"split": "random:0.5,0.25,0.25"} if social else {})},
        settings={"hidden": 4, "data.num_nodes": 200} if social else {"hidden": 4},
        quick=Quick(seeds=(0,), options={"rounds": 1}),
        rows=(
            Row("averaging", "fedavg", printed={"accuracy": Printed(50.0)}),
            hop,
            *(() if social else (Row("adam", "fedavg", settings={"lr": 0.01}),)),
        ),
    )


TABLE = on_data(table, ("digits", "social"))
OTHER = tuple(
    same_runs(
        item,
        Runs,
        "other",
        title="Other metrics",
        metrics=("best_round", "bytes_to_best"),
        divided_by={"bytes_to_best": 1000},
        called={"bytes_to_best": "kB to the best round"},
        rows=("one hop", "averaging"),
    )
    for item in TABLE
)
CURVES = tuple(same_runs(item, Curves, "curves", title="By round", metrics=("accuracy",)) for item in TABLE)
TWELVE = {"data.weeks": 1, "data.sensors": 12}
SEEN = on_data(
    lambda data: Measured(
        name="seen",
        kind="visible_sensors",
        title="What is seen",
        source="made up",
        measure=visible_sensors,
        cells=visible_cells,
        draw=draw_visible,
        settings=TWELVE,
        rows=(Row("a third", "last_value", options={"split": "inductive:0.33"}), Row("all", "last_value")),
    ),
    ("roads",),
)
READINGS = Measured(
    name="readings",
    kind="histograms",
    title="Readings",
    source="made up",
    measure=partial(histograms, count=5),
    cells=histograms_cells,
    draw=draw_histograms,
    options={"data": "roads"},
    settings=TWELVE,
    rows=(Row("roads", "last_value"),),
)
COST = Measured(
    name="cost",
    kind="operations",
    title="Operations",
    source="made up",
    measure=partial(operations, count=10),
    cells=operations_cells,
    draw=draw_operations,
    reads="nothing",
    rows=(
        Row("small", "gru_fedavg", settings={"hidden": 100}, printed={"operations": Printed(0.01)}),
        Row("graph", "cnfgnn"),
    ),
)


@pytest.fixture
def toy(own_folder: Path, as_known: Callable[[Paper], Paper]) -> Paper:
    items = (*TABLE, *OTHER, *CURVES, *SEEN, READINGS, COST)
    return as_known(Paper("toy", "A toy", "Nobody", "nowhere", items))


def cells(table: Table) -> list[list[str]]:
    """A table's lines."""
    columns = ([str(cell) for cell in column.cells] for column in table.columns)
    return [list(line) for line in zip(*columns, strict=True)]


def words_in(path: Path) -> str:
    return "".join(ET.parse(path).getroot().itertext())


# ---- the same item on other data ---------------------------------------------------------------------------


def test_every_data_set_is_an_item_of_its_own_and_so_are_the_items_that_show_its_runs(toy: Paper) -> None:
    items = toy.by_name
    assert [*items] == [
        "table", "table-social", "other", "other-social", "curves", "curves-social", "seen", "readings",
        "cost",
    ]  # fmt: skip
    first, second = TABLE
    assert (first.data_sets, second.data_sets) == (["digits"], ["social"])
    assert (first.base, first.data, second.base, second.data) == ("table", "digits", "table", "social")
    assert (first.title, second.title) == ("Two methods, digits", "Two methods, social")
    assert second.options_of(second.rows[0])["data"] == "social"
    other, curves = items["other-social"], items["curves-social"]
    assert isinstance(other, Runs)
    assert isinstance(curves, Curves)
    assert (other.base, other.data, other.title) == ("other", "social", "Other metrics, social")
    assert other.run_folder == curves.run_folder == "table-social"
    assert [row.label for row in other.rows] == ["one hop", "averaging"]
    assert [row.relative for row in other.rows] == [(), ()], "the item with the runs has the comparisons"
    assert curves.rows == second.rows
    assert (other.notes, other.seeds) == (second.notes, second.seeds)


def test_without_a_choice_the_first_data_set_runs_and_data_chooses_another(
    toy: Paper, own_folder: Path
) -> None:
    assert [item["item"] for item in reproduce(toy, "table", quick=True, out="q").items] == ["table"]
    found = reproduce(toy, "table", data="social", out="r")
    (item,) = found.items
    assert (item["item"], item["data"], item["plot"]) == ("table-social", "social", "table-social.svg")
    assert {path.name for path in (own_folder / "r").iterdir() if path.is_dir()} == {"table-social"}
    assert Result.read(own_folder / "r/table-social/one hop-seed3").dataset == "social"
    assert reproduce(toy, "table-social", out="r").items == found.items
    again = graphfed.resume("r")
    assert isinstance(again, Reproduction)
    assert again.items == found.items
    every = reproduce(toy, data="social", out="r").items
    assert [item["item"] for item in every] == ["table-social", "other-social", "curves-social"]
    written = json.loads((own_folder / "r/reproduce.json").read_text())["items"]
    assert [item["item"] for item in written] == ["table-social", "other-social", "curves-social"]


@pytest.mark.parametrize(
    ("item", "data", "message"),
    [
        ("table", "socail", "no data set 'socail' for toy/table; did you mean 'social'"),
        (None, "cora", "no data set 'cora' for toy; choose one of: digits, roads, social"),
        ("cost", "digits", "it has no choice of data; leave --data out"),
        (["table", "cost"], "social", "no data set 'social' for toy/cost; it has no choice of data"),
    ],
)
def test_data_on_which_an_item_cannot_be_done_is_refused(
    item: str | list[str] | None, data: str, message: str, toy: Paper, own_folder: Path
) -> None:
    with pytest.raises(InputError) as refusal:
        reproduce(toy, item, data=data, out="r")
    assert message in str(refusal.value)
    assert not (own_folder / "r").exists()


# ---- metrics of a run, and by round ------------------------------------------------------------------------


def test_bytes_up_to_the_best_round_are_those_of_setup_and_of_the_rounds_so_far(own_folder: Path) -> None:
    settings = {"data.sensors": 3, "data.weeks": 1, "every": 50, "hidden": 4, "lr": 0.5}
    run = graphfed.run("gru_fedavg", data="roads", rounds=4, settings=settings, threads=1, out="run")
    assert run.best_round is not None
    assert run.best_round < 4, "the rounds after the best one must not count"
    weights = sum(a.size for name, a in _model("run").items() if name.startswith("weights."))
    each = training_numbers("gru_fedavg", clients=3, weights=weights)
    assert metric_of(run, "bytes_to_best") == run.bytes["setup"] + 4 * run.best_round * each
    assert metric_of(run, "best_round") == run.best_round
    assert metric_of(run, "rounds") == 4
    (own_folder / "run/metrics.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1 is damaged.*no 'round'"):
        metric_of(run, "bytes_to_best")


def _model(folder: str) -> dict[str, np.ndarray]:
    from safetensors.numpy import load_file

    return load_file(Path(folder) / "model.safetensors")


def test_curves_are_the_validation_part_by_round_over_the_seeds(toy: Paper, own_folder: Path) -> None:
    other, curves = (reproduce(toy, name, out="r").items[0] for name in ("other", "curves"))
    assert [row["label"] for row in other["rows"]] == ["one hop", "averaging"]
    assert [row["label"] for row in curves["rows"]] == ["averaging", "one hop", "adam"]
    results = [Result.read(own_folder / f"r/table/averaging-seed{seed}") for seed in (0, 1)]
    figures = other["rows"][1]["ours"]
    assert figures["best_round"]["values"] == [result.best_round for result in results]
    kilobytes = [metric_of(result, "bytes_to_best") / 1000 for result in results]
    assert figures["bytes_to_best"]["values"] == kilobytes
    row = curves["rows"][0]
    assert row["x"] == [1, 2]
    best = [100 * result.val["accuracy"] for result in results]
    assert row["chosen"]["values"] == best
    at_best = [values[r.best_round - 1] for values, r in zip(row["values"], results, strict=True)]
    assert at_best == pytest.approx(best, rel=1e-5)
    assert row["mean"] == [pytest.approx(np.mean(at), rel=1e-5) for at in zip(*row["values"], strict=True)]
    assert row["std"] == [
        pytest.approx(np.std(at, ddof=1), rel=1e-4) for at in zip(*row["values"], strict=True)
    ]
    for word in ("averaging", "one hop", "round", "validation accuracy (%)"):
        assert word in words_in(own_folder / "r/curves.svg")
    (table,) = reproduce(toy, "curves", out="r").tables()
    assert table.columns[1].header == "validation accuracy (%): best"
    spread = f"{np.mean(best):.2f} ± {np.std(best, ddof=1):.2f}"
    assert cells(table)[0][:2] == ["averaging", spread]


def test_curves_end_where_the_first_run_does_and_need_a_metric_of_the_validation_part(
    toy: Paper, own_folder: Path
) -> None:
    reproduce(toy, "table", out="r")
    path = own_folder / "r/table/averaging-seed1/metrics.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    (item,) = reproduce(toy, "curves", out="r").items
    assert [row["x"] for row in item["rows"]] == [[1], [1, 2], [1, 2]]
    rounds = same_runs(TABLE[0], Curves, "curves", title="By round", metrics=("rounds",))
    with pytest.raises(InputError, match="no metric 'rounds' of the validation part"):
        reproduce(dataclasses.replace(toy, items=(rounds,)), out="r")


# ---- sensors -----------------------------------------------------------------------------------------------


def test_the_sensors_that_are_seen_are_the_western_ones_with_the_edges_among_them(
    toy: Paper, own_folder: Path
) -> None:
    found = reproduce(toy, "seen", out="r")
    third, everything = found.items[0]["rows"]
    sensors = load("roads", sensors=12, weeks=1)
    assert isinstance(sensors, Sensors)
    assert sensors.position is not None
    west = set(sorted(range(12), key=lambda s: (sensors.position[s, 0], s))[:4])
    dense = sensors.adjacency.toarray()
    among = {(i, j) for i in range(12) for j in range(12) if i != j and dense[i, j] > 0}
    assert third["visible_sensors"] == 4
    assert {s for s in range(12) if third["observed"][s]} == west
    pairs = {tuple(pair) for pair in third["pairs"]}
    assert pairs == {(i, j) for i, j in among if i in west and j in west}
    assert third["visible_edges"] == len(pairs)
    assert (everything["visible_sensors"], everything["visible_edges"]) == (12, len(among))
    assert json.loads((own_folder / "r/reproduce.json").read_text()) == found.to_json()
    for word in ("a third: 4 sensors", "all: 12 sensors", "seen in training", "not seen", "kilometres"):
        assert word in words_in(own_folder / "r/seen.svg")
    (table,) = found.tables()
    assert cells(table)[0] == ["a third", "4", "12", str(len(pairs)), str(len(among))]
    assert not [path for path in (own_folder / "r").iterdir() if path.is_dir()]


def test_histograms_count_every_reading_that_is_there_once(toy: Paper, own_folder: Path) -> None:
    found = reproduce(toy, "readings", out="r")
    (row,) = found.items[0]["rows"]
    sensors = load("roads", sensors=12, weeks=1)
    assert isinstance(sensors, Sensors)
    assert row["ids"] == ["00", "01", "02", "03", "04"]
    for s in range(5):
        there = sensors.readings[~sensors.missing[:, s], s].astype(float)
        for b, count in enumerate(row["counts"][s]):
            low, high = row["edges"][b : b + 2]
            assert count == int(((there >= low) & (there < high)).sum())
        assert sum(row["counts"][s]) == len(there)
        assert row["mean"][s] == pytest.approx(there.mean())
        assert row["std"][s] == pytest.approx(there.std())
        assert row["missing"][s] == pytest.approx(1 - len(there) / sensors.num_steps)
    assert json.loads((own_folder / "r/reproduce.json").read_text()) == found.to_json()
    for word in ("roads: 5 sensors", "speed (miles per hour)", "share of a sensor's readings"):
        assert word in words_in(own_folder / "r/readings.svg")
    (table,) = found.tables()
    (line,) = cells(table)
    means = [f"{statistic(row['mean']):.2f}" for statistic in (min, np.mean, max)]
    assert line[:5] == ["roads", "5", *means]
    first = (own_folder / "r/readings.svg").read_bytes()
    reproduce(toy, "readings", out="r")
    assert (own_folder / "r/readings.svg").read_bytes() == first


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6))
def test_bins_are_few_and_hold_everything(least: float, span: float) -> None:
    edges = _bins(least, least + span)
    assert len(edges) - 1 <= BINS
    assert edges[0] <= least
    assert least + span < edges[-1] or np.isclose(least + span, edges[-1])
    counts, _ = np.histogram([least, least + span], edges)
    assert counts.sum() == 2


def test_the_first_sensors_are_those_of_the_smallest_numbers_not_of_the_first_letters() -> None:
    sensors = load("roads", sensors=3, weeks=1)
    assert isinstance(sensors, Sensors)

    def order(*ids: str) -> list[int]:
        return first_by_id(Sensors(**{**vars_of(sensors), "ids": ids}))

    assert order("10", "9", "100") == [1, 0, 2]
    assert order("b", "10", "9") == [1, 2, 0]


def vars_of(sensors: Sensors) -> dict[str, Any]:
    return {field.name: getattr(sensors, field.name) for field in dataclasses.fields(sensors)}


def test_operations_are_those_of_all_sensors_together(toy: Paper, own_folder: Path) -> None:
    found = reproduce(toy, "cost", out="r")
    small, graph = found.items[0]["rows"]

    def step(inputs: int, hidden: int) -> int:
        return 3 * hidden * (inputs + hidden) + 13 * hidden

    assert small["per_sensor"] == 24 * step(2, 100) + 12 * 100
    assert graph["per_sensor"] == 12 * (step(2, 64) + step(2, 128) + 128)
    assert small["ours"] == pytest.approx(10 * small["per_sensor"] / 1e9)
    assert small["difference"] == pytest.approx(small["ours"] - 0.01)
    assert (graph["printed"], graph["difference"]) == (None, None)
    for word in ("small", "graph", "printed"):
        assert word in words_in(own_folder / "r/cost.svg")
    (table,) = found.tables()
    assert cells(table)[1][5:] == ["-", "-"]


# ---- the paper ---------------------------------------------------------------------------------------------


def test_the_operations_of_table_8_are_the_printed_ones() -> None:
    rows = reproduce("cnfgnn", "table8", out="r").items[0]["rows"]
    assert [row["printed"] for row in rows] == [0.159, 1.821, 0.162]
    for row in rows:
        assert row["ours"] == pytest.approx(row["printed"], abs=5e-4)


@pytest.mark.parametrize(
    ("name", "label", "other", "percent"),
    [
        ("table7", "CNFGNN", "GRU central, 63K", -2.07),  # 11.487 to 11.730
        ("table7-metr_la_20", "CNFGNN", "SL", -5.74),  # 11.487 to 12.186
        ("table7-pems_bay_67", "CNFGNN", "GRU + FedAvg, 63K", -15.29),  # 3.822 to 4.512
        ("table7-pems_bay", "CNFGNN", "GRU + GN central", 0.16),  # 3.822 to 3.816
        ("table9", "CNFGNN 5", "GRU + FedAvg 5", 14.87),  # 13.931 to 12.128
        ("table9-pems_bay_67", "CNFGNN 90", "GRU + FedAvg 90", -18.99),  # 3.942 to 4.866
    ],
)
def test_percentages_of_cnfgnn_against_the_others_follow_from_the_printed_errors(
    name: str, label: str, other: str, percent: float
) -> None:
    (row,) = (row for row in CNFGNN.by_name[name].rows if row.label == label)
    printed = {relative.to: relative.printed for relative in row.relative}
    assert printed[other] == {"rmse_as_read": percent}
    is_whole = name in ("table7-pems_bay", "table9-pems_bay")
    assert bool(row.printed) == is_whole, "errors are printed of whole networks only"


def test_printed_bytes_of_the_strategies_are_those_of_the_formulas() -> None:
    """With the paper's round numbers of weights, and its printed rounds; GB of 2^30 bytes."""
    methods = {
        "CNFGNN": "at_fedavg", "SL": "sl", "SL + FedAvg": "sl_fedavg", "AT without FedAvg": "at",
        "GRU + FMTL, 63K": "gru_fmtl", "GRU + FMTL, 727K": "gru_fmtl",
    }  # fmt: skip
    items, count = CNFGNN.by_name, 0
    for base, clients, edges, windows in (("metr_la", 207, 1515, 23974), ("pems_bay", 325, 2369, 36465)):
        item = items[f"table10-{base}"]
        for row in item.rows:
            if "bytes_to_best" not in row.printed:
                continue
            weights = 1000 * {"GRU + FMTL, 63K": 63, "GRU + FMTL, 727K": 727}.get(row.label, 64)
            rounds = int(row.printed["best_round"].mean)
            numbers = training_numbers(
                methods[row.label], clients=clients, weights=weights, windows=windows, edges=edges,
                server_rounds=row.settings.get("server_rounds", 1),
            )  # fmt: skip
            expected = 4 * rounds * numbers / item.divided_by["bytes_to_best"]
            assert expected == pytest.approx(row.printed["bytes_to_best"].mean, rel=2e-5), row.label
            count += 1
    assert count == 12


def test_the_short_version_of_cnfgnn_shows_every_kind_without_a_file(
    own_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAPHFED_DATA", raising=False)
    for item in ("fig2", "figA1", "figA2"):
        assert main(["reproduce", "cnfgnn", item, "--quick", "--out", "r", "--json", "--no-progress"]) == 0
        content = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert "(quick: on roads)" in content["items"][-1]["title"]
    assert main(["reproduce", "cnfgnn", "fig2", "--data", "metr_la", "--out", "s"]) == 2
    assert "needs data set 'metr_la'" in capsys.readouterr().err


def test_the_visible_part_of_los_angeles_has_so_many_sensors_and_edges(real_data: Path) -> None:
    """1 515 is the number of directed edges in the paper's Table 1."""
    (item,) = reproduce("cnfgnn", "fig2", data_dir=real_data, out="r").items
    assert [row["visible_sensors"] for row in item["rows"]] == [
        round(p * 207) for p in (0.05, 0.25, 0.5, 0.75, 0.9)
    ]
    assert {row["edges"] for row in item["rows"]} == {1515}
