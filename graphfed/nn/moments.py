"""A layer of graph attention with polynomial scores, computed by a client from the server's message (FedGAT,
docs/papers/fedgat.md).

A node i has B neighbours, itself included, and scores x_ij = b1 . h_i + b2 . h_j (Eq. (4)). The layer returns
sum_j e(x_ij) W h_j / sum_j e(x_ij) for a polynomial e of degree p (Eq. (7)). The message has 2 B *slots* for
the node, with a row of F numbers (K2) and one number (K1) in each. The client computes coefficients r of the
slots with r . K1 = sum_j e(x_ij) and r . K2 = sum_j e(x_ij) h_j:

    matrix form   D = sum_s b1(s) M1(s) + b2(s) M2(s), [2 B, 2 B]; r = e(D)' K1 by the Chebyshev recurrence on
                  vectors, w_n = 2 D' w_(n-1) - w_(n-2). D maps the complement of the neighbours' vectors to
                  0, and T_n(0) = (-1)^(n/2) for even n. Half of K1 lies in the complement; its terms are
                  subtracted.
    vector form   y = b1 . M1 + b2 . M2, [2 B]; r = sum_n q_n R_n' y^n, with elementwise powers.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.chebyshev import Series, powers
from graphfed.nn.pattern import Pattern, count_pointers, size_groups
from graphfed.nn.sparse import SparseMatrix, ranges, spmm
from graphfed.nn.tiles import Tiles, make_tiles

#: How many numbers of a message a prediction lays out at a time, so that they stay in the cache.
CHUNK = 1 << 22
#: The time to load the weights of a tile and to store their gradients, in rows of a tile (`make_tiles`).
FETCH = 64


@dataclass(frozen=True, eq=False)
class Moments:
    """The server's message about M nodes, node after node: S = sum 2 B slots, Q = sum (2 B)^2 entries.

    Attributes:
        size: [M] int64, B of each node.
        sums: [S, 1 + F]: K1 in the first column, K2 in the others.
        scores: M1 and M2 side by side. In the matrix form [Q, 2 F], with the entries of each node's matrices
            row by row; in the vector form [S, 2 F].
        decoders: In the vector form [Q, p + 1], the entries of R_0 .. R_p, row by row for each node. None in
            the matrix form.
        heads: Number of attention heads of the layer.
    """

    size: Tensor
    sums: Tensor
    scores: Tensor
    decoders: Tensor | None
    heads: int

    def lay_out(self, client: Tensor | None, num_clients: int, rows: Tensor | None = None) -> "MomentRows":
        """Copy the message of some nodes into the layout that products need.

        Args:
            client: [n] int64, ascending: the index in the cohort of each node's client, whose weights the
                node is multiplied by. None: all nodes share one set of weights.
            num_clients: K, clients without nodes included.
            rows: [n] int64, the nodes. None: all M.

        Returns:
            The message of these nodes.
        """
        # Where the slots and the entries of each node lie in the whole message.
        slots, entries = 2 * self.size, (2 * self.size) ** 2
        first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
        size = self.size
        if rows is not None:
            size, slots, entries = size[rows], slots[rows], entries[rows]
            first_slot, first_entry = first_slot[rows], first_entry[rows]
        vectors = self.decoders is not None
        of_slots = None if rows is None else ranges(first_slot, slots)
        # In the vector form a score belongs to a slot, in the matrix form to an entry of D.
        of_scores = of_slots if vectors or rows is None else ranges(first_entry, entries)

        def operand(x: Tensor, index: Tensor | None, repeats: Tensor) -> Operand:
            if client is None:
                return Operand(x if index is None else x.index_select(0, index), None)
            return Operand.in_tiles(x, index, torch.repeat_interleave(client, repeats), num_clients)

        ends = count_pointers(slots)
        keys = self.sums[:, 0] if of_slots is None else self.sums[of_slots, 0]
        # Row i holds the slots of node i, which are contiguous: sums over slots are products with this
        # matrix.
        pattern = Pattern(
            ends.int(), torch.arange(len(keys), device=ends.device).int(), (len(slots), len(keys))
        )
        groups, position = _groups(size, keys, first_entry, self.decoders)
        return MomentRows(
            keys,
            operand(self.sums, of_slots, slots).drop_first_column(),
            operand(self.scores, of_scores, slots if vectors else entries),
            groups,
            position,
            SparseMatrix(pattern, torch.ones_like(keys)).block_diagonal(self.heads),
        )

    def lay_out_in_chunks(self, rows: Tensor) -> "MomentChunks":
        """Divide nodes into chunks that are laid out when they are used, so that memory stays small.

        Args:
            rows: [n] int64, the nodes whose rows are predicted.

        Returns:
            The chunks, with nodes of similar size together.
        """
        # In the order of size, so that a chunk has few groups.
        size = self.size[rows]
        order = torch.argsort(size, stable=True)
        # The numbers that a node's layout copies, for each slot and for each pair of slots.
        per_slot, per_entry = self.sums.shape[1], 0
        if self.decoders is None:
            per_entry = self.scores.shape[1]
        else:
            per_slot, per_entry = per_slot + self.scores.shape[1], self.decoders.shape[1]
        numbers = (2 * size * per_slot + (2 * size) ** 2 * per_entry)[order].cumsum(0)
        counts = torch.unique_consecutive(numbers // CHUNK, return_counts=True)[1]
        return MomentChunks(self, rows, torch.split(order, counts.tolist()))


@dataclass(frozen=True, eq=False)
class Operand:
    """n rows that are multiplied by weights, shared ones or those of each row's client.

    Attributes:
        x: [n, W] without tiles; with tiles [T, size, W], padded.
        tiles: The tiles, for weights per client; None for shared weights.
    """

    x: Tensor
    tiles: Tiles | None

    @staticmethod
    def in_tiles(x: Tensor, index: Tensor | None, client: Tensor, num_clients: int) -> "Operand":
        """Arrange rows in tiles.

        Padding repeats the first row; `multiply` drops its products, so it gets no gradient.

        Args:
            x: [m, W], rows of the message.
            index: [n] int64, the rows of `x`. None: all.
            client: [n] int64, ascending: the client of each row.
            num_clients: K, clients without rows included.

        Returns:
            The rows in tiles.
        """
        tiles = make_tiles(client, num_clients, FETCH)
        source = client.new_zeros(tiles.count * tiles.size)
        source[tiles.slot] = torch.arange(len(client), device=client.device) if index is None else index
        # Padding reads the first row, which an empty message lacks.
        x = x if len(x) else x.new_zeros(1, x.shape[1])
        return Operand(x.index_select(0, source).view(tiles.count, tiles.size, -1), tiles)

    def drop_first_column(self) -> "Operand":
        """Return the rows without their first column."""
        return Operand(self.x[..., 1:], self.tiles)

    def multiply(self, weight: Tensor) -> Tensor:
        """Multiply the rows by weights.

        Args:
            weight: [W, H] shared, or [K, W, H] per client. Without tiles K must be 1.

        Returns:
            x W, [n, H].
        """
        if self.tiles is None:
            return self.x @ (weight if weight.dim() == 2 else weight[0])
        # Compute x W as (W' x')'. The gradient of W' x' is a product with x; that of x W is a product with
        # x', which takes twice as long.
        turned = weight.transpose(1, 2).contiguous()
        turned = turned if self.tiles.client is None else turned.index_select(0, self.tiles.client)
        product = torch.bmm(turned, self.x.transpose(1, 2)).transpose(1, 2)
        return product.flatten(0, 1).index_select(0, self.tiles.slot)


@dataclass(frozen=True, eq=False)
class Group:
    """The n nodes whose slots are padded to the same number w.

    Attributes:
        keys: [n, w], K1; 0 in padding.
        scores: The row of each slot [n, w] among the scores; in the matrix form that of each entry
            [n, w, w]. Padding has the number of all rows, one past the last.
        decoders: In the vector form [n, w, w (p + 1)]: the first w counts the slots of r, the second those
            of y, and p + 1 the powers. None in the matrix form.
    """

    keys: Tensor
    scores: Tensor
    decoders: Tensor | None


def _groups(
    size: Tensor, keys: Tensor, first_decoder: Tensor, decoders: Tensor | None
) -> tuple[tuple[Group, ...], Tensor]:
    """Group nodes by size, padded to the widths of `size_groups`.

    Args:
        size: [n] int64, B of each node.
        keys: [S], the K1 of all slots, node after node.
        first_decoder: [n] int64, where each node's entries begin in `decoders`.
        decoders: [Q, p + 1] in the vector form, else None.

    Returns:
        The groups; and the position of each slot [S] among the padded slots of all groups.
    """
    slots, entries = 2 * size, (2 * size) ** 2
    first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
    groups, before = [], 0
    position = torch.empty(len(keys), dtype=torch.int64, device=size.device)
    for width, rows in size_groups(size):
        # [n, w]: the slots of each node of the group; padding is the number after the last slot.
        step = torch.arange(2 * width, device=rows.device)
        is_slot = step < slots[rows, None]
        slot = torch.where(is_slot, first_slot[rows, None] + step, len(keys))
        position[slot[is_slot]] = before + is_slot.flatten().nonzero()[:, 0]
        before += is_slot.numel()
        is_entry = is_slot[:, :, None] & is_slot[:, None]
        # [n, w, w]: entry (s, t) of a node's matrix is number s (2 B) + t of its entries.
        entry = step[:, None] * slots[rows, None, None] + step
        decode = None
        if decoders is None:
            first = first_entry[rows, None, None]
            of_score = torch.where(is_entry, first + entry, int(entries.sum()))
        else:
            of_score = slot
            # Padding may have any decoder, because its powers of scores are all 0.
            entry = torch.where(is_entry, first_decoder[rows, None, None] + entry, 0).transpose(1, 2)
            decode = decoders.index_select(0, entry.flatten()).view(len(rows), 2 * width, -1)
        groups.append(Group(_with_zero(keys)[slot], of_score, decode))
    return tuple(groups), position


def _with_zero(x: Tensor) -> Tensor:
    """Append a row of zeros, for padding."""
    return torch.cat([x, x.new_zeros(1, *x.shape[1:])])


@dataclass(frozen=True, eq=False)
class MomentChunks:
    """`Moments` of n nodes, laid out chunk by chunk when they are used.

    Attributes:
        moments: The message.
        rows: [n] int64, the nodes.
        chunks: [n_c] int64 each, the positions in `rows` of the nodes of a chunk. Each node is in one chunk.
    """

    moments: Moments
    rows: Tensor
    chunks: tuple[Tensor, ...]

    def attention(self, weight: Tensor, b: Tensor, series: Series, domain: float) -> Tensor:
        """Compute the attention means of the nodes, with shared weights.

        Args:
            weight: [F, heads * H], shared by all nodes.
            b: [2 F, heads]: b1, and b2 below it.
            series: The Chebyshev series, as in `MomentRows.attention`.
            domain: The end of its interval, as in `MomentRows.attention`.

        Returns:
            [n, heads * H].
        """
        means = [
            self.moments.lay_out(None, 1, self.rows[chunk]).attention(weight, b, series, domain)
            for chunk in self.chunks
        ]
        if not means:
            return weight.new_zeros(0, weight.shape[-1])
        result = torch.cat(means)
        # Chunks are ordered by size; put their nodes back in the order of `rows`.
        return torch.empty_like(result).index_copy(0, torch.cat(self.chunks), result)


@dataclass(frozen=True, eq=False)
class MomentRows:
    """`Moments` of M nodes with S slots, laid out for products.

    Attributes:
        keys: [S], K1.
        sums: K2, S rows of F numbers.
        scores: M1 and M2: S rows of 2 F numbers, in the matrix form Q rows.
        groups: The nodes by size.
        position: [S] int64, the position of each slot among the padded slots of all groups.
        slots: [heads * M, heads * S], the slots of each node, with one copy per head along the diagonal.
    """

    keys: Tensor
    sums: Operand
    scores: Operand
    groups: tuple[Group, ...]
    position: Tensor
    slots: SparseMatrix

    def coefficients(self, b: Tensor, series: Series, domain: float) -> Tensor:
        """Compute the coefficients r of the slots.

        Args:
            b: [2 F, heads], or [K, 2 F, heads] with weights per client: b1, and b2 below it.
            series: The Chebyshev series of the polynomial e on [-domain, domain].
            domain: The largest absolute value of a score for which the series is made.

        Returns:
            [S, heads].
        """
        # Scores of all rows in one product [S or Q, heads]; the row of zeros is what padding reads.
        y = _with_zero(self.scores.multiply(b))
        if not self.groups:
            return y[:0]
        if self.groups[0].decoders is None:
            by_group = [_of_matrices(y[group.scores], group.keys, series, domain) for group in self.groups]
        else:
            # The elementwise powers of all groups in one pass; the products with R_n differ in width.
            row = torch.cat([group.scores.flatten() for group in self.groups])
            is_slot = (row < len(y) - 1).to(y.dtype)
            terms = _terms(y.index_select(0, row), is_slot, powers(series, domain))
            split = torch.split(terms, [group.scores.numel() for group in self.groups])
            by_group = [_of_vectors(some, group) for some, group in zip(split, self.groups, strict=True)]
        return torch.cat([r.flatten(0, 1) for r in by_group]).index_select(0, self.position)

    def attention(self, weight: Tensor, b: Tensor, series: Series, domain: float) -> Tensor:
        """Compute the attention means sum_j e(x_ij) W h_j / sum_j e(x_ij) of every node and head.

        Args:
            weight: [F, heads * H], or [K, F, heads * H] with weights per client.
            b: [2 F, heads], or [K, 2 F, heads]: b1, and b2 below it.
            series: The Chebyshev series of the polynomial e on [-domain, domain].
            domain: The largest absolute value of a score for which the series is made.

        Returns:
            [M, heads * H].

        Reference:
            FedGAT, Eq. (7).
        """
        r = self.coefficients(b, series, domain)
        z = self.sums.multiply(weight)
        return weighted_means(self.slots, z, self.keys, r.t().flatten(), b.shape[-1])


def weighted_means(
    pattern: SparseMatrix, z: Tensor, mass: Tensor | None, coefficients: Tensor, heads: int
) -> Tensor:
    """Compute sum_s r_s z_s / sum_s r_s m_s for every row of a pattern [M, S] and every head.

    Args:
        pattern: [heads * M, heads * S], one copy of the pattern per head along the diagonal (`batch.Block`).
        z: [S, heads * H], a row for each column of the pattern.
        mass: [S], the m_s. None: 1 each.
        coefficients: [heads * E], the r_s of each entry of `pattern`, head after head.

    Returns:
        [M, heads * H].
    """
    width = z.shape[1] // heads
    by_head = z.view(len(z), heads, width).transpose(0, 1)  # [heads, S, H]
    # With the masses as a column next to z, one product computes numerator and denominator.
    mass = z.new_ones(len(z)) if mass is None else mass
    by_head = torch.cat([by_head, mass.expand(heads, -1)[..., None]], 2).flatten(0, 1)
    sums = spmm(pattern, by_head, coefficients).view(heads, pattern.shape[0] // heads, width + 1)
    return (sums[..., :-1] / sums[..., -1:]).transpose(0, 1).flatten(1)


def _of_matrices(d: Tensor, keys: Tensor, series: Series, domain: float) -> Tensor:
    """Compute r [n, w, heads] from D [n, w, w, heads] and K1 [n, w]."""
    n, w, _, heads = d.shape
    turned = d.permute(0, 3, 2, 1).reshape(n * heads, w, w) * (1 / domain)  # D' of every head
    first = keys[:, None].expand(n, heads, w).reshape(n * heads, w, 1)
    # w_0 = K1, w_1 = (D / s)' K1, w_n = 2 (D / s)' w_(n-1) - w_(n-2); r = sum_n c_n w_n
    before, last = first, torch.bmm(turned, first)
    result = series[0] * before + series[1] * last
    for c in series[2:]:
        before, last = last, torch.baddbmm(before, turned, last, beta=-1, alpha=2)
        result = result + c * last
    # D maps half of K1 to 0. Subtract what T_n(0) of this half added: T_n(0) is 0 for odd n, 1 for
    # n = 0, 4, ..., and -1 for n = 2, 6, ...
    outside = sum(c if n % 4 == 0 else -c for n, c in enumerate(series) if n % 2 == 0)
    result = torch.sub(result, first, alpha=outside / 2)
    return result.view(n, heads, w).transpose(1, 2)


def _terms(y: Tensor, is_slot: Tensor, series: Series) -> Tensor:
    """Compute q_n y^n, [n, p + 1, heads], from y [n, heads] and series = q_0 .. q_p.

    is_slot [n] is 1 for slots and 0 for padding, whose terms are all 0.
    """
    # y | y^2 | y^3, y^4 | ...: each pass doubles the number of powers.
    power = y[:, None]
    while power.shape[1] < len(series) - 1:
        power = torch.cat([power, power * power[:, -1:]], 1)
    one = is_slot[:, None, None].expand(-1, 1, y.shape[1])
    return torch.cat([one, power[:, : len(series) - 1]], 1) * y.new_tensor(series)[:, None]


def _of_vectors(terms: Tensor, group: Group) -> Tensor:
    """Compute r [n, w, heads] from q_n y^n of every slot, [n w, p + 1, heads]."""
    assert group.decoders is not None
    of_node = terms.view(len(group.keys), -1, terms.shape[-1])
    return torch.bmm(of_node.transpose(1, 2), group.decoders.transpose(1, 2)).transpose(1, 2)
