"""The mean gradient of the weights that all clients share, under each protection of sums at the server.

With aggregation=plaintext the weights are leaves at the server and their gradient flows back over the
broadcast. With aggregation=secure every client has a copy, whose gradient is its part of a secure sum. In
both the gradient is that of the loss of all clients: a client's part contains what it computes for the nodes
of other clients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.methods.attention_sums.config import AttentionSumsConfig
from graphfed.methods.common.local_training import personal_weights
from graphfed.methods.common.summed_gradients import broadcast_leaves, divide, secure_mean
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import Batch

__all__ = ["GRADIENTS", "GradientSum"]


@dataclass(frozen=True)
class GradientSum:
    """A sum of gradients under one protection.

    Attributes:
        per_client: Whether every client has a copy of the weights.
        broadcast: (fed, batch, weights, config) -> the leaves that collect gradients, and the weights at the
            clients.
        count: (fed, counts) -> the number of training nodes, at the server; None if every round sums it.
        mean: (fed, gradients, counts, count, weights) -> the mean gradient at the server.
    """

    per_client: bool
    broadcast: Callable[[Federation, Located, Located, AttentionSumsConfig], tuple[Located, Located]]
    count: Callable[[Federation, Located], Located | None]
    mean: Callable[[Federation, Located, Located, Located | None, Located], Located]


def copy_weights(batch: Batch, weights: Weights, config: AttentionSumsConfig) -> Weights:
    """Copy the weights for every client of a cohort, as leaves."""
    leaves: Weights = as_leaves(personal_weights(weights, batch, config.network))
    return leaves


def total_count(counts: Tensor) -> Tensor:
    """Count the cohort's training nodes, []."""
    return counts.sum()


def with_counts(gradients: Weights, counts: Tensor) -> tuple[Weights, Tensor]:
    """Return each client's gradient and the number of its training nodes [K_h]."""
    return gradients, counts.to(torch.float64)


def leaves_at_server(
    fed: Federation, batch: Located, weights: Located, config: AttentionSumsConfig
) -> tuple[Located, Located]:
    """Broadcast weights whose gradients flow back to the server."""
    return broadcast_leaves(fed, weights)


def leaves_at_clients(
    fed: Federation, batch: Located, weights: Located, config: AttentionSumsConfig
) -> tuple[Located, Located]:
    """Copy the weights at every client, where each copy collects the client's own gradient."""
    received = fed.broadcast(weights, name="model", grad=False)
    leaves = fed.clients.run(copy_weights, batch, received, config)
    return leaves, leaves


def count_once(fed: Federation, counts: Located) -> Located:
    """Add up the numbers of training nodes at the server."""
    count = fed.clients.run(total_count, counts)
    return fed.sum(count, name="attention_sums/training_count", grad=False)


def count_in_sums(fed: Federation, counts: Located) -> None:
    """Return None: the secure sum of every round contains the count."""


def mean_at_server(
    fed: Federation, gradients: Located, counts: Located, count: Located | None, weights: Located
) -> Located:
    """Divide the gradients that the server has added up by the number of training nodes."""
    return fed.server.run(divide, gradients, count, weights)


def mean_of_parts(
    fed: Federation, gradients: Located, counts: Located, count: Located | None, weights: Located
) -> Located:
    """Divide the gradients whose sum the server learns from a secure aggregation."""
    parts = fed.clients.run(with_counts, gradients, counts)
    return secure_mean(fed, parts, None, weights, name="attention_sums/gradient")


GRADIENTS: Mapping[str, GradientSum] = {
    "plaintext": GradientSum(False, leaves_at_server, count_once, mean_at_server),
    "secure": GradientSum(True, leaves_at_clients, count_in_sums, mean_of_parts),
}
