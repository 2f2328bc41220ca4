"""Checks of a partition's tables, which may come from a user's file.

Every check works on whole columns. Its message names the table and the first row that fails.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError

Tables = Mapping[str, np.ndarray]

COLUMNS = {
    "held": ("held_client", "held_id", "held_node", "held_owner"),
    "edges": ("edge_client", "edge_u", "edge_v"),
    "cross": ("cross_local_client", "cross_id", "cross_remote_client", "cross_remote_id"),
}
ROW_KEY = {"held": COLUMNS["held"][:2], "edges": COLUMNS["edges"], "cross": COLUMNS["cross"]}
LIMIT = 2**31  # bounds clients, ids and nodes, so that the product of two fits into 64 bits
SPARE_CLIENTS = 10**6  # clients may be empty, but num_clients may exceed the held rows by this number at most
MAX_NAME = 200  # characters
FORMAT = "the docstring of graphfed.data.partitions.tables.Partition describes the format"


def _check_printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it is not printable")
    return text


_Name = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME), AfterValidator(_check_printable)]


class _Metadata(BaseModel):
    # Names are shown to people and numbers are written as JSON, so both are bounded. A text is no number.
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    num_clients: int
    graph_hash: str
    hash: str
    name: _Name = "assignment"
    seed: Annotated[int, Field(gt=-(2**63), lt=2**63)] = 0
    options: dict[_Name, int | float | Literal[""] | _Name] = {}


def check_metadata(metadata: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check that a partition's metadata can be shown and written as JSON, and add the defaults of its keys.

    `where` starts the message of every check of this module.
    """
    try:
        return _Metadata.model_validate(metadata).model_dump()
    except ValidationError as error:
        key = error.errors()[0]["loc"][0]
        raise InputError(
            f"{where}: the entry {key!r} of the partition's metadata cannot be used; {FORMAT}"
        ) from None


def check_tables(tables: Tables, num_clients: int, where: str) -> None:
    """Check that the eleven columns of a Partition are a partition of some graph.

    The checks are: types and lengths; the ranges of clients, ids and nodes; sorted rows without repetition;
    one node and at least one owner for each id; the endpoints of an edge are ids that its client holds; a
    cross-client edge goes from an id of its client to an id that the remote client owns. If no node is shared
    or copied, every cross-client edge has a row in each direction.
    """
    _check_types(tables, where)
    _check_ranges(tables, num_clients, where)
    for table, key in ROW_KEY.items():
        unsorted = ~_in_order([tables[column] for column in key])
        why = f"it is not in order; rows must be sorted by {', '.join(key)}, without repetition"
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
    """Check that the tables' nodes and edges are nodes and edges of a graph. Call `check_tables` before."""
    n = graph.num_nodes
    node = tables["held_node"]
    why = f"node {{node}} is not one of the {n} nodes of the graph"
    _refuse(where, "held", node >= n, why, node=node)
    held = _Held(tables)
    known = graph.edges[0] * n + graph.edges[1]  # ascending, because the edges are sorted
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
    """An index of the rows of the table `held` by client and id."""

    def __init__(self, tables: Tables) -> None:
        self.width = int(tables["held_id"].max(initial=0)) + 1
        # The codes ascend, because the rows are sorted by (client, id).
        self.codes = tables["held_client"] * self.width + tables["held_id"]

    def row(self, client: np.ndarray, id_: np.ndarray) -> np.ndarray:
        """Find the row of each pair of a client and an id, [n] int64; -1 if there is no such row."""
        # The code of an id above all held ids would equal the code of a small id of the next client.
        return np.where(id_ < self.width, _position(self.codes, client * self.width + id_), -1)


def _position(ascending: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Find the position of each value in an ascending vector; -1 if it is absent."""
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
                    f"{array.shape}; expected {np.dtype(dtype)} with one entry per row; {FORMAT}"
                )


def _check_ranges(tables: Tables, num_clients: int, where: str) -> None:
    if not 0 <= num_clients <= len(tables["held_client"]) + SPARE_CLIENTS:
        raise InputError(
            f"{where}: num_clients={num_clients} is out of range for {len(tables['held_client'])} rows of "
            f"table 'held'; {FORMAT}"
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
    """Check that every id stands for one node and has an owner."""
    node, owner = tables["held_node"], tables["held_owner"]
    ids, which = np.unique(tables["held_id"], return_inverse=True)
    node_of = np.empty(len(ids), dtype=np.int64)
    node_of[which[::-1]] = node[::-1]  # of several rows with one id, the first determines the node
    why = "id {id} stands for node {node} here, and for node {other} at another client"
    other = node_of[which]
    _refuse(where, "held", node != other, why, id=tables["held_id"], node=node, other=other)
    # A node without an owner would be scored by nobody.
    owners = np.bincount(which[owner], minlength=len(ids))[which]
    why = "id {id} has no owner; at least one client owns it"
    _refuse(where, "held", owners == 0, why, id=tables["held_id"])


def _check_cross(tables: Tables, held: _Held, where: str) -> None:
    client, id_, remote_client, remote_id = (tables[column] for column in COLUMNS["cross"])
    columns = {"client": client, "id": id_, "remote_client": remote_client, "remote_id": remote_id}
    _refuse(where, "cross", client == remote_client, "both ends are at client {client}", **columns)
    local, remote = held.row(client, id_), held.row(remote_client, remote_id)
    _refuse(where, "cross", local < 0, "cross_id {id} is not held by client {client}", **columns)
    owned = np.append(tables["held_owner"], False)[remote]  # row -1, for an absent id, is not owned
    why = "cross_remote_id {remote_id} is not owned by client {remote_client}"
    _refuse(where, "cross", ~owned, why, **columns)
    if tables["held_owner"].all() and (tables["held_id"] == tables["held_node"]).all():
        rows = len(held.codes)
        one_way = _position(local * rows + remote, remote * rows + local) < 0
        why = (
            "client {remote_client} has no row for the edge from its id {remote_id} to {id}; without copies, "
            "a cross-client edge has a row in each direction"
        )
        _refuse(where, "cross", one_way, why, **columns)


def _in_order(columns: list[np.ndarray]) -> np.ndarray:
    """Decide for each row whether it is above the previous row, compared column by column, bool [n]."""
    n = len(columns[0])
    later, equal = np.zeros(max(n - 1, 0), dtype=bool), np.ones(max(n - 1, 0), dtype=bool)
    for column in columns:
        later |= equal & (column[1:] > column[:-1])
        equal &= column[1:] == column[:-1]
    return np.concatenate(([True], later))[:n]


def _refuse(where: str, table: str, bad: np.ndarray, why: str, **columns: np.ndarray) -> None:
    """Raise an InputError for the first row where `bad` is True.

    `why` may contain names of `columns` in braces, which are replaced by the entries of that row.
    """
    rows = np.flatnonzero(bad)
    if rows.size:
        shown = why.format(**{key: column[rows[0]] for key, column in columns.items()})
        raise InputError(
            f"{where}: table {table!r}, row {rows[0]}: {shown} ({rows.size} such rows); {FORMAT}"
        )
