"""What clients find in FedGraph's rows: planted cases whose answer is known, and that the attack's model is
of what is sent."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from audited_runs import SPLIT, planned
from torch import Tensor

import graphfed
from graphfed.audit.attacks import fedgraph_messages
from graphfed.audit.attacks.fedgraph import (
    Known,
    auc,
    bootstrap,
    compare,
    drawn,
    embeddings,
    embeddings_by_layer,
    evaluated,
    rounds_used,
    solve,
    solve_linear,
    what_is_known,
)
from graphfed.audit.attacks.fedgraph_messages import (
    Opened,
    Pairs,
    Seen,
    edges_to,
    guesses,
    opened,
    record_rows,
    true_sums,
)
from graphfed.audit.base import AuditedRun, Finding
from graphfed.audit.run import audit
from graphfed.audit.scoring import cosines
from graphfed.data.graphs.graph import Graph, Split, make_graph

FEATURES, ROUNDS = 60, 50


# ---- planted cases -----------------------------------------------------------------------------------------


def planted(width: int, sent: int, rounds: int = ROUNDS, nodes: int = 12) -> tuple[Seen, Known, Tensor]:
    """Rows of nodes with few of 60 features each, by weights that are other ones in every round, and what
    their receivers know: a guess of which most is wrong."""
    random = torch.Generator().manual_seed(width + sent)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    sums = draw(nodes, FEATURES).abs() * (draw(nodes, FEATURES) > 1.4)
    guess = (0.3 * sums + 0.1 * draw(nodes, FEATURES).abs()).roll(1, 0) + 0.05
    tau = torch.tensor([2.0, 3.0, 4.0, 7.0] * (nodes // 4), dtype=torch.float64).rsqrt()
    rows, weights = [], []
    for _ in range(rounds):
        first, bias, second = draw(FEATURES, width), 0.3 * draw(width), draw(width, sent)
        hidden = (sums @ first + bias).relu() if sent else sums @ first
        rows.append(tau[:, None] * (hidden @ second if sent else hidden))
        weights.append({"layers.0.weight": first, "layers.0.bias": bias, "layers.1.weight": second})
    known = Known(guess, torch.full_like(tau, 0.5), torch.full_like(tau, 0.5**0.5), 0.0)
    return Seen(torch.stack(rows), tuple(weights), {}), known, sums


@pytest.mark.parametrize(("width", "sent"), [(8, 8), (8, 4)], ids=["square", "narrowing"])
def test_from_enough_rounds_the_sums_of_all_nodes_come_out(width: int, sent: int) -> None:
    """To 1 % of their length, scale included; the guess is of no use."""
    seen, known, sums = planted(width, sent)
    assert cosines(known.guess, sums).max() < 0.7
    found = solve(seen, known)
    assert ((found - sums).norm(dim=1) / sums.norm(dim=1)).max() < 1e-2


def test_dense_sums_come_out_exactly_from_more_equations_than_unknowns_and_not_from_fewer() -> None:
    """A preference for few entries is of no use. 50 rounds of 8 numbers for 61 unknowns, and 6 rounds."""
    seen, known, sums = planted(8, 8)
    dense = torch.randn(sums.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tau = known.most * 0.8
    weights = [(w["layers.0.weight"], w["layers.0.bias"], w["layers.1.weight"]) for w in seen.weights]
    rows = torch.stack([tau[:, None] * (dense @ a + b).relu() @ c for a, b, c in weights])
    known = dataclasses.replace(known, guess=torch.zeros_like(dense) + 0.1, low=-torch.inf)
    found = solve(dataclasses.replace(seen, rows=rows), known)
    exact = (found - dense).norm(dim=1) <= 1e-4 * dense.norm(dim=1)
    assert exact.double().mean() > 0.7
    few = Seen(rows[:6], seen.weights[:6], {})
    assert not ((solve(few, known) - dense).norm(dim=1) <= 0.3 * dense.norm(dim=1)).any()


def test_without_relus_the_features_come_out_from_fewer_numbers_than_there_are_features() -> None:
    """Six rounds of 8 numbers for 60 features, up to the scale; of one, which is too few, hardly any do."""
    seen, known, sums = planted(8, 0, rounds=6)
    assert cosines(solve_linear(seen, known), sums).min() > 0.999
    few, known, sums = planted(8, 0, rounds=1)
    assert cosines(solve_linear(few, known), sums).median() < 0.9


def test_features_that_may_be_negative_come_out_too() -> None:
    seen, known, sums = planted(8, 0, rounds=10)
    signs = torch.where(torch.arange(FEATURES) % 2 == 0, 1.0, -1.0)
    weights = tuple({**w, "layers.0.weight": signs[:, None] * w["layers.0.weight"]} for w in seen.weights)
    known = dataclasses.replace(known, guess=known.guess * signs, low=-torch.inf)
    found = solve_linear(dataclasses.replace(seen, weights=weights), known)
    assert cosines(found, sums * signs).min() > 0.999


@pytest.mark.parametrize("attack", [solve, solve_linear])
def test_rows_of_other_nodes_say_nothing_of_a_node(attack: Any) -> None:
    """The measure is of what is sent, not of the guess."""
    seen, known, sums = planted(8, 0 if attack is solve_linear else 8)
    other = attack(dataclasses.replace(seen, rows=seen.rows.roll(1, 1)), known)
    assert cosines(attack(seen, known), sums).min() > 0.99
    assert cosines(other, sums.roll(1, 0)).min() > 0.9
    assert cosines(other, sums).max() < 0.8


@pytest.mark.parametrize(("width", "sent", "exact"), [(8, 8, True), (5, 8, True), (8, 5, False)])
def test_an_embedding_is_one_messages_where_the_next_layer_is_at_least_as_wide(
    width: int, sent: int, exact: bool
) -> None:
    random = torch.Generator().manual_seed(0)
    h = torch.randn(30, width, generator=random).double().relu()
    weight = torch.randn(width, sent, generator=random).double()
    found = embeddings(0.37 * h @ weight, weight)
    # Where it is not, what is found gives the same row.
    torch.testing.assert_close(found @ weight, 0.37 * h @ weight)
    assert bool((cosines(found, h)[h.any(1)] > 1 - 1e-9).all()) == exact


# ---- the figures -------------------------------------------------------------------------------------------


def test_the_figures_of_a_small_case_are_those_counted_by_hand() -> None:
    found = torch.tensor([[0.9, 0.0, 0.5, 0.0], [0.1, 0.2, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]])
    sums = torch.tensor([[1.0, 2.0, 0.0, 0.0], [0.0, 0.0, 0.0, 2.0], [5.0, 1.0, 1.0, 1.0]])
    own = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    tie = torch.tensor([[0.0, 0.0, 0.0, 0.0]]).expand(3, 4)
    figures = compare(found, tie, sums, own)
    # Of the first, pairs (0, 2), (0, 3) and half of (1, 3) are in order, (1, 2) is not; all are there of the
    # third, and none is its own of the second.
    np.testing.assert_allclose(figures["auc"], [2.5 / 4, 1.0, np.nan])
    np.testing.assert_allclose(figures["own_auc"], [1.0, np.nan, 1.0])
    np.testing.assert_allclose(figures["precision"], [0.5, 1.0, np.nan])
    np.testing.assert_allclose(figures["cosine"], [0.9 / (1.06 * 5) ** 0.5, 0.4 / 0.3**0.5, 5 / 28**0.5])
    assert figures["read"].tolist() == [0, 0, 0]
    assert compare(7 * sums, tie, sums, own)["read"].tolist() == [1, 1, 1]
    # What is not found is ranked by the guess.
    guessed = torch.tensor([[0.0, 1.0, 0.0, 0.5]]).expand(3, 4)
    assert compare(found, guessed, sums, own)["auc"][0] == 3 / 4


def test_a_random_permutation_of_the_truth_has_an_auc_of_one_half() -> None:
    """400 rows of 100 entries of which 20 are there: the standard error of one is 0.07, of the mean 0.0036;
    four of them have a false alarm in 16 000 seeds."""
    random = np.random.default_rng(0)
    truth = random.permuted(np.tile(np.arange(100) < 20, (400, 1)), axis=1)
    found = np.where(truth, 1.0, 0.0) + 0.1 * random.random((400, 100))
    assert auc(found, truth).mean() == 1
    assert auc(found, random.permuted(truth, axis=1)).mean() == pytest.approx(0.5, abs=0.0145)


def test_nothing_in_common_with_the_truth_is_no_gain_over_a_guess() -> None:
    """Twenty cases without a signal: one lower end of 40 is above 0, so more than four have a chance of one
    in 6 000."""
    alarms = 0
    for seed in range(20):
        random = np.random.default_rng(seed)
        truth = random.random((30, 50)) < 0.3
        first, second = (auc(random.random((30, 50)), truth) for _ in range(2))
        alarms += bootstrap(first - second)[0] > 0
    assert alarms <= 4


def test_rounds_are_spread_over_the_evaluations_and_give_no_more_numbers_than_are_used() -> None:
    assert evaluated(5, 103, 103) == [*range(5, 101, 5), 103]
    assert evaluated(5, 103, 12) == [5, 10]  # it ran out of patience
    assert rounds_used([5, 10, 15], 7, 1433) == [5, 10, 15]
    used = rounds_used(list(range(1, 301)), 7, 1433)
    assert (used[0], used[-1], len(used)) == (1, 300, 57)
    assert set(np.diff(used)) == {5, 6}
    assert rounds_used([1, 2], 5000, 1433) == [1]
    assert len(rounds_used(list(range(1, 301)), 7, 64)) == 91, "ten numbers for each of few features"


# ---- what is sent ------------------------------------------------------------------------------------------


def small(**settings: Any) -> dict[str, Any]:
    return {"data.num_nodes": 120, "data.features": 24, "data.communities": 3, "hidden": 6, **settings}


def at(rounds: int, data: Any = "social", partition: str | None = None, **settings: Any) -> AuditedRun:
    social = data == "social"
    split, settings = (SPLIT, small(**settings)) if social else ("default", settings)
    return planned(
        "fedgraph", rounds, data=data, clients=3, partition=partition, split=split, settings=settings
    )


def weighted_graph() -> Graph:
    """A ring with chords and weights, dense features of either sign."""
    random = np.random.default_rng(0)
    ends = np.arange(60)
    edges = np.concatenate([[ends, (ends + 1) % 60], [ends[:30], ends[:30] + 25]], axis=1)
    split = Split("toy", *(ends % 3 == part for part in range(3)))
    graph = make_graph(
        "ring",
        x=random.standard_normal((60, 5)).astype(np.float32),
        y=ends % 4,
        edges=edges,
        edge_weight=random.uniform(0.5, 2.0, edges.shape[1]),
    )
    return dataclasses.replace(graph, split=split)


CASES: dict[str, dict[str, Any]] = {
    "two layers": {},
    "three layers": {"layers": 3},
    "copies": {"partition": "overlapping"},
    "internal degrees": {"first_degrees": "internal"},
    "all degrees": {"first_degrees": "all"},
    "weighted": {"data": weighted_graph(), "hidden": 6},
    "fastgcn": {"policy": "fastgcn", "layer_size": 10},
    "secure aggregation": {"aggregation": "secure", "protocols": "simulated"},
    "share all": {"sent_embeddings": "all"},
}


def received_rows(again: Opened, rounds: int) -> tuple[Pairs, Seen]:
    layer = min(again.sent_rows)
    which = drawn(again, layer)
    requests = again.sent_rows[layer][which]
    pairs = Pairs(again.receiver[requests], again.node[requests])
    return pairs, record_rows(again, layer, which, list(range(1, rounds + 1)))


@pytest.mark.parametrize("settings", CASES.values(), ids=CASES)
def test_with_the_true_sums_the_attackers_model_is_what_is_sent(settings: dict[str, Any]) -> None:
    """And with another node's it is not; the scale is within the bounds that receivers know."""
    again = opened(at(3, **settings))
    pairs, seen = received_rows(again, 3)
    linear = settings.get("sent_embeddings") == "all"
    sums, tau = true_sums(again, pairs, own=linear), again.graph.scale[pairs.node].double()
    known = what_is_known(again, pairs, own=linear)
    assert len(sums) >= 8
    assert (tau <= known.most + 1e-6).all()
    assert bool((true_sums(again, pairs, own=True) >= known.low).all())
    for number, w in enumerate(seen.weights):
        hidden = sums @ w["layers.0.weight"]
        if not linear:
            hidden = (hidden + w["layers.0.bias"]).relu() @ w["layers.1.weight"]
        there = tau[:, None] * hidden
        torch.testing.assert_close(there, seen.rows[number], atol=1e-6, rtol=1e-5)
        assert (there.roll(1, 0) - seen.rows[number]).abs().max() > 1e-3


@pytest.mark.parametrize("settings", [{}, {"sent_embeddings": "all"}, {"partition": "overlapping"}])
def test_a_receivers_guess_is_made_of_its_own_nodes_alone(settings: dict[str, Any]) -> None:
    """By a plain loop: the mean over the edges that it has to the node, and one of all its nodes."""
    again = opened(at(1, **settings))
    own = settings.get("sent_embeddings") == "all"
    pairs, _ = received_rows(again, 1)
    every = torch.arange(again.cohort.num_rows)
    of_row = true_sums(again, Pairs(again.cohort.client, every), own=own)
    found = guesses(again, pairs, own=own)
    for row, receiver, node in zip(found, pairs.receiver.tolist(), pairs.node.tolist(), strict=True):
        own_mean = of_row[again.cohort.client == receiver].mean(0)
        neighbours = [
            of_row[int(again.cohort.cross_row[edge])] for edge in edges_to(again.cohort, receiver, node)
        ]
        assert neighbours
        torch.testing.assert_close(row, torch.stack([own_mean, *neighbours]).mean(0))


def test_embeddings_are_solved_for_exactly_where_layers_are_of_equal_width_and_else_not() -> None:
    again = opened(at(2, layers=3))
    _, seen = received_rows(again, 2)
    second, third = embeddings_by_layer(again, seen)
    assert (second.layer, second.width, second.sent) == (2, 6, 6)
    assert second.exact == 1
    assert second.cosine > 1 - 1e-6 > second.guess
    assert (third.layer, third.width, third.sent) == (3, 6, 3)
    assert third.exact < 0.5
    assert third.cosine < 1 - 1e-3


# ---- runs --------------------------------------------------------------------------------------------------


def found(folder: Path, rounds: int = 2, **settings: Any) -> Finding:
    split = settings.pop("split", SPLIT)
    graphfed.run(
        "fedgraph", data="social", clients=3, split=split, rounds=rounds, threads=1, out=folder / "run",
        settings=small(**settings),
    )  # fmt: skip
    return audit(folder / "run").findings["fedgraph_embeddings"]


def fractions(details: dict[str, Any]) -> list[float]:
    """All figures of the details that are means."""
    groups = [details, *details["by_neighbours"].values()]
    names = ("auc", "precision", "own_auc", "cosine", "read")
    return [of[name + end] for of in groups for name in names for end in ("", "_by_guess")]


@pytest.mark.parametrize("sent_embeddings", [pytest.param("hidden", marks=pytest.mark.slow), "all"])
def test_a_run_of_many_rounds_gives_features_away_and_its_figures_are_fractions(
    sent_embeddings: str, tmp_path: Path
) -> None:
    finding = found(tmp_path, rounds=60, sent_embeddings=sent_embeddings)
    assert finding.leaks
    assert finding.value is not None
    assert finding.no_signal is not None
    assert finding.interval is not None
    assert finding.no_signal < finding.interval[0] <= finding.value <= finding.interval[1] <= 1
    assert all(0 <= figure <= 1 for figure in fractions(finding.details) if figure is not None)
    assert finding.details["attacked"] == ("features" if sent_embeddings == "all" else "neighbourhoods")
    assert finding.verdict.startswith("leaks")
    if sent_embeddings == "all":
        assert finding.details["read"] == 1
    else:
        assert finding.details["read"] > finding.details["read_by_guess"]
    assert sum(group["nodes"] for group in finding.details["by_neighbours"].values()) > 10


def test_messages_of_other_nodes_are_no_leak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed(*args: Any) -> Seen:
        seen = record_rows(*args)
        return dataclasses.replace(seen, rows=seen.rows.roll(seen.rows.shape[1] // 2, 1))

    monkeypatch.setattr(fedgraph_messages, "record_rows", mixed)
    finding = found(tmp_path, rounds=20)
    assert not finding.leaks


def test_without_rows_between_clients_there_is_nothing_to_find(tmp_path: Path) -> None:
    for settings, why in (
        ({"sent_embeddings": "none"}, "sent_embeddings=none"),
        ({"layers": 1}, "these clients send each other"),
    ):
        finding = found(tmp_path / why, **settings)
        assert finding.leaks is False
        assert why in finding.result
        assert "there are no rows" in finding.verdict


def test_where_no_validation_node_has_a_neighbour_elsewhere_nothing_is_measured(tmp_path: Path) -> None:
    """Two triangles at two clients, with one edge between training nodes."""
    edges = np.array([[0, 1, 2, 3, 4, 5, 0], [1, 2, 0, 4, 5, 3, 3]])
    split = Split("toy", *(np.isin(np.arange(6), part) for part in ([0, 3], [1, 4], [2, 5])))
    graph = make_graph("triangles", x=np.eye(6, dtype=np.float32), y=np.arange(6) % 2, edges=edges)
    graph = dataclasses.replace(graph, split=split, clients=np.arange(6) // 3, client_names=("a", "b"))
    graphfed.run("fedgraph", data=graph, partition="column", rounds=1, threads=1, out=tmp_path / "run")
    finding = audit(tmp_path / "run", data=graph).findings["fedgraph_embeddings"]
    assert finding.leaks is None
    assert "only in the last prediction" in finding.result
    assert finding.verdict == "not measured"
