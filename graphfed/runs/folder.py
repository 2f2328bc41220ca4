"""The folder of a run.

    manifest.json        what was asked: config, command, versions, hashes, threads, device, start time
    overview.json        the graph, its clients and a drawing of both (`graphfed.data.graphs.overview`)
    partition.safetensors  a copy of the file of --partition, if it named one; the run can go on with it
    checkpoint/          what the run needs to go on after an interruption (`graphfed resume`)
    metrics.jsonl        one line for each round
    ledger.json          every named transfer: bytes, messages, protection
    model.safetensors    the best weights (layout: `model_file.weight_arrays`); empty for a method without any
    predictions.parquet  one row for each node that a client owns; of link prediction, for each scored pair;
                         of forecasting, for each sensor and window
    result.json          the result
    report.html          all of it for people, and model_card.md (`graphfed.report`)

The manifest is written before training, the result last of all: a folder with a result is complete, and one
without it can be resumed. Every file is complete or absent. A program that writes into a folder holds the
lock file in it, so that no other program writes there.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import (
    JsonObject,
    check_regular,
    parse_json,
    plain,
    plain_object,
    read_regular,
    write_bytes,
    write_json,
    write_tensors,
)
from graphfed.runtime.interrupts import Interrupted

if TYPE_CHECKING:
    import pyarrow as pa
    from pydantic import BaseModel


__all__ = [
    "CHECKPOINTS",
    "PARTITION",
    "check_free",
    "check_new_file",
    "check_space",
    "check_there",
    "chosen_folder",
    "default_folder",
    "open_folder",
    "plain",
    "plain_object",
    "read_json",
    "read_lines",
    "read_predictions",
    "read_table",
    "write_lines",
    "write_run",
    "writing_into",
]


def chosen_folder(out: object, label: str) -> Path | None:
    """Return the folder that the option `out` means: a path, or a new folder for None; None for False."""
    if out is False:
        return None
    if out is None:
        return default_folder(label)
    if not isinstance(out, str | os.PathLike):
        raise InputError(f"out of type {type(out).__name__} cannot be used; give the path of a folder")
    return Path(out)


def default_folder(label: str) -> Path:
    """Make ``runs/<label>-<time>``; a number is added if several runs start in one second.

    `label` may be any text, since it has the name of a user's graph. If the run fails before anything is
    worth keeping, `open_folder` removes the folder again.
    """
    # A label may have slashes and control characters; other characters than these become dashes.
    safe = re.sub(r"[^\w.-]+", "-", label)[:MAX_LABEL].strip(".-") or "run"
    base = Path("runs") / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}"
    above: list[Path] = []
    try:
        _make_folders(_target(base.parent), above)
        for number in itertools.count(1):
            folder = base if number == 1 else base.with_name(f"{base.name}-{number}")
            # Making the folder chooses the name: of two processes that try the same name, one succeeds.
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                _CLAIMED[_target(folder)] = above
                return folder
    except OSError as error:
        _remove_empty(above)
        raise _cannot_be_made(base, error) from None
    raise AssertionError("unreachable")


#: Folders that `default_folder` has made and that are not open yet, with the parents that it made.
_CLAIMED: dict[Path, list[Path]] = {}


#: Characters of a label in a folder's name: with four bytes each they fit, time and number included.
MAX_LABEL = 50


def check_new_file(path: Path, endings: tuple[str, ...]) -> None:
    """Check that a new file can be written."""
    if path.suffix not in endings:
        raise InputError(f"{path} must end in {' or '.join(endings)}")
    try:
        path.lstat()  # a link to nowhere is there, too
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name cannot be used"
        raise InputError(f"{shown(str(path))} cannot be written ({reason}); name another file") from None
    else:
        raise InputError(f"{path} is there already; remove it, or name another file")
    if not path.parent.is_dir():
        raise InputError(f"{path} cannot be written: there is no folder {path.parent}; make it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written: {path.parent} is not a folder you may write to")


def check_free(folder: Path) -> None:
    """Check that a folder can be written into."""
    target = _target(folder)
    try:
        fault = ""
        if os.path.lexists(target) and not target.is_dir():
            fault = "is not a folder"
        elif (target / "manifest.json").exists() and not any((target / name).exists() for name in _LAST):
            fault = f"holds a run that has not ended: resume it (graphfed resume {folder})"
        elif _occupied(target):
            fault = "is not empty"
        if fault:
            raise InputError(f"the output folder {folder} {fault}; give another folder with --out")
        # The nearest folder above that exists decides whether the missing ones can be made.
        above = target
        while not above.exists():
            above = above.parent
    except OSError as error:
        raise _cannot_be_made(folder, error) from None
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise InputError(
            f"the output folder {folder} cannot be made: {above} is not a folder you may write to"
        )


@contextlib.contextmanager
def open_folder(
    folder: Path, *, resume: bool = False, keep: Callable[[Path], bool] = lambda _: True
) -> Iterator[Path]:
    """Make a folder if it is missing, and lock it until the block ends.

    Without `resume` the folder must be free (see `check_free`). If the block fails, the content of a new
    folder stays only if `keep` finds it worth keeping. If the block is interrupted and something is kept,
    Interrupted says how to go on.
    """
    from filelock import FileLock, Timeout

    if not resume:
        check_free(folder)
    target = _target(folder)
    made: list[Path] = []
    if target in _CLAIMED:
        made += [*_CLAIMED.pop(target), target]
    lock = FileLock(target / LOCK, timeout=0)
    finished = False
    try:
        try:
            _make_folders(target, made)
            lock.acquire()
            # A full or write-protected disk is found now, and not after hours of computing.
            write_bytes(target / WRITE_TEST, b"can be written\n")
            (target / WRITE_TEST).unlink()
        except Timeout:
            raise InputError(
                f"another graphfed process is writing into {folder}; wait for it, or stop it"
            ) from None
        except (OSError, NotImplementedError) as error:
            raise _cannot_be_made(folder, error) from None
        # Again, under the lock: another process may have written here since `check_free`.
        if not resume and _occupied(target):
            raise InputError(f"the output folder {folder} is not empty; give another folder with --out")
        yield target
        finished = True
    except KeyboardInterrupt as stopped:
        if resume or keep(target):
            raise Interrupted(f"interrupted; go on with: graphfed resume {folder}") from stopped
        raise
    finally:
        if lock.is_locked:
            if not (finished or resume or keep(target)):
                for name in _OURS:
                    with contextlib.suppress(OSError):
                        (target / name).unlink(missing_ok=True)
                shutil.rmtree(target / CHECKPOINTS, ignore_errors=True)
            with contextlib.suppress(OSError):
                # Removed before it is released, so that the file of the next process is not removed.
                (target / LOCK).unlink(missing_ok=True)
            lock.release()
        _remove_empty(made)


#: The copy of a saved partition, in the folder of a run, a comparison or a sweep: runs in a comparison or a
#: sweep use the one of the folder above, as the tables of a large graph take hundreds of MB.
PARTITION = "partition.safetensors"
#: The statistics that the clients report (`Method.client_statistics`), in the folder of a run.
CLIENT_STATISTICS = "clients.parquet"
#: The files of a run and of a comparison.
_OURS = (
    "manifest.json", "overview.json", PARTITION, "metrics.jsonl", "ledger.json", "model.safetensors",
    "predictions.parquet", CLIENT_STATISTICS, "result.json", "report.html", "model_card.md",
)  # fmt: skip
#: The file that is written last: by a run, a comparison, a sweep, a reproduction.
_LAST = ("result.json", "comparison.json", "sweep.json", "reproduce.json")
#: The folder of a run's checkpoints, in the run's folder.
CHECKPOINTS = "checkpoint"
#: The file that is locked while a program writes into a folder, and the first that it tries to write.
LOCK, WRITE_TEST = ".lock", ".write-test"


def _occupied(target: Path) -> bool:
    """Return whether a folder holds anything except what a program leaves that is killed before its first
    file.
    """
    ours = (LOCK, WRITE_TEST, f".{WRITE_TEST}.", ".manifest.json.")
    return target.is_dir() and not all(path.name.startswith(ours) for path in target.iterdir())


def _target(folder: Path) -> Path:
    """Return the absolute path of a folder."""
    try:
        # What stdout and JSON cannot say must not name results.
        str(folder).encode()
        return folder.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise _cannot_be_made(folder, error) from None


def _cannot_be_made(folder: Path, error: Exception) -> InputError:
    reason = getattr(error, "strerror", None) or "the name cannot be used"
    name = ascii(str(folder))[1:-1] if isinstance(error, ValueError) else str(folder)
    return InputError(
        f"the output folder {name[:300]} cannot be made ({reason}); give another folder with --out"
    )


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Make `folder` and its missing parents, and add those that are made here to `made`, the highest
    first.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        # Another process may make the folder at the same time.
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            made.append(path)


def check_space(folder: Path, need: int) -> None:
    """Check that the disk has `need` bytes free."""
    # Only an estimate, but it refuses most runs that would fail at the end.
    free = shutil.disk_usage(folder).free
    if free < need:
        raise InputError(
            f"the disk of {folder} has {free / 1e6:.0f} MB free, and the files of this run need about "
            f"{need / 1e6:.0f} MB; free some, or name another folder with --out"
        )


def _remove_empty(folders: list[Path]) -> None:
    """Remove the empty ones of `folders`, the last first."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()


def write_run(
    folder: Path,
    *,
    method: str,
    ledger: JsonObject,
    result: JsonObject,
    weights: Mapping[str, np.ndarray],
    history: Iterable[JsonObject] | None = None,
    predictions: "Iterable[pa.Table] | None" = None,
    client_statistics: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Write what a run found. An argument that is None has no file.

    `client_statistics` are columns [K] in the order of client ids.
    """
    with writing_into(folder):
        if history is not None:
            write_lines(folder / "metrics.jsonl", history)
        write_json(folder / "ledger.json", plain(ledger))
        write_tensors(folder / "model.safetensors", dict(weights), {"method": method})
        if predictions is not None:
            write_predictions(folder / "predictions.parquet", predictions)
        if client_statistics is not None:
            import pyarrow as pa

            clients = np.arange(len(next(iter(client_statistics.values()))))
            table = pa.table({"client": clients, **client_statistics})
            write_predictions(folder / CLIENT_STATISTICS, [table])
        # Last, because a folder with a result is complete.
        write_json(folder / "result.json", plain(result))


@contextlib.contextmanager
def writing_into(folder: Path) -> Iterator[None]:
    """Raise GraphfedError, which names the folder, if the disk refuses a file in this block."""
    try:
        yield
    except OSError as error:
        raise GraphfedError(
            f"the folder {folder} could not be written ({error.strerror or error}); when that is repaired, "
            f"go on with: graphfed resume {folder}"
        ) from error


def write_lines(path: Path, lines: Iterable[JsonObject]) -> None:
    """Write the file that `read_lines` reads; OSError if the disk refuses it."""
    text = "".join(json.dumps(plain(line), allow_nan=False) + "\n" for line in lines)
    write_bytes(path, text.encode())


def write_predictions(path: Path, tables: "Iterable[pa.Table]") -> None:
    """Write pyarrow tables with the same columns as one Parquet file.

    Each table is made, written and released before the next one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    tables = iter(tables)
    first = next(tables)
    with pq.ParquetWriter(sink, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    write_bytes(path, sink.getvalue().to_pybytes())


def read_predictions(folder: Path, columns: Mapping[str, str] | None = None) -> "pa.Table":
    """Read the table that `write_predictions` wrote; `columns` as in `read_table`."""
    return read_table(folder / "predictions.parquet", columns)


def read_table(
    path: Path, columns: Mapping[str, str] | None = None, optional: Mapping[str, str] | None = None
) -> "pa.Table":
    """Read a Parquet file in a run's folder.

    `columns` has the columns that it must have, with their kinds: "integer", "number" or "text". Only they
    and the `optional` ones that exist are read. None reads all columns, of any kind.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        check_regular(path)
        schema = pq.read_schema(path)
        here = {name: kind for name, kind in (optional or {}).items() if name in schema.names}
        wanted = {**(columns or {}), **here}
        for name, kind in wanted.items():
            if name not in schema.names:
                raise ValueError(f"it has no column {name!r}")
            found = schema.field(name).type
            if not _is_of_kind(found, kind):
                raise ValueError(f"column {name!r} must be of kind {kind}; it is {found}")
        return pq.read_table(path, columns=None if columns is None else list(wanted))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({str(error)[:200]}); repeat the run") from None


def _is_of_kind(found: "pa.DataType", kind: str) -> bool:
    """Return whether a pyarrow type is one of a kind of `read_table`."""
    from pyarrow import types

    if types.is_dictionary(found):
        found = found.value_type
    if kind == "text":
        return bool(types.is_string(found) or types.is_large_string(found))
    whole = bool(types.is_integer(found))
    return whole or (kind == "number" and bool(types.is_floating(found)))


def check_there(folder: Path) -> None:
    """Check that a folder can be the folder of a run.

    It raises InputError if there is no such folder, it is a file, or it holds runs and is not one itself.
    """
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
        runs = [] if (folder / "manifest.json").exists() else sorted(folder.glob("*/manifest.json"))
    except FileNotFoundError:
        raise InputError(f"there is no folder {folder}; name the folder of a run, as in runs/...") from None
    except PermissionError:
        return  # said by what reads from it
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "the name cannot be used"
        raise InputError(
            f"the folder {shown(str(folder))} cannot be read ({reason}); name the folder of a run"
        ) from None
    if not is_folder:
        raise InputError(f"{folder} is not a folder; name the folder of a run")
    if runs and not any((folder / name).exists() for name in _LAST):
        raise InputError(f"{folder} holds runs and is none; name one of them, as in {runs[-1].parent}")


def read_json(path: Path, model: "type[BaseModel]") -> JsonObject:
    """Read a JSON file in a run's folder, with its schema from `folder_schema`."""
    from graphfed.runs.folder_schema import check_content

    return check_content(_parsed(path, _text_of(path)), model, str(path))


def read_lines(path: Path, model: "type[BaseModel]") -> list[JsonObject]:
    """Read a file with one JSON object in each line."""
    from graphfed.runs.folder_schema import check_content

    lines = enumerate(_text_of(path).splitlines(), 1)
    named = [(f"{path}, line {number}", line) for number, line in lines]
    return [check_content(_parsed(name, line), model, name) for name, line in named]


def _text_of(path: Path) -> bytes:
    check_there(path.parent)
    try:
        return read_regular(path)
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror or error}; is this the folder of a run?"
        ) from None


def _parsed(name: object, text: bytes) -> Any:
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"{name} is not JSON: {error}") from None
