"""The layers of SAPGNN: what clients and the server compute for some rows of the graph.

Eqs. (4) to (6) are at the clients and Eq. (8) at the server; `method.py` runs them in the order of the
paper's Algorithms 1 and 2. The notation is that of docs/papers/sapgnn.md.

Shapes: N rows of a cohort (a node of a client each), F features, n_in and n_out rows that enter and leave a
layer, U nodes at the server, d_l width of the embedding that enters layer l, u_l numbers that a client
uploads for a node in layer l, H hidden width, C classes.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from graphfed.federation.route import RouteTable
from graphfed.federation.secure.protection import needs_parts
from graphfed.methods.base import Task
from graphfed.methods.common.entity_alignment import NamedCohort, all_rows, common_seed
from graphfed.methods.common.split_learning import Weights, initial_predictor, multiply_rows, predict_rows
from graphfed.methods.sapgnn.config import LayerForm, SapgnnConfig, output_widths, uploaded_width
from graphfed.nn.layers import Dropout
from graphfed.nn.maxpool import UPDATES, neighbour_max, sparse_maxima
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.nn.tiles import Tiles, make_tiles
from graphfed.random import fold, glorot

Rows = Tensor | SparseMatrix

# ---- initial weights ---------------------------------------------------------------------------------------


def initial_local(device: str, task: Task, config: SapgnnConfig) -> Weights:
    """Draw the local weights, the same at every client without a message.

    For every layer l these are ``layers.l.self`` and ``layers.l.message`` [d_l, H] with maps=linear, and
    ``layers.l.tropical`` [H, H] with update=tropical; ``predictor.weight`` [H, C] and ``predictor.bias`` [C]
    with predictor=clients.
    """
    # From the clients' key: a server that could draw the maps could undo them.
    form, hidden = config.form, config.network.hidden
    key, weights = fold(common_seed(config.ids, config.run.seed), "sapgnn"), {}
    for layer, width in enumerate(output_widths(task, config)[:-1]):
        mapped = hidden if form.maps == "linear" else width
        if form.maps == "linear":
            for name in ("self", "message"):
                weights[f"layers.{layer}.{name}"] = glorot(fold(key, layer, name), width, mapped)
        if UPDATES[form.update].weighted:
            weights[f"layers.{layer}.tropical"] = glorot(fold(key, layer, "tropical"), mapped, mapped)
    weights |= initial_predictor(key, task, hidden, config.predictor)
    return {name: w.to(device) for name, w in weights.items()}


def initial_global(device: str, task: Task, config: SapgnnConfig) -> Weights:
    """Draw the weights of the server: ``layers.l.weight`` [u_l, d_{l+1}] and ``layers.l.bias`` [d_{l+1}]
    for every layer l, and with norm=batch ``layers.l.gain`` [d_{l+1}] for all layers except the last.
    """
    # Only the server uses these, so the run's seed is enough.
    key, weights = fold(config.run.seed, "sapgnn"), {}
    for layer, (width, out) in enumerate(pairwise(output_widths(task, config))):
        weights[f"layers.{layer}.weight"] = glorot(fold(key, layer), uploaded_width(width, config), out)
        weights[f"layers.{layer}.bias"] = torch.zeros(out)
        if config.form.norm == "batch" and layer < config.network.layers - 1:
            weights[f"layers.{layer}.gain"] = torch.ones(out)
    return {name: w.to(device) for name, w in weights.items()}


# ---- at the clients ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerRows:
    """One layer at a cohort's clients.

    Attributes:
        pattern: The edges, [n_out, n_in], ones.
        self_rows: The places of the n_out rows among the n_in rows, [n_out]; None if they are the same rows.
        client: The client of each row that enters, [n_in], whose copy of the weights is used.
        tiles: The rows of each client; None for one client.
    """

    pattern: SparseMatrix
    self_rows: Tensor | None
    client: Tensor
    tiles: Tiles | None


@dataclass(frozen=True)
class PassRows:
    """The rows that a cohort computes for some nodes.

    Attributes:
        x: The features that enter the first layer, [n_0, F].
        x_apart: Sparse features with a block of columns for each client, [n_0, K * F]; None if they are
            not needed.
    """

    x: Rows
    x_apart: SparseMatrix | None
    layers: tuple[LayerRows, ...]


def layer_rows(clients: NamedCohort, into: Tensor, rows: Tensor) -> LayerRows:
    """Make the layer that computes `rows` [n_out] of the cohort from `into` [n_in], both ascending."""
    cohort = clients.cohort
    source, target = cohort.edge_index
    place = torch.full((2, cohort.num_rows), -1, device=rows.device)
    place[0, rows] = torch.arange(len(rows), device=rows.device)
    place[1, into] = torch.arange(len(into), device=rows.device)
    # Edges into rows that leave the layer; their sources enter it by construction.
    used = place[0, target] >= 0
    row, column = place[0, target[used]], place[1, source[used]]
    ones = torch.ones(len(row), device=rows.device)
    pattern = SparseMatrix.from_coo(row, column, ones, (len(rows), len(into)))
    whole = len(rows) == len(into) == cohort.num_rows
    client = cohort.client[into]
    tiles = make_tiles(client, cohort.num_clients) if cohort.num_clients > 1 else None
    return LayerRows(pattern, None if whole else place[1, rows], client, tiles)


def needed_rows(clients: NamedCohort, rows: Tensor) -> Tensor:
    """Find the rows [n_in], ascending, that a layer reads to compute `rows` [n_out]: these and neighbours."""
    source, target = clients.cohort.edge_index
    mask = torch.zeros(clients.cohort.num_rows, dtype=torch.bool, device=rows.device)
    mask[rows] = True
    mask[source[mask[target]]] = True
    return mask.nonzero()[:, 0]


def pass_rows(clients: NamedCohort, config: SapgnnConfig, *outputs: Tensor) -> PassRows:
    """Plan the pass of some nodes through the layers of a cohort.

    `outputs` are, for every layer l, the rows of the cohort that leave it, [n_{l+1}], ascending.
    """
    cohort, x = clients.cohort, clients.cohort.x
    assert x is not None
    first_rows = all_rows(clients)
    # A batch: only the rows that its first layer reads enter.
    if len(outputs[0]) < cohort.num_rows:
        first_rows = needed_rows(clients, outputs[0])
        x = x.select_rows(first_rows) if isinstance(x, SparseMatrix) else x[first_rows]
    layers: list[LayerRows] = []
    for layer, (into, rows) in enumerate(pairwise((first_rows, *outputs))):
        if layer and len(into) == len(rows) == cohort.num_rows:
            layers.append(layers[-1])  # all rows enter and leave, as in the layer before
        else:
            layers.append(layer_rows(clients, into, rows))
    apart = None
    apart_sums = needs_parts(config.gradient_sums.aggregation) and cohort.num_clients > 1
    if isinstance(x, SparseMatrix) and apart_sums:
        # One product with all clients' copies stacked gives each row the product with its client's copy.
        columns = x.indices + cohort.client[first_rows][x.row] * x.shape[1]
        shape = (x.shape[0], cohort.num_clients * x.shape[1])
        apart = SparseMatrix.from_csr(x.indptr, columns, x.values, shape)
    # Without a map the update reads features as they are, and updates are for dense rows.
    if isinstance(x, SparseMatrix) and config.form.maps == "identity" and not config.form.sends_features:
        x = x.to_dense()
    return PassRows(x, apart, tuple(layers))


def entering(rows: PassRows) -> Rows:
    """Return the features that enter the first layer, [n_0, F]."""
    return rows.x


def local_embedding(h: Rows, rows: PassRows, local: Weights, layer: int, form: LayerForm) -> Tensor:
    """Compute the local embeddings z^p of a layer at a cohort's clients, negated with aggr=min.

    Args:
        h: The embeddings that enter the layer, [n_in, d_l].
        local: The local weights, or each client's copy of them.

    Returns:
        Local embeddings, [n_out, u_l]; the pooled part is -inf for a node without a neighbour at its client.

    Reference:
        Eqs. (4) to (6).
    """
    update, edges = UPDATES[form.update], rows.layers[layer]
    weight = local.get(f"layers.{layer}.tropical")
    if form.maps == "linear":
        # One product for both maps, [d_l, 2 H].
        both = torch.cat([local[f"layers.{layer}.{name}"] for name in ("self", "message")], -1)
        self_part, message = multiply_rows(h, rows.x_apart, both, edges.tiles).chunk(2, 1)  # Eq. (4)
    else:
        assert isinstance(h, Tensor)
        self_part = message = h
    self_part = self_part if edges.self_rows is None else self_part.index_select(0, edges.self_rows)
    if weight is not None and weight.dim() == 3:
        client = edges.client if edges.self_rows is None else edges.client[edges.self_rows]
        weight = weight.index_select(0, client)
    # min(x) = -max(-x): the server takes a maximum in both cases.
    if form.aggr == "min":
        message, weight = -message, None if weight is None else -weight
        self_part = -self_part if update.odd else self_part
    pooled = neighbour_max(edges.pattern, message)  # Eq. (5)
    return update.apply(self_part, pooled, weight)  # Eq. (6)


def own_features(rows: PassRows, form: LayerForm) -> Rows:
    """Return the first layer's h_i [N, F], which the paper's identity messages upload.

    They are negated with aggr=min and an odd update.
    """
    return _negate(rows.x) if form.aggr == "min" and UPDATES[form.update].odd else rows.x


def neighbour_features(clients: NamedCohort, rows: PassRows, with_edges: Tensor, form: LayerForm) -> Rows:
    """Compute the first layer's a_i^p = max_j x_j, which the paper's identity messages upload.

    The result has a row for each of the rows `with_edges` [n], which have a neighbour at their client:
    [n, F], sparse if the features are. With aggr=min the features are negated.

    Reference:
        Eq. (5).
    """
    source, target = clients.cohort.edge_index
    place = torch.full((clients.cohort.num_rows,), -1, device=with_edges.device)
    place[with_edges] = torch.arange(len(with_edges), device=with_edges.device)
    x = _negate(rows.x) if form.aggr == "min" else rows.x
    if isinstance(x, SparseMatrix):
        order = torch.argsort(place[target], stable=True)
        return sparse_maxima(x.select_rows(source[order]), place[target][order], len(with_edges))
    ones = torch.ones(len(source), device=source.device)
    pattern = SparseMatrix.from_coo(place[target], source, ones, (len(with_edges), x.shape[0]))
    return neighbour_max(pattern, x)


def rows_with_edges(clients: NamedCohort) -> Tensor:
    """Find the rows that have a neighbour at their client, [n], ascending."""
    rows: Tensor = torch.unique(clients.cohort.edge_index[1])
    return rows


def _negate(x: Rows) -> Rows:
    return x.with_values(-x.values) if isinstance(x, SparseMatrix) else -x


def logits_of(clients: NamedCohort, h: Tensor, local: Weights, target: str) -> Tensor:
    """Compute the logits [n, C] of a target's rows from the last embeddings h [N, d] of all rows.

    Reference:
        Eq. (14), before the softmax.
    """
    return predict_rows(h[clients.cohort.rows(target)], local)


# ---- at the server -----------------------------------------------------------------------------------------


def mark_needed(table: RouteTable, needs: RouteTable) -> Tensor:
    """Mark those of all nodes [U] that some client needs for a batch, [U] uint8."""
    return torch.isin(table.ids, needs.ids).to(torch.uint8)


def first_embedding(
    features: Rows, maxima: Rows, table: RouteTable, with_edges: RouteTable, update: str
) -> Rows:
    """Compute the first layer's z from the features and maxima that clients sent once (maps=identity).

    The result is what the clients' uploads would be pooled to.

    Args:
        features: The features of all nodes of `table`, [U, F].
        maxima: The maxima over neighbours, pooled over clients, of the nodes `with_edges`, [U', F].

    Returns:
        z of the first layer, [U, u_1]; sparse if the features are and update=concat.

    Reference:
        Eqs. (6) and (7).
    """
    # Eq. (6) at the server, which may: it reads features and maxima, and this update has no weights.
    place = torch.searchsorted(table.ids, with_edges.ids)
    count, width = len(table.ids), features.shape[1]
    # Nodes without a neighbour have no entries: 0, as `global_embedding` sets them.
    if isinstance(features, SparseMatrix) and isinstance(maxima, SparseMatrix) and update == "concat":
        row = torch.cat([features.row, place[maxima.row]])
        column = torch.cat([features.indices, maxima.indices + width])
        values = torch.cat([features.values, maxima.values])
        return SparseMatrix.from_coo(row, column, values, (count, 2 * width))
    features, maxima = (m.to_dense() if isinstance(m, SparseMatrix) else m for m in (features, maxima))
    pooled = features.new_full(features.shape, -torch.inf)
    pooled[place] = maxima
    return UPDATES[update].apply(features, pooled, None)


def rows_at(z: Rows, table: RouteTable, of: RouteTable) -> Rows:
    """Select the rows [U', u] of the nodes `of` from z [U, u], which has a row for each node of `table`."""
    place = torch.searchsorted(table.ids, of.ids)
    return z.select_rows(place) if isinstance(z, SparseMatrix) else z[place]


def global_embedding(
    z: Rows, table: RouteTable, global_: Weights, layer: int, config: SapgnnConfig, key: int | None
) -> Tensor:
    """Compute the global embeddings of a layer: a linear map, normalisation, ReLU and dropout.

    The last layer is the linear map alone.

    Args:
        z: The local embeddings pooled over clients, a row for each node of `table`, [U, u_l].
        key: The random key of the dropout; None for no dropout.

    Returns:
        The embeddings that enter the next layer, [U, d_{l+1}].

    Reference:
        Eq. (8); docs/papers/sapgnn.md, differences 5 and 6.
    """
    if not isinstance(z, SparseMatrix):
        # A node without a neighbour at any client is -inf after pooling. It becomes 0.
        z = z.masked_fill(z.isneginf(), 0)
    z = _negate(z) if config.form.aggr == "min" else z
    weight = global_[f"layers.{layer}.weight"]
    # Eq. (8)
    h = (spmm(z, weight) if isinstance(z, SparseMatrix) else z @ weight) + global_[f"layers.{layer}.bias"]
    # The last layer gives logits or the input of the predictor: no ReLU.
    if layer == config.network.layers - 1:
        return h
    gain = global_.get(f"layers.{layer}.gain")
    if gain is not None:
        # Over the nodes of this pass, in predictions too: there are no running statistics.
        h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt() * gain
    h = h.relu()
    # At the server, so that all clients of a node get the same embedding.
    return h if key is None else Dropout(config.network.dropout, key).rows(h, table.ids, layer)
