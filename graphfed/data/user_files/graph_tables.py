"""The tables that a description names, read and checked: what one file of nodes and one of edges say.

`graph_files`, which has the files of all clients, reads them where both ends of every edge are nodes of the
nodes file. `graphfed.tasks.graphs.client_data` reads those of one client, whose edges may end at another
client.
Shapes: N nodes, F features, m rows of edges.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graphfed.data.dropped import edges_dropped, names_dropped
from graphfed.data.user_files.graph_description import EDGE_COLUMNS, NODE_COLUMNS, Description, Files
from graphfed.data.user_files.table_files import Numbers, TableFile
from graphfed.errors import InputError, shown

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "BETWEEN",
    "PARTS",
    "Among",
    "Tables",
    "classes_of",
    "dropped_by",
    "encoded",
    "joined_keys",
    "parts_of",
    "read_tables",
]

#: More values of a label than this are no classes but numbers or names.
MAX_CLASSES = 1000
#: So few may have less than two nodes each.
FEW_CLASSES = 20
#: Between a client and an id in one key; a character that no file of text should have.
BETWEEN = "\x1f"
PARTS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "none": 3, "": 3}


@dataclass(frozen=True)
class Among:
    """A client among others. roster: all the clients that there are, by name; here: those of them that its
    own nodes may be at."""

    roster: Sequence[str]
    here: Sequence[str]


@dataclass(frozen=True)
class Tables:
    """What a file of nodes and one of edges say. Texts are pyarrow arrays, None without such a column.

    ids, client, label: N texts, a label is "" where unknown; x [N, F] float32; part [N] int8, see PARTS;
    keys:
    N texts, no two alike: the ids, with their client where an id is unique within its client only; ends [2,
    m]:
    rows of the nodes, and from N on entries of `far`: the keys of nodes at other clients; weight [m] float32,
    positive, or None."""

    ids: "pa.Array"
    client: "pa.Array | None"
    label: "pa.Array | None"
    x: np.ndarray
    part: np.ndarray | None
    keys: "pa.Array"
    ends: np.ndarray
    weight: np.ndarray | None
    far: "pa.Array"


def read_tables(description: Description, files: Files, among: Among | None = None) -> Tables:
    """A pair of files. among: whose files they are, for a client that has its own alone: an edge then may end
    at another client, by (client, id).

    Raises InputError with file, row, column, value and fix for a repeated id, an end of an edge that is no
    node, a feature that is no finite number, a part of the split or a class that is not known, ..."""
    ids, client, label, part, x = _read_nodes(description, files, among)
    keys = ids if description.source_client is None else joined_keys(client, ids)
    nodes = TableFile(files.nodes)

    def name_of(row: int) -> str:
        at = (
            ""
            if client is None or description.source_client is None
            else " of client {client[row].as_py()!r}"
        )
        return f"the id {ids[row].as_py()!r}{at}"

    nodes.refuse_repeated(keys, description.id, name_of, "give every node an id of its own")
    ends, weight, far = _read_edges(description, files, keys, client, among)
    return Tables(ids, client, label, x, part, keys, ends, weight, far)


def _read_nodes(
    description: Description, files: Files, among: Among | None
) -> "tuple[pa.Array, pa.Array | None, pa.Array | None, np.ndarray | None, np.ndarray]":
    """ids, client, label, part and x of `Tables`."""
    file = TableFile(files.nodes)
    names = {key: name for key in NODE_COLUMNS if (name := getattr(description, key)) is not None}
    read, x = file.read([*names.values()], Numbers(description.features))
    if not len(x):
        alone = "" if files.client is None else ": add them, or leave the client out"
        raise InputError(f"{file.path} has no row; it needs one for each node{alone}")
    columns = {key: read[name].combine_chunks() for key, name in names.items()}
    _check_nodes(file, description, columns, among)
    part = parts_of(columns["split"]) if "split" in columns else None
    return columns["id"], columns.get("client"), columns.get("label"), part, x


def _check_nodes(
    file: TableFile, description: Description, columns: "Mapping[str, pa.Array]", among: Among | None
) -> None:
    """InputError for the first row whose id, client, label or part of the split cannot be used."""
    import pyarrow.compute as pc

    for key in ("id", "client"):
        if key in columns:
            name = getattr(description, key)
            file.refuse_where(
                pc.equal(columns[key], ""), name, "is empty", f"every node needs its {key}: fill it in"
            )
    if among is not None and description.client is not None:
        file.refuse_others(
            columns["client"], among.here, description.client, "is no client of this file",
            f"its nodes are at {_listed(among.here)}; where the column is something else, write 'client:' "
            "with nothing after it in the description",
        )  # fmt: skip
    if description.classes and description.label is not None:
        file.refuse_others(
            columns["label"], (*description.classes, ""), description.label, "is none of the classes",
            f"correct it, or name it under 'classes' ({_listed(description.classes)})",
        )  # fmt: skip
    if description.split is not None:
        file.refuse_others(
            columns["split"], PARTS, description.split, "is no part of a split",
            "use train, val, test or nothing",
        )  # fmt: skip


def parts_of(split: "pa.Array") -> np.ndarray:
    """The number of each part of a split, see PARTS, [N] int8; every text is one of PARTS."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = np.array([*PARTS.values()], dtype=np.int8)
    parts: np.ndarray = numbers[np.asarray(pc.index_in(split, value_set=pa.array([*PARTS])))]
    return parts


def _listed(names: Sequence[str]) -> str:
    """The first of some names, for a message."""
    return ", ".join(map(shown, names[:10])) + (", ..." if len(names) > 10 else "")


def joined_keys(client: "pa.Array", ids: "pa.Array") -> "pa.Array":
    """One key for each (client, id), of two pyarrow arrays of texts."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(client, ids, BETWEEN)


def dropped_by(
    description: Description, listed: Sequence[np.ndarray], num_nodes: int, num_edges: int
) -> tuple[str, ...]:
    """What a reader of the described files leaves out, a phrase for each kind of loss. listed: the ends of
    the edges as each file lists them, [2, any]; num_edges: m, undirected and without self loops."""
    weights = "" if description.weight is None else description.repeated
    told = edges_dropped(listed, num_nodes, num_edges, weights=weights)
    for which, keys, more in (("nodes", NODE_COLUMNS, description.features), ("edges", EDGE_COLUMNS, ())):
        used = {getattr(description, key) for key in keys} | {*more}
        columns = (name for files in description.files for name in TableFile(getattr(files, which)).columns)
        told += names_dropped(dict.fromkeys(columns), used, "column", f"the {which}")
    return told


def encoded(column: "pa.Array") -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct values, in their natural order, and the number of each entry's."""
    numbered = column.dictionary_encode()
    names = numbered.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda i: _natural(names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return tuple(names[i] for i in order), rank[np.asarray(numbered.indices)]


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers by value, before texts by letter."""
    try:
        value = float(name)
    except ValueError:
        return 1, 0.0, name
    return (1, 0.0, name) if math.isnan(value) else (0, value, name)


def classes_of(
    name: str, labels: "pa.Array", classes: Sequence[str] = ()
) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes, and the class of each node [N] int64: -1 where the label is empty. classes:
    their names in order, without them those that are found, in their natural order. name: the graph's.

    InputError for labels that are no classes."""
    names, y = encoded(labels)
    if classes:
        # Read against the classes: every label is one of them, or empty.
        number = {label: c for c, label in enumerate(classes)} | {"": -1}
        return tuple(classes), np.array([number[label] for label in names], dtype=np.int64)[y]
    if "" in names:
        empty = names.index("")
        names = tuple(label for label in names if label)
        y = np.where(y == empty, -1, y - (y > empty))
    labelled = int((y >= 0).sum())
    if len(names) > MAX_CLASSES or (len(names) > FEW_CLASSES and 2 * len(names) > labelled):
        raise InputError(
            f"graph {name!r}: {len(names)} different labels of {labelled} nodes are no classes; name "
            "another column as 'label', or put these values into a few groups"
        )
    return names, y


def _read_edges(
    description: Description, files: Files, keys: "pa.Array", client: "pa.Array | None", among: Among | None
) -> "tuple[np.ndarray, np.ndarray | None, pa.Array]":
    """The ends, weight and far of `Tables`. keys, client: of the nodes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    file, weight = TableFile(files.edges), description.weight
    ends = description.source, description.target
    clients = [name for name in (description.source_client, description.target_client) if name is not None]
    roster = () if among is None else among.roster
    here = set() if client is None else {*client.unique().to_pylist()}
    others = pa.array([name for name in roster if name not in here], pa.string())
    numbers = Numbers(
        [] if weight is None else [weight], "do without weights: 'weight:' with nothing after it"
    )
    places: list[np.ndarray] = [np.empty((2, 0), dtype=np.int32)]
    far: list[list[pa.Array]] = [[], []]
    weights = [np.empty((0, 1), dtype=np.float32)]
    # Of the ends' texts no more than a block is held: there are many more edges than nodes.
    for start, columns, amount in file.blocks([*ends, *clients], numbers):
        named = [columns[name] for name in ends]
        for name in clients if roster else ():
            file.refuse_others(
                columns[name], roster, name, "is no client of this run",
                f"the clients are {_listed(roster)}: correct it, or drop the edge", start,
            )  # fmt: skip
        end_keys = named
        if clients:
            end_keys = [joined_keys(columns[at], end) for at, end in zip(clients, named, strict=True)]
        # Both ends at once: the table of a million keys is built anew for every call.
        place = pc.fill_null(pc.index_in(pa.concat_arrays(end_keys), value_set=keys), -1)
        place = np.asarray(place).reshape(2, -1)
        away = np.zeros(place.shape, dtype=bool)
        for end, name in enumerate(clients):
            away[end] = np.asarray(pc.is_in(columns[name], value_set=others))
            far[end].append(end_keys[end].filter(pa.array(away[end])))
        for end, name in enumerate(ends):
            file.refuse_where(
                (place[end] < 0) & ~away[end], name, f"is no node of {files.nodes}",
                "add the node, or drop the edge", named[end], start,
            )  # fmt: skip
        file.refuse_where(
            away.all(axis=0), description.source, "is at another client, as is the edge's other end",
            "an edge of this file needs an end here: drop it", named[0], start,
        )  # fmt: skip
        if weight is not None:
            file.refuse_where(
                amount[:, 0] <= 0, weight, "is no weight",
                "a weight is a number above 0: drop the edge, or rescale", amount[:, 0], start,
            )  # fmt: skip
        places.append(place)
        weights.append(amount)
    rows = np.concatenate(places, axis=1)
    elsewhere = pa.chunked_array([*far[0], *far[1]], pa.string()).combine_chunks().dictionary_encode()
    if len(elsewhere):
        rows = rows.astype(np.int64)
        rows[rows < 0] = len(keys) + np.asarray(elsewhere.indices)  # sources, then targets
    return rows, None if weight is None else np.concatenate(weights)[:, 0], elsewhere.dictionary
