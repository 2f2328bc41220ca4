"""Items of a recipe on several data sets, curves by round, and the kinds on sensors that train nothing."""

import json
import xml.etree.ElementTree as ET
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
from graphfed.reproductions.figures import metric_of
from graphfed.reproductions.recipe import Relative, read_recipe
from graphfed.reproductions.reproduce import Reproduction, reproduce
from graphfed.reproductions.sensors import BINS, _bins, first_by_id
from graphfed.runs.run import Result

RECIPE = """\
title: A toy
authors: Nobody
venue: nowhere
items:
  table:
    title: Two methods
    metric: accuracy
    source: made up
    notes: [of all data]
    seeds: [0, 1]
    options: {clients: 3, rounds: 2}
    set: {hidden: 4}
    quick: {seeds: [0], rounds: 1}
    rows:
      - {label: averaging, method: fedavg, printed: {accuracy: {mean: 50.0}}}
      - {label: one hop, method: fedgcn, set: {hops: 1}, relative: {to: averaging, printed: {accuracy: 3}}}
      - {label: adam, method: fedavg, set: {lr: 0.01}}
    data:
      digits:
        notes: [of digits]
      social:
        metric: [accuracy, macro_f1]
        seeds: [3]
        notes: of social
        options: {rounds: 3, split: "random:0.5,0.25,0.25"}
        set: {data.num_nodes: 200, hidden: 5}
        rows:
          one hop: {seeds: [3, 4], set: {dropout: 0.0}, printed: {accuracy: {mean: 70.0}}, relative: []}
          adam: null
  other:
    title: Other metrics
    source: made up
    metric: [best_round, bytes_to_best]
    divided_by: {bytes_to_best: 1000}
    called: {bytes_to_best: kB to the best round}
    runs_of: table
    rows: [one hop, averaging]
  curves:
    kind: curves
    title: By round
    source: made up
    metric: accuracy
    runs_of: table
  seen:
    kind: visible_sensors
    title: What is seen
    source: made up
    set: {data.weeks: 1, data.sensors: 12}
    rows:
      - {label: a third, options: {split: "inductive:0.33"}}
      - {label: all}
    data: {roads: {}}
  readings:
    kind: histograms
    title: Readings
    source: made up
    sensors: 5
    options: {data: roads}
    set: {data.weeks: 1, data.sensors: 12}
    rows: [{label: roads}]
  cost:
    kind: operations
    title: Operations
    source: made up
    sensors: 10
    rows:
      - {label: small, method: gru_fedavg, set: {hidden: 100}, printed: 0.01}
      - {label: graph, method: cnfgnn}
"""


@pytest.fixture
def toy(own_folder: Path) -> str:
    (own_folder / "toy.yaml").write_text(RECIPE)
    return "toy.yaml"


def cells(table: Table) -> list[list[str]]:
    """A table's lines."""
    columns = ([str(cell) for cell in column.cells] for column in table.columns)
    return [list(line) for line in zip(*columns, strict=True)]


def words_in(path: Path) -> str:
    return "".join(ET.parse(path).getroot().itertext())


# ---- the same item on other data ---------------------------------------------------------------------------


def test_every_data_set_is_an_item_of_its_own_with_what_it_says_otherwise(toy: str) -> None:
    items = read_recipe(toy).items
    assert [*items] == [
        "table", "table-social", "other", "other-social", "curves", "curves-social", "seen", "readings",
        "cost",
    ]  # fmt: skip
    first, other = items["table"], items["table-social"]
    assert (first.data, other.data) == (["digits"], ["social"])
    assert (first.base, first.of_data, other.base, other.of_data) == ("table", "digits", "table", "social")
    assert first.notes == ("of all data", "of digits")
    assert other.notes == ("of all data", "of social")
    assert [row.label for row in first.rows] == ["averaging", "one hop", "adam"]
    averaging, hop = other.rows
    split = "random:0.5,0.25,0.25"
    assert averaging.options == {"clients": 3, "rounds": 3, "data": "social", "split": split}
    assert averaging.settings == {"preset": "paper", "hidden": 5, "data.num_nodes": 200}
    assert hop.settings == {"preset": "paper", "hidden": 5, "data.num_nodes": 200, "hops": 1, "dropout": 0.0}
    assert (averaging.seeds, hop.seeds, first.rows[0].seeds) == ((3,), (3, 4), (0, 1))
    assert other.metrics == ("accuracy", "macro_f1")
    assert (first.rows[1].relative, hop.relative) == ((Relative("averaging", {"accuracy": 3}),), ())
    assert hop.printed["accuracy"].mean == 70
    assert items["other-social"].runs_in == "table-social"


def test_without_a_choice_the_first_data_set_runs_and_data_chooses_another(
    toy: str, own_folder: Path
) -> None:
    assert [item["item"] for item in reproduce(toy, "table", quick=True, out="q").items] == ["table"]
    found = reproduce(toy, "table", data="social", out="r")
    (item,) = found.items
    assert (item["item"], item["data"], item["plot"]) == ("table-social", "social", "table-social.svg")
    assert {path.name for path in (own_folder / "r").iterdir() if path.is_dir()} == {"table-social"}
    assert Result.read(own_folder / "r/table-social/one hop-seed4").dataset == "social"
    assert reproduce(toy, "table-social", out="r").items == found.items
    again = graphfed.resume("r")
    assert isinstance(again, Reproduction)
    assert again.items == found.items
    every = reproduce(toy, data="social", out="r").items
    assert [item["item"] for item in every] == ["table-social", "other-social", "curves-social"]
    written = json.loads((own_folder / "r/reproduce.json").read_text())["items"]
    assert [item["item"] for item in written] == ["table-social", "other-social", "curves-social"]


@pytest.mark.parametrize(
    ("item", "data", "told"),
    [
        ("table", "socail", "no data set 'socail' for toy.yaml/table; did you mean 'social'"),
        (None, "cora", "no data set 'cora' for toy.yaml"),
        ("cost", "digits", "it has no choice of data; leave --data out"),
    ],
)
def test_data_that_the_recipe_does_not_name_is_refused(
    item: str | None, data: str, told: str, toy: str, own_folder: Path
) -> None:
    with pytest.raises(InputError) as refusal:
        reproduce(toy, item, data=data, out="r")
    assert told in str(refusal.value)
    assert not (own_folder / "r").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("options: {clients: 3,", "options: {data: cora, clients: 3,"), "data is given twice"),
        (("data: {roads: {}}", "data: {}"), "names no data set"),
        (("data: {roads: {}}", "data: roads"), "seen, data must be a mapping"),
        (("data: {roads: {}}", "data: {../roads: {}}"), "cannot name a folder"),
        (("data: {roads: {}}", "data: {roads: {metric: rmse}}"), "unknown key 'metric'"),
        (("seeds: [3]\n", "seed: [3]\n"), "did you mean 'seeds'"),
        (("          adam: null", "          adm: null"), "no row 'adm' to change; did you mean 'adam'"),
        (("          adam: null", "          adam: 3"), "table-social, adam must be a mapping"),
        (("          adam: null", "          averaging: null"), "relative to 'averaging'"),
        (("set: {dropout: 0.0}", "set: 0"), "one hop, set must be a mapping"),
        (("  cost:", "  table-social:"), "two items 'table-social'"),
        (("rows: [one hop, averaging]", "rows: [two hops]"), "no row 'two hops' among the runs"),
        (("rows: [one hop, averaging]", "rows: 3"), "rows must be a list of labels"),
        (("rows: [one hop, averaging]", "rows: [one hop, one hop]"), "two rows 'one hop'"),
        (("divided_by: {bytes_to_best", "divided_by: {bytes_to_bst"), "did you mean 'bytes_to_best'"),
        (("bytes_to_best: 1000", "bytes_to_best: 0"), "must be above 0"),
        (("kind: curves", "kind: curvs"), "did you mean 'curves'"),
        (("kind: curves", "kind: [curves]"), "unknown kind"),
        (("metric: accuracy\n    runs_of", "metric: [accuracy, macro_f1]\n    runs_of"), "of one metric"),
        (("    runs_of: table\n  seen", "    runs_of: seen\n  seen"), "names no item with runs of its own"),
        (("sensors: 5\n", "sensors: 0\n"), "sensors must be a whole number"),
        (("    sensors: 5\n", ""), "has no 'sensors'"),
        (("mean: 50.0}}", "mean: 50.0}}, x: 1"), "its item no x"),
    ],
)
def test_what_is_wrong_in_a_recipe_is_told_in_one_line(
    change: tuple[str, str], told: str, toy: str, own_folder: Path
) -> None:
    text = RECIPE
    if "averaging: null" in change[1]:  # one hop is compared with it again
        text = text.replace(", relative: []", "")
    assert change[0] in text
    (own_folder / "toy.yaml").write_text(text.replace(*change, 1))
    with pytest.raises(InputError) as refusal:
        read_recipe(toy)
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


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


def test_curves_are_the_validation_part_by_round_over_the_seeds(toy: str, own_folder: Path) -> None:
    other, curves = (reproduce(toy, name, out="r").items[0] for name in ("other", "curves"))
    assert [row["label"] for row in other["rows"]] == ["one hop", "averaging"]
    assert [row["label"] for row in curves["rows"]] == ["averaging", "one hop", "adam"]
    results = [Result.read(own_folder / f"r/table/averaging-seed{seed}") for seed in (0, 1)]
    told = other["rows"][1]["ours"]
    assert told["best_round"]["values"] == [result.best_round for result in results]
    kilobytes = [metric_of(result, "bytes_to_best") / 1000 for result in results]
    assert told["bytes_to_best"]["values"] == kilobytes
    row = curves["rows"][0]
    assert row["x"] == [1, 2]
    best = [100 * result.val["accuracy"] for result in results]
    assert row["chosen"]["values"] == best
    assert [values[r.best_round - 1] for values, r in zip(row["values"], results, strict=True)] == best
    assert row["mean"] == [pytest.approx(np.mean(at)) for at in zip(*row["values"], strict=True)]
    assert row["std"] == [pytest.approx(np.std(at, ddof=1)) for at in zip(*row["values"], strict=True)]
    for word in ("averaging", "one hop", "round", "validation accuracy (%)"):
        assert word in words_in(own_folder / "r/curves.svg")
    (table,) = reproduce(toy, "curves", out="r").tables()
    assert table.columns[1].header == "validation accuracy (%): best"
    spread = f"{np.mean(best):.2f} ± {np.std(best, ddof=1):.2f}"
    assert cells(table)[0][:2] == ["averaging", spread]


def test_curves_end_where_the_first_run_does_and_need_a_metric_of_the_validation_part(
    toy: str, own_folder: Path
) -> None:
    reproduce(toy, "table", out="r")
    path = own_folder / "r/table/averaging-seed1/metrics.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    (item,) = reproduce(toy, "curves", out="r").items
    assert [row["x"] for row in item["rows"]] == [[1], [1, 2], [1, 2]]
    (own_folder / "toy.yaml").write_text(
        RECIPE.replace("metric: accuracy\n    runs_of", "metric: rounds\n    runs_of")
    )
    with pytest.raises(InputError, match="no metric 'rounds' of the validation part"):
        reproduce(toy, "curves", out="r")


# ---- sensors -----------------------------------------------------------------------------------------------


def test_the_sensors_that_are_seen_are_the_western_ones_with_the_edges_among_them(
    toy: str, own_folder: Path
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


def test_histograms_count_every_reading_that_is_there_once(toy: str, own_folder: Path) -> None:
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
    means = [f"{told(row['mean']):.2f}" for told in (min, np.mean, max)]
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
    import dataclasses

    return {field.name: getattr(sensors, field.name) for field in dataclasses.fields(sensors)}


def test_operations_are_those_of_all_sensors_together(toy: str, own_folder: Path) -> None:
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
    (own_folder / "toy.yaml").write_text(RECIPE.replace("method: cnfgnn}", "method: last_value}"))
    with pytest.raises(InputError, match="last_value has no recurrent network"):
        reproduce(toy, "cost", out="s")
    assert not (own_folder / "s").exists()


# ---- the paper ---------------------------------------------------------------------------------------------


def test_the_operations_of_table_8_are_the_printed_ones() -> None:
    rows = reproduce("cnfgnn", "table8", out="r").items[0]["rows"]
    assert [row["printed"] for row in rows] == [0.159, 1.821, 0.162]
    for row in rows:
        assert row["ours"] == pytest.approx(row["printed"], abs=5e-4)


def test_percentages_of_cnfgnn_against_the_others_follow_from_the_printed_errors() -> None:
    items = read_recipe("cnfgnn").items
    for base, subsets in (("metr_la", ["", "-metr_la_20"]), ("pems_bay", ["-pems_bay_67"])):
        for table, own in (("table7", "CNFGNN"), ("table9", "CNFGNN 50")):
            whole = {row.label: row for row in items[f"{table}-{base}"].rows}
            for name in (*subsets, f"-{base}"):
                (row,) = (row for row in items[table + name].rows if row.label == own)
                printed = {r.to: r.printed["rmse_as_read"] for r in row.relative if r.printed}
                assert len(printed) == (12 if table == "table7" else 1)
                for label, percent in printed.items():
                    ours, theirs = (whole[n].printed["rmse_as_read"].mean for n in (own, label))
                    assert percent == pytest.approx(100 * (ours / theirs - 1), abs=0.005)
                assert bool(row.printed) == (name == f"-{base}"), "errors are printed of whole networks only"


def test_printed_bytes_of_the_strategies_are_those_of_the_formulas() -> None:
    """With the paper's round numbers of weights, and its printed rounds; GB of 2^30 bytes."""
    methods = {
        "CNFGNN": "at_fedavg", "SL": "sl", "SL + FedAvg": "sl_fedavg", "AT without FedAvg": "at",
        "GRU + FMTL, 63K": "gru_fmtl", "GRU + FMTL, 727K": "gru_fmtl",
    }  # fmt: skip
    items, count = read_recipe("cnfgnn").items, 0
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
            told = 4 * rounds * numbers / item.divided_by["bytes_to_best"]
            assert told == pytest.approx(row.printed["bytes_to_best"].mean, rel=2e-5), row.label
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
