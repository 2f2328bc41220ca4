"""The containers Graph and Split, which every other module reads.

Shapes: N nodes, m undirected edges, F features, C classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp

from graphfed.data.content import content_hash
from graphfed.data.feature_numbers import feature_numbers
from graphfed.data.graphs.directed import DirectedEdges
from graphfed.data.graphs.node_ids import node_ids
from graphfed.errors import InputError, did_you_mean, shown

__all__ = ["REPEATED", "Graph", "Held", "Split", "make_graph"]

# By default the number of classes may exceed the number of nodes by this many. A larger class number is
# likely to be another quantity, such as a user's id, and needs an explicit `num_classes`.
SPARE_CLASSES = 1000
#: The ways to combine the weights of an edge that is given several times.
REPEATED = ("sum", "mean", "max")


@dataclass(frozen=True, eq=False)
class Split:
    """The nodes for training, validation and test.

    A node may be in no part. The constructor raises InputError if the masks overlap or are no boolean vectors
    of one length.

    Attributes:
        name: The name of the split.
        train: The training nodes, bool [N].
        val: The validation nodes, bool [N].
        test: The test nodes, bool [N].
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
                    "the three masks must be boolean vectors of one length, with one entry per node"
                )
        twice = np.flatnonzero((self.train & self.val) | (self.train & self.test) | (self.val & self.test))
        if twice.size:
            raise InputError(
                f"split {self.name!r}: node {twice[0]} is in two parts ({twice.size} such nodes); "
                "train, val and test must not overlap"
            )

    @cached_property
    def hash(self) -> str:
        """The SHA-256 hash (hexadecimal) of the three masks. The name does not change it."""
        return content_hash({"train": self.train, "val": self.val, "test": self.test})


@dataclass(frozen=True, eq=False)
class Held:
    """The nodes and edges that each client's files list, for data in which several clients may list the same.

    M counts pairs of a client and a node, E pairs of a client and an edge. A client lists both endpoints of
    its edges.

    Attributes:
        client: The client of each pair with a node, int64 [M]; rows are sorted by (client, node).
        owner: Whether the client knows the node's label, bool [M]. If no client knows the label, every client
            that lists the node is an owner.
        edge_client: The client of each pair with an edge, int64 [E]; rows are sorted by (edge_client, edge).
        edge: The edge's column in the graph's `edges`, int64 [E].
    """

    client: np.ndarray
    node: np.ndarray
    owner: np.ndarray
    edge_client: np.ndarray
    edge: np.ndarray


@dataclass(frozen=True, eq=False)
class Graph:
    """An undirected graph with features and one class per node.

    Build it with `make_graph`, which checks its arguments. The arrays are not copied: treat them as
    read-only.

    Attributes:
        name: The name of the data set.
        x: The features, numpy or csr, [N, F] float32; numpy float64 if they have large numbers that float32
            changes (`feature_numbers`); None if loaded with `structure_only`.
        y: The class of each node, [N] int64; -1 if unknown.
        edges: The endpoints of every undirected edge, [2, m] int64. Each edge is listed once, with u < v,
            sorted by (u, v). There are no self loops.
        num_classes: C.
        split: The data set's own split; None if it has none.
        class_names: The names of the classes, C or none.
        feature_names: The names of the features, F or none.
        edge_weight: Positive weights, [m] float32; None if every edge has weight 1.
        clients: The client of each node as the data states it, [N] int64, an index into `client_names`. None
            if the data does not state it, or if several clients may list a node (see `held`).
        client_names: The names of the clients that the data states; () if it states none.
        ids: The user's node ids, a pyarrow array of N texts; None if the nodes are called 0..N-1.
        held: The nodes and edges that each client lists; None unless several clients may list the same.
        keys: The text that identifies a node for every reader of the user's files, a pyarrow array of N
            texts. It is the node's id, or its client and its id. None if a node is identified by its number.
        dropped: Descriptions of the data that the reader did not use (`graphfed.data.dropped`).
        remarks: Remarks of the reader on data that may mean something else, each with its fix.
        default_split: The default split, as in "random:0.6,0.2,0.2", if the data has no split of its own; ""
            for that of `make_split`.
        filled: The numbers of the features with gaps, NaN in x, which set-up fills with a mean
            (`graphfed.methods.common.feature_gaps`).
        categories: The names of the categories of each categorical column, "" for a missing one.
        split_problem: Why the data's own split cannot be used, and what to do; "" if it can, or if there is
            none.
        directed: The edges as the data lists them, with directions, attributes and times. `edges` has their
            pairs of nodes. None if each edge of the data is one undirected edge without attributes.
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
    remarks: tuple[str, ...] = ()
    filled: tuple[int, ...] = ()
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    split_problem: str = ""
    directed: DirectedEdges | None = None
    default_split: str = ""

    @property
    def num_nodes(self) -> int:
        """The number of nodes, N."""
        return len(self.y)

    @property
    def num_edges(self) -> int:
        """The number of undirected edges, m."""
        return int(self.edges.shape[1])

    @property
    def num_features(self) -> int:
        """The number of features, F; 0 if the features were not loaded."""
        return 0 if self.x is None else int(self.x.shape[1])

    @property
    def names_clients(self) -> bool:
        """Whether the data states the clients."""
        return self.clients is not None or self.held is not None

    @cached_property
    def stable_ids(self) -> np.ndarray | None:
        """The hash of each node's key, [N] int64, which is equal for every reader of the node's files.

        None if a node is identified by its number in this graph. Raises InputError if two keys have the same
        hash.
        """
        return None if self.keys is None else node_ids(self.keys.to_pylist())

    def node_name(self, node: int) -> str:
        """Return the user's name of a node for a message.

        Args:
            node: The number of the node, from 0 to N - 1.

        Returns:
            The node's id, shortened to 60 characters and quoted, or its number if it has no id.
        """
        return str(node) if self.ids is None else repr(self.ids[node].as_py()[:60])

    def weights_between(self, u: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Look up the weights of edges. The graph must be weighted, and every pair must be an edge of it.

        Args:
            u: One endpoint of each edge, [n].
            v: The other endpoint, [n]. The order of the two does not matter.

        Returns:
            The weights, [n] float32.
        """
        assert self.edge_weight is not None
        n = self.num_nodes
        codes = self.edges[0] * n + self.edges[1]  # ascending, because the edges are sorted
        position = np.searchsorted(codes, np.minimum(u, v) * n + np.maximum(u, v))
        weights: np.ndarray = self.edge_weight[position]
        return weights

    @cached_property
    def hash(self) -> str:
        """The SHA-256 hash (hexadecimal) of features, classes, edges, edge weights and directed edges.

        Names do not change it, nor does the public split, which has its own hash. Features stored as csr and
        the same features stored densely give different hashes.
        """
        arrays = {"y": self.y, "edges": self.edges, "num_classes": np.array(self.num_classes)}
        if self.edge_weight is not None:
            arrays["edge_weight"] = self.edge_weight
        if self.directed is not None:
            arrays |= self.directed.arrays
        if isinstance(self.x, sp.csr_matrix):
            # scipy chooses the index type by the size of the matrix, and the hash must not depend on it.
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
    filled: Sequence[int] = (),
) -> Graph:
    """Build a Graph from arrays, after checking them.

    Edges become undirected; self loops and repeated edges are dropped.

    Args:
        name: The name of the data set.
        x: The features, numbers [N, F], dense or scipy sparse (kept sparse, as csr), or None.
        y: The classes, integers [N]; -1 for an unknown class.
        edges: The endpoints, integers [2, any]. An edge may be given in one direction or in both.
        edge_weight: Positive numbers, one for each of the given edges; None for weight 1.
        repeated: How the weights of an edge that is given several times, in either direction, are combined:
            "sum", "mean" or "max". If all weights are 1 afterwards, the graph has no weights.
        num_classes: C; by default the number of class names, or else the largest class plus one.
        split: The data set's own split of the N nodes; None if it has none.
        class_names: The names of the C classes in the order of their numbers; () if they have none.
        filled: The numbers of the features in which NaN is a gap, which a run fills with a mean.

    Returns:
        The graph.

    Raises:
        InputError: Shapes disagree, a number is not finite, a weight is not positive, or a class or an
            endpoint is out of range.
    """
    y = _classes(name, y)
    n = len(y)
    if num_classes is None:
        num_classes = len(class_names) or int(y.max(initial=-1)) + 1
        if not class_names and num_classes > n + SPARE_CLASSES:
            raise InputError(
                f"graph {name!r}: node {int(y.argmax())} has class {y.max()}, but the graph has only {n} "
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
            f"graph {name!r}: {len(class_names)} class names for {num_classes} classes; give one name per "
            "class"
        )
    if split is not None and len(split.train) != n:
        raise InputError(
            f"graph {name!r}: split {split.name!r} is for {len(split.train)} nodes, the graph has {n}"
        )
    if repeated not in REPEATED:
        raise InputError(
            f"graph {name!r}: repeated={shown(repeated)} does not say how the weights of an edge that is "
            f"given several times are combined; {did_you_mean(str(repeated), REPEATED)}"
        )
    edges = _ends(name, edges, n)
    weights = None if edge_weight is None else _weights(name, edge_weight, edges)
    edges, weights = undirected(name, edges, weights, repeated, n)
    return Graph(
        name,
        _features(name, x, n, filled),
        y,
        edges,
        num_classes.__index__(),
        split,
        tuple(class_names),
        edge_weight=weights,
        filled=tuple(filled),
    )


def _array(name: str, what: str, values: Any) -> np.ndarray:
    """Convert to numpy. Unsigned 64-bit integers beyond int64 become the largest int64."""
    try:
        array: np.ndarray = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different length, a tensor with gradient
        raise InputError(f"graph {name!r}: the {what} cannot be read as an array ({error})") from error
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(2**63 - 1)).astype(np.int64)
    return array


def _classes(name: str, values: Any) -> np.ndarray:
    y = _array(name, "classes", values)
    if y.ndim != 1 or not (y.dtype.kind in "iu" or y.size == 0):
        raise InputError(
            f"graph {name!r}: classes have dtype {y.dtype} and shape {y.shape}; "
            "expected one integer per node (-1 for an unknown class)"
        )
    # Hashes and exchanges need one type and layout on every machine.
    y = np.ascontiguousarray(y, dtype=np.int64)
    if y.min(initial=0) < -1:
        raise InputError(
            f"graph {name!r}: node {int(y.argmin())} has class {y.min()}; use 0, 1, ... or -1 for unknown"
        )
    return y


def _features(name: str, x: Any, n: int, filled: Sequence[int]) -> np.ndarray | sp.csr_matrix | None:
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
            f"graph {name!r}: features have shape {x.shape}, with no column; give at least one feature, such "
            "as a column of ones or the nodes' degrees"
        )
    with np.errstate(over="ignore"):  # a value outside float32 becomes infinite, which is refused below
        if sp.issparse(x):
            x = sp.csr_matrix(x, dtype=np.float32, copy=True)
            # Equal content gets one form, and so one hash: sorted columns, no repetition, no stored zeros.
            x.sum_duplicates()
            x.eliminate_zeros()
            values = x.data
        else:
            values = x = feature_numbers(x)
    wrong = ~np.isfinite(values)
    if filled:
        wrong[:, [*filled]] = np.isinf(values[:, [*filled]])
    bad = np.flatnonzero(wrong)
    if bad.size:
        row = np.searchsorted(x.indptr, bad[0], side="right") - 1 if sp.issparse(x) else bad[0] // x.shape[1]
        raise InputError(
            f"graph {name!r}: node {row} has a feature that is not a finite number in float32 "
            f"({bad.size} such entries); fill or drop them"
        )
    return x


def _ends(name: str, given: Any, n: int) -> np.ndarray:
    """Check and convert the endpoints of the edges as given, [2, any] int64."""
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
    """Check and convert the weights of the edges as given, [any] float64."""
    weights = _array(name, "edge weights", values)
    if weights.dtype.kind not in "iuf" or weights.shape != (edges.shape[1],):
        raise InputError(
            f"graph {name!r}: edge weights have dtype {weights.dtype} and shape {weights.shape}; expected "
            f"one number for each of the {edges.shape[1]} edges as given"
        )
    weights = weights.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        _check_positive(name, weights.astype(np.float32), edges)
    return weights


def _check_positive(name: str, weights: np.ndarray, edges: np.ndarray) -> None:
    bad = np.flatnonzero(~((weights > 0) & np.isfinite(weights)))
    if bad.size:
        u, v = edges[:, bad[0]]
        raise InputError(
            f"graph {name!r}: the edge between nodes {u} and {v} has weight {weights[bad[0]]:g}; a weight "
            f"must be a positive finite number in float32 ({bad.size} such edges). Drop the edge, or rescale "
            "the weights"
        )


def undirected(
    name: str, edges: np.ndarray, weights: np.ndarray | None, repeated: str, n: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Merge the two directions and the repetitions of edges [2, any], and drop self loops.

    Every edge is listed once, u < v, sorted by (u, v), [2, m] int64. Weights [m] are float32, or None if all
    are 1.
    """
    u, v = np.minimum(edges[0], edges[1]), np.maximum(edges[0], edges[1])
    proper = u != v
    # One number for each pair of nodes, so that sorting numbers sorts the edges by (u, v).
    key = (u * n + v)[proper]
    if weights is None:
        key = sorted_unique(key)
        return np.stack((key // n, key % n)), None
    order = np.argsort(key)
    key, weights = key[order], weights[proper][order]
    first = np.flatnonzero(np.diff(key, prepend=-1))
    if len(first) < len(key):
        counts = np.diff(np.append(first, len(key)))
        # Floating-point sums depend on the order of the terms. The weights of an edge are added in ascending
        # order, so the result does not depend on the order in which the edges were listed.
        several = np.flatnonzero(np.repeat(counts > 1, counts))
        weights[several] = weights[several][np.lexsort((weights[several], key[several]))]
        weights = (np.maximum if repeated == "max" else np.add).reduceat(weights, first)
        if repeated == "mean":
            weights = weights / counts
        key = key[first]
    edges = np.stack((key // n, key % n))
    with np.errstate(over="ignore"):
        weights = weights.astype(np.float32)
    # Weights that fit into float32 may have a sum that does not.
    _check_positive(name, weights, edges)
    return edges, None if (weights == 1).all() else weights


def sorted_unique(keys: np.ndarray) -> np.ndarray:
    """Return the distinct values of an integer vector, ascending."""
    # This is much faster than numpy's `unique` for millions of values.
    if (keys[1:] > keys[:-1]).all():
        return keys
    keys = np.sort(keys)
    return keys[np.concatenate(([True], keys[1:] != keys[:-1]))]
