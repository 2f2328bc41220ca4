"""FedAvgM: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019 (arXiv:1909.06335v1), Section 4.3: FedAvg with momentum at the server.

    paper        here
    w            State.weights, at the server
    v            State.values["velocity"], at the server
    beta         momentum
    Delta w      the weights minus the mean of the clients' weights, weighted by n_k

Differs from the paper: full-batch steps stand for epochs of mini-batches. With momentum=0 it is FedAvg.
"""

from dataclasses import replace

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.methods import config as groups
from graphfed.methods.base import State, Task
from graphfed.methods.baselines import fedavg

__all__ = ["METHOD", "FedAvgMConfig"]

Tensors = dict[str, Tensor]


@dataclass(frozen=True, config={"extra": "forbid"})
class FedAvgMConfig(
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
    """The settings of FedAvgM."""

    momentum: float = Field(default=0.9, ge=0, lt=1, description="momentum of the server")


def no_velocity(weights: Tensors) -> Tensors:
    return {name: torch.zeros_like(w) for name, w in weights.items()}


def server_step(
    weights: Tensors, mean: Tensors, velocity: Tensors, momentum: float
) -> tuple[Tensors, Tensors]:
    v = {name: momentum * velocity[name] + (w - mean[name]) for name, w in weights.items()}
    return {name: w - v[name] for name, w in weights.items()}, v


def setup(fed: Federation, data: Located, task: Task, config: FedAvgMConfig) -> State:
    state = fedavg.setup(fed, data, task, config)
    velocity = fed.server.run(no_velocity, state.weights)
    return State({**state.values, "velocity": velocity}, state.prepared)


def round(fed: Federation, state: State, config: FedAvgMConfig, number: int) -> State:
    mean, optimizer = fedavg.average_local_training(fed, state, config, number)
    weights, velocity = fed.server.run(
        server_step, state.weights, mean, state.values["velocity"], config.momentum, outputs=2
    )
    return State({"weights": weights, "optimizer": optimizer, "velocity": velocity}, state.prepared)


METHOD = replace(
    fedavg.METHOD,
    name="fedavgm",
    summary="FedAvg with momentum at the server",
    paper="Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual "
    "classification. 2019, arXiv:1909.06335",
    config=FedAvgMConfig,
    setup=setup,
    round=round,
    sends=fedavg.WEIGHTS_SENT,
)
