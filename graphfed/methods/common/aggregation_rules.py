"""How the clients' training becomes the next model, for methods with the setting `rule`.

    fedavg   the mean of the clients' weights (`methods.fedavg`)
    fedprox  the same, with a proximal term at the clients (`methods.fedprox`)
    fedadam  Adam at the server on the mean update (`methods.fedadam`)
    scaffold control variates correct the clients' steps (`methods.scaffold`)
    fedsgd   the mean of the clients' gradients of one full-batch loss, weighted by their training nodes,
             and a step of `optimizer` at the server: the step of central training (McMahan et al. 2017).
             FedGAT's program calls it FedAvg
    admm     the clients minimise F_k(w_k) + <y_k, w_k - w> + rho / 2 ||w_k - w||^2, starting from their last
             w_k; the server takes the mean w of w_k + y_k / rho, and y_k grows by rho (w_k - w) (Boyd et al.,
             "Distributed optimization and statistical learning via the alternating direction method of
             multipliers", 2011, section 7.1). w_k and y_k stay at their client. Every client takes part in
             every round

Under every rule a client receives and sends one set of weights, or gradients, in a round; under scaffold also
one of control variates.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from graphfed.errors import InputError, shown
from graphfed.federation import Federation, Located
from graphfed.federation.functions import empty_state, full_like
from graphfed.federation.secure.aggregation import check_sums, protected_mean
from graphfed.methods.base import State, Task
from graphfed.methods.baselines import fedadam, fedavg, fedprox, scaffold
from graphfed.methods.baselines.fedadam import ServerAdamSettings
from graphfed.methods.baselines.fedavg import Clients, count_training
from graphfed.methods.common.local_training import (
    Prepared,
    each_value,
    personal_weights,
    train_pulled,
    values_of,
)
from graphfed.methods.config import (
    ControlVariates,
    GraphTraining,
    LocalStepsSettings,
    SamplingSettings,
    ServerOptimizerSettings,
    TrainingSettings,
    clients_in_round,
    sum_protection,
)
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import AdamState, Pull

__all__ = ["MESSAGES", "RuleSettings", "round", "setup", "start"]


@dataclass(frozen=True, config={"extra": "forbid"})
class RuleSettings(ControlVariates):
    """The choice of the rule. It is used together with the settings of all rules and
    `ServerOptimizerSettings`.
    """

    rule: Literal["fedavg", "fedprox", "fedadam", "scaffold", "fedsgd", "admm"] = Field(
        default="fedavg",
        description="how the clients' training becomes the next model; fedsgd: gradients are averaged, and "
        "optimizer, lr and weight_decay belong to the server",
    )
    rho: float = Field(
        default=0.1,
        gt=0,
        allow_inf_nan=False,
        description="with rule=admm: weight of the distance to the model",
    )

    @property
    def at_server(self) -> bool:
        """Whether the optimiser runs at the server."""
        assert isinstance(self, ServerOptimizerSettings)
        return self.rule == "fedsgd" or (self.rule == "fedavg" and self.asks_for_server)

    @property
    def keeps_controls(self) -> bool:
        """Whether clients keep control variates."""
        return self.rule == "scaffold"

    @model_validator(mode="after")
    def _rule_can_do_it(self) -> Self:
        config: object = self
        assert isinstance(config, LocalStepsSettings)
        assert isinstance(config, SamplingSettings)
        if self.rule == "fedsgd" and config.local_steps != 1:
            raise InputError(
                f"local_steps={config.local_steps} cannot be used with rule=fedsgd: expected 1, since a "
                "client sends one gradient in a round; leave it out, or set rule=fedavg"
            )
        if self.rule == "admm" and config.fraction < 1:
            raise InputError(
                f"fraction={shown(config.fraction)} cannot be used with rule=admm, which needs every client "
                "in every round; leave it at 1"
            )
        if self.rule == "scaffold":
            assert isinstance(config, TrainingSettings)
            scaffold.check_optimizer(config, "rule=scaffold")
        return self


class RuleTraining(GraphTraining, Protocol):
    """The settings that training by a rule reads."""

    @property
    def rule(self) -> str:
        """Name of the aggregation rule."""

    @property
    def rho(self) -> float:
        """Weight of the distance in ADMM."""


# ---- ADMM --------------------------------------------------------------------------------------------------


def admm_step(
    prepared: Prepared,
    shared: Weights,
    part: dict[str, Weights],
    optimizer: AdamState,
    config: RuleTraining,
    round_number: int,
) -> tuple[Weights, dict[str, Weights], AdamState]:
    """Run a client's step of ADMM.

    Args:
        part: The client's "weights" w_k and "dual" y_k; {} before the first round.

    Returns:
        w_k + y_k / rho - w, whose mean is the change of w; the new w_k and y_k; and the optimiser's state.
    """
    received = personal_weights(shared, prepared.train, config.network)
    if part:
        local = part["weights"]
        dual = each_value(lambda y, w, z: y + config.rho * (w - z), part["dual"], local, received)
    else:
        local, dual = received, each_value(torch.zeros_like, received)
    pull = Pull(config.rho, values_of(received), values_of(dual))
    trained, optimizer = train_pulled(prepared, local, optimizer, pull, config, round_number)
    # Averaged are changes: a weight that no client has moved stays what it is, to the last bit. Adam would
    # turn a rounding error of the mean into a difference w_k - w, and that into a step.
    change = each_value(lambda w, z, y: w - z + y / config.rho, trained, received, dual)
    return change, {"weights": trained, "dual": dual}, optimizer


def admm_round(fed: Federation, state: State, config: RuleTraining, round_number: int) -> State:
    """Run a round of ADMM."""
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    parts, optimizer = state.values["parts"], state.values["optimizer"]
    ready = clients.ready(fed, received, config)
    change, new, after = fed.clients.run(
        admm_step, ready, received, parts, optimizer, config, round_number, outputs=3
    )
    counts = fed.clients.run(count_training, clients.prepared)
    zero = fed.server.run(full_like, state.weights, 0.0)
    mean = protected_mean(fed, change, counts, clients.counts, zero, sum_protection(config), name="update")
    weights = fed.server.run(add_change, state.weights, mean)
    values = {"parts": fed.keep_absent(new, parts), "optimizer": fed.keep_absent(after, optimizer)}
    return State({"weights": weights, **values}, state.prepared)


def add_change(weights: Weights, change: Weights) -> Weights:
    """Return the next model."""
    return each_value(torch.add, weights, change)


# ---- all rules ---------------------------------------------------------------------------------------------

_ROUNDS: Mapping[str, Callable[[Federation, State, Any, int], State]] = {
    "fedavg": fedavg.round,
    "fedprox": fedprox.round,
    "fedadam": fedadam.round,
    "scaffold": scaffold.round,
    "fedsgd": fedavg.step_at_server,
    "admm": admm_round,
}


def start(fed: Federation, prepared: Located, task: Task, config: RuleTraining) -> State:
    """Return the first state: that of `fedavg.start`, with the values of the rule.

    Args:
        fed: The federation.
        prepared: `Prepared` at the clients.
        task: The task.
        config: The settings.

    Returns:
        The state.
    """
    state = fedavg.start(fed, prepared, task, config)
    if config.rule == "fedadam":
        assert isinstance(config, ServerAdamSettings)
        return fedadam.with_moments(fed, state, config)
    if config.rule == "scaffold":
        return scaffold.with_controls(fed, state)
    if config.rule == "admm":
        return State({**state.values, "parts": fed.clients.run(empty_state)}, state.prepared)
    return state


def setup(fed: Federation, data: Located, task: Task, config: RuleTraining) -> State:
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
    return start(fed, fed.clients.run(fedavg.prepare_own, data, config), task, config)


def round(fed: Federation, state: State, config: RuleTraining, round_number: int) -> State:
    """Run a round by the rule of the settings.

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        round_number: The round, counted from 1.

    Returns:
        The next state.
    """
    return _ROUNDS[config.rule](fed, state, config, round_number)


#: Descriptions of the transfers; with rule=admm another value is averaged, with rule=scaffold two.
MESSAGES: Mapping[str, str] = {
    **fedavg.MESSAGES,
    "update": f"{fedavg.MESSAGES['update']} With rule=admm the client sends how much its weights differ from "
    "the model, plus its dual divided by rho.",
    **scaffold.CONTROL_MESSAGES,
}
