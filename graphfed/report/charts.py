"""Charts of a page as SVG: scores, bytes, and the graph and its sites. How they are drawn is in `drawing`."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphfed.drawing import (
    GRID,
    INK,
    MARKERS,
    MUTED,
    PAPER,
    SERIES,
    WIDTH,
    add_legend,
    any_script,
    grouped,
    legend_height,
    locator,
    new_figure,
    short,
    style,
    svg,
    wide,
)

__all__ = [
    "DOTS",
    "bars",
    "confusion",
    "cumulative",
    "curves",
    "degrees",
    "partition_drawing",
    "picture",
    "roc",
    "score_against_bytes",
    "site_classes",
    "site_dots",
]

#: Sites whose classes are drawn.
DRAWN_SITES = 30
#: Points of a cumulative distribution, and marks of sites.
POINTS, DOTS = 200, 500
#: More sites in a circle are not named.
NAMED_SITES = 12


def curves(
    rows: Mapping[str, Sequence[Mapping[int, float]]], metric: str, scored: str = "vertices", unit: str = ""
) -> str:
    """Validation metric by round. rows: label -> {round: value} for each seed; the line is the mean over
    seeds, the band its sample standard deviation. A row with one round is a level: a dashed line. unit: of an
    error; its first rounds, when nothing is learned yet, may lie above the frame."""

    def draw() -> Any:
        figure = new_figure(2.9 + legend_height(list(rows)))
        ax = figure.add_subplot()
        means = []
        for i, (label, runs) in enumerate(rows.items()):
            colour = SERIES[i % len(SERIES)]
            shared = sorted(set.intersection(*(set(run) for run in runs)))
            values = np.array([[run[r] for r in shared] for run in runs])
            mean = values.mean(0)
            means.append(mean)
            if len(shared) == 1:
                ax.axhline(mean[0], color=colour, label=short(label), linewidth=1.4, linestyle="--")
                continue
            ax.plot(
                shared, mean, color=colour, label=short(label),
                linewidth=1.6, marker=MARKERS[i % len(MARKERS)],
                markersize=4, markevery=max(1, len(shared) // 8),
            )  # fmt: skip
            if len(runs) > 1:
                spread = values.std(0, ddof=1)
                ax.fill_between(shared, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
        above = unit and _leave_out_first_rounds(ax, means)
        ax.set_xlabel("communication round" + (" (the first lie above the frame)" if above else ""))
        ax.xaxis.set_major_locator(locator(8, integer=True))
        ax.set_ylabel(
            short(f"validation {metric} ({unit})", 36)
            if unit
            else f"{metric}, validation {scored}"
            if len(metric) < 12
            else f"validation {metric}"
        )
        ax.margins(x=0.01)
        add_legend(figure, list(rows))
        return figure

    return svg(draw, f"{metric} by round")


def _leave_out_first_rounds(ax: Any, means: Sequence[np.ndarray]) -> bool:
    """Whether the first rounds' errors are so large that the later ones would be one line; then they are left
    out of the frame."""
    later = np.concatenate([mean[len(mean) // 5 :] for mean in means])
    low, high = later.min(), later.max()
    top = high + 0.2 * max(high - low, 0.05 * high)
    if max(mean.max() for mean in means) <= top + 2 * (high - low):
        return False
    ax.set_ylim(low - (top - high), top)
    return True


def score_against_bytes(
    rows: Sequence[tuple[str, float, float, float | None]], metric: str, unit: str | None = None
) -> str:
    """What a test metric cost: (label, bytes, mean, deviation) of each row; rows that sent nothing are at the
    left. unit: of an error, "" where it is not known; None: the metric is a share, drawn in percent."""
    from graphfed.runs.progress import human_bytes

    def draw() -> Any:
        labels = [label for label, *_ in rows]
        figure = new_figure(2.7 + legend_height(labels))
        ax = figure.add_subplot()
        sent = [crossed for _, crossed, _, _ in rows if crossed]
        nothing = min(sent) / 8 if sent else 1.0
        scale = 100 if unit is None else 1
        for i, (label, crossed, mean, std) in enumerate(rows):
            ax.errorbar(
                crossed or nothing, scale * mean, None if std is None else scale * std,
                fmt=MARKERS[i % len(MARKERS)], color=SERIES[i % len(SERIES)], capsize=3, markersize=7,
                label=short(label),
            )  # fmt: skip
        ax.set_xscale("log")
        ax.minorticks_off()
        low, high = min(sent, default=1.0), max(sent, default=1.0)
        powers = range(int(np.floor(np.log10(low))) - 1, int(np.ceil(np.log10(high))) + 1)
        steps = [factor * 10.0**e for e in powers for factor in (1, 2, 5)]
        ticks = [t for t in steps if max(low / 3, 2 * nothing) < t < 3 * high]
        ticks = ticks if len(ticks) <= 7 else [t for t in ticks if np.log10(t) % 1 == 0]
        ax.set_xticks([nothing, *ticks], ["nothing", *(human_bytes(t) for t in ticks)])
        ax.margins(x=0.12, y=0.15)
        ax.set_xlabel("bytes of set-up and training, mean of a run")
        told = "percent" if unit is None else unit
        ax.set_ylabel(short(f"test {metric}, {told}" if told else f"test {metric}", 36))
        add_legend(figure, labels)
        return figure

    return svg(draw, f"test {metric} against bytes")


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], unit: str, title: str) -> str:
    """Stacked horizontal bars: (label, {part: amount}) from top to bottom."""
    from graphfed.runs.progress import human_bytes

    def draw() -> Any:
        parts = list(dict.fromkeys(part for _, amounts in rows for part in amounts))
        figure = new_figure(0.7 + 0.34 * len(rows) + legend_height(parts))
        ax = figure.add_subplot()
        left = np.zeros(len(rows))
        for i, part in enumerate(parts):
            amount = np.array([amounts.get(part, 0) for _, amounts in rows], dtype=float)
            ax.barh(
                range(len(rows)), amount, left=left, color=SERIES[i % len(SERIES)], label=part, height=0.62
            )
            left += amount
        for y, total in enumerate(left):
            ax.annotate(
                human_bytes(total), (total, y), xytext=(4, 0), textcoords="offset points", va="center"
            )
        ax.set_yticks(range(len(rows)), [short(label) for label, _ in rows])
        ax.invert_yaxis()
        ax.grid(axis="y", visible=False)
        ax.set_xlim(0, max(left.max(initial=0), 1) * 1.16)
        ax.xaxis.set_major_locator(locator(5))
        ax.xaxis.set_major_formatter(lambda value, _: human_bytes(value))
        ax.set_xlabel(unit)
        add_legend(figure, parts)
        return figure

    return svg(draw, title)


def cumulative(rows: Mapping[str, np.ndarray], quantity: str, title: str) -> str:
    """The share of devices that have at most so much of a quantity: values [K] by label, drawn at no more
    than POINTS different values."""

    def draw() -> Any:
        labels = list(rows)
        figure = new_figure(2.7 + legend_height(labels))
        ax = figure.add_subplot()
        for i, (label, values) in enumerate(rows.items()):
            ordered = np.sort(values)
            at = np.unique(ordered)
            if len(at) > POINTS:
                at = np.unique(np.quantile(ordered, np.linspace(0, 1, POINTS), method="inverted_cdf"))
            share = np.searchsorted(ordered, at, side="right") / len(ordered)
            ax.step(
                [at[0], *at], [0, *share], where="post", color=SERIES[i % len(SERIES)], linewidth=1.6,
                label=short(label), linestyle=("-", "--", ":", "-.")[i % 4],
            )  # fmt: skip
        ax.set_xscale("symlog", linthresh=1)
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.minorticks_off()
        ax.set_xlim(left=0)
        ax.set_ylim(0, 1.02)
        ax.set_xlabel(quantity)
        ax.set_ylabel("share of devices")
        add_legend(figure, labels)
        return figure

    return svg(draw, title)


def confusion(counts: Sequence[Sequence[float]], names: Sequence[str]) -> str:
    """Share of each true class (rows) that was predicted as each class (columns), in percent, over the number
    of vertices; dashes where there is no vertex of the class."""

    def draw() -> Any:
        table = np.asarray(counts, dtype=float)[:, : len(names)]
        known = np.asarray(counts, dtype=float).sum(1)
        share = table / np.maximum(known[:, None], 1)
        side = min(WIDTH, 2.2 + 0.42 * len(names))
        figure = new_figure(side * 0.86)
        ax = figure.add_subplot()
        ax.set_aspect("equal")
        size = len(names)
        crowded = max(map(len, names), default=0) * size > 40
        up, down = (0.08, 0.15) if size <= 3 else (0.12, 0.28)
        for i in range(size):
            for j in range(size):
                ax.add_patch(_cell(j, i, share[i, j]))
                if size <= 12:
                    color = PAPER if share[i, j] > 0.55 else INK
                    texts = [
                        (-up, f"{100 * share[i, j]:.0f}" if known[i] else "\N{EN DASH}", 9),
                        (down, f"{table[i, j]:,.6g}" if known[i] else "", 8 if size <= 6 else 6),
                    ]
                    for shift, text, points in texts:
                        ax.text(j, i + shift, text, ha="center", va="center", fontsize=points, color=color)
        ax.set_xlim(-0.5, size - 0.5)
        ax.set_ylim(size - 0.5, -0.5)
        ax.grid(visible=False)
        ax.set_xticks(
            range(size),
            [short(n, 14) for n in names],
            rotation=45 if crowded else 0,
            ha="right" if crowded else "center",
        )
        ax.set_yticks(
            range(size),
            [short(n, 20) + ("" if k else " (none)") for n, k in zip(names, known, strict=True)],
        )
        ax.set_xlabel("predicted class")
        ax.set_ylabel("true class")
        return figure

    return svg(draw, "confusion matrix")


def roc(rows: Mapping[str, Sequence[Sequence[float]]]) -> str:
    """The ROC curve of each row, points (false positive rate, true positive rate) by label, and the diagonal
    of a guess."""

    def draw() -> Any:
        labels = list(rows)
        figure = new_figure(3.2 + legend_height(labels), width=min(WIDTH, 3.6))
        ax = figure.add_subplot()
        ax.set_aspect("equal")
        ax.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle="--")
        for i, (label, points) in enumerate(rows.items()):
            ax.plot(
                [x for x, _ in points], [y for _, y in points], color=SERIES[i % len(SERIES)],
                label=short(label), linewidth=1.6, marker=MARKERS[i % len(MARKERS)], markersize=4,
                markevery=max(1, len(points) // 8),
            )  # fmt: skip
        ax.set_xlim(-0.02, 1.02)
        ax.set_ylim(-0.02, 1.02)
        ax.set_xlabel("false positive rate")
        ax.set_ylabel("true positive rate")
        add_legend(figure, labels)
        return figure

    return svg(draw, "ROC curve")


def _cell(x: float, y: float, share: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(
        (x - 0.48, y - 0.48), 0.96, 0.96, facecolor=SERIES[0], alpha=float(share), edgecolor="none"
    )


def site_dots(rows: Mapping[str, Mapping[str, tuple[float, int]]]) -> str:
    """Test accuracy of every site, (accuracy, test vertices) by label and site: a dot each, its area by the
    vertices; of more than DOTS sites those with the most."""

    def draw() -> Any:
        figure = new_figure(0.9 + 0.42 * len(rows))
        ax = figure.add_subplot()
        most = max((count for sites in rows.values() for _, count in sites.values()), default=1)
        for y, sites in enumerate(rows.values()):
            drawn = sorted(sites.values(), key=lambda site: -site[1])[:DOTS]
            values = np.array([100 * accuracy for accuracy, _ in drawn])
            counts = np.array([count for _, count in drawn], dtype=float)
            ax.scatter(
                values, np.full(len(values), y), s=12 + 90 * counts / most,
                color=SERIES[y % len(SERIES)], alpha=0.55, linewidths=0, marker=MARKERS[y % len(MARKERS)],
            )  # fmt: skip
        ax.set_yticks(range(len(rows)), [short(label) for label in rows])
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.set_xlabel("test accuracy, percent; larger mark: more test vertices")
        ax.grid(axis="y", visible=False)
        return figure

    return svg(draw, "accuracy of each site")


def site_classes(sites: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Vertices of each class at each site, stacked; the first 30 sites."""

    def draw() -> Any:
        drawn = _drawn_classes(names)
        longest = max(map(wide, _site_labels(sites)), default=0)
        turned = {0: 0, 45: 0.06, 90: 0.085}[_turn(sites)] * longest
        figure = new_figure(2.7 + legend_height(drawn) + turned)
        _classes_on(figure.add_subplot(), sites, names)
        add_legend(figure, drawn)
        return figure

    return svg(draw, "classes of each site")


def _drawn_classes(names: Sequence[str]) -> list[str]:
    """The classes that have a colour of their own; the rest together."""
    return list(names) if len(names) <= len(SERIES) else [*names[: len(SERIES) - 1], "other classes"]


def _site_labels(sites: Sequence[Mapping[str, Any]]) -> list[str]:
    return [short(str(site["name"]), 14) for site in sites[:DRAWN_SITES]]


def _turn(sites: Sequence[Mapping[str, Any]]) -> int:
    """By how many degrees labels of sites have to be turned: upright where slanted ones would touch."""
    labels = _site_labels(sites)
    if max(map(wide, labels), default=0) * len(labels) <= 64:
        return 0
    return 45 if len(labels) <= 15 else 90


def _classes_on(ax: Any, sites: Sequence[Mapping[str, Any]], names: Sequence[str]) -> None:
    shown, drawn = list(sites)[:DRAWN_SITES], _drawn_classes(names)
    counts = np.array([site["classes"] for site in shown], dtype=float).reshape(len(shown), -1)
    if counts.shape[1] > len(drawn):
        rest = counts[:, len(drawn) - 1 :].sum(1, keepdims=True)
        counts = np.concatenate([counts[:, : len(drawn) - 1], rest], 1)
    bottom = np.zeros(len(shown))
    for c in range(counts.shape[1]):
        ax.bar(
            range(len(shown)),
            counts[:, c],
            bottom=bottom,
            color=SERIES[c % len(SERIES)],
            label=short(drawn[c]),
            width=0.75,
        )
        bottom += counts[:, c]
    ax.set_ylim(0, 1.05 * max(1, bottom.max(initial=0)))  # the highest bar ends below the frame
    turn = _turn(sites)
    ax.set_xticks(
        range(len(shown)), _site_labels(sites), rotation=turn,
        ha="right" if turn == 45 else "center", fontsize=8 if len(shown) > 15 else None,
    )  # fmt: skip
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("site" if len(sites) <= len(shown) else f"site, the first {len(shown)}")
    ax.set_ylabel("vertices of known class")
    ax.yaxis.set_major_formatter(grouped)


def partition_drawing(drawing: Mapping[str, Any], names: Mapping[int, str]) -> str:
    """The sample of `overview`: sites as discs, edges inside them thin, edges between them in colour."""

    def draw() -> Any:
        figure = new_figure(4.4)
        _partition_on(figure.add_subplot(), drawing, names)
        figure.legend(handles=_kinds_of_edges(), loc="outside lower center", ncols=2)
        return figure

    return svg(draw, "the graph and its sites")


def _kinds_of_edges() -> list[Any]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=MUTED, linewidth=1.2, label="edge inside a site"),
        Line2D([], [], color=SERIES[1], linewidth=1.2, label="edge between two sites"),
    ]


def _partition_on(ax: Any, drawing: Mapping[str, Any], names: Mapping[int, str]) -> None:
    from matplotlib.collections import LineCollection

    ax.set_aspect("equal")
    ax.axis("off")
    at = np.asarray(drawing["positions"], dtype=float).reshape(-1, 2)
    edges = np.asarray(drawing["edges"], dtype=int).reshape(-1, 3)
    for crosses, colour, width, alpha in ((0, MUTED, 0.5, 0.5), (1, SERIES[1], 0.5, 0.55)):
        chosen = edges[edges[:, 2] == crosses]
        ax.add_collection(
            LineCollection(at[chosen[:, :2]], colors=colour, linewidths=width, alpha=alpha, zorder=1)
        )
    sites = np.asarray(drawing["sites"], dtype=int)
    named = 1 < len(set(sites.tolist())) <= NAMED_SITES
    for site in dict.fromkeys(sites.tolist()):
        mine = at[sites == site]
        ax.scatter(*mine.T, s=11, color=SERIES[0], linewidths=0.4, edgecolors=PAPER, zorder=2)
        if not named:
            continue
        middle = mine.mean(0)
        away = middle / max(np.linalg.norm(middle), 1e-9)
        reach = np.linalg.norm(mine - middle, axis=1).max(initial=0) + 0.07
        ax.text(
            *(middle + away * reach), short(names.get(site, str(site)), 18), fontsize=9,
            ha="center" if abs(away[0]) < 0.35 else "left" if away[0] > 0 else "right", va="center",
        )  # fmt: skip
    ax.set_xlim(-1.32, 1.32)
    ax.set_ylim(-1.12, 1.12)


def degrees(histogram: Sequence[Sequence[int]]) -> str:
    """How many vertices have how many neighbours: a bar for each row of `overview`'s histogram."""

    def draw() -> Any:
        figure = new_figure(2.5)
        _degrees_on(figure.add_subplot(), histogram)
        return figure

    return svg(draw, "neighbours of a vertex")


def _degrees_on(ax: Any, histogram: Sequence[Sequence[int]]) -> None:
    ax.bar(range(len(histogram)), [count for *_, count in histogram], color=SERIES[0], width=0.75)
    labels = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high, _ in histogram]
    crowded = sum(map(len, labels)) > 32
    ax.set_xticks(
        range(len(labels)), labels, rotation=45 if crowded else 0, ha="right" if crowded else "center"
    )
    most = max((count for *_, count in histogram), default=1)
    if most > 100:
        ax.set_yscale("log")
        ax.set_ylim(0.7, 2 * most)
        ax.minorticks_off()
    ax.yaxis.set_major_formatter(grouped)
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("neighbours of a vertex")
    ax.set_ylabel("vertices")


def _parts_on(ax: Any, classes: Sequence[Mapping[str, Any]]) -> None:
    """Of each class the vertices in each part of the split."""
    shown = list(classes)[:30]
    left = np.zeros(len(shown))
    rest = [{**row, "in no part": row["vertices"] - row["train"] - row["val"] - row["test"]} for row in shown]
    for i, part in enumerate(("train", "val", "test", "in no part")):
        amount = np.array([row[part] for row in rest], dtype=float)
        colour = GRID if part == "in no part" else SERIES[i]
        ax.barh(range(len(shown)), amount, left=left, color=colour, label=part, height=0.7)
        left += amount
    ax.set_yticks(range(len(shown)), [short(str(row["name"]), 20) for row in shown])
    ax.invert_yaxis()
    ax.grid(axis="y", visible=False)
    more = "" if len(classes) <= len(shown) else f", the first {len(shown)} of {len(classes)} classes"
    ax.set_xlabel(f"vertices{more}")
    ax.set_ylabel("class")
    ax.xaxis.set_major_formatter(grouped)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)


def picture(told: Mapping[str, Any], form: str) -> bytes:
    """An `overview` in one picture, "svg" or "png": the graph and its sites, degrees, classes by site and by
    part of the split."""
    import matplotlib as mpl

    with mpl.rc_context({**style(), "savefig.facecolor": "white"}), any_script():
        figure = new_figure(9.4, 11.5)
        sketch, histogram, parts, sites = figure.subplots(2, 2).flat
        several = told["num_sites"] > 1
        _partition_on(sketch, told["drawing"], {row["site"]: row["name"] for row in told["sites"]})
        sketch.legend(
            handles=_kinds_of_edges()[: 2 if several else 1], loc="lower center",
            bbox_to_anchor=(0.5, -0.06), ncols=2,
        )  # fmt: skip
        sampled = ", a sample" if told["drawing"]["sampled"] else ""
        sketch.set_title(f"the graph{' and its sites' * several}{sampled}", loc="left", fontsize=11)
        _degrees_on(histogram, told["degrees"]["histogram"])
        _parts_on(parts, told["classes"])
        names = [str(row["name"]) for row in told["classes"]]
        _classes_on(sites, told["sites"], names)
        drawn = len(_drawn_classes(names))
        sites.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, max(1, drawn)))
        figure.suptitle(f"{short(told['name'], 60)}: {told['vertices']:,} vertices, {told['edges']:,} edges")
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=130, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()
