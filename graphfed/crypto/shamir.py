"""Threshold secret sharing: any t of n shares give the secret, and t - 1 shares say nothing about it.

Reference: Shamir, "How to share a secret", CACM 1979.

A secret is one or more elements of GF(2^128), 16 bytes each. Share i of an element is f(i), where f is a
polynomial of degree t - 1 with f(0) equal to the element. The other coefficients of f are drawn from the
operating system's entropy.

Security: information-theoretic. For any t - 1 shares and any element there is exactly one such polynomial,
so every secret is equally likely given t - 1 shares. Corruption model: up to t - 1 parties may combine
their shares. What leaks: the length of the secret. There is no integrity check: a wrong share opens a
different secret, and `combine` cannot notice it. Running times depend on the secrets, so an attacker who
can measure times on this machine is not covered.

The field and the shares are those of pycryptodome's `Crypto.Protocol.SecretSharing.Shamir` with ssss=False.
The tests open the shares of each implementation with the other. That package is not used here because it is
too slow for secure aggregation, which opens one secret of every client in a round: it takes 40 ms to share
32 bytes among 50 clients and 91 ms to open them, which adds up to seconds per round. This module processes
all elements together as lanes of 20 bytes in one large integer, so opening the secrets of 50 clients costs
little more than opening one.
"""

import os
from collections.abc import Sequence
from functools import lru_cache

from graphfed.crypto.errors import ProtocolError

ELEMENT_BYTES = 16
#: Indices of shares have 16 bits. Index 0 is not a share: f(0) is the secret.
MAX_PARTIES = 2**16 - 1
#: x^128 + x^7 + x^2 + x + 1
_POLYNOMIAL = 2**128 + 0b10000111
#: Bytes of a lane: one element, and room for the overflow of a product with an index.
_LANE_BYTES = 20


def split(secret: bytes, threshold: int, parties: int) -> list[bytes]:
    """Split a secret into shares.

    Args:
        secret: A positive multiple of 16 bytes: elements of the field, one after another.
        threshold: t, the number of shares that open the secret.
        parties: n, the number of shares, less than 2^16.

    Returns:
        The shares of parties 1 to n, each as long as the secret.

    Raises:
        ValueError: The length is not a positive multiple of 16, or not 1 <= threshold <= parties < 2^16.
    """
    if not secret or len(secret) % ELEMENT_BYTES:
        raise ValueError(
            f"a secret must have a positive multiple of {ELEMENT_BYTES} bytes, got {len(secret)}"
        )
    if not 1 <= threshold <= parties <= MAX_PARTIES:
        raise ValueError(f"threshold {threshold} of {parties}: expected 1 <= threshold <= parties < 2^16")
    lanes = len(secret) // ELEMENT_BYTES
    # Highest power first; the constant term is the secret.
    coefficients = [_lanes(os.urandom(len(secret))) for _ in range(threshold - 1)] + [_lanes(secret)]
    shares = []
    for index in range(1, parties + 1):
        value = 0
        for coefficient in coefficients:  # Horner's rule for f(index)
            value = _times_small(value, index, lanes) ^ coefficient
        shares.append(_elements(value, lanes))
    return shares


def combine(shares: Sequence[tuple[int, bytes]], threshold: int) -> bytes:
    """Open a secret.

    Shares of several secrets may be concatenated: they are opened together at the cost of one.

    Args:
        shares: Exactly `threshold` pairs (index, share), with the indices that `split` gave, from 1.
        threshold: t, the number of shares that `split` was given.

    Returns:
        The secret, as long as a share.

    Raises:
        ProtocolError: The number of shares is not `threshold`, an index is repeated or out of range, or the
            shares are empty or of different lengths.
    """
    # Everything is checked: a share that came with a wrong index would open another secret unnoticed.
    indices = [index for index, _ in shares]
    if len(shares) != threshold:
        raise ProtocolError(f"{len(shares)} shares were given, and exactly {threshold} open the secret")
    if len({*indices}) != threshold or not all(1 <= index <= MAX_PARTIES for index in indices):
        raise ProtocolError(
            f"the shares have the indices {indices[:8]}; indices must be distinct and from 1 to {MAX_PARTIES}"
        )
    sizes = sorted({len(share) for _, share in shares})
    if len(sizes) != 1 or not sizes[0] or sizes[0] % ELEMENT_BYTES:
        raise ProtocolError(
            f"shares must have one length, a multiple of {ELEMENT_BYTES} bytes; got {sizes[:8]}"
        )
    # f(0) = sum_j factor_j f(x_j). Addition in GF(2^128) is the exclusive or.
    lanes = sizes[0] // ELEMENT_BYTES
    secret = 0
    for factor, (_, share) in zip(_lagrange(tuple(indices)), shares, strict=True):
        secret ^= _times(_lanes(share), factor, lanes)
    return _elements(secret, lanes)


@lru_cache(maxsize=16)
def _lagrange(indices: tuple[int, ...]) -> tuple[int, ...]:
    """Compute the Lagrange coefficient of each share at 0: prod_{m != j} x_m / (x_j + x_m)."""
    factors = []
    for index in indices:
        numerator = denominator = 1
        # In characteristic 2, x_m - x_j and x_j + x_m are both x_j ^ x_m.
        for other in indices:
            if other != index:
                numerator, denominator = (
                    _times_small(numerator, other, 1),
                    _times_small(denominator, index ^ other, 1),
                )
        factors.append(_times(numerator, _inverse(denominator), 1))
    return tuple(factors)


# ---- GF(2^128): bit i of an element is the coefficient of x^i ----------------------------------------------


@lru_cache(maxsize=64)
def _masks(lanes: int) -> tuple[int, int]:
    """Return the mask of the elements in their lanes, and the mask of the lowest 32 bits of every lane."""
    ones = int.from_bytes(b"".join([(1).to_bytes(_LANE_BYTES, "big")] * lanes), "big")
    return ones * (2**128 - 1), ones * (2**32 - 1)


def _times_small(elements: int, factor: int, lanes: int) -> int:
    """Multiply the element of every lane by a factor of at most 17 bits."""
    # Carry-less product of all lanes at once: a shift cannot reach the next lane, which is 32 bits away.
    product = 0
    while factor:
        if factor & 1:
            product ^= elements
        elements <<= 1
        factor >>= 1
    # x^128 = x^7 + x^2 + x + 1: fold the overflow of every lane back into its element.
    inside, low = _masks(lanes)
    overflow = (product >> 128) & low
    return (product & inside) ^ overflow ^ (overflow << 1) ^ (overflow << 2) ^ (overflow << 7)


def _times(elements: int, factor: int, lanes: int) -> int:
    """Multiply the element of every lane by the same factor of 128 bits."""
    product = 0
    # Horner's rule on the factor's digits of 16 bits, which `_times_small` can multiply by.
    for shift in range(112, -1, -16):
        high = _times_small(product, 1 << 16, lanes)
        product = high ^ _times_small(elements, (factor >> shift) & 0xFFFF, lanes)
    return product


def _inverse(element: int) -> int:
    """Invert an element by Euclid's algorithm on polynomials.

    Reference:
        Hankerson, Menezes and Vanstone, "Guide to elliptic curve cryptography" (2004), algorithm 2.48.
    """
    u, v, g, h = element, _POLYNOMIAL, 1, 0
    while u != 1:
        shift = u.bit_length() - v.bit_length()
        if shift < 0:
            u, v, g, h, shift = v, u, h, g, -shift
        u ^= v << shift
        g ^= h << shift
    return g


def _lanes(data: bytes) -> int:
    """Put elements of 16 bytes each into the lanes of one integer."""
    gap = bytes(_LANE_BYTES - ELEMENT_BYTES)
    parts = [gap + data[i : i + ELEMENT_BYTES] for i in range(0, len(data), ELEMENT_BYTES)]
    return int.from_bytes(b"".join(parts), "big")


def _elements(value: int, lanes: int) -> bytes:
    """Take the elements out of their lanes, as bytes."""
    data = value.to_bytes(lanes * _LANE_BYTES, "big")
    gap = _LANE_BYTES - ELEMENT_BYTES
    return b"".join(data[i + gap : i + _LANE_BYTES] for i in range(0, len(data), _LANE_BYTES))
