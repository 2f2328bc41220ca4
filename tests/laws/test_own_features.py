"""Own features only: a network of each node's own features. Whatever it reaches, no edge had a part in it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from link_worlds import by_pair, link_world, scores
from link_worlds import run_local as run_links
from torch import Tensor
from torch.nn.functional import cross_entropy
from worlds import World, logits, make_world, run_local, weighted

import graphfed
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.registry import get_method

SETTINGS = {"dropout": 0.4, "weight_decay": 1e-2}


def with_edges(world: World, ends: np.ndarray) -> World:
    """The same world with other edges."""
    old = world.graph
    graph: Graph = make_graph(old.name, old.x, old.y, ends, num_classes=old.num_classes)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    return World(graph, world.split, from_assignment(graph, client, num_clients=world.clients))


def no_edges(world: World) -> World:
    return with_edges(world, np.zeros((2, 0), dtype=np.int64))


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_is_the_central_gcn_of_a_graph_without_edges(layers: int, sparse: bool) -> None:
    """Without edges GCN's neighbourhood is the node itself: same first weights, dropout and steps."""
    world = make_world(sparse=sparse)
    own, _ = run_local("own_features", world, layers=layers, **SETTINGS)
    central, _ = run_local("central", no_edges(world), layers=layers, **SETTINGS)
    assert torch.allclose(logits(own), logits(central), rtol=0, atol=1e-12)
    with_graph, _ = run_local("central", world, layers=layers, **SETTINGS)
    assert not torch.allclose(logits(own), logits(with_graph), atol=1e-3), "edges do matter to central"


def test_no_edge_and_no_edge_weight_changes_a_bit() -> None:
    world = make_world()
    ends = np.random.default_rng(9).integers(0, world.graph.num_nodes, (2, 90))
    one, _ = run_local("own_features", world, **SETTINGS)
    for other in (with_edges(world, ends), no_edges(world), weighted(world)):
        two, _ = run_local("own_features", other, **SETTINGS)
        assert torch.equal(logits(one), logits(two))


def test_a_weighted_graph_needs_no_other_backbone() -> None:
    """A network that uses edges and not their weights refuses such a graph; this one has no edge to weigh."""
    asked = {"clients": 2, "rounds": 2, "split": "random:0.5,0.2,0.3", "out": False}
    one = graphfed.run("own_features", data=make_world().graph, **asked)
    two = graphfed.run("own_features", data=weighted(make_world()).graph, **asked)
    assert one.test == two.test


def test_it_takes_the_steps_of_a_plain_torch_network() -> None:
    """Two linear layers with a ReLU between them, trained by torch.optim.Adam on the training nodes."""
    world = make_world()
    settings = {"optimizer": "adam", "lr": 0.05, "weight_decay": 0.01, "dropout": 0.0, "rounds": 3}
    outcome, _ = run_local("own_features", world, local_steps=2, eval_every=3, **settings)
    method = get_method("own_features")
    config = method.configure({"hidden": 5, **settings})
    first = initial_weights(world.task, config.network, config.run.seed, "cpu")
    network = torch.nn.Sequential(torch.nn.Linear(12, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    with torch.no_grad():
        for number, layer in enumerate((network[0], network[2])):
            weight, bias = first[f"layers.{number}.weight"], first[f"layers.{number}.bias"]
            assert isinstance(weight, Tensor)
            assert isinstance(bias, Tensor)
            layer.weight.copy_(weight.t())
            layer.bias.copy_(bias)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.05, weight_decay=0.01)
    x = torch.from_numpy(world.graph.x.toarray()).to(torch.get_default_dtype())
    y, train = torch.from_numpy(world.graph.y), torch.from_numpy(world.split.train)
    for _ in range(6):
        optimizer.zero_grad()
        cross_entropy(network(x)[train], y[train]).backward()
        optimizer.step()
    assert torch.allclose(logits(outcome), network(x), rtol=0, atol=1e-9)


def test_to_predict_links_a_node_s_embedding_depends_on_its_own_features_alone() -> None:
    """Training edges decide which pairs are scored, and nothing else: a pair's score is the product of two
    embeddings, each the same function of the node's features."""
    world = link_world()
    x = np.array(world.graph.x.toarray() if hasattr(world.graph.x, "toarray") else world.graph.x)
    x[1] = x[0]  # two nodes with the same features and other neighbours
    world = replace(world, graph=replace(world.graph, x=x)).partitioned(
        np.zeros(world.graph.num_nodes, dtype=np.int64), 1
    )
    outcome, _ = run_links("own_features", world, dropout=0.0)
    weights = {name: w[0] for name, w in outcome.state.weights.parts[0].items()}
    rows = torch.from_numpy(x).to(torch.get_default_dtype())
    h = (rows @ weights["layers.0.weight"] + weights["layers.0.bias"]).relu()
    h = h @ weights["layers.1.weight"] + weights["layers.1.bias"]
    found = by_pair(outcome, world)
    assert len(found) == len(scores(outcome))
    for (i, j), score in found.items():
        assert score == pytest.approx(float(h[i] @ h[j]), abs=1e-9)
