"""Recurrent forecasters without a network at the server: the baselines of CNFGNN (Meng, Rambhatla and Liu,
KDD 2021, Table 7).

    gru_central     "GRU (centralised)": one forecaster, trained at the server on the readings of all sensors
    gru_local       "GRU (local)": every sensor trains its own forecaster on its own series only, and selects
                    its best round by its own validation windows
    gru_fedavg      "GRU + FedAvg": the forecasters are averaged over all sensors after every round. Scheduled
                    sampling ends almost at once (teacher=1), as in the authors' program

The road graph is not used. The baseline that uses it, "GRU + FMTL", is in `multi_task.py`.

Shapes are those of `common.forecasting`: K clients, P of them take part, W windows, n horizon.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from pydantic import Field
from torch import Tensor

from graphfed.data.sensors.windows import TimeSplit
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import check_sums
from graphfed.federation.series import SensorData, starts_of
from graphfed.methods.averaging import program as averaging
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.common import forecasting
from graphfed.methods.common.forecasting import Batch, Standardised, Weights
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
from graphfed.methods.settings import settings
from graphfed.methods.tasks import FORECASTING
from graphfed.nn import gru
from graphfed.nn.optim import AdamState
from graphfed.random import fold, permutation

PAPER = (
    "Baseline of Meng, Rambhatla, Liu: Cross-node federated graph neural network for spatio-temporal data "
    "modeling. KDD 2021, arXiv:2106.05223"
)
#: 100 hidden units in one layer have 63 thousand weights. The other size of CNFGNN's baselines, 200 units in
#: two layers, has 727 thousand.
DEFAULTS = {"hidden": 100}


@settings
class GruConfig:
    """The settings of a recurrent forecaster that is trained at the server."""

    run: Run = Run()
    training: Training = Training()
    protocols: Protocols = Protocols()
    sums: Sums = Sums()
    windows: Windows = Windows()
    recurrent: Recurrent = Recurrent()
    sequences: Sequences = Sequences()


@settings
class Passes:
    """How long clients train in a round."""

    local_epochs: int = Field(
        default=1, ge=1, description="number of passes of a client over its windows in a round"
    )


@settings
class LocalGruConfig:
    """The settings of recurrent forecasters that are trained at the sensors."""

    run: Run = Run()
    training: Training = Training()
    client_optimizer: ClientOptimizer = ClientOptimizer()
    protocols: Protocols = Protocols()
    sums: Sums = Sums()
    windows: Windows = Windows()
    recurrent: Recurrent = Recurrent()
    sequences: Sequences = Sequences()
    passes: Passes = Passes()


class LocalTraining(forecasting.ForecastTraining, Protocol):
    """Settings with the parts that training at the sensors reads."""

    @property
    def client_optimizer(self) -> ClientOptimizer: ...
    @property
    def passes(self) -> Passes: ...


@dataclass(frozen=True)
class Prepared:
    """What set-up prepares.

    Attributes:
        training: The `Standardised` series; at the clients, or (gru_central) those that they have sent, at
            the server.
        split: The windows, which gru_central reads.
    """

    data: SensorData
    training: Located
    split: TimeSplit | None = None


# ---- one forecaster ----------------------------------------------------------------------------------------


def first_forecaster(recurrent: Recurrent, seed: int, device: str) -> dict[str, Tensor]:
    """Draw shared first weights; every place draws the same from the seed."""
    widths = gru.Forecaster(
        encoder=recurrent.hidden,
        decoder=recurrent.hidden,
        layers=recurrent.layers,
        encoder_only=int(recurrent.missing_mask),
    )
    return {k: w.to(device) for k, w in gru.init(fold(seed, "weights"), widths).items()}


def forecast_alone(weights: Weights, batch: Batch, layers: int, teach: Tensor | None = None) -> Tensor:
    """Forecast each series from its own readings, [P, W, n] on the common scale; weights are shared or
    [P, ...].

    teach: [n - 1] bool: later inputs that are true readings; None: none.
    """
    return forecasting.decode(weights, batch, forecasting.encode(weights, batch, layers), teach, layers)


def gradients_alone(weights: Weights, batch: Batch, layers: int, teach: Tensor | None) -> dict[str, Tensor]:
    """Compute `client_gradients` of `forecast_alone`, [P, ...]."""
    return forecasting.client_gradients(
        weights, batch, lambda own, some: forecast_alone(own, batch.of(some), layers, teach)
    )


def forecast_from(data: Standardised, weights: Weights, starts: Tensor, layers: int) -> Tensor:
    """Forecast the windows that begin at `starts` [W], [P, W, n] in the unit of the readings."""
    with torch.no_grad():
        parts = [
            data.restored(forecast_alone(weights, forecasting.batch_of(data, starts[part]), layers))
            for part in forecasting.parts_of(len(starts), forecasting.PART)
        ]
    return torch.cat(parts, 1)


def training_batches(
    data: Standardised, config: forecasting.ForecastTraining, number: int, epochs: int
) -> Iterator[tuple[Batch, Tensor | None]]:
    """Yield the batches of a round, in the same random order of windows for all sensors, each with the inputs
    that are true readings; see `forecast_alone`.
    """
    starts, size = data.starts("train"), config.sequences.batch
    steps = epochs * -(-len(starts) // size)
    step = (number - 1) * steps
    for epoch in range(epochs):
        # One order for all sensors, so that a batch is one tensor over sensors.
        order = permutation(fold(config.run.seed, "windows", number, epoch), len(starts)).to(starts.device)
        for part in forecasting.parts_of(len(order), size):
            batch = forecasting.batch_of(data, starts[order[part]])
            yield batch, forecasting.teaching(config, "clients", step, steps)
            step += 1


# ---- central training --------------------------------------------------------------------------------------


def setup_central(fed: Federation, data: SensorData, task: Task, config: GruConfig) -> State:
    """Agree on the common scale and send the training readings to the server."""
    check_sums(fed, config.sums.aggregation, int(fed.roster.sum()))
    split = forecasting.common_split(fed, data.network)
    scaler = forecasting.fit_scaler(fed, data.series, config)
    training = forecasting.pool(fed, data, scaler, split, "train", config)
    values = {
        "weights": fed.server.run(first_forecaster, config.recurrent, config.run.seed, str(fed.device)),
        "scaler": scaler,
        "optimizer": fed.server.run(dict),
    }
    return State(values, Prepared(data, training, split))


def train_central(
    data: Standardised, weights: Weights, optimizer: AdamState, config: GruConfig, number: int
) -> tuple[Weights, AdamState]:
    """Train for one pass over the training windows, on the mean loss over sensors.

    A training step is on `batch` windows of every sensor.
    """
    training = config.training
    for batch, teach in training_batches(data, config, number, epochs=1):
        gradients = gradients_alone(weights, batch, config.recurrent.layers, teach)
        # `client_losses` are means of each sensor; here they are averaged over sensors.
        mean = {name: g / data.num_clients for name, g in gradients.items()}
        weights, optimizer = forecasting.descend(weights, mean, optimizer, training, training.lr)
    return weights, optimizer


def round_central(fed: Federation, state: State, config: GruConfig, number: int) -> State:
    """Run a round at the server."""
    training, optimizer = state.prepared.training, state.values["optimizer"]
    weights, optimizer = fed.server.run(
        train_central, training, state.weights, optimizer, config, number, outputs=2
    )
    return State({**state.values, "weights": weights, "optimizer": optimizer}, state.prepared)


def forecast_first(data: Standardised, weights: Weights, count: int, layers: int) -> Tensor:
    """Forecast `count` consecutive windows from the first step on, as `forecast_from`."""
    return forecast_from(data, weights, torch.arange(count, device=data.value.device), layers)


def predict_central(fed: Federation, state: State, config: GruConfig, target: str) -> Located:
    """Forecast at the server from all sensors' readings, and send each sensor its forecasts."""
    prepared: Prepared = state.prepared
    assert prepared.split is not None
    sent = forecasting.pool(fed, prepared.data, state.values["scaler"], prepared.split, target, config)
    count = len(starts_of(prepared.split, target))
    forecasts = fed.server.run(forecast_first, sent, state.weights, count, config.recurrent.layers)
    return fed.scatter(
        forecasts, name="forecasts", grad=False, like=forecasting.windows_form(config.windows.horizon)
    )


# ---- training at the sensors -------------------------------------------------------------------------------


def scaled(
    fed: Federation, data: SensorData, scaler: Located, config: forecasting.ForecastTraining
) -> Located:
    """Send the common scale to the clients, which standardise their series."""
    sent = fed.broadcast(scaler, name="scaler", grad=False, like=forecasting.scaler_form())
    return fed.clients.run(forecasting.standardise, data.series, fed.present(), sent, config)


def pass_over(
    data: Standardised,
    weights: Weights,
    optimizer: AdamState,
    config: LocalTraining,
    number: int,
    penalty: Callable[[Weights], Tensor] | None = None,
) -> tuple[dict[str, Tensor], AdamState]:
    """Train every client's own weights for `local_epochs` passes over its training windows.

    A client without readings in them takes no step (`keep_idle`); with a penalty it takes the steps of the
    penalty.

    weights: [P, ...]. optimizer: {} for fresh ones, which are returned with client_state=reset too. penalty:
    (weights [P, ...]) -> a number that is added to the sum of the losses.
    """
    own, training, before = dict(weights), config.training, (weights, optimizer)
    for batch, teach in training_batches(data, config, number, config.passes.local_epochs):
        gradients = gradients_alone(own, batch, config.recurrent.layers, teach)
        if penalty is not None:
            leaves = {name: w.detach().requires_grad_() for name, w in own.items()}
            more = torch.autograd.grad(penalty(leaves), list(leaves.values()))
            gradients = {k: g + m for (k, g), m in zip(gradients.items(), more, strict=True)}
        own, optimizer = forecasting.descend(own, gradients, optimizer, training, training.lr)
    if penalty is None:
        own, optimizer = forecasting.keep_idle(data, before, (own, optimizer), training)
    return own, optimizer if config.client_optimizer.client_state == "keep" else {}


def forecast_target(data: Standardised, weights: Weights, target: str, layers: int) -> Tensor:
    """Forecast the windows of a target ("val", "test" or "all"), as `forecast_from`."""
    return forecast_from(data, weights, data.starts(target), layers)


# ---- a forecaster of its own at every sensor ---------------------------------------------------------------


def own_forecasters(data: Standardised, recurrent: Recurrent, seed: int) -> dict[str, Tensor]:
    """Copy the first weights for every client, [P, ...]."""
    shared = first_forecaster(recurrent, seed, str(data.value.device))
    return {k: w.clone() for k, w in forecasting.expanded(shared, data.num_clients).items()}


def setup_own(fed: Federation, data: SensorData, config: LocalTraining, method: str) -> State:
    """Agree on the common scale and copy the first weights for every sensor.

    Raises:
        InputError: Training does not see a sensor, which would have no weights to forecast with; the message
            names `method`.
    """
    # A sensor that training does not see would have no weights to forecast with.
    if not fed.roster.all():
        raise InputError(
            f"{method} trains weights for every sensor, and a sensor that training does not see has none; "
            "use gru_fedavg or cnfgnn, or another split"
        )
    check_sums(fed, config.sums.aggregation, fed.num_clients)
    scaler = forecasting.fit_scaler(fed, data.series, config)
    training = scaled(fed, data, scaler, config)
    own = fed.clients.run(own_forecasters, training, config.recurrent, config.run.seed)
    values = {"weights": own, "scaler": scaler, "optimizer": fed.clients.run(dict)}
    return State(values, Prepared(data, training))


def setup_local(fed: Federation, data: SensorData, task: Task, config: LocalGruConfig) -> State:
    """Agree on the common scale and copy the first weights for every sensor."""
    return setup_own(fed, data, config, "gru_local")


def round_local(fed: Federation, state: State, config: LocalGruConfig, number: int) -> State:
    """Run a round at every sensor; nothing is sent."""
    training, optimizer = state.prepared.training, state.values["optimizer"]
    weights, optimizer = fed.clients.run(
        pass_over, training, state.weights, optimizer, config, number, outputs=2
    )
    return State({**state.values, "weights": weights, "optimizer": optimizer}, state.prepared)


def predict_own(fed: Federation, state: State, config: LocalTraining, target: str) -> Located:
    """Forecast at every client with its own weights and its own series."""
    series = scaled(fed, state.prepared.data, state.values["scaler"], config)
    # Weights are of all clients, forecasts only of those that take part.
    own = fed.clients.run(forecasting.of_present, state.weights, fed.present())
    return fed.clients.run(forecast_target, series, own, target, config.recurrent.layers)


# ---- averaged forecasters ----------------------------------------------------------------------------------


def setup_fedavg(fed: Federation, data: SensorData, task: Task, config: LocalGruConfig) -> State:
    """Agree on the common scale and draw the first weights."""
    check_sums(fed, config.sums.aggregation, int(fed.roster.sum()))
    scaler = forecasting.fit_scaler(fed, data.series, config)
    training = scaled(fed, data, scaler, config)
    first = (config.recurrent, config.run.seed, str(fed.device))
    fed.expect("model", first_forecaster, *first)
    values = {
        "weights": fed.server.run(first_forecaster, *first),
        "scaler": scaler,
        # Every sensor draws the first weights itself; later rounds put the mean here.
        "own": fed.clients.run(first_forecaster, *first),
        "optimizer": fed.clients.run(dict),
    }
    return State(values, Prepared(data, training))


def train_shared(
    data: Standardised, weights: Weights, optimizer: AdamState, config: LocalGruConfig, number: int
) -> tuple[Weights, AdamState]:
    """Train every sensor from the shared weights, as `pass_over`."""
    return pass_over(data, forecasting.expanded(weights, data.num_clients), optimizer, config, number)


def round_fedavg(fed: Federation, state: State, config: LocalGruConfig, number: int) -> State:
    """Run a round: train at the sensors and average their weights."""
    prepared, optimizer = state.prepared, state.values["optimizer"]
    own, optimizer = fed.clients.run(
        train_shared, prepared.training, state.values["own"], optimizer, config, number, outputs=2
    )
    weights, own = forecasting.average(fed, prepared.data, own, state.weights, config)
    return State({**state.values, "weights": weights, "own": own, "optimizer": optimizer}, prepared)


def predict_shared(fed: Federation, state: State, config: LocalGruConfig, target: str) -> Located:
    """Forecast at each sensor from its own series with the shared weights."""
    series = scaled(fed, state.prepared.data, state.values["scaler"], config)
    weights = fed.broadcast(state.weights, name="model", grad=False)
    return fed.clients.run(forecast_target, series, weights, target, config.recurrent.layers)


# ---- the methods -------------------------------------------------------------------------------------------

CENTRAL = Method(
    name="gru_central",
    summary="one recurrent forecaster, trained at the server on all readings",
    paper=PAPER,
    config=GruConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup_central,
    round=round_central,
    predict=predict_central,
    plans_rounds=forecasting.plans_rounds,
    state=StateValues(model=("weights", "scaler"), scratch=("optimizer",)),
    sends=Sent(
        summary="all readings, once",
        messages={
            **forecasting.STATISTICS,
            **forecasting.WINDOWS,
            "readings": "Every client sends the server its readings in plaintext. The server reads them all.",
            "forecasts": "The server sends each client its forecasts.",
        },
    ),
    defaults=DEFAULTS,
)
LOCAL = Method(
    name="gru_local",
    summary="every sensor trains its own recurrent forecaster",
    paper=PAPER,
    config=LocalGruConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup_local,
    round=round_local,
    predict=predict_own,
    plans_rounds=forecasting.plans_rounds,
    personal=True,
    state=StateValues(model=("weights", "scaler"), scratch=("optimizer",)),
    sends=Sent(
        summary="statistics for the common scale, once",
        protection="none: in plaintext; with aggregation=secure the server reads sums only",
        messages=forecasting.MESSAGES,
    ),
    defaults=DEFAULTS,
    paper_settings={"client_state": "keep"},
)
FEDAVG = Method(
    name="gru_fedavg",
    summary="sensors train one recurrent forecaster, averaged every round",
    paper=PAPER,
    config=LocalGruConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup_fedavg,
    round=round_fedavg,
    predict=predict_shared,
    plans_rounds=forecasting.plans_rounds,
    state=StateValues(model=("weights", "scaler"), scratch=("own", "optimizer")),
    sends=Sent(
        summary="weights, every round",
        protection=averaging.PROTECTION,
        messages={
            **forecasting.MESSAGES,
            **averaging.SECURE_UPDATE,
            "model": "The server sends the shared weights to every client.",
            "update": "With aggregation=plaintext every client sends the server its weights after its "
            "training. The server averages them and reads each client's weights, from which readings can in "
            "part be inferred.",
        },
    ),
    defaults={**DEFAULTS, "teacher": 1.0},
)
