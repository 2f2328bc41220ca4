"""Two parties work on numbers that neither has: additive shares modulo 2^32 or 2^64, two's complement.

    subtract, opened      each sends the own number: both learn the difference, and so the other's number
    at_most               both learn whether a shared number is at most a known one, and nothing else
    nonnegative           a share of whether a shared number is >= 0 (DReLU)
    select                shares of b d, of a shared bit b and a shared number d (multiplexer)
    joint_random          random bytes that neither chose

With d = d_1 + d_2, the sign of d is the sign of d_1, that of d_2 and the carry out of their lower bits, all
exclusive-or'ed; the carry is [2^31 - 1 - (d_1 mod 2^31) < d_2 mod 2^31], one comparison of 31 bits
(CrypTFlow2, Rathee et al. 2020, section 4.1). b d is b_1 d_1 + b_2 d_2 and two products of one party's bit
with a number of the other's: (1 - 2 b_1) d_1 chosen by b_2, and (1 - 2 b_2) d_2 chosen by b_1, a correlated
transfer each, in both directions (section 4.2 there).

Shares of results are uniform: each is a difference of a number from a transfer key that the other does not
have. What is opened is in the name of the function. With `session.Simulated` in the place of a session the
same functions give the same results and declare the same bytes. Semi-honest, see `session` and `ot`."""

import hashlib
import os

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.compare import LESS, bytes_of_comparison, compare_shared
from graphfed.crypto.ot import COLUMNS, TwoParty, Words, padded
from graphfed.crypto.session import TAG_BYTES, Party, Simulated

__all__ = [
    "BYTES_OF_JOINT_RANDOM",
    "at_most",
    "bytes_of_at_most",
    "bytes_of_nonnegative",
    "bytes_of_select",
    "bytes_of_subtract",
    "joint_random",
    "nonnegative",
    "select",
    "subtract",
]

Bytes = NDArray[np.uint8]
Ring = NDArray[np.unsignedinteger]

_SIGN = np.uint32(31)
_LOW = np.uint32(2**31 - 1)
#: Transfers in a message of `select`, and messages on their way at once.
BLOCK, BLOCKS = 8192, 16
_COMMITMENT, _DRAWN = 32, 32
BYTES_OF_JOINT_RANDOM = (2 * TAG_BYTES + _COMMITMENT + 2 * _DRAWN, TAG_BYTES + _DRAWN)
AnySession = TwoParty | Simulated


def subtract(session: AnySession, mine: Ring) -> Party[NDArray[np.signedinteger]]:
    """The differences first - second [n], opened to both: who knows its own number knows the other's.

    mine [n] uint32 or uint64: this party's; the difference is taken modulo 2^32 or 2^64, signed."""
    theirs = yield from session.swap("numbers", mine)
    difference = mine - theirs if session.first else theirs - mine
    return difference.view(np.int32 if mine.dtype == np.uint32 else np.int64)


def at_most(
    session: AnySession, shares: NDArray[np.uint32], known: NDArray[np.int32]
) -> Party[NDArray[np.bool_]]:
    """Whether each shared number [n] is at most the `known` one [n], opened to both.

    shares: of numbers modulo 2^32 that are less than 2^31 away from `known`. With x at the first party and y
    at the second, the shares x and -y ask whether x - y is: Lumos's acceptance, with a threshold that both
    drew (`joint_random`)."""
    rest = known.astype(np.int32).view(np.uint32) - shares if session.first else 0 - shares
    bits = yield from nonnegative(session, rest)
    told = yield from session.swap("bits", np.packbits(bits, bitorder="little"))
    return (bits ^ np.unpackbits(told, count=len(bits), bitorder="little")).astype(np.bool_)


def nonnegative(session: AnySession, shares: NDArray[np.uint32]) -> Party[Bytes]:
    """This party's share (exclusive or) of whether each shared number [n] is >= 0, [n] of 0 and 1."""
    if isinstance(session, Simulated):
        both = yield from session.both(shares, bytes_of_nonnegative(len(shares)))
        sign: Bytes = ((both[0] + both[1]) >> _SIGN).astype(np.uint8)
        return (sign ^ np.uint8(1)) & np.uint8(session.first)
    low = shares & _LOW
    carry = yield from compare_shared(session, _LOW - low if session.first else low, 31)
    sign = (shares >> _SIGN).astype(np.uint8) ^ (carry & LESS)
    return sign ^ np.uint8(session.first)


def select(session: AnySession, bits: Bytes, shares: Ring, *, of_first: bool = False) -> Party[Ring]:
    """This party's additive shares of b d [n], from those of b (exclusive or) and of d.

    shares [n] uint32 or uint64; of_first: d is the first party's alone (the second's shares are 0), which
    needs one direction only. Needs a session with transfers both ways, or `of_first`."""
    if isinstance(session, Simulated):
        cost = bytes_of_select(len(bits), shares.itemsize, of_first=of_first)
        one, other = yield from session.both(np.stack([bits.astype(shares.dtype), shares]), cost)
        product: Ring = (one[0] ^ other[0]) * (one[1] + other[1])
        return product if session.first else 0 * product
    results = [shares[:0]]
    for start in range(0, len(bits), BLOCK * BLOCKS):
        wave = slice(start, start + BLOCK * BLOCKS)
        results.append((yield from _select(session, bits[wave], shares[wave], of_first)))
    return np.concatenate(results)


def _select(session: TwoParty, bits: Bytes, shares: Ring, of_first: bool) -> Party[Ring]:
    blocks = [slice(s, s + BLOCK) for s in range(0, len(bits), BLOCK)]
    result = bits * shares
    choosing, sending = not (of_first and session.first), not of_first or session.first
    keys: list[Words] = []
    if choosing:
        for block in blocks:
            columns, mine = session.receiver.choose(bits[block])
            yield from session.send("choices", columns)
            keys.append(mine)
    if sending:
        turned = np.where(bits, 0 - shares, shares)
        for block in blocks:
            count = len(bits[block])
            columns = yield from session.receive("choices", padded(count) * COLUMNS // 8)
            zero, one = (k[:, 0].astype(shares.dtype) for k in session.sender.keys(columns, count))
            yield from session.send("corrections", zero + turned[block] - one)
            result[block] -= zero
    if choosing:
        for block, key in zip(blocks, keys, strict=True):
            size = len(key) * shares.itemsize
            told = _of(shares, (yield from session.receive("corrections", size)))
            result[block] += key[:, 0].astype(shares.dtype) + bits[block] * told
    return result


def joint_random(session: AnySession) -> Party[bytes]:
    """32 random bytes that both have and neither chose: the first commits itself before it sees the
    second's."""
    mine, salt = os.urandom(_DRAWN), os.urandom(_DRAWN)
    if isinstance(session, Simulated):
        one, other = yield from session.both(np.frombuffer(mine, dtype=np.uint8), BYTES_OF_JOINT_RANDOM)
        return (one ^ other).tobytes()
    if session.first:
        yield from session.send("commitment", hashlib.sha256(salt + mine).digest())
        theirs = yield from session.receive("drawn", _DRAWN)
        yield from session.send("opened", salt, mine)
    else:
        commitment = yield from session.receive("commitment", _COMMITMENT)
        yield from session.send("drawn", mine)
        opened = yield from session.receive("opened", 2 * _DRAWN)
        if hashlib.sha256(opened.tobytes()).digest() != commitment.tobytes():
            raise session.failed("what the other party drew is not what it had committed itself to")
        theirs = opened[_DRAWN:]
    return (np.frombuffer(mine, dtype=np.uint8) ^ theirs).tobytes()


def _of(like: Ring, arrived: Bytes) -> Ring:
    return np.frombuffer(arrived.tobytes(), dtype=like.dtype)


# ---- what it costs: bytes from the first party and from the second, tags included --------------------------


def bytes_of_subtract(count: int, itemsize: int) -> tuple[int, int]:
    """Of `subtract`."""
    return (TAG_BYTES + count * itemsize,) * 2


def bytes_of_nonnegative(count: int) -> tuple[int, int]:
    """Of `nonnegative`."""
    return bytes_of_comparison(count, 31)


def bytes_of_at_most(count: int) -> tuple[int, int]:
    """Of `at_most`."""
    first, second = bytes_of_nonnegative(count)
    opening = TAG_BYTES + -(-count // 8)
    return first + opening, second + opening


def bytes_of_select(count: int, itemsize: int, *, of_first: bool = False) -> tuple[int, int]:
    """Of `select`."""
    blocks = [min(BLOCK, count - start) for start in range(0, count, BLOCK)]
    choices = sum(TAG_BYTES + padded(n) * COLUMNS // 8 for n in blocks)
    corrections = sum(TAG_BYTES + n * itemsize for n in blocks)
    return (corrections, choices) if of_first else (choices + corrections, choices + corrections)
