"""The options of a run with their types and defaults, in one list.

The keys of a config file, the options of the command line and the arguments of `runs.config.make_config` come
from this list. tests/runs/test_options.py checks that `graphfed.run` and similar functions have the same
signature. This module does not import torch, because every command imports it.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Literal, TypeAlias

Runtime = Literal["local", "processes", "nvflare"]
Placement = Literal["stacked", "one-at-a-time"]

#: A value of a setting.
SettingValue: TypeAlias = str | int | float | bool | None

#: The number of clients if neither the user nor the partition determines it.
DEFAULT_CLIENTS = 10


@dataclass(frozen=True)
class RunOptions:
    """The options of a run as the user gives them, before they are checked.

    Attributes:
        method: The name of the method. A run without a method is refused.
        task: The name of the task; None for the method's first task.
        data: An argument or a result of `tasks.source.data_source`; None for "digits", or "roads" in
            forecasting.
        clients: The number of clients; None for `DEFAULT_CLIENTS`, or the number that the partition
            determines.
        partition: The name of a partitioner, or the file of a saved partition; None for the clients that the
            data states, if any, else for the method's default.
        rounds: The number of rounds; None for the method's default.
        seed: The seed of weights, samples, partition and split.
        split: The split of nodes, edges or windows into training, validation and test.
        workers: The number of processes that hold clients in the runtimes "processes" and "nvflare"; None for
            one process per client.
        threads: The number of threads, with several processes that of each process. None for one thread per
            process, or, with one process and a large graph, for all cores.
        data_dir: The folder that is searched for data files first.
        checkpoint_every: The seconds between two checkpoints.
        settings: Settings of the method, the partition and the data, by key.
    """

    method: str | None
    _: KW_ONLY
    task: str | None = None
    data: object = None
    clients: int | None = None
    partition: str | Path | None = None
    rounds: int | None = None
    seed: int = 0
    split: str = "default"
    runtime: str = "local"
    workers: int | None = None
    placement: str = "stacked"
    device: str = "cpu"
    threads: int | None = None
    data_dir: str | Path | None = None
    checkpoint_every: float = 30.0
    settings: Mapping[str, object] | None = None


#: The names of the options, without `settings`, whose name on the command line and in config files is
#: ``set``.
OPTIONS = tuple(field.name for field in fields(RunOptions) if field.name != "settings")
