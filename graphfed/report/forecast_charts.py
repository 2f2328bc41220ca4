"""Charts of forecasting as SVG: forecasts against truth, errors by how far ahead and by sensor, bytes by
round.

Shapes: S sensors, W windows, n steps ahead.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphfed.drawing import (
    INK,
    MARKERS,
    MUTED,
    PAPER,
    SERIES,
    WIDTH,
    add_legend,
    legend_columns,
    legend_height,
    locator,
    new_figure,
    short,
    svg,
    wide,
)
from graphfed.report.forecast_table import MINUTES_PER_DAY, SensorForecasts

__all__ = [
    "ahead",
    "bytes_by_round",
    "error_by_horizon",
    "error_by_sensor",
    "error_map",
    "forecasts_against_truth",
]

#: The heaviest edges of a map that are drawn, and its sensors: of more, so many of them evenly.
DRAWN_EDGES, DRAWN_SENSORS = 3000, 2000
#: Classes of errors that a map tells apart.
CLASSES = 5
#: Sensors that are named below their bars.
NAMED_SENSORS = 24
KM_PER_DEGREE = 111.2
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LINES = ("-", "--", ":", "-.")


def ahead(minutes: int) -> str:
    """A time in words: 45 minutes, 2 hours, 3 days."""
    for unit, size in (("day", MINUTES_PER_DAY), ("hour", 60), ("minute", 1)):
        if minutes % size == 0 and (minutes >= 2 * size or size == 1):
            return f"{minutes // size} {unit}{'s' if minutes != size else ''}"
    raise AssertionError("every whole number divides by 1")


# ---- a sensor's series -------------------------------------------------------------------------------------


def forecasts_against_truth(
    chosen: Sequence[tuple[str, SensorForecasts]],
    span: tuple[np.datetime64, np.datetime64],
    step_minutes: int,
    quantity: str,
) -> str:
    """Readings of a few sensors, titles and windows, and what was forecast for the same times one step, half
    the horizon and the whole horizon before. Where a reading is missing its line has a gap."""

    def draw() -> Any:
        horizon = chosen[0][1].forecast.shape[1]
        steps = list(dict.fromkeys((1, max(1, horizon // 2), horizon)))
        labels = ["readings", *(f"{ahead(h * step_minutes)} ahead" for h in steps)]
        figure = new_figure(0.7 + 1.7 * len(chosen) + legend_height(labels))
        axes = np.atleast_1d(figure.subplots(len(chosen), 1, sharex=True))
        for ax, (title, one) in zip(axes, chosen, strict=True):
            at, truth = _inside(span, *one.at(1, step_minutes)[::2])
            ax.plot(at, truth, color=INK, linewidth=1.2, label=labels[0], zorder=3)
            alone = _alone(truth)
            ax.plot(at[alone], truth[alone], ".", color=INK, markersize=2.5, zorder=3)
            for i, h in enumerate(steps):
                at, forecast = _inside(span, *one.at(h, step_minutes)[:2])
                ax.plot(
                    at, forecast, color=SERIES[i], linewidth=1.0, alpha=0.9, linestyle=("-", "--", "-.")[i],
                    label=labels[i + 1],
                )  # fmt: skip
            ax.set_title(short(title, 60), loc="left", fontsize=10)
            ax.yaxis.set_major_locator(locator(4))
        figure.supylabel(short(quantity, 36), fontsize=10)
        _time_axis(axes[-1], span)
        figure.legend(
            *axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=legend_columns(labels)
        )
        return figure

    return svg(draw, "forecasts against readings")


def _alone(values: np.ndarray) -> np.ndarray:
    """Which are there between two that are not: a line does not show them."""
    there = np.isfinite(values)
    beside = np.r_[False, there, False]
    alone: np.ndarray = there & ~beside[:-2] & ~beside[2:]
    return alone


def _inside(
    span: tuple[np.datetime64, np.datetime64], time: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Minutes from the span's start, and the values in the span."""
    inside = (time >= span[0]) & (time < span[1])
    return (time[inside] - span[0]) / np.timedelta64(1, "m"), values[inside].astype(np.float64)


def _time_axis(ax: Any, span: tuple[np.datetime64, np.datetime64]) -> None:
    """Hours of one day, or midnights of several, from the start of the span."""
    first = span[0].astype("datetime64[D]")
    length = int((span[1] - span[0]) / np.timedelta64(1, "m"))
    offset = int((span[0] - first.astype(span[0].dtype)) / np.timedelta64(1, "m"))
    days = length // MINUTES_PER_DAY
    ax.set_xlim(0, length)
    if days <= 1:
        hours = [h for h in range(0, 49, 4) if offset <= 60 * h <= offset + length]
        ax.set_xticks([60 * h - offset for h in hours], [f"{h % 24:02d}:00" for h in hours])
        ax.set_xlabel(f"{'from ' if offset else ''}{_weekday(first)}, {first}")
        return
    every = -(-days // 6)
    midnights = range(0 if offset == 0 else 1, days + 1, every)
    ax.set_xticks([MINUTES_PER_DAY * d - offset for d in midnights], [str(first + d)[5:] for d in midnights])
    ax.set_xlabel(f"month and day, from {_weekday(first)}, {first}")


def _weekday(day: np.datetime64) -> str:
    # 1970-01-01, where numpy counts from, was a Thursday.
    return WEEKDAYS[(int(day.astype(np.int64)) + 3) % 7]


# ---- how far ahead -----------------------------------------------------------------------------------------


def error_by_horizon(
    rows: Mapping[str, Sequence[Mapping[str, Sequence[float]]]],
    among: Sequence[str],
    metrics: Mapping[str, str],
    step_minutes: int,
    unit: str,
) -> str:
    """Test errors by how far ahead a forecast is. rows: label -> for each seed the errors [n] by metric; a
    line is the mean over seeds, its band their sample standard deviation. among: all labels, by
    whose places lines have the colours of other charts. metrics: key -> name to show."""

    def draw() -> Any:
        labels = list(rows)
        figure = new_figure(2.7 + legend_height(labels))
        axes = figure.subplots(1, len(metrics), squeeze=False)[0]
        for ax, (metric, called) in zip(axes, metrics.items(), strict=True):
            for label, runs in rows.items():
                i = among.index(label)
                values = np.array([run[metric] for run in runs], dtype=float)
                minutes = step_minutes * np.arange(1, values.shape[1] + 1)
                mean = values.mean(0)
                ax.plot(
                    minutes, mean, color=SERIES[i % len(SERIES)], label=short(label), linewidth=1.6,
                    marker=MARKERS[i % len(MARKERS)], markersize=4, linestyle=LINES[i // len(SERIES) % 4],
                )  # fmt: skip
                if len(values) > 1:
                    spread = values.std(0, ddof=1)
                    ax.fill_between(
                        minutes, mean - spread, mean + spread, color=SERIES[i % len(SERIES)], alpha=0.18,
                        linewidth=0,
                    )  # fmt: skip
            ax.set_title(f"test {called}", loc="left", fontsize=10)
            ax.xaxis.set_major_locator(_minutes(step_minutes * values.shape[1], step_minutes))
            ax.yaxis.set_major_locator(locator(5))
        axes[0].set_ylabel(short(unit, 30))
        figure.supxlabel("minutes ahead", fontsize=10)
        if len(labels) > 1:
            figure.legend(
                *axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=legend_columns(labels)
            )
        return figure

    return svg(draw, "error by minutes ahead")


def _minutes(longest: int, step: int) -> Any:
    """Ticks of whole steps: at most five."""
    from matplotlib.ticker import MultipleLocator

    steps = longest // step
    return MultipleLocator(step * max(1, -(-steps // 4)))


# ---- sensors -----------------------------------------------------------------------------------------------


def error_map(
    position: np.ndarray,
    geographic: bool,
    edges: np.ndarray,
    rmse: np.ndarray,
    observed: np.ndarray,
    unit: str,
    named: Mapping[str, int],
) -> str:
    """Sensors where they are, position [S, 2] (kilometres, or latitude and longitude), over their edges [E,
    3] (sender, receiver, weight): the darker and larger, the larger the test error rmse [S]. observed [S]
    bool: trained on; the others have marks of their own. named: words -> sensors that are pointed out."""

    def draw() -> Any:
        from matplotlib.collections import LineCollection

        place = _kilometres(position, geographic)
        low, high = place.min(0), place.max(0)
        extent = np.maximum(high - low, 1e-9)
        ratio = float(np.clip(extent[1] / extent[0], 0.35, 1.25))
        limits, classes = _classes(rmse)
        handles = _class_handles(limits, classes, rmse, observed, unit)
        figure = new_figure(0.75 + (WIDTH - 0.7) * ratio + legend_height([h.get_label() for h in handles]))
        ax = figure.add_subplot()
        ax.set_aspect("equal")
        heaviest = edges[np.argsort(-edges[:, 2], kind="stable")[:DRAWN_EDGES]]
        pairs = np.unique(np.sort(heaviest[:, :2].astype(int), 1), axis=0)
        ax.add_collection(LineCollection(place[pairs], colors=MUTED, linewidths=0.5, alpha=0.45, zorder=1))
        scale = float(np.clip(np.sqrt(200 / len(place)), 0.35, 1.6))
        drawn = _spread(len(place), DRAWN_SENSORS)
        for c in range(-1, CLASSES):
            for known in (True, False):
                mine = place[drawn & (classes == c) & (observed == known)]
                if len(mine):
                    _dots(ax, mine, c, len(limits) - 1, known, scale)
        margin = 0.07 * extent.max()
        # Data units of a point on paper: the axes are about so wide.
        unit_of_point = (extent[0] + 2 * margin) / (72 * (WIDTH - 0.7))
        for words, middle in _free_places(named, place, unit_of_point):
            ax.text(*middle, words, ha="center", va="center", fontsize=9, zorder=5)
        ax.set_xlim(low[0] - margin, high[0] + margin)
        ax.set_ylim(low[1] - margin, high[1] + margin)
        ax.set_xlabel("kilometres east of the middle")
        ax.set_ylabel("kilometres north")
        ax.xaxis.set_major_locator(locator(6))
        ax.yaxis.set_major_locator(locator(5))
        figure.legend(
            handles=handles, loc="outside upper left", ncols=legend_columns([h.get_label() for h in handles])
        )
        return figure

    return svg(draw, "map of sensors by error")


def _kilometres(position: np.ndarray, geographic: bool) -> np.ndarray:
    """East and north of the middle, [S, 2]."""
    middle = (position.min(0) + position.max(0)) / 2
    away: np.ndarray = position - middle
    if geographic:
        away = KM_PER_DEGREE * np.stack((away[:, 1] * np.cos(np.radians(middle[0])), away[:, 0]), 1)
    return away


def _classes(rmse: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Limits of at most CLASSES classes at round numbers, and each sensor's class [S], -1 where there is no
    error."""
    known = np.isfinite(rmse)
    if not known.any():
        return np.zeros(1), np.full(len(rmse), -1)
    low, high = float(rmse[known].min()), float(rmse[known].max())
    for bins in range(CLASSES, 0, -1):
        limits = np.asarray(locator(bins).tick_values(low, high), dtype=float)
        first, last = np.searchsorted(limits, low, "right") - 1, np.searchsorted(limits, high, "left")
        limits = limits[first : max(last, first + 1) + 1]
        if len(limits) <= CLASSES + 1:
            break
    found = np.clip(np.searchsorted(limits, np.where(known, rmse, low), "right") - 1, 0, len(limits) - 2)
    return limits, np.where(known, found, -1)


def _shade(c: int, count: int) -> float:
    """How opaque the colour of class c of `count` is."""
    return 0.16 + 0.84 * c / max(1, count - 1)


def _mark(c: int, known: bool) -> dict[str, Any]:
    """How a sensor of a class is drawn: hollow without an error, a triangle where it was not trained on."""
    return {"marker": "o" if known else "^", "edge": MUTED if c < 0 else INK, "size": 18 + 11 * max(c, 0)}


def _dots(ax: Any, place: np.ndarray, c: int, count: int, known: bool, scale: float) -> None:
    told = _mark(c, known)
    size = told["size"] * scale
    # Paper below, so that no edge shines through a light mark.
    ax.scatter(
        *place.T, s=size, marker=told["marker"], facecolor=PAPER, edgecolor=told["edge"],
        linewidths=0.6 * min(scale, 1.0), zorder=2 + 0.1 * c,
    )  # fmt: skip
    if c >= 0:
        ax.scatter(
            *place.T, s=size, marker=told["marker"], color=SERIES[1], alpha=_shade(c, count), linewidths=0,
            zorder=2.05 + 0.1 * c,
        )  # fmt: skip


def _class_handles(
    limits: np.ndarray, classes: np.ndarray, rmse: np.ndarray, observed: np.ndarray, unit: str
) -> list[Any]:
    from matplotlib.colors import to_rgba
    from matplotlib.lines import Line2D

    def handle(c: int, known: bool, label: str) -> Any:
        told = _mark(c, known)
        fill = PAPER if c < 0 else to_rgba(SERIES[1], _shade(c, len(limits) - 1))
        return Line2D(
            [], [], linestyle="none", marker=told["marker"], markeredgecolor=told["edge"],
            markeredgewidth=0.6, markersize=np.sqrt(told["size"]) * 1.1, label=label,
            markerfacecolor=fill,
        )  # fmt: skip

    handles = [
        handle(c, True, f"RMSE {limits[c]:.4g} to {limits[c + 1]:.4g}") for c in range(len(limits) - 1)
    ]
    if not observed.all():
        handles.append(handle(0, False, "not trained on"))
    if (classes < 0).any():
        handles.append(handle(-1, True, "no reading to test"))
    return handles


def _spread(count: int, most: int) -> np.ndarray:
    """Which of `count` are drawn, bool: all, or `most` spread over their order."""
    drawn = np.zeros(count, dtype=bool)
    drawn[np.linspace(0, count - 1, min(count, most)).round().astype(int)] = True
    return drawn


def _free_places(named: Mapping[str, int], place: np.ndarray, point: float) -> list[tuple[str, np.ndarray]]:
    """Where words stand beside their sensors without touching any sensor or each other: their middles. Words
    for which there is no such place are left out. point: in the unit of place."""
    taken: list[tuple[np.ndarray, np.ndarray]] = []
    found: list[tuple[str, np.ndarray]] = []
    for words, sensor in named.items():
        half = point * np.array([3.0 * len(words), 7.0])
        for x, y in ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1)):
            middle = place[sensor] + np.array([x, y]) * (half + 5 * point)
            on_sensor = (np.abs(place - middle) < half + 4 * point).all(1)
            on_sensor[sensor] = False
            on_words = any((np.abs(other - middle) < half + size).all() for other, size in taken)
            if not on_sensor.any() and not on_words:
                taken.append((middle, half))
                found.append((words, middle))
                break
    return found


def error_by_sensor(ids: Sequence[str], rmse: np.ndarray, observed: np.ndarray, unit: str) -> str:
    """A bar for the test error of every sensor that has one, rmse [S], the largest first; those that were not
    trained on, observed [S] bool, in another colour."""

    def draw() -> Any:
        order = np.argsort(-np.where(np.isfinite(rmse), rmse, -np.inf), kind="stable")
        order = order[: int(np.isfinite(rmse).sum())]
        labels = ["trained on", "not trained on"] if not observed.all() else []
        names = [short(ids[s], 14) for s in order] if len(order) <= NAMED_SENSORS else []
        upright = 0.085 * max(map(wide, names), default=0)
        figure = new_figure(2.6 + legend_height(labels) + upright)
        ax = figure.add_subplot()
        at = np.arange(len(order))
        for i, known in enumerate((True, False)):
            mine = observed[order] == known
            if mine.any():
                ax.bar(
                    at[mine], rmse[order][mine], color=SERIES[i], width=0.85,
                    label="trained on" if known else "not trained on", hatch=None if known else "//",
                    edgecolor=PAPER, linewidth=0,
                )  # fmt: skip
        ax.set_xticks(at[: len(names)], names, rotation=90)
        ax.set_xlabel("sensor" if names else f"{len(order):,} sensors, the largest error first")
        ax.set_ylabel(short(f"test RMSE ({unit})" if unit else "test RMSE", 34))
        ax.grid(axis="x", visible=False)
        ax.margins(x=0.01)
        add_legend(figure, labels)
        return figure

    return svg(draw, "error of every sensor")


# ---- rounds ------------------------------------------------------------------------------------------------


def bytes_by_round(lines: Mapping[str, Mapping[int, int]], among: Sequence[str]) -> str:
    """Bytes that have crossed by the end of each round, by label: round -> bytes; round 0 is the set-up.
    among: all labels, by whose places lines have the colours of other charts."""
    from graphfed.runs.progress import human_bytes

    def draw() -> Any:
        labels = list(lines)
        figure = new_figure(2.6 + legend_height(labels))
        ax = figure.add_subplot()
        for label, crossed in lines.items():
            i = among.index(label)
            ax.plot(
                list(crossed), list(crossed.values()), color=SERIES[i % len(SERIES)], label=short(label),
                # As much may go one way as the other: both lines are to be seen.
                linewidth=1.6, linestyle=LINES[i % 4], marker=MARKERS[i % len(MARKERS)],
                markersize=4, markevery=max(1, len(crossed) // 8),
            )  # fmt: skip
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(locator(8, integer=True))
        ax.yaxis.set_major_locator(locator(5))
        ax.yaxis.set_major_formatter(lambda value, _: human_bytes(value))
        ax.set_xlabel("communication round")
        ax.set_ylabel("bytes so far")
        ax.margins(x=0.01)
        add_legend(figure, labels)
        return figure

    return svg(draw, "bytes by round")
