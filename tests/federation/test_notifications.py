"""Notifications between pairs of clients reach the selected clients and no others, in every placement."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import run_apart

from graphfed.federation import CLIENTS, Federation
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.secure.notifications import notify, read_notifications
from graphfed.federation.secure.pairs import PairRows, open_pairs
from graphfed.federation.wire import WireError

PairList = list[tuple[int, int]]
Case = tuple[int, PairList, PairList, list[tuple[int, ...]]]


@st.composite
def notifications(draw: st.DrawFn) -> Case:
    """Clients; the rows (client, other) of their pairs, sorted; the selected rows; and the workers."""
    n = draw(st.integers(1, 6))
    every = list(combinations(range(n), 2))
    edges = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    rows_of_pairs = sorted([*edges, *((v, u) for u, v in edges)])
    selected = draw(st.lists(st.sampled_from(rows_of_pairs), unique=True)) if rows_of_pairs else []
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    return n, rows_of_pairs, sorted(selected), [tuple(range(a, b)) for a, b in pairwise([0, *cuts, n])]


def notified(fed: Federation, rows_of_pairs: PairList, selected: PairList) -> PairList:
    """The rows (client, other) that received a notification, at the workers here."""
    rows, which, local_rows = [], [], []
    for h in fed.here:
        local = [row for row in rows_of_pairs if row[0] in fed.workers[h]]
        table = torch.tensor(local, dtype=torch.int64).reshape(-1, 2)
        rows.append(PairRows(table[:, 0] - fed.workers[h][0], table[:, 1]))
        which.append(torch.tensor([local.index(row) for row in selected if row in local], dtype=torch.int64))
        local_rows.append(local)
    pairs = open_pairs(fed, fed.locate(CLIENTS, "rows", rows), name="pairs")
    received = notify(fed, pairs, fed.locate(CLIENTS, "which", which), name="note")
    for part in received.parts:
        assert (part.diff() > 0).all()
    return [
        local[row] for local, part in zip(local_rows, received.parts, strict=True) for row in part.tolist()
    ]


def check(fed: Federation, received: PairList, selected: PairList, here: Sequence[int]) -> None:
    assert sorted(received) == sorted((v, u) for u, v in selected if v in here)
    (entry,) = (e for e in fed.ledger.entries if e.name == "note")
    for k in range(fed.num_clients):
        assert entry.sent[k] == (4 * sum(u == k for u, _ in selected) if k in here else 0)
        assert entry.received[k] == (4 * sum(v == k for _, v in selected) if k in here else 0)


@given(notifications())
def test_in_one_process_exactly_the_selected_pairs_are_notified(case: Case) -> None:
    n, rows_of_pairs, selected, workers = case
    for placement in ([tuple(range(n))], [(k,) for k in range(n)], workers):
        fed = Federation(placement)
        check(fed, notified(fed, rows_of_pairs, selected), selected, range(n))


@given(notifications())
@settings(max_examples=30)
def test_in_separate_processes_the_same_pairs_are_notified(case: Case) -> None:
    _, rows_of_pairs, selected, workers = case
    done = run_apart(workers, lambda fed: notified(fed, rows_of_pairs, selected))
    for h, (received, fed) in done.items():
        if h != SERVER_INDEX:
            check(fed, received, selected, workers[h])


@pytest.mark.parametrize("notifications", [b"\0\0\0", b"\1\0\0\0", b"\0\0\0\0\0\0\0\0"])
def test_notifications_of_no_common_pair_are_refused(notifications: bytes) -> None:
    """Clients 0 and 1 on two workers have one pair in common, number 0."""
    fed = Federation([(0,), (1,)])
    rows = [PairRows(torch.tensor([0]), torch.tensor([k])) for k in (1, 0)]
    pairs = open_pairs(fed, fed.locate(CLIENTS, "rows", rows), name="pairs")
    nothing = torch.zeros(0, dtype=torch.int64)
    known = pairs.at_clients.parts[0]
    assert read_notifications(known, nothing, {1: b"\0\0\0\0"}, "cpu")[0].tolist() == [0]
    with pytest.raises(WireError, match=r"from worker 1 \(\d bytes\) do not name some of the 1 pairs"):
        read_notifications(known, nothing, {1: notifications}, "cpu")
