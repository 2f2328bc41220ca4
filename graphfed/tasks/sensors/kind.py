"""Readings of sensors as the data of a run: each worker has a `Series`, and the server has the `Network`.

In a deployment every site reads the readings of its own sensors, and the server reads the graph between all
sensors (`client_series`). In a rehearsal they read files that were exported for them.
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
from graphfed.methods.settings import value
from graphfed.methods.tasks import FORECASTING
from graphfed.nn.edges import Edges
from graphfed.plain_yaml import read_yaml
from graphfed.tasks.evaluation import Predicted
from graphfed.tasks.graphs.client_data import assigned_clients
from graphfed.tasks.kind import DataKind
from graphfed.tasks.sensors.client_series import OwnSeries, read_graph, read_readings, read_series
from graphfed.tasks.sensors.inputs import forecast_table

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SensorSchema:
    """The description of a site's readings that it may send: their times and the split of their windows.

    `Sensors`, `Series` and `TimeSplit` describe the attributes. `start` is "" for exported readings.
    """

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
    """The sensors of a site, with the names that they have in the run.

    `own` are the readings as they were read; None for exported readings.
    """

    series: Series
    schema: SensorSchema
    names: tuple[str, ...]
    own: OwnSeries | None = None

    @property
    def clients(self) -> tuple[int, ...]:
        return self.series.clients


def schema_of(data: Series | Network, steps: int, start: str = "") -> SensorSchema:
    split = data.split
    return SensorSchema(
        start, data.first_minute, data.step_minutes, steps,
        split.lags, split.horizon, split.every, split.train, split.val, split.test,
    )  # fmt: skip


class SensorKind(DataKind[SensorClient, Series, Network | Edges, Network]):
    """Readings of sensors; the server has the network, or at first only the graph of its own file."""

    name = "sensors"
    default = "roads"
    server_has_data = True

    def save(self, part: Series, path: Path) -> None:
        save_series(part, path)

    def load(self, path: Path) -> Series:
        return load_series(path)

    def save_server(self, part: Network, path: Path) -> None:
        save_network(part, path)

    def load_server(self, path: Path) -> Network:
        return load_network(path)

    def located(self, fed: Federation, parts: Sequence[Series], servers: Sequence[Network]) -> SensorData:
        return SensorData(fed.locate(CLIENTS, "series", parts), fed.locate(SERVER, "network", servers))

    def read(self, arguments: JsonObject, path: Path, site: str) -> SensorClient:
        """Read a site's sensors from their description (.yaml), or from an exported file."""
        roster = arguments["roster"]
        if path.suffix in (".yaml", ".yml"):
            own = read_series(path, roster, arguments["split"], arguments["config"])
            schema = schema_of(own.series, own.series.num_steps, own.sensors.start)
            return SensorClient(own.series, schema, own.sensors.ids, own)
        series = load_series(path)
        expected = assigned_clients(series.clients, roster, site)
        if series.clients != expected:
            raise InputError(
                f"{path} was exported for the clients {list(series.clients)[:10]} of a run, and "
                f"{shown(site)} has the clients {list(expected)[:10]} of 0..{len(roster) - 1}; give the file "
                "that was exported for this client"
            )
        return SensorClient(series, schema_of(series, series.num_steps), tuple(roster[k] for k in expected))

    def agree(self, contents: Mapping[str, JsonObject], server: Network | Edges) -> JsonObject:
        """Compare the times and splits of all sites with those of the first, or of the server's network."""
        (first, content), *_ = contents.items()
        try:
            expected = SensorSchema(**content)
            if any(type(value) is not (str if key == "start" else int) for key, value in content.items()):
                raise TypeError("a value is not a whole number")
        except TypeError as error:
            raise InputError(
                f"the description of readings that {first} sent cannot be used: {error}"
            ) from None
        if isinstance(server, Network):
            expected = schema_of(server, expected.steps)
        for client, schema in contents.items():
            for key, first_value in expected.to_json().items():
                found = schema.get(key) if isinstance(schema, Mapping) else schema
                # JSON has 1, 1.0 and true, which are equal in Python.
                if found != first_value or type(found) is not type(first_value):
                    raise InputError(
                        f"{key} of the readings is {shown(found)} at {client} and {shown(first_value)} at "
                        f"{'the server' if isinstance(server, Network) else first}; give all participants "
                        "readings of the same steps of time, with empty cells for missing readings"
                    )
        return {"owners_known": True, "readings": expected.to_json()}

    def task(self, agreed: JsonObject) -> Task:
        return Task(1, 0, FORECASTING)

    def facts(self, schema: JsonObject) -> JsonObject:
        return {key: schema[key] for key in ("start", "steps", "step_minutes")}

    def arrays(self, own: SensorClient) -> dict[str, np.ndarray]:
        series = own.series
        return {
            "readings": series.readings.cpu().numpy(),
            "missing": series.missing.cpu().numpy(),
            "observed": series.split.observed,
            "schema": np.frombuffer(json.dumps(own.schema.to_json()).encode(), dtype=np.uint8),
        }

    def part(self, own: SensorClient, clients: Sequence[int], task: Task, device: torch.device) -> Series:
        series = own.series
        if series.clients != tuple(clients):
            raise InputError(
                f"the data here belongs to the clients {list(series.clients)[:10]}, and the run expects the "
                f"clients {list(clients)[:10]} here; give the file of these, or correct the project's clients"
            )
        readings = series.readings.to(device, torch.get_default_dtype())
        return replace(series, readings=readings, missing=series.missing.to(device))

    def table(self, own: SensorClient, part: Series, predicted: Predicted) -> "pa.Table":
        """Build a table with a row for every sensor and window of validation and test.

        It has the columns of `forecast_table`, with the run's number of the sensor as `client`. Exported
        readings have no times: their table has the sensor's name and number in the run, the number of the
        last step before the forecast, and the forecasts.
        """
        import pyarrow as pa

        starts, forecasts = predicted
        if own.own is not None:
            first, values = starts.cpu().numpy(), forecasts.detach().cpu().numpy()
            sensors, split = own.own.sensors, own.own.split
            tables = [forecast_table(sensors, split, k, first, values[k]) for k in range(len(values))]
            table = pa.concat_tables(tables)
            clients = pa.array(np.repeat(part.clients, len(first)))
            return table.set_column(table.column_names.index("client"), "client", clients)
        count = len(starts)
        flat = forecasts.detach().float().cpu().numpy().reshape(-1, forecasts.shape[-1])
        columns = {
            "sensor": pa.array(np.repeat(own.names, count)),
            "client": pa.array(np.repeat(part.clients, count)),
            "step": pa.array(np.tile(starts.cpu().numpy() + part.split.lags - 1, len(part.clients))),
        }
        columns |= {f"forecast_{n + 1}": pa.array(flat[:, n]) for n in range(flat.shape[1])}
        return pa.table(columns)

    def rows(self, own: SensorClient, config: object) -> int:
        split = own.series.split
        # Training takes every `every`-th window, and a step at most a batch of them.
        windows = -(-split.train // split.every)
        batch: int = value(config, "batch", windows)
        return own.series.num_clients * min(batch, windows)

    def read_server(self, arguments: JsonObject, path: Path) -> Network | Edges:
        """Read the graph of the server's description (.yaml), or an exported network."""
        clients = len(arguments["roster"])
        if path.suffix in (".yaml", ".yml"):
            return read_graph(path, arguments["roster"])
        network = load_network(path)
        if network.edges.num_nodes != clients:
            raise InputError(
                f"{path} has {network.edges.num_nodes} sensors, and the run has {clients} clients; give the "
                "network that was exported together with the clients' series"
            )
        return network

    def server_part(self, server: Network | Edges, agreed: JsonObject) -> Network:
        """Build the server's network with the times on which all sites agreed."""
        if isinstance(server, Network):
            return server
        schema = SensorSchema(**agreed["readings"])
        # All sensors, because deployments refuse a split by location.
        observed = np.ones(server.num_nodes, dtype=bool)
        numbers = {
            name: getattr(schema, name) for name in ("lags", "horizon", "every", "train", "val", "test")
        }
        split = TimeSplit("", **numbers, observed=observed)
        return Network(server, schema.first_minute, schema.step_minutes, split)

    def summarise(self, path: Path, roster: Sequence[str], name: str) -> str | None:
        if path.suffix in (".yaml", ".yml"):
            content = read_yaml(path, "the description")
            if not describes_sensors(content):
                return None
            return summarise_description(path, roster, "readings" in content)
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
            series = self.read({"roster": roster}, path, name).series
            return f"{series.num_clients} sensors, {series.num_steps} readings of each"
        return None


def summarise_description(path: Path, roster: Sequence[str], readings: bool) -> str:
    """Describe the content of a description: a site's description has readings, the server's has none."""
    if not readings:
        edges = read_graph(path, roster)
        return f"{edges.num_nodes} sensors, {edges.count - edges.num_nodes} edges between them"
    sensors = read_readings(path, roster)
    gaps = 100 * sensors.missing.mean()
    return (
        f"{sensors.num_sensors} sensors, {sensors.num_steps} readings of each from {sensors.start}, every "
        f"{sensors.step_minutes} minutes, {gaps:.1f} % missing"
    )


SENSORS = SensorKind()
