"""LPGNN and naive FedGNN: with budgets that leave no noise they are central training; what a budget does;
what goes on after a break."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot
from worlds import World, by_node, config_of, having, logits, make_world, one_node_each, run_local, weighted

import graphfed as gf
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.deployment.deploy import deploy
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.cohort import make_cohort
from graphfed.methods.lumos import lpgnn, naive_fedgnn
from graphfed.methods.lumos.lpgnn import propagate, propagation_matrix
from graphfed.methods.registry import get_method
from graphfed.privacy.gaussian import gaussian_sigma, limit_set, normal
from graphfed.privacy.noise import Noise
from graphfed.random import fold
from graphfed.runs.train import train
from graphfed.runtime.local import stacked

NAMES = ["lpgnn", "naive_fedgnn"]
MODULES: dict[str, Any] = {"lpgnn": lpgnn, "naive_fedgnn": naive_fedgnn}
#: No coin falls on its rarer side, but with one chance in 2^32 each; binary features come out as they are.
NO_NOISE = {
    "lpgnn": {
        "epsilon_x": 1e4, "epsilon_y": 1e3, "k_x": 0, "denoise": False, "standardise": False,
        "feature_low": 0.0, "feature_high": 1.0,
    },
    "naive_fedgnn": {"epsilon": 1e30, "feature_low": 0.0, "feature_high": 1.0},
}  # fmt: skip
PLAIN = {"dropout": 0.0, "weight_decay": 1e-2, "optimizer": "sgd"}


@pytest.mark.parametrize("partitioned", [lambda world: world, one_node_each], ids=["three clients", "ego"])
@pytest.mark.parametrize(
    ("name", "backbone"),
    [("lpgnn", "gcn"), ("lpgnn", "gat"), ("lpgnn", "sage"), ("naive_fedgnn", "gcn"), ("naive_fedgnn", "gat")],
)
def test_without_noise_it_is_central_training(name: str, backbone: str, partitioned: Any) -> None:
    world = make_world(3)
    same = having(name, **PLAIN, backbone=backbone, heads=2, local_steps=1)
    here = partitioned(world)
    noised, _ = run_local(name, here, **same, **NO_NOISE[name])
    central, _ = run_local("central", world, **same)
    assert torch.allclose(by_node(noised, here), logits(central), rtol=0, atol=1e-6)
    assert noised.best_round == central.best_round


@pytest.mark.parametrize("name", NAMES)
def test_with_noise_it_is_not(name: str) -> None:
    """The limit above has teeth."""
    world = make_world(3)
    noised, _ = run_local(name, world, **PLAIN)
    central, _ = run_local("central", world, **PLAIN, local_steps=1)
    assert not torch.allclose(by_node(noised, world), logits(central), atol=1e-2)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_per_node_learns_what_three_clients_learn(name: str) -> None:
    """The noise goes by the node's id: who holds it makes no difference, nor what else it holds."""
    world = make_world(4)
    one, fed = run_local(name, world)
    apart = one_node_each(world)
    two, other = run_local(name, apart)
    assert torch.allclose(by_node(one, world), by_node(two, apart), rtol=0, atol=1e-9)
    assert fed.ledger.totals()["by_transfer"] == other.ledger.totals()["by_transfer"]


PROTECTED = {
    "lpgnn": {"lpgnn/features": "ldp(eps=2)", "lpgnn/labels": "ldp(eps=1)"},
    "naive_fedgnn": {
        "naive_fedgnn/features": "ldp(eps=2, delta=1e-05)",
        "naive_fedgnn/edges": "ldp(eps=2)",
        "naive_fedgnn/labels": "ldp(eps=2)",
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_the_ledger_says_which_budget_was_spent_and_that_seeded_noise_is_simulated(name: str) -> None:
    for seed in (None, 0):
        _, fed = run_local(name, make_world(), noise_seed=seed)
        protections = {
            entry.name: entry.protection for entry in fed.ledger.entries if entry.direction == "up"
        }
        wanted = PROTECTED[name] if seed is None else dict.fromkeys(PROTECTED[name], "simulated")
        assert {k: protections[k] for k in wanted} == wanted
        assert protections["nodes"] == "plaintext"
        rounds = [entry.rounds for entry in fed.ledger.entries if entry.name in wanted]
        assert all([*counted] == [0] for counted in rounds), "once, in set-up"


def test_a_split_budget_is_a_third_for_each() -> None:
    _, fed = run_local("naive_fedgnn", make_world(), noise_seed=None, split_budget=True, epsilon=6.0)
    protections = {entry.name: entry.protection for entry in fed.ledger.entries}
    assert {k: protections[k] for k in PROTECTED["naive_fedgnn"]} == PROTECTED["naive_fedgnn"]


def test_a_bound_on_set_features_has_the_noise_of_the_accountant_for_its_sensitivity() -> None:
    """On Facebook's 4 714 features: 137 without a bound and 15 with 30 (docs/papers/lumos_results.md,
    Baselines). The noise that is drawn is compared with the same words scaled here."""
    world, method = make_world(), get_method("naive_fedgnn")
    for bound, width, stated in ((None, 4714, 136.89), (30, 4714, 15.44), (3, 12, None)):
        config = config_of(method, noise_seed=4, max_set_features=bound, feature_low=0.0, feature_high=1.0)
        mechanism = naive_fedgnn.feature_mechanism(width, config.release, config.bounds)
        wide = mechanism.sensitivity
        assert wide == pytest.approx((width if bound is None else 2 * bound) ** 0.5)
        sigma = gaussian_sigma(config.release.epsilon, config.release.delta, wide)
        if stated is not None:
            assert sigma == pytest.approx(stated, rel=1e-3)
            continue
        cohort = make_cohort(world.graph, world.split, world.partition, range(3))
        noised = naive_fedgnn.noised_features(cohort, config)
        key = fold(config.run.seed, "naive_fedgnn", "set features")
        kept = limit_set(cohort.x.to_dense(), cohort.id, key, 0.0, 3)
        assert 3 == int((kept > 0).sum(1).max()) < int((cohort.x.to_dense() > 0).sum(1).max())
        noise = normal(Noise(4).words("features", cohort.id, width), width)
        assert torch.allclose(noised, kept + sigma * noise, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_released_is_enough_to_go_on_without_releasing_again(name: str) -> None:
    """`restore` from a state's values, under the system's entropy: the same next round, bit for bit, and
    nothing but ids was sent."""
    world, method = make_world(), get_method(name)
    config = config_of(method, noise_seed=None)

    def begin() -> tuple[Federation, Any]:
        fed = stacked(world.clients)
        cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
        return fed, fed.locate("clients", "data", cohorts)

    fed, data = begin()
    state = method.round(fed, method.setup(fed, data, world.task, config), config, 1)
    fed_again, data_again = begin()
    values = {k: fed_again.locate(v.place, k, v.parts) for k, v in state.values.items()}
    again = MODULES[name].restore(fed_again, data_again, world.task, config, values)
    assert {entry.name for entry in fed_again.ledger.entries} == {"nodes"}
    after, after_again = method.round(fed, state, config, 2), method.round(fed_again, again, config, 2)
    one = method.predict(fed, after, config, "all").parts[0]
    two = method.predict(fed_again, after_again, config, "all").parts[0]
    assert torch.equal(one, two)


def test_propagation_is_the_normalised_adjacency_without_self_loops() -> None:
    graph = make_world(1).graph
    a = torch.zeros(60, 60)
    u, v = torch.from_numpy(graph.edges)
    a[u, v] = a[v, u] = 1
    degree = a.sum(1)
    scale = torch.where(degree > 0, degree.rsqrt(), 0.0)
    dense = scale[:, None] * a * scale
    both = torch.stack([torch.cat([u, v]), torch.cat([v, u])])
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    got = propagate(propagation_matrix(both, None, degree), x, 3)
    assert torch.allclose(got, dense @ (dense @ (dense @ x)), rtol=0, atol=1e-12)


def test_dropped_labels_are_what_the_neighbourhood_says_and_the_loss_is_corrected() -> None:
    """The definition of LPGNN, with dense matrices and loops, on the values that were released."""
    world = make_world(2)
    outcome, _ = run_local("lpgnn", world, rounds=1, k_y=2)
    config, c = config_of(get_method("lpgnn"), rounds=1, k_y=2), 3
    found = outcome.state.values["released"].parts[0]
    here = lpgnn.prepare_server(found, world.task, config)
    matrix = torch.zeros(60, 60)
    edges = found["edges"].long()
    degree = torch.bincount(edges[1], minlength=60).double()
    for s, t in edges.t().tolist():
        matrix[t, s] = 1 / (degree[s] * degree[t]).sqrt()
    labels = found["labels"].long()
    classes = one_hot(labels.clamp(min=0), c).double()
    classes[labels < 0] = 0
    smooth = matrix @ (matrix @ classes)
    train = (found["roles"] & 1).nonzero()[:, 0]
    target = [int(smooth[v].argmax()) if smooth[v].any() else int(labels[v]) for v in train]
    assert here.target.tolist() == target
    net = torch.randn(60, c, generator=torch.Generator().manual_seed(3))
    noisy = matrix @ (matrix @ (net.softmax(1) @ here.response))
    chance = noisy.softmax(1)[train, torch.tensor(target)]
    assert float(lpgnn.loss_of(here, net, config.release)) == pytest.approx(float(-chance.log().mean()))


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_feature_outside_its_bounds_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"node \d+ has 1 in feature \d+, outside feature_low=0"):
        run_local(name, make_world(), feature_low=0.0, feature_high=0.5)


@pytest.mark.parametrize("name", NAMES)
def test_bounds_in_the_wrong_order_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"feature_low=1.0 cannot be used: expected .* feature_high=0.0"):
        gf.run(name, data="digits", clients=2, feature_low=1.0, feature_high=0.0, out=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_node_at_several_clients_is_refused(name: str) -> None:
    world = make_world()
    shared = World(world.graph, world.split, partition(world.graph, "edges_uniform", 3, 0))
    with pytest.raises(InputError, match="is at several clients"):
        run_local(name, shared)


@pytest.mark.parametrize("name", NAMES)
def test_features_of_another_width_are_refused(name: str) -> None:
    world, method = make_world(), get_method(name)
    fed = stacked(3)
    data = fed.locate("clients", "data", [make_cohort(world.graph, world.split, world.partition, range(3))])
    task = replace(world.task, num_features=13)
    with pytest.raises(InputError, match="client 0 has 12 features where the clients agreed on 13"):
        train(fed, method, data, task, config_of(method))


def test_edge_weights_cannot_be_hidden_and_are_refused() -> None:
    with pytest.raises(InputError, match="cannot hide its weight"):
        run_local("naive_fedgnn", weighted(make_world()))


def test_a_neighbour_that_nobody_has_is_refused() -> None:
    """A client's files name a node of a client that takes no part."""
    world, method = make_world(), get_method("lpgnn")
    fed = stacked(1)
    cohort = make_cohort(world.graph, world.split, world.partition, [0])
    data = fed.locate("clients", "data", [cohort])
    with pytest.raises(InputError, match=r"node \d+ is listed as a neighbour, but no client has it"):
        train(fed, method, data, world.task, config_of(method))


def test_nodes_without_numbers_are_refused_where_each_answers_for_the_others() -> None:
    world, method = make_world(), get_method("naive_fedgnn")
    fed = stacked(1)
    client = from_assignment(world.graph, np.zeros(60, dtype=int), num_clients=1)
    cohort = make_cohort(world.graph, world.split, client, [0])
    data = fed.locate("clients", "data", [replace(cohort, id=cohort.id + 7)])
    with pytest.raises(InputError, match=r"nodes numbered 0\.\.59.*there is a node 66"):
        train(fed, method, data, world.task, config_of(method))


def test_every_step_of_link_prediction_draws_its_own_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[int] = []
    draw = naive_fedgnn.draw_pairs

    def recorded(graph: naive_fedgnn.SymmetricGraph, key: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys.append(key)
        return draw(graph, key)

    monkeypatch.setattr(naive_fedgnn, "draw_pairs", recorded)
    gf.run(
        "naive_fedgnn", task="link_prediction", data="social", rounds=2,
        settings={"local_steps": 3, "data.num_nodes": 60}, out=False,
    )  # fmt: skip
    assert len(keys) == len({*keys}) == 6


def test_the_cost_of_the_false_edges_is_logged_before() -> None:
    world, method = make_world(), get_method("naive_fedgnn")
    fed = stacked(world.clients)
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
    data = fed.locate("clients", "data", cohorts)
    events: list[Any] = []
    train(fed, method, data, world.task, config_of(method, rounds=1), on_event=events.append)
    notes = [event.note for event in events if event.phase == "note"]
    assert len(notes) == 1
    assert "60 nodes makes about 2.1e+02 false edges" in notes[0]


def test_a_deployment_refuses_noise_that_somebody_can_draw_again() -> None:
    with pytest.raises(InputError, match="noise_seed hides nothing from real participants"):
        deploy("lpgnn", startup_kit="startup_kit", noise_seed=0)
