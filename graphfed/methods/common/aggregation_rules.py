"""How the clients' training becomes the next model, for methods that leave the choice: `rule`.

    fedavg   the mean of the clients' weights (`methods.fedavg`)
    fedprox  the same, with a proximal term at the clients (`methods.fedprox`)
    fedadam  Adam at the server on the mean update (`methods.fedadam`)
    fedsgd   the mean of the clients' gradients of one full-batch loss, weighted by their training nodes,
             and a step of `optimizer` at the server: the step that central training takes (McMahan et al.
             2017). It is what FedGAT's program calls FedAvg
    admm     the clients minimise F_k(w_k) + <y_k, w_k - w> + rho / 2 ||w_k - w||^2 from where they were, the
             server takes the mean w of w_k + y_k / rho, and y_k grows by rho (w_k - w) (Boyd, Parikh, Chu,
             Peleato and Eckstein, "Distributed optimization and statistical learning via the alternating
             direction method of multipliers", 2011, section 7.1). w_k and y_k stay at their client; both
             could not be kept apart of those that are absent, so every client takes part in every round

What crosses is one set of weights, or gradients, each way and round under every rule."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, Self

import torch
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor

from graphfed.errors import InputError, shown
from graphfed.federation import Federation, Located
from graphfed.federation.functions import empty_state
from graphfed.federation.secure.aggregation import check_sums, protected_mean
from graphfed.methods.base import State, Task
from graphfed.methods.baselines import fedadam, fedavg, fedprox
from graphfed.methods.baselines.fedadam import ServerAdamSettings
from graphfed.methods.baselines.fedavg import Clients, count_training
from graphfed.methods.common.local_training import (
    Prepared,
    Pull,
    personal_weights,
    train_pulled,
)
from graphfed.methods.config import (
    GraphTraining,
    LocalStepsSettings,
    SamplingSettings,
    ServerOptimizerSettings,
    clients_in_round,
    sum_protection,
)
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import AdamState
from graphfed.nn.sparse import SparseWeights

__all__ = ["MESSAGES", "RuleSettings", "round", "setup", "start"]


@dataclass(frozen=True, config={"extra": "forbid"})
class RuleSettings:
    """The choice of the rule. It goes with the settings of all rules and with `ServerOptimizerSettings`."""

    rule: Literal["fedavg", "fedprox", "fedadam", "fedsgd", "admm"] = Field(
        default="fedavg",
        description="how the clients' training becomes the next model; fedsgd: gradients are averaged, and "
        "optimizer, lr and weight_decay are the server's",
    )
    rho: float = Field(
        default=0.1,
        gt=0,
        allow_inf_nan=False,
        description="of rule=admm: weight of the distance to the model",
    )

    @property
    def at_server(self) -> bool:
        """Whether the optimiser runs at the server."""
        assert isinstance(self, ServerOptimizerSettings)
        return self.rule == "fedsgd" or (self.rule == "fedavg" and self.asks_for_server)

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
        return self


class RuleTraining(GraphTraining, Protocol):
    """What training by a rule reads of a config."""

    @property
    def rule(self) -> str: ...
    @property
    def rho(self) -> float: ...


# ---- ADMM --------------------------------------------------------------------------------------------------


def admm_step(
    prepared: Prepared,
    shared: Weights,
    part: dict[str, Weights],
    optimizer: AdamState,
    config: RuleTraining,
    number: int,
) -> tuple[Weights, dict[str, Weights], AdamState]:
    """w_k + y_k / rho, then the client's own "weights" w_k and "dual" y_k ({} before the first round)."""
    here = personal_weights(shared, prepared.train, config.network)
    if part:
        own = part["weights"]
        dual = _each(lambda y, w, z: y + config.rho * (w - z), part["dual"], own, here)
    else:
        own, dual = here, _each(torch.zeros_like, here)
    pull = Pull(config.rho, here, dual)
    trained, optimizer = train_pulled(prepared, own, optimizer, pull, config, number)
    told = _each(lambda w, y: w + y / config.rho, trained, dual)
    return told, {"weights": trained, "dual": dual}, optimizer


def _each(fn: Callable[..., Tensor], first: Weights, *others: Weights) -> Weights:
    """fn of the numbers of several weights that are stored alike."""
    found: Weights = {}
    for k, w in first.items():
        theirs = [x[k] for x in others]
        if isinstance(w, SparseWeights):
            found[k] = w.with_values(fn(w.values, *(x.values for x in theirs)))
        else:
            found[k] = fn(w, *theirs)
    return found


def admm_round(fed: Federation, state: State, config: RuleTraining, number: int) -> State:
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    parts, optimizer = state.values["parts"], state.values["optimizer"]
    ready = clients.ready(fed, received, config)
    told, new, after = fed.clients.run(
        admm_step, ready, received, parts, optimizer, config, number, outputs=3
    )
    counts = fed.clients.run(count_training, clients.prepared)
    mean = protected_mean(
        fed, told, counts, clients.counts, state.weights, sum_protection(config), name="update"
    )
    values = {"parts": fed.keep_absent(new, parts), "optimizer": fed.keep_absent(after, optimizer)}
    return State({"weights": mean, **values}, state.prepared)


# ---- all of them -------------------------------------------------------------------------------------------

_ROUNDS: Mapping[str, Callable[[Federation, State, Any, int], State]] = {
    "fedavg": fedavg.round,
    "fedprox": fedprox.round,
    "fedadam": fedadam.round,
    "fedsgd": fedavg.step_at_server,
    "admm": admm_round,
}


def start(fed: Federation, prepared: Located, task: Task, config: RuleTraining) -> State:
    """`fedavg.start`, with what the rule keeps beside."""
    state = fedavg.start(fed, prepared, task, config)
    if config.rule == "fedadam":
        assert isinstance(config, ServerAdamSettings)
        return fedadam.with_moments(fed, state, config)
    if config.rule == "admm":
        return State({**state.values, "parts": fed.clients.run(empty_state)}, state.prepared)
    return state


def setup(fed: Federation, data: Located, task: Task, config: RuleTraining) -> State:
    """`fedavg.setup`: every client's own subgraph."""
    check_sums(fed, sum_protection(config), clients_in_round(config, fed.num_clients))
    return start(fed, fed.clients.run(fedavg.prepare_own, data, config), task, config)


def round(fed: Federation, state: State, config: RuleTraining, number: int) -> State:
    return _ROUNDS[config.rule](fed, state, config, number)


#: Beside those of fedavg.
MESSAGES: Mapping[str, str] = {
    **fedavg.MESSAGES,
    "update": f"{fedavg.MESSAGES['update']} With rule=admm its dual, divided by rho, is added to them.",
}
