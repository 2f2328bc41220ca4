"""Draws overviews of data: a graph and its clients, or sensors and their readings."""

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from graphfed.drawing.canvas import GRID, SERIES, Charts, picture_file, short
from graphfed.drawing.charts import XY, Axis, Bars, Series, grouped
from graphfed.drawing.networks import Edges, Network, Nodes, by_value, kilometres
from graphfed.runs.overview_schema import GraphOverview, ReadingsOverview

#: The most clients and classes that have a bar.
DRAWN_CLIENTS, DRAWN_CLASSES = 30, 30
#: The most clients that are named in the drawing of a graph.
NAMED_CLIENTS = 12


def overview_picture(overview: GraphOverview | ReadingsOverview, form: str) -> bytes:
    """Draw an overview as one picture, "svg" or "png".

    The picture of a graph shows its clients, its degrees, and its classes by client and by part of the split.
    The picture of sensors shows a map with the percentage of missing readings, and the readings over time.
    """
    if isinstance(overview, GraphOverview):
        title = f"{short(overview.name, 60)}: {overview.nodes:,} nodes, {overview.edges:,} edges"
        drawn = replace(client_network(overview), title=f"the graph{', a sample' * overview.drawing.sampled}")
        rows: Charts = [
            [drawn, degree_bars(overview)],
            [_part_bars(overview), class_bars(overview, legend="class")],
        ]
        return picture_file(title, rows, form=form)
    size = (
        f"{len(overview.sensors.ids):,} sensors, {overview.steps:,} steps of {overview.step_minutes} minutes"
    )
    charts: Charts = [[_sensor_network(overview)], [_availability(overview)]]
    return picture_file(f"{short(overview.name, 60)}: {size}", charts, width=8.4, form=form)


def client_network(overview: GraphOverview) -> Network:
    """Draw the sample of a graph, with cross-client edges in another colour."""
    drawing = overview.drawing
    at = np.array(drawing.positions, dtype=float).reshape(-1, 2)
    ends = np.array(drawing.edges, dtype=int).reshape(-1, 3)
    clients = np.array(drawing.clients, dtype=int)
    named = {client.client: client.name for client in overview.clients}
    several = len(set(drawing.clients)) > 1
    names = []
    for client in (
        dict.fromkeys(drawing.clients) if several and len(set(drawing.clients)) <= NAMED_CLIENTS else ()
    ):
        label, nodes = short(named.get(client, str(client)), 18), at[clients == client]
        middle = nodes.mean(0)
        outwards = middle / max(float(np.linalg.norm(middle)), 1e-9)
        reach = np.linalg.norm(nodes - middle, axis=1).max(initial=0) + 0.07
        # The name stands outside the client's nodes; half of its width is on each side of its middle.
        names.append((label, middle + outwards * (reach + np.array([0.022 * len(label), 0.0]))))
    edges = [Edges(ends[ends[:, 2] == 0, :2], "edge inside a client")]
    edges += [Edges(ends[ends[:, 2] == 1, :2], "cross-client edge", SERIES[1])] * several
    every = Nodes(np.ones(len(at), dtype=bool), area=11.0)
    return Network(at, edges, [every], names, axes=False, size=4.4)


def degree_bars(overview: GraphOverview) -> Bars:
    """Draw the number of nodes by their number of neighbours."""
    histogram = overview.degrees.histogram
    names = [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high, _ in histogram]
    counts = [count for *_, count in histogram]
    many = max(counts, default=1) > 100
    amount = Axis("nodes", written=grouped)
    # Few nodes of a high degree would not be visible on a linear axis.
    if many:
        amount = replace(amount, scale="log", low=0.7, high=2.0 * max(counts))
    return Bars(names, {"": counts}, amount, "neighbours of a node")


def class_bars(overview: GraphOverview, legend: str | None = None) -> Bars:
    """Draw the number of nodes of each class at each client, with a legend of its own if it has a title."""
    shown = overview.clients[:DRAWN_CLIENTS]
    names = [row.name for row in overview.classes]
    counts = np.array([client.classes for client in shown], dtype=float).reshape(len(shown), len(names))
    # Two classes of one colour could not be told apart.
    if len(names) > len(SERIES):
        names = [*names[: len(SERIES) - 1], "other classes"]
        rest = counts[:, len(SERIES) - 1 :].sum(1, keepdims=True)
        counts = np.concatenate([counts[:, : len(SERIES) - 1], rest], 1)
    label = "client" if len(overview.clients) <= len(shown) else f"client, the first {len(shown)}"
    amount = Axis("labelled nodes", written=grouped)
    parts = {f"{name}": counts[:, c] for c, name in enumerate(names)}
    return Bars([client.name for client in shown], parts, amount, label, legend=legend)


def _part_bars(overview: GraphOverview) -> Bars:
    """Draw the number of nodes of each class in each part of the split."""
    shown = overview.classes[:DRAWN_CLASSES]
    parts = {part: [getattr(row, part) for row in shown] for part in ("train", "val", "test")}
    parts["in no part"] = [row.nodes - row.train - row.val - row.test for row in shown]
    more = (
        f", the first {len(shown)} of {len(overview.classes)} classes"
        if len(overview.classes) > len(shown)
        else ""
    )
    return Bars(
        [row.name for row in shown], parts, Axis(f"nodes{more}", written=grouped), "class", across=True,
        colours={"in no part": GRID}, legend="part of the split",
    )  # fmt: skip


def _sensor_network(overview: ReadingsOverview) -> Network:
    each = overview.sensors
    if each.position is None:
        # Without positions the sensors stand in a circle, in the order of the data.
        angle = 2 * np.pi * np.arange(len(each.ids)) / len(each.ids)
        place = np.stack((np.cos(angle), np.sin(angle)), axis=1)
    else:
        place = kilometres(np.array(each.position, dtype=float), each.geographic)
    missing = 100 * np.array(each.missing)
    nodes = by_value(missing, "missing readings (%)", "", np.zeros(len(missing), dtype=bool))
    edges = Edges(np.array(overview.edges, dtype=float).reshape(-1, 3)[:, :2])
    return Network(place, [edges], nodes, axes=each.position is not None, title="sensors and their edges")


def _availability(overview: ReadingsOverview) -> XY:
    present = 100 * np.array(overview.summary.availability)
    start = datetime.fromisoformat(overview.start)
    piece = timedelta(minutes=overview.steps * overview.step_minutes) / len(present)
    times = np.array([start + piece * k for k in range(len(present) + 1)], dtype="datetime64[s]")
    line = Series("", times, [*present, present[-1]], marker="")
    title = "readings that are not missing, over all sensors"
    return XY([line], Axis(), Axis("present (%)", low=0, high=105), title, steps=True, height=1.8)
