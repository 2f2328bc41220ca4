"""What is made of finished runs: `graphfed report`, `graphfed track`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import Plugins
from graphfed.cli.values import choices, run_folders
from graphfed.terminal import print_line

__all__ = ["report", "track"]


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
    device: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            help="The client shown by itself, where there is one for each node (default: the one whose "
            "features are protected least).",
        ),
    ] = None,
    plugin: Plugins = None,
) -> None:
    """Write one self-contained HTML page: results, curves, costs, the sites, and what left each of them.

    The page needs no network to be viewed. Several runs must share data, split and partition. With --device
    it also says what one device sent and gave away.

    Examples:
        graphfed report runs/compare-cora-20260131-120000
        graphfed report runs/one runs/two --out both.html
        graphfed report runs/lumos-social-20260131-120000 --device 17
    See also:
        docs/report.md
    """
    from graphfed.report.page import log_device, write_report

    path = write_report(folders, out, device=device)
    if device is not None and len(folders) == 1:
        print_line("\n".join(log_device(folders[0], device)))
    print_line(f"report: {path}")


def track(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            autocompletion=run_folders,
            help="Folders of runs, comparisons, sweeps or reproductions.",
        ),
    ],
    *,
    to: Annotated[
        str,
        typer.Option(
            metavar="NAME", autocompletion=choices(("tensorboard", "mlflow")), help="tensorboard or mlflow."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="TensorBoard: the folder for its events (default: runs/tensorboard)."
        ),
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI", help="MLflow: its store, as in sqlite:///mlflow.db (default: MLFLOW_TRACKING_URI)."
        ),
    ] = None,
) -> None:
    """Hand finished runs on to TensorBoard or MLflow: config, metrics of every round, test metrics, hashes.

    A run that the tracker has already is not written again. Needs the extra 'track'.

    Examples:
        graphfed track runs/mine --to tensorboard
        graphfed track runs/mine --to mlflow --uri sqlite:///mlflow.db
    See also:
        docs/sweeps.md, section TensorBoard and MLflow
    """
    from graphfed.studies.track import track as hand_on

    for run, is_new in hand_on(folders, to, out=out, uri=uri):
        print_line(f"{run.name}: {f'{len(run.points)} points' if is_new else 'there already'}")
