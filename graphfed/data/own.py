"""The user's own graph: a description in YAML of one file of nodes and one of edges, checked and read.

    nodes: accounts.csv        CSV or Parquet, by the ending; paths start from the description's own folder
    edges: transfers.csv
    id: account                columns of the nodes; these four have the defaults id, site, label and split,
    site: bank                 the last three of them only where there is such a column
    label: fraud               any text or number; empty where unknown
    split: part                train, val, test, or empty for none
    features: [age, "f_*"]     default: every other column
    source: from               columns of the edges: the ids of both ends (default: source, target)
    target: to
    source_site: from_bank     where an id is unique within its site only: the site of each end
    target_site: to_bank
    weight: amount             positive numbers (default: weight, where there is such a column)
    repeated: sum              sum, mean or max: the weight of an edge that has several rows (default: sum)
    name: accounts             what to call the graph (default: the name of the file of nodes)

Ids, sites and labels are text as it stands in the file: 007 is not 7. Edges are undirected: rows of the same
two vertices, in either direction, are one edge; self loops are dropped, and columns of the edges that are not
named are not read. A key with nothing after it (site:) says not to use such a column.
"""

import dataclasses
import fnmatch
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from graphfed.data.graph import REPEATED, Graph, Split, from_pyg, make_graph
from graphfed.data.messages import brief
from graphfed.data.table_files import TableFile
from graphfed.errors import InputError, did_you_mean, shown
from graphfed.plain_yaml import read_yaml

__all__ = [
    "FILES",
    "KEYS",
    "Description",
    "describe",
    "describe_file",
    "from_networkx",
    "load_description",
    "read_graph_file",
]

#: Endings of files that are a whole graph, or describe one.
FILES = (".yaml", ".yml", ".pt", ".graphml")

#: The columns of each file that a description can name, with their defaults.
_NODE_COLUMNS = {"id": "id", "site": "site", "label": "label", "split": "split"}
_EDGE_COLUMNS = {
    "source": "source",
    "target": "target",
    "source_site": None,
    "target_site": None,
    "weight": "weight",
}
KEYS = ("nodes", "edges", *_NODE_COLUMNS, "features", *_EDGE_COLUMNS, "repeated", "name")
#: Columns that a description can leave out by naming nothing.
_OPTIONAL = ("site", "label", "split", "source_site", "target_site", "weight")
#: More values of a label than this are no classes but numbers or names.
MAX_CLASSES = 1000
#: So few may have less than two vertices each.
FEW_CLASSES = 20
#: Between a site and an id in one key; a character that no file of text should have.
_BETWEEN = "\x1f"
_PARTS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2, "none": 3, "": 3}


@dataclasses.dataclass(frozen=True)
class Description:
    """Where a graph's files are and which columns are what. Every column named here is in its file.

    site, label, split, source_site, target_site, weight: None where there is no such column. features: names
    of columns, in the order they are used. repeated: what `make_graph` does with the weights of an edge that
    has several rows."""

    name: str
    nodes: Path
    edges: Path
    id: str
    site: str | None
    label: str | None
    split: str | None
    features: tuple[str, ...]
    source: str
    target: str
    source_site: str | None
    target_site: str | None
    weight: str | None
    repeated: str

    def to_json(self) -> dict[str, Any]:
        """A mapping that `describe` takes, with absolute paths."""
        content = dataclasses.asdict(self)
        content |= {key: str(content[key].resolve()) for key in ("nodes", "edges")}
        content["features"] = list(self.features)
        return content


def describe_file(path: Path) -> Description:
    """The description in a YAML file, or under `data` in a run's config file.

    InputError as `describe`, and for a file that is no plain YAML."""
    content = read_yaml(path, "the data's description")
    if isinstance(content, dict) and isinstance(content.get("data"), dict):
        content = content["data"]
    return describe(content, path.parent, f"the data's description {path}")


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


def describe(content: Any, folder: Path, origin: str) -> Description:
    """A checked description. content: a mapping of KEYS; folder: where relative paths start; origin: what to
    call the mapping in messages.

    Only the names of the columns are read. Raises InputError for an unknown key, a missing file or a column
    that is not there."""
    if not isinstance(content, Mapping):
        raise InputError(
            f"{origin} must be a mapping, as in 'nodes: nodes.csv' (found {type(content).__name__})"
        )
    for key, value in content.items():
        if key not in KEYS:
            raise InputError(f"{origin} has an unknown key {key!r}; {did_you_mean(str(key), KEYS)}")
        unused = value is None and key in _OPTIONAL
        if key != "features" and not unused and not isinstance(value, str | int | float):
            raise InputError(f"{origin}: {key} must be text (found {type(value).__name__})")
    paths = {}
    for key in ("nodes", "edges"):
        if key not in content:
            raise InputError(f"{origin} has no {key!r}; name the file of {key}, as in '{key}: {key}.csv'")
        paths[key] = folder / str(content[key])
    nodes, edges = TableFile(paths["nodes"]), TableFile(paths["edges"])
    chosen = _columns(nodes, _NODE_COLUMNS, content, origin) | _columns(edges, _EDGE_COLUMNS, content, origin)
    for key in ("id", "source", "target"):
        if chosen[key] is None:
            file = nodes if key == "id" else edges
            raise InputError(
                f"{file.path} has no column {(_NODE_COLUMNS | _EDGE_COLUMNS)[key]!r}; the columns are "
                f"{', '.join(file.columns)}: name the one to use in {origin}, as in "
                f"'{key}: {file.columns[0]}'"
            )
    if (chosen["source_site"] is None) != (chosen["target_site"] is None):
        raise InputError(
            f"{origin} names the site of one end of the edges only; give source_site and target_site"
        )
    if chosen["source_site"] is not None and chosen["site"] is None:
        raise InputError(f"{origin} names the sites of edges, but no column 'site' of {nodes.path}")
    repeated = content.get("repeated", "sum")
    if repeated not in REPEATED:
        raise InputError(
            f"{origin}: repeated, the weight of an edge with several rows, is {shown(repeated)}; "
            f"{did_you_mean(str(repeated), REPEATED)}"
        )
    used = [chosen[key] for key in _NODE_COLUMNS if chosen[key] is not None]
    left_out = [_NODE_COLUMNS[key] for key in _NODE_COLUMNS if key in content and content[key] is None]
    features = _features(nodes, content.get("features"), used, left_out, origin)
    return Description(
        name=str(content.get("name", nodes.path.name.partition(".")[0])),
        nodes=nodes.path,
        edges=edges.path,
        features=features,
        repeated=repeated,
        **chosen,
    )


def _columns(
    file: TableFile, defaults: Mapping[str, str | None], content: Mapping[str, Any], origin: str
) -> dict[str, Any]:
    """The column for each key: as named, or the default where the file has it."""
    chosen: dict[str, Any] = {}
    for key, default in defaults.items():
        if key in content and content[key] is None:
            chosen[key] = None
            continue
        name = str(content[key]) if key in content else default
        if key in content and name not in file.columns:
            raise InputError(
                f"{origin}: {file.path} has no column {name!r} ({key}); "
                f"{did_you_mean(str(name), file.columns)}"
            )
        chosen[key] = name if name in file.columns else None
    return chosen


def _features(
    file: TableFile, asked: Any, used: list[str], left_out: list[str], origin: str
) -> tuple[str, ...]:
    """The columns that `asked` names; without it all but those that are used and those to be left out."""
    if asked is None:
        names = [name for name in file.columns if name not in used and name not in left_out]
    else:
        patterns = [asked] if isinstance(asked, str) else asked
        if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
            raise InputError(f"{origin}: features must be a list of column names, as in [age, balance]")
        names = []
        for pattern in patterns:
            found = [pattern] if pattern in file.columns else fnmatch.filter(file.columns, pattern)
            if not found:
                raise InputError(
                    f"{origin}: {file.path} has no column {pattern!r} (features); "
                    f"{did_you_mean(pattern, file.columns)}"
                )
            names += [name for name in found if name not in names]
        for name in names:
            if name in used:
                raise InputError(
                    f"{origin}: column {name!r} of {file.path} cannot be a feature and something else"
                )
    if not names:
        raise InputError(f"{file.path} has no column left for features; methods need at least one")
    return tuple(names)


# ---- reading -----------------------------------------------------------------------------------------------


def load_description(description: Description) -> Graph:
    """The graph that is described.

    Raises InputError with file, row, column, value and fix for a repeated id, an end of an edge that is no
    vertex, a feature that is no finite number, a part of the split that is not known, an empty site, ..."""
    nodes = _read_nodes(description)
    keys = nodes.ids if description.source_site is None else _joined(nodes.site, nodes.ids)
    _check_unique(description, keys, nodes)
    texts = {"label": nodes.label, "site": nodes.site}
    edges, weights = _read_edges(description, keys)
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
) -> Graph:
    """The graph of columns that are read: texts has label, site and split where there are any."""
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
    site_names: tuple[str, ...] = ()
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
    return dataclasses.replace(graph, ids=ids, sites=sites, site_names=site_names, feature_names=features)


@dataclasses.dataclass(frozen=True)
class _Nodes:
    """Columns of the nodes: text as pyarrow arrays (None where there is no such column), x [N, F] float32,
    split [N] int8 (see _PARTS)."""

    ids: Any
    site: Any
    label: Any
    x: np.ndarray
    split: np.ndarray | None


def _read_nodes(description: Description) -> _Nodes:
    import pyarrow as pa
    import pyarrow.compute as pc

    file = TableFile(description.nodes)
    texts = {key: getattr(description, key) for key in _NODE_COLUMNS if getattr(description, key) is not None}
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
        raise InputError(f"{file.path} has no row; it needs one for each vertex")
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


def _check_unique(description: Description, keys: Any, nodes: _Nodes) -> None:
    """Refuse an id that two vertices have, naming both rows."""
    import pyarrow.compute as pc

    first = pc.index_in(keys, value_set=keys).to_numpy(zero_copy_only=False)
    again = np.flatnonzero(first != np.arange(len(first)))
    if again.size:
        file, row = TableFile(description.nodes), int(again[0])
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


def _read_edges(description: Description, keys: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """[2, m] int64: positions of both ends; and their weights [m] float32. Block by block, so that the ids of
    all edges are never held."""
    import pyarrow as pa
    import pyarrow.compute as pc

    file = TableFile(description.edges)
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
                pc.is_null(place), start, getattr(description, key), f"is no vertex of {description.nodes}",
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
