"""`graphfed report`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import Plugins
from graphfed.cli.values import run_folders
from graphfed.terminal import print_line


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER",
            autocompletion=run_folders,
            help="The folder of a run or a comparison, or the folders of several runs.",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file to write, ending in .html (default: report.html in the folder)."
        ),
    ] = None,
    client: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help="The client that the page shows by itself, for methods with one client per node (default: "
            "the client whose features are protected least).",
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Write one self-contained HTML page: results, curves, costs, clients, and what left each client.

    The page can be viewed without a network. Several runs must have the same data, split and partition. With
    --client the command also prints what one client sent and disclosed.

    Examples:

        graphfed report runs/compare-cora-20260131-120000
        graphfed report runs/one runs/two --out both.html
        graphfed report runs/lumos-social-20260131-120000 --client 17

    See also: docs/report.md
    """
    from graphfed.report.page import describe_client, write_report

    path = write_report(folders, out, client=client)
    # Several folders have several clients of this number; the page describes them.
    if client is not None and len(folders) == 1:
        print_line("\n".join(describe_client(folders[0], client)))
    print_line(f"report: {path}")
