"""Public graphs in one npz form each: facebook, lastfm, dblp, physics.

An npz file holds
    edges          [m, 2] integers, one row a stored edge, in either direction
    labels         [N] integers; label_names, their names, is optional
    feat_indptr    [N + 1], feat_indices [nnz]: the features as csr, of width num_features
    feat_values    [nnz]; 1 everywhere when absent
No array may be a pickled object. The feature arrays may be absent: then only the structure can be loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.graph import Graph, make_graph
from graphfed.errors import InputError

__all__ = ["NPZ_SOURCES", "NpzSource", "find_npz", "load_npz"]


@dataclass(frozen=True)
class NpzSource:
    """Where a set's file lies below a data folder, and where to get it.

    partial: a file beside it that holds the features of the first vertices only, if that is all there is.
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
    with _open(place, source) as arrays:
        return place, [] if "feat_indptr" in arrays else [f"features in {source.file}"]


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
            "graphfed/data/npz.py describes"
        )
    with _open(place, source) as arrays:
        labels = _take(arrays, "labels", place, source)
        if not structure_only and "feat_indptr" not in arrays:
            raise InputError(
                f"data set {source.name!r}: {place} lacks the features of its {len(labels)} vertices"
                f"{_partial(place, source)}; structure_only=True loads the graph "
                "and its classes without features"
            )
        x = None if structure_only else _features(arrays, place, source, len(labels))
        names = tuple(arrays["label_names"].tolist()) if "label_names" in arrays else ()
        edges = _take(arrays, "edges", place, source)
    return make_graph(source.name, x, labels, edges.T, class_names=names)


def _candidates(roots: list[Path], source: NpzSource) -> list[Path]:
    return [place for root in roots for place in (root / source.folder / source.file, root / source.file)]


def _open(place: Path, source: NpzSource) -> Any:
    try:
        return np.load(place, allow_pickle=False)
    except Exception as error:  # a file that is no zip archive fails in several ways
        raise InputError(f"{place} cannot be read ({error}); get it again from {source.source}") from error


def _take(arrays: Any, key: str, place: Path, source: NpzSource) -> np.ndarray:
    try:
        array: np.ndarray = arrays[key]
    except Exception as error:  # absent, damaged, or an object array, which numpy refuses to unpickle
        raise InputError(
            f"{place}: array {key!r} cannot be read ({error}); get it again from {source.source}"
        ) from error
    return array


def _features(arrays: Any, place: Path, source: NpzSource, n: int) -> sp.csr_matrix:
    take: Callable[[str], np.ndarray] = lambda key: _take(arrays, key, place, source)  # noqa: E731
    indptr, indices = take("feat_indptr"), take("feat_indices").astype(np.int32)
    values = take("feat_values") if "feat_values" in arrays else np.ones(len(indices))
    try:
        x = sp.csr_matrix((values.astype(np.float32), indices, indptr), shape=(n, int(take("num_features"))))
        x.check_format(full_check=True)
    except ValueError as error:
        raise InputError(
            f"{place}: the features are damaged ({error}); get it again from {source.source}"
        ) from error
    return x


def _partial(place: Path, source: NpzSource) -> str:
    beside = place.parent / source.partial if source.partial else None
    if beside is None or not beside.is_file():
        return ""
    with _open(beside, source) as arrays:
        return f", and {beside.name} has those of the first {len(arrays['feat_indptr']) - 1} only"
