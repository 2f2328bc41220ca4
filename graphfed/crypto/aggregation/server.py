"""The server of a session of secure aggregation (`terms` describes the protocol)."""

from collections.abc import Mapping

import numpy as np

from graphfed.crypto import shamir
from graphfed.crypto.aggregation.participant import Participant, agree_mask_key, split_rows
from graphfed.crypto.aggregation.terms import (
    EVERYONE,
    KEY,
    KEY_BYTES,
    KEYS_BYTES,
    OVER,
    SEALED_BYTES,
    SECRET_BYTES,
    SEED,
    TAG_BYTES,
    Terms,
)
from graphfed.crypto.errors import ProtocolError


class Server(Participant):
    """The server of a session. Every method is one step; ProtocolError ends the session.

    The messages of a step are given by party; a missing party has dropped out.

    Args:
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
            messages: By party, the clients' messages of `Client.advertise`.

        Returns:
            The message for all clients, with all public keys.

        Raises:
            ProtocolError: A message is not of a client of this session, keys are zero, or there are too few.
        """
        with self._step(0, "the clients' keys"):
            self._keys = {p: self._body(messages[p], "keys", self._known(p)) for p in sorted(messages)}
            self._enough(len(self._keys), "that advertise keys")
            none = bytes(KEYS_BYTES)
            if none in self._keys.values():
                raise ProtocolError("a client advertises keys of zeros, which mark an absent client")
            # Zeros in the place of an absent client keep every part at its own position.
            all_public = b"".join(self._keys.get(party, none) for party in range(self.terms.clients))
            message = self._tag("all_keys", EVERYONE) + all_public
            self._session = self.terms.session(all_public)
            return message

    def forward(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Forward the sealed shares to the clients that they are for.

        Args:
            messages: By party, the clients' messages of `Client.share_keys`.

        Returns:
            For every client that sent shares, the message with its shares of the other clients' secrets.

        Raises:
            ProtocolError: A client did not send one share for every other client, or there are too few
                clients.
        """
        with self._step(1, "the sealed shares"):
            self._enough(len(messages), "that have shared their keys")
            sealed = {}
            for party, message in messages.items():
                body = self._body(message, "sealed_shares", self._known(party, self._keys))
                others = [p for p in range(self.terms.clients) if p != party]
                sealed[party] = split_rows(body, SEALED_BYTES, others)
                if sealed[party].keys() != self._keys.keys() - {party}:
                    raise ProtocolError(
                        f"client {party} did not send exactly one share for every other client"
                    )
            self._sharing = {*sealed}
            none = bytes(SEALED_BYTES)
            forwarded = {}
            for party in sealed:
                others = [p for p in range(self.terms.clients) if p != party]
                # No share of a client that dropped out after advertising: nobody masks with it.
                rows = b"".join(sealed[p][party] if p in sealed else none for p in others)
                forwarded[party] = self._tag("forwarded_shares", party) + rows
            return forwarded

    def add_masked(self, party: int, message: bytes) -> None:
        """Add one client's masked vector to the sum, in any order of clients.

        Args:
            party: Number of the client that sent it.
            message: The client's message of `Client.mask`, not retained.

        Raises:
            ProtocolError: The client is not expected or sends a second vector, or its vector has another
                length.
        """
        with self._step(2, "a masked vector"):
            if party in self._summed:
                raise ProtocolError(f"a second masked vector of client {party} arrived")
            # Checked in place and not by `_body`, which would copy the vector.
            if len(message) != (expected := self.terms.sizes(self.width)["masked"]):
                raise ProtocolError(f"a masked vector has {len(message)} bytes, and {expected} are expected")
            known = self._known(party, self._sharing)
            if bytes(message[:TAG_BYTES]) != self._tag("masked", known):
                raise ProtocolError(f"the message is not the masked vector of client {party} in this session")
            assert self._total is not None
            self._total += np.frombuffer(message, dtype="<u8", offset=TAG_BYTES)
            self._summed.add(party)
        # The step stays open for the vectors of the other clients.
        self._at = 2

    def request(self) -> bytes:
        """End the collection of masked vectors.

        Returns:
            The message for all clients, which requests their shares of the secrets that open the sum.
        """
        with self._step(2, "the end of the masked vectors"):
            self._enough(len(self._summed), "whose masked vector has arrived")
            requested = bytearray(self.terms.clients)
            # One secret of each client that shared: its seed if its vector is in the sum, else its key for
            # masks.
            for party in self._sharing:
                requested[party] = SEED if party in self._summed else KEY
            return self._tag("survivors", EVERYONE) + bytes(requested)

    def open(self, messages: Mapping[int, bytes]) -> np.ndarray:
        """Open the sum over the clients whose masked vector arrived.

        Args:
            messages: By party, the clients' messages of `Client.unmask`.

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
        self._at = OVER
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
            if masking.public != self._keys[absent][KEY_BYTES:]:
                raise ProtocolError(
                    f"the shares of client {absent}'s private key open to another key: at least one share "
                    "was altered"
                )
            # What each client in the sum has added with the absent one is still in the sum, with its own
            # sign.
            for party in summed:
                key = agree_mask_key(masking, self._session, absent, party, self._keys[party])
                (minus if party < absent else plus).append(key)
        add_masks(total, plus, minus)

    def _opened(self, parties: list[int], answers: Mapping[int, bytes]) -> dict[int, bytes]:
        """Open the secrets of some clients at once, with the shares of the first t clients that answered."""
        if not parties:
            return {}
        rows = {
            client: b"".join(body[p * SECRET_BYTES : (p + 1) * SECRET_BYTES] for p in parties)
            for client, body in list(answers.items())[: self.terms.threshold]
        }
        # Shamir shares are numbered from 1.
        secrets = shamir.combine([(client + 1, row) for client, row in rows.items()], self.terms.threshold)
        return {p: secrets[i * SECRET_BYTES : (i + 1) * SECRET_BYTES] for i, p in enumerate(parties)}


class IdealServer(Server):
    """The simulated form of the server: the messages contain the vectors themselves."""

    def _unmask(self, total: np.ndarray, answers: Mapping[int, bytes]) -> None:
        pass
