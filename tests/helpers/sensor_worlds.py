"""Small federations that forecast: sensors, a client each, their split in time, and runs in any placement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from worlds import ThreeWorkers, in_thirds

from graphfed.data.datasets import load
from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import TimeSplit, make_time_split
from graphfed.federation import Federation, Ledger
from graphfed.federation.series import Network, Series, make_network, make_series
from graphfed.methods.base import Method, Task
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.methods.settings import only_those
from graphfed.methods.tasks import FORECASTING
from graphfed.runs.checkpoint import Checkpoints
from graphfed.runs.processes import train_in_processes
from graphfed.runs.train import train
from graphfed.runtime.local import stacked
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import default_settings, get_task

ROUNDS, LAGS, HORIZON = 3, 4, 3
TASK = Task(1, 0, FORECASTING)


@dataclass(frozen=True)
class SensorWorld:
    """Sensors and how their windows are divided."""

    sensors: Sensors
    split: TimeSplit

    @property
    def clients(self) -> int:
        return self.sensors.num_sensors

    def series(self, workers: Sequence[Sequence[int]]) -> list[Series]:
        return [make_series(self.sensors, self.split, worker) for worker in workers]

    def network(self) -> Network:
        return make_network(self.sensors, self.split)


def sensor_world(split: str = "default", *, every: int = 3) -> SensorWorld:
    """Six sensors of a generated road, an afternoon's 120 readings, some of them missing; the last sensor has
    no neighbour."""
    whole = load("roads", sensors=6, weeks=1)
    assert isinstance(whole, Sensors)
    steps = slice(160, 280)
    edges = whole.adjacency.tolil()
    edges[5, :5] = edges[:5, 5] = 0
    missing = whole.missing[steps].copy()
    missing[np.random.default_rng(0).random(missing.shape) < 0.05] = True
    readings = np.where(missing, np.float32(0), whole.readings[steps])
    shortened = replace(whole, readings=readings, missing=missing, adjacency=sp.csr_matrix(edges))
    return SensorWorld(shortened, make_time_split(shortened, split, LAGS, HORIZON, every))


def silent_world(split: str = "default", *, every: int = 3) -> SensorWorld:
    """The same, where sensor 1 has no reading in twelve training steps and in eight test steps."""
    world = sensor_world(split, every=every)
    readings, missing = world.sensors.readings.copy(), world.sensors.missing.copy()
    for steps in (slice(20, 32), slice(104, 112)):
        readings[steps, 1], missing[steps, 1] = 0, True
    return SensorWorld(replace(world.sensors, readings=readings, missing=missing), world.split)


def reordered(world: SensorWorld, order: np.ndarray) -> SensorWorld:
    """The same sensors, so that the one called `order[k]` becomes number k."""
    old = world.sensors
    moved = replace(
        old,
        readings=np.ascontiguousarray(old.readings[:, order]),
        missing=np.ascontiguousarray(old.missing[:, order]),
        adjacency=sp.csr_matrix(old.adjacency[order][:, order]),
        position=None if old.position is None else old.position[order],
        ids=tuple(old.ids[k] for k in order),
    )
    return SensorWorld(moved, replace(world.split, observed=world.split.observed[order]))


def config_of(method: Method, **settings: Any) -> Any:
    """A small run; of the first settings those that the method has."""
    first = {
        "rounds": ROUNDS, "lags": LAGS, "horizon": HORIZON, "every": 3, "hidden": 4, "lr": 0.02,
        "batch": 16, "server_batch": 16, "eval_every": 1,
    }  # fmt: skip
    given = only_those(method.tree.names, settings)
    return method.configure(given, {**default_settings(method, FORECASTING), **first})


def in_thirds_of(clients: int, *, simulated: bool = False) -> Federation:
    return Federation(in_thirds(clients), simulated=simulated)


def run_local(
    name: str,
    world: SensorWorld,
    place: Callable[..., Federation] = stacked,
    checkpoints: Checkpoints | None = None,
    **settings: Any,
) -> tuple[Outcome, Federation]:
    """Train in this process."""
    method = get_method(name)
    config = config_of(method, **settings)
    fed = (stacked if method.pooled else place)(world.clients, simulated=is_simulated(config))
    data = get_task(FORECASTING).data.located(fed, world.series(fed.workers), [world.network()])
    return train(fed, method, data, TASK, config, checkpoints=checkpoints), fed


def run_apart(
    name: str, world: SensorWorld, pool: ThreeWorkers, checkpoints: Any = None, **settings: Any
) -> tuple[Outcome, Ledger]:
    """Train in a process for each of three clients, with a third of the sensors each."""
    method, clients = get_method(name), pool.of(world.clients)
    return train_in_processes(
        method, world.series(clients.workers), TASK, config_of(method, **settings),
        of_server=world.network(), running=clients, checkpoints=checkpoints,
    )  # fmt: skip


def forecasts(outcome: Outcome) -> torch.Tensor:
    """Of the windows of validation and test, [S, W, n]."""
    return torch.cat([forecast for _, forecast in outcome.predictions.parts])
