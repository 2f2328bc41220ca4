"""A metric of the validation part by round, or by another place of a run (`recipe_history`)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.reproductions.history import ROUND, at, has_place, history_of
from graphfed.reproductions.recipe import PERCENT
from graphfed.runs.run import Result
from graphfed.studies.plan import statistic

__all__ = ["curve_of"]

#: Points of a curve against another place than the round.
POINTS = 200


def curve_of(metric: str, results: Sequence[Result], against: str = ROUND) -> dict[str, Any]:
    """A metric of the validation part over runs that differ in their seeds, by the place `against`.

    x [R]: the rounds that every run has evaluated; of another place evenly from where the last run has its
    first evaluation to where the first one has its last, and at each x a run has the metric of its last
    evaluation so far. [] where the runs have no such place. mean, std [R]: over the runs, std None for a
    single one; values: of each run [R]; chosen: a `statistic` of the metric at each run's best round,
    best_round, one of these, and best_x, one of where that was. Raises InputError for a metric that is not of
    the validation part."""
    known = results[0].val
    if metric not in known:
        raise InputError(f"no metric {shown(metric)} of the validation part; {did_you_mean(metric, known)}")
    scale = 100 if metric in PERCENT else 1
    told: dict[str, Any] = {
        "against": against,
        "x": [],
        "mean": [],
        "std": [],
        "values": [[] for _ in results],
        "chosen": statistic([_scaled(result.val[metric], scale) for result in results]),
        "best_round": statistic([result.best_round for result in results]),
        "best_x": statistic([None for _ in results]),
    }
    if not has_place(results[0], against):
        return told
    lines = [[line for line in history_of(result) if line.get("val")] for result in results]
    curves = [
        [(at(line, against), _scaled(line["val"][metric], scale)) for line in evaluated]
        for evaluated in lines
    ]
    x, values = _by_round(curves) if against == ROUND else _by_place(curves)
    statistics = [statistic(list(column)) for column in zip(*values, strict=True)]
    best = [
        next((at(line, against) for line in evaluated if line["round"] == result.best_round), None)
        for result, evaluated in zip(results, lines, strict=True)
    ]
    return told | {
        "x": x,
        "mean": [one["mean"] for one in statistics],
        "std": [one["std"] for one in statistics],
        "values": values,
        "best_x": statistic(best),
    }


#: Of a run, where it was evaluated and what it had there.
_Curve = list[tuple[float, float | None]]


def _by_round(curves: Sequence[_Curve]) -> tuple[list[float], list[list[float | None]]]:
    """The rounds that all curves have, and the values there."""
    rounds = sorted({x for x, _ in curves[0]}.intersection(*({x for x, _ in curve} for curve in curves[1:])))
    return rounds, [[dict(curve)[x] for x in rounds] for curve in curves]


def _by_place(curves: Sequence[_Curve]) -> tuple[list[float], list[list[float | None]]]:
    """A grid over what all curves cover, and on it the last value so far of each."""
    if not all(curves):
        return [], [[] for _ in curves]
    first, last = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    grid = np.linspace(first, last, POINTS) if first < last else np.array([first] * (first == last))
    places = [np.searchsorted([x for x, _ in curve], grid, side="right") - 1 for curve in curves]
    values = [[curve[n][1] for n in found] for curve, found in zip(curves, places, strict=True)]
    return grid.tolist(), values


def _scaled(value: float | None, scale: int) -> float | None:
    return None if value is None else scale * value
