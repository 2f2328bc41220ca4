"""Cryptography between two clients whose messages a server relays: key agreement, sealed messages and masks.

Key agreement is X25519 (RFC 7748): the shared secret can be computed only with the private key of one of
the two clients. HKDF-SHA256 (RFC 5869) derives one key for each purpose. A sealed message is AES-256-GCM
under a key that seals one message only, so its nonce is fixed. A mask is the key stream of AES-256 in
counter mode under a key of 256 random bits that is used for one mask only. Without the key, a mask cannot
be distinguished from uniform words.

Security parameter: 128 bits (X25519 under the gap Diffie-Hellman assumption, with HKDF as a random oracle).
Corruption model and leakage are those of the protocol that uses these functions (`aggregation`).

This is the only module of secure aggregation that needs the package `cryptography`.
"""

from collections.abc import Sequence

import numpy as np

from graphfed.crypto.errors import ProtocolError
from graphfed.errors import InputError

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise InputError(
        "secure aggregation needs the package cryptography (45 or newer), which is not installed; install "
        "it: pip install 'graphfed[secure]'"
    ) from None

__all__ = ["TAG_BYTES", "KeyPair", "add_masks", "open_sealed", "seal"]

TAG_BYTES = 16
#: Number of words that are masked at a time. A block and its key stream fit in the processor's cache.
_BLOCK = 1 << 16
_NONCE = bytes(12)


class KeyPair:
    """An X25519 key pair. `public` has 32 bytes.

    Args:
        private: The 32 bytes of an existing private key; None generates a new key.
    """

    def __init__(self, private: bytes | None = None) -> None:
        key = X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
        self._private, self.public = key, key.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        """The private key, 32 bytes. It is enough to compute every secret of this pair."""
        return self._private.private_bytes_raw()

    def agree(self, public: bytes, purpose: bytes, length: int) -> bytes:
        """Compute a secret that only the owners of the two keys can compute.

        Args:
            public: The other client's public key, 32 bytes.
            purpose: What the secret is for; another purpose gives an independent secret.
            length: Number of bytes.

        Returns:
            The secret, `length` bytes.

        Raises:
            ProtocolError: The public key is a point of low order, with which everybody could compute the
                secret.
        """
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise ProtocolError(
                "a client's public key is a point of low order, with which the shared secret is "
                "public; refused"
            ) from None
        return HKDF(hashes.SHA256(), length, salt=None, info=purpose).derive(shared)


def seal(key: bytes, message: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate a message.

    Args:
        key: 32 bytes. The key must seal this message only, because the nonce is fixed.
        message: The message.
        about: Data that is authenticated with the message and not sent, such as sender and receiver.

    Returns:
        The sealed message, 16 bytes longer than the message.
    """
    return AESGCM(key).encrypt(_NONCE, message, about)


def open_sealed(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Decrypt a sealed message and check it.

    Args:
        key: The key that sealed the message.
        sealed: The output of `seal`.
        about: The data that `seal` was given.

    Returns:
        The message.

    Raises:
        ProtocolError: The bytes were not sealed under this key with this `about`.
    """
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, about)
    except InvalidTag:
        raise ProtocolError(
            "a sealed share does not open: it was altered, or sealed for another client or in another session"
        ) from None


def add_masks(total: np.ndarray, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add and subtract masks in place, modulo 2^64.

    The masks are expanded block by block: no mask is in memory as a whole.

    Args:
        total: The words to mask, uint64 [w], changed in place.
        plus: Keys of the masks to add.
        minus: Keys of the masks to subtract.
    """
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    size = min(_BLOCK, len(total))
    zeros = memoryview(bytes(8 * size))
    # The library requires room for one more cipher block than it fills.
    room = bytearray(8 * size + 16)
    words = np.frombuffer(room, dtype="<u8")
    for start in range(0, len(total), size or 1):
        block = total[start : start + size]
        for stream, apply in streams:
            stream.update_into(zeros[: 8 * len(block)], room)
            apply(block, words[: len(block)], out=block)


def _stream(key: bytes) -> CipherContext:
    """Open AES-256 in counter mode, from counter 0."""
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
