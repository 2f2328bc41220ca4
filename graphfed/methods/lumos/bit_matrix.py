"""A tall matrix of noised bits as the input of a network: its products with weights and their gradients."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

#: Rows of a block: their part of a gradient (16 columns of 4 bytes, for ones and for zeros) about fits into a
#: processor's cache.
BLOCK = 1 << 14


@dataclass(frozen=True, eq=False)
class BitMatrix:
    """A constant matrix [P, d]: row p has values[p, 0] where its bit is 1, values[p, 1] where it is 0, and 0
    elsewhere.

    With 10^8 bits a product costs as much as reading the columns, so each bit takes 4 bytes and nothing else.
    A product with the transpose of the whole matrix would look up rows of a gradient with P rows in random
    order; in blocks they are close together.

    Attributes:
        columns: [E] int32: row after row, the columns of its ones and then of its zeros.
        offsets: [2 P + 1] int64: where the ones and zeros of each row begin.
        values: [P, 2].
        width: d.
        blocks: For every BLOCK rows the transpose: (row, bit) numbers, and their offsets [d + 1].
    """

    columns: Tensor
    offsets: Tensor
    values: Tensor
    width: int
    blocks: tuple[tuple[Tensor, Tensor], ...]

    @staticmethod
    def of(columns: Tensor, bits: Tensor, sizes: Tensor, values: Tensor, width: int) -> "BitMatrix":
        """Build a matrix from bits.

        Args:
            columns: [E] int32 column of each bit, row after row.
            bits: [E] bool.
            sizes: [P] int64 bits of each row.
            values: [P, 2] value of a bit of 1 and of 0 in each row.
            width: d.
        """
        ends = sizes.cumsum(0)
        starts = ends - sizes
        sums = torch.cat([bits.new_zeros(1, dtype=torch.int32), bits.cumsum(0, dtype=torch.int32)])
        ones = (sums[ends] - sums[starts]).long()
        ordered = torch.empty_like(columns)
        for start in range(0, len(sizes), BLOCK):
            rows = slice(start, start + BLOCK)
            some = slice(int(starts[rows][0]), int(ends[rows][-1]))
            bit, before = bits[some], sums[:-1][some]
            row = torch.repeat_interleave(torch.arange(len(sizes[rows]), device=bit.device), sizes[rows])
            first, base = starts[rows][row], sums[starts[rows]][row]
            rank = before - base  # number of ones before it in its row
            place = torch.arange(some.start, some.stop, device=bit.device)
            zero = ones[rows][row] + place - rank  # zeros follow all ones
            ordered[torch.where(bit, first + rank, zero)] = columns[some]
        offsets = torch.stack([starts, starts + ones], 1).flatten()
        offsets = torch.cat([offsets, ends[-1:] if len(ends) else ends.new_zeros(1)])
        blocks = tuple(
            _transposed(ordered, offsets, start, min(start + BLOCK, len(sizes)), width)
            for start in range(0, len(sizes), BLOCK)
        )
        return BitMatrix(ordered, offsets, values, width, blocks)

    @property
    def shape(self) -> tuple[int, int]:
        """(P, d)."""
        return len(self.values), self.width

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[P, d] by [d, H] -> [P, H], differentiable in the dense factor."""
        result: Tensor = _Product.apply(self, dense)  # type: ignore[no-untyped-call]
        return result

    def to_dense(self) -> Tensor:
        """Return the dense matrix.

        Returns:
            [P, d].
        """
        sizes = self.offsets.diff()
        value = torch.repeat_interleave(self.values.flatten(), sizes)
        row = torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device) // 2, sizes)
        dense = self.values.new_zeros(self.shape)
        return dense.index_put_((row, self.columns.long()), value)


def _transposed(columns: Tensor, offsets: Tensor, start: int, stop: int, width: int) -> tuple[Tensor, Tensor]:
    """List which (row, bit) of the rows start..stop-1 have a bit in each column, by a counting sort."""
    import scipy.sparse

    pointers = offsets[2 * start : 2 * stop + 1]
    some = columns[int(pointers[0]) : int(pointers[-1])]
    parts = (np.ones(len(some), dtype=np.int8), some.cpu().numpy(), (pointers - pointers[0]).cpu().numpy())
    turned = scipy.sparse.csr_matrix(parts, shape=(2 * (stop - start), width)).tocsc()
    indices, indptr = (torch.from_numpy(x).to(columns.device) for x in (turned.indices, turned.indptr))
    return indices.int(), indptr.int()


def _sums(columns: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
    """Add up the rows of `dense` that each bag names."""
    if not len(columns):
        return dense.new_zeros(len(offsets) - 1, dense.shape[1])
    total: Tensor = embedding_bag(columns, dense, offsets.int(), mode="sum", include_last_offset=True)
    return total


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: BitMatrix, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        both = _sums(matrix.columns, matrix.offsets, dense).view(len(matrix.values), 2, dense.shape[1])
        # values[p, 0] times the sum over ones plus values[p, 1] times the sum over zeros
        return torch.einsum("pbh,pb->ph", both, matrix.values.to(dense.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        matrix: BitMatrix = ctx.matrix
        total, start = grad.new_zeros(matrix.width, grad.shape[1]), 0
        for rows, offsets in matrix.blocks:
            some = slice(start, start + BLOCK)
            both = grad[some, None] * matrix.values[some, :, None].to(grad.dtype)
            total += _sums(rows, offsets, both.flatten(0, 1))
            start += BLOCK
        return None, total
