"""Sparse matrices with a static pattern, and the per-client weights that they multiply.

Shape letters, here and in the whole package: N rows (nodes), E stored entries (edges), F features, H
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
    "Pattern",
    "SparseMatrix",
    "SparseWeights",
    "entry_sums",
    "multiply",
    "pair_columns",
    "ranges",
    "row_softmax",
    "shift_columns",
    "spmm",
    "sums_by",
]

with warnings.catch_warnings():
    # torch announces once per process that CSR tensors are in beta; the first one is made here, in silence.
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor(
        torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(0)
    )


@dataclass(frozen=True, eq=False)
class Pattern:
    """Where a CSR matrix [N, M] has entries: indptr [N+1] int32, indices [E] int32, ascending in each row.

    What products with the transpose need is worked out when first asked for, and shared by every matrix on
    this pattern. once: it will be multiplied once and is then gone, so that on the CPU the gradient of that
    product is made without working it out."""

    indptr: Tensor
    indices: Tensor
    shape: tuple[int, int]
    once: bool = False

    @cached_property
    def row(self) -> Tensor:
        """The row of each stored entry, [E] int64."""
        rows = torch.arange(self.shape[0], device=self.indptr.device)
        return torch.repeat_interleave(rows, self.indptr.diff().long(), output_size=len(self.indices))

    @cached_property
    def t_order(self) -> Tensor:
        """Which entry comes where in the transpose, [E] int64: its values are ``values[t_order]``."""
        return _stable_order(self.indices, self.shape[1])

    @cached_property
    def transpose(self) -> tuple[Tensor, Tensor]:
        """indptr [M+1] and indices [E] of the transpose, int32."""
        return _pointers(self.indices, self.shape[1]).int(), self.row.int()[self.t_order]

    @cached_property
    def buckets(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """The rows with entries, by their number of entries rounded up to 1, 2, 3, 4, 6, 8, 12, ...: rows [n]
        and their columns [width, n], in order; a row with fewer entries repeats its last one."""
        lengths = self.indptr.diff().long()
        longest = int(lengths.max()) if len(lengths) else 0
        found, below, width, wider = [], 0, 1, 2
        while below < longest:
            rows = ((lengths > below) & (lengths <= width)).nonzero()[:, 0]
            if len(rows):
                step = torch.arange(width, device=rows.device)[:, None].minimum(lengths[rows] - 1)
                found.append((rows, self.indices[self.indptr[rows] + step].long()))
            below, width, wider = width, wider, max(3, 2 * width)
        return tuple(found)


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A CSR matrix [N, M] with values [E] on a pattern; a product and its gradient are one CSR product
    each."""

    pattern: Pattern
    values: Tensor

    @staticmethod
    def from_csr(indptr: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> "SparseMatrix":
        """Build from CSR parts whose indices ascend in each row."""
        return SparseMatrix(Pattern(indptr.int(), indices.int(), shape), values)

    @staticmethod
    def from_coo(row: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> "SparseMatrix":
        """Build from coordinates in any order ([E] each); duplicates stay as separate entries."""
        order = _stable_order(col, shape[1])
        order = order[_stable_order(row[order], shape[0])]
        return SparseMatrix.from_csr(_pointers(row, shape[0]), col[order], values[order], shape)

    @staticmethod
    def from_scipy(matrix: Any, dtype: torch.dtype | None = None) -> "SparseMatrix":
        """Build from a scipy sparse matrix or array, values in `dtype` (default: torch's default)."""
        csr = matrix.tocsr()
        if not csr.has_sorted_indices:
            csr = csr.sorted_indices()
        indptr, indices, values = (torch.from_numpy(np.array(x)) for x in (csr.indptr, csr.indices, csr.data))
        values = values.to(dtype or torch.get_default_dtype())
        return SparseMatrix.from_csr(indptr, indices, values, tuple(csr.shape))

    def to_scipy(self) -> Any:
        """The matrix as a scipy CSR matrix, on the CPU."""
        import scipy.sparse

        parts = (self.values.detach().cpu().numpy(), self.indices.cpu().numpy(), self.indptr.cpu().numpy())
        return scipy.sparse.csr_matrix(parts, shape=self.shape)

    @staticmethod
    def from_dense(dense: Tensor) -> "SparseMatrix":
        """The stored entries are the non-zero ones."""
        row, col = dense.nonzero(as_tuple=True)
        shape = (dense.shape[0], dense.shape[1])
        return SparseMatrix.from_csr(_pointers(row, shape[0]), col, dense[row, col], shape)

    @property
    def indptr(self) -> Tensor:
        return self.pattern.indptr

    @property
    def indices(self) -> Tensor:
        return self.pattern.indices

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    @property
    def row(self) -> Tensor:
        """The row of each stored entry, [E] int64."""
        return self.pattern.row

    @cached_property
    def t_values(self) -> Tensor:
        """The values in the order of the transpose."""
        return self.values.index_select(0, self.pattern.t_order)

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def with_values(self, values: Tensor) -> "SparseMatrix":
        """The same pattern with other values [E]."""
        return SparseMatrix(self.pattern, values)

    def block_diagonal(self, copies: int) -> "SparseMatrix":
        """The matrix `copies` times along a diagonal, [copies * N, copies * M]; entries copy by copy."""
        (n, m), entries = self.shape, len(self.indices)
        copy = torch.arange(copies, device=self.indices.device)[:, None]
        indptr = torch.cat(
            [(self.indptr[:-1] + copy * entries).flatten(), copy.new_tensor([copies * entries])]
        )
        indices = (self.indices + copy * m).flatten()
        return SparseMatrix.from_csr(indptr, indices, self.values.repeat(copies), (copies * n, copies * m))

    def select_rows(self, rows: Tensor) -> "SparseMatrix":
        """The matrix of the given rows [n] int64, in that order."""
        starts, counts = self.indptr[rows], self.indptr.diff()[rows]
        entry = ranges(starts, counts)
        shape = (len(rows), self.shape[1])
        return SparseMatrix.from_csr(_ends(counts), self.indices[entry], self.values[entry], shape)

    def slice_rows(self, start: int, stop: int) -> "SparseMatrix":
        """The matrix of the rows start .. stop - 1, sharing the memory of the entries."""
        indptr = self.indptr[start : stop + 1]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        shape = (stop - start, self.shape[1])
        return SparseMatrix.from_csr(indptr - indptr[0], self.indices[entries], self.values[entries], shape)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "SparseMatrix":
        """The matrix on another device or with values of another dtype."""
        values = self.values.to(device).to(dtype or self.dtype)
        return SparseMatrix.from_csr(self.indptr.to(device), self.indices.to(device), values, self.shape)

    def to_dense(self) -> Tensor:
        """The dense matrix [N, M]; duplicate entries are added."""
        dense = torch.zeros(self.shape, dtype=self.dtype, device=self.values.device)
        return dense.index_put_((self.row, self.indices.long()), self.values, accumulate=True)


def _pointers(rows: Tensor, n: int) -> Tensor:
    """CSR pointers [n+1] of entries with the given rows, in any order."""
    return _ends(torch.bincount(rows, minlength=n))


def _ends(counts: Tensor) -> Tensor:
    """CSR pointers from the entries of each row."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


#: Below this many keys a comparison sort is as fast as a counting sort.
_FEW = 50_000


def _stable_order(keys: Tensor, num_keys: int) -> Tensor:
    """The stable ascending order of integers in 0..num_keys-1, [E] int64.

    On the CPU a long one is a counting sort: in scipy's words, turning a matrix whose row e has its one entry
    in column keys[e] from CSR to CSC."""
    if len(keys) < _FEW or keys.device.type != "cpu":
        return torch.argsort(keys, stable=True)
    import scipy.sparse

    size = len(keys)
    one_per_row = (np.ones(size, dtype=np.int8), keys.numpy(), np.arange(size + 1))
    order = scipy.sparse.csr_matrix(one_per_row, shape=(size, num_keys)).tocsc().indices
    return torch.from_numpy(order).long()


def ranges(starts: Tensor, counts: Tensor) -> Tensor:
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


def _transposed_product(matrix: SparseMatrix, dense: Tensor) -> Tensor:
    """The transpose of a CSR matrix [N, M] times dense [N, H], by scipy: it adds up row after row, which
    needs no order of the columns."""
    import scipy.sparse

    parts = (matrix.values.detach().numpy(), matrix.indices.numpy(), matrix.indptr.numpy())
    return torch.from_numpy(scipy.sparse.csc_matrix(parts, shape=matrix.shape[::-1]) @ dense.numpy())


def _row_sums(matrix: SparseMatrix, values: Tensor) -> Tensor:
    """The sum of each row's entries, [E] -> [N]."""
    return _product(matrix.indptr, matrix.indices, values, values.new_ones(matrix.shape[1]))


def _column_sums(matrix: SparseMatrix, values: Tensor) -> Tensor:
    """The sum of each column's entries, [E] -> [M]."""
    indptr, indices = matrix.pattern.transpose
    t_values = values.index_select(0, matrix.pattern.t_order)
    return _product(indptr, indices, t_values, values.new_ones(matrix.shape[0]))


def sums_by(index: Tensor, values: Tensor, size: int) -> Tensor:
    """The sum of the values [E] at each index [E] in 0..size-1, [size]; added in one order on every
    device."""
    order = _stable_order(index, size)
    return torch.segment_reduce(values[order], "sum", offsets=_pointers(index, size))


class _SpMM(torch.autograd.Function):
    """values, dense -> CSR(values) @ dense, with gradients to both; values None: the matrix's own."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, values: Tensor | None, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        ctx.save_for_backward(values, dense if values is not None and values.requires_grad else None)
        return _product(matrix.indptr, matrix.indices, matrix.values if values is None else values, dense)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix = ctx.matrix
        values, dense = ctx.saved_tensors
        grad = grad.contiguous()
        grad_values = grad_dense = None
        if ctx.needs_input_grad[1]:
            # grad_values[e] = <grad[row(e)], dense[column(e)]>: a dense product sampled at the pattern.
            pattern = torch.sparse_csr_tensor(matrix.indptr, matrix.indices, values, matrix.shape)
            grad_values = torch.sparse.sampled_addmm(pattern, grad, dense.t(), beta=0.0).values()
        if ctx.needs_input_grad[2]:
            pattern = matrix.pattern
            if pattern.once and values is None and grad.device.type == "cpu":
                return None, grad_values, _transposed_product(matrix, grad)
            indptr, indices = pattern.transpose
            t_values = matrix.t_values if values is None else values.index_select(0, pattern.t_order)
            grad_dense = _product(indptr, indices, t_values, grad)
        return None, grad_values, grad_dense


def spmm(matrix: SparseMatrix, dense: Tensor, values: Tensor | None = None) -> Tensor:
    """``matrix @ dense``: [N, M] by [M, H] -> [N, H], optionally with other `values` [E] on the same pattern.

    Differentiable in `dense` and in `values`; the matrix's own values are constants."""
    result: Tensor = _SpMM.apply(matrix, values, dense)  # type: ignore[no-untyped-call]
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
    of them if `every_pair`."""
    features = matrix.shape[1]
    if every_pair:
        codes = torch.arange(num_clients * features, device=client.device)
    else:
        codes = client[matrix.row] * features + matrix.indices
        if num_clients * features < 4 * len(codes):  # marking every possible pair beats sorting
            occurs = torch.zeros(num_clients * features, dtype=torch.bool, device=codes.device)
            codes = occurs.index_fill_(0, codes, True).nonzero()[:, 0]
        else:
            codes = torch.unique(codes)
    return codes // features, codes % features


def shift_columns(
    matrix: SparseMatrix, client: Tensor, pair_client: Tensor, pair_feature: Tensor
) -> SparseMatrix:
    """Renumber the columns of a stacked matrix [N, F] to rows of `SparseWeights.values`: [N, P + F].

    An entry (row of client k, feature f) goes to its pair's column, or to the ghost column P + f where the
    pair is not stored. One product with the result multiplies every client's rows by that client's
    weights."""
    features, pairs = matrix.shape[1], len(pair_client)
    shape = (matrix.shape[0], pairs + features)
    if pairs == 0:
        return SparseMatrix.from_csr(matrix.indptr, matrix.indices, matrix.values, shape)
    codes = pair_client * features + pair_feature
    wanted = client[matrix.row] * features + matrix.indices
    place = torch.searchsorted(codes, wanted).clamp(max=pairs - 1)
    found = codes[place] == wanted
    if bool(found.all()):  # the pairs of a client ascend with the feature, so every row stays sorted
        return SparseMatrix.from_csr(matrix.indptr, place, matrix.values, shape)
    columns = torch.where(found, place, pairs + matrix.indices)
    return SparseMatrix.from_coo(matrix.row, columns, matrix.values, shape)


def multiply(left: SparseMatrix, right: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """left @ right [N, F]; sparse where `right` is. For set-up work: a sparse product is made on the CPU, by
    scipy."""
    if isinstance(right, Tensor):
        return spmm(left, right)
    product = left.to_scipy() @ right.to_scipy()
    return SparseMatrix.from_scipy(product, right.dtype).to(right.values.device)
