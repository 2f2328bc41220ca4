"""Reading of Planetoid's raw files (Cora, CiteSeer, PubMed), which are not trusted.

The files are Python 2 pickles, which planetoid_pickle.py reads. The result is cached as safetensors in the
cache folder, under a hash of the files' content; nothing is written to the folder of the raw files. If a file
does not fit the others, an error names it. Numbers that a file states are checked before they size an array.

Format: Yang, Cohen, Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings", ICML 2016;
public repository kimiyoung/planetoid, folder data.
"""

import contextlib
import hashlib
import itertools
from collections.abc import Iterator
from contextvars import ContextVar
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
from graphfed.files import check_regular, read_tensors, write_bytes, write_tensors

__all__ = ["PARTS", "SOURCE", "find_files", "folders", "load_planetoid"]

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
FEATURE_PARTS = ("x", "tx", "allx")
URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
TIMEOUT_SECONDS = 5.0
NUM_VAL = 500
MAX_BYTES = 2**28  # the size of one file; the largest real file has 8 million bytes
MAX_DIGITS = 18  # the length of a number in test.index
#: Whether missing files may be downloaded (`without_downloads`).
_may_download = ContextVar("may_download", default=True)
FORMAT = "1"  # increase this number when the cached form changes


def folders(root: Path, folder: str) -> list[Path]:
    """List the folders below `root` in which the raw files of a data set may be.

    Args:
        root: A data folder.
        folder: PyG's name of the data set, such as "Cora".

    Returns:
        The folders, whether they exist or not.
    """
    names = (folder, "PubMed_incomplete") if folder == "PubMed" else (folder,)
    return [root / above / name / "raw" for above in ("planetoid", ".") for name in names]


def find_files(roots: list[Path], folder: str) -> tuple[Path | None, list[str]]:
    """Find the folder that has the most of a data set's eight raw files.

    Args:
        roots: Data folders, searched in this order.
        folder: PyG's name of the data set, such as "Cora".

    Returns:
        The folder, None if no folder has any of the files; and the names of the missing files.
    """
    stem = f"ind.{folder.lower()}."
    best, best_missing = None, [stem + part for part in PARTS]
    for place in (place for root in roots for place in folders(root, folder)):
        missing = [stem + part for part in PARTS if not (place / (stem + part)).is_file()]
        if len(missing) < len(best_missing):
            best, best_missing = place, missing
    return best, best_missing


def load_planetoid(folder: str, roots: list[Path], structure_only: bool) -> Graph:
    """Load a Planetoid data set with its public split.

    Missing files are downloaded into the cache folder if the network allows it. 15 nodes of CiteSeer are in
    no file; as in PyG, they are isolated, their features are zero, and their class is 0.

    Args:
        folder: "Cora", "CiteSeer" or "PubMed".
        roots: Data folders, searched in this order.
        structure_only: Leave the features out.

    Returns:
        The graph; its features are csr, [N, F], not normalised.

    Raises:
        InputError: Files are missing or damaged. For missing files the message names the files, the searched
            folders and the source.
    """
    name = folder.lower()
    needed = [f"ind.{name}.{part}" for part in PARTS if not (structure_only and part in FEATURE_PARTS)]
    place, missing = find_files(roots, folder)
    absent = [file for file in missing if file in needed]
    if place is None or absent:
        download = cache_folder() / "planetoid" / folder / "raw"
        failed = (
            "the download failed"
            if _may_download.get()
            else f"it was not downloaded before ('graphfed data inspect {name}' does)"
        )
        if _download(folder, download):
            place = download
        elif place is not None:
            message = (
                f"data set {name!r} in {place} is incomplete: {', '.join(absent)} not found, and "
                f"{failed}; get the files from {SOURCE}"
            )
            if not structure_only:
                message += ". Training needs features"
            raise InputError(message)
        else:
            looked = ", ".join(str(p) for root in roots for p in folders(root, folder))
            raise InputError(
                f"data set {name!r} was not found: its files ind.{name}.* ({', '.join(PARTS)}) are not in "
                f"{looked}, and {failed}; set GRAPHFED_DATA or the data folder to the folder that "
                f"has them, or get them from {SOURCE}"
            )
    content = {file: _read(place / file) for file in needed}
    return _cached(name, content, place, structure_only)


def _read(path: Path) -> bytes:
    try:
        check_regular(path)
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
    except Exception:  # the cached copy is absent, truncated or foreign: convert the raw files again
        pass
    raw = {file.removeprefix(f"ind.{name}."): (file, data) for file, data in content.items()}
    try:
        tensors = _convert(name, raw, place, structure_only)
    except InputError:
        raise
    except Exception as error:  # files of different data sets can fail in many ways
        raise InputError(
            f"the files in {place} do not belong together ({brief(error)}); get all eight from {SOURCE}"
        ) from error
    graph = _from_tensors(name, tensors)
    with contextlib.suppress(OSError):  # without a cache, the next load only takes longer
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
    """Convert the raw files to the arrays of the graph, in PyG's order of the nodes."""
    files = {part: place / file for part, (file, _) in raw.items()}
    content = {part: data for part, (_, data) in raw.items()}
    one_hot = {part: _one_hot(content[part], files[part]) for part in ("ally", "ty", "y")}
    num_classes = one_hot["ally"].shape[1]
    for part, rows in one_hot.items():
        if rows.shape[1] != num_classes:
            _refuse(
                files[part], f"it has {rows.shape[1]} classes, and {files['ally'].name} has {num_classes}"
            )
    y, ty, ally = one_hot["y"], one_hot["ty"], one_hot["ally"]
    first = len(ally)
    if len(y) + NUM_VAL > first:
        _refuse(
            files["y"],
            f"there are {len(y)} training and {NUM_VAL} validation rows, and only {first} rows before the "
            "test rows",
        )
    test_index = _test_index(content["test.index"], files["test.index"], first, len(ty))
    # The test nodes come last. CiteSeer skips some numbers among them; these nodes keep class 0, without
    # features and edges.
    n = int(test_index.max()) + 1
    # Row i of ty and tx belongs to the node that is the i-th number of test.index.
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
                    files[part],
                    f"its matrix has shape {matrix.shape}, and {(len(rows), allx.shape[1])} was expected",
                )
        # Row r of the stack belongs to node node_of_row[r]; the rows of skipped nodes stay empty.
        stack = sp.vstack((allx, tx)).tocoo()
        node_of_row = np.concatenate((np.arange(first), test_index))
        x = sp.csr_matrix((stack.data, (node_of_row[stack.row], stack.col)), shape=(n, stack.shape[1]))
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
    """Read one-hot classes, [rows, C]."""
    rows = read_pickle(content, path)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] == 0:
        _refuse(path, "it holds no table of classes with one row per node and one column per class")
    return rows


def _features(content: bytes, path: Path) -> sp.csr_matrix:
    matrix = read_pickle(content, path)
    if not sp.issparse(matrix):
        _refuse(path, "it holds no csr matrix of features")
    return matrix


def _test_index(content: bytes, path: Path, first: int, count: int) -> np.ndarray:
    """Read the numbers of the test nodes, [count] int64.

    The numbers are distinct and lie in first..first + 2 count - 1, so a file cannot make the graph much
    larger than its content.
    """
    entries = content.split()
    wrong = next((entry for entry in entries if len(entry) > MAX_DIGITS or not entry.isdigit()), None)
    if wrong is not None:
        _refuse(path, f"{wrong[:40].decode('ascii', 'backslashreplace')!r} is not a node number")
    if len(entries) != count or not count:
        _refuse(path, f"it has {len(entries)} numbers for the {count} rows of the test nodes")
    index = np.array(entries, dtype=np.int64)
    if index.min() < first or index.max() >= first + 2 * count:
        _refuse(
            path,
            f"its numbers are from {index.min()} to {index.max()}; {count} test nodes after the first "
            f"{first} nodes have numbers in {first}..{first + 2 * count - 1}",
        )
    if len(np.unique(index)) != count:
        _refuse(path, "it lists a number twice")
    return index


def _edges(content: bytes, path: Path, n: int) -> np.ndarray:
    """Read the edges as pairs of a node and one of its neighbours, [2, entries] int64."""
    neighbours = read_pickle(content, path)
    if not isinstance(neighbours, dict):
        _refuse(path, "it holds no dict of neighbours")
    for node, listed in neighbours.items():
        if type(node) is not int or not 0 <= node < n or type(listed) is not list:
            _refuse(path, f"the entry of node {str(node)[:40]!r} is no list of one of the {n} nodes")
    degree = np.fromiter(map(len, neighbours.values()), dtype=np.int64, count=len(neighbours))
    # A pickle can use one list for many nodes, and so describe more entries than fit into memory.
    if degree.sum() > len(content):
        _refuse(path, f"it states {degree.sum()} neighbours in {len(content)} bytes")
    ends = list(itertools.chain.from_iterable(neighbours.values()))
    if set(map(type, ends)) - {int} or (ends and not 0 <= min(ends) <= max(ends) < n):
        _refuse(path, f"a node has a neighbour that is not one of the {n} nodes")
    nodes = np.fromiter(neighbours, dtype=np.int64, count=len(neighbours))
    return np.stack((np.repeat(nodes, degree), np.array(ends, dtype=np.int64)))


@contextlib.contextmanager
def without_downloads() -> Iterator[None]:
    """Download nothing inside this context: the folder of a run may be anybody's, and names its data."""
    token = _may_download.set(False)
    try:
        yield
    finally:
        _may_download.reset(token)


def _download(folder: str, target: Path) -> bool:
    """Download the raw files into `target`.

    Return False if the network or the disk fails, or a file is missing and must not be downloaded.
    """
    import http.client
    import urllib.request

    try:
        for part in PARTS:
            file = f"ind.{folder.lower()}.{part}"
            if not (target / file).is_file():
                if not _may_download.get():
                    return False
                with urllib.request.urlopen(f"{URL}/{file}", timeout=TIMEOUT_SECONDS) as reply:
                    write_bytes(target / file, reply.read(MAX_BYTES))
    except (OSError, http.client.HTTPException):
        return False
    return True
