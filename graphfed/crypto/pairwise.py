"""Cryptographic primitives between two participants, from the package `cryptography`.

Secure aggregation uses key agreement, sealed messages and masks between two clients whose messages a server
relays, and `channel` the same key agreement. It is X25519 (RFC 7748): the shared secret can be computed only
with the private key of one of the two. HKDF-SHA256 (RFC 5869) derives one key for each purpose. A sealed
message is AES-256-GCM under a key that seals one message only, so its nonce is fixed. A mask is the key
stream of AES-256 in counter mode under a key of 256 random bits that is used for one mask only. Without the
key, a mask cannot be distinguished from uniform words.

Oblivious transfer uses points of the curve P-256, and AES-128 as a stream cipher and as a fixed
permutation.

Security parameter: 128 bits (X25519 under the gap Diffie-Hellman assumption, with HKDF as a random oracle;
computational Diffie-Hellman on P-256). Corruption model and leakage are those of the protocols that use
these functions (`aggregation`, `ot`).

This is the only module of these protocols that needs the package. Their byte counts and simulated forms do
without it.
"""

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from graphfed.crypto.errors import ProtocolError
from graphfed.errors import InputError, how_to_install

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError:
    raise InputError(
        "secure protocols need the package cryptography (45 or newer), which is not installed; install it: "
        f"{how_to_install('secure')}"
    ) from None

TAG_BYTES = 16
#: Number of words that are masked at a time. A block and its key stream fit in the processor's cache.
_BLOCK = 1 << 16
# A key seals one message, so a nonce can repeat under no key.
_NONCE = bytes(12)
# Public, and a hash of a text, so that nobody can have chosen it for a weakness.
_FIXED_KEY = hashlib.sha256(b"graphfed fixed-key hash").digest()[:16]
_CURVE = ec.SECP256R1()
_PERMUTATION = Cipher(algorithms.AES(_FIXED_KEY), modes.ECB())


# ---- for secure aggregation -------------------------------------------------------------------------------


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

    def agree(self, public: bytes, purpose: bytes, length: int, *, salt: bytes | None = None) -> bytes:
        """Compute a secret that only the owners of the two keys can compute.

        Args:
            public: The other client's public key, 32 bytes.
            purpose: What the secret is for; another purpose gives an independent secret.
            length: Number of bytes of the secret, at most 8160 (RFC 5869).
            salt: What else both owners must have in common, such as the hash of what they have sent; None
                for nothing.

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
        # HKDF-Extract needs no salt: X25519 secrets have enough entropy, and the purpose separates keys.
        return HKDF(hashes.SHA256(), length, salt=salt, info=purpose).derive(shared)


def seal(key: bytes, message: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate a message.

    Args:
        key: 32 bytes. The key must seal this message only, because the nonce is fixed.
        message: The plaintext, of any length; the sealed message shows the length.
        about: Data that is authenticated with the message and not sent, such as sender and receiver.

    Returns:
        The sealed message, 16 bytes longer than the message.
    """
    return AESGCM(key).encrypt(_NONCE, message, about)


def open_sealed(key: bytes, sealed: bytes, about: bytes) -> bytes:
    """Decrypt a sealed message and check it.

    Args:
        key: The key that sealed the message.
        sealed: The output of `seal`, with the tag at its end.
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
    streams = [(open_stream(key), np.add) for key in plus] + [
        (open_stream(key), np.subtract) for key in minus
    ]
    # The key stream is AES-CTR applied to zeros; a stream continues from block to block.
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


# ---- for oblivious transfer -------------------------------------------------------------------------------


def new_key() -> ec.EllipticCurvePrivateKey:
    """Generate a private key on P-256 from the operating system's entropy.

    Returns:
        The private key.
    """
    return ec.generate_private_key(_CURVE)


def sample_point() -> bytes:
    """Sample a uniform point of P-256 whose discrete logarithm nobody knows.

    The function draws x coordinates until one belongs to a point, and draws the sign of y.

    Returns:
        The point in 65 bytes, as `encode_point` gives it.
    """
    while True:
        # 32 bytes for x, and the lowest bit of another for the sign of y. Half of all x belong to a point.
        drawn = os.urandom(33)
        compressed = bytes([2 + (drawn[0] & 1)]) + drawn[1:]
        try:
            found = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, compressed)
        except ValueError:
            continue
        return encode_point(found)


def encode_point(key: ec.EllipticCurvePublicKey) -> bytes:
    """Encode a point with both coordinates (uncompressed form).

    Args:
        key: A public key, which is a point of P-256.

    Returns:
        65 bytes.
    """
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def decode_point(encoded: bytes) -> ec.EllipticCurvePublicKey:
    """Decode a point and check that it lies on the curve.

    Args:
        encoded: The bytes of a point, compressed or not.

    Returns:
        The point, as a public key.

    Raises:
        ValueError: The bytes are not a point of P-256.
    """
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, encoded)


def agree_secret(private: ec.EllipticCurvePrivateKey, public: ec.EllipticCurvePublicKey) -> bytes:
    """Compute the Diffie-Hellman secret of a private key and a public key.

    Args:
        private: The private key of this party.
        public: The public key of the other party.

    Returns:
        The x coordinate of the shared point, 32 bytes.
    """
    return private.exchange(ec.ECDH(), public)


def open_stream(key: bytes) -> CipherContext:
    """Open AES in counter mode as a stream of pseudorandom bytes.

    Args:
        key: The key, 16 bytes (AES-128) or 32 bytes (AES-256). A key is used for one stream only, because
            the counter starts at 0.

    Returns:
        A cipher; encrypting zeros with it gives the next bytes of the stream.
    """
    return Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()


def permute_blocks(blocks: memoryview) -> bytes:
    """Apply AES under a fixed, public key to each block.

    Args:
        blocks: A multiple of 16 bytes, block after block.

    Returns:
        As many bytes.
    """
    # A context of its own for each call: two threads may not use one context at the same time.
    return _PERMUTATION.encryptor().update(blocks)
