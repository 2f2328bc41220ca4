"""Evaluation of node classification: counts of which class is predicted as which, summed over clients."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.experiment.evaluation import Evaluation, Scored, is_hidden, sum_hidden
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods.base import Task, TrainingConfig
from graphfed.methods.tasks import CLASSIFICATION, TASKS

__all__ = ["MESSAGES", "SCORE_UNITS", "VERTICES", "metrics_of", "owned_rows", "score_clients", "total"]

MESSAGES = {
    "val_scores": "With aggregation=clear, in every evaluated round: how many of a site's validation "
    "vertices of each class are predicted as which class, and their summed loss. The server reads each "
    "site's table.",
    "final_val_scores": "With aggregation=clear: the table of val_scores for the chosen model, once.",
    "final_test_scores": "With aggregation=clear, once: how many of a site's test vertices of each class are "
    "predicted as which class, and their summed loss. The server reads each site's table.",
}

#: What a vertex counts for in scores. A vertex that several clients own counts once, each one's prediction
#: for an equal share: with up to 16 owners that is a whole number of these units, so sums are exact.
SCORE_UNITS = 720_720


# ---- functions run at the clients --------------------------------------------------------------------------


def score_clients(cohort: Cohort, logits: Tensor, target: str) -> dict[str, Tensor]:
    """Every client's confusion counts [K, C, C + 1] (class, prediction), in SCORE_UNITS, and summed loss [K].

    The last column counts rows whose logits are not all finite: training has diverged, they predict
    nothing."""
    rows = cohort.rows(target)
    y, client, c = cohort.y[rows], cohort.client[rows], cohort.num_classes
    predicted = torch.where(logits.isfinite().all(1), logits.argmax(1), c)
    cells = (client * c + y) * (c + 1) + predicted
    parts = SCORE_UNITS // cohort.owners[rows]
    confusion = torch.zeros(cohort.num_clients * c * (c + 1), dtype=torch.int64, device=y.device)
    confusion = confusion.index_add_(0, cells, parts).view(-1, c, c + 1)
    loss = torch.zeros(cohort.num_clients, dtype=torch.float64, device=y.device)
    losses = cross_entropy(logits.double(), y, reduction="none") * parts / SCORE_UNITS
    return {"confusion": confusion, "loss": loss.index_add_(0, client, losses)}


def total(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """The cohort's sum over its clients."""
    return {k: v.sum(0) for k, v in scores.items()}


def parts_to_sum(scores: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every client's scores as numbers that can be summed: counts in vertices, [K, C, C + 1] and [K] float64.
    A loss that is not finite is none; its vertices count as lost."""
    loss = scores["loss"]
    return {
        "confusion": scores["confusion"].double() / SCORE_UNITS,
        "loss": loss.where(loss.isfinite(), 0.0),
    }


def better_clients(scores: dict[str, Tensor], best: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which clients beat their own best validation score, [K] bool, and what it was (in SCORE_UNITS), [K].

    A client without validation vertices always takes the newest round, so it ends with the last."""
    correct = scores["confusion"].diagonal(dim1=1, dim2=2).sum(1)
    if best is None:
        return torch.ones_like(correct, dtype=torch.bool), correct
    better = (correct > best) | (scores["confusion"].sum((1, 2)) == 0)
    return better, torch.where(better, correct, best)


def owned_rows(cohort: Cohort, logits: Tensor) -> tuple[Tensor, Tensor]:
    return cohort.rows("all"), logits


def rows_of_target(cohort: Cohort, predictions: tuple[Tensor, Tensor], target: str) -> Tensor:
    """The logits of a target's rows out of those of every owned row."""
    rows, logits = predictions
    place = torch.zeros(cohort.num_rows, dtype=torch.int64, device=rows.device)
    place[rows] = torch.arange(len(rows), device=rows.device)
    return logits[place[cohort.rows(target)]]


# ---- functions run at the server ---------------------------------------------------------------------------


def metrics_of(sums: Mapping[str, Tensor]) -> dict[str, float]:
    """accuracy, macro_f1 (over the classes that occur or are predicted) and mean cross-entropy from confusion
    counts in SCORE_UNITS."""
    confusion = sums["confusion"].double() / SCORE_UNITS
    count = float(confusion.sum())
    if count == 0:
        return {"accuracy": float("nan"), "macro_f1": float("nan"), "loss": float("nan")}
    hit, true, predicted = confusion.diagonal(), confusion.sum(1), confusion[:, :-1].sum(0)
    seen = (true + predicted) > 0
    f1 = 2 * hit[seen] / (true + predicted)[seen]
    return {
        "accuracy": float(hit.sum()) / count,
        "macro_f1": float(f1.mean()),
        "loss": float(sums["loss"]) / count,
    }


def counts_of(confusion: Tensor) -> list[list[float]]:
    """Confusion counts in vertices: whole numbers where no vertex counts in parts."""
    return [
        [units // SCORE_UNITS if units % SCORE_UNITS == 0 else units / SCORE_UNITS for units in row]
        for row in confusion.tolist()
    ]


def no_scores(num_classes: int) -> dict[str, Tensor]:
    """What one client's `parts_to_sum` look like."""
    return {"confusion": torch.zeros(num_classes, num_classes + 1), "loss": torch.zeros(())}


def scored_sum(sums: Mapping[str, Tensor]) -> Scored:
    """`scored` of a sum of `parts_to_sum`."""
    return scored({**sums, "confusion": (sums["confusion"] * SCORE_UNITS).round().long()})


def scored(sums: Mapping[str, Tensor]) -> Scored:
    """Metrics, and counts in vertices [C, C + 1] (class, prediction, none)."""
    lost = bool(sums["confusion"][:, -1].any())
    return Scored(metrics_of(sums), lost, {"test_confusion": counts_of(sums["confusion"])})


# ---- the evaluation ----------------------------------------------------------------------------------------


def prepare(fed: Federation, data: Located, task: Task, config: TrainingConfig) -> Located | None:
    """What a hidden sum looks like."""
    return fed.server.run(no_scores, task.num_classes) if is_hidden(config.aggregation) else None


def score(
    fed: Federation,
    data: Located,
    logits: Located,
    target: str,
    name: str,
    like: Located | None,
    config: TrainingConfig,
) -> tuple[Located, Located]:
    """Every client's scores at the clients, and the metrics of their sum at the server."""
    scores = fed.clients.run(score_clients, data, logits, target)
    if like is not None:
        sums = sum_hidden(fed, fed.clients.run(parts_to_sum, scores), like, config.aggregation)
        return scores, fed.server.run(scored_sum, sums)
    sums = fed.sum(fed.clients.run(total, scores), name=f"{name}_scores", grad=False)
    return scores, fed.server.run(scored, sums)


def decides(config: TrainingConfig) -> str:
    return TASKS[CLASSIFICATION].metric


VERTICES = Evaluation(decides, MESSAGES, prepare, score, owned_rows, rows_of_target, better_clients)
