"""A graph network (Battaglia et al. 2018) whose layers keep what they read: the server's network of CNFGNN.

    V vertices, E directed edges, B windows, H hidden; edges from a sender to a receiver

A layer updates edges, vertices and one global vector of each window with a network of two hidden layers:

    e' = MLP_edge([v_receiver, v_sender, e, u])
    v' = MLP_vertex([v, sum of e' into it, u])
    u' = MLP_global([sum of v', sum of e', u])

and hands on [e', e], [v', v] and [u', u]. Edges start as their weight, u as zeros of width H; a linear map of
the last vertices' features gives the output. The last layer's u' reaches nothing and is not worked out; its
weights are kept, as the published network's count has them, and get zero gradients.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from graphfed.nn.edges import Edges
from graphfed.random import fold, uniform_weights

__all__ = ["graph_network", "init"]

Weights = Mapping[str, Tensor]


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


def graph_network(weights: Weights, v: Tensor, edges: Edges) -> Tensor:
    """The vertices' embeddings [V, B, H] from their features v [V, B, H]."""
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("layers."))
    windows, hidden = v.shape[1:]
    e = edges.weight.to(v.dtype)[:, None, None].expand(-1, windows, 1)
    u = v.new_zeros(windows, hidden)
    for layer in range(layers):
        of_edge = [v[edges.receiver], v[edges.sender], e, u.expand(edges.count, *u.shape)]
        new_e = _mlp(weights, f"layers.{layer}.edge", of_edge)
        received = v.new_zeros(len(v), *new_e.shape[1:]).index_add(0, edges.receiver, new_e)
        new_v = _mlp(weights, f"layers.{layer}.vertex", [v, received, u.expand(len(v), *u.shape)])
        new_u = _mlp(weights, f"layers.{layer}.global", [new_v.sum(0), new_e.sum(0), u])
        v, e, u = torch.cat([new_v, v], -1), torch.cat([new_e, e], -1), torch.cat([new_u, u], -1)
    # Zero times what the last global vector is made of: its weights have a gradient, and it is zero.
    return v @ weights["out.weight"] + weights["out.bias"] + 0 * u.sum()


def _mlp(weights: Weights, path: str, parts: list[Tensor]) -> Tensor:
    x = torch.cat(parts, -1)
    for depth in range(3):
        x = x @ weights[f"{path}.{depth}.weight"] + weights[f"{path}.{depth}.bias"]
        if depth < 2:
            x = x.relu()
    return x
