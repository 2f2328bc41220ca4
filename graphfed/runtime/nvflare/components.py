"""Our components in FLARE's long-lived processes, which resources.json of a startup kit names.

Only FLARE imports this file, in the processes that `process.run_parent` starts.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from nvflare.apis.app_validation import AppValidator
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.job_launcher_spec import JobProcessArgs
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle, ProcessJobLauncher
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.endpoint import EndpointState
from nvflare.utils.job_launcher_utils import get_client_job_args, get_credential_env, get_server_job_args

from graphfed.files import JsonObject
from graphfed.runtime.nvflare.admission import refuse_copies
from graphfed.runtime.nvflare.child import EVENTS, PARENT, on_stop
from graphfed.runtime.nvflare.place import this_place
from graphfed.runtime.nvflare.rules import job_error
from graphfed.runtime.nvflare.startup_kits import load_startup_kit

if TYPE_CHECKING:
    from nvflare.private.fed.client.fed_client import FederatedClient
    from nvflare.private.fed.server.fed_server import FederatedServer

#: Seconds between two checks of the connections.
INTERVAL = 0.5
#: Seconds for the first connection before a failure is reported.
FIRST = 5.0
#: Seconds after which a missing connection is reported again.
AGAIN = 10.0


class JobValidator(AppValidator):  # type: ignore[misc]
    """Refuses a job that contains anything but a configuration (`rules.job_error`)."""

    def validate(self, app_folder: str) -> tuple[str, JsonObject]:
        """Return why the app of a job is refused, or "", as FLARE asks for it."""
        return job_error(Path(app_folder)), {}


class _Launcher(ProcessJobLauncher):  # type: ignore[misc]
    """Starts the process of a run.

    It differs from FLARE's launcher in three ways: the process starts through `child`, its arguments are a
    list instead of a line that is split again, and the job's folder of code is not on the path.
    """

    names: list[str]

    def launch_job(self, job_meta: JsonObject, fl_ctx: FLContext) -> ProcessHandle:
        """Start the process of a run, with the arguments in FLARE's context."""
        given = fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS)
        command = [sys.executable, "-P", "-m", "graphfed.runtime.nvflare.child", given["exe_module"][1]]
        for name in self.names:
            if name in given:
                option, value = given[name]
                command += [option, *(str(value).split() if name == JobProcessArgs.OPTIONS else [str(value)])]
        environment = {**os.environ, **get_credential_env(given), PARENT: str(os.getpid())}
        # The child does not inherit the pipe, and its number may belong to another file there.
        environment.pop(EVENTS, None)
        # The process gets a group of its own, because FLARE ends a run by killing the group.
        return ProcessHandle(process=subprocess.Popen(command, env=environment, start_new_session=True))

    def get_command(self, job_meta: JsonObject, fl_ctx: FLContext) -> str:
        """Raise NotImplementedError: `launch_job` does not use a command line."""
        raise NotImplementedError("launch_job makes the command")


class SiteLauncher(_Launcher):
    names = get_client_job_args(include_exe_module=False)


class ServerLauncher(_Launcher):
    names = get_server_job_args(include_exe_module=False)


class Events(FLComponent):  # type: ignore[misc]
    """Reports events to `process.run_parent` through a pipe, as one JSON list per line."""

    def __init__(self) -> None:
        super().__init__()
        self._pipe = int(os.environ.get(EVENTS, "-1"))
        if self._pipe >= 0:  # before FLARE makes or takes connections
            startup_kit = load_startup_kit(this_place().startup_kit)
            sites = [site.name for site in startup_kit.project.sites] if startup_kit.kind == "server" else []
            refuse_copies(
                sites,
                lambda *names: self._log("copy", " ".join(names)),
                lambda: self._log("refused", ""),
            )

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if self._pipe < 0:  # a run's own process
            return
        if event_type == EventType.BEFORE_CLIENT_REGISTER:
            site = fl_ctx.get_prop(FLContextKey.SITE_OBJ)
            on_stop(lambda: site.logout_client(site.engine.new_context()))
            threading.Thread(target=self._watch_server, args=(site,), daemon=True).start()
        elif event_type == EventType.SYSTEM_START and fl_ctx.get_identity_name() == FQCN.ROOT_SERVER:
            server = fl_ctx.get_prop(FLContextKey.SITE_OBJ)
            threading.Thread(target=self._watch_sites, args=(server,), daemon=True).start()
        elif event_type in (EventType.JOB_STARTED, EventType.AFTER_JOB_LAUNCH):
            self._log("run started", _job(fl_ctx))
        elif event_type == EventType.JOB_COMPLETED:
            self._log("run ended", _job(fl_ctx))

    def _watch_server(self, site: "FederatedClient") -> None:
        """At a site, report whether it is connected to the server and registered."""
        was, since = None, time.monotonic()
        said = float("-inf")
        while True:
            server = site.cell and site.cell.core_cell.communicator.find_endpoint(FQCN.ROOT_SERVER)
            now = bool(server and server.state == EndpointState.READY and site.token)
            late = time.monotonic() - said > AGAIN
            # The first connection takes a moment. A missing one is reported again, as its reason may change.
            if (now != was and (now or was or time.monotonic() - since > FIRST)) or (was is False and late):
                self._log("connected" if now else "not connected", "")
                was, said = now, time.monotonic()
            time.sleep(INTERVAL)

    def _watch_sites(self, server: "FederatedServer") -> None:
        """At the server, report which sites are registered. A site gets a new token each time."""
        self._log("listening", "")
        before: dict[str, str] = {}
        while True:
            clients = list(server.client_manager.get_clients().items())
            now = {client.name: token for token, client in clients}
            for name in sorted(before.keys() | now.keys()):
                if before.get(name) != now.get(name):
                    self._log("joined" if name in now else "left", name)
            before = now
            time.sleep(INTERVAL)

    def _log(self, event: str, what: str) -> None:
        line = json.dumps([event, what]) + "\n"
        # Short lines are written as a whole, so lines of threads do not mix. The reader may have ended.
        with contextlib.suppress(OSError):
            os.write(self._pipe, line.encode())


def _job(fl_ctx: FLContext) -> str:
    """Return the run of an event, which FLARE stores differently at the server and at sites."""
    data = fl_ctx.get_prop(FLContextKey.EVENT_DATA)
    if isinstance(data, dict) and "job_id" in data:
        return str(data["job_id"])
    meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    return str(fl_ctx.get_prop(FLContextKey.CURRENT_JOB_ID) or meta.get("job_id", ""))
