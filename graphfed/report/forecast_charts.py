"""Charts of forecasting as SVG elements of the page: forecasts against truth, errors by how far ahead and by
sensor, bytes by round.

Shapes: S sensors, n steps ahead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from graphfed.drawing.canvas import DASHES, INK, svg_element
from graphfed.drawing.charts import XY, Axis, Bars, Series
from graphfed.drawing.networks import Edges, Network, by_value, kilometres
from graphfed.report.charts import byte_axis, lines
from graphfed.report.figures import Errors
from graphfed.report.forecast_table import (
    MINUTES_PER_DAY,
    SensorErrors,
    SensorForecasts,
    chosen_sensors,
    read_forecasts,
    span_to_draw,
)
from graphfed.report.forecasts import ahead, bytes_by_round, sensors_of
from graphfed.report.read import Run, Subject
from graphfed.runs.overview_schema import SensorOverview

__all__ = ["forecast_charts", "forecasts_against_truth"]

#: Sensors that are named below their bars.
NAMED_SENSORS = 24


def forecast_charts(
    subject: Subject, shown: Run, errors: Errors, tested: SensorErrors | None
) -> dict[str, str]:
    """Return charts by name: of all rows, and of the run that is shown its sensors, with their errors."""
    drawn: dict[str, str] = {}
    told = sensors_of(shown)
    metrics = [errors.metric, errors.metric.replace("rmse", "mae")]
    rows = {
        label: [run.result.details.get("test_by_horizon") or {} for run in runs]
        for label, runs in subject.rows.items()
    }
    rows = {label: runs for label, runs in rows.items() if _drawable(runs, metrics)}
    if rows and told is not None:
        panels = [
            _error_by_horizon(rows, list(subject.rows), metric, errors, told.step_minutes)
            for metric in metrics
        ]
        drawn["horizon"] = svg_element("error by minutes ahead", [panels])
    if told is not None and tested is not None:
        drawn |= _sensor_charts(shown, told, errors, tested)
    sent = bytes_by_round(subject)
    if sent:
        among = list(subject.rows if subject.comparison else sent)
        # As much may go one way as the other: both lines are to be seen.
        series = [
            Series(label, range(len(line)), line, place=(i := among.index(label)), dash=DASHES[i % 4])
            for label, line in sent.items()
        ]
        chart = XY(series, Axis("communication round", whole=True), byte_axis("bytes so far"))
        drawn["rounds"] = svg_element("bytes by round", [[chart]])
    return drawn


def _drawable(runs: Sequence[Mapping[str, Sequence[float]]], metrics: Sequence[str]) -> bool:
    """Whether all seeds have errors for the same steps ahead, and some of them are numbers."""
    lengths = {len(run.get(metric) or ()) for run in runs for metric in metrics}
    return len(lengths) == 1 and lengths != {0}


def _error_by_horizon(
    rows: Mapping[str, Sequence[Mapping[str, Sequence[float]]]],
    among: Sequence[str],
    metric: str,
    errors: Errors,
    step: int,
) -> XY:
    """Draw the test errors of each row's runs, [n] by metric, by how far ahead a forecast is."""
    values = {label: [run[metric] for run in runs] for label, runs in rows.items()}
    longest = max(len(run) for runs in values.values() for run in runs)
    curves = {
        label: [([step * h for h in range(1, len(run) + 1)], run) for run in runs]
        for label, runs in values.items()
    }
    # Ticks at whole steps: at most five.
    every = max(1, -(-longest // 4))
    ticks = {float(step * h): str(step * h) for h in range(every, longest + 1, every)}
    x, y = Axis("minutes ahead", ticks=ticks), Axis(errors.unit)
    return XY(lines(curves, among), x, y, f"test {errors.name(metric)}")


def _sensor_charts(run: Run, told: SensorOverview, errors: Errors, found: SensorErrors) -> dict[str, str]:
    drawn: dict[str, str] = {}
    path, each = run.folder / "predictions.parquet", told.sensors
    chosen = chosen_sensors(found.rmse)
    if chosen:
        series = [read_forecasts(path, each.ids[sensor], told.windows.horizon) for sensor in chosen.values()]
        span = span_to_draw(series, told.step_minutes)
        panels = [
            forecasts_against_truth(
                f"{words}: sensor {one.sensor}, RMSE {errors.cell('rmse', float(found.rmse[sensor]))}",
                one, span, told.step_minutes, told.quantity,
            )
            for (words, sensor), one in zip(chosen.items(), series, strict=True)
        ]  # fmt: skip
        # All have the same axis of time.
        panels[:-1] = [replace(panel, x=Axis()) for panel in panels[:-1]]
        drawn["forecasts"] = svg_element("forecasts against readings", [[panel] for panel in panels])
    observed = np.array(each.observed, dtype=bool)
    if each.position is not None:
        place = kilometres(np.array(each.position, dtype=float), each.geographic)
        edges = np.array(told.edges, dtype=float).reshape(-1, 3)[:, :2]
        nodes = by_value(found.rmse, "RMSE", "no reading to test", ~observed, "not trained on")
        network = Network(place, [Edges(edges)], nodes)
        network = replace(network, names=network.free_places(chosen))
        drawn["map"] = svg_element("map of sensors by error", [[network]])
    elif chosen:
        chart = _error_by_sensor(each.ids, found.rmse, observed, errors.unit)
        drawn["by_sensor"] = svg_element("error of every sensor", [[chart]])
    return drawn


def forecasts_against_truth(
    title: str,
    one: SensorForecasts,
    span: tuple[np.datetime64, np.datetime64],
    step_minutes: int,
    quantity: str,
) -> XY:
    """Draw a sensor's readings in a span of time, and what was forecast for the same times one step, half the
    horizon and the whole horizon before. Where a reading is missing its line has a gap."""
    horizon = one.forecast.shape[1]
    time, _, truth = one.at(1, step_minutes)
    inside = (time >= span[0]) & (time < span[1])
    # A reading between two that are missing is a dot, as a line does not show it.
    there = np.isfinite(truth)
    next_to = np.r_[False, there, False]
    alone = inside & there & ~next_to[:-2] & ~next_to[2:]
    drawn = [
        Series("readings", time[inside], truth[inside], colour=INK, marker=""),
        Series("", time[alone], truth[alone], colour=INK, dash="", marker=".", size=2.5),
    ]
    for place, steps in enumerate(dict.fromkeys((1, max(1, horizon // 2), horizon))):
        at, forecast, _ = one.at(steps, step_minutes)
        inside = (at >= span[0]) & (at < span[1])
        label = f"{ahead(steps * step_minutes)} ahead"
        drawn.append(
            Series(label, at[inside], forecast[inside], place=place, dash=DASHES[place], marker="", alpha=0.9)
        )
    day = span[0].astype("datetime64[D]")
    whole = day == span[0] and span[1] - span[0] <= np.timedelta64(MINUTES_PER_DAY, "m")
    label = f"{'' if whole else 'from '}{day.item():%A, %Y-%m-%d}"
    return XY(drawn, Axis(label), Axis(quantity), title, height=1.9)


def _error_by_sensor(ids: Sequence[str], rmse: np.ndarray, observed: np.ndarray, unit: str) -> Bars:
    """Draw the test error of every sensor that has one, rmse [S], the largest first; those that were not
    trained on, observed [S] bool, in another colour."""
    order = np.argsort(-np.where(np.isfinite(rmse), rmse, -np.inf), kind="stable")
    order = order[: int(np.isfinite(rmse).sum())]
    parts = {"trained on": rmse[order] * observed[order], "not trained on": rmse[order] * ~observed[order]}
    if observed.all():
        del parts["not trained on"]
    few = len(order) <= NAMED_SENSORS
    label = "sensor" if few else f"{len(order):,} sensors, the largest error first"
    amount = Axis(f"test RMSE ({unit})" if unit else "test RMSE")
    return Bars([ids[s] for s in order], parts, amount, label, named=NAMED_SENSORS)
