"""The ideal secure maximum gives the maximum on fixed point, keeps the marker of no number, and says what it
would cost."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.route import RowIds
from graphfed.runtime.local import one_at_a_time, stacked
from graphfed.secure.maximum import COMPARISON_BYTES, IdealMaximum


@settings(deadline=None, max_examples=60)
@given(values=st.lists(st.floats(-32766, 32766) | st.just(float("-inf")), min_size=1, max_size=20))
def test_numbers_come_back_within_half_of_the_last_bit_and_none_stays_none(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    back = IdealMaximum().decode(IdealMaximum().encode(x), torch.float64)
    assert torch.equal(back.isneginf(), x.isneginf())
    known = ~x.isneginf()
    assert ((back - x)[known].abs() <= 2.0**-17).all()


@pytest.mark.parametrize("value", [32767.0, -32767.0, torch.inf, torch.nan])
def test_a_number_that_32_bits_cannot_hold_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="cannot be compared as a 32-bit number"):
        IdealMaximum().encode(torch.tensor([0.0, value]))


def test_a_comparison_costs_what_the_formula_says() -> None:
    """(128 + 14) * 32 = 4544 bits."""
    assert COMPARISON_BYTES * 8 == 4544


#: (client, vertex): three clients hold vertex 5, two hold 7, one each 8 and 9.
HELD = [(0, 5), (0, 7), (0, 8), (1, 5), (2, 5), (2, 7), (2, 9)]


def pooled(place: object) -> tuple[Federation, torch.Tensor, torch.Tensor]:
    """The federation, what the clients have [7, 2], and the maximum that the server gets."""
    fed: Federation = place(3, "cpu")  # type: ignore[operator]
    client, ids = torch.tensor(HELD).T
    x = torch.randn(len(HELD), 2, generator=torch.Generator().manual_seed(0)).double()
    mine = [torch.isin(client, torch.tensor(h)) for h in fed.hosts]
    rows = fed.locate(
        "clients", "ids",
        [RowIds(ids[m], client[m] - h[0]) for m, h in zip(mine, fed.hosts, strict=True)],
    )  # fmt: skip
    route = fed.route(rows, name="ids")
    at_clients = fed.locate("clients", "x", [x[m] for m in mine])
    result = fed.max(at_clients, route, name="pool", grad=False, secure=IdealMaximum())
    return fed, x, result.parts[0]


@pytest.mark.parametrize("place", [stacked, one_at_a_time])
def test_m_holders_of_a_vertex_cost_m_minus_1_comparisons_of_each_coordinate(place: object) -> None:
    fed, x, top = pooled(place)
    ids = torch.tensor(HELD)[:, 1]
    for row, vertex in enumerate((5, 7, 8, 9)):
        assert torch.allclose(top[row], x[ids == vertex].amax(0), rtol=0, atol=2.0**-17)
    told = {e.name: e for e in fed.ledger.entries}
    compared = told["pool/comparisons"]
    assert compared.bytes == (2 + 1 + 0 + 0) * 2 * COMPARISON_BYTES
    # Vertex 5 between clients 0 and 1, and 1 and 2; vertex 7 between 0 and 2.
    assert compared.sent.tolist() == [2 * 2 * COMPARISON_BYTES, 2 * COMPARISON_BYTES, 0]
    assert compared.received.tolist() == [0, 2 * COMPARISON_BYTES, 2 * 2 * COMPARISON_BYTES]
    assert told["pool"].bytes == len(HELD) * 2 * 4
    assert {told[n].protection for n in ("pool", "pool/comparisons")} == {"simulated"}


def test_placements_agree_in_values_and_ledgers() -> None:
    one, _, top = pooled(stacked)
    other, _, again = pooled(one_at_a_time)
    assert torch.equal(top, again)
    assert one.ledger.to_json() == other.ledger.to_json()
