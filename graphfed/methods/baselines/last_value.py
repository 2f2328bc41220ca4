"""The last reading, repeated: the forecast that every other one should beat.

Nothing is trained and nothing is sent. A sensor without any reading in a window forecasts the mean of its
training readings.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.series import SensorData, Series, windows
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.config import CommonSettings, WindowSettings
from graphfed.methods.tasks import FORECASTING

__all__ = ["METHOD", "LastValueConfig"]


@dataclass(frozen=True, config={"extra": "forbid"})
class LastValueConfig(WindowSettings, CommonSettings):
    """The settings of repeating the last reading."""


def setup(fed: Federation, data: SensorData, task: Task, config: LastValueConfig) -> State:
    """Return a state without values."""
    return State({}, data)


def round(fed: Federation, state: State, config: LastValueConfig, number: int) -> State:
    """Return the state; nothing is trained."""
    return state


def predict(fed: Federation, state: State, config: LastValueConfig, target: str) -> Located:
    """Forecast at each sensor from its own series."""
    data: SensorData = state.prepared
    return fed.clients.run(repeat_last, data.series, fed.present(), target, config.missing)


def repeat_last(series: Series, present: Tensor, target: str, missing: str) -> Tensor:
    """Repeat the last reading, [P, W, n]; with missing=masked the last reading that is not missing."""
    series = series.of(present)
    split, starts = series.split, series.starts(target)
    inputs = windows(series.readings, starts, 0, split.lags)
    if missing == "as_read":
        return inputs[..., -1:].expand(*inputs.shape[:2], split.horizon)
    is_read = ~windows(series.missing, starts, 0, split.lags)
    steps = torch.arange(split.lags, device=starts.device)
    last = torch.where(is_read, steps, -1).amax(-1)
    value = inputs.gather(-1, last.clamp(min=0)[..., None])[..., 0]
    value = torch.where(last >= 0, value, own_mean(series)[:, None])
    return value[..., None].expand(*value.shape, split.horizon)


def own_mean(series: Series) -> Tensor:
    """Compute the mean of each sensor's training readings, [K]; 0 if it has none."""
    is_read = ~series.missing[:, : series.training_steps]
    total = (series.readings[:, : series.training_steps] * is_read).sum(1)
    return total / is_read.sum(1).clamp(min=1)


METHOD = Method(
    name="last_value",
    summary="a sensor's last reading is its forecast",
    paper="no paper: the forecast that every other one should beat",
    config=LastValueConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(
        model=(),
    ),
    sends=Sent(
        summary="nothing",
        protection="nothing is sent",
    ),
    defaults={"rounds": 1},
)
