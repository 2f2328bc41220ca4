"""Stock functions to run at a place: the small ones that many programs need.

fed.server.run(constant, 0.0)            a plain value, at a place
fed.clients.run(detach, h)               a payload as it is, without gradients
"""

from typing import TypeVar

from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.federation.payload import Leaf, Payload
from graphfed.nn.sparse import SparseWeights

__all__ = ["as_leaves"]

P = TypeVar("P", bound=Payload)


def as_leaves(tree: P) -> P:
    """The payload's floating tensors as leaves that collect a gradient. Run it at the place that owns the
    weights."""
    return pay.tree_map(_as_leaf, tree)


def _as_leaf(x: Leaf) -> Leaf:
    if isinstance(x, SparseWeights):
        return x.with_values(x.values.detach().requires_grad_())
    return x.detach().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
