"""Any t shares give the secret back, as the library's do, and t - 1 shares could be those of any secret."""

import random
from itertools import combinations

import numpy as np
import pytest
from Crypto.Protocol.SecretSharing import Shamir
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.shamir import MAX_PARTIES, combine, split

HALVES = (slice(0, 16), slice(16, 32))


@st.composite
def splits(draw: st.DrawFn) -> tuple[bytes, int, list[tuple[int, bytes]]]:
    """A secret of 16 to 64 bytes, a threshold, and that many of its shares in any order."""
    secret = draw(st.binary(min_size=16, max_size=16)) * draw(st.integers(1, 3)) + draw(
        st.binary(min_size=16, max_size=16)
    )
    parties = draw(st.integers(1, 12))
    threshold = draw(st.integers(1, parties))
    shares = list(enumerate(split(secret, threshold, parties), start=1))
    return secret, threshold, draw(st.permutations(shares))[:threshold]


@settings(max_examples=100)
@given(drawn=splits())
def test_any_t_shares_in_any_order_open_the_secret(drawn: tuple[bytes, int, list[tuple[int, bytes]]]) -> None:
    secret, threshold, shares = drawn
    assert all(len(share) == len(secret) for _, share in shares)
    assert combine(shares, threshold) == secret


@settings(max_examples=30)
@given(secret=st.binary(min_size=32, max_size=32), parties=st.integers(2, 9), seed=st.integers(0, 99))
def test_shares_of_the_library_open_here_and_ours_open_there(secret: bytes, parties: int, seed: int) -> None:
    chosen = random.Random(seed)
    threshold = chosen.randint(2, parties)
    some = chosen.sample(range(1, parties + 1), threshold)
    ours = split(secret, threshold, parties)
    opened = [Shamir.combine([(i, ours[i - 1][half]) for i in some]) for half in HALVES]
    assert b"".join(opened) == secret
    library = [dict(Shamir.split(threshold, parties, secret[half])) for half in HALVES]
    assert combine([(i, library[0][i] + library[1][i]) for i in some], threshold) == secret


def test_the_shares_of_fifty_open_as_the_librarys_do_and_many_secrets_at_once() -> None:
    secrets = [bytes([k]) * 32 for k in range(50)]
    splits_of_secrets = [split(secret, 34, 50) for secret in secrets]
    some = random.Random(0).sample(range(50), 34)
    joined = [(i + 1, b"".join(shares[i] for shares in splits_of_secrets)) for i in some]
    assert combine(joined, 34) == b"".join(secrets)
    library = Shamir.combine([(i + 1, splits_of_secrets[7][i][:16]) for i in some])
    assert library == secrets[7][:16]


def test_the_last_index_that_there_is_can_be_used() -> None:
    shares = split(b"s" * 16, 2, 300)
    assert combine([(300, shares[299]), (257, shares[256])], 2) == b"s" * 16


@settings(max_examples=60)
@given(
    secret=st.binary(min_size=32, max_size=32), other=st.binary(min_size=32, max_size=32),
    parties=st.integers(2, 8), seed=st.integers(0, 99),
)  # fmt: skip
def test_t_minus_1_shares_could_be_those_of_any_other_secret(
    secret: bytes, other: bytes, parties: int, seed: int
) -> None:
    """For every secret there is a t-th share with which they open to it: the polynomial through (0, other)
    and the shares, at the missing index. Its value there is g(0) of g(x) = f(x + index), and + is exclusive
    or."""
    chosen = random.Random(seed)
    threshold = chosen.randint(2, parties)
    *known, missing = chosen.sample(range(1, parties + 1), threshold)
    shares = split(secret, threshold, parties)
    seen = [(i, shares[i - 1]) for i in known]
    forged = combine([(missing, other), *((i ^ missing, share) for i, share in seen)], threshold)
    assert combine([*seen, (missing, forged)], threshold) == other


@pytest.mark.parametrize("byte", [0, 255])
def test_any_t_minus_1_shares_are_uniform_bytes_whatever_the_secret(byte: int) -> None:
    """Chi-square over the 256 values of a byte, 10 pairs of 5 shares with t = 3, at 1e-9 each."""
    secret = bytes([byte]) * 16 * 2000
    shares = split(secret, 3, 5)
    for a, b in combinations(shares, 2):
        mixed = bytes(x ^ y for x, y in zip(a, b, strict=True))
        for seen in (a, b, mixed):
            count = np.bincount(np.frombuffer(seen, dtype=np.uint8), minlength=256)
            assert ((count - count.mean()) ** 2 / count.mean()).sum() < chi2.isf(1e-9, 255)


def test_shares_are_drawn_anew() -> None:
    assert split(bytes(32), 2, 3) != split(bytes(32), 2, 3)


@pytest.mark.parametrize("size", [0, 1, 15, 17, 31])
def test_a_secret_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"a positive multiple of 16 bytes, got {size}"):
        split(bytes(size), 2, 3)


@pytest.mark.parametrize(("threshold", "parties"), [(0, 3), (4, 3), (1, 0), (2, MAX_PARTIES + 1)])
def test_a_threshold_that_cannot_be_is_refused(threshold: int, parties: int) -> None:
    with pytest.raises(ValueError, match=rf"threshold {threshold} of {parties}: expected 1 <= threshold"):
        split(bytes(16), threshold, parties)


A, B, C = split(b"k" * 32, 3, 3)


@pytest.mark.parametrize(
    ("shares", "why"),
    [
        ([(1, A), (2, B)], "2 shares were given, and exactly 3 open the secret"),
        ([(1, A), (2, B), (3, C), (4, C)], "4 shares were given, and exactly 3"),
        ([(1, A), (2, B), (2, B)], r"indices \[1, 2, 2\]; indices must be distinct"),
        ([(0, A), (2, B), (3, C)], r"indices \[0, 2, 3\]; indices must be distinct and from 1"),
        ([(1, A), (2, B), (MAX_PARTIES + 1, C)], "from 1 to 65535"),
        ([(1, A), (2, B), (3, C[:-1])], "shares must have one length, a multiple of 16 bytes"),
        ([(1, A[:24]), (2, B[:24]), (3, C[:24])], "shares must have one length, a multiple of 16 bytes"),
        ([(1, b""), (2, b""), (3, b"")], "shares must have one length, a multiple of 16 bytes"),
    ],
)  # fmt: skip
def test_shares_that_cannot_be_of_one_secret_are_refused(shares: list[tuple[int, bytes]], why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        combine(shares, 3)
