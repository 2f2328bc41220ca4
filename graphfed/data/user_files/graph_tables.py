"""The tables that a description names, read and checked: what one file of nodes and one of edges say.

`graph_files`, which has the files of all sites, reads them where both ends of every edge are nodes of the
nodes file. `graphfed.tasks.graphs.site` reads those of one site, whose edges may end at another site.
Shapes: N vertices, F features, m rows of edges.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphfed.data.dropped import edges_dropped, names_dropped
from graphfed.data.user_files.graph_description import EDGE_COLUMNS, NODE_COLUMNS, Description, Files
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, shown

__all__ = [
    "BETWEEN",
    "PARTS",
    "Among",
    "Tables",
    "classes_of",
    "dropped_by",
    "encoded",
    "joined_keys",
    "read_tables",
]

#: More values of a label than this are no classes but numbers or names.
MAX_CLASSES = 1000
#: So few may have less than two vertices each.
FEW_CLASSES = 20
#: Between a site and an id in one key; a character that no file of text should have.
BETWEEN = "\x1f"
PARTS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "none": 3, "": 3}


@dataclass(frozen=True)
class Among:
    """A site among others. roster: all the sites that there are, by name; here: those of them that its own
    nodes may be at."""

    roster: Sequence[str]
    here: Sequence[str]


@dataclass(frozen=True)
class Tables:
    """What a file of nodes and one of edges say. Texts are pyarrow arrays, None without such a column.

    ids, site, label: N texts, a label is "" where unknown; x [N, F] float32; part [N] int8, see PARTS; keys:
    N texts, no two alike: the ids, with their site where an id is unique within its site only; ends [2, m]:
    rows of the nodes, and from N on entries of `far`: the keys of vertices at other sites; weight [m]
    float32, positive, or None."""

    ids: Any
    site: Any
    label: Any
    x: np.ndarray
    part: np.ndarray | None
    keys: Any
    ends: np.ndarray
    weight: np.ndarray | None
    far: Any


def read_tables(description: Description, files: Files, among: Among | None = None) -> Tables:
    """A pair of files. among: whose files they are, for a site that has its own alone: an edge then may end
    at another site, by (site, id).

    Raises InputError with file, row, column, value and fix for a repeated id, an end of an edge that is no
    vertex, a feature that is no finite number, a part of the split or a class that is not known, ..."""
    ids, site, label, x, part = _read_nodes(description, files, among)
    keys = ids if description.source_site is None else joined_keys(site, ids)
    _check_unique(description, files, keys, ids, site)
    ends, weight, far = _read_edges(description, files, keys, site, among)
    return Tables(ids, site, label, x, part, keys, ends, weight, far)


def _read_nodes(
    description: Description, files: Files, among: Among | None
) -> tuple[Any, Any, Any, np.ndarray, np.ndarray | None]:
    """The first five of `Tables`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    file = TableFile(files.nodes)
    texts = {key: getattr(description, key) for key in NODE_COLUMNS if getattr(description, key) is not None}
    wanted = list(dict.fromkeys([*texts.values(), *description.features]))
    found: dict[str, list[Any]] = {key: [] for key in texts}
    x: list[np.ndarray] = []
    parts: list[np.ndarray] = []
    for start, batch in file.batches(wanted):
        for key, name in texts.items():
            column = file.text(batch, name)
            if key in ("id", "site"):
                file.refuse_first(
                    pc.equal(column, ""), start, name, "is empty", f"every vertex needs its {key}: fill it in"
                )
            if key == "site" and among is not None:
                file.refuse_first(
                    pc.invert(pc.is_in(column, value_set=pa.array(among.here))), start, name,
                    "is no site of this file",
                    f"its vertices are at {_listed(among.here)}; where the column is something else, write "
                    "'site:' with nothing after it in the description", column,
                )  # fmt: skip
            if key == "label" and description.classes:
                file.refuse_first(
                    pc.invert(pc.is_in(column, value_set=pa.array([*description.classes, ""]))), start, name,
                    "is none of the classes",
                    f"correct it, or name it under 'classes' ({_listed(description.classes)})", column,
                )  # fmt: skip
            if key == "split":
                known = pc.index_in(column, value_set=pa.array(PARTS))
                file.refuse_first(
                    pc.is_null(known),
                    start,
                    name,
                    "is no part of a split",
                    "use train, val, test or nothing",
                    column,
                )
                parts.append(
                    np.array(list(PARTS.values()), dtype=np.int8)[known.to_numpy(zero_copy_only=False)]
                )
            found[key].append(column)
        block = np.empty((batch.num_rows, len(description.features)), dtype=np.float32)
        for j, name in enumerate(description.features):
            block[:, j] = file.numbers(batch, name, start)
        x.append(block)
    if not x:
        alone = "" if files.site is None else ": add them, or leave the site out"
        raise InputError(f"{file.path} has no row; it needs one for each vertex{alone}")
    columns = {key: pa.chunked_array(chunks).combine_chunks() for key, chunks in found.items()}
    return (
        columns["id"],
        columns.get("site"),
        columns.get("label"),
        np.concatenate(x),
        np.concatenate(parts) if parts else None,
    )


def _listed(names: Sequence[str]) -> str:
    """The first of some names, for a message."""
    return ", ".join(map(shown, names[:10])) + (", ..." if len(names) > 10 else "")


def joined_keys(site: Any, ids: Any) -> Any:
    """One key for each (site, id), of two pyarrow arrays of texts."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(site, ids, BETWEEN)


def _check_unique(description: Description, files: Files, keys: Any, ids: Any, site: Any) -> None:
    """Refuse an id that two vertices have, naming both rows."""
    import pyarrow.compute as pc

    first = pc.index_in(keys, value_set=keys).to_numpy(zero_copy_only=False)
    again = np.flatnonzero(first != np.arange(len(first)))
    if again.size:
        file, row = TableFile(files.nodes), int(again[0])
        name = ids[row].as_py()
        at = "" if description.source_site is None else f" of site {site[row].as_py()!r}"
        raise InputError(
            f"{file.where(row)}, column {description.id!r}: the id {name!r}{at} is also in "
            f"{file.place(int(first[row]))}; give every vertex an id of its own ({again.size} repeated)"
        )


def dropped_by(
    description: Description, listed: Sequence[np.ndarray], num_vertices: int, num_edges: int
) -> tuple[str, ...]:
    """What a reader of the described files leaves out, a phrase for each kind of loss. listed: the ends of
    the edges as each file lists them, [2, any]; num_edges: m, undirected and without self loops."""
    weights = "" if description.weight is None else description.repeated
    told = edges_dropped(listed, num_vertices, num_edges, weights=weights)
    for which, keys, more in (("nodes", NODE_COLUMNS, description.features), ("edges", EDGE_COLUMNS, ())):
        used = {getattr(description, key) for key in keys} | {*more}
        columns = (name for files in description.files for name in TableFile(getattr(files, which)).columns)
        told += names_dropped(dict.fromkeys(columns), used, "column", f"the {which}")
    return told


def encoded(column: Any) -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct values, in their natural order, and the number of each entry's."""
    numbered = column.dictionary_encode()
    names = numbered.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda i: _natural(names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return tuple(names[i] for i in order), rank[numbered.indices.to_numpy(zero_copy_only=False)]


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers by value, before texts by letter."""
    try:
        value = float(name)
    except ValueError:
        return 1, 0.0, name
    return (1, 0.0, name) if math.isnan(value) else (0, value, name)


def classes_of(name: str, labels: Any, classes: Sequence[str] = ()) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes, and the class of each vertex [N] int64: -1 where the label is empty. classes:
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
            f"graph {name!r}: {len(names)} different labels of {labelled} vertices are no classes; name "
            "another column as 'label', or put these values into a few groups"
        )
    return names, y


def _read_edges(
    description: Description, files: Files, keys: Any, site: Any, among: Among | None
) -> tuple[np.ndarray, np.ndarray | None, Any]:
    """The last three of `Tables`. Block by block, so that of the edges' ids only those elsewhere are held."""
    import pyarrow as pa
    import pyarrow.compute as pc

    file = TableFile(files.edges)
    ends = (("source", "source_site"), ("target", "target_site"))
    keys_used = [key for pair in ends for key in pair if getattr(description, key) is not None]
    weight = description.weight
    wanted = list(dict.fromkeys(getattr(description, key) for key in keys_used))
    wanted += [weight] if weight is not None and weight not in wanted else []
    others: list[str] = []
    if among is not None and description.source_site is not None:
        mine = set(pc.unique(site).to_pylist())
        others = [name for name in among.roster if name not in mine]
    blocks: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    away: list[Any] = [pa.array([], pa.string())]
    for start, batch in file.batches(wanted):
        columns = [file.text(batch, getattr(description, key)) for key, _ in ends]
        named, sites = columns, []
        if description.source_site is not None:
            sites = [file.text(batch, getattr(description, key)) for _, key in ends]
            named = [joined_keys(of, column) for of, column in zip(sites, columns, strict=True)]
        # Both ends at once: the table of a million keys is built anew for every call.
        every = pa.concat_arrays(named)
        places = pc.index_in(every, value_set=keys)
        unknown = pc.is_null(places)
        if others:
            elsewhere = pc.is_in(pa.concat_arrays(sites), value_set=pa.array(others))
            away.append(every.filter(elsewhere))
            unknown = pc.and_not(unknown, elsewhere)
        for end, ((key, site_key), column) in enumerate(zip(ends, columns, strict=True)):
            here = slice(end * batch.num_rows, (end + 1) * batch.num_rows)
            if among is not None and sites:
                file.refuse_first(
                    pc.invert(pc.is_in(sites[end], value_set=pa.array(among.roster))), start,
                    getattr(description, site_key), "is no site of this run",
                    f"the sites are {_listed(among.roster)}: correct it, or drop the edge", sites[end],
                )  # fmt: skip
            file.refuse_first(
                unknown[here], start, getattr(description, key), f"is no vertex of {files.nodes}",
                "add the vertex, or drop the edge", column,
            )  # fmt: skip
        if others:
            file.refuse_first(
                pc.and_(elsewhere[: batch.num_rows], elsewhere[batch.num_rows :]), start,
                description.source, "is at another site, as is the edge's other end",
                "an edge of this file needs an end here: drop it", columns[0],
            )  # fmt: skip
        blocks.append(pc.fill_null(places, -1).to_numpy(zero_copy_only=False).reshape(2, -1))
        if weight is not None:
            numbers = file.numbers(
                batch, weight, start, "do without weights: 'weight:' with nothing after it"
            )
            file.refuse_first(
                pa.array(numbers <= 0), start, weight, "is no weight",
                "a weight is a number above 0: drop the edge, or rescale", pa.array(numbers),
            )  # fmt: skip
            weights.append(numbers)
    far = pa.concat_arrays(away).dictionary_encode()
    # In every block the ends elsewhere come as they were collected: sources, then targets.
    number = len(keys) + far.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    used = 0
    for b, block in enumerate(blocks):
        missing = block < 0
        if missing.any():
            blocks[b] = block.astype(np.int64)
            blocks[b][missing] = number[used : used + missing.sum()]
            used += int(missing.sum())
    edges = np.concatenate(blocks, axis=1) if blocks else np.zeros((2, 0), dtype=np.int64)
    amounts = None if weight is None else np.concatenate([*weights, np.zeros(0, dtype=np.float32)])
    return edges, amounts, far.dictionary
