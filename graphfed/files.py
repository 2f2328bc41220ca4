"""Files that are either whole or absent: write beside the target, then rename."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["read_metadata", "read_tensors", "write_bytes", "write_json", "write_tensors"]


def write_bytes(path: Path, payload: bytes) -> None:
    """Write `payload` to `path` atomically: readers see the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a result should be readable as any other file of this user.
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused: they are not JSON."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Write arrays as one safetensors file, atomically. `metadata` is text beside them."""
    from safetensors.numpy import save

    # (ascontiguousarray would give a single number a dimension.)
    write_bytes(path, save({k: np.asarray(v, order="C") for k, v in tensors.items()}, metadata))


def read_tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file: its arrays by name and its text metadata."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118


def read_metadata(path: Path) -> dict[str, str]:
    """The text metadata of a safetensors file; its arrays are not read."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return dict(file.metadata() or {})


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
