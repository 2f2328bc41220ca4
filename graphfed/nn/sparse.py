"""Sparse matrices with a static pattern, and the per-client weights that they multiply.

Shape letters, here and in the whole package: N rows (vertices), E stored entries (edges), F features, H
hidden width, C classes, K clients of a cohort, P (client, feature) pairs that occur.

The differentiable operations treat the pattern as fixed: `spmm` multiplies, `entry_sums` gives every stored
entry a value from its row and its column, `row_softmax` normalises the entries of each row.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "SparseMatrix",
    "SparseWeights",
    "entry_sums",
    "multiply",
    "pair_columns",
    "row_softmax",
    "shift_columns",
    "spmm",
]

with warnings.catch_warnings():
    # torch announces once per process that CSR tensors are in beta; the first one is made here, in silence.
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor(
        torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(0)
    )


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A CSR matrix [N, M] that knows its transpose, so that a product and its gradient are one CSR product
    each.

    indptr [N+1] int32, indices [E] int32 (sorted in each row), values [E] float; t_indptr [M+1], t_indices
    [E] int32 and t_order [E] int64 describe the transpose: its values t_values are ``values[t_order]``."""

    indptr: Tensor
    indices: Tensor
    values: Tensor
    shape: tuple[int, int]
    t_indptr: Tensor
    t_indices: Tensor
    t_order: Tensor
    t_values: Tensor

    @staticmethod
    def from_coo(row: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> "SparseMatrix":
        """Build from coordinates in any order ([E] each); duplicates stay as separate entries."""
        order = torch.argsort(row * shape[1] + col, stable=True)
        row, col, values = row[order], col[order], values[order]
        t_order = torch.argsort(col, stable=True)
        return SparseMatrix(
            indptr=_pointers(row, shape[0]),
            indices=col.int(),
            values=values,
            shape=shape,
            t_indptr=_pointers(col[t_order], shape[1]),
            t_indices=row[t_order].int(),
            t_order=t_order,
            t_values=values[t_order],
        )

    @staticmethod
    def from_scipy(matrix: Any, dtype: torch.dtype | None = None) -> "SparseMatrix":
        """Build from a scipy sparse matrix or array, values in `dtype` (default: torch's default)."""
        coo = matrix.tocoo()
        values = torch.from_numpy(np.asarray(coo.data)).to(dtype or torch.get_default_dtype())
        row, col = (torch.from_numpy(np.asarray(i, dtype=np.int64)) for i in (coo.row, coo.col))
        return SparseMatrix.from_coo(row, col, values, tuple(coo.shape))

    def to_scipy(self) -> Any:
        """The matrix as a scipy CSR matrix, on the CPU."""
        import scipy.sparse

        parts = (self.values.detach().cpu().numpy(), self.indices.cpu().numpy(), self.indptr.cpu().numpy())
        return scipy.sparse.csr_matrix(parts, shape=self.shape)

    @staticmethod
    def from_dense(dense: Tensor) -> "SparseMatrix":
        """The stored entries are the non-zero ones."""
        row, col = dense.nonzero(as_tuple=True)
        return SparseMatrix.from_coo(row, col, dense[row, col], (dense.shape[0], dense.shape[1]))

    @cached_property
    def row(self) -> Tensor:
        """The row of each stored entry, [E] int64."""
        rows = torch.arange(self.shape[0], device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff().long(), output_size=len(self.indices))

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def with_values(self, values: Tensor) -> "SparseMatrix":
        """The same pattern with other values [E]."""
        return replace(self, values=values, t_values=values.index_select(0, self.t_order))

    def block_diagonal(self, copies: int) -> "SparseMatrix":
        """The matrix `copies` times along a diagonal, [copies * N, copies * M]; entries copy by copy."""
        (n, m), entries = self.shape, len(self.indices)
        copy = torch.arange(copies, device=self.indices.device)[:, None]

        def shifted(index: Tensor, step: int) -> Tensor:
            return (index + copy * step).flatten().to(index.dtype)

        def pointers(indptr: Tensor) -> Tensor:
            return torch.cat([shifted(indptr[:-1], entries), indptr.new_tensor([copies * entries])])

        return SparseMatrix(
            indptr=pointers(self.indptr),
            indices=shifted(self.indices, m),
            values=self.values.repeat(copies),
            shape=(copies * n, copies * m),
            t_indptr=pointers(self.t_indptr),
            t_indices=shifted(self.t_indices, n),
            t_order=shifted(self.t_order, entries),
            t_values=self.t_values.repeat(copies),
        )

    def select_rows(self, rows: Tensor) -> "SparseMatrix":
        """The matrix of the given rows [n] int64, in that order."""
        starts, counts = self.indptr[rows].long(), self.indptr.diff()[rows].long()
        entry = _ranges(starts, counts)
        new_row = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), counts)
        return SparseMatrix.from_coo(
            new_row, self.indices[entry].long(), self.values[entry], (len(rows), self.shape[1])
        )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "SparseMatrix":
        """The matrix on another device or with values of another dtype."""
        moved = {k: getattr(self, k).to(device) for k in _TENSOR_FIELDS}
        for k in ("values", "t_values"):
            moved[k] = moved[k].to(dtype or self.dtype)
        return replace(self, **moved)

    def to_dense(self) -> Tensor:
        """The dense matrix [N, M]; duplicate entries are added."""
        dense = torch.zeros(self.shape, dtype=self.dtype, device=self.values.device)
        return dense.index_put_((self.row, self.indices.long()), self.values, accumulate=True)


_TENSOR_FIELDS = ("indptr", "indices", "values", "t_indptr", "t_indices", "t_order", "t_values")


def _pointers(sorted_rows: Tensor, n: int) -> Tensor:
    counts = torch.bincount(sorted_rows, minlength=n)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()


def _ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """The concatenated index ranges starts[i] .. starts[i] + counts[i] - 1."""
    ends = counts.cumsum(0)
    offset = torch.repeat_interleave(starts - (ends - counts), counts)
    return torch.arange(len(offset), device=starts.device) + offset


def _product(indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """The CSR matrix of the three tensors times dense [M, H] or [M]; not differentiable."""
    rows = len(indptr) - 1
    csr = torch.sparse_csr_tensor(indptr, indices, values, (rows, len(dense)))
    # With beta = 0 the empty result is never read; `csr @ dense` would first fill it with zeros.
    out = dense.new_empty(rows, *dense.shape[1:])
    return (torch.addmv if dense.dim() == 1 else torch.addmm)(out, csr, dense, beta=0, out=out)


def _row_sums(matrix: SparseMatrix, values: Tensor) -> Tensor:
    """The sum of each row's entries, [E] -> [N]."""
    return _product(matrix.indptr, matrix.indices, values, values.new_ones(matrix.shape[1]))


def _column_sums(matrix: SparseMatrix, values: Tensor) -> Tensor:
    """The sum of each column's entries, [E] -> [M]."""
    t_values = values.index_select(0, matrix.t_order)
    return _product(matrix.t_indptr, matrix.t_indices, t_values, values.new_ones(matrix.shape[0]))


class _SpMM(torch.autograd.Function):
    """values, dense -> CSR(values) @ dense, with gradients to both."""

    @staticmethod
    def forward(
        ctx: Any, matrix: SparseMatrix, values: Tensor, t_values: Tensor | None, dense: Tensor
    ) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values, t_values, dense if values.requires_grad else None)
        return _product(matrix.indptr, matrix.indices, values, dense)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix = ctx.matrix
        values, t_values, dense = ctx.saved_tensors
        grad = grad.contiguous()
        grad_values = grad_dense = None
        if ctx.needs_input_grad[1]:
            # grad_values[e] = <grad[row(e)], dense[column(e)]>: a dense product sampled at the pattern.
            pattern = torch.sparse_csr_tensor(matrix.indptr, matrix.indices, values, matrix.shape)
            grad_values = torch.sparse.sampled_addmm(pattern, grad, dense.t(), beta=0.0).values()
        if ctx.needs_input_grad[3]:
            t_values = values.index_select(0, matrix.t_order) if t_values is None else t_values
            grad_dense = _product(matrix.t_indptr, matrix.t_indices, t_values, grad)
        return None, grad_values, None, grad_dense


def spmm(matrix: SparseMatrix, dense: Tensor, values: Tensor | None = None) -> Tensor:
    """``matrix @ dense``: [N, M] by [M, H] -> [N, H], optionally with other `values` [E] on the same pattern.

    Differentiable in `dense` and in `values`; the matrix's own values are constants."""
    if values is None:
        result: Tensor = _SpMM.apply(matrix, matrix.values, matrix.t_values, dense)  # type: ignore[no-untyped-call]
    else:
        result = _SpMM.apply(matrix, values, None, dense)  # type: ignore[no-untyped-call]
    return result


class _EntrySums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, left: Tensor, right: Tensor) -> Tensor:
        ctx.matrix = matrix
        return left.index_select(0, matrix.row).add_(right.index_select(0, matrix.indices))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad = grad.contiguous()
        return None, _row_sums(ctx.matrix, grad), _column_sums(ctx.matrix, grad)


def entry_sums(matrix: SparseMatrix, left: Tensor, right: Tensor) -> Tensor:
    """left[row] + right[column] at every stored entry: left [N], right [M] -> [E]. Differentiable in both."""
    result: Tensor = _EntrySums.apply(matrix, left, right)  # type: ignore[no-untyped-call]
    return result


class _RowSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, scores: Tensor) -> Tensor:
        ctx.matrix = matrix
        # Subtracting each row's largest score leaves the softmax as it is and keeps exp in range.
        top = torch.segment_reduce(scores, "max", offsets=matrix.indptr, unsafe=True)
        weight = (scores - top.index_select(0, matrix.row)).exp_()
        share = weight.div_(_row_sums(matrix, weight).index_select(0, matrix.row))
        ctx.save_for_backward(share)
        return share

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (share,) = ctx.saved_tensors
        # d share_e / d score_f = share_e (1[e = f] - share_f) inside a row.
        weighted = share * grad
        mean = _row_sums(ctx.matrix, weighted)
        return None, weighted.addcmul_(share, mean.index_select(0, ctx.matrix.row), value=-1)


def row_softmax(matrix: SparseMatrix, scores: Tensor) -> Tensor:
    """exp(score) over its row's sum of exp(score), for scores [E] at the stored entries -> [E].
    Differentiable."""
    result: Tensor = _RowSoftmax.apply(matrix, scores)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """One weight matrix [F, H] per client, stored only where clients can differ.

    A row of a client's first-layer weights whose feature never occurs in its training rows gets no data
    gradient, so it moves alike at all clients (by weight decay alone): one *ghost* copy of all F rows stands
    for every such row. Exact as long as those rows share one optimiser state; `pair_columns(...,
    every_pair=True)` stores full rows where they do not.

    values [P + F, H]: row q < P belongs to client ``pair_client[q]`` and feature ``pair_feature[q]``; row P +
    f is the ghost of feature f. The pairs are sorted by (client, feature), without repetition."""

    values: Tensor
    pair_client: Tensor
    pair_feature: Tensor
    num_clients: int

    @staticmethod
    def expand(
        shared: Tensor, pair_client: Tensor, pair_feature: Tensor, num_clients: int
    ) -> "SparseWeights":
        """Every client starts from the same weights `shared` [F, H]."""
        values = torch.cat([shared.index_select(0, pair_feature), shared])
        return SparseWeights(values, pair_client, pair_feature, num_clients)

    def with_values(self, values: Tensor) -> "SparseWeights":
        """The same pairs with other values [P + F, H]."""
        return replace(self, values=values)

    @property
    def ghost(self) -> Tensor:
        """The rows that occur nowhere, [F, H]."""
        return self.values[len(self.pair_client) :]

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of one client's weights, (F, H)."""
        return tuple(self.ghost.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """sum_k weights[k] * W_k, [F, H]; weights [K]."""
        ghost = self.ghost
        weights = weights.to(self.values.dtype)
        delta = self.values[: len(self.pair_client)] - ghost.index_select(0, self.pair_feature)
        delta = delta * weights[self.pair_client, None]
        return (ghost * weights.sum()).index_add_(0, self.pair_feature, delta)

    def part(self, k: int) -> Tensor:
        """Client k's weights in full, [F, H]."""
        mine = self.pair_client == k
        return self.ghost.index_copy(0, self.pair_feature[mine], self.values[: len(mine)][mine])


def pair_columns(
    matrix: SparseMatrix, client: Tensor, num_clients: int, *, every_pair: bool = False
) -> tuple[Tensor, Tensor]:
    """The (client, feature) pairs whose weights are to be stored, sorted: two [P] int64 tensors.

    They are the pairs that occur in the rows of a stacked matrix, whose clients are `client` [N]; all K * F
    of them if `every_pair`; and none where there is one client only, whose weights the ghost rows are."""
    features = matrix.shape[1]
    if num_clients == 1:
        codes = client.new_empty(0)
    elif every_pair:
        codes = torch.arange(num_clients * features, device=client.device)
    else:
        codes = torch.unique(client[matrix.row] * features + matrix.indices.long())
    return codes // features, codes % features


def shift_columns(
    matrix: SparseMatrix, client: Tensor, pair_client: Tensor, pair_feature: Tensor
) -> SparseMatrix:
    """Renumber the columns of a stacked matrix [N, F] to rows of `SparseWeights.values`: [N, P + F].

    An entry (row of client k, feature f) goes to its pair's column, or to the ghost column P + f where the
    pair is not stored. One product with the result multiplies every client's rows by that client's
    weights."""
    features = matrix.shape[1]
    codes = pair_client * features + pair_feature
    wanted = client[matrix.row] * features + matrix.indices.long()
    place = torch.searchsorted(codes, wanted).clamp(max=max(len(codes) - 1, 0))
    found = codes[place] == wanted if len(codes) else torch.zeros_like(wanted, dtype=torch.bool)
    columns = torch.where(found, place, len(codes) + matrix.indices.long())
    return SparseMatrix.from_coo(matrix.row, columns, matrix.values, (matrix.shape[0], len(codes) + features))


def multiply(left: SparseMatrix, right: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """left @ right [N, F]; sparse where `right` is. For set-up work: a sparse product is made on the CPU, by
    scipy."""
    if isinstance(right, Tensor):
        return spmm(left, right)
    product = left.to_scipy() @ right.to_scipy()
    product.sort_indices()
    return SparseMatrix.from_scipy(product, right.dtype).to(right.values.device)
