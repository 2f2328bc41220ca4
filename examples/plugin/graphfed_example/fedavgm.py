"""FedAvgM: Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated visual
classification", 2019 (arXiv:1909.06335v1), Section 4.3: FedAvg with momentum at the server.

    paper        here
    w            State.weights, at the server
    v            "velocity" of the server's values
    beta         momentum
    Delta w      the weights minus the mean of the clients' weights, weighted by n_k

Differs from the paper: full-batch steps stand for epochs of mini-batches. With momentum=0 it is FedAvg.
"""

from dataclasses import replace

import torch
from torch import Tensor

import graphfed.method as gm

__all__ = ["METHOD", "RULE", "FedAvgM"]

Tensors = dict[str, Tensor]


@gm.settings
class FedAvgM:
    """The settings of the rule."""

    momentum: float = gm.Field(default=0.9, ge=0, lt=1, description="momentum of the server")


def no_velocity(weights: Tensors, config: gm.AveragingSettings) -> dict[str, Tensors]:
    return {"velocity": {name: torch.zeros_like(w) for name, w in weights.items()}}


def step(
    weights: Tensors, values: dict[str, Tensors], mean: Tensors, config: gm.AveragingSettings
) -> tuple[Tensors, dict[str, Tensors]]:
    beta = config.of_rule.momentum
    v = {name: beta * values["velocity"][name] + (w - mean[name]) for name, w in weights.items()}
    return {name: w - v[name] for name, w in weights.items()}, {"velocity": v}


RULE = gm.Rule("fedavgm", gm.RULES["fedavg"].local, step, no_velocity, settings=FedAvgM)

METHOD = replace(
    gm.FEDAVG,
    name="fedavgm",
    summary="FedAvg with momentum at the server",
    paper="Hsu, Qi, Brown: Measuring the effects of non-identical data distribution for federated visual "
    "classification. 2019, arXiv:1909.06335",
    offers={"rule": ("fedavgm",)},
    sends=gm.WEIGHTS_SENT,
)
