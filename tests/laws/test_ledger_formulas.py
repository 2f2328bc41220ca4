"""The ledger equals the formulas of the methods, counted by hand from the partition."""

from collections import Counter
from operator import itemgetter
from typing import Any

import link_worlds
import numpy as np
import plain_fedgraph
import pytest
import torch
from methods_under_law import METHODS
from protections import protection
from worlds import World, config_of, make_world, run_local

from graphfed.crypto.compare import bytes_of_comparison, bytes_of_opening, bytes_of_opening_less
from graphfed.crypto.keyed_ids import keyed_names, simulated_key
from graphfed.crypto.ot import bytes_of_set_up
from graphfed.data.partitions.partition import partition
from graphfed.federation import Federation
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.lumos.assignment import Cover, by_local_rule, filled, workloads
from graphfed.methods.registry import get_method
from graphfed.methods.settings import value
from graphfed.random import fold, uniform

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


def scaffold(world: World) -> dict[str, int]:
    """As averaging, and control variates in addition to the weights."""
    weights = averaging(world)
    return {**weights, "control_variate": weights["model"], "control_variate_change": weights["update"]}


def fedpub(world: World) -> dict[str, int]:
    """Every round every client sends its model and C outputs, and gets a model of its own; once, the first
    model and the random graph: F numbers for each of 5 communities of 100 nodes, and its edges, by looping
    over the pairs of a community."""
    weights, k, scalar = averaging(world), world.clients, 8
    key = fold(0, "random_graph")
    draws = uniform(fold(key, "edges"), torch.arange(500), 100)
    edges = sum(
        float(draws[u, v % 100]) < 0.1
        for c in range(5)
        for u in range(100 * c, 100 * c + 100)
        for v in range(u + 1, 100 * c + 100)
    )
    return {
        "training_counts": k * 8,
        "model": k * model_size() * scalar,
        "random_graph": k * (500 * F * scalar + 2 * 2 * edges * 8),
        "personal_update": weights["update"],
        "functional_embedding": ROUNDS * k * C * scalar,
        "personal_model": weights["model"],
    }


def fedsage_plus(world: World) -> dict[str, int]:
    """As averaging, of GraphSAGE with two matrices in every layer. Once, every client sends a number of 8
    bytes and H + 1 scalars for each of its nodes with a hidden neighbour, and gets those of all. In each of
    two steps it sends the F P (H + 1) scalars of its generator, gets those of all, sends a gradient for each,
    and gets one."""
    k, scalar, model, generator = world.clients, 8, 2 * F * H + H + 2 * H * C + C, F * 5 * (H + 1)
    ids = torch.arange(world.graph.num_nodes)
    hidden = (uniform(fold(0, "hidden"), ids)[:, 0] < 0.5).tolist()
    neighbours: list[set[int]] = [set() for _ in hidden]
    for u, v in zip(world.partition.edge_u.tolist(), world.partition.edge_v.tolist(), strict=True):
        neighbours[u].add(v)
        neighbours[v].add(u)
    taught = sum(not hidden[v] and any(hidden[u] for u in near) for v, near in enumerate(neighbours))
    return {
        "training_counts": k * 8,
        "model": ROUNDS * k * model * scalar,
        "update": ROUNDS * k * model * scalar,
        "fedsage/rows": taught * 8,
        "fedsage/embeddings": taught * (H + 1) * scalar,
        "fedsage/all_embeddings": k * taught * (H + 1) * scalar,
        "fedsage/all_rows": k * taught * 8,
        "fedsage/generator": 2 * k * generator * scalar,
        "fedsage/all_generators": 2 * k**2 * generator * scalar,
        "fedsage/feature_gradients": 2 * k**2 * generator * scalar,
        "fedsage/feature_gradient": 2 * k * generator * scalar,
    }


def closures(world: World) -> list[set[int]]:
    """V_k and every node with a neighbour in V_k, by looping over the edges."""
    client = dict(zip(world.partition.held_id.tolist(), world.partition.held_client.tolist(), strict=True))
    closure: list[set[int]] = [{v for v, s in client.items() if s == k} for k in range(world.clients)]
    for u, v in world.graph.edges.T.tolist():
        closure[client[u]].add(v)
        closure[client[v]].add(u)
    return closure


def borders(world: World) -> list[set[int]]:
    """The nodes of each client's closure that are in the closure of another client too."""
    counts = Counter(v for closure in closures(world) for v in closure)
    return [{v for v in closure if counts[v] > 1} for closure in closures(world)]


def fedgcn(world: World) -> dict[str, int]:
    """2 hops: up and down sum_k |border_k| F, and 8 bytes for every id and twice for its degree.
    Other nodes have all their neighbours at their own client, which computes their sums alone."""
    rows = sum(len(b) for b in borders(world))
    scalar = 8
    return {
        **averaging(world),
        "fedgcn/border_ids": rows * 8,
        "fedgcn/partial_sums": rows * F * scalar,
        "fedgcn/neighbour_counts": rows * 8,
        "fedgcn/degrees": rows * 8,
        "fedgcn/aggregates": rows * F * scalar,
    }


def distgat(world: World, outputs: int = 1) -> dict[str, int]:
    """As averaging, with the weights of a two-layer GAT: 8 heads of H, then `outputs` heads of C that share a
    bias."""
    heads, scalar, k = 8, 8, world.clients
    size = F * heads * H + 2 * heads * H + heads * H + outputs * (heads * H * C + 2 * C) + C
    return {
        "training_counts": k * 8,
        "model": ROUNDS * k * size * scalar,
        "update": ROUNDS * k * size * scalar,
    }


def fedgat(world: World) -> dict[str, int]:
    """Once: N F features and two ids for every end of an edge up; of every node that a client has or that
    is a neighbour of one, ids and sizes, and in vectors 6 F B + 2 B + 4 (p + 1) B^2 numbers down. B:
    neighbours, with itself."""
    client = dict(zip(world.partition.held_id.tolist(), world.partition.held_client.tolist(), strict=True))
    neighbours_of: dict[int, set[int]] = {v: set() for v in client}
    for u, v in world.graph.edges.T.tolist():
        neighbours_of[u].add(v)
        neighbours_of[v].add(u)
    neighbourhoods = [{v for v in client if client[v] == k} for k in range(world.clients)]
    rows = [v for own in neighbourhoods for v in own.union(*(neighbours_of[v] for v in own))]
    b = np.array([len(neighbours_of[v]) + 1 for v in rows])
    ends, scalar = sum(len(neighbours) for neighbours in neighbours_of.values()), 8
    weights = distgat(world)
    gradient = weights.pop("update")  # as many numbers
    return {
        **weights,
        "gradient": gradient,
        "nodes": len(client) * 8,
        "fedgat/features": len(client) * F * scalar,
        "fedgat/edges": ends * 8,
        "fedgat/neighbours": ends * 8,
        "fedgat/neighbourhood_ids": len(rows) * 8,
        "fedgat/sizes": len(rows) * 8,
        "fedgat/sums": int((2 * b).sum()) * (1 + F) * scalar,
        "fedgat/scores": int((2 * b).sum()) * 2 * F * scalar,
        "fedgat/decoders": int((4 * b**2).sum()) * 17 * scalar,
    }


def fedgat_ldp(world: World) -> dict[str, int]:
    """As fedgat, and the noised features in the place of the features: as many numbers."""
    shared = fedgat(world)
    noised = shared.pop("fedgat/features")
    return {**shared, "fedgat_ldp/features": noised}


def exchange_toy(world: World) -> dict[str, int]:
    """An id for every end of a cross-client edge; a row of C scalars there, and its gradient back, every
    round; the model down and its gradient up; the number of training nodes up and their total down."""
    k, ends, scalar = world.clients, len(world.partition.cross_id), 8
    return {
        "toy/wanted_ids": ends * 8,
        "toy/training_count": k * 8,
        "toy/training_total": k * 8,
        "toy/embeddings": ROUNDS * ends * C * scalar,
        "toy/embeddings/grad": ROUNDS * ends * C * scalar,
        "model": ROUNDS * k * model_size() * scalar,
        "model/grad": ROUNDS * k * model_size() * scalar,
    }


def alignment(world: World) -> dict[str, int]:
    """A name and a hash of the features for every node at every client, and for every training node at
    every owner its name and, back, what its loss weighs: 8 bytes each."""
    p = world.partition
    train = int((p.held_owner & world.split.train[p.held_node]).sum())
    rows = len(p.held_id)
    return {
        "node_ids": rows * 8,
        "feature_digests": rows * 8,
        "training_ids": train * 8,
        "loss_weights": train * 8,
    }


def sapgnn(world: World, *, shared: bool = True) -> dict[str, int]:
    """As docs/papers/sapgnn.md. Of every node at every
    client, N_p, two layers that upload own part and maximum, u =
    2 H each, and get back H; their gradients the other way, of the input of the first layer none. The maps of
    H before upload and the predictor, w in all: each client's share to and sum for every other one, 2 P (P -
    1) w; or in plaintext a gradient up and the sum down."""
    rows, k, scalar = len(world.partition.held_id), world.clients, 8
    weights = 2 * F * H + 2 * H * H + H * C + C
    if shared:
        pairs = k * (k - 1)
        gradients = {
            "sapgnn/local_gradient/shares": ROUNDS * pairs * weights * 8,
            "sapgnn/local_gradient/sums": ROUNDS * pairs * weights * 8,
        }
    else:
        gradients = {
            "sapgnn/local_gradient": ROUNDS * k * weights * scalar,
            "sapgnn/local_gradient_sum": ROUNDS * k * weights * scalar,
        }
    return {
        **alignment(world),
        "sapgnn/local_embedding": ROUNDS * rows * 2 * (2 * H) * scalar,
        "sapgnn/global_embedding": ROUNDS * rows * 2 * H * scalar,
        "sapgnn/local_embedding/grad": ROUNDS * rows * 2 * (2 * H) * scalar,
        "sapgnn/global_embedding/grad": ROUNDS * rows * 2 * H * scalar,
        **gradients,
    }


def ppgnn(world: World) -> dict[str, int]:
    """Of every node at every client H up and H down, and their gradients back; the predictor's gradient in
    shares and sums."""
    rows, k, scalar = len(world.partition.held_id), world.clients, 8
    pairs, weights = k * (k - 1), H * C + C
    embeddings = ROUNDS * rows * H * scalar
    return {
        **alignment(world),
        "ppgnn/local_embedding": embeddings,
        "ppgnn/combined_embedding": embeddings,
        "ppgnn/local_embedding/grad": embeddings,
        "ppgnn/combined_embedding/grad": embeddings,
        "ppgnn/predictor_gradient/shares": ROUNDS * pairs * weights * 8,
        "ppgnn/predictor_gradient/sums": ROUNDS * pairs * weights * 8,
    }


def lpgnn(world: World) -> dict[str, int]:
    """Once: of every node its id, one coordinate of 2 bytes and the byte of its bit (m = 1 at epsilon 2), a
    class of 2, a byte of what it is for, and its degree of 4; 8 bytes for every neighbour of every node."""
    n, edges = world.graph.num_nodes, world.graph.num_edges
    return {
        "nodes": n * 8,
        "lpgnn/features": n * 3,
        "lpgnn/labels": n * 2,
        "lpgnn/roles": n,
        "lpgnn/degrees": n * 4,
        "lpgnn/neighbours": 2 * edges * 8,
    }


def naive_fedgnn(world: World) -> dict[str, int]:
    """Once: of every node its id, its F features, a bit for half of the others and a class of 2 bytes."""
    n = world.graph.num_nodes
    return {
        "nodes": n * 8,
        "naive_fedgnn/features": n * F * 8,
        "naive_fedgnn/edges": n * -(-(n // 2) // 8),
        "naive_fedgnn/labels": n * 2,
    }


def prediction_release(world: World) -> dict[str, int]:
    """Once the ids of all neighbours elsewhere, each once for every client that has it, and a class of 2
    bytes of each back; the counts of classes by class, two tables of C^2, and as many numbers down; 8 bytes
    of how many train. A round: the weights down and their gradient up at every client."""
    wants = sum(len(c) for c in closures(world)) - world.graph.num_nodes
    k, scalar = world.clients, 8
    return {
        "prediction_release/neighbour_ids": wants * 8,
        "prediction_release/training_count": k * 8,
        "model": ROUNDS * k * model_size() * scalar,
        "model/grad": ROUNDS * k * model_size() * scalar,
        "prediction_release/classes": wants * 2,
        "prediction_release/class_counts": k * 2 * C * C * 8,
        "prediction_release/likelihoods": k * 2 * C * C * scalar,
    }


def attention_sums(world: World, outputs: int = 1) -> dict[str, int]:
    """Once, for every neighbour elsewhere, each once for every client that has it, its id twice: of a target,
    and of a part. In each round, for each of these and both layers, a score of every head and H + 1 numbers
    of every head back, and their gradients; the weights of the GAT down and their gradient up."""
    wants = sum(len(c) for c in closures(world)) - world.graph.num_nodes
    heads, scalar, k = 8, 8, world.clients
    scores = ROUNDS * wants * (heads + outputs) * scalar
    parts = ROUNDS * wants * (heads * (H + 1) + outputs * (C + 1)) * scalar
    weights = distgat(world, outputs)["model"]
    return {
        "attention_sums/target_ids": wants * 8,
        "attention_sums/part_ids": wants * 8,
        "attention_sums/training_count": k * 8,
        "model": weights,
        "model/grad": weights,
        "attention_sums/scores": scores,
        "attention_sums/scores/grad": scores,
        "attention_sums/parts": parts,
        "attention_sums/parts/grad": parts,
    }


def halo(world: World) -> dict[str, int]:
    """Once, for each pair of a client and a neighbour elsewhere, its id, its degree and F features; in each
    round its embedding before the second layer, and a gradient back; the weights down and their gradient
    up."""
    halos, scalar = sum(len(c) for c in closures(world)) - world.graph.num_nodes, 8
    weights, embeddings = averaging(world)["model"], ROUNDS * halos * H * scalar
    return {
        "halo/ids": halos * 8,
        "halo/features": halos * F * scalar,
        "halo/degrees": halos * scalar,
        "halo/training_count": world.clients * 8,
        "model": weights,
        "model/grad": weights,
        "halo/embeddings": embeddings,
        "halo/embeddings/grad": embeddings,
    }


def passed_on(world: World) -> tuple[list[Cover], int]:
    """What balancer=local keeps, at the start and after every round, by the plain loop (seed 0, two rounds of
    shuffling); and how many of these rounds came before the shuffling."""
    edges, n = world.graph.edges, world.graph.num_nodes

    def after(rounds: int, more: int) -> tuple[Cover, int]:
        cover, seen = by_local_rule(edges, n, rounds=rounds, shuffle_rounds=more, seed=0)
        return cover, len(seen) - 1

    _, before = after(1000, 0)
    states = [after(k, 0)[0] for k in range(before + 1)] + [after(1000, more)[0] for more in (1, 2)]
    return states, before


def balanced(world: World) -> dict[str, int]:
    """Pairs compare round(ln degree) in 4 bits, once; then whether the keeper keeps more than the other does,
    and a margin, in 12: every pair when the margin is new, else those with an end whose workload has changed,
    which reports it to all its neighbours (4 bytes). A keeper that may give answers to all these
    neighbours, a byte each, which one it offers; the one that is offered something answers, a byte each."""
    edges, n, m = world.graph.edges, world.graph.num_nodes, world.graph.num_edges
    degree = np.bincount(edges.ravel(), minlength=n)
    states, before = passed_on(world)
    compared = notes = offers = answers = 0
    #: (state, margin, whether every pair compares): the last call before the shuffling finds nobody.
    calls = [(k, 1, k == 0) for k in range(before + 1)] + [(before, 0, True), (before + 1, 0, False)]
    for k, margin, anew in calls:
        w = workloads(edges, states[k], n)
        if anew:
            compared += m
        else:
            changed = w != workloads(edges, states[k - 1], n)
            notes += int(degree[changed].sum())
            compared += int((changed[edges[0]] | changed[edges[1]]).sum())
        keeper = np.where(states[k][0], edges[0], edges[1])
        able = w[keeper] > w[edges.sum(0) - keeper] + margin
        offers += int(able.sum())
        answers += len(set(keeper[able].tolist()))
    return {
        "balance/session": m * sum(bytes_of_set_up()),
        "balance/degrees/compare": m * (sum(bytes_of_comparison(1, 4)) + 2 * bytes_of_opening(1)),
        "balance/workloads/compare": compared
        * (sum(bytes_of_comparison(1, 12)) + 2 * bytes_of_opening_less(1)),
        "balance/changed": 4 * notes,
        "balance/can_give": n * (before + 1),
        "balance/offers": offers,
        "balance/answers": answers,
    }


def lumos(world: World, *, predictor: int = H * C + C, fill: bool = False) -> dict[str, int]:
    """Set-up: the balancing; for every kept pair a header of 8 bytes and the bits of its bin; 8 bytes of how
    many train. A round: the weights down and their gradient up at every device, and for every kept pair the
    embedding of its leaf and its gradient, H floats each way."""
    n, scalar = world.graph.num_nodes, 8
    weights = F * H + H + H * H + H + predictor
    states, _ = passed_on(world)
    keeps, edges = states[-1], world.graph.edges
    filling: dict[str, int] = {}
    if fill:
        keeps = filled(edges, keeps, n, seed=0)
        filling = {"balance/has_workload": 12 * n, "balance/additions": 4 * int((keeps.sum(0) == 2).sum())}
    pairs = int(keeps.sum())
    receivers = np.bincount(np.concatenate([edges[1][keeps[0]], edges[0][keeps[1]]]), minlength=n).tolist()
    bits = sum(-(-(F // r + (k < F % r)) // 8) for r in receivers for k in range(r))
    return {
        **balanced(world),
        **filling,
        "lumos/bins": pairs * 8,
        "lumos/feature_bits": bits,
        "lumos/training_count": n * 8,
        "model": ROUNDS * n * weights * scalar,
        "model/grad": ROUNDS * n * weights * scalar,
        "lumos/leaf_embeddings": ROUNDS * pairs * H * scalar,
        "lumos/leaf_embeddings/grad": ROUNDS * pairs * H * scalar,
    }


def fedgraph(world: World) -> dict[str, int]:
    """Once the ids of all neighbours elsewhere, each once for every client that has it; every round the model
    both ways, 1 + L numbers of the decision and a time; the ids in the samples and, of each, C numbers:
    counted by plain loops that draw the same."""
    closure, k, scalar = closures(world), world.clients, 8
    wants = sum(len(c) for c in closure) - world.graph.num_nodes
    config = config_of(get_method("fedgraph"))
    decision = dict.fromkeys(
        range(k), [float(value(config, "batch"))] + [value(config, "probability")] * config.network.layers
    )
    first = initial_weights(world.task, config.network, config.run.seed, "cpu")
    _, sent = plain_fedgraph.train(world, config, decision, first, ROUNDS)
    return {
        **averaging(world),
        "fedgraph/neighbours": wants * 8,
        "fedgraph/policy": ROUNDS * k * 3 * 8,
        "fedgraph/wanted": sent["ids"] * 8,
        "fedgraph/embeddings": sent["numbers"] * scalar,
        "fedgraph/seconds": ROUNDS * k * 8,
    }


def nothing(world: World) -> dict[str, int]:
    return {}


FORMULAS = {
    "central": nothing,
    "own_features": nothing,
    "isolated": nothing,
    "fedavg": averaging,
    "fedprox": averaging,
    "fedadam": averaging,
    "fedavgm": averaging,
    "scaffold": scaffold,
    "fedpub": fedpub,
    "fedsage_plus": fedsage_plus,
    "skeleton": averaging,
    "fedgcn": fedgcn,
    "distgat": distgat,
    "fedgat": fedgat,
    "fedgat_ldp": fedgat_ldp,
    "exchange_toy": exchange_toy,
    "fedgraph": fedgraph,
    "sapgnn": sapgnn,
    "ppgnn": ppgnn,
    "lpgnn": lpgnn,
    "naive_fedgnn": naive_fedgnn,
    "prediction_release": prediction_release,
    "attention_sums": attention_sums,
    "halo": halo,
    "lumos": lumos,
}


def sent_bytes(name: str, world: World, **settings) -> dict[str, int]:
    return counted(run_local(name, world, **settings)[1])


def counted(fed: Federation) -> dict[str, int]:
    """The bytes of set-up and training by transfer."""
    by_name: dict[str, int] = {}
    for e in fed.ledger.entries:
        if e.phase in ("setup", "train"):
            by_name[e.name] = by_name.get(e.name, 0) + e.bytes
    assert fed.ledger.totals()["total"] == sum(by_name.values())
    return by_name


@pytest.mark.parametrize("name", METHODS)
def test_set_up_and_training_cost_what_the_formula_says(name):
    world = make_world()
    # FedGAT's paper drops a lone neighbour's edge; the formulas are of every edge.
    settings = {"drop_single": False} if name in ("fedgat", "fedgat_ldp") else {}
    assert sent_bytes(name, world, **settings) == FORMULAS[name](world)


@pytest.mark.parametrize("name", ["distgat", "attention_sums"])
def test_output_heads_cost_their_weights_and_their_sums(name: str) -> None:
    world = make_world()
    assert sent_bytes(name, world, output_heads=3) == FORMULAS[name](world, 3)


def test_lumos_with_filled_trees_pays_for_the_edges_in_both_trees() -> None:
    """A byte of every client for each of 12 bits, and 4 bytes for each edge that is taken too."""
    world = make_world()
    expected = lumos(world, fill=True)
    assert sent_bytes("lumos", world, fill_trees=True) == expected
    assert expected["lumos/bins"] > lumos(world)["lumos/bins"]


def test_lumos_that_predicts_links_pays_for_the_embeddings_that_it_asks_for() -> None:
    """In a round h_v of every kept v, and of `negatives` for each that are no neighbours, whose ids are 8
    bytes; and their gradients. Once, 8 bytes for every pair that is scored: validation, test, and both. There
    is no predictor, and everybody trains."""
    world = link_worlds.link_world()
    _, fed = link_worlds.run_local("lumos", world, negatives=2)
    alone = World(world.graph, make_world().split, world.partition)
    expected = lumos(alone, predictor=0)
    del expected["lumos/training_count"]
    pairs, row, split = world.graph.num_edges, H * 8, world.split
    scored = (
        int(split.val.sum() + split.test.sum()) + split.val_negative.shape[1] + split.test_negative.shape[1]
    )
    assert counted(fed) == {
        **expected,
        "lumos/scored_pairs": 2 * scored * 8,
        "lumos/assigned_embeddings": ROUNDS * pairs * row,
        "lumos/assigned_embeddings/grad": ROUNDS * pairs * row,
        "lumos/negative_ids": ROUNDS * 2 * pairs * 8,
        "lumos/negative_embeddings": ROUNDS * 2 * pairs * row,
        "lumos/negative_embeddings/grad": ROUNDS * 2 * pairs * row,
    }


def test_both_ends_of_every_edge_keep_it_without_a_balancer() -> None:
    world = make_world()
    by_name = sent_bytes("lumos", world, balancer="none")
    n, m = world.graph.num_nodes, world.graph.num_edges
    assert not [name for name in by_name if name.startswith("balance/")]
    assert by_name["lumos/bins"] == 2 * m * 8
    assert by_name["lumos/leaf_embeddings"] == ROUNDS * 2 * m * H * 8
    assert by_name["lumos/feature_bits"] == sum(
        -(-(F // d + (k < F % d)) // 8)
        for d in np.bincount(world.graph.edges.ravel(), minlength=n).tolist()
        for k in range(d)
    )


def test_a_hidden_sum_of_gradients_costs_what_secure_aggregation_costs() -> None:
    """secure_sum: 112 n + 8 w + 16 bytes from each of n devices, and 145 n - 56 to it. Of w one word says
    whether a device trains."""
    world = make_world()
    by_name = sent_bytes("lumos", world, aggregation="secure", protocols="simulated")
    n, weights = world.graph.num_nodes, F * H + H + H * H + H + H * C + C + 1
    hidden = sum(size for name, size in by_name.items() if name.startswith("lumos/gradient/"))
    assert hidden == ROUNDS * n * ((112 * n + 8 * weights + 16) + (145 * n - 56))
    plaintext = lumos(world)
    del plaintext["model/grad"], plaintext["lumos/training_count"]
    assert {k: v for k, v in by_name.items() if not k.startswith("lumos/gradient/")} == plaintext


def shared_world() -> World:
    """Three clients with all nodes; every edge at one of them, some at two; labels at all."""
    world = make_world()
    parts = partition(world.graph, "edges_uniform", 3, 0, overlap=0.3, nodes="endpoints")
    return World(world.graph, world.split, parts)


@pytest.mark.parametrize("shared", [True, False])
def test_clients_with_common_nodes_pay_for_each_copy(shared):
    world = shared_world()
    assert len(world.partition.held_id) > world.graph.num_nodes
    aggregation = "additive" if shared else "plaintext"
    assert sent_bytes("sapgnn", world, aggregation=aggregation) == sapgnn(world, shared=shared)


def test_identity_messages_are_sent_once_and_nothing_of_the_first_layer_after_that():
    """The paper counts N_p u_1 every epoch, u_1 = 2 F, for numbers that never change."""
    world = shared_world()
    rows, scalar, k = len(world.partition.held_id), 8, 3
    p = world.partition
    with_edges = len({*zip(p.edge_client, p.edge_u, strict=True), *zip(p.edge_client, p.edge_v, strict=True)})
    pairs, weights = k * (k - 1), H * C + C
    assert sent_bytes("sapgnn", world, maps="identity") == {
        **alignment(world),
        "sapgnn/features": rows * F * scalar,
        "sapgnn/ids_with_edges": with_edges * 8,
        "sapgnn/neighbour_features": with_edges * F * scalar,
        "sapgnn/local_embedding": ROUNDS * rows * 2 * H * scalar,
        "sapgnn/local_embedding/grad": ROUNDS * rows * 2 * H * scalar,
        "sapgnn/global_embedding": ROUNDS * rows * 2 * H * scalar,
        "sapgnn/global_embedding/grad": ROUNDS * rows * 2 * H * scalar,
        "sapgnn/local_gradient/shares": ROUNDS * pairs * weights * 8,
        "sapgnn/local_gradient/sums": ROUNDS * pairs * weights * 8,
    }


@pytest.mark.parametrize("settings", [{}, {"maps": "identity"}, {"batch_size": 5}])
def test_simulated_pooling_sends_what_secure_pooling_sends_to_the_byte(settings: dict[str, Any]) -> None:
    """Entry by entry, all but the protection: which says simulated, and of real pooling never does."""
    world = shared_world()
    ledgers = [
        run_local("sapgnn", world, **protection("pooling", form), **settings)[1].ledger
        for form in ("simulated", "real")
    ]
    simulated, real = (ledger.to_json()["entries"] for ledger in ledgers)
    protected = {e["name"] for e in real if "/protocol" in e["name"] or "_shares" in e["name"]}
    protected |= {"sapgnn/pooling/session"}
    assert len(protected) >= 7
    kinds = [
        [entry.pop("protection") for entry in entries if entry["name"] in protected]
        for entries in (simulated, real)
    ]
    assert set(kinds[0]) == {"simulated"}
    assert set(kinds[1]) == {"public", "shared", "encrypted"}
    key = itemgetter("phase", "name", "from")
    assert sorted(simulated, key=key) == sorted(real, key=key)


def test_secure_pooling_sends_shares_of_every_number_and_nothing_else_of_it():
    """4 bytes of a number to the server, 4 to the first client, which keeps its own; 8 and 8 of gradients."""
    world = shared_world()
    p = world.partition
    rows, others = len(p.held_id), int((p.held_client > 0).sum())
    hidden = sent_bytes("sapgnn", world, pooling="secure")
    numbers, name = ROUNDS * 2 * (2 * H), "sapgnn/local_embedding"
    assert hidden[f"{name}/server_shares"] == rows * numbers * 4
    assert hidden[f"{name}/helper_shares"] == others * numbers * 4
    assert hidden[f"{name}/grad/server_shares"] == rows * numbers * 8
    assert hidden[f"{name}/grad/helper_shares"] == others * numbers * 8
    plaintext = sent_bytes("sapgnn", world)
    added = {key for key in hidden if key.startswith((f"{name}/", "sapgnn/pooling/"))}
    lost = {name, f"{name}/grad"}
    assert {k: v for k, v in hidden.items() if k not in added} == {
        k: v for k, v in plaintext.items() if k not in lost
    }


def test_batches_send_only_what_their_rows_need():
    """Two layers: a batch's nodes leave the second at all their clients, and with all their neighbours the
    first. Set-up adds 8 bytes for every name a client asks for or answers for, and a byte for each answer."""
    world, size = shared_world(), 5
    p, graph = world.partition, world.graph
    names = keyed_names(simulated_key(0), "vertex", (str(i).encode() for i in range(graph.num_nodes)))
    train = sorted(np.flatnonzero(world.split.train).tolist(), key=lambda v: names[v])
    count = -(-len(train) // size)
    held = [{v for k, v in zip(p.held_client, p.held_id, strict=True) if k == client} for client in range(3)]
    owned = {(k, v) for k, v, own in zip(p.held_client, p.held_id, p.held_owner, strict=True) if own}
    neighbours_of: list[dict[int, set[int]]] = [{} for _ in range(3)]
    for k, u, v in zip(p.edge_client, p.edge_u, p.edge_v, strict=True):
        neighbours_of[k].setdefault(u, set()).add(v)
        neighbours_of[k].setdefault(v, set()).add(u)
    asked = answered = rows = 0
    for number in range(count):
        batch = [v for i, v in enumerate(train) if i * count // len(train) == number]
        needs = [{v for v in batch if (k, v) in owned} for k in range(3)]
        for _layer in range(2):
            asked += sum(len(n) for n in needs)
            union = set().union(*needs)
            outputs = [union & held[k] for k in range(3)]
            answered += sum(len(o) for o in outputs)
            needs = [o | {j for i in o for j in neighbours_of[k].get(i, ())} for k, o in enumerate(outputs)]
    rows = answered
    found = sent_bytes("sapgnn", world, batch_size=size)
    assert count > 2
    assert found["batches"] == found["training_ids"]
    assert found["sapgnn/batch_needs"] == 8 * asked
    assert found["sapgnn/batch_ids"] == 8 * answered
    assert found["sapgnn/batch_members"] == count * 2 * len(p.held_id)
    assert found["sapgnn/local_embedding"] == ROUNDS * rows * 2 * H * 8
    assert found["sapgnn/global_embedding"] == ROUNDS * rows * H * 8


def test_one_hop_returns_each_node_to_its_owner_only():
    """FedGCN, 1 hop: down F for each of the nodes that have a neighbour at another client."""
    world = make_world()
    by_name = sent_bytes("fedgcn", world, hops=1)
    n, rows = len(set.union(*borders(world))), sum(len(b) for b in borders(world))
    assert n < world.graph.num_nodes
    expected = averaging(world) | {
        "fedgcn/border_ids": rows * 8,
        "fedgcn/local_ids": n * 8,
        "fedgcn/partial_sums": rows * F * 8,
        "fedgcn/aggregates": n * F * 8,
    }
    assert by_name == expected


def test_no_hops_send_nothing_before_training():
    world = make_world()
    assert sent_bytes("fedgcn", world, hops=0) == averaging(world)


def test_absent_clients_have_no_bytes_in_the_ledger():
    """Two of five take part in each of four rounds."""
    world = make_world(clients=5)
    by_name = sent_bytes("fedavg", world, fraction=0.4)
    assert by_name["update"] == by_name["model"] == ROUNDS * 2 * model_size() * 8


def test_float32_halves_what_is_sent():
    world = make_world()
    in_float64 = sent_bytes("fedavg", world)
    torch.set_default_dtype(torch.float32)
    in_float32 = sent_bytes("fedavg", world)
    assert in_float32["update"] * 2 == in_float64["update"]
    assert in_float32["training_counts"] == in_float64["training_counts"]


def test_evaluation_control_and_prediction_stand_beside_the_cost():
    _, fed = run_local("fedavg", make_world())
    totals = fed.ledger.totals()
    beside = {e.phase for e in fed.ledger.entries} - {"setup", "train"}
    assert beside == {"eval", "control", "predict"}
    assert totals["by_transfer"] == averaging(make_world())
    # Confusion counts with the column of none, and the loss: every round, and at the end for both targets,
    # there with 2048 / C bins of scores for each class, the client's accuracy and 1001 bins of it; once,
    # validation nodes of each class.
    scores = 3 * (C * (C + 1) + 1) * 8
    histograms, counts = 2 * 3 * (C * 2 * (2048 // C) + 1 + 1001) * 8, 3 * C * 8
    evaluated = ROUNDS * 3 * model_size() * 8 + (ROUNDS + 2) * scores
    # The bins may be too coarse: then come the edges of finer ones in 4 bytes each, and counts in these.
    bins, finals = max(256, 2048 // C), ("final_val", "final_test")
    edges = sum(fed.ledger.bytes_of(f"{name}_bins") for name in finals)
    counted_again = sum(fed.ledger.bytes_of(f"{name}_finer_scores") for name in finals)
    assert counted_again * (bins - 1) * 4 == edges * 2 * bins * 8
    assert counted_again % (3 * C * 2 * bins * 8) == 0
    assert totals["other_phases"]["eval"] == evaluated + histograms + counts + edges + counted_again
    assert totals["other_phases"]["predict"] == 3 * model_size() * 8
    assert totals["up"] + totals["down"] + totals["peer"] == totals["total"]


@pytest.mark.parametrize("weights", ["none", "balanced"])
def test_isolated_training_sends_nothing_but_scores_counts_of_classes_and_control(weights: str) -> None:
    _, fed = run_local("isolated", make_world(), class_weights=weights)
    sent = {e.name for e in fed.ledger.entries if e.direction != "down"}
    assert sent - {"final_val_finer_scores", "final_test_finer_scores"} == {
        "val_classes",
        "val_scores",
        "final_val_scores",
        "final_test_scores",
        *(["class_counts"] if weights == "balanced" else []),
    }
    assert fed.ledger.totals()["total"] == 0


def test_every_client_has_its_own_share_in_the_ledger():
    """FedGCN's rows differ by client: each vector entry is that client's own border."""
    world = make_world()
    _, fed = run_local("fedgcn", world)
    (entry,) = [e for e in fed.ledger.entries if e.name == "fedgcn/partial_sums"]
    assert entry.sent.tolist() == [len(b) * F * 8 for b in borders(world)]
    assert np.all(entry.received == 0)
