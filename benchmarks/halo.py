"""Record what edges between clients are worth, and what it costs to use them exactly: accuracy, bytes and
seconds of a round of the halo exchange, FedGCN, FedAvg and training alone, with central training.

A GCN of two and of three layers with the defaults and one local step; 10 clients at random, where most edges
are between clients, and by Louvain, where few are. A seed draws split and partition too. Differences are
paired by seed, with the 95 % interval of Student's t distribution."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed
from graphfed.studies.paired import paired_difference

ROWS = ("isolated", "fedavg", "fedgcn", "halo", "central")
#: Data set, partition and number of layers.
CASES = (
    ("digits", "random", 2),
    ("digits", "random", 3),
    ("digits", "louvain", 2),
    ("social", "random", 2),
    ("cora", "random", 2),
    ("cora", "random", 3),
    ("cora", "louvain", 2),
)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "halo")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    asked = {"clients": 10, "threads": options.threads, **({"rounds": 2} if options.tiny else {})}
    seeds = (0, 1) if options.tiny else (0, 1, 2)
    cases: dict[str, Any] = {}
    for data, partition, layers in CASES[:1] if options.tiny else CASES:
        rows: dict[str, Any] = {}
        for method in ROWS:
            own = {"data": data, "partition": partition, "settings": {"layers": layers}}
            runs = [graphfed.run(method, seed=seed, out=False, **own, **asked) for seed in seeds]
            values = [100 * run.test["accuracy"] for run in runs]
            setup = mean(run.bytes["setup"] for run in runs)
            training = mean((run.bytes["total"] - run.bytes["setup"]) / run.rounds for run in runs)
            rows[method] = {
                "test": {"mean": mean(values), "values": values},
                "round_ms": 1e3 * median(run.seconds["per_round"] for run in runs),
                "setup_mb": setup / 1e6,
                "round_mb": training / 1e6,
            }
        for row in rows.values():
            difference = paired_difference(row["test"]["values"], rows["halo"]["test"]["values"])
            row["over_halo"] = None if difference is None else asdict(difference)
        cases[f"{data}_{partition}_{layers}"] = rows
        print(data, partition, layers, {name: round(row["test"]["mean"], 1) for name, row in rows.items()})
    finish(options.out, began, load_before, {**asked, "seeds": seeds, "cases": cases})


if __name__ == "__main__":
    main()
