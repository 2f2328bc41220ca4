"""Edges with directions and attributes, as a network reads them layer by layer.

Shapes: N rows of a view, E edges, D attributes, K clients.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.nn.tiles import Tiles, make_tiles


@dataclass(frozen=True, eq=False)
class EdgeRows:
    """The edges of a view as the data lists them.

    Attributes:
        source: [E] int64, the row that each edge leaves.
        target: [E] int64, the row that each edge enters, ascending.
        attributes: [E, D]; D may be 0.
        symmetric: Whether edges have no direction; each edge is then listed in both directions.
    """

    source: Tensor
    target: Tensor
    attributes: Tensor
    symmetric: bool


@dataclass(frozen=True, eq=False)
class Messages:
    """The messages of one layer in one direction of the edges.

    Attributes:
        sender: [E] int64, the input row that sends each message.
        receiver: [E] int64, the output row that receives it, ascending.
        attributes: [E, D], those of its edge.
        client: [E] int64, the index in the cohort of the receiver's client.
        tiles: The tiles of the messages; None with one client.
    """

    sender: Tensor
    receiver: Tensor
    attributes: Tensor
    client: Tensor
    tiles: Tiles | None


@dataclass(frozen=True, eq=False)
class BlockEdges:
    """The messages of one layer: those along the edges, and those against them.

    Attributes:
        inward: From the source of each edge to its target.
        reverse: From the target of each edge to its source; None if edges have no direction.
    """

    inward: Messages
    reverse: Messages | None


def undirected_rows(edges: Tensor, like: Tensor) -> EdgeRows:
    """Return the undirected edges [2, E], listed in both directions, as edges without attributes."""
    order = torch.argsort(edges[1], stable=True)
    return EdgeRows(edges[0][order], edges[1][order], like.new_zeros(len(order), 0), symmetric=True)


def block_edges(
    edges: EdgeRows, number: Tensor, client: Tensor, num_clients: int, dtype: torch.dtype
) -> BlockEdges:
    """Select the messages of one layer.

    Args:
        edges: The edges of the view.
        number: [2, N]; number[0] maps a row of the view to its number among the input rows of the layer,
            number[1] to that among the output rows (-1: absent).
        client: [N] int64, the index in the cohort of each row's client.
        num_clients: K.
        dtype: The dtype of the attributes in the result.
    """

    def messages(sender: Tensor, receiver: Tensor, order: Tensor | None) -> Messages:
        found = (number[1, receiver] >= 0).nonzero()[:, 0] if order is None else order
        sender, receiver = sender[found], receiver[found]
        of_client = client[receiver]
        tiles = make_tiles(of_client, num_clients) if num_clients > 1 else None
        attributes = edges.attributes[found].to(dtype)
        return Messages(number[0, sender], number[1, receiver], attributes, of_client, tiles)

    inward = messages(edges.source, edges.target, None)
    if edges.symmetric:
        return BlockEdges(inward, None)
    # Messages against the edges are sorted by their receivers, which are the sources.
    order = torch.argsort(edges.source, stable=True)
    order = order[number[1, edges.source[order]] >= 0]
    return BlockEdges(inward, messages(edges.target, edges.source, order))
