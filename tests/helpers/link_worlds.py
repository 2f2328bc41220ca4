"""Small federations that predict links: a graph without the edges to predict, partitioned among clients, and
a run in any placement."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from worlds import ThreeWorkers, World, here, logits, make_world, one_each

from graphfed.data.graphs.link_splits import EdgeSplit, make_edge_split, training_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.federation import Federation
from graphfed.federation.cohort import make_cohort
from graphfed.methods.base import Method, Task
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.methods.tasks import LINK_PREDICTION
from graphfed.runs.checkpoint import Checkpoints
from graphfed.runs.processes import train_in_processes
from graphfed.runs.train import train
from graphfed.runtime.local import stacked
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import default_settings

ROUNDS = 4


@dataclass(frozen=True)
class LinkWorld(World):
    """A training graph, the split of the whole graph's edges, and the partition."""

    split: EdgeSplit

    @property
    def task(self) -> Task:
        return Task(self.graph.num_features, self.graph.num_classes, LINK_PREDICTION)

    def partitioned(self, client: np.ndarray, num_clients: int) -> "LinkWorld":
        return replace(self, partition=from_assignment(self.graph, client, num_clients=num_clients))

    def as_asked(self, method: Method) -> "LinkWorld":
        """Return the world with the partition that a method needs."""
        n = self.graph.num_nodes
        if method.pooled:
            return self.partitioned(np.zeros(n, dtype=np.int64), 1)
        return self.partitioned(np.arange(n), n) if one_each(method) else self


def link_world(seed: int = 0, **options: Any) -> LinkWorld:
    world: World = make_world(seed, **{"sparse": False, "nodes": 36, **options})
    split = make_edge_split(world.graph, "edges:0.6,0.15,0.25", seed)
    client = np.empty(world.graph.num_nodes, dtype=np.int64)
    client[world.partition.held_node] = world.partition.held_client
    known = training_graph(world.graph, split)
    return LinkWorld(known, split, from_assignment(known, client, num_clients=world.clients))


def config_of(method: Method, **settings: Any) -> Any:
    given = {"rounds": ROUNDS, "hidden": 5, "lr": 0.1, "dropout": 0.3, "eval_every": 1, **here(method)}
    return method.configure(settings, {**default_settings(method, LINK_PREDICTION, "paper"), **given})


def run_local(
    name: str,
    world: LinkWorld,
    place: Callable[..., Federation] = stacked,
    checkpoints: Checkpoints | None = None,
    **settings: Any,
) -> tuple[Outcome, Federation]:
    method = get_method(name)
    world = world.as_asked(method)
    config = config_of(method, **settings)
    fed = place(world.clients, simulated=is_simulated(config))
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
    data = fed.locate("clients", "data", cohorts)
    return train(fed, method, data, world.task, config, checkpoints=checkpoints), fed


def run_apart(
    name: str, world: LinkWorld, pool: ThreeWorkers, checkpoints: Any = None, **settings: Any
) -> tuple[Outcome, Any]:
    method = get_method(name)
    world = world.as_asked(method)
    clients = pool.of(world.clients)
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in clients.workers]
    return train_in_processes(
        method, cohorts, world.task, config_of(method, **settings), running=clients,
        checkpoints=checkpoints,
    )  # fmt: skip


def scores(outcome: Outcome) -> torch.Tensor:
    return logits(outcome)


def by_pair(outcome: Outcome, world: LinkWorld) -> dict[tuple[int, int], float]:
    """Collect the score of each pair of nodes from all clients."""
    whole = make_cohort(world.graph, world.split, world.partition, range(world.clients))
    assert whole.links is not None
    ends = torch.stack([whole.id[whole.links.row], whole.links.id]).sort(0)[0].t().tolist()
    return {(u, v): score for (u, v), score in zip(ends, scores(outcome).tolist(), strict=True)}
