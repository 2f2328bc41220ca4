"""`graphfed report`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.values import run_folders

__all__ = ["report"]


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            autocompletion=run_folders,
            help="The folder of a run or a comparison, or those of several runs.",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file to write, ending in .html (default: report.html in the folder)."
        ),
    ] = None,
) -> None:
    """Write one self-contained HTML page: results, curves, costs, the sites, and what left each of them.

    The page needs no network to be viewed. Several runs must share data, split and partition.

    Examples:
        graphfed report runs/compare-cora-20260131-120000
        graphfed report runs/one runs/two --out both.html
    See also:
        docs/report.md
    """
    from graphfed.report import write_report

    print(f"report: {write_report(folders, out)}")
