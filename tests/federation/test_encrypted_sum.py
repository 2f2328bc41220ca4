"""Sums of the rows that clients have of the same node, at the clients, through ciphertexts that the server
cannot read: here in the ideal form, which has the same bits, transfers and bytes. The real form is slower:
papers/test_fedgcn_encrypted.py compares the two."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from placements import run_apart
from torch import Tensor

from graphfed.crypto.ckks import PARAMETERS, Grid
from graphfed.errors import InputError
from graphfed.federation import CLIENTS, Federation
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.route import RowIds, make_table
from graphfed.federation.secure import encrypted_sum as module
from graphfed.federation.secure.encrypted_sum import encrypted_sum, name_ciphertexts, place_rows

SUM = PARAMETERS["sum"]
CLIENTS_HERE = 4
WORKERS = [[range(4)], [(k,) for k in range(4)], [(0, 1), (2, 3)]]
#: Client k has these nodes, ascending: 40 at everybody, some at some, and client 3 has no others.
IDS = [
    np.sort(np.concatenate([np.arange(100, 140), np.array(more, dtype=np.int64)]))
    for more in ([3, 7, 200], [3, 7, 11, 300], [7, 11, 200], [])
]


def owned(k: int) -> np.ndarray:
    """Which of its nodes a client wants the sums of."""
    return IDS[k] % CLIENTS_HERE == k


def rows(width: int) -> list[Tensor]:
    rng = np.random.default_rng(width)
    return [torch.from_numpy(rng.normal(size=(len(ids), width))) for ids in IDS]


def sums(fed: Federation, width: int, wanted: bool) -> list[Tensor]:
    """The sums of every node, or of the owned ones, at each worker."""
    x = fed.locate(CLIENTS, "x", [torch.cat([rows(width)[k] for k in fed.workers[h]]) for h in fed.here])
    ids, mask = [], []
    for h in fed.here:
        held = [torch.from_numpy(IDS[k]) for k in fed.workers[h]]
        client = torch.cat([torch.full_like(one, i) for i, one in enumerate(held)])
        ids.append(RowIds(torch.cat(held), client))
        mask.append(torch.cat([torch.from_numpy(owned(k)) for k in fed.workers[h]]))
    result = encrypted_sum(
        fed,
        x,
        fed.locate(CLIENTS, "ids", ids),
        width=width,
        name="e",
        wanted=fed.locate(CLIENTS, "wanted", mask) if wanted else None,
    )
    return list(result.parts)


def expected(width: int, wanted: bool) -> Tensor:
    """Client by client and node by node."""
    x, out = rows(width), []
    for k, ids in enumerate(IDS):
        for node, own in zip(ids, owned(k), strict=True):
            if own or not wanted:
                out.append(sum(x[j][IDS[j] == node].sum(0) for j in range(CLIENTS_HERE)))
    return torch.stack(out)


#: Rows of 4 numbers share ciphertexts, 512 in one; rows of 1500 have one each, and those of 2100 have two.
WIDTHS = [4, 1500, 2100]


@pytest.mark.parametrize("wanted", [False, True], ids=["all", "owned"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_client_has_the_sums_that_it_wants_to_the_same_bits_in_any_placement(
    width: int, wanted: bool
) -> None:
    results, ledgers = [], []
    for workers in WORKERS:
        fed = Federation(workers, simulated=True)
        results.append(torch.cat(sums(fed, width, wanted)))
        ledgers.append(fed.ledger.to_json())
    for got in results:
        torch.testing.assert_close(got, expected(width, wanted), rtol=0, atol=Grid(CLIENTS_HERE).error)
        assert torch.equal(got, results[0])
    assert ledgers[0] == ledgers[1] == ledgers[2]


@pytest.mark.parametrize("wanted", [False, True], ids=["all", "owned"])
def test_places_apart_have_the_sums_and_the_bytes_of_one_process(wanted: bool) -> None:
    fed = Federation(WORKERS[2], simulated=True)
    local = sums(fed, 4, wanted)
    apart = run_apart(WORKERS[2], lambda fed: sums(fed, 4, wanted), simulated=True)
    assert all(torch.equal(apart[h][0][0], part) for h, part in enumerate(local))
    between = [e for e in fed.ledger.to_json()["entries"] if e["from"] != e["to"]]
    assert apart[SERVER_INDEX][1].ledger.to_json()["entries"] == between


def clients_with(node: int) -> tuple[int, ...]:
    return tuple(k for k in range(CLIENTS_HERE) if node in IDS[k])


@pytest.mark.parametrize("wanted", [False, True], ids=["all", "owned"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_bytes_are_those_of_the_ciphertexts(width: int, wanted: bool) -> None:
    """Narrow rows of the same senders and receivers share one, which fit; a row that is wide has its own."""
    fed = Federation(WORKERS[0], simulated=True)
    sums(fed, width, wanted)
    every = sorted({int(node) for ids in IDS for node in ids})
    receivers = {v: tuple(k for k in clients_with(v) if not wanted or v % CLIENTS_HERE == k) for v in every}
    groups = {(clients_with(v), receivers[v], 0 if width == 4 else v) for v in every}
    pieces = 2 if width == 2100 else 1
    up, down = (pieces * sum(len(group[way]) for group in groups) for way in (0, 1))
    named = sum(map(len, IDS))
    sizes = {
        "e/key_request": 8 * 3, "e/secret_key": 3 * SUM.secret_bytes, "e/ids": 8 * named,
        "e/rows": up * SUM.ciphertext_bytes, "e/sums": down * SUM.ciphertext_bytes,
    }  # fmt: skip
    if wanted:
        sizes["e/wanted_ids"] = 8 * sum(int(owned(k).sum()) for k in range(CLIENTS_HERE))
    if width == 4:
        sizes |= {"e/packing": 8 * named, "e/ciphertext_ids": 8 * up}
        if wanted:
            sizes["e/wanted_ciphertext_ids"] = 8 * down
    records = {entry.name: entry for entry in fed.ledger.entries if entry.name != "control"}
    assert {name: entry.bytes for name, entry in records.items() if name != "e/public_context"} == sizes
    assert {name for name, entry in records.items() if entry.protection == "simulated"} == {
        "e/secret_key", "e/rows", "e/sums",
    }  # fmt: skip


def test_the_cost_is_reported_before_anything_is_encrypted() -> None:
    fed, messages = Federation(WORKERS[0], simulated=True), []
    fed.on_message = lambda text: messages.append((text, [entry.name for entry in fed.ledger.entries]))
    stages: list[str] = []
    fed.on_stage = stages.append
    sums(fed, 1500, False)
    ((text, before),) = messages
    count = sum(map(len, IDS))
    assert text.startswith(f"e: {count} simulated ciphertexts to the server and {count} back: ")
    assert text.endswith(f"{2 * count * SUM.ciphertext_bytes / 1e6:.0f} MB")
    assert "e/rows" not in before
    assert stages == ["e: making and sending keys", "e: encrypting, summing and decrypting"]


def test_more_ciphertexts_than_a_process_may_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that go up, their sums and all that come back, and the numbers of the larger."""
    up = down = sum(map(len, IDS))
    size = (up + down + len({*np.concatenate(IDS)})) * SUM.ciphertext_bytes + up * SUM.slots * 8
    monkeypatch.setattr(module, "MAX_BYTES", size)
    sums(Federation(WORKERS[0], simulated=True), 1500, False)
    monkeypatch.setattr(module, "MAX_BYTES", size - 1)
    with pytest.raises(
        InputError, match=f"encrypted sums of {up} ciphertexts up and {down} down take 0.0 GiB"
    ):
        sums(Federation(WORKERS[0], simulated=True), 1500, False)


@pytest.mark.parametrize("rows_in_one", [1, 3, 64])
def test_rows_share_a_ciphertext_in_ascending_order_with_those_of_the_same_clients(rows_in_one: int) -> None:
    """300 nodes, whose clients send in any order of nodes: by a plain loop."""
    rng = np.random.default_rng(0)
    held: Sequence[np.ndarray] = [rng.permutation(300)[:250] for _ in range(3)]
    table, _ = make_table([(torch.from_numpy(ids), torch.tensor([len(ids)])) for ids in held])
    names, open_ones = [], {}
    for node in table.ids.tolist():
        clients = tuple(k for k in range(3) if node in held[k])
        name, count = open_ones.get(clients, (node, rows_in_one))
        name, count = (node, 1) if count == rows_in_one else (name, count + 1)
        open_ones[clients] = name, count
        names.append(name)
    assert name_ciphertexts(table, None, rows_in_one).tolist() == names


def test_a_row_lies_in_its_clients_ciphertext_at_its_rank() -> None:
    ids, client = torch.tensor([1, 4, 6, 4, 6, 9]), torch.tensor([0, 0, 0, 1, 1, 1])
    places = place_rows(RowIds(ids, client), torch.tensor([1, 4, 1, 4, 1, 1]))
    lies = [
        (int(places.ids.client[u]), int(places.ids.ids[u]), p)
        for u, p in zip(places.unit, places.place.tolist(), strict=True)
    ]
    assert lies == [(0, 1, 0), (0, 4, 0), (0, 1, 1), (1, 4, 0), (1, 1, 0), (1, 1, 1)]
