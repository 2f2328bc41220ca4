"""Record the accuracy at every client's own nodes on Cora, of methods with one model and with a model for
each client: the order of FED-PUB's paper (Baek et al., ICML 2023, non-overlapping subgraphs).

As in the paper: 10 clients by METIS, 20 % of the nodes for training and 40 % each for validation and test,
and the mean over clients of the accuracy on a client's own test nodes. The settings of every method are
chosen among at most four by this mean on the validation nodes of seeds 100 and 101, and then used with seeds
0 to 2; a seed draws split and partition too. All other settings are the defaults.

A second table has the settings of the authors' program in every row: 128 hidden units, 100 rounds of one step
of Adam at every client, averages of weights, and FED-PUB with masks and a scale of 3. With one local step the
proximal term of FedProx is zero, and SCAFFOLD has gradient descent only, so both are left out."""

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from measure import add_common_options, finish, load_average

import graphfed
from graphfed.runs.run import Result

#: Of every method the settings among which validation chooses.
GRID: Mapping[str, Sequence[dict[str, Any]]] = {
    "isolated": [{"lr": lr} for lr in (0.01, 0.03)],
    "fedavg": [{"local_steps": steps} for steps in (1, 3)],
    "fedprox": [{"local_steps": 3, "mu": mu} for mu in (0.01, 0.1)],
    "scaffold": [{"local_steps": 3, "lr": lr} for lr in (0.1, 0.5, 1.0)],
    "fedpub": [
        {"similarity_scale": scale, "masks": masks} for masks in ("learned", "none") for scale in (3.0, 10.0)
    ],
}
#: The settings of the authors' program, and what the methods need in addition.
PROGRAM: Mapping[str, Any] = {
    "hidden": 128,
    "optimizer": "adam",
    "lr": 0.01,
    "weight_decay": 1e-6,
    "local_steps": 1,
    "patience": None,
}
PROGRAM_ROUNDS = 100
PROGRAM_ROWS: Mapping[str, Mapping[str, Any]] = {
    "isolated": {},
    "fedavg": {"optimizer_at": "clients"},
    "fedpub": {"similarity_scale": 3.0, "masks": "learned"},
}
METRICS = ("client_accuracy", "client_accuracy_std", "client_accuracy_min", "accuracy")


def train(method: str, settings: Mapping[str, Any], seed: int, asked: Mapping[str, Any]) -> Result:
    """Run a method."""
    return graphfed.run(method, seed=seed, settings=dict(settings), out=False, **asked)


def tested(
    method: str, settings: Mapping[str, Any], seeds: Sequence[int], asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return mean, deviation and values over seeds of every metric, in percent."""
    tests = [train(method, settings, seed, asked).test for seed in seeds]
    values = {metric: [100 * test[metric] for test in tests] for metric in METRICS}
    return {
        metric: {"mean": np.mean(found), "std": np.std(found, ddof=1), "values": found}
        for metric, found in values.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_common_options(parser, "personalised")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    began, load_before = time.perf_counter(), load_average()
    asked = {
        "data": "digits" if options.tiny else "cora",
        "clients": 10,
        "partition": "louvain" if options.tiny else "metis",
        "split": "random:0.2,0.4,0.4",
        "threads": options.threads,
        **({"rounds": 2} if options.tiny else {}),
    }
    choosing, seeds = ((100,), (0, 1)) if options.tiny else ((100, 101), (0, 1, 2))
    rows = {}
    for method, grid in GRID.items():
        tried = []
        for settings in grid:
            runs = [train(method, settings, seed, asked) for seed in choosing]
            tried.append({"settings": settings, "val": np.mean([run.val["client_accuracy"] for run in runs])})
        best = max(tried, key=lambda one: one["val"])["settings"]
        rows[method] = {"tried": tried, "settings": best, "test": tested(method, best, seeds, asked)}
    as_program = {**asked, "rounds": asked.get("rounds", PROGRAM_ROUNDS)}
    program = {}
    for method, own in PROGRAM_ROWS.items():
        settings = {**PROGRAM, **own}
        program[method] = {"settings": settings, "test": tested(method, settings, seeds, as_program)}
    content = {**asked, "choosing": choosing, "seeds": seeds, "methods": rows, "program": program}
    finish(options.out, began, load_before, content)


if __name__ == "__main__":
    main()
