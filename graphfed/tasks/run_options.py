"""The options of a run, with their types and defaults: the one list of them.

The keys of a config file, the options of the command line and `runs.config.make_config` come from it.
tests/runs/test_options.py holds the signatures of `graphfed.run` and of the other functions equal to it.
Nothing here loads torch: the command line imports it before it knows what it is asked to do.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Literal, TypeAlias

__all__ = ["DEFAULT_CLIENTS", "OPTIONS", "Placement", "RunOptions", "Runtime", "SettingValue"]

Runtime = Literal["local", "processes", "nvflare"]
Placement = Literal["stacked", "one-at-a-time"]

#: A value of a setting.
SettingValue: TypeAlias = str | int | float | bool | None

#: The number of clients where neither the user nor the partition decides it.
DEFAULT_CLIENTS = 10


@dataclass(frozen=True)
class RunOptions:
    """What a run is asked to do. Nothing is checked yet.

    Attributes:
        method: The name of the method. None is refused: a run needs one.
        task: None for the first task of the method.
        data: What `tasks.source.data_source` takes, or returned; None for "digits", of forecasting "roads".
        clients: None for `DEFAULT_CLIENTS`, or as many as the partition fixes.
        partition: A name, or the file of a saved one; None for the clients that the data names, else the
            method's own.
        rounds: None for the method's own number.
        seed: Of weights, samples, partition and split.
        split: How nodes, edges or windows are split into training, validation and test.
        runtime: One of `Runtime`.
        workers: Processes that hold the clients in the runtimes "processes" and "nvflare"; None for one each.
        placement: One of `Placement`.
        device: A device of torch.
        threads: None for one on a small graph and every core on a large one; with separate processes those of
            each process, None for one.
        data_dir: The folder to look for data files in first.
        checkpoint_every: Seconds between two checkpoints.
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


#: The names of the options. The settings are not among them: the command line and config files call them
#: ``set``.
OPTIONS = tuple(field.name for field in fields(RunOptions) if field.name != "settings")
