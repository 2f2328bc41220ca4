"""Class weights and the selection of rounds, where one class is rare."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from methods_under_law import METHODS, SHIPPED
from worlds import World, by_node, logits, make_world, run_local

from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.errors import InputError
from graphfed.methods.registry import get_method
from graphfed.runs.config import make_config
from graphfed.tasks.graphs.class_weights import balanced_weights
from graphfed.tasks.graphs.node_scores import RANKED, SCORE_UNITS, choose_selection

#: Labels reach the server under noise, which exact class counts would undo.
HIDDEN_LABELS = [n for n in SHIPPED if "class_weights" not in get_method(n).tree.names]
WEIGHTED = [n for n in METHODS if "class_weights" in get_method(n).tree.names]


def equal_classes(world: World) -> World:
    """The same world with as many training nodes of each class."""
    y, train = world.graph.y, world.split.train
    fewest = int(np.bincount(y[train]).min())
    assert fewest > 2
    chosen = np.zeros_like(train)
    for c in range(world.graph.num_classes):
        chosen[np.flatnonzero(train & (y == c))[:fewest]] = True
    split = Split("equal", chosen, world.split.val, world.split.test)
    return World(world.graph, split, world.partition)


def rare_world(nodes: int = 1200, share: float = 0.01, seed: int = 0) -> World:
    """Two classes, of which class 0 is rare: it shows in the features, not enough to be the likelier one."""
    rng = np.random.default_rng(seed)
    y = np.ones(nodes, dtype=int)
    y[rng.permutation(nodes)[: round(share * nodes)]] = 0
    x = rng.normal(0, 1, (nodes, 4)) + 1.5 * (y == 0)[:, None] * np.array([1, 1, 0, 0])
    graph = make_graph("rare", x.astype(np.float32), y, rng.integers(0, nodes, (2, nodes)), num_classes=2)
    place = np.zeros(nodes)
    for c in range(2):
        at = rng.permutation(np.flatnonzero(y == c))
        place[at] = (np.arange(len(at)) + 0.5) / len(at)
    split = Split("thirds", place < 1 / 3, (place >= 1 / 3) & (place < 2 / 3), place >= 2 / 3)
    return World(graph, split, from_assignment(graph, rng.integers(0, 3, nodes), num_clients=3))


@pytest.mark.parametrize("name", WEIGHTED)
def test_balanced_weights_are_none_where_every_class_has_as_many_training_nodes(name: str) -> None:
    world = equal_classes(make_world(1))
    plain, _ = run_local(name, world, rounds=2)
    balanced, _ = run_local(name, world, rounds=2, class_weights="balanced")
    assert torch.allclose(logits(plain), logits(balanced), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", [n for n in SHIPPED if n not in HIDDEN_LABELS])
def test_every_method_trains_on_balanced_weights_where_classes_differ_in_size(name: str) -> None:
    world = make_world(1)
    train = world.split.train & (
        (world.graph.y != 0) | (np.cumsum(world.graph.y == 0) % 3 == 0)
    )  # a third of one class
    world = World(world.graph, Split("uneven", train, world.split.val, world.split.test), world.partition)
    plain, _ = run_local(name, world, rounds=2)
    balanced, fed = run_local(name, world, rounds=2, class_weights="balanced")
    assert not torch.allclose(logits(plain), logits(balanced), rtol=0, atol=1e-6)
    assert {"class_counts", "class_weights"} <= {e.name for e in fed.ledger.entries}


@pytest.mark.parametrize("name", HIDDEN_LABELS)
def test_a_method_that_hides_labels_by_noise_has_no_class_weights(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} has no setting 'class_weights'; it is a setting of"):
        make_config(name, settings={"class_weights": "balanced"})


def test_balanced_weights_give_every_class_that_occurs_the_same_weight_in_the_loss() -> None:
    counts = SCORE_UNITS * torch.tensor([990, 10, 0])
    weights = balanced_weights(counts).double()
    assert (weights * torch.tensor([990, 10, 0])).tolist() == pytest.approx([500, 500, 0])
    assert weights[2] == 1


def test_balanced_weights_raise_the_recall_of_a_class_of_one_percent() -> None:
    world = rare_world()
    recall = {}
    for weights in ("none", "balanced"):
        outcome, _ = run_local(
            "fedavg", world, rounds=60, dropout=0.0, class_weights=weights, optimizer="adam", lr=0.01
        )
        recall[weights] = outcome.details["test_classes"][0]["recall"]
        assert outcome.details["headline"] == ["average_precision", "auc", "recall_at_1_percent"]
        assert outcome.details["positive_class"] == 0
        assert outcome.test["accuracy"] > 0.5
    assert recall["none"] == 0, "the majority is the likelier class for every node"
    assert recall["balanced"] >= 0.5


@pytest.mark.parametrize("protocols", ["simulated", "real"])
def test_hidden_class_counts_give_the_weights_of_those_in_plaintext(protocols: str) -> None:
    world = rare_world(300, 0.1)
    plaintext, _ = run_local("fedavg", world, class_weights="balanced", dropout=0.0)
    hidden, fed = run_local(
        "fedavg", world, class_weights="balanced", dropout=0.0, aggregation="secure", protocols=protocols
    )
    assert torch.allclose(logits(plaintext), logits(hidden), rtol=0, atol=1e-5)
    names = {e.name for e in fed.ledger.entries}
    assert "class_counts/masked" in names
    assert "class_counts" not in names


SELECT = ["accuracy", "balanced_accuracy", "macro_f1", *RANKED]


@pytest.mark.parametrize("select", SELECT)
def test_the_best_round_is_the_first_best_by_the_chosen_metric(select: str) -> None:
    outcome, _ = run_local("fedavg", rare_world(300, 0.1), rounds=8, select=select, dropout=0.4)
    values = [line["val"][select] for line in outcome.history]
    assert len(set(values)) > 1 or select not in ("auc", "average_precision")
    assert outcome.best_round == 1 + int(np.argmax(values))
    assert outcome.val[select] == max(values)
    assert outcome.details["selected_by"] == select


@pytest.mark.parametrize("select", SELECT)
def test_every_isolated_client_keeps_the_first_best_of_its_own_rounds_by_the_chosen_metric(
    select: str,
) -> None:
    """Against the metrics of each client alone: a world of that client and its nodes only."""
    world = rare_world(300, 0.2)
    settings = {"select": select, "dropout": 0.4, "lr": 0.5}
    together = by_node(run_local("isolated", world, rounds=6, **settings)[0], world)
    rounds = []
    for r in range(1, 7):
        split = replace(world.split, val=np.zeros_like(world.split.val))
        last = World(world.graph, split, world.partition)
        rounds.append(by_node(run_local("isolated", last, rounds=r, **settings)[0], world))
    client = np.empty(300, dtype=int)
    client[world.partition.held_node] = world.partition.held_client
    for k in range(3):
        here = np.flatnonzero(client == k)
        alone = np.flatnonzero(world.split.val & (client == k))
        values = [value_of(select, r[alone], world.graph.y[alone]) for r in rounds]
        assert torch.equal(together[here], rounds[int(np.argmax(values))][here])


def value_of(select: str, z: torch.Tensor, y: np.ndarray) -> float:
    """A metric of logits [n, 2], by scikit-learn; class 0 is the positive one."""
    from sklearn import metrics

    score, guess = (z[:, 0] - z[:, 1]).numpy(), z.argmax(1).numpy()
    if select == "recall_at_1_percent":
        return float(y[np.argmax(score)] == 0)
    return float(
        {
            "accuracy": lambda: metrics.accuracy_score(y, guess),
            "balanced_accuracy": lambda: metrics.balanced_accuracy_score(y, guess),
            "macro_f1": lambda: metrics.f1_score(y, guess, average="macro"),
            "auc": lambda: metrics.roc_auc_score(y == 0, score),
            "average_precision": lambda: metrics.average_precision_score(y == 0, score),
        }[select]()
    )


@pytest.mark.parametrize(
    ("counts", "metric"),
    [
        ([80, 20], "accuracy"),
        ([81, 19], "average_precision"),
        ([1, 99], "average_precision"),
        ([100, 0], "accuracy"),
        ([85, 10, 5], "balanced_accuracy"),
        ([50, 30, 20], "accuracy"),
        ([0, 0], "accuracy"),
    ],
)
def test_auto_selects_by_accuracy_unless_one_class_has_more_than_80_percent(counts, metric) -> None:
    assert choose_selection(torch.tensor(counts), "auto").metric == metric
    assert choose_selection(torch.tensor(counts), "macro_f1").metric == "macro_f1"


def test_the_positive_class_is_the_rarer_one_and_of_equal_ones_class_1() -> None:
    assert [choose_selection(torch.tensor(c), "auto").positive for c in ([1, 9], [9, 1], [5, 5])] == [0, 1, 1]


def test_patience_counts_evaluations_without_a_better_value_of_the_chosen_metric() -> None:
    world = rare_world(300, 0.1)
    outcome, _ = run_local("fedavg", world, rounds=200, patience=5, select="average_precision", lr=0.5)
    values = [line["val"]["average_precision"] for line in outcome.history]
    assert outcome.rounds_run < 200
    assert outcome.rounds_run == outcome.best_round + 5
    assert values[outcome.best_round - 1] == max(values)


def test_recall_at_1_percent_is_refused_for_more_than_two_classes() -> None:
    with pytest.raises(
        InputError, match="select=recall_at_1_percent needs data with two classes, and the data has 3"
    ):
        run_local("fedavg", make_world(), select="recall_at_1_percent")
