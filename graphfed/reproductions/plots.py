"""An item of a reproduction, drawn as SVG from what reproduce.json has of it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.drawing import SERIES, new_panels, svg_file
from graphfed.reproductions.base import PERCENT, ROUND, Curves, Found, Item, Measured
from graphfed.reproductions.tables import axis_of, name_of, place_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "draw_curves", "draw_relative"]

#: Points of percent that an axis of shares spans at least.
LEAST_SPAN = 5.0
#: From so many times the smallest x to the largest, the axis is logarithmic.
LOGARITHMIC = 200
#: From so many times the shortest run to the longest, the axis of curves is logarithmic.
WIDE = 10


def draw(item: Item, found: Found) -> bytes:
    """Return an SVG file of what was found.

    Of runs a panel for each metric with both figures of every row, or, where the rows are points, a panel for
    each (panel, metric) with a line for each series; of curves a line for each row; of anything else what its
    paper draws."""
    if isinstance(item, Measured):
        return svg_file(found["title"], lambda: item.draw(found))
    if isinstance(item, Curves):
        return svg_file(found["title"], lambda: _draw_curves(found, found["metrics"][0], found["rows"]))
    return svg_file(found["title"], lambda: _draw_dots(found) if found["x"] is None else _draw_lines(found))


def draw_relative(found: Found) -> bytes:
    """Return an SVG file with a panel for each metric, and both figures of every comparison between rows."""
    return svg_file(found["title"], lambda: _draw_relative(found))


def draw_curves(found: Found) -> bytes:
    """Return an SVG file of the curves of an item's runs (`against`), a line for each row."""
    rows = [{"label": row["label"], **row["curve"]} for row in found["rows"]]
    return svg_file(found["title"], lambda: _draw_curves(found, rows[0]["metric"], rows))


def _draw_dots(found: Found) -> "Figure":
    rows = [
        (row["label"], {metric: (row["ours"][metric], row["printed"][metric]) for metric in found["metrics"]})
        for row in found["rows"]
    ]
    axis = {metric: f"{axis_of(found, metric)}: mean and deviation over runs" for metric in found["metrics"]}
    return _dots(rows, axis)


def _draw_relative(found: Found) -> "Figure":
    rows = []
    for row in found["rows"]:
        for there in row["relative"]:
            printed = {
                m: None if p is None else {"mean": p, "std": None} for m, p in there["printed"].items()
            }
            figures = {metric: (there["ours"][metric], printed[metric]) for metric in found["metrics"]}
            rows.append((f"{row['label']}\nagainst {there['to']}", figures))
    axis = {metric: f"{name_of(found, metric)}, relative difference (%)" for metric in found["metrics"]}
    return _dots(rows, axis)


def _dots(rows: Sequence[tuple[str, Mapping[str, Any]]], axis: Mapping[str, str]) -> "Figure":
    """rows: a label, and by metric our figures and the printed ones, of which there may be none; axis: a
    panel for each metric, and what it shows."""
    some = any(printed for _, figures in rows for _, printed in figures.values())
    markers = [("ours", "o", SERIES[0], -0.14 if some else 0.0), ("printed", "s", SERIES[1], 0.14)]
    figure, panels = new_panels(1, len(axis), 7 if len(axis) == 1 else 5, 0.3 + 0.45 * len(rows))
    for axes, (metric, shows) in zip(panels[0], axis.items(), strict=True):
        for which, (name, marker, colour, shift) in enumerate(markers[: 1 + some]):
            known = _known([(n + shift, figures[metric][which]) for n, (_, figures) in enumerate(rows)])
            axes.errorbar(
                [figures["mean"] for _, figures in known],
                [n for n, _ in known],
                xerr=[figures["std"] or 0.0 for _, figures in known],
                fmt=marker, color=colour, capsize=3, label=name,
            )  # fmt: skip
        labels = [label for label, _ in rows] if axes is panels[0][0] else [""] * len(rows)
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(shows)
        axes.grid(axis="x", alpha=0.3)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _draw_lines(found: Found) -> "Figure":
    from matplotlib.lines import Line2D

    series = list(dict.fromkeys(row["series"] for row in found["rows"]))
    colours = {name: SERIES[n % len(SERIES)] for n, name in enumerate(series)}
    figure, grid = new_panels(len(found["panels"]), len(found["metrics"]), 4.6, 2.9)
    printed = False
    for line, panel in zip(grid, found["panels"], strict=True):
        for axes, metric in zip(line, found["metrics"], strict=True):
            here = sorted((row for row in found["rows"] if row["panel"] == panel), key=lambda row: row["x"])
            for name, colour in colours.items():
                points = [row for row in here if row["series"] == name]
                _line(axes, [(row["x"], row["ours"][metric]) for row in points], color=colour)
                there = [(row["x"], row["printed"][metric]) for row in points]
                _line(axes, there, color=colour, linestyle="--", marker="s", markerfacecolor="white")
                printed = printed or bool(_known(there))
            axes.set_xlabel(found["x"])
            axes.set_ylabel(axis_of(found, metric))
            _widen(axes, LEAST_SPAN if metric in PERCENT else 0)
            axes.set_title(panel, fontsize="medium")
            ticks = sorted({row["x"] for row in here})
            if ticks[0] > 0 and ticks[-1] >= LOGARITHMIC * ticks[0]:
                axes.set_xscale("log")
                axes.minorticks_off()
            if len(ticks) <= 8:
                axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axes.grid(alpha=0.3)
    handles = [Line2D([], [], color=colour, linewidth=3, label=name) for name, colour in colours.items()]
    handles.append(Line2D([], [], color="grey", marker="o", label="ours, mean and deviation"))
    if printed:
        handles.append(
            Line2D([], [], color="grey", linestyle="--", marker="s", markerfacecolor="white", label="printed")
        )
    columns = len(found["metrics"])
    figure.legend(handles=handles, loc="outside lower center", ncols=1 if columns == 1 else 2 * columns)
    return figure


def _widen(axes: "Axes", least: float) -> None:
    """Let the vertical axis span `least` at least, so that noise does not look like a change."""
    low, high = axes.get_ylim()
    more = max(0.0, least - (high - low)) / 2
    axes.set_ylim(low - more, high + more)


def _line(axes: "Axes", points: Sequence[tuple[float, Mapping[str, Any] | None]], **style: Any) -> None:
    known = _known(points)
    if known:
        axes.errorbar(
            [x for x, _ in known],
            [figures["mean"] for _, figures in known],
            yerr=[figures["std"] or 0.0 for _, figures in known],
            **{"marker": "o", "markersize": 5, "capsize": 3, **style},
        )


def _known(points: Sequence[tuple[float, Mapping[str, Any] | None]]) -> list[tuple[float, Mapping[str, Any]]]:
    """The points that have a mean."""
    return [(x, figures) for x, figures in points if figures is not None and figures["mean"] is not None]


def _draw_curves(found: Found, metric: str, rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """The mean over runs, in a band of its deviation; a dot where the runs were best. A row whose runs have
    no such place is a level, that of its best rounds."""
    figure, grid = new_panels(1, 1, 7, 3.8)
    axes = grid[0, 0]
    for n, row in enumerate(rows):
        style = {"color": SERIES[n % len(SERIES)], "linestyle": "-" if n < len(SERIES) else "--"}
        best = row["chosen"]
        if not row["x"] and best["mean"] is not None and row["best_x"]["mean"] is None:
            axes.axhline(best["mean"], label=f"{row['label']}, at best", color=style["color"], linestyle=":")
            continue
        mean = np.array(row["mean"], dtype=float)
        std = np.array([value or 0.0 for value in row["std"]])
        axes.plot(row["x"], mean, label=row["label"], marker="." if len(mean) == 1 else None, **style)
        axes.fill_between(row["x"], mean - std, mean + std, color=style["color"], alpha=0.2, linewidth=0)
        if row["best_x"]["mean"] is not None and best["mean"] is not None:
            axes.plot(row["best_x"]["mean"], best["mean"], "o", color=style["color"])
    axes.set_xlabel(place_name(found, found["against"]))
    axes.set_ylabel(axis_of(found, metric, "validation"))
    axes.grid(alpha=0.3)
    ends = [row["x"][-1] for row in rows if row["x"]]
    starts = [row["x"][0] for row in rows if row["x"]]
    if found["against"] == ROUND:
        axes.xaxis.get_major_locator().set_params(integer=True)
    elif ends and min(starts) > 0 and max(ends) >= WIDE * min(ends):
        axes.set_xscale("log")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    return figure
