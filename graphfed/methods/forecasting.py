"""What the trained methods of forecasting share: a common scale, batches of windows, losses, local training.

    K clients, P of them take part, W windows of a batch, m lags, n horizon, H hidden width

A step of a series is two numbers, the standardised reading and the time of day. Every client is its own
sensor, and all of a host's clients compute as one: weights are shared by them or one each, [P, ...]."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

from graphfed.data.windows import TimeSplit
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.secure_sum import messages, secure_sum
from graphfed.federation.series import Network, Series, starts_of, windows
from graphfed.methods.base import ForecastConfig
from graphfed.nn import gru
from graphfed.nn.optim import AdamState, adam, adam_init, sgd
from graphfed.nn.precision import product_dtype
from graphfed.random import fold

__all__ = [
    "MESSAGES",
    "Batch",
    "NeuralConfig",
    "Standardised",
    "Weights",
    "batch_of",
    "client_losses",
    "common_split",
    "decode",
    "descend",
    "encode",
    "expanded",
    "fit_scaler",
    "parts_of",
    "standardise",
    "step_down",
    "teaching",
]

Weights = Mapping[str, Tensor]

MESSAGES = {
    "statistics": "With aggregation=clear, once: how many training readings a sensor has, their sum and the "
    "sum of their squares, from which the common scale is made. The server reads each sensor's.",
    "scaler": "The common scale: the mean of all sensors' training readings and their standard deviation, "
    "from the server to every site.",
    **messages(
        "statistics",
        "With aggregation=secure or simulated, once",
        "how many training readings a site has, their sum and the sum of their squares",
    ),
}


@config_dataclass(frozen=True, config={"extra": "forbid"})
class NeuralConfig(ForecastConfig):
    """The settings of forecasters that are trained."""

    batch: int = Field(default=128, ge=1, description="windows of a step of training")
    teacher: float = Field(
        default=1000.0,
        ge=0,
        allow_inf_nan=False,
        description="scheduled sampling: after s steps a true reading goes into the decoder, in the place of "
        "its own forecast, with probability k / (k + exp(s / k)) of this k; 0: never",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="format of matrix products; weights, states and sums stay float32. bfloat16 is faster "
        "where the processor has it",
    )
    aggregation: Literal["clear", "secure", "simulated"] = Field(  # type: ignore[assignment]
        default="clear",
        description="how statistics, weights and scores are added up at the server: it reads each site's, or "
        "by secure aggregation their sum only; simulated: as secure in numbers and bytes, and nothing is "
        "hidden",
    )


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


def no_statistics() -> Tensor:
    return torch.zeros(3)


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


def fit_scaler(fed: Federation, series: Located, config: NeuralConfig) -> Located:
    """The mean and standard deviation of all training readings, at the server."""
    parts = fed.clients.run(statistics, series, config.missing)
    if config.aggregation == "clear":
        sums = fed.sum(fed.clients.run(total, parts, fed.present()), name="statistics", grad=False)
    else:
        like = fed.server.run(no_statistics)
        simulated = config.aggregation == "simulated"
        sums = secure_sum(fed, parts, None, like, name="statistics", simulated=simulated)
    scaler: Located = fed.server.run(scale_of, sums)
    return scaler


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


def standardise(
    series: Series, present: Tensor, scaler: Mapping[str, Tensor], config: NeuralConfig
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


def teaching(config: NeuralConfig, purpose: str, step: int) -> Tensor | None:
    """Which later inputs of the decoder are the truth at a step of training: [n-1] bool."""
    if not config.teacher:
        return None
    return gru.taught_steps(fold(config.seed, "teacher", purpose), step, config.horizon, config.teacher)


# ---- training ----------------------------------------------------------------------------------------------


def expanded(weights: Weights, count: int) -> dict[str, Tensor]:
    """A copy of shared weights for each of `count` clients, [P, ...]."""
    return {name: w.expand(count, *w.shape) for name, w in weights.items()}


def descend(
    weights: Weights, gradients: Weights, optimizer: AdamState, config: ForecastConfig, lr: float
) -> tuple[dict[str, Tensor], AdamState]:
    """One step of the optimiser ({}: a fresh one); elementwise, so one for each client where weights are."""
    if config.optimizer == "sgd":
        return sgd(weights, gradients, lr, config.weight_decay), optimizer
    return adam(weights, gradients, optimizer or adam_init(weights), lr, config.weight_decay)


def step_down(
    weights: Weights,
    optimizer: AdamState,
    loss: Callable[[Weights], Tensor],
    config: ForecastConfig,
    lr: float,
) -> tuple[dict[str, Tensor], AdamState]:
    """One step down loss(weights), a number."""
    leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
    gradients = torch.autograd.grad(loss(leaves), list(leaves.values()))
    return descend(weights, dict(zip(leaves, gradients, strict=True)), optimizer, config, lr)
