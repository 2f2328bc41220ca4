"""What a run on readings of sensors trains on: one client each, and their split in time (see `tasks.inputs`).

Shapes: S sensors, T steps, W windows, m lags, n steps ahead."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.content import content_hash
from graphfed.data.sensors.overview import sensor_overview
from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import TimeSplit
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.files import JsonObject
from graphfed.methods.base import Task
from graphfed.methods.common.memory import SeriesExtent, series_memory
from graphfed.methods.config import RecurrentSettings, WindowSettings
from graphfed.tasks.run_config import RunConfig, threads_for
from graphfed.tasks.sensors.scores import deciding_error
from graphfed.tasks.source import LoadedData, sensors_of

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.federation.series import Network, Series
    from graphfed.methods.base import Method
    from graphfed.tasks.evaluation import Predicted
    from graphfed.tasks.outcome import Outcome

__all__ = ["PARTS", "SensorInputs", "forecast_table", "load_sensors"]

#: Of the split, those that are predicted.
PARTS = ("val", "test")


@dataclass(frozen=True, eq=False)
class SensorInputs:
    """Every sensor is a client, with its own readings; the server has the network of all of them."""

    sensors: Sensors
    split: TimeSplit
    dropped: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.sensors.name

    @property
    def hashes(self) -> dict[str, str]:
        """The partition's is of the sensors' names, in order."""
        ids = np.frombuffer("\0".join(self.sensors.ids).encode(), dtype=np.uint8)
        return {
            "data": self.sensors.hash,
            "split": self.split.hash,
            "partition": content_hash({"ids": ids}, "sensors"),
        }

    @property
    def num_clients(self) -> int:
        return self.sensors.num_sensors

    def task(self, name: str) -> Task:
        """One feature, the reading; no classes."""
        return Task(1, 0, name)

    def check(self, config: RunConfig) -> None:
        if config.workers is not None and config.workers > self.clients_of(config.method):
            raise InputError(
                f"{config.workers} workers cannot hold {self.num_clients} clients; use at most as many "
                "workers as clients"
            )
        if config.method.requires.check is not None:
            config.method.requires.check(self.sensors, config.training)

    def described(self, config: RunConfig) -> JsonObject:
        sensors = self.sensors
        return {
            "data": {
                "name": sensors.name,
                "note": sensors.note,
                "quantity": sensors.quantity,
                "sensors": sensors.num_sensors,
                "steps": sensors.num_steps,
                "start": sensors.start,
                "step_minutes": sensors.step_minutes,
                "missing": float(sensors.missing.mean()),
                "edges": int(sensors.adjacency.nnz - sensors.num_sensors),
                "dropped": list(self.dropped),
                "split": self.split.name,
            },
            "partition": {
                "name": config.partition,
                "options": {},
                "seed": config.partition_seed,
                "file": None,
                "clients": sensors.num_sensors,
                "client_names": sensors.ids,
            },
        }

    def overview(self) -> JsonObject:
        return sensor_overview(self.sensors, self.split)

    def threads(self) -> int:
        windows = -(-self.split.train // self.split.every)
        return threads_for(self.num_clients * windows * self.split.lags)

    def bytes_needed(self, config: RunConfig) -> int:
        """Of weights as of a recurrent encoder and decoder with three gates each, and as much again."""
        training = config.training
        weights = 0
        if isinstance(training, RecurrentSettings):
            weights = 4 * 24 * training.recurrent_layers * training.hidden**2
        models = self.num_clients if config.method.personal else 1
        rows = self.num_clients * (self.split.val + self.split.test) * (8 * self.split.horizon + 16)
        return 13 * models * weights + rows + 1_000_000

    def memory_needed(self, config: RunConfig) -> int:
        training = config.training
        assert isinstance(training, WindowSettings)
        split, method = self.split, config.method
        extent = SeriesExtent(self.num_clients, -(-split.train // split.every), split.val + split.test)
        extra = 0.0 if method.memory is None else method.memory(extent, training)
        return series_memory(extent, training, pooled=method.pooled, extra=extra)

    def bytes_of_partition(self) -> int:
        return 0

    def save_partition(self, path: Path) -> None:
        """There is one partition only, which no file is needed for."""

    def clients_of(self, method: "Method") -> int:
        """All of them also where one party holds all data: it holds them as one cohort."""
        return self.num_clients

    def parts(self, config: RunConfig, workers: Sequence[Sequence[int]]) -> "list[Series]":
        from graphfed.federation.series import make_series

        return [make_series(self.sensors, self.split, worker, device=config.device) for worker in workers]

    def part_of_server(self, config: RunConfig) -> "Network":
        from graphfed.federation.series import make_network

        return make_network(self.sensors, self.split, device=config.device)

    def save_for_client(self, part: "Series", path: Path) -> None:
        from graphfed.federation.series import save_series

        save_series(part, path)

    def tables(
        self,
        config: RunConfig,
        predicted: "Sequence[tuple[Series, Predicted]]",
        names: Sequence[str] | None = None,
    ) -> "Iterator[pa.Table]":
        """A table for each sensor, in their order: see `forecast_table`. predicted: (series, (first step of
        each window [W], forecasts [K, W, n])) of each host."""
        workers = sorted(predicted, key=lambda pair: pair[0].clients)
        for series, (starts, forecasts) in workers:
            first = starts.cpu().numpy()
            for sensor, forecast in zip(series.clients, forecasts.detach(), strict=True):
                yield forecast_table(self.sensors, self.split, sensor, first, forecast.cpu().numpy())

    def metric_of_rounds(self, config: RunConfig) -> str:
        training = config.training
        assert isinstance(training, WindowSettings)
        return deciding_error(training)

    def present(self, absent: Sequence[object]) -> np.ndarray:
        """Which sensors are there, [S] bool; InputError for an id that is no sensor's, and where none is
        left."""
        number = {name: k for k, name in enumerate(self.sensors.ids)}
        present = np.ones(self.sensors.num_sensors, dtype=bool)
        for name in map(str, absent):
            if name not in number:
                raise InputError(
                    f"sensor {shown(name)} is not in {self.name!r}, and so cannot be absent; "
                    f"{did_you_mean(name, number)}"
                )
            present[number[name]] = False
        if not present.any():
            raise InputError(
                f"all sensors of {self.name!r} are absent, and nothing is left to forecast; name fewer"
            )
        return present

    def details(self, config: RunConfig, outcome: "Outcome") -> JsonObject:
        return {}


def load_sensors(config: RunConfig, loaded: LoadedData | None = None) -> Sensors:
    """The sensors of a config, loaded once where `loaded` keeps them.

    Raises InputError for files that cannot be used."""
    key = (config.data, config.data_dir, tuple(config.data_options.items()))
    loaded = {} if loaded is None else loaded
    if key not in loaded:
        loaded[key] = sensors_of(config.data_source, config.data_dir, config.data_options)
    sensors = loaded[key]
    assert isinstance(sensors, Sensors)
    return sensors


def forecast_table(
    sensors: Sensors, split: TimeSplit, sensor: int, first: np.ndarray, forecast: np.ndarray
) -> "pa.Table":
    """A pyarrow table of one sensor's forecasts, sorted by time. Columns: sensor (its name), client (the
    client's number), time (of the last reading that the forecast is made from), part (val, test),
    forecast_1 ... forecast_n and truth_1 ... truth_n, by steps ahead (float32); a truth is null where the
    reading is missing. first [W]: the first step of each window; forecast [W, n]."""
    import pyarrow as pa

    last = first + split.lags - 1
    start, step = np.datetime64(sensors.start, "ms"), np.timedelta64(sensors.step_minutes, "m")
    part = (first >= split.train + split.val).astype(np.int8)
    columns = {
        "sensor": pa.repeat(sensors.ids[sensor], len(first)),
        "client": pa.repeat(pa.scalar(sensor, pa.int64()), len(first)),
        "time": pa.array(start + last * step.astype("timedelta64[ms]")),
        "part": pa.DictionaryArray.from_arrays(part, list(PARTS)),
    }
    for ahead in range(1, split.horizon + 1):
        columns[f"forecast_{ahead}"] = pa.array(forecast[:, ahead - 1].astype(np.float32))
    for ahead in range(1, split.horizon + 1):
        truth, missing = sensors.readings[last + ahead, sensor], sensors.missing[last + ahead, sensor]
        columns[f"truth_{ahead}"] = pa.array(truth, mask=missing)
    return pa.table(columns)
