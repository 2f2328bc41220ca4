"""FedSage+ against a plain loop over clients, which generates every feature and takes every distance; what
the gradients from other clients' features show; and its limits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import torch
from law_fixtures import float64
from torch import Tensor
from torch.nn.functional import smooth_l1_loss
from worlds import World, config_of, last_round_stands, make_world, run_local

import graphfed as gf
from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.tables import from_assignment
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.fedsage.cross_client import Embeddings, cross_gradients
from graphfed.methods.fedsage.generator import (
    FEATURES,
    count_loss,
    embeddings,
    first_generator,
    impair,
    missing_scores,
    train_alone,
)
from graphfed.methods.registry import get_method
from graphfed.random import entry_words, fold, normal, uniform

__all__ = ["float64"]

H, P = 5, 3
SETTINGS: dict[str, Any] = {
    "backbone": "sage",
    "hidden": H,
    "generated": P,
    "generator_steps": 6,
    "cross_steps": 3,
    "cross_weight": 0.7,
    "feature_weight": 1.3,
    "generator_lr": 0.03,
    "hidden_fraction": 0.4,
    "dropout": 0.0,
    "optimizer": "sgd",
    "weight_decay": 1e-3,
    "local_steps": 2,
    "rounds": 3,
}
#: Without those of the gradients of other clients.
ALONE = {name: value for name, value in SETTINGS.items() if not name.startswith("cross_")}
#: Those that FedAvg has too.
SHARED = {
    k: SETTINGS[k]
    for k in ("backbone", "hidden", "dropout", "optimizer", "weight_decay", "local_steps", "rounds")
}


def densified(world: World) -> World:
    """The same world with dense features."""
    graph = replace(world.graph, x=world.graph.x.toarray())  # type: ignore[union-attr]
    return World(graph, world.split, replace(world.partition, graph_hash=graph.hash))


# ---- the plain loop ----------------------------------------------------------------------------------------


def sage(x: Tensor, a: Tensor, w: dict[str, Tensor]) -> Tensor:
    """Two layers of GraphSAGE with dense matrices; a [n, n] are the edges."""
    mean = a / a.sum(1, keepdim=True).clamp(min=1)
    for layer in (0, 1):
        name = f"layers.{layer}."
        x = mean @ x @ w[name + "neighbour_weight"] + x @ w[name + "root_weight"] + w[name + "bias"]
        x = x.relu() if layer == 0 else x
    return x


class PlainClient:
    """One client: its dense subgraph, its generator as parameters, and torch's Adam."""

    def __init__(self, world: World, k: int, config: AveragingSettings) -> None:
        self.data = data = make_cohort(world.graph, world.split, world.partition, [k])
        self.settings, self.seed = config.exchange, config.run.seed
        self.hidden = uniform(fold(self.seed, "hidden"), data.id)[:, 0] < self.settings.hidden_fraction
        self.a = torch.zeros(data.num_rows, data.num_rows)
        self.a[data.edge_index[1], data.edge_index[0]] = 1
        first = first_generator(impair(data, config), world.task, config)
        self.w = {name: w[0].clone().requires_grad_() for name, w in first.items()}  # type: ignore[index]
        self.optimizer = torch.optim.Adam(self.w.values(), lr=self.settings.generator_lr)
        self.keep = ~self.hidden
        self.missing = (self.a[:, self.hidden].sum(1))[self.keep]
        self.taught = (self.missing > 0).nonzero()[:, 0].tolist()

    def encode(self) -> Tensor:
        a = self.a * self.keep * self.keep[:, None]
        return sage(self.data.x, a, self.w)[self.keep]  # type: ignore[arg-type]

    def generate(self, z: Tensor, noise: Tensor) -> list[Tensor]:
        """P generated features of one node."""
        noisy = torch.cat([z + noise, torch.ones(1)])
        return [matrix @ noisy for matrix in self.w[FEATURES].split(H + 1, 1)]

    def own_loss(self, z: Tensor, noise: Tensor) -> Tensor:
        """L^f; z and noise have a row for each taught node."""
        loss, nodes = torch.zeros(()), self.keep.nonzero()[:, 0]
        for row, v in enumerate(self.taught):
            neighbours = (self.a[nodes[v]] * self.hidden).nonzero()[:, 0]
            for generated in self.generate(z[row], noise[row])[: len(neighbours)]:
                loss = loss + min(((generated - self.data.x[u]) ** 2).mean() for u in neighbours)
        return loss / len(nodes)

    def train_alone(self) -> None:
        for step in range(self.settings.generator_steps):
            z = self.encode()
            scores = z @ self.w["missing.weight"] + self.w["missing.bias"]
            counts = scores.where(self.missing > 0, scores.relu())
            noise = normal(fold(self.seed, "generator noise", step), self.data.id[self.keep], H)
            loss = smooth_l1_loss(counts, self.missing)
            loss = loss + self.settings.feature_weight * self.own_loss(z[self.taught], noise[self.taught])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def mended(self) -> tuple[list[Tensor], list[int]]:
        """The generated features, and the node of each, in the order of p."""
        data = self.data
        z = sage(data.x, self.a, self.w)  # type: ignore[arg-type]
        counts = (z @ self.w["missing.weight"] + self.w["missing.bias"]).relu().round().clamp(max=P)
        noise = normal(fold(self.seed, "generator noise", "mending"), data.id, H)
        found = [
            (self.generate(z[v], noise[v])[p].detach(), v)
            for p in range(P)
            for v in range(data.num_rows)
            if counts[v] > p
        ]
        return [x for x, _ in found], [v for _, v in found]


def train_across(clients: list[PlainClient], config: AveragingSettings) -> None:
    """Every pair of clients: the gradient of the squared distances to the closest node of the other."""
    encoded = [c.encode().detach()[c.taught] for c in clients]
    settings, key = config.exchange, fold(config.run.seed, "generator noise", "sent")
    noise = [normal(key, c.data.id[c.keep][c.taught], H) for c in clients]
    optimizers = [torch.optim.Adam([c.w[FEATURES]], lr=settings.generator_lr) for c in clients]
    for _ in range(settings.cross_steps):
        for i, (client, z, own) in enumerate(zip(clients, encoded, noise, strict=True)):
            loss = client.own_loss(z, own)
            scale = 1 / (client.data.num_features * int(client.keep.sum()))
            for j, other in enumerate(clients):
                for row, v in enumerate(client.taught):
                    compared = client.generate(z[row], own[row])[: int(client.missing[v])]
                    for generated in compared if j != i else ():
                        distance = ((generated - other.data.x) ** 2).sum(1).min()  # type: ignore[operator]
                        loss = loss + settings.cross_weight * scale * distance
            optimizers[i].zero_grad()
            loss.backward()
        for optimizer in optimizers:
            optimizer.step()


def mended_world(world: World, clients: list[PlainClient]) -> World:
    """The world with the generated neighbours as nodes of their clients."""
    x, ends, owner = [torch.from_numpy(world.graph.x).double()], [], []
    count = world.graph.num_nodes
    owner = world.partition.held_client[np.argsort(world.partition.held_node)].tolist()
    for k, client in enumerate(clients):
        features, centres = client.mended()
        for number, centre in enumerate(centres):
            ends.append((int(client.data.id[centre]), count + number))
        x += [row[None] for row in features]
        count += len(features)
        owner += [k] * len(features)
    partition = np.asarray(owner)
    source, target = world.graph.edges.T if world.graph.edges.shape[1] == 2 else world.graph.edges
    same = partition[source] == partition[target]
    edges = np.concatenate([np.stack([source[same], target[same]]), np.array(ends).reshape(-1, 2).T], 1)
    pad = count - world.graph.num_nodes
    y = np.concatenate([world.graph.y, np.zeros(pad, dtype=int)])
    graph = make_graph("mended", torch.cat(x).numpy(), y, edges, num_classes=world.graph.num_classes)
    parts = [
        np.concatenate([m, np.zeros(pad, dtype=bool)])
        for m in (world.split.train, world.split.val, world.split.test)
    ]
    return World(graph, Split("mended", *parts), from_assignment(graph, partition, num_clients=len(clients)))


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_it_is_fedavg_on_graphs_that_a_plain_loop_mends(sparse: bool) -> None:
    world = last_round_stands(make_world(3, sparse=sparse))
    config = config_of(get_method("fedsage_plus"), **SETTINGS)
    dense = densified(world) if sparse else world
    clients = [PlainClient(dense, k, config) for k in range(world.clients)]
    for client in clients:
        client.train_alone()
    train_across(clients, config)
    outcome, _ = run_local("fedsage_plus", world, **SETTINGS)
    views = [part.view for part in outcome.state.prepared.prepared.parts]
    (view,), total = views, 0
    for k, client in enumerate(clients):
        features, centres = client.mended()
        rows = (view.client == k).nonzero()[:, 0][client.data.num_rows :]
        assert len(rows) == len(features)
        total += len(rows)
        if not features:
            continue
        assert torch.allclose(view.x[rows], torch.stack(features), rtol=0, atol=1e-9)
        number = torch.tensor([centres[:i].count(v) for i, v in enumerate(centres)])
        assert torch.equal(view.ids[rows], entry_words(client.data.id[centres], number))
    assert total > 5
    plain, _ = run_local("fedavg", mended_world(dense, clients), **SHARED)
    (found,), (expected,) = outcome.state.weights.parts, plain.state.weights.parts
    for name in expected:
        assert torch.allclose(found[name], expected[name], rtol=0, atol=1e-9)


# ---- what gradients show -----------------------------------------------------------------------------------


def gradient_for(nodes: int, other: Cohort) -> tuple[Tensor, Tensor, Tensor]:
    """The embeddings of client 0, its V, and the gradient that client 1 returns."""
    generator = torch.Generator().manual_seed(nodes)
    z = torch.cat([torch.randn(nodes, H, generator=generator), torch.ones(nodes, 1)], 1)
    received = Embeddings(z, torch.full((nodes,), P), torch.zeros(nodes, dtype=torch.int64))
    matrix = torch.randn(2, other.num_features, P * (H + 1), generator=generator)
    (gradient,) = cross_gradients(other, torch.tensor([1]), received, matrix, P)
    return z, matrix[0].view(-1, P, H + 1), gradient[0].view(-1, P, H + 1)


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
def test_few_embeddings_show_the_closest_features_exactly(sparse: bool) -> None:
    """The client knows all but X^T A, whose columns are sums of x_u z_v^T with independent z_v."""
    world = make_world(1, clients=2, sparse=sparse)
    other = make_cohort(world.graph, world.split, world.partition, [1])
    x = other.x if isinstance(other.x, Tensor) else other.x.to_dense()  # type: ignore[union-attr]
    noisy, matrix, gradient = gradient_for(H + 1, other)
    for p in range(P):
        moments = matrix[:, p] @ (noisy.t() @ noisy) - gradient[:, p] / 2
        stolen = (moments @ torch.linalg.pinv(noisy)).t()
        closest = torch.cdist(noisy @ matrix[:, p].t(), x).argmin(1)
        assert torch.allclose(stolen, x[closest], rtol=0, atol=1e-9)


def test_many_embeddings_do_not_show_them_by_linear_algebra() -> None:
    world = make_world(1, clients=2, sparse=False)
    other = make_cohort(world.graph, world.split, world.partition, [1])
    noisy, matrix, gradient = gradient_for(3 * (H + 1), other)
    moments = matrix[:, 0] @ (noisy.t() @ noisy) - gradient[:, 0] / 2
    stolen = (moments @ torch.linalg.pinv(noisy)).t()
    closest = torch.cdist(noisy @ matrix[:, 0].t(), other.x).argmin(1)  # type: ignore[arg-type]
    assert (stolen - other.x[closest]).abs().max() > 0.1  # type: ignore[index]


# ---- limits ------------------------------------------------------------------------------------------------


def test_without_cross_steps_nothing_is_sent_before_training() -> None:
    _, fed = run_local("fedsage_plus", make_world(), **{**ALONE, "cross_steps": 0})
    names = {entry["name"] for entry in fed.ledger.to_json()["entries"]}
    assert not {name for name in names if name.startswith("fedsage")}
    _, fed = run_local("fedsage_plus", make_world(), **SETTINGS)
    names = {entry["name"] for entry in fed.ledger.to_json()["entries"]}
    assert names >= {"fedsage/embeddings", "fedsage/generator", "fedsage/feature_gradients"}


@pytest.mark.parametrize("preset", ["paper", "default"])
def test_the_laws_of_all_methods_see_generated_neighbours(preset: str) -> None:
    outcome, _ = run_local("fedsage_plus", make_world(), preset=preset)
    (generated,) = outcome.state.prepared.generated.parts
    assert int((generated > 0).sum()) >= 2


@pytest.mark.parametrize("bias", [0.0, -3.0])
@pytest.mark.parametrize("seed", range(4))
def test_generators_learn_the_counts_from_any_start(seed: int, bias: float) -> None:
    """Also where every score is negative, and the predicted numbers, which are all 0, have no gradient."""
    world = make_world(seed)
    config = config_of(get_method("fedsage_plus"), **{**SETTINGS, "generator_steps": 150, "seed": seed})
    impaired = impair(make_cohort(world.graph, world.split, world.partition, range(3)), config)
    first = first_generator(impaired, world.task, config)
    first["missing.bias"] = first["missing.bias"] + bias
    trained = train_alone(impaired, first, config)
    client = impaired.batch.client[-1]
    scores = missing_scores(trained, embeddings(trained, impaired.batch, config.network), client)
    off = (scores.relu() - impaired.missing).abs()
    for k in range(3):
        assert off[client == k].mean() <= 0.3 * impaired.missing[client == k].mean()


@pytest.mark.parametrize("missing", [0.0, 1.0, 3.0])
def test_the_loss_of_counts_is_the_papers_wherever_that_has_a_gradient(missing: float) -> None:
    scores = torch.linspace(-4, 6, 101).requires_grad_()
    truth = torch.full_like(scores, missing)
    loss = count_loss(scores, truth)
    papers = smooth_l1_loss(scores.relu(), truth, reduction="none")
    same = (scores >= 0) | (truth == 0)
    assert torch.equal(loss[same], papers[same])
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    wrong = scores.relu() != truth
    assert torch.equal(gradient[wrong].sign(), (scores.detach() - truth)[wrong].sign())


@pytest.mark.parametrize(("clients", "seed"), [(5, 2), (10, 0), (10, 2), (10, 6)])
def test_every_client_of_digits_generates_neighbours(clients: int, seed: int, tmp_path: Path) -> None:
    settings = {"cross_steps": 0, "patience": None}
    result = gf.run(
        "fedsage_plus", data="digits", clients=clients, seed=seed, rounds=1, out=tmp_path / "run",
        settings=settings,
    )  # fmt: skip
    generated = pq.read_table(tmp_path / "run/clients.parquet")["generated_neighbours"].to_numpy()
    assert (generated > 0).all()
    assert "nothing_generated" not in {warning["code"] for warning in result.details["warnings"]}


@pytest.mark.parametrize("how", [{"placement": "stacked"}, {"runtime": "processes", "workers": 2}])
def test_a_run_that_generates_nothing_says_so(how: dict[str, Any]) -> None:
    """Clients without edges have no missing neighbours."""
    i = np.arange(40)
    x = np.random.default_rng(0).random((40, 4)).astype(np.float32)
    graph = make_graph("alone", x, i % 2, np.zeros((2, 0), dtype=int))
    graph = replace(graph, split=Split("own", i % 4 < 2, i % 4 == 2, i % 4 == 3))
    result = gf.run(
        "fedsage_plus", data=graph, clients=2, partition="random", split="public", rounds=1, out=False,
        settings={"cross_steps": 0, "generator_steps": 50}, **how,
    )  # fmt: skip
    assert "nothing_generated" in {warning["code"] for warning in result.details["warnings"]}


def test_clients_without_edges_generate_nothing_and_train_as_by_fedavg() -> None:
    world = last_round_stands(make_world(2, clients=3))
    graph = make_graph("alone", world.graph.x, world.graph.y, np.zeros((2, 0), dtype=int), num_classes=3)
    partition = from_assignment(graph, np.arange(60) % 3, num_clients=3)
    world = World(graph, world.split, partition)
    one, _ = run_local("fedsage_plus", world, **SETTINGS)
    two, _ = run_local("fedavg", world, **SHARED)
    (generated,) = one.state.prepared.generated.parts
    assert generated.tolist() == [0, 0, 0]
    (found,), (expected,) = one.state.weights.parts, two.state.weights.parts
    for name in expected:
        assert torch.allclose(found[name], expected[name], rtol=0, atol=1e-12)


def test_a_weighted_graph_gives_generated_edges_the_mean_weight() -> None:
    from worlds import weighted

    outcome, _ = run_local("fedsage_plus", weighted(make_world(3)), **SETTINGS)
    (prepared,) = outcome.state.prepared.prepared.parts
    (generated,) = outcome.state.prepared.generated.parts
    view = prepared.view
    (weight,), (edges,) = view.edge_weight, view.edges
    assert int(generated.sum()) > 0
    for k in range(3):
        here = view.client[edges[1]] == k
        old, new = weight[here].split([int(here.sum()) - 2 * int(generated[k]), 2 * int(generated[k])])
        assert torch.allclose(new, old.mean().expand_as(new))


def test_the_matrices_of_sparse_and_dense_features_are_the_same() -> None:
    world = make_world(5)
    dense = densified(world)
    for seed in (0, 1):
        one, _ = run_local("fedsage_plus", world, **{**SETTINGS, "seed": seed})
        two, _ = run_local("fedsage_plus", dense, **{**SETTINGS, "seed": seed})
        a, b = (o.state.prepared.prepared.parts[0].view.x for o in (one, two))
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


def test_sparse_candidates_have_the_distances_of_dense_ones() -> None:
    """One step from equal embeddings: the loss of features by products of sparse rows."""
    from graphfed.methods.fedsage.generator import Candidates, feature_loss
    from graphfed.nn.sparse import SparseMatrix

    generator = torch.Generator().manual_seed(0)
    x = torch.from_numpy((np.random.default_rng(0).random((6, 8)) < 0.4).astype(float))
    v = torch.randn(2, 8, P * (H + 1), generator=generator)
    noisy = torch.randn(3, H + 1, generator=generator)
    rows = SparseMatrix.from_scipy(sp.csr_matrix(x.numpy()))
    node, candidate = torch.tensor([0, 0, 1, 2, 2]), torch.tensor([0, 2, 1, 3, 5])
    found = [
        float(
            feature_loss(
                v,
                noisy,
                Candidates(
                    client=torch.tensor([0, 0, 1]),
                    counts=torch.tensor([2, 1, 3]),
                    node=node,
                    candidate=candidate,
                    x=features,
                    candidate_client=torch.tensor([0, 0, 0, 1, 1, 1]),
                    scale=torch.tensor([0.5, 0.5, 0.25]),
                ),
            )
        )
        for features in (x, rows)
    ]
    expected = 0.0
    for r, (client, count, scale) in enumerate([(0, 2, 0.5), (0, 1, 0.5), (1, 3, 0.25)]):
        for matrix in v[client].split(H + 1, 1)[:count]:
            generated = matrix @ noisy[r]
            expected += scale * float(min(((generated - x[u]) ** 2).sum() for u in candidate[node == r]))
    assert found == pytest.approx([expected, expected], abs=1e-10)
