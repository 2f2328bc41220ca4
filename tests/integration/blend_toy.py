"""A method of forecasting that is trained in a second: every forecast is a mixture of a sensor's last reading
and of the mean of what it has just read; the share is learned together."""

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.series import SensorData, Series, windows
from graphfed.methods.base import Method, Sent, State, Task
from graphfed.methods.parts import Clients, Run, Training, Windows
from graphfed.methods.settings import settings
from graphfed.methods.tasks import FORECASTING


@settings
class BlendConfig:
    """The settings of the mixture."""

    run: Run = Run()
    training: Training = Training()
    windows: Windows = Windows()
    clients: Clients = Clients()


def parts(series: Series, target: str) -> tuple[Tensor, Tensor, Tensor]:
    """Last reading and mean of the inputs [K, W, 1], and the readings to forecast [K, W, n]."""
    split, starts = series.split, series.starts(target)
    inputs = windows(series.readings, starts, 0, split.lags)
    truth = windows(series.readings, starts, split.lags, split.horizon)
    return inputs[..., -1:], inputs.mean(-1, keepdim=True), truth


def first_share(config: BlendConfig) -> dict[str, Tensor]:
    return {"share": torch.full((1,), -2.0 - 0.1 * config.run.seed)}


def slope(series: Series, model: dict[str, Tensor], present: Tensor) -> Tensor:
    """Of the squared errors of the clients that take part, and how many there are: their sums, [2]."""
    last, mean, truth = parts(series.of(present), "train")
    error = mean + model["share"] * (last - mean) - truth
    return torch.stack(((2 * error * (last - mean)).sum(), torch.tensor(float(error.numel()))))


def step(model: dict[str, Tensor], total: Tensor, lr: float) -> dict[str, Tensor]:
    return {"share": model["share"] - lr * total[0] / total[1]}


def blend(series: Series, model: dict[str, Tensor], present: Tensor, target: str) -> Tensor:
    last, mean, truth = parts(series.of(present), target)
    return (mean + model["share"] * (last - mean)).expand(truth.shape)


def setup(fed: Federation, data: SensorData, task: Task, config: BlendConfig) -> State:
    return State({"weights": fed.server.run(first_share, config)}, data.series)


def round(fed: Federation, state: State, config: BlendConfig, number: int) -> State:
    model = fed.broadcast(state.weights, name="model", grad=False)
    total = fed.sum(fed.clients.run(slope, state.prepared, model, fed.present()), name="slope", grad=False)
    return State({"weights": fed.server.run(step, state.weights, total, config.training.lr)}, state.prepared)


def predict(fed: Federation, state: State, config: BlendConfig, target: str) -> Located:
    model = fed.broadcast(state.weights, name="model", grad=False)
    forecasts: Located = fed.clients.run(blend, state.prepared, model, fed.present(), target)
    return forecasts


METHOD = Method(
    name="blend_toy",
    summary="a mixture of the last reading and the mean, learned together",
    config=BlendConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict,
    sends=Sent(
        messages={
            "model": "The share, from the server to every site.",
            "slope": "The slope of a site's error, which the server reads.",
        }
    ),
    defaults={"rounds": 12, "lr": 0.01},
)
