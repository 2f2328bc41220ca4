"""Who keeps which edge, by plain algorithms that see the whole graph: the exact optimum, and the slow loops
that the programs of `balancing` are tested against.

An edge (u, v) is kept by u, by v, or by both; the workload of a node is the number of neighbours that it
keeps, and the largest workload is to be small (Lumos, Eq. 10). With one keeper for every edge this is the
min-max orientation of a graph: polynomial, though the paper calls it NP-hard.

Edges [2, m] int64, every edge once, no self loops; n nodes. A cover is [2, m] bool: whether the first end
keeps the second, and whether the second keeps the first. Every loop draws from the same keyed draws as the
programs, so that they agree to the last edge."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto.accept import DRAWS, thresholds
from graphfed.random import fold, uniform

__all__ = [
    "Optimum",
    "accepts",
    "by_greedy",
    "by_metropolis",
    "by_passing_on",
    "chosen_of",
    "largest",
    "maximum_found",
    "moves_drawn",
    "optimum",
    "pair_draws",
    "workloads",
]

Edges = NDArray[np.int64]
Cover = NDArray[np.bool_]


def workloads(edges: Edges, cover: Cover, n: int) -> NDArray[np.int64]:
    """How many neighbours each node keeps, [n]."""
    counts: NDArray[np.int64] = np.bincount(edges[cover], minlength=n)
    return counts


def largest(edges: Edges, cover: Cover, n: int) -> int:
    """The largest workload."""
    return int(workloads(edges, cover, n).max(initial=0))


# ---- draws, the same for the loops and for the programs ----------------------------------------------------


def pair_draws(key: int, own: Tensor, other: Tensor, n: int) -> Tensor:
    """A draw in [0, 1) for each ordered pair of nodes, [p] float64."""
    return uniform(key, own * n + other)[:, 0]


def moves_drawn(seed: int, step: int, u: int, workload: int) -> int:
    """How many neighbours u gives away in a step: uniform on 1..max(1, round(ln workload)) (Alg. 2, l. 3).

    The paper's range is empty for a workload of 1."""
    most = max(1, round(math.log(workload))) if workload else 0
    return min(workload, 1 + int(most * float(uniform(fold(seed, "balance", "moves", step), _ids(u)))))


def chosen_of(seed: int, step: int, ids: Tensor) -> int:
    """The position of the one that the server takes among equals, the same for any order of ids [m]."""
    return int(uniform(fold(seed, "balance", "maximum", step), ids)[:, 0].argmax())


def accepts(key: int, u: int, other: int, n: int, rise: int, temperature: float) -> bool:
    """Whether a step stands that raises the largest workload by `rise`: with probability min(1, exp(-rise /
    T)), Eq. (18). The draw is that of the pair of u and u', as `at_most_pairs` has it where it is
    simulated."""
    draw = float(pair_draws(key, _ids(min(u, other)), _ids(max(u, other)), n))
    return bool(int(DRAWS * draw) < thresholds(np.array([rise]), temperature)[0])


def _ids(*ids: int) -> Tensor:
    return torch.tensor(ids)


# ---- the exact optimum -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Optimum:
    """The smallest largest workload, with who reaches it and why there is no smaller one.

    keeper [m]: the end that keeps each edge; dense [n] bool: a set of nodes with more than (maximum - 1)
    times as many edges inside it as nodes: some node of it keeps `maximum` of them, whoever keeps
    which."""

    maximum: int
    keeper: NDArray[np.int64]
    dense: Cover


def optimum(edges: Edges, n: int) -> Optimum:
    """The min-max orientation, by reversing paths.

    While a path of kept edges leads from a node of the largest workload k to one of at most k - 2, every
    edge of it changes its keeper: the first loses one, the last gains one. Where no path is left, whatever
    the nodes of workload k reach keeps at least k - 1 edges each, one of them k, and all of them inside:
    more than (k - 1) |R| edges."""
    ends = np.asarray(edges, dtype=np.int64)
    keeps_first = _start(ends, n)
    while True:
        keeper, other = np.where(keeps_first, ends, ends[::-1])
        workload = np.bincount(keeper, minlength=n)
        k = int(workload.max(initial=0))
        came_by, root, order = _forest(keeper, other, n, np.flatnonzero(workload == k))
        low = order[workload[order] <= k - 2]
        if k == 0 or not len(low):
            dense = np.zeros(n, dtype=bool)
            dense[order] = k > 0
            return Optimum(k, keeper, dense)
        # A path from each root to the nearest node of its own tree: they have no node in common.
        _, first = np.unique(root[low], return_index=True)
        for end in low[first]:
            at = end
            while came_by[at] >= 0:
                keeps_first[came_by[at]] ^= True
                at = keeper[came_by[at]]


def _start(ends: Edges, n: int) -> Cover:
    """Whether the first end keeps each edge at the start: the one of the lower degree, then passed on in
    synchronous rounds to ends that keep at least two less; a few thousand path searches saved."""
    degree = np.bincount(ends.ravel(), minlength=n)
    keeps_first = degree[ends[0]] <= degree[ends[1]]
    draw = np.random.default_rng(0)
    while True:
        keeper, other = np.where(keeps_first, ends, ends[::-1])
        workload = np.bincount(keeper, minlength=n)
        able = np.flatnonzero(workload[keeper] >= workload[other] + 2)
        if not len(able):
            return np.asarray(keeps_first, dtype=bool)
        able = draw.permutation(able)
        able = able[np.unique(keeper[able], return_index=True)[1]]
        able = able[np.unique(other[able], return_index=True)[1]]
        keeps_first[able] ^= True


def _forest(
    keeper: NDArray[np.int64], other: NDArray[np.int64], n: int, roots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Breadth first along kept edges from all roots: the edge by which each node was reached [n] (-1:
    none), the root of its tree [n] (-1: not reached), and the nodes reached, in order."""
    out = sp.csr_matrix((np.arange(len(keeper)), (keeper, other)), shape=(n, n))
    came_by, root = np.full((2, n), -1)
    root[roots] = roots
    order, front = [roots], roots
    while len(front):
        counts = out.indptr[front + 1] - out.indptr[front]
        starts = np.repeat(out.indptr[front] - np.cumsum(counts) + counts, counts)
        place = starts + np.arange(counts.sum())
        reached, edge = out.indices[place], out.data[place]
        new = root[reached] < 0
        reached, first = np.unique(reached[new], return_index=True)
        edge = edge[new][first]
        came_by[reached], root[reached] = edge, root[keeper[edge]]
        front = reached
        order.append(front)
    return came_by, root, np.concatenate(order).astype(np.int64)


# ---- the paper's algorithms, one node after the other ----------------------------------------------------


def _neighbours(edges: Edges, n: int) -> list[list[int]]:
    around: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges.T.tolist():
        around[u].append(v)
        around[v].append(u)
    return [sorted(nodes) for nodes in around]


def _cover(edges: Edges, kept: Sequence[set[int]]) -> Cover:
    """The cover of an edge list, from the set N_u of every node."""
    ends = [[v in kept[u], u in kept[v]] for u, v in edges.T.tolist()]
    return np.array(ends, dtype=bool).reshape(-1, 2).T


def by_greedy(edges: Edges, n: int) -> Cover:
    """Alg. 1: u keeps v where round(ln deg v) >= round(ln deg u); with equal ones both keep."""
    return _cover(edges, _greedy_sets(_neighbours(edges, n)))


def _greedy_sets(around: Sequence[Sequence[int]]) -> list[set[int]]:
    level = [round(math.log(len(near))) if near else 0 for near in around]
    return [{v for v in near if level[v] >= level[u]} for u, near in enumerate(around)]  # Alg. 1, l. 4


def maximum_found(workload: Sequence[int], around: Sequence[Sequence[int]], seed: int, step: int) -> int:
    """Alg. 3: the node of the largest workload. A node without neighbours is no candidate."""
    candidates = [
        v for v, near in enumerate(around) if near and all(workload[v] >= workload[w] for w in near)
    ]
    maxima = [v for v in candidates if all(workload[v] >= workload[w] for w in candidates)]
    return maxima[chosen_of(seed, step, _ids(*maxima))]


def by_metropolis(
    edges: Edges, n: int, *, steps: int, temperature: float, seed: int
) -> tuple[Cover, list[int]]:
    """Alg. 1, then Alg. 2 and 3: the best cover seen, the earliest of equals, and the largest workload before
    every step and after the last."""
    around = _neighbours(edges, n)
    kept = _greedy_sets(around)
    if not edges.size:
        return _cover(edges, kept), [0]
    best, lowest, seen = [set(s) for s in kept], math.inf, []
    for step in range(steps + 1):
        workload = [len(s) for s in kept]
        u = maximum_found(workload, around, seed, 2 * step)  # Alg. 2, l. 2
        f = workload[u]
        seen.append(f)
        if f < lowest:
            best, lowest = [set(s) for s in kept], f
        if step == steps:
            break
        k = moves_drawn(seed, step, u, f)
        own = torch.tensor(sorted(kept[u]))
        draws = pair_draws(fold(seed, "balance", "neighbours", step), torch.full_like(own, u), own, n)
        moved = own[draws.argsort(descending=True)[:k]].tolist()
        proposed = [set(s) for s in kept]
        for v in moved:  # Alg. 2, l. 5
            proposed[u].remove(v)
            proposed[v].add(u)
        workload = [len(s) for s in proposed]
        other = maximum_found(workload, around, seed, 2 * step + 1)
        if accepts(fold(seed, "balance", "accept", step), u, other, n, workload[other] - f, temperature):
            kept = proposed
    return _cover(edges, best), seen


def by_passing_on(
    edges: Edges, n: int, *, rounds: int, shuffle_rounds: int, seed: int
) -> tuple[Cover, list[int]]:
    """Our rule: one keeper for every edge, by Alg. 1's comparison and a coin; then, in every round, each
    node offers one of its edges to a neighbour that keeps at least two less, and each takes one offer. When
    nobody can offer, or after `rounds`, so many rounds more in which it is enough to keep one less.

    The largest workload before the first round and after each one."""
    around = _neighbours(edges, n)
    level = [round(math.log(len(near))) if near else 0 for near in around]
    keeper = {}
    tie = fold(seed, "balance", "tie")
    for u, v in edges.T.tolist():
        low, high = min(u, v), max(u, v)
        lower_keeps = level[low] < level[high] or (
            level[low] == level[high] and float(pair_draws(tie, _ids(low), _ids(high), n)) < 0.5
        )
        keeper[low, high] = low if lower_keeps else high
    if not keeper:
        return np.zeros((2, 0), dtype=bool), [0]
    seen = [int(np.bincount(list(keeper.values())).max())]

    def one_round(number: int, margin: int) -> bool:
        workload = np.bincount(list(keeper.values()), minlength=n)
        offers: dict[int, list[int]] = {}
        to_offer, to_take = (fold(seed, "balance", kind, number) for kind in ("offer", "take"))
        for u in range(n):
            able = [
                v for v in around[u] if _kept_by(keeper, u, v) == u and workload[u] > workload[v] + margin
            ]
            if able:
                draws = pair_draws(to_offer, _ids(*[u] * len(able)), _ids(*able), n)
                offers.setdefault(able[int(draws.argmax())], []).append(u)
        for v, givers in offers.items():
            draws = pair_draws(to_take, _ids(*[v] * len(givers)), _ids(*givers), n)
            u = givers[int(draws.argmax())]
            keeper[min(u, v), max(u, v)] = v
        return bool(offers)

    while len(seen) <= rounds and one_round(len(seen), 1):
        seen.append(int(np.bincount(list(keeper.values())).max()))
    for _ in range(shuffle_rounds):
        one_round(len(seen), 0)
        seen.append(int(np.bincount(list(keeper.values())).max()))
    kept: list[set[int]] = [set() for _ in range(n)]
    for (low, high), u in keeper.items():
        kept[u].add(high if u == low else low)
    return _cover(edges, kept), seen


def _kept_by(keeper: dict[tuple[int, int], int], u: int, v: int) -> int:
    return keeper[min(u, v), max(u, v)]
