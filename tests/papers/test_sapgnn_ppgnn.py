"""PPGNN trains every client's own network and the server's combination together."""

from typing import Any

import numpy as np
import pytest
import torch
from test_sapgnn import covered
from torch.nn.functional import cross_entropy
from worlds import World, by_node, last_round_stands, run_local

import graphfed
from graphfed.errors import InputError
from graphfed.methods.base import Task
from graphfed.methods.common.entity_alignment import common_seed
from graphfed.methods.common.split_learning import initial_predictor
from graphfed.methods.registry import get_method
from graphfed.methods.sapgnn.ppgnn import initial_server
from graphfed.nn.backbones import BACKBONES
from graphfed.random import fold
from graphfed.tasks.registry import default_settings

HIDDEN = 5
SETTINGS = {
    "hidden": HIDDEN, "optimizer": "sgd", "lr": 0.5, "weight_decay": 0.0, "rounds": 1, "dropout": 0.0,
    "aggregation": "plaintext",
}  # fmt: skip


class Dense:
    """Every client's network and the server's, node by node, without places."""

    def __init__(self, world: World, config: Any) -> None:
        self.world, self.config = world, config
        p, graph = world.partition, world.graph
        task = Task(graph.num_features, graph.num_classes)
        widths = [graph.num_features, HIDDEN, HIDDEN]
        seed = common_seed(config.ids, config.run.seed)
        drawn = BACKBONES["maxpool"].init(fold(seed, "weights"), widths, config.network.attention_heads)
        self.networks = [{k: w.clone() for k, w in drawn.items()} for _ in range(world.clients)]
        self.server = initial_server("cpu", world.clients, task, config)
        self.predictor = initial_predictor(fold(seed, "ppgnn"), task, HIDDEN, config.predictor)
        self.held = [p.held_id[p.held_client == k].tolist() for k in range(world.clients)]
        self.neighbours: list[dict[int, list[int]]] = [{v: [] for v in held} for held in self.held]
        for k, u, v in zip(p.edge_client, p.edge_u, p.edge_v, strict=True):
            self.neighbours[k][u].append(v)
            self.neighbours[k][v].append(u)

    def embed(self, k: int, weights: dict) -> dict[int, torch.Tensor]:
        h = {v: torch.from_numpy(self.world.graph.x[v]).double() for v in self.held[k]}
        for layer in range(2):
            joined = {}
            for v in self.held[k]:
                received = [h[j] for j in self.neighbours[k][v]]
                top = torch.stack(received).amax(0) if received else torch.zeros_like(h[v])
                joined[v] = torch.cat([h[v], top]) @ weights[f"layers.{layer}.weight"]
                joined[v] = joined[v] + weights[f"layers.{layer}.bias"]
            h = {v: z.relu() for v, z in joined.items()}  # the server's ReLU is the last
        return h

    def logits(self, networks: list, server: dict, predictor: dict) -> torch.Tensor:
        embedded = [self.embed(k, weights) for k, weights in enumerate(networks)]
        rows = []
        for v in range(self.world.graph.num_nodes):
            there = {k: z[v] for k, z in enumerate(embedded) if v in z}
            if self.config.combine == "concat":
                a = torch.cat([there.get(k, torch.zeros(HIDDEN)) for k in range(len(embedded))])
            elif self.config.combine == "mean":
                a = sum(there.values()) / len(there)
            else:
                a = sum(server["combine.weight"][k] * z for k, z in there.items())
            h = a @ server["server.weight"] + server["server.bias"]
            if predictor:
                h = h @ predictor["predictor.weight"] + predictor["predictor.bias"]
            rows.append(h)
        return torch.stack(rows)

    def after_one_step(self) -> tuple[dict, torch.Tensor]:
        """The server's weights, and the logits that all weights give."""
        trees = [*self.networks, self.server, self.predictor]
        leaves = [{k: w.clone().requires_grad_() for k, w in tree.items()} for tree in trees]
        rows = torch.from_numpy(self.world.split.train)
        logits = self.logits(leaves[:-2], leaves[-2], leaves[-1])
        cross_entropy(logits[rows], torch.from_numpy(self.world.graph.y)[rows]).backward()
        stepped = [
            {k: w.detach() if w.grad is None else w.detach() - 0.5 * w.grad for k, w in tree.items()}
            for tree in leaves
        ]
        return stepped[-2], self.logits(stepped[:-2], stepped[-2], stepped[-1])


@pytest.mark.parametrize("predictor", ["clients", "server"])
@pytest.mark.parametrize("combine", ["concat", "mean", "weighted"])
@pytest.mark.parametrize("placement", ["stacked", "one at a time"])
def test_a_round_is_a_step_of_all_networks_on_the_loss_of_all_training_nodes(
    combine: str, predictor: str, placement: str
) -> None:
    """Nodes that some clients lack, labels at several: against loops, in float64."""
    for seed in range(3):
        world = covered(seed, 14, 25, 3, endpoints=True, share=0.3)
        changes = {**SETTINGS, "combine": combine, "predictor": predictor}
        if predictor == "server":
            del changes["aggregation"]
        outcome, _ = run_local("ppgnn", world, placement, **changes)
        method = get_method("ppgnn")
        config = method.configure(changes, default_settings(method, preset="paper"))
        server, expected = Dense(world, config).after_one_step()
        found = by_node(outcome, world)
        assert torch.allclose(found, expected, rtol=0, atol=1e-8 * max(1.0, float(expected.abs().max())))
        (learned,) = outcome.state.values["global"].parts
        assert set(learned) == set(server)
        for name, weight in learned.items():
            assert torch.allclose(weight, server[name], rtol=0, atol=1e-8), name


def test_clients_networks_differ_after_training_and_the_predictor_does_not() -> None:
    outcome, _ = run_local("ppgnn", covered(0, 14, 25, 3, endpoints=True, share=0.3), "one at a time")
    networks, predictors = (outcome.state.values[name].parts for name in ("local", "predictor"))
    for k in (1, 2):
        assert not torch.equal(networks[k]["layers.1.weight"], networks[0]["layers.1.weight"])
        for name, weight in predictors[0].items():
            assert torch.equal(weight, predictors[k][name])
    assert np.isfinite(outcome.test["loss"])


def test_the_server_starts_alike_for_every_client_within_glorots_bound_for_all_of_them() -> None:
    """Concatenated, K H numbers enter, and the rows of one client are those of another."""
    task = Task(4, 3)
    config = get_method("ppgnn").configure({**SETTINGS, "hidden": 40, "combine": "concat"})
    weight = initial_server("cpu", 5, task, config)["server.weight"]
    assert weight.shape == (200, 40)
    assert all(torch.equal(part, weight[:40]) for part in weight.split(40))
    bound = (6 / (200 + 40)) ** 0.5
    assert 0.98 * bound < weight.abs().max() <= bound


def test_dropout_changes_what_is_learned_and_is_never_drawn_to_predict() -> None:
    world = last_round_stands(covered(1, 14, 25, 3, endpoints=True, share=0.3))
    plain, dropped = (
        run_local("ppgnn", world, **{**SETTINGS, "dropout": dropout})[0] for dropout in (0.0, 0.6)
    )
    plain_weight, dropped_weight = (
        outcome.state.values["global"].parts[0]["server.weight"] for outcome in (plain, dropped)
    )
    assert not torch.allclose(plain_weight, dropped_weight)
    config = get_method("ppgnn").configure({**SETTINGS, "dropout": 0.6})
    dense = Dense(world, config)
    (networks,), (server,), (predictor,) = (
        dropped.state.values[name].parts for name in ("local", "global", "predictor")
    )
    own = [{name: w[k] for name, w in networks.items()} for k in range(world.clients)]
    shared = {name: w[0] if w.dim() > dense.predictor[name].dim() else w for name, w in predictor.items()}
    assert torch.allclose(by_node(dropped, world), dense.logits(own, server, shared), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["sapgnn", "ppgnn"])
def test_the_predictors_old_place_is_refused_with_the_new_name(name: str) -> None:
    with pytest.raises(InputError, match="predictor=holders is now predictor=clients"):
        graphfed.run(name, data="digits", clients=2, rounds=1, settings={"predictor": "holders"})
