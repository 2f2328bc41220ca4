"""Secure aggregation: a server learns the sum of its clients' vectors and no client's own, though clients may
drop out (Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017,
figure 4 without the steps against a server that breaks the protocol).

    clients                            server                             dropped out after it
    advertise()             keys >     all_keys(messages)                 has no part at all
    share_keys(message)   shares >     forward(messages)                  has no part at all
    mask(message, x)      masked >     add_masked(...), request()         is not in the sum
    unmask(message)    and these >     open(messages)                     is in the sum

Messages are bytes in, bytes out; n clients are the parties 0 to n - 1; vectors are words modulo 2^64.

How. A client adds two kinds of masks to its vector: one of a seed b_i of its own, and for every other client
j one of a key s_ij that the two of them alone can compute, added by the one with the lower number and taken
away by the other, so that in the sum these cancel. Before that it shares b_i and the private key behind all
its s_ij among all clients, any t of which can open them (`secure.shamir`); the shares travel through the
server, sealed for their receivers. In the end the server asks for the seeds of those whose masked vector has
come, and for the private keys of those whose has not: with these it takes away the masks that are left over.

What holds, against whom. The server and the clients follow the protocol and may keep and combine all they
see (semi-honest); up to t - 1 clients together with the server. They learn the sum over the clients whose
vector has come (so of the others' part what they can subtract), who dropped out when, and the public numbers
n, t and w; the other clients' vectors stay hidden. tests/crypto/test_aggregation.py has the tests.

- *A client in the sum.* Its seed is opened, its keys are not. Between two such clients outside the coalition
  s_ij is known to neither server nor coalition (X25519 under the gap Diffie-Hellman assumption, HKDF as a
  random oracle), and its mask is AES-256 in counter mode under all 256 bits: uniform words, but that they
  cancel in the sum. So every set of vectors with that sum explains what is seen equally well.
- *A client that dropped out.* Its keys are opened, its seed never: the mask of the seed hides the vector,
  even if it comes late.
- *Below the threshold.* With fewer than t answers no seed and no key is opened: t - 1 Shamir shares of a
  secret say nothing of it, so nothing that the server holds takes any mask away. The session ends with an
  error.
- *Not both.* Whoever has a client's seed and its key has its vector. A client answers one request for each
  session, refuses one that names both secrets of a client, and 2 t > n: two sets of t honest clients have one
  in common, so no two requests can both be answered by t of them.

Every session has fresh keys, shares and seeds, from the operating system's entropy, and its machines refuse
to be copied: with the seed and the keys of another session, the difference of the two masked vectors would be
the difference of two updates, in clear. All messages but the first carry a tag of the session, which is a
hash of all clients' keys, and the sealed shares name the session, who sealed and for whom.

What it does not do. A server that breaks the protocol can pretend to be clients: nobody signs. (In a
deployment each site has an identity that could sign its keys, `secure.channel`; this is not built.) A client
can spoil the sum: nobody checks its vector or its shares, though an altered private key is noticed. The sum
itself is in clear: of clients that all but one send zeros it is that one's vector, from one round to the next
the server can compare the sums of different rosters, and a sum is no differential privacy. Two clients are
refused: whoever learns their sum, as the next model tells it, has the other's vector by subtraction.

The ideal form (`IdealClient`, `IdealServer`) takes the same steps and gives the same sum with messages of the
same lengths, without keys and masks: the server reads every vector. It is for trials, labelled `simulated`.

Cost, with w words: a client sends 64 + 80 (n - 1) + 8 w + 32 n bytes and 8 for each tag, makes 2 (n - 1)
agreements and n masks of w words; the server takes one mask away for every client in the sum, and for every
one that dropped out after sharing one for each of these.
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

if TYPE_CHECKING:  # it needs the extra `secure`, which the ideal form does not
    from graphfed.crypto.pairwise import KeyPair

__all__ = ["FEWEST_CLIENTS", "Client", "IdealClient", "IdealServer", "Server", "Terms"]

#: The other one of two could subtract its own vector from the sum.
FEWEST_CLIENTS = 3
_PROTOCOL = b"graphfed secure aggregation 1"
_TAG_BYTES = 8
#: A client's keys (for sealing, for masks); its two secrets (private key for masks, seed), which are as long.
_KEY_BYTES, _KEYS_BYTES, _SECRET_BYTES = 32, 64, 32
_SEALED_BYTES = 2 * _SECRET_BYTES + 16
#: What a request asks for: the seed of a client in the sum, the key of one that dropped out.
_SEED, _KEY = 1, 2
#: In a tag: the server's message for all clients.
_EVERYONE = 2**32 - 1
_OVER = -1


@dataclass(frozen=True)
class Terms:
    """What both ends of a session know beforehand. label: what the session is for; clients: n; threshold: how
    many must stay to the end, t.

    InputError for fewer than 3 clients, and unless n / 2 < t <= n."""

    label: str
    clients: int
    threshold: int

    def __post_init__(self) -> None:
        if not FEWEST_CLIENTS <= self.clients <= shamir.MAX_PARTIES:
            raise InputError(
                f"secure aggregation needs {FEWEST_CLIENTS} to {shamir.MAX_PARTIES} clients in a round, and "
                f"here are {self.clients}: of two clients each could subtract its own part from the sum, and "
                "the sum of one is its own; use more clients, a larger fraction, or aggregation=plaintext"
            )
        if not self.clients < 2 * self.threshold <= 2 * self.clients:
            raise InputError(
                f"a threshold of {self.threshold} of {self.clients} clients is not safe or not possible: it "
                f"must be more than half of them and at most all; use {_default_threshold(self.clients)}"
            )

    @classmethod
    def usual(cls, label: str, clients: int) -> "Terms":
        """More than two thirds must stay."""
        return cls(label, clients, _default_threshold(clients))

    def sizes(self, width: int) -> dict[str, int]:
        """Bytes of every message, for vectors of `width` words."""
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
        """The name of the session in which these are the clients' keys (b"": before they are known)."""
        label = self.label.encode()
        numbers = [len(label), self.clients, self.threshold]
        return hashlib.sha256(
            _PROTOCOL + b"".join(n.to_bytes(4, "little") for n in numbers) + label + keys
        ).digest()


def _default_threshold(clients: int) -> int:
    return 2 * clients // 3 + 1


class _Machine(ABC):
    """One end of one session: it takes its steps in order, each once, and an error is its last."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._session = terms.session(b"")
        self._at = 0

    @contextmanager
    def _step(self, number: int, what: str) -> Iterator[None]:
        """Step `number`, which takes `what`. Where it fails, or comes out of turn, nothing is left."""
        try:
            if self._at != number:
                state = "has ended" if self._at == _OVER else f"is at step {self._at + 1}"
                raise ProtocolError(
                    f"{what} belongs to step {number + 1}, and the session {state}: a message was repeated, "
                    "left out or out of order"
                )
            yield
            self._at = number + 1
        except BaseException:
            self._at = _OVER
            self._forget()
            raise

    @abstractmethod
    def _forget(self) -> None:
        """Drop every secret."""

    def _tag(self, kind: str, party: int) -> bytes:
        told = self._session + party.to_bytes(4, "little") + kind.encode()
        return hashlib.sha256(told).digest()[:_TAG_BYTES]

    def _body(self, message: bytes, kind: str, party: int, width: int = 0) -> bytes:
        """What follows the tag of a message of this session, from or to `party`."""
        expected = self.terms.sizes(width)[kind]
        if len(message) != expected:
            raise ProtocolError(
                f"a message ({kind}) of {len(message)} bytes where one of {expected} is expected"
            )
        if bytes(message[:_TAG_BYTES]) != self._tag(kind, party):
            raise ProtocolError(
                f"a message that is not what is expected now ({kind}): it belongs to another step, client or "
                "session, or the other end has other terms"
            )
        return memoryview(message)[_TAG_BYTES:].tobytes()

    def _enough(self, parties: int, when: str) -> None:
        if parties < self.terms.threshold:
            raise ProtocolError(
                f"only {parties} of {self.terms.clients} clients are left {when}, and at least "
                f"{self.terms.threshold} must stay: the sum cannot be opened, and nobody's vector is"
            )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "one end of a session holds secrets that serve once: it is neither copied nor pickled"
        )


def _rows(body: bytes, size: int, parties: Iterable[int]) -> dict[int, bytes]:
    """Each party's part of a body of equal parts; a part of zeros says that the party has none."""
    parts = {party: body[i * size : (i + 1) * size] for i, party in enumerate(parties)}
    return {party: part for party, part in parts.items() if part != bytes(size)}


# ---- a client ----------------------------------------------------------------------------------------------


class Client(_Machine):
    """Client `party` of a session. Every method is a step, takes what the server sent (advertise: nothing)
    and gives what goes to the server; ProtocolError ends the session."""

    def __init__(self, terms: Terms, party: int) -> None:
        super().__init__(terms)
        if not 0 <= party < terms.clients:
            raise ValueError(f"party {party} of {terms.clients}")
        self.party = party
        self._advertised = b""
        self._keys: dict[int, bytes] = {}
        self._peers: set[int] = set()

    def advertise(self) -> bytes:
        """This client's two public keys."""
        with self._step(0, "the start"):
            self._advertised = self._generate()
            return self._tag("keys", self.party) + self._advertised

    def share_keys(self, message: bytes) -> bytes:
        """Of all clients' public keys: a sealed share of this client's two secrets for every other one."""
        with self._step(1, "the list of keys"):
            body = self._body(message, "all_keys", _EVERYONE)
            keys = _rows(body, _KEYS_BYTES, range(self.terms.clients))
            self._enough(len(keys), "that advertise keys")
            if keys.get(self.party) != self._advertised:
                raise ProtocolError("the list of keys has other keys for this client than it advertised")
            if len({key[i : i + _KEY_BYTES] for key in keys.values() for i in (0, _KEY_BYTES)}) < 2 * len(
                keys
            ):
                raise ProtocolError("the list of keys has the same key twice")
            self._keys, self._session = keys, self.terms.session(body)
            sealed = self._seal()
            none = bytes(_SEALED_BYTES)
            told = b"".join(sealed.get(other, none) for other in self._others())
            return self._tag("sealed_shares", self.party) + told

    def mask(self, message: bytes, vector: np.ndarray) -> bytes:
        """Of the others' sealed shares for this client: its vector, [w] int64 or uint64, masked."""
        if vector.ndim != 1 or vector.dtype not in (np.int64, np.uint64):
            raise ValueError(f"expected a vector of 64-bit words, got {vector.dtype} {vector.shape}")
        with self._step(2, "the shares for this client"):
            body = self._body(message, "forwarded_shares", self.party)
            sealed = _rows(body, _SEALED_BYTES, self._others())
            if strangers := sealed.keys() - self._keys.keys():
                raise ProtocolError(f"a share of client {min(strangers)}, which has advertised no keys")
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
        """Of whom the server wants which secret: this client's shares of these. It answers once."""
        if self._at == _OVER and self._peers:
            raise ProtocolError(
                "this client has answered the session's one request to unmask, or refused it: with a second "
                "one the server could have both secrets of a client, and with them its vector"
            )
        with self._step(3, "the request to unmask"):
            wanted = np.frombuffer(self._body(message, "survivors", _EVERYONE), dtype=np.uint8)
            for asked, refused in (
                (wanted > _KEY, "both secrets of client {}, and so for its vector"),
                ((wanted > 0) & ~self._are_peers(), "a secret of client {}, which was not among those here"),
                ((wanted == 0) & self._are_peers(), "no secret of client {}, so the sum cannot be opened"),
            ):
                if asked.any():
                    raise ProtocolError(f"the server asks for {refused.format(int(asked.argmax()))}; refused")
            if wanted[self.party] != _SEED:
                raise ProtocolError(
                    "the server counts this client among those that dropped out, and asks it for a share of "
                    "its own key; refused"
                )
            self._enough(int((wanted == _SEED).sum()), "whose masked vector has come")
            parts = [self._share(party, int(which)) for party, which in enumerate(wanted)]
            answer = self._tag("unmask", self.party) + b"".join(parts)
        self._at = _OVER
        self._forget()
        return answer

    def _others(self) -> list[int]:
        return [party for party in range(self.terms.clients) if party != self.party]

    def _are_peers(self) -> np.ndarray:
        return np.isin(np.arange(self.terms.clients), list(self._peers))

    # What the ideal form leaves out.

    def _generate(self) -> bytes:
        from graphfed.crypto.pairwise import KeyPair

        self._sealing, self._masking = KeyPair(), KeyPair()
        return self._sealing.public + self._masking.public

    def _seal(self) -> dict[int, bytes]:
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
            both = self._sealing.agree(keys[:_KEY_BYTES], purpose, 2 * _KEY_BYTES)
            up, down = both[:_KEY_BYTES], both[_KEY_BYTES:]
            sending, self._opening[other] = (up, down) if self.party < other else (down, up)
            sealed[other] = seal(sending, shares[other], self._about(self.party, other))
        return sealed

    def _unseal(self, sealed: Mapping[int, bytes]) -> None:
        from graphfed.crypto.pairwise import open_sealed

        for other, box in sealed.items():
            self._shares[other] = open_sealed(self._opening[other], box, self._about(other, self.party))

    def _about(self, sender: int, receiver: int) -> bytes:
        return _purpose("share", self._session, sender, receiver)

    def _mask(self, total: np.ndarray) -> None:
        from graphfed.crypto.pairwise import add_masks

        plus: list[bytes] = [self._seed]
        minus: list[bytes] = []
        for other in self._peers - {self.party}:
            key = _mask_key(self._masking, self._session, self.party, other, self._keys[other])
            (plus if self.party < other else minus).append(key)
        add_masks(total, plus, minus)

    def _share(self, party: int, which: int) -> bytes:
        if not which:
            return bytes(_SECRET_BYTES)
        share = self._shares[party]
        return share[_SECRET_BYTES:] if which == _SEED else share[:_SECRET_BYTES]

    def _forget(self) -> None:
        for secret in ("_sealing", "_masking", "_seed", "_shares", "_opening"):
            self.__dict__.pop(secret, None)


def _purpose(what: str, session: bytes, one: int, other: int) -> bytes:
    ends = one.to_bytes(4, "little") + other.to_bytes(4, "little")
    return _PROTOCOL + session + ends + what.encode()


def _mask_key(own: "KeyPair", session: bytes, party: int, other: int, keys_of_other: bytes) -> bytes:
    """s_ij, the same for both."""
    purpose = _purpose("mask", session, *sorted((party, other)))
    return own.agree(keys_of_other[_KEY_BYTES:], purpose, _KEY_BYTES)


class IdealClient(Client):
    """The ideal form: no keys, no shares, no masks, and messages of the same lengths."""

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


class Server(_Machine):
    """The server of a session, for vectors of `width` words. Every step takes the messages of the clients
    that are still there, by party, and gives what goes to clients; ProtocolError ends the session."""

    def __init__(self, terms: Terms, width: int) -> None:
        super().__init__(terms)
        self.width = width
        self._keys: dict[int, bytes] = {}
        self._sharing: set[int] = set()
        self._summed: set[int] = set()
        self._total: np.ndarray | None = np.zeros(width, dtype=np.uint64)

    def all_keys(self, messages: Mapping[int, bytes]) -> bytes:
        """For everybody: the public keys of all."""
        with self._step(0, "the clients' keys"):
            self._keys = {p: self._body(messages[p], "keys", self._known(p)) for p in sorted(messages)}
            self._enough(len(self._keys), "that advertise keys")
            none = bytes(_KEYS_BYTES)
            if none in self._keys.values():
                raise ProtocolError("a client advertises a key of zeros")
            told = b"".join(self._keys.get(party, none) for party in range(self.terms.clients))
            message = self._tag("all_keys", _EVERYONE) + told
            self._session = self.terms.session(told)
            return message

    def forward(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """For every client its shares of the others' secrets."""
        with self._step(1, "the sealed shares"):
            self._enough(len(messages), "that have shared their keys")
            sealed = {}
            for party, message in messages.items():
                body = self._body(message, "sealed_shares", self._known(party, self._keys))
                others = [p for p in range(self.terms.clients) if p != party]
                sealed[party] = _rows(body, _SEALED_BYTES, others)
                if sealed[party].keys() != self._keys.keys() - {party}:
                    raise ProtocolError(f"client {party} has not one share for every other client")
            self._sharing = {*sealed}
            none = bytes(_SEALED_BYTES)
            told = {}
            for party in sealed:
                others = [p for p in range(self.terms.clients) if p != party]
                rows = b"".join(sealed[p][party] if p in sealed else none for p in others)
                told[party] = self._tag("forwarded_shares", party) + rows
            return told

    def add_masked(self, party: int, message: bytes) -> None:
        """Add the masked vector of a client, as it comes: one after the other, in any order."""
        with self._step(2, "a masked vector"):
            if party in self._summed:
                raise ProtocolError(f"a second masked vector of client {party}")
            if len(message) != (expected := self.terms.sizes(self.width)["masked"]):
                raise ProtocolError(f"a masked vector of {len(message)} bytes where {expected} are expected")
            known = self._known(party, self._sharing)
            if bytes(message[:_TAG_BYTES]) != self._tag("masked", known):
                raise ProtocolError(f"not the masked vector of client {party} in this session")
            assert self._total is not None
            self._total += np.frombuffer(message, dtype="<u8", offset=_TAG_BYTES)
            self._summed.add(party)
        self._at = 2

    def request(self) -> bytes:
        """For all whose masked vector has come, from whom nothing more is taken: which secrets to open."""
        with self._step(2, "the end of the masked vectors"):
            self._enough(len(self._summed), "whose masked vector has come")
            wanted = bytearray(self.terms.clients)
            for party in self._sharing:
                wanted[party] = _SEED if party in self._summed else _KEY
            return self._tag("survivors", _EVERYONE) + bytes(wanted)

    def open(self, messages: Mapping[int, bytes]) -> np.ndarray:
        """The sum over the clients whose masked vector came, [w] int64 modulo 2^64."""
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
        if party not in (range(self.terms.clients) if among is None else among):
            raise ProtocolError(f"a message of client {party}, which has no part in this step")
        return party

    def _forget(self) -> None:
        self._total = None

    # What the ideal form leaves out.

    def _unmask(self, total: np.ndarray, answers: Mapping[int, bytes]) -> None:
        from graphfed.crypto.pairwise import KeyPair, add_masks

        summed, dropped = sorted(self._summed), sorted(self._sharing - self._summed)
        plus: list[bytes] = []
        minus = list(self._opened(summed, answers).values())
        for gone, private in self._opened(dropped, answers).items():
            masking = KeyPair(private)
            if masking.public != self._keys[gone][_KEY_BYTES:]:
                raise ProtocolError(f"the shares of client {gone}'s key open to another key: one was altered")
            for party in summed:
                key = _mask_key(masking, self._session, gone, party, self._keys[party])
                (minus if party < gone else plus).append(key)
        add_masks(total, plus, minus)

    def _opened(self, parties: list[int], answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """The secrets of some clients, from the first t answers: all at once, since the same clients have
        shares of all of them."""
        if not parties:
            return {}
        rows = {
            holder: b"".join(body[p * _SECRET_BYTES : (p + 1) * _SECRET_BYTES] for p in parties)
            for holder, body in list(answers.items())[: self.terms.threshold]
        }
        # Shares are numbered from 1.
        secrets = shamir.combine([(holder + 1, row) for holder, row in rows.items()], self.terms.threshold)
        return {p: secrets[i * _SECRET_BYTES : (i + 1) * _SECRET_BYTES] for i, p in enumerate(parties)}


class IdealServer(Server):
    """The ideal form: what comes is the vectors themselves."""

    def _unmask(self, total: np.ndarray, answers: Mapping[int, bytes]) -> None:
        pass
