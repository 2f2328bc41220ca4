"""A graph network (Battaglia et al. 2018) whose layers keep what they read: the server's network of CNFGNN.

    V vertices, E directed edges, B windows, H hidden; edges go from a sender to a receiver

A layer updates edges, vertices and one global vector of each window, by MLPs with two hidden layers:

    e' = MLP_edge([v_receiver, v_sender, e, u])
    v' = MLP_vertex([v, sum of e' into it, u])
    u' = MLP_global([sum of v', sum of e', u])

and hands on [v', v], [e', e] and [u', u]. Edges start as their weight, u as zeros of width H; a linear map of
the last vertices' features gives the output. The last layer's u' reaches nothing and is not worked out; its
weights are kept, as the published network's count has them, and their gradients are zero.

There are many more edges than vertices, so as little as possible is done for every edge. The first layer of
the edges' MLP is a sum of products: those of vertices are made for every vertex and looked up. Its last layer
is linear: edges are summed before it. Where the next layer of the network reads e', that linear map and the
next MLP's first become one matrix. What is left is a product for the second layer and one for each e' that is
read. Windows do not touch each other and go through the network a few at a time, as many as fit the cache."""

from collections.abc import Mapping, Sequence
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

#: Edges of a block, over all its windows; at least one window.
ROWS = 2048
#: Edges over all windows whose hidden layers are kept for the way back, 4 kB each at a width of 256; with
#: more, blocks are worked out again.
KEPT = 1 << 20


def init(key: int, hidden: int = 64, width: int = 256, out: int = 128, layers: int = 2) -> dict[str, Tensor]:
    """Weights as torch.nn.Linear draws them, U(-1/sqrt(F), 1/sqrt(F)) for F inputs, in the default dtype on
    the CPU: ``layers.<l>.<edge|vertex|global>.<0|1|2>.<weight|bias>`` and ``out.<weight|bias>``."""
    weights: dict[str, Tensor] = {}

    def linear(path: str, fan_in: int, fan_out: int) -> None:
        for name, shape in (("weight", (fan_in, fan_out)), ("bias", (fan_out,))):
            weights[f"{path}.{name}"] = uniform_weights(fold(key, path, name), fan_in**-0.5, *shape)

    vertex, edge, shared = hidden, 1, hidden
    for layer in range(layers):
        inputs = {
            "edge": 2 * vertex + edge + shared,
            "vertex": vertex + out + shared,
            "global": 2 * out + shared,
        }
        for part, fan_in in inputs.items():
            for depth, widths in enumerate(((fan_in, width), (width, width), (width, out))):
                linear(f"layers.{layer}.{part}.{depth}", *widths)
        vertex, edge, shared = vertex + out, edge + out, shared + out
    linear("out", vertex, hidden)
    return weights


def graph_network(weights: Weights, v: Tensor, edges: Edges, products: torch.dtype | None = None) -> Tensor:
    """The vertices' embeddings [V, B, H] from their features v [V, B, H].

    products: the dtype that matrix products are made in, that of the weights if None."""
    layers = _layers(weights, v.shape[2])

    def run(part: Tensor) -> Tensor:
        return product(_features(layers, part, edges, products), weights["out.weight"], products)

    again = torch.is_grad_enabled() and v.shape[1] * edges.count > KEPT
    parts = torch.split(v, max(1, ROWS // max(1, edges.count)), 1)
    found = [checkpoint(run, part, use_reentrant=False) if again else run(part) for part in parts]
    last = f"layers.{len(layers) - 1}.global"
    unread = torch.stack([w.sum() for name, w in weights.items() if name.startswith(last)]).sum()
    return torch.cat(found, 1) + (weights["out.bias"] + 0 * unread)


@dataclass(frozen=True)
class _LayerWeights:
    """One layer's weights, the first edge matrix in its parts.

    receiver, sender [Hv, F], weight [F], shared [Hu, F], bias [F]: of the edge network's first layer; below
    [F, F] each: what makes of an earlier layer's edges, before that layer's last linear map, their part of
    it, nearest layer first; second, third: (weight, bias) of its other layers; vertex, shared_vector: the
    (weight, bias) of the other two networks."""

    receiver: Tensor
    sender: Tensor
    weight: Tensor
    shared: Tensor
    bias: Tensor
    below: list[Tensor]
    second: tuple[Tensor, Tensor]
    third: tuple[Tensor, Tensor]
    vertex: list[tuple[Tensor, Tensor]]
    shared_vector: list[tuple[Tensor, Tensor]]


def _layers(weights: Weights, hidden: int) -> list[_LayerWeights]:
    layers: list[_LayerWeights] = []
    while f"layers.{len(layers)}.edge.0.weight" in weights:
        path = f"layers.{len(layers)}"
        (first, bias), second, third = _mlp_weights(weights, f"{path}.edge")
        vertex = hidden + sum(len(layer.third[1]) for layer in layers)
        widths = [vertex, vertex, *(len(layer.third[1]) for layer in reversed(layers)), 1, vertex]
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


def _features(layers: list[_LayerWeights], v: Tensor, edges: Edges, products: torch.dtype | None) -> Tensor:
    """The vertices as the last layer hands them on: v [V, b, H] of some windows -> [V, b, H + l * out]."""
    u = v.new_zeros(v.shape[1:])
    degree = edges.receiver.bincount(minlength=len(v)).to(v.dtype)[:, None, None]
    hidden: list[Tensor] = []
    for layer in layers:
        here = product(v, layer.receiver, products) + (u @ layer.shared + layer.bias)
        there = product(v, layer.sender, products)
        below = [x for pair in zip(layer.below, hidden, strict=True) for x in pair]
        tensors = (here, there, layer.weight, *layer.second, *below)
        sums, second = _EdgeHidden.apply(edges, products, *tensors)  # type: ignore[no-untyped-call]
        hidden.insert(0, second)
        received = product(sums, layer.third[0], products) + degree * layer.third[1]
        new_v = _mlp(layer.vertex, [v, received, u], products)
        if layer is not layers[-1]:
            new_u = _mlp(layer.shared_vector, [new_v.sum(0), received.sum(0), u], products)
            u = torch.cat([new_u, u], -1)
        v = torch.cat([new_v, v], -1)
    return v


def _mlp(mlp: list[tuple[Tensor, Tensor]], parts: Sequence[Tensor], products: torch.dtype | None) -> Tensor:
    """An MLP of parts side by side; a part without the first dimension is the same all along it."""
    (first, bias), *others = mlp
    x = bias
    for part, weight in zip(parts, torch.split(first, [part.shape[-1] for part in parts]), strict=True):
        x = x + product(part, weight, products)
    for weight, bias in others:
        x = product(x.relu(), weight, products) + bias
    return x


class _EdgeHidden(torch.autograd.Function):
    """The second hidden layer of the edge network, and its sums over the edges into every vertex.

    here, there [V, b, F]: what the receiver and the sender give to the first layer; w [F], weight and bias:
    the edge weight's row of the first layer, and the second layer; below: matrices [F, F] and hidden layers
    [E, b, F] of earlier layers, in turns. Gives sums [V, b, F], and the layer [E, b, F] itself in the dtype
    of products."""

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
        products = products or here.dtype
        rows, width = edges.count * here.shape[1], here.shape[2]
        first = here.index_select(0, edges.receiver).add_(there.index_select(0, edges.sender))
        flat = first.addcmul_(edges.weight.to(here.dtype)[:, None, None], w).view(rows, width)
        for matrix, hidden in zip(below[::2], below[1::2], strict=True):
            _add_product(flat, hidden.view(rows, width), matrix.to(products))
        first = first.relu_().to(products)
        second = torch.addmm(bias.to(products), first.view(rows, width), weight.to(products)).relu_()
        second = second.view(first.shape)
        ctx.edges = edges
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(first, second, weight, *below)
        return edges.sum_by_receiver(second.to(here.dtype)), second

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_sums: Tensor, grad_second: Tensor | None) -> tuple[Tensor | None, ...]:
        edges: Edges = ctx.edges
        first, second, weight, *below = ctx.saved_tensors
        products, dtype, width = first.dtype, grad_sums.dtype, second.shape[2]
        grad = grad_sums.to(products).index_select(0, edges.receiver)
        if grad_second is not None:
            grad += grad_second
        grad = torch.ops.aten.threshold_backward(grad, second, 0).view(-1, width)
        of_weight = (first.view(-1, width).t() @ grad).to(dtype)
        of_bias = grad.sum(0, dtype=dtype)
        grad = torch.ops.aten.threshold_backward(grad @ weight.to(products).t(), first.view(-1, width), 0)
        of_below: list[Tensor | None] = []
        for matrix, hidden in zip(below[::2], below[1::2], strict=True):
            of_below.append((hidden.view(-1, width).t() @ grad).to(dtype))
            of_below.append((grad @ matrix.to(products).t()).view(hidden.shape))
        summed = grad.to(dtype).view(first.shape)
        of_w = summed.flatten(1).t() @ edges.weight.to(dtype)
        of_here, of_there = edges.sum_by_receiver(summed), edges.sum_by_sender(summed)
        return None, None, of_here, of_there, of_w.view(-1, width).sum(0), of_weight, of_bias, *of_below


def _add_product(whole: Tensor, left: Tensor, right: Tensor) -> None:
    """whole += left @ right, whose dtype may be another."""
    if left.dtype == whole.dtype:
        whole.addmm_(left, right)
    else:
        whole.add_(left @ right)
