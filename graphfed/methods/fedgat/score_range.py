"""The range of the scores in FedGAT's first layer, and whether the polynomial approximates them.

T_n grows outside [-1, 1] like x^n, so the polynomial does not approximate a score outside the domain. The
server has the features and the weights, and checks the scores in every round.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.methods.fedgat.moment_messages import Pooled
from graphfed.methods.fedgat.polynomial_gat import Score, score_function, score_series, score_vectors
from graphfed.nn.sparse import SparseMatrix, spmm

#: Number of points at which the error of the polynomial is measured.
POINTS = 257
#: Largest error that is not reported. An attention coefficient is then wrong by up to 2/9 of itself
#: (Theorem 3).
TOLERATED = 0.1
Tensors = dict[str, Tensor]


def first_facts(device: str) -> Tensors:
    """Build the facts before the first round, when no score has occurred.

    Args:
        device: The torch device of the results.

    Returns:
        largest_score and polynomial_error, both 0.
    """
    return _facts(0.0, 0.0, device)


def score_facts(pooled: Pooled, weights: Tensors, before: Tensors, score: Score) -> Tensors:
    """Update the facts with the scores of the current weights.

    Returns:
        largest_score: the largest |x_ij| so far, or a bound of it if the features are encrypted;
            polynomial_error: the largest `error_between` so far.
    """
    low, high = score_range(pooled, weights)
    largest = max(float(before["largest_score"]), -low, high)
    error = max(float(before["polynomial_error"]), error_between(low, high, score))
    return _facts(largest, error, str(before["largest_score"].device))


def _facts(largest: float, error: float, device: str) -> Tensors:
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


def score_range(pooled: Pooled, weights: Tensors) -> tuple[float, float]:
    """Find the smallest and the largest score x_ij of all heads.

    Returns:
        The smallest and the largest score. If the server has no features, these are bounds for features of
        length at most 1.

    Reference:
        FedGAT, Eq. (4).
    """
    target, source = score_vectors({**weights}).chunk(2)
    if not pooled.x.shape[1]:  # bounds for features of length at most 1
        reach = float((target.norm(dim=0) + source.norm(dim=0)).max())
        return -reach, reach
    x, neighbourhoods, heads, both = (
        pooled.x,
        pooled.neighbourhoods,
        target.shape[1],
        torch.cat([target, source], 1),
    )
    y = spmm(x, both) if isinstance(x, SparseMatrix) else x @ both
    # Eq. (4): x_ij = b1 . h_i + b2 . h_j
    scores = torch.repeat_interleave(y[:, :heads], neighbourhoods.size, 0) + y[neighbourhoods.member, heads:]
    low, high = scores.aminmax()
    return float(low), float(high)


def accept_message(message: dict[str, Any]) -> str:
    """Check a message of `message_of`; see `Federation.control`."""
    fits = {*message} <= {"outside", "error"} and all(type(value) is int for value in message.values())
    return "" if fits else "something else than a range of scores or the error of the polynomial"


def message_of(before: Tensors, after: Tensors, score: Score) -> dict[str, int]:
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
