"""How the gradients of the shared weights are added up at the server, under each protection.

With aggregation=plaintext the weights are leaves of the autograd graph at the server; their gradient flows
back over the broadcast and is added up over the clients of a worker. With aggregation=secure every client has
leaves of its own, whose gradients are its part of a secure sum; the number of training nodes is one more
number of that sum, in every round.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves, constant
from graphfed.methods.base import Task
from graphfed.methods.common.summed_gradients import broadcast_leaves, divide, secure_mean
from graphfed.methods.lumos.client_trees import ClientTrees
from graphfed.methods.tasks import LINK_PREDICTION

__all__ = ["GRADIENTS", "GradientSum", "Weights"]

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class GradientSum:
    """A sum of gradients under one protection.

    Attributes:
        per_client: Whether every client has leaves of its own.
        count: (fed, trees, task) -> at the server, the number of training nodes (to predict links: of
            clients); None if every round sums it.
        broadcast: (fed, trees, weights) -> the leaves that collect gradients, and the weights at the clients.
        mean: (fed, trees, gradients, count, weights) -> the mean gradient at the server.
    """

    per_client: bool
    count: Callable[[Federation, Located, Task], Located | None]
    broadcast: Callable[[Federation, Located, Located], tuple[Located, Located]]
    mean: Callable[[Federation, Located, Located, Located | None, Located], Located]


# ---- at the clients ----------------------------------------------------------------------------------------


def copy_weights(trees: ClientTrees, weights: Weights) -> Weights:
    """Copy the weights for every client, [n, ...], as leaves that collect its own gradient."""
    n = trees.forest.num_clients
    leaves: Weights = as_leaves({name: w.expand(n, *w.shape).contiguous() for name, w in weights.items()})
    return leaves


def training_nodes(trees: ClientTrees) -> Tensor:
    """Count the cohort's training nodes."""
    return trees.cohort.train.sum()


def with_count(trees: ClientTrees, gradients: Weights) -> tuple[Weights, Tensor]:
    """Return each client's gradient and the number of nodes (to predict links: clients) in its loss, [n]."""
    cohort = trees.cohort
    if cohort.links is not None:
        return gradients, torch.ones(trees.forest.num_clients)
    count = torch.bincount(cohort.client[cohort.rows("train")], minlength=cohort.num_clients)
    return gradients, count.double()


# ---- the program over places -------------------------------------------------------------------------------


def count_once(fed: Federation, trees: Located, task: Task) -> Located:
    """Count the training nodes at the server: each client sends whether its node is one. To predict links
    every client counts, and nothing is sent.
    """
    if task.name == LINK_PREDICTION:
        return fed.server.run(constant, fed.num_clients)
    counts = fed.clients.run(training_nodes, trees)
    return fed.sum(counts, name="lumos/training_count", grad=False)


def count_in_sums(fed: Federation, trees: Located, task: Task) -> None:
    """Return None: the secure sum of every round contains the count."""


def leaves_at_server(fed: Federation, trees: Located, weights: Located) -> tuple[Located, Located]:
    """Broadcast weights whose gradients flow back to the server."""
    return broadcast_leaves(fed, weights)


def leaves_at_clients(fed: Federation, trees: Located, weights: Located) -> tuple[Located, Located]:
    """Copy the weights at every client, where each copy collects the client's own gradient."""
    leaves = fed.clients.run(copy_weights, trees, fed.broadcast(weights, name="model", grad=False))
    return leaves, leaves


def mean_at_server(
    fed: Federation, trees: Located, gradients: Located, count: Located | None, weights: Located
) -> Located:
    """Divide the gradients that the server has added up."""
    return fed.server.run(divide, gradients, count, weights)


def mean_of_parts(
    fed: Federation, trees: Located, gradients: Located, count: Located | None, weights: Located
) -> Located:
    """Divide the gradients whose sum the server learns from a secure aggregation."""
    parts = fed.clients.run(with_count, trees, gradients)
    return secure_mean(fed, parts, None, weights, name="lumos/gradient")


GRADIENTS: Mapping[str, GradientSum] = {
    "plaintext": GradientSum(False, count_once, leaves_at_server, mean_at_server),
    "secure": GradientSum(True, count_in_sums, leaves_at_clients, mean_of_parts),
}
