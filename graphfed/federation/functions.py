"""Stock functions to run at a place: the small ones that several programs need.

fed.clients.run(detach, h)                the embeddings, without gradients
fed.server.run(constant, 0)               a number that the server has
fed.clients.run(sum_over_clients, counts) a cohort's total
"""

from typing import Any, TypeVar

import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.federation.payload import Leaf, Payload
from graphfed.nn.sparse import SparseWeights

__all__ = ["as_leaves", "column", "constant", "detach", "empty_state", "full_like", "sum_over_clients"]

P = TypeVar("P", bound=Payload)


def as_leaves(tree: P) -> P:
    """Return the payload with its floating tensors as leaves that collect a gradient, at the place that owns
    the weights."""
    return pay.tree_map(_as_leaf, tree)


def _as_leaf(x: Leaf) -> Leaf:
    if isinstance(x, SparseWeights):
        return x.with_values(x.values.detach().requires_grad_())
    return x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x


def detach(tree: P) -> P:
    """Return the payload without its history: no gradient goes back from it."""
    return pay.detach(tree)


def constant(value: float, device: str = "cpu") -> Tensor:
    """Return a number as a tensor: int64 for an integer."""
    return torch.tensor(value, device=device)


def empty_state() -> dict[str, Any]:
    """Return a state without values: of an optimiser that has not taken a step, for example."""
    return {}


def full_like(tree: P, value: float) -> P:
    """Return a payload of the same form with `value` in the place of each number."""
    return pay.tree_map(lambda x: torch.full_like(x, value), tree)


def sum_over_clients(tree: P) -> P:
    """Return the total of a cohort: the sum over the first dimension [K_h, ...], leaf by leaf."""
    return pay.tree_map(lambda x: x.sum(0), tree)


def column(x: Tensor, number: int) -> Tensor:
    """Return one column of a matrix [M, n]: [M]."""
    return x[:, number]
