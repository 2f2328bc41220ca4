"""The data that one site of a deployment reads from its own files: its nodes and its edges.

A site has a description of its own tables, or a cohort file that `graphfed data export` wrote from a whole
graph for a rehearsal. A site usually holds one client; a site that holds several clients is called a gateway.
Clients never see each other's files, so what a run needs is derived equally at all of them:

    nodes      the number of a node is a hash of its id, equal at every client that lists it (`node_ids`)
    split      a column, or a hash of the number, so a node is in the same part at every client
    classes    `classes:` in the description fixes their order; `compare_schemas` refuses different classes

A client cannot know alone whether another client also owns one of its nodes or has its label.
`graphfed.methods.common.entity_alignment.count_owners` determines this. Without it, every node has one owner,
the client that reads it, and a node belongs to its part of the split at every client that has its label. If a
node is identified by its client and its id, it is at one client only. A cross-client edge is listed in the
files of both clients, and each client counts the edges that it lists.

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
from graphfed.data.texts import class_remarks
from graphfed.data.user_files.feature_encoding import (
    Columns,
    Encoding,
    encode,
    filled_features,
    observe,
    stack,
)
from graphfed.data.user_files.graph_description import Description, at_client, describe_file
from graphfed.data.user_files.graph_tables import (
    BETWEEN,
    Among,
    Listed,
    Tables,
    classes_of,
    directed_edges,
    dropped_by,
    read_tables,
)
from graphfed.errors import InputError, shown
from graphfed.federation.cohort import Cohort, load_cohort, load_names, promote_features
from graphfed.federation.cohort_edges import edges_of_tables
from graphfed.nn.sparse import SparseMatrix
from graphfed.tasks.graphs.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class ClientData:
    """The data of a site.

    Attributes:
        schema: The description of the data that the site may send to others.
        columns: The N rows of the columns of the site's tables that are features; None for an exported
            cohort.
        ids: The user's node ids, a pyarrow array of N texts; None for an exported cohort of a graph without
            ids. They never leave the site and are used for its own predictions.
        dropped: Descriptions of the data in the files that was not used.
        remarks: Remarks on data that may mean something else.
    """

    cohort: Cohort
    schema: Schema
    ids: "pa.Array | None" = None
    columns: Columns | None = None
    dropped: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def clients(self) -> tuple[int, ...]:
        return self.cohort.clients


def read_client(
    path: str | Path, *, split: str, split_seed: int, roster: Sequence[str], client: str
) -> ClientData:
    """Read the file of a site: the description of its tables (.yaml), or an exported cohort (.safetensors).

    Args:
        split: The split of the run, which is used if the tables have no column of parts (`hashed_parts`).
        roster: The names of all the run's clients, in the order of their numbers.
        client: The name of the site. It is in the roster unless the site is a gateway. A gateway has the
            clients that its description names, in the column of clients or under `clients`, or those of its
            cohort file. Their numbers must be consecutive.

    Raises:
        InputError: A table cannot be used, an edge goes to an unknown client or has no endpoint at this site,
            the split needs the whole graph, or the clients are not those of this site.
    """
    path = Path(path)
    if len({*roster}) < len(roster):
        raise InputError(
            f"two of the clients {list(roster)[:10]} have the same name; give every client a name of its own"
        )
    if path.suffix == ".safetensors":
        return _read_exported(path, roster, client)
    if path.suffix in (".yaml", ".yml"):
        description, unread = describe_file(path)
        read = _read_tables(description, path, split, split_seed, roster, client)
        return replace(read, dropped=unread + read.dropped)
    raise InputError(
        f"{path} is no file of a client; give the description of its tables (.yaml), or a cohort file "
        "(.safetensors) that 'graphfed data export' wrote"
    )


def encode_client(data: ClientData, encoding: Encoding) -> ClientData:
    """Give a site's data the features that all sites agreed on; an exported cohort has them already."""
    if data.columns is None:
        return data
    x = torch.from_numpy(np.ascontiguousarray(encode(data.columns, encoding)))
    filled = filled_features(data.columns.names, encoding, data.columns.rules)
    return replace(data, cohort=replace(data.cohort, x=x, filled=filled))


def make_client_cohort(
    data: ClientData, clients: Sequence[int], num_classes: int, *, device: torch.device | str = "cpu"
) -> Cohort:
    """Build the cohort that a run trains on, with floating-point numbers in torch's default dtype, except
    features in float64 (see `make_cohort`).

    Raises InputError if the data belongs to other clients, or has another number of classes than agreed.
    """
    cohort = data.cohort
    if cohort.clients != tuple(clients):
        raise InputError(
            f"the data here belongs to the clients {list(cohort.clients)[:10]}, and the run expects the "
            f"clients {list(clients)[:10]} here; give the file of these, or correct the project's clients"
        )
    if num_classes != len(data.schema.class_names):
        raise InputError(
            f"the data here has {len(data.schema.class_names)} classes, and the run has {num_classes}; name "
            "all classes in each description ('classes: [...]')"
        )

    def move(value: object) -> Any:
        if isinstance(value, SparseMatrix):
            matrix = value.to(device)
            return matrix.with_values(matrix.values.to(torch.get_default_dtype()))
        if isinstance(value, Tensor):
            return value.to(device, torch.get_default_dtype() if value.is_floating_point() else None)
        return value

    parts = {f.name: move(getattr(cohort, f.name)) for f in fields(cohort) if f.name not in ("x", "directed")}
    parts["directed"] = None if cohort.directed is None else cohort.directed.to(device)
    # `move` would round large features to the default dtype.
    x = promote_features(cohort.x.to(device)) if isinstance(cohort.x, Tensor) else move(cohort.x)
    return replace(cohort, **parts, x=x)


# ---- an exported cohort ------------------------------------------------------------------------------------


def _read_exported(path: Path, roster: Sequence[str], client: str) -> ClientData:
    import pyarrow as pa

    cohort, names = load_cohort(path), load_names(path)
    if cohort.x is None:
        raise InputError(f"{path} has no features, and methods need them; export a graph with features")
    expected = assigned_clients(cohort.clients, roster, client)
    if cohort.clients != expected or max(expected) >= len(roster):
        raise InputError(
            f"{path} was exported for the clients {list(cohort.clients)[:10]} of a run, and {shown(client)} "
            f"has the clients {list(expected)[:10]} of 0..{len(roster) - 1}; give the file that was exported "
            "for this client, with as many clients as the run has"
        )
    for what, named, count in (
        ("feature columns", names.features, cohort.num_features),
        ("class columns", names.classes, cohort.num_classes),
        ("nodes", names.nodes, cohort.num_rows),
    ):
        if named and len(named) != count:
            raise InputError(f"{path} names {len(named)} of {count} {what}; export it again")
    listed = [] if cohort.directed is None else [cohort.directed.cross_client]
    others = torch.cat([cohort.cross_client, *listed])
    if others.numel() and not 0 <= int(others.min()) <= int(others.max()) < len(roster):
        raise InputError(f"{path} has edges to clients outside 0..{len(roster) - 1}; export it again")
    return ClientData(
        cohort,
        Schema(
            feature_names=names.features or ("",) * cohort.num_features,
            class_names=names.classes or ("",) * cohort.num_classes,
            weighted=cohort.edge_weight is not None,
            ids="exported",
            parts="exported",
            edge_features=("",) * (0 if cohort.directed is None else cohort.directed.num_attributes),
            directed=cohort.directed is not None and not cohort.directed.is_symmetric,
            filled=cohort.filled,
        ),
        pa.array(names.nodes) if names.nodes else None,
    )


def assigned_clients(clients: Sequence[int], roster: Sequence[str], client: str) -> tuple[int, ...]:
    """Determine the clients for which a site's exported file must be.

    They are the site's own client if it is in the roster. For a gateway, they are as many consecutive clients
    as the file has, starting at the file's first client.
    """
    return (roster.index(client),) if client in roster else _block(clients)


def _block(clients: Sequence[int]) -> tuple[int, ...]:
    """Return as many consecutive numbers as there are clients, from the first client on."""
    return tuple(range(clients[0], clients[0] + len(clients)))


# ---- the site's own tables ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """The tables of all clients of a site, one after the other, with M rows and D nodes at other clients.

    Attributes:
        client: The number of the run's client of each row, [M].
        texts: The keys of the rows, and then those of the nodes at other clients, M + D texts.
        label: The labels, M texts; None without such a column.
        part: The parts of the split, [M]; None without such a column.
        ends: The endpoints of edges, [2, m]: rows, or M plus the position of a node at another client.
        remote_client: The clients of the nodes at other clients, [D].
        weight: The weights, [m] float64; None without such a column.
        listed: The attributes and times of the edges; None if the description does not ask for them.
    """

    client: np.ndarray
    texts: list[str]
    ids: "pa.Array"
    label: "pa.Array"
    x: np.ndarray
    columns: Columns
    part: np.ndarray | None
    ends: np.ndarray
    remote_client: np.ndarray
    weight: np.ndarray | None
    listed: Listed | None


def _read_tables(
    description: Description, path: Path, split: str, split_seed: int, roster: Sequence[str], client: str
) -> ClientData:
    read = _read_each(description, path, roster, client)
    rows = _stacked(read, roster)
    count = len(rows.client)
    _check_block(np.unique(rows.client).tolist(), roster, path)
    number = node_ids(rows.texts)
    class_names, y = description.classes, np.full(count, -1, dtype=np.int64)
    if rows.label is not None:
        class_names, y = classes_of(description.name, rows.label, description.classes)
    part, parts = rows.part, "column"
    if part is None or split.partition(":")[0].lower() not in ("default", "public"):
        # A split that the run names replaces the column of parts.
        part, parts = hashed_parts(number[:count], split, split_seed), "hash"
    # Rows of a cohort are sorted by client and number.
    order = np.lexsort((number[:count], rows.client))
    # A node without a label is in no part.
    part = np.where(y >= 0, part, 3)
    ids, count_edges = "id" if description.source_client is None else "client and id", _count_edges(rows)
    columns = rows.columns.take(order)
    encoding = observe(columns)
    directed = directed_edges(description, rows.ends, rows.listed, len(number), count_edges)
    cohort = _cohort(rows, number, order, y, part, len(class_names), description)
    if directed is not None:
        row = np.empty(count, dtype=np.int64)
        row[order] = np.arange(count)
        client_of = np.concatenate([rows.client, rows.remote_client])
        cohort = replace(cohort, directed=edges_of_tables(directed, row, client_of, number))
    return ClientData(
        cohort,
        Schema(
            description.features,
            class_names,
            rows.weight is not None,
            ids,
            parts,
            columns.rules,
            encoding.categories,
            encoding.gaps,
            (),
            () if directed is None else directed.names,
            description.directed,
        ),
        rows.ids.take(order),
        columns,
        dropped_by(
            description,
            [rows.ends],
            len(number),
            count_edges,
            sum(tables.unknown for _, tables in read),
        ),
        (*class_remarks(class_names, y), *(remark for _, tables in read for remark in tables.remarks)),
    )


def _count_edges(rows: _Rows) -> int:
    """Count the undirected edges in the tables, without self loops."""
    (u, _), _ = undirected("", rows.ends, None, "sum", len(rows.texts))
    return len(u)


def _cohort(
    rows: _Rows,
    number: np.ndarray,
    order: np.ndarray,
    y: np.ndarray,
    part: np.ndarray,
    num_classes: int,
    description: Description,
) -> Cohort:
    """Build the cohort of the rows, whose classes y and parts of the split are [M].

    `number` [M + D] are those of the rows' nodes and of the nodes at other clients, and `order` [M] is the
    order of the rows by client and number.
    """
    count = len(rows.client)
    clients, client = np.unique(rows.client[order], return_inverse=True)
    # The row in the cohort of each row of the tables.
    row = np.empty(count, dtype=np.int64)
    row[order] = np.arange(count)
    (u, v), weight = undirected(description.name, rows.ends, rows.weight, description.repeated, len(number))
    if rows.weight is not None and weight is None:
        # `undirected` returns None if all weights are 1. The graph is weighted anyway, because the other
        # clients' weights may differ from 1.
        weight = np.ones(len(u), dtype=np.float32)
    client_of = np.concatenate([rows.client, rows.remote_client])
    inside, cross = client_of[u] == client_of[v], client_of[u] != client_of[v]
    # Sorted as `make_cohort` sorts them: by the rows (a, b) with a < b, and then all edges from b to a.
    ends = np.sort(row[np.stack([u[inside], v[inside]])], axis=0)
    edges = np.lexsort((ends[1], ends[0]))
    a, b = ends[:, edges]
    # A cross-client edge has one entry for each of its endpoints that is at this site.
    local, remote = np.concatenate([u[cross], v[cross]]), np.concatenate([v[cross], u[cross]])
    here = local < count
    local, remote = row[local[here]], remote[here]
    cross_order = np.lexsort((number[remote], client_of[remote], local))

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array))

    edge_weight = cross_weight = None
    if weight is not None:
        one_way = weight[inside][edges]
        edge_weight = tensor(np.concatenate([one_way, one_way]))
        cross_weight = tensor(np.concatenate([weight[cross]] * 2)[here][cross_order])
    train, val, test = (tensor(part[order] == number_of) for number_of in range(3))
    return Cohort(
        clients=tuple(clients.tolist()),
        client=tensor(client),
        id=tensor(number[:count][order]),
        x=tensor(rows.x[order]),
        y=tensor(y[order]),
        edge_index=tensor(np.stack([np.concatenate([a, b]), np.concatenate([b, a])])),
        cross_row=tensor(local[cross_order]),
        cross_client=tensor(client_of[remote][cross_order]),
        cross_id=tensor(number[remote][cross_order]),
        owned=torch.ones(count, dtype=torch.bool),
        train=train,
        val=val,
        test=test,
        owners=torch.ones(count, dtype=torch.int64),
        num_classes=num_classes,
        edge_weight=edge_weight,
        cross_weight=cross_weight,
    )


def _read_each(
    description: Description, path: Path, roster: Sequence[str], client: str
) -> list[tuple[str, Tables]]:
    """Read the site's tables, each with the name of its client. A column of clients overrides that name."""
    several = description.files[0].client is not None
    if several and client in roster:
        raise InputError(
            f"{path} describes the files of {len(description.files)} clients, and {shown(client)} is a "
            "single client, which reads only its own files; describe these ('nodes:' and 'edges:' instead of "
            "'clients:')"
        )
    if not several and description.client is None and client not in roster:
        raise InputError(
            f"{shown(client)} is none of the run's clients {list(roster)[:10]}, and {path} does not state "
            "which of them it holds; name the column of clients ('client: COLUMN'), or the files of each "
            "client under 'clients:'"
        )
    read = []
    for files in description.files:
        if files.client is None:
            here = (client,) if client in roster else tuple(roster)
            read.append((client, read_tables(description, files, Among(roster, here))))
        elif files.client not in roster:
            raise InputError(
                f"{path} describes the files of {shown(files.client)}, which is none of the run's clients "
                f"{list(roster)[:10]}; remove it, or correct its name"
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
    remote_start = start[-1] + np.cumsum([0, *(len(table.remote) for table in tables)])
    client, ends = [], []
    for t, (name, table) in enumerate(read):
        names = [name] * len(table.x) if table.client is None else table.client.to_pylist()
        client.append([number[name] for name in names])
        # Rows are shifted by those of the tables before. All nodes at other clients follow all rows.
        is_local = table.ends < len(table.x)
        offset = np.where(is_local, start[t], remote_start[t] - len(table.x))
        ends.append(table.ends.astype(np.int64) + offset)
    remote = [key for table in tables for key in table.remote.to_pylist()]
    first = tables[0]  # all tables have the same columns
    columns = stack([table.columns for table in tables if table.columns is not None])
    return _Rows(
        client=np.concatenate(client).astype(np.int64),
        texts=[*(key for table in tables for key in table.keys.to_pylist()), *remote],
        ids=pa.concat_arrays([table.ids for table in tables]),
        label=None if first.label is None else pa.concat_arrays([table.label for table in tables]),
        x=encode(columns, observe(columns)),
        columns=columns,
        part=None
        if first.part is None
        else np.concatenate([table.part for table in tables if table.part is not None]),
        ends=np.concatenate(ends, axis=1),
        remote_client=np.array([number[key.partition(BETWEEN)[0]] for key in remote], dtype=np.int64),
        weight=None
        if first.weight is None
        else np.concatenate([table.weight for table in tables if table.weight is not None]).astype(
            np.float64
        ),
        listed=first.listed,  # a description with several tables does not keep edges as they are listed
    )


def _check_block(clients: Sequence[int], roster: Sequence[str], path: Path) -> None:
    if tuple(clients) != _block(clients):
        missing = next(k for k in _block(clients) if k not in clients)
        raise InputError(
            f"{path} has nodes of the clients {[roster[k] for k in clients[:10]]} and none of "
            f"{shown(roster[missing])}, which is between them in the run's list of clients; list a gateway's "
            "clients one after the other"
        )
