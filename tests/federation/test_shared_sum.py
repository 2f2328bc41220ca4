"""The shared sum is the sum, at every client, and costs what the paper says."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.errors import InputError
from graphfed.federation import Federation
from graphfed.federation.secure import shared_sum as module
from graphfed.federation.secure.shared_sum import shared_sum
from graphfed.runtime.local import one_at_a_time, stacked

PLACES = [stacked, one_at_a_time]


def added(place: Any, full: dict[str, torch.Tensor]) -> tuple[Federation, tuple[Any, ...]]:
    fed = place(len(full["a"]), "cpu")
    parts = [{name: x[list(h)] for name, x in full.items()} for h in fed.workers]
    return fed, shared_sum(fed, fed.locate("clients", "x", parts), name="grad").parts


def numbers(clients: int, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(clients, 3, 2, generator=draw).double(),
        "b": 100 * torch.randn(clients, 4, generator=draw).double(),
    }


@settings(max_examples=30)
@given(clients=st.integers(1, 6), seed=st.integers(0, 99), place=st.sampled_from(PLACES))
def test_every_client_gets_the_same_bits_of_the_sum_within_p_times_2_to_the_minus_25(
    clients: int, seed: int, place: Any
) -> None:
    full = numbers(clients, seed)
    _, parts = added(place, full)
    for name, x in full.items():
        assert all(torch.equal(part[name], parts[0][name]) for part in parts)
        assert parts[0][name].dtype == x.dtype
        assert ((parts[0][name] - x.sum(0)).abs() <= clients * 2.0**-25 + 1e-12).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("clients", [1, 2, 5])
def test_shares_and_sums_are_sent_between_all_pairs_and_never_to_the_server(place: Any, clients: int) -> None:
    """2 P (P - 1) w numbers of 8 bytes (docs/papers/sapgnn.md)."""
    fed, _ = added(place, numbers(clients, 0))
    entries = {e.name: e for e in fed.ledger.entries}
    w = 3 * 2 + 4
    if clients == 1:
        assert not entries
        return
    assert set(entries) == {"grad/shares", "grad/sums"}
    for entry in entries.values():
        assert entry.direction == "peer"
        assert entry.protection == "shared"
        assert entry.bytes == clients * (clients - 1) * w * 8
        assert entry.sent.tolist() == entry.received.tolist() == [(clients - 1) * w * 8] * clients


def test_the_sum_does_not_depend_on_the_shares() -> None:
    full = numbers(4, 1)
    (first,), (second,) = added(stacked, full)[1], added(stacked, full)[1]
    assert all(torch.equal(first[name], second[name]) for name in full)


def test_shares_that_do_not_fit_are_refused_with_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    with pytest.raises(InputError, match=r"sharing among 6 clients takes 0.0 GiB in this process; use fewer"):
        added(stacked, numbers(6, 0))
