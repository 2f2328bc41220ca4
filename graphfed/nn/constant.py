"""A tall sparse matrix of constants, as a network's input: products with it and their gradients."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from graphfed.nn.sparse import Pattern, SparseMatrix, multiply_csr

__all__ = ["ConstantMatrix"]

#: Rows of a block: what arrives of them in a backward pass (16 columns of 4 bytes) fits a processor's cache.
BLOCK = 16384


@dataclass(frozen=True, eq=False)
class ConstantMatrix:
    """A CSR matrix [P, d] of constants with P far above d and 10^8 entries, say.

    blocks: of every BLOCK rows the transpose. The product with the transpose of the whole would look up every
    entry's row among all P of the gradient; block by block they are close together, which is 6 times as
    fast."""

    matrix: SparseMatrix
    blocks: tuple[SparseMatrix, ...]

    @staticmethod
    def of(matrix: SparseMatrix) -> "ConstantMatrix":
        """By a counting sort of each block, so the order of the entries is never kept."""
        blocks = []
        for start in range(0, matrix.shape[0], BLOCK):
            part = matrix.slice_rows(start, min(start + BLOCK, matrix.shape[0]))
            turned = part.to_scipy().tocsc()
            device = matrix.values.device
            indptr, indices, values = (
                torch.from_numpy(x).to(device) for x in (turned.indptr, turned.indices, turned.data)
            )
            pattern = Pattern(indptr.int(), indices.int(), (part.shape[1], part.shape[0]))
            blocks.append(SparseMatrix(pattern, values))
        return ConstantMatrix(matrix, tuple(blocks))

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape

    def __matmul__(self, dense: Tensor) -> Tensor:
        """[P, d] by [d, H] -> [P, H], differentiable in the dense factor."""
        result: Tensor = _Product.apply(self, dense)  # type: ignore[no-untyped-call]
        return result


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: ConstantMatrix, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return multiply_csr(matrix.matrix, dense)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        matrix, grad = ctx.matrix, grad.contiguous()
        total = grad.new_zeros(matrix.shape[1], grad.shape[1])
        start = 0
        for block in matrix.blocks:
            stop = start + block.shape[1]
            multiply_csr(block, grad[start:stop], add_to=total)
            start = stop
        return None, total
