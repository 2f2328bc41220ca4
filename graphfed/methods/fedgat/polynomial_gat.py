"""GAT whose first layer has polynomial scores: sum_n c_n T_n(x / s) in place of exp(psi(x)) (FedGAT).

The first layer is evaluated on the features (`Batch.x`, with the edges of the first layer) or on the
moments of every node's neighbourhood (`Batch.moments`), with the same result. The later layers are those of
GAT. Embeddings that other clients compute (`Batch.far`) are inputs of a later layer, without gradient.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from graphfed.nn.backbones import (
    Backbone,
    Weights,
    dense,
    gat_block,
    gat_init,
    gat_layer,
    gat_output,
    per_head,
)
from graphfed.nn.batch import Batch
from graphfed.nn.chebyshev import Series, chebyshev_series, evaluate
from graphfed.nn.layers import Dropout, linear
from graphfed.nn.moments import weighted_means
from graphfed.nn.sparse import SparseWeights, entry_sums
from graphfed.random import fold, glorot

#: LeakyReLU's slope below 0.
SLOPE = 0.2
#: Weights of tied scores: the vectors that are multiplied with W h.
ATTENTION = ("layers.0.att_src", "layers.0.att_dst")
#: Weights of free scores: the vectors that are multiplied with the features of the source (b2) and of the
#: target (b1), [F, heads].
SOURCE, TARGET = "layers.0.score_src", "layers.0.score_dst"


@dataclass(frozen=True)
class Score:
    """A score function e and its polynomial.

    Attributes:
        psi: LeakyReLU, or LeakyReLU with its kink smoothed, 0.2 x + 0.2 ln(1 + e^(4 x)).
        exponential: Whether e = exp(psi); else e = psi.
        degree: p.
        domain: s; the polynomial is fitted on [-s, s].
        doubled: Whether the constant term counts twice, as if the moments of order 0 were not halved.
    """

    psi: Literal["smooth", "leaky_relu"]
    exponential: bool
    degree: int
    domain: float
    doubled: bool = False


def score_function(score: Score) -> Callable[[np.ndarray], np.ndarray]:
    """Return the score function e.

    Returns:
        e, elementwise on arrays.

    Reference:
        FedGAT, Eq. (4).
    """

    def psi(x: np.ndarray) -> np.ndarray:
        positive = np.maximum(x, 0) if score.psi == "leaky_relu" else np.logaddexp(0, 4 * x) / 4
        result: np.ndarray = SLOPE * x + (1 - SLOPE) * positive
        return result

    return (lambda x: np.exp(psi(x))) if score.exponential else psi


@cache
def score_series(score: Score) -> Series:
    """Compute the Chebyshev coefficients of the score.

    Args:
        score: The score function and the degree.

    Returns:
        c_0, ..., c_p.

    Reference:
        FedGAT, Eq. (5) and Eq. (6).
    """
    series = chebyshev_series(score_function(score), score.degree, score.domain)
    if not score.doubled:
        return series
    # The constant term q_0 of the polynomial in powers is its value at 0.
    constant = float(np.polynomial.chebyshev.chebval(0, series))
    return (series[0] + constant, *series[1:])


def polynomial_gat(score: Score, tied: bool) -> Backbone:
    """Build the network.

    Args:
        score: The score function and its polynomial.
        tied: Whether the score vectors follow from the attention vectors, b = W a, as in GAT; else they are
            weights of their own.

    Reference:
        FedGAT, Alg. 2, l. 4 and 5.
    """

    def init(key: int, widths: list[int], heads: Sequence[int]) -> dict[str, Tensor]:
        weights = gat_init(key, widths, heads)
        if not tied:
            for name in (SOURCE, TARGET):
                weights[name] = glorot(fold(key, "free", name), widths[0], heads[0])
            weights = {name: w for name, w in weights.items() if name not in ATTENTION}
        return weights

    def forward(weights: Weights, batch: Batch, dropout: Dropout | None) -> Tensor:
        # Alg. 2, l. 4: the first layer by Eq. (7).
        h = gat_output(_first_layer(weights, batch, score), weights, batch, 0)
        # Alg. 2, l. 5: later layers by Eq. (1) to Eq. (3).
        for layer in range(1, batch.layers):
            h = h if batch.far is None else batch.far.insert(h, layer)
            h = gat_layer(h, weights, batch, dropout, layer)
        return h

    inputs = ("layers.0.weight",) if tied else ("layers.0.weight", SOURCE, TARGET)
    return Backbone(init, gat_block, forward, inputs, weighted=False)


def _first_layer(weights: Weights, batch: Batch, score: Score) -> Tensor:
    """Compute the attention means of the first layer: sum_j e(x_ij) W h_j / sum_j e(x_ij) for every head.

    Returns:
        [N_1, heads * H], before phi. The rows of far nodes (`Batch.far`) are replaced later.

    Reference:
        FedGAT, Eq. (7).
    """
    weight, series = weights["layers.0.weight"], score_series(score)
    if batch.moments is not None:
        assert not isinstance(weight, SparseWeights)
        h = batch.moments.attention(weight, score_vectors(weights), series, score.domain)
        if batch.far is None:
            return h
        return h.new_zeros(len(batch.ids[1]), h.shape[1]).index_copy(0, batch.far.near, h)
    z, block = linear(batch.x, weight, batch, 0), batch.blocks[0]
    assert block is not None
    if SOURCE in weights:
        source, target = (linear(batch.x, weights[name], batch, 0) for name in (SOURCE, TARGET))
    else:
        # b . h = a . W h, with b = W' a of Eq. (4)
        source, target = (linear(z, per_head(dense(weights[name])), batch, 0) for name in ATTENTION)
    target = target.index_select(0, block.own)
    x = entry_sums(block.adjacency, target.t().flatten(), source.t().flatten())  # Eq. (4)
    scores = evaluate(series, score.domain, x)
    return weighted_means(block.adjacency, z, None, scores, source.shape[1])


def score_vectors(weights: Weights) -> Tensor:
    """Return b1 of Eq. (4), with b2 below it.

    Args:
        weights: The weights of the network, or those of every client (with a leading dimension).

    Returns:
        [2 F, heads], or [K, 2 F, heads].
    """
    if SOURCE in weights:
        return torch.cat([dense(weights[TARGET]), dense(weights[SOURCE])], -2)
    weight = dense(weights["layers.0.weight"])
    source, target = (weight @ per_head(dense(weights[name])) for name in ATTENTION)
    return torch.cat([target, source], -2)
