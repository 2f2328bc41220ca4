"""A run in separate processes: every site's process reads its own cohort file and nothing else, the server's
reads none.

`train_in_processes` hands out the files, runs the training program of `train` in each process and puts
together what they report, as the caller of a local run gets it."""

import dataclasses
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from graphfed.experiment.train import Event, Outcome, train
from graphfed.federation import CLIENTS, SERVER, Federation, Ledger, Located
from graphfed.federation.cohort import Cohort, load_cohort, save_cohort
from graphfed.federation.payload import part_of, stack
from graphfed.federation.tape import SERVER_END
from graphfed.methods.base import Method, State, Task, TrainingConfig
from graphfed.methods.registry import get_method, register
from graphfed.runtime.processes import Sites

__all__ = ["run_site", "train_in_processes"]

PROGRAM = "graphfed.experiment.sites:run_site"


def run_site(fed: Federation, arguments: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    """One process's part of a run: plain arguments in, what this process may report out."""
    torch.set_default_dtype(getattr(torch, arguments["dtype"]))
    register(arguments["method"], arguments["module"])
    method = get_method(arguments["method"])
    config = method.config(**arguments["config"])
    cohorts = [] if arguments["data"] is None else [load_cohort(Path(arguments["data"]))]
    data = fed.locate(CLIENTS, "data", cohorts)

    def on_event(event: Event) -> None:
        tell(dataclasses.asdict(event))

    here = bool(fed.server_ends)
    outcome = train(fed, method, data, Task(**arguments["task"]), config, on_event=on_event if here else None)
    weights = fed.local_parts(outcome.weights)
    return {
        # As text: lists stay lists, and the ledger arrives as it was written.
        "outcome": json.dumps({name: getattr(outcome, name) for name in _PLAIN}) if here else None,
        "weights": _whole(weights[0], fed, outcome.weights.place) if weights else None,
        "predictions": fed.local_parts(outcome.predictions)[0] if cohorts else None,
        "ledger": json.dumps(fed.ledger.to_json()),
    }


_PLAIN = ("best_round", "rounds_run", "val", "test", "test_confusion", "seconds", "history", "details")


def _whole(weights: Any, fed: Federation, place: str) -> Any:
    """Weights as plain tensors: a host's clients' own ones in full, [K_h, ...]."""
    if place == SERVER:
        return weights
    return stack([part_of(weights, i) for i in range(len(fed.hosts[fed.here[0]]))])


def train_in_processes(
    method: Method,
    module: str,
    cohorts: Sequence[Cohort],
    task: Task,
    config: TrainingConfig,
    *,
    on_event: Callable[[Event], None] | None = None,
    sites: Sites | None = None,
) -> tuple[Outcome, Ledger]:
    """Train with one process per cohort and one for the server: what `train` gives, and the ledger of all
    places.

    `module` is where the method is registered from. `sites`: processes that already run (with these hosts);
    without it they are started for this run and stopped after it."""
    hosts = [list(c.clients) for c in cohorts]
    common = {
        "method": method.name,
        "module": module,
        "config": dataclasses.asdict(config),
        "task": dataclasses.asdict(task),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }

    def forward(event: dict[str, Any]) -> None:
        if on_event is not None:
            on_event(Event(**event))

    with tempfile.TemporaryDirectory(prefix="graphfed-") as folder:
        arguments: dict[int, Any] = {SERVER_END: {**common, "data": None}}
        for h, cohort in enumerate(cohorts):
            path = Path(folder) / f"site{h}.safetensors"
            save_cohort(cohort, path)
            arguments[h] = {**common, "data": str(path)}
        if sites is None:
            with Sites(hosts) as started:
                results = started.run(PROGRAM, arguments, on_event=forward)
        else:
            results = sites.run(PROGRAM, arguments, on_event=forward)
    at_server = results[SERVER_END]
    clients = [results[h] for h in range(len(hosts))]
    if at_server["weights"] is not None:
        weights = Located(SERVER, "weights", (at_server["weights"],))
    else:
        weights = Located(CLIENTS, "weights", tuple(r["weights"] for r in clients))
    outcome = Outcome(
        **json.loads(at_server["outcome"]),
        state=State({"weights": weights}),
        predictions=Located(CLIENTS, "predictions", tuple(r["predictions"] for r in clients)),
    )
    # The server sees everything but what clients send each other; that is in the clients' own ledgers.
    ledger = Ledger.from_json(json.loads(at_server["ledger"]))
    for r in clients:
        ledger.add_peers(Ledger.from_json(json.loads(r["ledger"])))
    return outcome, ledger
