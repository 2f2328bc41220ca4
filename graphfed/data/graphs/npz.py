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
    """The location of a set's file below a data folder, and where it comes from.

    Attributes:
        partial: A file in the same folder that holds the features of the first nodes only, if there is one.
        sample: The number of nodes, drawn at random, that are kept with the edges among them; None: all.
        singular: The number of singular vectors to which the features are reduced; None: the features
            themselves.
    """

    name: str
    folder: str
    file: str
    source: str
    partial: str | None = None
    sample: int | None = None
    singular: int | None = None


_FACEBOOK = NpzSource(
    "facebook",
    "facebook",
    "facebook.npz",
    "the public repository benedekrozemberczki/MUSAE, folder input (Facebook page-page network)",
)
_PHYSICS = NpzSource(
    "physics",
    "coauthor_physics",
    "coauthor_physics.npz",
    "the public repository EdisonLeeeee/GraphData, folder datasets",
)
NPZ_SOURCES = {
    source.name: source
    for source in (
        _FACEBOOK,
        replace(_FACEBOOK, name="facebook_128", singular=128),
        NpzSource(
            "lastfm",
            "lastfm_asia",
            "lastfm_asia_graph.npz",
            "the public repository benedekrozemberczki/karateclub, folder dataset/node_level/lastfm",
            partial="lastfm_asia_features_first1800.npz",
        ),
        NpzSource(
            "dblp", "dblp", "dblp.npz", "the public repository EdisonLeeeee/GraphData, folder datasets"
        ),
        _PHYSICS,
        replace(_PHYSICS, name="physics_10k", sample=10_000),
    )
}


def find_npz(roots: list[Path], source: NpzSource) -> tuple[Path | None, list[str]]:
    """Find the file of a set, None if it is not found; and what is missing of the set."""
    place = next((path for path in _candidates(roots, source) if path.is_file()), None)
    if place is None:
        return None, [source.file]
    try:
        with _open(place, source) as arrays:
            return place, [] if "feat_indptr" in arrays else [f"features in {source.file}"]
    except InputError:
        return place, [f"a readable {source.file}"]


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
        labels = _integers(arrays, "labels", ndim=1)
        if not structure_only and "feat_indptr" not in arrays:
            raise InputError(
                f"data set {source.name!r}: {place} does not have the features of its {len(labels)} nodes"
                f"{_partial(place, source)}. Training needs features: get the whole set from "
                f"{source.source}, or use another data set"
            )
        x = None if structure_only else _features(arrays, len(labels))
        names = _names(arrays, len(labels)) if "label_names" in arrays else ()
        edges = _integers(arrays, "edges", ndim=2)
        if edges.shape[1] != 2:
            arrays.refuse(f"array 'edges' has shape {edges.shape}; expected [m, 2], one row per edge")
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
    return [place for root in roots for place in (root / source.folder / source.file, root / source.file)]


def _open(place: Path, source: NpzSource) -> NpzFile:
    return NpzFile(place, f"get it again from {source.source}")


def _integers(arrays: NpzFile, key: str, ndim: int) -> np.ndarray:
    return arrays.take(key, "iu", (None,) * ndim, f"integers with {ndim} axes")


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
    start = np.ones(min(x.shape))
    _, values, vectors = scipy.sparse.linalg.svds(x.astype(np.float64), k=count, v0=start)
    vectors = vectors[np.argsort(-values, kind="stable")]
    # The sign of a singular vector is arbitrary: its largest entry is positive.
    largest = np.abs(vectors).argmax(1)
    vectors *= np.sign(vectors[np.arange(count), largest])[:, None]
    projected = np.asarray(x @ vectors.T)
    reduced: np.ndarray = projected / np.abs(projected).max(0)
    return reduced.astype(np.float32)


def _partial(place: Path, source: NpzSource) -> str:
    """Describe the partial file of a set for a message; "" if there is none that can be read."""
    partial = place.parent / source.partial if source.partial else None
    if partial is None or not partial.is_file():
        return ""
    try:
        with _open(partial, source) as arrays:
            rows = len(_integers(arrays, "feat_indptr", ndim=1)) - 1
    except InputError:
        return ""
    return f", and {partial.name} has the features of the first {rows} nodes only"
