"""Link prediction as methods need it: pairs that are no edge to learn from, and the loss.

Lumos's Eq. (33) as corrected (Hamilton, Ying and Leskovec 2017, Eq. 1): an edge's score h_u . h_v is the
log-odds of an edge, and as many pairs that are no training edge are drawn anew in every step. A pair of the
validation or test part may be drawn among them: training does not know those."""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from graphfed.data.graphs.link_splits import pairs_that_are_no_edge
from graphfed.random import uniform

__all__ = ["link_loss", "negatives", "pair_products"]


def negatives(key: int, edges: Tensor, n: int, count: int) -> Tensor:
    """`count` pairs u < v of the nodes 0..n-1 that are none of the edges, [2, count] int64: uniform draws,
    with repetition, that the key and the draw's number decide. edges [2, m]: u < v, sorted by (u, v), each
    once. [2, 0] where every pair is an edge."""
    free = n * (n - 1) // 2 - edges.shape[1]
    draw = uniform(key, torch.arange(count if free else 0))[:, 0]
    # Below 2^53 pairs a product of a number below 1 stays below `free`.
    rank = (draw * free).long().clamp(max=free - 1)
    pairs = pairs_that_are_no_edge(edges.cpu().numpy(), n, rank.numpy())
    return torch.from_numpy(pairs).to(edges.device)


def pair_products(h: Tensor, pairs: Tensor) -> Tensor:
    """h_u . h_v [k] of the rows h [N, H] at pairs [2, k]."""
    return (h[pairs[0]] * h[pairs[1]]).sum(1)


def link_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """mean -log sigma(s) over the scores of edges [p] + mean -log sigma(-s) over those of other pairs [q]; a
    part without a pair adds nothing."""
    parts = [softplus(scores).mean() for scores in (-positive, negative) if len(scores)]
    return torch.stack(parts).sum() if parts else positive.sum()
