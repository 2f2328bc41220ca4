"""What commands print: results on stdout, everything else on stderr."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from graphfed.experiment.run import Result

__all__ = [
    "command_line",
    "given_only",
    "interruption_told",
    "one_line",
    "print_json",
    "say",
    "show",
    "summary",
    "width",
]


def command_line() -> str:
    """What was typed, for the manifest."""
    return shlex.join(["graphfed", *sys.argv[1:]])


def given_only(**options: Any) -> dict[str, Any]:
    """The options that were given; the others are None."""
    return {key: value for key, value in options.items() if value is not None}


def summary(result: "Result") -> str:
    from graphfed.experiment.progress import human_bytes, human_seconds

    metrics = ", ".join(
        f"{name.replace('_', ' ')} {value:.4g}" for name, value in result.test.items() if value is not None
    )
    before = human_bytes(result.bytes["setup"])
    chosen = (
        f"round {result.best_round} of {result.rounds}" if result.best_round else "each client's own round"
    )
    lines = [
        f"{result.method} on {result.dataset}: {result.clients} clients, {result.partition}, "
        f"seed {result.seed}",
        f"test: {metrics} ({chosen}, chosen on validation)",
        f"{human_bytes(result.bytes['total'])} crossed, {before} of them before training; "
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
def interruption_told() -> Iterator[None]:
    """In this block an interruption is one line on stderr and exit code 130."""
    import typer

    try:
        yield
    except KeyboardInterrupt as stopped:
        say(str(stopped) or "interrupted; nothing was kept")
        raise typer.Exit(130) from stopped


def say(text: str) -> None:
    print(text, file=sys.stderr)


def print_json(content: Mapping[str, Any], files: Path | None = None) -> None:
    """The object of a result on stdout, and on stderr where its files are."""
    if files is not None:
        say(f"files: {files}")
    print(json.dumps(content, allow_nan=False))


def width() -> int:
    """Columns to fill with text: the terminal's, within reason."""
    import shutil

    return max(60, min(shutil.get_terminal_size().columns, 100))


def show(table: "Table") -> None:
    from rich.console import Console

    # Where stdout is no terminal and nobody says how wide it is, rich would cut the table to 80 columns.
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(width=140)
    console.print(table)


def one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 2000 else f"{line[:2000]}..."
