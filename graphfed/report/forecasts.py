"""What a report adds for runs of forecasting."""

from dataclasses import dataclass

import numpy as np

from graphfed.federation.ledger import COUNTED_PHASES
from graphfed.report.figures import Errors, unit_of
from graphfed.report.forecast_table import MINUTES_PER_DAY, SensorErrors, read_sensor_errors
from graphfed.report.read import Run, Subject
from graphfed.report.templates import sentences
from graphfed.report.transfers import LINKS
from graphfed.runs.overview_schema import SensorOverview


def ahead(minutes: int) -> str:
    """Write a number of minutes as in "45 minutes", "2 hours" or "3 days"."""
    for unit, size in (("day", MINUTES_PER_DAY), ("hour", 60)):
        if minutes % size == 0 and minutes >= 2 * size:
            return f"{minutes // size} {unit}s"
    return f"{minutes} minute{'s' if minutes != 1 else ''}"


def sensors_of(run: Run) -> SensorOverview | None:
    """Return the overview of the sensors of a run; None if it has none."""
    return run.overview if isinstance(run.overview, SensorOverview) else None


def errors_of(subject: Subject) -> Errors:
    """Return how the errors of these runs are written.

    Rows are ranked by the RMSE over readings that are not missing. If every run was trained with
    missing=as_read, they are ranked by the RMSE that counts the missing readings, too.
    """
    runs = [run for those in subject.rows.values() for run in those]
    as_read = all(_trained_as_read(run) for run in runs)
    overview = sensors_of(subject.first)
    figures = [figures for run in runs for figures in (run.result.test, run.result.val)]
    known: dict[str, list[float]] = {}
    for name, value in (item for those in figures for item in those.items()):
        # An error of 0 does not determine how many decimals the others need.
        if value:
            known.setdefault(name, []).append(abs(value))
    missing = any("rmse_as_read" in those and those.get("rmse") != those["rmse_as_read"] for those in figures)
    missing = missing or (overview is not None and any(overview.sensors.missing))
    smallest = {name: min(values) for name, values in known.items()}
    unit = "" if overview is None else unit_of(overview.quantity)[1]
    return Errors("rmse_as_read" if as_read and missing else "rmse", unit, missing, smallest)


def _trained_as_read(run: Run) -> bool:
    return run.manifest.config.training.get("missing") == "as_read"


@dataclass(frozen=True)
class Forecast:
    """What a run forecasts; every text is "" if it is not known.

    Attributes:
        quantity: As in "speed".
        first: The shortest time ahead, as in "5" or "15 minutes"; "" if there is one time only.
        last: The longest time ahead, as in "60 minutes".
    """

    quantity: str = ""
    first: str = ""
    last: str = ""


def forecast_of(run: Run) -> Forecast:
    overview = sensors_of(run)
    if overview is None:
        return Forecast()
    step, horizon = overview.step_minutes, overview.windows.horizon
    last = ahead(step * horizon)
    if horizon == 1:
        return Forecast(unit_of(overview.quantity)[0], "", last)
    first = ahead(step)
    (number, unit), (_, last_unit) = first.split(), last.split()
    # "5 to 60 minutes" rather than "5 minutes to 60 minutes".
    shortened = number if unit.rstrip("s") == last_unit.rstrip("s") else first
    return Forecast(unit_of(overview.quantity)[0], shortened, last)


def readings_caveats(subject: Subject, errors: Errors, tested: SensorErrors | None) -> list[str]:
    """Return what a reader must know about the readings of sensors before trusting the errors."""
    overview = sensors_of(subject.first)
    if overview is None:
        return []
    as_read = [label for label, runs in subject.rows.items() if _trained_as_read(runs[0])]
    return sentences(
        "readings_caveats",
        overview=overview,
        missing=100 * float(np.mean(overview.sensors.missing)) if errors.missing else None,
        missing_in_test=None if tested is None else 100 * tested.missing,
        as_read=as_read if errors.missing else [],
    )


def tested(run: Run) -> SensorErrors | None:
    """Read the test errors of a run's sensors; None for a deployment, whose forecasts are at the sites."""
    overview = sensors_of(run)
    if overview is None or run.deployed:
        return None
    path = run.folder / "predictions.parquet"
    return read_sensor_errors(path, overview.sensors.ids, overview.windows.horizon)


def bytes_by_round(subject: Subject) -> dict[str, list[int]]:
    """Sum the bytes that were sent up to the end of set-up (round 0) and of each round of training.

    For a single run they are by direction; for a comparison those of the first seed of each row, by label.
    Lines in which nothing is sent are left out.
    """
    lines: dict[str, list[int]] = {}
    for label, runs in subject.rows.items():
        run = runs[0]
        for entry in run.entries:
            if entry.phase not in COUNTED_PHASES:
                continue
            named = label if subject.comparison is not None else LINKS[entry.sender, entry.receiver]
            line = lines.setdefault(named, [0] * (run.result.rounds + 1))
            for number, amount in entry.rounds.items():
                line[int(number)] += amount
    return {label: np.cumsum(line).tolist() for label, line in lines.items() if any(line)}
