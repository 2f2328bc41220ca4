"""Two-party protocols as generators, and the session that orders and checks their messages.

Each party of a protocol is a generator (`Party`). It yields bytes to send a message, and yields None to
receive the next message. It contains no sockets and no addresses: the caller transports the messages
(`run_one`, `run_both`, `run_all`). Messages of one direction must arrive in order.

Every message begins with a tag of 8 bytes. The tag is a hash of the session's id, the direction, the number
of the message and the name of the step. A message that is repeated, missing, out of order or from another
session has a wrong tag. The content must have exactly the length of the step, which follows from public
numbers. So a party never waits for bytes that the protocol does not send, and never takes one message for
another. The tag is not a signature: the transport (TLS, or the sealed channel between sites) must prevent
others from writing into the connection. After an error the session refuses everything.

Corruption model: both parties follow the protocol (semi-honest). Each party may keep and analyse everything
that it receives, and sends only what the protocol says. The secrets of a session come from the operating
system's entropy, are never saved, and are never used in two sessions. Security parameters and leakage are
stated by the protocols that use a session (`ot`, `compare`, `ring`, `maximum`, `accept`).
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from graphfed.crypto.errors import ProtocolError

Result = TypeVar("Result")
Other = TypeVar("Other")
Item = TypeVar("Item", bound=np.generic)
Peer = TypeVar("Peer")


@dataclass(frozen=True)
class Declared:
    """What a simulated protocol yields next to its messages: a correction of the byte counts.

    Attributes:
        sent: Bytes that the real protocol sends, minus the bytes that the simulation sends.
        received: The same for received bytes.
    """

    sent: int
    received: int


#: One party of a protocol: yields a message to send it, or None to receive the next one; returns its result.
Party = Generator[bytes | Declared | None, bytes, Result]

TAG_BYTES, NONCE_BYTES = 8, 16
_LABEL = b"graphfed two-party session 1"


class Session:
    """One party's state of everything that it computes with one other party.

    Attributes:
        first: Whether this is the first of the two parties.
        id: The session's id, empty before `greet`.
        sent: Bytes sent so far, tags included.
        received: Bytes received so far, tags included.
        broken: Why the session is over, or "".
    """

    def __init__(self, *, first: bool) -> None:
        self.first = first
        # The nonces are sent before there is an id, so their tags have none.
        self.id = b""
        self.sent = self.received = 0
        self.broken = ""
        self._numbers = [0, 0]  # messages so far, of the first party and of the second

    def greet(self) -> Party[None]:
        """Agree on the session's id, which is a hash of one nonce of each party.

        Returns:
            A protocol without a result.

        Raises:
            ProtocolError: The other party sent this party's own nonce back.
        """
        local_nonce = os.urandom(NONCE_BYTES)
        yield from self.send("nonce", local_nonce)
        remote_nonce = (yield from self.receive("nonce", NONCE_BYTES)).tobytes()
        # A connection that returns messages would let a party run the protocol with itself.
        if local_nonce == remote_nonce:
            raise self.failed(
                "the other party sent this party's own nonce back: the connection returns messages "
                "to their sender"
            )
        # Both nonces enter, so neither party alone can make a session's id repeat.
        nonces = local_nonce + remote_nonce if self.first else remote_nonce + local_nonce
        self.id = hashlib.sha256(_LABEL + nonces).digest()

    def send(self, step: str, *parts: bytes | NDArray[np.generic]) -> Party[None]:
        """Send one message.

        Args:
            step: Name of the step, the same at both parties.
            parts: Bytes and arrays, which are concatenated.

        Returns:
            A protocol without a result.
        """
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
        """Receive the message of one step.

        Args:
            step: Name of the step, the same at both parties.
            size: Bytes of the message without its tag.

        Returns:
            The content, uint8 [size].

        Raises:
            ProtocolError: The message belongs to another step or session, or has another size.
        """
        self._usable()
        message = yield None
        expected = self._tag(not self.first, step)
        if message[:TAG_BYTES] != expected:
            number = self._numbers[self.first] - 1
            raise self.failed(
                f"expected message {number} of this session, {step!r}, and received another message: a "
                "message was repeated, lost or reordered, or it belongs to another session"
            )
        if len(message) != TAG_BYTES + size:
            found = len(message) - TAG_BYTES
            raise self.failed(f"message {step!r} has {found} bytes where {size} are expected")
        self.received += len(message)
        return np.frombuffer(message, dtype=np.uint8, offset=TAG_BYTES)

    def swap(self, step: str, local: NDArray[Item]) -> Party[NDArray[Item]]:
        """Send an array and receive the other party's array.

        Args:
            step: Name of the step, the same at both parties.
            local: This party's array; the other party's must have the same type and shape.

        Returns:
            The other party's array, of the same type and shape.
        """
        # Both parties send first, so neither waits for the other.
        yield from self.send(step, local)
        remote = yield from self.receive(step, local.nbytes)
        return np.frombuffer(remote.tobytes(), dtype=local.dtype).reshape(local.shape)

    def failed(self, why: str) -> ProtocolError:
        """End the session and build the error to raise.

        Args:
            why: What went wrong, for this error and for later ones.

        Returns:
            The error. From now on the session refuses everything.
        """
        self.broken = why
        return ProtocolError(why)

    def _usable(self) -> None:
        """Refuse to continue a session that has failed."""
        if self.broken:
            raise ProtocolError(f"this session is over ({self.broken}); open a new one")

    def _tag(self, first: bool, step: str) -> bytes:
        """Compute the tag of the next message of one direction, and count the message."""
        number = self._numbers[not first]
        self._numbers[not first] += 1
        content = self.id + bytes([first]) + number.to_bytes(8, "little") + step.encode()
        return hashlib.sha256(_LABEL + content).digest()[:TAG_BYTES]


@dataclass(frozen=True)
class Simulated:
    """A stand-in for a session in which the two parties show each other their inputs.

    The results are the same as with a session. The byte counts of the real protocol are declared. Nothing
    is hidden. Of a shared result, the first party has the value and the second party has 0.

    Attributes:
        first: Whether this is the first of the two parties.
    """

    first: bool

    def both(self, local: NDArray[Item], cost: tuple[int, int]) -> Party[tuple[NDArray[Item], NDArray[Item]]]:
        """Exchange the inputs of both parties.

        Args:
            local: This party's inputs, of the same type and shape at both parties.
            cost: Bytes that the real protocol sends from the first party and from the second party.

        Returns:
            The first party's array and the second party's array, of one type and shape.

        Raises:
            ProtocolError: The other party shows another number of bytes.
        """
        yield local.tobytes()
        message = yield None
        if len(message) != local.nbytes:
            raise ProtocolError(
                f"the other simulated party sent {len(message)} bytes where {local.nbytes} are expected"
            )
        remote = np.frombuffer(message, dtype=local.dtype).reshape(local.shape)
        sent, received = cost if self.first else cost[::-1]
        # What the simulation itself sent is taken off, so the sums are those of the real protocol.
        yield Declared(sent - local.nbytes, received - len(message))
        return (local, remote) if self.first else (remote, local)

    def swap(self, step: str, local: NDArray[Item]) -> Party[NDArray[Item]]:
        """Exchange arrays with the byte counts of `Session.swap`.

        Args:
            step: Name of the step (not used).

        Returns:
            The other party's array.
        """
        pair = yield from self.both(local, (TAG_BYTES + local.nbytes,) * 2)
        return pair[1 if self.first else 0]


@dataclass(frozen=True)
class Ended(Generic[Result]):
    """The result of a party, and its byte counts.

    Attributes:
        result: What the generator returned.
        sent: Bytes that the party sent or declared.
        received: Bytes that the party received or declared.
    """

    result: Result
    sent: int
    received: int


class _RunningParty(Generic[Result]):
    """A party that is being run: whether it waits for a message, its byte counts, and its result once it has
    one.
    """

    def __init__(self, party: Party[Result]) -> None:
        self._party = party
        self.waits, self.sent, self.received = False, 0, 0
        self.ended: Ended[Result] | None = None
        self.arrived: deque[bytes] = deque()

    def resume(self, message: bytes | None) -> bytes | None:
        """Continue the generator, with the message that it waits for or with None, and return a message to
        send.
        """
        try:
            yielded = next(self._party) if message is None else self._party.send(message)
        except StopIteration as stop:
            self.ended = Ended(stop.value, self.sent, self.received)
            return None
        # None asks for a message; bytes are a message; a declaration is neither.
        self.waits = yielded is None
        if isinstance(yielded, Declared):
            self.sent, self.received = self.sent + yielded.sent, self.received + yielded.received
            return None
        self.sent += len(yielded or b"")
        return yielded

    def receive(self, message: bytes) -> bytes | None:
        self.received += len(message)
        return self.resume(message)


def run_one(
    party: Party[Result], send: Callable[[bytes], None], receive: Callable[[], bytes]
) -> Ended[Result]:
    """Run one party to its end over a connection.

    Args:
        party: The generator of this party's side.
        send: Sends one message to the other party.
        receive: Waits for the next message of the other party.

    Returns:
        The result and the byte counts.
    """
    course = _RunningParty(party)
    while course.ended is None:
        out = course.receive(receive()) if course.waits else course.resume(None)
        if out is not None:
            send(out)
    return course.ended


def run_both(first: Party[Result], second: Party[Other]) -> tuple[Ended[Result], Ended[Other]]:
    """Run both parties in this process.

    Args:
        first: The generator of the first party.
        second: The generator of the second party.

    Returns:
        The results of the first party and of the second party.

    Raises:
        ProtocolError: Each party waits for a message of the other one.
    """
    one, other = _RunningParty(first), _RunningParty(second)
    pairs: list[tuple[_RunningParty[Any], _RunningParty[Any]]] = [(one, other), (other, one)]
    while one.ended is None or other.ended is None:
        # Each party runs as far as it can; if neither moves, both wait.
        moved = False
        for course, to in pairs:
            while course.ended is None and (course.arrived or not course.waits):
                moved = True
                out = course.receive(course.arrived.popleft()) if course.waits else course.resume(None)
                if out is not None:
                    to.arrived.append(out)
        if not moved:
            raise ProtocolError(
                "each party waits for a message of the other one: they do not run the same protocol"
            )
    return one.ended, other.ended


def run_all(
    parties: Mapping[Peer, Party[Any]],
    send: Callable[[Peer, bytes], None],
    receive: Callable[[Peer], bytes],
) -> dict[Peer, Any]:
    """Run several parties at the same time, each with another remote party.

    All parties together take as many steps as the longest one. In each step every party sends before any
    party waits, as in `bundled`, so three workers cannot wait for each other in a circle.

    Args:
        parties: The local parties, by the peer that runs the other party.
        send: Sends a message to a peer.
        receive: Waits for the next message of a peer.

    Returns:
        The results by peer.
    """
    courses = {peer: _RunningParty(party) for peer, party in parties.items()}
    while running := {peer: course for peer, course in courses.items() if course.ended is None}:
        # First every party sends whatever it can, then each takes one message.
        for peer, course in running.items():
            while course.ended is None and not course.waits:
                if (out := course.resume(None)) is not None:
                    send(peer, out)
        for peer, course in running.items():
            if course.ended is None and (out := course.receive(receive(peer))) is not None:
                send(peer, out)
    return {peer: course.ended.result for peer, course in courses.items() if course.ended is not None}


def bundled(parties: Sequence[Party[Result]]) -> Party[list[Ended[Result]]]:
    """Combine many parties into one party, which sends one message per step for all of them.

    The other parties must be bundled in the same order in one remote process. All parties together take as
    many steps as the longest one. A message is the number of messages for each party (uint32 [n]), their
    lengths (uint32), and the messages themselves.

    Args:
        parties: n parties, in the order in which the remote process bundles theirs.

    Returns:
        The results, in the order of the parties.

    Raises:
        ProtocolError: A bundle is incomplete, has a message for a party that has ended, or all parties
            wait.
    """
    courses = [_RunningParty(party) for party in parties]
    while True:
        outgoing = [_run_until_waiting(course) for course in courses]
        ended = [course.ended for course in courses if course.ended is not None]
        if len(ended) == len(courses) and not any(outgoing):
            return ended
        # A bundle is sent even if it has no messages, so that both processes take the same number of steps.
        yield _bundle(outgoing)
        incoming = _unbundle((yield None), len(courses))
        if not any(outgoing) and not any(incoming):
            raise ProtocolError(
                "each party waits for a message of the other one: they do not run the same protocol"
            )
        for course, messages in zip(courses, incoming, strict=True):
            course.arrived.extend(messages)


def _run_until_waiting(course: "_RunningParty[Any]") -> list[bytes]:
    """Continue a party until it waits for a message that has not arrived, and return its messages to send."""
    outgoing = []
    while course.ended is None and (course.arrived or not course.waits):
        message = course.receive(course.arrived.popleft()) if course.waits else course.resume(None)
        if message is not None:
            outgoing.append(message)
    if course.arrived:
        raise ProtocolError("a bundle has a message for a party that has already ended")
    return outgoing


def _bundle(messages: Sequence[Sequence[bytes]]) -> bytes:
    """Join the messages of all parties into one, behind their counts and lengths."""
    counts = [len(of_party) for of_party in messages]
    lengths = [len(message) for of_party in messages for message in of_party]
    header = np.array([*counts, *lengths], dtype="<u4").tobytes()
    return b"".join([header, *(message for of_party in messages for message in of_party)])


def _unbundle(bundle: bytes, parties: int) -> list[list[bytes]]:
    """Split a bundle into the messages for each party."""
    error = ProtocolError(f"a bundle of {len(bundle)} bytes is incomplete, or is not for {parties} parties")
    if len(bundle) < 4 * parties:
        raise error
    # The bundle comes from another process: every count is checked before it is used. int64, because sums of
    # uint32 may overflow.
    counts = np.frombuffer(bundle, dtype="<u4", count=parties).astype(np.int64)
    start = 4 * (parties + int(counts.sum()))
    if start > len(bundle):
        raise error
    lengths = np.frombuffer(bundle, dtype="<u4", count=int(counts.sum()), offset=4 * parties)
    ends = start + np.cumsum(lengths.astype(np.int64))
    if (int(ends[-1]) if len(ends) else start) != len(bundle):
        raise error
    spans = iter(zip([start, *ends[:-1].tolist()], ends.tolist(), strict=True) if len(ends) else ())
    return [[bundle[a:b] for a, b in (next(spans) for _ in range(count))] for count in counts.tolist()]
