"""A cohort: the clients of one worker, stacked in flat tensors with a client index, as in PyG's `Batch`.

One client is a cohort of size one; all clients of a run can be one cohort. Functions that run at the clients
get a cohort and never loop over its clients.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from graphfed.data.graphs.graph import Graph, Split
from graphfed.data.graphs.link_splits import PARTS, EdgeSplit, ScoredPairs, scored_pairs
from graphfed.data.partitions.tables import Partition
from graphfed.errors import InputError
from graphfed.federation.cohort_checks import LINKS, check_arrays
from graphfed.federation.cohort_edges import CohortEdges, edges_of_partition
from graphfed.files import read_tensors, write_tensors
from graphfed.nn.sparse import SparseMatrix, sums_by

#: The units that a node counts in sums over clients. A node that n clients own counts 1/n at each of them;
#: for n up to 16 that is a whole number of these units, so sums over clients are exact.
OWNER_UNITS = 720_720


@dataclass(frozen=True, eq=False)
class Links:
    """The pairs of nodes that the clients of a cohort score in link prediction, sorted by (row, id).

    None of their edges is among the edges of the cohort.

    Attributes:
        row: [L] int64, the row of the local node.
        client: [L] int64, the stable id of the client that holds the other node; it may be the same client.
        id: [L] int64, the stable id of the other node.
        label: [L] bool, whether the pair is an edge.
        part: [L] uint8, 0 for validation, 1 for test.
    """

    row: Tensor
    client: Tensor
    id: Tensor
    label: Tensor
    part: Tensor


@dataclass(frozen=True, eq=False)
class Cohort:
    """The data of K clients: N rows, one for each node that a client holds, sorted by (client, id).

    An edge between two nodes of one client is in `edge_index`. A cross-client edge joins a node of one client
    to a node of another; each of the two clients has it in the `cross_*` tensors: its own node as a row, the
    other node by its owner and its id. A node is trained on and scored at the clients that own it, which may
    be several.

    Attributes:
        clients: The stable ids of the K clients.
        client: [N] int64, the index in the cohort of each row's client.
        id: [N] int64, the stable id of each row's node.
        x: [N, F], the features, dense or sparse; None without features.
        y: [N] int64, the labels; -1 if unknown, or known to other clients only.
        edge_index: [2, E] int64, (source, target) rows of the edges inside clients, in both directions,
            without self loops.
        cross_row: [C] int64, the row of the local node of each cross-client edge.
        cross_client: [C] int64, the stable id of the client that owns the other node.
        cross_id: [C] int64, the stable id of the other node.
        owned: [N] bool, whether the client owns the node.
        train, val, test: [N] bool, the parts of the split; only of owned nodes.
        owners: [N] int64, how many clients of the run own the node.
        edge_weight, cross_weight: [E] and [C], the weights of the edges of a weighted graph; else None.
        links: The pairs to score in link prediction; else None. With links, no node is in a part of the
            split.
        filled: The numbers of the features in which NaN is a gap, until set-up has filled it.
        class_weights: [num_classes], the weight of a training node of each class in the loss (None: 1).
        directed: The edges as the data lists them, with directions, attributes and times; None if each is one
            undirected edge without attributes. `edge_index` and `cross_*` have their pairs of nodes.
    """

    clients: tuple[int, ...]
    client: Tensor
    id: Tensor
    x: Tensor | SparseMatrix | None
    y: Tensor
    edge_index: Tensor
    cross_row: Tensor
    cross_client: Tensor
    cross_id: Tensor
    owned: Tensor
    train: Tensor
    val: Tensor
    test: Tensor
    owners: Tensor
    num_classes: int
    edge_weight: Tensor | None = None
    cross_weight: Tensor | None = None
    links: Links | None = None
    filled: tuple[int, ...] = ()
    class_weights: Tensor | None = None
    directed: CohortEdges | None = None

    @property
    def num_rows(self) -> int:
        return len(self.id)

    @property
    def num_clients(self) -> int:
        return len(self.clients)

    @property
    def num_features(self) -> int:
        """F, the number of features; 0 without features."""
        return 0 if self.x is None else self.x.shape[1]

    def rows(self, target: str) -> Tensor:
        """Select the rows [n] of a part of the split: "train", "val", "test", or "all" for every owned
        node.
        """
        mask = {"train": self.train, "val": self.val, "test": self.test, "all": self.owned}[target]
        return mask.nonzero()[:, 0]

    def pairs(self, target: str) -> Tensor:
        """Select the pairs [n] of `links` in a part of the split: "val", "test", or "all" for both."""
        assert self.links is not None
        if target == "all":
            return torch.arange(len(self.links.row), device=self.links.row.device)
        return (self.links.part == PARTS.index(target)).nonzero()[:, 0]

    def degree(self, *, with_cross: bool = False) -> Tensor:
        """Compute the degree [N] of every row, in a weighted graph the sum of the weights of its edges."""
        nodes = torch.cat([self.edge_index[1], self.cross_row]) if with_cross else self.edge_index[1]
        if self.edge_weight is None:
            return torch.bincount(nodes, minlength=self.num_rows)
        assert self.cross_weight is not None
        weight = torch.cat([self.edge_weight, self.cross_weight]) if with_cross else self.edge_weight
        return sums_by(nodes, weight, self.num_rows)

    def loss_weights(self, rows: Tensor) -> Tensor | None:
        """Look up the weights [n] of labelled rows in the loss, by their classes; None if each has weight
        1.
        """
        return None if self.class_weights is None else self.class_weights[self.y[rows]]

    def counts(self, mask: Tensor) -> Tensor:
        """Count the rows of each client in a mask [N]: [K] int64."""
        return torch.bincount(self.client[mask], minlength=self.num_clients)


@dataclass(frozen=True)
class Names:
    """The names of a cohort's F columns, C classes and N rows. Each tuple is empty if the names are
    unknown.
    """

    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


def stable_ids_of(graph: Graph, partition: Partition) -> np.ndarray | None:
    """Return the ids that every reader of the user's files gives the nodes of a partition, [N] int64.

    With these ids (`Graph.stable_ids`), a draw keyed by an id does not depend on who reads the files. A graph
    whose nodes are known by number has none, and the ids of the partition are used; nor has a partition with
    copies that count as different nodes, since no client reads such copies from its own files.
    """
    copies = bool((partition.held_id != partition.held_node).any())
    return None if copies else graph.stable_ids


def node_names(graph: Graph, cohort: Cohort, stable_ids: np.ndarray | None) -> tuple[str, ...]:
    """Look up the user's N names of the nodes of a cohort that was made with `stable_ids`.

    The names are empty if the nodes have none, or the ids of the partition are not the numbers of the graph's
    nodes.
    """
    if graph.ids is None or stable_ids is None:
        return ()
    return tuple(graph.ids.take(with_partition_ids(cohort, stable_ids).id.cpu().numpy()).to_pylist())


def with_partition_ids(cohort: Cohort, stable_ids: np.ndarray | None) -> Cohort:
    """Replace the stable ids of a cohort by the ids of the partition, to find the nodes of its predictions.

    Its rows keep their order, so they are not sorted by these ids.
    """
    if stable_ids is None:
        return cohort
    # order[position of an id among the sorted ids] is the id's number in the partition.
    order = np.argsort(stable_ids)

    def numbers(ids: Tensor) -> Tensor:
        found = order[np.searchsorted(stable_ids, ids.cpu().numpy(), sorter=order)]
        return torch.from_numpy(found).to(ids.device)

    links, directed = cohort.links, cohort.directed
    return replace(
        cohort,
        id=numbers(cohort.id),
        cross_id=numbers(cohort.cross_id),
        links=None if links is None else replace(links, id=numbers(links.id)),
        directed=None if directed is None else replace(directed, cross_id=numbers(directed.cross_id)),
    )


def make_cohort(
    graph: Graph,
    split: Split | EdgeSplit,
    partition: Partition,
    clients: Sequence[int],
    *,
    stable_ids: np.ndarray | None = None,
    device: torch.device | str = "cpu",
) -> Cohort:
    """Stack some clients of a partitioned graph into a cohort.

    Args:
        graph: The graph. With an `EdgeSplit`, the graph of the training edges (`links.training_graph`).
        clients: The ids of the clients, ascending.
        stable_ids: [N] int64, the ids of the rows, by the ids of the partition (`stable_ids_of`). None: the
            ids of the partition.

    Returns:
        The cohort. Its features have torch's default dtype, or float64 if the graph's have
        (`as_configured` rounds them, or features=scaled).

    Raises:
        InputError: If `clients` are not some clients of the partition, ascending, each once.
    """
    if list(clients) != sorted({*clients} & {*range(partition.num_clients)}):
        raise InputError(
            f"clients must be some of the partition's clients 0..{partition.num_clients - 1}, ascending, "
            f"each once; got {list(clients)[:10]}"
        )
    # The index in the cohort of each client of the partition; -1 for all others.
    wanted = np.full(partition.num_clients, -1)
    wanted[list(clients)] = np.arange(len(clients))
    held = wanted[partition.held_client] >= 0
    client, ids = wanted[partition.held_client[held]], partition.held_id[held]
    node, owned = partition.held_node[held], partition.held_owner[held]
    # Copies of a node have the same id, so counting ids among the owned rows counts owners.
    known, which = np.unique(partition.held_id, return_inverse=True)
    owners = np.bincount(which[partition.held_owner], minlength=len(known))[which[held]]
    # One ascending number for each (client, id) of the partition's order, to find rows by binary search.
    # `place` turns a position in that order into a row of the cohort.
    width = int(partition.held_id.max(initial=0)) + 1
    codes = client * width + ids
    place = np.arange(len(codes))
    if stable_ids is not None:
        # Rows are sorted by the stable ids, which another process that reads the files sorts by too.
        ids = stable_ids[ids]
        order = np.lexsort((ids, client))
        client, ids, node, owned, owners = (part[order] for part in (client, ids, node, owned, owners))
        place[order] = np.arange(len(order))

    def row_of(holding_client: np.ndarray, held_id: np.ndarray) -> np.ndarray:
        rows: np.ndarray = place[np.searchsorted(codes, wanted[holding_client] * width + held_id)]
        return rows

    inside = wanted[partition.edge_client] >= 0
    holding_client = partition.edge_client[inside]
    u, v = row_of(holding_client, partition.edge_u[inside]), row_of(holding_client, partition.edge_v[inside])
    outside = wanted[partition.cross_local_client] >= 0

    cross_row = row_of(partition.cross_local_client[outside], partition.cross_id[outside])
    cross_client, remote_id = partition.cross_remote_client[outside], partition.cross_remote_id[outside]
    cross_id = remote_id if stable_ids is None else stable_ids[remote_id]
    if stable_ids is not None:
        # The partition is sorted by its own ids, the cohort by the stable ones. Sums follow the order of
        # edges, so it must not depend on the ids of the partition.
        u, v = np.minimum(u, v), np.maximum(u, v)
        order = np.lexsort((v, u))
        u, v = u[order], v[order]
        order = np.lexsort((cross_id, cross_client, cross_row))
        cross_row, cross_client, cross_id, remote_id = (
            part[order] for part in (cross_row, cross_client, cross_id, remote_id)
        )

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    edge_weight = cross_weight = None
    if graph.edge_weight is not None:
        # The same weight in both directions, in the order of `edge_index`.
        weight = graph.weights_between(node[u], node[v])
        edge_weight = tensor(np.concatenate([weight, weight])).to(torch.get_default_dtype())
        remote_node = partition.node_of(remote_id)
        cross_weight = tensor(graph.weights_between(node[cross_row], remote_node)).to(
            torch.get_default_dtype()
        )
    x: Tensor | SparseMatrix | None = None
    if graph.x is not None:
        held_x = graph.x[node]
        x = (
            SparseMatrix.from_scipy(held_x).to(device)
            if sp.issparse(held_x)
            else promote_features(tensor(held_x))
        )
    links = None
    if isinstance(split, EdgeSplit):
        links = _links(scored_pairs(split, partition), wanted, row_of, stable_ids, tensor)
        # Pairs are scored instead of nodes, so no node is in a part of the split.
        parts = np.zeros((3, len(node)), dtype=bool)
    else:
        parts = np.stack([mask[node] & owned for mask in (split.train, split.val, split.test)])

    return Cohort(
        clients=tuple(int(k) for k in clients),
        client=tensor(client),
        id=tensor(ids),
        x=x,
        # A client may hold a copy of another client's node, but it knows the labels of its own nodes only.
        y=tensor(np.where(owned, graph.y[node], -1)),
        edge_index=tensor(np.stack([np.concatenate([u, v]), np.concatenate([v, u])])),
        cross_row=tensor(cross_row),
        cross_client=tensor(cross_client),
        cross_id=tensor(cross_id),
        owned=tensor(owned),
        train=tensor(parts[0]),
        val=tensor(parts[1]),
        test=tensor(parts[2]),
        owners=tensor(owners),
        num_classes=graph.num_classes,
        edge_weight=edge_weight,
        cross_weight=cross_weight,
        links=links,
        filled=graph.filled,
        directed=None
        if graph.directed is None
        else edges_of_partition(
            graph.directed,
            node,
            owned,
            (u, v),
            (cross_row, partition.node_of(remote_id), cross_client, cross_id),
        ).to(device),
    )


def _links(
    pairs: ScoredPairs,
    wanted: np.ndarray,
    row_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    stable_ids: np.ndarray | None,
    tensor: Callable[[np.ndarray], Tensor],
) -> Links:
    """Collect the pairs that the clients of a cohort score.

    `wanted` [K] int64 has for each client of the partition its index in the cohort, or -1. `row_of` returns
    the rows of nodes, from their clients and ids.
    """
    here = np.flatnonzero(wanted[pairs.client] >= 0)
    row, other = row_of(pairs.client[here], pairs.id[here]), pairs.other_id[here]
    if stable_ids is not None:
        other = stable_ids[other]
        order = np.lexsort((other, row))
        here, row, other = here[order], row[order], other[order]
    return Links(
        row=tensor(row),
        client=tensor(pairs.other_client[here]),
        id=tensor(other),
        label=tensor(pairs.label[here]),
        part=tensor(pairs.part[here]),
    )


def promote_features(x: Tensor) -> Tensor:
    """Convert features to torch's default dtype, except float64, which they keep (`feature_numbers`)."""
    return x.to(torch.promote_types(x.dtype, torch.get_default_dtype()))


def with_unit_features(cohort: Cohort) -> Cohort:
    """Scale the features of every node to length 1. A node whose features are all 0 keeps them."""
    x = cohort.x
    if isinstance(x, SparseMatrix):
        length = sums_by(x.row, x.values**2, x.shape[0]).sqrt()
        return replace(cohort, x=x.with_values(x.values / length[x.row].clamp(min=_TINY)))
    if x is None:
        return cohort
    return replace(cohort, x=unit_rows(x))


def unit_rows(x: Tensor) -> Tensor:
    """Scale dense rows [n, F] to length 1, except those that are all 0."""
    length: Tensor = x.norm(dim=1, keepdim=True)
    return x / length.clamp(min=_TINY)


#: The length of a feature vector that is not all 0 is above this.
_TINY = 1e-30

_PLAIN = (
    "client", "id", "y", "edge_index", "cross_row", "cross_client", "cross_id", "owned", "train", "val",
    "test", "owners",
)  # fmt: skip
_WEIGHTS = ("edge_weight", "cross_weight")
#: The key of the names in a file's metadata; and the key of the names of the rows among its arrays, where
#: they are JSON in UTF-8, because metadata must be short.
_NAMES, _NODES = "names", "node_names"


def cohort_arrays(cohort: Cohort) -> dict[str, np.ndarray]:
    """Convert everything in a cohort to arrays, by name."""
    weights = _WEIGHTS if cohort.edge_weight is not None else ()
    arrays = {name: getattr(cohort, name).cpu().numpy() for name in (*_PLAIN, *weights)}
    if cohort.links is not None:
        arrays |= {name: getattr(cohort.links, name[6:]).cpu().numpy() for name in LINKS}
    if cohort.directed is not None:
        arrays |= cohort.directed.to_arrays()
    arrays["clients"] = np.array(cohort.clients, dtype=np.int64)
    arrays["num_classes"] = np.array([cohort.num_classes])
    if isinstance(cohort.x, SparseMatrix):
        arrays |= {
            "x_row": cohort.x.row.cpu().numpy(),
            "x_col": cohort.x.indices.cpu().numpy().astype(np.int64),
            "x_values": cohort.x.values.cpu().numpy(),
            "x_shape": np.array(cohort.x.shape),
        }
    elif cohort.x is not None:
        arrays["x"] = cohort.x.cpu().numpy()
        if cohort.filled:
            arrays["filled"] = np.array(cohort.filled)
    return arrays


def save_cohort(cohort: Cohort, path: Path, names: Names | None = None) -> None:
    """Write a cohort, and names with it, as one safetensors file, from which a client's process reads all
    its data.
    """
    metadata, arrays = None, cohort_arrays(cohort)
    if names is not None:
        metadata = {_NAMES: json.dumps({"features": names.features, "classes": names.classes})}
        if names.nodes:
            # Names of rows are too long for the metadata, so they are an array of bytes.
            arrays[_NODES] = np.frombuffer(json.dumps(names.nodes).encode(), dtype=np.uint8)
    write_tensors(path, arrays, metadata)


def load_cohort(path: Path, *, device: torch.device | str = "cpu") -> Cohort:
    """Read a file that `save_cohort` wrote; InputError if it is none, or its arrays do not fit together."""
    try:
        arrays, _ = read_tensors(path)
    except Exception as error:
        raise InputError(f"{path} is not a cohort file: {error}") from error
    missing = {*_PLAIN, "clients", "num_classes"} - {*arrays}
    if missing:
        raise InputError(f"{path} is not a cohort file: it has no {', '.join(sorted(missing))}")
    check_arrays(arrays, str(path))
    t = {name: torch.from_numpy(value).to(device) for name, value in arrays.items()}
    x: Tensor | SparseMatrix | None = t.get("x")
    if "x_values" in t:
        rows, columns = arrays["x_shape"].tolist()
        x = SparseMatrix.from_coo(t["x_row"], t["x_col"], t["x_values"], (rows, columns))
    return Cohort(
        clients=tuple(arrays["clients"].tolist()),
        x=x,
        num_classes=int(arrays["num_classes"][0]),
        edge_weight=t.get("edge_weight"),
        cross_weight=t.get("cross_weight"),
        links=Links(**{name[6:]: t[name] for name in LINKS}) if {*LINKS} & {*t} else None,
        directed=CohortEdges.from_tensors(t),
        filled=tuple(arrays["filled"].tolist()) if "filled" in arrays else (),
        **{name: t[name] for name in _PLAIN},
    )


def load_names(path: Path) -> Names:
    """Read the names in a file that `save_cohort` wrote; all empty if the file has none.

    InputError if the file is not a cohort file, or its names are not lists of text.
    """
    try:
        arrays, metadata = read_tensors(path, {_NODES})
        if _NAMES not in metadata:
            return Names()
        content = json.loads(metadata[_NAMES])
        nodes = json.loads(arrays[_NODES].tobytes()) if _NODES in arrays else []
        lists = [content["features"], content["classes"], nodes]
    except Exception as error:
        raise InputError(f"{path} is not a cohort file: {error}") from error
    for names in lists:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{path} is not a cohort file: its names are not lists of text")
    return Names(*map(tuple, lists))
