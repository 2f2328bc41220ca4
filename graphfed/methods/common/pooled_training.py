"""Training on the loss of all clients together, whose gradient is that of the pooled graph.

In every layer clients send each other what the layer needs of their nodes (the exchange of a method), and
gradients return over the same transfers. So a round is a step of central training:

    setup    the clients prepare their rows; the server draws the first weights
    round    the server sends the weights; all clients run the network and send back the gradient of the sum
             of their losses; the server adds up the gradients and takes the optimiser's step
    predict  all clients run the network and select the nodes of a target

A method passes its network as a function over places (`Run`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import as_leaves
from graphfed.federation.secure import aggregation
from graphfed.methods.base import State, Task
from graphfed.methods.common.local_training import (
    fresh_state,
    initial_weights,
    personal_weights,
    stepped,
)
from graphfed.methods.common.summed_gradients import GRADIENTS
from graphfed.methods.parts import Network
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import Batch
from graphfed.nn.layers import Dropout
from graphfed.random import fold


@dataclass(frozen=True)
class Prepared:
    """What set-up prepares.

    Attributes:
        data: A `Cohort` at the clients.
        train: At the clients, the `Batch` of all rows, for the weights of training.
        shared: At the clients, the `Batch` of all rows, for one copy of the weights.
        counts: At the clients, [K_h], the training nodes of each client.
        count: The number of training nodes, at the server; None if every round sums it.
        exchange: What the clients have agreed on to send each other.
    """

    data: Located
    train: Located
    shared: Located
    counts: Located
    count: Located | None
    exchange: Any


#: run(fed, batch, exchange, weights, network, dropout, grad) returns the logits [N, C] of all nodes, at their
#: clients, from the batch and the exchange of `Prepared`. With `grad` the tape is open.
Run = Callable[[Federation, Located, Any, Located, Network, Dropout | None, bool], Located]


# ---- at the clients ----------------------------------------------------------------------------------------


def copy_weights(batch: Batch, network: Network, weights: Weights) -> Weights:
    """Copy the weights for every client of a cohort, as leaves."""
    leaves: Weights = as_leaves(personal_weights(weights, batch, network.kernel))
    return leaves


def training_counts(cohort: Cohort) -> Tensor:
    """Count the training nodes of each client, [K_h]."""
    return cohort.counts(cohort.train)


def training_loss(cohort: Cohort, h: Tensor) -> Tensor:
    """Add up the cross-entropies of the cohort's training nodes, each times the weight of its class."""
    rows = cohort.rows("train")
    # A sum: the server divides by the number of training nodes of all clients.
    return cross_entropy(
        h.index_select(0, rows), cohort.y[rows], weight=cohort.class_weights, reduction="sum"
    )


def target_logits(cohort: Cohort, h: Tensor, target: str) -> Tensor:
    """Select the logits of a target's nodes, [n, C]."""
    return h.detach().index_select(0, cohort.rows(target))


# ---- the program over places -------------------------------------------------------------------------------


def start(
    fed: Federation,
    data: Located,
    exchange: Any,
    make_batch: Callable[[bool], Located],
    task: Task,
    config: Any,
    name: str,
) -> State:
    """Draw the first weights at the server, and count the training nodes.

    Args:
        fed: The places of the program.
        data: A `Cohort` at the clients.
        exchange: `Prepared.exchange`.
        make_batch: make_batch(per_client) returns the `Batch` of all rows, at the clients.
        task: Width of the features and number of classes.
        config: The settings, with parts `network`, `training`, `sums` and `run`.
        name: What the names of the method's transfers begin with.
    """
    # A secure sum of gradients needs a copy of the weights for each client; prediction needs one in all.
    gradient_sum = GRADIENTS[config.sums.aggregation]
    shared = make_batch(False)
    train = make_batch(True) if gradient_sum.per_client else shared
    counts = fed.clients.run(training_counts, data)
    drawn = (task, config.network, config.run.seed, str(fed.device))
    fed.expect("model", initial_weights, *drawn)
    weights = fed.server.run(initial_weights, *drawn)
    values = {"weights": weights, "optimizer": fed.server.run(fresh_state, weights, config.training)}
    return State(
        values, Prepared(data, train, shared, counts, gradient_sum.count(fed, counts, name), exchange)
    )


def step(fed: Federation, state: State, config: Any, round_number: int, run: Run, name: str) -> State:
    """Take one step on the gradient of the loss over all clients."""
    prepared: Prepared = state.prepared
    gradient_sum, network = GRADIENTS[config.sums.aggregation], config.network
    # The key of the first step of `local_training.descend`, so that the draws are those of central training.
    key = fold(config.run.seed, "dropout", round_number, 0)
    dropout = Dropout(network.dropout, key) if network.dropout else None
    with fed.tape():
        copy = partial(fed.clients.run, copy_weights, prepared.train, network)
        # In plaintext the leaves are at the server, and gradients flow back to them over the broadcast.
        leaves, weights = gradient_sum.broadcast(fed, state.weights, copy)
        h = run(fed, prepared.train, prepared.exchange, weights, network, dropout, True)
        fed.backward(fed.clients.run(training_loss, prepared.data, h))
    gradient = gradient_sum.mean(
        fed, fed.gradients(leaves), prepared.counts, prepared.count, state.weights, name
    )
    values = dict(state.values)
    values["weights"], values["optimizer"] = fed.server.run(
        stepped, values["weights"], gradient, values["optimizer"], config.training, outputs=2
    )
    return State(values, prepared)


def predict(fed: Federation, state: State, config: Any, target: str, run: Run) -> Located:
    """Compute the logits [n, C] of the target's nodes with the server's current weights."""
    prepared: Prepared = state.prepared
    weights = fed.broadcast(state.weights, name="model", grad=False)
    h = run(fed, prepared.shared, prepared.exchange, weights, config.network, None, False)
    return fed.clients.run(target_logits, prepared.data, h, target)


def messages(name: str) -> dict[str, str]:
    """Describe the transfers of `start`, `step` and `predict`, whose names begin with a method's `name`."""
    return {
        f"{name}/training_count": "With aggregation=plaintext every client sends the server, once, the "
        "number of its training nodes. The server reads it for each client.",
        "model": "The server sends the shared weights to every client, in every round and evaluation.",
        "model/grad": "With aggregation=plaintext every client sends the server its gradient of the weights, "
        "in every round. The server reads it. It depends on the features and labels of the client's nodes, "
        "without noise.",
        **aggregation.messages(
            f"{name}/gradient",
            "With aggregation=secure, in every round",
            "a client's gradient of the weights, and the number of its training nodes",
        ),
    }
