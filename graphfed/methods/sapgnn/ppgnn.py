"""PPGNN: Zhou, Chen, Zheng, Wu, Wu, Zhang, Wu, Liu, Zheng, "Privacy-preserving graph neural network for node
classification", 2020 (arXiv:2005.11903), as the baseline of SAPGNN for clients with the same features and
different edges: every client has a network of its own on its own edges, and a server combines what these make
of each node.

    z_i^p = GNN_p(G_p, i)                       embed, at every client, with its own weights
    a_i^p = dropout(relu(z_i^p))                server_layer, at the server
    a_i = concat_p, mean_p or sum_p w_p * a_i^p   combine (* elementwise, w_p learned)
    h_i = W a_i + b                             server_layer
    logits_i = V h_i + c                        logits_of, at the clients (predictor=clients)

Everything is trained together, by gradients that cross the transfers backwards. A node should be at every
client (partitions edges_uniform, or label_skew with nodes=all): one that a client lacks counts as zeros in
concat and not at all in mean and weighted. A client that has a node without edges embeds it from its own
features.

What it shows. The server reads each client's embeddings and their gradients, which clients have a node of
the same name (`graphfed.methods.common.entity_alignment`), which are trained on and which of these have the
same label; with predictor=server the labels themselves. NamedCohort' networks never leave them. The predictor's
gradients are summed as in SAPGNN.

Differs from the paper: PPGNN is for clients with different features of the same nodes and starts from
embeddings under secret sharing; SAPGNN's authors compare with a version of theirs for common features, which
they do not describe. Ours is joint split learning, with concatenation unless asked."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass as config_dataclass
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.federation.route import Route, RouteTable
from graphfed.methods import config as groups
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common import entity_alignment
from graphfed.methods.common.entity_alignment import (
    AlignmentSettings,
    NamedCohort,
    align,
    common_seed,
    training_nodes,
)
from graphfed.methods.common.local_training import own_view, personal_weights
from graphfed.methods.common.memory import NUMBER, GraphExtent
from graphfed.methods.common.split_learning import (
    SplitSettings,
    Weights,
    copies,
    fresh,
    initial_predictor,
    loss_rows,
    loss_share,
    predict_rows,
    step,
    summed,
)
from graphfed.nn.batch import Batch, make_batch
from graphfed.nn.layers import Dropout
from graphfed.random import fold, glorot

__all__ = ["METHOD", "PpgnnConfig"]


@config_dataclass(frozen=True, config={"extra": "forbid"})
class PpgnnConfig(
    SplitSettings,
    AlignmentSettings,
    groups.ClassWeightSettings,
    groups.AttentionSettings,
    groups.BackboneSettings,
    groups.GraphSettings,
    groups.TrainingSettings,
    groups.CommonSettings,
):
    """The settings of PPGNN."""

    combine: Literal["concat", "mean", "weighted"] = Field(
        default="concat", description="how the server combines the clients' embeddings of a node"
    )


# ---- at the clients ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Embedder:
    """What a cohort of clients works out once: its `NamedCohort`, and the batch of all its rows."""

    clients: NamedCohort
    batch: Batch


def embedder(clients: NamedCohort, config: PpgnnConfig) -> Embedder:
    network = config.network
    view = network.seen(own_view(clients.cohort))
    make_block = network.blocks(view.ids, view.degree, config.heads, config.layers)
    rows = torch.arange(clients.cohort.num_rows, device=clients.names.device)
    return Embedder(clients, make_batch(view, rows, config.layers, make_block, per_client=True))


def initial_networks(here: Embedder, task: Task, config: PpgnnConfig) -> dict[str, Any]:
    """Every client starts from the same weights, whose last layer is `hidden` wide."""
    widths = [task.num_features, *[config.hidden] * config.layers]
    drawn = config.network.init(fold(common_seed(config), "weights"), widths, config.heads)
    device = here.clients.names.device
    shared: dict[str, Any] = {name: w.to(device) for name, w in drawn.items()}
    return personal_weights(shared, here.batch, config.network)


def initial_predictor_at(here: Embedder, task: Task, config: PpgnnConfig) -> Weights:
    drawn = initial_predictor(fold(common_seed(config), "ppgnn"), task, config.hidden, config)
    return {name: w.to(here.clients.names.device) for name, w in drawn.items()}


def embed(here: Embedder, networks: dict[str, Any], config: PpgnnConfig, key: int | None) -> Tensor:
    """z^p [N, H]: every row embedded by its client's own network. key: of the dropout, None for none."""
    dropout = None if key is None else Dropout(config.dropout, fold(key, "holders"))
    return config.network.forward(networks, here.batch, dropout)


def logits_of(here: Embedder, h: Tensor, predictor: Weights, target: str) -> Tensor:
    """Logits [n, C] of a target's rows; h [N, d]: of every row."""
    return predict_rows(h[here.clients.cohort.rows(target)], predictor)


def holders_of(here: Embedder) -> NamedCohort:
    return here.clients


def every_row(here: Embedder) -> Tensor:
    return torch.arange(here.clients.cohort.num_rows, device=here.clients.names.device)


# ---- at the server -----------------------------------------------------------------------------------------


def initial_server(device: str, clients: int, task: Task, config: PpgnnConfig) -> Weights:
    """server.weight [H or K * H, H or C] and .bias; combine.weight [K, H] where learned. All clients' rows
    start alike, so that their numbering does not matter."""
    key, width = fold(config.seed, "ppgnn"), config.hidden
    parts = clients if config.combine == "concat" else 1
    out = width if config.predictor == "clients" else task.num_classes
    drawn = glorot(fold(key, "server"), width, out, fan=(parts * width, out))
    weights = {"server.weight": drawn.repeat(parts, 1), "server.bias": torch.zeros(out)}
    if config.combine == "weighted":
        weights["combine.weight"] = torch.full((clients, width), 1 / clients)
    return {name: w.to(device) for name, w in weights.items()}


def combine(z: Tensor, table: RouteTable, server: Weights, clients: int, how: str) -> Tensor:
    """The embeddings [M, H] of all clients' rows as one for each node: [U, K * H] (concat) or [U, H]."""
    nodes, width = len(table.ids), z.shape[1]
    if how == "concat":
        slots = z.new_zeros(nodes * clients, width)
        return slots.index_copy(0, table.index * clients + table.client, z).view(nodes, clients * width)
    if how == "weighted":
        z = z * server["combine.weight"].index_select(0, table.client)
    total = z.new_zeros(nodes, width).index_add(0, table.index, z)
    if how == "mean":
        total = total / torch.bincount(table.index, minlength=nodes).to(z.dtype)[:, None]
    return total


def server_layer(
    z: Tensor, table: RouteTable, server: Weights, clients: int, config: PpgnnConfig, key: int | None
) -> Tensor:
    """h [U, H] of the embeddings z [M, H] (the logits with predictor=server)."""
    z = z.relu()
    if key is not None:  # by node and column: alike for all its clients
        z = Dropout(config.dropout, key).rows(z, table.ids[table.index], config.layers)
    h = combine(z, table, server, clients, config.combine)
    return h @ server["server.weight"] + server["server.bias"]


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """`Embedder` and `LossRows` at the clients, and the route of all their nodes."""

    here: Located
    loss: Located
    route: Route


def memory(extent: GraphExtent, config: PpgnnConfig) -> float:
    """The embeddings of all rows, at the clients and combined."""
    return 4 * NUMBER * extent.rows * 3 * config.hidden * config.layers


def setup(fed: Federation, data: Located, task: Task, config: PpgnnConfig) -> State:
    aligned = align(fed, data, task, config)
    fed.begin("preparing the layers")
    train = training_nodes(fed, aligned, None)
    here = fed.clients.run(embedder, aligned.clients, config)
    loss = fed.clients.run(loss_rows, aligned.clients, train.weight, fed.clients.run(every_row, here), None)
    networks = fed.clients.run(initial_networks, here, task, config)
    predictor = fed.clients.run(initial_predictor_at, here, task, config)
    server = fed.server.run(initial_server, str(fed.device), fed.num_clients, task, config)
    values = {
        "local": networks,
        "predictor": predictor,
        "global": server,
        "local_optimizer": fed.clients.run(fresh, networks, config),
        "predictor_optimizer": fed.clients.run(fresh, predictor, config),
        "global_optimizer": fed.server.run(fresh, server, config),
    }
    return State(values, Prepared(here, loss, aligned.route))


def forward(
    fed: Federation,
    prepared: Prepared,
    networks: Located,
    server: Located,
    config: PpgnnConfig,
    *,
    key: int | None,
    grad: bool,
) -> Located:
    """The combined embedding of every row, at its client."""
    z = fed.clients.run(embed, prepared.here, networks, config, key)
    z = fed.upload(z, prepared.route, name="ppgnn/local_embedding", grad=grad)
    table = fed.table(prepared.route)
    h = fed.server.run(server_layer, z, table, server, fed.num_clients, config, key)
    return fed.download(h, prepared.route, name="ppgnn/combined_embedding", grad=grad)


def round(fed: Federation, state: State, config: PpgnnConfig, number: int) -> State:
    prepared: Prepared = state.prepared
    values = dict(state.values)
    key = fold(config.seed, "dropout", number) if config.dropout else None
    clients = fed.clients.run(holders_of, prepared.here)
    with fed.tape():
        networks = fed.clients.run(as_leaves, values["local"])
        predictor = fed.clients.run(copies, values["predictor"], clients, config)
        server = fed.server.run(as_leaves, values["global"])
        h = forward(fed, prepared, networks, server, config, key=key, grad=True)
        fed.backward(fed.clients.run(loss_share, h, predictor, prepared.loss))
    gradients = {
        "local": fed.gradients(networks),
        "global": fed.gradients(server),
    }
    if config.predictor == "clients":
        gradients["predictor"] = summed(fed, fed.gradients(predictor), config, name="ppgnn/predictor")
    for name, gradient in gradients.items():
        place = fed.server if name == "global" else fed.clients
        values[name], values[f"{name}_optimizer"] = place.run(
            step, values[name], gradient, values[f"{name}_optimizer"], config, outputs=2
        )
    return replace(state, values=values)


def predict(fed: Federation, state: State, config: PpgnnConfig, target: str) -> Located:
    """All clients and the server together."""
    values, prepared = state.values, state.prepared
    h = forward(fed, prepared, values["local"], values["global"], config, key=None, grad=False)
    return fed.clients.run(logits_of, prepared.here, h, values["predictor"], target)


MESSAGES = {
    **{name: words for name, words in entity_alignment.MESSAGES.items() if name != "batches"},
    "ppgnn/local_embedding": "For every node a client has, what the client's own network makes of it and "
    "its neighbours there, each round. The server reads it.",
    "ppgnn/combined_embedding": "From the server: for each of a client's nodes an embedding out of those "
    "of all clients.",
    "ppgnn/combined_embedding/grad": "The gradient of the loss for each of those embeddings. The server "
    "reads it; it tells which nodes are trained on and, by what they have in common, which of these "
    "have the same label; with predictor=server the labels themselves.",
    "ppgnn/local_embedding/grad": "From the server: the gradient for each embedding that a client sent.",
    "ppgnn/predictor_gradient/shares": "Between clients: a random share of the gradient of a client's "
    "predictor. Any but all of a gradient's shares together say nothing of it.",
    "ppgnn/predictor_gradient/sums": "Between clients: the sum of the shares that a client has. All of them "
    "together are the sum of the gradients, which every client learns; with two clients that is the other's.",
    "ppgnn/predictor_gradient": "Only with aggregation=plaintext: the gradient of each client's predictor, "
    "which the server adds up. The server reads each one; it tells how many training labels of each class "
    "there are.",
    "ppgnn/predictor_gradient_sum": "Only with aggregation=plaintext, from the server: the sum of these "
    "gradients.",
}

METHOD = Method(
    name="ppgnn",
    summary="every client's own network on its own edges; a server combines their embeddings of each node",
    paper="Zhou et al.: Privacy-preserving graph neural network for node classification. 2020, "
    "arXiv:2005.11903; for common features as a baseline in SAPGNN (arXiv:2107.05917)",
    config=PpgnnConfig,
    setup=setup,
    round=round,
    predict=predict,
    memory=memory,
    requires=Requirements(
        nodes_per_client="at least one",
    ),
    state=StateValues(
        model=("local", "predictor", "global"),
        replicated=("predictor",),
    ),
    sends=Sent(
        summary="embeddings and their gradients, every round; shares of the predictor's gradients",
        protection="secret shares for gradients; embeddings in clear",
        messages=MESSAGES,
    ),
    defaults={"backbone": "maxpool"},
    paper_settings={"hidden": 64, "optimizer": "adam", "lr": 0.01, "rounds": 300},
)
