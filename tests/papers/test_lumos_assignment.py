"""Who keeps which edge, with the whole graph in view: the optimum against brute force and its certificate,
and the loops that look like the algorithms."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from graphfed.methods.lumos.assignment import (
    _initial_orientation,
    by_greedy,
    by_local_rule,
    by_metropolis,
    find_largest,
    is_accepted,
    largest,
    number_of_moves,
    optimum,
    workloads,
)
from graphfed.random import fold


@st.composite
def graphs(draw: st.DrawFn, nodes: int = 9, edges: int = 16) -> tuple[np.ndarray, int]:
    """Edges [2, m] and n: isolated nodes, parts, stars and cliques among them."""
    n = draw(st.integers(1, nodes))
    every = list(combinations(range(n), 2))
    some = draw(st.lists(st.sampled_from(every), unique=True, max_size=edges)) if every else []
    return np.array(sorted(some), dtype=np.int64).reshape(-1, 2).T, n


def least_maximum(edges: np.ndarray, n: int) -> int:
    """Over all 2^m orientations."""
    m = edges.shape[1]
    choice = np.arange(2**m)[:, None] >> np.arange(m) & 1  # [2^m, m]
    assignee = np.where(choice == 0, edges[0], edges[1])
    counts = np.stack([(assignee == v).sum(1) for v in range(n)])
    return int(counts.max(0).min())


def densest(edges: np.ndarray, n: int) -> int:
    """max over sets H of ceil(|E(H)| / |V(H)|)."""
    inside = np.arange(1, 2**n)[:, None] >> np.arange(n) & 1  # [2^n - 1, n]
    both = (inside[:, edges[0]] & inside[:, edges[1]]).sum(1)
    return int((-(-both // inside.sum(1))).max())


@given(graphs())
def test_the_optimum_is_the_least_maximum_over_all_orientations_and_the_largest_density(
    graph: tuple[np.ndarray, int],
) -> None:
    edges, n = graph
    found = optimum(edges, n)
    assert found.maximum == least_maximum(edges, n) == densest(edges, n)
    assert ((found.assignee == edges[0]) | (found.assignee == edges[1])).all()
    assert np.bincount(found.assignee, minlength=n).max() == found.maximum
    inside = (found.dense[edges[0]] & found.dense[edges[1]]).sum()
    assert inside > (found.maximum - 1) * found.dense.sum() or found.maximum == 0


@pytest.mark.parametrize(
    ("edges", "n", "maximum"),
    [
        ([], 3, 0),
        ([(0, 1)], 2, 1),
        ([(0, v) for v in range(1, 9)], 9, 1),  # a star: every leaf keeps the middle
        (list(combinations(range(7), 2)), 7, 3),  # 21 edges, 7 nodes
        ([(v, (v + 1) % 5) for v in range(5)], 5, 1),
        ([*combinations(range(4), 2), (5, 6)], 8, 2),
    ],
)
def test_stars_cliques_circles_and_parts_have_the_optimum_of_the_formula(
    edges: list[tuple[int, int]], n: int, maximum: int
) -> None:
    assert optimum(np.array(edges, dtype=np.int64).reshape(-1, 2).T, n).maximum == maximum


@given(graphs(), st.integers(0, 5))
def test_every_edge_is_kept_and_no_cover_is_better_than_the_optimum(
    graph: tuple[np.ndarray, int], seed: int
) -> None:
    edges, n = graph
    least = optimum(edges, n).maximum
    walked, seen = by_metropolis(edges, n, steps=6, temperature=1.0, seed=seed)
    passed, falling = by_local_rule(edges, n, rounds=50, shuffle_rounds=3, seed=seed)
    for cover in (by_greedy(edges, n), walked, passed):
        assert cover.any(0).all()
        assert largest(edges, cover, n) >= least
    assert min(seen) == largest(edges, walked, n)
    assert (passed.sum(0) == 1).all()
    assert falling == sorted(falling, reverse=True)
    assert falling[-1] == largest(edges, passed, n)


@example((np.array([[0, 0, 1], [1, 2, 2]]), 3))  # the first ends would keep two, one and none
@given(graphs())
def test_the_search_for_the_optimum_starts_where_no_neighbour_keeps_two_less(
    graph: tuple[np.ndarray, int],
) -> None:
    edges, n = graph
    assignee, other = np.where(_initial_orientation(edges, n), edges, edges[::-1])
    load = np.bincount(assignee, minlength=n)
    assert (load[assignee] <= load[other] + 1).all()


@given(graphs(), st.integers(0, 5))
def test_when_passing_on_ends_no_neighbour_keeps_two_less(graph: tuple[np.ndarray, int], seed: int) -> None:
    edges, n = graph
    cover, _ = by_local_rule(edges, n, rounds=10**6, shuffle_rounds=0, seed=seed)
    load = workloads(edges, cover, n)
    assignee, other = np.where(cover[0], edges, edges[::-1])
    assert (load[assignee] <= load[other] + 1).all()


def test_alg_1_compares_rounded_logarithms_and_keeps_ties_on_both_sides() -> None:
    # Degrees 6, 2, 1: round(ln) 2, 1, 0. The star's middle keeps nobody; of two equals both keep.
    edges = np.array([(0, v) for v in range(1, 7)] + [(1, 2), (7, 8)]).T
    cover = by_greedy(edges, 9)
    assert not cover[0, :6].any()
    assert cover[1, :6].all()
    assert cover[:, 6:].all()


def test_alg_3_finds_the_largest_and_takes_each_of_equals_in_turn() -> None:
    neighbours = [[1], [0], [3], [2], []]
    assert {find_largest([1, 3, 3, 0, 9], neighbours, 0, step) for step in range(40)} == {1, 2}


def test_a_client_with_workload_1_moves_its_only_edge_and_one_without_edges_moves_none() -> None:
    assert {number_of_moves(0, step, 3, 1) for step in range(50)} == {1}
    assert {number_of_moves(0, step, 3, 0) for step in range(50)} == {0}
    assert {number_of_moves(0, step, 3, 20) for step in range(99)} == {1, 2, 3}  # ln 20 = 2.996


@pytest.mark.deeper
@pytest.mark.parametrize(("rise", "temperature"), [(1, 1.0), (2, 1.0), (1, 3.0), (0, 1.0), (-2, 0.5)])
def test_a_step_is_accepted_with_the_probability_of_eq_18(rise: int, temperature: float, deep: bool) -> None:
    draws = 4000 if deep else 500
    hits = sum(is_accepted(fold(0, step), 3, 5, 9, rise, temperature) for step in range(draws))
    p = min(1.0, np.exp(-rise / temperature))
    # Five standard errors: a false alarm in about a million, and these draws are fixed.
    assert abs(hits / draws - p) <= 5 * np.sqrt(p * (1 - p) / draws) + 1e-9
