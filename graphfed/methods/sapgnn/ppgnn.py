"""PPGNN: Zhou, Chen, Zheng, Wu, Wu, Zhang, Wu, Liu, Zheng, "Privacy-preserving graph neural network for node
classification", 2020 (arXiv:2005.11903), as the baseline of SAPGNN for clients with the same features and
different edges. Every client has its own network on its own edges; the server combines the clients'
embeddings of each node.

    z_i^p = GNN_p(G_p, i)                         embed, at every client, with its own weights
    r_i^p = dropout(relu(z_i^p))                  server_layer, at the server
    combine_p r_i^p: concat, mean or sum_p w_p * r_i^p   combine (* elementwise, w_p learned)
    h_i = W combine_p(r_i^p) + b                  server_layer
    logits_i = V h_i + c                          logits_of, at the clients (predictor=clients)

All weights are trained together; gradients pass the transfers backwards. A node should be at every client
(partition=edges_uniform, or label_skew with nodes=all). A client without the node counts as zeros in concat,
and does not count in mean and weighted. A client that has a node without edges embeds it from its features.

What the server learns: each client's embeddings and their gradients; which clients have a node with the same
name (`graphfed.methods.common.entity_alignment`); which nodes are trained on, and which of these have the
same label; with predictor=server the labels. A client's network is never sent. The predictor's gradients are
summed as in SAPGNN.

Differs from the paper: PPGNN is for clients with different features of the same nodes, and its embeddings are
computed from features under secret sharing. SAPGNN's authors compare with a version for common features that
they do not describe. Ours is joint split learning, with concatenation as the default
(docs/papers/sapgnn.md, difference 15).
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.federation.route import Route, RouteTable
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common import entity_alignment
from graphfed.methods.common.entity_alignment import (
    NamedCohort,
    NodeIds,
    align,
    all_rows,
    common_seed,
    training_nodes,
)
from graphfed.methods.common.local_training import (
    batch_of_all,
    fresh_state,
    own_view,
    personal_weights,
    stepped,
)
from graphfed.methods.common.sizes import GraphExtent, network_numbers, num_moments
from graphfed.methods.common.split_learning import (
    LocalSum,
    Predictor,
    Weights,
    copy_weights,
    initial_predictor,
    loss_rows,
    loss_share,
    predict_rows,
    sum_gradients,
)
from graphfed.methods.parts import Inputs, Loss, Network, Run, Selection, Training
from graphfed.methods.settings import Only, settings
from graphfed.nn.batch import Batch
from graphfed.nn.layers import Dropout
from graphfed.random import fold, glorot


@settings
class PpgnnConfig:
    """The settings of PPGNN."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    ids: NodeIds = NodeIds()
    predictor: Predictor = Predictor()
    aggregation: Annotated[LocalSum, Only("predictor", "clients")] = Field(
        default="additive",
        description="how gradients of the predictor are summed: by additive secret sharing among clients, or "
        "in plaintext at the server",
    )
    combine: Literal["concat", "mean", "weighted"] = Field(
        default="concat", description="how the server combines the clients' embeddings of a node"
    )


# ---- at the clients ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Embedder:
    """What a cohort's networks read: the cohort, and the batch of all its rows."""

    clients: NamedCohort
    batch: Batch


def make_embedder(clients: NamedCohort, network: Network) -> Embedder:
    """Make the batch of all rows of a cohort, each with its client's edges."""
    return Embedder(clients, batch_of_all(own_view(clients.cohort), network, per_client=True))


def initial_networks(here: Embedder, task: Task, config: PpgnnConfig) -> dict[str, Any]:
    """Draw the clients' networks. All clients start from the same weights; the last layer has H outputs."""
    # From the clients' key: the server must not know the networks that its embeddings come from.
    network, key = config.network, common_seed(config.ids, config.run.seed)
    widths = [task.num_features, *[network.hidden] * network.layers]
    drawn = network.kernel.init(fold(key, "weights"), widths, network.attention_heads)
    device = here.clients.names.device
    shared: dict[str, Any] = {name: w.to(device) for name, w in drawn.items()}
    return personal_weights(shared, here.batch, network.kernel)


def initial_predictor_at(here: Embedder, task: Task, config: PpgnnConfig) -> Weights:
    key = fold(common_seed(config.ids, config.run.seed), "ppgnn")
    drawn = initial_predictor(key, task, config.network.hidden, config.predictor)
    return {name: w.to(here.clients.names.device) for name, w in drawn.items()}


def embed(here: Embedder, networks: dict[str, Any], network: Network, key: int | None) -> Tensor:
    """Embed every row by its client's network, z^p [N, H]; key: of the dropout, None for no dropout."""
    dropout = None if key is None else Dropout(network.dropout, fold(key, "holders"))
    return network.kernel.forward(networks, here.batch, dropout)


def logits_of(here: Embedder, h: Tensor, predictor: Weights, target: str) -> Tensor:
    """Compute the logits of a target's rows, [n, C]; h [N, d]: the combined embeddings of all rows."""
    return predict_rows(h[here.clients.cohort.rows(target)], predictor)


def named_cohort(here: Embedder) -> NamedCohort:
    return here.clients


# ---- at the server -----------------------------------------------------------------------------------------


def initial_server(device: str, clients: int, task: Task, config: PpgnnConfig) -> Weights:
    """Draw the server's weights.

    server.weight is [K * H, H] for combine=concat, else [H, H]; with predictor=server the last width is C.
    server.bias has the same last width. combine.weight [K, H] is there for combine=weighted. The blocks of
    all clients start equal, so that the order of the clients does not matter.
    """
    key, width = fold(config.run.seed, "ppgnn"), config.network.hidden
    parts = clients if config.combine == "concat" else 1
    out = width if config.predictor.predictor == "clients" else task.num_classes
    drawn = glorot(fold(key, "server"), width, out, fan=(parts * width, out))
    # Glorot's bound is that of the whole matrix [K * H, H], of which one block is drawn and repeated.
    weights = {"server.weight": drawn.repeat(parts, 1), "server.bias": torch.zeros(out)}
    if config.combine == "weighted":
        # The mean over clients, from which training departs.
        weights["combine.weight"] = torch.full((clients, width), 1 / clients)
    return {name: w.to(device) for name, w in weights.items()}


def combine(z: Tensor, table: RouteTable, server: Weights, clients: int, how: str) -> Tensor:
    """Combine the embeddings of all clients' rows, [M, H], to one for each node, [U, K * H] or [U, H]."""
    nodes, width = len(table.ids), z.shape[1]
    if how == "concat":
        # A client without the node leaves zeros in its slot.
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
    """Compute h [U, H] from the embeddings z [M, H]; with predictor=server h are the logits [U, C]."""
    # r_i^p = dropout(relu(z_i^p))
    z = z.relu()
    if key is not None:  # drawn for a node and column: the same for all its clients
        z = Dropout(config.network.dropout, key).rows(z, table.ids[table.index], config.network.layers)
    h = combine(z, table, server, clients, config.combine)
    # h_i = W combine_p(r_i^p) + b
    return h @ server["server.weight"] + server["server.bias"]


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """What set-up computes and every round reads.

    Attributes:
        here: `Embedder`, at the clients.
        loss: `LossRows`, at the clients.
        route: The route of all the clients' nodes.
    """

    here: Located
    loss: Located
    route: Route


def checkpoint(extent: GraphExtent, config: PpgnnConfig) -> int:
    """Count the numbers of a checkpoint: every client's network and optimiser, of the latest and the best
    round.
    """
    network = network_numbers(
        config.network, extent.features, config.network.hidden, clients=extent.clients, pairs=extent.pairs
    )
    return 2 * (1 + num_moments(config.training.optimizer)) * network


def setup(fed: Federation, data: Located, task: Task, config: PpgnnConfig) -> State:
    """Align the nodes of all clients and draw the initial weights."""
    aligned = align(fed, data, task, config)
    fed.begin("preparing the layers")
    # One batch: all networks train together on all training nodes.
    train = training_nodes(fed, aligned, None)
    here = fed.clients.run(make_embedder, aligned.clients, config.network)
    every = fed.clients.run(all_rows, aligned.clients)
    loss = fed.clients.run(loss_rows, aligned.clients, train.weight, every, None)
    networks = fed.clients.run(initial_networks, here, task, config)
    predictor = fed.clients.run(initial_predictor_at, here, task, config)
    server = fed.server.run(initial_server, str(fed.device), fed.num_clients, task, config)
    values = {
        "local": networks,
        "predictor": predictor,
        "global": server,
        "local_optimizer": fed.clients.run(fresh_state, networks, config.training),
        "predictor_optimizer": fed.clients.run(fresh_state, predictor, config.training),
        "global_optimizer": fed.server.run(fresh_state, server, config.training),
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
    """Compute the combined embedding of every row, at its client."""
    z_local = fed.clients.run(embed, prepared.here, networks, config.network, key)
    z = fed.upload(z_local, prepared.route, name="ppgnn/local_embedding", grad=grad)
    table = fed.table(prepared.route)
    h = fed.server.run(server_layer, z, table, server, fed.num_clients, config, key)
    return fed.download(h, prepared.route, name="ppgnn/combined_embedding", grad=grad, like=z_local)


def round(fed: Federation, state: State, config: PpgnnConfig, round_number: int) -> State:
    """Take one step of all weights on all training nodes."""
    prepared: Prepared = state.prepared
    values = dict(state.values)
    key = fold(config.run.seed, "dropout", round_number) if config.network.dropout else None
    clients = fed.clients.run(named_cohort, prepared.here)
    with fed.tape():
        networks = fed.clients.run(as_leaves, values["local"])
        predictor = fed.clients.run(copy_weights, values["predictor"], clients, config.aggregation)
        server = fed.server.run(as_leaves, values["global"])
        h = forward(fed, prepared, networks, server, config, key=key, grad=True)
        fed.backward(fed.clients.run(loss_share, h, predictor, prepared.loss))
    # Each client's network has its own gradient; only the predictor is common and is summed.
    gradients = {
        "local": fed.gradients(networks),
        "global": fed.gradients(server),
    }
    if config.predictor.predictor == "clients":
        gradients["predictor"] = sum_gradients(
            fed, fed.gradients(predictor), config.aggregation, name="ppgnn/predictor"
        )
    for name, gradient in gradients.items():
        place = fed.server if name == "global" else fed.clients
        values[name], values[f"{name}_optimizer"] = place.run(
            stepped, values[name], gradient, values[f"{name}_optimizer"], config.training, outputs=2
        )
    return replace(state, values=values)


def predict(fed: Federation, state: State, config: PpgnnConfig, target: str) -> Located:
    """Compute the logits of a target's nodes. All clients and the server take part."""
    values, prepared = state.values, state.prepared
    h = forward(fed, prepared, values["local"], values["global"], config, key=None, grad=False)
    return fed.clients.run(logits_of, prepared.here, h, values["predictor"], target)


MESSAGES = {
    **{name: text for name, text in entity_alignment.MESSAGES.items() if name != "batches"},
    "ppgnn/local_embedding": "In every round, each client sends the server an embedding of each of its "
    "nodes, computed by its own network from the node and its neighbours at this client. The server reads "
    "it.",
    "ppgnn/combined_embedding": "The server sends each client, for each of its nodes, an embedding combined "
    "from those of all clients.",
    "ppgnn/combined_embedding/grad": "Each client sends the server the gradient of its loss for each of "
    "those embeddings. The server reads it. It shows which nodes are trained on and, by its direction, "
    "which of these have the same label; with predictor=server it shows the labels.",
    "ppgnn/local_embedding/grad": "The server sends each client the gradient for each embedding that the "
    "client uploaded.",
    "ppgnn/predictor_gradient/shares": "Each client sends every other client a random share of the gradient "
    "of its predictor. Fewer than all shares of a gradient say nothing about it.",
    "ppgnn/predictor_gradient/sums": "Each client sends every other client the sum of the shares that it "
    "has. All these sums together are the sum of the gradients, which every client learns. With two "
    "clients, each learns the other's gradient from it.",
    "ppgnn/predictor_gradient": "Only with aggregation=plaintext: each client sends the server the gradient "
    "of its predictor, and the server adds the gradients up. The server reads each client's; it shows how "
    "many training labels of each class the client has.",
    "ppgnn/predictor_gradient_sum": "Only with aggregation=plaintext: the server sends each client the sum "
    "of these gradients.",
}

METHOD = Method(
    name="ppgnn",
    summary="every client has its own network on its own edges; the server combines their embeddings",
    paper="Zhou et al.: Privacy-preserving graph neural network for node classification. 2020, "
    "arXiv:2005.11903; for common features as a baseline in SAPGNN (arXiv:2107.05917)",
    config=PpgnnConfig,
    setup=setup,
    round=round,
    predict=predict,
    checkpoint=checkpoint,
    requires=Requirements(
        nodes_per_client="at least one",
    ),
    state=StateValues(
        model=("local", "predictor", "global"),
        replicated=("predictor",),
    ),
    sends=Sent(
        summary="embeddings and their gradients, every round; shares of the predictor's gradients",
        protection="gradients by secret sharing; embeddings in plaintext",
        messages=MESSAGES,
    ),
    offers={"backbone": ("gcn", "gat", "sage", "maxpool")},
    defaults={"backbone": "maxpool"},
    paper_settings={"hidden": 64, "optimizer": "adam", "lr": 0.01, "rounds": 300},
)
