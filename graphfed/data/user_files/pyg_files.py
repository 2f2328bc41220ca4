"""Conversion of PyG `Data` objects, and reading of files that torch.save wrote. No code in a file is run.

Shapes: N nodes, F features.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import scipy.sparse as sp

from graphfed.data.dropped import edges_dropped, loops_dropped
from graphfed.data.graphs.directed import DirectedEdges, make_directed
from graphfed.data.graphs.graph import Graph, Split, make_graph
from graphfed.data.graphs.splits import UNSPLIT
from graphfed.data.messages import brief
from graphfed.data.texts import canonical_texts, python_texts
from graphfed.data.user_files.graph_tables import encoded, with_unread
from graphfed.data.user_files.table_files import CROWDED, FREE_ROWS
from graphfed.errors import InputError, shown
from graphfed.files import read_start

#: The names of the masks, in the order of the parts of a split.
MASKS = ("train_mask", "val_mask", "test_mask")
#: The attributes of a `Data` that are read, and `num_nodes`, which adds nothing to them.
_READ = ("x", "y", "edge_index", "edge_weight", "edge_attr", "edge_time", "client", *MASKS, "num_nodes")
#: How a user saves a graph so that it can be read.
_SAVE = "torch.save(Data(x=data.x, edge_index=data.edge_index, y=data.y), path)"
_HETERO = (
    "a HeteroData, with several kinds of nodes or edges, and one kind is expected; convert it with "
    "data.to_homogeneous(), after giving all kinds of nodes the same features"
)
#: What a file has instead of a `Data` and what to do, by a part of the name of a class in it. The first two
#: are a HeteroData itself and a part of it, because PyG allows torch.load to read the former.
_CONVERSIONS = {
    "HeteroData": _HETERO,
    "NodeStorage": _HETERO,
    "TemporalData": "a TemporalData, a list of events, and a Data is expected; make a Data of its events, "
    "with the features of its nodes as x",
    "ndarray": f"a numpy array, which torch.load would unpickle; save tensors only, as in {_SAVE}",
    "SparseTensor": "a SparseTensor, which torch.load would unpickle; replace adj_t by edge_index and save "
    f"tensors only, as in {_SAVE}",
}


def read_pyg(path: Path) -> Graph:
    """Read a PyG `Data` that torch.save wrote, as an object or as a dictionary of tensors.

    The file is read as tensors, and classes other than those of `Data` are refused.
    """
    import torch
    from torch_geometric.data import Data

    read_start(path, 1)
    try:
        with tensors_only():
            content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception:  # a hostile or damaged file can fail in many ways, and the error may quote its content
        raise InputError(f"{path} was refused, because {_unsafe_content(path)}") from None
    if isinstance(content, Mapping) and "edge_index" in content:
        content = Data(**{str(key): value for key, value in content.items()})
    if not isinstance(content, Data):
        raise InputError(f"{path} has {_described(content)}")
    _check_sizes(content, path)
    return from_pyg(content, path.stem)


@contextmanager
def tensors_only() -> Iterator[None]:
    """Let torch.load read tensors and the classes of `Data` in this context, and refuse any other class,
    whatever a library asks for.
    """
    import torch
    from torch_geometric.data import Data
    from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
    from torch_geometric.data.storage import GlobalStorage

    key = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(key)
    os.environ[key] = "1"
    # Those that PyG has allowed itself must stay allowed after this context.
    allowed = torch.serialization.get_safe_globals()
    classes = (Data, DataEdgeAttr, DataTensorAttr, GlobalStorage)
    try:
        with torch.serialization.safe_globals([each for each in classes if each not in allowed]):
            yield
    finally:
        if before is None:
            del os.environ[key]
        else:
            os.environ[key] = before


def _check_sizes(data: Any, path: Path) -> None:
    """Raise an InputError if a tensor has far more entries than its file has bytes.

    A small file can state any size: for a sparse tensor, and for a dense one that repeats its entries.
    """
    import torch

    size = path.stat().st_size
    for key in _READ:
        tensor = getattr(data, key, None)
        if not isinstance(tensor, torch.Tensor):
            continue
        stated = tensor.numel() if tensor.layout is torch.strided else max(tensor.shape)
        if stated > max(FREE_ROWS, CROWDED * size):
            raise InputError(
                f"{path}: {key} has shape {tuple(tensor.shape)}, and the file has only {size:,} bytes; save "
                "a tensor with all its entries (x.clone()), and a sparse one without empty rows and columns"
            )


def _unsafe_content(path: Path) -> str:
    """Say what a file has that is not read, from the names of the classes in it; no class is imported."""
    import torch

    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except Exception:  # no archive of torch, but a plain pickle, or a damaged file
        names = []
    for part, meaning in _CONVERSIONS.items():
        if any(part in name for name in names):
            return f"it has {meaning}"
    named = f" (it has objects of {', '.join(brief(name) for name in sorted(names)[:3])})" if names else ""
    return f"it is no PyG Data object of tensors only{named}; save it again as {_SAVE}"


def _described(content: Any) -> str:
    """Describe what a file has instead of a `Data`, and how to save one graph of it."""
    from torch_geometric.data import Data

    kind = type(content).__name__
    if kind in _CONVERSIONS:
        return _CONVERSIONS[kind]
    if isinstance(content, tuple | list):
        graphs = [part for part in content if isinstance(part, Data)]
        if isinstance(content, tuple) and len(content) > 1 and isinstance(content[0], Data | Mapping):
            return (
                "the content of a PyG dataset (a Data with slices), and one Data is expected; save one graph "
                "of it, as in torch.save(dataset[0], path)"
            )
        if graphs:
            return (
                f"a list of {len(graphs):,} graphs, and one is expected; save one, as in "
                "torch.save(graphs[0], path)"
            )
        return f"a {kind} of {len(content):,} objects, and a PyG Data is expected; save {_SAVE}"
    if isinstance(content, Mapping):
        keys = ", ".join(shown(str(key)) for key in list(content)[:5]) or "nothing"
        return (
            f"a dictionary without 'edge_index' (it has {keys}), and that of a PyG Data is expected, as in "
            "torch.save({'x': x, 'edge_index': edge_index, 'y': y}, path)"
        )
    return f"a {kind}, and a PyG Data is expected, as in {_SAVE}"


def from_pyg(data: Any, name: str = "custom") -> Graph:
    """Convert a PyG `Data` object into a Graph.

    The attribute edge_index is required. y has the classes; without it no label is known, which is enough for
    link prediction. Without x, node classification uses the degrees. edge_weight, client and 1-D
    train/val/test masks (boolean, or of 0 and 1) are optional; without masks the default split is
    "random:0.6,0.2,0.2". `client` has the client of each node, as numbers or a list of texts, and a run has
    these clients unless it names another partition. The masks become the graph's public split. Edges become
    undirected: an edge that is given several times, such as in both directions, has the mean of its weights.
    If edges have a direction, edge_attr [E] or [E, D], or edge_time [E] (numbers), `Graph.directed` has them
    as they are. Other attributes are not read; `Graph.dropped` names them.

    Args:
        data: A `Data` object of one graph. Its tensors may be dense or sparse, and on any device.
        name: The name of the graph, for reports and messages.

    Returns:
        The graph.

    Raises:
        InputError: An attribute is missing or cannot be used.
    """
    if getattr(data, "edge_index", None) is None:
        raise InputError(
            "the Data object has no 'edge_index'; set x and edge_index, and y for node classification"
        )
    edges = _to_numpy("edge_index", data.edge_index)
    x = None if getattr(data, "x", None) is None else _to_numpy("x", data.x)
    y = np.full(_count_nodes(data, x, edges), -1)
    if getattr(data, "y", None) is not None:
        y = _labels(_one_column(_to_numpy("y", data.y)))
    weights = getattr(data, "edge_weight", None)
    if weights is not None:
        weights = _one_column(_to_numpy("edge_weight", weights))
    graph = make_graph(name, x, y, edges, edge_weight=weights)
    split, problem, unused = _split(data, graph.num_nodes)
    kind = "" if weights is None else "mean"
    # An empty list of edges may have any shape.
    listed = edges.astype(np.int64) if edges.size else np.zeros((2, 0), dtype=np.int64)
    lost = edges_dropped([listed], graph.num_nodes, graph.num_edges, weights=kind)
    directed = _directed(data, name, listed, lost)
    if directed is not None:
        lost = loops_dropped([listed])
    client_names, clients = _clients(data, graph.num_nodes)
    return replace(
        graph,
        split=split,
        dropped=(*lost, *unused, *_unread(data)),
        split_problem=problem,
        default_split=UNSPLIT,
        client_names=client_names,
        clients=clients,
        directed=directed,
    )


def _directed(data: Any, name: str, ends: np.ndarray, lost: tuple[str, ...]) -> DirectedEdges | None:
    """Build the edges of a `Data` as it lists them; None if they have no direction, attribute or time."""
    given = {key: getattr(data, key, None) for key in ("edge_attr", "edge_time")}
    found = {key: _to_numpy(key, values) for key, values in given.items() if values is not None}
    changed = [phrase for phrase in lost if phrase not in loops_dropped([ends])]
    if not found and not changed:
        return None
    for key, array in found.items():
        if array.dtype.kind not in "biuf" or array.ndim > 2 or len(array) != ends.shape[1]:
            raise InputError(
                f"{key} of the Data object has dtype {array.dtype} and shape {array.shape}; expected numbers "
                f"for each of the {ends.shape[1]} edges of edge_index"
            )
    time = _one_column(found["edge_time"]) if "edge_time" in found else None
    attributes = found.get("edge_attr", np.zeros((ends.shape[1], 0)))
    attributes = attributes.reshape(len(attributes), -1)
    width = attributes.shape[1]
    names = ("edge_attr",) if width == 1 else tuple(f"edge_attr_{column}" for column in range(width))
    # A list from smaller to larger numbers only is that of undirected edges, each listed once.
    directed = not (ends[0] <= ends[1]).all()
    edges = make_directed(name, ends, attributes, names, time, directed=directed)
    if directed:
        back = make_directed(name, ends[::-1], attributes, names, time).arrays
        # PyG lists an undirected edge in both directions, with the same attributes.
        if all(np.array_equal(array, back[key]) for key, array in edges.arrays.items()):
            edges = make_directed(name, ends, attributes, names, time, directed=False)
    return with_unread(edges, changed) if edges.names or not edges.symmetric else None


def from_pyg_clients(graphs: Sequence[Any], names: Sequence[str], name: str = "clients") -> Graph:
    """Convert PyG `Data` objects, one for each client, into one graph with these clients.

    Raises InputError, which names the client, if a `Data` cannot be used or has other columns than the first.
    """
    if len(graphs) < 2:
        raise InputError(
            f"the data has {len(graphs)} Data object{'' if graphs else 's'}, and at least two clients are "
            "needed; give a Data object for each client, or one Data object as it is"
        )
    each = []
    for client, data in zip(names, graphs, strict=True):
        try:
            each.append(from_pyg(data))
        except InputError as error:
            raise InputError(f"client {shown(client)}: {error}") from None
        _check_like_first(names[0], each[0], client, each[-1])
    start = np.cumsum([0, *(graph.num_nodes for graph in each)])
    weighted = any(graph.edge_weight is not None for graph in each)
    masks = [graph.split for graph in each]
    x: list[Any] = [graph.x for graph in each]
    y = np.concatenate([graph.y for graph in each])
    united = make_graph(
        name,
        None if x[0] is None else sp.vstack(x) if any(map(sp.issparse, x)) else np.concatenate(x),
        y,
        np.concatenate([graph.edges + first for graph, first in zip(each, start, strict=False)], axis=1),
        # A graph whose weights are all 1 has none.
        edge_weight=np.concatenate(
            [np.ones(g.num_edges) if g.edge_weight is None else g.edge_weight for g in each]
        )
        if weighted
        else None,
        split=Split(
            "public",
            *(np.concatenate([getattr(split, part) for split in masks]) for part in ("train", "val", "test")),
        )
        if all(masks)
        else None,
    )
    return replace(
        united,
        client_names=tuple(names),
        clients=np.repeat(np.arange(len(each)), np.diff(start)),
        dropped=tuple(dict.fromkeys(phrase for graph in each for phrase in graph.dropped)),
        split_problem=next((graph.split_problem for graph in each if graph.split_problem), ""),
        default_split=UNSPLIT,
        directed=_united_edges(each, start),
    )


def _united_edges(each: Sequence[Graph], start: np.ndarray) -> DirectedEdges | None:
    """Unite the directed edges of clients, whose nodes begin at `start`, [K + 1]; None if they have none."""
    found = [graph.directed for graph in each]
    edges = [directed for directed in found if directed is not None]
    if not edges:
        return None
    time = [directed.time for directed in edges if directed.time is not None]
    return DirectedEdges(
        np.concatenate([one.source + first for one, first in zip(edges, start, strict=False)]),
        np.concatenate([one.target + first for one, first in zip(edges, start, strict=False)]),
        np.concatenate([one.attributes for one in edges]),
        edges[0].names,
        np.concatenate(time) if time else None,
        edges[0].symmetric,
        tuple(dict.fromkeys(phrase for one in edges for phrase in one.unread)),
    )


def _edges_as(graph: Graph) -> str:
    """Describe what a graph keeps of its edges, for a comparison of clients."""
    directed = graph.directed
    if directed is None:
        return "undirected edges without attributes"
    kind = "undirected" if directed.symmetric else "directed"
    time = "" if directed.time is None else " and times"
    count = len(directed.names)
    return f"{kind} edges with {count} attribute{'s' * (count != 1)}{time}"


def _check_like_first(first_name: str, first: Graph, name: str, other: Graph) -> None:
    """Raise InputError if a client's graph has other columns than that of the first client."""
    for what, one, two in (
        ("features", first.num_features, other.num_features),
        ("labels", bool((first.y >= 0).any()), bool((other.y >= 0).any())),
        ("masks", first.split is not None, other.split is not None),
    ):
        if one != two:
            has = [
                f"{n} {what}" if n is not True and n else f"{'' if n else 'no '}{what}" for n in (one, two)
            ]
            raise InputError(
                f"client {shown(name)} has {has[1]}, and client {shown(first_name)} has {has[0]}; give all "
                "clients' Data objects the same columns"
            )
    if _edges_as(other) != _edges_as(first):
        raise InputError(
            f"client {shown(name)} has {_edges_as(other)}, and client {shown(first_name)} has "
            f"{_edges_as(first)}; give all clients' Data objects the same columns of edges"
        )


def _count_nodes(data: Any, x: Any, edges: np.ndarray) -> int:
    """Count the nodes: the rows of x, of y, what the Data object states, or the nodes of edges."""
    if x is not None:
        return x.shape[0] if x.ndim else 0
    if getattr(data, "y", None) is not None:
        return len(data.y)
    # PyG guesses the number if it is not stated, with a warning.
    stated = data.num_nodes if "num_nodes" in data else None
    return int(edges.max(initial=-1)) + 1 if stated is None else int(stated)


def _labels(y: Any) -> Any:
    """Convert labels that are booleans, or whole numbers stored as floats, to integers; NaN is unknown."""
    if sp.issparse(y) or y.dtype.kind not in "bf":
        return y
    y = np.where(np.isnan(y), -1, y) if y.dtype.kind == "f" else y
    return y.astype(np.int64) if (y == np.trunc(y)).all() and (np.abs(y) < 2**53).all() else y


def _split(data: Any, n: int) -> tuple[Split | None, str, tuple[str, ...]]:
    """Return the split of the masks, or why they cannot be used and a description of what is not used."""
    masks = {key: _to_numpy(key, mask) for key in MASKS if (mask := getattr(data, key, None)) is not None}
    unused = tuple(f"{key} of the Data object, which is no split" for key in masks)
    if len(masks) < len(MASKS):
        return None, "", unused
    try:
        return _split_of_masks(masks, n), "", ()
    except InputError as error:
        return None, str(error), unused


def _split_of_masks(masks: dict[str, Any], n: int) -> Split:
    for key, mask in masks.items():
        if mask.ndim != 1:
            raise InputError(
                f"{key} has shape {mask.shape}, with one column per split; choose one column, as in "
                f"data.{key} = data.{key}[:, 0], or choose a split, as in 'random:0.5,0.25,0.25' (--split)"
            )
        if len(mask) != n or not ((mask == 0) | (mask == 1)).all():
            raise InputError(
                f"{key} has dtype {mask.dtype} and {len(mask)} entries; expected one boolean for each of "
                f"the {n} nodes (a mask, not a list of nodes)"
            )
    return Split("public", *(mask.astype(bool) for mask in masks.values()))


def _clients(data: Any, n: int) -> tuple[tuple[str, ...], np.ndarray | None]:
    """Return the names of the clients and the client of each node, [N]; None if the data states none."""
    import pyarrow as pa

    given = getattr(data, "client", None)
    if given is None:
        return (), None

    def refuse(row: int, value: object, what: str, fix: str) -> NoReturn:
        raise InputError(f"client of node {row} of the Data object: {shown(value)} {what}; {fix}")

    texts: pa.Array
    if isinstance(given, list | tuple):
        texts = python_texts(given, refuse)
    else:
        values = _one_column(_to_numpy("client", given))
        if sp.issparse(values) or values.ndim != 1 or values.dtype.kind not in "biufU":
            raise InputError(_no_clients(getattr(given, "shape", ()), n))
        texts = canonical_texts(pa.array(values), refuse)
    if len(texts) != n:
        raise InputError(_no_clients((len(texts),), n))
    names, clients = encoded(texts)
    if "" in names:
        node = int((clients == names.index("")).argmax())
        raise InputError(f"node {node} of the Data object has no client; give every node a client")
    return names, clients


def _no_clients(shape: Any, n: int) -> str:
    return (
        f"client of the Data object has shape {tuple(shape)}; expected the client of each of the {n} nodes, "
        "as numbers or a list of texts; if it means something else, remove it (del data.client)"
    )


def _unread(data: Any) -> tuple[str, ...]:
    """Describe each array of a PyG `Data` that is not read."""
    keys = getattr(data, "keys", None)
    named = keys() if callable(keys) else vars(data)
    found = ((key, getattr(getattr(data, key), "shape", None)) for key in sorted(map(str, named)))
    return tuple(
        f"{shown(key)} of the Data object ({' x '.join(f'{size:,}' for size in shape)})"
        for key, shape in found
        if key not in _READ and shape is not None and len(shape)
    )


def _one_column(array: Any) -> Any:
    """Return a matrix of one column as a vector, and any other array as it is."""
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 and not sp.issparse(array) else array


def _to_numpy(attribute: str, tensor: Any) -> Any:
    """Convert a torch tensor to numpy (to csr if it is sparse), and anything else with `np.asarray`."""
    try:
        if sp.issparse(tensor):
            return tensor
        if not hasattr(tensor, "detach"):
            return np.asarray(tensor)
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":  # numpy has no such type
            tensor = tensor.float()
        if str(tensor.layout) == "torch.strided":
            return tensor.numpy()
        coo = tensor.to_sparse_coo().coalesce()
        return sp.csr_matrix((coo.values().numpy(), coo.indices().numpy()), shape=tuple(coo.shape))
    except Exception as error:  # torch, numpy and scipy each refuse in their own way
        raise InputError(
            f"{attribute} of the Data object, a {type(tensor).__name__}, cannot be read as an array "
            f"({error}); give a tensor of numbers"
        ) from error
