"""`social`: a generated social network with communities, heavy-tailed degrees and features.

Edges follow a degree-corrected block model (Karrer and Newman, 2011). Node i has a weight w_i with a
power-law tail (exponent 2.5). One endpoint of an edge is drawn by weight from all nodes. The other endpoint
is drawn by weight from the same community with probability `homophily`, and from all nodes otherwise. The
community is the class to predict.

Binary features: each community favours some features, and each node has a few. Dense features: every node has
all features, the sum of its community's direction and noise. Work and memory grow with nodes + edges, and for
dense features with nodes x features.
"""

import numpy as np
import scipy.sparse as sp

from graphfed.data.graphs.graph import Graph, make_graph, sorted_unique
from graphfed.data.seeding import generator
from graphfed.errors import InputError

TAIL = 2.5  # exponent of the degree distribution
FEATURES_PER_NODE = 8  # the mean number, before repeated features are merged
DIRECTION = 2.0  # the length of a community's dense direction; a feature's noise has standard deviation 1
FAVOURED = 0.3  # the fraction of a node's features that are drawn from its community's ranking
MAX_TOP_UPS = 100
# Larger numbers are likely typing errors: drawing 10^7 nodes of degree 10 takes about 8 GB.
MAX_NODES = 10**7
MAX_EDGES = 10**8
MAX_RANKINGS = 10**8  # communities x features
MAX_DENSE = 10**9  # nodes x dense features: 4 GB


def make_social(
    *,
    num_nodes: int = 2000,
    communities: int = 8,
    features: int = 128,
    average_degree: float = 10.0,
    homophily: float = 0.55,
    dense: bool = False,
    seed: int = 0,
    structure_only: bool = False,
) -> Graph:
    """Generate a social network with exactly round(num_nodes * average_degree / 2) edges.

    An edge is drawn inside a community with the probability `homophily`. `dense` features are the sum of a
    random direction of the node's community and normal noise, in numpy; otherwise they are binary, in csr.
    Edges and communities do not depend on it.
    """
    _check(num_nodes, communities, features, average_degree, homophily, dense)
    # All parts draw from one generator in a fixed order, so that order is part of the data.
    rng = generator(seed, "social")
    # The sizes of communities fall as 1/sqrt(rank), and every community has at least one node.
    size = (1.0 / np.sqrt(np.arange(1, communities + 1))).cumsum()
    y = np.searchsorted(size / size[-1], (np.arange(num_nodes) + 0.5) / num_nodes)
    y[:communities] = np.arange(communities)
    y.sort()
    edges = _edges(rng, y, communities, int(np.rint(num_nodes * average_degree / 2)), homophily)
    # Shuffle the node numbers, which are ordered by community so far.
    number = rng.permutation(num_nodes)
    shuffled = np.empty_like(y)
    shuffled[number] = y
    # Features are drawn last, so the rest of the graph does not depend on them.
    x: np.ndarray | sp.csr_matrix | None = None
    if not structure_only:
        x = (
            _dense_features(rng, shuffled, communities, features)
            if dense
            else _features(rng, y, communities, features)[np.argsort(number)]
        )
    return make_graph("social", x, shuffled, number[edges], num_classes=communities)


def _edges(rng: np.random.Generator, y: np.ndarray, communities: int, m: int, homophily: float) -> np.ndarray:
    """Draw m distinct edges [2, m] without self loops; y [N] is sorted."""
    n = len(y)
    # Pareto weights. Without the cap, one node could have a constant fraction of all edges.
    weight = np.minimum(rng.random(n) ** (-1.0 / (TAIL - 1.0)), np.sqrt(n))
    total = np.cumsum(weight)
    # Community c is the interval [start[c], stop[c]) of the cumulative weights, so a draw inside a community
    # is a uniform number in its interval.
    stop = total[np.searchsorted(y, np.arange(communities), side="right") - 1]
    start = np.concatenate(([0.0], stop[:-1]))
    keys = np.zeros(0, dtype=np.int64)
    for _ in range(MAX_TOP_UPS):
        missing = m - len(keys)
        if not missing:
            return np.stack((keys // n, keys % n))
        draws = missing + missing // 8 + 16  # some are repetitions
        u = _draw(total, np.sort(rng.random(draws)) * total[-1])  # sorted searches are several times faster
        inside = rng.random(draws) < homophily
        low = np.where(inside, start[y[u]], 0.0)
        high = np.where(inside, stop[y[u]], total[-1])
        v = _draw(total, low + rng.random(draws) * (high - low))
        new = (np.minimum(u, v) * n + np.maximum(u, v))[u != v]
        new = sorted_unique(new)
        new = new[~np.isin(new, keys)] if len(keys) else new
        keys = np.concatenate((keys, rng.permutation(new)[:missing]))
    raise InputError(
        f"social: {m} different edges could not be drawn among {n} nodes in {communities} communities; "
        "use a smaller average_degree, more num_nodes or a lower homophily"
    )


def _draw(total: np.ndarray, at: np.ndarray) -> np.ndarray:
    # Rounding may give the end of the last interval, which is no index of a node.
    return np.minimum(np.searchsorted(total, at, side="right"), len(total) - 1)


def _features(rng: np.random.Generator, y: np.ndarray, communities: int, features: int) -> sp.csr_matrix:
    n = len(y)
    # The popularity of a feature falls as 1/rank. There is one ranking per community and a common one.
    popularity = (1.0 / np.arange(1, features + 1)).cumsum()
    popularity /= popularity[-1]
    common = rng.permutation(features)
    ranking = rng.permuted(np.tile(np.arange(features), (communities, 1)), axis=1)
    count = 1 + rng.poisson(FEATURES_PER_NODE - 1, size=n)
    node = np.repeat(np.arange(n), count)
    rank = np.minimum(np.searchsorted(popularity, rng.random(len(node)), side="right"), features - 1)
    favoured = rng.random(len(node)) < FAVOURED
    column = np.where(favoured, ranking[y[node], rank], common[rank])
    x = sp.csr_matrix((np.ones(len(node), dtype=np.float32), (node, column)), shape=(n, features))
    x.sum_duplicates()
    x.data[:] = 1.0
    return x


def _dense_features(rng: np.random.Generator, y: np.ndarray, communities: int, features: int) -> np.ndarray:
    """Draw dense features, float32 [N, F]: the direction of each node's community y [N] plus noise."""
    direction = rng.standard_normal((communities, features), dtype=np.float32)
    direction *= DIRECTION / np.linalg.norm(direction, axis=1, keepdims=True)
    x = rng.standard_normal((len(y), features), dtype=np.float32)
    x += direction[y]
    return x


def _check(
    num_nodes: int, communities: int, features: int, average_degree: float, homophily: float, dense: bool
) -> None:
    whole = {"num_nodes": num_nodes, "communities": communities, "features": features}
    for option, value in whole.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InputError(f"social: {option}={value!r} must be a whole number of at least 1")
    for option, number in {"average_degree": average_degree, "homophily": homophily}.items():
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InputError(f"social: {option}={number!r} must be a number")
    if num_nodes > MAX_NODES:
        raise InputError(f"social: num_nodes={num_nodes} is too many; use at most {MAX_NODES}")
    if communities > num_nodes:
        raise InputError(
            f"social: communities={communities} is more than num_nodes={num_nodes}; use at least one node "
            "per community"
        )
    if not 0 <= average_degree <= (num_nodes - 1) / 2:
        raise InputError(
            f"social: average_degree={average_degree:g} must be from 0 to (num_nodes - 1) / 2, which is "
            f"{(num_nodes - 1) / 2:g} for num_nodes={num_nodes}"
        )
    if num_nodes * average_degree / 2 > MAX_EDGES:
        raise InputError(
            f"social: num_nodes={num_nodes} of average_degree={average_degree:g} have more than {MAX_EDGES} "
            "edges; use a smaller average_degree"
        )
    if communities * features > MAX_RANKINGS:
        raise InputError(
            f"social: communities={communities} times features={features} is more than {MAX_RANKINGS}; "
            "use fewer of either"
        )
    if not isinstance(dense, bool):
        raise InputError(f"social: dense={dense!r} cannot be used: expected true or false")
    if dense and num_nodes * features > MAX_DENSE:
        raise InputError(
            f"social: num_nodes={num_nodes} times features={features} is more than {MAX_DENSE} dense "
            "numbers; use fewer of either, or dense=false"
        )
    if not 0 <= homophily <= 1:
        raise InputError(f"social: homophily={homophily:g} must be a fraction from 0 to 1")
