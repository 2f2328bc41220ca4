"""A run in separate processes: one for the server, and one for each worker, which computes for some clients.

A worker reads the data of its clients from a file and nothing else. The server reads no data, except the
network of the sensors in forecasting. `train_in_processes` writes the files, runs the training program of
`train` in each process, and combines what they report, as the caller of a local run receives it.
"""

import contextlib
import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from graphfed.federation import CLIENTS, SERVER, Federation, Ledger, Located
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.payload import Payload, part_of, stack
from graphfed.federation.series import Network
from graphfed.files import JsonObject
from graphfed.methods.base import Method, State, Task
from graphfed.methods.common import feature_transform
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method, plugins_of
from graphfed.plugins import load_plugins
from graphfed.runs.checkpoint import Checkpoints
from graphfed.runs.train import Event, train
from graphfed.runtime.interrupts import Interrupted, StopRequest, listening
from graphfed.runtime.processes import Workers
from graphfed.tasks.inputs import Inputs, WorkerPart
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig

T = TypeVar("T")

PROGRAM = "graphfed.runs.processes:run_worker"


def run_worker(fed: Federation, arguments: JsonObject, log: Callable[[JsonObject], None]) -> JsonObject:
    """Run one process's part of a run.

    `arguments` are plain values: method, plugins, config, task, checkpoints, dtype and the path of the data.
    """
    torch.set_default_dtype(getattr(torch, arguments["dtype"]))
    kind = get_task(arguments["task"]["name"]).data
    load = kind.load if fed.here else kind.load_server
    # The file is removed once it is read, so no raw data stays on the disk if the caller is killed.
    data_here = [] if arguments["data"] is None else [_read_once(Path(arguments["data"]), load)]
    # The method may come from a plug-in, which this process has not loaded yet.
    load_plugins(arguments["plugins"])
    method = get_method(arguments["method"])
    config = method.configure(arguments["config"], {})
    data = kind.located(fed, *((data_here, []) if fed.here else ([], data_here)))

    def on_event(event: Event) -> None:
        log(dataclasses.asdict(event))

    here = fed.server_is_here
    try:
        # The caller passes the request to stop on to the server's process only.
        with listening() if here else contextlib.nullcontext(StopRequest()) as stop_request:
            checkpoints = None
            if arguments["checkpoints"] is not None:
                folder, every, start = arguments["checkpoints"]
                checkpoints = Checkpoints(Path(folder), every=every, start=start, stop_request=stop_request)
            outcome = train(
                fed,
                method,
                data,
                Task(**{**arguments["task"], "filled": tuple(arguments["task"]["filled"])}),
                config,
                on_event=on_event if here else None,
                checkpoints=checkpoints,
            )
    except Interrupted as stopped:
        return {"interrupted": str(stopped)}
    # With predictions and weights of all clients: the caller has partitioned the data on this machine in the
    # first place, so these are not transfers and not on the ledger. In a deployment they stay at the sites.
    return part_of_run(fed, method, outcome)


def part_of_run(fed: Federation, method: Method, outcome: Outcome) -> JsonObject:
    """Return what this process has of a run that has ended, as a payload.

    It has the outcome if the server is here, this process's part of the model, its predictions (rows [n],
    logits [n, C]), its clients' statistics, the transform of their features and its ledger.
    """
    model = {name: outcome.state.values[name] for name in method.state.model}
    # As text: lists stay lists, and the ledger arrives as it was written.
    plain = json.dumps({name: getattr(outcome, name) for name in _PLAIN})
    return {
        "outcome": plain if fed.server_is_here else None,
        "model": {
            name: _whole(value, fed, name in method.state.replicated)
            for name, value in model.items()
            if value.parts
        },
        "predictions": fed.local_parts(outcome.predictions)[0] if fed.here else None,
        "client_statistics": None
        if outcome.client_statistics is None or not fed.here
        else fed.local_parts(outcome.client_statistics)[0],
        "transform": feature_transform.to_message(outcome.transform),
        "ledger": json.dumps(fed.ledger.to_json()),
    }


_PLAIN = ("best_round", "rounds_run", "val", "test", "test_confusion", "seconds", "history", "details")


def _read_once(path: Path, load: Callable[[Path], T]) -> T:
    """Read a process's data from its file, which is removed even if it cannot be read."""
    try:
        return load(path)
    finally:
        path.unlink(missing_ok=True)


def _whole(value: Located[Payload], fed: Federation, replicated: bool) -> Payload:
    """Return this process's part of a model's value as plain tensors; a worker's clients have [K_h, ...]."""
    (weights,) = fed.local_parts(value)
    if value.place == SERVER or replicated:
        return weights
    each: list[Payload] = [part_of(weights, i) for i in range(len(fed.workers[fed.here[0]]))]
    return stack(each)


def train_run(
    config: RunConfig,
    inputs: Inputs,
    parts: Sequence[WorkerPart],
    folder: Path | None,
    *,
    start: int | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[Outcome, Ledger]:
    """Train a run with one process for each worker: what `runs.run` calls for runtime=processes.

    Checkpoints go to `folder`; None keeps none. `start` is the round to go on from; None for the beginning.
    """
    return train_in_processes(
        config.method,
        parts,
        inputs.task(config.task),
        config.settings,
        of_server=inputs.part_of_server(config),
        on_event=on_event,
        threads=config.client_threads,
        checkpoints=None if folder is None else (folder, config.checkpoint_every, start),
    )


def train_in_processes(
    method: Method,
    parts: Sequence[WorkerPart],
    task: Task,
    config: Any,
    *,
    of_server: Network | None = None,
    on_event: Callable[[Event], None] | None = None,
    running: Workers | None = None,
    threads: int = 1,
    checkpoints: tuple[Path, float, int | None] | None = None,
) -> tuple[Outcome, Ledger]:
    """Train with one process for each worker and one for the server.

    The raw data is in a private temporary folder from the moment when every process is started until each
    worker has read its own file.

    Args:
        parts: The data of each worker's clients (a `Cohort` or a `Series`).
        running: Processes that already run with these workers. Without them processes are started for this
            run and stopped after it.
        checkpoints: The folder, the seconds between checkpoints, and the round to go on from (None: the
            beginning), as in `Checkpoints`; None to keep none.

    Raises:
        Interrupted: SIGINT or SIGTERM came during training, after every process has saved.
    """
    kind, workers = get_task(task.name).data, [list(part.clients) for part in parts]
    common = {
        "method": method.name,
        "plugins": [plugin.to_json() for plugin in plugins_of(method, config)],
        "config": method.tree.listed(config),
        "task": dataclasses.asdict(task),
        "checkpoints": None if checkpoints is None else [str(checkpoints[0].resolve()), *checkpoints[1:]],
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }

    def forward(event: JsonObject) -> None:
        if on_event is not None:
            on_event(Event(**event))

    with contextlib.ExitStack() as stack:
        if running is None:
            running = stack.enter_context(Workers(workers, threads=threads))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="graphfed-"))
        arguments = {SERVER_INDEX: {**common, "data": None}}
        if kind.server_has_data:
            path = Path(folder) / "server.safetensors"
            kind.save_server(of_server, path)
            arguments[SERVER_INDEX] = {**common, "data": str(path)}
        for h, part in enumerate(parts):
            path = Path(folder) / f"worker{h}.safetensors"
            kind.save(part, path)
            arguments[h] = {**common, "data": str(path)}
        # Without checkpoints a signal ends the run at once, because there is nothing to save.
        saves = checkpoints is not None
        with listening(running.interrupt) if saves else contextlib.nullcontext():
            results = running.run(PROGRAM, arguments, simulated=is_simulated(config), on_event=forward)
    for result in results.values():
        if "interrupted" in result:
            raise Interrupted(result["interrupted"])
    return put_together(method, results)


def put_together(method: Method, parts: Mapping[int, JsonObject]) -> tuple[Outcome, Ledger]:
    """Combine what `part_of_run` returned, by participant, as `train` returns it, with the ledger of all
    places.
    """
    at_server = parts[SERVER_INDEX]
    clients = [parts[h] for h in sorted(parts) if h != SERVER_INDEX]
    values = {
        name: Located(SERVER, name, (at_server["model"][name],))
        if name in at_server["model"]
        else Located(CLIENTS, name, tuple(r["model"][name] for r in clients))
        for name in method.state.model
    }
    outcome = Outcome(
        **json.loads(at_server["outcome"]),
        state=State(values),
        predictions=Located(CLIENTS, "predictions", tuple(r["predictions"] for r in clients)),
        client_statistics=None
        if method.client_statistics is None
        else Located(CLIENTS, "client_statistics", tuple(r["client_statistics"] for r in clients)),
        transform=feature_transform.from_message(clients[0]["transform"]),  # the same at all clients
    )
    # The server sees everything but what clients send each other; that is in the clients' own ledgers.
    ledger = Ledger.from_json(json.loads(at_server["ledger"]))
    for r in clients:
        ledger.add_remote(Ledger.from_json(json.loads(r["ledger"])))
    return outcome, ledger
