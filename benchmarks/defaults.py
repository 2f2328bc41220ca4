"""Measure accuracy, seconds and memory of every method with its defaults, and of plain PyG, on unlike graphs.

    python benchmarks/defaults.py [--graphs NAME,...] [--rows NAME,...] [--seeds 0,1] [--out FILE]
    python benchmarks/defaults.py --table      # print the tables of benchmarks/README.md from the record

Every run is a separate process with one thread. The file is written after every run, and runs that it already
contains are skipped, so an interrupted table can be continued. PyG's rows choose their epoch by the
validation accuracy, as ours choose the round. `gcn_wide` is a common GCN: 64 hidden units, features without
preprocessing."""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch.nn.functional import cross_entropy, dropout, elu, relu
from unlike_graphs import GRAPHS, Case, by_name, load_case

import graphfed
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import make_split
from graphfed.errors import InputError
from graphfed.files import write_json

OURS = ("central", "isolated", "fedavg", "fedgcn", "fedgraph", "sapgnn", "lumos")
#: Methods with a partition of their own.
PARTITIONS = {"lumos": "ego"}
EPOCHS = 200


@dataclass(frozen=True)
class Reference:
    """A plain PyG program: its layer, its hidden width and the settings of its paper."""

    layer: str
    hidden: int
    lr: float
    dropout: float
    row_normalised: bool


REFERENCES = {
    # Kipf and Welling 2017; Velickovic et al. 2018 (8 heads of 8); Hamilton et al. 2017.
    "pyg_gcn": Reference("gcn", 16, 0.01, 0.5, True),
    "pyg_gat": Reference("gat", 8, 0.005, 0.6, True),
    "pyg_sage": Reference("sage", 64, 0.01, 0.5, True),
    "pyg_gcn_wide": Reference("gcn", 64, 0.01, 0.5, False),
}


class Network(torch.nn.Module):
    """Two layers of one kind, with dropout on their inputs."""

    def __init__(self, reference: Reference, features: int, classes: int) -> None:
        from torch_geometric.nn import GATConv, GCNConv, SAGEConv

        super().__init__()
        self.reference, hidden = reference, reference.hidden
        if reference.layer == "gcn":
            self.first: Any = GCNConv(features, hidden, cached=True)
            self.second: Any = GCNConv(hidden, classes, cached=True)
        elif reference.layer == "sage":
            self.first, self.second = SAGEConv(features, hidden), SAGEConv(hidden, classes)
        else:
            self.first = GATConv(features, hidden, heads=8, dropout=reference.dropout)
            self.second = GATConv(8 * hidden, classes, heads=1, dropout=reference.dropout)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        p, activation = self.reference.dropout, elu if self.reference.layer == "gat" else relu
        h = activation(self.first(dropout(x, p, self.training), edge_index))
        logits: torch.Tensor = self.second(dropout(h, p, self.training), edge_index)
        return logits


def train_reference(graph: Graph, split: Split, reference: Reference, seed: int) -> dict[str, Any]:
    """Train a PyG program with its paper's settings. Return the test accuracy in percent at the epoch with
    the best validation accuracy."""
    torch.manual_seed(seed)
    dense = graph.x.toarray() if sp.issparse(graph.x) else np.asarray(graph.x)
    x, y = torch.from_numpy(np.ascontiguousarray(dense, dtype=np.float32)), torch.from_numpy(graph.y)
    if reference.row_normalised:
        x = x / x.sum(dim=1, keepdim=True).clamp(min=1.0)
    edge_index = torch.from_numpy(np.concatenate([graph.edges, graph.edges[::-1]], axis=1))
    parts = {name: torch.from_numpy(getattr(split, name)) for name in ("train", "val", "test")}
    network = Network(reference, x.shape[1], graph.num_classes)
    # Only the first layer has weight decay, as in the paper of GCN; in that of GAT both layers have it.
    decays = (5e-4, 5e-4 if reference.layer == "gat" else 0.0)
    layers = zip((network.first, network.second), decays, strict=True)
    groups = [{"params": layer.parameters(), "weight_decay": decay} for layer, decay in layers]
    optimizer = torch.optim.Adam(groups, lr=reference.lr)
    best, chosen = -1.0, {}
    for epoch in range(1, EPOCHS + 1):
        network.train()
        optimizer.zero_grad()
        cross_entropy(network(x, edge_index)[parts["train"]], y[parts["train"]]).backward()
        optimizer.step()
        network.eval()
        with torch.no_grad():
            right = network(x, edge_index).argmax(1) == y
        share = {name: 100 * float(right[mask].float().mean()) for name, mask in parts.items()}
        if share["val"] > best:
            best, chosen = share["val"], {"test": share["test"], "val": share["val"], "best_round": epoch}
    return {**chosen, "rounds": EPOCHS}


def train_ours(graph: Graph, case: Case, method: str, seed: int) -> dict[str, Any]:
    """Run a method with its defaults."""
    partition = PARTITIONS.get(method, case.partition)
    clients = None if method in PARTITIONS else case.clients
    try:
        result = graphfed.run(
            method,
            data=graph,
            split=case.split,
            clients=clients,
            partition=partition,
            seed=seed,
            out=False,
            threads=1,
        )
    except InputError as error:
        return {"refused": str(error)}
    return {
        "test": 100 * (result.test["accuracy"] or 0.0),
        "val": 100 * (result.val["accuracy"] or 0.0),
        "best_round": result.best_round,
        "rounds": result.rounds,
        "bytes": result.bytes["total"],
        "changed_settings": result.details.get("changed_settings", {}),
        "warnings": [warning["code"] for warning in result.details.get("warnings", [])],
    }


def run_one(case: Case, row: str, seed: int) -> dict[str, Any]:
    """Run one case, and return its processor seconds on one thread and its peak memory."""
    torch.set_num_threads(1)
    graph = load_case(case)
    began = time.process_time()
    if row in REFERENCES:
        found = train_reference(graph, make_split(graph, case.split, seed), REFERENCES[row], seed)
    else:
        found = train_ours(graph, case, row, seed)
    found["seconds"] = round(time.process_time() - began, 2)
    found["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
    return found


def commit() -> str:
    """Return the commit at which the table is made."""
    asked = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip()


def by_graph(runs: dict[str, Any]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return the runs of the record by graph and row."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for key, run in runs.items():
        name, row, _ = key.split("/")
        found.setdefault(name, {}).setdefault(row, []).append(run)
    return found


def score(runs: list[dict[str, Any]]) -> str:
    """Return the mean test accuracy in percent over the seeds, or the reason why there is none."""
    done = [run["test"] for run in runs if "test" in run]
    if done:
        return f"{np.mean(done):.1f}"
    if any("refused" in run for run in runs):
        return "refused"
    late = [run["failed"].removeprefix("more than ") for run in runs if "more than" in run.get("failed", "")]
    return f"> {late[0]}" if late else ""


def cost(runs: list[dict[str, Any]]) -> str:
    """Return the mean seconds of one processor, and the largest memory in MB."""
    done = [run for run in runs if "test" in run]
    if not done:
        return ""
    return f"{np.mean([run['seconds'] for run in done]):.0f} / {max(run['peak_rss_mb'] for run in done)}"


def table_of(runs: dict[str, Any], cell: Callable[[list[dict[str, Any]]], str]) -> str:
    """Return the record as a Markdown table with one row for each graph."""
    found = by_graph(runs)
    rows = [row for row in (*REFERENCES, *OURS) if any(row in graph for graph in found.values())]
    lines = [f"| graph | what it is | {' | '.join(rows)} |", "| --- " * (len(rows) + 2) + "|"]
    for case in GRAPHS:
        if case.name in found:
            cells = [cell(found[case.name].get(row, [])) for row in rows]
            lines.append(f"| {case.name} | {case.kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--graphs", default=",".join(case.name for case in GRAPHS))
    parser.add_argument("--rows", default=",".join((*REFERENCES, *OURS)))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "defaults.json")
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds that one run may take")
    parser.add_argument("--one", nargs=3, metavar=("GRAPH", "ROW", "SEED"), help=argparse.SUPPRESS)
    parser.add_argument("--table", action="store_true", help="print the record as a table and run nothing")
    arguments = parser.parse_args()
    if arguments.table:
        runs = json.loads(arguments.out.read_text())["runs"]
        print(table_of(runs, score), table_of(runs, cost), sep="\n\n")
        return
    if arguments.one:
        name, row, seed = arguments.one
        print(json.dumps(run_one(by_name(name), row, int(seed))))
        return
    table = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"runs": {}}
    for name in arguments.graphs.split(","):
        for row in arguments.rows.split(","):
            for seed in arguments.seeds.split(","):
                key = f"{name}/{row}/{seed}"
                if key in table["runs"]:
                    continue
                command = [sys.executable, "-W", "ignore", __file__, "--one", name, row, seed]
                try:
                    done = subprocess.run(
                        command, capture_output=True, text=True, timeout=arguments.limit, check=False
                    )
                    failed = done.stderr.strip().splitlines()[-1:] or ["no output"]
                    found = (
                        json.loads(done.stdout.splitlines()[-1])
                        if done.returncode == 0
                        else {"failed": failed[0]}
                    )
                except subprocess.TimeoutExpired:
                    found = {"failed": f"more than {arguments.limit:g} s"}
                table["runs"][key] = found | {"commit": commit()}
                write_json(arguments.out, table)
                print(key, json.dumps(found)[:160], flush=True)


if __name__ == "__main__":
    main()
