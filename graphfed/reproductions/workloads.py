"""Who keeps which edge in Lumos, by a balancer, on a graph with a device for each vertex: nothing is trained,
and features are not needed. A row of a recipe's item of the kind `workloads`.

Comparisons are as the settings say, simulated by default: the same outcomes and bytes, and no protection.
Every edge is checked to be kept."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError
from graphfed.federation import CLIENTS
from graphfed.federation.secure.pairs import PairRows
from graphfed.files import write_json
from graphfed.methods.lumos.balancing import balance
from graphfed.methods.lumos.workload import BalanceConfig
from graphfed.runs import folder as files
from graphfed.runs.run import computing_with
from graphfed.runtime.local import stacked
from graphfed.studies.folder_schema import WorkloadsFile
from graphfed.tasks.graph_inputs import load_graph
from graphfed.tasks.run_config import RunConfig

__all__ = ["FILE", "balanced_or_read", "require_same", "structure"]

#: In the folder of a row.
FILE = "workloads.json"


def balanced_or_read(config: RunConfig, graph: Callable[[], Graph], folder: Path) -> dict[str, Any]:
    """What balancing gave, read where it is in `folder`, else worked out and written there. graph: loads it.

    asked: data and settings; devices, edges; largest, mean: of the workloads; workloads: how many devices
    have each (values, devices); pairs_kept; comparisons made, comparisons_all_again: had every pair compared
    anew each time; rounds; bytes sent; curve: after how many comparisons the best state so far had which
    largest workload; seconds."""
    path = folder / FILE
    if path.exists():
        there: dict[str, Any] = files.read_json(path, WorkloadsFile)
        return there
    with computing_with(config.threads or 1):
        found: dict[str, Any] = files.plain({"asked": asked(config), **balanced(config, graph())})
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    except OSError as error:
        raise files.cannot_be_written(folder, error) from error
    return found


def require_same(config: RunConfig, folder: Path) -> None:
    """InputError when what is in `folder` was asked something else."""
    path = folder / FILE
    if not path.exists():
        return
    there = files.read_json(path, WorkloadsFile)["asked"]
    for key, here in files.plain(asked(config)).items():
        if there.get(key) != here:
            raise InputError(
                f"what is in {path} had another {key} than the recipe; name another folder with --out"
            )


def asked(config: RunConfig) -> dict[str, Any]:
    """What decides what is found."""
    training = config.training
    assert isinstance(training, BalanceConfig)
    return {
        "data": config.data_name,
        "data_source": config.data_source.source,
        "data_options": dict(config.data_options),
        **{field.name: getattr(training, field.name) for field in dataclasses.fields(BalanceConfig)},
    }


def structure(config: RunConfig, graphs: dict[Any, Graph]) -> Graph:
    """The graph of a config without its features, loaded once where `graphs` keeps it."""
    if not isinstance(config.data, str):
        return load_graph(config, graphs)
    key = (config.data, *config.data_options.items())
    if key not in graphs:
        loaded = load(config.data, config.data_dir, structure_only=True, **config.data_options)
        assert isinstance(loaded, Graph), "make_config lets only data sets of the method's task pass"
        graphs[key] = loaded
    return graphs[key]


def balanced(config: RunConfig, graph: Graph) -> dict[str, Any]:
    rows = pair_rows(graph)
    fed = stacked(graph.num_nodes, config.device)
    assert isinstance(config.training, BalanceConfig)
    began = time.perf_counter()
    found = balance(fed, fed.locate(CLIENTS, "neighbours", [rows]), config.training)
    seconds = time.perf_counter() - began
    (kept,), (made, all_again) = found.kept.parts, found.comparisons()
    assert bool((kept.keeps | kept.kept_by).all()), "an edge is kept by nobody"
    load_of = torch.bincount(rows.client[kept.keeps], minlength=graph.num_nodes).numpy()
    values, devices = np.unique(load_of, return_counts=True)
    return {
        "devices": graph.num_nodes,
        "edges": graph.num_edges,
        "largest": int(load_of.max()),
        "mean": float(load_of.mean()),
        "workloads": {"values": values.tolist(), "devices": devices.tolist()},
        "pairs_kept": int(load_of.sum()),
        "comparisons": made,
        "comparisons_all_again": all_again,
        "rounds": found.rounds,
        "bytes": sum(entry.bytes for entry in fed.ledger.entries if entry.phase == "setup"),
        "curve": best_so_far(kept.history.numpy()),
        "seconds": seconds,
    }


def pair_rows(graph: Graph) -> PairRows:
    """Every vertex's neighbours, sorted."""
    own, other = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
    order = np.lexsort((other, own))
    return PairRows(torch.from_numpy(own[order]), torch.from_numpy(other[order]))


def best_so_far(history: np.ndarray) -> dict[str, list[int]]:
    """`Kept.history` [R, 2] -> where the least of the largest workloads so far falls, and the end. Both ends
    of a pair learn the outcome of a comparison."""
    least = np.minimum.accumulate(history[:, 0])
    told = np.flatnonzero(np.diff(least, prepend=least[0] + 1))
    told = np.union1d(told, [len(least) - 1])
    return {"comparisons": (history[told, 1] // 2).tolist(), "largest": least[told].tolist()}
