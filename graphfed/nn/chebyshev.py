"""Chebyshev series of a function on [-s, s], and polynomials of tensors evaluated by them.

The series of degree p is truncated, not fitted again: c_n = (2 / pi) int_0^pi f(s cos t) cos(n t) dt, with
c_0 halved. If f^(nu) has the variation V on the scaled interval, the error is at most
2 V / (pi nu (p - nu)^nu) (Trefethen, Approximation Theory and Approximation Practice, Theorem 7.2).
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

#: Coefficients c_0, ..., c_p.
Series = tuple[float, ...]
#: Nodes of the quadrature that computes the coefficients. Its error consists of coefficients c_n with n of
#: about 2 * NODES and more (aliasing).
NODES = 1 << 14
#: How many numbers are evaluated at a time, so that they stay in the cache.
CHUNK = 1 << 15


def chebyshev_series(f: Callable[[np.ndarray], np.ndarray], degree: int, domain: float) -> Series:
    """Compute the Chebyshev coefficients of a function, in float64.

    Args:
        f: The function, on arrays [NODES] of numbers in [-domain, domain].
        degree: p, the degree of the truncated series.
        domain: s, half the length of the interval.

    Returns:
        The first p + 1 coefficients.

    Reference:
        Trefethen, Approximation Theory and Approximation Practice, Theorem 3.1.
    """
    # The midpoint rule in t = arccos(x / s), where f(s cos t) cos(n t) has no singularity at the ends.
    angle = (np.arange(NODES) + 0.5) * np.pi / NODES
    values = f(domain * np.cos(angle))
    orders = np.arange(degree + 1)
    coefficients = 2 / NODES * np.cos(orders[:, None] * angle) @ values
    # By convention c_0 has half the factor of the others.
    coefficients[0] /= 2
    return tuple(coefficients.tolist())


def derivative(series: Series, domain: float) -> Series:
    """Differentiate a series.

    Args:
        series: The coefficients of a polynomial on [-domain, domain].
        domain: Half the length of the interval.

    Returns:
        The coefficients of the derivative, one fewer (0 for a constant).
    """
    # d/dx T_n(x / s) = T_n'(x / s) / s
    coefficients = np.polynomial.chebyshev.chebder(series) / domain
    return tuple(coefficients.tolist())


def powers(series: Series, domain: float) -> Series:
    """Convert a series to powers of x. Only for small degrees: the coefficients grow like (1 + sqrt 2)^p.

    Args:
        series: The p + 1 coefficients of a polynomial on [-domain, domain].
        domain: Half the length of the interval.

    Returns:
        q_0, ..., q_p of the same polynomial sum_n q_n x^n.
    """
    scaled = np.polynomial.chebyshev.cheb2poly(series)
    # numpy drops trailing zeros; callers count on p + 1 coefficients.
    full = np.zeros(len(series))
    full[: len(scaled)] = scaled
    return tuple((full / domain ** np.arange(len(series))).tolist())


def evaluate(series: Series, domain: float, x: Tensor) -> Tensor:
    """Evaluate a polynomial elementwise. Differentiable once, in `x`.

    Args:
        series: The coefficients of the polynomial on [-domain, domain].
        domain: Half the length of the interval.
        x: [...], of any shape, with numbers in the interval.

    Returns:
        [...].
    """
    result: Tensor = _Evaluate.apply(x, series, domain)  # type: ignore[no-untyped-call]
    return result


class _Evaluate(torch.autograd.Function):
    """A Clenshaw recurrence for the value, and one for the derivative: autograd would store every step."""

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
    """Compute sum_n c_n T_n(x / domain) by b_n = c_n + 2 (x / domain) b_(n+1) - b_(n+2)."""
    result = torch.empty_like(x, memory_format=torch.contiguous_format)
    flat, out = x.detach().reshape(-1), result.view(-1)
    for first in range(0, len(flat), CHUNK):
        # last = b_(n+1), before = b_(n+2), from n = p down to n = 1
        twice = flat[first : first + CHUNK] * (2 / domain)
        last, before = torch.zeros_like(twice), torch.zeros_like(twice)
        for c in reversed(series[1:]):
            before.neg_().addcmul_(twice, last).add_(c)
            last, before = before, last
        # c_0 + (x / domain) b_1 - b_2
        torch.addcmul(series[0] - before, twice, last, value=0.5, out=out[first : first + CHUNK])
    return result
