"""prediction_release: what receivers get keeps to epsilon, once for each node; training is that of own
features; the combination is the plain loop of its formulas."""

import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from law_fixtures import float64
from torch import Tensor
from torch.nn.functional import cross_entropy
from worlds import (
    PLACEMENTS,
    Watched,
    World,
    by_node,
    cohorts_of,
    config_of,
    last_round_stands,
    logits,
    make_world,
    one_node_each,
    run_local,
    weighted,
)

import graphfed
from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.link import Message, Pair
from graphfed.federation.payload import part_of
from graphfed.methods.base import State
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.parts import is_simulated
from graphfed.methods.prediction_release.likelihoods import class_likelihoods, maximise
from graphfed.methods.prediction_release.method import METHOD
from graphfed.methods.prediction_release.release import accept_classes, accept_pairs, release
from graphfed.privacy.local import SHIFT, WORDS, _other_class, respond, response_matrix
from graphfed.runs.checkpoint import Checkpoints, newest_round
from graphfed.runs.train import train
from graphfed.runtime.interrupts import StopRequest

__all__ = ["float64"]

NAME, CLASSES = "prediction_release", "prediction_release/classes"
#: The optimiser is that of both methods in comparisons with own features.
SETTINGS = {"weight_decay": 1e-2, "dropout": 0.4, "optimizer": "adam"}


def started(
    world: World, placement: str = "stacked", **settings: Any
) -> tuple[Federation, State, Any, Located]:
    """A federation after set-up, with the config and the data."""
    config = config_of(METHOD, **settings)
    fed = PLACEMENTS[placement](world.clients, simulated=is_simulated(config))
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    return fed, METHOD.setup(fed, data, world.task, config), config, data


def after(fed: Federation, state: State, config: Any, rounds: int, first: int = 1) -> State:
    """The state after some rounds."""
    for number in range(first, first + rounds):
        with fed.phase("train", round_number=number):
            state = METHOD.round(fed, state, config, number)
    return state


def scores(fed: Federation, state: State, config: Any) -> Tensor:
    return torch.cat(list(METHOD.predict(fed, state, config, "all").parts))


def rounds_of_release(fed: Federation) -> list[int]:
    return [number for e in fed.ledger.entries if e.name == CLASSES for number in e.rounds]


# ---- the guarantee -----------------------------------------------------------------------------------------


def star(label: int, classes: int) -> World:
    """Node 0, with the features of a class, and a neighbour of it at each of three other clients."""
    x = np.eye(classes, dtype=np.float32)[[label, 0, 1, 2]]
    edges = np.array([[0, 0, 0], [1, 2, 3]])
    graph = make_graph("star", x, np.array([0, 0, 1, 2]), edges, num_classes=classes)
    mask = np.array([False, True, False, False])
    split = Split("star", mask, np.roll(mask, 1), np.roll(mask, 2))
    return World(graph, split, partition(graph, "ego", 4, 0))


def words_by_outcome(epsilon: float, classes: int) -> list[tuple[int, int]]:
    """All 2^32 words, in ranges (first, last) whose words lead to the same outcome for every class."""
    other = _other_class(epsilon, classes)
    ends = [*(other * c for c in range(classes)), WORDS]
    ranges = [(a, b - 1) for a, b in pairwise(ends)]
    assert sum(b - a + 1 for a, b in ranges) == WORDS
    return ranges


def received(world: World, word: int, epsilon: float) -> tuple[int, ...]:
    """What the three receivers get of node 0 if its word of noise is this one, by the program itself; the
    network maps the features of a class to this class."""
    config = config_of(METHOD, epsilon=epsilon, layers=1)
    fed = Watched([(k,) for k in range(4)])
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    state = METHOD.setup(fed, data, world.task, config)
    weights = {"layers.0.weight": torch.eye(world.graph.num_classes), "layers.0.bias": torch.zeros(1)}
    words = fed.locate("clients", "words", [torch.tensor([word - SHIFT], dtype=torch.int32)] * 4)
    sent = fed.broadcast(fed.locate("server", "weights", [weights]), name="model", grad=False)
    prepared = state.prepared
    release(fed, data, prepared.batches, prepared.route, sent, words, world.task, config)
    found = {pair[1]: payload for name, pair, payload in fed.seen if name == CLASSES and pair[0] == 0}
    assert sorted(found) == [1, 2, 3]
    return tuple(int(payload) for _, payload in sorted(found.items()))


@pytest.mark.parametrize("classes", [3, 4])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.sampled(5)
def test_all_receivers_together_distinguish_two_feature_vectors_by_no_more_than_epsilon(
    epsilon: float, classes: int
) -> None:
    """Through the words of the noise by their ranges, at both ends of each: every pair of feature vectors,
    every joint outcome at all receivers. The bound is attained, up to a word in 2^32."""
    chances: list[dict[tuple[int, ...], int]] = []
    for label in range(classes):
        world, found = star(label, classes), defaultdict(int)
        for first, last in words_by_outcome(epsilon, classes):
            outcome = received(world, first, epsilon)
            assert outcome == received(world, last, epsilon)
            assert len(set(outcome)) == 1, "all receivers get the same value"
            found[outcome] += last - first + 1
        assert sum(found.values()) == WORDS
        chances.append(found)
    worst = 0.0
    for one in chances:
        for two in chances:
            assert one.keys() == two.keys(), "no outcome excludes a feature vector"
            for outcome, words in one.items():
                assert words <= math.exp(epsilon) * two[outcome]
                worst = max(worst, words / two[outcome])
    assert worst == pytest.approx(math.exp(epsilon), rel=1e-6)
    matrix = response_matrix(epsilon, classes)
    for label, found in enumerate(chances):
        for (value, *_), words in found.items():
            assert words == float(matrix[label, value]) * WORDS


def test_the_ledger_states_the_budget_and_noise_that_can_be_repeated_is_called_simulated() -> None:
    for seed, expected in ((None, "ldp(eps=0.7)"), (0, "simulated")):
        _, fed = run_local(NAME, make_world(), epsilon=0.7, noise_seed=seed)
        assert {e.protection for e in fed.ledger.entries if e.name == CLASSES} == {expected}


def test_the_same_value_goes_to_all_receivers_and_only_in_the_round_of_the_release() -> None:
    world = make_world(2, nodes=40)
    world = one_node_each(world)
    config = config_of(METHOD, rounds=6, release_round=3, noise_seed=None, epsilon=0.5)
    fed = Watched([(k,) for k in range(world.clients)])
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    outcome = train(fed, METHOD, data, world.task, config)
    assert rounds_of_release(fed) == [3]
    values: dict[int, set[int]] = defaultdict(set)
    receivers: dict[int, list[int]] = defaultdict(list)
    for name, (sender, receiver), payload in fed.seen:
        if name == CLASSES:
            values[sender].add(int(payload))
            receivers[sender].append(receiver)
    assert outcome.rounds_run == 6
    neighbours = defaultdict(set)
    for u, v in world.graph.edges.T.tolist():
        neighbours[u].add(v)
        neighbours[v].add(u)
    assert values.keys() == neighbours.keys()
    for node, found in receivers.items():
        assert sorted(found) == sorted(neighbours[node]), "each receiver once"
        assert len(values[node]) == 1


class Broken(Exception):
    """The run stops here."""


def test_a_run_that_breaks_after_the_release_and_goes_on_sends_the_same_values(tmp_path: Path) -> None:
    """Its noise comes from the operating system, and it goes on from a checkpoint before the release."""
    world = last_round_stands(make_world(3))

    def run(breaks: bool, start: int | None) -> tuple[dict[Pair, list[int]], Any]:
        config = config_of(METHOD, rounds=4, release_round=2, noise_seed=None, epsilon=0.3)
        fed = PLACEMENTS["one at a time"](world.clients)
        released: dict[Pair, list[int]] = {}

        def watch(name: str, messages: Mapping[Pair, Message]) -> None:
            if name == CLASSES:
                released.update({pair: message.payload.tolist() for pair, message in messages.items()})
            if name == "prediction_release/class_counts" and breaks:
                raise Broken

        fed.observe(watch)
        data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
        checkpoints = Checkpoints(tmp_path, every=0, start=start, stop_request=StopRequest())
        if breaks:
            with pytest.raises(Broken):
                train(fed, METHOD, data, world.task, config, checkpoints=checkpoints)
            return released, None
        return released, train(fed, METHOD, data, world.task, config, checkpoints=checkpoints)

    first, _ = run(True, None)
    start, _ = newest_round(tmp_path, ["local"])
    assert start == 1
    again, outcome = run(False, start)
    assert first == again
    assert sum(map(len, first.values())) > 50
    after_release, _ = newest_round(tmp_path, ["local"])
    assert after_release == 4
    later, once_more = run(False, 4)
    assert later == {}, "nothing is released after the round"
    assert torch.equal(logits(outcome), logits(once_more))


def test_a_prediction_sends_the_weights_and_nothing_else() -> None:
    fed, state, config, _ = started(make_world(), release_round=1)
    state = after(fed, state, config, 2)
    before = len(fed.ledger.entries)
    with fed.phase("predict"):
        first, second = scores(fed, state, config), scores(fed, state, config)
    assert {entry.name for entry in fed.ledger.entries[before:]} == {"model"}
    assert torch.equal(first, second)


# ---- training ----------------------------------------------------------------------------------------------


def plain_network(world: World, config: Any, rounds: int) -> torch.nn.Sequential:
    """Two linear layers with a ReLU between them, trained by torch.optim.Adam on the training nodes."""
    first = initial_weights(world.task, config.network, config.run.seed, "cpu")
    network = torch.nn.Sequential(torch.nn.Linear(12, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    with torch.no_grad():
        for number, layer in enumerate((network[0], network[2])):
            weight, bias = first[f"layers.{number}.weight"], first[f"layers.{number}.bias"]
            assert isinstance(weight, Tensor)
            assert isinstance(bias, Tensor)
            layer.weight.copy_(weight.t())
            layer.bias.copy_(bias)
    optimizer = torch.optim.Adam(
        network.parameters(), lr=config.training.lr, weight_decay=config.training.weight_decay
    )
    y, labelled = torch.from_numpy(world.graph.y), torch.from_numpy(world.split.train)
    for _ in range(rounds):
        optimizer.zero_grad()
        cross_entropy(network(features(world))[labelled], y[labelled]).backward()
        optimizer.step()
    return network


def features(world: World) -> Tensor:
    return torch.from_numpy(np.asarray(world.graph.x.toarray())).to(torch.get_default_dtype())


def by_id(world: World, rows: Tensor) -> Tensor:
    """Rows of all clients, in the order of the nodes."""
    return rows.new_zeros(rows.shape).index_copy(0, torch.from_numpy(world.partition.held_id), rows)


@pytest.mark.parametrize("protection", ["plaintext", "secure"])
@pytest.mark.parametrize("placement", ["stacked", "one at a time"])
def test_before_the_release_it_is_a_plain_network_of_own_features(placement: str, protection: str) -> None:
    world = make_world(1)
    settings = {"aggregation": protection, "protocols": "simulated", "dropout": 0.0, "weight_decay": 0.01}
    fed, state, config, _ = started(world, placement, rounds=9, release_round=6, lr=0.05, **settings)
    state = after(fed, state, config, 5)
    expected = plain_network(world, config, 5)(features(world)).log_softmax(1)
    accuracy = 1e-9 if protection == "plaintext" else 1e-5
    assert torch.allclose(by_id(world, scores(fed, state, config)), expected, rtol=0, atol=accuracy)
    state = after(fed, state, config, 1, first=6)
    expected = plain_network(world, config, 6)(features(world)).log_softmax(1)
    found = by_id(world, scores(fed, state, config))
    assert not torch.allclose(found, expected, atol=1e-2), "from the release on neighbours count"


@pytest.mark.parametrize("balanced", ["none", "balanced"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_in_every_round_the_network_is_that_of_own_features_with_its_dropout(
    sparse: bool, balanced: str
) -> None:
    """Also after the release: it acts on predictions, and not on training."""
    world = last_round_stands(make_world(sparse=sparse))
    settings = {**SETTINGS, "class_weights": balanced, "rounds": 7}
    own, _ = run_local("own_features", world, local_steps=1, **settings)
    ours, _ = run_local(NAME, world, release_round=3, **settings)
    expected = part_of(own.state.weights.parts[0], 0)
    for name, weight in ours.state.weights.parts[0].items():
        assert torch.allclose(weight, expected[name], rtol=0, atol=1e-12), name


def test_a_run_whose_best_round_is_before_the_release_is_own_features() -> None:
    """The released classes of a graph whose edges say nothing do not improve on the best round."""
    world = make_world(8)
    options = {**SETTINGS, "rounds": 12, "lr": 0.02}
    own, _ = run_local("own_features", world, local_steps=1, **options)
    ours, _ = run_local(NAME, world, release_round=12, epsilon=0.01, **options)
    assert ours.best_round == own.best_round < 12
    assert ours.test["accuracy"] == own.test["accuracy"]
    assert torch.allclose(by_node(ours, world), logits(own).log_softmax(1), rtol=0, atol=1e-9)


def test_in_plaintext_there_is_one_copy_of_the_weights_for_all_clients() -> None:
    """And no gradient of a single client: what a worker computes with is [F, H], however many clients."""
    world = one_node_each(make_world(nodes=300))
    fed, state, config, _ = started(world, hidden=7)
    (batches,) = state.prepared.batches.parts
    assert batches.pairs is None
    assert batches.train.pairs is None
    assert set(batches.train.tiles) == {None}
    state = after(fed, state, config, 1)
    assert state.weights.parts[0]["layers.0.weight"].shape == (12, 7)
    (entry,) = [e for e in fed.ledger.entries if e.name == "model/grad"]
    assert entry.shape == [[12, 7], [7], [7, 3], [3]] or entry.bytes == 300 * 8 * (12 * 7 + 7 + 7 * 3 + 3)


def test_secure_sums_give_the_same_model_and_show_the_server_no_clients_part() -> None:
    world = last_round_stands(make_world(4))
    options = {**SETTINGS, "rounds": 5, "release_round": 2}
    plain, _ = run_local(NAME, world, **options)
    hidden, fed = run_local(NAME, world, aggregation="secure", **options)
    assert 0 < (logits(plain) - logits(hidden)).abs().max() < 1e-4
    to_server = {
        e.name
        for e in fed.ledger.entries
        if e.phase in ("setup", "train") and e.direction == "up" and e.protection == "plaintext"
    }
    assert to_server == set()


# ---- the combination ---------------------------------------------------------------------------------------


def plain_likelihoods(
    released: list[list[float]], own: list[list[float]], epsilon: float, smoothing: float, classes: int
) -> tuple[list[list[float]], list[list[float]]]:
    """Expectation maximisation of one class of nodes after another, in plain numbers."""
    t = response_matrix(epsilon, classes).tolist()

    def fit(counts: list[float], exact: list[float], prior: list[float]) -> list[float]:
        q = [p / sum(prior) for p in prior]
        for _ in range(3000):
            expected = []
            for c in range(classes):
                mass = exact[c] + prior[c]
                for z in range(classes):
                    mass += counts[z] * q[c] * t[c][z] / sum(q[d] * t[d][z] for d in range(classes))
                expected.append(mass)
            q = [e / sum(expected) for e in expected]
        return q

    everything = [sum(row[c] for row in released) for c in range(classes)]
    exactly = [sum(row[c] for row in own) for c in range(classes)]
    overall = fit(everything, exactly, [1.0] * classes)
    q = [fit(released[k], own[k], [smoothing * p for p in overall]) for k in range(classes)]
    noised = [
        [sum(q[k][d] * t[d][z] for d in range(classes)) for z in range(classes)] for k in range(classes)
    ]
    return q, noised


@pytest.mark.parametrize("placement", ["stacked", "one at a time"])
@pytest.mark.parametrize("clients", ["three", "one node each"])
def test_the_combination_is_the_plain_loop_over_neighbours(clients: str, placement: str) -> None:
    world = make_world(5)
    world = world if clients == "three" else one_node_each(world)
    settings = {"release_round": 3, "epsilon": 1.3, "smoothing": 2.0, "dropout": 0.0, "noise_seed": 4}
    fed, state, config, _ = started(world, placement, **settings)
    words = torch.cat(list(state.values["words"].parts))
    words = by_id(world, words.long()[:, None])[:, 0].int()
    state = after(fed, state, config, 2)
    before = scores(fed, state, config)
    classes = by_id(world, before).argmax(1)
    values = respond(classes, words, 1.3, 3)
    state = after(fed, state, config, 2, first=3)
    network = plain_network(world, config, 4)(features(world)).log_softmax(1)

    owner = dict(zip(world.partition.held_id.tolist(), world.partition.held_client.tolist(), strict=True))
    released, own = ([[0.0] * 3 for _ in range(3)] for _ in range(2))
    near: dict[int, list[int]] = defaultdict(list)
    for u, v in world.graph.edges.T.tolist():
        near[u].append(v)
        near[v].append(u)
    for u in range(world.graph.num_nodes):
        if world.split.train[u]:
            for v in near[u]:
                table, value = (own, classes[v]) if owner[u] == owner[v] else (released, values[v])
                table[int(world.graph.y[u])][int(value)] += 1
    q, noised = plain_likelihoods(released, own, 1.3, 2.0, 3)
    expected = network.clone()
    for u in range(world.graph.num_nodes):
        for v in near[u]:
            for k in range(3):
                table, value = (q, classes[v]) if owner[u] == owner[v] else (noised, values[v])
                expected[u, k] += math.log(table[k][int(value)])
    found = by_id(world, scores(fed, state, config))
    assert torch.allclose(found, expected, rtol=0, atol=1e-6)
    assert (found.argmax(1) != network.argmax(1)).any(), "the neighbours do decide somewhere"


def test_the_estimate_is_a_maximum_and_recovers_what_it_was_made_of() -> None:
    """No step to another distribution raises the objective; many counts give the truth back."""
    generator = torch.Generator().manual_seed(0)
    t = response_matrix(0.8, 4)
    truth = torch.rand(4, 4, generator=generator, dtype=torch.float64)
    truth /= truth.sum(1, keepdim=True)
    exact = 1e7 * truth @ t
    prior = torch.full((4,), 0.5, dtype=torch.float64)
    found = maximise(exact, torch.zeros_like(exact), t, prior)
    assert torch.allclose(found, truth, atol=1e-4)
    few, own = torch.randint(0, 5, (2, 4, 4), generator=generator).double()

    def objective(q: Tensor) -> float:
        return float((few * (q @ t).log() + own * q.log() + prior * q.log()).sum())

    found = maximise(few, own, t, prior)
    for _ in range(200):
        other = torch.rand(4, 4, generator=generator, dtype=torch.float64)
        other /= other.sum(1, keepdim=True)
        for part in (0.3, 0.01):
            assert objective((1 - part) * found + part * other) <= objective(found) + 1e-9


@pytest.mark.parametrize("counts", [torch.zeros(2, 3, 3), torch.full((2, 3, 3), 1e6)], ids=["none", "alike"])
def test_counts_that_say_nothing_give_likelihoods_that_say_nothing(counts: Tensor) -> None:
    for epsilon in (1e-3, 1.0, 1e3):
        found = class_likelihoods(counts, epsilon, 3.0)
        assert torch.isfinite(found).all()
        assert torch.allclose(found, found[:, :1].expand_as(found), atol=1e-4)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0])
def test_a_released_class_changes_the_odds_of_two_classes_by_no_more_than_epsilon(epsilon: float) -> None:
    """Whatever the counts are: a budget near 0 leaves the predictions of the network."""
    generator = torch.Generator().manual_seed(1)
    for scale in (1, 1000):
        counts = torch.randint(0, scale + 1, (2, 5, 5), generator=generator)
        released, _ = class_likelihoods(counts, epsilon, 0.1)
        assert float((released.amax(0) - released.amin(0)).max()) <= epsilon * (1 + 1e-9)


def homophilous(seed: int) -> World:
    """600 nodes whose features say little, and whose neighbours are of their class four times in five."""
    rng = np.random.default_rng(seed)
    n, y = 600, rng.integers(0, 3, 600)
    ends = rng.integers(0, n, (2, 9 * n))
    kept = (y[ends[0]] == y[ends[1]]) | (rng.random(ends.shape[1]) < 0.12)
    x = rng.normal(0, 1, (n, 12)) + 0.5 * (np.arange(12) % 3 == y[:, None])
    graph = make_graph("homophilous", x.astype(np.float32), y, ends[:, kept], num_classes=3)
    part = rng.permutation(n) % 4
    split = Split("random", part < 2, part == 2, part == 3)
    return World(graph, split, partition(graph, "ego", n, 0))


def test_with_a_large_budget_it_beats_own_features_and_with_none_it_loses_nothing() -> None:
    """Three graphs; with epsilon 1e-6 no prediction changes, by the law above."""
    found: dict[object, list[float]] = defaultdict(list)
    for seed in range(3):
        world = homophilous(seed)
        options = {**SETTINGS, "rounds": 40, "lr": 0.02, "dropout": 0.2, "hidden": 16}
        own, _ = run_local("own_features", world, local_steps=1, **options)
        found["own"].append(own.test["accuracy"])
        for epsilon in (1e-6, 20.0):
            ours, _ = run_local(NAME, world, epsilon=epsilon, **options)
            found[epsilon].append(ours.test["accuracy"])
    assert np.mean(found[20.0]) > np.mean(found["own"]) + 0.1
    assert found[1e-6] == pytest.approx(found["own"], abs=1e-9)


# ---- settings and data -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"rounds": 300, "patience": 50}, 50),
        ({"rounds": 300, "patience": None}, 150),
        ({"rounds": 60, "patience": 8, "eval_every": 5}, 30),
        ({"rounds": 300, "patience": 8, "eval_every": 5}, 40),
        ({"rounds": 1}, 1),
        ({"rounds": 4}, 2),
        ({"rounds": 300, "release_round": 70}, 70),
    ],
)
def test_by_default_the_release_is_in_a_round_that_is_reached(
    settings: dict[str, Any], expected: int
) -> None:
    config = METHOD.configure(settings)
    assert config.round_of_release == expected


def test_a_run_that_never_improves_still_releases() -> None:
    world = make_world()
    _, fed = run_local(
        NAME, world, rounds=50, patience=3, eval_every=2, lr=1e-300, dropout=0.0, weight_decay=0.0
    )
    assert rounds_of_release(fed) == [6]


def test_a_release_after_the_last_round_is_refused() -> None:
    with pytest.raises(InputError, match="release_round=5 cannot be used with rounds=4: expected at most 4"):
        METHOD.configure({"rounds": 4, "release_round": 5})


def test_edge_weights_are_refused_where_the_graph_is_whole_and_at_the_clients() -> None:
    world = weighted(make_world())
    message = "prediction_release counts the classes of neighbours, and has no use for edge weights"
    with pytest.raises(InputError, match=message):
        graphfed.run(NAME, data=world.graph, split="random:0.5,0.2,0.3", out=False)
    for placement in ("stacked", "one at a time"):
        with pytest.raises(InputError, match=message):
            run_local(NAME, world, placement)


def test_several_edges_to_one_remote_neighbour_cost_one_value() -> None:
    """Its value counts for every edge, and is sent to a client once."""
    x = np.eye(3, dtype=np.float32)[[0, 1, 2, 0]]
    graph = make_graph("v", x, np.array([0, 1, 2, 0]), np.array([[0, 1], [2, 2]]), num_classes=3)
    mask = np.array([True, True, False, False])
    split = Split("v", mask, ~mask, np.zeros(4, dtype=bool))
    world = World(graph, split, from_assignment(graph, np.array([0, 0, 1, 1]), num_clients=2))
    fed, state, config, _ = started(world, release_round=1)
    state = after(fed, state, config, 1)
    (entry,) = [e for e in fed.ledger.entries if e.name == CLASSES]
    assert entry.bytes == 2 * 3, "node 2 to client 0, and nodes 0 and 1 to client 1"
    evidence = state.values["evidence"].parts[0]
    assert torch.equal(evidence[0], evidence[1])
    assert torch.equal(evidence[3], torch.zeros(3)), "an isolated node has no evidence"


@pytest.mark.parametrize(
    ("classes", "words"),
    [
        (torch.tensor([0, 2], dtype=torch.int16), ""),
        (torch.tensor([0, 3], dtype=torch.int16), "class 3, but the classes are 0..2"),
        (torch.tensor([-1], dtype=torch.int16), "class -1, but the classes are 0..2"),
        (torch.tensor([1]), "int64 [1] where a class of each node is expected"),
        (torch.tensor([[1]], dtype=torch.int16), "int16 [1, 1] where a class of each node is expected"),
    ],
)
def test_what_is_no_class_is_refused_from_another_process(classes: Tensor, words: str) -> None:
    assert accept_classes(3, classes, {}) == words


def test_counts_below_0_are_refused_from_another_process() -> None:
    counts = torch.zeros(2, 3, 3, dtype=torch.int64)
    assert accept_pairs(counts, {}) == ""
    counts[1, 0, 2] = -1
    assert accept_pairs(counts, {}) == "a number of neighbours below 0"
