"""Edges as the data lists them: with directions, repetitions, attributes and times.

Shapes: N nodes, E listed edges, D attributes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from graphfed.errors import InputError, did_you_mean, shown

__all__ = ["DirectedEdges", "Parallel", "make_directed", "order_of", "time_attributes"]

Parallel = Literal["keep", "combine"]

_HOUR, _DAY = 3600.0, 86400.0
#: The day of the week of 1970-01-01, a Thursday, counted from Monday.
_FIRST_WEEKDAY = 3


@dataclass(frozen=True, eq=False)
class DirectedEdges:
    """The edges of a graph as the data lists them. Build them with `make_directed`.

    Attributes:
        source: The node that each edge leaves, int64 [E]. Rows are sorted by (target, source), then by
            attributes and time.
        target: The node that each edge enters, int64 [E].
        attributes: The attributes of the edges, float32 [E, D]; D may be 0.
        names: The names of the D attributes.
        time: The time of each edge, float64 [E], in seconds since 1970 if the data has dates; None if it has
            no times.
        symmetric: Whether edges have no direction. Each edge then has a row in both directions.
        unread: Descriptions of what a network without attributes and directions does not use
            (`graphfed.data.dropped`).
    """

    source: np.ndarray
    target: np.ndarray
    attributes: np.ndarray
    names: tuple[str, ...] = ()
    time: np.ndarray | None = None
    symmetric: bool = False
    unread: tuple[str, ...] = ()

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The content by name, for a hash. Names of attributes are not part of it."""
        arrays = {
            "directed_source": self.source,
            "directed_target": self.target,
            "directed_attributes": self.attributes,
            "directed_symmetric": np.array([self.symmetric]),
        }
        return arrays if self.time is None else arrays | {"directed_time": self.time}

    def select(self, rows: np.ndarray) -> "DirectedEdges":
        """Select edges by a mask, bool [E], or by their numbers."""
        time = None if self.time is None else self.time[rows]
        return replace(
            self,
            source=self.source[rows],
            target=self.target[rows],
            attributes=self.attributes[rows],
            time=time,
        )

    def between(self, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find all edges between pairs of nodes, in either direction.

        Args:
            u: One node of each pair, int64 [n].
            v: The other node of each pair, int64 [n].

        Returns:
            For every edge that was found, the position of its pair and its row, two int64 arrays.
        """
        width = int(max(a.max(initial=0) for a in (self.source, self.target, u, v))) + 1
        code = np.minimum(self.source, self.target) * width + np.maximum(self.source, self.target)
        order = np.argsort(code, kind="stable")
        wanted = np.minimum(u, v) * width + np.maximum(u, v)
        first, last = (np.searchsorted(code[order], wanted, side) for side in ("left", "right"))
        count = last - first
        pair = np.repeat(np.arange(len(wanted)), count)
        # The positions first, first + 1, ..., last - 1 of every pair, one pair after the other.
        within = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        return pair, order[np.repeat(first, count) + within]


def make_directed(
    name: str,
    ends: np.ndarray,
    attributes: np.ndarray | None = None,
    names: Sequence[str] = (),
    time: np.ndarray | None = None,
    *,
    dated: bool = False,
    directed: bool = True,
    parallel: str = "keep",
    repeated: str = "sum",
    self_loops: bool = False,
    unread: tuple[str, ...] = (),
) -> DirectedEdges:
    """Build directed edges from lists, after checking them.

    Args:
        name: The name of the graph, for messages.
        ends: Source and target of each listed edge, int64 [2, any], checked against the number of nodes.
        attributes: One row of numbers for each edge, [any, D]; None for none.
        names: The names of the D attributes.
        time: The time of each edge, [any]; None for none. The attributes get those of `time_attributes`.
        dated: Whether times are in seconds since 1970.
        directed: Whether an edge goes from its source to its target. Otherwise it is listed in both
            directions, and equal rows are one edge.
        parallel: "keep" several edges from one node to another, or "combine" them into one.
        repeated: How attributes are combined: "sum", "mean" or "max". The time is the latest.
        self_loops: Whether edges from a node to itself are kept.
        unread: See `DirectedEdges`.

    Returns:
        The edges.

    Raises:
        InputError: A number is not finite, shapes disagree, or `parallel` is unknown.
    """
    if parallel not in get_args(Parallel):
        raise InputError(
            f"graph {name!r}: parallel={shown(parallel)} does not say what happens to several edges from one "
            f"node to another; {did_you_mean(str(parallel), get_args(Parallel))}"
        )
    values, moment = _checked(name, ends, attributes, len(names), time)
    source, target = ends.astype(np.int64)
    if not directed:
        source, target = np.minimum(source, target), np.maximum(source, target)
    edges = DirectedEdges(source, target, values, tuple(names), moment, not directed, unread)
    if not self_loops:
        edges = edges.select(source != target)
    # Sorted before edges are combined, so that sums do not depend on the order in which they were listed.
    edges = _sorted(edges)
    if parallel == "combine":
        edges = _combined(edges, repeated)
    elif not directed:
        edges = edges.select(_is_new(edges, edges.attributes, edges.time))
    if edges.time is not None:
        columns, of_time = time_attributes(edges.time, dated)
        edges = replace(
            edges, attributes=np.concatenate([edges.attributes, columns], axis=1), names=(*names, *of_time)
        )
    edges = edges if directed else _mirrored(edges)
    return _sorted(replace(edges, attributes=edges.attributes.astype(np.float32)))


def _checked(
    name: str, ends: np.ndarray, attributes: np.ndarray | None, width: int, time: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Convert attributes, [E, width], and times, [E], to float64; InputError if they cannot be used."""
    count = ends.shape[1]
    values = np.zeros((count, 0)) if attributes is None else np.asarray(attributes, dtype=np.float64)
    if values.shape != (count, width):
        raise InputError(
            f"graph {name!r}: the attributes of edges have shape {values.shape}; expected one row for each "
            f"of the {count} edges and one column for each of the {width} names"
        )
    moment = None if time is None else np.asarray(time, dtype=np.float64)
    if moment is not None and moment.shape != (count,):
        raise InputError(
            f"graph {name!r}: the times of edges have shape {moment.shape}; expected one for each of the "
            f"{count} edges"
        )
    with np.errstate(over="ignore"):  # a value outside float32 becomes infinite, which is refused
        finite = np.isfinite(values.astype(np.float32)).all(1)
    bad = np.flatnonzero(~(finite if moment is None else finite & np.isfinite(moment)))
    if bad.size:
        u, v = ends[:, bad[0]]
        raise InputError(
            f"graph {name!r}: the edge from node {u} to node {v} has an attribute or a time that is no "
            f"finite number in float32 ({bad.size} such edges); fill it in, or drop the edge"
        )
    return values, moment


def _sorted(edges: DirectedEdges) -> DirectedEdges:
    return edges.select(order_of(edges.target, edges.source, edges.attributes, edges.time))


def _is_new(edges: DirectedEdges, *more: np.ndarray | None) -> np.ndarray:
    """Decide whether each edge differs from the one before in its ends, or in one of `more`, bool [E]."""
    new: np.ndarray = np.arange(len(edges.source)) == 0  # the first edge has none before it
    for column in (edges.source, edges.target, *more):
        if column is not None:
            differs = column[1:] != column[:-1]
            new[1:] |= differs if differs.ndim == 1 else differs.any(1)
    return new


def _combined(edges: DirectedEdges, repeated: str) -> DirectedEdges:
    """Combine sorted edges with the same ends: their attributes as `repeated` says, and the latest time."""
    first = np.flatnonzero(_is_new(edges))
    if not len(first):
        return edges
    values = (np.maximum if repeated == "max" else np.add).reduceat(edges.attributes, first)
    if repeated == "mean":
        values = values / np.diff(np.append(first, len(edges.source)))[:, None]
    latest = None if edges.time is None else np.maximum.reduceat(edges.time, first)
    return replace(edges.select(first), attributes=values, time=latest)


def _mirrored(edges: DirectedEdges) -> DirectedEdges:
    """Add every edge in the other direction; a self loop has one direction."""
    count = len(edges.source)
    both = edges.select(np.append(np.arange(count), np.flatnonzero(edges.source != edges.target)))
    source, target = both.source.copy(), both.target.copy()
    source[count:], target[count:] = both.target[count:], both.source[count:]
    return replace(both, source=source, target=target)


def order_of(*keys: np.ndarray | None) -> np.ndarray:
    """Sort rows by several keys, the first of which counts most. A matrix is one key for each column."""
    columns: list[np.ndarray] = []
    for key in keys:
        columns += [] if key is None else [key] if key.ndim == 1 else [*key.T]
    return np.lexsort(columns[::-1])


def time_attributes(time: np.ndarray, dated: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Compute attributes of edges from their times.

    Args:
        time: The times, float64 [E].
        dated: Whether they are in seconds since 1970.

    Returns:
        The columns [E, 3] and their names: the elapsed time in days since 1970, the hour of the day, and the
        day of the week from 0 (Monday) to 6. Of times that are no dates only one column, the time itself.
    """
    if not dated:
        return time[:, None], ("time",)
    day = np.floor(time / _DAY)
    columns = time / _DAY, (time - day * _DAY) / _HOUR, (day + _FIRST_WEEKDAY) % 7
    return np.stack(columns, axis=1), ("elapsed days", "hour", "weekday")
