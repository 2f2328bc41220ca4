"""The containers of graphs that every other module reads: Graph and Split.

Shapes: N nodes, m undirected edges, F features, C classes.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.content import content_hash
from graphfed.data.dropped import edges_dropped
from graphfed.data.graphs.node_ids import node_ids
from graphfed.errors import InputError, did_you_mean, shown

__all__ = ["REPEATED", "Graph", "Held", "Split", "from_pyg", "make_graph"]

# So many more classes than nodes need no num_classes; still more are not classes but other numbers.
SPARE_CLASSES = 1000
#: What becomes of the weights of an edge that is given several times.
REPEATED = ("sum", "mean", "max")


@dataclass(frozen=True, eq=False)
class Split:
    """Which nodes are trained on, selected on and tested on.

    train, val, test: bool [N], disjoint; a node may be in none. Raises InputError when they are not.
    """

    name: str
    train: np.ndarray
    val: np.ndarray
    test: np.ndarray

    def __post_init__(self) -> None:
        masks = {"train": self.train, "val": self.val, "test": self.test}
        for part, mask in masks.items():
            if mask.dtype != bool or mask.ndim != 1 or len(mask) != len(self.train):
                raise InputError(
                    f"split {self.name!r}: the {part} mask has dtype {mask.dtype} and shape {mask.shape}; "
                    "the three masks must be boolean vectors of one length, one entry a node"
                )
        twice = np.flatnonzero((self.train & self.val) | (self.train & self.test) | (self.val & self.test))
        if twice.size:
            raise InputError(
                f"split {self.name!r}: node {twice[0]} is in two parts ({twice.size} such nodes); "
                "train, val and test must not overlap"
            )

    @cached_property
    def hash(self) -> str:
        """sha256 (hex) of the three masks; the name does not count."""
        return content_hash({"train": self.train, "val": self.val, "test": self.test})


@dataclass(frozen=True, eq=False)
class Held:
    """Which client's own files list what, where several clients may list the same.

    client, node: int64 [M], a row for each node that a client lists, sorted by (client, node).
    owner: bool [M], whether the client knows its label (every holder, where none does).
    edge_client, edge: int64 [E], a row for each edge that a client lists, by its number in the graph's
    `edges`; sorted by (client, edge). A client lists both ends of its edges.
    """

    client: np.ndarray
    node: np.ndarray
    owner: np.ndarray
    edge_client: np.ndarray
    edge: np.ndarray


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph with features and one class a node. Build it with `make_graph`, which checks.

    x: [N, F] float32, numpy or csr, or None when loaded with `structure_only`.
    y: [N] int64, the class of each node, -1 where unknown.
    edges: [2, m] int64, every undirected edge once, u < v, sorted by (u, v), no self loops.
    edge_weight: [m] float32, positive; None where every edge weighs 1.
    clients: [N] int64, where each node is by the data itself, with one of `client_names` for each client;
    None
    where the data says nothing of clients, or may have a node at several: then `held` says who holds what.
    ids: the user's own ids, a pyarrow array of N texts, None where the nodes are called 0..N-1.
    keys: what every reader of the user's files knows each node by, a pyarrow array of N texts: its id, or its
    client and its id; None where a node is known by its number.
    dropped: what the reader of the data found and left out, a phrase for each (`graphfed.data.dropped`).
    The arrays are shared, not copied: treat them as read-only.
    """

    name: str
    x: np.ndarray | sp.csr_matrix | None
    y: np.ndarray
    edges: np.ndarray
    num_classes: int
    split: Split | None = None
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    edge_weight: np.ndarray | None = None
    clients: np.ndarray | None = None
    client_names: tuple[str, ...] = ()
    ids: Any = None
    held: Held | None = None
    keys: Any = None
    dropped: tuple[str, ...] = ()

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.y)

    @property
    def num_edges(self) -> int:
        """m, undirected."""
        return int(self.edges.shape[1])

    @property
    def num_features(self) -> int:
        """F; 0 when the features were not loaded."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def names_clients(self) -> bool:
        """Whether the data itself says which clients there are."""
        return self.clients is not None or self.held is not None

    @cached_property
    def stable_ids(self) -> np.ndarray | None:
        """The number that each node has at every reader of its files, a hash of its key, [N] int64; None
        where a node is known by its number in this graph.

        Raises InputError where two keys have one hash."""
        return None if self.keys is None else node_ids(self.keys.to_pylist())

    def node_name(self, node: int) -> str:
        """What the user calls a node: its id, or its number."""
        return str(node) if self.ids is None else repr(self.ids[node].as_py()[:60])

    def weights_between(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """The weights of the edges between u [n] and v [n], in either direction, [n] float32; every one must
        be an edge of this graph, and the graph weighted."""
        assert self.edge_weight is not None
        n = self.num_nodes
        known = self.edges[0] * n + self.edges[1]  # ascending, as the edges are sorted
        found: np.ndarray = self.edge_weight[np.searchsorted(known, np.minimum(u, v) * n + np.maximum(u, v))]
        return found

    @cached_property
    def hash(self) -> str:
        """sha256 (hex) of features, classes, edges and their weights.

        Names do not count, nor does the public split (it has its own hash). Features stored as csr and the
        same features stored dense are different content.
        """
        arrays = {"y": self.y, "edges": self.edges, "num_classes": np.array(self.num_classes)}
        if self.edge_weight is not None:
            arrays["edge_weight"] = self.edge_weight
        if isinstance(self.x, sp.csr_matrix):
            arrays |= {
                "x_indptr": self.x.indptr.astype(np.int64),
                "x_indices": self.x.indices.astype(np.int64),
                "x_data": self.x.data,
                "x_shape": np.array(self.x.shape),
            }
        elif self.x is not None:
            arrays["x"] = self.x
        return content_hash(arrays)


def make_graph(
    name: str,
    x: Any,
    y: Any,
    edges: Any,
    *,
    edge_weight: Any = None,
    repeated: str = "mean",
    num_classes: int | None = None,
    split: Split | None = None,
    class_names: tuple[str, ...] = (),
) -> Graph:
    """A checked and cleaned Graph: edges become undirected, self loops and repetitions are dropped.

    x: [N, F] numbers, dense or scipy sparse (kept sparse, as csr), or None.
    y: [N] integers, -1 for an unknown class. edges: [2, any] integers, in either or both directions.
    edge_weight: positive numbers, one for each of the edges as given; None for 1 each.
    repeated: the weight of an edge that is given several times, in either direction: "sum", "mean" or "max"
    of the given ones. Weights that are all 1 in the end are dropped.
    num_classes: C; by default the number of class names, or else the largest class plus one.

    Raises InputError when shapes disagree, a number is not finite, a weight is not positive, or a class or an
    end of an edge is out of range.
    """
    y = _classes(name, y)
    n = len(y)
    if num_classes is None:
        num_classes = len(class_names) or int(y.max(initial=-1)) + 1
        if not class_names and num_classes > n + SPARE_CLASSES:
            raise InputError(
                f"graph {name!r}: node {int(y.argmax())} has class {y.max()}, but there are only {n} "
                "nodes; number the classes 0, 1, ... or give num_classes"
            )
    elif isinstance(num_classes, bool) or not hasattr(num_classes, "__index__") or num_classes < 0:
        raise InputError(f"graph {name!r}: num_classes={num_classes!r} must be a whole number of at least 0")
    if y.max(initial=-1) >= num_classes:
        raise InputError(
            f"graph {name!r}: node {int(y.argmax())} has class {y.max()}, but there are {num_classes} "
            f"classes (0..{num_classes - 1}); renumber the classes or raise num_classes"
        )
    if class_names and len(class_names) != num_classes:
        raise InputError(
            f"graph {name!r}: {len(class_names)} class names for {num_classes} classes; give one name a class"
        )
    if split is not None and len(split.train) != n:
        raise InputError(
            f"graph {name!r}: split {split.name!r} is for {len(split.train)} nodes, the graph has {n}"
        )
    if repeated not in REPEATED:
        raise InputError(
            f"graph {name!r}: repeated={shown(repeated)} is no way to weigh an edge that is given several "
            f"times; {did_you_mean(str(repeated), REPEATED)}"
        )
    edges = _ends(name, edges, n)
    weights = None if edge_weight is None else _weights(name, edge_weight, edges)
    edges, weights = undirected(name, edges, weights, repeated, n)
    return Graph(
        name,
        _features(name, x, n),
        y,
        edges,
        num_classes.__index__(),
        split,
        tuple(class_names),
        edge_weight=weights,
    )


def from_pyg(data: Any, name: str = "custom") -> Graph:
    """A Graph from a PyG `Data` with x, y, edge_index, edge_weight if it has one, and, if it has a split, 1-D
    train/val/test masks.

    The masks (boolean, or of 0 and 1) become the graph's public split. Edges become undirected: one that is
    given several times, as in both directions, has the mean of its weights. Other attributes, edge_attr among
    them, are not read: `dropped` names them. Raises InputError for a missing or unusable attribute.
    """
    for attribute in ("x", "y", "edge_index"):
        if getattr(data, attribute, None) is None:
            raise InputError(f"the Data object has no {attribute!r}; x, y and edge_index are needed")
    x, y, edges = (_to_numpy(key, getattr(data, key)) for key in ("x", "y", "edge_index"))
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    names = ("train_mask", "val_mask", "test_mask")
    masks = {key: _to_numpy(key, m) for key in names if (m := getattr(data, key, None)) is not None}
    split = None
    if masks:
        missing = [key for key in names if key not in masks]
        if missing:
            raise InputError(
                f"the Data object has {', '.join(masks)} but no {', '.join(missing)}; give all three or none"
            )
        for key, mask in masks.items():
            if mask.ndim != 1:
                raise InputError(
                    f"{key} has shape {mask.shape}: one column a split; choose one, as in "
                    f"data.{key} = data.{key}[:, 0]"
                )
            if len(mask) != len(y) or not ((mask == 0) | (mask == 1)).all():
                raise InputError(
                    f"{key} has dtype {mask.dtype} and {len(mask)} entries; expected one boolean for each of "
                    f"the {len(y)} nodes (a mask, not a list of nodes)"
                )
        split = Split("public", *(mask.astype(bool) for mask in masks.values()))
    weights = getattr(data, "edge_weight", None)
    if weights is not None:
        weights = _to_numpy("edge_weight", weights)
        if weights.ndim == 2 and weights.shape[1] == 1:
            weights = weights[:, 0]
    graph = make_graph(name, x, y, edges, edge_weight=weights, split=split)
    kind = "" if weights is None else "mean"
    lost = edges_dropped(
        [_ends(name, edges, graph.num_nodes)], graph.num_nodes, graph.num_edges, weights=kind
    )
    return replace(graph, dropped=(*lost, *_unread(data)))


#: The attributes of a PyG `Data` that are read, or say nothing that is not read.
_PYG = ("x", "y", "edge_index", "edge_weight", "train_mask", "val_mask", "test_mask", "num_nodes")


def _unread(data: Any) -> tuple[str, ...]:
    """A phrase for each attribute of a PyG `Data` that is not read and has the shape of an array."""
    keys = getattr(data, "keys", None)
    named = keys() if callable(keys) else vars(data)
    found = ((key, getattr(getattr(data, key), "shape", None)) for key in sorted(map(str, named)))
    return tuple(
        f"{shown(key)} of the Data object ({' x '.join(f'{size:,}' for size in shape)})"
        for key, shape in found
        if key not in _PYG and shape is not None and len(shape)
    )


def _to_numpy(attribute: str, tensor: Any) -> Any:
    """A torch tensor as numpy (csr if it is sparse); anything else as numpy sees it."""
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


def _array(name: str, what: str, values: Any) -> np.ndarray:
    """As numpy sees it; unsigned 64-bit integers that would wrap become as large as the sign allows."""
    try:
        array: np.ndarray = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different length, a tensor with gradient
        raise InputError(f"graph {name!r}: {what} are no array ({error})") from error
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(2**63 - 1)).astype(np.int64)
    return array


def _classes(name: str, values: Any) -> np.ndarray:
    y = _array(name, "classes", values)
    if y.ndim != 1 or not (y.dtype.kind in "iu" or y.size == 0):
        raise InputError(
            f"graph {name!r}: classes have dtype {y.dtype} and shape {y.shape}; "
            "expected one integer a node (-1 where unknown)"
        )
    y = np.ascontiguousarray(y, dtype=np.int64)
    if y.min(initial=0) < -1:
        raise InputError(
            f"graph {name!r}: node {int(y.argmin())} has class {y.min()}; use 0, 1, ... or -1 for unknown"
        )
    return y


def _features(name: str, x: Any, n: int) -> np.ndarray | sp.csr_matrix | None:
    if x is None:
        return None
    if not sp.issparse(x):
        x = _array(name, "features", x)
    if x.dtype.kind not in "biuf":
        raise InputError(f"graph {name!r}: features have dtype {x.dtype}; expected numbers")
    if x.ndim != 2 or x.shape[0] != n:
        raise InputError(
            f"graph {name!r}: features have shape {x.shape}; expected one row for each of the {n} nodes"
        )
    if x.shape[1] == 0:
        raise InputError(
            f"graph {name!r}: features have shape {x.shape}, no column at all; give at least one feature, as "
            "in a column of ones or of degrees"
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
        if sp.issparse(x):
            x = sp.csr_matrix(x, dtype=np.float32, copy=True)
            # One form for equal content: sorted columns, no repetition, no stored zeros.
            x.sum_duplicates()
            x.eliminate_zeros()
            values = x.data
        else:
            values = x = np.ascontiguousarray(x, dtype=np.float32)
    bad = np.flatnonzero(~np.isfinite(values.ravel()))
    if bad.size:
        row = np.searchsorted(x.indptr, bad[0], side="right") - 1 if sp.issparse(x) else bad[0] // x.shape[1]
        raise InputError(
            f"graph {name!r}: node {row} has a feature that is not a finite number in float32 "
            f"({bad.size} such entries); fill or drop them"
        )
    return x


def _ends(name: str, given: Any, n: int) -> np.ndarray:
    """The ends of the edges as given, [2, any] int64."""
    edges = _array(name, "edges", given)
    if edges.size == 0:
        return np.zeros((2, 0), dtype=np.int64)
    if edges.ndim != 2 or edges.shape[0] != 2 or edges.dtype.kind not in "iu":
        hint = " (transpose it)" if edges.ndim == 2 and edges.shape[1] == 2 else ""
        raise InputError(
            f"graph {name!r}: edges have dtype {edges.dtype} and shape {edges.shape}; "
            f"expected integers [2, m]{hint}"
        )
    edges = edges.astype(np.int64)
    outside = np.flatnonzero(((edges < 0) | (edges >= n)).any(axis=0))
    if outside.size:
        u, v = edges[:, outside[0]]
        raise InputError(
            f"graph {name!r}: edge {outside[0]} joins nodes {u} and {v}, but there are {n} nodes "
            f"(0..{n - 1}); {outside.size} such edges"
        )
    return edges


def _weights(name: str, values: Any, edges: np.ndarray) -> np.ndarray:
    """The weights of the edges as given, [any] float64."""
    weights = _array(name, "edge weights", values)
    if weights.dtype.kind not in "iuf" or weights.shape != (edges.shape[1],):
        raise InputError(
            f"graph {name!r}: edge weights have dtype {weights.dtype} and shape {weights.shape}; expected "
            f"one number for each of the {edges.shape[1]} edges as given"
        )
    weights = weights.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        _positive(name, weights.astype(np.float32), edges)
    return weights


def _positive(name: str, weights: np.ndarray, edges: np.ndarray) -> None:
    bad = np.flatnonzero(~((weights > 0) & np.isfinite(weights)))
    if bad.size:
        u, v = edges[:, bad[0]]
        raise InputError(
            f"graph {name!r}: the edge between nodes {u} and {v} weighs {weights[bad[0]]:g}; a weight "
            f"must be a positive finite number in float32 ({bad.size} such edges): drop the edge, or rescale"
        )


def undirected(
    name: str, edges: np.ndarray, weights: np.ndarray | None, repeated: str, n: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Every edge once, u < v, sorted by (u, v), without self loops, [2, m] int64; and its weight [m] float32,
    None where all are 1. edges [2, any] of n nodes; weights [any] float64, positive.

    InputError where the weight of an edge that is given several times leaves float32."""
    u, v = np.minimum(edges[0], edges[1]), np.maximum(edges[0], edges[1])
    proper = u != v
    key = (u * n + v)[proper]
    if weights is None:
        key = sorted_unique(key)
        return np.stack((key // n, key % n)), None
    order = np.argsort(key)
    key, weights = key[order], weights[proper][order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    if len(first) < len(key):
        counts = np.diff(np.append(first, len(key)))
        # Added in ascending order, so that no bit depends on how the edges were listed.
        many = np.flatnonzero(np.repeat(counts > 1, counts))
        weights[many] = weights[many][np.lexsort((weights[many], key[many]))]
        weights = (np.maximum if repeated == "max" else np.add).reduceat(weights, first)
        if repeated == "mean":
            weights = weights / counts
        key = key[first]
    edges = np.stack((key // n, key % n))
    with np.errstate(over="ignore"):
        weights = weights.astype(np.float32)
    _positive(name, weights, edges)
    return edges, None if (weights == 1).all() else weights


def sorted_unique(keys: np.ndarray) -> np.ndarray:
    """The distinct values of an integer vector, ascending; much faster than numpy's unique on millions."""
    if (keys[1:] > keys[:-1]).all():
        return keys
    keys = np.sort(keys)
    return keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
