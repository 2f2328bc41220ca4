"""Linear least squares within bounds, with few entries that are not what most are: what attacks solve."""

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
    """min |a x - b|^2 / 2 + stay |x - start|^2 / 2 + few |x - mean|_1 within low and high, by ADMM (Boyd,
    Parikh, Chu, Peleato and Eckstein, Foundations and Trends in Machine Learning 2011, section 6.4).

    a [m, F], which is first scaled to mean squared column norm 1, and b by the same factor; where a is 0,
    start it is. b [m] and start [F], or of n problems [m, n] and [F, n]; few, low and high: of all entries,
    or of each one, [F] or [F, 1]. rho: ADMM's step; after a limited number of iterations a small one has
    a x = b met closely, a large one has few entries."""
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
    """y -> (a^T a + c)^-1 y, by the smaller of a^T a and a a^T."""

    def __init__(self, a: Tensor, c: float) -> None:
        self.wide, self.a, self.c = a.shape[0] < a.shape[1], a, c
        gram = a @ a.T if self.wide else a.T @ a
        gram.diagonal().add_(c)
        self.inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram))

    def __call__(self, y: Tensor) -> Tensor:
        if not self.wide:
            return self.inverse @ y
        return (y - self.a.T @ (self.inverse @ (self.a @ y))) / self.c
