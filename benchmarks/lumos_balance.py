"""Measure the assignment of edges in Lumos, by every balancer, on graphs with one client for each node.

The record has the largest workload, and the comparisons, rounds, bytes and seconds of each balancer.
Comparisons are simulated: they have the outcomes and bytes of the protocol, but not its time. Before a row is
written, every edge must be assigned, and the largest workload must be at least the exact optimum. Seconds are
processor seconds of all clients and the server in one process."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from measure import add_common_options, finish, load_average

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.federation import CLIENTS
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.assignment import optimum
from graphfed.methods.lumos.balancing import balance
from graphfed.methods.lumos.config import Balancing
from graphfed.runtime.local import stacked

#: Steps of mcmc. The paper's T is 300 on LastFM and 1000 on Facebook. On PubMed and DBLP the first search for
#: the largest device alone compares 12.5 and 8.4 million pairs of candidates.
STEPS = {"lastfm": (300, 1000), "facebook": (300, 1000), "pubmed": (300,), "dblp": (300,)}
#: With --full: what the paper's 39 on Facebook takes.
MANY = {"lastfm": (2200,), "facebook": (25_000,), "pubmed": (1000,), "dblp": (1000,)}


def settings(name: str, full: bool, tiny: bool) -> Iterator[dict[str, Any]]:
    for balancer in ("none", "greedy", "oracle"):
        yield {"balancer": balancer}
    for seed in range(1 if tiny else 5):
        yield {"balancer": "local", "shuffle_rounds": 0, "seed": seed}
        yield {"balancer": "local", "seed": seed}
    for steps in (5,) if tiny else STEPS[name] + (MANY[name] if full else ()):
        yield {"balancer": "mcmc", "mcmc_steps": steps}


def pair_rows(graph: Graph) -> PairRows:
    own, other = np.concatenate([graph.edges, graph.edges[::-1]], axis=1)
    order = np.lexsort((other, own))
    return PairRows(torch.from_numpy(own[order]), torch.from_numpy(other[order]))


def measured(graph: Graph, rows: PairRows, least: int, options: dict[str, Any]) -> dict[str, Any]:
    fed = stacked(graph.num_nodes, simulated=True)
    located = fed.locate(CLIENTS, "pairs", [rows])
    balancing = Balancing(**{name: value for name, value in options.items() if name != "seed"})
    began, worked = time.perf_counter(), time.process_time()
    found = balance(fed, located, balancing, options.get("seed", 0))
    spent = time.process_time() - worked, time.perf_counter() - began
    assignment, (made, all_again) = found.assignment.parts[0], found.comparisons()
    assert bool((assignment.local | assignment.remote).all()), "an edge is assigned to no client"
    load = torch.bincount(rows.client[assignment.local], minlength=graph.num_nodes)
    assert int(load.max()) >= least, "less than the optimum"
    setup = [e for e in fed.ledger.entries if e.phase == "setup"]
    sessions = sum(e.bytes for e in setup if e.name.endswith("/session"))
    row = {
        **options,
        "largest": int(load.max()),
        "pairs_kept": int(assignment.local.sum()),
        "devices_that_keep_nothing": int((load == 0).sum()),
        "rounds": found.rounds,
        "comparisons": made,
        "comparisons_of_all_again": all_again,
        "most_outcomes_of_a_device": int(assignment.outcomes.max()),
        "bytes": sum(e.bytes for e in setup),
        "bytes_of_sessions": sessions,
        "bytes_of_control": sum(e.bytes for e in fed.ledger.entries if e.phase == "control"),
        "processor_seconds": round(spent[0], 2),
        "seconds": round(spent[1], 2),
        "largest_after_each_round": thinned(assignment.history[:, 0].tolist()),
        "outcomes_after_each_round": thinned(assignment.history[:, 1].tolist()),
    }
    print(
        f"  {options}: largest {row['largest']}, {made:,} comparisons, {spent[0]:.1f} s",
        file=sys.stderr,
    )
    return row


def thinned(values: list[int], most: int = 100) -> list[int]:
    """Return at most about `most` of them, including the first and the last."""
    step = max(1, (len(values) - 1) // most)
    return values[:-1:step] + values[-1:]


def of_graph(graph: Graph, name: str, full: bool, tiny: bool) -> dict[str, Any]:
    print(f"{name}: {graph.num_nodes} clients, {graph.edges.shape[1]} edges", file=sys.stderr)
    began = time.process_time()
    exact = optimum(graph.edges, graph.num_nodes)
    spent = time.process_time() - began
    inside = int((exact.dense[graph.edges[0]] & exact.dense[graph.edges[1]]).sum())
    assert inside > (exact.maximum - 1) * exact.dense.sum()
    rows = pair_rows(graph)
    return {
        "devices": graph.num_nodes,
        "edges": graph.edges.shape[1],
        "largest_degree": int(torch.bincount(rows.client).max()),
        "optimum": {
            "largest": exact.maximum,
            "dense_part": {"nodes": int(exact.dense.sum()), "edges": inside},
            "processor_seconds": round(spent, 3),
        },
        "rows": [measured(graph, rows, exact.maximum, options) for options in settings(name, full, tiny)],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "lumos_balance")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    if options.tiny:
        graphs = {"social": load("social", num_nodes=300)}
    else:
        graphs = {name: load(name, structure_only=True) for name in STEPS}
    found = {name: of_graph(graph, name, options.full, options.tiny) for name, graph in graphs.items()}
    finish(options.out, began, load_before, {"graphs": found})


if __name__ == "__main__":
    main()
