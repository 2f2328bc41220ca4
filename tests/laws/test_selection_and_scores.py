"""The evaluation protocol against runs that need no selection, and against scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, log_loss
from worlds import World, by_node, last_round_stands, make_world, run_local

from graphfed.data.graphs.graph import Split
from graphfed.tasks.graphs.node_scores import SCORE_UNITS, metrics_of

SETTINGS = {"dropout": 0.4, "weight_decay": 1e-2, "rounds": 12}


def unselected(world, name, rounds):
    """Logits by node after exactly `rounds` rounds: without validation nodes the last round stands."""
    return by_node(run_local(name, last_round_stands(world), **{**SETTINGS, "rounds": rounds})[0], world)


def test_what_is_scored_and_kept_is_the_first_best_round_on_validation():
    world = make_world(1)
    outcome, _ = run_local("fedavg", world, **{**SETTINGS, "rounds": 4})
    accuracies = [h["val"]["accuracy"] for h in outcome.history]
    assert 1 < outcome.best_round < outcome.rounds_run, (
        "in this world the best round must be neither the first nor the last"
    )
    assert outcome.best_round == 1 + int(np.argmax(accuracies))
    assert outcome.val["accuracy"] == max(accuracies)
    assert torch.equal(by_node(outcome, world), unselected(world, "fedavg", outcome.best_round))


def test_isolated_clients_keep_their_own_first_best_round_and_their_last_without_validation():
    world = make_world(1)
    client = np.empty(60, dtype=int)
    client[world.partition.held_node] = world.partition.held_client
    val = world.split.val & (client != 2)
    world = World(
        world.graph, Split("client 2 blind", world.split.train, val, world.split.test), world.partition
    )
    rounds = [unselected(world, "isolated", r) for r in range(1, SETTINGS["rounds"] + 1)]
    got = by_node(run_local("isolated", world, **SETTINGS)[0], world)
    best = []
    for k in range(3):
        v = np.flatnonzero(val & (client == k))
        hits = [int((r[v].argmax(1).numpy() == world.graph.y[v]).sum()) for r in rounds]
        best.append(int(np.argmax(hits)) if len(v) else SETTINGS["rounds"] - 1)
        rows = np.flatnonzero(client == k)
        assert torch.equal(got[rows], rounds[best[k]][rows])
    assert len(set(best)) > 1


def test_metrics_are_those_of_scikit_learn_on_the_test_nodes():
    world = make_world(1)
    outcome, _ = run_local("fedavg", world, **{**SETTINGS, "rounds": 2})
    rows, y, test = by_node(outcome, world), world.graph.y, world.split.test
    guess = rows.argmax(1).numpy()
    assert outcome.test["accuracy"] == pytest.approx((guess == y)[test].mean())
    labels = np.unique(np.concatenate([guess[test], y[test]]))
    assert outcome.test["macro_f1"] == pytest.approx(
        f1_score(y[test], guess[test], labels=labels, average="macro")
    )
    p = rows[test].softmax(1).numpy()
    assert outcome.test["loss"] == pytest.approx(log_loss(y[test], p, labels=[0, 1, 2]))
    expected = np.zeros((3, 4), int)  # the last column is for rows without a finite prediction
    np.add.at(expected, (y[test], guess[test]), 1)
    assert outcome.test_confusion == expected.tolist()


@pytest.mark.parametrize(("hops", "layers"), [(1, 1), (1, 2), (2, 2), (1, 3), (2, 3)])
def test_fedgcn_predicts_what_its_docstring_says_with_dense_matrices(hops, layers):
    """Layer 0 on all neighbours' features; the second on all (2 hops) or own neighbours; later on own
    ones."""
    world = make_world(1, sparse=False)
    outcome, _ = run_local("fedgcn", world, hops=hops, layers=layers, rounds=2)
    client = torch.empty(60, dtype=torch.int64)
    client[torch.from_numpy(world.partition.held_node)] = torch.from_numpy(world.partition.held_client)
    a = torch.eye(60)
    u, v = torch.from_numpy(world.graph.edges)
    a[u, v] = a[v, u] = 1
    scale = a.sum(1).rsqrt()
    whole = scale[:, None] * a * scale
    inside = whole * (client[:, None] == client)
    w = outcome.state.weights.parts[0]
    h = torch.from_numpy(np.asarray(world.graph.x)).to(torch.get_default_dtype())
    for layer in range(layers):
        by = whole if layer == 0 or (layer == 1 and hops == 2) else inside
        h = by @ (h @ w[f"layers.{layer}.weight"]) + w[f"layers.{layer}.bias"]
        h = h.relu() if layer < layers - 1 else h
    assert torch.allclose(by_node(outcome, world), h, rtol=0, atol=1e-9)


def test_every_round_draws_another_roster():
    _, fed = run_local("fedavg", make_world(clients=5), fraction=0.4, rounds=12)
    (entry,) = [e for e in fed.ledger.entries if e.name == "update"]
    assert np.count_nonzero(entry.sent) > 2, "two of five in every round, but not always the same two"


def test_a_state_that_was_not_evaluated_is_never_kept():
    world = make_world(2)
    outcome, _ = run_local("fedavg", world, **{**SETTINGS, "rounds": 6, "eval_every": 4})
    assert torch.equal(by_node(outcome, world), unselected(world, "fedavg", outcome.best_round))
    assert outcome.best_round == 4


def test_absent_clients_are_scored_all_the_same_and_rosters_have_the_rounded_size():
    world = make_world(clients=5)
    _, fed = run_local("fedavg", world, fraction=0.7)
    entries = {(e.phase, e.name): e for e in fed.ledger.entries}
    assert np.all(entries["eval", "val_scores"].sent > 0)
    assert len(set(entries["eval", "val_scores"].sent)) == 1, "every client in every round"
    assert entries["train", "update"].messages == 4 * 4, "round(0.7 * 5) = 4 clients in 4 rounds"


def test_macro_f1_leaves_out_a_class_that_neither_occurs_nor_is_predicted():
    confusion = SCORE_UNITS * torch.tensor([[1, 1, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]])
    sums = {"confusion": confusion, "loss": torch.tensor(2.0)}
    assert metrics_of(sums)["macro_f1"] == pytest.approx((2 / 3 + 4 / 5) / 2)
