"""Evaluation of node classification, by sums over clients from which the server computes every metric.

Each client sends the number of its nodes per class and predicted class and their summed loss. If a metric
needs the order of the scores, it also sends how many of its nodes have a score in which bin, and once more
wherever the server needs finer bins (`ranking`). The score of a node for class c is the log-odds
log p_c - log(1 - p_c). For two classes only the score of the positive class is used, because that of the
other is its negative. The number of bins (`bins_of`) depends on the number of classes: one client's counts
take 16 kB for two classes, 32 kB for 3 to 32 classes and 1 kB per class for more.

ROC AUC and average precision are one-vs-rest and macro-averaged over the classes that occur. For two classes
they are those of the positive class, the rarer class among all clients' validation nodes. The clients of a
method that selects their own rounds compute these metrics exactly, from their own scores.

Shapes: K clients, C classes, G = 1 score for two classes and C otherwise, B bins.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.federation.cohort import OWNER_UNITS, Cohort
from graphfed.federation.functions import sum_over_clients
from graphfed.federation.secure.aggregation import SumForm, decode_whole, encode_whole
from graphfed.federation.transfer import describe_value
from graphfed.files import JsonObject
from graphfed.tasks.evaluation import Scored
from graphfed.tasks.graphs import ranking
from graphfed.tasks.graphs.client_accuracy import (
    accept_sums,
    accuracy_parts,
    accuracy_sums,
    client_metrics,
    own_accuracy,
)
from graphfed.tasks.graphs.ranking import Blocks, Division

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
for _name, _nodes, _when in (
    ("val", "validation nodes", "In every evaluated round, if rounds are selected by the order of scores"),
    ("final_val", "validation nodes", "Once"),
    ("final_test", "test nodes", "Once"),
):
    MESSAGES |= ranking.messages(_name, _when, f"{_nodes} of all clients together")
    MESSAGES[f"{_name}_finer_scores"] = (
        f"With aggregation=plaintext, after {_name}_bins: each client sends the server the number of its "
        f"{_nodes} of each class with a score in each of these bins. The server reads each client's numbers."
    )

#: The weight of a node in scores, in integer units. If several clients own a node, each owner's prediction
#: has an equal part of this weight. For up to 16 owners the part is a whole number of units, so sums are
#: exact.
SCORE_UNITS = OWNER_UNITS
#: A class is dominant if more than this fraction of the nodes belong to it.
DOMINANT = 0.8
#: The metrics that need the order of the scores.
RANKED = ranking.METRICS
#: How far these metrics may be from their exact values.
TOLERANCE = 0.002
#: The least number of bins when scores are counted again.
FINER_BINS = 256


@dataclass(frozen=True)
class Selection:
    """The agreement of all clients before training on how rounds are selected.

    `positive` is the positive class of two classes; 1 for more classes, where it is not used.
    """

    metric: str
    positive: int


def bins_of(num_classes: int) -> int:
    """Return the number B of bins of a histogram. It falls with the number of classes, so messages stay
    small.
    """
    return 1024 if num_classes == 2 else max(64, 2048 // num_classes)


def first_edges(num_classes: int) -> Tensor:
    return ranking.first_edges(1 if num_classes == 2 else num_classes, bins_of(num_classes))


# ---- functions run at the clients --------------------------------------------------------------------------


def score_clients(
    cohort: Cohort, logits: Tensor, target: str, selection: Selection | None
) -> dict[str, Tensor]:
    """Score every client's predictions of a part, from the logits [n, C] of its rows.

    - confusion: the number of nodes per class and prediction, [K, C, C + 1], in SCORE_UNITS. The last
      column counts rows whose logits are not all finite, because training has diverged.
    - loss: the summed cross-entropy, [K].
    - decides (with `selection`): the client's value of the selecting metric, [K]; nan if it is undefined.

    `selection` is None if clients do not select their own rounds.
    """
    rows = cohort.rows(target)
    y, client, c = cohort.y[rows], cohort.client[rows], cohort.num_classes
    predicted = torch.where(logits.isfinite().all(1), logits.argmax(1), c)
    # One cell for each client, class and prediction; prediction C means none.
    cells = (client * c + y) * (c + 1) + predicted
    # Every owner of a node scores an equal part of it.
    parts = SCORE_UNITS // cohort.owners[rows]
    confusion = torch.zeros(cohort.num_clients * c * (c + 1), dtype=torch.int64, device=y.device)
    confusion = confusion.index_add_(0, cells, parts).view(-1, c, c + 1)
    loss = torch.zeros(cohort.num_clients, dtype=torch.float64, device=y.device)
    losses = cross_entropy(logits.double(), y, reduction="none") * parts / SCORE_UNITS
    scores = {"confusion": confusion, "loss": loss.index_add_(0, client, losses)}
    if selection is None:
        return scores
    if selection.metric in RANKED:
        decides = own_ranked_metric(cohort, logits, target, selection)
    else:
        decides = _metrics(scores)[selection.metric]
    return {**scores, "decides": decides}


@dataclass(frozen=True)
class _Ranked:
    """The nodes of a part whose logits are all finite, ranked by the score of each class.

    Attributes:
        code: `ranking.codes` of the scores, [G, n] int32.
        in_class: Whether a node is of the class, [G, n] bool.
        weight: [n] int64, in SCORE_UNITS.
        client: [n].
    """

    code: Tensor
    in_class: Tensor
    weight: Tensor
    client: Tensor


def _ranked(cohort: Cohort, logits: Tensor, target: str, positive: int) -> _Ranked:
    rows = cohort.rows(target)
    finite = logits.isfinite().all(1)
    z, rows = logits[finite].double(), rows[finite]
    c = cohort.num_classes
    # Two classes need one ranking, because the score of one class is the negative of the other's.
    classes = torch.arange(c, device=z.device) if c > 2 else torch.tensor([positive], device=z.device)
    code = ranking.codes(log_odds(z)[:, classes].T.contiguous())
    return _Ranked(
        code, cohort.y[rows] == classes[:, None], SCORE_UNITS // cohort.owners[rows], cohort.client[rows]
    )


def log_odds(logits: Tensor) -> Tensor:
    """Compute log p_c - log(1 - p_c), [n, C], for logits [n, C] in float64.

    It is z_c - log(sum of exp(z) over the other classes), which is accurate for p_c close to 1 as well.
    """
    if logits.shape[1] == 2:
        return logits - logits.flip(1)
    log_p = logits.log_softmax(1)
    best = logits.argmax(1, keepdim=True)
    others = logits.scatter(1, best, -math.inf).logsumexp(1, keepdim=True)
    # Only the most probable class can have 1 - p_c close to 0.
    return (log_p - torch.log(-torch.expm1(log_p))).scatter(1, best, logits.gather(1, best) - others)


def count_scores(
    cohort: Cohort, logits: Tensor, target: str, positive: int, edges: Tensor, *, per_client: bool
) -> Tensor:
    """Count the rows with a score in each bin, [K, G, 2, B] (score, rest or class, bin), in SCORE_UNITS.

    Without `per_client` the result is the sum over the cohort's clients, [G, 2, B]. Rows whose logits are not
    all finite are not counted.
    """
    nodes = _ranked(cohort, logits, target, positive)
    # All nodes as those of one client.
    client = nodes.client if per_client else torch.zeros_like(nodes.client)
    clients = cohort.num_clients if per_client else 1
    counts = ranking.count(
        nodes.code, nodes.in_class, nodes.weight, client, clients, edges.to(nodes.code.device)
    )
    return counts if per_client else counts[0]


def blocks_by_client(
    cohort: Cohort, logits: Tensor, target: str, positive: int, *, per_client: bool = True
) -> Blocks:
    """Rank every client's scores of a part exactly, in K * G rankings.

    Without `per_client` there are the G rankings of all nodes together.
    """
    nodes = _ranked(cohort, logits, target, positive)
    groups = len(nodes.code)
    client = nodes.client if per_client else torch.zeros_like(nodes.client)
    return ranking.blocks_of_scores(
        nodes.code.flatten(),
        nodes.in_class.flatten(),
        (nodes.weight.double() / SCORE_UNITS).repeat(groups),
        (client * groups + torch.arange(groups, device=client.device)[:, None]).flatten(),
        groups * (cohort.num_clients if per_client else 1),
    )


def own_ranked_metric(cohort: Cohort, logits: Tensor, target: str, selection: Selection) -> Tensor:
    """Compute the selecting metric of every client's own nodes exactly, [K]; nan where it is undefined."""
    blocks = blocks_by_client(cohort, logits, target, selection.positive)
    values = ranking.ranked_metrics(blocks)[selection.metric].view(cohort.num_clients, -1)
    return _mean_where(values, ~values.isnan())


def count_classes(cohort: Cohort, target: str) -> Tensor:
    """Count every client's nodes of each class in a part of the split, [K, C] int64, in SCORE_UNITS."""
    rows = cohort.rows(target)
    cells = cohort.client[rows] * cohort.num_classes + cohort.y[rows]
    counts = torch.zeros(cohort.num_clients * cohort.num_classes, dtype=torch.int64, device=rows.device)
    return counts.index_add_(0, cells, SCORE_UNITS // cohort.owners[rows]).view(cohort.num_clients, -1)


def in_nodes(counts: Tensor) -> dict[str, Tensor]:
    """Convert every client's counts to numbers that a hidden sum adds up exactly."""
    return {"counts": encode_whole(counts)}


def total(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sum the result of `score_clients`, without `decides`, over the clients of a cohort."""
    return {k: v.sum(0) for k, v in scores.items() if k != "decides"}


def total_scores(
    scores: dict[str, Tensor],
    cohort: Cohort,
    logits: Tensor,
    target: str,
    positive: int | None,
    final: bool,
) -> dict[str, Tensor]:
    """Sum scores over the clients of a cohort. With a positive class, add the counts of scores in
    the first bins; `final` adds what `client_accuracy` needs.
    """
    sums = total(scores)
    if positive is not None:
        edges = first_edges(cohort.num_classes)
        sums["histogram"] = total_counts(cohort, logits, target, positive, edges)
    return {**sums, **accuracy_sums(own_accuracy(cohort, logits, target))} if final else sums


def every_score(
    scores: dict[str, Tensor],
    cohort: Cohort,
    logits: Tensor,
    target: str,
    positive: int | None,
    final: bool,
) -> dict[str, Tensor]:
    """Return `parts_to_sum` of every client, with what `total_scores` adds."""
    parts = parts_to_sum(scores)
    if positive is not None:
        edges = first_edges(cohort.num_classes)
        parts["histogram"] = every_count(cohort, logits, target, positive, edges)
    return {**parts, **accuracy_parts(own_accuracy(cohort, logits, target))} if final else parts


def total_counts(cohort: Cohort, logits: Tensor, target: str, positive: int, edges: Tensor) -> Tensor:
    """Count scores over the clients of a cohort, [G, 2, B] in SCORE_UNITS."""
    return count_scores(cohort, logits, target, positive, edges, per_client=False)


def every_count(cohort: Cohort, logits: Tensor, target: str, positive: int, edges: Tensor) -> Tensor:
    """Count every client's scores, [K, G, 2, B], as numbers that a hidden sum adds up exactly."""
    return encode_whole(count_scores(cohort, logits, target, positive, edges, per_client=True))


def parts_to_sum(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Convert every client's scores to numbers that a hidden sum accepts.

    Counts [K, C, C + 1] are summed exactly (`encode_whole`); losses are [K]. A loss that is not finite
    becomes 0; the last column of the confusion counts shows that predictions were lost.
    """
    loss = scores["loss"]
    return {"confusion": encode_whole(scores["confusion"]), "loss": loss.where(loss.isfinite(), 0.0)}


def has_parts(cohort: Cohort, present: Tensor) -> Tensor:
    return torch.stack([cohort.counts(mask) > 0 for mask in (cohort.train, cohort.val, cohort.test)], 1)


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


# ---- metrics of sums ---------------------------------------------------------------------------------------


def metrics_of(sums: Mapping[str, Tensor], blocks: Blocks | None = None) -> dict[str, float]:
    """Compute the metrics of a sum over clients: confusion [C, C + 1] in SCORE_UNITS, and loss [].

    The metrics are accuracy, macro_f1 (over the classes that occur or are predicted), balanced_accuracy (the
    mean recall of the classes that occur) and the mean cross-entropy `loss`, nan if undefined. With `blocks`,
    the counts of scores in nodes, also auc and average_precision and, for two classes, recall_at_1_percent.
    With the sums of `client_accuracy` also its metrics.
    """
    metrics = {name: float(value) for name, value in _metrics(sums).items()}
    if blocks is not None:
        for name, value in ranking.ranked_metrics(blocks).items():
            metrics[name] = float(_mean_where(value, ~value.isnan()))
        if len(sums["confusion"]) > 2:
            # It is defined for the rarer of two classes.
            del metrics["recall_at_1_percent"]
    return {**metrics, **client_metrics(sums)} if "client_bins" in sums else metrics


def _metrics(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Compute the metrics that need no order of scores for each client, [K], or for one sum, []."""
    confusion = sums["confusion"].double() / SCORE_UNITS
    count = confusion.sum((-2, -1))
    hit = confusion.diagonal(dim1=-2, dim2=-1)
    # A node without a prediction (last column) counts as wrong, and for no predicted class.
    true, predicted = confusion.sum(-1), confusion[..., :-1].sum(-2)
    return {
        "accuracy": hit.sum(-1) / count,
        "macro_f1": _mean_where(2 * hit / (true + predicted), true + predicted > 0),
        "balanced_accuracy": _mean_where(hit / true, true > 0),
        "loss": sums["loss"] / count,
    }


def _mean_where(values: Tensor, known: Tensor) -> Tensor:
    """Average the known values over the last dimension; nan if none is known."""
    return values.where(known, 0.0).sum(-1) / known.sum(-1)


# ---- functions run at the server ---------------------------------------------------------------------------


def choose_selection(counts: Tensor, select: str) -> Selection:
    """Choose the metric that selects rounds, and the positive class, from the class counts of all clients'
    validation nodes, [C].

    ``select=auto`` means accuracy. If a class is dominant (`DOMINANT`), it means average precision for two
    classes that both occur, and balanced accuracy for more classes.
    """
    # The rarer class is positive; if both are equally frequent, class 1 is.
    positive = 0 if len(counts) == 2 and counts[0] < counts[1] else 1
    if select != "auto":
        return Selection(select, positive)
    if not is_dominated(counts) or int((counts > 0).sum()) < 2:
        return Selection("accuracy", positive)
    return Selection("average_precision" if len(counts) == 2 else "balanced_accuracy", positive)


def is_dominated(counts: Tensor) -> bool:
    return bool(counts.max() > DOMINANT * counts.sum())


def headline_of(counts: Tensor) -> tuple[str, ...]:
    """List the most informative metrics for nodes with the class counts [C], the most informative first."""
    if not is_dominated(counts):
        return ("accuracy", "macro_f1")
    two = ("average_precision", "auc", "recall_at_1_percent")
    return two if len(counts) == 2 else ("balanced_accuracy", "macro_f1")


def agreed_selection(counts: Tensor, select: str) -> JsonObject:
    selection = choose_selection(counts, select)
    return {"metric": selection.metric, "positive": selection.positive}


def summed_counts(sums: Mapping[str, Tensor]) -> Tensor:
    """Convert a hidden sum of `in_nodes` to counts in SCORE_UNITS."""
    return decode_whole(sums["counts"])


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
        like["histogram"] = no_counts_of_scores(num_classes, bins_of(num_classes))
    return {**like, **accuracy_sums(torch.zeros(0))} if final else like


def no_counts_of_scores(num_classes: int, bins: int) -> Tensor:
    """Return the form of one client's `every_count`."""
    return torch.zeros(1 if num_classes == 2 else num_classes, 2, bins)


def rounded(total: Tensor) -> Tensor:
    return total.round().long()


def opened_scores(sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert a sum of `every_score` to the form that `total_scores` returns."""
    form = {"confusion": decode_whole, "histogram": decode_whole, "client_bins": rounded}
    return {k: form[k](v) if k in form else v for k, v in sums.items()}


def in_units(counts: Tensor) -> Tensor:
    """Convert a sum of `every_count` to the form that `total_counts` returns."""
    return decode_whole(counts)


def first_blocks(sums: Mapping[str, Tensor]) -> Blocks:
    """Return what the first counts of scores show."""
    counts = sums["histogram"].cpu()
    return ranking.blocks_of_counts(counts.double() / SCORE_UNITS, first_edges(len(sums["confusion"])))


def refined(blocks: Blocks, division: Division, counts: Tensor) -> Blocks:
    """Replace divided blocks by finer counts in SCORE_UNITS."""
    return ranking.refine(blocks, division, counts.cpu().double() / SCORE_UNITS)


def scored(sums: Mapping[str, Tensor], selection: Selection, blocks: Blocks | None) -> Scored:
    """Compute the metrics, and details for the report.

    The details are the confusion counts in nodes, [C, C + 1], precision and recall of each class, the most
    informative metrics, the metric that selected rounds, and how far the ranked metrics may be from their
    exact values.
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
    if blocks is not None:
        report["rank_error"] = float(ranking.uncertainty(blocks).sum())
    metrics = metrics_of(sums, blocks)
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
    """Return why another process's scores cannot be used, or "" if they can (see `transfer.Accept`).

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
    why = accept_counts(target, sums["histogram"], declared) if "histogram" in sums else ""
    if why:
        return why
    if not bool(loss.isfinite()) and not bool(confusion[:, -1].any()):
        return "a loss that is not finite, with predictions that all are"
    return accept_sums(sums, most)


def accept_counts(target: str, counts: Tensor, declared: Mapping[str, np.ndarray]) -> str:
    """Return why the counts of scores of another process cannot be used, or "" if they can."""
    if counts.dtype != torch.int64 or counts.dim() != 3 or bool((counts < 0).any()):
        return f"{describe_value(counts)} where counts of scores are expected"
    most, counted = declared.get(target), float(counts.double().flatten(1).sum(1).max()) / SCORE_UNITS
    if most is not None and counted > int(most.sum()):
        return f"scores of {counted:.6g} nodes of {target}, and declared {int(most.sum())} when it joined"
    return ""


# ---- the sums ----------------------------------------------------------------------------------------------

CLASS_COUNTS = SumForm(sum_over_clients, in_nodes, no_counts, summed_counts)
SCORES = SumForm(total_scores, every_score, no_scores, opened_scores)
SCORE_COUNTS = SumForm(total_counts, every_count, no_counts_of_scores, in_units)
