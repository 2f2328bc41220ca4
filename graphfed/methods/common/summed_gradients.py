"""The mean gradient of weights that all clients share, from sums over clients at the server.

In plaintext the weights are leaves of the autograd graph at the server (`broadcast_leaves`): their gradient
flows back over the broadcast and is added up over the clients of a worker, so no gradient of a single client
is stored. Hidden by secure aggregation every client has a gradient of its own, and the number of training
nodes is one more number of the sum (`secure_mean`).
"""

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.federation.secure.aggregation import secure_sum

__all__ = ["broadcast_leaves", "divide", "secure_mean"]

Weights = dict[str, Tensor]


# ---- at the server -----------------------------------------------------------------------------------------


def sum_template(weights: Weights) -> tuple[Weights, Tensor]:
    """Return values of the shape of a sum of gradients and counts."""
    return weights, torch.zeros(())


def divide(gradients: Weights, count: Tensor, weights: Weights) -> Weights:
    """Divide summed gradients by the number of training nodes.

    Args:
        gradients: The sums, each [...].
        count: The number of training nodes, [].
        weights: The weights, in whose dtypes the result is.

    Returns:
        The mean gradient.

    Raises:
        InputError: There is no training node.
    """
    if not bool(count):
        raise InputError("no client has a training node; use another split")
    return {name: (g / count).to(weights[name].dtype) for name, g in gradients.items()}


def divide_sum(total: tuple[Weights, Tensor], weights: Weights) -> Weights:
    """Divide a sum of gradients and counts."""
    return divide(*total, weights)


# ---- the program over places -------------------------------------------------------------------------------


def broadcast_leaves(fed: Federation, weights: Located) -> tuple[Located, Located]:
    """Broadcast weights whose gradients flow back to the server.

    Args:
        fed: The federation, with an open tape.
        weights: The weights, at the server.

    Returns:
        The leaves that collect the gradients, at the server; and the weights at the clients.
    """
    leaves = fed.server.run(as_leaves, weights)
    return leaves, fed.broadcast(leaves, name="model")


def secure_mean(
    fed: Federation, parts: Located, scale: Located | None, weights: Located, *, name: str
) -> Located:
    """Compute the mean gradient from a sum that secure aggregation hides.

    Args:
        fed: The federation.
        parts: At the clients: the gradients of each client, [K_h, ...] tensors or `SparseWeights`, and its
            number of training nodes [K_h]; both are multiplied by `scale`.
        scale: [K_h] at the clients (None: 1 for each).
        weights: The weights, at the server.
        name: What the names of the transfers begin with.

    Returns:
        The mean gradient, at the server.
    """
    total = secure_sum(fed, parts, scale, fed.server.run(sum_template, weights), name=name)
    return fed.server.run(divide_sum, total, weights)
