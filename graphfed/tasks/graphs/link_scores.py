"""Evaluation of link prediction: the area under the ROC curve over the scored pairs of all clients together.

An area is no sum of client parts, so every client sends its scores: of a pair two bytes and the label. The
two bytes are the upper half of the float32 score in an order-preserving form, so no range of scores is
assumed; scores that differ by less than a 128th part may tie, and ties count half.

With aggregation=secure the server gets how many edges and how many other pairs have each score, summed over
the clients, and nobody's own. Fewer scores are told apart then: those that differ by less than a 16th part
may tie."""

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
    "of each pair of nodes that a client scores for {0}: its score in two bytes, and whether it is an edge, "
    "in one. The server reads each client's, without learning which nodes they are"
)
_PLAINTEXT = "With aggregation=plaintext"
MESSAGES = {
    "val_pairs": f"{_PLAINTEXT}: how many validation pairs each client scores, once: a number for each, "
    "which "
    "says nothing of its nodes.",
    "test_pairs": f"{_PLAINTEXT}: how many test pairs each client scores, once, as val_pairs.",
    "val_pair_scores": f"{_PLAINTEXT}, in every evaluated round, {_EACH.format('validation')}.",
    "val_pair_loss": f"{_PLAINTEXT}: the summed loss of a client's validation pairs, in every evaluated "
    "round: "
    "one number, which the server reads.",
    "final_val_pair_scores": f"{_PLAINTEXT}: what val_pair_scores has, for the chosen model, once.",
    "final_val_pair_loss": f"{_PLAINTEXT}: what val_pair_loss has, for the chosen model, once.",
    "final_test_pair_scores": f"{_PLAINTEXT}, once, {_EACH.format('the test')}.",
    "final_test_pair_loss": f"{_PLAINTEXT}: the summed loss of a client's test pairs, once: one number, "
    "which "
    "the server reads.",
}

#: The codes of finite scores are between these; NaN has the last.
LOWEST, HIGHEST, NOT_FINITE = -0x7F80, 0x7F7F, 0x7FFF
CODES = 1 << 16
#: What a hidden sum counts: codes without their last bits.
COARSE_BITS = 3
COARSE = CODES >> COARSE_BITS
#: Points of a ROC curve that a report draws.
CURVE = 200


# ---- functions run at the clients --------------------------------------------------------------------------


def pair_rows(cohort: Cohort, target: str) -> RowIds:
    """A row for each pair; its number among its client's, so that the ids say nothing of the nodes."""
    assert cohort.links is not None
    client = cohort.client[cohort.links.row[cohort.pairs(target)]]
    count = torch.bincount(client, minlength=cohort.num_clients)
    return RowIds(torch.arange(len(client), device=client.device) - (count.cumsum(0) - count)[client], client)


def pair_codes(scores: Tensor) -> Tensor:
    """The upper half of each score [n] as a float32, such that codes order as scores do: [n] int16. Equal
    scores have equal codes, and so have some that nearly are."""
    single = scores.float() + 0.0  # -0 becomes 0
    bits = single.view(torch.int32)
    # Of negative floats the larger magnitude has the larger bits.
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> 16
    return torch.where(single.isfinite(), ordered, NOT_FINITE).to(torch.int16)


def coded_pairs(cohort: Cohort, scores: Tensor, target: str) -> Tensor:
    """What crosses of each pair: [n, 3] uint8."""
    assert cohort.links is not None
    code = pair_codes(scores).view(torch.uint8).view(-1, 2)
    return torch.cat([code, cohort.links.label[cohort.pairs(target), None].to(torch.uint8)], 1)


def summed_loss(cohort: Cohort, scores: Tensor, target: str) -> Tensor:
    """The cohort's sum of -log sigma(s) over edges and -log sigma(-s) over the other pairs, a float64."""
    assert cohort.links is not None
    sign = torch.where(cohort.links.label[cohort.pairs(target)], -1.0, 1.0)
    return softplus(sign.double() * scores.double()).sum()


def counted_pairs(cohort: Cohort, scores: Tensor, target: str) -> dict[str, Tensor]:
    """How many of each client's pairs have each coarse code, [K, 2, COARSE] (no edge, edge), and their summed
    loss [K]; that of a score that is not finite counts nothing."""
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
    """The scores of a target's pairs out of those of every pair."""
    return kept[1][cohort.pairs(target)]


# ---- functions run at the server ---------------------------------------------------------------------------


def area(edges: Tensor, others: Tensor) -> float:
    """The area under the ROC curve: how often an edge has the larger score than a pair that is none, ties
    counted half; nan without either. edges, others [B] int64: how many have each code, codes ascending."""
    pairs = int(edges.sum()) * int(others.sum())
    below = others.cumsum(0) - others
    twice = int((edges * (2 * below + others)).sum())
    return twice / (2 * pairs) if pairs else float("nan")


def pair_scores(rows: Tensor, loss: Tensor) -> Scored:
    """Metrics of what crossed, [M, 3] uint8 and the summed loss; told: points of the ROC curve."""
    low, high, label = rows[:, 0].long(), rows[:, 1].long(), rows[:, 2] != 0
    code = low + 256 * high - CODES * (high >> 7)  # signed, the low byte first
    edges, others = (torch.bincount(code[chosen] + CODES // 2, minlength=CODES) for chosen in (label, ~label))
    lost = bool(((code < LOWEST) | (code > HIGHEST)).any())
    return _scored(edges, others, loss, lost)


def no_pairs() -> dict[str, Tensor]:
    """What one client's `counted_pairs` look like."""
    return {"counts": torch.zeros(2, COARSE), "loss": torch.zeros(())}


def scored_sum(sums: Mapping[str, Tensor]) -> Scored:
    """`pair_scores` of a sum of `counted_pairs`."""
    others, edges = sums["counts"].long()
    return _scored(edges, others, sums["loss"], lost=bool(edges[-1] + others[-1]))


def _scored(edges: Tensor, others: Tensor, loss: Tensor, lost: bool) -> Scored:
    """edges, others: how many have each code."""
    count = int(edges.sum() + others.sum())
    metrics = {"auc": area(edges, others), "loss": float(loss) / count if count else float("nan")}
    return Scored(metrics, lost, {"test_roc": _curve(edges, others)}, count)


def _curve(edges: Tensor, others: Tensor) -> list[list[float]]:
    """At most CURVE + 1 points [false positive rate, true positive rate] from [0, 0] to [1, 1]."""
    taken = (edges + others).flip(0).nonzero()[:, 0].numpy(force=True)
    if not int(edges.sum()) or not int(others.sum()):
        return []
    rates = [(c.flip(0).cumsum(0).double() / c.sum()).numpy(force=True)[taken] for c in (others, edges)]
    chosen = np.unique(np.linspace(0, len(taken) - 1, CURVE).round().astype(int))
    return [[0.0, 0.0], *np.stack(rates, 1)[chosen].tolist()]


# ---- the evaluation ----------------------------------------------------------------------------------------


#: (scores at the clients, target, name) -> their metrics at the server.
_Score = Callable[[Located, str, str], Located]


def scored_one_by_one(fed: Federation, data: Located) -> _Score:
    """In plaintext: the server reads every pair's score."""
    routes = {
        target: fed.route(fed.clients.run(pair_rows, data, target), name=f"{target}_pairs")
        for target in ("val", "test")
    }

    def score(scores: Located, target: str, name: str) -> Located:
        coded = fed.clients.run(coded_pairs, data, scores, target)
        rows = fed.upload(coded, routes[target], name=f"{name}_pair_scores", grad=False)
        # As in `node_scores`.
        lost = fed.clients.run(summed_loss, data, scores, target)
        lost = fed.sum(lost, name=f"{name}_pair_loss", grad=False, finite=False)
        return fed.server.run(pair_scores, rows, lost)

    return score


def scored_as_counts(fed: Federation, data: Located) -> _Score:
    """Hidden: the server learns how many pairs of all clients have each score."""
    like = fed.server.run(no_pairs)

    def score(scores: Located, target: str, name: str) -> Located:
        counts = fed.clients.run(counted_pairs, data, scores, target)
        return fed.server.run(scored_sum, secure_sum(fed, counts, None, like, name=HIDDEN_SCORES))

    return score


#: How pairs are scored under each protection of sums.
_SCORED = {"plaintext": scored_one_by_one, "secure": scored_as_counts}


def prepare(fed: Federation, data: Located, task: Task, config: GraphSettings) -> _Score:
    """How pairs are scored, from the pairs that there are."""
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
    """The metrics at the server."""
    return None, prepared(scores, target, name)


def decides(config: GraphSettings, prepared: object) -> str:
    return "auc"


LINKS = Evaluation(decides, MESSAGES, prepare, score, all_pairs, pairs_of_target)
