"""The assignment of edges to clients in Lumos, by balancer, on a graph with a client for each node (Fig. 7).

Nothing is trained, and features are not needed. Comparisons are as the settings say, simulated by default:
the outcomes and bytes are the same, and nothing is protected. Every edge is checked to be assigned. The
result of a row is written to its folder and read from there.
"""

import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.drawing.canvas import Charts
from graphfed.drawing.charts import XY, Axis, Series
from graphfed.errors import InputError
from graphfed.federation import CLIENTS
from graphfed.federation.secure.pairs import PairRows
from graphfed.files import write_json
from graphfed.methods.lumos.balancing import balance
from graphfed.methods.parts import is_simulated
from graphfed.methods.settings import values
from graphfed.reproductions.base import (
    Found,
    Measured,
    Place,
    Printed,
    Quick,
    Row,
    column_cells,
    paragraphs,
)
from graphfed.runs import folder as files
from graphfed.runs.progress import human_seconds
from graphfed.runs.run import computing_with
from graphfed.runtime.local import stacked
from graphfed.studies.folder_schema import WorkloadsFile
from graphfed.studies.plan import run_name
from graphfed.tasks.graphs.inputs import load_graph
from graphfed.tasks.run_config import RunConfig
from graphfed.terminal import say

#: In the folder of a row.
FILE = "workloads.json"


def workloads(item: Measured, row: Row, place: Place) -> dict[str, object]:
    """Return what balancing found for a row; InputError if its folder has the result of something else.

    Returns:
        - panel, series, seed, folder: of the row
        - printed: the largest workload in the paper, or None; difference: ours less the printed one
        - asked: data and settings
        - clients, edges: their numbers
        - largest, mean: of the workloads
        - workloads: how many clients have each (values, clients)
        - pairs_kept
        - comparisons: those made; comparisons_all_again: had every pair been compared anew each time
        - rounds, bytes, seconds: of the balancing
        - curve: the largest workload of the best state so far, by the number of comparisons
    """
    config = place.config(item, row)
    folder = Path(item.name) / run_name(row.label, config.seed)
    path = place.folder / folder / FILE
    asked = files.plain(_asked(config))
    if not path.exists():
        if place.progress:
            say(f"{item.name}: {row.label}")
        # The seconds of the row are compared with other rows, so all have equally many threads.
        with computing_with(config.threads or 1):
            result = balanced(config, _structure(config))
        with files.writing_into(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, files.plain({"asked": asked, **result}))
    found = files.read_json(path, WorkloadsFile)
    for key, value in asked.items():
        if found["asked"].get(key) != value:
            raise InputError(
                f"what is in {path} had another {key} than is asked now; name another folder with --out"
            )
    printed = row.printed["largest"].mean if row.printed else None
    return {
        "panel": row.panel,
        "series": row.series,
        "seed": config.seed,
        **found,
        "printed": printed,
        "difference": None if printed is None else found["largest"] - printed,
        "folder": str(folder),
    }


def _asked(config: RunConfig) -> dict[str, object]:
    """Return what decides the result."""
    return {
        "data": config.data_name,
        "data_source": config.data_source.source,
        "data_options": dict(config.data_options),
        **values(config.settings.balancing),
        "seed": config.settings.run.seed,
        "protocols": config.settings.protocols.protocols,
    }


def _structure(config: RunConfig) -> Graph:
    """Return the graph of a config without its features."""
    if not isinstance(config.data, str):
        return load_graph(config, {})
    graph = load(config.data, config.data_dir, structure_only=True, **config.data_options)
    assert isinstance(graph, Graph), "make_config lets only data sets of the method's task pass"
    return graph


def balanced(config: RunConfig, graph: Graph) -> dict[str, object]:
    """Return the result of balancing a graph (see `workloads`)."""
    rows = _pair_rows(graph)
    fed = stacked(graph.num_nodes, config.device, simulated=is_simulated(config.settings))
    began = time.perf_counter()
    found = balance(
        fed, fed.locate(CLIENTS, "neighbours", [rows]), config.settings.balancing, config.settings.run.seed
    )
    seconds = time.perf_counter() - began
    (assignment,), (made, all_again) = found.assignment.parts, found.comparisons()
    assert bool((assignment.local | assignment.remote).all()), "an edge is assigned to no client"
    # The workload of a client: the edges to neighbours that it keeps in its tree.
    load_of = torch.bincount(rows.client[assignment.local], minlength=graph.num_nodes).numpy()
    values, clients = np.unique(load_of, return_counts=True)
    return {
        "clients": graph.num_nodes,
        "edges": graph.num_edges,
        "largest": int(load_of.max()),
        "mean": float(load_of.mean()),
        "workloads": {"values": values.tolist(), "clients": clients.tolist()},
        "pairs_kept": int(load_of.sum()),
        "comparisons": made,
        "comparisons_all_again": all_again,
        "rounds": found.rounds,
        "bytes": sum(entry.bytes for entry in fed.ledger.entries if entry.phase == "setup"),
        "curve": _best_so_far(assignment.history.numpy()),
        "seconds": seconds,
    }


def _pair_rows(graph: Graph) -> PairRows:
    """Return every node's neighbours, sorted."""
    own, other = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
    order = np.lexsort((other, own))
    return PairRows(torch.from_numpy(own[order]), torch.from_numpy(other[order]))


def _best_so_far(history: np.ndarray) -> dict[str, list[int]]:
    """Return where the least of the largest workloads so far falls, and the end, from `history` [R, 2].

    Both clients of a pair learn the outcome of a comparison, so it counts once for the pair.
    """
    # Only the places where the best state improves, which are few.
    least = np.minimum.accumulate(history[:, 0])
    places = np.flatnonzero(np.diff(least, prepend=least[0] + 1))
    places = np.union1d(places, [len(least) - 1])
    return {"comparisons": (history[places, 1] // 2).tolist(), "largest": least[places].tolist()}


# ---- shown -------------------------------------------------------------------------------------------------


def _with_spaces(key: str) -> Callable[[Found], str]:
    """Return the function that writes a large count of a row as ``10 000``."""
    return lambda row: f"{row[key]:,}".replace(",", " ")


workloads_cells = column_cells(
    ("largest workload", "largest", ""),
    ("printed", "printed", "g"),
    ("mean", "mean", ".2f"),
    ("kept in all", "pairs_kept", ""),
    ("rounds", _with_spaces("rounds"), ""),
    ("comparisons", _with_spaces("comparisons"), ""),
    ("comparing all again", _with_spaces("comparisons_all_again"), ""),
    ("seconds", lambda row: human_seconds(row["seconds"]), ""),
)


def draw_workloads(found: Found) -> Charts:
    """Draw for each panel how many clients have which workload, and the largest one against comparisons."""
    names = list(dict.fromkeys(row["series"] for row in found["rows"]))
    grid = []
    for panel in found["panels"]:
        shares, costs = [], []
        for row in (row for row in found["rows"] if row["panel"] == panel):
            place = names.index(row["series"])
            below = [n / row["clients"] for n in accumulate(row["workloads"]["clients"])]
            shares.append(Series(row["series"], row["workloads"]["values"], below, place=place, marker=""))
            # Without any comparison a balancer is a point at the edge.
            made = [max(1, n) for n in row["curve"]["comparisons"]]
            marker = "o" if len(made) == 1 else ""
            costs.append(Series(row["series"], made, row["curve"]["largest"], place=place, marker=marker))
        fraction = Axis("fraction of the clients with at most this")
        load = Axis("workload (neighbours kept)", scale="symlog")
        made_so_far = Axis("comparisons so far", scale="log")
        largest = Axis("largest workload", scale="log")
        charts = ((shares, load, fraction), (costs, made_so_far, largest))
        grid.append([XY(series, x, y, panel, steps=True, height=3.4) for series, x, y in charts])
    return grid


# ---- the item ----------------------------------------------------------------------------------------------


def balanced_by(
    panel: str, series: str, *, quick: bool, printed: int | None = None, **settings: object
) -> Row:
    """Return a row with the assignment of edges by a balancer; printed: the largest workload."""
    return Row(
        f"{panel} {series}",
        "lumos",
        options={"data": panel.lower()},
        settings=settings,
        printed={} if printed is None else {"largest": Printed(printed)},
        panel=panel,
        series=series,
        quick=quick,
    )


def balancers(panel: str, steps: int, more_steps: int, largest: int, *, quick: bool) -> tuple[Row, ...]:
    """Return the balancers on a graph; steps: those of the paper's search; largest: the printed workload."""
    return (
        balanced_by(panel, "without trimming", quick=quick, balancer="none"),
        balanced_by(panel, "Alg. 1", quick=quick, balancer="greedy"),
        balanced_by(panel, "local", quick=quick, balancer="local"),
        balanced_by(panel, "local, filled", quick=quick, balancer="local", fill_trees=True),
        balanced_by(
            panel, "mcmc, the paper's steps", quick=quick, balancer="mcmc", mcmc_steps=steps, printed=largest
        ),
        balanced_by(panel, "mcmc, more steps", quick=False, balancer="mcmc", mcmc_steps=more_steps),
        balanced_by(panel, "oracle", quick=quick, balancer="oracle"),
    )


FIG7 = Measured(
    name="fig7",
    kind="workloads",
    measure=workloads,
    cells=workloads_cells,
    draw=draw_workloads,
    reads="structure",
    title="Workloads of the clients, and the cost of balancing them",
    source=(
        "the text on Fig. 7, the largest workload with trimming; without it the plots show more than 150 "
        "and more than 100"
    ),
    notes=paragraphs("""
        Nothing is trained, and of LastFM, whose features are not all here, the graph is enough. Comparisons
        are simulated with the cost of the protocol.

        The paper's search runs 1000 steps on Facebook and 300 on LastFM; more steps are what its printed
        workloads take.

        The curves show the best state so far. "comparing all again" is what it would have been with every
        pair compared anew each time, as in the paper.

        The oracle is the exact optimum; it sees the whole graph and compares nothing. Filled trees have as
        many edges as the largest, or all edges of their client (fill_trees).
    """),
    panels=("Facebook", "LastFM"),
    quick=Quick(options={"data": "social"}, settings={"data.num_nodes": 300}),
    rows=(
        *balancers("Facebook", 1000, 25000, 39, quick=True),
        *balancers("LastFM", 300, 2200, 16, quick=False),
    ),
)
