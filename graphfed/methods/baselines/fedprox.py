"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous
networks", MLSys 2020 (arXiv:1812.06127v5): FedAvg whose clients minimise F_k(w) + mu/2 ||w - w_t||^2.

    paper        here
    mu           mu
    w^t          the weights received at the start of the round

Differs from the paper: full-batch gradient steps in the place of the gamma-inexact solution; with Adam
proximal steps (`nn.optim.adam`), so that the term keeps its strength. With mu = 0 it is FedAvg, bit for bit.
"""

from dataclasses import replace

from pydantic import Field
from pydantic.dataclasses import dataclass

from graphfed.federation import Federation
from graphfed.methods import config as groups
from graphfed.methods.base import State
from graphfed.methods.baselines import fedavg

__all__ = ["METHOD", "FedProxConfig", "ProximalSettings", "round"]


@dataclass(frozen=True, config={"extra": "forbid"})
class ProximalSettings:
    """The proximal term."""

    mu: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="strength of the proximal term")


@dataclass(frozen=True, config={"extra": "forbid"})
class FedProxConfig(
    ProximalSettings,
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
    """The settings of FedProx."""


def round(fed: Federation, state: State, config: FedProxConfig, number: int) -> State:
    """Run a round of FedAvg with the proximal term.

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        number: The round, counted from 1.

    Returns:
        The next state.
    """
    weights, optimizer = fedavg.average_local_training(fed, state, config, number, proximal=config.mu)
    return State({"weights": weights, "optimizer": optimizer}, state.prepared)


METHOD = replace(
    fedavg.METHOD,
    name="fedprox",
    summary="FedAvg with a proximal term that keeps clients near the shared weights",
    paper="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. "
    "MLSys 2020, arXiv:1812.06127",
    config=FedProxConfig,
    round=round,
    sends=fedavg.WEIGHTS_SENT,
)
