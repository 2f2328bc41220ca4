"""n-out-of-n secret sharing of numbers, as SAPGNN uses it.

Reference: SAPGNN, section 3.3, Eq. (21) and Eq. (22).

Additive shares are integers modulo 2^64. A float is rounded to the nearest multiple of 2^-24, in two's
complement, and the n shares add up to it.

Security: information-theoretic. Any n - 1 shares are independent uniform words: n - 1 shares are drawn from
the operating system's entropy, and the last share is the number minus their sum, which is also uniform.
Corruption model: all parties follow the protocol, and at least one of the n parties does not reveal its
share. What leaks: nothing as long as one share is missing, and the number once all shares are known.

Sums of additive shares are shares of the sum, exactly, while the sum stays within 63 bits. `encode` limits
each of n numbers so that no sum of them can overflow.
"""

import os

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError

#: Bits after the point of a number on the ring. Rounding changes a number by at most 2^-25.
FRACTION_BITS = 24
#: Bound of the absolute value of every sum: 2^39 * 2^24 = 2^63.
LARGEST_SUM = 2.0**39


def encode(x: Tensor, terms: int) -> Tensor:
    """Encode floats as ring elements, such that sums of `terms` of them are exact.

    Args:
        x: Floats of any shape [...]; they are rounded to multiples of 2^-24.
        terms: Largest number of values in a sum.

    Returns:
        int64 [...].

    Raises:
        InputError: A number is not finite, or is at least 2^39 / terms in absolute value, so that a sum
            could overflow.
    """
    limit = LARGEST_SUM / terms
    # Written so that NaN, which compares as false, is refused too.
    if not bool((x.abs() < limit).all()):
        worst = float(x.abs().max())
        raise InputError(
            f"a value of size {worst:g} cannot be shared among {terms}: it must be finite and below "
            f"{limit:g}; training has diverged, use a smaller learning rate"
        )
    # float64 before scaling: the product with 2^24 is exact, so the number is rounded once.
    return (x.double() * 2.0**FRACTION_BITS).round().long()


def decode(ring: Tensor, dtype: torch.dtype) -> Tensor:
    """Decode ring elements.

    Args:
        ring: int64 of any shape [...], in two's complement.
        dtype: The dtype of the result. float32 keeps 24 significant bits.

    Returns:
        Floats [...].
    """
    return (ring.double() * 2.0**-FRACTION_BITS).to(dtype)


def additive_shares(secret: Tensor, parties: int) -> Tensor:
    """Split every ring element into additive shares.

    Args:
        secret: int64 of any shape [...], as `encode` gives it.
        parties: n, the number of shares, at least 1.

    Returns:
        int64 [..., n]; the shares add up to the secret modulo 2^64.
    """
    drawn = _random_words((*secret.shape, parties - 1), secret.device)
    # int64 arithmetic of torch wraps around, so this is the difference modulo 2^64.
    return torch.cat([drawn, (secret - drawn.sum(-1))[..., None]], -1)


def _random_words(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Draw uniform 64-bit words from the operating system's entropy, as int64."""
    size = int(np.prod(shape))
    # A bytearray, because torch needs memory that it may write to.
    words = np.frombuffer(bytearray(os.urandom(8 * size)), dtype=np.int64)
    return torch.from_numpy(words).view(shape).to(device)
