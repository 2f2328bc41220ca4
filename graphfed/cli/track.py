"""`graphfed track`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.values import choices, run_folders
from graphfed.terminal import tell

__all__ = ["track"]


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
    """Hand runs on to TensorBoard or MLflow: config, metrics of every round, test metrics, hashes.

    What the tracker has already is not written again. A run that is still going on is followed up to its
    newest checkpoint. Needs the extra 'track'.

    Examples:
        graphfed track runs/mine --to tensorboard
        graphfed track runs/mine --to mlflow --uri sqlite:///mlflow.db
    See also:
        docs/sweeps.md, section TensorBoard and MLflow
    """
    from graphfed.experiment.track import track as hand_on

    for written in hand_on(folders, to, out=out, uri=uri):
        run = written.run
        state = "ended" if run.ended else "going on"
        tell(f"{run.name}: {len(run.points)} points, {written.new} of them new; {state}")
