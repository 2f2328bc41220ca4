"""An item of a reproduction, as a table for a screen and drawn as SVG. Both read what reproduce.json has."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.drawing import SERIES, new_panels, svg_file
from graphfed.reproductions import sensor_plots
from graphfed.reproductions.drawing import (
    axis_of,
    difference_text,
    figure_text,
    name_of,
    place_name,
)
from graphfed.reproductions.history import ROUND
from graphfed.reproductions.recipe import PERCENT
from graphfed.runs.progress import human_seconds
from graphfed.terminal import markup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table

__all__ = ["draw", "draw_curves", "draw_relative", "relative_table_of", "table_of"]

#: Points of percent that an axis of shares spans at least.
LEAST_SPAN = 5.0
#: From so many times the smallest x to the largest, the axis is logarithmic.
LOGARITHMIC = 200
#: From so many times the shortest run to the longest, the axis of curves is logarithmic.
WIDE = 10


# ---- for a screen ------------------------------------------------------------------------------------------


def table_of(paper: str, item: Mapping[str, Any], hints: Sequence[str]) -> "Table":
    """A rich table; hints: lines below it, before the source."""
    from rich.table import Table

    table = Table(
        title=markup(f"{paper}/{item['item']}: {item['title']}"),
        caption=markup("\n".join([*hints, *_targets(item), f"printed: {item['source']}", *item["notes"]])),
        caption_justify="left",
    )
    columns, lines = CELLS[item["kind"]](item)
    _fill(table, columns, lines)
    return table


def _targets(item: Mapping[str, Any]) -> list[str]:
    """A line for each target: ``target near: 0.8791 on the validation part, 0.01 less than central``."""
    lines = []
    for name, target in (item.get("targets") or {}).items():
        if target is not None and target["share"] is not None:
            less = f"{target['less']:g} less than " if target["less"] else "that of "
            follows = f", {less}{target['of']}" if target["of"] else ""
            lines.append(f"target {name}: {target['share']:.4g} on the validation part{follows}")
    return lines


def relative_table_of(paper: str, item: Mapping[str, Any]) -> "Table":
    """A rich table of how rows compare with each other."""
    from rich.table import Table

    table = Table(
        title=markup(f"{paper}/{item['item']}, relative: {item['title']}"),
        caption="by how many percent of the other row's figure: over the seeds that both rows have",
        caption_justify="left",
    )
    comparisons = [(row["label"], there) for row in item["rows"] for there in row["relative"]]
    printed = [m for m in item["metrics"] if any(there["printed"][m] is not None for _, there in comparisons)]
    columns = ["row", "compared with"]
    for metric in item["metrics"]:
        group = f"{name_of(item, metric)}: " if len(item["metrics"]) > 1 else ""
        columns += [f"{group}ours", *([f"{group}paper"] if metric in printed else [])]
    lines = []
    for label, there in comparisons:
        line = [label, there["to"]]
        for metric in item["metrics"]:
            line.append(_percent(there["ours"][metric]))
            if metric in printed:
                figure = there["printed"][metric]
                line.append("-" if figure is None else f"{figure:+.2f} %")
        lines.append(line)
    _fill(table, columns, lines)
    return table


def _fill(table: "Table", columns: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    table.add_column(columns[0], overflow="fold")
    for name in columns[1:]:
        table.add_column(markup(name), justify="right")
    for line in lines:
        table.add_row(*(markup(cell) for cell in line))


def _runs_cells(item: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    printed = [m for m in item["metrics"] if any(row["printed"][m] for row in item["rows"])]
    columns = ["row"]
    for metric in item["metrics"]:
        unit = " (%)" if metric in PERCENT else ""
        group = f"{name_of(item, metric)}: " if len(item["metrics"]) > 1 else ""
        columns.append(f"{group}ours{unit}")
        if metric in printed:
            columns += [f"{group}printed{unit}", f"{group}difference"]
    lines = []
    for row in item["rows"]:
        line = [row["label"]]
        for metric in item["metrics"]:
            line.append(figure_text(row["ours"][metric], metric))
            if metric in printed:
                line.append(figure_text(row["printed"][metric], metric))
                line.append(difference_text(row["difference"][metric], metric))
        lines.append([*line, str(len(row["seeds"])), human_seconds(row["seconds"])])
    return [*columns, "runs", "seconds"], lines


def _counts_cells(item: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A line for each holder; the classes are of the vertices in train, val or test."""
    classes = max((row["classes"] for row in item["rows"]), key=len)
    lines = []
    for row in item["rows"]:
        for k, holder in enumerate(row["holders"]):
            counts = [str(n) for n in row["counts"]["split"][k]]
            counts += [""] * (len(classes) - len(counts))
            printed = "-" if row["printed"] is None else str(row["printed"][k])
            totals = [str(row["totals"][key][k]) for key in ("split", "all")]
            lines.append([row["label"], holder, *counts, totals[0], printed, totals[1]])
    names = [f"class {name}" for name in classes]
    return ["row", "holder", *names, "train, val, test", "printed", "all vertices"], lines


def _workloads_cells(item: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    columns = ["row", "largest workload", "printed", "mean", "kept in all", "rounds"]
    columns += ["comparisons", "comparing all again", "seconds"]
    lines = []
    for row in item["rows"]:
        printed = "-" if row["printed"] is None else f"{row['printed']:g}"
        line = [row["label"], str(row["largest"]), printed, f"{row['mean']:.2f}", str(row["pairs_kept"])]
        counts = (row[key] for key in ("rounds", "comparisons", "comparisons_all_again"))
        lines.append([*line, *(f"{n:,}".replace(",", " ") for n in counts), human_seconds(row["seconds"])])
    return columns, lines


def _curves_cells(item: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    (metric,) = item["metrics"]
    place = item["against"]
    end = "rounds" if place == ROUND else f"{place_name(item, place)}, at the end"
    columns = ["row", f"{axis_of(item, metric, 'validation')}: best", "at round", "last", end, "runs"]
    lines = []
    for row in item["rows"]:
        last = {"mean": row["mean"][-1], "std": row["std"][-1]} if row["x"] else None
        told = [figure_text(row["chosen"], metric), figure_text(row["best_round"], "best_round")]
        x = f"{row['x'][-1]:.4g}" if row["x"] else "-"
        lines.append([row["label"], *told, figure_text(last, metric), x, str(len(row["seeds"]))])
    return columns, lines


def _returns_cells(item: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    columns = ["row", "policy", "episodes", "return: first 20", "last 20", "without noise", "settled from"]
    columns += ["kept", "hours"]
    lines = []
    for row in item["rows"]:
        ends = [f"{row[key]:.2f}" for key in ("first", "last", "final")]
        best = row["best"]
        if best is None:
            kept = f"the actor after episode {row['kept']}"
        else:
            kept = f"{best['share']:g} of the vertices, chance {best['chance']:g}"
        settled = "-" if row["settled"] is None else str(row["settled"])
        hours = f"{row['seconds'] / 3600:.2f}"
        lines.append([row["label"], row["kind"], str(len(row["returns"])), *ends, settled, kept, hours])
    return columns, lines


def _percent(told: Mapping[str, Any]) -> str:
    """``-12.30 ± 0.51 %``."""
    if told["mean"] is None:
        return "-"
    return f"{told['mean']:+.2f}" + ("" if told["std"] is None else f" ± {told['std']:.2f}") + " %"


#: The columns and the lines of a kind's table.
CELLS: dict[str, Callable[[Mapping[str, Any]], tuple[list[str], list[list[str]]]]] = {
    "runs": _runs_cells,
    "curves": _curves_cells,
    "class_counts": _counts_cells,
    "workloads": _workloads_cells,
    "visible_sensors": sensor_plots.visible_cells,
    "histograms": sensor_plots.histograms_cells,
    "operations": sensor_plots.operations_cells,
    "returns": _returns_cells,
}


# ---- drawn -------------------------------------------------------------------------------------------------


def draw(item: Mapping[str, Any]) -> bytes:
    """SVG: of runs a panel for each metric with both figures of every row, or, where the rows are points, a
    panel for each (panel, metric) with a line for each series; of curves a line for each row; of class counts
    a panel for each row; of workloads two for each panel: how many devices have which, and the largest
    against comparisons; of returns a line for each row; of sensors: `recipe_sensor_plots`."""
    drawings = {
        "runs": _draw_lines if item.get("x") is not None else _draw_dots,
        "curves": lambda item: _draw_curves(item, item["metrics"][0], item["rows"]),
        "class_counts": _draw_counts,
        "workloads": _draw_workloads,
        "visible_sensors": sensor_plots.draw_visible,
        "histograms": sensor_plots.draw_histograms,
        "operations": sensor_plots.draw_operations,
        "returns": _draw_returns,
    }
    return svg_file(item["title"], lambda: drawings[item["kind"]](item))


def draw_relative(item: Mapping[str, Any]) -> bytes:
    """SVG: a panel for each metric with both figures of every comparison between rows."""
    return svg_file(item["title"], lambda: _draw_relative(item))


def draw_curves(item: Mapping[str, Any]) -> bytes:
    """SVG: the curves of an item's runs (`against`), a line for each row."""
    rows = [{"label": row["label"], **row["curve"]} for row in item["rows"]]
    return svg_file(item["title"], lambda: _draw_curves(item, rows[0]["metric"], rows))


def _draw_dots(item: Mapping[str, Any]) -> "Figure":
    rows = [
        (row["label"], {metric: (row["ours"][metric], row["printed"][metric]) for metric in item["metrics"]})
        for row in item["rows"]
    ]
    axis = {metric: f"{axis_of(item, metric)}: mean and deviation over runs" for metric in item["metrics"]}
    return _dots(rows, axis)


def _draw_relative(item: Mapping[str, Any]) -> "Figure":
    rows = []
    for row in item["rows"]:
        for there in row["relative"]:
            printed = {
                m: None if p is None else {"mean": p, "std": None} for m, p in there["printed"].items()
            }
            told = {metric: (there["ours"][metric], printed[metric]) for metric in item["metrics"]}
            rows.append((f"{row['label']}\nagainst {there['to']}", told))
    axis = {metric: f"{name_of(item, metric)}, relative difference (%)" for metric in item["metrics"]}
    return _dots(rows, axis)


def _dots(rows: Sequence[tuple[str, Mapping[str, Any]]], axis: Mapping[str, str]) -> "Figure":
    """rows: a label, and by metric our figures and the printed ones, of which there may be none; axis: a
    panel for each metric, and what it shows."""
    some = any(printed for _, figures in rows for _, printed in figures.values())
    markers = [("ours", "o", SERIES[0], -0.14 if some else 0.0), ("printed", "s", SERIES[1], 0.14)]
    figure, panels = new_panels(1, len(axis), 7 if len(axis) == 1 else 5, 0.3 + 0.45 * len(rows))
    for axes, (metric, shows) in zip(panels[0], axis.items(), strict=True):
        for which, (name, marker, colour, shift) in enumerate(markers[: 1 + some]):
            told = _known([(n + shift, figures[metric][which]) for n, (_, figures) in enumerate(rows)])
            axes.errorbar(
                [figures["mean"] for _, figures in told],
                [n for n, _ in told],
                xerr=[figures["std"] or 0.0 for _, figures in told],
                fmt=marker, color=colour, capsize=3, label=name,
            )  # fmt: skip
        labels = [label for label, _ in rows] if axes is panels[0][0] else [""] * len(rows)
        axes.set_yticks(range(len(rows)), labels)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(shows)
        axes.grid(axis="x", alpha=0.3)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _draw_workloads(item: Mapping[str, Any]) -> "Figure":
    figure, grid = new_panels(len(item["panels"]), 2, 5.2, 3.2)
    series = list(dict.fromkeys(row["series"] for row in item["rows"]))
    colours = {name: SERIES[n % len(SERIES)] for n, name in enumerate(series)}
    for (shares, costs), panel in zip(grid, item["panels"], strict=True):
        for row in (row for row in item["rows"] if row["panel"] == panel):
            style = {"color": colours[row["series"]], "label": row["series"]}
            told, below = row["workloads"], list(accumulate(row["workloads"]["devices"]))
            shares.step(told["values"], [n / row["devices"] for n in below], where="post", **style)
            curve = row["curve"]
            # Without any comparison a balancer is a point at the edge.
            marker = {"marker": "o", "clip_on": False} if len(curve["largest"]) == 1 else {}
            costs.step(
                [max(1, n) for n in curve["comparisons"]], curve["largest"], where="post", **style, **marker
            )
        shares.set_xscale("symlog", linthresh=1)
        shares.set_xlabel("workload (neighbours kept)")
        shares.set_ylabel("share of the devices with at most this")
        shares.legend(loc="lower right", fontsize="small")
        costs.set_xscale("log")
        costs.set_yscale("log")
        costs.set_xlabel("comparisons so far")
        costs.set_ylabel("largest workload")
        for axes in (shares, costs):
            axes.set_title(panel, fontsize="medium")
            axes.grid(alpha=0.3)
    return figure


def _draw_lines(item: Mapping[str, Any]) -> "Figure":
    from matplotlib.lines import Line2D

    series = list(dict.fromkeys(row["series"] for row in item["rows"]))
    colours = {name: SERIES[n % len(SERIES)] for n, name in enumerate(series)}
    figure, grid = new_panels(len(item["panels"]), len(item["metrics"]), 4.6, 2.9)
    printed = False
    for line, panel in zip(grid, item["panels"], strict=True):
        for axes, metric in zip(line, item["metrics"], strict=True):
            here = sorted((row for row in item["rows"] if row["panel"] == panel), key=lambda row: row["x"])
            for name, colour in colours.items():
                points = [row for row in here if row["series"] == name]
                _line(axes, [(row["x"], row["ours"][metric]) for row in points], color=colour)
                there = [(row["x"], row["printed"][metric]) for row in points]
                _line(axes, there, color=colour, linestyle="--", marker="s", markerfacecolor="white")
                printed = printed or bool(_known(there))
            axes.set_xlabel(item["x"])
            axes.set_ylabel(axis_of(item, metric))
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
    columns = len(item["metrics"])
    figure.legend(handles=handles, loc="outside lower center", ncols=1 if columns == 1 else 2 * columns)
    return figure


def _widen(axes: "Axes", least: float) -> None:
    """Let the vertical axis span `least` at least, so that noise does not look like a change."""
    low, high = axes.get_ylim()
    more = max(0.0, least - (high - low)) / 2
    axes.set_ylim(low - more, high + more)


def _line(axes: "Axes", points: Sequence[tuple[float, Mapping[str, Any] | None]], **style: Any) -> None:
    told = _known(points)
    if told:
        axes.errorbar(
            [x for x, _ in told],
            [figures["mean"] for _, figures in told],
            yerr=[figures["std"] or 0.0 for _, figures in told],
            **{"marker": "o", "markersize": 5, "capsize": 3, **style},
        )


def _known(points: Sequence[tuple[float, Mapping[str, Any] | None]]) -> list[tuple[float, Mapping[str, Any]]]:
    """The points that have a mean."""
    return [(x, figures) for x, figures in points if figures is not None and figures["mean"] is not None]


def _draw_curves(item: Mapping[str, Any], metric: str, rows: Sequence[Mapping[str, Any]]) -> "Figure":
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
        std = np.array([told or 0.0 for told in row["std"]])
        axes.plot(row["x"], mean, label=row["label"], marker="." if len(mean) == 1 else None, **style)
        axes.fill_between(row["x"], mean - std, mean + std, color=style["color"], alpha=0.2, linewidth=0)
        if row["best_x"]["mean"] is not None and best["mean"] is not None:
            axes.plot(row["best_x"]["mean"], best["mean"], "o", color=style["color"])
    axes.set_xlabel(place_name(item, item["against"]))
    axes.set_ylabel(axis_of(item, metric, "validation"))
    axes.grid(alpha=0.3)
    ends = [row["x"][-1] for row in rows if row["x"]]
    starts = [row["x"][0] for row in rows if row["x"]]
    if item["against"] == ROUND:
        axes.xaxis.get_major_locator().set_params(integer=True)
    elif ends and min(starts) > 0 and max(ends) >= WIDE * min(ends):
        axes.set_xscale("log")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _draw_returns(item: Mapping[str, Any]) -> "Figure":
    """The return of every episode, pale, and its moving mean, with a dot where an actor was kept."""
    figure, grid = new_panels(1, 1, 7, 3.8)
    axes = grid[0, 0]
    for n, row in enumerate(item["rows"]):
        colour, episodes = SERIES[n % len(SERIES)], np.arange(1, len(row["returns"]) + 1)
        axes.plot(episodes, row["returns"], color=colour, alpha=0.3, linewidth=1)
        axes.plot(episodes, row["moving_mean"], color=colour, label=row["label"])
        if row["kept"] is not None:
            label = f"{row['label']}: the actor that is kept"
            axes.plot(row["kept"], row["moving_mean"][row["kept"] - 1], "o", color=colour, label=label)
    axes.set_xlabel("episode")
    axes.set_ylabel("return, and its moving mean")
    axes.grid(alpha=0.3)
    axes.xaxis.get_major_locator().set_params(integer=True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _draw_counts(item: Mapping[str, Any]) -> "Figure":
    """For each class the share of its vertices at each holder, of those in train, val or test."""
    rows = item["rows"]
    columns = min(3, len(rows))
    figure, grid = new_panels(-(-len(rows) // columns), columns, max(3.4, 12 / columns), 2.7)
    panels = list(grid.flat)
    for axes, row in zip(panels, rows, strict=False):
        counts, printed = row["counts"]["split"], row["printed"]
        of_class = [sum(holder[c] for holder in counts) for c in range(len(row["classes"]))]
        below = [0.0] * len(of_class)
        for k, holder in enumerate(counts):
            share = [100 * n / total if total else 0.0 for n, total in zip(holder, of_class, strict=True)]
            label = f"{row['holders'][k]}: {row['totals']['split'][k]}" + (
                f" ({printed[k]})" if printed else ""
            )
            axes.bar(row["classes"], share, bottom=below, color=SERIES[k % len(SERIES)], label=label)
            below = [a + b for a, b in zip(below, share, strict=True)]
        axes.set_title(row["label"], fontsize="medium")
        axes.set_xlabel("class")
        axes.set_ylabel("share of its vertices (%)")
        axes.set_ylim(0, 100)
        title = "holder: vertices" + (" (printed)" if printed else "")
        axes.legend(
            title=title, fontsize="small", title_fontsize="small", loc="upper left", bbox_to_anchor=(1, 1)
        )
    for axes in panels[len(rows) :]:
        axes.set_visible(False)
    return figure
