"""Functions that return figures of the records in benchmarks/results, for the pages of the docs.

Figures of ours are never typed by hand. Pages call these functions, and so do the checks of README.md and the
template of benchmarks/README.md. `item` is a paper and its table or figure, such as "lumos/fig3". `row` is
the label of a row; for a row that is a point of a line it may be "PANEL | SERIES" (or "SERIES") with `x=` for
the position on that line. A name that the record does not contain raises a RecordError with the requested and
the nearest name."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import jmespath

from graphfed.errors import did_you_mean, shown
from graphfed.reproductions.base import PERCENT, Item
from graphfed.reproductions.reproduce import find_paper
from graphfed.reproductions.tables import figure_text
from graphfed.studies.paired import PairedDifference, paired_difference

__all__ = ["RecordError", "Records"]

Found = Mapping[str, Any]
Figure = Mapping[str, Any]

#: The attributes of an item that a plot or table takes from the program instead of the record.
WORDS = ("title", "source", "called", "x", "against")
JINJA = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)


class RecordError(Exception):
    """A page requests something that no record contains."""


class Records:
    """The records in a folder.

    Args:
        folder: The folder benchmarks/results, or a copy of it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    # ---- functions for pages -------------------------------------------------------------------------------

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions, by the names that pages use."""
        texts = (self.ours, self.printed, self.difference, self.relative, self.value, self.spread)
        costs = (self.timed, self.ratio, self.reached)
        numbers = (self.count_seeds, self.mean, self.sd, self.printed_mean, self.relative_mean)
        several = (self.number, self.means, self.gaps, self.paired)
        own = {function.__name__: function for function in (*texts, *costs, *numbers, *several)}
        plain = {"min": min, "max": max, "abs": abs, "len": len}
        return {**own, **plain, "brief": brief, "claim": claim}

    def evaluate(self, expression: str) -> Any:
        """Return the value of a jinja expression that calls these functions."""
        try:
            return JINJA.compile_expression(expression, undefined_to_none=False)(**self.functions)
        except (jinja2.TemplateError, TypeError) as error:
            raise RecordError(f"{expression}: {error}") from None

    def render(self, template: str, **texts: str) -> str:
        """Return a text in which every `{{ expression }}` is replaced by its value.

        Args:
            template: The text.
            texts: Additional values, by name.
        """
        return JINJA.from_string(template).render({**self.functions, **texts})

    def ours(self, item: str, row: str, metric: str, places: int | None = None, **where: Any) -> str:
        """Return our figure, mean ± standard deviation over the seeds: ``44.7 ± 0.3``."""
        figure = self._ours(item, row, metric, **where)
        return figure_text(figure, metric, _places(metric, places, figure))

    def printed(self, item: str, row: str, metric: str, places: int | None = None, **where: Any) -> str:
        """Return the paper's figure, with the decimals of the record: ``80.69 ± 0.65``."""
        figure = self._printed(item, row, metric, **where)
        if places is None:
            known = [figure[key] for key in ("mean", "std") if figure[key] is not None]
            places = max(len(str(number).partition(".")[2]) for number in known)
        return figure_text(figure, metric, places)

    def difference(self, item: str, row: str, metric: str, places: int | None = None, **where: Any) -> str:
        """Return our mean minus the printed one, with its sign: ``-0.8``."""
        gap = self.mean(item, row, metric, **where) - self.printed_mean(item, row, metric, **where)
        decimals = _places(metric, places)
        return f"{round(gap, decimals) + 0.0:+.{decimals}f}"  # never -0.0

    def relative(self, item: str, row: str, to: str, metric: str, places: int = 1, **where: Any) -> str:
        """Return the difference to another row in percent of that row's figure: ``+12.3 ± 0.5``."""
        figure = self._relative(item, row, to, metric, **where)
        spread = "" if figure["std"] is None else f" ± {figure['std']:.{places}f}"
        return f"{figure['mean']:+.{places}f}{spread}"

    def value(self, name: str, path: str, form: str = "", *, per: float = 1) -> str:
        """Return a text or a number of a record.

        Args:
            name: The record, such as "split_learning".
            path: The JMESPath of the value.
            form: The format of a number, such as ".2f"; "_" separates thousands.
            per: The number by which a number is divided, such as 1e6.
        """
        found = self._search(name, path)
        if isinstance(found, str):
            return found
        return format(self.number(name, path) / per if per != 1 else found, form).replace("_", " ")

    def spread(self, name: str, path: str, places: int = 1) -> str:
        """Return a mean and a standard deviation of a record: ``81.3 ± 0.5``.

        Args:
            name: The record.
            path: The JMESPath of an object with "mean" and "std".
            places: The number of decimals.
        """
        mean, std = (self.number(name, f"{path}.{key}") for key in ("mean", "std"))
        return figure_text({"mean": mean, "std": std}, "", places)

    def reached(self, name: str, path: str, form: str = ".1f", *, per: float = 1) -> str:
        """Return a mean over the runs that reached a target: ``18.6 ± 1.2``, ``18.6 in 4 of 5 runs`` or
        ``not reached``.

        Args:
            name: The record.
            path: The JMESPath of an object with "values", null where a run did not reach the target, and
                the "mean" and "std" of all runs.
            form: The format of a number.
            per: The number by which the numbers are divided.
        """
        values = self._found(name, f"{path}.values")
        if not isinstance(values, list):
            raise RecordError(f"{name}: no values of runs at {path}")
        known = [value / per for value in values if value is not None]
        if not known:
            return "not reached"
        mean = format(sum(known) / len(known), form)
        if len(known) < len(values):
            return f"{mean} in {len(known)} of {len(values)} runs"
        return f"{mean} ± {format(self.number(name, f'{path}.std') / per, form)}"

    def cell(self, name: str, path: str, form: str, *, per: float) -> str:
        """Return the cell of a table: `reached` for values over runs, `value` for a number or a text."""
        show = self.value if isinstance(self._found(name, path), int | float | str) else self.reached
        return show(name, path, form, per=per)

    def timed(self, name: str, path: str, per: float = 1) -> str:
        """Return the minimum and the median of a repeated measurement: ``1.9 / 2.3``.

        Args:
            name: The record.
            path: The JMESPath of an object with "min" and "median".
            per: The number by which both are divided.
        """
        least, median = (self.number(name, f"{path}.{key}") / per for key in ("min", "median"))
        return f"{brief(least)} / {brief(median)}"

    def ratio(self, name: str, path: str) -> str:
        """Return the ratio of minima, and in brackets the ratio of medians and its range over the repeats.

        Args:
            name: The record.
            path: The JMESPath of an object that `measure.ratio` returned.
        """
        keys = ("of_minima", "of_medians", "lowest", "highest")
        minima, medians, lowest, highest = (brief(self.number(name, f"{path}.{key}")) for key in keys)
        return f"{minima} ({medians}; {lowest} to {highest})"

    def number(self, name: str, path: str) -> float:
        """Return a number of a record; see `value`."""
        found = self._search(name, path)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise RecordError(f"{name}: {path} is {shown(found)}, no number")
        return found

    def count_seeds(self, item: str, row: str, **where: Any) -> int:
        """Return the number of seeds of a row."""
        return len(self.row(item, row, **where)["seeds"])

    def mean(self, item: str, row: str, metric: str, **where: Any) -> float:
        """Return our mean over the seeds."""
        return self._known(item, row, metric, self._ours(item, row, metric, **where), "mean")

    def sd(self, item: str, row: str, metric: str, **where: Any) -> float:
        """Return our standard deviation over the seeds."""
        return self._known(item, row, metric, self._ours(item, row, metric, **where), "std")

    def printed_mean(self, item: str, row: str, metric: str, **where: Any) -> float:
        """Return the paper's mean."""
        return self._known(item, row, metric, self._printed(item, row, metric, **where), "mean")

    def relative_mean(self, item: str, row: str, to: str, metric: str, **where: Any) -> float:
        """Return the mean of the difference that `relative` returns."""
        return float(self._relative(item, row, to, metric, **where)["mean"])

    def means(self, item: str, pattern: str, metric: str) -> list[float]:
        """Return our means of every row whose label matches a regular expression."""
        labels = [row["label"] for row in self.item(item)["rows"] if re.search(pattern, row["label"])]
        if not labels:
            raise RecordError(f"{item}: no row matches {shown(pattern)}")
        return [self.mean(item, label, metric) for label in labels]

    def gaps(self, item: str, series: str, other: str, metric: str) -> list[float]:
        """Return the differences of a series ("PANEL | SERIES") to another, at every x that both have."""
        one, two = (self._points(item, name) for name in (series, other))
        common = [x for x in one if x in two]
        if not common:
            raise RecordError(f"{item}: {shown(series)} and {shown(other)} have no x in common")
        return [self.mean(item, one[x], metric) - self.mean(item, two[x], metric) for x in common]

    def paired(self, item: str, row: str, other: str, metric: str) -> PairedDifference:
        """Return the difference of two rows over their common seeds, with its interval: `.mean`, `.low`,
        `.high`.
        """
        first, second = self.by_seed(item, row, metric), self.by_seed(item, other, metric)
        seeds = [seed for seed in first if seed in second]
        found = paired_difference(*([values[seed] for seed in seeds] for values in (first, second)))
        if found is None:
            raise RecordError(f"{item}: {shown(row)} and {shown(other)} have no seed in common")
        return found

    # ---- access to records ---------------------------------------------------------------------------------

    def record(self, name: str) -> dict[str, Any]:
        """Return a record by the name of its file."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            names = [each.stem for each in self.folder.glob("*.json")]
            raise RecordError(f"no record {shown(name)} in {self.folder.name}; {did_you_mean(name, names)}")
        return _content(path, path.stat().st_mtime_ns)

    def _found(self, name: str, path: str) -> Any:
        try:
            return jmespath.search(_unescaped(path), self.record(name))
        except jmespath.exceptions.JMESPathError as error:
            raise RecordError(f"{name}: {path} is no JMESPath: {error}") from None

    def _search(self, name: str, path: str) -> Any:
        found = self._found(name, path)
        if found is None or isinstance(found, list | dict):
            what = "nothing" if found is None else f"a {type(found).__name__} of {len(found)}"
            raise RecordError(f"{name}: {what} at {path}; a figure is one number or text")
        return found

    def item(self, name: str) -> dict[str, Any]:
        """Return an item of a paper's record, with its title and labels from the program."""
        paper, asked = self.asked(name)
        (found,) = [each for each in self.record(f"reproduce_{paper}")["items"] if each["item"] == asked.name]
        words = {key: getattr(asked, key) for key in WORDS if hasattr(asked, key)}
        return {**found, **words, "rows": [_completed(row) for row in found["rows"]]}

    def asked(self, name: str) -> tuple[str, Item]:
        """Return the paper of an item, and the item of the program."""
        paper, _, item = name.partition("/")
        recorded = [each["item"] for each in self.record(f"reproduce_{paper}")["items"]]
        if item not in recorded:
            nearest = did_you_mean(item, recorded)
            raise RecordError(f"no item {shown(item)} in the record of {paper}; {nearest}")
        return paper, find_paper(paper).by_name[item]

    def row(self, item: str, row: str, *, panel: str | None = None, x: float | None = None) -> dict[str, Any]:
        """Return a row of an item, by its label, or by its panel, series and x."""
        rows, row = self.item(item)["rows"], _unescaped(row)
        within, bar, name = row.rpartition(" | ")
        panel = within if bar else panel
        matching = [
            each
            for each in rows
            if (panel is None or _plain(each.get("panel")) == _plain(panel))
            and name in (each["label"], each.get("series"))
            and (x is None or each.get("x") == x)
        ]
        exact = [each for each in matching if each["label"] == name]
        if len(exact or matching) != 1:
            asked = " | ".join([*([panel] if panel is not None else []), name]) + (
                "" if x is None else f" at x = {x:g}"
            )
            if matching:
                labels = ", ".join(shown(each["label"]) for each in matching[:4])
                raise RecordError(f"{item}: {shown(asked)} is {len(matching)} rows, such as {labels}; add x=")
            nearest = did_you_mean(name, [each["label"] for each in rows])
            raise RecordError(f"{item}: no row {shown(asked)}; {nearest}")
        (found,) = exact or matching
        return dict(found)

    def by_seed(self, item: str, row: str, metric: str) -> dict[int, float]:
        """Return the value of each seed of a row; seeds without the value are left out."""
        found = self.row(item, row)
        figures = found.get("ours") or {}
        if metric not in figures:
            nearest = did_you_mean(metric, figures)
            raise RecordError(f"{item}: {shown(row)} has no {shown(metric)}; {nearest}")
        pairs = zip(found["seeds"], figures[metric]["values"], strict=True)
        return {seed: float(value) for seed, value in pairs if value is not None}

    def _points(self, item: str, series: str) -> dict[float, str]:
        """Return the labels of the rows of a series, by x."""
        panel, bar, name = _unescaped(series).rpartition(" | ")
        rows = [
            row
            for row in self.item(item)["rows"]
            if row.get("series") == name and (not bar or _plain(row["panel"]) == _plain(panel))
        ]
        if not rows:
            every = [row for row in self.item(item)["rows"] if row.get("series")]
            names = {f"{row['panel']} | {row['series']}" for row in every}
            raise RecordError(f"{item}: no series {shown(series)}; {did_you_mean(series, names)}")
        points = {row["x"]: row["label"] for row in rows}
        if len(points) < len(rows):
            raise RecordError(f"{item}: several panels have {shown(series)}; name one: PANEL | SERIES")
        return points

    def _ours(self, item: str, row: str, metric: str, **where: Any) -> Figure:
        return self._figure(item, self.row(item, row, **where), metric, "ours")

    def _printed(self, item: str, row: str, metric: str, **where: Any) -> Figure:
        return self._figure(item, self.row(item, row, **where), metric, "printed")

    def _figure(self, item: str, row: Found, metric: str, which: str) -> Figure:
        """Return our figure or the printed one; a measured number is a figure without a standard
        deviation."""
        kept = row.get(which)
        figures: dict[str, Any] = dict(kept) if isinstance(kept, Mapping) else {}
        if which == "ours":
            if "chosen" in row:
                figures |= {self.item(item)["metrics"][0]: row["chosen"], "best_round": row["best_round"]}
            figures = {**_numbers(row), **figures}
        if not isinstance(kept, Mapping) and kept is not None:
            figures[self.item(item)["kind"]] = kept
        if metric not in figures:
            nearest = did_you_mean(metric, [*figures])
            raise RecordError(f"{item}: {shown(row['label'])} has no {which} {shown(metric)}; {nearest}")
        found = figures[metric]
        if found is None:
            raise RecordError(f"{item}: nothing is {which} for {metric} of {shown(row['label'])}")
        return found if isinstance(found, Mapping) else {"mean": found, "std": None}

    def _relative(self, item: str, row: str, to: str, metric: str, **where: Any) -> Figure:
        found = self.row(item, row, **where)
        compared = {there["to"]: there["ours"] for there in found["relative"]}
        if to not in compared or metric not in compared[to]:
            nearest = did_you_mean(to, [*compared]) if compared else "it is compared with none"
            raise RecordError(f"{item}: {shown(row)} is not compared with {shown(to)} by {metric}; {nearest}")
        figure: Figure = compared[to][metric]
        return figure

    def _known(self, item: str, row: str, metric: str, figure: Figure, key: str) -> float:
        if figure[key] is None:
            raise RecordError(f"{item}: {metric} of {shown(row)} has no {key} (not every run reached it?)")
        return float(figure[key])


@cache
def _content(path: Path, changed: int) -> dict[str, Any]:
    """Return the content of a file, which is read again only if it has changed."""
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def _completed(row: Found) -> dict[str, Any]:
    """Add keys that are missing in records of earlier versions of `graphfed reproduce`."""
    older: dict[str, Any] = {"relative": []}
    if "chosen" in row:  # a curve by rounds
        older |= {"x": row.get("rounds"), "best_x": row.get("best_round")}
    return {**older, **row}


def _unescaped(text: str) -> str:
    """Return a text without the escapes of bars, which a cell of a table needs."""
    return text.replace("\\|", "|")


def _plain(panel: str | None) -> str:
    """Return the name of a panel without commas: "Cora, P=2" is the panel "Cora P=2"."""
    return (panel or "").replace(",", "")


def _numbers(row: Found) -> dict[str, float]:
    """Return the values of a row that are plain numbers."""
    return {
        key: value
        for key, value in row.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and key not in ("x", "difference")
    }


def _places(metric: str, places: int | None, figure: Figure | None = None) -> int:
    """Return the number of decimals of a figure in a sentence, unless the page sets it."""
    if places is not None:
        return places
    if metric in PERCENT:
        return 1
    whole = figure is not None and figure["std"] is None and float(figure["mean"] or 0.5).is_integer()
    return 0 if whole else 2


def brief(number: float) -> str:
    """Return a number with two significant digits and all digits before the point: ``0.073``, ``1.9``, ``1
    118``.

    Args:
        number: A number of at least 0.
    """
    if number == 0:
        return "0"
    rounded = float(f"{number:.2g}") if number < 10 else float(round(number))
    decimals = max(0, 1 - math.floor(math.log10(rounded))) if rounded < 10 else 0
    return f"{rounded:_.{decimals}f}".replace("_", " ")


def claim(held: bool, sentence: str) -> str:
    """Return a sentence if the relation between figures that it states holds.

    Args:
        held: Whether the relation holds.
        sentence: The sentence.

    Raises:
        RecordError: If the relation does not hold.
    """
    if not held:
        raise RecordError(f"the records contradict this sentence: {sentence}")
    return sentence


def ranges(numbers: Sequence[int]) -> str:
    """Return consecutive integers as ``0-9``, and other integers as ``0, 2``."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 1 and list(numbers) == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ", ".join(str(number) for number in numbers)
