"""A recurrent forecaster, averaged over all sensors after every round: the baseline "GRU + FedAvg" of CNFGNN
(Meng, Rambhatla and Liu, KDD 2021, Table 7). Sensors do not receive readings of other sensors, and the road
graph is not used.

Scheduled sampling ends almost at once (teacher=1), as in the authors' program.
"""

from pydantic.dataclasses import dataclass

from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.series import SensorData
from graphfed.methods import config as groups
from graphfed.methods.averaging import program as averaging
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.common.forecasting import (
    MESSAGES,
    Standardised,
    Weights,
    expanded,
    fit_scaler,
)
from graphfed.methods.common.local_forecasters import (
    GRU_DEFAULTS,
    LocalEpochSettings,
    Prepared,
    average,
    first_forecaster,
    forecast_windows,
    pass_over,
    scaled,
)
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.optim import AdamState

__all__ = ["METHOD", "GruFedAvgConfig"]


@dataclass(frozen=True, config={"extra": "forbid"})
class GruFedAvgConfig(
    LocalEpochSettings,
    groups.ClientStateSettings,
    groups.SequenceTrainingSettings,
    groups.RecurrentLayerSettings,
    groups.RecurrentSettings,
    groups.WindowSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of averaged recurrent forecasters."""


def setup(fed: Federation, data: SensorData, task: Task, config: GruFedAvgConfig) -> State:
    """Agree on the common scale and draw the first weights."""
    check_sums(fed, config.aggregation, int(fed.roster.sum()))
    scaler = fit_scaler(fed, data.series, config)
    training = scaled(fed, data, scaler, config)
    device = str(fed.device)
    fed.expect("model", first_forecaster, config, device)
    values = {
        "weights": fed.server.run(first_forecaster, config, device),
        "scaler": scaler,
        "own": fed.clients.run(first_forecaster, config, device),
        "optimizer": fed.clients.run(dict),
    }
    return State(values, Prepared(data, training))


def train(
    data: Standardised, weights: Weights, optimizer: AdamState, config: GruFedAvgConfig, number: int
) -> tuple[Weights, AdamState]:
    """Train every sensor from the shared weights; returns its weights, [P, ...], and its optimiser."""
    return pass_over(data, expanded(weights, data.num_clients), optimizer, config, number)


def round(fed: Federation, state: State, config: GruFedAvgConfig, number: int) -> State:
    """Run a round: train at the sensors and average their weights."""
    prepared: Prepared = state.prepared
    own, optimizer = fed.clients.run(
        train, prepared.training, state.values["own"], state.values["optimizer"], config, number, outputs=2
    )
    weights, own = average(fed, prepared.data, own, state.weights, config)
    return State({**state.values, "weights": weights, "own": own, "optimizer": optimizer}, prepared)


def predict(fed: Federation, state: State, config: GruFedAvgConfig, target: str) -> Located:
    """Forecast at each sensor from its own series with the shared weights."""
    series = scaled(fed, state.prepared.data, state.values["scaler"], config)
    weights = fed.broadcast(state.weights, name="model", grad=False)
    return fed.clients.run(forecast_windows, series, weights, target, config.layers)


METHOD = Method(
    name="gru_fedavg",
    summary="sensors train one recurrent forecaster, averaged every round",
    paper="Baseline of Meng, Rambhatla, Liu: Cross-node federated graph neural network for spatio-temporal "
    "data modeling. KDD 2021, arXiv:2106.05223",
    config=GruFedAvgConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(
        model=("weights", "scaler"),
        scratch=("own", "optimizer"),
    ),
    sends=Sent(
        summary="weights, every round",
        protection=averaging.PROTECTION,
        messages={
            **MESSAGES,
            **averaging.SECURE_UPDATE,
            "model": "The server sends the shared weights to every client.",
            "update": "With aggregation=plaintext every client sends the server its weights after its "
            "training. The server averages them and reads each client's weights, from which readings can in "
            "part be inferred.",
        },
    ),
    defaults={**GRU_DEFAULTS, "teacher": 1.0},
)
