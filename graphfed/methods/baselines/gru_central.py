"""A recurrent forecaster trained at the server on the readings of all sensors: the baseline "GRU
(centralised)" of CNFGNN (Meng, Rambhatla and Liu, KDD 2021, Table 7).

A training step is on `batch` windows of every sensor.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.series import SensorData, starts_of
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.common.forecasting import (
    PART,
    STATISTICS,
    WINDOWS,
    Standardised,
    Weights,
    batch_of,
    common_split,
    descend,
    fit_scaler,
    parts_of,
    teaching,
    windows_form,
)
from graphfed.methods.common.local_forecasters import (
    GRU_DEFAULTS,
    PooledPrepared,
    first_forecaster,
    forecast_alone,
    gradients_alone,
)
from graphfed.methods.common.pooled_readings import pool
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.optim import AdamState
from graphfed.random import fold, permutation

__all__ = ["METHOD", "GruCentralConfig"]


@dataclass(frozen=True, config={"extra": "forbid"})
class GruCentralConfig(
    groups.SequenceTrainingSettings,
    groups.RecurrentLayerSettings,
    groups.RecurrentSettings,
    groups.WindowSettings,
    groups.AggregationSettings,
    groups.ProtocolSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of central training of a recurrent forecaster."""


def setup(fed: Federation, data: SensorData, task: Task, config: GruCentralConfig) -> State:
    """Agree on the common scale and send the training readings to the server."""
    check_sums(fed, config.aggregation, int(fed.roster.sum()))
    split = common_split(fed, data.network)
    scaler = fit_scaler(fed, data.series, config)
    training = pool(fed, data, scaler, split, "train", config)
    values = {
        "weights": fed.server.run(first_forecaster, config, str(fed.device)),
        "scaler": scaler,
        "optimizer": fed.server.run(dict),
    }
    return State(values, PooledPrepared(data, training, split))


def train(
    data: Standardised, weights: Weights, optimizer: AdamState, config: GruCentralConfig, number: int
) -> tuple[Weights, AdamState]:
    """Train for one pass over the training windows, on the mean loss over sensors."""
    starts = data.starts("train")
    steps = -(-len(starts) // config.batch)
    step = (number - 1) * steps
    order = permutation(fold(config.seed, "windows", number, 0), len(starts)).to(starts.device)
    for part in parts_of(len(order), config.batch):
        batch, teach = batch_of(data, starts[order[part]]), teaching(config, "clients", step, steps)
        gradients = gradients_alone(weights, batch, config.layers, teach)
        mean = {name: g / data.num_clients for name, g in gradients.items()}
        weights, optimizer = descend(weights, mean, optimizer, config, config.lr)
        step += 1
    return weights, optimizer


def round(fed: Federation, state: State, config: GruCentralConfig, number: int) -> State:
    """Run a round at the server."""
    weights, optimizer = fed.server.run(
        train, state.prepared.training, state.weights, state.values["optimizer"], config, number, outputs=2
    )
    return State({**state.values, "weights": weights, "optimizer": optimizer}, state.prepared)


def forecast_first(data: Standardised, weights: Weights, count: int, layers: int) -> Tensor:
    """Forecast `count` consecutive windows from the first step on, [P, W, n], in the unit of the readings."""
    forecasts = []
    with torch.no_grad():
        for part in parts_of(count, PART):
            batch = batch_of(data, torch.arange(part.start, part.stop, device=data.value.device))
            forecasts.append(data.restored(forecast_alone(weights, batch, layers)))
    return torch.cat(forecasts, 1)


def predict(fed: Federation, state: State, config: GruCentralConfig, target: str) -> Located:
    """Forecast at the server from all sensors' readings, and send each sensor its forecasts."""
    prepared: PooledPrepared = state.prepared
    sent = pool(fed, prepared.data, state.values["scaler"], prepared.split, target, config)
    count = len(starts_of(prepared.split, target))
    forecasts = fed.server.run(forecast_first, sent, state.weights, count, config.layers)
    return fed.scatter(forecasts, name="forecasts", grad=False, like=windows_form(config.horizon))


METHOD = Method(
    name="gru_central",
    summary="one recurrent forecaster, trained at the server on all readings",
    paper="Baseline of Meng, Rambhatla, Liu: Cross-node federated graph neural network for spatio-temporal "
    "data modeling. KDD 2021, arXiv:2106.05223",
    config=GruCentralConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(
        model=("weights", "scaler"),
        scratch=("optimizer",),
    ),
    sends=Sent(
        summary="all readings, once",
        messages={
            **STATISTICS,
            **WINDOWS,
            "readings": "Every client sends the server its readings in plaintext. The server reads them all.",
            "forecasts": "The server sends each client its forecasts.",
        },
    ),
    defaults=GRU_DEFAULTS,
)
