"""Graphs that differ in everything that a default could depend on; graphfed's defaults were chosen on them.

Public graphs (from `--data-dir` or GRAPHFED_DATA) and generated ones. Together they have mean degrees of 2
to 100, sparse and dense binary features, counts, one-hot features, real values on one scale and on very
different scales, 300 to 50 000 nodes, 2 to 50 classes, homophily of 0.1 to 0.9, classes of 1 % to half of
the nodes, and 2 to 50 clients. A generated graph depends only on its name and seed."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from graphfed.data.datasets import load, search_folders
from graphfed.data.graphs.graph import Graph, make_graph

__all__ = ["GRAPHS", "Case", "load_case"]

Array = np.ndarray
Features = Callable[[np.random.Generator, np.ndarray], np.ndarray | sp.csr_matrix]


@dataclass(frozen=True)
class Case:
    """One graph with its split and its partition.

    Attributes:
        name: Of the graph.
        kind: What is special about it.
        split: As in `graphfed run`.
        partition: As in `graphfed run`.
        clients: The number of clients.
        make: The builder of the graph, None for a data set that graphfed knows by name.
    """

    name: str
    kind: str
    split: str
    partition: str
    clients: int
    make: Callable[[], Graph] | None = None


def load_case(case: Case) -> Graph:
    """Return the graph of a case."""
    return load(case.name) if case.make is None else case.make()


# ---- structure ---------------------------------------------------------------------------------------------


def draw_classes(rng: np.random.Generator, shares: Array, num_nodes: int) -> Array:
    """Draw classes [N] int64 with the given proportions [C]; every class has a node."""
    counts = np.maximum(1, np.rint(shares / shares.sum() * num_nodes).astype(int))
    counts[counts.argmax()] += num_nodes - counts.sum()
    return rng.permutation(np.repeat(np.arange(len(shares)), counts))


def draw_edges(
    rng: np.random.Generator,
    y: Array,
    mean_degree: float,
    same: float,
    *,
    next_class: float = 0.0,
    tail: float = 2.5,
) -> Array:
    """Draw edges [2, m] of a degree-corrected block model: one end is drawn by weight; the other from the
    same class with probability `same`, from the following class with probability `next_class`, otherwise from
    all nodes.

    Args:
        tail: Exponent of the power law of the nodes' weights.
    """
    num_nodes, num_classes = len(y), int(y.max()) + 1
    weight = rng.pareto(tail, num_nodes) + 1.0
    order = np.argsort(y, kind="stable")
    reach = np.cumsum(weight[order])
    first = np.searchsorted(y[order], np.arange(num_classes))
    start = np.concatenate([[0.0], reach])[first]
    end = np.concatenate([start[1:], reach[-1:]])
    wanted = round(num_nodes * mean_degree / 2)
    found = np.empty((2, 0), dtype=np.int64)
    for _ in range(50):
        draws = int((wanted - found.shape[1]) * 1.2) + 10
        u = order[np.searchsorted(reach, rng.uniform(0, reach[-1], draws))]
        choice = rng.uniform(size=draws)
        target = np.where(choice < same, y[u], (y[u] + 1) % num_classes)
        low, high = start[target], end[target]
        anywhere = choice >= same + next_class
        low, high = np.where(anywhere, 0.0, low), np.where(anywhere, reach[-1], high)
        v = order[np.minimum(np.searchsorted(reach, rng.uniform(low, high)), num_nodes - 1)]
        pairs = np.stack([np.minimum(u, v), np.maximum(u, v)])[:, u != v]
        found = np.unique(np.concatenate([found, pairs], axis=1), axis=1)
        if found.shape[1] >= wanted:
            break
    kept = np.sort(rng.permutation(found.shape[1])[:wanted])
    return found[:, kept]


# ---- features ----------------------------------------------------------------------------------------------


def binary(rng: np.random.Generator, y: Array, width: int, density: float, signal: float) -> sp.csr_matrix:
    """Draw binary features [N, width] of a mean density; a class moves a feature's log-odds by a normal draw
    of deviation `signal`."""
    base = np.log(density / (1 - density)) + rng.normal(0, 1, width)
    odds = base + rng.normal(0, signal, (int(y.max()) + 1, width))
    rows = [
        rng.uniform(size=(len(part), width)) < 1 / (1 + np.exp(-odds[y[part]])) for part in chunks(len(y))
    ]
    return sp.vstack([sp.csr_matrix(row, dtype=np.float32) for row in rows], format="csr")


def counts(rng: np.random.Generator, y: Array, width: int, rate: float, signal: float) -> sp.csr_matrix:
    """Draw Poisson counts [N, width]; feature rates have a heavy tail, and a class multiplies them by a
    lognormal draw."""
    rates = rate * rng.lognormal(0, 1.5, width) * rng.lognormal(0, signal, (int(y.max()) + 1, width))
    return sp.csr_matrix(rng.poisson(rates[y]).astype(np.float32))


def one_hot(rng: np.random.Generator, y: Array, width: int, sharpness: float) -> sp.csr_matrix:
    """Draw one of `width` categories for each node [N, width], with probabilities that depend on the
    class."""
    taste = rng.dirichlet(np.full(width, 1 / sharpness), int(y.max()) + 1).cumsum(axis=1)
    category = (rng.uniform(size=(len(y), 1)) > taste[y]).sum(axis=1).clip(max=width - 1)
    return sp.csr_matrix((np.ones(len(y), np.float32), (np.arange(len(y)), category)), shape=(len(y), width))


def dense(rng: np.random.Generator, y: Array, width: int, signal: float) -> Array:
    """Draw normal features [N, width] around the mean of the class; each mean has the length `signal`."""
    means = rng.normal(0, 1, (int(y.max()) + 1, width))
    means *= signal / np.linalg.norm(means, axis=1, keepdims=True)
    return (means[y] + rng.normal(0, 1, (len(y), width))).astype(np.float32)


def on_different_scales(rng: np.random.Generator, y: Array, width: int, signal: float) -> Array:
    """Draw features as in `dense`, with the scales of a bank's columns: a third are amounts with a heavy
    tail, a third are far from zero (years), and each has its own unit, from thousandths to millions."""
    z = dense(rng, y, width, signal).astype(np.float64)
    kind = np.arange(width) % 3
    z[:, kind == 0] = np.exp(1.5 * z[:, kind == 0])
    z[:, kind == 1] += 200.0
    return (z * 10.0 ** rng.uniform(-3, 5, width)).astype(np.float32)


def chunks(num_nodes: int, size: int = 10_000) -> list[Array]:
    """Return row numbers in parts that fit in memory."""
    return np.array_split(np.arange(num_nodes), max(1, num_nodes // size))


# ---- the graphs --------------------------------------------------------------------------------------------


def lastfm_with_features() -> Graph:
    """Return the part of LastFM Asia with known features: its first 1 800 nodes and the edges among them."""
    whole = load("lastfm", structure_only=True)
    for folder in search_folders():
        path = folder / "lastfm_asia" / "lastfm_asia_features_first1800.npz"
        if path.is_file():
            break
    with np.load(path) as arrays:
        pointers, columns, width = arrays["feat_indptr"], arrays["feat_indices"], int(arrays["num_features"])
    n = len(pointers) - 1
    x = sp.csr_matrix((np.ones(len(columns), np.float32), columns, pointers), shape=(n, width))
    edges = whole.edges[:, (whole.edges < n).all(axis=0)]
    classes, y = np.unique(whole.y[:n], return_inverse=True)
    return make_graph("lastfm_1800", x=x, y=y, edges=edges, num_classes=len(classes))


def generated(
    name: str,
    num_nodes: int,
    shares: Array,
    mean_degree: float,
    same: float,
    features: Features,
    next_class: float = 0.0,
    noise: float = 0.0,
) -> Callable[[], Graph]:
    """Return the builder of a generated graph. noise: fraction of the nodes whose label is drawn again at
    the end."""

    def make() -> Graph:
        rng = np.random.default_rng(sum(ord(letter) * 31**i for i, letter in enumerate(name)) % 2**32)
        y = draw_classes(rng, shares, num_nodes)
        edges = draw_edges(rng, y, mean_degree, same, next_class=next_class)
        x = features(rng, y)
        anew = rng.uniform(size=num_nodes) < noise
        y[anew] = rng.permutation(y[anew])
        return make_graph(name, x=x, y=y, edges=edges)

    return make


def even(num_classes: int) -> Array:
    return np.ones(num_classes)


def falling(num_classes: int, power: float = 1.0) -> Array:
    return np.arange(1, num_classes + 1) ** -power


def many_binary(width: int, signal: float) -> Features:
    """Draw dense binary features, 28 in 100 of which are set."""
    return lambda rng, y: binary(rng, y, width, 0.28, signal)


FRAUD = np.array([0.99, 0.01])
PHOTO = np.array([369, 1686, 703, 915, 882, 823, 1941, 331])
COMPUTERS = np.array([436, 2142, 1414, 542, 5158, 308, 487, 818, 2156, 291])

FEW = "per_class:20,500,1000"
HALF = "random:0.5,0.25,0.25"

GRAPHS = (
    Case("cora", "public; sparse binary", "public", "label_dirichlet", 10),
    Case("citeseer", "public; sparse binary, isolated nodes", "public", "label_dirichlet", 10),
    Case("dblp", "public; sparse real", FEW, "louvain", 10),
    Case("physics", "public; sparse counts, 34 493 nodes", FEW, "louvain", 5),
    Case("facebook", "public; sparse binary, 22 470 nodes", FEW, "louvain", 20),
    Case("lastfm_1800", "public; 390 set features a node", HALF, "random", 3, lastfm_with_features),
    Case("digits", "built in; real, nearest neighbours", "default", "label_dirichlet", 10),
    Case(
        "copurchase",
        "dense binary, 8 classes, 20 training nodes a class",
        FEW,
        "louvain",
        5,
        generated("copurchase", 7650, PHOTO, 31, 0.79, many_binary(745, 0.1), noise=0.1),
    ),
    Case(
        "copurchase_large",
        "dense binary, majority of 37.5 %",
        FEW,
        "louvain",
        5,
        generated("copurchase_large", 13752, COMPUTERS, 36, 0.72, many_binary(767, 0.08), noise=0.15),
    ),
    Case(
        "tiny",
        "300 nodes, mean degree 2, 2 clients",
        HALF,
        "louvain",
        2,
        generated("tiny", 300, even(2), 2, 0.7, lambda rng, y: dense(rng, y, 8, 1.2)),
    ),
    Case(
        "bank",
        "real values on different scales, 1 % positive",
        HALF,
        "random",
        3,
        generated("bank", 20000, FRAUD, 6, 0.4, lambda rng, y: on_different_scales(rng, y, 12, 3.0)),
    ),
    Case(
        "scales",
        "real values on different scales, even classes",
        HALF,
        "louvain",
        8,
        generated("scales", 6000, even(5), 8, 0.6, lambda rng, y: on_different_scales(rng, y, 15, 1.5)),
    ),
    Case(
        "counts",
        "counts with heavy tails, 10 classes",
        FEW,
        "louvain",
        10,
        generated("counts", 10000, falling(10), 10, 0.55, lambda rng, y: counts(rng, y, 200, 0.5, 0.25)),
    ),
    Case(
        "one_hot",
        "one-hot features of 40 categories, 50 clients",
        HALF,
        "louvain",
        50,
        generated("one_hot", 5000, even(6), 12, 0.5, lambda rng, y: one_hot(rng, y, 40, 4.0)),
    ),
    Case(
        "heterophilous",
        "homophily 0.1: neighbours are of the next class",
        HALF,
        "random",
        5,
        generated(
            "heterophilous", 4000, even(5), 14, 0.0, lambda rng, y: dense(rng, y, 100, 2.0), next_class=0.55
        ),
    ),
    Case(
        "close_knit",
        "mean degree 100, homophily 0.3",
        FEW,
        "label_dirichlet",
        10,
        generated("close_knit", 3000, even(6), 100, 0.18, lambda rng, y: dense(rng, y, 64, 1.5)),
    ),
    Case(
        "fifty_classes",
        "50 classes of 0.4 to 22 %, sparse binary",
        HALF,
        "louvain",
        20,
        generated("fifty_classes", 12000, falling(50), 6, 0.8, lambda rng, y: binary(rng, y, 500, 0.02, 1.0)),
    ),
    Case(
        "large",
        "50 000 nodes, real values, 20 classes",
        HALF,
        "louvain",
        20,
        generated("large", 50000, falling(20, 0.5), 12, 0.6, lambda rng, y: dense(rng, y, 100, 1.5)),
    ),
)  # fmt: skip


def by_name(name: str) -> Case:
    """Return the case with a name."""
    return next(case for case in GRAPHS if case.name == name)


def with_features(graph: Graph, x: Array | sp.csr_matrix) -> Graph:
    """Return the graph with other features."""
    return replace(graph, x=x)
