"""What the trained methods of forecasting share: a common scale, batches of windows, losses, local training.

    K clients, P of them take part, W windows of a batch, m lags, n horizon, H hidden width

A step of a series is two numbers, the standardised reading and the time of day. Every client is one sensor.
All clients of a worker compute as one batch; weights are shared or one set for each client, [P, ...].
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from graphfed.data.sensors.windows import TimeSplit
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.secure.aggregation import (
    SumForm,
    messages,
    protected_mean,
    protected_sum,
)
from graphfed.federation.series import Network, SensorData, Series, starts_of, windows
from graphfed.methods.parts import Recurrent, Run, Sequences, Sums, Training, Windows
from graphfed.nn import gru
from graphfed.nn.optim import AdamState, choose_rows, init_state, optimizer_step
from graphfed.nn.precision import product_dtype
from graphfed.random import fold

Weights = Mapping[str, Tensor]

#: Windows that are encoded and forecast at a time without training.
PART = 128

STATISTICS = {
    "statistics": "With aggregation=plaintext every sensor sends the server, once, the number of its "
    "training readings, their sum and the sum of their squares, from which the server computes the common "
    "scale. The server reads each sensor's numbers.",
    **messages(
        "statistics",
        "With aggregation=secure, once",
        "the number of a client's training readings, their sum and the sum of their squares",
    ),
}
MESSAGES = {
    **STATISTICS,
    "scaler": "The server sends every client the common scale: the mean and the standard deviation of all "
    "sensors' training readings.",
}
#: For methods in which all places iterate over the windows together.
WINDOWS = {
    "windows": "The server sends every client, once, the length of a window and the numbers of windows for "
    "training, validation and test. This is public.",
}


class ForecastTraining(Protocol):
    """Settings with the parts that training a recurrent forecaster reads."""

    @property
    def run(self) -> Run: ...
    @property
    def training(self) -> Training: ...
    @property
    def sums(self) -> Sums: ...
    @property
    def windows(self) -> Windows: ...
    @property
    def recurrent(self) -> Recurrent: ...
    @property
    def sequences(self) -> Sequences: ...


# ---- the common scale --------------------------------------------------------------------------------------


def statistics(series: Series, missing: str) -> Tensor:
    """Compute for each client the number of its training readings, their sum and the sum of their squares,
    [K, 3] float64.
    """
    steps = series.training_steps
    x = series.readings[:, :steps].double()
    is_read = torch.ones_like(x) if missing == "as_read" else (~series.missing[:, :steps]).double()
    # Divided by the steps, equally many at all clients: this cancels in `scale_of`, and keeps the numbers
    # that a secure sum encodes small.
    return torch.stack([is_read.sum(1), (is_read * x).sum(1), (is_read * x.square()).sum(1)], 1) / steps


def total(parts: Tensor, present: Tensor) -> Tensor:
    return parts[present].sum(0)


def every_part(parts: Tensor, present: Tensor) -> Tensor:
    """Return every client's statistics; the protocol that hides them knows which clients take part."""
    return parts


def no_statistics() -> Tensor:
    return torch.zeros(3)


_STATISTICS = SumForm(total=total, parts=every_part, like=no_statistics)


def scale_of(sums: Tensor) -> dict[str, Tensor]:
    """Compute the mean and standard deviation of all readings, as numbers of the default dtype."""
    count, first, second = sums.double().tolist()
    if not count:
        raise InputError("no sensor has a training reading; use another split, or other data")
    mean = first / count
    # E[x^2] - mean^2 cancels digits, so it is computed in float64.
    variance = second / count - mean**2
    # Relative to the mean: below this the variance is rounding.
    if variance <= 1e-12 * max(1.0, mean**2):
        raise InputError(
            f"all training readings are {mean:g}, so there is nothing to learn; use other data, or another "
            "split"
        )
    return {"mean": torch.tensor(mean), "std": torch.tensor(variance**0.5)}


def scaler_form() -> dict[str, TensorForm]:
    number = TensorForm(torch.get_default_dtype())
    return {"mean": number, "std": number}


def windows_form(width: int) -> TensorForm:
    """Return the form of a row of numbers for each of a client's windows."""
    return TensorForm(torch.get_default_dtype(), (None, width))


def fit_scaler(fed: Federation, series: Located, config: ForecastTraining) -> Located:
    """Compute "mean" and "std" of all training readings at the server, from the series at the clients.

    Raises InputError if there are no training readings, or all are equal.
    """
    parts = fed.clients.run(statistics, series, config.windows.missing)
    sums = protected_sum(
        fed, _STATISTICS, parts, fed.present(), protection=config.sums.aggregation, name="statistics"
    )
    return fed.server.run(scale_of, sums)


# ---- batches -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Standardised:
    """The series of P clients on the common scale. A missing reading that is left out is 0, the mean.

    Attributes:
        value: [P, T] standardised readings.
        weight: [P, T] 1 if a loss counts the reading, otherwise 0.
        time_of_day: [T].
        products: Dtype of matrix products; None: the dtype of their operands.
        missing_mask: Whether a step of the inputs says if its reading is missing.
    """

    value: Tensor
    weight: Tensor
    time_of_day: Tensor
    mean: Tensor
    std: Tensor
    split: TimeSplit
    products: torch.dtype | None
    missing_mask: bool

    @property
    def num_clients(self) -> int:
        return len(self.value)

    def starts(self, target: str) -> Tensor:
        """Return the first step of each window of a target, [W] int64; see `starts_of`."""
        return starts_of(self.split, target).to(self.value.device)

    def restored(self, forecast: Tensor) -> Tensor:
        """Convert standardised numbers to the unit of the readings."""
        return forecast * self.std + self.mean


@dataclass(frozen=True, eq=False)
class Batch:
    """W windows of P clients.

    Attributes:
        x: [P, W, m, 2] inputs; [P, W, m, 3] with the mask of missing readings.
        last: [P, W, 2] their last step, without the mask.
        later: [1, W, n - 1, 1] times of day after it.
        truth: [P, W, n] readings to forecast.
        weight: [P, W, n] whether a loss counts them.
        products: Dtype of matrix products; None: the dtype of their operands.
    """

    x: Tensor
    last: Tensor
    later: Tensor
    truth: Tensor
    weight: Tensor
    products: torch.dtype | None

    def of(self, some: slice) -> "Batch":
        """Select some of the clients."""
        x, last, truth, weight = (part[some] for part in (self.x, self.last, self.truth, self.weight))
        return replace(self, x=x, last=last, truth=truth, weight=weight)


def standardise(
    series: Series, present: Tensor, scaler: Mapping[str, Tensor], config: ForecastTraining
) -> Standardised:
    """Standardise the series of the clients that take part, `present` bool [K].

    Raises InputError if the torch device does not support the `precision` of the settings.
    """
    series = series.of(present)
    value = (series.readings - scaler["mean"]) / scaler["std"]
    weight = torch.ones_like(value)
    products = product_dtype(config.sequences.precision, value.device)
    if config.windows.missing == "masked":
        # 0 is the mean on the common scale.
        value = value.masked_fill(series.missing, 0.0)
        weight = weight.masked_fill(series.missing, 0.0)
    return Standardised(
        value,
        weight,
        series.time_of_day,
        scaler["mean"],
        scaler["std"],
        series.split,
        products,
        config.recurrent.missing_mask,
    )


def batch_of(data: Standardised, starts: Tensor) -> Batch:
    """Cut windows with the first steps [W] out of series."""
    lags, horizon = data.split.lags, data.split.horizon
    value = windows(data.value, starts, 0, lags)
    time = windows(data.time_of_day, starts, 0, lags).expand_as(value)
    inputs = [value, time]
    if data.missing_mask:
        inputs.append(1 - windows(data.weight, starts, 0, lags))
    x = torch.stack(inputs, -1)
    # The decoder reads its own forecast and this time; after the last step there is no further input.
    later = windows(data.time_of_day, starts, lags, horizon)[None, :, :-1, None]
    truth = windows(data.value, starts, lags, horizon)
    weight = windows(data.weight, starts, lags, horizon)
    # The decoder's first input has no mask: only the encoder reads which readings are missing.
    return Batch(x, x[:, :, -1, :2], later, truth, weight, data.products)


def with_readings(data: Standardised, starts: Tensor) -> Tensor:
    """Return in which windows, [P, W], a sensor has a reading among its inputs."""
    return windows(data.weight, starts, 0, data.split.lags).any(-1)


def common_split(fed: Federation, network: Located) -> TimeSplit:
    """Send the division into windows, which the server's network has, to all places."""
    sent = fed.control(split_numbers, network, name="windows", values=dict.fromkeys(SPLIT_NUMBERS, int))
    # Which sensors take part follows from the roster; a name is only for people.
    return TimeSplit(name="", observed=fed.roster, **sent)


SPLIT_NUMBERS = ("lags", "horizon", "every", "train", "val", "test")


def split_numbers(network: Network) -> dict[str, int]:
    return {name: getattr(network.split, name) for name in SPLIT_NUMBERS}


def parts_of(count: int, size: int) -> Iterator[slice]:
    """Divide 0..count-1 into parts of `size` or fewer."""
    for first in range(0, count, size):
        yield slice(first, min(first + size, count))


def encode(weights: Weights, batch: Batch, layers: int = 1) -> Tensor:
    """Encode windows: [P, W, layers * H] states after each window's inputs."""
    return gru.encode(weights, batch.x, layers, batch.products)


def decode(
    weights: Weights, batch: Batch, state: Tensor, teach: Tensor | None = None, layers: int = 1
) -> Tensor:
    """Forecast on the common scale, [P, W, n], from the last step of the inputs and a first state [P, W, .].

    `teach` [n - 1] bool marks the later inputs that are true readings; None: none.
    """
    # Without teacher forcing the decoder must not see what it has to forecast.
    truth, horizon = None if teach is None else batch.truth, batch.truth.shape[-1]
    return gru.decode(weights, state, batch.last, batch.later, horizon, truth, teach, layers, batch.products)


def client_losses(forecast: Tensor, batch: Batch) -> Tensor:
    """Compute each client's mean squared error over the readings that count, [P], on the common scale."""
    squared = (forecast - batch.truth).square() * batch.weight
    # A client without a reading in the batch has loss 0, not 0 / 0.
    return squared.sum((1, 2)) / batch.weight.sum((1, 2)).clamp(min=1)


def plans_rounds(config: ForecastTraining) -> str:
    """Say whether the draws of `teaching` depend on the number of rounds; see `Method.plans_rounds`."""
    planned = config.sequences.teacher_fraction is not None
    return "teacher_fraction is a fraction of the planned rounds" if planned else ""


def teaching(config: ForecastTraining, purpose: str, step: int, steps: int) -> Tensor | None:
    """Draw which later inputs of the decoder are true readings in a training step, [n - 1] bool.

    `step` counts from the start of the run, and a round has `steps`. None without scheduled sampling.
    """
    sequences = config.sequences
    if sequences.teacher_fraction is not None:
        probability = gru.linear_decay(step, sequences.teacher_fraction * config.run.rounds * steps)
    elif sequences.teacher:
        probability = gru.inverse_sigmoid_decay(step, sequences.teacher)
    else:
        return None
    # One draw for all clients, so that they decode as one batch.
    key = fold(config.run.seed, "teacher", purpose)
    return gru.draw_teacher_forcing(key, step, config.windows.horizon, probability)


# ---- training ----------------------------------------------------------------------------------------------


def expanded(weights: Weights, count: int) -> dict[str, Tensor]:
    """Copy shared weights for each of P clients, [P, ...]."""
    # Views: the first step of the optimiser makes tensors of their own.
    return {name: w.expand(count, *w.shape) for name, w in weights.items()}


def descend(
    weights: Weights, gradients: Weights, optimizer: AdamState, training: Training, lr: float
) -> tuple[dict[str, Tensor], AdamState]:
    """Take a step of the optimiser with the learning rate `lr`, in place of that of the clients.

    It is elementwise, so it is one step for each client if weights are [P, ...]. An optimiser of {} is fresh.
    """
    state = optimizer or init_state(training.optimizer, weights)
    return optimizer_step(training.optimizer, weights, gradients, state, lr, training.weight_decay)


def keep_idle(
    data: Standardised,
    before: tuple[Weights, AdamState],
    trained: tuple[dict[str, Tensor], AdamState],
    training: Training,
) -> tuple[dict[str, Tensor], AdamState]:
    """Undo the steps of clients that have no reading to forecast in any training window.

    Weight decay and momentum alone would move their weights. `before` and `trained` are the weights [P, ...]
    and the optimiser; an optimiser of {} is fresh.
    """
    # [P, S, n]: whether a reading of a training window counts in the loss
    read = windows(data.weight, data.starts("train"), data.split.lags, data.split.horizon)
    has_data = read.flatten(1).any(1)
    (start, optimizer), (weights, stepped) = before, trained
    if bool(has_data.all()):
        return trained
    optimizer = optimizer or init_state(training.optimizer, start)
    kept = {
        part: {k: choose_rows(has_data, x, optimizer[part][k]) for k, x in moments.items()}
        for part, moments in stepped.items()
    }
    return {k: choose_rows(has_data, w, start[k]) for k, w in weights.items()}, kept


def client_gradients(
    weights: Weights, batch: Batch, outputs: Callable[[Weights, slice], Tensor]
) -> dict[str, Tensor]:
    """Compute the gradients [P, ...] of the sum of all clients' losses, a few clients at a time.

    `outputs` makes the forecasts [p, W, n] of some clients, on the common scale, from their weights and
    slice.
    """

    def losses(own: Weights, some: slice) -> Tensor:
        return client_losses(outputs(own, some), batch.of(some))

    clients, windows = batch.truth.shape[:2]
    return gru.weight_gradients(weights, losses, clients, windows)[1]


def gradients_of(leaves: Weights) -> dict[str, Tensor]:
    """Return the gradients that leaves have collected; zeros for a leaf without one."""
    # A leaf without a gradient still takes the step of its weight decay and moments.
    return {k: torch.zeros_like(w) if w.grad is None else w.grad for k, w in leaves.items()}


# ---- readings at the server --------------------------------------------------------------------------------


def reported_readings(series: Series, present: Tensor, first: int, end: int, missing: str) -> Tensor:
    """Return what a sensor sends of the steps first .. end - 1, [P, S]; NaN for a missing reading."""
    series = series.of(present)
    readings = series.readings[:, first:end]
    return readings.masked_fill(series.missing[:, first:end], torch.nan) if missing == "masked" else readings


def pooled(
    network: Network, sent: Tensor, scaler: Weights, first: int, length: int, config: ForecastTraining
) -> Standardised:
    """Build the series that sensors have sent, from step `first` on.

    Steps are added up to `length`; of these only the time is known.
    """
    # NaN, as for missing readings: nobody has sent what is to be forecast.
    sent = torch.cat([sent, sent.new_full((len(sent), length - sent.shape[1]), torch.nan)], 1)
    series = Series(
        tuple(range(len(sent))),
        sent.nan_to_num(nan=0.0),
        sent.isnan(),
        network.first_minute + first * network.step_minutes,
        network.step_minutes,
        network.split,
    )
    return standardise(series, torch.ones(len(sent), dtype=torch.bool), scaler, config)


def pool(
    fed: Federation,
    data: SensorData,
    scaler: Located,
    split: TimeSplit,
    target: str,
    config: ForecastTraining,
) -> Located:
    """Send the readings that the windows of a target need to the server, and standardise them there.

    For training windows these are the inputs and the readings to forecast, for other windows the inputs.
    """
    # Windows of a target follow one another, so one stretch of the series has them all.
    starts = starts_of(split, target)
    first, end = int(starts[0]), int(starts[-1]) + split.lags + split.horizon
    # The readings that are forecast stay at the sensors, except those of training.
    inputs = end if target == "train" else end - split.horizon
    sent = fed.clients.run(
        reported_readings, data.series, fed.present(), first, inputs, config.windows.missing
    )
    # A missing reading is NaN.
    sent = fed.collect(sent, name="readings", grad=False, finite=False)
    return fed.server.run(pooled, data.network, sent, scaler, first, end - first, config)


# ---- weights of clients ------------------------------------------------------------------------------------


def of_present(weights: Weights, present: Tensor) -> Weights:
    """Select the weights [P, ...] of the clients that take part from those of all, [K, ...]."""
    return weights if bool(present.all()) else {name: w[present] for name, w in weights.items()}


def of_all(weights: Weights, present: Tensor) -> Weights:
    """Give every client of the cohort a row, as an average requires; clients that do not take part get zeros,
    which do not count.
    """
    if bool(present.all()):
        return weights
    rows = {}
    # [P, ...] to [K, ...]; absent clients have weight 0 in the average.
    for name, w in weights.items():
        rows[name] = w.new_zeros(len(present), *w.shape[1:])
        rows[name][present] = w
    return rows


def equal_weights(network: Network) -> Tensor:
    return torch.ones(network.edges.num_nodes)


def client_weights(series: Series) -> Tensor:
    return torch.ones(series.num_clients)


def average(
    fed: Federation, data: SensorData, own: Located, before: Located, config: ForecastTraining
) -> tuple[Located, Located]:
    """Average the weights of all clients that take part.

    `before` is the mean of the round before, at the server. The result is the mean at the server, and the
    mean at the clients, to which the server sends it.
    """
    mean = protected_mean(
        fed,
        fed.clients.run(of_all, own, fed.present()),
        fed.clients.run(client_weights, data.series),
        fed.server.run(equal_weights, data.network),
        before,
        config.sums.aggregation,
        name="update",
    )
    return mean, fed.broadcast(mean, name="model", grad=False)


# ---- small parts of programs -------------------------------------------------------------------------------


def absent(fed: Federation) -> tuple[int, ...]:
    return tuple((~fed.roster).nonzero()[0].tolist())


def joined(*parts: Tensor) -> Tensor:
    """Join windows [P, W_k, ...] in their order."""
    return torch.cat(parts, 1)
