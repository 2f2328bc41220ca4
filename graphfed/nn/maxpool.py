"""Elementwise maxima over neighbours, and the updates that commute with them.

A maximum over all neighbours is the maximum of the maxima over any parts of them, however these overlap. An
update U(h, a) of the pooled messages a keeps that exactly if every output coordinate is
max_j g_j(a_j; h) with each g_j nondecreasing (max-separable): then max_p U(h, a_p) = U(h, max_p a_p).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphfed.nn.sparse import SparseMatrix

__all__ = ["UPDATES", "LocalUpdate", "neighbour_max", "sparse_maxima"]


#: The winner is looked for entry by entry among so many entries at most, and among fewer numbers all at once.
MANY_ENTRIES, FEW_NUMBERS = 1024, 2048


class _NeighbourMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: SparseMatrix, messages: Tensor) -> Tensor:
        top = messages.new_full((pattern.shape[0], messages.shape[1]), -torch.inf)
        for rows, near in pattern.pattern.buckets:
            there = messages.index_select(0, near.flatten()).view(*near.shape, -1)
            top[rows] = there.amax(0)
        ctx.pattern = pattern
        ctx.save_for_backward(messages, top)
        return top

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        messages, top = ctx.saved_tensors
        given = torch.zeros_like(messages)
        for rows, near in ctx.pattern.pattern.buckets:
            left = grad.index_select(0, rows)
            won = messages.index_select(0, near.flatten()).view(*near.shape, -1)
            torch.eq(won, top.index_select(0, rows), out=won)
            if len(near) > MANY_ENTRIES or left.numel() < FEW_NUMBERS:
                won.mul_(won.cumsum(0) == 1).mul_(left)
            else:
                for there in won:  # the first that won takes the gradient, and leaves nothing
                    there.mul_(left)
                    left.sub_(there)
            given.index_add_(0, near.flatten(), won.flatten(0, 1))
        return None, given


def neighbour_max(pattern: SparseMatrix, messages: Tensor) -> Tensor:
    """max over j of messages_j at the stored entries (i, j) of a pattern [N, M], elementwise: [M, H] -> [N,
    H]; -inf where row i has none.

    The gradient goes to the neighbour that won, of equal ones to that of the lowest row."""
    result: Tensor = _NeighbourMax.apply(pattern, messages)  # type: ignore[no-untyped-call]
    return result


def sparse_maxima(x: SparseMatrix, group: Tensor, num_groups: int) -> SparseMatrix:
    """Row g is the elementwise maximum of the rows m of `x` [M, F] with group[m] = g: [num_groups, F]; zero
    where there are none. No gradient. An entry that is not stored counts as zero."""
    width = x.shape[1]
    codes = group[x.row] * width + x.indices
    codes, order = codes.sort(stable=True)
    found, counts = torch.unique_consecutive(codes, return_counts=True)
    ends = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    top = torch.segment_reduce(x.values[order], "max", offsets=ends, unsafe=True)
    row, column = found // width, found % width
    rows_in = torch.bincount(group, minlength=num_groups)[row]
    top = torch.where(counts < rows_in, top.clamp(min=0), top)
    kept = top != 0
    return SparseMatrix.from_coo(row[kept], column[kept], top[kept], (num_groups, width))


@dataclass(frozen=True)
class LocalUpdate:
    """U(h, a): apply(own [N, H], pooled [N, H], weight [H, H], [N, H, H] for one of each row, or None) -> [N,
    width * H], -inf where `pooled` is.

    weighted: whether it takes a weight; odd: whether U(-h, -a, -weight) is -U(h, a, weight) with minimum for
    maximum, else only h stays as it is; why: in which form it is max-separable."""

    apply: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    width: int
    why: str
    weighted: bool = False
    odd: bool = True


def _concat(own: Tensor, pooled: Tensor, weight: Tensor | None) -> Tensor:
    return torch.cat([own, pooled], 1)


def _sum(own: Tensor, pooled: Tensor, weight: Tensor | None) -> Tensor:
    return own + pooled


def _product(own: Tensor, pooled: Tensor, weight: Tensor | None) -> Tensor:
    none = pooled.isneginf()
    # Zero in place of -inf: its product with a zero gradient would be no number.
    return torch.where(none, pooled, own.sigmoid() * pooled.masked_fill(none, 0))


def _tropical(own: Tensor, pooled: Tensor, weight: Tensor | None) -> Tensor:
    assert weight is not None
    columns = [(pooled + weight[..., k]).amax(1) for k in range(weight.shape[-1])]
    return torch.cat([own, torch.stack(columns, 1)], 1)


#: The admissible updates by name.
UPDATES: dict[str, LocalUpdate] = {
    "concat": LocalUpdate(_concat, 2, "h || a: every coordinate is h_k or a_k"),
    "sum": LocalUpdate(_sum, 1, "h + a: g_k(a_k) = h_k + a_k"),
    "product": LocalUpdate(_product, 1, "sigmoid(h) a: the multiplier is never negative", odd=False),
    "tropical": LocalUpdate(_tropical, 2, "h || max_j (a_j + w_jk): max-plus linear", weighted=True),
}
