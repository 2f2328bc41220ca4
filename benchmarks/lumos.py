"""Measure an epoch of Lumos on Facebook page-page and on `social`, and a whole run on Facebook.

Facebook page-page has 22 470 clients and 4 714 binary features; `social` has 10^3, 10^4 and 10^5 clients. The
whole run has 300 epochs with an evaluation every fifth epoch, and the paper's balancer with 1000 steps.

Every case runs in a separate process, so that its peak memory can be measured: the graph, an ego partition,
set-up (assignment of edges, noised features, simulated comparisons) and some epochs with dropout. Before
measuring, both trainers (pair by pair and tree by tree) must compute the same. Facebook needs its file
(--data-dir or GRAPHFED_DATA)."""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from measure import add_common_options, finish, load_average, summary

import graphfed
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.errors import InputError
from graphfed.federation import CLIENTS, Federation, Located
from graphfed.federation.cohort import make_cohort
from graphfed.methods.base import Task
from graphfed.methods.lumos import method as lumos
from graphfed.methods.lumos.balancing import balance
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.method import METHOD
from graphfed.runtime.local import stacked
from graphfed.tasks.registry import default_settings

#: Epochs that are left out, and how many are timed.
WARM_UP, EPOCHS = 2, 8
SIZES = (1_000, 10_000, 100_000)


def peak_mb() -> float:
    """Return the largest resident memory of this process so far, in MB of 10^6 bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


def graph_of(data: str, nodes: int | None, folder: str | None) -> Graph:
    options = {} if nodes is None else {"num_nodes": nodes}
    graph = load(data, folder, **options)
    assert isinstance(graph, Graph)
    return graph


def config_of(**settings: Any) -> LumosConfig:
    defaults = {**default_settings(METHOD, preset="paper"), "noise_seed": 0}
    config: LumosConfig = METHOD.configure(settings, defaults)
    return config


def clients_of(graph: Graph) -> tuple[Federation, Located, Task]:
    """Return one client for each node, stacked."""
    split = make_split(graph, "random:0.5,0.25,0.25", 0)
    fed = stacked(graph.num_nodes, simulated=True)
    cohort = make_cohort(graph, split, partition(graph, "ego", None, 0), fed.workers[0])
    data = fed.locate(CLIENTS, "data", [cohort])
    return fed, data, Task(graph.num_features, graph.num_classes)


def check_equal() -> float:
    """Return the largest difference between the predictions of both trainers, in float64, after some
    epochs."""
    torch.set_default_dtype(torch.float64)
    found = []
    for trainer in ("fused", "general"):
        fed, data, task = clients_of(graph_of("social", 200, None))
        config = config_of(trainer=trainer)
        state = METHOD.setup(fed, data, task, config)
        for number in range(1, 4):
            state = METHOD.round(fed, state, config, number)
        found.append(METHOD.predict(fed, state, config, "all").parts[0])
    torch.set_default_dtype(torch.float32)
    difference = float((found[0] - found[1]).abs().max())
    assert difference < 1e-9, difference
    return difference


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def measure(data: str, nodes: int | None, settings: dict[str, Any], folder: str | None) -> dict[str, Any]:
    """Measure one case, in this process."""
    graph = graph_of(data, nodes, folder)
    config = config_of(**settings)
    (fed, located, task), partition_seconds = timed(lambda: clients_of(graph))
    rows = fed.clients.run(lumos.neighbour_rows, located)
    balanced, balancing_seconds = timed(lambda: balance(fed, rows, config.balancing, config.run.seed))
    assignment = fed.clients.run(lumos.to_values, balanced.assignment)
    (features, sent), encode = timed(
        lambda: lumos.send_features(fed, located, rows, assignment, task, config)
    )
    weights = fed.server.run(lumos.initial_weights, task, config.network, config.run.seed, "cpu")
    values = {
        "weights": weights,
        "optimizer": fed.server.run(lumos.initial_optimizer, weights, config.training),
        "assignment": assignment,
        "features": features,
        "sent": sent,
    }
    state, prepare = timed(lambda: lumos.restore(fed, located, task, config, values))
    seconds = []
    for number in range(1, WARM_UP + EPOCHS + 1):
        state, spent = timed(lambda state=state, number=number: METHOD.round(fed, state, config, number))
        seconds.append(spent)
    _, predict = timed(lambda: METHOD.predict(fed, state, config, "val"))
    setup = {"balance": balancing_seconds, "encode": encode, "decode and prepare": prepare}
    return {
        "data": data,
        "devices": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "settings": settings,
        "noised_bits": int(sent.parts[0]["coordinates"].sum()),
        "epoch_s": summary(seconds[WARM_UP:]),
        "predict_s": round(predict, 3),
        "deal_s": round(partition_seconds, 2),
        "setup_s": {name: round(spent, 2) for name, spent in setup.items()},
        "setup_total_s": round(sum(setup.values()), 2),
        "peak_mb": peak_mb(),
        "load": load_average(),
    }


def measure_whole(balancer: str, folder: str | None) -> dict[str, Any]:
    """Measure a run from the file to the test scores, in this process. Noise comes from the operating
    system."""
    began = time.perf_counter()
    result = graphfed.run(
        "lumos",
        data="facebook",
        data_dir=folder,
        split="random:0.5,0.25,0.25",
        rounds=300,
        threads=torch.get_num_threads(),
        out=False,
        balancer=balancer,
        eval_every=5,
    )
    return {
        "balancer": balancer,
        "seconds": {name: round(spent, 2) for name, spent in result.seconds.items()},
        "with_loading_s": round(time.perf_counter() - began, 1),
        "rounds": result.rounds,
        "best_round": result.best_round,
        "test": result.test,
        "peak_mb": result.peak_rss_mb,
        "load": load_average(),
    }


def in_own_process(kind: str, case: Sequence[Any], threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, f"--{kind}", json.dumps(case), "--threads", str(threads)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def exponents(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how epoch, set-up and memory grow with clients + edges: 1 is linear."""

    def power(low: dict[str, Any], high: dict[str, Any], of: Callable[[dict[str, Any]], float]) -> float:
        size = (high["devices"] + high["edges"]) / (low["devices"] + low["edges"])
        return round(math.log(of(high) / of(low)) / math.log(size), 2)

    return [
        {
            "from": low["devices"],
            "to": high["devices"],
            "epoch": power(low, high, lambda row: row["epoch_s"]["median"]),
            "setup": power(low, high, lambda row: row["setup_total_s"]),
            "memory": power(low, high, lambda row: row["peak_mb"]),
        }
        for low, high in pairwise(rows)
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "lumos")
    parser.add_argument("--epochs", help=argparse.SUPPRESS)
    parser.add_argument("--whole", help=argparse.SUPPRESS)
    parser.add_argument("--data-dir", help="the folder that contains facebook/facebook.npz")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.epochs or options.whole:
        measured = (
            measure(*json.loads(options.epochs))
            if options.epochs
            else measure_whole(*json.loads(options.whole))
        )
        print(json.dumps(measured))
        return
    began, load_before = time.perf_counter(), load_average()
    cases: list[tuple[str, int | None, dict[str, Any]]]
    cases = [("social", size, {}) for size in ((60, 120) if options.tiny else SIZES)]
    balancers: list[str] = []
    try:
        graph_of("facebook", None, options.data_dir)
    except InputError as error:
        print(f"without Facebook: {error}", file=sys.stderr)
    else:
        if not options.tiny:
            facebook = [{}, {"trainer": "general"}, {"backbone": "gat"}, {"decode": "unbiased"}]
            cases += [("facebook", None, settings) for settings in facebook]
            balancers = ["mcmc"]
    difference = check_equal()
    rows = []
    print(f"{'data':10s} {'clients':>8s} {'s / epoch':>11s} {'set-up s':>9s} {'peak MB':>8s}  settings")
    for case in cases:
        row = in_own_process("epochs", [*case, options.data_dir], options.threads)
        rows.append(row)
        print(
            f"{row['data']:10s} {row['devices']:8d} {row['epoch_s']['median']:11.3f} "
            f"{row['setup_total_s']:9.1f} {row['peak_mb']:8.0f}  {row['settings']}",
            flush=True,
        )
    whole = [in_own_process("whole", [name, options.data_dir], options.threads) for name in balancers]
    for row in whole:
        print(f"300 epochs, {row['balancer']}: {row['seconds']}, {row['peak_mb']:.0f} MB, {row['test']}")
    growth = exponents([row for row in rows if row["data"] == "social"])
    content = {
        "warm_up": WARM_UP,
        "epochs": EPOCHS,
        "trainers_differ_by": difference,
        "rows": rows,
        "whole_runs": whole,
        "growth": growth,
    }
    finish(Path(options.out), began, load_before, content)


if __name__ == "__main__":
    main()
