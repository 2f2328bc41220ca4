"""Sparse matrices and the operations on their entries agree with dense matrices, in values and gradients."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import leaky_relu

from graphfed.nn.sparse import (
    SparseMatrix,
    SparseWeights,
    attention_weights,
    entry_sums,
    multiply,
    pair_columns,
    shift_columns,
    spmm,
)


def random_dense(seed: int, rows: int, columns: int, share: float = 0.3, dtype=torch.float64) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    dense = torch.randn(rows, columns, generator=g, dtype=dtype)
    return dense * (torch.rand(rows, columns, generator=g) < share)


matrices = st.builds(
    random_dense,
    st.integers(0, 2**31),
    st.integers(0, 9),
    st.integers(0, 9),
    st.sampled_from([0.0, 0.3, 1.0]),
)
EMPTY = [(0, 0), (0, 4), (4, 0), (4, 3)]


@settings(max_examples=80)
@given(dense=matrices)
def test_dense_to_sparse_and_back_changes_nothing(dense: Tensor) -> None:
    matrix = SparseMatrix.from_dense(dense)
    assert torch.equal(matrix.to_dense(), dense)
    assert len(matrix.values) == int((dense != 0).sum())
    assert torch.equal(SparseMatrix.from_scipy(matrix.to_scipy(), torch.float64).to_dense(), dense)


@settings(max_examples=80)
@given(dense=matrices, data=st.data())
def test_selected_rows_are_the_dense_rows_in_that_order_repeats_included(
    dense: Tensor, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, len(dense) - 1), max_size=12)) if len(dense) else []
    index = torch.tensor(rows, dtype=torch.int64)
    assert torch.equal(SparseMatrix.from_dense(dense).select_rows(index).to_dense(), dense[index])


@settings(max_examples=40)
@given(dense=matrices, copies=st.integers(1, 4))
def test_block_diagonal_is_torchs_and_keeps_its_transpose(dense: Tensor, copies: int) -> None:
    matrix = SparseMatrix.from_dense(dense).block_diagonal(copies)
    expected = torch.block_diag(*[dense] * copies)
    assert torch.equal(matrix.to_dense(), expected)
    ones = torch.ones(matrix.shape[1], 2, dtype=torch.float64, requires_grad=True)
    spmm(matrix, ones).sum().backward()
    torch.testing.assert_close(ones.grad, expected.sum(0)[:, None].expand_as(ones))


def test_entries_given_in_any_order_and_twice_are_added() -> None:
    row, col = torch.tensor([1, 0, 1, 1]), torch.tensor([2, 1, 2, 0])
    matrix = SparseMatrix.from_coo(row, col, torch.tensor([1.0, 2.0, 4.0, 8.0]), (2, 3))
    expected = torch.tensor([[0.0, 2.0, 0.0], [8.0, 0.0, 5.0]])
    assert torch.equal(matrix.to_dense(), expected)
    assert torch.equal(spmm(matrix, torch.eye(3)), expected)
    assert matrix.row.tolist() == [0, 1, 1, 1]


@settings(max_examples=60)
@given(dense=matrices, width=st.integers(1, 4), other_values=st.booleans(), once=st.booleans())
def test_products_and_their_gradients_are_the_dense_ones(
    dense: Tensor, width: int, other_values: bool, once: bool
) -> None:
    matrix = SparseMatrix.from_dense(dense)
    matrix = replace(matrix, pattern=replace(matrix.pattern, once=once))
    g = torch.Generator().manual_seed(width)
    right = torch.randn(dense.shape[1], width, generator=g, dtype=torch.float64, requires_grad=True)
    values = torch.randn(len(matrix.values), generator=g, dtype=torch.float64, requires_grad=True)
    if other_values:
        left = torch.zeros_like(dense).index_put((matrix.row, matrix.indices.long()), values)
    else:
        left = dense
    expected = left @ right
    direction = torch.randn(expected.shape, generator=g, dtype=torch.float64)
    wanted = torch.autograd.grad(
        (expected * direction).sum(), [right, values], allow_unused=True, materialize_grads=True
    )
    result = spmm(matrix, right, values if other_values else None)
    torch.testing.assert_close(result, expected)
    found = torch.autograd.grad(
        (result * direction).sum(), [right, values], allow_unused=True, materialize_grads=True
    )
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_gradients_pass_gradcheck_with_empty_rows_and_columns(share: float) -> None:
    """Numerical derivatives (torch.autograd.gradcheck) of all three operations, in every argument."""
    dense = random_dense(5, 6, 5, share)
    dense[2], dense[:, 1] = 0, 0
    matrix = SparseMatrix.from_dense(dense)
    g = torch.Generator().manual_seed(0)

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64, requires_grad=True)

    entries = len(matrix.values)
    assert torch.autograd.gradcheck(lambda v, d: spmm(matrix, d, v), (leaf(entries), leaf(5, 3)))
    assert torch.autograd.gradcheck(lambda d: spmm(matrix, d), (leaf(5, 3),))
    assert torch.autograd.gradcheck(lambda a, b: entry_sums(matrix, a, b), (leaf(6), leaf(5)))
    assert torch.autograd.gradcheck(lambda a, b: attention_weights(matrix, a, b, 0.2), (leaf(6), leaf(5)))


@pytest.mark.parametrize("shape", EMPTY)
def test_matrices_without_rows_columns_or_entries_work_everywhere(shape: tuple[int, int]) -> None:
    matrix = SparseMatrix.from_dense(torch.zeros(shape))
    right = torch.ones(shape[1], 2, requires_grad=True)
    values = torch.ones(0, requires_grad=True)
    product = spmm(matrix, right, values)
    product.sum().backward()
    assert torch.equal(product, torch.zeros(shape[0], 2))
    assert torch.equal(right.grad, torch.zeros(shape[1], 2))
    left, column = torch.ones(shape[0], requires_grad=True), torch.ones(shape[1], requires_grad=True)
    share = attention_weights(matrix, left, column, 0.2)
    share.sum().backward()
    assert share.shape == (0,)
    assert torch.equal(left.grad, torch.zeros(shape[0]))
    assert matrix.with_values(torch.zeros(0)).to(dtype=torch.float64).dtype == torch.float64


@settings(max_examples=40)
@given(dense=matrices, scale=st.sampled_from([1.0, 1e4]), shift=st.sampled_from([-10.0, 0.0, 10.0]))
def test_attention_weights_are_torchs_softmax_over_each_rows_entries(
    dense: Tensor, scale: float, shift: float
) -> None:
    matrix = SparseMatrix.from_dense(dense)
    g = torch.Generator().manual_seed(0)
    target, source = (
        (scale * torch.randn(size, generator=g, dtype=dense.dtype) + scale * shift).requires_grad_()
        for size in dense.shape
    )
    direction = torch.randn(len(matrix.values), generator=g, dtype=dense.dtype)
    row, column = matrix.row, matrix.indices.long()
    scores = leaky_relu(target[row] + source[column], 0.2)
    full = torch.full_like(dense, -torch.inf).index_put((row, column), scores)
    expected = full.softmax(1)[row, column]
    wanted = torch.autograd.grad((expected * direction).sum(), [target, source])
    found = attention_weights(matrix, target, source, 0.2)
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad((found * direction).sum(), [target, source])
    torch.testing.assert_close(gradients, wanted)
    if shift:  # the scores of a row are all positive, or all negative, and a constant does not change alpha
        assert not gradients[0].any()


@settings(max_examples=40)
@given(left=matrices, seed=st.integers(0, 99), width=st.integers(0, 5), sparse=st.booleans())
def test_multiply_is_the_dense_product(left: Tensor, seed: int, width: int, sparse: bool) -> None:
    right = random_dense(seed, left.shape[1], width)
    product = multiply(SparseMatrix.from_dense(left), SparseMatrix.from_dense(right) if sparse else right)
    assert isinstance(product, SparseMatrix) == sparse
    torch.testing.assert_close(
        product.to_dense() if isinstance(product, SparseMatrix) else product, left @ right
    )


# ---- Per-client weights stored for (client, feature) pairs

stacks = st.tuples(
    st.integers(0, 2**31), st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 8)
)


@settings(max_examples=80)
@given(stack=stacks, every_pair=st.booleans())
def test_one_product_with_shifted_columns_gives_every_row_its_clients_weights(
    stack: tuple[int, list[int], int], every_pair: bool
) -> None:
    seed, sizes, features = stack
    clients = len(sizes)
    client = torch.repeat_interleave(torch.arange(clients), torch.tensor(sizes))
    dense = random_dense(seed, len(client), features)
    matrix = SparseMatrix.from_dense(dense)
    pairs = pair_columns(matrix, client, clients, every_pair=every_pair)
    ghosts = torch.randn(features, 3, dtype=torch.float64)
    stored = torch.randn(len(pairs[0]), 3, dtype=torch.float64)
    weights = SparseWeights(torch.cat([stored, ghosts]), *pairs, clients)
    whole = ghosts.repeat(clients, 1, 1).index_put(pairs, stored)
    parts = torch.stack([weights.part(k) for k in range(clients)])
    assert torch.equal(parts, whole)
    product = spmm(shift_columns(matrix, client, *pairs), weights.values)
    torch.testing.assert_close(product, torch.einsum("nf,nfh->nh", dense, whole[client]))
    share = torch.rand(clients, dtype=torch.float64)
    average = torch.einsum("k,kfh->fh", share, whole)
    torch.testing.assert_close(weights.weighted_sum(share), average)
    # A client of weight 0 does not count, even if its stored rows are not finite.
    average, share[0] = average - share[0] * whole[0], 0
    stored[pairs[0] == 0] = math.inf
    weights = weights.with_values(torch.cat([stored, ghosts]))
    torch.testing.assert_close(weights.weighted_sum(share), average)
    assert weights.part_shape == (features, 3)


@settings(max_examples=40)
@given(stack=stacks)
def test_pairs_are_those_that_occur_or_all(stack: tuple[int, list[int], int]) -> None:
    seed, sizes, features = stack
    client = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    matrix = SparseMatrix.from_dense(random_dense(seed, len(client), features))
    occurring = sorted({(int(client[r]), int(f)) for r, f in zip(matrix.row, matrix.indices, strict=True)})
    every = [(k, f) for k in range(len(sizes)) for f in range(features)]
    for every_pair, expected in ((False, occurring), (True, every)):
        pairs = pair_columns(matrix, client, len(sizes), every_pair=every_pair)
        found = list(zip(pairs[0].tolist(), pairs[1].tolist(), strict=True))
        assert found == expected


def test_every_client_starts_from_the_weights_it_was_given() -> None:
    shared = torch.randn(5, 2)
    weights = SparseWeights.expand(shared, torch.tensor([0, 2, 2]), torch.tensor([4, 0, 1]), 3)
    assert all(torch.equal(weights.part(k), shared) for k in range(3))
    assert torch.equal(weights.ghost, shared)
