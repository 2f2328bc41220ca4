"""FED-PUB against a plain loop over clients: dense matrices, autograd, one client after another, and torch's
own optimisers; and its limits: FedAvg, isolated training, and masks without a penalty."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from law_fixtures import float64
from torch import Tensor
from torch.nn.functional import cross_entropy
from worlds import World, by_node, config_of, last_round_stands, logits, make_world, run_local

from graphfed.errors import InputError
from graphfed.federation.cohort import make_cohort
from graphfed.methods.baselines.fedpub import (
    FedPubConfig,
    accept_width,
    average_for_each,
    mixing_weights,
    random_graph,
    under_mask,
)
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.registry import get_method
from graphfed.nn.layers import _inverted
from graphfed.random import bernoulli_rows, fold, lane_probability
from graphfed.runs.config import make_config
from graphfed.tasks.outcome import Outcome

__all__ = ["float64"]

ROUNDS, P = 4, 0.4
SETTINGS = {
    "lr": 0.083,
    "weight_decay": 1e-2,
    "local_steps": 3,
    "dropout": P,
    "mu": 0.4,
    "mask_l1": 0.05,
    "similarity_scale": 5.0,
    "hidden": 5,
}
LAYERS = ("layers.0.weight", "layers.1.weight")


def part(outcome: Outcome, name: str) -> Any:
    (found,) = outcome.state.values[name].parts
    return found


# ---- the plain loop ----------------------------------------------------------------------------------------


def normalised(nodes: int, edges: Tensor) -> Tensor:
    a = torch.eye(nodes)
    a[edges[1], edges[0]] = 1
    scale = a.sum(1).rsqrt()
    return scale[:, None] * a * scale[None]


def dropped(h: Tensor, ids: Tensor, key: int, layer: int, p: float) -> Tensor:
    if p == 0:
        return h
    drop = bernoulli_rows(fold(key, layer), ids, h.shape[1], p)
    return h * _inverted(drop, lane_probability(p), h.dtype)


def forward(x: Tensor, a: Tensor, w: Mapping[str, Tensor], drop: Any = lambda h, layer: h) -> Tensor:
    h = (a @ (drop(x, 0) @ w["layers.0.weight"]) + w["layers.0.bias"]).relu()
    return a @ (drop(h, 1) @ w["layers.1.weight"]) + w["layers.1.bias"]


class PlainClient:
    """One client: its dense graph, its weights and masks as parameters, and an optimiser of torch."""

    def __init__(self, world: World, k: int, first: Mapping[str, Tensor], config: FedPubConfig) -> None:
        self.data = make_cohort(world.graph, world.split, world.partition, [k])
        self.a = normalised(self.data.num_rows, self.data.edge_index)
        self.theta = {name: w.clone().requires_grad_() for name, w in first.items()}
        self.mask = {name: torch.ones_like(first[name]).requires_grad_() for name in LAYERS}
        training = config.training
        kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[training.optimizer]
        parameters = [*self.theta.values(), *self.mask.values()]
        self.optimizer = kind(parameters, lr=training.lr, weight_decay=training.weight_decay)  # type: ignore[operator]
        self.config = config

    def train(self, received: Mapping[str, Tensor], number: int) -> None:
        data, config = self.data, self.config
        for name, w in received.items():
            self.theta[name].data = w.clone()
        for step in range(config.steps.local_steps):
            key = fold(config.run.seed, "dropout", number, step)
            w = {name: t * self.mask[name] if name in self.mask else t for name, t in self.theta.items()}
            out = forward(
                data.x,
                self.a,
                w,
                lambda h, layer, key=key: dropped(h, data.id, key, layer, config.network.dropout),
            )
            loss = cross_entropy(out[data.train], data.y[data.train])
            loss = loss + config.masking.mask_l1 * sum(m.abs().sum() for m in self.mask.values())
            loss = loss + config.proximity.mu / 2 * sum(
                ((t - received[name]) ** 2).sum() for name, t in self.theta.items()
            )
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def effective(self) -> dict[str, Tensor]:
        found = {name: t.detach().clone() for name, t in self.theta.items()}
        for name, mask in self.mask.items():
            found[name] *= torch.where(mask.detach().abs() < self.config.masking.mask_l1, 0.0, mask.detach())
        return found


def cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / ((a**2).sum().sqrt() * (b**2).sum().sqrt()))


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_it_equals_a_plain_loop_over_clients(optimizer: str, sparse: bool) -> None:
    """Sparse features without dropout, whose draws are of their stored entries."""
    world = last_round_stands(make_world(3, sparse=sparse))
    settings = {**SETTINGS, "rounds": ROUNDS, "optimizer": optimizer, "dropout": 0.0 if sparse else P}
    outcome, _ = run_local("fedpub", world, **settings)
    config = config_of(get_method("fedpub"), **settings)
    dense = densified(world) if sparse else world
    first = dict(sorted(initial_weights(world.task, config.network, config.run.seed, "cpu").items()))
    clients = [PlainClient(dense, k, first, config) for k in range(world.clients)]
    graph = random_graph(world.task, config.run.seed, "cpu")
    a = normalised(500, graph["edge_index"])
    received = [first] * world.clients
    for number in range(1, ROUNDS + 1):
        for client, start in zip(clients, received, strict=True):
            client.train(start, number)
        h = [forward(graph["x"], a, client.effective()).mean(0) for client in clients]
        received = []
        for i in range(world.clients):
            weight = [
                np.exp(config.similarity.similarity_scale * cosine(h[i], h[j])) for j in range(world.clients)
            ]
            received.append(
                {
                    name: sum(
                        weight[j] / sum(weight) * clients[j].theta[name].detach()
                        for j in range(world.clients)
                    )
                    for name in first
                }
            )
    for k, client in enumerate(clients):
        for name, mask in client.mask.items():
            assert torch.allclose(part(outcome, "mask")[name][k], mask.detach(), rtol=0, atol=1e-9)
        for name, w in client.effective().items():
            assert torch.allclose(part(outcome, "weights")[name][k], w, rtol=0, atol=1e-9)
        row = torch.cat([received[k][name].flatten() for name in first])
        assert torch.allclose(part(outcome, "received")[k], row, rtol=0, atol=1e-9)
    pruned = [
        (client.mask[name].abs() < config.masking.mask_l1).double().mean()
        for client in clients
        for name in LAYERS
    ]
    assert max(pruned) > 0 or optimizer == "sgd", "the loop leaves entries of a mask out"


def densified(world: World) -> World:
    """The same world with dense features."""
    from dataclasses import replace

    graph = replace(world.graph, x=world.graph.x.toarray())  # type: ignore[union-attr]
    partition = replace(world.partition, graph_hash=graph.hash)
    return World(graph, world.split, partition)


# ---- limits ------------------------------------------------------------------------------------------------

WITHOUT = {
    "masks": "none",
    "mu": 0.0,
    "optimizer": "sgd",
    "local_steps": 3,
    "dropout": P,
    "weight_decay": 1e-2,
}


def test_with_no_mask_and_a_large_scale_it_is_isolated_training() -> None:
    """A model is most similar to itself; every other weight vanishes."""
    world = make_world()
    one, _ = run_local("fedpub", world, similarity_scale=1e12, **WITHOUT)
    shared = {k: v for k, v in WITHOUT.items() if k not in ("masks", "mu")}
    two, _ = run_local("isolated", world, lr=0.1, **shared)
    assert torch.allclose(logits(one), logits(two), rtol=0, atol=1e-9)


def test_with_no_mask_and_scale_zero_it_is_fedavg_of_clients_of_equal_size() -> None:
    world = make_world()
    order = np.concatenate([np.flatnonzero(world.split.train), np.flatnonzero(~world.split.train)])
    assignment = np.empty(60, dtype=int)
    assignment[order] = np.arange(60) % 3
    world = last_round_stands(make_world(assignment=assignment))
    one, _ = run_local("fedpub", world, similarity_scale=0.0, **WITHOUT)
    shared = {k: v for k, v in WITHOUT.items() if k not in ("masks", "mu")}
    two, _ = run_local("fedavg", world, **shared)
    mean = torch.cat([w.flatten() for _, w in sorted(part(two, "weights").items())])
    assert torch.allclose(part(one, "received"), mean.expand(3, -1), rtol=0, atol=1e-9)


def test_the_penalty_makes_masks_sparse_and_without_it_nothing_is_left_out() -> None:
    def zeros(mask_l1: float) -> float:
        outcome, _ = run_local(
            "fedpub", last_round_stands(make_world()), rounds=30, optimizer="adam", mask_l1=mask_l1, lr=0.05
        )
        return float((part(outcome, "weights")["layers.0.weight"] == 0).double().mean())

    none, some, many = zeros(0.0), zeros(0.01), zeros(0.1)
    assert none == 0 < some < many


def test_entries_of_a_mask_below_the_threshold_are_left_out() -> None:
    weights = {"a.weight": torch.tensor([[2.0, 2.0, 2.0]]), "a.bias": torch.tensor([1.0])}
    found = under_mask(weights, {"a.weight": torch.tensor([[0.5, -0.09, -0.1]])}, 0.1)
    assert found["a.weight"].tolist() == [[1.0, 0.0, -0.2]]
    assert found["a.bias"].tolist() == [1.0]


def test_the_masks_of_two_clients_differ() -> None:
    outcome, _ = run_local("fedpub", make_world(), mask_l1=0.01)
    mask = part(outcome, "mask")["layers.0.weight"]
    assert not torch.allclose(mask[0], mask[1])


# ---- the server --------------------------------------------------------------------------------------------


def test_the_averages_are_those_of_a_loop_and_a_client_without_training_nodes_has_no_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    h, rows = (torch.randn(4, n, generator=generator) for n in (3, 6))
    counts, tau = torch.tensor([5, 0, 1, 9]), 2.5
    alpha, mean = mixing_weights(h, counts, tau), average_for_each(rows, h, counts, tau)
    for i in range(4):
        weight = [np.exp(tau * cosine(h[i], h[j])) * bool(counts[j]) for j in range(4)]
        expected = [w / sum(weight) for w in weight]
        assert alpha[i].tolist() == pytest.approx(expected, abs=1e-12)
        assert torch.allclose(mean[i], sum(e * r for e, r in zip(expected, rows, strict=True)), atol=1e-12)
    assert not alpha[:, 1].any()
    assert torch.equal(mixing_weights(torch.zeros(4, 3), torch.ones(4), tau), torch.full((4, 4), 0.25))


def test_the_random_graph_depends_on_the_seed_and_joins_nodes_of_one_community() -> None:
    world = make_world()
    one, again, other = (random_graph(world.task, seed, "cpu") for seed in (0, 0, 1))
    assert torch.equal(one["x"], again["x"])
    assert torch.equal(one["edge_index"], again["edge_index"])
    assert not torch.equal(one["x"], other["x"])
    assert one["edge_index"].shape != other["edge_index"].shape
    source, target = one["edge_index"]
    assert torch.equal(source // 100, target // 100)
    assert not (source == target).any()
    pairs = set(zip(source.tolist(), target.tolist(), strict=True))
    assert len(pairs) == len(source)
    assert all((v, u) in pairs for u, v in pairs)
    # 24750 pairs with probability 0.1 and 6000 normal features: five standard errors.
    assert abs(len(pairs) / 2 - 2475) < 5 * 47.2
    assert abs(float(one["x"].mean())) < 5 / 6000**0.5
    assert abs(float(one["x"].var()) - 1) < 5 * (2 / 6000) ** 0.5


def test_rows_of_another_width_are_refused() -> None:
    assert accept_width(3, torch.zeros(2, 3), {}) == ""
    for wrong in (torch.zeros(2, 4), torch.zeros(2, 3, dtype=torch.int64), torch.zeros(3)):
        assert "where rows of 3 numbers are expected" in accept_width(3, wrong, {})


def test_secure_aggregation_is_refused_because_the_server_compares_models() -> None:
    with pytest.raises(InputError, match="fedpub has no setting 'aggregation'"):
        make_config("fedpub", settings={"aggregation": "secure"})
    assert get_method("fedpub").protections == {}


@pytest.mark.parametrize("backbone", ["gcn", "gat", "sage", "maxpool"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_every_network_trains_and_stacked_clients_equal_one_at_a_time(backbone: str, sparse: bool) -> None:
    world = make_world(sparse=sparse)
    options: dict[str, Any] = {"backbone": backbone, "optimizer": "sgd", "rounds": 3}
    options |= {"heads": 2} if backbone == "gat" else {}
    fast, fed = run_local("fedpub", world, **options)
    slow, oracle = run_local("fedpub", world, "one at a time", **options)
    assert torch.allclose(by_node(fast, world), by_node(slow, world), rtol=0, atol=1e-9)
    assert fed.ledger.to_json() == oracle.ledger.to_json()
