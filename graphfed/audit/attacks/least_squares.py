"""Sparse linear least squares within bounds, which several attacks solve."""

import torch
from torch import Tensor

__all__ = ["bounded"]


def bounded(
    a: Tensor,
    b: Tensor,
    start: Tensor,
    *,
    stay: float,
    few: float | Tensor,
    mean: float,
    low: float | Tensor,
    high: float | Tensor,
    rho: float = 0.1,
    iterations: int = 200,
) -> Tensor:
    """Minimise |a x - b|^2 / 2 + stay |x - start|^2 / 2 + few |x - mean|_1 within bounds, by ADMM.

    a is first scaled to a mean squared column norm of 1, and b by the same factor. If a is 0, the result is
    start.

    Args:
        a: The matrix, [m, F].
        b: The right-hand side, [m]; for n problems [m, n].
        start: The first estimate, [F]; for n problems [F, n].
        stay: The weight of staying close to start.
        few: The weight of the l1 norm, which prefers few entries that differ from mean; one number, or [F]
            or [F, 1].
        mean: The value that most entries are expected to have.
        low: The lower bound, like few.
        high: The upper bound, like few.
        rho: The step of ADMM. After a limited number of iterations, a small one fits a x = b closely, and a
            large one gives few entries that differ from mean.
        iterations: The number of iterations.

    Returns:
        x, of the shape of start.

    Reference:
        Boyd, Parikh, Chu, Peleato and Eckstein, Foundations and Trends in Machine Learning 2011, section 6.4.
    """
    size = a.norm() / a.shape[1] ** 0.5
    if not size > 0:
        return start
    a, b = a / size, b / size
    inverse = _Inverse(a, rho + stay)
    constant = a.T @ b + stay * start
    low, high = (torch.as_tensor(bound, dtype=a.dtype, device=a.device) for bound in (low, high))
    z, u = start, torch.zeros_like(start)
    for _ in range(iterations):
        x = inverse(constant + rho * (z - u))
        z = x + u - mean
        z = z.sign() * (z.abs() - few / rho).clamp(min=0) + mean
        z = z.clamp(low, high)
        u = u + x - z
    return z


class _Inverse:
    """The map y -> (a^T a + c)^-1 y, computed with the smaller of a^T a and a a^T."""

    def __init__(self, a: Tensor, c: float) -> None:
        self.wide, self.a, self.c = a.shape[0] < a.shape[1], a, c
        gram = a @ a.T if self.wide else a.T @ a
        gram.diagonal().add_(c)
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))

    def __call__(self, y: Tensor) -> Tensor:
        if not self.wide:
            return self.inverse @ y
        return (y - self.a.T @ (self.inverse @ (self.a @ y))) / self.c
