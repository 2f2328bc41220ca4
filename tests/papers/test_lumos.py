"""Lumos as a whole: trainers, balancers, secure comparisons and sums do not change its results; and
per-client statistics.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import link_worlds
import pytest
import torch
from balanced_graphs import Balanced, run_apart, run_here
from worlds import (
    ThreeWorkers,
    World,
    having,
    in_thirds,
    last_round_stands,
    logits,
    make_world,
    run_local,
    run_processes,
)

from graphfed.crypto.ot import TwoParty
from graphfed.data.graphs.social import make_social
from graphfed.errors import InputError
from graphfed.federation import Federation, Ledger
from graphfed.methods.base import Task
from graphfed.methods.lumos import client_trees, feature_encoding
from graphfed.methods.lumos import method as lumos
from graphfed.methods.lumos.client_trees import pool_matrix
from graphfed.methods.parts import Network
from graphfed.nn.sparse import spmm
from graphfed.runs.train import train
from graphfed.tasks.outcome import Outcome

ROUNDS, H = 4, 5
#: A run of each task, by the same settings.
Run = Callable[..., tuple[Outcome, Federation]]


def classified(**settings: Any) -> tuple[Outcome, Federation]:
    return run_local("lumos", make_world(1), **settings)


def linked(**settings: Any) -> tuple[Outcome, Federation]:
    return link_worlds.run_local("lumos", link_worlds.link_world(1), **settings)


TASKS = pytest.mark.parametrize("run", [classified, linked], ids=["classification", "link prediction"])


def sizes(ledger: Ledger) -> list[dict[str, Any]]:
    """The entries of the ledger without their protections, sorted."""
    statistics = [{**entry, "protection": ""} for entry in ledger.to_json()["entries"]]
    return sorted(statistics, key=lambda entry: (entry["phase"], entry["name"]))


# ---- trainers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("backbone", ["gcn", "gat"])
@TASKS
@pytest.mark.sampled(5)
def test_both_trainers_give_the_same_results_and_the_same_ledger(
    run: Run, backbone: str, layers: int
) -> None:
    options = {"backbone": backbone, "layers": layers, "heads": 2, "dropout": 0.3, "weight_decay": 1e-2}
    options = having("lumos", **options, fill_trees=layers == 2)
    fast, fed = run(trainer="fused", **options)
    slow, oracle = run(trainer="general", **options)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    for line, again in zip(fast.history, slow.history, strict=True):
        assert line["val"] == pytest.approx(again["val"], abs=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@TASKS
def test_without_virtual_nodes_it_is_another_network_on_the_same_trees(run: Run) -> None:
    trees, fed = run()
    plain, other = run(virtual_nodes=False)
    assert not torch.allclose(logits(trees), logits(plain), atol=1e-3)
    assert fed.ledger.totals()["by_transfer"] == other.ledger.totals()["by_transfer"]


# ---- balancers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fill", [False, True], ids=["trimmed", "filled"])
@pytest.mark.parametrize("balancer", ["none", "greedy", "local", "mcmc", "oracle"])
def test_every_balancer_leads_to_the_same_numbers_in_every_placement(balancer: str, fill: bool) -> None:
    options = {"balancer": balancer, "fill_trees": fill, "mcmc_steps": 3, "rounds": 2, "dropout": 0.3}
    options = having("lumos", **options)
    fast, fed = classified(**options)
    slow, oracle = run_local("lumos", make_world(1), "in thirds", **options)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.slow
def test_comparisons_by_the_protocol_train_on_the_same_trees_for_the_same_bytes(
    three_clients: ThreeWorkers,
) -> None:
    world = last_round_stands(make_world(1))
    ideal, fed = run_local("lumos", world)
    real, ledger = run_processes("lumos", world, three_clients, protocols="real")
    assert torch.allclose(logits(ideal), logits(real), rtol=0, atol=1e-9)
    assert sizes(ledger) == sizes(fed.ledger)
    assert ideal.details == real.details
    hidden = {e.name: e.protection for e in ledger.entries if e.name.endswith(("/compare", "/session"))}
    assert hidden == {
        "balance/session": "public",
        "balance/degrees/compare": "encrypted",
        "balance/workloads/compare": "encrypted",
    }


@pytest.mark.on_demand
def test_two_hundred_clients_with_real_comparisons_get_the_assignment_of_the_simulation(
    three_clients: ThreeWorkers,
) -> None:
    """In one process and in three, with real sessions between all neighbours."""
    edges = make_social(num_nodes=200, average_degree=4.0).edges
    statistics = {"balancer": "local", "degree_bits": 6, "shuffle_rounds": 3}
    ideal = run_here(edges, [tuple(range(200))], **statistics)
    for real in (
        run_here(edges, [tuple(range(200))], simulated=False, **statistics),
        run_apart(edges, three_clients.of(200), simulated=False, **statistics),
    ):
        assert (real.local, real.remote, real.outcomes) == (ideal.local, ideal.remote, ideal.outcomes)
        assert (real.counts, real.maxima) == (ideal.counts, ideal.maxima)
        assert bytes_of(real) == bytes_of(ideal)


def bytes_of(found: Balanced) -> dict[str, tuple[list[int], list[int]]]:
    return {entry["name"]: (entry["sent"], entry["received"]) for entry in found.ledger["entries"]}


def test_a_node_is_the_mean_of_all_leaves_that_stand_for_it() -> None:
    """Eq. (31): its own copies, one for each neighbour in its tree, and the leaves that arrive."""
    rng = torch.Generator().manual_seed(0)
    own, arrived = torch.randn(5, 3, generator=rng), torch.randn(4, 3, generator=rng)
    of_own, of_arrived = torch.tensor([0, 0, 1, 2, 3]), torch.tensor([1, 1, 3, 0])
    leaves = torch.bincount(of_own, minlength=4) + torch.bincount(of_arrived, minlength=4)
    pooled = spmm(pool_matrix(of_own, leaves), own) + spmm(pool_matrix(of_arrived, leaves), arrived)
    for u in range(4):
        standing = torch.cat([own[of_own == u], arrived[of_arrived == u]])
        assert torch.allclose(pooled[u], standing.mean(0))


FACTS = ("balance_rounds", "balance_calls", "candidate_pairs")


def test_simulated_comparisons_run_where_no_cryptography_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither before nor after the features are sent is a real session opened."""
    monkeypatch.setattr(TwoParty, "__init__", lambda *_, **__: pytest.fail("a real session was opened"))
    for options in ({"balancer": "local"}, {"balancer": "mcmc", "mcmc_steps": 2}):
        classified(**options, rounds=1)


def test_the_facts_count_the_rounds_and_the_comparisons_of_balancing() -> None:
    """The local rule compares degrees, then workloads before every round of offers, and once more at the end.
    Every client reports to the server each time.
    """
    for shuffles in (0, 2):
        outcome, fed = classified(balancer="local", shuffle_rounds=shuffles)
        (said,) = [e for e in fed.ledger.entries if e.name == "balance/can_give"]
        rounds = said.messages // 60 - 1 + shuffles
        assert rounds >= 2
        assert outcome.details["balance_rounds"] == rounds
        assert outcome.details["balance_calls"] == 1 + rounds + 1
        assert {type(outcome.details[name]) for name in outcome.details if name in FACTS} == {int}
        assert {*FACTS} <= {*outcome.details}


def test_a_client_with_all_others_as_neighbours_draws_no_negatives() -> None:
    """A client with a single other client that is no neighbour draws that one every time."""
    forest = SimpleNamespace(num_pairs=3, ids=(None, torch.tensor([71, 72, 73])))
    trees: Any = SimpleNamespace(forest=forest, leaf_owners=torch.tensor([0, 0, 1]))
    # Client 0 has the neighbours 1, 2 and 3 of four; client 1 has all but client 3.
    exclusions = client_trees.make_exclusions(
        lumos.PairRows(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 2, 3, 0, 2])), torch.arange(4), 4
    )
    drawn = client_trees.draw_negatives(trees, exclusions, torch.arange(4), 4, 1)
    assert drawn.client.tolist() == [1] * 4
    assert drawn.ids.tolist() == [3] * 4


# ---- gradients in a secure sum -----------------------------------------------------------------------------


@pytest.mark.parametrize("backbone", ["gcn", "gat"])
@TASKS
def test_gradients_in_a_secure_sum_train_the_same_model(run: Run, backbone: str) -> None:
    """Within the fixed point of the sum, 60 parts off by 2^-25 each, and Adam's division by small numbers."""
    options = having("lumos", rounds=2, optimizer="sgd", backbone=backbone, heads=2)
    plaintext, _ = run(**options)
    hidden, fed = run(**options, aggregation="secure", protocols="simulated")
    assert torch.allclose(logits(plaintext), logits(hidden), rtol=0, atol=1e-5)
    assert not [e for e in fed.ledger.entries if e.name == "model/grad"]
    by_name = {e.name: e for e in fed.ledger.entries if e.phase == "train"}
    assert by_name["lumos/gradient/masked"].protection == "simulated"


@TASKS
@pytest.mark.slow
def test_with_secure_sums_the_server_reads_nothing_of_a_single_client(run: Run) -> None:
    """Every transfer to the server, by what protects it: labels, roles, scores and gradients are in sums."""
    _, fed = run(rounds=2, aggregation="secure", protocols="real", balancer="greedy")
    assert {e.name: e.protection for e in fed.ledger.entries if e.direction == "up"} == {
        f"{what}/{step}": protection
        for what in ("contributors", "lumos/gradient", "scores")
        for step, protection in (
            ("keys", "public"),
            ("sealed_shares", "encrypted"),
            ("masked", "aggregate"),
            ("unmask", "shared"),
        )
    }
    _, fed = run(rounds=2, aggregation="plaintext", balancer="greedy")
    assert ("model/grad", "plaintext") in {(e.name, e.protection) for e in fed.ledger.entries}


def test_a_secure_sum_is_the_same_in_every_placement() -> None:
    options = {"rounds": 2, "aggregation": "secure", "protocols": "simulated", "dropout": 0.3}
    fast, fed = classified(**options)
    slow, oracle = run_local("lumos", make_world(1), "one at a time", **options)
    assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


# ---- per-client statistics ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"balancer": "greedy"}, {"pad_bins": 3}, {"fill_trees": True}], ids=str
)
@TASKS
def test_the_statistics_of_the_clients_agree_with_the_ledger(run: Run, settings: Any) -> None:
    outcome, fed = run(**settings)
    assert outcome.client_statistics is not None
    (statistics,) = ({k: v.numpy() for k, v in part.items()} for part in outcome.client_statistics.parts)
    entries = {e.name: e for e in fed.ledger.entries if e.phase in ("setup", "train")}
    assert (entries["lumos/bins"].sent == 8 * statistics["receivers"]).all()
    assert (entries["lumos/bins"].received == 8 * statistics["kept"]).all()
    leaves = entries["lumos/leaf_embeddings"]
    assert (leaves.sent == ROUNDS * 8 * H * statistics["kept"]).all()
    assert (leaves.received == ROUNDS * 8 * H * statistics["receivers"]).all()
    moved = [e for name, e in entries.items() if name.endswith("_embeddings")]
    # It receives the embeddings that it asked for.
    asked_for = sum(e.received for e in moved if e.name != "lumos/leaf_embeddings")
    counted = leaves.sent + leaves.received + asked_for
    assert (counted == ROUNDS * 8 * H * statistics["embeddings"]).all()
    assert (statistics["kept"] <= statistics["neighbours"]).all()
    # Every edge was compared once at least, and no more often than if all had been compared each time.
    edges, made = statistics["neighbours"].sum() // 2, statistics["comparisons"].sum() // 2
    again = outcome.details["balance_calls"] * edges + outcome.details["candidate_pairs"]
    assert edges <= made <= again
    assert (made == edges) == (settings.get("balancer") == "greedy")
    assert statistics["epsilon"].max() == pytest.approx(2.0)
    assert (statistics["epsilon_colluding"] >= statistics["epsilon"] - 1e-9).all()
    silent = statistics["receivers"] == 0
    assert (statistics["feature_bits"][silent] == 0).all()
    assert (statistics["epsilon_colluding"][silent] == 0).all()


@pytest.mark.slow
def test_the_statistics_do_not_depend_on_the_processes(three_clients: ThreeWorkers) -> None:
    world = last_round_stands(make_world(1))
    together, _ = run_local("lumos", world)
    apart, _ = run_processes("lumos", world, three_clients)
    assert together.client_statistics is not None
    assert apart.client_statistics is not None
    for name, column in together.client_statistics.parts[0].items():
        assert torch.equal(column, torch.cat([part[name] for part in apart.client_statistics.parts])), name


# ---- what is refused ---------------------------------------------------------------------------------------


def test_a_client_with_more_than_a_node_is_refused() -> None:
    world = make_world()
    fed = Federation(in_thirds(3), simulated=True)
    from graphfed.federation.cohort import make_cohort
    from graphfed.methods.lumos.method import METHOD

    data = fed.locate(
        "clients", "data", [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
    )
    with pytest.raises(InputError, match=r"client 0 holds \d+ nodes; use partition 'ego'"):
        train(fed, METHOD, data, world.task, METHOD.configure({}))


def test_gradients_that_do_not_fit_are_refused_before_any_feature_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lumos, "MAX_BYTES", 1000)
    monkeypatch.setattr(feature_encoding, "encode", pytest.fail)
    with pytest.raises(InputError, match=r"a gradient for every client takes about .* GB for 60 clients"):
        run_local("lumos", make_world(), aggregation="secure", protocols="simulated")


def test_the_memory_of_gradients_is_counted_by_hand() -> None:
    """Twice every client's copy of the weights, and the first layer's once more for each of its pairs."""
    task, ids = Task(12, 3), torch.arange(6)
    network = Network(hidden=5)
    trees = {"local": torch.tensor([True] * 4 + [False] * 4)}
    weights = 12 * 5 + 5 + 5 * 5 + 5 + 5 * 3 + 3
    need = (2 * 6 * weights + 2 * (6 + 4) * 12 * 5) * torch.get_default_dtype().itemsize
    with patch.object(lumos, "MAX_BYTES", need):
        lumos.check_memory(ids, trees, task, network)
    with (
        patch.object(lumos, "MAX_BYTES", need - 1),
        pytest.raises(InputError, match=f"takes about {need / 1e9:.3g} GB for 6 clients"),
    ):
        lumos.check_memory(ids, trees, task, network)


def test_a_feature_outside_its_bounds_is_refused() -> None:
    world = make_world()
    graph = replace(world.graph, x=world.graph.x * 3)
    with pytest.raises(InputError, match=r"outside feature_low"):
        run_local("lumos", World(graph, world.split, world.partition))
