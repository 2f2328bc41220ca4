"""The Gaussian mechanism against its definition, an accountant and its own law."""

import math
from typing import Any

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from graphfed.errors import InputError
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.accounting import gaussian_epsilon
from graphfed.privacy.gaussian import (
    composed_gaussian_epsilon,
    gaussian,
    gaussian_delta,
    gaussian_mechanism,
    gaussian_sigma,
    limit_set,
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
    """Why it is not used (docs/papers/lumos_results.md, Baselines)."""
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


# ---- at most so many set features --------------------------------------------------------------------------


@st.composite
def bit_rows(draw: st.DrawFn) -> tuple[Tensor, Tensor, int, int]:
    """Two bit vectors of the same width, a bound on the set ones, and a key."""
    width = draw(st.integers(1, 12))
    bits = st.lists(st.booleans(), min_size=width, max_size=width)
    one, other = (torch.tensor(draw(bits), dtype=torch.float64)[None] for _ in range(2))
    return one, other, draw(st.integers(1, 14)), draw(st.integers(0, 1 << 30))


@given(bit_rows(), st.floats(-3, 3), st.floats(0.1, 4))
def test_two_nodes_differ_by_no_more_than_the_stated_sensitivity(
    rows: tuple[Tensor, Tensor, int, int], low: float, extent: float
) -> None:
    """Any two bit vectors at the bounds, before the noise is added."""
    one, other, most, key = rows
    limited = [limit_set(low + extent * x, torch.tensor([7]), key, low, most) for x in (one, other)]
    mechanism = gaussian_mechanism(2.0, 1e-5, one.shape[1], low, low + extent, most)
    assert mechanism.sensitivity is not None
    assert float((limited[0] - limited[1]).norm()) <= mechanism.sensitivity * (1 + 1e-12)
    for before, after in zip((one, other), limited, strict=True):
        kept = after > low
        assert int(kept.sum()) == min(most, int(before.sum()))
        assert torch.equal(after[kept], (low + extent * before)[kept])


def test_the_stated_sensitivity_is_reached() -> None:
    """Two rows of 3 set features in different places: a smaller bound would be wrong."""
    x = torch.zeros(2, 8, dtype=torch.float64)
    x[0, :3], x[1, 3:6] = 1, 1
    limited = limit_set(x, torch.arange(2), 0, 0.0, 3)
    assert float((limited[0] - limited[1]).norm()) == gaussian_mechanism(2.0, 1e-5, 8, 0, 1, 3).sensitivity
    assert gaussian_mechanism(2.0, 1e-5, 8, 0, 1, 5).sensitivity == math.sqrt(8)


def test_what_a_row_keeps_depends_on_its_id_and_the_key_and_no_other_row() -> None:
    x = torch.ones(4, 40, dtype=torch.float64)
    ids = torch.tensor([3, 5, 8, 9])
    limited = limit_set(x, ids, 1, 0.0, 6)
    assert torch.equal(limited[2:3], limit_set(x[2:3], ids[2:3], 1, 0.0, 6))
    assert len({tuple(row.tolist()) for row in limited}) == 4
    assert not torch.equal(limited, limit_set(x, ids, 2, 0.0, 6))


def test_every_set_feature_is_kept_equally_often() -> None:
    """4 of 10 in 20 000 rows: each column within 5.5 standard errors, a false alarm in 2e6 runs."""
    n = 20_000
    kept = limit_set(torch.ones(n, 10), torch.arange(n), 3, 0.0, 4).mean(0)
    assert float((kept - 0.4).abs().max()) < 5.5 * math.sqrt(0.24 / n)
