"""The report on forecasting says what the run's files say: errors in their unit, sensors, bytes by round."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_rel
from test_report import Page, kept_page, page_of

import graphfed
from graphfed import plugins
from graphfed.data.sensors.roads import make_roads
from graphfed.drawing.canvas import WIDTH, svg_element
from graphfed.drawing.networks import Network, kilometres
from graphfed.errors import InputError
from graphfed.methods.references import REFERENCES
from graphfed.methods.tasks import FORECASTING
from graphfed.plugins import load_plugin
from graphfed.report.figures import Errors, unit_of
from graphfed.report.forecast_charts import forecasts_against_truth
from graphfed.report.forecast_table import (
    SensorForecasts,
    chosen_sensors,
    read_forecasts,
    read_sensor_errors,
    span_to_draw,
)
from graphfed.report.forecasts import bytes_by_round
from graphfed.report.page import write_card, write_report
from graphfed.report.read import read_subject
from graphfed.runs.progress import human_bytes
from graphfed.studies.paired import correct_by_holm

DATA: dict[str, Any] = {"data": "roads", "settings": {"data.sensors": 12, "data.weeks": 1}}


@pytest.fixture(scope="module", autouse=True)
def toy() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_MODULES", dict(plugins._MODULES))
        load_plugin("blend_toy")
        # The others are trained for minutes.
        patch.setitem(REFERENCES, FORECASTING, ("last_value",))
        yield


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six of twelve sensors take part in training."""
    folder = tmp_path_factory.mktemp("forecasts") / "table"
    rows = ["blend_toy", {"method": "blend_toy", "label": "slow", "settings": {"lr": 0.0002}}, "last_value"]
    graphfed.compare(rows, **DATA, split="inductive:0.5", seeds=(0, 1), out=folder)
    return folder


@pytest.fixture
def run(compared: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compared / "blend_toy-seed0", tmp_path / "run"))


def content(path: Path) -> Any:
    return json.loads(path.read_text())


def changed(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**content(path), **values}))


def titles(page: Page) -> list[str | None]:
    return [attributes["aria-label"] for tag, attributes in page.tags if tag == "svg"]


def chart(text: str, title: str) -> str:
    """The element of the chart with this title."""
    return next(
        svg for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL) if f'aria-label="{title}"' in svg
    )


def table_of(text: str) -> dict[str, list[str]]:
    """The cells of the comparison's table by the row's label, with their tags."""
    body = text[text.index('<section id="result">') :].split("</table>", maxsplit=1)[0].split("<tbody>")[1]
    rows = {}
    for row in re.findall(r"<tr>(.*?)</tr>", body):
        label = re.sub(r"<br>.*|<[^>]+>", "", re.findall(r"<th>(.*?)</th>", row)[0])
        rows[label] = re.findall(r"<td[^>]*>(.*?)</td>", row)
    return rows


# ---- figures -----------------------------------------------------------------------------------------------


def test_a_runs_errors_are_reported_in_their_unit_with_and_without_missing_readings(compared: Path) -> None:
    run = compared / "blend_toy-seed0"
    test = content(run / "result.json")["test"]
    assert test["rmse"] != test["rmse_as_read"]
    page = kept_page(run)[1]
    first = page.text[page.text.index("blend_toy forecasts") :].partition("\n")[0]
    assert f"a test RMSE of {test['rmse']:.3f} miles per hour ({test['rmse_as_read']:.3f} as read)" in first
    assert "speed, 5 to 60 minutes ahead" in first
    missing = 100 * np.mean(content(run / "overview.json")["sensors"]["missing"])
    of_test = 100 * by_hand(run)[1]
    described = f"{missing:.1f} % of the readings are missing ({of_test:.1f} % of those in the test part)."
    assert described in page.text
    assert "6 of the 12 sensors take part in training and validation; all sensors are tested." in page.text
    assert "%" not in first, "an error in a unit is no percentage"
    val = content(run / "result.json")["val"]
    assert f"MAPE, %{val['mape']:.3f}{test['mape']:.3f}" in page.text
    assert f"RMSE as read, miles per hour{val['rmse_as_read']:.3f}{test['rmse_as_read']:.3f}" in page.text


def test_without_missing_readings_there_is_one_of_each_error_and_the_note_is_shown(tmp_path: Path) -> None:
    roads = make_roads(sensors=4, weeks=1)
    filled = np.where(roads.missing, np.float32(50), roads.readings)
    note = "missing readings filled with <b>fifty</b>"
    sensors = replace(roads, readings=filled, missing=np.zeros_like(roads.missing), note=note)
    graphfed.run("last_value", data=sensors, out=tmp_path / "run")
    text, page = page_of(tmp_path / "run")
    assert f"Note on the data: {note}." in page.text
    assert "<b>" not in text
    assert "RMSE as read" not in page.text
    assert "readings are missing" not in page.text


def test_runs_trained_as_read_are_scored_as_read(tmp_path: Path) -> None:
    as_read = {**DATA["settings"], "missing": "as_read"}
    graphfed.run("last_value", data="roads", settings=as_read, out=tmp_path / "run")
    test = content(tmp_path / "run/result.json")["test"]
    page = page_of(tmp_path / "run")[1]
    assert f"a test RMSE as read of {test['rmse_as_read']:.3f} miles per hour on roads" in page.text
    assert "missing readings in training and selection (missing=as_read): last_value." in page.text


def test_the_smallest_error_of_every_column_is_marked_and_no_other(compared: Path) -> None:
    rows = content(compared / "comparison.json")["rows"]
    cells = table_of(kept_page(compared)[0])
    for i, metric in enumerate(("rmse", "mae", "mape", "rmse_as_read")):
        smallest = min(row["test"][metric]["mean"] for row in rows)
        for row in rows:
            described = row["test"][metric]
            cell = cells[row["label"]][i]
            assert f"{described['mean']:.3f} ± {described['std']:.3f}" in cell
            assert ("<strong>" in cell) == (described["mean"] == smallest)


def test_the_headline_names_the_smallest_error_among_rows_that_work_together(compared: Path) -> None:
    rows = {row["label"]: row for row in content(compared / "comparison.json")["rows"]}
    toys = sorted(("blend_toy", "slow"), key=lambda label: rows[label]["test"]["rmse"]["mean"])
    best, other = rows[toys[0]]["test"]["rmse"], rows["last_value"]["test"]["rmse"]
    assert toys[0] == "blend_toy"
    page = kept_page(compared)[1]
    assert (
        f"mean test RMSE: {best['mean']:.3f} ± {best['std']:.3f} miles per hour. The other rows: "
        in page.text
    )
    assert f": last_value {other['mean']:.3f} ± {other['std']:.3f}. Rows with a smaller error" in page.text
    assert other["mean"] < best["mean"]
    assert "error in which clients do not train together: last_value." in page.text


def test_differences_are_to_the_last_value_with_the_paired_tests_p(compared: Path) -> None:
    text, _ = kept_page(compared)
    rows = {row["label"]: row for row in content(compared / "comparison.json")["rows"]}
    second = rows["last_value"]["test"]["rmse"]["values"]
    values = {label: rows[label]["test"]["rmse"]["values"] for label in ("blend_toy", "slow")}
    corrected = correct_by_holm([float(ttest_rel(first, second).pvalue) for first in values.values()])
    for (label, first), p in zip(values.items(), corrected, strict=True):
        described = f"p = {p:.3f}" if p >= 0.001 else "p &lt; 0.001"
        cell = table_of(text)[label][4]
        assert cell.startswith(f"{np.mean(first) - np.mean(second):+.3f} (")
        assert f"; {described}, Wilcoxon = " in cell
    assert table_of(text)["last_value"][4] == "-"
    assert "RMSE minus that of last_value" in text
    assert "Errors are in miles per hour and taken over all sensors, windows and steps ahead" in text


@given(value=st.floats(1e-3, 1e6, allow_nan=False), scale=st.floats(1, 1e3, allow_nan=False))
def test_an_error_keeps_four_digits_of_the_smallest_in_its_column(value: float, scale: float) -> None:
    errors = Errors("rmse", "", False, {"rmse": value})
    for described in (value, value * scale):
        shown = float(errors.cell("rmse", described).replace(",", ""))
        assert shown == pytest.approx(described, rel=0.0006, abs=1e-6)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("speed (miles per hour)", ("speed", "miles per hour")),
        ("speed", ("speed", "")),
        ("flow (all lanes) (vehicles)", ("flow (all lanes)", "vehicles")),
        ("(kW)", ("(kW)", "")),
        ("", ("", "")),
    ],
)
def test_the_unit_is_what_stands_in_the_last_brackets(quantity: str, expected: tuple[str, str]) -> None:
    assert unit_of(quantity) == expected


# ---- sensors -----------------------------------------------------------------------------------------------


def by_hand(folder: Path) -> tuple[dict[str, float], float]:
    """Each sensor's test RMSE, and the share of truths that are missing, a reading at a time."""
    squares: dict[str, list[float]] = {}
    missing = total = 0
    for row in pq.read_table(folder / "predictions.parquet").to_pylist():
        if row["part"] != "test":
            continue
        for h in range(1, 13):
            total += 1
            if row[f"truth_{h}"] is None:
                missing += 1
            else:
                error = row[f"forecast_{h}"] - row[f"truth_{h}"]
                squares.setdefault(row["sensor"], []).append(error * error)
    return {sensor: math.sqrt(math.fsum(of) / len(of)) for sensor, of in squares.items()}, missing / total


def test_errors_by_sensor_are_those_of_the_predictions_and_make_up_the_result(compared: Path) -> None:
    run = compared / "blend_toy-seed0"
    described, (expected, missing) = content(run / "overview.json"), by_hand(run)
    ids = described["sensors"]["ids"]
    found = read_sensor_errors(run / "predictions.parquet", ids, 12)
    np.testing.assert_allclose(found.rmse, [expected[name] for name in ids], rtol=1e-9)
    assert found.missing == pytest.approx(missing)
    chosen = chosen_sensors(found.rmse)
    order = sorted(ids, key=expected.__getitem__)
    assert [ids[s] for s in chosen.values()] == [order[-1], order[6], order[0]]
    page = kept_page(run)[1]
    for words, sensor in chosen.items():
        assert f"{words}: sensor {ids[sensor]}, RMSE {found.rmse[sensor]:.3f}" in page.text


def test_the_errors_do_not_depend_on_how_much_is_read_at_a_time(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = content(run / "overview.json")["sensors"]["ids"]
    whole = read_sensor_errors(run / "predictions.parquet", ids, 12)
    monkeypatch.setattr("graphfed.report.forecast_table.ROWS", 97)
    np.testing.assert_allclose(read_sensor_errors(run / "predictions.parquet", ids, 12).rmse, whole.rmse)


def test_a_sensor_that_read_nothing_in_the_test_part_has_no_error_and_is_marked(run: Path) -> None:
    import pyarrow as pa

    path = run / "predictions.parquet"
    table = pq.read_table(path)
    silent = np.array(table["sensor"].to_pylist()) == "03"
    for i, name in enumerate(table.column_names):
        if name.startswith("truth_"):
            values = pa.array(table[name].to_numpy(), mask=silent | table[name].is_null().to_numpy())
            table = table.set_column(i, name, values)
    pq.write_table(table, path)
    ids = content(run / "overview.json")["sensors"]["ids"]
    assert np.flatnonzero(np.isnan(read_sensor_errors(path, ids, 12).rmse)).tolist() == [ids.index("03")]
    assert "no reading to test" in chart(page_of(run)[0], "map of sensors by error")


def test_forecasts_are_drawn_at_the_times_that_they_are_for(run: Path) -> None:
    """What was forecast h steps before a reading, and the reading itself, from the sensors' own data."""
    sensors = make_roads(sensors=12, weeks=1)
    one = read_forecasts(run / "predictions.parquet", "07", 12)
    start = datetime.fromisoformat(sensors.start)
    for h in (1, 6, 12):
        time, forecast, truth = one.at(h, 5)
        for w in (0, 100, len(time) - 1):
            step = (time[w].item() - start) // timedelta(minutes=5)
            inputs = sensors.readings[step - h - 11 : step - h + 1, 7]
            low, high = sorted((inputs[-1], inputs.mean()))
            assert low - 1 <= forecast[w] <= high + 1, "a mixture of the last input and their mean"
            read = np.nan if sensors.missing[step, 7] else sensors.readings[step, 7]
            assert truth[w] == read or (np.isnan(truth[w]) and np.isnan(read))


def windows_of(truth: np.ndarray, step_minutes: int, start: str = "2024-03-01T00:00:00") -> SensorForecasts:
    """Windows one step ahead whose targets are `truth`, the first of them at `start`."""
    time = np.datetime64(start, "s") + np.arange(-1, len(truth) - 1) * np.timedelta64(step_minutes, "m")
    column = truth.astype(np.float32)[:, None]
    return SensorForecasts("a", time, column, column)


def test_a_gap_breaks_the_line_of_readings_and_a_lone_reading_is_a_dot() -> None:
    def pieces(truth: np.ndarray) -> tuple[int, int]:
        """How many strokes the first line has, and how many dots there are."""
        one = replace(windows_of(truth, 30), forecast=np.ones((len(truth), 1), np.float32))
        span = (np.datetime64("2024-03-01T00:00:00", "s"), np.datetime64("2024-03-02T00:00:00", "s"))
        drawn = svg_element("a", [[forecasts_against_truth("a", one, span, 30, "speed")]])
        lines = re.findall(r'<path d="([^"]*)"[^>]*stroke: var\(--ink\); stroke-width: 1.6', drawn)
        dots = re.findall(r"<g clip-path[^>]*>\s*(<use [^>]*fill: var\(--ink\)[^>]*/>\s*)+</g>", drawn)
        return lines[0].count("M"), len(re.findall("<use", "".join(dots)))

    truth = np.sin(np.arange(48.0))
    assert pieces(truth) == (1, 0)
    truth[10:14] = np.nan
    assert pieces(truth) == (2, 0)
    truth[[20, 22]] = np.nan
    assert pieces(truth)[1] == 1


@given(
    step=st.sampled_from([1, 5, 15, 30, 60, 180, 1440]),
    late=st.floats(0, 1, exclude_max=True),
    length=st.floats(1, 3),
    seed=st.integers(0, 5),
)
def test_the_drawn_span_is_the_whole_one_that_varies_most(
    step: int, late: float, length: float, seed: int
) -> None:
    """late: by which share of a day the test part begins after midnight; length: in spans."""
    days = -(-48 * step // 1440)
    each = days * 1440 // step
    first = datetime(2024, 3, 1) + timedelta(minutes=step) * int(late * 1440 / step)
    rng = np.random.default_rng(seed)
    truth = rng.normal(0, rng.uniform(1, 3, int(length * each)).round())
    variances = {}
    for begin in range(0, 4 * days, days):
        start = datetime(2024, 3, 1) + timedelta(days=begin)
        inside = [
            truth[w]
            for w in range(len(truth))
            if start <= first + w * timedelta(minutes=step) < start + timedelta(days=days)
        ]
        if len(inside) == each:
            variances[start] = np.var(inside)
    start, end = (bound.item() for bound in span_to_draw([windows_of(truth, step, first.isoformat())], step))
    assert end - start == timedelta(days=days)
    assert start == (max(variances, key=variances.__getitem__) if variances else first)


def test_no_span_without_a_reading_is_drawn_if_another_has_one() -> None:
    day = 288
    truth = np.full(3 * day, np.nan)
    truth[2 * day :] = 60.0  # constant, so its variance is that of a day without readings
    assert str(span_to_draw([windows_of(truth, 5, "2024-03-01T00:00:00")], 5)[0]) == "2024-03-03T00:00:00"
    # Only the part of a day at the end has readings.
    truth = np.append(np.full(2 * day, np.nan), np.arange(30.0))
    assert str(span_to_draw([windows_of(truth, 5, "2024-03-01T11:00:00")], 5)[0]) == "2024-03-03T11:00:00"
    # A day on which both sensors have readings is preferred to one on which one of them varies more.
    one, other = np.tile(np.arange(288.0), 2), np.append(np.full(day, np.nan), np.ones(day))
    one[day:] /= 100
    both = [windows_of(values, 5, "2024-03-01T00:00:00") for values in (one, other)]
    assert str(span_to_draw(both, 5)[0]) == "2024-03-02T00:00:00"


def test_a_test_part_without_a_whole_day_is_drawn_from_its_start() -> None:
    start, end = span_to_draw([windows_of(np.arange(30.0), 5, "2024-03-01T11:00:00")], 5)
    assert (str(start), str(end)) == ("2024-03-01T11:00:00", "2024-03-02T11:00:00")


def test_one_sensor_and_one_step_ahead_are_enough_for_a_page(tmp_path: Path) -> None:
    smallest = {"data.sensors": 1, "data.weeks": 1, "horizon": 1, "lags": 2}
    graphfed.run("last_value", data="roads", settings=smallest, out=tmp_path / "run")
    page = page_of(tmp_path / "run")[1]
    assert "forecasts speed, 5 minutes ahead, with" in page.text
    assert "worst: sensor 0" in page.text
    assert "best: sensor" not in page.text


# ---- the page ----------------------------------------------------------------------------------------------


def test_a_comparison_of_forecasts_has_every_chart_and_its_figures(compared: Path) -> None:
    text, page = kept_page(compared)
    assert titles(page) == [
        "forecasts against readings", "map of sensors by error", "error by minutes ahead", "RMSE by round",
        "test RMSE against bytes", "bytes by link", "bytes by round",
    ]  # fmt: skip
    assert "not trained on" in chart(text, "map of sensors by error")
    for title in ("error by minutes ahead", "RMSE by round", "test RMSE against bytes"):
        assert {"blend_toy", "slow", "last_value"} <= set(re.findall(r">([^<>]+)</text>", chart(text, title)))
    assert "Test forecasts (blend_toy, first seed) and the readings at the same times" in page.text
    assert "accuracy" not in page.text.lower()
    assert ", points" not in page.text


def test_a_run_of_forecasting_has_every_chart_that_it_can_have(compared: Path) -> None:
    alone = ["forecasts against readings", "map of sensors by error", "error by minutes ahead"]
    sent = ["RMSE by round", "bytes by link", "bytes by transfer", "bytes by round"]
    assert titles(kept_page(compared / "blend_toy-seed0")[1]) == [*alone, *sent]
    assert titles(kept_page(compared / "last_value-seed0")[1]) == alone


def test_the_bytes_of_the_rounds_add_up_to_those_of_the_result(compared: Path) -> None:
    described = content(compared / "blend_toy-seed0/result.json")["bytes"]
    lines = bytes_by_round(read_subject([compared / "blend_toy-seed0"]))
    assert {name: line[12] for name, line in lines.items()} == {
        "client to server": described["up"],
        "server to client": described["down"],
    }
    assert lines["server to client"][6] * 2 == described["down"], "as many in every round"
    together = bytes_by_round(read_subject([compared]))
    assert set(together) == {"blend_toy", "slow"}, "nothing is sent for last_value"
    history = [json.loads(x) for x in (compared / "blend_toy-seed0/metrics.jsonl").read_text().splitlines()]
    assert [line["bytes"] for line in history] == together["blend_toy"][1:]
    assert human_bytes(described["total"]) in kept_page(compared / "blend_toy-seed0")[1].text


def test_sensors_whose_places_are_not_known_have_bars_instead_of_a_map(run: Path) -> None:
    overview = content(run / "overview.json")
    overview["sensors"]["position"] = None
    changed(run / "overview.json", **overview)
    text, page = page_of(run)
    assert "map of sensors by error" not in titles(page)
    drawn = chart(text, "error of every sensor")
    assert set(overview["sensors"]["ids"]) <= set(re.findall(r">([^<>]+)</text>", drawn))
    assert "not trained on" in drawn


@given(seed=st.integers(0, 10**6), count=st.integers(3, 200), size=st.floats(0.1, 1e3))
def test_words_on_a_map_touch_neither_sensors_nor_each_other(seed: int, count: int, size: float) -> None:
    """The words are as large as on the page, whatever the extent of the map."""
    place = size * np.random.default_rng(seed).random((count, 2))
    network = Network(place, [], [])
    found = network.free_places({"worst": 0, "median": 1, "best": 2})
    low, high = network._limits
    point = (high - low)[0] / (72 * (WIDTH - 0.7))
    boxes = [(middle, point * np.array([3.0 * len(words), 7.0])) for words, middle in found]
    for i, (middle, half) in enumerate(boxes):
        assert not (np.abs(place - middle) < half).all(1).any()
        for other, its_half in boxes[:i]:
            assert (np.abs(other - middle) >= half + its_half).any()


def test_a_map_in_degrees_is_drawn_in_kilometres() -> None:
    """A degree of longitude at 60 degrees north is half as long as one of latitude."""
    place = kilometres(np.array([[59.5, 10.0], [60.5, 12.0]]), True)
    np.testing.assert_allclose(place, [[-55.6, -55.6], [55.6, 55.6]], rtol=0.01)


def test_text_of_sensors_stays_text(run: Path) -> None:
    evil = "東京<script>$x_1$\"'&"
    overview = content(run / "overview.json")
    sensors = {**overview["sensors"], "ids": [f"{evil}{name}" for name in overview["sensors"]["ids"]]}
    described = {"quantity": f"speed (<b>{evil})", "note": f"<i>{evil}", "name": evil, "sensors": sensors}
    changed(run / "overview.json", **described)
    table = pq.read_table(run / "predictions.parquet")
    names = [f"{evil}{name}" for name in table["sensor"].to_pylist()]
    pq.write_table(table.set_column(0, "sensor", [names]), run / "predictions.parquet")
    text, page = page_of(run)
    assert not [tag for tag, _ in page.tags if tag in ("script", "b", "i")]
    assert f"<i>{evil}" in page.text
    assert f"sensor {evil}" in page.text
    assert "<script>" not in text
    card = write_card(run).read_text()
    assert "speed" in card


def test_the_card_states_errors_in_their_unit_and_what_is_trained(compared: Path) -> None:
    test = content(compared / "blend_toy-seed0/result.json")["test"]
    card = write_card(compared / "blend_toy-seed0").read_text()
    assert f"a test RMSE of {test['rmse']:.3f} miles per hour ({test['rmse_as_read']:.3f} as read)" in card
    assert "12 sensors of speed (miles per hour), 2016 steps of 5 minutes" in card
    assert "6 of the 12 sensors take part" in card
    for words in ("nodes", "classes", "accuracy"):
        assert words not in card.lower()
    assert "none: the method trains nothing" in write_card(compared / "last_value-seed0").read_text()


def test_a_folder_without_an_overview_has_the_errors_without_their_unit(run: Path) -> None:
    (run / "overview.json").unlink()
    rmse = content(run / "result.json")["test"]["rmse"]
    text, page = page_of(run)
    assert f"forecasts the readings, with a test RMSE of {rmse:.3f} (" in page.text
    assert "This folder has no overview.json" in page.text
    assert "forecasts against readings" not in text


@pytest.mark.parametrize("fault", ["text", "column", "sensor", "val only", "overview"])
def test_what_no_run_of_forecasting_writes_is_refused_and_no_report_written(fault: str, run: Path) -> None:
    path, named = run / "predictions.parquet", "predictions.parquet"
    table = pq.read_table(path)
    if fault == "text":
        path.write_text("{")
    elif fault == "column":
        pq.write_table(table.drop_columns(["truth_3"]), path)
    elif fault == "sensor":
        pq.write_table(table.set_column(0, "sensor", [["x", *table["sensor"].to_pylist()[1:]]]), path)
    elif fault == "val only":
        val = np.array(table["part"].to_pylist()) == "val"
        pq.write_table(table.filter(val), path)
    else:
        named = "overview.json"
        changed(run / named, **{})
        described = content(run / named)
        del described["windows"]
        (run / named).write_text(json.dumps(described))
    (run / "report.html").unlink(missing_ok=True)
    with pytest.raises(InputError, match=re.escape(named)):
        write_report([run])
    assert not (run / "report.html").exists()
