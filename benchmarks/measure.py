"""Shared parts of the benchmarks: inputs, timed rounds, checks of equality, and records that name their
machine.

A time alone says little. Every benchmark reports *ours / baseline* of the same run, measured in turns (repeat
1 of every case, then repeat 2, ...), so that both sides meet the same load of the machine."""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import graphfed
from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import Partition, partition
from graphfed.federation import CLIENTS
from graphfed.federation.cohort import make_cohort
from graphfed.files import write_json
from graphfed.methods.base import Method, Task
from graphfed.methods.parts import is_simulated
from graphfed.nn.sparse import SparseWeights
from graphfed.runs.train import train
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import default_settings

__all__ = [
    "W1",
    "WARM_UP",
    "Inputs",
    "Timed",
    "add_common_options",
    "assert_equal",
    "config_of",
    "cora_or_social",
    "finish",
    "float64",
    "make_inputs",
    "ratio",
    "results_folder",
    "run",
    "summary",
    "timed_run",
    "weights_of",
]

#: The training setting W1: what every timed case uses unless its name says otherwise.
W1: dict[str, Any] = {
    "hidden": 16,
    "layers": 2,
    "dropout": 0.5,
    "lr": 0.5,
    "weight_decay": 5e-4,
    "optimizer": "sgd",
}
#: Rounds of every timed run that are left out.
WARM_UP = 5


@dataclass(frozen=True)
class Inputs:
    """A graph, its split and its partition among clients."""

    graph: Graph
    split: Split
    partition: Partition


def cora_or_social(seed: int = 0) -> tuple[Graph, Split, str]:
    """Return Cora with its public split if GRAPHFED_DATA has it, otherwise a generated graph of its size;
    and the name of the one that it is."""
    if os.environ.get("GRAPHFED_DATA"):
        graph = load("cora")
        assert isinstance(graph, Graph)
        return graph, make_split(graph, "public", seed), "Cora, public split"
    graph = load("social", num_nodes=2708, communities=7, features=1433, average_degree=3.9)
    assert isinstance(graph, Graph)
    name = "generated graph of Cora's size (GRAPHFED_DATA is not set), 20 nodes a class"
    return graph, make_split(graph, "per_class", seed), name


def make_inputs(graph: Graph, split: Split, clients: int, seed: int = 0) -> Inputs:
    """Partition the nodes uniformly among the clients, which makes most edges cross-client edges."""
    return Inputs(graph, split, partition(graph, "random", clients, seed))


def config_of(method: Method, **settings: Any) -> Any:
    """Return the method's config: its own defaults, then W1, then `settings`."""
    return method.configure(settings, {**default_settings(method, preset="paper"), **W1})


def run(method: Method, inputs: Inputs, config: Any, *, each_alone: bool = False) -> Outcome:
    """Do a whole run in this process. each_alone: one client after the other instead of all stacked."""
    place = one_at_a_time if each_alone else stacked
    fed = place(inputs.partition.num_clients, simulated=is_simulated(config))
    cohorts = [make_cohort(inputs.graph, inputs.split, inputs.partition, worker) for worker in fed.workers]
    task = Task(inputs.graph.num_features, inputs.graph.num_classes)
    return train(fed, method, fed.locate(CLIENTS, "data", cohorts), task, config)


@dataclass(frozen=True)
class Timed:
    """Times of a run: milliseconds of every round after the warm-up (aggregation and validation included),
    and seconds of set-up."""

    rounds: list[float]
    setup: float
    outcome: Outcome


def timed_run(method: Method, inputs: Inputs, config: Any) -> Timed:
    """Do one stacked run, and time every round."""
    outcome = run(method, inputs, config)
    ends = np.array([line["seconds"] for line in outcome.history])
    return Timed((np.diff(ends)[WARM_UP - 1 :] * 1e3).tolist(), outcome.seconds["setup"], outcome)


# ---- equality before speed


@contextmanager
def float64() -> Iterator[None]:
    """Make float64 the default dtype in this block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def weights_of(outcome: Outcome, clients: Sequence[int] = ()) -> dict[str, torch.Tensor]:
    """Return the run's weights by name: the shared ones, and those of the given clients."""
    parts = outcome.state.weights.parts
    if outcome.state.weights.place != CLIENTS:
        return dict(parts[0])
    if len(parts) == 1:
        return {f"{k}/{name}": _part(w, k) for k in clients for name, w in parts[0].items()}
    return {f"{k}/{name}": _part(w, 0) for k in clients for name, w in parts[k].items()}


def _part(weight: torch.Tensor | SparseWeights, k: int) -> torch.Tensor:
    return weight.part(k) if isinstance(weight, SparseWeights) else weight[k]


def assert_equal(
    what: str,
    ours: Mapping[str, torch.Tensor],
    reference: Mapping[str, torch.Tensor],
    tolerance: float = 1e-9,
) -> float:
    """Return the largest absolute difference between two sets of weights.

    Raises:
        AssertionError: If it exceeds `tolerance`.
    """
    assert set(ours) == set(reference), f"{what}: {sorted(ours)} and {sorted(reference)}"
    gap = max(float((ours[k] - reference[k]).abs().max()) for k in ours)
    assert gap <= tolerance, f"{what}: weights differ by {gap:.2e}, more than {tolerance:g}"
    return gap


# ---- numbers and the machine they come from


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return minimum, median, 10 % and 90 % quantiles, and the number of values."""
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
    return {
        "min": round(float(min(values)), 4),
        "median": round(float(middle), 4),
        "p10": round(float(low), 4),
        "p90": round(float(high), 4),
        "count": len(values),
    }


def ratio(ours: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return ours / baseline: of the minima, of the medians, and the range of the medians' ratio over the
    repeats.

    Both arguments hold one list of times for each repeat, measured in turns."""
    each = [float(np.median(a) / np.median(b)) for a, b in zip(ours, baseline, strict=True)]
    flat = [np.concatenate([np.asarray(part) for part in side]) for side in (ours, baseline)]
    return {
        "of_minima": round(float(flat[0].min() / flat[1].min()), 3),
        "of_medians": round(float(np.median(flat[0]) / np.median(flat[1])), 3),
        "lowest": round(min(each), 3),
        "highest": round(max(each), 3),
    }


def machine() -> dict[str, Any]:
    """Return the machine, the versions and the commit of this run."""
    import scipy
    import torch_geometric

    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "versions": {
            "graphfed": graphfed.__version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "torch_geometric": torch_geometric.__version__,
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "commit": _git("rev-parse", "HEAD"),
        # Changes of the result files themselves are ignored.
        "changed_since_commit": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "graphfed")),
        "threads": torch.get_num_threads(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    folder = Path(__file__).resolve().parent
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def load_average() -> list[float]:
    """Return the load of the machine: runnable processes over 1, 5 and 15 minutes."""
    return [round(x, 2) for x in os.getloadavg()]


def results_folder() -> Path:
    """Return the folder of the records, benchmarks/results."""
    return Path(__file__).resolve().parent / "results"


def add_common_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add --full, --tiny, --threads and --out, which every benchmark has."""
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="every size")
    size.add_argument(
        "--tiny",
        action="store_true",
        help="run for seconds, as a check; its times mean nothing",
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="torch threads (default 1, which other programs disturb least)"
    )
    parser.add_argument(
        "--out", type=Path, default=results_folder() / f"{name}.json", help="the file of the result"
    )


def finish(out: Path, began: float, load_before: list[float], content: Mapping[str, Any]) -> None:
    """Write the result with its machine, and print its path."""
    write_json(
        out,
        {
            "machine": {**machine(), "load_before": load_before, "load_after": load_average()},
            "seconds": round(time.perf_counter() - began, 1),
            **content,
        },
    )
    print(f"written: {out}", file=sys.stderr)
