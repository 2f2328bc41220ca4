"""The one partition format: tables that say which client holds which nodes and edges.

    held   one row for each node a client holds, and whether the client owns it
    edges  one row for each undirected edge inside a client
    cut    one row, seen from a client, for each edge that leaves it

A node is labelled and scored only where it is owned, and every id has an owner; several clients that know
its label own it together. Ids are the graph's node numbers, except where a partition makes copies that
count as different nodes (FedGraph): there every copy has an id of its own, and `held_node` says whose
copy it is.

Shapes: N nodes, M held rows, E rows of edges, C rows of cut, K clients.
"""

import json
import stat
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.data.content import content_hash
from graphfed.data.graphs.graph import Graph
from graphfed.data.messages import brief
from graphfed.data.partitions.table_checks import check_against_graph, check_metadata, check_tables
from graphfed.errors import InputError, shown
from graphfed.files import read_metadata, read_tensors, write_tensors

__all__ = ["Option", "Partition", "cross_rows", "from_assignment", "order_by_client", "without_cross"]

Option = int | float | str

FORMAT = "graphfed.partition/2"
WRITE_ONE = "write one with 'graphfed data partition', or Partition.save"


@dataclass(frozen=True, eq=False)
class Partition:
    """Who holds what. Clients are 0..num_clients-1; a client may hold nothing.

    held_client, held_id, held_node: int64 [M], held_owner: bool [M]; sorted by (client, id).
    edge_client, edge_u, edge_v: int64 [E], u < v are ids held by the client; sorted by (client, u, v).
    cross_local_client, cross_id, cross_remote_client, cross_remote_id: int64 [C]; the client's own id and the
    id at the other
    end, which the remote client owns; sorted. Without copies every edge between clients has a row in each
    direction.
    name, options, seed: what it was made with; printable text of at most 200 characters and finite numbers.
    """

    held_client: np.ndarray
    held_id: np.ndarray
    held_node: np.ndarray
    held_owner: np.ndarray
    edge_client: np.ndarray
    edge_u: np.ndarray
    edge_v: np.ndarray
    cross_local_client: np.ndarray
    cross_id: np.ndarray
    cross_remote_client: np.ndarray
    cross_remote_id: np.ndarray
    num_clients: int
    graph_hash: str
    name: str = "assignment"
    options: dict[str, Option] = field(default_factory=dict)
    seed: int = 0

    @property
    def tables(self) -> dict[str, np.ndarray]:
        """The eleven columns by name."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name.startswith(("held", "edge", "cross"))
        }

    @cached_property
    def hash(self) -> str:
        """sha256 (hex) of the tables, the number of clients and the graph's hash.

        Two recipes that deal the same way have the same hash: name, options and seed do not count.
        """
        return content_hash(self.tables, f"{self.num_clients} {self.graph_hash}")

    def node_of(self, ids: np.ndarray) -> np.ndarray:
        """The graph's node of each held id, of the shape of `ids`. Memory grows with what is held: the ids
        of a file may be any numbers."""
        known, first = np.unique(self.held_id, return_index=True)
        nodes: np.ndarray = self.held_node[first][np.searchsorted(known, ids)]
        return nodes

    def check(self, graph: Graph, where: str | None = None) -> None:
        """Raises InputError when this partition was made for another graph, or its tables are no partition
        of this one: a row out of place, an unknown node or id, an edge the graph does not have. where: what
        to call the partition."""
        where = f"the {self.name!r} partition" if where is None else where
        if graph.hash != self.graph_hash:
            raise InputError(
                f"{where} was made for another graph (hash {self.graph_hash[:12]}) than {graph.name!r} (hash "
                f"{graph.hash[:12]}); partition this graph again, or give the data it was made for"
            )
        check_tables(self.tables, self.num_clients, where)
        check_against_graph(self.tables, graph, where)

    def save(self, path: str | Path) -> None:
        """Write one portable safetensors file, atomically. `load` checks what is in it."""
        recipe = {
            "format": FORMAT,
            "name": self.name,
            "options": self.options,
            "seed": self.seed,
            "num_clients": self.num_clients,
            "graph_hash": self.graph_hash,
            "hash": self.hash,
        }
        write_tensors(Path(path), self.tables, {"partition": json.dumps(recipe)})

    @staticmethod
    def recipe(path: str | Path) -> dict[str, Any]:
        """name, options, seed, num_clients, graph_hash and hash of the partition that `save` wrote, without
        reading its tables. Raises InputError for a missing or foreign file."""
        path = Path(path)
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(f"the partition file {path} is not there; {WRITE_ONE}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "the name cannot be used"
            raise InputError(f"the partition file {shown(str(path))} cannot be read ({reason})") from None
        if not stat.S_ISREG(mode):  # a pipe would be waited for
            what = "is a folder" if stat.S_ISDIR(mode) else "is no regular file"
            raise InputError(f"the partition file {path} {what}; {WRITE_ONE}")
        try:
            path.open("rb").close()  # safetensors calls a file that may not be read absent
            recipe = json.loads(read_metadata(path)["partition"])
            known = recipe.pop("format") == FORMAT and isinstance(recipe["hash"], str)
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception as error:  # a foreign file can fail in every way
            raise InputError(f"{path} is not a partition file ({brief(error)}); {WRITE_ONE}") from error
        if not known:
            raise InputError(f"{path} is of another version of graphfed; save it again")
        check_metadata(recipe, str(path))
        return dict(recipe)

    @staticmethod
    def load(path: str | Path) -> "Partition":
        """Read what `save` wrote. Raises InputError for a missing, foreign or damaged file, and for one whose
        tables are no partition of any graph: then it names table and row. `check` compares with a graph."""
        path = Path(path)
        recipe = Partition.recipe(path)
        expected = recipe.pop("hash")
        try:
            contents: dict[str, Any] = read_tensors(path)[0] | recipe
            loaded = Partition(**contents)
            intact = loaded.hash == expected
        except Exception as error:
            raise InputError(f"{path} is not a partition file ({brief(error)}); {WRITE_ONE}") from error
        if not intact:
            raise InputError(f"{path} is damaged: its content does not match its hash; save it again")
        check_tables(loaded.tables, loaded.num_clients, str(path))
        return loaded


def from_assignment(
    graph: Graph,
    client: np.ndarray,
    *,
    num_clients: int | None = None,
    name: str = "assignment",
    options: dict[str, Option] | None = None,
    seed: int = 0,
) -> Partition:
    """The partition that gives every node to exactly one client; edges between clients become cut rows.

    client: [N] integers, the client of each node. num_clients: K; by default the largest client plus one.
    Raises InputError when `client` has the wrong length or type, or leaves 0..num_clients-1.
    """
    client = np.asarray(client)
    if client.shape != (graph.num_nodes,) or not np.issubdtype(client.dtype, np.integer):
        raise InputError(
            f"the assignment has dtype {client.dtype} and shape {client.shape}; expected one integer client "
            f"for each of the {graph.num_nodes} nodes of {graph.name!r}"
        )
    client = client.astype(np.int64)
    if num_clients is None:
        num_clients = int(client.max(initial=-1)) + 1
    outside = np.flatnonzero((client < 0) | (client >= num_clients))
    if outside.size:
        raise InputError(
            f"node {outside[0]} is assigned to client {client[outside[0]]}; clients are 0..{num_clients - 1} "
            f"({outside.size} such nodes)"
        )
    held = order_by_client(client, num_clients)
    u, v = graph.edges
    inside = client[u] == client[v]
    crossing = ~inside
    edge_u, edge_v = u[inside], v[inside]
    order = order_by_client(client[edge_u], num_clients)
    ends = np.concatenate((u[crossing], v[crossing])), np.concatenate((v[crossing], u[crossing]))
    return Partition(
        held_client=client[held],
        held_id=held,
        held_node=held.copy(),
        held_owner=np.ones(len(held), dtype=bool),
        edge_client=client[edge_u][order],
        edge_u=edge_u[order],
        edge_v=edge_v[order],
        **cross_rows(client[held], held, *ends),
        num_clients=num_clients,
        graph_hash=graph.hash,
        name=name,
        options=dict(options or {}),
        seed=int(seed),
    )


def without_cross(
    graph: Graph,
    held: tuple[np.ndarray, np.ndarray, np.ndarray],
    edges: tuple[np.ndarray, np.ndarray, np.ndarray],
    *,
    num_clients: int,
) -> Partition:
    """The partition of clients that may share nodes and edges, where an edge that a client lacks is only
    unknown there: no edge is cut.

    held: client, node and owner [M], sorted by (client, node); edges: client, u and v [E], sorted by
    (client, u, v)."""
    none = np.zeros(0, dtype=np.int64)
    return Partition(
        held_client=held[0],
        held_id=held[1],
        held_node=held[1].copy(),
        held_owner=held[2],
        edge_client=edges[0],
        edge_u=edges[1],
        edge_v=edges[2],
        cross_local_client=none,
        cross_id=none.copy(),
        cross_remote_client=none.copy(),
        cross_remote_id=none.copy(),
        num_clients=num_clients,
        graph_hash=graph.hash,
    )


def order_by_client(client: np.ndarray, num_clients: int) -> np.ndarray:
    """The stable order [n] int64 of rows by client [n]. Rows sorted by id become sorted by (client, id)."""
    # numpy sorts 16-bit integers by radix, about ten times faster than wider ones.
    narrow = client.astype(np.uint16) if num_clients <= 2**16 else client
    return np.argsort(narrow, kind="stable")


def cross_rows(
    held_client: np.ndarray, held_id: np.ndarray, own: np.ndarray, remote: np.ndarray
) -> dict[str, Any]:
    """The four cut columns, sorted by (client, id, remote client, remote id).

    held_client, held_id: [M] sorted by (client, id), each id held once.
    own, remote: [C] ids at both ends, in any order.
    """
    rows = len(held_id)
    row_of = np.empty(rows, dtype=np.int64)
    row_of[held_id] = np.arange(rows)
    # The row of an id orders as (client, id), so one sort of row pairs sorts all four columns.
    key = row_of[own] * rows + row_of[remote]
    key.sort()
    own_row, remote_row = (key // rows, key % rows) if rows else (key, key)
    return {
        "cross_local_client": held_client[own_row],
        "cross_id": held_id[own_row],
        "cross_remote_client": held_client[remote_row],
        "cross_remote_id": held_id[remote_row],
    }
