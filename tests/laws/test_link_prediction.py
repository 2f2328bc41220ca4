"""Link prediction: every method that can do it, in every placement; what its evaluation counts and finds."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from link_worlds import ROUNDS, by_pair, config_of, link_world, run_apart, run_local, scores
from methods_under_law import REFUSE_WEIGHTS, SHIPPED
from scipy.integrate import trapezoid
from sklearn.metrics import log_loss, roc_auc_score
from worlds import ThreeWorkers, one_each

import graphfed
from graphfed.errors import GraphfedError
from graphfed.federation import Federation
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.federation.state import arrays_of
from graphfed.methods.common.link_prediction import link_loss, negatives, pair_products
from graphfed.methods.registry import get_method
from graphfed.methods.tasks import LINK_PREDICTION
from graphfed.plugins import load_plugin
from graphfed.runs.checkpoint import Checkpoints, newest_round
from graphfed.runtime.interrupts import StopRequest
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.tasks.graphs.link_scores import MESSAGES, pair_scores
from graphfed.tasks.graphs.ranking import codes

load_plugin("link_toy")
METHODS = (*(name for name in SHIPPED if LINK_PREDICTION in get_method(name).tasks), "link_toy")
#: Where a client is a node its number is the node's, by which it draws.
NUMBERED = [name for name in METHODS if not one_each(get_method(name))]
APART = [name for name in METHODS if not get_method(name).pooled]


# ---- every method ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_stacked_equals_one_client_at_a_time_to_the_last_ledger_entry(name: str) -> None:
    world = link_world(nodes=24 if one_each(get_method(name)) else 36)
    fast, fed = run_local(name, world)
    slow, oracle = run_local(name, world, one_at_a_time)
    assert torch.allclose(scores(fast), scores(slow), rtol=0, atol=1e-9)
    assert fast.best_round == slow.best_round
    assert fast.test == pytest.approx(slow.test, abs=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize("name", APART)
@pytest.mark.slow
def test_separate_processes_equal_stacked_to_the_last_ledger_entry(
    name: str, three_clients: ThreeWorkers
) -> None:
    world = link_world(1)
    apart, ledger = run_apart(name, world, three_clients)
    together, fed = run_local(name, world)
    assert torch.allclose(scores(apart), scores(together), rtol=0, atol=1e-9)
    assert apart.test == pytest.approx(together.test, abs=1e-9)
    assert apart.details["test_roc"] == together.details["test_roc"]
    assert ledger.to_json() == fed.ledger.to_json()


@pytest.mark.parametrize("name", NUMBERED)
def test_permuting_the_clients_permutes_the_results(name: str) -> None:
    world = link_world(3)
    client = np.empty(world.graph.num_nodes, dtype=np.int64)
    client[world.partition.held_node] = world.partition.held_client
    moved = world.partitioned(np.array([2, 0, 1])[client], 3)
    one, _ = run_local(name, world)
    two, _ = run_local(name, moved)
    if not get_method(name).pooled:
        first, second = by_pair(one, world), by_pair(two, moved)
        assert first.keys() == second.keys()
        assert all(second[pair] == pytest.approx(score, abs=1e-9) for pair, score in first.items())
    assert one.test == pytest.approx(two.test, abs=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_a_seed_decides_the_bits(name: str) -> None:
    world = link_world()
    one, again, other = (run_local(name, world, seed=seed)[0] for seed in (0, 0, 1))
    assert torch.equal(scores(one), scores(again))
    assert not torch.allclose(scores(one), scores(other))


@pytest.mark.parametrize("place", [stacked, pytest.param(one_at_a_time, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_is_resumed_ends_with_the_same_bits(
    name: str, place: Callable[[int], Federation], tmp_path: Path
) -> None:
    world, settings = link_world(), {"eval_every": 2, "optimizer": "adam"}
    expected, fed = run_local(
        name, world, place, Checkpoints(tmp_path, every=0, stop_request=StopRequest()), **settings
    )
    for number in (ROUNDS, ROUNDS - 1):
        start, _ = newest_round(tmp_path, ["local"])
        assert start == number
        going = Checkpoints(tmp_path, every=1e9, start=start, stop_request=StopRequest())
        again, fed_again = run_local(name, world, place, going, **settings)
        one, two = (arrays_of(f, o.state.values) for f, o in ((fed, expected), (fed_again, again)))
        assert {k: v.tobytes() for k, v in one.items()} == {k: v.tobytes() for k, v in two.items()}
        assert torch.equal(scores(expected), scores(again))
        assert (expected.val, expected.test, expected.details) == (again.val, again.test, again.details)
        assert fed.ledger.to_json() == fed_again.ledger.to_json()
        for file in (tmp_path / "checkpoint" / f"round-{number:08d}").iterdir():
            file.unlink()


#: The transfers of an evaluation in plaintext. Hidden scores are counted in bins.
IN_PLAINTEXT = {name for name in MESSAGES if not name.endswith(("_refine", "_bins"))}


@pytest.mark.parametrize("name", METHODS)
def test_every_transfer_has_words(name: str) -> None:
    _, fed = run_local(name, link_world())
    names = {entry.name for entry in fed.ledger.entries}
    assert names >= IN_PLAINTEXT
    assert names <= {*MESSAGES, *get_method(name).sends.messages, "control"}


@pytest.mark.parametrize("name", METHODS)
def test_what_is_kept_is_the_first_best_round_on_validation(name: str) -> None:
    outcome, _ = run_local(name, link_world(5), rounds=8, lr=0.3)
    areas = [line["val"]["auc"] for line in outcome.history]
    assert outcome.best_round == 1 + int(np.argmax(areas))
    assert outcome.val is not None
    assert outcome.val["auc"] == max(areas)


@pytest.mark.parametrize("name", METHODS)
def test_weighted_graphs_and_clients_that_hold_nothing_are_no_trouble(name: str) -> None:
    world = link_world(2)
    heavy = replace(world.graph, edge_weight=np.linspace(0.5, 2, world.graph.num_edges).astype(np.float32))
    client = np.arange(world.graph.num_nodes) % 2 * 2  # of 0, 1 and 2
    world = (world if name in REFUSE_WEIGHTS else replace(world, graph=heavy)).partitioned(client, 3)
    if not get_method(name).requires.empty_clients:
        pytest.skip(f"{name} needs a node at every client")
    fast, fed = run_local(name, world)
    slow, oracle = run_local(name, world, one_at_a_time)
    assert torch.allclose(scores(fast), scores(slow), rtol=0, atol=1e-9)
    assert bool(scores(fast).isfinite().all())
    assert fed.ledger.to_json() == oracle.ledger.to_json()


# ---- the evaluation ----------------------------------------------------------------------------------------


def test_an_evaluation_costs_five_bytes_a_pair_and_a_number_of_each_client() -> None:
    world = link_world()
    _, fed = run_local("link_toy", world, eval_every=3)  # rounds 3 and 4
    whole = make_cohort(world.graph, world.split, world.partition, range(3))
    assert whole.links is not None
    client = whole.client[whole.links.row]
    entries = {entry.name: entry for entry in fed.ledger.entries}
    for target, name, times in (("val", "val", 2), ("val", "final_val", 1), ("test", "final_test", 1)):
        pairs = torch.bincount(client[whole.pairs(target)], minlength=3).numpy()
        assert pairs.min() > 0
        assert (entries[f"{name}_pair_scores"].sent == 5 * times * pairs).all()
        assert (entries[f"{name}_pair_loss"].sent == 8 * times).all()
        assert (entries[f"{target}_pairs"].sent == 8 * pairs).all(), "its ids, once"
    assert {entries[name].phase for name in IN_PLAINTEXT} == {"eval"}


def test_metrics_are_those_of_scikit_learn_on_all_pairs_together() -> None:
    world = link_world(4)
    outcome, _ = run_local("link_toy", world, rounds=2)
    whole = make_cohort(world.graph, world.split, world.partition, range(3))
    assert whole.links is not None
    for target, got in (("val", outcome.val), ("test", outcome.test)):
        chosen = whole.pairs(target)
        label, score = whole.links.label[chosen].numpy(), scores(outcome)[chosen]
        assert got is not None
        assert got["auc"] == pytest.approx(roc_auc_score(label, score.float().numpy()), abs=1e-12)
        assert got["loss"] == pytest.approx(log_loss(label, score.sigmoid().numpy()))


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.lists(FLOATS, min_size=1, max_size=40))
def test_codes_have_the_reverse_order_of_scores_and_are_equal_where_these_are(values: list[float]) -> None:
    given_scores = torch.tensor(values, dtype=torch.float64)
    order = given_scores.argsort(descending=True)
    found, sorted_scores = codes(given_scores)[order].long().diff(), given_scores[order].diff()
    assert bool(((found > 0) == (sorted_scores < 0)).all())
    assert bool((found >= 0).all())


@given(st.lists(st.tuples(st.sampled_from([-2.5, -1.0, -0.0, 0.0, 1e-30, 0.7, 0.7001, 3e8]), st.booleans())))
def test_the_area_is_that_of_scikit_learn_with_ties_and_nan_without_both_kinds(
    pairs: list[tuple[float, bool]],
) -> None:
    score = torch.tensor([score for score, _ in pairs], dtype=torch.float64)
    label = torch.tensor([is_edge for _, is_edge in pairs], dtype=torch.bool)
    rows = torch.cat([codes(score).view(-1, 1).view(torch.uint8), label[:, None].to(torch.uint8)], 1)
    scored = pair_scores(rows, torch.tensor(0.0))
    if label.any() and not label.all():
        assert scored.metrics["auc"] == pytest.approx(roc_auc_score(label.numpy(), score.numpy()), abs=1e-12)
        curve = np.array(scored.report["test_roc"])
        assert trapezoid(curve[:, 1], curve[:, 0]) == pytest.approx(scored.metrics["auc"], abs=1e-12)
        assert (np.diff(curve, axis=0) >= 0).all()
    else:
        assert np.isnan(scored.metrics["auc"])
        assert scored.report["test_roc"] == []
    assert not scored.lost


def test_training_that_diverges_ends_in_one_sentence() -> None:
    with pytest.raises(GraphfedError, match="central diverged in round 1"):
        run_local("central", link_world(), lr=1e30, optimizer="sgd", rounds=3, local_steps=3)


# ---- central, and what links are learnt from ---------------------------------------------------------------


def test_central_ranks_the_hidden_edges_of_the_digits_above_nearly_all_other_pairs() -> None:
    """A guess has an area of one half."""
    torch.set_default_dtype(torch.float32)
    result = graphfed.run("central", task="link_prediction", rounds=100, out=False)
    assert result.test["auc"] > 0.9  # type: ignore[operator]
    assert result.best_round > 1  # type: ignore[operator]


def test_central_takes_the_step_that_a_plain_loop_takes() -> None:
    """One SGD step on dense matrices: the loss of the training edges and of the keyed negatives."""
    world = link_world(6)
    settings = {"optimizer": "sgd", "lr": 0.2, "dropout": 0.0, "weight_decay": 0.01, "rounds": 1}
    outcome, _ = run_local("central", world, **settings)
    n, config = world.graph.num_nodes, config_of(get_method("central"), **settings)
    from graphfed.methods.common.local_training import initial_weights
    from graphfed.random import fold

    first = initial_weights(world.task, config.network, config.run.seed, "cpu")
    w = {k: v.requires_grad_() for k, v in first.items()}  # type: ignore[union-attr]
    a = torch.eye(n)
    u, v = edges = torch.from_numpy(world.graph.edges)
    a[u, v] = a[v, u] = 1
    a = a.sum(1).rsqrt()[:, None] * a * a.sum(1).rsqrt()
    x = torch.from_numpy(np.asarray(world.graph.x)).to(torch.get_default_dtype())

    def embed() -> torch.Tensor:
        h = (a @ (x @ w["layers.0.weight"]) + w["layers.0.bias"]).relu()
        return a @ (h @ w["layers.1.weight"]) + w["layers.1.bias"]

    h = embed()
    drawn = negatives(fold(fold(config.run.seed, "negatives", 1), 0), edges, n, edges.shape[1])
    loss = -sum((torch.dot(h[i], h[j]).sigmoid().log() for i, j in edges.t())) / edges.shape[1]
    loss = loss - sum((torch.dot(-h[i], h[j]).sigmoid().log() for i, j in drawn.t())) / drawn.shape[1]
    loss.backward()
    for weight in w.values():
        weight.data -= 0.2 * (weight.grad + 0.01 * weight.data)
    (trained,) = outcome.state.weights.parts
    for name, weight in w.items():
        assert torch.allclose(trained[name][0], weight, rtol=0, atol=1e-9), name
    one = world.partitioned(np.zeros(n, dtype=np.int64), 1)
    h = embed().detach()
    for (i, j), score in by_pair(outcome, one).items():
        assert score == pytest.approx(float(h[i] @ h[j]), abs=1e-9)


@given(st.integers(2, 9), st.integers(0, 2**20), st.integers(0, 99))
def test_negatives_are_no_edges_and_every_such_pair_is_drawn(n: int, bits: int, seed: int) -> None:
    every = [(u, v) for u in range(n) for v in range(u + 1, n)]
    chosen = [pair for i, pair in enumerate(every) if bits >> (i % 20) & 1]
    edges = torch.tensor(chosen, dtype=torch.int64).reshape(-1, 2).t()
    free = set(every) - set(chosen)
    drawn = negatives(seed, edges, n, 2000)
    assert drawn.shape == (2, 2000 if free else 0)
    # That one of 36 pairs is missed in 2000 fair draws has a chance below 36 * exp(-55).
    assert set(map(tuple, drawn.t().tolist())) == free
    assert torch.equal(drawn, negatives(seed, edges, n, 2000))


def test_every_step_draws_negatives_of_its_own() -> None:
    edges = torch.tensor([[0, 1], [1, 2]])
    one, two = negatives(1, edges, 30, 50), negatives(2, edges, 30, 50)
    assert not torch.equal(one, two)


def test_the_loss_is_the_two_mean_log_losses_and_finite_for_any_score() -> None:
    positive, negative = torch.tensor([2.0, -1.0]), torch.tensor([0.5])
    expected = -positive.sigmoid().log().mean() - (-negative).sigmoid().log().mean()
    assert float(link_loss(positive, negative)) == pytest.approx(float(expected))
    assert float(link_loss(torch.tensor([-1e5]), torch.tensor([1e5]))) == pytest.approx(2e5)
    assert float(link_loss(positive, negative[:0])) == pytest.approx(float(-positive.sigmoid().log().mean()))
    assert float(link_loss(positive[:0], negative[:0])) == 0
    h = torch.arange(6.0).reshape(3, 2)
    assert pair_products(h, torch.tensor([[0, 2], [1, 2]])).tolist() == [3.0, 41.0]


def test_a_cohort_without_pairs_is_scored_as_nothing() -> None:
    """At a client of its own, a node may score no pair at all."""
    world = link_world(nodes=24)
    world = world.partitioned(np.arange(24), 24)
    empty = [
        k
        for k in range(24)
        if not len(make_cohort(world.graph, world.split, world.partition, [k]).pairs("all"))
    ]
    assert empty
    fast, fed = run_local("link_toy", world)
    slow, oracle = run_local("link_toy", world, one_at_a_time)
    assert fast.test == pytest.approx(slow.test, abs=1e-12)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    assert isinstance(make_cohort(world.graph, world.split, world.partition, [0]), Cohort)
