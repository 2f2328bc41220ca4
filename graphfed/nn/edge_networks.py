"""Networks that read the directions and attributes of edges: GINE and PNA with reverse messages.

Hu et al.: Strategies for pre-training graph neural networks. ICLR 2020, arXiv:1905.12265 (GINE)
Corso et al.: Principal neighbourhood aggregation for graph nets. NeurIPS 2020, arXiv:2004.05718 (PNA)
Egressy et al.: Provably powerful graph neural networks for directed multigraphs. AAAI 2024, arXiv:2306.11586
(reverse messages)

    papers                               here
    x_v, the features of a node          h, after a linear map of the input features at layer 0
    e_uv                                 `Messages.attributes`, mapped to the width of h
    messages from out-neighbours         the weights with the prefix reverse., as many again as for
                                         in-neighbours; the results of both are averaged (`to_hetero`),
                                         and have one bias
    delta of PNA, Eq. (5)                MEAN_LOG_DEGREE

Differs from the papers: layer normalisation without weights (Ba, Kiros and Hinton, arXiv:1607.06450) in the
place of batch normalisation, on whose statistics clients would have to agree: of the rows that enter a later
layer, and in GINE of the sums that enter the MLP, which nodes with many edges would dominate. No residual
connections. eps of GINE is 0, as in PyG. delta is a constant and not a mean over the training graph: the
linear map after it can undo any constant, and nothing about degrees has to be sent. Without a direction there
are no reverse weights; without attributes, the constant of the map of attributes stays.

Layers agree with PyG's GINEConv and PNAConv (tests compare values and gradients). Shapes are those of shared
weights; per-client weights have a leading dimension K. H_l is the width of h that enters layer l.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import log

import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from graphfed.nn.batch import Batch, Block, BlockMaker
from graphfed.nn.directed import Messages
from graphfed.nn.layers import Dropout, add_bias, drop_input, linear, per_row, tiled
from graphfed.nn.sparse import SparseMatrix, SparseWeights
from graphfed.random import fold, glorot

Weights = dict[str, Tensor | SparseWeights]
#: draw(key, H_l, H_{l+1}) returns the weights of one layer in one direction of the edges.
Draw = Callable[[int, int, int], dict[str, Tensor]]
#: See `gine_pass`.
Pass = Callable[[Tensor, Messages, Tensor, dict[str, Tensor], Batch, int], Tensor]

#: What the names of the weights of reverse messages begin with.
REVERSE = "reverse."

#: The mean of log(d + 1) that PNA's scalers divide by: that of nodes with four neighbours.
MEAN_LOG_DEGREE = log(5)
#: The smallest variance that counts, as in PyG's StdAggregation.
_LEAST_VARIANCE = 1e-5
#: PNA: four aggregators (mean, min, max, std) times three scalers, next to h itself.
_PNA_WIDTHS = 4 * 3 + 1


def edge_network_block(ids: Tensor, degree: Tensor, heads: Sequence[int]) -> BlockMaker:
    """Return the function that builds a layer's block. Its messages come from `View.directed`."""

    def make(
        edges: Tensor, weight: Tensor | None, rows_in: Tensor, rows_out: Tensor, number: Tensor, layer: int
    ) -> Block:
        none = torch.zeros(0, dtype=torch.int64, device=edges.device)
        nothing = torch.zeros(0, device=edges.device)
        empty = SparseMatrix.from_coo(none, none, nothing, (len(rows_out), len(rows_in)))
        return Block(empty, number[0][rows_out])

    return make


def init(draw: Draw, key: int, widths: list[int], heads: Sequence[int]) -> dict[str, Tensor]:
    """Draw the weights that a network has on every graph.

    Args:
        draw: `gine_weights` or `pna_weights`.
        key: The key of the draws.
        widths: F, the widths of the hidden layers, and C.
        heads: The attention heads of each layer. Not used.

    Returns:
        layers.0.input_weight [F, H_0] and layers.0.input_bias [H_0], the map of the input features; and for
        each layer the weights of `draw` and layers.l.bias [H_{l+1}].
    """
    weights = {
        "layers.0.input_weight": glorot(fold(key, "input"), widths[0], widths[1]),
        "layers.0.input_bias": torch.zeros(widths[1]),
    }
    biases = {f"layers.{layer}.bias": torch.zeros(width) for layer, width in enumerate(widths[1:])}
    return weights | _of_layers(draw, key, widths, "") | biases


def edge_init(draw: Draw, key: int, widths: list[int], attributes: int, directed: bool) -> dict[str, Tensor]:
    """Draw the weights that depend on the edges of a graph.

    Args:
        draw: `gine_weights` or `pna_weights`.
        key: The key of the draws.
        widths: As in `init`.
        attributes: D, the number of attributes of an edge.
        directed: Whether edges have a direction.

    Returns:
        layers.l.edge_weight [D, H_l] if there are attributes; and if edges have a direction, all weights of
        the layers again for reverse messages, as layers.l.reverse.*.
    """
    weights = _of_layers(partial(_edge_weight, attributes), key, widths, "")
    if directed:
        weights |= _of_layers(partial(_edge_weight, attributes), key, widths, REVERSE)
        weights |= _of_layers(draw, key, widths, REVERSE)
    return weights


def _of_layers(draw: Draw, key: int, widths: list[int], prefix: str) -> dict[str, Tensor]:
    # The input map gives h the width of the first layer's output.
    every = enumerate(pairwise([widths[1], *widths[1:]]))
    return {
        f"layers.{layer}.{prefix}{name}": weight
        for layer, (before, after) in every
        for name, weight in draw(fold(key, layer, prefix), before, after).items()
    }


def gine_weights(key: int, before: int, after: int) -> dict[str, Tensor]:
    """Draw the weights of one GINE layer from the width H_l to H_{l+1}, in one direction of the edges."""
    return {
        "edge_bias": torch.zeros(before),
        "first_weight": glorot(fold(key, "first"), before, before),
        "first_bias": torch.zeros(before),
        "second_weight": glorot(fold(key, "second"), before, after),
    }


def pna_weights(key: int, before: int, after: int) -> dict[str, Tensor]:
    """Draw the weights of one PNA layer from the width H_l to H_{l+1}, in one direction of the edges."""
    return {
        "edge_bias": torch.zeros(before),
        "receiver_weight": glorot(fold(key, "receiver"), before, before),
        "sender_weight": glorot(fold(key, "sender"), before, before),
        "post_weight": glorot(fold(key, "post"), _PNA_WIDTHS * before, after),
    }


def _edge_weight(attributes: int, key: int, before: int, after: int) -> dict[str, Tensor]:
    return {"edge_weight": glorot(fold(key, "edge"), attributes, before)} if attributes else {}


def layer(
    run: Pass,
    h: Tensor | SparseMatrix,
    weights: Weights,
    batch: Batch,
    dropout: Dropout | None,
    layer: int,
) -> Tensor:
    """Run one layer of a network, with ReLU unless it is the last.

    Args:
        run: `gine_pass` or `pna_pass`.
        h: The rows that enter the layer, before dropout: [N_0, F], or [N_l, H_l].
        weights: The weights of all layers.
        batch: The batch, whose block of the layer has the messages.
        dropout: Dropout of the input; None: none.
        layer: l, the number of the layer.

    Returns:
        [N_{l+1}, H_{l+1}].
    """
    block = batch.blocks[layer]
    assert block is not None
    assert block.edges is not None
    h = drop_input(h, batch, layer, dropout)
    # Only the weights of a sparse input are stored by pairs of clients and features.
    own = {name: w for name, w in weights.items() if isinstance(w, Tensor)}
    if layer == 0:
        z = linear(h, weights["layers.0.input_weight"], batch, 0)
        z = z + per_row(own["layers.0.input_bias"], batch, 0, 1)
    else:
        assert isinstance(h, Tensor)
        z = _normalise(h)
    results = [
        run(z, messages, block.own, _with_prefix(own, f"layers.{layer}.{prefix}"), batch, layer)
        for prefix, messages in (("", block.edges.inward), (REVERSE, block.edges.reverse))
        if messages is not None
    ]
    # Egressy et al.: the results of both directions are averaged.
    out = results[0] if len(results) == 1 else (results[0] + results[1]) / 2
    out = add_bias(out, own[f"layers.{layer}.bias"], batch, layer)
    return out.relu() if layer < batch.layers - 1 else out


def gine_pass(
    h: Tensor, messages: Messages, own: Tensor, w: dict[str, Tensor], batch: Batch, layer: int
) -> Tensor:
    """Compute MLP(norm(h_i + sum_j relu(h_j + e_ji))) of one direction without the last bias,
    [N_{l+1}, H_{l+1}].

    Args:
        h: [N_l, H_l].
        messages: The E messages of the direction.
        own: [N_{l+1}] int64, the row of h of each output row.
        w: The weights of the layer in this direction, without a prefix.
        batch: The batch, for the clients of the rows.
        layer: l, the number of the layer.

    Reference:
        Hu et al. 2020, appendix B, with eps = 0.
    """
    sent = (h.index_select(0, messages.sender) + _edge_map(messages, w)).relu()
    total = _normalise(h.index_select(0, own).index_add(0, messages.receiver, sent))
    # The rows that the layer returns have the tiles of the next layer.
    z = add_bias(linear(total, w["first_weight"], batch, layer + 1), w["first_bias"], batch, layer).relu()
    return linear(z, w["second_weight"], batch, layer + 1)


def pna_pass(
    h: Tensor, messages: Messages, own: Tensor, w: dict[str, Tensor], batch: Batch, layer: int
) -> Tensor:
    """Compute a PNA of one direction without the last bias, [N_{l+1}, H_{l+1}].

    The arguments are those of `gine_pass`.

    Reference:
        Corso et al. 2020, Eq. (5), (7) and (8).
    """
    rows = h.index_select(0, own)
    # A map of [h_i, h_j, e_ji] is a sum of maps, of which those of nodes are computed once for each node.
    received = linear(rows, w["receiver_weight"], batch, layer + 1)
    sent = linear(h, w["sender_weight"], batch, layer)
    values = received.index_select(0, messages.receiver) + sent.index_select(0, messages.sender)
    values = values + _edge_map(messages, w)
    degree = torch.bincount(messages.receiver, minlength=len(own)).to(h.dtype)[:, None]
    moments = torch.cat([values, values * values], 1)
    zeros = moments.new_zeros(len(own), moments.shape[1])
    # A node without neighbours has 0 in every aggregator.
    mean, squares = (zeros.index_add(0, messages.receiver, moments) / degree.clamp(min=1)).chunk(2, 1)
    variance = (squares - mean * mean).clamp(min=_LEAST_VARIANCE)
    deviation = variance.sqrt().masked_fill(variance <= _LEAST_VARIANCE, 0)
    index = messages.receiver[:, None].expand_as(values)
    least, largest = (
        torch.zeros_like(mean).scatter_reduce(0, index, values, reduce, include_self=False)
        for reduce in ("amin", "amax")
    )
    pooled = torch.cat([mean, least, largest, deviation], 1)
    scale = torch.log(degree + 1) / MEAN_LOG_DEGREE  # Eq. (5), alpha = 1
    attenuation = MEAN_LOG_DEGREE / torch.log(degree.clamp(min=1) + 1)  # alpha = -1
    features = torch.cat([rows, pooled, pooled * scale, pooled * attenuation], 1)
    return linear(features, w["post_weight"], batch, layer + 1)


def _normalise(h: Tensor) -> Tensor:
    """Give every row mean 0 and variance 1."""
    return layer_norm(h, h.shape[-1:])


def _edge_map(messages: Messages, w: dict[str, Tensor]) -> Tensor:
    """Map the attributes of each message's edge by its client's weights, [E, H], or [H] without attributes
    and with one bias.
    """
    bias, weight = w["edge_bias"], w.get("edge_weight")
    if bias.dim() > 1:
        bias = bias[0] if messages.tiles is None else bias.index_select(0, messages.client)
    if weight is None:
        return bias
    if weight.dim() == 2:
        return messages.attributes @ weight + bias
    if messages.tiles is None:
        return messages.attributes @ weight[0] + bias
    return tiled(messages.attributes, weight, messages.tiles) + bias


def _with_prefix(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}
