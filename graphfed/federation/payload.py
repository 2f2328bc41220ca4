"""Operations on what a transfer carries: tensors, sparse rows, per-client weights, and dictionaries of them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.nn.sparse import SparseMatrix, SparseWeights

__all__ = [
    "add",
    "add_rows",
    "concat_rows",
    "describe",
    "detach",
    "dtype_of",
    "max_rows",
    "part_bytes",
    "part_of",
    "row_bytes",
    "stack",
    "take_rows",
    "tensors_in",
    "tree_map",
    "weighted_sum",
]

Rows = Tensor | SparseMatrix


def tree_map(fn: Callable[[Any], Any], *trees: Any) -> Any:
    """Apply `fn` to the leaves of payloads of the same structure (dictionaries and tuples of leaves)."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: tree_map(fn, *(t[key] for t in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(tree_map(fn, *items) for items in zip(*trees, strict=True))
    return fn(*trees)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a payload in order."""
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in leaves(item)]
    if isinstance(tree, tuple):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def tensors_in(tree: Any) -> list[Tensor]:
    """The floating tensors of a payload, which can carry a gradient, in order."""
    return [x for x in leaves(tree) if isinstance(x, Tensor) and x.is_floating_point()]


def _detach_leaf(x: Any) -> Any:
    if isinstance(x, SparseWeights):
        return x.with_values(x.values.detach())
    return x.detach() if isinstance(x, Tensor) else x


def detach(tree: Any) -> Any:
    """The payload without its history."""
    return tree_map(_detach_leaf, tree)


def add(left: Any, right: Any) -> Any:
    """Leaf by leaf sum of two payloads of tensors."""
    return tree_map(torch.add, left, right)


def stack(parts: Sequence[Any]) -> Any:
    """Payloads of single clients -> one payload with a leading client dimension."""
    return tree_map(lambda *xs: torch.stack(xs), *parts)


def weighted_sum(tree: Any, weights: Tensor) -> Any:
    """sum_k weights[k] * x_k for per-client values ([K, ...] tensors or `SparseWeights`), leaf by leaf."""

    def leaf(x: Any) -> Tensor:
        if isinstance(x, SparseWeights):
            return x.weighted_sum(weights)
        scale = weights.to(x.dtype)
        total: Tensor = (scale @ x.reshape(len(scale), -1)).reshape(x.shape[1:])
        return total

    return tree_map(leaf, tree)


def part_of(tree: Any, k: int) -> Any:
    """Client k's own value out of per-client values, in full."""
    return tree_map(lambda x: x.part(k) if isinstance(x, SparseWeights) else x[k], tree)


def concat_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], SparseMatrix):
        starts = np.cumsum([0, *(p.shape[0] for p in parts)]).tolist()
        return SparseMatrix.from_coo(
            torch.cat([p.row + s for p, s in zip(parts, starts, strict=False)]),  # type: ignore[union-attr]
            torch.cat([p.indices.long() for p in parts]),  # type: ignore[union-attr]
            torch.cat([p.values for p in parts]),  # type: ignore[union-attr]
            (starts[-1], parts[0].shape[1]),
        )
    return torch.cat(parts)  # type: ignore[arg-type]


def take_rows(x: Rows, index: Tensor) -> Rows:
    """The rows of `x` at `index` [M]."""
    return x.select_rows(index) if isinstance(x, SparseMatrix) else x[index]


def split_rows(x: Rows, sizes: Sequence[int]) -> list[Rows]:
    """The rows of `x` cut into consecutive parts."""
    if isinstance(x, Tensor):
        return list(x.split(list(sizes)))
    ends = np.cumsum(sizes).tolist()
    device = x.values.device
    return [x.select_rows(torch.arange(e - s, e, device=device)) for s, e in zip(sizes, ends, strict=True)]


def add_rows(x: Rows, index: Tensor, num_rows: int) -> Rows:
    """Row u of the result is the sum of the rows m of `x` with index[m] = u: [num_rows, ...]."""
    if isinstance(x, SparseMatrix):
        width = x.shape[1]
        codes, where = torch.unique(index[x.row] * width + x.indices.long(), return_inverse=True)
        values = torch.zeros(len(codes), dtype=x.dtype, device=codes.device).index_add_(0, where, x.values)
        return SparseMatrix.from_coo(codes // width, codes % width, values, (num_rows, width))
    return torch.zeros((num_rows, *x.shape[1:]), dtype=x.dtype, device=x.device).index_add(0, index, x)


def max_rows(x: Tensor, index: Tensor, num_rows: int) -> Tensor:
    """Row u of the result is the elementwise maximum of the rows m of `x` with index[m] = u: [M, H] -> [num_rows, H].

    The gradient goes to the row that won; of equal rows the first wins, that is the client with the lowest id, so ties break
    alike in every placement. A row without parts is -inf."""
    where = index[:, None].expand_as(x)
    value = x.detach()
    bottom = torch.full((num_rows, x.shape[1]), -torch.inf, dtype=x.dtype, device=x.device)
    top = bottom.scatter_reduce(0, where, value, "amax")
    row = torch.arange(len(x), device=x.device)[:, None].expand_as(x)
    row = torch.where(value == top[index], row, len(x))
    none = torch.full((num_rows, x.shape[1]), len(x), device=x.device)
    winner = none.scatter_reduce(0, where, row, "amin")
    return torch.cat([x, bottom[:1]]).gather(0, winner) if num_rows else bottom


def row_bytes(x: Rows) -> int:
    """Payload bytes of one row. Sparse rows cross as dense ones: F numbers each, however they are stored at either end."""
    element = (x.values if isinstance(x, SparseMatrix) else x).element_size()
    return int(np.prod(x.shape[1:], dtype=np.int64)) * element


def part_bytes(tree: Any, *, per_client: bool) -> int:
    """Payload bytes of one client's part; `per_client` values have a leading client dimension that is not counted."""

    def leaf(x: Any) -> int:
        element = (x.values if isinstance(x, SparseWeights) else x).element_size()
        return int(np.prod(_part_shape(x, per_client), dtype=np.int64)) * element

    return sum(leaf(x) for x in leaves(tree))


def _part_shape(x: Any, per_client: bool) -> list[int]:
    if isinstance(x, SparseWeights):
        return list(x.part_shape)
    return list(x.shape[1:] if per_client else x.shape)


def describe(tree: Any, *, per_client: bool) -> Any:
    """The shapes in one client's part, for the ledger."""
    if isinstance(tree, tuple):
        tree = {str(i): item for i, item in enumerate(tree)}
    return tree_map(lambda x: _part_shape(x, per_client), tree)


def dtype_of(tree: Any) -> str:
    """The dtypes in a payload, as text."""
    return ",".join(sorted({str(x.dtype).removeprefix("torch.") for x in leaves(tree)}))
