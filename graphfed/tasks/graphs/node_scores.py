"""Evaluation of node classification, by sums over clients from which the server computes every metric.

Each client sends the number of its nodes per class and predicted class and their summed loss. If a metric
needs the order of the scores, it also sends a histogram of them. The score of a node for class c is the
log-odds log p_c - log(1 - p_c). For two classes only the score for class 1 is used, because that for class 0
is its negative. The bins of the histogram are equal steps of asinh(log-odds), so they are narrow around 0 and
cover -100 to 100. The number of bins (`bins_of`) depends on the number of classes: one client's histogram
takes 16 kB for two classes, 32 kB for 3 to 32 classes and 1 kB per class for more.

ROC AUC and average precision are one-vs-rest and macro-averaged over the classes that occur. For two classes
they are those of the positive class, the rarer class among all clients' validation nodes. Nodes in the same
bin count as tied: AUC counts their pairs one half, average precision takes the precision in the middle of the
bin, and recall at 1 % alarms takes a fraction of the bin. So each metric is exact up to the pairs in the same
bin; tests/tasks/test_node_scores.py measures the remaining error.

Shapes: K clients, C classes, G = 1 score for two classes and C otherwise, B bins.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import OWNER_UNITS, Cohort
from graphfed.federation.functions import sum_over_clients
from graphfed.federation.secure.aggregation import SumForm, check_sums, protected_sum
from graphfed.federation.transfer import describe_value
from graphfed.files import JsonObject
from graphfed.methods.base import Task
from graphfed.methods.config import GraphSettings, clients_in_round, sum_protection
from graphfed.tasks.evaluation import HIDDEN_SCORES, Evaluation, Scored
from graphfed.tasks.graphs.client_accuracy import (
    accept_sums,
    accuracy_parts,
    accuracy_sums,
    client_metrics,
    own_accuracy,
)

__all__ = [
    "CLASS_COUNTS",
    "DOMINANT",
    "MESSAGES",
    "NODES",
    "RANKED",
    "SCORE_UNITS",
    "Selection",
    "bins_of",
    "choose_selection",
    "headline_of",
    "metrics_of",
    "owned_rows",
    "score_clients",
    "total",
]

MESSAGES = {
    "val_classes": "With aggregation=plaintext, once: each client sends the server the number of its "
    "validation nodes of each class. The server reads each client's counts, which val_scores also contains.",
    "selection": "Once: the server sends all clients the metric that selects rounds, and which of two "
    "classes is the positive one. Both are public.",
    "val_scores": "With aggregation=plaintext, in every evaluated round: each client sends the server the "
    "number of its validation nodes per class and predicted class, and their summed loss. If rounds are "
    "selected by the order of scores, it also sends the number of nodes of each class with a score in each "
    "bin. The server reads each client's numbers.",
    "final_val_scores": "With aggregation=plaintext, once: each client sends the content of val_scores, with "
    "the bins of scores and its accuracy, for the selected model.",
    "final_test_scores": "With aggregation=plaintext, once: each client sends the server the number of its "
    "test nodes per class and predicted class, their summed loss, the number of nodes of each class with "
    "a score in each bin, and its accuracy. The server reads each client's numbers.",
}

#: The weight of a node in scores, in integer units. If several clients own a node, each owner's prediction
#: has an equal part of this weight. For up to 16 owners the part is a whole number of units, so sums are
#: exact.
SCORE_UNITS = OWNER_UNITS
#: A class is dominant if more than this fraction of the nodes belong to it.
DOMINANT = 0.8
#: The metrics that need the histogram of scores.
RANKED = ("auc", "average_precision", "recall_at_1_percent")
#: The bounds of the histogram: log-odds with a larger magnitude are in the first or the last bin.
LARGEST_LOG_ODDS = 100.0
#: The fraction of the nodes, those with the highest scores, that raise an alarm.
ALARMS = 0.01


@dataclass(frozen=True)
class Selection:
    """The agreement of all clients before training on how rounds are selected.

    Attributes:
        metric: The metric that selects rounds.
        positive: The positive class of two classes; 1 for more classes, where it is not used.
    """

    metric: str
    positive: int


@dataclass(frozen=True)
class _Prepared:
    """The values that every scoring needs: the selection and the number of classes."""

    selection: Selection
    num_classes: int


def bins_of(num_classes: int) -> int:
    """Return the number of bins of a histogram. It falls with the number of classes, so messages stay small.

    Args:
        num_classes: C.

    Returns:
        B.
    """
    return 1024 if num_classes == 2 else max(64, 2048 // num_classes)


# ---- functions run at the clients --------------------------------------------------------------------------


def score_clients(
    cohort: Cohort, logits: Tensor, target: str, selection: Selection | None = None, ranked: bool = False
) -> dict[str, Tensor]:
    """Score every client's predictions of a part.

    Args:
        cohort: The clients' data.
        logits: The logits of the rows of `target`, [n, C].
        target: "val" or "test".
        selection: The metric by which clients select their own rounds; None if they do not.
        ranked: Whether to add every client's histogram of scores.

    Returns:
        These sums for every client:

        - confusion: the number of nodes per class and prediction, [K, C, C + 1], in SCORE_UNITS. The last
          column counts rows whose logits are not all finite, because training has diverged.
        - loss: the summed cross-entropy, [K].
        - histogram (with `ranked`): [K, G, 2, B], in SCORE_UNITS.
        - decides (with `selection`): the client's value of the selecting metric, [K]; nan if it is undefined.
    """
    rows = cohort.rows(target)
    y, client, c = cohort.y[rows], cohort.client[rows], cohort.num_classes
    predicted = torch.where(logits.isfinite().all(1), logits.argmax(1), c)
    cells = (client * c + y) * (c + 1) + predicted
    parts = SCORE_UNITS // cohort.owners[rows]
    confusion = torch.zeros(cohort.num_clients * c * (c + 1), dtype=torch.int64, device=y.device)
    confusion = confusion.index_add_(0, cells, parts).view(-1, c, c + 1)
    loss = torch.zeros(cohort.num_clients, dtype=torch.float64, device=y.device)
    losses = cross_entropy(logits.double(), y, reduction="none") * parts / SCORE_UNITS
    scores = {"confusion": confusion, "loss": loss.index_add_(0, client, losses)}
    if ranked:
        scores["histogram"] = _histogram(cohort, logits, target, per_client=True)
    if selection is not None:
        scores["decides"] = _metrics(scores, selection.positive)[selection.metric]
    return scores


def _histogram(cohort: Cohort, logits: Tensor, target: str, *, per_client: bool) -> Tensor:
    """Count the rows with a score in each bin, [K, G, 2, B] (score, rest or class, bin), in SCORE_UNITS.

    Without `per_client` the result is the sum over the cohort's clients, [G, 2, B]. Rows whose logits are not
    all finite are not counted.
    """
    rows = cohort.rows(target)
    finite = logits.isfinite().all(1)
    z, rows = logits[finite].double(), rows[finite]
    y, parts, c = cohort.y[rows], SCORE_UNITS // cohort.owners[rows], cohort.num_classes
    client = cohort.client[rows] if per_client else torch.zeros_like(rows)
    clients, groups, bins = cohort.num_clients if per_client else 1, 1 if c == 2 else c, bins_of(c)
    counts = torch.zeros(clients * groups * 2 * bins, dtype=torch.int64, device=y.device)
    log_p = z.log_softmax(1) if c != 2 else z
    for group in range(groups):
        if c == 2:
            log_odds, in_class = z[:, 1] - z[:, 0], y
        else:
            # log p_c - log(1 - p_c); expm1 keeps 1 - p_c accurate for p_c close to 0.
            log_odds = log_p[:, group] - torch.log(-torch.expm1(log_p[:, group]))
            in_class = (y == group).long()
        index = ((client * groups + group) * 2 + in_class) * bins + _bin(log_odds, bins)
        counts.index_add_(0, index, parts)
    counts = counts.view(clients, groups, 2, bins)
    return counts if per_client else counts[0]


def _bin(log_odds: Tensor, bins: int) -> Tensor:
    """Compute the bin of each score, [n] int64, in equal steps of asinh(log-odds)."""
    half = math.asinh(LARGEST_LOG_ODDS)
    position = (torch.asinh(log_odds.clamp(-LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)) + half) / (2 * half)
    return (position * bins).long().clamp(max=bins - 1)


def count_classes(cohort: Cohort, target: str) -> Tensor:
    """Count every client's nodes of each class in a part of the split, [K, C] int64, in SCORE_UNITS."""
    rows = cohort.rows(target)
    cells = cohort.client[rows] * cohort.num_classes + cohort.y[rows]
    counts = torch.zeros(cohort.num_clients * cohort.num_classes, dtype=torch.int64, device=rows.device)
    return counts.index_add_(0, cells, SCORE_UNITS // cohort.owners[rows]).view(cohort.num_clients, -1)


def in_nodes(counts: Tensor) -> dict[str, Tensor]:
    """Convert every client's counts to numbers that a hidden sum accepts."""
    return {"counts": counts.double() / SCORE_UNITS}


def total(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sum scores over the clients of a cohort.

    Args:
        scores: The result of `score_clients`.

    Returns:
        The sums, without `decides`.
    """
    return {k: v.sum(0) for k, v in scores.items() if k != "decides"}


def total_scores(
    scores: dict[str, Tensor], cohort: Cohort, logits: Tensor, target: str, histogram: bool, final: bool
) -> dict[str, Tensor]:
    """Sum scores over the clients of a cohort. `histogram` adds the histogram, which `scores` do not have,
    and `final` what `client_accuracy` needs.
    """
    sums = total(scores)
    if histogram:
        sums["histogram"] = _histogram(cohort, logits, target, per_client=False)
    return {**sums, **accuracy_sums(own_accuracy(cohort, logits, target))} if final else sums


def every_score(
    scores: dict[str, Tensor], cohort: Cohort, logits: Tensor, target: str, histogram: bool, final: bool
) -> dict[str, Tensor]:
    """Return `parts_to_sum` of every client. `histogram` and `final` add what `total_scores` adds."""
    if histogram:
        scores = {**scores, "histogram": _histogram(cohort, logits, target, per_client=True)}
    parts = parts_to_sum(scores)
    return {**parts, **accuracy_parts(own_accuracy(cohort, logits, target))} if final else parts


def parts_to_sum(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert every client's scores to numbers that a hidden sum accepts.

    Counts are in nodes, [K, C, C + 1] and [K, G, 2, B], and losses [K], all in float64. A loss that is not
    finite becomes 0; the last column of the confusion counts shows that predictions were lost.
    """
    loss = scores["loss"]
    counts = {k: v.double() / SCORE_UNITS for k, v in scores.items() if k in ("confusion", "histogram")}
    return {**counts, "loss": loss.where(loss.isfinite(), 0.0)}


def better_clients(scores: dict[str, Tensor], best: Tensor | None) -> tuple[Tensor, Tensor]:
    """Decide which clients improve on their best validation metric, bool [K], and update it, [K].

    The metric is undefined for a client without validation nodes, or without nodes of the positive class.
    Such a client always takes the newest round, so its final model is that of the last round.
    """
    value = scores["decides"]
    if best is None:
        return torch.ones_like(value, dtype=torch.bool), value
    better = (value > best) | value.isnan() | best.isnan()
    return better, torch.where(better, value, best)


def owned_rows(cohort: Cohort, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of all owned nodes with their logits.

    Args:
        cohort: The clients' data.
        logits: The logits for the target "all", [n, C].

    Returns:
        The rows, [n], and the logits, [n, C].
    """
    return cohort.rows("all"), logits


def rows_of_target(cohort: Cohort, predictions: tuple[Tensor, Tensor], target: str) -> Tensor:
    """Select the logits of a target's rows from those of all owned rows."""
    rows, logits = predictions
    position = torch.zeros(cohort.num_rows, dtype=torch.int64, device=rows.device)
    position[rows] = torch.arange(len(rows), device=rows.device)
    return logits[position[cohort.rows(target)]]


# ---- metrics of sums ---------------------------------------------------------------------------------------


def metrics_of(sums: Mapping[str, Tensor], positive: int = 1) -> dict[str, float]:
    """Compute the metrics of a sum over clients.

    Args:
        sums: Confusion [C, C + 1] and loss [] and, optionally, histogram [G, 2, B]; counts are in
            SCORE_UNITS.
        positive: The positive class of two.

    Returns:
        The metrics by name, nan if undefined: accuracy, macro_f1 (over the classes that occur or are
        predicted), balanced_accuracy (the mean recall of the classes that occur) and the mean cross-entropy
        `loss`. With a histogram also auc and average_precision and, for two classes, recall_at_1_percent.
        With the sums of `client_accuracy` also its metrics.
    """
    metrics = {name: float(value) for name, value in _metrics(sums, positive).items()}
    return {**metrics, **client_metrics(sums)} if "client_bins" in sums else metrics


def _metrics(sums: Mapping[str, Tensor], positive: int) -> dict[str, Tensor]:
    """Compute the metrics of `metrics_of` for each client, [K], or for one sum, []."""
    confusion = sums["confusion"].double() / SCORE_UNITS
    count = confusion.sum((-2, -1))
    hit = confusion.diagonal(dim1=-2, dim2=-1)
    true, predicted = confusion.sum(-1), confusion[..., :-1].sum(-2)
    metrics = {
        "accuracy": hit.sum(-1) / count,
        "macro_f1": _mean_where(2 * hit / (true + predicted), true + predicted > 0),
        "balanced_accuracy": _mean_where(hit / true, true > 0),
    }
    if "histogram" in sums:
        two = confusion.shape[-2] == 2
        metrics |= _ranked_metrics(sums["histogram"].double() / SCORE_UNITS, positive if two else None)
    return {**metrics, "loss": sums["loss"] / count}


def _ranked_metrics(histogram: Tensor, positive: int | None) -> dict[str, Tensor]:
    """Compute the metrics of a histogram [..., G, 2, B] in nodes. `positive` is None for over two classes."""
    if positive == 0:
        # The scores for class 0 are the negative of those for class 1.
        histogram = histogram.flip(-1).flip(-2)
    # The highest scores come first.
    negatives, positives = histogram.flip(-1).unbind(-2)
    known = (positives.sum(-1) > 0) & (negatives.sum(-1) > 0)
    metrics = {
        "auc": _mean_where(_auc(positives, negatives), known),
        "average_precision": _mean_where(_average_precision(positives, negatives), known),
    }
    if positive is not None:
        recall = _recall_at(positives, negatives, ALARMS)
        metrics["recall_at_1_percent"] = _mean_where(recall, positives.sum(-1) > 0)
    return metrics


def _auc(positives: Tensor, negatives: Tensor) -> Tensor:
    """Compute the probability that a node of the class has a higher score than another; ties count one half.

    The arguments are the numbers of nodes of the class and of the other nodes in each bin, [..., B], with the
    highest scores first.
    """
    below = negatives.sum(-1, keepdim=True) - negatives.cumsum(-1)
    return (positives * (below + negatives / 2)).sum(-1) / (positives.sum(-1) * negatives.sum(-1))


def _average_precision(positives: Tensor, negatives: Tensor) -> Tensor:
    """Average the precision at the score of each node of the class.

    All nodes of a bin are taken to be in its middle, after (positives + 1) / 2 of its nodes of the class and
    half of its other nodes.
    """
    found = positives.cumsum(-1) - positives + (positives + 1) / 2
    alarms = found + negatives.cumsum(-1) - negatives / 2
    return (positives * found / alarms).sum(-1) / positives.sum(-1)


def _recall_at(positives: Tensor, negatives: Tensor, fraction: float) -> Tensor:
    """Compute the recall of the class among the nodes with the highest scores.

    These are the `fraction` of all nodes, at least one node. Their last bin is taken in proportion.
    """
    size = positives + negatives
    alarms = (fraction * size.sum(-1, keepdim=True)).clamp(min=1.0)
    taken = ((alarms - size.cumsum(-1) + size) / size).nan_to_num(0.0).clamp(0.0, 1.0)
    return (positives * taken).sum(-1) / positives.sum(-1)


def _mean_where(values: Tensor, known: Tensor) -> Tensor:
    """Average the known values over the last dimension; nan if none is known."""
    return values.where(known, 0.0).sum(-1) / known.sum(-1)


# ---- functions run at the server ---------------------------------------------------------------------------


def choose_selection(counts: Tensor, select: str) -> Selection:
    """Choose the metric that selects rounds, and the positive class.

    ``select=auto`` means accuracy. If a class is dominant (`DOMINANT`), it means average precision for two
    classes that both occur, and balanced accuracy for more classes.

    Args:
        counts: The numbers of all clients' validation nodes of each class, [C].
        select: The setting `select`.

    Returns:
        The selection.
    """
    positive = 0 if len(counts) == 2 and counts[0] < counts[1] else 1
    if select != "auto":
        return Selection(select, positive)
    if not is_dominated(counts) or int((counts > 0).sum()) < 2:
        return Selection("accuracy", positive)
    return Selection("average_precision" if len(counts) == 2 else "balanced_accuracy", positive)


def is_dominated(counts: Tensor) -> bool:
    """Decide whether one class is dominant (`DOMINANT`), from the class counts [C]."""
    return bool(counts.max() > DOMINANT * counts.sum())


def headline_of(counts: Tensor) -> tuple[str, ...]:
    """List the most informative metrics for nodes with given class counts, the most informative first.

    Args:
        counts: The numbers of nodes of each class, [C].

    Returns:
        The names of the metrics.
    """
    if not is_dominated(counts):
        return ("accuracy", "macro_f1")
    two = ("average_precision", "auc", "recall_at_1_percent")
    return two if len(counts) == 2 else ("balanced_accuracy", "macro_f1")


def agreed_selection(counts: Tensor, select: str) -> JsonObject:
    """Choose a selection and return it as control values."""
    selection = choose_selection(counts, select)
    return {"metric": selection.metric, "positive": selection.positive}


def summed_counts(sums: Mapping[str, Tensor]) -> Tensor:
    """Convert a hidden sum of `in_nodes` to counts in SCORE_UNITS."""
    return (sums["counts"] * SCORE_UNITS).round().long()


def counts_of(confusion: Tensor) -> list[list[float]]:
    """Convert confusion counts to nodes; they are whole numbers unless nodes have several owners."""
    return [
        [units // SCORE_UNITS if units % SCORE_UNITS == 0 else units / SCORE_UNITS for units in row]
        for row in confusion.tolist()
    ]


def no_counts(num_classes: int) -> dict[str, Tensor]:
    """Return the form of one client's `in_nodes`."""
    return {"counts": torch.zeros(num_classes)}


def no_scores(num_classes: int, ranked: bool, final: bool) -> dict[str, Tensor]:
    """Return the form of one client's `every_score`."""
    like = {"confusion": torch.zeros(num_classes, num_classes + 1), "loss": torch.zeros(())}
    if ranked:
        groups = 1 if num_classes == 2 else num_classes
        like["histogram"] = torch.zeros(groups, 2, bins_of(num_classes))
    return {**like, **accuracy_sums(torch.zeros(0))} if final else like


def opened_scores(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a sum of `every_score` to the form that `total_scores` returns."""
    units = {"confusion": SCORE_UNITS, "histogram": SCORE_UNITS, "client_bins": 1}
    return {k: (v * units[k]).round().long() if k in units else v for k, v in sums.items()}


def scored(sums: Mapping[str, Tensor], selection: Selection) -> Scored:
    """Compute the metrics, and details for the report.

    The details are the confusion counts in nodes, [C, C + 1], precision and recall of each class, the most
    informative metrics, and the metric that selected rounds.
    """
    confusion = sums["confusion"]
    report: JsonObject = {
        "test_confusion": counts_of(confusion),
        "test_classes": _classes(confusion),
        "headline": list(headline_of(confusion.sum(1))),
        "selected_by": selection.metric,
    }
    if len(confusion) == 2:
        report["positive_class"] = selection.positive
    metrics = metrics_of(sums, selection.positive)
    if selection.metric in metrics:  # callers that show only one metric show the first
        metrics = {selection.metric: metrics[selection.metric], **metrics}
    count = float(confusion.sum()) / SCORE_UNITS
    return Scored(metrics, bool(confusion[:, -1].any()), report, count)


def _classes(confusion: Tensor) -> list[dict[str, float | None]]:
    """Compute precision and recall of each class; None if a class is never predicted or does not occur."""
    counts = confusion.double()
    hit = counts.diagonal()
    rows = zip((hit / counts[:, :-1].sum(0)).tolist(), (hit / counts.sum(1)).tolist(), strict=True)
    return [
        {"precision": None if math.isnan(p) else p, "recall": None if math.isnan(r) else r} for p, r in rows
    ]


def accept_scores(target: str, sums: Mapping[str, Tensor], declared: Mapping[str, np.ndarray]) -> str:
    """Return why the scores of another process cannot be used, or "" if they can (see `transfer.Accept`).

    The scores are those that `total` returns for the process's clients and the nodes of `target`.
    """
    confusion, loss = sums["confusion"], sums["loss"]
    if confusion.dtype != torch.int64 or confusion.dim() != 2 or bool((confusion < 0).any()):
        return f"{describe_value(confusion)} where counts of classes are expected"
    most = declared.get(target)
    # The sum is in floating point, because the sum of large integers could overflow.
    scored = float(confusion.double().sum()) / SCORE_UNITS
    if most is not None and scored > int(most.sum()):
        return f"scores of {scored:.6g} nodes of {target}, and declared {int(most.sum())} when it joined"
    histogram = sums.get("histogram")
    if histogram is not None:
        if histogram.dtype != torch.int64 or bool((histogram < 0).any()):
            return f"{describe_value(histogram)} where counts of scores are expected"
        binned = float(histogram.double().flatten(1).sum(1).max()) / SCORE_UNITS
        if most is not None and binned > int(most.sum()):
            return f"scores of {binned:.6g} nodes of {target}, and declared {int(most.sum())} when it joined"
    if not bool(loss.isfinite()) and not bool(confusion[:, -1].any()):
        return "a loss that is not finite, with predictions that all are"
    return accept_sums(sums, most)


# ---- the evaluation ----------------------------------------------------------------------------------------

CLASS_COUNTS = SumForm(sum_over_clients, in_nodes, no_counts, summed_counts)
_SCORES = SumForm(total_scores, every_score, no_scores, opened_scores)


def prepare(fed: Federation, data: Located, task: Task, config: GraphSettings) -> _Prepared:
    """Agree on the metric that selects rounds, from the class counts of all validation nodes.

    Raises InputError if the metric of the setting `select` is not defined for the data.
    """
    if config.select == "recall_at_1_percent" and task.num_classes != 2:
        raise InputError(
            f"select=recall_at_1_percent needs data with two classes, and the data has {task.num_classes}; "
            "use balanced_accuracy or average_precision"
        )
    check_sums(fed, sum_protection(config), clients_in_round(config, fed.num_clients))
    counts = protected_sum(
        fed,
        CLASS_COUNTS,
        fed.clients.run(count_classes, data, "val"),
        protection=sum_protection(config),
        name="val_classes",
        hidden_name=HIDDEN_SCORES,
        like=(task.num_classes,),
    )
    agreed = fed.control(agreed_selection, counts, config.select, name="selection")
    return _Prepared(Selection(str(agreed["metric"]), int(agreed["positive"])), task.num_classes)


def score(
    fed: Federation,
    data: Located,
    logits: Located,
    target: str,
    name: str,
    prepared: _Prepared,
    config: GraphSettings,
) -> tuple[Located, Located]:
    """Compute every client's scores at the clients, and the metrics of their sum at the server.

    The histogram of scores is sent with the final scores. It is sent in every evaluation if rounds are
    selected by a metric that needs it. The sums of `client_accuracy` are sent with the final scores.
    """
    selection = prepared.selection
    by_rank, final = selection.metric in RANKED, name.startswith("final_")
    ranked = by_rank or final
    scores = fed.clients.run(score_clients, data, logits, target, selection, by_rank)
    sums = protected_sum(
        fed,
        _SCORES,
        *(scores, data, logits, target, ranked and not by_rank, final),
        protection=sum_protection(config),
        name=f"{name}_scores",
        hidden_name=HIDDEN_SCORES,
        like=(prepared.num_classes, ranked, final),
        # The loss of a client whose training has diverged is not finite; the training of others may go on.
        finite=False,
        accept=partial(accept_scores, target),
    )
    return scores, fed.server.run(scored, sums, selection)


def decides(config: GraphSettings, prepared: _Prepared) -> str:
    """Return the metric that selects rounds."""
    return prepared.selection.metric


NODES = Evaluation(decides, MESSAGES, prepare, score, owned_rows, rows_of_target, better_clients)
