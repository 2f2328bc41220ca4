"""ADMM: Boyd, Parikh, Chu, Peleato and Eckstein, "Distributed optimization and statistical learning via the
alternating direction method of multipliers", 2011, section 7.1.

The clients minimise F_k(w_k) + <y_k, w_k - w> + rho / 2 ||w_k - w||^2, starting from their last w_k; the
server takes the mean w of w_k + y_k / rho, and y_k grows by rho (w_k - w). w_k and y_k stay at their client.
Every client takes part in every round.
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from graphfed.methods.averaging.rules.base import Average, Rule, Tensors, Values
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.common.local_training import (
    Prepared,
    each_value,
    personal_weights,
    train_pulled,
    values_of,
)
from graphfed.methods.settings import settings
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import Pull


@settings
class Admm:
    """The distance to the model."""

    rho: float = Field(
        default=0.1, gt=0, allow_inf_nan=False, description="weight of the distance to the model"
    )


def local(
    prepared: Prepared,
    model: Weights,
    kept: dict[str, Any],
    present: Tensor,
    config: AveragingSettings,
    round_number: int,
) -> tuple[Weights, dict[str, Any]]:
    """Minimise from w_k. Returned are w_k + y_k / rho - w, whose mean is the change of w, and what a client
    keeps: "weights" w_k, "dual" y_k and the optimiser's state.
    """
    rho = config.of_rule.rho
    received = personal_weights(model, prepared.train, config.network.kernel)
    # y_k grows by rho (w_k - w) here, because the new w arrives only with this round.
    if kept:
        own = kept["weights"]
        dual = each_value(lambda y, w, z: y + rho * (w - z), kept["dual"], own, received)
    else:
        own, dual = received, each_value(torch.zeros_like, received)
    # The gradient of <y_k, w_k - w> + rho / 2 ||w_k - w||^2 is y_k + rho (w_k - w).
    pull = Pull(rho, values_of(received), values_of(dual))
    trained, optimizer = train_pulled(prepared, own, kept.get("optimizer", {}), pull, config, round_number)
    # Averaged are changes: a weight that no client has moved stays what it is, to the last bit. Adam would
    # turn a rounding error of the mean into a difference w_k - w, and that into a step.
    change = each_value(lambda w, z, y: w - z + y / rho, trained, received, dual)
    return change, {"weights": trained, "dual": dual, "optimizer": optimizer}


def step(model: Tensors, values: Values, mean: Tensors, config: object) -> tuple[Tensors, Values]:
    """Add the mean change to the model."""
    return {k: w + mean[k] for k, w in model.items()}, values


RULE = Rule("admm", local, step, averages=(Average("update"),), settings=Admm)
