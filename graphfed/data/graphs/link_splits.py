"""Link prediction: the edges dealt into train, val and test, with pairs that are no edge to tell them from.

Training sees the graph with the training edges only (`training_graph`), so that no other edge can be in a
partition, a cohort or a degree. Shapes: N nodes, m undirected edges, L scored pairs."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from graphfed.data.content import content_hash
from graphfed.data.graphs.graph import Graph, Held
from graphfed.data.graphs.splits import fractions_in
from graphfed.data.partitions.tables import Partition
from graphfed.data.seeding import generator
from graphfed.errors import InputError, shown

__all__ = [
    "DEFAULT_EDGES",
    "PARTS",
    "EdgeSplit",
    "ScoredPairs",
    "make_edge_split",
    "pairs_that_are_no_edge",
    "scored_pairs",
    "training_graph",
]

#: The fractions of the Lumos paper.
DEFAULT_EDGES = "edges:0.8,0.05,0.15"
#: The parts of scored pairs, by number.
PARTS = ("val", "test")


@dataclass(frozen=True, eq=False)
class EdgeSplit:
    """Which edges are trained on, selected on and tested on, and as many pairs that are no edge.

    edges [2, m]: the whole graph's, and graph_hash its hash; train, val, test: bool [m], disjoint; an edge
    may be in none. val_negative, test_negative: int64 [2, n], u < v, different pairs that are no edge of the
    whole graph, as many as there are edges in the part."""

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
        """sha256 (hex) of masks and negatives; the name does not count."""
        names = ("train", "val", "test", "val_negative", "test_negative")
        return content_hash({name: getattr(self, name) for name in names})

    def pairs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All L scored pairs: their nodes [2, L], whether they are edges [L] bool, their part [L] uint8
        (`PARTS`)."""
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
    """The split of the edges that `spec` names: "edges:A,B,C", fractions for train, val and test (A + B + C
    <= 1); "default" and "edges" are "edges:0.8,0.05,0.15".

    Raises InputError for any other spec, a part without an edge, and a graph with too few pairs that are no
    edge."""
    kind, _, numbers = spec.partition(":")
    if kind.lower() not in ("default", "edges"):
        raise InputError(
            f"split {shown(spec)} is of nodes, and link prediction deals the edges; use "
            f"{DEFAULT_EDGES!r}, or leave it out"
        )
    fractions = fractions_in(spec, numbers or DEFAULT_EDGES.partition(":")[2], DEFAULT_EDGES)
    m, n = graph.num_edges, graph.num_nodes
    rng = generator(seed, "split/edges")
    parts = np.split(rng.permutation(m), np.rint(np.cumsum(fractions) * m).astype(int))[:3]
    for part, edges in zip(("train", "val", "test"), parts, strict=True):
        if not len(edges):
            raise InputError(
                f"split {shown(spec)} of the {m} edges of {graph.name!r} leaves none for {part}, and every "
                "part needs one; use a larger fraction, or a graph with more edges"
            )
    masks = np.zeros((3, m), dtype=bool)
    for mask, edges in zip(masks, parts, strict=True):
        mask[edges] = True
    needed, free = len(parts[1]) + len(parts[2]), n * (n - 1) // 2 - m
    if free < needed:
        raise InputError(
            f"{graph.name!r} has {free} pairs of nodes that are no edge, fewer than the {needed} that are "
            "told from its validation and test edges; use smaller fractions for these, or a sparser graph"
        )
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
    """The pairs u < v of the given ranks [k] among those of the nodes 0..n-1 that are no edge, in the
    order of (u, v): [2, k] int64. edges: [2, m], u < v, sorted by (u, v)."""
    u = np.arange(n, dtype=np.int64)
    first = u * (2 * n - u - 1) // 2  # the number of the pair (u, u + 1) among all pairs
    known = first[edges[0]] + edges[1] - edges[0] - 1
    # Below the i-th edge lie known[i] - i pairs that are none.
    pair = rank + np.searchsorted(known - np.arange(len(known)), rank, side="right")
    u = np.searchsorted(first, pair, side="right") - 1
    return np.stack([u, u + 1 + pair - first[u]])


def training_graph(graph: Graph, split: EdgeSplit) -> Graph:
    """The graph with its training edges only, and their weights."""
    held = graph.held
    if held is not None:
        kept = split.train[held.edge]
        number = np.cumsum(split.train) - 1
        held = Held(held.client, held.node, held.owner, held.edge_client[kept], number[held.edge[kept]])
    weight = graph.edge_weight
    return replace(
        graph,
        edges=np.ascontiguousarray(graph.edges[:, split.train]),
        edge_weight=None if weight is None else weight[split.train],
        held=held,
    )


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """The scored pairs and who scores them, sorted by (client, id, other_id).

    client, id [L]: of the node at the client that scores the pair; other_client, other_id [L]: of the other
    node; label [L] bool: whether it is an edge; part [L] uint8 (`PARTS`)."""

    client: np.ndarray
    id: np.ndarray
    other_client: np.ndarray
    other_id: np.ndarray
    label: np.ndarray
    part: np.ndarray


def scored_pairs(split: EdgeSplit, partition: Partition) -> ScoredPairs:
    """Who scores which pair: the client of one of its nodes, by a coin that the pair's nodes key, so
    that no numbering of the nodes makes some clients score more.

    InputError where a node is at no client, or at several."""
    import torch

    from graphfed.random import fold, uniform

    ends, label, part = split.pairs()
    n = int(max(split.edges.max(initial=-1), ends.max(initial=-1), partition.held_node.max(initial=-1))) + 1
    holders = np.bincount(partition.held_node, minlength=n)
    if (holders[np.unique(ends)] != 1).any() or holders.max(initial=0) > 1:
        node = int(np.flatnonzero(holders != 1)[0])
        raise InputError(
            f"link prediction needs every node at one client, but partition {partition.name!r} has node "
            f"{node} at {int(holders[node])}; use one that deals the nodes, as 'label_dirichlet'"
        )
    row = np.zeros(n, dtype=np.int64)
    row[partition.held_node] = np.arange(len(partition.held_node))
    coin = uniform(fold(0, "links/scored by"), torch.from_numpy(ends[0] * n + ends[1]))[:, 0].numpy() < 0.5
    mine, other = row[np.where(coin, *ends)], row[np.where(coin, *ends[::-1])]
    order = np.lexsort((partition.held_id[other], mine))
    mine, other = mine[order], other[order]
    return ScoredPairs(
        partition.held_client[mine],
        partition.held_id[mine],
        partition.held_client[other],
        partition.held_id[other],
        label[order],
        part[order],
    )
