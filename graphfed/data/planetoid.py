"""Planetoid's raw files (Cora, CiteSeer, PubMed), read without trusting them.

The files are Python 2 pickles. An unpickler that admits six names reads them, so a file cannot run
code; the result is cached as safetensors under a key made of the files' content. Nothing is written beside
the raw files.

Format: Yang, Cohen, Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings", ICML 2016;
public repository kimiyoung/planetoid, folder data.
"""

import contextlib
import hashlib
import io
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.cache import cache_folder
from graphfed.data.content import content_hash
from graphfed.data.graph import Graph, Split, make_graph
from graphfed.errors import InputError
from graphfed.files import read_tensors, write_bytes, write_tensors

__all__ = ["PARTS", "SOURCE", "find_files", "folders", "load_planetoid", "read_pickle"]

PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
FEATURE_PARTS = ("x", "tx", "allx")
SOURCE = "the public repository kimiyoung/planetoid, folder data"
URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
TIMEOUT_SECONDS = 5.0
NUM_VAL = 500
FORMAT = "1"  # raise when the cached form changes


class _Dtype:
    """Stands in for numpy's dtype: a number's code, such as "f4", and its byte order."""

    def __init__(self, code: str, *_: Any) -> None:
        self.code = code
        self.order: Any = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def plain(self) -> np.dtype[Any]:
        dtype = np.dtype(self.code).newbyteorder(self.order)
        if dtype.kind not in "biuf":
            raise ValueError(f"an array of {dtype}, not of numbers")
        return dtype


class _Array:
    """Stands in for numpy's array."""

    def __init__(self, *_: Any) -> None:
        pass

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def plain(self) -> np.ndarray:
        _, shape, dtype, fortran, content = self.state
        # A Python 2 string is read as latin-1, one character a byte.
        raw = content.encode("latin1") if isinstance(content, str) else content
        return np.frombuffer(raw, dtype=dtype.plain()).reshape(shape, order="F" if fortran else "C")


class _Csr:
    """Stands in for scipy's csr_matrix."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.state = state

    def plain(self) -> sp.csr_matrix:
        data, indices, indptr = (self.state[key].plain() for key in ("data", "indices", "indptr"))
        matrix = sp.csr_matrix((data, indices, indptr), shape=self.state["_shape"])
        matrix.check_format(full_check=True)
        return matrix


# Everything the eight files name. What comes from numpy and scipy is only recorded while the pickle is read,
# and built afterwards from checked numbers: a pickle never hands numpy a state of its own making.
ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("scipy.sparse.csr", "csr_matrix"): _Csr,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
}


class _AllowListUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no Planetoid file needs") from None


def read_pickle(content: bytes, path: Path) -> Any:
    """The array, csr matrix or dict in a Planetoid file. `path` is for messages.

    Raises InputError for a file that names anything but the six, or is damaged; no code of it runs.
    """
    try:
        value = _AllowListUnpickler(io.BytesIO(content), encoding="latin1").load()
        return value.plain() if isinstance(value, _Array | _Csr) else value
    except Exception as error:  # a hostile or damaged pickle can fail in any way
        raise InputError(
            f"{path} is not a Planetoid file and was refused: {error}; get it from {SOURCE}"
        ) from error


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
    cache folder if the network allows. CiteSeer's 15 vertices that are in no file are isolated, have no
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
                message += "; structure_only=True loads the graph and its classes without features"
            raise InputError(message)
        else:
            looked = ", ".join(str(p) for root in roots for p in folders(root, folder))
            raise InputError(
                f"data set {name!r} is not here: its files ind.{name}.* ({', '.join(PARTS)}) were looked for "
                f"in {looked}, and could not be downloaded; set GRAPHFED_DATA or the data folder to where "
                f"they are, or get them from {SOURCE}"
            )
    content = {file: (place / file).read_bytes() for file in needed}
    return _cached(name, content, place, structure_only)


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
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"the files in {place} do not belong together ({error}); get all eight from {SOURCE}"
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
    """The arrays of the graph from the raw files, in the vertex order of PyG."""

    def part(key: str) -> Any:
        file, content = raw[key]
        return read_pickle(content, place / file)

    test_index = np.array(raw["test.index"][1].split(), dtype=np.int64)
    y, ty, ally, graph = (part(key) for key in ("y", "ty", "ally", "graph"))
    # The test vertices come last. Where a number among theirs is in no file (CiteSeer), its vertex is blank.
    first, span = len(ally), int(test_index.max()) + 1 - len(ally)
    n = first + span
    sorted_index = np.sort(test_index)
    if test_index.min() < first or len(ty) != len(test_index):
        raise ValueError(f"{len(ty)} rows for {len(test_index)} test vertices from {test_index.min()} on")
    # Row i of ty and tx is the i-th number of test.index.
    classes = np.zeros(n, dtype=np.int64)
    classes[:first] = ally.argmax(axis=1)
    classes[test_index] = ty.argmax(axis=1)
    masks = np.zeros((3, n), dtype=bool)
    masks[0, : len(y)] = True
    masks[1, len(y) : len(y) + NUM_VAL] = True
    masks[2, sorted_index] = True
    degree = np.fromiter((len(graph.get(i, ())) for i in range(n)), dtype=np.int64, count=n)
    ends = np.fromiter(
        (j for i in range(n) for j in graph.get(i, ())), dtype=np.int64, count=int(degree.sum())
    )
    tensors = {
        "y": classes,
        "edges": make_graph(name, None, classes, np.stack((np.repeat(np.arange(n), degree), ends))).edges,
        "train": masks[0],
        "val": masks[1],
        "test": masks[2],
    }
    if not structure_only:
        allx, tx = part("allx"), part("tx")
        if allx.shape[0] != len(ally) or tx.shape[0] != len(ty):
            raise ValueError(
                f"features of {allx.shape[0]} + {tx.shape[0]} vertices for {len(ally)} + {len(ty)}"
            )
        # Row r of the stack belongs to vertex place_of[r]; rows that are in no file stay empty.
        stack = sp.vstack((allx, tx)).tocoo()
        place_of = np.concatenate((np.arange(first), test_index))
        x = sp.csr_matrix((stack.data, (place_of[stack.row], stack.col)), shape=(n, stack.shape[1]))
        x = x.astype(np.float32)
        x.sum_duplicates()
        x.eliminate_zeros()
        tensors |= {
            "x_indptr": x.indptr,
            "x_indices": x.indices,
            "x_data": x.data,
            "x_shape": np.array(x.shape),
        }
    return tensors


def _download(folder: str, target: Path) -> bool:
    """Fetch the raw files into `target`; False when the network or the disk does not allow it."""
    import urllib.request

    try:
        for part in PARTS:
            file = f"ind.{folder.lower()}.{part}"
            if not (target / file).is_file():
                with urllib.request.urlopen(f"{URL}/{file}", timeout=TIMEOUT_SECONDS) as reply:
                    write_bytes(target / file, reply.read())
    except OSError:
        return False
    return True
