"""The mean gradient of the network of own features, under each protection of sums.

With aggregation=plaintext there is one copy of the weights for all clients of a worker, and no gradient of a
single client is stored; with one node at every client of a large graph these would not fit into memory. With
aggregation=secure every client has a gradient of its own, its part of a secure sum. Both are the gradient of
`own_features`, with the same dropout.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods.common.local_training import (
    Prepared,
    gradient_from_shared,
    own_view,
    prepare,
    prepare_shared,
)
from graphfed.methods.common.summed_gradients import (
    broadcast_leaves,
    count_in_sums,
    count_once,
    divide,
    secure_mean,
)
from graphfed.methods.parts import Network
from graphfed.methods.prediction_release.config import PredictionReleaseConfig
from graphfed.nn.backbones import Weights
from graphfed.nn.layers import Dropout
from graphfed.random import fold


@dataclass(frozen=True)
class NetworkGradient:
    """The mean gradient of the network under one protection of sums.

    Attributes:
        prepare: (cohort, config) -> the batches of a cohort.
        count: (fed, counts, name) -> the number of training nodes, at the server; None if every round sums
            it.
        mean: (fed, prepared, weights, count, config, round_number) -> the weights at the clients, and the
            mean gradient at the server.
    """

    prepare: Callable[[Cohort, PredictionReleaseConfig], Prepared]
    count: Callable[[Federation, Located, str], Located | None]
    mean: Callable[
        [Federation, Located, Located, Located | None, PredictionReleaseConfig, int], tuple[Located, Located]
    ]


# ---- at the clients ----------------------------------------------------------------------------------------


def prepare_together(cohort: Cohort, config: PredictionReleaseConfig) -> Prepared:
    """Prepare the batches for one copy of the weights."""
    return prepare_shared(cohort, own_view(cohort), config.network)


def prepare_apart(cohort: Cohort, config: PredictionReleaseConfig) -> Prepared:
    """Prepare the batches for a copy of the weights at each client."""
    return prepare(cohort, own_view(cohort), None, config, personal=False)


def training_loss(prepared: Prepared, weights: Weights, network: Network, key: int) -> Tensor:
    """Add up the cross-entropies of a cohort's training nodes, each times the weight of its class."""
    batch = prepared.train
    dropout = Dropout(network.dropout, key) if network.dropout else None
    logits = network.kernel.forward(weights, batch, dropout)
    return (cross_entropy(logits, batch.y, reduction="none") * batch.weight).sum()


def training_nodes_of_clients(prepared: Prepared) -> Tensor:
    """Return the number of training nodes of each client, [K_h] int64."""
    return prepared.counts


def with_ones(gradients: Weights, counts: Tensor) -> tuple[Weights, Tensor]:
    """Return each client's mean gradient and 1; times its number of training nodes these are summed."""
    return gradients, torch.ones_like(counts, dtype=torch.float64)


# ---- the program over places -------------------------------------------------------------------------------


def mean_in_plaintext(
    fed: Federation,
    prepared: Located,
    weights: Located,
    count: Located | None,
    config: PredictionReleaseConfig,
    round_number: int,
) -> tuple[Located, Located]:
    """Let the gradients flow back to the server, which adds them up."""
    # The key of the first step of `local_training.descend`.
    key = fold(config.run.seed, "dropout", round_number, 0)
    with fed.tape():
        leaves, received = broadcast_leaves(fed, weights)
        fed.backward(fed.clients.run(training_loss, prepared, received, config.network, key))
    # The gradients of all clients arrive as one sum of each worker; only their total is divided.
    return received, fed.server.run(divide, fed.gradients(leaves), count, weights)


def mean_in_secure_sum(
    fed: Federation,
    prepared: Located,
    weights: Located,
    count: Located | None,
    config: PredictionReleaseConfig,
    round_number: int,
) -> tuple[Located, Located]:
    """Add up the clients' gradients by secure aggregation."""
    received = fed.broadcast(weights, name="model", grad=False)
    # Gradients of mean losses: the secure sum multiplies them by the numbers of training nodes.
    gradients = fed.clients.run(gradient_from_shared, prepared, received, fed.present(), config, round_number)
    counts = fed.clients.run(training_nodes_of_clients, prepared)
    parts = fed.clients.run(with_ones, gradients, counts)
    return received, secure_mean(fed, parts, counts, weights, name="prediction_release/gradient")


NETWORK_GRADIENTS: Mapping[str, NetworkGradient] = {
    "plaintext": NetworkGradient(prepare_together, count_once, mean_in_plaintext),
    "secure": NetworkGradient(prepare_apart, count_in_sums, mean_in_secure_sum),
}
