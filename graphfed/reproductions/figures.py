"""Read the figures of an item's rows from the folders of their runs.

A metric is a name among those of the test part (accuracy), `score` (the metric that decides in the run's
task), `rounds`, `best_round`, `bytes_to_best` (sent in set-up and training up to the best round), a path to a
number in result.json (seconds.per_round, bytes.total, details.clients.embeddings.mean), or a place in the run
when it first reached a target, to_target.<target>.<place>, when the mean of its last five evaluations first
did, to_target_mean.<target>.<place>, or in its last round, last.<place>. A single evaluation may reach a
target by luck.

A place is what a line of metrics.jsonl says about its round: `round`, `bytes` (sent in set-up and training so
far), `seconds` (of training so far, by this machine's clock), or `facts.<name>`, a number that the method
reports about itself: facts.modelled_seconds. A run of a method that reports nothing has no such place.
"""

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.methods.registry import get_method
from graphfed.reproductions.base import PERCENT, ROUND, SCORE, Curves, Row, Runs
from graphfed.runs import folder as files
from graphfed.runs.folder_schema import MetricsLine
from graphfed.runs.run import Result
from graphfed.studies.plan import Statistic, run_name, statistic
from graphfed.tasks.registry import get_task

#: The places that every line has, and how those begin that a method adds.
PLACES = (ROUND, "bytes", "seconds")
FACTS = "facts."
#: The evaluations in a row whose mean must reach the target of a metric that begins with to_target_mean.
MEAN_OF = 5
#: Where a path may begin: the parts of a result with numbers in them.
PARTS = ("test", "val", "seconds", "bytes", "details")
#: Metrics that are neither of the test part nor paths.
OF_RUN = ("rounds", "best_round", "bytes_to_best")
#: Points of a curve against another place than the round.
POINTS = 200

#: By name, validation scores as shares; None for a target that there is not.
Targets = Mapping[str, float | None]


# ---- a metric of a run -------------------------------------------------------------------------------------


class InRun(NamedTuple):
    """A metric that is a place in a run: in its last round (target None), or in the first one in which the
    mean of its last `mean_of` evaluations reached a target.
    """

    place: str
    target: str | None = None
    mean_of: int = 1


def in_run(metric: str) -> InRun | None:
    """Return the place in a run that a metric is; None for another metric."""
    kind, _, rest = metric.partition(".")
    if kind == "last":
        return InRun(rest)
    if kind not in ("to_target", "to_target_mean"):
        return None
    target, _, place = rest.partition(".")
    return InRun(place, target, MEAN_OF if kind == "to_target_mean" else 1)


def metric_of(result: Result, metric: str, targets: Targets | None = None) -> float | None:
    """Return a metric of a run in the run's unit; None if the run found none.

    `targets` has the targets of metrics of the form `to_target`. Raises InputError if the run has no such
    metric.
    """
    where = in_run(metric)
    if where is not None:
        return _place_at(result, where, targets or {})
    if metric == SCORE:
        return result.test[get_task(result.task).metric]
    if metric in result.test:
        return result.test[metric]
    if metric in OF_RUN:
        return _bytes_to_best(result) if metric == "bytes_to_best" else getattr(result, metric)
    if "." not in metric:
        known = [*result.test, SCORE, *OF_RUN]
        raise InputError(f"{result.method} has no metric {shown(metric)}; {did_you_mean(metric, known)}")
    return _number_at(result, metric)


def _number_at(result: Result, path: str) -> float | None:
    """Return the number at a path in result.json."""
    found: Any = {part: getattr(result, part) for part in PARTS}
    for step in path.split("."):
        if not isinstance(found, Mapping) or step not in found:
            known = [key for key in found if isinstance(key, str)] if isinstance(found, Mapping) else []
            hint = did_you_mean(step, known) if known else f"there is nothing below {shown(found)}"
            raise InputError(
                f"{result.method} has no metric {shown(path)}: no {shown(step)} in its result; {hint}"
            )
        found = found[step]
    if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
        raise InputError(f"the metric {shown(path)} of {result.method} is no number")
    return found


def _bytes_to_best(result: Result) -> int | None:
    """Return the bytes up to the best round; None if every client has its own, or the run was not written."""
    if result.best_round is None or result.folder is None:
        return None
    return next((line.bytes for line in _history_of(result) if line.round == result.best_round), None)


def check_metrics(item: Runs, result: Result) -> None:
    """Raise InputError unless the runs of an item have its metrics and the place to draw curves against."""
    # The values are not known before the runs, but the names are.
    targets = dict.fromkeys(item.targets)
    try:
        for metric in item.metrics:
            metric_of(result, metric, targets)
        _has_place(result, item.against or ROUND)
    except InputError as error:
        raise InputError(f"{item.name}: {error}") from None


# ---- a place in a run --------------------------------------------------------------------------------------


def _history_of(result: Result) -> list[MetricsLine]:
    """Return the lines of metrics.jsonl; InputError if a written run has none that can be read."""
    assert result.folder is not None
    path = result.folder / "metrics.jsonl"
    lines = [MetricsLine.model_validate(line) for line in files.read_lines(path, MetricsLine)]
    if not lines:
        raise InputError(f"{path} has no line; run it again in another folder")
    return lines


def _has_place(result: Result, place: str) -> bool:
    """Return whether the lines of a run have a place.

    It raises InputError if there is no such place, or the method reports other facts, but not this one.
    """
    name = place.removeprefix(FACTS)
    if name == place:
        if place not in PLACES:
            raise InputError(f"a run has no place {shown(place)}; {did_you_mean(place, PLACES)}")
        return True
    if not get_method(result.method).state.facts:
        return False
    if name not in result.details:  # which has the facts of the best round
        raise InputError(f"{result.method} has no fact {shown(name)}; {did_you_mean(name, result.details)}")
    return True


def _at(line: MetricsLine, place: str) -> float:
    """Return the number at a place that the line has."""
    places = {ROUND: line.round, "bytes": line.bytes, "seconds": line.seconds}
    found = line.facts[place.removeprefix(FACTS)] if place.startswith(FACTS) else places[place]
    if found is None:
        raise InputError(f"{shown(place)} of round {line.round} is not a number")
    return found


def _place_at(result: Result, where: InRun, targets: Targets) -> float | None:
    """Return the number at a place in a run; None if the run never reached the target, has no such place, or
    was not written.
    """
    if where.target is not None and where.target not in targets:
        raise InputError(f"no target {shown(where.target)}; {did_you_mean(where.target, targets)}")
    if not _has_place(result, where.place) or result.folder is None:
        return None
    lines = _history_of(result)
    if where.target is None:
        return _at(lines[-1], where.place)
    target = targets[where.target]
    line = None if target is None else _first_reached(lines, result.task, target, where.mean_of)
    return None if line is None else _at(line, where.place)


def _first_reached(
    lines: Sequence[MetricsLine], task: str, target: float, mean_of: int
) -> MetricsLine | None:
    """Return the first line at which the mean of the deciding validation metric over the last `mean_of`
    evaluations is as good as `target`. A run with fewer evaluations does not reach it.
    """
    spec = get_task(task)
    window: deque[float] = deque(maxlen=mean_of)
    for line in lines:
        value = (line.val or {}).get(spec.metric)
        if value is None:
            continue
        window.append(value)
        # The mean of one value in floating point is that value, which a target may equal.
        mean = sum(window) / mean_of
        if len(window) == mean_of and (mean == target or spec.better(mean, target)):
            return line
    return None


def _reached(metric: str, results: Sequence[Result], targets: Targets) -> dict[str, int]:
    """Return how many runs of a row reached the target of a metric; {} without a target or such a place."""
    where = in_run(metric)
    if where is None or where.target is None or targets[where.target] is None:
        return {}
    if not _has_place(results[0], where.place):
        return {}
    return {"reached": sum(_place_at(result, where, targets) is not None for result in results)}


# ---- curves ------------------------------------------------------------------------------------------------


def curve_of(metric: str, results: Sequence[Result], against: str = ROUND) -> dict[str, object]:
    """Return a metric of the validation part over R runs that differ in their seeds, by a place in the runs.

    Returns:
        x [X]: the rounds that every run has evaluated. Another place is divided evenly, from the last run's
        first evaluation to the first run's last, and at each x a run has the metric of its last evaluation so
        far. x is [] if the runs have no such place. mean, std [X]: over the runs, std None for a single run;
        values [R, X];
        chosen: a `statistic` of the metric at each run's best round; best_round: one of these rounds; best_x:
            the place of one of them. Numbers of curves have 6 digits.

    Raises:
        InputError: The metric is not of the validation part.
    """
    known = results[0].val
    if metric not in known:
        raise InputError(f"no metric {shown(metric)} of the validation part; {did_you_mean(metric, known)}")
    scale = 100 if metric in PERCENT else 1
    curve: dict[str, object] = {
        "against": against,
        "x": [],
        "mean": [],
        "std": [],
        "values": [[] for _ in results],
        "chosen": statistic([_scaled(result.val[metric], scale) for result in results]),
        "best_round": statistic([result.best_round for result in results]),
        "best_x": statistic([None for _ in results]),
    }
    if not _has_place(results[0], against):
        return curve
    lines = [[line for line in _history_of(result) if line.val] for result in results]
    points = [
        [(_at(line, against), _scaled((line.val or {})[metric], scale)) for line in evaluated]
        for evaluated in lines
    ]
    x, values = _by_round(points) if against == ROUND else _by_place(points)
    statistics = [statistic(list(column)) for column in zip(*values, strict=True)]
    best = [
        next((_at(line, against) for line in evaluated if line.round == result.best_round), None)
        for result, evaluated in zip(results, lines, strict=True)
    ]
    return curve | {
        "x": _for_drawing(x),
        "mean": _for_drawing([one["mean"] for one in statistics]),
        "std": _for_drawing([one["std"] for one in statistics]),
        "values": [_for_drawing(of_run) for of_run in values],
        "best_x": statistic(best),
    }


#: Of a run, where it was evaluated and what it had there.
_Points = list[tuple[float, float | None]]


def _by_round(curves: Sequence[_Points]) -> tuple[list[float], list[list[float | None]]]:
    """Return the rounds that all curves have, and the values there."""
    rounds = sorted({x for x, _ in curves[0]}.intersection(*({x for x, _ in curve} for curve in curves[1:])))
    return rounds, [[dict(curve)[x] for x in rounds] for curve in curves]


def _by_place(curves: Sequence[_Points]) -> tuple[list[float], list[list[float | None]]]:
    """Return a grid over what all curves cover, and each curve's last value so far on it."""
    # A run without any evaluation covers nothing.
    if not all(curves):
        return [], [[] for _ in curves]
    # The part of the axis that all curves cover, so that every mean is over all runs.
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    grid = np.linspace(first, last, POINTS) if first < last else np.array([first] * (first == last))
    # To the right of equal places, minus one: the last evaluation so far.
    places = [np.searchsorted([x for x, _ in curve], grid, side="right") - 1 for curve in curves]
    values = [[curve[n][1] for n in found] for curve, found in zip(curves, places, strict=True)]
    return grid.tolist(), values


def _for_drawing(values: Sequence[float | None]) -> list[float | None]:
    """Round to 6 digits, with which a record of many curves is a third as large."""
    return [None if value is None else float(f"{value:.6g}") for value in values]


def _scaled(value: float | None, scale: float) -> float | None:
    return None if value is None else scale * value


# ---- the rows of an item -----------------------------------------------------------------------------------


def found_runs(item: Runs, folder: Path) -> dict[str, Any]:
    """Return the part of reproduce.json about an item of runs or curves (see `Reproduction`)."""
    results = {row.label: _results_of(row, item, folder) for row in item.rows}
    found = {"metrics": item.metrics, "called": item.called, "against": item.against}
    if isinstance(item, Curves):
        rows = [_found_curve(row, item, results[row.label]) for row in item.rows]
        return {**found, "rows": rows}
    targets = _targets_of(item, results)
    rows = [_found_row(row, item, results[row.label], targets) for row in item.rows]
    by_label = {row.label: figures for row, figures in zip(item.rows, rows, strict=True)}
    for row in item.rows:
        by_label[row.label]["relative"] = _compared(row, by_label, item.metrics)
    panels = dict.fromkeys(row.panel for row in item.rows) if item.x else ()
    return {
        **found,
        "x": item.x,
        "panels": item.panels or tuple(panels),
        "relative_plot": f"{item.name}-relative.svg" if any(row.relative for row in item.rows) else None,
        "targets": {
            name: target and {"share": targets[name], "of": target.row or None, "less": target.less}
            for name, target in item.targets.items()
        },
        "curves_plot": None if item.against is None else f"{item.name}-curves.svg",
        "rows": rows,
    }


def _folders_of(row: Row, item: Runs) -> list[Path]:
    return [Path(item.run_folder) / run_name(row.label, seed) for seed in item.seeds_of(row)]


def _results_of(row: Row, item: Runs, folder: Path) -> list[Result]:
    return [Result.read(folder / place) for place in _folders_of(row, item)]


def _targets_of(item: Runs, results: Mapping[str, Sequence[Result]]) -> dict[str, float | None]:
    """Return the targets of an item as fractions; results: by label of a row."""
    shares: dict[str, float | None] = {}
    for name, target in item.targets.items():
        shares[name] = None if target is None else target.share
        if target is not None and target.row:
            # What the row reached at its best rounds, as a mean over its seeds.
            followed = results[target.row]
            mean = statistic([result.val[get_task(result.task).metric] for result in followed])["mean"]
            shares[name] = None if mean is None else mean - target.less
    return shares


def _found_curve(row: Row, item: Curves, results: Sequence[Result]) -> dict[str, Any]:
    (metric,) = item.metrics
    return {
        "label": row.label,
        "method": results[0].method,
        "seeds": [result.seed for result in results],
        **curve_of(metric, results, item.against or ROUND),
        "folders": [str(place) for place in _folders_of(row, item)],
    }


def _found_row(row: Row, item: Runs, results: Sequence[Result], targets: Targets) -> dict[str, Any]:
    ours: dict[str, dict[str, Any]] = {}
    printed, difference = {}, {}
    for metric in item.metrics:
        # Fractions are printed in percent, other metrics in the item's unit.
        scale = 100 if metric in PERCENT else 1 / item.divided_by.get(metric, 1)
        values = [_scaled(metric_of(result, metric, targets), scale) for result in results]
        ours[metric] = {**statistic(values), **_reached(metric, results, targets)}
        of_paper, mean = row.printed.get(metric), ours[metric]["mean"]
        printed[metric] = None if of_paper is None else dataclasses.asdict(of_paper)
        difference[metric] = None if of_paper is None or mean is None else mean - of_paper.mean
    found: dict[str, Any] = {
        "label": row.label,
        "panel": row.panel,
        "series": row.series,
        "x": row.x,
        "method": results[0].method,
        "policy": row.policy and row.policy.name,
        "changed_settings": _settings_changed(results[0]),
        "seeds": [result.seed for result in results],
        "rounds": [result.rounds for result in results],
        "ours": ours,
        "printed": printed,
        "difference": difference,
        "seconds": sum(result.seconds["total"] for result in results),
        "folders": [str(place) for place in _folders_of(row, item)],
    }
    if item.against is not None:
        deciding = get_task(results[0].task).metric
        found["curve"] = {"metric": deciding, **curve_of(deciding, results, item.against)}
    return found


def _settings_changed(result: Result) -> dict[str, object]:
    """Return the settings that differ from the defaults; the path of a policy's file does not count."""
    changed = result.details.get("changed_settings", {})
    return {key: value for key, value in changed.items() if key != "policy_file"}


def _compared(
    row: Row, rows: Mapping[str, Mapping[str, Any]], metrics: Sequence[str]
) -> list[dict[str, object]]:
    """Return each comparison of a row; rows: by label, with seeds and ours."""
    return [
        {
            "to": relative.to,
            "ours": {metric: relative_to(rows[row.label], rows[relative.to], metric) for metric in metrics},
            "printed": {metric: relative.printed.get(metric) for metric in metrics},
        }
        for relative in row.relative
    ]


def relative_to(row: Mapping[str, Any], other: Mapping[str, Any], metric: str) -> Statistic:
    """Return by how many percent of the other row's figure this row's figure is above it.

    It is a `statistic` over the seeds that both rows have, seed by seed; None if the other row's figure is 0.
    """
    this, that = (dict(zip(r["seeds"], r["ours"][metric]["values"], strict=True)) for r in (row, other))
    pairs = [(this[seed], that[seed]) for seed in this if seed in that]
    return statistic([None if a is None or not b else 100 * (a / b - 1) for a, b in pairs])
