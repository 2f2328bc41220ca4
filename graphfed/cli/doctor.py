"""`graphfed doctor`: can this machine run graphfed, and what would make it slow?"""

import json
import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from graphfed.cli.options import DataDir
from graphfed.errors import DONE, FAILED
from graphfed.terminal import printable, tell

if TYPE_CHECKING:
    from graphfed.experiment.doctor import Finding

__all__ = ["doctor"]

#: Width of the first column: ok, warning or problem.
LEVEL = 9


def doctor(
    *,
    data_dir: DataDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON object.")] = False,
) -> None:
    """Look at libraries, threads, device, memory, data folders, extras and folders; say what to fix.

    Each line is ok, a warning (something is slow or missing) or a problem (no run is possible). Nothing is
    written, downloaded or changed. The exit code is 1 if there is a problem.

    Examples:
        graphfed doctor
        graphfed doctor --data-dir data --json
    See also:
        graphfed data list; docs/errors.md
    """
    from graphfed.experiment.doctor import checkup, summary

    findings = checkup(data_dir)
    told = summary(findings)
    if as_json:
        tell(json.dumps(told))
    else:
        _print(findings)
    raise typer.Exit(DONE if told["ok"] else FAILED)


#: Columns of the screen that a text needs beside another one.
LEAST_COLUMN = 20


def _print(findings: "list[Finding]") -> None:
    """Plain text, filled to the terminal's width: rich may be what does not work."""
    colours = {"warning": typer.colors.YELLOW, "problem": typer.colors.RED}
    width = max(20, min(shutil.get_terminal_size().columns, 120))
    column = 2 + max(len(finding.what) for finding in findings)
    # On a narrow screen what was found stands below its name.
    beside = width - LEVEL - column >= LEAST_COLUMN
    room, indent = (width - LEVEL - column, LEVEL + column) if beside else (width - 4, 4)
    group = ""
    for finding in findings:
        if finding.group != group:
            group = finding.group
            typer.secho(f"\n{group}", bold=True)
        told = textwrap.wrap(printable(finding.found), room) or [""]
        if finding.fix:
            told += textwrap.wrap(
                printable(f"{'hint' if finding.level == 'ok' else 'fix'}: {finding.fix}"), room
            )
        level = typer.style(finding.level.ljust(LEVEL), fg=colours.get(finding.level))
        what = printable(finding.what)
        first, rest = (what.ljust(column) + told[0], told[1:]) if beside else (what, told)
        typer.echo(f"{level}{first}")
        for line in rest:
            typer.echo(" " * indent + line)
    problems = sum(finding.level == "problem" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    end = "no run is possible until the problems are fixed" if problems else "runs are possible"
    end = f"{_counted(problems, 'problem')}, {_counted(warnings, 'warning')}: {end}"
    typer.echo("\n" + textwrap.fill(end, width))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
