"""Who starts runs: submits a job to the server, tells what happens, and gets what the server keeps of it.

A job that ends because a place was lost, or because the server was, is followed by another one, once all
sites are connected again: it goes on from the newest round of which every place has a checkpoint. A site that
stays away for longer than `patience` ends the run, with everything saved."""

import contextlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from graphfed.errors import GraphfedError, InputError, shown
from graphfed.files import JsonObject, parse_json, read_regular, write_json
from graphfed.runtime.interrupts import StopRequest
from graphfed.runtime.nvflare.startup_kits import StartupKit
from graphfed.runtime.nvflare.status import open_session

if TYPE_CHECKING:
    from nvflare.fuel.flare_api.flare_api import Session

__all__ = ["Coordinator", "Unreachable"]

T = TypeVar("T")

SITE_APP = "graphfed.runtime.nvflare.apps.SiteApp"
SERVER_APP = "graphfed.runtime.nvflare.apps.ServerApp"
#: Where a job puts what became of its runs, and the server's folders of them; the topic of questions to it.
OUTCOMES, RESULTS, COMMAND = "graphfed.json", "graphfed-runs", "graphfed"
CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
#: The status of a job whose server's part went through to its end.
DONE_STATUS = "FINISHED:COMPLETED"
#: Where FLARE keeps what each place has said to a job, "PLACE: OK" or "PLACE: REASON"; the characters of the
#: longest reason that is passed on.
DEPLOYED, MAX_REASON = "job_deploy_detail", 500
#: Seconds between two looks at a job.
LOOK = 0.5
#: Seconds that a job's processes have to start.
START = 120
#: So many jobs in a row that end before anything happens end the run.
IN_VAIN = 3


class Coordinator:
    """The holder of a coordinator's kit, connected to its server when it asks something. Use as a context
    manager. InputError for another kit."""

    def __init__(self, startup_kit: StartupKit) -> None:
        if startup_kit.kind != "coordinator":
            raise InputError(
                f"{startup_kit.folder} is the kit of {startup_kit.name}; name the coordinator's, who "
                f"starts runs"
            )
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
        on_event: Callable[[str, JsonObject], None],
        on_message: Callable[[str], None],
        stop_request: StopRequest,
        kept: Path,
    ) -> list[JsonObject]:
        """Run programs at all places, one after the other: what became of each, as `apps` says it.

        runs: as `ServerApp` takes them; on_event: gets (run, event) from the server's
        program; on_message: what happens to the federation, in words; stop_request: to stop, after saving;
        kept: the folder in which the server's folder of every run is put."""
        done: list[JsonObject] = []
        in_vain = 0
        while len(done) < len(runs):
            if not self.wait_for_sites(on_message, stop_request):
                break
            on_message("all sites are there; their processes start")
            outcomes, events = self._job(runs[len(done) :], on_event, stop_request, kept)
            done += [outcome for outcome in outcomes if outcome["kind"] != "lost"]
            if stop_request.asked:
                break
            in_vain = 0 if events else in_vain + 1
            lost = [outcome for outcome in outcomes if outcome["kind"] == "lost"]
            if lost and in_vain == IN_VAIN:
                raise GraphfedError(
                    f"{IN_VAIN} jobs in a row ended before anything happened ({lost[0]['text']}); the logs "
                    "of the server and the sites say why"
                )
            if lost:
                on_message(f"{lost[0]['text']}; going on from the last checkpoint once all sites are there")
        return done

    def connected(self) -> dict[str, float]:
        """The sites that are connected, and how many seconds ago each was last heard."""
        info = self._ask(lambda session: session.get_system_info())
        now = time.time()
        return {client.name: max(0.0, now - client.last_connect_time) for client in info.client_info}

    def wait_for_sites(self, on_message: Callable[[str], None], stop_request: StopRequest) -> bool:
        """Wait until every site of the project is connected, or somebody asks to stop.

        Args:
            on_message: Called with what is waited for, when that changes.
            stop_request: The stop request.

        Returns:
            Whether all sites are connected; False after a stop request.

        Raises:
            GraphfedError: a site, or the server, stayed away for longer than the project's patience.
        """
        end, told = time.monotonic() + self.timing.patience, ""
        while not stop_request.asked:
            try:
                heard = self.connected()
                sites = [site.name for site in self.startup_kit.project.sites]
                missing = [name for name in sites if heard.get(name, 1e9) > self.timing.give_up]
                if not missing:
                    return True
            except Unreachable:
                missing = ["the server"]
            news = f"waiting for {', '.join(missing)}"
            if news != told:
                on_message(news)
                told = news
            if time.monotonic() > end:
                raise GraphfedError(
                    f"{', '.join(missing)} did not come back within {self.timing.patience:g} s; what the "
                    "others have is saved"
                )
            time.sleep(LOOK)
        return False

    # ---- one job -------------------------------------------------------------------------------------------

    def _job(
        self,
        runs: Sequence[JsonObject],
        on_event: Callable[[str, JsonObject], None],
        stop_request: StopRequest,
        kept: Path,
    ) -> tuple[list[JsonObject], int]:
        """Submit a job and see it through: what became of its runs, and how many events there were."""
        with tempfile.TemporaryDirectory(prefix="graphfed-job-") as folder:
            self._write_job(Path(folder) / "job", runs)
            job = self._ask(lambda session: session.submit_job(f"{folder}/job"))
        try:
            return self._watch(job, runs, on_event, stop_request, kept)
        except BaseException:
            self._abort(job)  # nobody would hear of it any more
            raise

    def _watch(
        self,
        job: str,
        runs: Sequence[JsonObject],
        on_event: Callable[[str, JsonObject], None],
        stop_request: StopRequest,
        kept: Path,
    ) -> tuple[list[JsonObject], int]:
        """See `_job`. A stop request is passed on to the server's program, which saves and ends. A job that
        has not begun to train has nothing to save, so it is aborted at once: it may be in the queue behind
        another run, or wait for a site's data."""
        seen, begun, answered, asked_at = 0, False, False, float("inf")

        def forward(events: Sequence[JsonObject]) -> int:
            for told in events:
                on_event(told["run"], told["event"])
            return len(events)

        while True:
            time.sleep(LOOK)
            try:
                status = str(self._ask(lambda session: session.get_job_status(job)))
            except Unreachable:
                return [_lost(runs, "the server cannot be reached")], seen
            if status == "RUNNING":
                with contextlib.suppress(Unreachable):  # it has just begun, or is just ending
                    stop = stop_request.asked
                    events = self._events(job, seen, stop)
                    answered = stop
                    begun = begun or any(map(_is_training, events))
                    seen += forward(events)
            elif status.startswith("FINISHED"):
                outcomes, events = self._results(job, status, runs, kept)
                return outcomes, seen + forward(events[seen:])
            if stop_request.asked:
                asked_at = min(asked_at, time.monotonic())
                unheard = not answered and time.monotonic() - asked_at > self.timing.give_up
                if not begun or unheard:
                    self._abort(job)
                    return [], seen

    def _abort(self, job: str) -> None:
        with contextlib.suppress(Unreachable):
            self._ask(lambda session: session.abort_job(job))

    def _events(self, job: str, since: int, stop: bool) -> list[JsonObject]:
        question = {"since": since, "stop": stop}
        answer = self._ask(lambda session: session.do_app_command(job, COMMAND, question))
        return list(answer["events"])

    def _write_job(self, folder: Path, runs: Sequence[JsonObject]) -> None:
        """A job as FLARE takes it: names of classes that the kits allow, and plain values.

        What is asked goes to the server alone, which tells the sites: FLARE brings them their part of a job
        in one frame, whose length is limited (`tls.FRAME`)."""
        sites = [site.name for site in self.startup_kit.project.sites]
        timing = self.timing
        request = {
            "runs": list(runs),
            "sites": sites,
            "beat": timing.beat,
            "give_up": timing.give_up,
            "patience": timing.deadline,
        }
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
        self, job: str, status: str, runs: Sequence[JsonObject], kept: Path
    ) -> tuple[list[JsonObject], list[JsonObject]]:
        """What became of the runs of a job that has ended and its events; the server's folders go to `kept`.

        GraphfedError where a job that was done cannot be fetched: to run it again would not help."""
        with tempfile.TemporaryDirectory(prefix="graphfed-result-") as folder:
            try:
                work = Path(self._ask(lambda s: s.download_job_result(job, folder))) / "workspace"
                content = parse_json(read_regular(work / OUTCOMES))
                asked = {str(run["run"]) for run in runs}
                for outcome in content["outcomes"]:
                    # The name becomes a path below, and it is the server that says it.
                    if outcome["run"] not in asked:
                        raise ValueError(f"it tells of run {shown(outcome['run'])}, which was not asked for")
                    told = work / RESULTS / outcome["run"]
                    if told.is_dir():
                        shutil.copytree(told, kept / outcome["run"], dirs_exist_ok=True)
            except (Unreachable, OSError, ValueError, KeyError, TypeError) as error:
                if status == DONE_STATUS:
                    raise GraphfedError(
                        f"the run has ended, and its result could not be fetched ({error}); see that there "
                        f"is room, and that {self.startup_kit.folder / 'transfer'} can be written"
                    ) from None
                refused = self._refusals(job)
                if refused:
                    return [{"run": runs[0]["run"], "kind": "input", "text": refused}], []
                return [_lost(runs, f"the job ended before its time ({status})")], []
            return content["outcomes"], content["events"]

    def _refusals(self, job: str) -> str:
        """Return which places refused to start a job, and why; empty where none did, or nobody can say."""
        try:
            details = self._ask(lambda session: session.get_job_meta(job)).get(DEPLOYED) or []
        except Unreachable:
            return ""
        places = ["server", *(site.name for site in self.startup_kit.project.sites)]
        refusals = []
        for place, reason in (str(detail).partition(": ")[::2] for detail in details):
            # A place that did not answer in time may do so the next time.
            if place in places and reason != "OK" and not reason.startswith("no reply"):
                words = "".join(sign if sign.isprintable() else " " for sign in reason)[:MAX_REASON]
                refusals.append(f"{place} refuses the run: {words.removeprefix('NVFLARE_ERROR: ').strip()}")
        return "; ".join(refusals)

    # ---- the session ---------------------------------------------------------------------------------------

    def _ask(self, act: "Callable[[Session], T]") -> T:
        """Ask the server something over a session that is made when it is needed. Unreachable where it does
        not answer."""
        try:
            if self._session is None:
                self._session = self._open.enter_context(open_session(self.startup_kit))
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                return act(self._session)
        except InputError:
            raise
        except Exception as error:  # FLARE's own, of many kinds
            self._close()
            raise Unreachable(f"the server does not answer: {error}") from error

    def _close(self) -> None:
        self._session = None
        with contextlib.suppress(Exception):
            self._open.close()
        self._open = contextlib.ExitStack()


class Unreachable(GraphfedError):
    """The server does not answer, or what it says cannot be used."""


def _is_training(told: JsonObject) -> bool:
    """Return whether an event is later than the joining and the set-up of a run, in which there are only
    notes (see `runs.train`)."""
    event = told["event"]
    return not (isinstance(event, Mapping) and event.get("phase") == "note")


def _lost(runs: Sequence[JsonObject], why: str) -> JsonObject:
    return {"run": runs[0]["run"], "kind": "lost", "text": why}
