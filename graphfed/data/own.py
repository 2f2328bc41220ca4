"""The user's own graph: the tables that a description names, files of a whole graph, and networkx graphs."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.data.description import NODE_COLUMNS, Description, Files, at_site
from graphfed.data.graph import Graph, Held, Split, from_pyg, make_graph
from graphfed.data.messages import brief
from graphfed.data.table_files import TableFile
from graphfed.data.union import SiteTables, unite
from graphfed.errors import InputError, shown

__all__ = [
    "FILES",
    "from_networkx",
    "load_description",
    "read_graph_file",
]

#: Endings of files that are a whole graph, or describe one.
FILES = (".yaml", ".yml", ".pt", ".graphml")

#: More values of a label than this are no classes but numbers or names.
MAX_CLASSES = 1000
#: So few may have less than two vertices each.
FEW_CLASSES = 20
#: Between a site and an id in one key; a character that no file of text should have.
_BETWEEN = "\x1f"
_PARTS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "none": 3, "": 3}


def read_graph_file(path: Path) -> Graph:
    """The graph in a file that holds a whole one: a PyG `Data` saved with torch.save (.pt), read as data and
    never as code, or GraphML (.graphml).

    Raises InputError for a file that is neither, or cannot be used (see `from_pyg` and `from_networkx`)."""
    return _read_pyg(path) if path.suffix == ".pt" else _read_graphml(path)


def _read_pyg(path: Path) -> Graph:
    import torch
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    try:
        with torch.serialization.safe_globals([Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]):
            data = torch.load(path, weights_only=True, map_location="cpu")
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception:  # a hostile or damaged file can fail in any way, and its message quotes it
        raise InputError(
            f"{path} is no PyG Data of tensors alone and was refused; save it again as "
            "torch.save(Data(x=data.x, edge_index=data.edge_index, y=data.y), path)"
        ) from None
    if isinstance(data, dict):
        data = Data(**{str(key): value for key, value in data.items()})
    return from_pyg(data, path.stem)


def _read_graphml(path: Path) -> Graph:
    import networkx as nx

    try:
        with path.open("rb") as file:
            # A definition of entities can make a small file stand for gigabytes.
            if b"<!DOCTYPE" in file.read(1 << 16):
                raise InputError(f"{path} has a document type definition, which is not read; remove it")
        graph = nx.read_graphml(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except InputError:
        raise
    except Exception as error:  # the parser's own, and networkx's of several kinds
        raise InputError(f"{path} is no GraphML ({brief(error)}); write it again") from None
    return from_networkx(graph, path.stem)


def from_networkx(graph: Any, name: str = "custom") -> Graph:
    """A Graph from a networkx graph (or GraphML): the vertex attributes "label", "site" and "split" are those
    of a description, every other one is a feature. The edge attribute "weight" is the edge's weight, 1 where
    it is missing; an edge that is given several times, as in a directed graph, has the mean of its weights.

    Raises InputError for a vertex that lacks an attribute the others have, a feature that is no finite
    number, or a weight that is no positive number."""
    import pyarrow as pa

    vertices = list(graph.nodes)
    known = {attribute for _, attributes in graph.nodes(data=True) for attribute in attributes}
    columns: dict[str, list[Any]] = {}
    for attribute in sorted(known, key=str):
        columns[attribute] = [graph.nodes[v].get(attribute) for v in vertices]
    place = {v: i for i, v in enumerate(vertices)}
    features = tuple(str(c) for c in columns if c not in ("label", "site", "split"))
    if not features:
        raise InputError(f"graph {name!r} has no vertex attribute for features; methods need at least one")
    x = np.empty((len(vertices), len(features)), dtype=np.float32)
    for j, feature in enumerate(features):
        for i, value in enumerate(columns[feature]):
            try:
                x[i, j] = float(value)
            except (TypeError, ValueError):
                raise InputError(
                    f"graph {name!r}, vertex {str(vertices[i])[:60]!r}: {feature} is {shown(value)}, not a "
                    "number; give every vertex a number, or remove the attribute"
                ) from None
    texts: dict[str, Any] = {
        key: pa.array(["" if value is None else str(value) for value in columns[key]])
        for key in ("label", "site", "split")
        if key in columns
    }
    edges = np.array([(place[u], place[v]) for u, v in graph.edges()], dtype=np.int64).reshape(-1, 2).T
    weights = np.empty(edges.shape[1])
    for i, (u, v, weight) in enumerate(graph.edges(data="weight", default=1)):
        try:
            weights[i] = float(weight)
        except (TypeError, ValueError):
            raise InputError(
                f"graph {name!r}, edge {str(u)[:60]!r} to {str(v)[:60]!r}: weight is {shown(weight)}, not a "
                "number; give every edge a number above 0, or remove the attribute"
            ) from None
    ids = pa.array([str(v) for v in vertices])
    return _assembled(name, ids, x, texts, edges, features, weights=weights)


# ---- reading -----------------------------------------------------------------------------------------------


def load_description(description: Description) -> Graph:
    """The graph that is described.

    Raises InputError with file, row, column, value and fix for a repeated id, an end of an edge that is no
    vertex, a feature that is no finite number, a part of the split that is not known, an empty site, ...; and
    where two sites disagree, with both sites, files and rows."""
    if description.files[0].site is not None:
        return _load_sites(description)
    (files,) = description.files
    nodes, edges, weights = _read(description, files)
    texts = {"label": nodes.label, "site": nodes.site}
    return _assembled(
        description.name,
        nodes.ids,
        nodes.x,
        {key: column for key, column in texts.items() if column is not None},
        edges,
        description.features,
        parts=nodes.split,
        weights=weights,
        repeated=description.repeated,
    )


def _load_sites(description: Description) -> Graph:
    """The graph that several sites' files list together, and who holds what of it."""
    tables = []
    for files in description.files:
        assert files.site is not None
        with at_site(files.site):
            nodes, ends, weight = _read(description, files)
        tables.append(
            SiteTables(
                files.site, TableFile(files.nodes), TableFile(files.edges),
                nodes.ids, nodes.x, nodes.label, nodes.split, ends, weight,
            )
        )  # fmt: skip
    union = unite(
        tables,
        features=description.features,
        label=description.label,
        split=description.split,
        weight=description.weight,
        repeated=description.repeated,
    )
    return _assembled(
        description.name,
        union.ids,
        union.x,
        {} if union.label is None else {"label": union.label},
        union.ends,
        description.features,
        parts=union.part,
        weights=union.weight,
        held=union.held,
        site_names=tuple(table.name for table in tables),
    )


def _read(description: Description, files: Files) -> tuple["_Nodes", np.ndarray, np.ndarray | None]:
    """A pair of files: nodes, ends of edges [2, m] as rows of the nodes, and weights [m] or None."""
    nodes = _read_nodes(description, files)
    keys = nodes.ids if description.source_site is None else _joined(nodes.site, nodes.ids)
    _check_unique(description, files, keys, nodes)
    return nodes, *_read_edges(description, files, keys)


def _assembled(
    name: str,
    ids: Any,
    x: np.ndarray,
    texts: Mapping[str, Any],
    edges: np.ndarray,
    features: tuple[str, ...],
    *,
    parts: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    repeated: str = "mean",
    held: Held | None = None,
    site_names: tuple[str, ...] = (),
) -> Graph:
    """The graph of columns that are read: texts has label, site and split where there are any; held and the
    names of its sites, where there are several sites' files."""
    if "split" in texts:
        parts = np.empty(len(x), dtype=np.int8)
        for i, part in enumerate(texts["split"].to_pylist()):
            if part not in _PARTS:
                raise InputError(
                    f"graph {name!r}, vertex {ids[i].as_py()[:60]!r}: {shown(part)} is no part of a split; "
                    "use train, val, test or nothing"
                )
            parts[i] = _PARTS[part]
    sites: np.ndarray | None = None
    class_names: tuple[str, ...] = ()
    y = np.full(len(x), -1, dtype=np.int64)
    if "site" in texts:
        site_names, sites = _encoded(texts["site"])
        if "" in site_names:
            row = int(np.flatnonzero(sites == site_names.index(""))[0])
            raise InputError(
                f"graph {name!r}, vertex {ids[row].as_py()[:60]!r} has no site; give every vertex one"
            )
    if "label" in texts:
        class_names, y = _classes(name, texts["label"])
    split = None if parts is None else Split("own", parts == 0, parts == 1, parts == 2)
    graph = make_graph(
        name,
        x,
        y,
        edges,
        edge_weight=weights,
        repeated=repeated,
        class_names=class_names,
        split=split,
        num_classes=len(class_names),
    )
    return dataclasses.replace(
        graph, ids=ids, sites=sites, site_names=site_names, feature_names=features, held=held
    )


@dataclasses.dataclass(frozen=True)
class _Nodes:
    """Columns of the nodes: text as pyarrow arrays (None where there is no such column), x [N, F] float32,
    split [N] int8 (see _PARTS)."""

    ids: Any
    site: Any
    label: Any
    x: np.ndarray
    split: np.ndarray | None


def _read_nodes(description: Description, files: Files) -> _Nodes:
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
            if key == "split":
                known = pc.index_in(column, value_set=pa.array(_PARTS))
                file.refuse_first(
                    pc.is_null(known),
                    start,
                    name,
                    "is no part of a split",
                    "use train, val, test or nothing",
                    column,
                )
                parts.append(
                    np.array(list(_PARTS.values()), dtype=np.int8)[known.to_numpy(zero_copy_only=False)]
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
    return _Nodes(
        columns["id"],
        columns.get("site"),
        columns.get("label"),
        np.concatenate(x),
        np.concatenate(parts) if parts else None,
    )


def _joined(site: Any, ids: Any) -> Any:
    """One key for each (site, id)."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(site, ids, _BETWEEN)


def _check_unique(description: Description, files: Files, keys: Any, nodes: _Nodes) -> None:
    """Refuse an id that two vertices have, naming both rows."""
    import pyarrow.compute as pc

    first = pc.index_in(keys, value_set=keys).to_numpy(zero_copy_only=False)
    again = np.flatnonzero(first != np.arange(len(first)))
    if again.size:
        file, row = TableFile(files.nodes), int(again[0])
        name = nodes.ids[row].as_py()
        at = "" if description.source_site is None else f" of site {nodes.site[row].as_py()!r}"
        raise InputError(
            f"{file.where(row)}, column {description.id!r}: the id {name!r}{at} is also in "
            f"{file.place(int(first[row]))}; give every vertex an id of its own ({again.size} repeated)"
        )


def _encoded(column: Any) -> tuple[tuple[str, ...], np.ndarray]:
    """The distinct values, in their natural order, and the number of each entry's."""
    encoded = column.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=lambda i: _natural(names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return tuple(names[i] for i in order), rank[encoded.indices.to_numpy(zero_copy_only=False)]


def _natural(name: str) -> tuple[int, float, str]:
    """Numbers by value, before texts by letter."""
    try:
        value = float(name)
    except ValueError:
        return 1, 0.0, name
    return (1, 0.0, name) if math.isnan(value) else (0, value, name)


def _classes(name: str, labels: Any) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the classes, and the class of each vertex: -1 where the label is empty."""
    names, y = _encoded(labels)
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


def _read_edges(description: Description, files: Files, keys: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """[2, m] int64: positions of both ends; and their weights [m] float32. Block by block, so that the ids of
    all edges are never held."""
    import pyarrow as pa
    import pyarrow.compute as pc

    file = TableFile(files.edges)
    ends = (("source", "source_site"), ("target", "target_site"))
    keys_used = [key for pair in ends for key in pair if getattr(description, key) is not None]
    weight = description.weight
    wanted = list(dict.fromkeys(getattr(description, key) for key in keys_used))
    wanted += [weight] if weight is not None and weight not in wanted else []
    blocks: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for start, batch in file.batches(wanted):
        columns = [file.text(batch, getattr(description, key)) for key, _ in ends]
        named = columns
        if description.source_site is not None:
            sites = (file.text(batch, getattr(description, key)) for _, key in ends)
            named = [_joined(site, column) for site, column in zip(sites, columns, strict=True)]
        # Both ends at once: the table of a million keys is built anew for every call.
        places = pc.index_in(pa.concat_arrays(named), value_set=keys)
        for (key, _), column, place in zip(
            ends, columns, (places[: batch.num_rows], places[batch.num_rows :]), strict=True
        ):
            file.refuse_first(
                pc.is_null(place), start, getattr(description, key), f"is no vertex of {files.nodes}",
                "add the vertex, or drop the edge", column,
            )  # fmt: skip
        blocks.append(places.to_numpy(zero_copy_only=False).reshape(2, -1))
        if weight is not None:
            numbers = file.numbers(
                batch, weight, start, "do without weights: 'weight:' with nothing after it"
            )
            file.refuse_first(
                pa.array(numbers <= 0), start, weight, "is no weight",
                "a weight is a number above 0: drop the edge, or rescale", pa.array(numbers),
            )  # fmt: skip
            weights.append(numbers)
    edges = np.concatenate(blocks, axis=1) if blocks else np.zeros((2, 0), dtype=np.int64)
    if weight is None:
        return edges, None
    return edges, np.concatenate([*weights, np.zeros(0, dtype=np.float32)])
