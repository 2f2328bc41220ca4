"""SAPGNN: Shan, Jiao and Fu, "Towards representation identical privacy-preserving graph neural network via
split learning", 2021 (arXiv:2107.05917). Data holders that may share nodes and edges train one network
whose layers pool by maximum over the edges of all of them: the embeddings are those of the combined graph.

    paper                              here
    m_ij = M_l(h_i, h_j)         (4)   h_j W_message
    a_i^p = max_j m_ij           (5)   neighbour_max, over the holder's own edges
    z_i^p = U^loc(h_i, a_i^p)    (6)   UPDATES[update], of h_i W_self and a_i^p; -inf without neighbours
    z_i = max_p z_i^p            (7)   fed.max
    h_i' = U^glob(z_i)           (8)   linear, normalisation, ReLU and dropout, at the server
    w_M, w_U, predictor                State.values["local"], the same at every holder
    w_G                                State.values["global"], at the server only
    L_p                         (15)   mean over all training nodes, each counted once
    gradients of w_M, w_U (20)-(22)    summed over the holders by secret sharing; all take the same step

One round is one pass over the training nodes: with one batch (the default) every node goes through every
layer once. A node without any neighbour pools to 0, at whoever holds it. An edge whose ends are at two
holders is known to neither and has no part: deal the edges (partition edges_uniform), or let holders share
nodes. Of equal maxima the first holder's counts, and there the neighbour that comes first.

What it shows. The server reads which holders have a node of the same name, local embeddings, which nodes
are trained on and which of these have the same label (audit/attacks/sapgnn_labels.py); it gets no features,
edges, labels or local weights. A node's name is a keyed hash of its id (`graphfed.crypto.keyed_ids`); the
key is simulated unless node_ids=keyed. A holder learns the summed gradient: with two holders, that is the
other's. Exceptions, each by its own setting: maps=identity shows the server the features themselves,
aggregation=plaintext every holder's gradients, predictor=server the training labels, node_ids=plain the
ids, and batch_size, through the rows that a batch needs, who is near its nodes. With pooling=secure the
server gets the maxima over holders instead of each holder's embeddings, and the first holder, who helps, gets
shares of them (`graphfed.crypto.maximum`: they must not work together); a node's own part, the same at all
its holders, it reads all the same; protocols=simulated counts what that costs, and hides nothing.

Differs from the paper: local maps before upload (the paper: identity, which shows raw features); holders'
losses weigh n_p / n (the paper adds means, which is not the pooled loss); the update family is the exact one
(the paper's "monotone" is too wide: a sigmoid of a mix of coordinates breaks the identity); a keyed hash (the
paper's can be tried out). With identity messages the first layer's embeddings never change, so they cross
once. Boolean shares of gradients, which the paper also names, cannot be summed. Mini-batches are its future
work."""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.functions import as_leaves
from graphfed.federation.route import Route, RouteTable
from graphfed.federation.secure.maximum import (
    HelperSession,
    MaximumRoute,
    open_maximum,
    plan_maximum,
    protected_max,
)
from graphfed.federation.secure.protection import needs_parts
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common import entity_alignment
from graphfed.methods.common.entity_alignment import Alignment, Holders, align, common_seed, training_nodes
from graphfed.methods.common.memory import NUMBER, GraphExtent
from graphfed.methods.common.split_learning import (
    Weights,
    copies,
    fresh,
    initial_predictor,
    loss_rows,
    loss_share,
    predict_rows,
    step,
    summed,
    times,
)
from graphfed.methods.sapgnn.config import (
    SapgnnConfig,
    has_local_weights,
    output_widths,
    sends_features,
    uploaded_width,
)
from graphfed.nn.layers import Dropout
from graphfed.nn.maxpool import UPDATES, neighbour_max, sparse_maxima
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.nn.tiles import Tiles, make_tiles
from graphfed.random import fold, glorot

__all__ = ["METHOD"]

Rows = Tensor | SparseMatrix


def initial_local(device: str, task: Task, config: SapgnnConfig) -> Weights:
    """layers.l.self and .message [d_l, H] (maps=linear), .tropical [H, H], predictor.weight [H, C] and .bias
    [C] (predictor=holders). Every holder draws the same: nothing crosses."""
    key, weights = fold(common_seed(config), "sapgnn"), {}
    for layer, width in enumerate(output_widths(task, config)[:-1]):
        mapped = config.hidden if config.maps == "linear" else width
        if config.maps == "linear":
            for name in ("self", "message"):
                weights[f"layers.{layer}.{name}"] = glorot(fold(key, layer, name), width, mapped)
        if UPDATES[config.update].weighted:
            weights[f"layers.{layer}.tropical"] = glorot(fold(key, layer, "tropical"), mapped, mapped)
    weights |= initial_predictor(key, task, config.hidden, config)
    return {name: w.to(device) for name, w in weights.items()}


def initial_global(device: str, task: Task, config: SapgnnConfig) -> Weights:
    """layers.l.weight [u_l, d_{l+1}] and .bias; .gain where normalised."""
    key, weights = fold(config.seed, "sapgnn"), {}
    for layer, (width, out) in enumerate(pairwise(output_widths(task, config))):
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), uploaded_width(width, config), out)
        weights[f"layers.{layer}.bias"] = torch.zeros(out)
        if config.norm == "batch" and layer < config.layers - 1:
            weights[f"layers.{layer}.gain"] = torch.ones(out)
    return {name: w.to(device) for name, w in weights.items()}


# ---- at the holders: the layers ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerRows:
    """One layer at a cohort's holders, from n_in to n_out rows. pattern [n_out, n_in]: its edges; own
    [n_out]: the places of the rows out among the rows in (None: the same rows); client [n_in] and tiles:
    whose weights the rows in meet, where holders' copies of the weights differ."""

    pattern: SparseMatrix
    own: Tensor | None
    client: Tensor
    tiles: Tiles | None


@dataclass(frozen=True)
class PassRows:
    """What a cohort computes for some nodes. x [n_0, F]: what enters the first layer; x_apart: the same
    with a block of columns for each client (None: x itself)."""

    x: Rows
    x_apart: SparseMatrix | None
    layers: tuple[LayerRows, ...]


def layer_rows(holders: Holders, into: Tensor, rows: Tensor) -> LayerRows:
    """A layer from some rows of the cohort [n_in] to others [n_out], both ascending."""
    cohort = holders.cohort
    source, target = cohort.edge_index
    place = torch.full((2, cohort.num_rows), -1, device=rows.device)
    place[0, rows] = torch.arange(len(rows), device=rows.device)
    place[1, into] = torch.arange(len(into), device=rows.device)
    used = place[0, target] >= 0
    row, column = place[0, target[used]], place[1, source[used]]
    ones = torch.ones(len(row), device=rows.device)
    pattern = SparseMatrix.from_coo(row, column, ones, (len(rows), len(into)))
    whole = len(rows) == len(into) == cohort.num_rows
    client = cohort.client[into]
    tiles = make_tiles(client, cohort.num_clients) if cohort.num_clients > 1 else None
    return LayerRows(pattern, None if whole else place[1, rows], client, tiles)


def all_rows(holders: Holders) -> Tensor:
    return torch.arange(holders.cohort.num_rows, device=holders.names.device)


def needed_rows(holders: Holders, rows: Tensor) -> Tensor:
    """The rows that a layer needs to compute `rows`: themselves and their neighbours, ascending."""
    source, target = holders.cohort.edge_index
    mask = torch.zeros(holders.cohort.num_rows, dtype=torch.bool, device=rows.device)
    mask[rows] = True
    mask[source[mask[target]]] = True
    return mask.nonzero()[:, 0]


def pass_rows(holders: Holders, config: SapgnnConfig, *outputs: Tensor) -> PassRows:
    """outputs[l] [n_{l+1}]: the rows of the cohort that leave layer l."""
    cohort, x = holders.cohort, holders.cohort.x
    assert x is not None
    entering = all_rows(holders)
    if len(outputs[0]) < cohort.num_rows:
        entering = needed_rows(holders, outputs[0])
        x = x.select_rows(entering) if isinstance(x, SparseMatrix) else x[entering]
    layers: list[LayerRows] = []
    for layer, (into, rows) in enumerate(pairwise((entering, *outputs))):
        if layer and len(into) == len(rows) == cohort.num_rows:
            layers.append(layers[-1])  # every row in and out, as before
        else:
            layers.append(layer_rows(holders, into, rows))
    apart = None
    if isinstance(x, SparseMatrix) and needs_parts(config.aggregation) and cohort.num_clients > 1:
        columns = x.indices + cohort.client[entering][x.row] * x.shape[1]
        shape = (x.shape[0], cohort.num_clients * x.shape[1])
        apart = SparseMatrix.from_csr(x.indptr, columns, x.values, shape)
    if isinstance(x, SparseMatrix) and config.maps == "identity" and not sends_features(config):
        x = x.to_dense()
    return PassRows(x, apart, tuple(layers))


def entering(rows: PassRows) -> Rows:
    return rows.x


def local_embedding(h: Rows, rows: PassRows, local: Weights, layer: int, config: SapgnnConfig) -> Tensor:
    """Eqs. (4)-(6): z^p [n_out, u_l], -inf where a node has no neighbour here. With aggr=min it is what
    the server turns around: min = -max(-.)."""
    update, here = UPDATES[config.update], rows.layers[layer]
    weight = local.get(f"layers.{layer}.tropical")
    if config.maps == "linear":
        both = torch.cat([local[f"layers.{layer}.{name}"] for name in ("self", "message")], -1)
        own, message = times(h, rows.x_apart, both, here.tiles).chunk(2, 1)
    else:
        assert isinstance(h, Tensor)
        own = message = h
    own = own if here.own is None else own.index_select(0, here.own)
    if weight is not None and weight.dim() == 3:
        weight = weight.index_select(0, here.client if here.own is None else here.client[here.own])
    if config.aggr == "min":
        message, weight = -message, None if weight is None else -weight
        own = -own if update.odd else own
    return update.apply(own, neighbour_max(here.pattern, message), weight)


def own_features(rows: PassRows, config: SapgnnConfig) -> Rows:
    """The first layer's h_i, turned around where aggr=min does."""
    turned = config.aggr == "min" and UPDATES[config.update].odd
    return _turned(rows.x) if turned else rows.x


def neighbour_features(holders: Holders, rows: PassRows, with_edges: Tensor, config: SapgnnConfig) -> Rows:
    """The first layer's a_i^p = max_j x_j of the rows that have an edge here."""
    source, target = holders.cohort.edge_index
    place = torch.full((holders.cohort.num_rows,), -1, device=with_edges.device)
    place[with_edges] = torch.arange(len(with_edges), device=with_edges.device)
    x = _turned(rows.x) if config.aggr == "min" else rows.x
    if isinstance(x, SparseMatrix):
        order = torch.argsort(place[target], stable=True)
        return sparse_maxima(x.select_rows(source[order]), place[target][order], len(with_edges))
    ones = torch.ones(len(source), device=source.device)
    pattern = SparseMatrix.from_coo(place[target], source, ones, (len(with_edges), x.shape[0]))
    return neighbour_max(pattern, x)


def rows_with_edges(holders: Holders) -> Tensor:
    rows: Tensor = torch.unique(holders.cohort.edge_index[1])
    return rows


def _turned(x: Rows) -> Rows:
    return x.with_values(-x.values) if isinstance(x, SparseMatrix) else -x


def logits_of(holders: Holders, h: Tensor, local: Weights, target: str) -> Tensor:
    """Logits [n, C] of a target's rows; h [N, d]: of every row."""
    return predict_rows(h[holders.cohort.rows(target)], local)


# ---- at the server -----------------------------------------------------------------------------------------


def members(table: RouteTable, needs: RouteTable) -> Tensor:
    """Which of all nodes [U] some holder needs, uint8."""
    return torch.isin(table.ids, needs.ids).to(torch.uint8)


def first_embedding(
    own: Rows, maxima: Rows, table: RouteTable, with_edges: RouteTable, config: SapgnnConfig
) -> Rows:
    """The first layer's z [U, u_1], from the features themselves: what the holders' uploads would pool to."""
    place = torch.searchsorted(table.ids, with_edges.ids)
    count, width = len(table.ids), own.shape[1]
    if isinstance(own, SparseMatrix) and isinstance(maxima, SparseMatrix) and config.update == "concat":
        row, column = (
            torch.cat([own.row, place[maxima.row]]),
            torch.cat([own.indices, maxima.indices + width]),
        )
        return SparseMatrix.from_coo(row, column, torch.cat([own.values, maxima.values]), (count, 2 * width))
    own, maxima = (m.to_dense() if isinstance(m, SparseMatrix) else m for m in (own, maxima))
    pooled = own.new_full(own.shape, -torch.inf)
    pooled[place] = maxima
    return UPDATES[config.update].apply(own, pooled, None)


def rows_at(z: Rows, table: RouteTable, of: RouteTable) -> Rows:
    """The rows of z [U, u] for the nodes of another table [U']."""
    place = torch.searchsorted(table.ids, of.ids)
    return z.select_rows(place) if isinstance(z, SparseMatrix) else z[place]


def global_embedding(
    z: Rows, table: RouteTable, global_: Weights, layer: int, config: SapgnnConfig, key: int | None
) -> Tensor:
    """Eq. (8): h' [U, d_{l+1}] of the pooled z [U, u_l]. key: of the dropout's draws, None for none."""
    if not isinstance(z, SparseMatrix):
        z = z.masked_fill(z.isneginf(), 0)
    z = _turned(z) if config.aggr == "min" else z
    weight = global_[f"layers.{layer}.weight"]
    h = (spmm(z, weight) if isinstance(z, SparseMatrix) else z @ weight) + global_[f"layers.{layer}.bias"]
    if layer == config.layers - 1:
        return h
    gain = global_.get(f"layers.{layer}.gain")
    if gain is not None:
        h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt() * gain
    h = h.relu()
    return h if key is None else Dropout(config.dropout, key).rows(h, table.ids, layer)


# ---- the program over places: set-up -----------------------------------------------------------------------


@dataclass(frozen=True)
class Pass:
    """How some nodes go through the layers: `PassRows` at the clients; the route of each layer's output,
    and how its maxima are prepared (`plan_maximum`); at the server the first layer's z where it never
    changes."""

    rows: Located
    routes: tuple[tuple[Route, MaximumRoute], ...]
    first: Located | None


@dataclass(frozen=True)
class Prepared:
    """`Holders` at the clients; the pass of all nodes; and the passes of a round with their `LossRows`."""

    holders: Located
    whole: Pass
    batches: tuple[tuple[Pass, Located], ...]


def memory(extent: GraphExtent, config: SapgnnConfig) -> float:
    """The embeddings on both sides of every layer, and the shares of gradients of every holder for every
    other one, as drawn, cut and sent."""
    uploaded = 4 * NUMBER * extent.rows * 3 * config.hidden * config.layers
    if not needs_parts(config.aggregation):
        return uploaded
    weights = 2 * config.hidden * (extent.features + (config.layers - 1) * config.hidden)
    return uploaded + 5 * 8 * extent.clients**2 * weights


def setup(fed: Federation, data: Located, task: Task, config: SapgnnConfig) -> State:
    aligned = align(fed, data, task, config)
    holders = aligned.holders
    fed.begin("preparing the layers")
    everything = fed.clients.run(all_rows, holders)
    rows = fed.clients.run(pass_rows, holders, config, *[everything] * config.layers)
    helped = open_maximum(fed, config.pooling, name="sapgnn/pooling")
    planned = plan_maximum(fed, aligned.route, helped)
    once = sends_features(config)
    first = features_once(fed, aligned, rows, helped, planned, config) if once else None
    whole = Pass(rows, ((aligned.route, planned),) * config.layers, first)
    local = fed.clients.run(initial_local_at, holders, task, config)
    global_ = fed.server.run(initial_global, str(fed.device), task, config)
    values = {
        "local": local,
        "global": global_,
        "local_optimizer": fed.clients.run(fresh, local, config),
        "global_optimizer": fed.server.run(fresh, global_, config),
    }
    batches = make_batches(fed, aligned, helped, whole, everything, config)
    return State(values, Prepared(holders, whole, batches))


def initial_local_at(holders: Holders, task: Task, config: SapgnnConfig) -> Weights:
    return initial_local(str(holders.names.device), task, config)


def features_once(
    fed: Federation,
    aligned: Alignment,
    rows: Located,
    helped: HelperSession | None,
    planned: MaximumRoute,
    config: SapgnnConfig,
) -> Located:
    """The first layer's z at the server, where holders send it the features and their maxima (the paper's
    identity messages)."""
    own = fed.clients.run(own_features, rows, config)
    own = protected_max(fed, own, planned, name="sapgnn/features", grad=False)
    with_edges = fed.clients.run(rows_with_edges, aligned.holders)
    some = aligned.route_of(fed, with_edges, name="sapgnn/ids_with_edges")
    maxima = fed.clients.run(neighbour_features, aligned.holders, rows, with_edges, config)
    there = plan_maximum(fed, some, helped)
    maxima = protected_max(fed, maxima, there, name="sapgnn/neighbour_features", grad=False)
    tables = fed.table(aligned.route), fed.table(some)
    return fed.server.run(first_embedding, own, maxima, *tables, config)


def make_batches(
    fed: Federation,
    aligned: Alignment,
    helped: HelperSession | None,
    whole: Pass,
    everything: Located,
    config: SapgnnConfig,
) -> tuple[tuple[Pass, Located], ...]:
    """The passes of a round. A batch's rows are worked out from the last layer back: holders name the rows
    they need, and the server tells all who have one of them."""
    train, holders = training_nodes(fed, aligned, config.batch_size), aligned.holders
    if train.batch is None:
        return ((whole, fed.clients.run(loss_rows, holders, train.weight, everything, None)),)
    every, made = fed.table(aligned.route), []
    for number in range(train.batches):
        chosen = fed.clients.run(is_in_batch, train.batch, number)
        needs = fed.clients.run(chosen_rows, holders, chosen)
        outputs: list[Located] = []
        routes: list[Route] = []
        for _ in range(config.layers):
            asked = aligned.route_of(fed, needs, name="sapgnn/batch_needs")
            flags = fed.server.run(members, every, fed.table(asked))
            flags = fed.download(flags, aligned.route, name="sapgnn/batch_members", grad=False)
            outputs.insert(0, fed.clients.run(flagged, flags))
            routes.insert(0, aligned.route_of(fed, outputs[0], name="sapgnn/batch_ids"))
            needs = fed.clients.run(needed_rows, holders, outputs[0])
        rows = fed.clients.run(pass_rows, holders, config, *outputs)
        first = whole.first
        if first is not None:
            first = fed.server.run(rows_at, first, every, fed.table(routes[0]))
        loss = fed.clients.run(loss_rows, holders, train.weight, outputs[-1], chosen)
        there = tuple((route, plan_maximum(fed, route, helped)) for route in routes)
        made.append((Pass(rows, there, first), loss))
    return tuple(made)


def is_in_batch(numbers: Tensor, number: int) -> Tensor:
    return numbers == number


def chosen_rows(holders: Holders, chosen: Tensor) -> Tensor:
    return holders.cohort.rows("train")[chosen]


def flagged(flags: Tensor) -> Tensor:
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
    """Algorithm 1: the embeddings that leave the last layer, at their holders."""
    h = fed.clients.run(entering, part.rows)
    for layer, (route, planned) in enumerate(part.routes):
        if layer == 0 and part.first is not None:
            z = part.first
        else:
            z = fed.clients.run(local_embedding, h, part.rows, local, layer, config)
            z = protected_max(fed, z, planned, name="sapgnn/local_embedding", grad=grad)  # Eq. (7)
        h = fed.server.run(global_embedding, z, fed.table(route), global_, layer, config, key)
        h = fed.download(h, route, name="sapgnn/global_embedding", grad=grad)
    assert isinstance(h, Located)
    return h


def round(fed: Federation, state: State, config: SapgnnConfig, number: int) -> State:
    prepared: Prepared = state.prepared
    for batch, (part, loss) in enumerate(prepared.batches):
        key = fold(config.seed, "dropout", number, batch) if config.dropout else None
        with fed.tape():  # Algorithm 2
            local = fed.clients.run(copies, state.values["local"], prepared.holders, config)
            global_ = fed.server.run(as_leaves, state.values["global"])
            h = forward(fed, part, local, global_, config, key=key, grad=True)
            fed.backward(fed.clients.run(loss_share, h, local, loss))
        state = replace(state, values=updated(fed, state, local, global_, config))
    return state


def updated(
    fed: Federation, state: State, local: Located, global_: Located, config: SapgnnConfig
) -> dict[str, Located]:
    """The values after the step that follows `fed.backward`: the same at every holder (eqs. 20-22)."""
    values = dict(state.values)
    if has_local_weights(config):
        gradient = summed(fed, fed.gradients(local), config, name="sapgnn/local")
        values["local"], values["local_optimizer"] = fed.clients.run(
            step, values["local"], gradient, values["local_optimizer"], config, outputs=2
        )
    values["global"], values["global_optimizer"] = fed.server.run(
        step, values["global"], fed.gradients(global_), values["global_optimizer"], config, outputs=2
    )
    return values


def predict(fed: Federation, state: State, config: SapgnnConfig, target: str) -> Located:
    """All holders and the server together: nobody has the whole model."""
    values, prepared = state.values, state.prepared
    h = forward(fed, prepared.whole, values["local"], values["global"], config, key=None, grad=False)
    return fed.clients.run(logits_of, prepared.holders, h, values["local"], target)


#: Of a secure maximum (or a simulated one, whose shares for the server are the numbers themselves).
POOLING_MESSAGES = {
    "sapgnn/pooling/session": "Only with pooling=secure, once, between the server and the first holder, who "
    "helps it: public keys. Neither learns anything from them.",
    "sapgnn/pooling/plan": "From the server to the first holder: which rows of the holders are of one "
    "node, numbered as they come. It learns who has nodes in common, not which.",
    **{
        f"sapgnn/{name}/{transfer}": words.format(what)
        for name, what in {
            "features": "the features of a holder's nodes, with maps=identity",
            "neighbour_features": "the maxima of its nodes' neighbours, with maps=identity",
            "local_embedding": "the local embeddings of a holder's nodes, in every layer",
        }.items()
        for transfer, words in {
            "server_shares": "Only with pooling=secure: a random share of {}. Without the first holder's "
            "share the server learns nothing from it; with protocols=simulated it is the numbers themselves.",
            "helper_shares": "Only with pooling=secure, to the first holder: the other share of {}.",
            "protocol": "Only with pooling=secure, between the server and the first holder: comparisons and "
            "choices, by oblivious transfer, of {}. The server learns the maximum over holders of each "
            "number and not whose it is; the first holder nothing.",
        }.items()
    },
    "sapgnn/local_embedding/grad/protocol": "Only with pooling=secure, between the server and the first "
    "holder: the gradient of every maximum takes the way that the larger number came. Neither learns it.",
    "sapgnn/local_embedding/grad/server_shares": "Only with pooling=secure, from the server: a share of the "
    "gradient for each of a holder's numbers. With the other share a holder learns the gradient, which is "
    "zero where another holder's number was larger.",
    "sapgnn/local_embedding/grad/helper_shares": "Only with pooling=secure, from the first holder: the other "
    "share of that gradient.",
}
MESSAGES = {
    **entity_alignment.MESSAGES,
    "sapgnn/features": "Only with maps=identity, once: the features of a holder's nodes. The server "
    "reads them.",
    "sapgnn/ids_with_edges": "Only with maps=identity: the names of those of a holder's nodes that have "
    "an edge there.",
    "sapgnn/neighbour_features": "Only with maps=identity, once: for each of these the maximum of its "
    "neighbours' features there. The server reads it.",
    "sapgnn/batch_needs": "Only with batch_size: the names of the nodes that a holder needs for a batch, "
    "its training nodes there and, for the layers before the last, their neighbours. The server learns "
    "who is near a batch's nodes.",
    "sapgnn/batch_members": "From the server: for each of a holder's nodes, whether some holder needs it "
    "for the batch.",
    "sapgnn/batch_ids": "The names of the nodes that a holder then answers for: those just told, again.",
    "sapgnn/local_embedding": "Only with pooling=plaintext: for every node a holder has, in every layer, "
    "numbers worked out of the node's own embedding and the maximum over its neighbours there. The server "
    "reads them.",
    "sapgnn/global_embedding": "From the server: the embedding of each of a holder's nodes, pooled "
    "over all holders' edges, in every layer.",
    "sapgnn/global_embedding/grad": "The gradient of the loss for each of those embeddings. The server "
    "reads it; of the last layer it tells which nodes are trained on and, by what they have in common, "
    "which of these have the same label; with predictor=server the labels themselves.",
    "sapgnn/local_embedding/grad": "Only with pooling=plaintext, from the server: the gradient for each "
    "number that a holder sent, zero where another holder's was larger.",
    **POOLING_MESSAGES,
    "sapgnn/local_gradient/shares": "Between holders: a random share of the gradient of a holder's maps "
    "before upload. Any but all of a gradient's shares together say nothing of it.",
    "sapgnn/local_gradient/sums": "Between holders: the sum of the shares that a holder has. All of them "
    "together are the sum of the gradients, which every holder learns; with two holders that is the other's.",
    "sapgnn/local_gradient": "Only with aggregation=plaintext: the gradient of each holder's maps before "
    "upload, which the server adds up. The server reads each one; from it, features can in part be inferred.",
    "sapgnn/local_gradient_sum": "Only with aggregation=plaintext, from the server: the sum of these "
    "gradients, so that all holders take the same step.",
}

METHOD = Method(
    name="sapgnn",
    summary="split learning: every layer pooled by maximum over all holders' edges, at the server",
    paper="Shan, Jiao, Fu: Towards representation identical privacy-preserving graph neural network via "
    "split learning. 2021, arXiv:2107.05917",
    config=SapgnnConfig,
    setup=setup,
    round=round,
    predict=predict,
    memory=memory,
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
        protection="secret shares for gradients; embeddings in clear, or pooling=secure",
        messages=MESSAGES,
    ),
    paper_settings={"hidden": 64, "optimizer": "adam", "lr": 0.01, "rounds": 300},
)
