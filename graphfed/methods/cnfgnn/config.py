"""The settings of CNFGNN."""

from typing import Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass as config_dataclass

from graphfed.methods import config as groups
from graphfed.methods.cnfgnn.server_gnn import check_gat
from graphfed.privacy.gaussian import composed_gaussian_epsilon

ALTERNATING = ("at_fedavg", "at")


@config_dataclass(frozen=True, config={"extra": "forbid"})
class CNFGNNConfig(
    groups.SequenceTrainingSettings,
    groups.RecurrentSettings,
    groups.WindowSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.ClientStateSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of CNFGNN."""

    strategy: Literal["at_fedavg", "at", "sl_fedavg", "sl", "centralised"] = Field(
        default="at_fedavg",
        description="how the networks are trained: alternating with averaged weights (at_fedavg, the "
        "paper's) or with each client's own weights (at); by split learning with averaged (sl_fedavg) or "
        "own weights (sl); or at the server, which receives all readings (centralised)",
    )
    local_epochs: int = Field(
        default=1,
        ge=1,
        description="number of passes of a client over its windows in a round (R_c; alternating only)",
    )
    server_rounds: int = Field(
        default=1,
        ge=1,
        description="number of passes of the server over the windows in a round (R_s; alternating only)",
    )
    server_lr: float = Field(
        default=1e-3, gt=0, allow_inf_nan=False, description="learning rate of the server's graph network"
    )
    network: Literal["graph_network", "mean_network", "gat", "diffusion"] = Field(
        default="mean_network",
        description="the server's network: the paper's graph network, the same with means in place of sums "
        "(which suits sensors that training did not see), graph attention, or the diffusion convolution of "
        "DCRNN",
    )
    server_batch: int = Field(
        default=48,
        ge=1,
        description="number of windows in a step of the server's graph network (alternating only)",
    )

    hidden_bits: Literal[8, 32] = Field(
        default=32, description="bits of each number of an encoding that a client sends the server"
    )
    clip: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="largest 2-norm of an encoding; clients clip encodings and add noise (none: they do "
        "neither)",
    )
    noise_multiplier: float = Field(
        default=5.0,
        gt=0,
        allow_inf_nan=False,
        description="standard deviation of the noise on clipped encodings, divided by twice the clip",
    )
    delta: float = Field(
        default=1e-5, gt=0, lt=1, description="delta of the epsilon that is reported for noised encodings"
    )

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "CNFGNNConfig":
        if self.network == "gat":
            check_gat(self.hidden)
        return self

    @property
    def averages(self) -> bool:
        """Whether the clients' weights are averaged, so that all clients share them."""
        return self.strategy in ("at_fedavg", "sl_fedavg")


def releases(config: CNFGNNConfig) -> int:
    """Return the largest number of encodings that depend on one reading.

    A reading is in `lags` windows; each is encoded once in every round or evaluation, and once at the end.
    """
    return config.lags * (config.rounds + 1)


def epsilon_of(config: CNFGNNConfig) -> float:
    """Compute the epsilon of all encodings of a run together.

    It holds for any two values of one reading of one sensor, given the common scale and the weights of every
    round. The scale and the weights depend on the reading too, and clients send them without noise; epsilon
    does not cover them.

    Returns:
        Epsilon at ``config.delta``.
    """
    return composed_gaussian_epsilon(config.noise_multiplier, config.delta, releases(config))
