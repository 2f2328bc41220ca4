"""Least squares that several attacks solve: ridge regressions, bounded and sparse, nonlinear over rounds."""

from collections.abc import Callable

import torch
from torch import Tensor

from graphfed.data.seeding import generator


def ridge(x: Tensor, y: Tensor, seen: Tensor, strength: float) -> Tensor:
    """Predict [m, F] from `seen` [m, d] by a ridge regression from x [n, d] to y [n, F].

    `strength` is relative to the mean variance of x.
    """
    middle, mean = x.mean(0), y.mean(0)
    a, b = x - middle, y - mean
    # The same map, from the smaller of a^T a and a a^T.
    wide = a.shape[1] > len(a)
    gram = a @ a.T if wide else a.T @ a
    gram.diagonal().add_(strength * (a.square().sum() / a.shape[1]).clamp(min=1e-12))
    solved = torch.linalg.lstsq(gram, b if wide else a.T @ b).solution
    found: Tensor = (seen - middle) @ (a.T @ solved if wide else solved) + mean
    return found


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

    a [m, F] is first scaled to a mean squared column norm of 1, and b by the same factor. If a is 0, the
    result is start. For n problems b is [m, n], start [F, n] and few may be [F, 1].

    Args:
        few: The weight of the l1 norm, which prefers few entries that differ from mean.
        rho: The step of ADMM. After a limited number of iterations, a small one fits a x = b closely, and a
            large one gives few entries that differ from mean.

    Reference:
        Boyd, Parikh, Chu, Peleato and Eckstein, Foundations and Trends in Machine Learning 2011, section 6.4.
    """
    # Penalties have the same meaning whatever the scale of the equations is.
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
        # Soft threshold of the distances from `mean`, then the bounds: the proximal step of both terms.
        z = z.sign() * (z.abs() - few / rho).clamp(min=0) + mean
        z = z.clamp(low, high)
        u = u + x - z
    return z


def gauss_newton(
    linearise: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    target: Tensor,
    start: Tensor,
    *,
    tolerance: float,
    fraction: float,
    iterations: int,
    damping: float = 0.1,
    decay: float = 0.9,
) -> tuple[Tensor, Tensor]:
    """Solve S small systems of nonlinear equations, whose equations are the same functions in several rounds.

    Every step uses a random part of the rounds. The true solution fits every part, so it is a fixed point,
    and a local minimum of all rounds is none. Steps are damped, less and less.

    Args:
        linearise: From the numbers of m problems, [m], and their x, [m, n], the predicted numbers,
            [m, T, H], and their derivatives, [m, T, H, n].
        target: The numbers that `linearise` should predict, [S, T, H].
        start: The estimates before the first step, [S, n].
        tolerance: A problem is solved if the norm of its residual is at most this, relative to its numbers.
        fraction: The fraction of the rounds in a step; 1 for all, if the equations have no local minima.
        damping: The damping of the first step, relative to the mean diagonal of its equations.
        decay: The factor of the damping from a step to the next.

    Returns:
        For each problem the x with the smallest residual, [S, n], and this residual, relative to the norm of
        its numbers, [S].
    """
    random = generator(0, "audit/gauss_newton")
    count, rounds = target.shape[:2]
    x, best = start.clone(), start.clone()
    smallest = torch.full((count,), torch.inf, dtype=start.dtype)
    size = target.flatten(1).norm(dim=1).clamp(min=1e-30)
    for step in range(iterations + 1):
        left = (smallest > tolerance).nonzero()[:, 0]
        if not len(left):
            break
        predicted, slopes = linearise(left, x[left])
        residual = target[left] - predicted
        error = residual.flatten(1).norm(dim=1) / size[left]
        better = error < smallest[left]
        best[left[better]], smallest[left[better]] = x[left[better]], error[better]
        # One part for all problems, so that their systems can be solved as a batch.
        part = torch.from_numpy(random.permutation(rounds)[: max(1, round(fraction * rounds))])
        a, b = slopes[:, part].flatten(1, 2), residual[:, part].flatten(1)
        gram = a.transpose(1, 2) @ a
        diagonal = gram.diagonal(dim1=1, dim2=2)
        # `diagonal` is a view of `gram`.
        diagonal.add_(damping * decay**step * diagonal.mean(1, keepdim=True).clamp(min=1e-30))
        x[left] += torch.linalg.solve(gram, (a.transpose(1, 2) @ b[..., None]))[..., 0]
        # A step that leads nowhere starts again from the best estimate.
        lost = left[~x[left].isfinite().all(1)]
        x[lost] = best[lost]
    return best, smallest


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
        # Woodbury: (a^T a + c)^-1 y = (y - a^T (a a^T + c)^-1 a y) / c
        return (y - self.a.T @ (self.inverse @ (self.a @ y))) / self.c
