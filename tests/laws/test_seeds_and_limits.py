"""Same seed, same bits; limit cases in which methods must coincide; the ugly inputs."""

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from methods_under_law import METHODS, SHIPPED
from test_placements import nodes_of
from torch import Tensor
from worlds import World, by_node, having, logits, make_world, one_each, pooled, run_local

from graphfed.data.graphs.graph import Split
from graphfed.data.partitions.partition import from_assignment
from graphfed.errors import GraphfedError, InputError
from graphfed.federation.cohort import make_cohort
from graphfed.methods.averaging import program
from graphfed.methods.registry import get_method
from graphfed.runs.train import train
from graphfed.runtime.local import stacked
from graphfed.tasks.graphs.node_scores import SCORE_UNITS, score_clients
from graphfed.tasks.registry import default_settings

DROPOUT = {"dropout": 0.4}


def options(name: str) -> dict:
    return {} if name == "exchange_toy" else DROPOUT


#: Settings by which a method that samples does not, and one with masks and a proximal term has neither.
WHOLE = {"fedgraph": {"policy": "full"}, "fedpub": {"masks": "none", "mu": 0.0}}


@functools.cache
def first_run(name: str) -> Tensor:
    """The logits of the run that several laws compare another one with."""
    return logits(run_local(name, make_world(), **options(name))[0])


@pytest.mark.parametrize("name", METHODS)
def test_the_same_seed_gives_the_same_bits(name):
    two, _ = run_local(name, make_world(), **options(name))
    assert torch.equal(first_run(name), logits(two))


@pytest.mark.parametrize("name", METHODS)
def test_another_seed_gives_other_bits(name):
    two, _ = run_local(name, make_world(), seed=1, **options(name))
    assert not torch.allclose(first_run(name), logits(two))


@pytest.mark.parametrize("name", [n for n in METHODS if options(n)])
def test_dropout_changes_what_is_learned(name):
    """Every method that has the setting uses it."""
    plain, _ = run_local(name, make_world(), dropout=0.0)
    assert not torch.allclose(logits(plain), first_run(name))


@pytest.mark.parametrize("name", [n for n in SHIPPED if "noise_seed" in get_method(n).tree.names])
def test_privacy_noise_has_a_seed_only_where_one_is_set(name):
    noise = having(name, epsilon=0.2, release_round=2)
    runs = [run_local(name, make_world(), noise_seed=seed, **noise)[0] for seed in (0, 0, 1, None, None)]
    a, again, b, c, d = (logits(run) for run in runs)
    assert torch.equal(a, again)
    for one, two in ((a, b), (a, c), (c, d)):
        assert not torch.allclose(one, two)


@pytest.mark.parametrize("purpose", ["dropout", "roster"])
def test_each_purpose_draws_from_the_seed_on_its_own(purpose, monkeypatch):
    """With the same first weights, another seed still changes the dropout masks, and who takes part."""
    settings = {"dropout": 0.4} if purpose == "dropout" else {"dropout": 0.0, "fraction": 0.4}
    first = program.initial_weights
    monkeypatch.setattr(
        program, "initial_weights", lambda task, network, seed, device: first(task, network, 0, device)
    )
    world = make_world(clients=5)
    one, _ = run_local("fedavg", world, seed=0, **settings)
    two, _ = run_local("fedavg", world, seed=1, **settings)
    assert not torch.allclose(logits(one), logits(two))
    if purpose == "roster":
        alike, _ = run_local("fedavg", world, seed=1, dropout=0.0)
        same, _ = run_local("fedavg", world, seed=0, dropout=0.0)
        assert torch.equal(logits(alike), logits(same)), (
            "without dropout and sampling only the first weights use the seed"
        )


#: Methods whose server does more than average, whose network is another (test_sapgnn.py, test_ppgnn.py,
#: test_fedgat.py, test_own_features.py, test_prediction_release.py, test_attention_sums.py and test_halo.py
#: have their limits), or that train on
#: noise (test_released.py has theirs), on trees (test_tree_networks.py) or on generated nodes
#: (test_fedsage.py), so that one client does not make them central training.
SERVER_OPTIMISES = {
    "fedadam",
    "fedavgm",
    "skeleton",
    "sapgnn",
    "ppgnn",
    "lpgnn",
    "naive_fedgnn",
    "lumos",
    "fedgat",
    "fedgat_ldp",
    "own_features",
    "prediction_release",
    "attention_sums",
    "halo",
    "fedsage_plus",
}


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        (name, steps)
        for name in METHODS
        for steps in (1, 3)
        if name not in SERVER_OPTIMISES and (name, steps) != ("exchange_toy", 3)
    ],
)
def test_one_client_equals_central(name, steps):
    settings = {"local_steps": steps, "weight_decay": 1e-2, **options(name)}
    if name == "fedprox":
        settings["mu"] = 0.0
    presets = {
        k: v
        for k, v in default_settings(get_method(name), preset="paper").items()
        if k in ("backbone", "heads", "optimizer", "dropout")
    }
    if presets.get("optimizer") == "adam":
        settings |= having(name, client_state="keep")
    if name == "fedgcn" and options(name):
        settings["dropout"] = (
            0.0  # FedGCN's dropout acts on the aggregated features: the law is exact without it
        )
    central = having("central", **{**presets, **settings})
    if name in ("distgat", "fedgat"):
        central |= {"backbone": "gat", "heads": 8}
    one, _ = run_local(name, pooled(make_world()), **settings, **WHOLE.get(name, {}))
    two, _ = run_local("central", make_world(), **central)
    assert torch.allclose(logits(one), logits(two), rtol=0, atol=1e-9)


def test_fedgcn_with_two_hops_and_one_full_batch_sgd_step_equals_central():
    world = make_world(clients=4)
    settings = {"local_steps": 1, "dropout": 0.0, "weight_decay": 1e-2, "lr": 0.3, "rounds": 6}
    federated, _ = run_local("fedgcn", world, hops=2, **settings)
    central, _ = run_local("central", world, **settings)
    assert torch.allclose(by_node(federated, world), logits(central), rtol=0, atol=1e-9)


def test_fedgcn_with_one_hop_is_neither_central_nor_fedavg():
    """The limit above has teeth: with one hop the second layer lacks the other clients' rows."""
    world = make_world(clients=4)
    settings = {"local_steps": 1, "dropout": 0.0}
    one_hop, _ = run_local("fedgcn", world, hops=1, **settings)
    central, _ = run_local("central", world, **settings)
    averaged, _ = run_local("fedavg", world, **settings)
    assert not torch.allclose(by_node(one_hop, world), logits(central), atol=1e-3)
    assert not torch.allclose(logits(one_hop), logits(averaged), atol=1e-3)


def test_fedgcn_with_no_hops_is_fedavg_bit_for_bit():
    world = make_world()
    zero, fed = run_local("fedgcn", world, hops=0, **DROPOUT)
    averaged, other = run_local("fedavg", world, **DROPOUT)
    assert torch.equal(logits(zero), logits(averaged))
    assert fed.ledger.to_json() == other.ledger.to_json()


def test_fedprox_with_mu_zero_is_fedavg_bit_for_bit():
    world = make_world()
    prox, _ = run_local("fedprox", world, mu=0.0, **DROPOUT)
    averaged, _ = run_local("fedavg", world, **DROPOUT)
    assert torch.equal(logits(prox), logits(averaged))


def test_a_strong_proximal_term_keeps_the_clients_close_to_the_shared_weights():
    world = make_world()
    start, _ = run_local("fedavg", world, rounds=1, local_steps=5, lr=1e-12, dropout=0.0)
    free, _ = run_local("fedprox", world, rounds=1, local_steps=5, mu=0.0, dropout=0.0)
    held, _ = run_local("fedprox", world, rounds=1, local_steps=5, mu=5.0, dropout=0.0)
    assert (logits(held) - logits(start)).norm() < (logits(free) - logits(start)).norm()


def test_distgat_is_fedavg_on_gat():
    world = make_world()
    preset = dict(default_settings(get_method("distgat"), preset="paper"))
    one, _ = run_local("distgat", world, **DROPOUT)
    two, _ = run_local("fedavg", world, **{**preset, "backbone": "gat", "lr": 0.1, "hidden": 5, **DROPOUT})
    assert torch.equal(logits(one), logits(two))


@pytest.mark.parametrize("name", METHODS)
def test_a_client_without_training_nodes_does_not_disturb_the_others(name):
    """Client 2 has no training node: results are finite and the same in both placements."""
    world = make_world(clients=3, nodes=nodes_of(name))
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    world = World(
        world.graph,
        Split("less", world.split.train & (client != 2), world.split.val, world.split.test),
        world.partition,
    )
    outcome, _ = run_local(name, world, **options(name))
    assert torch.isfinite(logits(outcome)).all()
    assert outcome.test["accuracy"] > 0
    slow, _ = run_local(name, world, "one at a time", **options(name))
    assert torch.allclose(logits(outcome), logits(slow), atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_an_empty_client_is_a_client(name):
    """A client that holds nothing at all neither fails nor changes what the others learn; a method that
    cannot go on with one says so."""
    world = make_world(clients=2)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    with_empty = World(
        world.graph, world.split, from_assignment(world.graph, client * 2, num_clients=3)
    )  # clients 0, (1), 2
    one, _ = run_local(name, world, **options(name))
    if not get_method(name).requires.empty_clients:
        if one_each(get_method(name)):  # every other client has its node
            apart = np.arange(60) + (np.arange(60) > 0)
            with_empty = replace(with_empty, partition=from_assignment(world.graph, apart, num_clients=61))
        for placement in ("stacked", "one at a time"):
            with pytest.raises(InputError, match="client 1 holds no node"):
                run_local(name, with_empty, placement, **options(name))
        return
    two, _ = run_local(name, with_empty, **options(name))
    slow, _ = run_local(name, with_empty, "one at a time", **options(name))
    assert torch.allclose(logits(one), logits(two), atol=1e-9)
    assert torch.allclose(logits(slow), logits(two), atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_training_nodes_of_one_class_give_finite_results(name):
    world = make_world()
    world = World(
        world.graph,
        Split("one class", world.split.train & (world.graph.y == 0), world.split.val, world.split.test),
        world.partition,
    )
    outcome, _ = run_local(name, world, rounds=8, **options(name))
    assert torch.isfinite(logits(outcome)).all()


@pytest.mark.parametrize("name", METHODS)
def test_no_validation_nodes_selects_the_last_round(name):
    world = make_world()
    none = np.zeros_like(world.split.val)
    world = World(world.graph, Split("no val", world.split.train, none, world.split.test), world.partition)
    outcome, _ = run_local(name, world, **options(name))
    assert outcome.rounds_run == 4
    assert outcome.best_round == (None if get_method(name).personal else 4)
    assert {"accuracy", "macro_f1", "balanced_accuracy", "auc", "loss"} <= {*outcome.val}
    assert set(outcome.val.values()) == {None}


@pytest.mark.parametrize("name", [n for n in SHIPPED if not (get_method(n).pooled or n == "isolated")])
def test_selection_sees_validation_nodes_only(name):
    """Other test labels change the test score and nothing else: not the best round, not a prediction."""
    world = make_world()
    y = world.graph.y.copy()
    y[world.split.test] = (y[world.split.test] + 1) % 3
    graph = replace(world.graph, y=y)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    other = World(graph, world.split, from_assignment(graph, client, num_clients=3))
    one, _ = run_local(name, world)
    two, _ = run_local(name, other)
    assert one.best_round == two.best_round
    assert torch.equal(logits(one), logits(two))
    assert one.test != two.test


def test_patience_stops_a_run_that_no_longer_improves():
    world = make_world()
    # With a vanishing learning rate nothing ever improves after the first evaluation.
    outcome, _ = run_local("fedavg", world, rounds=50, patience=3, lr=1e-300, dropout=0.0, weight_decay=0.0)
    assert (outcome.best_round, outcome.rounds_run) == (1, 4)


def test_evaluating_every_other_round_evaluates_the_last_one_too():
    outcome, _ = run_local("fedavg", make_world(), rounds=5, eval_every=2)
    assert [h["round"] for h in outcome.history if h["val"] is not None] == [2, 4, 5]


def test_train_gives_every_event_once():
    world = make_world()
    method = get_method("fedavg")
    fed = stacked(3)
    data = fed.locate("clients", "data", [make_cohort(world.graph, world.split, world.partition, range(3))])
    events = []
    train(fed, method, data, world.task, method.configure({"rounds": 3}), on_event=events.append)
    events = [event for event in events if event.phase != "stage"]
    assert [(e.phase, e.round) for e in events] == [
        ("setup", 0),
        ("train", 1),
        ("train", 2),
        ("train", 3),
        ("done", 3),
    ]
    assert events[1].bytes < events[2].bytes < events[3].bytes


def test_a_round_in_which_nobody_has_a_training_node_changes_nothing():
    """All training nodes are at client 0 of 5; whenever it is absent the weights stay as they were."""
    world = make_world(clients=5)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    split = Split("one client", world.split.train & (client == 0), world.split.val, world.split.test)
    world = World(world.graph, split, world.partition)
    outcome, _ = run_local("fedavg", world, rounds=12, fraction=0.2, dropout=0.0, lr=0.01)
    losses = [h["val"]["loss"] for h in outcome.history]
    assert 1 < len(set(losses)) < len(losses), "it trains in some rounds and stands still in the others"


@pytest.mark.parametrize("name", ["fedavg", "lpgnn", "lumos", "naive_fedgnn", "sapgnn"])
def test_no_training_node_anywhere_is_refused_before_training(name):
    world = make_world()
    none = np.zeros_like(world.split.train)
    world = World(world.graph, Split("none", none, world.split.val, world.split.test), world.partition)
    with pytest.raises(InputError, match="no client has a training node"):
        run_local(name, world)


def test_a_run_that_diverges_at_once_fails_and_names_the_learning_rate():
    with pytest.raises(
        GraphfedError, match=r"fedavg diverged in round \d+: .* smaller learning rate \(lr is 1e\+300\)"
    ):
        run_local("fedavg", make_world(), lr=1e300, dropout=0.0)


def test_a_run_that_diverges_later_stops_and_keeps_its_best_round():
    """The step of round 1 is harmless; weight decay beyond 1 then doubles the weights without end."""
    outcome, _ = run_local(
        "fedavg", make_world(), rounds=2000, lr=100.0, weight_decay=1.0, dropout=0.0, local_steps=1
    )
    assert 0 < outcome.best_round < outcome.details["diverged_in_round"] == outcome.rounds_run < 2000
    assert torch.isfinite(logits(outcome)).all()


def test_predictions_that_are_not_finite_are_never_right():
    world = make_world()
    cohort = make_cohort(world.graph, world.split, world.partition, range(3))
    scores = score_clients(cohort, torch.full((int(cohort.val.sum()), 3), torch.nan), "val", None)
    assert scores["confusion"][..., :-1].sum() == 0
    assert scores["confusion"][..., -1].sum() == SCORE_UNITS * cohort.val.sum()
