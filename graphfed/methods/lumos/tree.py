"""The trees of Lumos (sections V-A and VI-B of the paper) and the networks on them.

The tree of client u has for each neighbour v_k in N_u = {v_1 .. v_w} a pair of leaves, a_k (stands for u) and
b_k (stands for v_k), with a parent P_k; all parents have one root: 3 w + 1 nodes and 3 w edges. Leaves start
from features, the client's own on a_k and the received ones of v_k on b_k; parents and root start from zeros,
Eq. (25).

Two functions compute the same embeddings of leaves:

    general   a graph network on the disjoint union of all trees, for any number of layers; without virtual
              nodes, on all neighbourhoods: the client's node in the middle, with a leaf for each neighbour
    fused     for up to three layers, where a leaf depends on its own pair only: information needs two layers
              from a leaf to the root and two more to another leaf. All pairs are rows of a few dense products

Both start from the products of features and the first layer's weights, which are computed once for each
client and not for each of its leaves. Shapes: n clients of a cohort, P pairs (client, neighbour in its tree),
sorted, H hidden units.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from graphfed.nn.backbones import BACKBONES, attend, average_heads, per_head
from graphfed.nn.batch import Block
from graphfed.nn.layers import Dropout
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.random import entry_words

Weights = dict[str, Tensor]

#: With this many layers or fewer, a leaf depends on its own pair only.
FUSED_LAYERS = 3
#: The kinds of tree nodes, as numbers in their stable ids.
_OWN, _NOISED, _PARENT, _ROOT = range(4)


@dataclass(frozen=True, eq=False)
class Forest:
    """The trees of a cohort's n clients.

    Attributes:
        client: [P] client of each pair, as an index in the cohort, ascending.
        workload: [n] int64: w of each client.
        lone: [L] clients without a leaf in any tree; each gets one leaf of its own under its root.
        ids: Stable ids of own leaves [n] (dropout treats all copies of a client alike), of leaves b_k [P], of
            parents [P] and of roots [n].
        virtual: Whether the trees have parents and roots.
    """

    client: Tensor
    workload: Tensor
    lone: Tensor
    ids: tuple[Tensor, Tensor, Tensor, Tensor]
    virtual: bool

    @property
    def num_clients(self) -> int:
        """Number of clients, n."""
        return len(self.workload)

    @property
    def num_pairs(self) -> int:
        """Number of pairs of leaves, P."""
        return len(self.client)

    @cached_property
    def clients(self) -> Tensor:
        """The indices 0..n-1."""
        return torch.arange(self.num_clients, device=self.client.device)

    @cached_property
    def row_clients(self) -> Tensor:
        """The client of every row of `general`."""
        pairs, clients = self.client, self.clients
        parts = [pairs, pairs, pairs, clients, self.lone] if self.virtual else [clients, pairs]
        return torch.cat(parts)

    @cached_property
    def client_of_pair(self) -> SparseMatrix:
        """[P, n] matrix with a one at the client of each pair."""
        rows = torch.arange(self.num_pairs + 1, device=self.client.device)
        ones = torch.ones(self.num_pairs, device=self.client.device)
        return SparseMatrix.from_csr(rows, self.client, ones, (self.num_pairs, self.num_clients))

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """Numbers of rows of `general`: own leaves, leaves b_k, parents, roots, leaves of lone clients."""
        pairs, clients = self.num_pairs, self.num_clients
        return (pairs, pairs, pairs, clients, len(self.lone)) if self.virtual else (clients, pairs)

    @cached_property
    def edges(self) -> Tensor:
        """The edges of all trees between the rows of `general`, in both directions, [2, 6 P + 2 L]."""
        pair = torch.arange(self.num_pairs, device=self.client.device)
        if not self.virtual:
            one_way = torch.stack([self.client, self.num_clients + pair])
        else:
            own, noised, parent, root, lone = self._starts
            numbers = torch.arange(len(self.lone), device=pair.device)
            one_way = torch.cat(
                [
                    torch.stack([own + pair, parent + pair]),
                    torch.stack([noised + pair, parent + pair]),
                    torch.stack([parent + pair, root + self.client]),
                    torch.stack([lone + numbers, root + self.lone]),
                ],
                1,
            )
        return torch.cat([one_way, one_way.flip(0)], 1)

    @cached_property
    def only_lone(self) -> "Forest":
        """The trees of the lone clients."""
        lone, none = torch.arange(len(self.lone), device=self.lone.device), self.ids[1][:0]
        ids = (self.ids[0][self.lone], none, none, self.ids[3][self.lone])
        return Forest(lone[:0], torch.zeros_like(lone), lone, ids, self.virtual)

    @property
    def _starts(self) -> list[int]:
        return [sum(self.parts[:k]) for k in range(len(self.parts))]

    @cached_property
    def row_ids(self) -> Tensor:
        """The stable id of every row of `general`."""
        own, noised, parent, root = self.ids
        if not self.virtual:
            return torch.cat([own, noised])
        # Copies of a client have one id, so dropout treats them alike, as `fused` does.
        return torch.cat([own[self.client], noised, parent, root, own[self.lone]])

    def blocks(self, backbone: str, heads: Sequence[int]) -> tuple[Block, ...]:
        """Build the edges as each layer of a network needs them; `heads` of attention of each layer."""
        every = torch.arange(sum(self.parts), device=self.client.device)
        degree = torch.bincount(self.edges[1], minlength=len(every))
        make = BACKBONES[backbone].blocks(self.row_ids, degree, heads)
        place, layers = every.expand(2, -1), len(heads)
        # All layers except the last have equal blocks, so at most two are made.
        blocks_by_kind: dict[bool, Block] = {}
        for layer in range(layers):
            last = layer == layers - 1
            if last not in blocks_by_kind:
                block = make(self.edges, None, every, every, place, layer)
                adjacency = block.adjacency.to(dtype=torch.get_default_dtype())
                blocks_by_kind[last] = replace(block, adjacency=adjacency)
        return tuple(blocks_by_kind[layer == layers - 1] for layer in range(layers))


@dataclass(frozen=True, eq=False)
class Leaves:
    """Embeddings of leaves.

    Attributes:
        own: [P + L, H] of the leaves a_k, then of the lone clients' leaves; without virtual nodes [n, H] of
            the clients.
        noised: [P, H] of the leaves b_k.
    """

    own: Tensor
    noised: Tensor


def make_forest(
    client: Tensor, client_id: Tensor, other: Tensor, lone: Tensor, clients: Tensor, *, virtual: bool
) -> Forest:
    """Build the trees of a cohort.

    Args:
        client: [P] client of each pair, as an index in the cohort, ascending.
        client_id: [P] stable id of each pair's client.
        other: [P] stable id of the neighbour that each pair is for.
        lone: [L] clients without a leaf in any tree, as indices.
        clients: [n] stable ids of the cohort's clients.
        virtual: Whether the trees have parents and roots.
    """
    # Hashes of kind and ids: no two tree nodes of a run share draws, whichever cohort they are in.
    own, root = (entry_words(clients * 4 + kind, clients) for kind in (_OWN, _ROOT))
    noised, parent = (entry_words(client_id * 4 + kind, other) for kind in (_NOISED, _PARENT))
    workload = torch.bincount(client, minlength=len(clients))
    return Forest(client, workload, lone, (own, noised, parent, root), virtual)


def multiply(x: Tensor, weight: Tensor, client: Tensor) -> Tensor:
    """Multiply rows x [N, F] by weights [F, H] that all clients share, or each by its client's own copy.

    Copies are [n, F, H], and `client` [N] says which one is a row's.
    """
    if weight.dim() == 2:
        return x @ weight
    return torch.bmm(x[:, None], weight.index_select(0, client))[:, 0]


def bias_of_rows(bias: Tensor, client: Tensor) -> Tensor:
    """Return the bias [H] that all rows share, or [N, H] from a copy [n, H] for each client."""
    return bias if bias.dim() == 1 else bias.index_select(0, client)


# ---- the general form --------------------------------------------------------------------------------------


def general(
    forest: Forest,
    blocks: tuple[Block, ...],
    weights: Weights,
    own: Tensor,
    noised: Tensor,
    backbone: str,
    dropout: Dropout | None,
) -> Leaves:
    """Run the network on all trees at once: every layer ends with a ReLU; dropout is between layers.

    `own` [n, H] is x_u W_1 of every client, and `noised` [P, H] is x''_v W_1 of every pair.

    Reference:
        Lumos, Eqs. (2) and (25).
    """
    # Eq. (25): features on the leaves, zeros on the virtual nodes.
    # A product with a 0/1 matrix in place of an index: its gradient is a sum that does not depend on threads.
    copies = spmm(forest.client_of_pair, own)
    if forest.virtual:
        zeros = own.new_zeros(forest.num_pairs + forest.num_clients, own.shape[1])
        h = torch.cat([copies, noised, zeros, own.index_select(0, forest.lone)])
    else:
        h = torch.cat([own, noised])
    # Eq. (2), layer by layer
    for layer, block in enumerate(blocks):
        if layer:
            h = multiply(h, weights[f"layers.{layer}.weight"], forest.row_clients)
        h = _propagate(h, weights, forest, block, layer, backbone)
        bias = weights[f"layers.{layer}.bias"]
        h = (average_heads(h, bias.shape[-1]) + bias_of_rows(bias, forest.row_clients)).relu()
        if dropout is not None and layer < len(blocks) - 1:
            h = dropout.rows(h, forest.row_ids, layer)
    rows = torch.split(h, list(forest.parts))
    return Leaves(torch.cat([rows[0], rows[4]]) if forest.virtual else rows[0], rows[1])


def _propagate(
    z: Tensor, weights: Weights, forest: Forest, block: Block, layer: int, backbone: str
) -> Tensor:
    """Aggregate over neighbours in the tree."""
    if backbone == "gcn":
        return spmm(block.adjacency, z)
    source = weights[f"layers.{layer}.att_src"]
    # One product for the scores as a source and as a target of all heads
    scores = multiply(z, _attention(weights, layer), forest.row_clients)
    return attend(z, scores.t(), block, source.shape[-2])


def _attention(weights: Weights, layer: int) -> Tensor:
    """Return the matrix from rows to scores: as a source for every head, then as a target, [heads * H, 2
    heads].
    """
    source, target = weights[f"layers.{layer}.att_src"], weights[f"layers.{layer}.att_dst"]
    return torch.cat([per_head(source), per_head(target)], -1)


# ---- the fused form ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Rows:
    """The tree nodes that matter to pairs; None stands for zeros.

    own is [n, H] while all copies a_k of a client are equal, then [P, H]; noised and parent are [P, H], root
    [n, H].
    """

    own: Tensor
    noised: Tensor
    parent: Tensor | None
    root: Tensor | None


def fused(
    forest: Forest,
    weights: Weights,
    own: Tensor,
    noised: Tensor,
    backbone: str,
    layers: int,
    dropout: Dropout | None,
) -> Leaves:
    """Compute what `general` computes, from the same arguments, pair by pair.

    The trees have virtual nodes, and there are at most FUSED_LAYERS layers.

    Reference:
        docs/papers/lumos.md, "Message passing on trees".
    """
    # Eq. (25): parents and roots start from zeros, so the first layer multiplies features of leaves only.
    z = _Rows(own, noised, None, None)
    update = _gcn_pairs if backbone == "gcn" else _gat_pairs
    h = update(z, weights, forest, 0, layers - 1)
    for layer in range(1, layers):
        if dropout is not None:
            h = _apply_dropout(h, forest, layer - 1, dropout)
        z = _multiply(h, weights[f"layers.{layer}.weight"], forest, layer)
        h = update(z, weights, forest, layer, layers - 1 - layer)
    lone = _lone_leaves(forest, weights, own, backbone, layers, dropout)
    # With one layer all copies of a client are still equal, one row [n, H].
    copies = _repeat_for_pairs(h.own, forest) if layers == 1 else h.own
    return Leaves(torch.cat([copies, lone]) if len(lone) else copies, h.noised)


def _repeat_for_pairs(rows: Tensor, forest: Forest) -> Tensor:
    """Repeat rows of clients [n, H] for each pair of the client, [P, H]."""
    return spmm(forest.client_of_pair, rows)


def _multiply(h: _Rows, weight: Tensor, forest: Forest, layer: int) -> _Rows:
    pairs, clients = forest.client, forest.clients
    return _Rows(
        multiply(h.own, weight, clients if layer == 1 else pairs),
        multiply(h.noised, weight, pairs),
        None if h.parent is None else multiply(h.parent, weight, pairs),
        None if h.root is None else multiply(h.root, weight, clients),
    )


def _apply_dropout(h: _Rows, forest: Forest, layer: int, dropout: Dropout) -> _Rows:
    own, noised, parent, root = forest.ids
    if layer == 0:
        own_rows = dropout.rows(h.own, own, layer)
    else:
        # A client's mask, drawn once and repeated, because its copies a_k differ from the second layer on.
        keep = dropout.rows(h.own.new_ones(forest.num_clients, h.own.shape[1]), own, layer)
        own_rows = h.own * keep.index_select(0, forest.client)
    return _Rows(
        own_rows,
        dropout.rows(h.noised, noised, layer),
        None if h.parent is None else dropout.rows(h.parent, parent, layer),
        None if h.root is None else dropout.rows(h.root, root, layer),
    )


#: 1 / sqrt((1 + 1) (3 + 1)), between a leaf and its parent.
_LEAF_PARENT = 8**-0.5


def _gcn_pairs(z: _Rows, weights: Weights, forest: Forest, layer: int, layers_left: int) -> _Rows:
    """Compute a layer of GCN. A leaf has degree 1, a parent 3, a root w.

    layers_left: The layers that follow; a parent is needed if one follows, a root if two do.
    """
    shared = weights[f"layers.{layer}.bias"]
    bias, own_rows = bias_of_rows(shared, forest.client), bias_of_rows(shared, forest.clients)
    parent = root = None
    if z.parent is None:
        # 1 / (1 + 1), a leaf's weight of itself; its parent is zero in the first layer.
        own, noised = (torch.add(b, x, alpha=0.5).relu() for b, x in ((own_rows, z.own), (bias, z.noised)))
        if layers_left:
            leaves = _repeat_for_pairs(z.own, forest).add(z.noised)
            parent = torch.add(bias, leaves, alpha=_LEAF_PARENT).relu()
    else:
        copies = _repeat_for_pairs(z.own, forest) if layer == 1 else z.own
        down = torch.add(bias, z.parent, alpha=_LEAF_PARENT)
        own, noised = (torch.add(down, x, alpha=0.5).relu() for x in (copies, z.noised))
        if layers_left:
            assert z.root is not None
            # 0.25 = 1 / (3 + 1), a parent's weight of itself
            up = torch.add(bias, copies + z.noised, alpha=_LEAF_PARENT).add(z.parent, alpha=0.25)
            # 1 / sqrt((3 + 1) (w + 1)), between a parent and the root
            from_root = 0.5 * (forest.workload + 1).to(bias.dtype).rsqrt()[:, None] * z.root
            parent = (up + _repeat_for_pairs(from_root, forest)).relu()
    if layers_left > 1:
        # All neighbours of the root are zeros so far.
        root = own_rows.relu().expand(forest.num_clients, -1)
    return _Rows(own, noised, parent, root)


def _gat_pairs(z: _Rows, weights: Weights, forest: Forest, layer: int, layers_left: int) -> _Rows:
    """A leaf attends to itself and its parent; a parent to itself, its leaves and the root."""
    both, heads = _attention(weights, layer), weights[f"layers.{layer}.att_src"].shape[-2]
    pairs, clients, bias = forest.client, forest.clients, weights[f"layers.{layer}.bias"]

    def scored(x: Tensor | None, client: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z [., heads, H], and its scores as source and as target [., heads]; zeros where it is None."""
        if x is None:
            # Broadcast over rows: zeros of the virtual nodes need no memory.
            nothing = z.own.new_zeros(heads)
            return nothing[:, None], nothing, nothing
        source, target = multiply(x, both, client).chunk(2, -1)
        return x.view(len(x), heads, x.shape[1] // heads), source, target

    parent = scored(z.parent, pairs)

    def leaf(x: tuple[Tensor, Tensor, Tensor], client: Tensor) -> Tensor:
        # A softmax over two scores is the sigmoid of their difference.
        # The score of the leaf itself minus that of its parent
        own = leaky_relu(x[2] + x[1], 0.2) - leaky_relu(x[2] + parent[1], 0.2)
        attention = own.sigmoid()[..., None]
        mixed = attention * x[0] if z.parent is None else torch.lerp(parent[0], x[0], attention)
        joined = average_heads(mixed.flatten(-2), bias.shape[-1])
        return (joined + bias_of_rows(bias, client)).relu()

    noised = scored(z.noised, pairs)
    if layer == 0:
        own = leaf(scored(z.own, clients), clients)
        own_rows = scored(_repeat_for_pairs(z.own, forest), pairs) if layers_left else noised
    else:
        own_rows = scored(_repeat_for_pairs(z.own, forest) if layer == 1 else z.own, pairs)
        own = leaf(own_rows, pairs)
    parent_sum = None
    if layers_left:
        root_of_pair = scored(None if z.root is None else _repeat_for_pairs(z.root, forest), pairs)
        # The neighbours of a parent: both leaves, itself and the root
        members = (own_rows, noised, parent, root_of_pair)
        scores = torch.stack([leaky_relu(parent[2] + m[1], 0.2).expand_as(noised[1]) for m in members])
        attentions = torch.softmax(scores, 0)[..., None]
        parent_sum = torch.addcmul(attentions[0] * own_rows[0], attentions[1], noised[0])
        if z.parent is not None:
            parent_sum = torch.addcmul(
                torch.addcmul(parent_sum, attentions[2], parent[0]), attentions[3], root_of_pair[0]
            )
        parent_sum = (parent_sum.flatten(-2) + bias_of_rows(bias, pairs)).relu()
    root = bias_of_rows(bias, clients).relu().expand(len(clients), -1) if layers_left > 1 else None
    return _Rows(own, leaf(noised, pairs), parent_sum, root)


def _lone_leaves(
    forest: Forest, weights: Weights, own: Tensor, backbone: str, layers: int, dropout: Dropout | None
) -> Tensor:
    """Compute the leaves [L, H] of the lone clients."""
    if not len(forest.lone):
        return own[:0, : weights[f"layers.{layers - 1}.bias"].shape[-1]]
    lone_forest = forest.only_lone
    heads = [
        weights[f"layers.{layer}.att_src"].shape[-2] if backbone == "gat" else 1 for layer in range(layers)
    ]
    if weights["layers.0.bias"].dim() == 2:  # every client has a copy of its own
        weights = {name: w.index_select(0, forest.lone) for name, w in weights.items()}
    own_rows = own.index_select(0, forest.lone)
    return general(
        lone_forest,
        lone_forest.blocks(backbone, heads),
        weights,
        own_rows,
        own_rows[:0],
        backbone,
        dropout,
    ).own
