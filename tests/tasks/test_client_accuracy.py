"""The accuracy of clients on their own nodes: every client has the same weight."""

import math

import numpy as np
import pytest
import torch
from worlds import ThreeWorkers, World, by_node, make_world, run_local, run_processes

from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.federation.cohort import make_cohort
from graphfed.tasks.graphs.client_accuracy import (
    BINS,
    accept_sums,
    accuracy_parts,
    accuracy_sums,
    client_metrics,
    own_accuracy,
)
from graphfed.tasks.outcome import Outcome

NAMES = ("client_accuracy", "client_accuracy_std", "client_accuracy_min")


def accuracies(world: World, outcome: Outcome, part: str = "test") -> list[float]:
    """Client by client, from the predictions, those that have nodes of the part."""
    predicted = by_node(outcome, world).argmax(1).numpy()
    owner = world.partition.held_client[np.argsort(world.partition.held_id)]
    found = []
    for client in range(world.clients):
        rows = np.flatnonzero((owner == client) & getattr(world.split, part))
        if len(rows):
            found.append(float((predicted[rows] == world.graph.y[rows]).mean()))
    return found


def unequal_world() -> World:
    """Client 0 has 40 nodes, client 1 has 17 and client 2 has 3."""
    return make_world(assignment=np.repeat([0, 1, 2], [40, 17, 3]))


@pytest.mark.parametrize("name", ["fedavg", "isolated"])
def test_the_metrics_are_those_of_a_loop_over_clients(name: str) -> None:
    world = unequal_world()
    outcome, _ = run_local(name, world)
    for part, metrics in (("test", outcome.test), ("val", outcome.val)):
        assert metrics is not None
        own = accuracies(world, outcome, part)
        assert metrics["client_accuracy"] == pytest.approx(np.mean(own), abs=1e-12)
        assert metrics["client_accuracy_std"] == pytest.approx(np.std(own), abs=1 / BINS)
        assert metrics["client_accuracy_min"] == pytest.approx(min(own), abs=0.5 / BINS + 1e-12)
    assert outcome.test is not None
    assert outcome.test["client_accuracy"] != outcome.test["accuracy"]


def test_a_client_without_nodes_does_not_count_and_an_owner_of_shared_nodes_counts_them_in_full() -> None:
    y = np.array([0, 1, 0, 1])
    graph = make_graph("g", np.ones((4, 1), np.float32), y, [], num_classes=2)
    none, every = np.zeros(4, bool), np.ones(4, bool)
    assigned = from_assignment(graph, np.array([0, 0, 0, 2]), num_clients=3)
    cohort = make_cohort(graph, Split("test", none, none, every), assigned, range(3))
    z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [math.nan, 0.0], [0.0, 1.0]])
    accuracy = own_accuracy(cohort, z, "test")
    assert accuracy[0] == pytest.approx(1 / 3)  # the second is wrong, the third not finite
    assert accuracy[1].isnan()
    assert accuracy[2] == 1
    found = client_metrics(accuracy_sums(accuracy))
    assert found["client_accuracy"] == pytest.approx(2 / 3)
    assert found["client_accuracy_min"] == 0.333


def test_the_sums_are_those_of_the_clients_parts_and_without_clients_nothing_is_known() -> None:
    accuracy = torch.tensor([0.25, math.nan, 1.0, 0.25, 0.0], dtype=torch.float64)
    parts, sums = accuracy_parts(accuracy), accuracy_sums(accuracy)
    assert {k: v.sum(0).tolist() for k, v in parts.items()} == {k: v.tolist() for k, v in sums.items()}
    assert all(math.isnan(v) for v in client_metrics(accuracy_sums(accuracy[:0])).values())


def test_a_process_cannot_send_accuracies_of_more_clients_than_it_has_nor_above_one() -> None:
    sums = accuracy_sums(torch.tensor([0.5, 1.0], dtype=torch.float64))
    most = np.array([3, 4])
    assert accept_sums(sums, most) == ""
    assert "2 clients, and the process has 1" in accept_sums(sums, most[:1])
    assert "sum of accuracies" in accept_sums({**sums, "client_accuracy": torch.tensor(2.5)}, most)
    assert "sum of accuracies" in accept_sums({**sums, "client_accuracy": torch.tensor(math.nan)}, most)
    assert "counts of clients" in accept_sums({**sums, "client_bins": sums["client_bins"][1:]}, most)


def test_secure_aggregation_gives_the_same_metrics() -> None:
    world = unequal_world()
    plain, _ = run_local("fedavg", world)
    hidden, _ = run_local("fedavg", world, aggregation="secure", protocols="simulated")
    assert plain.test is not None
    assert hidden.test is not None
    assert plain.test["accuracy"] == hidden.test["accuracy"]
    assert [hidden.test[name] for name in NAMES] == pytest.approx(
        [plain.test[name] for name in NAMES], abs=1e-7
    )


@pytest.mark.slow
def test_separate_processes_give_the_same_metrics(three_clients: ThreeWorkers) -> None:
    world = unequal_world()
    together, _ = run_local("isolated", world)
    apart, _ = run_processes("isolated", world, three_clients)
    assert together.test is not None
    assert apart.test is not None
    assert [apart.test[name] for name in NAMES] == pytest.approx(
        [together.test[name] for name in NAMES], abs=1e-12
    )
