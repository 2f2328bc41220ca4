"""A wrapper changes what is sent, alike in every placement, and the ledger records it."""

from dataclasses import dataclass

import pytest
import torch
from casting import Cast
from placements import (
    SEVERAL_EACH,
    World,
    at_clients,
    at_server,
    make_world,
    peer_ids,
    per_client,
    row_ids,
    run_apart,
    whole,
)
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.federation import CLIENTS, SERVER, Federation, Located, as_leaves
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.route import RowIds
from graphfed.federation.wrap import Chained, Quantised, Wrapper
from graphfed.nn.sparse import SparseMatrix
from graphfed.privacy.clipped import ClippedNoise

PLACEMENTS = [[range(6)], [(k,) for k in range(6)], SEVERAL_EACH]


CASTS = [Cast(torch.float16), Cast(torch.bfloat16), Cast(torch.bfloat16, gradients=True)]


def squares(*xs: Tensor) -> Tensor:
    return torch.stack([(x**2).sum() for x in xs]).sum()


def client_part(down: Tensor, x: Tensor, model: Tensor, peers: Tensor) -> Tensor:
    return squares(down, x @ model, peers)


def wrapped_round(fed: Federation, world: World, wrap: Wrapper) -> dict[str, Located]:
    route = fed.route(row_ids(fed, world), name="ids")
    peer = fed.exchange_route(peer_ids(fed, world), name="wants")
    plain_gradients = Cast(wrap.dtype) if isinstance(wrap, Cast) else wrap
    with fed.tape():
        x = fed.clients.run(as_leaves, at_clients(fed, "x", world.x))
        own = fed.clients.run(as_leaves, per_client(fed, "own", torch.linspace(0, 1, 6).double()[:, None]))
        w = fed.server.run(as_leaves, at_server(fed, "w", world.w))
        up = fed.upload(x, route, name="up", wrap=wrap)
        summed = fed.sum(x, route, name="sum", wrap=wrap)
        top = fed.max(x, route, name="max", wrap=wrap)
        down = fed.download(top, route, name="down", wrap=wrap)
        model = fed.broadcast(w, name="model", wrap=plain_gradients)
        mean = fed.average(own, at_server(fed, "n", world.counts), name="mean", wrap=wrap)
        every = fed.gather(own, name="every", wrap=wrap)
        peers = fed.exchange(x, peer, name="peers", wrap=wrap)
        loss = fed.sum(fed.clients.run(client_part, down, x, model, peers), name="loss")
        fed.backward(fed.server.run(squares, loss, up, summed, top, mean, every))
    out = {"up": up, "sum": summed, "max": top, "down": down, "mean": mean, "every": every, "peers": peers}
    return out | {"x": fed.gradients(x), "own": fed.gradients(own), "w": fed.gradients(w)}


@pytest.mark.parametrize("wrap", CASTS, ids=str)
@pytest.mark.parametrize("workers", PLACEMENTS[1:], ids=["one at a time", "several each"])
def test_a_wrapped_transfer_is_the_same_in_every_placement_and_across_a_link(workers, wrap):
    world = make_world(6, 5)
    stacked, fed = Federation(PLACEMENTS[0]), Federation(workers)
    expected, got = wrapped_round(stacked, world, wrap), wrapped_round(fed, world, wrap)
    for name, value in expected.items():
        # Gradients meet in another order before they are cast; values do not.
        close = 1e-12 if name not in ("x", "own", "w") or not wrap.gradients else 0.05
        torch.testing.assert_close(whole(got[name]), whole(value), rtol=close, atol=close)
    assert fed.ledger.to_json() == stacked.ledger.to_json()
    apart = run_apart(workers, lambda f: wrapped_round(f, world, wrap))
    for name, value in got.items():
        participants = [SERVER_INDEX] if value.place == SERVER else range(len(workers))
        for participant, part in zip(participants, value.parts, strict=True):
            torch.testing.assert_close(apart[participant][0][name].parts[0], part, rtol=1e-12, atol=1e-12)
    between = [e for e in fed.ledger.to_json()["entries"] if e["from"] != e["to"]]
    assert apart[SERVER_INDEX][1].ledger.to_json()["entries"] == between


def send_up(wrap: Wrapper | None, x: Tensor) -> tuple[Federation, Located, Located]:
    """x [2, 3] at one client, uploaded; the gradient of the sum of squares."""
    fed = Federation([(0,)])
    rows = RowIds(torch.arange(2), torch.zeros(2, dtype=torch.int64))
    route = fed.route(fed.locate(CLIENTS, "i", [rows]), name="ids")
    with fed.tape():
        leaf = fed.clients.run(as_leaves, fed.locate(CLIENTS, "x", [x]))
        got = fed.upload(leaf, route, name="x", wrap=wrap)
        fed.backward(fed.server.run(squares, got))
    return fed, got, fed.gradients(leaf)


X = torch.tensor([[1.0, 1 / 3, 1e-3], [-2.0, 100.1, 0.0]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cast_rounds_the_values_and_passes_the_gradient_straight_through(dtype):
    fed, got, gradient = send_up(Cast(dtype), X)
    rounded = X.to(dtype).float()
    assert got.parts[0].dtype == torch.float32
    assert torch.equal(got.parts[0], rounded)
    assert torch.equal(gradient.parts[0], 2 * rounded), (
        "the gradient at the rounded value, not rounded itself"
    )
    entries = {e.name: e for e in fed.ledger.entries}
    assert (entries["x"].bytes, entries["x"].dtype) == (6 * 2, str(dtype).removeprefix("torch."))
    assert (entries["x/grad"].bytes, entries["x/grad"].dtype) == (6 * 4, "float32")
    assert entries["x"].protection == "plaintext", "compression protects nobody"


def test_cast_rounds_the_gradient_too_when_asked():
    fed, _, gradient = send_up(Cast(torch.bfloat16, gradients=True), X)
    rounded = X.to(torch.bfloat16).float()
    assert torch.equal(gradient.parts[0], (2 * rounded).to(torch.bfloat16).float())
    entries = {e.name: e for e in fed.ledger.entries}
    assert (entries["x/grad"].bytes, entries["x/grad"].dtype) == (6 * 2, "bfloat16")


def test_a_cast_sends_integers_unchanged():
    fed = Federation([(0,), (1,)])
    payload = {"w": torch.tensor([1 / 3]), "n": torch.tensor([2**40 + 1])}
    got = fed.broadcast(at_server(fed, "p", payload), name="p", wrap=Cast())
    assert int(got.parts[1]["n"]) == 2**40 + 1
    assert fed.ledger.entries[0].received.tolist() == [10, 10]
    assert fed.ledger.entries[0].dtype == "float16,int64"


def test_sparse_rows_arrive_dense_out_of_a_wrapper():
    fed = Federation([(0,)])
    rows = RowIds(torch.arange(2), torch.zeros(2, dtype=torch.int64))
    route = fed.route(fed.locate(CLIENTS, "i", [rows]), name="ids")
    x = fed.locate(CLIENTS, "x", [SparseMatrix.from_dense(torch.eye(2) / 3)])
    got = fed.upload(x, route, name="x", wrap=Cast())
    assert torch.equal(whole(got), (torch.eye(2) / 3).half().float())


def test_where_only_totals_exist_a_wrapper_is_refused():
    """A stacked cohort holds the total of its clients: wrapping it would differ from wrapping each client's
    part."""
    fed = Federation([(0, 1)])
    with pytest.raises(PlaceError, match="takes no wrapper"):
        fed.sum(fed.locate(CLIENTS, "x", [torch.ones(1)]), name="sum", wrap=Cast())
    with pytest.raises(PlaceError, match="cannot be wrapped client by client"):
        fed.broadcast(at_server(fed, "w", torch.ones(1)), name="w", wrap=Cast(gradients=True))


@dataclass(frozen=True)
class Toggled:
    """Swaps signs with a key that both participants know; it stands for any encryption. Bytes are sent."""

    protection: str = "encrypted"
    gradients: bool = True
    draws_noise: bool = False

    def encode(self, x: Tensor) -> Tensor:
        return (-x).contiguous().view(torch.uint8)

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        return -encoded.view(dtype)


def test_a_wrapper_of_another_kind_sets_the_protection_and_keeps_values_and_gradients():
    fed, got, gradient = send_up(Toggled(), X)
    assert torch.equal(got.parts[0], X)
    assert torch.equal(gradient.parts[0], 2 * X)
    entries = {e.name: e for e in fed.ledger.entries}
    assert entries["x"].protection == entries["x/grad"].protection == "encrypted"
    assert (entries["x"].dtype, entries["x"].bytes, entries["x/grad"].bytes) == ("uint8", 24, 24)
    assert fed.ledger.statement()["left_the_clients"]["encrypted"] == {"bytes": 24, "transfers": ["x"]}


@dataclass(frozen=True)
class Hidden:
    """Adds a number and says that this hides something."""

    by: float
    protection: str | None = None
    gradients: bool = False
    draws_noise: bool = False

    def encode(self, x: Tensor) -> Tensor:
        return x + self.by

    def decode(self, encoded: Tensor, dtype: torch.dtype) -> Tensor:
        return (encoded - self.by).to(dtype)


@pytest.mark.parametrize("inner", [Hidden(1, "ldp(1.0)"), Hidden(1), Hidden(1, None, True)], ids=str)
@pytest.mark.parametrize("outer", [Hidden(8, "encrypted"), Hidden(8), Hidden(8, None, True)], ids=str)
def test_a_chain_protects_as_its_inner_wrapper_or_else_its_outer_one(inner: Hidden, outer: Hidden) -> None:
    """And it wraps gradients if both do; one alone would have to take what only the two together give."""
    if inner.gradients != outer.gradients:
        with pytest.raises(PlaceError, match="one wraps gradients and the other does not"):
            Chained(inner, outer)
        return
    chain = Chained(inner, outer)
    assert chain.protection == (inner.protection if inner.protection else outer.protection)
    assert chain.gradients == inner.gradients
    x = torch.tensor([[0.5, 2.0]])
    assert chain.encode(x).tolist() == [[9.5, 11.0]]
    assert chain.decode(chain.encode(x), torch.float64).tolist() == x.tolist()
    fed = Federation([(0,)])
    fed.gather(per_client(fed, "x", x), name="x", wrap=chain)
    assert fed.ledger.entries[0].protection == (chain.protection or "plaintext")


def test_quantised_numbers_are_off_by_half_a_step_at_most_and_clipped_at_the_limit() -> None:
    wrap, x = Quantised(2.0), torch.linspace(-3, 3, 101)
    encoded = wrap.encode(x)
    assert encoded.dtype == torch.int8
    off = (wrap.decode(encoded, x.dtype) - x.clamp(-2, 2)).abs()
    assert float(off.max()) <= 2 / 254 + 1e-6
    assert (wrap.protection, wrap.gradients) == (None, False)


@pytest.mark.parametrize(
    "noise", [ClippedNoise(1.0, 1.0, None), Chained(ClippedNoise(1.0, 1.0, None), Quantised())]
)
@pytest.mark.parametrize("workers", PLACEMENTS[1:], ids=["one at a time", "several each"])
def test_noise_is_refused_where_the_placement_would_decide_how_often_it_is_drawn(workers, noise) -> None:
    world = make_world(6, 5)
    fed = Federation(workers)
    route, peer = (
        fed.route(row_ids(fed, world), name="ids"),
        fed.exchange_route(peer_ids(fed, world), name="w"),
    )
    x, w = at_clients(fed, "x", world.x), at_server(fed, "w", world.w)
    top = fed.max(x, route, name="max", wrap=noise)
    for transfer in (
        lambda: fed.broadcast(w, name="model", wrap=noise),
        lambda: fed.download(top, route, name="down", wrap=noise),
        lambda: fed.exchange(x, peer, name="peers", wrap=noise),
    ):
        with pytest.raises(PlaceError, match="noise is drawn for each receiving worker"):
            transfer()
