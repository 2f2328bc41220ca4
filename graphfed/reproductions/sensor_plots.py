"""Tables and drawings of a recipe's items on sensors (`recipe_sensors`). They read what is in
reproduce.json."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.drawing import SERIES, new_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "draw_histograms",
    "draw_operations",
    "draw_visible",
    "histograms_cells",
    "operations_cells",
    "visible_cells",
]

Cells = tuple[list[str], list[list[str]]]
UNSEEN = "#b8b8b8"


# ---- for a screen: columns and lines -----------------------------------------------------------------------


def visible_cells(item: Mapping[str, Any]) -> Cells:
    """How many sensors and edges training sees."""
    lines = [
        [row["label"], *(str(row[key]) for key in ("visible_sensors", "sensors", "visible_edges", "edges"))]
        for row in item["rows"]
    ]
    return ["row", "sensors seen", "of", "edges seen", "of"], lines


def histograms_cells(item: Mapping[str, Any]) -> Cells:
    """Means and deviations of sensors: the least, the mean and the largest over sensors."""
    columns = ["row", "sensors", "mean: least", "mean", "largest", "deviation: least", "mean", "largest"]
    lines = []
    for row in item["rows"]:
        line = [row["label"], str(len(row["ids"]))]
        for key in ("mean", "std"):
            known = [value for value in row[key] if value is not None]
            line += [f"{told:.2f}" for told in (min(known), float(np.mean(known)), max(known))]
        line += [f"{row['least']:.1f}", f"{row['largest']:.1f}", f"{100 * np.mean(row['missing']):.1f}"]
        lines.append(line)
    return [*columns, "least reading", "largest", "missing (%)"], lines


def operations_cells(item: Mapping[str, Any]) -> Cells:
    """10^9 operations of all sensors together, and 10^6 of one."""
    columns = ["row", "method", "one sensor (10^6)", "sensors", "all (10^9)", "printed", "difference"]
    lines = []
    for row in item["rows"]:
        printed = "-" if row["printed"] is None else f"{row['printed']:.3f}"
        gap = "-" if row["difference"] is None else f"{row['difference']:+.4f}"
        figures = [f"{row['per_sensor'] / 1e6:.3f}", str(row["sensors"]), f"{row['ours']:.4f}"]
        lines.append([row["label"], row["method"], *figures, printed, gap])
    return columns, lines


# ---- drawn -------------------------------------------------------------------------------------------------


def draw_visible(item: Mapping[str, Any]) -> "Figure":
    """A map for each row: sensors that training sees and edges among these, over all the others."""
    from matplotlib.lines import Line2D

    rows = item["rows"]
    columns = min(3, len(rows))
    figure, grid = new_panels(-(-len(rows) // columns), columns, 3.6, 3.4)
    panels = list(grid.flat)
    for axes, row in zip(panels, rows, strict=False):
        place, seen = np.array(row["position"]), np.array(row["observed"])
        if row["geographic"]:
            place = place[:, ::-1]
            # A degree of longitude is shorter the farther one is from the equator.
            aspect = 1 / max(float(np.cos(np.radians(place[:, 1].mean()))), 0.05)
            axes.set_xlabel("longitude (degrees)")
            axes.set_ylabel("latitude (degrees)")
        else:
            aspect = 1.0
            axes.set_xlabel("kilometres")
            axes.set_ylabel("kilometres")
        axes.set_aspect(aspect, adjustable="datalim")
        size = float(np.clip(2000 / len(place), 4, 30))
        axes.scatter(*place[~seen].T, s=size, facecolors="none", edgecolors=UNSEEN, linewidths=0.7, zorder=1)
        pairs = np.array(row["pairs"], dtype=int).reshape(-1, 2)
        # One path of all edges, interrupted between them.
        ends = np.concatenate([place[pairs], np.full((len(pairs), 1, 2), np.nan)], axis=1).reshape(-1, 2)
        axes.plot(*ends.T, color=SERIES[1], linewidth=0.6, alpha=0.5, zorder=2)
        axes.scatter(*place[seen].T, s=size, color=SERIES[0], linewidths=0, zorder=3)
        told = f"{row['visible_sensors']} sensors, {row['visible_edges']} edges"
        axes.set_title(f"{row['label']}: {told}", fontsize="medium")
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 6}
    handles = [
        Line2D([], [], color=SERIES[0], label="seen in training", **dot),
        Line2D([], [], color=SERIES[1], label="edge among these"),
        Line2D([], [], markerfacecolor="none", markeredgecolor=UNSEEN, label="not seen", **dot),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def draw_histograms(item: Mapping[str, Any]) -> "Figure":
    """A panel for each row: a line of the picture is the histogram of a sensor, and the darker, the more of
    its readings; sensors from the smallest mean at the bottom to the largest."""
    from matplotlib.colors import PowerNorm

    rows = item["rows"]
    figure, grid = new_panels(len(rows), 1, 7.5, 5.0)
    for axes, row in zip(grid[:, 0], rows, strict=True):
        mean = np.array([np.nan if told is None else told for told in row["mean"]])
        order = np.argsort(mean, kind="stable")  # sensors without readings at the top
        counts = np.array(row["counts"], dtype=float)[order]
        share = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
        edges, size = row["edges"], len(order)
        image = axes.imshow(
            share, aspect="auto", origin="lower", interpolation="none", cmap="Blues",
            norm=PowerNorm(0.5, vmin=0),  # so that the long tails of few readings are seen
            extent=(edges[0], edges[-1], 0, size),
        )  # fmt: skip
        axes.plot(mean[order], np.arange(size) + 0.5, color=SERIES[1], linewidth=1.2, label="mean")
        axes.set_xlabel(row["quantity"])
        axes.set_ylabel("sensors, from the smallest mean to the largest")
        width = edges[1] - edges[0]
        figure.colorbar(image, ax=axes, label=f"share of a sensor's readings (%), in bins of {width:g}")
        axes.set_title(f"{row['label']}: {size} sensors", fontsize="medium")
        axes.legend(loc="upper left")
    return figure


def draw_operations(item: Mapping[str, Any]) -> "Figure":
    """A bar for each row, with a mark at what was printed."""
    rows: Sequence[Mapping[str, Any]] = item["rows"]
    figure, grid = new_panels(1, 1, 7, 0.5 + 0.45 * len(rows))
    axes = grid[0, 0]
    axes.barh(range(len(rows)), [row["ours"] for row in rows], color=SERIES[0], height=0.6, label="ours")
    known = [(row["printed"], n) for n, row in enumerate(rows) if row["printed"] is not None]
    if known:
        axes.plot(*zip(*known, strict=True), "D", color=SERIES[1], label="printed")
    axes.set_yticks(range(len(rows)), [row["label"] for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("10^9 operations of a forecast at all sensors")
    axes.legend(loc="lower right")
    return figure
