"""Batches: the input of a forward pass, prepared once from a cohort's graph.

The output of a graph network at some target rows depends only on their receptive field. `make_batch` selects
exactly these rows. Layer l of L takes N_l rows and returns N_{l+1} rows; the last N_L rows are the targets.
So a step on few labelled nodes costs what their receptive field costs. The result is exact, because the other
rows do not influence the targets.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from graphfed.nn.directed import BlockEdges, EdgeRows, block_edges
from graphfed.nn.moments import MomentChunks, MomentRows, Moments
from graphfed.nn.sparse import SparseMatrix, pair_columns, shift_columns
from graphfed.nn.tiles import Tiles, make_tiles
from graphfed.random import entry_words


@dataclass(frozen=True, eq=False)
class Block:
    """The edges of one layer, from N_in input rows to N_out output rows.

    Attributes:
        adjacency: [N_out, N_in], with the weights that the backbone needs. For GAT [heads * N_out,
            heads * N_in]: one copy of the pattern per head, along the diagonal.
        own: [N_out] int64, the input row of the same node as each output row.
        words: [E] int64, the words of the attention's dropout, one for each entry of one copy of the pattern.
            None without attention.
        edges: The messages of networks that read directions and attributes (`View.directed`); else None.
    """

    adjacency: SparseMatrix
    own: Tensor
    words: Tensor | None = None
    edges: BlockEdges | None = None


@dataclass(frozen=True, eq=False)
class FarRows:
    """The rows of a batch whose embeddings other clients compute (`View.far`).

    Attributes:
        near: [n] int64, which of the rows that enter the first layer are not far.
        positions: For each layer l = 1 .. L - 1, [m_l] int64: which of the rows that enter the layer are far.
        numbers: For each of these layers, [m_l] int64: the rows of `received` for these rows.
        received: `View.received`.
    """

    near: Tensor
    positions: tuple[Tensor, ...]
    numbers: tuple[Tensor, ...]
    received: tuple[Tensor, ...]

    def insert(self, h: Tensor, layer: int) -> Tensor:
        """Replace the embeddings of the far rows by the received ones.

        Args:
            h: [N_l, H], the input of the layer.
            layer: l, the number of the layer, from 1.

        Returns:
            [N_l, H].
        """
        received = self.received[layer - 1][self.numbers[layer - 1]]
        return h.index_copy(0, self.positions[layer - 1], received)


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of a forward pass for the rows of one or more clients.

    Attributes:
        x: [N_0, F]. If it is sparse and the weights are per client, its columns are renumbered
            (`sparse.shift_columns`).
        words: [E] int64, the dropout words of the entries of a sparse `x`; else None.
        ids: For l = 0 .. L, [N_l] int64: the stable ids of the rows that enter layer l. Those of l = L are
            the targets.
        client: For l = 0 .. L, [N_l] int64: the index in the cohort of each row's client, ascending.
        blocks: For l = 0 .. L - 1, the edges of layer l. None if the layer does not use edges.
        num_clients: K.
        tiles: For l = 0 .. L, the tiles of the rows that enter layer l. None if the weights are shared or
            there is only one client.
        pairs: The (client, feature) pairs of stored per-client weights, two [P] int64 tensors
            (`sparse.pair_columns`); else None.
        y: [N_L] int64, the classes of the targets.
        weight: [N_L], the weight of each target in the loss.
        moments: The moments of the rows that enter the first layer (`View.moments`).
        far: The rows whose embeddings other clients compute; None if there are none.
    """

    x: Tensor | SparseMatrix
    words: Tensor | None
    ids: tuple[Tensor, ...]
    client: tuple[Tensor, ...]
    blocks: tuple[Block | None, ...]
    num_clients: int
    tiles: tuple[Tiles | None, ...]
    pairs: tuple[Tensor, Tensor] | None
    y: Tensor
    weight: Tensor
    moments: MomentRows | MomentChunks | None = None
    far: FarRows | None = None

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return len(self.blocks)

    def with_received(self, received: tuple[Tensor, ...]) -> "Batch":
        """Replace the embeddings that were received from other clients.

        Args:
            received: The embeddings of all far rows of the view, as in `View.received`.

        Returns:
            The batch with these embeddings; the same batch if it has no far rows.
        """
        return self if self.far is None else replace(self, far=replace(self.far, received=received))


#: make(edges [2, E], weight [E] or None, rows_in [N_in], rows_out [N_out], number [2, N], layer) returns the
#: block of one layer. The edges point into rows_out. Edges and rows are numbered as in the view. number[0]
#: maps a row of the view to its number among rows_in, number[1] to that among rows_out (-1: absent).
BlockMaker = Callable[[Tensor, Tensor | None, Tensor, Tensor, Tensor, int], Block]


@dataclass(frozen=True, eq=False)
class View:
    """The graph that a method shows to the clients: N rows, and the edges that each layer may use.

    Attributes:
        x: [N, F], the features.
        ids: [N] int64, stable ids of the rows.
        client: [N] int64, the index in the cohort of each row's client, ascending.
        num_clients: K.
        y: [N] int64, classes; -1 where the client does not know the class.
        degree: [N], the degrees that GCN and GraphSAGE normalise by. Other backbones do not use them.
        edges: For layer l, [2, E_l] int64: rows (source, destination) without self loops. Layers after the
            last entry use the last entry. Empty: no layer uses edges.
        aggregated: Whether `x` is already summed over each row's neighbourhood. The first layer then uses no
            edges.
        edge_weight: Like `edges`, [E_l]. None for a graph without weights.
        moments: The moments of the neighbourhoods of all rows that are not far. The first layer uses them in
            the place of `x`, which then has no columns. None for methods without moments.
        far: [N] bool, the rows whose embeddings other clients compute. They have no moments. None: no row.
        received: For layer l = 1, 2, ... the embeddings of all far rows that enter it, [number of far rows,
            H_l].
        directed: The edges as the data lists them, between the rows of `edges`. None for networks that do not
            read them.
    """

    x: Tensor | SparseMatrix
    ids: Tensor
    client: Tensor
    num_clients: int
    y: Tensor
    degree: Tensor
    edges: tuple[Tensor, ...]
    aggregated: bool = False
    edge_weight: tuple[Tensor, ...] | None = None
    moments: Moments | None = None
    far: Tensor | None = None
    received: tuple[Tensor, ...] = ()
    directed: EdgeRows | None = None

    def layer_edges(self, layer: int) -> Tensor | None:
        """Select the edges of a layer.

        Args:
            layer: l, the number of the layer.

        Returns:
            [2, E_l] int64; None if the layer uses no edges.
        """
        if not self.edges or (self.aggregated and layer == 0):
            return None
        return self.edges[min(layer, len(self.edges) - 1)]

    def layer_weight(self, layer: int) -> Tensor | None:
        """Select the weights of a layer's edges.

        Args:
            layer: l, the number of the layer.

        Returns:
            [E_l]; None if every edge has the weight 1.
        """
        return None if self.edge_weight is None else self.edge_weight[min(layer, len(self.edges) - 1)]


def receptive_fields(view: View, targets: Tensor, layers: int) -> list[Tensor]:
    """Find the rows that influence the targets.

    Args:
        view: The rows, and the edges of each layer.
        targets: [n] int64, ascending rows of the view.
        layers: L, the number of layers of the network.

    Returns:
        L + 1 tensors [N_l] int64: the rows that enter each layer, ascending, and the targets.
    """
    # From the last layer to the first. The mask only grows, so every output row of a layer is an input row
    # too (`Block.own`).
    mask = torch.zeros(len(view.ids), dtype=torch.bool, device=targets.device)
    mask[targets] = True
    fields = [targets]
    for layer in reversed(range(layers)):
        edges = view.layer_edges(layer)
        if edges is not None:
            mask[edges[0][mask[edges[1]]]] = True
        fields.insert(0, mask.nonzero()[:, 0])
    return fields


def make_batch(
    view: View,
    targets: Tensor,
    layers: int,
    make_block: BlockMaker,
    *,
    weight: Tensor | None = None,
    per_client: bool = False,
    pairs: tuple[Tensor, Tensor] | None = None,
) -> Batch:
    """Prepare a forward pass for some rows of a view. The adjacencies get the dtype of x.

    Args:
        view: The rows and edges of the cohort's clients.
        targets: [n] int64, ascending rows of the view.
        layers: L, the number of layers of the network.
        make_block: Makes the block of a layer (`Backbone.blocks`).
        weight: [n], the weight of each target in the loss. None: 1 each.
        per_client: Whether the network will have one set of weights per client.
        pairs: The (client, feature) pairs whose weights are stored, two [P] int64 tensors; used only if `x`
            is sparse and `per_client` is set. None: the pairs that occur in the receptive field.

    Returns:
        The batch.
    """
    fields = receptive_fields(view, targets, layers)
    size, device = len(view.ids), targets.device
    blocks: list[Block | None] = []
    for layer, (rows_in, rows_out) in enumerate(pairwise(fields)):
        edges = view.layer_edges(layer)
        if edges is None:
            blocks.append(None)
            continue
        number = torch.full((2, size), -1, device=device)
        number[0, rows_in] = torch.arange(len(rows_in), device=device)
        number[1, rows_out] = torch.arange(len(rows_out), device=device)
        # Edges into the outputs; `receptive_fields` followed the same edges, so their sources are inputs.
        into, edge_weight = number[1, edges[1]] >= 0, view.layer_weight(layer)
        edge_weight = None if edge_weight is None else edge_weight[into]
        block = make_block(edges[:, into], edge_weight, rows_in, rows_out, number, layer)
        # Backbones normalise in float64; products run in the dtype of the features.
        block = replace(block, adjacency=block.adjacency.to(dtype=view.x.dtype))
        if view.directed is not None:
            messages = block_edges(view.directed, number, view.client, view.num_clients, view.x.dtype)
            block = replace(block, edges=messages)
        blocks.append(block)
    client = tuple(view.client[f] for f in fields)
    x, words, stored = view.x, None, None
    if isinstance(x, SparseMatrix):
        x = x.select_rows(fields[0]) if len(fields[0]) < size else x
        if per_client:
            stored = pairs
            if stored is None:
                stored = pair_columns(x, client[0], view.num_clients)
                # With one client the ghost rows of `SparseWeights` are its weights, so no pair is stored.
                if view.num_clients == 1:
                    stored = (stored[0][:0], stored[1][:0])
            x = shift_columns(x, client[0], *stored)
        # The words name features. Renumbered columns are those of the pairs, then those of all features.
        feature = x.indices.long()
        if stored is not None:
            feature = torch.cat([stored[1], torch.arange(view.x.shape[1], device=device)])[feature]
        words = entry_words(view.ids[fields[0]][x.row], feature)
    elif len(fields[0]) < size:
        x = x[fields[0]]
    tiles: list[Tiles | None] = [None] * (layers + 1)
    has_several_sets = per_client and view.num_clients > 1
    far = None if view.far is None else _far_rows(view, view.far, fields)
    moments: MomentRows | MomentChunks | None = None
    if view.moments is not None:
        # Far rows have no moments, so the others are numbered without them.
        rows, row_client = fields[0], client[0]
        if view.far is not None and far is not None:
            rows, row_client = ((~view.far).cumsum(0) - 1)[rows[far.near]], row_client[far.near]
        some = rows if len(rows) < len(view.moments.size) else None
        # For training all moments are laid out once. A prediction lays out a few nodes at a time, so that it
        # needs little memory.
        moments = (
            view.moments.lay_out(row_client if has_several_sets else None, view.num_clients, some)
            if per_client
            else view.moments.lay_out_in_chunks(rows)
        )
    if has_several_sets:
        tiles = [make_tiles(rows, view.num_clients) for rows in client]
    return Batch(
        x=x,
        words=words,
        ids=tuple(view.ids[f] for f in fields),
        client=client,
        blocks=tuple(blocks),
        num_clients=view.num_clients,
        tiles=tuple(tiles),
        pairs=stored,
        y=view.y[targets],
        weight=torch.ones(len(targets), dtype=x.dtype, device=device) if weight is None else weight,
        moments=moments,
        far=far,
    )


def _far_rows(view: View, far: Tensor, fields: list[Tensor]) -> FarRows:
    # The number of each far row in `received`. Layer 0 computes from moments, so embeddings are received for
    # the inputs of layers 1 .. L - 1.
    number, inner = far.cumsum(0) - 1, fields[1:-1]
    positions = tuple(far[rows].nonzero()[:, 0] for rows in inner)
    return FarRows(
        near=(~far[fields[0]]).nonzero()[:, 0],
        positions=positions,
        numbers=tuple(number[rows[at]] for rows, at in zip(inner, positions, strict=True)),
        received=view.received,
    )
