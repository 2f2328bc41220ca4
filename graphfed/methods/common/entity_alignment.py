"""Entity alignment of SAPGNN and PPGNN: clients with overlapping graphs agree on which nodes are the same.

Every client sends the server a name for each of its nodes. A node has the same name at all its clients. The
name is a keyed hash of the node's id (`graphfed.crypto.keyed_ids`). With node_ids=keyed the key is that of
the clients, which the server must not have; by default the key is simulated.

The server learns which clients have a node in common and which nodes are trained on. It compares keyed hashes
of features, and stops the run if a node has different features at two clients. The initial weights that all
clients have in common are drawn from the key too, because a server that could draw the maps before upload
could undo them.
"""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from graphfed.crypto.keyed_ids import clients_key, keyed_names, simulated_key
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods.base import Task
from graphfed.methods.common.local_training import NO_TRAINING_NODE
from graphfed.methods.parts import Run
from graphfed.methods.settings import settings
from graphfed.nn.sparse import SparseMatrix


@settings
class NodeIds:
    """The names of nodes that several clients may hold."""

    node_ids: Literal["simulated", "keyed", "plain"] = Field(
        default="simulated",
        description="names of nodes at the server: hashes under a simulated key (simulated), hashes under "
        "the clients' key in GRAPHFED_CLIENTS_KEY (keyed), or the ids themselves (plain)",
    )

    @property
    def protection(self) -> str:
        return {"simulated": "simulated", "keyed": "keyed hash", "plain": "plaintext"}[self.node_ids]


class Aligned(Protocol):
    """Settings with the parts that entity alignment reads."""

    @property
    def run(self) -> Run: ...
    @property
    def ids(self) -> NodeIds: ...


# ---- at the clients ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NamedCohort:
    """The cohort of some clients, with the name of each row's node, [N] int64, the same at all clients."""

    cohort: Cohort
    names: Tensor


def all_rows(clients: NamedCohort) -> Tensor:
    """Return the numbers of all rows, [N]."""
    return torch.arange(clients.cohort.num_rows, device=clients.names.device)


def prepare(cohort: Cohort, task: Task, ids: NodeIds, seed: int) -> NamedCohort:
    """Check a cohort and name its nodes.

    Raises InputError if a client has no node, or the width of the features is not the agreed one.
    """
    # Pooling and shares are over all clients; one without a node could not name anything.
    empty = (torch.bincount(cohort.client, minlength=cohort.num_clients) == 0).nonzero()[:, 0]
    if len(empty):
        raise InputError(
            f"client {cohort.clients[int(empty[0])]} holds no node; leave it out, or give it its nodes"
        )
    if cohort.num_features != task.num_features:
        raise InputError(
            f"client {cohort.clients[0]} has {cohort.num_features} features where the clients agreed on "
            f"{task.num_features}; all clients need the same features in the same order"
        )
    return NamedCohort(cohort, names_of_ids(cohort, ids, seed))


def names_of_ids(cohort: Cohort, ids: NodeIds, seed: int) -> Tensor:
    """Return the name of each row's node, [N] int64, the same at all clients."""
    if ids.node_ids == "plain":
        return cohort.id
    # Hashing is slow, and clients of one cohort share nodes: each distinct id is hashed once.
    known, place = np.unique(cohort.id.cpu().numpy(), return_inverse=True)
    hashed = keyed_names(secret(ids, seed), "vertex", (str(i).encode() for i in known.tolist()))
    # 64 bits: a collision is unlikely, but it would merge two nodes without a sign.
    if len(np.unique(hashed)) < len(hashed):
        raise InputError("two nodes have one name under the clients' key; agree on another key")
    return torch.from_numpy(hashed[place]).to(cohort.id.device)


def secret(ids: NodeIds, seed: int) -> bytes:
    """Return the key of the names: the clients' own, or a simulated one that follows from the run's seed."""
    return clients_key() if ids.node_ids == "keyed" else simulated_key(seed)


def common_seed(ids: NodeIds, seed: int) -> int:
    """Derive the seed, a number of 63 bits, of the weights that all clients have in common.

    It follows from the clients' key and the run's seed: a server without the key cannot draw these weights.
    """
    # "weights" separates this use of the key from the names that the server sees.
    (name,) = keyed_names(secret(ids, seed), "weights", [str(seed).encode()]).tolist()
    # Seeds are not negative.
    return int(name) & (1 << 63) - 1


def key_check(clients: NamedCohort, ids: NodeIds, seed: int) -> Tensor:
    """Return a value that is equal for equal keys and says nothing else about them, [K_h] int64."""
    (name,) = keyed_names(secret(ids, seed), "key check", [b""]).tolist()
    return torch.full((clients.cohort.num_clients,), name, device=clients.names.device)


def feature_digests(clients: NamedCohort, ids: NodeIds, seed: int) -> Tensor:
    """Return a keyed hash of every node's id and features, [N] int64.

    Two clients have the same hash for a node if and only if they have the same features for it (up to
    collisions).
    """
    x, known = clients.cohort.x, clients.cohort.id.tolist()
    assert x is not None
    # Only non-zero values are hashed, with their columns: one client may store the features of a node as
    # a dense row and another as a sparse row with or without stored zeros.
    if isinstance(x, SparseMatrix):
        row, column, value = x.row, x.indices.long(), x.values
    else:
        row, column = x.nonzero(as_tuple=True)
        value = x[row, column]
    nonzero = value != 0
    owner, columns, values = (part[nonzero].cpu().numpy() for part in (row, column, value))
    ends = np.searchsorted(owner, np.arange(len(known) + 1)).tolist()
    rows = (columns[a:b].tobytes() + values[a:b].tobytes() for a, b in pairwise(ends))
    # With the id in the hash, equal features of two nodes do not have equal digests.
    digests = keyed_names(
        secret(ids, seed), "features", (f"{i} ".encode() + r for i, r in zip(known, rows, strict=True))
    )
    return torch.from_numpy(digests.copy()).to(clients.names.device)


def node_names(clients: NamedCohort) -> RowIds:
    return RowIds(clients.names, clients.cohort.client)


def training_names(clients: NamedCohort) -> RowIds:
    return names_of(clients, clients.cohort.rows("train"))


def names_of(clients: NamedCohort, rows: Tensor) -> RowIds:
    return RowIds(clients.names[rows], clients.cohort.client[rows])


def owner_names(cohort: Cohort, ids: NodeIds, seed: int) -> RowIds:
    return RowIds(names_of_ids(cohort, ids, seed), cohort.client)


def has_label(cohort: Cohort) -> Tensor:
    return (cohort.y >= 0).to(torch.uint8)


def with_owners(cohort: Cohort, counts: Tensor) -> Cohort:
    """Set `owned` and `owners` of a cohort from the counts of `owners_of`, [N].

    A client does not own a node if other clients have its label and it has not.
    """
    # A negative count: no client has the label, so all clients with the node own it.
    return replace(cohort, owned=(cohort.y >= 0) | (counts < 0), owners=counts.abs())


# ---- at the server -----------------------------------------------------------------------------------------


def check_keys(checks: Tensor) -> Tensor:
    """Raise InputError if two clients have different keys; checks [K]: the values of `key_check`."""
    other = (checks != checks[0]).nonzero()[:, 0]
    if len(other):
        raise InputError(
            f"clients 0 and {int(other[0])} have different keys for the names of nodes; give every client "
            "the same key in GRAPHFED_CLIENTS_KEY"
        )
    return checks


def check_features(digests: Tensor, table: RouteTable) -> Tensor:
    """Raise InputError if a node has different features at two clients; digests [M] of all uploaded rows."""
    # Each row is compared with the first one of its node, which takes no sort of the digests.
    first = torch.full((len(table.ids),), len(digests), device=digests.device)
    rows = torch.arange(len(digests), device=digests.device)
    first = first.scatter_reduce(0, table.index, rows, "amin")[table.index]
    odd = (digests != digests[first]).nonzero()[:, 0]
    if len(odd):
        row = int(odd[0])
        name = int(table.ids[table.index[row]]) & (1 << 64) - 1
        raise InputError(
            f"clients {int(table.client[first[row]])} and {int(table.client[row])} have different features "
            f"for the node with the name {name:016x} ({len(odd)} such nodes); a node that several clients "
            "have needs the same features, in the same order and scale, at all of them"
        )
    return digests


def count_batches(table: RouteTable, size: int | None) -> dict[str, int]:
    """Return the number of batches of `size` training nodes (None: one batch); InputError without any."""
    if not len(table.ids):
        raise InputError(NO_TRAINING_NODE)
    # Rounded up: the batches are then filled evenly (`batch_of`), so none is nearly empty.
    return {"batches": 1 if size is None else -(-len(table.ids) // size)}


def weights_of_losses(table: RouteTable, batches: int) -> Tensor:
    """Return the weight of each training node's loss at each of its owners, [n].

    The weighted sum of a batch is its mean over nodes, each counted once however many clients own it.
    """
    batch = batch_of(table, batches)
    # In float64: 1 / n of a large batch, divided by the owners, is rounded once at the end.
    share = 1.0 / torch.bincount(batch, minlength=batches).double()[batch]
    owners = torch.bincount(table.index, minlength=len(table.ids))
    return (share / owners).to(torch.get_default_dtype())


def batch_of(table: RouteTable, batches: int) -> Tensor:
    """Return the batch of every training node, [n] int64.

    Batches have nearly equal sizes and follow the order of the nodes' names.
    """
    n = len(table.ids)
    # By the order of names, which is the same everywhere: no draw has to be agreed on.
    return torch.arange(n, device=table.ids.device) * batches // n


def owners_of(labels: Tensor, table: RouteTable) -> Tensor:
    """Count the owners of each node, [U] int64; labels [M] uint8: whether each row has a label.

    The count is the number of clients that have the node's label. If no client has it, the count is minus
    the number of clients that have the node.
    """
    clients = torch.bincount(table.index, minlength=len(table.ids))
    known = torch.zeros_like(clients).index_add(0, table.index, labels.long())
    return torch.where(known > 0, known, -clients)


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alignment:
    """The `NamedCohort` of the clients, the route of all their nodes, and the protection of the names."""

    clients: Located
    route: Route
    protection: str

    def route_of(self, fed: Federation, rows: Located, *, name: str) -> Route:
        """Make the route of some of the nodes: clients send the names of the cohort's rows [n], ascending."""
        names = fed.clients.run(names_of, self.clients, rows)
        return fed.route(names, name=name, protection=self.protection)


def align(fed: Federation, data: Located, task: Task, config: Aligned) -> Alignment:
    """Agree on which nodes of different clients are the same.

    Raises InputError if a client has no node, features of another width, no key or a different key; or if a
    node has different features at two clients.
    """
    fed.begin("finding the nodes that clients have in common")
    ids, seed = config.ids, config.run.seed
    clients = fed.clients.run(prepare, data, task, ids, seed)
    protection = ids.protection
    # Simulated keys follow from the seed and cannot differ.
    if ids.node_ids == "keyed":
        checks = fed.clients.run(key_check, clients, ids, seed)
        checks = fed.gather(checks, name="key_check", protection=protection, grad=False)
        fed.server.run(check_keys, checks)
    route = fed.route(fed.clients.run(node_names, clients), name="node_ids", protection=protection)
    digests = fed.clients.run(feature_digests, clients, ids, seed)
    # With plain names the digests are still hashes, under a simulated key.
    hashed = "keyed hash" if ids.node_ids == "keyed" else "simulated"
    digests = fed.upload(digests, route, name="feature_digests", protection=hashed, grad=False)
    fed.server.run(check_features, digests, fed.table(route))
    return Alignment(clients, route, protection)


@dataclass(frozen=True)
class TrainingNodes:
    """At the clients, the weight of the loss and the batch (None: one for all) of each training row, [n]."""

    weight: Located
    batch: Located | None
    batches: int


def training_nodes(fed: Federation, aligned: Alignment, batch_size: int | None) -> TrainingNodes:
    """Weigh training rows so that every training node counts once, however many clients have its label.

    A batch has `batch_size` training nodes; None for one batch of all. InputError if there is no training
    node.

    Reference:
        SAPGNN, Eq. (15), and docs/papers/sapgnn.md, difference 3.
    """
    names = fed.clients.run(training_names, aligned.clients)
    route = fed.route(names, name="training_ids", protection=aligned.protection)
    table = fed.table(route)
    count = fed.control(count_batches, table, batch_size, values={"batches": int})["batches"]
    weight = fed.server.run(weights_of_losses, table, count)
    weight = fed.download(
        weight, route, name="loss_weights", grad=False, like=TensorForm(torch.get_default_dtype())
    )
    # Without batches the server has nothing to send but the weights.
    if count == 1:
        return TrainingNodes(weight, None, 1)
    batch = fed.download(
        fed.server.run(batch_of, table, count),
        route,
        name="batches",
        grad=False,
        like=TensorForm(torch.int64),
    )
    return TrainingNodes(weight, batch, count)


def count_owners(fed: Federation, data: Located, config: Aligned) -> Located:
    """Set `owned` and `owners` for clients that have read their own files, as a partition of all data would.

    A node is owned by the clients that have its label. If no client has its label, all its clients own it.
    Run this before a method whose settings have `NodeIds`. Clients with different keys have no name in common
    here; `align` refuses them afterwards.
    """
    names = fed.clients.run(owner_names, data, config.ids, config.run.seed)
    route = fed.route(names, name="owners/node_ids", protection=config.ids.protection)
    labels = fed.upload(fed.clients.run(has_label, data), route, name="owners/labels", grad=False)
    counts = fed.server.run(owners_of, labels, fed.table(route))
    counts = fed.download(counts, route, name="owners/counts", grad=False, like=TensorForm(torch.int64))
    return fed.clients.run(with_owners, data, counts)


OWNER_MESSAGES = {
    "owners/node_ids": "Each client sends the server a name for each of its nodes, as in node_ids. The "
    "server learns which clients have a node with the same name.",
    "owners/labels": "Each client sends the server, for each of its nodes, whether it has the node's label, "
    "and not the label itself. The server reads this.",
    "owners/counts": "The server sends each client, for each of its nodes, how many clients have the node's "
    "label; if no client has it, how many clients have the node.",
}

MESSAGES = {
    "key_check": "Each client sends the server a number that is the same for all clients with the same key. "
    "The server stops the run if a client has a different key. The number says nothing about the key.",
    "node_ids": "Each client sends the server a name for each of its nodes. The server learns which clients "
    "have a node with the same name. The name is a keyed hash of the node's id, which the server cannot "
    "invert without the clients' key; with node_ids=simulated the server could, and with node_ids=plain the "
    "name is the id.",
    "feature_digests": "Each client sends the server a keyed hash of each node's id and features. The server "
    "learns whether two clients have the same features for a node, and stops the run if they differ.",
    "training_ids": "Each client sends the server the names of the nodes whose labels it has for training, "
    "so that each node counts once. The server learns which nodes these are.",
    "loss_weights": "The server sends each client the weight of the loss of each of its training nodes. The "
    "client learns how many training nodes there are and how many clients have the label of each.",
    "batches": "Only with batch_size: the server sends each client the batch of each of its training nodes.",
}
