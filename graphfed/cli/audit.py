"""`graphfed audit`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import DataDir, Json, Plugins
from graphfed.cli.output import print_json, show
from graphfed.cli.values import run_folders
from graphfed.terminal import print_line

__all__ = ["audit"]


def audit(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", autocompletion=run_folders, help="Folder of a finished run."),
    ],
    *,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    as_json: Json = False,
) -> None:
    """Attack a finished run: what could its server or a reader of its predictions find out?

    Every check says what the attacker sees, what it found and how sure that is, and what guessing gives. What
    crossed is made again from the run's own config and data. The folder gets audit.json, and its report is
    written again with what was found.

    Examples:
        graphfed audit runs/fedgcn-cora-20260131-120000
    Files:
        audit.json           in the folder: what every check found
        report.html          in the folder, where there is one: written again
    See also:
        graphfed report; docs/audit.md
    """
    from graphfed.audit.run import audit as run_checks

    found = run_checks(folder, data_dir=data_dir)
    if (folder / "report.html").exists():
        from graphfed.report.page import write_card, write_report

        write_card(folder)
        write_report([folder])
    if as_json:
        print_json(found.to_json(), folder / "audit.json")
    else:
        show(found.table())
        print_line(f"files: {folder / 'audit.json'}")
