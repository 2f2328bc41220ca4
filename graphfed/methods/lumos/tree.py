"""The trees of Lumos (Pan, Zhu and Chu, ICDE 2023, sections V-A and VI-B) and the networks on them.

Device u keeps the neighbours N_u = {v_1 .. v_w}. Its tree has for each k a pair of leaves, a_k (u itself) and
b_k (stands for v_k), under a parent P_k, and all parents under one root: 3 w + 1 nodes, 3 w edges. Leaves
start from features, u's own ones on a_k and what v_k sent on b_k; parents and root start from zeros.

Two ways to compute the same leaf embeddings:

    general   a graph network on the disjoint union of all trees (or, without virtual nodes, of all ego
              networks: a centre with a leaf for each neighbour), for any number of layers
    fused     for up to three layers a leaf depends on nothing but its own pair: what leaves a root needs two
              layers to come down to a leaf, and what enters it two to get there. So all pairs are rows of a
              few dense products, and there is no graph.

Both take what the first layer's weights make of the features: of u's own once per device, however many leaves
it has. Shapes: n devices of a cohort, P kept pairs sorted by (keeper, other), H hidden width."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from graphfed.nn.backbones import BACKBONES, attend, per_head
from graphfed.nn.batch import Block
from graphfed.nn.layers import Dropout
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.random import entry_words

__all__ = ["FUSED_LAYERS", "Forest", "Leaves", "at", "fused", "general", "make_forest", "times"]

Weights = dict[str, Tensor]

#: Up to so many layers a leaf depends on its own pair alone.
FUSED_LAYERS = 3
#: What a node of a tree is, in its stable id.
_OWN, _NOISED, _PARENT, _ROOT = range(4)


@dataclass(frozen=True, eq=False)
class Forest:
    """The trees of a cohort's n devices.

    device [P]: the keeper's place in the cohort, ascending; workload [n] int64: w of each device; lone [L]:
    devices that have one leaf only, their own, under their root, because nobody keeps an edge with them;
    ids: stable ids of the own leaves [n] (the copies of a device drop out alike), the leaves b and the
    parents [P] and the roots [n]; virtual: whether there are parents and roots."""

    device: Tensor
    workload: Tensor
    lone: Tensor
    ids: tuple[Tensor, Tensor, Tensor, Tensor]
    virtual: bool

    @property
    def num_devices(self) -> int:
        return len(self.workload)

    @property
    def num_pairs(self) -> int:
        return len(self.device)

    @cached_property
    def devices(self) -> Tensor:
        """0..n-1."""
        return torch.arange(self.num_devices, device=self.device.device)

    @cached_property
    def row_devices(self) -> Tensor:
        """The device of every row of `general`."""
        pairs, devices = self.device, self.devices
        parts = [pairs, pairs, pairs, devices, self.lone] if self.virtual else [devices, pairs]
        return torch.cat(parts)

    @cached_property
    def keepers(self) -> SparseMatrix:
        """[P, n]: a row for each pair with a one at its keeper."""
        rows = torch.arange(self.num_pairs + 1, device=self.device.device)
        ones = torch.ones(self.num_pairs, device=self.device.device)
        return SparseMatrix.from_csr(rows, self.device, ones, (self.num_pairs, self.num_devices))

    @cached_property
    def parts(self) -> tuple[int, ...]:
        """How many rows of each kind `general` has: own leaves, noised leaves, parents, roots, lone
        leaves."""
        pairs, devices = self.num_pairs, self.num_devices
        return (pairs, pairs, pairs, devices, len(self.lone)) if self.virtual else (devices, pairs)

    @cached_property
    def edges(self) -> Tensor:
        """The edges of all trees between the rows of `general`, both directions, [2, 6 P + 2 L]."""
        pair = torch.arange(self.num_pairs, device=self.device.device)
        if not self.virtual:
            one_way = torch.stack([self.device, self.num_devices + pair])
        else:
            own, noised, parent, root, lone = self._starts
            numbers = torch.arange(len(self.lone), device=pair.device)
            one_way = torch.cat(
                [
                    torch.stack([own + pair, parent + pair]),
                    torch.stack([noised + pair, parent + pair]),
                    torch.stack([parent + pair, root + self.device]),
                    torch.stack([lone + numbers, root + self.lone]),
                ],
                1,
            )
        return torch.cat([one_way, one_way.flip(0)], 1)

    @cached_property
    def only_lone(self) -> "Forest":
        """The trees of the lone devices."""
        few, none = torch.arange(len(self.lone), device=self.lone.device), self.ids[1][:0]
        ids = (self.ids[0][self.lone], none, none, self.ids[3][self.lone])
        return Forest(few[:0], torch.zeros_like(few), few, ids, self.virtual)

    @property
    def _starts(self) -> list[int]:
        return [sum(self.parts[:k]) for k in range(len(self.parts))]

    @cached_property
    def row_ids(self) -> Tensor:
        """The stable id of every row of `general`."""
        own, noised, parent, root = self.ids
        if not self.virtual:
            return torch.cat([own, noised])
        return torch.cat([own[self.device], noised, parent, root, own[self.lone]])

    def blocks(self, backbone: str, heads: int, layers: int) -> tuple[Block, ...]:
        """The edges as each layer of a backbone needs them."""
        every = torch.arange(sum(self.parts), device=self.device.device)
        degree = torch.bincount(self.edges[1], minlength=len(every))
        make = BACKBONES[backbone].blocks(self.row_ids, degree, heads, layers)
        place = every.expand(2, -1)
        made: dict[bool, Block] = {}
        for layer in range(layers):
            last = layer == layers - 1
            if last not in made:
                block = make(self.edges, None, every, every, place, layer)
                adjacency = block.adjacency.to(dtype=torch.get_default_dtype())
                made[last] = replace(block, adjacency=adjacency)
        return tuple(made[layer == layers - 1] for layer in range(layers))


@dataclass(frozen=True, eq=False)
class Leaves:
    """Embeddings of leaves: own [P + L, H] of the copies a_k of the devices (pairs first, then the lone ones;
    without virtual nodes [n, H], the centres), noised [P, H] of the leaves b_k."""

    own: Tensor
    noised: Tensor


def make_forest(
    device: Tensor, keeper: Tensor, other: Tensor, lone: Tensor, devices: Tensor, *, virtual: bool
) -> Forest:
    """device [P] the keeper's place in the cohort, keeper and other [P] stable ids of the two; lone [L]
    places; devices [n]: the cohort's stable ids."""
    own, root = (entry_words(devices * 4 + kind, devices) for kind in (_OWN, _ROOT))
    noised, parent = (entry_words(keeper * 4 + kind, other) for kind in (_NOISED, _PARENT))
    workload = torch.bincount(device, minlength=len(devices))
    return Forest(device, workload, lone, (own, noised, parent, root), virtual)


def times(x: Tensor, weight: Tensor, device: Tensor) -> Tensor:
    """x W [N, H] for rows x [N, F] with the weights [F, H] that all devices share, or [n, F, H] each device's
    own copy; device [N]: of each row."""
    if weight.dim() == 2:
        return x @ weight
    return torch.bmm(x[:, None], weight.index_select(0, device))[:, 0]


def at(bias: Tensor, device: Tensor) -> Tensor:
    """A bias [H] that all rows share, or of each row [N, H] where every device has its own copy [n, H]."""
    return bias if bias.dim() == 1 else bias.index_select(0, device)


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
    """l layers of the backbone on all trees at once, each with ReLU, and dropout between two.

    own [n, H]: x_u W of every device; noised [P, H]: x''_v W of every pair, W the first layer's weights."""
    copies = spmm(forest.keepers, own)
    if forest.virtual:
        zeros = own.new_zeros(forest.num_pairs + forest.num_devices, own.shape[1])
        h = torch.cat([copies, noised, zeros, own.index_select(0, forest.lone)])
    else:
        h = torch.cat([own, noised])
    for layer, block in enumerate(blocks):
        if layer:
            h = times(h, weights[f"layers.{layer}.weight"], forest.row_devices)
        h = _propagate(h, weights, forest, block, layer, backbone)
        h = (h + at(weights[f"layers.{layer}.bias"], forest.row_devices)).relu()
        if dropout is not None and layer < len(blocks) - 1:
            h = dropout.rows(h, forest.row_ids, layer)
    rows = torch.split(h, list(forest.parts))
    return Leaves(torch.cat([rows[0], rows[4]]) if forest.virtual else rows[0], rows[1])


def _propagate(
    z: Tensor, weights: Weights, forest: Forest, block: Block, layer: int, backbone: str
) -> Tensor:
    if backbone == "gcn":
        return spmm(block.adjacency, z)
    source = weights[f"layers.{layer}.att_src"]
    scores = times(z, _attention(weights, layer), forest.row_devices)
    return attend(z, scores.t(), block, source.shape[-2])


def _attention(weights: Weights, layer: int) -> Tensor:
    """What makes scores of rows: as a source of every head, then as a target, [heads * H, 2 heads]."""
    source, target = weights[f"layers.{layer}.att_src"], weights[f"layers.{layer}.att_dst"]
    return torch.cat([per_head(source), per_head(target)], -1)


# ---- the fused form ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Rows:
    """The nodes that matter to pairs: own leaves [n, H] as long as all copies of one are alike, then
    [P, H]; noised leaves and parents [P, H]; roots [n, H]. None: all zeros."""

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
    """`general` for at most FUSED_LAYERS layers of trees with virtual nodes, pair by pair."""
    # Parents and roots start from zeros, so of the first layer's products only those of the leaves are there.
    z = _Rows(own, noised, None, None)
    update = _gcn_pairs if backbone == "gcn" else _gat_pairs
    h = update(z, weights, forest, 0, layers - 1)
    for layer in range(1, layers):
        if dropout is not None:
            h = _dropped(h, forest, layer - 1, dropout)
        z = _times(h, weights[f"layers.{layer}.weight"], forest, layer)
        h = update(z, weights, forest, layer, layers - 1 - layer)
    lone = _lone(forest, weights, own, backbone, layers, dropout)
    copies = _at_pairs(h.own, forest) if layers == 1 else h.own
    return Leaves(torch.cat([copies, lone]) if len(lone) else copies, h.noised)


def _at_pairs(rows: Tensor, forest: Forest) -> Tensor:
    """Rows of devices [n, H] at each one's pairs, [P, H]."""
    return spmm(forest.keepers, rows)


def _times(h: _Rows, weight: Tensor, forest: Forest, layer: int) -> _Rows:
    pairs, devices = forest.device, forest.devices
    return _Rows(
        times(h.own, weight, devices if layer == 1 else pairs),
        times(h.noised, weight, pairs),
        None if h.parent is None else times(h.parent, weight, pairs),
        None if h.root is None else times(h.root, weight, devices),
    )


def _dropped(h: _Rows, forest: Forest, layer: int, dropout: Dropout) -> _Rows:
    own, noised, parent, root = forest.ids
    if layer == 0:
        mine = dropout.rows(h.own, own, layer)
    else:
        keep = dropout.rows(torch.ones_like(h.own[:1]).expand(forest.num_devices, -1), own, layer)
        mine = h.own * keep.index_select(0, forest.device)
    return _Rows(
        mine,
        dropout.rows(h.noised, noised, layer),
        None if h.parent is None else dropout.rows(h.parent, parent, layer),
        None if h.root is None else dropout.rows(h.root, root, layer),
    )


#: 1 / sqrt((1 + 1) (3 + 1)), between a leaf and its parent.
_ACROSS = 8**-0.5


def _gcn_pairs(z: _Rows, weights: Weights, forest: Forest, layer: int, left: int) -> _Rows:
    """Degrees are 1 of a leaf, 3 of a parent, w of a root. left: the layers that follow; a parent is needed
    while there is one, a root while there are two."""
    shared = weights[f"layers.{layer}.bias"]
    bias, mine = at(shared, forest.device), at(shared, forest.devices)
    parent = root = None
    if z.parent is None:
        own, noised = (torch.add(b, x, alpha=0.5).relu() for b, x in ((mine, z.own), (bias, z.noised)))
        if left:
            parent = torch.add(bias, _at_pairs(z.own, forest).add(z.noised), alpha=_ACROSS).relu()
    else:
        copies = _at_pairs(z.own, forest) if layer == 1 else z.own
        down = torch.add(bias, z.parent, alpha=_ACROSS)
        own, noised = (torch.add(down, x, alpha=0.5).relu() for x in (copies, z.noised))
        if left:
            assert z.root is not None
            up = torch.add(bias, copies + z.noised, alpha=_ACROSS).add(z.parent, alpha=0.25)
            top = 0.5 * (forest.workload + 1).to(bias.dtype).rsqrt()[:, None] * z.root
            parent = (up + _at_pairs(top, forest)).relu()
    if left > 1:
        root = mine.relu().expand(forest.num_devices, -1)  # it has heard from zeros only
    return _Rows(own, noised, parent, root)


def _gat_pairs(z: _Rows, weights: Weights, forest: Forest, layer: int, left: int) -> _Rows:
    """A leaf attends to itself and its parent; a parent to itself, its leaves and the root."""
    both, heads = _attention(weights, layer), weights[f"layers.{layer}.att_src"].shape[-2]
    pairs, devices, bias = forest.device, forest.devices, weights[f"layers.{layer}.bias"]

    def scored(x: Tensor | None, device: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """z [., heads, H], and its scores as source and as target [., heads]; zeros where it is None."""
        if x is None:
            nothing = z.own.new_zeros(heads)
            return nothing[:, None], nothing, nothing
        source, target = times(x, both, device).chunk(2, -1)
        return x.view(len(x), heads, -1), source, target

    parent = scored(z.parent, pairs)

    def leaf(x: tuple[Tensor, Tensor, Tensor], device: Tensor) -> Tensor:
        own = leaky_relu(x[2] + x[1], 0.2) - leaky_relu(x[2] + parent[1], 0.2)
        share = own.sigmoid()[..., None]
        mixed = share * x[0] if z.parent is None else torch.lerp(parent[0], x[0], share)
        return (mixed.flatten(-2) + at(bias, device)).relu()

    noised = scored(z.noised, pairs)
    if layer == 0:
        own = leaf(scored(z.own, devices), devices)
        mine = scored(_at_pairs(z.own, forest), pairs) if left else noised
    else:
        mine = scored(_at_pairs(z.own, forest) if layer == 1 else z.own, pairs)
        own = leaf(mine, pairs)
    middle = None
    if left:
        top = scored(None if z.root is None else _at_pairs(z.root, forest), pairs)
        members = (mine, noised, parent, top)
        scores = torch.stack([leaky_relu(parent[2] + m[1], 0.2).expand_as(noised[1]) for m in members])
        shares = torch.softmax(scores, 0)[..., None]
        middle = torch.addcmul(shares[0] * mine[0], shares[1], noised[0])
        if z.parent is not None:
            middle = torch.addcmul(torch.addcmul(middle, shares[2], parent[0]), shares[3], top[0])
        middle = (middle.flatten(-2) + at(bias, pairs)).relu()
    root = at(bias, devices).relu().expand(len(devices), -1) if left > 1 else None
    return _Rows(own, leaf(noised, pairs), middle, root)


def _lone(
    forest: Forest, weights: Weights, own: Tensor, backbone: str, layers: int, dropout: Dropout | None
) -> Tensor:
    """The leaves [L, H] of devices that have no pair."""
    if not len(forest.lone):
        return own[:0, : weights[f"layers.{layers - 1}.bias"].shape[-1]]
    few = forest.only_lone
    heads = weights["layers.0.att_src"].shape[-2] if backbone == "gat" else 1
    if weights["layers.0.bias"].dim() == 2:  # every device's own
        weights = {name: w.index_select(0, forest.lone) for name, w in weights.items()}
    mine = own.index_select(0, forest.lone)
    return general(few, few.blocks(backbone, heads, layers), weights, mine, mine[:0], backbone, dropout).own
