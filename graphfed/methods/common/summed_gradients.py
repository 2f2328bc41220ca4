"""The mean gradient of weights that all clients share, from sums over clients at the server.

In plaintext the weights are leaves of the autograd graph at the server (`broadcast_leaves`): their gradient
flows back over the broadcast and is added up over the clients of a worker, so no gradient of a single client
is stored. Hidden by secure aggregation every client has a gradient of its own, and the number of training
nodes is one more number of the sum (`secure_mean`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.federation.secure.aggregation import secure_sum
from graphfed.methods.common.local_training import NO_TRAINING_NODE

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class GradientSum:
    """The mean gradient of a loss of all clients, under one protection of sums.

    A client's part of the gradient contains what it computes for the nodes of other clients.

    Attributes:
        per_client: Whether every client has a copy of the weights.
        broadcast: (fed, weights, copy) -> the leaves that collect gradients, and the weights at the clients.
            `copy` makes leaves of one client each from weights at the clients.
        count: (fed, counts, name) -> the number of training nodes, at the server; None if every round sums
            it.
        mean: (fed, gradients, counts, count, weights, name) -> the mean gradient at the server.
    """

    per_client: bool
    broadcast: Callable[[Federation, Located, Callable[[Located], Located]], tuple[Located, Located]]
    count: Callable[[Federation, Located, str], Located | None]
    mean: Callable[[Federation, Located, Located, Located | None, Located, str], Located]


# ---- at the clients ----------------------------------------------------------------------------------------


def total_count(counts: Tensor) -> Tensor:
    return counts.sum()


def with_counts(gradients: Weights, counts: Tensor) -> tuple[Weights, Tensor]:
    # float64, because a secure sum encodes every leaf, and whole numbers must stay whole.
    return gradients, counts.to(torch.float64)


# ---- at the server -----------------------------------------------------------------------------------------


def sum_template(weights: Weights) -> tuple[Weights, Tensor]:
    return weights, torch.zeros(())


def divide(gradients: Weights, count: Tensor, weights: Weights) -> Weights:
    """Divide summed gradients by the number of training nodes, in the dtypes of the weights.

    Raises InputError if there is no training node.
    """
    # A secure sum hides the single counts, so only their total can be checked.
    if not bool(count):
        raise InputError(NO_TRAINING_NODE)
    return {name: (g / count).to(weights[name].dtype) for name, g in gradients.items()}


def divide_sum(total: tuple[Weights, Tensor], weights: Weights) -> Weights:
    return divide(*total, weights)


# ---- the program over places -------------------------------------------------------------------------------


def broadcast_leaves(fed: Federation, weights: Located) -> tuple[Located, Located]:
    """Broadcast weights whose gradients flow back over an open tape to the leaves, at the server."""
    leaves = fed.server.run(as_leaves, weights)
    return leaves, fed.broadcast(leaves, name="model")


def secure_mean(
    fed: Federation, parts: Located, scale: Located | None, weights: Located, *, name: str
) -> Located:
    """Compute the mean gradient at the server from a sum that secure aggregation hides.

    `parts` are the gradients of each client, [K_h, ...] tensors or `SparseWeights`, and its number of
    training nodes [K_h]; both are multiplied by `scale` [K_h] (None: 1 for each).
    """
    total = secure_sum(fed, parts, scale, fed.server.run(sum_template, weights), name=name)
    return fed.server.run(divide_sum, total, weights)


def leaves_at_server(
    fed: Federation, weights: Located, copy: Callable[[Located], Located]
) -> tuple[Located, Located]:
    return broadcast_leaves(fed, weights)


def leaves_at_clients(
    fed: Federation, weights: Located, copy: Callable[[Located], Located]
) -> tuple[Located, Located]:
    """Copy the weights at every client, where each copy collects the client's own gradient."""
    # No gradient may flow back over the broadcast: the server would read it.
    leaves = copy(fed.broadcast(weights, name="model", grad=False))
    return leaves, leaves


def count_once(fed: Federation, counts: Located, name: str) -> Located:
    """Add up the numbers of training nodes [K_h] at the server, which reads each worker's."""
    return fed.sum(fed.clients.run(total_count, counts), name=f"{name}/training_count", grad=False)


def count_in_sums(fed: Federation, counts: Located, name: str) -> None:
    """Return None: the secure sum of every round contains the count."""


def mean_at_server(
    fed: Federation,
    gradients: Located,
    counts: Located,
    count: Located | None,
    weights: Located,
    name: str,
) -> Located:
    """Divide the gradients that the server has added up."""
    return fed.server.run(divide, gradients, count, weights)


def mean_of_parts(
    fed: Federation,
    gradients: Located,
    counts: Located,
    count: Located | None,
    weights: Located,
    name: str,
) -> Located:
    """Divide the gradients whose sum the server learns from a secure aggregation."""
    parts = fed.clients.run(with_counts, gradients, counts)
    return secure_mean(fed, parts, None, weights, name=f"{name}/gradient")


GRADIENTS: Mapping[str, GradientSum] = {
    "plaintext": GradientSum(False, leaves_at_server, count_once, mean_at_server),
    "secure": GradientSum(True, leaves_at_clients, count_in_sums, mean_of_parts),
}
