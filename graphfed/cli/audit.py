"""`graphfed audit`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import DataDir, Json, Plugins, Progress
from graphfed.cli.output import print_json, show
from graphfed.cli.values import run_folders
from graphfed.terminal import print_line


def audit(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", autocompletion=run_folders, help="Folder of a finished run."),
    ],
    *,
    data_dir: DataDir = None,
    plugin: Plugins = None,
    as_json: Json = False,
    progress: Progress = True,
) -> None:
    """Attack a finished run to see what its server or a reader of its predictions could find out.

    Every check states what the attacker sees, what it found, how certain the result is, and what an attacker
    without information would reach. The messages of the run are computed again from its config and data. The
    command writes audit.json and updates the report of the run.

    Examples:

        graphfed audit runs/fedgcn-cora-20260131-120000

    Files:

        audit.json           in the run's folder: the result of every check
        report.html          in the run's folder, if it exists: updated

    See also: graphfed report; docs/audit.md
    """
    from graphfed.audit.run import audit as run_checks

    found = run_checks(folder, data_dir=data_dir, progress=progress)
    # The page and the card quote the audit, so an older page would contradict audit.json.
    if (folder / "report.html").exists():
        from graphfed.report.page import write_card, write_report

        write_card(folder)
        write_report([folder])
    if as_json:
        print_json(found.to_json(), folder / "audit.json")
    else:
        show(found.table())
        print_line(f"files: {folder / 'audit.json'}")
