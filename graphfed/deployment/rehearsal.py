"""A rehearsal of a deployment: the runtime "nvflare" on this machine, on data that the caller partitions."""

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from graphfed.deployment.arguments import check_rule
from graphfed.deployment.deploy import check_outcome, request
from graphfed.deployment.participant import REHEARSAL_PART
from graphfed.federation import Ledger, wire
from graphfed.federation.link import SERVER_INDEX
from graphfed.files import JsonObject
from graphfed.methods.base import Method
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
from graphfed.terminal import say

#: The folder of the deployment inside the folder of the run, until the run has ended.
FEDERATION = "federation"


def loopback_project(clients: Sequence[int], timing: Timing | None = None) -> Project:
    """Make a project whose server and sites are on this machine, at a free port, with a number of clients for
    each site.
    """
    sites = tuple(Site(f"site-{number}", count) for number, count in enumerate(clients))
    return Project("rehearsal", sites, port=free_port(), timing=timing or Timing())


def train_run(
    config: RunConfig,
    inputs: Inputs,
    parts: Sequence[WorkerPart],
    folder: Path | None,
    *,
    start: int | None = None,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[Outcome, Ledger]:
    """Train with a server and sites on this machine, one site for each part of the data.

    The caller has partitioned the data, so it also gets what every site keeps in a real deployment: its
    predictions and its part of the model. The startup kits are in the folder of the run until it has ended,
    or in a temporary one if `folder` is None. `start` is not used: every participant continues from its own
    checkpoints.

    Raises InputError if a participant cannot use its settings or its data, GraphfedError if one failed or was
    lost, and Interrupted for SIGINT or SIGTERM.
    """
    check_rule(config.method, config.method.tree.listed(config.settings))
    with ExitStack() as stack:
        private = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="graphfed-")))
        # In the run's folder, where `resume` finds the checkpoints of all participants.
        home = private / "federation" if folder is None else folder.resolve() / FEDERATION
        project = loopback_project([len(part.clients) for part in parts])
        data = {site.name: private / f"{site.name}.safetensors" for site in project.sites}
        for path, part in zip(data.values(), parts, strict=True):
            inputs.save_for_client(part, path)
        kind = get_task(config.task).data
        if kind.server_has_data:
            data["server"] = private / "server.safetensors"
            kind.save_server(inputs.part_of_server(config), data["server"])
        stop_request = stack.enter_context(listening())
        plugin = METHODS.module(config.method.name)
        # The operator of all participants is the caller, who has chosen this method.
        allow = [plugin] if plugin else []
        loopback = Loopback(
            project,
            home,
            data,
            threads=config.client_threads,
            allow=allow,
            check_data=False,
            rehearsal=True,
        )
        federation = stack.enter_context(loopback)
        ended = run_on_loopback(
            federation,
            config.method,
            config.settings,
            run="run",
            checkpoint_every=config.checkpoint_every,
            stop_request=stop_request,
            on_event=on_event,
        )
    if folder is not None:
        # An error here would lose the outcome, which is not written yet.
        shutil.rmtree(home, ignore_errors=True)
        if home.exists():
            say(f"warning: {home} could not be removed; remove it, because it has keys and copies of results")
    return ended


def run_on_loopback(
    federation: Loopback,
    method: Method,
    config: Any,
    *,
    run: str,
    checkpoint_every: float,
    stop_request: StopRequest,
    on_event: Callable[[Event], None] | None = None,
) -> tuple[Outcome, Ledger]:
    """Run a method on the processes of a rehearsal; return and raise as `train_run`."""
    project = federation.project
    asked = request(project, method, config, run=run, checkpoint_every=checkpoint_every, rehearsal=True)

    def forward(_: str, event: JsonObject) -> None:
        if on_event is not None:
            on_event(Event(**event))

    with federation.coordinator() as coordinator, tempfile.TemporaryDirectory() as results:
        outcomes = coordinator.run(
            [asked],
            on_event=forward,
            stop_request=stop_request,
            results=Path(results),
        )
    check_outcome(outcomes)
    return collect(federation, method, run)


def collect(federation: Loopback, method: Method, run: str) -> tuple[Outcome, Ledger]:
    """Put the outcome and the ledger of a run that has ended together from the parts that every participant
    has saved.
    """
    names = {SERVER_INDEX: "server", **dict(enumerate(site.name for site in federation.project.sites))}
    parts = {}
    for index, name in names.items():
        path = federation.startup_kits[name] / "runs" / run / REHEARSAL_PART
        parts[index], _ = wire.decode(path.read_bytes())
    return put_together(method, parts)
