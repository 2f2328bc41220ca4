"""The graph between sensors, and where they are: a table of distances or of weights, a square matrix, a table
of locations. Sensors that the readings do not have are left out, and counted. S sensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from graphfed.data.npz_files import NpzFile
from graphfed.data.sensors.kernel import with_unit_diagonal
from graphfed.data.sparse import csr_from_arrays
from graphfed.data.user_files.table_files import Numbers, TableFile
from graphfed.errors import InputError, shown

__all__ = ["Pairs", "read_matrix", "read_pairs", "read_positions"]


@dataclass(frozen=True)
class Pairs:
    """Listed pairs of known sensors, none twice. sender, receiver: [n] int64, numbers of sensors; value: [n]
    float64, not negative. listed: the rows of the file; left_out: those of them that name a sensor without
    readings; unknown: these sensors, sorted."""

    sender: np.ndarray
    receiver: np.ndarray
    value: np.ndarray
    listed: int
    left_out: int
    unknown: tuple[str, ...]

    @property
    def note(self) -> str:
        """What became of the rest, for readers of results; "" where there is none."""
        if not self.left_out:
            return ""
        return (
            f"{self.left_out:,} of {self.listed:,} listed pairs name {len(self.unknown):,} sensors without "
            f"readings ({_some(self.unknown)}) and were left out"
        )


def read_pairs(file: TableFile, columns: Sequence[str], ids: tuple[str, ...], what: str) -> Pairs:
    """A table with a row for each pair of sensors. columns: what those of the sender, the receiver and the
    number are called; what: what the number is, for messages.

    Raises InputError for a number that is negative or none, a pair with two numbers, and a file that names
    none of the sensors."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Weights are kept in 32 bits.
    dtype = np.float64 if what == "distance" else np.float32
    read, numbers = file.read(columns[:2], Numbers(columns[2:], "drop the row", dtype))
    names = [read[column] for column in columns[:2]]
    for column, name in zip(columns, names, strict=False):
        file.refuse_where(pc.equal(name, ""), column, "is empty", "name the sensor, or drop the row")
    file.refuse_where(
        numbers[:, 0] < 0, columns[2], f"is no {what}", f"a {what} is 0 or more: correct it", numbers[:, 0]
    )
    known = pa.array(ids, pa.string())
    places = [pc.index_in(name, value_set=known) for name in names]
    unknown = {
        text
        for name, place in zip(names, places, strict=True)
        for text in name.filter(pc.is_null(place)).unique().to_pylist()
    }
    end = np.stack([np.asarray(pc.fill_null(place, -1)) for place in places]).astype(np.int64)
    value = numbers[:, 0].astype(np.float64)
    rows = np.flatnonzero((end >= 0).all(0))
    if not rows.size:
        named = f"it names {_some(tuple(sorted(unknown)))}" if unknown else "it has no row"
        raise InputError(
            f"{file.path} lists no pair of the sensors that have readings ({named}; readings are of "
            f"{_some(ids)}); use the same ids in both files"
        )
    kept = _once(file, end[:, rows], value[rows], rows, ids, what)
    left_out = len(value) - len(rows)
    return Pairs(end[0, kept], end[1, kept], value[kept], len(value), left_out, tuple(sorted(unknown)))


def _once(
    file: TableFile, end: np.ndarray, value: np.ndarray, rows: np.ndarray, ids: tuple[str, ...], what: str
) -> np.ndarray:
    """The rows to keep: the first of those that say the same; InputError where they do not."""
    key = end[0] * len(ids) + end[1]
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    differs = np.flatnonzero(value != value[first[number]])
    if differs.size:
        at = int(differs[0])
        before = int(first[number[at]])
        raise InputError(
            f"{file.where(int(rows[at]))}: the {what} from {shown(ids[end[0, at]])} to "
            f"{shown(ids[end[1, at]])} is {value[at]:g} here and {value[before]:g} in "
            f"{file.place(int(rows[before]))}; keep one of them"
        )
    kept: np.ndarray = rows[np.sort(first)]
    return kept


def read_matrix(path: Path, ids: tuple[str, ...]) -> sp.csr_matrix:
    """A square matrix of weights, [S, S] float32 csr with diagonal 1: row i, column j is the weight from
    sensor i to j.

    CSV with the ids in the first line (and, if you like, in the first column, too), or without any id, in the
    order of the readings; npz of one square array, with an array 'ids' for its order where that is another,
    or as scipy.sparse.save_npz writes it.

    Raises InputError for another shape, other sensors, and a weight that is negative or not finite."""
    if path.name.lower().endswith(".npz"):
        matrix, names = _npz_matrix(path, ids)
    else:
        matrix, names = _csv_matrix(path, ids)
    if matrix.shape[0] != len(names):
        raise InputError(
            f"{path} has {matrix.shape[0]} rows and columns, and there are {len(names)} ids"
            f"{' (those of the readings)' if names is ids else ''}; give a row and a column for each id"
        )
    order = _order(path, names, ids)
    matrix = matrix[order][:, order].tocoo()
    bad = np.flatnonzero(~((matrix.data >= 0) & (matrix.data <= np.finfo(np.float32).max)))
    if bad.size:
        i, j = matrix.row[bad[0]], matrix.col[bad[0]]
        raise InputError(
            f"{path}: the weight from {shown(ids[i])} to {shown(ids[j])} is {matrix.data[bad[0]]:g}; a "
            "weight is a finite number of 0 or more"
        )
    matrix.sum_duplicates()
    return with_unit_diagonal(matrix.row, matrix.col, matrix.data, len(ids))


def _csv_matrix(path: Path, ids: tuple[str, ...]) -> tuple[sp.csr_matrix, tuple[str, ...]]:
    first = [] if path.name.lower().endswith((".parquet", ".pq")) else TableFile(path).first_line
    bare = bool(first) and all(_is_number(value) for value in first) and not set(ids) <= set(first)
    file = TableFile(path, names=[str(i) for i in range(len(first))]) if bare else TableFile(path, index="id")
    columns = list(file.columns)
    named = "id" if not bare and columns[0] == "id" and "id" not in ids else None
    columns = columns[1:] if named else columns
    if not columns:
        raise InputError(f"{path} has a column of ids and none of weights; it needs one for each sensor")
    read, matrix = file.read([named] if named else [], Numbers(columns, "write 0 for no edge"))
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(
            f"{path} has {matrix.shape[0]} rows and {matrix.shape[1]} columns of weights; a matrix is "
            "square, or give a table with the columns 'from', 'to' and 'weight'"
        )
    if named and read[named].to_pylist() != columns:
        raise InputError(f"{path}: the ids in the first column are not those of the first line, in its order")
    return sp.csr_matrix(matrix), ids if bare else tuple(columns)


def _npz_matrix(path: Path, ids: tuple[str, ...]) -> tuple[sp.csr_matrix, tuple[str, ...]]:
    with NpzFile(path, "save one square array of weights, or use scipy.sparse.save_npz") as file:
        names = ids
        if "ids" in file:
            names = file.take_names("ids", None, "texts")
        if "format" in file:
            return _scipy_matrix(file), names
        rest = [key for key in file.names if key != "ids"]
        if len(rest) != 1:
            file.refuse(f"it has {len(rest)} arrays ({_some(tuple(rest))}), and one matrix is needed")
        size = len(file.take(rest[0], "fiub", (None, None), "a square of numbers"))
        matrix = file.take(rest[0], "fiub", (size, size), "a square of numbers")
        return sp.csr_matrix(matrix.astype(np.float64)), names


def _scipy_matrix(file: NpzFile) -> sp.csr_matrix:
    """What scipy.sparse.save_npz wrote, as csr (its default), csc or coo."""
    kind, data = file.take("format"), file.take("data", "fiub", (None,), "numbers")
    shape = file.take("shape", "iu", (2,), "two whole numbers")
    name = kind.item() if kind.size == 1 else b""
    name = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    if shape[0] != shape[1]:
        file.refuse(f"the sparse matrix has shape {shape.tolist()}; expected a square of numbers")
    if name not in ("csr", "csc", "coo"):
        file.refuse(f"the sparse matrix has format {shown(name)}; save it as csr (matrix.tocsr())")
    size = int(shape[0]), int(shape[1])
    try:
        if name == "coo":
            row, column = (file.take(key, "iu", (len(data),), "whole numbers") for key in ("row", "col"))
            # scipy checks their range itself.
            return sp.coo_matrix((data.astype(np.float64), (row, column)), shape=size).tocsr()
        matrix = csr_from_arrays(data, file.take("indices"), file.take("indptr"), size)
    except (ValueError, TypeError) as error:
        file.refuse(f"the sparse matrix is damaged ({error})")
    return matrix if name == "csr" else matrix.T.tocsr()


def _order(path: Path, names: tuple[str, ...], ids: tuple[str, ...]) -> np.ndarray:
    """Where each sensor is in the matrix; InputError where it is not, or twice."""
    place = {name: number for number, name in enumerate(names)}
    if len(place) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{path} names sensor {shown(twice)} twice; every sensor has one row and one column")
    missing = [name for name in ids if name not in place]
    if missing:
        raise InputError(
            f"{path} has no row and column of sensor {shown(missing[0])} ({len(missing)} such sensors); the "
            "matrix needs one for each sensor that has readings"
        )
    return np.array([place[name] for name in ids])


def read_positions(
    file: TableFile, column: str, coordinates: Sequence[str], geographic: bool, ids: tuple[str, ...]
) -> np.ndarray:
    """Where each sensor is, [S, 2] float64, from a table of more sensors or these. column: that of their ids;
    coordinates: the columns of latitude and longitude, or of x and y.

    Raises InputError for a sensor that is there twice or not at all, and a coordinate that is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    read, position = file.read([column], Numbers(coordinates, "drop the row", np.float64))
    names = read[column].combine_chunks()
    file.refuse_where(pc.equal(names, ""), column, "is empty", "name the sensor, or drop the row")
    for c, limit in enumerate((90, 180) if geographic else ()):
        file.refuse_where(
            np.abs(position[:, c]) > limit, coordinates[c],
            f"is no {('latitude', 'longitude')[c]} in degrees",
            f"it is between -{limit} and {limit}: correct it", position[:, c],
        )  # fmt: skip
    file.refuse_repeated(names, column, lambda row: f"sensor {shown(names[row].as_py())}", "keep one of them")
    place = pc.index_in(pa.array(ids, pa.string()), value_set=names)
    if place.null_count:
        missing = ids[pc.index(pc.is_null(place), True).as_py()]
        raise InputError(
            f"{file.path} has no row for sensor {shown(missing)} ({place.null_count} such sensors); give the "
            "location of each, or leave 'locations' out"
        )
    ordered: np.ndarray = position[np.asarray(place)]
    return ordered


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(map(shown, names[:5])) + (", ..." if len(names) > 5 else "")
