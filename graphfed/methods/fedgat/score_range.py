"""Which scores the first layer of FedGAT has: its polynomial is for those within the domain.

T_n grows beyond [-1, 1] as fast as x^n, so what the polynomial gives for a score outside the domain is no
approximation. The server, which has the features and the weights, looks in every round."""

import math

import numpy as np
import torch
from torch import Tensor

from graphfed.methods.fedgat.moment_messages import Pooled
from graphfed.methods.fedgat.polynomial_gat import Score, score_function, score_series, score_vectors
from graphfed.nn.sparse import SparseMatrix, spmm

__all__ = ["first_facts", "message_of", "score_facts", "score_range"]

#: Points at which the polynomial is looked at.
POINTS = 257
#: Word is given from this error on: a coefficient is then off by up to a fifth of itself (Theorem 3).
TOLERATED = 0.1
Tensors = dict[str, Tensor]


def first_facts(device: str) -> Tensors:
    """Before any weights: no scores."""
    return _facts(0.0, 0.0, device)


def score_facts(pooled: Pooled, weights: Tensors, before: Tensors, score: Score) -> Tensors:
    """largest_score: |x_ij| at the most so far, or where features are encrypted a bound of it;
    polynomial_error: `error_between` the smallest score and the largest, at the most so far."""
    low, high = score_range(pooled, weights)
    largest = max(float(before["largest_score"]), -low, high)
    error = max(float(before["polynomial_error"]), error_between(low, high, score))
    return _facts(largest, error, str(before["largest_score"].device))


def _facts(largest: float, error: float, device: str) -> Tensors:
    found = torch.tensor([largest, error], dtype=torch.float64, device=device)
    return {"largest_score": found[0], "polynomial_error": found[1]}


def error_between(low: float, high: float, score: Score) -> float:
    """max |sum_n c_n T_n - e| over min e for x between two scores: eta of Theorem 3, where an exponential is
    approximated; else over max |e|."""
    at = np.linspace(low, high, POINTS)
    wanted = score_function(score)(at)
    off = np.abs(np.polynomial.chebyshev.chebval(at / score.domain, score_series(score)) - wanted).max()
    return float(off / (wanted.min() if score.exponential else max(np.abs(wanted).max(), 1e-30)))


def score_range(pooled: Pooled, weights: Tensors) -> tuple[float, float]:
    """The smallest and the largest x_ij of any head.  Eq. (4)"""
    target, source = score_vectors({**weights}).chunk(2)
    if not pooled.x.shape[1]:  # of features of length at most 1
        reach = float((target.norm(dim=0) + source.norm(dim=0)).max())
        return -reach, reach
    x, neighbourhoods, heads, both = (
        pooled.x,
        pooled.neighbourhoods,
        target.shape[1],
        torch.cat([target, source], 1),
    )
    y = spmm(x, both) if isinstance(x, SparseMatrix) else x @ both
    scores = torch.repeat_interleave(y[:, :heads], neighbourhoods.size, 0) + y[neighbourhoods.member, heads:]
    low, high = scores.aminmax()
    return float(low), float(high)


def message_of(before: Tensors, after: Tensors, score: Score) -> dict[str, int]:
    """What has come about since `before`. outside: a whole number that no score is beyond; error: the
    polynomial's for these scores, in percent, rounded up to tens, at most 100."""
    told = {}
    if float(after["largest_score"]) > score.domain >= float(before["largest_score"]):
        told["outside"] = math.ceil(after["largest_score"])
    error = float(after["polynomial_error"])
    if error > TOLERATED >= float(before["polynomial_error"]):
        told["error"] = min(10 * math.ceil(10 * error), 100)
    return told
