"""Primitives of the package `cryptography` that oblivious transfer needs: P-256 and AES.

Points of the curve P-256 serve the base transfers; AES serves as a stream cipher and as a fixed
permutation. This is the only module of the two-party protocols that needs the package. The byte counts and
the simulated forms of the protocols do without it.
"""

import hashlib
import os

from graphfed.errors import InputError

try:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
except ImportError:
    raise InputError(
        "secure protocols need the package cryptography (45 or newer), which is not installed; install it: "
        "pip install 'graphfed[secure]'"
    ) from None

__all__ = [
    "agree_secret",
    "decode_point",
    "encode_point",
    "new_key",
    "open_stream",
    "permute_blocks",
    "sample_point",
]

_FIXED_KEY = hashlib.sha256(b"graphfed fixed-key hash").digest()[:16]
_CURVE = ec.SECP256R1()
_permutation = Cipher(algorithms.AES(_FIXED_KEY), modes.ECB()).encryptor()


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


def open_stream(seed: bytes) -> CipherContext:
    """Open AES-128 in counter mode as a stream of pseudorandom bytes.

    Args:
        seed: The key, 16 bytes. A seed is used for one stream only, because the counter starts at 0.

    Returns:
        A cipher; encrypting zeros with it gives the next bytes of the stream.
    """
    return Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()


def permute_blocks(blocks: memoryview) -> bytes:
    """Apply AES under a fixed, public key to each block.

    Args:
        blocks: A multiple of 16 bytes.

    Returns:
        As many bytes.
    """
    return _permutation.update(blocks)
