"""Link prediction as methods need it: drawn pairs that are no edges, and the loss.

The loss is Lumos's Eq. (33) with its sign corrected (Hamilton, Ying and Leskovec 2017, Eq. 1): the score h_u
. h_v of a pair is the log-odds of an edge. As many pairs that are no training edges are drawn in every step;
validation and test edges may be among them, because training does not know those.
"""

import torch
from torch import Tensor
from torch.nn.functional import softplus

from graphfed.data.graphs.link_splits import pairs_that_are_no_edge
from graphfed.random import uniform


def negatives(key: int, edges: Tensor, n: int, count: int) -> Tensor:
    """Draw pairs of nodes that are no edges, uniformly and with repetition.

    Edges are [2, m] with u < v, sorted by (u, v), each once. The result is [2, count] int64 with u < v, or
    [2, 0] if every pair is an edge. The key and the number of a draw decide it.
    """
    # Pairs are drawn by their rank among those that are no edge, so no draw has to be rejected and repeated.
    free = n * (n - 1) // 2 - edges.shape[1]
    draw = uniform(key, torch.arange(count if free else 0))[:, 0]
    # With fewer than 2^53 pairs the product with a number below 1 stays below `free`; clamp for more.
    rank = (draw * free).long().clamp(max=free - 1)
    pairs = pairs_that_are_no_edge(edges.cpu().numpy(), n, rank.numpy())
    return torch.from_numpy(pairs).to(edges.device)


def pair_products(h: Tensor, pairs: Tensor) -> Tensor:
    """Score pairs of rows [2, k] of the embeddings [N, H]: h_u . h_v, [k]."""
    return (h[pairs[0]] * h[pairs[1]]).sum(1)


def link_loss(positive: Tensor, negative: Tensor) -> Tensor:
    """Compute mean -log sigma(s) over edges plus mean -log sigma(-s) over drawn pairs, from their scores.

    An empty list of pairs adds nothing.

    Reference:
        Lumos, Eq. (33), with means in the place of sums.
    """
    # Eq. (33): -log sigma(s) = softplus(-s)
    parts = [softplus(scores).mean() for scores in (-positive, negative) if len(scores)]
    return torch.stack(parts).sum() if parts else positive.sum()
