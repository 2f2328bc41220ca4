"""Merging of several clients' tables into one graph.

Equal ids mean the same node in all tables, so clients may share nodes and edges. The clients must agree on a
node's features, on its label and its part of the split if several clients state one, and on the weight of an
edge.

Shapes: n and e rows of one client's nodes and edges, N nodes and M rows of nodes at all clients, F features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from graphfed.data.graphs.graph import Held, sorted_unique, undirected
from graphfed.data.user_files.graph_description import Description
from graphfed.data.user_files.graph_tables import Listed, Tables
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, shown

PARTS = ("train", "val", "test")


@dataclass(frozen=True)
class ClientTables:
    """The content of one client's files, which are named in messages."""

    name: str
    nodes: TableFile
    edges: TableFile
    tables: Tables


def unite(
    clients: Sequence[ClientTables], description: Description, feature_names: Sequence[str]
) -> tuple[Tables, Held, tuple[np.ndarray, ...]]:
    """Merge the tables of several clients into one, what each client lists, and the edges as each file lists
    them.

    A client owns the nodes whose label its file states. If no file states a node's label, every client that
    lists the node owns it. Nodes are in the order of their first rows, and edges are undirected and sorted.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows = _Rows(clients)
    x = _agreed_features(rows, feature_names)
    labels, owner = None, np.ones(len(rows.node), dtype=bool)
    if description.label is not None:
        texts = pa.concat_arrays([client.tables.label for client in clients])
        # Numbers are compared, because comparing texts of all rows is much slower.
        codes = np.asarray(texts.dictionary_encode().indices)
        known = np.asarray(pc.not_equal(texts, ""))
        first = rows.first(known)
        rows.refuse_different(codes, known, first, description.label, "the label", texts.__getitem__)
        labels = pc.fill_null(texts.take(pa.array(first, mask=first < 0)), "")
        owner = known | (first < 0)[rows.node]
    part = None
    split = description.split or ", ".join(description.masks or ())
    if split:
        parts = np.concatenate([client.tables.part for client in clients if client.tables.part is not None])
        known = parts < len(PARTS)
        first = rows.first(known)
        rows.refuse_different(
            parts, known, first, split, "the part of the split", lambda row: PARTS[parts[row]]
        )
        part = np.where(first < 0, len(PARTS), parts[first]).astype(np.int8)
    ends, weights, edge_client, edge = _edges(rows, description.weight, description.repeated)
    client_of_node = np.repeat(np.arange(len(clients)), [len(client.tables.ids) for client in clients])
    order = np.lexsort((rows.node, client_of_node))
    held = Held(client_of_node[order], rows.node[order], owner[order], edge_client, edge)
    listed = tuple(rows.of(s)[client.tables.ends] for s, client in enumerate(clients))
    tables = Tables(
        rows.ids,
        None,
        labels,
        x,
        part,
        rows.ids,
        _remarks(clients),
        None,
        ends,
        weights,
        rows.ids[:0],
        sum(client.tables.unknown for client in clients),
    )
    return tables, held, listed


def share_no_node(clients: Sequence[ClientTables]) -> bool:
    """Return whether no id is in the files of two clients."""
    rows = _Rows(clients)
    return len(rows.ids) == len(rows.node)


def join_disjoint(clients: Sequence[ClientTables]) -> Tables:
    """Put the tables of clients that share no node under each other, with a column of clients.

    An edge between nodes of two clients may be in the file of either of them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, first = _Rows(clients), clients[0].tables
    remote = [np.asarray(pc.index_in(client.tables.remote, value_set=rows.ids)) for client in clients]
    weight, label, part = first.weight, first.label, first.part
    return Tables(
        rows.ids,
        pa.concat_arrays([pa.repeat(client.name, len(client.tables.ids)) for client in clients]),
        None if label is None else pa.concat_arrays([client.tables.label for client in clients]),
        np.concatenate([client.tables.x for client in clients]),
        None if part is None else np.concatenate([client.tables.part for client in clients]),
        rows.ids,
        _remarks(clients),
        None,
        np.concatenate(
            [
                np.concatenate([rows.of(s), at])[client.tables.ends]
                for s, (client, at) in enumerate(zip(clients, remote, strict=True))
            ],
            axis=1,
        ),
        None if weight is None else np.concatenate([client.tables.weight for client in clients]),
        rows.ids[:0],
        sum(client.tables.unknown for client in clients),
        _join_listed([client.tables.listed for client in clients]),
    )


def _join_listed(found: Sequence[Listed | None]) -> Listed | None:
    """Put what files say of edges under each other; None if the description keeps nothing of it."""
    each = [listed for listed in found if listed is not None]
    if not each:
        return None
    # A file without rows has neither numbers nor dates.
    dated = {listed.dated for listed in each if listed.time is not None and len(listed.time)}
    if len(dated) > 1:
        raise InputError("the times of edges are dates in some clients' files and numbers in others; use one")
    time = [listed.time for listed in each if listed.time is not None]
    return Listed(
        np.concatenate([listed.attributes for listed in each]),
        np.concatenate(time) if time else None,
        True in dated,
    )


def _remarks(clients: Sequence[ClientTables]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(remark for client in clients for remark in client.tables.remarks))


class _Rows:
    """The rows of all clients' nodes, one client after the other; `node` [M] is the node of each row."""

    def __init__(self, clients: Sequence[ClientTables]) -> None:
        import pyarrow as pa

        self.clients = clients
        encoded = pa.concat_arrays([client.tables.ids for client in clients]).dictionary_encode()
        self.ids = encoded.dictionary
        self.node = np.asarray(encoded.indices).astype(np.int64)
        self.start = np.cumsum([0, *(len(client.tables.ids) for client in clients)])

    def of(self, client: int) -> np.ndarray:
        """Return the nodes of one client's rows, [n]."""
        node: np.ndarray = self.node[self.start[client] : self.start[client + 1]]
        return node

    def first(self, known: np.ndarray) -> np.ndarray:
        """Find the first row of each node for which `known` [M] is True, [N]; -1 if there is none."""
        first: np.ndarray = np.full(len(self.ids), -1)
        rows = np.flatnonzero(known)[::-1]  # the last assignment stays, so the first row is assigned last
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
        """Raise an InputError if a known code [M] differs from that of its node's first row.

        `value` returns the text of a row for the message.
        """
        bad = np.flatnonzero(known & (codes != codes[first[self.node]]))
        if bad.size:
            row = int(bad[0])
            earlier = int(first[self.node[row]])
            here, there = (shown(str(value(r))) for r in (row, earlier))
            raise self.refusal(
                row, earlier, column, f"{what} of", f"is {here} here and {there}",
                "correct one of the files, or leave the value empty in one", bad.size,
            )  # fmt: skip

    def refusal(
        self, row: int, earlier: int, column: str, what: str, differs: str, fix: str, count: int
    ) -> InputError:
        """Build the error for two rows of one node that disagree."""
        (here, row_here), (there, row_there) = (self._place(r) for r in (row, earlier))
        return InputError(
            f"client {shown(here.name)}: {here.nodes.where(row_here)}, column {column!r}: {what} node "
            f"{shown(self.ids[self.node[row]].as_py())} {differs} at client {shown(there.name)} "
            f"({there.nodes.where(row_there)}); {fix} ({count} such rows)"
        )

    def _place(self, row: int) -> tuple[ClientTables, int]:
        client = int(np.searchsorted(self.start, row, side="right")) - 1
        return self.clients[client], row - int(self.start[client])


def _agreed_features(rows: _Rows, features: Sequence[str]) -> np.ndarray:
    """Return every node's features, [N, F]; InputError if two rows of a node differ."""
    dtype = np.result_type(*(client.tables.x for client in rows.clients))
    x = np.empty((len(rows.ids), len(features)), dtype)
    first = rows.first(np.ones(len(rows.node), dtype=bool))
    for s, client in enumerate(rows.clients):
        node, start = rows.of(s), rows.start[s]
        new = first[node] == start + np.arange(len(node))
        x[node[new]] = client.tables.x[new]
        # Features are compared exactly: each client wrote the same number or another one.
        here, there = client.tables.x, x[node]
        differs = (here != there) & ~(np.isnan(here) & np.isnan(there))
        bad = np.flatnonzero(differs.any(axis=1))
        if bad.size:
            row = int(bad[0])
            j = int(differs[row].argmax())
            raise rows.refusal(
                int(start) + row, int(first[node[row]]), features[j], "this feature of",
                f"is {here[row, j]} here and {there[row, j]}",
                "give a node the same features at every client: correct one of the files", bad.size,
            )  # fmt: skip
    return x


def _edges(
    rows: _Rows, weight: str | None, repeated: str
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
    """Merge the edges: endpoints [2, m], weights [m] or None, and client and edge of all pairs that clients
    list.
    """
    n = len(rows.ids)
    keys, weights = [], []
    for s, client in enumerate(rows.clients):
        given = None if client.tables.weight is None else client.tables.weight.astype(np.float64)
        (u, v), merged = undirected(
            f"client {client.name}", rows.of(s)[client.tables.ends], given, repeated, n
        )
        keys.append(u * n + v)
        weights.append(np.ones(len(u), dtype=np.float32) if merged is None else merged)
    every, edge_client = np.concatenate(keys), np.repeat(np.arange(len(keys)), [len(k) for k in keys])
    known = sorted_unique(every)
    edge = np.searchsorted(known, every)
    ends = np.stack((known // n, known % n))
    if weight is None:
        return ends, None, edge_client, edge
    # Each client has merged its own repetitions. Clients must then agree, and their weights do not add up.
    amount = np.concatenate(weights)
    first = np.empty(len(known), dtype=np.int64)
    # The last assignment stays, so this is the first row of each edge.
    first[edge[::-1]] = np.arange(len(edge))[::-1]
    bad = np.flatnonzero(amount != amount[first[edge]])
    if bad.size:
        row, earlier = int(bad[0]), int(first[edge[bad[0]]])
        (here, row_here), (there, row_there) = (
            (rows.clients[edge_client[r]], _first_row(rows, int(edge_client[r]), ends[:, edge[r]]))
            for r in (row, earlier)
        )
        u, v = (shown(rows.ids[node].as_py()) for node in ends[:, edge[row]])
        raise InputError(
            f"client {shown(here.name)}: {here.edges.where(row_here)}, column {weight!r}: the edge between "
            f"{u} and {v} has weight {amount[row]} here and {amount[earlier]} at client {shown(there.name)} "
            f"({there.edges.where(row_there)}); give it one weight, or use no weights ('weight:' with "
            f"nothing after it in the description) ({bad.size} such edges)"
        )
    return ends, amount[first], edge_client, edge


def _first_row(rows: _Rows, client: int, ends: np.ndarray) -> int:
    """Find the first row of a client's edges that joins two nodes, in either direction."""
    u, v = rows.of(client)[rows.clients[client].tables.ends]
    same = ((u == ends[0]) & (v == ends[1])) | ((u == ends[1]) & (v == ends[0]))
    return int(same.argmax())
