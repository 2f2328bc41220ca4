"""What a client computes of other clients' features from the gradients for its generators in FedSage+: with
few nodes the closest features exactly, with many their mean, and the same from secure sums."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audited_runs import planned
from torch import Tensor
from worlds import make_world

import graphfed
from graphfed.audit.attacks.fedsage import (
    TOLERANCE,
    Found,
    System,
    attack_gradients,
    attack_steps,
    changes,
    received_systems,
    solve,
)
from graphfed.audit.attacks.fedsage import run as fedsage_gradients
from graphfed.audit.base import AuditedRun, Finding
from graphfed.audit.run import Audit, audit
from graphfed.audit.transcript import dense_rows
from graphfed.data.graphs.graph import Graph

#: 60 nodes, so at most 30 per client and 64 + 1 columns; and settings that take less than a second.
FEW, MANY = {"hidden": 64}, {"hidden": 4}
SETTINGS = {"generator_steps": 5, "cross_steps": 2}


def graph_of(clients: int, *, sparse: bool = True) -> Graph:
    """A random graph with a split and a division among clients."""
    world = make_world(clients=clients, sparse=sparse)
    client = world.partition.held_client[np.argsort(world.partition.held_node)]
    return dataclasses.replace(
        world.graph, split=world.split, clients=client, client_names=tuple("abc"[:clients])
    )


def audited(folder: Path, graph: Graph, **settings: Any) -> Audit:
    settings = {**SETTINGS, **settings}
    graphfed.run("fedsage_plus", data=graph, rounds=1, threads=1, out=folder, settings=settings)
    return audit(folder, data=graph)


def found(folder: Path, graph: Graph, **settings: Any) -> Finding:
    return audited(folder, graph, **settings).findings["fedsage_gradients"]


def opened(graph: Graph, **settings: Any) -> AuditedRun:
    return planned("fedsage_plus", data=graph, settings={**SETTINGS, **settings})


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_few_nodes_give_every_closest_feature_away(sparse: bool, tmp_path: Path) -> None:
    finding = found(tmp_path / "run", graph_of(2, sparse=sparse), **FEW)
    assert finding.value == 1
    assert finding.no_signal == 0
    assert finding.leaks
    assert finding.verdict.startswith("leaks exactly: clients compute these features")
    figures = finding.details
    assert figures["determined"] == figures["recovered"] == figures["neighbours"] > 20
    assert figures["largest_error"] < 1e-5


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_of_two_clients_the_solutions_are_features_of_nodes_of_the_other(sparse: bool) -> None:
    run = opened(graph_of(2, sparse=sparse), **FEW)
    cohort = run.transcript.cohort
    assert cohort.x is not None
    features = dense_rows(cohort.x, np.arange(cohort.num_rows))
    of_client = [features[cohort.client == k] for k in (0, 1)]
    steps = list(received_systems(run.transcript, run.config.settings.exchange.generated))
    assert len(steps) == SETTINGS["cross_steps"]
    for system in (system for systems in steps for system in systems):
        solutions, _ = solve(system.z, system.moments)
        own, other = of_client if torch.allclose(system.own, of_client[0].mean(0)) else of_client[::-1]
        assert torch.cdist(solutions, other).min(1).values.max() < 1e-5
        assert torch.cdist(solutions, own).min(1).values.max() > 0.1


def test_many_nodes_give_the_mean_away_and_a_better_guess_at_single_ones(tmp_path: Path) -> None:
    finding = found(tmp_path / "run", graph_of(2), **MANY)
    figures = finding.details
    assert 0 < figures["determined"] <= figures["recovered"] < figures["neighbours"]
    assert figures["mean_error"] < 1e-5
    assert figures["explained_without"] + 0.1 < figures["explained"] < 0.95
    assert finding.leaks


def system_of(z: Tensor, y: Tensor) -> System:
    """A client with V = (2, 0) for the y [m, 1], whose own mean is 9."""
    matrix = torch.tensor([[2.0, 0]]).double()
    gradient = 2 * (matrix @ (z.T @ z) - y.T @ z)
    return System((0, 0), z, matrix, gradient, 1, torch.tensor([9.0]).double(), y, y.long())


def test_the_figures_of_a_system_are_those_of_a_calculation_by_hand() -> None:
    """Three y = 0, 1, 5 with z = (0, 1), (1, 1), (2, 1) and V = (2, 0). The moments are (11, 6) and V S =
    (10, 6). The line through the y is -0.5 + 2.5 z: errors 0.5, 1, 0.5, sum of squares 1.5 of 14 around the
    mean 2. V generates 0, 2, 4: one exactly, and errors 1, 1."""
    z = torch.tensor([[0.0, 1], [1, 1], [2, 1]]).double()
    y = torch.tensor([[0.0], [1], [5]]).double()
    figures = attack_gradients([system_of(z, y)])
    assert figures.mean_error == pytest.approx(0, abs=1e-12)
    assert figures.explained == pytest.approx(1 - 1.5 / 14)
    assert figures == Found(
        neighbours=3,
        determined=0,
        recovered=0,
        recovered_without=1,
        largest_error=0,
        mean_error=figures.mean_error,
        explained=figures.explained,
        explained_without=1 - 2 / 14,
    )


def test_secure_aggregation_leaves_a_client_what_it_computes(tmp_path: Path) -> None:
    """The client's sum is rounded to multiples of 2^-25, and otherwise the same."""
    pytest.importorskip("cryptography", reason="secure aggregation needs the extra 'secure'")
    plaintext, secure = (
        found(tmp_path / aggregation, graph_of(3), aggregation=aggregation, **MANY)
        for aggregation in ("plaintext", "secure")
    )
    ledger = (tmp_path / "secure" / "ledger.json").read_text()
    assert "fedsage/feature_gradients/masked" in ledger
    assert "these sums" in secure.verdict
    assert secure.value == plaintext.value
    assert secure.value is not None
    assert secure.value > 0
    for name, figure in plaintext.details.items():
        assert secure.details[name] == pytest.approx(figure, abs=1e-5)


def test_gradients_with_noise_show_neither_features_nor_their_mean() -> None:
    """Counted is what agrees with the features, not what should."""
    run = opened(graph_of(2), **FEW)
    draw = torch.Generator().manual_seed(0)
    noised = tuple(
        dataclasses.replace(t, payload=t.payload + 1000 * torch.randn(t.payload.shape, generator=draw))
        if t.name == "fedsage/feature_gradient"
        else t
        for t in run.transcript.observed_transfers
    )
    run.__dict__["transcript"] = dataclasses.replace(run.transcript, observed_transfers=noised)
    finding = fedsage_gradients(run)
    assert finding.value == 0
    assert finding.details["mean_error"] > TOLERANCE
    assert finding.leaks is False
    assert finding.verdict.startswith("no leak found")


def test_clients_without_local_edges_have_nothing_to_compute() -> None:
    """Every edge is between the two clients, so no client hides a neighbour."""
    graph = graph_of(2)
    one, two = (graph.clients[end] for end in graph.edges)  # type: ignore[index]
    graph = dataclasses.replace(graph, edges=graph.edges[:, one != two])
    finding = fedsage_gradients(opened(graph, **FEW))
    assert finding.leaks is False
    assert finding.verdict == "no leak: the gradients are 0"


def test_without_cross_steps_the_check_does_not_apply(tmp_path: Path) -> None:
    result = audited(tmp_path / "run", graph_of(2), cross_steps=0)
    assert result.skipped["fedsage_gradients"] == "the run had no transfer fedsage/feature_gradient"


# ---- all steps ----

Z = torch.tensor([[0.0, 1], [1, 1], [2, 1]]).double()
Y = torch.tensor([[0.0], [1], [5]]).double()


def test_a_change_of_one_closest_node_shows_whose_it_is_and_the_difference_of_the_features() -> None:
    """Three nodes and two columns, so one step determines no y. The second y changes from 1 to 4."""
    after = Y + torch.tensor([[0.0], [3], [0]])
    nodes, difference = changes(Z, (after - Y).T @ Z, 1e-9)
    assert nodes.tolist() == [1]
    assert difference.item() == pytest.approx(3)
    figures = attack_steps([[system_of(Z, Y)], [system_of(Z, after)]])
    assert (figures.steps, figures.changed, figures.differences) == (2, 1, 1)
    assert figures.vectors == figures.vectors_first == 0


@pytest.mark.parametrize("change", [[[0.0], [0], [0]], [[1.0], [3], [0]]], ids=["none", "two"])
def test_as_many_changes_as_columns_and_no_change_show_nothing(change: list[list[float]]) -> None:
    after = Y + torch.tensor(change)
    assert len(changes(Z, (after - Y).T @ Z, 1e-9)[0]) == 0
    figures = attack_steps([[system_of(Z, Y)], [system_of(Z, after)]])
    assert (figures.changed, figures.differences) == (sum(row[0] > 0 for row in change), 0)


def test_differences_hidden_in_noise_are_not_counted() -> None:
    after = Y + torch.tensor([[0.0], [3], [0]])
    assert len(changes(Z, (after - Y).T @ Z, 10.0)[0]) == 0
    noised = dataclasses.replace(system_of(Z, after), gradient=system_of(Z, after).gradient + 1)
    assert attack_steps([[system_of(Z, Y)], [noised]]).differences == 0


def test_more_steps_show_more_vectors_exactly(tmp_path: Path) -> None:
    """Two clients and at most H + 1 nodes: every step determines the nodes that are closest then."""
    one, many = (
        found(tmp_path / str(steps), graph_of(2), cross_steps=steps, generator_lr=0.1, **FEW).details
        for steps in (1, 8)
    )
    assert one["vectors"] == one["vectors_first"] == many["vectors_first"] > 0
    assert many["steps"] == 8
    assert many["vectors"] > one["vectors"]


def test_later_steps_show_differences_of_features_that_no_step_determines(tmp_path: Path) -> None:
    finding = found(tmp_path / "run", graph_of(2), cross_steps=12, hidden=8)
    figures = finding.details
    assert figures["recovered"] < figures["neighbours"]
    assert 0 < figures["differences"] <= figures["changed"]
    assert "compute the difference of the features exactly" in finding.result
    single = found(tmp_path / "single", graph_of(2), cross_steps=1, hidden=8).details
    assert single["changed"] == single["differences"] == 0
