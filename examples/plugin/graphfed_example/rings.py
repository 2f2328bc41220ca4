"""The data set `rings`: rings of nodes, with a few edges between them."""

import numpy as np

from graphfed.data.datasets import DatasetSpec
from graphfed.data.graphs.graph import Graph, make_graph

__all__ = ["RINGS", "make_rings"]


def make_rings(*, rings: int = 30, length: int = 100, noise: float = 1.0, seed: int = 0) -> Graph:
    """Make a graph whose nodes lie on rings; the rings take turns in belonging to three classes.

    Args:
        rings: How many rings there are, at least 3.
        length: Nodes of a ring, at least 3.
        noise: Standard deviation of the features around those of the class.
        seed: Of the features and of the edges between rings.

    Returns:
        A graph of N = rings * length nodes and 8 features; every tenth node has an edge to a random one.
    """
    rng = np.random.default_rng(seed)
    nodes = np.arange(rings * length)
    ring, position = nodes // length, nodes % length
    labels = ring % 3
    after = ring * length + (position + 1) % length
    chords = np.stack([nodes[::10], rng.permutation(nodes)[: len(nodes[::10])]])
    edges = np.concatenate([np.stack([nodes, after]), chords], axis=1)
    features = np.eye(3, 8)[labels] + noise * rng.normal(size=(len(nodes), 8))
    return make_graph("rings", features.astype(np.float32), labels, edges)


RINGS = DatasetSpec(
    title="generated rings of nodes with a few edges between them: 3 000 nodes, 8 features, 3 classes",
    task="classification",
    load=make_rings,
    default_split="per_class",
    source="generated",
    citation="",
)
