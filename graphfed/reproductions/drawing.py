"""How the figures of a reproduction's items are named and written."""

from collections.abc import Mapping
from typing import Any

from graphfed.reproductions.figures import OF_RUN
from graphfed.reproductions.history import FACTS, LAST, TO_TARGET
from graphfed.reproductions.recipe import PERCENT

__all__ = [
    "axis_of",
    "difference_text",
    "figure_text",
    "name_of",
    "place_name",
]


def name_of(item: Mapping[str, Any], metric: str) -> str:
    """A metric in the words of the item."""
    name: str = item["called"].get(metric, _words_of(metric))
    return name


def _words_of(metric: str) -> str:
    """``seconds to most``, ``modelled seconds at the end``, ``macro f1``."""
    kind, _, rest = metric.partition(".")
    if kind == LAST:
        return f"{_words_of_place(rest)} at the end"
    if kind == TO_TARGET:
        target, _, place = rest.partition(".")
        return f"{_words_of_place(place)} to {target}"
    return metric.replace("_", " ")


def _words_of_place(place: str) -> str:
    return place.removeprefix(FACTS).replace("_", " ")


def place_name(item: Mapping[str, Any], place: str) -> str:
    """A place of a run (`recipe_history`) in the words of the item."""
    name: str = item["called"].get(place, _words_of_place(place))
    return name


def axis_of(item: Mapping[str, Any], metric: str, part: str = "test") -> str:
    """What an axis shows, with the part of the data that the metric is of."""
    if "." in metric or metric in OF_RUN:
        return name_of(item, metric)
    return f"{part} {name_of(item, metric)}{' (%)' if metric in PERCENT else ''}"


def figure_text(told: Mapping[str, Any] | None, metric: str) -> str:
    """``80.69 ± 0.65`` of a share in percent, else ``11.487 ± 0.021``; a whole number as it is. Where not all
    runs reached a target: ``not reached (1 of 3 did)``."""
    if told is not None and "reached" in told and told["reached"] < len(told["values"]):
        return f"not reached ({told['reached']} of {len(told['values'])} did)"
    if told is None or told["mean"] is None:
        return "-"
    decimals = _decimals(told["mean"], metric) if told["std"] is None else _decimals(0.5, metric)
    text = f"{told['mean']:.{decimals}f}"
    return text if told["std"] is None else f"{text} ± {told['std']:.{decimals}f}"


def difference_text(gap: float | None, metric: str) -> str:
    """``+0.12``."""
    return "-" if gap is None else f"{gap:+.{_decimals(gap, metric)}f}"


def _decimals(value: float, metric: str) -> int:
    if metric in PERCENT:
        return 2
    return 0 if float(value).is_integer() else 3
