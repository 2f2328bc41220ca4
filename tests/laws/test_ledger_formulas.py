"""The ledger equals the formulas of the methods, counted by hand from the partition."""

import numpy as np
import pytest
import torch
from methods_under_law import METHODS
from worlds import World, make_world, run_local

ROUNDS = 4
F, H, C = 12, 5, 3


def model_size() -> int:
    """Scalars of a two-layer GCN: F H + H + H C + C."""
    return F * H + H + H * C + C


def averaging(world: World) -> dict[str, int]:
    """Every round every client gets the model and sends its own: 2 K W scalars; once, 8 bytes of its
    count."""
    k, scalar = world.clients, 8
    return {
        "training_counts": k * 8,
        "model": ROUNDS * k * model_size() * scalar,
        "update": ROUNDS * k * model_size() * scalar,
    }


def closures(world: World) -> list[set[int]]:
    """V_k and every vertex with a neighbour in V_k, by looping over the edges."""
    site = dict(zip(world.partition.held_id.tolist(), world.partition.held_site.tolist(), strict=True))
    closure: list[set[int]] = [{v for v, s in site.items() if s == k} for k in range(world.clients)]
    for u, v in world.graph.edges.T.tolist():
        closure[site[u]].add(v)
        closure[site[v]].add(u)
    return closure


def fedgcn(world: World) -> dict[str, int]:
    """2 hops: up sum_i |clients touching N(i)| F, down sum_k |closure_k| F. A client touches N(i), which
    includes i, exactly when i is in its closure. Beside them 8 bytes for every id and twice for its
    degree."""
    rows = sum(len(c) for c in closures(world))
    scalar = 8
    return {
        **averaging(world),
        "fedgcn/closure_ids": rows * 8,
        "fedgcn/partial_sums": rows * F * scalar,
        "fedgcn/neighbour_counts": rows * 8,
        "fedgcn/degrees": rows * 8,
        "fedgcn/aggregates": rows * F * scalar,
    }


def distgat(world: World) -> dict[str, int]:
    """As averaging, with the weights of a two-layer GAT: 8 heads of H, then one head of C."""
    heads, scalar, k = 8, 8, world.clients
    size = F * heads * H + 2 * heads * H + heads * H + heads * H * C + 2 * C + C
    return {
        "training_counts": k * 8,
        "model": ROUNDS * k * size * scalar,
        "update": ROUNDS * k * size * scalar,
    }


def exchange_toy(world: World) -> dict[str, int]:
    """An id for every end of a cut edge; a row of C scalars there, and its gradient back, every round; the
    model down and its gradient up; the number of training vertices up and their total down."""
    k, cut, scalar = world.clients, len(world.partition.cut_id), 8
    return {
        "toy/wanted_ids": cut * 8,
        "toy/training_count": k * 8,
        "toy/training_total": k * 8,
        "toy/embeddings": ROUNDS * cut * C * scalar,
        "toy/embeddings/grad": ROUNDS * cut * C * scalar,
        "model": ROUNDS * k * model_size() * scalar,
        "model/grad": ROUNDS * k * model_size() * scalar,
    }


def sapgnn(world: World) -> dict[str, int]:
    """Of every vertex at every holder, N in all, two layers that upload own part and maximum, 2 H each, and
    get back H; their gradients the other way, of the input of the first layer none. The maps of H before
    upload and the predictor are a gradient up and the sum down, each round. Once the ids and two counts."""
    n, k, scalar = world.graph.num_nodes, world.clients, 8
    weights = 2 * F * H + 2 * H * H + H * C + C
    return {
        "sapgnn/vertex_ids": n * 8,
        "sapgnn/training_count": k * 8,
        "sapgnn/training_total": k * 8,
        "sapgnn/local_embedding": ROUNDS * n * 2 * (2 * H) * scalar,
        "sapgnn/global_embedding": ROUNDS * n * 2 * H * scalar,
        "sapgnn/local_embedding/grad": ROUNDS * n * 2 * (2 * H) * scalar,
        "sapgnn/global_embedding/grad": ROUNDS * n * 2 * H * scalar,
        "sapgnn/local_gradient": ROUNDS * k * weights * scalar,
        "sapgnn/summed_gradient": ROUNDS * k * weights * scalar,
    }


def nothing(world: World) -> dict[str, int]:
    return {}


FORMULAS = {
    "central": nothing,
    "isolated": nothing,
    "fedavg": averaging,
    "fedprox": averaging,
    "fedadam": averaging,
    "skeleton": averaging,
    "fedgcn": fedgcn,
    "distgat": distgat,
    "exchange_toy": exchange_toy,
    "sapgnn": sapgnn,
}


def crossed(name: str, world: World, **settings) -> dict[str, int]:
    _, fed = run_local(name, world, **settings)
    by_name: dict[str, int] = {}
    for e in fed.ledger.entries:
        if e.phase in ("setup", "train"):
            by_name[e.name] = by_name.get(e.name, 0) + e.bytes
    assert fed.ledger.totals()["total"] == sum(by_name.values())
    return by_name


@pytest.mark.parametrize("name", METHODS)
def test_set_up_and_training_cost_what_the_formula_says(name):
    world = make_world()
    assert crossed(name, world) == FORMULAS[name](world)


def test_one_hop_returns_each_vertex_to_its_owner_only():
    """FedGCN, 1 hop: down N F."""
    world = make_world()
    by_name = crossed("fedgcn", world, hops=1)
    n, rows = world.graph.num_nodes, sum(len(c) for c in closures(world))
    expected = averaging(world) | {
        "fedgcn/closure_ids": rows * 8,
        "fedgcn/own_ids": n * 8,
        "fedgcn/partial_sums": rows * F * 8,
        "fedgcn/aggregates": n * F * 8,
    }
    assert by_name == expected


def test_no_hops_send_nothing_before_training():
    world = make_world()
    assert crossed("fedgcn", world, hops=0) == averaging(world)


def test_absent_clients_are_not_charged():
    """Two of five take part in each of four rounds."""
    world = make_world(clients=5)
    by_name = crossed("fedavg", world, fraction=0.4)
    assert by_name["update"] == by_name["model"] == ROUNDS * 2 * model_size() * 8


def test_float32_halves_what_crosses():
    world = make_world()
    wide = crossed("fedavg", world)
    torch.set_default_dtype(torch.float32)
    narrow = crossed("fedavg", world)
    assert narrow["update"] * 2 == wide["update"]
    assert narrow["training_counts"] == wide["training_counts"]


def test_evaluation_control_and_prediction_stand_beside_the_cost():
    _, fed = run_local("fedavg", make_world())
    totals = fed.ledger.totals()
    beside = {e.phase for e in fed.ledger.entries} - {"setup", "train"}
    assert beside == {"eval", "control", "predict"}
    assert totals["by_transfer"] == averaging(make_world())
    # Confusion counts with the column of none, and the loss: every round, and at the end for both targets.
    scores = 3 * (C * (C + 1) + 1) * 8
    assert totals["beside"]["eval"] == ROUNDS * 3 * model_size() * 8 + (ROUNDS + 2) * scores
    assert totals["beside"]["predict"] == 3 * model_size() * 8
    assert totals["up"] + totals["down"] + totals["peer"] == totals["total"]


def test_isolated_training_sends_nothing_but_scores_and_control():
    _, fed = run_local("isolated", make_world())
    assert {e.name for e in fed.ledger.entries if e.direction != "down"} == {
        "val_scores",
        "final_val_scores",
        "final_test_scores",
    }
    assert fed.ledger.totals()["total"] == 0


def test_every_client_is_charged_its_own_share():
    """FedGCN's rows differ by client: each vector entry is that client's own closure."""
    world = make_world()
    _, fed = run_local("fedgcn", world)
    (entry,) = [e for e in fed.ledger.entries if e.name == "fedgcn/partial_sums"]
    assert entry.sent.tolist() == [len(c) * F * 8 for c in closures(world)]
    assert np.all(entry.received == 0)
