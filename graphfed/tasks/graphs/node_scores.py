"""Evaluation of node classification: sums over clients, from which the server computes every metric.

Each client sends how many of its nodes of each class are predicted as which class, their summed loss, and,
where a metric needs the order of the scores, a histogram of them. The score of a node for a class c is its
log-odds log p_c - log(1 - p_c) (of two classes only those of class 1, because those of class 0 are their
negative). The bins of the histogram are equal steps of asinh(log-odds), so that they are narrow near 0 and
reach from -100 to 100; their number (`bins_of`) depends on the number of classes, so that one client's
histogram takes 16 kB for two classes, 32 kB for 3 to 32 and 1 kB a class for more.

ROC AUC and average precision are one-vs-rest, macro-averaged over the classes that occur; of two classes they
are those of the positive class, the rarer one among all clients' validation nodes. Nodes in one bin count as
tied: AUC counts their pairs half, average precision takes the precision in the middle of the bin, and recall
at 1 % alarms takes a share of the bin. So each metric is exact up to the pairs that share a bin; what remains
is measured in tests/tasks/test_node_scores.py.

Shapes: K clients, C classes, G = 1 score for two classes and C otherwise, B bins."""

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
    "val_classes": "With aggregation=plaintext, once: how many of a client's validation nodes are of each "
    "class, which val_scores says too. The server reads each client's counts.",
    "selection": "Once, from the server: the metric that rounds are selected by, and which of two classes is "
    "the positive one. Public.",
    "val_scores": "With aggregation=plaintext, in every evaluated round: how many of a client's validation "
    "nodes of each class are predicted as which class, and their summed loss; where rounds are selected "
    "by the order of scores, also how many nodes of each class have a score in which bin. The server "
    "reads each client's table.",
    "final_val_scores": "With aggregation=plaintext: the table of val_scores with the bins of scores, for "
    "the chosen model, once.",
    "final_test_scores": "With aggregation=plaintext, once: how many of a client's test nodes of each class "
    "are predicted as which class, their summed loss, and how many of each class have a score in which bin. "
    "The server reads each client's table.",
}

#: What a node counts for in scores. A node that several clients own counts once, each one's prediction
#: for an equal share: with up to 16 owners that is a whole number of these units, so sums are exact.
SCORE_UNITS = OWNER_UNITS
#: One class is dominant where more than this share of the nodes belong to it.
DOMINANT = 0.8
#: The metrics that need the histogram of scores.
RANKED = ("auc", "average_precision", "recall_at_1_percent")
#: Log-odds beyond these are in the first or the last bin.
LARGEST_LOG_ODDS = 100.0
#: The share of the nodes, those with the highest scores, that raise an alarm.
ALARMS = 0.01


@dataclass(frozen=True)
class Selection:
    """What all clients agree on before training: the metric that rounds are selected by, and the positive
    class of two (1 for more classes, where nothing depends on it)."""

    metric: str
    positive: int


@dataclass(frozen=True)
class _Prepared:
    """What every scoring needs: the selection, and how many classes there are."""

    selection: Selection
    num_classes: int


def bins_of(num_classes: int) -> int:
    """The number of bins B of each histogram: fewer for more classes, so that a message stays small."""
    return 1024 if num_classes == 2 else max(64, 2048 // num_classes)


# ---- functions run at the clients --------------------------------------------------------------------------


def score_clients(
    cohort: Cohort, logits: Tensor, target: str, selection: Selection | None = None, ranked: bool = False
) -> dict[str, Tensor]:
    """Score every client's predictions of a part.

    Args:
        cohort: the clients' data.
        logits: [n, C], of the rows of `target`.
        target: "val" or "test".
        selection: the metric that clients select their own rounds by; None where they do not select.
        ranked: whether to add every client's histogram of scores.

    Returns:
        confusion [K, C, C + 1] (class, prediction), in SCORE_UNITS, whose last column counts rows whose
        logits are not all finite (training has diverged, and they predict nothing); loss [K], summed;
        with `ranked` histogram [K, G, 2, B], in SCORE_UNITS; with `selection` decides [K], every client's
        own value of the metric that decides, nan where it has none.
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
    """How many rows have their score in which bin: [K, G, 2, B] (class score, rest or class, bin), in
    SCORE_UNITS; without `per_client` the sum over the cohort's clients, [G, 2, B]. Rows whose logits are not
    all finite have no score."""
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
            log_odds, own = z[:, 1] - z[:, 0], y
        else:
            # log p_c - log(1 - p_c)
            log_odds = log_p[:, group] - torch.log(-torch.expm1(log_p[:, group]))
            own = (y == group).long()
        index = ((client * groups + group) * 2 + own) * bins + _bin(log_odds, bins)
        counts.index_add_(0, index, parts)
    counts = counts.view(clients, groups, 2, bins)
    return counts if per_client else counts[0]


def _bin(log_odds: Tensor, bins: int) -> Tensor:
    """The bin of each score, [n] int64: equal steps of asinh(log-odds)."""
    half = math.asinh(LARGEST_LOG_ODDS)
    place = (torch.asinh(log_odds.clamp(-LARGEST_LOG_ODDS, LARGEST_LOG_ODDS)) + half) / (2 * half)
    return (place * bins).long().clamp(max=bins - 1)


def count_classes(cohort: Cohort, target: str) -> Tensor:
    """Every client's nodes of each class in a part, [K, C] int64, in SCORE_UNITS."""
    rows = cohort.rows(target)
    cells = cohort.client[rows] * cohort.num_classes + cohort.y[rows]
    counts = torch.zeros(cohort.num_clients * cohort.num_classes, dtype=torch.int64, device=rows.device)
    return counts.index_add_(0, cells, SCORE_UNITS // cohort.owners[rows]).view(cohort.num_clients, -1)


def in_nodes(counts: Tensor) -> dict[str, Tensor]:
    """Every client's counts as numbers that a hidden sum takes."""
    return {"counts": counts.double() / SCORE_UNITS}


def total(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """The cohort's sum over its clients."""
    return {k: v.sum(0) for k, v in scores.items() if k != "decides"}


def total_scores(
    scores: dict[str, Tensor], cohort: Cohort, logits: Tensor, target: str, histogram: bool
) -> dict[str, Tensor]:
    """The cohort's sum over its clients; histogram: with one of all scores, which `scores` lack."""
    if not histogram:
        return total(scores)
    return {**total(scores), "histogram": _histogram(cohort, logits, target, per_client=False)}


def every_score(
    scores: dict[str, Tensor], cohort: Cohort, logits: Tensor, target: str, histogram: bool
) -> dict[str, Tensor]:
    """`parts_to_sum` of every client's scores; histogram: with one of each client, which `scores` lack."""
    if histogram:
        scores = {**scores, "histogram": _histogram(cohort, logits, target, per_client=True)}
    return parts_to_sum(scores)


def parts_to_sum(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every client's scores as numbers that can be summed: counts in nodes, [K, C, C + 1], [K, G, 2, B]
    and [K] float64. A loss that is not finite is none; its nodes count as lost."""
    loss = scores["loss"]
    counts = {k: v.double() / SCORE_UNITS for k, v in scores.items() if k in ("confusion", "histogram")}
    return {**counts, "loss": loss.where(loss.isfinite(), 0.0)}


def better_clients(scores: dict[str, Tensor], best: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which clients beat their own best validation metric, [K] bool, and what it was, [K].

    A client whose validation nodes do not define the metric (it has none, or none of the positive class)
    always takes the newest round, so it ends with the last."""
    value = scores["decides"]
    if best is None:
        return torch.ones_like(value, dtype=torch.bool), value
    better = (value > best) | value.isnan() | best.isnan()
    return better, torch.where(better, value, best)


def owned_rows(cohort: Cohort, logits: Tensor) -> tuple[Tensor, Tensor]:
    return cohort.rows("all"), logits


def rows_of_target(cohort: Cohort, predictions: tuple[Tensor, Tensor], target: str) -> Tensor:
    """The logits of a target's rows out of those of every owned row."""
    rows, logits = predictions
    place = torch.zeros(cohort.num_rows, dtype=torch.int64, device=rows.device)
    place[rows] = torch.arange(len(rows), device=rows.device)
    return logits[place[cohort.rows(target)]]


# ---- metrics of sums ---------------------------------------------------------------------------------------


def metrics_of(sums: Mapping[str, Tensor], positive: int = 1) -> dict[str, float]:
    """The metrics of a sum over clients; nan where there is nothing to compute one from.

    Args:
        sums: confusion [C, C + 1] and, where there is one, histogram [G, 2, B], in SCORE_UNITS; loss [].
        positive: the positive class of two.

    Returns:
        accuracy, macro_f1 (over the classes that occur or are predicted), balanced_accuracy (the mean recall
        of the classes that occur) and the mean cross-entropy `loss`; with a histogram also auc and
        average_precision, and of two classes recall_at_1_percent.
    """
    return {name: float(value) for name, value in _metrics(sums, positive).items()}


def _metrics(sums: Mapping[str, Tensor], positive: int) -> dict[str, Tensor]:
    """`metrics_of`, of each client [K] or of one sum []."""
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
    """histogram [..., G, 2, B] in nodes; positive: the positive class of two, None for more."""
    if positive == 0:
        histogram = histogram.flip(-1).flip(-2)
    # Highest scores first.
    others, own = histogram.flip(-1).unbind(-2)
    known = (own.sum(-1) > 0) & (others.sum(-1) > 0)
    metrics = {
        "auc": _mean_where(_auc(own, others), known),
        "average_precision": _mean_where(_average_precision(own, others), known),
    }
    if positive is not None:
        metrics["recall_at_1_percent"] = _mean_where(_recall_at(own, others, ALARMS), own.sum(-1) > 0)
    return metrics


def _auc(own: Tensor, others: Tensor) -> Tensor:
    """How often a node of the class has a higher score than one of the rest, ties counted half. own, others
    [..., B]: counts in the bins, highest first."""
    below = others.sum(-1, keepdim=True) - others.cumsum(-1)
    return (own * (below + others / 2)).sum(-1) / (own.sum(-1) * others.sum(-1))


def _average_precision(own: Tensor, others: Tensor) -> Tensor:
    """The mean over the nodes of the class of the precision at their score. Those of one bin are taken at
    its middle: after (own + 1) / 2 of its nodes of the class and half of the others."""
    found = own.cumsum(-1) - own + (own + 1) / 2
    alarms = found + others.cumsum(-1) - others / 2
    return (own * found / alarms).sum(-1) / own.sum(-1)


def _recall_at(own: Tensor, others: Tensor, share: float) -> Tensor:
    """The share of the class among the `share` of all nodes (at least one node) with the highest scores; of
    the bin in which they end, in proportion."""
    size = own + others
    alarms = (share * size.sum(-1, keepdim=True)).clamp(min=1.0)
    taken = ((alarms - size.cumsum(-1) + size) / size).nan_to_num(0.0).clamp(0.0, 1.0)
    return (own * taken).sum(-1) / own.sum(-1)


def _mean_where(values: Tensor, known: Tensor) -> Tensor:
    """The mean over the last dimension of the values that are known; nan where none is."""
    return values.where(known, 0.0).sum(-1) / known.sum(-1)


# ---- functions run at the server ---------------------------------------------------------------------------


def choose_selection(counts: Tensor, select: str) -> Selection:
    """The metric that rounds are selected by, and the positive class, from the class counts [C] of all
    clients' validation nodes.

    ``select=auto`` is accuracy; where more than DOMINANT of the nodes are of one class it is average
    precision (two classes, both of which occur) or balanced accuracy (more)."""
    positive = 0 if len(counts) == 2 and counts[0] < counts[1] else 1
    if select != "auto":
        return Selection(select, positive)
    if not is_dominated(counts) or int((counts > 0).sum()) < 2:
        return Selection("accuracy", positive)
    return Selection("average_precision" if len(counts) == 2 else "balanced_accuracy", positive)


def is_dominated(counts: Tensor) -> bool:
    """Whether more than DOMINANT of the nodes are of one class; counts [C]."""
    return bool(counts.max() > DOMINANT * counts.sum())


def headline_of(counts: Tensor) -> tuple[str, ...]:
    """The metrics that say most about predictions of nodes with these class counts [C], the first of them
    first."""
    if not is_dominated(counts):
        return ("accuracy", "macro_f1")
    two = ("average_precision", "auc", "recall_at_1_percent")
    return two if len(counts) == 2 else ("balanced_accuracy", "macro_f1")


def agreed_selection(counts: Tensor, select: str) -> JsonObject:
    """The control values of a selection."""
    selection = choose_selection(counts, select)
    return {"metric": selection.metric, "positive": selection.positive}


def summed_counts(sums: Mapping[str, Tensor]) -> Tensor:
    """Counts in SCORE_UNITS of a hidden sum of `in_nodes`."""
    return (sums["counts"] * SCORE_UNITS).round().long()


def counts_of(confusion: Tensor) -> list[list[float]]:
    """Confusion counts in nodes: whole numbers where no node counts in parts."""
    return [
        [units // SCORE_UNITS if units % SCORE_UNITS == 0 else units / SCORE_UNITS for units in row]
        for row in confusion.tolist()
    ]


def no_counts(num_classes: int) -> dict[str, Tensor]:
    """The form of one client's `in_nodes`."""
    return {"counts": torch.zeros(num_classes)}


def no_scores(num_classes: int, ranked: bool) -> dict[str, Tensor]:
    """The form of one client's `parts_to_sum`."""
    like = {"confusion": torch.zeros(num_classes, num_classes + 1), "loss": torch.zeros(())}
    if ranked:
        groups = 1 if num_classes == 2 else num_classes
        like["histogram"] = torch.zeros(groups, 2, bins_of(num_classes))
    return like


def opened_scores(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A sum of `parts_to_sum` as `total` has it."""
    counts = {k: (v * SCORE_UNITS).round().long() for k, v in sums.items() if k != "loss"}
    return {**counts, "loss": sums["loss"]}


def scored(sums: Mapping[str, Tensor], selection: Selection) -> Scored:
    """The metrics, and what a report shows: counts in nodes [C, C + 1] (class, prediction, none),
    precision and recall of each class, which metrics say most, and by which rounds were selected."""
    confusion = sums["confusion"]
    shown: JsonObject = {
        "test_confusion": counts_of(confusion),
        "test_classes": _classes(confusion),
        "headline": list(headline_of(confusion.sum(1))),
        "selected_by": selection.metric,
    }
    if len(confusion) == 2:
        shown["positive_class"] = selection.positive
    metrics = metrics_of(sums, selection.positive)
    if selection.metric in metrics:  # first, for whoever shows one
        metrics = {selection.metric: metrics[selection.metric], **metrics}
    count = float(confusion.sum()) / SCORE_UNITS
    return Scored(metrics, bool(confusion[:, -1].any()), shown, count)


def _classes(confusion: Tensor) -> list[dict[str, float | None]]:
    """Precision and recall of each class; None for a class that is never predicted, or does not occur."""
    counts = confusion.double()
    hit = counts.diagonal()
    rows = zip((hit / counts[:, :-1].sum(0)).tolist(), (hit / counts.sum(1)).tolist(), strict=True)
    return [
        {"precision": None if math.isnan(p) else p, "recall": None if math.isnan(r) else r} for p, r in rows
    ]


def accept_scores(target: str, sums: Mapping[str, Tensor], declared: Mapping[str, np.ndarray]) -> str:
    """Why the scores of another process cannot be used (see `transfer.Accept`): `total` of its clients, on
    the nodes of `target`."""
    confusion, loss = sums["confusion"], sums["loss"]
    if confusion.dtype != torch.int64 or confusion.dim() != 2 or bool((confusion < 0).any()):
        return f"{describe_value(confusion)} where counts of classes are expected"
    most = declared.get(target)
    # Added as floating numbers: a sum of whole ones could pass their largest.
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
    return ""


# ---- the evaluation ----------------------------------------------------------------------------------------

CLASS_COUNTS = SumForm(sum_over_clients, in_nodes, no_counts, summed_counts)
_SCORES = SumForm(total_scores, every_score, no_scores, opened_scores)


def prepare(fed: Federation, data: Located, task: Task, config: GraphSettings) -> _Prepared:
    """Agree on the metric that rounds are selected by, from the class counts of all validation nodes.

    InputError where the data does not have the metric that was asked for."""
    if config.select == "recall_at_1_percent" and task.num_classes != 2:
        raise InputError(
            f"select=recall_at_1_percent needs data of two classes, and there are {task.num_classes}; use "
            "balanced_accuracy or average_precision"
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
    """Every client's scores at the clients, and the metrics of their sum at the server.

    The histogram of scores is sent with the final scores, and in every evaluation where rounds are selected
    by a metric that needs it."""
    selection = prepared.selection
    by_rank = selection.metric in RANKED
    ranked = by_rank or name.startswith("final_")
    scores = fed.clients.run(score_clients, data, logits, target, selection, by_rank)
    sums = protected_sum(
        fed,
        _SCORES,
        *(scores, data, logits, target, ranked and not by_rank),
        protection=sum_protection(config),
        name=f"{name}_scores",
        hidden_name=HIDDEN_SCORES,
        like=(prepared.num_classes, ranked),
        # The loss of a client whose training has diverged is not finite, and others' training may go on.
        finite=False,
        accept=partial(accept_scores, target),
    )
    return scores, fed.server.run(scored, sums, selection)


def decides(config: GraphSettings, prepared: _Prepared) -> str:
    """The metric that rounds are selected by."""
    return prepared.selection.metric


NODES = Evaluation(decides, MESSAGES, prepare, score, owned_rows, rows_of_target, better_clients)
