"""Optimisers as pure functions on dictionaries of weights: elementwise, so on stacked weights they are one
per client.

They follow torch.optim.SGD and torch.optim.Adam (weight decay added to the gradient), tested against both.
Adam counts its steps in tensors that broadcast against the weights, because a client that was absent has
taken fewer.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["AdamState", "adam", "adam_init", "sgd"]

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

#: "first" and "second" moments shaped as the weights, "steps" taken; each a tensor for every weight.
AdamState = dict[str, dict[str, Tensor]]
Tensors = Mapping[str, Tensor]


def sgd(weights: Tensors, gradients: Tensors, lr: float, weight_decay: float) -> dict[str, Tensor]:
    """w - lr (g + weight_decay w), without momentum."""
    new: dict[str, Tensor] = {}
    for k, w in weights.items():
        g = torch.add(gradients[k], w, alpha=weight_decay)
        new[k] = torch.add(w, g, alpha=-lr, out=g)  # the memory of g, which nobody else holds
    return new


def adam_init(weights: Tensors) -> AdamState:
    """No moments and no steps; the steps of a weight [R, ...] are counted for each of its R leading rows."""
    return {
        "first": {k: torch.zeros_like(w) for k, w in weights.items()},
        "second": {k: torch.zeros_like(w) for k, w in weights.items()},
        "steps": {k: w.new_zeros((len(w), *[1] * (w.dim() - 1))) for k, w in weights.items()},
    }


def adam(
    weights: Tensors, gradients: Tensors, state: AdamState, lr: float, weight_decay: float
) -> tuple[dict[str, Tensor], AdamState]:
    """One step of Adam (Kingma and Ba 2015, Alg. 1) with bias correction."""
    new: dict[str, Tensor] = {}
    after: AdamState = {"first": {}, "second": {}, "steps": {}}
    for k, w in weights.items():
        g = torch.add(gradients[k], w, alpha=weight_decay)
        t = after["steps"][k] = state["steps"][k] + 1
        m = after["first"][k] = state["first"][k].lerp(g, 1 - BETA1)
        v = after["second"][k] = (BETA2 * state["second"][k]).addcmul_(g, g, value=1 - BETA2)
        # 1 - beta^t; written so that float32 keeps all its digits at small t.
        first, second = (-torch.expm1(t * math.log(beta)) for beta in (BETA1, BETA2))
        new[k] = torch.addcdiv(w, m * (-lr / first), (v / second).sqrt_().add_(EPSILON))
    return new, after
