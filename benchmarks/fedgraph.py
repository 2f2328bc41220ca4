"""Measure a round of FedGraph with 20 clients by policy, and an episode of 300 rounds.

Each round is compared with an epoch of central training on the same data in the same run. Learning a policy
needs hundreds of episodes. With --full, the program also measures seconds and memory on a graph of Reddit's
size.

    Cora, disjoint   every node at one client, most edges are cross-client edges; the epoch is of Cora
    Cora, copies     every client has a part of all nodes, as in the paper; the epoch is of the graph of all
                     copies, with the edges that the clients have: as many nodes and edges as in the round
    social           232 965 nodes of average degree 100 with 602 dense features, 20 clients: sampled

GCN of 16 hidden units, dropout 0.5, Adam; 60 % of the nodes for training, 20 % for validation. Rounds and
epochs include scoring the validation nodes. Cases take turns.

Before measuring, in float64 on a small generated graph, three clients that send the embeddings of all layers
must predict the same as one client with the same weights and all edges, to 1e-10. The program uses the files
of Cora (GRAPHFED_DATA), or a generated graph of the same size if they are missing."""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import (
    Inputs,
    add_common_options,
    cora_or_social,
    finish,
    float64,
    load_average,
    ratio,
    run,
    summary,
    timed_run,
)

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.federation.cohort import make_cohort
from graphfed.methods.common.local_training import own_view, predict_shared, prepare
from graphfed.methods.registry import get_method
from graphfed.methods.settings import only_those
from graphfed.tasks.registry import default_settings

FEDGRAPH, CENTRAL = get_method("fedgraph"), get_method("central")
SETTINGS = {"optimizer": "adam", "lr": 0.01, "local_steps": 1, "client_state": "keep"}
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "full": {"policy": "full"},
    "constant": {"policy": "constant"},
    "graphsage": {"policy": "graphsage"},
    "fastgcn": {"policy": "fastgcn"},
    "constant, nothing shared": {"policy": "constant", "sent_embeddings": "none"},
}
CLIENTS, EPISODE, GIB = 20, 300, 2**30


def check_in_float64() -> float:
    """Return the largest difference between the logits of three clients and of one. Raise AssertionError
    above 1e-10."""
    with float64():
        graph = load("social", num_nodes=200)
        assert isinstance(graph, Graph)
        split = make_split(graph, "random:0.6,0.2,0.2", 0)
        inputs = Inputs(graph, split, partition(graph, "random", 3, 0))
        config = FEDGRAPH.configure(
            {"rounds": 5, "sent_embeddings": "all"}, default_settings(FEDGRAPH, preset="paper")
        )
        outcome = run(FEDGRAPH, inputs, config)
        whole = from_assignment(graph, np.zeros(graph.num_nodes, dtype=np.int64), num_clients=1)
        cohort = make_cohort(graph, split, whole, [0])
        prepared = prepare(cohort, own_view(cohort), None, config, personal=False)
        central = predict_shared(prepared, dict(outcome.state.weights.parts[0]), config.network, "all")
        logits = torch.cat([part for _, part in outcome.predictions.parts])
        gap = float((logits - central[torch.from_numpy(inputs.partition.held_id)]).abs().max())
        assert gap <= 1e-10, f"the logits of three clients and of one differ by {gap:.2e}"
        return gap


def of_copies(inputs: Inputs) -> Inputs:
    """Return the graph of all copies, with the edges that the clients have, at one client."""
    graph, parts = inputs.graph, inputs.partition
    edges = np.concatenate(
        [np.stack([parts.edge_u, parts.edge_v]), np.stack([parts.cross_id, parts.cross_remote_id])], 1
    )
    assert graph.x is not None
    place = np.full(int(parts.held_id.max()) + 1, -1)
    place[parts.held_id] = np.arange(len(parts.held_id))
    node, split = parts.held_node, inputs.split
    copies = make_graph("copies", graph.x[node], graph.y[node], place[edges], num_classes=graph.num_classes)
    masks = Split(split.name, split.train[node], split.val[node], split.test[node])
    return Inputs(copies, masks, partition(copies, "random", 1, 0))


def timed_policies(partitioned: Inputs, pooled: Inputs, rounds: int, turns: int) -> dict[str, Any]:
    """Return the milliseconds of rounds and of central epochs, measured in turns."""
    cases = {name: (FEDGRAPH, partitioned, settings) for name, settings in POLICIES.items()}
    times: dict[str, list[list[float]]] = {}
    modelled: dict[str, float] = {}
    for _ in range(turns):
        for name, (method, inputs, settings) in {"central": (CENTRAL, pooled, {}), **cases}.items():
            shared = only_those(method.tree.names, SETTINGS)
            config = method.configure({**shared, **settings, "rounds": rounds})
            timed = timed_run(method, inputs, config)
            times.setdefault(name, []).append(timed.rounds)
            if method is FEDGRAPH:
                modelled[name] = timed.outcome.details["modelled_seconds"] / timed.outcome.best_round
    return {
        "ms": {name: summary([t for turn in spent for t in turn]) for name, spent in times.items()},
        "round / central epoch": {name: ratio(spent, times["central"]) for name, spent in times.items()},
        "modelled_ms": {name: round(seconds * 1e3, 3) for name, seconds in modelled.items()},
    }


def world(copies: str, graph: Graph, split: Split) -> Inputs:
    return Inputs(graph, split, partition(graph, "overlapping", CLIENTS, 0, copies=copies))


def episode(inputs: Inputs, rounds: int) -> dict[str, float]:
    """Return the seconds of an episode's rounds, each with a score of the validation nodes: with the threads
    of the other cases, and with one thread for each core."""
    config = FEDGRAPH.configure({**SETTINGS, "policy": "constant", "rounds": rounds})
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    found: dict[str, float] = {"rounds": rounds}
    try:
        for count in dict.fromkeys((threads, cores)):
            torch.set_num_threads(count)
            seconds = run(FEDGRAPH, inputs, config).seconds["train"]
            found[f"seconds, {count} thread{'s' * (count > 1)}"] = round(seconds, 2)
    finally:
        torch.set_num_threads(threads)
    return found


def large(nodes: int, degree: float, rounds: int) -> dict[str, Any]:
    """Measure seconds and peak memory on a graph of Reddit's size, in this process."""
    began = time.perf_counter()
    graph = load("social", num_nodes=nodes, average_degree=degree, features=602, communities=41, dense=True)
    assert isinstance(graph, Graph)
    inputs = world("one", graph, make_split(graph, "random:0.66,0.1,0.24", 0))
    made = time.perf_counter() - began
    before = peak_gib()
    settings = {
        "hidden": 128, "dropout": 0.2, "lr": 1e-4, "policy": "constant", "batch": 256, "probability": 0.1,
        "rounds": rounds, "eval_every": rounds,
    }  # fmt: skip
    outcome = run(FEDGRAPH, inputs, FEDGRAPH.configure({**SETTINGS, **settings}))
    ends = [line["seconds"] for line in outcome.history[:-1]]
    return {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "edges that cross": round(len(inputs.partition.cross_id) / 2 / graph.num_edges, 3),
        "settings": settings,
        "made_s": round(made, 1),
        "setup_s": round(outcome.seconds["setup"], 1),
        "round_s": summary(np.diff(ends).tolist()),
        "scored_s": round(outcome.history[-1]["seconds"] - ends[-1], 1),
        "data_gib": round(before, 2),
        "peak_gib": round(peak_gib(), 2),
    }


def peak_gib() -> float:
    """Return the largest resident memory of this process so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "fedgraph")
    parser.add_argument("--large", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.large:
        print(json.dumps(large(**json.loads(options.large))))
        return
    began, load_before = time.perf_counter(), load_average()
    gap = check_in_float64()
    if options.tiny:
        loaded = load("social", num_nodes=300)
        assert isinstance(loaded, Graph)
        graph, name = loaded, "300 generated nodes"
    else:
        graph, _, name = cora_or_social()
    split = make_split(graph, "random:0.6,0.2,0.2", 0)
    rounds, turns = (8, 2) if options.tiny else (25, 4)
    disjoint, copies = world("one", graph, split), world("many", graph, split)
    whole = Inputs(
        graph, split, from_assignment(graph, np.zeros(graph.num_nodes, dtype=np.int64), num_clients=1)
    )
    rows = []
    for label, inputs, pooled in (("disjoint", disjoint, whole), ("copies", copies, of_copies(copies))):
        row = {
            "case": label,
            "nodes": len(inputs.partition.held_id),
            "edges": len(inputs.partition.edge_u),
            "cut": len(inputs.partition.cross_id),
            **timed_policies(inputs, pooled, rounds, turns),
            "episode": episode(inputs, rounds if options.tiny else EPISODE),
        }
        rows.append(row)
        print(f"{name}, {label}: an episode of {row['episode']}")
        for policy, ms in row["ms"].items():
            print(
                f"  {policy:26s} {ms['median']:8.2f} ms, {row['round / central epoch'][policy]}", flush=True
            )
    content = {"data": name, "clients": CLIENTS, "float64_logits_differ_by": gap, "rows": rows}
    if options.full:
        case = {"nodes": 232_965, "degree": 100, "rounds": 12}
        command = [sys.executable, __file__, "--large", json.dumps(case), "--threads", str(options.threads)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        content["large"] = json.loads(ended.stdout.splitlines()[-1])
        print(content["large"])
    finish(Path(options.out), began, load_before, content)


if __name__ == "__main__":
    main()
