"""A cohort: the clients one worker holds, stacked in flat tensors with a client index, as PyG's Batch does
for graphs.

One client is a cohort of size one; all clients of a run can be one cohort. Functions run at the clients are
written for a cohort and never loop over its clients.
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
from graphfed.files import read_tensors, write_tensors
from graphfed.nn.sparse import SparseMatrix, sums_by

__all__ = [
    "OWNER_UNITS",
    "Cohort",
    "Links",
    "Names",
    "cohort_arrays",
    "load_cohort",
    "load_names",
    "make_cohort",
    "node_names",
    "save_cohort",
    "stable_ids_of",
    "with_partition_ids",
    "with_unit_features",
]


#: What a node counts for in sums over clients. A node that several clients own counts once, an equal share at
#: each; with up to 16 owners that is a whole number of these units, so sums are exact.
OWNER_UNITS = 720_720


@dataclass(frozen=True, eq=False)
class Links:
    """The pairs of nodes that K clients score, of link prediction; sorted by (row, id).

    row [L]: the node here; client [L]: the client (stable id) that holds the other one, which may be the
    same, and id [L] the other node's stable id; label [L] bool: whether the pair is an edge; part [L]
    uint8: 0 validation, 1 test. None of these edges is among those of the cohort."""

    row: Tensor
    client: Tensor
    id: Tensor
    label: Tensor
    part: Tensor


@dataclass(frozen=True, eq=False)
class Cohort:
    """The rows of K clients, sorted by (client, id).

    clients: stable ids of the clients; client [N] index in the cohort and id [N] stable node id of each
    row; x [N, F]; y [N] (-1: unknown, or known to other clients only); edge_index [2, E] (source,
    destination) rows, both directions, no self loops, inside a client; cross_row [C], cross_client [C]
    (stable
    id), cross_id [C]: edges to other clients' nodes; owned, train, val, test [N] bool: a node is trained
    on and scored where it is owned, which may be at several clients; owners [N]: at how many, of all the
    run's clients; edge_weight [E] and cross_weight [C]: of a weighted graph, else None; links: what is scored
    in link prediction, else None, and then no node is in a part; class_weights [C]: what a training node
    of each class counts for in the loss (None: 1)."""

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
    class_weights: Tensor | None = None

    @property
    def num_rows(self) -> int:
        return len(self.id)

    @property
    def num_clients(self) -> int:
        return len(self.clients)

    @property
    def num_features(self) -> int:
        return 0 if self.x is None else self.x.shape[1]

    def rows(self, target: str) -> Tensor:
        """The rows of "train", "val", "test" or "all" (every owned node), ascending [n] int64."""
        mask = {"train": self.train, "val": self.val, "test": self.test, "all": self.owned}[target]
        return mask.nonzero()[:, 0]

    def pairs(self, target: str) -> Tensor:
        """The pairs in `links` of "val", "test" or "all" (both), ascending [n] int64."""
        assert self.links is not None
        if target == "all":
            return torch.arange(len(self.links.row), device=self.links.row.device)
        return (self.links.part == PARTS.index(target)).nonzero()[:, 0]

    def degree(self, *, with_cross: bool = False) -> Tensor:
        """Neighbours of every row inside its client, and with the cut ones, [N] int64; in a weighted graph
        the sum of its edges' weights, [N] floats."""
        ends = torch.cat([self.edge_index[1], self.cross_row]) if with_cross else self.edge_index[1]
        if self.edge_weight is None:
            return torch.bincount(ends, minlength=self.num_rows)
        assert self.cross_weight is not None
        weight = torch.cat([self.edge_weight, self.cross_weight]) if with_cross else self.edge_weight
        return sums_by(ends, weight, self.num_rows)

    def loss_weights(self, rows: Tensor) -> Tensor | None:
        """What the loss of each of these labelled rows [n] counts for, by its class, [n]; None: 1 for
        each."""
        return None if self.class_weights is None else self.class_weights[self.y[rows]]

    def counts(self, mask: Tensor) -> Tensor:
        """Rows of each client in a mask [N], [K] int64."""
        return torch.bincount(self.client[mask], minlength=self.num_clients)


@dataclass(frozen=True)
class Names:
    """What a cohort's columns and classes are called: features (F of them), classes (C); and what the user
    calls its rows: nodes (N). () where unknown."""

    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


def stable_ids_of(graph: Graph, partition: Partition) -> np.ndarray | None:
    """The ids that every reader of the user's files gives a partition's nodes (`Graph.stable_ids`), so that a
    draw keyed by an id is the same whoever reads the files; None: the partition's own ids. These stand for a
    graph whose nodes are known by number, and for a partition with copies that count as different nodes: no
    client reads such copies from files of its own."""
    copies = bool((partition.held_id != partition.held_node).any())
    return None if copies else graph.stable_ids


def node_names(graph: Graph, cohort: Cohort, stable_ids: np.ndarray | None) -> tuple[str, ...]:
    """What the user calls the nodes of a cohort that was made with `stable_ids`; () where they have no names,
    or where the partition's ids are not the graph's numbers."""
    if graph.ids is None or stable_ids is None:
        return ()
    return tuple(graph.ids.take(with_partition_ids(cohort, stable_ids).id.cpu().numpy()).to_pylist())


def with_partition_ids(cohort: Cohort, stable_ids: np.ndarray | None) -> Cohort:
    """A cohort that was made with `stable_ids`, with the ids of the partition in their place, by which its
    rows are not sorted: to find the nodes that predictions are of."""
    if stable_ids is None:
        return cohort
    order = np.argsort(stable_ids)

    def numbers(ids: Tensor) -> Tensor:
        found = order[np.searchsorted(stable_ids, ids.cpu().numpy(), sorter=order)]
        return torch.from_numpy(found).to(ids.device)

    links = cohort.links
    return replace(
        cohort,
        id=numbers(cohort.id),
        cross_id=numbers(cohort.cross_id),
        links=None if links is None else replace(links, id=numbers(links.id)),
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
    """Stack the given clients (ascending ids) of a partitioned graph. Features take torch's default dtype.

    With a split of the edges `graph` and `partition` have the training edges only (`links.training_graph`).
    stable_ids [N]: the ids that the rows have, by the ids of the partition (`stable_ids_of`); None: those of
    the partition.

    Raises InputError for clients that are not clients of the partition, ascending, each once."""
    if list(clients) != sorted({*clients} & {*range(partition.num_clients)}):
        raise InputError(
            f"clients must be some of the partition's clients 0..{partition.num_clients - 1}, ascending, "
            f"each "
            f"once; got {list(clients)[:10]}"
        )
    wanted = np.full(partition.num_clients, -1)
    wanted[list(clients)] = np.arange(len(clients))
    held = wanted[partition.held_client] >= 0
    client, ids = wanted[partition.held_client[held]], partition.held_id[held]
    node, owned = partition.held_node[held], partition.held_owner[held]
    known, which = np.unique(partition.held_id, return_inverse=True)
    owners = np.bincount(which[partition.held_owner], minlength=len(known))[which[held]]
    width = int(partition.held_id.max(initial=0)) + 1
    codes = client * width + ids
    place = np.arange(len(codes))
    if stable_ids is not None:
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
    if stable_ids is not None:  # the partition's order is that of its own ids
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
        weight = graph.weights_between(node[u], node[v])
        edge_weight = tensor(np.concatenate([weight, weight])).to(torch.get_default_dtype())
        far = partition.node_of(remote_id)
        cross_weight = tensor(graph.weights_between(node[cross_row], far)).to(torch.get_default_dtype())

    x: Tensor | SparseMatrix | None = None
    if graph.x is not None:
        held_x = graph.x[node]
        x = (
            SparseMatrix.from_scipy(held_x).to(device)
            if sp.issparse(held_x)
            else tensor(held_x).to(torch.get_default_dtype())
        )
    links = None
    if isinstance(split, EdgeSplit):
        links = _links(scored_pairs(split, partition), wanted, row_of, stable_ids, tensor)
        parts = np.zeros((3, len(node)), dtype=bool)
    else:
        parts = np.stack([mask[node] & owned for mask in (split.train, split.val, split.test)])

    return Cohort(
        clients=tuple(int(k) for k in clients),
        client=tensor(client),
        id=tensor(ids),
        x=x,
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
    )


def _links(
    pairs: ScoredPairs,
    wanted: np.ndarray,
    row_of: Callable[[np.ndarray, np.ndarray], np.ndarray],
    stable_ids: np.ndarray | None,
    tensor: Callable[[np.ndarray], Tensor],
) -> Links:
    """The pairs that the clients of a cohort score. wanted: of each client, its place among these clients, or
    -1; row_of(client, id): the row; tensor: on the cohort's device."""
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


def with_unit_features(cohort: Cohort) -> Cohort:
    """With the features of every node scaled to length 1; those that are all 0 stay so."""
    x = cohort.x
    if isinstance(x, SparseMatrix):
        length = sums_by(x.row, x.values**2, x.shape[0]).sqrt()
        return replace(cohort, x=x.with_values(x.values / length[x.row].clamp(min=_TINY)))
    if x is None:
        return cohort
    return replace(cohort, x=x / x.norm(dim=1, keepdim=True).clamp(min=_TINY))


#: No length of anything but zeros is below it.
_TINY = 1e-30

_PLAIN = (
    "client",
    "id",
    "y",
    "edge_index",
    "cross_row",
    "cross_client",
    "cross_id",
    "owned",
    "train",
    "val",
    "test",
    "owners",
)
_WEIGHTS = ("edge_weight", "cross_weight")
#: The key of the names among a file's texts, and of the names of the rows among its arrays: JSON in UTF-8, as
#: texts are to be short.
_NAMES, _NODES = "names", "node_names"


def cohort_arrays(cohort: Cohort) -> dict[str, np.ndarray]:
    """Everything in a cohort, as arrays by name."""
    weights = _WEIGHTS if cohort.edge_weight is not None else ()
    arrays = {name: getattr(cohort, name).cpu().numpy() for name in (*_PLAIN, *weights)}
    if cohort.links is not None:
        arrays |= {name: getattr(cohort.links, name[6:]).cpu().numpy() for name in LINKS}
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
    return arrays


def save_cohort(cohort: Cohort, path: Path, names: Names | None = None) -> None:
    """Write a cohort as one safetensors file: what a client's process reads, and all it reads. names: go
    along as text."""
    told, arrays = None, cohort_arrays(cohort)
    if names is not None:
        told = {_NAMES: json.dumps({"features": names.features, "classes": names.classes})}
        if names.nodes:
            arrays[_NODES] = np.frombuffer(json.dumps(names.nodes).encode(), dtype=np.uint8)
    write_tensors(path, arrays, told)


def load_cohort(path: Path, *, device: torch.device | str = "cpu") -> Cohort:
    """Read what `save_cohort` wrote. Raises InputError for any other file, and for one whose columns do not
    go together."""
    try:
        arrays, _ = read_tensors(path)
    except Exception as error:
        raise InputError(f"{path} is not a cohort file: {error}") from error
    missing = {*_PLAIN, "clients", "num_classes"} - {*arrays}
    if missing:
        raise InputError(f"{path} is not a cohort file: it lacks {', '.join(sorted(missing))}")
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
        **{name: t[name] for name in _PLAIN},
    )


def load_names(path: Path) -> Names:
    """The names that `save_cohort` wrote beside a cohort; without any () for all. InputError for a file that
    is no cohort's, and for names that are no lists of text."""
    try:
        arrays, told = read_tensors(path, {_NODES})
        if _NAMES not in told:
            return Names()
        content = json.loads(told[_NAMES])
        nodes = json.loads(arrays[_NODES].tobytes()) if _NODES in arrays else []
        lists = [content["features"], content["classes"], nodes]
    except Exception as error:
        raise InputError(f"{path} is not a cohort file: {error}") from error
    for names in lists:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{path} is not a cohort file: its names are no lists of text")
    return Names(*map(tuple, lists))
