"""The options of a run, declared once: type, default, range, help and the names that a shell completes.

The keys of config files, the options of the command line, the checks of `runs.config.make_config` and the
fields that a checked run has in common with them (`RunConfig`) follow from this declaration.
tests/runs/test_options.py checks that `graphfed.run` and similar functions have the same signature. This
module imports neither torch nor numpy, because every command imports it.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from graphfed.errors import InputError, did_you_mean, shown
from graphfed.methods.tasks import CLASSIFICATION, FORECASTING, LINK_PREDICTION

Runtime = Literal["local", "processes", "nvflare"]
Placement = Literal["stacked", "one-at-a-time"]

#: A value of a setting.
SettingValue: TypeAlias = str | int | float | bool | None

#: The number of clients if neither the user nor the partition determines it.
DEFAULT_CLIENTS = 10

#: Counts have 32 bits, seeds 64, each with a sign.
MAX_COUNT = 2**31 - 1
MAX_SEED = 2**63 - 1
#: The most processes: each loads torch, which takes about 200 MB.
MAX_PROCESSES = 64
#: More threads than any machine has cores. torch accepts far larger numbers and then fails.
MAX_THREADS = 1024

#: The panels of a command's help, in the order of the options.
DATA_PANEL = "Data"
TRAINING_PANEL = "Training"
MACHINE_PANEL = "Machine"
PLUGIN_PANEL = "Plug-ins"
OUTPUT_PANEL = "Output"

# Copies of the tables of names, because importing those would load numpy while a person waits for the shell.
# tests/integration/test_completion.py keeps them equal to the tables.
DATA_SETS = (
    "digits", "social", "payments", "cora", "citeseer", "pubmed", "facebook", "facebook_128", "lastfm",
    "dblp", "physics", "physics_10k", "roads", "metr_la", "pems_bay", "metr_la_week", "metr_la_raw",
    "metr_la_20", "pems_bay_67",
)  # fmt: skip
PARTITIONS = (
    "label_dirichlet", "label_skew", "random", "edges_uniform", "louvain", "metis", "overlapping", "ego",
    "column", "sensors",
)  # fmt: skip
SPLITS = ("default", "public", "per_class", "random", "random_plain", "edges", "time", "inductive")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Described:
    """What the declaration of an option adds to its type and default.

    Attributes:
        names: Names that the shell completes; a Literal has them in its type.
        plugins: The group of entry points whose names are completed, too.
    """

    metavar: str
    panel: str
    help: str
    names: tuple[str, ...] = ()
    plugins: str = ""
    least: int = 0
    most: int = MAX_COUNT


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options that a checked run (`RunConfig`) has with the same name and type."""

    seed: Annotated[
        int,
        Described(
            "S",
            TRAINING_PANEL,
            "Seed of the weights, random draws, partition and split (default: 0).",
            most=MAX_SEED,
        ),
    ] = 0
    split: Annotated[
        str,
        Described(
            "SPLIT",
            DATA_PANEL,
            "Split into training, validation and test parts: default, public, "
            "per_class:20,500,1000 or random:0.5,0.25,0.25 (default: public if the data set "
            "has it, else per_class, or random if a class is rare). Link prediction: "
            "edges:0.8,0.05,0.15 (its default). Forecasting: time:0.7,0.1,0.2 (its default) "
            "or inductive:0.5, which trains on the western half of the sensors.",
            names=SPLITS,
        ),
    ] = "default"
    runtime: Annotated[
        Runtime,
        Described(
            "NAME",
            MACHINE_PANEL,
            "local: all clients in this process; processes: one process per client, or as "
            "many as --workers; nvflare: a deployment over NVIDIA FLARE: a rehearsal on this "
            "machine or, with --startup-kit, the sites of a deployment (default: local).",
        ),
    ] = "local"
    workers: Annotated[
        int | None,
        Described(
            "N",
            MACHINE_PANEL,
            "With --runtime processes or nvflare: the number of processes that compute for "
            "the clients (default: one per client).",
            least=1,
            most=MAX_PROCESSES,
        ),
    ] = None
    placement: Annotated[
        Placement,
        Described(
            "NAME",
            MACHINE_PANEL,
            "In the local runtime: stacked computes all clients together; one-at-a-time "
            "computes one client after the other, which is slow but helps debugging: a "
            "failure names the client, the stage and the inputs (default: stacked).",
        ),
    ] = "stacked"
    device: Annotated[
        str,
        Described(
            "NAME",
            MACHINE_PANEL,
            "Device to compute on: cpu, cuda or cuda:0 (default: cpu).",
            names=DEVICES,
        ),
    ] = "cpu"
    threads: Annotated[
        int | None,
        Described(
            "N",
            MACHINE_PANEL,
            "Number of threads to compute with (default: one for a small graph, every core "
            "for a large one). With --runtime processes, the threads of each process "
            "(default: one).",
            least=1,
            most=MAX_THREADS,
        ),
    ] = None
    checkpoint_every: Annotated[
        float,
        Described(
            "SECONDS",
            OUTPUT_PANEL,
            "Time between checkpoints, from which 'graphfed resume' continues; 0 saves one "
            "every round (default: 30).",
        ),
    ] = 30.0


@dataclass(frozen=True, kw_only=True)
class RunOptions(CommonOptions):
    """The options of a run as the user gives them. A run without a method is refused."""

    method: str | None = None
    task: Annotated[
        str | None,
        Described(
            "TASK",
            TRAINING_PANEL,
            "What the model predicts: classification (the class of a node), link_prediction "
            "(whether a pair of nodes is an edge) or forecasting (the next readings of a "
            "sensor). The method must support the task (default: the first task of the "
            "method).",
            names=(CLASSIFICATION, LINK_PREDICTION, FORECASTING),
        ),
    ] = None
    data: Annotated[
        object,
        Described(
            "DATA",
            DATA_PANEL,
            "Data set (see 'graphfed data list'; of PyG or OGB: pyg:Amazon/Photo, "
            "ogb:ogbn-arxiv), or a file: .yaml describes tables of your own, .pt is a PyG Data, "
            ".graphml is a graph (default: digits; for forecasting: roads).",
            names=DATA_SETS,
            plugins="graphfed.datasets",
        ),
    ] = None
    clients: Annotated[
        int | None,
        Described(
            "K",
            DATA_PANEL,
            f"Number of clients (default: {DEFAULT_CLIENTS}; the partitions ego, column and "
            "sensors determine it themselves).",
            least=1,
        ),
    ] = None
    partition: Annotated[
        object,
        Described(
            "NAME|FILE",
            DATA_PANEL,
            f"How the graph is partitioned among clients: {', '.join(PARTITIONS)}; or a file "
            "of 'graphfed data partition'. Default: column if the data names a client for "
            "each node; otherwise the partition that the method is made for: ego, with one "
            "client per node, or label_dirichlet with partition.beta=10000, which is even. "
            "Sensors have the partition sensors only, with one client per sensor.",
            names=PARTITIONS,
            plugins="graphfed.partitions",
        ),
    ] = None
    rounds: Annotated[
        int | None,
        Described(
            "R",
            TRAINING_PANEL,
            "The most communication rounds. Training ends earlier if validation stops "
            "improving (default: 300; for forecasting: 100).",
            least=1,
        ),
    ] = None
    data_dir: Annotated[
        str | Path | None,
        Described(
            "FOLDER",
            DATA_PANEL,
            "Folder that is searched first for data files, before GRAPHFED_DATA and the cache folder.",
        ),
    ] = None
    #: Settings of the method, the partition and the data, by key: ``set`` on the command line and in files.
    settings: Mapping[str, object] | None = None


_DECLARED = get_type_hints(RunOptions, include_extras=True)

#: The names of the options of `CommonOptions`.
COMMON = tuple(field.name for field in dataclasses.fields(CommonOptions))
#: The names of the options, without `settings`.
OPTIONS = (*(name for name in _DECLARED if name not in (*COMMON, "settings")), *COMMON)


def described(name: str) -> Described:
    """Return what the declaration says of an option of the command line."""
    (found,) = _DECLARED[name].__metadata__
    assert isinstance(found, Described)
    return found


def kinds_of(name: str) -> set[Any]:
    """Return the types that a value of an option can have; for a Literal, its type is text."""
    declared = get_args(_DECLARED[name])[0]
    return {str} if get_origin(declared) is Literal else {*(get_args(declared) or (declared,))}


def choices_of(name: str) -> tuple[str, ...]:
    """Return the values of an option that is a Literal; () for another option."""
    declared = get_args(_DECLARED[name])[0]
    return get_args(declared) if get_origin(declared) is Literal else ()


def checked_options(given: Mapping[str, Any]) -> RunOptions:
    """Check type and range of every option; what a name means, and what fits together, is checked later."""
    asked = RunOptions(**given)
    names = [name for name in OPTIONS if name != "method"]
    return dataclasses.replace(asked, **{name: checked_option(name, getattr(asked, name)) for name in names})


def checked_option(name: str, value: Any) -> Any:
    """Check the value of one option, and return it in the declared type."""
    kinds = kinds_of(name)
    # `data` and `partition` may be objects; where they are used it is decided whether they can be.
    if object in kinds or (value is None and type(None) in kinds):
        return value
    choices = choices_of(name)
    if choices:
        return one_of(name, value, choices)
    if int in kinds:
        return whole_number(name, value, described(name).least, described(name).most)
    if float in kinds:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise InputError(f"{name}={shown(value)} cannot be used: expected a number of at least 0")
        return float(value)
    if Path in kinds and not isinstance(value, str | os.PathLike):
        raise InputError(f"{name}={shown(value)} cannot be used: expected text or a path")
    return value if Path in kinds else text(name, value)


def text(key: str, value: object) -> str:
    """Return a value that must be text; InputError if it is not."""
    if not isinstance(value, str):
        raise InputError(f"{key}={shown(value)} cannot be used: expected text")
    return value


def whole_number(key: str, value: Any, least: int, most: int) -> int:
    """Return a value that must be a whole number, of Python or numpy; InputError if it is not."""
    # Python takes True for 1; a user who writes it means something else.
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise InputError(f"{key}={shown(value)} cannot be used: expected a whole number of at least {least}")
    if value.__index__() > most:
        raise InputError(f"{key}={shown(value)} cannot be used: expected at most {most}")
    return int(value.__index__())


def one_of(key: str, value: object, choices: tuple[str, ...]) -> str:
    """Return a value that must be among the choices; InputError, with the most similar one, if it is not."""
    if isinstance(value, str) and value in choices:
        return value
    hint = did_you_mean(value.lower()[:60] if isinstance(value, str) else "", choices)
    raise InputError(f"unknown {key} {shown(value)}; {hint}")
