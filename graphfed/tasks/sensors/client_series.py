"""The files of the participants of a forecasting deployment: a site's readings, and the server's graph.

A site's description (.yaml) names only the file of its readings, and the server's description only the file
of distances or the adjacency (`graphfed.data.user_files.sensor_description` has the keys). Each sensor is a
client of the run and has its name. All sites need readings of the same steps of time; the cells of missing
readings are empty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import TimeSplit, make_time_split
from graphfed.data.user_files.sensor_description import describe_sensors
from graphfed.data.user_files.sensor_files import load_graph, load_sensors
from graphfed.errors import InputError, shown
from graphfed.federation.series import Series, make_series
from graphfed.files import JsonObject
from graphfed.nn.edges import Edges, make_edges
from graphfed.plain_yaml import read_yaml


@dataclass(frozen=True, eq=False)
class OwnSeries:
    """The sensors of a site, in the order of the run's clients, as read and as training uses them."""

    sensors: Sensors
    split: TimeSplit
    series: Series


def read_readings(path: Path, roster: Sequence[str]) -> Sensors:
    """Read the sensors of a site's description, without a graph, in the order of the roster.

    Raises InputError if a file cannot be used, a sensor is no client of the run, or the sensors are not
    consecutive in the roster.
    """
    sensors = load_sensors(
        describe_sensors(read_yaml(path, "the description"), path.parent, str(path), "readings")
    )
    number = {name: k for k, name in enumerate(roster)}
    for name in sensors.ids:
        if name not in number:
            raise InputError(
                f"{path}: sensor {shown(name)} is no client of this project ({', '.join(roster[:5])}"
                f"{', ...' if len(roster) > 5 else ''}); use the sensor's name as the client's name in the "
                "project file, as in {name: SITE, clients: [SENSOR, ...]}"
            )
    order = np.argsort([number[name] for name in sensors.ids])
    numbers = sorted(number[name] for name in sensors.ids)
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        absent = next(k for k in range(numbers[0], numbers[-1]) if k not in {*numbers})
        raise InputError(
            f"{path} has readings of {shown(roster[numbers[0]])} and of {shown(roster[numbers[-1]])}, and "
            f"not of {shown(roster[absent])}, which the project lists between them; give the readings of all "
            "sensors of this site, or correct the project"
        )
    return replace(
        sensors,
        ids=tuple(sensors.ids[k] for k in order),
        readings=np.ascontiguousarray(sensors.readings[:, order]),
        missing=np.ascontiguousarray(sensors.missing[:, order]),
    )


def read_series(path: Path, roster: Sequence[str], split: str, config: JsonObject) -> OwnSeries:
    """Read the sensors of a site's description and split their windows.

    `config` are the settings of the run, with lags, horizon and every.
    """
    sensors = read_readings(path, roster)
    time_split = make_time_split(sensors, split, config["lags"], config["horizon"], config["every"])
    series = make_series(sensors, time_split, range(sensors.num_sensors))
    # `make_series` numbers the sensors of the site from 0; in the run they start at `first`.
    first = list(roster).index(sensors.ids[0])
    return OwnSeries(sensors, time_split, replace(series, clients=tuple(first + k for k in series.clients)))


def read_graph(path: Path, roster: Sequence[str]) -> Edges:
    """Read the graph of the server's description, whose nodes are the clients of the roster."""
    description = describe_sensors(read_yaml(path, "the description"), path.parent, str(path), "graph")
    return make_edges(load_graph(description, tuple(roster)))
