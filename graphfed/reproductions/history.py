"""When a run was where: its lines in metrics.jsonl, one for each round, places in a line, and targets.

A place is `round`, `bytes` (sent in set-up and training so far), `seconds` (of training so far, by this
machine's clock), or `facts.<name>`, a number that the method says of itself: facts.modelled_seconds. In a
run of a method that says nothing of itself there is no such place."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.methods.registry import get_method
from graphfed.reproductions.values import mapping, number, text
from graphfed.runs import folder as files
from graphfed.runs.folder_schema import MetricsLine
from graphfed.runs.run import Result
from graphfed.tasks.registry import get_task

__all__ = [
    "FACTS",
    "LAST",
    "ROUND",
    "TO_TARGET",
    "Moment",
    "Target",
    "at",
    "figure_at",
    "has_place",
    "history_of",
    "moment_of",
    "place_in",
    "target_in",
]

ROUND = "round"
#: The places that every line has, and how those begin that a method adds.
PLACES = (ROUND, "bytes", "seconds")
FACTS = "facts."
#: How metrics begin that are of a moment of a run.
TO_TARGET, LAST = "to_target", "last"


@dataclass(frozen=True)
class Target:
    """A validation score to reach, as a share: `share`, or `less` than what the row `row` reached, mean over
    its seeds."""

    share: float | None = None
    row: str = ""
    less: float = 0.0


@dataclass(frozen=True)
class Moment:
    """What a metric such as `to_target.<target>.<place>` or `last.<place>` asks: the place of the round in
    which the run first reached the target, or of its last round (target None)."""

    place: str
    target: str | None


# ---- as a recipe says it -----------------------------------------------------------------------------------


def place_in(where: str, told: Any) -> str:
    """InputError for what is no place."""
    fact = isinstance(told, str) and told.startswith(FACTS) and told != FACTS
    if told not in PLACES and not fact:
        hint = did_you_mean(str(told), PLACES)
        raise InputError(
            f"{where}: a run has no place {shown(told)}; {hint} (or what the method says of itself, as "
            "facts.modelled_seconds)"
        )
    return str(told)


def moment_of(where: str, metric: str, targets: Collection[str]) -> Moment | None:
    """What a metric asks of a moment; None for any other metric. InputError where it cannot be read."""
    kind, _, rest = metric.partition(".")
    if kind == LAST:
        return Moment(place_in(f"{where}, {metric}", rest), None)
    if kind != TO_TARGET:
        return None
    target, _, place = rest.partition(".")
    if target not in targets:
        hint = did_you_mean(target, targets) if targets else "name some, as in 'targets: {most: 0.8}'"
        raise InputError(f"{where}, {metric}: the item has no target {shown(target)}; {hint}")
    return Moment(place_in(f"{where}, {metric}", place), target)


def target_in(where: str, told: Any, rows: Collection[str]) -> Target | None:
    """A share, the label of one of the `rows`, or ``{of: <label>, less: <share>}``; None for null."""
    if told is None:
        return None
    if isinstance(told, int | float):
        if isinstance(told, bool) or not 0 < told <= 1:
            raise InputError(f"{where} must be a share above 0 and at most 1, as 0.9 (found {shown(told)})")
        return Target(share=float(told))
    content = told if isinstance(told, dict) else {"of": told}
    mapping(where, content, ("of",), ("less",))
    row, less = text(where, "of", content["of"]), number(where, "less", content.get("less", 0))
    if row not in rows:
        raise InputError(f"{where}: no row {shown(row)}; {did_you_mean(row, rows)}")
    return Target(row=row, less=less)


# ---- of a run ----------------------------------------------------------------------------------------------


def history_of(result: Result) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl. InputError where a written run has none that can be read."""
    assert result.folder is not None
    path = result.folder / "metrics.jsonl"
    lines = files.read_lines(path, MetricsLine)
    if not lines:
        raise InputError(f"{path} has no line; run it again in another folder")
    return lines


def has_place(result: Result, place: str) -> bool:
    """Whether the lines of a run have a place. InputError for a fact that its method does not say, where it
    says others."""
    if not place.startswith(FACTS):
        return True
    if not get_method(result.method).facts:
        return False
    name = place.removeprefix(FACTS)
    if name not in result.details:  # which has the facts of the best round
        raise InputError(f"{result.method} has no fact {shown(name)}; {did_you_mean(name, result.details)}")
    return True


def at(line: Mapping[str, Any], place: str) -> float:
    """The number at a place that the line has."""
    found: float = line["facts"][place.removeprefix(FACTS)] if place.startswith(FACTS) else line[place]
    return found


def figure_at(result: Result, moment: Moment, targets: Mapping[str, float | None]) -> float | None:
    """Where the run was; targets: by name, None for one that there is not. None where the run never reached
    its target, has no such place, or was not written down."""
    if not has_place(result, moment.place) or result.folder is None:
        return None
    lines = history_of(result)
    if moment.target is None:
        return at(lines[-1], moment.place)
    target = targets[moment.target]
    line = None if target is None else _first_reached(lines, result.task, target)
    return None if line is None else at(line, moment.place)


def _first_reached(lines: list[dict[str, Any]], task: str, target: float) -> dict[str, Any] | None:
    """The first line whose validation metric, the one that decides in the task, is as good as `target`."""
    spec = get_task(task)
    for line in lines:
        value = (line["val"] or {}).get(spec.metric)
        if value is not None and (value == target or spec.better(value, target)):
            return line
    return None
