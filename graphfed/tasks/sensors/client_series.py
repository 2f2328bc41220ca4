"""What the places of a deployment that forecasts read from their own files: a client the readings of its
sensors, the server the graph between all of them.

A client's description (.yaml) names the file of its readings only, the server's that of the distances or the
adjacency only (keys: `graphfed.data.user_files.sensor_description`). A sensor is called as the client of the
run that it is. All clients need readings of the same steps of time; who lacks some leaves their cells
empty."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import TimeSplit, make_time_split
from graphfed.data.user_files.sensor_description import describe_graph, describe_readings
from graphfed.data.user_files.sensor_files import load_graph, load_readings
from graphfed.errors import InputError, shown
from graphfed.federation.series import Series, make_series
from graphfed.files import JsonObject
from graphfed.nn.edges import Edges, make_edges
from graphfed.plain_yaml import read_yaml

__all__ = ["OwnSeries", "read_graph", "read_readings", "read_series"]


@dataclass(frozen=True, eq=False)
class OwnSeries:
    """A client's own sensors, in the order of the run's clients: as they were read, how their windows are
    divided, and as they are trained on."""

    sensors: Sensors
    split: TimeSplit
    series: Series


def read_readings(path: Path, roster: Sequence[str]) -> Sensors:
    """The sensors of a client's description, in the order of the roster (the names of the run's clients),
    which they must be a block of; without a graph.

    Raises InputError for files that cannot be used, and for a sensor that is no client of the run."""
    sensors = load_readings(describe_readings(read_yaml(path, "the description"), path.parent, str(path)))
    number = {name: k for k, name in enumerate(roster)}
    for name in sensors.ids:
        if name not in number:
            raise InputError(
                f"{path}: sensor {shown(name)} is no client of this project ({', '.join(roster[:5])}"
                f"{', ...' if len(roster) > 5 else ''}); call both alike, in the project file as in "
                "{name: SITE, clients: [SENSOR, ...]}"
            )
    order = np.argsort([number[name] for name in sensors.ids])
    numbers = sorted(number[name] for name in sensors.ids)
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        lacking = next(k for k in range(numbers[0], numbers[-1]) if k not in {*numbers})
        raise InputError(
            f"{path} has readings of {shown(roster[numbers[0]])}, of {shown(roster[numbers[-1]])}, not of "
            f"{shown(roster[lacking])}, which the project lists between them; give those of all sensors "
            "of this client, or correct the project"
        )
    return replace(
        sensors,
        ids=tuple(sensors.ids[k] for k in order),
        readings=np.ascontiguousarray(sensors.readings[:, order]),
        missing=np.ascontiguousarray(sensors.missing[:, order]),
    )


def read_series(path: Path, roster: Sequence[str], split: str, config: JsonObject) -> OwnSeries:
    """A client's sensors, divided as the run's settings say (lags, horizon, every). Raises what
    `read_readings` and `make_time_split` raise."""
    sensors = read_readings(path, roster)
    divided = make_time_split(sensors, split, config["lags"], config["horizon"], config["every"])
    series = make_series(sensors, divided, range(sensors.num_sensors))
    first = list(roster).index(sensors.ids[0])
    return OwnSeries(sensors, divided, replace(series, clients=tuple(first + k for k in series.clients)))


def read_graph(path: Path, roster: Sequence[str]) -> Edges:
    """The edges of the server's description, whose nodes are the run's clients. Raises InputError for
    files that cannot be used."""
    description = describe_graph(read_yaml(path, "the description"), path.parent, str(path))
    return make_edges(load_graph(description, tuple(roster)))
