"""Recurrent forecasters at single sensors, without a network at the server: settings, local training,
forecasts, and averages of weights.

Shapes are those of `common.forecasting`: K clients, P of them take part, W windows, n horizon.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

from graphfed.data.sensors.windows import TimeSplit
from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import protected_mean
from graphfed.federation.series import Network, SensorData, Series, windows
from graphfed.methods.base import State
from graphfed.methods.common.forecasting import (
    PART,
    Batch,
    ForecastTraining,
    Standardised,
    Weights,
    batch_of,
    client_gradients,
    decode,
    descend,
    encode,
    expanded,
    of_present,
    parts_of,
    scaler_form,
    standardise,
    teaching,
)
from graphfed.methods.config import sum_protection
from graphfed.nn import gru
from graphfed.nn.gru import Forecaster
from graphfed.nn.optim import AdamState, choose_rows, init_state
from graphfed.random import fold, permutation

__all__ = [
    "GRU_DEFAULTS",
    "LocalEpochSettings",
    "LocalForecastTraining",
    "PooledPrepared",
    "Prepared",
    "average",
    "first_forecaster",
    "forecast_alone",
    "forecast_windows",
    "gradients_alone",
    "own_forecasters",
    "pass_over",
    "predict_own",
    "scaled",
]

#: The width of the plain recurrent forecasters: 100 hidden units in one layer have 63 thousand weights. The
#: other size of CNFGNN's baselines, 200 units in two layers, has 727 thousand.
GRU_DEFAULTS = {"hidden": 100}


@config_dataclass(frozen=True, config={"extra": "forbid"})
class LocalEpochSettings:
    """How long every client trains its own forecaster in a round."""

    local_epochs: int = Field(
        default=1, ge=1, description="number of passes of a client over its windows in a round"
    )


class LocalForecastTraining(ForecastTraining, Protocol):
    """The settings that training a recurrent network at the clients reads."""

    @property
    def local_epochs(self) -> int:
        """Number of passes over the windows in a round."""

    @property
    def client_state(self) -> str:
        """Whether clients keep the state of their optimiser from round to round."""


@dataclass(frozen=True)
class Prepared:
    """What set-up prepares.

    Attributes:
        data: The data of the run.
        training: At the clients: the `Standardised` series.
    """

    data: SensorData
    training: Located


@dataclass(frozen=True)
class PooledPrepared:
    """What set-up prepares for training at the server.

    Attributes:
        data: The data of the run.
        training: At the server: the `Standardised` series that sensors have sent.
        split: The windows.
    """

    data: SensorData
    training: Located
    split: TimeSplit


def first_forecaster(config: ForecastTraining, device: str) -> dict[str, Tensor]:
    """Draw shared first weights; every place draws the same from the seed.

    Args:
        config: The settings.
        device: The torch device.

    Returns:
        The weights.
    """
    widths = Forecaster(
        encoder=config.hidden,
        decoder=config.hidden,
        layers=config.recurrent_layers,
        encoder_only=int(config.missing_mask),
    )
    return {k: w.to(device) for k, w in gru.init(fold(config.seed, "weights"), widths).items()}


def forecast_alone(weights: Weights, batch: Batch, layers: int, teach: Tensor | None = None) -> Tensor:
    """Forecast each series from its own readings.

    Args:
        weights: Weights of encoder and decoder.
        batch: The windows.
        layers: Number of recurrent layers.
        teach: [n - 1] bool: later inputs that are true readings; None: none.

    Returns:
        [P, W, n] forecasts on the common scale.
    """
    return decode(weights, batch, encode(weights, batch, layers), teach, layers)


def own_forecasters(data: Standardised, config: ForecastTraining) -> dict[str, Tensor]:
    """Copy the first weights for every client.

    Args:
        data: The clients' series.
        config: The settings.

    Returns:
        [P, ...] weights.
    """
    shared = first_forecaster(config, str(data.value.device))
    return {k: w.clone() for k, w in expanded(shared, data.num_clients).items()}


def pass_over(
    data: Standardised,
    weights: Weights,
    optimizer: AdamState,
    config: LocalForecastTraining,
    number: int,
    penalty: Callable[[Weights], Tensor] | None = None,
) -> tuple[dict[str, Tensor], AdamState]:
    """Train every client's own weights for `local_epochs` passes over its training windows.

    A client without readings in them takes no step, because weight decay alone would move its weights; with a
    penalty it takes the steps of the penalty.

    Args:
        data: The series.
        weights: [P, ...] weights.
        optimizer: The clients' optimiser states; {} for fresh ones.
        config: The settings.
        number: The round.
        penalty: (weights [P, ...]) -> a number that is added to the sum of the losses; None: none.

    Returns:
        Weights, and the optimiser states for the next round: {} with client_state=reset.
    """
    starts, own = data.starts("train"), dict(weights)
    before = optimizer or init_state(config.optimizer, own)
    steps = config.local_epochs * -(-len(starts) // config.batch)
    step = (number - 1) * steps
    for epoch in range(config.local_epochs):
        order = permutation(fold(config.seed, "windows", number, epoch), len(starts)).to(starts.device)
        for part in parts_of(len(order), config.batch):
            batch, teach = batch_of(data, starts[order[part]]), teaching(config, "clients", step, steps)
            gradients = gradients_alone(own, batch, config.recurrent_layers, teach)
            if penalty is not None:
                leaves = {name: w.detach().requires_grad_() for name, w in own.items()}
                more = torch.autograd.grad(penalty(leaves), list(leaves.values()))
                gradients = {k: g + m for (k, g), m in zip(gradients.items(), more, strict=True)}
            own, optimizer = descend(own, gradients, optimizer, config, config.lr)
            step += 1
    read = windows(data.weight, starts, data.split.lags, data.split.horizon)
    has_data = read.flatten(1).any(1)
    if penalty is None and not bool(has_data.all()):
        own = {k: choose_rows(has_data, new, weights[k]) for k, new in own.items()}
        optimizer = {
            name: {k: choose_rows(has_data, x, before[name][k]) for k, x in part.items()}
            for name, part in optimizer.items()
        }
    return own, optimizer if config.client_state == "keep" else {}


def gradients_alone(weights: Weights, batch: Batch, layers: int, teach: Tensor | None) -> dict[str, Tensor]:
    """Compute `client_gradients` of `forecast_alone`.

    Args:
        weights: [P, ...] weights.
        batch: The windows.
        layers: Number of recurrent layers.
        teach: [n - 1] bool: later inputs that are true readings; None: none.

    Returns:
        [P, ...] gradients.
    """
    return client_gradients(
        weights, batch, lambda own, some: forecast_alone(own, batch.of(some), layers, teach)
    )


def forecast_windows(data: Standardised, weights: Weights, target: str, layers: int) -> Tensor:
    """Forecast the windows of a target.

    Args:
        data: The series.
        weights: The weights.
        target: "val", "test" or "all".
        layers: Number of recurrent layers.

    Returns:
        [P, W, n] forecasts in the unit of the readings.
    """
    starts = data.starts(target)
    with torch.no_grad():
        parts = [
            data.restored(forecast_alone(weights, batch_of(data, starts[part]), layers))
            for part in parts_of(len(starts), PART)
        ]
    return torch.cat(parts, 1)


def scaled(fed: Federation, data: SensorData, scaler: Located, config: ForecastTraining) -> Located:
    """Send the common scale to the clients, which standardise their series.

    Args:
        fed: The federation.
        data: The data of the run.
        scaler: "mean" and "std", at the server.
        config: The settings.

    Returns:
        At the clients: the `Standardised` series.
    """
    sent = fed.broadcast(scaler, name="scaler", grad=False, like=scaler_form())
    return fed.clients.run(standardise, data.series, fed.present(), sent, config)


def predict_own(fed: Federation, state: State, config: ForecastTraining, target: str) -> Located:
    """Forecast at every client with its own weights and its own series.

    Args:
        fed: The federation.
        state: The state.
        config: The settings.
        target: "val", "test" or "all".

    Returns:
        At the clients: forecasts [P, W, n].
    """
    series = scaled(fed, state.prepared.data, state.values["scaler"], config)
    own = fed.clients.run(of_present, state.weights, fed.present())
    return fed.clients.run(forecast_windows, series, own, target, config.recurrent_layers)


# ---- averages of clients' weights --------------------------------------------------------------------------


def of_all(weights: Weights, present: Tensor) -> Weights:
    """Give every client of the cohort a row, as an average requires; clients that do not take part get zeros,
    which do not count.
    """
    if bool(present.all()):
        return weights
    rows = {}
    for name, w in weights.items():
        rows[name] = w.new_zeros(len(present), *w.shape[1:])
        rows[name][present] = w
    return rows


def equal_weights(network: Network) -> Tensor:
    """Return an equal weight for each client in an average, [K]."""
    return torch.ones(network.edges.num_nodes)


def client_weights(series: Series) -> Tensor:
    """Return each client's weight in an average."""
    return torch.ones(series.num_clients)


def average(
    fed: Federation, data: SensorData, own: Located, before: Located, config: ForecastTraining
) -> tuple[Located, Located]:
    """Average the weights of all clients that take part.

    Args:
        fed: The federation.
        data: The data of the run.
        own: At the clients: their weights.
        before: At the server: the mean of the round before.
        config: The settings.

    Returns:
        The mean at the server, and the mean at the clients, to which the server sends it.
    """
    mean = protected_mean(
        fed,
        fed.clients.run(of_all, own, fed.present()),
        fed.clients.run(client_weights, data.series),
        fed.server.run(equal_weights, data.network),
        before,
        sum_protection(config),
        name="update",
    )
    return mean, fed.broadcast(mean, name="model", grad=False)
