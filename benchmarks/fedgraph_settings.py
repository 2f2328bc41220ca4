"""Measure how two settings change FedGraph's accuracy: the degrees of the first layer, and FastGCN's draws.

The federation is that of the reproduction (`graphfed reproduce fedgraph fig10_disjoint`, fig7): 20 clients,
300 rounds, the paper's settings, one partition and one split, full batches. The seeds change the weights and
the dropout."""

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed

SEEDS = (0, 1, 2)
OPTIONS = {"clients": 20, "partition": "overlapping", "split": "random_plain:0.6,0.2,0.2", "rounds": 300}
TINY = {"data": "digits", "clients": 3, "partition": "overlapping", "rounds": 3}
PAPER = {"preset": "paper", "partition_seed": 0, "split_seed": 0}
ONE_COPY = {"partition.copies": "one"}
ALL, INTERNAL = {"first_degrees": "all"}, {"first_degrees": "internal"}


@dataclass(frozen=True)
class Case:
    """Runs of one case of the record.

    Attributes:
        name: Of the case in the record.
        data: The data set.
        settings: In addition to those of the paper.
    """

    name: str
    data: str
    settings: Mapping[str, Any]


CASES = (
    Case("cora_one_copy_all", "cora", {**ONE_COPY, **ALL}),
    Case("cora_one_copy_internal", "cora", {**ONE_COPY, **INTERNAL}),
    Case("cora_copies_all", "cora", ALL),
    Case("cora_copies_internal", "cora", INTERNAL),
    Case("dblp_one_copy_all", "dblp", {**ONE_COPY, **ALL}),
    Case("dblp_one_copy_internal", "dblp", {**ONE_COPY, **INTERNAL}),
    Case("fastgcn_256", "cora", {**ALL, "policy": "fastgcn"}),
    Case("fastgcn_1024", "cora", {**ALL, "policy": "fastgcn", "layer_size": 1024}),
)


def measure(case: Case, *, tiny: bool) -> dict[str, Any]:
    """Return the test accuracy of a case in percent, by seed."""
    options = {**OPTIONS, "data": case.data, **(TINY if tiny else {})}
    found = []
    for seed in SEEDS[:1] if tiny else SEEDS:
        settings = {**PAPER, **case.settings}
        if tiny:
            settings.pop("preset")
        found.append(
            100
            * graphfed.run("fedgraph", seed=seed, settings=settings, out=False, **options).test["accuracy"]
        )
    print(f"{case.name}: {statistics.mean(found):.2f}", file=sys.stderr)
    spread = statistics.stdev(found) if len(found) > 1 else None
    return {
        "data": options["data"],
        "settings": dict(case.settings),
        "accuracy": {"mean": statistics.mean(found), "std": spread, "values": found},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "fedgraph_settings")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    cases = {case.name: measure(case, tiny=options.tiny) for case in CASES}
    finish(options.out, began, load_before, {"cases": cases})


if __name__ == "__main__":
    main()
