"""halo: a run equals central training, for every network and any number of clients."""

from typing import Any

import numpy as np
import pytest
import torch
from law_fixtures import float64, three_clients
from worlds import (
    PLACEMENTS,
    ThreeWorkers,
    World,
    by_node,
    having,
    make_world,
    one_node_each,
    pooled,
    run_local,
    run_processes,
    weighted,
    with_payments,
)

from graphfed.data.partitions.partition import from_assignment
from graphfed.methods.registry import get_method
from graphfed.methods.settings import Tree
from graphfed.nn.backbones import BACKBONES

__all__ = ["float64", "three_clients"]

#: The networks that halo offers: all that use edges.
NETWORKS = [name for name, network in BACKBONES.items() if network.uses_edges]


def central(world: World, **settings: Any) -> torch.Tensor:
    """Logits of central training, one step in a round, by node."""
    outcome, _ = run_local("central", world, **having("central", **settings, local_steps=1))
    return by_node(outcome, pooled(world))


def assert_equals_central(world: World, placement: str = "stacked", **settings: Any) -> None:
    outcome, _ = run_local("halo", world, placement, **having("halo", **settings))
    torch.testing.assert_close(by_node(outcome, world), central(world, **settings), rtol=0, atol=1e-9)


def test_every_network_that_uses_edges_is_offered() -> None:
    tree: Tree = get_method("halo").tree
    leaf = next(leaf for leaf in tree.leaves if leaf.name == "backbone")
    assert list(tree.choices(leaf)) == NETWORKS


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize(("clients", "sparse"), [(2, True), (7, False)])
def test_a_run_equals_central_training(network: str, layers: int, clients: int, sparse: bool) -> None:
    """Adam, weight decay, dropout of rows and of attention, and the choice of the best round included."""
    assert_equals_central(
        make_world(clients=clients, sparse=sparse), backbone=network, layers=layers, dropout=0.3
    )


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("placement", [name for name in PLACEMENTS if name != "stacked"])
def test_it_equals_central_training_wherever_the_clients_are(network: str, placement: str) -> None:
    assert_equals_central(make_world(), placement, backbone=network, layers=3, dropout=0.3)


@pytest.mark.parametrize("network", NETWORKS)
def test_it_equals_central_training_in_processes(network: str, three_clients: ThreeWorkers) -> None:
    world, settings = make_world(), {"backbone": network, "layers": 3, "dropout": 0.3}
    outcome, _ = run_processes("halo", world, three_clients, **having("halo", **settings))
    torch.testing.assert_close(by_node(outcome, world), central(world, **settings), rtol=0, atol=1e-9)


@pytest.mark.parametrize("network", [name for name in NETWORKS if BACKBONES[name].directed])
@pytest.mark.parametrize("directed", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_directions_and_attributes_are_those_of_the_whole_graph(
    network: str, directed: bool, layers: int
) -> None:
    world = with_payments(make_world(clients=4), directed=directed)
    assert_equals_central(
        world, backbone=network, layers=layers, dropout=0.3, features="scaled", lr=0.01, rounds=2
    )


def test_a_client_for_every_node_equals_central_training() -> None:
    assert_equals_central(one_node_each(make_world()), layers=3)


@pytest.mark.parametrize("network", ["gcn", "sage"])
def test_edge_weights_are_those_of_the_whole_graph(network: str) -> None:
    assert_equals_central(weighted(make_world()), backbone=network)


def test_class_weights_are_those_of_central_training() -> None:
    assert_equals_central(make_world(), class_weights="balanced")


@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_equal_under_secure_aggregation_up_to_fixed_point(network: str) -> None:
    """Each of four rounds adds parts that are rounded to 2^-25."""
    world, settings = make_world(), {"backbone": network, "optimizer": "sgd"}
    outcome, _ = run_local("halo", world, aggregation="secure", **having("halo", **settings))
    torch.testing.assert_close(by_node(outcome, world), central(world, **settings), rtol=0, atol=1e-6)


def test_without_cross_client_edges_only_the_weights_and_their_gradients_have_bytes() -> None:
    world = make_world()
    # Every connected component at one client.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    n = world.graph.num_nodes
    linked = coo_matrix((np.ones(world.graph.num_edges), tuple(world.graph.edges)), shape=(n, n))
    _, component = connected_components(linked, directed=False)
    apart = World(world.graph, world.split, from_assignment(world.graph, component % 3, num_clients=3))
    _, fed = run_local("halo", apart)
    sent = {e.name for e in fed.ledger.entries if e.bytes and e.phase in ("setup", "train")}
    assert {name for name in sent if name.startswith("halo/")} == {"halo/training_count"}


@pytest.mark.parametrize("network", NETWORKS)
def test_degrees_are_sent_for_networks_that_use_those_of_neighbours_only(network: str) -> None:
    _, fed = run_local("halo", make_world(), backbone=network)
    sent = "halo/degrees" in {e.name for e in fed.ledger.entries}
    assert sent == (network == "gcn")
