"""Metropolis acceptance by two parties: one has the old number x, the other the new number y, and both learn
one bit, that y is accepted, drawn with probability

    p(y - x) = min(1, exp(-(y - x) / T))

as Lumos's search does (eq. 18). Neither learns more: not x, y or y - x, and nothing of the draw, which
neither chooses. So a random bit is all that it gives away, which says less than the outcome of a comparison
with a threshold that both know.

How. Let M = 2^29 and t = floor(M p(y - x)). A number U, uniform in 0..M-1, accepts where U < t.

1. U = (u_1 + u_2) mod M, u_i drawn by party i in 0..M-1: whatever the one knows of its own, U is uniform.
2. Shares of t modulo 2^32: the first party prepares t - r for every number that the second may have, r drawn
   by it, and the second takes the word of its own number by a 1-of-2^k transfer (k bits: `ot.choose_word`).
   That word is uniform, and the first party learns nothing of which it was.
3. With s = u_1 + u_2, of which each party has a share, and since t <= M,

       [U < t] = [s < t] + [s < M] + [s < M + t]   (exclusive or),

   three signs of shared numbers below 2^31 in size (`ring.nonnegative`), added up as they are shared.
4. Each sends its share of that bit.

What each receives before step 4 is uniform whatever the other's number (`ot`, `compare`, `ring`), and the two
shares of the bit say the bit. p is off by less than 2^-29. Both follow the protocol (semi-honest): who does
not could draw its u_i, or prepare its words, as it likes."""

import os

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.compare import bytes_of_comparison
from graphfed.crypto.ot import TwoParty, bytes_of_choose_word, bytes_of_offer_words, choose_word, offer_words
from graphfed.crypto.ring import nonnegative
from graphfed.crypto.session import TAG_BYTES, Party
from graphfed.errors import InputError

__all__ = ["DRAWS", "MAX_BITS", "accept", "bytes_of_accept", "thresholds"]

#: U is one of so many: M.
DRAWS = 2**29
#: A word for every number that the second party may have: 16 kB.
MAX_BITS = 12


def thresholds(difference: NDArray[np.int64], temperature: float) -> NDArray[np.int64]:
    """t(y - x) [...]: how many of the M draws accept a number that is so much larger.

    InputError unless the temperature is a finite number above 0."""
    if not 0 < temperature < float("inf"):
        raise InputError(f"the temperature of an acceptance must be finite and above 0; got {temperature:g}")
    chance = np.exp(-np.maximum(difference, 0) / temperature)
    accepted: NDArray[np.int64] = np.floor(DRAWS * chance).astype(np.int64)
    return accepted


def accept(
    session: TwoParty, number: int, bits: int, *, old_is_first: bool, temperature: float
) -> Party[bool]:
    """Both learn whether the new number is accepted. number: this party's, of at most `bits` bits;
    old_is_first: the first party has the old number, the second the new one; else the other way round.

    InputError for a number that needs more bits, bits out of 1..12, or a temperature out of range."""
    if not 1 <= bits <= MAX_BITS or number < 0 or number >> bits:
        raise InputError(f"numbers of an acceptance have at most {bits} of at most {MAX_BITS} bits")
    drawn = _drawn(DRAWS)
    if session.first:
        every = np.arange(2**bits)
        table = thresholds(every - number if old_is_first else number - every, temperature)
        mine = np.frombuffer(os.urandom(4), dtype=np.uint32)
        yield from offer_words(session, table.astype(np.uint32) - mine)
    else:
        mine = yield from choose_word(session, number, bits)
    # The first party's shares of s - t, s - M and s - M - t take the M that both know away.
    whole = np.uint32(DRAWS if session.first else 0)
    share = np.array([drawn], dtype=np.uint32)
    signs = yield from nonnegative(
        session, np.concatenate([share - mine, share - whole, share - whole - mine])
    )
    bit = np.bitwise_xor.reduce(signs) ^ np.uint8(session.first)
    told = yield from session.swap("accepted", np.array([bit], dtype=np.uint8))
    return bool(bit ^ told[0])


def _drawn(below: int) -> int:
    """A uniform number below a power of two, from the operating system's entropy."""
    return int.from_bytes(os.urandom(4), "little") & (below - 1)


def bytes_of_accept(bits: int) -> tuple[int, int]:
    """Bytes of `accept`, from the first party and from the second, tags included."""
    first, second = bytes_of_comparison(3, 31)
    return (
        first + bytes_of_offer_words(bits) + TAG_BYTES + 1,
        second + bytes_of_choose_word(bits) + TAG_BYTES + 1,
    )
