"""Methods whose clients release noised data once, and whose server trains on it: LPGNN and naive FedGNN, the
baselines of Lumos.

The released data is a value of the state (`released`), so that checkpoints contain it: noise that is drawn
again after an interruption would spend the budget again. The server orders everything by the nodes' ids, so
the order does not depend on which client has a node.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError, shown
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods.base import State, Task
from graphfed.methods.common.local_training import NO_TRAINING_NODE
from graphfed.methods.parts import GraphTraining
from graphfed.methods.settings import settings
from graphfed.nn.layers import Dropout
from graphfed.nn.optim import AdamState, optimizer_step
from graphfed.privacy.local import check_bounds, randomised_response
from graphfed.privacy.noise import Noise, chunks
from graphfed.random import fold

Weights = dict[str, Tensor]
#: Clients send features with noise, within public bounds, so nothing may be agreed on before.
# A sum of features without noise, from which a scale is agreed on, would be outside every epsilon.
DEFAULTS = {"features": "raw"}
#: The settings of both baselines in the paper's tables; a round is one step on all training nodes.
PAPER = {
    "rounds": 300,
    "local_steps": 1,
    "lr": 0.01,
    "weight_decay": 0.0,
    "dropout": 0.0,
    "heads": 4,
    "optimizer": "adam",
}


@settings
class NoiseSeed:
    """The noise on data that is released once."""

    noise_seed: int | None = Field(
        default=None,
        ge=0,
        description="draw the noise from this seed, so that a run can be repeated; such noise protects "
        "nothing. Without a seed the noise comes from the operating system's entropy",
    )


@settings
class FeatureBounds:
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


def check_features(graph: Graph, bounds: FeatureBounds) -> None:
    """Check the bounds of features in a process that has the whole graph, before anything is released."""
    import scipy.sparse as sp

    # In chunks, because dense features of a large graph may not fit into memory.
    low, high = bounds.feature_low, bounds.feature_high
    x: Any = graph.x
    for rows in chunks(graph.num_nodes, graph.num_features):
        values = torch.from_numpy(x[rows].toarray() if sp.issparse(x) else np.ascontiguousarray(x[rows]))
        check_bounds(values, torch.arange(rows.start, rows.stop), low, high)


def noise_of(noise: NoiseSeed) -> Noise:
    return Noise(noise.noise_seed)


# ---- at the clients ----------------------------------------------------------------------------------------


def node_ids(cohort: Cohort, task: Task) -> RowIds:
    """Return the ids of a cohort's nodes; InputError if the width of the features is not the agreed one."""
    if cohort.num_rows and cohort.num_features != task.num_features:
        raise InputError(
            f"client {cohort.clients[0]} has {cohort.num_features} features where the clients agreed on "
            f"{task.num_features}; all need the same features in the same order"
        )
    return RowIds(cohort.id, cohort.client)


def noised_labels(cohort: Cohort, targets: tuple[str, ...], epsilon: float, noise: NoiseSeed) -> Tensor:
    """Noise the labels of some splits by randomised response: [N] int16, -1 for all other nodes."""
    rows = torch.cat([cohort.rows(target) for target in targets])
    responses = randomised_response(
        cohort.y[rows], cohort.id[rows], noise_of(noise), "labels", epsilon, cohort.num_classes
    )
    # -1 also for nodes without a label in these splits: which nodes have one is not hidden.
    labels = torch.full((cohort.num_rows,), -1, dtype=torch.int16, device=rows.device)
    return labels.index_copy(0, rows, responses.to(torch.int16))


def rows_of(cohort: Cohort, logits: Tensor, target: str) -> Tensor:
    return logits[cohort.rows(target)]


# ---- at the server -----------------------------------------------------------------------------------------


def check_once(table: RouteTable) -> None:
    """Raise InputError if several clients have the same node."""
    # Two draws of noise for one node would halve its privacy.
    if len(table.ids) < len(table.index):
        node = int(table.ids[torch.bincount(table.index).argmax()])
        raise InputError(
            f"node {node} is at several clients, and each would release it; use a partition with every node "
            "at one client, such as 'ego'"
        )


def by_node(rows: Any, table: RouteTable) -> Any:
    """Order rows that arrive on a route that has each id once, [U, ...], by the nodes' ids."""
    # Each id arrives once, so the order of `index` is a permutation.
    return pay.take_rows(rows, torch.argsort(table.index))


def check_training(training: Tensor) -> Tensor:
    """Raise InputError if there is no training node; training [U] bool."""
    if not bool(training.any()):
        raise InputError(NO_TRAINING_NODE)
    return training


def take_steps(
    weights: Weights,
    optimizer: AdamState,
    config: GraphTraining,
    round_number: int,
    loss_of: Callable[[Weights, Dropout | None, int], Tensor],
) -> tuple[Weights, AdamState]:
    """Take the training steps of a round at the server; loss_of(weights, dropout, step) is the loss."""
    training, rate = config.training, config.network.dropout
    for step in range(config.steps.local_steps):
        leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
        # The key of `local_training.descend`, so that the draws are those of central training.
        dropout = Dropout(rate, fold(config.run.seed, "dropout", round_number, step)) if rate else None
        gradient_values = torch.autograd.grad(loss_of(leaves, dropout, step), list(leaves.values()))
        gradients = dict(zip(leaves, gradient_values, strict=True))
        weights, optimizer = optimizer_step(
            training.optimizer, weights, gradients, optimizer, training.lr, training.weight_decay
        )
    return weights, optimizer


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """The cohorts at the clients, and what the server computes once from the released data."""

    data: Located
    route: Route
    server: Located


def node_route(fed: Federation, data: Located, task: Task) -> Route:
    """Make the route of all nodes.

    Raises InputError if several clients have the same node, or the width of features is not the agreed one.
    """
    route = fed.route(fed.clients.run(node_ids, data, task), name="nodes")
    fed.server.run(check_once, fed.table(route))
    return route


def logits_form(cohort: Cohort) -> Tensor:
    return torch.empty(0, cohort.num_classes)


def return_logits(fed: Federation, prepared: Prepared, logits: Located, target: str, *, name: str) -> Located:
    """Send the server's logits of all nodes, [U, C], to the nodes' clients, and select the target's rows."""
    fed.expect(name, logits_form, prepared.data)
    received = fed.download(logits, prepared.route, name=name, grad=False)
    return fed.clients.run(rows_of, prepared.data, received, target)


def round_at_server(
    fed: Federation, state: State, train: Callable[..., Any], config: Any, round_number: int
) -> State:
    """Run a round at the server; nothing is sent.

    `train` maps (prepared, weights, optimizer, config, round_number) to the new weights and optimiser.
    """
    values = dict(state.values)
    values["weights"], values["optimizer"] = fed.server.run(
        train, state.prepared.server, values["weights"], values["optimizer"], config, round_number, outputs=2
    )
    return State(values, state.prepared)


MESSAGES = {
    "nodes": "Every client sends the server the ids of its nodes. The server reads them: it learns which "
    "nodes there are and which client has each.",
}
