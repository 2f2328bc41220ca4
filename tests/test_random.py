"""Keyed draws: equal where their keys and ids are equal, and otherwise like independent ones.

Keys are fixed, so nothing here flickers. A statistical test states the share of keys for which a perfect
generator would fail it.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from graphfed.random import (
    bernoulli_entries,
    bernoulli_rows,
    entry_words,
    fold,
    glorot,
    lane_probability,
    permutation,
    uniform,
)

KEY = fold(0, "test")
FALSE_ALARMS = 1e-6
parts = st.lists(st.one_of(st.integers(0, 2**63 - 1), st.text(max_size=12)), max_size=4)


@settings(max_examples=200)
@given(first=parts, second=parts)
def test_different_parts_give_different_keys(first: list[int | str], second: list[int | str]) -> None:
    assert (fold(5, *first) == fold(5, *second)) == (first == second)


def test_keys_know_where_one_part_ends_and_whether_it_is_text_or_number() -> None:
    families = [
        ("ab", "c"),
        ("a", "bc"),
        ("abc",),
        ("abc", ""),
        ("", "abc"),
        (97,),
        ("a",),
        (97, 1),
        (1, 97),
        (),
        (0,),
        ("\0",),
    ]
    seeds = (0, 1, 2**40)
    keys = {fold(seed, *family) for seed in seeds for family in families}
    assert len(keys) == len(seeds) * len(families)
    assert all(0 <= key < 2**64 for key in keys)


def test_numpy_integers_fold_as_pythons() -> None:
    assert fold(3, np.int64(7)) == fold(3, 7)


def test_keys_of_many_small_numbers_are_all_different() -> None:
    """Rounds, steps and layers are small integers: their keys must not meet."""
    keys = {fold(0, a, b) for a, b in itertools.product(range(500), range(400))}
    assert len(keys) == 200_000


def test_repeated_calls_are_identical_and_another_key_differs() -> None:
    ids = torch.arange(40)
    words = entry_words(ids, ids + 3)
    other = fold(1, "test")
    draws = {
        "uniform": lambda key: uniform(key, ids, 3),
        "rows": lambda key: bernoulli_rows(key, ids, 9, 0.5),
        "entries": lambda key: bernoulli_entries(key, words, 0.5),
        "permutation": lambda key: permutation(key, 40),
        "glorot": lambda key: glorot(key, 6, 5),
    }
    for name, draw in draws.items():
        assert torch.equal(draw(KEY), draw(KEY)), name
        assert not torch.equal(draw(KEY), draw(other)), name


@settings(max_examples=50)
@given(ids=st.lists(st.integers(0, 2**40), min_size=1, max_size=30), width=st.integers(1, 9))
def test_a_draw_depends_on_the_id_and_not_on_the_place(ids: list[int], width: int) -> None:
    tensor = torch.tensor(ids)
    for draw in (lambda i: uniform(KEY, i, width), lambda i: bernoulli_rows(KEY, i, width, 0.5)):
        assert torch.equal(draw(tensor), torch.cat([draw(tensor[i : i + 1]) for i in range(len(ids))]))
        assert torch.equal(draw(tensor.flip(0)), draw(tensor).flip(0))


@pytest.mark.parametrize("key", [KEY, 0, 1, 2**64 - 1])
def test_uniform_draws_pass_a_kolmogorov_smirnov_test(key: int) -> None:
    """Along ids and along columns, for good keys and for degenerate ones (false-alarm rate 1e-6 each)."""
    for draws in (uniform(key, torch.arange(50_000))[:, 0], uniform(key, torch.arange(2), 20_000)[1]):
        assert draws.dtype == torch.float64
        assert float(draws.min()) >= 0
        assert float(draws.max()) < 1
        assert stats.kstest(draws.numpy(), "uniform").pvalue > FALSE_ALARMS


def test_uniform_low_bits_are_uniform_too() -> None:
    """Sixteen low bits of the 53 in a chi-square test of 256 cells (false-alarm rate 1e-6)."""
    draws = uniform(KEY, torch.arange(50_000))[:, 0].numpy()
    cells = np.floor(draws * 2.0**53).astype(np.int64) & 255
    assert stats.chisquare(np.bincount(cells, minlength=256)).pvalue > FALSE_ALARMS


@pytest.mark.parametrize("p", [0.2, 0.5, 0.8])
def test_columns_and_lanes_of_one_row_are_independent(p: float) -> None:
    """Chi-square tests of all 28 pairs of 8 columns (two words of four lanes), 36 with neighbouring ids and
    keys: with the level divided by their number, one false alarm in 10^6."""
    n = 40_000
    drawn = bernoulli_rows(KEY, torch.arange(n), 8, p).numpy()
    pairs = [(drawn[:, a], drawn[:, b]) for a, b in itertools.combinations(range(8), 2)]
    pairs += [(drawn[:-1, c], drawn[1:, c]) for c in range(4)]
    other = bernoulli_rows(fold(0, "test", 1), torch.arange(n), 8, p).numpy()
    pairs += [(drawn[:, c], other[:, c]) for c in range(4)]
    for a, b in pairs:
        table = np.bincount(2 * a.astype(int) + b, minlength=4).reshape(2, 2)
        assert stats.chi2_contingency(table, correction=False).pvalue > FALSE_ALARMS / len(pairs)


def test_entries_of_one_row_and_of_one_column_are_independent() -> None:
    """The same for sparse entries: neighbours in a row and in a column, and the same entry under two keys
    (1e-6)."""
    rows, columns = torch.meshgrid(torch.arange(200), torch.arange(200), indexing="ij")
    words = entry_words(rows.flatten(), columns.flatten())
    drawn = bernoulli_entries(KEY, words, 0.5).view(200, 200).numpy()
    other = bernoulli_entries(KEY + 1, words, 0.5).view(200, 200).numpy()
    for a, b in ((drawn[:, 1:], drawn[:, :-1]), (drawn[1:], drawn[:-1]), (drawn, other)):
        table = np.bincount(2 * a.ravel().astype(int) + b.ravel(), minlength=4).reshape(2, 2)
        assert stats.chi2_contingency(table, correction=False).pvalue > FALSE_ALARMS / 3


def test_every_lane_of_a_word_has_the_same_rate() -> None:
    """65 536 ids, 4 lanes, within 5 standard errors (false-alarm rate 2e-6)."""
    n, p = 65_536, 0.3
    rate = bernoulli_rows(KEY, torch.arange(n), 4, p).double().mean(0)
    assert ((rate - lane_probability(p)).abs() < 5 * math.sqrt(p * (1 - p) / n)).all()


@settings(max_examples=100)
@given(p=st.floats(0, 1, exclude_max=True))
def test_the_probability_of_a_lane_is_p_to_one_part_in_65536_and_never_one(p: float) -> None:
    assert abs(lane_probability(p) - p) <= 2**-16
    assert lane_probability(p) < 1


@pytest.mark.parametrize("p", [0.0, 1e-9, 1 - 1e-9, 1 - 2**-53])
def test_probabilities_next_to_zero_and_one_draw_nearly_none_and_nearly_all(p: float) -> None:
    """Of 4 000 draws at most 4 differ from the likely outcome: expected at most 4 000 / 65 536; one false
    alarm in 10^8."""
    ids = torch.arange(1_000)
    likely = p > 0.5
    assert int((bernoulli_rows(KEY, ids, 4, p) != likely).sum()) <= 4
    assert int((bernoulli_entries(KEY, entry_words(ids, ids), p) != likely).sum()) <= 4
    if p == 0:
        assert not bernoulli_rows(KEY, ids, 4, p).any()
        assert not bernoulli_entries(KEY, entry_words(ids, ids), p).any()


def test_words_of_a_grid_of_entries_are_all_different() -> None:
    rows, columns = torch.meshgrid(torch.arange(2_000), torch.arange(500), indexing="ij")
    words = entry_words(rows.flatten(), columns.flatten())
    assert len(words.unique()) == len(words)


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_a_permutation_holds_every_number_once(n: int) -> None:
    assert torch.equal(permutation(KEY, n).sort()[0], torch.arange(n))


def test_all_orders_of_three_are_equally_likely() -> None:
    """Chi-square over 6 000 keys and 6 orders (false-alarm rate 1e-6)."""
    orders = [tuple(permutation(fold(0, k), 3).tolist()) for k in range(6_000)]
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    assert stats.chisquare(counts).pvalue > FALSE_ALARMS


def test_glorot_weights_fill_their_interval_and_no_more() -> None:
    """U(-a, a) with a = sqrt(6 / (fan_in + fan_out)) by Kolmogorov and Smirnov (false-alarm rate 1e-6)."""
    weights = glorot(KEY, 300, 100)
    bound = math.sqrt(6 / 400)
    assert weights.dtype == torch.float32
    assert float(weights.abs().max()) <= bound * (1 + 1e-6)
    assert stats.kstest(weights.flatten().numpy(), "uniform", args=(-bound, 2 * bound)).pvalue > FALSE_ALARMS
    named = glorot(KEY, 50, fan=(1, 5))
    assert float(named.abs().max()) <= 1
    assert float(named.abs().max()) > 0.8


def test_glorot_weights_are_the_same_in_every_dtype_up_to_rounding() -> None:
    """A run in float64 and one in float32 start from the same weights, so their results can be compared."""
    single = glorot(KEY, 20, 10)
    torch.set_default_dtype(torch.float64)
    double = glorot(KEY, 20, 10)
    assert double.dtype == torch.float64
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=0)


def test_glorot_weights_of_more_features_begin_with_those_of_fewer_up_to_their_scale() -> None:
    """A feature's row of weights is drawn from its own number."""
    few, many = glorot(KEY, 10, 4, fan=(1, 1)), glorot(KEY, 30, 4, fan=(1, 1))
    assert torch.equal(many[:10], few)


def test_draws_leave_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    uniform(KEY, torch.arange(5))
    permutation(KEY, 5)
    glorot(KEY, 3, 3)
    bernoulli_rows(KEY, torch.arange(5), 3, 0.5)
    assert torch.equal(torch.get_rng_state(), before)
