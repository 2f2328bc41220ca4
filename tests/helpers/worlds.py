"""Small federations for the laws: a graph that is partitioned among clients, and a run in any placement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.data.graphs.directed import make_directed
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.data.partitions.tables import Partition
from graphfed.federation import Federation, Ledger
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.federation.link import Message, Pair
from graphfed.methods.base import Method, Task
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.methods.settings import only_those, values
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.runs.processes import train_in_processes
from graphfed.runs.train import train
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.runtime.processes import Workers
from graphfed.tasks.node_classification import NodeInputs
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import default_settings

NUM_CLASSES = 3


@dataclass(frozen=True)
class World:
    """A graph, its split and its partition."""

    graph: Graph
    split: Split
    partition: Partition

    @property
    def clients(self) -> int:
        return self.partition.num_clients

    @property
    def task(self) -> Task:
        return NodeInputs(self.graph, self.split, self.partition).task(CLASSIFICATION)


def make_world(
    seed: int = 0, *, clients: int = 3, nodes: int = 60, sparse: bool = True, assignment: Any = None
) -> World:
    """A random graph with classes that show in features and edges, and a few isolated nodes."""
    import scipy.sparse as sp

    rng = np.random.default_rng(seed)
    y = rng.integers(0, NUM_CLASSES, nodes)
    ends = rng.integers(0, nodes - 4, (2, 4 * nodes))  # the last four nodes have no edge
    kept = (y[ends[0]] == y[ends[1]]) | (rng.random(ends.shape[1]) < 0.2)
    x = (rng.random((nodes, 12)) < 0.15 + 0.3 * (np.arange(12) % NUM_CLASSES == y[:, None])).astype(
        np.float32
    )
    x[0] = 0  # a node without any feature
    graph = make_graph(
        "world",
        sp.csr_matrix(x) if sparse else x + rng.normal(0, 0.1, x.shape),
        y,
        ends[:, kept],
        num_classes=NUM_CLASSES,
    )
    part = rng.permutation(nodes) % 4
    split = Split("random", part < 2, part == 2, part == 3)
    client = rng.integers(0, clients, nodes) if assignment is None else np.asarray(assignment)
    return World(graph, split, from_assignment(graph, client, num_clients=clients))


def weighted(world: World, seed: int = 0, *, ones: bool = False) -> World:
    """The same world with a weight on every edge, between 0.1 and 10; or, against `make_graph`, all ones."""
    draw = 10 ** np.random.default_rng(seed).uniform(-1, 1, world.graph.num_edges)
    graph = replace(
        world.graph, edge_weight=np.ones_like(draw) if ones else draw.astype(np.float32).astype(np.float64)
    )
    partition = replace(world.partition, graph_hash=graph.hash)
    return World(graph, world.split, partition)


def with_payments(world: World, seed: int = 0, *, directed: bool = True, attributes: int = 2) -> World:
    """The same world with two edges for most pairs, in random directions, with attributes of unlike sizes."""
    rng = np.random.default_rng(seed)
    u, v = world.graph.edges[:, rng.integers(0, world.graph.num_edges, 2 * world.graph.num_edges)]
    flip = rng.random(len(u)) < 0.5
    ends = np.stack([np.where(flip, u, v), np.where(flip, v, u)])
    # Pairs without a draw keep one edge, so that the graph has the same pairs of nodes.
    ends = np.concatenate([ends, world.graph.edges], axis=1)
    values = rng.lognormal(8, 2, (ends.shape[1], attributes))
    names = tuple(f"a{column}" for column in range(attributes))
    edges = make_directed("payments", ends, values, names, directed=directed)
    graph = replace(world.graph, directed=edges)
    return World(graph, world.split, replace(world.partition, graph_hash=graph.hash))


#: What methods that noise need here: noise that repeats, and bounds that the dense world keeps; and of those
#: that balance first, so few rounds that one client at a time takes seconds. What can sample does.
HERE = {
    "noise_seed": 0,
    "feature_low": -1.0,
    "feature_high": 2.0,
    "shuffle_rounds": 2,
    "policy": "constant",
    "generator_steps": 10,
    "cross_steps": 2,
    "generator_lr": 0.05,
}


def here(method: Method) -> dict[str, Any]:
    """Of `HERE` what a method has."""
    return only_those(method.tree.names, HERE)


class Watched(Federation):
    """Keeps what is delivered, by name: (ends, payload)."""

    def __init__(self, workers: Sequence[Sequence[int]], *, simulated: bool = False) -> None:
        super().__init__(workers, simulated=simulated)
        self.seen: list[tuple[str, tuple[int, int], Any]] = []
        self.observe(self._keep)

    def _keep(self, name: str, messages: Mapping[Pair, Message]) -> None:
        self.seen += [(name, pair, message.payload) for pair, message in messages.items()]


def having(name: str, **settings: Any) -> dict[str, Any]:
    """Those of the settings that exist in the method's runs with them."""
    method = get_method(name)
    defaults = {**default_settings(method, preset="paper"), **here(method), **settings}
    names = set(method.tree.names) & set(values(method.configure({}, defaults)))
    return only_those(names, settings)


def stateful_optimizer(name: str) -> str:
    """An optimiser with moments, where the method has one."""
    return "sgd" if name == "scaffold" else "adam"


def config_of(method: Method, preset: str = "paper", **settings: Any) -> Any:
    """A small run. preset=paper has several local steps, what laws of averaging are about."""
    first = {
        **default_settings(method, preset=preset),
        "rounds": 4,
        "hidden": 5,
        "lr": 0.1,
        "eval_every": 1,
        **here(method),
    }
    return method.configure(settings, first)


def pooled(world: World) -> World:
    return World(
        world.graph,
        world.split,
        from_assignment(world.graph, np.zeros(world.graph.num_nodes, dtype=int), num_clients=1),
    )


def one_node_each(world: World) -> World:
    """The same world with a client for every node: every edge is a cross-client edge."""
    n = world.graph.num_nodes
    return World(world.graph, world.split, partition(world.graph, "ego", n, 0))


def one_each(method: Method) -> bool:
    """Whether a method is for clients of one node, and no others."""
    return method.requires.nodes_per_client == "one"


def as_asked(method: Method, world: World) -> World:
    """Return the world with the partition that a method needs: whole, one node per client, or unchanged."""
    if method.pooled:
        return pooled(world)
    whole = one_each(method) and world.clients < world.graph.num_nodes
    return one_node_each(world) if whole else world


def in_thirds(count: int) -> list[range]:
    """0..count - 1, for three workers, each with about as many clients."""
    return [range(k * count // 3, (k + 1) * count // 3) for k in range(3)]


class ThreeWorkers:
    """Processes of a server and of three workers, one set for each total number of clients. A set is started
    when it is first needed, and kept."""

    def __init__(self) -> None:
        self._clients: dict[int, Workers] = {}

    def of(self, clients: int) -> Workers:
        if clients not in self._clients:
            self._clients[clients] = Workers(in_thirds(clients))
        return self._clients[clients]

    def close(self) -> None:
        for clients in self._clients.values():
            clients.close()


PLACEMENTS: dict[str, Callable[..., Federation]] = {
    "stacked": stacked,
    "one at a time": one_at_a_time,
    "in thirds": lambda clients, simulated=False: Federation(in_thirds(clients), simulated=simulated),
}


def run_local(
    name: str, world: World, placement: str = "stacked", **settings: Any
) -> tuple[Outcome, Federation]:
    """Train in this process."""
    method = get_method(name)
    world = as_asked(method, world)
    config = config_of(method, **settings)
    fed = PLACEMENTS[placement](world.clients, simulated=is_simulated(config))
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    return train(fed, method, data, world.task, config), fed


def run_processes(
    name: str,
    world: World,
    pool: ThreeWorkers,
    checkpoints: tuple[Path, float, int | None] | None = None,
    **settings: Any,
) -> tuple[Outcome, Ledger]:
    """Train in a process for each of three clients: a client each, or a third of the world's nodes."""
    method = get_method(name)
    world = as_asked(method, world)
    clients, config = pool.of(world.clients), config_of(method, **settings)
    return train_in_processes(
        method, cohorts_of(world, clients.workers, config), world.task, config, running=clients,
        checkpoints=checkpoints,
    )  # fmt: skip


def cohorts_of(world: World, workers: Sequence[Sequence[int]], config: Any) -> list[Cohort]:
    """Return the data that each worker trains on."""
    made = (make_cohort(world.graph, world.split, world.partition, worker) for worker in workers)
    return [as_configured(cohort, config) for cohort in made]


def logits(outcome: Outcome) -> Tensor:
    """Logits of every owned row, clients in order."""
    return torch.cat([rows for _, rows in outcome.predictions.parts])


def by_node(outcome: Outcome, world: World, order: Any = None) -> Tensor:
    """Logits by node id, for worlds without copies. A pooled method's rows are the nodes already."""
    rows = logits(outcome)
    ids = torch.from_numpy(world.partition.held_id[world.partition.held_owner])
    result = rows.new_zeros(world.graph.num_nodes, rows.shape[1]).index_copy_(0, ids, rows)
    if len(ids) > len(result):  # several owners
        assert torch.allclose(result[ids], rows, rtol=0, atol=1e-5)
    return result


def last_round_stands(world: World) -> World:
    """The same world without validation nodes: nothing is selected, so every round counts."""
    none = np.zeros_like(world.split.val)
    split = Split("no validation", world.split.train, none, world.split.test)
    return World(world.graph, split, world.partition)
