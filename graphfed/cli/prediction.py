"""`graphfed predict`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import DataDir, Plugins
from graphfed.cli.output import interruption_logged
from graphfed.cli.values import choices, run_folders
from graphfed.errors import InputError
from graphfed.tasks.run_options import DATA_SETS
from graphfed.terminal import print_line, say


def predict(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", autocompletion=run_folders, help="Folder of a finished run."),
    ],
    *,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            autocompletion=choices(DATA_SETS, "graphfed.datasets"),
            help="Another graph with the same features, as for 'graphfed run' (default: the data of the "
            "run).",
        ),
    ] = None,
    nodes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="CSV or Parquet file with the ids of the nodes to predict in its first column (default: all "
            "nodes).",
        ),
    ] = None,
    absent: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="Sensors that send nothing, separated by commas. The other sensors forecast without them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="New file, .csv or .parquet (default: FOLDER-predictions.csv next to the folder).",
        ),
    ] = None,
    data_dir: DataDir = None,
    plugin: Plugins = None,
) -> None:
    """Predict with the model of a finished run: a class and its probability for every node.

    After a deployed run ('graphfed run --startup-kit'), all sites predict together for their present data.
    Each site keeps its own predictions.

    Examples:

        graphfed predict runs/fedgcn-cora-20260131-120000
        graphfed predict runs/banks --nodes accounts.csv --out some.csv
        graphfed predict runs/banks --data new.yaml --out new.parquet
        graphfed predict runs/roads --absent 7,12

    See also: docs/runs.md
    """
    from graphfed.runs.folder import check_new_file, check_there
    from graphfed.runs.predict import TABLES, write_table
    from graphfed.runs.predict import predict as predict_with
    from graphfed.runs.reopen import read_manifest

    # Before the manifest is read, for a clearer message about a folder that is no run.
    check_there(folder)
    if "deployment" in read_manifest(folder):
        given = {"--data": data, "--nodes": nodes, "--absent": absent, "--out": out, "--data-dir": data_dir}
        for option, value in given.items():
            if value is not None:
                raise InputError(
                    f"{option} cannot be used with a deployed run, whose sites predict for their own data; "
                    "leave it out"
                )
        from graphfed.deployment.deploy import predict_at_sites

        with interruption_logged():
            path_in_kit = predict_at_sites(folder, progress=True)
        print_line(f"predictions: {path_in_kit} in the startup kit of each site")
        return
    # Next to the folder and not in it: the files of a run stay as the run wrote them.
    path = folder.with_name(f"{folder.name}-predictions.csv") if out is None else out
    check_new_file(path, TABLES)
    away = [] if absent is None else [name.strip() for name in absent.split(",")]
    table = predict_with(folder, data=data, nodes=nodes, absent=away, data_dir=data_dir, on_unknown=say)
    write_table(path, table)
    print_line(f"{table.num_rows} predictions: {path}")
