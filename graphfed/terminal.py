"""Prints to the terminal, and makes texts safe to print. No other module of graphfed prints.

A text from outside (a message of another participant, a file, the name of a column, an argument, the
environment) may contain control characters. A terminal obeys them: they can rewrite earlier lines, set the
title of the window or hide text. Every printing function of graphfed sends its texts through `printable`, and
every cell of a table through `markup`.
"""

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def open_standard_streams() -> None:
    """Open the null device in place of every closed standard stream (a shell closes them with ``>&- 2>&-``).

    Otherwise the next files that the program opens get the numbers of stdout and stderr, and anything that a
    library prints would be written into them.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The new descriptor is `number`, the lowest free one, because those below it are open now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 (for the process's life)
            setattr(sys, name, stream)


def printable(text: object) -> str:
    r"""Replace characters that a terminal obeys or hides by their escapes, as in ``\x1b``.

    These are all characters that `str.isprintable` refuses except line ends: control characters, marks of
    text direction, characters without width, and halves of surrogate pairs.
    """
    # `isprintable` refuses every character without a visible form; a line end is the only one that is let
    # through.
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode("ascii") for c in str(text)
    )


def markup(text: object) -> str:
    """Make a text safe for the cells, titles and captions of rich tables."""
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
    """Make a rich table that shows texts from outside without interpreting them.

    Args:
        columns: The heads of the columns; all "" for a table without a head.
        title: The text above the table, "" for none.
        caption: The text below the table, "" for none.
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
    """Print a line of a result on stdout."""
    if sys.stdout is not None:
        print(printable(text), flush=True)


def say(text: object) -> None:
    """Print progress, a warning or an error on stderr."""
    if sys.stderr is not None:
        print(printable(text), file=sys.stderr, flush=True)
