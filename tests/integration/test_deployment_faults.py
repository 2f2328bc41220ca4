"""Deployed runs that somebody or something disturbs, on real processes: the numbers stay, or the run ends
cleanly and can be resumed."""

import contextlib
import gc
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from social_sites import write_parts

from graphfed.data.datasets import load
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.deployment.deploy import check_outcome, request
from graphfed.deployment.rehearsal import collect, loopback_project
from graphfed.errors import GraphfedError
from graphfed.federation.cohort import make_cohort, save_cohort
from graphfed.federation.payload import leaves
from graphfed.methods.base import Task
from graphfed.methods.registry import get_method
from graphfed.runs.train import train
from graphfed.runtime.interrupts import Interrupted, StopRequest
from graphfed.runtime.local import stacked
from graphfed.tasks.outcome import Outcome

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

import psutil

from graphfed.runtime.nvflare.coordinator import Unreachable
from graphfed.runtime.nvflare.loopback import Loopback
from graphfed.runtime.nvflare.project import Project, Site, Timing
from graphfed.tasks.registry import default_settings

# When a server vanishes, FLARE leaves the sockets of the coordinator's session to the garbage collector.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

#: Short enough to be noticed in a test, long enough for a busy machine.
TIMING = Timing(beat=1.0, give_up=8.0, deadline=120.0, patience=240.0)
#: So many that a run does not end before what disturbs it is heard.
ROUNDS = 120


class Trial:
    """A federation of three sites that train fedavg on a part of `social` each."""

    def __init__(self, folder: Path, timing: Timing = TIMING) -> None:
        self.project = loopback_project([1, 1, 1], timing)
        data = write_parts(folder, self.project, 300)
        self.folder, self.stop_request = folder, StopRequest()
        self.federation = Loopback(
            self.project,
            folder / "startup_kits",
            data,
            allow=["deployment_programs"],
            check_data=False,
            rehearsal=True,
        )

    def run(self, run: str, on_round: Callable[[int], None] = lambda number: None) -> Outcome:
        """Train; `on_round` is called with each round that is reported to the coordinator."""
        method = get_method("fedavg")
        config = method.configure(
            {"rounds": ROUNDS, "hidden": 8, "lr": 0.1}, default_settings(method, preset="paper")
        )
        asked = request(self.project, method, config, run=run, checkpoint_every=0.1, rehearsal=True)
        self.messages: list[str] = []
        with self.federation.coordinator() as coordinator:
            outcomes = coordinator.run(
                [asked],
                on_event=lambda _, event: on_round(event["round"]),
                on_message=self.messages.append,
                stop_request=self.stop_request,
                results=self.folder / "kept",
            )
        check_outcome(outcomes)
        return collect(self.federation, method, run)[0]

    def wait_until_all_are_there(self) -> None:
        """However long their processes take to start here."""
        end = time.monotonic() + 180
        with self.federation.coordinator() as coordinator:
            while True:
                with contextlib.suppress(Unreachable):
                    if len(coordinator.connected()) == 3:
                        return
                assert time.monotonic() < end, "the sites do not connect"
                time.sleep(0.5)

    def kill(self, name: str) -> None:
        """kill -9 of all processes of a place."""
        first = psutil.Process(self.federation.pid(name))
        family = [first, *first.children(recursive=True)]
        for process in family:
            process.kill()
        psutil.wait_procs(family, timeout=10)

    def killed_at(self, name: str, number: int, back_after: float | None) -> Callable[[int], None]:
        """Kills a place once, when a round is heard of, and starts it again after some seconds."""
        done = threading.Event()

        def on_round(now: int) -> None:
            if now < number or done.is_set():
                return
            done.set()
            self.kill(name)
            if back_after is not None:
                threading.Timer(back_after, self.federation.start, [name]).start()

        return on_round


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    torch.set_default_dtype(torch.float32)
    made = Trial(tmp_path_factory.mktemp("trial"))
    with made.federation:
        yield made
    gc.collect()
    family = psutil.Process().children(recursive=True)
    assert not [p for p in family if "nvflare" in " ".join(p.cmdline())], "the federation left processes"


@pytest.fixture(scope="module")
def undisturbed(trial: Trial) -> Outcome:
    return trial.run("undisturbed")


def same(one: Outcome, two: Outcome) -> bool:
    """Whether two runs have the same bits: weights, metrics of every round, predictions."""
    weights = zip(leaves(one.state.weights.parts[0]), leaves(two.state.weights.parts[0]), strict=True)
    rows = zip(one.predictions.parts, two.predictions.parts, strict=True)
    return (
        all(torch.equal(a, b) for a, b in weights)
        and all(torch.equal(a[1], b[1]) for a, b in rows)
        and [line["val"] for line in one.history] == [line["val"] for line in two.history]
        and one.test == two.test
    )


@pytest.mark.parametrize("place", ["site-1", pytest.param("server", marks=pytest.mark.on_demand)])
def test_a_place_that_is_killed_and_comes_back_leaves_no_trace_in_the_weights(
    place: str, trial: Trial, undisturbed: Outcome
) -> None:
    ended = trial.run(f"killed-{place}", trial.killed_at(place, 20, back_after=10.0))
    assert any("the run continues from the last checkpoint" in message for message in trial.messages), (
        "nothing was disturbed"
    )
    assert same(ended, undisturbed)


def test_a_site_that_never_returns_ends_the_run_saved_and_resumable(
    tmp_path: Path, undisturbed: Outcome
) -> None:
    short = Trial(tmp_path, Timing(beat=1.0, give_up=6.0, deadline=120.0, patience=25.0))
    with short.federation:
        short.wait_until_all_are_there()
        began = time.monotonic()
        with pytest.raises(GraphfedError, match=r"site-2 did not come back within 25 s; .* is saved"):
            short.run("left", short.killed_at("site-2", 20, back_after=None))
        assert time.monotonic() - began < 180
        saved = sorted((short.federation.startup_kits["site-0"] / "runs" / "left" / "checkpoint").iterdir())
        assert saved, "nothing was saved"
        short.federation.start("site-2")
        short.wait_until_all_are_there()
        assert same(short.run("left"), undisturbed)


def test_a_stop_request_saves_everywhere_and_the_run_goes_on_later(
    trial: Trial, undisturbed: Outcome
) -> None:

    def stop(number: int) -> None:
        trial.stop_request.asked = trial.stop_request.asked or number >= 10

    with pytest.raises(Interrupted):
        trial.run("stopped", stop)
    trial.stop_request.asked = False
    assert same(trial.run("stopped"), undisturbed)


def test_what_no_honest_place_sends_is_refused_with_its_reason_and_the_run_goes_on(trial: Trial) -> None:
    run = {"run": "hostile", "program": "deployment_programs:hostile", "arguments": {"run": "hostile"}}
    run["workers"] = [list(worker) for worker in trial.project.workers]
    with trial.federation.coordinator() as coordinator:
        outcomes = coordinator.run([run], results=trial.folder / "kept")
    assert [outcome["kind"] for outcome in outcomes] == ["done"], outcomes
    content = {
        name: json.loads((startup_kit / "runs" / "hostile" / "received.json").read_text())
        for name, startup_kit in trial.federation.startup_kits.items()
        if name != "coordinator"
    }
    refused = content["site-0"]["refused"]
    for what, reason in {
        "too large": "at most 1073741824 are read",
        "a part too long": "has a part of more than",
        "no such part": "has no part 7 of 1",
        "cut short": "has 3 bytes and not 5",
        "no key": "has no key that can be used",
        "no number": "are not whole numbers",
        "not sealed": "does not open",
        "altered": "does not open: it was altered",
    }.items():
        assert reason in refused[what], what
    assert refused["whole"] == ""
    for name, me in (("server", -1), ("site-0", 0), ("site-1", 1), ("site-2", 2)):
        others = {str(end): f"from {end}" for end in (-1, 0, 1, 2) if end != me}
        assert content[name]["arrived"] == others


@pytest.mark.on_demand
def test_a_gateway_of_a_hundred_clients_gives_what_a_hundred_clients_give(tmp_path: Path) -> None:
    """`social` over 120 clients: a gateway with 100, another with 19, and a site with one."""
    torch.set_default_dtype(torch.float64)
    graph = load("social", None, num_nodes=1200)
    split = make_split(graph, "random:0.5,0.25,0.25", 0)
    partitioned = partition(graph, "random", 120, 0)
    project = Project(
        "gateways", (Site("hub", 100), Site("chain", 19), Site("shop")), port=loopback_project([1]).port
    )
    data = {}
    for site, clients in zip(project.sites, project.workers, strict=True):
        data[site.name] = tmp_path / f"{site.name}.safetensors"
        save_cohort(make_cohort(graph, split, partitioned, clients), data[site.name])
    method = get_method("fedavg")
    config = method.configure({"rounds": 5, "hidden": 8}, default_settings(method, preset="paper"))
    asked = request(project, method, config, run="gateways", checkpoint_every=60, rehearsal=True)
    with (
        Loopback(project, tmp_path / "startup_kits", data, check_data=False, rehearsal=True) as federation,
        federation.coordinator() as coordinator,
    ):
        outcomes = coordinator.run([asked], results=tmp_path / "kept")
        check_outcome(outcomes)
        apart, ledger = collect(federation, method, "gateways")
    fed = stacked(120, "cpu")
    cohort = make_cohort(graph, split, partitioned, range(120))
    located = fed.locate("clients", "data", [cohort])
    together = train(fed, method, located, Task(graph.num_features, graph.num_classes), config)
    for a, b in zip(
        leaves(apart.state.weights.parts[0]), leaves(together.state.weights.parts[0]), strict=True
    ):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)
    assert apart.test == pytest.approx(together.test, abs=1e-9)
    first = {(e["phase"], e["name"]): e["bytes"] for e in ledger.to_json()["entries"]}
    for entry in fed.ledger.to_json()["entries"]:
        assert first[entry["phase"], entry["name"]] == entry["bytes"], entry["name"]
