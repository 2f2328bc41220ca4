"""Samplers of neighbourhoods: which entries of a sparse adjacency a layer keeps, and what each then weighs so
that the layer's sum stays what it was on average.

All work on the entries of n rows that leave a layer, [E] in the order of the rows, from draws that are given
(see `graphfed.random`): a sampler decides nothing by itself. A row's own entry (its self loop) is `own`
there."""

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Kept", "by_chance", "fan_out", "in_proportion"]


@dataclass(frozen=True, eq=False)
class Kept:
    """Entries that are kept: which [e], ascending numbers, and factor [e], what each one's weight is
    multiplied by."""

    which: Tensor
    factor: Tensor


def by_chance(draw: Tensor, p: Tensor, row: Tensor, own: Tensor, counts: Tensor, ratio: bool) -> Kept:
    """Every entry of row i with the chance p [n] of its row, in (0, 1], own ones always (FedGraph, Alg. 2).

    draw [E] uniform in [0, 1); row [E] in 0..n-1, ascending; own [E] bool, one in each row; counts [n]:
    entries of each row. The factor of the others is the ratio of their number in the row to the number that
    is kept (Eq. 7), whose mean, where any is kept, is the full sum; or 1 / p (Horvitz and Thompson 1952),
    whose mean is the full sum."""
    size = len(draw)
    which = (own | (draw < torch.repeat_interleave(p, counts, output_size=size))).nonzero()[:, 0]
    rows = row[which]
    if ratio:
        left = torch.bincount(rows, minlength=len(counts)) - 1
        of_row = (counts - 1).double() / left.clamp(min=1)
    else:
        of_row = 1 / p.double()
    return Kept(which, of_row[rows].masked_fill_(own[which], 1.0))


def fan_out(draw: Tensor, most: Tensor, row: Tensor, own: Tensor, counts: Tensor) -> Kept:
    """In row i its own entry and at most `most` [n] others, those of the smallest draws, with the ratio of
    the others' number to that of those kept as their factor (GraphSAGE's sampler, here without replacement:
    with most at the row's degree it is the full sum). The rest: see `by_chance`."""
    others = counts - 1
    kept = torch.ones_like(own)
    crowded = torch.repeat_interleave(others > most, counts, output_size=len(draw))
    large = (crowded & ~own).nonzero()[:, 0]
    if len(large):
        rows = row[large]
        order = torch.argsort(rows + draw[large])
        first = torch.searchsorted(rows, rows)  # of the row, among these entries
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        kept[large] = rank - first < most[rows]
    which = kept.nonzero()[:, 0]
    of_row = others.double() / others.minimum(most).clamp(min=1)
    return Kept(which, of_row[row[which]].masked_fill_(own[which], 1.0))


def in_proportion(times: Tensor, chance: Tensor, draws: Tensor) -> Kept:
    """The entries of a column that was drawn, with what it is expected to have been drawn below what it was
    (FastGCN's importance sampling).

    times [E]: how often the entry's column was drawn; chance [E]: of each single draw; draws [E]: how many
    there were."""
    which = (times > 0).nonzero()[:, 0]
    return Kept(which, times[which].double() / (draws[which].double() * chance[which].double()))
