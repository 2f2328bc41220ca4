"""`graphfed reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.options import DataDir, Json, Progress, whole_number
from graphfed.cli.output import command_line, interruption_logged, print_outcome, say, show
from graphfed.cli.values import choices
from graphfed.reproductions import PAPERS
from graphfed.tasks.run_options import DATA_SETS
from graphfed.terminal import make_table


def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(metavar="PAPER", autocompletion=choices(PAPERS), help="The paper (see --list)."),
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Argument(metavar="ITEM", help="Its tables or figures, run in this order (default: all)."),
    ] = None,
    *,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            autocompletion=choices(DATA_SETS),
            help="One of the data sets of the items (default: the first of each; see --list).",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run a short version with few seeds and rounds.")
    ] = False,
    seeds: Annotated[
        str | None,
        typer.Option(
            metavar="S,S,...",
            help="Seeds of every row, separated by commas, or a range as 0-39 (default: those of each item).",
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="PATTERN",
            help="Only the rows of this pattern, as 'FedGAT*', and those that their figures need (default: "
            "all).",
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option(
            parser=whole_number,
            metavar="N",
            show_default=False,
            help="Number of runs (or policies to learn) at the same time, each in a process of its own. The "
            "figures do not depend on it (default: 1).",
        ),
    ] = 1,
    as_list: Annotated[
        bool, typer.Option("--list", help="List the papers, their items, and the data that each needs.")
    ] = False,
    data_dir: DataDir = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder to write (default: runs/reproduce-PAPER). Runs that have ended in it are not run "
            "again.",
        ),
    ] = None,
    as_json: Json = False,
    progress: Progress = True,
) -> None:
    """Run the tables and figures of a paper, and print our figures next to the published ones.

    The command first states the predicted cost, and refuses to start if files of data are missing. If the
    folder already has some of the seeds, only the missing ones are run.

    Examples:

        graphfed reproduce --list
        graphfed reproduce fedgcn cora --quick
        graphfed reproduce cnfgnn fig2 --data metr_la_20
        graphfed reproduce fedgcn cora citeseer --seeds 0-39 --jobs 4
        graphfed reproduce fedgraph fig7 --quick
        graphfed reproduce fedgat table1 --rows 'FedGAT*' --seeds 0-4

    See also: graphfed compare; docs/reproduce.md
    """
    from graphfed.reproductions.reproduce import reproduce as run_reproduction
    from graphfed.studies.plan import parse_seeds

    if as_list or paper is None:
        _print_list(data_dir)
        return
    with interruption_logged():
        found = run_reproduction(
            paper,
            items,
            data=data,
            quick=quick,
            seeds=None if seeds is None else parse_seeds(seeds),
            rows=rows,
            jobs=jobs,
            out=out,
            data_dir=data_dir,
            progress=progress,
            log=say,
            command=command_line(),
        )
    print_outcome(found, as_json, *found.tables(), f"files: {found.folder}")


def _print_list(data_dir: Path | None) -> None:
    from graphfed.data.datasets import available
    from graphfed.reproductions.reproduce import find_paper

    known = {row.name: row for row in available(data_dir)}
    rows = []
    for name in PAPERS:
        for item in find_paper(name).items:
            missing = [d for d in item.data_sets if d in known and not item.usable(known[d])]
            data = ", ".join(f"{d} (missing)" if d in missing else d for d in item.data_sets)
            rows.append((name, item.name, item.title, data, item.num_runs, item.short().num_runs))
    show(make_table(("paper", "item", "what it is", "data", "runs", "quick"), rows))
