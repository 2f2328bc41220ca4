"""Several sites' own tables -> the tables of one graph, and which site holds what.

An id is the same node wherever it stands, so sites may share nodes and edges. What two sites say of one
must agree: its features, its label and part of the split where both say one, the weight of an edge.

Shapes: n and e rows of one site's nodes and edges, N nodes and M rows of nodes at all sites, F features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphfed.data.graphs.graph import Held, sorted_unique, undirected
from graphfed.data.user_files.graph_description import Description
from graphfed.data.user_files.graph_tables import Tables
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, shown

__all__ = ["SiteTables", "Union", "unite"]

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class SiteTables:
    """What one site's files say, with the files for messages."""

    name: str
    nodes: TableFile
    edges: TableFile
    tables: Tables


@dataclass(frozen=True)
class Union:
    """The sites' common graph. tables: its N nodes, in the order in which they are first listed, and every
    edge once, u < v, sorted by (u, v), without self loops; listed: the ends [2, e] of each site's edges as
    its file has them, as nodes."""

    tables: Tables
    held: Held
    listed: tuple[np.ndarray, ...]


def unite(sites: Sequence[SiteTables], description: Description) -> Union:
    """Put the tables of the sites that a description names together.

    A site owns the nodes whose label its file has; a node without a label is owned by all its holders.

    Raises InputError where two sites disagree, with both sites, files, rows and values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = _Rows(sites)
    x = _agreed_features(rows, description.features)
    labels, owner = None, np.ones(len(rows.node), dtype=bool)
    if description.label is not None:
        texts = pa.concat_arrays([site.tables.label for site in sites])
        codes = np.asarray(texts.dictionary_encode().indices)
        known = np.asarray(pc.not_equal(texts, ""))
        first = rows.first(known)
        rows.refuse_different(codes, known, first, description.label, "the label", texts.__getitem__)
        labels = pc.fill_null(texts.take(pa.array(first, mask=first < 0)), "")
        owner = known | (first < 0)[rows.node]
    part = None
    if description.split is not None:
        parts = np.concatenate([site.tables.part for site in sites if site.tables.part is not None])
        known = parts < len(PARTS)
        first = rows.first(known)
        rows.refuse_different(
            parts, known, first, description.split, "part of the split", lambda row: PARTS[parts[row]]
        )
        part = np.where(first < 0, len(PARTS), parts[first]).astype(np.int8)
    ends, weights, edge_client, edge = _edges(rows, description.weight, description.repeated)
    client_of_node = np.repeat(np.arange(len(sites)), [len(site.tables.ids) for site in sites])
    order = np.lexsort((rows.node, client_of_node))
    held = Held(client_of_node[order], rows.node[order], owner[order], edge_client, edge)
    listed = tuple(rows.of(s)[site.tables.ends] for s, site in enumerate(sites))
    return Union(
        Tables(rows.ids, None, labels, x, part, rows.ids, ends, weights, far=rows.ids[:0]), held, listed
    )


class _Rows:
    """The rows of all sites' nodes, one site after the other: `node` [M] says which node each is."""

    def __init__(self, sites: Sequence[SiteTables]) -> None:
        import pyarrow as pa

        self.sites = sites
        encoded = pa.concat_arrays([site.tables.ids for site in sites]).dictionary_encode()
        self.ids = encoded.dictionary
        self.node = np.asarray(encoded.indices).astype(np.int64)
        self.start = np.cumsum([0, *(len(site.tables.ids) for site in sites)])

    def of(self, site: int) -> np.ndarray:
        """The nodes of one site's rows, [n]."""
        node: np.ndarray = self.node[self.start[site] : self.start[site + 1]]
        return node

    def first(self, known: np.ndarray) -> np.ndarray:
        """The first row of each node among those where `known` [M] is true, -1 for none, [N]."""
        first: np.ndarray = np.full(len(self.ids), -1)
        rows = np.flatnonzero(known)[::-1]  # of several rows the last one written stays
        first[self.node[rows]] = rows
        return first

    def refuse_different(
        self,
        codes: np.ndarray,
        known: np.ndarray,
        first: np.ndarray,
        column: str,
        what: str,
        value: Callable[[int], object],
    ) -> None:
        """InputError where a known code [M] is not that of its node's first row; value: row -> what to
        show."""
        bad = np.flatnonzero(known & (codes != codes[first[self.node]]))
        if bad.size:
            row = int(bad[0])
            other = int(first[self.node[row]])
            here, there = (shown(str(value(r))) for r in (row, other))
            raise self.refusal(
                row, other, column, f"{what} of", f"is {here} here and {there}",
                "correct one of the files, or leave it empty in one", bad.size,
            )  # fmt: skip

    def refusal(
        self, row: int, other: int, column: str, what: str, differs: str, fix: str, count: int
    ) -> InputError:
        """What to say of two rows of one node."""
        (here, at), (there, where) = (self._place(r) for r in (row, other))
        return InputError(
            f"site {shown(here.name)}: {here.nodes.where(at)}, column {column!r}: {what} node "
            f"{shown(self.ids[self.node[row]].as_py())} {differs} at site {shown(there.name)} "
            f"({there.nodes.where(where)}); {fix} ({count} such rows)"
        )

    def _place(self, row: int) -> tuple[SiteTables, int]:
        site = int(np.searchsorted(self.start, row, side="right")) - 1
        return self.sites[site], row - int(self.start[site])


def _agreed_features(rows: _Rows, features: Sequence[str]) -> np.ndarray:
    """[N, F]: every node's features, which are those of each of its rows."""
    x = np.empty((len(rows.ids), len(features)), dtype=np.float32)
    first = rows.first(np.ones(len(rows.node), dtype=bool))
    for s, site in enumerate(rows.sites):
        node, start = rows.of(s), rows.start[s]
        new = first[node] == start + np.arange(len(node))
        x[node[new]] = site.tables.x[new]
        differs = site.tables.x != x[node]
        bad = np.flatnonzero(differs.any(axis=1))
        if bad.size:
            row = int(bad[0])
            j = int(differs[row].argmax())
            raise rows.refusal(
                int(start) + row, int(first[node[row]]), features[j], "this feature of",
                f"is {site.tables.x[row, j]} here and {x[node[row], j]}",
                "a node has the same features at every site: correct one of the files", bad.size,
            )  # fmt: skip
    return x


def _edges(
    rows: _Rows, weight: str | None, repeated: str
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """ends [2, m] of every edge once, its weight [m], and (site, edge) of every site's every edge."""
    n = len(rows.ids)
    keys, weights = [], []
    for s, site in enumerate(rows.sites):
        given = None if site.tables.weight is None else site.tables.weight.astype(np.float64)
        (u, v), mine = undirected(f"site {site.name}", rows.of(s)[site.tables.ends], given, repeated, n)
        keys.append(u * n + v)
        weights.append(np.ones(len(u), dtype=np.float32) if mine is None else mine)
    every, edge_client = np.concatenate(keys), np.repeat(np.arange(len(keys)), [len(k) for k in keys])
    known = sorted_unique(every)
    edge = np.searchsorted(known, every)
    ends = np.stack((known // n, known % n))
    if weight is None:
        return ends, None, edge_client, edge
    amount = np.concatenate(weights)
    first = np.empty(len(known), dtype=np.int64)
    first[edge[::-1]] = np.arange(len(edge))[::-1]
    bad = np.flatnonzero(amount != amount[first[edge]])
    if bad.size:
        row, other = int(bad[0]), int(first[edge[bad[0]]])
        (here, at), (there, where) = (
            (rows.sites[edge_client[r]], _first_row(rows, int(edge_client[r]), ends[:, edge[r]]))
            for r in (row, other)
        )
        u, v = (shown(rows.ids[node].as_py()) for node in ends[:, edge[row]])
        raise InputError(
            f"site {shown(here.name)}: {here.edges.where(at)}, column {weight!r}: the edge between {u} and "
            f"{v} weighs {amount[row]} here and {amount[other]} at site {shown(there.name)} "
            f"({there.edges.where(where)}); give it one weight, or do without weights: 'weight:' with "
            f"nothing after it ({bad.size} such edges)"
        )
    return ends, amount[first], edge_client, edge


def _first_row(rows: _Rows, site: int, ends: np.ndarray) -> int:
    """The first row of a site's edges that joins two nodes, in either direction."""
    u, v = rows.of(site)[rows.sites[site].tables.ends]
    same = ((u == ends[0]) & (v == ends[1])) | ((u == ends[1]) & (v == ends[0]))
    return int(same.argmax())
