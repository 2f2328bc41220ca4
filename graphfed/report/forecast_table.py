"""Reads predictions.parquet of a run of forecasting: the errors of every sensor, and the series of one.

The table may have millions of rows, so errors are summed batch by batch, and a series reads only the rows of
its sensor. A truth is missing where the reading is missing; all errors here leave these out.

Shapes: S sensors, W test windows, n steps ahead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.errors import InputError
from graphfed.files import check_regular

#: Rows of a batch.
ROWS = 1 << 16
MINUTES_PER_DAY = 24 * 60
#: The least number of points in a drawn span of time, if the test part has as many.
LEAST_POINTS = 48


@dataclass(frozen=True)
class SensorErrors:
    """Test errors of every sensor over all steps ahead.

    Attributes:
        rmse: RMSE [S]; nan for a sensor without test readings or with a forecast that is not a number.
        missing: The fraction of test readings that are missing.
    """

    rmse: np.ndarray
    missing: float


@dataclass(frozen=True)
class SensorForecasts:
    """The test windows of one sensor.

    Attributes:
        time: The time of each window's last input [W], datetime64[s].
        forecast: Forecasts [W, n], float32.
        truth: Readings at the same times [W, n], float32; nan where a reading is missing.
    """

    sensor: str
    time: np.ndarray
    forecast: np.ndarray
    truth: np.ndarray

    def at(self, step: int, step_minutes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the times, forecasts and readings [W] of a number of steps ahead, from 1."""
        time = self.time + np.timedelta64(step * step_minutes, "m")
        return time, self.forecast[:, step - 1], self.truth[:, step - 1]


def read_sensor_errors(path: Path, ids: Sequence[str], horizon: int) -> SensorErrors:
    """Compute the test errors of sensors from a table of forecasts; InputError if it is not theirs."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = {name: k for k, name in enumerate(ids)}
    squared, count, rows = np.zeros((3, len(ids)))
    forecasts, truths = _columns(horizon)
    try:
        check_regular(path)
        # Names of sensors and parts repeat in many rows: they are read as codes.
        with pq.ParquetFile(path, read_dictionary=["sensor", "part"]) as file:
            columns = ["sensor", "part", *forecasts, *truths]
            # One row group at a time: if it is asked for all, Arrow keeps in memory what it has read.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(ROWS, row_groups=[group], columns=columns):
                    # The file may be another run's.
                    unknown = set(batch["sensor"].dictionary.to_pylist()) - set(number)
                    if unknown:
                        raise ValueError(f"it has a sensor {min(unknown)!r} that overview.json does not have")
                    test = _decoded(batch["part"]) == "test"
                    sensor = np.array([number[name] for name in _decoded(batch["sensor"])[test]], np.int64)
                    table = pa.Table.from_batches([batch])
                    forecast, truth = (_stacked(table, those)[test] for those in (forecasts, truths))
                    present = ~np.isnan(truth)
                    error = np.where(present, forecast.astype(np.float64) - truth, 0.0)
                    squared += np.bincount(sensor, (error**2).sum(1), len(ids))
                    count += np.bincount(sensor, present.sum(1), len(ids))
                    rows += np.bincount(sensor, minlength=len(ids))
    except (pa.ArrowException, OSError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(path, error) from None
    if not rows.any():
        raise InputError(f"{path} has no forecast of the test part; run again")
    rmse = np.full(len(ids), np.nan)
    # Where no error is known, the result stays nan.
    np.sqrt(squared / np.maximum(count, 1), out=rmse, where=(count > 0) & np.isfinite(squared))
    return SensorErrors(rmse, 1.0 - float(count.sum() / (horizon * rows.sum())))


def read_forecasts(path: Path, sensor: str, horizon: int) -> SensorForecasts:
    """Read the test windows of one sensor, in the order of time, from a table of forecasts.

    Raises:
        InputError: The file is not a table of forecasts, or it has no test window of this sensor.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    forecasts, truths = _columns(horizon)
    try:
        check_regular(path)
        table = pq.read_table(
            path,
            columns=["time", *forecasts, *truths],
            filters=[("sensor", "==", sensor), ("part", "==", "test")],
        )
        time = table["time"].to_numpy().astype("datetime64[s]")
        forecast, truth = (_stacked(table, columns) for columns in (forecasts, truths))
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise _damaged(path, error) from None
    if not len(time):
        raise InputError(f"{path} has no forecast of sensor {sensor!r} in the test part")
    order = np.argsort(time, kind="stable")
    return SensorForecasts(sensor, time[order], forecast[order], truth[order])


def chosen_sensors(rmse: np.ndarray) -> dict[str, int]:
    """Select the positions of the sensors with the largest, the median and the smallest test RMSE [S].

    They are named "worst", "median" and "best"; fewer if fewer sensors have an RMSE, which is nan otherwise.
    """
    order = np.argsort(rmse, kind="stable")[: np.isfinite(rmse).sum()].tolist()
    if not order:
        return {}
    wanted = {"worst": order[-1], "median": order[len(order) // 2], "best": order[0]}
    if len(order) < 3:
        del wanted["median"]
    return dict(list(wanted.items())[: len(order)])


def span_to_draw(series: Sequence[SensorForecasts], step_minutes: int) -> tuple[np.datetime64, np.datetime64]:
    """Find the complete day of the test part in which most of some sensors have readings and vary most.

    If a day has fewer than LEAST_POINTS readings, spans of several days are used instead. Returns start and
    end, the end excluded. Without a complete day that has a reading, it is the span of the same length that
    has most readings, of those that follow each other from the start of the test part.
    """
    days = math.ceil(LEAST_POINTS * step_minutes / MINUTES_PER_DAY)
    length = np.timedelta64(days * MINUTES_PER_DAY, "m").astype("timedelta64[s]")
    time = series[0].at(1, step_minutes)[0]
    truth = np.stack([one.at(1, step_minutes)[2] for one in series])
    midnight = time[0].astype("datetime64[D]").astype("datetime64[s]")
    best: tuple[float, float] = (0, 0)
    start = None
    for begin in np.arange(midnight, time[-1] + 1, length):
        inside = (time >= begin) & (time < begin + length)
        # The first and the last span may be cut off.
        if inside.sum() < days * MINUTES_PER_DAY // step_minutes:
            continue
        has_readings = int(np.isfinite(truth[:, inside]).any(1).sum())
        # First by readings, because a day with gaps shows little, however much it varies.
        rank = has_readings, sum(_variance(values) for values in truth[:, inside])
        if has_readings and (start is None or rank > best):
            best, start = rank, begin
    if start is None:
        spans = ((time - time[0]) // length).astype(int)
        start = time[0] + int(np.bincount(spans, np.isfinite(truth).sum(0)).argmax()) * length
    return start, start + length


def _variance(values: np.ndarray) -> float:
    """Return the variance of the values that are not nan; 0 without any."""
    values = values[np.isfinite(values)].astype(np.float64)
    return float(values.var()) if len(values) else 0.0


def _columns(horizon: int) -> tuple[list[str], list[str]]:
    steps = range(1, horizon + 1)
    return [f"forecast_{h}" for h in steps], [f"truth_{h}" for h in steps]


def _decoded(codes: Any) -> np.ndarray:
    """Return the texts of a column of codes, [rows]."""
    names = np.array(codes.dictionary.to_pylist(), dtype=object)
    found: np.ndarray = names[codes.indices.to_numpy()]
    return found


def _stacked(table: Any, columns: Sequence[str]) -> np.ndarray:
    """Return columns of numbers as [rows, columns] float32; a null is nan."""
    return np.stack([table[name].to_numpy() for name in columns], 1).astype(np.float32)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is not the table of a run of forecasting ({str(error)[:200]}); run again")
