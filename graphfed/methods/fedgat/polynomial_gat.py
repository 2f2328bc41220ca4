"""GAT whose first layer has polynomial scores: sum_n c_n T_n(x / s) in the place of exp(psi(x)) (FedGAT).

It runs on the features (`Batch.x`, with the edges of the first layer) or on the moments of every node's
neighbourhood (`Batch.moments`), with the same result. Later layers are GAT's; what enters them of rows that
other clients work out (`Batch.far`) is given, a constant."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from graphfed.nn.backbones import Backbone, Weights, gat_block, gat_init, gat_layer, gat_output, per_head
from graphfed.nn.batch import Batch
from graphfed.nn.chebyshev import Series, chebyshev_series, evaluate
from graphfed.nn.layers import Dropout, linear
from graphfed.nn.moments import weighted_means
from graphfed.nn.sparse import SparseWeights, entry_sums
from graphfed.random import fold, glorot

__all__ = ["Score", "polynomial_gat", "score_function", "score_series", "score_vectors"]

#: LeakyReLU's slope below 0.
SLOPE = 0.2
#: Of tied scores: what is multiplied with W h.
ATTENTION = ("layers.0.att_src", "layers.0.att_dst")
#: Of free scores: what is multiplied with the features of the source (b2) and of the target (b1), [F, heads].
SOURCE, TARGET = "layers.0.score_src", "layers.0.score_dst"


@dataclass(frozen=True)
class Score:
    """A score and its polynomial. psi: LeakyReLU, or with its kink smoothed, 0.2 x + 0.2 ln(1 + e^(4 x));
    exponential: e = exp(psi), else e = psi; domain: [-domain, domain]; doubled: with the constant term twice,
    as of moments of order 0 that are not halved."""

    psi: Literal["smooth", "leaky_relu"]
    exponential: bool
    degree: int
    domain: float
    doubled: bool = False


def score_function(score: Score) -> Callable[[np.ndarray], np.ndarray]:
    """e."""

    def psi(x: np.ndarray) -> np.ndarray:
        above = np.maximum(x, 0) if score.psi == "leaky_relu" else np.logaddexp(0, 4 * x) / 4
        result: np.ndarray = SLOPE * x + (1 - SLOPE) * above
        return result

    return (lambda x: np.exp(psi(x))) if score.exponential else psi


@cache
def score_series(score: Score) -> Series:
    """c_0, ..., c_p.  Eqs. (5), (6)"""
    series = chebyshev_series(score_function(score), score.degree, score.domain)
    if not score.doubled:
        return series
    constant = float(np.polynomial.chebyshev.chebval(0, series))
    return (series[0] + constant, *series[1:])


def polynomial_gat(score: Score, tied: bool) -> Backbone:
    """tied: scores from the attention vectors, b = W a, as in GAT; else from vectors of their own."""

    def init(key: int, widths: list[int], heads: int) -> dict[str, Tensor]:
        weights = gat_init(key, widths, heads)
        if not tied:
            here = heads if len(widths) > 2 else 1
            for name in (SOURCE, TARGET):
                weights[name] = glorot(fold(key, "free", name), widths[0], here)
            weights = {name: w for name, w in weights.items() if name not in ATTENTION}
        return weights

    def forward(weights: Weights, batch: Batch, dropout: Dropout | None) -> Tensor:
        h = gat_output(_first_layer(weights, batch, score), weights, batch, 0)
        for layer in range(1, batch.layers):
            h = h if batch.far is None else batch.far.put(h, layer)
            h = gat_layer(h, weights, batch, dropout, layer)
        return h

    inputs = ("layers.0.weight",) if tied else ("layers.0.weight", SOURCE, TARGET)
    return Backbone(init, gat_block, forward, inputs, weighted=False)


def _first_layer(weights: Weights, batch: Batch, score: Score) -> Tensor:
    """sum_j e(x_ij) W h_j / sum_j e(x_ij) of every head, [N_1, heads * H]; of far rows (`Batch.far`) anything
    finite.  Eq. (7), before phi"""
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
        # b . h = a . W h
        source, target = (linear(z, per_head(_dense(weights[name])), batch, 0) for name in ATTENTION)
    target = target.index_select(0, block.own)
    x = entry_sums(block.adjacency, target.t().flatten(), source.t().flatten())  # Eq. (4)
    share = evaluate(series, score.domain, x)
    return weighted_means(block.adjacency, z, None, share, source.shape[1])


def score_vectors(weights: Weights) -> Tensor:
    """b1, and b2 below it: [2 F, heads], or every client's."""
    if SOURCE in weights:
        return torch.cat([_dense(weights[TARGET]), _dense(weights[SOURCE])], -2)
    weight = _dense(weights["layers.0.weight"])
    source, target = (weight @ per_head(_dense(weights[name])) for name in ATTENTION)
    return torch.cat([target, source], -2)


def _dense(weight: Tensor | SparseWeights) -> Tensor:
    assert isinstance(weight, Tensor)
    return weight
