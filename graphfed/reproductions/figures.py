"""The figures of a recipe's rows: a metric of a run, and how a row compares with another.

A metric is a name among those of the test part (accuracy), `score` (what decides in the run's task),
`rounds`, `best_round`, `bytes_to_best` (sent in set-up and training up to the best round), a path to a
number in result.json: details.clients.embeddings.mean, seconds.per_round, bytes.total; or where the run was
(`recipe_history`) when it first reached a target, and in its last round: to_target.<target>.<place>,
last.<place>."""

from collections.abc import Mapping, Sequence
from typing import Any

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.reproductions.history import Target, figure_at, has_place, history_of, moment_of
from graphfed.reproductions.recipe import SCORE, RecipeRow
from graphfed.runs.run import Result
from graphfed.studies.plan import statistic
from graphfed.tasks.registry import get_task

__all__ = ["OF_RUN", "compared", "metric_of", "reached_by", "relative_to", "target_value"]

#: Where a path may begin: the parts of a result with numbers in them.
PARTS = ("test", "val", "seconds", "bytes", "details")
#: Metrics that are neither of the test part nor paths.
OF_RUN = ("rounds", "best_round", "bytes_to_best")


def metric_of(result: Result, metric: str, targets: Mapping[str, float | None] | None = None) -> float | None:
    """The figure; None where the run found none. targets: by name, the shares that `to_target` may ask for.
    InputError for a metric that the run does not have."""
    moment = moment_of(result.method, metric, targets or {})
    if moment is not None:
        return figure_at(result, moment, targets or {})
    if metric == SCORE:
        return result.test[get_task(result.task).metric]
    if metric in result.test:
        return result.test[metric]
    if metric in OF_RUN:
        return bytes_to_best(result) if metric == "bytes_to_best" else getattr(result, metric)
    steps = metric.split(".")
    if len(steps) == 1:
        known = [*result.test, SCORE, *OF_RUN]
        raise InputError(f"{result.method} has no metric {shown(metric)}; {did_you_mean(metric, known)}")
    found: Any = {part: getattr(result, part) for part in PARTS}
    for step in steps:
        if not isinstance(found, Mapping) or step not in found:
            known = [key for key in found if isinstance(key, str)] if isinstance(found, Mapping) else []
            hint = did_you_mean(step, known) if known else f"there is nothing below {shown(found)}"
            raise InputError(
                f"{result.method} has no metric {shown(metric)}: no {shown(step)} in its result; {hint}"
            )
        found = found[step]
    if found is not None and (isinstance(found, bool) or not isinstance(found, int | float)):
        hint = f"; name one of {', '.join(map(str, found))}" if isinstance(found, Mapping) else ""
        raise InputError(f"the metric {shown(metric)} of {result.method} is no number{hint}")
    return found


def bytes_to_best(result: Result) -> int | None:
    """None where every client has a best round of its own, and of a run that was not written down."""
    if result.best_round is None or result.folder is None:
        return None
    lines = history_of(result)
    return next((line["bytes"] for line in lines if line["round"] == result.best_round), None)


def target_value(target: Target | None, results: Sequence[Result]) -> float | None:
    """A target as a share; results: of the row that it follows. None where there is none."""
    if target is None or not target.row:
        return None if target is None else target.share
    scores = [result.val[get_task(result.task).metric] for result in results]
    reached: float | None = statistic(scores)["mean"]
    return None if reached is None else reached - target.less


def reached_by(metric: str, results: Sequence[Result], targets: Mapping[str, float | None]) -> int | None:
    """How many of the runs of a row reached the target that a metric asks for; None where it asks for none,
    or the runs have no such place."""
    moment = moment_of("", metric, targets)
    if moment is None or moment.target is None or targets[moment.target] is None:
        return None
    if not has_place(results[0], moment.place):
        return None
    return sum(figure_at(result, moment, targets) is not None for result in results)


def compared(
    asked: RecipeRow, rows: Mapping[str, Mapping[str, Any]], metrics: Sequence[str]
) -> list[dict[str, Any]]:
    """For each row that `asked` is compared with: to, and by metric ours (a `statistic`) and printed, in
    percent of the other row's figure. rows: by label, with seeds and ours."""
    return [
        {
            "to": relative.to,
            "ours": {m: relative_to(rows[asked.label], rows[relative.to], m) for m in metrics},
            "printed": {m: relative.printed.get(m) for m in metrics},
        }
        for relative in asked.relative
    ]


def relative_to(row: Mapping[str, Any], other: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """By how many percent of the other row's figure this one's is above it: a `statistic` over the seeds that
    both have, each compared with itself. None where the other's is 0."""
    mine, theirs = (dict(zip(r["seeds"], r["ours"][metric]["values"], strict=True)) for r in (row, other))
    pairs = [(mine[seed], theirs[seed]) for seed in mine if seed in theirs]
    return statistic([None if a is None or not b else 100 * (a / b - 1) for a, b in pairs])
