"""What several attacks share: how targets are selected, how what was found is scored, and how it is worded.

Shapes: n rows, F features.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.base import Finding
from graphfed.federation.cohort import Cohort

T = TypeVar("T")

NO_NEIGHBOUR = "no node has a neighbour at another client"
UNPROVEN = "no leak found by this attack, which does not prove that there is none"
SERVER_READS = "leaks exactly: the server reads these features and does not need to guess"
OTHER_NOISE = "; the noise was drawn again from the same distribution"


def not_measured(why: str, baseline: str = "-") -> Finding:
    """Return the finding of a check that cannot be made."""
    return Finding(why, baseline, "not measured", None)


# ---- selection ---------------------------------------------------------------------------------------------


def spread(items: Sequence[T], count: int) -> list[T]:
    """Select up to `count` items, at least one, evenly spread over their order."""
    # The first and the last item are among them.
    places = np.linspace(0, len(items) - 1, max(1, min(count, len(items)))).round().astype(int)
    return [items[place] for place in places]


def sample(random: np.random.Generator, count: int, most: int) -> np.ndarray:
    """Draw up to `most` of the numbers below `count`, ascending."""
    return np.sort(random.permutation(count)[:most])


def count_remote_pairs(cohort: Cohort) -> int:
    """Count the pairs of a client and a node of another client that is a neighbour of its nodes."""
    # Several nodes of a client may have the same neighbour, which counts once.
    receivers = cohort.client[cohort.cross_row]
    return len(torch.unique(torch.stack([receivers, cohort.cross_id]), dim=1).T)


def rows_of(cohort: Cohort, ids: Tensor) -> Tensor:
    """Find a row of the cohort for each node."""
    # A node of several clients has several rows with equal features; the first one found is used.
    known, order = torch.sort(cohort.id)
    return order[torch.searchsorted(known, ids)]


# ---- scores ------------------------------------------------------------------------------------------------


def largest_errors(found: Tensor, truth: Tensor) -> Tensor:
    """Return the largest error of each row, relative to its largest true number, [n]."""
    # Relative to the row and not to each number: a sparse row has many true zeros.
    errors: Tensor = (found - truth).abs().amax(1) / truth.abs().amax(1).clamp(min=1e-30)
    return errors


def cosines(found: Tensor, truth: Tensor) -> Tensor:
    """Return the cosines of rows, [n]; 0 if a row is 0."""
    lengths = found.norm(dim=1) * truth.norm(dim=1)
    cosine: Tensor = (found * truth).sum(1) / lengths.clamp(min=1e-30)
    return cosine.clamp(-1, 1)


def explained(found: Tensor, truth: Tensor, guess: Tensor) -> float:
    """Return the fraction of the squared error of a guess that what was found leaves out; at least 0."""
    # Clamped at 0: an attacker that does worse than the guess would use the guess.
    left, squares = ((values - truth).square().sum() for values in (found, guess))
    return max(0.0, 1 - float(left / squares.clamp(min=1e-30)))


def interval(draws: Any) -> tuple[float, float]:
    """Return the 95 % interval of the draws of a bootstrap."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)
