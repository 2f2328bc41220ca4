"""The nodes whose messages a client of FedGAT receives: its own nodes, and those within some hops of them
(the set H_k).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphfed.federation.cohort import Cohort
from graphfed.federation.route import RowIds
from graphfed.methods.fedgcn.method import find_closure


def edge_ends(cohort: Cohort) -> tuple[RowIds, Tensor]:
    """List the edges of a client's nodes.

    Returns:
        The node of every edge, by client (E rows, sorted by node), and the ids of the neighbours, int64 [E,
        1].
    """
    row = torch.cat([cohort.edge_index[1], cohort.cross_row])
    neighbour = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cross_id])
    order = torch.argsort(row, stable=True)
    row = row[order]
    return RowIds(cohort.id[row], cohort.client[row]), neighbour[order][:, None]


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """A client's own nodes and the nodes within some hops of them, M rows sorted by (client, id).

    Attributes:
        ids: Node ids [M].
        client: The client of each row [M].
        own: The row of each of the N own nodes [N].
        edges: Rows (source, target) of the edges into the nodes whose neighbours are known [2, E].
        known: Whether the client knows the neighbours of the node, bool [M].
        far: Whether the node's message is not sent to the client, bool [M]; None if all messages are sent.
    """

    ids: Tensor
    client: Tensor
    own: Tensor
    edges: Tensor
    known: Tensor
    far: Tensor | None = None

    @property
    def sent_rows(self) -> Tensor:
        """The rows of the nodes whose messages are sent to the client, ascending [n]."""
        far = torch.zeros_like(self.known) if self.far is None else self.far
        return (~far).nonzero()[:, 0]


def first_neighbourhood(cohort: Cohort, layers: int) -> Neighbourhood:
    """Build the neighbourhood of one hop, or of no hop for a network with one layer.

    Args:
        layers: L, the layers of the network.
    """
    if layers == 1:
        rows = torch.arange(cohort.num_rows, device=cohort.id.device)
        return Neighbourhood(
            cohort.id, cohort.client, rows, cohort.edge_index[:, :0], torch.ones_like(rows).bool()
        )
    closure = find_closure(cohort)
    inside = closure.local_row[cohort.edge_index]
    across = torch.stack([closure.remote_row, closure.local_row[cohort.cross_row]])
    return Neighbourhood(
        closure.ids, closure.client, closure.local_row, torch.cat([inside, across], 1), closure.is_local
    )


def without_messages_of_others(neighbourhood: Neighbourhood) -> Neighbourhood:
    """Mark the remote neighbours as nodes without a message (later=exchange)."""
    return replace(neighbourhood, far=~neighbourhood.known)


def neighbourhood_ids(neighbourhood: Neighbourhood) -> RowIds:
    """List the nodes whose messages the client needs.

    Returns:
        Their ids by client, n rows.
    """
    return RowIds(neighbourhood.ids[neighbourhood.sent_rows], neighbourhood.client[neighbourhood.sent_rows])


def far_ids(neighbourhood: Neighbourhood) -> RowIds:
    """List the nodes whose messages the client does not receive."""
    return RowIds(neighbourhood.ids[neighbourhood.far], neighbourhood.client[neighbourhood.far])


def border_ids(neighbourhood: Neighbourhood) -> RowIds:
    """List the nodes whose neighbours the client does not know.

    Returns:
        Their ids by client, M' rows.
    """
    return RowIds(neighbourhood.ids[~neighbourhood.known], neighbourhood.client[~neighbourhood.known])


def wider_neighbourhood(neighbourhood: Neighbourhood, counts: Tensor, neighbours: Tensor) -> Neighbourhood:
    """Extend a neighbourhood by one hop.

    Args:
        counts: The number of neighbours of each node of the border, int64 [M', 1].
        neighbours: The ids of these neighbours, int64 [E', 1].
    """
    border = (~neighbourhood.known).nonzero()[:, 0]
    counts, neighbours = counts[:, 0], neighbours[:, 0]
    client = torch.repeat_interleave(neighbourhood.client[border], counts)
    known, place = torch.unique(torch.cat([neighbourhood.ids, neighbours]), return_inverse=True)
    count = max(len(known), 1)
    # One code for each pair (client, id), so that a node has a row of its own at every client.
    codes, row = torch.unique(torch.cat([neighbourhood.client, client]) * count + place, return_inverse=True)
    old, new = row[: len(neighbourhood.ids)], row[len(neighbourhood.ids) :]
    into = torch.stack([new, torch.repeat_interleave(old[border], counts)])
    known_rows = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
    known_rows[old] = True
    return Neighbourhood(
        ids=known[codes % count],
        client=codes // count,
        own=old[neighbourhood.own],
        edges=torch.cat([old[neighbourhood.edges], into], 1),
        known=known_rows,
    )


def as_rows(x: Tensor) -> Tensor:
    """Add a second dimension: rows of one number.

    Args:
        x: Numbers [n].

    Returns:
        The numbers [n, 1].
    """
    return x[:, None]
