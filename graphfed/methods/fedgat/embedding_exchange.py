"""FedGAT's later layers with embeddings of remote neighbours, which are sent for every set of weights
(later=exchange).

Reference: Ambekar et al., "FedGAT", section on several layers; docs/papers/fedgat.md, Layers after the
first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import elu

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.functions import column
from graphfed.federation.route import Route, RouteTable
from graphfed.methods.common.local_training import Prepared
from graphfed.methods.common.released import by_node
from graphfed.methods.fedgat.receptive_fields import as_rows, far_ids
from graphfed.methods.parts import GraphTraining, Network
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import Batch, make_batch


def embedding_batches(prepared: Prepared, asked: Tensor, network: Network) -> tuple[Batch, ...]:
    """Prepare one batch per layer except the last, for the own nodes that other clients request, bool [N]."""
    view = prepared.view
    assert view.far is not None
    rows = (~view.far).nonzero()[:, 0][asked]
    make_block = network.kernel.blocks(view.ids, view.degree, network.attention_heads)
    return tuple(make_batch(view, rows, depth, make_block) for depth in range(1, network.layers))


def embeddings(batches: tuple[Batch, ...], weights: Weights, network: Network, *given: Tensor) -> Tensor:
    """Compute the requested embeddings of the next layer, with phi, [n, heads * H]. `given`: those of the far
    nodes so far.
    """
    with torch.no_grad():
        return elu(network.kernel.forward(weights, batches[len(given)].with_received(given), None))


def with_received(prepared: Prepared, *received: Tensor) -> Prepared:
    """Return the prepared data with the far nodes' embeddings as inputs of the later layers."""
    return replace(
        prepared,
        view=replace(prepared.view, received=received),
        train=prepared.train.with_received(received),
        val=prepared.val.with_received(received),
    )


def as_counts(mask: Tensor) -> Tensor:
    """Convert a mask to counts of 0 and 1."""
    return mask.long()


def asked_for(nodes: RouteTable, far: RouteTable) -> Tensor:
    """Return which nodes are a neighbour of another client's node, bool [U]."""
    return torch.isin(nodes.ids, far.ids)


@dataclass(frozen=True)
class Border:
    """The nodes whose embeddings are exchanged.

    Attributes:
        up: The route of the requested nodes, from their clients to the server.
        down: The route of the far nodes, from the server to the clients that need them.
        batches: The `embedding_batches`, at the clients.
    """

    up: Route
    down: Route
    batches: Located


def find_border(
    fed: Federation, nodes: Route, neighbourhood: Located, prepared: Located, network: Network
) -> Border:
    """Find the nodes whose embeddings are exchanged.

    Each client sends the ids of its remote neighbours. The server tells every client which of its nodes are
    requested.

    Args:
        neighbourhood: The neighbourhoods, at the clients.
        prepared: The data prepared for training, at the clients.
    """
    down = fed.route(fed.clients.run(far_ids, neighbourhood), name="fedgat/far_ids")
    asked = fed.server.run(asked_for, fed.table(nodes), fed.table(down))
    requested = fed.download(
        fed.server.run(as_rows, asked),
        nodes,
        name="fedgat/requested_ids",
        grad=False,
        like=TensorForm(torch.bool, (1,)),
    )
    requested = fed.clients.run(column, requested, 0)
    at_clients, at_server = fed.clients.run(as_counts, requested), fed.server.run(as_counts, asked)
    up = fed.expand_route(nodes, at_clients, at_server, name="fedgat/embeddings")
    return Border(up, down, fed.clients.run(embedding_batches, prepared, requested, network))


def exchange(
    border: Border, fed: Federation, prepared: Located, received: Located, config: GraphTraining
) -> Located:
    """Exchange the embeddings of remote neighbours for the current weights, layer by layer.

    Args:
        border: The nodes whose embeddings are exchanged.
        prepared: The data prepared for training, at the clients.
        received: The weights, at the clients.

    Reference:
        FedGAT, Eq. (20).
    """
    given: list[Located] = []
    for _ in range(config.network.layers - 1):
        rows = fed.clients.run(embeddings, border.batches, received, config.network, *given)
        uploaded = fed.upload(rows, border.up, name="fedgat/embeddings", grad=False)
        uploaded = fed.server.run(by_node, uploaded, fed.table(border.up))
        given.append(
            fed.download(uploaded, border.down, name="fedgat/neighbour_embeddings", grad=False, like=rows)
        )
    return fed.clients.run(with_received, prepared, *given)


MESSAGES: Mapping[str, str] = {
    "fedgat/far_ids": "With later=exchange: each client sends the ids of its remote neighbours to the "
    "server, once.",
    "fedgat/requested_ids": "With later=exchange: the server tells each client, once, which of its "
    "nodes other clients request.",
    "fedgat/embeddings": "With later=exchange, in every round and evaluation: each client sends the "
    "embeddings of its requested nodes after each layer except the last. The server can read them.",
    "fedgat/neighbour_embeddings": "With later=exchange, in every round and evaluation: the server "
    "sends each client the embeddings of its remote neighbours after each layer except the last. The "
    "client can read them.",
}
