"""Which nodes a client of FedGAT gets messages of: its own, and those within some hops of them."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphfed.federation.cohort import Cohort
from graphfed.federation.route import RowIds
from graphfed.methods.fedgcn.method import find_closure

__all__ = [
    "Neighbourhood",
    "as_rows",
    "border_ids",
    "edge_ends",
    "far_ids",
    "first_neighbourhood",
    "neighbourhood_ids",
    "wider_neighbourhood",
    "without_messages_of_others",
]


def edge_ends(cohort: Cohort) -> tuple[RowIds, Tensor]:
    """The node of every edge's end here, by client, and its neighbour's id [E, 1]."""
    row = torch.cat([cohort.edge_index[1], cohort.cross_row])
    neighbour = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cross_id])
    order = torch.argsort(row, stable=True)
    row = row[order]
    return RowIds(cohort.id[row], cohort.client[row]), neighbour[order][:, None]


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """A cohort's own nodes and those within some hops of them, M rows sorted by (client, id).

    ids, client [M]; own [N]: the row of each own node; edges [2, E] (source, destination) rows, into the
    nodes whose neighbours are known [M] bool; far [M] bool: nodes of which no message comes, None
    where there are none."""

    ids: Tensor
    client: Tensor
    own: Tensor
    edges: Tensor
    known: Tensor
    far: Tensor | None = None

    @property
    def near(self) -> Tensor:
        """The rows of the nodes of which a message comes, ascending [n]."""
        far = torch.zeros_like(self.known) if self.far is None else self.far
        return (~far).nonzero()[:, 0]


def first_neighbourhood(cohort: Cohort, layers: int) -> Neighbourhood:
    """One hop, or with one layer none."""
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
    """With later=exchange: the neighbours elsewhere are far."""
    return replace(neighbourhood, far=~neighbourhood.known)


def neighbourhood_ids(neighbourhood: Neighbourhood) -> RowIds:
    return RowIds(neighbourhood.ids[neighbourhood.near], neighbourhood.client[neighbourhood.near])


def far_ids(neighbourhood: Neighbourhood) -> RowIds:
    return RowIds(neighbourhood.ids[neighbourhood.far], neighbourhood.client[neighbourhood.far])


def border_ids(neighbourhood: Neighbourhood) -> RowIds:
    """Those whose neighbours are not known."""
    return RowIds(neighbourhood.ids[~neighbourhood.known], neighbourhood.client[~neighbourhood.known])


def wider_neighbourhood(neighbourhood: Neighbourhood, counts: Tensor, neighbours: Tensor) -> Neighbourhood:
    """One hop more: the neighbours [E', 1] of the border, counts [M'] of each."""
    border = (~neighbourhood.known).nonzero()[:, 0]
    counts, neighbours = counts[:, 0], neighbours[:, 0]
    client = torch.repeat_interleave(neighbourhood.client[border], counts)
    known, place = torch.unique(torch.cat([neighbourhood.ids, neighbours]), return_inverse=True)
    count = max(len(known), 1)
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
    return x[:, None]
