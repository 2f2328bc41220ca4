"""Evaluation of forecasting: sums of errors for each step ahead, over the windows and sensors of all clients.

Errors are computed in two ways. `rmse`, `mae` and `mape` are over the readings that are not missing; `mape`
also leaves out readings of 0. `rmse_as_read` and `mae_as_read` are over all readings, and the value in the
place of a missing reading (0 in METR-LA) counts as a reading, as in much of the literature. Rounds are
selected by the kind of error that the run is trained on (setting `missing`).

An RMSE is the root of the mean over all sensors, windows and steps ahead. Every sensor has equally many
windows, so `rmse_as_read` is also the root of the mean over sensors of their own mean squared errors.

Shapes: K clients, P of which take part, W windows, n steps ahead.
"""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from graphfed.federation.series import Network, Series, windows
from graphfed.federation.state import roster_code
from graphfed.methods.parts import Windows
from graphfed.tasks.evaluation import Scored

MESSAGES = {
    "enrolled": "Once: the server sends all clients which sensors take part in training and validation. This "
    "is public.",
    "val_errors": "With aggregation=plaintext, in every evaluated round: each client sends the server the "
    "summed errors of its forecasts on the validation part, for each step ahead, and the number of "
    "forecasts. The server reads each client's numbers.",
    "final_val_errors": "With aggregation=plaintext, once: each client sends the content of val_errors for "
    "the selected model.",
    "final_test_errors": "With aggregation=plaintext, once: each client sends the server the summed errors "
    "of its forecasts on the test part, for each step ahead, and the number of forecasts. The server reads "
    "each client's numbers.",
}

#: The sums for each step ahead. count, squared and absolute are over the readings that are not missing; all,
#: squared_as_read and absolute_as_read are over all readings. relative is the sum of absolute errors divided
#: by the reading, and measured the number of these. lost is the number of forecasts that are not finite.
ERRORS = (
    "count", "squared", "absolute", "relative", "measured",
    "all", "squared_as_read", "absolute_as_read", "lost",
)  # fmt: skip


# ---- functions run at the clients --------------------------------------------------------------------------


def score_clients(
    series: Series, forecast: Tensor, present: Tensor, target: str, missing: str
) -> dict[str, Tensor]:
    """Sum every client's errors on a part of the split.

    Args:
        forecast: The forecasts in the unit of the readings, [P, W, n], or [K, W, n] for all clients.
        present: The clients that take part, bool [K].
        missing: The setting `missing` of the run.

    Returns:
        errors [K, n, 9], the sums (`ERRORS`), zero for a client that does not take part; and decides [K], the
        mean squared error by which a client selects its own round.
    """
    if len(forecast) == series.num_clients:
        forecast = forecast[present]
    chosen, split = series.of(present), series.split
    starts = series.starts(target)
    truth = windows(chosen.readings, starts, split.lags, split.horizon).double()
    observed = ~windows(chosen.missing, starts, split.lags, split.horizon)
    finite = forecast.isfinite()
    # A forecast that is not finite adds nothing to the sums of errors; `lost` counts it.
    error = (forecast.double() - truth).where(finite, 0.0)
    measured = observed & (truth != 0)
    # The inner `where` prevents a division by a reading of 0.
    relative = (error.abs() / truth.abs().where(measured, 1.0)).where(measured, 0.0)
    sums = torch.stack(
        [
            observed.double().sum(1),
            (error.square() * observed).sum(1),
            (error.abs() * observed).sum(1),
            relative.sum(1),
            measured.double().sum(1),
            torch.ones_like(error).sum(1),
            error.square().sum(1),
            error.abs().sum(1),
            (~finite).double().sum(1),
        ],
        -1,
    )
    # Sums of all K clients, because the scores of a cohort have a row for each of them.
    errors = sums.new_zeros(series.num_clients, *sums.shape[1:])
    errors[present.to(sums.device)] = sums
    count, squared = (0, 1) if missing == "masked" else (5, 6)
    decides = errors[..., squared].sum(1) / errors[..., count].sum(1)
    # A client with a lost forecast never has a better score.
    return {"errors": errors, "decides": decides.where(errors[..., -1].sum(1) == 0, torch.inf)}


def has_parts(series: Series, present: Tensor) -> Tensor:
    """Return whether each sensor has readings that are not missing, bool [K_h, 4]: among the training steps,
    and to forecast in the windows of training, validation and test.
    """
    split, observed = series.split, ~series.missing
    enrolled = present.to(observed.device)
    trained, *forecast = (
        windows(observed, series.starts(target), split.lags, split.horizon).flatten(1).any(1)
        for target in ("train", "val", "test")
    )
    val, test = forecast
    read = observed[:, : series.training_steps].any(1)
    # All sensors are tested, also those that do not take part in training.
    return torch.stack([read & enrolled, trained & enrolled, val & enrolled, test], 1)


def total(scores: Mapping[str, Tensor]) -> Tensor:
    return scores["errors"].sum(0)


def parts_to_sum(scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"errors": scores["errors"]}


def better_clients(scores: Mapping[str, Tensor], best: Tensor | None) -> tuple[Tensor, Tensor]:
    """Decide which clients improve on their smallest validation error, bool [K], and update it, [K].

    A client without readings in the validation part always takes the newest round.
    """
    error = scores["decides"]
    if best is None:
        return torch.ones_like(error, dtype=torch.bool), error
    # Readings do not change, so a client's error is nan in all rounds or in none.
    better = (error < best) | error.isnan()
    return better, torch.where(better, error, best)


# ---- functions run at the server ---------------------------------------------------------------------------


def no_errors(horizon: int) -> dict[str, Tensor]:
    """Return the form of one client's `parts_to_sum`."""
    return {"errors": torch.zeros(horizon, len(ERRORS))}


def opened_errors(sums: Mapping[str, Tensor]) -> Tensor:
    """Convert a sum of `parts_to_sum` to the form that `total` returns."""
    return sums["errors"]


def metrics_of(sums: Tensor) -> dict[str, float]:
    """Compute the metrics from sums of errors (`ERRORS`), [9]; nan if there is no reading."""
    s = dict(zip(ERRORS, sums.double().tolist(), strict=True))
    nan = float("nan")
    count, count_as_read, measured = (s[key] or nan for key in ("count", "all", "measured"))
    return {
        "rmse": (s["squared"] / count) ** 0.5,
        "mae": s["absolute"] / count,
        "mape": 100 * s["relative"] / measured,
        "rmse_as_read": (s["squared_as_read"] / count_as_read) ** 0.5,
        "mae_as_read": s["absolute_as_read"] / count_as_read,
    }


def scored(sums: Tensor) -> Scored:
    """Compute the metrics over all steps ahead from sums [n, 9], and those of each step for the report."""
    ahead = [metrics_of(row) for row in sums]
    by_horizon = {name: [row[name] for row in ahead] for name in ahead[0]}
    return Scored(metrics_of(sums.sum(0)), bool(sums[:, -1].any()), {"test_by_horizon": by_horizon})


def bits_of(network: Network) -> dict[str, str | None]:
    """Encode the sensors that take part as control values; None if all do."""
    return {"roster": None if network.split.observed.all() else roster_code(network.split.observed)}


# ---- settings ----------------------------------------------------------------------------------------------


class Forecasts(Protocol):
    """The settings of a method that forecasts."""

    @property
    def windows(self) -> Windows: ...


def deciding_error(config: Forecasts) -> str:
    """Return the error that selects rounds, which is the error that the run is trained on."""
    return "rmse" if config.windows.missing == "masked" else "rmse_as_read"
