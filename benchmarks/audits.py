"""Record what the attacks of `graphfed audit` find in runs of one round.

Every case is a run with seed 0 and the checks of its method. The attacks on split learning and on FedGAT's
message before training need only one round. FedGAT runs with `evaluation=direct`, because the attack
computes the message again."""

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

#: Holders of all nodes that share the edges.
HOLDERS = {"clients": 3, "partition": "edges_uniform"}
#: Clients with nodes of their own, nearly even in every class.
EVEN = {"clients": 10, "partition": "label_dirichlet"}
MESSAGE = {"partition.beta": 10000, "evaluation": "direct"}
SPLIT_CHECKS = ("split_features", "split_labels")
#: Budgets of `fedgat_ldp`, with their part of a case's name.
EPSILONS = {"0_01": 0.01, "1": 1, "8": 8, "64": 64, "1000": 1000}


def cases(tiny: bool) -> dict[str, tuple[str, Sequence[str], Mapping[str, Any], Mapping[str, Any]]]:
    """Return by name the method, the checks, the options of the run and the settings of the method."""
    cora: dict[str, Any] = {"data": "social" if tiny else "cora"}
    if tiny:
        cora["split"] = "random:0.5,0.25,0.25"
    small: dict[str, Any] = {"data.num_nodes": 60} if tiny else {}
    even = {**cora, **EVEN, **({"clients": 3} if tiny else {})}
    found: dict[str, Any] = {
        "sapgnn_cora": ("sapgnn", SPLIT_CHECKS, {**cora, **HOLDERS}, small),
        "sapgnn_cora_raw": ("sapgnn", SPLIT_CHECKS, {**cora, **HOLDERS}, {**small, "features": "raw"}),
        "sapgnn_digits": ("sapgnn", SPLIT_CHECKS, {"data": "digits", **HOLDERS}, {}),
        "sapgnn_identity": ("sapgnn", SPLIT_CHECKS, {**cora, **HOLDERS}, {**small, "maps": "identity"}),
        "sapgnn_server": ("sapgnn", SPLIT_CHECKS, {**cora, **HOLDERS}, {**small, "predictor": "server"}),
        "ppgnn_cora": ("ppgnn", ("split_labels",), {**cora, **HOLDERS}, small),
    }
    for form in ("vector", "matrix"):
        settings = {**small, **MESSAGE, "form": form}
        found[f"fedgat_{form}"] = ("fedgat", ("fedgat_features",), even, settings)
    settings = {**small, **MESSAGE, "drop_single": True}
    found["fedgat_drop_single"] = ("fedgat", ("fedgat_features",), even, settings)
    for steps in (0, 8):
        for name, epsilon in EPSILONS.items():
            settings = {**small, **MESSAGE, "k_x": steps, "epsilon": epsilon}
            found[f"fedgat_ldp_k{steps}_epsilon_{name}"] = (
                "fedgat_ldp",
                ("fedgat_ldp_features",),
                even,
                settings,
            )
    return found


def audited(
    method: str, checks: Sequence[str], options: Mapping[str, Any], settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the finding of each check in a run of one round, and the settings of the run."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        graphfed.run(method, **options, rounds=1, out=out, settings=dict(settings))
        found = audit(out).to_json()
    by_name = {check["check"]: check for check in found["checks"]}
    return {
        "method": method,
        **options,
        "settings": dict(settings),
        **{name: by_name[name] for name in checks},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "audits")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    found = {}
    for name, case in cases(options.tiny).items():
        found[name] = audited(*case)
        told = [found[name][check]["result"] for check in case[1]]
        print(f"{name}: {'; '.join(told)}", file=sys.stderr, flush=True)
    finish(options.out, began, load_before, {"cases": found})


if __name__ == "__main__":
    main()
