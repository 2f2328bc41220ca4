"""FedGraph: what it computes and what is sent, against plain loops over clients and nodes, and its limits
(docs/papers/fedgraph.md, "Properties that the tests check")."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import plain_fedgraph
import pytest
import torch
from plain_fedgraph import Plain
from torch import Tensor
from worlds import (
    Watched,
    World,
    as_asked,
    cohorts_of,
    config_of,
    last_round_stands,
    logits,
    make_world,
    run_local,
    weighted,
)

from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.fedgraph import client_graphs
from graphfed.methods.fedgraph import method as fedgraph
from graphfed.methods.fedgraph.config import FedGraphConfig, ModelledTime, Sampling
from graphfed.methods.fedgraph.learned_policy import (
    MIN_PROBABILITY,
    PolicyFile,
    load_policy,
    make_decision,
    write_policy,
)
from graphfed.methods.fedgraph.round_time import modelled_seconds
from graphfed.methods.registry import get_method
from graphfed.runs.train import train

METHOD = get_method("fedgraph")
ROUNDS = 3
PLAIN = {"optimizer": "sgd", "dropout": 0.0, "lr": 0.1, "weight_decay": 1e-2, "rounds": ROUNDS}


def overlapping(seed: int = 0, nodes: int = 30) -> World:
    world = make_world(seed, nodes=nodes)
    return World(world.graph, world.split, partition(world.graph, "overlapping", 3, seed))


def decision_of(world: World, config: FedGraphConfig) -> dict[int, list[float]]:
    counts = torch.tensor([len(ids) for ids in Plain(world, config).train.values()])
    rows = fedgraph.fixed_decision(counts, config.sampling, config.network.layers)
    return dict(enumerate(rows.tolist()))


def first_weights(world: World, config: FedGraphConfig) -> dict[str, Tensor]:
    return initial_weights(world.task, config.network, config.run.seed, "cpu")


def trained(world: World, **settings: Any) -> tuple[dict[str, Tensor], Federation]:
    """The last round's weights."""
    outcome, fed = run_local("fedgraph", last_round_stands(world), **{**PLAIN, **settings})
    assert outcome.best_round == ROUNDS
    return outcome.state.weights.parts[0], fed


SETTINGS = {
    "constant": {"probability": 0.4, "batch": 5},
    "horvitz_thompson": {"probability": 0.4, "batch": 5, "estimator": "horvitz_thompson"},
    "graphsage": {"policy": "graphsage", "fan_out": 3, "inner_fan_out": 2, "batch": 6},
    "fastgcn": {"policy": "fastgcn", "layer_size": 12, "batch": 6},
    "fastgcn of three layers": {"policy": "fastgcn", "layer_size": 7, "layers": 3},
    "fastgcn with internal degrees": {"policy": "fastgcn", "layer_size": 9, "first_degrees": "internal"},
    "fastgcn with all degrees": {"policy": "fastgcn", "layer_size": 9, "first_degrees": "all"},
    "fastgcn that sends nothing": {"policy": "fastgcn", "layer_size": 9, "sent_embeddings": "none"},
    "full": {"policy": "full"},
    "every neighbour of a batch": {"probability": 1.0, "batch": 4},
    "three layers": {"layers": 3, "probability": 0.5, "batch": 5},
    "four layers": {"layers": 4, "probability": 0.3, "batch": 3},
    "one layer": {"layers": 1, "probability": 0.5},
    "two local steps": {"local_steps": 2, "probability": 0.5, "batch": 5},
    "once in a round": {"local_steps": 2, "refresh": "round", "probability": 0.5, "batch": 5},
    "the optimiser at the server": {
        "optimizer_at": "server",
        "optimizer": "adam",
        "probability": 0.5,
        "batch": 5,
    },
    "internal degrees": {"first_degrees": "internal", "probability": 0.7},
    "all degrees": {"first_degrees": "all", "probability": 0.7},
    "send all": {"sent_embeddings": "all", "probability": 0.5, "layers": 3, "batch": 5},
    "send none": {"sent_embeddings": "none", "probability": 0.5},
}
WORLDS = {
    "one copy": lambda: make_world(3),
    "dense": lambda: make_world(4, sparse=False),
    "weighted": lambda: weighted(make_world(5)),
    "copies": lambda: overlapping(6),
    "two clients": lambda: make_world(7, clients=2),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.sampled(3)
def test_weights_and_traffic_are_those_of_plain_loops_over_clients_and_nodes(settings, world):
    made, chosen = WORLDS[world](), SETTINGS[settings]
    weights, fed = trained(made, **chosen)
    config = config_of(METHOD, **{**PLAIN, **chosen})
    first = first_weights(made, config)
    expected, sent = plain_fedgraph.train(made, config, decision_of(made, config), first, ROUNDS)
    for name, w in expected.items():
        assert torch.allclose(weights[name], w, rtol=0, atol=1e-10), name
    assert fed.ledger.bytes_of("fedgraph/wanted", "train") == 8 * sent["ids"]
    assert fed.ledger.bytes_of("fedgraph/embeddings", "train") == 8 * sent["numbers"]
    assert fed.ledger.bytes_of("fedgraph/transformed_features", "train") == 8 * sent["first"]
    names = {entry.name for entry in fed.ledger.entries}
    assert ("fedgraph/transformed_features" in names) == (config.sharing.sent_embeddings == "all")
    assert ("gradient" in names) == config.at_server() != ("update" in names)


def test_a_learned_policy_does_and_sends_what_plain_loops_do_with_its_decision(tmp_path):
    """An actor whose last layer has no weights says its bias whatever it sees. Its clients' weights are
    sent one by one, and weigh what they weigh in an average."""
    world = make_world(3)
    config = config_of(METHOD, **PLAIN)
    counts = torch.tensor([len(ids) for ids in Plain(world, config).train.values()])
    size = sum(w.numel() for w in first_weights(world, config).values())
    action = torch.tensor([-0.2, 0.1, -0.5], dtype=torch.float64)
    draws = torch.Generator().manual_seed(0)
    tensors = {
        "actor.0.weight": torch.randn(4, 8, generator=draws),
        "actor.0.bias": torch.randn(4, generator=draws),
        "actor.1.weight": torch.zeros(9, 4),
        "actor.1.bias": action.repeat(3).atanh(),
        "pca.mean": torch.randn(size, generator=draws),
        "pca.components": torch.randn(2, size, generator=draws),
        "pca.scale": torch.tensor(1.5, dtype=torch.float64),
    }
    write_policy(tmp_path / "p", tensors, PolicyFile("ddpg", 3, 2, size, {}))
    weights, fed = trained(world, policy="ddpg", policy_file=str(tmp_path / "p"))
    decision = dict(enumerate(make_decision(action.repeat(3), counts).tolist()))
    assert decision[0][0] < counts[0]
    first = first_weights(world, config)
    expected, sent = plain_fedgraph.train(world, config, decision, first, ROUNDS)
    for name, w in expected.items():
        assert torch.allclose(weights[name], w, rtol=0, atol=1e-10), name
    assert fed.ledger.bytes_of("fedgraph/wanted", "train") == 8 * sent["ids"]
    assert fed.ledger.bytes_of("fedgraph/embeddings", "train") == 8 * sent["numbers"]
    assert fed.ledger.bytes_of("update") == ROUNDS * 3 * size * 8
    assert fed.ledger.bytes_of("fedgraph/policy") == ROUNDS * 3 * 3 * 8


def test_a_learned_policy_is_on_the_device_of_the_weights(tmp_path: Path) -> None:
    """Whatever device that is: here one that holds no numbers."""
    shapes = {
        "actor.0.weight": (9, 4),
        "actor.0.bias": (9,),
        "pca.mean": (1,),
        "pca.components": (1, 1),
        "pca.scale": (),
    }
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    write_policy(tmp_path / "p", tensors, PolicyFile("ddpg", 3, 2, 1, {}))
    sampling = Sampling(policy="ddpg", policy_file=str(tmp_path / "p"))
    policy = load_policy(sampling, 2, 3, {"layers.0.weight": torch.zeros(1, device="meta")})
    assert {name: tensor.device.type for name, tensor in policy.items()} == dict.fromkeys(
        [*shapes, "saw_test"], "meta"
    )


def test_an_actor_decides_by_what_the_clients_sent_the_round_before(tmp_path):
    """Each round's batch and probabilities are the actor's on {W, W_1, ..., W_K} of the round before, along
    the principal components: here computed in NumPy from the messages themselves.  Alg. 3, l. 5"""
    world = make_world(3)
    config = config_of(METHOD, **PLAIN, policy="ddpg", policy_file=str(tmp_path / "p"))
    fed = Watched([[0], [1], [2]])
    first = first_weights(world, config)
    size = sum(w.numel() for w in first.values())
    draws = torch.Generator().manual_seed(1)
    tensors = {
        "actor.0.weight": torch.randn(9, 8, generator=draws),
        "actor.0.bias": torch.randn(9, generator=draws),
        "pca.mean": torch.randn(size, generator=draws),
        "pca.components": torch.randn(2, size, generator=draws),
        "pca.scale": torch.tensor(5.0, dtype=torch.float64),
    }
    write_policy(tmp_path / "p", tensors, PolicyFile("ddpg", 3, 2, size, {}))
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    train(fed, METHOD, data, world.task, config)
    decisions = [payload for name, (_, k), payload in fed.seen if name == "fedgraph/policy" and k == 0]
    updates = [
        [payload for name, (k, _), payload in fed.seen if name == "update" and k == client]
        for client in range(3)
    ]
    whole = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    row = np.concatenate([first[name].numpy().ravel() for name in sorted(first)])
    view = np.stack([row] * 4)
    counts = np.array([len(ids) for ids in Plain(world, config).train.values()])
    for number in range(ROUNDS):
        seen = (view - whole["pca.mean"]) @ whole["pca.components"].T / whole["pca.scale"]
        action = np.tanh(whole["actor.0.weight"] @ seen.ravel() + whole["actor.0.bias"]).reshape(3, 3)
        expected = make_decision(torch.from_numpy(action.ravel()), torch.from_numpy(counts))
        assert torch.allclose(decisions[number].flatten(), expected[0], atol=1e-9)
        own = np.stack([updates[client][number].numpy().ravel() for client in range(3)])
        fraction = expected[:, 0].numpy() / expected[:, 0].numpy().sum()
        view = np.concatenate([(fraction @ own)[None], own])
    assert len({tuple(decision.flatten().tolist()) for decision in decisions}) == ROUNDS


def test_embeddings_of_the_first_step_serve_all_local_steps_of_a_round_where_they_are_not_refreshed():
    """With three steps in a round a third of the rows is sent."""
    world = make_world(3)
    settings = {"local_steps": 3, "policy": "full"}
    _, stale = trained(world, refresh="round", **settings)
    _, each = trained(world, refresh="step", **settings)
    for name in ("fedgraph/wanted", "fedgraph/embeddings"):
        assert 0 < 3 * stale.ledger.bytes_of(name, "train") == each.ledger.bytes_of(name, "train")


# ---- limits ------------------------------------------------------------------------------------------------


def dense_gcn(world: World, weights: dict[str, Tensor], layers: int, *, first: str) -> Tensor:
    """Logits [N, C] of a dense GCN; its first layer sees "all" edges, or those inside clients, with the
    degrees of "all" of them ("inside"), or of these alone ("inside alone")."""
    n, (u, v) = world.graph.num_nodes, torch.from_numpy(world.graph.edges)
    a = torch.eye(n)
    a[u, v] = a[v, u] = 1.0
    client = torch.from_numpy(world.partition.held_client[np.argsort(world.partition.held_id)])
    inside = a * (client[:, None] == client[None])
    q = a / (a.sum(1)[:, None] * a.sum(1)[None]).sqrt()
    q_inside = inside / (inside.sum(1)[:, None] * inside.sum(1)[None]).sqrt()
    q_first = {"all": q, "inside": q * (inside > 0), "inside alone": q_inside}[first]
    h = torch.from_numpy(world.graph.x.toarray()).double()
    for layer in range(layers):
        h = (q_first if layer == 0 else q) @ h @ weights[f"layers.{layer}.weight"]
        h = h + weights[f"layers.{layer}.bias"]
        h = h if layer == layers - 1 else h.relu()
    return h


@pytest.mark.parametrize("layers", [2, 3, 4])
@pytest.mark.parametrize(
    ("settings", "first"),
    [
        ({"first_degrees": METHOD.configure({}).sharing.first_degrees}, "inside alone"),
        ({"sent_embeddings": "all"}, "all"),
        ({"first_degrees": "all"}, "inside"),
        ({"first_degrees": "internal"}, "inside alone"),
    ],
)
def test_synchronised_predictions_are_those_of_a_gcn_whose_first_layer_lacks_the_edges_between_clients(
    settings, first, layers
):
    """With sent_embeddings=all they are those of the central GCN."""
    world = make_world(2, clients=4)
    outcome, _ = run_local("fedgraph", world, layers=layers, **settings)
    expected = dense_gcn(world, outcome.state.weights.parts[0], layers, first=first)
    ids = torch.from_numpy(world.partition.held_id)
    assert torch.allclose(logits(outcome), expected[ids], rtol=0, atol=1e-12)


def test_without_sharing_a_full_batch_is_fedavg():
    """Dropout, Adam, kept states and several local steps included."""
    world = make_world(5)
    settings = {"optimizer": "adam", "client_state": "keep", "lr": 0.02, "dropout": 0.4, "local_steps": 3}
    alone, _ = run_local("fedgraph", world, policy="full", sent_embeddings="none", **settings)
    averaged, _ = run_local("fedavg", world, **settings)
    assert torch.allclose(logits(alone), logits(averaged), rtol=0, atol=1e-9)


def test_a_fan_out_of_the_largest_degree_is_the_full_sum():
    world = overlapping(2)
    large, _ = trained(world, policy="graphsage", fan_out=100, inner_fan_out=100, batch=1000)
    full, _ = trained(world, policy="full")
    assert all(torch.equal(large[name], full[name]) for name in full)


@pytest.mark.parametrize("estimator", ["ratio", "horvitz_thompson"])
def test_with_a_probability_near_0_only_the_node_itself_is_left_and_nothing_is_sent(estimator):
    world = make_world(3)
    weights, fed = trained(world, probability=1e-15, batch=1000, estimator=estimator)
    assert fed.ledger.bytes_of("fedgraph/wanted", "train") == 0
    assert fed.ledger.bytes_of("fedgraph/embeddings", "train") == 0
    config = config_of(METHOD, **PLAIN, probability=1e-15)
    decision = {k: [row[0], 0.0, 0.0] for k, row in decision_of(world, config).items()}
    first = first_weights(world, config)
    expected, _ = plain_fedgraph.train(world, config, decision, first, ROUNDS)
    assert torch.allclose(weights["layers.0.weight"], expected["layers.0.weight"], rtol=0, atol=1e-10)


def test_fastgcn_agrees_in_all_placements_and_its_batches_are_drawn_anew():
    world = overlapping(4)
    settings = {"policy": "fastgcn", "layer_size": 8, "batch": 5}
    here, fed = trained(world, **settings)
    outcome, oracle = run_local(
        "fedgraph", last_round_stands(world), "one at a time", **{**PLAIN, **settings}
    )
    for name, w in outcome.state.weights.parts[0].items():
        assert torch.allclose(here[name], w, rtol=0, atol=1e-10)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
    other, _ = trained(world, **settings, seed=1)
    assert not torch.equal(here["layers.0.weight"], other["layers.0.weight"])


# ---- what is sent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS)
def test_no_message_holds_a_feature_of_a_node(settings):
    """Nothing that clients send has a row as long as the features, but the model's weights; and no client
    sends anything to another with sent_embeddings=none."""
    world, chosen = make_world(2), {**PLAIN, **SETTINGS[settings]}
    fed = Watched([[0], [1], [2]])
    config = config_of(METHOD, **chosen)
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    train(fed, METHOD, data, world.task, config)
    between = [(name, payload) for name, (a, b), payload in fed.seen if a >= 0 and b >= 0]
    assert bool(between) == (config.sharing.sent_embeddings != "none" and config.network.layers > 1)
    features = world.graph.num_features
    for name, payload in between:
        if name in ("fedgraph/embeddings", "fedgraph/transformed_features"):
            assert payload.shape[1] in (config.network.hidden, world.graph.num_classes)
            assert payload.shape[1] < features
        else:
            assert name in ("fedgraph/neighbours", "fedgraph/wanted")
            for tensor in payload if isinstance(payload, tuple) else (payload,):
                assert not tensor.is_floating_point()
    sent_up = {name for name, (a, b), _ in fed.seen if b < 0 <= a}
    assert not sent_up & {"fedgraph/embeddings", "fedgraph/transformed_features"}


def test_the_owner_scales_what_it_sends_so_that_no_degree_is_sent():
    """Q(v, u) has the owner's degree; of the messages none holds one."""
    world = make_world(2)
    fed = Watched([[0], [1], [2]])
    settings = {"policy": "full", "first_degrees": "internal"}
    config = config_of(METHOD, **PLAIN, **settings)
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    outcome = train(fed, METHOD, data, world.task, config)
    names = {name for name, _, _ in fed.seen}
    assert not [name for name in names if "degree" in name]
    expected = dense_gcn(world, outcome.state.weights.parts[0], 2, first="inside alone")
    assert torch.allclose(logits(outcome), expected[torch.from_numpy(world.partition.held_id)], atol=1e-12)


# ---- the server --------------------------------------------------------------------------------------------


def test_an_action_becomes_a_batch_of_at_least_one_node_and_probabilities_above_the_floor():
    counts = torch.tensor([10, 1, 0])
    low, high = (make_decision(torch.full((9,), a), counts) for a in (-5.0, 5.0))
    assert low[:, 0].tolist() == [1, 1, 0]
    assert high[:, 0].tolist() == [10, 1, 0]
    assert torch.allclose(low[:, 1:], torch.full((3, 2), MIN_PROBABILITY, dtype=torch.float64))
    assert (high[:, 1:] == 1).all()
    middle = make_decision(torch.zeros(9), counts)
    assert middle[0].tolist() == pytest.approx([5, (1 + MIN_PROBABILITY) / 2, (1 + MIN_PROBABILITY) / 2])


def test_the_mean_is_by_batch_size_and_plain_where_all_are_alike():
    """Eq. (8): the same weights at all clients stay as they are, so fractions add up to one."""
    world = make_world(1)
    weights, _ = trained(world, lr=1e-300, weight_decay=0.0, batch=3)
    first = first_weights(world, config_of(METHOD, **PLAIN))
    for name, w in first.items():
        assert torch.allclose(weights[name], w, rtol=0, atol=1e-15)


def test_each_client_draws_as_many_columns_as_decided_and_in_proportion() -> None:
    """Of two clients with columns 0 to 2 and 3 to 4, the last of them at another client, with replacement."""
    probability = torch.tensor([0.5, 0.0, 0.5, 0.25, 0.75], dtype=torch.float64)
    column = torch.tensor([0, 2, 3, 4])
    importance = client_graphs.Importance(column, probability[column].cumsum(0), probability)
    graph: Any = SimpleNamespace(client_ids=torch.tensor([4, 9]), client=torch.tensor([0, 0, 0, 1]))
    times = torch.zeros(5, dtype=torch.int64)
    for key in range(200):
        drawn = client_graphs._draw_columns(graph, importance, torch.tensor([2, 5]), key)
        assert (int(drawn[:3].sum()), int(drawn[3:].sum())) == (2, 5)
        times += drawn
    assert times[1] == 0
    for found, count, fraction in ((times[0], 400, 0.5), (times[3], 1000, 0.25)):
        assert abs(int(found) - count * fraction) < 5 * (count * fraction * (1 - fraction)) ** 0.5


def test_a_draw_at_the_end_of_a_columns_interval_belongs_to_the_next_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a draw of 0 is the first column of its client, and not the last one of the client before. The last
    column has no next one: to it belongs the largest draw below 1, which rounding makes the end."""
    probability = torch.full((4,), 0.5, dtype=torch.float64)
    importance = client_graphs.Importance(torch.arange(4), probability.cumsum(0), probability)
    graph: Any = SimpleNamespace(client_ids=torch.tensor([4, 9]), client=torch.tensor([0, 0, 1, 1]))
    for draw, columns in ((0.0, [1, 0, 1, 0]), (0.5, [0, 1, 0, 1]), (1 - 2**-53, [0, 1, 0, 1])):
        drawn = torch.full((2, 1), draw, dtype=torch.float64)
        monkeypatch.setattr(client_graphs, "uniform", lambda key, ids, width, drawn=drawn: drawn)
        found = client_graphs._draw_columns(graph, importance, torch.tensor([1, 1]), key=0)
        assert found.tolist() == columns


def test_which_remote_neighbours_are_in_a_sample_is_a_mask() -> None:
    """The places of their rows are sums over it, which floats do not hold from 2^24 on."""
    (cohort,) = cohorts_of(make_world(3), [[0, 1, 2]], config_of(METHOD))
    graph = client_graphs.build_graph(cohort, config_of(METHOD).sharing, False)
    every = torch.arange(graph.num_rows)
    _, is_requested = client_graphs.sample_neighbours(
        graph, every, None, "independent", layer=1, has_remote=True, key=0
    )
    assert is_requested.dtype == torch.bool
    assert int(is_requested.sum()) == graph.num_remote > 0


def test_probabilities_and_seconds_are_float64_whatever_the_networks_are() -> None:
    """Seconds of thousands of rounds are added up, and draws fall between sums of probabilities."""
    torch.set_default_dtype(torch.float32)
    (seconds,) = fedgraph.first_facts({}, "cpu", False).values()
    assert seconds.dtype == torch.float64
    world = make_world(3)
    config = config_of(METHOD, policy="fastgcn", layer_size=9)
    (cohort,) = cohorts_of(world, [[0, 1, 2]], config)
    graph = client_graphs.build_graph(cohort, config.sharing, True)
    for importance in graph.importance:
        assert importance.cumulative.dtype == importance.probability.dtype == torch.float64
        totals = torch.zeros(3, dtype=torch.float64)
        totals.index_add_(0, graph.client, importance.probability[: graph.num_rows])
        assert bool((totals <= 1 + 1e-12).all())


def test_modelled_seconds_are_operations_and_bytes_of_the_slowest_client():
    """One full-batch round of two equal layers, counted by hand over clients and nodes."""
    world = last_round_stands(make_world(3))
    settings = {**PLAIN, "rounds": 1, "policy": "full", "spread": 1.0, "speed": 1e6, "bandwidth": 1e4}
    outcome, fed = run_local("fedgraph", world, **settings)
    config = config_of(METHOD, **settings)
    plain = Plain(world, config)
    layers = plain.sample({k: set(ids) for k, ids in plain.train.items()}, None, 0)
    widths = (world.graph.num_features, config.network.hidden, world.graph.num_classes)
    size = sum((a + 1) * b for a, b in pairwise(widths))
    counted = np.zeros(world.clients)
    for entry in fed.ledger.entries:
        if entry.phase == "train" and entry.name != "fedgraph/seconds":
            counted += entry.sent + entry.received
    seconds = []
    for k in plain.clients:
        work = 10.0 * size
        for number, layer in enumerate(layers):
            a, b = widths[number], widths[number + 1]
            edges = sum(len(neighbours) for neighbours in layer.coefficient[k].values())
            work += 4 * edges * b
            if number == 0:
                work += 4 * b * sum(int((plain.x[v] != 0).sum()) for v in layer.enter[k])
            else:
                work += 6 * a * b * len(layer.enter[k])
        seconds.append(work / 1e6 + counted[k] / 1e4)
    assert outcome.details["modelled_seconds"] == pytest.approx(max(seconds), rel=1e-12)


def test_faster_clients_take_less_time_and_the_spread_does_not_depend_on_the_run():
    world = make_world(3)
    times = {}
    for spread in (1.0, 4.0):
        for seed in (0, 1):
            outcome, _ = run_local("fedgraph", world, policy="full", spread=spread, seed=seed, rounds=1)
            times[spread, seed] = outcome.details["modelled_seconds"]
    assert times[1.0, 0] == times[1.0, 1] < times[4.0, 0] == times[4.0, 1] < 4 * times[1.0, 0]


def test_speeds_and_bandwidths_of_clients_lie_evenly_between_a_spread_below_and_above_the_median():
    """On a logarithmic scale: of 4000 clients the quarters differ from a 1000 by 5 standard errors at most
    (false alarms: 5e-6), and every value lies within the spread."""
    graph = SimpleNamespace(client_ids=torch.arange(4000))
    time = ModelledTime(speed=50.0, bandwidth=20.0, spread=3.0)
    nothing, something = torch.zeros(4000), torch.full((4000,), 60)
    speed = 2 * 10 * 7 / modelled_seconds(graph, nothing, nothing, nothing, 7, 2, time)
    bandwidth = 60 / modelled_seconds(graph, nothing, nothing, something, 0, 2, time)
    for values, median in ((speed, 50.0), (bandwidth, 20.0)):
        place = (values / median).log() / np.log(3.0)
        counts = torch.histc(place, bins=4, min=-1.0, max=1.0)
        assert counts.sum() == 4000
        assert (counts - 1000).abs().max() <= 5 * (4000 * 0.25 * 0.75) ** 0.5
    assert not torch.allclose(speed / 50.0, bandwidth / 20.0)


def test_a_policy_that_sees_every_clients_weights_leaves_the_optimizer_at_the_clients():
    settings = {"local_steps": 1, "optimizer_at": "server"}
    assert METHOD.configure(settings).at_server()
    assert not METHOD.configure({**settings, "policy": "ddpg", "policy_file": "p"}).at_server()


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": "ddpg"}, "policy=ddpg cannot be used without policy_file"),
        ({"policy_file": "p"}, "policy_file='p' cannot be used with policy=full"),
        (
            {"policy": "ddpg", "policy_file": "p", "aggregation": "secure"},
            "the policy observes every client's weights",
        ),
        ({"backbone": "gat"}, "fedgraph always has backbone=gcn"),
        ({"probability": 0.0}, "probability=0.0 cannot be used: expected"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(settings, message):
    from graphfed.runs.config import make_config

    with pytest.raises(InputError, match=message):
        make_config("fedgraph", settings=settings)


def test_other_policies_average_under_secure_aggregation_to_what_they_do_in_plaintext():
    world = make_world(3)
    plaintext, _ = trained(world, probability=0.5, batch=4)
    hidden, _ = trained(world, probability=0.5, batch=4, aggregation="secure", protocols="simulated")
    for name in plaintext:
        assert torch.allclose(plaintext[name], hidden[name], rtol=0, atol=1e-5)


def test_a_client_without_remote_neighbours_and_one_without_training_nodes_take_part():
    world = make_world(3, nodes=20, assignment=[0] * 8 + [1] * 8 + [2] * 4)
    train_mask = world.split.train.copy()
    train_mask[8:16] = False
    world = World(world.graph, replace(world.split, train=train_mask), world.partition)
    weights, _ = trained(as_asked(METHOD, world), probability=0.5)
    assert all(w.isfinite().all() for w in weights.values())


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_client_without_nodes_draws_no_column_of_another_client(empty: int) -> None:
    """Each client draws from its own columns, so a run does not depend on whether they are stacked."""
    world = make_world(3, clients=2)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    clients = np.array([k for k in range(3) if k != empty])[client]
    world = World(world.graph, world.split, from_assignment(world.graph, clients, num_clients=3))
    settings = {**PLAIN, "policy": "fastgcn", "layer_size": 8, "batch": 5}
    together, _ = run_local("fedgraph", last_round_stands(world), **settings)
    alone, _ = run_local("fedgraph", last_round_stands(world), "one at a time", **settings)
    for name, w in alone.state.weights.parts[0].items():
        assert torch.allclose(together.state.weights.parts[0][name], w, rtol=0, atol=1e-10), name
