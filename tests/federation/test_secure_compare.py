"""Pairs of clients: what each end learns, what the ledger says, and what is refused; real or simulated, in
every placement."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placements import run_apart

from graphfed.federation import CLIENTS, Federation, Located
from graphfed.federation.link import SERVER_END
from graphfed.federation.secure_compare import (
    PairRows,
    compare_pairs,
    open_pairs,
    tell,
)

Edges = list[tuple[int, int]]
Hosts = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class Graph:
    """Pairs of K clients, and which of them are asked, call after call."""

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
def placed(draw: st.DrawFn) -> tuple[Graph, Hosts]:
    graph = draw(graphs())
    k = graph.clients
    cuts = sorted(draw(st.sets(st.integers(1, k - 1)))) if k > 1 else []
    return graph, [tuple(range(a, b)) for a, b in zip([0, *cuts], [*cuts, k], strict=True)]


def ends_of(edges: Edges, hosted: Sequence[int]) -> Edges:
    """(client, other) of every row of a host, sorted."""
    both = [*edges, *((v, u) for u, v in edges)]
    return sorted((me, other) for me, other in both if me in hosted)


def pair_rows(fed: Federation, graph: Graph) -> Located:
    parts = []
    for h in fed.here:
        told = torch.tensor(ends_of(graph.edges, fed.hosts[h]), dtype=torch.int64).reshape(-1, 2)
        parts.append(PairRows(told[:, 0] - fed.hosts[h][0], told[:, 1]))
    return fed.locate(CLIENTS, "pairs", parts)


def at_rows(fed: Federation, graph: Graph, edges: Edges) -> Located:
    """Positions of some pairs' rows."""
    parts = []
    for h in fed.here:
        rows = {pair: row for row, pair in enumerate(ends_of(graph.edges, fed.hosts[h]))}
        parts.append(torch.tensor([rows[p] for p in ends_of(edges, fed.hosts[h])], dtype=torch.int64))
    return fed.locate(CLIENTS, "which", parts)


def of_rows(fed: Federation, edges: Edges, value: Any, dtype: torch.dtype = torch.int64) -> Located:
    """A value for each asked row: value(client, other), a number or a list."""
    like = torch.tensor(value(0, 1), dtype=dtype)[None][:0]
    parts = []
    for h in fed.here:
        rows = [torch.tensor(value(*pair), dtype=dtype) for pair in ends_of(edges, fed.hosts[h])]
        parts.append(torch.stack(rows) if rows else like)
    return fed.locate(CLIENTS, "values", parts)


def told(fed: Federation, x: Located) -> list[list[Any]]:
    return [part.tolist() for part in x.parts]


def expected(fed: Federation, edges: Edges, value: Any) -> list[list[Any]]:
    return [[value(*pair) for pair in ends_of(edges, fed.hosts[h])] for h in fed.here]


def asks(u: int, v: int) -> bool:
    """One end of each pair, now the lower one and now the higher."""
    return (u < v) == bool((u + v) % 2)


def degree(graph: Graph, k: int) -> int:
    return sum(k in edge for edge in graph.edges)


def all_told(fed: Federation, graph: Graph, simulated: bool = True) -> list[Any]:
    """Everything that pairs can do, on every call's pairs, checked against plain Python: what they learn."""
    pairs = open_pairs(fed, pair_rows(fed, graph), name="pairs", simulated=simulated)
    learnt = []
    for edges in graph.calls:
        which = at_rows(fed, graph, edges)
        x = of_rows(fed, edges, lambda u, v: [100 * u + v, 1])
        got = tell(fed, pairs, x, which, name="told")
        assert told(fed, got) == expected(fed, edges, lambda u, v: [100 * v + u, 1])
        numbers = of_rows(fed, edges, lambda u, _: degree(graph, u))
        order = compare_pairs(fed, pairs, numbers, which, bits=4, reveal="order", name="degrees")
        assert told(fed, order) == expected(
            fed, edges, lambda u, v: int(np.sign(degree(graph, u) - degree(graph, v)))
        )
        asker = of_rows(fed, edges, asks, torch.bool)
        more = compare_pairs(fed, pairs, numbers, which, bits=3, reveal="greater", asker=asker, name="more")
        assert told(fed, more) == expected(
            fed,
            edges,
            lambda u, v: int(
                (degree(graph, u) > degree(graph, v)) if asks(u, v) else (degree(graph, v) > degree(graph, u))
            ),
        )
        learnt += [told(fed, x) for x in (got, order, more)]
    return learnt


@settings(max_examples=60, deadline=None)
@given(case=placed())
def test_simulated_pairs_learn_what_plain_python_says_and_the_ledger_is_the_same_in_any_placement(
    case: tuple[Graph, Hosts],
) -> None:
    graph, hosts = case
    stacked, fed = Federation([range(graph.clients)]), Federation(hosts)
    all_told(stacked, graph)
    all_told(fed, graph)
    assert fed.ledger.to_json() == stacked.ledger.to_json()


def every_ledger(hosts: Hosts, apart: dict[int, tuple[Any, Federation]]) -> dict[str, Any]:
    """The ledgers of separate places put together."""
    merged = apart[SERVER_END][1].ledger
    for h in range(len(hosts)):
        merged.add_peers(apart[h][1].ledger)
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
PLACEMENTS: list[Hosts] = [[range(6)], [(0, 1), (2,), (3, 4, 5)], [(k,) for k in range(6)]]  # type: ignore[list-item]
real = pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "real"])


@real
@pytest.mark.parametrize("hosts", PLACEMENTS, ids=["stacked", "gateways", "one at a time"])
def test_real_pairs_learn_what_simulated_ones_learn_at_the_same_bytes(hosts: Hosts, simulated: bool) -> None:
    if not simulated:
        pytest.importorskip("cryptography", reason="secure protocols need the extra 'secure'")
    stacked, fed = Federation([range(6)]), Federation(hosts)
    all_told(stacked, TRIANGLE_AND_TAIL)
    all_told(fed, TRIANGLE_AND_TAIL, simulated)
    assert renamed(fed.ledger.to_json()) == stacked.ledger.to_json()


@real
@pytest.mark.parametrize("hosts", PLACEMENTS[1:], ids=["gateways", "one each"])
def test_in_places_apart_they_learn_the_same_at_the_same_bytes(hosts: Hosts, simulated: bool) -> None:
    if not simulated:
        pytest.importorskip("cryptography", reason="secure protocols need the extra 'secure'")
    stacked = Federation([range(6)])
    all_told(stacked, TRIANGLE_AND_TAIL)
    apart = run_apart(hosts, lambda fed: all_told(fed, TRIANGLE_AND_TAIL, simulated))
    assert renamed(every_ledger(hosts, apart)) == stacked.ledger.to_json()
