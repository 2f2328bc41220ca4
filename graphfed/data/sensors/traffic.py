"""The traffic data METR-LA and PEMS-BAY: speeds of cars every five minutes.

METR-LA has 207 sensors in Los Angeles over four months of 2012, PEMS-BAY 325 sensors in the Bay Area over six
months of 2017. The full readings are the usual public files metr-la.h5 and pems-bay.h5, which pandas wrote,
or the same tables as CSV. The graph is one npz file (sensor_ids, lat, lon and the matrix adj), or the public
tables of distances and locations. The pickle adj_mx.pkl is never read. Subsets are npz files of readings
("speed", or "speed_tenths") with sensor_ids, start and step_minutes; subsets of few sensors also contain
their graph.

A reading of 0 means a missing reading. Shapes: T steps, S sensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import numpy as np
import scipy.sparse as sp

from graphfed.data.npz_files import NpzFile
from graphfed.data.sensors.kernel import gaussian_kernel, with_unit_diagonal
from graphfed.data.sensors.network import read_pairs, read_positions
from graphfed.data.sensors.readings import INDEX, MINUTE, Rows, on_grid, read_hdf5, read_wide
from graphfed.data.sensors.series import Sensors
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError

QUANTITY = "speed (miles per hour)"
STEP_MINUTES = 5
DCRNN = "the public repository liyaguang/DCRNN, folder data/sensor_graph"


@dataclass(frozen=True)
class Roads:
    """The files of a road network: an npz file of the graph, or else the tables of distances and locations.

    `lost_hour` is the start of the hour that a clock skipped, if the readings have no rows for it.
    """

    graph: str
    distances: str
    locations: tuple[str, ...]
    lost_hour: str | None = None


@dataclass(frozen=True)
class TrafficSource:
    """A data set: its title, the names that its file of readings may have, and where that comes from.

    `roads` has the files of the graph; None if the file of readings contains the graph.
    """

    name: str
    title: str
    readings: tuple[str, ...]
    roads: Roads | None
    source: str
    note: str = ""


_LA = Roads("metr_la_graph.npz", "distances_la_2012.csv", ("graph_sensor_locations.csv",))
_BAY = Roads(
    "pems_bay_graph.npz",
    "distances_bay_2017.csv",
    ("graph_sensor_locations_bay.csv", "graph_sensor_locations_pems_bay.csv"),
    lost_hour="2017-03-12T02:00",
)
_FULL = "the files that the public repository liyaguang/DCRNN links to"
_LOST = "the hour that daylight saving time skipped on 2017-03-12 is no step, so later times are 1 h early"
TRAFFIC = {
    source.name: source
    for source in (
        TrafficSource(
            "metr_la",
            "Los Angeles: speeds at 207 sensors, 34 272 steps of 5 minutes",
            ("metr-la.h5", "METR-LA.h5", "METR-LA.csv", "metr-la.csv"),
            _LA,
            _FULL,
        ),
        TrafficSource(
            "pems_bay",
            "Bay Area: speeds at 325 sensors, 52 116 steps of 5 minutes",
            ("pems-bay.h5", "PEMS-BAY.h5", "PEMS-BAY.csv", "pems-bay.csv"),
            _BAY,
            _FULL,
        ),
        TrafficSource(
            "metr_la_week",
            "METR-LA, first week: 207 sensors, 2 016 steps, gaps interpolated",
            ("metr_la_207sensors_first_week_interpolated.npz",),
            _LA,
            "the public repository lehaifeng/T-GCN, data/los_speed.csv",
            "first week; missing readings filled by linear interpolation",
        ),
        TrafficSource(
            "metr_la_raw",
            "METR-LA, its first 1 026 steps at 207 sensors, with the gaps",
            ("metr_la_207sensors_first1026steps_raw.npz",),
            _LA,
            "the first 1 026 rows of metr-la.h5",
            "first three and a half days",
        ),
        TrafficSource(
            "metr_la_20",
            "METR-LA, 20 of the sensors over the full period",
            ("metr_la_20sensors.npz",),
            None,
            "the readings of 20 sensors in metr-la.h5",
            "20 of 207 sensors",
        ),
        TrafficSource(
            "pems_bay_67",
            "PEMS-BAY, 67 of the sensors over the full period",
            ("pems_bay_67sensors.npz",),
            None,
            "the readings of 67 sensors in pems-bay.h5",
            f"67 of 325 sensors; {_LOST}",
        ),
    )
}


def find_traffic(roots: list[Path], source: TrafficSource) -> tuple[Path | None, list[str]]:
    """Find the file of readings of a data set (None if there is none), and the names of the missing files."""
    readings = _first(roots, source.readings)
    missing = [] if readings else [source.readings[0]]
    if source.roads is not None and not _first(roots, (source.roads.graph, source.roads.distances)):
        missing.append(f"{source.roads.graph} or {source.roads.distances}")
    return readings, missing


def load_traffic(source: TrafficSource, roots: list[Path]) -> Sensors:
    """Load a traffic data set from the first of the data folders `roots` that has it."""
    place = _first(roots, source.readings)
    if place is None:
        _missing(source, source.readings, roots, source.source)
    if place.suffix == ".npz":
        sensors = _from_npz(source, place)
    else:
        rows = read_hdf5(place, 0) if place.suffix == ".h5" else read_wide(place, INDEX, 0)
        sensors = _from_table(source, rows)
    if source.roads is None:
        return sensors
    adjacency, position = _graph(source, source.roads, roots, sensors.ids)
    return replace(sensors, adjacency=adjacency, position=position)


# ---- readings ----------------------------------------------------------------------------------------------


def _from_npz(source: TrafficSource, place: Path) -> Sensors:
    """Read a subset. It has no edges and positions unless its file contains a graph."""
    with NpzFile(place, f"get it again from {source.source}") as file:
        tenths = "speed_tenths" in file
        ids = _sensor_ids(file)
        form = f"numbers [time, {len(ids)}]"
        speed = file.take("speed_tenths" if tenths else "speed", "fiu", (None, len(ids)), form)
        if not len(speed):
            file.refuse("it has no reading")
        start = file.take("start", "U", (), "a time")
        step = file.take("step_minutes", "iu", (), "one whole number")
        readings = (speed / 10 if tenths else speed).astype(np.float32)
        adjacency = sp.identity(len(ids), np.float32, "csr")
        position = None
        if source.roads is None:
            adjacency, position = _graph_arrays(file, np.arange(len(ids)), len(ids))
        return Sensors(
            name=source.name,
            readings=readings,
            missing=readings == 0,
            adjacency=adjacency,
            position=position,
            ids=ids,
            start=str(start.item()),
            step_minutes=int(step.item()),
            geographic=True,
            quantity=QUANTITY,
            note=source.note,
        )


def _from_table(source: TrafficSource, rows: Rows) -> Sensors:
    """Convert the rows of a full table, without edges and positions."""
    lost, note = source.roads.lost_hour if source.roads else None, source.note
    if lost is not None:
        # Publications use the row number as the time step, and the hour that the clock skipped has no rows.
        # So later times are moved to leave no gap.
        begin = int(np.datetime64(lost, "us").astype(np.int64))
        after = rows.times >= begin + 60 * MINUTE
        if not ((rows.times >= begin) & ~after).any():
            rows = replace(rows, times=np.where(after, rows.times - 60 * MINUTE, rows.times))
            note = _LOST
    grid = on_grid(rows, STEP_MINUTES)
    return Sensors(
        name=source.name,
        readings=grid.readings,
        missing=grid.missing,
        adjacency=sp.identity(len(rows.ids), np.float32, "csr"),
        position=None,
        ids=rows.ids,
        start=grid.start,
        step_minutes=grid.step_minutes,
        geographic=True,
        quantity=QUANTITY,
        note=note,
    )


# ---- the graph ---------------------------------------------------------------------------------------------


def _graph(
    source: TrafficSource, roads: Roads, roots: list[Path], ids: tuple[str, ...]
) -> tuple[sp.csr_matrix, np.ndarray | None]:
    """Read adjacency and positions from the first root that has the npz file or the tables."""
    for root in roots:
        place = _first([root], (roads.graph,))
        if place is not None:
            with NpzFile(place, f"create it again from {DCRNN}") as file:
                listed = {name: number for number, name in enumerate(_sensor_ids(file))}
                unknown = [name for name in ids if name not in listed]
                if unknown:
                    file.refuse(f"it has no sensor {unknown[0]!r} ({len(unknown)} such sensors)")
                return _graph_arrays(file, np.array([listed[name] for name in ids]), len(listed))
        # Graph and locations come from one folder, so that versions are not mixed.
        place = _first([root], (roads.distances,))
        if place is not None:
            return _graph_tables(place, _first([root], roads.locations), ids)
    pickled = _first(roots, ("adj_mx.pkl", "adj_mx_bay.pkl", "adj_mat.pkl"))
    hint = "" if pickled is None else f" ({pickled} is a pickle, which could run code, so it is not read)"
    _missing(source, (roads.graph, roads.distances), roots, DCRNN, hint)


def _graph_tables(
    distances: Path, locations: Path | None, ids: tuple[str, ...]
) -> tuple[sp.csr_matrix, np.ndarray | None]:
    """Read adjacency and positions from the public tables."""
    table = _public(distances, ("from", "to", "distance"))
    pairs = read_pairs(table, table.columns[:3], ids, "distance")
    adjacency = gaussian_kernel(pairs.sender, pairs.receiver, pairs.value, len(ids))
    if locations is None:
        return adjacency, None
    # The public tables exist with and without a first column of row numbers.
    columns = ("sensor_id", "latitude", "longitude")
    table = _public(locations, columns if len(TableFile(locations).first_line) == 3 else ("index", *columns))
    names = table.columns[-3:]
    return adjacency, read_positions(table, names[0], names[1:], True, ids)


def _public(place: Path, names: Sequence[str]) -> TableFile:
    """Open a public table, whose first line is a row of values or the names of the columns."""
    table = TableFile(place)
    bare = table.first_line[-1].replace(".", "", 1).lstrip("-").isdigit()
    return TableFile(place, names=names) if bare else table


def _graph_arrays(file: NpzFile, position: np.ndarray, size: int) -> tuple[sp.csr_matrix, np.ndarray]:
    """Read the rows and columns `position` of adj [size, size], and the positions from lat and lon [size]."""
    weights = file.take("adj", "f", (size, size), f"numbers, {(size, size)}")
    if not (weights >= 0).all():
        file.refuse("array 'adj' has weights below 0; expected numbers of at least 0")
    degrees = [file.take(key, "f", (size,), f"{size} numbers") for key in ("lat", "lon")]
    part = weights[np.ix_(position, position)]
    sender, receiver = np.nonzero(part)
    adjacency = with_unit_diagonal(sender, receiver, part[sender, receiver], len(position))
    return adjacency, np.stack(degrees, axis=1)[position].astype(np.float64)


def _sensor_ids(file: NpzFile) -> tuple[str, ...]:
    ids = file.take_names("sensor_ids", None, "a text or a whole number for each sensor")
    if len({*ids}) != len(ids):
        file.refuse("array 'sensor_ids' must name every sensor once")
    return ids


# ---- files -------------------------------------------------------------------------------------------------


def _first(roots: list[Path], names: Sequence[str]) -> Path | None:
    folders = ("traffic", "traffic/sensor_graph", ".", "sensor_graph")
    places = (root / folder / name for name in names for root in roots for folder in folders)
    return next((place for place in places if place.is_file()), None)


def _missing(
    source: TrafficSource, names: Sequence[str], roots: list[Path], origin: str, hint: str = ""
) -> NoReturn:
    looked = ", ".join(str(folder) for root in roots for folder in (root / "traffic", root))
    raise InputError(
        f"data set {source.name!r} was not found: it needs {' or '.join(names)}; searched: {looked}{hint}. "
        f"Set GRAPHFED_DATA or the data folder to the folder that has it, or get it from {origin}"
    )
