"""What the trained methods of forecasting share: a common scale, batches of windows, losses, local training.

    K clients, P of them take part, W windows of a batch, m lags, n horizon, H hidden width

A step of a series is two numbers, the standardised reading and the time of day. Every client is its own
sensor, and all of a host's clients compute as one: weights are shared by them or one each, [P, ...]."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

from graphfed.data.sensors.windows import TimeSplit
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import (
    SumForm,
    messages,
    protected_mean,
    protected_sum,
)
from graphfed.federation.series import Network, SensorData, Series, starts_of, windows
from graphfed.methods.base import State
from graphfed.methods.config import GradientSteps, sum_protection
from graphfed.nn import gru
from graphfed.nn.gru import Forecaster
from graphfed.nn.optim import AdamState, init_state, optimizer_step
from graphfed.nn.precision import product_dtype
from graphfed.random import fold, permutation

__all__ = [
    "GRU_DEFAULTS",
    "MESSAGES",
    "PART",
    "STATISTICS",
    "WINDOWS",
    "Batch",
    "ForecastTraining",
    "LocalEpochSettings",
    "LocalForecastTraining",
    "PooledPrepared",
    "Prepared",
    "Standardised",
    "Weights",
    "absent",
    "average",
    "batch_of",
    "client_gradients",
    "client_losses",
    "common_split",
    "decode",
    "descend",
    "encode",
    "expanded",
    "first_forecaster",
    "fit_scaler",
    "forecast_alone",
    "forecast_windows",
    "gradients_alone",
    "gradients_of",
    "joined",
    "of_present",
    "own_forecasters",
    "parts_of",
    "pass_over",
    "pool",
    "predict_own",
    "scaled",
    "standardise",
    "teaching",
]

Weights = Mapping[str, Tensor]

#: Windows that are encoded and forecast at a time where nothing is learned.
PART = 128

STATISTICS = {
    "statistics": "With aggregation=plaintext, once: how many training readings a sensor has, their sum and "
    "the sum of their squares, from which the common scale is made. The server reads each sensor's.",
    **messages(
        "statistics",
        "With aggregation=secure, once",
        "how many training readings a client has, their sum and the sum of their squares",
    ),
}
MESSAGES = {
    **STATISTICS,
    "scaler": "The common scale: the mean of all sensors' training readings and their standard deviation, "
    "from the server to every client.",
}
#: Of methods in which places go through the windows together.
WINDOWS = {
    "windows": "Once, from the server: how long a window is, and how many there are to train, validate and "
    "test on. Public.",
}


class ForecastTraining(GradientSteps, Protocol):
    """What training a recurrent network reads of a config, whichever groups it has."""

    @property
    def seed(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def recurrent_layers(self) -> int: ...
    @property
    def horizon(self) -> int: ...
    @property
    def missing(self) -> str: ...
    @property
    def batch(self) -> int: ...
    @property
    def teacher(self) -> float: ...
    @property
    def precision(self) -> str: ...


# ---- the common scale --------------------------------------------------------------------------------------


def statistics(series: Series, missing: str) -> Tensor:
    """Of each client's training readings, [K, 3] float64: how many there are, their sum and the sum of their
    squares; each over the number of training steps, which everyone knows, so that sums of clients stay
    small."""
    steps = series.training_steps
    x = series.readings[:, :steps].double()
    there = torch.ones_like(x) if missing == "as_read" else (~series.missing[:, :steps]).double()
    return torch.stack([there.sum(1), (there * x).sum(1), (there * x.square()).sum(1)], 1) / steps


def total(parts: Tensor, present: Tensor) -> Tensor:
    return parts[present].sum(0)


def every_part(parts: Tensor, present: Tensor) -> Tensor:
    """Every client's own statistics: who takes part is known where they are hidden."""
    return parts


def no_statistics() -> Tensor:
    return torch.zeros(3)


_STATISTICS = SumForm(total=total, parts=every_part, like=no_statistics)


def scale_of(sums: Tensor) -> dict[str, Tensor]:
    """mean and std of all readings, as numbers of the default dtype."""
    count, first, second = sums.double().tolist()
    if not count:
        raise InputError("no sensor has a training reading; use another split, or data with readings")
    mean = first / count
    variance = second / count - mean**2
    if variance <= 1e-12 * max(1.0, mean**2):
        raise InputError(
            f"all training readings are {mean:g}: there is nothing to learn; use other data, or another split"
        )
    return {"mean": torch.tensor(mean), "std": torch.tensor(variance**0.5)}


def fit_scaler(fed: Federation, series: Located, config: ForecastTraining) -> Located:
    """The mean and standard deviation of all training readings, at the server."""
    parts = fed.clients.run(statistics, series, config.missing)
    sums = protected_sum(
        fed, _STATISTICS, parts, fed.present(), protection=sum_protection(config), name="statistics"
    )
    return fed.server.run(scale_of, sums)


# ---- batches -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Standardised:
    """The series of P clients on the common scale: value [P, T], weight [P, T] (1 where a loss counts the
    reading, else 0), time_of_day [T], the scale, and how the windows are divided. A reading that is left out
    is 0, the mean."""

    value: Tensor
    weight: Tensor
    time_of_day: Tensor
    mean: Tensor
    std: Tensor
    split: TimeSplit
    products: torch.dtype | None

    @property
    def num_clients(self) -> int:
        """P."""
        return len(self.value)

    def starts(self, target: str) -> Tensor:
        """The first step of each window of a target, [W] int64 (see `starts_of`)."""
        return starts_of(self.split, target).to(self.value.device)

    def restored(self, forecast: Tensor) -> Tensor:
        """Standardised numbers in the unit of the readings."""
        return forecast * self.std + self.mean


@dataclass(frozen=True, eq=False)
class Batch:
    """W windows of P clients: x [P, W, m, 2], its last step [P, W, 2], the times of day after it
    [1, W, n-1, 1], truth and weight [P, W, n]; products: the dtype of matrix products (None: their own)."""

    x: Tensor
    last: Tensor
    later: Tensor
    truth: Tensor
    weight: Tensor
    products: torch.dtype | None

    def of(self, few: slice) -> "Batch":
        """Of some of the clients."""
        x, last, truth, weight = (part[few] for part in (self.x, self.last, self.truth, self.weight))
        return replace(self, x=x, last=last, truth=truth, weight=weight)


def standardise(
    series: Series, present: Tensor, scaler: Mapping[str, Tensor], config: ForecastTraining
) -> Standardised:
    """Of the clients `present` [K] bool. InputError where the device cannot do what `precision` asks."""
    series = series.of(present)
    value = (series.readings - scaler["mean"]) / scaler["std"]
    weight = torch.ones_like(value)
    products = product_dtype(config.precision, value.device)
    if config.missing == "masked":
        value = value.masked_fill(series.missing, 0.0)
        weight = weight.masked_fill(series.missing, 0.0)
    return Standardised(
        value, weight, series.time_of_day, scaler["mean"], scaler["std"], series.split, products
    )


def batch_of(data: Standardised, starts: Tensor) -> Batch:
    """The windows that begin at `starts` [W]."""
    lags, horizon = data.split.lags, data.split.horizon
    value = windows(data.value, starts, 0, lags)
    time = windows(data.time_of_day, starts, 0, lags).expand_as(value)
    x = torch.stack([value, time], -1)
    later = windows(data.time_of_day, starts, lags, horizon)[None, :, :-1, None]
    truth = windows(data.value, starts, lags, horizon)
    weight = windows(data.weight, starts, lags, horizon)
    return Batch(x, x[:, :, -1], later, truth, weight, data.products)


def common_split(fed: Federation, network: Located) -> TimeSplit:
    """How the windows are divided, as every place must know to go through them together."""
    told = fed.control(split_numbers, network, name="windows")
    return TimeSplit(name="", observed=fed.roster, **told)


def split_numbers(network: Network) -> dict[str, int]:
    names = ("lags", "horizon", "every", "train", "val", "test")
    return {name: getattr(network.split, name) for name in names}


def parts_of(count: int, size: int) -> Iterator[slice]:
    """0..count-1 in parts of at most `size`."""
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


def encode(weights: Weights, batch: Batch, layers: int = 1) -> Tensor:
    """The encoder's state after each window's inputs: [P, W, layers * H]."""
    return gru.encode(weights, batch.x, layers, batch.products)


def decode(
    weights: Weights, batch: Batch, state: Tensor, teach: Tensor | None = None, layers: int = 1
) -> Tensor:
    """Forecasts [P, W, n] on the common scale, from the last step and the decoder's first state [P, W, .]."""
    truth, horizon = None if teach is None else batch.truth, batch.truth.shape[-1]
    return gru.decode(weights, state, batch.last, batch.later, horizon, truth, teach, layers, batch.products)


def client_losses(forecast: Tensor, batch: Batch) -> Tensor:
    """The mean squared error of each client over its readings that count, on the common scale: [P]."""
    squared = (forecast - batch.truth).square() * batch.weight
    return squared.sum((1, 2)) / batch.weight.sum((1, 2)).clamp(min=1)


def teaching(config: ForecastTraining, purpose: str, step: int) -> Tensor | None:
    """Which later inputs of the decoder are the truth at a step of training: [n-1] bool."""
    if not config.teacher:
        return None
    return gru.taught_steps(fold(config.seed, "teacher", purpose), step, config.horizon, config.teacher)


# ---- training ----------------------------------------------------------------------------------------------


def expanded(weights: Weights, count: int) -> dict[str, Tensor]:
    """A copy of shared weights for each of `count` clients, [P, ...]."""
    return {name: w.expand(count, *w.shape) for name, w in weights.items()}


def descend(
    weights: Weights, gradients: Weights, optimizer: AdamState, config: GradientSteps, lr: float
) -> tuple[dict[str, Tensor], AdamState]:
    """One step of the optimiser ({}: a fresh one); elementwise, so one for each client where weights are."""
    state = optimizer or init_state(config.optimizer, weights)
    return optimizer_step(config.optimizer, weights, gradients, state, lr, config.weight_decay)


def client_gradients(
    weights: Weights, batch: Batch, outputs: Callable[[Weights, slice], Tensor]
) -> dict[str, Tensor]:
    """The gradients of the sum of all clients' losses (`client_losses`), a few clients at a time. outputs:
    the forecasts [few, W, n] of a slice of the clients with the weights that are theirs, on the common
    scale."""

    def losses(own: Weights, few: slice) -> Tensor:
        return client_losses(outputs(own, few), batch.of(few))

    clients, windows = batch.truth.shape[:2]
    return gru.weight_gradients(weights, losses, clients, windows)[1]


def gradients_of(leaves: Weights) -> dict[str, Tensor]:
    return {k: torch.zeros_like(w) if w.grad is None else w.grad for k, w in leaves.items()}


# ---- forecasters without a server's network: an encoder and a decoder alike --------------------------------


@config_dataclass(frozen=True, config={"extra": "forbid"})
class LocalEpochSettings:
    """How far every client trains its own forecaster in a round."""

    local_epochs: int = Field(default=1, ge=1, description="passes of a client over its windows in a round")


class LocalForecastTraining(ForecastTraining, Protocol):
    """What training a recurrent network at the clients reads besides."""

    @property
    def local_epochs(self) -> int: ...


#: The width of the plain recurrent forecasters: 63 thousand weights with 100 hidden units in one layer; with
#: 200 in two 727 thousand, the other size of CNFGNN's baselines.
GRU_DEFAULTS = {"hidden": 100}


@dataclass(frozen=True)
class Prepared:
    """data: as it was given; training: every client's `Standardised` series, at the clients."""

    data: SensorData
    training: Located


@dataclass(frozen=True)
class PooledPrepared:
    """data: as it was given; training: the `Standardised` series that sensors have sent, at the server;
    split: how the windows are divided."""

    data: SensorData
    training: Located
    split: TimeSplit


def first_forecaster(config: ForecastTraining, device: str) -> dict[str, Tensor]:
    """Shared first weights, which everyone draws from the seed."""
    widths = Forecaster(encoder=config.hidden, decoder=config.hidden, layers=config.recurrent_layers)
    return {k: w.to(device) for k, w in gru.init(fold(config.seed, "weights"), widths).items()}


def forecast_alone(weights: Weights, batch: Batch, layers: int, teach: Tensor | None = None) -> Tensor:
    """Forecasts [P, W, n] of series by themselves, on the common scale."""
    return decode(weights, batch, encode(weights, batch, layers), teach, layers)


def own_forecasters(data: Standardised, config: ForecastTraining) -> dict[str, Tensor]:
    """A copy of the first weights for every client, [P, ...]."""
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
    """`local_epochs` passes over the training windows in round `number`, every client with weights of its own
    [P, ...], down its loss and the `penalty` on all clients' weights, a number."""
    starts, own = data.starts("train"), dict(weights)
    step = (number - 1) * config.local_epochs * -(-len(starts) // config.batch)
    for epoch in range(config.local_epochs):
        order = permutation(fold(config.seed, "windows", number, epoch), len(starts)).to(starts.device)
        for part in parts_of(len(order), config.batch):
            batch, teach = batch_of(data, starts[order[part]]), teaching(config, "clients", step)
            gradients = gradients_alone(own, batch, config.recurrent_layers, teach)
            if penalty is not None:
                leaves = {name: w.detach().requires_grad_() for name, w in own.items()}
                more = torch.autograd.grad(penalty(leaves), list(leaves.values()))
                gradients = {k: g + m for (k, g), m in zip(gradients.items(), more, strict=True)}
            own, optimizer = descend(own, gradients, optimizer, config, config.lr)
            step += 1
    return own, optimizer


def gradients_alone(weights: Weights, batch: Batch, layers: int, teach: Tensor | None) -> dict[str, Tensor]:
    """`client_gradients` of `forecast_alone`."""
    return client_gradients(
        weights, batch, lambda own, few: forecast_alone(own, batch.of(few), layers, teach)
    )


def forecast_windows(data: Standardised, weights: Weights, target: str, layers: int) -> Tensor:
    """Forecasts of a target's windows [P, W, n], in the unit of the readings."""
    starts = data.starts(target)
    with torch.no_grad():
        parts = [
            data.restored(forecast_alone(weights, batch_of(data, starts[part]), layers))
            for part in parts_of(len(starts), PART)
        ]
    return torch.cat(parts, 1)


def scaled(fed: Federation, data: SensorData, scaler: Located, config: ForecastTraining) -> Located:
    """Every client's series on the common scale, which the server sends."""
    told = fed.broadcast(scaler, name="scaler", grad=False)
    return fed.clients.run(standardise, data.series, fed.present(), told, config)


def predict_own(fed: Federation, state: State, config: ForecastTraining, target: str) -> Located:
    """Where every sensor has weights of its own: from these and its own series."""
    series = scaled(fed, state.prepared.data, state.values["scaler"], config)
    own = fed.clients.run(of_present, state.weights, fed.present())
    return fed.clients.run(forecast_windows, series, own, target, config.recurrent_layers)


def of_present(weights: Weights, present: Tensor) -> Weights:
    """Those of every client's weights [K, ...] that are of clients taking part."""
    return weights if bool(present.all()) else {name: w[present] for name, w in weights.items()}


# ---- averages of clients' weights --------------------------------------------------------------------------


def of_all(weights: Weights, present: Tensor) -> Weights:
    """A row for every client of the cohort, as an average takes them; those that do not take part have zeros,
    which do not count."""
    if bool(present.all()):
        return weights
    rows = {}
    for name, w in weights.items():
        rows[name] = w.new_zeros(len(present), *w.shape[1:])
        rows[name][present] = w
    return rows


def alike(network: Network) -> Tensor:
    """How much each client weighs: [K]."""
    return torch.ones(network.edges.num_nodes)


def share_of_own(series: Series) -> Tensor:
    return torch.ones(series.num_clients)


def average(
    fed: Federation, data: SensorData, own: Located, before: Located, config: ForecastTraining
) -> tuple[Located, Located]:
    """The mean of the weights of all clients that take part, at the server and, sent back, at the clients.
    before: the mean of the round before, at the server."""
    mean = protected_mean(
        fed,
        fed.clients.run(of_all, own, fed.present()),
        fed.clients.run(share_of_own, data.series),
        fed.server.run(alike, data.network),
        before,
        sum_protection(config),
        name="update",
    )
    return mean, fed.broadcast(mean, name="model", grad=False)


# ---- readings at the server --------------------------------------------------------------------------------


def reported_readings(series: Series, present: Tensor, first: int, end: int, missing: str) -> Tensor:
    """What a sensor sends of its steps: [P, end - first], NaN where a reading is missing."""
    series = series.of(present)
    readings = series.readings[:, first:end]
    return readings.masked_fill(series.missing[:, first:end], torch.nan) if missing == "masked" else readings


def pooled(
    network: Network, told: Tensor, scaler: Weights, first: int, length: int, config: ForecastTraining
) -> Standardised:
    """The series that sensors have sent, from step `first` on, with as many steps after them, of which only
    the time is known, that there are `length`."""
    told = torch.cat([told, told.new_full((len(told), length - told.shape[1]), torch.nan)], 1)
    series = Series(
        tuple(range(len(told))),
        told.nan_to_num(nan=0.0),
        told.isnan(),
        network.first_minute + first * network.step_minutes,
        network.step_minutes,
        network.split,
    )
    return standardise(series, torch.ones(len(told), dtype=torch.bool), scaler, config)


def pool(
    fed: Federation,
    data: SensorData,
    scaler: Located,
    split: TimeSplit,
    target: str,
    config: ForecastTraining,
) -> Located:
    """The readings that windows of a target need, sent to the server and standardised there: of training
    windows inputs and what is forecast, of others the inputs."""
    starts = starts_of(split, target)
    first, end = int(starts[0]), int(starts[-1]) + split.lags + split.horizon
    inputs = end if target == "train" else end - split.horizon
    told = fed.clients.run(reported_readings, data.series, fed.present(), first, inputs, config.missing)
    told = fed.collect(told, name="readings", grad=False, finite=False)  # a missing reading is NaN
    return fed.server.run(pooled, data.network, told, scaler, first, end - first, config)


# ---- small parts of programs -------------------------------------------------------------------------------


def absent(fed: Federation) -> tuple[int, ...]:
    """The clients that do not take part."""
    return tuple((~fed.roster).nonzero()[0].tolist())


def joined(*parts: Tensor) -> Tensor:
    """Windows in their order, [P, W, ...]."""
    return torch.cat(parts, 1)
