"""The coordinator starts runs: it submits jobs to the server, reports their progress and fetches the results.

If a job ends because a site or the server was lost, the coordinator submits another one when all sites are
connected again. It continues from the newest round of which every participant has a checkpoint. If a site is
away for longer than `patience`, the run ends with everything saved.
"""

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject, copy_files, parse_json, read_regular, write_json
from graphfed.runtime.interrupts import StopRequest
from graphfed.runtime.nvflare.requests import differences
from graphfed.runtime.nvflare.signed import Refused, check_statements, content_of, sign_request
from graphfed.runtime.nvflare.startup_kits import StartupKit
from graphfed.runtime.nvflare.status import open_session

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

T = TypeVar("T")

SITE_APP = "graphfed.runtime.nvflare.apps.SiteApp"
SERVER_APP = "graphfed.runtime.nvflare.apps.ServerApp"
#: In the results of a job: the file of outcomes, and the server's folders of runs. The topic of requests to
#: it.
OUTCOMES, RESULTS, COMMAND = "graphfed.json", "graphfed-runs", "graphfed"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
#: The status of a job whose server's part has completed.
DONE_STATUS = "FINISHED:COMPLETED"
#: How a run can end, from the most informative kind to those that follow from another participant's.
KINDS = ("input", "failed", "interrupted", "lost", "done")
#: The key of FLARE's list of answers to a job, "NAME: OK" or "NAME: REASON", and the most characters of a
#: reason that is passed on.
DEPLOYED, MAX_REASON = "job_deploy_detail", 500
#: Seconds between two checks of a job.
INTERVAL = 0.5
#: Seconds in which the processes of a job must start.
START = 120
#: The number of consecutive jobs without any event after which the run ends.
MAX_EMPTY_JOBS = 3
#: The most differences of a request that a message names.
MAX_NAMED = 5


class Coordinator:
    """The coordinator of a deployment, which connects to the server when it needs to.

    Use it as a context manager.
    """

    def __init__(self, startup_kit: StartupKit) -> None:
        self.startup_kit, self.timing = startup_kit, startup_kit.project.timing
        self._open = contextlib.ExitStack()
        self._session: Session | None = None

    def __enter__(self) -> "Coordinator":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(
        self,
        runs: Sequence[JsonObject],
        *,
        results: Path,
        on_event: Callable[[str, JsonObject], None] = lambda run, event: None,
        on_message: Callable[[str], None] = lambda text: None,
        stop_request: StopRequest | None = None,
    ) -> list[JsonObject]:
        """Run programs at all participants, one after the other, and return the outcome of each (see `apps`).

        Args:
            runs: The runs: each has the fields of a `Request`, except the sites and the times.
            results: The folder into which the server's folder of every run is copied.
            on_event: Called with the name of a run and each event of the server's program.
            on_message: Called with progress messages about the deployment.
            stop_request: The stop request to obey, after saving.

        Raises:
            GraphfedError: The server or a site was away for too long, or jobs end without any event.
        """
        stop_request = stop_request or StopRequest()
        done: list[JsonObject] = []
        empty_jobs = 0
        while len(done) < len(runs):
            if not self.wait_for_sites(on_message, stop_request):
                break
            on_message("all sites are connected; their processes start")
            outcomes, events = self._job(runs[len(done) :], on_event, stop_request, results)
            # A lost run, and those after it, are asked for again in the next job.
            done += [outcome for outcome in outcomes if outcome["kind"] != "lost"]
            if stop_request.asked:
                break
            # A job that fails at its start would otherwise be submitted for ever.
            empty_jobs = 0 if events else empty_jobs + 1
            lost = [outcome for outcome in outcomes if outcome["kind"] == "lost"]
            if lost and empty_jobs == MAX_EMPTY_JOBS:
                raise GraphfedError(
                    f"{MAX_EMPTY_JOBS} jobs in a row ended before they began to run ({lost[0]['text']}); see "
                    "log.txt in the startup kits of the server and the sites"
                )
            if lost:
                on_message(
                    f"{lost[0]['text']}; the run continues from the last checkpoint when all sites are "
                    "connected"
                )
        return done

    def connected(self) -> dict[str, float]:
        """Ask the server how many seconds ago each connected site gave a sign of life."""
        info = self._ask(lambda session: session.get_system_info())
        now = time.time()
        return {client.name: max(0.0, now - client.last_connect_time) for client in info.client_info}

    def wait_for_sites(self, on_message: Callable[[str], None], stop_request: StopRequest) -> bool:
        """Wait until every site of the project is connected; return False if a stop request comes first.

        GraphfedError if a site or the server was away for longer than the patience of the project.
        """
        end, last_message = time.monotonic() + self.timing.patience, ""
        while not stop_request.asked:
            try:
                heard = self.connected()
                sites = [site.name for site in self.startup_kit.project.sites]
                missing = [name for name in sites if heard.get(name, 1e9) > self.timing.give_up]
                if not missing:
                    return True
            except Unreachable:
                missing = ["the server"]
            message = f"waiting for {', '.join(missing)}"
            if message != last_message:
                on_message(message)
                last_message = message
            if time.monotonic() > end:
                raise GraphfedError(
                    f"{', '.join(missing)} did not come back within {self.timing.patience:g} s; what the "
                    "other participants have is saved"
                )
            time.sleep(INTERVAL)
        return False

    # ---- one job -------------------------------------------------------------------------------------------

    def _job(
        self,
        runs: Sequence[JsonObject],
        on_event: Callable[[str, JsonObject], None],
        stop_request: StopRequest,
        results: Path,
    ) -> tuple[list[JsonObject], int]:
        """Submit a job and wait for it; return the outcomes of its runs, and the number of events."""
        with tempfile.TemporaryDirectory(prefix="graphfed-job-") as folder:
            requests = {str(run["run"]): sign_request(run, self.startup_kit) for run in runs}
            self._write_job(Path(folder) / "job", list(requests.values()))
            job = self._ask(lambda session: session.submit_job(f"{folder}/job"))
        try:
            outcomes, events = self._watch(job, runs, on_event, stop_request, results)
        except BaseException:
            self._abort(job)  # no program would receive its results
            raise
        return [self._compared(outcome, requests, results) for outcome in outcomes], events

    def _compared(self, outcome: JsonObject, requests: Mapping[str, str], results: Path) -> JsonObject:
        """Compare the outcome of a run with what was asked for and with the sites' statements (`signed`).

        A run that is done gets what was verified, and fails if the statements disagree. The refusal of a
        site that received another request than this coordinator's gets what differs.
        """
        request = requests[outcome["run"]]
        asked = parse_json(content_of(request))
        if outcome["kind"] == "done":
            stamp = asked["arguments"].get("stamp")
            file = results / asked["run"] / ("ledger.json" if stamp is None else f"ledger-{stamp}.json")
            try:
                ledger = parse_json(read_regular(file)) if file.exists() else None
                statements = outcome.get("statements")
                return {
                    **outcome,
                    "verified": check_statements(statements, request, self.startup_kit, ledger),
                }
            except (Refused, InputError, OSError, ValueError, KeyError, TypeError) as error:
                text = f"the run is not what was asked for, or the server hides that it is: {error}"
                return {**outcome, "kind": "failed", "text": text}
        with contextlib.suppress(ValueError, KeyError, TypeError):
            changed = differences(asked, parse_json(outcome["received"]))
            if changed:
                text = f"{outcome['text']}; the server sent it another request than this coordinator: "
                return {**outcome, "text": text + "; ".join(changed[:MAX_NAMED])}
        return outcome

    def _watch(
        self,
        job: str,
        runs: Sequence[JsonObject],
        on_event: Callable[[str, JsonObject], None],
        stop_request: StopRequest,
        results: Path,
    ) -> tuple[list[JsonObject], int]:
        """Wait for a job; return as `_job`.

        A stop request is passed on to the server's program, which saves and ends. A job that has not begun to
        train has nothing to save and is aborted at once: it may be in the queue behind another run, or wait
        for the data of a site.
        """
        seen, begun, answered, asked_at = 0, False, False, float("inf")

        def forward(events: Sequence[JsonObject]) -> int:
            for entry in events:
                on_event(entry["run"], entry["event"])
            return len(events)

        while True:
            time.sleep(INTERVAL)
            try:
                status = str(self._ask(lambda session: session.get_job_status(job)))
            except Unreachable:
                return [_lost(runs, "the server cannot be reached")], seen
            if status == "RUNNING":
                with contextlib.suppress(Unreachable):  # the job is just starting or ending
                    stop = stop_request.asked
                    events = self._events(job, seen, stop)
                    answered = stop
                    begun = begun or any(map(_is_training, events))
                    seen += forward(events)
            elif status.startswith("FINISHED"):
                outcomes, events = self._results(job, status, runs, results)
                return outcomes, seen + forward(events[seen:])
            if stop_request.asked:
                asked_at = min(asked_at, time.monotonic())
                ignored = not answered and time.monotonic() - asked_at > self.timing.give_up
                if not begun or ignored:
                    self._abort(job)
                    return [], seen

    def _abort(self, job: str) -> None:
        with contextlib.suppress(Unreachable):
            self._ask(lambda session: session.abort_job(job))

    def _events(self, job: str, since: int, stop: bool) -> list[JsonObject]:
        question = {"since": since, "stop": stop}
        answer = self._ask(lambda session: session.do_app_command(job, COMMAND, question))
        return list(answer["events"])

    def _write_job(self, folder: Path, requests: list[str]) -> None:
        """Write a job in FLARE's form: names of classes that the startup kits allow, and plain values.

        The requests are in the server's part only, and the server passes them on to the sites: FLARE sends a
        site's part of a job in one frame, whose length is limited (`tls.FRAME`).
        """
        sites = [site.name for site in self.startup_kit.project.sites]
        request = {"requests": requests}
        meta = {
            "name": "graphfed",
            "resource_spec": {},
            "min_clients": len(sites),
            "mandatory_clients": sites,
            "deploy_map": {"server": ["server"], "site": sites},
        }
        controller = {"server_obj_id": "_server", "sync_task_timeout": START}
        server = {
            "format_version": 2,
            "workflows": [{"id": "controller", "path": CONTROLLER, "args": controller}],
            "components": [{"id": "_server", "path": SERVER_APP, "args": {"request": json.dumps(request)}}],
        }
        executor = {"id": "executor", "path": EXECUTOR, "args": {"client_obj_id": "_client"}}
        site = {
            "format_version": 2,
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": [{"id": "_client", "path": SITE_APP, "args": {}}],
        }
        write_json(folder / "meta.json", meta)
        write_json(folder / "server" / "config" / "config_fed_server.json", server)
        write_json(folder / "site" / "config" / "config_fed_client.json", site)

    def _results(
        self, job: str, status: str, runs: Sequence[JsonObject], results: Path
    ) -> tuple[list[JsonObject], list[JsonObject]]:
        """Fetch the outcomes and events of a job that has ended; copy the server's folders to `results`.

        GraphfedError if the results of a completed job cannot be fetched: to run it again would not help.
        """
        with tempfile.TemporaryDirectory(prefix="graphfed-result-") as folder:
            try:
                work = Path(self._ask(lambda s: s.download_job_result(job, folder))) / "workspace"
                content = parse_json(read_regular(work / OUTCOMES))
                outcomes, events = list(content["outcomes"]), list(content["events"])
                if not 0 < len(outcomes) <= len(runs):
                    raise ValueError(f"it has {len(outcomes)} outcomes of {len(runs)} runs")
                # Runs after a lost one were not begun.
                for outcome, run in zip(outcomes, runs, strict=False):
                    # The name comes from the server and becomes part of a path below.
                    if outcome["run"] != run["run"]:
                        raise ValueError(f"it has a run {shown(outcome['run'])} that was not asked for")
                    if outcome["kind"] not in KINDS:
                        raise ValueError(f"it has an outcome of the kind {shown(outcome['kind'])}")
                    outcome["text"] = str(outcome["text"] if outcome["kind"] != "done" else "")
                    served = work / RESULTS / outcome["run"]
                    if served.is_dir():
                        copy_files(served, results / outcome["run"])
            except (Unreachable, OSError, ValueError, KeyError, TypeError) as error:
                if status == DONE_STATUS:
                    raise GraphfedError(
                        f"the run has ended, but its result could not be fetched ({error}); check that the "
                        f"disk has free space and that {self.startup_kit.folder / 'transfer'} can be written"
                    ) from None
                refused = self._refusals(job)
                if refused:
                    return [{"run": runs[0]["run"], "kind": "input", "text": refused}], []
                return [_lost(runs, f"the job ended unexpectedly ({status})")], []
            return outcomes, events

    def _refusals(self, job: str) -> str:
        """Return which participants refused to start a job, and why; "" if none did or the server is gone."""
        try:
            details = self._ask(lambda session: session.get_job_meta(job)).get(DEPLOYED) or []
        except Unreachable:
            return ""
        names = ["server", *(site.name for site in self.startup_kit.project.sites)]
        refusals = []
        for name, reason in (str(detail).partition(": ")[::2] for detail in details):
            # A site that did not answer in time may answer the next time.
            if name in names and reason != "OK" and not reason.startswith("no reply"):
                # The text comes from another participant, and a terminal must not obey it.
                text = "".join(c if c.isprintable() else " " for c in reason)[:MAX_REASON]
                refusals.append(f"{name} refuses the run: {text.removeprefix('NVFLARE_ERROR: ').strip()}")
        return "; ".join(refusals)

    # ---- the session ---------------------------------------------------------------------------------------

    def _ask(self, act: "Callable[[Session], T]") -> T:
        """Make a request to the server, in a session that is opened if there is none."""
        try:
            if self._session is None:
                self._session = self._open.enter_context(open_session(self.startup_kit))
            # FLARE prints some answers.
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                return act(self._session)
        except InputError:
            raise
        except Exception as error:  # FLARE raises many types
            self._close()
            raise Unreachable(f"the server does not answer: {error}") from error

    def _close(self) -> None:
        self._session = None
        with contextlib.suppress(Exception):
            self._open.close()
        self._open = contextlib.ExitStack()


class Unreachable(GraphfedError):
    """The server does not answer, or its answer cannot be used."""


def _is_training(entry: JsonObject) -> bool:
    """Return whether an event comes after joining and set-up, which log only notes (see `runs.train`)."""
    event = entry["event"]
    return not (isinstance(event, Mapping) and event.get("phase") == "note")


def _lost(runs: Sequence[JsonObject], why: str) -> JsonObject:
    return {"run": runs[0]["run"], "kind": "lost", "text": why}
