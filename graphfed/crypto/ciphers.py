"""What oblivious transfer takes from the package cryptography: points of P-256, AES as a stream and as a
fixed permutation. The one module of the two-party protocols that needs it: their sizes and their simulated
form do without."""

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

__all__ = ["agreed", "drawn_point", "encoded", "new_key", "permuted", "point", "stream"]

_FIXED_KEY = hashlib.sha256(b"graphfed fixed-key hash").digest()[:16]
_CURVE = ec.SECP256R1()
_permutation = Cipher(algorithms.AES(_FIXED_KEY), modes.ECB()).encryptor()


def new_key() -> ec.EllipticCurvePrivateKey:
    """A secret key, from the operating system's entropy."""
    return ec.generate_private_key(_CURVE)


def drawn_point() -> bytes:
    """A uniform point whose secret key nobody has: x is drawn until the curve has it, and the sign of y."""
    while True:
        drawn = os.urandom(33)
        told = bytes([2 + (drawn[0] & 1)]) + drawn[1:]
        try:
            found = ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, told)
        except ValueError:
            continue
        return encoded(found)


def encoded(key: ec.EllipticCurvePublicKey) -> bytes:
    """A point, both coordinates, in 65 bytes."""
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def point(told: bytes) -> ec.EllipticCurvePublicKey:
    """The point of its bytes. ValueError where they are none of the curve's."""
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, told)


def agreed(mine: ec.EllipticCurvePrivateKey, theirs: ec.EllipticCurvePublicKey) -> bytes:
    """The Diffie-Hellman secret of two keys."""
    return mine.exchange(ec.ECDH(), theirs)


def stream(seed: bytes) -> CipherContext:
    """AES in counter mode under a seed of 16 bytes."""
    return Cipher(algorithms.AES(seed), modes.CTR(bytes(16))).encryptor()


def permuted(blocks: memoryview) -> bytes:
    """Blocks of 16 bytes, each through AES under a fixed key."""
    return _permutation.update(blocks)
