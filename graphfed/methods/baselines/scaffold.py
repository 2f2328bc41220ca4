"""SCAFFOLD: Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: stochastic controlled averaging for
federated learning", ICML 2020 (arXiv:1910.06378v4), Algorithm 1 with option II of line 12, on graphs without
their cross-client edges.

    paper        here
    x, c         State.weights and State.values["control"], at the server
    c_i          State.values["own_control"], at the clients
    eta_l, K     lr, local_steps
    eta_g        1

Clients whose data differ pull the model in different directions, and the mean of their weights after several
local steps is not where the mean of their losses is smallest. Every step of a client adds c - c_i to its
gradient, which replaces what is special about the client's gradient by the mean of all clients. The clients
minimise the loss of all clients, with any number of local steps.

Differs from the paper: only option II of line 12 is here, and the server's rate eta_g is 1; the paper's
listing leaves both open. Clients have weight n_k / n, in the mean of the weights and in c, where the paper's
listing takes plain means. Steps are full-batch. Weight decay counts as a part of the loss.
"""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import empty_state, full_like
from graphfed.federation.secure.aggregation import messages, protected_mean
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.baselines import fedavg
from graphfed.methods.baselines.fedavg import WEIGHT_MESSAGES, Clients, count_training, predict
from graphfed.methods.common import averaging
from graphfed.methods.common.local_training import (
    Prepared,
    choose_clients,
    each_value,
    personal_weights,
    train_pulled,
    values_of,
)
from graphfed.methods.config import GraphTraining, sum_protection
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import Optimizer, Pull

__all__ = [
    "CONTROL_MESSAGES",
    "METHOD",
    "ScaffoldConfig",
    "check_optimizer",
    "round",
    "with_controls",
]

Tensors = dict[str, Tensor]


def check_optimizer(config: groups.TrainingSettings, name: str) -> None:
    """Check that clients take steps of gradient descent.

    Args:
        config: The settings.
        name: What asks for it, as in "scaffold".

    Raises:
        InputError: If the optimiser is another one. Control variates are mean gradients, which are computed
            from the distance that gradient descent covers.
    """
    if config.optimizer != "sgd":
        raise InputError(
            f"optimizer={config.optimizer} cannot be used with {name}, which computes each client's mean "
            "gradient from the steps of gradient descent; set optimizer=sgd"
        )


@dataclass(frozen=True, config={"extra": "forbid"})
class ScaffoldConfig(
    groups.ControlVariates,
    groups.SamplingSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.LocalStepsSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of SCAFFOLD."""

    optimizer: Optimizer = Field(default="sgd", description="optimiser of the clients; only sgd")

    @model_validator(mode="after")
    def _gradient_descent(self) -> Self:
        check_optimizer(self, "scaffold")
        return self


def setup(fed: Federation, data: Located, task: Task, config: ScaffoldConfig) -> State:
    """Set up FedAvg with control variates of zero."""
    return with_controls(fed, fedavg.setup(fed, data, task, config))


def with_controls(fed: Federation, state: State) -> State:
    """Add control variates of zero to a state of FedAvg.

    Args:
        fed: The federation.
        state: The state.

    Returns:
        The state with "control" at the server and "own_control" at the clients.
    """
    control = fed.server.run(full_like, state.weights, 0.0)
    own = fed.clients.run(empty_state)
    return State({"weights": state.weights, "control": control, "own_control": own}, state.prepared)


def train(
    prepared: Prepared,
    shared: Weights,
    control: Weights,
    kept: Mapping[str, Weights],
    present: Tensor,
    config: GraphTraining,
    number: int,
) -> tuple[Weights, Weights, dict[str, Weights]]:
    """Take `local_steps` corrected steps of every client, and compute its new control variate.

    Args:
        prepared: The batches.
        shared: The model.
        control: c.
        kept: The clients' "control" c_i, [K, ...]; {} for zero.
        present: [K] bool: the clients that take part. The results of others are meaningless, and the transfer
            that follows leaves them out; their c_i does not change.
        config: The settings.
        number: The round.

    Returns:
        The clients' weights y_i, the changes of c_i, and what they keep.
    """
    x = personal_weights(shared, prepared.train, config.network)
    c = personal_weights(control, prepared.train, config.network)
    own = kept["control"] if kept else each_value(torch.zeros_like, x)
    correction = each_value(torch.sub, c, own)
    pull = Pull(0.0, values_of(x), values_of(correction))
    y, _ = train_pulled(prepared, x, {}, pull, config, number)  # Alg. 1, l. 8-11
    covered = config.local_steps * config.lr
    new = each_value(lambda k, x, y: (x - y) / covered - k, correction, x, y)  # Alg. 1, l. 12, option II
    change = each_value(torch.sub, new, own)
    return y, change, {"control": choose_clients(present, new, own)}


def move_control(control: Tensors, mean: Tensors, counts: Tensor, members: tuple[int, ...]) -> Tensors:
    """Add the clients' changes to c.

    Args:
        control: c.
        mean: The mean change of the clients that took part, by n_k.
        counts: [K] n_k.
        members: The clients that took part.

    Returns:
        c + sum_i (n_i / n) (c_i+ - c_i).
    """
    share = float(counts[list(members)].sum() / counts.sum())
    return {k: c + share * mean[k] for k, c in control.items()}  # Alg. 1, l. 17


def round(fed: Federation, state: State, config: Any, number: int) -> State:
    """Run a round: corrected local training, and the means of weights and control variates.

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        number: The round, counted from 1.

    Returns:
        The next state.
    """
    clients: Clients = state.prepared
    server_control, own = state.values["control"], state.values["own_control"]
    received = fed.broadcast(state.weights, name="model", grad=False)
    control = fed.broadcast(server_control, name="control_variate", grad=False, like=received)
    ready = clients.ready(fed, received, config)
    local, change, kept = fed.clients.run(
        train, ready, received, control, own, fed.present(), config, number, outputs=3
    )
    counts = fed.clients.run(count_training, clients.prepared)
    protection = sum_protection(config)
    weights = protected_mean(fed, local, counts, clients.counts, state.weights, protection, name="update")
    zero = fed.server.run(full_like, server_control, 0.0)
    mean = protected_mean(
        fed, change, counts, clients.counts, zero, protection, name="control_variate_change"
    )
    members = tuple(np.flatnonzero(fed.roster).tolist())
    moved = fed.server.run(move_control, server_control, mean, clients.counts, members)
    values = {"weights": weights, "control": moved, "own_control": fed.keep_absent(kept, own)}
    return State(values, state.prepared)


#: The transfers of control variates.
CONTROL_MESSAGES = {
    "control_variate": "The server sends every client the mean of the clients' control variates, which is "
    "close to the gradient of the loss of all clients.",
    "control_variate_change": "With aggregation=plaintext every client sends the server the change of its "
    "control variate, from which its mean gradient in the round follows. The server averages the changes by "
    "the number of training nodes and reads each client's; features and labels of training nodes can in part "
    "be inferred from it.",
    **messages(
        "control_variate_change",
        "With aggregation=secure, in every round",
        "the change of a client's control variate, times its number of training nodes",
    ),
}

METHOD = Method(
    name="scaffold",
    summary="FedAvg whose clients correct their steps for the differences of their data (option II of the "
    "paper, server rate 1, clients weighted by their training nodes)",
    paper="Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: stochastic controlled averaging for "
    "federated learning. ICML 2020, arXiv:1910.06378",
    config=ScaffoldConfig,
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(
        shared_model=True,
    ),
    sends=Sent(
        "weights and control variates, every round",
        averaging.PROTECTION,
        {**WEIGHT_MESSAGES, **CONTROL_MESSAGES},
    ),
    defaults={"lr": 0.1, "local_steps": 5},
)
