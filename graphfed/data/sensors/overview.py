"""What sensors' readings look like, in numbers: plain data for people to read.

Shapes: T time steps, S sensors.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import TimeSplit

__all__ = ["MAX_EDGES", "sensor_facts", "sensor_overview"]

#: Edges that are told, and pieces of time whose availability is.
MAX_EDGES, PIECES = 20_000, 240


def sensor_overview(sensors: Sensors, split: TimeSplit | None) -> dict[str, Any]:
    """Plain JSON: the readings as a whole, each sensor, and the windows of a split (None: there is none).

    sensors["missing"]: each sensor's share of steps without a reading; "observed": whether it takes part in
    training. edges: [sender, receiver, weight] by the sensors' numbers, without those from a sensor to
    itself, at most MAX_EDGES: the heaviest. summary: the last reading's time; shares of missing readings, of
    all and by piece of time ("availability": the share that is there); the longest time that one sensor was
    silent; counts of edges, of components and of sensors without a neighbour in either direction."""
    size = sensors.num_sensors
    graph = sensors.adjacency.tocoo()
    edge = graph.row != graph.col
    sender, receiver, weight = graph.row[edge], graph.col[edge], graph.data[edge]
    heaviest = np.sort(np.argsort(-weight, kind="stable")[:MAX_EDGES])
    degree = np.bincount(sender, minlength=size) + np.bincount(receiver, minlength=size)
    components, member = sp.csgraph.connected_components(sensors.adjacency, directed=False)
    silent = sensors.missing.mean(0)
    sensor, first, steps = _longest_gap(sensors.missing)
    start = datetime.fromisoformat(sensors.start)
    step = timedelta(minutes=sensors.step_minutes)
    pieces = np.array_split(1 - sensors.missing.mean(1), min(PIECES, sensors.num_steps))
    observed = np.ones(size, dtype=bool) if split is None else split.observed
    return {
        "kind": "sensors",
        "name": sensors.name,
        "note": sensors.note,
        "quantity": sensors.quantity,
        "step_minutes": sensors.step_minutes,
        "start": sensors.start,
        "steps": sensors.num_steps,
        "sensors": {
            "ids": list(sensors.ids),
            "position": None if sensors.position is None else sensors.position.tolist(),
            "geographic": sensors.geographic,
            "missing": silent.tolist(),
            "observed": observed.tolist(),
        },
        "edges": [[int(sender[e]), int(receiver[e]), round(float(weight[e]), 6)] for e in heaviest],
        "windows": None
        if split is None
        else {
            "lags": split.lags,
            "horizon": split.horizon,
            "every": split.every,
            "train": split.train,
            "val": split.val,
            "test": split.test,
        },
        "summary": {
            "end": (start + step * (sensors.num_steps - 1)).isoformat(),
            "missing": float(sensors.missing.mean()),
            "availability": [float(piece.mean()) for piece in pieces],
            "longest_gap": {
                "sensor": sensors.ids[sensor],
                "start": (start + step * first).isoformat(),
                "steps": steps,
            }
            if steps
            else None,
            "edges": int(edge.sum()),
            "components": int(components),
            "largest_component": int(np.bincount(member).max()),
            "isolated": int((degree == 0).sum()),
        },
    }


def sensor_facts(told: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An overview's numbers, in words and for people."""
    summary, each, windows = told["summary"], told["sensors"], told["windows"]
    size = len(each["ids"])
    worst = int(np.argmax(each["missing"]))
    missing = f"{100 * summary['missing']:.1f} %"
    if summary["missing"]:
        missing += f"; of the worst sensor ({each['ids'][worst]}) {100 * each['missing'][worst]:.1f} %"
    gap = summary["longest_gap"]
    facts = [
        ("sensors", f"{size:,}"),
        ("steps", f"{told['steps']:,}, every {told['step_minutes']} minutes"),
        ("period", f"{_short(told['start'])} to {_short(summary['end'])}"),
        ("what is read", told["quantity"]),
        ("missing readings", missing),
    ]
    if gap is not None:
        lasting = timedelta(minutes=gap["steps"] * told["step_minutes"])
        facts.append(
            ("longest gap", f"{_lasting(lasting)}: sensor {gap['sensor']} from {_short(gap['start'])}")
        )
    facts += [
        ("edges", f"{summary['edges']:,}, directed"),
        (
            "connected components",
            f"{summary['components']:,}, the largest with {summary['largest_component']:,} of the sensors",
        ),
        ("sensors without a neighbour", f"{summary['isolated']:,}"),
        (
            "locations",
            "none" if each["position"] is None else "degrees" if each["geographic"] else "kilometres",
        ),
    ]
    if windows is not None:
        facts.append(
            (
                f"windows ({windows['lags']} steps in, {windows['horizon']} out)",
                f"{windows['train']:,} to train on, {windows['val']:,} to select on, {windows['test']:,} to "
                "test on",
            )
        )
    return [*facts, *([("note", told["note"])] if told["note"] else [])]


def _longest_gap(missing: np.ndarray) -> tuple[int, int, int]:
    """The sensor, the first step and the number of steps of the longest run of missing readings [T, S]."""
    steps, size = missing.shape
    # One step more for each sensor: a run ends there at the latest.
    padded = np.zeros((size, steps + 1), dtype=np.int8)
    padded[:, :steps] = missing.T
    change = np.diff(padded.ravel(), prepend=0)
    begin, end = np.flatnonzero(change == 1), np.flatnonzero(change == -1)
    if not begin.size:
        return 0, 0, 0
    longest = int((end - begin).argmax())
    sensor, first = divmod(int(begin[longest]), steps + 1)
    return sensor, first, int(end[longest] - begin[longest])


def _short(time: str) -> str:
    return time.replace("T", " ").removesuffix(":00")


def _lasting(time: timedelta) -> str:
    """As people say it: days and hours, or hours and minutes."""
    minutes = int(time.total_seconds()) // 60
    days, hours = minutes // 1440, minutes // 60 % 24
    if days:
        return f"{days:,} d {hours} h" if hours else f"{days:,} d"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"
