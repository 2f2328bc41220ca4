"""Evaluation of forecasting: sums of errors for each step ahead, over the windows and sensors of all clients.

Every error is told twice. `rmse`, `mae` and `mape` are over the readings that are there; a percentage needs a
reading that is not 0. `rmse_as_read` and `mae_as_read` are over all of them, with what stands in the place of
a missing one (0 in METR-LA) taken for a reading, as much of the literature has it. A run decides by the one
that it is trained on (setting `missing`).

An RMSE is the root of the mean over all sensors, windows and steps ahead: as every sensor has as many
windows, `rmse_as_read` is the root of the mean over sensors of their own mean squared errors.

Shapes: K clients, P of them take part, W windows, n steps ahead."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.secure.aggregation import SumForm, protected_sum
from graphfed.federation.series import Network, SensorData, Series, windows
from graphfed.federation.state import roster_code, roster_of
from graphfed.methods.base import Task
from graphfed.methods.config import WindowSettings, sum_protection
from graphfed.tasks.evaluation import HIDDEN_SCORES, Evaluation, Scored

__all__ = ["ERRORS", "FORECASTS", "MESSAGES", "deciding_error", "metrics_of", "score_clients"]

MESSAGES = {
    "enrolled": "Once, from the server: which sensors take part in training and validation. Public.",
    "val_errors": "With aggregation=plaintext, in every evaluated round: the summed errors of a client's "
    "forecasts on the validation part, for each step ahead, and how many there are. The server reads each "
    "client's.",
    "final_val_errors": "With aggregation=plaintext: what val_errors has, of the chosen model, once.",
    "final_test_errors": "With aggregation=plaintext, once: the summed errors of a client's forecasts on the "
    "test part, for each step ahead. The server reads each client's.",
}

#: What is summed for each step ahead. `of`: over readings that are there; `as_read`: over all. share, shared:
#: absolute errors over the reading, and of how many that are not 0; lost: forecasts that are no numbers.
ERRORS = (
    "count", "squared", "absolute", "share", "shared", "all", "squared_as_read", "absolute_as_read", "lost",
)  # fmt: skip


# ---- functions run at the clients --------------------------------------------------------------------------


def score_clients(
    series: Series, forecast: Tensor, present: Tensor, target: str, missing: str
) -> dict[str, Tensor]:
    """Every client's sums, errors [K, n, 9] (ERRORS), and decides [K], the mean squared error by which a
    client chooses among rounds. forecast, in the unit of the readings, [P, W, n] or of all clients [K, W, n];
    present [K] bool; a client that does not take part has zeros."""
    if len(forecast) == series.num_clients:
        forecast = forecast[present]
    chosen, split = series.of(present), series.split
    starts = series.starts(target)
    truth = windows(chosen.readings, starts, split.lags, split.horizon).double()
    there = ~windows(chosen.missing, starts, split.lags, split.horizon)
    finite = forecast.isfinite()
    error = (forecast.double() - truth).where(finite, 0.0)
    measured = there & (truth != 0)
    share = (error.abs() / truth.abs().where(measured, 1.0)).where(measured, 0.0)
    sums = torch.stack(
        [
            there.double().sum(1),
            (error.square() * there).sum(1),
            (error.abs() * there).sum(1),
            share.sum(1),
            measured.double().sum(1),
            torch.ones_like(error).sum(1),
            error.square().sum(1),
            error.abs().sum(1),
            (~finite).double().sum(1),
        ],
        -1,
    )
    errors = sums.new_zeros(series.num_clients, *sums.shape[1:])
    errors[present.to(sums.device)] = sums
    count, squared = (0, 1) if missing == "masked" else (5, 6)
    decides = errors[..., squared].sum(1) / errors[..., count].sum(1)
    return {"errors": errors, "decides": decides.where(errors[..., -1].sum(1) == 0, torch.inf)}


def total(scores: Mapping[str, Tensor]) -> Tensor:
    """The cohort's sum over its clients."""
    return scores["errors"].sum(0)


def parts_to_sum(scores: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"errors": scores["errors"]}


def better_clients(scores: Mapping[str, Tensor], best: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which clients beat their own smallest validation error, [K] bool, and what it was, [K]. A client
    without a reading to validate on always takes the newest round."""
    error = scores["decides"]
    if best is None:
        return torch.ones_like(error, dtype=torch.bool), error
    better = (error < best) | error.isnan()
    return better, torch.where(better, error, best)


def of_windows(series: Series, forecast: Tensor) -> tuple[Tensor, Tensor]:
    """The first step of each window that is forecast, [W], and the forecasts [K, W, n]."""
    return series.starts("all"), forecast


def of_target(series: Series, kept: tuple[Tensor, Tensor], target: str) -> Tensor:
    """The forecasts of a target's windows out of those of all."""
    starts, forecast = kept
    wanted = series.starts(target)
    first = int(wanted[0] - starts[0])
    return forecast[:, first : first + len(wanted)]


# ---- functions run at the server ---------------------------------------------------------------------------


def no_errors(horizon: int) -> dict[str, Tensor]:
    """What one client's `parts_to_sum` look like."""
    return {"errors": torch.zeros(horizon, len(ERRORS))}


def opened_errors(sums: Mapping[str, Tensor]) -> Tensor:
    """A sum of `parts_to_sum` as `total` has it."""
    return sums["errors"]


def metrics_of(sums: Tensor) -> dict[str, float]:
    """Metrics from sums [9] (ERRORS); nan where there is no reading."""
    s = dict(zip(ERRORS, sums.double().tolist(), strict=True))
    nan = float("nan")
    there, everything, shared = (s[key] or nan for key in ("count", "all", "shared"))
    return {
        "rmse": (s["squared"] / there) ** 0.5,
        "mae": s["absolute"] / there,
        "mape": 100 * s["share"] / shared,
        "rmse_as_read": (s["squared_as_read"] / everything) ** 0.5,
        "mae_as_read": s["absolute_as_read"] / everything,
    }


def scored(sums: Tensor) -> Scored:
    """Metrics over all steps ahead of sums [n, 9]; told: each metric by step ahead, [n]."""
    ahead = [metrics_of(row) for row in sums]
    by_horizon = {name: [row[name] for row in ahead] for name in ahead[0]}
    return Scored(metrics_of(sums.sum(0)), bool(sums[:, -1].any()), {"test_by_horizon": by_horizon})


def bits_of(network: Network) -> dict[str, str | None]:
    """Which sensors take part, as `plan` tells it."""
    return {"roster": None if network.split.observed.all() else roster_code(network.split.observed)}


# ---- the evaluation ----------------------------------------------------------------------------------------


_ERRORS = SumForm(total, parts_to_sum, no_errors, opened_errors)


def prepare(fed: Federation, data: SensorData, task: Task, config: WindowSettings) -> None:
    """Nothing is agreed on before the first evaluation."""


def score(
    fed: Federation,
    data: SensorData,
    forecast: Located,
    target: str,
    name: str,
    prepared: None,
    config: WindowSettings,
) -> tuple[Located, Located]:
    """Every client's scores at the clients, and the metrics of their sum at the server."""
    scores = fed.clients.run(score_clients, data.series, forecast, fed.present(), target, config.missing)
    sums = protected_sum(
        fed,
        _ERRORS,
        scores,
        protection=sum_protection(config),
        name=f"{name}_errors",
        hidden_name=HIDDEN_SCORES,
        like=(config.horizon,),
    )
    return scores, fed.server.run(scored, sums)


def at_clients(data: SensorData) -> Located:
    return data.series


def enrolled(fed: Federation, data: SensorData) -> np.ndarray | None:
    """Who takes part in training and validation, [K] bool; None: everyone."""
    told = fed.control(bits_of, data.network, name="enrolled")["roster"]
    return None if told is None else roster_of(told, fed.num_clients)


def deciding_error(config: WindowSettings, prepared: object = None) -> str:
    """Return the error that rounds are selected by: the one that a run is trained on."""
    return "rmse" if config.missing == "masked" else "rmse_as_read"


FORECASTS = Evaluation(
    decides=deciding_error,
    messages=MESSAGES,
    prepare=prepare,
    score=score,
    keep=of_windows,
    of_target=of_target,
    at_clients=at_clients,
    enrolled=enrolled,
    better_clients=better_clients,
)
