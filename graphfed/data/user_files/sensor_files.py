"""The user's own sensors: the files that a description names, as Sensors."""

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
    """The sensors that the readings name, in the readings' order. Rows may be in any order of time, and lack;
    `note` says what of the other files was left out.

    Raises InputError with file, row, value and fix for what cannot be used (see the functions that read)."""
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
    """Sensors without a graph, of a description of readings only. Raises what `load_sensors` raises."""
    rows = _read_rows(description)
    alone = sp.csr_matrix(sp.eye(len(rows.ids), dtype=np.float32))
    return _sensors(description, rows, alone, None, [])


def load_graph(description: SensorDescription, ids: tuple[str, ...]) -> sp.csr_matrix:
    """The graph between the sensors `ids`, [S, S] (see `Sensors`), of a description of a graph only. Raises
    what `load_sensors` raises."""
    return _adjacency(description, ids)[0]


def _adjacency(description: SensorDescription, ids: tuple[str, ...]) -> tuple[sp.csr_matrix, list[str]]:
    """The graph, and what to note of it."""
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
