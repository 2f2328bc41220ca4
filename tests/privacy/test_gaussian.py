"""The Gaussian mechanism against its definition, an accountant and its own law."""

import math
from typing import Any

import mpmath
import pytest
import torch

from graphfed.errors import InputError
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.accounting import gaussian_epsilon
from graphfed.privacy.gaussian import (
    composed_gaussian_epsilon,
    gaussian,
    gaussian_delta,
    gaussian_mechanism,
    gaussian_sigma,
)
from graphfed.privacy.noise import Noise


def delta_by_integration(sigma: float, epsilon: float) -> float:
    """The hockey-stick divergence of N(1, sigma^2) and N(0, sigma^2), integrated on a grid."""
    z = torch.linspace(-12 * sigma, 1 + 12 * sigma, 400_001, dtype=torch.float64)
    p = torch.exp(-((z - 1) ** 2) / (2 * sigma**2))
    q = torch.exp(-(z**2) / (2 * sigma**2))
    part = (p - math.exp(epsilon) * q).clamp(min=0)
    return float(torch.trapezoid(part, z)) / (sigma * math.sqrt(2 * math.pi))


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.5, 1.0), (1.0, 2.0), (2.0, 0.5), (5.0, 0.01)])
def test_delta_is_the_divergence_that_privacy_is_defined_by(sigma: float, epsilon: float) -> None:
    assert gaussian_delta(sigma, epsilon) == pytest.approx(delta_by_integration(sigma, epsilon), rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 2.0, 10.0, 1000.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
def test_the_noise_is_enough_and_no_more_than_needed(epsilon: float, delta: float) -> None:
    sigma = gaussian_sigma(epsilon, delta)
    assert gaussian_delta(sigma, epsilon) <= delta
    assert gaussian_delta(sigma * (1 - 1e-6), epsilon) > delta
    assert gaussian_sigma(epsilon, delta, 7.0) == pytest.approx(7 * sigma)


def to_sixty_digits(sigma: float, epsilon: float) -> Any:
    """Phi(a - b) - e^epsilon Phi(-a - b), a = 1 / (2 sigma), b = epsilon sigma."""
    with mpmath.workdps(60):
        s, e = mpmath.mpf(sigma), mpmath.mpf(epsilon)
        a, b = 1 / (2 * s), e * s
        return mpmath.ncdf(a - b) - mpmath.exp(e) * mpmath.ncdf(-a - b)


@pytest.mark.parametrize("delta", [1e-15, 1e-12, 1e-5, 0.01, 0.5, 0.9])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-4, 0.01, 0.1, 1.0, 10.0, 1000.0])
def test_rounding_never_takes_noise_away(epsilon: float, delta: float) -> None:
    """Also where two numbers are subtracted that agree in nine digits; and it adds at most the 11th digit."""
    sigma = gaussian_sigma(epsilon, delta)
    exact = to_sixty_digits(sigma, epsilon)
    assert gaussian_delta(sigma, epsilon) == pytest.approx(float(exact), rel=1e-12)
    assert exact <= delta < to_sixty_digits(sigma * (1 - 1e-11), epsilon)
    composed = composed_gaussian_epsilon(sigma, delta, 4)
    assert to_sixty_digits(sigma / 2, composed) <= delta < to_sixty_digits(sigma / 2, composed * (1 - 1e-11))


def test_an_accountant_says_the_same_epsilon() -> None:
    pytest.importorskip("dp_accounting")
    sigma = gaussian_sigma(2.0, 1e-5)
    assert gaussian_epsilon(sigma, 1e-5, accountant="pld") == pytest.approx(2.0, rel=1e-3)


def test_the_classical_formula_is_not_enough_from_epsilon_six_on_and_too_much_below_one() -> None:
    """Why it is not used (docs/papers/lumos.md, Baselines)."""
    classical = {e: math.sqrt(2 * math.log(1.25 / 1e-2)) / e for e in (0.5, 8.0)}
    assert gaussian_delta(classical[0.5], 0.5) < 1e-2
    assert gaussian_delta(classical[8.0], 8.0) > 1e-2


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-5), (math.inf, 1e-5), (1.0, 0.0), (1.0, 1.0)])
def test_impossible_parameters_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(InputError, match="Gaussian mechanism needs"):
        gaussian_sigma(epsilon, delta)


@pytest.mark.parametrize("noise", [Noise(), Noise(4)], ids=["the system's entropy", "seeded"])
@pytest.mark.parametrize("width", [4, 5])
def test_what_is_added_is_normal_and_independent(noise: Noise, width: int) -> None:
    """40 000 draws at least: mean, variance, fourth moment and correlations of columns within 5.5 standard
    errors, 13 of them at most: a false alarm in 2e6 runs."""
    n, sigma = 10_000, 3.0
    x = torch.rand(n, width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for features in (x, SparseMatrix.from_dense(x)):
        z = (gaussian(features, torch.arange(n), noise, "x", sigma, 0.0, 1.0) - x) / sigma
        count = n * width
        assert abs(float(z.mean())) < 5.5 / math.sqrt(count)
        assert abs(float((z**2).mean()) - 1) < 5.5 * math.sqrt(2 / count)
        assert abs(float((z**4).mean()) - 3) < 5.5 * math.sqrt(96 / count)
        for a in range(width):
            for b in range(a):
                assert abs(float((z[:, a] * z[:, b]).mean())) < 5.5 / math.sqrt(n)


def test_its_description_has_delta_and_the_sensitivity_of_all_features_together() -> None:
    mechanism = gaussian_mechanism(2.0, 1e-5, 16, -1.0, 1.0)
    assert mechanism.sensitivity == pytest.approx(8.0)
    assert Noise().protection(mechanism) == "ldp(eps=2, delta=1e-05)"
