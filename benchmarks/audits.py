"""What the attacks of `graphfed audit` find: the figures on the pages of audit, security and the papers.

A case is one run with seed 0 and the checks of its audit; both run in this process. The cases are in six
groups, each with its own record:

    baselines   baselines, FedGCN and Lumos. Cora with 10 clients (`label_dirichlet`, beta 10000) and
                preset=paper: 100 rounds of 3 local steps. Lumos has a generated graph of 300 clients, and
                several numbers of rounds
    messages    SAPGNN, PPGNN, FedGAT and FedGAT on noised features, one round: the attacks on split learning
                and on the message before training need no more. FedGAT's clients are evaluated directly,
                because the attack computes the message again
    sums        exact attention from sums, one round: the attack repeats one evaluation; and FedGAT with
                later=exchange on the same partition
    sum_rounds  the same method with all rounds of its defaults: the attacks on scores and sums of many rounds
    cnfgnn      CNFGNN on `roads`
    fedgraph    FedGraph on Cora with 20 clients, as in the paper's Figs. 6 to 10
"""

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

#: Details with a row for each client, which are not recorded.
LONG_DETAILS = ("estimate", "truth")


@dataclass(frozen=True)
class Case:
    """A run and the checks whose findings are recorded.

    Attributes:
        name: The case's name in the record.
        method: The method that is run.
        checks: Names of `graphfed.audit.registry.CHECKS`; those that apply to the run are recorded.
        options: The arguments of `graphfed.run`.
        settings: The settings of the run.
    """

    name: str
    method: str
    checks: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


# ---- baselines, FedGCN and Lumos ---------------------------------------------------------------------------

BASELINE_CHECKS = ("membership", "label_histogram", "fedgcn_features", "lumos_features")
ROUNDS_OF_LUMOS = (2, 10, 20)
SOCIAL = {"data": "social", "split": "random:0.5,0.25,0.25"}


def baseline_cases(tiny: bool) -> list[Case]:
    """Return the cases of the group `baselines`."""
    cora: dict[str, Any] = {"data": "digits", "rounds": 2} if tiny else {"data": "cora"}
    cora |= {"clients": 10, "partition": "label_dirichlet"}
    central = {key: value for key, value in cora.items() if key != "partition"} | {"clients": 1}
    paper = {"preset": "paper", "partition.beta": 10000}
    cases = [Case(name, name, BASELINE_CHECKS, cora, paper) for name in ("isolated", "fedavg")]
    cases.append(Case("central", "central", BASELINE_CHECKS, central, {"preset": "paper"}))
    cases += [
        Case(f"fedgcn_{hops}", "fedgcn", BASELINE_CHECKS, cora, {**paper, "hops": hops}) for hops in (1, 2)
    ]
    three = {**cora, "clients": 3}
    cases.append(Case("fedgcn_2_three_clients", "fedgcn", BASELINE_CHECKS, three, {**paper, "hops": 2}))
    lumos = {"data.num_nodes": 60 if tiny else 300, "epsilon": 2}
    return cases + [
        Case(f"lumos_{rounds}", "lumos", BASELINE_CHECKS, {**SOCIAL, "rounds": rounds}, lumos)
        for rounds in ROUNDS_OF_LUMOS
    ]


# ---- split learning and the message of FedGAT --------------------------------------------------------------

#: Clients that all have all nodes and divide the edges.
EDGES = {"clients": 3, "partition": "edges_uniform", "rounds": 1}
#: Clients that divide the nodes, nearly evenly in every class.
EVEN = {"clients": 10, "partition": "label_dirichlet", "rounds": 1}
MESSAGE = {"partition.beta": 10000, "evaluation": "direct"}
SPLIT_CHECKS = ("split_features", "split_labels")
#: Budgets of `fedgat_ldp`, by their part of a case's name.
EPSILONS = {"0_01": 0.01, "1": 1, "8": 8, "64": 64, "1000": 1000}


def message_cases(tiny: bool) -> list[Case]:
    """Return the cases of the group `messages`."""
    data: dict[str, Any] = SOCIAL if tiny else {"data": "cora"}
    small: dict[str, Any] = {"data.num_nodes": 60} if tiny else {}
    edges = {**data, **EDGES}
    even = {**data, **EVEN, **({"clients": 3} if tiny else {})}
    message = {**small, **MESSAGE}
    cases = [
        Case("sapgnn_cora", "sapgnn", SPLIT_CHECKS, edges, small),
        Case("sapgnn_cora_raw", "sapgnn", SPLIT_CHECKS, edges, {**small, "features": "raw"}),
        Case("sapgnn_digits", "sapgnn", SPLIT_CHECKS, {"data": "digits", **EDGES}),
        Case("sapgnn_identity", "sapgnn", SPLIT_CHECKS, edges, {**small, "maps": "identity"}),
        Case("sapgnn_server", "sapgnn", SPLIT_CHECKS, edges, {**small, "predictor": "server"}),
        Case("ppgnn_cora", "ppgnn", ("split_labels",), edges, small),
    ]
    for form in ("vector", "matrix"):
        cases.append(Case(f"fedgat_{form}", "fedgat", ("fedgat_features",), even, {**message, "form": form}))
    dropped = {**message, "drop_single": True}
    cases.append(Case("fedgat_drop_single", "fedgat", ("fedgat_features",), even, dropped))
    for steps in (0, 8):
        for part, epsilon in EPSILONS.items():
            name = f"fedgat_ldp_k{steps}_epsilon_{part}"
            settings = {**message, "k_x": steps, "epsilon": epsilon}
            cases.append(Case(name, "fedgat_ldp", ("fedgat_ldp_features",), even, settings))
    return cases


def sums_cases(tiny: bool) -> list[Case]:
    """Return the cases of the group `sums`."""
    data: dict[str, Any] = SOCIAL if tiny else {"data": "cora"}
    options = {**data, **EVEN, **({"clients": 3} if tiny else {})}
    shared: dict[str, Any] = {"partition.beta": 10000, **({"data.num_nodes": 60} if tiny else {})}
    exchanged = {**shared, "evaluation": "direct", "later": "exchange"}
    cases = [Case("fedgat_exchange", "fedgat", ("fedgat_features",), options, exchanged)]
    return cases + [
        Case(
            f"{exchange}_{least}",
            "attention_sums",
            ("neighbour_sums",),
            options,
            {**shared, "exchange": exchange, "min_group": least},
        )
        for exchange in ("plaintext", "secure")
        for least in (1, 2)
    ]


def sum_rounds_cases(tiny: bool) -> list[Case]:
    """Return the cases of the group `sum_rounds`."""
    options: dict[str, Any] = {**(SOCIAL if tiny else {"data": "cora"}), "clients": 3 if tiny else 10}
    shared: dict[str, Any] = {"data.num_nodes": 60} if tiny else {}
    options |= {"partition": "label_dirichlet", **({"rounds": 3} if tiny else {})}
    shared |= {"partition.beta": 10000}
    checks = ("neighbour_scores", "neighbour_sums")
    hidden = {"exchange": "secure", "aggregation": "secure", "min_group": 2}
    few_features = options if tiny else {**options, "data": "digits"}
    return [
        Case("plaintext", "attention_sums", checks, options, shared),
        Case("digits", "attention_sums", checks, few_features, {**shared, "min_group": 2}),
        Case("secure", "attention_sums", checks, options, {**shared, **hidden}),
    ]


# ---- CNFGNN and FedGraph -----------------------------------------------------------------------------------

CNFGNN_CHECKS = ("cnfgnn_inputs",)
ROADS = {"data": "roads", "rounds": 5}
ROADS_SETTINGS = {"data.sensors": 60, "data.weeks": 4, "every": 12, "client_state": "reset"}


def cnfgnn_cases(tiny: bool) -> list[Case]:
    """Return the cases of the group `cnfgnn`."""
    if tiny:
        settings: dict[str, Any] = {"data.sensors": 6, "data.weeks": 1, "hidden": 16}
        return [Case("cnfgnn_roads", "cnfgnn", CNFGNN_CHECKS, {**ROADS, "rounds": 2}, settings)]

    def case(name: str, settings: Mapping[str, Any], **options: Any) -> Case:
        return Case(name, "cnfgnn", CNFGNN_CHECKS, {**ROADS, **options}, {**ROADS_SETTINGS, **settings})

    noise = {"clip": 1.0, "noise_multiplier": 1.0}
    return [
        case("cnfgnn_roads", {}),
        case("cnfgnn_8_bits", {"hidden_bits": 8}),
        case("cnfgnn_noise_1", noise),
        case("cnfgnn_noise_1_20_rounds", noise, rounds=20),
        case("cnfgnn_noise_5", {**noise, "noise_multiplier": 5.0}),
        case("cnfgnn_own_weights", {"strategy": "at", "data.sensors": 8, "data.weeks": 1}),
    ]


FEDGRAPH_CHECKS = ("fedgraph_embeddings",)
#: The federation of FedGraph's Figs. 6 to 10.
FEDGRAPH = {"data": "cora", "clients": 20, "partition": "overlapping", "split": "random_plain:0.6,0.2,0.2"}
CONSTANT = {"preset": "paper", "policy": "constant"}


def fedgraph_cases(tiny: bool) -> list[Case]:
    """Return the cases of the group `fedgraph`."""
    if tiny:
        options = {"data": "digits", "clients": 3, "rounds": 10}
        return [Case("fedgraph_10_rounds", "fedgraph", FEDGRAPH_CHECKS, options)]
    cases = [
        Case(
            f"fedgraph_{rounds}_rounds", "fedgraph", FEDGRAPH_CHECKS, {**FEDGRAPH, "rounds": rounds}, CONSTANT
        )
        for rounds in (10, 100, 300)
    ]
    options, settings = {**FEDGRAPH, "rounds": 100}, {**CONSTANT, "layers": 3}
    cases.append(Case("fedgraph_3_layers", "fedgraph", FEDGRAPH_CHECKS, options, settings))
    cases.append(Case("fedgraph_defaults", "fedgraph", FEDGRAPH_CHECKS, FEDGRAPH))
    return cases


# ---- running them ------------------------------------------------------------------------------------------

#: The cases of each group, and the name of its record.
GROUPS = {
    "baselines": (baseline_cases, "baseline_audits"),
    "messages": (message_cases, "audits"),
    "sums": (sums_cases, "audit_sums"),
    "sum_rounds": (sum_rounds_cases, "audit_sum_rounds"),
    "cnfgnn": (cnfgnn_cases, "audit_cnfgnn"),
    "fedgraph": (fedgraph_cases, "audit_fedgraph"),
}
#: Groups whose cases have one check: its finding is not under the check's name, but in the case itself.
ONE_CHECK = ("sums", "cnfgnn", "fedgraph")


def measure(case: Case) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Run a case and audit it.

    Args:
        case: The case.

    Returns:
        What was run, and the findings of its checks by name.
    """
    assert all(check in CHECKS for check in case.checks)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        result = graphfed.run(case.method, **case.options, seed=0, settings=dict(case.settings), out=out)
        trained = time.perf_counter()
        checks = {check["check"]: check for check in audit(out).to_json()["checks"]}
    seconds = {"run": trained - began, "audit": time.perf_counter() - trained}
    found = {check: checks[check] for check in case.checks if check in checks}
    for check, finding in found.items():
        print(f"{case.name}, {check}: {finding['result']}", file=sys.stderr, flush=True)
        for name in LONG_DETAILS:
            finding["details"].pop(name, None)
    run = {
        "method": case.method,
        "options": dict(case.options),
        "settings": dict(case.settings),
        "test": result.test,
        "seconds": seconds,
    }
    return run, found


def record_of(case: Case, *, one_check: bool) -> dict[str, Any]:
    """Return a case's entry in the record."""
    run, findings = measure(case)
    if not one_check:
        return run | findings
    (finding,) = findings.values()
    return run | finding


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("group", choices=GROUPS)
    add_common_options(parser, "audits")
    options = parser.parse_args(arguments)
    make_cases, record = GROUPS[options.group]
    # Without --out, the record of the group.
    out = options.out.with_name(f"{record}.json") if options.out == parser.get_default("out") else options.out
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    one_check = options.group in ONE_CHECK
    cases = {case.name: record_of(case, one_check=one_check) for case in make_cases(options.tiny)}
    finish(out, began, load_before, {"cases": cases})


if __name__ == "__main__":
    main()
