"""Public graphs that are stored as one npz file each: facebook (and a version with dense features), lastfm,
dblp, physics (and a sample of it).

An npz file holds these arrays:

    edges          [m, 2] integers, one row per edge; the direction does not matter
    labels         [N] integers
    label_names    the names of the labels, optional
    feat_indptr    [N + 1] and feat_indices [nnz]: the features as csr, with num_features columns
    feat_values    [nnz], optional; 1 everywhere if absent

No array may be a pickled object, and no array is converted before its type and range are checked. If the
feature arrays are absent, only the structure can be loaded.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from graphfed.data.dropped import edges_dropped, names_dropped
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.npz_files import NpzFile
from graphfed.data.sparse import MAX_WIDTH, csr_from_arrays
from graphfed.errors import InputError

#: The arrays that a file may hold.
ARRAYS = ("edges", "labels", "label_names", "feat_indptr", "feat_indices", "num_features", "feat_values")


@dataclass(frozen=True)
class NpzSource:
    """A set that one file has: its description, its file below a data folder, and where it comes from.

    Of the nodes, `sample` are drawn at random and kept with the edges among them (None: all). Features are
    reduced to `singular` singular vectors (None: not at all).
    """

    name: str
    title: str
    file: str
    source: str
    citation: str
    default_split: str = "per_class"
    sample: int | None = None
    singular: int | None = None


_GRAPH_DATA = "the public repository EdisonLeeeee/GraphData, folder datasets"
_FACEBOOK = NpzSource(
    "facebook",
    "pages that like each other: 22 470 nodes, 4 714 features, 4 classes",
    "facebook/facebook.npz",
    "the public repository benedekrozemberczki/MUSAE, folder input (Facebook page-page network)",
    "Rozemberczki, Allen, Sarkar: Multi-Scale Attributed Node Embedding, 2021 (GPL-3.0)",
)
_PHYSICS = NpzSource(
    "physics",
    "co-authors in physics: 34 493 nodes, 8 415 features, 5 classes",
    "coauthor_physics/coauthor_physics.npz",
    _GRAPH_DATA,
    "Shchur et al.: Pitfalls of Graph Neural Network Evaluation, 2018 (MIT)",
)
NPZ_SOURCES = {
    source.name: source
    for source in (
        _FACEBOOK,
        replace(
            _FACEBOOK,
            name="facebook_128",
            title="facebook with 128 dense features: projections on singular vectors",
            singular=128,
        ),
        NpzSource(
            "lastfm",
            "listeners in Asia: 7 624 nodes, 18 countries; features incomplete, structure only",
            "lastfm_asia/lastfm_asia_graph.npz",
            "the public repository benedekrozemberczki/karateclub, folder dataset/node_level/lastfm",
            "Rozemberczki, Sarkar: Characteristic Functions on Graphs, CIKM 2020 (GPL-3.0)",
            # The smallest class has 16 nodes, and the default split "per_class" trains on 20 of each class.
            default_split="random:0.5,0.25,0.25",
        ),
        NpzSource(
            "dblp",
            "citations: 17 716 nodes, 1 639 features, 4 classes",
            "dblp/dblp.npz",
            _GRAPH_DATA,
            "Pan et al.: Tri-Party Deep Network Representation, IJCAI 2016 (MIT)",
        ),
        _PHYSICS,
        replace(
            _PHYSICS,
            name="physics_10k",
            title="10 000 of the nodes of physics, drawn at random, with the edges among them",
            sample=10_000,
        ),
    )
}


def find_npz(roots: list[Path], source: NpzSource) -> tuple[Path | None, list[str]]:
    """Find the file of a set, None if it is not found; and what is missing of the set."""
    place = next((path for path in _candidates(roots, source) if path.is_file()), None)
    file = Path(source.file).name
    if place is None:
        return None, [file]
    try:
        with _open(place, source) as arrays:
            return place, [] if "feat_indptr" in arrays else [f"features in {file}"]
    except InputError:
        return place, [f"a readable {file}"]


def load_npz(source: NpzSource, roots: list[Path], structure_only: bool) -> Graph:
    """Load the graph of a set, with csr features [N, F] float32, or dense ones if they are reduced."""
    place = next((path for path in _candidates(roots, source) if path.is_file()), None)
    if place is None:
        looked = ", ".join(str(path) for path in _candidates(roots, source))
        raise InputError(
            f"data set {source.name!r} was not found; searched: {looked}. Set GRAPHFED_DATA or the data "
            f"folder to the folder that has it, or get the data from {source.source} and convert it to the "
            "npz form that graphfed/data/graphs/npz.py describes"
        )
    with _open(place, source) as arrays:
        labels = arrays.take("labels", "iu", (None,), "integers [N]")
        if not structure_only and "feat_indptr" not in arrays:
            raise InputError(
                f"data set {source.name!r}: {place} does not have the features of its {len(labels)} nodes. "
                f"Training needs features: get the whole set from {source.source}, or use another data set"
            )
        x = None if structure_only else _features(arrays, len(labels))
        names = _names(arrays, len(labels)) if "label_names" in arrays else ()
        edges = arrays.take("edges", "iu", (None, 2), "integers [m, 2], one row per edge")
        if source.sample is not None:
            x, labels, edges = _sampled(source.sample, x, labels, edges)
        features = x if x is None or source.singular is None else _reduced(x, source.singular)
        try:
            graph = make_graph(source.name, features, labels, edges.T, class_names=names)
        except InputError as error:
            arrays.refuse(str(error))
        unread = names_dropped(arrays.names, ARRAYS, "array", place.name)
        lost = edges_dropped([edges.T.astype(np.int64)], graph.num_nodes, graph.num_edges, directed=False)
        return replace(graph, dropped=(*lost, *unread))


def _candidates(roots: list[Path], source: NpzSource) -> list[Path]:
    return [place for root in roots for place in (root / source.file, root / Path(source.file).name)]


def _open(place: Path, source: NpzSource) -> NpzFile:
    return NpzFile(place, f"get it again from {source.source}")


def _names(arrays: NpzFile, n: int) -> tuple[str, ...]:
    names = arrays.take("label_names", "U", (None,), "a vector of texts, one per class")
    if len(names) > n:
        arrays.refuse(
            f"array 'label_names' has {len(names)} names; expected at most one for each of the {n} nodes"
        )
    return tuple(names.tolist())


def _features(arrays: NpzFile, n: int) -> sp.csr_matrix:
    indptr, indices = arrays.take("feat_indptr"), arrays.take("feat_indices")
    width = int(arrays.take("num_features", "iu", (), f"one whole number, at most {MAX_WIDTH}").item())
    if not 0 <= width <= MAX_WIDTH:
        arrays.refuse(f"array 'num_features' is {width}; expected a whole number from 0, at most {MAX_WIDTH}")
    given = "feat_values" in arrays
    values = arrays.take("feat_values") if given else np.ones(indices.shape, np.float32)
    try:
        return csr_from_arrays(values, indices, indptr, (n, width))
    except ValueError as error:
        arrays.refuse(f"the features are damaged ({error})")


def _sampled(
    count: int, x: sp.csr_matrix | None, labels: np.ndarray, edges: np.ndarray
) -> tuple[sp.csr_matrix | None, np.ndarray, np.ndarray]:
    """Keep `count` nodes, the same in every process, and the edges among them."""
    import torch

    from graphfed.random import fold, uniform

    # A keyed draw for each node is the same in every process and on every machine.
    draws = uniform(fold(0, "sampled nodes"), torch.arange(len(labels)))[:, 0]
    kept = np.sort(np.argsort(draws.numpy(), kind="stable")[:count])
    number = np.full(len(labels), -1)
    number[kept] = np.arange(len(kept))
    edges = number[edges]
    return None if x is None else x[kept], labels[kept], edges[(edges >= 0).all(1)]


def _reduced(x: sp.csr_matrix, count: int) -> np.ndarray:
    """Project the features [N, F] on their k first singular vectors, [N, k] float32, the largest first.

    Each column is scaled to a largest size of 1.
    """
    # A fixed start vector: a random one would change the last bits of the features.
    start = np.ones(min(x.shape))
    _, values, vectors = scipy.sparse.linalg.svds(x.astype(np.float64), k=count, v0=start)
    vectors = vectors[np.argsort(-values, kind="stable")]
    # The sign of a singular vector is arbitrary: its largest entry is positive.
    largest = np.abs(vectors).argmax(1)
    vectors *= np.sign(vectors[np.arange(count), largest])[:, None]
    projected = np.asarray(x @ vectors.T)
    reduced: np.ndarray = projected / np.abs(projected).max(0)
    return reduced.astype(np.float32)
