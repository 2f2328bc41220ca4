"""What every process of a kit does before FLARE's program runs in it: ``python -m ...child MODULE
ARGUMENTS``.

- It ends at once when the process that started it is gone, even by kill -9. (FLARE's processes of a run look
  once a second, and then end in an orderly way that may take longer; its long-lived ones do not look.)
- At SIGTERM it takes leave of the server, then ends.
- A site's process forgets FLARE's handlers of requests that a graphfed run does not need. FLARE lets its
  server say who asks, and whether rules apply; what is not there cannot be asked for.
- TLS connections are accepted as `tls` does it.
"""

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable

from graphfed.runtime.nvflare.tls import use_tls_driver

__all__ = ["EVENTS", "KEPT_REQUESTS", "PARENT", "main", "on_stop"]

#: Environment: the process that started this one; the pipe for events, of a kit's long-lived process only.
PARENT = "GRAPHFED_SITE_PARENT"
EVENTS = "GRAPHFED_SITE_EVENTS"
#: FLARE's handlers of requests to a site's long-lived process that stay: to start, watch and end runs.
KEPT_REQUESTS = (
    "ClientStatusProcessor", "CheckResourceProcessor", "CancelResourceProcessor", "DeployProcessor",
    "StartJobProcessor", "AbortAppProcessor", "NotifyJobStatusProcessor", "DeleteRunNumberProcessor",
)  # fmt: skip
#: Those of a site's process of a run.
KEPT_COMMANDS = ("CheckStatusCommand", "AbortCommand", "AbortTaskCommand", "ByeCommand")
#: Seconds for taking leave of the server.
LEAVE = 3.0

_stoppers: list[Callable[[], object]] = []


def on_stop(act: Callable[[], object]) -> None:
    """Have something done at SIGTERM, before the process ends."""
    _stoppers.append(act)


def main() -> None:
    module = sys.argv[1]
    threading.Thread(target=_end_with, args=(int(os.environ.pop(PARENT)),), daemon=True).start()
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    use_tls_driver()
    _forget_requests()
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(*_: object) -> None:
    def leave() -> None:
        for act in _stoppers:
            act()

    thread = threading.Thread(target=leave, daemon=True)
    thread.start()
    thread.join(LEAVE)
    os._exit(0)


def _forget_requests() -> None:
    from nvflare.private.fed.client.admin_commands import AdminCommands
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    for where, what, kept in (
        (ClientRequestProcessors, "request_processors", KEPT_REQUESTS),
        (AdminCommands, "commands", KEPT_COMMANDS),
    ):
        found = {type(handler).__name__: handler for handler in getattr(where, what)}
        # A version of FLARE that names them otherwise must not run without its rules.
        missing = set(kept) - set(found)
        if missing:
            raise RuntimeError(f"this version of nvflare has no {', '.join(sorted(missing))}")
        setattr(where, what, [found[name] for name in kept])


if __name__ == "__main__":
    # Not this module's main but that of the one that others import: there is one list of what to do at
    # SIGTERM.
    from graphfed.runtime.nvflare.child import main as run

    run()
