"""FedAvg: McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-efficient learning of deep
networks from decentralized data", AISTATS 2017 (arXiv:1602.05629v4), on graphs without their cross-client
edges.

    paper        here
    w_t          State.weights, at the server
    n_k          counts: training nodes of client k, at the server
    E            local_steps (one batch: the client's whole graph)
    C            fraction

With E = 1 the mean of weights after one step is a step on the mean of the gradients (the paper's FedSGD).
Then by default (`optimizer_at`) the optimiser runs at the server, on the mean gradient: the step of central
training. An optimiser with a state, such as Adam, at every client would normalise the gradients of each
client by their own scale; if clients have different classes, the mean of such steps makes no progress
(docs/runs.md).

Differs from the paper: full-batch steps instead of epochs of mini-batches; clients without training nodes
have weight 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import empty_state, full_like
from graphfed.federation.secure.aggregation import check_sums, messages, protected_mean
from graphfed.federation.transfer import describe_value
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.common import averaging
from graphfed.methods.common.local_training import (
    Prepared,
    gradient_from_shared,
    initial_weights,
    own_view,
    predict_shared,
    prepare,
    train_from_shared,
)
from graphfed.methods.config import GraphTraining, clients_in_round, steps_at_server, sum_protection
from graphfed.nn.optim import AdamState, init_state, optimizer_step

__all__ = [
    "GRADIENT_MESSAGES",
    "MESSAGES",
    "METHOD",
    "WEIGHTS_SENT",
    "WEIGHT_MESSAGES",
    "Clients",
    "FedAvgConfig",
    "average_local_training",
    "predict",
    "round",
    "setup",
    "start",
    "step_at_server",
]

Tensors = dict[str, Tensor]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class FedAvgConfig(
    groups.ServerOptimizerSettings,
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of FedAvg."""


@dataclass(frozen=True)
class Clients:
    """What set-up prepares for averaging methods.

    Attributes:
        prepared: `Prepared` at the clients.
        counts: At the server: [K] training nodes of each client.
        exchange: (fed, prepared, received, config) -> `prepared` after the exchange that clients make with
            each other when they have received new weights; None: no exchange.
    """

    prepared: Located
    counts: Located
    exchange: Callable[[Federation, Located, Located, Any], Located] | None = None

    def ready(self, fed: Federation, received: Located, config: GraphTraining) -> Located:
        """Return `Prepared` for new weights.

        Args:
            fed: The federation.
            received: At the clients: the weights.
            config: The settings.

        Returns:
            `Prepared` at the clients.
        """
        return self.prepared if self.exchange is None else self.exchange(fed, self.prepared, received, config)


def prepare_own(cohort: Cohort, config: GraphTraining) -> Prepared:
    """Prepare the batches of every client's own subgraph."""
    return prepare(cohort, own_view(cohort), None, config, personal=False)


def count_training(prepared: Prepared) -> Tensor:
    """Return the number of training nodes of each client."""
    return prepared.counts


def check_counts(counts: Tensor) -> Tensor:
    """Raise InputError if no client has a training node."""
    if not bool(counts.any()):
        raise InputError("no client has a training node; use another split or partition")
    return counts


def accept_counts(counts: Tensor, declared: Mapping[str, np.ndarray]) -> str:
    """Check the numbers of training nodes [K_h] of another process; see `transfer.Accept`.

    Returns:
        The reason why they cannot be used; empty if they can.
    """
    if counts.dtype != torch.int64 or counts.dim() != 1 or bool((counts < 0).any()):
        return f"{describe_value(counts)} where each client's number of training nodes is expected"
    for count, most in zip(counts.tolist(), declared.get("train", ()), strict=False):
        if count > most:
            return f"{count} training nodes, but the client declared {most} when it joined"
    return ""


def take_step(
    weights: Tensors, gradient: Tensors, state: AdamState, config: GraphTraining
) -> tuple[Tensors, AdamState]:
    """Take the step of a central optimiser. If the round has no training node, only the weight decay acts."""
    return optimizer_step(config.optimizer, weights, gradient, state, config.lr, config.weight_decay)


def start(fed: Federation, prepared: Located, task: Task, config: GraphTraining) -> State:
    """Draw the first weights at the server and collect the numbers of training nodes.

    Args:
        fed: The federation.
        prepared: `Prepared` at the clients.
        task: The task.
        config: The settings.

    Returns:
        The first state.
    """
    counts = fed.clients.run(count_training, prepared)
    counts = fed.gather(counts, name="training_counts", grad=False, accept=accept_counts)
    counts = fed.server.run(check_counts, counts)
    fed.expect("model", initial_weights, task, config, str(fed.device))
    weights = fed.server.run(initial_weights, task, config, str(fed.device))
    if steps_at_server(config):
        optimizer = fed.server.run(init_state, config.optimizer, weights)
        values = {"weights": weights, "server_optimizer": optimizer}
    else:
        values = {"weights": weights, "optimizer": fed.clients.run(empty_state)}
    return State(values, Clients(prepared, counts))


def setup(fed: Federation, data: Located, task: Task, config: GraphTraining) -> State:
    """Set up training on every client's own subgraph.

    Args:
        fed: The federation.
        data: A `Cohort` at the clients.
        task: The task.
        config: The settings.

    Returns:
        The first state.
    """
    check_sums(fed, sum_protection(config), clients_in_round(config, fed.num_clients))
    return start(fed, fed.clients.run(prepare_own, data, config), task, config)


def average_local_training(
    fed: Federation, state: State, config: GraphTraining, number: int, proximal: float = 0.0
) -> tuple[Located, Located]:
    """Broadcast the weights, train at the clients, and average by n_k.

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        number: The round.
        proximal: mu of FedProx.

    Returns:
        The mean weights at the server, and the clients' optimiser states.
    """
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    local, optimizer = fed.clients.run(
        train_from_shared,
        clients.ready(fed, received, config),
        received,
        state.values["optimizer"],
        fed.present(),
        config,
        number,
        proximal,
        outputs=2,
    )
    # w_{t+1} = sum_k (n_k / n) w_k over the clients that take part; w_t if none of them has a training node.
    counts = fed.clients.run(count_training, clients.prepared)
    mean = protected_mean(
        fed, local, counts, clients.counts, state.weights, sum_protection(config), name="update"
    )
    return mean, fed.keep_absent(optimizer, state.values["optimizer"])


def step_at_server(fed: Federation, state: State, config: GraphTraining, number: int) -> State:
    """Average the clients' gradients by n_k and take the optimiser's step at the server (FedSGD).

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        number: The round, counted from 1.

    Returns:
        The next state.
    """
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    ready = clients.ready(fed, received, config)
    local = fed.clients.run(gradient_from_shared, ready, received, fed.present(), config, number)
    zero = fed.server.run(full_like, state.weights, 0.0)
    counts = fed.clients.run(count_training, clients.prepared)
    mean = protected_mean(fed, local, counts, clients.counts, zero, sum_protection(config), name="gradient")
    weights, optimizer = fed.server.run(
        take_step, state.weights, mean, state.values["server_optimizer"], config, outputs=2
    )
    return State({"weights": weights, "server_optimizer": optimizer}, state.prepared)


def round(fed: Federation, state: State, config: GraphTraining, number: int) -> State:
    """Run a round: average gradients or weights.

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        number: The round, counted from 1.

    Returns:
        The next state.
    """
    if steps_at_server(config):
        return step_at_server(fed, state, config, number)
    weights, optimizer = average_local_training(fed, state, config, number)
    return State({"weights": weights, "optimizer": optimizer}, state.prepared)


def predict(fed: Federation, state: State, config: GraphTraining, target: str) -> Located:
    """Predict at every client with its own subgraph and the server's current weights.

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        target: "val", "test" or "all".

    Returns:
        At the clients: logits [n, C].
    """
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    prepared = clients.ready(fed, received, config)
    return fed.clients.run(predict_shared, prepared, received, config, target)


#: The transfers of every method whose optimiser can run at the server.
GRADIENT_MESSAGES = {
    "gradient": "With one local step (optimizer_at=server) and aggregation=plaintext every client sends the "
    "server the gradient of its loss. The server averages the gradients by the number of training nodes and "
    "reads each client's gradient; if the client has few training nodes, their features and labels can be "
    "reconstructed from it.",
    **messages(
        "gradient",
        "With one local step (optimizer_at=server) and aggregation=secure, in every round",
        "a client's gradient, times its number of training nodes",
    ),
}
#: The transfers of every method that averages weights.
WEIGHT_MESSAGES = {
    "training_counts": "Every client sends the server the number of its training nodes. The server reads it.",
    "model": "The server sends the shared model's weights to every client.",
    "update": "With several local steps (optimizer_at=clients) and aggregation=plaintext every client sends "
    "the server its model weights after local training. The server averages them by the number of training "
    "nodes and reads each client's weights, from which features and labels of training nodes can in part be "
    "inferred.",
    **averaging.MESSAGES,
}
MESSAGES = {**WEIGHT_MESSAGES, **GRADIENT_MESSAGES}

#: For methods whose clients always send weights.
WEIGHTS_SENT = Sent("weights, every round", averaging.PROTECTION, WEIGHT_MESSAGES)

METHOD = Method(
    name="fedavg",
    summary="gradients or weights averaged every round, cross-client edges dropped",
    paper="McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-efficient learning of deep "
    "networks from decentralized data. AISTATS 2017, arXiv:1602.05629",
    config=FedAvgConfig,
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(
        shared_model=True,
    ),
    sends=Sent(
        summary="gradients, or weights, every round",
        protection=averaging.PROTECTION,
        messages=MESSAGES,
    ),
)
