"""A tall constant matrix is a matrix: products and gradients, however its rows are cut into blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.nn import constant
from graphfed.nn.constant import ConstantMatrix
from graphfed.nn.sparse import SparseMatrix


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 50), st.integers(0, 2**31))
def test_products_and_gradients_are_those_of_the_dense_matrix(
    rows: int, columns: int, block: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    dense = dense * (torch.rand(rows, columns, generator=generator) < 0.4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constant, "BLOCK", block)
        matrix = ConstantMatrix.of(SparseMatrix.from_dense(dense))
    assert len(matrix.blocks) == -(-rows // block)
    weight = torch.randn(columns, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    out = matrix @ weight
    assert torch.allclose(out, dense @ weight, rtol=0, atol=1e-12)
    slope = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
    (found,) = torch.autograd.grad(out, weight, slope)
    assert torch.allclose(found, dense.t() @ slope, rtol=0, atol=1e-12)
