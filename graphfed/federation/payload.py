"""Operations on payloads: tensors, sparse rows and per-client weights, in dictionaries and tuples."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.federation.ledger import Shape
from graphfed.nn.maxpool import neighbour_max, sparse_maxima
from graphfed.nn.sparse import SparseMatrix, SparseWeights, multiply

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
    """Apply a function to the leaves of payloads of the same structure.

    Args:
        fn: Gets a leaf of each payload, returns a leaf.

    Returns:
        The results, in the structure of the payloads.
    """
    mapped: P = _map(fn, tree, *others)
    return mapped


def _map(fn: Callable[..., Leaf], *trees: Any) -> Any:
    first = trees[0]
    if isinstance(first, dict):
        if len(trees) == 1:
            # The usual case, a flat dictionary of one payload, without a call for each leaf.
            return {k: _map(fn, x) if isinstance(x, dict | tuple) else fn(x) for k, x in first.items()}
        return {key: _map(fn, *[tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple):
        return tuple([_map(fn, *items) for items in zip(*trees, strict=True)])
    return fn(*trees)


def leaves(tree: Payload) -> list[Leaf]:
    """List the leaves of a payload."""
    if isinstance(tree, dict):
        return [leaf for item in tree.values() for leaf in leaves(item)]
    if isinstance(tree, tuple):
        return [leaf for item in tree for leaf in leaves(item)]
    return [tree]


def floating_leaves(tree: Payload) -> list[Tensor | SparseWeights]:
    """List the leaves that can carry a gradient: floating tensors and per-client sparse weights."""
    return [x for x in leaves(tree) if isinstance(x, Tensor | SparseWeights) and x.dtype.is_floating_point]


def grad_carrier(leaf: Tensor | SparseWeights) -> Tensor:
    """Return the tensor of a floating leaf that autograd tracks."""
    return leaf.values if isinstance(leaf, SparseWeights) else leaf


def tensors_in(tree: Payload) -> list[Tensor]:
    """List the tensors of a payload that can carry a gradient."""
    return [grad_carrier(x) for x in floating_leaves(tree)]


def _detach_leaf(x: object) -> Leaf:
    if isinstance(x, Tensor):
        return x.detach()
    if isinstance(x, SparseWeights):
        return x.with_values(x.values.detach())
    if isinstance(x, SparseMatrix):
        return x.with_values(x.values.detach()) if x.values.requires_grad else x
    raise PlaceError(
        "a payload must hold tensors, sparse matrices or sparse weights, in dictionaries and tuples; "
        f"found a {type(x).__name__}"
    )


def detach(tree: P) -> P:
    """Detach a payload from its history.

    Raises:
        PlaceError: For anything that is no payload.
    """
    detached: P = _map(_detach_leaf, tree)
    return detached


def densify(tree: Payload) -> Any:
    """Convert a payload to plain tensors.

    Sparse rows become dense rows, sparse weights become each client's full weights.
    """

    def leaf(x: Leaf) -> Tensor:
        if isinstance(x, SparseWeights):
            return _all_parts(x)
        return x.to_dense() if isinstance(x, SparseMatrix) else x

    return _map(leaf, tree)


def add(left: P, right: P) -> P:
    """Add two payloads of tensors, of the same structure and shapes, leaf by leaf."""
    return tree_map(torch.add, left, right)


def stack(parts: Sequence[P]) -> P:
    """Stack the payloads of single clients to one with a leading client dimension."""
    return tree_map(lambda *xs: torch.stack(xs), *parts)


def weighted_sum(tree: Payload, weights: np.ndarray) -> Any:
    """Compute sum_k weights[k] * x_k of per-client values, leaf by leaf.

    Args:
        tree: [K, ...] tensors or `SparseWeights`.
        weights: [K] float64. A client of weight 0 does not count, even if its tensors are not finite.

    Returns:
        The sums, [...].
    """
    # 0 * inf is NaN, so clients of weight 0 are left out rather than multiplied.
    used = np.flatnonzero(weights)
    keep = None if len(used) == len(weights) else torch.from_numpy(used)
    scale = torch.from_numpy(weights)

    def leaf(x: Tensor | SparseWeights) -> Tensor:
        if isinstance(x, SparseWeights):
            return x.weighted_sum(scale.to(x.values.device))
        # [K] in the dtype of the leaf, then one matrix product for the sum over clients.
        s = scale.to(x)
        if keep is not None:
            x, s = x[keep.to(x.device)], s[keep.to(x.device)]
        total: Tensor = (s @ x.reshape(len(s), math.prod(x.shape[1:]))).reshape(x.shape[1:])
        return total

    return _map(leaf, tree)


def part_of(tree: Payload, k: int) -> Any:
    """Select the value of the cohort's client k, [...] in full, from values [K, ...] or `SparseWeights`."""
    return _map(lambda x: x.part(k) if isinstance(x, SparseWeights) else x[k], tree)


def parts(tree: Payload, clients: Tensor) -> Any:
    """Select the values [n, ...], in full, of some clients [n] int64 of the cohort."""

    def leaf(x: Tensor | SparseWeights) -> Tensor:
        whole = _all_parts(x) if isinstance(x, SparseWeights) else x
        return whole if len(clients) == len(whole) else whole[clients]

    return _map(leaf, tree)


def _all_parts(x: SparseWeights) -> Tensor:
    """Every client's weights in full, [K, F, H]. They take K times the memory of one client's weights."""
    # Ghost rows for everyone, then the stored rows in their place.
    weights = x.ghost.expand(x.num_clients, *x.part_shape)
    stored = x.values[: len(x.pair_client)]
    return weights.index_put((x.pair_client, x.pair_feature), stored)


def concat_rows(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows [n_i, ...], all dense or all sparse, one part after the other."""
    if len(parts) == 1:
        return parts[0]
    sparse = [p for p in parts if isinstance(p, SparseMatrix)]
    if sparse:
        # The row pointers of a part are shifted by the entries of the parts before it.
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
    """Select rows [M, ...] by index [M] int64.

    The rows may lie on another device than the index: ciphertexts stay in the processor's memory.
    """
    return x.select_rows(index) if isinstance(x, SparseMatrix) else x[index.to(x.device)]


def split_rows(x: Rows, sizes: Sequence[int]) -> list[Rows]:
    """Split rows into consecutive parts of these sizes."""
    if isinstance(x, Tensor):
        return list(torch.split(x, list(sizes)))
    stops = np.cumsum(sizes).tolist()
    return [x.slice_rows(stop - size, stop) for size, stop in zip(sizes, stops, strict=True)]


def add_rows(x: Rows, index: Tensor, num_rows: int) -> Rows:
    """Sum rows [M, ...] by group [U, ...]: row u is the sum of the rows m with index[m] = u."""
    if isinstance(x, SparseMatrix):
        # A product with the matrix [num_rows, M] that has a 1 at (index[m], m).
        rows = torch.arange(len(index), device=index.device)
        ones = torch.ones(len(index), dtype=x.dtype, device=index.device)
        return multiply(SparseMatrix.from_coo(index, rows, ones, (num_rows, len(index))), x)
    return torch.zeros((num_rows, *x.shape[1:]), dtype=x.dtype, device=x.device).index_add(0, index, x)


def max_rows(x: Rows, rows_of_ids: SparseMatrix) -> Rows:
    """Take the elementwise maximum of rows by group.

    The gradient goes to the row with the maximum. Of equal rows the first one gets it, that of the client
    with the lowest id, so ties break alike in every placement. The maximum of no rows is -inf; a NaN is
    larger than any number, so that it is noticed.

    Args:
        x: [M, H].
        rows_of_ids: [U, M], with an entry (u, m) for each row m of group u; each row is in one group.

    Returns:
        [U, H]; sparse if `x` is.
    """
    if isinstance(x, SparseMatrix):
        # The group of each row: the column-wise view of `rows_of_ids`.
        group = torch.empty(len(rows_of_ids.indices), dtype=torch.int64, device=rows_of_ids.indices.device)
        group[rows_of_ids.indices.long()] = rows_of_ids.row
        return sparse_maxima(x, group, rows_of_ids.shape[0])
    return neighbour_max(rows_of_ids, x)


@dataclass(frozen=True)
class Unit:
    """One row, or one client's part, of a payload, as the ledger counts it. Sparse rows and weights count as
    the dense ones that they represent, because that is how they are sent.

    Attributes:
        shape: Its shape; for a dictionary or tuple, the shapes by name.
        dtype: The names of its dtypes, separated by commas.
    """

    shape: Shape
    bytes: int
    dtype: str


#: The units of payloads that were sent, by their structure: a model is sent in every round.
_units: dict[object, Unit] = {}
_MOST_UNITS = 4096


def unit_of(tree: Payload, *, leading: bool) -> Unit:
    """Describe one unit of a payload. `leading` says that the first dimension counts rows or clients."""
    # The ledger asks this for every message of every round, so the answer is kept by structure.
    structure = _structure(tree, leading)
    unit = _units.get(structure)
    if unit is None:
        # Another thread may clear the dictionary at any time, so it is not read again.
        if len(_units) >= _MOST_UNITS:
            _units.clear()
        found = leaves(tree)
        size = sum(math.prod(_unit_shape(x, leading)) * x.dtype.itemsize for x in found)
        names = ",".join(sorted({str(x.dtype).removeprefix("torch.") for x in found}))
        unit = _units[structure] = Unit(_shape_of(tree, leading), size, names)
    return unit


def _structure(tree: Payload, leading: bool) -> object:
    """Return the names, unit shapes and dtypes in a payload, which can be hashed."""
    if isinstance(tree, dict | tuple):
        found: list[object] = [isinstance(tree, dict)]
        for key, x in tree.items() if isinstance(tree, dict) else enumerate(tree):
            if isinstance(x, Tensor):
                found.append((key, x.shape[1:] if leading else x.shape, x.dtype))
            else:
                found.append((key, _structure(x, leading)))
        return tuple(found)
    return tuple(_unit_shape(tree, leading)), tree.dtype


def _unit_shape(x: Leaf, leading: bool) -> list[int]:
    if isinstance(x, SparseWeights):
        return list(x.part_shape)
    return list(x.shape[1:] if leading else x.shape)


def _shape_of(tree: Payload, leading: bool) -> Shape:
    if isinstance(tree, dict):
        return {str(key): _shape_of(item, leading) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return {str(i): _shape_of(item, leading) for i, item in enumerate(tree)}
    return _unit_shape(tree, leading)
