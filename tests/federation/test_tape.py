"""Gradients that are sent back over transfers equal those of the same program written without places."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import (
    SEVERAL_EACH,
    World,
    at_clients,
    at_server,
    make_world,
    peer_ids,
    per_client,
    placed_worlds,
    row_ids,
    run_apart,
)
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.federation import CLIENTS, SERVER, Federation, Located, as_leaves
from graphfed.federation.link import SERVER_INDEX

Weights = dict[str, Tensor]


def weights_of(width: int, layers: int) -> Weights:
    rng = torch.Generator().manual_seed(7)
    names = [f"{where}{layer}" for where in ("local", "global") for layer in range(layers)]
    return {name: torch.randn(width, width, generator=rng, dtype=torch.float64) for name in names}


def local_layer(h: Tensor, w: Weights, layer: int) -> Tensor:
    return (h @ w[f"local{layer}"]).tanh()


def global_layer(u: Tensor, w: Weights, layer: int) -> Tensor:
    return (u @ w[f"global{layer}"]).tanh()


def client_loss(h: Tensor, peers: Tensor, own: Tensor, client: Tensor) -> Tensor:
    return (h**3).sum() + (peers.sin() * peers).sum() + (h * own[client]).sum()


def own_total(h: Tensor, own: Tensor) -> Tensor:
    return h.sum(0) + own.sum(0)


def server_loss(mean: Tensor, every: Tensor, pooled: Tensor, total: Tensor) -> Tensor:
    return (mean**2).sum() + (every**3).sum() + pooled.cos().sum() + (total**2).sum()


def loss_of_both(server_part: Tensor, client_part: Tensor) -> Tensor:
    return server_part + client_part


def client_of_rows(ids: Any) -> Tensor:
    return ids.client


def program(fed: Federation, world: World, layers: int = 3) -> dict[str, Located]:
    """Layers down and up (the maximum and the sum in turn), an exchange, an average, a gather and a sum:
    every transfer that carries a gradient, several values used more than once. Leaves: the server's and the
    clients' own."""
    own_values = (
        torch.arange(1.0, 1 + world.num_clients * world.w.shape[0]).double().reshape(world.num_clients, -1)
    )
    width = world.w.shape[0]
    route = fed.route(row_ids(fed, world), name="ids")
    peer = fed.exchange_route(peer_ids(fed, world), name="wants")
    with fed.tape():
        weights = fed.server.run(as_leaves, at_server(fed, "w", weights_of(width, layers)))
        own = fed.clients.run(as_leaves, per_client(fed, "own", own_values))
        x = fed.clients.run(as_leaves, at_clients(fed, "x", world.x))
        received = fed.broadcast(weights, name="weights")
        h = x
        for layer in range(layers):
            z = fed.clients.run(local_layer, h, received, layer)
            pool = fed.max if layer % 2 == 0 else fed.sum
            u = pool(z, route, name=f"layer{layer}/local")
            u = fed.server.run(global_layer, u, weights, layer)
            h = fed.download(u, route, name=f"layer{layer}/global")
        peers = fed.exchange(h, peer, name="peers")
        clients = fed.clients.run(client_of_rows, row_ids(fed, world))
        part = fed.clients.run(client_loss, h, peers, own, clients)
        mean = fed.average(own, at_server(fed, "counts", world.counts), name="mean")
        every = fed.gather(own, name="every")
        total = fed.sum(fed.clients.run(own_total, h, own), name="total")
        both = fed.server.run(
            loss_of_both, fed.server.run(server_loss, mean, every, u, total), fed.sum(part, name="loss")
        )
        fed.backward(both)
    return {"loss": both, "weights": fed.gradients(weights), "own": fed.gradients(own), "x": fed.gradients(x)}


def plain(world: World, layers: int = 3) -> dict[str, Any]:
    """The same on the rows of all clients together, by autograd alone."""
    k, width = world.num_clients, world.w.shape[0]
    own = torch.arange(1.0, 1 + k * width).double().reshape(k, -1).requires_grad_()
    x = torch.cat(world.x).requires_grad_()
    weights = {name: w.requires_grad_() for name, w in weights_of(width, layers).items()}
    ids = torch.cat(world.ids)
    client = torch.cat([torch.full((len(i),), j) for j, i in enumerate(world.ids)])
    unique, index = torch.unique(ids, return_inverse=True)
    h, u = x, x[:0]
    for layer in range(layers):
        z = local_layer(h, weights, layer)
        groups = [z[index == i] for i in range(len(unique))]
        pooled = [g.max(0).values if layer % 2 == 0 else g.sum(0) for g in groups]
        u = global_layer(torch.stack(pooled) if pooled else z[:0], weights, layer)
        h = u[index]
    wanted = [h[(client == o) & (ids == i)] for w in world.wants for o, i in w.tolist()]
    peers = torch.cat([h[:0], *wanted])
    share = world.counts.double() / world.counts.sum()
    mean = (own * share[:, None]).sum(0)
    total = h.sum(0) + own.sum(0)
    loss = server_loss(mean, own, u, total) + client_loss(h, peers, own, client)
    loss.backward()

    def gradient(t: Tensor) -> Tensor:
        return torch.zeros_like(t) if t.grad is None else t.grad

    return {
        "loss": loss.detach(),
        "weights": {name: gradient(w) for name, w in weights.items()},
        "own": gradient(own),
        "x": gradient(x),
    }


def check(got: dict[str, Located], expected: dict[str, Any], tolerance: float = 1e-10) -> None:
    def close(a: Tensor, b: Tensor) -> None:
        torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)

    close(got["loss"].parts[0], expected["loss"])
    for name, w in expected["weights"].items():
        close(got["weights"].parts[0][name], w)
    for name in ("own", "x"):
        close(torch.cat(list(got[name].parts)), expected[name])


@settings(max_examples=40)
@given(placed_worlds(), st.integers(2, 4))
def test_gradients_through_chains_of_transfers_equal_plain_autograd(placed, layers):
    world, workers = placed
    check(program(Federation(workers), world, layers), plain(world, layers))


@settings(max_examples=20)
@given(placed_worlds())
def test_gradients_weigh_the_same_in_any_placement(placed):
    world, workers = placed
    fed, stacked = Federation(workers), Federation([range(world.num_clients)])
    program(fed, world)
    program(stacked, world)
    assert fed.ledger.to_json() == stacked.ledger.to_json()


@pytest.mark.parametrize("workers", [SEVERAL_EACH, [(k,) for k in range(6)]], ids=["several", "one each"])
@pytest.mark.parametrize("seed", range(3))
def test_separate_places_compute_the_gradients_of_one_process(seed, workers):
    world = make_world(6, seed)
    local = Federation(workers)
    expected = program(local, world)
    apart = run_apart(workers, lambda fed: program(fed, world))
    check(expected, plain(world))
    for name, value in expected.items():
        participants = [SERVER_INDEX] if value.place == SERVER else range(len(workers))
        for participant, part in zip(participants, value.parts, strict=True):
            (got,) = apart[participant][0][name].parts
            torch.testing.assert_close(got, part, rtol=1e-12, atol=1e-12)
    merged = apart[SERVER_INDEX][1].ledger
    for h in range(len(workers)):
        merged.add_remote(apart[h][1].ledger)
    assert merged.to_json() == local.ledger.to_json()


def test_one_autograd_pass_serves_a_place_and_phase(monkeypatch):
    """Many values are sent in each run of transfers in one direction; one pass for each run, and one for the
    loss."""
    calls = []
    whole = torch.autograd.backward
    monkeypatch.setattr(torch.autograd, "backward", lambda *a, **k: (calls.append(1), whole(*a, **k))[1])
    fed = Federation([range(4)])
    directions = "D" + "UD" * 5
    with fed.tape():
        w = fed.server.run(as_leaves, at_server(fed, "w", torch.ones(3)))
        got = [fed.broadcast(w, name=f"w{i}") for i in range(4)]
        for step in range(5):
            sent = [fed.sum(g, name=f"up{step}/{i}") for i, g in enumerate(got)]
            mixed = fed.server.run(stacked_sum, *sent)
            got = [fed.broadcast(mixed, name=f"down{step}/{i}") for i in range(4)]
        fed.backward(fed.clients.run(total, *got))
    assert len(calls) <= 1 + len(directions)
    assert fed.gradients(w).parts[0].tolist() == [4.0**6] * 3


def stacked_sum(*xs: Tensor) -> Tensor:
    return torch.stack(xs).sum(0)


def total(*xs: Tensor) -> Tensor:
    return torch.stack(xs).sum()


def leaf_and_constant(x: Tensor) -> dict[str, Tensor]:
    return {"used": x, "idle": 2 * x, "constant": torch.ones(5), "number": torch.ones(7, dtype=torch.int64)}


def used_only(x: dict[str, Tensor]) -> Tensor:
    return (x["used"] ** 2).sum()


def needs_gradient(x: dict[str, Tensor]) -> dict[str, bool]:
    return {name: t.requires_grad for name, t in x.items()}


def a_leaf(fed: Federation, *values: float) -> Located:
    return fed.server.run(as_leaves, at_server(fed, "w", torch.tensor(values)))


def test_a_tensor_that_wanted_a_gradient_is_answered_once_even_when_unused_and_others_never():
    fed = Federation([(0, 1)])
    with fed.tape():
        w = a_leaf(fed, 1.0, 2.0)
        got = fed.broadcast(fed.server.run(leaf_and_constant, w), name="w")
        assert fed.clients.run(needs_gradient, got).parts[0] == {
            "used": True,
            "idle": True,
            "constant": False,
            "number": False,
        }
        fed.backward(fed.clients.run(used_only, got))
    assert fed.gradients(w).parts[0].tolist() == [2.0, 4.0]
    (answer,) = [e for e in fed.ledger.entries if e.name == "w/grad"]
    assert answer.sent.tolist() == [(2 + 2) * 4] * 2, "used and idle, two float32 each, from either client"
    assert answer.received.tolist() == [0, 0]
    assert (answer.direction, answer.kind, answer.messages) == ("up", "gradients", 2)


def test_an_unused_output_is_answered_with_zeros():
    fed = Federation([(0,), (1,)])
    with fed.tape():
        w = a_leaf(fed, 1.0)
        fed.broadcast(w, name="unused")
        fed.backward(fed.server.run(torch.sum, w))
    assert fed.gradients(w).parts[0].tolist() == [1.0]
    assert fed.ledger.bytes_of("unused/grad") == 8


def test_grad_false_detaches_and_no_gradient_is_sent():
    fed = Federation([(0, 1)])
    with fed.tape():
        w = a_leaf(fed, 3.0)
        got = fed.broadcast(w, name="w", grad=False)
        assert not got.parts[0].requires_grad
        fed.backward(fed.clients.run(torch.sum, got))
    assert fed.gradients(w).parts[0].tolist() == [0.0]
    assert [e.name for e in fed.ledger.entries] == ["w"]


def test_outside_a_tape_values_are_sent_without_history():
    fed = Federation([(0, 1)])
    got = fed.broadcast(a_leaf(fed, 3.0), name="w")
    assert not got.parts[0].requires_grad


def test_a_value_sent_twice_gets_both_gradients():
    fed = Federation([(0,), (1,)])
    with fed.tape():
        w = a_leaf(fed, 3.0)
        one, two = fed.broadcast(w, name="w"), fed.broadcast(w, name="w")
        fed.backward(fed.clients.run(product, one, two))
    assert fed.gradients(w).parts[0].tolist() == [2 * (3.0 + 3.0)]
    (answer,) = [e for e in fed.ledger.entries if e.name == "w/grad"]
    assert answer.transfers == 2


def product(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum()


def test_the_tape_is_opened_once_closed_again_and_run_back_once():
    fed = Federation([(0,)])
    loss = fed.locate(CLIENTS, "loss", [torch.tensor(0.0)])
    with pytest.raises(PlaceError, match=r"outside fed\.tape"):
        fed.backward(loss)
    with fed.tape():
        with pytest.raises(PlaceError, match="already recording"), fed.tape():
            pass
        fed.backward(loss)
        with pytest.raises(PlaceError, match="has already run on this tape"):
            fed.backward(loss)
    with pytest.raises(ZeroDivisionError), fed.tape():
        raise ZeroDivisionError
    with fed.tape():
        fed.backward(loss)


def test_after_its_tape_a_received_value_is_constant():
    """Otherwise a later pass would stop at it and silently lose the gradient of the sender."""
    fed = Federation([(0,)])
    with fed.tape():
        got = fed.broadcast(a_leaf(fed, 1.0), name="w")
    assert not got.parts[0].requires_grad


def test_what_was_received_keeps_no_gradient_after_it_was_sent_back():
    """Else the memory of a round would be held as long as any of its values."""
    fed = Federation([(0,), (1,)])
    with fed.tape():
        got = fed.broadcast(a_leaf(fed, 3.0), name="w")
        fed.backward(fed.sum(got, name="sum"))
    assert [part.grad for part in got.parts] == [None, None]


def test_sparse_rows_that_require_a_gradient_are_refused_rather_than_detached():
    from graphfed.federation.route import RowIds
    from graphfed.nn.sparse import SparseMatrix

    fed = Federation([(0,)])
    rows = fed.locate(CLIENTS, "i", [RowIds(torch.tensor([0, 1]), torch.tensor([0, 0]))])
    route = fed.route(rows, name="ids")
    x = SparseMatrix.from_dense(torch.eye(2))
    x = x.with_values(torch.ones(2, requires_grad=True))
    with fed.tape(), pytest.raises(PlaceError, match="sparse rows cannot have a gradient"):
        fed.upload(fed.locate(CLIENTS, "x", [x]), route, name="x")
