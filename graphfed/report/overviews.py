"""Charts of an overview: a graph and its clients, or sensors and their readings."""

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from graphfed.drawing.canvas import GRID, SERIES, Charts, picture_file, short
from graphfed.drawing.charts import XY, Axis, Bars, Series, grouped
from graphfed.drawing.networks import Edges, Network, Nodes, by_value, kilometres
from graphfed.runs.overview_schema import GraphOverview, ReadingsOverview

__all__ = ["DRAWN_CLIENTS", "class_bars", "client_network", "degree_bars", "overview_picture"]

#: Clients and classes that have a bar.
DRAWN_CLIENTS, DRAWN_CLASSES = 30, 30
#: More clients in a circle are not named.
NAMED_CLIENTS = 12


def overview_picture(told: GraphOverview | ReadingsOverview, form: str) -> bytes:
    """Return an overview in one picture, "svg" or "png".

    A graph is shown with its clients, its degrees, and its classes by client and by part of the split.
    Sensors
    are shown on a map, with the share of their readings that is missing, and with how many readings there are
    over time.
    """
    if isinstance(told, GraphOverview):
        title = f"{short(told.name, 60)}: {told.nodes:,} nodes, {told.edges:,} edges"
        drawn = replace(client_network(told), title=f"the graph{', a sample' * told.drawing.sampled}")
        rows: Charts = [[drawn, degree_bars(told)], [_part_bars(told), class_bars(told, legend="class")]]
        return picture_file(title, rows, form=form)
    size = f"{len(told.sensors.ids):,} sensors, {told.steps:,} steps of {told.step_minutes} minutes"
    charts: Charts = [[_sensor_network(told)], [_availability(told)]]
    return picture_file(f"{short(told.name, 60)}: {size}", charts, width=8.4, form=form)


def client_network(told: GraphOverview) -> Network:
    """Draw the sample of a graph: its clients, edges inside them thin, edges between them in colour."""
    drawing = told.drawing
    at = np.array(drawing.positions, dtype=float).reshape(-1, 2)
    ends = np.array(drawing.edges, dtype=int).reshape(-1, 3)
    clients = np.array(drawing.clients, dtype=int)
    named = {client.client: client.name for client in told.clients}
    several = len(set(drawing.clients)) > 1
    names = []
    for client in (
        dict.fromkeys(drawing.clients) if several and len(set(drawing.clients)) <= NAMED_CLIENTS else ()
    ):
        label, own = short(named.get(client, str(client)), 18), at[clients == client]
        middle = own.mean(0)
        outwards = middle / max(float(np.linalg.norm(middle)), 1e-9)
        reach = np.linalg.norm(own - middle, axis=1).max(initial=0) + 0.07
        # The words stand next to the client: half of them on each side of their middle.
        names.append((label, middle + outwards * (reach + np.array([0.022 * len(label), 0.0]))))
    edges = [Edges(ends[ends[:, 2] == 0, :2], "edge inside a client")]
    edges += [Edges(ends[ends[:, 2] == 1, :2], "edge between two clients", SERIES[1])] * several
    every = Nodes(np.ones(len(at), dtype=bool), area=11.0)
    return Network(at, edges, [every], names, axes=False, size=4.4)


def degree_bars(told: GraphOverview) -> Bars:
    """Draw how many nodes have how many neighbours."""
    histogram = told.degrees.histogram
    names = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high, _ in histogram]
    counts = [count for *_, count in histogram]
    many = max(counts, default=1) > 100
    amount = Axis("nodes", written=grouped)
    if many:
        amount = replace(amount, scale="log", low=0.7, high=2.0 * max(counts))
    return Bars(names, {"": counts}, amount, "neighbours of a node")


def class_bars(told: GraphOverview, legend: str | None = None) -> Bars:
    """Draw the nodes of each class at each client."""
    shown = told.clients[:DRAWN_CLIENTS]
    names = [row.name for row in told.classes]
    counts = np.array([client.classes for client in shown], dtype=float).reshape(len(shown), len(names))
    if len(names) > len(SERIES):
        names = [*names[: len(SERIES) - 1], "other classes"]
        rest = counts[:, len(SERIES) - 1 :].sum(1, keepdims=True)
        counts = np.concatenate([counts[:, : len(SERIES) - 1], rest], 1)
    label = "client" if len(told.clients) <= len(shown) else f"client, the first {len(shown)}"
    amount = Axis("nodes of known class", written=grouped)
    parts = {f"{name}": counts[:, c] for c, name in enumerate(names)}
    return Bars([client.name for client in shown], parts, amount, label, legend=legend)


def _part_bars(told: GraphOverview) -> Bars:
    """Draw of each class the nodes in each part of the split."""
    shown = told.classes[:DRAWN_CLASSES]
    parts = {part: [getattr(row, part) for row in shown] for part in ("train", "val", "test")}
    parts["in no part"] = [row.nodes - row.train - row.val - row.test for row in shown]
    more = (
        f", the first {len(shown)} of {len(told.classes)} classes" if len(told.classes) > len(shown) else ""
    )
    return Bars(
        [row.name for row in shown], parts, Axis(f"nodes{more}", written=grouped), "class", across=True,
        colours={"in no part": GRID}, legend="part of the split",
    )  # fmt: skip


def _sensor_network(told: ReadingsOverview) -> Network:
    each = told.sensors
    if each.position is None:
        # In a circle, in the order of the readings: the edges are all there is to see.
        angle = 2 * np.pi * np.arange(len(each.ids)) / len(each.ids)
        place = np.stack((np.cos(angle), np.sin(angle)), axis=1)
    else:
        place = kilometres(np.array(each.position, dtype=float), each.geographic)
    missing = 100 * np.array(each.missing)
    nodes = by_value(missing, "missing readings (%)", "", np.zeros(len(missing), dtype=bool))
    edges = Edges(np.array(told.edges, dtype=float).reshape(-1, 3)[:, :2])
    return Network(place, [edges], nodes, axes=each.position is not None, title="sensors and their edges")


def _availability(told: ReadingsOverview) -> XY:
    there = 100 * np.array(told.summary.availability)
    start = datetime.fromisoformat(told.start)
    piece = timedelta(minutes=told.steps * told.step_minutes) / len(there)
    times = np.array([start + piece * k for k in range(len(there) + 1)], dtype="datetime64[s]")
    line = Series("", times, [*there, there[-1]], marker="")
    title = "readings that are there, of all sensors"
    return XY([line], Axis(), Axis("there (%)", low=0, high=105), title, steps=True, height=1.8)
