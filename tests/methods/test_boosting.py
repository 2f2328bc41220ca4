"""boosting_local and boosting_central: scikit-learn's trees on each client's table, in every placement."""

import numpy as np
import pytest
import torch
from law_fixtures import float64, three_clients
from sklearn.ensemble import HistGradientBoostingClassifier
from worlds import (
    PLACEMENTS,
    ThreeWorkers,
    World,
    by_node,
    logits,
    make_world,
    pooled,
    run_local,
    run_processes,
    weighted,
)

from graphfed.data.graphs.graph import Split
from graphfed.methods.baselines.boosting import UNSEEN

__all__ = ["float64", "three_clients"]

FEW = {"trees": 5}


def table(world: World, client: int | None) -> np.ndarray:
    """Features, means over the neighbours at the same client, and degrees, by a loop over the edges."""
    x = np.asarray(world.graph.x.todense())
    holder = np.zeros(len(x), dtype=int) if client is None else holders(world)
    total, degree = np.zeros_like(x), np.zeros(len(x))
    for u, v in world.graph.edges.T:
        if holder[u] == holder[v]:
            total[u] += x[v]
            total[v] += x[u]
            degree[[u, v]] += 1
    with np.errstate(invalid="ignore"):
        return np.c_[x, total / degree[:, None], degree]


def holders(world: World) -> np.ndarray:
    order = np.argsort(world.partition.held_id)
    client: np.ndarray = world.partition.held_client[order]
    return client


def expected(world: World, rows: np.ndarray, client: int | None) -> np.ndarray:
    """Log-probabilities of scikit-learn's trees, fitted to the training nodes among some rows."""
    known = rows & world.split.train
    model = HistGradientBoostingClassifier(
        max_iter=5, min_samples_leaf=max(1, known.sum() // 20), early_stopping=False, random_state=0
    )
    columns = table(world, client)
    model.fit(columns[known], world.graph.y[known])
    found = np.full((rows.sum(), world.graph.num_classes), UNSEEN)
    found[:, model.classes_] = np.log(model.predict_proba(columns[rows]))
    return found


def test_every_client_has_the_trees_of_its_own_table() -> None:
    world = make_world()
    found = by_node(run_local("boosting_local", world, **FEW)[0], world).numpy()
    for k in range(world.clients):
        own = holders(world) == k
        np.testing.assert_allclose(found[own], expected(world, own, k), atol=1e-9)


def test_central_trees_are_those_of_the_whole_table() -> None:
    world = make_world()
    found = by_node(run_local("boosting_central", world, **FEW)[0], pooled(world)).numpy()
    np.testing.assert_allclose(found, expected(world, np.ones(len(found), dtype=bool), None), atol=1e-9)


def test_nothing_is_sent_in_training_and_every_placement_predicts_the_same(
    three_clients: ThreeWorkers,
) -> None:
    world = make_world()
    whole, fed = run_local("boosting_local", world, **FEW)
    assert {e.name for e in fed.ledger.entries if e.phase in ("setup", "train")} == set()
    for placement in PLACEMENTS:
        assert torch.equal(logits(run_local("boosting_local", world, placement, **FEW)[0]), logits(whole))
    apart, _ = run_processes("boosting_local", world, three_clients, **FEW)
    assert torch.equal(logits(apart), logits(whole))


@pytest.mark.parametrize("method", ["boosting_local", "boosting_central"])
def test_weights_of_edges_and_of_classes_change_what_is_learned(method: str) -> None:
    world = make_world()
    plain = logits(run_local(method, world, **FEW)[0])
    assert not torch.equal(logits(run_local(method, weighted(world), **FEW)[0]), plain)
    assert not torch.equal(logits(run_local(method, world, **FEW, class_weights="balanced")[0]), plain)
    own = run_local(method, world, **FEW, columns="own")[0]
    assert torch.equal(logits(own), logits(run_local(method, weighted(world), **FEW, columns="own")[0]))


def test_a_client_guesses_without_training_nodes_and_knows_one_class_from_nodes_of_one_class() -> None:
    world = make_world()
    client, split = holders(world), world.split
    train = split.train & (client != 0) & ((client != 1) | (world.graph.y == 2))
    world = World(world.graph, Split("few", train, split.val, split.test), world.partition)
    found = by_node(run_local("boosting_local", world, **FEW)[0], world)
    assert bool((found[client == 0] == 0).all())
    assert torch.equal(
        found[client == 1], found.new_tensor([UNSEEN, UNSEEN, 0]).expand((client == 1).sum(), -1)
    )
