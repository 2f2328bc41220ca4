"""Naive FedGNN: the baseline of Lumos (Pan, Zhu and Chu, "Lumos: heterogeneity-aware federated graph
learning over decentralized devices", ICDE 2023) that noises everything a device has and trains centrally on
it.

    features        x + N(0, sigma^2), sigma by the analytic calibration for sensitivity (high - low) sqrt(d)
    adjacency       every one of the N (N - 1) / 2 bits flipped with probability 1 / (1 + e^epsilon)
    labels          randomised response, of training nodes
    network         a GCN or GAT at the server on what came out, all edges alike

What it shows. Each of the three is epsilon-private (features with delta), once, in set-up: a training
node's features and label and one edge cost epsilon each, or a third each with `split_budget`. Not hidden:
which nodes are trained on. Features are not clipped: they are bounded by feature_low and feature_high. The
guarantee of the Gaussian mechanism is for real numbers (`graphfed.privacy.gaussian`).

The false edges are many (3.0e7 on Facebook at epsilon 2), so every network here is `nn.symmetric`, and before
it starts the method tells what that takes.

To predict links, the network's output is an embedding, the edges of the noised graph, most of them false, are
what it learns from, and each client gets the embeddings of the nodes whose pairs it scores.

Differs from the paper: it states no delta (here a setting, 1e-5), no split of the budget and no calibration.
Attention has no dropout."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Requirements, Sent, State, Task
from graphfed.methods.common import released
from graphfed.methods.common.link_prediction import link_loss, pair_products
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.common.memory import GraphExtent
from graphfed.methods.common.released import (
    DEFAULTS,
    PAPER,
    FeatureBoundSettings,
    NoiseSettings,
    Prepared,
    Weights,
    by_node,
    check_training,
    descend,
    node_route,
    noise_of,
    noised_labels,
    round_at_server,
    send_back,
)
from graphfed.methods.lumos import symmetric
from graphfed.methods.lumos.symmetric import SymmetricGraph, make_symmetric_graph
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.nn.layers import Dropout
from graphfed.nn.optim import AdamState, init_state
from graphfed.privacy.edges import edge_mechanism, expected_edges, flip_edges, pairs_of_bits
from graphfed.privacy.gaussian import gaussian, gaussian_mechanism, gaussian_sigma
from graphfed.privacy.local import label_mechanism
from graphfed.random import fold, uniform

__all__ = ["METHOD", "NaiveFedgnnConfig", "restore"]

NETWORKS = {"gcn": symmetric.gcn, "gat": symmetric.gat}
#: Seconds that a training step with its evaluation takes for a directed edge, measured with hidden 16 and 4
#: heads on two cores of a server; only for what is told beforehand.
SECONDS_PER_EDGE = {"gcn": 2e-8, "gat": 5e-7}


@config_dataclass(frozen=True, config={"extra": "forbid"})
class NaiveFedgnnConfig(
    FeatureBoundSettings,
    NoiseSettings,
    groups.LocalStepsSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of naive FedGNN."""

    backbone: Literal["gcn", "gat"] = Field(default="gcn", description="graph network")
    epsilon: float = Field(
        default=2.0,
        gt=0,
        allow_inf_nan=False,
        description="privacy budget of each of features, edges and labels",
    )
    split_budget: bool = Field(
        default=False, description="a third of epsilon for each of the three, so that all cost epsilon"
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="delta of the Gaussian mechanism on features")


#: Edges, and pairs beside them, that an epoch of link prediction learns from.
PAIRS = 1 << 18

NO_WEIGHTS = (
    "naive_fedgnn hides whether there is an edge, and has no way to hide its weight; leave the edge weights "
    "out, or choose another method"
)


def check_graph(graph: Graph, config: NaiveFedgnnConfig) -> None:
    """InputError for a graph with edge weights, and one with a feature outside its bounds."""
    if graph.edge_weight is not None:
        raise InputError(NO_WEIGHTS)
    released.check_graph(graph, config)


def epsilon_of(config: NaiveFedgnnConfig) -> float:
    """Of each of the three."""
    return config.epsilon / 3 if config.split_budget else config.epsilon


# ---- at the clients ----------------------------------------------------------------------------------------


def noised_features(cohort: Cohort, config: NaiveFedgnnConfig) -> Tensor:
    """[N, F] floats."""
    assert cohort.x is not None
    if cohort.edge_weight is not None:
        raise InputError(NO_WEIGHTS)
    width, low, high = cohort.num_features, config.feature_low, config.feature_high
    mechanism = gaussian_mechanism(epsilon_of(config), config.delta, width, low, high)
    assert mechanism.sensitivity is not None
    sigma = gaussian_sigma(mechanism.epsilon, mechanism.delta, mechanism.sensitivity)
    return gaussian(cohort.x, cohort.id, noise_of(config), "features", sigma, low, high)


def noised_edges(cohort: Cohort, num_nodes: int, config: NaiveFedgnnConfig) -> Tensor:
    """The flipped bits that each node answers for, packed (`privacy.edges`)."""
    row = torch.cat([cohort.edge_index[1], cohort.cross_row])
    neighbour = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cross_id])
    noise, epsilon = noise_of(config), epsilon_of(config)
    return flip_edges(cohort.id, row, neighbour, num_nodes, noise, "edges", epsilon)


# ---- at the server -----------------------------------------------------------------------------------------


def count_nodes(table: RouteTable) -> dict[str, int]:
    """InputError where the nodes are not numbered from 0 on."""
    n = len(table.ids)
    if n and int(table.ids[-1]) != n - 1:
        raise InputError(
            f"naive_fedgnn needs nodes numbered 0..{n - 1}, since every device tells of every other one; "
            f"there is a node {int(table.ids[-1])}"
        )
    return {"nodes": n}


def gathered(features: Tensor, edges: Tensor, table: RouteTable) -> dict[str, Tensor]:
    """What was released, in the order of the nodes' ids [U]."""
    arrived = {"features": features, "edges": edges}
    return {name: by_node(x, table) for name, x in arrived.items()} | {"ids": table.ids}


def with_labels(found: dict[str, Tensor], labels: Tensor, table: RouteTable) -> dict[str, Tensor]:
    in_order = by_node(labels, table)
    check_training(in_order >= 0)
    return found | {"labels": in_order}


@dataclass(frozen=True, eq=False)
class AtServer:
    """What the server works out once: features [U, F], the graph, and to classify the training nodes [n]
    and their classes, else None."""

    x: Tensor
    graph: SymmetricGraph
    training: Tensor | None
    target: Tensor | None


def at_server(found: dict[str, Tensor]) -> AtServer:
    ids, x = found["ids"], found["features"]
    graph = make_symmetric_graph(*pairs_of_bits(found["edges"], ids, len(ids)), ids, x.dtype)
    if "labels" not in found:
        return AtServer(x, graph, None, None)
    labels = found["labels"].long()
    training = (labels >= 0).nonzero()[:, 0]
    return AtServer(x, graph, training, labels[training])


def draw_pairs(graph: SymmetricGraph, key: int) -> tuple[Tensor, Tensor]:
    """PAIRS edges of the noised graph, or as many as there are, and as many pairs of different nodes,
    uniformly with repetition: [2, p] and [2, q]. A pair of the second kind may be an edge too."""
    n, entries = len(graph.ids), len(graph.indices)
    draws = uniform(key, torch.arange(min(PAIRS, entries), device=graph.ids.device), 3)
    entry = (draws[:, 0] * entries).long().clamp(max=entries - 1)
    row = torch.searchsorted(graph.indptr, entry, right=True) - 1
    edges = torch.stack([row, graph.indices[entry].long()])
    others = (draws[:, 1:] * n).long().clamp(max=n - 1).t()
    return edges[:, edges[0] != edges[1]], others[:, others[0] != others[1]]


def rows_asked(h: Tensor, found: dict[str, Tensor], table: RouteTable) -> Tensor:
    """The rows of h [U, H] that a route names, in its table's order."""
    return h.index_select(0, torch.searchsorted(found["ids"], table.ids))


def embed(here: AtServer, weights: Weights, config: NaiveFedgnnConfig, dropout: Dropout | None) -> Tensor:
    """What the last layer gives for every node, [U, H]; of width C it is the logits."""
    return NETWORKS[config.backbone](weights, here.graph, here.x, dropout)


def train(
    here: AtServer, weights: Weights, optimizer: AdamState, config: NaiveFedgnnConfig, number: int
) -> tuple[Weights, AdamState]:
    def loss(leaves: Weights, dropout: Dropout | None) -> Tensor:
        h = embed(here, leaves, config, dropout)
        if here.training is None or here.target is None:
            edges, others = draw_pairs(here.graph, fold(config.seed, "pairs", number))
            return link_loss(pair_products(h, edges), pair_products(h, others))
        return cross_entropy(h[here.training], here.target)

    return descend(weights, optimizer, config, number, loss)


def logits_of(here: AtServer, weights: Weights, config: NaiveFedgnnConfig) -> Tensor:
    with torch.no_grad():
        return embed(here, weights, config, None)


# ---- the program over places -------------------------------------------------------------------------------


def release(fed: Federation, data: Located, route: Route, task: Task, config: NaiveFedgnnConfig) -> Located:
    """Everything that the clients send: once."""
    n = fed.control(count_nodes, fed.table(route))["nodes"]
    fed.log(foretold(n, task.num_features, config))
    noise, epsilon = noise_of(config), epsilon_of(config)
    bounds = config.feature_low, config.feature_high
    features = fed.upload(
        fed.clients.run(noised_features, data, config),
        route,
        name="naive_fedgnn/features",
        protection=noise.protection(gaussian_mechanism(epsilon, config.delta, task.num_features, *bounds)),
        grad=False,
    )
    edges = fed.upload(
        fed.clients.run(noised_edges, data, n, config),
        route,
        name="naive_fedgnn/edges",
        protection=noise.protection(edge_mechanism(epsilon)),
        grad=False,
    )
    found = fed.server.run(gathered, features, edges, fed.table(route))
    if task.name != CLASSIFICATION:
        return found
    labels = fed.upload(
        fed.clients.run(noised_labels, data, ("train",), epsilon, config),
        route,
        name="naive_fedgnn/labels",
        protection=noise.protection(label_mechanism(epsilon, task.num_classes)),
        grad=False,
    )
    return fed.server.run(with_labels, found, labels, fed.table(route))


def memory_of(num_nodes: int, width: int, config: NaiveFedgnnConfig) -> float:
    """Bytes of the false edges and the features at the server."""
    false = expected_edges(num_nodes, 0, epsilon_of(config))
    scalar = torch.finfo(torch.get_default_dtype()).bits // 8
    # Directed edges: while the CSR is made 29 bytes each; features twice, noised and in place.
    return max(2 * false * 29, 2 * false * (4 + scalar)) + 2 * num_nodes * width * scalar


def memory(extent: GraphExtent, config: NaiveFedgnnConfig) -> float:
    """What the server has, and what training keeps for each of its edges."""
    false = expected_edges(extent.rows, 0, epsilon_of(config))
    return memory_of(extent.rows, extent.features, config) + 2 * false * 30


def foretold(num_nodes: int, width: int, config: NaiveFedgnnConfig) -> str:
    """How many edges there will be, and what they take."""
    false = expected_edges(num_nodes, 0, epsilon_of(config))
    memory = memory_of(num_nodes, width, config)
    seconds = 2 * false * SECONDS_PER_EDGE[config.backbone]
    return (
        f"flipping the bits of {num_nodes} nodes makes about {false:.2g} false edges: about "
        f"{memory / 2**30:.1f} GiB at the server and, on two cores, {seconds:.2g} s an epoch for the edges"
    )


def setup(fed: Federation, data: Located, task: Task, config: NaiveFedgnnConfig) -> State:
    route = node_route(fed, data, task)
    found = release(fed, data, route, task, config)
    weights = fed.server.run(initial_weights, task, config, str(fed.device))
    values = {
        "weights": weights,
        "optimizer": fed.server.run(init_state, config.optimizer, weights),
        "released": found,
    }
    return prepared(fed, data, task, route, values)


def restore(
    fed: Federation, data: Located, task: Task, config: NaiveFedgnnConfig, values: Mapping[str, Located]
) -> State:
    """The state of a run that goes on: nothing is released again, only the nodes' ids cross."""
    return prepared(fed, data, task, node_route(fed, data, task), values)


def prepared(
    fed: Federation, data: Located, task: Task, route: Route, values: Mapping[str, Located]
) -> State:
    """The state of what was released: with what the server works out of it, and the routes of scored
    pairs."""
    here = fed.server.run(at_server, values["released"])
    if task.name == CLASSIFICATION:
        return State(values, Prepared(data, route, here))
    pairs = {}
    for target in ("val", "test", "all"):
        ends = fed.clients.run(ends_of_pairs, data, target)
        pairs[target] = fed.route(ends, name="naive_fedgnn/scored_pairs")
    return State(values, Linked(data, route, here, pairs))


@dataclass(frozen=True)
class Linked(Prepared):
    """pairs: the routes of both ends of the pairs that clients score, by target."""

    pairs: Mapping[str, Route]


def ends_of_pairs(cohort: Cohort, target: str) -> RowIds:
    """Both ends of each pair, one after the other."""
    assert cohort.links is not None
    which = cohort.pairs(target)
    row = cohort.links.row[which]
    ids = torch.stack([cohort.id[row], cohort.links.id[which]], 1).flatten()
    return RowIds(ids, cohort.client[row].repeat_interleave(2))


def products(ends: Tensor) -> Tensor:
    """h_u . h_v [n] of rows [2 n, H], the two ends of each pair one after the other."""
    return (ends[::2] * ends[1::2]).sum(1)


def round(fed: Federation, state: State, config: NaiveFedgnnConfig, number: int) -> State:
    return round_at_server(fed, state, train, config, number)


def predict(fed: Federation, state: State, config: NaiveFedgnnConfig, target: str) -> Located:
    """The server predicts every node, and tells each client its own; or each the embeddings of the pairs
    that it scores."""
    logits = fed.server.run(logits_of, state.prepared.server, state.weights, config)
    if isinstance(state.prepared, Linked):
        route = state.prepared.pairs[target]
        rows = fed.server.run(rows_asked, logits, state.values["released"], fed.table(route))
        ends = fed.download(rows, route, name="naive_fedgnn/embeddings", grad=False)
        return fed.clients.run(products, ends)
    return send_back(fed, state.prepared, logits, target, name="naive_fedgnn/predictions")


MESSAGES = {
    **released.MESSAGES,
    "naive_fedgnn/features": "All features of every node, once, with Gaussian noise. With a noise_seed the "
    "noise is simulated and the server could take it off.",
    "naive_fedgnn/edges": "For half of all other nodes, once, whether a node is connected to it, every "
    "answer flipped with probability 1 / (1 + e^epsilon); with a noise_seed simulated.",
    "naive_fedgnn/labels": "The class of every training node, once, after randomised response; with a "
    "noise_seed simulated. The server learns which nodes are trained on.",
    "naive_fedgnn/scored_pairs": "Only to predict links, once for each part: the ids of both nodes of "
    "every pair that a client scores. The server learns which pairs those are, and not which are edges.",
    "naive_fedgnn/embeddings": "Only to predict links, from the server: the embeddings of those nodes.",
    "naive_fedgnn/predictions": "From the server: a score of every class for each of a client's nodes.",
}

METHOD = Method(
    name="naive_fedgnn",
    summary="noised features, edges and labels, sent once; a server trains centrally on them",
    paper="the baseline of Pan, Zhu, Chu: Lumos: heterogeneity-aware federated graph learning over "
    "decentralized devices. ICDE 2023",
    config=NaiveFedgnnConfig,
    tasks=(CLASSIFICATION, LINK_PREDICTION),
    partition="ego",
    setup=setup,
    round=round,
    predict=predict,
    restore=restore,
    memory=memory,
    requires=Requirements(
        disjoint=True,
        numbered=True,
        check=check_graph,
        other=(
            "features within feature_low .. feature_high",
            "edges without weights",
        ),
    ),
    sends=Sent(
        summary="noised features, edges and labels, once; predictions back",
        protection="local differential privacy for features, edges and labels",
        messages=MESSAGES,
    ),
    defaults=DEFAULTS,
    paper_settings=PAPER,
)
