"""Forecasts without training: `last_value` and `historical_average`.

Every sensor forecasts from its own series alone, so nothing is sent.
"""

from dataclasses import replace

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.series import MINUTES_PER_DAY, SensorData, Series, windows
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.parts import Run, Windows
from graphfed.methods.settings import settings
from graphfed.methods.tasks import FORECASTING


@settings
class UntrainedConfig:
    """The settings of a forecast without training."""

    run: Run = Run()
    windows: Windows = Windows()


def setup(fed: Federation, data: SensorData, task: Task, config: UntrainedConfig) -> State:
    """Return a state without values."""
    return State({}, data)


def round(fed: Federation, state: State, config: UntrainedConfig, number: int) -> State:
    """Return the state; nothing is trained."""
    return state


# ---- the last reading --------------------------------------------------------------------------------------


def predict_last(fed: Federation, state: State, config: UntrainedConfig, target: str) -> Located:
    """Repeat the last reading at each sensor."""
    return fed.clients.run(repeat_last, state.prepared.series, fed.present(), target, config.windows.missing)


def repeat_last(series: Series, present: Tensor, target: str, missing: str) -> Tensor:
    """Repeat the last reading of each window, [P, W, n]; with missing=masked the last that is not missing.

    A sensor without any reading in a window forecasts the mean of its training readings.
    """
    series = series.of(present)
    split, starts = series.split, series.starts(target)
    inputs = windows(series.readings, starts, 0, split.lags)
    if missing == "as_read":
        return inputs[..., -1:].expand(*inputs.shape[:2], split.horizon)
    is_read = ~windows(series.missing, starts, 0, split.lags)
    steps = torch.arange(split.lags, device=starts.device)
    # [P, W], the last step with a reading; -1 without one
    last = torch.where(is_read, steps, -1).amax(-1)
    value = inputs.gather(-1, last.clamp(min=0)[..., None])[..., 0]
    value = torch.where(last >= 0, value, own_mean(series)[:, None])
    return value[..., None].expand(*value.shape, split.horizon)


def own_mean(series: Series) -> Tensor:
    """Compute the mean of each sensor's training readings, [K]; 0 if it has none."""
    is_read = ~series.missing[:, : series.training_steps]
    total = (series.readings[:, : series.training_steps] * is_read).sum(1)
    return total / is_read.sum(1).clamp(min=1)


# ---- the mean of the past ----------------------------------------------------------------------------------


def predict_average(fed: Federation, state: State, config: UntrainedConfig, target: str) -> Located:
    """Forecast the mean of the past at each sensor."""
    return fed.clients.run(
        average_of_past, state.prepared.series, fed.present(), target, config.windows.missing
    )


def average_of_past(series: Series, present: Tensor, target: str, missing: str) -> Tensor:
    """Forecast the mean of a sensor's training readings at the same time of the week, [P, W, n].

    For a time of the week that training has not seen it is the mean at the same time of day, and for a time
    of day without readings the mean of all.
    """
    series = series.of(present)
    split, steps = series.split, torch.arange(series.num_steps, device=series.readings.device)
    # From the general to the special: a mean of all, then of the time of day, then of the time of the week.
    minute = series.first_minute + series.step_minutes * steps
    seen = series.readings[:, : series.training_steps]
    weight = torch.ones_like(seen)
    if missing == "masked":
        weight = (~series.missing[:, : series.training_steps]).to(seen.dtype)
    forecast = (seen * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
    forecast = forecast.expand(-1, series.num_steps)
    for period in (MINUTES_PER_DAY, 7 * MINUTES_PER_DAY):
        times, slot = torch.unique(minute % period, return_inverse=True)
        total, count = (
            x.new_zeros(len(x), len(times)).index_add_(1, slot[: series.training_steps], x)
            for x in (seen * weight, weight)
        )
        known = (count > 0)[:, slot]
        forecast = torch.where(known, (total / count.clamp(min=1))[:, slot], forecast)
    # The steps after a window's inputs: [P, W, n]
    first = series.starts(target) + split.lags
    return forecast.unfold(-1, split.horizon, 1)[:, first]


LAST_VALUE = Method(
    name="last_value",
    summary="a sensor's last reading is its forecast",
    paper="no paper: the forecast that every other one should beat",
    config=UntrainedConfig,
    tasks=(FORECASTING,),
    partition="sensors",
    setup=setup,
    round=round,
    predict=predict_last,
    state=StateValues(model=()),
    sends=Sent(summary="nothing", protection="nothing is sent"),
    defaults={"rounds": 1},
)
HISTORICAL_AVERAGE = replace(
    LAST_VALUE,
    name="historical_average",
    summary="the mean of a sensor's training readings at that time of the week is its forecast",
    paper="no paper: a forecast without the last readings",
    predict=predict_average,
)
