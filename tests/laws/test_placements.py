"""Placement must not change results: stacked, one client at a time, and separate processes are one
program."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from methods_under_law import METHODS, SHIPPED
from worlds import (
    ThreeWorkers,
    World,
    by_node,
    having,
    last_round_stands,
    logits,
    make_world,
    one_each,
    run_local,
    run_processes,
    stateful_optimizer,
)

from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.data.partitions.tables import Partition
from graphfed.federation.payload import part_of
from graphfed.methods.common import local_training
from graphfed.methods.registry import get_method
from graphfed.tasks.base import PRESETS

SETTINGS = {"weight_decay": 1e-2, "dropout": 0.4}


def nodes_of(name: str) -> int:
    """Fewer where a client is a node, because one client at a time takes a while."""
    return 24 if one_each(get_method(name)) else 60


def settings_of(name: str) -> dict:
    """Dropout and weight decay on, so that the laws see keyed draws and ghost rows (the toy has no
    dropout)."""
    return SETTINGS if name != "exchange_toy" else {"weight_decay": 1e-2}


@pytest.mark.parametrize(
    ("sparse", "preset"),
    [pytest.param(True, PRESETS[0], id="sparse"), pytest.param(False, PRESETS[1], id="dense, paper")],
)
@pytest.mark.parametrize("name", METHODS)
def test_stacked_equals_one_client_at_a_time_to_the_last_ledger_entry(name, sparse, preset):
    world = make_world(sparse=sparse, nodes=nodes_of(name))
    world = world if sparse else last_round_stands(world)
    fast, fed = run_local(name, world, preset=preset, **settings_of(name))
    slow, oracle = run_local(name, world, "one at a time", preset=preset, **settings_of(name))
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fast.best_round == slow.best_round
    assert fast.test == pytest.approx(slow.test, abs=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize(
    "name",
    [
        # Of methods with a client for every node: other processes, which have to start.
        pytest.param(n, marks=[pytest.mark.slow] * one_each(get_method(n)))
        for n in METHODS
        if not get_method(n).pooled
    ],
)
def test_separate_processes_equal_stacked_to_the_last_ledger_entry(name, three_clients: ThreeWorkers):
    world = last_round_stands(make_world(1))
    apart, ledger = run_processes(name, world, three_clients, **settings_of(name))
    together, fed = run_local(name, world, **settings_of(name))
    assert torch.allclose(logits(apart), logits(together), rtol=0, atol=1e-9)
    assert apart.test == pytest.approx(together.test, abs=1e-9)
    assert ledger.to_json() == fed.ledger.to_json()


@pytest.mark.parametrize("protocols", ["real", pytest.param("simulated", marks=pytest.mark.slow)])
def test_clients_and_a_helper_in_separate_processes_equal_stacked(
    protocols: str, three_clients: ThreeWorkers
) -> None:
    """The first client's process and the server's send messages; what each entry counts is the same."""
    world = make_world(6)
    world = World(world.graph, world.split, partition(world.graph, "edges_uniform", 3, 0))
    world = last_round_stands(world)
    options = {**SETTINGS, "pooling": "secure", "protocols": protocols}
    apart, ledger = run_processes("sapgnn", world, three_clients, **options)
    for placement in ("stacked", "one at a time"):
        together, fed = run_local("sapgnn", world, placement, **options)
        assert torch.allclose(logits(apart), logits(together), rtol=0, atol=1e-9)
        assert ledger.to_json() == fed.ledger.to_json()


@pytest.mark.parametrize("name", METHODS)
def test_in_float32_placements_agree_on_predictions_and_metrics_of_the_first_rounds(name):
    torch.set_default_dtype(torch.float32)
    world = make_world(2, nodes=nodes_of(name))
    fast, _ = run_local(name, world, rounds=2, **settings_of(name))
    slow, _ = run_local(name, world, "one at a time", rounds=2, **settings_of(name))
    assert fast.test["accuracy"] == slow.test["accuracy"]
    assert (logits(fast).argmax(1) == logits(slow).argmax(1)).all()


@pytest.mark.parametrize(
    "name",
    # Where a client is a node its number is the node's, by which it draws.
    [n for n in METHODS if not get_method(n).pooled and not one_each(get_method(n))],
)
def test_permuting_the_clients_permutes_the_results(name):
    world = make_world(3)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    order = np.array([2, 0, 1])  # old client k becomes order[k]
    moved = World(world.graph, world.split, from_assignment(world.graph, order[client], num_clients=3))
    one, fed = run_local(name, world, **settings_of(name))
    two, fed_moved = run_local(name, moved, **settings_of(name))
    assert torch.allclose(by_node(one, world), by_node(two, moved), rtol=0, atol=1e-9)
    assert one.test == pytest.approx(two.test, abs=1e-9)
    for entry, entry_moved in zip(fed.ledger.entries, fed_moved.ledger.entries, strict=True):
        assert (entry.sent == entry_moved.sent[order]).all()
        assert (entry.received == entry_moved.received[order]).all()


@pytest.mark.parametrize(
    ("keep", "fraction"),
    [
        pytest.param("reset", 0.4, id="reset-few are gathered"),
        pytest.param("keep", 0.7, id="keep-many are masked"),
    ],
)
@pytest.mark.parametrize("name", [n for n in METHODS if get_method(n).dropouts])
def test_absent_clients_change_nothing_in_any_placement(name, keep, fraction):
    """Stacked, few present clients are gathered and many are masked; one at a time, absent clients do not run
    at all."""
    world = make_world(4, clients=5)
    options = {
        "fraction": fraction,
        **having(name, client_state=keep),
        "optimizer": stateful_optimizer(name),
        "lr": 0.02,
        **settings_of(name),
    }
    fast, fed = run_local(name, world, **options)
    slow, oracle = run_local(name, world, "one at a time", **options)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


def test_masking_absent_clients_equals_gathering_the_present_ones(monkeypatch):
    """Two of five take part: gathered by default. Forcing the mask gives the same weights."""
    world = make_world(5, clients=5)
    gathered, _ = run_local("fedavg", world, fraction=0.4, **SETTINGS)
    batches = []
    whole = local_training._train_batch

    def counted(*args):
        batches.append(args)
        return whole(*args)

    monkeypatch.setattr(local_training, "_train_batch", counted)
    run_local("fedavg", world, fraction=0.4, **SETTINGS)
    assert len(batches) == 1 + 4, "setup makes one batch, every round of few clients another"
    monkeypatch.setattr(local_training, "GATHER_BELOW", 0.0)
    batches.clear()
    masked, _ = run_local("fedavg", world, fraction=0.4, **SETTINGS)
    assert len(batches) == 1
    assert torch.allclose(logits(gathered), logits(masked), rtol=0, atol=1e-12)


def test_a_partition_is_the_same_file_after_a_round_trip(tmp_path):
    world = make_world()
    world.partition.save(tmp_path / "p.safetensors")
    assert Partition.load(tmp_path / "p.safetensors").hash == world.partition.hash


def lonely_world() -> World:
    """Clients with edges among their nodes; without any edge; of one node without a neighbour; of one node
    with a remote neighbour only; and with edges but no remote neighbour."""
    i = np.arange(14)
    ends = [(0, 1), (1, 2), (2, 3), (3, 8), (12, 13), (0, 13), (9, 10), (10, 11)]
    x = np.random.default_rng(3).random((14, 4)).astype(np.float32)
    graph = make_graph("lonely", x, i % 3, np.array(ends).T, num_classes=3)
    client = np.array([0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 4, 4, 0, 0])
    split = Split("own", i % 2 == 0, i % 4 == 1, i % 4 == 3)
    return World(graph, split, from_assignment(graph, client, num_clients=5))


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SHIPPED)
def test_clients_without_neighbours_are_the_same_in_both_placements_at_every_depth(name, layers):
    settings = {"rounds": 2, **having(name, layers=layers, dropout=0.4)}
    fast, fed = run_local(name, lonely_world(), **settings)
    slow, oracle = run_local(name, lonely_world(), "one at a time", **settings)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize("name", [name for name in SHIPPED if having(name, output_heads=3)])
@pytest.mark.sampled(5)
def test_averaged_output_heads_are_the_same_in_both_placements(name):
    settings = {**SETTINGS, **having(name, backbone="gat", heads=2, output_heads=3)}
    world = last_round_stands(make_world(6))
    fast, fed = run_local(name, world, **settings)
    slow, oracle = run_local(name, world, "one at a time", **settings)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    one_head, _ = run_local(name, world, **{**settings, "output_heads": 1})
    assert not torch.allclose(logits(fast), logits(one_head))


@pytest.mark.parametrize("kind", ["edges_uniform", "overlapping", "ego", "label_skew"])
@pytest.mark.parametrize("name", ["fedavg", "isolated"])
def test_every_kind_of_partition_is_the_same_in_both_placements(name, kind):
    """Shared nodes, copied nodes, one node a client, skewed classes."""
    whole = make_world(7, nodes=24)
    world = World(whole.graph, whole.split, partition(whole.graph, kind, 24 if kind == "ego" else 3, 0))
    fast, fed = run_local(name, world, **SETTINGS)
    slow, oracle = run_local(name, world, "one at a time", **SETTINGS)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    scored = sum(sum(row) for row in fast.test_confusion)
    owned = world.partition.held_id[world.partition.held_owner]
    node = world.partition.node_of(np.unique(owned))
    assert scored == int(world.split.test[node].sum()), "each once, however many clients own it"


def test_the_weights_that_isolated_clients_keep_are_the_same_in_both_placements():
    """Clients select different rounds, and some features occur at some clients only."""
    world = make_world(8, clients=12)
    fast, _ = run_local("isolated", world, rounds=12, **SETTINGS)
    slow, _ = run_local("isolated", world, "one at a time", rounds=12, **SETTINGS)
    (stacked,) = fast.state.weights.parts
    for k, alone in enumerate(slow.state.weights.parts):
        for name, w in part_of(stacked, k).items():
            assert torch.allclose(w, part_of(alone, 0)[name], rtol=0, atol=1e-12), (k, name)


def without_training_at(world: World, k: int) -> World:
    """The same world, in which client k has no training node."""
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    train = world.split.train & (client != k)
    return World(world.graph, Split("few", train, world.split.val, world.split.test), world.partition)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_the_mask_of_a_fedpub_client_without_training_nodes_stays_as_it_is(optimizer):
    """Weight decay and penalties alone would move it to 0, and the client would end without a model."""
    world = last_round_stands(without_training_at(make_world(2), 1))
    settings = {"rounds": 40, "lr": 0.05, "weight_decay": 0.1, "dropout": 0.0, "optimizer": optimizer}
    settings |= {"mask_l1": 0.05, "client_state": "keep"}
    trained = run_local("fedpub", world, **settings)[0].state.values
    first = run_local("fedpub", world, **{**settings, "rounds": 1, "lr": 1e-9})[0].state.values
    for key, w in part_of(trained["mask"].parts[0], 1).items():
        assert torch.allclose(w, part_of(first["mask"].parts[0], 1)[key], rtol=0, atol=1e-7), key


@pytest.mark.parametrize("rule", ["fedavg", "fedprox", "fedadam", "scaffold", "fedsgd", "admm"])
def test_a_client_without_training_nodes_moves_nothing_at_others(rule):
    """Whatever its features, the model is that of the clients with training nodes."""
    world = last_round_stands(without_training_at(make_world(2, sparse=False), 1))
    settings = {**SETTINGS, "rule": rule, "optimizer": "sgd" if rule == "scaffold" else "adam"}
    settings |= {"features": "raw"} | ({} if rule == "fedsgd" else {"local_steps": 2})
    node = world.partition.held_id[world.partition.held_client == 1]
    x = np.array(world.graph.x)
    x[node] = 5 - 3 * x[node]
    graph = replace(world.graph, x=x)
    other = World(graph, world.split, replace(world.partition, graph_hash=graph.hash))
    (one,) = run_local("distgat", world, **settings)[0].state.weights.parts
    (two,) = run_local("distgat", other, **settings)[0].state.weights.parts
    for key in one:
        assert torch.equal(one[key], two[key]), key
