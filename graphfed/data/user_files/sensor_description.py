"""The user's own sensors: a description in YAML of a file of readings and one of the graph between sensors,
checked.

    readings: speeds.csv
    distances: distances.csv
    locations: sensors.csv
    missing: 0
    quantity: speed (km/h)

Where machines train together, the description at a client has the readings of its own sensors only, and the
one at the server the graph only.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, Field, ValidationInfo, model_validator

from graphfed.data.messages import brief
from graphfed.data.sensors.kernel import THRESHOLD
from graphfed.data.sensors.readings import HDF5, INDEX
from graphfed.data.user_files.description import DescribedFile, YamlModel
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError
from graphfed.validation import keys_of

__all__ = [
    "SensorDescription",
    "describe_graph",
    "describe_readings",
    "describe_sensors",
    "describes_sensors",
]

_FILES = ("readings", "distances", "adjacency", "locations")
#: What pandas calls an index without a name, in Parquet.
_PANDAS_INDEX = "__index_level_0__"
_DEGREES, _PLANE = ("latitude", "longitude"), ("x", "y")
#: The fields that name columns: of the readings, the pairs of sensors, and the locations.
_READINGS = ("time", "sensor", "value")
_PAIRS = ("sender", "receiver", "distance", "weight")
_LOCATIONS = ("id", *_DEGREES, *_PLANE)


class ReadingKeys(YamlModel):
    """The keys of readings, and those of the whole."""

    readings: DescribedFile | None = Field(None, description="file: CSV, Parquet, HDF5 (of pandas) or npz")
    time: str | None = Field(INDEX, description="column of the readings; also a first one without a name")
    sensor: str | None = Field("sensor", description="column that makes a table long: a row a reading")
    value: str | None = Field("value", description="column of a long table: the reading")
    missing: float | None = Field(None, strict=True, description="number that means no reading")
    step_minutes: int | None = Field(
        None, strict=True, ge=1, le=10**6, description="between readings (default: the commonest difference)"
    )
    quantity: str = Field("reading", description="what is read, with its unit, for axes")
    name: str = Field("", description="what to call the data (default: the name of the readings' file)")


class GraphKeys(YamlModel):
    """The keys of the graph between sensors."""

    distances: DescribedFile | None = Field(None, description="file: a row for each pair of sensors")
    adjacency: DescribedFile | None = Field(
        None, description="instead of distances: such a file of weights, or a square matrix (CSV or npz)"
    )
    sender: str | None = Field("from", alias="from", description="column of the pairs")
    receiver: str | None = Field("to", alias="to", description="column of the pairs")
    distance: str | None = Field("distance", description="column: the length of the way between the two")
    weight: str | None = Field("weight", description="column: the weight of the edge between the two")
    threshold: float = Field(
        THRESHOLD, strict=True, ge=0, lt=1, description="a weight made of a distance that is below is no edge"
    )
    sigma: float | None = Field(
        None, strict=True, gt=0, description="scale of the distances (default: their standard deviation)"
    )


class SensorDescription(GraphKeys, ReadingKeys):
    """Where the files of sensors are and which columns are what.

    `describe_sensors` returns one in which every column named is in its file, and None stands for a column
    that there is not: of readings that are HDF5, npz or a wide table, of an adjacency that is a matrix.
    """

    model_config = ConfigDict(json_schema_extra={"form": "be a mapping, as in 'readings: speeds.csv'"})

    locations: DescribedFile | None = Field(None, description="file: a row for each sensor, where it is")
    id: str | None = Field("id", description="column of the locations")
    latitude: str | None = Field("latitude", description="column of the locations, in degrees")
    longitude: str | None = Field("longitude", description="column of the locations, in degrees")
    x: str | None = Field("x", description="in the place of the latitude, in kilometres")
    y: str | None = Field("y", description="in the place of the longitude, in kilometres")

    @model_validator(mode="after")
    def _check_kernel(self, info: ValidationInfo) -> Self:
        for key in ("threshold", "sigma"):
            if self.adjacency is not None and key in self.given:
                raise InputError(
                    f"{info.context}: {key} makes weights of distances, and 'adjacency' has them; leave it "
                    "out"
                )
        return self

    @property
    def pairs(self) -> tuple[str, ...]:
        """The columns of sender, receiver and number; () if the adjacency is a matrix."""
        number = self.weight if self.distances is None else self.distance
        return tuple(name for name in (self.sender, self.receiver, number) if name is not None)

    @property
    def geographic(self) -> bool:
        """Whether coordinates are degrees."""
        return self.x is None

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The columns of latitude and longitude, or of x and y; () without locations."""
        names = (self.latitude, self.longitude) if self.geographic else (self.x, self.y)
        return tuple(name for name in names if name is not None)

    def to_json(self) -> dict[str, Any]:
        """Return a mapping that `describe_sensors` takes, with absolute paths."""
        unused = {"threshold"} if self.adjacency is not None else set()
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=unused)


def describes_sensors(content: object) -> bool:
    """Whether a mapping is meant to describe sensors, and not a graph."""
    return isinstance(content, Mapping) and "nodes" not in content and any(key in content for key in _FILES)


def describe_sensors(content: object, folder: Path, origin: str) -> SensorDescription:
    """Check the description of sensors; of their files only the names of the columns are read.

    Args:
        content: a mapping with the keys of `SensorDescription`.
        folder: where relative paths start.
        origin: what to call the mapping in messages.

    Returns:
        The description, with paths that start from here and the columns that are used.

    Raises:
        InputError: for an unknown key, a missing file, a column that is not there, and a number that cannot
            be.
    """
    given = SensorDescription.check(content, origin)
    _require_readings(given, origin)
    _require_graph(given, origin)
    return _resolve(given, folder, origin)


def describe_readings(content: object, folder: Path, origin: str) -> SensorDescription:
    """Check the description of one client's readings as `describe_sensors` does; InputError where it names
    the graph, which is the server's."""
    given = _check_part(content, keys_of(ReadingKeys), "the graph of the sensors is the server's", origin)
    _require_readings(given, origin)
    return _resolve(given, folder, origin)


def describe_graph(content: object, folder: Path, origin: str) -> SensorDescription:
    """Check the description of the server's graph as `describe_sensors` does; InputError where it names
    readings, which stay at the clients."""
    server_has = "the server has the distances or the adjacency of the sensors only"
    given = _check_part(content, (*keys_of(GraphKeys), "name"), server_has, origin)
    _require_graph(given, origin)
    return _resolve(given, folder, origin)


def _check_part(content: object, keys: Iterable[str], reason: str, origin: str) -> SensorDescription:
    """The description of one place, which has some of the keys only."""
    given = SensorDescription.check(content, origin)
    for key in given.given:
        if key not in keys:
            raise InputError(f"{origin} names {key!r}, and {reason}; leave it out")
    return given


def _require_readings(given: SensorDescription, origin: str) -> None:
    if given.readings is None:
        raise InputError(
            f"{origin} has no 'readings'; name the file of readings, as in 'readings: speeds.csv'"
        )


def _require_graph(given: SensorDescription, origin: str) -> None:
    if (given.distances is None) == (given.adjacency is None):
        both = given.distances is not None
        raise InputError(
            f"{origin} names {'both' if both else 'neither'} 'distances' {'and' if both else 'nor'} "
            "'adjacency'; name the one that says which sensors are neighbours, as in 'distances: "
            "distances.csv'"
        )


def _resolve(given: SensorDescription, folder: Path, origin: str) -> SensorDescription:
    """The description with its files' paths and the columns that they have."""
    paths = {key: folder / path for key in _FILES if (path := getattr(given, key)) is not None}
    first = next(iter(paths.values()), folder)
    given = given.replace(**paths, name=given.name or first.name.partition(".")[0])
    columns = dict.fromkeys((*_READINGS, *_PAIRS, *_LOCATIONS))
    for chosen in (_reading_columns, _pair_columns, _location_columns):
        columns |= chosen(given, origin)
    return given.replace(**columns)


def _reading_columns(given: SensorDescription, origin: str) -> dict[str, str | None]:
    """The columns of time, sensor and value, as far as there are any."""
    path = given.readings
    if path is None:
        return {}
    named = [key for key in _READINGS if key in given.given]
    if path.name.lower().endswith((*HDF5, ".npz")):
        if named:
            raise InputError(f"{origin}: {path} has no columns to name; leave {named[0]!r} out")
        return {}
    file = TableFile(path, index=INDEX)
    if "time" not in named and INDEX not in file.columns and _PANDAS_INDEX in file.columns:
        time: str | None = _PANDAS_INDEX
    else:
        time = given.column("time", file, origin, required=True)
    sensor, value = (given.column(key, file, origin) for key in ("sensor", "value"))
    if sensor is None:
        if "value" in named:
            raise InputError(
                f"{origin} names 'value', a column of a long table, and {path} has no column 'sensor'; name "
                "that, too, or leave 'value' out"
            )
        return {"time": time}
    if value is None:
        raise InputError(
            f"{path} has a column {sensor!r} and no column 'value'; name that of the readings in {origin}, "
            f"as in 'value: {brief(file.columns[-1][:40])}'"
        )
    return _require_different({"time": time, "sensor": sensor, "value": value}, path, origin)


def _pair_columns(given: SensorDescription, origin: str) -> dict[str, str | None]:
    """The columns of sender, receiver and number; none of a matrix."""
    path = given.distances or given.adjacency
    if path is None:
        return {}
    number, other = ("weight", "distance") if given.distances is None else ("distance", "weight")
    if other in given.given:
        raise InputError(f"{origin} names {other!r}, and no file that has such a column; leave it out")
    named = [key for key in ("from", "to", number) if key in given.given]
    if number == "weight" and path.name.lower().endswith(".npz"):
        if named:
            raise InputError(
                f"{origin}: {path} is a matrix, without a column to name; leave {named[0]!r} out"
            )
        if not path.is_file():
            raise InputError(f"{path} cannot be read: there is no such file")
        return {}
    file = TableFile(path)
    if number == "weight" and not named and not _is_list(file):
        return {}
    chosen = {key: given.column(key, file, origin, True) for key in ("sender", "receiver", number)}
    return _require_different(chosen, path, origin)


def _is_list(file: TableFile) -> bool:
    """Whether a file of weights is a table of pairs, and no matrix."""
    # The first line of a bare matrix names no columns.
    return {"from", "to"} <= set(file.columns if file.is_parquet else file.first_line)


def _location_columns(given: SensorDescription, origin: str) -> dict[str, str | None]:
    """The column of ids, and those of the coordinates in degrees or in kilometres."""
    named = {key: key in given.given for key in _LOCATIONS}
    if given.locations is None:
        for key in _LOCATIONS:
            if named[key]:
                raise InputError(f"{origin} names {key!r}, and no file 'locations' that has it; leave it out")
        return {}
    file = TableFile(given.locations)
    degrees, plane = (any(named[key] for key in keys) for keys in (_DEGREES, _PLANE))
    if degrees and plane:
        raise InputError(
            f"{origin} names both degrees (latitude, longitude) and kilometres (x, y); name two columns"
        )
    if not degrees and not plane:
        plane = {*_PLANE} <= {*file.columns} and not {*_DEGREES} <= {*file.columns}
    wanted = ("id", *(_PLANE if plane else _DEGREES))
    return {key: given.column(key, file, origin, required=True) for key in wanted}


def _require_different(chosen: dict[str, str | None], path: Path, origin: str) -> dict[str, str | None]:
    """Three columns; InputError where two of them are one."""
    if len({*chosen.values()}) < len(chosen):
        fields = SensorDescription.model_fields
        *keys, last = (fields[key].alias or key for key in chosen)
        raise InputError(f"{origin}: {', '.join(keys)} and {last} must be three columns of {path}")
    return chosen
