"""Readings of sensors as the data of a run: a `Series` at each host of clients, and the `Network` at the
server.

In a deployment every client reads the readings of its own sensors, and the server the graph between all of
them (`client`); in a rehearsal both read what was made for them.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from graphfed.data.sensors.windows import TimeSplit
from graphfed.data.user_files.sensor_description import describes_sensors
from graphfed.errors import InputError, shown
from graphfed.federation import CLIENTS, SERVER, Federation
from graphfed.federation.series import (
    Network,
    SensorData,
    Series,
    load_network,
    load_series,
    save_network,
    save_series,
)
from graphfed.files import JsonObject, read_metadata
from graphfed.methods.base import Task
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.edges import Edges
from graphfed.plain_yaml import read_yaml
from graphfed.tasks.base import DataKind, ParticipantFiles
from graphfed.tasks.evaluation import Predicted
from graphfed.tasks.graphs.client_data import assigned_clients
from graphfed.tasks.sensors.client_series import OwnSeries, read_graph, read_readings, read_series
from graphfed.tasks.sensors.inputs import forecast_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SENSORS", "SensorClient"]


@dataclass(frozen=True)
class SensorSchema:
    """What a client may tell of its readings: when they were made, and how their windows are divided (see
    `Sensors`, `Series`, `TimeSplit`). start: "" where they were dealt."""

    start: str
    first_minute: int
    step_minutes: int
    steps: int
    lags: int
    horizon: int
    every: int
    train: int
    val: int
    test: int

    def to_json(self) -> JsonObject:
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class SensorClient:
    """The sensors of a client. names: what the run calls them; own: as they were read, None if they were
    dealt."""

    series: Series
    schema: SensorSchema
    names: tuple[str, ...]
    own: OwnSeries | None = None

    @property
    def clients(self) -> tuple[int, ...]:
        return self.series.clients


def located_series(fed: Federation, parts: Sequence[Series], servers: Sequence[Network]) -> SensorData:
    return SensorData(fed.locate(CLIENTS, "series", parts), fed.locate(SERVER, "network", servers))


def read_sensors(arguments: JsonObject, path: Path, client: str) -> SensorClient:
    """A client's own sensors, of their description (.yaml), or the series that were dealt for it; InputError
    for another file and for other clients' series."""
    roster = arguments["roster"]
    if path.suffix in (".yaml", ".yml"):
        own = read_series(path, roster, arguments["split"], arguments["config"])
        schema = schema_of(own.series, own.series.num_steps, own.sensors.start)
        return SensorClient(own.series, schema, own.sensors.ids, own)
    series = load_series(path)
    expected = assigned_clients(series.clients, roster, client)
    if series.clients != expected:
        raise InputError(
            f"{path} was dealt for the clients {list(series.clients)[:10]} of a run, and client "
            f"{shown(client)} "
            f"has {list(expected)[:10]} of 0..{len(roster) - 1}; give the file that was dealt for this client"
        )
    return SensorClient(series, schema_of(series, series.num_steps), tuple(roster[k] for k in expected))


def schema_of(data: Series | Network, steps: int, start: str = "") -> SensorSchema:
    split = data.split
    return SensorSchema(
        start, data.first_minute, data.step_minutes, steps,
        split.lags, split.horizon, split.every, split.train, split.val, split.test,
    )  # fmt: skip


def agree_on_sensors(told: Mapping[str, JsonObject], server: Network | Edges) -> JsonObject:
    """The form of all readings; InputError where a client's were made at other times than the first one's, or
    are divided in another way, and where the server's dealt network is."""
    (first, said), *_ = told.items()
    try:
        here = SensorSchema(**said)
        if any(type(value) is not (str if key == "start" else int) for key, value in said.items()):
            raise TypeError("a number is none")
    except TypeError as error:
        raise InputError(f"what {first} says of its readings cannot be used: {error}") from None
    if isinstance(server, Network):
        here = schema_of(server, here.steps)
    for client, theirs in told.items():
        for key, value in here.to_json().items():
            found = theirs.get(key) if isinstance(theirs, Mapping) else theirs
            if found != value or type(found) is not type(value):
                raise InputError(
                    f"{key} of the readings is {shown(found)} at {client} and {shown(value)} at "
                    f"{'the server' if isinstance(server, Network) else first}; give all places readings of "
                    "the same steps of time, with empty cells where there is none"
                )
    return {"owners_known": True, "readings": here.to_json()}


def sensor_facts(schema: JsonObject) -> JsonObject:
    return {key: schema[key] for key in ("start", "steps", "step_minutes")}


def forecasting_task(agreed: JsonObject) -> Task:
    return Task(1, 0, FORECASTING)


def network_of(server: Network | Edges, agreed: JsonObject) -> Network:
    """The server's network, with the times of the readings that all clients have agreed on."""
    if isinstance(server, Network):
        return server
    told = SensorSchema(**agreed["readings"])
    everyone = np.ones(server.num_nodes, dtype=bool)
    numbers = {name: getattr(told, name) for name in ("lags", "horizon", "every", "train", "val", "test")}
    split = TimeSplit("", **numbers, observed=everyone)
    return Network(server, told.first_minute, told.step_minutes, split)


def series_arrays(own: SensorClient) -> dict[str, np.ndarray]:
    series = own.series
    return {
        "readings": series.readings.cpu().numpy(),
        "missing": series.missing.cpu().numpy(),
        "observed": series.split.observed,
        "schema": np.frombuffer(json.dumps(own.schema.to_json()).encode(), dtype=np.uint8),
    }


def series_part(own: SensorClient, clients: Sequence[int], task: Task, device: torch.device) -> Series:
    series = own.series
    if series.clients != tuple(clients):
        raise InputError(
            f"this client's data is of the clients {list(series.clients)[:10]}, and the run has "
            f"{list(clients)[:10]} here; give the file of these, or correct the project's clients"
        )
    readings = series.readings.to(device, torch.get_default_dtype())
    return replace(series, readings=readings, missing=series.missing.to(device))


def forecasts_table(own: SensorClient, series: Series, predicted: Predicted) -> "pa.Table":
    """A row for every sensor and window of validation and test: as in any run (`forecast_table`), with the
    run's number of the sensor as `client`. Of dealt readings, which have no times: the run's name and number
    of the sensor, the number of the last step that the forecast is made from, and the forecasts."""
    import pyarrow as pa

    starts, forecasts = predicted
    if own.own is not None:
        first, told = starts.cpu().numpy(), forecasts.detach().cpu().numpy()
        sensors, split = own.own.sensors, own.own.split
        tables = [forecast_table(sensors, split, k, first, told[k]) for k in range(len(told))]
        table = pa.concat_tables(tables)
        clients = pa.array(np.repeat(series.clients, len(first)))
        return table.set_column(table.column_names.index("client"), "client", clients)
    count = len(starts)
    flat = forecasts.detach().float().cpu().numpy().reshape(-1, forecasts.shape[-1])
    columns = {
        "sensor": pa.array(np.repeat(own.names, count)),
        "client": pa.array(np.repeat(series.clients, count)),
        "step": pa.array(np.tile(starts.cpu().numpy() + series.split.lags - 1, len(series.clients))),
    }
    columns |= {f"forecast_{n + 1}": pa.array(flat[:, n]) for n in range(flat.shape[1])}
    return pa.table(columns)


def read_network(arguments: JsonObject, path: Path) -> Network | Edges:
    """The graph of the server's description (.yaml), or the network that was dealt for it; InputError for one
    of other sensors."""
    clients = len(arguments["roster"])
    if path.suffix in (".yaml", ".yml"):
        return read_graph(path, arguments["roster"])
    network = load_network(path)
    if network.edges.num_nodes != clients:
        raise InputError(
            f"{path} has {network.edges.num_nodes} sensors, and the run {clients} clients; give the "
            "network that was dealt with the clients' series"
        )
    return network


def summarise_file(path: Path, roster: Sequence[str], name: str) -> str | None:
    """What is in a place's file, in a few words for its operator; None for a file that is of a graph."""
    if path.suffix in (".yaml", ".yml"):
        content = read_yaml(path, "the description")
        return (
            summarise_description(path, roster, "readings" in content) if describes_sensors(content) else None
        )
    known: Mapping[str, str] = {}
    if path.suffix == ".safetensors":
        try:
            known = read_metadata(path)
        except Exception:
            known = {}
    if "network" in known:
        network = load_network(path)
        return f"{network.edges.num_nodes} sensors, {len(network.edges.sender)} edges"
    if "series" in known:
        series = read_sensors({"roster": roster}, path, name).series
        return f"{series.num_clients} sensors, {series.num_steps} readings of each"
    return None


def summarise_description(path: Path, roster: Sequence[str], readings: bool) -> str:
    """`summarise_file` of a description: a client's has readings, the server's has none."""
    if not readings:
        edges = read_graph(path, roster)
        return f"{edges.num_nodes} sensors, {edges.count - edges.num_nodes} edges between them"
    sensors = read_readings(path, roster)
    gaps = 100 * sensors.missing.mean()
    return (
        f"{sensors.num_sensors} sensors, {sensors.num_steps} readings of each from {sensors.start}, every "
        f"{sensors.step_minutes} minutes, {gaps:.1f} % missing"
    )


SENSORS = DataKind(
    name="sensors",
    default="roads",
    save=save_series,
    load=load_series,
    located=located_series,
    save_server=save_network,
    load_server=load_network,
    participants=ParticipantFiles(
        read=read_sensors,
        agree=agree_on_sensors,
        task=forecasting_task,
        facts=sensor_facts,
        arrays=series_arrays,
        part=series_part,
        table=forecasts_table,
        summarise=summarise_file,
        read_server=read_network,
        server_part=network_of,
    ),
)
