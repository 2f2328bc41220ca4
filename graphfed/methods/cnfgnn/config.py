"""The settings of CNFGNN."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from graphfed.methods.cnfgnn.server_gnn import SERVER_NETWORKS, NetworkFunctions, check_gat
from graphfed.methods.parts import (
    ClientOptimizer,
    Protocols,
    Recurrent,
    Run,
    Sequences,
    Sums,
    Training,
    Windows,
)
from graphfed.methods.settings import Only, Unless, settings
from graphfed.privacy.gaussian import composed_gaussian_epsilon

ALTERNATING = ("at_fedavg", "at")


@settings
class Schedule:
    """How the networks are trained."""

    strategy: Literal["at_fedavg", "at", "sl_fedavg", "sl", "centralised"] = Field(
        default="at_fedavg",
        description="how the networks are trained: alternating with averaged weights (at_fedavg, the "
        "paper's) or with each client's own weights (at); by split learning with averaged (sl_fedavg) or "
        "own weights (sl); or at the server, which receives all readings (centralised)",
    )
    local_epochs: Annotated[int, Only("strategy", *ALTERNATING)] = Field(
        default=1, ge=1, description="number of passes of a client over its windows in a round (R_c)"
    )
    server_rounds: Annotated[int, Only("strategy", *ALTERNATING)] = Field(
        default=1, ge=1, description="number of passes of the server over the windows in a round (R_s)"
    )

    @property
    def alternates(self) -> bool:
        """Whether clients and server train in turns."""
        return self.strategy in ALTERNATING

    @property
    def averages(self) -> bool:
        """Whether the clients' weights are averaged, so that all clients share them."""
        return self.strategy in ("at_fedavg", "sl_fedavg")


@settings
class ServerNetwork:
    """The server's graph network."""

    server_lr: float = Field(
        default=1e-3, gt=0, allow_inf_nan=False, description="learning rate of the server's graph network"
    )
    network: Literal["graph_network", "mean_network", "gat", "diffusion"] = Field(
        default="mean_network",
        description="the server's network: the paper's graph network, the same with means in place of sums "
        "(which suits sensors that training did not see), graph attention, or the diffusion convolution of "
        "DCRNN",
    )
    server_batch: Annotated[int, Only("strategy", *ALTERNATING)] = Field(
        default=48, ge=1, description="number of windows in a step of the server's graph network"
    )

    @property
    def functions(self) -> NetworkFunctions:
        """The functions of the network."""
        return SERVER_NETWORKS[self.network]


@settings
class Encodings:
    """What clients do to encodings before they send them."""

    hidden_bits: Annotated[Literal[8, 32], Unless("strategy", "centralised")] = Field(
        default=32, description="bits of each number of an encoding that a client sends the server"
    )
    clip: Annotated[float | None, Unless("strategy", "centralised")] = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="largest 2-norm of an encoding; clients clip encodings and add noise (none: they do "
        "neither)",
    )
    noise_multiplier: Annotated[float, Unless("clip", None)] = Field(
        default=5.0,
        gt=0,
        allow_inf_nan=False,
        description="standard deviation of the noise on clipped encodings, divided by twice the clip",
    )
    delta: Annotated[float, Unless("clip", None)] = Field(
        default=1e-5, gt=0, lt=1, description="delta of the epsilon that is reported for noised encodings"
    )


@settings
class CNFGNNConfig:
    """The settings of CNFGNN."""

    run: Run = Run()
    training: Training = Training()
    client_optimizer: ClientOptimizer = ClientOptimizer()
    protocols: Protocols = Protocols()
    sums: Sums = Sums()
    windows: Windows = Windows()
    recurrent: Recurrent = Recurrent()
    sequences: Sequences = Sequences()
    schedule: Schedule = Schedule()
    server_network: ServerNetwork = ServerNetwork()
    encodings: Encodings = Encodings()

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> "CNFGNNConfig":
        if self.server_network.network == "gat":
            check_gat(self.recurrent.hidden)
        return self


def releases(config: CNFGNNConfig) -> int:
    """Return the largest number of encodings that depend on one reading.

    A reading is in `lags` windows; each is encoded once in every round or evaluation, and once at the end. A
    run that is resumed repeats at most one round, which releases the encodings of its windows once more.
    """
    # With split learning too: a round encodes each training window once, and each evaluation its own windows.
    return config.windows.lags * (config.run.rounds + 1)


def epsilon_of(config: CNFGNNConfig) -> float:
    """Compute the epsilon, at delta, of all encodings of a run together.

    It holds for any two values of one reading of one sensor, given the common scale and the weights of every
    round. The scale and the weights depend on the reading too, and clients send them without noise; epsilon
    does not cover them.
    """
    # Each encoding is one Gaussian mechanism of sensitivity 2 clip, and all of them compose.
    noise = config.encodings
    return composed_gaussian_epsilon(noise.noise_multiplier, noise.delta, releases(config))
