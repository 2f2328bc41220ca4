"""FedGAT on noised features: what is released, how often, and that nothing else depends on features."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from worlds import World, by_node, config_of, last_round_stands, logits, make_world, run_local

from graphfed.data.graphs.graph import Graph
from graphfed.federation import Federation
from graphfed.federation.cohort import make_cohort
from graphfed.methods.common.released import NoiseSeed
from graphfed.methods.fedgat import ldp as fedgat_ldp
from graphfed.methods.fedgat.config import NoisedFeatures
from graphfed.methods.fedgat.ldp import noised_features, smoothed
from graphfed.methods.fedgat.moment_messages import Neighbourhoods, Pooled
from graphfed.methods.registry import get_method
from graphfed.privacy.gaussian import gaussian_sigma
from graphfed.runtime.local import stacked

METHOD = get_method("fedgat_ldp")


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def with_features(graph: Graph, x: np.ndarray) -> Graph:
    return replace(graph, x=x.astype(np.float32))


def test_what_is_released_is_the_features_within_length_1_and_noise_of_sigma() -> None:
    """Over 400 nodes of 12 features: the mean, and the deviation within 4 of its own."""
    world = make_world(nodes=400, clients=1)
    cohort = make_cohort(world.graph, world.split, world.partition, [0])
    assert cohort.x is not None
    noised = noised_features(cohort, NoisedFeatures(epsilon=2.0, delta=1e-4), NoiseSeed())
    x = cohort.x.to_dense()  # type: ignore[operator]
    bounded = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    assert float(x.norm(dim=1).max()) > 1
    sigma = gaussian_sigma(2.0, 1e-4, 2.0)
    z = (noised - bounded) / sigma
    assert abs(float(z.mean())) < 4 / z.numel() ** 0.5
    assert abs(float(z.std()) - 1) < 4 / (2 * z.numel()) ** 0.5


@pytest.mark.parametrize("seed", [None, 0])
def test_the_ledger_names_the_budget_and_no_other_feature_is_sent(seed: int | None) -> None:
    _, fed = run_local("fedgat_ldp", make_world(), noise_seed=seed, epsilon=3.0)
    entries = {entry.name: entry for entry in fed.ledger.entries}
    release = entries["fedgat_ldp/features"]
    assert release.protection == ("simulated" if seed == 0 else "ldp(eps=3, delta=1e-05)")
    assert [*release.rounds] == [0]
    assert "fedgat/features" not in entries


def test_smoothing_is_the_normalised_adjacency_and_rows_of_length_1() -> None:
    """By dense matrices; a node without neighbours has a row of zeros."""
    edges = np.array([[0, 1], [1, 2], [0, 2], [2, 3]])
    a = np.zeros((5, 5))
    for u, v in edges:
        a[u, v] = a[v, u] = 1
    member = [torch.tensor([i, *np.flatnonzero(a[i])]) for i in range(5)]
    neighbourhoods = Neighbourhoods(
        torch.arange(5), torch.tensor([len(m) for m in member]), torch.cat(member)
    )
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((5, 7)))
    scale = np.where(a.sum(1) > 0, a.sum(1), 1) ** -0.5
    for times in (0, 1, 3):
        expected = np.linalg.matrix_power(scale[:, None] * a * scale, times) @ x.numpy()
        length = np.linalg.norm(expected, axis=1, keepdims=True)
        expected = np.divide(expected, length, where=length > 0, out=np.zeros_like(expected))
        found = smoothed(Pooled(x, neighbourhoods), times).x
        assert isinstance(found, Tensor)
        assert torch.allclose(found, torch.from_numpy(expected), rtol=0, atol=1e-12)


def test_with_hardly_any_noise_and_no_smoothing_it_is_fedgat() -> None:
    world = last_round_stands(make_world())
    # A node without features has a row of noise of length 1, however little noise there is.
    x = world.graph.x.toarray()
    graph = with_features(world.graph, np.where(x.any(1, keepdims=True), x, 1))
    world = World(graph, world.split, replace(world.partition, graph_hash=graph.hash))
    settings = {"evaluation": "direct", "weight_decay": 1e-3}
    one, _ = run_local("fedgat_ldp", world, epsilon=1e9, k_x=0, **settings)
    two, _ = run_local("fedgat", world, **settings)
    gap = (by_node(one, world) - by_node(two, world)).abs().max()
    assert 0 < gap < 1e-2
    noisy, _ = run_local("fedgat_ldp", world, epsilon=1.0, k_x=0, **settings)
    assert (by_node(noisy, world) - by_node(two, world)).abs().max() > 0.1


@pytest.mark.parametrize("evaluation", ["message", "direct"])
def test_training_and_predictions_follow_from_what_was_released_alone(evaluation: str) -> None:
    """A run goes on from what was released, with clients that now have other features: to the same bits. So
    nothing that a client computes or sends after the release depends on its features."""
    world = last_round_stands(make_world())
    chosen = config_of(METHOD, noise_seed=None, evaluation=evaluation)

    def begin(graph: Graph) -> tuple[Federation, Any]:
        parts = replace(world.partition, graph_hash=graph.hash)
        there, fed = World(graph, world.split, parts), stacked(world.clients)
        cohorts = [make_cohort(there.graph, there.split, there.partition, h) for h in fed.workers]
        return fed, fed.locate("clients", "data", cohorts)

    rng = np.random.default_rng(0)
    other = with_features(world.graph, rng.standard_normal(world.graph.x.shape))
    fed, data = begin(world.graph)
    state = METHOD.setup(fed, data, world.task, chosen)
    again_fed, again_data = begin(other)
    values = {k: again_fed.locate(v.place, k, v.parts) for k, v in state.values.items()}
    again = fedgat_ldp.restore(again_fed, again_data, world.task, chosen, values)
    assert "fedgat_ldp/features" not in {entry.name for entry in again_fed.ledger.entries}
    for number in (1, 2):
        state = METHOD.round(fed, state, chosen, number)
        again = METHOD.round(again_fed, again, chosen, number)
    one = METHOD.predict(fed, state, chosen, "all").parts[0]
    assert torch.equal(one, METHOD.predict(again_fed, again, chosen, "all").parts[0])


def test_noise_is_never_the_same_twice_unless_a_seed_is_stated() -> None:
    world = make_world()
    runs = [logits(run_local("fedgat_ldp", world, noise_seed=seed)[0]) for seed in (None, None, 0, 0)]
    assert not torch.allclose(runs[0], runs[1])
    assert torch.equal(runs[2], runs[3])
