"""Files: written whole or not at all (beside the target, then renamed), and read without trusting them."""

import errno
import json
import math
import os
import stat
import tempfile
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from graphfed.errors import GraphfedError, InputError

__all__ = [
    "JsonObject",
    "check_regular",
    "parse_json",
    "plain",
    "plain_object",
    "read_metadata",
    "read_regular",
    "read_start",
    "read_tensors",
    "write_bytes",
    "write_json",
    "write_tensors",
    "writing",
]

#: A JSON object. Its form is in the schema of the file that it is in (`runs.folder_schema`), if it has one.
JsonObject: TypeAlias = dict[str, Any]

#: Levels of lists and objects in a JSON text from outside. Our own files have fewer than twelve.
MAX_JSON_LEVELS = 64


def check_regular(path: Path) -> None:
    """Refuse what is not a regular file: reading a named pipe or a device may wait for ever, or never end.

    Raises:
        OSError: if `path` is missing, a folder, or neither a folder nor a regular file.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file but a pipe, a socket or a device", str(path))


def read_start(path: Path, size: int, what: str = "") -> bytes:
    """Read the first bytes of a file of the user's; a library that reads the rest may then open it.

    Args:
        path: the file.
        size: how many bytes to read, or as many as there are.
        what: what stands before the path in the message, as in "the config file ".

    Raises:
        InputError: if the file is missing, no regular file, or cannot be read.
    """
    try:
        check_regular(path)
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"{what}{path} cannot be read: {error.strerror or error}") from None


def read_regular(path: Path) -> bytes:
    """Read a regular file. Raises OSError as `check_regular`, and where the file cannot be read."""
    check_regular(path)
    return path.read_bytes()


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text that may come from anybody.

    Args:
        text: the JSON text, in UTF-8 if it is bytes.

    Returns:
        Its value, of at most MAX_JSON_LEVELS levels.

    Raises:
        ValueError: if it is not JSON, holds NaN or an infinity, or is nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_JSON_LEVELS} levels") from None
    level = [value]
    for _ in range(MAX_JSON_LEVELS):
        level = [
            item
            for each in level
            if isinstance(each, list | dict)
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {MAX_JSON_LEVELS} levels")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def write_bytes(path: Path, payload: bytes, *, private: bool = False) -> None:
    """Write `payload` to `path` atomically: readers see the old file or the new one, never a part.

    Args:
        path: The file; its folder is made where it is missing.
        payload: What is in it.
        private: Whether only this user may ever read it; otherwise the umask decides.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; a result should be readable as any other file of this user.
        if not private:
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def writing(what: object) -> Iterator[None]:
    """In this block an error of the disk names what was written: GraphfedError."""
    try:
        yield
    except OSError as error:
        raise GraphfedError(f"{what} could not be written: {error.strerror or error}") from error


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused: they are not JSON."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> None:
    """Write arrays as one safetensors file, atomically. `metadata` is text beside them."""
    from safetensors.numpy import save

    # (ascontiguousarray would give a single number a dimension.)
    write_bytes(path, save({k: np.asarray(v, order="C") for k, v in tensors.items()}, metadata))


def read_tensors(
    path: Path, only: Container[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file: its arrays by name and its text metadata. only: names of the arrays to read,
    where they are there; None: all."""
    from safetensors import safe_open

    check_regular(path)
    with safe_open(path, framework="np") as file:
        wanted = [key for key in file.keys() if only is None or key in only]  # noqa: SIM118
        return {key: file.get_tensor(key) for key in wanted}, dict(file.metadata() or {})


def read_metadata(path: Path) -> dict[str, str]:
    """The text metadata of a safetensors file; its arrays are not read."""
    from safetensors import safe_open

    check_regular(path)
    with safe_open(path, framework="np") as file:
        return dict(file.metadata() or {})


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def plain(value: object) -> Any:
    """Convert a value to what JSON can hold.

    Args:
        value: Arrays, tensors, NumPy numbers, paths, lists and mappings of these.

    Returns:
        Plain numbers, texts, lists and dictionaries; None for NaN and infinity.
    """
    if isinstance(value, Mapping):
        return plain_object(value)
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


def plain_object(content: Mapping[str, object]) -> JsonObject:
    """Convert a mapping to an object of JSON (see `plain`).

    Args:
        content: The mapping.

    Returns:
        The values by text keys.
    """
    return {str(key): plain(item) for key, item in content.items()}
