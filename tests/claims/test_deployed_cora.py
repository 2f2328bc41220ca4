"""Cora over three sites of a real federation: the numbers and the bytes are those of one process."""

from pathlib import Path

import pytest
import torch

from graphfed.data.datasets import load
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import partition
from graphfed.deployment.deploy import check_outcome, request
from graphfed.deployment.rehearsal import collect, loopback_project
from graphfed.federation import Federation, Ledger
from graphfed.federation.cohort import make_cohort, save_cohort
from graphfed.federation.payload import leaves
from graphfed.methods.base import Task
from graphfed.methods.registry import get_method
from graphfed.runs.train import train
from graphfed.runtime.interrupts import StopRequest
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.outcome import Outcome

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

from graphfed.runtime.nvflare.loopback import Loopback
from graphfed.tasks.registry import default_settings

pytestmark = pytest.mark.on_demand

#: Rounds: enough to see the bits differ if they did.
RUNS = {"fedavg": 20, "fedgcn": 20, "sapgnn": 5}


def config_of(name: str):
    method = get_method(name)
    return method.configure({"rounds": RUNS[name]}, default_settings(method, preset="paper"))


@pytest.fixture(scope="module")
def cora(real_data: Path):
    graph = load("cora", real_data)
    return graph, make_split(graph, "public", 0), partition(graph, "label_dirichlet", 3, 0)


@pytest.fixture(scope="module")
def deployed(cora, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Outcome, Ledger]]:
    torch.set_default_dtype(torch.float64)
    folder, (graph, split, parts) = tmp_path_factory.mktemp("cora"), cora
    project = loopback_project([1, 1, 1])
    data = {site.name: folder / f"{site.name}.safetensors" for site in project.sites}
    for k, path in enumerate(data.values()):
        save_cohort(make_cohort(graph, split, parts, [k]), path)
    asked = [
        request(
            project, get_method(name), config_of(name),
            run=name, checkpoint_every=60.0, rehearsal=True,
        )
        for name in RUNS
    ]  # fmt: skip
    with (
        Loopback(project, folder / "startup_kits", data, check_data=False, rehearsal=True) as federation,
        federation.coordinator() as coordinator,
    ):
        outcomes = coordinator.run(
            asked,
            on_event=lambda *_: None,
            on_message=lambda _: None,
            stop_request=StopRequest(),
            results=folder / "kept",
        )
        for outcome in outcomes:
            check_outcome([outcome])
        return {name: collect(federation, get_method(name), name) for name in RUNS}


def run_here(cora, name: str, place) -> tuple[Outcome, Federation]:
    torch.set_default_dtype(torch.float64)
    graph, split, parts = cora
    fed = place(3, "cpu")
    cohorts = [make_cohort(graph, split, parts, worker) for worker in fed.workers]
    data = fed.locate("clients", "data", cohorts)
    return train(fed, get_method(name), data, Task(graph.num_features, 7), config_of(name)), fed


def weights(outcome: Outcome, name: str) -> list[torch.Tensor]:
    """Of a model that the server has, or that is the same at all sites."""
    method = get_method(name)
    values = [outcome.state.values[value] for value in method.state.model]
    return [leaf for value in values for leaf in leaves(value.parts[0])]


@pytest.mark.parametrize("name", RUNS)
def test_the_metrics_of_every_round_and_the_weights_are_those_of_the_local_runtime(name, deployed, cora):
    apart, ledger = deployed[name]
    together, fed = run_here(cora, name, stacked)
    for apart_row, together_row in zip(apart.history, together.history, strict=True):
        assert apart_row["val"] == pytest.approx(together_row["val"], abs=1e-9)
    assert apart.test == pytest.approx(together.test, abs=1e-9)
    for apart_weight, together_weight in zip(weights(apart, name), weights(together, name), strict=True):
        assert torch.allclose(apart_weight, together_weight.reshape(apart_weight.shape), rtol=0, atol=1e-9)
    bytes_here = {(e.phase, e.name): e.bytes for e in fed.ledger.entries}
    bytes_there = {(e.phase, e.name): e.bytes for e in ledger.entries}
    assert {key: bytes_there[key] for key in bytes_here} == bytes_here
    assert set(bytes_there) - set(bytes_here) == {("control", "join"), ("control", "agreed")}


@pytest.mark.parametrize("name", RUNS)
def test_the_bits_are_those_of_one_client_at_a_time(name, deployed, cora):
    apart, _ = deployed[name]
    together, _ = run_here(cora, name, one_at_a_time)
    assert all(
        torch.equal(apart_weight, together_weight)
        for apart_weight, together_weight in zip(weights(apart, name), weights(together, name), strict=True)
    )
    assert [line["val"] for line in apart.history] == [line["val"] for line in together.history]
