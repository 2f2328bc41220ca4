"""Checks that the arrays of a file are a whole cohort, before they are used.

The file may come from another party. Shapes: N rows, E edges, C cross-client edges, K clients, as in
`graphfed.federation.cohort.Cohort`.
"""

from collections.abc import Mapping

import numpy as np

from graphfed.data.sparse import MAX_WIDTH
from graphfed.errors import InputError

#: The columns of `cohort.Links` in a file.
LINKS = ("links_row", "links_client", "links_id", "links_label", "links_part")
#: The columns of `cohort_edges.CohortEdges` in a file: the kind of number, the dimensions, and
#: what a row is for.
DIRECTED = {
    **{f"directed_{name}": ("i", 1, "edges") for name in ("source", "target")},
    "directed_attributes": ("f", 2, "edges"),
    **{f"directed_cross_{name}": ("i", 1, "cross") for name in ("row", "client", "id")},
    "directed_cross_outgoing": ("b", 1, "cross"),
    "directed_cross_attributes": ("f", 2, "cross"),
    "directed_symmetric": ("b", 1, "once"),
}
DIRECTED_TIMES = {"directed_time": ("f", 1, "edges"), "directed_cross_time": ("f", 1, "cross")}

Arrays = Mapping[str, np.ndarray]

#: The kind of number in each column, and what it has a number for.
_COLUMNS = {
    "clients": ("i", "clients"),
    **dict.fromkeys(("client", "id", "y", "owners"), ("i", "rows")),
    **dict.fromkeys(("owned", "train", "val", "test"), ("b", "rows")),
    **dict.fromkeys(("cross_row", "cross_client", "cross_id"), ("i", "cross-client edges")),
    "edge_weight": ("f", "edges"),
    "cross_weight": ("f", "cross-client edges"),
}
#: Columns of indices, and what they index.
_POINTERS = {"client": "clients", "edge_index": "rows", "cross_row": "rows"}


def check_arrays(arrays: Arrays, where: str) -> None:
    """Raise InputError unless arrays, with the required ones among them, are those of a whole cohort."""
    # In this order: each check may use what those before it have established.
    for fault in (_columns, _order, _labels, _features, _links, _directed, _directed_ends):
        found = fault(arrays)
        if found is not None:
            raise InputError(f"{where} is not a whole cohort file: {found}; write it again")


def _columns(arrays: Arrays) -> str | None:
    edges, classes = arrays["edge_index"], arrays["num_classes"]
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind != "i" or classes.shape != (1,):
        return f"edge_index has dtype {edges.dtype} and shape {edges.shape}, num_classes {classes.shape}"
    size = {"rows": arrays["id"].size, "edges": edges.shape[1]}
    size |= {"cross-client edges": arrays["cross_row"].size, "clients": arrays["clients"].size}
    for name, (kind, of) in _COLUMNS.items():
        array = arrays.get(name)
        if array is not None and (array.dtype.kind != kind or array.shape != (size[of],)):
            return f"{name} has dtype {array.dtype} and shape {array.shape}"
    for name, of in _POINTERS.items():
        array = arrays[name]
        if array.size and not (array.min() >= 0 and array.max() < size[of]):
            return f"{name} points beyond the {size[of]} {of}"
    return None


def _order(arrays: Arrays) -> str | None:
    clients, ids = arrays["clients"], arrays["id"]
    if not len(clients) or clients.min() < 0 or (np.diff(clients) <= 0).any():
        return "its clients are not different numbers from 0 on, ascending"
    step = np.diff(arrays["client"])
    # Ids may be any numbers up to 2^63, so their difference may overflow: they are compared instead.
    if ids.min(initial=0) < 0 or ((step < 0) | ((step == 0) & (ids[1:] <= ids[:-1]))).any():
        return "its rows are not sorted by client and id, each once"
    return None


def _labels(arrays: Arrays) -> str | None:
    y, classes = arrays["y"], int(arrays["num_classes"][0])
    if y.min(initial=-1) < -1 or y.max(initial=-1) >= classes:
        return f"a label is beyond its {classes} classes"
    if classes > MAX_WIDTH:
        return f"it has {classes} classes, more than {MAX_WIDTH}"
    # A loss of label -1 would train on no class.
    if ((arrays["train"] | arrays["val"] | arrays["test"]) & (y < 0)).any():
        return "a node without a label is in a part of the split"
    if arrays["owners"].min(initial=1) < 1:
        return "a node has no owner"
    return None


def _features(arrays: Arrays) -> str | None:
    rows, weights = arrays["id"].size, [arrays.get(name) for name in ("edge_weight", "cross_weight")]
    if (weights[0] is None) != (weights[1] is None):
        return "it has the weights of some edges only"
    if not all(w is None or (np.isfinite(w) & (w > 0)).all() for w in weights):
        return "the weight of an edge is not a positive number"
    x = arrays.get("x")
    if x is not None:
        fits = x.ndim == 2 and len(x) == rows and x.dtype.kind == "f" and _are_finite(x, arrays.get("filled"))
        return None if fits else "x is not a table of finite numbers with a row for each id"
    return _sparse(arrays, rows) if "x_values" in arrays else None


def _are_finite(x: np.ndarray, filled: np.ndarray | None) -> bool:
    """Decide whether all features [N, F] are finite, or NaN in a column of `filled`."""
    wrong = ~np.isfinite(x)
    if filled is not None:
        if filled.ndim != 1 or filled.dtype.kind != "i" or not {*filled.tolist()} <= {*range(x.shape[1])}:
            return False
        wrong[:, filled] = np.isinf(x[:, filled])
    return not wrong.any()


def _links(arrays: Arrays) -> str | None:
    columns = [arrays[name] for name in LINKS if name in arrays]
    if not columns:
        return None
    kinds = "".join(column.dtype.kind for column in columns)
    if kinds != "iiibu" or any(column.shape != (columns[0].size,) for column in columns):
        return f"its scored pairs need the columns {', '.join(LINKS)}, of one length and the right kinds"
    row, client, other, _, part = columns
    if row.max(initial=-1) >= arrays["id"].size or part.max(initial=0) > 1:
        return "a scored pair has no node in this file, or is in no part of the split"
    step = np.diff(row)
    ascending = (step > 0) | ((step == 0) & (other[1:] > other[:-1]))
    if min(row.min(initial=0), client.min(initial=0), other.min(initial=0)) < 0 or not ascending.all():
        return "its scored pairs are not sorted by node, each once"
    if any(arrays[name].any() for name in ("train", "val", "test")):
        return "it has both scored pairs and nodes in parts of a split"
    return None


def _directed(arrays: Arrays) -> str | None:
    found = {name for name in arrays if name.startswith("directed_")}
    columns = DIRECTED | (DIRECTED_TIMES if {*DIRECTED_TIMES} & found else {})
    if not found:
        return None
    if found != {*columns}:
        return f"its directed edges need the columns {', '.join(columns)}"
    size = {"edges": arrays["directed_source"].size, "cross": arrays["directed_cross_row"].size, "once": 1}
    for name, (kind, dimensions, of) in columns.items():
        array = arrays[name]
        if array.dtype.kind != kind or array.ndim != dimensions or len(array) != size[of]:
            return f"{name} has dtype {array.dtype} and shape {array.shape}"
        if not np.isfinite(array).all():
            return f"{name} has a number that is not finite"
    widths = {arrays[name].shape[1] for name in ("directed_attributes", "directed_cross_attributes")}
    return "its directed edges have different numbers of attributes" if len(widths) > 1 else None


def _directed_ends(arrays: Arrays) -> str | None:
    if "directed_source" not in arrays:
        return None
    rows, client = arrays["id"].size, arrays["client"]
    source, target, row = (arrays[f"directed_{name}"] for name in ("source", "target", "cross_row"))
    if not all(a.min(initial=0) >= 0 and a.max(initial=-1) < rows for a in (source, target, row)):
        return f"its directed edges point beyond the {rows} rows"
    if (target[1:] < target[:-1]).any() or (client[source] != client[target]).any():
        return "its directed edges are not sorted by their targets, or not inside clients"
    return None


def _sparse(arrays: Arrays, rows: int) -> str | None:
    row, column, values, shape = (
        arrays.get(f"x_{part}", np.zeros(())) for part in ("row", "col", "values", "shape")
    )
    fits = row.ndim == 1 and row.shape == column.shape == values.shape and shape.shape == (2,)
    fits = (
        fits and values.dtype.kind == "f" and {row.dtype.kind, column.dtype.kind, shape.dtype.kind} == {"i"}
    )
    if fits and shape[0] == rows and shape[1] <= MAX_WIDTH and bool(np.isfinite(values).all()):
        pointers = zip((row, column), shape, strict=True)
        if all(column.min(initial=0) >= 0 and column.max(initial=-1) < size for column, size in pointers):
            return None
    return "the arrays of its sparse features do not fit together"
