"""Flipped edges by enumeration on few nodes, and by statistics on many."""

import math
from collections import Counter
from itertools import combinations

import pytest
import torch
from torch import Tensor

from graphfed.privacy.edges import answered, expected_edges, flip_edges, pairs_of_bits
from graphfed.privacy.local import SHIFT, rare
from graphfed.privacy.noise import Noise

EPSILON = 2.0
COIN = int(rare(EPSILON))


def both_ways(edges: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    """Row (= node number) and neighbour of each end."""
    ends = torch.tensor([*edges, *((v, u) for u, v in edges)], dtype=torch.int64).reshape(-1, 2)
    return ends[:, 0], ends[:, 1]


class Chosen(Noise):
    """The bits of the pairs in `flipped` are flipped, all others not: the words next to the coin's edge."""

    flipped: frozenset[frozenset[int]] = frozenset()
    nodes = 0

    def words(self, purpose: str, ids: Tensor, width: int) -> Tensor:
        rows = [
            [COIN - SHIFT - (frozenset({i, (i + 1 + p) % self.nodes}) in self.flipped) for p in range(width)]
            for i in ids.tolist()
        ]
        return torch.tensor(rows, dtype=torch.int32).reshape(len(ids), width)


@pytest.mark.parametrize("n", [2, 3, pytest.param(4, marks=pytest.mark.slow), 5])
def test_every_pair_is_flipped_on_its_own_and_by_nothing_else(n: int) -> None:
    """All graphs times all sets of flips of up to 4 nodes (5: one graph): what comes out is their
    symmetric difference. With the chance of each flip, COIN / 2^32, that is the whole law."""
    pairs = [frozenset(pair) for pair in combinations(range(n), 2)]
    graphs = [g for k in range(len(pairs) + 1) for g in combinations(pairs, k)]
    flips = graphs
    if n == 5:
        graphs = [tuple(pairs[::2])]
    for graph in graphs:
        row, neighbour = both_ways([tuple(sorted(pair)) for pair in graph])  # type: ignore[misc]
        for flipped in flips:
            noise = Chosen()
            object.__setattr__(noise, "flipped", frozenset(flipped))
            object.__setattr__(noise, "nodes", n)
            packed = flip_edges(torch.arange(n), row, neighbour, n, noise, "e", EPSILON)
            u, v = pairs_of_bits(packed, torch.arange(n), n)
            found = Counter(frozenset(pair) for pair in zip(u.tolist(), v.tolist(), strict=True))
            assert found == Counter(set(graph) ^ set(flipped))


def test_a_flip_is_as_likely_as_the_bound_allows_and_not_more() -> None:
    flip = COIN / 2**32
    assert flip >= 1 / (1 + math.exp(EPSILON))
    assert math.log((1 - flip) / flip) <= EPSILON
    assert math.log((1 - flip) / flip) == pytest.approx(EPSILON, abs=1e-7)


@pytest.mark.parametrize("n", [2, 3, 6, 7])
def test_every_pair_is_answered_for_by_one_end(n: int) -> None:
    ends = [(u, v) for u in range(n) for v in range(n) if u != v]
    u, v = torch.tensor(ends).t()
    is_answered, place = answered(u, v, n)
    assert sorted(map(sorted, u.new_tensor(ends)[is_answered].tolist())) == [
        list(p) for p in combinations(range(n), 2)
    ]
    assert bool(((place[is_answered] >= 0) & (place[is_answered] < n // 2)).all())


@pytest.mark.parametrize("noise", [Noise(), Noise(6)], ids=["the system's entropy", "seeded"])
@pytest.mark.parametrize("n", [600, 601])
def test_on_many_nodes_true_edges_are_thinned_and_false_ones_distinct_and_even(n: int, noise: Noise) -> None:
    """Numbers of kept and of false edges, and of false edges of one node's answers, within 5 standard
    errors: a false alarm in 5e5 runs."""
    cycle = [(i, (i + 1) % n) for i in range(n)]
    row, neighbour = both_ways(cycle)
    packed = flip_edges(torch.arange(n), row, neighbour, n, noise, "e", EPSILON)
    assert packed.shape == (n, (n // 2 + 7) // 8)
    u, v = (side.long() for side in pairs_of_bits(packed, torch.arange(n), n))
    codes = torch.minimum(u, v) * n + torch.maximum(u, v)
    assert len(codes.unique()) == len(codes)
    assert bool((u != v).all())
    wanted = {tuple(sorted(edge)) for edge in cycle}
    kept = sum(tuple(sorted(pair)) in wanted for pair in zip(u.tolist(), v.tolist(), strict=True))
    flip = COIN / 2**32
    assert abs(kept - n * (1 - flip)) < 5 * math.sqrt(n * flip * (1 - flip))
    others = n * (n - 1) // 2 - n
    assert abs(len(codes) - kept - others * flip) < 5 * math.sqrt(others * flip * (1 - flip))
    expected = expected_edges(n, n, EPSILON)
    assert abs(len(codes) - expected) < 5 * math.sqrt((others + n) * flip * (1 - flip))


def test_who_is_here_does_not_change_what_is_flipped() -> None:
    n, noise = 30, Noise(3)
    row, neighbour = both_ways([(0, 5), (5, 9), (28, 3), (7, 22)])
    whole = flip_edges(torch.arange(n), row, neighbour, n, noise, "e", EPSILON)
    here = torch.tensor([5, 22, 28])
    is_here = torch.isin(row, here)
    part = flip_edges(
        here, torch.searchsorted(here, row[is_here]), neighbour[is_here], n, noise, "e", EPSILON
    )
    assert torch.equal(part, whole[here])


def test_nobody_answers_for_a_loop_and_padding_is_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    node = torch.arange(11)
    assert not bool(answered(node, node, 11)[0].any())
    row, neighbour = torch.tensor([0, 3, 9]), torch.tensor([4, 5, 2])
    asked = (node, row, neighbour, 11, Noise(2), "edges", 1.0)
    packed = flip_edges(*asked)
    first = pairs_of_bits(packed, node, 11)
    assert [ends.dtype for ends in first] == [torch.int32, torch.int32]
    # 5 bits a node, and 3 that stand for nothing, whatever a site sends in them.
    assert all(map(torch.equal, pairs_of_bits(packed | 0b11100000, node, 11), first))
    # A few rows at a time give what all of them give.
    monkeypatch.setattr("graphfed.privacy.noise.CHUNK", 10)
    assert torch.equal(flip_edges(*asked), packed)
    assert all(map(torch.equal, pairs_of_bits(packed, node, 11), first))


@pytest.mark.parametrize(("nodes", "edges"), [(2, 1), (5, 3), (6, 0)])
def test_the_edges_that_are_expected_are_those_of_a_loop_over_all_pairs(nodes: int, edges: int) -> None:
    flip = 1 / (1 + math.exp(1.0))
    expected = sum(1 - flip if pair < edges else flip for pair in range(math.comb(nodes, 2)))
    assert expected_edges(nodes, edges, 1.0) == pytest.approx(expected, rel=1e-8)
