"""The source of privacy noise: uniform 32-bit words for rows with stable ids.

By default they come from the operating system's entropy, and nobody can draw them again. For experiments that
must repeat there is the setting `noise_seed`: a row's words follow from the seed, the purpose and the row's
id, equally in every placement. Everyone who knows the seed can remove such noise, so the ledger calls it
`simulated` and never protected.
"""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.random import fold, words32

#: Words that are drawn at a time: 16 MiB.
CHUNK = 1 << 22


@dataclass(frozen=True)
class Mechanism:
    """What one release costs, as data.

    Attributes:
        epsilon: Privacy budget of one release.
        release: What one release is, and between which inputs the bound holds.
        delta: Delta of one release.
        sensitivity: Sensitivity of the value that gets noise, in the norm of the mechanism; None if it has
            none.
    """

    name: str
    epsilon: float
    release: str
    delta: float = 0.0
    sensitivity: float | None = None


@dataclass(frozen=True)
class Noise:
    """A source of noise.

    Attributes:
        seed: A seed for noise that can be drawn again; None for the operating system's entropy.
    """

    seed: int | None = None

    def words(self, purpose: str, ids: Tensor, width: int) -> Tensor:
        """Draw independent words, all 2^32 values equally likely.

        With a seed, the same purpose and id give the same words again: use a purpose once only.

        Args:
            purpose: The name of the draws; of no effect without a seed.
            ids: [N] stable ids of the rows.
            width: Number of words for each row.

        Returns:
            [N, width] int32.
        """
        if self.seed is not None:
            return words32(fold(self.seed, "privacy noise", purpose), ids, width)
        # A bytearray, because torch needs memory that it may write to.
        drawn = bytearray(os.urandom(4 * len(ids) * width))
        if not drawn:
            return torch.empty(len(ids), width, dtype=torch.int32, device=ids.device)
        return torch.frombuffer(drawn, dtype=torch.int32).view(len(ids), width).to(ids.device)

    def protection(self, mechanism: Mechanism) -> str:
        """Return the protection of a release for the ledger.

        Args:
            mechanism: What one release costs.

        Returns:
            ``ldp(eps=2)``, ``ldp(eps=2, delta=1e-05)`` or ``simulated``.
        """
        # Whoever knows the seed can remove the noise, so nothing is protected.
        if self.seed is not None:
            return "simulated"
        delta = f", delta={mechanism.delta:g}" if mechanism.delta else ""
        return f"ldp(eps={mechanism.epsilon:g}{delta})"


def chunks(rows: int, width: int) -> list[slice]:
    """Divide rows into parts for which memory suffices.

    Args:
        rows: Number of rows, may be 0.
        width: Number of words for each row.

    Returns:
        Consecutive slices of at most CHUNK words, or of one row.
    """
    step = max(1, CHUNK // max(width, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
