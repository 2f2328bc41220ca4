"""Prints the output of commands: results on stdout, everything else on stderr."""

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
    """Return the command line of this process, quoted for a shell, for the manifest."""
    return shlex.join(["graphfed", *sys.argv[1:]])


def summary(result: "Result") -> str:
    """Summarise a run in a few lines: its test metrics, what it sent, how long it took, and its folder."""
    from graphfed.runs.progress import human_bytes, human_seconds
    from graphfed.tasks.headline import headline, name_of
    from graphfed.tasks.registry import task_or_default

    shown, named = list(result.test), task_or_default(result.task).chooses_headline
    if named:
        shown = [*headline(result.task, result.details, result.test), "loss"]
    metrics = ", ".join(
        f"{name_of(name) if named else name.replace('_', ' ')} {value:.4g}"
        for name in shown
        if (value := result.test.get(name)) is not None
    )
    before = human_bytes(result.bytes["setup"])
    # The server of a deployment cannot count what the sites send to each other.
    between = " between sites and server" if "run" in result.details else ""
    chosen = (
        f"round {result.best_round} of {result.rounds}" if result.best_round else "each client its own round"
    )
    lines = [
        f"{result.method} on {result.dataset}: {result.clients} clients, {result.partition}, "
        f"seed {result.seed}",
        f"test: {metrics} ({chosen}, chosen on validation)",
        f"{human_bytes(result.bytes['total'])} sent{between}, {before} of it before training; "
        f"{human_seconds(result.seconds['total'])}",
        f"files: {result.folder}",
    ]
    if "verified" in result.details:
        sites = ", ".join(result.details["verified"]["sites"])
        lines.insert(3, f"verified by {sites}: each has signed that it ran this request, and what it sent")
    if "diverged_in_round" in result.details:
        lost = result.details["diverged_in_round"]
        lines.insert(
            2,
            f"training diverged in round {lost}, so the result is that of the best round before; "
            "use a smaller learning rate",
        )
    return "\n".join(lines)


@contextmanager
def interruption_logged() -> Iterator[None]:
    """Report an interruption of this block in one line on stderr, with exit code 130."""
    import typer

    try:
        yield
    except KeyboardInterrupt as stopped:
        say(str(stopped) or "interrupted; nothing was saved")
        raise typer.Exit(130) from stopped


def print_json(content: Mapping[str, Any], files: Path | None = None) -> None:
    """Print a result as one JSON object on stdout, and the path of its files, if it has any, on stderr."""
    if files is not None:
        say(f"files: {files}")
    print_line(json.dumps(content, allow_nan=False))


class Outcome(Protocol):
    """The result of a command, with its files."""

    @property
    def folder(self) -> Path | None:
        """The folder of its files."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that its file contains."""


def print_outcome(outcome: Outcome, as_json: bool, *shown: "Table | str") -> None:
    """Print an outcome as one JSON object, or as texts and tables."""
    if as_json:
        print_json(outcome.to_json(), outcome.folder)
        return
    for one in shown:
        print_line(one) if isinstance(one, str) else show(one)


def width() -> int:
    """Return the number of columns to fill with text: those of the terminal, at least 20 and at most 100."""
    import shutil

    return max(20, min(shutil.get_terminal_size().columns, 100))


def fill(text: str, indent: str = "") -> str:
    """Wrap a paragraph at the width of the terminal."""
    return textwrap.fill(
        printable(text), width(), initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def show(table: "Table") -> None:
    """Print a table on stdout."""
    from rich.console import Console

    # Without emoji a name such as :bomb: is shown as it is written. If stdout is not a terminal and COLUMNS
    # is not set, rich would cut the table to 80 columns.
    console = Console(emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=140, emoji=False)
    console.print(table)


def one_line(text: str) -> str:
    """Put a message on one line, cut at 2000 characters."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= 2000 else f"{line[:2000]}..."
