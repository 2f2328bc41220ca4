"""Secure comparison: two parties learn whether x < y, x = y or x > y, or get shares of the answer.

Reference: the millionaires' protocol of CrypTFlow2 (Rathee et al., CCS 2020).

What leaks: `compare` opens the three-way outcome. `is_less` opens whether x < y, and does not reveal
whether x = y otherwise. `compare_shared` opens nothing. The outcome together with a party's own number
implies something about the other number. The number of bits and the number of comparisons are public. If
the same secret number is compared with many known numbers, each outcome can reveal one bit of it: the
caller must state how often this happens, and the ledger counts the comparisons.

Corruption model and security parameter: as in `session` and `ot` (semi-honest, 128 bits). Each share alone
is uniform: the first party draws its own share, and the share of the second party is the bit plus the drawn
one.

The protocol. Numbers of k bits are cut into digits of 4 bits. For each digit, the first party prepares the
two bits (less, equal) for every digit that the second party may have, and hides them behind two random
bits. The second party takes the pair for its own digit by a 1-of-16 transfer. Each party then has a share
(exclusive or) of both bits. Neighbouring digits are then joined in a tree of log2(k / 4) levels,

    less = less_high + equal_high less_low        equal = equal_high equal_low,

by one 1-of-8 transfer for each pair. The first party prepares both results for every value of the three
shares of the second party. All transfers go from the first party to the second, so one set-up is enough.
The paper builds its 1-of-16 transfers from another extension (KK13), which sends fewer bytes.

With `session.Simulated` in place of a session, the same functions give the same outcomes and declare the
same bytes.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.ot import WORDS, Asked, TwoParty, ask, bytes_of_ask, bytes_of_offer, offer, take
from graphfed.crypto.session import TAG_BYTES, Party, Simulated
from graphfed.errors import InputError

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.unsignedinteger]

MAX_BITS = 32
DIGIT = 4
#: Comparisons in a message, such that a message fits in the processor's cache; and messages that are sent
#: before the first answer is awaited.
BLOCK, BLOCKS = 1000, 64
LESS, EQUAL = np.uint8(1), np.uint8(2)
_ONE = np.uint8(1)


def compare(session: TwoParty | Simulated, numbers: Numbers, bits: int) -> Party[NDArray[np.int8]]:
    """Compare numbers; both parties learn the outcomes.

    Args:
        session: A session, or a simulated one.
        numbers: This party's numbers, unsigned [n], of at most `bits` bits.
        bits: Bits of the numbers, the same at both parties.

    Returns:
        int8 [n]: -1 where the first party's number is less, 0 where the numbers are equal, 1 where it is
        greater.
    """
    shares = yield from compare_shared(session, numbers, bits)
    return (yield from open_outcomes(session, shares))


def is_less(session: TwoParty | Simulated, numbers: Numbers, bits: int) -> Party[NDArray[np.bool_]]:
    """Compare numbers; both parties learn only whether the first party's number is less.

    Args:
        session: A session, or a simulated one.
        numbers: This party's numbers, unsigned [n], of at most `bits` bits.
        bits: Bits of the numbers, the same at both parties.

    Returns:
        bool [n].
    """
    shares = yield from compare_shared(session, numbers, bits)
    return (yield from open_less(session, shares))


def compare_shared(session: TwoParty | Simulated, numbers: Numbers, bits: int) -> Party[Bytes]:
    """Compare numbers; each party gets a share of the outcomes.

    Args:
        session: A session, or a simulated one.
        numbers: This party's numbers, unsigned [n], below 2^bits.
        bits: Bits of the numbers, the same at both parties.

    Returns:
        This party's shares (exclusive or), uint8 [n]: bit 0 says less, bit 1 says equal.

    Raises:
        InputError: A number needs more than `bits` bits, or `bits` is not in 1..32.
    """
    _check(numbers, bits)
    if isinstance(session, Simulated):
        cost = bytes_of_comparison(len(numbers), bits)
        x, y = yield from session.both(numbers.astype(np.uint32), cost)
        outcomes: Bytes = _leaf(x, y).astype(np.uint8)
        # A simulated shared result: the first party has the value, the second has 0.
        return outcomes * np.uint8(session.first)
    side = _first if session.first else _second
    shares = [np.zeros(0, dtype=np.uint8)]
    for wave in _slices(len(numbers), BLOCK * BLOCKS):
        shares += yield from side(session, numbers[wave], bits)
    return np.concatenate(shares)


def open_outcomes(session: TwoParty | Simulated, shares: Bytes) -> Party[NDArray[np.int8]]:
    """Open shared outcomes: both parties send their shares.

    Args:
        session: A session, or a simulated one.
        shares: This party's shares, as `compare_shared` gives them, uint8 [n].

    Returns:
        int8 [n], as `compare` returns them.
    """
    remote = yield from session.swap("outcomes", _packed(shares))
    both = shares ^ _unpacked(remote, len(shares))
    # Neither less nor equal: greater.
    return np.where(both & LESS, -1, np.where(both & EQUAL, 0, 1)).astype(np.int8)


def open_less(session: TwoParty | Simulated, shares: Bytes) -> Party[NDArray[np.bool_]]:
    """Open whether the first number is less, and keep whether the numbers are equal secret.

    Args:
        session: A session, or a simulated one.
        shares: This party's shares, as `compare_shared` gives them, uint8 [n].

    Returns:
        bool [n].
    """
    # The shares of equality stay with each party.
    local = shares & LESS
    remote = yield from session.swap("less", np.packbits(local, bitorder="little"))
    return (local ^ np.unpackbits(remote, count=len(shares), bitorder="little")).astype(np.bool_)


# ---- the two sides -----------------------------------------------------------------------------------------


def _first(session: TwoParty, x: Numbers, bits: int) -> Party[list[Bytes]]:
    """Run the first party of one wave of comparisons."""
    shares = []
    for block in _slices(len(x), BLOCK):
        digits = _digits(x[block], bits)
        # The masks are this party's shares: whichever message is taken, the other party has the other share.
        masks = [_draw_masks(digit.shape) for digit, _ in digits]
        # For every digit that the second party may have: (less, equal), hidden by the same two random bits.
        words = [_LEAVES[w][digit] ^ _SPREAD[w][mask] for (digit, w), mask in zip(digits, masks, strict=True)]
        yield from offer(session, *((word.ravel(), w) for word, (_, w) in zip(words, digits, strict=True)))
        shares.append(np.concatenate(masks, axis=1))
    # One pass is one level of the tree; every pass halves the nodes of a comparison.
    while shares[0].shape[1] > 1:
        for number, nodes in enumerate(shares):
            # The word of a pair has the joined outcome for all 8 values of the second party's three shares.
            low, high, left = _pairs(nodes)
            local = _draw_masks(low.shape)
            yield from offer(session, ((_JOINS[high | low << 2] ^ _SPREAD[3][local]).ravel(), 3))
            shares[number] = np.concatenate([local, left], axis=1)
    return [nodes[:, 0] for nodes in shares]


def _second(session: TwoParty, y: Numbers, bits: int) -> Party[list[Bytes]]:
    """Run the second party of one wave of comparisons."""
    asked, shares = [], []
    # The requests of a whole wave go out before the first answer is awaited, and those of the next level as
    # soon as a block is known: so neither party waits while the other one computes.
    for block in _slices(len(y), BLOCK):
        digits = _digits(y[block], bits)
        asked.append((yield from ask(session, *((digit.ravel(), w) for digit, w in digits))))
    for number, request in enumerate(asked):
        taken = yield from take(session, request)
        rows = len(y[number * BLOCK : (number + 1) * BLOCK])
        shares.append(np.concatenate([messages.reshape(rows, -1) for messages in taken], axis=1))
        if shares[number].shape[1] > 1:
            asked[number] = yield from _ask_to_join(session, shares[number])
    while shares[0].shape[1] > 1:
        for number, nodes in enumerate(shares):
            _, high, left = _pairs(nodes)
            (messages,) = yield from take(session, asked[number])
            # The first party cannot add this share of less_high, because it does not know it (`_join`).
            joined = messages.reshape(high.shape) ^ (high & LESS)
            shares[number] = np.concatenate([joined, left], axis=1)
            if shares[number].shape[1] > 1:
                asked[number] = yield from _ask_to_join(session, shares[number])
    return [nodes[:, 0] for nodes in shares]


def _ask_to_join(session: TwoParty, nodes: Bytes) -> Party[list[Asked]]:
    """Ask for the joined nodes, by this party's shares of equal_high, less_low and equal_low."""
    low, high, _ = _pairs(nodes)
    # Bit 0 is equal_high, bits 1 and 2 are less_low and equal_low, as `_join` reads them.
    return (yield from ask(session, ((high >> _ONE | low << _ONE).ravel(), 3)))


def _digits(numbers: Numbers, bits: int) -> list[tuple[Bytes, int]]:
    """Cut numbers into digits.

    Returns:
        Pairs (digits [n, d], w) of digits of w bits, lowest first: all digits of 4 bits, then the highest
        digit if it has fewer.
    """
    full, rest = divmod(bits, DIGIT)
    found = []
    if full:
        shifts = np.arange(0, full * DIGIT, DIGIT, dtype=np.uint32)
        found.append((((numbers[:, None] >> shifts) & 15).astype(np.uint8), DIGIT))
    if rest:
        found.append(((numbers[:, None] >> np.uint32(full * DIGIT)).astype(np.uint8), rest))
    return found


def _pairs(nodes: Bytes) -> tuple[Bytes, Bytes, Bytes]:
    """Split the nodes [n, d] of a level into the lower ones and the higher ones of each pair, and the highest
    one if d is odd.
    """
    joined = nodes.shape[1] // 2 * 2
    return nodes[:, 0:joined:2], nodes[:, 1:joined:2], nodes[:, joined:]


def _draw_masks(shape: tuple[int, ...]) -> Bytes:
    """Draw two random bits for each entry, from the operating system's entropy."""
    random_bytes = np.frombuffer(os.urandom(int(np.prod(shape))), dtype=np.uint8)
    return random_bytes.reshape(shape) & np.uint8(3)


def _slices(count: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _packed(shares: Bytes) -> Bytes:
    """Pack outcomes of two bits, four to a byte."""
    bits = np.stack([shares & 1, shares >> 1], axis=1)
    return np.packbits(bits, bitorder="little")


def _unpacked(packed: Bytes, count: int) -> Bytes:
    """Unpack `count` outcomes of two bits."""
    bits = np.unpackbits(packed, count=2 * count, bitorder="little").reshape(count, 2)
    return bits[:, 0] | bits[:, 1] << _ONE


def _words_of(w: int, message: Callable[[int, int], int], rows: int) -> NDArray[np.unsignedinteger]:
    """Put the 2^w messages of two bits of every row into one word."""
    words = [sum(message(row, m) << 2 * m for m in range(2**w)) for row in range(rows)]
    return np.array(words, dtype=WORDS[w])


def _leaf(x: Any, y: Any) -> Any:
    """Compare two digits: bit 0 says less, bit 1 says equal."""
    return int(LESS) * (x < y) | int(EQUAL) * (x == y)


def _join(first: int, second: int) -> int:
    """Compute the message that joins two nodes.

    Args:
        first: The first party's shares (less, equal) of the high node, then of the low node, as 4 bits.
        second: The second party's shares of equal_high, less_low and equal_low, as 3 bits.

    Returns:
        The outcome of the joined node, without the second party's share of less_high, which that party adds
        itself.
    """
    less_high, equal_high, less_low, equal_low = (first >> i & 1 for i in range(4))
    equal_high ^= second & 1
    less_low ^= second >> 1 & 1
    equal_low ^= second >> 2 & 1
    less = less_high ^ (equal_high & less_low)
    return int(LESS) * less | int(EQUAL) * (equal_high & equal_low)


#: By w: the messages for every digit of the first party; and two bits repeated in every message of a word.
_LEAVES = [_words_of(w, _leaf, 2**w) for w in range(DIGIT + 1)]
_SPREAD = [_words_of(w, lambda drawn, _: drawn, 4) for w in range(DIGIT + 1)]
_JOINS = _words_of(3, _join, 16)


# ---- what it costs -----------------------------------------------------------------------------------------


def bytes_of_comparison(count: int, bits: int) -> tuple[int, int]:
    """Count the bytes of `compare_shared`.

    Args:
        count: Number of comparisons.
        bits: Bits of the numbers, 1 to 32.

    Returns:
        Bytes from the first party and bytes from the second party, tags included.
    """
    first = second = 0
    for wave in _slices(count, BLOCK):
        n = wave.stop - wave.start
        full, rest = divmod(bits, DIGIT)
        leaves = ([(n * full, DIGIT)] if full else []) + ([(n, rest)] if rest else [])
        first, second = first + bytes_of_offer(*leaves), second + bytes_of_ask(*leaves)
        nodes = full + (rest > 0)
        while nodes > 1:
            # An odd node goes to the next level without a transfer.
            joined = (n * (nodes // 2), 3)
            first, second = first + bytes_of_offer(joined), second + bytes_of_ask(joined)
            nodes -= nodes // 2
    return first, second


def bytes_of_opening(count: int) -> int:
    """Count the bytes of `open_outcomes`.

    Returns:
        Bytes from each party.
    """
    return TAG_BYTES + -(-count // 4)


def bytes_of_opening_less(count: int) -> int:
    """Count the bytes of `open_less`.

    Returns:
        Bytes from each party.
    """
    return TAG_BYTES + -(-count // 8)


def _check(numbers: Numbers, bits: int) -> None:
    """Refuse numbers that do not fit into `bits` bits, and a number of bits out of range."""
    if not 1 <= bits <= MAX_BITS:
        raise InputError(f"numbers of {bits} bits cannot be compared; use 1 to {MAX_BITS}")
    if len(numbers) and int(numbers.max()) >> bits:
        raise InputError(
            f"the number {int(numbers.max())} needs more than {bits} bits; use a larger value of bits"
        )
