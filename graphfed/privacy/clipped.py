"""Clipped vectors with Gaussian noise, as a wrapper around a transfer.

Every vector along the last dimension is scaled down to a 2-norm of at most `clip`, so that any two differ by
at most 2 clip, and N(0, (noise_multiplier * 2 clip)^2) is added to each number, from the operating system's
entropy. The release of one vector is a Gaussian mechanism with this noise multiplier, whatever the vector is
computed from. The guarantee is for real numbers; `privacy.gaussian` says what floating-point numbers leave
open.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.privacy.gaussian import clipped, normal
from graphfed.privacy.noise import Noise, chunks


@dataclass(frozen=True)
class ClippedNoise:
    """A wrapper that clips the vectors of a transfer and adds noise to them.

    Attributes:
        clip: Largest 2-norm of a vector.
        noise_multiplier: Standard deviation of the noise, divided by the sensitivity 2 clip.
        protection: The protection that the ledger shows, such as ``dp(eps=8, delta=1e-05)``.
    """

    clip: float
    noise_multiplier: float
    protection: str | None

    @property
    def gradients(self) -> bool:
        """Whether gradients can flow back through the transfer: they cannot."""
        return False

    @property
    def draws_noise(self) -> bool:
        """Whether each encoding is a release of its own: it is."""
        return True

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each number."""
        return self.noise_multiplier * 2 * self.clip

    @property
    def reach(self) -> float:
        """A bound that almost no encoded number exceeds: the largest clipped number and four standard
        deviations.
        """
        return self.clip + 4 * self.deviation

    def encode(self, x: Tensor) -> Tensor:
        """Clip vectors and add noise.

        Args:
            x: [n, ..., H], vectors along the last dimension; one that is not finite counts as 0.

        Returns:
            [n, ..., H].
        """
        width = x.shape[-1]
        bounded = clipped(x, self.clip).reshape(-1, width)
        noised = torch.empty_like(bounded)
        # Without a seed the ids only count the rows.
        ids = torch.arange(len(bounded), device=x.device)
        for rows in chunks(len(bounded), 2 * width):
            # Two uniform words give two normal numbers, so an odd width draws one more.
            words = Noise().words("", ids[rows], 2 * math.ceil(width / 2))
            noised[rows] = bounded[rows] + self.deviation * normal(words, width).to(x.dtype)
        return noised.view_as(x)

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        """Convert received vectors to a dtype.

        Args:
            encoded: [n, ..., H], the vectors with their noise.
            dtype: The dtype that the vectors had before they were encoded.

        Returns:
            [n, ..., H].
        """
        return encoded.to(dtype)
