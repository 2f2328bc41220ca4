"""Paired differences over seeds: interval and tests are those of their definitions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from graphfed.studies.paired import correct_by_holm, paired_difference

VALUES, REFERENCE = [0.81, 0.79, 0.84, 0.80, 0.83], [0.78, 0.79, 0.80, 0.77, 0.81]


def test_the_interval_and_the_t_test_are_those_of_the_formula() -> None:
    found = paired_difference(VALUES, REFERENCE)
    assert found is not None
    assert None not in (found.low, found.high, found.t_test)
    d = np.array(VALUES) - np.array(REFERENCE)
    error = d.std(ddof=1) / math.sqrt(len(d))
    half = student.ppf(0.975, len(d) - 1) * error
    assert (found.low, found.mean, found.high) == pytest.approx((d.mean() - half, d.mean(), d.mean() + half))
    assert found.t_test == pytest.approx(2 * student.sf(d.mean() / error, len(d) - 1))
    assert found.count == 5


@pytest.mark.deeper
def test_the_interval_has_the_true_difference_in_95_of_100_draws(deep: bool) -> None:
    """Of 4 000 draws of 5 normal differences (400 in the first tier) the standard deviation of the count is
    sqrt(4000 * 0.95 * 0.05) = 13.8, and 4.9 of them bound the false alarms by 1e-6."""
    count = 4000 if deep else 400
    draws = np.random.default_rng(0).normal(0.3, 1, (count, 5))
    found = [paired_difference(list(each), [0.0] * 5) for each in draws]
    inside = sum(each is not None and (each.low or 0) <= 0.3 <= (each.high or 0) for each in found)
    assert abs(inside - 0.95 * count) <= 4.9 * (count * 0.95 * 0.05) ** 0.5


@pytest.mark.parametrize("count", [5, 6, 7])
def test_wilcoxons_p_is_the_share_of_signs_with_a_rank_sum_as_extreme(count: int) -> None:
    d = np.random.default_rng(count).normal(0.5, 1, count)
    ranks = np.abs(d).argsort().argsort() + 1
    sums = [
        sum(r for r, s in zip(ranks, signs, strict=True) if s)
        for signs in itertools.product([0, 1], repeat=count)
    ]
    middle = ranks.sum() / 2
    extreme = abs(ranks[d > 0].sum() - middle)
    expected = np.mean([abs(each - middle) >= extreme for each in sums])
    found = paired_difference(list(d), [0.0] * count)
    assert found is not None
    assert found.wilcoxon == pytest.approx(expected)


def test_five_pairs_with_one_sign_do_not_reach_0_05_by_wilcoxon_and_six_do() -> None:
    for count, expected in ((5, 2**-4), (6, 2**-5)):
        found = paired_difference([1.0 + k for k in range(count)], [0.0] * count)
        assert found is not None
        assert found.wilcoxon == expected


def test_without_spread_there_is_a_difference_and_no_test() -> None:
    found = paired_difference([0.5, 0.6], [0.4, 0.5])
    assert found is not None
    assert found.mean == found.low == found.high == pytest.approx(0.1)
    assert found.t_test is found.wilcoxon is None
    single = paired_difference([0.5], [0.4])
    assert single is not None
    assert single.low is None
    assert single.t_test is None


@pytest.mark.parametrize(
    ("values", "reference"), [([], []), ([0.1, None], [0.2, 0.3]), ([0.1, 0.2], [0.1]), ([0.1], [None])]
)
def test_rows_with_other_or_missing_seeds_have_no_difference(values: list, reference: list) -> None:
    assert paired_difference(values, reference) is None


def test_holms_correction_of_a_known_example() -> None:
    assert correct_by_holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert correct_by_holm([]) == []
    assert correct_by_holm([0.7, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), max_size=8), st.floats(0, 1))
def test_holm_rejects_what_its_steps_reject(p_values: list[float], level: float) -> None:
    """The step-down procedure itself: reject the smallest while it is at most level / (tests left)."""
    rejected, left = set(), sorted(range(len(p_values)), key=p_values.__getitem__)
    while left and p_values[left[0]] * len(left) <= level:
        rejected.add(left.pop(0))
    corrected = correct_by_holm(p_values)
    assert {k for k, p in enumerate(corrected) if p <= level} == rejected or level >= 1
