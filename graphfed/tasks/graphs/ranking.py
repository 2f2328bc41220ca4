"""ROC AUC, average precision and recall at 1 % alarms from counts of scores, within a stated tolerance.

These metrics depend on the order of all clients' scores, and a sum over clients does not show an order. So
every client counts its scores in bins, and the server refines the bins until it knows the metrics:

1. The first bins are the same for every run: equal steps of asinh(score) between -100 and 100, and
   everything beyond in the outer two.
2. From the summed counts the server computes the smallest and the largest value that each metric can have
   (`block_ranges`). If they are too far apart, it divides the bins that cause most of the distance and sends
   the new edges to the clients, which count again (`divide`, `refine`).

The metrics are the middle of the two values. Scores are compared as float32. Equal scores are tied as in
scikit-learn: a pair of tied scores counts one half in the AUC, and a threshold takes all nodes with a score.

A score's *code* is an integer with the reverse order of the float32 scores, so the best score comes first.
A *ranking* is a task of its own with scores of its own, one for each class; a *block* is a range of codes of
one ranking with its numbers of positive and negative nodes.

Shapes: G rankings, n nodes, B bins, M blocks of all rankings together.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphfed.federation import Federation, Located, TensorForm
from graphfed.files import JsonObject

METRICS = ("auc", "average_precision", "recall_at_1_percent")
#: The fraction of the nodes, those with the highest scores, that raise an alarm.
ALARMS = 0.01
#: Scores with a larger magnitude are in the outer two of the first bins.
LARGEST_FIRST = 100.0
#: No code is as small or as large as these.
LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
#: How often scores are counted in finer bins, at most. Six times find one score that all nodes have.
REFINEMENTS = 7
#: The distance between the codes of two rankings on one common axis.
AXIS = 1 << 33


def messages(target: str, when: str, scored: str) -> dict[str, str]:
    """Describe the transfers of `refine_until`, but not those of its counts.

    `target` is what the names of the transfers begin with, `when` the beginning of a sentence, and `scored`
    what is scored, as in "nodes of all clients together".
    """
    return {
        f"{target}_refine": f"{when}: the server sends all clients whether they must count scores in finer "
        "bins. Public.",
        f"{target}_bins": f"{when}, if the bins of scores were too coarse: the server sends all clients the "
        f"edges of finer bins. They show between which scores many {scored} lie.",
    }


@dataclass(frozen=True)
class Blocks:
    """The counts of all rankings, ordered by ranking and then from the best score to the worst.

    Attributes:
        low, high: The first code of each block, and the first code after it, [M] int64.
        positives, negatives: Its numbers of nodes, [M] float64.
        rankings: G.
    """

    ranking: Tensor
    low: Tensor
    high: Tensor
    positives: Tensor
    negatives: Tensor
    rankings: int

    def select(self, chosen: Tensor) -> "Blocks":
        """Select blocks by a mask or an index [M]."""
        fields = ("ranking", "low", "high", "positives", "negatives")
        return replace(self, **{name: getattr(self, name)[chosen] for name in fields})


@dataclass(frozen=True)
class Division:
    """How the server divides blocks.

    Attributes:
        edges: The first code of each new bin but the first, ascending, [G, B - 1] int32.
        divided: Which blocks the new bins replace, [M] bool.
    """

    edges: Tensor
    divided: Tensor


# ---- at the clients ----------------------------------------------------------------------------------------


def codes(scores: Tensor) -> Tensor:
    """Compute the codes of scores, int32 of the same shape. An infinite score has that of the largest."""
    largest = torch.finfo(torch.float32).max
    bits = (scores.clamp(-largest, largest).float() + 0.0).view(torch.int32)  # -0 becomes 0
    # As integers, the bits of negative floats grow with the magnitude, so their order must be reversed.
    return ~torch.where(bits < 0, bits ^ HIGHEST, bits)


def first_edges(rankings: int, bins: int, device: torch.device | str = "cpu") -> Tensor:
    half = math.asinh(LARGEST_FIRST)
    # From the best score to the worst, so that the codes ascend.
    edges = torch.linspace(half, -half, bins + 1, dtype=torch.float64, device=device).sinh()[1:-1]
    return codes(edges).expand(rankings, -1)


def count(
    code: Tensor, positive: Tensor, weight: Tensor, client: Tensor, clients: int, edges: Tensor
) -> Tensor:
    """Count every client's nodes in bins of the codes [G, n] with the edges [G, B - 1].

    A node counts `weight` [n] int64. The result is [K, G, 2, B] int64: negative nodes, then positive ones.
    """
    rankings, bins = len(code), edges.shape[1] + 1
    # To the right of equal edges, because an edge is the first code of its bin.
    index = torch.searchsorted(edges.contiguous(), code.contiguous(), right=True)
    ranking = torch.arange(rankings, device=code.device)[:, None]
    cells = ((client * rankings + ranking) * 2 + positive.long()) * bins + index
    counts = torch.zeros(clients * rankings * 2 * bins, dtype=torch.int64, device=code.device)
    return counts.index_add_(0, cells.flatten(), weight.expand_as(cells).flatten()).view(
        clients, rankings, 2, bins
    )


# ---- blocks ------------------------------------------------------------------------------------------------


def blocks_of_counts(counts: Tensor, edges: Tensor) -> Blocks:
    """Convert counts in nodes, [G, 2, B], with the edges of their bins to blocks; empty bins are left out."""
    rankings, _, bins = counts.shape
    outer = edges.new_full((rankings, 1), LOWEST), edges.new_full((rankings, 1), HIGHEST)
    bounds = torch.cat([outer[0], edges, outer[1]], 1).long()
    ranking = torch.arange(rankings, device=counts.device).repeat_interleave(bins)
    negatives, positives = counts.double().unbind(1)
    low, high = bounds[:, :-1].flatten(), bounds[:, 1:].flatten()
    blocks = Blocks(ranking, low, high, positives.flatten(), negatives.flatten(), rankings)
    return blocks.select(blocks.positives + blocks.negatives > 0)


def blocks_of_scores(
    code: Tensor, positive: Tensor, weight: Tensor, ranking: Tensor, rankings: int
) -> Blocks:
    """Return a block for each code that occurs among n nodes, which makes all metrics exact.

    A node counts `weight` nodes, [n] float64, and belongs to a ranking, [n] int64.
    """
    key, block = torch.unique(ranking * AXIS + code + (1 << 31), return_inverse=True)
    ranking, low = key // AXIS, key % AXIS - (1 << 31)
    positives, negatives = (
        weight.new_zeros(len(key)).index_add_(0, block, weight * chosen) for chosen in (positive, ~positive)
    )
    return Blocks(ranking, low, low + 1, positives, negatives, rankings)


def totals(blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Return the numbers of positive and of negative nodes of each ranking, [G] each."""
    nothing = blocks.positives.new_zeros(blocks.rankings)
    positives, negatives = blocks.positives, blocks.negatives
    return tuple(nothing.index_add(0, blocks.ranking, x) for x in (positives, negatives))  # type: ignore[return-value]


def block_ranges(blocks: Blocks) -> dict[str, tuple[Tensor, Tensor]]:
    """Compute the least and the most that each block can contribute to each metric, [M] each.

    In a block of several codes, the scores may be in any order, with any of them tied.
    """
    p, n = blocks.positives, blocks.negatives
    start = torch.searchsorted(blocks.ranking, blocks.ranking)  # the first block of each one's ranking
    all_p, all_n = (x[blocks.ranking] for x in totals(blocks))
    p_before, n_before = (before - before[start] for before in (p.cumsum(0) - p, n.cumsum(0) - n))
    tied = blocks.high - blocks.low == 1

    # ROC AUC: pairs of a positive node with a negative one of a smaller score.
    below, pairs = all_n - n_before - n, all_p * all_n
    auc = [p * (below + inside) / pairs for inside in (n / 2 * tied, torch.where(tied, n / 2, n))]

    # Average precision: the precision at the threshold of each positive node. At worst, all negative nodes of
    # the block come first and the positive ones one by one: the sum over i <= p of (p_before + i) / (p_before
    # + i + others), where `others` are the negative nodes down to the end of the block.
    others, one = n_before + n, torch.finfo(p.dtype).tiny
    at_end = p * (p_before + p) / (p_before + p + others).clamp(min=one)
    at_best = p * (p_before + p) / (p_before + p + n_before).clamp(min=one)
    after = p_before + others + 1
    at_worst = p - others * (torch.digamma(after + p) - torch.digamma(after))
    precision = [torch.where(tied, at_end, other) / all_p for other in (at_worst, at_best)]

    # Recall: the alarms, at least one, are the nodes with the highest scores; a tied block in proportion.
    alarms = (ALARMS * (all_p + all_n)).clamp(min=1.0)
    taken = (alarms - p_before - n_before).clamp(min=0.0).minimum(p + n)
    in_proportion = p * taken / (p + n)
    fewest, most = (taken - n).clamp(min=0.0), taken.minimum(p)
    recall = [torch.where(tied, in_proportion, other) / all_p for other in (fewest, most)]
    return {name: (x[0], x[1]) for name, x in zip(METRICS, (auc, precision, recall), strict=True)}


def ranked_metrics(blocks: Blocks) -> dict[str, Tensor]:
    """Compute the metrics of each ranking, [G] by name; nan without a positive or without a negative node."""
    positives, negatives = totals(blocks)
    metrics = {}
    for name, (least, most) in block_ranges(blocks).items():
        value = torch.zeros_like(positives).index_add_(0, blocks.ranking, (least + most) / 2)
        # Recall needs no negative node; the other two compare positive nodes with negative ones.
        known = (positives > 0) & ((negatives > 0) | (name == "recall_at_1_percent"))
        metrics[name] = value.where(known, math.nan)
    return metrics


def uncertainty(blocks: Blocks, *metrics: str) -> Tensor:
    """Compute what each block adds to the largest error that a mean over the rankings can have, [M].

    An error is half of the distance between the least and the most. Of the metrics (all without names), that
    with the largest one counts. Rankings without a positive or without a negative node add nothing.
    """
    positives, negatives = totals(blocks)
    known = (positives > 0) & (negatives > 0)
    ranges = block_ranges(blocks)
    halves = torch.stack([(ranges[m][1] - ranges[m][0]) / 2 for m in metrics or METRICS]).amax(0)
    return halves.where(known[blocks.ranking], 0.0) / known.sum().clamp(min=1)


# ---- refinement, at the server -----------------------------------------------------------------------------


def divide(blocks: Blocks, bins: int, tolerance: float, *metrics: str) -> Division | None:
    """Divide the blocks that make the metrics (all without names) uncertain into bins, B of at least 4.

    `tolerance` is the largest error of a mean over the rankings that is good enough. None if the metrics are
    certain enough, or no bin can be divided.
    """
    unsure = uncertainty(blocks, *metrics)
    unsure = unsure.where(blocks.high - blocks.low > 1, 0.0)
    if float(unsure.sum()) <= tolerance:
        return None
    edges, divided = [], torch.zeros_like(unsure, dtype=torch.bool)
    for ranking in range(blocks.rankings):
        chosen, parts = _parts((blocks.ranking == ranking).nonzero()[:, 0], unsure, bins - 1)
        parts = parts.minimum(blocks.high[chosen] - blocks.low[chosen])
        every = parts + 1  # a block of so many parts has one edge more, its ends among them
        step = torch.arange(int(every.sum()), device=every.device)
        step -= (every.cumsum(0) - every).repeat_interleave(every)
        low, width, of = (
            x.repeat_interleave(every)
            for x in (blocks.low[chosen], blocks.high[chosen] - blocks.low[chosen], parts)
        )
        edges.append(low + width * step // of)
        divided[chosen] = True
    # Edges that are not needed lie above all codes, so their bins stay empty.
    padded = [torch.cat([e, e.new_full((bins - 1 - len(e),), HIGHEST)]) for e in edges]
    return Division(torch.stack(padded).clamp(LOWEST, HIGHEST).int(), divided)


def _parts(blocks: Tensor, unsure: Tensor, edges: int) -> tuple[Tensor, Tensor]:
    """Choose which of the blocks [M'] to divide, and into how many parts, so that `edges` edges are enough.

    A block gets edges in proportion to its uncertainty. If this is too little for any of them to be divided,
    the most uncertain ones are divided in two.
    """
    share = unsure[blocks] / unsure[blocks].sum().clamp(min=torch.finfo(unsure.dtype).tiny)
    parts = (share * edges).long() - 1
    chosen = parts >= 2
    if bool(chosen.any()):
        return blocks[chosen], parts[chosen]
    worst = unsure[blocks].argsort(descending=True, stable=True)[: edges // 3].sort().values
    worst = worst[unsure[blocks[worst]] > 0]
    return blocks[worst], torch.full_like(worst, 2)


def refine(blocks: Blocks, division: Division, counts: Tensor) -> Blocks:
    """Replace the divided blocks by the bins in them, with counts in nodes, [G, 2, B]."""
    bins = blocks_of_counts(counts, division.edges)
    old = blocks.select(division.divided)
    if not len(old.low):
        return blocks
    axis = [x.ranking * AXIS + x.low for x in (old, bins)]
    place = torch.searchsorted(axis[0], axis[1], right=True) - 1
    # Bins between two divided blocks repeat counts of blocks that stay as they are; they are dropped.
    within = (place >= 0) & (bins.ranking == old.ranking[place]) & (bins.high <= old.high[place])
    return join(blocks.select(~division.divided), bins.select(within))


def join(one: Blocks, other: Blocks) -> Blocks:
    fields = ("ranking", "low", "high", "positives", "negatives")
    both = {name: torch.cat([getattr(one, name), getattr(other, name)]) for name in fields}
    order = (both["ranking"] * AXIS + both["low"]).argsort()
    return Blocks(**both, rankings=one.rankings).select(order)


# ---- the program over places -------------------------------------------------------------------------------


def refine_until(
    fed: Federation,
    blocks: Located,
    count_again: Callable[[Located], Located],
    merge: Callable[..., Blocks],
    bins: int,
    tolerance: float,
    name: str,
    metrics: tuple[str, ...] = METRICS,
) -> Located:
    """Let the clients count their scores in finer bins until the metrics are known well enough (`divide`).

    `blocks` are those of the first counts, at the server. `count_again` maps edges at the clients to counts
    that are summed at the server, where `merge` makes the refined blocks of (blocks, division, counts).
    `name` begins the names of the transfers. After `REFINEMENTS` counts the blocks may still be too coarse.
    """
    for _ in range(REFINEMENTS):
        division = fed.server.run(divide, blocks, bins, tolerance, *metrics)
        if not fed.control(is_needed, division, name=f"{name}_refine", values={"refine": bool})["refine"]:
            break
        form = TensorForm(torch.int32, (None, bins - 1))
        edges = fed.broadcast(fed.server.run(edges_of, division), name=f"{name}_bins", grad=False, like=form)
        blocks = fed.server.run(merge, blocks, division, count_again(edges))
    return blocks


def is_needed(division: Division | None) -> JsonObject:
    return {"refine": division is not None}


def edges_of(division: Division) -> Tensor:
    return division.edges
