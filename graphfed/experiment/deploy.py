"""Runs over NVIDIA FLARE, seen from the coordinator: a deployed federation by its kit, or a trial of one on
this machine."""

import dataclasses
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from graphfed.errors import GraphfedError, InputError
from graphfed.experiment.config import RunConfig
from graphfed.experiment.deployed import TRIAL, versions
from graphfed.experiment.sites import put_together
from graphfed.experiment.train import Event, Outcome
from graphfed.federation import Ledger, wire
from graphfed.federation.cohort import Cohort, save_cohort
from graphfed.federation.link import SERVER_END
from graphfed.methods.base import Method, TrainingConfig
from graphfed.methods.registry import METHODS
from graphfed.runtime.interrupts import Interrupted, Wish, listening
from graphfed.runtime.nvflare.coordinator import Timing
from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site

__all__ = ["request", "run_on_loopback", "train_for_trial"]

#: The folder of a trial's federation, in that of the run, until the run has ended.
FEDERATION = "federation"
TIMING = Timing()


def request(
    project: Project,
    method: Method,
    module: str,
    config: TrainingConfig,
    *,
    run: str,
    split: str = "default",
    split_seed: int = 0,
    checkpoint_every: float,
    timing: Timing,
    trial: bool = False,
) -> dict[str, Any]:
    """One run as `Coordinator.run` takes it."""
    arguments = {
        "run": run,
        "method": method.name,
        "module": module,
        "config": dataclasses.asdict(config),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "split": split,
        "split_seed": split_seed,
        "sites": [site.name for site in project.sites],
        "roster": client_names(project),
        "checkpoint_every": checkpoint_every,
        "wait": timing.give_up,
        "time": time.time(),
        "trial": trial,
        "versions": versions(),
    }
    hosts = [list(host) for host in project.hosts]
    return {"run": run, "program": "train", "arguments": arguments, "hosts": hosts}


def client_names(project: Project) -> list[str]:
    """The names of all clients, in order: a gateway's are numbered."""
    return [
        site.name if site.clients == 1 else f"{site.name}.{i}"
        for site in project.sites
        for i in range(site.clients)
    ]


def unique(label: str) -> str:
    """A name for a run that no run had before."""
    return f"{label}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"


def loopback_project(clients: Sequence[int]) -> Project:
    """A project on this machine: a site for every entry, which holds so many clients."""
    sites = tuple(Site(f"site-{h}", count) for h, count in enumerate(clients))
    return Project("trial", sites, port=free_port())


def train_for_trial(
    config: RunConfig,
    cohorts: Sequence[Cohort],
    folder: Path | None,
    on_event: Callable[[Event], None] | None,
) -> tuple[Outcome, Ledger]:
    """Train with a federation on this machine, one site for each cohort: what `train` gives, and the ledger
    of all places. The federation lives in the run's folder while it is needed.

    The caller dealt out the data, so it also gets what every place keeps: predictions, and the parts of the
    model. A deployment has no such view."""
    with ExitStack() as stack:
        private = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graphfed-")))
        home = private / "federation" if folder is None else folder.resolve() / FEDERATION
        project = loopback_project([len(cohort.clients) for cohort in cohorts])
        data = {site.name: private / f"{site.name}.safetensors" for site in project.sites}
        for path, cohort in zip(data.values(), cohorts, strict=True):
            save_cohort(cohort, path)
        wish = stack.enter_context(listening())
        federation = stack.enter_context(Loopback(project, home, data, threads=config.site_threads))
        ended = run_on_loopback(
            federation,
            config.method,
            METHODS[config.method.name],
            config.training,
            run="run",
            checkpoint_every=config.checkpoint_every,
            wish=wish,
            on_event=on_event,
        )
    if folder is not None:
        shutil.rmtree(home)
    return ended


def run_on_loopback(
    federation: Loopback,
    method: Method,
    module: str,
    config: TrainingConfig,
    *,
    run: str,
    checkpoint_every: float,
    wish: Wish,
    timing: Timing = TIMING,
    on_event: Callable[[Event], None] | None = None,
    on_news: Callable[[str], None] = lambda news: None,
) -> tuple[Outcome, Ledger]:
    """One run of a federation on this machine whose data was dealt: see `train_for_trial`."""
    project = federation.project
    asked = request(
        project, method, module, config, run=run, checkpoint_every=checkpoint_every, timing=timing, trial=True
    )

    def forward(_: str, event: dict[str, Any]) -> None:
        if on_event is not None:
            on_event(Event(**event))

    with federation.coordinator(timing) as coordinator, tempfile.TemporaryDirectory() as kept:
        outcomes = coordinator.run([asked], on_event=forward, on_news=on_news, wish=wish, kept=Path(kept))
    check(outcomes)
    names = {SERVER_END: "server", **dict(enumerate(site.name for site in project.sites))}
    parts = {}
    for end, name in names.items():
        parts[end], _ = wire.decode((federation.kits[name] / "runs" / run / TRIAL).read_bytes())
    return put_together(method, parts)


def check(outcomes: Sequence[dict[str, Any]]) -> None:
    """Raises what a run ended with, where it did not end well."""
    if not outcomes:
        raise Interrupted("stopped before the run had begun")
    outcome = outcomes[-1]
    match outcome["kind"]:
        case "input":
            raise InputError(outcome["text"])
        case "interrupted":
            raise Interrupted(outcome["text"])
        case "failed" | "lost":
            raise GraphfedError(outcome["text"])
