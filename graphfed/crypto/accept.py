"""Joint Metropolis acceptance: two parties decide at random whether a new number replaces an old one.

One party has the old number x and the other has the new number y. Both learn one bit, which says that y is
accepted. It is 1 with probability

    p(y - x) = min(1, exp(-(y - x) / T)),

as in the search of Lumos (Eq. (18) there).

What leaks: the bit, and nothing else. Neither party learns the other's number, y - x, or the random number
that decides, and neither can choose that random number. A random bit says less than the outcome of a
comparison with a threshold that both parties know.

Corruption model: both parties follow the protocol (semi-honest). A party that deviates could choose its
part of the random number, or could prepare wrong words in step 2.

Security: all messages before step 4 are uniform, whatever the other party's number is. This rests on the
oblivious transfers of `ot` (computational security 128 bits), on `compare` and on `ring`. The two shares of
step 4 reveal the bit and nothing more. The probability p is exact up to 2^-29.

The protocol. Let M = 2^29 and t = floor(M p(y - x)). A uniform number U in 0..M-1 accepts if U < t.

1. U = (u_1 + u_2) mod M, where party i draws u_i uniformly from 0..M-1. U is uniform for each party, even
   given its own u_i.
2. The parties obtain additive shares of t modulo 2^32. The first party draws a word r and prepares t - r
   for every number that the second party may have. The second party takes the word for its own number by a
   1-of-2^k oblivious transfer, where k is the number of bits (`ot.choose_word`). The word is uniform, and
   the first party does not learn which word was taken.
3. Let s = u_1 + u_2, of which each party has one share. Since t <= M,

       [U < t] = [s < t] + [s < M] + [s < M + t]   (exclusive or).

   These are the signs of three shared numbers below 2^31 in absolute value (`ring.nonnegative`). The
   parties add up their shares of the three signs.
4. Each party sends its share of the result.
"""

import os

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.compare import bytes_of_comparison
from graphfed.crypto.ot import TwoParty, bytes_of_choose_word, bytes_of_offer_words, choose_word, offer_words
from graphfed.crypto.ring import nonnegative
from graphfed.crypto.session import TAG_BYTES, Party
from graphfed.errors import InputError

#: M, the number of possible values of the random number U.
DRAWS = 2**29
#: Most bits of a number. The first party prepares one word for each number of so many bits, 16 kB.
MAX_BITS = 12


def thresholds(difference: NDArray[np.int64], temperature: float) -> NDArray[np.int64]:
    """Compute t(y - x), the number of the M equally likely draws that accept.

    Args:
        difference: y - x, int64 of any shape [...].
        temperature: T of the search, above 0.

    Returns:
        t, int64 [...], between 0 and M.

    Raises:
        InputError: The temperature is not a finite number above 0.

    Reference:
        Lumos, Eq. (18).
    """
    if not 0 < temperature < float("inf"):
        raise InputError(f"the temperature of the search must be finite and above 0; got {temperature:g}")
    # min(1, exp(-d / T)) = exp(-max(d, 0) / T), which cannot overflow.
    probability = np.exp(-np.maximum(difference, 0) / temperature)
    accepted: NDArray[np.int64] = np.floor(DRAWS * probability).astype(np.int64)
    return accepted


def accept(
    session: TwoParty, number: int, bits: int, *, old_is_first: bool, temperature: float
) -> Party[bool]:
    """Decide with the other party whether the new number is accepted; both learn the answer.

    Args:
        session: A session that has been set up.
        number: This party's number, at least 0 and with at most `bits` bits.
        bits: Bits of both numbers, 1 to 12, the same at both parties.
        old_is_first: True if the first party has the old number and the second party has the new one; False
            if it is the other way round.
        temperature: T of the search, above 0.

    Returns:
        Whether the new number is accepted.

    Raises:
        InputError: The number needs more than `bits` bits, `bits` is not in 1..12, or the temperature is
            out of range.
    """
    if not 1 <= bits <= MAX_BITS or number < 0 or number >> bits:
        raise InputError(f"numbers of an acceptance have at most {bits} of at most {MAX_BITS} bits")
    # Step 1: this party's u_i.
    local_draw = _draw_below(DRAWS)
    if session.first:
        # Step 2: t - r for every number that the second party may have; r is the first party's share of t.
        remote_numbers = np.arange(2**bits)
        table = thresholds(remote_numbers - number if old_is_first else number - remote_numbers, temperature)
        threshold_share = np.frombuffer(os.urandom(4), dtype=np.uint32)
        yield from offer_words(session, table.astype(np.uint32) - threshold_share)
    else:
        threshold_share = yield from choose_word(session, number, bits)
    # Shares of s - t, s - M and s - M - t. M is public: the first party alone subtracts it.
    draws = np.uint32(DRAWS if session.first else 0)
    draw_share = np.array([local_draw], dtype=np.uint32)
    signs = yield from nonnegative(
        session,
        np.concatenate(
            [draw_share - threshold_share, draw_share - draws, draw_share - draws - threshold_share]
        ),
    )
    # `nonnegative` gives [s - a >= 0] = 1 + [s < a]. Of three of them the ones add up to 1.
    bit = np.bitwise_xor.reduce(signs) ^ np.uint8(session.first)
    remote_bit = yield from session.swap("accepted", np.array([bit], dtype=np.uint8))
    return bool(bit ^ remote_bit[0])


def _draw_below(limit: int) -> int:
    """Draw a uniform number below `limit`, a power of two, from the operating system's entropy."""
    # A limit that is a power of two needs no rejection: the low bits are uniform.
    return int.from_bytes(os.urandom(4), "little") & (limit - 1)


def bytes_of_accept(bits: int) -> tuple[int, int]:
    """Count the bytes that `accept` sends.

    Args:
        bits: Bits of the numbers, 1 to 12.

    Returns:
        Bytes from the first party and bytes from the second party, tags included.
    """
    # `nonnegative` of three numbers, the transfer of step 2, and the shares of step 4.
    first, second = bytes_of_comparison(3, 31)
    return (
        first + bytes_of_offer_words(bits) + TAG_BYTES + 1,
        second + bytes_of_choose_word(bits) + TAG_BYTES + 1,
    )
