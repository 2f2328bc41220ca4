"""The folder of a run: whole or absent.

    manifest.json        what was asked: config, command, versions, hashes, threads, device, start time
    metrics.jsonl        one line a round
    ledger.json          every named transfer: bytes, messages, protection
    result.json          the result
    model.safetensors    the best weights (layout: `weight_arrays`)
    predictions.parquet  one row for each vertex a site owns

The files are written to a folder beside the target, which is renamed at the end: a folder that is there is
complete. That folder is made before training starts, so that a name that cannot be used is known by then.
"""

import contextlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.errors import GraphfedError, InputError
from graphfed.files import write_bytes, write_json, write_tensors

if TYPE_CHECKING:
    from graphfed.data.graph import Graph, Split

__all__ = [
    "NewFolder",
    "Predictions",
    "check_free",
    "chosen_folder",
    "claimed_folder",
    "default_folder",
    "new_folder",
    "plain",
    "read_json",
    "weight_arrays",
    "write_run",
]


@dataclass(frozen=True)
class Predictions:
    """What a method predicts for n owned vertices: vertex [n] and site [n] int64, logits [n, C]."""

    vertex: np.ndarray
    site: np.ndarray
    logits: np.ndarray


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: plain numbers, texts, lists, dictionaries; NaN and infinity are None."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if hasattr(value, "tolist"):  # a torch tensor
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def chosen_folder(out: Any, label: str) -> Path | None:
    """The folder that `out` means: a path itself, None ``runs/<label>-<time>``, False none at all.

    Raises InputError for anything else."""
    if out is False:
        return None
    if out is None:
        return default_folder(label)
    if not isinstance(out, str | os.PathLike):
        raise InputError(f"out of type {type(out).__name__} cannot be used; give the path of a folder")
    return Path(out)


def default_folder(label: str) -> Path:
    """``runs/<label>-<time>``, free now: a number is added where two runs start in one second.

    The label may be any text (a graph's own name is in it): what is no letter, digit, dot, dash or underscore
    becomes a dash."""
    safe = re.sub(r"[^\w.-]+", "-", label)[:MAX_LABEL].strip(".-") or "run"
    base = Path("runs") / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 1
    while folder.exists() or _part(folder).exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


#: Characters of a label in a folder's name: with four bytes each they fit, time and number included.
MAX_LABEL = 50


def check_free(folder: Path) -> None:
    """InputError unless `folder` can be made: absent, or an empty folder that another can take the place of
    (no link, not the current folder, not a mount point), below a folder that can be written."""
    target = _target(folder)
    there = True
    try:
        mode = target.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except (OSError, ValueError) as error:
        raise _cannot_be_made(folder, error) from None
    try:
        if there:
            fault = ""
            if stat.S_ISLNK(mode):
                fault = "is a symbolic link"
            elif not stat.S_ISDIR(mode):
                fault = "is a file"
            elif any(target.iterdir()):
                fault = "is not empty"
            elif target.samefile("."):
                fault = "is the folder you are in"
            elif os.path.ismount(target):
                fault = "is a mount point"
            if fault:
                raise InputError(f"the output folder {folder} {fault}; name a new one with --out")
        above = target.parent
        while not above.exists():
            above = above.parent
    except OSError as error:
        raise _cannot_be_made(folder, error) from None
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(
            f"the output folder {folder} cannot be made: {above} is not a folder you may write to"
        )


@dataclass(frozen=True)
class NewFolder:
    """A folder that is being written: `path` holds the files until it is renamed to `target`."""

    target: Path
    path: Path


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[NewFolder]:
    """A temporary folder beside `folder`: renamed to it when the block ends, removed when the block fails.

    Everything that can be known beforehand is tried before the block starts, because what the block works out
    may take hours: InputError when `folder` is not free (see `check_free`) or nothing can be written beside
    it. When `folder` cannot take its name in the end, GraphfedError says where the files are."""
    check_free(folder)
    target = _target(folder)
    temporary: Path | None = None
    made: list[Path] = []
    try:
        try:
            _make_folders(target.parent, made)
            temporary = _temporary_folder(target)
            write_bytes(temporary / "test", b"can be written\n")
            (temporary / "test").unlink()
            if not target.exists():
                # The name itself may be refused.
                target.mkdir()
                target.rmdir()
        except OSError as error:
            raise _cannot_be_made(folder, error) from None
        yield NewFolder(folder, temporary)
        try:
            temporary.rename(target)
        except OSError as error:
            kept, temporary = temporary, None
            raise GraphfedError(
                f"the files are whole, but the folder {folder} could not be made of them "
                f"({error.strerror or error}); they are in {kept}"
            ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        _remove_empty(made)


@contextlib.contextmanager
def claimed_folder(folder: Path) -> Iterator[None]:
    """`folder`, made if it is not there, and claimed: until the block ends no other block claims it.

    What is in it when the block ends stays, however it ends; nothing but empty folders made here is removed.
    Raises InputError when `folder` is not free (see `check_free`) or cannot be made."""
    check_free(folder)
    target = _target(folder)
    claim: Path | None = None
    made: list[Path] = []
    try:
        try:
            _make_folders(target, made)
            (target / UNFINISHED).touch(exist_ok=False)
            claim = target / UNFINISHED
        except OSError as error:
            raise _cannot_be_made(folder, error) from None
        yield
    finally:
        if claim is not None:
            with contextlib.suppress(OSError):
                claim.unlink()
        _remove_empty(made)


#: The file that claims a folder while runs are written into it.
UNFINISHED = ".unfinished"


def _target(folder: Path) -> Path:
    """`folder` from the root, its last name kept as it is: a link there must stay visible."""
    try:
        # What stdout and JSON cannot say must not name results.
        str(folder).encode()
        return folder.resolve() if folder.name in ("", "..") else folder.parent.resolve() / folder.name
    except (OSError, RuntimeError, ValueError) as error:
        raise _cannot_be_made(folder, error) from None


def _cannot_be_made(folder: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or "the name cannot be used"
    name = ascii(str(folder))[1:-1] if isinstance(error, ValueError) else str(folder)
    return InputError(
        f"the output folder {name[:300]} cannot be made ({reason}); name another one with --out"
    )


def _part(target: Path) -> Path:
    """The temporary folder's name: hidden, and known, so that `default_folder` sees names that are taken."""
    return target.with_name(f".{target.name}.part")


def _temporary_folder(target: Path) -> Path:
    """A new folder beside `target`."""
    try:
        _part(target).mkdir()
        return _part(target)
    except OSError:
        # Another run is writing there, or was killed, or the name is too long with what is added.
        temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".graphfed-"))
    # mkdtemp makes private folders; results are as readable as this user's other files.
    umask = os.umask(0)
    os.umask(umask)
    temporary.chmod(0o777 & ~umask)
    return temporary


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Make `folder` and what is missing above it; those made here are added to `made`, the highest first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            made.append(path)


def _remove_empty(folders: list[Path]) -> None:
    """Remove those of `folders` that are empty, the last first."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_run(
    folder: NewFolder,
    *,
    manifest: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    ledger: Mapping[str, Any],
    result: Mapping[str, Any],
    weights: Mapping[str, np.ndarray],
    predictions: Predictions,
    graph: "Graph",
    split: "Split",
) -> None:
    """Write every file of a run into a folder in the making; GraphfedError when the disk refuses."""
    path = folder.path
    try:
        write_json(path / "manifest.json", plain(manifest))
        lines = "".join(json.dumps(plain(line), allow_nan=False) + "\n" for line in history)
        write_bytes(path / "metrics.jsonl", lines.encode())
        write_json(path / "ledger.json", plain(ledger))
        write_tensors(path / "model.safetensors", dict(weights), {"method": str(result["method"])})
        write_predictions(path / "predictions.parquet", predictions, graph, split)
        write_json(path / "result.json", plain(result))
    except OSError as error:
        raise GraphfedError(
            f"the folder {folder.target} could not be written: {error.strerror or error}"
        ) from error


def write_predictions(path: Path, predictions: Predictions, graph: "Graph", split: "Split") -> None:
    """Write parquet, sorted by vertex, then site. Columns: vertex, site, split (train, val, test or none),
    label (null where unknown), prediction, its probability, and probability_0 ... probability_{C-1}."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    order = np.lexsort((predictions.site, predictions.vertex))
    vertex = predictions.vertex[order]
    logits = predictions.logits[order].astype(np.float64)
    likelihood = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    probability = likelihood / likelihood.sum(axis=1, keepdims=True)
    part = np.select([split.train[vertex], split.val[vertex], split.test[vertex]], [0, 1, 2], 3)
    label = graph.y[vertex]
    columns = {
        "vertex": pa.array(vertex),
        "site": pa.array(predictions.site[order]),
        "split": pa.DictionaryArray.from_arrays(part.astype(np.int8), ["train", "val", "test", "none"]),
        "label": pa.array(label, mask=label < 0),
        "prediction": pa.array(probability.argmax(axis=1)),
        "probability": pa.array(probability.max(axis=1, initial=0).astype(np.float32)),
    }
    for c in range(probability.shape[1]):
        columns[f"probability_{c}"] = pa.array(probability[:, c].astype(np.float32))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    write_bytes(path, sink.getvalue().to_pybytes())


def weight_arrays(parts: Sequence[Any]) -> dict[str, np.ndarray]:
    """The weights that the hosts of one place hold, as flat named arrays: nested names are joined by dots.

    A shared weight has its own shape [...]; weights of each client are [K, ...] in the order of client ids.
    First-layer weights stored only where clients can differ (`SparseWeights`) are four arrays: values,
    pair_client, pair_feature and num_clients after the name; with clients one at a time [K, F, H]."""
    from graphfed.federation import payload as pay
    from graphfed.nn.sparse import SparseWeights

    flat = [_flatten(part) for part in parts]
    arrays: dict[str, np.ndarray] = {}
    for name, leaf in flat[0].items() if flat else ():
        if len(flat) > 1:
            each = [f[name] for f in flat]
            full = [
                pay.stack([x.part(k) for k in range(x.num_clients)]) if isinstance(x, SparseWeights) else x
                for x in each
            ]
            arrays[name] = np.concatenate([_array(x) for x in full])
        elif isinstance(leaf, SparseWeights):
            arrays[f"{name}.values"] = _array(leaf.values)
            arrays[f"{name}.pair_client"] = _array(leaf.pair_client)
            arrays[f"{name}.pair_feature"] = _array(leaf.pair_feature)
            arrays[f"{name}.num_clients"] = np.array(leaf.num_clients)
        else:
            arrays[name] = _array(leaf)
    return arrays


def _flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict | tuple):
        return {prefix or "weights": tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    flat: dict[str, Any] = {}
    for key, value in items:
        flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _array(tensor: Any) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array


def read_json(path: Path) -> Any:
    """The content of a JSON file; InputError when it is not there or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}; is this the folder of a run?"
        ) from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
