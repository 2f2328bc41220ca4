"""The options that several commands share, in the panels of the help."""

from pathlib import Path
from typing import Annotated

import typer

from graphfed.cli.values import (
    DATA_SETS,
    DEVICES,
    PARTITIONS,
    PLACEMENTS,
    RUNTIMES,
    SPLITS,
    TASKS,
    choices,
    setting_keys,
)


def whole_number(text: str) -> int:
    """A whole number, or a complaint that repeats what was typed."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:60]!r} is not a whole number") from None


def _load_plugins(context: typer.Context, modules: list[str] | None) -> list[str] | None:
    """Load the plug-ins before the command begins, which then finds what they declare by name."""
    if modules and not context.resilient_parsing:  # which is what completion does
        from graphfed.plugins import load_plugin

        for module in modules:
            load_plugin(module)
    return modules


#: The panels of a command's help, in the order of the options below.
DATA_PANEL = "Data"
TRAINING_PANEL = "Training"
MACHINE_PANEL = "Machine"
PLUGIN_PANEL = "Plug-ins"
OUTPUT_PANEL = "Output"

Data = Annotated[
    str | None,
    typer.Option(
        metavar="DATA",
        autocompletion=choices(DATA_SETS, "graphfed.datasets"),
        rich_help_panel=DATA_PANEL,
        help="Data set (see 'graphfed data list'), or a file: .yaml describes one's own tables, .pt is a PyG "
        "Data, .graphml (default: digits; of forecasting roads).",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=DATA_PANEL,
        help="YAML file with the names of these options (method, data, clients, ...), settings under 'set:'. "
        "What is given on the command line wins.",
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="K",
        rich_help_panel=DATA_PANEL,
        help="Number of sites (default: 10; as many as there are, for the partitions ego, column and "
        "sensors).",
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        autocompletion=choices(PARTITIONS, "graphfed.partitions"),
        rich_help_panel=DATA_PANEL,
        help=f"How the graph is dealt: {', '.join(PARTITIONS)}; or a file of 'graphfed data partition' "
        "(default: column, the sites of the data, where it names them; else what the method is for: ego, one "
        "site for each vertex, or label_dirichlet with partition.beta=10000, which is even). Readings of "
        "sensors have one: sensors, a site each.",
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="SPLIT",
        autocompletion=choices(SPLITS),
        rich_help_panel=DATA_PANEL,
        help="default, public, per_class:20,500,1000 or random:0.5,0.25,0.25 "
        "(default: public where the data set has one, else per_class); of link prediction "
        "edges:0.8,0.05,0.15, its default; of forecasting time:0.7,0.1,0.2, its default, or inductive:0.5, "
        "which trains on the western half of the sensors.",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="TASK",
        autocompletion=choices(TASKS),
        rich_help_panel=TRAINING_PANEL,
        help="What is learnt: classification of the vertices, link_prediction, which pairs are edges, or "
        "forecasting, what sensors read next, for the methods that can (default: the method's first).",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        rich_help_panel=DATA_PANEL,
        help="Where to look for data files first; then in GRAPHFED_DATA and in the cache folder.",
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="R",
        rich_help_panel=TRAINING_PANEL,
        help="Communication rounds, at most: training ends earlier where validation stops improving "
        "(default: 300; of forecasting 100).",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="S",
        rich_help_panel=TRAINING_PANEL,
        help="Seed of weights, draws, partition and split (default: 0).",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="S,S,...",
        rich_help_panel=TRAINING_PANEL,
        help="Seeds, separated by commas, or a range, 0-9 (default: 0,1,2).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=setting_keys,
        rich_help_panel=TRAINING_PANEL,
        help="A setting, as often as needed: of the method (lr, hidden, dropout, backbone, local_steps, ...; "
        "all of them: 'graphfed methods NAME'), of the partition (partition.beta, ...), of a generated data "
        "set (data.num_nodes, ...), partition_seed, split_seed (default: the seed).",
    ),
]
#: The callback does all that there is to do, so commands take the option and have no use for its value.
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        callback=_load_plugins,
        rich_help_panel=PLUGIN_PANEL,
        help="A Python file, or a module that Python finds, with methods, data sets, partitions or audits of "
        "your own, as often as needed. Installed plug-ins are found without it.",
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=choices(RUNTIMES),
        rich_help_panel=MACHINE_PANEL,
        help="local: all in this process; processes: one process per client, or --sites of them; nvflare: a "
        "federation over NVIDIA FLARE, on this machine or, with --kit, on several (default: local).",
    ),
]
Sites = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="S",
        rich_help_panel=MACHINE_PANEL,
        help="With --runtime processes or nvflare: processes that the clients are dealt over (default: one "
        "each).",
    ),
]
Kit = Annotated[
    Path | None,
    typer.Option(
        metavar="KIT",
        rich_help_panel=MACHINE_PANEL,
        help="With --runtime nvflare: the coordinator's kit of a deployment, whose sites have the data "
        "('graphfed site').",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=choices(PLACEMENTS),
        rich_help_panel=MACHINE_PANEL,
        help="In the local runtime: stacked computes all clients together, one-at-a-time one after the other "
        "(slow, for debugging: a failure names the client, the stage and the inputs) (default: stacked).",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=choices(DEVICES),
        rich_help_panel=MACHINE_PANEL,
        help="cpu, cuda or cuda:0 (default: cpu).",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="N",
        rich_help_panel=MACHINE_PANEL,
        help="Threads to compute with (default: one for a small graph, every core for a large one; "
        "with --runtime processes those of each process, one).",
    ),
]
CheckpointEvery = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=OUTPUT_PANEL,
        help="Time between checkpoints, from which 'graphfed resume' goes on; 0: every round (default: 30).",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=OUTPUT_PANEL,
        help="Print the result as one JSON object, the last line of stdout.",
    ),
]
Progress = Annotated[
    bool,
    typer.Option(
        show_default=False, rich_help_panel=OUTPUT_PANEL, help="Show progress on stderr (default: yes)."
    ),
]
Report = Annotated[
    bool,
    typer.Option(
        show_default=False,
        rich_help_panel=OUTPUT_PANEL,
        help="Write report.html into the folder (default: yes).",
    ),
]
