"""Statistics of sensors' readings and of the graph between the sensors, as JSON and as texts for people.

Shapes: T time steps, S sensors.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.sensors.series import Sensors
from graphfed.data.sensors.windows import TimeSplit

#: The largest number of edges that an overview lists.
MAX_EDGES = 20_000
#: The largest number of intervals for which an overview has the availability of readings.
MAX_INTERVALS = 240


def sensor_overview(sensors: Sensors, split: TimeSplit | None) -> dict[str, Any]:
    """Compute the overview of sensors, as JSON. `split` is that of the windows, if there is one.

    sensors.missing is the fraction of steps at which each sensor has no reading. edges are [sender, receiver,
    weight] without the diagonal, at most MAX_EDGES, those with the largest weights. summary.availability is
    the fraction of readings that are present, for each interval of time, and summary.isolated the number of
    sensors without a neighbour in either direction.
    """
    size = sensors.num_sensors
    graph = sensors.adjacency.tocoo()
    edge = graph.row != graph.col
    sender, receiver, weight = graph.row[edge], graph.col[edge], graph.data[edge]
    # Sorted again, so that edges stay in the order of the matrix.
    heaviest = np.sort(np.argsort(-weight, kind="stable")[:MAX_EDGES])
    degree = np.bincount(sender, minlength=size) + np.bincount(receiver, minlength=size)
    components, member = sp.csgraph.connected_components(sensors.adjacency, directed=False)
    missing = sensors.missing.mean(0)
    sensor, first, steps = _longest_gap(sensors.missing)
    start = datetime.fromisoformat(sensors.start)
    step = timedelta(minutes=sensors.step_minutes)
    intervals = np.array_split(1 - sensors.missing.mean(1), min(MAX_INTERVALS, sensors.num_steps))
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
            "missing": missing.tolist(),
            "observed": observed.tolist(),
        },
        "edges": [[int(sender[e]), int(receiver[e]), round(float(weight[e]), 6)] for e in heaviest],
        "windows": None
        if split is None
        else {key: getattr(split, key) for key in ("lags", "horizon", "every", "train", "val", "test")},
        "summary": {
            "end": (start + step * (sensors.num_steps - 1)).isoformat(),
            "missing": float(sensors.missing.mean()),
            "availability": [float(interval.mean()) for interval in intervals],
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


def sensor_facts(overview: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Describe sensors for a person, in pairs of a label and a text."""
    summary, each, windows = overview["summary"], overview["sensors"], overview["windows"]
    size = len(each["ids"])
    worst = int(np.argmax(each["missing"]))
    missing = f"{100 * summary['missing']:.1f} %"
    if summary["missing"]:
        missing += f"; at most {100 * each['missing'][worst]:.1f} %, at sensor {each['ids'][worst]}"
    gap = summary["longest_gap"]
    facts = [
        ("sensors", f"{size:,}"),
        ("steps", f"{overview['steps']:,}, every {overview['step_minutes']} minutes"),
        ("period", f"{_short(overview['start'])} to {_short(summary['end'])}"),
        ("measured quantity", overview["quantity"]),
        ("missing readings", missing),
    ]
    if gap is not None:
        duration = timedelta(minutes=gap["steps"] * overview["step_minutes"])
        facts.append(
            ("longest gap", f"{_duration(duration)}: sensor {gap['sensor']} from {_short(gap['start'])}")
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
                f"windows ({windows['lags']} input steps, {windows['horizon']} forecast steps)",
                f"{windows['train']:,} for training, {windows['val']:,} for validation, {windows['test']:,} "
                "for test",
            )
        )
    return [*facts, *([("note", overview["note"])] if overview["note"] else [])]


def _longest_gap(missing: np.ndarray) -> tuple[int, int, int]:
    """Find the longest run of missing readings [T, S]: its sensor, first step and number of steps."""
    steps, size = missing.shape
    # One extra step per sensor separates the sensors, so that no run continues from one to the next.
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


def _duration(time: timedelta) -> str:
    minutes = int(time.total_seconds()) // 60
    days, hours = minutes // 1440, minutes // 60 % 24
    if days:
        return f"{days:,} d {hours} h" if hours else f"{days:,} d"
    return f"{hours} h {minutes % 60} min" if hours else f"{minutes} min"
