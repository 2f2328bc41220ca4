"""A recurrent forecaster trained where all sensors' readings are: the baseline "GRU (centralised)" of CNFGNN
(Meng, Rambhatla and Liu, KDD 2021, Table 7). Every sensor sends its readings to the server.

A step of training is on `batch` windows of every sensor."""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.series import SensorData, starts_of
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.common.forecasting import (
    GRU_DEFAULTS,
    PART,
    STATISTICS,
    WINDOWS,
    PooledPrepared,
    Standardised,
    Weights,
    batch_of,
    common_split,
    descend,
    first_forecaster,
    fit_scaler,
    forecast_alone,
    gradients_alone,
    parts_of,
    pool,
    teaching,
)
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
    """One pass over the training windows, down the mean loss over sensors."""
    starts = data.starts("train")
    step = (number - 1) * -(-len(starts) // config.batch)
    order = permutation(fold(config.seed, "windows", number, 0), len(starts)).to(starts.device)
    for part in parts_of(len(order), config.batch):
        batch, teach = batch_of(data, starts[order[part]]), teaching(config, "clients", step)
        gradients = gradients_alone(weights, batch, config.layers, teach)
        mean = {name: g / data.num_clients for name, g in gradients.items()}
        weights, optimizer = descend(weights, mean, optimizer, config, config.lr)
        step += 1
    return weights, optimizer


def round(fed: Federation, state: State, config: GruCentralConfig, number: int) -> State:
    weights, optimizer = fed.server.run(
        train, state.prepared.training, state.weights, state.values["optimizer"], config, number, outputs=2
    )
    return State({**state.values, "weights": weights, "optimizer": optimizer}, state.prepared)


def forecast_first(data: Standardised, weights: Weights, count: int, layers: int) -> Tensor:
    """The forecasts of `count` windows that follow each other, from the first step on: [P, W, n], in the unit
    of the readings."""
    forecasts = []
    with torch.no_grad():
        for part in parts_of(count, PART):
            batch = batch_of(data, torch.arange(part.start, part.stop, device=data.value.device))
            forecasts.append(data.restored(forecast_alone(weights, batch, layers)))
    return torch.cat(forecasts, 1)


def predict(fed: Federation, state: State, config: GruCentralConfig, target: str) -> Located:
    """All sensors' readings, sent to the server, which sends each its forecasts."""
    prepared: PooledPrepared = state.prepared
    sent = pool(fed, prepared.data, state.values["scaler"], prepared.split, target, config)
    count = len(starts_of(prepared.split, target))
    forecasts = fed.server.run(forecast_first, sent, state.weights, count, config.layers)
    return fed.scatter(forecasts, name="forecasts", grad=False)


METHOD = Method(
    name="gru_central",
    summary="one recurrent forecaster, trained where all readings are",
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
            "readings": "A client's readings, in clear. The server reads them all.",
            "forecasts": "Each client's forecasts, from the server.",
        },
    ),
    defaults=GRU_DEFAULTS,
)
