"""The solver that attacks share, against an independent one."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from graphfed.audit.attacks.least_squares import bounded, gauss_newton

LIMITS: dict[str, Any] = {"mean": 0.0, "low": 0.0, "high": 1.0}


def problem(rows: int, count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(rows)
    size = (12,) if count is None else (12, count)
    a, y = random.normal(size=(rows, 12)), random.normal(size=size)
    return torch.from_numpy(a), torch.from_numpy(a @ (y + 0.5))  # some of it beyond the bounds


@pytest.mark.parametrize("rows", [5, 40])
def test_the_bounded_least_squares_are_those_of_an_independent_solver(rows: int) -> None:
    """Fewer and more equations than unknowns; the latter have one solution."""
    from scipy.optimize import lsq_linear

    a, b = problem(rows)
    there = lsq_linear(a, b, (0, 1))
    found = bounded(a, b, torch.zeros(12, dtype=torch.float64), stay=1e-9, few=0.0, **LIMITS).numpy()
    assert found.min() >= 0
    assert found.max() <= 1
    assert 0.5 * ((a.numpy() @ found - b.numpy()) ** 2).sum() == pytest.approx(there.cost, rel=1e-3, abs=1e-3)
    if rows > 12:
        np.testing.assert_allclose(found, there.x, atol=1e-2)


@pytest.mark.parametrize("rows", [5, 40])
def test_problems_solved_together_are_solved_as_each_alone(rows: int) -> None:
    a, b = problem(rows, count=4)
    few, start = torch.linspace(0, 1e-3, 12, dtype=torch.float64), torch.zeros(12, 4, dtype=torch.float64)
    together = bounded(a, b, start, stay=1e-3, few=few[:, None], **LIMITS)
    for k in range(4):
        alone = bounded(a, b[:, k], start[:, k], stay=1e-3, few=few, **LIMITS)
        torch.testing.assert_close(together[:, k], alone, atol=1e-12, rtol=0)


def test_of_the_solutions_one_with_few_entries_that_are_not_the_mean_is_found() -> None:
    """Three of 60 entries differ, from 25 equations; without the preference nothing is exact."""
    random = np.random.default_rng(0)
    truth = np.full(60, 0.25)
    truth[[3, 17, 40]] = [1.0, 0.0, 0.75]
    a = torch.from_numpy(random.normal(size=(25, 60)))
    limits: dict[str, Any] = {**LIMITS, "mean": 0.25}
    start = torch.full((60,), 0.5, dtype=torch.float64)
    b = a @ torch.from_numpy(truth)
    found = bounded(a, b, start, stay=1e-9, few=1e-3, rho=1e-2, **limits)
    assert np.abs(found.numpy() - truth).max() < 1e-2
    assert np.abs(bounded(a, b, start, stay=1e-9, few=0.0, **limits).numpy() - truth).max() > 0.1


def test_where_no_equation_says_anything_the_start_is_left() -> None:
    start = torch.linspace(0, 1, 12, dtype=torch.float64)
    nothing = torch.zeros(3, 12, dtype=torch.float64)
    found = bounded(nothing, torch.zeros(3, dtype=torch.float64), start, stay=1e-3, few=1.0, **LIMITS)
    assert torch.equal(found, start)


def test_random_parts_of_the_rounds_leave_local_minima_and_find_the_solution() -> None:
    """|x a_t| of 40 rounds of 3 numbers for 10 unknowns: x and -x are solutions."""
    draw = torch.Generator().manual_seed(0)
    a = torch.randn(40, 10, 3, generator=draw, dtype=torch.float64)
    truth, start = (torch.randn(8, 10, generator=draw, dtype=torch.float64) for _ in range(2))

    def linearise(_: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.einsum("sn,tnk->stk", x, a)
        return y.abs(), y.sign()[..., None] * a.transpose(1, 2)

    target = linearise(torch.arange(8), truth)[0]
    found, residual = gauss_newton(linearise, target, start, tolerance=1e-9, fraction=0.6, iterations=200)
    solved = residual <= 1e-9
    assert solved.double().mean() > 0.7
    right = torch.minimum((found - truth).abs().amax(1), (found + truth).abs().amax(1))
    assert right[solved].max() < 1e-6
    few, residual = gauss_newton(
        lambda n, x: tuple(part[:, :3] for part in linearise(n, x)),  # type: ignore[return-value]
        target[:, :3],
        start,
        tolerance=1e-9,
        fraction=1.0,
        iterations=50,
    )
    assert torch.minimum((few - truth).abs().amax(1), (few + truth).abs().amax(1)).min() > 0.01
