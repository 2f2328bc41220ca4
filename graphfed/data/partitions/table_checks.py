"""Whether the tables of a partition say what they must: people hand such files in.

Every check looks at whole columns; the message names the table and the first row that fails it.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError

__all__ = ["check_against_graph", "check_metadata", "check_tables"]

Tables = Mapping[str, np.ndarray]

COLUMNS = {
    "held": ("held_client", "held_id", "held_node", "held_owner"),
    "edges": ("edge_client", "edge_u", "edge_v"),
    "cross": ("cross_local_client", "cross_id", "cross_remote_client", "cross_remote_id"),
}
ROW_KEY = {"held": COLUMNS["held"][:2], "edges": COLUMNS["edges"], "cross": COLUMNS["cross"]}
LIMIT = 2**31  # of clients, ids and nodes: the product of two must not leave 64 bits
SPARE_CLIENTS = 10**6  # a client may hold nothing, but not nearly all of them
NAME = 200  # characters
FORMAT = "the docstring of Partition has the format"


def check_metadata(recipe: Mapping[str, Any], where: str) -> None:
    """Raises InputError, which starts with `where`, unless what stands beside the tables can be shown and
    written as JSON: names printable and short, numbers finite."""
    options = recipe.get("options", {})
    fits = {
        "num_clients": type(recipe.get("num_clients")) is int,
        "graph_hash": isinstance(recipe.get("graph_hash"), str),
        "name": _is_name(recipe.get("name", "assignment")),
        "seed": type(recipe.get("seed", 0)) is int and abs(recipe.get("seed", 0)) < 2**63,
        "options": isinstance(options, dict)
        and all(_is_name(key) and _is_option(value) for key, value in options.items()),
    }
    for key, fit in fits.items():
        if not fit:
            raise InputError(f"{where}: {key} of the partition cannot be used; {FORMAT}")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and 0 < len(value) <= NAME


def _is_option(value: Any) -> bool:
    if isinstance(value, str):
        return value == "" or _is_name(value)
    return isinstance(value, int | float) and abs(value) < math.inf


def check_tables(tables: Tables, num_clients: int, where: str) -> None:
    """Raises InputError, which starts with `where`, for tables that are no partition of any graph.

    tables: the eleven columns of a Partition by name. Checked: types and lengths; clients, ids and nodes in
    range; order without repetition; one node and an owner for each id; edges between ids of their client; cut
    rows from an id of the client to one that the remote client owns, and back if no node is shared or
    copied.
    """
    _check_types(tables, where)
    _check_ranges(tables, num_clients, where)
    for table, key in ROW_KEY.items():
        unsorted = ~_in_order([tables[column] for column in key])
        why = f"it does not come after the row before; rows are sorted by {', '.join(key)}, none twice"
        _refuse(where, table, unsorted, why)
    _check_ids(tables, where)
    held = _Held(tables)
    client, u, v = (tables[column] for column in COLUMNS["edges"])
    for end, id_ in (("edge_u", u), ("edge_v", v)):
        missing = held.row(client, id_) < 0
        _refuse(where, "edges", missing, end + " {id} is not held by client {client}", id=id_, client=client)
    _refuse(where, "edges", u >= v, "edge_u {u} is not below edge_v {v}", u=u, v=v)
    _check_cross(tables, held, where)


def check_against_graph(tables: Tables, graph: Graph, where: str) -> None:
    """Raises InputError when a node or an edge is not one of the graph's. After `check_tables` only."""
    n = graph.num_nodes
    node = tables["held_node"]
    why = f"node {{node}} is not one of the {n} nodes of the graph"
    _refuse(where, "held", node >= n, why, node=node)
    held = _Held(tables)
    known = graph.edges[0] * n + graph.edges[1]  # ascending, as the edges are sorted
    ends = {
        "edges": (("edge_client", "edge_u"), ("edge_client", "edge_v")),
        "cross": (("cross_local_client", "cross_id"), ("cross_remote_client", "cross_remote_id")),
    }
    for table, columns in ends.items():
        a, b = (node[held.row(tables[client], tables[id_])] for client, id_ in columns)
        key = np.minimum(a, b) * n + np.maximum(a, b)
        why = "the graph has no edge between nodes {a} and {b}"
        _refuse(where, table, _position(known, key) < 0, why, a=a, b=b)


class _Held:
    """Where in the table `held` a client's id is."""

    def __init__(self, tables: Tables) -> None:
        self.width = int(tables["held_id"].max(initial=0)) + 1
        self.codes = (
            tables["held_client"] * self.width + tables["held_id"]
        )  # ascending, as the rows are sorted

    def row(self, client: np.ndarray, id_: np.ndarray) -> np.ndarray:
        """The row of each client's id, -1 where the client does not hold it; [n] int64."""
        # An id beyond all held ones must not pass for a small id of the next client.
        return np.where(id_ < self.width, _position(self.codes, client * self.width + id_), -1)


def _position(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where each value is in the ascending vector, -1 where it is not."""
    if not len(ascending):
        return np.full(len(values), -1)
    place = np.minimum(np.searchsorted(ascending, values), len(ascending) - 1)
    return np.where(ascending[place] == values, place, -1)


def _check_types(tables: Tables, where: str) -> None:
    for table, columns in COLUMNS.items():
        for column in columns:
            array = tables[column]
            dtype = bool if column == "held_owner" else np.int64
            if array.dtype != dtype or array.shape != (len(tables[columns[0]]),):
                raise InputError(
                    f"{where}: table {table!r}, column {column!r} has dtype {array.dtype} and shape "
                    f"{array.shape}; expected {np.dtype(dtype)}, one entry a row; {FORMAT}"
                )


def _check_ranges(tables: Tables, num_clients: int, where: str) -> None:
    if not 0 <= num_clients <= len(tables["held_client"]) + SPARE_CLIENTS:
        raise InputError(
            f"{where}: num_clients={num_clients} does not fit {len(tables['held_client'])} held nodes; "
            f"{FORMAT}"
        )
    for table, columns in COLUMNS.items():
        for column in columns:
            if column == "held_owner":
                continue
            values = tables[column]
            limit = num_clients if column.endswith("client") else LIMIT
            why = f"{column} {{value}} is not in 0..{limit - 1}"
            _refuse(where, table, (values < 0) | (values >= limit), why, value=values)


def _check_ids(tables: Tables, where: str) -> None:
    """Every id stands for one node and has an owner."""
    node, owner = tables["held_node"], tables["held_owner"]
    ids, which = np.unique(tables["held_id"], return_inverse=True)
    node_of = np.empty(len(ids), dtype=np.int64)
    node_of[which[::-1]] = node[::-1]  # the first row of an id counts
    why = "id {id} stands for node {node} here, and for node {other} at another client"
    other = node_of[which]
    _refuse(where, "held", node != other, why, id=tables["held_id"], node=node, other=other)
    owners = np.bincount(which[owner], minlength=len(ids))[which]
    why = "id {id} has no owner; at least one client owns it"
    _refuse(where, "held", owners == 0, why, id=tables["held_id"])


def _check_cross(tables: Tables, held: _Held, where: str) -> None:
    client, id_, remote_client, remote_id = (tables[column] for column in COLUMNS["cross"])
    columns = {"client": client, "id": id_, "remote_client": remote_client, "remote_id": remote_id}
    _refuse(where, "cross", client == remote_client, "both ends are at client {client}", **columns)
    own, remote = held.row(client, id_), held.row(remote_client, remote_id)
    _refuse(where, "cross", own < 0, "cross_id {id} is not held by client {client}", **columns)
    owned = np.append(tables["held_owner"], False)[remote]  # row -1 is none
    why = "cross_remote_id {remote_id} is not owned by client {remote_client}"
    _refuse(where, "cross", ~owned, why, **columns)
    if tables["held_owner"].all() and (tables["held_id"] == tables["held_node"]).all():
        rows = len(held.codes)
        no_way_back = _position(own * rows + remote, remote * rows + own) < 0
        why = (
            "client {remote_client} has no row for its end {remote_id} of the edge to {id}; without "
            "copies an "
            "edge between clients has a row in each direction"
        )
        _refuse(where, "cross", no_way_back, why, **columns)


def _in_order(columns: list[np.ndarray]) -> np.ndarray:
    """bool [n]: whether a row comes after the row before, by the columns in turn."""
    n = len(columns[0])
    later, equal = np.zeros(max(n - 1, 0), dtype=bool), np.ones(max(n - 1, 0), dtype=bool)
    for column in columns:
        later |= equal & (column[1:] > column[:-1])
        equal &= column[1:] == column[:-1]
    return np.concatenate(([True], later))[:n]


def _refuse(where: str, table: str, bad: np.ndarray, why: str, **columns: np.ndarray) -> None:
    """Refuse the first row where `bad` is true; `why` may name the columns, whose entry it then shows."""
    rows = np.flatnonzero(bad)
    if rows.size:
        shown = why.format(**{key: column[rows[0]] for key, column in columns.items()})
        raise InputError(
            f"{where}: table {table!r}, row {rows[0]}: {shown} ({rows.size} such rows); {FORMAT}"
        )
