"""The kinds of charts: `XY` for lines and points, `Bars`, and `Heatmap` for a table of fractions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from graphfed.drawing.canvas import INK, MARKERS, PAPER, SERIES, WIDTH, short, wide

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The default of `Bars.named`.
NAMED_BARS = 30


def _turn(names: Sequence[str], room: int) -> int:
    """Return by how many degrees names below an axis are turned: 90 if slanted ones would overlap."""
    if max(map(wide, names), default=0) * len(names) <= room:
        return 0
    return 45 if len(names) <= 15 else 90


def grouped(value: float) -> str:
    """Write the number of a tick as in "10,000"; "" if it is not a whole number."""
    return f"{value:,.0f}" if value == int(value) else ""


def series_colour(place: int) -> str:
    return SERIES[place % len(SERIES)]


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        label: What it shows, with its unit.
        scale: "linear", "log", or "symlog", which is linear up to 1.
        low: The lower limit; None to fit the data.
        high: The upper limit; None to fit the data. It is below `low` if the axis points the other way.
        span: The least difference of the limits, so that noise does not look like a change.
        whole: Whether ticks are at whole numbers only.
        ticks: The ticks and their texts; None for ticks at round numbers.
        room: Columns of text that fit next to each other below the axis; longer texts are turned.
        written: Writes the number of a tick; None for the default.
    """

    label: str = ""
    scale: Literal["linear", "log", "symlog"] = "linear"
    low: float | None = None
    high: float | None = None
    span: float = 0.0
    whole: bool = False
    ticks: Mapping[int, str] | Mapping[float, str] | None = None
    room: int = 56
    written: Callable[[float], str] | None = None

    def apply(self, ax: "Axes", which: Literal["x", "y"]) -> None:
        """Set up an axis after everything is drawn."""
        from matplotlib.ticker import MaxNLocator, NullLocator

        across = which == "x"
        axis = ax.xaxis if across else ax.yaxis
        axis.set_label_text(short(self.label, 60))
        if self.scale != "linear":
            scaled = {"linthresh": 1} if self.scale == "symlog" else {}
            (ax.set_xscale if across else ax.set_yscale)(self.scale, **scaled)
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        if self.whole or (self.written is not None and self.scale == "linear"):
            axis.set_major_locator(MaxNLocator(8 if self.whole else 5, integer=self.whole))
        if self.ticks is not None:
            names = list(self.ticks.values())
            axis.set_ticks(list(self.ticks), names)
            turn = _turn(names, self.room) if across else 0
            axis.set_tick_params(rotation=turn, labelsize=8 if across and len(names) > 15 else None)
            for text in axis.get_ticklabels() if turn == 45 else ():
                text.set_horizontalalignment("right")
        if self.written is not None:
            written = self.written
            axis.set_major_formatter(lambda value, _: written(value))
        low, high = ax.get_xlim() if across else ax.get_ylim()
        # The limits move apart equally, so the data stays in the middle.
        more = max(0.0, self.span - (high - low)) / 2
        low = low - more if self.low is None else self.low
        high = high + more if self.high is None else self.high
        (ax.set_xlim if across else ax.set_ylim)(low, high)


@dataclass(frozen=True)
class Series:
    """A line, or marks without a line.

    Attributes:
        label: Its name in the legend; "" for one that has none.
        x: Horizontal positions [n]; empty for a horizontal line over the whole width at y [1].
        y: Values [n]; nan breaks the line.
        spread: The spread of the values [n], drawn as a band or as bars.
        place: Its place among all series, which determines colour and marker.
        colour: Another colour; "" for that of its place.
        dash: The line style of matplotlib; "" for no line.
        marker: Another marker; None for that of its place, "" for none.
        size: The size of the markers in points, one number or [n].
    """

    label: str
    x: ArrayLike
    y: ArrayLike
    spread: ArrayLike | None = None
    place: int = 0
    colour: str = ""
    dash: str = "-"
    marker: str | None = None
    size: ArrayLike = 4.0
    alpha: float = 1.0


@dataclass(frozen=True)
class XY:
    """Lines and marks.

    Attributes:
        spread: How spreads are drawn: as a "band" around a line, as vertical "bars", or as horizontal bars
            ("across").
        steps: Whether a line keeps its value up to the next position.
        square: Whether both axes have the same scale.
    """

    series: Sequence[Series]
    x: Axis
    y: Axis
    title: str = ""
    spread: Literal["band", "bars", "across"] = "band"
    steps: bool = False
    height: float = 2.7
    square: bool = False

    def draw(self, ax: "Axes") -> None:
        for one in self.series:
            self._draw_series(ax, one)
        ax.set_title(short(self.title, 60))
        if self.square:
            ax.set_aspect("equal")
        self.x.apply(ax, "x")
        self.y.apply(ax, "y")

    def _draw_series(self, ax: "Axes", one: Series) -> None:
        colour = one.colour or series_colour(one.place)
        label, dash = short(one.label) or None, one.dash or "none"
        x, y = np.asarray(one.x), np.asarray(one.y, dtype=float)
        if not len(x) and len(y):
            ax.axhline(y[0], color=colour, label=label, linewidth=1.4, linestyle=dash)
            return
        marker = MARKERS[one.place % len(MARKERS)] if one.marker is None else one.marker or "none"
        if np.ndim(one.size):
            areas = np.square(one.size)
            # A line has one size of markers, so sizes of their own need a scatter plot.
            ax.scatter(x, y, s=areas, color=colour, alpha=one.alpha, linewidths=0, marker=marker, label=label)
        else:
            ax.plot(
                x, y, color=colour, label=label, linestyle=dash, linewidth=1.6, alpha=one.alpha,
                marker=marker, markersize=float(np.asarray(one.size)),
                markevery=max(1, len(x) // 8) if one.dash else 1,
                drawstyle="steps-post" if self.steps else "default",
            )  # fmt: skip
        if one.spread is None:
            return
        spread = np.asarray(one.spread, dtype=float)
        if self.spread == "band":
            ax.fill_between(x, y - spread, y + spread, color=colour, alpha=0.18, linewidth=0)
        else:
            right, up = (spread, None) if self.spread == "across" else (None, spread)
            ax.errorbar(x, y, xerr=right, yerr=up, fmt="none", ecolor=colour, capsize=3)


@dataclass(frozen=True)
class Bars:
    """Stacked bars.

    Attributes:
        parts: The amounts [bars] of every part by its label, stacked in this order.
        label: The label of the axis of names.
        across: Whether the bars are horizontal, from top to bottom.
        colours: Other colours of parts, by label.
        total: Writes the sum of a bar at its end; None for no text.
        marks: Marked values [bars] by label; None for a bar without one.
        legend: The title of a legend of its own; None for the legend of the picture.
        named: The most bars whose names are written; more bars have no names.
    """

    names: Sequence[str]
    parts: Mapping[str, ArrayLike]
    amount: Axis
    label: str = ""
    across: bool = False
    colours: Mapping[str, str] = field(default_factory=dict)
    total: Callable[[float], str] | None = None
    marks: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    title: str = ""
    legend: str | None = None
    named: int = NAMED_BARS

    @property
    def height(self) -> float:
        if self.across:
            return 0.7 + 0.34 * len(self.names)
        names = list(self._names.values())
        turned = {0: 0.0, 45: 0.06, 90: 0.085}[_turn(names, Axis.room)]
        return 2.6 + turned * max(map(wide, names), default=0)

    @property
    def _names(self) -> dict[float, str]:
        """The written names, by the position of their bars."""
        written = self.names if len(self.names) <= self.named else ()
        return {k: short(name, 28 if self.across else 14) for k, name in enumerate(written)}

    def draw(self, ax: "Axes") -> None:
        at, tops = np.arange(len(self.names)), np.zeros(len(self.names))
        bar = ax.barh if self.across else ax.bar
        for place, (label, given) in enumerate(self.parts.items()):
            amounts = np.asarray(given, dtype=float)
            colour = self.colours.get(label, series_colour(place))
            bar(at, amounts, 0.7, tops, color=colour, label=short(label) or None)
            tops = tops + amounts
        for place, (label, values) in enumerate(self.marks.items(), len(self.parts)):
            known = [(k, value) for k, value in enumerate(values) if value is not None]
            places = np.array(known).reshape(-1, 2).T
            ax.plot(*(places[::-1] if self.across else places), "D", color=series_colour(place), label=label)
        for k, top in enumerate(tops):
            if self.total is None:
                break
            ax.annotate(self.total(top), (top, k), xytext=(4, 0), textcoords="offset points", va="center")
        (ax.set_xlim if self.across else ax.set_ylim)(0, 1.05 * max(1e-9, tops.max(initial=0)))
        (ax.yaxis if self.across else ax.xaxis).grid(visible=False)
        low, high = (len(at) - 0.5, -0.5) if self.across else (-0.6, len(at) - 0.4)
        names = Axis(self.label, low=low, high=high, ticks=self._names)
        names.apply(ax, "y" if self.across else "x")
        self.amount.apply(ax, "x" if self.across else "y")
        ax.set_title(short(self.title, 60))
        if self.legend is not None:
            ax.legend(title=self.legend, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))


@dataclass(frozen=True)
class Heatmap:
    """A table of fractions: a larger fraction has a stronger colour.

    Attributes:
        values: Fractions [rows, columns], at least 0.
        y: The axis of the rows, with the first row at `low`.
        edges: Limits [columns + 1] of the columns; None for columns centred at 0, 1, ...
        texts: A large and a small text for cells, by (row, column).
        line: A label and a position on the x axis for each row, joined by a line.
        bar: The label of a colour bar, "" for no colour bar.
    """

    values: np.ndarray
    x: Axis
    y: Axis
    edges: np.ndarray | None = None
    texts: Mapping[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    line: tuple[str, np.ndarray] | None = None
    title: str = ""
    bar: str = ""
    height: float = WIDTH

    def draw(self, ax: "Axes") -> None:
        from matplotlib.colors import LinearSegmentedColormap, PowerNorm, to_rgba

        rows, columns = self.values.shape
        edges = np.arange(columns + 1) - 0.5 if self.edges is None else self.edges
        colours = LinearSegmentedColormap.from_list("shares", [to_rgba(SERIES[0], 0), to_rgba(SERIES[0], 1)])
        # With a colour bar, the scale is a square root, which shows the long tail of the values.
        power = PowerNorm(0.5 if self.bar else 1.0, vmin=0, vmax=None if self.bar else 1)
        image = ax.pcolormesh(
            edges, np.arange(rows + 1) - 0.5, self.values, cmap=colours, norm=power,
            edgecolors=PAPER if self.texts else "none", linewidth=1.5, rasterized=rows * columns > 2000,
        )  # fmt: skip
        for (row, column), (large, small) in self.texts.items():
            ink = PAPER if self.values[row, column] > 0.55 else INK
            crowded = columns > 6
            for shift, text, points in ((-0.11, large, 9), (0.25, small, 6 if crowded else 8)):
                ax.text(column, row + shift, text, ha="center", va="center", fontsize=points, color=ink)
        if self.line is not None:
            label, places = self.line
            ax.plot(places, np.arange(rows), color=SERIES[1], linewidth=1.2, label=label)
        if self.bar:
            figure = ax.get_figure()
            assert figure is not None
            figure.colorbar(image, ax=ax, label=self.bar)
        ax.grid(visible=False)
        ax.set_title(self.title)
        self.x.apply(ax, "x")
        self.y.apply(ax, "y")
