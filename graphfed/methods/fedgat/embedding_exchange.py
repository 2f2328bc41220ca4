"""The layers of FedGAT after the first from embeddings of neighbours elsewhere, which cross for every set of
weights (later=exchange; Ambekar et al., "FedGAT", section on several layers)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import elu

from graphfed.federation import Federation, Located
from graphfed.federation.functions import column
from graphfed.federation.route import Route, RouteTable
from graphfed.methods.common.local_training import Prepared
from graphfed.methods.common.released import by_node
from graphfed.methods.config import GraphTraining
from graphfed.methods.fedgat.receptive_fields import as_rows, far_ids
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import Batch, make_batch

__all__ = ["MESSAGES", "Border", "exchange", "find_border"]


def embedding_batches(prepared: Prepared, asked: Tensor, config: GraphTraining) -> tuple[Batch, ...]:
    """For what leaves each layer but the last, of the own nodes that others ask for, [N] bool."""
    view = prepared.view
    assert view.far is not None
    rows = (~view.far).nonzero()[:, 0][asked]
    make_block = config.network.blocks(view.ids, view.degree, config.attention_heads, config.layers)
    return tuple(make_batch(view, rows, depth, make_block) for depth in range(1, config.layers))


def embeddings(batches: tuple[Batch, ...], weights: Weights, config: GraphTraining, *given: Tensor) -> Tensor:
    """What leaves the layer after those of which the far nodes' are given, with phi: [n, heads * H]."""
    with torch.no_grad():
        return elu(config.network.forward(weights, batches[len(given)].with_given(given), None))


def with_given(prepared: Prepared, *given: Tensor) -> Prepared:
    return replace(
        prepared,
        view=replace(prepared.view, given=given),
        train=prepared.train.with_given(given),
        val=prepared.val.with_given(given),
    )


def as_counts(mask: Tensor) -> Tensor:
    return mask.long()


def asked_for(nodes: RouteTable, far: RouteTable) -> Tensor:
    """Which nodes are a neighbour at another client, [U] bool."""
    return torch.isin(nodes.ids, far.ids)


@dataclass(frozen=True)
class Border:
    """Whose embeddings cross: the route up, of the nodes that are asked for elsewhere, the route down, and
    `embedding_batches` at the clients."""

    up: Route
    down: Route
    batches: Located


def find_border(
    fed: Federation, nodes: Route, neighbourhood: Located, prepared: Located, config: GraphTraining
) -> Border:
    """Clients name their neighbours elsewhere, and the server tells which nodes are asked for."""
    down = fed.route(fed.clients.run(far_ids, neighbourhood), name="fedgat/far_ids")
    asked = fed.server.run(asked_for, fed.table(nodes), fed.table(down))
    told = fed.download(fed.server.run(as_rows, asked), nodes, name="fedgat/requested_ids", grad=False)
    told = fed.clients.run(column, told, 0)
    at_clients, at_server = fed.clients.run(as_counts, told), fed.server.run(as_counts, asked)
    up = fed.expand_route(nodes, at_clients, at_server, name="fedgat/embeddings")
    return Border(up, down, fed.clients.run(embedding_batches, prepared, told, config))


def exchange(
    border: Border, fed: Federation, prepared: Located, received: Located, config: GraphTraining
) -> Located:
    """`prepared` with the embeddings that the neighbours elsewhere have with the weights received."""
    given: list[Located] = []
    for _ in range(config.layers - 1):
        rows = fed.clients.run(embeddings, border.batches, received, config, *given)
        rows = fed.upload(rows, border.up, name="fedgat/embeddings", grad=False)
        rows = fed.server.run(by_node, rows, fed.table(border.up))
        given.append(fed.download(rows, border.down, name="fedgat/neighbour_embeddings", grad=False))
    return fed.clients.run(with_given, prepared, *given)


MESSAGES: Mapping[str, str] = {
    "fedgat/far_ids": "With later=exchange, once: the ids of a client's neighbours at other clients.",
    "fedgat/requested_ids": "With later=exchange, once, from the server: which of a client's nodes another "
    "client "
    "asks for.",
    "fedgat/embeddings": "With later=exchange, in every round and evaluation: of the nodes that are asked "
    "for, what leaves each layer but the last, which the server reads.",
    "fedgat/neighbour_embeddings": "With later=exchange, from the server, in every round and evaluation: "
    "of a client's neighbours at other clients, what leaves each layer but the last, which the client reads.",
}
