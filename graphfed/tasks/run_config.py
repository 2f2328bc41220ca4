"""One run as it was asked for: every choice made and checked (`runs.config` makes it)."""

import dataclasses
import os
from pathlib import Path

from graphfed.data.datasets import DATASETS
from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.partition import PARTITIONS
from graphfed.data.sensors.series import Sensors
from graphfed.data.user_files.graph_description import Description
from graphfed.data.user_files.sensor_description import SensorDescription
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.methods.base import Method
from graphfed.methods.config import CommonSettings
from graphfed.methods.registry import METHODS
from graphfed.plugins import Plugin
from graphfed.tasks.run_options import OPTIONS, Placement, Runtime
from graphfed.tasks.source import DataSource

__all__ = ["MANY_ENTRIES", "RunConfig", "default_threads", "no_stages", "threads_for"]


@dataclasses.dataclass(frozen=True, eq=False)
class RunConfig:
    """One run, every choice made and checked.

    clients: None only where the partition fixes it and the data must be read to know it (one per node).
    partition_file: where the partition is saved, None where it is made; partition, its options and seed are
    then those it was made with. workers: processes of clients in the runtimes "processes" and "nvflare", None
    in "local"."""

    method: Method
    task: str
    data: str | Graph | Description | Sensors | SensorDescription
    data_source: DataSource
    data_options: JsonObject
    data_dir: Path | None
    clients: int | None
    partition: str
    partition_options: JsonObject
    partition_seed: int
    partition_file: Path | None
    split: str
    split_seed: int
    seed: int
    runtime: Runtime
    workers: int | None
    placement: Placement
    device: str
    threads: int | None
    checkpoint_every: float
    training: CommonSettings

    @property
    def client_threads(self) -> int:
        """Threads that each process computes with, where there are several: one, unless a number was
        given."""
        return 1 if self.threads is None else self.threads

    @property
    def data_name(self) -> str:
        """The name of the data set."""
        return self.data_source.name

    @property
    def plugins(self) -> list[Plugin]:
        """The plug-ins that the method, the data set and the partition come from."""
        found = [METHODS.plugin(self.method.name)]
        found += [DATASETS.plugin(self.data)] if isinstance(self.data, str) else []
        found += [PARTITIONS.plugin(self.partition)] if self.partition_file is None else []
        return list(dict.fromkeys(plugin for plugin in found if plugin is not None))

    def to_json(self) -> JsonObject:
        """The whole config as plain data, for manifest.json."""
        plugins = [plugin.to_json() for plugin in self.plugins]
        return {
            **({"plugins": plugins} if plugins else {}),
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "method": self.method.name,
            "data": self.data_name,
            "data_source": self.data_source.source,
            "data_dir": None if self.data_dir is None else str(self.data_dir.resolve()),
            "partition_file": None if self.partition_file is None else str(self.partition_file.resolve()),
            "training": dataclasses.asdict(self.training),
        }

    def to_options(self) -> JsonObject:
        """Return the run as the options of a config file, which `runs.config.read_config` reads.

        Returns:
            Every choice under the name of its option, and the settings under ``set``. What has no value is
            left out of the options; a setting without a value is None.

        Raises:
            InputError: The data is an object in Python, which no file can name.
        """
        if self.data_source.source is None:
            raise InputError(
                f"data {self.data_name!r} is an object in Python, which a config file cannot name; "
                "give the name of a data set or the path of a description"
            )
        settings = dataclasses.asdict(self.training)
        del settings["seed"]
        known = {**self.to_json(), "data": self.data_source.source, "rounds": settings.pop("rounds")}
        options = {
            "plugins": [plugin.given for plugin in self.plugins if plugin.given] or None,
            **{name: known[name] for name in OPTIONS},
        }
        settings["split_seed"] = self.split_seed
        if self.partition_file is None:
            settings["partition_seed"] = self.partition_seed
            settings |= {f"partition.{key}": value for key, value in self.partition_options.items()}
        else:
            options["partition"] = str(self.partition_file.resolve())
        settings |= {f"data.{key}": value for key, value in self.data_options.items()}
        return {key: value for key, value in options.items() if value is not None} | {"set": settings}


#: Stored features and edge ends, or readings in windows, from which a second thread pays: below, waiting for
#: each other costs more.
MANY_ENTRIES = 1_000_000


def default_threads(graph: Graph) -> int:
    """One thread for a small graph, every core this process may use for a large one."""
    stored = getattr(graph.x, "nnz", None)
    entries = (stored if stored is not None else graph.num_nodes * graph.num_features) + 2 * graph.num_edges
    return threads_for(entries)


def threads_for(entries: int) -> int:
    """Threads for an epoch over so many numbers."""
    if entries < MANY_ENTRIES:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def no_stages(stage: str) -> None:
    """Report nothing: where nobody watches."""
