"""Descriptions of the data that a reader found and did not use.

Each description is a phrase with a count, such as "12 self loops". Shapes: N nodes, m undirected edges.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from graphfed.errors import shown

#: The largest number of columns or attributes that one message names.
MAX_NAMED = 8


def edges_dropped(
    files: Sequence[np.ndarray],
    num_nodes: int,
    num_edges: int,
    *,
    directed: bool = True,
    weights: str = "",
) -> tuple[str, ...]:
    """Describe what is lost when lists of edges are read as `num_edges` undirected edges without self loops.

    `files` has the endpoints that each file lists, int64 [2, any]. If the graph is not `directed`, (v, u)
    repeats (u, v). `weights` is how the weights of a repeated edge are combined; "" if edges have none.
    """
    listed = [ends[:, ends[0] != ends[1]] for ends in files]
    rows = sum(ends.shape[1] for ends in listed)
    repeated, one_way = rows - num_edges, num_edges
    # If every edge has one row, no edge is repeated and none is listed in both directions.
    if directed and repeated:
        # One number for each directed edge. The files have 32-bit row numbers, whose product would overflow.
        keys = [ends[0].astype(np.int64) * num_nodes + ends[1] for ends in listed]
        different = [_distinct(key) for key in keys]
        repeated = rows - sum(different)
        one_way = 2 * num_edges - (different[0] if len(keys) == 1 else _distinct(np.concatenate(keys)))
    phrases = []
    if directed and one_way:
        phrases.append(f"the direction of {one_way:,} edge{_s(one_way)}")
    phrases += loops_dropped(files)
    if repeated:
        again = f" (its weight is the {weights} of the listed weights)" if weights else ""
        phrases.append(f"{repeated:,} repetition{_s(repeated)} of an edge{again}")
    return tuple(phrases)


def loops_dropped(files: Sequence[np.ndarray]) -> tuple[str, ...]:
    """Describe the self loops in lists of edges, int64 [2, any] each."""
    loops = sum(int((ends[0] == ends[1]).sum()) for ends in files)
    return (f"{loops:,} self loop{_s(loops)}",) if loops else ()


def names_dropped(names: Iterable[str], used: Collection[str], kind: str, of: str) -> tuple[str, ...]:
    """Describe the columns, attributes or arrays (`kind`) of `of` that were not read."""
    unread = [name for name in names if name not in used]
    if not unread:
        return ()
    return (f"{len(unread):,} {kind}{_s(len(unread))} of {of} ({_some(unread)})",)


def in_one_line(dropped: Sequence[str]) -> str:
    """Join phrases into one line, "" if there are none."""
    return f"not used: {'; '.join(dropped)}" if dropped else ""


def features_in_one_line(names: Sequence[str]) -> str:
    """Name at most MAX_NAMED features in one line."""
    return f"{len(names):,} feature{_s(len(names))} ({_some(names)})"


def _distinct(keys: np.ndarray) -> int:
    ordered = np.sort(keys)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(keys))


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(shown(str(name)) for name in names[:MAX_NAMED]) + more


def _s(count: int) -> str:
    return "" if count == 1 else "s"
