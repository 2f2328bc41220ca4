"""Oblivious transfer: a sender has several messages, a receiver gets the one it chooses; the sender does not
learn which, and the receiver nothing of the others.

Base transfers (`base_send`, `base_receive`), 128 for a direction of a session, on P-256. The receiver sends
two points for each: one whose secret key it has, in the place of its choice, and one that it draws as a point
and has no secret key of. Both are uniform points, so the sender cannot tell them apart. The sender sends one
point A = aG for all, and both ends hash the Diffie-Hellman secret with A: the sender with both points, the
receiver with the one whose key it has; for the other one it would have to solve computational Diffie-Hellman.
The curve has no small subgroups, and each point that arrives is checked to be on it.

Extension (`OTSender`, `OTReceiver`): IKNP (Ishai, Kilian, Nissim and Petrank, CRYPTO 2003) with 128 columns.
The receiver of the extension was the sender of the base transfers: it has both seeds of each column, the
sender one of them, by the bits of its secret s. For choices r the receiver expands both seeds to columns and
sends u_j = G(k_j^0) + G(k_j^1) + r (exclusive or), 16 bytes for a transfer. Row i of what the sender makes
of it is q_i = t_i + r_i s. The keys of transfer i are H(i, q_i) and H(i, q_i + s), of which the receiver can
compute the one of its choice, H(i, t_i). u_j hides r behind a column of G(k_j^1) or G(k_j^0) that the sender
does not have. H(i, x) = p(p(x) + i) + p(x) with p = AES under a fixed key, a tweakable correlation-robust
hash (TMMO: Guo, Katz, Wang and Yu, IEEE S&P 2020); G is AES-128 in counter mode. Counters i and the streams
of G go on from batch to batch and are never used twice.

1-of-2^w transfers from w transfers (Naor and Pinkas, STOC 1999): message m is hidden behind the exclusive or
of the parts number m of the w keys that m's bits name. Each message has a part of its own, so that what the
receiver knows of one says nothing of another. Messages of two bits, many transfers at a time (`ask`, `offer`,
`take`), take their parts from the keys themselves; words of 32 bits, one transfer (`choose_word`,
`offer_words`), from AES-128 in counter mode under each key.

Secure against parties that follow the protocol (semi-honest); a receiver that sends ill-formed columns could
learn bits of s. Not constant in time: who can measure the other's machine learns more than the messages
say."""

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

__all__ = [
    "BASE_BYTES",
    "COLUMNS",
    "WORDS",
    "Asked",
    "OTReceiver",
    "OTSender",
    "TwoParty",
    "Words",
    "ask",
    "bytes_of_ask",
    "bytes_of_choose_word",
    "bytes_of_offer",
    "bytes_of_offer_words",
    "bytes_of_set_up",
    "choose_word",
    "offer",
    "offer_words",
    "padded",
    "take",
]

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint64]

#: Base transfers of a direction: computational security in bits, and columns of the extension.
COLUMNS = 128
#: Bytes of a point, both coordinates: to work out the second one would cost a third of a set-up.
_POINT = 65
#: Bytes of the base transfers: from the extension's sender, and from its receiver.
BASE_BYTES = (COLUMNS * 2 * _POINT, _POINT)


def padded(count: int) -> int:
    """Transfers that a batch of `count` takes: whole bytes of columns."""
    return -(-count // 8) * 8


# ---- base transfers ----------------------------------------------------------------------------------------


def _base_receive(session: Session, choices: Bytes) -> Party[list[bytes]]:
    """The key of each choice [128], 16 bytes each."""
    from graphfed.crypto import ciphers

    keys, points = [], []
    for bit in choices:
        mine = ciphers.new_key()
        pair = [ciphers.encoded(mine.public_key()), ciphers.drawn_point()]
        points += pair[::-1] if bit else pair
        keys.append(mine)
    yield from session.send("points", *points)
    told = (yield from session.receive("point", _POINT)).tobytes()
    theirs = _point(session, told)
    return [
        _base_key(session, j, told, points[2 * j + int(bit)], ciphers.agreed(key, theirs))
        for j, (bit, key) in enumerate(zip(choices, keys, strict=True))
    ]


def _base_send(session: Session) -> Party[list[tuple[bytes, bytes]]]:
    """Both keys of each of 128 transfers."""
    from graphfed.crypto import ciphers

    mine = ciphers.new_key()
    told = ciphers.encoded(mine.public_key())
    yield from session.send("point", told)
    arrived = (yield from session.receive("points", COLUMNS * 2 * _POINT)).tobytes()
    keys = []
    for j in range(COLUMNS):
        one, other = (arrived[(2 * j + b) * _POINT :][:_POINT] for b in (0, 1))
        if one == other:
            raise session.failed(f"the two points of the other party's base transfer {j} are the same")
        zero, two = (
            _base_key(session, j, told, p, ciphers.agreed(mine, _point(session, p))) for p in (one, other)
        )
        keys.append((zero, two))
    return keys


def _base_key(session: Session, number: int, sender: bytes, receiver: bytes, secret: bytes) -> bytes:
    told = b"graphfed base transfer" + session.id + number.to_bytes(2, "little") + sender + receiver
    return hashlib.sha256(told + secret).digest()[:16]


def _point(session: Session, encoded: bytes) -> "ec.EllipticCurvePublicKey":
    from graphfed.crypto import ciphers

    try:
        return ciphers.point(encoded)
    except ValueError:
        raise session.failed("the other party sent what is no point of P-256") from None


# ---- extension ---------------------------------------------------------------------------------------------


class OTSender:
    """Who has the messages. One for a direction of a session; batches are taken in the order of the
    receiver's."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._count = 0
        self._secret = np.zeros(COLUMNS, dtype=np.uint8)
        self._streams: list[CipherContext] = []

    def set_up(self) -> Party[None]:
        """The base transfers, with fresh secrets."""
        bits = np.unpackbits(np.frombuffer(os.urandom(COLUMNS // 8), dtype=np.uint8), bitorder="little")
        seeds = yield from _base_receive(self._session, bits)
        self._streams = [_stream(seed) for seed in seeds]
        self._mask = (0 - bits)[:, None]  # 255 where the secret's bit is 1
        self._secret = np.packbits(bits, bitorder="little").view(np.uint64)

    def keys(self, columns: Bytes, count: int) -> tuple[Words, Words]:
        """The keys [count, 2] of choice 0 and of choice 1, from the columns of the receiver's `choose`."""
        total = padded(count)
        q = _expand(self._streams, total // 8)
        q ^= columns.reshape(COLUMNS, total // 8) & self._mask
        rows = _transposed(q)
        start, self._count = self._count, self._count + total
        return _hashed(rows, start)[:count], _hashed(rows ^ self._secret, start)[:count]


class OTReceiver:
    """Who chooses."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._count = 0
        self._streams: tuple[list[CipherContext], list[CipherContext]] = ([], [])

    def set_up(self) -> Party[None]:
        """The base transfers, with fresh secrets."""
        seeds = yield from _base_send(self._session)
        self._streams = [_stream(zero) for zero, _ in seeds], [_stream(one) for _, one in seeds]

    def choose(self, bits: Bytes) -> tuple[Bytes, Words]:
        """bits [n] of 0 and 1: the columns to send, [128, padded(n) / 8], and the keys [n, 2] of the
        choices."""
        total = padded(len(bits))
        t = _expand(self._streams[0], total // 8)
        columns = _expand(self._streams[1], total // 8)
        columns ^= t
        columns ^= np.packbits(bits, bitorder="little")
        start, self._count = self._count, self._count + total
        return columns, _hashed(_transposed(t), start)[: len(bits)]


def _stream(seed: bytes) -> "CipherContext":
    from graphfed.crypto import ciphers

    return ciphers.stream(seed)


def _expand(streams: "list[CipherContext]", size: int) -> Bytes:
    """The next `size` bytes of every stream, [128, size]."""
    zeros = bytes(size)
    if not streams:
        raise ProtocolError("the session has no base transfers yet; set it up first")
    return (
        np.frombuffer(b"".join([s.update(zeros) for s in streams]), dtype=np.uint8).reshape(-1, size).copy()
    )


def _transposed(columns: Bytes) -> Words:
    """Bits [128, n] in bytes [128, n / 8] -> rows of 128 bits, [n, 2] words; 8 x 8 bits at a time."""
    size = columns.shape[1]
    blocks = columns.reshape(16, 8, size).transpose(2, 0, 1).copy().view(np.uint64)[..., 0]
    for shift, mask in _SWAPS:
        swapped = ((blocks >> shift) ^ blocks) & mask
        blocks ^= swapped
        swapped <<= shift
        blocks ^= swapped
    rows = np.ascontiguousarray(blocks[..., None].view(np.uint8).transpose(0, 2, 1))
    return rows.reshape(8 * size, 16).view(np.uint64)


#: Halves of an 8 x 8 block of bits that change places: of 1, 2 and 4 rows.
_SWAPS = tuple(
    (np.uint64(shift), np.uint64(mask))
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0))
)


def _hashed(rows: Words, start: int) -> Words:
    """H(i, x) of rows [n, 2], i from `start` on."""
    inner = _permuted(rows)
    tweaked = inner.copy()
    tweaked[:, 0] ^= np.arange(start, start + len(rows), dtype=np.uint64)
    return _permuted(tweaked) ^ inner


def _permuted(rows: Words) -> Words:
    from graphfed.crypto import ciphers

    return np.frombuffer(ciphers.permuted(rows.data.cast("B")), dtype=np.uint64).reshape(-1, 2)


# ---- 1 of 2^w ----------------------------------------------------------------------------------------------


#: What messages of two bits take, all 2^w of them in one word: by w.
WORDS: tuple[type[np.unsignedinteger], ...] = (np.uint8, np.uint8, np.uint8, np.uint16, np.uint32)
#: masks[w][j]: the two bits of every message whose number has bit j.
_MASKS = tuple(
    [sum(3 << 2 * m for m in range(2**w) if m >> j & 1) for j in range(w)] for w in range(len(WORDS))
)


@dataclass(frozen=True)
class Asked:
    """What a receiver waits for: choices [n], of w bits each, and the word of 2^w pads for each [n]."""

    choices: Bytes
    pads: NDArray[np.unsignedinteger]


def ask(session: "TwoParty", *choices: tuple[Bytes, int]) -> Party[list[Asked]]:
    """The receiver's first message for 1-of-2^w transfers: (choices [n] uint8, w), each with a w of its
    own."""
    bits = [((chosen[:, None] >> np.arange(w, dtype=np.uint8)) & 1).ravel() for chosen, w in choices]
    columns, keys = session.receiver.choose(np.concatenate(bits))
    yield from session.send("columns", columns)
    asked, start = [], 0
    for chosen, w in choices:
        mine = _parts(keys[start : start + w * len(chosen)], w)
        asked.append(Asked(chosen, np.bitwise_xor.reduce(mine, axis=1)))
        start += w * len(chosen)
    return asked


def offer(session: "TwoParty", *messages: tuple[NDArray[np.unsignedinteger], int]) -> Party[None]:
    """The sender's side: (words [n], w), each word the 2^w messages of two bits, that of choice c at bit
    2 c."""
    count = sum(w * len(words) for words, w in messages)
    columns = yield from session.receive("columns", padded(count) * COLUMNS // 8)
    zero, one = session.sender.keys(columns, count)
    hidden, start = [], 0
    for words, w in messages:
        keys = slice(start, start + w * len(words))
        none, both = _parts(zero[keys], w), _parts(one[keys], w)
        both ^= none
        both &= np.array(_MASKS[w], dtype=both.dtype)
        both ^= none
        hidden.append(words ^ np.bitwise_xor.reduce(both, axis=1))
        start += w * len(words)
    yield from session.send("messages", *hidden)


def take(session: "TwoParty", asked: list[Asked]) -> Party[list[Bytes]]:
    """The receiver's messages: two bits for every choice, [n] uint8 each."""
    sizes = [a.pads.nbytes for a in asked]
    arrived = yield from session.receive("messages", sum(sizes))
    taken = []
    for a, part in zip(asked, np.split(arrived, np.cumsum(sizes)[:-1]), strict=True):
        words = np.frombuffer(part.tobytes(), dtype=a.pads.dtype) ^ a.pads
        taken.append((words >> (2 * a.choices).astype(words.dtype)).astype(np.uint8) & 3)
    return taken


def offer_words(session: "TwoParty", words: NDArray[np.uint32]) -> Party[None]:
    """The sender's side of one 1-of-2^w transfer of 32 bits: words [2^w]."""
    w = len(words).bit_length() - 1
    columns = yield from session.receive("columns", padded(w) * COLUMNS // 8)
    zero, one = session.sender.keys(columns, w)
    hidden = words.copy()
    numbers = np.arange(len(words))
    for j in range(w):
        named = (numbers >> j & 1).astype(np.bool_)
        hidden ^= np.where(named, _pads(one[j], len(words)), _pads(zero[j], len(words)))
    yield from session.send("words", hidden)


def choose_word(session: "TwoParty", choice: int, w: int) -> Party[NDArray[np.uint32]]:
    """The receiver's side: the word number `choice`, [1]."""
    columns, keys = session.receiver.choose((choice >> np.arange(w) & 1).astype(np.uint8))
    yield from session.send("columns", columns)
    arrived = np.frombuffer((yield from session.receive("words", 4 << w)).tobytes(), dtype=np.uint32)
    word = arrived[choice : choice + 1].copy()
    for key in keys:
        word ^= _pads(key, 2**w)[choice]
    return word


def _pads(key: Words, count: int) -> NDArray[np.uint32]:
    """Of one key, a pad of 32 bits for every message."""
    return np.frombuffer(_stream(key.tobytes()).update(bytes(4 * count)), dtype=np.uint32)


def _parts(keys: Words, w: int) -> NDArray[np.unsignedinteger]:
    """Of the w keys of each transfer, 2^w parts of two bits: [n, w] words."""
    return keys[:, 0].astype(WORDS[w]).reshape(-1, w)


def bytes_of_ask(*choices: tuple[int, int]) -> int:
    """Bytes of `ask` for (n, w) choices, with the tag."""
    return TAG_BYTES + padded(sum(n * w for n, w in choices)) * COLUMNS // 8


def bytes_of_offer(*choices: tuple[int, int]) -> int:
    """Bytes of the answer."""
    return TAG_BYTES + sum(n * np.dtype(WORDS[w]).itemsize for n, w in choices)


def bytes_of_choose_word(w: int) -> int:
    """Bytes of the receiver's message for a 1-of-2^w transfer of 32 bits, with the tag."""
    return TAG_BYTES + padded(w) * COLUMNS // 8


def bytes_of_offer_words(w: int) -> int:
    """Bytes of the answer."""
    return TAG_BYTES + (4 << w)


# ---- a session with transfers ------------------------------------------------------------------------------


class TwoParty(Session):
    """A session whose first party sends and whose second receives; `both_ways`: the other way round as
    well. InputError where the extra `secure` is not installed."""

    def __init__(self, *, first: bool, both_ways: bool = False) -> None:
        from graphfed.crypto import ciphers  # noqa: F401 - refuses where cryptography is missing

        super().__init__(first=first)
        self.both_ways = both_ways
        self.sender, self.receiver = OTSender(self), OTReceiver(self)

    def set_up(self) -> Party["TwoParty"]:
        """Greet, and take the base transfers with fresh secrets. Returns this session, ready."""
        yield from self.greet()
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
    """Bytes of a session's set-up, from the first party and from the second."""
    greeting = TAG_BYTES + NONCE_BYTES
    sender, receiver = (TAG_BYTES + size for size in BASE_BYTES)
    if both_ways:
        return greeting + sender + receiver, greeting + sender + receiver
    return greeting + sender, greeting + receiver
