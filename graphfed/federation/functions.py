"""Small functions to run at a place, which several programs need.

fed.clients.run(detach, h)                the embeddings, without gradients
fed.server.run(constant, 0)               a number that the server has
fed.clients.run(sum_over_clients, counts) the total of a cohort
"""

from typing import Any, TypeVar

import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.federation.payload import Leaf, Payload
from graphfed.nn.sparse import SparseWeights

P = TypeVar("P", bound=Payload)


def as_leaves(tree: P) -> P:
    """Make the floating tensors of a payload leaves that collect a gradient, without history."""
    return pay.tree_map(_as_leaf, tree)


def _as_leaf(x: Leaf) -> Leaf:
    if isinstance(x, SparseWeights):
        return x.with_values(x.values.detach().requires_grad_())
    return x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x


def detach(tree: P) -> P:
    """Detach a payload from its history, so that no gradient goes back from it."""
    return pay.detach(tree)


def constant(value: float, device: str = "cpu") -> Tensor:
    """Make a scalar tensor from a number: int64 for an integer, else of the default dtype."""
    return torch.tensor(value, device=device)


def empty_state() -> dict[str, Any]:
    """Make a state without values, such as that of an optimiser that has not taken a step."""
    return {}


def full_like(tree: P, value: float) -> P:
    return pay.tree_map(lambda x: torch.full_like(x, value), tree)


def sum_over_clients(tree: P) -> P:
    """Sum tensors [K_h, ...] over the clients of a cohort."""
    return pay.tree_map(lambda x: x.sum(0), tree)


def column(x: Tensor, number: int) -> Tensor:
    return x[:, number]
