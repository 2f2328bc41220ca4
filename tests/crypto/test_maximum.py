"""The secure maximum and its simulation: values and gradients of the plain maximum on fixed point, the same
bytes, and shares that say nothing by themselves."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="secure protocols need the extra 'secure'")

from graphfed.crypto import maximum
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.ot import TwoParty
from graphfed.crypto.session import Simulated, run_both, run_one
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.federation.route import RowIds
from graphfed.federation.secure.maximum import (
    make_shares,
    open_maximum,
    plan_maximum,
    protected_max,
    receive_plan,
)
from graphfed.runtime.local import one_at_a_time, stacked

Place = Callable[[int, str], Federation]

# ---- numbers -----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(values=st.lists(st.floats(-16383, 16383) | st.just(float("-inf")), min_size=1, max_size=20))
def test_numbers_come_back_within_half_of_the_last_bit_and_none_stays_none(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    back = maximum.decode(maximum.encode(x), torch.float64)
    assert torch.equal(back.isneginf(), x.isneginf())
    known = ~x.isneginf()
    assert ((back - x)[known].abs() <= 2.0**-17).all()


@pytest.mark.parametrize("value", [16384.0, -16384.0, torch.inf, torch.nan])
def test_a_number_that_the_ring_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="cannot be compared: it must be finite and below 16384"):
        maximum.encode(torch.tensor([0.0, value]))
    with pytest.raises(InputError, match="cannot be shared: it must be finite and below"):
        maximum.encode_gradient(torch.tensor([0.0, value * 1000]))


# ---- the tournament ----------------------------------------------------------------------------------------

CASES = st.lists(st.integers(0, 6), min_size=1, max_size=25).map(
    lambda drawn: np.unique(drawn, return_inverse=True)[1]
)


@settings(max_examples=40)
@given(group=CASES, seed=st.integers(0, 2**31), width=st.integers(1, 4), simulated=st.booleans())
def test_maxima_and_the_rows_that_won_are_those_of_the_plain_maximum_with_the_first_of_equals(
    group: np.ndarray, seed: int, width: int, simulated: bool
) -> None:
    """Many ties, and rows without a number; what is declared of a simulation is what the protocol sends."""
    draw = np.random.default_rng(seed)
    words = draw.integers(-3, 3, (len(group), width)).astype(np.int32) * 2**28
    words[words < -(2**29)] = -(2**30)
    drawn = draw.integers(0, 2**32, words.shape, dtype=np.uint64).astype(np.uint32)
    whole = words.view(np.uint32)
    shares = (whole, 0 * whole) if simulated else (whole - drawn, drawn)
    gradient = draw.integers(1, 2**50, (group.max() + 1, width)).astype(np.uint64)

    def party(first: bool) -> Any:
        session = yield from maximum.open_session(first=first, simulated=simulated)
        plan = maximum.make_plan(group)
        found, chosen = yield from maximum.maxima(session, plan, shares[not first])
        local = gradient if first else 0 * gradient
        return found, (yield from maximum.send_gradients(session, plan, chosen, local))

    one, other = run_both(party(True), party(False))
    assert (one.sent, one.received) == (other.received, other.sent)
    routed = one.result[1] + other.result[1]
    for node in range(group.max() + 1):
        rows = np.flatnonzero(group == node)
        assert np.array_equal(one.result[0][node].view(np.int32), words[rows].max(0))
        won = rows[words[rows].argmax(0)]  # the first of equals
        expected = np.zeros((len(rows), width), dtype=np.uint64)
        expected[won[None] == rows[:, None]] = np.broadcast_to(gradient[node], expected.shape)[
            won[None] == rows[:, None]
        ]
        assert np.array_equal(routed[rows], expected)


@pytest.mark.parametrize(
    "plan", [b"", b"123", np.uint32([2, 0, 0]).tobytes(), np.uint32([2, 0, 7, 0]).tobytes()]
)
def test_a_plan_that_does_not_fit_is_refused(plan: bytes) -> None:
    with pytest.raises(ProtocolError, match="the plan of a maximum"):
        run_one(receive_plan(2), lambda _: None, lambda: plan)


# ---- over places -------------------------------------------------------------------------------------------

#: (client, node): three clients hold node 5, two hold 7, one each 8 and 9.
HELD = [(0, 5), (0, 7), (0, 8), (1, 5), (2, 5), (2, 7), (2, 9)]


def pooled(place: Place, *, simulated: bool) -> tuple[Federation, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The federation, what the clients have [7, 2], the maximum that the server gets, and the gradient of
    sum_u (u + 1) z_u^2 / 2 at the clients."""
    fed = place(3, simulated=simulated)
    client, ids = torch.tensor(HELD).T
    x = torch.randn(len(HELD), 2, generator=torch.Generator().manual_seed(0)).double()
    x[0, 0] = -torch.inf
    masks = [torch.isin(client, torch.tensor(h)) for h in fed.workers]
    rows = fed.locate(
        "clients", "ids",
        [RowIds(ids[m], client[m] - h[0]) for m, h in zip(masks, fed.workers, strict=True)],
    )  # fmt: skip
    meeting = plan_maximum(fed, fed.route(rows, name="ids"), open_maximum(fed, "secure", name="pool"))
    with fed.tape():
        at_clients = fed.clients.run(as_leaves, fed.locate("clients", "x", [x[m] for m in masks]))
        z = protected_max(fed, at_clients, meeting, name="pool")
        fed.backward(fed.server.run(weighted_squares, z))
        gradient = torch.cat(fed.gradients(at_clients).parts)
    return fed, x, z.parts[0].detach(), gradient


def weighted_squares(z: torch.Tensor) -> torch.Tensor:
    return (torch.arange(1, len(z) + 1)[:, None] * z**2 / 2).sum()


@pytest.mark.parametrize("place", [stacked, one_at_a_time])
@pytest.mark.parametrize("simulated", [True, False])
def test_the_server_gets_the_maxima_and_the_winners_their_gradients(place: Place, simulated: bool) -> None:
    torch.set_default_dtype(torch.float64)
    _, x, top, gradient = pooled(place, simulated=simulated)
    ids = torch.tensor(HELD)[:, 1]
    for row, node in enumerate((5, 7, 8, 9)):
        these = (ids == node).nonzero()[:, 0]
        assert torch.allclose(top[row], x[these].amax(0), rtol=0, atol=2.0**-17)
        won = x[these] == x[these].amax(0)
        assert torch.allclose(gradient[these], won * (row + 1) * top[row], rtol=0, atol=2.0**-40)


def test_placements_agree_in_values_and_ledgers() -> None:
    for simulated in (True, False):
        one, _, top, gradient = pooled(stacked, simulated=simulated)
        other, _, again, gradient_again = pooled(one_at_a_time, simulated=simulated)
        assert torch.equal(top, again)
        assert torch.equal(gradient, gradient_again)
        assert one.ledger.to_json() == other.ledger.to_json()


def test_only_the_simulated_one_is_called_simulated_and_it_counts_the_same() -> None:
    entries = [pooled(stacked, simulated=s)[0].ledger.to_json()["entries"] for s in (True, False)]
    kinds = [{e["name"]: e.pop("protection") for e in each} for each in entries]
    assert entries[0] == entries[1]
    assert {name for name, kind in kinds[0].items() if kind == "simulated"} == {
        "pool/session", "pool/protocol", "pool/server_shares", "pool/helper_shares",
        "pool/grad/protocol", "pool/grad/server_shares", "pool/grad/helper_shares",
    }  # fmt: skip
    assert "simulated" not in kinds[1].values()


def test_a_share_says_nothing_of_the_number() -> None:
    """Equal numbers give uniform bytes in either share, and others every time."""
    x = torch.full((500, 8), 3.25)
    for share in (0, 1):
        one, other = (make_shares(x, False)[share] for _ in range(2))
        assert not torch.equal(one, other)
        counts = torch.bincount(one.view(torch.uint8).flatten().long(), minlength=256).double()
        expected = counts.sum() / 256
        assert float(((counts - expected) ** 2 / expected).sum()) < 400  # 255 degrees of freedom: p < 1e-7


def test_without_a_gradient_nothing_is_recorded_and_nothing_comes_back() -> None:
    fed, _, _, _ = pooled(stacked, simulated=True)
    before = {e.name for e in fed.ledger.entries}
    assert any("/grad/" in name for name in before)
    again = stacked(2, simulated=True)
    rows = again.locate("clients", "ids", [RowIds(torch.tensor([1, 1]), torch.tensor([0, 1]))])
    meeting = plan_maximum(again, again.route(rows, name="ids"), open_maximum(again, "secure", name="p"))
    x: Located = again.locate("clients", "x", [torch.tensor([[1.0], [2.0]])])
    with again.tape():
        assert protected_max(again, x, meeting, name="p", grad=False).parts[0].tolist() == [[2.0]]
    assert not any("/grad/" in e.name for e in again.ledger.entries)


@pytest.mark.parametrize("simulated", [True, False])
def test_a_session_is_of_the_kind_that_was_asked_for(simulated: bool) -> None:
    ended = run_both(*(maximum.open_session(first=first, simulated=simulated) for first in (True, False)))
    for first, one in zip((True, False), ended, strict=True):
        assert isinstance(one.result, Simulated if simulated else TwoParty)
        assert one.result.first is first


def test_only_the_highest_level_is_known_to_be_the_servers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs less there, and on any other level it would lose the second party's share."""
    asked, select = [], maximum.select

    def recorded_select(session: Any, *values: Any, of_first: bool = False) -> Any:
        if session.first:
            asked.append(of_first)
        return (yield from select(session, *values, of_first=of_first))

    monkeypatch.setattr(maximum, "select", recorded_select)
    group, words = np.zeros(8, dtype=np.int64), np.arange(8, dtype=np.uint32).reshape(8, 1)

    def party(first: bool) -> Any:
        session = yield from maximum.open_session(first=first, simulated=True)
        plan = maximum.make_plan(group)
        _, chosen = yield from maximum.maxima(session, plan, words if first else 0 * words)
        asked.clear()
        gradient = np.full((1, 1), 5 * first, dtype=np.uint64)
        return (yield from maximum.send_gradients(session, plan, chosen, gradient))

    run_both(party(True), party(False))
    assert asked == [True, False, False]
