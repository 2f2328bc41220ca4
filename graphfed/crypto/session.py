"""Two parties that compute together: generators that say what to send, and the session that keeps them in
step.

A party's side of a protocol is a generator (`Party`). It yields bytes to send them, and None to wait for the
next message, which it is then sent. It knows neither sockets nor places: whoever runs it carries the messages
(`run_one`, `run_both`). Messages of one direction arrive in order.

Every message begins with a tag of 8 bytes: a hash of the session's id, the direction, the number of the
message and the name of the step. What is repeated, left out, out of order or from another session has another
tag; what follows must have exactly the length that the step has, which follows from public numbers alone. So
a party never waits for bytes that are not to come, and never takes one thing for another. The tag is no
signature: that nobody else writes into the connection is the transport's part (TLS, or the sealed channel
between sites). After an error a session is broken, and refuses everything.

The parties follow the protocol (semi-honest): each may keep all it sees and work with it, and neither sends
anything but what the protocol says. A session's secrets come from the operating system's entropy, are never
saved, and are never used by two sessions."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.errors import ProtocolError

__all__ = [
    "NONCE_BYTES",
    "TAG_BYTES",
    "Declared",
    "Ended",
    "Party",
    "Session",
    "Simulated",
    "bundled",
    "run_all",
    "run_both",
    "run_one",
]

Result = TypeVar("Result")
Other = TypeVar("Other")
Item = TypeVar("Item", bound=np.generic)
Peer = TypeVar("Peer")


@dataclass(frozen=True)
class Declared:
    """What a simulated protocol yields beside its messages: how many bytes more (or fewer) the real one would
    send and receive."""

    sent: int
    received: int


#: One party's side: yields messages to send, or None for the next one that arrives; returns its result.
Party = Generator[bytes | Declared | None, bytes, Result]

TAG_BYTES, NONCE_BYTES = 8, 16
_LABEL = b"graphfed two-party session 1"


class Session:
    """One party's end of everything that it computes with one other party.

    first: which of the two it is; the other one has the opposite. `sent` and `received` count bytes, tags
    included."""

    def __init__(self, *, first: bool) -> None:
        self.first = first
        self.id = b""
        self.sent = self.received = 0
        self.broken = ""
        self._numbers = [0, 0]  # messages so far, of the first party and of the second

    def greet(self) -> Party[None]:
        """Agree on the session's id: a hash of a nonce of each."""
        mine = os.urandom(NONCE_BYTES)
        yield from self.send("nonce", mine)
        theirs = (yield from self.receive("nonce", NONCE_BYTES)).tobytes()
        if mine == theirs:
            raise self.failed("the other party's nonce is this party's own: a message was sent back")
        nonces = mine + theirs if self.first else theirs + mine
        self.id = hashlib.sha256(_LABEL + nonces).digest()

    def send(self, step: str, *parts: bytes | NDArray[np.generic]) -> Party[None]:
        """Send the bytes of `parts`, one after the other, as one message."""
        self._usable()
        message = b"".join(
            [
                self._tag(self.first, step),
                *(np.ascontiguousarray(p).tobytes() if isinstance(p, np.ndarray) else p for p in parts),
            ]
        )
        self.sent += len(message)
        yield message

    def receive(self, step: str, size: int) -> Party[NDArray[np.uint8]]:
        """The next message, which must be that of `step` and have `size` bytes beside its tag."""
        self._usable()
        message = yield None
        expected = self._tag(not self.first, step)
        if message[:TAG_BYTES] != expected:
            number = self._numbers[self.first] - 1
            raise self.failed(
                f"expected message {number} of this session, {step!r}, and got another one: it was repeated, "
                "left out, put out of order, or is of another session"
            )
        if len(message) != TAG_BYTES + size:
            told = len(message) - TAG_BYTES
            raise self.failed(f"message {step!r} has {told} bytes where {size} are expected")
        self.received += len(message)
        return np.frombuffer(message, dtype=np.uint8, offset=TAG_BYTES)

    def swap(self, step: str, mine: NDArray[Item]) -> Party[NDArray[Item]]:
        """Both send an array of this dtype and shape, and get the other's."""
        yield from self.send(step, mine)
        theirs = yield from self.receive(step, mine.nbytes)
        return np.frombuffer(theirs.tobytes(), dtype=mine.dtype).reshape(mine.shape)

    def failed(self, why: str) -> ProtocolError:
        """The error to raise; from now on the session refuses everything."""
        self.broken = why
        return ProtocolError(why)

    def _usable(self) -> None:
        if self.broken:
            raise ProtocolError(f"this session is over ({self.broken}); open another one")

    def _tag(self, first: bool, step: str) -> bytes:
        number = self._numbers[not first]
        self._numbers[not first] += 1
        told = self.id + bytes([first]) + number.to_bytes(8, "little") + step.encode()
        return hashlib.sha256(_LABEL + told).digest()[:TAG_BYTES]


@dataclass(frozen=True)
class Simulated:
    """In the place of a session: the two parties show each other what they have, and declare what the real
    protocol would send. The same outcomes and the same bytes, and nothing is hidden.

    first: which of the two it is. Of a shared outcome the first party has all, and the second 0."""

    first: bool

    def both(self, mine: NDArray[Item], cost: tuple[int, int]) -> Party[tuple[NDArray[Item], NDArray[Item]]]:
        """What the first party has and what the second has, arrays of one dtype and shape. cost: bytes of the
        real protocol from the first and from the second."""
        yield mine.tobytes()
        message = yield None
        if len(message) != mine.nbytes:
            raise ProtocolError(
                f"a simulated party shows {len(message)} bytes where {mine.nbytes} are expected"
            )
        theirs = np.frombuffer(message, dtype=mine.dtype).reshape(mine.shape)
        sent, received = cost if self.first else cost[::-1]
        yield Declared(sent - mine.nbytes, received - len(message))
        return (mine, theirs) if self.first else (theirs, mine)

    def swap(self, step: str, mine: NDArray[Item]) -> Party[NDArray[Item]]:
        """`Session.swap`."""
        pair = yield from self.both(mine, (TAG_BYTES + mine.nbytes,) * 2)
        return pair[1 if self.first else 0]


@dataclass(frozen=True)
class Ended(Generic[Result]):
    """What a party ended with, and the bytes that it sent and received (or declared)."""

    result: Result
    sent: int
    received: int


class _Course(Generic[Result]):
    """A party on its way: whether it waits for a message, and what it has sent and received."""

    def __init__(self, party: Party[Result]) -> None:
        self._party = party
        self.waits, self.sent, self.received = False, 0, 0
        self.ended: Ended[Result] | None = None
        self.arrived: deque[bytes] = deque()

    def go_on(self, message: bytes | None) -> bytes | None:
        """Hand it the message that it waits for, or go on where it waits for none; gives a message to
        send."""
        try:
            out = next(self._party) if message is None else self._party.send(message)
        except StopIteration as stop:
            self.ended = Ended(stop.value, self.sent, self.received)
            return None
        self.waits = out is None
        if isinstance(out, Declared):
            self.sent, self.received = self.sent + out.sent, self.received + out.received
            return None
        self.sent += len(out or b"")
        return out

    def receive(self, message: bytes) -> bytes | None:
        self.received += len(message)
        return self.go_on(message)


def run_one(
    party: Party[Result], send: Callable[[bytes], None], receive: Callable[[], bytes]
) -> Ended[Result]:
    """Run a party whose other one is elsewhere: `send` must not wait for the other to receive."""
    course = _Course(party)
    while course.ended is None:
        out = course.receive(receive()) if course.waits else course.go_on(None)
        if out is not None:
            send(out)
    return course.ended


def run_both(first: Party[Result], second: Party[Other]) -> tuple[Ended[Result], Ended[Other]]:
    """Run both parties here, handing messages over. ProtocolError where both wait for each other."""
    one, other = _Course(first), _Course(second)
    pairs: list[tuple[_Course[Any], _Course[Any]]] = [(one, other), (other, one)]
    while one.ended is None or other.ended is None:
        moved = False
        for course, to in pairs:
            while course.ended is None and (course.arrived or not course.waits):
                moved = True
                out = course.receive(course.arrived.popleft()) if course.waits else course.go_on(None)
                if out is not None:
                    to.arrived.append(out)
        if not moved:
            raise ProtocolError("both parties wait for the other; they do not run the same protocol")
    return one.ended, other.ended


def run_all(
    parties: Mapping[Peer, Party[Any]],
    send: Callable[[Peer, bytes], None],
    receive: Callable[[Peer], bytes],
) -> dict[Peer, Any]:
    """Run parties whose others are elsewhere, all at the same time: what each ended with. It takes as many
    steps as the longest of them.

    A party sends a message, then waits for one, in turn, as `bundled` does: so everybody sends before
    anybody waits, and three can not wait in a circle."""
    courses = {peer: _Course(party) for peer, party in parties.items()}
    while running := {peer: course for peer, course in courses.items() if course.ended is None}:
        for peer, course in running.items():
            while course.ended is None and not course.waits:
                if (out := course.go_on(None)) is not None:
                    send(peer, out)
        for peer, course in running.items():
            if course.ended is None and (out := course.receive(receive(peer))) is not None:
                send(peer, out)
    return {peer: course.ended.result for peer, course in courses.items() if course.ended is not None}


def bundled(parties: Sequence[Party[Result]]) -> Party[list[Ended[Result]]]:
    """Many parties, whose others are bundled in the same order at one other place, as one: in every step each
    of the two places sends the other one message with all that its parties have to say. So all of them take
    as many steps as the longest one alone.

    A message is the number of messages of each party ([n] uint32), their lengths, and they themselves.
    ProtocolError for one that is not whole, or has a message for a party that has ended."""
    courses = [_Course(party) for party in parties]
    while True:
        leaving = [_until_it_waits(course) for course in courses]
        ended = [course.ended for course in courses if course.ended is not None]
        if len(ended) == len(courses) and not any(leaving):
            return ended
        yield _bundle(leaving)
        arrived = _unbundled((yield None), len(courses))
        if not any(leaving) and not any(arrived):
            raise ProtocolError("both parties wait for the other; they do not run the same protocol")
        for course, messages in zip(courses, arrived, strict=True):
            course.arrived.extend(messages)


def _until_it_waits(course: "_Course[Any]") -> list[bytes]:
    """Go on with what has arrived, until there is no more of it: the messages to send."""
    leaving = []
    while course.ended is None and (course.arrived or not course.waits):
        out = course.receive(course.arrived.popleft()) if course.waits else course.go_on(None)
        if out is not None:
            leaving.append(out)
    if course.arrived:
        raise ProtocolError("a bundle has a message for a party that has ended")
    return leaving


def _bundle(messages: Sequence[Sequence[bytes]]) -> bytes:
    counts = [len(those) for those in messages]
    lengths = [len(message) for those in messages for message in those]
    told = np.array([*counts, *lengths], dtype="<u4").tobytes()
    return b"".join([told, *(message for those in messages for message in those)])


def _unbundled(bundle: bytes, parties: int) -> list[list[bytes]]:
    """The messages for each party."""
    wrong = ProtocolError(f"a bundle of {len(bundle)} bytes is not whole, or not for {parties} parties")
    if len(bundle) < 4 * parties:
        raise wrong
    counts = np.frombuffer(bundle, dtype="<u4", count=parties).astype(np.int64)
    start = 4 * (parties + int(counts.sum()))
    if start > len(bundle):
        raise wrong
    lengths = np.frombuffer(bundle, dtype="<u4", count=int(counts.sum()), offset=4 * parties)
    ends = start + np.cumsum(lengths.astype(np.int64))
    if (int(ends[-1]) if len(ends) else start) != len(bundle):
        raise wrong
    cut = iter(zip([start, *ends[:-1].tolist()], ends.tolist(), strict=True) if len(ends) else ())
    return [[bundle[a:b] for a, b in (next(cut) for _ in range(count))] for count in counts.tolist()]
