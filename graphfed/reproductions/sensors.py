"""Items of recipes on sensors that train nothing: which of them a split shows to training, how their readings
are distributed, and how many operations a forecast takes.

Shapes: S sensors, T steps, B bins."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.sensors.series import Sensors
from graphfed.errors import InputError
from graphfed.methods.cnfgnn.config import CNFGNNConfig
from graphfed.methods.cnfgnn.costs import forecast_operations
from graphfed.methods.common.forecasting import NeuralConfig
from graphfed.reproductions.recipe import Item
from graphfed.studies.plan import InputCache
from graphfed.tasks.run_config import RunConfig
from graphfed.tasks.sensors.inputs import SensorInputs

__all__ = ["KINDS", "first_by_id", "histogram_rows", "operation_rows", "visible_rows"]

#: Bins of a histogram, at most.
BINS = 40


def visible_rows(item: Item, configs: Mapping[str, RunConfig], cache: InputCache) -> list[dict[str, Any]]:
    """For each row, which sensors the split of its config shows to training, and which edges are among these.

    label, seed, data, split; sensors, edges: how many there are in all, visible_sensors, visible_edges: how
    many of these are seen (edges directed, without those from a sensor to itself); position [S, 2] and
    geographic, as in `Sensors`; observed [S]; pairs: [sender, receiver] of the edges that are seen.
    Raises InputError for sensors without positions."""
    rows = []
    for row in item.rows:
        inputs = _inputs(cache, configs[row.label])
        sensors, observed = inputs.sensors, inputs.split.observed
        if sensors.position is None:
            raise InputError(
                f"{item.name}, {row.label}: {sensors.name!r} has no locations of its sensors to draw; use "
                "data with locations"
            )
        edges = _edges(sensors)
        seen = edges[observed[edges].all(1)]
        rows.append(
            {
                "label": row.label,
                "seed": configs[row.label].seed,
                "data": sensors.name,
                "split": inputs.split.name,
                "sensors": sensors.num_sensors,
                "visible_sensors": int(observed.sum()),
                "edges": len(edges),
                "visible_edges": len(seen),
                "position": sensors.position.tolist(),
                "geographic": sensors.geographic,
                "observed": observed.tolist(),
                "pairs": seen.tolist(),
            }
        )
    return rows


def histogram_rows(item: Item, configs: Mapping[str, RunConfig], cache: InputCache) -> list[dict[str, Any]]:
    """For each row, how the readings of each of the first `item.sensors` sensors by id are distributed, over
    all steps; a missing reading is none.

    label, seed, data, quantity; ids [S]; edges [B+1] of the bins and counts [S, B]; mean, std, missing [S]:
    of each sensor's readings, and the share of steps without one; least, largest: of all these readings. mean
    and std are None for a sensor without readings."""
    rows = []
    for row in item.rows:
        sensors = _inputs(cache, configs[row.label]).sensors
        first = first_by_id(sensors)[: item.sensors]
        there = ~sensors.missing[:, first]
        readings = sensors.readings[:, first].astype(np.float64)
        if not there.any():
            raise InputError(f"{item.name}, {row.label}: {sensors.name!r} has no reading; use other data")
        known = readings[there]
        edges = _bins(float(known.min()), float(known.max()))
        columns = [readings[there[:, s], s] for s in range(len(first))]
        rows.append(
            {
                "label": row.label,
                "seed": configs[row.label].seed,
                "data": sensors.name,
                "quantity": sensors.quantity,
                "ids": [sensors.ids[s] for s in first],
                "edges": edges.tolist(),
                "counts": [np.histogram(column, edges)[0].tolist() for column in columns],
                "mean": [float(column.mean()) if len(column) else None for column in columns],
                "std": [float(column.std()) if len(column) else None for column in columns],
                "missing": (1 - there.mean(0)).tolist(),
                "least": float(known.min()),
                "largest": float(known.max()),
            }
        )
    return rows


def operation_rows(item: Item, configs: Mapping[str, RunConfig], cache: InputCache) -> list[dict[str, Any]]:
    """For each row, the operations of a forecast (`forecast_operations`) of its method: label, method,
    per_sensor, sensors, ours: 10^9 operations of all these together, printed, difference.

    Raises InputError for a method that has no recurrent network."""
    rows = []
    for row in item.rows:
        config = configs[row.label]
        training = config.training
        if not isinstance(training, NeuralConfig):
            raise InputError(
                f"{item.name}, {row.label}: {config.method.name} has no recurrent network whose operations "
                "could be counted; name another method, as cnfgnn"
            )
        # A decoder of CNFGNN starts from the encoding and the embedding beside each other.
        decoder = 2 * training.hidden if isinstance(training, CNFGNNConfig) else training.hidden
        each = forecast_operations(
            encoder=training.hidden,
            decoder=decoder,
            layers=training.layers,
            lags=training.lags,
            horizon=training.horizon,
        )
        assert item.sensors is not None
        ours, printed = each * item.sensors / 1e9, row.printed.get("operations")
        rows.append(
            {
                "label": row.label,
                "method": config.method.name,
                "per_sensor": each,
                "sensors": item.sensors,
                "ours": ours,
                "printed": None if printed is None else dataclasses.asdict(printed)["mean"],
                "difference": None if printed is None else ours - printed.mean,
            }
        )
    return rows


#: What makes the rows of a kind.
KINDS = {
    "visible_sensors": visible_rows,
    "histograms": histogram_rows,
    "operations": operation_rows,
}


def first_by_id(sensors: Sensors) -> list[int]:
    """The sensors in the order of their ids: of their numbers where all are numbers, else as text."""
    numbers = all(name.isdecimal() for name in sensors.ids)
    return sorted(
        range(sensors.num_sensors),
        key=lambda s: (int(sensors.ids[s]) if numbers else 0, sensors.ids[s]),
    )


def _inputs(cache: InputCache, config: RunConfig) -> SensorInputs:
    inputs = cache.get(config)
    assert isinstance(inputs, SensorInputs)  # of a method of forecasting
    return inputs


def _edges(sensors: Sensors) -> np.ndarray:
    """[E, 2] sender and receiver, without edges from a sensor to itself."""
    found = sp.coo_matrix(sensors.adjacency)
    pairs = np.stack((found.row, found.col), 1)
    kept: np.ndarray = pairs[(found.data > 0) & (found.row != found.col)]
    return kept


def _bins(least: float, largest: float) -> np.ndarray:
    """Edges of at most BINS bins of a round width (1, 2 or 5 times a power of ten) from least to largest."""
    span = max(largest - least, 1e-9 * max(abs(least), abs(largest), 1.0))
    power = 10.0 ** math.floor(math.log10(span / BINS))
    # The range begins and ends within a bin, so that it may need one more than its length says.
    width = next(power * step for step in (1, 2, 5, 10, 20) if math.ceil(span / (power * step)) + 1 <= BINS)
    first, last = math.floor(least / width), math.floor(largest / width) + 1
    edges = width * np.arange(first, last + 1)
    # A product may be off by a last bit, and no reading is to fall beside the bins.
    edges[0], edges[-1] = min(edges[0], least), max(edges[-1], largest)
    return edges
