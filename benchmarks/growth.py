"""Measure how time and memory grow with the graph: `social` with 10^4, 10^5 and 10^6 nodes.

Average degree 10, 128 sparse features, half of the nodes for training (so that nearly every row is used), the
setting W1 with one local step. Every case runs in a separate process, so that its peak memory can be
measured. Nodes and edges grow together; an exponent of 1 between two sizes is linear growth.

The cases: FedAvg with 100 clients, central training, FedAvg with one client for every node, and FedGCN, whose
clients hold copies of their neighbours with denser features."""

import argparse
import cProfile
import json
import math
import pstats
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Inputs, add_common_options, config_of, finish, load_average, run, summary

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.methods.registry import get_method

#: Rounds that are left out, and how many are timed.
WARM_UP, ROUNDS = 2, 6


@dataclass(frozen=True)
class Case:
    """One case. clients: None for one client for each node (`ego`)."""

    method: str
    clients: int | None
    nodes: int

    @property
    def name(self) -> str:
        clients = "one client a node" if self.clients is None else f"{self.clients} clients"
        return self.method if self.method == "central" else f"{self.method}, {clients}"


def peak_mb() -> float:
    """Return the largest resident memory of this process so far, in MB of 10^6 bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6, 1)


# ---- one case, in its own process


def measure(case: Case, profile: bool) -> dict[str, Any]:
    """Return the seconds and the peak memory of every part of a run."""
    seconds: dict[str, float] = {}
    peaks: dict[str, float] = {"imports": peak_mb()}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = work()
        seconds[name] = round(time.perf_counter() - began, 4)
        peaks[name] = peak_mb()
        return result

    graph = timed("generate", lambda: load("social", num_nodes=case.nodes))
    assert isinstance(graph, Graph)
    split = timed("split", lambda: make_split(graph, "random:0.5,0.25,0.25", 0))
    method = get_method(case.method)
    clients = 1 if method.pooled else case.clients
    parts = timed("deal", lambda: partition(graph, "ego" if clients is None else "random", clients, 0))
    inputs = Inputs(graph, split, parts)
    config = config_of(method, rounds=WARM_UP + ROUNDS, local_steps=1)
    began = time.perf_counter()
    outcome = run(method, inputs, config)
    whole = time.perf_counter() - began
    # `run` stacks the clients, then trains; the rest of its time is stacking.
    seconds["stack clients"] = round(whole - outcome.seconds["total"], 4)
    seconds["setup"] = round(outcome.seconds["setup"], 4)
    seconds["predict and score"] = round(
        outcome.seconds["total"] - outcome.seconds["setup"] - outcome.seconds["train"], 4
    )
    peaks["run"] = peak_mb()
    ends = np.array([line["seconds"] for line in outcome.history])
    result = {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "seconds": seconds,
        "round_ms": summary((np.diff(ends)[WARM_UP - 1 :] * 1e3).tolist()),
        "peak_mb": peaks,
        "test_accuracy": outcome.test["accuracy"] if outcome.test else None,
    }
    if profile:
        result["profile"] = profiled(method, inputs, config)
    return result


def profiled(method: Any, inputs: Inputs, config: Any) -> dict[str, list[str]]:
    """Profile a run: the Python functions with the largest own time, then the torch operators."""
    from torch.profiler import ProfilerActivity, profile

    python = cProfile.Profile()
    python.enable()
    run(method, inputs, config)
    python.disable()
    with profile(activities=[ProfilerActivity.CPU]) as operators:
        run(method, inputs, config)
    entries = sorted(pstats.Stats(python).stats.items(), key=lambda item: -item[1][2])[:12]  # type: ignore[attr-defined]
    return {
        "python": [
            f"{s[2]:.3f} s in {s[0]} calls: {Path(f).name}:{line} {name}" for (f, line, name), s in entries
        ],
        "torch": [
            f"{e.self_cpu_time_total / 1e6:.3f} s in {e.count} calls: {e.key}"
            for e in sorted(operators.key_averages(), key=lambda e: -e.self_cpu_time_total)[:12]
        ],
    }


# ---- all cases


def in_own_process(case: Case, threads: int, profile: bool) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", json.dumps([case.method, case.clients, case.nodes])]
    command += ["--threads", str(threads), *(["--profile"] if profile else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        # A case that does not fit into memory is also a result.
        last = done.stderr.strip().splitlines()[-1:] or [f"ended with code {done.returncode}"]
        return {"failed": last[0]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def exponents(rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """Return d log(cost) / d log(nodes + edges) between neighbouring sizes."""
    found = []
    for a, b in pairwise(rows):
        if "failed" in a or "failed" in b:
            continue
        larger = math.log((b["nodes"] + b["edges"]) / (a["nodes"] + a["edges"]))

        def exponent(x: float, y: float, larger: float = larger) -> float:
            return round(math.log(max(y, 1e-9) / max(x, 1e-9)) / larger, 2)

        memory = [r["peak_mb"]["run"] - r["peak_mb"]["imports"] for r in (a, b)]
        found.append(
            {
                "from": a["nodes"],
                "to": b["nodes"],
                "round": exponent(a["round_ms"]["median"], b["round_ms"]["median"]),
                "setup": exponent(a["seconds"]["setup"], b["seconds"]["setup"]),
                "memory above the imports": exponent(*memory),
            }
        )
    return found


def cases(full: bool, tiny: bool) -> list[list[Case]]:
    """Groups of one case at growing sizes."""
    if tiny:
        return [[Case("fedavg", 10, n) for n in (200, 400)], [Case("fedavg", None, 200)]]
    return [
        [Case("fedavg", 100, n) for n in (10**4, 10**5, 10**6)],
        [Case("central", 1, n) for n in (10**4, 10**5, 10**6)],
        [Case("fedavg", None, n) for n in (10**4, 10**5)],
        [Case("fedgcn", 10, n) for n in ((10**4, 10**5) if full else (10**4,))],
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "growth")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(measure(Case(*json.loads(options.one)), options.profile)))
        return
    began, load_before = time.perf_counter(), load_average()
    groups: dict[str, Any] = {}
    parts = ("generate", "split", "deal", "stack clients", "setup", "predict and score")
    print(f"{'case':32s} {'nodes':>9s} {'ms / round':>11s} {'peak MB':>9s}  seconds: {', '.join(parts)}")
    for group in cases(options.full, options.tiny):
        rows = []
        for case in group:
            # The profile costs two more runs, so only the largest case has one.
            wanted = case == group[-1] and case.method == "fedavg" and case.clients is not None
            row = in_own_process(case, options.threads, wanted)
            rows.append(row)
            if "failed" in row:
                print(f"{case.name:32s} {case.nodes:9d} failed: {row['failed']}", flush=True)
                continue
            sizes = ", ".join(f"{row['seconds'][p]:.2f}" for p in parts)
            round_ms, peak = row["round_ms"]["median"], row["peak_mb"]["run"]
            print(f"{case.name:32s} {case.nodes:9d} {round_ms:11.1f} {peak:9.0f}  {sizes}", flush=True)
        growth = exponents(rows)
        for e in growth:
            sizes = ", ".join(f"{k} {e[k]}" for k in ("round", "setup", "memory above the imports"))
            print(f"    exponents from {e['from']} to {e['to']} nodes: {sizes}")
        for kind, lines in rows[-1].get("profile", {}).items():
            print(f"    time of {WARM_UP + ROUNDS} rounds and their set-up, {kind}:")
            print("\n".join(f"        {line}" for line in lines))
        groups[group[0].name] = {"rows": rows, "exponents": growth}
    finish(options.out, began, load_before, {"warm_up": WARM_UP, "rounds": ROUNDS, "groups": groups})


if __name__ == "__main__":
    main()
