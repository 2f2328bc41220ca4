"""Reading and checking of one file of nodes and one file of edges.

`graph_files` reads the files of all clients, in which both endpoints of every edge are in the file of nodes.
`graphfed.tasks.graphs.client_data` reads the files of one client, in which an endpoint may be at another
client. Shapes: N nodes, F features, m rows of edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from graphfed.data.dropped import edges_dropped, loops_dropped, names_dropped
from graphfed.data.feature_checks import feature_remarks, rounding_remarks
from graphfed.data.graphs.directed import DirectedEdges, make_directed
from graphfed.data.messages import listed
from graphfed.data.sensors.readings import read_column_times
from graphfed.data.texts import natural_order
from graphfed.data.user_files.feature_encoding import Columns, Encoding, encode, merge, observe
from graphfed.data.user_files.graph_description import EDGE_COLUMNS, NODE_COLUMNS, Description, Files
from graphfed.data.user_files.table_files import MAX_CATEGORIES, Numbers, TableFile
from graphfed.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

#: A column with more different values is refused as a column of labels.
MAX_CLASSES = 1000
#: A column with more different values is refused, too, if there are less than two nodes per value.
FEW_CLASSES = 20
#: Separates a client and an id in a key; a character that does not occur in ordinary text.
BETWEEN = "\x1f"
#: The number of each text that a column of the split may have.
PARTS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "none": 3, "": 3}


@dataclass(frozen=True)
class Among:
    """All clients of a run (`roster`), and those that the nodes of a participant's files may be at."""

    roster: Sequence[str]
    here: Sequence[str]


@dataclass(frozen=True)
class Listed:
    """What a file of edges says of each edge, next to its endpoints and its weight.

    Attributes:
        attributes: The columns `edge_features`, float32 [m, D].
        time: The column `time`, float64 [m]; None if there is none.
        dated: Whether the times are dates, in seconds since 1970.
    """

    attributes: np.ndarray
    time: np.ndarray | None
    dated: bool


@dataclass(frozen=True)
class Nodes:
    """The content of a file of nodes. Texts are pyarrow arrays; None means no such column.

    Attributes:
        label: The labels, N texts, "" if unknown.
        x: The features, [N, F], NaN for a gap (see `encoded_features`).
        part: The part of the split, [N] int8 (see `PARTS`).
        keys: Distinct texts for the nodes: the ids, or the clients and ids if an id is unique only within its
            client.
        columns: The columns of features as they were read; None if they are `x`.
    """

    ids: "pa.Array"
    client: "pa.Array | None"
    label: "pa.Array | None"
    x: np.ndarray
    part: np.ndarray | None
    keys: "pa.Array"
    remarks: tuple[str, ...]
    columns: Columns | None


@dataclass(frozen=True)
class Tables(Nodes):
    """The content of a file of nodes and a file of edges.

    Attributes:
        ends: The endpoints of edges, [2, m]: rows of the nodes, or N plus a position in `remote`.
        weight: The weights, [m] float32, positive.
        remote: The keys of nodes at other clients.
        unknown: How many rows of edges were not read, because an endpoint is no node.
    """

    ends: np.ndarray
    weight: np.ndarray | None
    remote: "pa.Array"
    unknown: int
    listed: Listed | None = None


def read_tables(description: Description, files: Files, among: Among | None = None) -> Tables:
    """Read and check a pair of files.

    If only one participant's files are read, `among` names the clients of the run. An endpoint of an edge may
    then be at another client, by its client and id.
    """
    return with_edges(read_nodes(description, files, among), description, files, among)


def read_nodes(description: Description, files: Files, among: Among | None = None) -> Nodes:
    """Read and check a file of nodes."""
    nodes, masks = description.open("nodes", files), description.masks or ()
    names = {key: name for key in NODE_COLUMNS if (name := getattr(description, key)) is not None}
    categorical, rules = description.categorical, description.gap_rules
    numeric = [name for name in description.features if name not in categorical]
    read, x = nodes.read(
        [*names.values(), *masks, *categorical],
        Numbers(numeric, gaps=rules.keys(), features=True, dates=description.dates),
    )
    if not len(x):
        fix = "" if files.client is None else ", or remove the client"
        raise InputError(f"{nodes.path} has no row; add one row for each node{fix}")
    columns = {key: read[name].combine_chunks() for key, name in names.items()}
    texts = {name: read[name].combine_chunks() for name in categorical}
    _check_categories(nodes, texts, rules)
    _check_nodes(nodes, description, columns, among)
    part = parts_of(columns["split"]) if "split" in columns else None
    if masks:
        part = _parts_of_masks(nodes, {name: read[name].combine_chunks() for name in masks})
    ids, client = columns["id"], columns.get("client")
    keys = ids if description.source_client is None else joined_keys(client, ids)

    def name_of(row: int) -> str:
        if client is None or description.source_client is None:
            return f"the id {ids[row].as_py()!r}"
        return f"the id {ids[row].as_py()!r} of client {client[row].as_py()!r}"

    nodes.refuse_repeated(keys, description.id, name_of, "give every node an id of its own")
    remarks = (*feature_remarks(numeric, x), *rounding_remarks(nodes.rounded, nodes.kept))
    features = Columns(description.features, x, texts, rules)
    x = encode(features, observe(features))
    return Nodes(ids, client, columns.get("label"), x, part, keys, remarks, features)


def encoded_features(tables: "Sequence[Tables]") -> "tuple[list[Tables], Encoding]":
    """Give the tables of all clients the same features, which depend on the categories and gaps of all."""
    columns = [table.columns for table in tables if table.columns is not None]
    encoding = merge(map(observe, columns))
    return [
        replace(table, x=encode(own, encoding)) for table, own in zip(tables, columns, strict=True)
    ], encoding


def _check_categories(file: TableFile, texts: "Mapping[str, pa.Array]", rules: Mapping[str, str]) -> None:
    """Raise InputError for a gap where none is allowed, and for a column that has no categories."""
    import pyarrow.compute as pc

    for name, column in texts.items():
        if (count := len(column.unique())) > MAX_CATEGORIES:
            raise InputError(
                f"{file.path}, column {name!r} has {count:,} different values, and at most "
                f"{MAX_CATEGORIES:,} are categories; group them, or leave the column out of 'categorical' "
                "and 'features'"
            )
        if name not in rules:
            file.refuse_where(
                pc.equal(column, ""), name, "is empty",
                "fill it in, or write 'missing: category' in the description",
            )  # fmt: skip


def _parts_of_masks(file: TableFile, masks: "Mapping[str, pa.Array]") -> np.ndarray:
    """Convert three columns of 0 and 1 to the numbers of `PARTS`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chosen = []
    for name, texts in masks.items():
        file.refuse_others(
            texts, ("0", "1", "false", "true", ""), name, "is no value of a mask", "use 0 or 1"
        )
        chosen.append(np.asarray(pc.is_in(texts, pa.array(["1", "true"]))))
    several = np.sum(chosen, axis=0) > 1
    *first, last = masks
    file.refuse_where(
        several, last, f"puts the node into a second part of the split (see {listed(first)})",
        "put every node into at most one part",
    )  # fmt: skip
    return np.select(chosen, range(3), 3).astype(np.int8)


def _check_nodes(
    file: TableFile, description: Description, columns: "Mapping[str, pa.Array]", among: Among | None
) -> None:
    import pyarrow.compute as pc

    for key in ("id", "client"):
        if key in columns:
            name = getattr(description, key)
            file.refuse_where(
                pc.equal(columns[key], ""), name, "is empty, or a word for a missing value such as NA",
                f"give every node its {key}",
            )  # fmt: skip
    if among is not None and description.client is not None:
        file.refuse_others(
            columns["client"], among.here, description.client, "is no client of this file",
            f"its nodes are at {listed(among.here, 10)}; if the column has another meaning, write 'client:' "
            "with nothing after it in the description",
        )  # fmt: skip
    if description.classes and description.label is not None:
        file.refuse_others(
            columns["label"], (*description.classes, ""), description.label, "is none of the classes",
            f"correct it, add it to 'classes' ({listed(description.classes, 10)}), or list it under "
            "'unknown' if it means that the label is not known",
        )  # fmt: skip
    if description.split is not None:
        file.refuse_others(
            columns["split"], PARTS, description.split, "is no part of a split",
            "use train, val, test or nothing",
        )  # fmt: skip


def parts_of(split: "pa.Array") -> np.ndarray:
    """Convert N texts, keys of `PARTS`, to their numbers, [N] int8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = np.array([*PARTS.values()], dtype=np.int8)
    parts: np.ndarray = numbers[np.asarray(pc.index_in(split, value_set=pa.array([*PARTS])))]
    return parts


def joined_keys(client: "pa.Array", ids: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(client, ids, BETWEEN)


def dropped_by(
    description: Description,
    listed: Sequence[np.ndarray],
    num_nodes: int,
    num_edges: int,
    unknown: int = 0,
) -> tuple[str, ...]:
    """Describe the content of files that is not used.

    `listed` has the endpoints that each file lists, and `unknown` counts rows of edges to no node.
    """
    weights = "" if description.weight is None else description.repeated
    if description.keeps_edges:
        # What else is lost depends on the network (`DirectedEdges.unread`).
        phrases = () if description.self_loops == "keep" else loops_dropped(listed)
    else:
        phrases = edges_dropped(listed, num_nodes, num_edges, weights=weights)
    if unknown:
        phrases += (f"{unknown:,} row{'' if unknown == 1 else 's'} of edges to an unknown node",)
    of_nodes = (*description.features, *(description.masks or ()))
    tables: tuple[tuple[Literal["nodes", "edges"], tuple[str, ...], tuple[str, ...]], ...] = (
        ("nodes", NODE_COLUMNS, of_nodes),
        ("edges", EDGE_COLUMNS, description.edge_features),
    )
    for which, keys, more in tables:
        used = {getattr(description, key) for key in keys} | {*more}
        opened = (description.open(which, files) for files in description.files)
        columns = (name for file in opened for name in file.columns)
        phrases += names_dropped(dict.fromkeys(columns), used, "column", f"the {which}")
    return phrases


def directed_edges(
    description: Description, ends: np.ndarray, listed: Listed | None, num_nodes: int, num_edges: int
) -> DirectedEdges | None:
    """Build the edges as the file lists them, `ends` int64 [2, m]; None if the description does not ask.

    `num_edges` is the number of undirected edges between the `num_nodes` nodes.
    """
    if listed is None:
        return None
    lost = edges_dropped([ends], num_nodes, num_edges, directed=description.directed)
    edges = make_directed(
        description.name,
        ends,
        listed.attributes,
        description.edge_features,
        listed.time,
        dated=listed.dated,
        directed=description.directed,
        parallel=description.parallel,
        repeated=description.repeated,
        self_loops=description.self_loops == "keep",
    )
    return with_unread(edges, [phrase for phrase in lost if phrase not in loops_dropped([ends])])


def with_unread(edges: DirectedEdges, lost: Sequence[str]) -> DirectedEdges:
    """Add descriptions of what a network without directions and attributes loses."""
    return replace(edges, unread=(*lost, *names_dropped(edges.names, (), "attribute", "the edges")))


def encoded(column: "pa.Array") -> tuple[tuple[str, ...], np.ndarray]:
    """Return a column's distinct values in natural order, and the number of each entry's value, [n] int64."""
    numbered = column.dictionary_encode()
    names = numbered.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda i: natural_order(names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return tuple(names[i] for i in order), rank[np.asarray(numbered.indices)]


def classes_of(
    name: str, labels: "pa.Array", classes: Sequence[str] = ()
) -> tuple[tuple[str, ...], np.ndarray]:
    """Convert N labels, "" if unknown, to the names of the classes and the class of each node, [N] int64.

    The classes are `classes` in their order, by default the distinct labels in their natural order.
    """
    names, y = encoded(labels)
    if classes:
        # `_check_nodes` made sure that every label is one of the classes or empty.
        number = {label: c for c, label in enumerate(classes)} | {"": -1}
        return tuple(classes), np.array([number[label] for label in names], dtype=np.int64)[y]
    if "" in names:
        empty = names.index("")
        names = tuple(label for label in names if label)
        y = np.where(y == empty, -1, y - (y > empty))
    labelled = int((y >= 0).sum())
    # Such a column is an amount or an id, and each value would be an output of the model.
    if len(names) > MAX_CLASSES or (len(names) > FEW_CLASSES and 2 * len(names) > labelled):
        raise InputError(
            f"graph {name!r}: {len(names)} different labels of {labelled} nodes are too many for classes; "
            "name another column as 'label', or group these values"
        )
    return names, y


#: The row of an endpoint that is added as a node, until its row is known.
_ADDED = -2


def _with_added(nodes: Nodes, names: "pa.Array", client: str) -> Nodes:
    """Add nodes that only edges name, without features, label and part of the split.

    Another client may know a node by the same name, and nobody knows whether it is the same one. So the name
    of the client that adds the node becomes a part of its id.
    """
    import pyarrow as pa

    assert nodes.columns is not None
    count = len(names)
    ids = pa.array([f"{name} ({client})" if client else name for name in names.to_pylist()], pa.string())
    empty = pa.array([""] * count, pa.string())
    columns = nodes.columns.with_gaps(count)
    return replace(
        nodes,
        ids=pa.concat_arrays([nodes.ids, ids]),
        label=None if nodes.label is None else pa.concat_arrays([nodes.label, empty]),
        x=encode(columns, observe(columns)),
        part=None if nodes.part is None else np.append(nodes.part, np.full(count, PARTS[""], np.int8)),
        keys=pa.concat_arrays([nodes.keys, ids]),
        columns=columns,
        remarks=(*nodes.remarks, f"{count:,} nodes were added that only edges name"),
    )


def with_edges(
    nodes: Nodes,
    description: Description,
    files: Files,
    among: Among | None = None,
    elsewhere: "pa.Array | None" = None,
) -> Tables:
    """Read and check the file of edges that belongs to the nodes.

    `elsewhere` are the keys of the nodes in other clients' files, at which an endpoint may be, too.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    file = description.open("edges", files)
    keys, client = nodes.keys, nodes.client
    ends = description.source, description.target
    clients = [name for name in (description.source_client, description.target_client) if name is not None]
    roster = () if among is None else among.roster
    others = _others(roster, client)
    numbers = _numbers_of_edges(description)
    times = [] if description.time is None else [description.time]
    blocks: list[_Block] = []
    # There may be many more edges than nodes, so the endpoints' texts are read and released block by block.
    for start, columns, amount in file.blocks([*ends, *clients], numbers, times):
        named = [columns[name] for name in ends]
        _check_clients(file, {name: columns[name] for name in clients}, roster, start)
        end_keys = (
            [joined_keys(columns[at], end) for at, end in zip(clients, named, strict=True)]
            if clients
            else named
        )
        # index_in builds its hash table for every call, so both endpoints are looked up in one call.
        position = pc.fill_null(pc.index_in(pa.concat_arrays(end_keys), value_set=keys), -1)
        position = np.asarray(position).reshape(2, -1)
        is_remote = np.zeros(position.shape, dtype=bool)
        if clients:
            is_remote[:] = [np.asarray(pc.is_in(columns[name], value_set=others)) for name in clients]
        if elsewhere is not None:
            found = pc.is_in(pa.concat_arrays(end_keys), value_set=elsewhere)
            is_remote |= np.asarray(found).reshape(2, -1) & (position < 0)
        is_unknown = (position < 0) & ~is_remote
        if description.unknown_nodes == "refuse":
            _refuse_unknown(file, ends, files, is_unknown, named, start)
        adds = description.unknown_nodes == "add"
        known: np.ndarray = np.logical_or(~is_unknown.any(axis=0), adds)
        _check_block(file, description, known & is_remote.all(axis=0), named[0], amount, start)
        blocks.append(
            _Block(
                np.where(is_unknown, _ADDED, position)[:, known],
                amount[known],
                None if not times else _edge_times(file, times[0], columns[times[0]], start),
                known,
                [key.filter(pa.array(is_unknown[end] & adds)) for end, key in enumerate(end_keys)],
                [key.filter(pa.array(known & is_remote[end])) for end, key in enumerate(end_keys)],
            )
        )
    added_to = files.client or (among and among.here[0]) or ""
    return _with_blocks(nodes, description, file, blocks, added_to)


@dataclass(frozen=True)
class _Block:
    """A block of rows of a file of edges, of which those that are `known` are used.

    Attributes:
        position: [2, m], the rows of the nodes; -1 at another client, _ADDED of a node to be added.
        amount: [m, D], the weight, if there is one, and the attributes.
        time: The times of all rows, and whether they are dates (`_edge_times`); None without times.
        known: bool, which of the rows are used.
        added, remote: The keys of the nodes to be added and of those at other clients, by endpoint.
    """

    position: np.ndarray
    amount: np.ndarray
    time: tuple[np.ndarray, bool] | None
    known: np.ndarray
    added: "list[pa.Array]"
    remote: "list[pa.Array]"


def _with_blocks(
    nodes: Nodes, description: Description, file: TableFile, blocks: Sequence[_Block], added_to: str
) -> Tables:
    """Put blocks of edges under each other; nodes that are added belong to the client `added_to`."""
    import pyarrow as pa

    has_weight, count = description.weight is not None, len(nodes.keys)
    width = has_weight + len(description.edge_features)
    rows = np.concatenate([np.empty((2, 0), dtype=np.int32), *(block.position for block in blocks)], axis=1)
    values = np.concatenate([np.empty((0, width), dtype=np.float32), *(block.amount for block in blocks)])
    # In the order of the rows: sources, then targets.
    new, distant = (
        pa.chunked_array([*(of[0] for of in ends), *(of[1] for of in ends)], pa.string())
        .combine_chunks()
        .dictionary_encode()
        for ends in ([block.added for block in blocks], [block.remote for block in blocks])
    )
    if len(new) or len(distant):
        rows = rows.astype(np.int64)
        rows[rows == _ADDED] = count + np.asarray(new.indices)
        rows[rows == -1] = count + len(new.dictionary) + np.asarray(distant.indices)
    return Tables(
        **vars(_with_added(nodes, new.dictionary, added_to) if len(new) else nodes),
        ends=rows,
        weight=values[:, 0] if has_weight else None,
        remote=distant.dictionary,
        unknown=sum(int((~block.known).sum()) for block in blocks),
        listed=_listed(file, description, values[:, has_weight:], blocks)
        if description.keeps_edges
        else None,
    )


def _numbers_of_edges(description: Description) -> Numbers:
    """Name the columns of numbers of a file of edges: the weight, if there is one, then the attributes."""
    weight = [] if description.weight is None else [description.weight]
    fix = "use no weights ('weight:' with nothing after it)"
    return Numbers(
        [*weight, *description.edge_features], fix if weight else "leave the column out of 'edge_features'"
    )


def _check_clients(
    file: TableFile, clients: "Mapping[str, pa.Array]", roster: Sequence[str], start: int
) -> None:
    """Raise InputError for a client that is not in `roster`; nothing is checked if it is empty."""
    for name, column in clients.items() if roster else ():
        file.refuse_others(
            column, roster, name, "is no client of this run",
            f"the clients are {listed(roster, 10)}; correct it, or drop the edge", start,
        )  # fmt: skip


def _check_block(
    file: TableFile,
    description: Description,
    is_elsewhere: np.ndarray,
    source: "pa.Array",
    amount: np.ndarray,
    start: int,
) -> None:
    """Raise InputError for an edge of a block without an endpoint at this client, or with a bad weight."""
    file.refuse_where(
        is_elsewhere, description.source, "is at another client, like the edge's other endpoint",
        "drop the edge, which has no endpoint at this client", source, start,
    )  # fmt: skip
    if description.weight is not None:
        file.refuse_where(
            amount[:, 0] <= 0, description.weight, "is no weight",
            "give a number above 0, or drop the edge", amount[:, 0], start,
        )  # fmt: skip


def _others(roster: Sequence[str], client: "pa.Array | None") -> "pa.Array":
    """List the clients of a run that have no node in a file, whose column of clients is `client`."""
    import pyarrow as pa

    # An endpoint at a client of this file must be one of its nodes, and is no remote node.
    here = set() if client is None else {*client.unique().to_pylist()}
    return pa.array([name for name in roster if name not in here], pa.string())


def _refuse_unknown(
    file: TableFile,
    ends: Sequence[str],
    files: Files,
    is_unknown: np.ndarray,
    named: "Sequence[pa.Array]",
    start: int,
) -> None:
    """Raise InputError for the first endpoint in a block that is no node; `is_unknown` is [2, rows]."""
    for end, name in enumerate(ends):
        file.refuse_where(
            is_unknown[end], name, f"is no node of {files.nodes}",
            "add the node, or drop the edge ('unknown_nodes: drop' in the description)", named[end], start,
        )  # fmt: skip


def _listed(
    file: TableFile, description: Description, attributes: np.ndarray, blocks: Sequence[_Block]
) -> Listed:
    """Collect what a file says of its edges."""
    times = [block.time for block in blocks if block.time is not None]
    dated = any(dates for _, dates in times)
    if not all(dates == dated for _, dates in times):
        raise InputError(f"{file.path}, column {description.time!r} has both numbers and dates; use one kind")
    if description.time is None:
        return Listed(attributes, None, False)
    used = [moment[block.known] for (moment, _), block in zip(times, blocks, strict=True)]
    return Listed(attributes, np.concatenate([np.zeros(0), *used]), dated)


def _edge_times(file: TableFile, column: str, values: "pa.Array", start: int) -> tuple[np.ndarray, bool]:
    """Convert a block of times to float64 [n]: numbers as they are, or dates in seconds since 1970, and
    whether they are dates.
    """
    import pyarrow as pa

    if not (pa.types.is_timestamp(values.type) or pa.types.is_date(values.type)):
        try:
            numbers = np.asarray(values.cast(pa.float64()))
        except pa.ArrowException:
            pass
        else:
            file.refuse_where(~np.isfinite(numbers), column, "is no finite number", "fill it in", start=start)
            return numbers, False
    microseconds, _ = read_column_times(file, column, values, start)
    return microseconds / 1e6, True
