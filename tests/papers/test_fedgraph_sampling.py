"""Samplers of neighbourhoods: their expectations, by adding up every outcome with its probability."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from graphfed.methods.fedgraph.client_graphs import (
    Sampled,
    sample_by_importance,
    sample_fan_out,
    sample_independently,
)


def rows_of(sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The row of each entry, and whether it is a self entry: the first of each row."""
    row = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes) + 1)
    is_self = torch.cat([torch.tensor([True] + [False] * size) for size in sizes])
    return row, is_self


def total(sampled: Sampled, values: Tensor) -> float:
    return float((values[sampled.entries] * sampled.factor).sum())


@pytest.mark.parametrize("p", [0.05, 0.4, 0.9])
@pytest.mark.parametrize("size", [1, 3, 6])
def test_the_ratio_is_unbiased_given_that_something_is_sampled_and_one_over_p_always(
    size: int, p: float
) -> None:
    """Over all 2^n outcomes: the ratio's mean is 1 - (1 - p)^n of the sum (6 neighbours, p = 0.4: 0.953), and
    given that some are sampled all of it; that of 1 / p is the sum. The self entry always counts once."""
    row, is_self = rows_of([size])
    values = torch.arange(1.0, size + 2, dtype=torch.float64) ** 2
    others = float(values[1:].sum())
    means = {True: 0.0, False: 0.0}
    for outcome in itertools.product([0.0, 1.0], repeat=size):
        # 0 is sampled, 1 is not; self entries are sampled whatever their draw.
        draw = torch.tensor([1.0, *outcome], dtype=torch.float64)
        probability = p ** outcome.count(0.0) * (1 - p) ** outcome.count(1.0)
        for ratio in means:
            sampled = sample_independently(
                draw, torch.full_like(draw, p), row, is_self, torch.tensor([size + 1]), ratio
            )
            means[ratio] += probability * (total(sampled, values) - float(values[0]))
    assert means[True] == pytest.approx((1 - (1 - p) ** size) * others, rel=1e-12)
    assert means[False] == pytest.approx(others, rel=1e-12)


@pytest.mark.parametrize(("size", "most"), [(4, 1), (4, 3), (5, 2), (3, 3), (2, 9), (0, 1)])
def test_the_mean_over_all_orders_of_draws_of_a_fan_out_is_the_full_sum(size: int, most: int) -> None:
    row, is_self = rows_of([size])
    values = torch.arange(1.0, size + 2, dtype=torch.float64) ** 2
    found = []
    for order in itertools.permutations(range(size)):
        draw = torch.tensor([0.0, *((k + 1) / (size + 2) for k in order)], dtype=torch.float64)
        sampled = sample_fan_out(draw, torch.tensor([most]), row, is_self, torch.tensor([size + 1]))
        assert len(sampled.entries) == 1 + min(size, most)
        found.append(total(sampled, values))
    assert sum(found) / len(found) == pytest.approx(float(values.sum()), rel=1e-12)


def test_the_mean_over_all_columns_that_fastgcn_may_draw_is_the_full_sum() -> None:
    """One draw, each column with its probability; of several draws the sum is the mean of such."""
    probability = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    column = torch.tensor([0, 1, 3, 2, 3])  # the entries of two rows
    values = torch.tensor([1.0, 4.0, 9.0, 16.0, 25.0], dtype=torch.float64)
    mean = 0.0
    for drawn in range(4):
        times = (torch.arange(4) == drawn).long()
        sampled = sample_by_importance(times[column], probability[column], torch.ones(5))
        mean += float(probability[drawn]) * total(sampled, values)
    assert mean == pytest.approx(float(values.sum()), rel=1e-12)
    twice = sample_by_importance(
        torch.tensor([2, 1, 0, 0, 1])[column], probability[column], torch.full((5,), 4.0)
    )
    assert twice.factor[0] == pytest.approx(2 / (4 * 0.1))


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    p=st.floats(1e-6, 1.0),
    most=st.integers(1, 7),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100)
def test_every_self_entry_is_sampled_at_its_own_weight_and_the_others_at_no_smaller_one(
    sizes: list[int], p: float, most: int, seed: int
) -> None:
    row, is_self = rows_of(sizes)
    draw = torch.rand(len(row), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    counts = torch.tensor(sizes) + 1
    probabilities, limits = torch.full_like(draw, p), torch.full((len(sizes),), most)
    for sampled in (
        sample_independently(draw, probabilities, row, is_self, counts, True),
        sample_independently(draw, probabilities, row, is_self, counts, False),
        sample_fan_out(draw, limits, row, is_self, counts),
    ):
        assert (sampled.entries.diff() > 0).all()
        assert is_self.nonzero()[:, 0].tolist() == [i for i in sampled.entries.tolist() if is_self[i]]
        assert (sampled.factor[is_self[sampled.entries]] == 1).all()
        assert sampled.factor.isfinite().all()
        assert (sampled.factor >= 1).all()
    small = sample_fan_out(draw, limits, row, is_self, counts)
    left = torch.bincount(row[small.entries], minlength=len(sizes)) - 1
    assert left.tolist() == [min(size, most) for size in sizes]


def test_rows_are_sampled_each_for_itself() -> None:
    """A row's outcome does not depend on what else is sampled with it."""
    row, is_self = rows_of([4, 3])
    draw = torch.rand(len(row), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    together = sample_fan_out(draw, torch.tensor([2, 2]), row, is_self, torch.tensor([5, 4]))
    alone = sample_fan_out(draw[5:], torch.tensor([2]), row[5:] - 1, is_self[5:], torch.tensor([4]))
    assert (together.entries[together.entries >= 5] - 5).tolist() == alone.entries.tolist()
