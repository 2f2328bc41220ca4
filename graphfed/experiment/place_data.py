"""What the places of a deployment read from their own files, by kind of data, and what they must agree on.

graph     every site its description of tables, or a dealt cohort (`site_data`); the server nothing
sensors   in a trial: every site the dealt series of its sensors; the server their dealt network
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphfed.errors import InputError, shown
from graphfed.experiment.schema import Schema, compare_schemas
from graphfed.experiment.site_data import SiteData, dealt_clients, make_site_cohort, read_site
from graphfed.federation.cohort import cohort_arrays
from graphfed.federation.series import Network, Series, load_network, load_series
from graphfed.files import read_metadata
from graphfed.methods.base import Method, Task
from graphfed.methods.tasks import FORECASTING, TASKS

__all__ = ["PlaceData", "SensorSite", "checked_file", "place_data"]


@dataclass(frozen=True)
class SensorSchema:
    """What a site may tell of its readings: when they were made, and how their windows are divided (see
    `Series`, `TimeSplit`)."""

    first_minute: int
    step_minutes: int
    steps: int
    lags: int
    horizon: int
    every: int
    train: int
    val: int
    test: int

    def to_json(self) -> dict[str, int]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, eq=False)
class SensorSite:
    """The sensors of a site. names: what the run calls them."""

    series: Series
    schema: SensorSchema
    names: tuple[str, ...]

    @property
    def clients(self) -> tuple[int, ...]:
        return self.series.clients


@dataclass(frozen=True)
class PlaceData:
    """One kind of data.

    read(arguments, path, site) -> a site's own, which has `clients` and `schema`; read_server: the server's,
    None where it has none. agree(schemas, server) -> what all places agree on, of what each site says of
    itself; task(agreed). arrays(own) -> what a digest of a site's data is made of. part(own, clients, task,
    device) -> what its host trains on. table(own, part, predicted) -> predictions.parquet at the site."""

    read: Callable[[Mapping[str, Any], Path, str], Any]
    agree: Callable[[Mapping[str, Any], Any], dict[str, Any]]
    task: Callable[[Mapping[str, Any]], Task]
    arrays: Callable[[Any], dict[str, np.ndarray]]
    part: Callable[[Any, Sequence[int], Task, Any], Any]
    table: Callable[[Any, Any, Any], Any]
    read_server: Callable[[Path, int], Any] | None = None


def place_data(method: Method) -> PlaceData:
    """Of the data that a method is for."""
    return _KINDS[TASKS[method.tasks[0]].data]


# ---- graphs ------------------------------------------------------------------------------------------------


def read_graph(arguments: Mapping[str, Any], path: Path, site: str) -> SiteData:
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
    """The series that were dealt for a site; InputError for another file and for other clients' series."""
    series, roster = load_series(path), arguments["roster"]
    expected = dealt_clients(series.clients, roster, site)
    if series.clients != expected:
        raise InputError(
            f"{path} was dealt for the clients {list(series.clients)[:10]} of a run, and site {shown(site)} "
            f"has {list(expected)[:10]} of 0..{len(roster) - 1}; give the file that was dealt for this site"
        )
    return SensorSite(series, schema_of(series, series.num_steps), tuple(roster[k] for k in expected))


def schema_of(data: Series | Network, steps: int) -> SensorSchema:
    split = data.split
    return SensorSchema(
        data.first_minute, data.step_minutes, steps,
        split.lags, split.horizon, split.every, split.train, split.val, split.test,
    )  # fmt: skip


def agree_on_sensors(told: Mapping[str, Any], network: Network) -> dict[str, Any]:
    """InputError where a site's readings were made at other times than the first one's, or are divided in
    another way, and where the server's network is."""
    (first, said), *others = told.items()
    try:
        here = schema_of(network, int(said["steps"])).to_json()
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"what {first} says of its readings cannot be used: it lacks {error}") from None
    for site, theirs in [(first, said), *others]:
        for key, value in here.items():
            if not isinstance(theirs, Mapping) or theirs.get(key) != value:
                found = theirs.get(key) if isinstance(theirs, Mapping) else theirs
                raise InputError(
                    f"{key} is {shown(found)} at {site} and {value} elsewhere; deal the readings of all "
                    "sites and the server's network together"
                )
    return {"owners_known": True}


def forecasting_task(agreed: Mapping[str, Any]) -> Task:
    return Task(1, 0, FORECASTING)


def series_arrays(own: SensorSite) -> dict[str, np.ndarray]:
    series = own.series
    return {
        "readings": series.readings.cpu().numpy(),
        "missing": series.missing.cpu().numpy(),
        "observed": series.split.observed,
        "schema": np.array(list(own.schema.to_json().values())),
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
    """A row for every sensor and window of validation and test: the run's name and number of the sensor, the
    number of the last step that the forecast is made from, and the forecast of each step ahead."""
    import pyarrow as pa

    starts, forecasts = predicted
    count = len(starts)
    flat = forecasts.detach().float().cpu().numpy().reshape(-1, forecasts.shape[-1])
    columns = {
        "sensor": pa.array(np.repeat(own.names, count)),
        "client": pa.array(np.repeat(series.clients, count)),
        "step": pa.array(np.tile(starts.cpu().numpy() + series.split.lags - 1, len(series.clients))),
    }
    columns |= {f"forecast_{n + 1}": pa.array(flat[:, n]) for n in range(flat.shape[1])}
    return pa.table(columns)


def read_network(path: Path, clients: int) -> Network:
    """The network that was dealt for the server; InputError for one of other sensors."""
    network = load_network(path)
    if network.edges.num_vertices != clients:
        raise InputError(
            f"{path} has {network.edges.num_vertices} sensors, and the run {clients} clients; give the "
            "network that was dealt with the sites' series"
        )
    return network


_KINDS: Mapping[str, PlaceData] = {
    "graph": PlaceData(read_graph, agree_on_graphs, graph_task, graph_arrays, graph_part, vertex_table),
    "sensors": PlaceData(
        read_sensors, agree_on_sensors, forecasting_task, series_arrays, series_part, forecasts_table,
        read_server=read_network,
    ),
}  # fmt: skip


# ---- before a place is started -----------------------------------------------------------------------------


def checked_file(path: Path, roster: Sequence[str], name: str) -> str:
    """What is in a place's own file, in a few words for its operator; InputError where it cannot be used."""
    known = {}
    if path.suffix == ".safetensors":
        try:
            known = read_metadata(path)
        except Exception:
            known = {}
    if "network" in known:
        network = read_network(path, len(roster))
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
    )
