"""The registry of partitioners, and the function that partitions a graph among clients.

A partitioner is a function `(graph, clients, seed, **options) -> Partition`. A new one is a function in a
module of this package and an entry of PARTITIONS, or it comes from a plug-in (`graphfed.plugins`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from graphfed.data.graphs.graph import Graph
from graphfed.data.partitions.by_label import label_dirichlet, label_skew
from graphfed.data.partitions.by_structure import column, ego, louvain, metis, random
from graphfed.data.partitions.overlapping import edges_uniform, overlapping
from graphfed.data.partitions.tables import Option, Partition, from_assignment
from graphfed.errors import InputError, did_you_mean
from graphfed.plugins import Registry

__all__ = ["PARTITIONS", "Partition", "PartitionSpec", "from_assignment", "partition"]


@dataclass(frozen=True)
class PartitionSpec:
    """A partitioner of graphs (or "sensors"), and the defaults of its options, which also fix their types.

    `clients_of` returns the number of clients for a graph; None if the user chooses it.
    """

    function: Callable[..., Partition]
    options: Mapping[str, Option]
    description: str
    clients_of: Callable[[Graph], int] | None = None
    data: str = "graph"


def _clients_of(graph: Graph) -> int:
    if not graph.names_clients:
        raise InputError(
            f"partition 'column' needs data that states the client of each node, and {graph.name!r} does "
            "not; name the column of clients in the data's description (client: COLUMN), or use another "
            "partition, such as 'random'"
        )
    return len(graph.client_names)


def _refuse_graph(graph: Graph, *_: object) -> NoReturn:
    raise InputError(
        f"partition 'sensors' assigns each sensor's readings to a client, and {graph.name!r} is a graph; use "
        "another partition, such as 'label_dirichlet'"
    )


_INCLUDED: dict[str, PartitionSpec] = {
    "random": PartitionSpec(random, {}, "nodes assigned uniformly; sizes differ by at most one"),
    "label_dirichlet": PartitionSpec(
        label_dirichlet,
        {"beta": 10000.0, "kind": "proportions"},
        "class proportions from a Dirichlet distribution; a small beta is skewed, 10000 is even",
    ),
    "label_skew": PartitionSpec(
        label_skew,
        {"alpha": 0.0, "nodes": "own"},
        "blocks of whole classes; then a fraction alpha of each client's nodes moves to the others",
    ),
    "edges_uniform": PartitionSpec(
        edges_uniform,
        {"nodes": "all", "labels": "all", "edges": "undirected", "overlap": 0.0},
        "edges assigned uniformly, a fraction overlap of them to two clients; clients share nodes",
    ),
    "louvain": PartitionSpec(
        louvain, {}, "communities found by Louvain's algorithm, combined into clients of similar size"
    ),
    "metis": PartitionSpec(
        metis, {}, "clients of equal size with few cross-client edges, by METIS (extra: metis)"
    ),
    "overlapping": PartitionSpec(
        overlapping,
        {"mean": 0.8, "variance": 0.1, "classes": 0, "copies": "many"},
        "every client takes a random fraction of the nodes; copies of a node count as different nodes",
    ),
    "ego": PartitionSpec(ego, {}, "one client for each node", clients_of=lambda graph: graph.num_nodes),
    "column": PartitionSpec(
        column,
        {},
        "the clients that the data states; the default for such data",
        clients_of=_clients_of,
    ),
    "sensors": PartitionSpec(
        _refuse_graph,
        {},
        "one client for each sensor; the only partition of readings",
        clients_of=_refuse_graph,
        data="sensors",
    ),
}
PARTITIONS = Registry("partition", "graphfed.partitions", "PARTITION", _INCLUDED, lambda: PartitionSpec)


def partition(graph: Graph, name: str, clients: int | None, seed: int, **options: Option) -> Partition:
    """Partition a graph among clients. The same arguments give the same partition.

    Args:
        graph: The graph to partition, with N nodes.
        name: The partitioner, a key of PARTITIONS.
        clients: K, from 1 to N. "ego" and "column" determine it; for these give None or that number.
        seed: The seed of the partitioner's draws.
        **options: Options of the partitioner; an option that is not given has its default.

    Returns:
        The partition, with its name, options and seed.

    Raises:
        InputError: The name or an option is unknown, a value has the wrong type or is out of range, or the
            number of clients is not possible.
    """
    if name not in PARTITIONS:
        raise InputError(f"unknown partition {name!r}; {did_you_mean(name, PARTITIONS)}")
    spec = PARTITIONS[name]
    chosen = _options(name, spec.options, options)
    count = _number_of_clients(graph, name, spec, clients)
    result = spec.function(graph, count, seed, **chosen)
    return dataclasses.replace(result, name=name, options=chosen, seed=int(seed))


def _number_of_clients(graph: Graph, name: str, spec: PartitionSpec, clients: int | None) -> int:
    n = graph.num_nodes
    if spec.clients_of is not None:
        fixed = spec.clients_of(graph)
        if clients is not None and clients != fixed:
            raise InputError(
                f"partition {name!r} has {fixed} clients for {graph.name!r}, not {clients}; omit the number "
                "of clients"
            )
        return fixed
    if isinstance(clients, bool) or not hasattr(clients, "__index__"):
        raise InputError(
            f"clients={clients!r} cannot be used; partition {name!r} needs a whole number of at least 1"
        )
    count = clients.__index__()  # type: ignore[union-attr]
    if not 1 <= count <= n:
        raise InputError(
            f"{graph.name!r} has {n} nodes and cannot be partitioned among {count} clients; choose 1 to {n} "
            "clients"
        )
    return count


def _options(name: str, defaults: Mapping[str, Option], given: Mapping[str, Option]) -> dict[str, Option]:
    """Add the defaults to the given options. A value must have its default's type; an int is a float, too."""
    chosen = dict(defaults)
    for key, value in given.items():
        if key not in defaults:
            hint = did_you_mean(key, defaults) if defaults else "it has no options"
            raise InputError(f"partition {name!r} has no option {key!r}; {hint}")
        kind = type(defaults[key])
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)  # noqa: PLW2901
        # Python counts True as an int, and it would become 1.0 without notice.
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(
                f"option {key}={value!r} of partition {name!r} must have type {kind.__name__}, "
                f"like its default {defaults[key]!r}"
            )
        chosen[key] = value
    return chosen
