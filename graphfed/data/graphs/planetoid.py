"""Reading of Planetoid's raw files: Cora, CiteSeer and PubMed with their public splits.

The files are Python 2 pickles. A file is opened only if its SHA-256 is that of the published file, and its
pickle may use only the six names that the published files need.

Format: Yang, Cohen, Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph Embeddings", ICML 2016;
public repository kimiyoung/planetoid, folder data.
"""

import contextlib
import hashlib
import io
import itertools
import pickle
from collections import defaultdict
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.cache import cache_folder
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.errors import InputError
from graphfed.files import check_regular, write_bytes

SOURCE = "the public repository kimiyoung/planetoid, folder data"
PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
FEATURE_PARTS = ("x", "tx", "allx")
URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
TIMEOUT_SECONDS = 5.0
NUM_VAL = 500
MAX_BYTES = 2**24  # the largest published file has 7 578 385 bytes
#: Whether missing files may be downloaded (`without_downloads`).
_may_download = ContextVar("may_download", default=True)
#: The SHA-256 of every published file.
SHA256 = {
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}


def folders(root: Path, folder: str) -> list[Path]:
    """List the folders that may have the raw files of a data set, by PyG's name of it, as in "Cora"."""
    names = (folder, "PubMed_incomplete") if folder == "PubMed" else (folder,)
    return [root / above / name / "raw" for above in ("planetoid", ".") for name in names]


def find_files(roots: list[Path], folder: str) -> tuple[Path | None, list[str]]:
    """Find the folder with the most of a data set's raw files, None if none has any; and what is missing."""
    stem = f"ind.{folder.lower()}."
    best, best_missing = None, [stem + part for part in PARTS]
    for place in (place for root in roots for place in folders(root, folder)):
        missing = [stem + part for part in PARTS if not (place / (stem + part)).is_file()]
        if len(missing) < len(best_missing):
            best, best_missing = place, missing
    return best, best_missing


def load_planetoid(folder: str, roots: list[Path], structure_only: bool) -> Graph:
    """Load a Planetoid data set with its public split and csr features [N, F], which are not normalised.

    Missing files are downloaded into the cache folder if the network allows it. 15 nodes of CiteSeer are in
    no file; as in PyG, they are isolated, their features are zero, and their class is 0.
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
    files = {file.removeprefix(f"ind.{name}."): _read(place / file) for file in needed}
    return _convert(name, files, structure_only)


def _read(path: Path) -> bytes:
    """Read a file, and check that it is the published one."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); get it from {SOURCE}") from error
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[path.name]:
        raise InputError(
            f"{path} is not the published file, so it was not opened: its SHA-256 is {found}, expected "
            f"{SHA256[path.name]}; get it from {SOURCE}"
        )
    return content


#: The names that the files use, which is also all that they may use.
_NAMES: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("scipy.sparse.csr", "csr_matrix"): sp.csr_matrix,
    ("collections", "defaultdict"): defaultdict,
    ("__builtin__", "list"): list,
}


# The SHA-256 is checked first; this is a second wall, should a pinned file ever be replaced.
class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"no Planetoid file needs the name {module}.{name}")
        return _NAMES[module, name]


def _unpickle(content: bytes) -> Any:
    # Python 2 pickled bytes as text: latin1 gives each byte back.
    return _Unpickler(io.BytesIO(content), encoding="latin1").load()


def _convert(name: str, files: dict[str, bytes], structure_only: bool) -> Graph:
    """Convert the raw files, in PyG's order of the nodes."""
    y, ty, ally = (_unpickle(files[part]) for part in ("y", "ty", "ally"))  # one-hot classes, [rows, C]
    first = len(ally)
    test_index = np.array(files["test.index"].split(), dtype=np.int64)
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
    x = None
    if not structure_only:
        # Row r of the stack belongs to node node_of_row[r]; the rows of skipped nodes stay empty.
        stack = sp.vstack((_unpickle(files["allx"]), _unpickle(files["tx"]))).tocoo()
        node_of_row = np.concatenate((np.arange(first), test_index))
        x = sp.csr_matrix((stack.data, (node_of_row[stack.row], stack.col)), shape=(n, stack.shape[1]))
        x.sum_duplicates()
        x.eliminate_zeros()
    return make_graph(name, x, classes, _edges(_unpickle(files["graph"])), split=Split("public", *masks))


def _edges(neighbours: dict[int, list[int]]) -> np.ndarray:
    """List the edges as pairs of a node and one of its neighbours, [2, entries] int64."""
    nodes = np.fromiter(neighbours, dtype=np.int64)
    degree = np.fromiter(map(len, neighbours.values()), dtype=np.int64)
    ends = np.fromiter(itertools.chain.from_iterable(neighbours.values()), dtype=np.int64)
    return np.stack((np.repeat(nodes, degree), ends))


@contextlib.contextmanager
def without_downloads() -> Iterator[None]:
    """Download nothing inside this context: the folder of a run may be anybody's, and names its data."""
    token = _may_download.set(False)
    try:
        yield
    finally:
        _may_download.reset(token)


def may_download() -> bool:
    """Return whether missing files may be downloaded here."""
    return _may_download.get()


def _download(folder: str, target: Path) -> bool:
    """Download the raw files into `target`.

    Return False if the network or the disk fails, what arrives is not the published file, or a file is
    missing and must not be downloaded.
    """
    import http.client
    import urllib.request

    try:
        for part in PARTS:
            file = f"ind.{folder.lower()}.{part}"
            if not (target / file).is_file():
                if not may_download():
                    return False
                with urllib.request.urlopen(f"{URL}/{file}", timeout=TIMEOUT_SECONDS) as reply:
                    content = reply.read(MAX_BYTES)
                # A proxy may answer with a page to log in. Such an answer is never written.
                if hashlib.sha256(content).hexdigest() != SHA256[file]:
                    return False
                write_bytes(target / file, content)
    except (OSError, http.client.HTTPException):
        return False
    return True
