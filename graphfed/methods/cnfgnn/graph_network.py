"""A graph network (Battaglia et al. 2018) whose layers keep what they read: the server's network of CNFGNN.

    V nodes, E directed edges, B windows, H hidden; edges go from a sender to a receiver

A layer updates edges, nodes and one global vector of each window, by MLPs with two hidden layers:

    e' = MLP_edge([v_receiver, v_sender, e, u])
    v' = MLP_node([v, sum of e' into it, u])
    u' = MLP_global([sum of v', sum of e', u])

and hands on [v', v], [e', e] and [u', u]. Edges start as their weight, u as zeros of width H; a linear map of
the last nodes' features gives the output. The last layer's u' reaches nothing and is not worked out; its
weights are kept, as the published network's count has them, and their gradients are zero.

There are many more edges than nodes, so as little as possible is done for every edge. The first layer of
the edges' MLP is a sum of products: those of nodes are made for every node and looked up. Its last layer
is linear: edges are summed before it. Where the next layer of the network reads e', that linear map and the
next MLP's first become one matrix. What is left is a product for the second layer and one for each e' that is
read. Windows do not touch each other: a group of them goes through the network at a time, and through the
edges' part only as many as fit the cache, all its steps one after another."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from graphfed.nn.edges import Edges
from graphfed.nn.precision import product
from graphfed.random import fold, uniform_weights

__all__ = ["graph_network", "init"]

Weights = Mapping[str, Tensor]

#: Edges, over all their windows, that are worked on at once: what fits the cache at a width of 256.
ROWS = 2048
#: Nodes of a group, over all its windows: enough rows for products to be fast.
GROUP = 2048
#: Edges over all windows whose hidden layers are kept for the way back, 4 kB each at a width of 256; with
#: more, groups are worked out again.
KEPT = 1 << 20


def init(key: int, hidden: int = 64, width: int = 256, out: int = 128, layers: int = 2) -> dict[str, Tensor]:
    """Weights as torch.nn.Linear draws them, U(-1/sqrt(F), 1/sqrt(F)) for F inputs, in the default dtype on
    the CPU: ``layers.<l>.<edge|node|global>.<0|1|2>.<weight|bias>`` and ``out.<weight|bias>``."""
    weights: dict[str, Tensor] = {}

    def linear(path: str, fan_in: int, fan_out: int) -> None:
        for name, shape in (("weight", (fan_in, fan_out)), ("bias", (fan_out,))):
            weights[f"{path}.{name}"] = uniform_weights(fold(key, path, name), fan_in**-0.5, *shape)

    node, edge, shared = hidden, 1, hidden
    for layer in range(layers):
        inputs = {
            "edge": 2 * node + edge + shared,
            "vertex": node + out + shared,
            "global": 2 * out + shared,
        }
        for part, fan_in in inputs.items():
            for depth, widths in enumerate(((fan_in, width), (width, width), (width, out))):
                linear(f"layers.{layer}.{part}.{depth}", *widths)
        node, edge, shared = node + out, edge + out, shared + out
    linear("out", node, hidden)
    return weights


def graph_network(
    weights: Weights, v: Tensor, edges: Edges, products: torch.dtype | None = None, *, means: bool = False
) -> Tensor:
    """The nodes' embeddings [V, B, H] from their features v [V, B, H].

    products: the dtype that matrix products are made in, that of the weights if None; means: of the edges
    into a node and of all nodes the mean for the sum, which does not grow with the network."""
    layers = _layers(weights, v.shape[2])

    def run(part: Tensor) -> Tensor:
        features = _features(layers, part, edges, products, means)
        return product(features, weights["out.weight"], products).view(part.shape)

    again = torch.is_grad_enabled() and v.shape[1] * edges.count > KEPT
    parts = torch.split(v.transpose(0, 1), max(1, GROUP // max(1, len(v))))
    found = [checkpoint(run, part, use_reentrant=False) if again else run(part) for part in parts]
    last = f"layers.{len(layers) - 1}.global"
    unread = torch.stack([w.sum() for name, w in weights.items() if name.startswith(last)]).sum()
    return torch.cat(found).transpose(0, 1) + (weights["out.bias"] + 0 * unread)


@dataclass(frozen=True)
class _LayerWeights:
    """One layer's weights, the first edge matrix in its parts.

    receiver, sender [Hv, F], weight [F], shared [Hu, F], bias [F]: of the edge network's first layer; below
    [F, F] each: what makes of an earlier layer's edges, before that layer's last linear map, their part of
    it, nearest layer first; second, third: (weight, bias) of its other layers; node, shared_vector: the
    (weight, bias) of the other two networks."""

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
        widths = [node, node, *(len(layer.third[1]) for layer in reversed(layers)), 1, node]
        receiver, sender, *new, weight, shared = torch.split(first, widths)
        below = []
        for part, layer in zip(new, reversed(layers), strict=True):
            below.append(layer.third[0] @ part)
            bias = bias + layer.third[1] @ part
        edge = (receiver, sender, weight[0], shared, bias, below, second, third)
        others = (_mlp_weights(weights, f"{path}.{part}") for part in ("vertex", "global"))
        layers.append(_LayerWeights(*edge, *others))
    return layers


def _mlp_weights(weights: Weights, path: str) -> list[tuple[Tensor, Tensor]]:
    return [(weights[f"{path}.{i}.weight"], weights[f"{path}.{i}.bias"]) for i in range(3)]


def _features(
    layers: list[_LayerWeights], v: Tensor, edges: Edges, products: torch.dtype | None, means: bool
) -> Tensor:
    """The nodes as the last of l layers hands them on: v [b, V, H] -> [b V, H + l * out], b windows."""
    windows, nodes, width = v.shape
    v, u = v.reshape(-1, width), v.new_zeros(windows, width)
    degree = edges.receiver.bincount(minlength=nodes).to(v.dtype).repeat(windows)[:, None]
    hidden: list[Tensor] = []

    def to_nodes(of_window: Tensor) -> Tensor:
        return of_window.repeat_interleave(nodes, 0)

    def over_nodes(x: Tensor) -> Tensor:
        x = x.view(windows, nodes, -1)
        return x.mean(1) if means else x.sum(1)

    for layer in layers:
        here = product(v, layer.receiver, products) + to_nodes(u @ layer.shared + layer.bias)
        there = product(v, layer.sender, products)
        below = [x for pair in zip(layer.below, hidden, strict=True) for x in pair]
        tensors = (here, there, layer.weight, *layer.second, *below)
        sums, second = _EdgeHidden.apply(edges, products, *tensors)  # type: ignore[no-untyped-call]
        hidden.insert(0, second)
        received = product(sums, layer.third[0], products) + degree * layer.third[1]
        if means:
            received = received / degree.clamp(min=1)
        weight, bias = layer.node[0]
        of_node, of_window = weight.tensor_split([-u.shape[1]])
        x = product(torch.cat([v, received], 1), of_node, products) + to_nodes(u @ of_window + bias)
        new_v = _mlp(layer.node[1:], x, products)
        if layer is not layers[-1]:
            weight, bias = layer.shared_vector[0]
            x = torch.cat([over_nodes(new_v), over_nodes(received), u], 1) @ weight + bias
            u = torch.cat([_mlp(layer.shared_vector[1:], x, products), u], 1)
        v = torch.cat([new_v, v], 1)
    return v


def _mlp(mlp: list[tuple[Tensor, Tensor]], x: Tensor, products: torch.dtype | None) -> Tensor:
    """The layers of an MLP after its first, whose output is x before the ReLU."""
    for weight, bias in mlp:
        x = product(x.relu(), weight, products) + bias
    return x


class _EdgeHidden(torch.autograd.Function):
    """The second hidden layer of the edge network, and its sums over the edges into every node.

    here, there [b V, F]: what the receiver and the sender give to the first layer, window by window; w [F],
    weight and bias: the edge weight's row of the first layer, and the second layer; below: matrices [F, F]
    and hidden layers [b E, F] of earlier layers, in turns. Gives sums [b V, F], and the layer [b E, F] itself
    in the dtype of products."""

    @staticmethod
    def forward(
        ctx: Any,
        edges: Edges,
        products: torch.dtype | None,
        here: Tensor,
        there: Tensor,
        w: Tensor,
        weight: Tensor,
        bias: Tensor,
        *below: Tensor,
    ) -> tuple[Tensor, Tensor]:
        products, width = products or here.dtype, here.shape[1]
        windows = len(here) // edges.num_nodes
        first, second = (here.new_empty(windows * edges.count, width, dtype=products) for _ in range(2))
        sums = torch.empty_like(here)
        matrices = [matrix.to(products) for matrix in below[::2]]
        short_weight, short_bias = weight.to(products), bias.to(products)
        for part, node, edge in _parts(edges, windows):
            x = here[node].index_select(0, part.receiver).add_(there[node].index_select(0, part.sender))
            x.addcmul_(part.weight.to(x.dtype)[:, None], w)
            for matrix, hidden in zip(matrices, below[1::2], strict=True):
                _add_product(x, hidden[edge], matrix)
            torch.relu_(x)
            first[edge] = x
            torch.addmm(short_bias, first[edge], short_weight, out=second[edge]).relu_()
            sums[node] = part.sum_by_receiver(second[edge].to(here.dtype))
        ctx.edges, ctx.windows = edges, windows
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(first, second, weight, *below)
        return sums, second

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_sums: Tensor, grad_second: Tensor | None) -> tuple[Tensor | None, ...]:
        edges: Edges = ctx.edges
        first, second, weight, *below = ctx.saved_tensors
        products, dtype = first.dtype, grad_sums.dtype
        of_here, of_there = torch.empty_like(grad_sums), torch.empty_like(grad_sums)
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
            grad = torch.ops.aten.threshold_backward(grad, second[edge], 0)
            _add_product(of_weight, first[edge].t(), grad)
            of_bias += grad.sum(0, dtype=dtype)
            grad = torch.ops.aten.threshold_backward(grad @ back, first[edge], 0)
            for i, matrix in enumerate(matrices):
                _add_product(of_matrices[i], below[2 * i + 1][edge].t(), grad)
                torch.mm(grad, matrix, out=of_hidden[i][edge])
            grad = grad.to(dtype)
            of_w += grad.t() @ part.weight.to(dtype)
            of_here[node], of_there[node] = part.sum_by_receiver(grad), part.sum_by_sender(grad)
        of_below = [x for pair in zip(of_matrices, of_hidden, strict=True) for x in pair]
        return None, None, of_here, of_there, of_w, of_weight, of_bias, *of_below


def _parts(edges: Edges, windows: int) -> Iterator[tuple[Edges, slice, slice]]:
    """About ROWS edges at a time, one window at least: those of a few windows, and their nodes' and edges'
    places among all windows'."""
    size = max(1, ROWS // max(1, edges.count))
    for start in range(0, windows, size):
        stop = min(start + size, windows)
        node, edge = (slice(start * n, stop * n) for n in (edges.num_nodes, edges.count))
        yield edges.copies(stop - start), node, edge


def _add_product(whole: Tensor, left: Tensor, right: Tensor) -> None:
    """whole += left @ right, whose dtype may be another."""
    if left.dtype == whole.dtype:
        whole.addmm_(left, right)
    else:
        whole.add_(left @ right)
