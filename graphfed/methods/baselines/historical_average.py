"""The mean of a sensor's training readings at the same time of the week, as its forecast. For a time of the
week that training has not seen it is the mean at the same time of day, and for a time of day without readings
the mean of all.

Nothing is sent: every sensor has means of its own.
"""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.series import MINUTES_PER_DAY, SensorData, Series
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.config import CommonSettings, WindowSettings
from graphfed.methods.tasks import FORECASTING

__all__ = ["METHOD", "HistoricalAverageConfig"]


@dataclass(frozen=True, config={"extra": "forbid"})
class HistoricalAverageConfig(WindowSettings, CommonSettings):
    """The settings of forecasting the mean of the past."""


def setup(fed: Federation, data: SensorData, task: Task, config: HistoricalAverageConfig) -> State:
    """Return a state without values."""
    return State({}, data)


def round(fed: Federation, state: State, config: HistoricalAverageConfig, number: int) -> State:
    """Return the state; nothing is trained."""
    return state


def predict(fed: Federation, state: State, config: HistoricalAverageConfig, target: str) -> Located:
    """Forecast at each sensor from its own series."""
    data: SensorData = state.prepared
    return fed.clients.run(average_of_past, data.series, fed.present(), target, config.missing)


def average_of_past(series: Series, present: Tensor, target: str, missing: str) -> Tensor:
    """Forecast the mean of the past for each window, [P, W, n]."""
    series = series.of(present)
    split, steps = series.split, torch.arange(series.num_steps, device=series.readings.device)
    minute = series.first_minute + series.step_minutes * steps
    seen = series.readings[:, : series.training_steps]
    weight = torch.ones_like(seen)
    if missing == "masked":
        weight = (~series.missing[:, : series.training_steps]).to(seen.dtype)
    forecast = (seen * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
    forecast = forecast.expand(-1, series.num_steps)
    for period in (MINUTES_PER_DAY, 7 * MINUTES_PER_DAY):
        slot, count = _slots(minute % period)
        total, times = (
            x.new_zeros(len(x), count).index_add_(1, slot[: series.training_steps], x)
            for x in (seen * weight, weight)
        )
        known = (times > 0)[:, slot]
        forecast = torch.where(known, (total / times.clamp(min=1))[:, slot], forecast)
    first = series.starts(target) + split.lags
    return forecast.unfold(-1, split.horizon, 1)[:, first]


def _slots(minute: Tensor) -> tuple[Tensor, int]:
    """Return the slot of each step's time, [T], and the number of slots."""
    times, slot = torch.unique(minute, return_inverse=True)
    return slot, len(times)


METHOD = Method(
    name="historical_average",
    summary="the mean of a sensor's training readings at that time of the week is its forecast",
    paper="no paper: a forecast without the last readings",
    config=HistoricalAverageConfig,
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
