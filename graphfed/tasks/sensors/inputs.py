"""The inputs of a run on readings: the sensors, each a client, and their split.

Shapes: S sensors, W windows, n steps ahead.
"""

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
from graphfed.methods.common.sizes import (
    CHECKPOINT_BYTES,
    SeriesExtent,
    num_moments,
    recurrent_numbers,
)
from graphfed.methods.parts import keeps_client_state
from graphfed.tasks.inputs import Inputs
from graphfed.tasks.run_config import RunConfig, threads_for
from graphfed.tasks.sensors.scores import deciding_error

if TYPE_CHECKING:
    import pyarrow as pa

    from graphfed.federation.series import Network, Series
    from graphfed.tasks.evaluation import Predicted

#: The parts of the split that are predicted.
PARTS = ("val", "test")


@dataclass(frozen=True, eq=False)
class SensorInputs(Inputs):
    """The inputs of a run in which each sensor is a client, and the server has the graph."""

    sensors: Sensors
    split: TimeSplit
    dropped: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.sensors.name

    @property
    def remarks(self) -> tuple[str, ...]:
        return (self.sensors.note,) if self.sensors.note else ()

    @property
    def hashes(self) -> dict[str, str]:
        """The hashes of data, split and partition. The last one is a hash of the sensors' names in order."""
        # A zero byte separates the names, so ("ab", "c") and ("a", "bc") have different hashes.
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
        return Task(1, 0, name)  # the feature is the reading

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if config.method.requires.check is not None:
            config.method.requires.check(self.sensors, config.settings)

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
        settings, method = config.settings, config.method
        recurrent = getattr(settings, "recurrent", None)
        numbers = 0
        if method.checkpoint is not None:
            numbers = method.checkpoint(SeriesExtent(self.num_clients), settings)
        elif recurrent is not None:
            moments = num_moments(settings.training.optimizer)
            # Clients that do not keep their optimisers, or share one, are one client here.
            optimizers = self.num_clients if method.personal or keeps_client_state(settings) else 1
            models = self.num_clients if method.personal else 1
            numbers = (2 * models + moments * optimizers) * recurrent_numbers(recurrent)
        # Forecast and truth take 4 bytes each for every step ahead, and the other columns about 16 together.
        rows = self.num_clients * (self.split.val + self.split.test) * (8 * self.split.horizon + 16)
        return CHECKPOINT_BYTES * numbers + rows + 1_000_000

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
        """Build a table for each sensor, in their order (see `forecast_table`)."""
        workers = sorted(predicted, key=lambda pair: pair[0].clients)
        for series, (starts, forecasts) in workers:
            first = starts.cpu().numpy()
            for sensor, forecast in zip(series.clients, forecasts.detach(), strict=True):
                yield forecast_table(self.sensors, self.split, sensor, first, forecast.cpu().numpy())

    def metric_of_rounds(self, config: RunConfig) -> str:
        return deciding_error(config.settings)

    def present(self, absent: Sequence[object]) -> np.ndarray:
        number = {name: k for k, name in enumerate(self.sensors.ids)}
        present = np.ones(self.sensors.num_sensors, dtype=bool)
        for name in map(str, absent):
            if name not in number:
                raise InputError(
                    f"the absent sensor {shown(name)} is not in {self.name!r}; {did_you_mean(name, number)}"
                )
            present[number[name]] = False
        if not present.any():
            raise InputError(
                f"all sensors of {self.name!r} are absent, so nothing can be forecast; name fewer sensors"
            )
        return present


def forecast_table(
    sensors: Sensors, split: TimeSplit, sensor: int, first: np.ndarray, forecast: np.ndarray
) -> "pa.Table":
    """Build the table of one sensor's forecasts [W, n] of windows with the first steps [W], sorted by time.

    Its columns are sensor (the name), client (the number), time (of the last reading before the forecast),
    part (val or test), forecast_1 ... forecast_n and truth_1 ... truth_n by steps ahead (float32). A truth is
    null if the reading is missing.
    """
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
