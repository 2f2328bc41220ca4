"""`graphfed data ...`: the graphs."""

import typer

from graphfed.cli.options import DataDir
from graphfed.cli.output import show

__all__ = ["app"]

app = typer.Typer(
    help="""Look at the data sets that can be named with --data.

    Examples:
        graphfed data list
    See also:
        graphfed run; docs/data.md
    """,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


@app.command("list")
def data_list(data_dir: DataDir = None) -> None:
    """List the data sets: built in, found in a folder, or which of their files are missing.

    Examples:
        graphfed data list
        graphfed data list --data-dir data
    Environment:
        GRAPHFED_DATA        a folder to look in after --data-dir
    See also:
        docs/data.md: which files each set needs, and where they come from
    """
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
