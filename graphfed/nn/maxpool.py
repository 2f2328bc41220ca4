"""Elementwise maxima over neighbours, and the updates that commute with them (SAPGNN, docs/papers/sapgnn.md).

Let sets of neighbours, which may overlap, cover all neighbours. The maximum over all neighbours is then the
maximum of the maxima a_p over the sets. An update U(h, a) of the pooled messages a preserves this exactly if
every output coordinate is max_j g_j(a_j; h) with each g_j nondecreasing (max-separable): then
max_p U(h, a_p) = U(h, max_p a_p).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphfed.nn.pattern import count_pointers
from graphfed.nn.sparse import SparseMatrix

#: The gradient looks for the neighbour with the maximum by a cumulative sum over all entries of a row if the
#: rows have more than MANY_ENTRIES entries, or the gradient has fewer than FEW_NUMBERS numbers; else entry by
#: entry. Each is the faster of the two there.
MANY_ENTRIES, FEW_NUMBERS = 1024, 2048


class _NeighbourMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pattern: SparseMatrix, messages: Tensor) -> Tensor:
        top = messages.new_full((pattern.shape[0], messages.shape[1]), -torch.inf)
        for rows, neighbours in pattern.pattern.buckets:
            received = messages.index_select(0, neighbours.flatten()).view(*neighbours.shape, -1)
            top[rows] = received.amax(0)
        ctx.pattern = pattern
        ctx.save_for_backward(messages, top)
        return top

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        messages, top = ctx.saved_tensors
        messages_grad = torch.zeros_like(messages)
        for rows, neighbours in ctx.pattern.pattern.buckets:
            remaining = grad.index_select(0, rows)
            # [width, n, H], 1 where a neighbour has the maximum; rows with equal maxima have several ones.
            is_max = messages.index_select(0, neighbours.flatten()).view(*neighbours.shape, -1)
            torch.eq(is_max, top.index_select(0, rows), out=is_max)
            if len(neighbours) > MANY_ENTRIES or remaining.numel() < FEW_NUMBERS:
                # Of several ones only the first has a cumulative sum of 1.
                is_max.mul_(is_max.cumsum(0) == 1).mul_(remaining)
            else:
                # The first neighbour with the maximum takes all of the gradient; nothing remains for others.
                for entry in is_max:
                    entry.mul_(remaining)
                    remaining.sub_(entry)
            messages_grad.index_add_(0, neighbours.flatten(), is_max.flatten(0, 1))
        return None, messages_grad


def neighbour_max(pattern: SparseMatrix, messages: Tensor) -> Tensor:
    """Take the elementwise maximum of the messages of each row's neighbours. Differentiable in `messages`.

    The gradient goes to the neighbour with the maximum; of equal ones to that with the lowest number.

    Args:
        pattern: [N, M]; the stored entries (i, j) say that j is a neighbour of i. Values are not used.
        messages: [M, H], what each node sends to those that have it as a neighbour.

    Returns:
        [N, H]; -inf for a row without neighbours.

    Reference:
        SAPGNN, Eq. (5).
    """
    result: Tensor = _NeighbourMax.apply(pattern, messages)  # type: ignore[no-untyped-call]
    return result


def sparse_maxima(x: SparseMatrix, group: Tensor, num_groups: int) -> SparseMatrix:
    """Take the elementwise maximum of the rows of each group. Not differentiable.

    Args:
        x: [M, F]. An entry that is not stored counts as zero.
        group: [M] int64, the group of each row.
        num_groups: G, groups without rows included.

    Returns:
        [G, F], without stored zeros; zero for a group without rows.
    """
    width = x.shape[1]
    # Sort the entries by (group, column), then take the maximum of each run.
    codes = group[x.row] * width + x.indices
    codes, order = codes.sort(stable=True)
    entries, counts = torch.unique_consecutive(codes, return_counts=True)
    ends = count_pointers(counts)
    top = torch.segment_reduce(x.values[order], "max", offsets=ends, unsafe=True)
    row, column = entries // width, entries % width
    # If a row of the group does not store the column, a zero takes part in the maximum.
    rows_in = torch.bincount(group, minlength=num_groups)[row]
    top = torch.where(counts < rows_in, top.clamp(min=0), top)
    kept = top != 0
    return SparseMatrix.from_coo(row[kept], column[kept], top[kept], (num_groups, width))


@dataclass(frozen=True)
class LocalUpdate:
    """A max-separable update U(h, a) of a node's embedding h and its pooled messages a.

    Attributes:
        apply: apply(own [N, H], pooled [N, H], weight) returns [N, width * H]. The weight is [H, H], or
            [N, H, H] with one for each row; None for an update without a weight. Where `pooled` is -inf, the
            coordinates that depend on it are -inf.
        width: The width of the result, divided by H.
        why: In which form the update is max-separable.
        weighted: Whether the update has a weight.
        odd: How the update serves minima. True: with minimum in the place of maximum, the update is
            -U(-h, -a, -weight). False: it is -U(h, -a), so h keeps its sign.
    """

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
    is_empty = pooled.isneginf()
    # Zero in the place of -inf, because the product of -inf with a zero gradient is NaN.
    return torch.where(is_empty, pooled, own.sigmoid() * pooled.masked_fill(is_empty, 0))


def _tropical(own: Tensor, pooled: Tensor, weight: Tensor | None) -> Tensor:
    assert weight is not None
    # Column by column, because pooled[:, :, None] + weight is [N, H, H].
    columns = [(pooled + weight[..., k]).amax(1) for k in range(weight.shape[-1])]
    return torch.cat([own, torch.stack(columns, 1)], 1)


#: The admissible updates by name.
UPDATES: dict[str, LocalUpdate] = {
    "concat": LocalUpdate(_concat, 2, "h || a: every coordinate is h_k or a_k"),
    "sum": LocalUpdate(_sum, 1, "h + a: g_k(a_k) = h_k + a_k"),
    "product": LocalUpdate(_product, 1, "sigmoid(h) a: the multiplier is never negative", odd=False),
    "tropical": LocalUpdate(_tropical, 2, "h || max_j (a_j + w_jk): max-plus linear", weighted=True),
}
