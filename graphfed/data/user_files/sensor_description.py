"""The YAML description of a user's sensors: a file of readings and a file of the graph between the sensors.

    readings: speeds.csv
    distances: distances.csv
    locations: sensors.csv
    missing: 0
    quantity: speed (km/h)

In a deployment, a client's description has only the readings of its own sensors, and the server's description
has only the graph.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, model_validator

from graphfed.data.messages import brief
from graphfed.data.sensors.kernel import THRESHOLD
from graphfed.data.sensors.readings import HDF5, INDEX
from graphfed.data.user_files.description import DescribedFile, YamlModel, names_distance
from graphfed.data.user_files.other_formats import require_ending
from graphfed.data.user_files.table_files import TABLES, TableFile
from graphfed.errors import InputError
from graphfed.validation import keys_of

_FILES = ("readings", "distances", "adjacency", "locations")
#: pandas' name of an unnamed index in Parquet.
_PANDAS_INDEX = "__index_level_0__"
_DEGREES, _PLANE = ("latitude", "longitude"), ("x", "y")
#: The fields that name columns of the readings, of the pairs of sensors, and of the locations.
_READINGS = ("time", "sensor", "value")
_PAIRS = ("sender", "receiver", "distance", "weight")
_LOCATIONS = ("id", *_DEGREES, *_PLANE)
#: What a description is of: all sensors, one client's readings, or the server's graph.
Part = Literal["all", "readings", "graph"]


class ReadingKeys(YamlModel):
    """The keys of readings, and the name of the data."""

    readings: DescribedFile | None = Field(
        None, description="The file of readings: CSV, Parquet, npz, or HDF5 in METR-LA's layout."
    )
    time: str | None = Field(
        INDEX, description="The column of times. A first column without a name has this name, too."
    )
    sensor: str | None = Field(
        "sensor", description="The column of sensor ids of a long table, which has one row per reading."
    )
    value: str | None = Field("value", description="The column of readings of a long table.")
    missing: float | None = Field(None, strict=True, description="The number that means a missing reading.")
    step_minutes: int | None = Field(
        None,
        strict=True,
        ge=1,
        le=10**6,
        description="The minutes between two readings. The default is the most frequent difference.",
    )
    quantity: str = Field(
        "reading", description="The measured quantity with its unit, for the axes of plots."
    )
    name: str = Field(
        "", description="The name of the data. The default is the name of the file of readings."
    )


class GraphKeys(YamlModel):
    """The keys of the graph between sensors."""

    distances: DescribedFile | None = Field(
        None, description="The file of distances, with a row for each pair of sensors."
    )
    adjacency: DescribedFile | None = Field(
        None,
        description="The file of weights, which replaces distances: a row for each pair of sensors, or a "
        "square matrix (CSV, Parquet or npz).",
    )
    adjacency_holds: Literal["weights", "distances"] | None = Field(
        None,
        description="What the numbers of the adjacency are. The default is weights; numbers that look like "
        "distances need this key.",
    )
    sender: str | None = Field(
        "from", alias="from", description="The column with the sensor at which the edge starts."
    )
    receiver: str | None = Field(
        "to", alias="to", description="The column with the sensor at which the edge ends."
    )
    distance: str | None = Field(
        "distance", description="The column with the length of the road between the two sensors."
    )
    weight: str | None = Field("weight", description="The column with the weight of the edge.")
    threshold: float = Field(
        THRESHOLD,
        strict=True,
        ge=0,
        lt=1,
        description="A weight that is computed from a distance and is below this number is dropped.",
    )
    sigma: float | None = Field(
        None,
        strict=True,
        gt=0,
        description="The scale of the distances. The default is their standard deviation.",
    )


class SensorDescription(GraphKeys, ReadingKeys):
    """The files of sensors and the meaning of their columns.

    In the result of `describe_sensors`, every named column exists, and None means that the file has no such
    column: readings in HDF5, npz or a wide table, or an adjacency that is a matrix.
    """

    model_config = ConfigDict(json_schema_extra={"form": "be a mapping, as in 'readings: speeds.csv'"})

    locations: DescribedFile | None = Field(
        None, description="The file of locations, with a row for each sensor."
    )
    id: str | None = Field("id", description="The column of locations with the ids of the sensors.")
    latitude: str | None = Field("latitude", description="The column of locations with degrees of latitude.")
    longitude: str | None = Field(
        "longitude", description="The column of locations with degrees of longitude."
    )
    x: str | None = Field("x", description="The column of locations with kilometres to the east.")
    y: str | None = Field("y", description="The column of locations with kilometres to the north.")

    @model_validator(mode="after")
    def _check_kernel(self, info: ValidationInfo) -> Self:
        for key in ("threshold", "sigma"):
            if self.adjacency is not None and not self.has_distances and key in self.given:
                raise InputError(
                    f"{info.context}: {key!r} is used to compute weights from distances, and 'adjacency' has "
                    f"weights already; remove {key!r}, or write 'adjacency_holds: distances'"
                )
        if self.adjacency is None and self.adjacency_holds is not None:
            raise InputError(
                f"{info.context}: 'adjacency_holds' says what the file 'adjacency' holds, and there is none; "
                "remove it"
            )
        return self

    @property
    def has_distances(self) -> bool:
        """Whether the graph is given by distances, from which weights are computed."""
        return self.distances is not None or self.adjacency_holds == "distances"

    @property
    def pairs(self) -> tuple[str, ...]:
        """The columns of sender, receiver and distance or weight; () if the adjacency is a matrix."""
        number = self.weight if self.distances is None else self.distance
        return tuple(name for name in (self.sender, self.receiver, number) if name is not None)

    @property
    def geographic(self) -> bool:
        """Whether coordinates are in degrees."""
        return self.x is None

    @property
    def coordinates(self) -> tuple[str, ...]:
        """The columns of latitude and longitude, or of x and y; () without locations."""
        names = (self.latitude, self.longitude) if self.geographic else (self.x, self.y)
        return tuple(name for name in names if name is not None)

    def to_json(self) -> dict[str, Any]:
        """Convert to a mapping that `describe_sensors` accepts, with absolute paths."""
        unused = set() if self.has_distances else {"threshold"}
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=unused)


def describes_sensors(content: object) -> bool:
    """Decide whether a YAML file describes sensors: it names a file of them, and no file of nodes."""
    return isinstance(content, Mapping) and "nodes" not in content and any(key in content for key in _FILES)


def describe_sensors(content: object, folder: Path, origin: str, part: Part = "all") -> SensorDescription:
    """Check the description of sensors. Only the names of the files' columns are read.

    `folder` is that of relative paths, and messages call the mapping `origin`. The result has the paths of
    the files and the columns that are used. In a deployment, one participant's description has only its
    `part`.
    """
    given = SensorDescription.check(content, origin)
    if part != "all":
        keys: Iterable[str] = keys_of(ReadingKeys)
        reason = "only the server has the graph of the sensors"
        if part == "graph":
            keys = (*keys_of(GraphKeys), "name")
            reason = "the server has only the distances or the adjacency of the sensors"
        for key in given.given:
            if key not in keys:
                raise InputError(f"{origin} names {key!r}, and {reason}; remove it")
    if part != "graph" and given.readings is None:
        raise InputError(
            f"{origin} has no 'readings'; name the file of readings, as in 'readings: speeds.csv'"
        )
    if part != "readings" and (given.distances is None) == (given.adjacency is None):
        both = given.distances is not None
        raise InputError(
            f"{origin} names {'both' if both else 'neither'} 'distances' {'and' if both else 'nor'} "
            "'adjacency'; name exactly one of them, as in 'distances: distances.csv'"
        )
    paths = {key: folder / path for key in _FILES if (path := getattr(given, key)) is not None}
    first = next(iter(paths.values()), folder)
    given = given.replace(**paths, name=given.name or first.name.partition(".")[0])
    # Defaults of columns that no file has become None, so that None means no such column.
    columns = dict.fromkeys((*_READINGS, *_PAIRS, *_LOCATIONS))
    for chosen in (_reading_columns, _pair_columns, _location_columns):
        columns |= chosen(given, origin)
    return given.replace(**columns)


def _reading_columns(given: SensorDescription, origin: str) -> dict[str, str | None]:
    """Find the columns of time, sensor and value that the file of readings has."""
    path = given.readings
    if path is None:
        return {}
    require_ending(path, (*TABLES, *HDF5, ".npz"), "readings")
    named = [key for key in _READINGS if key in given.given]
    if path.name.lower().endswith((*HDF5, ".npz")):
        if named:
            raise InputError(f"{origin}: {path} has no named columns; remove {named[0]!r}")
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
                "the column of sensors as 'sensor', or remove 'value'"
            )
        return {"time": time}
    if value is None:
        raise InputError(
            f"{path} has a column {sensor!r} and no column 'value'; name the column of readings in {origin}, "
            f"as in 'value: {brief(file.columns[-1][:40])}'"
        )
    return _require_different({"time": time, "sensor": sensor, "value": value}, path, origin)


def _pair_columns(given: SensorDescription, origin: str) -> dict[str, str | None]:
    """Find the columns of sender, receiver and distance or weight; none if the file is a matrix."""
    path = given.distances or given.adjacency
    if path is None:
        return {}
    number, other = ("weight", "distance") if given.distances is None else ("distance", "weight")
    if other in given.given:
        raise InputError(f"{origin} names the column {other!r}, and no file that has it; remove {other!r}")
    if number == "weight":
        require_ending(path, (*TABLES, ".npz"), "adjacency")
    named = [key for key in ("from", "to", number) if key in given.given]
    if number == "weight" and path.name.lower().endswith(".npz"):
        if named:
            raise InputError(f"{origin}: {path} is a matrix without named columns; remove {named[0]!r}")
        if not path.is_file():
            raise InputError(f"{path} cannot be read: there is no such file")
        return {}
    file = TableFile(path)
    # The first line of a matrix without ids has values, not names.
    first = file.columns if file.is_parquet else file.first_line
    if not named and not {"from", "to"} <= {*first}:
        if number == "weight":
            return {}
        if len(file.columns) > len(_PAIRS):
            raise InputError(
                f"{origin}: {path} has no columns 'from' and 'to'; if it is a square matrix of distances, "
                f"write 'adjacency: {path.name}' and 'adjacency_holds: distances'; else name the columns"
            )
    chosen = {key: given.column(key, file, origin, True) for key in ("sender", "receiver", number)}
    column = chosen.get("weight")
    if column is not None and given.adjacency_holds is None and names_distance(column):
        raise InputError(
            f"{origin}: column {column!r} of {path} seems to have distances, of which the largest would be "
            "the heaviest edge; write 'adjacency_holds: distances', or 'adjacency_holds: weights' if a "
            "larger number is a stronger edge"
        )
    return _require_different(chosen, path, origin)


def _location_columns(given: SensorDescription, origin: str) -> dict[str, str | None]:
    """Find the column of ids, and the columns of coordinates in degrees or in kilometres."""
    named = {key: key in given.given for key in _LOCATIONS}
    if given.locations is None:
        for key in _LOCATIONS:
            if named[key]:
                raise InputError(f"{origin} names {key!r}, and no file 'locations' that has it; remove it")
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
    if len({*chosen.values()}) < len(chosen):
        fields = SensorDescription.model_fields
        *keys, last = (fields[key].alias or key for key in chosen)
        raise InputError(
            f"{origin}: {', '.join(keys)} and {last} must name three different columns of {path}"
        )
    return chosen
