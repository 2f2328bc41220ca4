"""The averaging methods equal a plain loop that looks like the papers' pseudocode: dense matrices, autograd,
one client after another, none of the package's training code."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from worlds import last_round_stands, make_world, run_local, weighted

from graphfed.federation.cohort import make_cohort
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.registry import get_method
from graphfed.nn.layers import _inverted
from graphfed.random import bernoulli_rows, fold, lane_probability

LR, DECAY, STEPS, ROUNDS, P, SEED = 0.1, 1e-2, 3, 4, 0.4, 0


def dense_client(world, k):
    """Features, normalised adjacency, labels, training mask and ids of client k, cross edges dropped."""
    c = make_cohort(world.graph, world.split, world.partition, [k])
    a = torch.eye(c.num_rows)
    a[c.edge_index[1], c.edge_index[0]] = 1 if c.edge_weight is None else c.edge_weight
    scale = a.sum(1).rsqrt()
    return c.x, scale[:, None] * a * scale[None], c.y, c.train, c.id


def masked(h, ids, key, layer):
    drop = bernoulli_rows(fold(key, layer), ids, h.shape[1], P)
    return h * _inverted(drop, lane_probability(P), h.dtype)


def local_training(client, shared, number, mu):
    x, a, y, train, ids = client
    w = dict(shared)
    for step in range(STEPS):
        w = {k: v.detach().requires_grad_() for k, v in w.items()}
        key = fold(SEED, "dropout", number, step)
        h = (a @ (masked(x, ids, key, 0) @ w["layers.0.weight"]) + w["layers.0.bias"]).relu()
        out = a @ (masked(h, ids, key, 1) @ w["layers.1.weight"]) + w["layers.1.bias"]
        loss = cross_entropy(out[train], y[train])
        loss = loss + mu / 2 * sum(((v - shared[k]) ** 2).sum() for k, v in w.items())
        grads = torch.autograd.grad(loss, list(w.values()))
        w = {
            k: v.detach() - LR * (g + DECAY * v.detach()) for (k, v), g in zip(w.items(), grads, strict=True)
        }
    return w


@pytest.mark.parametrize("edges", ["plain", "weighted"])
@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedadam"])
def test_averaging_methods_equal_a_plain_loop_over_clients(name, edges):
    world = last_round_stands(make_world(3, sparse=False))
    world = world if edges == "plain" else weighted(world)
    extra = {"fedprox": {"mu": 0.7}, "fedadam": {"server_lr": 0.05, "tau": 1e-2}}.get(name, {})
    settings = {"lr": LR, "weight_decay": DECAY, "local_steps": STEPS, "dropout": P, **extra}
    outcome, _ = run_local(name, world, rounds=ROUNDS, **settings)
    config = get_method(name).configure({"hidden": 5, **settings})
    w = initial_weights(world.task, config.network, config.run.seed, "cpu")
    clients = [dense_client(world, k) for k in range(world.clients)]
    n = torch.tensor([float(c[3].sum()) for c in clients])
    m = {k: torch.zeros_like(v) for k, v in w.items()}
    v = {k: torch.full_like(t, extra.get("tau", 0) ** 2) for k, t in w.items()}
    for number in range(1, ROUNDS + 1):
        own = [local_training(c, w, number, extra.get("mu", 0.0)) for c in clients]
        mean = {k: sum(p * o[k] for p, o in zip(n / n.sum(), own, strict=True)) for k in w}
        if name == "fedadam":
            for k in w:
                delta = mean[k] - w[k]
                m[k] = 0.9 * m[k] + 0.1 * delta
                v[k] = 0.99 * v[k] + 0.01 * delta**2
                mean[k] = w[k] + 0.05 * m[k] / (v[k].sqrt() + extra["tau"])
        w = mean
    for k, got in outcome.state.weights.parts[0].items():
        assert torch.allclose(got, w[k], rtol=0, atol=1e-9), k
