"""predictions.parquet of forecasting -> what a report shows of it: errors by sensor, and one sensor's series.

The table may have millions of rows: errors are summed a part at a time, and of a series only its sensor's
rows are read. Truths are there where a reading is; so all errors here are over the readings that are there.

Shapes: S sensors, W test windows, n steps ahead.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.errors import InputError

__all__ = [
    "SensorErrors",
    "SensorForecasts",
    "chosen_sensors",
    "read_forecasts",
    "read_sensor_errors",
    "span_to_draw",
]

#: Rows of the table in memory at a time.
ROWS = 1 << 16
MINUTES_PER_DAY = 24 * 60
#: Points that a drawn span of time has at least, if the test part has them.
LEAST_POINTS = 48


@dataclass(frozen=True)
class SensorErrors:
    """Test errors of every sensor over all steps ahead. rmse [S]: nan where nothing was read in the test part
    or a forecast was no number; missing: the share of the test readings that are not there."""

    rmse: np.ndarray
    missing: float


@dataclass(frozen=True)
class SensorForecasts:
    """One sensor's test windows. time [W] datetime64[s]: of each window's last input; forecast, truth [W, n]
    float32, a truth nan where it is missing."""

    sensor: str
    time: np.ndarray
    forecast: np.ndarray
    truth: np.ndarray

    def at(self, step: int, step_minutes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The times [W] for which forecasts were made `step` steps before, the forecasts [W] and the truth
        [W]."""
        time = self.time + np.timedelta64(step * step_minutes, "m")
        return time, self.forecast[:, step - 1], self.truth[:, step - 1]


def read_sensor_errors(path: Path, ids: Sequence[str], horizon: int) -> SensorErrors:
    """Raises InputError for a file that is no table of forecasts of these sensors."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = {name: k for k, name in enumerate(ids)}
    squared, count, rows = np.zeros((3, len(ids)))
    forecasts, truths = _columns(horizon)
    try:
        # Names and parts repeat: read as codes of the few that there are.
        with pq.ParquetFile(path, read_dictionary=["sensor", "part"]) as file:
            columns = ["sensor", "part", *forecasts, *truths]
            # One row group after the other: asked for all of them, Arrow keeps what it has read.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(ROWS, row_groups=[group], columns=columns):
                    strange = set(batch["sensor"].dictionary.to_pylist()) - set(number)
                    if strange:
                        raise ValueError(f"it names sensor {min(strange)!r}, which overview.json does not")
                    test = _decoded(batch["part"]) == "test"
                    sensor = np.array([number[name] for name in _decoded(batch["sensor"])[test]], np.int64)
                    table = pa.Table.from_batches([batch])
                    forecast, truth = (_stacked(table, those)[test] for those in (forecasts, truths))
                    there = ~np.isnan(truth)
                    error = np.where(there, forecast.astype(np.float64) - truth, 0.0)
                    squared += np.bincount(sensor, (error**2).sum(1), len(ids))
                    count += np.bincount(sensor, there.sum(1), len(ids))
                    rows += np.bincount(sensor, minlength=len(ids))
    except (pa.ArrowException, OSError, ValueError, KeyError, AttributeError) as error:
        raise _damaged(path, error) from None
    if not rows.any():
        raise InputError(f"{path} has no forecast of the test part; the run must be made again")
    rmse = np.full(len(ids), np.nan)
    np.sqrt(squared / np.maximum(count, 1), out=rmse, where=(count > 0) & np.isfinite(squared))
    return SensorErrors(rmse, 1.0 - float(count.sum() / (horizon * rows.sum())))


def read_forecasts(path: Path, sensor: str, horizon: int) -> SensorForecasts:
    """Raises InputError for a file that is no table of forecasts, or has no test window of this sensor."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    forecasts, truths = _columns(horizon)
    try:
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
    """The sensors with the largest, the middle and the smallest test RMSE [S], in this order; fewer where
    there are fewer with one."""
    order = np.argsort(rmse, kind="stable")[: np.isfinite(rmse).sum()].tolist()
    if not order:
        return {}
    wanted = {"worst": order[-1], "median": order[len(order) // 2], "best": order[0]}
    if len(order) < 3:
        del wanted["median"]
    return dict(list(wanted.items())[: len(order)])


def span_to_draw(series: Sequence[SensorForecasts], step_minutes: int) -> tuple[np.datetime64, np.datetime64]:
    """Of the whole days (or spans of days, where a day has fewer than LEAST_POINTS readings) of the test part
    the one in which these sensors' readings vary most: from and until, until not included. Where there is no
    whole one, the first stretch as long."""
    days = math.ceil(LEAST_POINTS * step_minutes / MINUTES_PER_DAY)
    length = np.timedelta64(days * MINUTES_PER_DAY, "m").astype("timedelta64[s]")
    time = series[0].at(1, step_minutes)[0]
    begins = time[0].astype("datetime64[D]").astype("datetime64[s]")
    span = (time - begins) // length
    best, start = -1.0, time[0]
    for k in range(int(span[-1]) + 1):
        inside = span == k
        if inside.sum() < days * MINUTES_PER_DAY // step_minutes:
            continue
        varies = sum(_variance(one.at(1, step_minutes)[2][inside]) for one in series)
        if varies > best:
            best, start = varies, begins + k * length
    return start, start + length


def _variance(values: np.ndarray) -> float:
    """Of those that are there; 0 of none."""
    values = values[np.isfinite(values)].astype(np.float64)
    return float(values.var()) if len(values) else 0.0


def _columns(horizon: int) -> tuple[list[str], list[str]]:
    steps = range(1, horizon + 1)
    return [f"forecast_{h}" for h in steps], [f"truth_{h}" for h in steps]


def _decoded(codes: Any) -> np.ndarray:
    """The texts of a column of codes, [rows]."""
    names = np.array(codes.dictionary.to_pylist(), dtype=object)
    found: np.ndarray = names[codes.indices.to_numpy()]
    return found


def _stacked(table: Any, columns: Sequence[str]) -> np.ndarray:
    """Columns of numbers as [rows, columns] float32, nan where there is none."""
    return np.stack([table[name].to_numpy() for name in columns], 1).astype(np.float32)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} is not what a run of forecasting writes ({str(error)[:200]}); make the run again"
    )
