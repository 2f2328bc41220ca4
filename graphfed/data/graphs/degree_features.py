"""Features for nodes of graphs that have none: what every client knows of its own nodes, their degrees.

Means over neighbours, or triangles, would say more, but a client does not know the neighbours of a node at
another client. The features are fixed, so a trained model can predict for another graph.
"""

from dataclasses import replace

import numpy as np

from graphfed.data.graphs.graph import Graph

#: The number of orders of magnitude, to the base 2, that are distinguished.
MAGNITUDES = 16
NAMES = (
    "degree",
    "degree 0",
    *(f"degree {2**b - 1:,} to {2 ** (b + 1) - 2:,}" for b in range(1, MAGNITUDES - 1)),
    f"degree {2 ** (MAGNITUDES - 1) - 1:,} or more",
)
REMARK = (
    f"the data has no features; the degree of a node and its order of magnitude are used ({len(NAMES)} "
    "features); give the nodes features (x) if there are others"
)


def with_degree_features(graph: Graph) -> Graph:
    """Give a graph without features the degree of every node and its order of magnitude, with a remark."""
    if graph.x is not None:
        return graph
    degree = np.bincount(graph.edges.ravel(), minlength=graph.num_nodes)
    magnitude = np.minimum(np.log2(degree + 1).astype(int), MAGNITUDES - 1)
    x = np.zeros((graph.num_nodes, len(NAMES)), dtype=np.float32)
    x[:, 0] = degree
    x[np.arange(graph.num_nodes), 1 + magnitude] = 1
    return replace(graph, x=x, feature_names=NAMES, remarks=(*graph.remarks, REMARK))
