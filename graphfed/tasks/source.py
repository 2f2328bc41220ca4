"""What a run trains on: what a user may give as data, and how a manifest names it again."""

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from graphfed.data.datasets import DATASETS, load
from graphfed.data.graphs.graph import Graph, from_pyg
from graphfed.data.sensors.series import Sensors
from graphfed.data.user_files.graph_description import Description, describe, read_description
from graphfed.data.user_files.graph_files import FILES, from_networkx, read_graph_file
from graphfed.data.user_files.sensor_description import SensorDescription, describe_sensors, describes_sensors
from graphfed.data.user_files.sensor_files import load_sensors
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.tasks import FORECASTING

__all__ = ["DataSource", "LoadedData", "data_source", "described", "sensors_of"]

#: Data sets that are kept between runs, by their names, folders and options.
LoadedData: TypeAlias = dict[Hashable, Graph | Sensors]


@dataclass(frozen=True, eq=False)
class DataSource:
    """Data, named or in hand.

    value: a data set's name, a graph or sensors, or the description of files of either; source: how to name
    it again in plain JSON (a name, a path, a description), None for an object in Python; dropped: a phrase
    for what the file that describes it has besides."""

    value: str | Graph | Description | Sensors | SensorDescription
    source: str | JsonObject | None
    dropped: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people."""
        return self.value if isinstance(self.value, str) else self.value.name

    @property
    def kind(self) -> str:
        """What it is: "graph" or "sensors" (`DataKind.name`)."""
        if isinstance(self.value, str):
            return "sensors" if DATASETS[self.value].task == FORECASTING else "graph"
        return "sensors" if isinstance(self.value, Sensors | SensorDescription) else "graph"

    @property
    def default_partition(self) -> str:
        """A client for each sensor; of a graph the clients that the data names, else an even deal."""
        if self.kind == "sensors":
            return "sensors"
        named = isinstance(self.value, Graph | Description) and self.value.names_clients
        return "column" if named else "label_dirichlet"

    @property
    def num_clients(self) -> int | None:
        """How many clients the data names, None where it names none or only reading it will tell."""
        if isinstance(self.value, Description):
            return len(self.value.clients) or None
        return len(self.value.client_names) or None if isinstance(self.value, Graph) else None


def data_source(data: object) -> DataSource:
    """What a user gave: the name of a data set, the path of a file (.yaml: a description of one's own files,
    .pt: a PyG `Data`, .graphml), a description as a mapping, a `Graph`, a PyG `Data`, a networkx graph or
    `Sensors`.

    Raises InputError for anything else, and for a file that cannot be used."""
    if isinstance(data, DataSource):
        return data
    if isinstance(data, str | os.PathLike):
        return _named(data)
    if isinstance(data, Mapping):
        data = described(data, Path(), "the data's description")
    if isinstance(data, Description | SensorDescription):
        return DataSource(data, data.to_json())
    return DataSource(data if isinstance(data, Sensors) else _graph(data), None)


def sensors_of(
    source: DataSource, data_dir: str | Path | None = None, options: JsonObject | None = None
) -> Sensors:
    """The sensors of a source of that kind. options: of a generated set.

    Raises InputError for files that cannot be used, and data that do not fit into memory."""
    loaded: object = source.value
    options = options or {}
    try:
        if isinstance(source.value, str):
            loaded = load(source.value, data_dir, **options)
        elif isinstance(source.value, SensorDescription):
            loaded = load_sensors(source.value)
    except MemoryError:
        given = "".join(f", data.{key}={value}" for key, value in options.items())
        raise InputError(f"data {source.name!r} does not fit into memory{given}") from None
    assert isinstance(loaded, Sensors), "the kind is looked at before the data is loaded"
    return loaded


def described(content: Any, folder: Path, origin: str) -> Description | SensorDescription:
    """The description in a mapping: of sensors, where its keys are of those, else of a graph."""
    if describes_sensors(content):
        return describe_sensors(content, folder, origin)
    return describe(content, folder, origin)


def _graph(data: object) -> Graph:
    """The graph in a Python object."""
    if isinstance(data, Graph):
        return data
    if hasattr(data, "edge_index"):
        return from_pyg(data)
    if hasattr(data, "nodes") and hasattr(data, "edges"):
        return from_networkx(data)
    raise InputError(
        f"data of type {type(data).__name__} cannot be used; give the name of a data set, the path of a "
        "description, a graphfed Graph or Sensors, a PyG Data or a networkx graph"
    )


def _named(name: str | os.PathLike[str]) -> DataSource:
    """A data set, or a file; what has no ending and no folder must be a data set."""
    path = Path(name)
    if isinstance(name, str) and name.lower() in DATASETS:
        return DataSource(name.lower(), name.lower())
    if path.suffix in (".yaml", ".yml"):
        content, unread = read_description(path)
        description = described(content, path.parent, f"the data's description {path}")
        return DataSource(description, description.to_json(), unread)
    if path.suffix in FILES:
        return DataSource(read_graph_file(path), str(path.resolve()))
    if path.suffix in (".csv", ".tsv", ".parquet"):
        raise InputError(
            f"data {shown(str(path))} is one table, and a graph needs two; name them in a YAML file, as in "
            "'nodes: nodes.csv' and 'edges: edges.csv' (or, of sensors, 'readings: speeds.csv' and "
            "'distances: distances.csv'), and give that file"
        )
    if os.path.isdir(path):  # pathlib raises where a folder above may not be looked into
        raise InputError(
            f"data {shown(str(path))} is a folder; name a file in it ({', '.join(FILES)}), or a data set: "
            f"{did_you_mean(path.name, DATASETS)}"
        )
    if path.suffix or len(path.parts) > 1:
        raise InputError(
            f"data {shown(str(path))} is no file that can be read ({', '.join(FILES)}) and no data set; "
            f"{did_you_mean(path.name, DATASETS)}"
        )
    raise InputError(f"unknown data set {shown(str(name))}; {did_you_mean(str(name), DATASETS)}")
