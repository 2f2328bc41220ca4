"""What commands print: results on stdout, everything else on stderr."""

import json
import os
import shlex
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from graphfed.terminal import print_line, printable, say

if TYPE_CHECKING:
    from rich.table import Table

    from graphfed.runs.run import Result

__all__ = [
    "command_line",
    "fill",
    "interruption_logged",
    "one_line",
    "print_json",
    "print_outcome",
    "say",
    "show",
    "summary",
    "width",
]


def command_line() -> str:
    """What was typed, for the manifest."""
    return shlex.join(["graphfed", *sys.argv[1:]])


def summary(result: "Result") -> str:
    from graphfed.runs.progress import human_bytes, human_seconds
    from graphfed.tasks.headline import headline, name_of
    from graphfed.tasks.registry import task_or_default

    shown, named = list(result.test), task_or_default(result.task).headline is not None
    if named:
        shown = [*headline(result.task, result.details, result.test), "loss"]
    metrics = ", ".join(
        f"{name_of(name) if named else name.replace('_', ' ')} {value:.4g}"
        for name in shown
        if (value := result.test.get(name)) is not None
    )
    before = human_bytes(result.bytes["setup"])
    # The server of a deployment does not count what sites send each other.
    between = " between sites and server" if "run" in result.details else ""
    chosen = (
        f"round {result.best_round} of {result.rounds}" if result.best_round else "each client's own round"
    )
    lines = [
        f"{result.method} on {result.dataset}: {result.clients} clients, {result.partition}, "
        f"seed {result.seed}",
        f"test: {metrics} ({chosen}, chosen on validation)",
        f"{human_bytes(result.bytes['total'])} crossed{between}, {before} of them before training; "
        f"{human_seconds(result.seconds['total'])}",
        f"files: {result.folder}",
    ]
    if "diverged_in_round" in result.details:
        lost = result.details["diverged_in_round"]
        lines.insert(
            2,
            f"training diverged in round {lost}: what stands is the best round before; "
            "use a smaller learning rate",
        )
    return "\n".join(lines)


@contextmanager
def interruption_logged() -> Iterator[None]:
    """In this block an interruption is one line on stderr and exit code 130."""
    import typer

    try:
        yield
    except KeyboardInterrupt as stopped:
        say(str(stopped) or "interrupted; nothing was kept")
        raise typer.Exit(130) from stopped


def print_json(content: Mapping[str, Any], files: Path | None = None) -> None:
    """The object of a result on stdout, and on stderr where its files are."""
    if files is not None:
        say(f"files: {files}")
    print_line(json.dumps(content, allow_nan=False))


class Outcome(Protocol):
    """What a command comes to: a result with its files."""

    @property
    def folder(self) -> Path | None:
        """Where its files are."""

    def to_json(self) -> dict[str, Any]:
        """The object of its file."""


def print_outcome(outcome: Outcome, as_json: bool, *shown: "Table | str") -> None:
    """Print an outcome as its object, or as texts and tables."""
    if as_json:
        print_json(outcome.to_json(), outcome.folder)
        return
    for one in shown:
        print_line(one) if isinstance(one, str) else show(one)


def width() -> int:
    """Columns to fill with text: the terminal's, within reason."""
    import shutil

    return max(20, min(shutil.get_terminal_size().columns, 100))


def fill(text: str, indent: str = "") -> str:
    """A paragraph in the terminal's width; words, as paths, stay whole."""
    return textwrap.fill(
        printable(text), width(), initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def show(table: "Table") -> None:
    from rich.console import Console

    # No emoji: a name such as :bomb: is shown as it is written.
    # Where stdout is no terminal and nobody says how wide it is, rich would cut the table to 80 columns.
    console = Console(emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=140, emoji=False)
    console.print(table)


def one_line(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= 2000 else f"{line[:2000]}..."
