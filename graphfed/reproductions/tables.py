"""Show an item of a reproduction as tables for a screen, from its part of reproduce.json."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphfed.reproductions.base import PERCENT, ROUND, Cells, Curves, Found, Item, Measured
from graphfed.reproductions.figures import FACTS, MEAN_OF, OF_RUN, in_run
from graphfed.runs.progress import human_seconds
from graphfed.terminal import make_table

if TYPE_CHECKING:
    from rich.table import Table


def table_of(paper: str, item: Item, found: Found, hints: Sequence[str]) -> "Table":
    """Return the table of an item; hints: lines below it, before the source."""
    columns, lines = cells_of(item, found)
    notes = [*hints, *_targets(found), f"printed: {found['source']}", *found["notes"]]
    title = f"{paper}/{found['item']}: {found['title']}"
    return make_table(columns, lines, numbers=columns[1:], title=title, caption="\n".join(notes))


def cells_of(item: Item, found: Found) -> Cells:
    """Return the columns and lines of an item's table."""
    if isinstance(item, Measured):
        return item.cells(found)
    return _curves_cells(found) if isinstance(item, Curves) else _runs_cells(found)


def _targets(found: Found) -> list[str]:
    """Return a line for each target."""
    lines = []
    for name, target in (found.get("targets") or {}).items():
        if target is not None and target["share"] is not None:
            less = f"{target['less']:g} less than " if target["less"] else "that of "
            follows = f", {less}{target['of']}" if target["of"] else ""
            lines.append(f"target {name}: {target['share']:.4g} on the validation part{follows}")
    return lines


def relative_table_of(paper: str, found: Found) -> "Table":
    """Return the table of how rows compare with each other."""
    columns, lines = relative_cells(found)
    return make_table(
        columns,
        lines,
        numbers=columns[1:],
        title=f"{paper}/{found['item']}, relative: {found['title']}",
        caption="by how many percent of the other row's figure: over the seeds that both rows have",
    )


def relative_cells(found: Found) -> Cells:
    """Return the columns and lines of the table of how rows compare with each other."""
    metrics = found["metrics"]
    comparisons = [(row["label"], there) for row in found["rows"] for there in row["relative"]]
    printed = [m for m in metrics if any(there["printed"][m] is not None for _, there in comparisons)]
    columns = ["row", "compared with"]
    for metric in metrics:
        group = f"{name_of(found, metric)}: " if len(metrics) > 1 else ""
        columns += [f"{group}ours", *([f"{group}paper"] if metric in printed else [])]
    lines = []
    for label, there in comparisons:
        line = [label, there["to"]]
        for metric in metrics:
            line.append(_percent(there["ours"][metric]))
            if metric in printed:
                figure = there["printed"][metric]
                line.append("-" if figure is None else f"{figure:+.2f} %")
        lines.append(line)
    return columns, lines


def _runs_cells(found: Found) -> Cells:
    printed = [m for m in found["metrics"] if any(row["printed"][m] for row in found["rows"])]
    columns = ["row"]
    for metric in found["metrics"]:
        unit = " (%)" if metric in PERCENT else ""
        group = f"{name_of(found, metric)}: " if len(found["metrics"]) > 1 else ""
        columns.append(f"{group}ours{unit}")
        if metric in printed:
            columns += [f"{group}printed{unit}", f"{group}difference"]
    lines = []
    for row in found["rows"]:
        line = [row["label"]]
        for metric in found["metrics"]:
            line.append(figure_text(row["ours"][metric], metric))
            if metric in printed:
                line.append(figure_text(row["printed"][metric], metric))
                line.append(_difference_text(row["difference"][metric], metric))
        lines.append([*line, str(len(row["seeds"])), human_seconds(row["seconds"])])
    return [*columns, "runs", "seconds"], lines


def _curves_cells(found: Found) -> Cells:
    (metric,) = found["metrics"]
    place = found["against"]
    end = "rounds" if place == ROUND else f"{place_name(found, place)}, at the end"
    columns = ["row", f"{axis_of(found, metric, 'validation')}: best", "at round", "last", end, "runs"]
    lines = []
    for row in found["rows"]:
        last = {"mean": row["mean"][-1], "std": row["std"][-1]} if row["x"] else None
        best = [figure_text(row["chosen"], metric), figure_text(row["best_round"], "best_round")]
        x = f"{row['x'][-1]:.4g}" if row["x"] else "-"
        lines.append([row["label"], *best, figure_text(last, metric), x, str(len(row["seeds"]))])
    return columns, lines


# ---- how figures are named and written ---------------------------------------------------------------------


def name_of(found: Found, metric: str) -> str:
    """Return a metric in the words of the item: ``seconds to most``, ``macro f1``."""
    words, where = metric.replace("_", " "), in_run(metric)
    if where is not None:
        reached = "at the end" if where.target is None else f"to {where.target}"
        by_mean = f" by the mean of {MEAN_OF} evaluations" if where.mean_of == MEAN_OF else ""
        words = f"{_words_of_place(where.place)} {reached}{by_mean}"
    name: str = found["called"].get(metric, words)
    return name


def place_name(found: Found, place: str) -> str:
    """Return a place in a run in the words of the item."""
    name: str = found["called"].get(place, _words_of_place(place))
    return name


def _words_of_place(place: str) -> str:
    return place.removeprefix(FACTS).replace("_", " ")


def axis_of(found: Found, metric: str, part: str = "test") -> str:
    """Return what an axis shows, with the part of the data that the metric is of."""
    if "." in metric or metric in OF_RUN:
        return name_of(found, metric)
    return f"{part} {name_of(found, metric)}{' (%)' if metric in PERCENT else ''}"


def figure_text(figure: Mapping[str, Any] | None, metric: str, decimals: int | None = None) -> str:
    """Write a figure as ``80.69 ± 0.65`` in percent if it is a fraction, else as ``11.487 ± 0.021``.

    A whole number is written as it is. If not all runs reached a target: ``not reached (1 of 3 did)``.
    """
    if figure is not None and "reached" in figure and figure["reached"] < len(figure["values"]):
        return f"not reached ({figure['reached']} of {len(figure['values'])} did)"
    if figure is None or figure["mean"] is None:
        return "-"
    if decimals is None:
        # With a deviation always as of a number that is not whole, because the deviation hardly ever is.
        decimals = _decimals(figure["mean"], metric) if figure["std"] is None else _decimals(0.5, metric)
    text = f"{figure['mean']:.{decimals}f}"
    return text if figure["std"] is None else f"{text} ± {figure['std']:.{decimals}f}"


def _difference_text(gap: float | None, metric: str) -> str:
    """Write a difference as ``+0.12``."""
    return "-" if gap is None else f"{gap:+.{_decimals(gap, metric)}f}"


def _percent(figure: Mapping[str, Any]) -> str:
    """Write a figure as ``-12.30 ± 0.51 %``."""
    if figure["mean"] is None:
        return "-"
    return f"{figure['mean']:+.2f}" + ("" if figure["std"] is None else f" ± {figure['std']:.2f}") + " %"


def _decimals(value: float, metric: str) -> int:
    if metric in PERCENT:
        return 2
    return 0 if float(value).is_integer() else 3
