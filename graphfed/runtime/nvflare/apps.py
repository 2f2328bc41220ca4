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
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
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
from graphfed.files import JsonObject, write_json
from graphfed.runtime.failures import MAX_TEXT, what_failed
from graphfed.runtime.interrupts import Interrupted
from graphfed.runtime.mailbox import Mailbox, PeerLost, ProcessError
from graphfed.runtime.nvflare.cells import listen, post_to
from graphfed.runtime.nvflare.coordinator import COMMAND, OUTCOMES, RESULTS
from graphfed.runtime.nvflare.link import OFFER, Channels, FlareLink, Inbox, Part
from graphfed.runtime.nvflare.place import Place, this_place

__all__ = ["ServerApp", "SiteApp"]

#: Sends an event of a program to the coordinator.
Log = Callable[[JsonObject], None]
#: A program. Its arguments are its federation, plain arguments, the function that logs events, and its place.
Program = Callable[[Federation, JsonObject, Log, Place], None]
#: The programs that a job may name, and their functions.
PROGRAMS = {
    "train": "graphfed.deployment.participant:run_place",
    "predict": "graphfed.deployment.participant:predict_place",
}
#: Names of runs, which are also names of folders.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
SERVER = "server"
#: Seconds that a call may take. Calls are short, because programs run in threads of their own.
CALL = 30.0


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
        self, place: Place, run: JsonObject, names: Mapping[int, str], link: FlareLink, log: Log
    ) -> JsonObject:
        """Run this participant's program, and return its outcome: its kind, and the text of an error."""
        index = next(index for index, name in names.items() if name == place.name)
        fed = Federation(
            run["workers"],
            here=[] if index == SERVER_INDEX else [index],
            server_here=index == SERVER_INDEX,
            link=link,
            device=place.device,
            names=[names[worker] for worker in range(len(run["workers"]))],
            simulated=run.get("simulated", False),
        )
        torch.set_num_threads(place.threads)
        try:
            if not _NAME.fullmatch(run["run"]) or run["arguments"]["run"] != run["run"]:
                raise InputError(
                    f"the name of the run {run['run'][:200]!r} cannot be used: it must be the name of a "
                    "folder"
                )
            _program(run["program"], place)(fed, run["arguments"], log, place)
            return {"kind": "done"}
        except InputError as error:
            return {"kind": "input", "text": str(error)[:MAX_TEXT]}
        except Interrupted as stopped:
            return {"kind": "interrupted", "text": str(stopped)}
        except PeerLost as error:
            return {"kind": "lost", "text": str(error)[:MAX_TEXT]}
        except Exception as error:
            return {"kind": "failed", "text": what_failed(error, fed.ledger.round)}
        finally:
            torch.set_default_dtype(torch.float32)


class SiteApp(_App):
    """A site's part of a job.

    A program runs in a thread of its own and not in the call that starts it. So calls are short, and none
    waits for a participant that is gone. (FLARE ends a job only when every call has returned.)
    """

    @collab.publish
    def start(self, request: str) -> None:
        """Begin this site's part of a run. Its outcome is sent to `ended` of the server.

        Args:
            request: The run, as JSON.

        Raises:
            ProcessError: The caller is not the server.
        """
        if collab.caller != SERVER:
            raise ProcessError("only the server may start a run")
        run = json.loads(request)
        place = replace(this_place(), clock=time.time() - run["time"])
        proxies = {proxy.name: proxy for proxy in collab.clients} | {SERVER: collab.server}
        work = (place, run, proxies, get_call_context())
        threading.Thread(target=self._work, args=work, daemon=True, name="program").start()

    @collab.publish
    def stop(self, reason: str) -> None:
        """End the present run, because nothing more comes from the other participants.

        Args:
            reason: Why, as the end of a sentence.
        """
        if collab.caller == SERVER:
            self._stop([SERVER, *(proxy.name for proxy in collab.clients)], str(reason)[:1000])

    def _stop(self, names: Iterable[str], reason: str) -> None:
        for name in names:
            self.mailbox.close(name, reason)

    def _work(self, place: Place, run: JsonObject, proxies: dict[str, Proxy], context: Context) -> None:
        """Run this site's program, report to the server meanwhile, and send the outcome."""
        set_call_context(context)
        over = threading.Event()
        threading.Thread(target=self._beat, args=(proxies, run, context, over), daemon=True).start()
        try:
            outcome = self._part_of(place, run, proxies)
        except Exception as error:
            outcome = {"kind": "failed", "text": what_failed(error, 0)}
        _repeated(
            lambda: proxies[SERVER](timeout=CALL).ended(run=run["run"], outcome=json.dumps(outcome)),
            run["give_up"],
        )
        over.set()

    def _part_of(self, place: Place, run: JsonObject, proxies: dict[str, Proxy]) -> JsonObject:
        """Run this site's part of a run, and return its outcome."""
        names = {SERVER_INDEX: SERVER, **dict(enumerate(run["sites"]))}
        posts = {index: post_to(name, proxies[name]) for index, name in names.items() if name != place.name}
        self.mailbox.begin(run["run"])
        self.mailbox.reopen()
        self.mailbox.patience = run["patience"]
        sites = {names[index]: post for index, post in posts.items() if index != SERVER_INDEX}
        if self.channels is None and sites:
            identity = Identity.load(place.startup_kit)
            self.channels = Channels(identity, run["session"], sites, run["give_up"])
        self._listen({name: proxy for name, proxy in proxies.items() if name != place.name})
        link = FlareLink(names, posts, self.mailbox, channels=self.channels, give_up=run["give_up"])
        try:
            outcome = self._run(place, run, names, link, lambda event: None)
            if outcome["kind"] == "done":
                link.flush()
        finally:
            link.close()
        return outcome

    def _open(self, sender: str, part: Part) -> bytes | memoryview:
        if sender == SERVER:
            return part.content
        if self.channels is None:
            raise ProcessError(f"{part.key} arrived before this site has begun the run")
        if part.key == OFFER:
            self.channels.take_offer(sender, part.content)
            return part.content
        return self.channels.opened(sender, part)

    def _beat(
        self, proxies: dict[str, Proxy], run: JsonObject, context: Context, over: threading.Event
    ) -> None:
        """Report to the server at intervals; end the run if the server does not answer for too long."""
        set_call_context(context)
        heard = time.monotonic()
        while not over.wait(run["beat"]):
            with contextlib.suppress(Exception):  # counted below
                proxies[SERVER](timeout=run["give_up"]).alive()
                heard = time.monotonic()
            if context.is_aborted():
                self._stop(proxies, "ended the job")
            elif time.monotonic() - heard > run["give_up"]:
                self._stop(proxies, f"has not answered for {run['give_up']:g} s")


class ServerApp(_App):
    """The server's part of a job.

    Args:
        request: JSON with `runs`, each {"run", "program", "arguments", "workers"} and optionally "simulated"
            (whether its protocols are simulated); `sites` in the order of the workers; and the times `beat`,
            `give_up` and `patience` in seconds.
    """

    def __init__(self, request: str) -> None:
        super().__init__()
        self.request = request
        self._job = json.loads(request)
        self._heard: dict[str, float] = {}
        self._ended: dict[str, JsonObject] = {}
        self._events: list[JsonObject] = []
        self._place: Place | None = None

    @collab.publish
    def alive(self) -> None:
        """Record that the calling site is connected."""
        self._heard[collab.caller] = time.monotonic()

    @collab.publish
    def ended(self, run: str, outcome: str) -> None:
        """Record the outcome of the calling site's part of a run.

        Args:
            run: The name of the run.
            outcome: Its outcome, as JSON.
        """
        if run == self.mailbox.run:
            ended, name = json.loads(outcome), collab.caller
            kind, text = str(ended["kind"]), str(ended.get("text", ""))[:MAX_TEXT]
            self._ended[name] = {"kind": kind if kind in _RANK else "failed", "text": f"{name}: {text}"}
            if kind != "done":
                self._give_up(name, f"ended the run: {text}")

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
        for run in self._job["runs"]:
            outcomes.append(self._one(self._place, run, job, proxies, context))
            self._copy_results(self._place.runs / run["run"], results / RESULTS / run["run"])
            if outcomes[-1]["kind"] == "lost" or self._place.stop_request.asked:
                break
        write_json(results / OUTCOMES, {"outcomes": outcomes, "events": self._events})

    @staticmethod
    def _copy_results(folder: Path, results: Path) -> None:
        """Copy the server's files of a run to where the coordinator downloads them."""
        if folder.is_dir():
            shutil.copytree(folder, results, ignore=shutil.ignore_patterns("checkpoint", ".*"))

    def _one(
        self, place: Place, run: JsonObject, job: str, proxies: dict[str, Proxy], context: Context
    ) -> JsonObject:
        """Run one run at all participants; return its outcome, with the error of the one that failed."""
        common = {key: self._job[key] for key in ("sites", "beat", "give_up", "patience")}
        request = json.dumps({**common, **run, "session": job, "time": time.time()})
        sites, give_up = self._job["sites"], self._job["give_up"]
        names = {SERVER_INDEX: SERVER, **dict(enumerate(sites))}
        posts = {number: post_to(name, proxies[name]) for number, name in enumerate(sites)}
        self.mailbox.begin(run["run"])
        self.mailbox.reopen()
        self.mailbox.patience = self._job["patience"]
        link = FlareLink(names, posts, self.mailbox, channels=None, give_up=give_up)
        self._heard, self._ended = dict.fromkeys(sites, time.monotonic()), {}
        over = threading.Event()
        threading.Thread(target=self._watch, args=(give_up, context, over), daemon=True).start()
        self._call(proxies, context, lambda proxy: proxy(timeout=CALL).start(request=request))

        def log(event: JsonObject) -> None:
            self._events.append({"run": run["run"], "event": event})

        outcome = self._run(place, run, names, link, log)
        if outcome["kind"] == "done":
            link.flush()
        else:
            # The other sites wait for messages that will never come; without this they would wait for the
            # whole of their patience.
            left = {name: proxy for name, proxy in proxies.items() if name not in self._ended}
            self._call(left, context, lambda proxy: proxy(timeout=5.0).stop(reason="stopped the run"))
        while len(self._ended) < len(sites):
            time.sleep(0.02)  # it ends, because `_watch` gives up sites that do not report
        over.set()
        link.close()
        return {"run": run["run"], **_worst([outcome, *self._ended.values()])}

    def _give_up(self, name: str, why: str) -> None:
        """End the run after a site is lost.

        The other sites may be waiting for the lost one, and would otherwise be reported as silent.
        """
        self.mailbox.close(name, why)
        for site in self._job["sites"]:
            self.mailbox.close(site, f"cannot continue: {name} {why}")

    def _watch(self, give_up: float, context: Context, over: threading.Event) -> None:
        """Give up a site that does not report any more."""
        while not over.wait(0.2):
            for name, heard in self._heard.items():
                why = ""
                if context.is_aborted():
                    why = "was stopped, because the job was aborted"
                elif time.monotonic() - heard > give_up:
                    why = f"sent no sign of life for {give_up:g} s"
                if why and name not in self._ended:
                    self._give_up(name, why)
                    self._ended[name] = {"kind": "lost", "text": f"{name} {why}"}

    def _call(self, proxies: Mapping[str, Proxy], context: Context, act: Callable[[Proxy], object]) -> None:
        """Call sites at the same time; give up those that cannot be reached."""

        def one(name: str, proxy: Proxy) -> None:
            set_call_context(context)
            try:
                act(proxy)
            except Exception as error:
                why = f"could not be reached: {type(error).__name__}"
                self.mailbox.close(name, why)
                self._ended.setdefault(name, {"kind": "lost", "text": f"{name} {why}"})

        threads = [threading.Thread(target=one, args=item, daemon=True) for item in proxies.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _answer(self, topic: str, data: JsonObject, fl_ctx: FLContext) -> JsonObject:
        """Answer the coordinator: the events from number `since` on.

        With `stop` in `data`, also end the present run, after it is saved.
        """
        if data.get("stop") and self._place is not None:
            self._place.stop_request.asked = True
        since = int(data.get("since", 0))
        return {"events": self._events[since : since + 1000]}


def _program(name: str, place: Place) -> Program:
    """Return the program that a run names.

    It is one of `PROGRAMS`, or "module:function" of a module that the operator of this participant allows.
    """
    module, _, function = PROGRAMS.get(name, name).partition(":")
    if name not in PROGRAMS and module not in place.allow:
        raise InputError(
            f"{place.name} does not run the program {name[:200]!r}; its operator can allow it with "
            f"'graphfed site start ... --allow {module[:100]}'"
        )
    program: Program = getattr(importlib.import_module(module), function)
    return program


def _repeated(call: Callable[[], object], give_up: float) -> None:
    """Call until it succeeds, for `give_up` seconds."""
    end = time.monotonic() + give_up
    while True:
        try:
            call()
            return
        except Exception:
            if time.monotonic() > end:
                return
            time.sleep(0.2)


#: Kinds of outcomes, from the most informative one to those that follow from the outcome of another site.
_RANK = ("input", "failed", "interrupted", "lost", "done")


def _worst(outcomes: list[JsonObject]) -> JsonObject:
    return min(outcomes, key=lambda outcome: _RANK.index(outcome["kind"]))
