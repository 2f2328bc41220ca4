"""Sparse matrices with a static pattern, and the per-client weights that they multiply.

Shape letters, here and in the whole package: N rows (nodes), M columns, E stored entries (edges), F features,
H hidden width, C classes, K clients of a cohort, P stored (client, feature) pairs.

The differentiable operations keep the pattern: `spmm` multiplies, `entry_sums` computes a value of every
stored entry from its row and its column, and `attention_weights` normalises such values over each row.
"""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from graphfed.nn.pattern import Pattern, count_pointers, row_pointers, stable_order

with warnings.catch_warnings():
    # torch warns once per process that CSR tensors are in beta. Make the first one here, without the warning.
    warnings.simplefilter("ignore", UserWarning)
    torch.sparse_csr_tensor(
        torch.zeros(1, dtype=torch.int32), torch.zeros(0, dtype=torch.int32), torch.zeros(0)
    )


@dataclass(frozen=True, eq=False)
class SparseMatrix:
    """A CSR matrix [N, M] with E stored entries. A product and its gradient are one CSR product each.

    Attributes:
        pattern: The positions of the entries.
        values: [E], the values in the order of the pattern.
    """

    pattern: Pattern
    values: Tensor

    @staticmethod
    def from_csr(indptr: Tensor, indices: Tensor, values: Tensor, shape: tuple[int, int]) -> "SparseMatrix":
        """Build a matrix from CSR arrays.

        Args:
            indptr: [N+1] of any integer dtype, where the entries of each row begin. Stored as int32.
            indices: [E] of any integer dtype, ascending in each row.
            values: [E], in the order of the indices.
            shape: (N, M), rows and columns without entries included.

        Returns:
            The matrix.
        """
        return SparseMatrix(Pattern(indptr.int(), indices.int(), shape), values)

    @staticmethod
    def from_coo(row: Tensor, col: Tensor, values: Tensor, shape: tuple[int, int]) -> "SparseMatrix":
        """Build a matrix from coordinates in any order. Duplicates stay separate entries.

        Args:
            row: [E] int64, the row of each entry.
            col: [E] int64, the column of each entry.
            values: [E], in the order of `row`.
            shape: (N, M).

        Returns:
            The matrix.
        """
        # Radix sort: a stable order by column, then by row, is the order by (row, column).
        order = stable_order(col, shape[1])
        order = order[stable_order(row[order], shape[0])]
        return SparseMatrix.from_csr(row_pointers(row, shape[0]), col[order], values[order], shape)

    @staticmethod
    def from_scipy(matrix: Any, dtype: torch.dtype | None = None) -> "SparseMatrix":
        """Convert a scipy sparse matrix or array. The memory is copied.

        Args:
            matrix: [N, M] in any of scipy's formats.
            dtype: The dtype of the values. None: torch's default.

        Returns:
            The matrix, on the CPU.
        """
        csr = matrix.tocsr()
        # `sorted_indices` returns a copy, so the caller's matrix stays as it is.
        if not csr.has_sorted_indices:
            csr = csr.sorted_indices()
        # `torch.from_numpy` alone would share the memory of the caller's arrays.
        indptr, indices, values = (torch.from_numpy(np.array(x)) for x in (csr.indptr, csr.indices, csr.data))
        values = values.to(dtype or torch.get_default_dtype())
        return SparseMatrix.from_csr(indptr, indices, values, tuple(csr.shape))

    def to_scipy(self) -> Any:
        """Convert the matrix to a scipy CSR matrix [N, M].

        Returns:
            The scipy matrix.
        """
        import scipy.sparse

        arrays = (self.values.detach().cpu().numpy(), self.indices.cpu().numpy(), self.indptr.cpu().numpy())
        return scipy.sparse.csr_matrix(arrays, shape=self.shape)

    @staticmethod
    def from_dense(dense: Tensor) -> "SparseMatrix":
        """Convert a dense matrix. The non-zero entries are stored.

        Args:
            dense: [N, M].

        Returns:
            The matrix.
        """
        # `nonzero` lists the entries row by row, columns ascending: the order of CSR.
        row, col = dense.nonzero(as_tuple=True)
        shape = (dense.shape[0], dense.shape[1])
        return SparseMatrix.from_csr(row_pointers(row, shape[0]), col, dense[row, col], shape)

    @property
    def indptr(self) -> Tensor:
        """Where the entries of each row begin, [N+1] int32."""
        return self.pattern.indptr

    @property
    def indices(self) -> Tensor:
        """The column of each stored entry, [E] int32, ascending in each row."""
        return self.pattern.indices

    @property
    def shape(self) -> tuple[int, int]:
        """The shape, (N, M)."""
        return self.pattern.shape

    @property
    def row(self) -> Tensor:
        """The row of each stored entry, [E] int64."""
        return self.pattern.row

    @cached_property
    def t_values(self) -> Tensor:
        """The values in the order of the transpose, [E]."""
        return self.values.index_select(0, self.pattern.t_order)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.values.dtype

    def with_values(self, values: Tensor) -> "SparseMatrix":
        """Replace the values.

        Args:
            values: [E], in the order of the pattern.

        Returns:
            A matrix [N, M] with the same pattern.
        """
        return SparseMatrix(self.pattern, values)

    def block_diagonal(self, copies: int) -> "SparseMatrix":
        """Arrange copies of the matrix along the diagonal of a larger one.

        Returns:
            [copies * N, copies * M], with the entries of one copy after those of another.
        """
        (n, m), entries = self.shape, len(self.indices)
        # [copies, 1], so that the sums below are [copies, N] and [copies, E], copy after copy.
        copy = torch.arange(copies, device=self.indices.device)[:, None]
        indptr = torch.cat(
            [(self.indptr[:-1] + copy * entries).flatten(), copy.new_tensor([copies * entries])]
        )
        indices = (self.indices + copy * m).flatten()
        return SparseMatrix.from_csr(indptr, indices, self.values.repeat(copies), (copies * n, copies * m))

    def select_rows(self, rows: Tensor) -> "SparseMatrix":
        """Select rows.

        Args:
            rows: [n] int64, in any order.

        Returns:
            [n, M], the rows in this order.
        """
        # The entries of a row are contiguous, so those of the result are one range per row.
        starts, counts = self.indptr[rows], self.indptr.diff()[rows]
        entry = ranges(starts, counts)
        shape = (len(rows), self.shape[1])
        return SparseMatrix.from_csr(count_pointers(counts), self.indices[entry], self.values[entry], shape)

    def slice_rows(self, start: int, stop: int) -> "SparseMatrix":
        """Select the rows start .. stop - 1, without a copy of the entries.

        Args:
            start: The first row, from 0.
            stop: One after the last row, at most N.

        Returns:
            [stop - start, M].
        """
        indptr = self.indptr[start : stop + 1]
        entries = slice(int(indptr[0]), int(indptr[-1]))
        shape = (stop - start, self.shape[1])
        return SparseMatrix.from_csr(indptr - indptr[0], self.indices[entries], self.values[entries], shape)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> "SparseMatrix":
        """Move the matrix to a device, or convert its values to a dtype.

        Args:
            device: The torch device. None: the same.
            dtype: The dtype of the values. None: the same.

        Returns:
            The matrix [N, M].
        """
        values = self.values.to(device).to(dtype or self.dtype)
        return SparseMatrix.from_csr(self.indptr.to(device), self.indices.to(device), values, self.shape)

    def to_dense(self) -> Tensor:
        """Convert the matrix to a dense one. Duplicate entries are added.

        Returns:
            [N, M].
        """
        dense = torch.zeros(self.shape, dtype=self.dtype, device=self.values.device)
        return dense.index_put_((self.row, self.indices.long()), self.values, accumulate=True)


def ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """Concatenate the index ranges starts[i] .. starts[i] + counts[i] - 1.

    Args:
        starts: [n], integers, the first number of each range.
        counts: [n], integers, the length of each range; may be 0.

    Returns:
        [sum of counts], integers.
    """
    # Element t of the result lies in the range i with t in [ends_i - counts_i, ends_i), and is
    # starts_i + t - (ends_i - counts_i).
    ends = counts.cumsum(0)
    offset = torch.repeat_interleave(starts - (ends - counts), counts)
    return torch.arange(len(offset), device=starts.device) + offset


def _product(indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Multiply the CSR matrix of the first three tensors by dense [M, H] or [M]. Not differentiable."""
    rows = len(indptr) - 1
    csr = torch.sparse_csr_tensor(indptr, indices, values, (rows, len(dense)))
    # With beta = 0 the result is not read before it is written; `csr @ dense` would fill it with zeros first.
    out = dense.new_empty(rows, *dense.shape[1:])
    return (torch.addmv if dense.dim() == 1 else torch.addmm)(out, csr, dense, beta=0, out=out)


def _transposed_product(matrix: SparseMatrix, dense: Tensor) -> Tensor:
    """Multiply the transpose of a CSR matrix [N, M] by dense [N, H], by scipy.

    scipy adds up row after row of the matrix, which needs no order of the columns.
    """
    import scipy.sparse

    arrays = (matrix.values.detach().numpy(), matrix.indices.numpy(), matrix.indptr.numpy())
    return torch.from_numpy(scipy.sparse.csc_matrix(arrays, shape=matrix.shape[::-1]) @ dense.numpy())


def _row_sums(matrix: SparseMatrix, values: Tensor) -> Tensor:
    """Sum the entries of each row, [E] -> [N]."""
    # A product with ones adds the entries of a row in order; atomic additions would not.
    return _product(matrix.indptr, matrix.indices, values, values.new_ones(matrix.shape[1]))


def _column_sums(matrix: SparseMatrix, values: Tensor) -> Tensor:
    """Sum the entries of each column, [E] -> [M]."""
    indptr, indices = matrix.pattern.transpose
    t_values = values.index_select(0, matrix.pattern.t_order)
    return _product(indptr, indices, t_values, values.new_ones(matrix.shape[0]))


def sums_by(index: Tensor, values: Tensor, size: int) -> Tensor:
    """Sum the values of each index. The order of the additions is the same on every device.

    Args:
        index: [E] int64 in 0 .. size - 1.
        values: [E], in the order of `index`.
        size: Number of indices, those without values included.

    Returns:
        [size]; 0 for an index without values.
    """
    order = stable_order(index, size)
    return torch.segment_reduce(values[order], "sum", offsets=row_pointers(index, size))


class _SpMM(torch.autograd.Function):
    """CSR(values) @ dense, with gradients of both. values None: those of the matrix."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, values: Tensor | None, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        # The gradient of the values alone needs `dense`.
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
            # Sorting the entries into the transpose does not pay for one product.
            if pattern.once and values is None and grad.device.type == "cpu":
                return None, grad_values, _transposed_product(matrix, grad)
            indptr, indices = pattern.transpose
            t_values = matrix.t_values if values is None else values.index_select(0, pattern.t_order)
            grad_dense = _product(indptr, indices, t_values, grad)
        return None, grad_values, grad_dense


def spmm(matrix: SparseMatrix, dense: Tensor, values: Tensor | None = None) -> Tensor:
    """Multiply a sparse matrix by a dense one. Differentiable in `dense` and in `values`.

    Args:
        matrix: [N, M]. Its own values are constants.
        dense: [M, H], of the dtype of the values.
        values: [E], other values for the entries of `matrix`. None: its own.

    Returns:
        [N, H].
    """
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
        # An entry has the derivative 1 in left[row] and in right[column].
        return None, _row_sums(ctx.matrix, grad), _column_sums(ctx.matrix, grad)


def entry_sums(matrix: SparseMatrix, left: Tensor, right: Tensor) -> Tensor:
    """Compute left[row] + right[column] of every stored entry. Differentiable in both.

    Args:
        matrix: [N, M]. Values are not used.
        left: [N], a number for each row.
        right: [M], a number for each column.

    Returns:
        [E].
    """
    result: Tensor = _EntrySums.apply(matrix, left, right)  # type: ignore[no-untyped-call]
    return result


class _AttentionWeights(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, target: Tensor, source: Tensor, slope: float) -> Tensor:
        ctx.matrix, ctx.slope = matrix, slope
        scores = target.index_select(0, matrix.row).add_(source.index_select(0, matrix.indices))
        # The backward pass needs only the signs of the scores: the slope of leaky_relu.
        positive = scores > 0
        scores = leaky_relu(scores, slope)
        # Subtract each row's largest score: the softmax stays the same, and exp cannot overflow.
        top = torch.segment_reduce(scores, "max", offsets=matrix.indptr, unsafe=True)
        weight = (scores - top.index_select(0, matrix.row)).exp_()
        alpha = weight.div_(_row_sums(matrix, weight).index_select(0, matrix.row))
        ctx.save_for_backward(alpha, positive)
        return alpha

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix, slope = ctx.matrix, ctx.slope
        alpha, positive = ctx.saved_tensors
        # d alpha_e / d score_f = alpha_e (1[e = f] - alpha_f) for entries e and f of a row.
        grad = alpha * grad
        grad = grad.addcmul_(alpha, _row_sums(matrix, grad).index_select(0, matrix.row), value=-1)
        grad_source = _column_sums(matrix, torch.where(positive, grad, slope * grad))
        # The gradients g_e of a row's scores add up to 0, so with slopes s_e of the entries
        #     d / d target = sum_e s_e g_e = sum_e (s_e - s) g_e = (1 - s) sum of g_e over positive entries
        # for the slope s of negative entries, and 0 if all entries are positive. sum_e s_e g_e has rounding
        # errors in place of the zeros, and an optimiser that divides by the size of gradients follows them.
        is_mixed = _row_sums(matrix, (~positive).to(grad.dtype)) > 0
        counted = positive & is_mixed.index_select(0, matrix.row)
        return None, (1 - slope) * _row_sums(matrix, grad.masked_fill(~counted, 0)), grad_source, None


def attention_weights(matrix: SparseMatrix, target: Tensor, source: Tensor, slope: float) -> Tensor:
    """Compute the softmax of leaky_relu(target[row] + source[column]) over the entries of each row.

    Differentiable in both scores. The gradient of a target's score is exactly 0 if the scores of its row are
    all positive, or all not.

    Args:
        matrix: [N, M]. Values are not used.
        target: [N], the score of each row as a target of edges.
        source: [M], the score of each column as a source of edges.
        slope: The factor of negative scores in leaky_relu, at least 0 and less than 1.

    Returns:
        [E].

    Reference:
        Velickovic et al. 2018, Eq. (3).
    """
    result: Tensor = _AttentionWeights.apply(matrix, target, source, slope)  # type: ignore[no-untyped-call]
    return result


@dataclass(frozen=True, eq=False)
class SparseWeights:
    """One weight matrix [F, H] per client, stored only where clients can differ.

    If a feature does not occur in the training rows of a client, its row of the client's first-layer weights
    gets no gradient from data. It changes by weight decay alone, so it is the same at all such clients. One
    *ghost* row for each feature stands for all of them. This is exact if these rows have the same state of
    the optimiser. If they have not, `pair_columns(..., every_pair=True)` stores all rows of all clients.

    Attributes:
        values: [P + F, H]. Row q < P belongs to client ``pair_client[q]`` and feature ``pair_feature[q]``;
            row P + f is the ghost row of feature f.
        pair_client: [P] int64, the index in the cohort of the client of each stored row.
        pair_feature: [P] int64, the feature of each stored row. The pairs are sorted by (client, feature),
            without duplicates.
        num_clients: K.
    """

    values: Tensor
    pair_client: Tensor
    pair_feature: Tensor
    num_clients: int

    @staticmethod
    def expand(
        shared: Tensor, pair_client: Tensor, pair_feature: Tensor, num_clients: int
    ) -> "SparseWeights":
        """Copy shared weights for each client.

        Args:
            shared: [F, H], the weights that every client gets.
            pair_client: [P] int64, sorted with `pair_feature` (see the class).
            pair_feature: [P] int64, the feature of each pair.
            num_clients: K, clients without pairs included.

        Returns:
            The weights, the same for all clients.
        """
        # Stored rows first, then a ghost row for every feature.
        values = torch.cat([shared.index_select(0, pair_feature), shared])
        return SparseWeights(values, pair_client, pair_feature, num_clients)

    def with_values(self, values: Tensor) -> "SparseWeights":
        """Replace the values.

        Args:
            values: [P + F, H]: the stored rows, then the ghost rows.

        Returns:
            Weights with the same pairs.
        """
        return replace(self, values=values)

    @property
    def ghost(self) -> Tensor:
        """The ghost rows, [F, H]."""
        return self.values[len(self.pair_client) :]

    @property
    def part_shape(self) -> tuple[int, ...]:
        """The shape of one client's weights, (F, H)."""
        return tuple(self.ghost.shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        return self.values.dtype

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Compute a weighted sum of the clients' weights.

        Args:
            weights: [K], the weight of each client. They need not add up to 1. A client of weight 0 does not
                count, even if its stored rows are not finite.

        Returns:
            sum_k weights[k] * W_k, [F, H].
        """
        # sum_k w_k W_k = (sum_k w_k) ghost + sum over stored rows of w_k (W_k - ghost). So no tensor of [K,
        # F, H] is built.
        ghost = self.ghost
        weights = weights.to(self.values.dtype)
        scale = weights[self.pair_client]
        delta = self.values[: len(self.pair_client)] - ghost.index_select(0, self.pair_feature)
        delta = delta * scale[:, None]
        # 0 * inf is NaN.
        delta[scale == 0] = 0
        return (ghost * weights.sum()).index_add_(0, self.pair_feature, delta)

    def part(self, k: int) -> Tensor:
        """Return the weights of one client in full.

        Args:
            k: The client's index in the cohort.

        Returns:
            [F, H].
        """
        of_client = self.pair_client == k
        stored = self.values[: len(of_client)][of_client]
        return self.ghost.index_copy(0, self.pair_feature[of_client], stored)


def pair_columns(
    matrix: SparseMatrix, client: Tensor, num_clients: int, *, every_pair: bool = False
) -> tuple[Tensor, Tensor]:
    """Find the (client, feature) pairs whose weights `SparseWeights` must store.

    Args:
        matrix: [N, F], the features of all clients' training rows.
        client: [N] int64, the index in the cohort of each row's client.
        num_clients: K, clients without rows included.
        every_pair: Whether to store all K * F pairs. Else those that occur in the rows.

    Returns:
        The clients and the features of the pairs, [P] int64 each, sorted by (client, feature).
    """
    features = matrix.shape[1]
    if every_pair:
        # A pair (k, f) has the code k F + f, so the order of codes is that of (client, feature).
        codes = torch.arange(num_clients * features, device=client.device)
    else:
        codes = client[matrix.row] * features + matrix.indices
        # To mark all possible pairs is faster than to sort the entries, unless the entries are few.
        if num_clients * features < 4 * len(codes):
            occurs = torch.zeros(num_clients * features, dtype=torch.bool, device=codes.device)
            codes = occurs.index_fill_(0, codes, True).nonzero()[:, 0]
        else:
            codes = torch.unique(codes)
    return codes // features, codes % features


def shift_columns(
    matrix: SparseMatrix, client: Tensor, pair_client: Tensor, pair_feature: Tensor
) -> SparseMatrix:
    """Renumber the columns of the clients' stacked features to rows of `SparseWeights.values`.

    An entry in a row of client k with feature f is moved to the column of the pair (k, f), or to the ghost
    column P + f if the pair is not stored. So one product multiplies the rows of every client by its own
    weights.

    Args:
        matrix: [N, F], the stacked features of all clients' rows.
        client: [N] int64, the index in the cohort of each row's client.
        pair_client: [P] int64, sorted with `pair_feature` (see `SparseWeights`).
        pair_feature: [P] int64, the feature of each pair.

    Returns:
        [N, P + F].
    """
    features, pairs = matrix.shape[1], len(pair_client)
    shape = (matrix.shape[0], pairs + features)
    if pairs == 0:
        return SparseMatrix.from_csr(matrix.indptr, matrix.indices, matrix.values, shape)
    codes = pair_client * features + pair_feature
    wanted = client[matrix.row] * features + matrix.indices
    # Beyond the last code `searchsorted` returns P, which is no index; the comparison rejects the entry.
    pair = torch.searchsorted(codes, wanted).clamp(max=pairs - 1)
    is_stored = codes[pair] == wanted
    # The pairs of a client are sorted by feature. So the columns of every row stay sorted if all are stored.
    if bool(is_stored.all()):
        return SparseMatrix.from_csr(matrix.indptr, pair, matrix.values, shape)
    columns = torch.where(is_stored, pair, pairs + matrix.indices)
    return SparseMatrix.from_coo(matrix.row, columns, matrix.values, shape)


def multiply(left: SparseMatrix, right: Tensor | SparseMatrix) -> Tensor | SparseMatrix:
    """Multiply a sparse matrix by a dense or sparse one, for setup.

    Args:
        left: [N, M].
        right: [M, F].

    Returns:
        left @ right, [N, F]. It is sparse if `right` is; then it is computed by scipy on the CPU, and is not
        differentiable.
    """
    if isinstance(right, Tensor):
        return spmm(left, right)
    product = left.to_scipy() @ right.to_scipy()
    return SparseMatrix.from_scipy(product, right.dtype).to(right.values.device)
