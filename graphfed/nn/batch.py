"""What a forward pass needs of a cohort's graph, prepared once: the rows that matter, layer by layer.

A graph network's output at some target rows depends only on their receptive field. `make_batch` keeps exactly
those rows: layer l of L takes the rows N_l and gives the rows N_{l+1}, with N_L = the targets. Training on
few labelled nodes, or a client whose cross edges are dropped, then costs what its field costs. Exact:
every dropped row has no influence on the targets.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from graphfed.nn.moments import MomentParts, MomentRows, Moments
from graphfed.nn.sparse import SparseMatrix, pair_columns, shift_columns
from graphfed.nn.tiles import Tiles, make_tiles
from graphfed.random import entry_words

__all__ = ["Batch", "Block", "BlockMaker", "Far", "View", "make_batch"]


@dataclass(frozen=True, eq=False)
class Block:
    """One layer's edges between the rows in [N_in] and the rows out [N_out].

    adjacency [N_out, N_in]: weighted as the backbone needs; own [N_out]: the row in that is each row out
    itself. For GAT, adjacency [heads * N_out, heads * N_in] is the pattern once per head along a diagonal,
    and words [E] are the attention's dropout words, one for each entry of the pattern."""

    adjacency: SparseMatrix
    own: Tensor
    words: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Far:
    """The rows of a batch that other clients work out (`View.far`).

    near [n]: of the rows entering the first layer those that are none; at[l - 1] [m_l]: where they are among
    the rows entering layer l = 1 .. L - 1; which[l - 1] [m_l]: their numbers among the view's; given: the
    view's."""

    near: Tensor
    at: tuple[Tensor, ...]
    which: tuple[Tensor, ...]
    given: tuple[Tensor, ...]

    def put(self, h: Tensor, layer: int) -> Tensor:
        """h [N_l, H] with what was given of these rows."""
        return h.index_copy(0, self.at[layer - 1], self.given[layer - 1][self.which[layer - 1]])


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of a forward pass for the rows of one or more clients.

    x [N_0, F] (sparse with per-client weights: columns renumbered, see `shift_columns`), words [E] its
    dropout words, ids[l] [N_l] stable ids and client[l] [N_l] cohort index of the rows entering layer l (l =
    L: the targets), blocks[l] (None: the layer only transforms its rows), tiles[l] (of the rows ids[l]) and
    pairs for per-client weights; y [N_L] and weight [N_L] of the loss; moments, far: see `View`."""

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
    moments: MomentRows | MomentParts | None = None
    far: Far | None = None

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return len(self.blocks)

    def with_given(self, given: tuple[Tensor, ...]) -> "Batch":
        """The same with other embeddings of the far rows, as `View.given`."""
        return self if self.far is None else replace(self, far=replace(self.far, given=given))


#: make(edges [2, E], weight [E] or None, rows_in [N_in], rows_out [N_out], place [2, N], layer): the block of
#: the edges into rows_out, all three numbered as in the view; place[0] gives a row's number among rows_in,
#: place[1] among rows_out (-1: absent).
BlockMaker = Callable[[Tensor, Tensor | None, Tensor, Tensor, Tensor, int], Block]


@dataclass(frozen=True, eq=False)
class View:
    """A graph as a method lets the clients see it: N rows sorted by client, and which edges each layer may
    use.

    x [N, F], ids [N], client [N], y [N], degree [N] (for normalisation), edges[l] [2, E_l] (source,
    destination) rows without self loops for layer l (the last entry serves all later layers; without entries
    every layer only transforms its rows); aggregated: x
    is already summed over each row's neighbourhood, so the first layer only transforms it; edge_weight[l]
    [E_l]: of a weighted graph, else None; moments: of each row's neighbourhood, in the place of x, which then
    has no columns; far [N] bool: rows that other clients work out, else None: they have no moments, and what
    enters layer l of them is given[l - 1] [number of far rows, H]."""

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
    given: tuple[Tensor, ...] = ()

    def layer_edges(self, layer: int) -> Tensor | None:
        """The edges of a layer, None where it only transforms its rows."""
        if not self.edges or (self.aggregated and layer == 0):
            return None
        return self.edges[min(layer, len(self.edges) - 1)]

    def layer_weight(self, layer: int) -> Tensor | None:
        """The weights of a layer's edges, None where every edge weighs 1."""
        return None if self.edge_weight is None else self.edge_weight[min(layer, len(self.edges) - 1)]


def receptive_fields(view: View, targets: Tensor, layers: int) -> list[Tensor]:
    """The rows entering each layer, and the targets last: layers + 1 ascending index tensors."""
    mask = torch.zeros(len(view.ids), dtype=torch.bool, device=targets.device)
    mask[targets] = True
    fields = [targets]
    for layer in reversed(range(layers)):
        edges = view.layer_edges(layer)
        if edges is not None:
            mask = mask.clone()
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
    """Prepare a forward pass for the rows `targets` [n] (ascending) of a view; `make_block` is the
    backbone's.

    weight [n]: of each target in the loss (default 1); per_client: the weights will be one set per client,
    stored for `pairs` (default: the (client, feature) pairs that occur in the rows that matter). Floats take
    the dtype of x."""
    fields = receptive_fields(view, targets, layers)
    size, device = len(view.ids), targets.device
    blocks: list[Block | None] = []
    for layer, (rows_in, rows_out) in enumerate(pairwise(fields)):
        edges = view.layer_edges(layer)
        if edges is None:
            blocks.append(None)
            continue
        place = torch.full((2, size), -1, device=device)
        place[0, rows_in] = torch.arange(len(rows_in), device=device)
        place[1, rows_out] = torch.arange(len(rows_out), device=device)
        into, edge_weight = place[1, edges[1]] >= 0, view.layer_weight(layer)
        edge_weight = None if edge_weight is None else edge_weight[into]
        block = make_block(edges[:, into], edge_weight, rows_in, rows_out, place, layer)
        blocks.append(replace(block, adjacency=block.adjacency.to(dtype=view.x.dtype)))
    client = tuple(view.client[f] for f in fields)
    x, words = view.x, None
    if isinstance(x, SparseMatrix):
        x = x.select_rows(fields[0]) if len(fields[0]) < size else x
        words = entry_words(view.ids[fields[0]][x.row], x.indices.long())
        if per_client:
            if pairs is None:
                pairs = pair_columns(x, client[0], view.num_clients)
                if view.num_clients == 1:  # the rows that all clients share are this client's weights
                    pairs = (pairs[0][:0], pairs[1][:0])
            x = shift_columns(x, client[0], *pairs)
    elif len(fields[0]) < size:
        x = x[fields[0]]
    tiles: list[Tiles | None] = [None] * (layers + 1)
    apart = per_client and view.num_clients > 1
    far = None if view.far is None else _far_rows(view, view.far, fields)
    moments: MomentRows | MomentParts | None = None
    if view.moments is not None:
        rows, whose = fields[0], client[0]
        if view.far is not None and far is not None:
            rows, whose = ((~view.far).cumsum(0) - 1)[rows[far.near]], whose[far.near]
        some = rows if len(rows) < len(view.moments.size) else None
        # Laid out once for training; predictions gather a few nodes at a time.
        moments = (
            view.moments.prepared(whose if apart else None, view.num_clients, some)
            if per_client
            else view.moments.in_parts(rows)
        )
    if apart:
        tiles = [make_tiles(rows, view.num_clients) for rows in client]
    return Batch(
        x=x,
        words=words,
        ids=tuple(view.ids[f] for f in fields),
        client=client,
        blocks=tuple(blocks),
        num_clients=view.num_clients,
        tiles=tuple(tiles),
        pairs=pairs,
        y=view.y[targets],
        weight=torch.ones(len(targets), dtype=x.dtype, device=device) if weight is None else weight,
        moments=moments,
        far=far,
    )


def _far_rows(view: View, far: Tensor, fields: list[Tensor]) -> Far:
    number, inner = far.cumsum(0) - 1, fields[1:-1]
    at = tuple(far[rows].nonzero()[:, 0] for rows in inner)
    return Far(
        near=(~far[fields[0]]).nonzero()[:, 0],
        at=at,
        which=tuple(number[rows[there]] for rows, there in zip(inner, at, strict=True)),
        given=view.given,
    )
