"""What the places of a deployment read from their own files, by kind of data, and what they must agree on.

graph     every site its description of tables, or a dealt cohort (`site_data`); the server nothing
sensors   every site the readings of its sensors, and the server the graph between all of them
          (`site_sensors`); in a trial both as they were dealt
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphfed.data.dropped import in_one_line
from graphfed.data.sensors.windows import TimeSplit
from graphfed.data.user_files.sensor_description import describes_sensors
from graphfed.deployment.graph_site import SiteData, dealt_clients, make_site_cohort, read_site
from graphfed.deployment.schema import Schema, compare_schemas
from graphfed.deployment.sensor_site import OwnSeries, read_graph, read_readings, read_series
from graphfed.errors import InputError, shown
from graphfed.federation.cohort import cohort_arrays
from graphfed.federation.series import Network, Series, load_network, load_series
from graphfed.files import read_metadata
from graphfed.methods.base import CommonConfig, Method, Task
from graphfed.methods.tasks import FORECASTING, TASKS
from graphfed.nn.edges import Edges
from graphfed.plain_yaml import read_yaml
from graphfed.tasks.evaluation import is_hidden
from graphfed.tasks.sensor_inputs import forecast_table

__all__ = ["PlaceData", "SensorSite", "checked_file", "place_data"]


@dataclass(frozen=True)
class SensorSchema:
    """What a site may tell of its readings: when they were made, and how their windows are divided (see
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

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class SensorSite:
    """The sensors of a site. names: what the run calls them; own: as they were read, None if they were
    dealt."""

    series: Series
    schema: SensorSchema
    names: tuple[str, ...]
    own: OwnSeries | None = None

    @property
    def clients(self) -> tuple[int, ...]:
        return self.series.clients


@dataclass(frozen=True)
class PlaceData:
    """One kind of data.

    read(arguments, path, site) -> a site's own, which has `clients` and `schema`; read_server(arguments,
    path): the server's, None where it has none. agree(schemas, server) -> what all places agree on, of what
    each site says of itself; task(agreed); facts(schema) -> of the data, for the run's manifest. arrays(own)
    -> what a digest of a site's data is made of. part(own, clients, task, device) -> what its host trains on;
    server_part(server, agreed): what the server does. declared(own, method, config) -> how many vertices of
    each part of the split each of the site's clients has, [K_h] by part, as far as the run shows them to the
    server anyway. table(own, part, predicted) -> predictions.parquet at
    the site."""

    read: Callable[[Mapping[str, Any], Path, str], Any]
    agree: Callable[[Mapping[str, Any], Any], dict[str, Any]]
    task: Callable[[Mapping[str, Any]], Task]
    facts: Callable[[Mapping[str, Any]], dict[str, Any]]
    arrays: Callable[[Any], dict[str, np.ndarray]]
    part: Callable[[Any, Sequence[int], Task, Any], Any]
    table: Callable[[Any, Any, Any], Any]
    read_server: Callable[[Mapping[str, Any], Path], Any] | None = None
    server_part: Callable[[Any, Mapping[str, Any]], Any] = lambda server, agreed: server
    declared: Callable[[Any, Method, CommonConfig], dict[str, list[int]]] = lambda own, method, config: {}


def place_data(method: Method) -> PlaceData:
    """Of the data that a method is for."""
    return _KINDS[TASKS[method.tasks[0]].data]


# ---- graphs ------------------------------------------------------------------------------------------------


def read_graph_site(arguments: Mapping[str, Any], path: Path, site: str) -> SiteData:
    return read_site(
        path,
        split=arguments["split"],
        split_seed=arguments["split_seed"],
        roster=arguments["roster"],
        site=site,
    )


def agree_on_graphs(told: Mapping[str, Any], _: None) -> dict[str, Any]:
    schemas = {site: Schema.from_json(said, f"what {site} says of its data") for site, said in told.items()}
    compare_schemas(schemas)
    first = next(iter(schemas.values()))
    return {
        "num_features": len(first.feature_names),
        "num_classes": len(first.class_names),
        "owners_known": first.owners_known,
    }


def graph_task(agreed: Mapping[str, Any]) -> Task:
    return Task(agreed["num_features"], agreed["num_classes"])


def graph_facts(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "features": len(schema["feature_names"]),
        "classes": len(schema["class_names"]),
        "feature_names": [name for name in schema["feature_names"] if name],
        "class_names": [name for name in schema["class_names"] if name],
        "edge_weights": schema["weighted"],
    }


def graph_declared(own: SiteData, method: Method, config: CommonConfig) -> dict[str, list[int]]:
    cohort, declared = own.cohort, {}
    if "training_counts" in method.messages:
        declared["train"] = cohort.counts(cohort.train).tolist()
    if not is_hidden(getattr(config, "aggregation", "clear")):
        declared |= {part: cohort.counts(getattr(cohort, part)).tolist() for part in ("val", "test")}
    return declared


def graph_arrays(own: SiteData) -> dict[str, np.ndarray]:
    return cohort_arrays(own.cohort)


def graph_part(own: SiteData, clients: Sequence[int], task: Task, device: Any) -> Any:
    return make_site_cohort(own, clients, task.num_classes, device=device)


def vertex_table(own: SiteData, cohort: Any, predicted: Any) -> Any:
    """A row for every vertex that this site owns, in the order of its rows: its id (a dealt vertex's number),
    part of the split, label and prediction with the names of the classes, and all probabilities."""
    import pyarrow as pa

    rows, logits = predicted
    row = rows.cpu().numpy()
    probability = torch.softmax(logits.detach().double(), 1).cpu().numpy()
    names = [name or str(c) for c, name in enumerate(own.schema.class_names)]
    masks = [getattr(cohort, which)[rows].cpu().numpy() for which in ("train", "val", "test")]
    label = cohort.y[rows].cpu().numpy()
    parts = np.select(masks, [0, 1, 2], 3).astype(np.int8)
    columns = {
        "id": pa.array(cohort.id.cpu().numpy()[row]) if own.ids is None else own.ids.take(pa.array(row)),
        "client": pa.array(np.asarray(cohort.clients)[cohort.client.cpu().numpy()[row]]),
        "split": pa.DictionaryArray.from_arrays(parts, ["train", "val", "test", "none"]),
        "label": pa.DictionaryArray.from_arrays(pa.array(label.astype(np.int32), mask=label < 0), names),
        "prediction": pa.DictionaryArray.from_arrays(probability.argmax(1).astype(np.int32), names),
    }
    columns |= {f"probability_{c}": pa.array(probability[:, c]) for c in range(len(names))}
    return pa.table(columns)


# ---- sensors -----------------------------------------------------------------------------------------------


def read_sensors(arguments: Mapping[str, Any], path: Path, site: str) -> SensorSite:
    """A site's own sensors, of their description (.yaml), or the series that were dealt for it; InputError
    for another file and for other clients' series."""
    roster = arguments["roster"]
    if path.suffix in (".yaml", ".yml"):
        own = read_series(path, roster, arguments["split"], arguments["config"])
        schema = schema_of(own.series, own.series.num_steps, own.sensors.start)
        return SensorSite(own.series, schema, own.sensors.ids, own)
    series = load_series(path)
    expected = dealt_clients(series.clients, roster, site)
    if series.clients != expected:
        raise InputError(
            f"{path} was dealt for the clients {list(series.clients)[:10]} of a run, and site {shown(site)} "
            f"has {list(expected)[:10]} of 0..{len(roster) - 1}; give the file that was dealt for this site"
        )
    return SensorSite(series, schema_of(series, series.num_steps), tuple(roster[k] for k in expected))


def schema_of(data: Series | Network, steps: int, start: str = "") -> SensorSchema:
    split = data.split
    return SensorSchema(
        start, data.first_minute, data.step_minutes, steps,
        split.lags, split.horizon, split.every, split.train, split.val, split.test,
    )  # fmt: skip


def agree_on_sensors(told: Mapping[str, Any], server: Network | Edges) -> dict[str, Any]:
    """The form of all readings; InputError where a site's were made at other times than the first one's, or
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
    for site, theirs in told.items():
        for key, value in here.to_json().items():
            found = theirs.get(key) if isinstance(theirs, Mapping) else theirs
            if found != value or type(found) is not type(value):
                raise InputError(
                    f"{key} of the readings is {shown(found)} at {site} and {shown(value)} at "
                    f"{'the server' if isinstance(server, Network) else first}; give all places readings of "
                    "the same steps of time, with empty cells where there is none"
                )
    return {"owners_known": True, "readings": here.to_json()}


def sensor_facts(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {key: schema[key] for key in ("start", "steps", "step_minutes")}


def forecasting_task(agreed: Mapping[str, Any]) -> Task:
    return Task(1, 0, FORECASTING)


def network_of(server: Network | Edges, agreed: Mapping[str, Any]) -> Network:
    """The server's network, with the times of the readings that all sites have agreed on."""
    if isinstance(server, Network):
        return server
    told = SensorSchema(**agreed["readings"])
    everyone = np.ones(server.num_vertices, dtype=bool)
    numbers = {name: getattr(told, name) for name in ("lags", "horizon", "every", "train", "val", "test")}
    split = TimeSplit("", **numbers, observed=everyone)
    return Network(server, told.first_minute, told.step_minutes, split)


def series_arrays(own: SensorSite) -> dict[str, np.ndarray]:
    series = own.series
    return {
        "readings": series.readings.cpu().numpy(),
        "missing": series.missing.cpu().numpy(),
        "observed": series.split.observed,
        "schema": np.frombuffer(json.dumps(own.schema.to_json()).encode(), dtype=np.uint8),
    }


def series_part(own: SensorSite, clients: Sequence[int], task: Task, device: Any) -> Series:
    series = own.series
    if series.clients != tuple(clients):
        raise InputError(
            f"this site's data is of the clients {list(series.clients)[:10]}, and the run has "
            f"{list(clients)[:10]} here; give the file of these, or correct the project's sites"
        )
    readings = series.readings.to(device, torch.get_default_dtype())
    return replace(series, readings=readings, missing=series.missing.to(device))


def forecasts_table(own: SensorSite, series: Series, predicted: Any) -> Any:
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
        return table.set_column(table.column_names.index("site"), "client", clients)
    count = len(starts)
    flat = forecasts.detach().float().cpu().numpy().reshape(-1, forecasts.shape[-1])
    columns = {
        "sensor": pa.array(np.repeat(own.names, count)),
        "client": pa.array(np.repeat(series.clients, count)),
        "step": pa.array(np.tile(starts.cpu().numpy() + series.split.lags - 1, len(series.clients))),
    }
    columns |= {f"forecast_{n + 1}": pa.array(flat[:, n]) for n in range(flat.shape[1])}
    return pa.table(columns)


def read_network(arguments: Mapping[str, Any], path: Path) -> Network | Edges:
    """The graph of the server's description (.yaml), or the network that was dealt for it; InputError for one
    of other sensors."""
    clients = len(arguments["roster"])
    if path.suffix in (".yaml", ".yml"):
        return read_graph(path, arguments["roster"])
    network = load_network(path)
    if network.edges.num_vertices != clients:
        raise InputError(
            f"{path} has {network.edges.num_vertices} sensors, and the run {clients} clients; give the "
            "network that was dealt with the sites' series"
        )
    return network


_KINDS: Mapping[str, PlaceData] = {
    "graph": PlaceData(
        read_graph_site, agree_on_graphs, graph_task, graph_facts, graph_arrays, graph_part, vertex_table,
        declared=graph_declared,
    ),
    "sensors": PlaceData(
        read_sensors, agree_on_sensors, forecasting_task, sensor_facts, series_arrays, series_part,
        forecasts_table, read_server=read_network, server_part=network_of,
    ),
}  # fmt: skip


# ---- before a place is started -----------------------------------------------------------------------------


def checked_file(path: Path, roster: Sequence[str], name: str) -> str:
    """What is in a place's own file, in a few words for its operator; InputError where it cannot be used."""
    known = {}
    if path.suffix in (".yaml", ".yml"):
        content = read_yaml(path, "the description")
        if describes_sensors(content):
            return _checked_sensors(path, roster, "readings" in content)
    if path.suffix == ".safetensors":
        try:
            known = read_metadata(path)
        except Exception:
            known = {}
    if "network" in known:
        network = load_network(path)
        return f"{network.edges.num_vertices} sensors, {len(network.edges.sender)} edges"
    if "series" in known:
        series = read_sensors({"roster": roster}, path, name).series
        return f"{series.num_clients} sensors, {series.num_steps} readings of each"
    read = read_site(path, split="default", split_seed=0, roster=roster, site=name)
    cohort = read.cohort
    named = [name for name in read.schema.class_names if name]
    return (
        f"{cohort.num_rows} vertices, {cohort.edge_index.shape[1] // 2} edges, "
        f"{cohort.num_features} features, {cohort.num_classes} classes"
        + (f" ({', '.join(named[:10])}{', ...' if len(named) > 10 else ''})" if named else "")
        + (f"; {in_one_line(read.dropped)}" if read.dropped else "")
    )


def _checked_sensors(path: Path, roster: Sequence[str], readings: bool) -> str:
    """`checked_file` of a description of sensors: a site's with readings, the server's without."""
    if not readings:
        edges = read_graph(path, roster)
        return f"{edges.num_vertices} sensors, {edges.count - edges.num_vertices} edges between them"
    sensors = read_readings(path, roster)
    gaps = 100 * sensors.missing.mean()
    return (
        f"{sensors.num_sensors} sensors, {sensors.num_steps} readings of each from {sensors.start}, every "
        f"{sensors.step_minutes} minutes, {gaps:.1f} % missing"
    )
