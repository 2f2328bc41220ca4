"""Draw an item of a reproduction as SVG from its part of reproduce.json."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphfed.drawing.canvas import DASHES, MUTED, SERIES, Charts, picture_file
from graphfed.drawing.charts import XY, Axis, Series
from graphfed.reproductions.base import PERCENT, ROUND, Curves, Found, Item, Measured
from graphfed.reproductions.tables import axis_of, name_of, place_name

#: Points of percent that an axis of shares spans at least.
LEAST_SPAN = 5.0
#: From so many times the smallest x to the largest, the axis is logarithmic.
LOGARITHMIC = 200
#: From so many times the shortest run to the longest, the axis of curves is logarithmic.
WIDE = 10
#: Inches of a picture with one chart in a row, and of a chart in others.
ONE, SEVERAL = 7.0, 4.6


def draw(item: Item, found: Found) -> bytes:
    """Draw what was found: an item of runs has a panel for each metric, or lines if its rows are points."""
    if isinstance(item, Measured):
        return _file(found, item.draw(found))
    if isinstance(item, Curves):
        return _file(found, curves(found, found["metrics"][0], found["rows"]))
    return _file(found, _figures(found) if found["x"] is None else lines(found))


def draw_relative(found: Found) -> bytes:
    """Draw a panel for each metric, with both figures of every comparison between rows."""
    rows = []
    for row in found["rows"]:
        for there in row["relative"]:
            printed = {
                m: None if p is None else {"mean": p, "std": None} for m, p in there["printed"].items()
            }
            figures = {metric: (there["ours"][metric], printed[metric]) for metric in found["metrics"]}
            rows.append((f"{row['label']}\nagainst {there['to']}", figures))
    axis = {metric: f"{name_of(found, metric)}, relative difference (%)" for metric in found["metrics"]}
    return _file(found, _dots(rows, axis))


def draw_curves(found: Found) -> bytes:
    """Draw the curves of an item's runs (`against`), a line for each row."""
    rows = [{"label": row["label"], **row["curve"]} for row in found["rows"]]
    return _file(found, curves(found, rows[0]["metric"], rows))


def _file(found: Found, charts: Charts) -> bytes:
    width = ONE if max(map(len, charts)) == 1 else SEVERAL
    return picture_file(found["title"], charts, width=width)


def _figures(found: Found) -> Charts:
    rows = [
        (row["label"], {metric: (row["ours"][metric], row["printed"][metric]) for metric in found["metrics"]})
        for row in found["rows"]
    ]
    axis = {metric: f"{axis_of(found, metric)}: mean and deviation over runs" for metric in found["metrics"]}
    return _dots(rows, axis)


def _dots(rows: Sequence[tuple[str, Mapping[str, Any]]], axis: Mapping[str, str]) -> Charts:
    """Return a chart for each metric; rows: a label, and by metric our figures and the printed ones."""
    some = any(printed for _, figures in rows for _, printed in figures.values())
    # Next to each other in the row of a label, or in its middle if nothing is printed.
    kinds = [("ours", -0.14 if some else 0.0), ("printed", 0.14)][: 1 + some]
    panels: list[XY] = []
    for metric, shows in axis.items():
        series = []
        for which, (name, shift) in enumerate(kinds):
            known = _known([(n + shift, figures[metric][which]) for n, (_, figures) in enumerate(rows)])
            means = [figures["mean"] for _, figures in known]
            spread = [figures["std"] or 0.0 for _, figures in known]
            series.append(Series(name, means, [n for n, _ in known], spread, which, dash="", size=6.0))
        labels = {n: label if not panels else "" for n, (label, _) in enumerate(rows)}
        y = Axis(ticks=labels, low=len(rows) - 0.5, high=-0.5)
        panels.append(XY(series, Axis(shows), y, spread="across", height=1.2 + 0.45 * len(rows)))
    return [panels]


def lines(found: Found) -> Charts:
    """Return a panel for each (panel, metric) of an item whose rows are points, with a line for each
    series.
    """
    names = list(dict.fromkeys(row["series"] for row in found["rows"]))
    printed = any(_known([(0, p) for p in row["printed"].values()]) for row in found["rows"])
    # Series without points: the legend names lines and kinds of figures once, not every combination.
    legend = [Series(name, (), (), place=n, marker="") for n, name in enumerate(names)]
    legend.append(Series("ours, mean and deviation", (), (), colour=MUTED, marker="o"))
    legend += [Series("printed", (), (), colour=MUTED, dash="--", marker="s")] * printed
    grid = []
    for panel in found["panels"]:
        here = sorted((row for row in found["rows"] if row["panel"] == panel), key=lambda row: row["x"])
        ticks = sorted({row["x"] for row in here})
        # A logarithmic axis has no place for 0.
        log = ticks[0] > 0 and ticks[-1] >= LOGARITHMIC * ticks[0]
        texts = {x: f"{x:g}" for x in ticks} if len(ticks) <= 8 else None
        x = Axis(found["x"], scale="log" if log else "linear", ticks=texts)
        charts = []
        for metric in found["metrics"]:
            series = list(legend)
            for n, name in enumerate(names):
                points = [row for row in here if row["series"] == name]
                for which, dash, marker in (("ours", "-", "o"), ("printed", "--", "s")):
                    known = _known([(row["x"], row[which][metric]) for row in points])
                    if known:
                        means = [figures["mean"] for _, figures in known]
                        spread = [figures["std"] or 0.0 for _, figures in known]
                        places = [place for place, _ in known]
                        series.append(Series("", places, means, spread, n, dash=dash, marker=marker))
            y = Axis(axis_of(found, metric), span=LEAST_SPAN if metric in PERCENT else 0)
            charts.append(XY(series, x, y, panel, spread="bars", height=3.2))
        grid.append(charts)
    return grid


def _known(points: Sequence[tuple[float, Mapping[str, Any] | None]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Return the points that have a mean."""
    return [(x, figures) for x, figures in points if figures is not None and figures["mean"] is not None]


def curves(found: Found, metric: str, rows: Sequence[Mapping[str, Any]]) -> Charts:
    """Return a chart of the mean over runs in a band of its deviation, with a dot at the best rounds.

    A row whose runs have no such place is a level, that of its best rounds.
    """
    series = []
    for n, row in enumerate(rows):
        best = row["chosen"]["mean"]
        if not row["x"] and best is not None and row["best_x"]["mean"] is None:
            series.append(Series(f"{row['label']}, at best", (), [best], place=n, dash=":"))
            continue
        std = [value or 0.0 for value in row["std"]]
        marker = "." if len(row["x"]) == 1 else ""
        dash = DASHES[n // len(SERIES) % len(DASHES)]
        mean = np.array(row["mean"], dtype=float)
        series.append(Series(row["label"], row["x"], mean, std, n, dash=dash, marker=marker))
        if row["best_x"]["mean"] is not None and best is not None:
            series.append(Series("", [row["best_x"]["mean"]], [best], place=n, dash="", marker="o", size=6.0))
    ends = [row["x"][-1] for row in rows if row["x"]]
    starts = [row["x"][0] for row in rows if row["x"]]
    by_round = found["against"] == ROUND
    log = not by_round and bool(ends) and min(starts) > 0 and max(ends) >= WIDE * min(ends)
    x = Axis(place_name(found, found["against"]), scale="log" if log else "linear", whole=by_round)
    return [[XY(series, x, Axis(axis_of(found, metric, "validation")), height=4.2)]]
