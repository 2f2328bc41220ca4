"""The edges of a cohort as the data lists them: with directions, repetitions, attributes and times.

Shapes: N rows of the cohort, E edges inside clients, C cross-client edges, D attributes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from graphfed.data.graphs.directed import DirectedEdges, order_of

__all__ = ["CohortEdges", "edges_of_partition", "edges_of_tables"]

#: What the names of a file's arrays begin with.
PREFIX = "directed_"


@dataclass(frozen=True, eq=False)
class CohortEdges:
    """The edges of K clients as the data lists them (`data.graphs.directed.DirectedEdges`).

    Both clients of a cross-client edge have it: its own node as a row, the other node by its owner and id.

    Attributes:
        source, target: [E] int64, the rows of the edges inside clients; sorted by (target, source).
        attributes: [E, D].
        cross_row: [C] int64, the row of the local node; sorted by (row, client, id).
        cross_client: [C] int64, the stable id of the client that owns the other node.
        cross_id: [C] int64, the stable id of the other node.
        cross_outgoing: [C] bool, whether the edge goes from the local node to the other one.
        cross_attributes: [C, D].
        symmetric: bool [1], whether edges have no direction; each edge is then listed in both directions.
        time, cross_time: [E] and [C] float64; None if edges have no times.
    """

    source: Tensor
    target: Tensor
    attributes: Tensor
    cross_row: Tensor
    cross_client: Tensor
    cross_id: Tensor
    cross_outgoing: Tensor
    cross_attributes: Tensor
    symmetric: Tensor
    time: Tensor | None = None
    cross_time: Tensor | None = None

    @property
    def num_attributes(self) -> int:
        """D, the number of attributes."""
        return self.attributes.shape[1]

    @property
    def is_symmetric(self) -> bool:
        """Whether edges have no direction."""
        return bool(self.symmetric.any())

    def to(self, device: torch.device | str) -> "CohortEdges":
        """Move to a device, with attributes in torch's default dtype. Times keep 64 bits."""
        made = CohortEdges(**{name: tensor.to(device) for name, tensor in self._tensors().items()})
        dtype = torch.get_default_dtype()
        return replace(
            made, attributes=made.attributes.to(dtype), cross_attributes=made.cross_attributes.to(dtype)
        )

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Convert to the arrays of a file, by name."""
        return {PREFIX + name: tensor.cpu().numpy() for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    @staticmethod
    def from_tensors(tensors: Mapping[str, Tensor]) -> "CohortEdges | None":
        """Read what `to_arrays` wrote; None if there is nothing of it."""
        found = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name.startswith(PREFIX)}
        return CohortEdges(**found) if found else None


def edges_of_partition(
    edges: DirectedEdges,
    node: np.ndarray,
    owned: np.ndarray,
    inside: tuple[np.ndarray, np.ndarray],
    cross: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> CohortEdges:
    """Collect the edges between the pairs of nodes that the clients of a cohort hold.

    Args:
        edges: The edges of the whole graph.
        node: The graph's node of each row, [N].
        owned: Whether the client owns the node of each row, [N]. Owners have its self loops.
        inside: The two rows of each pair inside a client, [n] each.
        cross: Of each pair that is a cross-client edge, [c] each: the row, the other node, the client that
            owns it, and its stable id.
    """
    u, v = inside
    loops = np.flatnonzero(owned) if (edges.source == edges.target).any() else np.zeros(0, dtype=np.int64)
    u, v = np.append(u, loops), np.append(v, loops)
    pair, found = edges.between(node[u], node[v])
    u, v = u[pair], v[pair]
    forward = edges.source[found] == node[u]
    local, other, client, id_ = cross
    pair, across = edges.between(node[local], other)
    local = local[pair]
    return _sorted(
        edges,
        (found, np.where(forward, u, v), np.where(forward, v, u)),
        (across, local, client[pair], id_[pair], edges.source[across] == node[local]),
    )


def edges_of_tables(
    edges: DirectedEdges, row: np.ndarray, client: np.ndarray, number: np.ndarray
) -> CohortEdges:
    """Collect the edges of one site's tables, whose nodes are M rows and then D nodes at other clients.

    Args:
        edges: The edges between these M + D nodes.
        row: The row in the cohort of each of the M rows.
        client: The client of each node, [M + D].
        number: The stable id of each node, [M + D].
    """
    inside = client[edges.source] == client[edges.target]
    within, across = np.flatnonzero(inside), np.flatnonzero(~inside)
    # A cross-client edge has one entry for each of its endpoints that is at this site.
    ends = edges.source[across], edges.target[across]
    local, other = np.append(*ends), np.append(*ends[::-1])
    outgoing = np.arange(len(local)) < len(across)
    here = local < len(row)
    local, other = local[here], other[here]
    return _sorted(
        edges,
        (within, row[edges.source[within]], row[edges.target[within]]),
        (np.append(across, across)[here], row[local], client[other], number[other], outgoing[here]),
    )


def _sorted(
    edges: DirectedEdges,
    inside: tuple[np.ndarray, np.ndarray, np.ndarray],
    cross: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> CohortEdges:
    """Sort the edges, so that every reader of a client's data has them in one order.

    `inside` are the edge, the row of its source and that of its target, [E] each. `cross` are the edge, the
    row of the local node, the client and the id of the other node, and whether the edge leaves the local
    node, [C] each.
    """
    found, source, target = inside
    within = edges.select(found)
    order = order_of(target, source, within.attributes, within.time)
    within, source, target = within.select(order), source[order], target[order]
    across, *ends = cross
    beyond = edges.select(across)
    order = order_of(*ends, beyond.attributes, beyond.time)
    beyond = beyond.select(order)
    local, client, id_, outgoing = (column[order] for column in ends)
    made = CohortEdges(
        source=_tensor(source),
        target=_tensor(target),
        attributes=_tensor(within.attributes),
        cross_row=_tensor(local),
        cross_client=_tensor(client),
        cross_id=_tensor(id_),
        cross_outgoing=_tensor(outgoing),
        cross_attributes=_tensor(beyond.attributes),
        symmetric=torch.tensor([edges.symmetric]),
    )
    if within.time is None or beyond.time is None:
        return made
    return replace(made, time=_tensor(within.time), cross_time=_tensor(beyond.time))


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
