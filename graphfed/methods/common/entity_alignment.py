"""How holders of overlapping graphs and a server find out which nodes are the same: what SAPGNN and PPGNN
set up before they train.

Every holder sends a name for each of its nodes; the same node has the same name at all of them. A name
is a keyed hash of the node's id (`graphfed.crypto.keyed_ids`): with node_ids=keyed under the holders'
key, which the server must not have, by default under a simulated one. The server learns which holders have a
node in common and which nodes are trained on. It refuses nodes whose features differ between holders:
it compares keyed hashes of them, and learns that they are the same or not. The first weights that holders
have in common follow from the key too: the server could undo maps that it can draw itself."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

from graphfed.crypto.keyed_ids import clients_key, keyed_names, simulated_key
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods.base import Task
from graphfed.methods.config import CommonSettings
from graphfed.nn.sparse import SparseMatrix

__all__ = [
    "MESSAGES",
    "OWNER_MESSAGES",
    "Alignment",
    "AlignmentSettings",
    "Holders",
    "TrainingNodes",
    "align",
    "common_seed",
    "count_owners",
    "training_nodes",
]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class AlignmentSettings:
    """The names of nodes that several clients may hold."""

    node_ids: Literal["simulated", "keyed", "plain"] = Field(
        default="simulated",
        description="names of nodes at the server: hashes with a simulated key, with the holders' key "
        "(GRAPHFED_HOLDERS_KEY), or the ids",
    )


# ---- at the holders ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holders:
    """A cohort of holders. names [N] int64: of its nodes, alike at all holders."""

    cohort: Cohort
    names: Tensor


def prepare(cohort: Cohort, task: Task, config: AlignmentSettings) -> Holders:
    """InputError for a holder without nodes, or with features of another width than agreed on."""
    empty = (torch.bincount(cohort.client, minlength=cohort.num_clients) == 0).nonzero()[:, 0]
    if len(empty):
        raise InputError(
            f"client {cohort.clients[int(empty[0])]} holds no node; leave it out, or give it its nodes"
        )
    if cohort.num_features != task.num_features:
        raise InputError(
            f"client {cohort.clients[0]} has {cohort.num_features} features where the holders agreed on "
            f"{task.num_features}; all holders need the same features in the same order"
        )
    return Holders(cohort, names_of_ids(cohort, config))


def names_of_ids(cohort: Cohort, config: AlignmentSettings) -> Tensor:
    """The name of each row's node, [N] int64, alike at all holders."""
    if config.node_ids == "plain":
        return cohort.id
    ids, place = np.unique(cohort.id.cpu().numpy(), return_inverse=True)
    hashed = keyed_names(secret(config), "vertex", (str(i).encode() for i in ids.tolist()))
    if len(np.unique(hashed)) < len(hashed):
        raise InputError("two nodes have one name under the holders' key; agree on another key")
    return torch.from_numpy(hashed[place]).to(cohort.id.device)


def secret(config: AlignmentSettings) -> bytes:
    return clients_key() if config.node_ids == "keyed" else simulated_key(_seed(config))


def _seed(config: AlignmentSettings) -> int:
    assert isinstance(config, CommonSettings)
    return config.seed


def common_seed(config: AlignmentSettings) -> int:
    """The seed of weights that all holders have in common: it follows from their key, so that who lacks the
    key cannot draw them."""
    (name,) = keyed_names(secret(config), "weights", [str(_seed(config)).encode()]).tolist()
    return int(name) & (1 << 63) - 1


def key_check(holders: Holders, config: AlignmentSettings) -> Tensor:
    """What tells equal keys from different ones, and nothing else of them: [K_h] int64."""
    (name,) = keyed_names(secret(config), "key check", [b""]).tolist()
    return torch.full((holders.cohort.num_clients,), name, device=holders.names.device)


def feature_digests(holders: Holders, config: AlignmentSettings) -> Tensor:
    """A keyed hash of every node's id and features, [N] int64: at two holders alike where both have the
    same."""
    x, ids = holders.cohort.x, holders.cohort.id.tolist()
    if isinstance(x, SparseMatrix):
        kept = (x.values != 0).cpu().numpy()
        ends = np.concatenate([[0], np.cumsum(kept)])[x.indptr.cpu().numpy()].tolist()
        columns = x.indices.cpu().numpy().astype(np.int64)[kept]
        values = x.values.cpu().numpy()[kept]
        rows = (columns[a:b].tobytes() + values[a:b].tobytes() for a, b in pairwise(ends))
    else:
        assert x is not None
        rows = (row.tobytes() for row in x.cpu().numpy())
    told = keyed_names(
        secret(config), "features", (f"{i} ".encode() + r for i, r in zip(ids, rows, strict=True))
    )
    return torch.from_numpy(told.copy()).to(holders.names.device)


def node_names(holders: Holders) -> RowIds:
    return RowIds(holders.names, holders.cohort.client)


def training_names(holders: Holders) -> RowIds:
    return names_of(holders, holders.cohort.rows("train"))


def names_of(holders: Holders, rows: Tensor) -> RowIds:
    return RowIds(holders.names[rows], holders.cohort.client[rows])


def owner_names(cohort: Cohort, config: AlignmentSettings) -> RowIds:
    return RowIds(names_of_ids(cohort, config), cohort.client)


def has_label(cohort: Cohort) -> Tensor:
    """[N] uint8."""
    return (cohort.y >= 0).to(torch.uint8)


def with_owners(cohort: Cohort, counts: Tensor) -> Cohort:
    """counts [N]: as of `owners_of`. A node without a label here is others' where they have its label."""
    return replace(cohort, owned=(cohort.y >= 0) | (counts < 0), owners=counts.abs())


# ---- at the server -----------------------------------------------------------------------------------------


def check_keys(checks: Tensor) -> Tensor:
    other = (checks != checks[0]).nonzero()[:, 0]
    if len(other):
        raise InputError(
            f"clients 0 and {int(other[0])} have different holders' keys; give every holder the same one"
        )
    return checks


def check_features(digests: Tensor, table: RouteTable) -> Tensor:
    """InputError where a node has other features at one holder than at another."""
    first = torch.full((len(table.ids),), len(digests), device=digests.device)
    rows = torch.arange(len(digests), device=digests.device)
    first = first.scatter_reduce(0, table.index, rows, "amin")[table.index]
    odd = (digests != digests[first]).nonzero()[:, 0]
    if len(odd):
        row = int(odd[0])
        name = int(table.ids[table.index[row]]) & (1 << 64) - 1
        raise InputError(
            f"clients {int(table.client[first[row]])} and {int(table.client[row])} have different features "
            f"for the node of name {name:016x} ({len(odd)} such nodes); a node that several holders "
            "have needs the same features, in the same order and scale, at all of them"
        )
    return digests


def count_batches(table: RouteTable, size: int | None) -> dict[str, int]:
    """InputError where nobody has a training node."""
    if not len(table.ids):
        raise InputError("no client has a training node; use another split or partition")
    return {"batches": 1 if size is None else -(-len(table.ids) // size)}


def weights_of_losses(table: RouteTable, batches: int) -> Tensor:
    """What each training node's loss weighs at each of its owners, [n]: a batch's sum is its mean."""
    batch = batch_of(table, batches)
    share = 1.0 / torch.bincount(batch, minlength=batches).double()[batch]
    owners = torch.bincount(table.index, minlength=len(table.ids))
    return (share / owners).to(torch.get_default_dtype())


def batch_of(table: RouteTable, batches: int) -> Tensor:
    """The batch of every training node, [n] int64: of nearly equal sizes, in the order of their names."""
    n = len(table.ids)
    return torch.arange(n, device=table.ids.device) * batches // n


def owners_of(labels: Tensor, table: RouteTable) -> Tensor:
    """How many holders have the label of each node, or, below zero, how many have the node where none has
    its label, [U] int64. labels [M] uint8: whether each row has one."""
    holders = torch.bincount(table.index, minlength=len(table.ids))
    known = torch.zeros_like(holders).index_add(0, table.index, labels.long())
    return torch.where(known > 0, known, -holders)


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alignment:
    """`Holders` at the clients, the route of all their nodes, and the names' protection on the ledger."""

    holders: Located
    route: Route
    protection: str

    def route_of(self, fed: Federation, rows: Located, *, name: str) -> Route:
        """The route of some of the nodes; rows [n]: of the cohort, ascending."""
        names = fed.clients.run(names_of, self.holders, rows)
        return fed.route(names, name=name, protection=self.protection)


def align(fed: Federation, data: Located, task: Task, config: AlignmentSettings) -> Alignment:
    """Agree on which nodes are the same.

    InputError for a holder without nodes or with features of another width, a missing key or another than
    the other holders', and a node with other features at one holder than at another."""
    fed.begin("finding the nodes that clients have in common")
    holders = fed.clients.run(prepare, data, task, config)
    protection = protection_of(config)
    if config.node_ids == "keyed":
        checks = fed.clients.run(key_check, holders, config)
        checks = fed.gather(checks, name="key_check", protection=protection, grad=False)
        fed.server.run(check_keys, checks)
    route = fed.route(fed.clients.run(node_names, holders), name="node_ids", protection=protection)
    digests = fed.clients.run(feature_digests, holders, config)
    # Under a simulated key too where the names are plain.
    hashed = "keyed hash" if config.node_ids == "keyed" else "simulated"
    digests = fed.upload(digests, route, name="feature_digests", protection=hashed, grad=False)
    fed.server.run(check_features, digests, fed.table(route))
    return Alignment(holders, route, protection)


@dataclass(frozen=True)
class TrainingNodes:
    """At the clients, for every training row of a cohort: weight [n] of its loss and batch [n] (None: there
    is one batch)."""

    weight: Located
    batch: Located | None
    batches: int


def training_nodes(fed: Federation, aligned: Alignment, batch_size: int | None) -> TrainingNodes:
    """Count every training node once, however many holders have its label; InputError where there is
    none."""
    names = fed.clients.run(training_names, aligned.holders)
    route = fed.route(names, name="training_ids", protection=aligned.protection)
    table = fed.table(route)
    count = fed.control(count_batches, table, batch_size)["batches"]
    weight = fed.server.run(weights_of_losses, table, count)
    weight = fed.download(weight, route, name="loss_weights", grad=False)
    if count == 1:
        return TrainingNodes(weight, None, 1)
    batch = fed.download(fed.server.run(batch_of, table, count), route, name="batches", grad=False)
    return TrainingNodes(weight, batch, count)


def count_owners(fed: Federation, data: Located, config: AlignmentSettings) -> Located:
    """The cohorts of holders that have read their own files, each with the `owned` and `owners` that it would
    have if one party had dealt all files: a node is owned by those who have its label, and by all its
    holders where nobody has. To be run before a method whose config has `AlignmentSettings`.

    Holders with different keys have no name in common, and `align` says so afterwards."""
    names = fed.clients.run(owner_names, data, config)
    protection = protection_of(config)
    route = fed.route(names, name="owners/node_ids", protection=protection)
    labels = fed.upload(fed.clients.run(has_label, data), route, name="owners/labels", grad=False)
    counts = fed.server.run(owners_of, labels, fed.table(route))
    counts = fed.download(counts, route, name="owners/counts", grad=False)
    return fed.clients.run(with_owners, data, counts)


def protection_of(config: AlignmentSettings) -> str:
    """What names of nodes are on the ledger."""
    return {"simulated": "simulated", "keyed": "keyed hash", "plain": "clear"}[config.node_ids]


OWNER_MESSAGES = {
    "owners/node_ids": "A name for each of a holder's nodes, as in node_ids: the server learns which "
    "holders have a node of the same name.",
    "owners/labels": "For each of these whether the holder has its label, and not which. The server reads "
    "it.",
    "owners/counts": "From the server: for each of a holder's nodes how many holders have its label; "
    "where none has, how many have the node.",
}

MESSAGES = {
    "key_check": "A number that holders of the same key have in common, so that the server can tell when one "
    "has another key. It says nothing of the key.",
    "node_ids": "A name for each of a holder's nodes: the server learns which holders have a node of "
    "the same name. A keyed hash of the node's id, which the server cannot turn back without the holders' "
    "key; with node_ids=simulated the server could, and with node_ids=plain it is the id.",
    "feature_digests": "A keyed hash of each node's id and features: the server learns whether two holders "
    "of a node have the same features for it, and stops if not.",
    "training_ids": "The names of the nodes whose label a holder has for training, so that each counts "
    "once: the server learns which they are.",
    "loss_weights": "From the server: what each of these nodes' loss weighs, which tells its holder how "
    "many training nodes there are and how many holders have its label.",
    "batches": "Only with batch_size, from the server: the batch of each of these nodes.",
}
