"""Optimisers as pure functions on dictionaries of weights: elementwise, so on stacked weights they are one
per client.

They follow torch.optim.SGD and torch.optim.Adam (weight decay added to the gradient), tested against both.
Adam counts its steps in tensors that broadcast against the weights, because a client that was absent has
taken fewer.
"""

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

__all__ = ["AdamState", "adam", "adam_init", "sgd"]

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

#: Numbers of a weight that are stepped at a time.
PART = 1 << 18

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
        t = after["steps"][k] = state["steps"][k] + 1
        # 1 - beta^t; written so that float32 keeps all its digits at small t.
        first, second = (-torch.expm1(t * math.log(beta)) for beta in (BETA1, BETA2))
        m, v, x = (torch.empty_like(w, memory_format=torch.contiguous_format) for _ in range(3))
        after["first"][k], after["second"][k], new[k] = m, v, x
        for part in _parts(w):
            g = torch.add(gradients[k][part], w[part], alpha=weight_decay)
            torch.lerp(state["first"][k][part], g, 1 - BETA1, out=m[part])
            torch.mul(state["second"][k][part], BETA2, out=v[part]).addcmul_(g, g, value=1 - BETA2)
            root = (v[part] / second[part]).sqrt_().add_(EPSILON)
            torch.addcdiv(w[part], m[part] * (-lr / first[part]), root, out=x[part])
    return new, after


def _parts(x: Tensor) -> Iterator[slice]:
    """Leading rows, as many at a time as the cache holds: a step has temporaries of their size only."""
    rows = max(1, len(x) * PART // max(1, x.numel()))
    for first in range(0, len(x), rows):
        yield slice(first, first + rows)
