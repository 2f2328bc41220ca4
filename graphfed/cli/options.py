"""The options that several commands share, in the panels of the help.

A command with few of them has them as parameters: ``data_dir: DataDir = None``. A command that takes the
options of a run names those that it takes (`with_options`) and receives them as one object (`SharedOptions`).
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

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
    method_names,
    setting_keys,
)
from graphfed.errors import InputError
from graphfed.tasks.run_options import DEFAULT_CLIENTS, OPTIONS, RunOptions


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

Method = Annotated[
    str | None,
    typer.Argument(metavar="METHOD", autocompletion=method_names, help="The method; see 'graphfed methods'."),
]
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
        help=f"Number of sites (default: {DEFAULT_CLIENTS}; as many as there are, for the partitions ego, "
        "column and sensors).",
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
        "site for each node, or label_dirichlet with partition.beta=10000, which is even). Readings of "
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
        help="What is learnt: classification of the nodes, link_prediction, which pairs are edges, or "
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
        help=f"Seed of weights, draws, partition and split (default: {RunOptions.seed}).",
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
        help="local: all in this process; processes: one process per client, or --workers of them; nvflare: "
        "a federation over NVIDIA FLARE, on this machine or, with --startup-kit, on several "
        f"(default: {RunOptions.runtime}).",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="S",
        rich_help_panel=MACHINE_PANEL,
        help="With --runtime processes or nvflare: processes that the clients are dealt over (default: one "
        "each).",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=choices(PLACEMENTS),
        rich_help_panel=MACHINE_PANEL,
        help="In the local runtime: stacked computes all clients together, one-at-a-time one after the other "
        "(slow, for debugging: a failure names the client, the stage and the inputs) "
        f"(default: {RunOptions.placement}).",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=choices(DEVICES),
        rich_help_panel=MACHINE_PANEL,
        help=f"cpu, cuda or cuda:0 (default: {RunOptions.device}).",
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
        help="Time between checkpoints, from which 'graphfed resume' goes on; 0: every round "
        f"(default: {RunOptions.checkpoint_every:g}).",
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


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """What was typed of the options that several commands share; None where an option was not."""

    data: Data = None
    config: Config = None
    clients: Clients = None
    partition: Partition = None
    rounds: Rounds = None
    seed: Seed = None
    seeds: Seeds = None
    split: Split = None
    task: Task = None
    runtime: Runtime = None
    workers: Workers = None
    placement: Placement = None
    device: Device = None
    threads: Threads = None
    data_dir: DataDir = None
    plugin: Plugins = None
    checkpoint_every: CheckpointEvery = None
    settings: Settings = None
    as_json: Json = False
    report: Report = True
    progress: Progress = True

    def run_options(self, **own: Any) -> dict[str, Any]:
        """Return the options of a run that were typed, by the names of `RunOptions`.

        Args:
            own: Options that the command declares itself, by name. None stands for one that was not typed.
        """
        shared = {name: getattr(self, name) for name in OPTIONS if hasattr(self, name)}
        return {name: value for name, value in {**shared, **own}.items() if value is not None}

    def merged(self, config: dict[str, Any], **own: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of a run and its settings: those of a config file, and over them those typed.

        Args:
            config: The content of the file, {} for none.
            own: Options that the command declares itself, by name.
        """
        from graphfed.runs.settings import parse_settings
        from graphfed.studies.plan import parse_seeds

        options = config | self.run_options(**own)
        settings = options.pop("set", {}) | parse_settings(self.settings or ())
        if "seeds" in options:
            options["seeds"] = parse_seeds(options["seeds"])
        return options, settings


def read_seedless_config(path: Path, what: str, *extra: str) -> dict[str, Any]:
    """Read the config file of a study, which has several seeds and not one."""
    from graphfed.runs.config import read_config

    options = read_config(path, extra=("seeds", *extra))
    if "seed" in options:
        raise InputError(f"the config file {path} has a seed, and a {what} has several; write seeds: 0,1,2")
    return options


def with_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options by name, and pass it the shared ones as one object, the parameter `shared`.

    Args:
        names: Every option of the command, in the order of its help page. An option that the command declares
            as a keyword parameter is its own and is passed under its name, even where a shared one has that
            name.

    Returns:
        A decorator. The function that it returns has the signature that typer reads.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = dict(inspect.signature(command).parameters)
        del own["shared"]
        arguments = [own.pop(name) for name in [*own] if own[name].kind is not own[name].KEYWORD_ONLY]
        assert own.keys() <= set(names), "an option of the command has no place in the help"
        shared = [name for name in names if name not in own]
        known = {**inspect.signature(SharedOptions).parameters, **own}
        parameters = [*arguments, *(known[name] for name in names)]

        @functools.wraps(command)
        def call(**values: Any) -> None:
            typed = SharedOptions(**{name: values.pop(name) for name in shared})
            command(**values, shared=typed)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate
