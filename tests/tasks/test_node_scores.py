"""The metrics of node classification against scikit-learn's, which sees every score."""

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor

from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.tasks.graphs.node_scores import (
    Selection,
    bins_of,
    headline_of,
    metrics_of,
    score_clients,
    scored,
    total,
)


def cohort_of(y: np.ndarray, num_classes: int, clients: int = 4) -> Cohort:
    """A cohort whose test part is all nodes, in the order of `y` at every client."""
    graph = make_graph("g", np.ones((len(y), 1), np.float32), y, [], num_classes=num_classes)
    none, every = np.zeros(len(y), bool), np.ones(len(y), bool)
    client = np.sort(np.arange(len(y)) % clients)
    assigned = from_assignment(graph, client, num_clients=clients)
    return make_cohort(graph, Split("test", none, none, every), assigned, range(clients))


def metrics_from(y: np.ndarray, logits: np.ndarray, positive: int = 1) -> dict[str, float]:
    cohort = cohort_of(y, logits.shape[1])
    z = torch.from_numpy(logits)[cohort.id[cohort.rows("test")]]
    return metrics_of(total(score_clients(cohort, z, "test", None, True)), positive)


def two_classes(nodes: int, share: float, distance: float, scale: float, shift: float, seed: int):
    """Labels, and logits whose log-odds are normal: `scale` wide, around `shift`, higher where positive."""
    rng = np.random.default_rng(seed)
    y = np.zeros(nodes, int)
    y[rng.permutation(nodes)[: round(share * nodes)]] = 1
    log_odds = shift + scale * (rng.normal(size=nodes) + distance * y)
    return y, np.stack([np.zeros(nodes), log_odds], 1)


def recall_at_1_percent(y: np.ndarray, score: np.ndarray) -> float:
    first = np.argsort(-score, kind="stable")[: max(1, round(len(y) / 100))]
    return float(y[first].sum() / y.sum())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("nodes", "share", "distance", "scale", "shift"),
    [
        (5000, 0.01, 1.5, 1.0, -4.6),
        (5000, 0.01, 2.5, 2.0, -6.0),
        (5000, 0.05, 1.0, 0.3, -3.0),
        (5000, 0.3, 1.0, 1.0, 0.0),
        (5000, 0.01, 3.0, 6.0, -20.0),
        (20000, 0.002, 3.0, 1.0, -7.0),
        (1000, 0.5, 3.0, 8.0, 0.0),
    ],
)
def test_of_two_classes_area_and_precision_are_the_exact_ones_within_the_stated_resolution(
    nodes: int, share: float, distance: float, scale: float, shift: float, seed: int
) -> None:
    """ROC AUC within 0.002, average precision within 0.01, recall at 1 % alarms within 0.02."""
    y, logits = two_classes(nodes, share, distance, scale, shift, seed)
    found, score = metrics_from(y, logits), logits[:, 1]
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, score), abs=0.002)
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(y, score), abs=0.01)
    assert found["recall_at_1_percent"] == pytest.approx(recall_at_1_percent(y, score), abs=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_log_odds_that_hardly_differ_are_resolved_within_three_hundredths(seed: int) -> None:
    """A network that has learnt little: all log-odds within a few tenths."""
    y, logits = two_classes(5000, 0.01, 2.0, 0.2, -4.6, seed)
    found, score = metrics_from(y, logits), logits[:, 1]
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(y, score), abs=0.005)
    assert found["average_precision"] == pytest.approx(metrics.average_precision_score(y, score), abs=0.03)


@pytest.mark.parametrize("positive", [0, 1])
def test_scores_in_different_bins_give_the_exact_values_for_either_positive_class(positive: int) -> None:
    y = np.array([0, 1, 0, 0, 1, 0, 1, 0, 0, 0])
    score = np.linspace(-8, 8, len(y))
    found = metrics_from(y, np.stack([np.zeros(len(y)), score], 1), positive)
    truth, ranked = y == positive, score if positive else -score
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(truth, ranked), abs=1e-12)
    assert found["average_precision"] == pytest.approx(
        metrics.average_precision_score(truth, ranked), abs=1e-12
    )
    assert found["recall_at_1_percent"] == pytest.approx(recall_at_1_percent(truth, ranked), abs=1e-12)


@pytest.mark.parametrize("spread", [1.0, 4.0])
@pytest.mark.parametrize(
    ("classes", "of_auc", "of_precision"), [(3, 0.001, 0.002), (10, 0.002, 0.01), (50, 0.01, 0.02)]
)
def test_of_many_classes_the_means_over_classes_are_the_exact_ones_within_the_stated_resolution(
    classes: int, of_auc: float, of_precision: float, spread: float
) -> None:
    rng = np.random.default_rng(classes)
    y = rng.integers(0, classes, 3000)
    logits = spread * (rng.normal(size=(3000, classes)) + 1.5 * np.eye(classes)[y])
    found = metrics_from(y, logits)
    p = torch.from_numpy(logits).softmax(1).numpy()
    auc = metrics.roc_auc_score(y, p, multi_class="ovr", average="macro")
    precision = metrics.average_precision_score(np.eye(classes)[y], p, average="macro")
    assert found["auc"] == pytest.approx(auc, abs=of_auc)
    assert found["average_precision"] == pytest.approx(precision, abs=of_precision)
    assert "recall_at_1_percent" not in found
    guess = logits.argmax(1)
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, guess), abs=1e-12)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, guess), abs=1e-12)


def test_a_score_for_every_node_alike_ranks_nothing() -> None:
    y = np.arange(1000) % 10 == 0
    found = metrics_from(y.astype(int), np.zeros((1000, 2)))
    assert found["auc"] == 0.5
    assert found["average_precision"] == pytest.approx(0.1, abs=0.005)
    assert found["recall_at_1_percent"] == pytest.approx(0.01)


@pytest.mark.parametrize("odd", [0.0, 1e3, -1e3, 1e300])
def test_extreme_logits_are_counted_in_the_outer_bins(odd: float) -> None:
    y, logits = two_classes(200, 0.2, 1.0, 1.0, 0.0, 0)
    logits[7, 1] = odd
    many = np.concatenate([logits, np.full((200, 1), -odd)], 1)
    for z in (logits, many):
        found = metrics_from(y, z)
        assert 0 <= found["auc"] <= 1
        assert 0 <= found["average_precision"] <= 1


def test_metrics_without_a_positive_node_are_not_numbers() -> None:
    found = metrics_from(np.zeros(50, int), np.random.default_rng(0).normal(size=(50, 2)))
    assert all(np.isnan(found[name]) for name in ("auc", "average_precision", "recall_at_1_percent"))
    assert found["balanced_accuracy"] == found["accuracy"]


@pytest.mark.parametrize(("classes", "size"), [(2, 16384), (3, 32736), (10, 32640), (32, 32768), (50, 51200)])
def test_a_clients_histogram_takes_16_kilobytes_for_two_classes_and_32_for_up_to_32(
    classes: int, size: int
) -> None:
    groups = 1 if classes == 2 else classes
    assert groups * 2 * bins_of(classes) * 8 == size


def test_precision_and_recall_of_each_class_are_those_of_the_confusion_counts() -> None:
    rng = np.random.default_rng(3)
    y, logits = rng.integers(0, 3, 400), rng.normal(size=(400, 4))
    logits[:, 3] = -9  # a class that does not occur and is never predicted
    cohort = cohort_of(y, 4)
    z: Tensor = torch.from_numpy(logits)[cohort.id[cohort.rows("test")]]
    found = scored(total(score_clients(cohort, z, "test", None, True)), Selection("accuracy", 1)).report
    guess = logits.argmax(1)
    for average, key in ((metrics.precision_score, "precision"), (metrics.recall_score, "recall")):
        expected = average(y, guess, labels=[0, 1, 2], average=None)
        assert [c[key] for c in found["test_classes"][:3]] == pytest.approx(expected.tolist())
        assert found["test_classes"][3][key] is None
    assert found["headline"] == ["accuracy", "macro_f1"]


def test_the_headline_is_not_accuracy_where_one_class_has_more_than_80_percent() -> None:
    assert headline_of(torch.tensor([81, 19]))[0] == "average_precision"
    assert headline_of(torch.tensor([81, 10, 9]))[0] == "balanced_accuracy"
    assert headline_of(torch.tensor([80, 20]))[0] == "accuracy"
