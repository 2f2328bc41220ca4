"""Check tables that look wrong: compare the rows with each other, and collect the warnings of their runs."""

import math
from collections.abc import Iterable, Iterator, Sequence

from graphfed.files import JsonObject
from graphfed.methods.references import POOLED_AND_ALONE, REPEATS_LAST, UNTRAINED
from graphfed.runs.diagnostics import ResultWarning
from graphfed.studies.plan import ComparedRow
from graphfed.tasks.registry import get_task

__all__ = ["check_comparison", "unequal_settings"]


def check_comparison(task: str, metric: str, rows: Sequence[ComparedRow]) -> list[ResultWarning]:
    """Return what looks wrong with a table: with rows compared to each other, then with each row's runs.

    Args:
        task: A name in `tasks.registry.TASKS`.
        metric: The test metric that decides.
        rows: As in comparison.json; a row may have no `warnings` and no `training`.

    Returns:
        The warnings, each with the labels of the rows that it concerns.
    """
    found = [*_pooled_below_alone(task, metric, rows), *_above_last_value(task, metric, rows)]
    unequal = unequal_settings(rows)
    if unequal:
        listed = "; ".join(
            f"{label}: {', '.join(f'{key}={value}' for key, value in settings.items())}"
            for label, settings in unequal.items()
        )
        found.append(
            ResultWarning(
                "unequal_settings",
                f"Rows differ in training settings that others have too ({listed}), so the table compares "
                "settings as well as methods. Give every row the same ones, as in --set lr=0.01.",
                tuple(unequal),
            )
        )
    return [*found, *_runs_of_rows(rows)]


#: Settings of how sums are protected: they change no result, up to rounding.
_NOT_TRAINING = ("aggregation", "protocols")


def unequal_settings(rows: Iterable[ComparedRow]) -> dict[str, JsonObject]:
    """Return the settings that make the rows' training unequal.

    A setting that two rows have with different values is listed for every row whose value is not the usual
    one: that of most rows, of equally many the value that occurs first.

    Args:
        rows: As in comparison.json, with `label` and `training` (setting to value).

    Returns:
        Label to {setting: value}; rows that have the usual values only are left out.
    """
    rows = list(rows)
    values: dict[str, list[object]] = {}
    for row in rows:
        for key, value in row.get("training", {}).items():
            if key not in _NOT_TRAINING:
                values.setdefault(key, []).append(value)
    usual = {key: max(those, key=those.count) for key, those in values.items()}
    found = {}
    for row in rows:
        own = {
            key: value
            for key, value in row.get("training", {}).items()
            if key in usual and value != usual[key]
        }
        if own:
            found[row["label"]] = own
    return found


def _pooled_below_alone(task: str, metric: str, rows: Sequence[ComparedRow]) -> Iterator[ResultWarning]:
    """Warn if training on all data is worse than every client alone.

    Any difference counts, because the reader must then decide whether the reference can be trusted. The text
    has the spread.
    """
    known = {row["method"]: (row, mean) for row in rows if (mean := _mean(row, metric)) is not None}
    for pooled, alone in POOLED_AND_ALONE:
        if pooled not in known or alone not in known:
            continue
        (upper, pooled_mean), (lower, alone_mean) = known[pooled], known[alone]
        if get_task(task).better(alone_mean, pooled_mean):
            spread = _spread(upper, lower, metric, abs(pooled_mean - alone_mean))
            yield ResultWarning(
                "central_below_isolated",
                f"{upper['label']}, which trains on all data together, has a worse mean test "
                f"{metric.replace('_', ' ')} ({pooled_mean:.4g}) than {lower['label']} "
                f"({alone_mean:.4g}), where every client trains alone{spread}. More data should "
                "not hurt: the settings probably do not suit this graph. Try another learning rate, "
                "optimiser or feature scaling, or more rounds, before comparing methods.",
                (upper["label"],),
            )


def _above_last_value(task: str, metric: str, rows: Sequence[ComparedRow]) -> Iterator[ResultWarning]:
    """Warn if a trained forecast has a larger error than repeating the last reading."""
    reference = next((row for row in rows if row["method"] == REPEATS_LAST), None)
    level = None if reference is None else _mean(reference, metric)
    if reference is None or level is None or not get_task(task).error:
        return
    for row in rows:
        mean = _mean(row, metric)
        if row["method"] not in UNTRAINED and mean is not None and mean >= level:
            yield ResultWarning(
                "worse_than_last_value",
                f"{row['label']} has a test {metric.replace('_', ' ')} of {mean:.4g}, and repeating the last "
                f"reading has {level:.4g}: nothing useful was learned. Train for more rounds or with another "
                "learning rate.",
                (row["label"],),
            )


def _runs_of_rows(rows: Sequence[ComparedRow]) -> Iterator[ResultWarning]:
    """Return the warnings of a row's runs, one for each code, with the text of the first run."""
    for row in rows:
        by_code: dict[str, list[JsonObject]] = {}
        for warning in row.get("warnings", ()):
            by_code.setdefault(warning["code"], []).append(warning)
        for code, those in by_code.items():
            seeds = ", ".join(str(warning["seed"]) for warning in those)
            plural = "s" if len(those) > 1 else ""
            text = f"{row['label']}, seed{plural} {seeds} of {len(row['seeds'])}: {those[0]['text']}"
            yield ResultWarning(code, text, (row["label"],))


def _mean(row: ComparedRow, metric: str) -> float | None:
    """Return the mean of a test metric over seeds; None if a seed has none."""
    found = row["test"].get(metric)
    return None if found is None else found["mean"]


def _spread(upper: ComparedRow, lower: ComparedRow, metric: str, difference: float) -> str:
    """Return how the difference of two rows compares with their spread over seeds."""
    deviations = [std for row in (upper, lower) if (std := row["test"][metric]["std"]) is not None]
    if len(deviations) < 2:
        return "; with one seed the spread is not known"
    error = math.hypot(*deviations) / math.sqrt(len(upper["seeds"]))
    within = "within" if difference <= 2 * error else "beyond"
    return f" ({within} two standard errors over {len(upper['seeds'])} seeds)"
