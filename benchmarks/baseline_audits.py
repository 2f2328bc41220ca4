"""Record what the attacks of `graphfed audit` find in runs of the baselines, of FedGCN and of Lumos.

Cora with 10 clients (`label_dirichlet`, beta 10000), preset=paper, seed 0: 100 rounds of 3 local steps. Lumos
runs on a generated graph of 300 clients, for several numbers of rounds. The record contains the value of each
finding, its interval, and the details that are numbers."""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed
from graphfed.audit.run import audit

CHECKS = ("membership", "label_histogram", "fedgcn_features", "lumos_features")
ROUNDS_OF_LUMOS = (2, 10, 20)


def cases(tiny: bool) -> dict[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Return by name the method, the options of the run and the settings of the method."""
    cora: dict[str, Any] = {"data": "digits", "rounds": 2} if tiny else {"data": "cora"}
    cora |= {"clients": 10, "partition": "label_dirichlet"}
    paper = {"preset": "paper", "partition.beta": 10000}
    found: dict[str, Any] = {name: (name, cora, paper) for name in ("isolated", "fedavg")}
    found["central"] = ("central", {**cora, "clients": 1, "partition": None}, {"preset": "paper"})
    for hops in (1, 2):
        found[f"fedgcn_{hops}"] = ("fedgcn", cora, {**paper, "hops": hops})
    found["fedgcn_2_three_clients"] = ("fedgcn", {**cora, "clients": 3}, {**paper, "hops": 2})
    social = {"data": "social", "split": "random:0.5,0.25,0.25"}
    small = {"data.num_nodes": 60 if tiny else 300}
    for rounds in ROUNDS_OF_LUMOS:
        found[f"lumos_{rounds}"] = ("lumos", {**social, "rounds": rounds}, {**small, "epsilon": 2})
    return found


def audited(method: str, options: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Run a method, audit the run, and return its settings and the findings of the checks that apply.

    Args:
        method: The method that is run.
        options: Options of `graphfed.run`.
        settings: The method's settings.
    """
    given = {key: value for key, value in options.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        graphfed.run(method, **given, seed=0, settings=dict(settings), out=out)
        findings = audit(out).findings
    kept = {}
    for name in CHECKS:
        if name in findings:
            found = findings[name]
            details = {key: value for key, value in found.details.items() if isinstance(value, int | float)}
            kept[name] = {"value": found.value, "interval": found.interval, "details": details}
    return {"method": method, **given, "settings": dict(settings), **kept}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "baseline_audits")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    found = {}
    for name, case in cases(options.tiny).items():
        found[name] = audited(*case)
        print(name, {check: found[name][check] for check in CHECKS if check in found[name]}, file=sys.stderr)
    finish(options.out, began, load_before, {"cases": found})


if __name__ == "__main__":
    main()
