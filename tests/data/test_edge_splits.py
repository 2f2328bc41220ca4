"""The split of the edges, the pairs that are none, and who scores a pair."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.data.graphs.graph import Graph, Held, make_graph
from graphfed.data.graphs.link_splits import (
    make_edge_split,
    pairs_that_are_no_edge,
    scored_pairs,
    training_graph,
)
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.data.partitions.tables import without_cross
from graphfed.errors import InputError


def graph_of(pairs: set[tuple[int, int]], n: int) -> Graph:
    edges = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
    return make_graph("drawn", np.eye(n, dtype=np.float32), np.zeros(n, dtype=np.int64), edges)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A graph of 8 to 14 nodes, of whose pairs at least 10, and at most every other one, are edges."""
    n = draw(st.integers(8, 14))
    every = list(combinations(range(n), 2))
    size = draw(st.integers(10, len(every) // 2))
    return graph_of(set(draw(st.permutations(every))[:size]), n)


SPLITS = st.sampled_from(["edges:0.6,0.2,0.2", "edges:0.5,0.25,0.25", "edges:0.4,0.2,0.3"])


@given(graphs(), SPLITS, st.integers(0, 9))
def test_parts_share_no_edge_and_negatives_are_different_pairs_that_are_no_edge(
    graph: Graph, spec: str, seed: int
) -> None:
    split = make_edge_split(graph, spec, seed)
    assert (split.train.astype(int) + split.val + split.test).max() == 1
    assert split.train.any()
    edges = set(map(tuple, graph.edges.T.tolist()))
    drawn = np.concatenate([split.val_negative, split.test_negative], axis=1)
    assert split.val_negative.shape[1] == split.val.sum() > 0
    assert split.test_negative.shape[1] == split.test.sum() > 0
    found = set(map(tuple, drawn.T.tolist()))
    assert len(found) == drawn.shape[1]
    assert not found & edges
    assert all(0 <= u < v < graph.num_nodes for u, v in found)


@given(graphs(), SPLITS)
def test_the_training_graph_has_the_training_edges_and_nothing_else_changes(graph: Graph, spec: str) -> None:
    split = make_edge_split(graph, spec, 0)
    heavy = replace(graph, edge_weight=np.arange(1, graph.num_edges + 1, dtype=np.float32))
    kept = training_graph(heavy, split)
    assert np.array_equal(kept.edges, graph.edges[:, split.train])
    assert kept.edge_weight is not None
    assert np.array_equal(kept.edge_weight, np.flatnonzero(split.train) + 1)
    assert kept.x is heavy.x
    assert kept.y is heavy.y


def test_the_edges_that_clients_list_are_renumbered_with_the_training_edges() -> None:
    pairs = {(u, v) for u, v in combinations(range(8), 2) if (u + v) % 2}
    graph = graph_of(pairs, 8)
    m, clients = graph.num_edges, np.repeat([0, 1], 8)
    nodes, listed = np.tile(np.arange(8), 2), np.tile(np.arange(m), 2)
    held = Held(clients, nodes, np.ones(16, dtype=bool), np.repeat([0, 1], m), listed)
    split = make_edge_split(graph, "default", 3)
    kept = training_graph(replace(graph, held=held), split)
    assert kept.held is not None
    for client in (0, 1):
        listed = kept.edges[:, kept.held.edge[kept.held.edge_client == client]]
        assert np.array_equal(listed, graph.edges[:, split.train])


@given(graphs())
def test_ranks_count_the_pairs_that_are_no_edge_in_order(graph: Graph) -> None:
    n = graph.num_nodes
    edges = set(map(tuple, graph.edges.T.tolist()))
    expected = [pair for pair in combinations(range(n), 2) if pair not in edges]
    got = pairs_that_are_no_edge(graph.edges, n, np.arange(len(expected)))
    assert list(map(tuple, got.T.tolist())) == expected


def test_a_seed_decides_the_split() -> None:
    graph = graph_of(set(list(combinations(range(20), 2))[::3]), 20)
    one, again, other = (make_edge_split(graph, "default", seed) for seed in (0, 0, 1))
    assert one.hash == again.hash != other.hash
    assert one.name == "edges:0.8,0.05,0.15"
    assert (one.train.sum(), one.val.sum(), one.test.sum()) == (51, 3, 10)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("public", "'public' is a split of nodes, .* use 'edges:0.8,0.05,"),
        ("edges:0.5,0.5", "write three fractions, as in 'edges:0.8,0.05,0.15'"),
        ("edges:0,0.5,0.5", "that of training more than 0"),
        ("edges:0.9,0.2,0.2", "their sum at most 1"),
        ("edges:0.99,0.005,0.005", "leaves no edge for val"),
    ],
)
def test_a_split_that_cannot_be_is_refused(spec: str, message: str) -> None:
    graph = graph_of(set(list(combinations(range(12), 2))[::3]), 12)
    with pytest.raises(InputError, match=message):
        make_edge_split(graph, spec, 0)


@pytest.mark.parametrize("n", [6, 9])
def test_a_complete_graph_has_no_pair_that_is_not_an_edge(n: int) -> None:
    with pytest.raises(InputError, match="has 0 pairs of nodes without an edge, and the split needs"):
        make_edge_split(graph_of(set(combinations(range(n), 2)), n), "edges:0.5,0.25,0.25", 0)


@pytest.mark.parametrize("n", [1, 3])
def test_a_graph_with_hardly_an_edge_is_refused(n: int) -> None:
    with pytest.raises(InputError, match="leaves no edge for"):
        make_edge_split(graph_of({(0, 1)} if n > 1 else set(), n), "default", 0)


def test_a_split_of_edges_classifies_nothing() -> None:
    with pytest.raises(InputError, match="splits edges, for link prediction"):
        make_split(graph_of({(0, 1), (1, 2)}, 4), "edges:0.8,0.1,0.1", 0)


@settings(max_examples=30)
@given(graphs(), st.integers(1, 4), st.integers(0, 9))
def test_every_pair_is_scored_once_where_one_of_its_nodes_is(graph: Graph, clients: int, seed: int) -> None:
    split = make_edge_split(graph, "edges:0.5,0.25,0.25", seed)
    client = np.random.default_rng(seed).integers(0, clients, graph.num_nodes)
    assigned = from_assignment(training_graph(graph, split), client, num_clients=clients)
    pairs = scored_pairs(split, assigned)
    assert np.array_equal(pairs.client, client[pairs.id])
    assert np.array_equal(pairs.other_client, client[pairs.other_id])
    got = [
        (*sorted(ends), label, part)
        for *ends, label, part in zip(pairs.id, pairs.other_id, pairs.label, pairs.part, strict=True)
    ]
    ends, label, part = split.pairs()
    assert sorted(got) == sorted(zip(*ends.tolist(), label, part, strict=True))


def test_neither_end_of_a_pair_scores_it_more_often() -> None:
    """Of 2000 fair coins: 6 standard deviations is a false alarm in 5 * 10^8."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 400, (2, 8000))
    graph = make_graph("many", np.ones((400, 1)), np.zeros(400, dtype=int), ends[:, ends[0] != ends[1]])
    split = make_edge_split(graph, "edges:0.5,0.25,0.25", 0)
    pairs = scored_pairs(split, from_assignment(training_graph(graph, split), np.arange(400)))
    lower, n = (pairs.id < pairs.other_id).sum(), len(pairs.id)
    assert abs(lower - n / 2) < 6 * np.sqrt(n) / 2


def test_the_node_that_is_named_is_in_a_scored_pair_or_at_several_clients() -> None:
    """Node 0 is at no client, which is no fault, because it is in no scored pair."""
    graph = graph_of({(u, u + 1) for u in range(1, 11)}, 12)
    splits = (make_edge_split(graph, "edges:0.4,0.3,0.3", seed) for seed in range(50))
    split = next(split for split in splits if 7 in split.pairs()[0] and 0 not in split.pairs()[0])
    trained, node = training_graph(graph, split), np.arange(1, 12)
    none = np.zeros((3, 0), dtype=np.int64)
    held = np.append(node * 0, 1), np.append(node, 7), np.ones(12, dtype=bool)
    for kept, count in ((np.arange(12), 2), (np.flatnonzero(node != 7), 0)):
        assigned = without_cross(trained, tuple(column[kept] for column in held), none, num_clients=2)
        with pytest.raises(InputError, match=f"has node 7 at {count} clients"):
            scored_pairs(split, assigned)


@pytest.mark.parametrize("name", ["edges_uniform", "overlapping"])
def test_nodes_at_several_clients_are_refused(name: str) -> None:
    graph = graph_of(set(list(combinations(range(20), 2))[::3]), 20)
    split = make_edge_split(graph, "default", 0)
    assigned = partition(training_graph(graph, split), name, 3, 0)
    with pytest.raises(InputError, match="link prediction needs every node at exactly one client"):
        scored_pairs(split, assigned)
