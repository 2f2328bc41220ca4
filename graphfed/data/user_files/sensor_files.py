"""Loading of users' sensors from the files that a description names. Shapes: S sensors."""

import numpy as np
import scipy.sparse as sp

from graphfed.data.sensors.kernel import gaussian_kernel, with_unit_diagonal
from graphfed.data.sensors.network import read_matrix, read_pairs, read_positions
from graphfed.data.sensors.readings import (
    Rows,
    on_grid,
    read_arrays,
    read_hdf5,
    read_long,
    read_wide,
)
from graphfed.data.sensors.series import Sensors
from graphfed.data.user_files.sensor_description import SensorDescription
from graphfed.data.user_files.table_files import TableFile

__all__ = ["load_graph", "load_readings", "load_sensors"]


def load_sensors(description: SensorDescription) -> Sensors:
    """Load the sensors that a description describes.

    Args:
        description: What `describe_sensors` returned.

    Returns:
        The sensors that have readings, in the order of the readings. Rows may be in any order and may be
        absent. `note` states what was left out of the other files.

    Raises:
        InputError: A value cannot be used; the message names file, row and value, and the fix.
    """
    rows = _read_rows(description)
    adjacency, notes = _adjacency(description, rows.ids)
    position = None
    if description.locations is not None:
        assert description.id is not None
        file = TableFile(description.locations)
        columns = description.id, description.coordinates, description.geographic
        position = read_positions(file, *columns, rows.ids)
    return _sensors(description, rows, adjacency, position, notes)


def load_readings(description: SensorDescription) -> Sensors:
    """Load readings without a graph.

    Args:
        description: What `describe_readings` returned.

    Returns:
        The sensors, without edges and positions.

    Raises:
        InputError: As in `load_sensors`.
    """
    rows = _read_rows(description)
    no_edges = sp.csr_matrix(sp.eye(len(rows.ids), dtype=np.float32))
    return _sensors(description, rows, no_edges, None, [])


def load_graph(description: SensorDescription, ids: tuple[str, ...]) -> sp.csr_matrix:
    """Load the graph between sensors.

    Args:
        description: What `describe_graph` returned.
        ids: The names of S sensors.

    Returns:
        The adjacency, [S, S] (see `Sensors`).

    Raises:
        InputError: As in `load_sensors`.
    """
    return _adjacency(description, ids)[0]


def _adjacency(description: SensorDescription, ids: tuple[str, ...]) -> tuple[sp.csr_matrix, list[str]]:
    """Load the graph, and remarks on it for readers of results."""
    notes: list[str] = []
    if description.distances is not None or description.pairs:
        path = description.distances or description.adjacency
        assert path is not None
        what = "distance" if description.distances is not None else "weight"
        pairs = read_pairs(TableFile(path), description.pairs, ids, what)
        notes += [pairs.note] if pairs.note else []
        listed = pairs.sender, pairs.receiver, pairs.value, len(ids)
        if what == "distance":
            adjacency = gaussian_kernel(*listed, threshold=description.threshold, sigma=description.sigma)
            if adjacency.nnz == len(ids) and (pairs.sender != pairs.receiver).any():
                notes.append("no two sensors are close enough for an edge (see sigma and threshold)")
        else:
            adjacency = with_unit_diagonal(*listed)
    else:
        assert description.adjacency is not None
        adjacency = read_matrix(description.adjacency, ids)
    return adjacency, notes


def _sensors(
    description: SensorDescription,
    rows: Rows,
    adjacency: sp.csr_matrix,
    position: np.ndarray | None,
    notes: list[str],
) -> Sensors:
    grid = on_grid(rows, description.step_minutes)
    missing = np.isnan(grid.readings)
    grid.readings[missing] = 0
    return Sensors(
        name=description.name,
        readings=grid.readings,
        missing=missing,
        adjacency=adjacency,
        position=position,
        ids=rows.ids,
        start=grid.start,
        step_minutes=grid.step_minutes,
        geographic=description.geographic,
        quantity=description.quantity,
        note="; ".join([*(["times are in UTC"] if rows.zoned else []), *notes]),
    )


def _read_rows(description: SensorDescription) -> Rows:
    path, missing = description.readings, description.missing
    assert path is not None
    if description.time is None:
        return read_arrays(path, missing) if path.suffix.lower() == ".npz" else read_hdf5(path, missing)
    if description.sensor is None or description.value is None:
        return read_wide(path, description.time, missing)
    return read_long(path, description.time, description.sensor, description.value, missing)
