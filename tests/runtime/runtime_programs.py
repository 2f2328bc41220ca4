"""Programs that the tests run in the processes of `Workers`, and callers that are killed while they run."""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from graphfed.errors import GraphfedError
from graphfed.federation import CLIENTS, Federation
from graphfed.federation.link import SERVER_INDEX
from graphfed.runs.checkpoint import Checkpoints, Snapshot
from graphfed.runs.processes import run_worker
from graphfed.runtime.interrupts import listening
from graphfed.runtime.processes import Workers

Log = Callable[[Any], None]

SECRET = "the salary of Alice is 5000"


def threads(fed: Federation, arguments: Any, log: Log) -> dict[str, Any]:
    return {"pid": os.getpid(), "threads": torch.get_num_threads(), "session": os.getsid(0)}


def lagging_worker(fed: Federation, arguments: Any, log: Log) -> Any:
    """Trains; the last worker stops before it saves its third round."""
    save = Checkpoints.save

    def slow(self: Checkpoints, fed: Federation, snapshot: Snapshot) -> None:
        if snapshot.number == 3:
            time.sleep(120)
        save(self, fed, snapshot)

    if list(fed.here) == [len(fed.workers) - 1]:
        Checkpoints.save = slow  # type: ignore[method-assign]
    return run_worker(fed, arguments, log)


def spin(fed: Federation, arguments: Any, log: Log) -> None:
    """Computes and logs for two minutes: far longer than any test waits."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        torch.ones(100, 100) @ torch.ones(100, 100)
        log(os.getpid())


def listens(fed: Federation, arguments: Any, log: Log) -> dict[str, bool]:
    """At the server: whether a stop request is heard within ten seconds of listening for one."""
    if not fed.server_is_here:
        return {"asked": False}
    with listening() as stop_request:
        end = time.monotonic() + 10
        while not stop_request.asked and time.monotonic() < end:
            time.sleep(0.01)
    return {"asked": stop_request.asked}


def exchange(fed: Federation, arguments: Any, log: Log) -> None:
    """Every client sends one number up; worker 0 ends its process first if asked to."""
    if arguments == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    value = fed.locate(CLIENTS, "value", [torch.ones(1) for _ in fed.here])
    fed.sum(value, name="value", grad=False)


def quotes_its_data(value: torch.Tensor, name: str) -> None:
    raise KeyError(SECRET)


def fails(fed: Federation, arguments: Any, log: Log) -> None:
    """Fails at the clients in a stage, in the phase "train" of round 7; the server waits for them."""
    value = fed.locate(CLIENTS, "value", [torch.ones(2) for _ in fed.here])
    with fed.phase("train", round_number=7):
        value = fed.clients.run(quotes_its_data, value, SECRET)
        fed.sum(value, name="value", grad=False)


def fails_outside_a_stage(fed: Federation) -> None:
    fed.ledger.round = 3
    raise ValueError(SECRET)


def refuses(fed: Federation) -> None:
    raise GraphfedError("layer 2 needs 4 heads")


def _main() -> None:
    """A caller: start two processes, run `spin`, and say on stdout when both are at it."""
    working: list[int] = []

    def on_event(pid: int) -> None:
        if pid not in working:
            working.append(pid)
            if len(working) == 2:
                print(*working, flush=True)

    with Workers([(0,)]) as sites:
        try:
            sites.run("runtime_programs:spin", {SERVER_INDEX: None, 0: None}, on_event=on_event)
        except KeyboardInterrupt:
            print("interrupted", flush=True)


if __name__ == "__main__":
    _main()
    sys.exit(130)
