"""What a report says and draws of forecasting, beside what it says of every task."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphfed.data.sensors.overview import sensor_facts
from graphfed.errors import InputError
from graphfed.federation.ledger import COUNTED_PHASES
from graphfed.report import forecast_charts as charts
from graphfed.report.figures import Errors, unit_of
from graphfed.report.forecast_table import (
    SensorErrors,
    chosen_sensors,
    read_forecasts,
    read_sensor_errors,
    span_to_draw,
)
from graphfed.report.read import Run, Subject

__all__ = [
    "bytes_by_round",
    "caveats",
    "charts_of",
    "errors_of",
    "facts",
    "sensors_of",
    "tested",
    "what_is_forecast",
]


def sensors_of(run: Run) -> Mapping[str, Any] | None:
    """The overview of a run on sensors; None where there is none."""
    told = run.overview
    if told is None or told.get("kind") != "sensors":
        return None
    needed = ("quantity", "step_minutes", "start", "steps", "sensors", "edges", "windows", "summary", "note")
    missing = [key for key in needed if told.get(key) is None]
    if missing:
        raise InputError(f"{run.folder / 'overview.json'} is not what a run writes: it has no {missing[0]!r}")
    return told


def errors_of(subject: Subject) -> Errors:
    """How the errors of these runs are written. What decides is the error over the readings that are there,
    but where every run was trained to take what stands in the place of a missing one for a reading."""
    runs = [run for those in subject.rows.values() for run in those]
    as_read = all(_settings(run).get("missing") == "as_read" for run in runs)
    told = sensors_of(subject.first)
    unit = "" if told is None else unit_of(told["quantity"])[1]
    figures = [figures for run in runs for figures in (run.result.test, run.result.val)]
    known: dict[str, list[float]] = {}
    for name, value in (item for those in figures for item in those.items()):
        if value:
            known.setdefault(name, []).append(abs(value))
    missing = any("rmse_as_read" in those and those.get("rmse") != those["rmse_as_read"] for those in figures)
    if told is not None:
        missing = missing or any(told["sensors"]["missing"])
    smallest = {name: min(values) for name, values in known.items()}
    return Errors("rmse_as_read" if as_read and missing else "rmse", unit, missing, smallest)


def _settings(run: Run) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = run.manifest.get("config", {}).get("training", {})
    return settings


# ---- what is said ------------------------------------------------------------------------------------------


def what_is_forecast(run: Run) -> str:
    """As in "speed, 5 to 60 minutes ahead"."""
    told = sensors_of(run)
    if told is None:
        return "the readings"
    step, horizon = told["step_minutes"], told["windows"]["horizon"]
    last = charts.ahead(step * horizon)
    if horizon == 1:
        return f"{unit_of(told['quantity'])[0]}, {last} ahead"
    first = charts.ahead(step)
    (number, unit), (_, other) = first.split(), last.split()
    first = number if unit.rstrip("s") == other.rstrip("s") else first
    return f"{unit_of(told['quantity'])[0]}, {first} to {last} ahead"


def tested(run: Run) -> SensorErrors | None:
    """The test errors of a run's sensors; None where their forecasts are elsewhere, or the sensors not
    told."""
    told = sensors_of(run)
    if told is None or "deployment" in run.manifest:
        return None
    ids = [str(name) for name in told["sensors"]["ids"]]
    return read_sensor_errors(run.folder / "predictions.parquet", ids, told["windows"]["horizon"])


def caveats(subject: Subject, errors: Errors, tested: SensorErrors | None) -> list[str]:
    """What a reader must know of the data before believing the errors."""
    run = subject.first
    told = sensors_of(run)
    if told is None:
        return []
    said = [f"The data: {str(told['note']).rstrip('.')}."] if told.get("note") else []
    if errors.missing:
        share = 100 * float(np.mean(told["sensors"]["missing"]))
        of_test = "" if tested is None else f" ({100 * tested.missing:.1f} % of those in the test part)"
        said.append(
            f"{share:.1f} % of the readings are missing{of_test}. RMSE, MAE and MAPE leave them out; "
            "\N{LEFT DOUBLE QUOTATION MARK}as read\N{RIGHT DOUBLE QUOTATION MARK} takes what stands in their "
            "place for a reading."
        )
        rows = {label: _settings(runs[0]).get("missing") for label, runs in subject.rows.items()}
        as_read = [label for label, missing in rows.items() if missing == "as_read"]
        if as_read:
            said.append(f"Trained and selected as read: {', '.join(as_read)}.")
    observed = told["sensors"]["observed"]
    if not all(observed):
        said.append(
            f"{sum(observed)} of the {len(observed)} sensors take part in training and validation; all are "
            "tested."
        )
    every = told["windows"]["every"]
    if every != 1:
        said.append(f"Trained on one of every {every} training windows.")
    return said


def facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An overview's numbers, in words and for people."""
    observed = told["sensors"]["observed"]
    trained = [] if all(observed) else [("sensors trained on", f"{sum(observed):,} of {len(observed):,}")]
    return [*sensor_facts(told), *trained]


# ---- what is drawn -----------------------------------------------------------------------------------------


def charts_of(subject: Subject, shown: Run, errors: Errors, tested: SensorErrors | None) -> dict[str, str]:
    """SVG by name: of all rows, and of the run that is shown its sensors, with their errors."""
    drawn: dict[str, str] = {}
    told = sensors_of(shown)
    step = None if told is None else int(told["step_minutes"])
    metrics = [errors.metric, errors.metric.replace("rmse", "mae")]
    rows = {
        label: [run.result.details.get("test_by_horizon") or {} for run in runs]
        for label, runs in subject.rows.items()
    }
    rows = {label: runs for label, runs in rows.items() if _drawable(runs, metrics)}
    if rows and step is not None:
        named = {metric: errors.name(metric) for metric in metrics}
        drawn["horizon"] = charts.error_by_horizon(rows, list(subject.rows), named, step, errors.unit)
    if told is not None and tested is not None:
        drawn |= _sensor_charts(shown, told, errors, tested)
    crossed = bytes_by_round(subject)
    if crossed:
        drawn["rounds"] = charts.bytes_by_round(
            crossed, list(subject.rows if subject.comparison else crossed)
        )
    return drawn


def _drawable(runs: Sequence[Mapping[str, Sequence[float]]], metrics: Sequence[str]) -> bool:
    """Whether all seeds have errors for the same steps ahead, and some of them are numbers."""
    lengths = {len(run.get(metric) or ()) for run in runs for metric in metrics}
    return len(lengths) == 1 and lengths != {0}


def _sensor_charts(run: Run, told: Mapping[str, Any], errors: Errors, found: SensorErrors) -> dict[str, str]:
    drawn: dict[str, str] = {}
    path, each = run.folder / "predictions.parquet", told["sensors"]
    ids, horizon, step = [str(name) for name in each["ids"]], told["windows"]["horizon"], told["step_minutes"]
    chosen = chosen_sensors(found.rmse)
    if chosen:
        series = [read_forecasts(path, ids[sensor], horizon) for sensor in chosen.values()]
        titles = [
            f"{words}: sensor {one.sensor}, RMSE {errors.cell('rmse', float(found.rmse[sensor]))}"
            for (words, sensor), one in zip(chosen.items(), series, strict=True)
        ]
        drawn["forecasts"] = charts.forecasts_against_truth(
            list(zip(titles, series, strict=True)), span_to_draw(series, step), step, str(told["quantity"])
        )
    observed = np.array(each["observed"], dtype=bool)
    if each["position"] is not None:
        drawn["map"] = charts.error_map(
            np.array(each["position"], dtype=float), bool(each["geographic"]),
            np.array(told["edges"], dtype=float).reshape(-1, 3), found.rmse, observed, errors.unit, chosen,
        )  # fmt: skip
    elif chosen:
        drawn["by_sensor"] = charts.error_by_sensor(ids, found.rmse, observed, errors.unit)
    return drawn


#: From the ledger's ends to words.
DIRECTIONS = {
    ("clients", "server"): "from the sites",
    ("server", "clients"): "to the sites",
    ("clients", "clients"): "between sites",
}


def bytes_by_round(subject: Subject) -> dict[str, dict[int, int]]:
    """Bytes of set-up (round 0) and training by the end of each round: of one run by direction, of several
    rows in all, of their first seeds. Rows in which nothing crosses are left out."""
    lines: dict[str, dict[int, int]] = {}
    for label, runs in subject.rows.items():
        run = runs[0]
        for entry in run.entries:
            if entry["phase"] not in COUNTED_PHASES:
                continue
            named = label if subject.comparison is not None else DIRECTIONS[entry["from"], entry["to"]]
            line = lines.setdefault(named, dict.fromkeys(range(run.result.rounds + 1), 0))
            for number, amount in entry.get("rounds", {}).items():
                line[int(number)] = line.get(int(number), 0) + amount
    summed = {
        label: dict(zip(sorted(line), np.cumsum([line[r] for r in sorted(line)]).tolist(), strict=True))
        for label, line in lines.items()
    }
    return {label: line for label, line in summed.items() if any(line.values())}
