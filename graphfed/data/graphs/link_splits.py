"""Splits of a graph's edges into train, val and test for link prediction, with as many negative pairs.

A negative pair is a pair of nodes without an edge. Training sees the graph with the training edges only
(`training_graph`), so no other edge can be in a partition, a cohort or a degree. Shapes: N nodes, m
undirected edges, L scored pairs.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graphfed.data.content import content_hash
from graphfed.data.graphs.graph import Graph, Held
from graphfed.data.graphs.splits import fractions_in
from graphfed.data.partitions.tables import Partition
from graphfed.data.seeding import generator
from graphfed.errors import InputError, shown

#: The fractions of train, val and test in the Lumos paper.
DEFAULT_EDGES = "edges:0.8,0.05,0.15"
#: The parts of the split whose pairs are scored; `part` columns hold the position in this tuple.
PARTS = ("val", "test")


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """The edges for training, validation and test, and the negative pairs for validation and test.

    The three masks of the whole graph's edges, bool [m], are disjoint; an edge may be in no part. Negative
    pairs, int64 [2, n], u < v, are distinct, have no edge in the whole graph, and are as many as the edges of
    their part.
    """

    name: str
    edges: np.ndarray
    graph_hash: str
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray
    val_negative: np.ndarray
    test_negative: np.ndarray

    @cached_property
    def hash(self) -> str:
        """The SHA-256 hash (hexadecimal) of masks and negative pairs. The name does not change it."""
        names = ("train", "val", "test", "val_negative", "test_negative")
        return content_hash({name: getattr(self, name) for name in names})

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """List the scored pairs: their nodes [2, L], whether each is an edge [L], and its part [L]."""
        blocks = [
            (self.edges[:, self.val], True, 0),
            (self.val_negative, False, 0),
            (self.edges[:, self.test], True, 1),
            (self.test_negative, False, 1),
        ]
        ends = np.concatenate([pairs for pairs, _, _ in blocks], axis=1)
        sizes = [pairs.shape[1] for pairs, _, _ in blocks]
        label = np.repeat([is_edge for _, is_edge, _ in blocks], sizes)
        return ends, label, np.repeat([part for _, _, part in blocks], sizes).astype(np.uint8)


def make_edge_split(graph: Graph, spec: str, seed: int) -> EdgeSplit:
    """Draw a split of the edges.

    `spec` is "edges:A,B,C", the fractions of the edges for train, val and test, with A + B + C <= 1.
    "default" and "edges" mean "edges:0.8,0.05,0.15".
    """
    kind, _, numbers = spec.partition(":")
    if kind.lower() not in ("default", "edges"):
        raise InputError(
            f"split {shown(spec)} is a split of nodes, and link prediction needs a split of edges; use "
            f"{DEFAULT_EDGES!r}, or omit the split"
        )
    fractions = fractions_in(spec, numbers or DEFAULT_EDGES.partition(":")[2], DEFAULT_EDGES)
    m, n = graph.num_edges, graph.num_nodes
    rng = generator(seed, "split/edges")
    # Rounding the ends and not the sizes keeps every edge in at most one part.
    parts = np.split(rng.permutation(m), np.rint(np.cumsum(fractions) * m).astype(int))[:3]
    for part, edges in zip(("train", "val", "test"), parts, strict=True):
        if not len(edges):
            raise InputError(
                f"split {shown(spec)} of the {m} edges of {graph.name!r} leaves no edge for {part}, and "
                "every part needs at least one edge; use a larger fraction, or a graph with more edges"
            )
    masks = np.zeros((3, m), dtype=bool)
    for mask, edges in zip(masks, parts, strict=True):
        mask[edges] = True
    needed, free = len(parts[1]) + len(parts[2]), n * (n - 1) // 2 - m
    if free < needed:
        raise InputError(
            f"{graph.name!r} has {free} pairs of nodes without an edge, and the split needs {needed}, one "
            "for each validation and test edge; use smaller fractions for these, or a sparser graph"
        )
    # Ranks are drawn, because a list of all pairs without an edge grows with the square of N.
    drawn = pairs_that_are_no_edge(graph.edges, n, rng.choice(free, needed, replace=False))
    return EdgeSplit(
        "edges:" + ",".join(f"{f:g}" for f in fractions),
        graph.edges,
        graph.hash,
        masks[0],
        masks[1],
        masks[2],
        drawn[:, : len(parts[1])],
        drawn[:, len(parts[1]) :],
    )


def pairs_that_are_no_edge(edges: np.ndarray, n: int, rank: np.ndarray) -> np.ndarray:
    """Return the negative pairs [2, k] with the given ranks [k], without listing all negative pairs.

    The pairs u < v without an edge are ranked in the order of (u, v), from rank 0. `edges` has u < v, too,
    and is sorted by (u, v).
    """
    u = np.arange(n, dtype=np.int64)
    first = u * (2 * n - u - 1) // 2  # the position of the pair (u, u + 1) among all pairs
    edge = first[edges[0]] + edges[1] - edges[0] - 1  # the position of each edge among all pairs
    # Before the i-th edge there are edge[i] - i negative pairs. So the negative pair of rank r comes after
    # every edge i with edge[i] - i <= r, and its position is r plus the number of these edges.
    pair = rank + np.searchsorted(edge - np.arange(len(edge)), rank, side="right")
    u = np.searchsorted(first, pair, side="right") - 1
    return np.stack([u, u + 1 + pair - first[u]])


def training_graph(graph: Graph, split: EdgeSplit) -> Graph:
    """Remove all edges except the training edges, also from `held`."""
    held = graph.held
    if held is not None:
        kept = split.train[held.edge]
        number = np.cumsum(split.train) - 1
        held = Held(held.client, held.node, held.owner, held.edge_client[kept], number[held.edge[kept]])
    weight, directed = graph.edge_weight, graph.directed
    edges = np.ascontiguousarray(graph.edges[:, split.train])
    if directed is not None:
        directed = directed.select(np.sort(directed.between(*edges)[1]))
    return replace(
        graph,
        edges=edges,
        edge_weight=None if weight is None else weight[split.train],
        held=held,
        directed=directed,
    )


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """The scored pairs, sorted by (client, id, other_id), [L] each.

    `client` scores the pair, whose node `id` it holds; `other_client`, which may be the same, holds the other
    node. `label` is whether the pair is an edge, and `part` a position in `PARTS`.
    """

    client: np.ndarray
    id: np.ndarray
    other_client: np.ndarray
    other_id: np.ndarray
    label: np.ndarray
    part: np.ndarray


def scored_pairs(split: EdgeSplit, partition: Partition) -> ScoredPairs:
    """Choose the client that scores each pair: that of one of its two nodes, each of which is at one client.

    A random bit that is keyed by the pair selects the node, so the order of the node numbers does not make
    some clients score more pairs than others.
    """
    import torch

    from graphfed.random import fold, uniform

    ends, label, part = split.pairs()
    n = int(max(split.edges.max(initial=-1), ends.max(initial=-1), partition.held_node.max(initial=-1))) + 1
    clients_of_node = np.bincount(partition.held_node, minlength=n)
    # A node in no scored pair may be at no client.
    wrong = clients_of_node > 1
    wrong[ends] |= clients_of_node[ends] != 1
    if wrong.any():
        node = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"link prediction needs every node at exactly one client, but partition {partition.name!r} has "
            f"node {node} at {int(clients_of_node[node])} clients; use a partition that assigns each node to "
            "one client, such as 'label_dirichlet'"
        )
    row = np.zeros(n, dtype=np.int64)
    row[partition.held_node] = np.arange(len(partition.held_node))
    # The id of the pair keys the draw, so every process that computes it gets the same bit.
    coin = uniform(fold(0, "links/scored by"), torch.from_numpy(ends[0] * n + ends[1]))[:, 0].numpy() < 0.5
    local, other = row[np.where(coin, *ends)], row[np.where(coin, *ends[::-1])]
    order = np.lexsort((partition.held_id[other], local))
    local, other = local[order], other[order]
    return ScoredPairs(
        partition.held_client[local],
        partition.held_id[local],
        partition.held_client[other],
        partition.held_id[other],
        label[order],
        part[order],
    )
