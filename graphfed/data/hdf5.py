"""Reading of tables that pandas wrote as HDF5 (format "fixed"), without pandas and without unpickling.

Such a file has a group with the names of the columns (axis0) and the index (axis1). For each type of number
it has a block: the block's columns (block0_items) and their values (block0_values). Attributes describe how
to read them. Attributes that hold pickles, such as the index's `freq`, are never read, and pickled texts are
refused.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from graphfed.data.messages import brief
from graphfed.data.texts import canonical_name
from graphfed.errors import InputError, how_to_install, shown
from graphfed.files import read_start

if TYPE_CHECKING:
    import h5py

__all__ = ["Frame", "read_frame"]

MAX_VALUES = 2**29
#: pandas' names of the unit of times. Older versions of pandas write the first name and mean nanoseconds.
_UNITS = {"datetime64": "ns", **{f"datetime64[{unit}]": unit for unit in ("s", "ms", "us", "ns")}}


@dataclass(frozen=True)
class Frame:
    """A table of numbers with a named column axis and an index.

    Attributes:
        columns: The names of the columns.
        index: Texts or datetime64, [rows].
        values: float64 [rows, columns].
        zoned: Whether the index is in UTC. This is so if pandas knew the time zone of the index.
    """

    columns: list[str]
    index: np.ndarray
    values: np.ndarray
    zoned: bool


def read_frame(path: Path) -> Frame:
    """Read the only table of an HDF5 file.

    Args:
        path: The file.

    Returns:
        The table.

    Raises:
        InputError: h5py is not installed, or the file is missing, is damaged, or does not hold exactly one
            table.
    """
    try:
        import h5py
    except ImportError:
        raise InputError(
            f"{path} is an HDF5 file, and the package h5py, which reads it, is not installed; run: "
            f"{how_to_install('hdf5')}"
        ) from None
    read_start(path, 1)
    try:
        with h5py.File(path, "r") as file:
            return _Reader(path).frame(file)
    except InputError:
        raise
    except Exception as error:  # a damaged file fails in many ways
        raise InputError(f"{path} is damaged or is no HDF5 file ({brief(error)}); write it again") from None


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
                self._refuse("holds a table in pandas' format 'table', and format 'fixed' is needed")
            self._refuse(f"holds {len(frames)} tables of pandas, and exactly one is needed")
        group = file[frames[0]]
        columns = self._names(group, "axis0")
        index, zoned = self._index(group)
        if len(index) * len(columns) > MAX_VALUES:
            self._refuse(f"holds {len(index)} x {len(columns)} values, more than {MAX_VALUES}")
        values = np.full((len(index), len(columns)), np.nan)
        position = {name: number for number, name in enumerate(columns)}
        if len(position) != len(columns):
            twice = next(name for name in columns if columns.count(name) > 1)
            self._refuse(f"has two columns called {shown(twice)}", "rename one of them")
        filled = 0
        for block in range(int(group.attrs.get("nblocks", 1))):
            names = self._names(group, f"block{block}_items")
            node = self._dataset(group, f"block{block}_values")
            if node.dtype.kind not in "fiu":
                first = f", as {shown(names[0])}" if names else ""
                self._refuse(f"has columns that are not numbers{first}", "leave these columns out")
            content = node[...]
            # pandas keeps a block as [columns, rows] and normally writes it transposed, as [rows, columns].
            content = content if node.attrs.get("transposed", 1) else content.T
            if content.shape != (len(index), len(names)) or not set(names) <= position.keys():
                self._refuse(
                    f"is damaged: the shape of block {block} differs from the table's columns and rows"
                )
            values[:, [position[name] for name in names]] = content
            filled += len(names)
        if filled != len(columns):
            self._refuse("is damaged: some columns have no values")
        return Frame(columns, index, values, zoned)

    def _dataset(self, group: "h5py.Group", key: str) -> "h5py.Dataset":
        import h5py

        node = group.get(key)
        # A list of Python objects is stored as a pickle, of variable length.
        if not isinstance(node, h5py.Dataset) or node.dtype.kind not in "fiuSU":
            self._refuse(f"has no plain array {shown(key)} (pickled arrays are not read)")
        if node.size > MAX_VALUES:
            self._refuse(f"holds {node.size} values, more than {MAX_VALUES}")
        return node

    def _names(self, group: "h5py.Group", key: str) -> list[str]:
        node = self._dataset(group, key)
        if node.ndim != 1 or node.dtype.kind == "f":
            self._refuse(f"has columns whose names are neither texts nor whole numbers ({key})")
        return [canonical_name(_text(name)) for name in node[...].tolist()]

    def _index(self, group: "h5py.Group") -> tuple[np.ndarray, bool]:
        node = self._dataset(group, "axis1")
        if node.ndim != 1:
            self._refuse("has an index with several levels, and one level is needed")
        if node.dtype.kind in "SU":
            return np.array([_text(entry) for entry in node[...].tolist()], dtype=object), False
        kind = _text(node.attrs.get("kind", ""))
        if kind not in _UNITS or node.dtype.kind != "i":
            self._refuse(f"has an index of type {kind or 'unknown'}, and an index of times is needed")
        times: np.ndarray = node[...].astype(np.int64).view(f"datetime64[{_UNITS[kind]}]")
        return times, "tz" in node.attrs

    def _refuse(self, what: str, fix: str = "") -> NoReturn:
        fix = fix or "write the table of readings again: df.to_hdf(path, key='df', format='fixed')"
        raise InputError(f"{self._path} {what}; {fix}")


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
