"""NeighGen: the generator of missing neighbours that every client trains on its own subgraph.

    FedSage+              here
    G_i-bar, V_i-bar      the impaired graph: the client's subgraph without the nodes that it hides
    n_v                   Impaired.missing: the hidden neighbours of node v
    H^e, z_v              `embeddings`: the network of the settings, with an output of `hidden` numbers
    dGen, n-tilde_v       "missing.*": max(0, s_v) with s_v = <w, z_v> + b, `missing_scores`
    fGen, x-tilde_v^p     "features": V_p (z_v + noise, 1), for p = 1 .. `generated`
    L^d, L^f              smooth L1; the mean square over the F features

n-tilde_v has no gradient where s_v is negative. At a client where that is so for every node, which a few
steps bring about, the loss of the paper could never change it, and nothing would be generated. So L^d takes
the error of s_v itself where s_v is negative and neighbours are missing (`count_loss`). Elsewhere it is the
paper's.

The matrix V_p [F, H + 1] has the bias as its last column. A squared distance of generated and real features
is `|V_p z|^2 - 2 <z, V_p^T x_u> + |x_u|^2`. Both products are with matrices of H + 1 columns, so
training needs no generated features, and products of sparse features stay sparse.

Generators are trained in float64, whatever the dtype of the network. Set-up runs again where a run goes on or
predicts again, perhaps in another placement, and a number of neighbours that is rounded up there and was
rounded down before would change the graph. What is sent has the dtype of the network.

These functions run at the clients. The generators of all clients of a cohort are stacked.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import as_leaves
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Task
from graphfed.methods.common.local_training import (
    own_view,
    personal_weights,
    values_of,
    with_values,
)
from graphfed.methods.fedsage.config import NeighGen
from graphfed.methods.parts import Network
from graphfed.nn.backbones import Weights
from graphfed.nn.batch import Batch, View, make_batch
from graphfed.nn.layers import tiled
from graphfed.nn.optim import init_state, optimizer_step
from graphfed.nn.sparse import SparseMatrix, pair_columns, shift_columns, spmm, sums_by
from graphfed.nn.tiles import make_tiles
from graphfed.random import entry_words, fold, glorot, normal, uniform

Rows = Tensor | SparseMatrix
#: The weights of a client's generator: those of the encoder, "missing.weight" [K, H], "missing.bias" [K], and
#: `FEATURES` [K, F, P * (H + 1)].
Generator = Weights
FEATURES = "features"


@dataclass(frozen=True, eq=False)
class Candidates:
    """For some nodes with missing neighbours, the nodes that generated features are compared with.

    Attributes:
        client: [m] int64, the index in the cohort of each node's client, ascending.
        counts: [m] int64, how many generated neighbours of each node are compared: n_v, at most P.
        node, candidate: [E] int64, pairs of a node and a row of `x`, sorted by node; every node has a pair.
        x: [U, F], the features of the candidates.
        candidate_client: [U] int64, the client of each candidate, ascending.
        scale: [m], 1 / (F |V_i-bar|) of each node's client.
    """

    client: Tensor
    counts: Tensor
    node: Tensor
    candidate: Tensor
    x: Rows
    candidate_client: Tensor
    scale: Tensor


@dataclass(frozen=True, eq=False)
class Impaired:
    """The impaired graphs of a cohort.

    Attributes:
        batch: A forward pass of the encoder for the remaining nodes.
        ids: [n] int64, their stable ids.
        missing: [n], n_v.
        weight: [n], 1 / |V_i-bar| of each node's client.
        taught: [m] int64, which of the remaining nodes have hidden neighbours.
        candidates: The hidden neighbours of these nodes.
    """

    batch: Batch
    ids: Tensor
    missing: Tensor
    weight: Tensor
    taught: Tensor
    candidates: Candidates


# ---- hiding nodes ------------------------------------------------------------------------------------------


def impair(cohort: Cohort, config: AveragingSettings) -> Impaired:
    """Hide some nodes of every client, and prepare the training of generators on the others."""
    cohort = in_float64(cohort)
    settings: NeighGen = config.exchange
    # By the nodes' ids, so that the choice does not depend on the placement of clients.
    hidden = uniform(fold(config.run.seed, "hidden"), cohort.id)[:, 0] < settings.hidden_fraction
    source, target = cohort.edge_index
    # G_i-bar: no edge to a hidden node, so the encoder cannot see what it has to predict.
    kept = ~hidden[source] & ~hidden[target]
    view = own_view(cohort)
    weight = None if view.edge_weight is None else (view.edge_weight[0][kept],)
    degree = torch.bincount(target[kept], minlength=cohort.num_rows)
    if weight is not None:
        degree = sums_by(target[kept], weight[0], cohort.num_rows)
    view = replace(view, edges=(cohort.edge_index[:, kept],), edge_weight=weight, degree=degree)
    # A pair (v, u) for each hidden neighbour u of a remaining node v, sorted by v.
    lost = (hidden[source] & ~hidden[target]).nonzero()[:, 0]
    lost = lost[torch.argsort(target[lost], stable=True)]
    # n_v counts the hidden neighbours; those that nobody hid, at other clients, are unknown here.
    missing = torch.bincount(target[lost], minlength=cohort.num_rows)
    remaining = (~hidden).nonzero()[:, 0]
    client = cohort.client[remaining]
    each = 1 / torch.bincount(client, minlength=cohort.num_clients).double()[client]
    # Only these nodes have a neighbour to compare generated features with.
    taught = (missing[remaining] > 0).nonzero()[:, 0]
    nodes = remaining[taught]
    place = torch.zeros_like(missing).index_copy(0, nodes, torch.arange(len(nodes), device=nodes.device))
    candidates, row = torch.unique(source[lost], return_inverse=True)
    assert cohort.x is not None
    return Impaired(
        batch=encoder_batch(cohort, view, remaining, config.network),
        ids=cohort.id[remaining],
        missing=missing[remaining].to(each.dtype),
        weight=each,
        taught=taught,
        candidates=Candidates(
            client=cohort.client[nodes],
            counts=missing[nodes].clamp(max=settings.generated),
            node=place[target[lost]],
            candidate=row,
            x=cohort.x.select_rows(candidates)
            if isinstance(cohort.x, SparseMatrix)
            else cohort.x[candidates],
            candidate_client=cohort.client[candidates],
            scale=each[taught] / cohort.num_features,
        ),
    )


def in_float64(cohort: Cohort) -> Cohort:
    """Return a cohort with features and edge weights in float64."""
    x, weight = cohort.x, cohort.edge_weight
    return replace(
        cohort,
        x=x.to(dtype=torch.float64) if x is not None else None,
        edge_weight=None if weight is None else weight.double(),
    )


def encoder_batch(cohort: Cohort, view: View, targets: Tensor, network: Network) -> Batch:
    """Prepare a forward pass of the clients' encoders for the rows `targets` [n], ascending, of a view."""
    # Encoders store the first-layer weights of all features that occur in a client's whole subgraph, so that
    # the batches of the impaired and of the whole subgraph have weights of the same form.
    whole, pairs = network.kernel.adapt_view(own_view(cohort)), None
    if isinstance(whole.x, SparseMatrix):
        pairs = pair_columns(whole.x, whole.client, whole.num_clients)
    view = network.kernel.adapt_view(view)
    make_block = network.kernel.blocks(view.ids, view.degree, network.attention_heads)
    return make_batch(view, targets, network.layers, make_block, per_client=True, pairs=pairs)


# ---- the generator -----------------------------------------------------------------------------------------


def first_generator(impaired: Impaired, task: Task, config: AveragingSettings) -> Generator:
    """Draw the first weights of the generators, the same at every client."""
    key, network, device = fold(config.run.seed, "generator"), config.network, impaired.ids.device
    settings: NeighGen = config.exchange
    width = network.hidden
    widths = [task.num_features, *[width] * network.layers]
    shared: Weights = dict(network.kernel.init(fold(key, "encoder"), widths, network.attention_heads))
    shared["missing.weight"] = glorot(fold(key, "missing"), width, fan=(width, 1))
    # dGen: one number for a node
    shared["missing.bias"] = torch.zeros(())
    shape = (task.num_features, settings.generated * (width + 1))
    shared[FEATURES] = glorot(fold(key, "features"), *shape, fan=(width, task.num_features))
    on_device = {name: w.to(device, torch.float64) for name, w in shared.items() if isinstance(w, Tensor)}
    return personal_weights(dict(on_device), impaired.batch, network.kernel)


def embeddings(generator: Generator, batch: Batch, network: Network) -> Tensor:
    """Compute the embeddings z_v of a batch's targets, [n, H]."""
    encoder = {name: w for name, w in generator.items() if name.startswith("layers.")}
    return network.kernel.forward(encoder, batch, None)


def missing_scores(generator: Generator, z: Tensor, client: Tensor) -> Tensor:
    """Compute the scores s [n] whose positive part is the predicted number of missing neighbours.

    z [n, H] are the embeddings of nodes, and `client` [n] the indices in the cohort of their clients.
    """
    weight, bias = generator["missing.weight"], generator["missing.bias"]
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    return (z * weight[client]).sum(1) + bias[client]


def count_loss(scores: Tensor, missing: Tensor) -> Tensor:
    """Compute the loss [n] of scores s [n], for n_v missing neighbours, [n].

    It is smooth L1(max(0, s) - n_v), and smooth L1(s - n_v) where s < 0 < n_v.
    """
    # max(0, s) = 0 = n_v: no error, and no gradient that would push the score further down.
    is_right = (scores <= 0) & (missing == 0)
    return smooth_l1_loss(scores, missing, reduction="none").masked_fill(is_right, 0)


def with_noise(z: Tensor, key: int, ids: Tensor) -> Tensor:
    """Add standard normal noise to embeddings z [n, H], and a column of ones for the bias: [n, H + 1].

    The draws are keyed by the ids [n] of the rows.
    """
    # fGen generates different neighbours of one node from different noise.
    noise = normal(key, ids, z.shape[1]).to(z.dtype)
    return torch.cat([z + noise, z.new_ones(len(z), 1)], 1)


def per_client(x: Rows, client: Tensor, weights: Tensor) -> Tensor:
    """Multiply the rows x [n, A] of each client by its matrix of `weights` [K, A, B]: [n, B].

    `client` [n] is the index in the cohort of each row's client, ascending.
    """
    clients, width = weights.shape[:2]
    if isinstance(x, SparseMatrix):
        codes = torch.arange(clients * width, device=client.device)
        shifted = shift_columns(x, client, codes // width, codes % width)
        # The last columns of the shifted matrix are those of pairs that are not stored; there are none.
        flat = weights.flatten(0, 1)
        return spmm(shifted, torch.cat([flat, flat.new_zeros(width, flat.shape[1])]))
    return tiled(x, weights, make_tiles(client, clients))


def squared_lengths(x: Rows) -> Tensor:
    """Compute the squared lengths of rows [n, F], [n]."""
    return sums_by(x.row, x.values**2, x.shape[0]) if isinstance(x, SparseMatrix) else x.square().sum(1)


def feature_loss(features: Tensor, noisy: Tensor, candidates: Candidates) -> Tensor:
    """Compute the sum over clients of L^f: the distance of each generated neighbour to the closest candidate.

    `features` is V of every client, [K, F, P * (H + 1)], and `noisy` the result of `with_noise`, [m, H + 1].
    """
    clients, _, columns = features.shape
    width = noisy.shape[1]
    parts = columns // width
    matrices = features.view(clients, -1, parts, width).transpose(1, 2)  # [K, P, F, H + 1]
    squares = (matrices.transpose(2, 3) @ matrices).permute(0, 2, 1, 3)  # V_p^T V_p, [K, H + 1, P, H + 1]
    length = per_client(noisy, candidates.client, squares.flatten(2)).view(-1, parts, width)
    length = (length * noisy[:, None]).sum(2)  # |V_p z|^2, [m, P]
    products = per_client(candidates.x, candidates.candidate_client, features).view(-1, parts, width)
    products = (products[candidates.candidate] * noisy[candidates.node][:, None]).sum(2)  # [E, P]
    real = squared_lengths(candidates.x)[candidates.candidate]
    distance = length[candidates.node] - 2 * products + real[:, None]
    # min_u |V_p z_v - x_u|^2, [m, P]
    closest = distance.new_full(length.shape, torch.inf).scatter_reduce(
        0, candidates.node[:, None].expand_as(distance), distance, "amin"
    )
    compared = counted(candidates.counts, parts)
    return (closest.masked_fill(~compared, 0) * candidates.scale[:, None]).sum()


def counted(counts: Tensor, parts: int) -> Tensor:
    """Return which of a node's P generated neighbours count, the first `counts` [m] of them: [m, P] bool."""
    return torch.arange(parts, device=counts.device) < counts[:, None]


def train_alone(impaired: Impaired, generator: Generator, config: AveragingSettings) -> Generator:
    """Train the generators of a cohort's clients on their own hidden nodes; nothing is sent."""
    settings: NeighGen = config.exchange
    values = values_of(generator)
    state, client = init_state("adam", values), impaired.batch.client[-1]
    for step in range(settings.generator_steps):
        leaves = as_leaves(values)
        current = with_values(generator, leaves)
        z = embeddings(current, impaired.batch, config.network)
        # L^d = 1 / |V_i-bar| sum_v smooth L1(n-tilde_v - n_v)
        # Losses of clients add up; no client's generator enters another one's loss.
        loss = (count_loss(missing_scores(current, z, client), impaired.missing) * impaired.weight).sum()
        if len(impaired.taught):
            key = fold(config.run.seed, "generator noise", step)
            noisy = with_noise(z[impaired.taught], key, impaired.ids[impaired.taught])
            loss = loss + settings.feature_weight * feature_loss(leaves[FEATURES], noisy, impaired.candidates)
        gradients = dict(
            # Without a node with hidden neighbours the features have no gradient; zeros leave them as is.
            zip(leaves, torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True), strict=True)
        )
        values, state = optimizer_step("adam", values, gradients, state, settings.generator_lr, 0.0)
    return with_values(generator, values)


# ---- mending -----------------------------------------------------------------------------------------------


def generated_features(features: Tensor, noisy: Tensor, client: Tensor, part: int) -> Tensor:
    """Compute V_p z [n, F], the features of one generated neighbour of each node, p = `part` from 0.

    `features` is V of every client, [K, F, P * (H + 1)], `noisy` the result of `with_noise`, [n, H + 1], and
    `client` [n] the index in the cohort of each node's client, ascending.
    """
    width = noisy.shape[1]
    matrix = features[:, :, part * width : (part + 1) * width].transpose(1, 2)
    return tiled(noisy, matrix, make_tiles(client, len(features)))


def mend(cohort: Cohort, generator: Generator, config: AveragingSettings) -> tuple[View, Tensor, Tensor]:
    """Add generated neighbours to every client's subgraph.

    Returns:
        The view of the mended subgraphs, [N] the view's row of each of the cohort's rows, and [K] the number
        of generated neighbours of each client.
    """
    settings: NeighGen = config.exchange
    exact, rows = in_float64(cohort), torch.arange(cohort.num_rows, device=cohort.id.device)
    with torch.no_grad():
        batch = encoder_batch(exact, own_view(exact), rows, config.network)
        z = embeddings(generator, batch, config.network)
        # In float64, so that every placement rounds alike (module docstring).
        counts = missing_scores(generator, z, cohort.client).round().long().clamp(0, settings.generated)
        noisy = with_noise(z, fold(config.run.seed, "generator noise", "mending"), cohort.id)
        features = generator[FEATURES]
        assert isinstance(features, Tensor)
        of_part = [(counts > part).nonzero()[:, 0] for part in range(settings.generated)]
        new = [
            generated_features(features, noisy[nodes], cohort.client[nodes], part)
            for part, nodes in enumerate(of_part)
        ]
    centre = torch.cat(of_part)
    number = torch.cat([torch.full_like(nodes, part) for part, nodes in enumerate(of_part)])
    client = torch.cat([cohort.client, cohort.client[centre]])
    # A view's rows are sorted by client; generated rows follow the client's own ones.
    order = torch.argsort(client, stable=True)
    place = torch.empty_like(order).index_copy(0, order, torch.arange(len(order), device=order.device))
    pairs = torch.stack([cohort.num_rows + torch.arange(len(centre), device=centre.device), centre])
    edges = place[torch.cat([cohort.edge_index, pairs, pairs.flip(0)], 1)]
    # Generated edges, in both directions, have the mean weight of the client's edges.
    weight = None
    degree = torch.bincount(edges[1], minlength=len(order))
    if cohort.edge_weight is not None:
        weight = torch.cat([cohort.edge_weight, *[mean_weights(cohort)[cohort.client[centre]]] * 2])
        degree = sums_by(edges[1], weight, len(order))
    assert cohort.x is not None
    # Dense at every client, with generated neighbours or without: draws of dropout are of rows or of stored
    # entries, and must not depend on who else is in the cohort.
    x = cohort.x.to_dense() if isinstance(cohort.x, SparseMatrix) else cohort.x
    view = View(
        x=torch.cat([x, *[rows.to(x.dtype) for rows in new]])[order],
        # No other node of the client has this id: it is a hash of the node's id and p.
        ids=torch.cat([cohort.id, entry_words(cohort.id[centre], number)])[order],
        client=client[order],
        num_clients=cohort.num_clients,
        y=torch.cat([cohort.y, cohort.y.new_full((len(centre),), -1)])[order],
        degree=degree,
        edges=(edges,),
        edge_weight=None if weight is None else (weight,),
    )
    return view, place[rows], torch.bincount(cohort.client[centre], minlength=cohort.num_clients)


def mean_weights(cohort: Cohort) -> Tensor:
    """Compute the mean weight of each client's edges, [K]; 1 without edges."""
    assert cohort.edge_weight is not None
    client = cohort.client[cohort.edge_index[1]]
    count = torch.bincount(client, minlength=cohort.num_clients)
    total = sums_by(client, cohort.edge_weight, cohort.num_clients)
    return torch.where(count > 0, total / count.clamp(min=1), 1.0)
