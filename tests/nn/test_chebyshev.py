"""Chebyshev series: the errors that FedGAT's dossier prints, the bound of Theorem 2, and their evaluation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphfed.methods.fedgat.polynomial_gat import Score, score_function
from graphfed.nn.chebyshev import chebyshev_series, derivative, evaluate, powers

DEGREES = (2, 4, 8, 16, 32)
#: Maximal errors on [-2, 2] of the interpolants at Chebyshev points, by degree (methods dossier 4.2).
INTERPOLATED = {
    "leaky_relu": (0.63, 0.107, 0.062, 0.031, 0.015),
    "smooth": (0.68, 0.032, 4.0e-3, 9.5e-5, 1e-7),
}
GRID = np.linspace(-2, 2, 4001)


def error(psi: str, degree: int) -> float:
    f = score_function(Score(psi, True, degree, 2.0))  # type: ignore[arg-type]
    found = evaluate(chebyshev_series(f, degree, 2.0), 2.0, torch.from_numpy(GRID)).numpy()
    return float(np.abs(found - f(GRID)).max())


@pytest.mark.parametrize("psi", INTERPOLATED)
def test_the_series_is_no_worse_than_the_interpolants_of_the_dossier(psi: str) -> None:
    f = score_function(Score(psi, True, 2, 2.0))  # type: ignore[arg-type]
    for degree, printed in zip(DEGREES, INTERPOLATED[psi], strict=True):
        at_nodes = np.polynomial.chebyshev.chebinterpolate(lambda t: f(2 * t), degree)
        interpolated = np.abs(np.polynomial.chebyshev.chebval(GRID / 2, at_nodes) - f(GRID)).max()
        assert interpolated == pytest.approx(printed, rel=0.06)
        assert 0.5 * interpolated < error(psi, degree) < 1.05 * interpolated


def test_the_kinked_score_stays_within_theorem_2() -> None:
    """exp(LeakyReLU(2 t)) has a derivative of bounded variation V on [-1, 1] (nu = 1): the error is at most
    2 V / (pi (p - 1)). V: of the second derivative, and the jump of the first at 0."""
    variation = (2 * np.exp(2) - 2) + (0.4 - 0.4 * np.exp(-0.4)) + (2 - 0.4)
    for degree in DEGREES:
        assert error("leaky_relu", degree) <= 2 * variation / (np.pi * (degree - 1))


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=20), st.floats(0.5, 8), st.integers(0, 2**32 - 1))
def test_evaluation_is_numpys(coefficients: list[float], domain: float, seed: int) -> None:
    x = np.random.default_rng(seed).uniform(-domain, domain, (3, 4))
    expected = np.polynomial.chebyshev.chebval(x / domain, coefficients)
    found = evaluate(tuple(coefficients), domain, torch.from_numpy(x))
    assert np.allclose(found.numpy(), expected, rtol=0, atol=1e-12)
    slope = np.polynomial.chebyshev.chebval(x / domain, derivative(tuple(coefficients), domain))
    leaf = torch.from_numpy(x).requires_grad_()
    evaluate(tuple(coefficients), domain, leaf).sum().backward()
    assert leaf.grad is not None
    assert np.allclose(leaf.grad.numpy(), slope, rtol=0, atol=1e-9)


def test_more_numbers_than_a_part_are_evaluated_alike() -> None:
    x = torch.linspace(-2, 2, 100_000, dtype=torch.float64)
    series = (0.5, -1.0, 0.25, 2.0)
    assert torch.equal(evaluate(series, 2.0, x)[70_000:], evaluate(series, 2.0, x[70_000:].clone()))


def test_numbers_that_do_not_lie_in_order_in_memory_are_evaluated_alike() -> None:
    x = torch.linspace(-1, 1, 12).view(3, 4)
    assert torch.equal(evaluate((1.0, 2.0, 3.0), 1.0, x.t()), evaluate((1.0, 2.0, 3.0), 1.0, x).t())


def test_powers_are_the_same_polynomial() -> None:
    series = chebyshev_series(score_function(Score("smooth", True, 10, 3.0)), 10, 3.0)
    x = np.linspace(-3, 3, 50)
    by_powers = np.polynomial.polynomial.polyval(x, powers(series, 3.0))
    assert np.allclose(by_powers, evaluate(series, 3.0, torch.from_numpy(x)).numpy(), rtol=0, atol=1e-10)
