"""Epsilons beside published figures, closed forms written here, and limits."""

import math
import re
import sys
from itertools import product
from pathlib import Path

import pytest

import graphfed
from graphfed.errors import InputError
from graphfed.privacy.accounting import composed_epsilon, gaussian_epsilon, laplace_epsilon


def randomised_response_delta(epsilon: float, k: int, at: float) -> float:
    """The smallest delta for which k uses of binary randomised response with `epsilon` are (at, delta)-
    private: the hockey-stick divergence of two products of k coins, distinguished by the number of heads."""
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    return math.fsum(
        math.comb(k, j) * max(0.0, p**j * (1 - p) ** (k - j) - math.exp(at) * (1 - p) ** j * p ** (k - j))
        for j in range(k + 1)
    )


def randomised_response_epsilon(epsilon: float, k: int, delta: float) -> float:
    """Where that delta is reached, by bisection."""
    low, high = 0.0, k * epsilon
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if randomised_response_delta(epsilon, k, middle) <= delta else (middle, high)
        )
    return high


@pytest.mark.parametrize(("k", "expected"), [(4, 4.0), (8, 8.0), (16, 15.9998)])
def test_the_sum_of_epsilons_covers_repeated_randomised_response_and_is_nearly_tight(k: int, expected: float):
    """The closed form gives the figures that were measured with an independent composition (delta 1e-6)."""
    tight = randomised_response_epsilon(1.0, k, 1e-6)
    assert tight == pytest.approx(expected, abs=1e-4)
    assert tight <= composed_epsilon(1.0, k) == k
    assert composed_epsilon(1.0, k) - tight < 1e-3


@pytest.mark.parametrize("k", [4, 8, 16])
def test_the_librarys_repeated_randomised_response_is_not_to_be_called(k: int):
    """It answers 1.0 for every k; a version that is right would answer the closed form, and no other answer
    is known."""
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting.pld import PLDAccountant

    event = dp.RandomizedResponseDpEvent(2 / (1 + math.e), 2)
    accountant = PLDAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    epsilon = accountant.compose(event, k).get_epsilon(1e-6)
    tight = randomised_response_epsilon(1.0, k, 1e-6)
    assert epsilon == pytest.approx(1.0, abs=1e-3) or epsilon == pytest.approx(tight, abs=1e-3)


def test_nothing_in_the_package_names_the_event_that_is_counted_wrong():
    package = Path(graphfed.__file__).parent
    calls = re.compile(r"(?<!`)\bRandomizedResponseDpEvent\(")
    assert not [path for path in package.rglob("*.py") if calls.search(path.read_text())]


def test_sampled_gaussian_noise_has_the_figures_of_two_other_libraries():
    """Opacus 1.6.0 says 1.71177 for Renyi's accountant too; by losses it is tighter, 1.5154."""
    settings = {"times": 1000, "sampling_rate": 0.01}
    assert gaussian_epsilon(1.1, 1e-5, **settings) == pytest.approx(1.71177, abs=5e-6)
    assert gaussian_epsilon(1.1, 1e-5, **settings, accountant="pld") == pytest.approx(1.5154, abs=5e-5)


def gaussian_delta(epsilon: float, sigma: float) -> float:
    """The exact delta of one Gaussian mechanism (Balle and Wang 2018, theorem 8)."""

    def normal(z: float) -> float:
        return math.erfc(-z / math.sqrt(2)) / 2

    a, b = 1 / (2 * sigma), epsilon * sigma
    return normal(a - b) - math.exp(epsilon) * normal(-a - b)


@pytest.mark.parametrize(
    ("k", "sigma"), [*product([1, 9], [1.0, 4.0]), (1, 0.5), pytest.param(9, 0.5, marks=pytest.mark.slow)]
)
def test_gaussian_noise_is_bounded_by_both_accountants_and_met_by_losses(sigma: float, k: int):
    """k uses with sigma are one with sigma / sqrt(k)."""
    tight = gaussian_epsilon(sigma, 1e-6, times=k, accountant="pld")
    assert gaussian_delta(tight, sigma / math.sqrt(k)) <= 1e-6 * (1 + 1e-6)
    assert gaussian_delta(tight * 0.999, sigma / math.sqrt(k)) > 1e-6
    assert tight <= gaussian_epsilon(sigma, 1e-6, times=k) <= 1.2 * tight


def laplace_delta(epsilon: float, scale: float) -> float:
    """The exact delta of one Laplace mechanism with sensitivity 1."""
    return max(0.0, 1 - math.exp((epsilon - 1 / scale) / 2))


def test_one_use_of_laplace_noise_meets_the_closed_form_and_more_stay_below_the_sum():
    for scale in (0.5, 1.0, 3.0):
        assert laplace_delta(laplace_epsilon(scale, 1e-3), scale) == pytest.approx(1e-3, rel=0.01)
        for k in (4, 16):
            assert laplace_epsilon(scale, 1e-6, times=k) <= composed_epsilon(1 / scale, k) + 1e-3


def test_more_uses_less_noise_and_larger_samples_cost_more():
    base = gaussian_epsilon(1.0, 1e-5, times=10, sampling_rate=0.1)
    assert gaussian_epsilon(1.0, 1e-5, times=11, sampling_rate=0.1) > base
    assert gaussian_epsilon(0.9, 1e-5, times=10, sampling_rate=0.1) > base
    assert gaussian_epsilon(1.0, 1e-5, times=10, sampling_rate=0.2) > base
    assert gaussian_epsilon(1.0, 1e-6, times=10, sampling_rate=0.1) > base
    assert laplace_epsilon(1.0, 1e-5, times=3) > laplace_epsilon(1.0, 1e-5, times=2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: composed_epsilon(-1.0, 3), "epsilon must be a number above 0; got -1.0"),
        (lambda: composed_epsilon(math.inf, 3), "epsilon must be"),
        (lambda: composed_epsilon(1.0, 0), "times must be a whole number of at least 1; got 0"),
        (lambda: composed_epsilon(1.0, 1.5), "times must be"),  # type: ignore[arg-type]
        (lambda: gaussian_epsilon(0.0, 1e-5), "noise_multiplier must be"),
        (lambda: gaussian_epsilon(math.nan, 1e-5), "noise_multiplier must be"),
        (lambda: gaussian_epsilon(1.0, 0.0), "delta must be above 0 and below 1; got 0.0"),
        (lambda: gaussian_epsilon(1.0, 1e-5, sampling_rate=1.1), "sampling_rate must be"),
        (lambda: gaussian_epsilon(1.0, 1e-5, accountant="moments"), "accountant='moments' is unknown"),  # type: ignore[arg-type]
        (lambda: laplace_epsilon(-1.0, 1e-5), "scale must be"),
        (lambda: laplace_epsilon(1.0, 1.0), "delta must be"),
    ],
)
def test_impossible_parameters_are_refused_with_the_value(call, words: str):
    with pytest.raises(InputError, match=re.escape(words)):
        call()


def test_without_the_library_a_user_reads_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(InputError, match=r"pip install '\.\[secure\]'"):
        gaussian_epsilon(1.0, 1e-5)
    assert composed_epsilon(0.5, 4) == 2.0
