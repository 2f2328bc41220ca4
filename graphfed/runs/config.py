"""Check what a run is asked to do: its options and its settings (`--set key=value`).

An option says which method runs on which data and how the data is partitioned. Everything that can be refused
without loading data is refused here. Settings of three kinds share one mapping:

    lr, rounds, mu, ...      of the method: its config dataclass has the names, types and ranges
    partition.beta, ...      of the partition; also partition_seed and split_seed (default: the seed)
    data.num_nodes, ...      of a generated data set
"""

import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from graphfed.data.datasets import DATASETS, search_folders
from graphfed.data.partitions.partition import PARTITIONS, Partition
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS, get_method
from graphfed.plain_yaml import read_yaml
from graphfed.plugins import load_plugin
from graphfed.runs.settings import (
    explain,
    given_settings,
    prefixed_settings,
    settings_of,
    unknown_config_key,
    unknown_setting,
)
from graphfed.tasks import run_options
from graphfed.tasks.base import PRESETS
from graphfed.tasks.given_partition import with_partition_file
from graphfed.tasks.registry import TASKS, first_task, get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import (
    COMMON,
    MAX_COUNT,
    MAX_PROCESSES,
    MAX_SEED,
    OPTIONS,
    checked_option,
    one_of,
    whole_number,
)
from graphfed.tasks.source import DataSource, data_source, described

#: Far more than can be trained, and small enough that a larger one is refused with a clear message.
MAX_WIDTH = 2**16

#: The keys of a config file that are options of a run, its folder and its settings.
_KEYS = (*OPTIONS, "out", "set")
#: One more key of a config file: the modules that the command line names with --plugin.
PLUGINS = "plugins"
_SEEDS = ("partition_seed", "split_seed")
#: The setting that names a method's set of defaults.
PRESET = "preset"
#: Settings that are also options; they can be given as options only.
_OPTION_SETTINGS = ("seed",)


def make_config(method: str | None, **options: Any) -> RunConfig:
    """Check every choice of a run and fill in the defaults, without loading or writing anything.

    Raises:
        InputError: A choice cannot be used. The message has its key, the bad value and what was expected.
    """
    asked = run_options.checked_options({"method": method, **with_partition_file(options)})
    chosen, seed = _method(asked.method), asked.seed
    given = given_settings(asked.settings)
    task = _task(asked.task, chosen)
    definition = get_task(task)
    known = data_source(definition.data.default if asked.data is None else asked.data)
    graph = known.value
    _check_kind(known, chosen, task)
    partition = default_partition(chosen, known) if asked.partition is None else asked.partition
    partitioning = _partitioning(partition, asked.clients)
    _check_partitioning(partitioning, known)
    folder = None if asked.data_dir is None else Path(asked.data_dir)
    if folder is not None:
        search_folders(folder)  # refuses a folder that is not there
    data_defaults = DATASETS[graph].options if isinstance(graph, str) else {}
    # A partition in a file has its options and its seed there, and takes none here.
    partition_name = "" if partitioning.file else partitioning.name
    if definition.own_partition and not partition_name:
        raise InputError(f"the partition in {partitioning.file} {definition.own_partition}")
    training, rest = _training(
        chosen, task, given, asked.rounds, seed, _other_names(partition_name, data_defaults)
    )
    if partitioning.file is not None and "partition_seed" in rest:
        raise InputError(
            f"partition_seed has no use here: the partition is in {partitioning.file}; leave it out"
        )
    # The clients that the data states are known before loading only from a description or an object.
    num_clients = (
        known.num_clients
        if partitioning.name == "column" and partitioning.clients is None
        else partitioning.clients
    )
    if definition.only_simulated and asked.runtime == "nvflare":
        raise InputError(
            f"runtime 'nvflare' cannot do task {task!r}; use runtime 'local' or 'processes', or "
            "leave the task out"
        )
    common = {name: getattr(asked, name) for name in COMMON}
    # A pooled method has one client, which holds all data.
    common["workers"] = _processes(asked, 1 if chosen.pooled else num_clients)
    common["device"] = checked_device(asked.device)
    return RunConfig(
        **common,
        method=chosen,
        task=task,
        settings=training,
        data=graph,
        data_source=known,
        data_options=prefixed_settings("data.", rest, data_defaults),
        data_dir=folder,
        clients=num_clients,
        partition=partitioning.name,
        partition_options=prefixed_settings("partition.", rest, PARTITIONS[partition_name].options)
        if partition_name
        else partitioning.options,
        partition_seed=whole_number("partition_seed", rest.get("partition_seed", seed), 0, MAX_SEED)
        if partition_name
        else partitioning.seed,
        partition_file=partitioning.file,
        split_seed=whole_number("split_seed", rest.get("split_seed", seed), 0, MAX_SEED),
    )


def default_partition(method: Method, source: DataSource) -> str:
    """Return the partition of a data set if none is named: the clients that the data names, else the method's
    own.
    """
    return "column" if source.default_partition == "column" else method.partition


def checked_training(
    method: str | None,
    settings: Mapping[str, object],
    rounds: int | None,
    seed: int,
    task: str | None = None,
) -> tuple[Method, Any, int]:
    """Check a method and its settings for a run whose data is elsewhere, in a deployment.

    The result is the method, its config and the seed of the split. `rounds` is None for the default, and
    `task` for the first one of the method, the only one that participants of a deployment run.
    """
    chosen = _method(method)
    seed = whole_number("seed", seed, 0, MAX_SEED)
    name = _task(task, chosen)
    if get_task(name).only_simulated:
        raise InputError(
            f"{get_task(name).only_simulated}; use the runtime 'local' or 'processes', or another task"
        )
    if name != chosen.tasks[0]:
        raise InputError(
            f"{chosen.name} can be deployed for task {chosen.tasks[0]!r} only (got {name!r}); leave the task "
            "out"
        )
    training, rest = _training(chosen, name, dict(settings), rounds, seed, ["split_seed"])
    return chosen, training, whole_number("split_seed", rest.get("split_seed", seed), 0, MAX_SEED)


def data_setting_names(data: object, partition: object) -> list[str]:
    """Return the keys of `--set` that concern data, split or partition.

    Only a named data set and a named partition have options, and not data or a partition from a file.
    """
    options = DATASETS[data].options if isinstance(data, str) else {}
    return _other_names("" if partition_file(partition) else str(partition), options)


def setting_names(method: str, data: str | None = None, partition: str | None = None) -> list[str]:
    """Return every key that `--set` takes for a method, with the options of a data set and a partition."""
    spec = None if data is None else DATASETS.get(data)
    options = {} if spec is None else spec.options
    return [*_training_names(get_method(method)), *_other_names(partition or "", options)]


def read_config(path: str | Path, extra: Iterable[str] = ()) -> JsonObject:
    """Read the options of a run from a YAML file, and load the plug-ins that it names.

    The keys are the names in OPTIONS, `out`, `plugins` and `set`, a mapping of settings. `data` may be a
    description of the user's own files (see `graphfed.data.user_files.graph_description`). Relative paths of
    data, of a partition file and of plug-in files start from the folder of the config file. The file is plain
    YAML (see `read_yaml`).

    Raises:
        InputError: The file cannot be read or is no mapping, a key is no option, or a value is of another
            kind.
    """
    path, known = Path(path), [*_KEYS, PLUGINS, *extra]
    content = read_yaml(path, "the config file")
    if not isinstance(content, dict):
        raise InputError(
            f"the config file {path} must be a mapping, as in 'method: fedavg' (found {shown(content)})"
        )
    for key in content:
        if key not in known:
            raise InputError(
                f"the config file {path} has an unknown key {shown(key)}; {unknown_config_key(key, known)}"
            )
    # A key with nothing after it is an option that is not given.
    options = {key: value for key, value in content.items() if value is not None}
    # Before the options, because they may name a method or a data set of a plug-in.
    _load_plugins(options.pop(PLUGINS, []), path)
    for key, value in options.items():
        if key == "data" and isinstance(value, dict):
            options[key] = described(value, path.parent, f"the config file {path}, data")
            continue
        try:
            if key in ("data", "out", "partition"):  # a run in Python takes objects of other types, too
                run_options.text(key, value)
            elif key in OPTIONS:
                options[key] = checked_option(key, value)
        except InputError as error:
            raise InputError(f"the config file {path}: {error}") from None
        if key == "partition" and partition_file(value) is not None:
            options[key] = str(path.parent / value)
    settings = options.get("set", {})
    single = (str, int, float, type(None))
    if not isinstance(settings, dict) or not all(
        isinstance(key, str) and isinstance(value, single) for key, value in settings.items()
    ):
        raise InputError(
            f"the config file {path}: 'set' must map names to single values, as in 'partition.beta: 1.0'"
        )
    options["set"] = settings
    return options


def _load_plugins(modules: object, config: Path) -> None:
    """Load the plug-ins that a config file names: one module, or a list of modules."""
    named = [modules] if isinstance(modules, str) else modules
    if not isinstance(named, list) or not all(isinstance(module, str) for module in named):
        raise InputError(
            f"the config file {config}: {PLUGINS} must be a list of Python files and modules, as in "
            "[my_method.py]"
        )
    for module in named:
        load_plugin(config.parent / module if module.endswith(".py") else module)


# ---- settings ----------------------------------------------------------------------------------------------


def _training_names(method: Method) -> list[str]:
    return [*(name for name in method.tree.names if name not in _OPTION_SETTINGS), PRESET]


def _other_names(partition: str, data_options: Iterable[str]) -> list[str]:
    spec = PARTITIONS.get(partition) or PARTITIONS.get(partition.lower())
    options = {} if spec is None else spec.options
    return [*_SEEDS, *(f"partition.{key}" for key in options), *(f"data.{key}" for key in data_options)]


def _training(
    method: Method,
    task: str,
    settings: Mapping[str, object],
    rounds: int | None,
    seed: int,
    others: list[str],
) -> tuple[Any, dict[str, object]]:
    """Return the method's config, and the settings that are not the method's own."""
    from pydantic import ValidationError

    names = [*_training_names(method), *method.offers]  # what it always uses can be given, too
    own: dict[str, object] = {}
    rest: dict[str, object] = {}
    for key, value in settings.items():
        if key in _OPTION_SETTINGS:
            raise InputError(
                f"{key} is an option of its own, not a setting; give --{key} (in Python: {key}=...)"
            )
        if key not in names and key not in others:
            hint = unknown_setting(key, [*names, *others])
            raise InputError(f"{method.name} has no setting {shown(key)}; {hint}")
        (own if key in names else rest)[key] = value
    if rounds is not None:
        if own.get("rounds", rounds) != rounds:
            raise InputError(
                f"rounds is given twice: {rounds} as an option and {own['rounds']} as a setting; give one"
            )
        own["rounds"] = rounds
    preset = one_of(PRESET, own.pop(PRESET, PRESETS[0]), PRESETS)
    # Before the checks of choices, because `none` may be one of them.
    own = with_none_named(method, task, own)
    kinds = {setting.name: setting for setting in settings_of(method, task)}
    limited = {leaf.name: method.tree.choices(leaf) for leaf in method.tree.leaves}
    for key, value in own.items():
        choices = limited.get(key) or method.offers.get(key)
        if choices and value not in choices:
            complaint: Any = {"loc": (key,), "input": value, "type": "literal_error", "msg": ""}
            fixed = key not in kinds
            raise InputError(
                f"{key}={shown(value)} cannot be used: {method.name} always has {key}={choices[0]}"
                if fixed
                else explain(complaint, method, task)
            )
        # pydantic takes True for 1 and accepts infinity; a user means neither.
        if isinstance(value, bool) and not (key in kinds and kinds[key].kind == "yes or no"):
            raise InputError(
                f"{key}={value} cannot be used: a number or a name was expected, not a truth value"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key}={value} cannot be used: a finite number was expected")
        # Larger numbers would overflow, or make a model that no memory can hold.
        limit = MAX_WIDTH if key in ("hidden", "layers", "heads", "output_heads") else MAX_COUNT
        if isinstance(value, int) and abs(value) > limit:
            raise InputError(f"{key}={shown(value)} cannot be used: expected at most {limit}")
    definition = get_task(task)
    definition.check_settings(own)
    try:
        return method.configure({**own, "seed": seed}, definition.settings_of(method, preset)), rest
    except ValidationError as error:
        raise InputError(explain(error.errors(include_url=False)[0], method, task)) from None


def with_none_named(method: Method, task: str, given: Mapping[str, object]) -> dict[str, object]:
    """Replace None by "none" for settings that have "none" among their choices.

    On the command line `none` means no value, except for these settings.
    """
    if None not in given.values():
        return dict(given)
    named = {setting.name for setting in settings_of(method, task) if "none" in setting.choices}
    return {key: "none" if value is None and key in named else value for key, value in given.items()}


# ---- options -----------------------------------------------------------------------------------------------


def _name_in(key: str, what: str, value: object, table: Collection[str]) -> str:
    """Return the name in `table` that a value means, in lower or upper case."""
    name = run_options.text(key, value)
    name = name if name in table else name.lower()
    if name not in table:
        raise InputError(f"unknown {what} {shown(value)}; {did_you_mean(name[:60], table)}")
    return name


@dataclasses.dataclass(frozen=True)
class _Partitioning:
    """A partition that a run makes by name, or one that it reads from a file, with its metadata."""

    name: str
    clients: int | None
    file: Path | None = None
    options: JsonObject = dataclasses.field(default_factory=dict)
    seed: int = 0


def _partitioning(partition: object, count: int | None) -> _Partitioning:
    file = partition_file(partition)
    if file is None:
        name = _name_in("partition", "partition", partition, PARTITIONS)
        if count is None and PARTITIONS[name].clients_of is None:
            count = run_options.DEFAULT_CLIENTS
        return _Partitioning(name, count)
    metadata = Partition.metadata(file)
    if count not in (None, metadata["num_clients"]):
        raise InputError(
            f"the partition in {file} has {metadata['num_clients']} clients, not {count}; leave the number "
            "of clients out"
        )
    return _Partitioning(
        metadata["name"], metadata["num_clients"], file, metadata["options"], metadata["seed"]
    )


def partition_file(partition: object) -> Path | None:
    """Return the path that a value of `partition` means; None for a name.

    Text is a path if it has an ending or a folder, as in ./clients.
    """
    if isinstance(partition, os.PathLike):
        return Path(partition)
    if not isinstance(partition, str):
        return None
    path = Path(partition)
    return path if path.suffix or os.sep in partition else None


def _method(method: str | None) -> Method:
    if method is None:
        raise InputError(
            "no method was given; choose one, as in 'graphfed run fedavg' (see 'graphfed methods')"
        )
    return get_method(run_options.text("method", method))


def _task(task: str | None, method: Method) -> str:
    """Return the task that is meant; InputError if there is none of that name, or the method cannot do it."""
    if task is None:
        return method.tasks[0]
    name = _name_in("task", "task", task, TASKS)
    if name not in method.tasks:
        able = [other for other, spec in METHODS.usable().items() if name in spec.tasks]
        raise InputError(
            f"{method.name} cannot do task {name!r}; choose {' or '.join(able) or 'another task'}, or leave "
            f"the task out, which is {method.tasks[0]!r} then"
        )
    return name


def _check_kind(source: DataSource, method: Method, task: str) -> None:
    """Raise InputError unless the data is of the kind that the task needs."""
    if source.kind == get_task(task).data.name:
        return
    able = [name for name, spec in METHODS.usable().items() if first_task(spec).data.name == source.kind]
    if source.kind == "sensors":
        raise InputError(f"{source.name!r} is for forecasting; {', '.join(able)} can use it")
    known = [name for name in DATASETS.usable() if data_source(name).kind == get_task(task).data.name]
    raise InputError(
        f"{method.name} forecasts readings of sensors, and {source.name!r} is a graph; choose one of: "
        f"{', '.join(known)}, or another method: {', '.join(able)}"
    )


def _check_partitioning(partitioning: _Partitioning, source: DataSource) -> None:
    """Raise InputError if sensors are asked for with a graph's partition, or a graph with that of sensors."""
    kind = "graph" if partitioning.file else PARTITIONS[partitioning.name].data
    if kind == source.kind:
        return
    what = (
        f"the partition in {partitioning.file}" if partitioning.file else f"partition {partitioning.name!r}"
    )
    if kind == "sensors":
        fault = f"assigns each sensor to a client, and {source.name!r} is a graph"
    else:
        fault = f"is for graphs, and {source.name!r} holds readings of sensors, each of which is a client"
    raise InputError(f"{what} {fault}; leave it out")


def _processes(asked: run_options.RunOptions, clients: int | None) -> int | None:
    """Return how many processes compute for the clients; None in the runtime "local"."""
    runtime, workers = asked.runtime, asked.workers
    if runtime == "local":
        if workers is not None:
            raise InputError(f"workers={workers} has no use with runtime {runtime!r}; leave it out")
        return None
    if asked.device != "cpu":
        raise InputError(
            f"runtime {runtime!r} computes on the CPU here, not on {shown(asked.device)}; use runtime 'local'"
        )
    count = clients if workers is None else workers
    if count is not None and clients is not None and count > clients:
        raise InputError(
            f"{count} workers cannot hold {clients} clients; use at most as many workers as clients"
        )
    if count is None or not 1 <= count <= MAX_PROCESSES:
        raise InputError(
            f"runtime {runtime!r} starts one process per client, at most {MAX_PROCESSES}; give the number of "
            "workers (--workers), or use runtime 'local'"
        )
    return count


def checked_device(device: str) -> str:
    """Check the name of a torch device."""
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, ValueError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise InputError(f"unknown device {shown(device)}; use 'cpu', 'cuda' or 'cuda:0'")
    if found.type == "cpu" and found.index is not None:
        raise InputError(
            f"device {shown(device)} cannot be used: there is one 'cpu'; use threads to limit its use"
        )
    if found.type == "cuda":
        index = found.index or 0
        if index >= torch.cuda.device_count():
            raise InputError(
                f"device {device!r} is not available: torch finds {torch.cuda.device_count()} CUDA devices; "
                "use 'cpu'"
            )
    return str(device)
