"""The readings of all sensors at the server, for methods that train there.

Shapes are those of `common.forecasting`.
"""

import torch
from torch import Tensor

from graphfed.data.sensors.windows import TimeSplit
from graphfed.federation import Federation, Located
from graphfed.federation.series import Network, SensorData, Series, starts_of
from graphfed.methods.common.forecasting import ForecastTraining, Standardised, Weights, standardise

__all__ = ["pool"]


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

    Args:
        fed: The federation.
        data: The data of the run.
        scaler: "mean" and "std", at the server.
        split: The windows.
        target: "train", "val", "test" or "all".
        config: The settings.

    Returns:
        At the server: the `Standardised` series.
    """
    starts = starts_of(split, target)
    first, end = int(starts[0]), int(starts[-1]) + split.lags + split.horizon
    inputs = end if target == "train" else end - split.horizon
    sent = fed.clients.run(reported_readings, data.series, fed.present(), first, inputs, config.missing)
    # A missing reading is NaN.
    sent = fed.collect(sent, name="readings", grad=False, finite=False)
    return fed.server.run(pooled, data.network, sent, scaler, first, end - first, config)
