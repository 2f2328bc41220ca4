"""Partitions that a program gives as an object or as the client of each node.

They become files, because a run names its partition by a file and keeps a copy of it in its folder.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graphfed.data.graphs.degree_features import with_degree_features
from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.partition import Partition, from_assignment
from graphfed.errors import InputError, shown
from graphfed.tasks.source import data_source, load_data


def with_partition_file(options: Mapping[str, Any]) -> dict[str, Any]:
    """Replace a partition among the options of a run that is an object or an array by a file of it.

    Raises InputError if an array does not have the client of each node.
    """
    given = options.get("partition")
    if isinstance(given, Partition):
        return {**options, "partition": _saved(given)}
    if not (hasattr(given, "__array__") or isinstance(given, list | tuple)):
        return dict(options)
    if options.get("data") is None:
        raise InputError("a partition with the client of each node needs data; name it, as in data='cora'")
    source = data_source(options["data"])
    settings = {**(options.get("settings") or {})}
    of_data = {
        key.removeprefix("data."): value for key, value in settings.items() if str(key).startswith("data.")
    }
    graph = load_data(source.value, options.get("data_dir"), of_data)
    if not isinstance(graph, Graph):
        raise InputError(
            f"partition={shown(given)} assigns nodes, and {source.name!r} holds sensors; leave it out"
        )
    # Node classification partitions the graph with these features.
    graph = with_degree_features(graph)
    return {**options, "data": source, "partition": _saved(from_assignment(graph, _numbers(given)))}


def _numbers(given: Any) -> Any:
    import numpy as np

    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"partition of type {type(given).__name__} cannot be read as an array ({error}); give the client "
            "of each node, whole numbers [N]"
        ) from None


def _saved(partition: Partition) -> Path:
    """Write a partition to a file that exists until this process ends."""
    path = Path(_folder().name) / f"{partition.hash}.safetensors"
    if not path.exists():
        partition.save(path)
    return path


@cache
def _folder() -> "TemporaryDirectory[str]":
    """Make the folder of the files, which Python removes at the end of the process."""
    return TemporaryDirectory(prefix="graphfed-")
