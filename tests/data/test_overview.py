"""The overview's numbers are those of the graph, counted another way."""

import json
from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed import inspect
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.graphs.overview import client_facts, overview
from graphfed.data.partitions.partition import Partition, from_assignment, partition


def world(n: int, m: int, clients: int, seed: int) -> tuple[Graph, Split, Partition]:
    rng = np.random.default_rng(seed)
    y = rng.integers(-1, 3, n)
    graph = make_graph("g", np.ones((n, 2)), y, rng.integers(n, size=(2, m)), num_classes=3)
    part = rng.integers(0, 4, n)
    part[y < 0] = 3
    return (
        graph,
        Split("s", part == 0, part == 1, part == 2),
        from_assignment(graph, rng.integers(clients, size=n), num_clients=clients),
    )


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_matrix])
def test_a_graph_without_nodes_has_no_constant_feature(kind: Callable[[np.ndarray], object]) -> None:
    graph = make_graph("g", kind(np.zeros((0, 3))), np.zeros(0, dtype=int), np.zeros((2, 0), dtype=int))
    found = inspect(graph).overview
    assert found["nodes"] == 0
    assert found["missing"]["constant_features"]["count"] == 0


@settings(max_examples=50)
@given(n=st.integers(1, 50), m=st.integers(0, 120), clients=st.integers(1, 9), seed=st.integers(0, 2**31))
def test_clients_add_up_to_the_graph_and_a_slow_count_agrees(n: int, m: int, clients: int, seed: int) -> None:
    graph, split, assigned = world(n, m, clients, seed)
    result = overview(graph, split, assigned)
    json.dumps(result, allow_nan=False)
    slow = nx.Graph()
    slow.add_nodes_from(range(n))
    slow.add_edges_from(graph.edges.T.tolist())
    client = dict(zip(assigned.held_node.tolist(), assigned.held_client.tolist(), strict=True))
    assert result["components"]["count"] == nx.number_connected_components(slow)
    assert result["components"]["largest"] == max(map(len, nx.connected_components(slow)))
    assert result["components"]["isolated_nodes"] == nx.number_of_isolates(slow)
    degrees = [d for _, d in slow.degree()]
    assert (result["degrees"]["min"], result["degrees"]["max"]) == (min(degrees), max(degrees))
    for low, high, count in result["degrees"]["histogram"]:
        assert count == sum(low <= d <= high for d in degrees)
    assert sum(count for *_, count in result["degrees"]["histogram"]) == n
    assert result["missing"]["labels"] == int((graph.y < 0).sum())
    assert result["missing"]["split"] == sum(not (split.train | split.val | split.test)[v] for v in range(n))
    cross = sum(client[u] != client[v] for u, v in slow.edges)
    assert result["cross_client_edges"]["count"] == cross
    assert sum(row["edges"] for row in result["clients"]) == graph.num_edges - cross
    assert sum(row["cross_client_edges"] for row in result["clients"]) == 2 * cross
    assert sum(row["owned"] for row in result["clients"]) == n
    sizes = [list(client.values()).count(k) for k in range(clients)]
    assert (result["client_sizes"]["smallest"], result["client_sizes"]["largest"]) == (min(sizes), max(sizes))
    assert result["client_sizes"]["ratio"] == min(sizes) / max(sizes)
    for c, row in enumerate(result["classes"]):
        assert row["nodes"] == sum(s["classes"][c] for s in result["clients"]) == int((graph.y == c).sum())
    known = [(graph.y[u], graph.y[v]) for u, v in slow.edges if graph.y[u] >= 0 and graph.y[v] >= 0]
    equal = [a == b for a, b in known]
    assert result["homophily"] == (pytest.approx(np.mean(equal)) if known else None)
    assert result["label_skew"] is None or 0 <= result["label_skew"] <= 1
    drawing = result["drawing"]
    assert len(drawing["nodes"]) == len(drawing["positions"]) == len(drawing["clients"])
    for i, j, is_cross_client in drawing["edges"]:
        u, v = drawing["nodes"][i], drawing["nodes"][j]
        assert slow.has_edge(u, v)
        assert is_cross_client == (client[u] != client[v])
    if clients == 1:
        assert result["label_skew"] in (None, 0)
    assert result == overview(graph, split, assigned)


@settings(max_examples=40)
@given(
    name=st.sampled_from(["overlapping", "edges_uniform"]),
    clients=st.integers(1, 5),
    m=st.integers(0, 80),
    seed=st.integers(0, 2**31),
)
def test_where_clients_share_nodes_an_edge_is_cross_client_if_no_client_has_both_ends_of_it(
    name: str, clients: int, m: int, seed: int
) -> None:
    graph, split, _ = world(20, m, 1, seed)
    options = {"mean": 0.5} if name == "overlapping" else {"overlap": 0.5 if clients > 1 else 0.0}
    assigned = partition(graph, name, clients, seed, **options)
    node = dict(zip(assigned.held_id.tolist(), assigned.held_node.tolist(), strict=True))
    inside = {
        frozenset((node[u], node[v]))
        for u, v in zip(assigned.edge_u.tolist(), assigned.edge_v.tolist(), strict=True)
    }
    cross = sum(frozenset(edge) not in inside for edge in graph.edges.T.tolist())
    assert overview(graph, split, assigned)["cross_client_edges"] == {
        "count": cross,
        "share": cross / max(1, graph.num_edges),
    }
    assert name == "overlapping" or cross == 0


def test_the_smallest_client_is_reported_next_to_the_largest_where_there_are_several() -> None:
    graph, split, _ = world(60, 80, 1, 0)
    result = overview(graph, split, from_assignment(graph, np.repeat([0, 1, 2], [10, 10, 40])))
    assert ("smallest / largest client", "0.25 (10 / 40 nodes)") in client_facts(result)
    del result["client_sizes"]
    assert "smallest / largest client" not in dict(client_facts(result)), "an overview of an earlier version"
    alone = overview(graph, split, from_assignment(graph, np.zeros(60, int)))
    assert "smallest / largest client" not in dict(client_facts(alone))


def test_clients_of_one_class_each_are_as_skewed_as_can_be() -> None:
    graph, split, _ = world(60, 80, 1, 0)
    y = np.arange(60) % 3
    graph = make_graph("g", np.ones((60, 1)), y, graph.edges)
    assert overview(graph, split, from_assignment(graph, y))["label_skew"] == pytest.approx(2 / 3)


def test_an_edge_between_owners_is_drawn_as_cross_client_only_where_no_client_has_it() -> None:
    """Where clients share nodes, the ends of an edge that a client has may be owned by others."""
    graph, split, _ = world(60, 80, 1, 0)
    shared = overview(graph, split, partition(graph, "edges_uniform", 3, 0))
    assert shared["cross_client_edges"]["count"] == 0
    assert len({*shared["drawing"]["clients"]}) == 3
    assert shared["drawing"]["edges"]
    assert not any(cross for *_, cross in shared["drawing"]["edges"])
    copies = overview(graph, split, partition(graph, "overlapping", 3, 0, mean=0.5, variance=0.0))
    assert {cross for *_, cross in copies["drawing"]["edges"]} == {0, 1}


def test_a_million_devices_are_summed_up(float32_default: None) -> None:
    """One client for each node: the largest are listed, nothing grows with the number of clients but
    counts."""
    graph, split, _ = world(5000, 10_000, 1, 0)
    result = overview(graph, split, partition(graph, "ego", None, 0))
    assert result["num_clients"] == 5000
    assert len(result["clients"]) == 200
    assert result["cross_client_edges"] == {"count": graph.num_edges, "share": 1.0}
    assert len(json.dumps(result)) < 100_000
