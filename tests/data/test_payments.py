"""The generated world of payments: patterns have their forms, money is conserved, and nothing else moves."""

import numpy as np
import pytest

from graphfed.data.datasets import load
from graphfed.data.graphs.payments import KEPT, PATTERNS, World, generate_world, pattern_edges
from graphfed.errors import InputError

SMALL = {
    "accounts": 500,
    "banks": 4,
    "payments_per_account": 10.0,
    "illicit": 0.02,
    "cross_bank": 0.8,
    "days": 60,
}


def world(**changed: object) -> World:
    return generate_world(**{**SMALL, "seed": 0, **changed})


def degrees(edges: np.ndarray) -> tuple[list[int], list[int]]:
    """How many payments leave and enter each member, ascending."""
    members = int(edges[:, :2].max()) + 1
    return tuple(sorted(np.bincount(edges[:, end], minlength=members)) for end in (0, 1))


@pytest.mark.parametrize("k", [2, 3, 4])
def test_every_pattern_has_its_form(k: int) -> None:
    """By hand: how many payments leave and enter the members."""
    zeros, ones = [0] * k, [1] * k
    expected = {
        "fan_out": ([*zeros, k], [0, *ones]),
        "fan_in": ([0, *ones], [*zeros, k]),
        "cycle": ([1, *ones], [1, *ones]),
        "random": ([0, 1, *ones], [0, 1, *ones]),
        "scatter_gather": (sorted([k, 0, *ones]), sorted([0, k, *ones])),
        "gather_scatter": (sorted([k, *zeros, *ones]), sorted([k, *zeros, *ones])),
        "bipartite": ([*zeros, *[k] * k], [*zeros, *[k] * k]),
        "stack": ([*zeros, *[k] * 2 * k], [*zeros, *[k] * 2 * k]),
    }
    assert {*expected} == {*PATTERNS}
    for pattern, degree in expected.items():
        assert degrees(pattern_edges(pattern, k)) == degree, pattern


def test_a_seed_makes_a_world_and_another_seed_makes_another_one() -> None:
    one, same, other = world(), world(), world(seed=1)
    for name in ("bank", "payer", "payee", "time", "amount", "pattern"):
        assert np.array_equal(getattr(one, name), getattr(same, name))
    assert not np.array_equal(one.payer[:100], other.payer[:100])


def test_the_share_of_laundering_payments_is_the_asked_one() -> None:
    """Up to the last pattern, which has at most 32 payments."""
    found = world()
    wanted = round(5000 * 0.02 / 0.98)
    assert wanted <= found.laundering.sum() < wanted + 32
    assert not world(illicit=0.0).laundering.any()


def test_a_pattern_moves_one_sum_through_its_stages() -> None:
    """In euros each stage keeps 97 % of the one before; every payment deviates by up to 20 %."""
    found = world(illicit=0.2)
    euros = found.amount * np.array([1.0, 0.23, 1.17, 1.05])[found.currency[found.payer]]
    assert len(found.pattern_kind) > 20
    for number, kind in enumerate(found.pattern_kind):
        if PATTERNS[kind] != "scatter_gather":
            continue
        rows = np.flatnonzero(found.pattern == number)
        sources, counts = np.unique(found.payer[rows], return_counts=True)
        first = found.payer[rows] == sources[counts.argmax()]
        ratio = euros[rows[~first]].sum() / euros[rows[first]].sum()
        assert KEPT * 0.8 / 1.2 < ratio < KEPT * 1.2 / 0.8


def test_nobody_pays_oneself_and_times_are_in_the_world() -> None:
    found = world()
    assert (found.payer != found.payee).all()
    assert (np.diff(found.time) >= 0).all()
    assert found.time[-1] - found.time[0] < 60 * 86_400
    assert {*np.unique(found.bank)} == {*range(4)}


def test_with_no_crossing_patterns_stay_at_one_bank() -> None:
    found = world(cross_bank=0.0, banks=2)
    rows = found.laundering
    assert (found.bank[found.payer[rows]] == found.bank[found.payee[rows]]).all()
    crossing = world(cross_bank=1.0)
    rows = crossing.laundering
    assert (crossing.bank[crossing.payer[rows]] != crossing.bank[crossing.payee[rows]]).mean() > 0.5


def test_the_graph_has_banks_as_clients_and_laundering_accounts_as_a_class() -> None:
    graph, found = load("payments", accounts=500, banks=4, illicit=0.02), world(days=90)
    assert graph.client_names == ("bank_1", "bank_2", "bank_3", "bank_4")
    assert np.array_equal(graph.clients, found.bank)
    assert np.array_equal(graph.y == 1, found.laundering_accounts)
    assert graph.directed is not None
    assert len(graph.directed.source) == len(found.payer)
    amounts = graph.directed.attributes[:, graph.directed.names.index("amount")]
    np.testing.assert_allclose(np.sort(amounts), np.sort(found.amount.astype(np.float32)))
    assert np.array_equal(np.sort(graph.directed.time), found.time)


@pytest.mark.parametrize(
    ("option", "value"),
    [("accounts", 5), ("accounts", True), ("banks", 0), ("illicit", 0.9), ("cross_bank", -1), ("days", 0.5)],
)
def test_an_impossible_option_is_refused_by_its_name(option: str, value: object) -> None:
    with pytest.raises(InputError, match=f"payments: {option}="):
        world(**{option: value})
