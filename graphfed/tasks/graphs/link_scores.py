"""Evaluation of link prediction: the area under the ROC curve over the scored pairs of all clients together.

The area is no sum of values of the clients. So every client sends two bytes and the label for each of its
scored pairs. The two bytes are the upper half of the float32 score in an order-preserving form, so no range
of scores is assumed. Scores whose relative difference is less than 1/128 may tie, and a tie counts one half.

With aggregation=secure the server gets the numbers of edges and of negative pairs that have each score,
summed over the clients, and no single client's scores. The scores are coarser then: those whose relative
difference is less than 1/16 may tie.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import RowIds
from graphfed.federation.secure.aggregation import secure_sum
from graphfed.methods.base import Task
from graphfed.methods.config import GraphSettings, sum_protection
from graphfed.tasks.evaluation import HIDDEN_SCORES, Evaluation, Scored

__all__ = ["LINKS", "MESSAGES", "area", "pair_codes", "pair_scores"]

_EACH = (
    "each client sends the server, for each of its {0} pairs, the score in two bytes and, in one byte, "
    "whether the pair is an edge. The server reads them, and does not learn the nodes of the pairs"
)
_PLAINTEXT = "With aggregation=plaintext"
MESSAGES = {
    "val_pairs": f"{_PLAINTEXT}, once: each client sends the server the number of its validation pairs, as "
    "one consecutive number for each pair. The numbers do not depend on the nodes.",
    "test_pairs": f"{_PLAINTEXT}, once: each client sends the server the number of its test pairs, in the "
    "same form as val_pairs.",
    "val_pair_scores": f"{_PLAINTEXT}, in every evaluated round: {_EACH.format('validation')}.",
    "val_pair_loss": f"{_PLAINTEXT}, in every evaluated round: each client sends the server the summed loss "
    "of its validation pairs, one number, which the server reads.",
    "final_val_pair_scores": f"{_PLAINTEXT}, once: each client sends the content of val_pair_scores for the "
    "selected model.",
    "final_val_pair_loss": f"{_PLAINTEXT}, once: each client sends the content of val_pair_loss for the "
    "selected model.",
    "final_test_pair_scores": f"{_PLAINTEXT}, once: {_EACH.format('test')}.",
    "final_test_pair_loss": f"{_PLAINTEXT}, once: each client sends the server the summed loss of its test "
    "pairs, one number, which the server reads.",
}

#: The smallest and the largest code of a finite score, and the code of a score that is not finite.
LOWEST, HIGHEST, NOT_FINITE = -0x7F80, 0x7F7F, 0x7FFF
CODES = 1 << 16
#: A hidden sum counts codes without this number of last bits.
COARSE_BITS = 3
COARSE = CODES >> COARSE_BITS
#: The number of points of the ROC curve in a report.
CURVE = 200


# ---- functions run at the clients --------------------------------------------------------------------------


def pair_rows(cohort: Cohort, target: str) -> RowIds:
    """Number each client's pairs from 0. These ids of rows do not depend on the nodes."""
    assert cohort.links is not None
    client = cohort.client[cohort.links.row[cohort.pairs(target)]]
    count = torch.bincount(client, minlength=cohort.num_clients)
    return RowIds(torch.arange(len(client), device=client.device) - (count.cumsum(0) - count)[client], client)


def pair_codes(scores: Tensor) -> Tensor:
    """Compute codes that have the same order as the scores. Nearly equal scores may have equal codes.

    Args:
        scores: The scores, [n].

    Returns:
        The upper half of each score's float32 bits in an order-preserving form, int16 [n].
    """
    single = scores.float() + 0.0  # -0 becomes 0
    bits = single.view(torch.int32)
    # As integers, the bits of negative floats grow with the magnitude, so their order must be reversed.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> 16
    return torch.where(single.isfinite(), ordered, NOT_FINITE).to(torch.int16)


def coded_pairs(cohort: Cohort, scores: Tensor, target: str) -> Tensor:
    """Encode the message for each pair, uint8 [n, 3]: two bytes of the score and the label."""
    assert cohort.links is not None
    code = pair_codes(scores).view(torch.uint8).view(-1, 2)
    return torch.cat([code, cohort.links.label[cohort.pairs(target), None].to(torch.uint8)], 1)


def summed_loss(cohort: Cohort, scores: Tensor, target: str) -> Tensor:
    """Sum -log sigma(s) over the cohort's edges and -log sigma(-s) over its negative pairs, float64."""
    assert cohort.links is not None
    sign = torch.where(cohort.links.label[cohort.pairs(target)], -1.0, 1.0)
    return softplus(sign.double() * scores.double()).sum()


def counted_pairs(cohort: Cohort, scores: Tensor, target: str) -> dict[str, Tensor]:
    """Count each client's pairs by coarse code, [K, 2, COARSE], and sum their loss, [K].

    Negative pairs come first, then edges. The loss of a score that is not finite is left out.
    """
    assert cohort.links is not None
    pairs = cohort.pairs(target)
    client, label = cohort.client[cohort.links.row[pairs]], cohort.links.label[pairs]
    code = (pair_codes(scores).long() + CODES // 2) >> COARSE_BITS
    cells = (client * 2 + label.long()) * COARSE + code
    counts = torch.bincount(cells, minlength=cohort.num_clients * 2 * COARSE)
    sign = torch.where(label, -1.0, 1.0).double()
    losses = softplus(sign * scores.double())
    losses = losses.where(losses.isfinite(), 0.0)
    loss = losses.new_zeros(cohort.num_clients).index_add_(0, client, losses)
    return {"counts": counts.view(-1, 2, COARSE).double(), "loss": loss}


def all_pairs(cohort: Cohort, scores: Tensor) -> tuple[Tensor, Tensor]:
    return cohort.pairs("all"), scores


def pairs_of_target(cohort: Cohort, kept: tuple[Tensor, Tensor], target: str) -> Tensor:
    """Select the scores of a target's pairs from those of all pairs."""
    return kept[1][cohort.pairs(target)]


# ---- functions run at the server ---------------------------------------------------------------------------


def area(edges: Tensor, others: Tensor) -> float:
    """Compute the area under the ROC curve.

    This is the probability that an edge has a larger score than a negative pair, where a tie counts one half.

    Args:
        edges: The number of edges with each code, in ascending order of codes, int64 [B].
        others: The number of negative pairs with each code, int64 [B].

    Returns:
        The area; nan if there are no edges or no negative pairs.
    """
    pairs = int(edges.sum()) * int(others.sum())
    below = others.cumsum(0) - others
    twice = int((edges * (2 * below + others)).sum())
    return twice / (2 * pairs) if pairs else float("nan")


def pair_scores(rows: Tensor, loss: Tensor) -> Scored:
    """Compute the metrics from the clients' messages.

    Args:
        rows: The messages of all pairs, uint8 [M, 3] (see `coded_pairs`).
        loss: The summed loss, [].

    Returns:
        The metrics, with the points of the ROC curve for the report.
    """
    low, high, label = rows[:, 0].long(), rows[:, 1].long(), rows[:, 2] != 0
    code = low + 256 * high - CODES * (high >> 7)  # a signed 16-bit number, low byte first
    edges, others = (torch.bincount(code[chosen] + CODES // 2, minlength=CODES) for chosen in (label, ~label))
    lost = bool(((code < LOWEST) | (code > HIGHEST)).any())
    return _scored(edges, others, loss, lost)


def no_pairs() -> dict[str, Tensor]:
    """Return the form of one client's `counted_pairs`."""
    return {"counts": torch.zeros(2, COARSE), "loss": torch.zeros(())}


def scored_sum(sums: Mapping[str, Tensor]) -> Scored:
    """Compute the metrics from a sum of `counted_pairs` over all clients."""
    others, edges = sums["counts"].long()
    return _scored(edges, others, sums["loss"], lost=bool(edges[-1] + others[-1]))


def _scored(edges: Tensor, others: Tensor, loss: Tensor, lost: bool) -> Scored:
    """Compute the metrics from the numbers of edges and of negative pairs with each code."""
    count = int(edges.sum() + others.sum())
    metrics = {"auc": area(edges, others), "loss": float(loss) / count if count else float("nan")}
    return Scored(metrics, lost, {"test_roc": _curve(edges, others)}, count)


def _curve(edges: Tensor, others: Tensor) -> list[list[float]]:
    """Compute at most CURVE + 1 points [false positive rate, true positive rate] from [0, 0] to [1, 1]."""
    taken = (edges + others).flip(0).nonzero()[:, 0].numpy(force=True)
    if not int(edges.sum()) or not int(others.sum()):
        return []
    rates = [(c.flip(0).cumsum(0).double() / c.sum()).numpy(force=True)[taken] for c in (others, edges)]
    chosen = np.unique(np.linspace(0, len(taken) - 1, CURVE).round().astype(int))
    return [[0.0, 0.0], *np.stack(rates, 1)[chosen].tolist()]


# ---- the evaluation ----------------------------------------------------------------------------------------


#: A function (scores at the clients, target, name) -> metrics at the server.
_Score = Callable[[Located, str, str], Located]


def scored_one_by_one(fed: Federation, data: Located) -> _Score:
    """Prepare the scoring in plaintext, where the server reads the score of every pair."""
    routes = {
        target: fed.route(fed.clients.run(pair_rows, data, target), name=f"{target}_pairs")
        for target in ("val", "test")
    }

    def score(scores: Located, target: str, name: str) -> Located:
        coded = fed.clients.run(coded_pairs, data, scores, target)
        rows = fed.upload(coded, routes[target], name=f"{name}_pair_scores", grad=False)
        # The loss of a client whose training has diverged is not finite; the training of others may go on.
        lost = fed.clients.run(summed_loss, data, scores, target)
        lost = fed.sum(lost, name=f"{name}_pair_loss", grad=False, finite=False)
        return fed.server.run(pair_scores, rows, lost)

    return score


def scored_as_counts(fed: Federation, data: Located) -> _Score:
    """Prepare the hidden scoring, where the server learns only summed numbers of pairs with each score."""
    like = fed.server.run(no_pairs)

    def score(scores: Located, target: str, name: str) -> Located:
        counts = fed.clients.run(counted_pairs, data, scores, target)
        return fed.server.run(scored_sum, secure_sum(fed, counts, None, like, name=HIDDEN_SCORES))

    return score


#: The scoring for each protection of sums.
_SCORED = {"plaintext": scored_one_by_one, "secure": scored_as_counts}


def prepare(fed: Federation, data: Located, task: Task, config: GraphSettings) -> _Score:
    """Prepare the scoring of pairs with the run's protection of sums."""
    return _SCORED[sum_protection(config)](fed, data)


def score(
    fed: Federation,
    data: Located,
    scores: Located,
    target: str,
    name: str,
    prepared: _Score,
    config: GraphSettings,
) -> tuple[None, Located]:
    """Compute the metrics at the server. Clients have no scores of their own."""
    return None, prepared(scores, target, name)


def decides(config: GraphSettings, prepared: object) -> str:
    return "auc"


LINKS = Evaluation(decides, MESSAGES, prepare, score, all_pairs, pairs_of_target)
