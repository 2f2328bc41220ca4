"""What a report takes from the runs of a forecasting task, next to what it takes from every task."""

from dataclasses import dataclass

import numpy as np

from graphfed.federation.ledger import COUNTED_PHASES
from graphfed.report.figures import Errors, unit_of
from graphfed.report.forecast_table import MINUTES_PER_DAY, SensorErrors, read_sensor_errors
from graphfed.report.read import Run, Subject
from graphfed.runs.overview_schema import SensorOverview

__all__ = [
    "Forecast",
    "Readings",
    "ahead",
    "bytes_by_round",
    "errors_of",
    "forecast_of",
    "readings",
    "sensors_of",
    "tested",
]


def ahead(minutes: int) -> str:
    """A time in words: 45 minutes, 2 hours, 3 days."""
    for unit, size in (("day", MINUTES_PER_DAY), ("hour", 60)):
        if minutes % size == 0 and minutes >= 2 * size:
            return f"{minutes // size} {unit}s"
    return f"{minutes} minute{'s' if minutes != 1 else ''}"


def sensors_of(run: Run) -> SensorOverview | None:
    """The overview of a run on sensors; None where there is none."""
    return run.overview if isinstance(run.overview, SensorOverview) else None


def errors_of(subject: Subject) -> Errors:
    """How the errors of these runs are written. What decides is the error over the readings that are there,
    but where every run was trained to take what stands in the place of a missing one for a reading."""
    runs = [run for those in subject.rows.values() for run in those]
    as_read = all(_trained_as_read(run) for run in runs)
    told = sensors_of(subject.first)
    figures = [figures for run in runs for figures in (run.result.test, run.result.val)]
    known: dict[str, list[float]] = {}
    for name, value in (item for those in figures for item in those.items()):
        if value:
            known.setdefault(name, []).append(abs(value))
    missing = any("rmse_as_read" in those and those.get("rmse") != those["rmse_as_read"] for those in figures)
    missing = missing or (told is not None and any(told.sensors.missing))
    smallest = {name: min(values) for name, values in known.items()}
    unit = "" if told is None else unit_of(told.quantity)[1]
    return Errors("rmse_as_read" if as_read and missing else "rmse", unit, missing, smallest)


def _trained_as_read(run: Run) -> bool:
    return run.manifest.config.training.get("missing") == "as_read"


@dataclass(frozen=True)
class Forecast:
    """What is forecast, and how far ahead at least and at most, in words; "" where that is not known."""

    quantity: str = ""
    first: str = ""
    last: str = ""


def forecast_of(run: Run) -> Forecast:
    """What a run forecasts."""
    told = sensors_of(run)
    if told is None:
        return Forecast()
    step, horizon = told.step_minutes, told.windows.horizon
    last = ahead(step * horizon)
    if horizon == 1:
        return Forecast(unit_of(told.quantity)[0], "", last)
    first = ahead(step)
    (number, unit), (_, other) = first.split(), last.split()
    return Forecast(
        unit_of(told.quantity)[0], number if unit.rstrip("s") == other.rstrip("s") else first, last
    )


@dataclass(frozen=True)
class Readings:
    """What a reader must know of the data before believing the errors.

    Attributes:
        told: The overview.
        missing: The percentage of readings that are missing, None where none is.
        missing_in_test: The percentage in the test part, None where that is not known.
        as_read: The rows that were trained and selected as read.
    """

    told: SensorOverview
    missing: float | None
    missing_in_test: float | None
    as_read: list[str]


def readings(subject: Subject, errors: Errors, tested: SensorErrors | None) -> Readings | None:
    """What the caveats say of the readings; None where there is no overview."""
    told = sensors_of(subject.first)
    if told is None:
        return None
    return Readings(
        told,
        100 * float(np.mean(told.sensors.missing)) if errors.missing else None,
        None if tested is None else 100 * tested.missing,
        [label for label, runs in subject.rows.items() if errors.missing and _trained_as_read(runs[0])],
    )


def tested(run: Run) -> SensorErrors | None:
    """The test errors of a run's sensors; None where the clients have the forecasts, or the sensors are not
    known."""
    told = sensors_of(run)
    if told is None or run.deployed:
        return None
    return read_sensor_errors(run.folder / "predictions.parquet", told.sensors.ids, told.windows.horizon)


def bytes_by_round(subject: Subject) -> dict[str, list[int]]:
    """Bytes that have been sent by the end of set-up (round 0) and of each round of training.

    Of one run they are told by direction, of several rows in all, of their first seeds. Rows in which nothing
    is sent are left out."""
    lines: dict[str, list[int]] = {}
    for label, runs in subject.rows.items():
        run = runs[0]
        for entry in run.entries:
            if entry.phase not in COUNTED_PHASES:
                continue
            named = label if subject.comparison is not None else DIRECTIONS[entry.sender, entry.receiver]
            line = lines.setdefault(named, [0] * (run.result.rounds + 1))
            for number, amount in entry.rounds.items():
                line[int(number)] += amount
    return {label: np.cumsum(line).tolist() for label, line in lines.items() if any(line)}


#: The two ends of a transfer in the ledger -> words.
DIRECTIONS = {
    ("clients", "server"): "from the clients",
    ("server", "clients"): "to the clients",
    ("clients", "clients"): "between clients",
}
