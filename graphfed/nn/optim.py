"""Optimisers as pure functions on dictionaries of weights: elementwise, so on stacked weights they are one
per client.

They follow torch.optim.SGD, torch.optim.Adam (weight decay added to the gradient) and torch.optim.AdamW
(weight decay beside the step), tested against all three. Adam counts its steps in tensors that broadcast
against the weights, because a client that was absent has taken fewer.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

__all__ = ["OPTIMIZERS", "AdamState", "Optimizer", "adam", "adam_init", "init_state", "optimizer_step", "sgd"]

#: The optimisers that methods can be trained with.
Optimizer = Literal["sgd", "adam", "adamw"]
OPTIMIZERS = get_args(Optimizer)

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

#: Numbers of a weight that are stepped at a time.
PART = 1 << 18

#: "first" and "second" moments shaped as the weights, "steps" taken; each a tensor for every weight.
AdamState = dict[str, dict[str, Tensor]]
Tensors = Mapping[str, Tensor]


def init_state(name: Optimizer, weights: Tensors) -> AdamState:
    """Return the state of an optimiser that has not taken a step; {} for SGD, which has none."""
    return {} if name == "sgd" else adam_init(weights)


def optimizer_step(
    name: Optimizer, weights: Tensors, gradients: Tensors, state: AdamState, lr: float, weight_decay: float
) -> tuple[dict[str, Tensor], AdamState]:
    """Take one step of an optimiser.

    Args:
        name: Which optimiser.
        weights: Tensors of any shape, by name.
        gradients: Of the same names and shapes.
        state: What the step before returned, or `init_state`.
        lr: Learning rate.
        weight_decay: Strength of the decay; in "adamw" a step shrinks the weights by lr * weight_decay.

    Returns:
        The new weights, and the state for the next step."""
    if name == "sgd":
        return sgd(weights, gradients, lr, weight_decay), state
    return adam(weights, gradients, state, lr, weight_decay, decoupled=name == "adamw")


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
    weights: Tensors,
    gradients: Tensors,
    state: AdamState,
    lr: float,
    weight_decay: float,
    *,
    decoupled: bool = False,
) -> tuple[dict[str, Tensor], AdamState]:
    """Take one step of Adam (Kingma and Ba 2015, Alg. 1) with bias correction.

    decoupled: the decay is not part of the gradient but shrinks the weights beside the step (Loshchilov and
    Hutter 2019, Alg. 2). In a federation the difference is large: a client that lacks a feature has no
    gradient for its weights but the decay's, and Adam enlarges that to a step of the full learning rate."""
    new: dict[str, Tensor] = {}
    after: AdamState = {"first": {}, "second": {}, "steps": {}}
    for k, w in weights.items():
        t = after["steps"][k] = state["steps"][k] + 1
        # 1 - beta^t; written so that float32 keeps all its digits at small t.
        first, second = (-torch.expm1(t * math.log(beta)) for beta in (BETA1, BETA2))
        m, v, x = (torch.empty_like(w, memory_format=torch.contiguous_format) for _ in range(3))
        after["first"][k], after["second"][k], new[k] = m, v, x
        for part in _parts(w):
            g = gradients[k][part]
            if not decoupled:
                g = torch.add(g, w[part], alpha=weight_decay)
            torch.lerp(state["first"][k][part], g, 1 - BETA1, out=m[part])
            torch.mul(state["second"][k][part], BETA2, out=v[part]).addcmul_(g, g, value=1 - BETA2)
            root = (v[part] / second[part]).sqrt_().add_(EPSILON)
            before = w[part] * (1 - lr * weight_decay) if decoupled else w[part]
            torch.addcdiv(before, m[part] * (-lr / first[part]), root, out=x[part])
    return new, after


def _parts(x: Tensor) -> Iterator[slice]:
    """Leading rows, as many at a time as the cache holds: a step has temporaries of their size only."""
    rows = max(1, len(x) * PART // max(1, x.numel()))
    for first in range(0, len(x), rows):
        yield slice(first, first + rows)
