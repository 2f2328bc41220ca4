"""The server's graph network of CNFGNN, with skip connections (Battaglia et al. 2018; Eq. (3) of the paper).

    V nodes, E directed edges, B windows, H hidden; edges go from a sender to a receiver

A layer updates edges, nodes and one global vector of each window by MLPs with two hidden layers (Eq. (3)):

    e' = MLP_edge([v_receiver, v_sender, e, u])
    v' = MLP_node([v, sum of the e' of edges into the node, u])
    u' = MLP_global([sum of v', sum of e', u])

Its outputs are [v', v], [e', e] and [u', u]. Initially e is the weight of the edge and u is H zeros. A linear
map of the last layer's nodes gives the output. The last layer's u' is not read and not computed; its weights
are there, because the published number of weights includes them, and their gradients are zero.

There are many more edges than nodes, so the work for each edge is kept small. The first layer of MLP_edge is
linear in its parts: the products for nodes are computed once for each node and looked up. Its last layer is
linear, so edges are summed before it. If the next layer of the network reads e', this linear map and the
first layer of the next MLP_edge are multiplied to one matrix. What remains for each edge is the product of
the second layer, and one for each earlier e'. Windows are independent: a group of windows passes the network
at a time, and the edges' part processes only as many windows at a time as fit into the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from graphfed.nn.edges import Edges
from graphfed.nn.precision import product
from graphfed.random import fold, uniform_weights

Weights = Mapping[str, Tensor]

#: The number of edges, over all their windows, that are processed at a time; they fit the cache at width 256.
ROWS = 2048
#: The number of nodes of a group, over all its windows; enough rows for fast products.
GROUP = 2048
#: The largest number of edges, over all windows, whose hidden layers are stored for the backward pass, 4
#: kB each at width 256. With more edges, groups are computed again in the backward pass.
KEPT = 1 << 20


def init(key: int, hidden: int = 64, width: int = 256, out: int = 128, layers: int = 2) -> dict[str, Tensor]:
    """Draw the weights as torch.nn.Linear does, from U(-1/sqrt(F), 1/sqrt(F)) for F inputs:
    ``layers.<l>.<edge|vertex|global>.<0|1|2>.<weight|bias>`` and ``out.<weight|bias>``, in the default dtype
    on the CPU.

    width, out: hidden and output width of the MLPs.
    """
    weights: dict[str, Tensor] = {}

    def linear(path: str, fan_in: int, fan_out: int) -> None:
        for name, shape in (("weight", (fan_in, fan_out)), ("bias", (fan_out,))):
            weights[f"{path}.{name}"] = uniform_weights(fold(key, path, name), fan_in**-0.5, *shape)

    node, edge, shared = hidden, 1, hidden
    for layer in range(layers):
        inputs = {"edge": 2 * node + edge + shared, "vertex": node + out + shared, "global": 2 * out + shared}
        for part, fan_in in inputs.items():
            for depth, widths in enumerate(((fan_in, width), (width, width), (width, out))):
                linear(f"layers.{layer}.{part}.{depth}", *widths)
        node, edge, shared = node + out, edge + out, shared + out
    linear("out", node, hidden)
    return weights


def graph_network(
    weights: Weights,
    v: Tensor,
    edges: Edges,
    products: torch.dtype | None = None,
    senders: Tensor | None = None,
    *,
    means: bool = False,
) -> Tensor:
    """Compute the nodes' embeddings [V, B, H] from their features v [V, B, H] (Eq. (3);
    docs/papers/cnfgnn.md, differences 1, 12 and 13).

    products: the dtype of matrix products; None for that of the weights. senders: [V, B] bool: in which
    windows a node is a sender; None for all. No other embedding depends on the features of a node that is
    none. means: take means over edges and nodes in place of sums, which grow with the graph.
    """
    layers = _layers(weights, v.shape[2])

    def run(part: Tensor, sent: Tensor | None) -> Tensor:
        features = _features(layers, part, edges, products, means, sent)
        return product(features, weights["out.weight"], products).view(part.shape)

    # Time for memory: above KEPT the hidden layers of edges are computed again in the backward pass.
    again = torch.is_grad_enabled() and v.shape[1] * edges.count > KEPT
    size = max(1, GROUP // max(1, len(v)))
    # [V, B, H] to groups of windows [b, V, H], so that a group's nodes are contiguous.
    parts = torch.split(v.transpose(0, 1), size)
    sent: Sequence[Tensor | None] = [None] * len(parts)
    if senders is not None:
        sent = torch.split(senders.t().contiguous().to(v.dtype), size)
    found = [
        checkpoint(run, part, s, use_reentrant=False) if again else run(part, s)
        for part, s in zip(parts, sent, strict=True)
    ]
    last = f"layers.{len(layers) - 1}.global"
    # The last global MLP is not read. Multiplied by 0, its weights have a gradient of zero and not none.
    unread = torch.stack([w.sum() for name, w in weights.items() if name.startswith(last)]).sum()
    return torch.cat(found).transpose(0, 1) + (weights["out.bias"] + 0 * unread)


@dataclass(frozen=True)
class _LayerWeights:
    """The weights of one layer, with the first matrix of MLP_edge in parts.

    Attributes:
        receiver: The part of MLP_edge's first matrix for the receiver, [Hv, F].
        sender: The part for the sender, [Hv, F].
        weight: The part for the edge's weight, [F].
        shared: The part for the global vector, [Hu, F].
        bias: The bias of MLP_edge's first layer, [F].
        below: For each earlier layer, from the last to the first, the product of its MLP_edge's last matrix
            and this layer's part for its e', [F, F].
        second: Weight and bias of MLP_edge's second layer.
        third: Weight and bias of MLP_edge's third layer.
        shared_vector: Weights and biases of MLP_global.
    """

    receiver: Tensor
    sender: Tensor
    weight: Tensor
    shared: Tensor
    bias: Tensor
    below: list[Tensor]
    second: tuple[Tensor, Tensor]
    third: tuple[Tensor, Tensor]
    node: list[tuple[Tensor, Tensor]]
    shared_vector: list[tuple[Tensor, Tensor]]


def _layers(weights: Weights, hidden: int) -> list[_LayerWeights]:
    layers: list[_LayerWeights] = []
    while f"layers.{len(layers)}.edge.0.weight" in weights:
        path = f"layers.{len(layers)}"
        (first, bias), second, third = _mlp_weights(weights, f"{path}.edge")
        node = hidden + sum(len(layer.third[1]) for layer in layers)
        # [v_receiver, v_sender, e' of the layers below from the last to the first, edge weight, u]
        widths = [node, node, *(len(layer.third[1]) for layer in reversed(layers)), 1, node]
        receiver, sender, *new, weight, shared = torch.split(first, widths)
        below = []
        for part, layer in zip(new, reversed(layers), strict=True):
            # The last map of MLP_edge is linear, so this layer takes in its matrix and its bias.
            below.append(layer.third[0] @ part)
            bias = bias + layer.third[1] @ part
        edge = (receiver, sender, weight[0], shared, bias, below, second, third)
        others = (_mlp_weights(weights, f"{path}.{part}") for part in ("vertex", "global"))
        layers.append(_LayerWeights(*edge, *others))
    return layers


def _mlp_weights(weights: Weights, path: str) -> list[tuple[Tensor, Tensor]]:
    return [(weights[f"{path}.{i}.weight"], weights[f"{path}.{i}.bias"]) for i in range(3)]


def _features(
    layers: list[_LayerWeights],
    v: Tensor,
    edges: Edges,
    products: torch.dtype | None,
    means: bool,
    senders: Tensor | None,
) -> Tensor:
    """Apply l layers to the nodes of b windows: v [b, V, H] -> [b V, H + l * out]; senders [b, V], 1 or 0."""
    windows, nodes, width = v.shape
    v, u = v.reshape(-1, width), v.new_zeros(windows, width)
    sent = v.new_ones(windows, nodes) if senders is None else senders
    # [b V, 1], the number of edges from senders into each node: how often a bias is added in a sum of e'.
    degree = torch.zeros_like(sent).index_add_(1, edges.receiver, sent[:, edges.sender]).view(-1, 1)
    hidden: list[Tensor] = []

    def to_nodes(of_window: Tensor) -> Tensor:
        return of_window.repeat_interleave(nodes, 0)

    def over_nodes(x: Tensor) -> Tensor:
        x = x.view(windows, nodes, -1)
        # A node that is no sender must not reach others through the global vector either.
        total = (x if senders is None else x * senders[..., None]).sum(1)
        return total / sent.sum(1, keepdim=True).clamp(min=1) if means else total

    for layer in layers:
        # Eq. (3): MLP_edge, without its last linear map
        # [b V, F]: once for each node, and looked up for its edges.
        receiver = product(v, layer.receiver, products) + to_nodes(u @ layer.shared + layer.bias)
        sender = product(v, layer.sender, products)
        below = [x for pair in zip(layer.below, hidden, strict=True) for x in pair]
        tensors = (receiver, sender, layer.weight, *layer.second, *below)
        sums, second = _EdgeHidden.apply(edges, products, senders, *tensors)  # type: ignore[no-untyped-call]
        hidden.insert(0, second)
        # The sum of e' over the edges into a node: the last linear map of MLP_edge, applied to the sum.
        received = product(sums, layer.third[0], products) + degree * layer.third[1]
        if means:
            received = received / degree.clamp(min=1)
        # Eq. (3): MLP_node
        weight, bias = layer.node[0]
        # u is equal at all nodes of a window, so its product is computed once for the window.
        of_node, of_window = weight.tensor_split([-u.shape[1]])
        x = product(torch.cat([v, received], 1), of_node, products) + to_nodes(u @ of_window + bias)
        new_v = _mlp(layer.node[1:], x, products)
        if layer is not layers[-1]:
            # Eq. (3): MLP_global
            weight, bias = layer.shared_vector[0]
            x = torch.cat([over_nodes(new_v), over_nodes(received), u], 1) @ weight + bias
            u = torch.cat([_mlp(layer.shared_vector[1:], x, products), u], 1)
        # Skip connection: the outputs are [v', v], [e', e] and [u', u].
        v = torch.cat([new_v, v], 1)
    return v


def _mlp(mlp: list[tuple[Tensor, Tensor]], x: Tensor, products: torch.dtype | None) -> Tensor:
    """Apply the layers of an MLP after its first; x is the first layer's output before the ReLU."""
    for weight, bias in mlp:
        x = product(x.relu(), weight, products) + bias
    return x


class _EdgeHidden(torch.autograd.Function):
    """The second hidden layer of MLP_edge for b windows, and its sums over the edges into every node.

    `forward` takes which nodes are senders, [b, V], or None; the parts of the first layer for receivers and
    senders, [b V, F]; the row of the first layer for the edge's weight, w [F]; weight and bias of the second
    layer; and in turn the matrices [F, F] and hidden layers [b E, F] of earlier layers, `below`. It returns
    the sums [b V, F], and the hidden layer [b E, F] in the dtype of products, with zeros where the node that
    an edge comes from is no sender.
    """

    @staticmethod
    def forward(
        ctx: Any,
        edges: Edges,
        products: torch.dtype | None,
        senders: Tensor | None,
        receiver: Tensor,
        sender: Tensor,
        w: Tensor,
        weight: Tensor,
        bias: Tensor,
        *below: Tensor,
    ) -> tuple[Tensor, Tensor]:
        products, width = products or receiver.dtype, receiver.shape[1]
        windows = len(receiver) // edges.num_nodes
        # Both hidden layers are stored for `backward`, in the dtype of products.
        first, second = (receiver.new_empty(windows * edges.count, width, dtype=products) for _ in range(2))
        sums = torch.empty_like(receiver)
        matrices = [matrix.to(products) for matrix in below[::2]]
        short_weight, short_bias = weight.to(products), bias.to(products)
        for part, node, edge in _parts(edges, windows):
            # In place: x [b E, F] is the largest tensor, and the time goes into reading and writing it.
            x = receiver[node].index_select(0, part.receiver).add_(sender[node].index_select(0, part.sender))
            x.addcmul_(part.weight.to(x.dtype)[:, None], w)
            for matrix, hidden in zip(matrices, below[1::2], strict=True):
                _add_product(x, hidden[edge], matrix)
            torch.relu_(x)
            first[edge] = x
            torch.addmm(short_bias, first[edge], short_weight, out=second[edge]).relu_()
            if senders is not None:
                # Zeros have no gradient in `backward`, as where the ReLU is zero.
                second[edge] *= senders.view(-1, 1)[node].index_select(0, part.sender).to(products)
            sums[node] = part.sum_by_receiver(second[edge].to(receiver.dtype))
        ctx.edges, ctx.windows = edges, windows
        # The last layer's hidden layer is not read, and its gradient is None and not a tensor of zeros.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(first, second, weight, *below)
        return sums, second

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_sums: Tensor, grad_second: Tensor | None) -> tuple[Tensor | None, ...]:
        edges: Edges = ctx.edges
        first, second, weight, *below = ctx.saved_tensors
        products, dtype = first.dtype, grad_sums.dtype
        of_receiver, of_sender = torch.empty_like(grad_sums), torch.empty_like(grad_sums)
        of_w, of_weight, of_bias = (
            weight.new_zeros(shape) for shape in (len(weight), weight.shape, len(weight))
        )
        back = weight.to(products).t()
        matrices = [matrix.to(products).t() for matrix in below[::2]]
        of_matrices = [torch.zeros_like(matrix) for matrix in below[::2]]
        of_hidden = [torch.empty_like(hidden) for hidden in below[1::2]]
        for part, node, edge in _parts(edges, ctx.windows):
            grad = grad_sums[node].to(products).index_select(0, part.receiver)
            if grad_second is not None:
                grad += grad_second[edge]
            # The derivative of the ReLU, read from its output.
            grad = torch.ops.aten.threshold_backward(grad, second[edge], 0)
            _add_product(of_weight, first[edge].t(), grad)
            of_bias += grad.sum(0, dtype=dtype)
            grad = torch.ops.aten.threshold_backward(grad @ back, first[edge], 0)
            for i, matrix in enumerate(matrices):
                _add_product(of_matrices[i], below[2 * i + 1][edge].t(), grad)
                torch.mm(grad, matrix, out=of_hidden[i][edge])
            grad = grad.to(dtype)
            of_w += grad.t() @ part.weight.to(dtype)
            # An edge's first layer adds a row of its receiver and one of its sender: both get its gradient.
            of_receiver[node], of_sender[node] = part.sum_by_receiver(grad), part.sum_by_sender(grad)
        of_below = [x for pair in zip(of_matrices, of_hidden, strict=True) for x in pair]
        return None, None, None, of_receiver, of_sender, of_w, of_weight, of_bias, *of_below


def _parts(edges: Edges, windows: int) -> Iterator[tuple[Edges, slice, slice]]:
    """Divide the windows into parts of about ROWS edges, of one window at least.

    Yields each part's edges, and the places of its nodes and edges among those of all windows.
    """
    # As many windows as fit into the cache, so that a part is read from memory once.
    size = max(1, ROWS // max(1, edges.count))
    for start in range(0, windows, size):
        stop = min(start + size, windows)
        node, edge = (slice(start * n, stop * n) for n in (edges.num_nodes, edges.count))
        yield edges.repeat(stop - start), node, edge


def _add_product(whole: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right, which may have another dtype, to whole."""
    if left.dtype == whole.dtype:
        whole.addmm_(left, right)
    else:
        whole.add_(left @ right)
