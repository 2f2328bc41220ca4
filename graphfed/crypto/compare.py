"""Secure comparison: two parties learn whether x < y, x = y or x > y, or share it, and nothing else of each
other's number.

The millionaires' protocol of CrypTFlow2 (Rathee et al., CCS 2020). The numbers of k bits are cut into digits
of 4. For each digit the first party prepares the two bits (less, equal), hidden behind two random bits, for
every digit that the second may have, and the second takes its own by a 1-of-16 transfer: each has a share of
both bits (exclusive or). Then neighbouring digits are joined, in a tree of log2(k / 4) levels,

    less = less_high + equal_high less_low        equal = equal_high equal_low

by one 1-of-8 transfer: the first party prepares both results for every value of the second's three shares.
All transfers go one way, so one set-up serves. The paper takes its 1-of-16 transfers from another extension
(KK13), which sends less.

Whoever opens the outcome learns the outcome, and what follows from it and the own number; of `is_less`
whether x < y, and nothing of whether they are equal where it is not. k and how many numbers are compared are
public. Shares are uniform each by itself: the first party draws its own, and the second's is the bit plus a
drawn one. Both parties follow the protocol (semi-honest): see `session` and `ot`.

With `session.Simulated` in the place of a session the same functions give the same outcomes and declare the
same bytes.

Comparing the same secret number with many known ones closes in on it, a bit for each at best: who calls this
says how often, and the ledger counts it."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.ot import WORDS, Asked, TwoParty, ask, bytes_of_ask, bytes_of_offer, offer, take
from graphfed.crypto.session import TAG_BYTES, Party, Simulated
from graphfed.errors import InputError

__all__ = [
    "MAX_BITS",
    "bytes_of_comparison",
    "bytes_of_opening",
    "bytes_of_opening_less",
    "compare",
    "compare_shared",
    "is_less",
    "open_less",
    "open_outcomes",
]

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.unsignedinteger]

MAX_BITS = 32
DIGIT = 4
#: Comparisons in a message: what it takes fits a processor's cache. Messages on their way at once.
BLOCK, BLOCKS = 1000, 64
LESS, EQUAL = np.uint8(1), np.uint8(2)
_ONE = np.uint8(1)


def compare(session: TwoParty | Simulated, numbers: Numbers, bits: int) -> Party[NDArray[np.int8]]:
    """Both learn the outcomes [n]: -1 where the first party's number is less, 0 equal, 1 greater.

    numbers [n]: this party's, of at most `bits` bits; n and `bits` are the same at both ends."""
    shares = yield from compare_shared(session, numbers, bits)
    return (yield from open_outcomes(session, shares))


def is_less(session: TwoParty | Simulated, numbers: Numbers, bits: int) -> Party[NDArray[np.bool_]]:
    """Both learn whether the first party's number is less [n], and not whether the others are equal."""
    shares = yield from compare_shared(session, numbers, bits)
    return (yield from open_less(session, shares))


def compare_shared(session: TwoParty | Simulated, numbers: Numbers, bits: int) -> Party[Bytes]:
    """This party's shares [n] of the outcomes: bit 0 of less, bit 1 of equal.

    InputError for a number that needs more bits, or bits out of 1..32."""
    _check(numbers, bits)
    if isinstance(session, Simulated):
        cost = bytes_of_comparison(len(numbers), bits)
        x, y = yield from session.both(numbers.astype(np.uint32), cost)
        outcomes: Bytes = _leaf(x, y).astype(np.uint8)
        return outcomes * np.uint8(session.first)
    side = _first if session.first else _second
    shares = [np.zeros(0, dtype=np.uint8)]
    for wave in _slices(len(numbers), BLOCK * BLOCKS):
        shares += yield from side(session, numbers[wave], bits)
    return np.concatenate(shares)


def open_outcomes(session: TwoParty | Simulated, shares: Bytes) -> Party[NDArray[np.int8]]:
    """Both send their shares of some outcomes: what they stand for [n]."""
    told = yield from session.swap("outcomes", _packed(shares))
    both = shares ^ _unpacked(told, len(shares))
    return np.where(both & LESS, -1, np.where(both & EQUAL, 0, 1)).astype(np.int8)


def open_less(session: TwoParty | Simulated, shares: Bytes) -> Party[NDArray[np.bool_]]:
    """Both send the half of their shares of some outcomes that is of less: whether it is so [n]. The shares
    of equal stay where they are."""
    mine = shares & LESS
    told = yield from session.swap("less", np.packbits(mine, bitorder="little"))
    return (mine ^ np.unpackbits(told, count=len(shares), bitorder="little")).astype(np.bool_)


# ---- the two sides -----------------------------------------------------------------------------------------


def _first(session: TwoParty, x: Numbers, bits: int) -> Party[list[Bytes]]:
    shares = []
    for block in _slices(len(x), BLOCK):
        digits = _digits(x[block], bits)
        drawn = [_drawn(digit.shape) for digit, _ in digits]
        words = [_LEAVES[w][digit] ^ _SPREAD[w][d] for (digit, w), d in zip(digits, drawn, strict=True)]
        yield from offer(session, *((word.ravel(), w) for word, (_, w) in zip(words, digits, strict=True)))
        shares.append(np.concatenate(drawn, axis=1))
    while shares[0].shape[1] > 1:
        for number, nodes in enumerate(shares):
            low, high, left = _pairs(nodes)
            mine = _drawn(low.shape)
            yield from offer(session, ((_JOINS[high | low << 2] ^ _SPREAD[3][mine]).ravel(), 3))
            shares[number] = np.concatenate([mine, left], axis=1)
    return [nodes[:, 0] for nodes in shares]


def _second(session: TwoParty, y: Numbers, bits: int) -> Party[list[Bytes]]:
    asked, shares = [], []
    for block in _slices(len(y), BLOCK):
        digits = _digits(y[block], bits)
        asked.append((yield from ask(session, *((digit.ravel(), w) for digit, w in digits))))
    for number, request in enumerate(asked):
        taken = yield from take(session, request)
        rows = len(y[number * BLOCK : (number + 1) * BLOCK])
        shares.append(np.concatenate([two.reshape(rows, -1) for two in taken], axis=1))
        if shares[number].shape[1] > 1:
            asked[number] = yield from _ask_to_join(session, shares[number])
    while shares[0].shape[1] > 1:
        for number, nodes in enumerate(shares):
            _, high, left = _pairs(nodes)
            (told,) = yield from take(session, asked[number])
            joined = told.reshape(high.shape) ^ (high & LESS)
            shares[number] = np.concatenate([joined, left], axis=1)
            if shares[number].shape[1] > 1:
                asked[number] = yield from _ask_to_join(session, shares[number])
    return [nodes[:, 0] for nodes in shares]


def _ask_to_join(session: TwoParty, nodes: Bytes) -> Party[list[Asked]]:
    """By this party's shares of equal_high, less_low and equal_low."""
    low, high, _ = _pairs(nodes)
    return (yield from ask(session, ((high >> _ONE | low << _ONE).ravel(), 3)))


def _digits(numbers: Numbers, bits: int) -> list[tuple[Bytes, int]]:
    """(digits [n, d], w) of w bits each, low ones first: those of 4 bits, then the highest one if it has
    fewer."""
    full, rest = divmod(bits, DIGIT)
    found = []
    if full:
        shifts = np.arange(0, full * DIGIT, DIGIT, dtype=np.uint32)
        found.append((((numbers[:, None] >> shifts) & 15).astype(np.uint8), DIGIT))
    if rest:
        found.append(((numbers[:, None] >> np.uint32(full * DIGIT)).astype(np.uint8), rest))
    return found


def _pairs(nodes: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """Nodes [n, d] of the tree that are joined, the lower and the higher ones, and the highest where it is
    left over."""
    joined = nodes.shape[1] // 2 * 2
    return nodes[:, 0:joined:2], nodes[:, 1:joined:2], nodes[:, joined:]


def _drawn(shape: tuple[int, ...]) -> Bytes:
    """Two random bits each, from the operating system's entropy."""
    drawn = np.frombuffer(os.urandom(int(np.prod(shape))), dtype=np.uint8)
    return drawn.reshape(shape) & np.uint8(3)


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _packed(shares: Bytes) -> Bytes:
    """Two bits each, four to a byte."""
    bits = np.stack([shares & 1, shares >> 1], axis=1)
    return np.packbits(bits, bitorder="little")


def _unpacked(packed: Bytes, count: int) -> Bytes:
    bits = np.unpackbits(packed, count=2 * count, bitorder="little").reshape(count, 2)
    return bits[:, 0] | bits[:, 1] << _ONE


def _words_of(w: int, message: Callable[[int, int], int], rows: int) -> NDArray[np.unsignedinteger]:
    """For every row: the 2^w messages of two bits in one word."""
    words = [sum(message(row, m) << 2 * m for m in range(2**w)) for row in range(rows)]
    return np.array(words, dtype=WORDS[w])


def _leaf(x: Any, y: Any) -> Any:
    return int(LESS) * (x < y) | int(EQUAL) * (x == y)


def _join(mine: int, theirs: int) -> int:
    """mine: the first party's shares (less, equal) of the high node and of the low one; theirs: the second's
    of equal_high, less_low and equal_low. What is still missing is the second's share of less_high."""
    less_high, equal_high, less_low, equal_low = (mine >> i & 1 for i in range(4))
    equal_high ^= theirs & 1
    less_low ^= theirs >> 1 & 1
    equal_low ^= theirs >> 2 & 1
    less = less_high ^ (equal_high & less_low)
    return int(LESS) * less | int(EQUAL) * (equal_high & equal_low)


#: By w: the messages for every digit, and two bits repeated in every message.
_LEAVES = [_words_of(w, _leaf, 2**w) for w in range(DIGIT + 1)]
_SPREAD = [_words_of(w, lambda drawn, _: drawn, 4) for w in range(DIGIT + 1)]
_JOINS = _words_of(3, _join, 16)


# ---- what it costs -----------------------------------------------------------------------------------------


def bytes_of_comparison(count: int, bits: int) -> tuple[int, int]:
    """Bytes of `compare_shared`, from the first party and from the second, tags included."""
    first = second = 0
    for wave in _slices(count, BLOCK):
        n = wave.stop - wave.start
        full, rest = divmod(bits, DIGIT)
        leaves = ([(n * full, DIGIT)] if full else []) + ([(n, rest)] if rest else [])
        first, second = first + bytes_of_offer(*leaves), second + bytes_of_ask(*leaves)
        nodes = full + (rest > 0)
        while nodes > 1:
            joined = (n * (nodes // 2), 3)
            first, second = first + bytes_of_offer(joined), second + bytes_of_ask(joined)
            nodes -= nodes // 2
    return first, second


def bytes_of_opening(count: int) -> int:
    """Bytes of `open_outcomes`, from each."""
    return TAG_BYTES + -(-count // 4)


def bytes_of_opening_less(count: int) -> int:
    """Bytes of `open_less`, from each."""
    return TAG_BYTES + -(-count // 8)


def _check(numbers: Numbers, bits: int) -> None:
    if not 1 <= bits <= MAX_BITS:
        raise InputError(f"numbers of {bits} bits cannot be compared; use 1 to {MAX_BITS}")
    if len(numbers) and int(numbers.max()) >> bits:
        raise InputError(f"{int(numbers.max())} needs more than {bits} bits; compare with more")
