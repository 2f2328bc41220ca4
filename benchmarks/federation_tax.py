"""Measure the federation tax: a round of K stacked clients, compared with central training and with PyG.

A *round* includes everything: broadcast, local steps, averaging, the ledger, and scoring the validation
nodes. A *central epoch* is one round of the method `central` with as many local steps, so it includes the
same scoring. Both sides train on the receptive field of the training nodes only (`graphfed.nn.batch`).
FedAvg drops the cross-client edges, which makes its receptive fields smaller than the central one, so part of
FedAvg's low tax is work that it omits. Therefore there are two more baselines: central training on every row;
and FedGCN, which keeps all edges, compared with itself with one client (its pre-aggregated features are
denser than the raw ones, so `central` is not comparable). The table contains the number of rows and stored
entries of every case's step.

Before measuring, every case is compared in float64 with the placement that runs one client at a time, and
graphfed with PyG."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from measure import (
    WARM_UP,
    Inputs,
    Timed,
    add_common_options,
    assert_equal,
    config_of,
    cora_or_social,
    finish,
    float64,
    load_average,
    make_inputs,
    ratio,
    run,
    summary,
    timed_run,
    weights_of,
)
from pyg_baselines import CentralLoop, FederatedLoop

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import make_split
from graphfed.federation import Federation, Located
from graphfed.methods.base import Method, State, Task
from graphfed.methods.baselines.isolated import AloneConfig
from graphfed.methods.common.local_training import Prepared, initial_weights
from graphfed.methods.registry import get_method
from graphfed.nn.batch import make_batch
from graphfed.nn.sparse import SparseMatrix
from graphfed.tasks.outcome import Outcome


@dataclass(frozen=True)
class Plan:
    """One graph and what is measured on it.

    Attributes:
        clients: Numbers of clients of fedavg and isolated.
        gcn_clients: Of fedgcn, whose clients hold copies of their neighbours.
        rounds: Of every timed run, after the warm-up.
        checked_rounds: Rounds of the comparison in float64.
    """

    title: str
    graph: Graph
    split: Split
    clients: tuple[int, ...]
    gcn_clients: tuple[int, ...]
    steps: tuple[int, ...]
    repeats: int
    rounds: int
    checked_rounds: int


# ---- the central baseline on every row


def on_every_row(prepared: Prepared, config: AloneConfig) -> Prepared:
    """Train without pruning: every row is computed, and only training nodes have a weight in the loss."""
    view, train = prepared.view, prepared.targets["train"]
    make_block = config.network.kernel.blocks(view.ids, view.degree, config.network.attention_heads)
    weight = torch.zeros(len(view.ids)).index_fill(0, train, 1 / len(train))
    rows = torch.arange(len(view.ids))
    batch = make_batch(view, rows, config.network.layers, make_block, weight=weight, per_client=True)
    return replace(prepared, train=batch, pairs=batch.pairs)


def central_on_every_row() -> Method:
    central = get_method("central")

    def setup(fed: Federation, data: Located, task: Task, config: AloneConfig) -> State:
        from graphfed.methods.baselines.isolated import first_weights

        state = central.setup(fed, data, task, config)
        prepared = fed.clients.run(on_every_row, state.prepared, config)
        weights = fed.clients.run(first_weights, prepared, task, config, str(fed.device))
        return State({**state.values, "weights": weights}, prepared)

    return replace(central, setup=setup)


# ---- equality


def logits_of(outcome: Outcome) -> torch.Tensor:
    """Return the logits of every node at its own client, in the order of the clients."""
    return torch.cat([logits for _, logits in outcome.predictions.parts])


def check_placements(plan: Plan, methods: dict[str, tuple[int, ...]]) -> dict[str, float]:
    """Compare stacked clients with one client at a time, with dropout; return the largest differences."""
    gaps = {}
    for name, counts in methods.items():
        method = get_method(name)
        config = config_of(method, rounds=plan.checked_rounds, eval_every=plan.checked_rounds, local_steps=3)
        for clients in counts:
            inputs = make_inputs(plan.graph, plan.split, clients)
            both = [run(method, inputs, config, each_alone=alone) for alone in (False, True)]
            ours, reference = ({"logits": logits_of(o)} for o in both)
            if not method.personal:
                ours, reference = ours | weights_of(both[0]), reference | weights_of(both[1])
            what = f"{name}, {clients} clients, stacked and one at a time"
            gaps[what] = assert_equal(what, ours, reference)
    return gaps


def check_pyg(plan: Plan) -> dict[str, float]:
    """Check that graphfed and the PyG programs take the same steps, without dropout, from the same
    weights."""
    gaps = {}
    task = Task(plan.graph.num_features, plan.graph.num_classes)
    central, fedavg = get_method("central"), get_method("fedavg")
    config = config_of(central, rounds=1, local_steps=5, dropout=0.0)
    everything = make_inputs(plan.graph, plan.split, 1)
    ours = weights_of(run(central, everything, config), [0])
    ours = {k.removeprefix("0/"): w for k, w in ours.items()}
    loop = CentralLoop(plan.graph, plan.split, p=0.0, input_dropout=True, adam=False)
    loop.model.start_from(initial_weights(task, config.network, config.run.seed, "cpu"))
    loop.timed(5, 0)
    gaps["central and a PyG program"] = assert_equal("central and PyG", ours, loop.model.graphfed_weights())

    unpruned = weights_of(run(central_on_every_row(), everything, config), [0])
    unpruned = {k.removeprefix("0/"): w for k, w in unpruned.items()}
    gaps["central pruned and on every row"] = assert_equal("central, unpruned", ours, unpruned)

    config = config_of(fedavg, rounds=2, eval_every=2, local_steps=3, dropout=0.0)
    inputs = make_inputs(plan.graph, plan.split, 10)
    federated = FederatedLoop(inputs, steps=3, p=0.0, input_dropout=True)
    federated.model.start_from(initial_weights(task, config.network, config.run.seed, "cpu"))
    federated.timed(2, 0)
    ours = weights_of(run(fedavg, inputs, config))
    gaps["fedavg and a PyG loop over 10 clients"] = assert_equal(
        "fedavg and PyG", ours, federated.model.graphfed_weights()
    )
    return gaps


# ---- what is timed


def step_size(outcome: Outcome) -> dict[str, Any]:
    """Return the number of rows that enter each layer of a training step (last: its targets), and of the
    stored entries of its input and edges."""
    prepared = outcome.state.prepared
    prepared = getattr(prepared, "prepared", prepared).parts[0]
    batch = prepared.train
    edges = [len(b.adjacency.values) for b in batch.blocks if b is not None]
    entries = len(batch.x.values) if isinstance(batch.x, SparseMatrix) else batch.x.numel()
    return {"rows": [len(ids) for ids in batch.ids], "input_entries": entries, "edge_entries": edges}


class Ours:
    """A case of graphfed; `size` is known after the first repeat."""

    def __init__(self, method: Method, inputs: Inputs, rounds: int, **settings: Any) -> None:
        self.method, self.inputs = method, inputs
        self.config = config_of(method, rounds=WARM_UP + rounds, **settings)
        self.setup: list[float] = []
        self.size: dict[str, Any] = {}

    def __call__(self) -> list[float]:
        timed: Timed = timed_run(self.method, self.inputs, self.config)
        self.setup.append(timed.setup)
        self.size = step_size(timed.outcome)
        return timed.rounds


Case = Callable[[], list[float]]


def cases_of(plan: Plan) -> dict[str, Case]:
    """Return everything that is timed on one graph, by name."""
    central, n = get_method("central"), plan.rounds
    everything = make_inputs(plan.graph, plan.split, 1)
    inputs = {k: make_inputs(plan.graph, plan.split, k) for k in {*plan.clients, *plan.gcn_clients, 10}}
    cases: dict[str, Case] = {}
    for steps in plan.steps:
        cases[f"central, {steps} step"] = Ours(central, everything, n, local_steps=steps)
    # There is one evaluation, in the last round, which is then omitted.
    cases["central, 1 step, no scoring"] = Ours(central, everything, n, local_steps=1, eval_every=WARM_UP + n)
    cases["central, 1 step, every row"] = Ours(central_on_every_row(), everything, n, local_steps=1)
    for k in plan.clients:
        for steps in plan.steps:
            cases[f"fedavg K={k}, {steps} step"] = Ours(get_method("fedavg"), inputs[k], n, local_steps=steps)
        cases[f"isolated K={k}, 1 step"] = Ours(get_method("isolated"), inputs[k], n, local_steps=1)
    for k in plan.gcn_clients:
        cases[f"fedgcn K={k}, 1 step"] = Ours(get_method("fedgcn"), inputs[k], n, local_steps=1)
    for optimizer in ("Adam", "SGD"):
        loop = CentralLoop(plan.graph, plan.split, p=0.5, input_dropout=True, adam=optimizer == "Adam")
        cases[f"PyG GCN epoch, {optimizer}"] = lambda loop=loop: loop.timed(n, 2)
    loop = CentralLoop(plan.graph, plan.split, p=0.5, input_dropout=False, adam=True)
    cases["PyG GCN epoch, Adam, input not dropped"] = lambda loop=loop: loop.timed(n, 2)
    for dropped, name in ((True, ""), (False, ", input not dropped")):
        federated = FederatedLoop(inputs[10], steps=3, p=0.5, input_dropout=dropped)
        cases[f"PyG loop K=10, 3 step{name}"] = lambda loop=federated: loop.timed(n, 2)
    return cases


def ratios_of(plan: Plan) -> dict[str, tuple[str, str]]:
    """Return the reported ratios by name: (ours, baseline)."""
    chosen = {}
    for k in plan.clients:
        for steps in plan.steps:
            chosen[f"tax of fedavg, K={k}, {steps} step"] = (
                f"fedavg K={k}, {steps} step",
                f"central, {steps} step",
            )
        chosen[f"fedavg, K={k}, to central on every row"] = (
            f"fedavg K={k}, 1 step",
            "central, 1 step, every row",
        )
        chosen[f"tax of isolated, K={k}"] = (f"isolated K={k}, 1 step", "central, 1 step")
    for k in plan.gcn_clients:
        if k > 1:
            chosen[f"tax of fedgcn, K={k}, to one client"] = (
                f"fedgcn K={k}, 1 step",
                "fedgcn K=1, 1 step",
            )
        chosen[f"fedgcn, K={k}, to central on every row"] = (
            f"fedgcn K={k}, 1 step",
            "central, 1 step, every row",
        )
    epoch = "central, 1 step, no scoring"
    chosen["central epoch to PyG's (Adam, input dropped)"] = (epoch, "PyG GCN epoch, Adam")
    chosen["central epoch, every row and scoring, to PyG's (Adam, input dropped)"] = (
        "central, 1 step, every row",
        "PyG GCN epoch, Adam",
    )
    chosen["central epoch, every row and scoring, to PyG's without dropping the input"] = (
        "central, 1 step, every row",
        "PyG GCN epoch, Adam, input not dropped",
    )
    if 10 in plan.clients and 3 in plan.steps:
        chosen["W1 round to a PyG loop"] = ("fedavg K=10, 3 step", "PyG loop K=10, 3 step")
        chosen["W1 round to a PyG loop that does not drop the input"] = (
            "fedavg K=10, 3 step",
            "PyG loop K=10, 3 step, input not dropped",
        )
        chosen["W1 round to one PyG epoch (Adam, input dropped)"] = (
            "fedavg K=10, 3 step",
            "PyG GCN epoch, Adam",
        )
    return chosen


def measure(plan: Plan) -> dict[str, Any]:
    """Check that both sides agree, then time them in turns."""
    print(f"\n{plan.title}: {plan.graph.num_nodes} nodes, {plan.graph.num_edges} edges", flush=True)
    with float64():
        gaps = check_pyg(plan)
        gaps |= check_placements(
            plan, {"fedavg": plan.clients, "isolated": plan.clients, "fedgcn": plan.gcn_clients}
        )
    print(
        f"equal results: {len(gaps)} comparisons in float64, largest difference {max(gaps.values()):.1e}",
        flush=True,
    )
    cases = cases_of(plan)
    times: dict[str, list[list[float]]] = {name: [] for name in cases}
    for repeat in range(plan.repeats):
        for name, case in cases.items():
            times[name].append(case())
        print(f"repeat {repeat + 1} of {plan.repeats} done", file=sys.stderr, flush=True)
    rows: dict[str, Any] = {}
    print(
        f"{'case':42s} {'ms min':>9s} {'median':>9s} {'p90':>9s}  rows, input entries, edge entries of a step"
    )
    for name, case in cases.items():
        rows[name] = {"ms": summary([t for part in times[name] for t in part])}
        sizes = ""
        if isinstance(case, Ours):
            rows[name] |= {"step": case.size, "setup_seconds": summary(case.setup)}
            size = case.size
            sizes = f"{size['rows']}, {size['input_entries']}, {size['edge_entries']}"
        ms = rows[name]["ms"]
        print(f"{name:42s} {ms['min']:9.2f} {ms['median']:9.2f} {ms['p90']:9.2f}  {sizes}")
    ratios = {name: ratio(times[a], times[b]) for name, (a, b) in ratios_of(plan).items()}
    print(f"{'ratio':74s} {'of minima':>9s} {'medians':>8s}  over the repeats")
    for name, r in ratios.items():
        print(
            f"{name:74s} {r['of_minima']:9.2f} {r['of_medians']:8.2f}"
            f"  {r['lowest']:.2f} to {r['highest']:.2f}"
        )
    return {
        "graph": {
            "title": plan.title,
            "nodes": plan.graph.num_nodes,
            "edges": plan.graph.num_edges,
            "features": plan.graph.num_features,
            "training_nodes": int(plan.split.train.sum()),
        },
        "repeats": plan.repeats,
        "rounds": plan.rounds,
        "largest_differences": gaps,
        "cases": rows,
        "ratios": ratios,
    }


def plans(full: bool, tiny: bool) -> list[Plan]:
    if tiny:
        graph = load("social", num_nodes=300, features=40, communities=3, average_degree=6.0)
        assert isinstance(graph, Graph)
        split = make_split(graph, "random:0.5,0.25,0.25", 0)
        return [Plan("tiny generated graph", graph, split, (1, 10, 40), (1, 10), (1, 3), 1, 3, 2)]
    graph, split, title = cora_or_social()
    small = Plan(title, graph, split, (1, 10, 100, 1000), (1, 10, 100, 1000), (1, 3), 9 if full else 5, 20, 3)
    large = load("social", num_nodes=100_000)
    assert isinstance(large, Graph)
    split = make_split(large, "random:0.5,0.25,0.25", 0)
    title = "generated graph, half of the nodes for training"
    clients: Sequence[int] = (1, 10, 100, 1000) if full else (10, 1000)
    gcn_clients: Sequence[int] = (1, 10) if full else ()
    return [small, Plan(title, large, split, tuple(clients), tuple(gcn_clients), (1,), 3, 5, 1)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_common_options(parser, "federation_tax")
    parser.add_argument("--small-only", action="store_true", help="omit the graph of 10^5 nodes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    chosen = plans(options.full, options.tiny)
    measured = [measure(plan) for plan in (chosen[:1] if options.small_only else chosen)]
    finish(options.out, began, load_before, {"graphs": measured})


if __name__ == "__main__":
    main()
