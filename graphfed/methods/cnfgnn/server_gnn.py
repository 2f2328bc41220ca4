"""The table of networks that the server can run on the road graph.

    graph_network   the published one (graphfed.methods.cnfgnn.graph_network)
    mean_network    the same with means in place of sums, which do not grow with the number of sensors
    gat             two layers of graph attention with four heads (Velickovic et al. 2018); the weight of an
                    edge enters its score
    diffusion       two layers of diffusion convolution, two steps in each direction (Li et al. 2018, Eq. 2)

V nodes, B windows, H hidden. Every network maps [V, B, H] to [V, B, H]. It uses the self loops among the
edges and adds none. A node without edges has an embedding too: that of an empty neighbourhood. In a window in
which a node is no sender, no other node reads its features, and it has an embedding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import elu, leaky_relu

from graphfed.errors import InputError
from graphfed.methods.cnfgnn import graph_network
from graphfed.nn.edges import Edges
from graphfed.nn.precision import product
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.random import fold, glorot

Weights = Mapping[str, Tensor]

LAYERS = 2
HEADS = 4
#: Steps of a diffusion in each direction.
STEPS = 2


@dataclass(frozen=True)
class NetworkFunctions:
    """A network of the server.

    Attributes:
        init: ``init(key, hidden)`` draws the weights, in the default dtype on the CPU.
        forward: ``forward(weights, v, edges, products, senders)`` maps v [V, B, H] to embeddings [V, B, H],
            with gradients for the weights and for v. ``products`` is the dtype of matrix products (None: that
            of the weights). ``senders`` [V, B] bool says in which windows a node sends its features (None:
            in all).
    """

    init: Callable[[int, int], dict[str, Tensor]]
    forward: Callable[[Weights, Tensor, Edges, torch.dtype | None, Tensor | None], Tensor]


# ---- graph attention


def check_gat(hidden: int) -> None:
    """Raise InputError if the hidden width is no multiple of the number of heads."""
    if hidden % HEADS:
        raise InputError(
            f"network=gat has {HEADS} heads, so hidden must be a multiple of {HEADS}; got hidden={hidden}"
        )


def gat_init(key: int, hidden: int) -> dict[str, Tensor]:
    """Draw the weights of graph attention.

    For every layer l these are ``layers.l.weight`` [H, H], ``receiver`` and ``sender`` [heads, H / heads] and
    ``edge`` [heads] (all Glorot), and ``bias`` [H] (zero). Raises what `check_gat` raises.
    """
    check_gat(hidden)
    weights: dict[str, Tensor] = {}
    for layer in range(LAYERS):
        path = f"layers.{layer}"
        weights[f"{path}.weight"] = glorot(fold(key, layer), hidden, hidden)
        for name in ("receiver", "sender"):
            weights[f"{path}.{name}"] = glorot(fold(key, layer, name), HEADS, hidden // HEADS)
        weights[f"{path}.edge"] = glorot(fold(key, layer, "edge"), HEADS, fan=(1, HEADS))
        weights[f"{path}.bias"] = torch.zeros(hidden)
    return weights


def gat(
    weights: Weights,
    v: Tensor,
    edges: Edges,
    products: torch.dtype | None = None,
    senders: Tensor | None = None,
) -> Tensor:
    """Apply two layers of graph attention, with ELU between them.

    Every head weighs a node's senders by the softmax of leaky_relu(a_r . x_r + a_s . x_s + a_e w) with slope
    0.2. The heads' results are concatenated.
    """
    for layer in range(LAYERS):
        v = _attend(weights, f"layers.{layer}", elu(v) if layer else v, edges, products, senders)
    return v


def _attend(
    weights: Weights, path: str, v: Tensor, edges: Edges, products: torch.dtype | None, senders: Tensor | None
) -> Tensor:
    x = product(v, weights[f"{path}.weight"], products).view(*v.shape[:2], HEADS, v.shape[2] // HEADS)
    receiver, sender = ((x * weights[f"{path}.{name}"]).sum(-1) for name in ("receiver", "sender"))
    of_edge = edges.weight.to(v.dtype)[:, None, None] * weights[f"{path}.edge"]
    scores = leaky_relu(receiver[edges.receiver] + sender[edges.sender] + of_edge, 0.2)
    # Subtracting each node's largest score does not change the softmax and keeps exp from overflowing.
    if senders is not None:
        scores = scores.masked_fill(~senders[edges.sender][..., None], -torch.inf)
    # Clamped, because -inf - (-inf) is not a number where a node has no sender.
    largest = edges.max_by_receiver(scores.detach()).clamp(min=torch.finfo(scores.dtype).min)
    weight = (scores - largest[edges.receiver]).exp()
    total = edges.sum_by_receiver(weight)[..., None]
    # [V, B, heads, H / heads]
    mixed = edges.sum_by_receiver(weight[..., None] * x[edges.sender])
    # A node without a sender has a total of 0, and its embedding is the bias.
    return (mixed / torch.where(total > 0, total, 1)).flatten(2) + weights[f"{path}.bias"]


# ---- diffusion convolution


def diffusion_init(key: int, hidden: int) -> dict[str, Tensor]:
    """Draw ``layers.l.weight`` [(1 + 2 * steps) H, H] (Glorot) and ``layers.l.bias`` [H] (zero)."""
    weights: dict[str, Tensor] = {}
    for layer in range(LAYERS):
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), (1 + 2 * STEPS) * hidden, hidden)
        weights[f"layers.{layer}.bias"] = torch.zeros(hidden)
    return weights


def diffusion(
    weights: Weights,
    v: Tensor,
    edges: Edges,
    products: torch.dtype | None = None,
    senders: Tensor | None = None,
) -> Tensor:
    """Apply two layers of diffusion convolution, with ReLU between them.

    A layer computes [x, P x, P^2 x, Q x, Q^2 x] W + b with P = D_out^-1 A and Q = D_in^-1 A^T, where A has
    the weights from sender to receiver. The printed sum has an identity term for each direction; here both
    are one matrix. A walk passes through a node that is no sender, and starts from zeros there.
    """
    shape = (edges.num_nodes, edges.num_nodes)
    # P = D_out^-1 A for the walk along edges, Q = D_in^-1 A^T for the walk against them
    weight = edges.weight.to(v.dtype)
    walks = []
    for start, end in ((edges.sender, edges.receiver), (edges.receiver, edges.sender)):
        degree = weight.new_zeros(shape[0]).index_add_(0, start, weight)
        walks.append(SparseMatrix.from_coo(start, end, weight / degree[start], shape))
    for layer in range(LAYERS):
        x = v.relu() if layer else v
        parts = [x]
        # [V, B, H]; a node that is no sender starts a walk of zeros, but keeps its own features in `parts`.
        sent = x if senders is None else x * senders[..., None]
        for walk in walks:
            step = sent
            for _ in range(STEPS):
                step = spmm(walk, step.flatten(1)).view_as(x)
                parts.append(step)
        v = product(torch.cat(parts, -1), weights[f"layers.{layer}.weight"], products)
        v = v + weights[f"layers.{layer}.bias"]
    return v


SERVER_NETWORKS = {
    "graph_network": NetworkFunctions(graph_network.init, graph_network.graph_network),
    "mean_network": NetworkFunctions(graph_network.init, partial(graph_network.graph_network, means=True)),
    "gat": NetworkFunctions(gat_init, gat),
    "diffusion": NetworkFunctions(diffusion_init, diffusion),
}
