"""Threshold sharing of secrets: of n shares any t give the secret back, and t - 1 say nothing of it (Shamir,
"How to share a secret", CACM 1979).

A secret is one or more elements of GF(2^128), 16 bytes each; share i of an element is f(i) for a polynomial f
of degree t - 1 with f(0) the element and its other coefficients drawn from the operating system's entropy.
Through any t - 1 shares and any element there is exactly one such polynomial: to who has t - 1 shares every
secret is equally likely. Nothing tells a wrong share from a right one: it opens to another secret.

The field and the shares are those of pycryptodome's `Crypto.Protocol.SecretSharing.Shamir` (with ssss=False;
it takes 16 bytes at a time), and the tests open the shares of either with the other. It is not used here
because a round of secure aggregation opens a secret of every client: sharing 32 bytes among 50 takes it 40
ms and opening them 91 ms, which is seconds a round. Here all elements go through the same few operations on
one large integer, a lane of 20 bytes each, so that opening the secrets of 50 clients costs little more than
opening one. As there, times depend on the secrets: no shield against who measures them on this machine.
"""

import os
from collections.abc import Sequence
from functools import lru_cache

from graphfed.crypto.errors import ProtocolError

__all__ = ["ELEMENT_BYTES", "MAX_PARTIES", "combine", "split"]

ELEMENT_BYTES = 16
#: Indices of shares have 16 bits, and there is none for 0, where the secret is.
MAX_PARTIES = 2**16 - 1
#: x^128 + x^7 + x^2 + x + 1
_POLYNOMIAL = 2**128 + 0b10000111
#: An element, and room for what a product with an index overflows it by.
_LANE_BYTES = 20


def split(secret: bytes, threshold: int, parties: int) -> list[bytes]:
    """The shares of `secret` (a multiple of 16 bytes) of parties 1 to `parties`, each as long as it.

    ValueError for another length, and unless 1 <= threshold <= parties < 2^16."""
    if not secret or len(secret) % ELEMENT_BYTES:
        raise ValueError(f"a secret has a multiple of {ELEMENT_BYTES} bytes, got {len(secret)}")
    if not 1 <= threshold <= parties <= MAX_PARTIES:
        raise ValueError(f"threshold {threshold} of {parties}: expected 1 <= threshold <= parties < 2^16")
    lanes = len(secret) // ELEMENT_BYTES
    coefficients = [_lanes(os.urandom(len(secret))) for _ in range(threshold - 1)] + [_lanes(secret)]
    shares = []
    for index in range(1, parties + 1):
        value = 0
        for coefficient in coefficients:  # Horner
            value = _times_small(value, index, lanes) ^ coefficient
        shares.append(_elements(value, lanes))
    return shares


def combine(shares: Sequence[tuple[int, bytes]], threshold: int) -> bytes:
    """The secret, from exactly `threshold` shares: (index, share) each, as `split` numbered them. Shares of
    several secrets may be joined end to end: all are opened at once, for what one costs.

    ProtocolError for another number of shares, an index twice or out of range, and shares of unlike lengths
    or none."""
    indices = [index for index, _ in shares]
    if len(shares) != threshold:
        raise ProtocolError(f"{len(shares)} shares, and exactly {threshold} open the secret")
    if len({*indices}) != threshold or not all(1 <= index <= MAX_PARTIES for index in indices):
        raise ProtocolError(f"shares of the parties {indices[:8]}: each has one, numbered from 1")
    sizes = sorted({len(share) for _, share in shares})
    if len(sizes) != 1 or not sizes[0] or sizes[0] % ELEMENT_BYTES:
        raise ProtocolError(f"shares have one length, a multiple of {ELEMENT_BYTES} bytes; got {sizes[:8]}")
    lanes = sizes[0] // ELEMENT_BYTES
    secret = 0
    for factor, (_, share) in zip(_lagrange(tuple(indices)), shares, strict=True):
        secret ^= _times(_lanes(share), factor, lanes)
    return _elements(secret, lanes)


@lru_cache(maxsize=16)
def _lagrange(indices: tuple[int, ...]) -> tuple[int, ...]:
    """What each share counts for at 0: prod_{m != j} x_m / (x_j + x_m)."""
    factors = []
    for own in indices:
        above = below = 1
        for other in indices:
            if other != own:
                above, below = _times_small(above, other, 1), _times_small(below, own ^ other, 1)
        factors.append(_times(above, _inverse(below), 1))
    return tuple(factors)


# ---- GF(2^128): bit i of an element is the coefficient of x^i ----------------------------------------------


@lru_cache(maxsize=64)
def _masks(lanes: int) -> tuple[int, int]:
    """The bits of the elements in their lanes, and the lowest 32 bits of every lane."""
    ones = int.from_bytes(b"".join([(1).to_bytes(_LANE_BYTES, "big")] * lanes), "big")
    return ones * (2**128 - 1), ones * (2**32 - 1)


def _times_small(elements: int, factor: int, lanes: int) -> int:
    """Every lane's element times one of at most 17 bits."""
    product = 0
    while factor:
        if factor & 1:
            product ^= elements
        elements <<= 1
        factor >>= 1
    inside, low = _masks(lanes)
    above = (product >> 128) & low
    return (product & inside) ^ above ^ (above << 1) ^ (above << 2) ^ (above << 7)


def _times(elements: int, factor: int, lanes: int) -> int:
    """Every lane's element times any one."""
    product = 0
    for shift in range(112, -1, -16):
        high = _times_small(product, 1 << 16, lanes)
        product = high ^ _times_small(elements, (factor >> shift) & 0xFFFF, lanes)
    return product


def _inverse(element: int) -> int:
    """1 / element: Euclid's algorithm on polynomials (Hankerson, Menezes and Vanstone 2004, algorithm
    2.48)."""
    u, v, g, h = element, _POLYNOMIAL, 1, 0
    while u != 1:
        shift = u.bit_length() - v.bit_length()
        if shift < 0:
            u, v, g, h, shift = v, u, h, g, -shift
        u ^= v << shift
        g ^= h << shift
    return g


def _lanes(data: bytes) -> int:
    """Elements of 16 bytes each, side by side in one integer."""
    gap = bytes(_LANE_BYTES - ELEMENT_BYTES)
    parts = [gap + data[i : i + ELEMENT_BYTES] for i in range(0, len(data), ELEMENT_BYTES)]
    return int.from_bytes(b"".join(parts), "big")


def _elements(value: int, lanes: int) -> bytes:
    data = value.to_bytes(lanes * _LANE_BYTES, "big")
    gap = _LANE_BYTES - ELEMENT_BYTES
    return b"".join(data[i + gap : i + _LANE_BYTES] for i in range(0, len(data), _LANE_BYTES))
