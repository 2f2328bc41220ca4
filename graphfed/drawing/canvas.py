"""Turns a grid of charts into a picture in a common style, whose text stays text.

The charts of a report are SVG elements of its page (`svg_element`): their colours are replaced by CSS
variables of the page, which follow light mode, dark mode and print. Other pictures are files
(`picture_file`).
"""

import contextlib
import html
import io
import math
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

    # As itself: other packages name the type from here.
    from matplotlib.figure import Figure as Figure  # noqa: PLC0414

#: Colours of series, which colour-blind readers can distinguish, too; and the CSS variable of each colour.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#fefefe"
VARIABLES = {
    INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper",
    **{colour: f"--series-{i}" for i, colour in enumerate(SERIES)},
}  # fmt: skip
MARKERS = "osD^vPX*"
DASHES = ("-", "--", ":", "-.")
#: The width of a chart in inches. The page scales it by a factor from 0.9 (narrowest column) to 1.5.
WIDTH = 5.4
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "graphfed", "font.family": "sans-serif", "font.size": 10,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "xtick.color": MUTED,
    "ytick.color": MUTED, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": GRID, "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False,
    "axes.titlesize": 10, "axes.titlelocation": "left", "figure.titlesize": "medium",
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "axes.formatter.use_mathtext": False, "axes.unicode_minus": True, "date.converter": "concise",
    # A label with dollar signs is text, not mathematics.
    "text.parse_math": False,
}  # fmt: skip


class Chart(Protocol):
    """One chart of a picture."""

    @property
    def height(self) -> float:
        """The height in inches, without the legend of the picture."""

    def draw(self, ax: "Axes") -> None:
        """Draw the chart. What it labels appears in the legend of the picture."""


#: The charts of a picture, from top to bottom and from left to right.
Charts = Sequence[Sequence[Chart]]


def svg_element(title: str, rows: Charts, width: float = WIDTH) -> str:
    """Draw a picture, `width` inches wide, as an SVG element of a page; screen readers read its title."""
    with _style():
        figure = _figure(rows, width, "outside upper left")
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # A fixed size would not shrink on a phone, so the page determines it.
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(title, quote=True)}" ', 1)
    # The page's style sheet has other colours for dark mode and print.
    for colour, variable in VARIABLES.items():
        text = re.sub(re.escape(colour), f"var({variable})", text, flags=re.IGNORECASE)
    return _with_names(text, re.sub(r"\W", "", title)[:40] + "-")


def _with_names(text: str, prefix: str = "") -> str:
    """Make the ids of an SVG text begin with a prefix, because they must be unique on the page.

    Ids that matplotlib derives from content depend on the last bits of the layout, so they are numbered.
    """
    numbers: dict[str, int] = {}

    def name(found: re.Match[str]) -> str:
        old = found[2]
        is_derived = re.fullmatch(r"[a-z][0-9a-f]{10}", old)
        new = f"{old[0]}{numbers.setdefault(old, len(numbers))}" if is_derived else old
        return f"{found[1]}{prefix}{new}"

    return re.sub(r'(\bid="|href="#|url\(#)([^")]+)', name, text)


def picture_file(title: str, rows: Charts, *, width: float = WIDTH, form: str = "svg") -> bytes:
    """Draw a picture with its title as a file, "svg" or "png"; each chart is `width` inches wide.

    The same charts give the same bytes.
    """
    with _style(facecolor="white"):
        figure = _figure(rows, width * max(map(len, rows)), "outside lower center")
        # An inch has space for about 12 letters.
        figure.suptitle(textwrap.fill(title, max(20, int(12 * figure.get_figwidth()))))
        image = io.BytesIO()
        figure.savefig(image, format=form, dpi=130, metadata={"Date": None} if form == "svg" else None)
    return image.getvalue() if form != "svg" else _with_names(image.getvalue().decode()).encode()


def draw_figure(rows: Charts, width: float = WIDTH) -> "Figure":
    """Draw a picture as a figure of matplotlib, on white, for a notebook or a program."""
    with _style():
        figure = _figure(rows, width, "outside upper left")
    figure.set_facecolor("white")
    return figure


@contextlib.contextmanager
def _style(facecolor: str = "none") -> Iterator[None]:
    """Draw everything in this block in the common style."""
    import matplotlib as mpl

    with mpl.rc_context({**STYLE, "savefig.facecolor": facecolor}), warnings.catch_warnings():
        # The reader's fonts show the text, so glyphs that matplotlib's fonts do not have are no problem.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _figure(rows: Charts, width: float, legend: str) -> "Figure":
    """Draw the charts in a grid with a common legend, at a place such as "outside upper left"."""
    from matplotlib.figure import Figure

    # The charts of a row share its height, that of the highest.
    heights = [max(chart.height for chart in row) for row in rows]
    figure = Figure(figsize=(width, sum(heights)), layout="constrained")
    axes = figure.subplots(len(rows), max(map(len, rows)), squeeze=False, height_ratios=heights)
    labelled: dict[str, Artist] = {}
    for line, row in zip(axes, rows, strict=True):
        for ax, chart in zip(line, row, strict=False):
            chart.draw(ax)
            if ax.get_legend() is None:
                # A label of several charts appears once; a chart with its own legend is left out.
                handles, labels = ax.get_legend_handles_labels()
                labelled |= dict(zip(labels, handles, strict=True))
        for ax in line[len(row) :]:
            ax.set_visible(False)
    # A single series is named by the title or the axis.
    if len(labelled) > 1:
        columns = legend_columns(labelled, width)
        # The legend gets rows of its own, so the charts keep their heights.
        figure.set_figheight(sum(heights) + 0.24 * math.ceil(len(labelled) / columns))
        figure.legend(list(labelled.values()), list(labelled), loc=legend, ncols=columns)
    return figure


def legend_columns(labels: Iterable[str], width: float = WIDTH) -> int:
    """Compute how many columns of a legend, from 1 to 5, fit into a picture that is `width` inches wide."""
    return max(1, min(5, int(11 * width // (max(map(wide, labels)) + 7))))


def wide(label: str) -> int:
    """Measure a label in columns of text; letters of East Asian scripts take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label)


def short(label: str, limit: int = 40) -> str:
    """Cut a label to `limit` columns, with an ellipsis at its end."""
    if wide(label) <= limit:
        return label
    while label and wide(label) > limit - 1:
        label = label[:-1]
    return label + "…"
