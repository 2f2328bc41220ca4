"""What a layer of FedGraph computes with a sample, at all clients of a cohort at once (Chen, Li, Miyazaki and
Wu, "FedGraph", Algorithm 1, lines 7 to 13).

h is the embeddings of a layer, W its weights, and D the degrees, with the self loop counted.
"""

import torch
from torch import Tensor

from graphfed.methods.fedgraph.client_graphs import ClientGraph, Layer
from graphfed.nn.backbones import Weights
from graphfed.nn.layers import Dropout, tiled
from graphfed.nn.sparse import SparseMatrix, SparseWeights, ranges, spmm
from graphfed.nn.tiles import make_tiles


def transform(
    graph: ClientGraph,
    layer: Layer,
    weights: Weights,
    h: Tensor | None,
    number: int,
    p: float,
    key: int | None,
) -> Tensor:
    """Multiply the embeddings that enter a layer by its weights.

    Args:
        weights: The weights: of each client, or the same for all.
        h: The embeddings, [n_in, H]; None in the first layer, which takes the features.
        number: The number of the layer, from 0.
        p: The probability of dropout.
        key: The key of dropout; None for no dropout.

    Returns:
        h W of the rows that enter, each with the weights of its client, [n_in, H'].
    """
    weight, dropout = weights[f"layers.{number}.weight"], None if key is None else Dropout(p, key)
    rows = layer.rows
    if h is None and isinstance(graph.x, SparseMatrix):
        x, words = graph.x, graph.x_words
        if isinstance(weight, SparseWeights):
            assert graph.x_by_client is not None
            x, weight = graph.x_by_client, weight.values
        assert words is not None
        if len(rows) < graph.num_rows:
            words = words[ranges(x.indptr[rows].long(), graph.num_nonzero[rows])]
            x = x.select_rows(rows)
        return spmm(x if dropout is None else dropout.entries(x, words, number), weight)
    if h is None:
        assert isinstance(graph.x, Tensor)
        h = graph.x if len(rows) == graph.num_rows else graph.x[rows]
    if dropout is not None:
        h = dropout.rows(h, graph.ids[rows], number)
    assert isinstance(weight, Tensor)
    if weight.dim() == 2:
        return h @ weight
    if graph.num_clients == 1:
        return h @ weight[0]
    return tiled(h, weight, make_tiles(graph.client[rows], graph.num_clients))


def rows_to_send(graph: ClientGraph, layer: Layer, hw: Tensor) -> Tensor:
    """Compute the rows that other clients have requested, scaled by the owner's degrees.

    Args:
        hw: h W of the rows that enter, [n_in, H'].

    Returns:
        h W / sqrt(D_uu) of the requested rows u, without gradients, [A, H'].
    """
    assert layer.sent is not None
    return hw.detach()[layer.sent] * graph.scale[layer.rows[layer.sent], None]


def aggregate(
    graph: ClientGraph,
    layer: Layer,
    hw: Tensor,
    received: Tensor | None,
    weights: Weights,
    number: int,
    last: bool,
) -> Tensor:
    """Sum over the sampled neighbours of each row that leaves a layer.

    Args:
        hw: h W of the rows that enter, [n_in, H'].
        received: The rows of remote neighbours, [m, H']; None if the layer has none.
        weights: The weights: of each client, or the same for all.
        number: The number of the layer, from 0.
        last: Whether it is the last layer, which has no activation.

    Returns:
        The embeddings that leave the layer, [n, H'].

    Reference:
        FedGraph, Eqs. (2), (3) and (4).
    """
    bias = weights[f"layers.{number}.bias"]
    assert isinstance(bias, Tensor)
    # Eq. (2) in the first layer, Eq. (3) in the others
    z = spmm(layer.adjacency, hw if received is None else torch.cat([hw, received]))
    if bias.dim() == 2:
        bias = bias[0] if graph.num_clients == 1 else bias.index_select(0, graph.client[layer.out])
    z = z + bias
    # Eq. (4)
    return z if last else z.relu()
