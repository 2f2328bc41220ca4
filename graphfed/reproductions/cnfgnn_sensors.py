"""The items of CNFGNN on its sensors and their readings, and what several items of the paper share.

They show which sensors a split shows to training (Fig. 2), how readings are distributed (Figs. A1, A2), how
many operations a forecast takes (Table 8), and, of our own, what a mask of missing readings does to the
errors. Only the last one trains.

Shapes: S sensors, T steps, B bins.
"""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import scipy.sparse as sp

from graphfed.data.sensors.series import Sensors
from graphfed.drawing.canvas import SERIES, Charts
from graphfed.drawing.charts import Axis, Bars, Heatmap
from graphfed.drawing.networks import Edges, Network, Nodes, kilometres
from graphfed.errors import InputError
from graphfed.methods.cnfgnn.costs import forecast_operations
from graphfed.reproductions.base import (
    Found,
    Measured,
    Place,
    Printed,
    Quick,
    Relative,
    Row,
    Runs,
    column_cells,
    on_data,
    paragraphs,
)
from graphfed.tasks.sensors.inputs import SensorInputs

#: The data sets of the paper, and parts of them.
DATA = ("metr_la_week", "metr_la_20", "pems_bay_67", "metr_la", "pems_bay")
#: The short version is on a generated network of 8 sensors.
ROADS = {"data": "roads"}
EIGHT_SENSORS = {"data.sensors": 8, "data.weeks": 1}
#: The short version of items that train.
QUICK = Quick(
    seeds=(0,),
    options={**ROADS, "rounds": 2},
    settings={**EIGHT_SENSORS, "hidden": 8, "every": 8, "eval_every": 1},
)
#: The baselines' networks, of 63 000 and of 727 000 weights.
SMALL, LARGE = {"hidden": 100}, {"hidden": 200, "layers": 2}
#: The paper's network at the server.
GRAPH_NETWORK = {"network": "graph_network"}
#: The settings of rows that are trained alike, and their budget on 20 sensors of METR-LA.
ALIKE = {"patience": None, "eval_every": 5, "teacher_fraction": 0.5, "client_state": "keep"}
ALIKE_ON_20 = {"every": 96, "batch": 25, "server_batch": 25, "eval_every": 20}
ALIKE_ROUNDS = 20
#: The forecasts that are not trained.
PLAIN = {"last value": "last_value", "historical average": "historical_average"}
#: How many percent of the sensors training sees.
PERCENTAGES = (5, 25, 50, 75, 90)
#: Bins of a histogram, at most.
BINS = 40
#: The colour of sensors that are not seen.
UNSEEN = "#b8b8b8"


def visible_sensors(item: Measured, row: Row, place: Place) -> dict[str, object]:
    """Return which sensors the split of a row shows to training, and which edges lie among these.

    The edges are directed, without those from a sensor to itself. `sensors` and `edges` count all of them,
    `visible_sensors` and `visible_edges` those that training sees; `pairs` has [sender, receiver] of the
    latter. `position` [S, 2], `geographic` and `observed` [S] are as in `Sensors`. Raises InputError if the
    sensors have no positions.
    """
    inputs = _inputs(item, row, place)
    sensors, observed = inputs.sensors, inputs.split.observed
    if sensors.position is None:
        raise InputError(
            f"{item.name}, {row.label}: {sensors.name!r} has no locations of its sensors to draw; use "
            "data with locations"
        )
    edges = _edges(sensors)
    visible = edges[observed[edges].all(1)]
    return {
        "seed": item.seeds_of(row)[0],
        "data": sensors.name,
        "split": inputs.split.name,
        "sensors": sensors.num_sensors,
        "visible_sensors": int(observed.sum()),
        "edges": len(edges),
        "visible_edges": len(visible),
        "position": sensors.position.tolist(),
        "geographic": sensors.geographic,
        "observed": observed.tolist(),
        "pairs": visible.tolist(),
    }


def histograms(item: Measured, row: Row, place: Place, *, count: int) -> dict[str, object]:
    """Return how the readings of the first sensors by id are distributed, over all steps.

    Returns:
        seed, data, quantity; ids [S]; edges [B+1] of the bins and counts [S, B]; mean, std and missing [S]:
        of each sensor's readings, and the fraction of steps without one; least and largest of all these
        readings. mean and std are None for a sensor without readings.
    """
    sensors = _inputs(item, row, place).sensors
    first = first_by_id(sensors)[:count]
    is_read = ~sensors.missing[:, first]
    readings = sensors.readings[:, first].astype(np.float64)
    if not is_read.any():
        raise InputError(f"{item.name}, {row.label}: {sensors.name!r} has no reading; use other data")
    known = readings[is_read]
    edges = _bins(float(known.min()), float(known.max()))
    columns = [readings[is_read[:, s], s] for s in range(len(first))]
    return {
        "seed": item.seeds_of(row)[0],
        "data": sensors.name,
        "quantity": sensors.quantity,
        "ids": [sensors.ids[s] for s in first],
        "edges": edges.tolist(),
        "counts": [np.histogram(column, edges)[0].tolist() for column in columns],
        "mean": [float(column.mean()) if len(column) else None for column in columns],
        "std": [float(column.std()) if len(column) else None for column in columns],
        "missing": (1 - is_read.mean(0)).tolist(),
        "least": float(known.min()),
        "largest": float(known.max()),
    }


def operations(item: Measured, row: Row, place: Place, *, count: int) -> dict[str, object]:
    """Return the operations of a forecast of a method with a recurrent network.

    Returns:
        method, per_sensor, sensors (`count`), ours: 10^9 operations of all these sensors together
        (`forecast_operations`), printed, difference.
    """
    config = place.config(item, row)
    recurrent, windows = config.settings.recurrent, config.settings.windows
    # A decoder of CNFGNN starts from the encoding and the embedding, concatenated.
    decoder = recurrent.hidden * (2 if config.method.name == "cnfgnn" else 1)
    each = forecast_operations(
        encoder=recurrent.hidden,
        decoder=decoder,
        layers=recurrent.layers,
        lags=windows.lags,
        horizon=windows.horizon,
    )
    ours, printed = each * count / 1e9, row.printed.get("operations")
    return {
        "method": config.method.name,
        "per_sensor": each,
        "sensors": count,
        "ours": ours,
        "printed": None if printed is None else printed.mean,
        "difference": None if printed is None else ours - printed.mean,
    }


def first_by_id(sensors: Sensors) -> list[int]:
    """Return the numbers of sensors, sorted by id as a number if all ids are numbers, else by text."""
    # As texts, "10" would come before "9".
    numbers = all(name.isdecimal() for name in sensors.ids)
    return sorted(
        range(sensors.num_sensors), key=lambda s: (int(sensors.ids[s]) if numbers else 0, sensors.ids[s])
    )


def _inputs(item: Measured, row: Row, place: Place) -> SensorInputs:
    inputs = place.inputs(item, row)
    assert isinstance(inputs, SensorInputs), "a method of forecasting"
    return inputs


def _edges(sensors: Sensors) -> np.ndarray:
    """Return sender and receiver of each edge [E, 2], without edges from a sensor to itself."""
    found = sp.coo_matrix(sensors.adjacency)
    pairs = np.stack((found.row, found.col), 1)
    kept: np.ndarray = pairs[(found.data > 0) & (found.row != found.col)]
    return kept


def _bins(least: float, largest: float) -> np.ndarray:
    """Return the edges of at most BINS bins of a round width (1, 2 or 5 times a power of ten) from least
    to largest.
    """
    span = max(largest - least, 1e-9 * max(abs(least), abs(largest), 1.0))
    power = 10.0 ** math.floor(math.log10(span / BINS))
    # The range begins and ends within a bin, so that it may need one more than its length says.
    width = next(power * step for step in (1, 2, 5, 10, 20) if math.ceil(span / (power * step)) + 1 <= BINS)
    first, last = math.floor(least / width), math.floor(largest / width) + 1
    edges = width * np.arange(first, last + 1)
    # A product may be off by a last bit, and no reading is to fall outside the bins.
    edges[0], edges[-1] = min(edges[0], least), max(edges[-1], largest)
    return edges


# ---- the tables: columns and lines -------------------------------------------------------------------------


visible_cells = column_cells(
    ("sensors seen", "visible_sensors", ""),
    ("of", "sensors", ""),
    ("edges seen", "visible_edges", ""),
    ("of", "edges", ""),
)


def _over_sensors(key: str, of: Callable[[list[float]], float]) -> Callable[[Found], float]:
    """Return the function that computes a figure of a row over the sensors that have readings."""
    return lambda row: of([value for value in row[key] if value is not None])


histograms_cells = column_cells(
    ("sensors", lambda row: len(row["ids"]), ""),
    ("mean: least", _over_sensors("mean", min), ".2f"),
    ("mean", _over_sensors("mean", np.mean), ".2f"),
    ("largest", _over_sensors("mean", max), ".2f"),
    ("deviation: least", _over_sensors("std", min), ".2f"),
    ("mean", _over_sensors("std", np.mean), ".2f"),
    ("largest", _over_sensors("std", max), ".2f"),
    ("least reading", "least", ".1f"),
    ("largest", "largest", ".1f"),
    ("missing (%)", lambda row: 100 * np.mean(row["missing"]), ".1f"),
)

operations_cells = column_cells(
    ("method", "method", ""),
    ("one sensor (10^6)", lambda row: row["per_sensor"] / 1e6, ".3f"),
    ("sensors", "sensors", ""),
    ("all (10^9)", "ours", ".4f"),
    ("printed", "printed", ".3f"),
    ("difference", "difference", "+.4f"),
)


# ---- drawn -------------------------------------------------------------------------------------------------


def draw_visible(found: Found) -> Charts:
    """Draw a map for each row: the sensors that training sees, and the edges among these, over all the
    others.
    """
    charts = []
    for row in found["rows"]:
        place = kilometres(np.array(row["position"], dtype=float), row["geographic"])
        seen = np.array(row["observed"], dtype=bool)
        pairs = np.array(row["pairs"], dtype=int).reshape(-1, 2)
        nodes = [Nodes(~seen, "not seen", 0.0), Nodes(seen, "seen in training")]
        title = f"{row['label']}: {row['visible_sensors']} sensors, {row['visible_edges']} edges"
        edges = Edges(pairs, "edge among these", SERIES[1])
        charts.append(Network(place, [edges], nodes, title=title, size=4.3))
    columns = min(3, len(charts))
    return [charts[k : k + columns] for k in range(0, len(charts), columns)]


def draw_histograms(found: Found) -> Charts:
    """Draw a panel for each row.

    A line of the picture is the histogram of a sensor, darker for more of its readings. Sensors are ordered
    from the smallest mean at the bottom to the largest.
    """
    charts = []
    for row in found["rows"]:
        mean = np.array([np.nan if value is None else value for value in row["mean"]])
        order = np.argsort(mean, kind="stable")  # sensors without readings at the top
        counts = np.array(row["counts"], dtype=float)[order]
        edges = np.array(row["edges"])
        bar = f"share of a sensor's readings (%), in bins of {edges[1] - edges[0]:g}"
        charts.append(
            Heatmap(
                100 * counts / np.maximum(counts.sum(1, keepdims=True), 1), Axis(row["quantity"]),
                Axis("sensors, from the smallest mean to the largest"), edges, line=("mean", mean[order]),
                title=f"{row['label']}: {len(order)} sensors", bar=bar,
            )
        )  # fmt: skip
    return [[chart] for chart in charts]


def draw_operations(found: Found) -> Charts:
    """Draw a bar for each row, with a mark at the printed figure."""
    rows = found["rows"]
    printed = [row["printed"] for row in rows]
    marks = {"printed": printed} if any(value is not None for value in printed) else {}
    amount = Axis("10^9 operations of a forecast at all sensors")
    ours = {"ours": [row["ours"] for row in rows]}
    return [[Bars([row["label"] for row in rows], ours, amount, across=True, marks=marks)]]


# ---- the items ---------------------------------------------------------------------------------------------


def seen(percent: int) -> dict[str, str]:
    """Return the split in which training sees a part of the sensors."""
    return {"split": f"inductive:{percent / 100:g}"}


TABLE8 = Measured(
    name="table8",
    kind="operations",
    measure=partial(operations, count=207),
    cells=operations_cells,
    draw=draw_operations,
    reads="nothing",
    title="Operations at the clients for a forecast of an hour, 10^9",
    source="Table 8, computation cost on device (GFLOPS); its errors and bytes are those of Tables 7 and 10",
    notes=paragraphs("""
        What the printed figures count is the multiplications with their additions, 13 operations more for
        each hidden unit in a step, of the 207 sensors of METR-LA together; a sensor alone has 0.767, 8.796
        and 0.783 million.

        Encoder and decoder as they are; nothing is run.
    """),
    rows=(
        Row("GRU + FMTL, 63K", "gru_fmtl", settings=SMALL, printed={"operations": Printed(0.159)}),
        Row("GRU + FMTL, 727K", "gru_fmtl", settings=LARGE, printed={"operations": Printed(1.821)}),
        Row("CNFGNN", "cnfgnn", printed={"operations": Printed(0.162)}),
    ),
)


def fig2(data: str) -> Measured:
    """Return maps of what training sees. The rows have the method last_value, which has the splits and
    trains nothing.
    """
    return Measured(
        name="fig2",
        kind="visible_sensors",
        measure=visible_sensors,
        cells=visible_cells,
        draw=draw_visible,
        title="Sensors and edges that training sees",
        source="Fig. 2; it shows maps and prints no numbers",
        notes=paragraphs("""
            The first so many percent of the sensors by longitude, and the directed edges among them, without
            those from a sensor to itself.
        """),
        quick=Quick(options=ROADS, settings=EIGHT_SENSORS),
        rows=tuple(Row(f"{percent} percent", "last_value", options=seen(percent)) for percent in PERCENTAGES),
    )


FIG2 = on_data(fig2, DATA)


def readings(name: str, network: str, *, title: str, source: str, notes: tuple[str, ...]) -> Measured:
    """Return how the readings of the first 100 sensors are distributed."""
    return Measured(
        name=name,
        kind="histograms",
        measure=partial(histograms, count=100),
        cells=histograms_cells,
        draw=draw_histograms,
        title=title,
        source=source,
        notes=notes,
        quick=Quick(options=ROADS, settings=EIGHT_SENSORS),
        rows=(Row(network, "last_value"),),
    )


MISSING_NOTES = ("A missing reading is left out; the paper has it as 0.",)
FIGA1_NOTES_OF = {"pems_bay_67": ("67 of 325 sensors.",), "pems_bay": ()}
FIGA2_NOTES_OF = {
    "metr_la_week": ("The first week, whose gaps were filled by interpolation.",),
    "metr_la_20": ("20 of 207 sensors.",),
    "metr_la": (),
}

FIGA1 = on_data(
    lambda data: readings(
        "figA1",
        "PEMS-BAY",
        title="Readings of the first 100 sensors by id, PEMS-BAY",
        source="Fig. A1, whose values cannot be read off",
        notes=(*MISSING_NOTES, *FIGA1_NOTES_OF[data]),
    ),
    tuple(FIGA1_NOTES_OF),
)
FIGA2 = on_data(
    lambda data: readings(
        "figA2",
        "METR-LA",
        title="Readings of the first 100 sensors by id, METR-LA",
        source="Fig. A2, whose values cannot be read off",
        notes=(*MISSING_NOTES, *FIGA2_NOTES_OF[data]),
    ),
    tuple(FIGA2_NOTES_OF),
)


def mask(_: str) -> Runs:
    """Return the errors of CNFGNN and of two baselines with and without a mask of missing readings."""
    rows = []
    for label, method, settings in (
        ("CNFGNN", "cnfgnn", GRAPH_NETWORK),
        ("GRU + FedAvg", "gru_fedavg", SMALL),
        ("GRU central", "gru_central", SMALL),
    ):
        rows.append(Row(label, method, settings=settings))
        masked = {**settings, "missing_mask": True}
        rows.append(Row(f"{label}, mask", method, settings=masked, relative=(Relative(label),)))
    return Runs(
        name="mask",
        title="Errors of an hour's forecasts, with and without a mask of missing readings",
        source="ours",
        notes=paragraphs("""
            A missing reading is missing in all rows (missing=masked) - it is the mean where it is an input,
            and counts in no loss, no error and no choice of a round.

            With the mask (missing_mask=true) a step of the encoder's input also says whether its reading is
            missing, and the graph network of CNFGNN leaves a sensor out of the windows in which it has no
            reading.

            All else is as in equal on the same 20 sensors - baselines of 63K, every 96th training window, 25
            at a time, 20 rounds, of which the last is validated and kept, teacher_fraction=0.5,
            client_state=keep, R_s = 1, three seeds.
        """),
        metrics=("rmse",),
        called={"rmse": "RMSE (mph)"},
        seeds=range(3),
        options={"rounds": ALIKE_ROUNDS},
        settings={"missing": "masked", **ALIKE, **ALIKE_ON_20},
        quick=QUICK,
        rows=(*rows, *(Row(label, method, seeds=(0,)) for label, method in PLAIN.items())),
    )


MASK = on_data(mask, ("metr_la_20",))
