"""The user's own sensors: the files that a description names, as Sensors."""

import numpy as np

from graphfed.data.kernel import gaussian_kernel, with_unit_diagonal
from graphfed.data.sensor_description import SensorDescription
from graphfed.data.sensor_graph import read_matrix, read_pairs, read_positions
from graphfed.data.sensor_readings import HDF5, Rows, on_grid, read_arrays, read_hdf5, read_long, read_wide
from graphfed.data.sensors import Sensors
from graphfed.data.table_files import TableFile

__all__ = ["load_sensors"]


def load_sensors(description: SensorDescription) -> Sensors:
    """The sensors that the readings name, in the readings' order. Rows may be in any order of time, and lack;
    `note` says what of the other files was left out.

    Raises InputError with file, row, value and fix for what cannot be used (see the functions that read)."""
    rows = _rows(description)
    ids = rows.ids
    grid = on_grid(rows, description.step_minutes)
    notes = ["times are in UTC"] if rows.zoned else []
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
    position = None
    if description.locations is not None:
        file = TableFile(description.locations)
        position = read_positions(file, description.id, description.coordinates, description.geographic, ids)
    missing = np.isnan(grid.readings)
    grid.readings[missing] = 0
    return Sensors(
        name=description.name,
        readings=grid.readings,
        missing=missing,
        adjacency=adjacency,
        position=position,
        ids=ids,
        start=grid.start,
        step_minutes=grid.step_minutes,
        geographic=description.geographic,
        quantity=description.quantity,
        note="; ".join(notes),
    )


def _rows(description: SensorDescription) -> Rows:
    path, missing = description.readings, description.missing
    if path.name.lower().endswith(HDF5):
        return read_hdf5(path, missing)
    if path.name.lower().endswith(".npz"):
        return read_arrays(path, missing)
    assert description.time is not None
    if description.sensor is None or description.value is None:
        return read_wide(path, description.time, missing)
    return read_long(path, description.time, description.sensor, description.value, missing)
