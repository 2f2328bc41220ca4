"""The user's own graph: the tables that a description names, files of a whole graph, and networkx graphs."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.data.dropped import edges_dropped, names_dropped
from graphfed.data.graphs.graph import Graph, Held, Split, from_pyg, make_graph
from graphfed.data.messages import brief
from graphfed.data.user_files.graph_description import Description, at_site
from graphfed.data.user_files.graph_tables import (
    PARTS,
    Tables,
    classes_of,
    dropped_by,
    encoded,
    joined_keys,
    read_tables,
)
from graphfed.data.user_files.site_union import SiteTables, unite
from graphfed.data.user_files.table_files import TableFile
from graphfed.errors import InputError, shown
from graphfed.files import check_regular

__all__ = [
    "FILES",
    "from_networkx",
    "load_description",
    "read_graph_file",
]

#: Endings of files that are a whole graph, or describe one.
FILES = (".yaml", ".yml", ".pt", ".graphml")


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
        check_regular(path)
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
        check_regular(path)
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
    made = _assembled(name, ids, x, texts, edges, features, weights=weights)
    lost = edges_dropped(
        [edges],
        len(vertices),
        made.num_edges,
        directed=graph.is_directed(),
        weights="mean" if any("weight" in known for *_, known in graph.edges(data=True)) else "",
    )
    attributes = {str(key) for *_, known in graph.edges(data=True) for key in known}
    unread = names_dropped(sorted(attributes), ("weight",), "attribute", "the edges")
    return dataclasses.replace(made, dropped=(*lost, *unread))


# ---- reading -----------------------------------------------------------------------------------------------


def load_description(description: Description) -> Graph:
    """The graph that is described.

    Raises InputError with file, row, column, value and fix for a repeated id, an end of an edge that is no
    vertex, a feature that is no finite number, a part of the split that is not known, an empty site, ...; and
    where two sites disagree, with both sites, files and rows."""
    if description.files[0].site is not None:
        return _load_sites(description)
    (files,) = description.files
    tables = read_tables(description, files)
    texts = {"label": tables.label, "site": tables.site}
    graph = _assembled(
        description.name,
        tables.ids,
        tables.x,
        {key: column for key, column in texts.items() if column is not None},
        tables.ends,
        description.features,
        parts=tables.part,
        weights=tables.weight,
        repeated=description.repeated,
        classes=description.classes,
        keys=_keys(description, tables),
    )
    return _with_dropped(graph, description, [tables.ends])


def _keys(description: Description, tables: Tables) -> Any:
    """What a site that reads its own files alone knows each node by. Where edges join two sites it names a
    node by its site and its id: only so can it name one at another site."""
    if description.source_site is not None or tables.site is None:
        return tables.keys
    _, site = encoded(tables.site)
    between_sites = (site[tables.ends[0]] != site[tables.ends[1]]).any()
    return joined_keys(tables.site, tables.ids) if between_sites else tables.ids


def _load_sites(description: Description) -> Graph:
    """The graph that several sites' files list together, and who holds what of it."""
    tables = []
    for files in description.files:
        assert files.site is not None
        with at_site(files.site):
            read = read_tables(description, files)
        tables.append(
            SiteTables(
                files.site, TableFile(files.nodes), TableFile(files.edges),
                read.ids, read.x, read.label, read.part, read.ends, read.weight,
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
    graph = _assembled(
        description.name,
        union.ids,
        union.x,
        {} if union.label is None else {"label": union.label},
        union.ends,
        description.features,
        parts=union.part,
        weights=union.weight,
        held=union.held,
        classes=description.classes,
        site_names=tuple(table.name for table in tables),
        keys=union.ids,
    )
    return _with_dropped(graph, description, union.listed)


def _with_dropped(graph: Graph, description: Description, listed: Sequence[np.ndarray]) -> Graph:
    """listed: the ends [2, any] of the edges of each file."""
    dropped = dropped_by(description, listed, graph.num_nodes, graph.num_edges)
    return dataclasses.replace(graph, dropped=dropped)


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
    classes: tuple[str, ...] = (),
    keys: Any = None,
) -> Graph:
    """The graph of columns that are read: texts has label, site and split where there are any; held and the
    names of its sites, where there are several sites' files; keys: as of `Graph`."""
    if "split" in texts:
        parts = np.empty(len(x), dtype=np.int8)
        for i, part in enumerate(texts["split"].to_pylist()):
            if part not in PARTS:
                raise InputError(
                    f"graph {name!r}, vertex {ids[i].as_py()[:60]!r}: {shown(part)} is no part of a split; "
                    "use train, val, test or nothing"
                )
            parts[i] = PARTS[part]
    sites: np.ndarray | None = None
    class_names = classes
    y = np.full(len(x), -1, dtype=np.int64)
    if "site" in texts:
        site_names, sites = encoded(texts["site"])
        if "" in site_names:
            row = int(np.flatnonzero(sites == site_names.index(""))[0])
            raise InputError(
                f"graph {name!r}, vertex {ids[row].as_py()[:60]!r} has no site; give every vertex one"
            )
    if "label" in texts:
        class_names, y = classes_of(name, texts["label"], classes)
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
        graph,
        ids=ids,
        sites=sites,
        site_names=site_names,
        feature_names=features,
        held=held,
        keys=keys,
    )
