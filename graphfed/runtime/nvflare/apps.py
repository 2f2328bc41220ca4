"""The apps that FLARE runs in the processes of a job: one for the server, one for the sites.

The main function of the server's app asks every site to run its program, and runs its own. Collab calls start
and end runs; the messages of programs go through `cells`.

A job is a list of runs, one after the other. `PROGRAMS` lists the programs: a coordinator cannot name another
one, unless the operator of a participant allows its module. Every site reports to the server every few
seconds. A site that does not report for `give_up` seconds is lost, and the run ends at all participants. The
coordinator may then submit the rest as another job, which continues from the checkpoints
(`graphfed.runtime.nvflare.coordinator`).
"""

import contextlib
import importlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from nvflare.apis.fl_context import FLContext
from nvflare.collab import collab
from nvflare.collab.api.context import Context, get_call_context, set_call_context
from nvflare.collab.api.proxy import Proxy

from graphfed.crypto.channel import Identity
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.link import SERVER_INDEX
from graphfed.files import JsonObject, contained, copy_files, parse_json, plain, write_json
from graphfed.memory import allowed_memory, is_out_of_memory, limited_memory
from graphfed.runtime.failures import MAX_TEXT, what_failed
from graphfed.runtime.interrupts import Interrupted
from graphfed.runtime.mailbox import Mailbox, PeerLost, ProcessError
from graphfed.runtime.nvflare.cells import listen, post_to
from graphfed.runtime.nvflare.coordinator import COMMAND, KINDS, OUTCOMES, RESULTS
from graphfed.runtime.nvflare.link import OFFER, Channels, FlareLink, Inbox, Part
from graphfed.runtime.nvflare.place import Place, this_place
from graphfed.runtime.nvflare.requests import Asked, Request, check_name, checked
from graphfed.runtime.nvflare.signed import Refused, accepted, content_of, sign_statement
from graphfed.runtime.nvflare.startup_kits import load_startup_kit

#: Sends an event of a program to the coordinator.
Log = Callable[[JsonObject], None]
#: A program. Its arguments are its federation, plain arguments, the function that logs events, and its place.
Program = Callable[[Federation, JsonObject, Log, Place], None]
#: The programs that a job may name, and their functions.
PROGRAMS = {
    "train": "graphfed.deployment.participant:run_place",
    "predict": "graphfed.deployment.participant:predict_place",
}
SERVER = "server"
#: Seconds that a call may take. Calls are short, because programs run in threads of their own.
CALL = 30.0
#: The most characters of a site's statement that the server keeps.
MAX_STATEMENT = 1_000_000


#: Why a run failed that allocated more than its participant allows.
_OUT_OF_MEMORY = (
    "{} ended the run, because it needs more than the {:.3g} GB of memory that are allowed there; ask for a "
    "smaller model or smaller batches, or let the operator give more (graphfed site start --memory)"
)


class _Start(Asked):
    """What the server sends a site to start a run: the signed request, a name for the job, and its clock."""

    request: str
    session: str
    time: float


class _Job(Asked):
    """What the coordinator sends the server: the signed requests of runs."""

    requests: list[str]


class _App:
    """The common part of the apps of the server and of a site."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.inbox = Inbox(self.mailbox, opened=self._open)
        self._listening = False
        self.channels: Channels | None = None

    def _open(self, sender: str, part: Part) -> bytes | memoryview:
        return part.content

    def _listen(self, proxies: Mapping[str, Proxy]) -> None:
        """Receive the messages to this process, from its first run on."""
        if not self._listening:
            listen(proxies, self.inbox.accept)
            self._listening = True

    def _run(
        self, place: Place, run: Request, names: Mapping[int, str], link: FlareLink, log: Log
    ) -> tuple[JsonObject, JsonObject]:
        """Run this participant's program; return its outcome (its kind, and any error) and its ledger."""
        index = next(index for index, name in names.items() if name == place.name)
        fed = Federation(
            run.workers,
            here=[] if index == SERVER_INDEX else [index],
            server_here=index == SERVER_INDEX,
            link=link,
            device=place.device,
            names=[names[worker] for worker in range(len(run.workers))],
            simulated=run.simulated,
        )
        torch.set_num_threads(place.threads)
        # The memory of an accelerator is another one, and its driver reserves much of the address space.
        allowed = allowed_memory(place.memory) if torch.device(place.device).type == "cpu" else None
        try:
            # Programs write into this folder.
            contained(place.runs, run.run)
            if run.simulated and not place.rehearsal:
                raise InputError(
                    f"{place.name} refuses the run: simulated protocols hide nothing from real participants; "
                    "choose protocols=real"
                )
            program = _program(run.program, place)  # importing it takes memory that is not the run's
            with limited_memory(allowed):
                program(fed, run.arguments, log, place)
            return {"kind": "done"}, plain(fed.ledger.to_json())
        except InputError as error:
            outcome = {"kind": "input", "text": str(error)[:MAX_TEXT]}
        except Interrupted as stopped:
            outcome = {"kind": "interrupted", "text": str(stopped)}
        except PeerLost as error:
            outcome = {"kind": "lost", "text": str(error)[:MAX_TEXT]}
        except Exception as error:
            text = what_failed(error, fed.ledger.round)
            if allowed is not None and is_out_of_memory(error):
                text = _OUT_OF_MEMORY.format(place.name, allowed / 1e9)
            outcome = {"kind": "failed", "text": text}
        finally:
            # The next run of this process may ask for another dtype.
            torch.set_default_dtype(torch.float32)
        return outcome, {}


class SiteApp(_App):
    """A site's part of a job.

    A program runs in a thread of its own and not in the call that starts it. So calls are short, and none
    waits for a participant that is gone. (FLARE ends a job only when every call has returned.)
    """

    def __init__(self) -> None:
        super().__init__()
        self._starting, self._busy = threading.Lock(), False

    @collab.publish
    def start(self, request: str) -> str:
        """Check a run and begin this site's part of it. Its outcome is sent to `ended` of the server.

        Returns:
            "" if it has begun; otherwise the outcome, as JSON.
        """
        if collab.caller != SERVER:
            raise ProcessError("only the server may start a run")
        place = this_place()
        try:
            start = checked(_parsed(request), _Start, "what the server sent to start a run")
            check_name(start.session, "the session")
            # Two calls at the same time must not both begin.
            with self._starting:
                if self._busy:
                    raise InputError("this site still takes part in another run; wait until that has ended")
                run = accepted(start.request, load_startup_kit(place.startup_kit), once=True)
                # Before the server learns that the run has begun: from then on it may stop the run.
                self.mailbox.begin(run.run, reopen=True)
                self._busy = True
        except (Refused, ProcessError) as error:
            received = content_of(start.request)[:MAX_TEXT]
            text = f"refuses the run: {error}"[:MAX_TEXT]
            return json.dumps({"kind": "failed", "text": text, "received": received})
        except InputError as error:
            return json.dumps({"kind": "input", "text": str(error)[:MAX_TEXT]})
        place = replace(place, clock=time.time() - start.time, request=start.request)
        proxies = {proxy.name: proxy for proxy in collab.clients} | {SERVER: collab.server}
        work = (place, run, start.session, proxies, get_call_context())
        threading.Thread(target=self._work, args=work, daemon=True, name="program").start()
        return ""

    @collab.publish
    def stop(self, run: str, reason: str) -> None:
        """End a run, if it is the present one, for a reason (the end of a sentence): nothing more comes from
        the other participants.
        """
        if collab.caller == SERVER:
            self._stop(run, [SERVER, *(proxy.name for proxy in collab.clients)], str(reason)[:1000])

    def _stop(self, run: str, names: Iterable[str], reason: str) -> None:
        for name in names:
            self.mailbox.close(name, reason, run=run)

    def _work(
        self, place: Place, run: Request, session: str, proxies: dict[str, Proxy], context: Context
    ) -> None:
        """Run this site's program, report to the server meanwhile, and send the outcome."""
        set_call_context(context)
        over = threading.Event()
        threading.Thread(target=self._beat, args=(proxies, run, context, over), daemon=True).start()
        try:
            outcome = self._part_of(place, run, session, proxies)
        except Exception as error:
            outcome = {"kind": "failed", "text": what_failed(error, 0)}
        self._busy = False
        _repeated(
            lambda: proxies[SERVER](timeout=CALL).ended(run=run.run, outcome=json.dumps(outcome)),
            run.give_up,
        )
        over.set()

    def _part_of(self, place: Place, run: Request, session: str, proxies: dict[str, Proxy]) -> JsonObject:
        names = {SERVER_INDEX: SERVER, **dict(enumerate(run.sites))}
        posts = {index: post_to(name, proxies[name]) for index, name in names.items() if name != place.name}
        self.mailbox.patience = run.patience
        sites = {names[index]: post for index, post in posts.items() if index != SERVER_INDEX}
        identity = Identity.load(place.startup_kit)
        # The channels serve all runs of a job.
        if self.channels is None and sites:
            self.channels = Channels(identity, session, sites, run.give_up)
        self._listen({name: proxy for name, proxy in proxies.items() if name != place.name})
        link = FlareLink(names, posts, self.mailbox, channels=self.channels, give_up=run.give_up)
        try:
            outcome, ledger = self._run(place, run, names, link, lambda event: None)
            if outcome["kind"] == "done":
                link.flush()
                outcome["statement"] = sign_statement(identity, place.request, run.run, ledger)
        finally:
            link.close()
        return outcome

    def _open(self, sender: str, part: Part) -> bytes | memoryview:
        # TLS protects what the server itself sends.
        if sender == SERVER:
            return part.content
        if self.channels is None:
            raise ProcessError(f"{part.key} arrived before this site has begun the run")
        if part.key == OFFER:
            self.channels.take_offer(sender, part.content)
            return part.content
        return self.channels.opened(sender, part)

    def _beat(self, proxies: dict[str, Proxy], run: Request, context: Context, over: threading.Event) -> None:
        """Report to the server at intervals; end the run if the server does not answer for too long."""
        set_call_context(context)
        heard = time.monotonic()
        while not over.wait(run.beat):
            with contextlib.suppress(Exception):  # counted below
                proxies[SERVER](timeout=run.give_up).alive()
                heard = time.monotonic()
            if context.is_aborted():
                self._stop(run.run, proxies, "ended the job")
            elif time.monotonic() - heard > run.give_up:
                self._stop(run.run, proxies, f"has not answered for {run.give_up:g} s")


@dataclass(frozen=True)
class _Running:
    """A run at the server. Calls and threads that are late change only the run that they belong to.

    Attributes:
        heard: When each site gave its last sign of life.
        ended: The outcomes of the sites whose part has ended.
    """

    run: str
    sites: list[str]
    heard: dict[str, float]
    ended: dict[str, JsonObject] = field(default_factory=dict)


class ServerApp(_App):
    def __init__(self, request: str) -> None:
        super().__init__()
        self.request = request
        self._running = _Running("", [], {})
        self._events: list[JsonObject] = []
        self._place: Place | None = None

    @collab.publish
    def alive(self) -> None:
        self._running.heard[collab.caller] = time.monotonic()

    @collab.publish
    def ended(self, run: str, outcome: str) -> None:
        """Record the outcome of the calling site's part of a run."""
        running = self._running
        # An outcome that was repeated too late belongs to an earlier run.
        if run == running.run:
            self._record(running, collab.caller, outcome)

    def _record(self, running: _Running, name: str, outcome: str) -> None:
        """Record the outcome of a site's part, and end the run if it is not done."""
        ended = json.loads(outcome)
        kind, text = str(ended["kind"]), str(ended.get("text", ""))[:MAX_TEXT]
        kept = {key: str(ended[key])[:MAX_STATEMENT] for key in ("statement", "received") if key in ended}
        # A site may send any text here.
        kind = kind if kind in KINDS else "failed"
        running.ended[name] = {"kind": kind, "text": f"{name}: {text}", **kept}
        if kind != "done":
            self._give_up(running, name, f"ended the run: {text}")

    @collab.main
    def main(self) -> None:
        """Run all runs of the job, and write their outcomes into a file of the job."""
        context, fl_ctx = get_call_context(), collab.fl_ctx
        engine, job = fl_ctx.get_engine(), fl_ctx.get_job_id()
        engine.register_app_command(COMMAND, self._answer)
        self._place = this_place()
        proxies = {proxy.name: proxy for proxy in collab.clients}
        self._listen(proxies)
        results = Path(engine.get_workspace().get_run_dir(job))
        outcomes: list[JsonObject] = []
        for text in self._requests():
            outcomes.append(
                self._checked_and_run(self._place, text, job, proxies, context, results / RESULTS)
            )
            if outcomes[-1]["kind"] == "lost" or self._place.stop_request.asked:
                break
        write_json(results / OUTCOMES, {"outcomes": outcomes, "events": self._events})

    def _requests(self) -> list[str]:
        """Return the requests of the job; one that is refused if the job has another form."""
        try:
            return checked(_parsed(self.request), _Job, "the job").requests
        except InputError:
            return [self.request]

    def _checked_and_run(
        self, place: Place, text: str, job: str, proxies: dict[str, Proxy], context: Context, results: Path
    ) -> JsonObject:
        """Run one run, and copy the server's files of it to where the coordinator downloads them.

        Nothing is done with a request before it is checked.
        """
        try:
            run = accepted(text, load_startup_kit(place.startup_kit), once=False)
            folder = contained(place.runs, run.run)
        except (InputError, Refused) as error:
            kind = "input" if isinstance(error, InputError) else "failed"
            return {"run": _named(text), "kind": kind, "text": f"{SERVER}: {error}"[:MAX_TEXT]}
        outcome = self._one(replace(place, request=text), run, text, job, proxies, context)
        if folder.is_dir():
            copy_files(folder, results / run.run, "checkpoint", ".*")
        return outcome

    def _one(
        self, place: Place, run: Request, text: str, job: str, proxies: dict[str, Proxy], context: Context
    ) -> JsonObject:
        """Run one run at all participants; return its outcome, with the error of the one that failed."""
        request = json.dumps({"request": text, "session": job, "time": time.time()})
        sites, give_up = run.sites, run.give_up
        names = {SERVER_INDEX: SERVER, **dict(enumerate(sites))}
        posts = {number: post_to(name, proxies[name]) for number, name in enumerate(sites)}
        self.mailbox.begin(run.run, reopen=True)
        self.mailbox.patience = run.patience
        link = FlareLink(names, posts, self.mailbox, channels=None, give_up=give_up)
        running = self._running = _Running(run.run, sites, dict.fromkeys(sites, time.monotonic()))
        over = threading.Event()
        threading.Thread(target=self._watch, args=(running, give_up, context, over), daemon=True).start()

        def start(name: str, proxy: Proxy) -> None:
            refusal = proxy(timeout=CALL).start(request=request)
            if refusal != "":
                self._record(running, name, str(refusal))

        self._call(running, proxies, context, start)

        def log(event: JsonObject) -> None:
            self._events.append({"run": run.run, "event": event})

        outcome, _ = self._run(place, run, names, link, log)
        if outcome["kind"] == "done":
            link.flush()
        else:
            # The other sites wait for messages that will never come; without this they would wait for the
            # whole of their patience.
            left = {name: proxy for name, proxy in proxies.items() if name not in running.ended}

            def stop(name: str, proxy: Proxy) -> None:
                proxy(timeout=5.0).stop(run=run.run, reason="stopped the run")

            self._call(running, left, context, stop)
        while len(running.ended) < len(sites):
            time.sleep(0.02)  # it ends, because `_watch` gives up sites that do not report
        over.set()
        link.close()
        statements = {name: ended.get("statement") for name, ended in running.ended.items()}
        return {"run": run.run, "statements": statements, **_worst([outcome, *running.ended.values()])}

    def _give_up(self, running: _Running, name: str, why: str) -> None:
        """End the run after a site is lost.

        The other sites may be waiting for the lost one, and would otherwise be reported as silent.
        """
        self.mailbox.close(name, why, run=running.run)
        for site in running.sites:
            self.mailbox.close(site, f"cannot continue: {name} {why}", run=running.run)

    def _watch(self, running: _Running, give_up: float, context: Context, over: threading.Event) -> None:
        """Give up a site that does not report any more."""
        while not over.wait(0.2):
            for name in running.sites:
                why = ""
                if context.is_aborted():
                    why = "was stopped, because the job was aborted"
                elif time.monotonic() - running.heard[name] > give_up:
                    why = f"sent no sign of life for {give_up:g} s"
                lost = {"kind": "lost", "text": f"{name} {why}"}
                # The outcome of the site may arrive meanwhile, and is the one that counts.
                if why and running.ended.setdefault(name, lost) is lost:
                    self._give_up(running, name, why)

    def _call(
        self,
        running: _Running,
        proxies: Mapping[str, Proxy],
        context: Context,
        act: Callable[[str, Proxy], None],
    ) -> None:
        """Call sites at the same time; give up those that cannot be reached."""

        def one(name: str, proxy: Proxy) -> None:
            set_call_context(context)
            try:
                act(name, proxy)
            except Exception as error:
                why = f"could not be reached: {type(error).__name__}"
                self.mailbox.close(name, why, run=running.run)
                running.ended.setdefault(name, {"kind": "lost", "text": f"{name} {why}"})

        threads = [threading.Thread(target=one, args=item, daemon=True) for item in proxies.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _answer(self, topic: str, data: JsonObject, fl_ctx: FLContext) -> JsonObject:
        """Answer the coordinator: the events from number `since` on. With `stop`, also end the present run,
        after saving.
        """
        if data.get("stop") and self._place is not None:
            self._place.stop_request.asked = True
        since = int(data.get("since", 0))
        return {"events": self._events[since : since + 1000]}


def _parsed(text: str) -> object:
    try:
        return parse_json(text)
    except ValueError as error:
        raise InputError(f"JSON is expected: {error}") from None


def _named(text: str) -> str:
    """Return the name of the run in a request that was refused, as the coordinator wrote it."""
    try:
        return str(parse_json(content_of(text))["run"])[:MAX_TEXT]
    except (ValueError, KeyError, TypeError):
        return ""


def _program(name: str, place: Place) -> Program:
    """Return the program that a run names: one of `PROGRAMS`, or one of a module that the operator allows."""
    module, _, function = PROGRAMS.get(name, name).partition(":")
    if name not in PROGRAMS and module not in place.allow:
        raise InputError(
            f"{place.name} does not run the program {name[:200]!r}; its operator can allow it with "
            f"'graphfed site start ... --allow {module[:100]}'"
        )
    program: Program = getattr(importlib.import_module(module), function)
    return program


def _repeated(call: Callable[[], object], give_up: float) -> None:
    end = time.monotonic() + give_up
    while True:
        try:
            call()
            return
        except Exception:
            # The server has given this site up by now, so the outcome has no reader.
            if time.monotonic() > end:
                return
            time.sleep(0.2)


def _worst(outcomes: list[JsonObject]) -> JsonObject:
    return min(outcomes, key=lambda outcome: KINDS.index(outcome["kind"]))
