"""The folder of a run: whole or absent.

    manifest.json        what was asked: config, command, versions, hashes, threads, device, start time
    metrics.jsonl        one line a round
    ledger.json          every named transfer: bytes, messages, protection
    result.json          the result
    model.safetensors    the best weights (layout: `weight_arrays`)
    predictions.parquet  one row for each vertex a site owns

The files are written to a folder beside the target, which is renamed at the end: a folder that is there is
complete.
"""

import contextlib
import json
import math
import os
import shutil
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
    "Predictions",
    "check_free",
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


def default_folder(label: str) -> Path:
    """``runs/<label>-<time>``, free now: a number is added where two runs start in one second."""
    base = Path("runs") / f"{label}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, number = base, 1
    while folder.exists():
        number += 1
        folder = base.with_name(f"{base.name}-{number}")
    return folder


def check_free(folder: Path) -> None:
    """InputError unless `folder` can be made: absent or empty, and the folder above it can be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        raise InputError(f"the output folder {folder} {what}; name a new one with --out, or remove it")
    above = folder.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(
            f"the output folder {folder} cannot be made: {above} is not a folder you may write to"
        )


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`: renamed to it when the block ends, removed when the block fails.

    Raises InputError when `folder` is there and not empty, GraphfedError when the disk refuses."""
    check_free(folder)
    temporary: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        # mkdtemp makes private folders; results are as readable as this user's other files.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o777 & ~umask)
        yield temporary
        temporary.rename(folder)
    except OSError as error:
        raise GraphfedError(f"the folder {folder} could not be written: {error.strerror or error}") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def write_run(
    folder: Path,
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
    """Write every file of a run to `folder`, all or nothing."""
    with new_folder(folder) as path:
        write_json(path / "manifest.json", plain(manifest))
        lines = "".join(json.dumps(plain(line), allow_nan=False) + "\n" for line in history)
        write_bytes(path / "metrics.jsonl", lines.encode())
        write_json(path / "ledger.json", plain(ledger))
        write_tensors(path / "model.safetensors", dict(weights), {"method": str(result["method"])})
        write_predictions(path / "predictions.parquet", predictions, graph, split)
        write_json(path / "result.json", plain(result))


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
