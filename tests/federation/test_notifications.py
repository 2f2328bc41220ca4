"""Notes between pairs of clients: who is told hears of it, and nobody else; in every placement."""

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

Ends = list[tuple[int, int]]


@st.composite
def notes(draw: st.DrawFn) -> tuple[int, Ends, Ends, list[tuple[int, ...]]]:
    """Clients, the ends (client, other) of their pairs, sorted; those that tell the other; and the hosts."""
    n = draw(st.integers(1, 6))
    every = list(combinations(range(n), 2))
    edges = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    ends = sorted([*edges, *((v, u) for u, v in edges)])
    meant = draw(st.lists(st.sampled_from(ends), unique=True)) if ends else []
    cuts = sorted(draw(st.sets(st.integers(1, n - 1)))) if n > 1 else []
    return n, ends, sorted(meant), [tuple(range(a, b)) for a, b in pairwise([0, *cuts, n])]


def told(fed: Federation, ends: Ends, meant: Ends) -> Ends:
    """Who has heard from whom, (client, other) of the rows at the hosts here."""
    rows, which, mine = [], [], []
    for h in fed.here:
        own = [end for end in ends if end[0] in fed.workers[h]]
        table = torch.tensor(own, dtype=torch.int64).reshape(-1, 2)
        rows.append(PairRows(table[:, 0] - fed.workers[h][0], table[:, 1]))
        which.append(torch.tensor([own.index(end) for end in meant if end in own], dtype=torch.int64))
        mine.append(own)
    pairs = open_pairs(fed, fed.locate(CLIENTS, "rows", rows), name="pairs")
    heard = notify(fed, pairs, fed.locate(CLIENTS, "which", which), name="note")
    for part in heard.parts:
        assert (part.diff() > 0).all()
    return [own[row] for own, part in zip(mine, heard.parts, strict=True) for row in part.tolist()]


def check(fed: Federation, heard: Ends, meant: Ends, here: Sequence[int]) -> None:
    assert sorted(heard) == sorted((v, u) for u, v in meant if v in here)
    (entry,) = (e for e in fed.ledger.entries if e.name == "note")
    for k in range(fed.num_clients):
        assert entry.sent[k] == (4 * sum(u == k for u, _ in meant) if k in here else 0)
        assert entry.received[k] == (4 * sum(v == k for _, v in meant) if k in here else 0)


@given(notes())
def test_in_one_process_exactly_those_hear_that_are_meant(case: tuple[int, Ends, Ends, list]) -> None:
    n, ends, meant, workers = case
    for placement in ([tuple(range(n))], [(k,) for k in range(n)], workers):
        fed = Federation(placement)
        check(fed, told(fed, ends, meant), meant, range(n))


@given(notes())
@settings(max_examples=30)
def test_places_apart_hear_the_same(case: tuple[int, Ends, Ends, list]) -> None:
    _, ends, meant, workers = case
    done = run_apart(workers, lambda fed: told(fed, ends, meant))
    for h, (heard, fed) in done.items():
        if h != SERVER_INDEX:
            check(fed, heard, meant, workers[h])


@pytest.mark.parametrize("notes", [b"\0\0\0", b"\1\0\0\0", b"\0\0\0\0\0\0\0\0"])
def test_notes_that_name_no_shared_pair_are_refused(notes: bytes) -> None:
    """Clients 0 and 1 on two hosts share one pair, number 0."""
    fed = Federation([(0,), (1,)])
    rows = [PairRows(torch.tensor([0]), torch.tensor([k])) for k in (1, 0)]
    pairs = open_pairs(fed, fed.locate(CLIENTS, "rows", rows), name="pairs")
    nobody = torch.zeros(0, dtype=torch.int64)
    known = pairs.at_clients.parts[0]
    assert read_notifications(known, nobody, {1: b"\0\0\0\0"}, "cpu")[0].tolist() == [0]
    with pytest.raises(WireError, match=r"from worker 1 \(\d bytes\) do not name some of the 1 pairs"):
        read_notifications(known, nobody, {1: notes}, "cpu")
