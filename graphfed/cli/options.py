"""The options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def whole_number(text: str) -> int:
    """A whole number, or a complaint that repeats what was typed."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:60]!r} is not a whole number") from None


Config = Annotated[
    Path | None,
    typer.Option(
        help="YAML file with the names of these options (method, data, clients, ...), settings under 'set:'. "
        "What is given on the command line wins."
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Data set (see 'graphfed data list'), or a file: .yaml describes one's own tables, .pt is a PyG "
        "Data, .graphml (default: digits)."
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="K",
        help="Number of sites (default: 10; one per vertex for the partition 'ego').",
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="How the graph is dealt: label_dirichlet, label_skew, random, edges_uniform, louvain, metis, "
        "overlapping, ego, column (default: column, the sites of the data, where it names them; else "
        "label_dirichlet with partition.beta=10000, which is even)."
    ),
]
Rounds = Annotated[
    int | None, typer.Option(parser=whole_number, metavar="R", help="Communication rounds (default: 100).")
]
Split = Annotated[
    str | None,
    typer.Option(
        help="default, public, per_class:20,500,1000 or random:0.5,0.25,0.25 "
        "(default: public where the data set has one, else per_class)."
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(help="local: all in this process; processes: one process per site (default: local)."),
]
Placement = Annotated[
    str | None,
    typer.Option(
        help="In the local runtime: stacked computes all clients together, one-at-a-time one after the other "
        "(slow, for debugging: a failure names the client, the stage and the inputs) (default: stacked)."
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:0 (default: cpu).")]
Threads = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="N",
        help="Threads to compute with (default: one for a small graph, every core for a large one; "
        "with --runtime processes those of each process, one).",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where to look for data files first; then in GRAPHFED_DATA and in the cache folder."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A setting, as often as needed: lr, weight_decay, hidden, layers, dropout, backbone, "
        "local_steps, fraction, optimizer, patience, ... and the method's own ('graphfed methods'); "
        "partition.beta, partition.alpha, ...; partition_seed, split_seed (default: the seed); "
        "data.num_nodes, ... of a generated data set.",
    ),
]
CheckpointEvery = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Time between checkpoints, from which 'graphfed resume' goes on; 0: every round (default: 30).",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object, the last line of stdout.")
]
Report = Annotated[bool, typer.Option(help="Write report.html into the folder.")]
Progress = Annotated[bool, typer.Option(help="Show progress on stderr.")]
