"""The graphs of FedGAT's clients: the edges that the model uses, the nodes whose messages they receive, and
the view that they train on.

With later=hops a client receives the messages of all nodes within L - 1 hops (the set H_k). With
later=exchange it receives those of its own nodes only, and for every set of weights the embeddings of its
remote neighbours.

Reference: Ambekar et al., "FedGAT", section on several layers; docs/papers/fedgat.md, Layers after the
first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn.functional import elu

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import column
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods.common.local_training import Prepared
from graphfed.methods.common.released import by_node
from graphfed.methods.fedgat.config import KeptEdges
from graphfed.methods.fedgcn.method import find_closure
from graphfed.methods.parts import GraphTraining, Network
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import Batch, View, make_batch
from graphfed.nn.moments import Moments
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import entry_words, fold, uniform

Rows = Tensor | SparseMatrix

# ---- the edges that the model uses -------------------------------------------------------------------------


def kept_edges(cohort: Cohort, edges: KeptEdges, seed: int) -> Cohort:
    """Select the edges that the model uses: `without_singles` if drop_single is set, and at most
    `max_neighbours` neighbours of each node.

    The neighbours are drawn by the ids of the two nodes, so that the selection does not depend on the
    partition.
    """
    if edges.drop_single:
        cohort = without_singles(cohort)
    if edges.max_neighbours is None:
        return cohort
    num_local, limit = cohort.edge_index.shape[1], edges.max_neighbours
    row = torch.cat([cohort.edge_index[1], cohort.cross_row])
    neighbour = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cross_id])
    draw = uniform(fold(seed, "fedgat", "neighbours"), entry_words(cohort.id[row], neighbour))[:, 0]
    # Sort by node, and by the draw within a node.
    order = torch.argsort(draw, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    degree = torch.bincount(row, minlength=cohort.num_rows)
    kept = torch.zeros_like(row, dtype=torch.bool)
    kept[order] = ranges(torch.zeros_like(degree), degree) < limit
    kept_local, kept_remote = kept[:num_local], kept[num_local:]
    return replace(
        cohort,
        edge_index=cohort.edge_index[:, kept_local],
        edge_weight=None if cohort.edge_weight is None else cohort.edge_weight[kept_local],
        cross_row=cohort.cross_row[kept_remote],
        cross_client=cohort.cross_client[kept_remote],
        cross_id=cohort.cross_id[kept_remote],
        cross_weight=None if cohort.cross_weight is None else cohort.cross_weight[kept_remote],
    )


def without_singles(cohort: Cohort) -> Cohort:
    """Remove the only remote neighbour of each node that has exactly one, at this node."""
    remote = torch.bincount(cohort.cross_row, minlength=cohort.num_rows)
    kept = remote[cohort.cross_row] > 1
    weight = None if cohort.cross_weight is None else cohort.cross_weight[kept]
    return replace(
        cohort,
        cross_row=cohort.cross_row[kept],
        cross_client=cohort.cross_client[kept],
        cross_id=cohort.cross_id[kept],
        cross_weight=weight,
    )


# ---- the nodes whose messages a client receives: H_k -------------------------------------------------------


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
    """Build the neighbourhood of one hop, or of no hop for a network with one layer."""
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


def wider_neighbourhood(neighbourhood: Neighbourhood, counts: Tensor, neighbours: Tensor) -> Neighbourhood:
    """Extend a neighbourhood by one hop.

    Args:
        counts: The number of neighbours of each node of `border_ids`, int64 [M', 1].
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


def without_messages_of_others(neighbourhood: Neighbourhood) -> Neighbourhood:
    """Mark the remote neighbours as nodes without a message (later=exchange)."""
    return replace(neighbourhood, far=~neighbourhood.known)


def neighbourhood_ids(neighbourhood: Neighbourhood) -> RowIds:
    """List the nodes whose messages the client needs."""
    return RowIds(neighbourhood.ids[neighbourhood.sent_rows], neighbourhood.client[neighbourhood.sent_rows])


def border_ids(neighbourhood: Neighbourhood) -> RowIds:
    """List the nodes whose neighbours the client does not know."""
    return RowIds(neighbourhood.ids[~neighbourhood.known], neighbourhood.client[~neighbourhood.known])


def far_ids(neighbourhood: Neighbourhood) -> RowIds:
    """List the nodes whose messages the client does not receive (later=exchange)."""
    return RowIds(neighbourhood.ids[neighbourhood.far], neighbourhood.client[neighbourhood.far])


def as_rows(x: Tensor) -> Tensor:
    """Convert numbers [n] to rows [n, 1], as they are sent."""
    return x[:, None]


# ---- the views of the clients, with the message or with features -------------------------------------------


def moments_view(
    cohort: Cohort,
    neighbourhood: Neighbourhood,
    size: Tensor,
    sums: Tensor,
    scores: Tensor,
    decoders: Tensor | None,
    heads: int,
) -> View:
    """Build the clients' view of the graph, with the message in place of features.

    Args:
        size: B of the nodes with a message.
        sums: K1 and K2.
        scores: M1 and M2.
        decoders: R_0 to R_p, or None with form=matrix.
        heads: The attention heads of the first layer.
    """
    return View(
        x=sums.new_empty(len(neighbourhood.ids), 0),
        ids=neighbourhood.ids,
        client=neighbourhood.client,
        num_clients=cohort.num_clients,
        y=cohort.y.new_full((len(neighbourhood.ids),), -1).index_copy(0, neighbourhood.own, cohort.y),
        degree=torch.zeros_like(neighbourhood.ids),
        edges=(neighbourhood.edges,),
        aggregated=True,
        moments=Moments(size, sums, scores, decoders, heads),
        far=neighbourhood.far,
    )


class VisibleGraph(TypedDict):
    """The graph that the server shows to simulated clients (evaluation=direct).

    Attributes:
        x: Features of all nodes [U, F].
        ids: Their ids, ascending [U].
        size: B of each node [U].
        member: The rows of each node's neighbours, with the node itself first [sum B].
    """

    x: Rows
    ids: Tensor
    size: Tensor
    member: Tensor


def direct_view(cohort: Cohort, neighbourhood: Neighbourhood, graph: VisibleGraph) -> tuple[View, Tensor]:
    """Build the view of a simulated client, with the features of all neighbours.

    Returns:
        The view, and the rows of the own nodes in it [N].
    """
    x, known, sizes, members = graph["x"], graph["ids"], graph["size"], graph["member"]
    sent = neighbourhood.sent_rows
    node = torch.searchsorted(known, neighbourhood.ids[sent])
    size = sizes[node]
    member = members[ranges((sizes.cumsum(0) - sizes)[node], size)]
    centre = torch.repeat_interleave(sent, size)
    count = max(len(known), 1)
    codes, row = torch.unique(neighbourhood.client[centre] * count + member, return_inverse=True)
    # The far nodes are neighbours of other nodes, so every node of the neighbourhood has a row.
    rows_of_neighbourhood = torch.searchsorted(
        codes, neighbourhood.client * count + torch.searchsorted(known, neighbourhood.ids)
    )
    others = row != rows_of_neighbourhood[centre]
    own, node = rows_of_neighbourhood[neighbourhood.own], codes % count
    view = View(
        x=x.select_rows(node) if isinstance(x, SparseMatrix) else x[node],
        ids=known[node],
        client=codes // count,
        num_clients=cohort.num_clients,
        y=cohort.y.new_full((len(codes),), -1).index_copy(0, own, cohort.y),
        degree=torch.zeros_like(codes),
        edges=(
            torch.stack([row, rows_of_neighbourhood[centre]])[:, others],
            rows_of_neighbourhood[neighbourhood.edges],
        ),
        # With later=exchange the view has no rows besides those of the neighbourhood.
        far=neighbourhood.far,
    )
    return view, own


# ---- embeddings of remote neighbours (later=exchange) ------------------------------------------------------


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
    """
    down = fed.route(fed.clients.run(far_ids, neighbourhood), name="fedgat/far_ids")
    is_requested = fed.server.run(find_requested, fed.table(nodes), fed.table(down))
    requested = fed.download(
        fed.server.run(as_rows, is_requested),
        nodes,
        name="fedgat/requested_ids",
        grad=False,
        like=TensorForm(torch.bool, (1,)),
    )
    requested = fed.clients.run(column, requested, 0)
    at_clients, at_server = fed.clients.run(to_counts, requested), fed.server.run(to_counts, is_requested)
    up = fed.expand_route(nodes, at_clients, at_server, name="fedgat/embeddings")
    return Border(up, down, fed.clients.run(embedding_batches, prepared, requested, network))


def exchange_embeddings(
    border: Border, fed: Federation, prepared: Located, received: Located, config: GraphTraining
) -> Located:
    """Exchange the embeddings of remote neighbours for the received weights, layer by layer.

    Returns:
        The prepared data with these embeddings, at the clients.

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


def find_requested(nodes: RouteTable, far: RouteTable) -> Tensor:
    """Return which nodes are a neighbour of another client's node, bool [U]."""
    return torch.isin(nodes.ids, far.ids)


def to_counts(mask: Tensor) -> Tensor:
    """Convert a mask to counts of 0 and 1."""
    return mask.long()


def embedding_batches(prepared: Prepared, is_requested: Tensor, network: Network) -> tuple[Batch, ...]:
    """Prepare one batch per layer except the last, for the own nodes that other clients request, bool [N]."""
    view = prepared.view
    assert view.far is not None
    rows = (~view.far).nonzero()[:, 0][is_requested]
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
