"""What client and server of a session of secure aggregation have in common (`terms`)."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from graphfed.crypto.aggregation.terms import (
    KEY_BYTES,
    OVER,
    PROTOCOL,
    TAG_BYTES,
    Terms,
)
from graphfed.crypto.errors import ProtocolError

if TYPE_CHECKING:  # needs the extra `secure`, which the simulated form does without
    from graphfed.crypto.pairwise import KeyPair


class Participant(ABC):
    """One participant of one session. It takes its steps in order, each once, and an error ends the
    session.
    """

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._session = terms.session(b"")
        self._at = 0

    @contextmanager
    def _step(self, number: int, message: str) -> Iterator[None]:
        """Take a step, which needs `message`. If it fails or is out of order, delete every secret."""
        try:
            if self._at != number:
                state = "has ended" if self._at == OVER else f"is at step {self._at + 1}"
                raise ProtocolError(
                    f"{message} belongs to step {number + 1}, and the session {state}: a message was "
                    "repeated, lost or reordered"
                )
            yield
            self._at = number + 1
        # Whatever happened, also an interrupt: half a step must not be continued with the same secrets.
        except BaseException:
            self._at = OVER
            self._forget()
            raise

    @abstractmethod
    def _forget(self) -> None:
        """Delete every secret."""

    def _tag(self, kind: str, party: int) -> bytes:
        """Compute the tag of a message from or to `party`."""
        content = self._session + party.to_bytes(4, "little") + kind.encode()
        return hashlib.sha256(content).digest()[:TAG_BYTES]

    def _body(self, message: bytes, kind: str, party: int, width: int = 0) -> bytes:
        """Check a message from or to `party` and return its content without the tag."""
        # Length first, then the tag, then the content.
        expected = self.terms.sizes(width)[kind]
        if len(message) != expected:
            raise ProtocolError(
                f"a message of kind {kind!r} has {len(message)} bytes, and {expected} are expected"
            )
        if bytes(message[:TAG_BYTES]) != self._tag(kind, party):
            raise ProtocolError(
                f"the message is not the expected one of kind {kind!r}: it belongs to another step, "
                "client or session, or the other participant has other terms"
            )
        return memoryview(message)[TAG_BYTES:].tobytes()

    def _enough(self, parties: int, when: str) -> None:
        """Refuse to continue with fewer parties than the threshold."""
        if parties < self.terms.threshold:
            raise ProtocolError(
                f"only {parties} of {self.terms.clients} clients are left {when}, and at least "
                f"{self.terms.threshold} must stay: the sum cannot be opened, and no vector is opened"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a participant of a session holds secrets for one use: it is neither copied nor pickled"
        )


def split_rows(body: bytes, size: int, parties: Iterable[int]) -> dict[int, bytes]:
    """Split a body into the parties' equal parts, without the parts of zeros, which stand for absent parties.

    Args:
        body: The content of a message, without its tag.
        size: Bytes of each party's part.
        parties: The parties, in the order of their parts.

    Returns:
        The part of each present party.
    """
    parts = {party: body[i * size : (i + 1) * size] for i, party in enumerate(parties)}
    return {party: part for party, part in parts.items() if part != bytes(size)}


def name_purpose(what: str, session: bytes, one: int, other: int) -> bytes:
    """Name a purpose within the session, for two parties.

    Args:
        what: What the key or the message is for.
        session: The session's name (`Terms.session`).
        one: A party, before `other` where the direction counts.
        other: The other party.

    Returns:
        The name, from which a key is derived.
    """
    parties = one.to_bytes(4, "little") + other.to_bytes(4, "little")
    return PROTOCOL + session + parties + what.encode()


def agree_mask_key(
    local_keys: "KeyPair", session: bytes, party: int, other: int, remote_keys: bytes
) -> bytes:
    """Compute the key s_ij of the mask of two clients.

    Args:
        local_keys: The key pair for masks of one of them.
        session: The session's name (`Terms.session`).
        party: Number of the client that has `local_keys`.
        other: The number of the other one.
        remote_keys: Both public keys of the other one, 64 bytes.

    Returns:
        The key, which is the same for both.
    """
    # Sorted, so that both clients name the same purpose.
    purpose = name_purpose("mask", session, *sorted((party, other)))
    return local_keys.agree(remote_keys[KEY_BYTES:], purpose, KEY_BYTES)
