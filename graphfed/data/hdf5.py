"""Tables that pandas wrote as HDF5 ("fixed" format), read without pandas and without unpickling anything.

Such a file has a group with the names of the columns (axis0), the index (axis1), and for each type of number
a block: its columns (block0_items) and their values (block0_values). Attributes say how to read them; those
that hold pickles, as the index's `freq`, are never looked at, and texts that are pickled are refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from graphfed.data.messages import brief
from graphfed.errors import InputError, shown
from graphfed.files import read_start

if TYPE_CHECKING:
    import h5py

__all__ = ["Frame", "read_frame"]

MAX_VALUES = 2**29
#: How pandas names the unit of times; the first was written before it had others.
_UNITS = {"datetime64": "ns", **{f"datetime64[{unit}]": unit for unit in ("s", "ms", "us", "ns")}}


@dataclass(frozen=True)
class Frame:
    """A table. columns: its names; index: texts or datetime64 [rows]; values: [rows, columns] float64; zoned:
    whether the index is in UTC, as it is where pandas knew its time zone."""

    columns: list[str]
    index: np.ndarray
    values: np.ndarray
    zoned: bool


def read_frame(path: Path) -> Frame:
    """The one table in an HDF5 file. Raises InputError where h5py is not installed, and for a file that is
    not there, damaged, or holds no such table."""
    try:
        import h5py
    except ImportError:
        raise InputError(
            f"{path} is HDF5, which takes h5py to read, and it is not installed: pip install 'graphfed[hdf5]'"
        ) from None
    read_start(path, 1)
    try:
        with h5py.File(path, "r") as file:
            return _Reader(path).frame(file)
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise InputError(f"{path} is damaged or no HDF5 ({brief(error)}); write it again") from None


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def frame(self, file: "h5py.File") -> Frame:
        import h5py

        kinds = {
            name: _text(node.attrs.get("pandas_type", ""))
            for name, node in file.items()
            if isinstance(node, h5py.Group)
        }
        frames = [name for name, kind in kinds.items() if kind == "frame"]
        if len(frames) != 1:
            if "frame_table" in kinds.values():
                self._refuse("holds a table in pandas' format 'table'")
            self._refuse(f"holds {len(frames)} tables of pandas, and one is needed")
        group = file[frames[0]]
        columns = self._names(group, "axis0")
        index, zoned = self._index(group)
        if len(index) * len(columns) > MAX_VALUES:
            self._refuse(f"holds {len(index)} x {len(columns)} values, more than {MAX_VALUES}")
        values = np.full((len(index), len(columns)), np.nan)
        place = {name: number for number, name in enumerate(columns)}
        if len(place) != len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            self._refuse(f"has two columns called {shown(twice)}", "rename one of them")
        filled = 0
        for block in range(int(group.attrs.get("nblocks", 1))):
            names = self._names(group, f"block{block}_items")
            node = self._dataset(group, f"block{block}_values")
            if node.dtype.kind not in "fiu":
                first = f", as {shown(names[0])}" if names else ""
                self._refuse(f"has columns of other things than numbers{first}", "leave these columns out")
            content = node[...]
            # pandas keeps a block as [columns, rows]; what it writes transposed is [rows, columns] here.
            content = content if node.attrs.get("transposed", 1) else content.T
            if content.shape != (len(index), len(names)) or not set(names) <= place.keys():
                self._refuse(f"is damaged: block {block} does not fit the table's columns and rows")
            values[:, [place[name] for name in names]] = content
            filled += len(names)
        if filled != len(columns):
            self._refuse("is damaged: columns without values")
        return Frame(columns, index, values, zoned)

    def _dataset(self, group: "h5py.Group", key: str) -> "h5py.Dataset":
        import h5py

        node = group.get(key)
        # A list of Python objects is stored as a pickle, of variable length.
        if not isinstance(node, h5py.Dataset) or node.dtype.kind not in "fiuSU":
            self._refuse(f"holds no plain array {shown(key)} (a pickle is not read)")
        if node.size > MAX_VALUES:
            self._refuse(f"holds {node.size} values, more than {MAX_VALUES}")
        return node

    def _names(self, group: "h5py.Group", key: str) -> list[str]:
        node = self._dataset(group, key)
        if node.ndim != 1 or node.dtype.kind == "f":
            self._refuse(f"has columns that are called neither by text nor by whole numbers ({key})")
        return [_text(name) for name in node[...].tolist()]

    def _index(self, group: "h5py.Group") -> tuple[np.ndarray, bool]:
        node = self._dataset(group, "axis1")
        if node.ndim != 1:
            self._refuse("has an index of several levels")
        if node.dtype.kind in "SU":
            return np.array([_text(entry) for entry in node[...].tolist()], dtype=object), False
        kind = _text(node.attrs.get("kind", ""))
        if kind not in _UNITS or node.dtype.kind != "i":
            self._refuse(f"has an index of {kind or 'something unknown'}, not of times")
        times: np.ndarray = node[...].astype(np.int64).view(f"datetime64[{_UNITS[kind]}]")
        return times, "tz" in node.attrs

    def _refuse(self, what: str, fix: str = "") -> NoReturn:
        fix = fix or "write the table of readings again: df.to_hdf(path, key='df', format='fixed')"
        raise InputError(f"{self._path} {what}; {fix}")


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
