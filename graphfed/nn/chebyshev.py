"""Chebyshev series of a function on [-s, s], and polynomials of tensors evaluated by them.

The series of degree p is cut off, not refitted: c_n = (2 / pi) int f(s cos t) cos(n t) dt, c_0 halved. If
f^(nu) has variation V on the scaled interval, it is off by at most 2 V / (pi nu (p - nu)^nu) (Trefethen,
Approximation Theory and Approximation Practice, Theorem 7.2)."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

__all__ = ["Series", "chebyshev_series", "derivative", "evaluate", "powers"]

#: c_0, ..., c_p.
Series = tuple[float, ...]
#: Nodes of the quadrature that gives the coefficients: what it folds back onto them is c_n from here on.
NODES = 1 << 14
#: Numbers that are evaluated at a time, so that they stay in the cache.
PART = 1 << 15


def chebyshev_series(f: Callable[[np.ndarray], np.ndarray], degree: int, domain: float) -> Series:
    """The first degree + 1 coefficients of f on [-domain, domain], float64."""
    angle = (np.arange(NODES) + 0.5) * np.pi / NODES
    values = f(domain * np.cos(angle))
    orders = np.arange(degree + 1)
    coefficients = 2 / NODES * np.cos(orders[:, None] * angle) @ values
    coefficients[0] /= 2
    return tuple(coefficients.tolist())


def derivative(series: Series, domain: float) -> Series:
    """The series of the derivative, of one degree less."""
    given = np.polynomial.chebyshev.chebder(series) / domain
    return tuple(given.tolist())


def powers(series: Series, domain: float) -> Series:
    """q_0, ..., q_p: the same polynomial in powers of x, for small degrees: they grow as (1 + sqrt 2)^p."""
    scaled = np.polynomial.chebyshev.cheb2poly(series)
    full = np.zeros(len(series))
    full[: len(scaled)] = scaled
    return tuple((full / domain ** np.arange(len(series))).tolist())


def evaluate(series: Series, domain: float, x: Tensor) -> Tensor:
    """The polynomial at every number of x, [...] -> [...]; differentiable once."""
    result: Tensor = _Evaluate.apply(x, series, domain)  # type: ignore[no-untyped-call]
    return result


class _Evaluate(torch.autograd.Function):
    """Two Clenshaw recurrences, forward and for the derivative, where autograd would keep every step."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, series: Series, domain: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.series, ctx.domain = series, domain  # type: ignore[attr-defined]
        return _clenshaw(series, domain, x)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        series, domain = ctx.series, ctx.domain  # type: ignore[attr-defined]
        return grad * _clenshaw(derivative(series, domain), domain, x), None, None


def _clenshaw(series: Series, domain: float, x: Tensor) -> Tensor:
    """sum_n c_n T_n(x / domain): b_n = c_n + 2 (x / domain) b_(n+1) - b_(n+2)."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    flat, out = x.detach().reshape(-1), result.view(-1)
    for first in range(0, len(flat), PART):
        twice = flat[first : first + PART] * (2 / domain)
        last, before = torch.zeros_like(twice), torch.zeros_like(twice)
        for c in reversed(series[1:]):
            before.neg_().addcmul_(twice, last).add_(c)
            last, before = before, last
        torch.addcmul(series[0] - before, twice, last, value=0.5, out=out[first : first + PART])
    return result
