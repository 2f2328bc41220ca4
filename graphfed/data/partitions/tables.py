"""The partition format: tables of the nodes and edges that each client holds.

    held   one row for each node that a client holds, and whether the client owns the node
    edges  one row for each undirected edge inside a client
    cross  one row for each cross-client edge, as seen from one of its clients

Only owners of a node know its label and are scored on it. Every id has at least one owner, and a node has
several owners if several clients know its label. Ids are the graph's node numbers. The exception is a
partition whose copies count as different nodes (FedGraph): there every copy has an id of its local, and
`held_node` is the node that it copies.

Shapes: N nodes, M rows of held, E rows of edges, C rows of cross, K clients.
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
    """The nodes and edges that each client holds.

    Clients are numbered 0..num_clients-1; a client may hold nothing. Rows of `held` are sorted by (client,
    id), rows of `edges` by (client, u, v), rows of `cross` by all four columns. Without copies, every
    cross-client edge has a row in each direction.

    Attributes:
        held_client: The client that holds a node, int64 [M].
        held_id: The id of the node, int64 [M].
        held_node: The node's number in the graph, int64 [M].
        held_owner: Whether the client owns the node, bool [M].
        edge_client: The client that holds an edge, int64 [E].
        edge_u: The edge's smaller endpoint, an id that the client holds, int64 [E].
        edge_v: The edge's larger endpoint, an id that the client holds, int64 [E].
        cross_local_client: The client from which a cross-client edge is seen, int64 [C].
        cross_id: The edge's endpoint at this client, an id that it holds, int64 [C].
        cross_remote_client: The client at the other endpoint, int64 [C].
        cross_remote_id: The other endpoint, an id that the remote client owns, int64 [C].
        num_clients: K.
        graph_hash: The hash of the partitioned graph.
        name: The partitioner, a printable text of at most 200 characters.
        options: The partitioner's options: finite numbers, and texts like `name`.
        seed: The partitioner's seed.
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
        """The SHA-256 hash (hexadecimal) of the tables, the number of clients and the graph's hash.

        Name, options and seed do not change it, so two partitioners with the same result have the same hash.
        """
        return content_hash(self.tables, f"{self.num_clients} {self.graph_hash}")

    def node_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the graph's node of each id.

        Args:
            ids: Ids that clients hold, of any shape.

        Returns:
            The nodes' numbers, int64, of the shape of `ids`.
        """
        # A table that is indexed by id would be simpler, but a file's ids may be large numbers.
        known, first = np.unique(self.held_id, return_index=True)
        nodes: np.ndarray = self.held_node[first][np.searchsorted(known, ids)]
        return nodes

    def check(self, graph: Graph, where: str | None = None) -> None:
        """Check that this is a partition of a graph.

        Args:
            graph: The graph of which this may be a partition.
            where: The name of the partition in error messages; by default its local name.

        Raises:
            InputError: The partition was made for another graph, or its tables have a row out of order, an
                unknown node or id, or an edge that the graph does not have.
        """
        where = f"the {self.name!r} partition" if where is None else where
        if graph.hash != self.graph_hash:
            raise InputError(
                f"{where} was made for a graph with hash {self.graph_hash[:12]}, and {graph.name!r} has hash "
                f"{graph.hash[:12]}; partition this graph again, or give the data that the partition was "
                "made for"
            )
        check_tables(self.tables, self.num_clients, where)
        check_against_graph(self.tables, graph, where)

    def save(self, path: str | Path) -> None:
        """Write the partition to a safetensors file, atomically.

        Args:
            path: The file, which is replaced if it exists.
        """
        metadata = {
            "format": FORMAT,
            "name": self.name,
            "options": self.options,
            "seed": self.seed,
            "num_clients": self.num_clients,
            "graph_hash": self.graph_hash,
            "hash": self.hash,
        }
        write_tensors(Path(path), self.tables, {"partition": json.dumps(metadata)})

    @staticmethod
    def metadata(path: str | Path) -> dict[str, Any]:
        """Read the metadata of a partition file without its tables.

        Args:
            path: A file that `save` wrote.

        Returns:
            The keys name, options, seed, num_clients, graph_hash and hash.

        Raises:
            InputError: The file is missing, or is no partition file.
        """
        path = Path(path)
        try:
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(f"the partition file {path} does not exist; {WRITE_ONE}") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "the name cannot be used"
            raise InputError(f"the partition file {shown(str(path))} cannot be read ({reason})") from None
        if not stat.S_ISREG(mode):  # reading a pipe would block
            what = "is a folder" if stat.S_ISDIR(mode) else "is no regular file"
            raise InputError(f"the partition file {path} {what}; {WRITE_ONE}")
        try:
            path.open("rb").close()  # safetensors reports a file without read permission as missing
            metadata = json.loads(read_metadata(path)["partition"])
            known = metadata["format"] == FORMAT
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        except Exception as error:  # a foreign file can fail in many ways
            raise InputError(f"{path} is not a partition file ({brief(error)}); {WRITE_ONE}") from error
        if not known:
            raise InputError(f"{path} was written by another version of graphfed; save it again")
        return check_metadata(metadata, str(path))

    @staticmethod
    def load(path: str | Path) -> "Partition":
        """Read a partition file and check its tables. `check` compares them with a graph.

        Args:
            path: A file that `save` wrote.

        Returns:
            The partition, whose tables are a partition of some graph.

        Raises:
            InputError: The file is missing, damaged or no partition file, or its tables are no partition of
                any graph. In the last case the message names table and row.
        """
        path = Path(path)
        # Metadata first: it is small and says whether the tables are worth reading.
        metadata = Partition.metadata(path)
        # The hash finds damage only. A hostile file may have a right one, so the tables are checked, too.
        expected = metadata.pop("hash")
        try:
            contents: dict[str, Any] = read_tensors(path)[0] | metadata
            loaded = Partition(**contents)
            intact = loaded.hash == expected
        except Exception as error:
            raise InputError(f"{path} is not a partition file ({brief(error)}); {WRITE_ONE}") from error
        if not intact:
            raise InputError(f"{path} is damaged: its content does not match its hash; write it again")
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
    """Build the partition in which every node is at exactly one client.

    Edges between nodes of different clients become rows of `cross`.

    Args:
        graph: The graph to partition, with N nodes.
        client: The client of each node, integers [N].
        num_clients: K; by default the largest client plus one.
        name: The name of the partitioner, for reports and for the file.
        options: The partitioner's options by name; None if it has none.
        seed: The seed of the partitioner's draws. Nothing is drawn here.

    Returns:
        The partition. Its ids are the numbers of the nodes.

    Raises:
        InputError: `client` has the wrong length or type, or an entry outside 0..num_clients-1.
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
    cross = ~inside
    edge_u, edge_v = u[inside], v[inside]
    # The edges are sorted by (u, v), so a stable sort by client sorts them by (client, u, v).
    order = order_by_client(client[edge_u], num_clients)
    # Both directions: each of the two clients has a row for the edge.
    ends = np.concatenate((u[cross], v[cross])), np.concatenate((v[cross], u[cross]))
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
    """Build the partition of clients that may share nodes and edges, without cross-client edges.

    An edge that a client does not hold is unknown to it. `held` is client, node and owner, [M] each, sorted
    by (client, node); `edges` is client, u and v, [E] each, sorted by (client, u, v).
    """
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
    """Sort rows by client, stably. Rows that are sorted by id become sorted by (client, id)."""
    # numpy sorts 16-bit integers with radix sort, about ten times faster than wider ones.
    short = client.astype(np.uint16) if num_clients <= 2**16 else client
    return np.argsort(short, kind="stable")


def cross_rows(
    held_client: np.ndarray, held_id: np.ndarray, local: np.ndarray, remote: np.ndarray
) -> dict[str, Any]:
    """Build the four columns of the table `cross`, for a partition in which one client holds each id.

    `held_client` and `held_id` [M] are sorted by (client, id); `local` and `remote` [C] are the ids at the
    two endpoints of each edge, in any order.
    """
    rows = len(held_id)
    row_of = np.empty(rows, dtype=np.int64)
    row_of[held_id] = np.arange(rows)
    # Rows of `held` are in the order of (client, id), so sorting the pairs of rows sorts all four columns.
    key = row_of[local] * rows + row_of[remote]
    key.sort()
    local_row, remote_row = (key // rows, key % rows) if rows else (key, key)
    return {
        "cross_local_client": held_client[local_row],
        "cross_id": held_id[local_row],
        "cross_remote_client": held_client[remote_row],
        "cross_remote_id": held_id[remote_row],
    }
