"""The parts of a reproduction: a paper, its tables and figures (items), their rows, and the printed figures.

A paper's module is plain code that makes a `Paper`. `graphfed.reproduce` runs it, and prints and draws our
figures with the printed ones. Nothing in this module runs anything.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from graphfed.data.datasets import Availability
from graphfed.drawing.canvas import Charts
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.methods.registry import get_method
from graphfed.reproductions.policies import Policy
from graphfed.runs.config import make_config
from graphfed.studies.plan import InputCache, existing_settings
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.run_config import RunConfig

__all__ = [
    "PERCENT",
    "ROUND",
    "SCORE",
    "Cells",
    "Curves",
    "Found",
    "Item",
    "Measured",
    "Paper",
    "Place",
    "Printed",
    "Quick",
    "Relative",
    "Row",
    "Runs",
    "Target",
    "column_cells",
    "on_data",
    "paragraphs",
    "point",
    "same_runs",
]

#: The metric that decides in a run's task: accuracy, or the AUC.
SCORE = "score"
#: Metrics that are shares, printed in percent.
PERCENT = ("accuracy", "macro_f1", "auc", SCORE)
#: The place in a run that curves are drawn against by default.
ROUND = "round"

#: An item as it is in reproduce.json, and the columns and lines of its table.
Found = Mapping[str, Any]
Cells = tuple[list[str], list[list[str]]]


# ---- rows --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Printed:
    """A figure of the paper, in its unit (percent for a fraction), with its deviation if one is printed."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Relative:
    """A comparison of a row with another row of its item.

    Attributes:
        to: The label of the other row.
        printed: By metric, in percent of the other row's figure, negative for below. A metric that is absent
            is not printed.
    """

    to: str
    printed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A validation score to reach.

    Attributes:
        share: The score, as a fraction.
        row: The row that the score follows instead: what it reached at its best rounds, mean over its seeds.
        less: How much less than that row's score.
    """

    share: float | None = None
    row: str = ""
    less: float = 0.0


@dataclass(frozen=True)
class Row:
    """A line of a table, or a point of a line: a method with options and settings.

    Attributes:
        label: The name of the row, which also names the folders of its runs.
        method: A registered method; "" for a row that shows a policy only.
        options: Options of `graphfed.run` in which it differs from its item.
        settings: Settings of the method in which it differs.
        seeds: None for those of its item.
        printed: By metric; a metric that is absent is not printed.
        panel: With `series` and `x`: its place as a point, if its item has an `x`.
        quick: Whether the short version has it.
        policy: What it runs with, or shows; it is learned first.
    """

    label: str
    method: str = ""
    options: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    seeds: Sequence[int] | None = None
    printed: Mapping[str, Printed] = field(default_factory=dict)
    relative: tuple[Relative, ...] = ()
    panel: str = ""
    series: str = ""
    x: float | None = None
    quick: bool = True
    policy: Policy | None = None


def _settings_in(method: str) -> set[str]:
    """Return the names of the settings of a row's method; a row that shows a policy has none ("")."""
    return {*get_method(method).tree.names} if method else set()


def point(series: str, x: float, method: str, *, panel: str = "", label: str = "", **fields: Any) -> Row:
    """Make a row that is a point of a line.

    Args:
        series: The name of the line, which all of its points share.
        x: The place of the point on the axis of the item (`Runs.x`).
        method: The name of a registered method.
        panel: The panel of the drawing that shows the line; "" if there is only one.
        label: The name of the row; by default panel, series and x.
        fields: Other fields of `Row`, such as options, settings and printed figures.

    Returns:
        The row, with the fields that were given.
    """
    made = f"{panel} {series} {x}".strip()
    return Row(label or made, method, panel=panel, series=series, x=x, **fields)


# ---- items -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quick:
    """What the short version has in place of an item's seeds (None: these), options and settings, and of
    those of its policies, which are learned in two episodes.
    """

    seeds: Sequence[int] | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Item:
    """A table or figure: `Runs`, `Curves` or `Measured`.

    Attributes:
        name: The name of its folder, its drawing, and of the item on the command line.
        title: What it shows.
        source: The source of the printed figures.
        rows: Its lines. Options, settings and seeds of a row replace those of the item.
        notes: How the protocols differ.
        seeds: The seeds of rows without their own.
        options: Options of `graphfed.run` for every row.
        settings: Settings for every row; `preset=paper` is one of them unless a row has another preset.
        panels: The order of the drawings, if the rows have panels.
        data: The data set, if the item can be made on several (`on_data`).
        base: Its name on the first of these; "" for `name`.
        reads: What it needs of its data sets: all, the graph without features, or nothing.
        kind: The name of its kind in reproduce.json.
    """

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    seeds: Sequence[int] = (0,)
    options: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    quick: Quick = field(default_factory=Quick)
    panels: tuple[str, ...] = ()
    data: str | None = None
    base: str = ""
    reads: Literal["data", "structure", "nothing"] = "data"
    kind: str = ""

    def __post_init__(self) -> None:
        # Labels name the folders of runs, so they must be different.
        labels = [row.label for row in self.rows]
        for label in labels:
            if labels.count(label) > 1:
                raise InputError(f"{self.name} has two rows {shown(label)}; keep one, or rename one")
        compared = [relative.to for row in self.rows for relative in row.relative]
        for label in [*compared, *self._labels_followed()]:
            if label not in labels:
                raise InputError(f"{self.name}: no row {shown(label)}; {did_you_mean(label, labels)}")

    def _labels_followed(self) -> list[str]:
        """Return the labels of rows without which others have no figures."""
        return []

    def options_of(self, row: Row) -> dict[str, Any]:
        """Return the options of a row, with those of the item.

        Args:
            row: A row of this item, whose options replace those of the item.

        Returns:
            The options of `graphfed.run` by name.
        """
        return {**self.options, **row.options}

    def settings_of(self, row: Row) -> dict[str, object]:
        """Return the settings of a row, with those settings of the item that exist in its runs.

        Args:
            row: A row of this item, whose settings replace those of the item.

        Returns:
            The settings by name; preset=paper unless they say otherwise.
        """
        return {**self._existing(row, {"preset": "paper", **self.settings}, row.settings), **row.settings}

    def _existing(
        self, row: Row, shared: Mapping[str, object], own: Mapping[str, object]
    ) -> dict[str, object]:
        """Return the shared settings that exist in the runs of a row, and those that no method has."""
        # A setting that no row knows stays, so that `config` refuses a misspelt one.
        others = set().union(*map(_settings_in, {other.method for other in self.rows}))
        others -= _settings_in(row.method)
        shared = {key: value for key, value in shared.items() if key not in others}
        if not row.method:
            return shared
        method = get_method(row.method)
        return existing_settings(method, str(self.options_of(row).get("task", method.tasks[0])), shared, own)

    def seeds_of(self, row: Row) -> tuple[int, ...]:
        """Return the seeds of a row.

        Args:
            row: A row of this item, which may have seeds of its own.

        Returns:
            A seed for each run of the row.
        """
        return tuple(self.seeds if row.seeds is None else row.seeds)

    def config(
        self, row: Row, seed: int, data_dir: str | Path | None, settings: Mapping[str, object] | None = None
    ) -> RunConfig:
        """Return the checked config of a run, which has one thread unless the options say otherwise.

        Args:
            row: A row of this item that has a method.
            seed: The seed of weights, draws, partition and split.
            data_dir: The folder that is searched first for data sets; None for the usual ones.
            settings: More settings, which replace those of the row.

        Returns:
            The config, in which every option and setting is checked.

        Raises:
            InputError: An option or setting cannot be used.
        """
        # As settings of the row, so that they decide which settings of the item exist.
        row = replace(row, settings={**row.settings, **(settings or {})})
        return make_config(
            row.method,
            **{"threads": 1, **self.options_of(row)},
            seed=seed,
            settings=self.settings_of(row),
            data_dir=data_dir,
        )

    @property
    def num_runs(self) -> int:
        """The number of runs of the rows."""
        return 0

    @property
    def data_sets(self) -> list[str]:
        """The data sets that the rows need."""
        if self.reads == "nothing":
            return []
        named = {str(self.options_of(row).get("data", "digits")) for row in self.rows if row.method}
        return sorted(named | {policy.data for policy in self.policies})

    @property
    def policies(self) -> list[Policy]:
        """The policies that the rows need, each once."""
        return [*{row.policy.name: row.policy for row in self.rows if row.policy is not None}.values()]

    def usable(self, data: Availability) -> bool:
        """Return whether what is there of a data set suffices.

        Args:
            data: The files that were found of the data set, and those that are missing.

        Returns:
            True for the whole data set, and for the structure alone if the item `reads` only that.
        """
        return data.ready or (self.reads == "structure" and data.place is not None)

    def with_seeds(self, seeds: Sequence[int]) -> Self:
        """Return the same item with other seeds in every row.

        Args:
            seeds: The seeds that replace those of the item and of its rows.

        Returns:
            The item, whose rows have no seeds of their own.
        """
        return replace(self, seeds=seeds, rows=tuple(replace(row, seeds=None) for row in self.rows))

    def with_rows(self, pattern: str) -> Self:
        """Return the same item with some of its rows.

        Args:
            pattern: A pattern of labels with * and ?.

        Returns:
            The item, with the rows that match and those that their figures need; without any if none matches.
        """
        labels = [row.label for row in self.rows if fnmatchcase(row.label, pattern)]
        labels += self._labels_followed() if labels else []
        return self._with_rows([row for row in self.rows if row.label in labels])

    def _with_rows(self, rows: Sequence[Row]) -> Self:
        """Return the same item with these of its rows, without comparisons with others."""
        labels = {row.label for row in rows}
        panels = tuple(panel for panel in self.panels if any(row.panel == panel for row in rows))
        # Which settings of the item exist in a row depends on the other rows, so each row gets its own now.
        rows = [
            replace(
                row,
                settings=self.settings_of(row),
                relative=tuple(relative for relative in row.relative if relative.to in labels),
            )
            for row in rows
        ]
        return replace(self, rows=tuple(rows), panels=panels, settings={})

    def short(self) -> Self:
        """Return the short version.

        Returns:
            The item; without the printed figures if it uses other data.
        """
        kept = self._with_rows([row for row in self.rows if row.quick])
        short = replace(kept, rows=tuple(self._short_row(row) for row in kept.rows))
        # Also those rows that have seeds of their own get the few seeds of the short version.
        short = short.with_seeds(self.seeds if self.quick.seeds is None else self.quick.seeds)
        # Figures on other data cannot be compared with the printed ones.
        if {*short.data_sets} <= {*self.data_sets}:
            return short
        rows = tuple(
            replace(row, printed={}, relative=tuple(Relative(relative.to) for relative in row.relative))
            for row in short.rows
        )
        return replace(short, title=f"{self.title} (quick: on {', '.join(short.data_sets)})", rows=rows)

    def _short_row(self, row: Row) -> Row:
        quick = self.quick
        others = {name: value for name, value in row.settings.items() if name not in quick.settings}
        return replace(
            row,
            options={**row.options, **quick.options},
            settings={**row.settings, **self._existing(row, quick.settings, others)},
            policy=row.policy and row.policy.short(quick.options, quick.settings),
        )


@dataclass(frozen=True, kw_only=True)
class Runs(Item):
    """An item with figures of runs.

    Attributes:
        metrics: What is shown of every run (`figures.metric_of`).
        called: Words for a metric, or for `against`, in tables and drawings.
        divided_by: The unit of a metric, such as 2**30 for GiB.
        x: What the axis shows; None if the rows are not points of lines.
        targets: Validation scores to reach, by name, for metrics that use them; None for no target.
        against: The place in a run that curves are also drawn against; None for no curves.
        runs_in: The item whose folder has the runs; "" for the item itself.
    """

    kind: str = "runs"
    metrics: tuple[str, ...]
    called: Mapping[str, str] = field(default_factory=dict)
    divided_by: Mapping[str, float] = field(default_factory=dict)
    x: str | None = None
    targets: Mapping[str, Target | None] = field(default_factory=dict)
    against: str | None = None
    runs_in: str = ""

    def _labels_followed(self) -> list[str]:
        return [target.row for target in self.targets.values() if target is not None and target.row]

    @property
    def num_runs(self) -> int:
        """The number of runs of the rows."""
        return sum(len(self.seeds_of(row)) for row in self.rows)

    @property
    def run_folder(self) -> str:
        """The name of the folder with the runs."""
        return self.runs_in or self.name


@dataclass(frozen=True, kw_only=True)
class Curves(Runs):
    """An item with one metric of the validation part, by round or by another place in the runs."""

    kind: str = "curves"
    against: str | None = ROUND


@dataclass(frozen=True)
class Place:
    """The place of a measurement: the folder of the reproduction, the data, and what is loaded already."""

    folder: Path
    data_dir: str | Path | None
    cache: InputCache
    progress: bool = False

    def config(self, item: Item, row: Row) -> RunConfig:
        """Return the config of a row's run with its first seed."""
        return item.config(row, item.seeds_of(row)[0], self.data_dir)

    def inputs(self, item: Item, row: Row) -> Inputs:
        """Return the inputs of a row's run with its first seed."""
        return self.cache.get(self.config(item, row))


@dataclass(frozen=True, kw_only=True)
class Measured(Item):
    """An item that trains nothing: functions of its paper's module measure and show it.

    Attributes:
        measure: Returns what reproduce.json has of a row next to its label, after policies are learned and
            before any run.
        cells: The columns and lines of its table.
        draw: Its charts.
    """

    measure: Callable[["Measured", Row, Place], dict[str, Any]]
    cells: Callable[[Found], Cells]
    draw: Callable[[Found], Charts]


# ---- several items -----------------------------------------------------------------------------------------


AnyItem = TypeVar("AnyItem", bound=Item)
AnyRuns = TypeVar("AnyRuns", bound=Runs)


def on_data(make: Callable[[str], AnyItem], data: Sequence[str]) -> tuple[AnyItem, ...]:
    """Return an item for several data sets.

    Args:
        make: Makes the item for a data set, without the data set in its title and options.
        data: The names of the data sets; on the first one the item keeps its name.

    Returns:
        An item for each; from the second data set on its name is followed by the data set's.
    """
    items = []
    for name in data:
        item = make(name)
        items.append(
            replace(
                item,
                name=item.name if name == data[0] else f"{item.name}-{name}",
                base=item.name,
                data=name,
                title=f"{item.title}, {name}",
                options={**item.options, "data": name},
            )
        )
    return tuple(items)


def same_runs(
    item: Runs,
    shows: type[AnyRuns],
    name: str,
    *,
    title: str,
    metrics: tuple[str, ...],
    rows: Sequence[str] | None = None,
    **fields: Any,
) -> AnyRuns:
    """Return an item that shows other figures of the runs of another item, on the same data.

    Args:
        item: The item whose folder has the runs.
        shows: The class of the new item, `Runs` or `Curves`.
        name: The name of the new item on the first data set.
        title: What it shows, without the name of the data set.
        metrics: The metrics that it shows of every run.
        rows: Labels of the rows that it shows, without their comparisons; None for all rows as they are.
        fields: Other fields in which it differs from `item`, such as its source.

    Returns:
        The new item, with `item`'s folder of runs.
    """
    used = {metric.split(".")[1] for metric in metrics if "." in metric}
    # Targets that no shown metric uses would ask for rows that are not shown.
    part = replace(item, targets={key: target for key, target in item.targets.items() if key in used})
    if rows is not None:
        known = {row.label: row for row in item.rows}
        part = part._with_rows([replace(known[label], relative=()) for label in rows])
    others = {each.name: getattr(part, each.name) for each in dataclasses.fields(part)}
    own = {
        "name": name + item.name.removeprefix(item.base or item.name),
        "base": name if item.base else "",
        "title": f"{title}, {item.data}" if item.data else title,
        "metrics": metrics,
        "runs_in": item.run_folder,
        **fields,
    }
    # The new item decides itself whether it draws curves.
    return shows(**{key: value for key, value in others.items() if key not in ("kind", "against")} | own)


def paragraphs(text: str) -> tuple[str, ...]:
    """Return the paragraphs of a text, which empty lines separate, each in one line: the notes of an item."""
    return tuple(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


#: A column of the table of a `Measured` item: its title, a key of the row or a function of it, and a format.
Column = tuple[str, str | Callable[[Found], object], str]


def column_cells(*columns: Column) -> Callable[[Found], Cells]:
    """Return the function that makes a table with a line for each row, of the label and these columns."""

    def text(row: Found, value: str | Callable[[Found], object], form: str) -> str:
        figure = row[value] if isinstance(value, str) else value(row)
        return "-" if figure is None else format(figure, form)

    def cells(found: Found) -> Cells:
        lines = [
            [row["label"], *(text(row, value, form) for _, value, form in columns)] for row in found["rows"]
        ]
        return ["row", *(title for title, _, _ in columns)], lines

    return cells


@dataclass(frozen=True)
class Paper:
    """A paper and what can be reproduced of it; `name` is that of its folder and on the command line."""

    name: str
    title: str
    authors: str
    venue: str
    items: tuple[Item, ...]

    @property
    def by_name(self) -> dict[str, Item]:
        """The items by their names."""
        return {item.name: item for item in self.items}
