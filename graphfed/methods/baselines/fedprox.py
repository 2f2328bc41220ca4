"""FedProx: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous
networks", MLSys 2020 (arXiv:1812.06127v5): FedAvg whose clients minimise F_k(w) + mu/2 ||w - w_t||^2.

    paper        here
    mu           mu
    w^t          the weights received at the start of the round

Differs from the paper: full-batch gradient steps stand for the gamma-inexact solution. With mu = 0 it is
FedAvg, bit for bit."""

from pydantic import Field
from pydantic.dataclasses import dataclass

from graphfed.federation import Federation
from graphfed.methods.base import Method, State
from graphfed.methods.baselines.fedavg import WEIGHT_MESSAGES, average_local_training, predict, setup
from graphfed.methods.common.averaging import PROTECTION, AveragingConfig

__all__ = ["METHOD", "FedProxConfig", "round"]


@dataclass(frozen=True, config={"extra": "forbid"})
class FedProxConfig(AveragingConfig):
    mu: float = Field(default=0.01, ge=0, allow_inf_nan=False, description="strength of the proximal term")

    @property
    def at_server(self) -> bool:
        """Clients always train by themselves."""
        return False


def round(fed: Federation, state: State, config: FedProxConfig, number: int) -> State:
    weights, optimizer = average_local_training(fed, state, config, number, proximal=config.mu)
    return State({"weights": weights, "optimizer": optimizer}, state.prepared)


METHOD = Method(
    name="fedprox",
    summary="FedAvg with a proximal term that keeps clients near the shared weights",
    paper="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks. "
    "MLSys 2020, arXiv:1812.06127",
    crosses="weights, every round",
    protection=PROTECTION,
    config=FedProxConfig,
    setup=setup,
    round=round,
    predict=predict,
    messages=WEIGHT_MESSAGES,
    dropouts=True,
    shared_model=True,
)
