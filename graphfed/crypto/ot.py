"""Oblivious transfer: a sender has several messages, and a receiver gets the one that it chooses.

What leaks: the sender does not learn which message was chosen, and the receiver learns nothing of the other
messages. The number of transfers and their widths are public.

Corruption model: both parties follow the protocol (semi-honest). A receiver that sends ill-formed columns
could learn bits of the sender's secret s. The code does not run in constant time, so a party who can
measure the other's machine is not covered.

Security parameter: 128 bits. It rests on computational Diffie-Hellman on P-256, on AES-128 in counter mode
as a pseudorandom generator, and on a tweakable correlation-robust hash.

Base transfers (`_base_send`, `_base_receive`), 128 for each direction of a session, on P-256. For each
transfer the receiver sends two points. At the place of its choice is a point whose private key it has. At
the other place is a point that it samples directly, so that it has no private key of it. Both points are
uniform, so the sender cannot distinguish them. The sender sends one point A = aG for all transfers. Both
parties hash the Diffie-Hellman secrets with A: the sender has both secrets of a transfer, and the receiver
has the one whose private key it has. To compute the other secret the receiver would have to solve
computational Diffie-Hellman. The curve has no small subgroups, and every point that arrives is checked to
lie on it.

Extension (`OTSender`, `OTReceiver`): IKNP (Ishai, Kilian, Nissim and Petrank, CRYPTO 2003) with 128
columns. The receiver of the extension was the sender of the base transfers. It has both seeds of each
column, and the sender has one of them, according to the bits of its secret s. For choices r the receiver
expands both seeds to columns and sends

    u_j = G(k_j^0) + G(k_j^1) + r   (exclusive or),

which is 16 bytes per transfer. The sender computes rows q_i = t_i + r_i s. The keys of transfer i are H(i,
q_i) and H(i, q_i + s), and the receiver can compute the key of its choice, H(i, t_i). The choices r in u_j
are hidden by the column that the sender does not have, G(k_j^0) or G(k_j^1). The hash is H(i, x) = p(p(x) +
i) + p(x), where p is AES under a fixed key (TMMO: Guo, Katz, Wang and Yu, IEEE S&P 2020). The counters i
and the streams of G continue from batch to batch, and no part of them is used twice.

1-of-2^w transfers are built from w transfers (Naor and Pinkas, STOC 1999). Message m is hidden by the
exclusive or of w pads: for each bit of m, pad number m of the key that this bit selects. Each message has
its own pads, so what the receiver knows of one message says nothing of another. Many transfers of two-bit
messages (`ask`, `offer`, `take`) take the pads from the keys themselves. A single transfer of 32-bit words
(`choose_word`, `offer_words`) takes them from AES-128 in counter mode under each key.
"""

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.session import NONCE_BYTES, TAG_BYTES, Party, Session

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers import CipherContext

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

#: Number of base transfers of a direction: the security parameter in bits, and the columns of the extension.
COLUMNS = 128
#: Bytes of a point with both coordinates. Computing the second one from the first would cost a third of a
#: set-up.
_POINT = 65
#: Bytes of the base transfers, from the extension's sender and from its receiver, without tags.
BASE_BYTES = (COLUMNS * 2 * _POINT, _POINT)


def padded(count: int) -> int:
    """Round a number of transfers up to whole bytes of columns.

    Returns:
        The next multiple of 8.
    """
    return -(-count // 8) * 8


# ---- base transfers ----------------------------------------------------------------------------------------


def _base_receive(session: Session, choices: Bytes) -> Party[list[bytes]]:
    """Receive the key of each choice, 128 keys of 16 bytes."""
    from graphfed.crypto import pairwise

    keys, points = [], []
    for bit in choices:
        private = pairwise.new_key()
        # The point of the choice has a private key, the other one is sampled without. Their order shows the
        # choice to nobody, because both are uniform.
        pair = [pairwise.encode_point(private.public_key()), pairwise.sample_point()]
        points += pair[::-1] if bit else pair
        keys.append(private)
    yield from session.send("points", *points)
    # The points are sent before A arrives, so they cannot depend on it.
    sender_point = (yield from session.receive("point", _POINT)).tobytes()
    sender_key = _point(session, sender_point)
    return [
        _base_key(session, j, sender_point, points[2 * j + int(bit)], pairwise.agree_secret(key, sender_key))
        for j, (bit, key) in enumerate(zip(choices, keys, strict=True))
    ]


def _base_send(session: Session) -> Party[list[tuple[bytes, bytes]]]:
    """Send 128 base transfers, and return both keys of each, 16 bytes per key."""
    from graphfed.crypto import pairwise

    private = pairwise.new_key()
    sender_point = pairwise.encode_point(private.public_key())
    yield from session.send("point", sender_point)
    arrived = (yield from session.receive("points", COLUMNS * 2 * _POINT)).tobytes()
    keys = []
    for j in range(COLUMNS):
        point_0, point_1 = (arrived[(2 * j + b) * _POINT :][:_POINT] for b in (0, 1))
        # With equal points the receiver would have both keys.
        if point_0 == point_1:
            raise session.failed(f"the other party sent the same point twice in base transfer {j}")
        key_of_0, key_of_1 = (
            _base_key(session, j, sender_point, p, pairwise.agree_secret(private, _point(session, p)))
            for p in (point_0, point_1)
        )
        keys.append((key_of_0, key_of_1))
    return keys


def _base_key(session: Session, number: int, sender: bytes, receiver: bytes, secret: bytes) -> bytes:
    """Hash a Diffie-Hellman secret, with the session, the transfer's number and both points, to a key of 16
    bytes.
    """
    context = b"graphfed base transfer" + session.id + number.to_bytes(2, "little") + sender + receiver
    return hashlib.sha256(context + secret).digest()[:16]


def _point(session: Session, encoded: bytes) -> "ec.EllipticCurvePublicKey":
    """Decode a point that the other party sent; end the session if it is not on the curve."""
    from graphfed.crypto import pairwise

    try:
        return pairwise.decode_point(encoded)
    except ValueError:
        raise session.failed("the other party sent bytes that are not a point of P-256") from None


# ---- extension ---------------------------------------------------------------------------------------------


class OTSender:
    """The sender of extended transfers in one direction of a session.

    Batches of transfers must be processed in the order in which the receiver made them.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._count = 0
        self._secret = np.zeros(COLUMNS, dtype=np.uint8)
        self._streams: list[CipherContext] = []

    def set_up(self) -> Party[None]:
        """Run the base transfers with fresh secrets.

        Returns:
            A protocol without a result.
        """
        bits = np.unpackbits(np.frombuffer(os.urandom(COLUMNS // 8), dtype=np.uint8), bitorder="little")
        seeds = yield from _base_receive(self._session, bits)
        self._streams = [_stream(seed) for seed in seeds]
        # q_j = G(k_j) + s_j u_j: the mask adds the received column where s_j is 1.
        self._mask = (0 - bits)[:, None]  # 255 where the secret's bit is 1
        self._secret = np.packbits(bits, bitorder="little").view(np.uint64)

    def keys(self, columns: Bytes, count: int) -> tuple[Words, Words]:
        """Compute both keys of every transfer of a batch.

        Args:
            columns: The columns that the receiver's `choose` gave, [128, padded(count) / 8] bytes.
            count: Number of transfers of the batch.

        Returns:
            The keys of choice 0 and the keys of choice 1, uint64 [count, 2] each.
        """
        total = padded(count)
        q = _expand(self._streams, total // 8)
        q ^= columns.reshape(COLUMNS, total // 8) & self._mask
        rows = _transpose(q)
        # Padding counts too: both parties number the transfers alike.
        start, self._count = self._count, self._count + total
        return _hash_rows(rows, start)[:count], _hash_rows(rows ^ self._secret, start)[:count]


class OTReceiver:
    """The receiver of extended transfers in one direction of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._count = 0
        self._streams: tuple[list[CipherContext], list[CipherContext]] = ([], [])

    def set_up(self) -> Party[None]:
        """Run the base transfers with fresh secrets.

        Returns:
            A protocol without a result.
        """
        seeds = yield from _base_send(self._session)
        self._streams = [_stream(zero) for zero, _ in seeds], [_stream(one) for _, one in seeds]

    def choose(self, bits: Bytes) -> tuple[Bytes, Words]:
        """Choose one key of every transfer of a batch.

        Args:
            bits: The choices, 0 or 1, uint8 [n].

        Returns:
            The columns to send, uint8 [128, padded(n) / 8], and the keys of the choices, uint64 [n, 2].
        """
        total = padded(len(bits))
        t = _expand(self._streams[0], total // 8)
        columns = _expand(self._streams[1], total // 8)
        # u_j = t_j + G(k_j^1) + r with t_j = G(k_j^0)
        columns ^= t
        columns ^= np.packbits(bits, bitorder="little")
        start, self._count = self._count, self._count + total
        return columns, _hash_rows(_transpose(t), start)[: len(bits)]


def _stream(seed: bytes) -> "CipherContext":
    """Open AES-128 in counter mode under a seed of 16 bytes: the generator G."""
    from graphfed.crypto import pairwise

    return pairwise.open_stream(seed)


def _expand(streams: "list[CipherContext]", size: int) -> Bytes:
    """Take the next `size` bytes of every stream, [128, size]."""
    zeros = bytes(size)
    if not streams:
        raise ProtocolError("the session has no base transfers yet; run set_up first")
    # The streams are read forward only, so no byte of them is used twice.
    return (
        np.frombuffer(b"".join([s.update(zeros) for s in streams]), dtype=np.uint8).reshape(-1, size).copy()
    )


def _transpose(columns: Bytes) -> Words:
    """Transpose a matrix of bits.

    Blocks of 8 x 8 bits are transposed at a time, each in one 64-bit word.

    Args:
        columns: Bits [128, n] in bytes [128, n / 8].

    Returns:
        Rows of 128 bits, uint64 [n, 2].
    """
    size = columns.shape[1]
    # The byte b of 8 columns is one 8 x 8 block: [n / 8, 16] words.
    blocks = columns.reshape(16, 8, size).transpose(2, 0, 1).copy().view(np.uint64)[..., 0]
    for shift, mask in _SWAPS:
        swapped = ((blocks >> shift) ^ blocks) & mask
        blocks ^= swapped
        swapped <<= shift
        blocks ^= swapped
    rows = np.ascontiguousarray(blocks[..., None].view(np.uint8).transpose(0, 2, 1))
    return rows.reshape(8 * size, 16).view(np.uint64)


#: The swaps that transpose an 8 x 8 block of bits in a word: shift and mask for 1, 2 and 4 rows.
_SWAPS = tuple(
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
)


def _hash_rows(rows: Words, start: int) -> Words:
    """Compute H(i, x) of rows [n, 2], with i counted from `start`."""
    # p(p(x) + i) + p(x)
    inner = _permute(rows)
    tweaked = inner.copy()
    tweaked[:, 0] ^= np.arange(start, start + len(rows), dtype=np.uint64)
    return _permute(tweaked) ^ inner


def _permute(rows: Words) -> Words:
    """Apply p, AES under the fixed key, to rows [n, 2]."""
    from graphfed.crypto import pairwise

    return np.frombuffer(pairwise.permute_blocks(rows.data.cast("B")), dtype=np.uint64).reshape(-1, 2)


# ---- 1 of 2^w ----------------------------------------------------------------------------------------------


#: By w: the type of a word that holds 2^w messages of two bits.
WORDS: tuple[type[np.unsignedinteger], ...] = (np.uint8, np.uint8, np.uint8, np.uint16, np.uint32)
#: _MASKS[w][j] selects the two bits of every message whose number has bit j.
_MASKS = tuple(
    [sum(3 << 2 * m for m in range(2**w) if m >> j & 1) for j in range(w)] for w in range(len(WORDS))
)


@dataclass(frozen=True)
class Asked:
    """The receiver's state between `ask` and `take`.

    Attributes:
        choices: The choices, of w bits each, uint8 [n].
        pads: One word for each transfer, [n]: the pads of its 2^w messages. The receiver can compute only
            the pad of its choice correctly.
    """

    choices: Bytes
    pads: NDArray[np.unsignedinteger]


def ask(session: "TwoParty", *choices: tuple[Bytes, int]) -> Party[list[Asked]]:
    """Send the receiver's message of a batch of 1-of-2^w transfers of two-bit messages.

    Args:
        session: A session that has been set up.
        choices: Pairs (choices, w): uint8 [n] choices of w bits each. Each pair may have another w.

    Returns:
        What `take` needs, one for each pair.
    """
    # A choice of w bits makes w transfers, lowest bit first.
    bits = [((chosen[:, None] >> np.arange(w, dtype=np.uint8)) & 1).ravel() for chosen, w in choices]
    columns, keys = session.receiver.choose(np.concatenate(bits))
    yield from session.send("columns", columns)
    asked, start = [], 0
    for chosen, w in choices:
        pads = _parts(keys[start : start + w * len(chosen)], w)
        # The exclusive or of the w pads; only message `chosen` has all its pads in it.
        asked.append(Asked(chosen, np.bitwise_xor.reduce(pads, axis=1)))
        start += w * len(chosen)
    return asked


def offer(session: "TwoParty", *messages: tuple[NDArray[np.unsignedinteger], int]) -> Party[None]:
    """Send the sender's message of a batch of 1-of-2^w transfers of two-bit messages.

    Args:
        session: A session that has been set up.
        messages: Pairs (words, w), as the receiver's choices: [n] words, each with the 2^w messages of a
            transfer. The message of choice c is at bit 2 c.

    Returns:
        A protocol without a result.
    """
    count = sum(w * len(words) for words, w in messages)
    columns = yield from session.receive("columns", padded(count) * COLUMNS // 8)
    zero, one = session.sender.keys(columns, count)
    hidden, start = [], 0
    for words, w in messages:
        # The pad of key 1 where the message's number has bit j, else the pad of key 0.
        keys = slice(start, start + w * len(words))
        pads_0, pads = _parts(zero[keys], w), _parts(one[keys], w)
        # pads_0 + mask (pads_0 + pads_1): a selection without branches.
        pads ^= pads_0
        pads &= np.array(_MASKS[w], dtype=pads.dtype)
        pads ^= pads_0
        hidden.append(words ^ np.bitwise_xor.reduce(pads, axis=1))
        start += w * len(words)
    yield from session.send("messages", *hidden)


def take(session: "TwoParty", asked: list[Asked]) -> Party[list[Bytes]]:
    """Receive the chosen messages.

    Args:
        session: The session that `ask` used.
        asked: What `ask` returned, batch by batch in order.

    Returns:
        The messages, two bits each, uint8 [n] for each pair.
    """
    sizes = [a.pads.nbytes for a in asked]
    arrived = yield from session.receive("messages", sum(sizes))
    taken = []
    for a, part in zip(asked, np.split(arrived, np.cumsum(sizes)[:-1]), strict=True):
        words = np.frombuffer(part.tobytes(), dtype=a.pads.dtype) ^ a.pads
        taken.append((words >> (2 * a.choices).astype(words.dtype)).astype(np.uint8) & 3)
    return taken


def offer_words(session: "TwoParty", words: NDArray[np.uint32]) -> Party[None]:
    """Send one 1-of-2^w transfer of 32-bit words.

    Args:
        session: A session that has been set up.
        words: The messages, uint32 [2^w]; message m is words[m].

    Returns:
        A protocol without a result.
    """
    w = len(words).bit_length() - 1
    columns = yield from session.receive("columns", padded(w) * COLUMNS // 8)
    zero, one = session.sender.keys(columns, w)
    # Each message gets the pad of every bit of its number.
    hidden = words.copy()
    numbers = np.arange(len(words))
    for j in range(w):
        has_bit = (numbers >> j & 1).astype(np.bool_)
        hidden ^= np.where(has_bit, _pads(one[j], len(words)), _pads(zero[j], len(words)))
    yield from session.send("words", hidden)


def choose_word(session: "TwoParty", choice: int, w: int) -> Party[NDArray[np.uint32]]:
    """Receive one word of a 1-of-2^w transfer.

    Args:
        session: A session that has been set up.
        choice: Number of the word, of w bits.
        w: Bits of the choice; the sender has 2^w words.

    Returns:
        The word, uint32 [1].
    """
    columns, keys = session.receiver.choose((choice >> np.arange(w) & 1).astype(np.uint8))
    yield from session.send("columns", columns)
    arrived = np.frombuffer((yield from session.receive("words", 4 << w)).tobytes(), dtype=np.uint32)
    word = arrived[choice : choice + 1].copy()
    for key in keys:
        word ^= _pads(key, 2**w)[choice]
    return word


def _pads(key: Words, count: int) -> NDArray[np.uint32]:
    """Expand one key to a pad of 32 bits for every message."""
    return np.frombuffer(_stream(key.tobytes()).update(bytes(4 * count)), dtype=np.uint32)


def _parts(keys: Words, w: int) -> NDArray[np.unsignedinteger]:
    """Take 2^w pads of two bits from each of the w keys of every transfer: [n, w] words."""
    return keys[:, 0].astype(WORDS[w]).reshape(-1, w)


def bytes_of_ask(*choices: tuple[int, int]) -> int:
    """Count the bytes of the receiver's message.

    Args:
        choices: Pairs (n, w): n choices of w bits.

    Returns:
        Bytes, with the tag.
    """
    return TAG_BYTES + padded(sum(n * w for n, w in choices)) * COLUMNS // 8


def bytes_of_offer(*choices: tuple[int, int]) -> int:
    """Count the bytes of the sender's message.

    Args:
        choices: Pairs (n, w): n choices of w bits.

    Returns:
        Bytes, with the tag.
    """
    return TAG_BYTES + sum(n * np.dtype(WORDS[w]).itemsize for n, w in choices)


def bytes_of_choose_word(w: int) -> int:
    """Count the bytes of the receiver's message for one transfer of 32-bit words.

    Args:
        w: Bits of the choice; a transfer for each.

    Returns:
        Bytes, with the tag.
    """
    return TAG_BYTES + padded(w) * COLUMNS // 8


def bytes_of_offer_words(w: int) -> int:
    """Count the bytes of the sender's message for one transfer of 32-bit words.

    Args:
        w: Bits of the choice; 2^w words are sent.

    Returns:
        Bytes, with the tag.
    """
    return TAG_BYTES + (4 << w)


# ---- a session with transfers ------------------------------------------------------------------------------


class TwoParty(Session):
    """A session with oblivious transfers.

    Args:
        first: Whether this is the first party. The first party is the sender of the transfers.
        both_ways: Also prepare transfers from the second party to the first.

    Raises:
        InputError: The package cryptography (extra `secure`) is not installed.
    """

    def __init__(self, *, first: bool, both_ways: bool = False) -> None:
        from graphfed.crypto import pairwise  # noqa: F401 - refuses where cryptography is missing

        super().__init__(first=first)
        self.both_ways = both_ways
        self.sender, self.receiver = OTSender(self), OTReceiver(self)

    def set_up(self) -> Party["TwoParty"]:
        """Agree on the session's id and run the base transfers.

        Returns:
            This session, which is ready for use.
        """
        yield from self.greet()
        # Both parties run the two directions in the same order, or each would wait for the other.
        if self.first:
            yield from self.sender.set_up()
            if self.both_ways:
                yield from self.receiver.set_up()
        else:
            yield from self.receiver.set_up()
            if self.both_ways:
                yield from self.sender.set_up()
        return self


def bytes_of_set_up(*, both_ways: bool = False) -> tuple[int, int]:
    """Count the bytes of `TwoParty.set_up`.

    Args:
        both_ways: Whether transfers go in both directions.

    Returns:
        Bytes from the first party and bytes from the second party.
    """
    greeting = TAG_BYTES + NONCE_BYTES
    sender, receiver = (TAG_BYTES + size for size in BASE_BYTES)
    if both_ways:
        return greeting + sender + receiver, greeting + sender + receiver
    return greeting + sender, greeting + receiver
