"""Public graphs in one npz form each: facebook, lastfm, dblp, physics.

An npz file holds
    edges          [m, 2] integers, one row a stored edge, in either direction
    labels         [N] integers; label_names, their names, is optional
    feat_indptr    [N + 1], feat_indices [nnz]: the features as csr, of width num_features
    feat_values    [nnz]; 1 everywhere when absent
No array may be a pickled object, and none is converted before its type and range are checked. The feature
arrays may be absent: then only the structure can be loaded.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from graphfed.data.dropped import edges_dropped, names_dropped
from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.npz_files import NpzFile
from graphfed.data.sparse import MAX_WIDTH, csr_from_arrays
from graphfed.errors import InputError

__all__ = ["NPZ_SOURCES", "NpzSource", "find_npz", "load_npz"]


#: What a file may hold.
ARRAYS = ("edges", "labels", "label_names", "feat_indptr", "feat_indices", "num_features", "feat_values")


@dataclass(frozen=True)
class NpzSource:
    """Where a set's file lies below a data folder, and where to get it.

    partial: a file beside it that holds the features of the first nodes only, if that is all there is.
    """

    name: str
    folder: str
    file: str
    source: str
    partial: str | None = None


NPZ_SOURCES = {
    source.name: source
    for source in (
        NpzSource(
            "facebook",
            "facebook",
            "facebook.npz",
            "the public repository benedekrozemberczki/MUSAE, folder input (Facebook page-page network)",
        ),
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
        NpzSource(
            "physics",
            "coauthor_physics",
            "coauthor_physics.npz",
            "the public repository EdisonLeeeee/GraphData, folder datasets",
        ),
    )
}


def find_npz(roots: list[Path], source: NpzSource) -> tuple[Path | None, list[str]]:
    """The set's file below the first root that has it, and what is missing: the file, or features in it."""
    place = next((path for path in _candidates(roots, source) if path.is_file()), None)
    if place is None:
        return None, [source.file]
    try:
        with _open(place, source) as arrays:
            return place, [] if "feat_indptr" in arrays else [f"features in {source.file}"]
    except InputError:
        return place, [f"a readable {source.file}"]


def load_npz(source: NpzSource, roots: list[Path], structure_only: bool) -> Graph:
    """The graph of `source` below the first of `roots` that has its file; features csr [N, F] float32.

    Raises InputError when the file is missing (where it was looked for, where to get it), cannot be read, or
    lacks the features that were asked for.
    """
    place = next((path for path in _candidates(roots, source) if path.is_file()), None)
    if place is None:
        looked = ", ".join(str(path) for path in _candidates(roots, source))
        raise InputError(
            f"data set {source.name!r} is not here: {looked} were looked for; set GRAPHFED_DATA or the data "
            f"folder to where it is, or convert it from {source.source}, to the npz form that "
            "graphfed/data/graphs/npz.py describes"
        )
    with _open(place, source) as arrays:
        labels = _integers(arrays, "labels", ndim=1)
        if not structure_only and "feat_indptr" not in arrays:
            raise InputError(
                f"data set {source.name!r}: {place} lacks the features of its {len(labels)} nodes"
                f"{_partial(place, source)}; nothing can be trained without them: get the whole set from "
                f"{source.source}, or use another one"
            )
        x = None if structure_only else _features(arrays, len(labels))
        names = _names(arrays, len(labels)) if "label_names" in arrays else ()
        edges = _integers(arrays, "edges", ndim=2)
        if edges.shape[1] != 2:
            arrays.refuse(f"array 'edges' has shape {edges.shape}; expected [m, 2], one row an edge")
        try:
            graph = make_graph(source.name, x, labels, edges.T, class_names=names)
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
    names = arrays.take("label_names", "U", (None,), "a vector of text, one a class")
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


def _partial(place: Path, source: NpzSource) -> str:
    """What a message adds about the file beside `place`; nothing when there is none that can be read."""
    beside = place.parent / source.partial if source.partial else None
    if beside is None or not beside.is_file():
        return ""
    try:
        with _open(beside, source) as arrays:
            rows = len(_integers(arrays, "feat_indptr", ndim=1)) - 1
    except InputError:
        return ""
    return f", and {beside.name} has those of the first {rows} only"
