"""`graphfed data ...`: the graphs."""

import typer

from graphfed.cli.options import DataDir
from graphfed.cli.output import show

__all__ = ["app"]

app = typer.Typer(help="Look at the data sets that can be named with --data.", no_args_is_help=True)


@app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """List the data sets: built in, found in a folder, or which of their files are missing."""
    from rich.table import Table

    from graphfed.data.datasets import DATASETS, available

    table = Table()
    for column in ("data set", "task", "what it is", "where"):
        table.add_column(column, overflow="fold")
    for row in available(data_dir):
        where = "built in" if row.built_in else str(row.place) if row.place else "not found"
        if row.missing:
            where += f"; missing: {', '.join(row.missing)}; from {DATASETS[row.name].source}"
        table.add_row(row.name, row.task, row.title, where)
    show(table)
