"""Prepares every process of a startup kit for FLARE's program: ``python -m ...child MODULE ARGUMENTS``.

- The process ends at once when the process that started it is gone, even after kill -9. (FLARE's processes of
  a run check this once a second, and then end in order, which may take longer; its long-lived processes do
  not check it.)
- At SIGTERM it logs out from the server and ends.
- A site's process removes FLARE's handlers of requests that graphfed does not need. FLARE trusts its server
  to say who makes a request and whether rules apply; a handler that is missing cannot be misused.
- TLS connections are made as `tls` defines.
"""

import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable

from graphfed.runtime.nvflare.tls import use_tls_driver

#: Environment variables: the process that started this one, and the pipe for events of the long-lived
#: process.
PARENT = "GRAPHFED_SITE_PARENT"
EVENTS = "GRAPHFED_SITE_EVENTS"
#: The handlers of a site's long-lived process that stay: those that start, watch and end runs.
KEPT_REQUESTS = (
    "ClientStatusProcessor", "CheckResourceProcessor", "CancelResourceProcessor", "DeployProcessor",
    "StartJobProcessor", "AbortAppProcessor", "NotifyJobStatusProcessor", "DeleteRunNumberProcessor",
)  # fmt: skip
#: The handlers of a site's process of a run that stay.
KEPT_COMMANDS = ("CheckStatusCommand", "AbortCommand", "AbortTaskCommand", "ByeCommand")
#: Seconds for logging out from the server.
LOGOUT = 3.0

_stoppers: list[Callable[[], object]] = []


def on_stop(act: Callable[[], object]) -> None:
    """Register a function to call at SIGTERM, before the process ends."""
    _stoppers.append(act)


def main() -> None:
    """Prepare this process, and run the module that its command line names."""
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
    def log_out() -> None:
        for act in _stoppers:
            act()

    thread = threading.Thread(target=log_out, daemon=True)
    thread.start()
    thread.join(LOGOUT)
    os._exit(0)


def _forget_requests() -> None:
    from nvflare.private.fed.client.admin_commands import AdminCommands
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    for owner, attribute, names in (
        (ClientRequestProcessors, "request_processors", KEPT_REQUESTS),
        (AdminCommands, "commands", KEPT_COMMANDS),
    ):
        found = {type(handler).__name__: handler for handler in getattr(owner, attribute)}
        # A version of FLARE with other names must not run with all of its handlers.
        missing = set(names) - set(found)
        if missing:
            raise RuntimeError(f"this version of nvflare has no {', '.join(sorted(missing))}")
        setattr(owner, attribute, [found[name] for name in names])


if __name__ == "__main__":
    # The imported module has the list of functions for SIGTERM, so its `main` must run, not that of __main__.
    from graphfed.runtime.nvflare.child import main as run

    run()
