"""Methods whose clients release noised data once, and whose server trains on what was released: the baselines
of Lumos, LPGNN and naive FedGNN.

What was released is a value of the state (`released`), so that checkpoints hold it: noise that is drawn again
after a break would spend the budget again. A node goes by its id; the server has what it knows of nodes
in the order of their ids, which does not depend on who holds them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError, shown
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods.base import State, Task
from graphfed.methods.config import GraphTraining
from graphfed.nn.layers import Dropout
from graphfed.nn.optim import AdamState, optimizer_step
from graphfed.privacy.local import check_bounds, randomised_response
from graphfed.privacy.noise import Noise, chunks
from graphfed.random import fold

__all__ = [
    "DEFAULTS",
    "MESSAGES",
    "PAPER",
    "FeatureBoundSettings",
    "NoiseSettings",
    "Prepared",
    "by_node",
    "check_graph",
    "check_training",
    "descend",
    "node_route",
    "noise_of",
    "noised_labels",
    "round_at_server",
    "send_back",
]

Weights = dict[str, Tensor]
#: Features leave the clients with noise, within bounds that everyone knows: nothing may be agreed on before.
DEFAULTS = {"features": "raw"}
#: What the tables of both baselines were made with; a round is one step on all training nodes.
PAPER = {
    "rounds": 300,
    "local_steps": 1,
    "lr": 0.01,
    "weight_decay": 0.0,
    "dropout": 0.0,
    "heads": 4,
    "optimizer": "adam",
}


@config_dataclass(frozen=True, config={"extra": "forbid"})
class NoiseSettings:
    """The noise of what is released once."""

    noise_seed: int | None = Field(
        default=None,
        ge=0,
        description="draw the noise again from this seed, so that a run can be repeated; it then protects "
        "nothing. Without it noise comes from the operating system's entropy",
    )


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FeatureBoundSettings:
    """The bounds of features that are released."""

    feature_low: float = Field(
        default=0.0, allow_inf_nan=False, description="public lower bound of every feature of every node"
    )
    feature_high: float = Field(
        default=1.0, allow_inf_nan=False, description="public upper bound of every feature of every node"
    )

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if not self.feature_low < self.feature_high:
            raise InputError(
                f"feature_low={shown(self.feature_low)} cannot be used: expected a number less than "
                f"feature_high={shown(self.feature_high)}"
            )
        return self


def check_graph(graph: Graph, config: FeatureBoundSettings) -> None:
    """InputError for a feature outside its bounds, where one party has the whole graph and can see it before
    anything is released."""
    import scipy.sparse as sp

    low, high = config.feature_low, config.feature_high
    x: Any = graph.x
    for rows in chunks(graph.num_nodes, graph.num_features):
        values = torch.from_numpy(x[rows].toarray() if sp.issparse(x) else np.ascontiguousarray(x[rows]))
        check_bounds(values, torch.arange(rows.start, rows.stop), low, high)


def noise_of(config: NoiseSettings) -> Noise:
    return Noise(config.noise_seed)


# ---- at the clients ----------------------------------------------------------------------------------------


def node_ids(cohort: Cohort, task: Task) -> RowIds:
    """InputError for features of another width than agreed on."""
    if cohort.num_rows and cohort.num_features != task.num_features:
        raise InputError(
            f"client {cohort.clients[0]} has {cohort.num_features} features where the clients agreed on "
            f"{task.num_features}; all need the same features in the same order"
        )
    return RowIds(cohort.id, cohort.client)


def noised_labels(cohort: Cohort, targets: tuple[str, ...], epsilon: float, config: NoiseSettings) -> Tensor:
    """The classes of the nodes of `targets` after randomised response, -1 for the others: [N] int16."""
    rows = torch.cat([cohort.rows(target) for target in targets])
    told = randomised_response(
        cohort.y[rows], cohort.id[rows], noise_of(config), "labels", epsilon, cohort.num_classes
    )
    labels = torch.full((cohort.num_rows,), -1, dtype=torch.int16, device=rows.device)
    return labels.index_copy(0, rows, told.to(torch.int16))


def rows_of(cohort: Cohort, logits: Tensor, target: str) -> Tensor:
    """The logits of a target's rows out of those of all rows."""
    return logits[cohort.rows(target)]


# ---- at the server -----------------------------------------------------------------------------------------


def check_once(table: RouteTable) -> None:
    """InputError where several clients hold a node."""
    if len(table.ids) < len(table.index):
        node = int(table.ids[torch.bincount(table.index).argmax()])
        raise InputError(
            f"node {node} is at several clients, and each would release it; use a partition that gives "
            "every node to one client, as 'ego'"
        )


def by_node(rows: Any, table: RouteTable) -> Any:
    """Rows [U, ...] as they arrive on a route that has each id once, in the order of the ids."""
    return pay.take_rows(rows, torch.argsort(table.index))


def check_training(training: Tensor) -> Tensor:
    """InputError where nobody has a training node; training [U] bool."""
    if not bool(training.any()):
        raise InputError("no client has a training node; use another split or partition")
    return training


def descend(
    weights: Weights,
    optimizer: AdamState,
    config: GraphTraining,
    number: int,
    loss_of: Callable[[Weights, Dropout | None], Tensor],
) -> tuple[Weights, AdamState]:
    """The steps of a round on the loss of (weights, dropout)."""
    for step in range(config.local_steps):
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        dropout = (
            Dropout(config.dropout, fold(config.seed, "dropout", number, step)) if config.dropout else None
        )
        found = torch.autograd.grad(loss_of(leaves, dropout), list(leaves.values()))
        gradients = dict(zip(leaves, found, strict=True))
        weights, optimizer = optimizer_step(
            config.optimizer, weights, gradients, optimizer, config.lr, config.weight_decay
        )
    return weights, optimizer


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """The cohorts at the clients, the route of their nodes, and at the server what it works out once from
    what was released."""

    data: Located
    route: Route
    server: Located


def node_route(fed: Federation, data: Located, task: Task) -> Route:
    """The route of all nodes. InputError for a node at several clients, and another feature width."""
    route = fed.route(fed.clients.run(node_ids, data, task), name="nodes")
    fed.server.run(check_once, fed.table(route))
    return route


def send_back(fed: Federation, prepared: Prepared, logits: Located, target: str, *, name: str) -> Located:
    """The server's logits [U, C] of all nodes, to the client of each: those of the target's rows."""
    received = fed.download(logits, prepared.route, name=name, grad=False)
    return fed.clients.run(rows_of, prepared.data, received, target)


def round_at_server(
    fed: Federation, state: State, train: Callable[..., Any], config: Any, number: int
) -> State:
    """A round in which nothing crosses: train(prepared, weights, optimizer, config, number) at the server."""
    values = dict(state.values)
    values["weights"], values["optimizer"] = fed.server.run(
        train, state.prepared.server, values["weights"], values["optimizer"], config, number, outputs=2
    )
    return State(values, state.prepared)


MESSAGES = {
    "nodes": "The ids of a client's nodes, by which the server knows them: it learns which nodes "
    "there are and who has them.",
}
