"""What a person reads on a terminal: the only functions that print, and those that make a text safe to print.

A text from outside (another party's message, a file, a column's name, an argument, the environment) may hold
control characters, which a terminal obeys: they can rewrite lines that were printed before, set the window's
title or hide a text. Every printer of graphfed sends its texts through `printable`, and every cell of a table
through `markup`.
"""

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["make_table", "markup", "open_standard_streams", "print_line", "printable", "say"]


def open_standard_streams() -> None:
    """Open the null device in the place of every standard stream that is closed, as by ``>&- 2>&-``.

    Otherwise the first files that are opened take the numbers of stdout and stderr, and whatever a library
    prints there ends up in them."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is `number`, because those below it are open now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 (for the process's life)
            setattr(sys, name, stream)


def printable(text: object) -> str:
    """Replace what a terminal would obey or hide by its escape, as in ``\\x1b``; line ends stay.

    Control characters, marks of text direction, characters without width and halves of surrogate pairs are
    replaced: all that `str.isprintable` refuses, as `repr` does."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in str(text)
    )


def markup(text: object) -> str:
    """A printable text that rich shows as it is, for the cells, titles and captions of tables."""
    from rich.markup import escape

    return escape(printable(text))


def make_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    title: str = "",
    caption: str = "",
    plain: bool = False,
    lines: bool = False,
) -> "Table":
    """Return a rich table that shows texts from outside as they are.

    Args:
        columns: The heads of the columns; all "" for a table without a head.
        rows: The cells of each row.
        numbers: The columns that are aligned to the right.
        title: Above the table, "" for none.
        caption: Below it, likewise.
        plain: Whether the table has no frame.
        lines: Whether there are lines between its rows.
    """
    from rich.box import HEAVY_HEAD
    from rich.table import Table

    table = Table(
        title=markup(title) or None, title_justify="left",
        caption=markup(caption) or None, caption_justify="left", show_lines=lines,
        show_header=any(columns), box=None if plain else HEAVY_HEAD, pad_edge=not plain,
        padding=(0, 2, 0, 0) if plain else (0, 1),
    )  # fmt: skip
    for column in columns:
        table.add_column(markup(column), justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(markup, row))
    return table


def print_line(text: object = "") -> None:
    """Print a result on stdout."""
    if sys.stdout is not None:
        print(printable(text), flush=True)


def say(text: object) -> None:
    """Print anything else, as progress, warnings and errors, on stderr."""
    if sys.stderr is not None:
        print(printable(text), file=sys.stderr, flush=True)
