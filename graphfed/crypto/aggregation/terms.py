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

`client.IdealClient` and `server.IdealServer` are the simulated form: the same steps, the same sum and
messages of the same lengths, without keys and masks. Their server can read every vector. They are for
simulated runs only and are labelled `simulated`.

Cost for w words: a client sends 64 + 80 (n - 1) + 8 w + 32 n bytes and 8 bytes per tag, and computes 2 (n -
1) key agreements and n masks. The server removes one mask for each client in the sum, and one for each pair
of a client in the sum and a client that dropped out after it shared its keys.
"""

import hashlib
from dataclasses import dataclass

from graphfed.crypto import shamir
from graphfed.errors import InputError

#: The smallest number of clients: of two, each could subtract its own vector from the sum.
FEWEST_CLIENTS = 3
#: The name of the protocol, in every hash and key.
PROTOCOL = b"graphfed secure aggregation 1"
#: Bytes of the tag of a message.
TAG_BYTES = 8
#: Bytes of a public key; of a client's two public keys (for sealing, for masks); of each of its two secrets
#: (the private key for masks, the seed).
KEY_BYTES, KEYS_BYTES, SECRET_BYTES = 32, 64, 32
#: Bytes of the sealed shares of both secrets for one client.
SEALED_BYTES = 2 * SECRET_BYTES + 16
#: The secret that a request asks for: the seed of a client in the sum, or the key of one that dropped out.
SEED, KEY = 1, 2
#: The party in the tag of a message that the server sends to all clients.
EVERYONE = 2**32 - 1
#: The step of a session that has ended.
OVER = -1


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
            label: What the session is for; it separates sessions.
            clients: n, at least 3, those that are invited.

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
        sealed = TAG_BYTES + SEALED_BYTES * (self.clients - 1)
        return {
            "keys": TAG_BYTES + KEYS_BYTES,
            "all_keys": TAG_BYTES + KEYS_BYTES * self.clients,
            "sealed_shares": sealed,
            "forwarded_shares": sealed,
            "masked": TAG_BYTES + 8 * width,
            "survivors": TAG_BYTES + self.clients,
            "unmask": TAG_BYTES + SECRET_BYTES * self.clients,
        }

    def session(self, keys: bytes) -> bytes:
        """Compute the session's name.

        Args:
            keys: The public keys of all clients; empty before they are known.

        Returns:
            A hash of the terms and the keys, 32 bytes.
        """
        label = self.label.encode()
        # The length comes first, so that no label continues into the keys.
        numbers = [len(label), self.clients, self.threshold]
        return hashlib.sha256(
            PROTOCOL + b"".join(n.to_bytes(4, "little") for n in numbers) + label + keys
        ).digest()


def _default_threshold(clients: int) -> int:
    # The least t with t > 2 n / 3.
    return 2 * clients // 3 + 1
