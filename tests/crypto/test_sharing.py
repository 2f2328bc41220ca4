"""Secret shares open to exactly what was shared, and all but one of them say nothing of it."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from graphfed.crypto.sharing import additive_shares, decode, encode
from graphfed.errors import InputError

WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8)


@settings(max_examples=60)
@given(words=WORDS, parties=st.integers(1, 6))
def test_all_shares_together_are_the_secret(words: list[int], parties: int) -> None:
    secret = torch.tensor(words)
    shares = additive_shares(secret, parties)
    assert shares.shape == (len(words), parties)
    assert torch.equal(shares.sum(-1), secret)


@settings(max_examples=60)
@given(words=st.lists(WORDS, min_size=2, max_size=6), parties=st.integers(2, 6))
def test_sums_of_shares_open_to_the_sum_on_the_ring(words: list[list[int]], parties: int) -> None:
    width = min(len(w) for w in words)
    secrets = [torch.tensor(w[:width]) for w in words]
    together = sum(additive_shares(s, parties) for s in secrets)
    # As Python's own integers add up, modulo 2^64.
    expected = [sum(int(s[i]) for s in secrets) for i in range(width)]
    opened = together.sum(-1)
    assert [(int(o) - e) % 2**64 for o, e in zip(opened, expected, strict=True)] == [0] * width


@pytest.mark.parametrize("secret", [0, -1, 2**40 + 7])
@pytest.mark.parametrize("parties", [2, 3, 4])
def test_any_shares_but_one_are_uniform_bytes_whatever_the_secret(secret: int, parties: int) -> None:
    """Chi-square over the 256 values of a byte, for every set of parties - 1 shares and for what these open
    to. 36 tests or fewer of probability 1e-9 each."""
    shares = additive_shares(torch.full((20_000,), secret), parties)
    limit = chi2.isf(1e-9, 255)
    for some in combinations(range(parties), parties - 1):
        seen = shares[:, list(some)]
        for words in (seen, seen.sum(-1)):
            count = np.bincount(np.ascontiguousarray(words.numpy()).view(np.uint8).ravel(), minlength=256)
            assert ((count - count.mean()) ** 2 / count.mean()).sum() < limit


def test_shares_are_drawn_anew_and_not_from_a_seed() -> None:
    torch.manual_seed(0)
    first = additive_shares(torch.zeros(4, dtype=torch.int64), 2)
    torch.manual_seed(0)
    assert not torch.equal(first, additive_shares(torch.zeros(4, dtype=torch.int64), 2))


@settings(max_examples=60)
@given(values=st.lists(st.lists(st.floats(-1e4, 1e4), min_size=3, max_size=3), min_size=1, max_size=6))
def test_a_sum_of_p_encoded_numbers_is_off_by_at_most_p_times_2_to_the_minus_25(
    values: list[list[float]],
) -> None:
    numbers = torch.tensor(values, dtype=torch.float64)
    total = decode(encode(numbers, len(values)).sum(0), torch.float64)
    assert ((total - numbers.sum(0)).abs() <= len(values) * 2.0**-25 + 1e-10).all()


@pytest.mark.parametrize("value", [2.0**39, -(2.0**39), 2.0**38, torch.inf, -torch.inf, torch.nan])
def test_a_number_whose_sums_could_leave_the_ring_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="cannot be shared among 2: it must be finite and below 2"):
        encode(torch.tensor([0.0, value], dtype=torch.float64), 2)


def test_the_largest_numbers_that_are_allowed_add_up_without_leaving_the_ring() -> None:
    largest = np.nextafter(2.0**39 / 4, 0)
    numbers = torch.full((4,), largest, dtype=torch.float64)
    for sign in (1, -1):
        total = decode(encode(sign * numbers, 4).sum(0), torch.float64)
        assert float(total) == pytest.approx(sign * 4 * largest, rel=1e-15)


def test_shares_of_numbers_in_any_shape_open_to_them() -> None:
    secret = torch.arange(24).reshape(2, 3, 4) - 12
    assert torch.equal(additive_shares(secret, 3).sum(-1), secret)
