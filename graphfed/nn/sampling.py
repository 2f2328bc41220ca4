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


def by_chance(draw: Tensor, p: Tensor, row: Tensor, own: Tensor, ratio: bool) -> Kept:
    """Every entry with its chance p [E] in (0, 1], own ones always (FedGraph, Alg. 2).

    draw [E] uniform in [0, 1); row [E] in 0..n-1, ascending; own [E] bool. The factor of the others is the
    ratio of their number in the row to the number that is kept (Eq. 7), whose mean, where any is kept, is
    the full sum; or 1 / p (Horvitz and Thompson 1952), whose mean is the full sum."""
    kept = own | (draw < p)
    which = kept.nonzero()[:, 0]
    others, rows = ~own, row[which]
    factor = torch.ones(len(which), dtype=torch.float64, device=draw.device)
    chosen = others[which]
    if not ratio:
        factor[chosen] = 1 / p.double()[which][chosen]
        return Kept(which, factor)
    size = int(row[-1]) + 1 if len(row) else 0
    there, left = (torch.bincount(x, minlength=size).double() for x in (row[others], rows[chosen]))
    factor[chosen] = (there / left)[rows[chosen]]
    return Kept(which, factor)


def fan_out(draw: Tensor, most: Tensor, row: Tensor, own: Tensor) -> Kept:
    """In every row its own entry and at most `most` [E] others (alike in a row), those of the smallest draws,
    with the ratio of the others' number to that of those kept as their factor (GraphSAGE's sampler, here
    without replacement: with most at the row's degree it is the full sum)."""
    others = ~own
    size = torch.bincount(row[others], minlength=int(row[-1]) + 1 if len(row) else 0)[row]
    kept, large = torch.ones_like(own), (others & (size > most)).nonzero()[:, 0]
    if len(large):
        order = torch.argsort(row[large] + draw[large])
        rows = row[large]
        first = torch.searchsorted(rows, rows)  # of the row, among these entries
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order), device=order.device)
        kept[large] = rank - first < most[large]
    which = kept.nonzero()[:, 0]
    there = size[which].double()
    return Kept(which, torch.where(own[which], 1.0, there / there.minimum(most[which].double())))


def in_proportion(times: Tensor, chance: Tensor, draws: Tensor) -> Kept:
    """The entries of a column that was drawn, with what it is expected to have been drawn below what it was
    (FastGCN's importance sampling).

    times [E]: how often the entry's column was drawn; chance [E]: of each single draw; draws [E]: how many
    there were."""
    which = (times > 0).nonzero()[:, 0]
    return Kept(which, times[which].double() / (draws[which].double() * chance[which].double()))
