"""n-out-of-n secret sharing of numbers, as SAPGNN uses it (section 3.3, eqs. 21 and 22).

Additive shares are integers modulo 2^64: a float stands for the nearest multiple of 2^-24 in two's
complement, and n shares add up to it. Boolean shares are 64-bit words whose exclusive or it is. Any n - 1
shares of a number are independent uniform words: n - 1 of the shares are drawn from the operating system's
entropy, and what is left over is the number shifted by their sum, which is uniform whatever the number.
Without every share nothing is learned; with all of them everything.

Sums of additive shares are shares of the sum, exactly, as long as it stays within 63 bits; `encode` keeps
every one of n numbers so small that no sum of them can leave the ring. Boolean shares cannot be added: the
exclusive or of shares of several numbers opens to the numbers' exclusive or.

Secure against parties that follow the protocol, as long as one of the n keeps its share to itself.
"""

import os

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError

__all__ = [
    "FRACTION_BITS",
    "additive_shares",
    "boolean_shares",
    "decode",
    "encode",
    "open_additive",
    "open_boolean",
]

#: Bits after the point of a number on the ring: what crosses is wrong by at most 2^-25.
FRACTION_BITS = 24
#: Sums stay below this in size: 2^39 * 2^24 = 2^63.
LARGEST_SUM = 2.0**39


def encode(x: Tensor, terms: int) -> Tensor:
    """Floats as ring elements, int64 of the same shape; sums of `terms` of them are exact.

    InputError for a number that is not finite, or so large that a sum could overflow (2^39 / terms)."""
    limit = LARGEST_SUM / terms
    if not bool((x.abs() < limit).all()):
        worst = float(x.abs().max())
        raise InputError(
            f"a value of size {worst:g} cannot be shared among {terms}: it must be finite and below "
            f"{limit:g}; training has diverged, use a smaller learning rate"
        )
    return (x.double() * 2.0**FRACTION_BITS).round().long()


def decode(ring: Tensor, dtype: torch.dtype) -> Tensor:
    """Ring elements as floats."""
    return (ring.double() * 2.0**-FRACTION_BITS).to(dtype)


def additive_shares(secret: Tensor, parties: int) -> Tensor:
    """`parties` shares of every ring element: int64 [...] -> [..., parties], whose sum is the secret."""
    drawn = _random_words((*secret.shape, parties - 1), secret.device)
    return torch.cat([drawn, (secret - drawn.sum(-1))[..., None]], -1)


def boolean_shares(secret: Tensor, parties: int) -> Tensor:
    """`parties` shares of every word: int64 [...] -> [..., parties], whose exclusive or is the secret."""
    drawn = _random_words((*secret.shape, parties - 1), secret.device)
    return torch.cat([drawn, _xor(torch.cat([drawn, secret[..., None]], -1))[..., None]], -1)


def open_additive(shares: Tensor) -> Tensor:
    """What all shares [..., parties] stand for, [...] int64."""
    return shares.sum(-1)


def open_boolean(shares: Tensor) -> Tensor:
    """What all shares [..., parties] stand for, [...] int64."""
    return _xor(shares)


def _xor(words: Tensor) -> Tensor:
    result = words[..., 0]
    for party in range(1, words.shape[-1]):
        result = result ^ words[..., party]
    return result


def _random_words(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Uniform 64-bit words from the operating system's entropy, as int64."""
    size = int(np.prod(shape))
    words = np.frombuffer(bytearray(os.urandom(8 * size)), dtype=np.int64)
    return torch.from_numpy(words).view(shape).to(device)
