"""Halo exchange (ours): exact training of any graph network over the edges of all clients.

The halo of a client are the nodes of other clients that are neighbours of its own. A layer needs the rows of
its client's nodes and of the halo. So the clients send each other features once, and in every step the
embeddings h^l_j of every node j that is in a halo, before each layer l = 1 .. L - 1:

    1. The client of j sends h^l_j to every client with a neighbour of j                  (layers 1 .. L - 1)
    2. Each client computes layer l for its own nodes from both kinds of rows
    3. Each client sends the gradient of its loss with respect to h^l_j back to the client of j, which adds up
       the gradients of all clients and goes on to layer l - 1

Every node's row and gradient are those of the pooled graph, so a round is a step of central training, for
every network whose layer reads a node and its neighbours. FedGCN and FedGAT are compared with this method:
they send less and approximate it.

Each round sends, for M pairs of a client and a node of its halo and layers of width H, (L - 1) M H numbers
and as many gradients, and each evaluation (L - 1) M H numbers.

**This method protects neither features nor embeddings nor labels of nodes at borders.** docs/halo.md has the
argument, `audit/attacks/halo.py` the attack.

- A client reads the features of every node in its halo, and its embeddings in every round.
- The client of node j reads the gradient with respect to h^{L-1}_j of every client with neighbours of j. In
  the last layer it is a combination of (softmax(z_i) - one-hot(y_i)) over the training neighbours i of j at
  that client: with one such neighbour it shows its label.
- The server reads gradients of the weights (with aggregation=secure their sum) and metrics, and no feature,
  embedding or edge.

Differs from the paper: there is no paper. Exchanging embeddings and their gradients in every layer is the
full-graph training of distributed systems, such as CAGNET (Tripathy, Yelick and Buluc, SC 2020).
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.cohort_edges import CohortEdges
from graphfed.federation.payload import Rows
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.aggregation import check_sums
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common import pooled_training
from graphfed.methods.common.local_training import batch_of_all
from graphfed.methods.common.remote_neighbours import remote_ids, remote_neighbours
from graphfed.methods.parts import Inputs, Loss, Network, Protocols, Run, Selection, Sums, Training
from graphfed.methods.settings import settings
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import Batch, View
from graphfed.nn.directed import EdgeRows
from graphfed.nn.layers import Dropout

NAME = "halo"


@settings
class HaloConfig:
    """The settings of halo."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    sums: Sums = Sums()
    protocols: Protocols = Protocols()


@dataclass(frozen=True, eq=False)
class Halo:
    """The rows of a cohort's clients, and of the nodes in their halos: N + M rows, sorted by client.

    Attributes:
        order: [N + M] int64, where each of these rows is among the cohort's N rows followed by the M rows of
            the halos (`remote_neighbours`).
        local: [N] int64, the row of each of the cohort's rows.
        remote: [M] int64, the row of each row of the halos.
    """

    order: Tensor
    local: Tensor
    remote: Tensor


@dataclass(frozen=True)
class Exchange:
    """What the clients have agreed on: `halo` is at the clients, `route` leads to the clients with a halo."""

    halo: Located
    route: ExchangeRoute


# ---- at the clients ----------------------------------------------------------------------------------------


def find_halo(cohort: Cohort) -> Halo:
    """List the rows of a cohort's clients and of their halos."""
    first, _ = remote_neighbours(cohort)
    client = torch.cat([cohort.client, cohort.client[cohort.cross_row[first]]])
    # Per-client weights multiply rows that are sorted by client.
    order = torch.argsort(client, stable=True)
    place = torch.argsort(order)
    return Halo(order, place[: cohort.num_rows], place[cohort.num_rows :])


def own_degrees(cohort: Cohort) -> Tensor:
    """Return the degree of every node in the whole graph, [N, 1] float64."""
    return cohort.degree(with_cross=True)[:, None].double()


def own_features(cohort: Cohort) -> Rows:
    """Return the features, [N, F]."""
    assert cohort.x is not None
    return cohort.x


def make_batch(
    cohort: Cohort, halo: Halo, features: Rows, degrees: Tensor | None, network: Network, per_client: bool
) -> Batch:
    """Prepare all rows, with every edge into the clients' own nodes.

    Args:
        cohort: The clients' data.
        halo: The rows of the view.
        features: [M, F], of the halos.
        degrees: [M, 1], of the halos; None if the network does not use them.
        network: The settings of the network.
        per_client: Whether every client has its own weights.
    """
    first, of_edge = remote_neighbours(cohort)
    assert cohort.x is not None
    own = cohort.degree(with_cross=True).double()
    degree = torch.cat([own, own.new_zeros(len(first)) if degrees is None else degrees[:, 0]])
    inside = halo.local[cohort.edge_index]
    across = torch.stack([halo.remote[of_edge], halo.local[cohort.cross_row]])
    weight = None
    if cohort.edge_weight is not None:
        assert cohort.cross_weight is not None
        weight = (torch.cat([cohort.edge_weight, cohort.cross_weight]),)
    client = torch.cat([cohort.client, cohort.client[cohort.cross_row[first]]])
    view = View(
        x=pay.take_rows(pay.concat_rows([cohort.x, features]), halo.order),
        # A row has the same draws of dropout at every client.
        ids=torch.cat([cohort.id, cohort.cross_id[first]])[halo.order],
        client=client[halo.order],
        num_clients=cohort.num_clients,
        y=torch.cat([cohort.y, cohort.y.new_full((len(first),), -1)])[halo.order],
        degree=degree[halo.order],
        edges=(torch.cat([inside, across], 1),),
        edge_weight=weight,
        directed=None if cohort.directed is None else directed_rows(cohort, cohort.directed, halo, first),
    )
    return batch_of_all(view, network, per_client=per_client)


def directed_rows(cohort: Cohort, edges: CohortEdges, halo: Halo, first: Tensor) -> EdgeRows:
    """Collect the directed edges between the rows of the batch, with those to and from the halos.

    `first` is a cross-client edge of each row of the halos (`remote_neighbours`).
    """
    remote = halo.remote[find_remote(cohort, edges, first)]
    local = halo.local[edges.cross_row]
    source = torch.cat([halo.local[edges.source], torch.where(edges.cross_outgoing, local, remote)])
    target = torch.cat([halo.local[edges.target], torch.where(edges.cross_outgoing, remote, local)])
    order = torch.argsort(target, stable=True)
    attributes = torch.cat([edges.attributes, edges.cross_attributes])
    return EdgeRows(source[order], target[order], attributes[order], edges.is_symmetric)


def find_remote(cohort: Cohort, edges: CohortEdges, first: Tensor) -> Tensor:
    """Find the row of the halos of each directed cross-client edge, [C]."""
    # Ids are any numbers up to 2^63, so the code of a pair of client and id contains the id's rank.
    ids, rank = torch.unique(torch.cat([cohort.cross_id[first], edges.cross_id]), return_inverse=True)
    row = torch.cat([cohort.cross_row[first], edges.cross_row])
    known, wanted = (cohort.client[row] * len(ids) + rank).split([len(first), len(edges.cross_id)])
    order = torch.argsort(known)
    return order[torch.searchsorted(known[order], wanted)]


def run_layer(
    batch: Batch, weights: Weights, h: Tensor | None, network: Network, dropout: Dropout | None, layer: int
) -> Tensor:
    """Run a layer on all rows, [N + M, H]; h None: the features. Rows of the halos have no meaning."""
    return network.kernel.layer(batch.x if h is None else h, weights, batch, dropout, layer)


def local_rows(halo: Halo, h: Tensor) -> Tensor:
    """Select the rows of the clients' own nodes, [N, H]."""
    return h.index_select(0, halo.local)


def with_remote(halo: Halo, local: Tensor, remote: Tensor) -> Tensor:
    """Put received rows [M, H] and the clients' own [N, H] into the order of the batch, [N + M, H]."""
    return torch.cat([local, remote]).index_select(0, halo.order)


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: HaloConfig) -> State:
    """Send the features of the halos once, and draw the first weights.

    Raises InputError for fewer than three clients, if a protection hides sums.
    """
    check_sums(fed, config.sums.aggregation, fed.num_clients)
    network = config.network
    route = fed.exchange_route(fed.clients.run(remote_ids, data), name="halo/ids")
    halo = fed.clients.run(find_halo, data)
    features = fed.exchange(fed.clients.run(own_features, data), route, name="halo/features", grad=False)
    degrees = None
    if network.kernel.source_degree:
        degrees = fed.exchange(fed.clients.run(own_degrees, data), route, name="halo/degrees", grad=False)
    make = partial(fed.clients.run, make_batch, data, halo, features, degrees, network)
    return pooled_training.start(fed, data, Exchange(halo, route), make, task, config, NAME)


def logits(
    fed: Federation,
    batch: Located,
    exchange: Exchange,
    weights: Located,
    network: Network,
    dropout: Dropout | None,
    grad: bool,
) -> Located:
    """Compute the logits [N, C] of all nodes (`pooled_training.Run`)."""
    h: Located | None = None
    for layer in range(network.layers):
        h = fed.clients.run(run_layer, batch, weights, h, network, dropout, layer)
        h = fed.clients.run(local_rows, exchange.halo, h)
        if layer < network.layers - 1:
            remote = fed.exchange(h, exchange.route, name="halo/embeddings", grad=grad)
            h = fed.clients.run(with_remote, exchange.halo, h, remote)
    assert h is not None
    return h


def round(fed: Federation, state: State, config: HaloConfig, round_number: int) -> State:
    """Take one step on the gradient of the loss over all clients."""
    return pooled_training.step(fed, state, config, round_number, logits, NAME)


def predict(fed: Federation, state: State, config: HaloConfig, target: str) -> Located:
    """Compute the logits [n, C] of the target's nodes, with the neighbours at all clients."""
    return pooled_training.predict(fed, state, config, target, logits)


MESSAGES = {
    "halo/ids": "A client sends each other client, once, the ids of that client's nodes to which it has an "
    "edge. That client knows these edges.",
    "halo/features": "A client sends every client with a neighbour of a node, once, the node's features. The "
    "receiver reads them.",
    "halo/degrees": "With backbone=gcn: a client sends every client with a neighbour of a node, once, how "
    "many neighbours the node has in the whole graph (in a weighted graph, the sum of its edges' weights). "
    "The receiver reads it.",
    "halo/embeddings": "In every round and evaluation, before each layer after the first: a client sends "
    "every client with a neighbour of a node the node's embedding. The receiver reads it. It depends on the "
    "features of the node and of its neighbours.",
    "halo/embeddings/grad": "In every round, before each layer after the first: a client sends the client of "
    "a node the gradient of its loss with respect to the node's embedding. The receiver reads it. In the "
    "last layer it shows the labels of training nodes that are neighbours of the node.",
    **pooled_training.messages(NAME),
}

METHOD = Method(
    name="halo",
    summary="every layer's rows of border nodes are exchanged, forward and backward: exact for every network",
    paper="ours: docs/halo.md",
    config=HaloConfig,
    setup=setup,
    round=round,
    predict=predict,
    requires=Requirements(disjoint=True),
    state=StateValues(shared_model=True),
    sends=Sent(
        summary="features of border nodes, once; their embeddings and gradients in every layer; gradients of "
        "the weights, every round",
        protection="none for nodes at borders: the clients of their neighbours read features and embeddings, "
        "and gradients show labels; with aggregation=secure the server reads the sum of the gradients",
        messages=MESSAGES,
    ),
    offers={"backbone": ("gcn", "gat", "sage", "maxpool", "gine", "pna")},
)
