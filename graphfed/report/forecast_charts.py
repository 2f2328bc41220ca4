"""Draws the charts of forecasting as SVG elements of the page.

They show forecasts against readings, errors by the time ahead and by sensor, and bytes by round.

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

#: The most sensors whose names are written below their bars.
NAMED_SENSORS = 24


def forecast_charts(
    subject: Subject, shown: Run, errors: Errors, tested: SensorErrors | None
) -> dict[str, str]:
    """Draw the charts of runs of forecasting as SVG elements by name. A chart without content is left out.

    `shown` is the run whose sensors and forecasts are drawn, and `tested` the test errors of its sensors.
    """
    drawn: dict[str, str] = {}
    overview = sensors_of(shown)
    # MAE is drawn next to RMSE, both with or both without missing readings.
    metrics = [errors.metric, errors.metric.replace("rmse", "mae")]
    rows = {
        label: [run.result.details.get("test_by_horizon") or {} for run in runs]
        for label, runs in subject.rows.items()
    }
    # Runs of other versions may lack the errors by horizon.
    rows = {label: runs for label, runs in rows.items() if _drawable(runs, metrics)}
    if rows and overview is not None:
        panels = [
            _error_by_horizon(rows, list(subject.rows), metric, errors, overview.step_minutes)
            for metric in metrics
        ]
        drawn["horizon"] = svg_element("error by minutes ahead", [panels])
    if overview is not None and tested is not None:
        drawn |= _sensor_charts(shown, overview, errors, tested)
    sent = bytes_by_round(subject)
    if sent:
        among = list(subject.rows if subject.comparison else sent)
        # Both directions may send the same number of bytes: different dashes keep both lines visible.
        series = [
            Series(label, range(len(line)), line, place=(i := among.index(label)), dash=DASHES[i % 4])
            for label, line in sent.items()
        ]
        chart = XY(series, Axis("communication round", whole=True), byte_axis("bytes so far"))
        drawn["rounds"] = svg_element("bytes by round", [[chart]])
    return drawn


def _drawable(runs: Sequence[Mapping[str, Sequence[float]]], metrics: Sequence[str]) -> bool:
    """Return whether all seeds have errors, for the same numbers of steps ahead."""
    lengths = {len(run.get(metric) or ()) for run in runs for metric in metrics}
    return len(lengths) == 1 and lengths != {0}


def _error_by_horizon(
    rows: Mapping[str, Sequence[Mapping[str, Sequence[float]]]],
    among: Sequence[str],
    metric: str,
    errors: Errors,
    step: int,
) -> XY:
    """Draw the test errors of each row's runs, [n] by metric, by the number of minutes ahead."""
    values = {label: [run[metric] for run in runs] for label, runs in rows.items()}
    longest = max(len(run) for runs in values.values() for run in runs)
    curves = {
        label: [([step * h for h in range(1, len(run) + 1)], run) for run in runs]
        for label, runs in values.items()
    }
    # Ticks are at whole steps, at most five of them.
    every = max(1, -(-longest // 4))
    ticks = {float(step * h): str(step * h) for h in range(every, longest + 1, every)}
    x, y = Axis("minutes ahead", ticks=ticks), Axis(errors.unit)
    return XY(lines(curves, among), x, y, f"test {errors.name(metric)}")


def _sensor_charts(run: Run, overview: SensorOverview, errors: Errors, found: SensorErrors) -> dict[str, str]:
    """Draw forecasts of the best, median and worst sensor, and the errors of all sensors."""
    drawn: dict[str, str] = {}
    path, each = run.folder / "predictions.parquet", overview.sensors
    chosen = chosen_sensors(found.rmse)
    if chosen:
        series = [
            read_forecasts(path, each.ids[sensor], overview.windows.horizon) for sensor in chosen.values()
        ]
        span = span_to_draw(series, overview.step_minutes)
        panels = [
            forecasts_against_truth(
                f"{rank}: sensor {one.sensor}, RMSE {errors.cell('rmse', float(found.rmse[sensor]))}",
                one, span, overview.step_minutes, overview.quantity,
            )
            for (rank, sensor), one in zip(chosen.items(), series, strict=True)
        ]  # fmt: skip
        # All charts share the time axis of the last one.
        panels[:-1] = [replace(panel, x=Axis()) for panel in panels[:-1]]
        drawn["forecasts"] = svg_element("forecasts against readings", [[panel] for panel in panels])
    observed = np.array(each.observed, dtype=bool)
    if each.position is not None:
        place = kilometres(np.array(each.position, dtype=float), each.geographic)
        edges = np.array(overview.edges, dtype=float).reshape(-1, 3)[:, :2]
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
    """Draw a sensor's readings and the forecasts for the same times, inside `span`.

    The forecasts are those made one step, half the horizon and the whole horizon before. A missing reading is
    a gap in the line.
    """
    horizon = one.forecast.shape[1]
    time, _, truth = one.at(1, step_minutes)
    inside = (time >= span[0]) & (time < span[1])
    # A line does not show a reading between two missing ones, so it is drawn as a dot.
    present = np.isfinite(truth)
    padded = np.r_[False, present, False]
    alone = inside & present & ~padded[:-2] & ~padded[2:]
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
    """Draw the test errors of the sensors, rmse [S], the largest first.

    Sensors that were not trained on (`observed` [S] bool is False) have another colour.
    """
    order = np.argsort(-np.where(np.isfinite(rmse), rmse, -np.inf), kind="stable")
    order = order[: int(np.isfinite(rmse).sum())]
    # Each bar has one part that is not 0, so the stacked parts only colour it.
    parts = {"trained on": rmse[order] * observed[order], "not trained on": rmse[order] * ~observed[order]}
    if observed.all():
        del parts["not trained on"]
    few = len(order) <= NAMED_SENSORS
    label = "sensor" if few else f"{len(order):,} sensors, the largest error first"
    amount = Axis(f"test RMSE ({unit})" if unit else "test RMSE")
    return Bars([ids[s] for s in order], parts, amount, label, named=NAMED_SENSORS)
