"""A layer of graph attention whose scores are polynomials, from moments of every vertex's neighbourhood
(FedGAT): what a client computes from what the server sent it.

A vertex i has B neighbours, itself among them, and scores x_ij = b1 . h_i + b2 . h_j. Wanted is
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

__all__ = ["MomentRows", "Moments", "weighted_means"]


@dataclass(frozen=True, eq=False)
class Moments:
    """What the server sent of M vertices, one after the other: S = sum 2 B slots, Q = sum (2 B)^2 entries.

    size [M]: B of each; sums [S, 1 + F]: K1 | K2; scores: M1 | M2, in the matrix form [Q, 2 F], of the
    entries of every vertex's matrices, row by row, in the vector form [S, 2 F]; decoders [Q, p + 1]: R_0 ..
    R_p entry by entry in the vector form, else None; heads: of the layer's attention."""

    size: Tensor
    sums: Tensor
    scores: Tensor
    decoders: Tensor | None
    heads: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.size), self.sums.shape[1] - 1

    @property
    def dtype(self) -> torch.dtype:
        return self.sums.dtype

    def select_rows(self, rows: Tensor) -> "Moments":
        """Those of the vertices `rows` [n]."""
        if len(rows) == len(self.size):
            return self
        slots, entries = 2 * self.size, (2 * self.size) ** 2
        of_slots = ranges((slots.cumsum(0) - slots)[rows], slots[rows])
        of_entries = ranges((entries.cumsum(0) - entries)[rows], entries[rows])
        vectors = self.decoders is not None
        return Moments(
            self.size[rows],
            self.sums[of_slots],
            self.scores[of_slots if vectors else of_entries],
            self.decoders[of_entries] if self.decoders is not None else None,
            self.heads,
        )

    def prepared(self, client: Tensor | None, num_clients: int) -> "MomentRows":
        """Ready for products. client [M] ascending: whose weights each vertex meets; None: shared ones."""
        slots, entries = 2 * self.size, (2 * self.size) ** 2
        per_score = entries if self.decoders is None else slots

        def laid(x: Tensor, repeats: Tensor) -> Laid:
            if client is None:
                return Laid(x, None)
            return Laid.tiled(x, torch.repeat_interleave(client, repeats), num_clients)

        ends = torch.cat([slots.new_zeros(1), slots.cumsum(0)])
        which = torch.arange(len(self.sums), device=slots.device)
        pattern = Pattern(ends.int(), which.int(), (len(slots), len(which)))
        keys = self.sums[:, 0].contiguous()
        return MomentRows(
            keys,
            laid(self.sums[:, 1:], slots),
            laid(self.scores, per_score),
            _groups(self.size, keys, self.decoders),
            SparseMatrix(pattern, torch.ones_like(keys)).block_diagonal(self.heads),
        )


@dataclass(frozen=True, eq=False)
class Laid:
    """Rows that meet a client's weights: x [n, W], or with tiles padded, [T, size, W]."""

    x: Tensor
    tiles: Tiles | None

    @staticmethod
    def tiled(x: Tensor, client: Tensor, num_clients: int) -> "Laid":
        """client [n] ascending."""
        tiles = make_tiles(client, num_clients)
        padded = x.new_zeros(tiles.count * tiles.size, x.shape[1]).index_copy_(0, tiles.slot, x)
        return Laid(padded.view(tiles.count, tiles.size, -1), tiles)

    def times(self, weight: Tensor) -> Tensor:
        """x W, [n, H], with shared weights [W, H] or every client's [K, W, H]."""
        if self.tiles is None:
            return self.x @ (weight if weight.dim() == 2 else weight[0])
        mine = weight if self.tiles.client is None else weight.index_select(0, self.tiles.client)
        return torch.bmm(self.x, mine).flatten(0, 1).index_select(0, self.tiles.slot)


@dataclass(frozen=True, eq=False)
class Group:
    """The n vertices whose neighbourhoods are padded to the same w slots.

    keys [n, w]: K1; place: of every slot [n, w], or entry [n, w, w] in the matrix form, its row among the
    scores, their number where there is none; decoders [n, (p + 1) w, w], in the vector form; slot [m]: which
    slots of all these are, and at [m] where in the flat [n w]."""

    keys: Tensor
    place: Tensor
    decoders: Tensor | None
    slot: Tensor
    at: Tensor


def _groups(size: Tensor, keys: Tensor, decoders: Tensor | None) -> tuple[Group, ...]:
    """Sizes are padded to 1, 2, 3, 4, 6, 8, 12, ..."""
    slots, entries = 2 * size, (2 * size) ** 2
    first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
    longest = int(size.max()) if len(size) else 0
    found, below, width, wider = [], 0, 1, 2
    while below < longest:
        rows = ((size > below) & (size <= width)).nonzero()[:, 0]
        if len(rows):
            step = torch.arange(2 * width, device=rows.device)
            there = step < slots[rows, None]
            slot = torch.where(there, first_slot[rows, None] + step, len(keys))
            inside = there[:, :, None] & there[:, None]
            entry = first_entry[rows, None, None] + step[:, None] * slots[rows, None, None] + step
            entry = torch.where(inside, entry, int(entries.sum()))
            decode = None
            if decoders is not None:
                decode = _with_zero(decoders)[entry].permute(0, 3, 1, 2).flatten(1, 2).contiguous()
            found.append(
                Group(
                    keys=_with_zero(keys)[slot],
                    place=entry if decoders is None else slot,
                    decoders=decode,
                    slot=slot[there],
                    at=there.flatten().nonzero()[:, 0],
                )
            )
        below, width, wider = width, wider, max(3, 2 * width)
    return tuple(found)


def _with_zero(x: Tensor) -> Tensor:
    """A row of zeros at the end, for what is padded."""
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])


@dataclass(frozen=True, eq=False)
class MomentRows:
    """`Moments` of M vertices, laid out. keys [S]: K1; sums: K2; slots [heads * M, heads * S]: whose each
    slot is, once per head along a diagonal."""

    keys: Tensor
    sums: Laid
    scores: Laid
    groups: tuple[Group, ...]
    slots: SparseMatrix

    def coefficients(self, b: Tensor, series: Series, domain: float) -> Tensor:
        """r [S, heads] for a polynomial's Chebyshev series on [-domain, domain]; b [2 F, heads], or every
        client's [K, 2 F, heads]: b1, and b2 below it."""
        y = _with_zero(self.scores.times(b))
        if not self.groups:
            return y[:0]
        parts = []
        for group in self.groups:
            if group.decoders is None:
                r = _of_matrices(y[group.place], group.keys, series, domain)
            else:
                r = _of_vectors(y[group.place], group.decoders, powers(series, domain))
            parts.append(r.flatten(0, 1)[group.at])
        order = torch.argsort(torch.cat([group.slot for group in self.groups]))
        return torch.cat(parts)[order]

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


def _of_vectors(y: Tensor, decoders: Tensor, series: Series) -> Tensor:
    """r [n, w, heads] from y [n, w, heads] and R_0 .. R_p [n, (p + 1) w, w]; series: q_0 .. q_p."""
    y = y.transpose(1, 2)
    terms, power = [], torch.ones_like(y)
    for n, q in enumerate(series):
        power = power * y if n else power
        terms.append(q * power)
    return torch.bmm(torch.cat(terms, 2), decoders).transpose(1, 2)
