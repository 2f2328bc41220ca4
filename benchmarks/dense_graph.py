"""Measure FedGCN and FedGAT on graphs that took too much: a dense one, and five without an edge between them.

    copurchase    7 650 nodes, 745 binary features (28 % set), mean degree 31, 8 classes; 10 Louvain clients
    countries     five graphs, each at one client, with no edge between them: 30 000 nodes, 3 000 binary
                  features (1 % set), mean degree 20

Every case runs in a process of its own, so that its peak memory can be measured: the defaults of the method,
a few rounds, scores included. FedGAT's cases are the default, whose message before training is too large
here, and the setting that its error names. The ratios are those to FedAvg in the same run, and FedGCN on the
countries must be FedAvg: without dropout, the same test loss to 1e-4. `--before FILE` copies the figures of
records of this program on an earlier commit into this one, with that commit."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from growth import peak_mb
from measure import Inputs, add_common_options, finish, load_average, summary
from unlike_graphs import binary, by_name, draw_classes, draw_edges, even, load_case

from graphfed.data.graphs.graph import Graph, make_graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.errors import InputError
from graphfed.federation import CLIENTS
from graphfed.federation.cohort import make_cohort
from graphfed.methods.base import Task
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.registry import get_method
from graphfed.runs.train import train
from graphfed.runtime.local import stacked
from graphfed.tasks.registry import default_settings

#: Rounds that are left out, and how many are timed.
WARM_UP, ROUNDS = 1, 4
#: The nodes of each of the five graphs.
COUNTRIES = (9000, 7000, 6000, 5000, 3000)
#: The method, the graph and the settings of each case.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fedavg, copurchase": ("fedavg", "copurchase", {}),
    "fedgcn, copurchase": ("fedgcn", "copurchase", {}),
    "fedgcn without dropout, copurchase": ("fedgcn", "copurchase", {"dropout": 0.0}),
    "fedavg, countries": ("fedavg", "countries", {}),
    "fedavg without dropout, countries": ("fedavg", "countries", {"dropout": 0.0}),
    "fedgcn, countries": ("fedgcn", "countries", {}),
    "fedgcn without dropout, countries": ("fedgcn", "countries", {"dropout": 0.0}),
    "fedgat, copurchase": ("fedgat", "copurchase", {}),
    "fedgat direct, copurchase": ("fedgat", "copurchase", {"evaluation": "direct"}),
}


def countries(sizes: Sequence[int], features: int) -> tuple[Graph, np.ndarray]:
    """Draw graphs of the given sizes as one graph, and the number of each node's graph [N]."""
    rng = np.random.default_rng(39)
    country = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    y = draw_classes(rng, even(6), len(country))
    edges = [
        start + draw_edges(rng, y[start : start + size], 20, 0.6)
        for start, size in zip(starts, sizes, strict=True)
    ]
    x = binary(rng, y, features, 0.01, 0.5)
    return make_graph("countries", x, y, np.concatenate(edges, axis=1)), country


def make_inputs(name: str, tiny: bool) -> Inputs:
    """Build a graph with its split and its partition."""
    if name == "countries":
        graph, country = countries((60, 50, 40, 30, 20) if tiny else COUNTRIES, 30 if tiny else 3000)
        parts = from_assignment(graph, country, num_clients=5)
        return Inputs(graph, make_split(graph, "random:0.5,0.25,0.25", 0), parts)
    graph = load_case(by_name("tiny" if tiny else name))
    split = make_split(graph, "random:0.5,0.25,0.25", 0)
    return Inputs(graph, split, partition(graph, "louvain", 2 if tiny else 10, 0))


def measure(name: str, tiny: bool) -> dict[str, Any]:
    """Run a case; return its bytes, its seconds and its peak memory, or what refused it."""
    method_name, graph, settings = CASES[name]
    inputs = make_inputs(graph, tiny)
    method = get_method(method_name)
    settings = {"rounds": WARM_UP + ROUNDS, **settings}
    config = method.configure(settings, default_settings(method))
    fed = stacked(inputs.partition.num_clients)
    cohort = make_cohort(inputs.graph, inputs.split, inputs.partition, fed.workers[0])
    data = fed.locate(CLIENTS, "data", [as_configured(cohort, config)])
    task = Task(inputs.graph.num_features, inputs.graph.num_classes)
    before = peak_mb()
    try:
        outcome = train(fed, method, data, task, config)
    except InputError as error:
        return {"refused": str(error)}
    ends = np.array([line["seconds"] for line in outcome.history])
    sent = fed.ledger.totals()["by_transfer"]
    return {
        "nodes": inputs.graph.num_nodes,
        "edges": inputs.graph.num_edges,
        "setup_mb": round(sum(sent[t] for t in sent if t.startswith(f"{method_name}/")) / 1e6, 1),
        "sent_mb": round(sum(sent.values()) / 1e6, 1),
        "setup_seconds": round(outcome.seconds["setup"], 2),
        "round_seconds": summary(np.diff(ends)[WARM_UP - 1 :].tolist()),
        "peak_mb": {"data": before, "run": peak_mb()},
        "test_accuracy": outcome.test["accuracy"] if outcome.test else None,
        "test_loss": outcome.test["loss"] if outcome.test else None,
    }


def in_own_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, "--threads", str(options.threads)]
    done = subprocess.run(
        [*command, *(["--tiny"] if options.tiny else [])], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"ended with code {done.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def compared(found: dict[str, Any]) -> dict[str, Any]:
    """Return FedGCN relative to FedAvg in the same run, by graph.

    Raises:
        AssertionError: If FedGCN without dropout is not FedAvg on graphs without an edge between clients.
    """
    same = [found.get(f"{method} without dropout, countries") for method in ("fedgcn", "fedavg")]
    if same[0] and same[1]:
        gap = abs(same[0]["test_loss"] - same[1]["test_loss"])
        assert gap < 1e-4, f"FedGCN without cross-client edges is not FedAvg: test losses differ by {gap:.2g}"
    ratios = {}
    for graph in ("copurchase", "countries"):
        one, other = (found.get(f"{method}, {graph}") for method in ("fedgcn", "fedavg"))
        if one and other:
            ratios[graph] = {
                "round": round(one["round_seconds"]["median"] / other["round_seconds"]["median"], 2),
                "peak": round(one["peak_mb"]["run"] / other["peak_mb"]["run"], 2),
                "sent": round(one["sent_mb"] / other["sent_mb"], 2),
            }
    return ratios


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "dense_graph")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--cases", nargs="*", default=list(CASES), help="only these cases")
    parser.add_argument("--before", type=Path, nargs="*", default=[], help="records of an earlier commit")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measure(options.one, options.tiny)))
        return
    began, load_before = time.perf_counter(), load_average()
    found = {}
    for name in options.cases:
        found[name] = in_own_process(name, options)
        print(f"{name:36s} {found[name]}", flush=True)
    content: dict[str, Any] = {
        "warm_up": WARM_UP,
        "rounds": ROUNDS,
        "cases": found,
        "ratios": compared(found),
    }
    if options.before:
        records = [json.loads(path.read_text()) for path in options.before]
        cases = {name: case for record in records for name, case in record["cases"].items()}
        commits = sorted({record["machine"]["commit"] for record in records})
        content["before"] = {"commits": commits, "cases": cases, "ratios": compared(cases)}
    finish(options.out, began, load_before, content)


if __name__ == "__main__":
    main()
