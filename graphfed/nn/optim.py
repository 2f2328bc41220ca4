"""Optimisers as pure functions on dictionaries of weights.

They work elementwise. So one step on stacked weights [K, ...] is one step for each client. The functions
follow torch.optim.SGD, torch.optim.Adam (weight decay is added to the gradient) and torch.optim.AdamW (weight
decay is decoupled from the gradient), and are tested against them. Adam counts its steps in tensors that
broadcast against the weights, because a client that was absent has taken fewer steps.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

#: The optimisers that methods can be trained with.
Optimizer = Literal["sgd", "adam", "adamw"]
OPTIMIZERS = get_args(Optimizer)

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

#: How many numbers of a weight Adam updates at a time, so that they stay in the cache.
CHUNK = 1 << 18

#: The state of Adam, with a tensor for each weight: the "first" and "second" moments of the gradient, shaped
#: as the weight, and the "steps" taken, [R, 1, ...] for a weight [R, ...].
AdamState = dict[str, dict[str, Tensor]]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Pull:
    """A term that is added to the loss: strength / 2 ||w - anchor||^2 + <linear, w>.

    Attributes:
        strength: Weight of the distance, at least 0.
        anchor: The weights from which the distance is measured.
        linear: The linear term; None for zero.
    """

    strength: float
    anchor: Tensors
    linear: Tensors | None = None

    def gradient(self, name: str, w: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return the term's gradient.

        Args:
            w: [n, ...], the current values of these rows of the weight.

        Returns:
            The gradient at these rows, [n, ...].
        """
        g = (w - self.anchor[name][rows]) * self.strength
        return g if self.linear is None else g.add_(self.linear[name][rows])


def init_state(name: Optimizer, weights: Tensors) -> AdamState:
    """Return the state of an optimiser before its first step.

    Args:
        name: "sgd", "adam" or "adamw".
        weights: Tensors [R, ...] by name. R is K if they are stacked weights of clients.

    Returns:
        The state of Adam (see `adam_init`); {} for SGD.
    """
    return {} if name == "sgd" else adam_init(weights)


def optimizer_step(
    name: Optimizer,
    weights: Tensors,
    gradients: Tensors,
    state: AdamState,
    lr: float,
    weight_decay: float,
    pull: Pull | None = None,
) -> tuple[dict[str, Tensor], AdamState]:
    """Take one step of an optimiser.

    Args:
        name: "sgd", "adam" or "adamw".
        weights: Tensors [R, ...] by name, with R as in `init_state`.
        gradients: Tensors of the same names and shapes.
        state: The state after the step before, or `init_state`.
        lr: The learning rate, above 0.
        weight_decay: Strength of the decay. In "adamw" a step multiplies the weights by
            1 - lr * weight_decay.
        pull: A term of the loss whose gradient `gradients` do not include. SGD adds its gradient; Adam takes
            a proximal step.

    Returns:
        The new weights, and the state for the next step.
    """
    if name != "sgd":
        return adam(weights, gradients, state, lr, weight_decay, decoupled=name == "adamw", pull=pull)
    if pull is not None:
        gradients = {k: g + pull.gradient(k, weights[k]) for k, g in gradients.items()}
    return sgd(weights, gradients, lr, weight_decay), state


def sgd(weights: Tensors, gradients: Tensors, lr: float, weight_decay: float) -> dict[str, Tensor]:
    """Take one step of gradient descent without momentum.

    Args:
        weights: Tensors of any shape by name. The step does not change them.
        gradients: Tensors of the same names and shapes.
        lr: The learning rate, above 0.
        weight_decay: Factor of the weights that is added to the gradient, at least 0.

    Returns:
        The new weights w - lr (g + weight_decay w).
    """
    new: dict[str, Tensor] = {}
    for k, w in weights.items():
        g = torch.add(gradients[k], w, alpha=weight_decay)
        # The result takes the memory of g, which is used nowhere else.
        new[k] = torch.add(w, g, alpha=-lr, out=g)
    return new


def adam_init(weights: Tensors) -> AdamState:
    """Return the state of Adam before its first step.

    Args:
        weights: Tensors [R, ...] by name, with R as in `init_state`.

    Returns:
        Zero moments and zero steps. Steps are counted for each of the R leading rows of a weight.
    """
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
    pull: Pull | None = None,
) -> tuple[dict[str, Tensor], AdamState]:
    """Take one step of Adam with bias correction.

    Decoupled decay makes a large difference in a federation. If a client lacks a feature, the gradient of the
    feature's weights at this client consists of the decay alone, and Adam scales it to a step of the full
    learning rate.

    Args:
        weights: Tensors [R, ...] by name, with R as in `init_state`.
        gradients: Tensors of the same names and shapes.
        state: The state after the step before, or `adam_init`.
        lr: The learning rate, above 0.
        weight_decay: Strength of the decay, at least 0; see `decoupled`.
        decoupled: Whether the decay multiplies the weights by 1 - lr * weight_decay. Else it is added to the
            gradient.
        pull: A term of the loss that is left out of the moments: the step minimises it together with
            Adam's model of the loss, <m, w> + D / (2 lr) ||w - w_t||^2. If its gradient were scaled as the
            others are, a weight without any other gradient would move by the learning rate however near its
            anchor is, along a rounding error too.

    Returns:
        The new weights, and the state for the next step.

    Reference:
        Kingma and Ba 2015, Alg. 1; Loshchilov and Hutter 2019, Alg. 2, for decoupled decay; Yun, Lozano and
        Yang, "Adaptive proximal gradient methods for structured neural networks", NeurIPS 2021, Alg. 1, for
        the proximal step.
    """
    new: dict[str, Tensor] = {}
    after: AdamState = {"first": {}, "second": {}, "steps": {}}
    for k, w in weights.items():
        # [R, 1, ...]: every row has its own count, so a client that was absent has its own bias correction.
        t = after["steps"][k] = state["steps"][k] + 1
        # 1 - beta^t, computed as -expm1(t log beta): in float32 the difference loses digits at small t.
        first, second = -torch.expm1(t * math.log(BETA1)), -torch.expm1(t * math.log(BETA2))
        m = torch.empty_like(w, memory_format=torch.contiguous_format)
        v, x = torch.empty_like(m), torch.empty_like(m)
        after["first"][k], after["second"][k], new[k] = m, v, x
        for rows in _chunks(w):
            g = gradients[k][rows]
            if not decoupled:
                g = torch.add(g, w[rows], alpha=weight_decay)
            # m_t = beta_1 m_(t-1) + (1 - beta_1) g,  v_t = beta_2 v_(t-1) + (1 - beta_2) g^2
            torch.lerp(state["first"][k][rows], g, 1 - BETA1, out=m[rows])
            torch.mul(state["second"][k][rows], BETA2, out=v[rows]).addcmul_(g, g, value=1 - BETA2)
            # D = sqrt(v_t / (1 - beta_2^t)) + epsilon
            root = (v[rows] / second[rows]).sqrt_().add_(EPSILON)
            before = w[rows] * (1 - lr * weight_decay) if decoupled else w[rows]
            if pull is None:
                torch.addcdiv(before, m[rows] * (-lr / first[rows]), root, out=x[rows])
            else:
                # argmin_x <m_hat, x> + D / (2 lr) ||x - before||^2 + pull(x)
                #     = before - (m_hat + grad pull(before)) / (D / lr + strength)
                slope = (m[rows] / first[rows]).add_(pull.gradient(k, before, rows))
                torch.addcdiv(before, slope, root.div_(lr).add_(pull.strength), value=-1, out=x[rows])
    return new, after


def choose_rows(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Choose between two tensors row by row.

    Args:
        chosen: [R] bool: the rows of the new one.
        new: [R, ...], the values of chosen rows.
        old: [R, ...], the values of the other rows.

    Returns:
        [R, ...].
    """
    return torch.where(chosen.view(-1, *[1] * (new.dim() - 1)), new, old)


def _chunks(x: Tensor) -> Iterator[slice]:
    """Divide the leading rows into chunks that fit the cache. Temporary tensors have the size of a chunk."""
    rows = max(1, len(x) * CHUNK // max(1, x.numel()))
    for first in range(0, len(x), rows):
        yield slice(first, first + rows)
