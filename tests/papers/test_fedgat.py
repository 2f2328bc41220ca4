"""FedGAT: its three evaluations are one, what it equals in its limits, and what is sent."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from protections import protection
from worlds import (
    PLACEMENTS,
    World,
    by_node,
    cohorts_of,
    config_of,
    last_round_stands,
    logits,
    make_world,
    run_local,
    weighted,
)

from graphfed.data.datasets import load
from graphfed.data.graphs.graph import Graph
from graphfed.data.graphs.splits import make_split
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.errors import InputError
from graphfed.federation import Federation, Link
from graphfed.federation.cohort import make_cohort, with_unit_features
from graphfed.federation.route import RouteTable
from graphfed.methods.base import Task
from graphfed.methods.fedgat import pretraining
from graphfed.methods.fedgat.client_graphs import kept_edges
from graphfed.methods.fedgat.config import KeptEdges
from graphfed.methods.fedgat.moment_messages import Neighbourhoods, Pooled, numbers
from graphfed.methods.fedgat.pretraining import message_bytes, pool
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.nn.sparse import SparseMatrix
from graphfed.runtime.local import stacked

METHOD = get_method("fedgat")
#: One step of plain gradient descent from the shared weights, in which averages of weights are central steps.
ONE_STEP = {"optimizer": "sgd", "lr": 0.05}
EVALUATIONS = {
    "vectors": {"form": "vector"},
    "matrices": {"form": "matrix"},
    "direct for vectors": {"form": "vector", "evaluation": "direct"},
    "direct for matrices": {"form": "matrix", "evaluation": "direct"},
}


def small_world(seed: int = 0, clients: int = 3) -> World:
    """Small enough for matrices."""
    return last_round_stands(make_world(seed, clients=clients, nodes=30))


@pytest.fixture(autouse=True)
def double() -> object:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(("layers", "output_heads"), [(1, 1), (2, 1), (3, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("attention", ["tied", "free"])
@pytest.mark.sampled(5)
def test_matrices_vectors_and_direct_evaluation_are_one(
    layers: int, output_heads: int, attention: str
) -> None:
    world = small_world()
    settings = {"layers": layers, "output_heads": output_heads, "attention": attention}
    outcomes = {
        name: by_node(run_local("fedgat", world, **settings, **how)[0], world)
        for name, how in EVALUATIONS.items()
    }
    first = outcomes.pop("vectors")
    for name, found in outcomes.items():
        assert torch.allclose(found, first, rtol=0, atol=1e-8), name


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("attention", ["tied", "free"])
def test_clients_with_weights_of_their_own_evaluate_features_as_the_message(
    attention: str, sparse: bool
) -> None:
    """Between two averages every client has other weights, which its own rows meet."""
    world = last_round_stands(make_world(4, nodes=30, sparse=sparse, assignment=np.arange(30) % 4 % 3))
    settings = {"rule": "fedavg", "local_steps": 2, "rounds": 1, "optimizer": "sgd", "attention": attention}
    outcomes = [
        run_local("fedgat", world, placement, evaluation=how, **settings)[0]
        for placement in ("stacked", "one at a time")
        for how in ("message", "direct")
    ]
    first, *others = (by_node(outcome, world) for outcome in outcomes)
    for found in others:
        assert torch.allclose(found, first, rtol=0, atol=1e-8)


def test_weights_of_edges_change_nothing_and_the_network_says_so() -> None:
    world = small_world()
    assert not config_of(METHOD).network.kernel.weighted
    one, two = (by_node(run_local("fedgat", w)[0], world) for w in (world, weighted(world)))
    assert torch.equal(one, two)


@pytest.mark.parametrize("form", ["vector", "matrix"])
def test_direct_evaluation_counts_what_the_message_would(form: str) -> None:
    world = small_world()
    for layers in (1, 3):
        real, direct = (
            run_local("fedgat", world, layers=layers, form=form, evaluation=how)[1].ledger
            for how in ("message", "direct")
        )
        entries = {(entry.phase, entry.name, entry.direction): entry for entry in direct.entries}
        for entry in real.entries:
            there = entries.pop((entry.phase, entry.name, entry.direction))
            assert (there.bytes, there.messages, there.shape) == (entry.bytes, entry.messages, entry.shape)
            assert np.array_equal(there.received, entry.received)
            assert np.array_equal(there.sent, entry.sent)
            simulated = entry.name in ("fedgat/sums", "fedgat/scores", "fedgat/decoders")
            assert there.protection == ("simulated" if simulated else entry.protection)
        assert not entries


def test_direct_evaluation_is_refused_where_clients_are_apart() -> None:
    """Before anything is sent: the link is never used."""
    world = make_world()
    fed = Federation([(0, 1), (2,)], here=[0], link=cast(Link, object()))
    data = fed.locate("clients", "data", [make_cohort(world.graph, world.split, world.partition, (0, 1))])
    with pytest.raises(InputError, match="evaluation=direct is a simulation"):
        METHOD.setup(fed, data, world.task, config_of(METHOD, evaluation="direct"))


@pytest.mark.parametrize("protocols", ["real", "simulated"])
@pytest.mark.parametrize("name", ["fedgat", "fedgat_ldp"])
def test_the_set_up_refuses_secure_sums_of_two_clients_before_anything_is_sent(
    name: str, protocols: str
) -> None:
    """By itself: not only where a run that also hides its scores has refused them before."""
    for clients, fraction in ((2, 1.0), (6, 0.3)):
        world, method = make_world(clients=clients), get_method(name)
        config = config_of(method, aggregation="secure", protocols=protocols, fraction=fraction)
        fed = stacked(clients, simulated=is_simulated(config))
        data = fed.locate("clients", "data", cohorts_of(world, fed.workers, config))
        with pytest.raises(InputError, match="needs 3 to 65535 clients in a round, and this round has 2"):
            method.setup(fed, data, world.task, config)
        assert not fed.ledger.entries


@pytest.mark.parametrize("how", EVALUATIONS)
@pytest.mark.parametrize("placement", ["stacked", "one at a time"])
def test_a_client_has_labels_of_its_own_nodes_alone(placement: str, how: str) -> None:
    """Of the others that it knows of there is -1, which is no class."""
    world = small_world()
    fed, config = PLACEMENTS[placement](world.clients), config_of(METHOD, **EVALUATIONS[how])
    cohorts = cohorts_of(world, fed.workers, config)
    state = METHOD.setup(fed, fed.locate("clients", "data", cohorts), world.task, config)
    for cohort, prepared in zip(cohorts, state.prepared.prepared.parts, strict=True):
        view = prepared.view
        own = zip(cohort.client.tolist(), cohort.id.tolist(), strict=True)
        labels = dict(zip(own, cohort.y.tolist(), strict=True))
        rows = zip(view.client.tolist(), view.ids.tolist(), strict=True)
        assert view.y.tolist() == [labels.get(row, -1) for row in rows]
        assert len(view.y) > len(labels)


def test_weights_of_edges_stay_with_the_edges_that_are_kept() -> None:
    world = weighted(make_world())
    of = dict(zip(map(tuple, world.graph.edges.T.tolist()), world.graph.edge_weight, strict=True))
    cohort = make_cohort(world.graph, world.split, world.partition, range(3))
    for edges in (KeptEdges(drop_single=True), KeptEdges(max_neighbours=2), KeptEdges()):
        kept = kept_edges(cohort, edges, 0)
        ends = (
            (kept.id[kept.edge_index[0]], kept.id[kept.edge_index[1]], kept.edge_weight),
            (kept.id[kept.cross_row], kept.cross_id, kept.cross_weight),
        )
        for some, others, weight in ends:
            assert weight is not None
            pairs = zip(some.tolist(), others.tolist(), strict=True)
            assert weight.tolist() == pytest.approx([of[min(pair), max(pair)] for pair in pairs])
    plain = kept_edges(
        make_cohort(make_world().graph, world.split, make_world().partition, range(3)),
        KeptEdges(drop_single=True, max_neighbours=2),
        0,
    )
    assert plain.edge_weight is None
    assert plain.cross_weight is None


def test_a_message_that_does_not_fit_is_refused_before_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphfed.methods.fedgat.pretraining.memory_bytes", lambda: (2**20, 2**30))
    monkeypatch.setattr("graphfed.methods.fedgat.pretraining.messages_of", None)
    expected = r"takes about \d\.\d GiB of memory with form=matrix, and 0\.0 GiB are free; use "
    with pytest.raises(InputError, match=expected):
        run_local("fedgat", small_world(), form="matrix")
    run_local("fedgat", small_world(), form="matrix", evaluation="direct")


#: A setting that a refusal names, with its value.
NAMED = re.compile(r"(\w+)=(\w+) \(about ([\d.]+) GiB")


def test_every_setting_that_a_refusal_names_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a graph of mean degree 31 the vectors took 97 GiB, and the error named no form that fits."""
    graph = load("social", num_nodes=300, average_degree=31, features=40)
    split = make_split(graph, "random:0.5,0.25,0.25", 0)
    world = World(graph, split, partition(graph, "random", 3, 0))
    few = {"hidden": 2, "heads": 2, "degree": 4}
    for free, expected in (
        # Less and less memory: what changes no result comes first, and nothing is named that does not fit.
        (4 * 10**8, {"evaluation", "later", "max_neighbours"}),
        (10**8, {"evaluation", "max_neighbours"}),
        (10**6, set()),
    ):
        monkeypatch.setattr(pretraining, "memory_bytes", lambda free=free: (free, free))
        with pytest.raises(InputError, match="use ") as refusal:
            run_local("fedgat", world, **few)
        named = NAMED.findall(str(refusal.value))
        assert {setting for setting, _, _ in named} == expected, str(refusal.value)
        for setting, value, gib in named:
            run_local("fedgat", world, **few, **{setting: int(value) if value.isdigit() else value})
            assert float(gib) <= free / 2**30 + 0.05
            if setting == "max_neighbours":
                with pytest.raises(InputError, match="GiB of memory"):
                    run_local("fedgat", world, **few, max_neighbours=4 * int(value))
    assert "use fewer features, or the method attention_sums" in str(refusal.value)
    run_local("attention_sums", world, hidden=2, heads=2)


def test_a_refusal_of_separate_processes_names_no_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = torch.arange(3)
    pooled = Pooled(torch.zeros(3, 4), Neighbourhoods(nodes, torch.full((3,), 3), torch.arange(9) % 3))
    table = RouteTable(nodes, nodes, torch.zeros_like(nodes))
    monkeypatch.setattr("graphfed.methods.fedgat.pretraining.memory_bytes", lambda: (20_000, 2**30))
    for together in (True, False):
        with pytest.raises(InputError, match="use ") as refusal:
            message_bytes(pooled, table, Task(4, 2), config_of(METHOD), together)
        assert ("evaluation=direct" in str(refusal.value)) == together, str(refusal.value)


@pytest.mark.parametrize("form", ["plaintext", "simulated"])
def test_a_message_that_does_not_fit_is_refused_before_its_routes_are_made(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The routes of the slots and entries are as long as the message: on a graph of mean degree 31 they took
    two minutes before the refusal."""
    little = lambda: (2**10, 2**30)  # noqa: E731
    monkeypatch.setattr("graphfed.methods.fedgat.pretraining.memory_bytes", little)
    monkeypatch.setattr("graphfed.methods.fedgat.encrypted_moments.memory_bytes", little)
    monkeypatch.setattr(Federation, "expand_route", None)
    with pytest.raises(InputError, match="GiB of memory"):
        run_local("fedgat", small_world(), **protection("exchange", form))


def test_what_is_predicted_is_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(Federation, "log", lambda fed, message: messages.append(message))
    _, fed = run_local("fedgat", make_world())
    names = ("fedgat/sums", "fedgat/scores", "fedgat/decoders")
    sent = sum(entry.bytes for entry in fed.ledger.entries if entry.name in names)
    assert messages == [messages[0]]
    assert messages[0].startswith(f"the message before training: {sent / 2**30:.2f} GiB to all clients")


@pytest.mark.parametrize(
    ("reason", "settings"),
    [
        *(
            (f"exchange=encrypted cannot be used with {name}={value}: .*{why}.*; use {name}={fix}, or",
             {"exchange": "encrypted", name: value})
            for name, value, why, fix in (
                ("later", "exchange", "the server could read embeddings", "hops"),
                ("form", "matrix", "only the vector form of the message", "vector"),
                ("evaluation", "direct", "only the vector form of the message", "message"),
            )
        ),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_together_are_refused(reason: str, settings: dict[str, str]) -> None:
    with pytest.raises(InputError, match=reason):
        config_of(METHOD, **settings)
    for name, value in settings.items():  # each alone is a setting, except for another network
        if name != "backbone":
            config_of(METHOD, **{name: value})


def test_settings_that_are_read_from_a_mapping_are_those_settings() -> None:
    for settings in ({}, {"later": "exchange"}, {"exchange": "encrypted"}):
        listed = METHOD.tree.listed(config_of(METHOD, **settings))
        assert METHOD.tree.listed(METHOD.configure(listed, {})) == listed


def test_direct_evaluation_makes_no_route_of_slots_and_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as long as the message: for a node of degree 100, 40 000 rows to count its bytes."""
    expanded: list[str] = []
    real = Federation.expand_route

    def note(fed: Federation, *arguments: Any, name: str) -> Any:
        expanded.append(name)
        return real(fed, *arguments, name=name)

    monkeypatch.setattr(Federation, "expand_route", note)
    for evaluation in ("message", "direct"):
        run_local("fedgat", small_world(), evaluation=evaluation)
    assert expanded == ["fedgat/slots", "fedgat/entries"]


@pytest.mark.parametrize(
    "settings",
    [
        {"layers": 3},
        {"form": "matrix"},
        {"evaluation": "direct"},
        {"later": "exchange"},
        {"exchange": "encrypted", "protocols": "simulated", "max_neighbours": 3},
    ],
    ids=str,
)
def test_nothing_depends_on_how_a_sort_orders_what_is_equal(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU may order it in any way where a sort is not asked to be stable. Here it then comes in reverse; in
    several parts, and under several numbers of neighbours."""
    monkeypatch.setattr("graphfed.methods.fedgat.encrypted_moments.PART", 2**21)
    world = small_world()
    expected = logits(run_local("fedgat", world, **settings)[0])
    real = torch.argsort

    def argsort(x: torch.Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Any:
        if stable or x.dim() > 1:
            return real(x, dim=dim, descending=descending, stable=True)
        return len(x) - 1 - real(x.flip(0), descending=descending, stable=True)

    monkeypatch.setattr(torch, "argsort", argsort)
    assert torch.argsort(torch.tensor([1, 0, 1, 0])).tolist() == [3, 1, 2, 0]
    assert torch.equal(logits(run_local("fedgat", world, **settings)[0]), expected)


@pytest.mark.parametrize("most", [None, 2])
@pytest.mark.parametrize("layers", [2, 3])
def test_how_nodes_are_partitioned_changes_nothing_where_every_neighbour_counts(
    layers: int, most: int | None
) -> None:
    """One step of gradient descent a round, and no neighbour that is done without, or those of a cap: the
    same logits with one client, three and ten."""
    settings = {**ONE_STEP, "drop_single": False, "evaluation": "direct", "layers": layers}
    settings |= {"max_neighbours": most}
    found = []
    for clients in (1, 3, 10):
        world = small_world(clients=clients)
        found.append(by_node(run_local("fedgat", world, **settings)[0], world))
    assert torch.allclose(found[1], found[0], rtol=0, atol=1e-9)
    assert torch.allclose(found[2], found[0], rtol=0, atol=1e-9)


def test_with_a_high_degree_it_is_central_gat() -> None:
    """The kink of LeakyReLU leaves an error that falls as 1 / p."""
    world = small_world()
    features = world.graph.x.toarray()
    graph = replace(world.graph, x=features / np.maximum(np.linalg.norm(features, axis=1), 1)[:, None])
    world = World(graph, world.split, replace(world.partition, graph_hash=graph.hash))
    central = by_node(
        run_local("central", world, backbone="gat", heads=8, dropout=0.0, local_steps=1, **ONE_STEP)[0],
        World(
            graph, world.split, from_assignment(graph, np.zeros(graph.num_nodes, dtype=int), num_clients=1)
        ),
    )
    errors = []
    for degree in (4, 16, 64):
        settings = {"psi": "leaky_relu", "degree": degree, "drop_single": False, "evaluation": "direct"}
        found = by_node(run_local("fedgat", world, weight_decay=5e-4, **ONE_STEP, **settings)[0], world)
        errors.append(float((found - central).abs().max()))
    assert errors[0] > 2 * errors[1] > 4 * errors[2]
    assert errors[2] < 2e-3


def test_with_drop_single_a_node_does_without_its_only_neighbour_elsewhere() -> None:
    """By default every edge is kept: dropping one protects nothing, and costs accuracy. Nodes 0, 1 and 2
    are at client 0, where 0 has one neighbour elsewhere and 1 has two."""
    world = make_world(nodes=8)
    graph = replace(world.graph, edges=np.array([[0, 0, 1, 1, 3], [1, 3, 3, 4, 4]]))
    client = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    parts = from_assignment(graph, client, num_clients=2)
    cohort = make_cohort(graph, world.split, parts, range(2))
    kept = kept_edges(cohort, KeptEdges(drop_single=True), 0)
    pairs = set(zip(kept.id[kept.cross_row].tolist(), kept.cross_id.tolist(), strict=True))
    # 3 has 0 and 1 elsewhere; 4 has only 1, and 0 only 3.
    assert pairs == {(1, 3), (1, 4), (3, 0), (3, 1)}
    every = kept_edges(cohort, KeptEdges(), 0)
    assert len(every.cross_row) == 6


@pytest.mark.parametrize("neighbour", [1, 7, 11])
def test_a_neighbour_that_nobody_holds_is_named(neighbour: int) -> None:
    ids = torch.tensor([2, 5, 9])
    table = RouteTable(ids, torch.arange(3), torch.zeros(3, dtype=torch.int64))
    ends = RouteTable(torch.tensor([5]), torch.tensor([0]), torch.tensor([0]))
    with pytest.raises(
        InputError, match=f"node 5 has the neighbour {neighbour}, which is not a node of any client"
    ):
        pool(torch.zeros(3, 4), table, torch.tensor([[neighbour]]), ends)


def test_unit_features_have_length_1_or_0() -> None:
    for sparse in (True, False):
        world = make_world(sparse=sparse)
        cohort = with_unit_features(make_cohort(world.graph, world.split, world.partition, range(3)))
        x = cohort.x.to_dense() if isinstance(cohort.x, SparseMatrix) else cohort.x
        assert x is not None
        lengths = x.norm(dim=1)
        ones = torch.ones_like(lengths)
        assert torch.allclose(lengths[lengths > 0], ones[lengths > 0], rtol=0, atol=1e-12)


def test_cora_takes_as_many_numbers_as_the_dossier_counts(real_data: Path) -> None:
    """One copy of every node's message, degree 16: 1.631e9 as matrices and 1.235e8 as vectors."""
    graph = load("cora", data_dir=real_data)
    assert isinstance(graph, Graph)
    size = 1 + np.bincount(graph.edges.flatten(), minlength=graph.num_nodes)
    counts = [numbers(form, torch.from_numpy(size), graph.num_features, 16) for form in ("matrix", "vector")]
    assert counts[0] == pytest.approx(1.631e9, rel=5e-4)
    assert counts[1] == pytest.approx(1.235e8, rel=5e-4)
