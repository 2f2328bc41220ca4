"""Measure FedGAT's message before training: set-up, rounds and memory.

A round is measured with gradients (evaluation=direct) and with FedAvg of 1 and 3 local steps, from vectors
and with evaluation=direct, each compared with an epoch of central GAT in the same process. Memory is
predicted and measured for vectors, and predicted for matrices, with the message that refuses a run with them.

    Cora  public split, 10 clients, label_dirichlet with beta 10000: nearly uniform, most edges are
          cross-client edges
    DBLP  10 % of the nodes for training, 10 % for validation; 2 clients, louvain: few cross-client edges,
          because the message of every node within a hop of both clients is sent twice

GAT with 8 heads of 8, features of length 1, degree 16, no dropout. A round is training and averaging, without
scoring. Every graph has a separate process, in which the cases take turns, and another one that only makes,
trains on and predicts from vectors; its peak is the measured memory.

Before measuring, vectors and evaluation=direct must give the same logits: to 1e-8 in float64 on a small
generated graph after rounds of training, and to 1e-5 in float32 on the graph itself with the first weights.
The files of Cora and DBLP are needed (--data-dir or GRAPHFED_DATA)."""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from graphfed.federation import CLIENTS, Federation, Located
from graphfed.federation.cohort import make_cohort
from graphfed.memory import memory_bytes
from graphfed.methods.base import Method, State, Task
from graphfed.methods.common.local_training import as_configured
from graphfed.methods.fedgat import method as fedgat
from graphfed.methods.fedgat import pretraining
from graphfed.methods.fedgat.client_graphs import first_neighbourhood, kept_edges
from graphfed.methods.registry import get_method
from graphfed.methods.settings import changed
from graphfed.runtime.local import stacked
from graphfed.tasks.registry import default_settings

FEDGAT, CENTRAL = fedgat.METHOD, get_method("central")
#: What central GAT has in common with FedGAT, whose defaults they are.
SETTINGS = {
    **{k: v for k, v in default_settings(FEDGAT, preset="paper").items() if k != "rule"},
    "dropout": 0.0,
}
#: FedAvg, whose clients take steps; the other rule is FedGAT's own, of gradients.
AVERAGED = {"rule": "fedavg"}
STEPS = (1, 3)
GIB = 2**30


@dataclass(frozen=True)
class World:
    """A graph and its partition.

    Attributes:
        options: Of the data set.
        turns: How often every case is timed, with its number of rounds.
    """

    data: str
    split: str
    partition: str
    clients: int
    turns: int
    rounds: int
    options: Mapping[str, Any]
    partition_options: Mapping[str, Any]

    def inputs(self, folder: str | None) -> Inputs:
        graph = load(self.data, folder, **self.options)
        assert isinstance(graph, Graph)
        split = make_split(graph, self.split, 0)
        return Inputs(
            graph, split, partition(graph, self.partition, self.clients, 0, **self.partition_options)
        )


TINY = World("social", "random:0.5,0.25,0.25", "random", 3, 1, 2, {"num_nodes": 200}, {})
WORLDS = (
    World("cora", "public", "label_dirichlet", 10, 5, 3, {}, {"beta": 10000}),
    World("dblp", "random:0.1,0.1,0.8", "louvain", 2, 3, 1, {}, {}),
)


class Case:
    """A method after set-up on a graph."""

    def __init__(self, method: Method, inputs: Inputs, **settings: Any) -> None:
        defaults = {**default_settings(method, preset="paper"), **SETTINGS}
        self.config: Any = method.configure(settings, defaults)
        self.method = method
        self.steps = STEPS if settings.get("rule") == "fedavg" else (1,)
        self.fed, self.data, self.task = places(inputs, self.config)
        began = time.perf_counter()
        self.state: State = method.setup(self.fed, self.data, self.task, self.config)
        self.setup = time.perf_counter() - began
        self.number = 0

    def round(self, steps: int) -> float:
        """Return the seconds of one round."""
        self.number += 1
        config, began = changed(self.config, local_steps=steps), time.perf_counter()
        self.state = self.method.round(self.fed, self.state, config, self.number)
        return time.perf_counter() - began

    def logits(self, target: str) -> torch.Tensor:
        found: torch.Tensor = self.method.predict(self.fed, self.state, self.config, target).parts[0]
        return found


def places(inputs: Inputs, config: Any) -> tuple[Federation, Located, Task]:
    """Return all clients of a graph, stacked."""
    fed = stacked(inputs.partition.num_clients)
    cohort = make_cohort(inputs.graph, inputs.split, inputs.partition, fed.workers[0])
    data = fed.locate(CLIENTS, "data", [as_configured(cohort, config)])
    return fed, data, Task(inputs.graph.num_features, inputs.graph.num_classes)


def pooled(inputs: Inputs) -> Inputs:
    """Return the same graph at one client."""
    whole = from_assignment(inputs.graph, np.zeros(inputs.graph.num_nodes, dtype=int), num_clients=1)
    return replace(inputs, partition=whole)


# ---- what is measured


def difference(vectors: Case, direct: Case, tolerance: float) -> float:
    """Return the largest difference of their logits. Raise AssertionError if it exceeds `tolerance`."""
    gap = float((vectors.logits("all") - direct.logits("all")).abs().max())
    assert gap <= tolerance, f"logits from vectors and direct ones differ by {gap:.2e}"
    return gap


def check_in_float64(world: World, folder: str | None) -> float:
    """Return the differences after three rounds of three steps, in this process."""
    with float64():
        inputs = world.inputs(folder)
        vectors = Case(FEDGAT, inputs, **AVERAGED, evaluation="message")
        direct = Case(FEDGAT, inputs, **AVERAGED, evaluation="direct")
        for _ in range(3):
            vectors.round(3)
            direct.round(3)
        return difference(vectors, direct, 1e-8)


def predicted_sizes(inputs: Inputs, form: str) -> dict[str, float]:
    """Return the size of the message and the largest memory in GiB, as a run predicts them."""
    config = FEDGAT.configure({"form": form, "evaluation": "direct"}, SETTINGS)
    fed, data, task = places(inputs, config)
    data = fed.clients.run(kept_edges, data, config.exchange.edges, config.run.seed)
    _, graph = pretraining.upload(fed, data, task)
    requests = pretraining.request_messages(
        fed, graph, fed.clients.run(first_neighbourhood, data, config.network.layers)
    )
    table = fed.table(requests.route)
    sent_bytes = fed.control(pretraining.message_bytes, graph, table, task, config, True, name="fedgat/size")
    memory = pretraining.memory_of(sent_bytes["once"], sent_bytes["sent"], True)
    sizes = {"once": sent_bytes["once"], "sent": sent_bytes["sent"], "memory": memory}
    return {name: round(size / GIB, 3) for name, size in sizes.items()}


def refusal(inputs: Inputs, form: str) -> str | None:
    """Return the error of a run for which there is too little memory."""
    config = FEDGAT.configure({"form": form}, SETTINGS)
    try:
        FEDGAT.setup(*places(inputs, config), config)
    except InputError as error:
        return str(error)
    return None


def peak_gib() -> float:
    """Return the largest resident memory of this process in GiB, or that of the process that started it, if
    that was larger at the time (it stays small)."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB


def timed(cases: Mapping[str, Case], world: World) -> dict[str, list[list[float]]]:
    """Return the seconds of every case's rounds of 1 and of 3 steps, in turns, after one round that is not
    timed. central: epochs."""
    times: dict[str, list[list[float]]] = {}
    for turn in range(world.turns + 1):
        for name, case in cases.items():
            for steps in case.steps:
                spent = [case.round(steps) for _ in range(world.rounds)]
                if turn:
                    label = f"{name}, {steps} step{'s' * (steps > 1)}"
                    times.setdefault(label, []).append(spent)
    return times


def measure(world: World, folder: str | None) -> dict[str, Any]:
    """Measure one graph, in this process."""
    inputs, load_before = world.inputs(folder), load_average()
    graph, parts = inputs.graph, inputs.partition
    sizes = {form: predicted_sizes(inputs, form) for form in ("vector", "matrix")}
    free, _ = memory_bytes()
    found: dict[str, Any] = {
        **{
            key: value
            for key, value in vars(world).items()
            if key not in ("turns", "rounds", "partition_options")
        },
        "dealt": dict(world.partition_options),
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "edges that cross": round(len(parts.cross_id) / 2 / graph.num_edges, 3),
        "features": graph.num_features,
        "foretold_gib": sizes,
        "free_gib": None if free is None else round(free / GIB, 1),
        "matrices_are_told": None,
        "vectors_are_told": None,
        "load_before": load_before,
    }
    if free is not None and sizes["matrix"]["memory"] * GIB > free:
        found["matrices_are_told"] = refusal(inputs, "matrix")
    cases = {"central": Case(CENTRAL, pooled(inputs), backbone="gat")}
    cases["direct, gradients"] = Case(FEDGAT, inputs, evaluation="direct")
    cases["direct"] = Case(FEDGAT, inputs, **AVERAGED, evaluation="direct")
    try:
        cases["vectors"] = Case(FEDGAT, inputs, **AVERAGED, evaluation="message")
    except InputError as error:
        found["vectors_are_told"] = str(error)
    else:
        found["float32_logits_differ_by"] = difference(cases["vectors"], cases["direct"], 1e-5)
    times = timed(cases, world)
    found["scored_s"] = {
        name: seconds_of(lambda case=case: case.logits("val")) for name, case in cases.items()
    }
    epoch = times["central, 1 step"]
    found |= {
        "setup_s": {name: round(case.setup, 3) for name, case in cases.items()},
        "round_s": {name: summary([s for turn in spent for s in turn]) for name, spent in times.items()},
        "ratios": {f"{name} / a central epoch": ratio(spent, epoch) for name, spent in times.items()},
        "setup_in_central_epochs": {
            name: round(case.setup / summary([s for turn in epoch for s in turn])["median"], 1)
            for name, case in cases.items()
        },
        "load_after": load_average(),
    }
    return found


def measure_memory(world: World, folder: str | None) -> dict[str, float]:
    """Return the peak memory of this process in GiB above the loaded data: when the clients have the message
    and are ready to train, after rounds of training, and after all predictions."""
    inputs = world.inputs(folder)
    places(inputs, FEDGAT.configure({}, SETTINGS))
    before = peak_gib()
    vectors = Case(FEDGAT, inputs, **AVERAGED, evaluation="message")
    found = {"data": before, "set up": peak_gib() - before}
    vectors.round(3)
    found["trained"] = peak_gib() - before
    for target in ("val", "test", "all"):
        vectors.logits(target)
    found["predicted"] = peak_gib() - before
    return {name: round(size, 3) for name, size in found.items()}


def seconds_of(work: Callable[[], object]) -> float:
    """Return the smallest of three times."""
    spent = []
    for _ in range(3):
        began = time.perf_counter()
        work()
        spent.append(time.perf_counter() - began)
    return round(min(spent), 4)


def in_own_process(kind: str, world: World, folder: str | None, threads: int) -> Any:
    case = json.dumps([vars(world), folder])
    command = [sys.executable, __file__, f"--{kind}", case, "--threads", str(threads)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


#: What is done in a process of its own.
KINDS: dict[str, Callable[[World, str | None], Any]] = {
    "check": check_in_float64,
    "times": measure,
    "memory": measure_memory,
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "fedgat")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", help=argparse.SUPPRESS)
    parser.add_argument("--data-dir", help="the folder that contains planetoid and dblp")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for kind, work in KINDS.items():
        if getattr(options, kind):
            case, folder = json.loads(getattr(options, kind))
            print(json.dumps(work(World(**case), folder)))
            return
    began, load_before = time.perf_counter(), load_average()
    small = TINY if options.tiny else replace(TINY, options={"num_nodes": 1000})
    gap = in_own_process("check", small, None, options.threads)
    rows = []
    for world in (TINY,) if options.tiny else WORLDS:
        row = in_own_process("times", world, options.data_dir, options.threads)
        if row["vectors_are_told"] is None:
            row["memory_gib"] = in_own_process("memory", world, options.data_dir, options.threads)
        rows.append(row)
        print(f"{row['data']}: before training, s: {row['setup_s']}; memory, GiB: {row.get('memory_gib')}")
        for name, seconds in row["round_s"].items():
            beside = row["ratios"][f"{name} / a central epoch"]
            print(f"  {name:18s} {seconds['min']:8.4f} / {seconds['median']:8.4f} s, {beside}", flush=True)
    content = {"settings": SETTINGS, "float64_logits_differ_by": gap, "rows": rows}
    finish(Path(options.out), began, load_before, content)


if __name__ == "__main__":
    main()
