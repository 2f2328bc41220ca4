"""Clipped vectors with Gaussian noise, as a wrapper around a transfer.

Every vector along the last dimension is scaled down to a 2-norm of at most `clip`, so that any two differ by
at most 2 clip, and gets N(0, (noise_multiplier * 2 clip)^2) on each number, from the operating system's
entropy. One vector's release is then a Gaussian mechanism with this noise multiplier, whatever the vector was
made from. The guarantee is for real numbers (`privacy.gaussian` says what floating-point ones leave open)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.privacy.gaussian import clipped, normal
from graphfed.privacy.noise import Noise, chunks

__all__ = ["ClippedNoise"]


@dataclass(frozen=True)
class ClippedNoise:
    """See the module. protection: the class that the ledger shows, as in ``dp(eps=8, delta=1e-05)``."""

    clip: float
    noise_multiplier: float
    protection: str | None

    @property
    def gradients(self) -> bool:
        return False

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on each number."""
        return self.noise_multiplier * 2 * self.clip

    @property
    def reach(self) -> float:
        """What nearly no number of an encoding goes beyond: its largest part and four deviations."""
        return self.clip + 4 * self.deviation

    def encode(self, x: Tensor) -> Tensor:
        """x [n, ..., H] clipped, with noise."""
        width = x.shape[-1]
        bounded = clipped(x, self.clip).reshape(-1, width)
        noised = torch.empty_like(bounded)
        ids = torch.arange(len(bounded), device=x.device)
        for rows in chunks(len(bounded), 2 * width):
            words = Noise().words("", ids[rows], 2 * math.ceil(width / 2))
            noised[rows] = bounded[rows] + self.deviation * normal(words, width).to(x.dtype)
        return noised.view_as(x)

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        return encoded.to(dtype)
