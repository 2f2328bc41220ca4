"""The checked configuration of a run, which `runs.config` builds from the user's options."""

import dataclasses
from pathlib import Path
from typing import Any

from graphfed.data.datasets import DATASETS
from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.partition import PARTITIONS
from graphfed.errors import InputError
from graphfed.files import JsonObject
from graphfed.memory import usable_cores
from graphfed.methods.base import Method
from graphfed.methods.registry import plugins_of
from graphfed.plugins import Plugin
from graphfed.tasks.run_options import OPTIONS, CommonOptions
from graphfed.tasks.source import Data, DataSource


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RunConfig(CommonOptions):
    """The configuration of a run, with all options chosen and checked.

    Attributes:
        data: The name of a data set, or a graph, sensors, or their description.
        data_dir: The folder that is searched for data files first.
        clients: The number of clients; None if it follows from data that is not loaded yet.
        partition_file: The file of a saved partition; None if the partition is computed. The three attributes
            above then have the values in the file.
        workers: The number of processes that hold clients in the runtimes "processes" and "nvflare"; None in
            the runtime "local".
    """

    method: Method
    task: str
    data: Data
    data_source: DataSource
    data_options: JsonObject
    data_dir: Path | None
    clients: int | None
    partition: str
    partition_options: JsonObject
    partition_seed: int
    partition_file: Path | None
    split_seed: int
    settings: Any

    @property
    def client_threads(self) -> int:
        """The number of threads of each process if there are several processes: one by default."""
        return 1 if self.threads is None else self.threads

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return int(self.settings.run.rounds)

    @property
    def data_name(self) -> str:
        """The name of the data set."""
        return self.data_source.name

    @property
    def plugins(self) -> list[Plugin]:
        """The plug-ins that provide the method, its rule, the data set or the partitioner."""
        plugins = plugins_of(self.method, self.settings)
        others = [DATASETS.plugin(self.data)] if isinstance(self.data, str) else []
        # A saved partition needs no partitioner.
        others += [PARTITIONS.plugin(self.partition)] if self.partition_file is None else []
        # One plug-in may provide several of them.
        return list(dict.fromkeys([*plugins, *(plugin for plugin in others if plugin is not None)]))

    def to_json(self) -> JsonObject:
        """Convert the whole config to JSON, for manifest.json."""
        plugins = [plugin.to_json() for plugin in self.plugins]
        return {
            **({"plugins": plugins} if plugins else {}),
            # All fields, of which those below are replaced by what identifies an object in JSON.
            **{f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "settings"},
            "method": self.method.name,
            "data": self.data_name,
            "data_source": self.data_source.source,
            "data_dir": None if self.data_dir is None else str(self.data_dir.resolve()),
            "partition_file": None if self.partition_file is None else str(self.partition_file.resolve()),
            "training": self.method.tree.listed(self.settings),
        }

    def to_options(self) -> JsonObject:
        """Convert the run to the options of a config file, which `runs.config.read_config` reads.

        Returns:
            Every option by its name, and the settings under ``set``. An option without a value is omitted; a
            setting without a value is None.
        """
        if self.data_source.source is None:
            raise InputError(
                f"data {self.data_name!r} is a Python object, which a config file cannot name; give the name "
                "of a data set or the path of a description"
            )
        settings = self.method.tree.listed(self.settings)
        # Seed and rounds are options of their own, next to `set`.
        del settings["seed"]
        known = {**self.to_json(), "data": self.data_source.source, "rounds": settings.pop("rounds")}
        options = {
            "plugins": [plugin.given for plugin in self.plugins if plugin.given] or None,
            **{name: known[name] for name in OPTIONS},
        }
        # The keys under `set` that are no settings of the method.
        settings["split_seed"] = self.split_seed
        if self.partition_file is None:
            settings["partition_seed"] = self.partition_seed
            settings |= {f"partition.{key}": value for key, value in self.partition_options.items()}
        else:
            # The file states the options and the seed of the partition.
            options["partition"] = str(self.partition_file.resolve())
        settings |= {f"data.{key}": value for key, value in self.data_options.items()}
        return {key: value for key, value in options.items() if value is not None} | {"set": settings}


#: The number of stored features and endpoints of edges, or of readings in windows, from which several threads
#: are faster. For less data, the synchronisation of threads takes longer than they save.
MANY_ENTRIES = 1_000_000


def default_threads(graph: Graph) -> int:
    """Choose the number of threads for a graph: 1 if it is small, else the number of available cores."""
    stored = getattr(graph.x, "nnz", None)
    entries = (stored if stored is not None else graph.num_nodes * graph.num_features) + 2 * graph.num_edges
    return threads_for(entries)


def threads_for(entries: int) -> int:
    """Choose the number of threads for an epoch of so many entries; 1 for less than `MANY_ENTRIES`."""
    if entries < MANY_ENTRIES:
        return 1
    return usable_cores()


def no_stages(stage: str) -> None:
    """Ignore the start of a stage; the default of `on_stage`."""
