"""FedAdam: Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar and McMahan, "Adaptive federated
optimization", ICLR 2021 (arXiv:2003.00295v5), Algorithm 2 with the Adam line.

    paper            here
    Delta_t          mean of the clients' w_k - w_t, weighted by n_k
    m_t, v_t         State.values["first"], ["second"], at the server
    eta, eta_l       server_lr, lr
    beta_1, beta_2, tau

Differs from the paper: clients have weight n_k; the paper's listing takes the plain mean. As in the paper
there is no bias correction, and v starts at tau^2.
"""

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.functions import full_like
from graphfed.methods import config as groups
from graphfed.methods.base import Method, State, StateValues, Task
from graphfed.methods.baselines import fedavg
from graphfed.methods.baselines.fedavg import WEIGHTS_SENT, average_local_training, predict

__all__ = ["METHOD", "FedAdamConfig", "ServerAdamSettings", "round", "with_moments"]

Tensors = dict[str, Tensor]


@dataclass(frozen=True, config={"extra": "forbid"})
class ServerAdamSettings:
    """Adam at the server."""

    server_lr: float = Field(
        default=0.01, gt=0, allow_inf_nan=False, description="learning rate of the server"
    )
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(default=0.99, ge=0, lt=1, description="decay of the second moment")
    tau: float = Field(
        default=1e-3,
        gt=0,
        allow_inf_nan=False,
        description="adaptivity: added to the root of the second moment",
    )


@dataclass(frozen=True, config={"extra": "forbid"})
class FedAdamConfig(
    ServerAdamSettings,
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
    """The settings of FedAdam."""


def setup(fed: Federation, data: Located, task: Task, config: FedAdamConfig) -> State:
    """Set up FedAvg with the server's moments."""
    return with_moments(fed, fedavg.setup(fed, data, task, config), config)


def with_moments(fed: Federation, state: State, config: ServerAdamSettings) -> State:
    """Add the server's moments before the first round to a state of FedAvg.

    Args:
        fed: The federation.
        state: The state.
        config: The settings of Adam at the server.

    Returns:
        The state with "first" and "second".
    """
    first = fed.server.run(full_like, state.weights, 0.0)
    second = fed.server.run(full_like, state.weights, config.tau**2)
    return State({**state.values, "first": first, "second": second}, state.prepared)


def server_step(
    weights: Tensors, mean: Tensors, first: Tensors, second: Tensors, config: ServerAdamSettings
) -> tuple[Tensors, Tensors, Tensors]:
    """Take the server's step of Adam on the mean update.

    Returns:
        The new weights, first and second moments.
    """
    new: Tensors = {}
    m: Tensors = {}
    v: Tensors = {}
    for k, w in weights.items():
        delta = mean[k] - w  # Alg. 2, l. 10
        m[k] = config.beta1 * first[k] + (1 - config.beta1) * delta  # Alg. 2, l. 11
        v[k] = config.beta2 * second[k] + (1 - config.beta2) * delta**2  # Alg. 2, l. 14
        new[k] = w + config.server_lr * m[k] / (v[k].sqrt() + config.tau)  # Alg. 2, l. 15
    return new, m, v


def round(fed: Federation, state: State, config: FedAdamConfig, number: int) -> State:
    """Run a round of FedAvg and take the server's step on the mean update.

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        number: The round, counted from 1.

    Returns:
        The next state.
    """
    mean, optimizer = average_local_training(fed, state, config, number)
    weights, first, second = fed.server.run(
        server_step, state.weights, mean, state.values["first"], state.values["second"], config, outputs=3
    )
    return State(
        {"weights": weights, "optimizer": optimizer, "first": first, "second": second}, state.prepared
    )


METHOD = Method(
    name="fedadam",
    summary="FedAvg with Adam at the server on the mean update",
    paper="Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive federated optimization. "
    "ICLR 2021, arXiv:2003.00295",
    config=FedAdamConfig,
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(
        shared_model=True,
    ),
    sends=WEIGHTS_SENT,
)
