"""FedGAT's message before training from features under encryption: the same message, whoever computes where,
and a server that reads no feature. And the cap on neighbours, with which it stays small."""

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from protections import protection
from torch import Tensor
from worlds import (
    PLACEMENTS,
    ThreeWorkers,
    Watched,
    World,
    by_node,
    cohorts_of,
    config_of,
    last_round_stands,
    logits,
    make_world,
    run_local,
    run_processes,
)

import graphfed
from graphfed.audit.run import audit
from graphfed.crypto.ckks import PARAMETERS, SMALLEST_WEIGHT, KeyOwner
from graphfed.crypto.ckks_ideal import read_plaintext
from graphfed.crypto.errors import ProtocolError
from graphfed.data.graphs.graph import Split, make_graph
from graphfed.data.partitions.partition import from_assignment
from graphfed.errors import InputError
from graphfed.federation import CLIENTS, Federation
from graphfed.federation.cohort import make_cohort
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.payload import leaves
from graphfed.federation.route import RouteTable
from graphfed.methods.fedgat import encrypted_moments, pretraining
from graphfed.methods.fedgat.client_graphs import kept_edges, without_singles
from graphfed.methods.fedgat.moment_messages import Neighbourhoods, vector_message, vector_weights
from graphfed.methods.parts import is_simulated
from graphfed.methods.registry import get_method
from graphfed.nn.sparse import SparseMatrix

pytest.importorskip("tenseal", reason="encryption needs the extra secure")

METHOD = get_method("fedgat")
PRODUCT = PARAMETERS["product"]
HIDDEN = ("features", "products")


def small_world(features: int = 12, nodes: int = 24, clients: int = 3) -> World:
    """The world of `make_world`, or one with more columns, dense."""
    world = last_round_stands(make_world(nodes=nodes, clients=clients))
    old = world.graph
    if features == old.num_features:
        return world
    x = np.random.default_rng(5).normal(size=(nodes, features))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    graph = make_graph("wide", x, old.y, old.edges, num_classes=old.num_classes)
    client = world.partition.held_client[np.argsort(world.partition.held_id)]
    return World(graph, world.split, from_assignment(graph, client, num_clients=clients))


@dataclass
class Received:
    """What the clients have of the message, worker after worker; and the federation."""

    fed: Federation
    sums: Tensor
    scores: Tensor
    decoders: Tensor

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.sums, self.scores, self.decoders


def set_up(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    placement: str = "stacked",
    fed: Federation | None = None,
    **settings: Any,
) -> Received:
    """The set-up alone, and what the clients received."""
    config = config_of(METHOD, **settings)
    fed = fed or PLACEMENTS[placement](world.clients, simulated=is_simulated(config))
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    real = pretraining.moments_view

    def watched(
        cohort: Any, neighbourhood: Any, size: Any, sums: Tensor, scores: Tensor, decoders: Tensor, heads: int
    ) -> Any:
        seen.append((sums, scores, decoders))
        return real(cohort, neighbourhood, size, sums, scores, decoders, heads)

    monkeypatch.setattr(pretraining, "moments_view", watched)
    data = fed.locate(CLIENTS, "data", cohorts_of(world, fed.workers, config))
    with fed.phase("setup", round_number=0):
        METHOD.setup(fed, data, world.task, config)
    monkeypatch.setattr(pretraining, "moments_view", real)
    return Received(fed, *(torch.cat(parts) for parts in zip(*seen, strict=True)))


# ---- the same message


@pytest.mark.parametrize("b", [1, 2, 5, 169])
def test_the_message_is_the_weights_times_the_features(b: int) -> None:
    """Weights of a row add up to less than a ciphertext carries, and no row is without any."""
    rng = np.random.default_rng(b)
    x = torch.from_numpy(rng.normal(size=(3 * b, 7)))
    ids = torch.tensor([4, 9, 11])
    neighbourhoods = Neighbourhoods(ids, torch.full((3,), b), torch.arange(3 * b))
    sums, scores, _ = vector_message(x, neighbourhoods, 4, 1)
    weights = vector_weights(1, ids, b)
    m1, m2, k2 = torch.bmm(weights, x.view(3, b, 7)).split(2 * b, 1)
    assert torch.allclose(torch.cat([m1, m2], 2).flatten(0, 1), scores, rtol=0, atol=1e-13)
    assert torch.allclose(k2.flatten(0, 1), sums[:, 1:], rtol=0, atol=1e-13)
    assert float(weights.abs().sum(2).max()) < 3
    assert bool((weights != 0).any(2).all())


@pytest.mark.parametrize(
    ("features", "nodes"),
    [
        (12, 24),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1100, 24), (2100, 12), (4100, 8))),
    ],
)
def test_an_encrypted_message_is_the_plaintext_one_within_the_schemes_error(
    features: int, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features of length at most 1, in many, some and one row of a ciphertext, and in two ciphertexts: a
    number is a sum of at most B products, whose sizes add up to less than 3."""
    world = small_world(features, nodes)
    plaintext, ideal, real = (
        set_up(world, monkeypatch, **protection("exchange", form)).tensors()
        for form in ("plaintext", "simulated", "real")
    )
    allowed = 3 * 2e-7 + nodes * 1e-8
    for a, b, c in zip(plaintext[:2], ideal[:2], real[:2], strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-8)  # weights are at least 2^-30
        assert 0 < float((a - c).abs().max()) <= allowed
    assert torch.equal(plaintext[2], ideal[2])
    assert torch.equal(plaintext[2], real[2])


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.slow
def test_logits_under_encryption_are_those_in_plaintext(layers: int) -> None:
    world = small_world()
    plaintext, ideal, real = (
        logits(run_local("fedgat", world, layers=layers, **protection("exchange", form))[0])
        for form in ("plaintext", "simulated", "real")
    )
    assert torch.allclose(plaintext, ideal, rtol=0, atol=1e-8)
    assert torch.allclose(plaintext, real, rtol=0, atol=1e-4)


@pytest.mark.parametrize("part", [2**29, 2**21], ids=["one part", "many parts"])
def test_a_simulated_message_is_the_same_bits_in_every_placement_and_in_parts(
    part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = small_world()
    whole = set_up(world, monkeypatch, exchange="encrypted", protocols="simulated")
    expected, entries = whole.tensors(), whole.fed.ledger.to_json()["entries"]
    monkeypatch.setattr(encrypted_moments, "PART", part)
    for placement in PLACEMENTS:
        found = set_up(world, monkeypatch, placement, exchange="encrypted", protocols="simulated")
        for a, b in zip(expected, found.tensors(), strict=True):
            assert torch.equal(a, b), placement
        sent = [e for e in found.fed.ledger.to_json()["entries"] if e["phase"] == "setup"]
        named = {e["name"]: e["bytes"] for e in entries if e["phase"] == "setup"}
        assert {e["name"]: e["bytes"] for e in sent} == named
        (products,) = [e for e in found.fed.ledger.entries if e.name.endswith("products")]
        parts = -(-products.bytes // part)
        assert (parts > 3) == (part < 2**29)


@pytest.mark.parametrize("protocols", ["simulated", "real"])
@pytest.mark.slow
def test_separate_processes_give_what_one_process_gives(protocols: str, three_clients: ThreeWorkers) -> None:
    world = last_round_stands(make_world(1, nodes=24))
    hidden = {"exchange": "encrypted", "protocols": protocols}
    together, fed = run_local("fedgat", world, **hidden)
    apart, ledger = run_processes("fedgat", world, three_clients, **hidden)
    off = 1e-9 if protocols == "simulated" else 1e-4
    assert torch.allclose(logits(together), logits(apart), rtol=0, atol=off)
    assert fed.ledger.to_json() == ledger.to_json()


def test_an_empty_client_and_nodes_without_neighbours_go_through(monkeypatch: pytest.MonkeyPatch) -> None:
    world = last_round_stands(make_world(nodes=12, assignment=[0, 2] * 6))
    plaintext, real = (
        set_up(world, monkeypatch, exchange=how).tensors() for how in ("plaintext", "encrypted")
    )
    for a, b in zip(plaintext, real, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-6)


# ---- what is sent


def test_the_server_receives_no_feature_and_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the set-up nothing with a fraction reaches it, and the ciphertexts do not open with what it has."""
    fed = Watched([(0,), (1,), (2,)])
    set_up(small_world(), monkeypatch, fed=fed, exchange="encrypted")
    to_server = [(name, payload) for name, (_, to), payload in fed.seen if to == SERVER_INDEX]
    assert {name for name, _ in to_server} >= {"fedgat/encrypted/features", "fedgat/neighbours"}
    assert not {name for name, _ in to_server} & {"fedgat/features", "fedgat/encrypted/secret_key"}
    secret = next(p for name, _, p in fed.seen if name.endswith("secret_key"))
    key = secret[0].numpy().tobytes()[200:1200]
    (context,) = {p.numpy().tobytes() for name, p in to_server if name.endswith("public_context")}
    for name, payload in to_server:
        for leaf in leaves(payload) if not isinstance(payload, str) else []:
            assert leaf.dtype in (torch.int64, torch.uint8), name
            assert key not in leaf.contiguous().numpy().tobytes(), name
        if name == "fedgat/encrypted/features":
            with pytest.raises(ProtocolError):
                read_plaintext(PRODUCT, payload.numpy().reshape(-1, PRODUCT.ciphertext_bytes))
    with pytest.raises(ProtocolError):
        KeyOwner.from_secret("product", np.frombuffer(context, dtype=np.uint8))


def test_a_simulated_exchange_shows_the_server_every_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is why it is never called protection."""
    world, fed = small_world(), Watched([(0,), (1,), (2,)], simulated=True)
    set_up(world, monkeypatch, fed=fed, exchange="encrypted", protocols="simulated")
    cells = [p for name, _, p in fed.seen if name == "fedgat/encrypted/features"]
    read = read_plaintext(PRODUCT, torch.cat(cells).numpy().reshape(-1, PRODUCT.ciphertext_bytes))
    cohorts = cohorts_of(world, fed.workers, config_of(METHOD))
    x = torch.cat([c.x.to_dense() for c in cohorts if isinstance(c.x, SparseMatrix)])
    assert np.array_equal(read[:, :12], x.numpy())
    hidden = [e["protection"] for e in fed.ledger.to_json()["entries"] if e["name"].endswith(HIDDEN)]
    assert hidden == ["simulated"] * 2


@pytest.mark.parametrize("features", [12, 1100, 4100])
def test_the_bytes_are_those_of_the_formula_and_are_predicted(
    features: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up: a node in ciphertexts of its own. Down, of every node that a client asks for: 6 B rows, as many
    of them in a ciphertext as fit."""
    messages: list[str] = []
    monkeypatch.setattr(Federation, "log", lambda fed, message: messages.append(message))
    world = small_world(features, 10)
    fed = set_up(world, monkeypatch, exchange="encrypted", protocols="simulated").fed
    sent = fed.ledger.totals()["by_transfer"]
    plaintext = set_up(world, monkeypatch, exchange="plaintext").fed.ledger.totals()["by_transfer"]
    fit, pieces = max(1, PRODUCT.slots // features), -(-features // PRODUCT.slots)
    sizes = sizes_asked_for(world)
    down = pieces * int(np.ceil(6 * sizes / fit).sum())
    up = pieces * world.graph.num_nodes
    expected = {
        "keys": 8 * int((2 * sizes).sum()),
        "key_request": 8 * (world.clients - 1),
        "secret_key": PRODUCT.secret_bytes * (world.clients - 1),
        "public_context": 256 * world.clients,
        "features": PRODUCT.ciphertext_bytes * up,
        "products": 132_500 * down,
    }
    there = {n.removeprefix("fedgat/encrypted/"): b for n, b in sent.items() if "/encrypted/" in n}
    assert there == expected
    for name in ("fedgat/decoders", "fedgat/neighbourhood_ids", "fedgat/neighbours"):
        assert sent[name] == plaintext[name]
    assert not {"fedgat/features", "fedgat/sums", "fedgat/scores"} & sent.keys()
    assert messages[0].startswith(f"the encrypted message before training: {up} simulated ciphertexts to")
    assert f"and {down} back" in messages[0]


def sizes_asked_for(world: World) -> np.ndarray:
    """B of every node of every client's neighbourhood, from the edges alone."""
    cohort = make_cohort(world.graph, world.split, world.partition, range(world.clients))
    kept = without_singles(cohort)
    neighbours_of: dict[int, set[int]] = {int(i): {int(i)} for i in kept.id}
    ends = torch.cat([kept.edge_index[1], kept.cross_row]).tolist()
    others = torch.cat([kept.id[kept.edge_index[0]], kept.cross_id]).tolist()
    for row, other in zip(ends, others, strict=True):
        neighbours_of[int(kept.id[row])].add(other)
    neighbourhoods: list[set[int]] = [set() for _ in range(world.clients)]
    for node, client in zip(kept.id.tolist(), kept.client.tolist(), strict=True):
        neighbourhoods[client] |= neighbours_of[node]
    return np.array([len(neighbours_of[v]) for neighbourhood in neighbourhoods for v in neighbourhood])


def test_the_cost_is_logged_before_anything_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(Federation, "log", lambda fed, message: order.append(message))
    real = KeyOwner.make.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        KeyOwner, "make", classmethod(lambda cls, name: [order.append("key"), real(cls, name)][1])
    )
    set_up(small_world(nodes=10), monkeypatch, exchange="encrypted")
    assert order[1:] == ["key"]
    assert re.search(r", about \d+ s of one core$", order[0])


def some_neighbourhoods(sizes: list[int], nodes: int = 20) -> Neighbourhoods:
    """Neighbourhoods of these sizes, and of the other nodes none."""
    size = [*sizes, *[1] * (nodes - len(sizes))]
    member = [[i, *(j for j in range(nodes) if j != i)][:b] for i, b in enumerate(size)]
    return Neighbourhoods(3 * torch.arange(nodes) + 1, torch.tensor(size), torch.tensor([*chain(*member)]))


@pytest.mark.parametrize("width", [12, 100, 700, 1100, 2048, 2100, 4100])
def test_the_predicted_cost_is_that_of_every_ciphertext_and_product(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ciphertext for every node, result and delivery; a product for every result and neighbour with a
    weight in it, of which at most 15 % more are forecast; bytes of the message by its formula."""
    neighbourhoods, degree = some_neighbourhoods([1, 2, 3, 5, 8, 13, 20]), 5
    everyone, wanted = torch.arange(20), torch.tensor([1, 6, 6, 6, 19, 3])
    table = RouteTable(neighbourhoods.ids, wanted, torch.zeros_like(wanted))
    layout = encrypted_moments.layout_of(width)
    fit, pieces = max(1, PRODUCT.slots // width), -(-width // PRODUCT.slots)
    weights = encrypted_moments.message_weights(neighbourhoods, everyone, neighbourhoods.member, 1).tocoo()
    unit, _ = encrypted_moments.places(neighbourhoods.size, layout)
    products = pieces * len(set(zip(unit[weights.row].tolist(), weights.col.tolist(), strict=True)))
    of_node = [pieces * -(-6 * b // fit) for b in neighbourhoods.size.tolist()]
    made, down = sum(of_node), sum(of_node[v] for v in wanted)
    names = ("ENCRYPT", "MAKE", "DECRYPT", "TIMES_VECTOR", "TIMES_NUMBER")
    counts = {}
    for counted in names:
        for name in names:
            monkeypatch.setattr(encrypted_moments, name, int(name == counted))
        cost = encrypted_moments.predict_cost(
            neighbourhoods, table, neighbourhoods.size, width, degree, False
        )
        counts[counted] = cost["milliseconds"]
    assert (cost["up"], cost["made"], cost["down"]) == (20 * pieces, made, down)
    assert (counts["ENCRYPT"], counts["MAKE"], counts["DECRYPT"]) == (20 * pieces, made, down)
    used, other = ("TIMES_NUMBER", "TIMES_VECTOR") if fit == 1 else ("TIMES_VECTOR", "TIMES_NUMBER")
    assert counts[other] == 0
    assert products <= counts[used] <= (1 if fit == 1 else 1.15) * products
    b = neighbourhoods.size.numpy()
    assert cost["once"] == 8 * (2 * b + 4 * (degree + 1) * b**2).sum()
    b = b[wanted.numpy()]
    assert cost["sent"] == 8 * (6 * width * b + 2 * b + 4 * (degree + 1) * b**2).sum()


def test_the_predicted_memory_is_that_of_what_is_kept_and_of_one_part() -> None:
    """Of 10 ciphertexts up and of 9000 results and as many to send, in three parts; at the clients as well,
    what they encrypted, the 4096 numbers of every result of a part, and their message three times."""
    cost = {"up": 10, "made": 9000, "down": 9000, "once": 500, "sent": 7000}
    assert encrypted_moments.parts_of(cost) == 3
    server = 10 * 237_000 + 500 + 2 * 3000 * 132_500
    assert encrypted_moments.memory_of(cost, False) == server
    clients = 10 * 237_000 + 3000 * 4096 * 8 + 3 * 7000
    assert encrypted_moments.memory_of(cost, True) == server + clients
    little = {**cost, "made": 0, "down": 0}
    assert encrypted_moments.parts_of(little) == 1
    assert encrypted_moments.memory_of(little, False) == 10 * 237_000 + 500


@pytest.mark.parametrize(
    ("milliseconds", "time"), [(10, "1 s"), (90_000, "90 s"), (91_000, "2 min"), (600_000, "10 min")]
)
def test_the_time_of_an_encryption_is_logged_and_of_a_simulation_none(milliseconds: int, time: str) -> None:
    cost = {"up": 3, "made": 2, "down": 2, "once": 0, "sent": 0, "milliseconds": milliseconds}
    text = encrypted_moments.log_cost(cost, False, simulated=False)
    assert "encrypted message before training: 3 ciphertexts to the server" in text
    assert text.endswith(f"GiB of memory at the server's process, about {time} of one core")
    ideal = encrypted_moments.log_cost(cost, False, simulated=True)
    assert "encrypted message before training: 3 simulated ciphertexts to the server" in ideal
    assert ideal.endswith("GiB of memory at the server's process")


def test_the_memory_that_is_logged_counts_the_clients_of_the_servers_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And its size is sent under its name, and the stages of the set-up in their order."""
    reported: list[str] = []
    stages: list[str] = []
    asked: list[bool] = []
    real = encrypted_moments.predict_cost

    def predict(*given: Any) -> Any:
        asked.append(given[-1])
        return real(*given)

    monkeypatch.setattr(encrypted_moments, "predict_cost", predict)
    monkeypatch.setattr(encrypted_moments, "PART", 2**21)
    fed = PLACEMENTS["in thirds"](3, simulated=True)
    fed.on_message, fed.on_stage = reported.append, stages.append
    set_up(small_world(nodes=10), monkeypatch, fed=fed, exchange="encrypted", protocols="simulated")
    assert asked == [True]
    (size,) = [entry for entry in fed.ledger.entries if entry.name == "fedgat/size"]
    assert (size.dtype, size.phase) == ("json", "control")
    (products,) = [entry for entry in fed.ledger.entries if entry.name.endswith("products")]
    parts = -(-products.bytes // 2**21)
    assert parts > 1
    making = [f"computing the encrypted message: part {part} of {parts}" for part in range(1, parts + 1)]
    assert stages[0] == "asking for the messages of neighbourhoods"
    assert stages[-parts - 1 :] == ["encrypting the features", *making]


def test_nodes_are_spread_evenly_over_the_parts_of_a_message() -> None:
    """Of 8000 nodes a part in eight has 1000, within 5 standard errors; so has it under another key, and
    not the same ones."""
    ids = 7 * torch.arange(8000)
    first, second = (encrypted_moments.part_of(ids, 8, key) for key in (1, 2))
    for part in (first, second):
        assert (torch.bincount(part) - 1000).abs().max() <= 5 * (8000 / 8 * 7 / 8) ** 0.5
        assert len(torch.bincount(part)) == 8
    assert not torch.equal(first, second)


# ---- the limits


def test_what_does_not_fit_is_refused_before_anything_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted_moments, "memory_bytes", lambda: (2**20, 2**30))
    monkeypatch.setattr(encrypted_moments, "share_key", None)
    expected = (
        r"takes about \d\.\d GiB of memory with exchange=encrypted, and 0\.0 GiB are free; use "
        r"max_neighbours \(the largest neighbourhood has \d+ neighbours\)"
    )
    with pytest.raises(InputError, match=expected):
        set_up(small_world(), monkeypatch, exchange="encrypted")


@pytest.mark.parametrize(
    ("other", "fix"), [({"form": "matrix"}, "form=vector"), ({"evaluation": "direct"}, "evaluation=message")]
)
def test_only_the_message_of_vectors_is_encrypted(other: dict[str, str], fix: str) -> None:
    with pytest.raises(InputError, match=rf"exchange=encrypted cannot be used with .*use {fix}, or exchange"):
        config_of(METHOD, exchange="encrypted", **other)


def test_features_that_a_ciphertext_cannot_carry_are_refused_with_the_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = small_world(30)
    world.graph.x[3, 5] = 5e3
    with pytest.raises(InputError, match=r"a value of size 5000 cannot be encrypted: .*below 1024"):
        set_up(world, monkeypatch, exchange="encrypted", features="raw")


def test_weights_too_small_for_a_ciphertext_are_made_large_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """1e-12, and zeros stay zeros."""
    small = torch.tensor([[[1e-12], [-1e-15], [0.5], [0.0], [0.25], [1.0]]], dtype=torch.float64)
    monkeypatch.setattr(encrypted_moments, "vector_weights", lambda key, ids, b: small)
    neighbourhoods = Neighbourhoods(torch.tensor([7]), torch.tensor([1]), torch.tensor([0]))
    found = encrypted_moments.message_weights(neighbourhoods, torch.tensor([0]), torch.tensor([0]), 1)
    expected = [SMALLEST_WEIGHT, -SMALLEST_WEIGHT, 0.5, 0.0, 0.25, 1.0]
    assert found.toarray()[:, 0].tolist() == expected
    assert found.nnz == 5


# ---- the audit


@pytest.mark.slow
def test_what_the_clients_can_work_out_is_not_changed_by_encryption(tmp_path: Path) -> None:
    """The audit reads every neighbour's features at other clients out of the message of an encrypted run."""
    torch.set_default_dtype(torch.float32)
    graphfed.run(
        "fedgat", data="social", clients=3, rounds=1, threads=1, out=tmp_path / "run",
        split="random:0.5,0.25,0.25",
        settings={"exchange": "encrypted", "max_neighbours": 3, "data.num_nodes": 60},
    )  # fmt: skip
    finding = audit(tmp_path / "run").findings["fedgat_features"]
    assert finding.value == 1
    assert finding.details["recovered"] == finding.details["neighbours"] > 20


# ---- the cap on neighbours


def kept_pairs(world: World, placement: str = "stacked", **settings: Any) -> set[tuple[int, int]]:
    """(node, neighbour) of all that the clients keep."""
    config = config_of(METHOD, **settings)
    found: set[tuple[int, int]] = set()
    for cohort in cohorts_of(world, PLACEMENTS[placement](world.clients).workers, config):
        kept = kept_edges(cohort, config.exchange.edges, config.run.seed)
        ends = torch.cat([kept.edge_index[1], kept.cross_row])
        others = torch.cat([kept.id[kept.edge_index[0]], kept.cross_id])
        found |= set(zip(kept.id[ends].tolist(), others.tolist(), strict=True))
    return found


def test_a_node_keeps_so_many_neighbours_and_which_does_not_depend_on_who_holds_them() -> None:
    every = kept_pairs(make_world(), drop_single=False)
    degree = np.bincount([node for node, _ in every])
    for most in (1, 2, 3):
        found = kept_pairs(make_world(), drop_single=False, max_neighbours=most)
        assert found < every
        assert np.array_equal(np.bincount([v for v, _ in found]), np.minimum(degree, most))
        for clients in (1, 3, 10):
            for placement in PLACEMENTS if clients > 1 else ["stacked"]:
                world = make_world(clients=clients)
                assert kept_pairs(world, placement, drop_single=False, max_neighbours=most) == found
        # One more neighbour: the same and one more.
        assert found < kept_pairs(make_world(), drop_single=False, max_neighbours=most + 1)
    assert kept_pairs(make_world(), drop_single=False, max_neighbours=int(degree.max())) == every


def test_neighbours_are_drawn_alike_and_anew_with_another_seed() -> None:
    """Of 4 neighbours kept at a time one: each is kept in a quarter of 400 seeds, give or take 5 standard
    errors."""
    graph = make_graph(
        "star", np.eye(5), np.array([0, 1, 0, 1, 0]), np.array([[0, 0, 0, 0], [1, 2, 3, 4]]), num_classes=2
    )
    world = make_world(nodes=8)
    parts = (world.split.train, world.split.val, world.split.test)
    split = Split("random", *(part[:5] for part in parts))
    star = World(graph, split, from_assignment(graph, np.zeros(5, dtype=int), num_clients=1))
    drawn = [
        next(n for v, n in kept_pairs(star, drop_single=False, max_neighbours=1, seed=seed) if v == 0)
        for seed in range(400)
    ]
    counts = np.bincount(drawn, minlength=5)[1:]
    assert np.abs(counts - 100).max() <= 5 * np.sqrt(400 * 0.25 * 0.75)


@pytest.mark.parametrize("layers", [1, 3])
def test_with_a_cap_message_and_direct_evaluation_are_one(layers: int) -> None:
    world = small_world()
    message, direct, every = (
        by_node(run_local("fedgat", world, layers=layers, **how)[0], world)
        for how in ({"max_neighbours": 2}, {"max_neighbours": 2, "evaluation": "direct"}, {})
    )
    assert torch.allclose(message, direct, rtol=0, atol=1e-8)
    assert float((message - every).abs().max()) > 1e-3
