"""Clients whose data does not match are refused before anything is trained, and the server learns which
nodes are the same and no more."""

import functools
import operator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_sapgnn import covered
from worlds import World, by_node, config_of, make_world, run_local

import graphfed
from graphfed.crypto.keyed_ids import KEY
from graphfed.data.partitions.partition import from_assignment, partition
from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.cohort import Cohort, make_cohort
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.operations import delivery
from graphfed.federation.route import RouteTable
from graphfed.methods.common import entity_alignment
from graphfed.methods.registry import METHODS, get_method
from graphfed.methods.sapgnn.config import SapgnnConfig
from graphfed.methods.sapgnn.layers import initial_local
from graphfed.nn.sparse import SparseMatrix
from graphfed.runs.train import Event, train
from graphfed.runtime.local import one_at_a_time, stacked

ALIGNED = [name for name in METHODS if "node_ids" in get_method(name).sends.messages]
every_method = pytest.mark.parametrize("name", ALIGNED)


def shared_world(clients: int = 3) -> World:
    world = make_world()
    return World(world.graph, world.split, partition(world.graph, "edges_uniform", clients, 0))


def set_up(
    name: str, world: World, change: Any = None, place: Any = one_at_a_time, **settings: Any
) -> Federation:
    """Run set-up and a round; change(client, cohort): what a client has in its cohort's place."""
    fed: Federation = place(world.clients, "cpu")
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
    if change is not None:
        cohorts = [change(k, cohort) for k, cohort in enumerate(cohorts)]
    config = config_of(get_method(name), rounds=1, **settings)
    train(fed, get_method(name), fed.locate("clients", "data", cohorts), world.task, config)
    return fed


def test_there_are_methods_to_test() -> None:
    assert "sapgnn" in ALIGNED


def dense(cohort: Cohort) -> torch.Tensor:
    assert cohort.x is not None
    return cohort.x.to_dense() if isinstance(cohort.x, SparseMatrix) else cohort.x


@every_method
def test_features_of_another_width_are_refused(name: str) -> None:
    def wider(client: int, cohort: Cohort) -> Cohort:
        x = dense(cohort)
        return replace(cohort, x=torch.cat([x, x[:, :1]], 1) if client == 1 else x)

    with pytest.raises(InputError, match="client 1 has 13 features where the clients agreed on 12"):
        set_up(name, shared_world(), wider)


@every_method
@pytest.mark.parametrize("sparse", [False, True])
def test_a_node_with_other_features_at_another_client_is_refused(name: str, sparse: bool) -> None:
    world = shared_world()

    def stored(client: int, cohort: Cohort) -> Cohort:
        return cohort if sparse else replace(cohort, x=dense(cohort))

    def changed(client: int, cohort: Cohort) -> Cohort:
        if client != 2:
            return stored(client, cohort)
        x = dense(cohort).clone()
        x[4, 3] += 1
        return replace(cohort, x=SparseMatrix.from_dense(x) if sparse else x)

    with pytest.raises(InputError, match="clients 0 and 2 have different features for the node with the"):
        set_up(name, world, changed)
    set_up(name, world, stored)


@every_method
def test_equal_features_that_clients_store_differently_are_equal(name: str) -> None:
    def stored(client: int, cohort: Cohort) -> Cohort:
        if client == 0:
            return cohort
        x = dense(cohort)
        return replace(cohort, x=torch.where(x == 0, -0.0, x) if client == 1 else x)

    set_up(name, shared_world(), stored, place=one_at_a_time)


@every_method
def test_an_empty_client_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    graph = make_world().graph
    client = np.arange(graph.num_nodes) % 2
    from_assignment(graph, 2 * client, num_clients=3).save(tmp_path / "clients.safetensors")
    with pytest.raises(InputError, match=r"needs a node at every client, but .* has no node at client 1"):
        graphfed.run(
            name, data=graph, partition=tmp_path / "clients.safetensors", split="random:0.5,0.25,0.25",
            out=tmp_path / "run",
        )  # fmt: skip
    assert not (tmp_path / "run").exists()


@every_method
@pytest.mark.parametrize("place", [stacked, one_at_a_time])
def test_a_missing_key_is_refused(name: str, place: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(InputError, match=f"node_ids=keyed needs the clients' key, and {KEY} is not set"):
        set_up(name, shared_world(), place=place, node_ids="keyed")


@every_method
@pytest.mark.parametrize("odd", [1, 2])
def test_clients_of_different_keys_are_refused(name: str, odd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else no node would be shared, and nobody would notice."""
    keys = {k: (b"\2" if k == odd else b"\1") * 32 for k in range(3)}
    asking = {"client": 0}
    whole = entity_alignment.key_check

    def key_check(
        clients: entity_alignment.NamedCohort, ids: entity_alignment.NodeIds, seed: int
    ) -> torch.Tensor:
        asking["client"] = clients.cohort.clients[0]
        return whole(clients, ids, seed)

    monkeypatch.setattr(entity_alignment, "clients_key", lambda: keys[asking["client"]])
    monkeypatch.setattr(entity_alignment, "key_check", key_check)
    with pytest.raises(InputError, match=f"clients 0 and {odd} have different keys for the names of nodes"):
        set_up(name, shared_world(), node_ids="keyed")


@every_method
@pytest.mark.parametrize("ids", ["keyed", "simulated", "plain"])
def test_the_ledger_says_what_protects_the_names_of_nodes(
    name: str, ids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is only simulated is never reported as a keyed hash, and plain names are plaintext.
    Digests of features are under a simulated key there."""
    monkeypatch.setenv(KEY, "5f" * 32)
    fed = set_up(name, shared_world(), node_ids=ids)
    names = {"keyed": "keyed hash", "simulated": "simulated", "plain": "plaintext"}[ids]
    expected = {"node_ids": names, "training_ids": names}
    expected["feature_digests"] = "keyed hash" if ids == "keyed" else "simulated"
    if ids == "keyed":
        expected["key_check"] = "keyed hash"
    found = {e.name: e.protection for e in fed.ledger.entries if e.name in (*expected, "key_check")}
    assert found == expected


@pytest.mark.parametrize("ids", ["keyed", "simulated", "plain"])
def test_clients_who_count_owners_say_what_protects_their_names_and_send_only_whether_there_is_a_label(
    ids: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node is with one to three clients, and one of them at most has its label."""
    monkeypatch.setenv(KEY, "5f" * 32)
    world = covered(5, 30, 60, 3, endpoints=True, share=0.3)
    fed: Federation = one_at_a_time(world.clients)
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
    cohorts = [replace(c, y=torch.where(c.id % 4 == k, 0, -1)) for k, c in enumerate(cohorts)]
    config = SapgnnConfig(ids=entity_alignment.NodeIds(ids))
    counted = entity_alignment.count_owners(fed, fed.locate("clients", "data", cohorts), config)
    clients = [{*cohort.id.tolist()} for cohort in cohorts]
    for k, cohort in enumerate(counted.parts):
        for v, owned, owners in zip(
            cohort.id.tolist(), cohort.owned.tolist(), cohort.owners.tolist(), strict=True
        ):
            has_label = v % 4 < 3 and v in clients[v % 4]
            assert owners == (1 if has_label else sum(v in held for held in clients))
            assert owned == (v % 4 == k or not has_label)
    found = {entry.name: entry.protection for entry in fed.ledger.entries}
    names = {"keyed": "keyed hash", "simulated": "simulated", "plain": "plaintext"}[ids]
    assert found == {"owners/node_ids": names, "owners/labels": "plaintext", "owners/counts": "plaintext"}
    rows = sum(len(held) for held in clients)
    assert fed.ledger.bytes_of("owners/labels") == rows


def test_a_node_is_named_by_the_16_hexadecimal_digits_of_its_64_bits() -> None:
    ids = torch.tensor([-(2**63), -1, 5])
    table = RouteTable(ids=ids, index=torch.tensor([0, 1, 2, 1]), client=torch.tensor([0, 0, 0, 1]))
    assert len(entity_alignment.check_features(torch.tensor([3, 4, 5, 4]), table)) == 4
    with pytest.raises(InputError, match=r"clients 0 and 1 .* the name ffffffffffffffff \(1 such"):
        entity_alignment.check_features(torch.tensor([3, 4, 5, 6]), table)


def test_nodes_that_a_key_gives_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else their embeddings would be pooled as one node's. Of 64 bits that takes billions of nodes."""
    monkeypatch.setattr(entity_alignment, "keyed_names", lambda key, use, texts: np.array([5 for _ in texts]))
    with pytest.raises(InputError, match="two nodes have one name under the clients' key"):
        set_up("sapgnn", shared_world(), node_ids="simulated")


def test_the_seed_that_clients_have_in_common_has_63_bits_that_all_follow_from_the_key() -> None:
    """Every generator takes it. Of 64 seeds a given bit is the same in all by a chance of 2^-63."""
    ids = entity_alignment.NodeIds("simulated")
    seeds = [entity_alignment.common_seed(ids, seed) for seed in range(64)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert functools.reduce(operator.or_, seeds) == 2**63 - 1
    assert functools.reduce(operator.and_, seeds) == 0


def test_a_client_without_nodes_is_refused_by_its_number() -> None:
    """Where clients read their own files, nobody has looked before: the last of a cohort too."""
    graph = make_world().graph
    for empty in (0, 1, 2):
        client = np.array([k for k in range(3) if k != empty])[np.arange(graph.num_nodes) % 2]
        parts = from_assignment(graph, client, num_clients=3)
        cohort = make_cohort(graph, make_world().split, parts, [0, 1, 2])
        with pytest.raises(InputError, match=f"client {empty} holds no node; leave it out"):
            entity_alignment.prepare(cohort, make_world().task, entity_alignment.NodeIds(), 0)


@pytest.mark.parametrize("name", ["sapgnn", "ppgnn"])
def test_boolean_shares_of_gradients_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"aggregation=boolean cannot be used.*use aggregation=additive"):
        get_method(name).configure({"aggregation": "boolean"})


@every_method
def test_a_run_says_what_it_prepares(name: str) -> None:
    said: list[Event] = []
    world = shared_world()
    fed = stacked(world.clients, "cpu")
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
    config = config_of(get_method(name), rounds=1)
    data = fed.locate("clients", "data", cohorts)
    train(fed, get_method(name), data, world.task, config, on_event=said.append)
    stages = [event.note for event in said if event.phase == "stage"]
    assert stages.index("finding the nodes that clients have in common") + 1 == stages.index(
        "preparing the layers"
    )


@every_method
def test_names_decide_nothing_but_dropout(name: str) -> None:
    world = shared_world()
    plain, named = (
        by_node(run_local(name, world, node_ids=ids, dropout=0.0)[0], world) for ids in ("plain", "simulated")
    )
    # The rows that the server adds up come in another order.
    assert torch.allclose(named, plain, rtol=0, atol=1e-6)


def test_the_first_weights_that_clients_have_in_common_follow_from_their_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that could draw them could undo the maps. Seeds still differ."""
    drawn = []
    for key, seed in (("5f", 0), ("5f", 0), ("5e", 0), ("5f", 1)):
        monkeypatch.setenv(KEY, key * 32)
        config = config_of(get_method("sapgnn"), node_ids="keyed", seed=seed)
        drawn.append(initial_local("cpu", shared_world().task, config)["layers.0.self"])
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


def arriving_at_the_server(
    name: str, world: World, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> dict[str, list[torch.Tensor]]:
    """The tensors that reach the server in set-up and training, by transfer."""
    seen: dict[str, list[torch.Tensor]] = {}
    whole = delivery.deliver

    def watched(messages: Any, pairs: Any, key: str, **more: Any) -> Any:
        for (_, to), message in messages.items():
            if to == SERVER_INDEX:
                payload = message.payload
                tensors = payload if isinstance(payload, tuple) else (payload,)
                seen.setdefault(key.split("/", 2)[2], []).extend(
                    t for t in tensors if isinstance(t, torch.Tensor)
                )
        return whole(messages, pairs, key, **more)

    monkeypatch.setattr(delivery, "deliver", watched)
    set_up(name, world, **settings)
    return seen


@every_method
def test_the_server_gets_neither_ids_nor_edges_nor_labels_nor_features(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With local maps and shared gradients, the defaults. What it gets in whole numbers are names and hashes
    (64 pseudorandom bits, which no id below a million is but by a chance of 1e-9), rows per client and, to
    choose the best round, tables of predictions and counts of classes."""
    monkeypatch.setenv(KEY, "5f" * 32)
    world = shared_world()
    seen = arriving_at_the_server(name, world, monkeypatch, node_ids="keyed", dropout=0.0)
    assert not any("gradient" in transfer or transfer == "features" for transfer in seen)
    x = torch.from_numpy(world.graph.x.toarray()).double()
    y = torch.from_numpy(world.graph.y).double()
    for transfer, tensors in seen.items():
        for t in tensors:
            if transfer in ("node_ids", "training_ids", "feature_digests", "key_check"):
                assert t.dtype == torch.int64
                assert len(t) <= world.clients or bool((t.abs() > 1_000_000).all())
            elif "scores" not in transfer and transfer != "val_classes":
                assert t.is_floating_point()
                for known in (*x.T, y):
                    assert not any(torch.allclose(column, known) for column in t.T if len(column) == len(y))
    # Each client has every node, so what it sends of all of them was compared.
    assert any(len(t) == len(y) for t in seen[f"{name}/local_embedding"])
