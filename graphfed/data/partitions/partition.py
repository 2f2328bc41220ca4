"""Partitions of a graph over clients: the registry and the one entry point.

A recipe is a function `recipe(graph, clients, seed, **options) -> Partition`; a new one is a function in one
of the recipe modules and a row in PARTITIONS, or a plug-in's (`graphfed.plugins`).
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
    """One way to deal a graph. `options` maps each option to its default, which also fixes its type;
    `clients_of` says how many clients a graph has where the recipe leaves no choice; `data` is the kind that
    it deals, "graph" or "sensors"."""

    function: Callable[..., Partition]
    options: Mapping[str, Option]
    description: str
    clients_of: Callable[[Graph], int] | None = None
    data: str = "graph"


def _clients_of(graph: Graph) -> int:
    if not graph.names_clients:
        raise InputError(
            f"partition 'column' needs a column of clients, and {graph.name!r} has none; name it in the "
            f"data's "
            "description (client: ...), or deal the graph with another partition, as 'random'"
        )
    return len(graph.client_names)


def _of_no_graph(graph: Graph, *_: object) -> NoReturn:
    raise InputError(
        f"partition 'sensors' deals readings, a sensor to each client, and {graph.name!r} is a graph; use "
        "another one, as 'label_dirichlet'"
    )


_OWN: dict[str, PartitionSpec] = {
    "random": PartitionSpec(random, {}, "nodes dealt uniformly; sizes differ by at most one"),
    "label_dirichlet": PartitionSpec(
        label_dirichlet,
        {"beta": 10000.0, "kind": "proportions"},
        "class shares drawn from a Dirichlet distribution: small beta is skewed, 10000 is even",
    ),
    "label_skew": PartitionSpec(
        label_skew,
        {"alpha": 0.0, "nodes": "own"},
        "blocks of whole classes, then a fraction alpha spread over the other clients",
    ),
    "edges_uniform": PartitionSpec(
        edges_uniform,
        {"nodes": "all", "labels": "all", "overlap": 0.0},
        "edges dealt uniformly, a fraction overlap of them to two clients; nodes and labels are shared",
    ),
    "louvain": PartitionSpec(
        louvain, {}, "communities found by Louvain, packed into clients of similar size"
    ),
    "metis": PartitionSpec(metis, {}, "few edges between clients of equal size, by METIS (extra: metis)"),
    "overlapping": PartitionSpec(
        overlapping,
        {"mean": 0.8, "variance": 0.1, "classes": 0, "copies": "many"},
        "every client takes a random fraction of the nodes; copies count as different nodes",
    ),
    "ego": PartitionSpec(ego, {}, "one client for each node", clients_of=lambda graph: graph.num_nodes),
    "column": PartitionSpec(
        column,
        {},
        "the clients that the data itself names: the default where it does",
        clients_of=_clients_of,
    ),
    "sensors": PartitionSpec(
        _of_no_graph,
        {},
        "one client for each sensor: readings are dealt in no other way",
        clients_of=_of_no_graph,
        data="sensors",
    ),
}
PARTITIONS = Registry("partition", "graphfed.partitions", "PARTITION", _OWN, lambda: PartitionSpec)


def partition(graph: Graph, name: str, clients: int | None, seed: int, **options: Option) -> Partition:
    """Deal `graph` over `clients` clients by the recipe `name` (see PARTITIONS). Same seed, same deal.

    clients: K, 1..N; None or the only number there is for "ego" and "column". options: of the recipe, checked
    against its defaults.
    Raises InputError for an unknown name or option, a value of the wrong type or range, or an impossible K.
    """
    if name not in PARTITIONS:
        raise InputError(f"unknown partition {name!r}; {did_you_mean(name, PARTITIONS)}")
    spec = PARTITIONS[name]
    chosen = _options(name, spec.options, options)
    count = _clients(graph, name, spec, clients)
    made = spec.function(graph, count, seed, **chosen)
    return dataclasses.replace(made, name=name, options=chosen, seed=int(seed))


def _clients(graph: Graph, name: str, spec: PartitionSpec, clients: int | None) -> int:
    n = graph.num_nodes
    if spec.clients_of is not None:
        fixed = spec.clients_of(graph)
        if clients is not None and clients != fixed:
            raise InputError(
                f"partition {name!r} has {fixed} clients for {graph.name!r}, not {clients}; leave the number "
                "of clients out"
            )
        return fixed
    if isinstance(clients, bool) or not hasattr(clients, "__index__"):
        raise InputError(
            f"clients {clients!r} cannot be used; partition {name!r} needs a whole number, at least 1"
        )
    count = clients.__index__()  # type: ignore[union-attr]
    if not 1 <= count <= n:
        raise InputError(
            f"{count} clients cannot share {graph.name!r}, which has {n} nodes; choose 1 to {n} clients"
        )
    return count


def _options(name: str, defaults: Mapping[str, Option], given: Mapping[str, Option]) -> dict[str, Option]:
    """The recipe's options with the given values, each of its default's type (an int does for a float)."""
    chosen = dict(defaults)
    for key, value in given.items():
        if key not in defaults:
            hint = did_you_mean(key, defaults) if defaults else "it has no options"
            raise InputError(f"partition {name!r} has no option {key!r}; {hint}")
        kind = type(defaults[key])
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)  # noqa: PLW2901
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(
                f"option {key}={value!r} of partition {name!r} must be of type {kind.__name__}, "
                f"as its default {defaults[key]!r}"
            )
        chosen[key] = value
    return chosen
