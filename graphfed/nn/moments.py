"""A layer of graph attention whose scores are polynomials, from moments of every node's neighbourhood
(FedGAT): what a client computes from what the server sent it.

A node i has B neighbours, itself among them, and scores x_ij = b1 . h_i + b2 . h_j. Wanted is
sum_j e(x_ij) W h_j / sum_j e(x_ij) for a polynomial e of degree p. In 2 B *slots* the server has hidden the
neighbours: K2 has a row of F numbers in each slot, K1 one number. A client works out coefficients r of the
slots with r . K1 = sum_j e(x_ij) and r . K2 = sum_j e(x_ij) h_j:

    matrix form   D = sum_s b1(s) M1(s) + b2(s) M2(s), [2 B, 2 B]; r = e(D)' K1 by the Chebyshev recurrence on
                  vectors, w_n = 2 D' w_(n-1) - w_(n-2). D maps what lies outside its neighbours to 0, and
                  T_n(0) = (-1)^(n/2) for even n: half of K1 lies there, which is taken off again.
    vector form   y = b1 . M1 + b2 . M2, [2 B]; r = sum_n q_n R_n' y^n, with powers taken element by element.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.chebyshev import Series, powers
from graphfed.nn.sparse import Pattern, SparseMatrix, ranges, spmm
from graphfed.nn.tiles import Tiles, make_tiles

__all__ = ["MomentParts", "MomentRows", "Moments", "weighted_means"]

#: Numbers of a message that are gathered at a time for a prediction: few enough to stay in the cache.
PART = 1 << 22
#: Wide rows' worth of time that a tile's weights, and their gradients, take.
FETCH = 64


@dataclass(frozen=True, eq=False)
class Moments:
    """What the server sent of M nodes, one after the other: S = sum 2 B slots, Q = sum (2 B)^2 entries.

    size [M]: B of each; sums [S, 1 + F]: K1 | K2; scores: M1 | M2, in the matrix form [Q, 2 F], of the
    entries of every node's matrices, row by row, in the vector form [S, 2 F]; decoders [Q, p + 1]: R_0 ..
    R_p entry by entry in the vector form, else None; heads: of the layer's attention."""

    size: Tensor
    sums: Tensor
    scores: Tensor
    decoders: Tensor | None
    heads: int

    def prepared(self, client: Tensor | None, num_clients: int, rows: Tensor | None = None) -> "MomentRows":
        """Those of the nodes `rows` [n] (None: of all), copied and ready for products. client [n]
        ascending: whose weights each node meets; None: shared ones."""
        slots, entries = 2 * self.size, (2 * self.size) ** 2
        first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
        size = self.size
        if rows is not None:
            size, slots, entries = size[rows], slots[rows], entries[rows]
            first_slot, first_entry = first_slot[rows], first_entry[rows]
        vectors = self.decoders is not None
        of_slots = None if rows is None else ranges(first_slot, slots)
        of_scores = of_slots if vectors or rows is None else ranges(first_entry, entries)

        def laid(x: Tensor, index: Tensor | None, repeats: Tensor) -> Laid:
            if client is None:
                return Laid(x if index is None else x.index_select(0, index), None)
            return Laid.tiled(x, index, torch.repeat_interleave(client, repeats), num_clients)

        ends = torch.cat([slots.new_zeros(1), slots.cumsum(0)])
        keys = self.sums[:, 0] if of_slots is None else self.sums[of_slots, 0]
        pattern = Pattern(
            ends.int(), torch.arange(len(keys), device=ends.device).int(), (len(slots), len(keys))
        )
        groups, place = _groups(size, keys, first_entry, self.decoders)
        return MomentRows(
            keys,
            laid(self.sums, of_slots, slots).without_first(),
            laid(self.scores, of_scores, slots if vectors else entries),
            groups,
            place,
            SparseMatrix(pattern, torch.ones_like(keys)).block_diagonal(self.heads),
        )

    def in_parts(self, rows: Tensor) -> "MomentParts":
        """Those of the nodes `rows` [n], copied when they are used, a few at a time."""
        size = self.size[rows]
        order = torch.argsort(size, stable=True)
        per_slot, per_entry = self.sums.shape[1], 0
        if self.decoders is None:
            per_entry = self.scores.shape[1]
        else:
            per_slot, per_entry = per_slot + self.scores.shape[1], self.decoders.shape[1]
        numbers = (2 * size * per_slot + (2 * size) ** 2 * per_entry)[order].cumsum(0)
        counts = torch.unique_consecutive(numbers // PART, return_counts=True)[1]
        return MomentParts(self, rows, torch.split(order, counts.tolist()))


@dataclass(frozen=True, eq=False)
class Laid:
    """Rows that meet a client's weights: x [n, W], or with tiles padded, [T, size, W]."""

    x: Tensor
    tiles: Tiles | None

    @staticmethod
    def tiled(x: Tensor, index: Tensor | None, client: Tensor, num_clients: int) -> "Laid":
        """The rows `index` [n] of x (None: all); client [n] ascending. What is padded repeats a row: its
        products are left out, and so are its gradients."""
        tiles = make_tiles(client, num_clients, FETCH)
        source = client.new_zeros(tiles.count * tiles.size)
        source[tiles.slot] = torch.arange(len(client), device=client.device) if index is None else index
        x = x if len(x) else x.new_zeros(1, x.shape[1])
        return Laid(x.index_select(0, source).view(tiles.count, tiles.size, -1), tiles)

    def without_first(self) -> "Laid":
        """Without the first column."""
        return Laid(self.x[..., 1:], self.tiles)

    def times(self, weight: Tensor) -> Tensor:
        """x W, [n, H], with shared weights [W, H] or every client's [K, W, H]."""
        if self.tiles is None:
            return self.x @ (weight if weight.dim() == 2 else weight[0])
        # As W' x': its gradient is a product with x, where that of x W is one with x', at half the speed.
        mine = weight.transpose(1, 2).contiguous()
        mine = mine if self.tiles.client is None else mine.index_select(0, self.tiles.client)
        found = torch.bmm(mine, self.x.transpose(1, 2)).transpose(1, 2)
        return found.flatten(0, 1).index_select(0, self.tiles.slot)


@dataclass(frozen=True, eq=False)
class Group:
    """The n nodes whose neighbourhoods are padded to the same w slots.

    keys [n, w]: K1; scores: of every slot [n, w], or entry [n, w, w] in the matrix form, its row among the
    scores, their number where there is none; decoders [n, w, w (p + 1)], in the vector form: of r's slot, and
    y's slot and n."""

    keys: Tensor
    scores: Tensor
    decoders: Tensor | None


def _groups(
    size: Tensor, keys: Tensor, first_decoder: Tensor, decoders: Tensor | None
) -> tuple[tuple[Group, ...], Tensor]:
    """Sizes are padded to 1, 2, 3, 4, 6, 8, 12, ... first_decoder [n]: where each node's entries begin
    among the decoders. Also: where every slot is [S] in the groups' padded slots, group after group."""
    slots, entries = 2 * size, (2 * size) ** 2
    first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
    longest = int(size.max()) if len(size) else 0
    found, below, width, wider, before = [], 0, 1, 2, 0
    where = torch.empty(len(keys), dtype=torch.int64, device=size.device)
    while below < longest:
        rows = ((size > below) & (size <= width)).nonzero()[:, 0]
        if len(rows):
            step = torch.arange(2 * width, device=rows.device)
            there = step < slots[rows, None]
            slot = torch.where(there, first_slot[rows, None] + step, len(keys))
            where[slot[there]] = before + there.flatten().nonzero()[:, 0]
            before += there.numel()
            inside = there[:, :, None] & there[:, None]
            entry = step[:, None] * slots[rows, None, None] + step
            decode = None
            if decoders is None:
                first = first_entry[rows, None, None]
                of_score = torch.where(inside, first + entry, int(entries.sum()))
            else:
                of_score = slot
                # Where there is no entry, any will do: no power of a score meets it.
                entry = torch.where(inside, first_decoder[rows, None, None] + entry, 0).transpose(1, 2)
                decode = decoders.index_select(0, entry.flatten()).view(len(rows), 2 * width, -1)
            found.append(Group(_with_zero(keys)[slot], of_score, decode))
        below, width, wider = width, wider, max(3, 2 * width)
    return tuple(found), where


def _with_zero(x: Tensor) -> Tensor:
    """A row of zeros at the end, for what is padded."""
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])


@dataclass(frozen=True, eq=False)
class MomentParts:
    """`Moments` of the n nodes `rows`, laid out part by part as they are used. parts: which of the n."""

    moments: Moments
    rows: Tensor
    parts: tuple[Tensor, ...]

    def attention(self, weight: Tensor, b: Tensor, series: Series, domain: float) -> Tensor:
        """As of `MomentRows`, with shared weights: [n, heads * H]."""
        found = [
            self.moments.prepared(None, 1, self.rows[few]).attention(weight, b, series, domain)
            for few in self.parts
        ]
        if not found:
            return weight.new_zeros(0, weight.shape[-1])
        result = torch.cat(found)
        return torch.empty_like(result).index_copy(0, torch.cat(self.parts), result)


@dataclass(frozen=True, eq=False)
class MomentRows:
    """`Moments` of M nodes, laid out. keys [S]: K1; sums: K2; place [S]: of every slot in the groups;
    slots [heads * M, heads * S]: whose each slot is, once per head along a diagonal."""

    keys: Tensor
    sums: Laid
    scores: Laid
    groups: tuple[Group, ...]
    place: Tensor
    slots: SparseMatrix

    def coefficients(self, b: Tensor, series: Series, domain: float) -> Tensor:
        """r [S, heads] for a polynomial's Chebyshev series on [-domain, domain]; b [2 F, heads], or every
        client's [K, 2 F, heads]: b1, and b2 below it."""
        y = _with_zero(self.scores.times(b))
        if not self.groups:
            return y[:0]
        places = [group.scores for group in self.groups]
        if self.groups[0].decoders is None:
            found = [
                _of_matrices(y[place], group.keys, series, domain)
                for group, place in zip(self.groups, places, strict=True)
            ]
        else:
            place = torch.cat([place.flatten() for place in places])
            there = (place < len(y) - 1).to(y.dtype)
            terms = _terms(y.index_select(0, place), there, powers(series, domain))
            parts = torch.split(terms, [place.numel() for place in places])
            found = [_of_vectors(part, group) for part, group in zip(parts, self.groups, strict=True)]
        return torch.cat([r.flatten(0, 1) for r in found]).index_select(0, self.place)

    def attention(self, weight: Tensor, b: Tensor, series: Series, domain: float) -> Tensor:
        """sum_j e(x_ij) W h_j / sum_j e(x_ij), [M, heads * H]; weight [F, heads * H], or every client's."""
        r = self.coefficients(b, series, domain)
        return weighted_means(self.slots, self.sums.times(weight), self.keys, r.t().flatten(), b.shape[-1])


def weighted_means(
    pattern: SparseMatrix, z: Tensor, mass: Tensor | None, share: Tensor, heads: int
) -> Tensor:
    """For every row of a pattern [M, S] and every head, sum_s share_s z_s / sum_s share_s mass_s: [M, heads *
    H] from z [S, heads * H], mass [S] (None: 1) and share [heads * E]; the pattern stands once per head along
    a diagonal, as in `batch.Block`."""
    width = z.shape[1] // heads
    by_head = z.view(len(z), heads, width).transpose(0, 1)  # [heads, S, H]
    mass = z.new_ones(len(z)) if mass is None else mass
    by_head = torch.cat([by_head, mass.expand(heads, -1)[..., None]], 2).flatten(0, 1)
    sums = spmm(pattern, by_head, share).view(heads, pattern.shape[0] // heads, width + 1)
    return (sums[..., :-1] / sums[..., -1:]).transpose(0, 1).flatten(1)


def _of_matrices(d: Tensor, keys: Tensor, series: Series, domain: float) -> Tensor:
    """r [n, w, heads] from D [n, w, w, heads] and K1 [n, w]."""
    n, w, _, heads = d.shape
    turned = d.permute(0, 3, 2, 1).reshape(n * heads, w, w) * (1 / domain)  # D' of every head
    first = keys[:, None].expand(n, heads, w).reshape(n * heads, w, 1)
    before, last = first, torch.bmm(turned, first)
    result = series[0] * before + series[1] * last
    for c in series[2:]:
        before, last = last, torch.baddbmm(before, turned, last, beta=-1, alpha=2)
        result = result + c * last
    # Half of K1 lies where D is 0: what T_n(0) of it came in is taken off.
    outside = sum(c if n % 4 == 0 else -c for n, c in enumerate(series) if n % 2 == 0)
    result = torch.sub(result, first, alpha=outside / 2)
    return result.view(n, heads, w).transpose(1, 2)


def _terms(y: Tensor, there: Tensor, series: Series) -> Tensor:
    """q_n y^n, [n, p + 1, heads] from y [n, heads] and whether there is such a slot, 1 or 0 [n]; all 0 where
    there is none. series: q_0 .. q_p."""
    power = y[:, None]
    while power.shape[1] < len(series) - 1:
        power = torch.cat([power, power * power[:, -1:]], 1)
    one = there[:, None, None].expand(-1, 1, y.shape[1])
    return torch.cat([one, power[:, : len(series) - 1]], 1) * y.new_tensor(series)[:, None]


def _of_vectors(terms: Tensor, group: Group) -> Tensor:
    """r [n, w, heads] from q_n y^n of every slot [n w, p + 1, heads]."""
    assert group.decoders is not None
    of_node = terms.view(len(group.keys), -1, terms.shape[-1])
    return torch.bmm(of_node.transpose(1, 2), group.decoders.transpose(1, 2)).transpose(1, 2)
