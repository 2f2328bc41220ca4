"""Every method runs over NVIDIA FLARE, and gives what it gives in one process: nothing there knows a
method."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from methods_under_law import METHODS
from test_placements import settings_of
from worlds import (
    World,
    config_of,
    in_thirds,
    last_round_stands,
    logits,
    make_world,
    one_each,
    one_node_each,
    run_local,
)

from graphfed.deployment.deploy import request
from graphfed.deployment.rehearsal import collect, loopback_project
from graphfed.federation import Ledger
from graphfed.federation.cohort import make_cohort, save_cohort
from graphfed.federation.payload import leaves
from graphfed.methods.base import Method
from graphfed.methods.registry import METHODS as REGISTRY
from graphfed.methods.registry import get_method
from graphfed.tasks.outcome import Outcome

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback
from graphfed.runtime.nvflare.project import Project

pytestmark = pytest.mark.slow

#: What joins a deployment and nothing else.
JOINING = ("join", "agreed")
#: Some of those that average, which do it in processes under secure aggregation (test_secure_aggregation.py).
SECURE = ("fedavg", "scaffold", "fedgat", "fedgraph")
#: Runs: a method and settings. Every method, and again where a setting has it exchange in every round what it
#: otherwise does not, or hide what it sends.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS if not get_method(name).pooled},
    "fedgat_exchange": ("fedgat", {"later": "exchange"}),
    "attention_sums_masked": ("attention_sums", {"exchange": "secure"}),
    **{f"{name}_secure": (name, {"aggregation": "secure"}) for name in SECURE},
    **({"fedgcn_encrypted": ("fedgcn", {"exchange": "encrypted"})} if find_spec("tenseal") else {}),
}
NAMES = list(RUNS)


def method_of(name: str) -> Method:
    return get_method(RUNS[name][0])


def options(name: str) -> dict[str, Any]:
    return {**settings_of(RUNS[name][0]), **RUNS[name][1]}


def world():
    return last_round_stands(make_world(1))


@dataclass(frozen=True)
class Deployed:
    """What came out of the jobs that ran every method."""

    ended: dict[str, tuple[Outcome, Ledger]]
    events: list[tuple[str, dict[str, Any]]]
    kept: list[str]


def asked(name: str, project: Project) -> dict[str, Any]:
    method = method_of(name)
    config = config_of(method, **options(name))
    return request(project, method, config, run=name, checkpoint_every=3600.0, rehearsal=True)


def deploy(names: list[str], small: World, folder: Path) -> Deployed:
    """One federation of startup kits and processes over mutual TLS, three clients, and one job in it that
    runs several methods on one world."""
    workers = in_thirds(small.clients)
    project = loopback_project([len(clients) for clients in workers])
    data = {site.name: folder / f"{site.name}.safetensors" for site in project.sites}
    for clients, path in zip(workers, data.values(), strict=True):
        save_cohort(make_cohort(small.graph, small.split, small.partition, clients), path)
    foreign = [module for name in names if (module := REGISTRY.module(RUNS[name][0]))]
    events: list[tuple[str, dict[str, Any]]] = []
    with (
        Loopback(
            project, folder / "startup_kits", data, allow=foreign, check_data=False, rehearsal=True
        ) as federation,
        federation.coordinator() as coordinator,
    ):
        outcomes = coordinator.run(
            [asked(name, project) for name in names],
            on_event=lambda run, event: events.append((run, event)),
            results=folder / "kept",
        )
        assert [(o["run"], o["kind"]) for o in outcomes] == [(name, "done") for name in names], outcomes
        ended = {name: collect(federation, method_of(name), name) for name in names}
    return Deployed(ended, events, sorted(path.name for path in (folder / "kept").iterdir()))


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """Every method: those of a client a client, and those of a node a client, a third of them at a client."""
    torch.set_default_dtype(torch.float64)
    both = [
        deploy(
            [name for name in NAMES if one_each(method_of(name)) is apart],
            one_node_each(world()) if apart else world(),
            tmp_path_factory.mktemp("deployed"),
        )
        for apart in (False, True)
    ]
    return Deployed(
        {**both[0].ended, **both[1].ended},
        [*both[0].events, *both[1].events],
        sorted([*both[0].kept, *both[1].kept]),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_deployed_run_has_the_bits_of_three_workers_in_one_process(name, deployed: Deployed):
    apart, _ = deployed.ended[name]
    together, _ = run_local(RUNS[name][0], world(), "in thirds", **options(name))
    assert torch.equal(logits(apart), logits(together))
    for value in method_of(name).state.model:
        deployed_value, local_value = apart.state.values[value], together.state.values[value]
        if deployed_value.place == "server":
            for a, b in zip(leaves(deployed_value.parts[0]), leaves(local_value.parts[0]), strict=True):
                assert torch.equal(a, b)
    assert apart.test == together.test
    assert [line["val"] for line in apart.history] == [line["val"] for line in together.history]


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_of_a_deployed_run_is_the_local_one_and_joining(name, deployed: Deployed):
    _, ledger = deployed.ended[name]
    _, fed = run_local(RUNS[name][0], world(), "in thirds", **options(name))
    entries = ledger.to_json()["entries"]
    assert [e for e in entries if e["name"] not in JOINING] == fed.ledger.to_json()["entries"]
    assert {*JOINING} <= {e["name"] for e in entries}


def test_the_coordinator_hears_of_every_round_and_gets_the_servers_files(deployed: Deployed):
    assert deployed.kept == sorted(NAMES)
    for name in NAMES:
        rounds = [
            event["round"] for run, event in deployed.events if (run, event["phase"]) == (name, "train")
        ]
        assert rounds == [1, 2, 3, 4]
