"""FedGCN's exchange under encryption: the same sums, whoever computes where, and a server that reads none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from protections import protection
from torch import Tensor
from worlds import (
    ThreeWorkers,
    Watched,
    World,
    config_of,
    last_round_stands,
    logits,
    make_world,
    run_local,
    run_processes,
    weighted,
)

import graphfed
from graphfed.audit.attacks.fedgcn import run as fedgcn_features
from graphfed.audit.base import AuditedRun
from graphfed.crypto.ckks import PARAMETERS, Evaluator, Grid, KeyOwner
from graphfed.crypto.ckks_ideal import read_plaintext
from graphfed.crypto.errors import ProtocolError
from graphfed.data.graphs.graph import make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.errors import GraphfedError, InputError
from graphfed.federation import CLIENTS, Federation
from graphfed.federation.cohort import make_cohort
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.payload import densify, leaves
from graphfed.federation.route import RouteTable, RowIds, make_table
from graphfed.federation.secure import encrypted_sum as module
from graphfed.federation.secure.encrypted_sum import name_ciphertexts, place_rows
from graphfed.methods.fedgcn import method as fedgcn
from graphfed.methods.registry import get_method
from graphfed.runs.config import make_config
from graphfed.runs.run import load_inputs
from graphfed.runs.train import Event, train
from graphfed.runtime.local import stacked

pytest.importorskip("tenseal", reason="encryption needs the extra secure")

pytestmark = pytest.mark.slow

SUM = PARAMETERS["sum"]
HOPS = pytest.mark.parametrize("hops", [1, 2])


def wide_world(features: int, clients: int = 3) -> World:
    """The world of `make_world` with more columns, dense."""
    world = make_world(nodes=24, clients=clients)
    rng = np.random.default_rng(5)
    old = world.graph
    x = rng.normal(size=(24, features))
    graph = make_graph("wide", x, old.y, old.edges, num_classes=old.num_classes)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    return World(graph, world.split, from_assignment(graph, client, num_clients=clients))


def exchanged(world: World, fed: Federation, hops: int, exchange: str) -> tuple[list[Tensor], list[Tensor]]:
    """The border's sums and the closure's degrees at every worker."""
    config = config_of(get_method("fedgcn"), hops=hops, exchange=exchange)
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]
    data = fed.locate(CLIENTS, "data", cohorts)
    received = fedgcn.exchange_sums(fed, data, world.task, config).parts
    return [densify(r.sums) for r in received], [r.degree for r in received]


# ---- the same sums


@HOPS
@pytest.mark.parametrize("kind", ["narrow", "wide", "in pieces", "weighted"])
def test_encrypted_sums_are_those_in_plaintext_within_the_grids_error(kind, hops):
    world = {
        "narrow": make_world,
        "wide": lambda: wide_world(1100),
        "in pieces": lambda: wide_world(2100),
        "weighted": lambda: weighted(make_world()),
    }[kind]()
    plaintext, degrees = exchanged(world, stacked(3), hops, "plaintext")
    hidden, hidden_degrees = exchanged(world, stacked(3), hops, "encrypted")
    for a, b in zip(plaintext, hidden, strict=True):
        assert 0 < float((a - b).abs().max()) <= Grid(3).error
    for a, b in zip(degrees, hidden_degrees, strict=True):
        assert a.dtype == b.dtype
        assert float((a - b).abs().max()) <= (Grid(3).error if kind == "weighted" else 0)


@HOPS
def test_stacked_one_at_a_time_and_separate_processes_give_the_same(hops, three_clients: ThreeWorkers):
    world = last_round_stands(make_world(1))
    settings = {"hops": hops, "exchange": "encrypted", "dropout": 0.4}
    together, fed = run_local("fedgcn", world, **settings)
    slow, oracle = run_local("fedgcn", world, "one at a time", **settings)
    apart, ledger = run_processes("fedgcn", world, three_clients, **settings)
    for other, entries in ((slow, oracle.ledger), (apart, ledger)):
        assert torch.allclose(logits(together), logits(other), rtol=0, atol=1e-9)
        assert fed.ledger.to_json() == entries.to_json()


def test_a_second_run_has_the_bits_of_the_first_under_another_key():
    """So a run that is resumed, whose set-up is made again, goes on as if nothing had happened."""
    world = make_world()
    first, _ = run_local("fedgcn", world, exchange="encrypted")
    second, _ = run_local("fedgcn", world, exchange="encrypted")
    assert torch.equal(logits(first), logits(second))


def test_predictions_made_later_are_those_of_the_run(tmp_path: Path):
    import pyarrow.parquet as pq

    folder = tmp_path / "run"
    graphfed.run("fedgcn", clients=3, rounds=2, threads=1, out=folder, exchange="encrypted")
    said, later = pq.read_table(folder / "predictions.parquet"), graphfed.predict(folder)
    assert said.column_names == later.column_names
    for name in said.column_names:
        if name.startswith("probability"):
            assert np.allclose(said[name].to_numpy(), later[name].to_numpy(), rtol=0, atol=1e-5)


@HOPS
@pytest.mark.parametrize("client", [[0] * 60, [0, 2] * 30], ids=["one client", "one is empty"])
def test_a_single_client_and_one_without_nodes_go_through(client, hops):
    world = make_world(assignment=client, clients=max(client) + 1)
    plaintext, _ = run_local("fedgcn", world, hops=hops)
    hidden, fed = run_local("fedgcn", world, hops=hops, exchange="encrypted")
    assert torch.allclose(logits(plaintext), logits(hidden), rtol=0, atol=1e-2)
    (rows,) = [e for e in fed.ledger.entries if e.name == "fedgcn/encrypted/rows"]
    assert (rows.bytes == 0) == (len(set(client)) == 1), "nodes without neighbours elsewhere do not cross"


# ---- what is sent


def border_sets(world: World) -> dict[int, frozenset[int]]:
    """The clients that touch each node with neighbours at several, from the edges alone."""
    client = dict(zip(world.partition.held_id.tolist(), world.partition.held_client.tolist(), strict=True))
    touched: dict[int, set[int]] = {v: {k} for v, k in client.items()}
    for u, v in world.graph.edges.T.tolist():
        touched[v].add(client[u])
        touched[u].add(client[v])
    return {v: frozenset(k) for v, k in touched.items() if len(k) > 1}


@HOPS
def test_the_bytes_are_those_of_the_formula(hops):
    """Ciphertexts: for every set of clients (1 hop: and owner) its nodes, as many as fit."""
    world = make_world()
    sets = border_sets(world)
    owner = dict(zip(world.partition.held_id.tolist(), world.partition.held_client.tolist(), strict=True))
    width, clients = world.graph.num_features + (hops == 2), world.clients
    sizes: dict[Any, int] = {}
    for v, touching in sets.items():
        key = (touching, owner[v] if hops == 1 else None)
        sizes[key] = sizes.get(key, 0) + 1
    fit = SUM.slots // width
    up = sum(-(-n // fit) * len(touching) for (touching, _), n in sizes.items())
    down = up if hops == 2 else sum(-(-n // fit) for n in sizes.values())
    rows = sum(len(touching) for touching in sets.values())
    expected = {
        "key_request": 8 * (clients - 1),
        "secret_key": SUM.secret_bytes * (clients - 1),
        "public_context": 256 * clients,
        "ids": 8 * rows,
        "packing": 8 * rows,
        "ciphertext_ids": 8 * up,
        "rows": SUM.ciphertext_bytes * up,
        "sums": SUM.ciphertext_bytes * down,
    }
    if hops == 1:
        expected |= {"wanted_ids": 8 * len(sets), "wanted_ciphertext_ids": 8 * down}
    _, fed = run_local("fedgcn", world, hops=hops, exchange="encrypted", protocols="simulated")
    sent_bytes = fed.ledger.totals()["by_transfer"]
    assert {
        name.removeprefix("fedgcn/encrypted/"): n for name, n in sent_bytes.items() if "crypt" in name
    } == expected


def test_wide_rows_need_no_word_about_packing():
    world = wide_world(1100)
    _, fed = run_local("fedgcn", world, exchange="encrypted", protocols="simulated")
    sent_bytes = fed.ledger.totals()["by_transfer"]
    rows = sum(len(touching) for touching in border_sets(world).values())
    assert sent_bytes["fedgcn/encrypted/rows"] == rows * SUM.ciphertext_bytes
    assert not {name for name in sent_bytes if "packing" in name or "ciphertext_ids" in name}


@HOPS
def test_no_number_of_a_client_leaves_it_in_plaintext_and_the_server_receives_no_key(hops):
    """What reaches the server in the exchange: ids, parameters, and ciphertexts that it cannot open."""
    world, fed = make_world(), Watched([(0,), (1,), (2,)])
    exchanged(world, fed, hops, "encrypted")
    secret = next(p for name, _, p in fed.seen if name.endswith("secret_key"))
    key = secret[0].numpy().tobytes()[200:1200]
    to_server = [(name, p) for name, (_, to), p in fed.seen if to == SERVER_INDEX]
    assert {name for name, _ in to_server} >= {"fedgcn/encrypted/rows", "fedgcn/encrypted/public_context"}
    assert not [name for name, _ in to_server if "secret" in name]
    for name, _, payload in fed.seen:
        for leaf in leaves(payload) if not isinstance(payload, str) else []:
            assert not leaf.is_floating_point(), name
    for name, payload in to_server:
        for leaf in leaves(payload):
            assert key not in leaf.contiguous().numpy().tobytes(), name
            if leaf.dtype == torch.uint8:
                for row in leaf.numpy():
                    with pytest.raises(ProtocolError):
                        KeyOwner.from_secret("sum", row)
            else:
                assert leaf.dtype == torch.int64, name
    ids = {int(i) for name, p in to_server if name == "fedgcn/encrypted/ids" for i in p[0]}
    assert ids == set(border_sets(world)), "nodes whose neighbours are all at home are not named"


def test_every_client_decrypts_its_own_sums_and_is_sent_no_others():
    """What a client decrypts, all slots of it, holds numbers at the places of its own rows only."""
    for hops in (1, 2):
        world, fed = make_world(), Watched([(0,), (1,), (2,)], simulated=True)
        exchanged(world, fed, hops, "encrypted")
        sets = border_sets(world)
        owner = dict(zip(world.partition.held_id.tolist(), world.partition.held_client.tolist(), strict=True))
        width = world.graph.num_features + (hops == 2)
        for name, (_, to), payload in fed.seen:
            if name != "fedgcn/encrypted/sums":
                continue
            assert to >= 0
            entitled = [v for v, k in sets.items() if (owner[v] == to if hops == 1 else to in k)]
            slots = read_plaintext(SUM, payload.numpy().reshape(-1, SUM.ciphertext_bytes))
            rows = slots[:, : SUM.slots // width * width].reshape(-1, width)
            found = int((rows != 0).any(1).sum())
            # With two hops the last column is a degree, of at least 1; without it a sum can be all zero.
            assert found == len(entitled) if hops == 2 else 0 < found <= len(entitled)


@given(
    clients=st.integers(1, 5), seed=st.integers(0, 10**6), rows=st.integers(1, 5), only_owners=st.booleans()
)
def test_a_ciphertext_only_has_rows_of_the_same_senders_and_receivers(clients, seed, rows, only_owners):
    rng = np.random.default_rng(seed)
    ids = [np.sort(rng.choice(30, rng.integers(0, 20), replace=False)) for _ in range(clients)]
    owner = rng.integers(0, clients, 30)

    def table(lists: Sequence[np.ndarray]) -> RouteTable:
        arrived = [(torch.from_numpy(i), torch.tensor([len(i)])) for i in lists]
        return make_table(arrived)[0]

    have = table(ids)
    want = table([i[owner[i] == k] for k, i in enumerate(ids)]) if only_owners else None
    names = name_ciphertexts(have, want, rows)
    by_name: dict[int, list[int]] = {}
    for i, name in zip(have.ids.tolist(), names.tolist(), strict=True):
        by_name.setdefault(name, []).append(i)
    for name, members in by_name.items():
        assert name == min(members)
        assert len(members) <= rows
        senders = {tuple(k for k in range(clients) if i in ids[k]) for i in members}
        assert len(senders) == 1
        if only_owners:
            assert len({owner[i] if owner[i] in next(iter(senders)) else -1 for i in members}) == 1
    # As few as that allows: only the last ciphertext of a kind has room left.
    kinds: dict[Any, int] = {}
    for i in have.ids.tolist():
        senders = tuple(k for k in range(clients) if i in ids[k])
        kind = (senders, owner[i] if only_owners and owner[i] in senders else -1)
        kinds[kind] = kinds.get(kind, 0) + 1
    assert len(by_name) == sum(-(-n // rows) for n in kinds.values())
    # Every client puts a row at the same place.
    known = dict(zip(have.ids.tolist(), names.tolist(), strict=True))
    seen: dict[int, tuple[int, int]] = {}
    for own in ids:
        values = torch.tensor([known[i] for i in own.tolist()], dtype=torch.int64)
        places = place_rows(RowIds(torch.from_numpy(own), torch.zeros(len(own), dtype=torch.int64)), values)
        for i, unit, place in zip(own.tolist(), places.unit.tolist(), places.place.tolist(), strict=True):
            assert seen.setdefault(i, (int(places.ids.ids[unit]), place)) == (known[i], place)


# ---- the audit


@HOPS
def test_the_audit_reads_everything_of_a_simulated_exchange_and_nothing_of_an_encrypted_one(hops, tmp_path):
    findings = {}
    for form in ("plaintext", "simulated", "real"):
        settings = {"hops": hops, **protection("exchange", form)}
        folder = tmp_path / form
        result = graphfed.run("fedgcn", clients=3, rounds=1, threads=1, out=folder, settings=settings)
        config = make_config("fedgcn", clients=3, rounds=1, settings=settings)
        findings[form] = fedgcn_features(AuditedRun(folder, config, load_inputs(config), result))
    assert findings["plaintext"].leaks
    assert findings["simulated"].leaks
    assert findings["real"].leaks is False
    assert findings["real"].details["recovered"] == 0
    assert findings["real"].details["shares"] > 0
    assert "no key" in findings["real"].verdict
    # Every share that was sent is read: all but those of nodes that never left their client.
    assert findings["simulated"].details["recovered"] > 0.9 * findings["plaintext"].details["recovered"]


def test_the_audit_finds_a_key_that_was_sent_to_the_server_by_mistake(tmp_path, monkeypatch):
    monkeypatch.setattr(KeyOwner, "public", KeyOwner.secret)
    monkeypatch.setattr(
        Evaluator, "load", lambda name, public: Evaluator(SUM, KeyOwner.from_secret(name, public)._context)
    )
    settings = {"exchange": "encrypted"}
    result = graphfed.run("fedgcn", clients=3, rounds=1, threads=1, out=tmp_path / "run", **settings)
    config = make_config("fedgcn", clients=3, rounds=1, settings=settings)
    finding = fedgcn_features(AuditedRun(tmp_path / "run", config, load_inputs(config), result))
    assert finding.leaks
    assert finding.details["recovered"] > 0


def test_the_plaintext_transfers_of_an_encrypted_run_name_the_key_and_no_sums(tmp_path):
    graphfed.run("fedgcn", clients=3, rounds=1, threads=1, out=tmp_path / "run", exchange="encrypted")
    from graphfed.audit.run import audit

    found = audit(tmp_path / "run").findings
    listed = found["plaintext_transfers"].result
    assert "fedgcn/encrypted/secret_key" in listed
    assert "fedgcn/encrypted/rows" not in listed
    assert "fedgcn/encrypted/sums" not in listed
    assert found["fedgcn_features"].leaks is False


# ---- what is refused, what is logged


def test_more_ciphertexts_than_a_process_may_hold_are_refused_before_any_is_made(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 20)
    monkeypatch.setattr(KeyOwner, "encrypt", lambda *_: pytest.fail("it was encrypted"))
    with pytest.raises(InputError, match=r"take 0\.\d GiB in the server's process, and at most 0 GiB"):
        run_local("fedgcn", wide_world(1100), exchange="encrypted")


def test_the_cost_is_logged_before_anything_is_encrypted(monkeypatch):
    world, fed, events = make_world(), stacked(3), []
    real, made = KeyOwner.encrypt, []

    def encrypt(self: KeyOwner, slots: np.ndarray) -> np.ndarray:
        made.append((len(slots), [e.note for e in events]))
        return real(self, slots)

    monkeypatch.setattr(KeyOwner, "encrypt", encrypt)
    method = get_method("fedgcn")
    cohorts = [make_cohort(world.graph, world.split, world.partition, h) for h in fed.workers]

    def hear(event: Event) -> None:
        events.append(event)

    config = config_of(method, exchange="encrypted", rounds=1)
    train(fed, method, fed.locate(CLIENTS, "data", cohorts), world.task, config, on_event=hear)
    ((count, notes),) = made
    cost = f"{2 * count * SUM.ciphertext_bytes / 1e6:.0f} MB, about 1 s of one core"
    expected = f"fedgcn/encrypted: {count} ciphertexts to the server and {count} back: {cost}"
    assert [note for note in notes if "ciphertexts" in note] == [expected]
    assert [e.phase for e in events if not e.note] == ["setup", "train", "done"]


def test_a_server_that_damages_a_sum_ends_the_run_with_the_reason(monkeypatch):
    real = Evaluator.add

    def add(self: Evaluator, *arguments: Any) -> np.ndarray:
        sums = real(self, *arguments)
        sums[0, 20_000] ^= 4
        return sums

    monkeypatch.setattr(Evaluator, "add", add)
    with pytest.raises(GraphfedError, match=r"ProtocolError: .*damaged"):
        run_local("fedgcn", make_world(), exchange="encrypted")


def test_an_exchange_of_nothing_cannot_be_encrypted():
    with pytest.raises(InputError, match="exchange='encrypted' cannot be used with hops=0"):
        config_of(get_method("fedgcn"), hops=0, exchange="encrypted")


# ---- on real data (over FLARE: tests/laws/test_deployed_methods.py)


@pytest.mark.real_data
@pytest.mark.parametrize("clients", [3, pytest.param(10, marks=pytest.mark.on_demand)])
def test_on_cora_encryption_changes_no_prediction_that_counts(clients, real_data):
    """The same test accuracy as in plaintext."""
    torch.set_default_dtype(torch.float32)
    accuracy = [
        graphfed.run("fedgcn", data="cora", clients=clients, seed=0, out=False, exchange=exchange).test[
            "accuracy"
        ]
        for exchange in ("plaintext", "encrypted")
    ]
    assert accuracy[0] == accuracy[1]
