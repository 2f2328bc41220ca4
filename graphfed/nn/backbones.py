"""The graph networks that every method can use, as functions of (weights, batch): GCN, GAT, GraphSAGE and max
pooling; and the MLP, which has no use for the graph.

Layers agree with PyG's GCNConv, GATConv and SAGEConv (its mean and its maximum; tested in values and
gradients). Weights are a flat dictionary, ``layers.<l>.<name>``; a backbone knows how to draw them, which
edges a layer sees, and how to run.

Shapes below are those of shared weights; per-client weights have a leading dimension K (see
`graphfed.nn.layers`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import elu, leaky_relu

from graphfed.nn.batch import Batch, Block, BlockMaker, View
from graphfed.nn.layers import Dropout, add_bias, linear
from graphfed.nn.maxpool import neighbour_max, sparse_maxima
from graphfed.nn.sparse import SparseMatrix, SparseWeights, entry_sums, row_softmax, spmm
from graphfed.random import entry_words, fold, glorot

__all__ = [
    "BACKBONES",
    "Backbone",
    "Weights",
    "attend",
    "gat_block",
    "gat_init",
    "gat_layer",
    "gat_output",
    "gcn_block",
    "gcn_layer",
    "per_head",
]

Weights = dict[str, Tensor | SparseWeights]


@dataclass(frozen=True)
class Backbone:
    """A graph network.

    init(key, widths, heads) draws shared weights for layers of the given widths [F, ..., C], in the default
    dtype on the CPU; blocks(ids, degree, heads, layers) makes the function that builds a layer's edges;
    forward(weights, batch, dropout) gives the targets' logits [N_L, C]; aggregate(view): what enters the
    first layer in the place of the features, where that never changes (see `seen`)."""

    init: Callable[[int, list[int], int], dict[str, Tensor]]
    blocks: Callable[[Tensor, Tensor, int, int], BlockMaker]
    forward: Callable[[Weights, Batch, Dropout | None], Tensor]
    #: The weights that multiply the input features: one row per feature.
    input_weights: tuple[str, ...]
    #: Whether it uses the weights of the edges.
    weighted: bool = True
    aggregate: Callable[[View], Tensor | SparseMatrix] | None = None
    #: Whether it uses edges at all: without, every layer only transforms its rows.
    uses_edges: bool = True

    def seen(self, view: View) -> View:
        """A view as this network takes it in: aggregated where the first layer's input can be worked out
        once, without edges where it uses none."""
        if not self.uses_edges:
            return replace(view, edges=(), edge_weight=None)
        return view if self.aggregate is None else replace(view, x=self.aggregate(view), aggregated=True)


def _drop(
    x: Tensor | SparseMatrix, batch: Batch, layer: int, dropout: Dropout | None
) -> Tensor | SparseMatrix:
    if dropout is None:
        return x
    if isinstance(x, SparseMatrix):
        assert batch.words is not None
        return dropout.entries(x, batch.words, layer)
    return dropout.rows(x, batch.ids[layer], layer)


def _dense(weight: Tensor | SparseWeights) -> Tensor:
    assert isinstance(weight, Tensor)
    return weight


# ---- GCN (Kipf and Welling 2017)


def gcn_init(key: int, widths: list[int], heads: int) -> dict[str, Tensor]:
    """layers.l.weight [F_l, F_{l+1}] (Glorot), layers.l.bias [F_{l+1}] (zero)."""
    weights: dict[str, Tensor] = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), fan_in, fan_out)
        weights[f"layers.{layer}.bias"] = torch.zeros(fan_out)
    return weights


def gcn_block(ids: Tensor, degree: Tensor, heads: int, layers: int) -> BlockMaker:
    """Edges weighted w_ij / sqrt((d_i + 1)(d_j + 1)), self loops (of weight 1) included; w_ij is 1 without
    weights. degree [N]: sum_j w_ij of every row."""
    scale = (degree + 1).double().rsqrt()

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, place: Tensor, layer: int
    ) -> Block:
        own = place[0][rows_out]
        row = torch.cat([place[1][edges[1]], torch.arange(len(rows_out), device=own.device)])
        col = torch.cat([place[0][edges[0]], own])
        across = scale[edges[0]] * scale[edges[1]]
        value = torch.cat([across if weight is None else across * weight, scale[rows_out] ** 2])
        return Block(SparseMatrix.from_coo(row, col, value, (len(rows_out), len(rows_in))), own)

    return make


def gcn_layer(x: Tensor | SparseMatrix, weights: Weights, batch: Batch, layer: int) -> Tensor:
    """A (x W) + b [N_out, H] for x [N_in, F]; without a block, x W + b."""
    h = linear(x, weights[f"layers.{layer}.weight"], batch, layer)
    block = batch.blocks[layer]
    if block is not None:
        h = spmm(block.adjacency, h)
    return add_bias(h, _dense(weights[f"layers.{layer}.bias"]), batch, layer)


def gcn_forward(weights: Weights, batch: Batch, dropout: Dropout | None) -> Tensor:
    """Layers with ReLU and dropout on every layer's input; the targets' logits [N_L, C]."""
    h: Tensor | SparseMatrix = batch.x
    for layer in range(batch.layers):
        h = gcn_layer(_drop(h, batch, layer, dropout), weights, batch, layer)
        if layer < batch.layers - 1:
            h = h.relu()
    assert isinstance(h, Tensor)
    return h


# ---- GraphSAGE with the mean aggregator (Hamilton, Ying and Leskovec 2017)


def sage_init(key: int, widths: list[int], heads: int) -> dict[str, Tensor]:
    """layers.l.neighbour_weight and .root_weight [F_l, F_{l+1}] (Glorot), .bias [F_{l+1}] (zero)."""
    weights: dict[str, Tensor] = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weights[f"layers.{layer}.neighbour_weight"] = glorot(fold(key, layer, "neighbour"), fan_in, fan_out)
        weights[f"layers.{layer}.root_weight"] = glorot(fold(key, layer, "root"), fan_in, fan_out)
        weights[f"layers.{layer}.bias"] = torch.zeros(fan_out)
    return weights


def sage_block(ids: Tensor, degree: Tensor, heads: int, layers: int) -> BlockMaker:
    """Edges weighted w_ij / d_i, with d_i = sum_j w_ij: the (weighted) mean over the neighbours, zero for a
    node without any."""
    share = torch.where(degree > 0, degree, 1).double().reciprocal()

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, place: Tensor, layer: int
    ) -> Block:
        row, col = place[1][edges[1]], place[0][edges[0]]
        value = share[edges[1]] if weight is None else share[edges[1]] * weight
        adjacency = SparseMatrix.from_coo(row, col, value, (len(rows_out), len(rows_in)))
        return Block(adjacency, place[0][rows_out])

    return make


def sage_forward(weights: Weights, batch: Batch, dropout: Dropout | None) -> Tensor:
    """mean_j(x_j) W_neighbour + x_i W_root + b, then as GCN; the targets' logits [N_L, C]."""
    h: Tensor | SparseMatrix = batch.x
    for layer, block in enumerate(batch.blocks):
        assert block is not None
        h = _drop(h, batch, layer, dropout)
        neighbours = linear(h, weights[f"layers.{layer}.neighbour_weight"], batch, layer)
        root = linear(h, weights[f"layers.{layer}.root_weight"], batch, layer)
        h = spmm(block.adjacency, neighbours) + root.index_select(0, block.own)
        h = add_bias(h, _dense(weights[f"layers.{layer}.bias"]), batch, layer)
        if layer < batch.layers - 1:
            h = h.relu()
    assert isinstance(h, Tensor)
    return h


# ---- GAT (Velickovic et al. 2018): `heads` heads of the hidden width, one head at the last layer


def gat_init(key: int, widths: list[int], heads: int) -> dict[str, Tensor]:
    """layers.l.weight [F_l, heads * H], .att_src and .att_dst [heads, H] (Glorot), .bias [heads * H]
    (zero)."""
    weights: dict[str, Tensor] = {}
    last = len(widths) - 2
    for layer in range(last + 1):
        fan_in = widths[layer] * (heads if layer else 1)
        here = heads if layer < last else 1
        width = widths[layer + 1]
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), fan_in, here * width)
        weights[f"layers.{layer}.att_src"] = glorot(fold(key, layer, "source"), here, width)
        weights[f"layers.{layer}.att_dst"] = glorot(fold(key, layer, "destination"), here, width)
        weights[f"layers.{layer}.bias"] = torch.zeros(here * width)
    return weights


def gat_block(ids: Tensor, degree: Tensor, heads: int, layers: int) -> BlockMaker:
    """The edges and a self loop for every row, once per head, with the words of the attention's dropout. GAT
    has no use for edge weights (`Backbone.weighted`)."""

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, place: Tensor, layer: int
    ) -> Block:
        own = place[0][rows_out]
        row = torch.cat([place[1][edges[1]], torch.arange(len(rows_out), device=own.device)])
        col = torch.cat([place[0][edges[0]], own])
        ones = torch.ones(len(row), device=row.device)
        pattern = SparseMatrix.from_coo(row, col, ones, (len(rows_out), len(rows_in)))
        words = entry_words(ids[rows_out][pattern.row], ids[rows_in][pattern.indices])
        return Block(pattern.block_diagonal(heads if layer < layers - 1 else 1), own, words)

    return make


def gat_forward(weights: Weights, batch: Batch, dropout: Dropout | None) -> Tensor:
    """Layers with ELU, dropout on every layer's input and on the attention; the targets' logits [N_L, C]."""
    h: Tensor | SparseMatrix = batch.x
    for layer in range(batch.layers):
        h = gat_layer(h, weights, batch, dropout, layer)
    assert isinstance(h, Tensor)
    return h


def gat_layer(
    h: Tensor | SparseMatrix, weights: Weights, batch: Batch, dropout: Dropout | None, layer: int
) -> Tensor:
    """What leaves a layer that h [N_l, F] enters: [N_{l+1}, heads * H]."""
    z = linear(_drop(h, batch, layer, dropout), weights[f"layers.{layer}.weight"], batch, layer)
    return gat_output(_attend(z, weights, batch, layer, dropout), weights, batch, layer)


def gat_output(h: Tensor, weights: Weights, batch: Batch, layer: int) -> Tensor:
    """What leaves a layer whose attention gave h: with its bias, and the ELU of all but the last."""
    h = add_bias(h, _dense(weights[f"layers.{layer}.bias"]), batch, layer)
    return elu(h) if layer < batch.layers - 1 else h


def _attend(z: Tensor, weights: Weights, batch: Batch, layer: int, dropout: Dropout | None) -> Tensor:
    """sum_j alpha_ij z_j for every head: z [N_in, heads * H] -> [N_out, heads * H]."""
    block = batch.blocks[layer]
    assert block is not None
    att_src, att_dst = (_dense(weights[f"layers.{layer}.{name}"]) for name in ("att_src", "att_dst"))
    heads = att_src.shape[-2]
    scores = linear(z, torch.cat([per_head(att_src), per_head(att_dst)], -1), batch, layer).t()
    return attend(z, scores, block, heads, dropout, layer)


def attend(
    z: Tensor, scores: Tensor, block: Block, heads: int, dropout: Dropout | None = None, layer: int = 0
) -> Tensor:
    """sum_j alpha_ij z_j for every head, z [N_in, heads * H] -> [N_out, heads * H]; scores [2 heads, N_in]:
    of every row as a source, then as a target."""
    source = scores[:heads]  # [heads, N_in]
    target = scores[heads:].index_select(1, block.own)  # [heads, N_out]
    # The heads lie on the adjacency's diagonal: vectors over its rows, columns and entries go head by head.
    score = leaky_relu(entry_sums(block.adjacency, target.flatten(), source.flatten()), 0.2)  # [heads * E]
    alpha = row_softmax(block.adjacency, score)
    if dropout is not None:
        assert block.words is not None
        alpha = dropout.edges(alpha.view(heads, -1), block.words, layer).flatten()
    width = z.shape[1] // heads
    by_head = z.view(-1, heads, width).transpose(0, 1).reshape(-1, width)  # [heads * N_in, H]
    out = spmm(block.adjacency, by_head, alpha)  # [heads * N_out, H]
    return out.view(heads, -1, width).transpose(0, 1).flatten(1)


def per_head(att: Tensor) -> Tensor:
    """Attention vectors [heads, H] as one matrix [heads * H, heads] with a block per head on its diagonal."""
    eye = torch.eye(att.shape[-2], dtype=att.dtype, device=att.device)
    return (att[..., None] * eye[:, None]).flatten(-3, -2)


# ---- max pooling (SAPGNN's network: h' = W (h || max_j h_j) + b)


def maxpool_init(key: int, widths: list[int], heads: int) -> dict[str, Tensor]:
    """layers.l.weight [2 F_l, F_{l+1}] (Glorot), layers.l.bias [F_{l+1}] (zero)."""
    weights: dict[str, Tensor] = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), 2 * fan_in, fan_out)
        weights[f"layers.{layer}.bias"] = torch.zeros(fan_out)
    return weights


def maxpool_block(ids: Tensor, degree: Tensor, heads: int, layers: int) -> BlockMaker:
    """The edges. The maximum has no use for their weights (`Backbone.weighted`)."""

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, place: Tensor, layer: int
    ) -> Block:
        row, column = place[1][edges[1]], place[0][edges[0]]
        ones = torch.ones(len(row), device=row.device)
        return Block(
            SparseMatrix.from_coo(row, column, ones, (len(rows_out), len(rows_in))), place[0][rows_out]
        )

    return make


def maxpool_aggregate(view: View) -> Tensor | SparseMatrix:
    """x_i || max_j x_j [N, 2 F], over the neighbours j; zero for a node without any."""
    source, target = view.edges[0]
    (n, features), x = view.x.shape, view.x
    if isinstance(x, SparseMatrix):
        order = torch.argsort(target, stable=True)
        top = sparse_maxima(x.select_rows(source[order]), target[order], n)
        row, column = torch.cat([x.row, top.row]), torch.cat([x.indices, top.indices + features])
        return SparseMatrix.from_coo(row, column, torch.cat([x.values, top.values]), (n, 2 * features))
    pattern = SparseMatrix.from_coo(target, source, torch.ones(len(source), device=x.device), (n, n))
    return _with_maxima(x, pattern, None)


def _with_maxima(h: Tensor, pattern: SparseMatrix, own: Tensor | None) -> Tensor:
    """h_i || max_j h_j [N_out, 2 H]."""
    top = neighbour_max(pattern, h)
    return torch.cat([h if own is None else h.index_select(0, own), top.masked_fill(top.isneginf(), 0)], 1)


def maxpool_forward(weights: Weights, batch: Batch, dropout: Dropout | None) -> Tensor:
    """Layers with ReLU and dropout on the output of each but the last; the targets' logits [N_L, C]. The
    batch is of an aggregated view (`Backbone.seen`)."""
    h = linear(batch.x, weights["layers.0.weight"], batch, 0)
    h = add_bias(h, _dense(weights["layers.0.bias"]), batch, 0)
    for layer in range(1, batch.layers):
        h = h.relu()
        if dropout is not None:
            h = dropout.rows(h, batch.ids[layer], layer - 1)
        block = batch.blocks[layer]
        assert block is not None
        h = _with_maxima(h, block.adjacency, block.own)
        # These are the rows that leave the layer: its tiles are those of the next one.
        h = linear(h, weights[f"layers.{layer}.weight"], batch, layer + 1)
        h = add_bias(h, _dense(weights[f"layers.{layer}.bias"]), batch, layer)
    return h


BACKBONES: dict[str, Backbone] = {
    "gcn": Backbone(gcn_init, gcn_block, gcn_forward, ("layers.0.weight",)),
    "gat": Backbone(gat_init, gat_block, gat_forward, ("layers.0.weight",), weighted=False),
    "sage": Backbone(
        sage_init, sage_block, sage_forward, ("layers.0.neighbour_weight", "layers.0.root_weight")
    ),
    "maxpool": Backbone(
        maxpool_init,
        maxpool_block,
        maxpool_forward,
        ("layers.0.weight",),
        weighted=False,
        aggregate=maxpool_aggregate,
    ),
    # GCN's layers on a graph without edges, where its neighbourhood is the node itself: x W + b.
    "mlp": Backbone(gcn_init, gcn_block, gcn_forward, ("layers.0.weight",), weighted=False, uses_edges=False),
}
