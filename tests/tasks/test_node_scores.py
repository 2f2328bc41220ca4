"""The metrics of node classification against those of scikit-learn, which sees every score."""

import numpy as np
import pytest
import torch
from protections import protection
from scipy.special import logsumexp
from sklearn import metrics
from torch import Tensor

from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.federation import Federation
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.methods.averaging.methods import FEDAVG
from graphfed.methods.base import Task
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.tasks.evaluation import Scored
from graphfed.tasks.graphs.node_scores import Selection, bins_of, headline_of, score_clients, scored, total
from graphfed.tasks.node_classification import TASK as NODES


def cohort_of(y: np.ndarray, num_classes: int, clients: int = 4) -> Cohort:
    """Test nodes with the labels `y`, and as many validation nodes with the same labels."""
    n = len(y)
    both = np.concatenate([y, y])
    graph = make_graph("g", np.ones((2 * n, 1), np.float32), both, [], num_classes=num_classes)
    none, test = np.zeros(2 * n, bool), np.arange(2 * n) < n
    client = np.tile(np.sort(np.arange(n) % clients), 2)
    assigned = from_assignment(graph, client, num_clients=clients)
    return make_cohort(graph, Split("test", none, ~test, test), assigned, range(clients))


def evaluated(y: np.ndarray, logits: np.ndarray, form: str = "plaintext") -> Scored:
    """The final test scores of a whole evaluation: the positive class is chosen by the validation nodes."""
    cohort = cohort_of(y, logits.shape[1])
    z = torch.from_numpy(logits)[cohort.id[cohort.rows("test")]]
    fed = Federation([range(cohort.num_clients)], simulated=True)
    config = FEDAVG.configure(protection("aggregation", form))
    data, located = fed.locate("clients", "data", [cohort]), fed.locate("clients", "logits", [z])
    task = Task(1, logits.shape[1], CLASSIFICATION)
    prepared = NODES.prepare(fed, data, task, config)
    _, at_server = NODES.score(fed, data, located, "test", "final_test", prepared, config)
    found: Scored = at_server.parts[0]
    return found


def metrics_from(y: np.ndarray, logits: np.ndarray) -> dict[str, float]:
    return evaluated(y, logits).metrics


def two_classes(nodes: int, share: float, distance: float, scale: float, shift: float, seed: int):
    """Labels, and logits whose log-odds are normal: `scale` wide, around `shift`, higher where positive."""
    rng = np.random.default_rng(seed)
    y = np.zeros(nodes, int)
    y[rng.permutation(nodes)[: round(share * nodes)]] = 1
    log_odds = shift + scale * (rng.normal(size=nodes) + distance * y)
    return y, np.stack([np.zeros(nodes), log_odds], 1)


def recall_at_1_percent(y: np.ndarray, score: np.ndarray) -> float:
    """Of nodes that tie for the last alarms, each is taken with the same probability."""
    alarms = max(1.0, len(y) / 100)
    last = np.sort(score)[::-1][int(np.ceil(alarms)) - 1]
    above, tied = score > last, score == last
    taken = (alarms - above.sum()) / tied.sum()
    return float((y[above].sum() + taken * y[tied].sum()) / y.sum())


#: Changes of log-odds that are normal, with a deviation of one.
SHAPES = {
    "as drawn": lambda x: x,
    "far apart": lambda x: 60 * x,
    "beyond every bound": lambda x: 1e4 * x + 500,
    "within a few hundredths": lambda x: -4.6 + x / 100,
    "within a millionth": lambda x: 1 + 2e-7 * x,
    "with ties": lambda x: np.round(x, 1),
    "all alike": lambda x: 0 * x,
    "in two groups far apart": lambda x: np.where(x > 1, 200, -200) + x / 1000,
}


@pytest.mark.parametrize("form", ["plaintext", "simulated"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("nodes", "share"), [(300, 0.02), (5000, 0.01), (5000, 0.3)])
def test_of_two_classes_area_and_precision_are_those_of_scikit_learn(
    nodes: int, share: float, shape: str, form: str
) -> None:
    """Within 0.002; and the error that the evaluation states bounds the error that it makes."""
    y, logits = two_classes(nodes, share, 1.5, 1.0, 0.0, 0)
    logits[:, 1] = SHAPES[shape](logits[:, 1])
    scored, score = evaluated(y, logits, form), logits[:, 1].astype(np.float32)
    expected = {
        "auc": metrics.roc_auc_score(y, score),
        "average_precision": metrics.average_precision_score(y, score),
    }
    for name, value in expected.items():
        assert scored.metrics[name] == pytest.approx(value, abs=0.002)
        assert abs(scored.metrics[name] - value) <= scored.report["rank_error"] + 1e-9
    recall = recall_at_1_percent(y, score)
    assert scored.metrics["recall_at_1_percent"] == pytest.approx(recall, abs=0.004)


@pytest.mark.parametrize("positive", [0, 1])
def test_for_either_positive_class_the_metrics_are_those_of_scikit_learn(positive: int) -> None:
    y = np.array([0, 1, 0, 0, 1, 0, 1, 0, 0, 0])
    y = y if positive else 1 - y
    score = np.linspace(-8, 8, len(y))
    found = metrics_from(y, np.stack([np.zeros(len(y)), score], 1))
    truth, ranked = y == positive, score if positive else -score
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(truth, ranked), abs=1e-12)
    assert found["average_precision"] == pytest.approx(
        metrics.average_precision_score(truth, ranked), abs=0.002
    )
    assert found["recall_at_1_percent"] == pytest.approx(recall_at_1_percent(truth, ranked), abs=1e-12)


@pytest.mark.parametrize("spread", [0.01, 1.0, 40.0])
@pytest.mark.parametrize("classes", [3, 10, 50])
def test_of_many_classes_the_means_over_classes_are_those_of_scikit_learn(
    classes: int, spread: float
) -> None:
    """Of the log-odds: probabilities in float64 are all 1 for log-odds above 37."""
    rng = np.random.default_rng(classes)
    y = rng.integers(0, classes, 3000)
    logits = spread * (rng.normal(size=(3000, classes)) + 1.5 * np.eye(classes)[y])
    found = metrics_from(y, logits)
    others = [logsumexp(np.delete(logits, c, axis=1), axis=1) for c in range(classes)]
    odds = (logits - np.stack(others, 1)).astype(np.float32)
    for name, value in (
        ("auc", metrics.roc_auc_score(np.eye(classes)[y], odds, average="macro")),
        ("average_precision", metrics.average_precision_score(np.eye(classes)[y], odds, average="macro")),
    ):
        assert found[name] == pytest.approx(value, abs=0.002)
    assert "recall_at_1_percent" not in found
    guess = logits.argmax(1)
    assert found["balanced_accuracy"] == pytest.approx(metrics.balanced_accuracy_score(y, guess), abs=1e-12)
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(y, guess), abs=1e-12)


@pytest.mark.parametrize("metric", ["auc", "average_precision", "recall_at_1_percent"])
def test_a_client_that_selects_its_own_rounds_ranks_its_nodes_exactly(metric: str) -> None:
    y, logits = two_classes(400, 0.3, 1.0, 300.0, 0.0, 1)
    logits[::7, 1] = 4.0  # ties
    cohort = cohort_of(y, 2)
    z = torch.from_numpy(logits)[cohort.id[cohort.rows("test")]]
    found = score_clients(cohort, z, "test", Selection(metric, 1))["decides"]
    by_hand = {
        "auc": metrics.roc_auc_score,
        "average_precision": metrics.average_precision_score,
        "recall_at_1_percent": recall_at_1_percent,
    }[metric]
    client = cohort.client[cohort.rows("test")].numpy()
    node = cohort.id[cohort.rows("test")].numpy()
    for k in range(cohort.num_clients):
        here = node[client == k]
        assert float(found[k]) == pytest.approx(
            by_hand(y[here], logits[here, 1].astype(np.float32)), abs=1e-9
        )


@pytest.mark.parametrize("odd", [0.0, 1e3, -1e3, 1e300])
def test_extreme_logits_are_ranked_too(odd: float) -> None:
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
    found = scored(total(score_clients(cohort, z, "test", None)), Selection("accuracy", 1), None).report
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
