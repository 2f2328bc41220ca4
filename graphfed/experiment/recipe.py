"""Recipes: which runs make up a table or figure of a paper, and what the paper printed there.

A recipe is a small YAML file, graphfed/experiment/recipes/<paper>.yaml, or one's own:

    title, authors, venue
    items:
      <item>:                    a table or figure
        title, source            what it is, and where the printed figures are from
        notes: [...]             how the protocols differ
        metric: accuracy         of the test part; several as in [accuracy, macro_f1]; score: what decides in
                                 the run's task; or a path into result.json, as seconds.per_round
        called: {metric: words}  what a metric is called in tables and drawings
        seeds: [...]             or a range, 0-39; a row may have its own
        options: {...}, set: {...}         common to the rows, as in a config file
        quick: {seeds: [...], rounds: ..., set: {...}}     what replaces them with --quick
        x: data holders          for lines: what the axis shows
        panels: [...]            for lines: the order of the drawings (default: that of the rows)
        rows:
          - {label, method, options: {...}, set: {...}, seeds: [...], printed: {mean, std}}
          - {panel, series, x: 2, method, ..., printed: {accuracy: {mean, std}, macro_f1: {mean, std}}}
          - {panel, series, over: {clients: [2, 3]}, method, ..., printed: {mean: [..], std: [..]}}
          - {..., relative: {to: <label of a row>, printed: -16.29}}        a list for several rows
          - {..., quick: false}  left out with --quick
      <item>:                    other metrics of the same runs
        title, source, metric, runs_of: <item>
      <item>:                    no runs: how many vertices of each class each holder has
        title, source, kind: class_counts, options: {...}, set: {...}
        rows:
          - {label, options: {...}, set: {...}, printed: [...]}      each holder's total
      <item>:                    no runs: who keeps which edge in Lumos, by balancer
        title, source, kind: workloads, seeds, quick
        rows:
          - {panel, series, options: {data: ...}, set: {...}, printed: 39}      the largest workload

printed is in percent where the metric is a share, null where nothing was printed; that of `relative` is how
many percent the row is above the other (or below: negative). `over` has one key, an option or a setting, and
stands for one row for each of its values, which is the row's x. What --quick runs on other data has no
printed figures.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from graphfed.data.datasets import Availability
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.experiment.config import OPTIONS
from graphfed.experiment.plan import chosen_seeds, parse_seeds
from graphfed.plain_yaml import read_yaml

__all__ = [
    "PERCENT",
    "SCORE",
    "Item",
    "Printed",
    "Recipe",
    "RecipeRow",
    "Relative",
    "read_recipe",
    "recipe_names",
]

FOLDER = Path(__file__).parent / "recipes"
#: The metric that decides in a run's task: accuracy, or the AUC.
SCORE = "score"
#: Metrics that are shares, printed in percent.
PERCENT = ("accuracy", "macro_f1", "auc", SCORE)
#: What the rows of the kind workloads may have printed.
_LARGEST = "largest"
#: What the rows of an item may set; the seeds are the item's, the folder the reproduction's.
_OPTIONS = tuple(key for key in OPTIONS if key not in ("method", "seed", "out", "set", "data_dir"))


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
    of class_counts. relative: to which rows it is compared. quick: whether --quick has it."""

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


@dataclass(frozen=True)
class Item:
    """One table or figure; options, settings and seeds are those of its rows. metrics: () of the kinds
    without runs, which have only the first seed. runs_in: the item that has the runs, itself or its runs_of.
    x: what the axis shows, None where the rows are no points of lines. called: words for a metric."""

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    kind: Literal["runs", "class_counts", "workloads"]
    metrics: tuple[str, ...]
    rows: tuple[RecipeRow, ...]
    quick_seeds: tuple[int, ...]
    quick_options: Mapping[str, Any]
    quick_settings: Mapping[str, Any]
    runs_in: str
    x: str | None = None
    panels: tuple[str, ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)

    @property
    def data(self) -> list[str]:
        """The data sets that the rows need."""
        return sorted({str(row.options.get("data", "digits")) for row in self.rows})

    @property
    def runs(self) -> int:
        """How many runs the rows have."""
        return sum(len(row.seeds) for row in self.rows) if self.kind == "runs" else 0

    def quick(self) -> "Item":
        """The short version."""
        rows = [
            replace(
                row,
                options={**row.options, **self.quick_options},
                settings={**row.settings, **self.quick_settings},
            )
            for row in self.rows
            if row.quick
        ]
        there = {row.label for row in rows}
        rows = [replace(row, relative=tuple(r for r in row.relative if r.to in there)) for row in rows]
        panels = tuple(panel for panel in self.panels if any(row.panel == panel for row in rows))
        short = replace(self, rows=tuple(rows), panels=panels).with_seeds(self.quick_seeds)
        return short._on_other_data() if "data" in self.quick_options else short

    def _on_other_data(self) -> "Item":
        """Without the printed figures, which are of other data."""
        rows = [
            replace(
                row,
                printed={},
                totals=None,
                relative=tuple(replace(relative, printed={}) for relative in row.relative),
            )
            for row in self.rows
        ]
        title = f"{self.title} (quick: on {', '.join(self.data)})"
        return replace(self, title=title, rows=tuple(rows))

    def usable(self, data: Availability) -> bool:
        """Whether what is there of a data set is enough: features have no part in who keeps an edge."""
        return data.ready or (self.kind == "workloads" and data.place is not None)

    def with_seeds(self, seeds: tuple[int, ...]) -> "Item":
        """The same with other seeds in every row."""
        return replace(self, rows=tuple(replace(row, seeds=seeds) for row in self.rows))


@dataclass(frozen=True)
class Recipe:
    """What can be reproduced of one paper. paper: its short name, or the path of its file."""

    paper: str
    title: str
    authors: str
    venue: str
    items: Mapping[str, Item]


def recipe_names() -> list[str]:
    """The papers that have a recipe here."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_recipe(paper: str) -> Recipe:
    """The recipe of a paper, by its short name or by the path of a YAML file.

    Raises InputError for an unknown name and for a file that is no recipe, naming what is wrong in it."""
    path = Path(paper)
    if path.suffix not in (".yaml", ".yml"):
        if paper not in recipe_names():
            raise InputError(f"no recipe for {shown(paper)}; {did_you_mean(paper, recipe_names())}")
        path = FOLDER / f"{paper}.yaml"
    where = f"the recipe {path}"
    content = _mapping(where, read_yaml(path, "the recipe"), ("title", "authors", "venue", "items"))
    return Recipe(
        paper=paper,
        title=str(content["title"]),
        authors=str(content["authors"]),
        venue=str(content["venue"]),
        items=_items(where, content["items"]),
    )


# ---- items -------------------------------------------------------------------------------------------------

_ABOUT = ("title", "source")
_DEALT = ("options", "set")
#: The keys of the kinds of items: those needed, and those allowed beside them.
_RUNS = (*_ABOUT, "metric", "seeds", "quick", "rows"), (*_DEALT, "notes", "kind", "x", "panels", "called")
_RUNS_OF = (*_ABOUT, "metric", "runs_of"), ("notes", "called")
_COUNTS = (*_ABOUT, "kind", "rows"), (*_DEALT, "notes", "seeds")
_WORKLOADS = (*_ABOUT, "kind", "rows", "quick"), (*_DEALT, "notes", "seeds", "panels")
#: The keys of a row, those needed and those allowed, by what the item draws.
_EVERY_ROW = (*_DEALT, "label", "printed")
_RUNS_ROW = (*_EVERY_ROW, "seeds", "over", "relative", "quick")
_POINT = ("panel", "series", "x")
_ROW_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "dots": (("method",), (*_RUNS_ROW, *_POINT)),
    "points": (("method",), (*_RUNS_ROW, *_POINT)),
    "counts": ((), (*_EVERY_ROW, "over")),
    "workloads": (("series",), (*_EVERY_ROW, "panel", "quick")),
}


def _items(where: str, told: Any) -> dict[str, Item]:
    contents = {
        name: _mapping(f"{where}: {_folder_name(where, 'the item', name)}", content)
        for name, content in _mapping(f"{where}: items", told).items()
    }
    with_runs = [
        name
        for name, content in contents.items()
        if "runs_of" not in content and content.get("kind", "runs") == "runs"
    ]
    # What a row may have printed: the metrics of its item, and of those that show the same runs.
    shown_of: dict[str, tuple[str, ...]] = {}
    for name, content in contents.items():
        _check_kind(f"{where}: {name}", content, with_runs)
        if "metric" in content:
            base = content.get("runs_of", name)
            metrics = (*shown_of.get(base, ()), *_metrics(f"{where}: {name}", content["metric"]))
            shown_of[base] = tuple(dict.fromkeys(metrics))
    items = {
        name: _item(f"{where}: {name}", name, content, shown_of.get(name, ()))
        for name, content in contents.items()
        if "runs_of" not in content
    }
    return {
        name: items[name] if name in items else _same_runs(name, content, items[content["runs_of"]])
        for name, content in contents.items()
    }


def _check_kind(where: str, content: Mapping[str, Any], with_runs: Sequence[str]) -> None:
    """InputError unless the item has the keys of its kind."""
    if "runs_of" in content:
        _mapping(where, content, *_RUNS_OF)
        base = content["runs_of"]
        if base not in with_runs:
            hint = did_you_mean(str(base), with_runs) if with_runs else "no item has runs"
            raise InputError(f"{where}: runs_of {shown(base)} names no item with runs of its own; {hint}")
        return
    kinds = {"runs": _RUNS, "class_counts": _COUNTS, "workloads": _WORKLOADS}
    kind = content.get("kind", "runs")
    if not isinstance(kind, str) or kind not in kinds:
        raise InputError(f"{where}: unknown kind {shown(kind)}; {did_you_mean(str(kind), kinds)}")
    _mapping(where, content, *kinds[kind])


def _item(where: str, name: str, content: Mapping[str, Any], known: tuple[str, ...]) -> Item:
    """An item with rows of its own; known: the metrics that these may have printed."""
    kind = content.get("kind", "runs")
    seeds = _seeds(where, content.get("seeds", [0]))
    quick = content.get("quick", {})
    _mapping(f"{where}, quick", quick, ("seeds",) if kind == "runs" else (), (*_OPTIONS, "seeds", "set"))
    quick_options = {key: value for key, value in quick.items() if key not in ("seeds", "set")}
    quick_settings = _mapping(f"{where}, quick, set", quick.get("set", {}))
    metrics = _metrics(where, content["metric"]) if kind == "runs" else ()
    shared = _Shared(
        options=_mapping(f"{where}, options", content.get("options", {}), (), _OPTIONS),
        settings=_mapping(f"{where}, set", content.get("set", {})),
        seeds=seeds,
        metrics=(_LARGEST,) if kind == "workloads" else metrics,
        known=(_LARGEST,) if kind == "workloads" else known,
        drawn=_drawn(content),
        fixed=(*quick_options, *quick_settings),
    )
    if not isinstance(content["rows"], list) or not content["rows"]:
        raise InputError(f"{where} needs a list of rows")
    rows = [
        row for number, told in enumerate(content["rows"], 1) for row in _rows(where, number, told, shared)
    ]
    _require_different(where, "rows", [shown(row.label) for row in rows])
    if "x" in content:
        points = [f"{row.series!r} at {row.x}" + (row.panel and f" in {row.panel!r}") for row in rows]
        _require_different(where, "points of", points)
    _check_relative(where, rows)
    if not any(row.quick for row in rows):
        raise InputError(f"{where}: no row is left with --quick; leave 'quick: false' out of one")
    return Item(
        name=name,
        title=str(content["title"]),
        source=str(content["source"]),
        notes=_notes(content),
        kind=kind,
        metrics=metrics,
        rows=tuple(rows),
        quick_seeds=_seeds(f"{where}, quick", quick["seeds"]) if "seeds" in quick else seeds,
        quick_options=quick_options,
        quick_settings=quick_settings,
        runs_in=name,
        x=_text(where, "x", content["x"]) if "x" in content else None,
        panels=_panels(where, content, rows),
        called=_called(where, content, metrics),
    )


def _drawn(content: Mapping[str, Any]) -> Literal["dots", "points", "counts", "workloads"]:
    if content.get("kind", "runs") == "runs":
        return "points" if "x" in content else "dots"
    return "counts" if content["kind"] == "class_counts" else "workloads"


def _check_relative(where: str, rows: Sequence[RecipeRow]) -> None:
    """InputError where a row is compared with one that is not there, or that shares no seed with it."""
    seeds = {row.label: {*row.seeds} for row in rows}
    for row in rows:
        named = f"{where}, {row.label}: relative"
        for relative in row.relative:
            if relative.to not in seeds:
                raise InputError(f"{named} to {shown(relative.to)}; {did_you_mean(relative.to, seeds)}")
            if relative.to == row.label:
                raise InputError(f"{named} to itself; name another row")
            if not seeds[relative.to] & {*row.seeds}:
                raise InputError(f"{named} to {shown(relative.to)}, which has none of its seeds")
        _require_different(named, "comparisons with", [shown(relative.to) for relative in row.relative])


def _same_runs(name: str, content: Mapping[str, Any], base: Item) -> Item:
    """Other metrics of the runs of `base`."""
    return replace(
        base,
        name=name,
        title=str(content["title"]),
        source=str(content["source"]),
        notes=_notes(content) if "notes" in content else base.notes,
        metrics=(metrics := _metrics("", content["metric"])),
        called=_called(name, content, metrics) if "called" in content else base.called,
    )


def _metrics(where: str, told: Any) -> tuple[str, ...]:
    metrics = told if isinstance(told, list) else [told]
    if not metrics or not all(isinstance(metric, str) and metric for metric in metrics):
        raise InputError(
            f"{where}: metric must be a name, or a list of names as in [accuracy, macro_f1] (found "
            f"{shown(told)})"
        )
    _require_different(where, "metrics", [shown(metric) for metric in metrics])
    return tuple(metrics)


def _called(where: str, content: Mapping[str, Any], metrics: tuple[str, ...]) -> dict[str, str]:
    told = _mapping(f"{where}, called", content.get("called", {}))
    for metric in told:
        if metric not in metrics:
            raise InputError(
                f"{where}: called {shown(metric)} is no metric of the item; {did_you_mean(metric, metrics)}"
            )
    return {metric: _text(where, f"called {metric}", words) for metric, words in told.items()}


def _notes(content: Mapping[str, Any]) -> tuple[str, ...]:
    notes = content.get("notes", [])
    return tuple(str(note) for note in (notes if isinstance(notes, list) else [notes]))


def _panels(where: str, content: Mapping[str, Any], rows: Sequence[RecipeRow]) -> tuple[str, ...]:
    """The panels in their order; () where the rows are no points."""
    there = dict.fromkeys(row.panel for row in rows)
    with_panels = _drawn(content) in ("points", "workloads")
    if "panels" not in content:
        return tuple(there) if with_panels else ()
    if not with_panels:
        raise InputError(f"{where}: panels are of lines, and there is no x; say what the axis shows")
    if not isinstance(content["panels"], list) or not content["panels"]:
        raise InputError(f"{where}: panels must be a list of names (found {shown(content['panels'])})")
    panels = tuple(_text(where, "a panel", panel) for panel in content["panels"])
    _require_different(where, "panels", [shown(panel) for panel in panels])
    for panel in there:
        if panel not in panels:
            raise InputError(
                f"{where}: the panel {shown(panel)} of a row is not one of its panels; "
                f"{did_you_mean(panel, panels)}"
            )
    return panels


# ---- rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shared:
    """What the rows of an item have in common. metrics: the item's; known: those that may be printed;
    fixed: what quick sets, which no row may vary."""

    options: Mapping[str, Any]
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    metrics: tuple[str, ...]
    known: tuple[str, ...]
    drawn: Literal["dots", "points", "counts", "workloads"]
    fixed: tuple[str, ...]


def _rows(where: str, number: int, told: Any, shared: _Shared) -> list[RecipeRow]:
    """The row, or those that its `over` stands for."""
    named = f"{where}, row {number}"
    content = _mapping(named, told, *_ROW_KEYS[shared.drawn])
    named = f"{where}, {_text(named, 'label', content['label'])}" if "label" in content else named
    for key in _POINT if shared.drawn == "dots" else ():
        if key in content:
            raise InputError(
                f"{named} has {key!r}, and its item no x; say what the axis shows, as in 'x: data holders'"
            )
    if shared.drawn == "points":
        if "series" not in content:
            raise InputError(f"{named} has no 'series'; name the line that it is a point of")
        if ("x" in content) == ("over" in content):
            raise InputError(f"{named} needs either an x or an over, as in 'over: {{clients: [2, 3, 4]}}'")
    own = {"options": _mapping(f"{named}, options", content.get("options", {}), (), _OPTIONS)}
    own["set"] = _mapping(f"{named}, set", content.get("set", {}))
    points = _points(named, content, own, shared) if "over" in content else [content]
    return [_row(named, {**own, **point}, shared) for point in points]


def _points(
    where: str, content: Mapping[str, Any], own: Mapping[str, Any], shared: _Shared
) -> list[dict[str, Any]]:
    """One content for each value of `over`."""
    over = _mapping(f"{where}, over", content["over"])
    if len(over) != 1 or not isinstance(next(iter(over.values())), list) or not next(iter(over.values())):
        raise InputError(
            f"{where}: over must be one option or setting with its values, as in {{clients: [2, 3, 4]}}"
        )
    ((key, values),) = over.items()
    kind = "options" if key in _OPTIONS else "set"
    if key in own[kind]:
        raise InputError(f"{where}: {key} is given twice, in {kind} and in over; give it once")
    if key in shared.fixed:
        raise InputError(f"{where}: {key} varies over the rows, so quick cannot set it")
    for value in values:
        _number(where, f"over {key}", value)
    _require_different(where, f"values of {key}", [shown(value) for value in values])
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


def _row(where: str, content: Mapping[str, Any], shared: _Shared) -> RecipeRow:
    """One row; content: without `over`."""
    panel, series = (_text(where, key, content.get(key, "")) for key in ("panel", "series"))
    x = _number(where, "x", content["x"]) if "x" in content else None
    made = " ".join(str(part) for part in (panel, series, content.get("x", "")) if part != "")
    label = str(content.get("label", made)).strip()
    if not label:
        raise InputError(f"{where} has no 'label'")
    counts = shared.drawn == "counts"
    printed = content.get("printed")
    if shared.drawn == "workloads":
        _mapping(f"{where}, options", content["options"], (), ("data",))
        printed = {"mean": printed}
    if not isinstance(content.get("quick", True), bool):
        raise InputError(f"{where}: quick must be true or false (found {shown(content['quick'])})")
    return RecipeRow(
        label=_folder_name(where, "the label", label),
        method=_METHODS.get(shared.drawn) or str(content["method"]),
        options={**shared.options, **content["options"]},
        settings={**shared.settings, **content["set"]},
        seeds=_seeds(where, content["seeds"]) if "seeds" in content else shared.seeds,
        printed={} if counts else _printed(where, printed, shared),
        panel=panel,
        series=series,
        x=x,
        totals=_totals(where, printed) if counts else None,
        relative=_relative(where, label, content, shared),
        quick=content.get("quick", True),
    )


#: Whose config the rows of kinds without runs have.
_METHODS = {"counts": "isolated", "workloads": "lumos"}


def _relative_told(where: str, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The comparisons of a row, of which a single one needs no list."""
    told = content.get("relative", [])
    entries = told if isinstance(told, list) else [told]
    return [
        {
            **_mapping(f"{where}, relative", entry, ("to",), ("printed",)),
            "to": _text(where, "to", entry["to"]),
        }
        for entry in entries
    ]


def _relative(where: str, label: str, content: Mapping[str, Any], shared: _Shared) -> tuple[Relative, ...]:
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
        _mapping(f"{named}, printed", printed, (), shared.known)
        figures = {
            metric: _number(named, f"printed {metric}", figure)
            for metric, figure in printed.items()
            if figure is not None
        }
        found.append(Relative(told["to"], figures))
    return tuple(found)


def _printed(where: str, told: Any, shared: _Shared) -> dict[str, Printed]:
    """By metric; {mean, std} alone is that of the item's single metric."""
    by_metric = _mapping(f"{where}, printed", {} if told is None else told)
    if {"mean", "std"} & {*by_metric}:
        if len(shared.metrics) > 1:
            raise InputError(
                f"{where}: the item has {len(shared.metrics)} metrics; say which are printed, as in "
                f"{{{shared.metrics[0]}: {{mean, std}}}}"
            )
        by_metric = {shared.metrics[0]: by_metric}
    _mapping(f"{where}, printed", by_metric, (), shared.known)
    printed = {}
    for metric, figures in by_metric.items():
        there = {} if figures is None else _mapping(f"{where}, printed", figures, ("mean",), ("std",))
        mean, std = (
            None if there.get(key) is None else _number(where, f"printed {key}", there[key])
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


# ---- values ------------------------------------------------------------------------------------------------


def _mapping(
    where: str, told: Any, needed: tuple[str, ...] = (), allowed: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """A mapping with text keys: the `needed` ones and, where they are named, no others than the `allowed`."""
    if not isinstance(told, dict) or not all(isinstance(key, str) for key in told):
        raise InputError(f"{where} must be a mapping (found {shown(told)})")
    for key in needed:
        if key not in told:
            raise InputError(f"{where} has no {key!r}")
    known = (*needed, *(allowed or ()))
    for key in told if known else ():
        if key not in known:
            raise InputError(f"{where} has an unknown key {shown(key)}; {did_you_mean(key, known)}")
    return told


def _text(where: str, key: str, told: Any) -> str:
    if isinstance(told, bool) or not isinstance(told, str | int | float):
        raise InputError(f"{where}: {key} must be text (found {shown(told)})")
    return str(told)


def _number(where: str, key: str, told: Any) -> float:
    if isinstance(told, bool) or not isinstance(told, int | float) or not math.isfinite(told):
        raise InputError(f"{where}: {key} must be a number (found {shown(told)})")
    return told


def _seeds(where: str, told: Any) -> tuple[int, ...]:
    try:
        return chosen_seeds(parse_seeds(told))
    except InputError:
        raise InputError(
            f"{where} needs seeds, different whole numbers as in [0, 1, 2], or a range as in 0-9 (found "
            f"{shown(told)})"
        ) from None


def _folder_name(where: str, what: str, name: str) -> str:
    if not name.isprintable() or "/" in name or name[:1] in ("", ".") or len(name.encode()) > 200:
        raise InputError(f"{where}: {what} {shown(name)} cannot name a folder")
    return name


def _require_different(where: str, what: str, names: Iterable[str]) -> None:
    """InputError where a name is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{where} has two {what} {name}; keep one, or tell them apart")
        seen.add(name)
