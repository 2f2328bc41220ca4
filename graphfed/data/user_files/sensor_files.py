"""Loading of users' sensors from the files that a description names. Shapes: S sensors."""

import numpy as np
import scipy.sparse as sp

from graphfed.data.sensors.kernel import gaussian_kernel, with_unit_diagonal
from graphfed.data.sensors.network import looks_like_distances, read_matrix, read_pairs, read_positions
from graphfed.data.sensors.readings import Rows, on_grid, read_arrays, read_hdf5, read_long, read_wide
from graphfed.data.sensors.series import Sensors
from graphfed.data.user_files.sensor_description import SensorDescription
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError


def load_sensors(description: SensorDescription) -> Sensors:
    """Load the sensors that have readings, in the order of the readings.

    Rows may be in any order and may be absent. `note` states what was left out of the other files. Readings
    without a graph, which a client of a deployment has, have no edges.
    """
    rows = _read_rows(description)
    adjacency, notes = sp.identity(len(rows.ids), np.float32, "csr"), list[str]()
    if description.distances is not None or description.adjacency is not None:
        adjacency, notes = _adjacency(description, rows.ids)
    position = None
    if description.locations is not None:
        assert description.id is not None
        file = TableFile(description.locations)
        columns = description.id, description.coordinates, description.geographic
        position = read_positions(file, *columns, rows.ids)
    grid = on_grid(rows, description.step_minutes)
    return Sensors(
        name=description.name,
        readings=grid.readings,
        missing=grid.missing,
        adjacency=adjacency,
        position=position,
        ids=rows.ids,
        start=grid.start,
        step_minutes=grid.step_minutes,
        geographic=description.geographic,
        quantity=description.quantity,
        note="; ".join(filter(None, ["times are in UTC" if rows.zoned else "", rows.note, *notes])),
    )


def load_graph(description: SensorDescription, ids: tuple[str, ...]) -> sp.csr_matrix:
    """Load the adjacency [S, S] of the sensors `ids` (see `Sensors`) from a part "graph"."""
    return _adjacency(description, ids)[0]


def _adjacency(description: SensorDescription, ids: tuple[str, ...]) -> tuple[sp.csr_matrix, list[str]]:
    """Load the graph, and remarks on it for readers of results."""
    notes: list[str] = []
    path, distances = description.distances or description.adjacency, description.has_distances
    assert path is not None
    if description.pairs:
        pairs = read_pairs(TableFile(path), description.pairs, ids, "distance" if distances else "weight")
        notes += [pairs.note] if pairs.note else []
        listed = pairs.sender, pairs.receiver, pairs.value, len(ids)
    else:
        matrix = read_matrix(path, ids)
        if description.adjacency_holds is None and looks_like_distances(matrix):
            raise InputError(
                f"{path} has 0 on its diagonal and numbers like distances, of which the largest would be the "
                "heaviest edge; write 'adjacency_holds: distances' in the description, or 'adjacency_holds: "
                "weights' if a larger number is a stronger edge"
            )
        if distances:
            matrix, note = _with_zero_diagonal(matrix)
            notes += [note] if note else []
        listed = matrix.row, matrix.col, matrix.data.astype(np.float64), len(ids)
    if not distances:
        return with_unit_diagonal(*listed), notes
    adjacency = gaussian_kernel(*listed, threshold=description.threshold, sigma=description.sigma)
    if adjacency.nnz == len(ids) and (listed[0] != listed[1]).any():
        notes.append("no two sensors are close enough for an edge (see sigma and threshold)")
    return adjacency, notes


def _with_zero_diagonal(matrix: sp.coo_matrix) -> tuple[sp.coo_matrix, str]:
    """List the distances of a matrix, with those of every sensor to itself, and a note on the other zeros.

    Sigma is the standard deviation of the listed distances, including those of 0 on the diagonal.
    """
    size = matrix.shape[0]
    known = (matrix.data > 0) & (matrix.row != matrix.col)
    # The diagonal is listed as 0, as in the public tables, because it enters sigma.
    row, column = (np.append(ends[known], np.arange(size)) for ends in (matrix.row, matrix.col))
    listed = sp.coo_matrix((np.append(matrix.data[known], np.zeros(size)), (row, column)), matrix.shape)
    absent = size * (size - 1) - int(known.sum())
    return (
        listed,
        f"{absent:,} pairs of sensors have no distance (0 in the matrix), so no edge" if absent else "",
    )


def _read_rows(description: SensorDescription) -> Rows:
    path, missing = description.readings, description.missing
    assert path is not None
    if description.time is None:
        return read_arrays(path, missing) if path.suffix.lower() == ".npz" else read_hdf5(path, missing)
    if description.sensor is None or description.value is None:
        return read_wide(path, description.time, missing)
    return read_long(path, description.time, description.sensor, description.value, missing)
