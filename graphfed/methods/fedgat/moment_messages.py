"""The message that FedGAT's server computes for every node before training, and its size.

Reference: Ambekar et al., "FedGAT", Algorithm 1 and Appendix F; docs/papers/fedgat.md.

For a node i with B neighbours (with i itself) that have the features h_j in R^F:

- Matrix form. 2 B orthonormal vectors u_1 .. u_B, v_1 .. v_B in R^(2 B) and a number r > 0 give projectors
  of rank one with U_j U_k = 0,

      U_j = (u_j u_j' + v_j v_j' + r u_j v_j' + v_j u_j' / r) / 2                              Eq. (9)
      M1(s) = h_i(s) sum_j U_j,       M2(s) = sum_j h_j(s) U_j                                  Eq. (13)
      K1 = sqrt2 sum_j u_j,           K2 = sqrt2 sum_j u_j h_j'                                 Eq. (11)

- Vector form. Of 2 B columns each neighbour owns one, t_j. Its key k_j is the unit vector of this column.
  V_j in R^(2 B) is random, except that it is 0 in the columns that other neighbours own. With random m1 and
  m2, which are orthogonal to the keys and to each other, and random a,

      M1 = h_i (sum_j V_j)',          M2 = sum_j h_j V_j',
      R_n = sum_j V_j(t_j)^-n k_j k_j' + c_n m1 m1',
      K1 = sum_j k_j + c m2,          K2 = sum_j k_j h_j' + c' m2 g',      g = sum_j a_j h_j.

  M1, M2 and K2 are linear in the features: each node has a matrix that maps features to them
  (`vector_weights`).

All draws follow from a key and the node's id. They hide nothing: every h_j can be computed from either form
(`graphfed audit`), whatever is drawn. No result depends on the draws beyond rounding.

Differs from the paper's program (docs/papers/fedgat.md, Differences, item 9): r is drawn from [1/2, 2],
where the program has 4. Random numbers in columns without an owner are divided by B, so that their powers
stay in the range of floats. g is a combination of the features, where the program has random numbers, so
that the server can compute it from features that it cannot read (`encrypted_moments`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import fold, uniform

#: Most numbers that are computed at a time.
PART = 1 << 25


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """The neighbourhoods of U nodes.

    Attributes:
        ids: Node ids, ascending [U].
        size: B of each node, which counts the node itself [U].
        member: The rows of each node's neighbours, with the node itself first [sum B].
    """

    ids: Tensor
    size: Tensor
    member: Tensor


@dataclass(frozen=True, eq=False)
class Pooled:
    """The graph at the server.

    Attributes:
        x: Features of all nodes in the order of their ids [U, F]; F = 0 if the server cannot read them.
        neighbourhoods: The neighbours of every node.
    """

    x: Tensor | SparseMatrix
    neighbourhoods: Neighbourhoods


def numbers(form: str, size: Tensor, width: int, degree: int) -> int:
    """Count the numbers in the messages of some nodes.

    Args:
        form: "matrix" or "vector".
        size: B of each node [n].
        width: F, the features of a node.
        degree: p.

    Reference:
        FedGAT, Theorem 1.
    """
    b = size.double()
    if form == "matrix":
        total = 8 * width * b**2 + 2 * b + 2 * b * width
    else:
        total = 6 * width * b + 2 * b + 4 * (degree + 1) * b**2
    return int(total.sum())


def matrix_message(
    x: Tensor | SparseMatrix, neighbourhoods: Neighbourhoods, key: int
) -> tuple[Tensor, Tensor]:
    """Compute the matrix form of the message for all nodes.

    Args:
        x: Features [U, F].
        neighbourhoods: The neighbours of the U nodes.
        key: The key of the random draws.

    Returns:
        K1 and K2, [S, 1 + F] with S = sum 2 B; and M1 and M2, [Q, 2 F] with Q = sum (2 B)^2
        (`nn.moments.Moments`).

    Reference:
        FedGAT, Alg. 1, l. 3 and 4; Eq. (9), Eq. (11) and Eq. (13).
    """
    width, slots, entries = x.shape[1], 2 * neighbourhoods.size, (2 * neighbourhoods.size) ** 2
    sums = torch.empty((int(slots.sum()), 1 + width), dtype=x.dtype, device=neighbourhoods.size.device)
    scores = torch.empty((int(entries.sum()), 2 * width), dtype=x.dtype, device=neighbourhoods.size.device)
    first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
    for b, rows in alike(neighbourhoods.size, 8 * width):
        h = _features(x, neighbourhoods, rows, b)
        u, left, right = _bases(fold(key, "bases"), neighbourhoods.ids[rows], b)
        u, left, right = u.to(h), left.to(h), right.to(h)
        # Eq. (9): U_j = left_j right_j' / 2
        projector = (left[:, :, :, None] * right[:, :, None] / 2).flatten(2)  # [n, B, 4 B^2]
        m1 = projector.sum(1)[..., None] * h[:, :1]  # Eq. (13), M1
        m2 = torch.bmm(projector.transpose(1, 2), h)  # Eq. (13), M2
        scores[ranges(first_entry[rows], entries[rows])] = torch.cat([m1, m2], 2).flatten(0, 1)
        ones_and_h = torch.cat([torch.ones_like(h[..., :1]), h], 2)
        k = 2**0.5 * torch.bmm(u.transpose(1, 2), ones_and_h)  # Eq. (11), K1 and K2
        sums[ranges(first_slot[rows], slots[rows])] = k.flatten(0, 1)
    return sums, scores


def projectors(key: int, ids: Tensor, b: int) -> Tensor:
    """Compute the projectors U_j of nodes with B neighbours.

    Args:
        key: The key of the random draws.
        ids: Node ids [n].
        b: B.

    Returns:
        float64 [n, B, 2 B, 2 B].

    Reference:
        FedGAT, Eq. (9).
    """
    _, left, right = _bases(fold(key, "bases"), ids, b)
    return left[:, :, :, None] * right[:, :, None] / 2


def _bases(key: int, ids: Tensor, b: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw u_j, and compute the factors u_j + v_j / r and u_j + r v_j of Eq. (9), each float64 [n, B, 2
    B].
    """
    draws = uniform(key, ids, 4 * b * b + 1)
    basis = torch.linalg.qr(2 * draws[:, 1:].view(-1, 2 * b, 2 * b) - 1)[0].transpose(1, 2)
    u, v, r = basis[:, :b], basis[:, b:], 2 ** (2 * draws[:, :1, None] - 1)
    return u, u + v / r, u + r * v


def vector_message(
    x: Tensor | SparseMatrix, neighbourhoods: Neighbourhoods, degree: int, key: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the vector form of the message for all nodes.

    Args:
        x: Features [U, F]. F = 0 gives the parts that do not depend on features.
        neighbourhoods: The neighbours of the U nodes.
        degree: p.
        key: The key of the random draws.

    Returns:
        K1 and K2, [S, 1 + F] with S = sum 2 B; M1 and M2, [S, 2 F]; and the decoders R_0 to R_p, [Q, p + 1]
        with Q = sum (2 B)^2 (`nn.moments.Moments`).

    Reference:
        FedGAT, Alg. 1, l. 3 and 4; Appendix F.
    """
    width, slots, entries = x.shape[1], 2 * neighbourhoods.size, (2 * neighbourhoods.size) ** 2
    like = torch.empty(0, dtype=x.dtype, device=neighbourhoods.size.device)
    sums = like.new_empty(int(slots.sum()), 1 + width)
    scores = like.new_empty(int(slots.sum()), 2 * width)
    decoders = like.new_empty(int(entries.sum()), degree + 1)
    first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
    for b, rows in alike(neighbourhoods.size, 6 * width + 4 * (degree + 1)):
        h = _features(x, neighbourhoods, rows, b)
        drawn = _draw(key, neighbourhoods.ids[rows], b)
        slot = ranges(first_slot[rows], slots[rows])
        m1 = drawn.v.sum(1).to(h)[..., None] * h[:, :1]
        m2 = torch.bmm(drawn.v.transpose(1, 2).to(h), h)
        scores[slot] = torch.cat([m1, m2], 2).flatten(0, 1)
        r = _decoders(key, neighbourhoods.ids[rows], drawn, degree, h)
        decoders[ranges(first_entry[rows], entries[rows])] = r.flatten(0, 2)
        k1 = torch.zeros_like(drawn.m2).scatter(1, drawn.own, 1.0) + drawn.c[:, :1] * drawn.m2
        k2 = like.new_zeros(len(rows), 2 * b, width)
        k2.scatter_(1, drawn.own[:, :, None].expand(-1, -1, width), h)
        g = torch.bmm(drawn.a[:, None].to(h), h)  # g
        k2 += (drawn.c[:, 1:] * drawn.m2).to(h)[..., None] * g
        sums[slot] = torch.cat([k1.to(h)[..., None], k2], 2).flatten(0, 1)
    return sums, scores, decoders


def vector_weights(key: int, ids: Tensor, b: int) -> Tensor:
    """Compute the matrix that maps the features of a node's neighbours to its M1, M2 and K2.

    Args:
        key: The key of the random draws.
        ids: Ids of n nodes with B neighbours [n].
        b: B.

    Returns:
        float64 [n, 6 B, B]: 2 B rows for M1, then for M2, then for K2.
    """
    drawn = _draw(key, ids, b)
    m1 = torch.zeros_like(drawn.v).transpose(1, 2)  # [n, 2 B, B]
    m1[..., 0] = drawn.v.sum(1)
    k2 = (drawn.c[:, 1:] * drawn.m2)[..., None] * drawn.a[:, None]
    k2.scatter_(1, drawn.own[:, :, None].expand(-1, -1, b), torch.eye(b).to(k2).expand(len(ids), -1, -1))
    return torch.cat([m1, drawn.v.transpose(1, 2), k2], 1)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The random draws of the vector form for n nodes with B neighbours, float64.

    Attributes:
        v: V_j [n, B, 2 B].
        own: t_j, the column of each neighbour [n, B].
        value: V_j(t_j) [n, B].
        m1: m1 [n, 2 B].
        m2: m2 [n, 2 B].
        c: c of K1 and c' of K2 [n, 2].
        a: a_j of g [n, B].
    """

    v: Tensor
    own: Tensor
    value: Tensor
    m1: Tensor
    m2: Tensor
    c: Tensor
    a: Tensor


def _draw(key: int, ids: Tensor, b: int) -> _Drawn:
    """Draw the vector form's random numbers for nodes with B neighbours. Alg. 1, l. 3."""
    columns = torch.argsort(uniform(fold(key, "columns"), ids, 2 * b), 1)
    own = columns[:, :b]
    v = (2 * uniform(fold(key, "columns that nobody owns"), ids, 2 * b * b) - 1).view(-1, b, 2 * b) / b
    value = 0.8 + 0.4 * uniform(fold(key, "columns of one's own"), ids, b)
    v.scatter_(2, own[:, None].expand(-1, b, -1), 0)
    v.scatter_(2, own[:, :, None], value[:, :, None])
    m1, m2 = _outside(fold(key, "outside"), ids, columns)
    c = uniform(fold(key, "scales of masks"), ids, 2)
    a = (2 * uniform(fold(key, "strange features"), ids, b) - 1) / b
    return _Drawn(v, own, value, m1, m2, c, a)


def _decoders(key: int, ids: Tensor, drawn: _Drawn, degree: int, like: Tensor) -> Tensor:
    """Compute R_0 .. R_p entry by entry, [n, 2 B, 2 B, p + 1], in the dtype of `like`."""
    orders = torch.arange(degree + 1, device=ids.device)
    c = uniform(fold(key, "scales of decoders"), ids, degree + 1)
    r = (drawn.m1[:, :, None] * drawn.m1[:, None])[..., None].to(like) * c[:, None, None].to(like)
    row = torch.arange(len(ids), device=ids.device)[:, None]
    r[row, drawn.own, drawn.own] = (drawn.value[..., None] ** -orders).to(
        like
    )  # the keys' entries, where m1 is 0
    return r


def _outside(key: int, ids: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Draw m1 and m2 of length 1 in the columns without an owner, float64 [n, 2 B]; m1 is 0 if there is one
    such column.
    """
    b = columns.shape[1] // 2
    # The QR decomposition makes the two vectors orthonormal.
    draws = 2 * uniform(key, ids, 2 * b).view(-1, 2, b) - 1
    basis = torch.linalg.qr(draws.transpose(1, 2))[0].transpose(1, 2)  # [n, min(2, B), B]
    zeros = draws.new_zeros(len(ids), 2 * b)
    unowned = columns[:, b:]
    m2 = zeros.scatter(1, unowned, basis[:, -1])
    return zeros.scatter(1, unowned, basis[:, 0]) if b > 1 else zeros, m2


def alike(size: Tensor, per_square: int) -> Iterator[tuple[int, Tensor]]:
    """Group nodes by the size of their neighbourhood, in parts of bounded memory.

    Args:
        size: B of each node [n].
        per_square: The numbers of a node's message, divided by B^2, at most.

    Yields:
        B, and the rows of some nodes with this B.
    """
    for b in torch.unique(size).tolist():
        yield from (
            (b, rows) for rows in (size == b).nonzero()[:, 0].split(max(1, PART // (per_square * b * b)))
        )


def _features(x: Tensor | SparseMatrix, neighbourhoods: Neighbourhoods, rows: Tensor, b: int) -> Tensor:
    """Gather the dense features h_j of the neighbours, [n, B, F], with the node itself first."""
    starts = neighbourhoods.size.cumsum(0) - neighbourhoods.size
    members = neighbourhoods.member[ranges(starts[rows], neighbourhoods.size[rows])]
    h = x.select_rows(members).to_dense() if isinstance(x, SparseMatrix) else x[members]
    return h.view(len(rows), b, -1)
