"""Planetoid's raw files (Cora, CiteSeer, PubMed), read without trusting them.

The files are Python 2 pickles, which planetoid_pickle.py reads; the result is cached as safetensors under a
key made of the files' content. Nothing is written beside the raw files. A file that does not fit the others
is named, and found out before anything is allocated by a number it states.

Format: Yang, Cohen, Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings", ICML 2016;
public repository kimiyoung/planetoid, folder data.
"""

import contextlib
import hashlib
import itertools
from pathlib import Path
from typing import NoReturn

import numpy as np
import scipy.sparse as sp

from graphfed.data.cache import cache_folder
from graphfed.data.content import content_hash
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.graphs.planetoid_pickle import SOURCE, read_pickle
from graphfed.data.messages import brief
from graphfed.errors import InputError
from graphfed.files import read_tensors, write_bytes, write_tensors

__all__ = ["PARTS", "SOURCE", "find_files", "folders", "load_planetoid"]

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
FEATURE_PARTS = ("x", "tx", "allx")
URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
TIMEOUT_SECONDS = 5.0
NUM_VAL = 500
MAX_BYTES = 2**28  # of one file; the largest real one has 8 million
MAX_DIGITS = 18  # of a number in test.index
FORMAT = "1"  # raise when the cached form changes


def folders(root: Path, folder: str) -> list[Path]:
    """Where below `root` the raw files of the data set may lie; `folder` is its PyG name, as "Cora"."""
    names = (folder, "PubMed_incomplete") if folder == "PubMed" else (folder,)
    return [root / above / name / "raw" for above in ("planetoid", ".") for name in names]


def find_files(roots: list[Path], folder: str) -> tuple[Path | None, list[str]]:
    """The folder with the most of the eight raw files (None if there is none), and the names it lacks."""
    stem = f"ind.{folder.lower()}."
    best, best_missing = None, [stem + part for part in PARTS]
    for place in (place for root in roots for place in folders(root, folder)):
        missing = [stem + part for part in PARTS if not (place / (stem + part)).is_file()]
        if len(missing) < len(best_missing):
            best, best_missing = place, missing
    return best, best_missing


def load_planetoid(folder: str, roots: list[Path], structure_only: bool) -> Graph:
    """The data set with its public split; features csr [N, F], raw (not normalised).

    folder: "Cora", "CiteSeer" or "PubMed". roots: searched in order. Missing files are downloaded into the
    cache folder if the network allows. CiteSeer's 15 nodes that are in no file are isolated, have no
    features and class 0, as in PyG.

    Raises InputError naming the files that are missing, every folder looked at, and where to get them.
    """
    name = folder.lower()
    needed = [f"ind.{name}.{part}" for part in PARTS if not (structure_only and part in FEATURE_PARTS)]
    place, missing = find_files(roots, folder)
    lacking = [file for file in missing if file in needed]
    if place is None or lacking:
        download = cache_folder() / "planetoid" / folder / "raw"
        if _download(folder, download):
            place = download
        elif place is not None:
            message = (
                f"data set {name!r} in {place} lacks {', '.join(lacking)}, and it could not be downloaded; "
                f"get it from {SOURCE}"
            )
            if not structure_only:
                message += "; nothing can be trained without its features"
            raise InputError(message)
        else:
            looked = ", ".join(str(p) for root in roots for p in folders(root, folder))
            raise InputError(
                f"data set {name!r} is not here: its files ind.{name}.* ({', '.join(PARTS)}) were looked for "
                f"in {looked}, and could not be downloaded; set GRAPHFED_DATA or the data folder to where "
                f"they are, or get them from {SOURCE}"
            )
    content = {file: _read(place / file) for file in needed}
    return _cached(name, content, place, structure_only)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); get it from {SOURCE}") from error
    if len(content) > MAX_BYTES:
        raise InputError(
            f"{path} is larger than any Planetoid file ({MAX_BYTES} bytes); get it from {SOURCE}"
        )
    return content


def _cached(name: str, content: dict[str, bytes], place: Path, structure_only: bool) -> Graph:
    digest = hashlib.sha256(f"{FORMAT} {structure_only}".encode())
    for file in sorted(content):
        digest.update(hashlib.sha256(content[file]).digest())
    path = cache_folder() / "planetoid" / f"{name}-{digest.hexdigest()[:24]}.safetensors"
    try:
        tensors, metadata = read_tensors(path)
        if content_hash(tensors) == metadata["hash"]:
            return _from_tensors(name, tensors)
    except Exception:  # absent, cut off or foreign: whatever is wrong with the copy, make it again
        pass
    raw = {file.removeprefix(f"ind.{name}."): (file, data) for file, data in content.items()}
    try:
        tensors = _convert(name, raw, place, structure_only)
    except InputError:
        raise
    except Exception as error:  # files that do not belong together can fail in any way
        raise InputError(
            f"the files in {place} do not belong together ({brief(error)}); get all eight from {SOURCE}"
        ) from error
    graph = _from_tensors(name, tensors)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, nothing else
        write_tensors(path, tensors, {"hash": content_hash(tensors)})
    return graph


def _from_tensors(name: str, tensors: dict[str, np.ndarray]) -> Graph:
    x = None
    if "x_indptr" in tensors:
        shape = tuple(tensors["x_shape"].tolist())
        x = sp.csr_matrix((tensors["x_data"], tensors["x_indices"], tensors["x_indptr"]), shape=shape)
        x.check_format(full_check=True)
    split = Split("public", tensors["train"], tensors["val"], tensors["test"])
    return make_graph(name, x, tensors["y"], tensors["edges"], split=split)


def _convert(
    name: str, raw: dict[str, tuple[str, bytes]], place: Path, structure_only: bool
) -> dict[str, np.ndarray]:
    """The arrays of the graph from the raw files, in the node order of PyG."""
    files = {part: place / file for part, (file, _) in raw.items()}
    content = {part: data for part, (_, data) in raw.items()}
    one_hot = {part: _one_hot(content[part], files[part]) for part in ("ally", "ty", "y")}
    num_classes = one_hot["ally"].shape[1]
    for part, rows in one_hot.items():
        if rows.shape[1] != num_classes:
            _refuse(files[part], f"{rows.shape[1]} classes, where {files['ally'].name} has {num_classes}")
    y, ty, ally = one_hot["y"], one_hot["ty"], one_hot["ally"]
    first = len(ally)
    if len(y) + NUM_VAL > first:
        _refuse(files["y"], f"{len(y)} training and {NUM_VAL} validation rows of the {first} before the test")
    test_index = _test_index(content["test.index"], files["test.index"], first, len(ty))
    # The test nodes come last. Where a number among theirs is in no file (CiteSeer), its node is blank.
    n = int(test_index.max()) + 1
    # Row i of ty and tx is the i-th number of test.index.
    classes = np.zeros(n, dtype=np.int64)
    classes[:first] = ally.argmax(axis=1)
    classes[test_index] = ty.argmax(axis=1)
    masks = np.zeros((3, n), dtype=bool)
    masks[0, : len(y)] = True
    masks[1, len(y) : len(y) + NUM_VAL] = True
    masks[2, test_index] = True
    edges = _edges(content["graph"], files["graph"], n)
    tensors = {
        "y": classes,
        "edges": make_graph(name, None, classes, edges).edges,
        "train": masks[0],
        "val": masks[1],
        "test": masks[2],
    }
    if not structure_only:
        allx, tx = (_features(content[part], files[part]) for part in ("allx", "tx"))
        for part, matrix, rows in (("allx", allx, ally), ("tx", tx, ty)):
            if matrix.shape != (len(rows), allx.shape[1]):
                _refuse(
                    files[part], f"a matrix {matrix.shape}, where {(len(rows), allx.shape[1])} was expected"
                )
        # Row r of the stack belongs to node place_of[r]; rows that are in no file stay empty.
        stack = sp.vstack((allx, tx)).tocoo()
        place_of = np.concatenate((np.arange(first), test_index))
        x = sp.csr_matrix((stack.data, (place_of[stack.row], stack.col)), shape=(n, stack.shape[1]))
        x.sum_duplicates()
        x.eliminate_zeros()
        tensors |= {
            "x_indptr": x.indptr,
            "x_indices": x.indices,
            "x_data": x.data,
            "x_shape": np.array(x.shape),
        }
    return tensors


def _refuse(path: Path, why: str) -> NoReturn:
    raise InputError(f"{path} does not fit the other files: {why}; get all eight from {SOURCE}")


def _one_hot(content: bytes, path: Path) -> np.ndarray:
    """[rows, C], the class of each row as a one."""
    rows = read_pickle(content, path)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] == 0:
        _refuse(path, "it holds no table of classes, one row a node and one column a class")
    return rows


def _features(content: bytes, path: Path) -> sp.csr_matrix:
    matrix = read_pickle(content, path)
    if not sp.issparse(matrix):
        _refuse(path, "it holds no csr matrix of features")
    return matrix


def _test_index(content: bytes, path: Path, first: int, count: int) -> np.ndarray:
    """[count] int64: different node numbers from `first` on, at most as many missing as are there."""
    words = content.split()
    wrong = next((word for word in words if len(word) > MAX_DIGITS or not word.isdigit()), None)
    if wrong is not None:
        _refuse(path, f"{wrong[:40].decode('ascii', 'backslashreplace')!r} is not a node number")
    if len(words) != count or not count:
        _refuse(path, f"{len(words)} numbers for the {count} rows of the test nodes")
    index = np.array(words, dtype=np.int64)
    if index.min() < first or index.max() >= first + 2 * count:
        _refuse(
            path,
            f"numbers from {index.min()} to {index.max()}; {count} test nodes after the first {first} "
            f"have numbers in {first}..{first + 2 * count - 1}",
        )
    if len(np.unique(index)) != count:
        _refuse(path, "a number is listed twice")
    return index


def _edges(content: bytes, path: Path, n: int) -> np.ndarray:
    """[2, entries] int64: every node beside each of its neighbours."""
    neighbours = read_pickle(content, path)
    if not isinstance(neighbours, dict):
        _refuse(path, "it holds no dict of neighbours")
    for node, listed in neighbours.items():
        if type(node) is not int or not 0 <= node < n or type(listed) is not list:
            _refuse(path, f"the entry of node {str(node)[:40]!r} is no list of one of the {n} nodes")
    degree = np.fromiter(map(len, neighbours.values()), dtype=np.int64, count=len(neighbours))
    # One list may stand for many nodes, and so for more entries than the memory holds.
    if degree.sum() > len(content):
        _refuse(path, f"{degree.sum()} neighbours in a file of {len(content)} bytes")
    ends = list(itertools.chain.from_iterable(neighbours.values()))
    if set(map(type, ends)) - {int} or (ends and not 0 <= min(ends) <= max(ends) < n):
        _refuse(path, f"a node has a neighbour that is not one of the {n} nodes")
    nodes = np.fromiter(neighbours, dtype=np.int64, count=len(neighbours))
    return np.stack((np.repeat(nodes, degree), np.array(ends, dtype=np.int64)))


def _download(folder: str, target: Path) -> bool:
    """Fetch the raw files into `target`; False when the network or the disk does not allow it."""
    import http.client
    import urllib.request

    try:
        for part in PARTS:
            file = f"ind.{folder.lower()}.{part}"
            if not (target / file).is_file():
                with urllib.request.urlopen(f"{URL}/{file}", timeout=TIMEOUT_SECONDS) as reply:
                    write_bytes(target / file, reply.read(MAX_BYTES))
    except (OSError, http.client.HTTPException):
        return False
    return True
