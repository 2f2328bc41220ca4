"""A user's sensors on disk, in every form in which they may come, for tests."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

START = np.datetime64("2024-01-01T00:00", "m")

#: What a column of pandas' index of times has as attributes, in addition to its unit.
_ARRAY = {"CLASS": b"ARRAY", "FLAVOR": b"numpy", "VERSION": b"2.4", "transposed": np.uint8(1), "name": b"N."}


def times_of(steps: int, step: int = 5) -> np.ndarray:
    return START + np.arange(steps) * np.timedelta64(step, "m")


def texts(times: np.ndarray) -> list[str]:
    return [str(time).replace("T", " ") for time in times]


def cell(value: float) -> str:
    return "" if np.isnan(value) else repr(float(value))


def write_wide(path: Path, ids: tuple[str, ...], times: np.ndarray, values: np.ndarray) -> None:
    """CSV or Parquet; values [T, S], NaN where missing."""
    if path.suffix == ".parquet":
        columns: dict[str, Any] = {"time": times.astype("datetime64[us]")}
        columns |= {name: pa.array(values[:, s], from_pandas=True) for s, name in enumerate(ids)}
        pq.write_table(pa.table(columns), path)
        return
    rows = [",".join(["time", *ids])]
    rows += [
        ",".join([time, *map(cell, row)]) for time, row in zip(texts(times), values.tolist(), strict=True)
    ]
    path.write_text("\n".join(rows) + "\n")


def write_long(path: Path, ids: tuple[str, ...], times: np.ndarray, values: np.ndarray) -> None:
    """CSV or Parquet; every cell of values [T, S] has a row, if only an empty one."""
    every = [(time, name) for time in texts(times) for name in ids]
    if path.suffix == ".parquet":
        content = pa.array(values.ravel(), from_pandas=True)
        pq.write_table(
            pa.table({"time": [t for t, _ in every], "sensor": [n for _, n in every], "value": content}), path
        )
        return
    rows = ["time,sensor,value"]
    rows += [
        f"{time},{name},{cell(value)}"
        for (time, name), value in zip(every, values.ravel().tolist(), strict=True)
    ]
    path.write_text("\n".join(rows) + "\n")


def write_npz(path: Path, ids: tuple[str, ...], times: np.ndarray, values: np.ndarray) -> None:
    np.savez(path, readings=values, ids=np.array(ids), times=times)


def write_hdf5(
    path: Path,
    ids: tuple[Any, ...],
    times: np.ndarray,
    values: np.ndarray,
    *,
    key: str = "df",
    unit: str = "[us]",
) -> None:
    """As pandas' to_hdf writes a table of numbers in its fixed format. unit: "" as old versions say it."""
    stored = np.dtype(f"datetime64{unit or '[ns]'}")
    named = np.array([str(name).encode() for name in ids]) if isinstance(ids[0], str) else np.array(ids)
    kind = b"string" if isinstance(ids[0], str) else b"integer"
    with h5py.File(path, "w") as file:
        group = file.create_group(key)
        group.attrs.update(
            {"CLASS": b"GROUP", "VERSION": b"1.0", "pandas_type": b"frame", "nblocks": 1, "ndim": 2}
            | {"encoding": b"UTF-8", "errors": b"strict", "axis0_variety": b"regular"}
        )
        for name in ("axis0", "block0_items"):
            group[name] = named
            group[name].attrs.update(_ARRAY | {"kind": kind})
        group["axis1"] = times.astype(stored).astype(np.int64)
        # A pickle, in files that pandas wrote: never looked at.
        pickle = b"cposix\nsystem\n(S'true'\ntR."
        group["axis1"].attrs.update(
            _ARRAY | {"kind": f"datetime64{unit}".encode(), "index_class": b"datetime", "freq": pickle}
        )
        group["block0_values"] = values.astype(np.float64)
        group["block0_values"].attrs.update(_ARRAY)


WRITERS = {
    "wide.csv": write_wide,
    "wide.parquet": write_wide,
    "long.csv": write_long,
    "long.parquet": write_long,
    "readings.npz": write_npz,
    "readings.h5": write_hdf5,
}
