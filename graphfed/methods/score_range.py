"""Which scores the first layer of FedGAT has: its polynomial is for those within the domain.

T_n grows beyond [-1, 1] as fast as x^n, so what the polynomial gives for a score outside the domain is no
approximation. The server, which has the features and the weights, looks in every round."""

import math

import numpy as np
import torch
from torch import Tensor

from graphfed.methods.moment_messages import Pooled
from graphfed.nn.polynomial_gat import Score, score_series, score_vectors
from graphfed.nn.sparse import SparseMatrix, spmm

__all__ = ["first_facts", "news_of", "score_facts", "score_range"]

#: Points at which the polynomial is looked at.
POINTS = 257
Tensors = dict[str, Tensor]


def first_facts(score: Score, device: str) -> Tensors:
    """Before any weights: no scores but 0."""
    return _facts(0.0, _least(score, 0.0, 0.0), device)


def score_facts(pooled: Pooled, weights: Tensors, before: Tensors, score: Score) -> Tensors:
    """largest_score: |x_ij| at the most so far, or where features are encrypted a bound of it;
    least_polynomial: sum_n c_n T_n at the least, between the smallest score and the largest."""
    low, high = score_range(pooled, weights)
    largest = max(float(before["largest_score"]), -low, high)
    least = min(float(before["least_polynomial"]), _least(score, low, high))
    return _facts(largest, least, str(before["largest_score"].device))


def _facts(largest: float, least: float, device: str) -> Tensors:
    found = torch.tensor([largest, least], dtype=torch.float64, device=device)
    return {"largest_score": found[0], "least_polynomial": found[1]}


def _least(score: Score, low: float, high: float) -> float:
    at = np.linspace(low, high, POINTS) / score.domain
    return float(np.polynomial.chebyshev.chebval(at, score_series(score)).min())


def score_range(pooled: Pooled, weights: Tensors) -> tuple[float, float]:
    """The smallest and the largest x_ij of any head.  Eq. (4)"""
    target, source = score_vectors({**weights}).chunk(2)
    if not pooled.x.shape[1]:  # of features of length at most 1
        reach = float((target.norm(dim=0) + source.norm(dim=0)).max())
        return -reach, reach
    x, hoods, heads, both = pooled.x, pooled.hoods, target.shape[1], torch.cat([target, source], 1)
    y = spmm(x, both) if isinstance(x, SparseMatrix) else x @ both
    scores = torch.repeat_interleave(y[:, :heads], hoods.size, 0) + y[hoods.member, heads:]
    low, high = scores.aminmax()
    return float(low), float(high)


def news_of(before: Tensors, after: Tensors, score: Score) -> dict[str, int]:
    """What has come about since `before`. outside: a whole number that no score is beyond; negative: 1 where
    the polynomial of an exponential is not positive."""
    told = {}
    if float(after["largest_score"]) > score.domain >= float(before["largest_score"]):
        told["outside"] = math.ceil(after["largest_score"])
    if score.exponential and float(after["least_polynomial"]) <= 0 < float(before["least_polynomial"]):
        told["negative"] = 1
    return told
