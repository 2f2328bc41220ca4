"""What two clients make of a secret that they share and the server between them does not: keys, sealed
messages and masks.

X25519 (RFC 7748) gives two clients a secret that takes the private key of one of them to compute, and
HKDF-SHA256 (RFC 5869) one key for every purpose. A sealed message is AES-256-GCM under a key that seals
nothing else, so its nonce is fixed. A mask is the key stream of AES-256 in counter mode under a key of full
256 bits that masks nothing else: to who lacks the key it cannot be told from uniform words.

The one module that needs `cryptography` for secure aggregation."""

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
#: Words masked at a time: a block and its key stream stay in the processor's cache.
_BLOCK = 1 << 16
_NONCE = bytes(12)


class KeyPair:
    """A fresh X25519 key, or the one of 32 private bytes. public: 32 bytes."""

    def __init__(self, private: bytes | None = None) -> None:
        made = (
            X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
        )
        self._private, self.public = made, made.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        return self._private.private_bytes_raw()

    def agree(self, public: bytes, purpose: bytes, length: int) -> bytes:
        """`length` bytes that the owners of both keys compute for a purpose, and nobody else can.

        ProtocolError for a point of low order, with which everybody could."""
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise ProtocolError(
                "a client's public key is a point of low order, which keeps no secret"
            ) from None
        return HKDF(hashes.SHA256(), length, salt=None, info=purpose).derive(shared)


def seal(key: bytes, message: bytes, about: bytes) -> bytes:
    """`message` and 16 bytes more, under a key that seals this message only; `about` is authenticated with
    it."""
    return AESGCM(key).encrypt(_NONCE, message, about)


def open_sealed(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """What was sealed; ProtocolError where it was not, under this key and about this."""
    try:
        return AESGCM(key).decrypt(_NONCE, sealed, about)
    except InvalidTag:
        raise ProtocolError(
            "a sealed share does not open: it was altered, or sealed for another client or in another session"
        ) from None


def add_masks(total: np.ndarray, plus: Sequence[bytes], minus: Sequence[bytes]) -> None:
    """Add the masks of the keys `plus` to `total` [w] uint64, modulo 2^64 and in place, and take those of
    `minus` away. Works block by block: no mask is ever whole."""
    streams = [(_stream(key), np.add) for key in plus] + [(_stream(key), np.subtract) for key in minus]
    size = min(_BLOCK, len(total))
    zeros = memoryview(bytes(8 * size))
    # The library asks for a cipher block's room more than it fills.
    room = bytearray(8 * size + 16)
    words = np.frombuffer(room, dtype="<u8")
    for start in range(0, len(total), size or 1):
        block = total[start : start + size]
        for stream, apply in streams:
            stream.update_into(zeros[: 8 * len(block)], room)
            apply(block, words[: len(block)], out=block)


def _stream(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
