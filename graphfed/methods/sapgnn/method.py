"""SAPGNN: Shan, Jiao and Fu, "Towards representation identical privacy-preserving graph neural network via
split learning", 2021 (arXiv:2107.05917). Clients whose graphs may overlap in nodes and edges train one
network whose layers pool by maximum over the edges of all clients. The embeddings are those of the combined
graph.

    paper                              here
    m_ij = M_l(h_i, h_j)         (4)   h_j W_message
    a_i^p = max_j m_ij           (5)   neighbour_max, over the client's edges
    z_i^p = U^loc(h_i, a_i^p)    (6)   UPDATES[update], of h_i W_self and a_i^p; -inf without neighbours
    z_i = max_p z_i^p            (7)   protected_max
    h_i' = U^glob(z_i)           (8)   global_embedding: linear map, normalisation, ReLU, dropout; at the
                                       server
    w_M, w_U, predictor                State.values["local"], the same at every client
    w_G                                State.values["global"], at the server only
    L_p                         (15)   loss_share: mean over all training nodes, each counted once
    gradients of w_M, w_U (20)-(22)    summed over clients by secret sharing; every client takes the same step

The layers are in `layers.py`. One round is one pass over the training nodes. With one batch (the default)
every node passes every layer once. An edge between two clients is known to neither of them and is not used:
partition the edges (partition=edges_uniform), or let clients have nodes in common.

What each participant learns (docs/papers/sapgnn.md has the table and the attacks):

- The server reads which clients have a node with the same name, the local embeddings, which nodes are trained
  on, and which of these have the same label. It receives no features, edges, labels or local weights.
- A client learns the sum of the gradients. With two clients it learns the other client's gradient.
- Settings that show more: maps=identity shows the server the features, aggregation=plaintext every client's
  gradients, from which it computes features, predictor=server the training labels, node_ids=plain the ids of
  nodes, and batch_size which nodes are neighbours of a batch's nodes.
- With pooling=secure the server reads the maxima over clients and not each client's embeddings. The first
  client, the helper, receives shares of the embeddings; server and helper must not collude
  (`graphfed.crypto.maximum`). A node's own part is the same at all its clients, so the server reads it.
- protocols=simulated counts the cost of the secure protocols and hides nothing.

Differs from the paper (docs/papers/sapgnn.md gives the reasons, by these numbers): the admissible updates are
the exact family (1); linear maps before upload (2); clients' losses weigh n_p / n (3); rules for equal maxima
(4) and nodes without neighbours (5); dropout and normalisation at the server (6); the predictor's gradients
are summed (7); gradients in fixed point (8); no boolean shares (9); keyed hashes of ids (10); secure pooling
by oblivious transfer (13); mini-batches (14).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphfed.federation import Federation, Located, TensorForm
from graphfed.federation.functions import as_leaves
from graphfed.federation.route import Route
from graphfed.federation.secure.maximum import (
    HelperSession,
    MaximumRoute,
    open_maximum,
    plan_maximum,
    protected_max,
)
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common import entity_alignment
from graphfed.methods.common.entity_alignment import (
    Alignment,
    NamedCohort,
    align,
    all_rows,
    training_nodes,
)
from graphfed.methods.common.local_training import fresh_state, stepped
from graphfed.methods.common.split_learning import (
    Weights,
    copy_weights,
    loss_rows,
    loss_share,
    sum_gradients,
)
from graphfed.methods.sapgnn.config import LayerForm, SapgnnConfig, has_local_weights
from graphfed.methods.sapgnn.layers import (
    entering,
    first_embedding,
    global_embedding,
    initial_global,
    initial_local,
    local_embedding,
    logits_of,
    mark_needed,
    needed_rows,
    neighbour_features,
    own_features,
    pass_rows,
    rows_at,
    rows_with_edges,
)
from graphfed.random import fold

# ---- the program over places: set-up -----------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """How some nodes pass the layers.

    Attributes:
        rows: `PassRows`, at the clients.
        routes: For each layer, the route of its output and the plan of its maxima (`plan_maximum`).
        first: The first layer's z, at the server, if it is the same in every round; else None.
    """

    rows: Located
    routes: tuple[tuple[Route, MaximumRoute], ...]
    first: Located | None


@dataclass(frozen=True)
class Prepared:
    """What set-up computes and every round reads.

    Attributes:
        clients: `NamedCohort`, at the clients.
        batches: The passes of a round, each with its `LossRows` at the clients.
    """

    clients: Located
    whole: Pass
    batches: tuple[tuple[Pass, Located], ...]


def setup(fed: Federation, data: Located, task: Task, config: SapgnnConfig) -> State:
    """Align the nodes of all clients, plan the passes and draw the initial weights."""
    aligned = align(fed, data, task, config)
    clients = aligned.clients
    fed.begin("preparing the layers")
    everything = fed.clients.run(all_rows, clients)
    rows = fed.clients.run(pass_rows, clients, config, *[everything] * config.network.layers)
    # One session of server and helper for all layers and batches.
    helped = open_maximum(fed, config.pooling, name="sapgnn/pooling")
    planned = plan_maximum(fed, aligned.route, helped)
    once = config.form.sends_features
    first = features_once(fed, aligned, rows, helped, planned, config.form) if once else None
    # Every node passes every layer, so all layers have one route.
    whole = Pass(rows, ((aligned.route, planned),) * config.network.layers, first)
    local = fed.clients.run(initial_local_at, clients, task, config)
    global_ = fed.server.run(initial_global, str(fed.device), task, config)
    values = {
        "local": local,
        "global": global_,
        "local_optimizer": fed.clients.run(fresh_state, local, config.training),
        "global_optimizer": fed.server.run(fresh_state, global_, config.training),
    }
    # Batches are planned once: each has the same nodes in every round, and nothing is named again.
    batches = make_batches(fed, aligned, helped, whole, everything, config)
    return State(values, Prepared(clients, whole, batches))


def initial_local_at(clients: NamedCohort, task: Task, config: SapgnnConfig) -> Weights:
    return initial_local(str(clients.names.device), task, config)


def features_once(
    fed: Federation,
    aligned: Alignment,
    rows: Located,
    helped: HelperSession | None,
    planned: MaximumRoute,
    form: LayerForm,
) -> Located:
    """Send the features and their maxima over neighbours once (the paper's identity messages).

    These uploads are the same in every round, so the server computes the first layer's z here and keeps it.
    """
    features = fed.clients.run(own_features, rows, form)
    features = protected_max(fed, features, planned, name="sapgnn/features", grad=False)
    with_edges = fed.clients.run(rows_with_edges, aligned.clients)
    # A node without an edge at a client would upload -inf; it is left out instead.
    edge_route = aligned.route_of(fed, with_edges, name="sapgnn/ids_with_edges")
    maxima = fed.clients.run(neighbour_features, aligned.clients, rows, with_edges, form)
    edge_plan = plan_maximum(fed, edge_route, helped)
    maxima = protected_max(fed, maxima, edge_plan, name="sapgnn/neighbour_features", grad=False)
    tables = fed.table(aligned.route), fed.table(edge_route)
    return fed.server.run(first_embedding, features, maxima, *tables, form.update)


def make_batches(
    fed: Federation,
    aligned: Alignment,
    helped: HelperSession | None,
    whole: Pass,
    everything: Located,
    config: SapgnnConfig,
) -> tuple[tuple[Pass, Located], ...]:
    """Plan the passes of a round, one for each batch.

    The rows of a batch are found from the last layer to the first. For each layer clients name the nodes that
    they need, and the server tells every client which of its nodes some client needs.
    """
    train, clients = training_nodes(fed, aligned, config.batch_size), aligned.clients
    if train.batch is None:
        return ((whole, fed.clients.run(loss_rows, clients, train.weight, everything, None)),)
    every, passes = fed.table(aligned.route), []
    # From the last layer back: what a layer needs is what the one before must compute.
    for number in range(train.batches):
        chosen = fed.clients.run(is_in_batch, train.batch, number)
        needs = fed.clients.run(chosen_rows, clients, chosen)
        outputs: list[Located] = []
        routes: list[Route] = []
        for _ in range(config.network.layers):
            # A maximum over clients needs every client that has the node, not only those that asked for it.
            needed = aligned.route_of(fed, needs, name="sapgnn/batch_needs")
            flags = fed.server.run(mark_needed, every, fed.table(needed))
            flags = fed.download(
                flags, aligned.route, name="sapgnn/batch_members", grad=False, like=TensorForm(torch.uint8)
            )
            outputs.insert(0, fed.clients.run(flagged_rows, flags))
            routes.insert(0, aligned.route_of(fed, outputs[0], name="sapgnn/batch_ids"))
            needs = fed.clients.run(needed_rows, clients, outputs[0])
        rows = fed.clients.run(pass_rows, clients, config, *outputs)
        first = whole.first
        if first is not None:
            first = fed.server.run(rows_at, first, every, fed.table(routes[0]))
        loss = fed.clients.run(loss_rows, clients, train.weight, outputs[-1], chosen)
        planned = tuple((route, plan_maximum(fed, route, helped)) for route in routes)
        passes.append((Pass(rows, planned, first), loss))
    return tuple(passes)


def is_in_batch(numbers: Tensor, number: int) -> Tensor:
    return numbers == number


def chosen_rows(clients: NamedCohort, chosen: Tensor) -> Tensor:
    return clients.cohort.rows("train")[chosen]


def flagged_rows(flags: Tensor) -> Tensor:
    return flags.nonzero()[:, 0]


# ---- the program over places: rounds -----------------------------------------------------------------------


def forward(
    fed: Federation,
    part: Pass,
    local: Located,
    global_: Located,
    config: SapgnnConfig,
    *,
    key: int | None,
    grad: bool,
) -> Located:
    """Run Algorithm 1 for some nodes; return the last layer's embeddings, [n, d] at their clients."""
    h = fed.clients.run(entering, part.rows)
    form = TensorForm(torch.get_default_dtype(), (config.network.hidden,))
    for layer, (route, planned) in enumerate(part.routes):  # Alg. 1, l. 1
        if layer == 0 and part.first is not None:
            z = part.first
        else:
            z = fed.clients.run(local_embedding, h, part.rows, local, layer, config.form)  # Alg. 1, l. 3
            z = protected_max(fed, z, planned, name="sapgnn/local_embedding", grad=grad)  # Eq. (7)
        # Alg. 1, l. 5
        h = fed.server.run(global_embedding, z, fed.table(route), global_, layer, config, key)
        h = fed.download(h, route, name="sapgnn/global_embedding", grad=grad, like=form)
    assert isinstance(h, Located)
    return h


def round(fed: Federation, state: State, config: SapgnnConfig, round_number: int) -> State:
    """Train on every batch of training nodes once (Algorithms 1 and 2)."""
    prepared: Prepared = state.prepared
    aggregation = config.gradient_sums.aggregation
    for batch, (part, loss) in enumerate(prepared.batches):
        # A key for each batch, so that no two passes of a round drop the same entries.
        key = fold(config.run.seed, "dropout", round_number, batch) if config.network.dropout else None
        with fed.tape():
            local = fed.clients.run(copy_weights, state.values["local"], prepared.clients, aggregation)
            global_ = fed.server.run(as_leaves, state.values["global"])
            h = forward(fed, part, local, global_, config, key=key, grad=True)
            # Alg. 1, l. 7 and Alg. 2, l. 1 to 11, Eq. (16) to Eq. (20)
            fed.backward(fed.clients.run(loss_share, h, local, loss))
        state = replace(state, values=updated(fed, state, local, global_, config))
    return state


def updated(
    fed: Federation, state: State, local: Located, global_: Located, config: SapgnnConfig
) -> dict[str, Located]:
    """Return the values after the optimiser's step that follows `fed.backward`.

    The local weights stay the same at every client, to the last bit.
    """
    # All clients add the same sum to the same weights, so the copies never differ.
    values = dict(state.values)
    if has_local_weights(config):
        # Alg. 2, l. 12 to 17, Eq. (21) and Eq. (22)
        protection = config.gradient_sums.aggregation
        gradient = sum_gradients(fed, fed.gradients(local), protection, name="sapgnn/local")
        values["local"], values["local_optimizer"] = fed.clients.run(
            stepped, values["local"], gradient, values["local_optimizer"], config.training, outputs=2
        )
    # Alg. 2, l. 18
    values["global"], values["global_optimizer"] = fed.server.run(
        stepped,
        values["global"],
        fed.gradients(global_),
        values["global_optimizer"],
        config.training,
        outputs=2,
    )
    return values


def predict(fed: Federation, state: State, config: SapgnnConfig, target: str) -> Located:
    """Compute the logits of a target's nodes. All clients and the server take part."""
    values, prepared = state.values, state.prepared
    h = forward(fed, prepared.whole, values["local"], values["global"], config, key=None, grad=False)
    return fed.clients.run(logits_of, prepared.clients, h, values["local"], target)


#: Transfers of the secure maximum. In a simulated one the server's shares are the numbers themselves.
POOLING_MESSAGES = {
    "sapgnn/pooling/session": "Only with pooling=secure, once: the server and its helper, the first client, "
    "exchange public keys. Neither learns anything from them.",
    "sapgnn/pooling/plan": "Only with pooling=secure: the server sends its helper, the first client, which "
    "rows of the clients belong to one node, by their numbers. The helper learns which clients have nodes in "
    "common, and not which nodes.",
    **{
        f"sapgnn/{name}/{transfer}": description.format(content)
        for name, content in {
            "features": "the features of its nodes, with maps=identity",
            "neighbour_features": "the maxima over its nodes' neighbours, with maps=identity",
            "local_embedding": "the local embeddings of its nodes, in every layer",
        }.items()
        for transfer, description in {
            "server_shares": "Only with pooling=secure: each client sends the server a random share of {}. "
            "The server learns nothing from it without the helper's share; with protocols=simulated it is "
            "the numbers themselves.",
            "helper_shares": "Only with pooling=secure: each client sends the helper, the first client, the "
            "other share of {}. The helper learns nothing from it without the server's share.",
            "protocol": "Only with pooling=secure: the server and its helper, the first client, compare by "
            "oblivious transfer the numbers that each client shared: {}. The server learns the maximum over "
            "clients of each number, and not whose number it is. The helper learns nothing.",
        }.items()
    },
    "sapgnn/local_embedding/grad/protocol": "Only with pooling=secure: the server and its helper, the first "
    "client, pass the gradient of every maximum to the number that was the maximum, on shares. Neither "
    "learns which number that is.",
    "sapgnn/local_embedding/grad/server_shares": "Only with pooling=secure: the server sends each client a "
    "share of the gradient for each number that the client uploaded. Together with the helper's share the "
    "client learns the gradient, which is zero where another client had the maximum.",
    "sapgnn/local_embedding/grad/helper_shares": "Only with pooling=secure: the helper, the first client, "
    "sends each client the other share of that gradient.",
}
MESSAGES = {
    **entity_alignment.MESSAGES,
    "sapgnn/features": "Only with maps=identity, once: each client sends the server the features of its "
    "nodes. The server reads them.",
    "sapgnn/ids_with_edges": "Only with maps=identity, once: each client sends the server the names of its "
    "nodes that have an edge at this client.",
    "sapgnn/neighbour_features": "Only with maps=identity, once: each client sends the server, for each of "
    "these nodes, the maximum of its neighbours' features at this client. The server reads it.",
    "sapgnn/batch_needs": "Only with batch_size: each client sends the server the names of the nodes that it "
    "needs for a batch: its training nodes of the batch, and their neighbours for the layers before the "
    "last. The server learns which nodes are near a batch's nodes.",
    "sapgnn/batch_members": "Only with batch_size: the server sends each client, for each of its nodes, "
    "whether some client needs it for the batch.",
    "sapgnn/batch_ids": "Only with batch_size: each client sends the server the names of its nodes that some "
    "client needs, which the server knows already.",
    "sapgnn/local_embedding": "Only with pooling=plaintext: in every layer, each client sends the server, "
    "for each of its nodes, numbers computed from the node's embedding and the maximum over its neighbours "
    "at this client. The server reads them.",
    "sapgnn/global_embedding": "In every layer, the server sends each client the embeddings of its nodes, "
    "pooled over the edges of all clients.",
    "sapgnn/global_embedding/grad": "Each client sends the server the gradient of its loss for each of those "
    "embeddings. The server reads it. The gradients of the last layer show which nodes are trained on and, "
    "by their directions, which of these have the same label; with predictor=server they show the labels.",
    "sapgnn/local_embedding/grad": "Only with pooling=plaintext: the server sends each client the gradient "
    "for each number that the client uploaded. It is zero where another client had the maximum.",
    **POOLING_MESSAGES,
    "sapgnn/local_gradient/shares": "Each client sends every other client a random share of the gradient of "
    "its local weights. Fewer than all shares of a gradient say nothing about it.",
    "sapgnn/local_gradient/sums": "Each client sends every other client the sum of the shares that it has. "
    "All these sums together are the sum of the gradients, which every client learns. With two clients, each "
    "learns the other's gradient from it.",
    "sapgnn/local_gradient": "Only with aggregation=plaintext: each client sends the server the gradient of "
    "its local weights, and the server adds the gradients up. The server reads each client's. From those of "
    "several rounds it computes the features of the nodes that have a gradient.",
    "sapgnn/local_gradient_sum": "Only with aggregation=plaintext: the server sends each client the sum of "
    "these gradients, so that all clients take the same step.",
}

METHOD = Method(
    name="sapgnn",
    summary="split learning: every layer is pooled by maximum over all clients' edges, at the server",
    paper="Shan, Jiao, Fu: Towards representation identical privacy-preserving graph neural network via "
    "split learning. 2021, arXiv:2107.05917",
    config=SapgnnConfig,
    setup=setup,
    round=round,
    predict=predict,
    requires=Requirements(
        other=(
            "both ends of an edge at one client",
            "no edge weights",
        ),
        nodes_per_client="at least one",
    ),
    state=StateValues(
        model=("local", "global"),
        replicated=("local",),
    ),
    sends=Sent(
        summary="local embeddings and their gradients, every layer and round; shares of local gradients",
        protection="gradients by secret sharing; embeddings in plaintext, or pooled by pooling=secure",
        messages=MESSAGES,
    ),
    offers={"backbone": ("maxpool",)},
    paper_settings={"hidden": 64, "optimizer": "adam", "lr": 0.01, "rounds": 300},
)
