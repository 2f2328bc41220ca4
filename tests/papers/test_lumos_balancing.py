"""The programs over places assign every edge as the plain loops do, in every placement, whatever pairs
compare again; every transfer has a description."""

from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
from balanced_graphs import Balanced, run_apart, run_here
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.errors import InputError
from graphfed.methods.lumos import mcmc
from graphfed.methods.lumos.assignment import (
    by_greedy,
    by_local_rule,
    by_metropolis,
    filled,
    largest,
    optimum,
    workloads,
)
from graphfed.methods.lumos.balancing import MESSAGES
from graphfed.methods.lumos.config import Balancing
from graphfed.runtime.processes import Workers

ROUNDS = {"balance_rounds": 30, "shuffle_rounds": 3, "mcmc_steps": 5}
BALANCERS = ("none", "greedy", "local", "mcmc", "oracle")


def random_graph(seed: int, n: int, m: int) -> np.ndarray:
    """Edges of a graph with a hub or two."""
    rng = np.random.default_rng(seed)
    every = np.array(list(combinations(range(n), 2))).T
    odds = 1.0 / (1 + every.min(0))
    return every[:, np.sort(rng.choice(every.shape[1], m, replace=False, p=odds / odds.sum()))]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    n = draw(st.integers(1, 9))
    every = list(combinations(range(n), 2))
    some = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    return np.array(sorted(some), dtype=np.int64).reshape(-1, 2).T, n


@st.composite
def workers(draw: st.DrawFn, n: int) -> list[tuple[int, ...]]:
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    return [tuple(range(a, b)) for a, b in pairwise([0, *cuts, n])]


def same(one: Balanced, other: Balanced) -> None:
    for name in ("local", "remote", "outcomes", "counts", "ledger", "maxima"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize("balancer", BALANCERS)
@given(data=st.data())
@settings(max_examples=25)
def test_every_placement_gives_the_same_assignment_and_the_same_ledger(balancer: str, data: Any) -> None:
    edges, n = data.draw(graphs())
    options = {"balancer": balancer, "seed": data.draw(st.integers(0, 3)), **ROUNDS}
    options["compare_again"] = data.draw(st.sampled_from(["changed", "all"]))
    options["acceptance"] = data.draw(st.sampled_from(["hidden", "opened"]))
    options["fill_trees"] = data.draw(st.booleans())
    stacked = run_here(edges, [tuple(range(n))], **options)
    same(stacked, run_here(edges, [(k,) for k in range(n)], **options))
    same(stacked, run_here(edges, data.draw(workers(n)), **options))


@pytest.fixture(scope="module")
def clients() -> Iterator[Workers]:
    with Workers([tuple(range(7)), (7,), tuple(range(8, 20))]) as clients:
        yield clients


@pytest.mark.parametrize("balancer", BALANCERS)
@pytest.mark.slow
def test_separate_processes_give_the_same_assignment_and_the_same_ledger(
    balancer: str, clients: Workers
) -> None:
    edges = random_graph(1, 20, 60)
    options = {"balancer": balancer, "fill_trees": True, **ROUNDS}
    same(run_here(edges, [tuple(range(20))], **options), run_apart(edges, clients, **options))


@given(graphs(), st.integers(0, 5), st.sampled_from([0.5, 1.0, 4.0]))
@settings(max_examples=60)
def test_the_programs_are_the_plain_loops_to_the_last_edge(
    graph: tuple[np.ndarray, int], seed: int, temperature: float
) -> None:
    edges, n = graph
    options = {"seed": seed, "temperature": temperature, "balance_rounds": 30, "shuffle_rounds": 4}
    together = [tuple(range(n))]
    greedy = run_here(edges, together, balancer="greedy", **options)
    assert np.array_equal(greedy.cover(edges, n), by_greedy(edges, n))
    local = run_here(edges, together, balancer="local", **options)
    cover, seen = by_local_rule(edges, n, rounds=30, shuffle_rounds=4, seed=seed)
    assert np.array_equal(local.cover(edges, n), cover)
    assert local.maxima[: len(seen)] == seen
    walk = run_here(edges, together, balancer="mcmc", mcmc_steps=7, **options)
    cover, seen = by_metropolis(edges, n, steps=7, temperature=temperature, seed=seed)
    assert np.array_equal(walk.cover(edges, n), cover)
    assert walk.maxima == seen
    exact = run_here(edges, together, balancer="oracle", **options)
    assert largest(edges, exact.cover(edges, n), n) == optimum(edges, n).maximum


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("acceptance", ["hidden", "opened"])
@pytest.mark.slow
def test_a_longer_walk_on_a_larger_graph_is_the_plain_loop_too(seed: int, acceptance: str) -> None:
    edges = random_graph(seed, 60, 400)
    options = {
        "balancer": "mcmc",
        "mcmc_steps": 60,
        "seed": seed,
        "acceptance": acceptance,
        "temperature": 2.0,
    }
    found = run_here(edges, [tuple(range(60))], **options)
    cover, seen = by_metropolis(edges, 60, steps=60, temperature=2.0, seed=seed)
    assert np.array_equal(found.cover(edges, 60), cover)
    assert found.maxima == seen
    assert any(a < b for a, b in pairwise(seen)), "no step was ever accepted that made it worse"


@pytest.mark.parametrize("balancer", ["local", "mcmc"])
@given(graph=graphs(), seed=st.integers(0, 5))
@settings(max_examples=40)
def test_comparing_what_changed_gives_the_same_result_and_all_makes_the_count_announced(
    balancer: str, graph: tuple[np.ndarray, int], seed: int
) -> None:
    edges, n = graph
    options = {"balancer": balancer, "seed": seed, **ROUNDS}
    changed = run_here(edges, [tuple(range(n))], **options)
    everything = run_here(edges, [tuple(range(n))], compare_again="all", **options)
    assert (changed.local, changed.remote, changed.maxima) == (
        everything.local,
        everything.remote,
        everything.maxima,
    )
    _, made, all_again = changed.counts
    assert everything.counts[1:] == (all_again, all_again)
    assert made <= all_again


@pytest.mark.parametrize("balancer", BALANCERS)
@given(graph=graphs(), seed=st.integers(0, 3))
@settings(max_examples=30)
def test_filled_trees_keep_their_edges_and_take_others_up_to_the_largest_workload(
    balancer: str, graph: tuple[np.ndarray, int], seed: int
) -> None:
    """The largest workload stays, and a tree has as many edges or all; as the plain loop has it."""
    edges, n = graph
    options = {"balancer": balancer, "seed": seed, **ROUNDS}
    before = run_here(edges, [tuple(range(n))], **options)
    after = run_here(edges, [tuple(range(n))], fill_trees=True, **options)
    trimmed, full = before.cover(edges, n), after.cover(edges, n)
    assert np.array_equal(full, filled(edges, trimmed, n, seed=seed))
    assert (full >= trimmed).all()
    most = largest(edges, trimmed, n)
    degree = np.bincount(edges.ravel(), minlength=n)
    assert np.array_equal(workloads(edges, full, n), np.minimum(degree, most))
    assert before.outcomes == after.outcomes, "nothing is compared for it"


def test_which_edges_fill_a_tree_depends_on_the_seed() -> None:
    edges = random_graph(5, 25, 90)
    trimmed = by_greedy(edges, 25)
    assert not np.array_equal(filled(edges, trimmed, 25, seed=0), filled(edges, trimmed, 25, seed=1))


@pytest.mark.parametrize("balancer", BALANCERS)
@given(graph=graphs(), seed=st.integers(0, 3), fill=st.booleans())
@settings(max_examples=30)
def test_both_clients_of_an_edge_know_its_assignment_and_at_least_one_has_it(
    balancer: str, graph: tuple[np.ndarray, int], seed: int, fill: bool
) -> None:
    edges, n = graph
    found = run_here(edges, [tuple(range(n))], balancer=balancer, seed=seed, fill_trees=fill, **ROUNDS)
    local = found.cover(edges, n)
    turned = Balanced(found.remote, [], [], [], (0, 0, 0), {}).cover(edges, n)
    assert np.array_equal(local, turned[::-1])
    assert local.any(0).all()
    if balancer in ("local", "oracle") and not fill:
        assert (local.sum(0) == 1).all()
    assert found.counts[1] == sum(found.outcomes) / 2


@pytest.mark.parametrize("balancer", ["greedy", "local", "mcmc"])
def test_every_iteration_of_a_prefix_covers_every_edge(balancer: str) -> None:
    """A run of k rounds is the prefix of a longer one, so each state in between is looked at."""
    edges = random_graph(5, 25, 90)
    for k in range(12):
        found = run_here(
            edges, [tuple(range(25))], balancer=balancer, mcmc_steps=k, balance_rounds=k, shuffle_rounds=0
        )
        assert found.cover(edges, 25).any(0).all()
        assert found.maxima[-1] >= optimum(edges, 25).maximum


@pytest.mark.parametrize("balancer", ["greedy", "local"])
def test_the_real_protocol_gives_the_same_assignment_for_the_same_bytes(balancer: str) -> None:
    edges = random_graph(2, 7, 9)
    options = {"balancer": balancer, "degree_bits": 4, "balance_rounds": 4, "shuffle_rounds": 1}
    ideal = run_here(edges, [tuple(range(7))], **options)
    real = run_here(edges, [(0, 1, 2), (3,), (4, 5, 6)], simulated=False, **options)
    assert (ideal.local, ideal.counts) == (real.local, real.counts)
    assert sizes(ideal) == sizes(real)
    assert "simulated" not in protections(real)


@pytest.mark.slow
def test_the_real_search_ends_in_a_cover_that_its_own_history_says_is_the_best() -> None:
    edges = random_graph(3, 8, 14)
    found = run_here(
        edges, [(0, 1, 2, 3), (4, 5, 6, 7)], balancer="mcmc", mcmc_steps=3, simulated=False, degree_bits=4
    )
    assert found.cover(edges, 8).any(0).all()
    assert largest(edges, found.cover(edges, 8), 8) == min(found.maxima)
    assert "simulated" not in protections(found)


def sizes(found: Balanced) -> dict[str, tuple[list[int], list[int]]]:
    return {entry["name"]: (entry["sent"], entry["received"]) for entry in found.ledger["entries"]}


def protections(found: Balanced) -> set[str]:
    return {entry["protection"] for entry in found.ledger["entries"]}


@pytest.mark.parametrize("acceptance", ["hidden", "opened"])
def test_only_the_papers_acceptance_shows_a_workload_in_plaintext(acceptance: str) -> None:
    edges = random_graph(4, 12, 30)
    found = run_here(
        edges, [tuple(range(12))], balancer="mcmc", mcmc_steps=6, acceptance=acceptance, compare_again="all"
    )
    shown = [e["name"] for e in found.ledger["entries"] if e["name"].startswith("balance/acceptance")]
    assert (
        shown
        == {
            "hidden": ["balance/acceptance/accept", "balance/acceptance/session"],
            "opened": ["balance/acceptance"],
        }[acceptance]
    )


@pytest.mark.parametrize("balancer", ["greedy", "local"])
def test_clients_send_the_server_nothing_except_whether_they_can_still_offer_an_edge(balancer: str) -> None:
    edges = random_graph(4, 12, 30)
    found = run_here(edges, [tuple(range(12))], balancer=balancer)
    options = {(e["name"], e["dtype"]) for e in found.ledger["entries"] if e["to"] == "server"}
    assert options == (set() if balancer == "greedy" else {("balance/can_give", "uint8")})
    full = run_here(edges, [tuple(range(12))], balancer=balancer, fill_trees=True)
    asked = {(e["name"], e["dtype"]) for e in full.ledger["entries"] if e["to"] == "server"}
    assert asked == options | {("balance/has_workload", "uint8")}


def test_every_transfer_has_a_message_for_the_report() -> None:
    edges, names = random_graph(4, 12, 30), set()
    for balancer in BALANCERS:
        for acceptance in ("hidden", "opened"):
            found = run_here(
                edges,
                [tuple(range(12))],
                balancer=balancer,
                mcmc_steps=4,
                acceptance=acceptance,
                fill_trees=True,
            )
            names |= {e["name"] for e in found.ledger["entries"] if e["phase"] != "control"}
    assert names == {*MESSAGES}


def test_a_degree_that_does_not_fit_is_refused_without_being_named() -> None:
    star = np.array([(0, v) for v in range(1, 9)]).T
    with pytest.raises(InputError, match="client 0 has more than the 7 neighbours that degree_bits=3 allows"):
        run_here(star, [tuple(range(9))], degree_bits=3)
    run_here(star, [tuple(range(9))], degree_bits=4)


def test_numbers_too_wide_for_a_hidden_acceptance_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(InputError, match="not degree_bits=13; use degree_bits=12, acceptance=opened"):
        run_here(random_graph(0, 5, 4), [tuple(range(5))], balancer="mcmc", degree_bits=13)


def test_more_candidates_than_can_compare_with_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Six pairs of nodes: both clients of a pair have its edge, so all twelve are candidates."""
    edges = np.arange(12).reshape(6, 2).T
    monkeypatch.setattr(mcmc, "MAX_PAIRS", 12 * 12)
    assert run_here(edges, [tuple(range(12))], balancer="mcmc", mcmc_steps=1).counts
    monkeypatch.setattr(mcmc, "MAX_PAIRS", 12 * 12 - 1)
    with pytest.raises(InputError, match=r"lets 12 clients compare with each other, in 144 pairs.*=local"):
        run_here(edges, [tuple(range(12))], balancer="mcmc", mcmc_steps=1)


@pytest.mark.parametrize(("bits", "width"), [(1, 1), (8, 3), (10, 3), (12, 4), (31, 5)])
def test_the_bits_of_rounded_logarithms_follow_from_the_largest_degree_announced(
    bits: int, width: int
) -> None:
    most = round(np.log(2**bits - 1))
    assert Balancing(degree_bits=bits).level_bits == width
    assert most < 2**width
    assert width == 1 or most >= 2 ** (width - 1)
