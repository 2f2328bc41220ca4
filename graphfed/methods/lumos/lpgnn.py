"""LPGNN: Sajadmanesh and Gatica-Perez, "Locally private graph neural networks", CCS 2021 (arXiv:2006.05535).

    paper               here
    multi-bit encoder   features (privacy.local.multi_bit), once, epsilon_x
    randomised response labels of training and validation nodes, once, epsilon_y
    KProp               propagate: K times D^{-1/2} A D^{-1/2}, no self loops; k_x times on features, k_y on
                        labels
    T                   privacy.local.response_matrix
    Drop                denoise: the loss below

    p(y | x) = softmax(net(KProp(x')))
    p(y' | x) = p(y | x) T                                   forward correction
    y~ = KProp(y'), zero for nodes that released none
    loss = -log softmax(KProp(p(y' | x)))[argmax y~], mean over the training nodes

What it shows. The server knows the whole graph: every node sends its neighbours in clear, whether it is a
training or a validation node too. Features are epsilon_x-private and labels epsilon_y-private, one node
against any other features or label, so a labelled node spends epsilon_x + epsilon_y in all. Everything is
sent once, in set-up; afterwards only predictions come back.

Differs from the paper. Rounds are selected by the accuracy on the validation nodes, summed over the
clients, as for every method here (the paper's rule is the lowest loss on noisy validation labels, guarded by
the best training accuracy that T allows): one rule for all rows of a table, and it makes this baseline no
weaker. A training node whose y~ is all zero keeps the label it released. The networks are those of
`nn.backbones` (ReLU or ELU, not SELU), and neither are features rescaled by the data's own extremes (bounds
are settings) nor classes left out. What KProp gives is divided by its standard deviation before it enters the
network (`standardise`; the paper's raw values are about d (high - low) wide). The default was chosen on
validation nodes of Facebook, on two seeds that no result is of: 88.1 and 87.1 % with GCN against 86.3 and
86.4, 84.6 and 86.8 % with GAT against 81.4 and 80.0."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor
from torch.nn.functional import cross_entropy, nll_loss, one_hot

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Requirements, Sent, State, Task
from graphfed.methods.common import released
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.common.released import (
    DEFAULTS,
    PAPER,
    FeatureBoundSettings,
    NoiseSettings,
    Prepared,
    Weights,
    by_node,
    check_graph,
    check_training,
    descend,
    node_route,
    noise_of,
    noised_labels,
    round_at_server,
    send_back,
)
from graphfed.nn.batch import Batch, View, make_batch
from graphfed.nn.bits import pack_bits, unpack_bits
from graphfed.nn.layers import Dropout
from graphfed.nn.optim import AdamState, init_state
from graphfed.nn.sparse import SparseMatrix, spmm, sums_by
from graphfed.privacy.local import (
    decode_one_bit,
    label_mechanism,
    multi_bit,
    multi_bit_count,
    multi_bit_mechanism,
    response_matrix,
)

__all__ = ["METHOD", "LpgnnConfig", "restore"]

#: Bits of the byte that says what a node is for.
TRAIN, VAL, WEIGHTED = 1, 2, 4


@config_dataclass(frozen=True, config={"extra": "forbid"})
class LpgnnConfig(
    FeatureBoundSettings,
    NoiseSettings,
    groups.LocalStepsSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of LPGNN."""

    backbone: Literal["gcn", "gat", "sage"] = Field(default="gcn", description="graph network")
    epsilon_x: float = Field(
        default=2.0, gt=0, allow_inf_nan=False, description="privacy budget of a node's features"
    )
    epsilon_y: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, description="privacy budget of a node's label"
    )
    k_x: int = Field(default=4, ge=0, description="KProp steps on features")
    k_y: int = Field(default=2, ge=0, description="KProp steps on labels")
    standardise: bool = Field(
        default=True,
        description="divide the propagated features by their standard deviation; else as in the paper",
    )
    denoise: bool = Field(
        default=True, description="correct for the noise of labels (Drop); else train on them as they are"
    )


# ---- at the clients ----------------------------------------------------------------------------------------


def index_type(width: int) -> torch.dtype:
    """The smallest type that numbers `width` coordinates."""
    return torch.int16 if width <= 1 << 15 else torch.int32


def noised_features(cohort: Cohort, config: LpgnnConfig) -> Tensor:
    """The m coordinates that each node sends (`index_type`) and after them their bits, packed, as bytes:
    [N, B] uint8."""
    assert cohort.x is not None
    bounds = config.feature_low, config.feature_high
    columns, bits = multi_bit(cohort.x, cohort.id, noise_of(config), "features", config.epsilon_x, *bounds)
    numbers = columns.to(index_type(cohort.num_features)).view(torch.uint8)
    return torch.cat([numbers, pack_bits(bits)], 1)


def roles(cohort: Cohort) -> Tensor:
    """What each node is for, and whether its edges have weights: [N] uint8."""
    weighted = 0 if cohort.edge_weight is None else WEIGHTED
    return (cohort.train * TRAIN + cohort.val * VAL + weighted).to(torch.uint8)


def _ends(cohort: Cohort) -> tuple[Tensor, Tensor]:
    """The row of each edge end, ascending, and the order that sorts inner and cut edges so."""
    row = torch.cat([cohort.edge_index[1], cohort.cross_row])
    order = torch.argsort(row, stable=True)
    return row[order], order


def degrees(cohort: Cohort) -> Tensor:
    """How many neighbours each node has, [N] int32."""
    return torch.bincount(_ends(cohort)[0], minlength=cohort.num_rows).int()


def neighbours(cohort: Cohort) -> RowIds:
    """The ids of every node's neighbours, node after node."""
    row, order = _ends(cohort)
    ids = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cross_id])
    return RowIds(ids[order], cohort.client[row])


def edge_weights(cohort: Cohort) -> Tensor:
    """The weight of the edge to each of these neighbours."""
    if cohort.edge_weight is None:  # a client without edges cannot tell
        return torch.ones(len(_ends(cohort)[0]), device=cohort.id.device)
    assert cohort.cross_weight is not None
    return torch.cat([cohort.edge_weight, cohort.cross_weight])[_ends(cohort)[1]]


# ---- at the server -----------------------------------------------------------------------------------------


def weighted_edges(roles: Tensor) -> dict[str, bool]:
    return {"weighted": bool((roles & WEIGHTED).any())}


def gathered(
    features: Tensor,
    labels: Tensor,
    roles: Tensor,
    degrees: Tensor,
    weights: Tensor | None,
    table: RouteTable,
    neighbours: RouteTable,
) -> dict[str, Tensor]:
    """What was released, in the order of the nodes' ids [U]; edges [2, E] int32 (source, destination) by
    place in that order, weights [E] where there are any. InputError for an edge to a node that nobody
    has."""
    row = torch.repeat_interleave(table.index, degrees.long())
    place = torch.searchsorted(table.ids, neighbours.ids).clamp(max=max(len(table.ids) - 1, 0))
    lost = (table.ids[place] != neighbours.ids).nonzero()[:, 0]
    if len(lost):
        raise InputError(
            f"node {int(neighbours.ids[lost[0]])} is named as a neighbour, but no client has it; leave "
            "its edges out, or add the client"
        )
    arrived = {"features": features, "labels": labels, "roles": roles}
    found = {name: by_node(x, table) for name, x in arrived.items()} | {"ids": table.ids}
    check_training(found["roles"] & TRAIN > 0)
    found["edges"] = torch.stack([place[neighbours.index], row]).int()
    return found if weights is None else {**found, "weights": weights}


@dataclass(frozen=True, eq=False)
class AtServer:
    """What the server works out once: the batch of all nodes, the propagation matrix [U, U], the training
    nodes [n] and the class each is trained on, T [C, C]."""

    batch: Batch
    propagation: SparseMatrix
    training: Tensor
    target: Tensor
    response: Tensor


def propagation_matrix(edges: Tensor, weight: Tensor | None, degree: Tensor) -> SparseMatrix:
    """D^{-1/2} A D^{-1/2} without self loops; rows of isolated nodes are empty."""
    n, (source, target) = len(degree), edges
    scale = torch.where(degree > 0, degree, 1).double().rsqrt()
    value = scale[source] * scale[target] * (1 if weight is None else weight)
    return SparseMatrix.from_coo(target, source, value.to(torch.get_default_dtype()), (n, n))


def propagate(matrix: SparseMatrix, x: Tensor, times: int) -> Tensor:
    """KProp: x [U, F] after `times` steps."""
    for _ in range(times):
        x = spmm(matrix, x)
    return x


def decoded(found: Mapping[str, Tensor], width: int, config: LpgnnConfig) -> Tensor:
    """The unbiased features x' of the multi-bit mechanism, [U, F]."""
    count, low, high = multi_bit_count(config.epsilon_x, width), config.feature_low, config.feature_high
    numbers = count * index_type(width).itemsize
    columns = found["features"][:, :numbers].contiguous().view(index_type(width)).long()
    bits = unpack_bits(found["features"][:, numbers:], count)
    told = decode_one_bit(bits, config.epsilon_x / count, low, high, width / count)
    x = torch.full((len(columns), width), (low + high) / 2, dtype=told.dtype, device=told.device)
    return x.scatter_(1, columns, told)


def at_server(found: dict[str, Tensor], task: Task, config: LpgnnConfig) -> AtServer:
    edges, weight, n = found["edges"].long(), found.get("weights"), len(found["ids"])
    degree = torch.bincount(edges[1], minlength=n) if weight is None else sums_by(edges[1], weight, n)
    matrix = propagation_matrix(edges, weight, degree)
    x = propagate(matrix, decoded(found, task.num_features, config), config.k_x)
    if config.standardise:
        spread = x.std(correction=0)
        x = x / torch.where(spread > 0, spread, 1)
    labels, here = found["labels"].long(), torch.arange(n, device=edges.device)
    view = View(
        x=x,
        ids=found["ids"],
        client=torch.zeros_like(here),
        num_clients=1,
        y=labels,
        degree=degree,
        edges=(edges,),
        edge_weight=None if weight is None else (weight,),
    )
    blocks = config.network.blocks(view.ids, degree, config.heads, config.layers)
    told = one_hot(labels.clamp(min=0), task.num_classes).to(x.dtype) * (labels >= 0)[:, None]
    target = labels
    if config.denoise:
        smooth = propagate(matrix, told, config.k_y)
        target = torch.where(smooth.any(1), smooth.argmax(1), labels)
    training = (found["roles"] & TRAIN > 0).nonzero()[:, 0]
    return AtServer(
        batch=make_batch(view, here, config.layers, blocks),
        propagation=matrix,
        training=training,
        target=target[training],
        response=response_matrix(config.epsilon_y, task.num_classes).to(x),
    )


def loss_of(here: AtServer, logits: Tensor, config: LpgnnConfig) -> Tensor:
    """logits [U, C] of all nodes."""
    if not config.denoise:
        return cross_entropy(logits[here.training], here.target)
    noisy = propagate(here.propagation, logits.softmax(1) @ here.response, config.k_y)
    return nll_loss(noisy[here.training].log_softmax(1), here.target)


def train(
    here: AtServer, weights: Weights, optimizer: AdamState, config: LpgnnConfig, number: int
) -> tuple[Weights, AdamState]:
    forward = config.network.forward

    def loss(leaves: Weights, dropout: Dropout | None) -> Tensor:
        return loss_of(here, forward({**leaves}, here.batch, dropout), config)

    return descend(weights, optimizer, config, number, loss)


def logits_of(here: AtServer, weights: Weights, config: LpgnnConfig) -> Tensor:
    with torch.no_grad():
        return config.network.forward({**weights}, here.batch, None)


# ---- the program over places -------------------------------------------------------------------------------


def release(fed: Federation, data: Located, route: Route, task: Task, config: LpgnnConfig) -> Located:
    """Everything that the clients send: once."""
    noise, run = noise_of(config), fed.clients.run
    features = fed.upload(
        run(noised_features, data, config),
        route,
        name="lpgnn/features",
        protection=noise.protection(multi_bit_mechanism(config.epsilon_x, task.num_features)),
        grad=False,
    )
    labels = fed.upload(
        run(noised_labels, data, ("train", "val"), config.epsilon_y, config),
        route,
        name="lpgnn/labels",
        protection=noise.protection(label_mechanism(config.epsilon_y, task.num_classes)),
        grad=False,
    )
    parts = fed.upload(run(roles, data), route, name="lpgnn/roles", grad=False)
    counts = fed.upload(run(degrees, data), route, name="lpgnn/degrees", grad=False)
    ends = fed.route(run(neighbours, data), name="lpgnn/neighbours")
    weights = None
    if fed.control(weighted_edges, parts)["weighted"]:
        weights = fed.upload(run(edge_weights, data), ends, name="lpgnn/edge_weights", grad=False)
    return fed.server.run(
        gathered, features, labels, parts, counts, weights, fed.table(route), fed.table(ends)
    )


def setup(fed: Federation, data: Located, task: Task, config: LpgnnConfig) -> State:
    fed.begin("adding noise to features and labels, and sending them")
    route = node_route(fed, data, task)
    found = release(fed, data, route, task, config)
    weights = fed.server.run(initial_weights, task, config, str(fed.device))
    values = {
        "weights": weights,
        "optimizer": fed.server.run(init_state, config.optimizer, weights),
        "released": found,
    }
    return State(values, Prepared(data, route, fed.server.run(at_server, found, task, config)))


def restore(
    fed: Federation, data: Located, task: Task, config: LpgnnConfig, values: Mapping[str, Located]
) -> State:
    """The state of a run that goes on: nothing is released again, only the nodes' ids cross."""
    route = node_route(fed, data, task)
    server = fed.server.run(at_server, values["released"], task, config)
    return State(values, Prepared(data, route, server))


def round(fed: Federation, state: State, config: LpgnnConfig, number: int) -> State:
    return round_at_server(fed, state, train, config, number)


def predict(fed: Federation, state: State, config: LpgnnConfig, target: str) -> Located:
    """The server predicts every node, and tells each client its own."""
    logits = fed.server.run(logits_of, state.prepared.server, state.weights, config)
    return send_back(fed, state.prepared, logits, target, name="lpgnn/predictions")


MESSAGES = {
    **released.MESSAGES,
    "lpgnn/features": "Of every node, once, a few features drawn at random and a noised bit of each: the "
    "multi-bit mechanism with epsilon_x. With a noise_seed the noise is simulated and the server could take "
    "it off.",
    "lpgnn/labels": "The class of every training and validation node, once, after randomised response with "
    "epsilon_y; with a noise_seed simulated.",
    "lpgnn/roles": "Which nodes are for training and which for validation, and whether their edges have "
    "weights. The server reads it.",
    "lpgnn/degrees": "How many neighbours each node has. The server reads it.",
    "lpgnn/neighbours": "The ids of each node's neighbours. The server reads them and so knows the whole "
    "graph: LPGNN does not hide edges.",
    "lpgnn/edge_weights": "Only of a graph with edge weights: the weight of each of these edges, in clear.",
    "lpgnn/predictions": "From the server: a score of every class for each of a client's nodes.",
}

METHOD = Method(
    name="lpgnn",
    summary="noised features and labels, sent once to a server that knows the graph and trains alone",
    paper="Sajadmanesh, Gatica-Perez: Locally private graph neural networks. CCS 2021, arXiv:2006.05535",
    config=LpgnnConfig,
    partition="ego",
    setup=setup,
    round=round,
    predict=predict,
    restore=restore,
    requires=Requirements(
        disjoint=True,
        check=check_graph,
        other=("features within feature_low .. feature_high",),
    ),
    sends=Sent(
        summary="noised features and labels and the edges, once; predictions back",
        protection="local differential privacy for features and labels; edges in clear",
        messages=MESSAGES,
    ),
    defaults=DEFAULTS,
    paper_settings=PAPER,
)
