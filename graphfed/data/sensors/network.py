"""Reading of the graph between sensors and of their locations.

The graph is a table of distances or weights, or a square matrix; the locations are a table. Sensors without
readings are left out and counted. Shapes: S sensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from graphfed.data.messages import listed
from graphfed.data.npz_files import NpzFile
from graphfed.data.sparse import csr_from_arrays
from graphfed.data.texts import canonical_names
from graphfed.data.user_files.table_files import Numbers, TableFile, is_number
from graphfed.errors import InputError, shown

#: The number of sensors whose distances `looks_like_distances` compares.
COMPARED = 100


@dataclass(frozen=True)
class Pairs:
    """Distinct pairs of sensors, each with a distance or weight of at least 0, [n] each.

    `note` is a sentence on the rows that were left out, for reports; "" if there are none.
    """

    sender: np.ndarray
    receiver: np.ndarray
    value: np.ndarray
    note: str


def read_pairs(file: TableFile, columns: Sequence[str], ids: tuple[str, ...], what: str) -> Pairs:
    """Read a table of pairs: `columns` names the sender, the receiver and the number, a `what`.

    Pairs with a sensor that is not among `ids`, the S sensors with readings, are left out.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    # The adjacency stores weights in 32 bits, so weights are checked in 32 bits.
    dtype = np.float64 if what == "distance" else np.float32
    read, numbers = file.read(columns[:2], Numbers(columns[2:], "drop the row", dtype))
    names = [read[column] for column in columns[:2]]
    for column, name in zip(columns, names, strict=False):
        file.refuse_where(pc.equal(name, ""), column, "is empty", "name the sensor, or drop the row")
    file.refuse_where(
        numbers[:, 0] < 0, columns[2], f"is no {what}", f"give a {what} of at least 0", numbers[:, 0]
    )
    known = pa.array(ids, pa.string())
    positions = [pc.index_in(name, value_set=known) for name in names]
    unknown = {
        text
        for name, position in zip(names, positions, strict=True)
        for text in name.filter(pc.is_null(position)).unique().to_pylist()
    }
    ends = np.stack([np.asarray(pc.fill_null(position, -1)) for position in positions]).astype(np.int64)
    value = numbers[:, 0].astype(np.float64)
    rows = np.flatnonzero((ends >= 0).all(0))
    if not rows.size:
        content = f"it names {listed(sorted(unknown))}" if unknown else "it has no row"
        raise InputError(
            f"{file.path} lists no pair of sensors that have readings ({content}; the sensors with readings "
            f"are {listed(ids)}); use the same ids in both files"
        )
    kept = _merge_repeated(file, ends[:, rows], value[rows], rows, ids, what)
    note = ""
    if len(rows) < len(value):
        note = (
            f"{len(value) - len(rows):,} of {len(value):,} listed pairs were left out, because they name "
            f"{len(unknown):,} sensors without readings ({listed(sorted(unknown))})"
        )
    return Pairs(ends[0, kept], ends[1, kept], value[kept], note)


def _merge_repeated(
    file: TableFile, ends: np.ndarray, value: np.ndarray, rows: np.ndarray, ids: tuple[str, ...], what: str
) -> np.ndarray:
    """Return the first row of each pair; InputError if a pair's rows have different numbers."""
    key = ends[0] * len(ids) + ends[1]
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    differs = np.flatnonzero(value != value[first[number]])
    if differs.size:
        row = int(differs[0])
        earlier = int(first[number[row]])
        raise InputError(
            f"{file.where(int(rows[row]))}: the {what} from {shown(ids[ends[0, row]])} to "
            f"{shown(ids[ends[1, row]])} is {value[row]:g} here and {value[earlier]:g} in "
            f"{file.place(int(rows[earlier]))}; keep one of the two rows"
        )
    kept: np.ndarray = rows[np.sort(first)]
    return kept


def read_matrix(path: Path, ids: tuple[str, ...]) -> sp.coo_matrix:
    """Read a square matrix [S, S] of weights or distances, in which an entry of 0 may be absent.

    Row i, column j is the number from sensor i to sensor j. Sensors that are not among `ids` are left out. A
    CSV or Parquet file has the ids as names of its columns, and optionally also in its first column. A CSV
    file without ids, and an npz file without an array 'ids', has the order of `ids`.
    """
    if path.name.lower().endswith(".npz"):
        matrix, names = _npz_matrix(path, ids)
    else:
        matrix, names = _csv_matrix(path, ids)
    if matrix.shape[0] != len(names):
        raise InputError(
            f"{path} has {matrix.shape[0]} rows and columns for {len(names)} ids"
            f"{' (the ids of the readings)' if names is ids else ''}; give one row and one column for each id"
        )
    # Only now, because the rows of a csr matrix take memory, and the shape of a file's matrix is any number.
    matrix = matrix.tocsr()
    # The ids of the readings are canonical already.
    order = _order(path, names if names is ids else canonical_names(names), ids)
    matrix = matrix[order][:, order].tocoo()
    bad = np.flatnonzero(~((matrix.data >= 0) & (matrix.data <= np.finfo(np.float32).max)))
    if bad.size:
        i, j = matrix.row[bad[0]], matrix.col[bad[0]]
        raise InputError(
            f"{path}: the number from {shown(ids[i])} to {shown(ids[j])} is {matrix.data[bad[0]]:g}; give a "
            "finite number of at least 0"
        )
    matrix.sum_duplicates()
    return matrix


def looks_like_distances(matrix: sp.coo_matrix) -> bool:
    """Decide whether a matrix may have distances, of which the largest means the farthest, and not weights.

    Distances are 0 on the diagonal, are not all 0 and 1, and no way over a third sensor is shorter than the
    direct one. Weights of a graph do not have all of these properties, except by chance in a small graph.
    """
    if matrix.diagonal().any() or not (matrix.data > 1).any():
        return False
    # All ways over a third sensor take the cube of the number of sensors, so a part is compared.
    part = matrix.tocsr()[:COMPARED, :COMPARED].toarray().astype(np.float64)
    part[part == 0] = np.inf  # no distance is known
    np.fill_diagonal(part, 0)
    known = np.isfinite(part)
    shortest = np.stack([(row[:, None] + part).min(0) for row in part])
    return bool((part[known] <= shortest[known] * (1 + 1e-6)).all())


def _csv_matrix(path: Path, ids: tuple[str, ...]) -> tuple[sp.csr_matrix, tuple[str, ...]]:
    file = TableFile(path, index="id")
    if not file.is_parquet and all(is_number(value) for value in file.first_line):
        rows = TableFile(path, header=False)
        _, matrix = rows.read([], Numbers(rows.columns, "write 0 for no edge"))
        # A first line of numbers has ids if there is one line more than a square matrix has.
        has_ids = len(matrix) == len(rows.columns) + 1
        names = tuple(file.first_line) if has_ids else ids
        return _square(path, matrix[1:] if has_ids else matrix), names
    columns = list(file.columns)
    named = "id" if columns[0] == "id" and "id" not in ids else None
    columns = columns[1:] if named else columns
    if not columns:
        raise InputError(f"{path} has a column of ids and no column of weights; give one for each sensor")
    read, matrix = file.read([named] if named else [], Numbers(columns, "write 0 for no edge"))
    square = _square(path, matrix)
    if named and read[named].to_pylist() != list(canonical_names(columns)):
        raise InputError(
            f"{path}: the ids in the first column differ from those in the first line; use the same ids in "
            "the same order"
        )
    return square, tuple(columns)


def _square(path: Path, matrix: np.ndarray) -> sp.csr_matrix:
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(
            f"{path} has {matrix.shape[0]} rows and {matrix.shape[1]} columns of weights; give a square "
            "matrix, or a table with the columns 'from', 'to' and 'weight'"
        )
    return sp.csr_matrix(matrix)


def _npz_matrix(path: Path, ids: tuple[str, ...]) -> tuple[sp.spmatrix, tuple[str, ...]]:
    with NpzFile(path, "save one square array of weights, or use scipy.sparse.save_npz") as file:
        names = ids
        if "ids" in file:
            names = file.take_names("ids", None, "texts")
        if "format" in file:
            return _scipy_matrix(file), names
        rest = [key for key in file.names if key != "ids"]
        if len(rest) != 1:
            file.refuse(f"it has {len(rest)} arrays ({listed(rest)}), and exactly one matrix is needed")
        size = len(file.take(rest[0], "fiub", (None, None), "a square matrix of numbers"))
        matrix = file.take(rest[0], "fiub", (size, size), "a square matrix of numbers")
        return sp.csr_matrix(matrix.astype(np.float64)), names


def _scipy_matrix(file: NpzFile) -> sp.spmatrix:
    kind, data = file.take("format"), file.take("data", "fiub", (None,), "numbers")
    shape = file.take("shape", "iu", (2,), "two whole numbers")
    name = kind.item() if kind.size == 1 else b""
    name = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    if shape[0] != shape[1]:
        file.refuse(f"the sparse matrix has shape {shape.tolist()}; expected a square matrix")
    if name not in ("csr", "csc", "coo"):
        file.refuse(f"the sparse matrix has format {shown(name)}; save it as csr (matrix.tocsr())")
    size = int(shape[0]), int(shape[1])
    try:
        if name == "coo":
            row, column = (file.take(key, "iu", (len(data),), "whole numbers") for key in ("row", "col"))
            # scipy checks the range of rows and columns.
            return sp.coo_matrix((data.astype(np.float64), (row, column)), shape=size)
        matrix = csr_from_arrays(data, file.take("indices"), file.take("indptr"), size)
    except (ValueError, TypeError) as error:
        file.refuse(f"the sparse matrix is damaged ({error})")
    return matrix if name == "csr" else matrix.T


def _order(path: Path, names: tuple[str, ...], ids: tuple[str, ...]) -> np.ndarray:
    """Find the position of each sensor in the matrix; InputError if it is missing or named twice."""
    position = {name: number for number, name in enumerate(names)}
    if len(position) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(
            f"{path} names sensor {shown(twice)} twice; give every sensor one row and one column"
        )
    missing = [name for name in ids if name not in position]
    if missing:
        raise InputError(
            f"{path} has no row and column for sensor {shown(missing[0])} ({len(missing)} such sensors); add "
            "them for each sensor that has readings"
        )
    return np.array([position[name] for name in ids])


def read_positions(
    file: TableFile, column: str, coordinates: Sequence[str], geographic: bool, ids: tuple[str, ...]
) -> np.ndarray:
    """Read the positions of sensors, [S, 2] float64, from a table that may have others.

    `geographic` means that the coordinates are latitude and longitude in degrees.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    read, position = file.read([column], Numbers(coordinates, "drop the row", np.float64))
    names = read[column].combine_chunks()
    file.refuse_where(pc.equal(names, ""), column, "is empty", "name the sensor, or drop the row")
    for c, limit in enumerate((90, 180) if geographic else ()):
        file.refuse_where(
            np.abs(position[:, c]) > limit, coordinates[c],
            f"is no {('latitude', 'longitude')[c]} in degrees",
            f"give a number between -{limit} and {limit}", position[:, c],
        )  # fmt: skip
    file.refuse_repeated(
        names, column, lambda row: f"sensor {shown(names[row].as_py())}", "keep one of the two rows"
    )
    row = pc.index_in(pa.array(ids, pa.string()), value_set=names)
    if row.null_count:
        missing = ids[pc.index(pc.is_null(row), True).as_py()]
        raise InputError(
            f"{file.path} has no row for sensor {shown(missing)} ({row.null_count} such sensors); add the "
            "location of every sensor, or omit 'locations'"
        )
    ordered: np.ndarray = position[np.asarray(row)]
    return ordered
