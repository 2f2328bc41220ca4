"""Record what the attacks of `graphfed audit` find in runs of CNFGNN and FedGraph: the figures of
docs/papers.

Each case is one run with seed 0 and one check of its audit. The audit runs in this process, after the run.
The record of a method is results/audit_<method>.json."""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from measure import add_common_options, finish, load_average

import graphfed
from graphfed.audit.registry import CHECKS
from graphfed.audit.run import audit


@dataclass(frozen=True)
class Case:
    """A run and the check whose finding is recorded.

    Attributes:
        name: Of the case in the record.
        method: The method that is run.
        check: A name of `graphfed.audit.registry.CHECKS`.
        options: The arguments of `graphfed.run`.
        settings: The method's settings.
    """

    name: str
    method: str
    check: str
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


ROADS = {"data": "roads", "rounds": 5}
ROADS_SETTINGS = {"data.sensors": 60, "data.weeks": 4, "every": 12}
COARSE = {"hidden_bits": 8}
NOISE = {"clip": 1.0, "noise_multiplier": 1.0}
STRONG_NOISE = {"clip": 1.0, "noise_multiplier": 5.0}
OWN_WEIGHTS = {"strategy": "at", "data.sensors": 8, "data.weeks": 1}

#: The federation of FedGraph's Figs. 6 to 10.
CORA = {
    "data": "cora",
    "clients": 20,
    "partition": "overlapping",
    "split": "random_plain:0.6,0.2,0.2",
}
CONSTANT = {"preset": "paper", "policy": "constant"}

CASES = (
    Case("cnfgnn_roads", "cnfgnn", "cnfgnn_inputs", ROADS, ROADS_SETTINGS),
    Case("cnfgnn_8_bits", "cnfgnn", "cnfgnn_inputs", ROADS, {**ROADS_SETTINGS, **COARSE}),
    Case("cnfgnn_noise_1", "cnfgnn", "cnfgnn_inputs", ROADS, {**ROADS_SETTINGS, **NOISE}),
    Case(
        "cnfgnn_noise_1_20_rounds",
        "cnfgnn",
        "cnfgnn_inputs",
        {**ROADS, "rounds": 20},
        {**ROADS_SETTINGS, **NOISE},
    ),
    Case("cnfgnn_noise_5", "cnfgnn", "cnfgnn_inputs", ROADS, {**ROADS_SETTINGS, **STRONG_NOISE}),
    Case("cnfgnn_own_weights", "cnfgnn", "cnfgnn_inputs", ROADS, {**ROADS_SETTINGS, **OWN_WEIGHTS}),
    Case("fedgraph_10_rounds", "fedgraph", "fedgraph_embeddings", {**CORA, "rounds": 10}, CONSTANT),
    Case("fedgraph_100_rounds", "fedgraph", "fedgraph_embeddings", {**CORA, "rounds": 100}, CONSTANT),
    Case("fedgraph_300_rounds", "fedgraph", "fedgraph_embeddings", {**CORA, "rounds": 300}, CONSTANT),
    Case(
        "fedgraph_3_layers",
        "fedgraph",
        "fedgraph_embeddings",
        {**CORA, "rounds": 100},
        {**CONSTANT, "layers": 3},
    ),
    Case("fedgraph_defaults", "fedgraph", "fedgraph_embeddings", CORA),
)
TINY = (
    Case(
        "cnfgnn_roads",
        "cnfgnn",
        "cnfgnn_inputs",
        {"data": "roads", "rounds": 2},
        {"data.sensors": 6, "data.weeks": 1, "hidden": 16},
    ),
    Case(
        "fedgraph_10_rounds",
        "fedgraph",
        "fedgraph_embeddings",
        {"data": "digits", "clients": 3, "rounds": 10},
    ),
)


def measure(case: Case) -> dict[str, Any]:
    """Run a case, audit it, and return the finding of the check."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        result = graphfed.run(case.method, **case.options, settings=case.settings, out=run)
        trained = time.perf_counter()
        finding = audit(run).findings[case.check]
    print(f"{case.method}, {case.name}: {finding.result}", file=sys.stderr)
    return {
        "method": case.method,
        "check": case.check,
        "options": dict(case.options),
        "settings": dict(case.settings),
        "test": result.test,
        "value": finding.value,
        "interval": finding.interval,
        "no_signal": finding.no_signal,
        "leaks": finding.leaks,
        "details": finding.details,
        "seconds": {"run": trained - began, "audit": time.perf_counter() - trained},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method", choices=("cnfgnn", "fedgraph"))
    add_common_options(parser, "audit")
    options = parser.parse_args(arguments)
    out = (
        options.out.with_name(f"audit_{options.method}.json") if options.out.stem == "audit" else options.out
    )
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    cases = [case for case in (TINY if options.tiny else CASES) if case.method == options.method]
    assert all(case.check in CHECKS for case in cases)
    finish(out, began, load_before, {"cases": {case.name: measure(case) for case in cases}})


if __name__ == "__main__":
    main()
