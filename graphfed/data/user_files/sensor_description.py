"""The user's own sensors: a description in YAML of a file of readings and one of the graph between sensors,
checked.

    readings: speeds.csv        CSV, Parquet, HDF5 (of pandas) or npz, by the ending (what is in them:
                                graphfed.data.sensors.readings); paths start from the description's own folder
    time: time                  columns of the readings. Where one is called as `sensor` says, the table is
    sensor: sensor              long, a row for each reading; else it is wide, with a column for each sensor
    value: value                (defaults: time, sensor and value; a first column without a name is the time)
    distances: distances.csv    a row for each pair of sensors: the length of the way from one to the other
    from: from                  columns of the distances, with their defaults
    to: to
    distance: distance
    adjacency: weights.csv      in the place of distances: rows of from, to and weight, or a square matrix
    weight: weight              (CSV or npz)
    locations: sensors.csv      where each sensor is, if that is known: a row for each
    id: id                      columns of the locations, with their defaults; or x and y, in kilometres, in
    latitude: latitude          the place of latitude and longitude
    longitude: longitude
    missing: 0                  a number that means that there is no reading, as empty cells and NaN always do
    step_minutes: 5             minutes between readings (default: the commonest difference)
    threshold: 0.1              of the kernel that makes weights of distances: what is below is no edge
    sigma: 3000                 its scale, in the unit of the distances (default: their standard deviation)
    quantity: speed (km/h)      what is read, with its unit, for axes (default: reading)
    name: speeds                what to call the data (default: the name of the file of readings)

Where machines train together, the description at a site has the readings of its own sensors only, and the one
at the server the graph only, `locations` left out.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphfed.data.messages import brief
from graphfed.data.sensors.kernel import THRESHOLD
from graphfed.data.sensors.readings import HDF5, INDEX
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, did_you_mean, shown

__all__ = [
    "SensorDescription",
    "describe_graph",
    "describe_readings",
    "describe_sensors",
    "describes_sensors",
]

_FILES = ("readings", "distances", "adjacency", "locations")
_COLUMNS = (
    "time", "sensor", "value", "from", "to", "distance", "weight", "id", "latitude", "longitude", "x", "y",
)  # fmt: skip
_NUMBERS = ("missing", "step_minutes", "threshold", "sigma")
KEYS = (*_FILES, *_COLUMNS, *_NUMBERS, "quantity", "name")
#: Those of a site's readings, and of the server's graph.
OF_READINGS = ("readings", "time", "sensor", "value", "missing", "step_minutes", "quantity", "name")
OF_GRAPH = ("distances", "adjacency", "from", "to", "distance", "weight", "threshold", "sigma", "name")
#: What pandas calls an index without a name, in Parquet.
_PANDAS_INDEX = "__index_level_0__"
_MATRICES = (".npz",)


@dataclasses.dataclass(frozen=True)
class SensorDescription:
    """Where the files are and which columns are what. Every column named here is in its file.

    readings: None at the server of several machines, which has the graph only; distances, adjacency: None
    both at a site, else one of them is given. time: None where the readings are HDF5 or npz, which know;
    sensor, value: None unless the table is long. `pairs`: the columns of sender, receiver and number, ()
    where the adjacency is a matrix. coordinates: columns of latitude and longitude, or of x and y, () without
    locations."""

    name: str
    readings: Path | None
    time: str | None
    sensor: str | None
    value: str | None
    distances: Path | None
    adjacency: Path | None
    pairs: tuple[str, ...]
    locations: Path | None
    id: str
    coordinates: tuple[str, ...]
    geographic: bool
    missing: float | None
    step_minutes: int | None
    threshold: float
    sigma: float | None
    quantity: str

    def to_json(self) -> dict[str, Any]:
        """A mapping that `describe_sensors` takes, with absolute paths."""
        content: dict[str, Any] = {"name": self.name, "quantity": self.quantity}
        content |= {key: str(path.resolve()) for key in _FILES if (path := getattr(self, key)) is not None}
        content |= {
            key: value for key in ("time", "sensor", "value") if (value := getattr(self, key)) is not None
        }
        last = "distance" if self.adjacency is None else "weight"
        content |= dict(zip(("from", "to", last), self.pairs, strict=False))
        if self.coordinates:
            names = ("latitude", "longitude") if self.geographic else ("x", "y")
            content |= {"id": self.id, **dict(zip(names, self.coordinates, strict=True))}
        content |= {key: value for key in _NUMBERS if (value := getattr(self, key)) is not None}
        if self.adjacency is not None:
            del content["threshold"]
        return content


def describes_sensors(content: Any) -> bool:
    """Whether a mapping is meant to describe sensors, and not a graph."""
    return isinstance(content, Mapping) and "nodes" not in content and any(key in content for key in _FILES)


def describe_sensors(content: Mapping[str, Any], folder: Path, origin: str) -> SensorDescription:
    """A checked description. content: a mapping of KEYS; folder: where relative paths start; origin: what to
    call the mapping in messages.

    Only the names of the columns are read. Raises InputError for an unknown key, a missing file, a column
    that is not there and a number that cannot be."""
    _check_keys(content, origin)
    _require_readings(content, origin)
    _require_graph(content, origin)
    return _described(content, folder, origin)


def describe_readings(content: Mapping[str, Any], folder: Path, origin: str) -> SensorDescription:
    """That of one of several machines' readings, checked as by `describe_sensors`; InputError where it names
    the graph, which is the server's."""
    _check_keys(content, origin)
    for key in content:
        if key not in OF_READINGS:
            raise InputError(
                f"{origin} names {key!r}, and the graph of the sensors is the server's; leave it out"
            )
    _require_readings(content, origin)
    return _described(content, folder, origin)


def describe_graph(content: Mapping[str, Any], folder: Path, origin: str) -> SensorDescription:
    """That of the server's graph, checked as by `describe_sensors`; InputError where it names readings, which
    stay at the sites."""
    _check_keys(content, origin)
    for key in content:
        if key not in OF_GRAPH:
            raise InputError(
                f"{origin} names {key!r}, and the server has the distances or the adjacency of the sensors "
                "only; leave it out"
            )
    _require_graph(content, origin)
    return _described(content, folder, origin)


def _check_keys(content: Mapping[str, Any], origin: str) -> None:
    for key, value in content.items():
        if key not in KEYS:
            raise InputError(f"{origin} has an unknown key {shown(key)}; {did_you_mean(str(key), KEYS)}")
        if key not in _NUMBERS and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            raise InputError(f"{origin}: {key} must be text (found {type(value).__name__})")


def _require_readings(content: Mapping[str, Any], origin: str) -> None:
    if "readings" not in content:
        raise InputError(
            f"{origin} has no 'readings'; name the file of readings, as in 'readings: speeds.csv'"
        )


def _require_graph(content: Mapping[str, Any], origin: str) -> None:
    if ("distances" in content) == ("adjacency" in content):
        raise InputError(
            f"{origin} names {'both' if 'distances' in content else 'neither'} 'distances' "
            f"{'and' if 'distances' in content else 'nor'} 'adjacency'; name the one that says which sensors "
            "are neighbours, as in 'distances: distances.csv'"
        )


def _described(content: Mapping[str, Any], folder: Path, origin: str) -> SensorDescription:
    """What a mapping with good keys says."""
    paths = {key: folder / str(content[key]) for key in _FILES if key in content}
    readings, graph = paths.get("readings"), paths.get("distances") or paths.get("adjacency")
    time, sensor, value = (
        (None, None, None) if readings is None else _reading_columns(readings, content, origin)
    )
    pairs = () if graph is None else _pair_columns(paths, content, origin)
    id_column, coordinates, geographic = _location_columns(paths.get("locations"), content, origin)
    numbers = {key: _number(key, content[key], origin) for key in _NUMBERS if content.get(key) is not None}
    for key in ("threshold", "sigma"):
        if key in numbers and "adjacency" in content:
            raise InputError(
                f"{origin}: {key} makes weights of distances, and 'adjacency' has them; leave it out"
            )
    return SensorDescription(
        name=str(content.get("name", (readings or graph or folder).name.partition(".")[0])),
        readings=readings,
        time=time,
        sensor=sensor,
        value=value,
        distances=paths.get("distances"),
        adjacency=paths.get("adjacency"),
        pairs=pairs,
        locations=paths.get("locations"),
        id=id_column,
        coordinates=coordinates,
        geographic=geographic,
        missing=numbers.get("missing"),
        step_minutes=None if "step_minutes" not in numbers else int(numbers["step_minutes"]),
        threshold=numbers.get("threshold", THRESHOLD),
        sigma=numbers.get("sigma"),
        quantity=str(content.get("quantity", "reading")),
    )


def _reading_columns(
    path: Path, content: Mapping[str, Any], origin: str
) -> tuple[str | None, str | None, str | None]:
    """The columns of time, sensor and value, None for those that there are not."""
    asked = {key: str(content[key]) for key in ("time", "sensor", "value") if key in content}
    if path.name.lower().endswith((*HDF5, ".npz")):
        if asked:
            raise InputError(f"{origin}: {path} has no columns to name; leave {next(iter(asked))!r} out")
        return None, None, None
    columns = TableFile(path, index=INDEX).columns
    for key, name in asked.items():
        if name not in columns:
            raise InputError(
                f"{origin}: {path} has no column {name!r} ({key}); {did_you_mean(name, columns)}"
            )
    time = asked.get("time", INDEX)
    if time not in columns and _PANDAS_INDEX in columns:
        time = _PANDAS_INDEX
    if time not in columns:
        raise _no_column(path, time, "time", columns, origin)
    sensor, value = asked.get("sensor", "sensor"), asked.get("value", "value")
    if sensor not in columns:
        if "value" in asked:
            raise InputError(
                f"{origin} names 'value', a column of a long table, and {path} has no column 'sensor'; name "
                "that, too, or leave 'value' out"
            )
        return time, None, None
    if value not in columns:
        raise InputError(
            f"{path} has a column {sensor!r} and no column 'value'; name that of the readings in {origin}, "
            f"as in 'value: {brief(columns[-1][:40])}'"
        )
    if len({time, sensor, value}) < 3:
        raise InputError(f"{origin}: time, sensor and value must be three columns of {path}")
    return time, sensor, value


def _pair_columns(paths: Mapping[str, Path], content: Mapping[str, Any], origin: str) -> tuple[str, ...]:
    """The columns of sender, receiver and number; () where there is a matrix."""
    last = "distance" if "distances" in paths else "weight"
    other = "weight" if "distances" in paths else "distance"
    path = paths.get("distances") or paths["adjacency"]
    if other in content:
        raise InputError(f"{origin} names {other!r}, and no file that has such a column; leave it out")
    keys = ("from", "to", last)
    asked = [key for key in keys if key in content]
    if last == "weight" and path.name.lower().endswith(_MATRICES):
        if asked:
            raise InputError(
                f"{origin}: {path} is a matrix, without a column to name; leave {asked[0]!r} out"
            )
        if not path.is_file():
            raise InputError(f"{path} cannot be read: there is no such file")
        return ()
    if last == "weight" and not asked and not _is_list(path):
        return ()
    columns = TableFile(path).columns
    chosen = tuple(str(content.get(key, key)) for key in keys)
    for key, name in zip(keys, chosen, strict=True):
        if name not in columns:
            raise _no_column(path, name, key, columns, origin)
    if len(set(chosen)) < 3:
        raise InputError(f"{origin}: from, to and {last} must be three columns of {path}")
    return chosen


def _is_list(path: Path) -> bool:
    """Whether a file of weights is a table of pairs, and no matrix."""
    file = TableFile(path)
    if path.name.lower().endswith((".parquet", ".pq")):
        return {"from", "to"} <= set(file.columns)
    return {"from", "to"} <= set(file.first_line)  # that of a bare matrix names no columns


def _location_columns(
    path: Path | None, content: Mapping[str, Any], origin: str
) -> tuple[str, tuple[str, ...], bool]:
    """The column of ids, those of the coordinates, and whether they are degrees."""
    degrees, plane = ("latitude", "longitude"), ("x", "y")
    asked = [key for key in ("id", *degrees, *plane) if key in content]
    if path is None:
        if asked:
            raise InputError(
                f"{origin} names {asked[0]!r}, and no file 'locations' that has it; leave it out"
            )
        return "id", (), True
    columns = TableFile(path).columns
    chosen = {key: str(content.get(key, key)) for key in ("id", *degrees, *plane)}
    geographic = not any(key in content for key in plane)
    if geographic and not any(key in content for key in degrees) and not set(degrees) <= set(columns):
        geographic = not set(plane) <= set(columns)
    if not geographic and any(key in content for key in degrees):
        raise InputError(
            f"{origin} names both degrees (latitude, longitude) and kilometres (x, y); name two columns"
        )
    wanted = degrees if geographic else plane
    for key in ("id", *wanted):
        if chosen[key] not in columns:
            raise _no_column(path, chosen[key], key, columns, origin)
    return chosen["id"], tuple(chosen[key] for key in wanted), geographic


def _no_column(path: Path, name: str, key: str, columns: list[str], origin: str) -> InputError:
    return InputError(
        f"{path} has no column {name!r} ({key}); the columns are {', '.join(map(shown, columns[:8]))}"
        f"{', ...' if len(columns) > 8 else ''}: name the one to use in {origin}, as in "
        f"'{key}: {brief(columns[0][:40])}'"
    )


def _number(key: str, value: Any, origin: str) -> float:
    """A finite number in the range of its key."""
    kind = {
        "missing": "a number",
        "step_minutes": "a whole number of at least 1",
        "threshold": "a number of at least 0 and below 1",
        "sigma": "a number above 0",
    }[key]
    good = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e30
    good = good and math.isfinite(value)
    if good and key == "step_minutes":
        good = isinstance(value, int) and 1 <= value <= 10**6
    elif good and key == "threshold":
        good = 0 <= value < 1
    elif good and key == "sigma":
        good = value > 0
    if not good:
        raise InputError(f"{origin}: {key} is {shown(value)}; expected {kind}")
    number: float = value
    return number
