"""The secure maximum of several parties' numbers, as SAPGNN pools with it (section 4.5.3).

What it is to do: the receiver learns the maximum of every coordinate and not whose it is; who won stays
shared between the computing parties and only selects the gradient's way back (eq. 19).

`IdealMaximum` is the ideal functionality: it gives what the protocol would give, on numbers cut to the same
fixed point, and counts what the protocol would send; every number really reaches the receiver. So it is
labelled `simulated`: it protects nothing, and shows accuracy and cost.

Cost: among m numbers m - 1 comparisons, one after the other, of `BITS`-bit numbers, each below
(lambda + 14) * BITS bits for a security parameter lambda = 128 (CrypTFlow2, Rathee et al. 2020): 568 bytes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.errors import InputError

__all__ = ["BITS", "COMPARISON_BYTES", "IdealMaximum"]

BITS, FRACTION_BITS, SECURITY = 32, 16, 128
COMPARISON_BYTES = (SECURITY + 14) * BITS // 8
#: The word that stands for no number (-inf).
_NONE = -(2 ** (BITS - 1))


@dataclass(frozen=True)
class IdealMaximum:
    """A wrapper (`federation.wrap`): numbers cross as 32-bit fixed point with 16 bits after the point. The
    gradient passes as if they had crossed as they are."""

    protection: str = "simulated"
    gradients: bool = False

    def encode(self, x: Tensor) -> Tensor:
        """[n, H] floats -> int32; -inf, where there is no number, is a word of its own.

        InputError for a number that is not below 2^15 in size."""
        none = x.isneginf()
        known = x.masked_fill(none, 0)
        limit = 2.0 ** (BITS - 1 - FRACTION_BITS)
        if not bool((known.abs() < limit - 1).all()):
            raise InputError(
                f"a value of size {float(known.abs().max()):g} cannot be compared as a {BITS}-bit number: it "
                f"must be finite and below {limit - 1:g}; training has diverged, use a smaller learning rate"
            )
        words = (known.double() * 2.0**FRACTION_BITS).round()
        return words.masked_fill(none, float(_NONE)).to(torch.int32)

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        """[n, H] int32 -> floats."""
        known = (encoded.double() * 2.0**-FRACTION_BITS).to(dtype)
        return known.masked_fill(encoded == _NONE, -torch.inf)
