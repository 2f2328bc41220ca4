"""FedGCN: what the border alone decides, and what does not depend on the exchange."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from worlds import (
    Watched,
    World,
    by_node,
    config_of,
    last_round_stands,
    logits,
    make_world,
    run_local,
    weighted,
)

import graphfed
from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.federation import CLIENTS
from graphfed.federation.cohort import make_cohort
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.payload import leaves
from graphfed.methods.fedgcn.method import exchange_sums, make_view
from graphfed.methods.registry import get_method
from graphfed.runtime.local import stacked

EXCHANGED = ("border_ids", "local_ids", "partial_sums", "neighbour_counts", "degrees", "aggregates")
HOPS = pytest.mark.parametrize("hops", [1, 2])
FEATURES = pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
#: Central training without dropout, which FedGCN with two hops and one step equals.
EXACT = {"local_steps": 1, "dropout": 0.0, "weight_decay": 1e-2, "lr": 0.3, "rounds": 6}


@pytest.fixture(autouse=True)
def double() -> object:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def components(world: World, clients: int = 3) -> World:
    """The world without its cross-client edges."""
    client = np.arange(world.graph.num_nodes) % clients
    u, v = world.graph.edges
    edges = world.graph.edges[:, client[u] == client[v]]
    graph = make_graph("countries", world.graph.x, world.graph.y, edges, num_classes=3)
    return World(graph, world.split, from_assignment(graph, client))


def few_edges_between(sparse: bool = True) -> World:
    """Three clients with four edges between them: most nodes have all neighbours at their own client."""
    world = components(make_world(sparse=sparse))
    client = np.arange(60) % 3
    edges = np.concatenate([world.graph.edges, [[0, 3, 7, 11], [1, 1, 8, 12]]], axis=1)
    graph = make_graph("few", world.graph.x, world.graph.y, edges, num_classes=3)
    return World(graph, world.split, from_assignment(graph, client))


@HOPS
def test_without_cross_client_edges_it_is_fedavg_and_sends_nothing_before_training(hops: int) -> None:
    world = components(make_world())
    settings = {"dropout": 0.4, "local_steps": 2}
    one, fed = run_local("fedgcn", world, hops=hops, **settings)
    other, plain = run_local("fedavg", world, **settings)
    assert torch.equal(logits(one), logits(other))
    sent, without = fed.ledger.totals()["by_transfer"], plain.ledger.totals()["by_transfer"]
    assert {sent.pop(f"fedgcn/{name}", 0) for name in EXCHANGED} == {0}
    assert sent == without


@FEATURES
@pytest.mark.parametrize("weights", [False, True], ids=["plain", "weighted"])
def test_two_hops_equal_central_training_whatever_is_at_the_border(sparse: bool, weights: bool) -> None:
    world = few_edges_between(sparse)
    world = weighted(world) if weights else world
    federated, _ = run_local("fedgcn", world, hops=2, **EXACT)
    central, _ = run_local("central", world, **EXACT)
    assert torch.allclose(by_node(federated, world), logits(central), rtol=0, atol=1e-9)


@HOPS
def test_sparse_and_dense_features_train_the_same(hops: int) -> None:
    """(A X) W and A (X W), with weighted edges, over several local steps."""
    world = weighted(few_edges_between())
    graph = make_graph(
        "dense",
        world.graph.x.toarray(),
        world.graph.y,
        world.graph.edges,
        num_classes=3,
        edge_weight=world.graph.edge_weight,
    )
    dense = World(graph, world.split, from_assignment(graph, np.arange(60) % 3))
    settings = {"hops": hops, "dropout": 0.0, "local_steps": 3}
    one, _ = run_local("fedgcn", last_round_stands(world), **settings)
    other, _ = run_local("fedgcn", last_round_stands(dense), **settings)
    assert torch.allclose(logits(one), logits(other), rtol=0, atol=1e-9)


def test_own_rows_stay_sparse_and_border_rows_that_they_read_are_there_twice() -> None:
    world, fed = few_edges_between(), stacked(3)
    config = config_of(get_method("fedgcn"))
    cohort = make_cohort(world.graph, world.split, world.partition, (0, 1, 2))
    data = fed.locate(CLIENTS, "data", [cohort])
    received = exchange_sums(fed, data, world.task, config).parts[0]
    view, place = make_view(cohort, received)
    assert torch.equal(view.ids[place], cohort.id)
    assert torch.equal(view.client[place], cohort.client)
    border = set(received.closure.ids[received.border].tolist())
    inner = [r for r in range(60) if int(cohort.id[r]) not in border]
    x, own = view.x.to_dense(), cohort.x.to_dense()
    assert inner
    assert all(torch.equal(x[place[r]], own[r]) for r in inner)
    again = Counter(zip(view.client.tolist(), view.ids.tolist(), strict=True))
    twice = {node for (_, node), count in again.items() if count == 2}
    neighbours = {
        int(cohort.id[s]) for s, t in cohort.edge_index.T.tolist() if int(cohort.id[t]) not in border
    }
    assert twice == neighbours & border
    assert twice


@HOPS
def test_the_server_learns_nothing_of_nodes_whose_neighbours_are_all_at_their_client(hops: int) -> None:
    world, fed = few_edges_between(), Watched([(0,), (1,), (2,)])
    cohorts = [make_cohort(world.graph, world.split, world.partition, (k,)) for k in range(3)]
    data = fed.locate(CLIENTS, "data", cohorts)
    exchange_sums(fed, data, world.task, config_of(get_method("fedgcn"), hops=hops))
    client = np.arange(60) % 3
    u, v = world.graph.edges
    touching = set(world.graph.edges[:, client[u] != client[v]].ravel().tolist())
    assert 0 < len(touching) < 20
    named: set[int] = set()
    for name, (_, to), payload in fed.seen:
        if to == SERVER_INDEX and name.endswith("_ids"):
            named |= set(payload[0].tolist())
        elif to == SERVER_INDEX:
            assert max(leaf.shape[0] for leaf in leaves(payload)) <= len(touching), name
    assert named == touching


def test_a_run_on_separate_graphs_sends_what_fedavg_sends() -> None:
    """Five countries, each its own graph: the exchange once sent every row of every client."""
    rng = np.random.default_rng(0)
    country, y = np.repeat(np.arange(5), 40), rng.integers(0, 3, 200)
    edges = rng.integers(0, 40, (2, 400)) + 40 * rng.integers(0, 5, 400)
    x = (rng.random((200, 30)) < 0.1 + 0.2 * (np.arange(30) % 3 == y[:, None])).astype(np.float32)
    graph = make_graph("countries", csr_matrix(x), y, edges, num_classes=3)
    split = Split("toy", *(np.arange(200) % 4 == k for k in (0, 1, 2)))
    graph = replace(graph, split=split, clients=country, client_names=tuple("abcde"))
    one, other = (
        graphfed.run(method, data=graph, rounds=2, threads=1, out=False, features="raw")
        for method in ("fedgcn", "fedavg")
    )
    assert one.bytes["total"] == other.bytes["total"]
    assert one.test == other.test
