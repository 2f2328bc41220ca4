"""How everything is drawn, by matplotlib; text stays text.

A report's charts are SVG elements of its page: fixed colours are replaced by the page's CSS variables, which
follow light, dark and print (`svg`). A reproduction's and a policy's drawings are SVG files (`svg_file`).
"""

import contextlib
import io
import math
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "GRID",
    "INK",
    "MARKERS",
    "MUTED",
    "PAPER",
    "SERIES",
    "WIDTH",
    "add_legend",
    "any_script",
    "grouped",
    "legend_columns",
    "legend_height",
    "locator",
    "new_figure",
    "new_panels",
    "short",
    "style",
    "svg",
    "svg_file",
    "wide",
]

#: Drawn colour -> CSS variable. The series are told apart by people who see colours differently, too.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")
INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#fefefe"
VARIABLES = {
    INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--paper",
    **{colour: f"--series-{i}" for i, colour in enumerate(SERIES)},
}  # fmt: skip
MARKERS = "osD^vPX*"
#: Inches. The page shows charts up to half again as large, and its narrowest column as small as nine tenths.
WIDTH = 5.4


def new_figure(height: float, width: float = WIDTH, **options: Any) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", **options)


def new_panels(rows: int, columns: int, width: float, height: float) -> "tuple[Figure, Any]":
    """Return an empty figure and its axes.

    Args:
        rows: Panels from top to bottom.
        columns: Panels from left to right.
        width: Of a panel, in inches.
        height: Of a panel, in inches.

    Returns:
        The figure, and its axes as an array [rows, columns].
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, 0.9 + height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def svg_file(title: str, draw: "Callable[[], Figure]") -> bytes:
    """Return a drawing under its title as the bytes of an SVG file, the same bytes every time."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "graphfed", "svg.fonttype": "none"}):
        figure = draw()
        # About 12 letters an inch.
        figure.suptitle(textwrap.fill(title, max(20, int(12 * figure.get_figwidth()))), fontsize="medium")
        image = io.BytesIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()


def legend_columns(labels: Iterable[str]) -> int:
    """How many columns of a legend fit."""
    longest = max((wide(short(label)) for label in labels), default=0)
    return max(1, min(5, int(60 // (longest + 7))))


def legend_height(labels: Sequence[str]) -> float:
    """Inches of a legend above the axes."""
    return 0.24 * math.ceil(len(labels) / legend_columns(labels)) if len(labels) > 1 else 0.0


def add_legend(figure: Any, labels: Sequence[str]) -> None:
    if len(labels) > 1:
        figure.legend(loc="outside upper left", ncols=legend_columns(labels))


def style() -> dict[str, Any]:
    return {
        "svg.fonttype": "none", "svg.hashsalt": "graphfed", "font.family": "sans-serif", "font.size": 10,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": MUTED, "xtick.color": MUTED,
        "ytick.color": MUTED, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": GRID, "grid.linewidth": 0.6, "axes.axisbelow": True, "legend.frameon": False,
        "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
        "axes.formatter.use_mathtext": False, "axes.unicode_minus": True,
        # A label that looks like mathematics is somebody's label.
        "text.parse_math": False,
    }  # fmt: skip


def svg(draw: Any, title: str) -> str:
    """Draw with the page's style, and the SVG element to put into it; `title` is for those who cannot see."""
    import html

    import matplotlib as mpl

    with mpl.rc_context(style()), any_script():
        figure = draw()
        file = io.StringIO()
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # The page scales it: a width of its own would not shrink on a phone.
    text = re.sub(r'<svg ([^>]*?)width="[^"]*"', r"<svg \1", text, count=1)
    text = re.sub(r'<svg ([^>]*?)height="[^"]*"', r"<svg \1", text, count=1)
    label = html.escape(title, quote=True)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
    for colour, variable in VARIABLES.items():
        text = re.sub(re.escape(colour), f"var({variable})", text, flags=re.IGNORECASE)
    # Ids are per file in matplotlib and per page here.
    salt = re.sub(r"\W", "", title)[:40]
    text = re.sub(r'id="([^"]+)"', rf'id="{salt}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{salt}-\1"', text)
    return re.sub(r"url\(#([^)]+)\)", rf"url(#{salt}-\1)", text)


@contextlib.contextmanager
def any_script() -> Iterator[None]:
    """Text stays text in SVG, and the reader's fonts show it: what matplotlib's lacks is no news."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def locator(count: int, *, integer: bool = False) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count, integer=integer)


def grouped(value: float, _: Any) -> str:
    """A number of an axis: 10,000; none between whole numbers."""
    return f"{value:,.0f}" if value == int(value) else ""


def wide(label: str) -> int:
    """Columns of a label: letters of East Asian scripts take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label)


def short(label: str, limit: int = 28) -> str:
    if wide(label) <= limit:
        return label
    while label and wide(label) > limit - 1:
        label = label[:-1]
    return label + "…"
