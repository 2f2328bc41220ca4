"""Receptive fields of FedGAT, against sets of (client, node) that grow by one hop at a time."""

import pytest
import torch

from graphfed.methods.fedgat.client_graphs import (
    Neighbourhood,
    border_ids,
    far_ids,
    neighbourhood_ids,
    wider_neighbourhood,
    without_messages_of_others,
)

#: Two clients of a path 10 - 20 - 30 - 40 - 50 with an edge 20 - 50: client 0 has 10 and 20, client 3 has 40.
NEIGHBOURS = {10: [20], 20: [10, 30, 50], 30: [20, 40], 40: [30, 50], 50: [40, 20]}
OWN = {0: [10, 20], 3: [40]}


def one_hop() -> Neighbourhood:
    """The rows of both clients sorted by (client, node): own nodes, and their neighbours."""
    rows = sorted(
        {(client, node) for client, own in OWN.items() for node in own}
        | {
            (client, neighbour)
            for client, own in OWN.items()
            for node in own
            for neighbour in NEIGHBOURS[node]
        }
    )
    edges = [
        (rows.index((client, neighbour)), rows.index((client, node)))
        for client, own in OWN.items()
        for node in own
        for neighbour in NEIGHBOURS[node]
    ]
    return Neighbourhood(
        ids=torch.tensor([node for _, node in rows]),
        client=torch.tensor([client for client, _ in rows]),
        own=torch.tensor([rows.index((client, node)) for client, own in OWN.items() for node in own]),
        edges=torch.tensor(edges).t(),
        known=torch.tensor([node in OWN[client] for client, node in rows]),
    )


def pairs(ids: torch.Tensor, client: torch.Tensor) -> list[tuple[int, int]]:
    return list(zip(client.tolist(), ids.tolist(), strict=True))


def one_hop_wider(neighbourhood: Neighbourhood) -> Neighbourhood:
    border = border_ids(neighbourhood)
    lists = [NEIGHBOURS[int(node)] for node in border.ids]
    counts = torch.tensor([[len(each)] for each in lists])
    return wider_neighbourhood(
        neighbourhood, counts, torch.tensor([[neighbour] for each in lists for neighbour in each])
    )


@pytest.mark.parametrize("hops", [1, 2])
def test_each_hop_adds_the_neighbours_of_the_border_of_each_client_and_the_edges_into_it(hops: int) -> None:
    neighbourhood = one_hop()
    for _ in range(hops):
        before = set(pairs(neighbourhood.ids, neighbourhood.client))
        neighbourhood = one_hop_wider(neighbourhood)
        rows = pairs(neighbourhood.ids, neighbourhood.client)
        assert rows == sorted(
            before | {(c, neighbour) for c, node in before for neighbour in NEIGHBOURS[node]}
        )
        assert {row for row, known in zip(rows, neighbourhood.known.tolist(), strict=True) if known} == before
        assert [rows[i] for i in neighbourhood.own] == [(c, node) for c, own in OWN.items() for node in own]
        edges = [(rows[source], rows[target]) for source, target in neighbourhood.edges.t().tolist()]
        expected = [((c, neighbour), (c, node)) for c, node in before for neighbour in NEIGHBOURS[node]]
        assert sorted(edges) == sorted(expected)
        assert neighbourhood.far is None


def test_messages_come_from_every_node_unless_those_of_other_clients_are_left_out() -> None:
    neighbourhood = one_hop()
    everyone = pairs(neighbourhood.ids, neighbourhood.client)
    assert pairs(neighbourhood_ids(neighbourhood).ids, neighbourhood_ids(neighbourhood).client) == everyone
    alone = without_messages_of_others(neighbourhood)
    own = [(client, node) for client, node in everyone if node in OWN[client]]
    others = [row for row in everyone if row not in own]
    assert pairs(neighbourhood_ids(alone).ids, neighbourhood_ids(alone).client) == own
    assert pairs(far_ids(alone).ids, far_ids(alone).client) == others
    assert pairs(border_ids(neighbourhood).ids, border_ids(neighbourhood).client) == others
