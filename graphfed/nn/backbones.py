"""The graph networks that every method can use, as functions of (weights, batch): GCN, GAT, GraphSAGE and max
pooling; the MLP, which uses no edges; and GINE and PNA, which read directions and attributes
(`edge_networks`).

Layers agree with PyG's GCNConv, GATConv and SAGEConv (with mean and with maximum aggregation; tests compare
values and gradients). Weights are a flat dictionary with the names ``layers.<l>.<name>``. A backbone consists
of functions that draw the weights, build the edges of a layer and run the layer.

Shapes of weights below are those of shared weights. Per-client weights have a leading dimension K (see
`graphfed.nn.layers`). N_l is the number of rows that enter layer l, and N_L the number of targets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import elu

from graphfed.nn import edge_networks
from graphfed.nn.batch import Batch, Block, BlockMaker, View
from graphfed.nn.directed import undirected_rows
from graphfed.nn.layers import Dropout, add_bias, linear
from graphfed.nn.layers import drop_input as _drop
from graphfed.nn.maxpool import neighbour_max, sparse_maxima
from graphfed.nn.sparse import SparseMatrix, SparseWeights, attention_weights, spmm
from graphfed.random import entry_words, fold, glorot

Weights = dict[str, Tensor | SparseWeights]


@dataclass(frozen=True)
class Backbone:
    """A graph network.

    Attributes:
        init: init(key, widths, heads) draws shared weights for layers of the given widths [F, ..., C], in the
            default dtype on the CPU. heads: the attention heads of each layer.
        blocks: blocks(ids [N], degree [N], heads) returns the function that builds a layer's edges.
        layer: layer(h, weights, batch, dropout, l) runs layer l on the rows h [N_l, ...] that enter it. It
            returns the rows that enter layer l + 1; of the last layer the logits of the targets [N_L, C].
        input_weights: The names of the weights that multiply the input features. They have one row for each
            feature.
        weighted: Whether the network uses the weights of the edges.
        aggregate: aggregate(view) returns the input of the first layer [N, width], if it is computed once
            from features and edges (see `adapt_view`). None: the input is the features.
        uses_edges: Whether the network uses edges at all.
        source_degree: Whether an edge's weight depends on the degree of its source.
        edge_init: edge_init(key, widths, D, directed) draws the weights that depend on the edges' attributes
            and on whether they have a direction. None: the network reads neither.
    """

    init: Callable[[int, list[int], Sequence[int]], dict[str, Tensor]]
    blocks: Callable[[Tensor, Tensor, Sequence[int]], BlockMaker]
    layer: Callable[[Tensor | SparseMatrix, Weights, Batch, Dropout | None, int], Tensor]
    input_weights: tuple[str, ...]
    weighted: bool = True
    aggregate: Callable[[View], Tensor | SparseMatrix] | None = None
    uses_edges: bool = True
    source_degree: bool = False
    edge_init: Callable[[int, list[int], int, bool], dict[str, Tensor]] | None = None

    @property
    def directed(self) -> bool:
        """Whether the network reads the directions and attributes of edges (`View.directed`)."""
        return self.edge_init is not None

    def forward(self, weights: Weights, batch: Batch, dropout: Dropout | None) -> Tensor:
        """Run all layers on the features.

        Returns:
            The logits of the targets, [N_L, C].
        """
        h: Tensor | SparseMatrix = batch.x
        for layer in range(batch.layers):
            h = self.layer(h, weights, batch, dropout, layer)
        assert isinstance(h, Tensor)
        return h

    def adapt_view(self, view: View) -> View:
        """Adapt a view to this network.

        Returns:
            The view without edges if the network uses none. With the input of the first layer in the place of
            the features, marked as aggregated, if the network has `aggregate`. With or without directed
            edges, as the network reads them or not. Else the same view.
        """
        if self.directed != (view.directed is not None):
            rows = undirected_rows(view.edges[0], view.degree.double()) if self.directed else None
            view = replace(view, directed=rows)
        if not self.uses_edges:
            return replace(view, edges=(), edge_weight=None)
        return view if self.aggregate is None else replace(view, x=self.aggregate(view), aggregated=True)


def dense(weight: Tensor | SparseWeights) -> Tensor:
    """Narrow the type of a weight that is never stored by pairs of clients and features."""
    assert isinstance(weight, Tensor)
    return weight


# ---- GCN (Kipf and Welling 2017)


def gcn_init(key: int, widths: list[int], heads: Sequence[int]) -> dict[str, Tensor]:
    """Draw layers.l.weight [F_l, F_{l+1}] (Glorot) and layers.l.bias [F_{l+1}] (zero)."""
    weights: dict[str, Tensor] = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), fan_in, fan_out)
        weights[f"layers.{layer}.bias"] = torch.zeros(fan_out)
    return weights


def gcn_block(ids: Tensor, degree: Tensor, heads: Sequence[int]) -> BlockMaker:
    """Return the function that builds a layer's edges, normalised as in a GCN.

    An edge of weight w_ij gets the weight w_ij / sqrt((d_i + 1)(d_j + 1)). Every row gets a self loop of
    w_ii = 1. Without edge weights w_ij is 1.

    Args:
        ids: [N] int64, stable ids of the rows. Not used.
        degree: [N], d_i = sum_j w_ij of each row, without the self loop.
        heads: The attention heads of each layer. Not used.

    Returns:
        The function (`BlockMaker`). Its adjacency is [N_out, N_in] float64.

    Reference:
        Kipf and Welling 2017, Eq. (2).
    """
    scale = (degree + 1).double().rsqrt()

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, number: Tensor, layer: int
    ) -> Block:
        own = number[0][rows_out]
        row = torch.cat([number[1][edges[1]], torch.arange(len(rows_out), device=own.device)])
        col = torch.cat([number[0][edges[0]], own])
        normalised = scale[edges[0]] * scale[edges[1]]
        value = torch.cat([normalised if weight is None else normalised * weight, scale[rows_out] ** 2])
        return Block(SparseMatrix.from_coo(row, col, value, (len(rows_out), len(rows_in))), own)

    return make


def gcn_layer(
    h: Tensor | SparseMatrix, weights: Weights, batch: Batch, dropout: Dropout | None, layer: int
) -> Tensor:
    """Run one layer of a GCN, with dropout on its input, and ReLU unless it is the last one.

    Args:
        h: [N_l, F], the rows that enter the layer, before dropout.
        weights: The weights, with layers.l.weight [F, H] and layers.l.bias [H].
        batch: The batch, whose block of the layer has the normalised adjacency A.
        dropout: Dropout of the input; None: none.
        layer: l, the number of the layer.

    Returns:
        A (h W) + b, [N_{l+1}, H]; h W + b if the layer uses no edges.
    """
    # A (h W) and not (A h) W: weights of clients multiply the rows of each client before edges mix them.
    z = linear(_drop(h, batch, layer, dropout), weights[f"layers.{layer}.weight"], batch, layer)
    block = batch.blocks[layer]
    if block is not None:
        z = spmm(block.adjacency, z)
    z = add_bias(z, dense(weights[f"layers.{layer}.bias"]), batch, layer)
    return z.relu() if layer < batch.layers - 1 else z


# ---- GraphSAGE with the mean aggregator (Hamilton, Ying and Leskovec 2017)


def sage_init(key: int, widths: list[int], heads: Sequence[int]) -> dict[str, Tensor]:
    """Draw layers.l.neighbour_weight, .root_weight [F_l, F_{l+1}] (Glorot) and .bias [F_{l+1}] (zero)."""
    weights: dict[str, Tensor] = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weights[f"layers.{layer}.neighbour_weight"] = glorot(fold(key, layer, "neighbour"), fan_in, fan_out)
        weights[f"layers.{layer}.root_weight"] = glorot(fold(key, layer, "root"), fan_in, fan_out)
        weights[f"layers.{layer}.bias"] = torch.zeros(fan_out)
    return weights


def sage_block(ids: Tensor, degree: Tensor, heads: Sequence[int]) -> BlockMaker:
    """Return the function that builds a layer's edges with weights w_ij / d_i, d_i = sum_j w_ij.

    The layer then takes the weighted mean over the neighbours; it is zero for a node without neighbours.
    """
    # Degree 0 has no edges to weigh; 1 avoids the division by zero.
    inverse_degree = torch.where(degree > 0, degree, 1).double().reciprocal()

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, number: Tensor, layer: int
    ) -> Block:
        row, col = number[1][edges[1]], number[0][edges[0]]
        value = inverse_degree[edges[1]] if weight is None else inverse_degree[edges[1]] * weight
        adjacency = SparseMatrix.from_coo(row, col, value, (len(rows_out), len(rows_in)))
        return Block(adjacency, number[0][rows_out])

    return make


def sage_layer(
    h: Tensor | SparseMatrix, weights: Weights, batch: Batch, dropout: Dropout | None, layer: int
) -> Tensor:
    """Run one layer mean_j(h_j) W_neighbour + h_i W_root + b, with ReLU and dropout as in `gcn_layer`."""
    block = batch.blocks[layer]
    assert block is not None
    h = _drop(h, batch, layer, dropout)
    neighbours = linear(h, weights[f"layers.{layer}.neighbour_weight"], batch, layer)
    root = linear(h, weights[f"layers.{layer}.root_weight"], batch, layer)
    # mean_j (h_j W) = (mean_j h_j) W; each row is multiplied by its client's weights before the mean.
    z = spmm(block.adjacency, neighbours) + root.index_select(0, block.own)
    z = add_bias(z, dense(weights[f"layers.{layer}.bias"]), batch, layer)
    return z.relu() if layer < batch.layers - 1 else z


# ---- GAT (Velickovic et al. 2018): heads side by side, at the last layer averaged


def gat_init(key: int, widths: list[int], heads: Sequence[int]) -> dict[str, Tensor]:
    """Draw the weights of a GAT.

    Args:
        widths: F, the widths of one head in the hidden layers, and C.
        heads: The number of heads of each layer.

    Returns:
        For each layer l of width H: layers.l.weight [F_l, heads * H], layers.l.att_src and layers.l.att_dst
        [heads, H] (Glorot), and layers.l.bias [heads * H], of the last layer [H] (zero). F_l is the width of
        the layer before times its heads, or F.
    """
    weights: dict[str, Tensor] = {}
    for layer, heads_of_layer in enumerate(heads):
        fan_in = widths[layer] * (heads[layer - 1] if layer else 1)
        width, last = widths[layer + 1], layer == len(heads) - 1
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), fan_in, heads_of_layer * width)
        weights[f"layers.{layer}.att_src"] = glorot(fold(key, layer, "source"), heads_of_layer, width)
        weights[f"layers.{layer}.att_dst"] = glorot(fold(key, layer, "destination"), heads_of_layer, width)
        weights[f"layers.{layer}.bias"] = torch.zeros(width if last else heads_of_layer * width)
    return weights


def gat_block(ids: Tensor, degree: Tensor, heads: Sequence[int]) -> BlockMaker:
    """Return the function that builds a layer's edges, with a self loop for every row.

    GAT does not use edge weights (`Backbone.weighted`).

    Args:
        ids: [N] int64, stable ids of the rows, for the words of the attention's dropout.
        degree: [N], the degree of each row. Not used.
        heads: The number of heads of each layer.

    Returns:
        The function (`BlockMaker`). Its adjacency is [heads * N_out, heads * N_in], a copy of the pattern for
        each head along the diagonal.
    """

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, number: Tensor, layer: int
    ) -> Block:
        own = number[0][rows_out]
        row = torch.cat([number[1][edges[1]], torch.arange(len(rows_out), device=own.device)])
        col = torch.cat([number[0][edges[0]], own])
        # Only the pattern counts: `attend` computes the values.
        ones = torch.ones(len(row), device=row.device)
        pattern = SparseMatrix.from_coo(row, col, ones, (len(rows_out), len(rows_in)))
        # Named by the stable ids of both ends, so an edge has the same draws in every placement.
        words = entry_words(ids[rows_out][pattern.row], ids[rows_in][pattern.indices])
        return Block(pattern.block_diagonal(heads[layer]), own, words)

    return make


def gat_layer(
    h: Tensor | SparseMatrix, weights: Weights, batch: Batch, dropout: Dropout | None, layer: int
) -> Tensor:
    """Run one layer of a GAT, with dropout on its input and its attention, and ELU unless it is the last one.

    Args:
        h: [N_l, F], the rows that enter the layer, before dropout.
        weights: The weights of all layers (see `gat_init`).
        batch: The batch, whose block of the layer has the edges.
        dropout: Dropout of the input and of the attention; None: none.
        layer: l, the number of the layer.

    Returns:
        [N_{l+1}, heads * H], after the activation; of the last layer [N_{l+1}, H].

    Reference:
        Velickovic et al. 2018, Eq. (1) to (6).
    """
    z = linear(_drop(h, batch, layer, dropout), weights[f"layers.{layer}.weight"], batch, layer)
    return gat_output(_attend(z, weights, batch, layer, dropout), weights, batch, layer)


def gat_output(h: Tensor, weights: Weights, batch: Batch, layer: int) -> Tensor:
    """Add the bias to the weighted means of a layer, and apply ELU unless it is the last layer. The heads of
    the last layer are averaged.

    Args:
        h: [N_{l+1}, heads * H], the result of the attention.
        weights: The weights of all layers (see `gat_init`).
        batch: The batch, for the clients of the rows and the number of layers.
        layer: l, the number of the layer.

    Returns:
        [N_{l+1}, heads * H]; of the last layer [N_{l+1}, H].
    """
    bias = dense(weights[f"layers.{layer}.bias"])
    h = add_bias(average_heads(h, bias.shape[-1]), bias, batch, layer)
    return elu(h) if layer < batch.layers - 1 else h


def average_heads(h: Tensor, width: int) -> Tensor:
    """Average the results of a layer's heads, unless the layer returns them side by side.

    Args:
        h: [N, heads * H], the result of each head side by side.
        width: The number of columns that the layer returns: H, or heads * H.

    Returns:
        [N, width].

    Reference:
        Velickovic et al. 2018, Eq. (6).
    """
    return h if h.shape[1] == width else h.reshape(len(h), h.shape[1] // width, width).mean(1)


def _attend(z: Tensor, weights: Weights, batch: Batch, layer: int, dropout: Dropout | None) -> Tensor:
    """Compute the scores of z [N_in, heads * H], and sum_j alpha_ij z_j, [N_out, heads * H]."""
    block = batch.blocks[layer]
    assert block is not None
    att_src, att_dst = (dense(weights[f"layers.{layer}.{name}"]) for name in ("att_src", "att_dst"))
    heads = att_src.shape[-2]
    # a_src . z_j and a_dst . z_i of every head from one product, [2 heads, N_in]
    scores = linear(z, torch.cat([per_head(att_src), per_head(att_dst)], -1), batch, layer).t()
    return attend(z, scores, block, heads, dropout, layer)


def attend(
    z: Tensor, scores: Tensor, block: Block, heads: int, dropout: Dropout | None = None, layer: int = 0
) -> Tensor:
    """Compute the attention means sum_j alpha_ij z_j of every head.

    Args:
        z: [N_in, heads * H], the transformed rows.
        scores: [2 heads, N_in]: the score of each row as a source, then as a target, for every head.
        block: The edges. The adjacency has one copy of the pattern for each head.
        dropout: Dropout of the coefficients alpha; None: no dropout.
        layer: Number of the layer, for the draws of dropout.

    Returns:
        [N_out, heads * H].

    Reference:
        Velickovic et al. 2018, Eq. (3) and (4), without the activation.
    """
    source = scores[:heads]  # [heads, N_in]
    target = scores[heads:].index_select(1, block.own)  # [heads, N_out]
    # The copies of the pattern lie on the adjacency's diagonal, so vectors over its rows, columns and entries
    # are ordered head by head.
    alpha = attention_weights(block.adjacency, target.flatten(), source.flatten(), 0.2)  # [heads * E]
    if dropout is not None:
        assert block.words is not None
        alpha = dropout.edges(alpha.view(heads, -1), block.words, layer).flatten()
    width = z.shape[1] // heads
    by_head = z.view(-1, heads, width).transpose(0, 1).reshape(-1, width)  # [heads * N_in, H]
    out = spmm(block.adjacency, by_head, alpha)  # [heads * N_out, H]
    return out.view(heads, -1, width).transpose(0, 1).flatten(1)


def per_head(att: Tensor) -> Tensor:
    """Arrange attention vectors as a matrix, so that one product computes the scores of all heads.

    Args:
        att: [..., heads, H], one vector for each head.

    Returns:
        [..., heads * H, heads]: the vector of head h in the h-th block of H rows of column h, 0 elsewhere.
    """
    eye = torch.eye(att.shape[-2], dtype=att.dtype, device=att.device)
    return (att[..., None] * eye[:, None]).flatten(-3, -2)


# ---- max pooling (SAPGNN's network: h' = W (h || max_j h_j) + b)


def maxpool_init(key: int, widths: list[int], heads: Sequence[int]) -> dict[str, Tensor]:
    """Draw layers.l.weight [2 F_l, F_{l+1}] (Glorot) and layers.l.bias [F_{l+1}] (zero)."""
    weights: dict[str, Tensor] = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), 2 * fan_in, fan_out)
        weights[f"layers.{layer}.bias"] = torch.zeros(fan_out)
    return weights


def maxpool_block(ids: Tensor, degree: Tensor, heads: Sequence[int]) -> BlockMaker:
    """Return the function that builds a layer's edges. The maximum does not use edge weights."""

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, number: Tensor, layer: int
    ) -> Block:
        row, column = number[1][edges[1]], number[0][edges[0]]
        ones = torch.ones(len(row), device=row.device)
        return Block(
            SparseMatrix.from_coo(row, column, ones, (len(rows_out), len(rows_in))), number[0][rows_out]
        )

    return make


def maxpool_aggregate(view: View) -> Tensor | SparseMatrix:
    """Compute x_i || max_j x_j, [N, 2 F], over the neighbours j; zero for a node without neighbours."""
    # The first layer pools features, which do not change, so its maxima are computed once for all steps.
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
    """Compute h_i || max_j h_j, [N_out, 2 H]. own [N_out]: the row of h of each i; None: row i."""
    top = neighbour_max(pattern, h)
    # -inf marks a node without neighbours, whose pooled message is 0.
    return torch.cat([h if own is None else h.index_select(0, own), top.masked_fill(top.isneginf(), 0)], 1)


def maxpool_layer(
    h: Tensor | SparseMatrix, weights: Weights, batch: Batch, dropout: Dropout | None, layer: int
) -> Tensor:
    """Run one layer, with ReLU on its output unless it is the last one. Dropout acts on the output of the
    layer before, and not on the features.

    The batch is made from an aggregated view (`Backbone.adapt_view`), so the first layer has no edges.
    """
    rows = layer
    if layer:
        assert isinstance(h, Tensor)
        block = batch.blocks[layer]
        assert block is not None
        if dropout is not None:
            # Keyed by the layer that returns the rows: the input of the first layer has no dropout.
            h = dropout.rows(h, batch.ids[layer], layer - 1)
        h = _with_maxima(h, block.adjacency, block.own)
        # These are the rows that the layer returns, so their tiles are those of the next layer.
        rows = layer + 1
    z = linear(h, weights[f"layers.{layer}.weight"], batch, rows)
    z = add_bias(z, dense(weights[f"layers.{layer}.bias"]), batch, layer)
    return z.relu() if layer < batch.layers - 1 else z


BACKBONES: dict[str, Backbone] = {
    "gcn": Backbone(gcn_init, gcn_block, gcn_layer, ("layers.0.weight",), source_degree=True),
    "gat": Backbone(gat_init, gat_block, gat_layer, ("layers.0.weight",), weighted=False),
    "sage": Backbone(
        sage_init, sage_block, sage_layer, ("layers.0.neighbour_weight", "layers.0.root_weight")
    ),
    "maxpool": Backbone(
        maxpool_init,
        maxpool_block,
        maxpool_layer,
        ("layers.0.weight",),
        weighted=False,
        aggregate=maxpool_aggregate,
    ),
    # The layers of a GCN without edges compute x W + b.
    "mlp": Backbone(gcn_init, gcn_block, gcn_layer, ("layers.0.weight",), weighted=False, uses_edges=False),
    **{
        name: Backbone(
            partial(edge_networks.init, draw),
            edge_networks.edge_network_block,
            partial(edge_networks.layer, run),
            ("layers.0.input_weight",),
            weighted=False,
            edge_init=partial(edge_networks.edge_init, draw),
        )
        for name, draw, run in (
            ("gine", edge_networks.gine_weights, edge_networks.gine_pass),
            ("pna", edge_networks.pna_weights, edge_networks.pna_pass),
        )
    },
}
