"""Samplers of neighbours: the entries of a sparse adjacency that a layer keeps, and the factor of each, so
that the mean of the layer's sum stays the full sum.

All samplers work on the E entries of n rows that leave a layer, in the order of the rows, with draws that are
given (`graphfed.random`). A row's entry for the node itself (its self loop) is called its self entry.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Sampled:
    """The sampled entries.

    Attributes:
        entries: Positions of the sampled entries, ascending, [e].
        factor: The factor of the weight of each, [e].
    """

    entries: Tensor
    factor: Tensor


def sample_independently(
    draw: Tensor, p: Tensor, row: Tensor, is_self: Tensor, counts: Tensor, ratio: bool
) -> Sampled:
    """Sample every entry with its probability, independently; self entries always.

    A sampled entry has the factor of Eq. (7): the number of the row's entries over the number of those that
    are sampled, both without the self entry. Given that at least one is sampled, the mean of the row's sum is
    then the full sum, if the row's probabilities are equal. The other factor is 1 / p (Horvitz and Thompson
    1952); the mean of the row's sum is then always the full sum. A self entry has the factor 1.

    Args:
        draw: A uniform number in [0, 1) for each entry, [E].
        p: The sampling probability of each entry, in [0, 1], [E].
        row: The row of each entry, ascending, [E].
        is_self: Whether an entry is a self entry, one in each row, bool [E].
        counts: The number of entries of each row, [n].
        ratio: Whether the factor is the ratio of Eq. (7), and not 1 / p.

    Reference:
        FedGraph, Alg. 2, line 4, and Eq. (7).
    """
    # Alg. 2, l. 4
    entries = (is_self | (draw < p)).nonzero()[:, 0]
    if ratio:
        # Eq. (7)
        num_sampled = torch.bincount(row[entries], minlength=len(counts)) - 1
        factor = ((counts - 1).double() / num_sampled.clamp(min=1))[row[entries]]
    else:
        factor = 1 / p[entries].double()
    return Sampled(entries, factor.masked_fill_(is_self[entries], 1.0))


def sample_fan_out(draw: Tensor, most: Tensor, row: Tensor, is_self: Tensor, counts: Tensor) -> Sampled:
    """Sample a fixed number of entries of a row, as GraphSAGE, but without replacement.

    The self entry is always sampled, with the factor 1. Of the other entries those with the smallest draws
    are sampled, with the number of the row's other entries over the number of those that are sampled as
    their factor. If `most` is at least the row's degree, the result is the full sum.

    Args:
        draw: A uniform number in [0, 1) for each entry, [E].
        most: The fan-out of each row, [n].
        row: The row of each entry, ascending, [E].
        is_self: Whether an entry is a self entry, one in each row, bool [E].
        counts: The number of entries of each row, [n].
    """
    others = counts - 1
    is_sampled = torch.ones_like(is_self)
    exceeds = torch.repeat_interleave(others > most, counts, output_size=len(draw))
    large = (exceeds & ~is_self).nonzero()[:, 0]
    if len(large):
        rows = row[large]
        order = torch.argsort(rows + draw[large])
        first = torch.searchsorted(rows, rows)  # the position of the row's first entry in `large`
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        is_sampled[large] = rank - first < most[rows]
    entries = is_sampled.nonzero()[:, 0]
    of_row = others.double() / others.minimum(most).clamp(min=1)
    return Sampled(entries, of_row[row[entries]].masked_fill_(is_self[entries], 1.0))


def sample_by_importance(times: Tensor, probability: Tensor, draws: Tensor) -> Sampled:
    """Select the entries of drawn columns (FastGCN's importance sampling).

    The factor of an entry is the number of times that its column was drawn over the expected number, so the
    mean over all draws is the full sum.

    Args:
        times: How often the column of each entry was drawn, [E].
        probability: The probability of that column in a single draw, [E].
        draws: The number of draws of the entry's client, [E].
    """
    entries = (times > 0).nonzero()[:, 0]
    return Sampled(
        entries, times[entries].double() / (draws[entries].double() * probability[entries].double())
    )
