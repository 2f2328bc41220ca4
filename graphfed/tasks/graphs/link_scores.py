"""Evaluation of link prediction: the area under the ROC curve over the scored pairs of all clients together.

The area is no sum of values of the clients. So every client sends the label and the score of each of its
scored pairs, the score as its code (`ranking.codes`) in four bytes. The area is exact, and a pair of equal
scores counts one half.

With aggregation=secure the server gets the numbers of edges and of negative pairs with a score in each bin,
summed over the clients, and no single client's scores. It refines the bins until it knows the area well
enough (`ranking`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import RowIds
from graphfed.federation.secure.aggregation import secure_sum
from graphfed.tasks.evaluation import HIDDEN_SCORES, Scored
from graphfed.tasks.graphs import ranking
from graphfed.tasks.graphs.ranking import Blocks, Division, refine_until

_EACH = (
    "each client sends the server, for each of its {0} pairs, the score in four bytes and, in one byte, "
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
    **ranking.messages("val", "With aggregation=secure, in every evaluated round", "pairs"),
    **ranking.messages("final_val", "With aggregation=secure, once", "pairs"),
    **ranking.messages("final_test", "With aggregation=secure, once", "pairs"),
}

#: The code of a score that is not finite, which is no code of a score.
NOT_FINITE = ranking.HIGHEST
#: The bins of a hidden count.
BINS = 1024
#: How far the area may be from its exact value if it is hidden.
TOLERANCE = 0.001
#: The number of points of the ROC curve in a report.
CURVE = 200


# ---- functions run at the clients --------------------------------------------------------------------------


def pairs_of(cohort: Cohort, target: str) -> tuple[Tensor, Tensor]:
    """Return the client that scores each of a target's pairs, [n], and whether the pair is an edge, [n]."""
    assert cohort.links is not None
    pairs = cohort.pairs(target)
    return cohort.client[cohort.links.row[pairs]], cohort.links.label[pairs]


def pair_rows(cohort: Cohort, target: str) -> RowIds:
    """Number each client's pairs from 0. These ids of rows do not depend on the nodes."""
    client, _ = pairs_of(cohort, target)
    count = torch.bincount(client, minlength=cohort.num_clients)
    return RowIds(torch.arange(len(client), device=client.device) - (count.cumsum(0) - count)[client], client)


def has_parts(cohort: Cohort, present: Tensor) -> Tensor:
    """Return whether each client has training edges, validation pairs and test pairs, bool [K_h, 3]."""
    clients = [cohort.client[cohort.degree(with_cross=True) > 0]]
    clients += [pairs_of(cohort, target)[0] for target in ("val", "test")]
    return torch.stack([torch.bincount(client, minlength=cohort.num_clients) > 0 for client in clients], 1)


def coded_pairs(cohort: Cohort, scores: Tensor, target: str) -> Tensor:
    """Encode the message for each pair, uint8 [n, 5]: four bytes of the score's code and the label."""
    _, label = pairs_of(cohort, target)
    code = torch.where(scores.float().isfinite(), ranking.codes(scores), NOT_FINITE)
    return torch.cat([code.view(-1, 1).view(torch.uint8), label[:, None].to(torch.uint8)], 1)


def pair_losses(label: Tensor, scores: Tensor) -> Tensor:
    """Compute -log sigma(s) of edges and -log sigma(-s) of negative pairs, float64 [n]."""
    # softplus is finite where the logarithm of a rounded probability would be infinite.
    return softplus(torch.where(label, -1.0, 1.0).double() * scores.double())


def summed_loss(cohort: Cohort, scores: Tensor, target: str) -> Tensor:
    return pair_losses(pairs_of(cohort, target)[1], scores).sum()


def every_count(cohort: Cohort, scores: Tensor, target: str, edges: Tensor) -> Tensor:
    """Count each client's pairs with a finite score in each bin, [K, 1, 2, B]: negative pairs, then edges."""
    finite = scores.float().isfinite()
    client, label = (x[finite] for x in pairs_of(cohort, target))
    code, one = ranking.codes(scores[finite])[None], torch.ones_like(client)
    edges = edges.to(code.device)
    return ranking.count(code, label[None], one, client, cohort.num_clients, edges).double()


def every_score(cohort: Cohort, scores: Tensor, target: str) -> dict[str, Tensor]:
    """Count each client's pairs in the first bins, [K, 1, 2, B], and those without a finite score, [K, 2],
    and sum the loss of the others, [K].
    """
    client, label = pairs_of(cohort, target)
    finite = scores.float().isfinite()
    # A hidden sum accepts finite numbers only; `lost` says what is left out.
    losses = pair_losses(label, scores).where(finite, 0.0)
    lost = torch.bincount((client * 2 + label)[~finite], minlength=2 * cohort.num_clients)
    return {
        "counts": every_count(cohort, scores, target, first_edges()),
        "lost": lost.view(-1, 2).double(),
        "loss": losses.new_zeros(cohort.num_clients).index_add_(0, client, losses),
    }


def first_edges() -> Tensor:
    return ranking.first_edges(1, BINS)


# ---- functions run at the server ---------------------------------------------------------------------------


def pair_scores(rows: Tensor, loss: Tensor) -> Scored:
    """Compute the metrics from the messages of all pairs, uint8 [M, 5] (see `coded_pairs`), and the summed
    loss.
    """
    rows = rows.cpu()
    code, label = rows[:, :4].reshape(-1).view(torch.int32), rows[:, 4] != 0
    # A score that is not finite is in the last place, as a tie with all others of its kind.
    one, ranking_of = torch.ones(len(code), dtype=torch.float64), torch.zeros(len(code), dtype=torch.int64)
    blocks = ranking.blocks_of_scores(code, label, one, ranking_of, 1)
    return _scored(blocks, loss, lost=bool((code == NOT_FINITE).any()))


def no_pairs() -> dict[str, Tensor]:
    """Return the form of one client's `every_score`."""
    return {"counts": no_counts(BINS), "lost": torch.zeros(2), "loss": torch.zeros(())}


def no_counts(bins: int) -> Tensor:
    """Return the form of one client's `every_count`."""
    return torch.zeros(1, 2, bins)


def first_blocks(sums: Mapping[str, Tensor]) -> Blocks:
    """Return what the first counts show; scores that are not finite are in the last place."""
    blocks = ranking.blocks_of_counts(sums["counts"].cpu(), first_edges())
    worst = torch.full((1, 1), NOT_FINITE - 1, dtype=torch.int32)
    lost = torch.stack([torch.zeros(2), sums["lost"].cpu()], 1)[None]
    return ranking.join(blocks, ranking.blocks_of_counts(lost, worst))


def refined(blocks: Blocks, division: Division, counts: Tensor) -> Blocks:
    return ranking.refine(blocks, division, counts.cpu())


def scored_sum(sums: Mapping[str, Tensor], blocks: Blocks) -> Scored:
    """Compute the metrics from a sum of `every_score` over all clients, and the refined counts."""
    scored = _scored(blocks, sums["loss"], lost=bool(sums["lost"].any()))
    return replace(
        scored, report={**scored.report, "rank_error": float(ranking.uncertainty(blocks, "auc").sum())}
    )


def _scored(blocks: Blocks, loss: Tensor, lost: bool) -> Scored:
    count = float((blocks.positives + blocks.negatives).sum())
    auc = float(ranking.ranked_metrics(blocks)["auc"])
    metrics = {"auc": auc, "loss": float(loss) / count if count else float("nan")}
    return Scored(metrics, lost, {"test_roc": _curve(blocks)}, count)


def _curve(blocks: Blocks) -> list[list[float]]:
    """Compute at most CURVE + 1 points [false positive rate, true positive rate] from [0, 0] to [1, 1]."""
    if not bool(blocks.positives.any()) or not bool(blocks.negatives.any()):
        return []
    rates = [(c.cumsum(0) / c.sum()).numpy() for c in (blocks.negatives, blocks.positives)]
    chosen = np.unique(np.linspace(0, len(rates[0]) - 1, CURVE).round().astype(int))
    return [[0.0, 0.0], *np.stack(rates, 1)[chosen].tolist()]


# ---- the evaluation ----------------------------------------------------------------------------------------


#: A function (scores at the clients, target, name) -> metrics at the server.
ScorePairs = Callable[[Located, str, str], Located]


def scored_one_by_one(fed: Federation, data: Located) -> ScorePairs:
    """Prepare the scoring in plaintext, where the server reads the score of every pair."""
    # The pairs are the same in every evaluation, so their routes are agreed once.
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


def scored_as_counts(fed: Federation, data: Located) -> ScorePairs:
    """Prepare the hidden scoring, where the server learns only how many pairs have scores in each bin."""
    like, finer_like = fed.server.run(no_pairs), fed.server.run(no_counts, BINS)

    def score(scores: Located, target: str, name: str) -> Located:
        every = fed.clients.run(every_score, data, scores, target)
        sums = secure_sum(fed, every, None, like, name=HIDDEN_SCORES)

        def count_again(edges: Located) -> Located:
            counts = fed.clients.run(every_count, data, scores, target, edges)
            return secure_sum(fed, counts, None, finer_like, name=HIDDEN_SCORES)

        first = fed.server.run(first_blocks, sums)
        blocks = refine_until(fed, first, count_again, refined, BINS, TOLERANCE, name, metrics=("auc",))
        return fed.server.run(scored_sum, sums, blocks)

    return score


#: The scoring for each protection of sums.
SCORED = {"plaintext": scored_one_by_one, "secure": scored_as_counts}
