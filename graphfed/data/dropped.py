"""What a reader finds in the user's data and leaves out, in words and with its amount, for whoever must know.

Shapes: N nodes, m undirected edges."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from graphfed.errors import shown

__all__ = ["edges_dropped", "in_one_line", "names_dropped"]

#: Names of columns or attributes in one message, at most.
NAMED = 8


def edges_dropped(
    files: Sequence[np.ndarray],
    num_nodes: int,
    num_edges: int,
    *,
    directed: bool = True,
    weights: str = "",
) -> tuple[str, ...]:
    """What becomes of edges that are read as undirected ones.

    Args:
        files: the ends of the edges as each file lists them, [2, any] int64 each.
        num_nodes: N.
        num_edges: m, the undirected edges in all files without self loops.
        directed: whether (u, v) and (v, u) say different things; if not, one of them repeats the other.
        weights: what becomes of the weights of an edge that is listed several times; "" without weights.

    Returns:
        A phrase for each kind of loss: self loops, edges that a file lists again, edges without their
        opposite, whose direction is not used.
    """
    loops = sum(int((ends[0] == ends[1]).sum()) for ends in files)
    listed = [ends[:, ends[0] != ends[1]] for ends in files]
    rows = sum(ends.shape[1] for ends in listed)
    repeated, one_way = rows - num_edges, num_edges
    # Where every edge has one row no edge is repeated, and none has its opposite.
    if directed and repeated:
        keys = [ends[0].astype(np.int64) * num_nodes + ends[1] for ends in listed]
        different = [_distinct(key) for key in keys]
        repeated = rows - sum(different)
        one_way = 2 * num_edges - (different[0] if len(keys) == 1 else _distinct(np.concatenate(keys)))
    told = []
    if directed and one_way:
        told.append(f"the direction of {one_way:,} edge{_s(one_way)}")
    if loops:
        told.append(f"{loops:,} self loop{_s(loops)}")
    if repeated:
        again = f" (it has the {weights} of their weights)" if weights else ""
        told.append(f"{repeated:,} repetition{_s(repeated)} of an edge{again}")
    return tuple(told)


def names_dropped(names: Iterable[str], used: Collection[str], kind: str, of: str) -> tuple[str, ...]:
    """A phrase for what is not read among all that there is, () where everything is used.

    Args:
        names: of everything there is.
        used: the names of what is read.
        kind: what they are, one of them: "column", "attribute", "array".
        of: what has them.
    """
    unread = [name for name in names if name not in used]
    if not unread:
        return ()
    return (f"{len(unread):,} {kind}{_s(len(unread))} of {of} ({_some(unread)})",)


def in_one_line(dropped: Sequence[str]) -> str:
    """What was left out as one line, "" where nothing was."""
    return f"not used: {'; '.join(dropped)}" if dropped else ""


def _distinct(keys: np.ndarray) -> int:
    """How many different values there are."""
    ordered = np.sort(keys)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(len(keys))


def _some(names: Sequence[str]) -> str:
    more = f", and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(shown(str(name)) for name in names[:NAMED]) + more


def _s(count: int) -> str:
    return "" if count == 1 else "s"
