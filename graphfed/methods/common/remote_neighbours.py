"""The remote neighbours of a cohort's clients: nodes of other clients that are neighbours of its rows.

A node is one remote neighbour for each client that has an edge to it, however many edges that client has.
"""

import torch
from torch import Tensor

from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeIds


def remote_neighbours(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """Number the remote neighbours of a cohort's clients, sorted by client, owner and id.

    The result is the first cross-client edge of each of the M remote neighbours, [M], and the remote
    neighbour of each of the C cross-client edges, [C].
    """
    # Ids are any numbers up to 2^63; with their ranks a code of (client, owner, id) fits into int64.
    known, place = torch.unique(cohort.cross_id, return_inverse=True)
    clients = int(cohort.cross_client.max()) + 1 if len(cohort.cross_client) else 1
    client = cohort.client[cohort.cross_row]
    codes = (client * clients + cohort.cross_client) * max(len(known), 1) + place
    remote, of_edge = torch.unique(codes, return_inverse=True)
    edges = torch.arange(len(codes), device=codes.device)
    # The smallest edge, so that the choice does not depend on the order of a parallel scatter.
    first = edges.new_full((len(remote),), len(codes)).scatter_reduce(0, of_edge, edges, "amin")
    return first, of_edge


def remote_ids(cohort: Cohort) -> ExchangeIds:
    """List the ids of the M remote neighbours of a cohort's clients with their owners, and of the N rows."""
    first, _ = remote_neighbours(cohort)
    return ExchangeIds(
        owner=cohort.cross_client[first],
        ids=cohort.cross_id[first],
        client=cohort.client[cohort.cross_row[first]],
        held_ids=cohort.id,
        held_client=cohort.client,
    )
