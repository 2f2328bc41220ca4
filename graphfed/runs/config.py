"""What a run is asked to do: options (which method, which data, dealt how) and settings (`--set key=value`).

Everything that can be refused without loading data is refused here. Three kinds of settings share a mapping:

    lr, rounds, mu, ...      of the method: its config dataclass has the names, types and ranges
    partition.beta, ...      of the partition; also partition_seed and split_seed (default: the seed)
    data.num_nodes, ...      of a generated data set
"""

import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from graphfed.data.datasets import DATASETS, search_folders
from graphfed.data.partitions.partition import PARTITIONS, Partition
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.base import Method
from graphfed.methods.config import FORECASTING_GROUPS, GRAPH_GROUPS, CommonSettings
from graphfed.methods.registry import METHODS, get_method
from graphfed.plain_yaml import read_yaml
from graphfed.plugins import load_plugin
from graphfed.renamed import new_name
from graphfed.runs.settings import (
    OPTION_WORDS,
    SYNONYMS,
    explain,
    given_settings,
    home_of,
    settings_of,
    unknown_setting,
)
from graphfed.tasks.base import PRESETS
from graphfed.tasks.registry import TASKS, first_task, get_task
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.run_options import DEFAULT_CLIENTS, OPTIONS, Placement, RunOptions, Runtime, SettingValue
from graphfed.tasks.source import DataSource, data_source, described

__all__ = [
    "checked_device",
    "checked_threads",
    "checked_training",
    "data_setting_names",
    "make_config",
    "parse_settings",
    "partition_file",
    "read_config",
    "setting_names",
]

Choice = TypeVar("Choice", bound=str)

#: Every process loads torch, about 200 MB.
MAX_PROCESSES = 64
#: More than any machine has cores; torch takes far larger numbers and then fails inside.
MAX_THREADS = 1024
#: Of counts: what 32 bits hold. Of widths: far more than trains, and little enough to fail in plain words.
MAX_COUNT = 2**31 - 1
MAX_WIDTH = 2**16
MAX_SEED = 2**63 - 1

#: The keys of a config file that are options of a run, its folder and its settings.
_KEYS = (*OPTIONS, "out", "set")
#: One more key of a config file: the modules that the command line names with --plugin.
PLUGINS = "plugins"
_SEEDS = ("partition_seed", "split_seed")
#: The setting that names a method's set of defaults.
PRESET = "preset"
#: Settings that are options of their own, so that a run has one place to say them.
_OPTION_SETTINGS = ("seed",)
_WHOLE_OPTIONS = tuple(
    field.name for field in dataclasses.fields(RunOptions) if field.type in (int, int | None)
)
#: Checked where they are used; every option of no such kind is text.
_OTHER_OPTIONS = ("checkpoint_every", "set")


def make_config(method: str | None, **options: Any) -> RunConfig:
    """Check every choice of a run and fill in the defaults; load and write nothing.

    Args:
        method: The name of the method.
        options: The other fields of `RunOptions`.

    Returns:
        The run, every choice made.

    Raises:
        InputError: A choice cannot be used. The message has its key, the bad value and what was expected.
    """
    asked = RunOptions(method, **options)
    chosen = _method(asked.method)
    given = given_settings(asked.settings)
    seed = _integer("seed", asked.seed, 0, MAX_SEED)
    task = _task(asked.task, chosen)
    definition = get_task(task)
    known = data_source(definition.data.default if asked.data is None else asked.data)
    graph = known.value
    _check_kind(known, chosen, task)
    partition = default_partition(chosen, known) if asked.partition is None else asked.partition
    dealt = _partitioning(partition, asked.clients)
    _check_partitioning(dealt, known)
    folder = _folder("data_dir", asked.data_dir)
    if folder is not None:
        search_folders(folder)  # refuses a folder that is not there
    data_defaults = DATASETS[graph].options if isinstance(graph, str) else {}
    made = "" if dealt.file else dealt.name
    if definition.own_partition and not made:
        raise InputError(f"the partition in {dealt.file} {definition.own_partition}")
    training, rest = _training(chosen, task, given, asked.rounds, seed, _other_names(made, data_defaults))
    if dealt.file is not None and "partition_seed" in rest:
        raise InputError(f"partition_seed has no use here: the partition is in {dealt.file}; leave it out")
    held = known.num_clients if dealt.name == "column" and dealt.clients is None else dealt.clients
    runtime: Runtime = _one_of("runtime", asked.runtime, get_args(Runtime))
    if definition.only_simulated and runtime == "nvflare":
        raise InputError(
            f"runtime 'nvflare' cannot do task {task!r}; use runtime 'local' or 'processes', or "
            "leave the task out"
        )
    return RunConfig(
        method=chosen,
        task=task,
        training=training,
        data=graph,
        data_source=known,
        data_options=_prefixed("data.", rest, data_defaults),
        data_dir=folder,
        clients=held,
        partition=dealt.name,
        partition_options=_prefixed("partition.", rest, PARTITIONS[made].options) if made else dealt.options,
        partition_seed=_integer("partition_seed", rest.get("partition_seed", seed), 0, MAX_SEED)
        if made
        else dealt.seed,
        partition_file=dealt.file,
        split=_text("split", asked.split),
        split_seed=_integer("split_seed", rest.get("split_seed", seed), 0, MAX_SEED),
        seed=seed,
        runtime=runtime,
        workers=_processes(runtime, asked.workers, 1 if chosen.pooled else held, asked.device),
        placement=_one_of("placement", asked.placement, get_args(Placement)),
        device=checked_device(asked.device),
        threads=None if asked.threads is None else checked_threads(asked.threads),
        checkpoint_every=_seconds("checkpoint_every", asked.checkpoint_every),
    )


def default_partition(method: Method, source: DataSource) -> str:
    """How a data set is dealt where nobody says: by the sites that it names, or as the method has it."""
    return "column" if source.default_partition == "column" else method.partition


def checked_training(
    method: str | None, settings: Mapping[str, object], rounds: int | None, seed: int
) -> tuple[Method, CommonSettings, int]:
    """A method, its settings and the seed of the split, where the data is elsewhere. InputError as
    `make_config`."""
    chosen = _method(method)
    seed = _integer("seed", seed, 0, MAX_SEED)
    task = first_task(chosen).name
    training, rest = _training(chosen, task, dict(settings), rounds, seed, ["split_seed"])
    return chosen, training, _integer("split_seed", rest.get("split_seed", seed), 0, MAX_SEED)


def data_setting_names(data: object, partition: str | Path) -> list[str]:
    """Every key of `--set` that is about the data (of a name: its options), its split or its partition (a
    name or a file)."""
    options = DATASETS[data].options if isinstance(data, str) else {}
    return _other_names("" if partition_file(partition) else str(partition), options)


def setting_names(method: str, data: str | None = None, partition: str | None = None) -> list[str]:
    """Every key that `--set` takes for a method (on a data set, with a partition)."""
    spec = None if data is None else DATASETS.get(data)
    options = {} if spec is None else spec.options
    return [*_training_names(get_method(method)), *_other_names(partition or "", options)]


def read_config(path: str | Path, extra: Iterable[str] = ()) -> JsonObject:
    """The options in a YAML file: the names in OPTIONS, `out` (and `extra`), settings as a mapping under
    `set`.

    `data` may be a description of one's own files (see `graphfed.data.user_files.graph_description`); their
    paths, and those of a partition's file and of the files under `plugins`, start from the folder of the
    config. The plug-ins are loaded here (`graphfed.plugins.load_plugin`). A config is a plain file (see
    `read_yaml`). Raises InputError for a file that cannot be read, that is no such mapping, or has a key that
    is no option or a value that is not of its kind."""
    path, known = Path(path), [*_KEYS, PLUGINS, *extra]
    content = read_yaml(path, "the config file")
    if not isinstance(content, dict):
        raise InputError(
            f"the config file {path} must be a mapping, as in 'method: fedavg' (found {shown(content)})"
        )
    for key in content:
        if key not in known:
            raise InputError(
                f"the config file {path} has an unknown key {shown(key)}; {_unknown_key(key, known)}"
            )
    options = {key: value for key, value in content.items() if value is not None}
    _load_plugins(options.pop(PLUGINS, []), path)
    for key, value in options.items():
        if key in _WHOLE_OPTIONS and (isinstance(value, bool) or not isinstance(value, int)):
            raise InputError(f"the config file {path}: {key} must be a whole number (found {shown(value)})")
        if key == "data" and isinstance(value, dict):
            options[key] = described(value, path.parent, f"the config file {path}, data")
            continue
        if key == "partition" and partition_file(value) is not None:
            options[key] = str(path.parent / value)
        if key in _KEYS and key not in (*_WHOLE_OPTIONS, *_OTHER_OPTIONS) and not isinstance(value, str):
            raise InputError(f"the config file {path}: {key} must be text (found {shown(value)})")
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
    """Load the plug-ins that a config file names, one or a list."""
    named = [modules] if isinstance(modules, str) else modules
    if not isinstance(named, list) or not all(isinstance(module, str) for module in named):
        raise InputError(
            f"the config file {config}: {PLUGINS} must be a list of Python files and modules, as in "
            "[my_method.py]"
        )
    for module in named:
        load_plugin(config.parent / module if module.endswith(".py") else module)


def _unknown_key(key: object, known: list[str]) -> str:
    """What to say of a key of a config file that is no option."""
    name = key if isinstance(key, str) else ""
    if new_name(name, known) is not None:
        return did_you_mean(name, known)
    meant = SYNONYMS.get(name, name)
    groups = (*GRAPH_GROUPS, *FORECASTING_GROUPS)
    shared = {f.name for group in groups for f in dataclasses.fields(group)}
    if meant in shared - set(known) or home_of(meant):
        return f"{meant} is a setting: write it under 'set:'"
    option = OPTION_WORDS.get(name, meant)
    return f"did you mean {option!r}?" if option in known else did_you_mean(name, known)


def parse_settings(pairs: Iterable[str]) -> dict[str, SettingValue]:
    """``["lr=0.1", "patience=none"]`` -> ``{"lr": 0.1, "patience": None}``.

    Raises InputError for anything without a name or '='."""
    settings: dict[str, SettingValue] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise InputError(f"--set {shown(pair)} cannot be read; write key=value, as in --set lr=0.1")
        if key in settings:
            raise InputError(f"--set {key} is given twice; give it once")
        settings[key] = _parse(text.strip())
    return settings


def _parse(text: str) -> SettingValue:
    """Text as a number, None or, failing these, text. Booleans are left to the setting's own type."""
    if text.lower() in ("none", "null"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# ---- settings ----------------------------------------------------------------------------------------------


def _training_names(method: Method) -> list[str]:
    fields = [f.name for f in dataclasses.fields(method.config) if f.name not in _OPTION_SETTINGS]
    return [*fields, PRESET]


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
) -> tuple[CommonSettings, dict[str, object]]:
    """The method's config, and the settings that are not its own."""
    from pydantic import ValidationError

    names = _training_names(method)
    mine: dict[str, object] = {}
    rest: dict[str, object] = {}
    for key, value in settings.items():
        if key in _OPTION_SETTINGS:
            raise InputError(
                f"{key} is an option of its own, not a setting; give --{key} (in Python: {key}=...)"
            )
        if key not in names and key not in others:
            hint = unknown_setting(key, [*names, *others])
            raise InputError(f"{method.name} has no setting {shown(key)}; {hint}")
        (mine if key in names else rest)[key] = value
    if rounds is not None:
        if mine.get("rounds", rounds) != rounds:
            raise InputError(
                f"rounds is given twice: {rounds} as an option and {mine['rounds']} as a setting; give one"
            )
        mine["rounds"] = rounds
    preset = _one_of(PRESET, mine.pop(PRESET, PRESETS[0]), PRESETS)
    mine = _with_none_named(method, task, mine)
    for key, value in mine.items():
        # pydantic would take True for 1 and lets infinity pass; neither is what anyone means.
        if isinstance(value, bool) and not isinstance(_default(method, key), bool):
            raise InputError(
                f"{key}={value} cannot be used: a number or a name was expected, not a truth value"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key}={value} cannot be used: a finite number was expected")
        limit = MAX_WIDTH if key in ("hidden", "layers", "heads") else MAX_COUNT
        if isinstance(value, int) and abs(value) > limit:
            raise InputError(f"{key}={shown(value)} cannot be used: expected at most {limit}")
    definition = get_task(task)
    if definition.check_settings is not None:
        definition.check_settings(mine)
    try:
        return method.config(**{**definition.settings_of(method, preset), **mine, "seed": seed}), rest
    except ValidationError as error:
        raise InputError(explain(error.errors(include_url=False)[0], method, task)) from None


def _with_none_named(method: Method, task: str, given: Mapping[str, object]) -> dict[str, object]:
    """On the command line `none` is no value; of a setting that has it among its choices it is that one."""
    named = {setting.name for setting in settings_of(method, task) if "none" in setting.choices}
    return {key: "none" if value is None and key in named else value for key, value in given.items()}


def _default(method: Method, key: str) -> object:
    """What the method uses when a setting is not given."""
    return getattr(method.config(**method.defaults), key)


def _prefixed(
    prefix: str, settings: Mapping[str, object], defaults: Mapping[str, SettingValue]
) -> JsonObject:
    """The settings of one prefix, without it, each of its default's type."""
    chosen = {}
    for key, value in settings.items():
        if not key.startswith(prefix):
            continue
        default = defaults[key.removeprefix(prefix)]
        kind = type(default)
        limit = MAX_SEED if key.endswith("seed") else MAX_COUNT
        if isinstance(value, int) and abs(value) > limit:
            raise InputError(f"{key}={shown(value)} cannot be used: expected at most {limit}")
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)  # noqa: PLW2901
        if kind is bool:
            value = _truth(key, value)  # noqa: PLW2901
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(
                f"{key}={shown(value)} cannot be used: expected a value like the default, {default!r}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key}={value} cannot be used: a finite number was expected")
        chosen[key.removeprefix(prefix)] = value
    return chosen


# ---- options -----------------------------------------------------------------------------------------------


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise InputError(f"{key}={shown(value)} cannot be used: a name was expected")
    return value


def _truth(key: str, value: object) -> bool:
    """Yes or no in the words that settings of methods take: true, yes, on, 1 and their opposites."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(bool).validate_python(value)
    except ValidationError:
        raise InputError(f"{key}={shown(value)} cannot be used: expected yes or no") from None


def _folder(key: str, value: object) -> Path | None:
    if value is not None and not isinstance(value, str | os.PathLike):
        raise InputError(f"{key}={shown(value)} cannot be used: the path of a folder was expected")
    return None if value is None else Path(value)


def _integer(key: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise InputError(f"{key}={shown(value)} cannot be used: expected a whole number of at least {least}")
    if value.__index__() > most:
        raise InputError(f"{key}={shown(value)} cannot be used: expected at most {most}")
    return int(value.__index__())


def _seconds(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(f"{key}={shown(value)} cannot be used: expected a number of seconds, at least 0")
    return float(value)


def _one_of(key: str, value: object, choices: tuple[Choice, ...]) -> Choice:
    if value not in choices:
        near = did_you_mean(value.lower()[:60] if isinstance(value, str) else "", choices)
        raise InputError(f"unknown {key} {shown(value)}; {near}")
    return value


def _name_in(key: str, what: str, value: object, table: Collection[str]) -> str:
    """The name in `table` that is meant, in whatever case it is written."""
    name = _text(key, value)
    name = name if name in table else name.lower()
    if name not in table:
        raise InputError(f"unknown {what} {shown(value)}; {did_you_mean(name[:60], table)}")
    return name


@dataclasses.dataclass(frozen=True)
class _Partitioning:
    """A partition by name, to be made, or by file: then with what it was made."""

    name: str
    clients: int | None
    file: Path | None = None
    options: JsonObject = dataclasses.field(default_factory=dict)
    seed: int = 0


def _partitioning(partition: object, clients: object) -> _Partitioning:
    count = None if clients is None else _integer("clients", clients, 1, MAX_COUNT)
    if isinstance(partition, Partition):
        raise InputError(
            "a partition in Python cannot be given, as nobody could find it again; save it, as in "
            "partition.save('sites.safetensors'), and give the path"
        )
    file = partition_file(partition)
    if file is None:
        name = _name_in("partition", "partition", partition, PARTITIONS)
        if count is None and PARTITIONS[name].clients_of is None:
            count = DEFAULT_CLIENTS
        return _Partitioning(name, count)
    recipe = Partition.recipe(file)
    if count not in (None, recipe["num_clients"]):
        raise InputError(
            f"the partition in {file} has {recipe['num_clients']} clients, not {count}; leave the number of "
            "clients out"
        )
    return _Partitioning(recipe["name"], recipe["num_clients"], file, recipe["options"], recipe["seed"])


def partition_file(partition: object) -> Path | None:
    """The file that is meant, None where it is a name: a path has an ending, or a folder (./sites)."""
    if isinstance(partition, os.PathLike):
        return Path(partition)
    if not isinstance(partition, str):
        return None
    path = Path(partition)
    return path if path.suffix or os.sep in partition else None


def _method(method: object) -> Method:
    if method is None:
        raise InputError(
            "no method was named; choose one, as in 'graphfed run fedavg' (see 'graphfed methods')"
        )
    return get_method(_text("method", method))


def _task(task: object, method: Method) -> str:
    """The task that is meant; InputError where there is none of that name, or the method cannot do it."""
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
    """InputError where the data is no such thing as the task is done on."""
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


def _check_partitioning(dealt: _Partitioning, source: DataSource) -> None:
    """InputError where a graph's partition deals sensors, or the sensors' one a graph."""
    kind = "graph" if dealt.file else PARTITIONS[dealt.name].data
    if kind == source.kind:
        return
    what = f"the partition in {dealt.file}" if dealt.file else f"partition {dealt.name!r}"
    if kind == "sensors":
        fault = f"deals readings, a sensor to each client, and {source.name!r} is a graph"
    else:
        fault = f"deals graphs, and {source.name!r} is readings of sensors, which have a client each"
    raise InputError(f"{what} {fault}; leave it out")


def _processes(runtime: Runtime, workers: object, clients: int | None, device: str) -> int | None:
    """How many processes hold the clients, None in the runtime "local"; InputError where separate processes
    cannot hold them."""
    if runtime == "local":
        if workers is not None:
            raise InputError(f"workers={shown(workers)} has no use with runtime {runtime!r}; leave it out")
        return None
    if device != "cpu":
        raise InputError(
            f"runtime {runtime!r} computes on the CPU here, not on {shown(device)}; use runtime 'local'"
        )
    count = clients if workers is None else _integer("workers", workers, 1, MAX_PROCESSES)
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


def checked_threads(threads: object) -> int:
    """A number of threads. InputError for anything else."""
    return _integer("threads", threads, 1, MAX_THREADS)


def checked_device(device: object) -> str:
    """The name of a device that is here. InputError for anything else."""
    import torch

    try:
        found = torch.device(_text("device", device))
    except (RuntimeError, ValueError):
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise InputError(f"unknown device {shown(device)}; use 'cpu', 'cuda' or 'cuda:0'")
    if found.type == "cpu" and found.index is not None:
        raise InputError(
            f"device {shown(device)} cannot be used: there is one 'cpu'; say how much of it with threads"
        )
    if found.type == "cuda":
        index = found.index or 0
        if index >= torch.cuda.device_count():
            raise InputError(
                f"device {device!r} is not here: torch sees {torch.cuda.device_count()} CUDA devices; "
                "use 'cpu'"
            )
    return str(device)
