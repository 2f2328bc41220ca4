"""Items of the kind `curves`: a metric of the validation part by round, of the runs of another item."""

from collections.abc import Sequence
from typing import Any

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.experiment.plan import statistic
from graphfed.experiment.recipe import PERCENT
from graphfed.experiment.recipe_figures import history_of
from graphfed.experiment.run import Result

__all__ = ["curve_of"]


def curve_of(metric: str, results: Sequence[Result]) -> dict[str, Any]:
    """A metric of the validation part over runs that differ in their seeds.

    rounds [R]: those that every run has evaluated; mean, std [R]: over the runs, std None for a single one;
    values: of each run [R]; chosen: a `statistic` of the metric at each run's best round, and best_round, one
    of these. Raises InputError for a metric that is not of the validation part."""
    known = results[0].val
    if metric not in known:
        raise InputError(f"no metric {shown(metric)} of the validation part; {did_you_mean(metric, known)}")
    scale = 100 if metric in PERCENT else 1
    curves = [
        {line["round"]: line["val"][metric] for line in history_of(result) if line.get("val")}
        for result in results
    ]
    rounds = sorted(set(curves[0]).intersection(*curves[1:]))
    values = [[_scaled(curve[number], scale) for number in rounds] for curve in curves]
    told = [statistic(list(at)) for at in zip(*values, strict=True)]
    return {
        "rounds": rounds,
        "mean": [at["mean"] for at in told],
        "std": [at["std"] for at in told],
        "values": values,
        "chosen": statistic([_scaled(result.val[metric], scale) for result in results]),
        "best_round": statistic([result.best_round for result in results]),
    }


def _scaled(value: float | None, scale: int) -> float | None:
    return None if value is None else scale * value
