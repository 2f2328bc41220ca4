"""Where privacy noise comes from: uniform 32-bit words for rows with stable ids.

By default they come from the operating system's entropy, and nobody can draw them again. For experiments that
must repeat there is a stated `noise_seed`: then a row's words follow from the seed, the purpose and the row's
id, alike in every placement. Whoever knows the seed takes such noise off, so what it covers counts as
`simulated` and never as protected."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.random import fold, words32

__all__ = ["Mechanism", "Noise", "chunks"]

#: Words that are drawn at once: 16 MiB of them.
CHUNK = 1 << 22


@dataclass(frozen=True)
class Mechanism:
    """What one release costs, as data.

    name: of the mechanism; epsilon, delta: of one release; sensitivity: of what is noised, in the norm that
    the mechanism asks for (None where it has none); release: what one release is, and between which inputs
    the bound holds."""

    name: str
    epsilon: float
    release: str
    delta: float = 0.0
    sensitivity: float | None = None


@dataclass(frozen=True)
class Noise:
    """A source of noise. seed: None for the operating system's entropy."""

    seed: int | None = None

    def words(self, purpose: str, ids: Tensor, width: int) -> Tensor:
        """[N, width] int32 for rows with ids [N]: all 2^32 values alike likely, all words independent.

        With a seed the same purpose and id give the same words again: a purpose must be used once."""
        if self.seed is not None:
            return words32(fold(self.seed, "privacy noise", purpose), ids, width)
        drawn = bytearray(os.urandom(4 * len(ids) * width))
        if not drawn:
            return torch.empty(len(ids), width, dtype=torch.int32, device=ids.device)
        return torch.frombuffer(drawn, dtype=torch.int32).view(len(ids), width).to(ids.device)

    def protection(self, mechanism: Mechanism) -> str:
        """The class of a release on the ledger: ``ldp(eps=2)``, ``ldp(eps=2, delta=1e-05)`` or
        ``simulated``."""
        if self.seed is not None:
            return "simulated"
        delta = f", delta={mechanism.delta:g}" if mechanism.delta else ""
        return f"ldp(eps={mechanism.epsilon:g}{delta})"


def chunks(rows: int, width: int) -> list[slice]:
    """The rows in pieces of at most CHUNK words, at least one row each: memory for a draw does not grow with
    the number of rows."""
    step = max(1, CHUNK // max(width, 1))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]
