"""The rows of a recipe's item, as they are read: see `recipe`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.reproductions.policies import RecipePolicy
from graphfed.reproductions.values import (
    folder_name,
    mapping,
    number,
    require_different,
    seeds_in,
    text,
)
from graphfed.runs.config import OPTIONS

__all__ = [
    "DEALT",
    "OPTIONS_OF_ROWS",
    "SINGLE",
    "Printed",
    "RecipeRow",
    "Relative",
    "Shared",
    "label_of",
    "rows_of",
]

#: What the rows of an item may set; the seeds are the item's, the folder the reproduction's.
OPTIONS_OF_ROWS = tuple(key for key in OPTIONS if key not in ("method", "seed", "out", "set", "data_dir"))
#: Whose config the rows of kinds have that name no method.
METHODS = {
    "class_counts": "isolated",
    "workloads": "lumos",
    "visible_sensors": "last_value",
    "histograms": "last_value",
}
#: The settings of a run with a policy that the recipe learns.
LEARNED = ("policy", "policy_file")
#: The figure that rows of kinds have where they have one only.
SINGLE = {"workloads": "largest", "operations": "operations"}
DEALT = ("options", "set")

#: The keys of a row, those needed and those allowed, by what the item draws.
_EVERY_ROW = (*DEALT, "label", "printed")
_RUNS_ROW = (*_EVERY_ROW, "seeds", "over", "relative", "quick", "learned")
POINT = ("panel", "series", "x")
_ROW_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dots": (("method",), (*_RUNS_ROW, *POINT)),
    "points": (("method",), (*_RUNS_ROW, *POINT)),
    "class_counts": ((), (*_EVERY_ROW, "over")),
    "workloads": (("series",), (*_EVERY_ROW, "panel", "quick")),
    "visible_sensors": ((), (*DEALT, "label")),
    "histograms": ((), (*DEALT, "label")),
    "operations": (("method",), _EVERY_ROW),
    "returns": (("label", "learned"), ()),
}


@dataclass(frozen=True)
class Printed:
    """A figure of the paper; std: None where it has no deviation."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Relative:
    """How a row compares with another of its item. to: the other's label; printed: by metric, in percent of
    the other's, what is absent was not printed."""

    to: str
    printed: Mapping[str, float]


@dataclass(frozen=True)
class RecipeRow:
    """One line: a method with options and settings. printed: by metric, what is absent was not printed.
    panel, series, x: which point of which line, where the item has an x. totals: printed ones of the holders,
    of class_counts. relative: to which rows it is compared. quick: whether --quick has it. learned: the
    policy that it runs with, or that it shows, and then its method is ""."""

    label: str
    method: str
    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    printed: Mapping[str, Printed] = field(default_factory=dict)
    panel: str = ""
    series: str = ""
    x: float | None = None
    totals: tuple[int, ...] | None = None
    relative: tuple[Relative, ...] = ()
    quick: bool = True
    learned: RecipePolicy | None = None


@dataclass(frozen=True)
class Shared:
    """What the rows of an item have in common. metrics: the item's; known: those that may be printed;
    drawn: "dots" or "points" of runs, else the kind;
    fixed: what quick sets, which no row may vary; policies: those of the recipe, by name."""

    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    known: tuple[str, ...]
    drawn: str
    fixed: tuple[str, ...]
    policies: Mapping[str, RecipePolicy]


def rows_of(where: str, place: int, told: Any, shared: Shared) -> list[RecipeRow]:
    """The row at a place of the list, or those that its `over` stands for."""
    named = f"{where}, row {place}"
    content = mapping(named, told, *_ROW_KEYS[shared.drawn])
    named = f"{where}, {text(named, 'label', content['label'])}" if "label" in content else named
    for key in POINT if shared.drawn == "dots" else ():
        if key in content:
            raise InputError(
                f"{named} has {key!r}, and its item no x; say what the axis shows, as in 'x: data holders'"
            )
    if shared.drawn == "points":
        if "series" not in content:
            raise InputError(f"{named} has no 'series'; name the line that it is a point of")
        if ("x" in content) == ("over" in content):
            raise InputError(f"{named} needs either an x or an over, as in 'over: {{clients: [2, 3, 4]}}'")
    own = {"options": mapping(f"{named}, options", content.get("options", {}), (), OPTIONS_OF_ROWS)}
    own["set"] = mapping(f"{named}, set", content.get("set", {}))
    points = _points(named, content, own, shared) if "over" in content else [content]
    return [_row(named, {**own, **point}, shared) for point in points]


def _points(
    where: str, content: Mapping[str, Any], own: Mapping[str, Any], shared: Shared
) -> list[dict[str, Any]]:
    """One content for each value of `over`."""
    over = mapping(f"{where}, over", content["over"])
    if len(over) != 1 or not isinstance(next(iter(over.values())), list) or not next(iter(over.values())):
        raise InputError(
            f"{where}: over must be one option or setting with its values, as in {{clients: [2, 3, 4]}}"
        )
    ((key, values),) = over.items()
    kind = "options" if key in OPTIONS_OF_ROWS else "set"
    if key in own[kind]:
        raise InputError(f"{where}: {key} is given twice, in {kind} and in over; give it once")
    if key in shared.fixed:
        raise InputError(f"{where}: {key} varies over the rows, so quick cannot set it")
    for value in values:
        number(where, f"over {key}", value)
    require_different(where, f"values of {key}", [shown(value) for value in values])
    printed = _each(f"{where}, printed", content.get("printed"), len(values))
    relative = [
        {"to": to["to"], "printed": _each(f"{where}, relative to {to['to']}", to.get("printed"), len(values))}
        for to in _relative_told(where, content)
    ]
    label = content.get("label", "")
    return [
        {
            **content,
            kind: {**own[kind], key: value},
            "x": value,
            "printed": there,
            "relative": [{**to, "printed": to["printed"][place]} for to in relative],
            **({"label": f"{label} {value}"} if label or shared.drawn != "points" else {}),
        }
        for place, (value, there) in enumerate(zip(values, printed, strict=True))
    ]


def _each(where: str, told: Any, count: int) -> list[Any]:
    """Lists within mappings -> one such mapping with single values for each of `count` places."""
    if told is None:
        return [None] * count
    if isinstance(told, dict):
        parts = {key: _each(f"{where} {key}", inner, count) for key, inner in told.items()}
        return [{key: part[place] for key, part in parts.items()} for place in range(count)]
    if not isinstance(told, list) or len(told) != count:
        found = f"a list of {len(told)}" if isinstance(told, list) else shown(told)
        raise InputError(
            f"{where} must be a list of {count}, one for each value of over, null where nothing was printed "
            f"(found {found})"
        )
    return told


def _row(where: str, content: Mapping[str, Any], shared: Shared) -> RecipeRow:
    """One row; content: without `over`."""
    panel, series = (text(where, key, content.get(key, "")) for key in ("panel", "series"))
    x = number(where, "x", content["x"]) if "x" in content else None
    label = label_of(content)
    if not label:
        raise InputError(f"{where} has no 'label'")
    counts = shared.drawn == "class_counts"
    printed = content.get("printed")
    if shared.drawn == "workloads":
        mapping(f"{where}, options", content["options"], (), ("data",))
    if shared.drawn in SINGLE:
        printed = {"mean": printed}
    if not isinstance(content.get("quick", True), bool):
        raise InputError(f"{where}: quick must be true or false (found {shown(content['quick'])})")
    return RecipeRow(
        label=folder_name(where, "the label", label),
        method="" if shared.drawn == "returns" else METHODS.get(shared.drawn) or str(content["method"]),
        options={**shared.options, **content["options"]},
        # A reproduction is made with the papers' settings.
        settings={"preset": "paper", **shared.settings, **content["set"]},
        seeds=seeds_in(where, content["seeds"]) if "seeds" in content else shared.seeds,
        printed={} if counts else _printed(where, printed, shared),
        panel=panel,
        series=series,
        x=x,
        totals=_totals(where, printed) if counts else None,
        relative=_relative(where, label, content, shared),
        quick=content.get("quick", True),
        learned=_learned(where, content, shared),
    )


def _learned(where: str, content: Mapping[str, Any], shared: Shared) -> RecipePolicy | None:
    """The policy of a row; the run's settings of it are the recipe's."""
    if "learned" not in content:
        return None
    name = text(where, "learned", content["learned"])
    if name not in shared.policies:
        known = did_you_mean(name, shared.policies) if shared.policies else "the recipe has no 'policies'"
        raise InputError(f"{where}: no policy {shown(name)} to learn; {known}")
    for key in LEARNED:
        if key in {**shared.settings, **content["set"]}:
            raise InputError(f"{where}: {key} cannot be used with learned, which gives it; leave it out")
    return shared.policies[name]


def label_of(content: Mapping[str, Any]) -> str:
    """What a row is called: its label, or after its panel, series and x; "" where it has none of these."""
    made = " ".join(str(content[key]) for key in POINT if content.get(key, "") != "")
    return str(content.get("label", made)).strip()


def _relative_told(where: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The comparisons of a row, of which a single one needs no list."""
    told = content.get("relative", [])
    entries = told if isinstance(told, list) else [told]
    return [
        {
            **mapping(f"{where}, relative", entry, ("to",), ("printed",)),
            "to": text(where, "to", entry["to"]),
        }
        for entry in entries
    ]


def _relative(where: str, label: str, content: Mapping[str, Any], shared: Shared) -> tuple[Relative, ...]:
    """printed: a number of the item's single metric, or numbers by metric. One of the rows of an `over` may
    be what the others are compared with."""
    found = []
    for told in _relative_told(where, content):
        if "over" in content and told["to"] == label:
            continue
        printed, named = told.get("printed"), f"{where}, relative to {told['to']}"
        if not isinstance(printed, dict):
            if printed is not None and len(shared.metrics) > 1:
                raise InputError(
                    f"{named}: the item has {len(shared.metrics)} metrics; say which are printed, as in "
                    f"{{{shared.metrics[0]}: -16.29}}"
                )
            printed = {shared.metrics[0]: printed}
        mapping(f"{named}, printed", printed, (), shared.known)
        figures = {
            metric: number(named, f"printed {metric}", figure)
            for metric, figure in printed.items()
            if figure is not None
        }
        found.append(Relative(told["to"], figures))
    return tuple(found)


def _printed(where: str, told: Any, shared: Shared) -> dict[str, Printed]:
    """By metric; {mean, std} alone is that of the item's single metric."""
    by_metric = mapping(f"{where}, printed", {} if told is None else told)
    if {"mean", "std"} & {*by_metric}:
        if len(shared.metrics) > 1:
            raise InputError(
                f"{where}: the item has {len(shared.metrics)} metrics; say which are printed, as in "
                f"{{{shared.metrics[0]}: {{mean, std}}}}"
            )
        by_metric = {shared.metrics[0]: by_metric}
    mapping(f"{where}, printed", by_metric, (), shared.known)
    printed = {}
    for metric, figures in by_metric.items():
        there = {} if figures is None else mapping(f"{where}, printed", figures, ("mean",), ("std",))
        mean, std = (
            None if there.get(key) is None else number(where, f"printed {key}", there[key])
            for key in ("mean", "std")
        )
        if mean is not None:
            printed[metric] = Printed(mean, std)
        elif std is not None:
            raise InputError(f"{where}: printed std {std:g} has no mean; give both, or null")
    return printed


def _totals(where: str, told: Any) -> tuple[int, ...] | None:
    """The printed number of vertices of each holder."""
    if told is not None and (
        not isinstance(told, list)
        or not told
        or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in told)
    ):
        raise InputError(
            f"{where}: printed must be a list of totals, one for each holder, as in [1097, 543] (found "
            f"{shown(told)})"
        )
    return None if told is None else tuple(told)
