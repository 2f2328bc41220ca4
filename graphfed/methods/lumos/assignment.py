"""Assignments of edges to clients by plain algorithms that see the whole graph: the exact optimum, and the
paper's algorithms as slow loops. The programs of `balancing` are tested against the loops.

An edge (u, v) is assigned to u, to v, or to both. The workload of a node is the number of edges assigned to
it, and the largest workload is to be small (Lumos, Eq. (10)). With each edge assigned to one node this is the
min-max orientation of a graph, which takes polynomial time, though Theorem 1 of the paper calls it NP-hard
(docs/papers/lumos.md, "The balancing problem").

Shapes: n nodes; edges [2, m] int64, every edge once, no self-loops. A cover is [2, m] bool: whether an edge
is assigned to its first node, and whether to its second. The loops use the same keyed draws as the programs
and agree with them in every edge.
"""

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

Edges = NDArray[np.int64]
Cover = NDArray[np.bool_]


def workloads(edges: Edges, cover: Cover, n: int) -> NDArray[np.int64]:
    """Count the edges that a cover assigns to each node, [n]."""
    counts: NDArray[np.int64] = np.bincount(edges[cover], minlength=n)
    return counts


def largest(edges: Edges, cover: Cover, n: int) -> int:
    """Compute f(X), the largest workload; 0 without edges.

    Reference:
        Lumos, Eq. (10).
    """
    return int(workloads(edges, cover, n).max(initial=0))


# ---- draws, common to the loops and the programs -----------------------------------------------------------


def pair_draws(key: int, own: Tensor, other: Tensor, n: int) -> Tensor:
    """Draw a number in [0, 1) for each ordered pair of nodes, [p] float64."""
    return uniform(key, own * n + other)[:, 0]


def number_of_moves(seed: int, step: int, u: int, workload: int) -> int:
    """Draw k, how many edges u moves in a step: uniform on 1..max(1, round(ln workload)).

    Reference:
        Lumos, Alg. 2, l. 3.
    """
    # The paper's range 1..round(ln workload) is empty for a workload of 1.
    most = max(1, round(math.log(workload))) if workload else 0
    return min(workload, 1 + int(most * float(uniform(fold(seed, "balance", "moves", step), _ids(u)))))


def choose_among(seed: int, step: int, ids: Tensor) -> int:
    """Choose one of the nodes `ids` [m] at random, independently of their order; returns its place."""
    # The largest of one draw for each id: the same choice whatever order the ids arrive in.
    return int(uniform(fold(seed, "balance", "maximum", step), ids)[:, 0].argmax())


def is_accepted(key: int, u: int, other: int, n: int, rise: int, temperature: float) -> bool:
    """Decide whether a step that raises the largest workload by `rise` is accepted, with probability min(1,
    exp(-rise / temperature)).

    u and `other`, u' in the paper, are the nodes with the largest workload before and after the step.

    Reference:
        Lumos, Eq. (18).
    """
    # The draw of the pair, as `at_most_pairs` makes it when it is simulated.
    draw = float(pair_draws(key, _ids(min(u, other)), _ids(max(u, other)), n))
    # In whole numbers, as in the protocol, so that both decide alike.
    return bool(int(DRAWS * draw) < thresholds(np.array([rise]), temperature)[0])


def _ids(*ids: int) -> Tensor:
    return torch.tensor(ids)


# ---- the exact optimum -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Optimum:
    """The smallest possible largest workload, with an assignment that reaches it and a proof that none is
    better.

    Attributes:
        maximum: The smallest largest workload.
        assignee: [m] node to which each edge is assigned.
        dense: [n] bool: a set of nodes with more than (maximum - 1) times as many edges inside it as nodes,
            so that in every assignment one of them has a workload of at least `maximum`.
    """

    maximum: int
    assignee: NDArray[np.int64]
    dense: Cover


def optimum(edges: Edges, n: int) -> Optimum:
    """Solve problem (10) exactly, by reversing paths.

    While a path of assigned edges leads from a node with the largest workload k to a node with at most k - 2,
    it reverses the path: the first node loses one edge, the last gains one. If no path is left, let R be the
    nodes that can be reached from those with workload k. Each of them has at least k - 1 edges, one has k,
    and all these edges are inside R: more than (k - 1) |R| edges.

    Reference:
        docs/papers/lumos.md, "The balancing problem".
    """
    ends = np.asarray(edges, dtype=np.int64)
    # A good start saves thousands of path searches.
    to_first = _initial_orientation(ends, n)
    while True:
        assignee, other = np.where(to_first, ends, ends[::-1])
        workload = np.bincount(assignee, minlength=n)
        k = int(workload.max(initial=0))
        edge_to, root, order = _search_paths(assignee, other, n, np.flatnonzero(workload == k))
        # The first node gets k - 1 and the last at most k - 1, so no new node has k.
        low = order[workload[order] <= k - 2]
        if k == 0 or not len(low):
            dense = np.zeros(n, dtype=bool)
            dense[order] = k > 0
            return Optimum(k, assignee, dense)
        # A path from each root to the nearest node of its own tree: they have no node in common.
        _, first = np.unique(root[low], return_index=True)
        for end in low[first]:
            at = end
            while edge_to[at] >= 0:
                to_first[edge_to[at]] ^= True
                at = assignee[edge_to[at]]


def _initial_orientation(ends: Edges, n: int) -> Cover:
    """Assign each edge to the node of lower degree, then move edges in synchronous rounds to nodes with a
    workload smaller by two. True: assigned to the edge's first node, [m].
    """
    degree = np.bincount(ends.ravel(), minlength=n)
    to_first = degree[ends[0]] <= degree[ends[1]]
    # The seed is fixed: it changes which optimum is found, and not its value.
    draw = np.random.default_rng(0)
    while True:
        assignee, other = np.where(to_first, ends, ends[::-1])
        workload = np.bincount(assignee, minlength=n)
        able = np.flatnonzero(workload[assignee] >= workload[other] + 2)
        if not len(able):
            return np.asarray(to_first, dtype=bool)
        able = draw.permutation(able)
        # At most one edge leaves a node and one enters it in a round, so that moves do not overshoot.
        able = able[np.unique(assignee[able], return_index=True)[1]]
        able = able[np.unique(other[able], return_index=True)[1]]
        to_first[able] ^= True


def _search_paths(
    assignee: NDArray[np.int64], other: NDArray[np.int64], n: int, roots: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Search breadth-first along assigned edges from all roots.

    Returns the edge by which each node was reached [n] (-1: none), the root of its tree [n] (-1: not
    reached), and the nodes reached, in order.
    """
    # Entries are the numbers of the edges.
    out = sp.csr_matrix((np.arange(len(assignee)), (assignee, other)), shape=(n, n))
    edge_to, root = np.full((2, n), -1)
    root[roots] = roots
    order, front = [roots], roots
    while len(front):
        counts = out.indptr[front + 1] - out.indptr[front]
        starts = np.repeat(out.indptr[front] - np.cumsum(counts) + counts, counts)
        place = starts + np.arange(counts.sum())
        reached, edge = out.indices[place], out.data[place]
        new = root[reached] < 0
        # A node that several edges reach keeps the first one: paths form trees.
        reached, first = np.unique(reached[new], return_index=True)
        edge = edge[new][first]
        edge_to[reached], root[reached] = edge, root[assignee[edge]]
        front = reached
        order.append(front)
    return edge_to, root, np.concatenate(order).astype(np.int64)


# ---- the paper's algorithms, one node after the other ----------------------------------------------------


def _neighbours(edges: Edges, n: int) -> list[list[int]]:
    """List the neighbours of every node, ascending."""
    neighbours: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges.T.tolist():
        neighbours[u].append(v)
        neighbours[v].append(u)
    return [sorted(nodes) for nodes in neighbours]


def _cover(edges: Edges, assigned: Sequence[set[int]]) -> Cover:
    """Build the cover from the set N_u of every node."""
    ends = [[v in assigned[u], u in assigned[v]] for u, v in edges.T.tolist()]
    return np.array(ends, dtype=bool).reshape(-1, 2).T


def by_greedy(edges: Edges, n: int) -> Cover:
    """Run Alg. 1: v enters N_u if round(ln deg v) >= round(ln deg u); with equal values the edge is assigned
    to both.

    Reference:
        Lumos, Alg. 1.
    """
    return _cover(edges, _greedy_sets(_neighbours(edges, n)))


def _greedy_sets(neighbours: Sequence[Sequence[int]]) -> list[set[int]]:
    level = [round(math.log(len(nodes))) if nodes else 0 for nodes in neighbours]
    # Alg. 1, l. 1-8
    return [{v for v in nodes if level[v] >= level[u]} for u, nodes in enumerate(neighbours)]


def find_largest(workload: Sequence[int], neighbours: Sequence[Sequence[int]], seed: int, step: int) -> int:
    """Find the node with the largest workload; `step` keys the choice among equals.

    Reference:
        Lumos, Alg. 3.
    """
    # A node without neighbours has an empty tree in every assignment, and is no candidate.
    # Alg. 3, l. 1-9: operation 1, l. 14-15
    candidates = [
        v for v, nodes in enumerate(neighbours) if nodes and all(workload[v] >= workload[w] for w in nodes)
    ]
    # Alg. 3, l. 10-12: operation 2, l. 17
    maxima = [v for v in candidates if all(workload[v] >= workload[w] for w in candidates)]
    # Alg. 3, l. 13
    return maxima[choose_among(seed, step, _ids(*maxima))]


def by_metropolis(
    edges: Edges, n: int, *, steps: int, temperature: float, seed: int
) -> tuple[Cover, list[int]]:
    """Run Alg. 1 and then T = `steps` steps of Alg. 2, with the temperature of Eq. (18).

    Returns:
        The best cover (among equals the earliest), and the largest workload before every step and after the
        last.

    Reference:
        Lumos, Algs. 1 to 3.
    """
    neighbours = _neighbours(edges, n)
    assigned = _greedy_sets(neighbours)
    if not edges.size:
        return _cover(edges, assigned), [0]
    best, lowest, history = [set(s) for s in assigned], math.inf, []
    for step in range(steps + 1):  # Alg. 2, l. 1
        workload = [len(s) for s in assigned]
        u = find_largest(workload, neighbours, seed, 2 * step)  # Alg. 2, l. 2
        f = workload[u]
        history.append(f)
        if f < lowest:
            best, lowest = [set(s) for s in assigned], f
        if step == steps:
            break
        k = number_of_moves(seed, step, u, f)  # l. 3
        # Sorted, because the draws must not depend on the order of a set.
        own = torch.tensor(sorted(assigned[u]))  # l. 4
        draws = pair_draws(fold(seed, "balance", "neighbours", step), torch.full_like(own, u), own, n)
        chosen = own[draws.argsort(descending=True)[:k]].tolist()
        proposed = [set(s) for s in assigned]
        for v in chosen:  # l. 5, Eq. (17)
            proposed[u].remove(v)
            proposed[v].add(u)
        workload = [len(s) for s in proposed]
        other = find_largest(workload, neighbours, seed, 2 * step + 1)  # l. 6
        # l. 7-8, Eq. (18)
        if is_accepted(fold(seed, "balance", "accept", step), u, other, n, workload[other] - f, temperature):
            assigned = proposed
    return _cover(edges, best), history


def by_local_rule(
    edges: Edges, n: int, *, rounds: int, shuffle_rounds: int, seed: int
) -> tuple[Cover, list[int]]:
    """Run the local rule of balancer=local: every edge is assigned to one node.

    Args:
        rounds: Largest number of rounds in which an edge moves to a node whose workload is smaller by two.
        shuffle_rounds: Number of rounds after these, in which a smaller workload is enough.

    Returns:
        The cover, and the largest workload at the start and after each round.

    Reference:
        docs/papers/lumos.md, "Our local rule".
    """
    neighbours = _neighbours(edges, n)
    level = [round(math.log(len(nodes))) if nodes else 0 for nodes in neighbours]
    assignee = {}
    tie = fold(seed, "balance", "tie")
    for u, v in edges.T.tolist():
        low, high = min(u, v), max(u, v)
        lower_takes = level[low] < level[high] or (
            level[low] == level[high] and float(pair_draws(tie, _ids(low), _ids(high), n)) < 0.5
        )
        assignee[low, high] = low if lower_takes else high
    if not assignee:
        return np.zeros((2, 0), dtype=bool), [0]
    history = [int(np.bincount(list(assignee.values())).max())]

    # All nodes decide on the workloads from before the round, as clients do that compare once.
    def one_round(number: int, margin: int) -> bool:
        workload = np.bincount(list(assignee.values()), minlength=n)
        offers: dict[int, list[int]] = {}
        to_offer, to_take = (fold(seed, "balance", kind, number) for kind in ("offer", "take"))
        for u in range(n):
            able = [
                v
                for v in neighbours[u]
                if _assignee(assignee, u, v) == u and workload[u] > workload[v] + margin
            ]
            if able:
                draws = pair_draws(to_offer, _ids(*[u] * len(able)), _ids(*able), n)
                offers.setdefault(able[int(draws.argmax())], []).append(u)
        for v, offering in offers.items():
            draws = pair_draws(to_take, _ids(*[v] * len(offering)), _ids(*offering), n)
            u = offering[int(draws.argmax())]
            assignee[min(u, v), max(u, v)] = v
        return bool(offers)

    while len(history) <= rounds and one_round(len(history), 1):
        history.append(int(np.bincount(list(assignee.values())).max()))
    for _ in range(shuffle_rounds):
        one_round(len(history), 0)
        history.append(int(np.bincount(list(assignee.values())).max()))
    assigned: list[set[int]] = [set() for _ in range(n)]
    for (low, high), u in assignee.items():
        assigned[u].add(high if u == low else low)
    return _cover(edges, assigned), history


def filled(edges: Edges, cover: Cover, n: int, *, seed: int) -> Cover:
    """Assign edges to their other node too, up to the largest workload (fill_trees).

    Reference:
        docs/papers/lumos.md, "Filling the trees".
    """
    result, workload, key = cover.copy(), workloads(edges, cover, n), fold(seed, "balance", "fill")
    for u in range(n):
        side, edge = np.nonzero((edges == u) & ~cover)
        other = torch.from_numpy(edges[1 - side, edge])
        draws = pair_draws(key, torch.full_like(other, u), other, n)
        room = int(workload.max() - workload[u])
        taken = draws.argsort(descending=True)[:room].numpy()
        result[side[taken], edge[taken]] = True
    return result


def _assignee(assignee: dict[tuple[int, int], int], u: int, v: int) -> int:
    return assignee[min(u, v), max(u, v)]
