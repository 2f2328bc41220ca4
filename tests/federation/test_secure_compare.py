"""Pairs of clients: what each client learns, what the ledger records, and what is refused; real or simulated,
in every placement."""

import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import MemoryLink, run_apart
from scipy import stats

from graphfed.crypto.compare import bytes_of_comparison, bytes_of_opening, bytes_of_opening_less
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.ot import bytes_of_set_up
from graphfed.crypto.ring import subtract
from graphfed.crypto.session import TAG_BYTES, Simulated
from graphfed.errors import InputError, PlaceError
from graphfed.federation import CLIENTS, Federation, Ledger, Located
from graphfed.federation.link import SERVER_INDEX
from graphfed.federation.secure import pair_protocols as module
from graphfed.federation.secure.compare import at_most_pairs, compare_pairs
from graphfed.federation.secure.pair_transfers import send, swap
from graphfed.federation.secure.pairs import PairRows, Pairs, open_pairs, select_pairs
from graphfed.runtime.processes import Workers

Edges = list[tuple[int, int]]
Groups = Sequence[tuple[int, ...]]


needs_secure = pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None, reason="secure protocols need the extra 'secure'"
)
real = pytest.mark.parametrize(
    "simulated", [True, pytest.param(False, marks=needs_secure)], ids=["simulated", "real"]
)


@dataclass(frozen=True)
class Graph:
    """Pairs of K clients, and which of them are selected, call after call."""

    clients: int
    edges: Edges
    calls: list[Edges]


@st.composite
def graphs(draw: st.DrawFn, largest: int = 7) -> Graph:
    clients = draw(st.integers(1, largest))
    every = [(u, v) for u in range(clients) for v in range(u + 1, clients)]
    edges = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
    some = st.lists(st.sampled_from(edges), unique=True) if edges else st.just([])
    return Graph(clients, edges, draw(st.lists(some, min_size=1, max_size=3)))


@st.composite
def placed(draw: st.DrawFn, largest: int = 7) -> tuple[Graph, Groups]:
    graph = draw(graphs(largest))
    k = graph.clients
    cuts = sorted(draw(st.sets(st.integers(1, k - 1)))) if k > 1 else []
    return graph, [tuple(range(a, b)) for a, b in zip([0, *cuts], [*cuts, k], strict=True)]


def ends_of(edges: Edges, of_worker: Sequence[int]) -> Edges:
    """(client, other) of every row of a worker, sorted."""
    both = [*edges, *((v, u) for u, v in edges)]
    return sorted((me, other) for me, other in both if me in of_worker)


def pair_rows(fed: Federation, graph: Graph) -> Located:
    parts = []
    for h in fed.here:
        message = torch.tensor(ends_of(graph.edges, fed.workers[h]), dtype=torch.int64).reshape(-1, 2)
        parts.append(PairRows(message[:, 0] - fed.workers[h][0], message[:, 1]))
    return fed.locate(CLIENTS, "pairs", parts)


def at_rows(fed: Federation, graph: Graph, edges: Edges) -> Located:
    """Positions of some pairs' rows."""
    parts = []
    for h in fed.here:
        rows = {pair: row for row, pair in enumerate(ends_of(graph.edges, fed.workers[h]))}
        parts.append(torch.tensor([rows[p] for p in ends_of(edges, fed.workers[h])], dtype=torch.int64))
    return fed.locate(CLIENTS, "which", parts)


def of_rows(fed: Federation, edges: Edges, value: Any, dtype: torch.dtype = torch.int64) -> Located:
    """A value for each selected row: value(client, other), a number or a list."""
    like = torch.tensor(value(0, 1), dtype=dtype)[None][:0]
    parts = []
    for h in fed.here:
        rows = [torch.tensor(value(*pair), dtype=dtype) for pair in ends_of(edges, fed.workers[h])]
        parts.append(torch.stack(rows) if rows else like)
    return fed.locate(CLIENTS, "values", parts)


def received_rows(fed: Federation, x: Located) -> list[list[Any]]:
    return [part.tolist() for part in x.parts]


def expected(fed: Federation, edges: Edges, value: Any) -> list[list[Any]]:
    return [[value(*pair) for pair in ends_of(edges, fed.workers[h])] for h in fed.here]


def asks(u: int, v: int) -> bool:
    """One end of each pair, now the lower one and now the higher."""
    return (u < v) == bool((u + v) % 2)


def degree(graph: Graph, k: int) -> int:
    return sum(k in edge for edge in graph.edges)


def all_comparisons(fed: Federation, graph: Graph) -> list[Any]:
    """Everything that pairs can do, on every call's pairs, checked against plain Python: what they learn."""
    pairs = open_pairs(fed, pair_rows(fed, graph), name="pairs")
    learned = []
    for edges in graph.calls:
        which = at_rows(fed, graph, edges)
        x = of_rows(fed, edges, lambda u, v: [100 * u + v, 1])
        got = swap(fed, pairs, x, which, name="swapped")
        assert received_rows(fed, got) == expected(fed, edges, lambda u, v: [100 * v + u, 1])
        numbers = of_rows(fed, edges, lambda u, _: degree(graph, u))
        order = compare_pairs(fed, pairs, numbers, which, bits=4, reveal="order", name="degrees")
        assert received_rows(fed, order) == expected(
            fed, edges, lambda u, v: int(np.sign(degree(graph, u) - degree(graph, v)))
        )
        asker = of_rows(fed, edges, asks, torch.bool)
        more = compare_pairs(fed, pairs, numbers, which, bits=3, reveal="greater", asker=asker, name="more")
        assert received_rows(fed, more) == expected(
            fed,
            edges,
            lambda u, v: int(
                (degree(graph, u) > degree(graph, v)) if asks(u, v) else (degree(graph, v) > degree(graph, u))
            ),
        )
        learned += [received_rows(fed, x) for x in (got, order, more)]
    return learned


@settings(max_examples=60)
@given(case=placed())
def test_simulated_pairs_learn_what_plain_python_says_and_the_ledger_is_the_same_in_any_placement(
    case: tuple[Graph, Groups],
) -> None:
    graph, workers = case
    stacked, fed = (Federation(h, simulated=True) for h in ([range(graph.clients)], workers))
    all_comparisons(stacked, graph)
    all_comparisons(fed, graph)
    assert fed.ledger.to_json() == stacked.ledger.to_json()


@needs_secure
@settings(max_examples=6)
@given(case=placed(largest=4))
def test_real_pairs_of_any_graph_learn_what_plain_python_says_at_the_bytes_of_the_simulation(
    case: tuple[Graph, Groups],
) -> None:
    graph, workers = case
    stacked, fed = Federation([range(graph.clients)], simulated=True), Federation(workers)
    all_comparisons(stacked, graph)
    all_comparisons(fed, graph)
    assert renamed(fed.ledger.to_json()) == stacked.ledger.to_json()


@pytest.mark.parametrize(
    "workers", [[range(24)], [range(10), range(10, 24)]], ids=["stacked", "several each"]
)
def test_a_handful_of_many_pairs_is_selected_before_and_after_all_of_them(workers: Groups) -> None:
    every = [(u, v) for u in range(24) for v in range(u + 1, 24)]
    for some in (every[7:9], every[:1], every[100:110]):
        graph = Graph(24, every, [some, every, some])
        fed = Federation(workers)
        pairs = open_pairs(fed, pair_rows(fed, graph), name="pairs")
        for edges in graph.calls:
            x = of_rows(fed, edges, lambda u, v: 100 * u + v)
            got = swap(fed, pairs, x, at_rows(fed, graph, edges), name="swapped")
            assert received_rows(fed, got) == expected(fed, edges, lambda u, v: 100 * v + u)


def every_ledger(workers: Groups, apart: dict[int, tuple[Any, Federation]]) -> dict[str, Any]:
    """The ledgers of separate places put together."""
    merged = apart[SERVER_INDEX][1].ledger
    for h in range(len(workers)):
        merged.add_remote(apart[h][1].ledger)
    return merged.to_json()


def renamed(ledger: dict[str, Any]) -> dict[str, Any]:
    """A ledger without the one thing in which the real form differs."""
    hidden = {"encrypted": "simulated", "public": "simulated"}
    entries = [
        entry | {"protection": hidden.get(entry["protection"], entry["protection"])}
        for entry in ledger["entries"]
    ]
    return ledger | {"entries": entries}


TRIANGLE_AND_TAIL = Graph(
    6,
    [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (1, 4)],
    [[(0, 2), (2, 3), (1, 4)], [(2, 3)], [], [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (1, 4)], [(1, 4)]],
)
PLACEMENTS: list[Groups] = [[range(6)], [(0, 1), (2,), (3, 4, 5)], [(k,) for k in range(6)]]  # type: ignore[list-item]


@real
@pytest.mark.parametrize("workers", PLACEMENTS, ids=["stacked", "several each", "one at a time"])
def test_real_pairs_learn_what_simulated_ones_learn_at_the_same_bytes(
    workers: Groups, simulated: bool
) -> None:
    stacked, fed = Federation([range(6)], simulated=True), Federation(workers, simulated=simulated)
    all_comparisons(stacked, TRIANGLE_AND_TAIL)
    all_comparisons(fed, TRIANGLE_AND_TAIL)
    assert renamed(fed.ledger.to_json()) == stacked.ledger.to_json()


@real
@pytest.mark.parametrize("workers", PLACEMENTS[1:], ids=["several each", "one each"])
def test_in_places_apart_they_learn_the_same_at_the_same_bytes(workers: Groups, simulated: bool) -> None:
    stacked = Federation([range(6)], simulated=True)
    all_comparisons(stacked, TRIANGLE_AND_TAIL)
    apart = run_apart(workers, lambda fed: all_comparisons(fed, TRIANGLE_AND_TAIL), simulated=simulated)
    assert renamed(every_ledger(workers, apart)) == stacked.ledger.to_json()


@pytest.mark.slow
def test_in_processes_real_pairs_learn_what_simulated_ones_learn_at_the_same_bytes() -> None:
    pytest.importorskip("cryptography", reason="secure protocols need the extra 'secure'")
    stacked, workers = Federation([range(6)], simulated=True), PLACEMENTS[1]
    all_comparisons(stacked, TRIANGLE_AND_TAIL)
    with Workers(workers) as clients:
        found = clients.run("test_secure_compare:in_a_process", dict.fromkeys([SERVER_INDEX, 0, 1, 2]))
    merged = Ledger.from_json(json.loads(found[SERVER_INDEX]))
    for h in range(3):
        merged.add_remote(Ledger.from_json(json.loads(found[h])))
    assert renamed(merged.to_json()) == stacked.ledger.to_json()


def in_a_process(fed: Federation, arguments: Any, log: Any) -> str:
    """It checks there what the pairs learn; the ledger is what comes back."""
    all_comparisons(fed, TRIANGLE_AND_TAIL)
    return json.dumps(fed.ledger.to_json())


@needs_secure
@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "real"])
def test_many_pairs_between_two_workers_take_as_many_messages_as_one(
    simulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = [(0, 1, 2), (3, 4, 5)]
    between = [(u, v) for u in workers[0] for v in workers[1]]
    sent: list[list[str]] = []
    plain = MemoryLink.send

    def counting(link: MemoryLink, to: int, key: str, message: bytes) -> None:
        sent[-1].append(key)
        plain(link, to, key, message)

    monkeypatch.setattr(MemoryLink, "send", counting)
    for edges in (between[:1], between):
        graph = Graph(6, edges, [edges, edges])
        sent.append([])
        run_apart(workers, lambda fed, graph=graph: all_comparisons(fed, graph), simulated=simulated)
    assert sorted(sent[0]) == sorted(sent[1])


# ---- one pair ----------------------------------------------------------------------------------------------

PAIR = Graph(2, [(0, 1)], [])


def pair_of(fed: Federation) -> tuple[Pairs, Located]:
    return open_pairs(fed, pair_rows(fed, PAIR), name="pair"), at_rows(fed, PAIR, PAIR.edges)


def compared(
    fed: Federation, pairs: Pairs, which: Located, local: int, remote: int, asker: int | None
) -> Any:
    numbers = of_rows(fed, PAIR.edges, lambda u, _: (local, remote)[u])
    asks = None if asker is None else of_rows(fed, PAIR.edges, lambda u, _: u == asker, torch.bool)
    reveal: Any = "order" if asker is None else "greater"
    found = compare_pairs(fed, pairs, numbers, which, bits=4, reveal=reveal, asker=asks, name="c")
    return [value for part in found.parts for value in part.tolist()]


@real
def test_all_pairs_of_4_bit_numbers_compare_as_numbers_do(simulated: bool) -> None:
    fed = Federation([(0, 1)], simulated=simulated)
    pairs, which = pair_of(fed)
    for x, y in product(range(16), repeat=2):
        sign = (x > y) - (x < y)
        assert compared(fed, pairs, which, x, y, None) == [sign, -sign]
        assert compared(fed, pairs, which, x, y, 0) == [int(x > y)] * 2
        assert compared(fed, pairs, which, x, y, 1) == [int(y > x)] * 2


@real
def test_a_session_is_recorded_once_and_comparisons_by_their_formulas(simulated: bool) -> None:
    fed = Federation([(0,), (1,)], simulated=simulated)
    pairs, which = pair_of(fed)
    for _ in range(3):
        compared(fed, pairs, which, 3, 5, None)
        compared(fed, pairs, which, 3, 5, 0)
    entries = {e.name: e for e in fed.ledger.entries}
    assert entries["pair/session"].sent.tolist() == list(bytes_of_set_up())
    each = [
        3 * (2 * cost + bytes_of_opening(1) + bytes_of_opening_less(1)) for cost in bytes_of_comparison(1, 4)
    ]
    assert entries["c/compare"].sent.tolist() == entries["c/compare"].received.tolist()[::-1] == each
    hidden = ("simulated", "simulated") if simulated else ("public", "encrypted")
    assert (entries["pair/session"].protection, entries["c/compare"].protection) == hidden


# ---- rows one way, gradients, protocols of one's own -------------------------------------------------------


def one_way(fed: Federation, graph: Graph) -> list[list[Any]]:
    """The client that asks sends a row to the one that does not."""
    pairs = open_pairs(fed, pair_rows(fed, graph), name="pairs")
    learned = []
    for edges in graph.calls:
        which, asker = at_rows(fed, graph, edges), of_rows(fed, edges, asks, torch.bool)
        x = of_rows(fed, edges, lambda u, v: [100 * u + v, 7])
        given, wanted, rows = fed.clients.run(ends_that_ask, which, asker, x, outputs=3)
        got = send(fed, pairs, rows, given, wanted, name="offer")
        assert received_rows(fed, got) == [
            [[100 * v + u, 7] for u, v in ends_of(edges, fed.workers[h]) if not asks(u, v)] for h in fed.here
        ]
        learned += [received_rows(fed, got)]
    return learned


def ends_that_ask(which: torch.Tensor, asker: torch.Tensor, x: torch.Tensor) -> Any:
    return which[asker], which[~asker], x[asker]


@settings(max_examples=60)
@given(case=placed())
def test_a_row_that_one_client_sends_reaches_the_other_and_costs_one_direction_only(
    case: tuple[Graph, Groups],
) -> None:
    graph, workers = case
    stacked, fed = Federation([range(graph.clients)]), Federation(workers)
    one_way(stacked, graph)
    one_way(fed, graph)
    assert fed.ledger.to_json() == stacked.ledger.to_json()
    assert fed.ledger.bytes_of("offer") == 16 * sum(len(edges) for edges in graph.calls)


@pytest.mark.parametrize("workers", PLACEMENTS[1:], ids=["several each", "one each"])
def test_rows_one_way_are_the_same_in_places_apart(workers: Groups) -> None:
    stacked = Federation([range(6)])
    one_way(stacked, TRIANGLE_AND_TAIL)
    apart = run_apart(workers, lambda fed: one_way(fed, TRIANGLE_AND_TAIL))
    assert every_ledger(workers, apart) == stacked.ledger.to_json()


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x**2).sum()


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.double().requires_grad_()


@pytest.mark.parametrize("workers", PLACEMENTS, ids=["stacked", "several each", "one at a time"])
def test_the_gradient_of_a_swapped_row_is_sent_back_to_its_sender(workers: Groups) -> None:
    """d/dx of the sum of squares of what every client received: 2 x at each client."""
    fed, edges = Federation(workers), TRIANGLE_AND_TAIL.edges
    pairs = open_pairs(fed, pair_rows(fed, TRIANGLE_AND_TAIL), name="pairs")
    x = fed.clients.run(leaf, of_rows(fed, edges, lambda u, v: [10 * u + v]))
    with fed.tape():
        got = swap(fed, pairs, x, at_rows(fed, TRIANGLE_AND_TAIL, edges), name="swapped", grad=True)
        fed.backward(fed.clients.run(squares, got))
    assert received_rows(fed, fed.gradients(x)) == expected(fed, edges, lambda u, v: [2.0 * (10 * u + v)])
    assert fed.ledger.bytes_of("swapped/grad") == fed.ledger.bytes_of("swapped") == 2 * 8 * len(edges)


def run_on_pairs(fed: Federation, pairs: Pairs, parties: Located, which: Located, name: str) -> Located:
    selected = fed.clients.run(select_pairs, pairs.at_clients, which)
    return module.run_selected(fed, pairs, selected, parties, name, "plaintext")


def subtracting(which: torch.Tensor, numbers: torch.Tensor, first: torch.Tensor) -> list[Any]:
    """A simulated subtraction for every row."""
    words = numbers.numpy().astype(np.uint32).reshape(-1, 1)
    return [subtract(Simulated(bool(f)), own) for f, own in zip(first, words, strict=True)]


@pytest.mark.parametrize("workers", PLACEMENTS, ids=["stacked", "several each", "one at a time"])
def test_pairs_run_any_two_party_protocol(workers: Groups) -> None:
    fed, edges = Federation(workers), TRIANGLE_AND_TAIL.edges
    pairs = open_pairs(fed, pair_rows(fed, TRIANGLE_AND_TAIL), name="pairs")
    which = at_rows(fed, TRIANGLE_AND_TAIL, edges)
    numbers = of_rows(fed, edges, lambda u, _: u * u)
    first = of_rows(fed, edges, lambda u, v: u < v, torch.bool)
    parties = fed.clients.run(subtracting, which, numbers, first)
    got = run_on_pairs(fed, pairs, parties, which, "difference")
    found = [[int(one[0]) for one in part] for part in got.parts]
    assert found == expected(fed, edges, lambda u, v: min(u, v) ** 2 - max(u, v) ** 2)
    assert fed.ledger.bytes_of("difference") == len(edges) * 2 * (TAG_BYTES + 4)


def test_a_protocol_has_a_party_for_each_client_of_a_pair() -> None:
    fed = Federation([(0, 1)], simulated=True)
    pairs, which = pair_of(fed)
    for count in (1, 3):
        parties = fed.locate(CLIENTS, "parties", [[subtract(Simulated(True), np.zeros(1, "<u4"))] * count])
        with pytest.raises(PlaceError, match=f"{count} parties for 2 selected pairs"):
            run_on_pairs(fed, pairs, parties, which, "c")


# ---- acceptance --------------------------------------------------------------------------------------------


def all_accepted(fed: Federation, graph: Graph, temperature: float, seed: int = 3) -> Any:
    """The client that asks has 8; the other 8 + 3 (u + v): what each learns, the same at both clients."""
    pairs = open_pairs(fed, pair_rows(fed, graph), name="pairs")
    learned: dict[tuple[int, ...], int] = {}
    for number, edges in enumerate(graph.calls):
        which, asker = at_rows(fed, graph, edges), of_rows(fed, edges, asks, torch.bool)
        numbers = of_rows(fed, edges, lambda u, v: 8 if asks(u, v) else 8 + 3 * (u + v))
        found = at_most_pairs(
            fed, pairs, numbers, which,
            bits=6, asker=asker, temperature=temperature, seed=seed + number, name="move",
        )  # fmt: skip
        for h, part in zip(fed.here, found.parts, strict=True):
            for (u, v), bit in zip(ends_of(edges, fed.workers[h]), part.tolist(), strict=True):
                assert learned.setdefault((number, min(u, v), max(u, v)), bit) == bit
    return learned


@settings(max_examples=40)
@given(case=placed(), seed=st.integers(0, 2**40))
def test_simulated_acceptances_are_the_same_in_any_placement(case: tuple[Graph, Groups], seed: int) -> None:
    graph, workers = case
    stacked, fed = (Federation(h, simulated=True) for h in ([range(graph.clients)], workers))
    assert all_accepted(fed, graph, 9.0, seed) == all_accepted(stacked, graph, 9.0, seed)
    assert fed.ledger.to_json() == stacked.ledger.to_json()


def test_simulated_acceptances_follow_metropolis_and_depend_on_the_seed() -> None:
    """Of 1000 draws of a pair with a difference of 3; false alarm: 1e-6."""
    graph = Graph(2, [(0, 1)], [[(0, 1)]] * 1000)
    feds = [Federation([(0, 1)], simulated=True) for _ in range(2)]
    drawn = [
        list(all_accepted(fed, graph, 3.0, seed).values()) for fed, seed in zip(feds, (0, 10**6), strict=True)
    ]
    assert drawn[0] != drawn[1]
    for bits in drawn:
        assert stats.binomtest(sum(bits), 1000, math.exp(-1)).pvalue > 1e-6


@needs_secure
@pytest.mark.parametrize("workers", PLACEMENTS, ids=["stacked", "several each", "one at a time"])
@pytest.mark.parametrize(("temperature", "bit"), [(1e9, 1), (0.05, 0)], ids=["hot", "cold"])
@pytest.mark.sampled(5)
def test_where_no_draw_matters_a_real_acceptance_is_the_simulated_one_at_the_same_bytes(
    workers: Groups, temperature: float, bit: int
) -> None:
    stacked, fed = Federation([range(6)], simulated=True), Federation(workers)
    found = all_accepted(fed, TRIANGLE_AND_TAIL, temperature)
    assert {*found.values()} == {bit}
    assert found == all_accepted(stacked, TRIANGLE_AND_TAIL, temperature)
    assert renamed(fed.ledger.to_json()) == stacked.ledger.to_json()


@needs_secure
def test_in_separate_processes_both_clients_of_a_real_acceptance_learn_the_same_bit() -> None:
    workers = PLACEMENTS[1]
    apart = run_apart(workers, lambda fed: all_accepted(fed, TRIANGLE_AND_TAIL, 9.0))
    for key in {key for h in range(3) for key in apart[h][0]}:
        assert len({apart[h][0][key] for h in range(3) if key in apart[h][0]}) == 1
    stacked = Federation([range(6)], simulated=True)
    all_accepted(stacked, TRIANGLE_AND_TAIL, 9.0)
    assert renamed(every_ledger(workers, apart)) == stacked.ledger.to_json()


# ---- what is refused ---------------------------------------------------------------------------------------


def opened(clients: int, client: list[int], other: list[int]) -> Pairs:
    fed = Federation([range(clients)])
    rows = PairRows(torch.tensor(client, dtype=torch.int64), torch.tensor(other, dtype=torch.int64))
    return open_pairs(fed, fed.locate(CLIENTS, "rows", [rows]), name="p")


@pytest.mark.parametrize(
    ("client", "other", "message"),
    [
        ([0, 1], [1], "vectors of one length"),
        ([0, 1, 1], [1, 0, 1], "client 1 is paired with itself"),
        ([1, 0], [0, 1], "sorted by"),
        ([0, 0, 1, 1], [1, 1, 0, 0], "each pair once"),
        ([0], [1], "client 0 lists client 1, which does not list it"),
        ([0, 3], [3, 0], "index the cohort, 0..2"),
        ([0], [3], "the clients are 0..2"),
    ],
)
def test_rows_that_break_their_contract_are_refused(
    client: list[int], other: list[int], message: str
) -> None:
    with pytest.raises(PlaceError, match=message):
        opened(3, client, other)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ([0], "pair of clients 0 and 1 is selected for one of the two only"),
        ([0, 1, 2], "clients 1 and 2 is selected for one"),
        ([1, 0], "ascending"),
        ([0, 4], "0..4 are selected, but there are 4 pairs"),
        ([-1, 0], "-1..0 are selected, but there are 4 pairs"),
    ],
)
def test_positions_that_are_not_those_of_pairs_are_refused(which: list[int], message: str) -> None:
    fed = Federation([range(3)])
    pairs = open_pairs(fed, pair_rows(fed, Graph(3, [(0, 1), (1, 2)], [])), name="p")
    rows = fed.locate(CLIENTS, "which", [torch.tensor(which)])
    x = fed.locate(CLIENTS, "x", [torch.zeros(len(which))])
    with pytest.raises(PlaceError, match=message):
        swap(fed, pairs, x, rows, name="t")
    assert fed.ledger.entries == []


def test_a_row_that_its_receiver_does_not_expect_is_refused() -> None:
    fed = Federation([range(3)])
    pairs = open_pairs(fed, pair_rows(fed, Graph(3, [(0, 1), (1, 2)], [])), name="p")
    given, wanted = (fed.locate(CLIENTS, "rows", [torch.tensor(w)]) for w in ([0, 2], [1]))
    x = fed.locate(CLIENTS, "x", [torch.zeros(2)])
    with pytest.raises(PlaceError, match="2 rows are sent between clients of one worker, but 1 are expected"):
        send(fed, pairs, x, given, wanted, name="t")


def test_rows_that_are_not_one_for_each_pair_are_refused() -> None:
    fed = Federation([(0, 1)], simulated=True)
    pairs, which = pair_of(fed)
    x = fed.locate(CLIENTS, "x", [torch.zeros(3)])
    with pytest.raises(PlaceError, match="where the selected pairs are 2"):
        swap(fed, pairs, x, which, name="t")


@pytest.mark.parametrize(
    ("numbers", "bits", "message"),
    [
        ((300, 1), 8, "client 0 has a number that takes 9 bits, but numbers to compare must"),
        ((1, -4), 8, "client 1 has a number that is negative"),
        ((1, 1), 33, "numbers of 33 bits cannot be compared; use 1 to 32"),
        ((1, 1), 0, "numbers of 0 bits"),
    ],
)
def test_a_number_that_does_not_fit_is_bad_input_before_anything_is_sent(
    numbers: tuple[int, int], bits: int, message: str
) -> None:
    fed = Federation([(0,), (1,)], simulated=True)
    pairs, which = pair_of(fed)
    own = of_rows(fed, PAIR.edges, lambda u, _: numbers[u])
    with pytest.raises(InputError, match=message):
        compare_pairs(fed, pairs, own, which, bits=bits, reveal="order", name="c")
    assert fed.ledger.entries == []


@pytest.mark.parametrize(("bits", "temperature", "message"), [(13, 1.0, "1 to 12 bits"), (4, 0.0, "got 0")])
def test_an_acceptance_that_cannot_be_is_bad_input(bits: int, temperature: float, message: str) -> None:
    fed = Federation([(0, 1)], simulated=True)
    pairs, which = pair_of(fed)
    own, asker = of_rows(fed, PAIR.edges, lambda u, _: u), of_rows(fed, PAIR.edges, asks, torch.bool)
    with pytest.raises(InputError, match=message):
        at_most_pairs(
            fed, pairs, own, which, bits=bits, asker=asker, temperature=temperature, seed=0, name="a"
        )
    assert fed.ledger.entries == [], "it is refused before anything is sent"


@pytest.mark.parametrize("workers", [[(0, 1)], [(0,), (1,)]], ids=["one worker", "two workers"])
def test_exactly_one_client_of_a_pair_asks(workers: Groups) -> None:
    fed = Federation(workers, simulated=True)
    pairs, which = pair_of(fed)
    own, both = (of_rows(fed, PAIR.edges, lambda *_: True, d) for d in (torch.int64, torch.bool))
    with pytest.raises(PlaceError, match="exactly one client of each pair that compares must ask"):
        compare_pairs(fed, pairs, own, which, bits=4, reveal="greater", asker=both, name="c")


def test_askers_are_given_only_if_one_bit_is_opened() -> None:
    fed = Federation([(0, 1)], simulated=True)
    pairs, which = pair_of(fed)
    own, asker = of_rows(fed, PAIR.edges, lambda u, _: u), of_rows(fed, PAIR.edges, asks, torch.bool)
    for reveal, who in (("greater", None), ("order", asker), ("all", None)):
        with pytest.raises(PlaceError, match=f"got '{reveal}'"):
            compare_pairs(fed, pairs, own, which, bits=4, reveal=reveal, asker=who, name="c")  # type: ignore[arg-type]


def test_workers_that_select_different_pairs_are_refused() -> None:
    """Two workers have two pairs in common; one worker selects both, the other selects one."""
    graph, workers = Graph(3, [(0, 1), (0, 2)], []), [(0,), (1, 2)]

    def program(fed: Federation) -> None:
        pairs = open_pairs(fed, pair_rows(fed, graph), name="p")
        edges = graph.edges if 0 in fed.here else graph.edges[:1]
        numbers = of_rows(fed, edges, lambda u, _: u)
        compare_pairs(fed, pairs, numbers, at_rows(fed, graph, edges), bits=4, reveal="order", name="c")

    with pytest.raises(ProtocolError, match="has selected other pairs"):
        run_apart(workers, program, simulated=True)


@needs_secure
def test_a_long_set_up_is_reported_beforehand_with_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONG_SECONDS", 0.03)
    fed, messages = Federation([(0, 1)]), []
    fed.on_message = messages.append
    pairs, which = pair_of(fed)
    for _ in range(2):
        compared(fed, pairs, which, 3, 5, None)
    assert len(messages) == 1
    assert messages[0].startswith("pair/session: setting up 2 parties of sessions")


@needs_secure
def test_more_sessions_than_memory_holds_are_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 3 * module.BYTES_OF_PARTY)
    fed = Federation([range(3)])
    graph = Graph(3, [(0, 1), (1, 2)], [])
    pairs = open_pairs(fed, pair_rows(fed, graph), name="p")
    for edges in (graph.edges[:1], graph.edges[:1], graph.edges):
        which, own = at_rows(fed, graph, edges), of_rows(fed, edges, lambda u, _: u)
        if len(edges) == 1:
            compare_pairs(fed, pairs, own, which, bits=4, reveal="order", name="c")
            continue
        with pytest.raises(InputError, match="use fewer clients, or protocols=simulated"):
            compare_pairs(fed, pairs, own, which, bits=4, reveal="order", name="c")


WITHOUT = """
import sys
sys.modules["cryptography"] = None
import torch
from graphfed.errors import InputError
from graphfed.federation import CLIENTS, Federation
from graphfed.federation.secure.compare import compare_pairs
from graphfed.federation.secure.pairs import PairRows, open_pairs
def compared(fed):
    rows = fed.locate(CLIENTS, "rows", [PairRows(torch.tensor([0, 1]), torch.tensor([1, 0]))])
    pairs = open_pairs(fed, rows, name="p")
    two = fed.locate(CLIENTS, "two", [torch.arange(2)])
    return compare_pairs(fed, pairs, two, two, bits=4, reveal="order", name="c").parts[0].tolist()
assert compared(Federation([(0, 1)], simulated=True)) == [-1, 1]
real = Federation([(0, 1)])
try:
    compared(real)
except InputError as error:
    print(error)
assert not real.ledger.entries
"""


def test_without_the_extra_pairs_compare_simulated_and_real_ones_say_what_to_install() -> None:
    command = [sys.executable, "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "pip install '.[secure]'" in done.stdout, done.stderr
    assert done.returncode == 0
