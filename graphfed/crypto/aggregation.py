"""Secure aggregation: a server learns the sum of its clients' vectors, and no client's own vector.

Reference: Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS
2017, figure 4, without the steps against a server that deviates from the protocol. Clients may drop out at
any step:

    clients                            server                             a client that drops out after it
    advertise()             keys >     all_keys(messages)                 takes no part
    share_keys(message)   shares >     forward(messages)                  takes no part
    mask(message, x)      masked >     add_masked(...), request()         is not in the sum
    unmask(message)      answers >     open(messages)                     is in the sum

Messages are bytes. The n clients are the parties 0 to n - 1. Vectors are words modulo 2^64.

The protocol. Each client adds two kinds of masks to its vector: one mask from its own seed b_i, and for
every other client j one mask from a key s_ij that only these two clients can compute. The client with the
lower number adds the mask of s_ij and the other one subtracts it, so these masks cancel in the sum. Before
that, each client splits b_i and the private key behind its s_ij into shares for all clients, of which any t
open them (`shamir`). The shares travel through the server, sealed for their receivers. At the end the
server requests shares of the seeds of the clients in the sum, and shares of the private keys of the clients
that dropped out, and removes the masks that are left.

Corruption model: the server and the clients follow the protocol, and may keep and combine everything they
see (semi-honest). Up to t - 1 clients may collude with the server. Security parameter: 128 bits
(`pairwise`). What leaks: the sum over the clients whose masked vector arrived, which clients dropped out
and when, and the public numbers n, t and w. The coalition can subtract its own vectors from the sum. The
other clients' vectors stay hidden. tests/crypto/test_aggregation.py has the tests of these claims:

- *A client in the sum.* Its seed is opened and its private key is not. Between two such clients outside the
  coalition, s_ij is unknown to the coalition (X25519 under the gap Diffie-Hellman assumption, HKDF as a
  random oracle). Its mask is AES-256 in counter mode: uniform words, except that they cancel in the sum. So
  all sets of vectors with the same sum explain the messages equally well.
- *A client that dropped out.* Its private key is opened and its seed is not. The mask of the seed hides its
  vector, even if the vector arrives late.
- *Below the threshold.* With fewer than t answers no seed and no key is opened: t - 1 Shamir shares say
  nothing about a secret. The session ends with an error.
- *Never both secrets.* The seed and the private key of a client together reveal its vector. A client
  answers one request in each session and refuses a request for both secrets of a client. Since 2 t > n, two
  sets of t honest clients have a client in common, so two different requests cannot both get t answers.

Every session has fresh keys, shares and seeds from the operating system's entropy, and its objects refuse
to be copied: if a session's secrets were used again, the difference of two masked vectors would be the
difference of two updates in plaintext. Every message except the first carries a tag of the session, a hash
of all clients' keys. Sealed shares name the session, the sender and the receiver.

Limits. A server that deviates can pretend to be clients, because keys are not signed. (In a deployment each
site has an identity that could sign its keys, `channel`; this is not implemented.) A client can spoil the
sum: its vector and its shares are not verified, except that an altered private key is noticed. The sum
itself is plaintext: if all clients but one send zeros, the sum is that client's vector. The server can
compare the sums of different sets of clients from round to round, and a sum is not differentially private.
Two clients are refused: each of them would learn the other's vector from the sum, which the next model
reveals.

`IdealClient` and `IdealServer` are the simulated form: the same steps, the same sum and messages of the
same lengths, without keys and masks. Their server can read every vector. They are for simulated runs only
and are labelled `simulated`.

Cost for w words: a client sends 64 + 80 (n - 1) + 8 w + 32 n bytes and 8 bytes per tag, and computes 2 (n -
1) key agreements and n masks. The server removes one mask for each client in the sum, and one for each pair
of a client in the sum and a client that dropped out after it shared its keys.
"""

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from graphfed.crypto import shamir
from graphfed.crypto.errors import ProtocolError
from graphfed.errors import InputError

if TYPE_CHECKING:  # needs the extra `secure`, which the simulated form does without
    from graphfed.crypto.pairwise import KeyPair

__all__ = ["FEWEST_CLIENTS", "Client", "IdealClient", "IdealServer", "Server", "Terms"]

#: Of two clients, each could subtract its own vector from the sum.
FEWEST_CLIENTS = 3
_PROTOCOL = b"graphfed secure aggregation 1"
_TAG_BYTES = 8
#: Bytes of a public key; of a client's two public keys (for sealing, for masks); of each of its two
#: secrets (the
#: private key for masks, the seed).
_KEY_BYTES, _KEYS_BYTES, _SECRET_BYTES = 32, 64, 32
_SEALED_BYTES = 2 * _SECRET_BYTES + 16
#: The secret that a request asks for: the seed of a client in the sum, or the key of one that dropped out.
_SEED, _KEY = 1, 2
#: The party in the tag of a message that the server sends to all clients.
_EVERYONE = 2**32 - 1
_OVER = -1


@dataclass(frozen=True)
class Terms:
    """What server and clients agree on before a session.

    Attributes:
        label: What the session is for.
        clients: n, at least 3.
        threshold: t, the number of clients that must stay to the end, n / 2 < t <= n.
    """

    label: str
    clients: int
    threshold: int

    def __post_init__(self) -> None:
        if not FEWEST_CLIENTS <= self.clients <= shamir.MAX_PARTIES:
            raise InputError(
                f"secure aggregation needs {FEWEST_CLIENTS} to {shamir.MAX_PARTIES} clients in a round, and "
                f"this round has {self.clients}: each of two clients could subtract its own part from "
                "the sum, and the sum of one client is its own vector; use more clients, a larger fraction, "
                "or aggregation=plaintext"
            )
        if not self.clients < 2 * self.threshold <= 2 * self.clients:
            raise InputError(
                f"the threshold {self.threshold} of {self.clients} clients is not possible: it must be "
                "more than half of the clients and at most all of them; use "
                f"{_default_threshold(self.clients)}"
            )

    @classmethod
    def usual(cls, label: str, clients: int) -> "Terms":
        """Make terms with the default threshold, with which more than two thirds of the clients must stay.

        Args:
            label: What the session is for.
            clients: n, at least 3.

        Returns:
            The terms.

        Raises:
            InputError: The number of clients is not possible.
        """
        return cls(label, clients, _default_threshold(clients))

    def sizes(self, width: int) -> dict[str, int]:
        """Compute the size of every message.

        Args:
            width: w, the words of a vector.

        Returns:
            Bytes by the kind of message.
        """
        sealed = _TAG_BYTES + _SEALED_BYTES * (self.clients - 1)
        return {
            "keys": _TAG_BYTES + _KEYS_BYTES,
            "all_keys": _TAG_BYTES + _KEYS_BYTES * self.clients,
            "sealed_shares": sealed,
            "forwarded_shares": sealed,
            "masked": _TAG_BYTES + 8 * width,
            "survivors": _TAG_BYTES + self.clients,
            "unmask": _TAG_BYTES + _SECRET_BYTES * self.clients,
        }

    def session(self, keys: bytes) -> bytes:
        """Compute the session's name.

        Args:
            keys: The public keys of all clients; empty before they are known.

        Returns:
            A hash of the terms and the keys, 32 bytes.
        """
        label = self.label.encode()
        numbers = [len(label), self.clients, self.threshold]
        return hashlib.sha256(
            _PROTOCOL + b"".join(n.to_bytes(4, "little") for n in numbers) + label + keys
        ).digest()


def _default_threshold(clients: int) -> int:
    return 2 * clients // 3 + 1


class _Participant(ABC):
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
                state = "has ended" if self._at == _OVER else f"is at step {self._at + 1}"
                raise ProtocolError(
                    f"{message} belongs to step {number + 1}, and the session {state}: a message was "
                    "repeated, lost or reordered"
                )
            yield
            self._at = number + 1
        except BaseException:
            self._at = _OVER
            self._forget()
            raise

    @abstractmethod
    def _forget(self) -> None:
        """Delete every secret."""

    def _tag(self, kind: str, party: int) -> bytes:
        """Compute the tag of a message from or to `party`."""
        content = self._session + party.to_bytes(4, "little") + kind.encode()
        return hashlib.sha256(content).digest()[:_TAG_BYTES]

    def _body(self, message: bytes, kind: str, party: int, width: int = 0) -> bytes:
        """Check a message from or to `party` and return its content without the tag."""
        expected = self.terms.sizes(width)[kind]
        if len(message) != expected:
            raise ProtocolError(
                f"a message of kind {kind!r} has {len(message)} bytes, and {expected} are expected"
            )
        if bytes(message[:_TAG_BYTES]) != self._tag(kind, party):
            raise ProtocolError(
                f"the message is not the expected one of kind {kind!r}: it belongs to another step, "
                "client or session, or the other participant has other terms"
            )
        return memoryview(message)[_TAG_BYTES:].tobytes()

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


def _rows(body: bytes, size: int, parties: Iterable[int]) -> dict[int, bytes]:
    """Split a body into the parties' equal parts, without the parts of zeros, which stand for absent
    parties.
    """
    parts = {party: body[i * size : (i + 1) * size] for i, party in enumerate(parties)}
    return {party: part for party, part in parts.items() if part != bytes(size)}


class Client(_Participant):
    """A client of a session. Every method is one step; ProtocolError ends the session.

    Args:
        terms: The terms of the session.
        party: This client's number, 0 to n - 1.
    """

    def __init__(self, terms: Terms, party: int) -> None:
        super().__init__(terms)
        if not 0 <= party < terms.clients:
            raise ValueError(f"party {party} is out of range for {terms.clients} clients")
        self.party = party
        self._advertised = b""
        self._keys: dict[int, bytes] = {}
        self._peers: set[int] = set()

    def advertise(self) -> bytes:
        """Generate this client's two key pairs.

        Returns:
            The message with the two public keys.
        """
        with self._step(0, "the start"):
            self._advertised = self._generate()
            return self._tag("keys", self.party) + self._advertised

    def share_keys(self, message: bytes) -> bytes:
        """Split both secrets, and seal a share for every other client.

        Args:
            message: The server's message with all public keys.

        Returns:
            The message with the sealed shares.
        """
        with self._step(1, "the list of keys"):
            body = self._body(message, "all_keys", _EVERYONE)
            keys = _rows(body, _KEYS_BYTES, range(self.terms.clients))
            self._enough(len(keys), "that advertise keys")
            if keys.get(self.party) != self._advertised:
                raise ProtocolError(
                    "the list of keys has other keys for this client than the client advertised"
                )
            if len({key[i : i + _KEY_BYTES] for key in keys.values() for i in (0, _KEY_BYTES)}) < 2 * len(
                keys
            ):
                raise ProtocolError("the list of keys has the same key more than once")
            self._keys, self._session = keys, self.terms.session(body)
            sealed = self._seal()
            none = bytes(_SEALED_BYTES)
            shares = b"".join(sealed.get(other, none) for other in self._others())
            return self._tag("sealed_shares", self.party) + shares

    def mask(self, message: bytes, vector: np.ndarray) -> bytes:
        """Mask this client's vector.

        Args:
            message: The server's message with the sealed shares for this client.
            vector: int64 or uint64 [w].

        Returns:
            The message with the masked vector.
        """
        if vector.ndim != 1 or vector.dtype not in (np.int64, np.uint64):
            raise ValueError(f"expected a vector of 64-bit words, got {vector.dtype} {vector.shape}")
        with self._step(2, "the shares for this client"):
            body = self._body(message, "forwarded_shares", self.party)
            sealed = _rows(body, _SEALED_BYTES, self._others())
            if unknown := sealed.keys() - self._keys.keys():
                raise ProtocolError(
                    f"a share of client {min(unknown)} arrived, and that client has not advertised keys"
                )
            self._enough(len(sealed) + 1, "that have shared their keys")
            self._unseal(sealed)
            self._peers = {self.party, *sealed}
            masked = bytearray(_TAG_BYTES + 8 * len(vector))
            masked[:_TAG_BYTES] = self._tag("masked", self.party)
            total = np.frombuffer(masked, dtype="<u8", offset=_TAG_BYTES)
            total[:] = vector.view(np.uint64)
            self._mask(total)
            return bytes(masked)

    def unmask(self, message: bytes) -> bytes:
        """Answer the server's request for shares. A client answers once.

        Args:
            message: The server's request, which names at most one secret of each client.

        Returns:
            The message with this client's shares of the requested secrets.
        """
        if self._at == _OVER and self._peers:
            raise ProtocolError(
                "this client has already answered or refused the session's one request to unmask: with "
                "a second answer the server could open both secrets of a client, and with them its vector"
            )
        with self._step(3, "the request to unmask"):
            requested = np.frombuffer(self._body(message, "survivors", _EVERYONE), dtype=np.uint8)
            for is_refused, reason in (
                (requested > _KEY, "both secrets of client {}, which would reveal its vector"),
                ((requested > 0) & ~self._are_peers(), "a secret of client {}, which did not share its keys"),
                ((requested == 0) & self._are_peers(), "no secret of client {}, so the sum cannot be opened"),
            ):
                if is_refused.any():
                    secret = reason.format(int(is_refused.argmax()))
                    raise ProtocolError(f"the server asks for {secret}; refused")
            if requested[self.party] != _SEED:
                raise ProtocolError(
                    "the server lists this client as dropped out, and asks it for a share of its own private "
                    "key; refused"
                )
            self._enough(int((requested == _SEED).sum()), "whose masked vector has arrived")
            parts = [self._share(party, int(which)) for party, which in enumerate(requested)]
            answer = self._tag("unmask", self.party) + b"".join(parts)
        self._at = _OVER
        self._forget()
        return answer

    def _others(self) -> list[int]:
        return [party for party in range(self.terms.clients) if party != self.party]

    def _are_peers(self) -> np.ndarray:
        return np.isin(np.arange(self.terms.clients), list(self._peers))

    # The simulated form replaces the methods below.

    def _generate(self) -> bytes:
        """Generate the two key pairs, and return the public keys."""
        from graphfed.crypto.pairwise import KeyPair

        self._sealing, self._masking = KeyPair(), KeyPair()
        return self._sealing.public + self._masking.public

    def _seal(self) -> dict[int, bytes]:
        """Draw the seed, split both secrets, and seal one share for every other client."""
        from graphfed.crypto.pairwise import seal

        self._seed = os.urandom(_SECRET_BYTES)
        secrets = self._masking.private + self._seed
        shares = shamir.split(secrets, self.terms.threshold, self.terms.clients)
        self._shares = {self.party: shares[self.party]}
        sealed, self._opening = {}, {}
        for other, keys in self._keys.items():
            if other == self.party:
                continue
            # One key for each direction, from the lower number to the higher and back.
            purpose = _purpose("seal", self._session, *sorted((self.party, other)))
            keys_of_both_directions = self._sealing.agree(keys[:_KEY_BYTES], purpose, 2 * _KEY_BYTES)
            upward, downward = keys_of_both_directions[:_KEY_BYTES], keys_of_both_directions[_KEY_BYTES:]
            sending, self._opening[other] = (upward, downward) if self.party < other else (downward, upward)
            sealed[other] = seal(sending, shares[other], self._about(self.party, other))
        return sealed

    def _unseal(self, sealed: Mapping[int, bytes]) -> None:
        """Open the sealed shares for this client."""
        from graphfed.crypto.pairwise import open_sealed

        for other, box in sealed.items():
            self._shares[other] = open_sealed(self._opening[other], box, self._about(other, self.party))

    def _about(self, sender: int, receiver: int) -> bytes:
        """Name the session, sender and receiver of a sealed share."""
        return _purpose("share", self._session, sender, receiver)

    def _mask(self, total: np.ndarray) -> None:
        """Add this client's masks to its vector, in place."""
        from graphfed.crypto.pairwise import add_masks

        plus: list[bytes] = [self._seed]
        minus: list[bytes] = []
        for other in self._peers - {self.party}:
            key = _mask_key(self._masking, self._session, self.party, other, self._keys[other])
            (plus if self.party < other else minus).append(key)
        add_masks(total, plus, minus)

    def _share(self, party: int, which: int) -> bytes:
        """Return this client's share of one secret of a client, or zeros if none is requested."""
        if not which:
            return bytes(_SECRET_BYTES)
        share = self._shares[party]
        return share[_SECRET_BYTES:] if which == _SEED else share[:_SECRET_BYTES]

    def _forget(self) -> None:
        for secret in ("_sealing", "_masking", "_seed", "_shares", "_opening"):
            self.__dict__.pop(secret, None)


def _purpose(what: str, session: bytes, one: int, other: int) -> bytes:
    """Name a purpose within the session, for two parties."""
    parties = one.to_bytes(4, "little") + other.to_bytes(4, "little")
    return _PROTOCOL + session + parties + what.encode()


def _mask_key(local_keys: "KeyPair", session: bytes, party: int, other: int, remote_keys: bytes) -> bytes:
    """Compute s_ij, which is the same for both parties."""
    purpose = _purpose("mask", session, *sorted((party, other)))
    return local_keys.agree(remote_keys[_KEY_BYTES:], purpose, _KEY_BYTES)


class IdealClient(Client):
    """The simulated form of a client: no keys, no shares, no masks, and messages of the same lengths."""

    def _generate(self) -> bytes:
        return b"".join((2 * self.party + i + 1).to_bytes(_KEY_BYTES, "little") for i in (0, 1))

    def _seal(self) -> dict[int, bytes]:
        return {other: b"\1" * _SEALED_BYTES for other in self._keys if other != self.party}

    def _unseal(self, sealed: Mapping[int, bytes]) -> None:
        pass

    def _mask(self, total: np.ndarray) -> None:
        pass

    def _share(self, party: int, which: int) -> bytes:
        return bytes(_SECRET_BYTES)


# ---- the server --------------------------------------------------------------------------------------------


class Server(_Participant):
    """The server of a session. Every method is one step; ProtocolError ends the session.

    The messages of a step are given by party; a missing party has dropped out.

    Args:
        terms: The terms of the session.
        width: w, the words of a vector.
    """

    def __init__(self, terms: Terms, width: int) -> None:
        super().__init__(terms)
        self.width = width
        self._keys: dict[int, bytes] = {}
        self._sharing: set[int] = set()
        self._summed: set[int] = set()
        self._total: np.ndarray | None = np.zeros(width, dtype=np.uint64)

    def all_keys(self, messages: Mapping[int, bytes]) -> bytes:
        """Collect the public keys of all clients.

        Args:
            messages: The clients' messages of `Client.advertise`.

        Returns:
            The message for all clients, with all public keys.
        """
        with self._step(0, "the clients' keys"):
            self._keys = {p: self._body(messages[p], "keys", self._known(p)) for p in sorted(messages)}
            self._enough(len(self._keys), "that advertise keys")
            none = bytes(_KEYS_BYTES)
            if none in self._keys.values():
                raise ProtocolError("a client advertises keys of zeros, which mark an absent client")
            all_public = b"".join(self._keys.get(party, none) for party in range(self.terms.clients))
            message = self._tag("all_keys", _EVERYONE) + all_public
            self._session = self.terms.session(all_public)
            return message

    def forward(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Forward the sealed shares to the clients that they are for.

        Args:
            messages: The clients' messages of `Client.share_keys`.

        Returns:
            For every client that sent shares, the message with its shares of the other clients' secrets.
        """
        with self._step(1, "the sealed shares"):
            self._enough(len(messages), "that have shared their keys")
            sealed = {}
            for party, message in messages.items():
                body = self._body(message, "sealed_shares", self._known(party, self._keys))
                others = [p for p in range(self.terms.clients) if p != party]
                sealed[party] = _rows(body, _SEALED_BYTES, others)
                if sealed[party].keys() != self._keys.keys() - {party}:
                    raise ProtocolError(
                        f"client {party} did not send exactly one share for every other client"
                    )
            self._sharing = {*sealed}
            none = bytes(_SEALED_BYTES)
            forwarded = {}
            for party in sealed:
                others = [p for p in range(self.terms.clients) if p != party]
                rows = b"".join(sealed[p][party] if p in sealed else none for p in others)
                forwarded[party] = self._tag("forwarded_shares", party) + rows
            return forwarded

    def add_masked(self, party: int, message: bytes) -> None:
        """Add one client's masked vector to the sum, in any order of clients.

        Args:
            party: The client.
            message: Its message of `Client.mask`.
        """
        with self._step(2, "a masked vector"):
            if party in self._summed:
                raise ProtocolError(f"a second masked vector of client {party} arrived")
            if len(message) != (expected := self.terms.sizes(self.width)["masked"]):
                raise ProtocolError(f"a masked vector has {len(message)} bytes, and {expected} are expected")
            known = self._known(party, self._sharing)
            if bytes(message[:_TAG_BYTES]) != self._tag("masked", known):
                raise ProtocolError(f"the message is not the masked vector of client {party} in this session")
            assert self._total is not None
            self._total += np.frombuffer(message, dtype="<u8", offset=_TAG_BYTES)
            self._summed.add(party)
        self._at = 2

    def request(self) -> bytes:
        """End the collection of masked vectors.

        Returns:
            The message for all clients, which requests their shares of the secrets that open the sum.
        """
        with self._step(2, "the end of the masked vectors"):
            self._enough(len(self._summed), "whose masked vector has arrived")
            requested = bytearray(self.terms.clients)
            for party in self._sharing:
                requested[party] = _SEED if party in self._summed else _KEY
            return self._tag("survivors", _EVERYONE) + bytes(requested)

    def open(self, messages: Mapping[int, bytes]) -> np.ndarray:
        """Open the sum over the clients whose masked vector arrived.

        Args:
            messages: The clients' messages of `Client.unmask`.

        Returns:
            The sum modulo 2^64, int64 [w].
        """
        with self._step(3, "the shares to unmask with"):
            self._enough(len(messages), "to unmask the sum")
            answers = {
                party: self._body(messages[party], "unmask", self._known(party, self._summed))
                for party in sorted(messages)
            }
            assert self._total is not None
            self._unmask(self._total, answers)
            total = self._total
        self._at = _OVER
        self._forget()
        return total.view(np.int64)

    def _known(self, party: int, among: Mapping[int, bytes] | set[int] | None = None) -> int:
        """Refuse a message of a client that takes no part in this step."""
        if party not in (range(self.terms.clients) if among is None else among):
            raise ProtocolError(f"client {party} sent a message and takes no part in this step")
        return party

    def _forget(self) -> None:
        self._total = None

    # The simulated form replaces this method.

    def _unmask(self, total: np.ndarray, answers: Mapping[int, bytes]) -> None:
        """Remove the remaining masks from the sum, in place."""
        from graphfed.crypto.pairwise import KeyPair, add_masks

        summed, dropped = sorted(self._summed), sorted(self._sharing - self._summed)
        plus: list[bytes] = []
        minus = list(self._opened(summed, answers).values())
        for absent, private in self._opened(dropped, answers).items():
            masking = KeyPair(private)
            if masking.public != self._keys[absent][_KEY_BYTES:]:
                raise ProtocolError(
                    f"the shares of client {absent}'s private key open to another key: at least one share "
                    "was altered"
                )
            for party in summed:
                key = _mask_key(masking, self._session, absent, party, self._keys[party])
                (minus if party < absent else plus).append(key)
        add_masks(total, plus, minus)

    def _opened(self, parties: list[int], answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """Open the secrets of some clients at once, with the shares of the first t clients that answered."""
        if not parties:
            return {}
        rows = {
            client: b"".join(body[p * _SECRET_BYTES : (p + 1) * _SECRET_BYTES] for p in parties)
            for client, body in list(answers.items())[: self.terms.threshold]
        }
        # Shamir shares are numbered from 1.
        secrets = shamir.combine([(client + 1, row) for client, row in rows.items()], self.terms.threshold)
        return {p: secrets[i * _SECRET_BYTES : (i + 1) * _SECRET_BYTES] for i, p in enumerate(parties)}


class IdealServer(Server):
    """The simulated form of the server: the messages contain the vectors themselves."""

    def _unmask(self, total: np.ndarray, answers: Mapping[int, bytes]) -> None:
        pass
