"""The data that a user gives to a run, and how a manifest names it."""

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from graphfed.data.datasets import DATASETS, DatasetSpec, load
from graphfed.data.graphs.graph import Graph
from graphfed.data.sensors.series import Sensors
from graphfed.data.user_files.frames import as_files, has_frames, is_frame
from graphfed.data.user_files.graph_description import Description, describe, read_description
from graphfed.data.user_files.graph_files import (
    FILES,
    from_networkx,
    load_description,
    read_graph_file,
)
from graphfed.data.user_files.library_sets import LIBRARIES, LibrarySet, library_set, load_library_set
from graphfed.data.user_files.other_formats import require_ending
from graphfed.data.user_files.pyg_files import from_pyg, from_pyg_clients
from graphfed.data.user_files.sensor_description import SensorDescription, describe_sensors, describes_sensors
from graphfed.data.user_files.sensor_files import load_sensors
from graphfed.data.user_files.table_files import TABLES
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.tasks import FORECASTING

#: The name of a data set, loaded data, or what describes data that is not loaded yet.
Data: TypeAlias = str | Graph | Description | LibrarySet | Sensors | SensorDescription
#: Loaded data sets that are kept between runs, by their names, folders and options.
LoadedData: TypeAlias = dict[Hashable, Graph | Sensors]


@dataclass(frozen=True, eq=False)
class DataSource:
    """Data that a user gave, loaded or not.

    Attributes:
        value: The name of a data set, a graph or sensors, a description of the files of either, or the name
            of a data set of PyG or OGB.
        source: A name, a path or a description that identifies the data in JSON; None for a Python object.
        dropped: Descriptions of keys of the description's file that are not used.
    """

    value: Data
    source: str | JsonObject | None
    dropped: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.value if isinstance(self.value, str) else self.value.name

    @property
    def kind(self) -> str:
        """The kind of the data, "graph" or "sensors" (`tasks.kind.DataKind`)."""
        if isinstance(self.value, str):
            return "sensors" if DATASETS[self.value].task == FORECASTING else "graph"
        return "sensors" if isinstance(self.value, Sensors | SensorDescription) else "graph"

    @property
    def default_partition(self) -> str:
        """The default partitioner: "sensors" for sensors, "column" for a graph that states clients, else
        "label_dirichlet".
        """
        if self.kind == "sensors":
            return "sensors"
        value = DATASETS[self.value] if isinstance(self.value, str) else self.value
        names_clients = isinstance(value, DatasetSpec | Graph | Description) and value.names_clients
        return "column" if names_clients else "label_dirichlet"

    @property
    def num_clients(self) -> int | None:
        """The number of clients that the data states; None if it is not known before loading."""
        if isinstance(self.value, Description):
            return len(self.value.clients) or None
        return len(self.value.client_names) or None if isinstance(self.value, Graph) else None


def data_source(data: object) -> DataSource:
    """Identify the data that a user gave. Described files and named data sets are not loaded yet.

    It is the name of a data set, of graphfed, PyG ("pyg:Amazon/Photo") or OGB ("ogb:ogbn-arxiv"); the path of
    a file (.yaml for a description, .pt for a PyG `Data`, .graphml); a description as a mapping, perhaps with
    DataFrames in the place of files, or nodes, edges and such a mapping as a tuple; a `Graph`, a PyG `Data`,
    a list of them or a mapping with one for each client, a networkx graph or `Sensors`.

    Raises InputError if the argument is none of these, or a file cannot be used.
    """
    if isinstance(data, DataSource):
        return data
    if isinstance(data, str | os.PathLike):
        return _named(data)
    if isinstance(data, tuple) and len(data) in (2, 3) and all(map(is_frame, data[:2])):
        nodes, edges, *more = data
        data = {"nodes": nodes, "edges": edges, **(more[0] if more else {})}
    if (clients := _data_of_clients(data)) is not None:
        return DataSource(from_pyg_clients(list(clients.values()), list(clients)), None)
    if isinstance(data, Mapping) and has_frames(data):
        with as_files(data) as content:
            return DataSource(load_data(described(content, Path(), "the data's description")), None)
    if isinstance(data, Mapping):
        # Relative paths of a description that is in no file refer to the working folder.
        data = described(data, Path(), "the data's description")
    if isinstance(data, Description | SensorDescription):
        return DataSource(data, data.to_json())
    return DataSource(data if isinstance(data, Sensors) else _graph(data), None)


def _data_of_clients(data: object) -> dict[str, Any] | None:
    """Return a PyG `Data` for each client by its name; None if the data is none of these."""
    if isinstance(data, list | tuple):
        data = {str(number): graph for number, graph in enumerate(data)}
    if not isinstance(data, Mapping) or not data:
        return None
    graphs = {str(name): graph for name, graph in data.items()}
    return graphs if all(hasattr(graph, "edge_index") for graph in graphs.values()) else None


def load_data(
    data: Data,
    data_dir: str | Path | None = None,
    options: JsonObject | None = None,
) -> Graph | Sensors:
    """Load the value of a source; `options` are those of a generated data set.

    Raises InputError if a file cannot be used, or the data does not fit into memory.
    """
    options = options or {}
    try:
        if isinstance(data, str):
            return load(data, data_dir, **options)
        if isinstance(data, Description):
            return load_description(data)
        if isinstance(data, LibrarySet):
            return load_library_set(data, data_dir)
        return load_sensors(data) if isinstance(data, SensorDescription) else data
    except MemoryError:
        name = data if isinstance(data, str) else data.name
        given = "".join(f", data.{key}={value}" for key, value in options.items())
        raise InputError(f"data {name!r} does not fit into memory{given}") from None


def described(content: Any, folder: Path, origin: str) -> Description | SensorDescription:
    """Check a description, the content of a YAML file: of sensors if its keys are those, else of a graph.

    Relative paths refer to `folder`, and `origin` is the name of the description in messages.
    """
    if describes_sensors(content):
        return describe_sensors(content, folder, origin)
    return describe(content, folder, origin)


def _graph(data: object) -> Graph:
    if isinstance(data, Graph):
        return data
    if hasattr(data, "edge_index"):
        return from_pyg(data)
    if hasattr(data, "nodes") and hasattr(data, "edges"):
        return from_networkx(data)
    raise InputError(
        f"data of type {type(data).__name__} cannot be used; give the name of a data set, the path of a "
        "description, a graphfed Graph or Sensors, a PyG Data or a list of them (one for each client), a "
        "networkx graph, or the DataFrames (nodes, edges)"
    )


def _named(name: str | os.PathLike[str]) -> DataSource:
    """Identify a data set or a file by its name. A name without ending and folder must be a data set."""
    path = Path(name)
    if isinstance(name, str) and name.startswith(LIBRARIES):
        return DataSource(library_set(name), name)
    # First, so that a file of the same name in the working folder changes nothing.
    if isinstance(name, str) and name.lower() in DATASETS:
        return DataSource(name.lower(), name.lower())
    ending = path.suffix.lower()
    if ending in (".yaml", ".yml"):
        content, unread = read_description(path)
        description = described(content, path.parent, f"the data's description {path}")
        return DataSource(description, description.to_json(), unread)
    if ending in FILES:
        return DataSource(read_graph_file(path), str(path.resolve()))
    if path.name.lower().endswith(TABLES):
        raise InputError(
            f"data {shown(str(path))} is one table, and a graph needs two tables; name them in a YAML file, "
            "as in 'nodes: nodes.csv' and 'edges: edges.csv' (for sensors: 'readings: speeds.csv' and "
            "'distances: distances.csv'), and give the YAML file"
        )
    if os.path.isdir(path):  # pathlib's is_dir raises if a parent folder cannot be read
        raise InputError(
            f"data {shown(str(path))} is a folder; name a file in it ({', '.join(FILES)}), or a data set: "
            f"{did_you_mean(path.name, DATASETS)}"
        )
    if os.path.isfile(path):
        # It refuses every file that gets here, and says how to convert it.
        require_ending(path, FILES, "graph")
    if path.suffix or len(path.parts) > 1:
        raise InputError(
            f"data {shown(str(path))} is neither a file that can be read ({', '.join(FILES)}) nor a data "
            f"set; {did_you_mean(path.name, DATASETS)}"
        )
    raise InputError(f"unknown data set {shown(str(name))}; {did_you_mean(str(name), DATASETS)}")
