"""A rehearsal of a deployment: the runtime "nvflare" on this machine, on data that one person partitions."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from graphfed.deployment.deploy import check_outcome, request
from graphfed.deployment.participant import TRIAL
from graphfed.federation import Ledger, wire
from graphfed.federation.link import SERVER_INDEX
from graphfed.files import JsonObject
from graphfed.methods.base import Method
from graphfed.methods.config import CommonSettings
from graphfed.methods.registry import METHODS
from graphfed.runs.processes import put_together
from graphfed.runs.train import Event
from graphfed.runtime.interrupts import StopRequest, listening
from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site, Timing
from graphfed.tasks.inputs import Inputs, WorkerPart
from graphfed.tasks.outcome import Outcome
from graphfed.tasks.registry import get_task
from graphfed.tasks.run_config import RunConfig

__all__ = ["collect", "loopback_project", "run_on_loopback", "train_run"]

#: The folder of a trial's federation, in that of the run, until the run has ended.
FEDERATION = "federation"


def loopback_project(clients: Sequence[int], timing: Timing | None = None) -> Project:
    """A project on this machine: a site for every entry, which holds so many clients."""
    sites = tuple(Site(f"site-{h}", count) for h, count in enumerate(clients))
    return Project("trial", sites, port=free_port(), timing=timing or Timing())


def train_run(
    config: RunConfig,
    inputs: Inputs,
    parts: Sequence[WorkerPart],
    folder: Path | None,
    *,
    start: int | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[Outcome, Ledger]:
    """Train with a federation on this machine, one site for each part: what `train` gives, and the ledger
    of all places. The federation lives in the run's folder while it is needed.

    The caller dealt out the data, so it also gets what every place keeps: predictions, and the parts of the
    model. A deployment has no such view. start has no use: every place goes on from its own checkpoints."""
    with ExitStack() as stack:
        private = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graphfed-")))
        home = private / "federation" if folder is None else folder.resolve() / FEDERATION
        project = loopback_project([len(part.clients) for part in parts])
        data = {site.name: private / f"{site.name}.safetensors" for site in project.sites}
        for path, part in zip(data.values(), parts, strict=True):
            inputs.save_for_client(part, path)
        kind = get_task(config.task).data
        if kind.save_server is not None:
            data["server"] = private / "server.safetensors"
            kind.save_server(inputs.part_of_server(config), data["server"])
        stop_request = stack.enter_context(listening())
        plugin = METHODS.module(config.method.name)
        allow = [plugin] if plugin else []
        loopback = Loopback(project, home, data, threads=config.client_threads, allow=allow, check_data=False)
        federation = stack.enter_context(loopback)
        ended = run_on_loopback(
            federation,
            config.method,
            config.training,
            run="run",
            checkpoint_every=config.checkpoint_every,
            stop_request=stop_request,
            on_event=on_event,
        )
    if folder is not None:
        shutil.rmtree(home)
    return ended


def run_on_loopback(
    federation: Loopback,
    method: Method,
    config: CommonSettings,
    *,
    run: str,
    checkpoint_every: float,
    stop_request: StopRequest,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[Outcome, Ledger]:
    """One run of a federation on this machine whose data was dealt: see `train_run`."""
    project = federation.project
    asked = request(project, method, config, run=run, checkpoint_every=checkpoint_every, trial=True)

    def forward(_: str, event: JsonObject) -> None:
        if on_event is not None:
            on_event(Event(**event))

    with federation.coordinator() as coordinator, tempfile.TemporaryDirectory() as kept:
        outcomes = coordinator.run(
            [asked],
            on_event=forward,
            on_message=lambda news: None,
            stop_request=stop_request,
            kept=Path(kept),
        )
    check_outcome(outcomes)
    return collect(federation, method, run)


def collect(federation: Loopback, method: Method, run: str) -> tuple[Outcome, Ledger]:
    """A run of a trial that has ended, from what every place keeps of it."""
    places = {SERVER_INDEX: "server", **dict(enumerate(site.name for site in federation.project.sites))}
    parts = {}
    for end, name in places.items():
        parts[end], _ = wire.decode((federation.startup_kits[name] / "runs" / run / TRIAL).read_bytes())
    return put_together(method, parts)
