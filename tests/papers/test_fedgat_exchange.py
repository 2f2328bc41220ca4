"""FedGAT with later=exchange: it predicts what later=hops predicts, trains on neighbours' embeddings as
constants, and sends what a formula says."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, elu, leaky_relu
from worlds import (
    ThreeWorkers,
    World,
    cohorts_of,
    config_of,
    last_round_stands,
    logits,
    make_world,
    one_node_each,
    pooled,
    run_local,
    run_processes,
)

from graphfed.errors import InputError
from graphfed.methods.base import State
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.fedgat.config import PolynomialScores
from graphfed.methods.fedgat.moment_messages import numbers
from graphfed.methods.fedgat.polynomial_gat import Score, score_series
from graphfed.methods.parts import Network
from graphfed.methods.registry import get_method
from graphfed.runtime.local import stacked

METHOD = get_method("fedgat")
ROUNDS, HEADS, HIDDEN, FEATURES, SCALAR = 4, 8, 5, 12, 8
REGULARISED = {"weight_decay": 1e-2, "dropout": 0.4}
EVALUATIONS = {
    "vectors": {"form": "vector"},
    "matrices": {"form": "matrix"},
    "direct": {"evaluation": "direct"},
}


def world_of(kind: str) -> World:
    """Two, three and seven clients; one that has no node; a client for every node; no
    cross-client edge."""
    if kind == "a client without a node":
        client = np.random.default_rng(0).permutation(30) % 3
        return make_world(0, clients=4, nodes=30, assignment=client + (client > 0))
    if kind == "a node each":
        return one_node_each(make_world(1, nodes=16))
    if kind == "no cross-client edge":  # of two clients one has nodes without edges only
        return make_world(2, clients=2, nodes=30, assignment=np.arange(30) // 26)
    return make_world(3, clients=int(kind), nodes=30)


WORLDS = ["2", "3", "7", "a client without a node", "a node each", "no cross-client edge"]


def neighbours(world: World, drop_single: bool) -> tuple[dict[int, int], dict[int, set[int]]]:
    """The client of every node, and the neighbours that it does not do without."""
    client = dict(zip(world.partition.held_id.tolist(), world.partition.held_client.tolist(), strict=True))
    neighbours_of: dict[int, set[int]] = {v: set() for v in client}
    for u, v in world.graph.edges.T.tolist():
        neighbours_of[u].add(v)
        neighbours_of[v].add(u)
    for v, others in neighbours_of.items():
        elsewhere = {u for u in others if client[u] != client[v]}
        if drop_single and len(elsewhere) == 1:
            neighbours_of[v] = others - elsewhere
    return client, neighbours_of


def drawn_weights(world: World, layers: int, attention: str) -> dict[str, Tensor]:
    """As they are drawn, with biases that are not zero."""
    config = config_of(METHOD, layers=layers, attention=attention)
    generator = torch.Generator().manual_seed(layers)
    return {
        name: w + 0.3 * torch.rand(w.shape, generator=generator) * name.endswith("bias")
        for name, w in initial_weights(world.task, config.network, config.run.seed, "cpu").items()
    }


def predicted(world: World, weights: dict[str, Tensor], **settings: Any) -> Tensor:
    """Logits of all nodes from given weights."""
    config, fed = config_of(METHOD, **settings), stacked(world.clients)
    data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
    state = METHOD.setup(fed, data, world.task, config)
    given = fed.locate("server", "weights", [weights])
    state = State({**state.values, "weights": given}, state.prepared)
    return METHOD.predict(fed, state, config, "all").parts[0]


@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("how", EVALUATIONS)
@pytest.mark.sampled(5)
def test_from_the_same_weights_it_predicts_what_hops_predict(how: str, layers: int, kind: str) -> None:
    world = world_of(kind)
    for attention, drop_single in (("tied", True), ("tied", False), ("free", True)):
        settings = {"layers": layers, "attention": attention, "drop_single": drop_single, **EVALUATIONS[how]}
        weights = drawn_weights(world, layers, attention)
        first, second = (predicted(world, weights, later=later, **settings) for later in ("hops", "exchange"))
        assert torch.allclose(first, second, rtol=0, atol=1e-10)


def test_with_one_client_it_is_hops_to_the_last_bit_and_byte() -> None:
    world = pooled(make_world(4, nodes=30))
    for layers in (2, 3):
        (one, fed), (two, exchanged) = (
            run_local("fedgat", world, layers=layers, later=later) for later in ("hops", "exchange")
        )
        assert torch.equal(logits(one), logits(two))
        assert fed.ledger.to_json() == exchanged.ledger.to_json()


@pytest.mark.parametrize("drop_single", [False, True])
@pytest.mark.parametrize(("layers", "output_heads"), [(2, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.sampled(5)
def test_what_is_sent_is_what_the_formula_says(
    kind: str, layers: int, output_heads: int, drop_single: bool
) -> None:
    """Once: the message of every node to its own client, 6 F B + 2 B + 4 (p + 1) B^2 numbers; an id of
    every node, and back its size and one byte; an id of every pair of a client and a neighbour elsewhere,
    P. In every round and for every layer but the last: heads * hidden numbers up of every node that is in
    a pair, U of them, and down for every pair. Output heads cost nothing, as no output is sent."""
    world = world_of(kind)
    client, neighbours_of = neighbours(world, drop_single)
    pairs = {(client[v], u) for v, others in neighbours_of.items() for u in others if client[u] != client[v]}
    asked = {u for _, u in pairs}
    row = HEADS * HIDDEN * SCALAR
    settings = {"layers": layers, "output_heads": output_heads, "drop_single": drop_single}
    _, fed = run_local("fedgat", world, later="exchange", **settings)
    sent: dict[str, int] = {}
    for entry in fed.ledger.entries:
        if entry.phase in ("setup", "train"):
            sent[entry.name] = sent.get(entry.name, 0) + entry.bytes
        if entry.name == "fedgat/embeddings" and entry.phase == "train":
            of_client = [sum(client[u] == k for u in asked) for k in range(world.clients)]
            assert entry.sent.tolist() == [ROUNDS * (layers - 1) * n * row for n in of_client]
            assert entry.rounds == dict.fromkeys(range(1, ROUNDS + 1), (layers - 1) * len(asked) * row)
        if entry.name == "fedgat/neighbour_embeddings" and entry.phase == "train":
            of_client = [sum(k == j for k, _ in pairs) for j in range(world.clients)]
            assert entry.received.tolist() == [ROUNDS * (layers - 1) * n * row for n in of_client]
    size = torch.tensor([len(neighbours_of[v]) + 1 for v in sorted(client)])
    message = sum(sent[name] for name in ("fedgat/sums", "fedgat/scores", "fedgat/decoders"))
    assert message == numbers("vector", size, FEATURES, 16) * SCALAR
    for name, expected in {
        "fedgat/neighbourhood_ids": 8 * len(client),
        "fedgat/sizes": 8 * len(client),
        "fedgat/far_ids": 8 * len(pairs),
        "fedgat/requested_ids": len(client),
        "fedgat/embeddings": ROUNDS * (layers - 1) * len(asked) * row,
        "fedgat/neighbour_embeddings": ROUNDS * (layers - 1) * len(pairs) * row,
    }.items():
        assert sent[name] == expected, name


def test_predicting_is_counted_in_its_own_phases() -> None:
    """As much in every evaluation as in a round of training."""
    _, fed = run_local("fedgat", make_world(nodes=30), later="exchange")
    for name in ("fedgat/embeddings", "fedgat/neighbour_embeddings"):
        phases = {entry.phase: entry.rounds for entry in fed.ledger.entries if entry.name == name}
        assert phases["train"] == phases["eval"]
        assert phases["predict"] == {ROUNDS: phases["train"][1]}
        assert phases["train"][1] > 0


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.sampled(3)
def test_stacked_equals_one_client_at_a_time_to_the_last_ledger_entry(layers: int, sparse: bool) -> None:
    world = last_round_stands(make_world(5, sparse=sparse))
    settings = {**REGULARISED, "later": "exchange", "layers": layers}
    fast, fed = run_local("fedgat", world, **settings)
    for placement in ("one at a time", "in thirds"):
        slow, oracle = run_local("fedgat", world, placement, **settings)
        assert torch.allclose(logits(fast), logits(slow), rtol=0, atol=1e-9)
        assert fed.ledger.to_json() == oracle.ledger.to_json()


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.slow
def test_separate_processes_equal_stacked_to_the_last_ledger_entry(
    layers: int, three_clients: ThreeWorkers
) -> None:
    world = last_round_stands(make_world(6))
    settings = {**REGULARISED, "later": "exchange", "layers": layers}
    apart, ledger = run_processes("fedgat", world, three_clients, **settings)
    together, fed = run_local("fedgat", world, **settings)
    assert torch.allclose(logits(apart), logits(together), rtol=0, atol=1e-9)
    assert ledger.to_json() == fed.ledger.to_json()


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("form", ["vector", "matrix"])
def test_direct_evaluation_trains_as_the_message_and_costs_the_same(form: str, layers: int) -> None:
    world = last_round_stands(make_world(7, nodes=30))
    settings = {"later": "exchange", "form": form, "layers": layers}
    (real, one), (direct, two) = (
        run_local("fedgat", world, evaluation=how, **settings) for how in ("message", "direct")
    )
    assert torch.allclose(logits(real), logits(direct), rtol=0, atol=1e-8)
    costs = [
        {(e.phase, e.name): (e.bytes, e.received.tolist(), e.sent.tolist()) for e in fed.ledger.entries}
        for fed in (one, two)
    ]
    assert costs[0] == costs[1]


def test_clients_that_take_part_in_some_rounds_only_are_refused() -> None:
    with pytest.raises(InputError, match=r"later=exchange needs every client .* fraction must be 1, got 0.5"):
        config_of(METHOD, later="exchange", fraction=0.5)
    assert config_of(METHOD, fraction=0.5).clients.fraction == 0.5


# ---- what it trains: an oracle with dense matrices ---------------------------------------------------------


def dense_layers(
    weights: dict[str, Tensor],
    x: Tensor,
    reaches: Tensor,
    network: Network,
    remote: list[Tensor] | None,
    is_local: Tensor | None,
) -> list[Tensor]:
    """What leaves every layer, of all nodes; reaches [N, N] bool: (i, j) where j is a neighbour of i, or i
    itself. What leaves a layer but the last of the nodes that are not `is_local` [N] is `remote`."""
    scores: PolynomialScores = network.scores
    series = score_series(Score("smooth", True, scores.degree, scores.domain))
    outputs, h = [], x
    for layer in range(network.layers):
        last = layer == network.layers - 1
        heads = network.output_heads if last else HEADS
        z = (h @ weights[f"layers.{layer}.weight"]).view(len(h), heads, -1)
        source, target = ((z * weights[f"layers.{layer}.{name}"]).sum(2) for name in ("att_src", "att_dst"))
        score = target[:, None] + source[None]  # [N, N, heads]
        if layer:
            share = leaky_relu(score, 0.2).exp()
        else:
            powers = [torch.ones_like(score), score / scores.domain]
            while len(powers) < len(series):
                powers.append(2 * score / scores.domain * powers[-1] - powers[-2])
            share = sum(c * t for c, t in zip(series, powers, strict=True))  # type: ignore[assignment]
        share = share * reaches[..., None]
        h = torch.einsum("ijk,jkh->ikh", share / share.sum(1, keepdim=True), z)
        h = h.mean(1) if last else h.flatten(1)  # Velickovic et al. 2018, Eqs. (5) and (6)
        h = h + weights[f"layers.{layer}.bias"]
        h = h if last else elu(h)
        outputs.append(h)
        if remote is not None and is_local is not None and not last:
            h = torch.where(is_local[:, None], h, remote[layer])
    return outputs


@pytest.mark.parametrize(("layers", "output_heads"), [(2, 1), (3, 1), (2, 4)])
def test_a_client_steps_on_its_loss_with_its_neighbours_embeddings_as_constants(
    layers: int, output_heads: int
) -> None:
    """Two rounds of two steps of gradient descent; in the second step of a round a client's own embeddings
    are new and its neighbours' are as they were when the round began."""
    world = last_round_stands(make_world(8, nodes=30))
    settings = {
        "rule": "fedavg",
        "optimizer": "sgd",
        "local_steps": 2,
        "rounds": 2,
        "lr": 0.3,
        "layers": layers,
        "output_heads": output_heads,
        "drop_single": False,
    }
    config = config_of(METHOD, later="exchange", **settings)
    network, training = config.network, config.training
    outcome, _ = run_local("fedgat", world, later="exchange", **settings)
    x = torch.from_numpy(world.graph.x.toarray()).double()
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-30)
    client, neighbours_of = neighbours(world, drop_single=False)
    reaches = torch.eye(len(x), dtype=torch.bool)
    for v, others in neighbours_of.items():
        reaches[v, list(others)] = True
    of = torch.tensor([client[v] for v in range(len(x))])
    y, train = torch.from_numpy(world.graph.y), torch.from_numpy(world.split.train)
    shared = initial_weights(world.task, config.network, config.run.seed, "cpu")
    for _ in range(2):
        remote = dense_layers(shared, x, reaches, network, None, None)
        parts = []
        for k in range(world.clients):
            is_local, weights = of == k, dict(shared)
            for _ in range(2):
                leaves = {name: w.detach().requires_grad_() for name, w in weights.items()}
                found = dense_layers(leaves, x, reaches, network, remote, is_local)[-1]
                loss = cross_entropy(found[is_local & train], y[is_local & train])
                gradients = torch.autograd.grad(loss, list(leaves.values()))
                weights = {
                    name: w.detach() - training.lr * (g + training.weight_decay * w.detach())
                    for (name, w), g in zip(leaves.items(), gradients, strict=True)
                }
            parts.append((int((is_local & train).sum()), weights))
        total = sum(count for count, _ in parts)
        shared = {name: sum(n / total * w[name] for n, w in parts) for name in shared}  # type: ignore[misc]
    found = outcome.state.weights.parts[0]
    for name, expected in shared.items():
        assert torch.allclose(found[name], expected, rtol=0, atol=1e-10), name
    hops, _ = run_local("fedgat", world, **settings)
    gap = max(float((hops.state.weights.parts[0][name] - w).abs().max()) for name, w in shared.items())
    assert gap > 1e-5, "gradients that go through the neighbours' embeddings give other weights"
