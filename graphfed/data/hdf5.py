"""Reading of METR-LA's and PEMS-BAY's HDF5 files, which pandas wrote, without pandas and without unpickling.

Both files have one group, a table in pandas' format "fixed": the names of the columns (axis0), the index of
times (axis1) and one block of numbers (block0_values). Attributes that hold pickles, such as the index's
`freq`, are never read.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.messages import brief
from graphfed.errors import InputError, how_to_install
from graphfed.files import read_start

if TYPE_CHECKING:
    import h5py

MAX_VALUES = 2**29
#: pandas' names of the unit of times. The pandas of the two files wrote the first name, for nanoseconds.
_UNITS = {"datetime64": "ns", **{f"datetime64[{unit}]": unit for unit in ("s", "ms", "us", "ns")}}


def read_table(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Read the columns' names, the index (datetime64 [rows]) and the values [rows, columns] of a table."""
    try:
        import h5py
    except ImportError:
        raise InputError(
            f"{path} is an HDF5 file, and the package h5py, which reads it, is not installed; run: "
            f"{how_to_install('hdf5')}"
        ) from None
    # h5py would wait for ever at a named pipe.
    read_start(path, 1)
    try:
        with h5py.File(path, "r") as file:
            return _read(file)
    except Exception as error:  # a damaged file fails in many ways
        raise InputError(
            f"{path} is not laid out as metr-la.h5 and pems-bay.h5 are ({brief(error)}); write it as CSV (or "
            f"Parquet) with pandas: pandas.read_hdf({str(path)!r}).to_csv('readings.csv', index_label='time')"
        ) from None


def _read(file: "h5py.File") -> tuple[list[str], np.ndarray, np.ndarray]:
    if len(file) != 1:
        raise ValueError(f"it holds {len(file)} tables, expected one")
    (group,) = file.values()
    kind = _text(group.attrs.get("pandas_type", ""))
    if kind != "frame" or group.attrs["nblocks"] != 1:
        raise ValueError("it is no table in pandas' format 'fixed' with numbers of one type")
    names, times, values = (group[key] for key in ("axis0", "axis1", "block0_values"))
    # The size is stated in the header, so a small file may ask for any amount of memory.
    if values.size > MAX_VALUES:
        raise ValueError(f"it holds {values.size} values, more than {MAX_VALUES}")
    # Texts of variable length are pickles, of dtype object.
    if names.dtype.kind not in "iuS" or values.dtype.kind not in "fiu":
        raise ValueError("its names or values are no plain array")
    unit = _UNITS.get(_text(times.attrs.get("kind", "")))
    if unit is None or times.dtype.kind != "i" or "tz" in times.attrs:
        raise ValueError("its index is not of times without a time zone")
    if not values.size or values.shape != (*times.shape, *names.shape):
        raise ValueError(f"its values have shape {values.shape}")
    columns = [_text(name) for name in names[...].tolist()]
    return columns, times[...].astype(np.int64).view(f"datetime64[{unit}]"), values[...]


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
