"""A wrapper for tests of transfers that are wrapped."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cast:
    """Sends floating numbers in a smaller dtype; it hides nothing."""

    dtype: torch.dtype = torch.float16
    gradients: bool = False
    protection: str | None = None
    draws_noise: bool = False

    def encode(self, x: Tensor) -> Tensor:
        return x.to(self.dtype)

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        return encoded.to(dtype)
