"""What FLARE runs in the job processes: the server's app, whose main asks every site to run its program and
runs its own, and the sites' app. Collab calls start and end runs; what programs exchange goes by `cells`.

A job is a list of runs, one after the other. Which program runs is in `PROGRAMS`: a coordinator cannot name
another one, unless a place's operator allows its module. Every site tells the server every few seconds that
it is there; who is not heard for `give_up` seconds is lost, and the run ends at all places. Whoever started
it may then submit what is left as another job, which goes on from the places' checkpoints
(`graphfed.runtime.nvflare.coordinator`)."""

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

#: How a program tells the coordinator something.
Log = Callable[[JsonObject], None]
#: A program: gets its federation, plain arguments, how to tell the coordinator something, and its place.
Program = Callable[[Federation, JsonObject, Log, Place], None]
#: The programs that a job may name, each with the function that it is.
PROGRAMS = {
    "train": "graphfed.deployment.participant:run_place",
    "predict": "graphfed.deployment.participant:predict_place",
}
#: Names of runs: they are folders at every place.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,150}")
SERVER = "server"
#: Seconds that one call may take: a part is small.
CALL = 30.0


class _App:
    """What the server's and a site's app have in common."""

    def __init__(self) -> None:
        self.mailbox = Mailbox()
        self.inbox = Inbox(self.mailbox, opened=self._open)
        self._listening = False
        self.channels: Channels | None = None

    def _open(self, sender: str, part: Part) -> bytes | memoryview:
        return part.content

    def _listen(self, proxies: Mapping[str, Proxy]) -> None:
        """Take what is sent to this process, from its first run on."""
        if not self._listening:
            listen(proxies, self.inbox.accept)
            self._listening = True

    def _run(
        self, place: Place, run: JsonObject, names: Mapping[int, str], link: FlareLink, log: Log
    ) -> JsonObject:
        """This place's part of a run: what became of it, in plain words."""
        me = next(end for end, name in names.items() if name == place.name)
        fed = Federation(
            run["workers"],
            here=[] if me == SERVER_INDEX else [me],
            server_here=me == SERVER_INDEX,
            link=link,
            device=place.device,
            names=[names[worker] for worker in range(len(run["workers"]))],
            simulated=run.get("simulated", False),
        )
        torch.set_num_threads(place.threads)
        try:
            if not _NAME.fullmatch(run["run"]) or run["arguments"]["run"] != run["run"]:
                raise InputError(f"the run's name {run['run'][:200]!r} cannot be that of a folder")
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

    A program runs in a thread of its own and not in the call that starts it: calls are short, so that none
    waits for a place that is gone. (FLARE ends a job only when every call has returned.)"""

    @collab.publish
    def start(self, request: str) -> None:
        """Begin this site's part of a run. What becomes of it is told to the server's `ended`."""
        if collab.caller != SERVER:
            raise ProcessError("only the server starts runs")
        told = json.loads(request)
        place = replace(this_place(), clock=time.time() - told["time"])
        proxies = {proxy.name: proxy for proxy in collab.clients} | {SERVER: collab.server}
        work = (place, told, proxies, get_call_context())
        threading.Thread(target=self._work, args=work, daemon=True, name="program").start()

    @collab.publish
    def stop(self, reason: str) -> None:
        """End the present run: nobody sends anything more."""
        if collab.caller == SERVER:
            self._stop([SERVER, *(proxy.name for proxy in collab.clients)], str(reason)[:1000])

    def _stop(self, names: Iterable[str], reason: str) -> None:
        for name in names:
            self.mailbox.close(name, reason)

    def _work(self, place: Place, told: JsonObject, proxies: dict[str, Proxy], context: Context) -> None:
        set_call_context(context)
        over = threading.Event()
        threading.Thread(target=self._beat, args=(proxies, told, context, over), daemon=True).start()
        try:
            outcome = self._part_of(place, told, proxies)
        except Exception as error:
            outcome = {"kind": "failed", "text": what_failed(error, 0)}
        _repeated(
            lambda: proxies[SERVER](timeout=CALL).ended(run=told["run"], outcome=json.dumps(outcome)),
            told["give_up"],
        )
        over.set()

    def _part_of(self, place: Place, told: JsonObject, proxies: dict[str, Proxy]) -> JsonObject:
        """This site's part of a run, and what became of it."""
        names = {SERVER_INDEX: SERVER, **dict(enumerate(told["sites"]))}
        posts = {end: post_to(name, proxies[name]) for end, name in names.items() if name != place.name}
        self.mailbox.begin(told["run"])
        self.mailbox.reopen()
        self.mailbox.patience = told["patience"]
        others = {names[end]: post for end, post in posts.items() if end != SERVER_INDEX}
        if self.channels is None and others:
            identity = Identity.load(place.startup_kit)
            self.channels = Channels(identity, told["session"], others, told["give_up"])
        self._listen({name: proxy for name, proxy in proxies.items() if name != place.name})
        link = FlareLink(names, posts, self.mailbox, channels=self.channels, give_up=told["give_up"])
        try:
            outcome = self._run(place, told, names, link, lambda event: None)
            if outcome["kind"] == "done":
                link.flush()
        finally:
            link.close()
        return outcome

    def _open(self, sender: str, part: Part) -> bytes | memoryview:
        if sender == SERVER:
            return part.content
        if self.channels is None:
            raise ProcessError(f"{part.key} came before this site has begun")
        if part.key == OFFER:
            self.channels.take_offer(sender, part.content)
            return part.content
        return self.channels.opened(sender, part)

    def _beat(
        self, proxies: dict[str, Proxy], told: JsonObject, context: Context, over: threading.Event
    ) -> None:
        """Tell the server that this site is there; when it is not heard for too long, end the run."""
        set_call_context(context)
        heard = time.monotonic()
        while not over.wait(told["beat"]):
            with contextlib.suppress(Exception):  # counted below
                proxies[SERVER](timeout=told["give_up"]).alive()
                heard = time.monotonic()
            if context.is_aborted():
                self._stop(proxies, "ended the job")
            elif time.monotonic() - heard > told["give_up"]:
                self._stop(proxies, f"has not answered for {told['give_up']:g} s")


class ServerApp(_App):
    """The server's part of a job. request: JSON with `runs`, each {"run", "program", "arguments", "workers"}
    (and "simulated": whether its protocols are), `sites` in the order of the hosts, and the times in seconds
    `beat`, `give_up` and `patience`."""

    def __init__(self, request: str) -> None:
        super().__init__()
        self.request = request
        self._told = json.loads(request)
        self._heard: dict[str, float] = {}
        self._ended: dict[str, JsonObject] = {}
        self._events: list[JsonObject] = []
        self._place: Place | None = None

    @collab.publish
    def alive(self) -> None:
        """A site is there."""
        self._heard[collab.caller] = time.monotonic()

    @collab.publish
    def ended(self, run: str, outcome: str) -> None:
        """What became of a site's part of a run."""
        if run == self.mailbox.run:
            told, name = json.loads(outcome), collab.caller
            kind, text = str(told["kind"]), str(told.get("text", ""))[:MAX_TEXT]
            self._ended[name] = {"kind": kind if kind in _RANK else "failed", "text": f"{name}: {text}"}
            if kind != "done":
                self._give_up(name, f"ended the run: {text}")

    @collab.main
    def main(self) -> None:
        """Every run of the job, and what became of them, as a file of the job."""
        context, fl_ctx = get_call_context(), collab.fl_ctx
        engine, job = fl_ctx.get_engine(), fl_ctx.get_job_id()
        engine.register_app_command(COMMAND, self._answer)
        self._place = this_place()
        proxies = {proxy.name: proxy for proxy in collab.clients}
        self._listen(proxies)
        results = Path(engine.get_workspace().get_run_dir(job))
        outcomes: list[JsonObject] = []
        for run in self._told["runs"]:
            outcomes.append(self._one(self._place, run, job, proxies, context))
            self._keep(self._place.runs / run["run"], results / RESULTS / run["run"])
            if outcomes[-1]["kind"] == "lost" or self._place.stop_request.asked:
                break
        write_json(results / OUTCOMES, {"outcomes": outcomes, "events": self._events})

    @staticmethod
    def _keep(folder: Path, results: Path) -> None:
        """Put the server's files of a run where the coordinator gets them."""
        if folder.is_dir():
            shutil.copytree(folder, results, ignore=shutil.ignore_patterns("checkpoint", ".*"))

    def _one(
        self, place: Place, run: JsonObject, job: str, proxies: dict[str, Proxy], context: Context
    ) -> JsonObject:
        """One run at all places; what became of it, in the words of the place where it went wrong."""
        told = self._told
        common = {key: told[key] for key in ("sites", "beat", "give_up", "patience")}
        request = json.dumps({**common, **run, "session": job, "time": time.time()})
        names = {SERVER_INDEX: SERVER, **dict(enumerate(told["sites"]))}
        posts = {end: post_to(name, proxies[name]) for end, name in names.items() if end != SERVER_INDEX}
        self.mailbox.begin(run["run"])
        self.mailbox.reopen()
        self.mailbox.patience = told["patience"]
        link = FlareLink(names, posts, self.mailbox, channels=None, give_up=told["give_up"])
        self._heard, self._ended = dict.fromkeys(told["sites"], time.monotonic()), {}
        over = threading.Event()
        threading.Thread(target=self._watch, args=(told["give_up"], context, over), daemon=True).start()
        self._call(proxies, context, lambda proxy: proxy(timeout=CALL).start(request=request))

        def log(event: JsonObject) -> None:
            self._events.append({"run": run["run"], "event": event})

        outcome = self._run(place, run, names, link, log)
        if outcome["kind"] == "done":
            link.flush()
        else:
            left = {name: proxy for name, proxy in proxies.items() if name not in self._ended}
            self._call(left, context, lambda proxy: proxy(timeout=5.0).stop(reason="stopped the run"))
        while len(self._ended) < len(told["sites"]):
            time.sleep(0.02)  # `_watch` sees to it that this ends
        over.set()
        link.close()
        return {"run": run["run"], **_worst([outcome, *self._ended.values()])}

    def _give_up(self, name: str, why: str) -> None:
        """Wait for nobody any more: the other sites may wait for this one, and would be called silent."""
        self.mailbox.close(name, why)
        for other in self._told["sites"]:
            self.mailbox.close(other, f"cannot go on: {name} {why}")

    def _watch(self, give_up: float, context: Context, over: threading.Event) -> None:
        """Give up a site that is not heard any more."""
        while not over.wait(0.2):
            for name, heard in self._heard.items():
                why = ""
                if context.is_aborted():
                    why = "was told to end: the job was aborted"
                elif time.monotonic() - heard > give_up:
                    why = f"was not heard for {give_up:g} s"
                if why and name not in self._ended:
                    self._give_up(name, why)
                    self._ended[name] = {"kind": "lost", "text": f"{name} {why}"}

    def _call(self, proxies: Mapping[str, Proxy], context: Context, act: Callable[[Proxy], object]) -> None:
        """Call some sites at once; one that cannot be reached is given up."""

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
        """The coordinator's question: what has happened since event number `since`; with `stop`, end the
        present run once it is saved."""
        if data.get("stop") and self._place is not None:
            self._place.stop_request.asked = True
        since = int(data.get("since", 0))
        return {"events": self._events[since : since + 1000]}


def _program(name: str, place: Place) -> Program:
    """The program that a run names: one of `PROGRAMS`, or "module:function" of a module that the place's
    operator allows."""
    module, _, function = PROGRAMS.get(name, name).partition(":")
    if name not in PROGRAMS and module not in place.allow:
        raise InputError(
            f"{place.name} does not run the program {name[:200]!r}; its operator allows it with "
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


#: What becomes of a run: from the plainest reason to the one that follows from others.
_RANK = ("input", "failed", "interrupted", "lost", "done")


def _worst(outcomes: list[JsonObject]) -> JsonObject:
    return min(outcomes, key=lambda outcome: _RANK.index(outcome["kind"]))
