"""The program of all methods that average what clients have trained.

    setup    every client prepares its view of the graph (the exchange of a method); the server draws the
             first weights and learns the numbers of training nodes
    round    the server sends the model, the clients train by the rule's local step, the means over the
             clients go to the server, which takes the rule's step
    predict  every client predicts with its view and the current model

A method chooses the view (`start` takes it prepared), the network by its settings, and a rule by its setting
`rule` (`averaging.rules`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import empty_state, full_like
from graphfed.federation.secure.aggregation import check_sums, messages, protected_mean
from graphfed.federation.transfer import describe_value
from graphfed.methods.averaging.rules import RULES
from graphfed.methods.averaging.rules.base import Rule, Tensors, Values
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import State, Task
from graphfed.methods.common.local_training import (
    NO_TRAINING_NODE,
    Prepared,
    initial_weights,
    predict_shared,
    prepare,
    prepare_own,
)
from graphfed.methods.parts import clients_in_round
from graphfed.nn.batch import View


@dataclass(frozen=True)
class Clients:
    """What set-up prepares.

    Attributes:
        prepared: `Prepared` at the clients.
        counts: At the server: [K] training nodes of each client.
        exchange: (fed, prepared, received, config) -> `prepared` after the exchange that clients make with
            each other when they have received new weights; None: no exchange.
    """

    prepared: Located
    counts: Located
    exchange: Callable[[Federation, Located, Located, Any], Located] | None = None

    def ready(self, fed: Federation, received: Located, config: AveragingSettings) -> Located:
        """Return `Prepared` at the clients for new weights."""
        return self.prepared if self.exchange is None else self.exchange(fed, self.prepared, received, config)


def rule_of(config: AveragingSettings) -> Rule:
    """Return the rule that settings choose. FedAvg whose optimiser runs at the server is FedSGD: with one
    local step the mean of the weights is a step on the mean of the gradients.
    """
    at_server = config.rule == "fedavg" and config.server.asks_for_server(config.steps)
    return RULES["fedsgd" if at_server else config.rule]


def check_settings(config: AveragingSettings) -> None:
    """Raise InputError if the rule cannot be used with the other settings."""
    rule_of(config).check(config)


# ---- at the clients ----------------------------------------------------------------------------------------


def prepare_view(cohort: Cohort, view: View, place: Tensor | None, config: AveragingSettings) -> Prepared:
    """Prepare the batches of a view of the graph; see `local_training.prepare`."""
    keeps = rule_of(config).keeps_weights
    return prepare(cohort, view, place, config, personal=False, keeps_values=keeps)


def count_training(prepared: Prepared) -> Tensor:
    """Return the number of training nodes of each client."""
    return prepared.counts


# ---- at the server -----------------------------------------------------------------------------------------


def check_counts(counts: Tensor) -> Tensor:
    """Raise InputError if no client has a training node."""
    if not bool(counts.any()):
        raise InputError(NO_TRAINING_NODE)
    return counts


def accept_counts(counts: Tensor, declared: Mapping[str, np.ndarray]) -> str:
    """Check the numbers of training nodes [K_h] of another process; see `transfer.Accept`.

    Returns:
        The reason why they cannot be used; empty if they can.
    """
    # A negative weight would subtract the client's update from the mean.
    if counts.dtype != torch.int64 or counts.dim() != 1 or bool((counts < 0).any()):
        return f"{describe_value(counts)} where each client's number of training nodes is expected"
    # A client that declares few nodes and reports many would dominate the average.
    for count, most in zip(counts.tolist(), declared.get("train", ()), strict=False):
        if count > most:
            return f"{count} training nodes, but the client declared {most} when it joined"
    return ""


def select(values: Values, name: str) -> Any:
    """Return one of the server's values."""
    return values[name]


def share_of(mean: Tensors, counts: Tensor, members: tuple[int, ...]) -> Tensors:
    """Multiply a mean by the share that the clients of a round have of all training nodes."""
    share = float(counts[list(members)].sum() / counts.sum())
    return {k: share * x for k, x in mean.items()}


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: AveragingSettings) -> State:
    """Set up training on every client's own subgraph.

    Args:
        fed: The places of the program, and the transfers between them.
        data: A `Cohort` at the clients, with their own nodes and edges.
        task: Width of the features and number of classes, which everyone knows.
        config: The settings; a protection of sums may require a least number of clients.

    Returns:
        The state before the first round; see `start`.
    """
    # Refuse before anything is sent: a sum over too few clients would hide nothing.
    check_sums(fed, config.sums.aggregation, clients_in_round(config, fed.num_clients))
    return start(fed, fed.clients.run(prepare_own, data, config, rule_of(config).keeps_weights), task, config)


def start(fed: Federation, prepared: Located, task: Task, config: AveragingSettings) -> State:
    """Draw the first weights at the server and collect the numbers of training nodes.

    Args:
        fed: The places of the program, and the transfers between them.
        prepared: `Prepared` at the clients, from `prepare_view` or `prepare_own`.
        task: Width of the features and number of classes, which everyone knows.
        config: The settings, whose rule makes the server's first values.

    Returns:
        The first state: "weights" and "server" at the server, what the rule keeps "clients" at the clients.
    """
    counts = gather_counts(fed, prepared)
    drawn = (task, config.network, config.run.seed, str(fed.device))
    # Every process draws the same weights from the settings, to know the form of what it receives.
    fed.expect("model", initial_weights, *drawn)
    weights = fed.server.run(initial_weights, *drawn)
    # Clients keep nothing before their first round; `rule.local` starts what it finds missing.
    server = fed.server.run(rule_of(config).first, weights, config)
    values = {"weights": weights, "server": server, "clients": fed.clients.run(empty_state)}
    return State(values, Clients(prepared, counts))


def gather_counts(fed: Federation, prepared: Located) -> Located:
    """Send the server each client's number of training nodes, [K]; InputError if all are 0."""
    counts = fed.clients.run(count_training, prepared)
    counts = fed.gather(counts, name="training_counts", grad=False, accept=accept_counts)
    # Refuse before training: without any training node every round would leave the model as it is.
    return fed.server.run(check_counts, counts)


def round(fed: Federation, state: State, config: AveragingSettings, number: int) -> State:
    """Run a round: broadcast the model, train at the clients, average, and take the rule's server step.

    Args:
        fed: The places of the program; its roster has the clients of the round.
        state: The state of `start` or of the round before.
        config: The settings; `rule_of` them is the rule.
        number: The round, counted from 1; dropout is drawn from it.

    Returns:
        The state after the round. Absent clients keep what they had.
    """
    rule, clients = rule_of(config), state.prepared
    weights, server, kept = (state.values[name] for name in ("weights", "server", "clients"))
    received = [fed.broadcast(weights, name="model", grad=False)]
    if rule.sends is not None:
        value, name = rule.sends
        # The value has the form of the model, such as SCAFFOLD's control variate.
        sent = fed.server.run(select, server, value)
        received.append(fed.broadcast(sent, name=name, grad=False, like=received[0]))
    # Clients may have to exchange rows again, because those of the last round belong to the old weights.
    ready = clients.ready(fed, received[0], config)
    *local, after = fed.clients.run(
        rule.local, ready, *received, kept, fed.present(), config, number, outputs=len(rule.averages) + 1
    )
    counts = fed.clients.run(count_training, clients.prepared)
    # w_{t+1} = sum_k (n_k / n) w_k; clients without training nodes take part with weight 0.
    means = []
    for average, value in zip(rule.averages, local, strict=True):
        # The value of the mean if no client of the round has a training node.
        otherwise = weights if average.of_model else fed.server.run(full_like, weights, 0.0)
        mean = protected_mean(
            fed, value, counts, clients.counts, otherwise, config.sums.aggregation, name=average.name
        )
        if average.share:
            # A mean over the round, not over all clients: absent ones count with a value of 0.
            members = tuple(np.flatnonzero(fed.roster).tolist())
            mean = fed.server.run(share_of, mean, clients.counts, members)
        means.append(mean)
    if rule.step is None:
        (weights,) = means
    else:
        weights, server = fed.server.run(rule.step, weights, server, *means, config, outputs=2)
    # Absent clients have computed too, on rows without meaning; what they kept before stays.
    return State({"weights": weights, "server": server, "clients": fed.keep_absent(after, kept)}, clients)


def predict(fed: Federation, state: State, config: AveragingSettings, target: str) -> Located:
    """Predict at every client with its view and the server's current weights.

    Args:
        fed: The places of the program, and the transfers between them.
        state: A state of `round`, or one with the weights of an earlier round.
        config: The settings, of which the network is read.
        target: "val", "test" or "all", which is every owned node.

    Returns:
        At the clients: logits [n, C].
    """
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    prepared = clients.ready(fed, received, config)
    return fed.clients.run(predict_shared, prepared, received, config.network, target)


#: Descriptions of the transfers of a secure average of `update`.
SECURE_UPDATE = messages(
    "update",
    "With aggregation=secure, in every round",
    "a client's weights, times its number of training nodes",
)
#: The transfers of rules that average weights.
MESSAGES = {
    "training_counts": "Every client sends the server the number of its training nodes. The server reads it.",
    "model": "The server sends the shared model's weights to every client.",
    "update": "With several local steps (optimizer_at=clients) and aggregation=plaintext every client sends "
    "the server its model weights after local training. The server averages them by the number of training "
    "nodes and reads each client's weights, from which features and labels of training nodes can in part be "
    "inferred.",
    **SECURE_UPDATE,
}
#: The transfers of methods with the setting `rule`; with rule=admm another value is averaged.
RULE_MESSAGES = {
    **MESSAGES,
    **RULES["fedsgd"].messages,
    "update": f"{MESSAGES['update']} With rule=admm the client sends how much its weights differ from "
    "the model, plus its dual divided by rho.",
    **RULES["scaffold"].messages,
}
#: For the table of methods.
PROTECTION = "none: in plaintext; with aggregation=secure the server reads the sum of the weights only"
