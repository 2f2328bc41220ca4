"""Pairs of clients: what each end learns, what the ledger says, and what is refused; real or simulated, in
every placement."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphfed.federation import CLIENTS, Federation, Located
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
    """A value for each asked row: value(client, other)."""
    return fed.locate(
        CLIENTS,
        "values",
        [
            torch.tensor([value(*pair) for pair in ends_of(edges, fed.hosts[h])], dtype=dtype)
            for h in fed.here
        ],
    )


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
