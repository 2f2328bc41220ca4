"""Choose the duration of a round of FedGraph's balanced policy, and constants for the time to a target.

By validation nodes only, with a seed that no result uses. The federation is that of the reproduction
(`graphfed reproduce fedgraph balanced`): 20 clients, the paper's settings, one partition and one split. A
case's figure is the modelled time until the mean of the last five evaluations is as near to the target as
`TARGETS` says; a case that does not reach it has the time of all rounds, and `reached` is false."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed

SEED = 100
ROUNDS, MEAN_OF = 120, 5
OPTIONS = {"clients": 20, "partition": "overlapping", "split": "random_plain:0.6,0.2,0.2", "rounds": ROUNDS}
TINY = {"data": "digits", "clients": 3, "partition": "overlapping", "split": "default", "rounds": 12}
PAPER = {"preset": "paper", "partition_seed": 0, "split_seed": 0}
#: Settings of each data set. The targets are those of a row, less one point.
DATA: dict[str, dict[str, Any]] = {
    "cora": {"first_degrees": "all"},
    "citeseer": {"first_degrees": "all"},
    "dblp": {"partition.copies": "one", "first_degrees": "internal"},
    "social": {"partition.copies": "one", "first_degrees": "internal", "data.num_nodes": 5000},
}
LESS = 0.01
ROUND_TIMES = (0.1, 0.2, 0.3, 0.45)
#: Constants are tuned on the first two: the largest mini-batch, and the sampling probability.
TUNED = ("cora", "citeseer")
CONSTANTS = ((64, 1.0), (128, 0.5), (128, 1.0), (256, 0.5), (256, 1.0))


def time_to(target: float, history: Sequence[Mapping[str, Any]]) -> tuple[float, bool]:
    """Return the modelled seconds until the running mean reaches the target, and whether it does."""
    values: list[float] = []
    for line in history:
        values = [*values, line["val"]["accuracy"]][-MEAN_OF:]
        if len(values) == MEAN_OF and sum(values) / MEAN_OF >= target:
            return line["facts"]["modelled_seconds"], True
    return history[-1]["facts"]["modelled_seconds"], False


def measure(data: str, *, tiny: bool) -> dict[str, Any]:
    """Return the times of every case on a data set, and of full batches."""
    options = {**OPTIONS, "data": data, **(TINY if tiny else {})}
    own = {} if tiny else {**PAPER, **DATA[data]}

    def run(settings: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            graphfed.run("fedgraph", seed=SEED, settings={**own, **settings}, out=place, **options)
            return [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]

    full = run({"policy": "full"})
    target = max(line["val"]["accuracy"] for line in full) - LESS
    cases = {"full": full}
    for round_time in ROUND_TIMES:
        cases[f"balanced_{round_time}"] = run({"policy": "balanced", "round_time": round_time})
    for batch, probability in CONSTANTS if data in TUNED else ():
        settings = {"policy": "constant", "batch": batch, "probability": probability}
        cases[f"constant_{batch}_{probability}"] = run(settings)
    found: dict[str, Any] = {}
    # A time is compared with that of full batches
    for name, history in cases.items():
        seconds, is_reached = time_to(target, history)
        found[name.replace(".", "_")] = {
            "seconds": seconds,
            "relative": seconds / time_to(target, full)[0],
            "reached": is_reached,
        }
        print(data, name, found[name.replace(".", "_")], file=sys.stderr)
    return {"target": target, "cases": found}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "fedgraph_balance")
    parser.add_argument(
        "--data", nargs="+", choices=DATA, default=[*DATA], help="replace these in the record"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    before = {}
    if len(options.data) < len(DATA):
        before = json.loads(options.out.read_text())["data"]
    chosen = ("cora",) if options.tiny else options.data
    found = {**before, **{data: measure(data, tiny=options.tiny) for data in chosen}}
    finish(options.out, began, load_before, {"seed": SEED, "rounds": ROUNDS, "data": found})


if __name__ == "__main__":
    main()
