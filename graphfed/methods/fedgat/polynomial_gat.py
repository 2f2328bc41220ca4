"""GAT whose first layer has polynomial scores: sum_n c_n T_n(x / s) in place of exp(psi(x)) (FedGAT).

The first layer is evaluated on the features (`Batch.x`, with the edges of the first layer) or on the
moments of every node's neighbourhood (`Batch.moments`), with the same result. The later layers are those of
GAT. Embeddings that other clients compute (`Batch.far`) are inputs of a later layer, without gradient.

T_n grows outside [-1, 1] like x^n, so the polynomial does not approximate a score outside the domain. The
server has the features and the weights, and checks the range of the scores in every round (`score_facts`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from graphfed.methods.fedgat.moment_messages import Pooled
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
from graphfed.nn.sparse import SparseMatrix, SparseWeights, entry_sums, spmm
from graphfed.random import fold, glorot

#: LeakyReLU's slope below 0.
SLOPE = 0.2
#: Weights of tied scores: the vectors that are multiplied with W h.
ATTENTION = ("layers.0.att_src", "layers.0.att_dst")
#: Weights of free scores: the vectors that are multiplied with the features of the source (b2) and of the
#: target (b1), [F, heads].
SOURCE, TARGET = "layers.0.score_src", "layers.0.score_dst"
#: Number of points at which the error of the polynomial is measured.
POINTS = 257
#: Largest error that is not reported. An attention coefficient is then wrong by up to 2/9 of itself
#: (Theorem 3).
TOLERATED = 0.1


# ---- the score and its polynomial --------------------------------------------------------------------------


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
    """Return the score function e, elementwise on arrays.

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
    """Compute the Chebyshev coefficients c_0, ..., c_p of the score.

    Reference:
        FedGAT, Eq. (5) and Eq. (6).
    """
    series = chebyshev_series(score_function(score), score.degree, score.domain)
    if not score.doubled:
        return series
    # The constant term q_0 of the polynomial in powers is its value at 0.
    constant = float(np.polynomial.chebyshev.chebval(0, series))
    return (series[0] + constant, *series[1:])


# ---- the network -------------------------------------------------------------------------------------------


def polynomial_gat(score: Score, tied: bool) -> Backbone:
    """Build the network.

    Args:
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

    def layer(
        h: Tensor | SparseMatrix, weights: Weights, batch: Batch, dropout: Dropout | None, number: int
    ) -> Tensor:
        # Alg. 2, l. 4: the first layer by Eq. (7), from features or moments.
        if not number:
            return gat_output(_first_layer(weights, batch, score), weights, batch, 0)
        # Alg. 2, l. 5: later layers by Eq. (1) to Eq. (3).
        assert isinstance(h, Tensor)
        h = h if batch.far is None else batch.far.insert(h, number)
        return gat_layer(h, weights, batch, dropout, number)

    inputs = ("layers.0.weight",) if tied else ("layers.0.weight", SOURCE, TARGET)
    return Backbone(init, gat_block, layer, inputs, weighted=False)


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
    """Return b1 of Eq. (4), with b2 below it, [2 F, heads]; [K, 2 F, heads] for weights of every client."""
    if SOURCE in weights:
        return torch.cat([dense(weights[TARGET]), dense(weights[SOURCE])], -2)
    weight = dense(weights["layers.0.weight"])
    source, target = (weight @ per_head(dense(weights[name])) for name in ATTENTION)
    return torch.cat([target, source], -2)


# ---- the range of the scores, at the server ----------------------------------------------------------------


def first_facts(device: str) -> dict[str, Tensor]:
    """Return the facts before the first round, when no score has occurred: both 0."""
    return _facts(0.0, 0.0, device)


def score_facts(
    pooled: Pooled, weights: dict[str, Tensor], before: dict[str, Tensor], score: Score
) -> dict[str, Tensor]:
    """Update the facts with the scores of the current weights.

    Returns:
        largest_score: the largest |x_ij| so far, or a bound of it if the features are encrypted;
            polynomial_error: the largest `error_between` so far.
    """
    low, high = score_range(pooled, weights)
    largest = max(float(before["largest_score"]), -low, high)
    error = max(float(before["polynomial_error"]), error_between(low, high, score))
    return _facts(largest, error, str(before["largest_score"].device))


def _facts(largest: float, error: float, device: str) -> dict[str, Tensor]:
    found = torch.tensor([largest, error], dtype=torch.float64, device=device)
    return {"largest_score": found[0], "polynomial_error": found[1]}


def error_between(low: float, high: float, score: Score) -> float:
    """Measure the error of the polynomial for scores between `low` and `high`.

    The error is max |sum_n c_n T_n - e| / min e for an exponential score, which is eta of Theorem 3, and
    max |sum_n c_n T_n - e| / max |e| for a plain score.
    """
    at = np.linspace(low, high, POINTS)
    wanted = score_function(score)(at)
    off = np.abs(np.polynomial.chebyshev.chebval(at / score.domain, score_series(score)) - wanted).max()
    return float(off / (wanted.min() if score.exponential else max(np.abs(wanted).max(), 1e-30)))


def score_range(pooled: Pooled, weights: dict[str, Tensor]) -> tuple[float, float]:
    """Find the smallest and the largest score x_ij of all heads. If the server has no features, they are
    bounds for features of length at most 1.

    Reference:
        FedGAT, Eq. (4).
    """
    target, source = score_vectors({**weights}).chunk(2)
    if not pooled.x.shape[1]:
        reach = float((target.norm(dim=0) + source.norm(dim=0)).max())
        return -reach, reach
    x, neighbourhoods, heads = pooled.x, pooled.neighbourhoods, target.shape[1]
    both = torch.cat([target, source], 1)
    y = spmm(x, both) if isinstance(x, SparseMatrix) else x @ both
    # Eq. (4): x_ij = b1 . h_i + b2 . h_j
    scores = torch.repeat_interleave(y[:, :heads], neighbourhoods.size, 0) + y[neighbourhoods.member, heads:]
    low, high = scores.aminmax()
    return float(low), float(high)


def accept_changes(message: dict[str, Any]) -> str:
    """Check a message of `range_changes`; see `Federation.control`."""
    fits = {*message} <= {"outside", "error"} and all(type(value) is int for value in message.values())
    return "" if fits else "something else than a range of scores or the error of the polynomial"


def range_changes(before: dict[str, Tensor], after: dict[str, Tensor], score: Score) -> dict[str, int]:
    """Compare the facts before and after a round.

    Returns:
        What the round has changed: outside, a whole number that is at least every |score|, if a score left
            the domain for the first time; error, the error of the polynomial in percent, rounded up to tens
            and at most 100, if it exceeded the tolerance for the first time.
    """
    changes = {}
    if float(after["largest_score"]) > score.domain >= float(before["largest_score"]):
        changes["outside"] = math.ceil(after["largest_score"])
    error = float(after["polynomial_error"])
    if error > TOLERATED >= float(before["polynomial_error"]):
        changes["error"] = min(10 * math.ceil(10 * error), 100)
    return changes
