"""Measure what exact attention from sums costs next to the other forms of FedGAT: bytes before training, and
bytes and seconds of a round.

Cora, public split, 10 clients, label_dirichlet with beta 10000: nearly all edges are cross-client edges. With
--data digits the same on digits with 3 clients, where the matrices fit into memory; it has a record of its
own. GAT with 8 heads of 8, features of length 1, Adam on the mean gradient, no dropout. A round is training,
without scoring. The cases take turns in one process, and each is compared with an epoch of central GAT.

    matrices           fedgat with form=matrix, from the message
    vectors            fedgat with form=vector, from the message
    direct             fedgat with evaluation=direct, a simulation with the bytes of the vectors
    direct, matrix     the same with the bytes of form=matrix
    noised, direct     fedgat_ldp with evaluation=direct
    embeddings         fedgat with later=exchange and evaluation=direct
    sums               attention_sums
    hidden sums        attention_sums with exchange=secure
    hidden sums and gradients    with aggregation=secure too

A case that does not fit into memory is left out, with its message. Before measuring, the logits of sums must
be those of central GAT with the same weights: to 1e-9 in float64 and 1e-4 in float32; those of hidden sums
to 1e-4. The files of Cora are needed (GRAPHFED_DATA); --tiny takes a generated graph."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import Inputs, add_common_options, finish, float64, load_average, ratio, summary

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.errors import InputError
from graphfed.federation import CLIENTS
from graphfed.federation.cohort import make_cohort
from graphfed.methods.base import State, Task
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.registry import get_method
from graphfed.runtime.local import stacked
from graphfed.tasks.registry import default_settings

SETTINGS = {
    "hidden": 8,
    "heads": 8,
    "features": "unit",
    "lr": 0.02,
    "weight_decay": 5e-3,
    "dropout": 0.0,
    "optimizer": "adam",
    "local_steps": 1,
}
CENTRAL = "central"
DIRECT = {"evaluation": "direct"}
#: The method and the settings of each case.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    CENTRAL: ("central", {"backbone": "gat"}),
    "matrices": ("fedgat", {"form": "matrix"}),
    "vectors": ("fedgat", {"form": "vector"}),
    "direct": ("fedgat", DIRECT),
    "direct, matrix": ("fedgat", {**DIRECT, "form": "matrix"}),
    "noised, direct": ("fedgat_ldp", DIRECT),
    "embeddings": ("fedgat", {**DIRECT, "later": "exchange"}),
    "sums": ("attention_sums", {}),
    "hidden sums": ("attention_sums", {"exchange": "secure"}),
    "hidden sums and gradients": ("attention_sums", {"exchange": "secure", "aggregation": "secure"}),
}
#: The data that is measured: clients, split and options.
WORLDS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "cora": (10, "public", {}),
    "digits": (3, "per_class", {}),
    "social": (3, "random:0.5,0.25,0.25", {"num_nodes": 100, "features": 16}),
}


class Case:
    """A method after set-up on a graph."""

    def __init__(self, name: str, inputs: Inputs) -> None:
        method_name, settings = CASES[name]
        self.method = get_method(method_name)
        defaults = {**default_settings(self.method), **SETTINGS}
        self.config: Any = self.method.configure(settings, defaults)
        if self.method.pooled:
            whole = from_assignment(inputs.graph, np.zeros(inputs.graph.num_nodes, dtype=int), num_clients=1)
            inputs = Inputs(inputs.graph, inputs.split, whole)
        self.inputs = inputs
        self.fed = stacked(inputs.partition.num_clients)
        cohort = make_cohort(inputs.graph, inputs.split, inputs.partition, self.fed.workers[0])
        data = self.fed.locate(CLIENTS, "data", [as_configured(cohort, self.config)])
        task = Task(inputs.graph.num_features, inputs.graph.num_classes)
        began = time.perf_counter()
        with self.fed.phase("setup", round_number=0):
            self.state: State = self.method.setup(self.fed, data, task, self.config)
        self.setup, self.number = time.perf_counter() - began, 0

    def round(self) -> float:
        """Return the seconds of one round."""
        self.number += 1
        began = time.perf_counter()
        with self.fed.phase("train", round_number=self.number):
            self.state = self.method.round(self.fed, self.state, self.config, self.number)
        return time.perf_counter() - began

    def sent(self, phase: str) -> int:
        """Return the bytes of a phase so far, those of a simulated message included."""
        return sum(entry.bytes for entry in self.fed.ledger.entries if entry.phase == phase)

    def logits(self) -> torch.Tensor:
        """Return the logits of all nodes by their ids."""
        with self.fed.phase("predict", round_number=self.number):
            rows = torch.cat(list(self.method.predict(self.fed, self.state, self.config, "all").parts))
        return rows[np.argsort(self.inputs.partition.held_id)]


def difference(name: str, inputs: Inputs, tolerance: float) -> float:
    """Return how far the logits are from those of central GAT after two rounds.

    Raises:
        AssertionError: If it exceeds `tolerance`.
    """
    case, central = Case(name, inputs), Case(CENTRAL, inputs)
    for each in (case, central):
        each.round()
        each.round()
    gap = float((case.logits() - central.logits()).abs().max())
    assert gap <= tolerance, f"logits of {name} and of central GAT differ by {gap:.2e}"
    return gap


def measure(inputs: Inputs, turns: int, rounds: int) -> dict[str, Any]:
    """Measure all cases in turns, after a turn that is not timed."""
    cases: dict[str, Case] = {}
    left_out: dict[str, str] = {}
    for name in CASES:
        try:
            cases[name] = Case(name, inputs)
        except InputError as error:
            left_out[name] = str(error)
    times: dict[str, list[list[float]]] = {name: [] for name in cases}
    for turn in range(turns + 1):
        for name, case in cases.items():
            spent = [case.round() for _ in range(rounds)]
            if turn:
                times[name].append(spent)
    return {
        "left_out": left_out,
        "setup_s": {name: round(case.setup, 3) for name, case in cases.items()},
        "setup_bytes": {name: case.sent("setup") for name, case in cases.items()},
        "round_bytes": {name: round(case.sent("train") / case.number) for name, case in cases.items()},
        "round_s": {name: summary([s for turn in spent for s in turn]) for name, spent in times.items()},
        "ratios": {name: ratio(spent, times[CENTRAL]) for name, spent in times.items()},
        "ratios_to_sums": {name: ratio(spent, times["sums"]) for name, spent in times.items()},
    }


def inputs_of(data: str) -> Inputs:
    """Load a graph, split it and partition it nearly evenly."""
    clients, spec, options = WORLDS[data]
    graph = load(data, **options)
    assert isinstance(graph, Graph)
    split = make_split(graph, spec, 0)
    return Inputs(graph, split, partition(graph, "label_dirichlet", clients, 0, beta=10000))


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, measure, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=("cora", "digits"), default="cora", help="the data (%(default)s)")
    add_common_options(parser, "fedgat_sums")
    options = parser.parse_args(arguments)
    # Without --out, the record of the data.
    out: Path = options.out
    if options.data != "cora" and out == parser.get_default("out"):
        out = out.with_name(f"fedgat_sums_{options.data}.json")
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    data = "social" if options.tiny else options.data
    with float64():
        differences = {"sums, float64": difference("sums", inputs_of("social"), 1e-9)}
    inputs = inputs_of(data)
    for name in ("sums", "hidden sums"):
        differences[name] = difference(name, inputs, 1e-4)
    found = measure(inputs, *((1, 2) if options.tiny else (5, 4)))
    for name, seconds in found["round_s"].items():
        print(
            f"{name:26s} before training {found['setup_bytes'][name] / 1e6:12.3f} MB, round "
            f"{found['round_bytes'][name] / 1e6:8.3f} MB, {seconds['median']:8.4f} s, {found['ratios'][name]}"
        )
    content = {"settings": SETTINGS, "logits_differ_by": differences, "data": data, **found}
    finish(out, began, load_before, content)


if __name__ == "__main__":
    main()
