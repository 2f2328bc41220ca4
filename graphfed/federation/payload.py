"""Operations on what a transfer carries: tensors, sparse rows, per-client weights, and dictionaries of
them."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.federation.ledger import Shape
from graphfed.nn.maxpool import neighbour_max, sparse_maxima
from graphfed.nn.sparse import SparseMatrix, SparseWeights, multiply

__all__ = [
    "FLOATING",
    "Leaf",
    "Payload",
    "Rows",
    "add",
    "add_rows",
    "concat_rows",
    "densify",
    "describe",
    "detach",
    "dtype_of",
    "floating_leaves",
    "grad_carrier",
    "leaves",
    "max_rows",
    "part_of",
    "parts",
    "split_rows",
    "stack",
    "take_rows",
    "tensors_in",
    "tree_map",
    "unit_bytes",
    "weighted_sum",
]

Rows = Tensor | SparseMatrix
#: A tensor of a payload: in full, as sparse rows, or as the sparse first-layer weights of each client.
Leaf = Tensor | SparseMatrix | SparseWeights
#: What a transfer carries: leaves, in dictionaries (by text) and tuples, however deep.
Payload = Leaf | dict[str, Any] | tuple[Any, ...]
P = TypeVar("P", bound=Payload)

#: The floating dtypes a payload may have, by name.
FLOATING = {
    str(d).removeprefix("torch."): d for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)
}


def tree_map(fn: Callable[..., Leaf], tree: P, *others: P) -> P:
    """Apply `fn` to the leaves of payloads of the same structure; the result has that structure too."""
    mapped: P = _map(fn, tree, *others)
    return mapped


def _map(fn: Callable[..., Leaf], *trees: Any) -> Any:
    first = trees[0]
    if isinstance(first, dict):
        return {key: _map(fn, *(tree[key] for tree in trees)) for key in first}
    if isinstance(first, tuple):
        return tuple(_map(fn, *items) for items in zip(*trees, strict=True))
    return fn(*trees)


def leaves(tree: Payload) -> list[Leaf]:
    """The leaves of a payload in order."""
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in leaves(item)]
    if isinstance(tree, tuple):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def floating_leaves(tree: Payload) -> list[Tensor | SparseWeights]:
    """The leaves that can carry a gradient, in order: floating tensors and per-client sparse weights."""
    return [x for x in leaves(tree) if isinstance(x, Tensor | SparseWeights) and x.dtype.is_floating_point]


def grad_carrier(leaf: Tensor | SparseWeights) -> Tensor:
    """The tensor of a floating leaf that autograd knows."""
    return leaf.values if isinstance(leaf, SparseWeights) else leaf


def tensors_in(tree: Payload) -> list[Tensor]:
    """The tensors of a payload that can carry a gradient, in order."""
    return [grad_carrier(x) for x in floating_leaves(tree)]


def _detach_leaf(x: object) -> Leaf:
    if isinstance(x, Tensor):
        return x.detach()
    if isinstance(x, SparseWeights):
        return x.with_values(x.values.detach())
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values.detach()) if x.values.requires_grad else x
    raise PlaceError(
        "a payload holds tensors, sparse matrices and sparse weights, in dictionaries and tuples; "
        f"found a {type(x).__name__}"
    )


def detach(tree: P) -> P:
    """The payload without its history. Raises PlaceError for what could not be sent to another process."""
    detached: P = _map(_detach_leaf, tree)
    return detached


def densify(tree: Payload) -> Any:
    """The payload in plain tensors: sparse rows as dense ones, sparse weights as every client's own."""

    def leaf(x: Leaf) -> Tensor:
        if isinstance(x, SparseWeights):
            return _all_parts(x)
        return x.to_dense() if isinstance(x, SparseMatrix) else x

    return _map(leaf, tree)


def add(left: P, right: P) -> P:
    """Leaf by leaf sum of two payloads of tensors."""
    return tree_map(torch.add, left, right)


def stack(parts: Sequence[P]) -> P:
    """Payloads of single clients -> one payload with a leading client dimension."""
    return tree_map(lambda *xs: torch.stack(xs), *parts)


def weighted_sum(tree: Payload, weights: np.ndarray) -> Any:
    """sum_k weights[k] * x_k for per-client values ([K, ...] tensors or `SparseWeights`), leaf by leaf.

    weights [K] float64. A tensor's clients of weight 0 do not count even where their values are not
    finite."""
    used = np.flatnonzero(weights)
    keep = None if len(used) == len(weights) else torch.from_numpy(used)
    scale = torch.from_numpy(weights)

    def leaf(x: Tensor | SparseWeights) -> Tensor:
        if isinstance(x, SparseWeights):
            return x.weighted_sum(scale.to(x.values.device))
        s = scale.to(x)
        if keep is not None:
            x, s = x[keep.to(x.device)], s[keep.to(x.device)]
        total: Tensor = (s @ x.reshape(len(s), math.prod(x.shape[1:]))).reshape(x.shape[1:])
        return total

    return _map(leaf, tree)


def part_of(tree: Payload, k: int) -> Any:
    """Client k's own value out of per-client values, in full."""
    return _map(lambda x: x.part(k) if isinstance(x, SparseWeights) else x[k], tree)


def parts(tree: Payload, clients: Tensor) -> Any:
    """The own values of the given clients [n] out of per-client values, in full: [n, ...] tensors."""

    def leaf(x: Tensor | SparseWeights) -> Tensor:
        whole = _all_parts(x) if isinstance(x, SparseWeights) else x
        return whole if len(clients) == len(whole) else whole[clients]

    return _map(leaf, tree)


def _all_parts(x: SparseWeights) -> Tensor:
    """Every client's weights in full, [K, F, H]: K times what one client's weights take."""
    every = x.ghost.expand(x.num_clients, *x.part_shape)
    stored = x.values[: len(x.pair_client)]
    return every.index_put((x.pair_client, x.pair_feature), stored)


def concat_rows(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    sparse = [p for p in parts if isinstance(p, SparseMatrix)]
    if sparse:
        entries = np.cumsum([0, *(len(p.indices) for p in sparse)]).tolist()
        pointers = [p.indptr[1:] + start for p, start in zip(sparse, entries, strict=False)]
        return SparseMatrix.from_csr(
            torch.cat([sparse[0].indptr[:1], *pointers]),
            torch.cat([p.indices for p in sparse]),
            torch.cat([p.values for p in sparse]),
            (sum(p.shape[0] for p in sparse), sparse[0].shape[1]),
        )
    return torch.cat([p for p in parts if isinstance(p, Tensor)])


def take_rows(x: Rows, index: Tensor) -> Rows:
    """The rows of `x` at `index` [M]."""
    return x.select_rows(index) if isinstance(x, SparseMatrix) else x[index]


def split_rows(x: Rows, sizes: Sequence[int]) -> list[Rows]:
    """The rows of `x` cut into consecutive parts."""
    if isinstance(x, Tensor):
        return list(torch.split(x, list(sizes)))
    ends = np.cumsum(sizes).tolist()
    return [x.slice_rows(e - s, e) for s, e in zip(sizes, ends, strict=True)]


def add_rows(x: Rows, index: Tensor, num_rows: int) -> Rows:
    """Row u of the result is the sum of the rows m of `x` with index[m] = u: [num_rows, ...]."""
    if isinstance(x, SparseMatrix):
        rows = torch.arange(len(index), device=index.device)
        ones = torch.ones(len(index), dtype=x.dtype, device=index.device)
        return multiply(SparseMatrix.from_coo(index, rows, ones, (num_rows, len(index))), x)
    return torch.zeros((num_rows, *x.shape[1:]), dtype=x.dtype, device=x.device).index_add(0, index, x)


def max_rows(x: Rows, holders: SparseMatrix) -> Rows:
    """Row u of the result is the elementwise maximum of the rows m of `x` [M, H] with an entry (u, m) in
    `holders` [U, M], each in one row: [U, H]; sparse where `x` is.

    The gradient goes to the row that won; of equal rows the first wins, that is the client with the lowest
    id, so ties break alike in every placement. A row without parts is -inf; a NaN wins, so that it does not
    go unseen."""
    if isinstance(x, SparseMatrix):
        group = torch.empty(len(holders.indices), dtype=torch.int64, device=holders.indices.device)
        group[holders.indices.long()] = holders.row
        return sparse_maxima(x, group, holders.shape[0])
    return neighbour_max(holders, x)


def unit_bytes(tree: Payload, *, leading: bool) -> int:
    """Payload bytes of one row or of one client's part. `leading`: the first dimension counts rows or
    clients.

    Sparse rows and weights are counted as the dense ones they stand for: so they cross, however an end stores
    them."""
    return sum(math.prod(_unit_shape(x, leading)) * x.dtype.itemsize for x in leaves(tree))


def _unit_shape(x: Leaf, leading: bool) -> list[int]:
    if isinstance(x, SparseWeights):
        return list(x.part_shape)
    return list(x.shape[1:] if leading else x.shape)


def describe(tree: Payload, *, leading: bool) -> Shape:
    """The shape of one unit (see `unit_bytes`), for the ledger; of a dictionary or tuple, the shapes by
    name."""
    if isinstance(tree, dict):
        return {str(key): describe(item, leading=leading) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return {str(i): describe(item, leading=leading) for i, item in enumerate(tree)}
    return _unit_shape(tree, leading)


def dtype_of(tree: Payload) -> str:
    """The dtypes in a payload, as text."""
    return ",".join(sorted({str(x.dtype).removeprefix("torch.") for x in leaves(tree)}))
