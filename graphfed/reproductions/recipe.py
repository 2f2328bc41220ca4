"""Recipes: which runs make up a table or figure of a paper, and what the paper printed there.

A recipe is a small YAML file, graphfed/reproductions/recipes/<paper>.yaml, or one's own:

    title, authors, venue
    policies:                    FedGraph's sampling policies, which are learned before runs use them
      <policy>:
        kind: ddpg, episodes: 300, options: {...}, set: {...}      as of `graphfed policy`
        quick: {episodes: 2, rounds: ..., set: {...}}
    items:
      <item>:                    a table or figure
        title, source            what it is, and where the printed figures are from
        notes: [...]             how the protocols differ
        metric: accuracy         of the test part; several as in [accuracy, macro_f1]; score: what decides in
                                 the run's task; a path into result.json, as seconds.per_round; or where a run
                                 was when it first reached a target, to_target.most.seconds, and at its end,
                                 last.facts.modelled_seconds (`recipe_history`)
        targets: {most: 0.8}     validation scores to reach: a share, the label of a row, which stands for
                                 what this reached, {of: <label>, less: 0.01}, or null, for none
        against: facts.modelled_seconds      draws too where runs were by that place, <item>-curves.svg
        called: {metric: words}  what a metric is called in tables and drawings
        divided_by: {metric: 1073741824}    shown in this unit
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
          - {..., method: fedgraph, learned: <policy>}      run with the policy of this name
      <item>:                    other metrics of the same runs
        title, source, metric, runs_of: <item>, rows: [<label>, ...]        (rows: default all)
      <item>:                    no runs: how many vertices of each class each holder has
        title, source, kind: class_counts, options: {...}, set: {...}
        rows:
          - {label, options: {...}, set: {...}, printed: [...]}      each holder's total
      <item>:                    no runs: who keeps which edge in Lumos, by balancer
        title, source, kind: workloads, seeds, quick
        rows:
          - {panel, series, options: {data: ...}, set: {...}, printed: 39}      the largest workload
      <item>:                    of the runs of another item, a metric of the validation part by round
        title, source, kind: curves, metric, runs_of: <item>, rows: [<label>, ...]
        against: bytes           by another place than the round (`recipe_history`)
      <item>:                    no runs: how the returns of policies grew by episode
        title, source, kind: returns, rows: [{label, learned: <policy>}]
      <item>:                    no runs: which sensors and edges a split shows to training
        title, source, kind: visible_sensors
        rows: [{label, options: {split: "inductive:0.25"}}]
      <item>:                    no runs: how the readings of each of the first sensors by id are distributed
        title, source, kind: histograms, sensors: 100, rows: [{label}]
      <item>:                    no runs: 10^9 operations of a forecast at so many devices together
        title, source, kind: operations, sensors: 207, rows: [{label, method, set, printed: 0.159}]

An item with rows may have `data`, a mapping of data sets to what is different with each: options, set,
quick, called and targets are merged with the item's, notes follow the item's, metric, seeds and divided_by
replace them, and `rows` maps labels to what is different in a row (null: the row is left out). Every data set
is an item of its own: <item> with the first, <item>-<data set> with the others; so are the items that show
its runs.

printed is in percent where the metric is a share, null where nothing was printed; that of `relative` is how
many percent the row is above the other (or below: negative). `over` has one key, an option or a setting, and
stands for one row for each of its values, which is the row's x. What --quick runs on other data has no
printed figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from graphfed.data.datasets import Availability
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.plain_yaml import read_yaml
from graphfed.reproductions.history import ROUND, Target, moment_of, place_in, target_in
from graphfed.reproductions.policies import RecipePolicy, policies_of
from graphfed.reproductions.rows import (
    DEALT,
    OPTIONS_OF_ROWS,
    SINGLE,
    Printed,
    RecipeRow,
    Relative,
    Shared,
    rows_of,
)
from graphfed.reproductions.values import folder_name, mapping, number, require_different, seeds_in, text
from graphfed.reproductions.variants import data_of, variants

__all__ = [
    "PERCENT",
    "POLICIES",
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
#: The folder of what is learned, beside those of the items.
POLICIES = "policies"
#: The metric that decides in a run's task: accuracy, or the AUC.
SCORE = "score"
#: Metrics that are shares, printed in percent.
PERCENT = ("accuracy", "macro_f1", "auc", SCORE)

Kind = Literal[
    "runs", "curves", "class_counts", "workloads", "visible_sensors", "histograms", "operations", "returns"
]  # fmt: skip


@dataclass(frozen=True)
class Item:
    """One table or figure; options, settings and seeds are those of its rows. metrics: () of the kinds
    without runs, which have only the first seed. runs_in: the item that has the runs, itself or its runs_of.
    x: what the axis shows, None where the rows are no points of lines. called: words for a metric;
    divided_by: its unit. targets: validation scores that a metric may ask for, by name. against: by which
    place of its runs (`recipe_history`) curves are drawn, None for none. sensors: how many are shown, or
    counted. base: the item as it is with its first data set; of_data: with which this one is, None where
    there is no choice."""

    name: str
    title: str
    source: str
    notes: tuple[str, ...]
    kind: Kind
    metrics: tuple[str, ...]
    rows: tuple[RecipeRow, ...]
    quick_seeds: tuple[int, ...]
    quick_options: Mapping[str, Any]
    quick_settings: Mapping[str, Any]
    runs_in: str
    base: str
    of_data: str | None = None
    x: str | None = None
    panels: tuple[str, ...] = ()
    called: Mapping[str, str] = field(default_factory=dict)
    divided_by: Mapping[str, float] = field(default_factory=dict)
    targets: Mapping[str, Target | None] = field(default_factory=dict)
    against: str | None = None
    sensors: int | None = None

    @property
    def data(self) -> list[str]:
        """The data sets that the rows need."""
        if self.kind == "operations":
            return []
        named = {str(row.options.get("data", "digits")) for row in self.rows if row.method}
        return sorted(named | {row.learned.data for row in self.rows if row.learned is not None})

    @property
    def policies(self) -> list[RecipePolicy]:
        """The policies that its rows need, each once."""
        return [*{row.learned.name: row.learned for row in self.rows if row.learned is not None}.values()]

    @property
    def has_runs(self) -> bool:
        """Whether its figures are those of runs."""
        return self.kind in ("runs", "curves")

    @property
    def runs(self) -> int:
        """How many runs the rows have."""
        return sum(len(row.seeds) for row in self.rows) if self.has_runs else 0

    def quick(self) -> "Item":
        """The short version."""
        rows = [
            replace(
                row,
                options={**row.options, **self.quick_options},
                settings={**row.settings, **self.quick_settings},
                learned=None if row.learned is None else row.learned.quick(),
            )
            for row in self.rows
            if row.quick
        ]
        there = {row.label for row in rows}
        rows = [replace(row, relative=tuple(r for r in row.relative if r.to in there)) for row in rows]
        panels = tuple(panel for panel in self.panels if any(row.panel == panel for row in rows))
        short = replace(self, rows=tuple(rows), panels=panels).with_seeds(self.quick_seeds)
        return short if {*short.data} <= {*self.data} else short._on_other_data()

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
    needed = ("title", "authors", "venue", "items")
    content = mapping(where, read_yaml(path, "the recipe"), needed, ("policies",))
    return Recipe(
        paper=paper,
        title=str(content["title"]),
        authors=str(content["authors"]),
        venue=str(content["venue"]),
        items=_items(where, content["items"], policies_of(where, content.get("policies", {}))),
    )


# ---- items -------------------------------------------------------------------------------------------------

_ABOUT = ("title", "source")
_SHOWN = ("notes", "called", "divided_by")
_COMMON = (*DEALT, "notes", "seeds", "data")
#: The keys of the kinds of items: those needed, and those allowed beside them.
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "runs": (
        (*_ABOUT, "metric", "seeds", "quick", "rows"),
        (*DEALT, *_SHOWN, "kind", "x", "panels", "data", "targets", "against"),
    ),
    "runs_of": ((*_ABOUT, "metric", "runs_of"), (*_SHOWN, "rows")),
    "curves": ((*_ABOUT, "kind", "metric", "runs_of"), (*_SHOWN, "rows", "against")),
    "returns": ((*_ABOUT, "kind", "rows"), ("notes", "data")),
    "class_counts": ((*_ABOUT, "kind", "rows"), _COMMON),
    "workloads": ((*_ABOUT, "kind", "rows", "quick"), (*_COMMON, "panels")),
    "visible_sensors": ((*_ABOUT, "kind", "rows"), (*_COMMON, "quick")),
    "histograms": ((*_ABOUT, "kind", "rows", "sensors"), (*_COMMON, "quick")),
    "operations": ((*_ABOUT, "kind", "rows", "sensors"), (*DEALT, "notes", "quick")),
}


def _items(where: str, told: Any, policies: Mapping[str, RecipePolicy]) -> dict[str, Item]:
    asked = {
        name: mapping(f"{where}: {folder_name(where, 'the item', name)}", content)
        for name, content in mapping(f"{where}: items", told).items()
    }
    if policies and POLICIES in asked:
        raise InputError(
            f"{where}: an item cannot be called {POLICIES!r}, as the folder of what is learned; give it "
            "another name"
        )
    with_runs = [name for name, content in asked.items() if _kind(content) == "runs"]
    for name, content in asked.items():
        _check_kind(f"{where}: {name}", content, with_runs)
    made = [
        (name, of_data, variant, content)
        for name, told_of in asked.items()
        for of_data, variant, content in variants(where, name, told_of, asked.get(told_of.get("runs_of", "")))
    ]
    require_different(where, "items", [shown(variant) for _, _, variant, _ in made])
    # What a row may have printed: the metrics of its item, and of those that show the same runs.
    shown_of: dict[str, tuple[str, ...]] = {}
    for _, _, variant, content in made:
        if "metric" in content:
            base = content.get("runs_of", variant)
            metrics = (*shown_of.get(base, ()), *_metrics(f"{where}: {variant}", content["metric"]))
            shown_of[base] = tuple(dict.fromkeys(metrics))
    items = {
        variant: _item(f"{where}: {variant}", variant, content, shown_of.get(variant, ()), policies)
        for _, _, variant, content in made
        if "runs_of" not in content
    }
    found = {}
    for name, of_data, variant, content in made:
        own = items.get(variant) or _same_runs(where, variant, content, items[content["runs_of"]])
        found[variant] = replace(own, base=name, of_data=of_data)
    return found


def _kind(content: Mapping[str, Any]) -> Any:
    """The kind that an item says it is; "runs_of" where it shows the runs of another one as such."""
    return content.get("kind", "runs_of" if "runs_of" in content else "runs")


def _check_kind(where: str, content: Mapping[str, Any], with_runs: Sequence[str]) -> None:
    """InputError unless the item has the keys of its kind."""
    kind = _kind(content)
    if not isinstance(kind, str) or kind not in _KEYS or (kind == "runs_of" and "kind" in content):
        raise InputError(f"{where}: unknown kind {shown(kind)}; {did_you_mean(str(kind), get_args(Kind))}")
    mapping(where, content, *_KEYS[kind])
    base = content.get("runs_of")
    if "runs_of" in content and base not in with_runs:
        hint = did_you_mean(str(base), with_runs) if with_runs else "no item has runs"
        raise InputError(f"{where}: runs_of {shown(base)} names no item with runs of its own; {hint}")
    if "data" in content:
        data_of(where, content, _KEYS[kind])


def _item(
    where: str,
    name: str,
    content: Mapping[str, Any],
    known: tuple[str, ...],
    policies: Mapping[str, RecipePolicy],
) -> Item:
    """An item with rows of its own; known: the metrics that these may have printed."""
    kind = _kind(content)
    seeds = seeds_in(where, content.get("seeds", [0]))
    quick = content.get("quick", {})
    mapping(
        f"{where}, quick", quick, ("seeds",) if kind == "runs" else (), (*OPTIONS_OF_ROWS, "seeds", "set")
    )
    quick_options = {key: value for key, value in quick.items() if key not in ("seeds", "set")}
    quick_settings = mapping(f"{where}, quick, set", quick.get("set", {}))
    metrics = _metrics(where, content["metric"]) if kind == "runs" else ()
    shared = Shared(
        options=mapping(f"{where}, options", content.get("options", {}), (), OPTIONS_OF_ROWS),
        settings=mapping(f"{where}, set", content.get("set", {})),
        seeds=seeds,
        metrics=(SINGLE[kind],) if kind in SINGLE else metrics,
        known=(SINGLE[kind],) if kind in SINGLE else known,
        drawn=_drawn(content),
        fixed=(*quick_options, *quick_settings),
        policies=policies,
    )
    if not isinstance(content["rows"], list) or not content["rows"]:
        raise InputError(f"{where} needs a list of rows")
    rows = [
        row for place, told in enumerate(content["rows"], 1) for row in rows_of(where, place, told, shared)
    ]
    require_different(where, "rows", [shown(row.label) for row in rows])
    if "x" in content:
        points = [f"{row.series!r} at {row.x}" + (row.panel and f" in {row.panel!r}") for row in rows]
        require_different(where, "points of", points)
    _check_relative(where, rows)
    if not any(row.quick for row in rows):
        raise InputError(f"{where}: no row is left with --quick; leave 'quick: false' out of one")
    targets = _targets(where, content, rows)
    for metric in metrics:
        moment_of(where, metric, targets)
    against = place_in(f"{where}, against", content["against"]) if "against" in content else None
    return Item(
        name=name,
        title=str(content["title"]),
        source=str(content["source"]),
        notes=_notes(content),
        kind=kind,
        metrics=metrics,
        rows=tuple(rows),
        quick_seeds=seeds_in(f"{where}, quick", quick["seeds"]) if "seeds" in quick else seeds,
        quick_options=quick_options,
        quick_settings=quick_settings,
        runs_in=name,
        base=name,
        x=text(where, "x", content["x"]) if "x" in content else None,
        panels=_panels(where, content, rows),
        called=_called(where, content, metrics, against),
        divided_by=_divided_by(where, content, metrics),
        targets=targets,
        against=against,
        sensors=_sensors(where, content),
    )


def _drawn(content: Mapping[str, Any]) -> str:
    kind: str = _kind(content)
    return kind if kind != "runs" else "points" if "x" in content else "dots"


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
        require_different(named, "comparisons with", [shown(relative.to) for relative in row.relative])


def _same_runs(where: str, name: str, content: Mapping[str, Any], base: Item) -> Item:
    """Other metrics of the runs of `base`, or a metric by round."""
    metrics = _metrics(where, content["metric"])
    where = f"{where}: {name}"
    if (curves := _kind(content) == "curves") and len(metrics) > 1:
        raise InputError(f"{where}: curves are of one metric, and {len(metrics)} are named; keep one")
    rows = _some_of(where, content["rows"], base.rows) if "rows" in content else base.rows
    asked = {moment.target for m in metrics if (moment := moment_of(where, m, base.targets)) is not None}
    targets = {name: target for name, target in base.targets.items() if name in asked}
    for target in targets.values():
        if target is not None and target.row and target.row not in {row.label for row in rows}:
            raise InputError(f"{where}: a target follows the row {shown(target.row)}; add it to rows")
    against = place_in(f"{where}, against", content.get("against", ROUND)) if curves else None
    return replace(
        base,
        name=name,
        rows=rows,
        panels=tuple(panel for panel in base.panels if any(row.panel == panel for row in rows)),
        title=str(content["title"]),
        source=str(content["source"]),
        notes=_notes(content) if "notes" in content else base.notes,
        kind="curves" if curves else base.kind,
        metrics=metrics,
        called=_called(where, content, metrics, against) if "called" in content else base.called,
        divided_by=_divided_by(where, content, metrics) if "divided_by" in content else base.divided_by,
        targets=targets,
        against=against,
    )


def _some_of(where: str, told: Any, rows: Sequence[RecipeRow]) -> tuple[RecipeRow, ...]:
    """Those rows whose labels are told, in that order; the other item has the comparisons."""
    known = {row.label: row for row in rows}
    if not isinstance(told, list) or not told or not all(isinstance(label, str) for label in told):
        raise InputError(
            f"{where}: rows must be a list of labels of the other item's rows (found {shown(told)})"
        )
    require_different(where, "rows", [shown(label) for label in told])
    for label in told:
        if label not in known:
            raise InputError(f"{where}: no row {shown(label)} among the runs; {did_you_mean(label, known)}")
    return tuple(replace(known[label], relative=()) for label in told)


def _metrics(where: str, told: Any) -> tuple[str, ...]:
    metrics = told if isinstance(told, list) else [told]
    if not metrics or not all(isinstance(metric, str) and metric for metric in metrics):
        raise InputError(
            f"{where}: metric must be a name, or a list of names as in [accuracy, macro_f1] (found "
            f"{shown(told)})"
        )
    require_different(where, "metrics", [shown(metric) for metric in metrics])
    return tuple(metrics)


def _targets(where: str, content: Mapping[str, Any], rows: Sequence[RecipeRow]) -> dict[str, Target | None]:
    """By name. A row that a target follows has to be there with --quick too."""
    told = mapping(f"{where}, targets", content.get("targets", {}))
    labels = {row.label: row.quick for row in rows}
    targets = {}
    for name, asked in told.items():
        named = f"{where}, targets, {name}"
        if not name or "." in name:
            raise InputError(f"{named}: the name of a target needs at least one letter, and no dot")
        targets[name] = target = target_in(named, asked, labels)
        if target is not None and target.row and not labels[target.row]:
            raise InputError(f"{named}: --quick leaves out {shown(target.row)}; name another row")
    return targets


def _called(
    where: str, content: Mapping[str, Any], metrics: tuple[str, ...], against: str | None
) -> dict[str, str]:
    """Words for metrics, and for the place that curves are drawn against."""
    told = mapping(f"{where}, called", content.get("called", {}))
    known = (*metrics, against) if against is not None else metrics
    for metric in told:
        if metric not in known:
            raise InputError(
                f"{where}: called {shown(metric)} is no metric of the item; {did_you_mean(metric, known)}"
            )
    return {metric: text(where, f"called {metric}", words) for metric, words in told.items()}


def _divided_by(where: str, content: Mapping[str, Any], metrics: tuple[str, ...]) -> dict[str, float]:
    told = mapping(f"{where}, divided_by", content.get("divided_by", {}))
    for metric, unit in told.items():
        if metric not in metrics:
            raise InputError(
                f"{where}: divided_by {shown(metric)} is no metric of the item; "
                f"{did_you_mean(metric, metrics)}"
            )
        if number(where, f"divided_by {metric}", unit) <= 0:
            raise InputError(f"{where}: divided_by {metric} must be above 0 (found {shown(unit)})")
    return dict(told)


def _sensors(where: str, content: Mapping[str, Any]) -> int | None:
    told = content.get("sensors")
    if told is not None and (isinstance(told, bool) or not isinstance(told, int) or told < 1):
        raise InputError(f"{where}: sensors must be a whole number of at least 1 (found {shown(told)})")
    return told


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
    panels = tuple(text(where, "a panel", panel) for panel in content["panels"])
    require_different(where, "panels", [shown(panel) for panel in panels])
    for panel in there:
        if panel not in panels:
            raise InputError(
                f"{where}: the panel {shown(panel)} of a row is not one of its panels; "
                f"{did_you_mean(panel, panels)}"
            )
    return panels
