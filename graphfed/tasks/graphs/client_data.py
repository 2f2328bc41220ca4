"""What one client of a deployment reads from its own files: its nodes, its edges, and nothing of anybody
else's.

A client has a description of its own tables, or a cohort file that somebody with the whole graph has dealt
for a trial (`graphfed data export`). Clients that never see each other's files agree on what a run needs:

    nodes   an id's hash is the node's number, the same at every client that has it (`node_ids`)
    split      a column, or a hash of the number: a node is in the same part wherever it is
    classes    `classes:` numbers them alike; `compare_schemas` refuses what differs

What a client cannot know alone it does not guess. That another client has the label of one of its nodes, or
owns it too, `graphfed.methods.common.entity_alignment.count_owners` finds out; without it every node has
the one owner who reads it, and a part of the split counts at the clients that have the label. Where nodes go
by client and id none is at two clients, and there is nothing to work out. An edge between two clients
stands in the files of both: each counts the edges that it lists.

Shapes: N nodes, E edges inside a client in both directions, C edges to other clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from graphfed.data.graphs.graph import undirected
from graphfed.data.graphs.node_ids import node_ids
from graphfed.data.graphs.splits import hashed_parts
from graphfed.data.user_files.graph_description import Description, at_client, describe_file
from graphfed.data.user_files.graph_tables import BETWEEN, Among, Tables, classes_of, dropped_by, read_tables
from graphfed.errors import InputError, shown
from graphfed.federation.cohort import Cohort, load_cohort, load_names
from graphfed.nn.sparse import SparseMatrix
from graphfed.tasks.graphs.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ClientData", "assigned_clients", "make_client_cohort", "read_client"]


@dataclass(frozen=True, eq=False)
class ClientData:
    """A client's own data. cohort: its clients' rows, features in float32; schema: what it may tell the
    others;
    ids: the user's own ids of the rows, a pyarrow array of N texts, None for a cohort that was dealt of a
    graph without any. They stay here, for the client's own predictions. dropped: what was found in the files
    and left out, a phrase for each."""

    cohort: Cohort
    schema: Schema
    ids: "pa.Array | None" = None
    dropped: tuple[str, ...] = ()

    @property
    def clients(self) -> tuple[int, ...]:
        return self.cohort.clients


def read_client(
    path: str | Path, *, split: str, split_seed: int, roster: Sequence[str], client: str
) -> ClientData:
    """Read a client's own file: the description of its tables (.yaml), or a dealt cohort (.safetensors).

    roster: the names of all the run's clients, in the order of their numbers; client: the name of this one. A
    gateway is not in the roster: it has the clients that its description names, in the column of clients or
    under `clients`, or those of its cohort file, which stand together in the roster.
    split, split_seed: as of a run, where the tables have no column of parts (`hashed_parts`); a dealt cohort
    has the parts that it was dealt with.

    Raises InputError with file, row, column, value and fix for tables that cannot be used, an edge to a
    client
    that is not in the roster or with no end here, a split that must see the whole graph, and clients that are
    not this client's."""
    path = Path(path)
    if len({*roster}) < len(roster):
        raise InputError(f"two of the clients {list(roster)[:10]} have one name; give every client its own")
    if path.suffix == ".safetensors":
        return _read_exported(path, roster, client)
    if path.suffix in (".yaml", ".yml"):
        description, unread = describe_file(path)
        read = _read_own(description, path, split, split_seed, roster, client)
        return replace(read, dropped=unread + read.dropped)
    raise InputError(
        f"{path} is no file of a client; give the description of its tables (.yaml), or a cohort file "
        "(.safetensors) of 'graphfed data export'"
    )


def make_client_cohort(
    data: ClientData, clients: Sequence[int], num_classes: int, *, device: torch.device | str = "cpu"
) -> Cohort:
    """The cohort that a run trains on, floating numbers in torch's default dtype. clients: the numbers of the
    clients that the run has at this client; num_classes: C, as all clients agreed.

    InputError where the data is of other clients, or has more classes."""
    cohort = data.cohort
    if cohort.clients != tuple(clients):
        raise InputError(
            f"this client's data is of the clients {list(cohort.clients)[:10]}, and the run has "
            f"{list(clients)[:10]} here; give the file of these, or correct the project's clients"
        )
    if num_classes != len(data.schema.class_names):
        raise InputError(
            f"this client's data has {len(data.schema.class_names)} classes, and the run {num_classes}; name "
            "all classes in each description ('classes: [...]')"
        )

    def moved(value: object) -> Any:
        if isinstance(value, SparseMatrix):
            here = value.to(device)
            return here.with_values(here.values.to(torch.get_default_dtype()))
        if isinstance(value, Tensor):
            return value.to(device, torch.get_default_dtype() if value.is_floating_point() else None)
        return value

    return replace(cohort, **{field.name: moved(getattr(cohort, field.name)) for field in fields(cohort)})


# ---- a cohort that was dealt -------------------------------------------------------------------------------


def _read_exported(path: Path, roster: Sequence[str], client: str) -> ClientData:
    import pyarrow as pa

    cohort, names = load_cohort(path), load_names(path)
    if cohort.x is None:
        raise InputError(f"{path} has no features, and methods need them; deal a graph that has some")
    expected = assigned_clients(cohort.clients, roster, client)
    if cohort.clients != expected or max(expected) >= len(roster):
        raise InputError(
            f"{path} was dealt for the clients {list(cohort.clients)[:10]} of a run, and client "
            f"{shown(client)} "
            f"has {list(expected)[:10]} of 0..{len(roster) - 1}; give the file that was dealt for this "
            f"client, "
            "with as many clients as the run has"
        )
    for what, told, count in (
        ("feature columns", names.features, cohort.num_features),
        ("class columns", names.classes, cohort.num_classes),
        ("nodes", names.nodes, cohort.num_rows),
    ):
        if told and len(told) != count:
            raise InputError(f"{path} names {len(told)} of {count} {what}; deal it again")
    if cohort.cross_client.numel() and not 0 <= int(cohort.cross_client.min()) <= int(
        cohort.cross_client.max()
    ) < len(roster):
        raise InputError(f"{path} has edges to clients beyond 0..{len(roster) - 1}; deal it again")
    return ClientData(
        cohort,
        Schema(
            feature_names=names.features or ("",) * cohort.num_features,
            class_names=names.classes or ("",) * cohort.num_classes,
            weighted=cohort.edge_weight is not None,
            ids="dealt",
            parts="dealt",
        ),
        pa.array(names.nodes) if names.nodes else None,
    )


def assigned_clients(clients: Sequence[int], roster: Sequence[str], client: str) -> tuple[int, ...]:
    """The clients that a client with a dealt file of these must have: its own, or of a gateway a block."""
    return (roster.index(client),) if client in roster else _block(clients)


def _block(clients: Sequence[int]) -> tuple[int, ...]:
    """As many clients as these, one after the other from the first of them on."""
    return tuple(range(clients[0], clients[0] + len(clients)))


# ---- tables of its own -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """The tables of all clients here, one after the other: of M rows and D nodes elsewhere.

    client [M]: number of the run's client; texts (M + D): what each node is known by everywhere; ids, label
    (None without such a column): M texts; x [M, F]; part [M] or None; ends [2, m]: rows, and from M on
    nodes elsewhere; far [D]: their clients; weight [m] float64 or None."""

    client: np.ndarray
    texts: list[str]
    ids: "pa.Array"
    label: "pa.Array"
    x: np.ndarray
    part: np.ndarray | None
    ends: np.ndarray
    far: np.ndarray
    weight: np.ndarray | None


def _read_own(
    description: Description, path: Path, split: str, split_seed: int, roster: Sequence[str], client: str
) -> ClientData:
    rows = _stacked(_read_each(description, path, roster, client), roster)
    own = len(rows.client)
    _check_block(np.unique(rows.client).tolist(), roster, path)
    number = node_ids(rows.texts)
    class_names, y = description.classes, np.full(own, -1, dtype=np.int64)
    if rows.label is not None:
        class_names, y = classes_of(description.name, rows.label, description.classes)
    part, parts = rows.part, "column"
    if part is None or split.partition(":")[0].lower() not in ("default", "public"):
        part, parts = hashed_parts(number[:own], split, split_seed), "hash"
    order = np.lexsort((number[:own], rows.client))
    part = np.where(y >= 0, part, 3)
    ids = "id" if description.source_client is None else "client and id"
    return ClientData(
        _cohort(rows, number, order, y, part, len(class_names), description),
        Schema(description.features, class_names, rows.weight is not None, ids, parts),
        rows.ids.take(order),
        dropped_by(description, [rows.ends], len(number), _count_edges(rows)),
    )


def _count_edges(rows: _Rows) -> int:
    """The edges in the tables, undirected and without self loops."""
    (u, _), _ = undirected("", rows.ends, None, "sum", len(rows.texts))
    return len(u)


def _cohort(
    rows: _Rows,
    number: np.ndarray,
    order: np.ndarray,
    y: np.ndarray,
    part: np.ndarray,
    num_classes: int,
    described: Description,
) -> Cohort:
    """The cohort of the rows in an order [M]: by client and number. number [M + D]: ids of all nodes;
    y, part [M]."""
    own = len(rows.client)
    clients, client = np.unique(rows.client[order], return_inverse=True)
    row = np.empty(own, dtype=np.int64)
    row[order] = np.arange(own)
    (u, v), weight = undirected(described.name, rows.ends, rows.weight, described.repeated, len(number))
    if rows.weight is not None and weight is None:  # a described weight counts even where all are 1
        weight = np.ones(len(u), dtype=np.float32)
    # Nodes elsewhere are the last in number, so never an edge's first end.
    client_of = np.concatenate([rows.client, rows.far])
    inside, across = client_of[u] == client_of[v], client_of[u] != client_of[v]
    ends = np.sort(row[np.stack([u[inside], v[inside]])], axis=0)
    edges = np.lexsort((ends[1], ends[0]))
    a, b = ends[:, edges]
    # An edge between two clients is cut, once for each of its ends that is here.
    near, far = np.concatenate([u[across], v[across]]), np.concatenate([v[across], u[across]])
    here = near < own
    near, far = row[near[here]], far[here]
    cut = np.lexsort((number[far], client_of[far], near))

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array))

    edge_weight = cross_weight = None
    if weight is not None:
        one_way = weight[inside][edges]
        edge_weight = tensor(np.concatenate([one_way, one_way]))
        cross_weight = tensor(np.concatenate([weight[across]] * 2)[here][cut])
    train, val, test = (tensor(part[order] == number_of) for number_of in range(3))
    return Cohort(
        clients=tuple(clients.tolist()),
        client=tensor(client),
        id=tensor(number[:own][order]),
        x=tensor(rows.x[order]),
        y=tensor(y[order]),
        edge_index=tensor(np.stack([np.concatenate([a, b]), np.concatenate([b, a])])),
        cross_row=tensor(near[cut]),
        cross_client=tensor(client_of[far][cut]),
        cross_id=tensor(number[far][cut]),
        owned=torch.ones(own, dtype=torch.bool),
        train=train,
        val=val,
        test=test,
        owners=torch.ones(own, dtype=torch.int64),
        num_classes=num_classes,
        edge_weight=edge_weight,
        cross_weight=cross_weight,
    )


def _read_each(
    description: Description, path: Path, roster: Sequence[str], client: str
) -> list[tuple[str, Tables]]:
    """The tables of the clients here, each with the client's name (the column of clients says more)."""
    several = description.files[0].client is not None
    if several and client in roster:
        raise InputError(
            f"{path} describes the files of {len(description.files)} clients, and {shown(client)} is one "
            f"client "
            "and reads its own alone; describe these ('nodes:' and 'edges:' in the place of 'clients:')"
        )
    if not several and description.client is None and client not in roster:
        raise InputError(
            f"{shown(client)} is none of the run's clients {list(roster)[:10]}, and {path} does not say "
            f"which "
            "of them it holds; name the column that does ('client: COLUMN'), or each one's files under "
            "'clients:'"
        )
    read = []
    for files in description.files:
        if files.client is None:
            here = (client,) if client in roster else tuple(roster)
            read.append((client, read_tables(description, files, Among(roster, here))))
        elif files.client not in roster:
            raise InputError(
                f"{path} describes the files of {shown(files.client)}, which is none of the run's clients "
                f"{list(roster)[:10]}; leave it out, or correct its name"
            )
        else:
            with at_client(files.client):
                read.append((files.client, read_tables(description, files)))
    return read


def _stacked(read: Sequence[tuple[str, Tables]], roster: Sequence[str]) -> _Rows:
    import pyarrow as pa

    number = {name: k for k, name in enumerate(roster)}
    tables = [table for _, table in read]
    start = np.cumsum([0, *(len(table.x) for table in tables)])
    elsewhere = start[-1] + np.cumsum([0, *(len(table.remote) for table in tables)])
    client, ends = [], []
    for t, (name, table) in enumerate(read):
        names = [name] * len(table.x) if table.client is None else table.client.to_pylist()
        client.append([number[name] for name in names])
        own = table.ends < len(table.x)
        ends.append(table.ends.astype(np.int64) + np.where(own, start[t], elsewhere[t] - len(table.x)))
    far = [key for table in tables for key in table.remote.to_pylist()]
    first = tables[0]  # all have the same columns
    return _Rows(
        client=np.concatenate(client).astype(np.int64),
        texts=[*(key for table in tables for key in table.keys.to_pylist()), *far],
        ids=pa.concat_arrays([table.ids for table in tables]),
        label=None if first.label is None else pa.concat_arrays([table.label for table in tables]),
        x=np.concatenate([table.x for table in tables]),
        part=None
        if first.part is None
        else np.concatenate([table.part for table in tables if table.part is not None]),
        ends=np.concatenate(ends, axis=1),
        far=np.array([number[key.partition(BETWEEN)[0]] for key in far], dtype=np.int64),
        weight=None
        if first.weight is None
        else np.concatenate([table.weight for table in tables if table.weight is not None]).astype(
            np.float64
        ),
    )


def _check_block(clients: Sequence[int], roster: Sequence[str], path: Path) -> None:
    if tuple(clients) != _block(clients):
        missing = next(k for k in _block(clients) if k not in clients)
        raise InputError(
            f"{path} has nodes of the clients {[roster[k] for k in clients[:10]]} and none of "
            f"{shown(roster[missing])} between them; a gateway's clients stand together among the run's"
        )
