"""Networks that read directions and attributes of edges train with every rule, in every placement, and the
clients agree on the scale of attributes without sending one."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from second_device import second_device
from worlds import (
    ThreeWorkers,
    World,
    by_node,
    cohorts_of,
    config_of,
    last_round_stands,
    logits,
    make_world,
    pooled,
    run_local,
    run_processes,
    with_payments,
)

from graphfed.data.graphs.directed import make_directed
from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.federation import Federation
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.methods.common.feature_transform import scale_features
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.parts import Network
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.settings import fields_of
from graphfed.nn.backbones import BACKBONES
from graphfed.runs.train import MESSAGES, train
from graphfed.runtime.local import stacked

NETWORKS = [name for name in BACKBONES if BACKBONES[name].directed]
SETTINGS = {"dropout": 0.3, "rounds": 2, "features": "scaled", "lr": 0.01}


def offers(name: str, network: str) -> bool:
    method = get_method(name)
    return "backbone" in method.tree.names and network in method.offers.get("backbone", (network,))


CASES = [(name, network) for name in METHODS.own for network in NETWORKS if offers(name, network)]


def test_methods_whose_clients_have_the_edges_themselves_offer_these_networks() -> None:
    assert {name for name, _ in CASES} == {
        "central", "isolated", "fedavg", "fedprox", "fedadam", "scaffold", "halo",
    }  # fmt: skip
    assert {*NETWORKS} == {"gine", "pna"} <= {*fields_of(Network)["backbone"].annotation.__args__}


@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
@pytest.mark.parametrize(("name", "network"), CASES)
def test_stacked_equals_one_client_at_a_time_to_the_last_ledger_entry(
    name: str, network: str, directed: bool
) -> None:
    world = with_payments(last_round_stands(make_world(1)), directed=directed)
    fast, fed = run_local(name, world, backbone=network, **SETTINGS)
    slow, oracle = run_local(name, world, "one at a time", backbone=network, **SETTINGS)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    assert {entry.name for entry in fed.ledger.entries} <= {*get_method(name).sends.messages, *MESSAGES}


@pytest.mark.parametrize("network", NETWORKS)
def test_separate_processes_equal_stacked(network: str, three_clients: ThreeWorkers) -> None:
    world = with_payments(last_round_stands(make_world(1)))
    apart, ledger = run_processes("fedavg", world, three_clients, backbone=network, **SETTINGS)
    together, fed = run_local("fedavg", world, backbone=network, **SETTINGS)
    assert torch.allclose(logits(apart), logits(together), rtol=0, atol=1e-9)
    assert ledger.to_json() == fed.ledger.to_json()
    assert apart.transform.scaling is not None
    assert together.transform.scaling is not None
    assert apart.transform.scaling.edges is not None
    torch.testing.assert_close(apart.transform.scaling.edges.center, together.transform.scaling.edges.center)


@pytest.mark.parametrize("network", NETWORKS)
def test_on_another_device_a_run_gives_what_it_gives_on_the_cpu(network: str) -> None:
    world, method = with_payments(make_world(1)), get_method("fedavg")
    config = config_of(method, backbone=network, **SETTINGS)
    found = []
    for device in ("cpu", "cuda"):
        with nullcontext() if torch.cuda.is_available() else second_device():
            fed = Federation([range(world.clients)], device=device)
            (worker,) = fed.workers
            cohort = make_cohort(world.graph, world.split, world.partition, worker, device=device)
            data = fed.locate("clients", "data", [as_configured(cohort, config)])
            found.append(logits(train(fed, method, data, world.task, config)).cpu())
    assert torch.allclose(*found, rtol=0, atol=1e-9)


@pytest.mark.parametrize("network", NETWORKS)
def test_one_client_with_everything_trains_as_central_does(network: str) -> None:
    world = pooled(with_payments(make_world(2)))
    settings = {**SETTINGS, "dropout": 0.0, "backbone": network, "optimizer": "sgd", "local_steps": 1}
    alone, _ = run_local("fedavg", world, **settings)
    central, _ = run_local("central", world, **settings)
    assert torch.allclose(by_node(alone, world), by_node(central, world), rtol=0, atol=1e-9)


def scaled(world: World, name: str) -> list[Cohort]:
    """The clients' data after the clients have agreed on a scale."""
    method, config = get_method(name), config_of(get_method(name), backbone="gine", features="scaled")
    fed = stacked(world.clients)
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    found, _ = scale_features(fed, data, method, config, world.task)
    return list(found.parts)


def test_clients_scale_the_attributes_of_edges_as_central_training_does() -> None:
    """Cross-client edges count once, although both clients have them."""
    world = with_payments(make_world(3))
    (apart,), (together,) = scaled(world, "fedavg"), scaled(pooled(world), "central")
    assert apart.directed is not None
    assert together.directed is not None
    edges = apart.directed
    outgoing = edges.cross_attributes[edges.cross_outgoing]
    found, expected = torch.cat([edges.attributes, outgoing]), together.directed.attributes
    order = [torch.from_numpy(np.lexsort(x.numpy().T)) for x in (found, expected)]
    torch.testing.assert_close(found[order[0]], expected[order[1]], rtol=0, atol=0)
    # Both ends of a cross-client edge have the same scaled attributes.
    incoming = edges.cross_attributes[~edges.cross_outgoing]
    assert sorted(outgoing.tolist()) == sorted(incoming.tolist())
    # Before, the amounts had standard deviations above 1000.
    assert 0.3 < float(found.std(0).min()) < float(found.std(0).max()) < 3, (
        "amounts had a deviation above 1000"
    )


def test_the_unit_of_an_attribute_changes_no_prediction() -> None:
    world = with_payments(make_world(4))
    edges = world.graph.directed
    assert edges is not None
    graph = replace(world.graph, directed=replace(edges, attributes=edges.attributes * 4))
    other = World(graph, world.split, replace(world.partition, graph_hash=graph.hash))
    one, _ = run_local("fedavg", world, backbone="gine", **SETTINGS)
    two, _ = run_local("fedavg", other, backbone="gine", **SETTINGS)
    assert torch.allclose(logits(one), logits(two), rtol=0, atol=1e-9)


def test_a_network_without_attributes_gives_what_it_gives_on_the_undirected_graph() -> None:
    """To the last byte: it neither uses directed edges nor sends anything on their account."""
    plain = make_world(5)
    world = with_payments(plain)
    for network in ("gcn", "mlp"):
        one, fed = run_local("fedavg", plain, backbone=network, **SETTINGS)
        two, other = run_local("fedavg", world, backbone=network, **SETTINGS)
        assert torch.equal(logits(one), logits(two))
        assert fed.ledger.to_json() == other.ledger.to_json()


@pytest.mark.parametrize("network", NETWORKS)
def test_a_class_that_shows_in_the_direction_and_amount_of_payments_is_learned(network: str) -> None:
    """Nodes of class 1 send large amounts, all others receive large ones; features are noise. A network that
    reads neither cannot do better than guess: the 3-sigma interval of 75 test nodes is 0.33 to 0.67."""
    rng, n = np.random.default_rng(0), 300
    y = rng.permutation(np.arange(n) % 2)
    # Every node has payments out and payments in; only who sends the large ones depends on the class.
    source, target = (np.concatenate([rng.permutation(n) for _ in range(3)]) for _ in range(2))
    amount = rng.random(3 * n) + 4 * y[source]
    ends = np.stack([source, target])
    graph = make_graph("payments", rng.standard_normal((n, 4)), y, ends)
    graph = replace(graph, directed=make_directed("payments", ends, amount[:, None], ("amount",)))
    part = rng.permutation(n) % 4
    split = Split("random", part < 2, part == 2, part == 3)
    world = World(graph, split, from_assignment(graph, np.zeros(n, dtype=int)))
    settings = {"optimizer": "adam", "rounds": 30, "hidden": 8, "lr": 0.03, "features": "scaled"}
    found, _ = run_local("fedavg", world, backbone=network, **settings)
    assert found.test["accuracy"] > 0.9
    without, _ = run_local("fedavg", world, backbone="gcn", **settings)
    assert without.test["accuracy"] < 0.67
