"""Measure an epoch of SAPGNN with three clients, compared with one client that has everything.

The program also measures what secret sharing adds. An epoch is a round without scoring: every layer's
uploads, pooling at the server, downloads, and the same backwards; every client computes its own part, one
cohort after the other in one process. Edges are partitioned uniformly and every node is at every client, so
three clients map three times as many rows as one.

Before measuring, in float64 with gradients in plaintext, three clients and one must give the same logits;
with shares they differ by the rounding of the shares."""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from measure import (
    WARM_UP,
    Inputs,
    add_common_options,
    assert_equal,
    cora_or_social,
    finish,
    float64,
    load_average,
    ratio,
    run,
    summary,
    timed_run,
)

from graphfed.data.datasets import available, load
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.methods.registry import get_method
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import default_settings

#: The number of clients and how gradients are summed, of every case.
CASES = {
    "one holder": (1, "plaintext"),
    "three holders": (3, "plaintext"),
    "three holders, shares": (3, "additive"),
}


def settings(rounds: int, aggregation: str, **more: Any) -> Any:
    method = get_method("sapgnn")
    # Scored once, at the end, because only training epochs are timed.
    options = {"rounds": rounds, "eval_every": rounds, "aggregation": aggregation, **more}
    return method.configure(options, default_settings(method, preset="paper"))


def make_inputs(graph: Graph, split: Split, clients: int) -> Inputs:
    return Inputs(graph, split, partition(graph, "edges_uniform", clients, 0))


def logits_of(outcome: Outcome, nodes: int) -> dict[str, torch.Tensor]:
    """Return the first client's logits of every node."""
    return {"logits": outcome.predictions.parts[0][1][:nodes]}


def check(graph: Graph, split: Split, rounds: int) -> dict[str, float]:
    """Return the largest differences between the cases' logits after some rounds in float64.

    The rounds use plain gradient descent, because Adam can turn gradients that the shares round to zero into
    steps of any size."""
    method = get_method("sapgnn")
    with float64():
        found = {
            name: logits_of(
                run(
                    method,
                    make_inputs(graph, split, clients),
                    settings(rounds, aggregation, optimizer="sgd", lr=0.05),
                ),
                graph.num_nodes,
            )
            for name, (clients, aggregation) in CASES.items()
        }
    exact = assert_equal("three holders and one", found["three holders"], found["one holder"])
    rounded = assert_equal("with shares", found["three holders, shares"], found["one holder"], 1e-3)
    return {"three holders and one": exact, "with shares": rounded}


def measure(graph: Graph, split: Split, rounds: int, repeats: int) -> dict[str, Any]:
    """Return the milliseconds of an epoch of every case, in turns, and their ratios."""
    method = get_method("sapgnn")
    times: dict[str, list[list[float]]] = {name: [] for name in CASES}
    for _ in range(repeats):
        for name, (clients, aggregation) in CASES.items():
            config = settings(rounds + WARM_UP, aggregation)
            # The last round is scored.
            times[name].append(timed_run(method, make_inputs(graph, split, clients), config).rounds[:-1])
    for name, found in times.items():
        flat = [ms for repeat in found for ms in repeat]
        print(f"{name}: {min(flat):.1f} / {sorted(flat)[len(flat) // 2]:.1f} ms", file=sys.stderr)
    return {
        "milliseconds": {name: summary([ms for r in found for ms in r]) for name, found in times.items()},
        "ratios": {
            "three holders / one": ratio(times["three holders"], times["one holder"]),
            "shares / clear": ratio(times["three holders, shares"], times["three holders"]),
        },
    }


def graphs(options: argparse.Namespace) -> list[tuple[str, Graph, Split]]:
    if options.tiny:
        small = load("social", None, num_nodes=300)
        assert isinstance(small, Graph)
        return [("social", small, make_split(small, "random:0.5,0.25,0.25", 0))]
    graph, split, name = cora_or_social()
    found = [(name, graph, split)]
    ready = {row.name for row in available(None) if row.ready}
    if "physics" in ready:
        physics = load("physics", None)
        assert isinstance(physics, Graph)
        found.append(("physics", physics, make_split(physics, "default", 0)))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "split_learning")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    rows = []
    for name, graph, split in graphs(options):
        large = graph.num_nodes > 10_000
        rounds, repeats = (2, 2) if options.tiny else (4, 3) if large else (20, 5)
        print(f"== {name}", file=sys.stderr)
        rows.append(
            {
                "graph": {"name": name, "nodes": graph.num_nodes, "edges": graph.num_edges},
                "largest_differences": check(graph, split, 2 if large else 5),
                **measure(graph, split, rounds, repeats),
            }
        )
    finish(options.out, began, load_before, {"graphs": rows})


if __name__ == "__main__":
    main()
