"""A matrix of noised bits is a matrix: products and gradients, however its rows are cut into blocks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphfed.methods.lumos import client_trees
from graphfed.methods.lumos.client_trees import BitMatrix


@given(st.integers(0, 40), st.integers(1, 9), st.integers(1, 50), st.integers(0, 2**31))
def test_products_and_gradients_are_those_of_the_dense_matrix(
    rows: int, width: int, block: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    there = torch.rand(rows, width, generator=generator) < 0.4
    bits = torch.rand(rows, width, generator=generator) < 0.5
    values = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    dense = torch.where(there, torch.where(bits, values[:, :1], values[:, 1:]), 0.0)
    columns = there.nonzero()[:, 1].int()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_trees, "BLOCK", block)
        matrix = BitMatrix.of(columns, bits[there], there.sum(1), values, width)
        assert len(matrix.blocks) == -(-rows // block)
        assert matrix.shape == (rows, width)
        assert torch.equal(matrix.to_dense(), dense)
        weight = torch.randn(width, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        out = matrix @ weight
        assert torch.allclose(out, dense @ weight, rtol=0, atol=1e-12)
        slope = torch.randn(rows, 3, generator=generator, dtype=torch.float64)
        (found,) = torch.autograd.grad(out, weight, slope)
        assert torch.allclose(found, dense.t() @ slope, rtol=0, atol=1e-12)
