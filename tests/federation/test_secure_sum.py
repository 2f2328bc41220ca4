"""The secure sum equals the weighted sum to the last bit of its fixed point, in every placement and for every
roster; the ideal form has the same bits and bytes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import SEVERAL_EACH, at_server, per_client, run_apart
from torch import Tensor

from graphfed.crypto.aggregation.server import Server
from graphfed.crypto.aggregation.terms import Terms
from graphfed.errors import InputError
from graphfed.federation import CLIENTS, Federation, Located, StageError
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.secure import aggregation as module
from graphfed.federation.secure.aggregation import secure_sum
from graphfed.nn.sparse import SparseWeights

EVERYONE = (True,) * 6
SOME = (True, False, True, False, True, True)
STEPS = ["all_keys", "forwarded_shares", "keys", "masked", "sealed_shares", "survivors", "unmask"]


def numbers(clients: int = 6) -> dict[str, Tensor]:
    """Every client's own, under names that are not in order."""
    draw = torch.Generator().manual_seed(1)
    return {
        "w": torch.randn(clients, 3, 2, generator=draw),
        "b": 100 * torch.randn(clients, 4, generator=draw).double(),
    }


def counts(clients: int = 6) -> Tensor:
    return torch.arange(clients)  # client 0 weighs nothing


def likeness(x: dict[str, Tensor]) -> dict[str, Tensor]:
    """The form of one client's part, its names in another order than the clients have them."""
    return {name: torch.zeros(x[name].shape[1:]) for name in sorted(x)}


def add_up(fed: Federation, present: Sequence[bool] = EVERYONE) -> Located:
    full = numbers(fed.num_clients)
    x = fed.locate(CLIENTS, "x", [{n: v[list(fed.workers[h])] for n, v in full.items()} for h in fed.here])
    scale = per_client(fed, "n", counts(fed.num_clients))
    fed.set_roster(np.array(present))
    like = at_server(fed, "like", likeness(full))
    return secure_sum(fed, x, scale, like, name="update")


def in_fixed_point(present: Sequence[bool]) -> dict[str, Tensor]:
    """The sum, each client's numbers rounded to multiples of 2^-24 first."""
    n = counts(len(present)).double() * torch.tensor(present)
    return {
        name: ((x.double() * n.view(-1, *[1] * (x.dim() - 1))) * 2.0**24).round().sum(0) / 2**24
        for name, x in numbers(len(present)).items()
    }


@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "secure"])
@pytest.mark.parametrize("workers", [[tuple(range(6))], [(k,) for k in range(6)], SEVERAL_EACH])
def test_the_sum_over_who_takes_part_has_the_same_bits_in_every_placement(
    workers: list[tuple[int, ...]], simulated: bool, present: Sequence[bool]
) -> None:
    fed = Federation(workers, simulated=simulated)
    (total,) = add_up(fed, present).parts
    expected = in_fixed_point(present)
    assert list(total) == sorted(expected), "in the form of what the server has"
    assert all(torch.equal(total[name], expected[name]) for name in expected)


@settings(max_examples=25)
@given(present=st.lists(st.booleans(), min_size=3, max_size=9), data=st.data())
def test_the_ideal_form_and_the_real_one_agree_for_any_roster_and_workers(
    present: list[bool], data: st.DataObject
) -> None:
    """In bits of the result, and in every number of the ledger but the protection."""
    clients = len(present)
    present = present if sum(present) >= 3 else [True] * clients
    cuts = sorted(data.draw(st.sets(st.integers(1, clients - 1))))
    workers = [tuple(range(a, b)) for a, b in zip([0, *cuts], [*cuts, clients], strict=True)]
    results, ledgers = [], []
    for simulated in (True, False):
        fed = Federation(workers, simulated=simulated)
        results.append(add_up(fed, present).parts[0])
        ledgers.append(
            sorted(
                ({**e.to_json(), "protection": ""} for e in fed.ledger.entries),
                key=lambda entry: entry["name"],
            )
        )
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert ledgers[0] == ledgers[1]


@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "secure"])
def test_across_a_link_it_is_the_same_sum_and_the_same_ledger(simulated: bool) -> None:
    local = Federation(SEVERAL_EACH, simulated=simulated)
    (total,) = add_up(local, SOME).parts
    apart = run_apart(SEVERAL_EACH, lambda fed: add_up(fed, SOME), simulated=simulated)
    out, server = apart[SERVER_INDEX]
    assert all(torch.equal(out.parts[0][name], total[name]) for name in total)
    assert server.ledger.to_json() == local.ledger.to_json()
    assert all(not apart[h][0].parts for h in range(len(SEVERAL_EACH))), "no client has the sum"


def test_every_transfer_costs_what_is_written_and_says_what_protects_it() -> None:
    """4 of 6 clients, 10 numbers, in bytes: keys 64; a box of 80 for each other one; a word each; a byte and
    32 for each client; 8 for the tag of every message."""
    fed = Federation(SEVERAL_EACH)
    add_up(fed, SOME)
    entries = {e.name.removeprefix("update/"): e for e in fed.ledger.entries}
    assert sorted(entries) == STEPS
    each = {
        "keys": 72, "all_keys": 8 + 4 * 64, "sealed_shares": 8 + 3 * 80, "forwarded_shares": 8 + 3 * 80,
        "masked": 8 + 10 * 8, "survivors": 8 + 4, "unmask": 8 + 4 * 32,
    }  # fmt: skip
    for step, size in each.items():
        down = step in ("all_keys", "forwarded_shares", "survivors")
        moved = entries[step].received if down else entries[step].sent
        assert moved.tolist() == [size * taking_part for taking_part in SOME], step
    up = sum(each[s] for s in ("keys", "sealed_shares", "masked", "unmask"))
    down = sum(each[s] for s in ("all_keys", "forwarded_shares", "survivors"))
    n, w = 4, 10
    assert (up, down) == (112 * n + 8 * w + 16, 145 * n - 56), "as the module says"
    assert {step: e.protection for step, e in entries.items()} == {
        "keys": "public", "all_keys": "public", "survivors": "public",
        "sealed_shares": "encrypted", "forwarded_shares": "encrypted", "masked": "aggregate",
        "unmask": "shared",
    }  # fmt: skip
    fed = Federation(SEVERAL_EACH, simulated=True)
    add_up(fed, SOME)
    assert {e.protection for e in fed.ledger.entries} == {"simulated"}


def test_sparse_weights_add_up_as_full_ones_do() -> None:
    """Each client stores some rows of its own; the others are those of a ghost that all share."""
    pairs = torch.tensor([[0, 1], [1, 0], [1, 2], [3, 2]])
    base = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).double()
    sparse = SparseWeights.expand(base, pairs[:, 0], pairs[:, 1], 4)
    sparse = sparse.with_values(sparse.values + torch.arange(float(len(sparse.values)))[:, None])
    full = torch.stack([sparse.part(k) for k in range(4)])
    totals = []
    for x in (sparse, full):
        fed = Federation([(0, 1, 2, 3)])
        like = at_server(fed, "like", torch.zeros(3, 2))
        located = fed.locate(CLIENTS, "x", [x])
        scale = per_client(fed, "n", torch.tensor([3, 0, 2, 1]))
        totals.append(secure_sum(fed, located, scale, like, name="s").parts[0])
    assert torch.equal(*totals)
    assert torch.allclose(totals[0], 3 * full[0] + 2 * full[2] + full[3], rtol=0, atol=1e-6)


def test_a_client_of_weight_zero_does_not_count_even_when_its_numbers_are_not_finite() -> None:
    fed = Federation([(0, 1, 2)])
    x = per_client(fed, "x", torch.tensor([[torch.nan], [2.0], [3.0]]))
    scale, like = per_client(fed, "n", torch.tensor([0, 1, 1])), at_server(fed, "like", torch.zeros(1))
    assert secure_sum(fed, x, scale, like, name="s").parts[0].tolist() == [5.0]


def summing(values: Any, **options: Any) -> Located:
    fed = Federation([tuple(range(len(values)))], **options)
    x = per_client(fed, "x", torch.as_tensor(values)[:, None])
    scale = per_client(fed, "n", torch.ones(len(values)))
    return secure_sum(fed, x, scale, at_server(fed, "like", torch.zeros(1)), name="s")


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 2.0**38])
def test_a_number_that_cannot_be_summed_is_refused(value: float) -> None:
    with pytest.raises(InputError, match="cannot be shared among 3: it must be finite and below"):
        summing([1.0, value, 2.0])


@pytest.mark.parametrize("simulated", [True, False])
def test_two_clients_are_refused(simulated: bool) -> None:
    with pytest.raises(InputError, match=r"secure aggregation needs 3 .* and this round has 2"):
        summing([1.0, 2.0], simulated=simulated)


def test_vectors_that_do_not_fit_are_refused_with_their_size_before_anything_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = Terms.usual("", 6).sizes(10)
    needed = 6 * (sizes["masked"] + sizes["sealed_shares"])
    monkeypatch.setattr(module, "MAX_BYTES", needed)
    add_up(Federation([tuple(range(6))]))
    monkeypatch.setattr(module, "MAX_BYTES", needed - 1)
    fed = Federation([tuple(range(6))])
    with pytest.raises(InputError, match=r"among 6 clients takes 0.0 GiB in this process; use fewer"):
        add_up(fed)
    assert not fed.ledger.entries


def not_forwarded(server: Server, sealed: Tensor) -> Tensor:
    return sealed


def test_a_message_that_is_not_the_expected_one_ends_the_sum_and_says_where(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That every message of the machines has such an error is tested in tests/secure."""
    monkeypatch.setattr(module, "forward", not_forwarded)
    with pytest.raises(
        StageError, match=r"clients 0..2 \(stacked\) failed in 'mask' .* not the expected one"
    ):
        summing([1.0, 2.0, 3.0])
