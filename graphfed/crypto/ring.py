"""Operations of two parties on additively shared numbers that neither of them knows.

Shares are modulo 2^32 or 2^64, in two's complement. What leaks is named for each operation:

    subtract        both parties learn the difference, and so the other party's number
    nonnegative     nothing: each party gets a share of whether a shared number is >= 0 (DReLU)
    select          nothing: each party gets a share of b d, for a shared bit b and a shared number d

With d = d_1 + d_2, the sign of d is the exclusive or of the sign of d_1, the sign of d_2 and the carry out
of their lower bits. The carry is [2^31 - 1 - (d_1 mod 2^31) < d_2 mod 2^31], one comparison of 31 bits
(CrypTFlow2, Rathee et al., CCS 2020, section 4.1). The product b d is b_1 d_1 + b_2 d_2 plus two products
of one party's bit with the other party's number: (1 - 2 b_1) d_1 selected by b_2, and (1 - 2 b_2) d_2
selected by b_1. Each of these takes one correlated transfer (section 4.2 there).

Corruption model and security parameter: as in `session` and `ot` (semi-honest, 128 bits). Every share of a
result is uniform, because it is the difference of a number and a transfer key that the other party does not
have.

With `session.Simulated` in place of a session, the same functions give the same results and declare the
same bytes.
"""

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.compare import LESS, bytes_of_comparison, compare_shared
from graphfed.crypto.ot import COLUMNS, TwoParty, Words, padded
from graphfed.crypto.session import TAG_BYTES, Party, Simulated

Bytes = NDArray[np.uint8]
Ring = NDArray[np.unsignedinteger]

_SIGN = np.uint32(31)
_LOW = np.uint32(2**31 - 1)
#: Transfers in a message of `select`, and messages that are sent before the first answer is awaited.
BLOCK, BLOCKS = 8192, 16
AnySession = TwoParty | Simulated


def subtract(session: AnySession, local: Ring) -> Party[NDArray[np.signedinteger]]:
    """Compute and open the differences of two parties' numbers.

    A party that knows its own number learns the other party's number from the difference.

    Args:
        session: A session, or a simulated one.
        local: This party's numbers, uint32 or uint64 [n].

    Returns:
        The differences first - second, modulo 2^32 or 2^64, as signed numbers [n].
    """
    remote = yield from session.swap("numbers", local)
    difference = local - remote if session.first else remote - local
    return difference.view(np.int32 if local.dtype == np.uint32 else np.int64)


def nonnegative(session: AnySession, shares: NDArray[np.uint32]) -> Party[Bytes]:
    """Compute shares of whether each shared number is at least 0.

    Args:
        session: A session, or a simulated one.
        shares: This party's additive shares modulo 2^32, uint32 [n].

    Returns:
        This party's shares (exclusive or) of the answers, 0 or 1, uint8 [n].
    """
    if isinstance(session, Simulated):
        both = yield from session.both(shares, bytes_of_nonnegative(len(shares)))
        # The sum wraps modulo 2^32, and its highest bit is the sign.
        sign: Bytes = ((both[0] + both[1]) >> _SIGN).astype(np.uint8)
        return (sign ^ np.uint8(1)) & np.uint8(session.first)
    # The carry out of the lower bits: d_1 + d_2 overflows 31 bits where d_2 exceeds what d_1 leaves free.
    low = shares & _LOW
    carry = yield from compare_shared(session, _LOW - low if session.first else low, 31)
    # Each party adds the sign of its own share; the first party alone negates the result.
    sign = (shares >> _SIGN).astype(np.uint8) ^ (carry & LESS)
    return sign ^ np.uint8(session.first)


def select(session: AnySession, bits: Bytes, shares: Ring, *, of_first: bool = False) -> Party[Ring]:
    """Compute shares of the products of shared bits and shared numbers.

    Args:
        session: A session, or a simulated one. It must have transfers in both directions, unless
            `of_first`.
        bits: This party's shares (exclusive or) of the bits b, uint8 [n].
        shares: This party's additive shares of the numbers d, uint32 or uint64 [n].
        of_first: The numbers belong to the first party alone (the second party's shares are 0). Transfers
            in one direction are then enough.

    Returns:
        This party's additive shares of b d [n].
    """
    if isinstance(session, Simulated):
        cost = bytes_of_select(len(bits), shares.itemsize, of_first=of_first)
        one, other = yield from session.both(np.stack([bits.astype(shares.dtype), shares]), cost)
        # A simulated shared result: the first party has the value, the second has 0.
        product: Ring = (one[0] ^ other[0]) * (one[1] + other[1])
        return product if session.first else 0 * product
    results = [shares[:0]]
    for start in range(0, len(bits), BLOCK * BLOCKS):
        # A wave limits what is sent before the first answer, and so what both ends have to buffer.
        wave = slice(start, start + BLOCK * BLOCKS)
        results.append((yield from _select(session, bits[wave], shares[wave], of_first)))
    return np.concatenate(results)


def _select(session: TwoParty, bits: Bytes, shares: Ring, of_first: bool) -> Party[Ring]:
    """Run the correlated transfers of one wave of `select`."""
    blocks = [slice(s, s + BLOCK) for s in range(0, len(bits), BLOCK)]
    # Of b d this party computes b_i d_i alone. The two transfers below add the products of one party's bit
    # with the other party's number.
    result = bits * shares
    # The party whose bit selects the other's number receives. If the second party has no number, the first
    # party has nothing to receive.
    receives, sends = not (of_first and session.first), not of_first or session.first
    keys: list[Words] = []
    if receives:
        for block in blocks:
            columns, chosen_keys = session.receiver.choose(bits[block])
            yield from session.send("choices", columns)
            keys.append(chosen_keys)
    if sends:
        signed = np.where(bits, 0 - shares, shares)  # (1 - 2 b_i) d_i
        for block in blocks:
            count = len(bits[block])
            columns = yield from session.receive("choices", padded(count) * COLUMNS // 8)
            # Key 0 is the sender's mask. With choice 0 the receiver has it too, and the shares cancel; with
            # choice 1 it gets zero + (1 - 2 b_i) d_i from the correction.
            zero, one = (k[:, 0].astype(shares.dtype) for k in session.sender.keys(columns, count))
            yield from session.send("corrections", zero + signed[block] - one)
            result[block] -= zero
    if receives:
        for block, key in zip(blocks, keys, strict=True):
            size = len(key) * shares.itemsize
            corrections = _as_ring(shares, (yield from session.receive("corrections", size)))
            result[block] += key[:, 0].astype(shares.dtype) + bits[block] * corrections
    return result


def _as_ring(like: Ring, message: Bytes) -> Ring:
    return np.frombuffer(message.tobytes(), dtype=like.dtype)


# ---- what it costs: bytes from the first party and from the second, tags included --------------------------


def bytes_of_nonnegative(count: int) -> tuple[int, int]:
    """Count the bytes of `nonnegative`.

    Returns:
        Bytes from the first party and bytes from the second party.
    """
    return bytes_of_comparison(count, 31)


def bytes_of_select(count: int, itemsize: int, *, of_first: bool = False) -> tuple[int, int]:
    """Count the bytes of `select`.

    Args:
        count: Number of products.
        itemsize: Bytes of a number, 4 or 8.
        of_first: Whether transfers go in one direction only, as in `select`.

    Returns:
        Bytes from the first party and bytes from the second party.
    """
    blocks = [min(BLOCK, count - start) for start in range(0, count, BLOCK)]
    choices = sum(TAG_BYTES + padded(n) * COLUMNS // 8 for n in blocks)
    corrections = sum(TAG_BYTES + n * itemsize for n in blocks)
    return (corrections, choices) if of_first else (choices + corrections, choices + corrections)
