"""Central training: one participant has the pooled graph. It is the upper reference, which no federation has.

Node classification is isolated training with one client that has everything: the same steps, settings and
selection as the federated methods (100 rounds of 3 local steps are its 300 steps), and nothing is sent. In
link prediction the output of the network is an embedding h_u [hidden] of every node, and the score of a pair
is h_u . h_v.

    paper (Lumos, link prediction)       here
    h_u                                  output of the network
    L(h_u), Eq. (33) corrected           `link_prediction.link_loss`
    v'                                   `link_prediction.negatives`, drawn in every step

Differs from the paper: Kipf and Welling (2017) train the GCN with Adam on row-normalised features; here all
rows of a table share one preset. Lumos prints Eq. (33) with a wrong sign; here both parts are means.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import empty_state
from graphfed.methods.base import Method, Sent, State, Task
from graphfed.methods.baselines import isolated
from graphfed.methods.common.link_prediction import link_loss, negatives, pair_products
from graphfed.methods.common.local_training import (
    batch_of_all,
    descend,
    initial_weights,
    own_view,
    personal_weights,
)
from graphfed.methods.parts import GraphTraining, Network
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import Batch
from graphfed.nn.optim import AdamState
from graphfed.random import fold


@dataclass(frozen=True)
class Pooled:
    """The pooled graph, to predict links.

    Attributes:
        edges: [2, m] training edges, u < v, sorted.
        pairs: [2, L] rows of the pairs to score.
    """

    batch: Batch
    edges: Tensor
    pairs: Tensor


@dataclass(frozen=True)
class LinkState:
    """What set-up prepares to predict links, at the only client; `data` is its `Cohort`."""

    pooled: Located
    data: Located


# ---- functions run at the client ---------------------------------------------------------------------------


def pool(cohort: Cohort, network: Network) -> Pooled:
    """Prepare the only client's graph; its nodes are the rows 0..N-1 in the order of their ids."""
    assert cohort.links is not None
    batch = batch_of_all(own_view(cohort), network, per_client=True)
    # Each edge once and sorted, as `negatives` needs them.
    edges = cohort.edge_index[:, cohort.edge_index[0] < cohort.edge_index[1]]
    edges = edges[:, torch.argsort(edges[0] * cohort.num_rows + edges[1])]
    # The only client's rows are in the order of their ids.
    other = torch.searchsorted(cohort.id, cohort.links.id)
    return Pooled(batch, edges, torch.stack([cohort.links.row, other]))


def first_weights(pooled: Pooled, task: Task, config: GraphTraining, device: str) -> Weights:
    """Draw the first weights."""
    shared = initial_weights(task, config.network, config.run.seed, device)
    return personal_weights(shared, pooled.batch, config.network.kernel)


def loss_of(pooled: Pooled, key: int, h: Tensor, step: int) -> Tensor:
    """Compute the loss of link prediction of embeddings h [N, hidden]."""
    # Eq. (33), corrected; v' are drawn in every step.
    drawn = negatives(fold(key, step), pooled.edges, len(h), pooled.edges.shape[1])
    return link_loss(pair_products(h, pooled.edges), pair_products(h, drawn))


def train(
    pooled: Pooled, weights: Weights, optimizer: AdamState, config: GraphTraining, number: int
) -> tuple[Weights, AdamState]:
    """Take the steps of a round."""
    loss = partial(loss_of, pooled, fold(config.run.seed, "negatives", number))
    return descend(pooled.batch, weights, optimizer, config, number, loss)


def score(pooled: Pooled, cohort: Cohort, weights: Weights, network: Network, target: str) -> Tensor:
    """Score a target's pairs, h_u . h_v [n]."""
    with torch.no_grad():
        h = network.kernel.forward(weights, pooled.batch, None)
        return pair_products(h, pooled.pairs[:, cohort.pairs(target)])


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: GraphTraining) -> State:
    """Set up training on the pooled graph."""
    # The pooled graph is one client's subgraph, so classification is isolated training.
    if task.name != LINK_PREDICTION:
        return isolated.setup(fed, data, task, config)
    pooled = fed.clients.run(pool, data, config.network)
    weights = fed.clients.run(first_weights, pooled, task, config, str(fed.device))
    optimizer = fed.clients.run(empty_state)
    return State({"weights": weights, "optimizer": optimizer}, LinkState(pooled, data))


def round(fed: Federation, state: State, config: GraphTraining, number: int) -> State:
    """Run a round at the only client."""
    if not isinstance(state.prepared, LinkState):
        return isolated.round(fed, state, config, number)
    weights, optimizer = fed.clients.run(
        train, state.prepared.pooled, state.weights, state.values["optimizer"], config, number, outputs=2
    )
    return State({"weights": weights, "optimizer": optimizer}, state.prepared)


def predict(fed: Federation, state: State, config: GraphTraining, target: str) -> Located:
    """Predict at the only client: logits [n, C], or scores [n] of pairs."""
    if not isinstance(state.prepared, LinkState):
        return isolated.predict(fed, state, config, target)
    prepared = state.prepared
    return fed.clients.run(score, prepared.pooled, prepared.data, state.weights, config.network, target)


METHOD = Method(
    name="central",
    summary="one participant with the pooled graph; the upper reference for all federated methods",
    paper="no paper: the upper reference",
    config=isolated.AloneConfig,
    offers={"backbone": (*isolated.NETWORKS, *isolated.EDGE_NETWORKS)},
    tasks=(CLASSIFICATION, LINK_PREDICTION),
    setup=setup,
    round=round,
    predict=predict,
    pooled=True,
    sends=Sent(
        summary="all data, before training",
        protection="none: one participant has everything",
    ),
)
