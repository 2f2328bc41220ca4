"""Edge weights reach every method: they change what it computes, in the same way in every placement."""

import pytest
import torch
from methods_under_law import METHODS, REFUSE_WEIGHTS
from test_placements import settings_of
from worlds import (
    ThreeWorkers,
    by_node,
    config_of,
    having,
    last_round_stands,
    logits,
    make_world,
    run_local,
    run_processes,
    weighted,
)

import graphfed as gf
from graphfed.errors import InputError
from graphfed.methods.registry import get_method
from graphfed.methods.settings import value
from graphfed.nn.backbones import BACKBONES

WEIGHTED = [name for name in BACKBONES if BACKBONES[name].weighted]
TAKE_WEIGHTS = [
    name
    for name in METHODS
    if value(config_of(get_method(name)), "backbone", "gcn") in WEIGHTED and name not in REFUSE_WEIGHTS
]
CASES = [(name, "gcn") for name in TAKE_WEIGHTS]
CASES += [(name, "sage") for name in ("central", "isolated", "fedavg")]


@pytest.mark.parametrize(("name", "backbone"), CASES)
def test_weights_change_what_is_learnt_and_placements_agree_on_it(name, backbone):
    world = weighted(make_world())
    options = {**settings_of(name), **having(name, backbone=backbone)}
    fast, fed = run_local(name, world, **options)
    slow, oracle = run_local(name, world, "one at a time", **options)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    plain, _ = run_local(name, make_world(), **options)
    assert not torch.allclose(logits(fast), logits(plain), rtol=0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in TAKE_WEIGHTS if not get_method(n).pooled])
def test_separate_processes_train_on_the_weights_too(name, three_clients: ThreeWorkers):
    world = weighted(last_round_stands(make_world(1)))
    apart, ledger = run_processes(name, world, three_clients, **settings_of(name))
    together, fed = run_local(name, world, **settings_of(name))
    assert torch.allclose(logits(apart), logits(together), rtol=0, atol=1e-9)
    assert ledger.to_json() == fed.ledger.to_json()


@pytest.mark.parametrize(("name", "backbone"), CASES)
def test_weights_of_one_are_no_weights(name, backbone):
    options = {**settings_of(name), **having(name, backbone=backbone)}
    ones, _ = run_local(name, weighted(make_world(), ones=True), **options)
    plain, _ = run_local(name, make_world(), **options)
    assert torch.allclose(logits(ones), logits(plain), rtol=0, atol=1e-9)


def test_fedgcn_with_two_hops_equals_central_on_a_weighted_graph():
    world = weighted(last_round_stands(make_world(6)))
    settings = {"dropout": 0.0, "local_steps": 1, "lr": 0.3}
    federated, _ = run_local("fedgcn", world, **settings)
    central, _ = run_local("central", world, **settings)
    assert torch.allclose(by_node(federated, world), logits(central), rtol=0, atol=1e-9)


def test_the_mean_of_neighbours_does_not_know_the_unit_of_the_weights():
    """GraphSAGE's mean divides by the sum of the weights, so grams and kilograms are the same; GCN's self
    loop weighs 1 and is not."""
    from dataclasses import replace

    world = weighted(make_world())
    heavier = replace(world, graph=replace(world.graph, edge_weight=1000 * world.graph.edge_weight))
    for backbone, same in (("sage", True), ("gcn", False)):
        one, _ = run_local("fedavg", world, backbone=backbone)
        two, _ = run_local("fedavg", heavier, backbone=backbone)
        assert torch.allclose(logits(one), logits(two), rtol=0, atol=1e-9) is same


#: Own features only uses no edge, weighted or not (test_own_features.py).
NO_USE = [
    name
    for name in METHODS
    if name not in (*TAKE_WEIGHTS, *REFUSE_WEIGHTS) and config_of(get_method(name)).network.kernel.uses_edges
]


@pytest.mark.parametrize("method", [*NO_USE, "fedavg"])
def test_a_network_without_use_for_weights_refuses_them(method):
    world = weighted(make_world())
    backbone = having(method, backbone="gat")
    with pytest.raises(InputError, match=r"'(gat|maxpool)' cannot use edge weights.*choose gcn or sage"):
        gf.run(
            method, data=world.graph, clients=2, rounds=1, **backbone, split="random:0.5,0.2,0.3", out=False
        )


def test_trees_without_weights_refuse_them_where_the_graph_is_whole_and_at_the_devices() -> None:
    world = weighted(make_world())
    message = "lumos trains on trees, whose edges have no weights"
    with pytest.raises(InputError, match=message):
        gf.run("lumos", data=world.graph, split="random:0.5,0.2,0.3", feature_high=2.0, out=False)
    for placement in ("stacked", "one at a time"):
        with pytest.raises(InputError, match=message):
            run_local("lumos", world, placement)
