"""Dropout is keyed: a mask depends on the key, the layer and the row's stable id, never on where the row is
stored.

Keys are fixed, so these tests never flicker. Each statistical bound states its false-alarm rate: the share of
keys for which a perfect generator would break it.
"""

import pytest
import torch
from random_graphs import batch_of, draw_weights, random_view

from graphfed.nn.backbones import BACKBONES
from graphfed.nn.layers import Dropout
from graphfed.nn.sparse import SparseMatrix
from graphfed.random import entry_words, fold, lane_probability

KEY = fold(0, "dropout", 3, 1)
RATES = [0.001, 0.25, 0.5, 0.6, 0.9, 0.999]


def row_mask(p: float, key: int, layer: int, ids: torch.Tensor, width: int) -> torch.Tensor:
    return Dropout(p, key).rows(torch.ones(len(ids), width), ids, layer) != 0


def stored(n: int, width: int) -> tuple[SparseMatrix, torch.Tensor]:
    matrix = SparseMatrix.from_dense(torch.ones(n, width))
    return matrix, entry_words(matrix.row, matrix.indices.long())


def test_the_same_key_and_layer_give_the_same_mask_and_any_other_gives_another() -> None:
    ids = torch.arange(100)
    mask = row_mask(0.5, KEY, 0, ids, 16)
    assert torch.equal(mask, row_mask(0.5, KEY, 0, ids, 16))
    others = [
        row_mask(0.5, KEY, 1, ids, 16),
        row_mask(0.5, fold(0, "dropout", 3, 2), 0, ids, 16),
        row_mask(0.5, fold(0, "dropout", 4, 1), 0, ids, 16),
        row_mask(0.5, fold(1, "dropout", 3, 1), 0, ids, 16),
    ]
    for other in others:
        # Two independent masks of 1 600 fair entries agree in 800 +- 20: 5 standard errors, false alarms 6e-7
        # each.
        assert abs(int((mask == other).sum()) - 800) < 100


def test_sparse_entries_and_attention_draw_anew_in_every_layer() -> None:
    matrix, words = stored(20, 10)
    dropout, alpha = Dropout(0.5, KEY), torch.ones(2, 100)
    assert not torch.equal(dropout.entries(matrix, words, 0).values, dropout.entries(matrix, words, 1).values)
    assert not torch.equal(dropout.edges(alpha, words[:100], 0), dropout.edges(alpha, words[:100], 1))


def test_a_rows_mask_follows_its_id_through_permutations_and_subsets() -> None:
    ids = torch.arange(50) * 7 + 3
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    mask = row_mask(0.4, KEY, 0, ids, 10)
    assert torch.equal(row_mask(0.4, KEY, 0, ids[order], 10), mask[order])
    assert torch.equal(row_mask(0.4, KEY, 0, ids[10:13], 10), mask[10:13])
    matrix, _ = stored(50, 10)
    whole = (
        Dropout(0.4, KEY).entries(matrix, entry_words(ids[matrix.row], matrix.indices.long()), 0).to_dense()
    )
    part = matrix.select_rows(order[:20])
    words = entry_words(ids[order[:20]][part.row], part.indices.long())
    assert torch.equal(Dropout(0.4, KEY).entries(part, words, 0).to_dense(), whole[order[:20]])


@pytest.mark.parametrize("p", RATES)
def test_the_share_dropped_is_p_within_five_standard_errors(p: float) -> None:
    """False-alarm rate 6e-7 for each of the three kinds of dropout."""
    n, width = 20_000, 10
    matrix, words = stored(n, width)
    dropout = Dropout(p, KEY)
    results = [
        dropout.rows(torch.ones(n, width), torch.arange(n), 0),
        dropout.entries(matrix, words, 0).values,
        dropout.edges(torch.ones(width, n), torch.arange(n), 0),
    ]
    bound = 5 * (p * (1 - p) / (n * width)) ** 0.5 + 2**-17  # and the rounding of p to 16 bits
    for kept in results:
        assert abs(float((kept == 0).double().mean()) - p) < bound


@pytest.mark.parametrize("p", RATES)
def test_what_is_kept_is_scaled_so_that_the_expectation_stays(p: float) -> None:
    """The mean of ones after dropout is 1 within 5 standard errors, sqrt(p / (1 - p) / n) each (false alarms
    6e-7)."""
    n, width = 20_000, 10
    matrix, words = stored(n, width)
    bound = 5 * (p / (1 - p) / (n * width)) ** 0.5
    for result in (
        Dropout(p, KEY).rows(torch.ones(n, width, dtype=torch.float64), torch.arange(n), 2),
        Dropout(p, KEY).entries(matrix.to(dtype=torch.float64), words, 2).values,
    ):
        assert abs(float(result.mean()) - 1) < bound
        assert len(result[result != 0].unique()) == 1


@pytest.mark.parametrize("p", RATES)
def test_kept_rows_are_divided_by_the_share_that_is_really_kept(p: float) -> None:
    """A rate is rounded to 16 bits; near 1 that changes the share kept, and the scale changes with it."""
    result = Dropout(p, KEY).rows(torch.ones(5_000, 4, dtype=torch.float64), torch.arange(5_000), 0)
    assert float(result.max()) == pytest.approx(1 / (1 - lane_probability(p)), rel=1e-12)


@pytest.mark.parametrize("p", [0.99999, 1 - 1e-9])
def test_a_rate_next_to_one_drops_nearly_everything_and_keeps_finite_values(p: float) -> None:
    result = Dropout(p, KEY).rows(torch.ones(2_000, 8), torch.arange(2_000), 0)
    assert result.isfinite().all()
    # At most 16 000 / 65 536 entries are expected; a Poisson count of mean 0.25 exceeds 6 once in 10^8.
    assert int((result != 0).sum()) <= 6


def test_rate_zero_returns_its_input() -> None:
    matrix, words = stored(3, 2)
    x = torch.randn(3, 2)
    dropout = Dropout(0.0, KEY)
    assert dropout.rows(x, torch.arange(3), 0) is x
    assert dropout.entries(matrix, words, 0) is matrix
    assert dropout.edges(x, torch.arange(2), 0) is x


def test_sparse_dropout_keeps_the_pattern_and_changes_stored_values_only() -> None:
    dense = torch.randn(30, 12) * (torch.rand(30, 12) < 0.3)
    matrix = SparseMatrix.from_dense(dense)
    dropped = Dropout(0.5, KEY).entries(matrix, entry_words(matrix.row, matrix.indices.long()), 0)
    result = dropped.to_dense()
    assert torch.equal(dropped.indices, matrix.indices)
    assert torch.equal(dropped.t_values, dropped.values[dropped.pattern.t_order])
    kept = result != 0
    assert torch.equal(result[kept], 2 * dense[kept])
    assert not (kept & (dense == 0)).any()


@pytest.mark.parametrize("width", [1, 3, 4, 5, 7, 16, 33])
def test_a_column_is_drawn_alike_whatever_the_width(width: int) -> None:
    """Four columns share one word: a width that is no multiple of four only leaves lanes unused."""
    ids = torch.arange(64)
    assert torch.equal(row_mask(0.5, KEY, 0, ids, width), row_mask(0.5, KEY, 0, ids, 40)[:, :width])


@pytest.mark.parametrize("backbone", list(BACKBONES))
@pytest.mark.parametrize("sparse", [False, True])
def test_pruning_does_not_change_what_dropout_does_to_the_targets(backbone: str, sparse: bool) -> None:
    view = random_view(0, [40], sparse=sparse)
    weights = draw_weights(0, backbone, [6, 4, 3], 2)
    targets = torch.tensor([0, 5, 6, 30])
    whole = BACKBONES[backbone].forward(weights, batch_of(view, backbone, 2, 2), Dropout(0.5, KEY))
    pruned = BACKBONES[backbone].forward(weights, batch_of(view, backbone, 2, 2, targets), Dropout(0.5, KEY))
    clean = BACKBONES[backbone].forward(weights, batch_of(view, backbone, 2, 2, targets), None)
    torch.testing.assert_close(pruned, whole[targets], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(pruned, clean)


def test_attention_dropout_drops_coefficients_and_not_rows() -> None:
    """With identical features everywhere, dropout on the attention alone changes how much of them arrives."""
    words, alpha = torch.arange(500), torch.ones(8, 500)
    dropped = Dropout(0.5, KEY).edges(alpha, words, 0)
    assert dropped.shape == (8, 500)
    per_head = (dropped == 0).double().mean(1)
    assert (
        (per_head - 0.5).abs() < 5 * 0.5 / 500**0.5
    ).all()  # 8 heads at 5 standard errors: false alarms 5e-6
    assert len({tuple(row) for row in dropped.tolist()}) == 8, "each head draws for itself"
    assert torch.equal(Dropout(0.5, KEY).edges(alpha[:, :7], words[:7], 0), dropped[:, :7])
