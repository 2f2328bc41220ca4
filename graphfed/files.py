"""Files: written completely or not at all, and read without trusting them."""

import errno
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeAlias

from graphfed.errors import GraphfedError, InputError

if TYPE_CHECKING:
    import numpy as np

#: A JSON object. Its form is in the schema of the file that it is in (`runs.folder_schema`), if it has one.
JsonObject: TypeAlias = dict[str, Any]

#: The most levels of lists and objects in a JSON text from outside. Files of graphfed have fewer than twelve.
MAX_JSON_LEVELS = 64
#: The most bytes of a file that is read as a whole. It bounds the memory that somebody else's file takes.
MAX_FILE = 1 << 30
NOT_REGULAR = "not a regular file but a pipe, a socket or a device"


def check_regular(path: Path) -> None:
    """Refuse anything but a regular file. Reading a named pipe or a device may wait for ever, or never end.

    Raises:
        IsADirectoryError: `path` is a folder.
        OSError: `path` is missing or not a regular file.
    """
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))


def contained(folder: Path, name: str) -> Path:
    """Join a name from an untrusted source to a folder.

    Raises:
        InputError: The path leaves the folder, by the name itself or through a symbolic link.
    """
    path = folder / name
    # Resolved first, so that neither ".." nor a symbolic link leads out.
    inside, root = path.resolve(), folder.resolve()
    if root == inside or root not in inside.parents:
        raise InputError(
            f"{name[:200]!r} is outside the folder {folder}; give the name of something inside it"
        )
    return path


def copy_files(source: Path, target: Path, *leave_out: str) -> None:
    """Copy the regular files of a folder and of those in it, but nothing through symbolic links.

    Args:
        leave_out: Patterns of names that are not copied.
    """
    patterns = shutil.ignore_patterns(*leave_out)

    def left_out(folder: str, names: list[str]) -> set[str]:
        # lstat does not follow links, so a link is seen as what it is.
        modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
        special = {name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))}
        return special | patterns(folder, names)

    shutil.copytree(source, target, ignore=left_out, dirs_exist_ok=True)


def read_start(path: Path, size: int, what: str = "") -> bytes:
    """Read the first bytes of a user's file. A library that reads the rest may then open it.

    Args:
        size: How many bytes to read at most.
        what: What precedes the path in the message, as in "the config file ".
    """
    try:
        with _open_regular(path) as file:
            return file.read(size)
    except OSError as error:
        raise InputError(f"{what}{path} cannot be read: {error.strerror or error}") from None


def read_regular(path: Path) -> bytes:
    """Read a regular file.

    Raises:
        OSError: As in `check_regular`, and if the file cannot be read or is larger than `MAX_FILE`.
    """
    with _open_regular(path) as file:
        # Not more than the file has: `read` allocates what it is asked for.
        content = file.read(min(os.fstat(file.fileno()).st_size, MAX_FILE) + 1)
    if len(content) > MAX_FILE:
        raise OSError(errno.EFBIG, f"it has more than {MAX_FILE >> 20} MiB", str(path))
    return content


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file. It is checked again when it is open, as it may have been replaced."""
    check_regular(path)
    # Without O_NONBLOCK, a named pipe would wait for a writer. It means nothing for regular files.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, NOT_REGULAR, str(path))
    return os.fdopen(handle, "rb")


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON text (UTF-8 if it is bytes) from an untrusted source, of at most MAX_JSON_LEVELS levels.

    Raises:
        ValueError: It is not JSON, holds NaN or an infinity, or is nested too deeply.
    """
    try:
        value = json.loads(text, parse_constant=refuse_constant)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_JSON_LEVELS} levels") from None
    # Level by level without recursion, which a deep text could exhaust.
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


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which Python's JSON parser accepts (for its `parse_constant`).

    Raises:
        ValueError: Always.
    """
    raise ValueError(f"{name} is not JSON")


def write_bytes(path: Path, payload: bytes, *, private: bool = False) -> None:
    """Write a file atomically: readers see the old file or the new one, never a part.

    Args:
        path: The file. Its folder is created if it is missing.
        private: Whether only this user may ever read it; otherwise the umask decides.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder, because a rename is atomic only within a file system.
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    # The system applies the umask to the mode. To read the umask is to change it, in all threads.
    create = partial(os.open, mode=0o600 if private else 0o666)
    try:
        with open(temporary, "xb", opener=create) as file:
            file.write(payload)
            file.flush()
            # Before the rename: after a crash the new name must not lead to an empty file.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def writing(what: object) -> Iterator[None]:
    """Turn an OSError of the disk in this block into a GraphfedError that names what is written."""
    try:
        yield
    except OSError as error:
        raise GraphfedError(f"{what} could not be written: {error.strerror or error}") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically; ValueError for NaN and infinities, which are not JSON."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(
    path: Path, tensors: "dict[str, np.ndarray]", metadata: dict[str, str] | None = None
) -> None:
    """Write arrays as one safetensors file, atomically."""
    import numpy as np
    from safetensors.numpy import save

    # np.ascontiguousarray would turn a scalar into a vector.
    write_bytes(path, save({k: np.asarray(v, order="C") for k, v in tensors.items()}, metadata))


def read_tensors(
    path: Path, only: Container[str] | None = None
) -> "tuple[dict[str, np.ndarray], dict[str, str]]":
    """Read a safetensors file.

    Args:
        only: The names of the arrays to read, if they are there (None: all).

    Raises:
        OSError: As in `check_regular`.
    """
    from safetensors import safe_open

    check_regular(path)
    with safe_open(path, framework="np") as file:
        wanted = [key for key in file.keys() if only is None or key in only]  # noqa: SIM118
        return {key: file.get_tensor(key) for key in wanted}, dict(file.metadata() or {})


def read_metadata(path: Path) -> dict[str, str]:
    """Read the metadata of a safetensors file, without its arrays.

    Raises:
        OSError: As in `check_regular`.
    """
    from safetensors import safe_open

    check_regular(path)
    with safe_open(path, framework="np") as file:
        return dict(file.metadata() or {})


def plain(value: object) -> Any:
    """Convert a value to what JSON can hold.

    Args:
        value: Arrays, tensors, NumPy numbers, paths, lists and mappings of these.

    Returns:
        Plain numbers, texts, lists and dictionaries; None for NaN and infinity.
    """
    if isinstance(value, Mapping):
        return plain_object(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    # By its method and not its type, so that neither library has to be imported.
    if hasattr(value, "tolist"):  # of NumPy or torch
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def plain_object(content: Mapping[str, object]) -> JsonObject:
    """Convert a mapping to an object of JSON (see `plain`)."""
    return {str(key): plain(item) for key, item in content.items()}
