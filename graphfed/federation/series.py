"""The data of forecasting: the time series of a worker's sensors, and at the server the network of all
sensors.

Each client has one sensor. The clients of a worker are stacked as in a `Cohort`. A window is never stored: it
is a view of a series. All sensors read at the same times.

Shapes: K clients, T steps, W windows, m lags, n horizon, S sensors of the whole run, E edges.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import TimeSplit
from graphfed.errors import InputError
from graphfed.federation.values import Located
from graphfed.files import read_tensors, write_tensors
from graphfed.nn.edges import Edges, make_edges

if TYPE_CHECKING:
    from graphfed.federation.cohort import Cohort

MINUTES_PER_DAY = 24 * 60


@dataclass(frozen=True, eq=False)
class Series:
    """The readings of K clients, one sensor each.

    Attributes:
        clients: The stable ids of the clients, which are the numbers of their sensors.
        readings: [K, T], 0 where missing.
        missing: [K, T] bool.
        first_minute: The minute of the week of the first reading (Monday 0:00 is 0).
        split: How the windows are divided, with `observed` [K] of these clients.
    """

    clients: tuple[int, ...]
    readings: Tensor
    missing: Tensor
    first_minute: int
    step_minutes: int
    split: TimeSplit

    @property
    def num_clients(self) -> int:
        return len(self.clients)

    @property
    def num_steps(self) -> int:
        return self.readings.shape[1]

    @property
    def time_of_day(self) -> Tensor:
        """The time of each reading as a fraction of the day, [T] in [0, 1)."""
        minute = self.first_minute + self.step_minutes * torch.arange(
            self.num_steps, device=self.readings.device
        )
        return (minute % MINUTES_PER_DAY).to(self.readings.dtype) / MINUTES_PER_DAY

    def starts(self, target: str) -> Tensor:
        """List the first step of each window of a target (see `starts_of`)."""
        return starts_of(self.split, target).to(self.readings.device)

    @property
    def training_steps(self) -> int:
        """The number of steps, from the first, that the training windows cover."""
        return self.split.train + self.split.lags + self.split.horizon - 1

    def of(self, present: Tensor) -> "Series":
        """Select the series of the clients that are `present`, [K] bool."""
        if bool(present.all()):
            return self
        chosen = present.nonzero()[:, 0]
        return replace(
            self,
            clients=tuple(self.clients[k] for k in chosen.tolist()),
            readings=self.readings[chosen],
            missing=self.missing[chosen],
            split=replace(self.split, observed=self.split.observed[present.cpu().numpy()]),
        )


@dataclass(frozen=True, eq=False)
class Network:
    """What the server knows of the sensors. It holds none of their readings.

    Attributes:
        edges: The edges between sensors, with self loops. The nodes are the clients.
        first_minute, step_minutes: The times of the readings, as in `Series`.
        split: How the windows are divided; `observed` [S] tells which sensors take part in training and
            validation.
    """

    edges: Edges
    first_minute: int
    step_minutes: int
    split: TimeSplit


@dataclass(frozen=True)
class SensorData:
    """The data of a run of forecasting: a `Series` at each worker, and a `Network` at the server."""

    series: Located["Series"]
    network: Located["Network"]


#: What a program is given, by the kind of its data: a `Cohort` at each worker of clients, or `SensorData`.
TaskData: TypeAlias = "Located[Cohort] | SensorData"


def starts_of(split: TimeSplit, target: str) -> Tensor:
    """List the first step of each window of a target, [W] int64: "train" (the windows that are trained
    on), "val", "test", or "all" for val and test.
    """
    # Windows of training, validation and test follow one another; `split.every` thins those of training.
    first, end, step = {
        "train": (0, split.train, split.every),
        "val": (split.train, split.train + split.val, 1),
        "test": (split.train + split.val, split.train + split.val + split.test, 1),
        "all": (split.train, split.train + split.val + split.test, 1),
    }[target]
    return torch.arange(first, end, step)


def windows(x: Tensor, starts: Tensor, first: int, length: int) -> Tensor:
    """Cut windows out of series x [..., T], at the steps `first` and on of windows that start at `starts`
    [W].

    Returns [..., W, length], views of the series.
    """
    return x.unfold(-1, length, 1).index_select(-2, starts + first)


def make_series(
    sensors: Sensors, split: TimeSplit, clients: Sequence[int], *, device: torch.device | str = "cpu"
) -> Series:
    """Make the series of some clients, in torch's default dtype; InputError unless they are sensors,
    ascending.
    """
    chosen = list(clients)
    if chosen != sorted({*chosen} & {*range(sensors.num_sensors)}):
        raise InputError(
            f"clients must be some of the sensors 0..{sensors.num_sensors - 1}, ascending, each once; got "
            f"{chosen[:10]}"
        )
    readings = np.ascontiguousarray(sensors.readings[:, chosen].T)
    return Series(
        clients=tuple(int(k) for k in chosen),
        readings=torch.from_numpy(readings).to(device, torch.get_default_dtype()),
        missing=torch.from_numpy(np.ascontiguousarray(sensors.missing[:, chosen].T)).to(device),
        first_minute=_first_minute(sensors),
        step_minutes=sensors.step_minutes,
        split=replace(split, observed=split.observed[chosen]),
    )


def make_network(sensors: Sensors, split: TimeSplit, *, device: torch.device | str = "cpu") -> Network:
    edges = make_edges(sensors.adjacency).to(device)
    return Network(edges, _first_minute(sensors), sensors.step_minutes, split)


def _first_minute(sensors: Sensors) -> int:
    start = np.datetime64(sensors.start, "m")
    # 1970-01-01, where numpy counts from, was a Thursday.
    return (int(start.astype(np.int64)) + 3 * MINUTES_PER_DAY) % (7 * MINUTES_PER_DAY)


# ---- files: what one process of a run reads, and all it reads ----------------------------------------------

#: The dtypes and the number of dimensions of each column.
_SERIES = {
    "readings": ("float32 float64", 2),
    "missing": ("bool", 2),
    "observed": ("bool", 1),
    "clients": ("int64", 1),
}
_NETWORK = {
    "sender": ("int64", 1),
    "receiver": ("int64", 1),
    "weight": ("float32", 1),
    "observed": ("bool", 1),
}
_SPLIT = ("lags", "horizon", "every", "train", "val", "test")


def save_series(series: Series, path: Path) -> None:
    arrays = {
        "readings": series.readings.cpu().numpy(),
        "missing": series.missing.cpu().numpy(),
        "observed": series.split.observed,
        "clients": np.array(series.clients, dtype=np.int64),
    }
    write_tensors(path, arrays, {"series": json.dumps(_times(series))})


def _times(known: Series | Network) -> dict[str, Any]:
    """The times of the readings and the split, for a file's metadata."""
    metadata = {
        "first_minute": known.first_minute,
        "step_minutes": known.step_minutes,
        "name": known.split.name,
    }
    return metadata | {key: getattr(known.split, key) for key in _SPLIT}


def _split_from(metadata: dict[str, Any], observed: np.ndarray) -> TimeSplit | None:
    """Restore the split from what `_times` returned; None if it is anything else."""
    numbers = [metadata.get(key) for key in ("first_minute", "step_minutes", *_SPLIT)]
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in numbers)
    if not whole or not isinstance(metadata.get("name"), str):
        return None
    if min(metadata[key] for key in ("step_minutes", "lags", "horizon", "every")) < 1:
        return None
    return TimeSplit(name=metadata["name"], observed=observed, **{key: metadata[key] for key in _SPLIT})


def load_series(path: Path, *, device: torch.device | str = "cpu") -> Series:
    """Read a file that `save_series` wrote; InputError if it is anything else, or its columns do not fit
    together.
    """
    arrays, metadata = _read(path, "series", _SERIES)
    clients, steps = arrays["readings"].shape
    ids, split = arrays["clients"], _split_from(metadata, arrays["observed"])
    fits = (
        split is not None
        and arrays["missing"].shape == (clients, steps)
        and len(arrays["observed"]) == len(ids) == clients > 0
        and ids.min() >= 0
        and bool((np.diff(ids) > 0).all())
        and bool(np.isfinite(arrays["readings"]).all())
        and split.train + split.val + split.test + split.lags + split.horizon - 1 <= steps
    )
    if not fits:
        raise InputError(
            f"{path} is not a whole file of time series: its columns do not fit together; write it again"
        )
    assert split is not None
    return Series(
        clients=tuple(ids.tolist()),
        readings=torch.from_numpy(arrays["readings"]).to(device),
        missing=torch.from_numpy(arrays["missing"]).to(device),
        first_minute=metadata["first_minute"],
        step_minutes=metadata["step_minutes"],
        split=split,
    )


def save_network(network: Network, path: Path) -> None:
    arrays = {name: getattr(network.edges, name).cpu().numpy() for name in ("sender", "receiver", "weight")}
    metadata = {"nodes": network.edges.num_nodes, **_times(network)}
    write_tensors(path, {**arrays, "observed": network.split.observed}, {"network": json.dumps(metadata)})


def load_network(path: Path, *, device: torch.device | str = "cpu") -> Network:
    """Read a file that `save_network` wrote; InputError if it is anything else, or its columns do not fit
    together.
    """
    arrays, metadata = _read(path, "network", _NETWORK)
    sensors, edges = metadata.get("nodes"), len(arrays["sender"])
    node_columns, split = (arrays["sender"], arrays["receiver"]), _split_from(metadata, arrays["observed"])
    fits = (
        isinstance(sensors, int)
        and split is not None
        and len(arrays["receiver"]) == len(arrays["weight"]) == edges
        and len(arrays["observed"]) == sensors
        and all(nodes.min(initial=0) >= 0 and nodes.max(initial=-1) < sensors for nodes in node_columns)
        and bool(np.isfinite(arrays["weight"]).all())
        # In the order of `Edges`.
        and bool((np.lexsort((arrays["sender"], arrays["receiver"])) == np.arange(edges)).all())
    )
    if not fits:
        raise InputError(
            f"{path} is not a whole network of sensors: its columns do not fit together; write it again"
        )
    assert isinstance(sensors, int)
    assert split is not None
    sender, receiver, weight = (
        torch.from_numpy(arrays[name]).to(device) for name in ("sender", "receiver", "weight")
    )
    graph = Edges(receiver, sender, weight, sensors)
    return Network(graph, metadata["first_minute"], metadata["step_minutes"], split)


def _read(
    path: Path, key: str, columns: dict[str, tuple[str, int]]
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read the arrays of a file and its metadata under `key`; InputError if a column is missing or of
    another kind.
    """
    try:
        arrays, metadata = read_tensors(path)
        metadata = json.loads(metadata[key])
    except Exception as error:
        raise InputError(f"{path} is not a file of a sensor {key}: {error}") from error
    for name, (dtypes, dimensions) in columns.items():
        array = arrays.get(name)
        if array is None or array.dtype.name not in dtypes.split() or array.ndim != dimensions:
            raise InputError(
                f"{path} is not a file of a sensor {key}: the column {name} is missing or has another kind"
            )
    if not isinstance(metadata, dict):
        raise InputError(f"{path} is not a file of a sensor {key}: its description is not a JSON object")
    return arrays, metadata
