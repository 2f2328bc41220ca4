"""What FedGAT's server makes of every node's neighbourhood before training (Ambekar et al., "FedGAT",
Algorithm 1 and Appendix F), and how many numbers that is.

For a node i with B neighbours, itself among them, with features h_j in R^F:

    matrix form  2 B orthonormal vectors u_1 .. u_B, v_1 .. v_B in R^(2 B) and a number r > 0 give projectors
                 U_j = (u_j u_j' + v_j v_j' + r u_j v_j' + v_j u_j' / r) / 2, of rank one, with U_j U_k = 0.
                 M1(s) = h_i(s) sum_j U_j, M2(s) = sum_j h_j(s) U_j, K1 = sqrt2 sum_j u_j,
                 K2 = sqrt2 sum_j u_j h_j'.  Eqs. (9) to (13)
    vector form  of 2 B columns each neighbour owns one, t_j, and has a key k_j, its unit vector. V_j in
                 R^(2 B) is random, but 0 at the columns that others own. M1 = h_i (sum_j V_j)',
                 M2 = sum_j h_j V_j', R_n = sum_j V_j(t_j)^-n k_j k_j' + c_n m1 m1', K1 = sum_j k_j + c m2,
                 K2 = sum_j k_j h_j' + c' m2 g', with random m1, m2; they are orthogonal to the keys and to
                 each other; g = sum_j a_j h_j with random a. M1, M2 and K2 are linear in the features, by a
                 matrix for each node (`vector_weights`).

All draws follow from a key and the node's id. They hide nothing: from either form every h_j can be computed
(`audit.fedgat_features`), whatever is drawn, and no result depends on them beyond rounding.

Differs from the paper's program: r is drawn in [1/2, 2] where it is 4; columns that nobody owns are divided
by B, so that their powers stay in the range of floats; g is a combination of the features, where it is random
numbers: so the server can make it of features that it cannot read (`encrypted_moments`)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import fold, uniform

__all__ = [
    "Neighbourhoods",
    "alike",
    "matrix_message",
    "numbers",
    "projectors",
    "vector_message",
    "vector_weights",
]

#: Numbers that are worked on at a time.
PART = 1 << 25


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Of U nodes: ids [U]; size [U]: B of each; member [sum B]: rows among the U, of each node itself
    first."""

    ids: Tensor
    size: Tensor
    member: Tensor


@dataclass(frozen=True, eq=False)
class Pooled:
    """What the server has: features [U, F] of all nodes in the order of their ids (F = 0 where it cannot
    read them), and neighbourhoods."""

    x: Tensor | SparseMatrix
    neighbourhoods: Neighbourhoods


def numbers(form: str, size: Tensor, width: int, degree: int) -> int:
    """How many numbers cross for nodes with neighbourhoods of `size` [n], once each."""
    b = size.double()
    if form == "matrix":
        total = 8 * width * b**2 + 2 * b + 2 * b * width
    else:
        total = 6 * width * b + 2 * b + 4 * (degree + 1) * b**2
    return int(total.sum())


def matrix_message(
    x: Tensor | SparseMatrix, neighbourhoods: Neighbourhoods, key: int
) -> tuple[Tensor, Tensor]:
    """sums [S, 1 + F] and scores [Q, 2 F] of all nodes (see `nn.moments.Moments`), x [U, F]."""
    width, slots, entries = x.shape[1], 2 * neighbourhoods.size, (2 * neighbourhoods.size) ** 2
    sums = torch.empty((int(slots.sum()), 1 + width), dtype=x.dtype, device=neighbourhoods.size.device)
    scores = torch.empty((int(entries.sum()), 2 * width), dtype=x.dtype, device=neighbourhoods.size.device)
    first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
    for b, rows in alike(neighbourhoods.size, 8 * width):
        h = _features(x, neighbourhoods, rows, b)
        u, left, right = _bases(fold(key, "bases"), neighbourhoods.ids[rows], b)
        u, left, right = u.to(h), left.to(h), right.to(h)
        # U_j = left_j right_j' / 2
        each = (left[:, :, :, None] * right[:, :, None] / 2).flatten(2)  # [n, B, 4 B^2]
        own = each.sum(1)[..., None] * h[:, :1]  # Eq. (13): of M1
        others = torch.bmm(each.transpose(1, 2), h)  # of M2
        scores[ranges(first_entry[rows], entries[rows])] = torch.cat([own, others], 2).flatten(0, 1)
        ones_and_h = torch.cat([torch.ones_like(h[..., :1]), h], 2)
        both = 2**0.5 * torch.bmm(u.transpose(1, 2), ones_and_h)  # Eq. (11)
        sums[ranges(first_slot[rows], slots[rows])] = both.flatten(0, 1)
    return sums, scores


def projectors(key: int, ids: Tensor, b: int) -> Tensor:
    """U_j of nodes with B neighbours, [n, B, 2 B, 2 B] float64.  Eq. (9)"""
    _, left, right = _bases(fold(key, "bases"), ids, b)
    return left[:, :, :, None] * right[:, :, None] / 2


def _bases(key: int, ids: Tensor, b: int) -> tuple[Tensor, Tensor, Tensor]:
    """u_j, u_j + u'_j / r and u_j + r u'_j, [n, B, 2 B] float64 each."""
    draws = uniform(key, ids, 4 * b * b + 1)
    basis = torch.linalg.qr(2 * draws[:, 1:].view(-1, 2 * b, 2 * b) - 1)[0].transpose(1, 2)
    u, other, r = basis[:, :b], basis[:, b:], 2 ** (2 * draws[:, :1, None] - 1)
    return u, u + other / r, u + r * other


def vector_message(
    x: Tensor | SparseMatrix, neighbourhoods: Neighbourhoods, degree: int, key: int
) -> tuple[Tensor, Tensor, Tensor]:
    """sums [S, 1 + F], scores [S, 2 F] and decoders [Q, p + 1] of all nodes (see `nn.moments.Moments`), x
    [U, F]; F = 0 leaves what does not depend on features."""
    width, slots, entries = x.shape[1], 2 * neighbourhoods.size, (2 * neighbourhoods.size) ** 2
    like = torch.empty(0, dtype=x.dtype, device=neighbourhoods.size.device)
    sums = like.new_empty(int(slots.sum()), 1 + width)
    scores = like.new_empty(int(slots.sum()), 2 * width)
    decoders = like.new_empty(int(entries.sum()), degree + 1)
    first_slot, first_entry = slots.cumsum(0) - slots, entries.cumsum(0) - entries
    for b, rows in alike(neighbourhoods.size, 6 * width + 4 * (degree + 1)):
        h = _features(x, neighbourhoods, rows, b)
        drawn = _draw(key, neighbourhoods.ids[rows], b)
        spot = ranges(first_slot[rows], slots[rows])
        m1 = drawn.v.sum(1).to(h)[..., None] * h[:, :1]
        m2 = torch.bmm(drawn.v.transpose(1, 2).to(h), h)
        scores[spot] = torch.cat([m1, m2], 2).flatten(0, 1)
        r = _decoders(key, neighbourhoods.ids[rows], drawn, degree, h)
        decoders[ranges(first_entry[rows], entries[rows])] = r.flatten(0, 2)
        k1 = torch.zeros_like(drawn.m2).scatter(1, drawn.own, 1.0) + drawn.c[:, :1] * drawn.m2
        k2 = like.new_zeros(len(rows), 2 * b, width)
        k2.scatter_(1, drawn.own[:, :, None].expand(-1, -1, width), h)
        strange = torch.bmm(drawn.a[:, None].to(h), h)  # g
        k2 += (drawn.c[:, 1:] * drawn.m2).to(h)[..., None] * strange
        sums[spot] = torch.cat([k1.to(h)[..., None], k2], 2).flatten(0, 1)
    return sums, scores, decoders


def vector_weights(key: int, ids: Tensor, b: int) -> Tensor:
    """What each row of M1, M2 and K2, one matrix after the other, has of each neighbour's features, for
    nodes with B neighbours: [n, 6 B, B] float64."""
    drawn = _draw(key, ids, b)
    m1 = torch.zeros_like(drawn.v).transpose(1, 2)  # [n, 2 B, B]
    m1[..., 0] = drawn.v.sum(1)
    k2 = (drawn.c[:, 1:] * drawn.m2)[..., None] * drawn.a[:, None]
    k2.scatter_(1, drawn.own[:, :, None].expand(-1, -1, b), torch.eye(b).to(k2).expand(len(ids), -1, -1))
    return torch.cat([m1, drawn.v.transpose(1, 2), k2], 1)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The vector form's draws for n nodes with B neighbours, float64. v [n, B, 2 B]; own [n, B]: t_j;
    value [n, B]: V_j(t_j); m1, m2 [n, 2 B]; c [n, 2]: of K1 and of K2; a [n, B]."""

    v: Tensor
    own: Tensor
    value: Tensor
    m1: Tensor
    m2: Tensor
    c: Tensor
    a: Tensor


def _draw(key: int, ids: Tensor, b: int) -> _Drawn:
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
    """R_0 .. R_p, entry by entry: [n, 2 B, 2 B, p + 1] in the dtype of `like`."""
    orders = torch.arange(degree + 1, device=ids.device)
    c = uniform(fold(key, "scales of decoders"), ids, degree + 1)
    r = (drawn.m1[:, :, None] * drawn.m1[:, None])[..., None].to(like) * c[:, None, None].to(like)
    row = torch.arange(len(ids), device=ids.device)[:, None]
    r[row, drawn.own, drawn.own] = (drawn.value[..., None] ** -orders).to(like)  # where m1 is 0
    return r


def _outside(key: int, ids: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """m1 and m2 [n, 2 B] float64, of length 1, on the columns that nobody owns; m1 is 0 where that is one."""
    b = columns.shape[1] // 2
    draws = 2 * uniform(key, ids, 2 * b).view(-1, 2, b) - 1
    basis = torch.linalg.qr(draws.transpose(1, 2))[0].transpose(1, 2)  # [n, min(2, B), B]
    zeros = draws.new_zeros(len(ids), 2 * b)
    spots = columns[:, b:]
    second = zeros.scatter(1, spots, basis[:, -1])
    return zeros.scatter(1, spots, basis[:, 0]) if b > 1 else zeros, second


def alike(size: Tensor, per_square: int) -> Iterator[tuple[int, Tensor]]:
    """Nodes with neighbourhoods of the same size, some at a time: the size, and which they are."""
    for b in torch.unique(size).tolist():
        yield from (
            (b, rows) for rows in (size == b).nonzero()[:, 0].split(max(1, PART // (per_square * b * b)))
        )


def _features(x: Tensor | SparseMatrix, neighbourhoods: Neighbourhoods, rows: Tensor, b: int) -> Tensor:
    """h_j [n, B, F], dense, of each node itself first."""
    starts = neighbourhoods.size.cumsum(0) - neighbourhoods.size
    members = neighbourhoods.member[ranges(starts[rows], neighbourhoods.size[rows])]
    h = x.select_rows(members).to_dense() if isinstance(x, SparseMatrix) else x[members]
    return h.view(len(rows), b, -1)
