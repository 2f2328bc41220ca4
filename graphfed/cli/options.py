"""The options that several commands share, grouped into the panels of the help.

A command with few options declares them as parameters: ``data_dir: DataDir = None``. A command with many
options of a run names them with `with_options` and receives them as one object (`SharedOptions`).
"""

import functools
import inspect
import re
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
    """Parse a whole number.

    Raises:
        typer.BadParameter: It is not a whole number; the message repeats the text.
    """
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text[:60]!r} is not a whole number") from None


def byte_count(text: str) -> int:
    """Parse a number of bytes.

    Args:
        text: What was typed, as in 500MB or 4GB.

    Returns:
        The bytes.

    Raises:
        typer.BadParameter: It is not a positive number with a unit; the message repeats the text.
    """
    units = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
    form = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?([KMGT]B)", text.strip().upper())
    if form is None or not float(form[1]):
        raise typer.BadParameter(f"{text[:60]!r} is not a number of bytes, as in 500MB or 4GB")
    return int(float(form[1]) * units[form[2]])


def _load_plugins(context: typer.Context, modules: list[str] | None) -> list[str] | None:
    """Load the plug-ins before the command begins, so that it finds their methods and data sets by name."""
    if modules and not context.resilient_parsing:  # completion parses resiliently
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
        help="Data set (see 'graphfed data list'), or a file: .yaml describes tables of your own, .pt is a "
        "PyG Data, .graphml is a graph (default: digits; for forecasting: roads).",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=DATA_PANEL,
        help="YAML file with these options by name (method, data, clients, ...) and settings under 'set:'. "
        "Options on the command line override the file.",
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="K",
        rich_help_panel=DATA_PANEL,
        help=f"Number of clients (default: {DEFAULT_CLIENTS}; the partitions ego, column and sensors "
        "determine it themselves).",
    ),
]
Partition = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE",
        autocompletion=choices(PARTITIONS, "graphfed.partitions"),
        rich_help_panel=DATA_PANEL,
        help=f"How the graph is partitioned among clients: {', '.join(PARTITIONS)}; or a file of 'graphfed "
        "data partition'. Default: column if the data names a client for each node; otherwise the partition "
        "that the method is made for: ego, with one client per node, or label_dirichlet with "
        "partition.beta=10000, which is even. Sensors have the partition sensors only, with one client per "
        "sensor.",
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        metavar="SPLIT",
        autocompletion=choices(SPLITS),
        rich_help_panel=DATA_PANEL,
        help="Split into training, validation and test parts: default, public, per_class:20,500,1000 or "
        "random:0.5,0.25,0.25 (default: public if the data set has it, else per_class, or random if a class "
        "is rare). Link prediction: "
        "edges:0.8,0.05,0.15 (its default). Forecasting: time:0.7,0.1,0.2 (its default) or inductive:0.5, "
        "which trains on the western half of the sensors.",
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="TASK",
        autocompletion=choices(TASKS),
        rich_help_panel=TRAINING_PANEL,
        help="What the model predicts: classification (the class of a node), link_prediction (whether a pair "
        "of nodes is an edge) or forecasting (the next readings of a sensor). The method must support the "
        "task (default: the first task of the method).",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        rich_help_panel=DATA_PANEL,
        help="Folder that is searched first for data files, before GRAPHFED_DATA and the cache folder.",
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="R",
        rich_help_panel=TRAINING_PANEL,
        help="The most communication rounds. Training ends earlier if validation stops improving "
        "(default: 300; for forecasting: 100).",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="S",
        rich_help_panel=TRAINING_PANEL,
        help=f"Seed of the weights, random draws, partition and split (default: {RunOptions.seed}).",
    ),
]
Seeds = Annotated[
    str | None,
    typer.Option(
        metavar="S,S,...",
        rich_help_panel=TRAINING_PANEL,
        help="Seeds, separated by commas, or a range as 0-9 (default: 0,1,2).",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        autocompletion=setting_keys,
        rich_help_panel=TRAINING_PANEL,
        help="A setting: of the method (lr, hidden, dropout, backbone, local_steps, ...; 'graphfed methods "
        "NAME' lists all), of the partition (partition.beta, ...) or of a generated data set "
        "(data.num_nodes, ...), or partition_seed or split_seed (default: the seed). Give the option once "
        "per setting.",
    ),
]
#: The callback loads the plug-ins, so commands take the option but do not use its value.
Plugins = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        callback=_load_plugins,
        rich_help_panel=PLUGIN_PANEL,
        help="A Python file, or a module that Python finds, with your own methods, data sets, partitions or "
        "audits. Give the option once per module. Installed plug-ins are found without it.",
    ),
]
Runtime = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=choices(RUNTIMES),
        rich_help_panel=MACHINE_PANEL,
        help="local: all clients in this process; processes: one process per client, or as many as "
        "--workers; nvflare: a deployment over NVIDIA FLARE: a rehearsal on this machine or, with "
        f"--startup-kit, the sites of a deployment (default: {RunOptions.runtime}).",
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="N",
        rich_help_panel=MACHINE_PANEL,
        help="With --runtime processes or nvflare: the number of processes that compute for the clients "
        "(default: one per client).",
    ),
]
Placement = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=choices(PLACEMENTS),
        rich_help_panel=MACHINE_PANEL,
        help="In the local runtime: stacked computes all clients together; one-at-a-time computes one client "
        "after the other, which is slow but helps debugging: a failure names the client, the stage and the "
        f"inputs (default: {RunOptions.placement}).",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        autocompletion=choices(DEVICES),
        rich_help_panel=MACHINE_PANEL,
        help=f"Device to compute on: cpu, cuda or cuda:0 (default: {RunOptions.device}).",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        parser=whole_number,
        metavar="N",
        rich_help_panel=MACHINE_PANEL,
        help="Number of threads to compute with (default: one for a small graph, every core for a large "
        "one). With --runtime processes, the threads of each process (default: one).",
    ),
]
CheckpointEvery = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        rich_help_panel=OUTPUT_PANEL,
        help="Time between checkpoints, from which 'graphfed resume' continues; 0 saves one every round "
        f"(default: {RunOptions.checkpoint_every:g}).",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        rich_help_panel=OUTPUT_PANEL,
        help="Print the result as one JSON object, on the last line of stdout.",
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
        help="Write report.html into the folder of the run (default: yes).",
    ),
]


@dataclass(frozen=True, kw_only=True)
class SharedOptions:
    """The options that several commands share. An option that was not given is None."""

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

    def run_options(self, **declared: Any) -> dict[str, Any]:
        """Collect the options of a run that were given.

        Args:
            declared: Options that the command declares itself, by name; None for one that was not given.

        Returns:
            The options by the names of `RunOptions`.
        """
        shared = {name: getattr(self, name) for name in OPTIONS if hasattr(self, name)}
        return {name: value for name, value in {**shared, **declared}.items() if value is not None}

    def merged(self, config: dict[str, Any], **declared: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Merge the options of a config file with those of the command line, which override the file.

        Args:
            config: The content of the file, {} for none.
            declared: Options that the command declares itself, by name.

        Returns:
            The options of a run by the names of `RunOptions`, and its settings by name.

        Raises:
            InputError: A setting or the seeds cannot be read.
        """
        from graphfed.runs.settings import parse_settings
        from graphfed.studies.plan import parse_seeds

        options = config | self.run_options(**declared)
        settings = options.pop("set", {}) | parse_settings(self.settings or ())
        if "seeds" in options:
            options["seeds"] = parse_seeds(options["seeds"])
        return options, settings


def read_seedless_config(path: Path, what: str, *extra: str) -> dict[str, Any]:
    """Read the config file of a study, which has several seeds instead of one.

    Args:
        what: The kind of study, for messages.
        extra: Keys that the file may have in addition to the options of a run.

    Raises:
        InputError: The file cannot be read, or it has `seed`.
    """
    from graphfed.runs.config import read_config

    options = read_config(path, extra=("seeds", *extra))
    if "seed" in options:
        raise InputError(f"the config file {path} has 'seed', but a {what} has several: write 'seeds: 0,1,2'")
    return options


def with_options(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a decorator that adds shared options to a command.

    The command gets the shared options as one object, its parameter `shared`.

    Args:
        names: Every option of the command, in the order of its help page. An option that the command declares
            as a keyword parameter is passed under its name, even if a shared option has the same name.

    Returns:
        The decorator. It returns a function with the signature that typer reads.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        declared = dict(inspect.signature(command).parameters)
        del declared["shared"]
        arguments = [
            declared.pop(name)
            for name in [*declared]
            if declared[name].kind is not declared[name].KEYWORD_ONLY
        ]
        assert declared.keys() <= set(names), "an option of the command has no place in the help"
        shared = [name for name in names if name not in declared]
        known = {**inspect.signature(SharedOptions).parameters, **declared}
        parameters = [*arguments, *(known[name] for name in names)]

        @functools.wraps(command)
        def call(**values: Any) -> None:
            given = SharedOptions(**{name: values.pop(name) for name in shared})
            command(**values, shared=given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate
