"""The client of a session of secure aggregation (`terms` describes the protocol)."""

import os
from collections.abc import Mapping

import numpy as np

from graphfed.crypto import shamir
from graphfed.crypto.aggregation.participant import Participant, agree_mask_key, name_purpose, split_rows
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


class Client(Participant):
    """A client of a session. Every method is one step; ProtocolError ends the session.

    Args:
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

        Raises:
            ProtocolError: The list has other keys for this client, a key twice or too few
                clients, or this step is over.
        """
        with self._step(1, "the list of keys"):
            body = self._body(message, "all_keys", EVERYONE)
            keys = split_rows(body, KEYS_BYTES, range(self.terms.clients))
            self._enough(len(keys), "that advertise keys")
            # With replaced keys of this client, the other clients would share secrets with the server.
            if keys.get(self.party) != self._advertised:
                raise ProtocolError(
                    "the list of keys has other keys for this client than the client advertised"
                )
            # With one key under two names, the server would know both ends of a mask.
            if len({key[i : i + KEY_BYTES] for key in keys.values() for i in (0, KEY_BYTES)}) < 2 * len(keys):
                raise ProtocolError("the list of keys has the same key more than once")
            # From here on tags name the keys of all clients.
            self._keys, self._session = keys, self.terms.session(body)
            sealed = self._seal()
            none = bytes(SEALED_BYTES)
            shares = b"".join(sealed.get(other, none) for other in self._others())
            return self._tag("sealed_shares", self.party) + shares

    def mask(self, message: bytes, vector: np.ndarray) -> bytes:
        """Mask this client's vector.

        Args:
            message: The server's message with the sealed shares for this client.
            vector: int64 or uint64 [w]; it is not changed.

        Returns:
            The message with the masked vector.

        Raises:
            ProtocolError: A share is of a client without keys or cannot be opened, or there are too
                few clients.
            ValueError: `vector` is no vector of 64-bit words.
        """
        if vector.ndim != 1 or vector.dtype not in (np.int64, np.uint64):
            raise ValueError(f"expected a vector of 64-bit words, got {vector.dtype} {vector.shape}")
        with self._step(2, "the shares for this client"):
            body = self._body(message, "forwarded_shares", self.party)
            sealed = split_rows(body, SEALED_BYTES, self._others())
            # Masks are agreed only with clients whose keys were listed.
            if unknown := sealed.keys() - self._keys.keys():
                raise ProtocolError(
                    f"a share of client {min(unknown)} arrived, and that client has not advertised keys"
                )
            self._enough(len(sealed) + 1, "that have shared their keys")
            self._unseal(sealed)
            # The masks cover exactly the clients that have shared their secrets: their masks can be removed.
            self._peers = {self.party, *sealed}
            masked = bytearray(TAG_BYTES + 8 * len(vector))
            masked[:TAG_BYTES] = self._tag("masked", self.party)
            # The vector is masked in the message's own memory, so there is one copy of it.
            total = np.frombuffer(masked, dtype="<u8", offset=TAG_BYTES)
            total[:] = vector.view(np.uint64)
            self._mask(total)
            return bytes(masked)

    def unmask(self, message: bytes) -> bytes:
        """Answer the server's request for shares. A client answers once.

        Args:
            message: The server's request, which names at most one secret of each client.

        Returns:
            The message with this client's shares of the requested secrets.

        Raises:
            ProtocolError: The server asks for what would reveal a vector or asks again, or too few
                clients remain.
        """
        if self._at == OVER and self._peers:
            raise ProtocolError(
                "this client has already answered or refused the session's one request to unmask: with "
                "a second answer the server could open both secrets of a client, and with them its vector"
            )
        with self._step(3, "the request to unmask"):
            requested = np.frombuffer(self._body(message, "survivors", EVERYONE), dtype=np.uint8)
            for is_refused, reason in (
                (requested > KEY, "both secrets of client {}, which would reveal its vector"),
                ((requested > 0) & ~self._are_peers(), "a secret of client {}, which did not share its keys"),
                ((requested == 0) & self._are_peers(), "no secret of client {}, so the sum cannot be opened"),
            ):
                if is_refused.any():
                    secret = reason.format(int(is_refused.argmax()))
                    raise ProtocolError(f"the server asks for {secret}; refused")
            if requested[self.party] != SEED:
                raise ProtocolError(
                    "the server lists this client as dropped out, and asks it for a share of its own private "
                    "key; refused"
                )
            # Below the threshold the sum would be over few clients.
            self._enough(int((requested == SEED).sum()), "whose masked vector has arrived")
            parts = [self._share(party, int(which)) for party, which in enumerate(requested)]
            answer = self._tag("unmask", self.party) + b"".join(parts)
        # One answer for each session: a second one could open the other secret of a client.
        self._at = OVER
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

        # The key for masks and the seed are shared, the key for sealing is not: it is never opened.
        self._seed = os.urandom(SECRET_BYTES)
        secrets = self._masking.private + self._seed
        # Both secrets side by side are four field elements, so one splitting serves both.
        shares = shamir.split(secrets, self.terms.threshold, self.terms.clients)
        self._shares = {self.party: shares[self.party]}
        sealed, self._opening = {}, {}
        for other, keys in self._keys.items():
            if other == self.party:
                continue
            # One key for each direction, from the lower number to the higher and back.
            purpose = name_purpose("seal", self._session, *sorted((self.party, other)))
            keys_of_both_directions = self._sealing.agree(keys[:KEY_BYTES], purpose, 2 * KEY_BYTES)
            upward, downward = keys_of_both_directions[:KEY_BYTES], keys_of_both_directions[KEY_BYTES:]
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
        return name_purpose("share", self._session, sender, receiver)

    def _mask(self, total: np.ndarray) -> None:
        """Add this client's masks to its vector, in place."""
        from graphfed.crypto.pairwise import add_masks

        plus: list[bytes] = [self._seed]
        minus: list[bytes] = []
        for other in self._peers - {self.party}:
            key = agree_mask_key(self._masking, self._session, self.party, other, self._keys[other])
            # The lower number adds and the higher subtracts, so the mask cancels in the sum.
            (plus if self.party < other else minus).append(key)
        add_masks(total, plus, minus)

    def _share(self, party: int, which: int) -> bytes:
        """Return this client's share of one secret of a client, or zeros if none is requested."""
        if not which:
            return bytes(SECRET_BYTES)
        share = self._shares[party]
        return share[SECRET_BYTES:] if which == SEED else share[:SECRET_BYTES]

    def _forget(self) -> None:
        for secret in ("_sealing", "_masking", "_seed", "_shares", "_opening"):
            self.__dict__.pop(secret, None)


class IdealClient(Client):
    """The simulated form of a client: no keys, no shares, no masks, and messages of the same lengths."""

    def _generate(self) -> bytes:
        return b"".join((2 * self.party + i + 1).to_bytes(KEY_BYTES, "little") for i in (0, 1))

    def _seal(self) -> dict[int, bytes]:
        return {other: b"\1" * SEALED_BYTES for other in self._keys if other != self.party}

    def _unseal(self, sealed: Mapping[int, bytes]) -> None:
        pass

    def _mask(self, total: np.ndarray) -> None:
        pass

    def _share(self, party: int, which: int) -> bytes:
        return bytes(SECRET_BYTES)
