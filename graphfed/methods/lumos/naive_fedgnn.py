"""Naive FedGNN: the baseline of Lumos (Pan, Zhu and Chu, "Lumos: heterogeneity-aware federated graph learning
over decentralized devices", ICDE 2023) in which every client noises all its data and the server trains
centrally on the result.

    features        x + N(0, sigma^2), sigma by the analytic calibration for sensitivity (high - low) sqrt(d);
                    with max_set_features = B for (high - low) sqrt(2 B)
    adjacency       each of the N (N - 1) / 2 bits flipped with probability 1 / (1 + e^epsilon)
    labels          randomised response, of training nodes
    network         a GCN or GAT at the server on the released data, all edges with equal weight

What the participants learn. Each of the three is epsilon-private (features with delta) and sent once, in
set-up: a training node's features, its label and one edge cost epsilon each, or a third each with
`split_budget`. Which nodes are trained on is not hidden. Features are not clipped: they are within
feature_low and feature_high. With max_set_features a client drops features beyond that public number before
it adds noise, so less noise gives the same guarantee (proof: docs/papers/lumos_results.md, "Baselines"). The
guarantee of the Gaussian mechanism is for real numbers (`graphfed.privacy.gaussian`).

There are many false edges (3.0e7 on Facebook at epsilon 2). So the networks at the server are made for one
large undirected graph (the last part of this module), and before it starts the method logs what the edges
will cost. To predict links, the output of the network is an
embedding, the edges of the noised graph, most of them false, are the positive pairs, and each client gets the
embeddings of the nodes whose pairs it scores.

Differs from the paper (docs/papers/lumos.md, item 15): the paper states no delta (here a setting, 1e-5), no
division of the budget and no calibration. Attention has no dropout.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, elu, leaky_relu

from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route, RouteTable, RowIds
from graphfed.methods.base import Method, Requirements, Sent, State, Task
from graphfed.methods.common import released
from graphfed.methods.common.link_prediction import link_loss, pair_products
from graphfed.methods.common.local_training import initial_weights
from graphfed.methods.common.released import FeatureBounds, NoiseSeed, Prepared, Weights, noise_of
from graphfed.methods.parts import Inputs, Network, Run, Selection, Steps, Training
from graphfed.methods.settings import settings
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.nn.backbones import average_heads
from graphfed.nn.layers import Dropout
from graphfed.nn.optim import AdamState, init_state
from graphfed.privacy.edges import edge_mechanism, expected_edges, flip_edges, pairs_of_bits
from graphfed.privacy.gaussian import gaussian, gaussian_mechanism, gaussian_sigma
from graphfed.privacy.local import label_mechanism
from graphfed.privacy.noise import Mechanism
from graphfed.random import fold, uniform

#: Entries of the adjacency matrix that attention processes at a time.
PIECE = 1 << 22
#: Seconds of a training step with its evaluation for each directed edge, measured with hidden 16 and 4 heads
#: on two cores of a server; only for the estimate that is logged.
SECONDS_PER_EDGE = {"gcn": 2e-8, "gat": 5e-7}


@settings
class Release:
    """What clients release."""

    epsilon: float = Field(
        default=2.0,
        gt=0,
        allow_inf_nan=False,
        description="privacy budget of the features, of each edge and of the label",
    )
    split_budget: bool = Field(
        default=False,
        description="give each of the three a third of epsilon, so that together they cost epsilon",
    )
    delta: float = Field(default=1e-5, gt=0, lt=1, description="delta of the Gaussian mechanism on features")
    max_set_features: int | None = Field(
        default=None,
        ge=1,
        description="public bound on the features of a node above feature_low: a client drops others at "
        "random, and the features get less noise; do not take it from private data; none: no bound",
    )

    @property
    def budget(self) -> float:
        """The budget of each of features, edges and labels."""
        return self.epsilon / 3 if self.split_budget else self.epsilon


@settings
class NaiveFedgnnConfig:
    """The settings of naive FedGNN."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    steps: Steps = Steps()
    noise: NoiseSeed = NoiseSeed()
    bounds: FeatureBounds = FeatureBounds()
    release: Release = Release()


#: Edges, and other pairs, that an epoch of link prediction trains on.
PAIRS = 1 << 18

NO_WEIGHTS = (
    "naive_fedgnn hides whether there is an edge, but cannot hide its weight; leave the edge weights out, or "
    "use another method"
)


def check_graph(graph: Graph, config: NaiveFedgnnConfig) -> None:
    """Raise InputError for a graph with edge weights, or with a feature outside its bounds."""
    if graph.edge_weight is not None:
        raise InputError(NO_WEIGHTS)
    released.check_features(graph, config.bounds)


def feature_mechanism(width: int, release: Release, bounds: FeatureBounds) -> Mechanism:
    """Describe the release of a node's features [F], with F = width."""
    low, high = bounds.feature_low, bounds.feature_high
    # The sensitivity follows from the bounds, which are public; features outside them are refused.
    return gaussian_mechanism(release.budget, release.delta, width, low, high, release.max_set_features)


# ---- at the clients ----------------------------------------------------------------------------------------


def noised_features(cohort: Cohort, config: NaiveFedgnnConfig) -> Tensor:
    """Noise features by the Gaussian mechanism, [N, F]."""
    assert cohort.x is not None
    if cohort.edge_weight is not None:
        raise InputError(NO_WEIGHTS)
    mechanism = feature_mechanism(cohort.num_features, config.release, config.bounds)
    assert mechanism.sensitivity is not None
    return gaussian(
        cohort.x,
        cohort.id,
        noise_of(config.noise),
        "features",
        gaussian_sigma(mechanism.epsilon, mechanism.delta, mechanism.sensitivity),
        config.bounds.feature_low,
        config.bounds.feature_high,
        max_set=config.release.max_set_features,
        key=fold(config.run.seed, "naive_fedgnn", "set features"),
    )


def noised_edges(cohort: Cohort, num_nodes: int, config: NaiveFedgnnConfig) -> Tensor:
    """Flip the bits that each node reports and pack them; see `privacy.edges`."""
    # Every node reports half of its pairs, and each pair is reported once (`privacy.edges`).
    row = torch.cat([cohort.edge_index[1], cohort.cross_row])
    neighbour = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cross_id])
    noise, epsilon = noise_of(config.noise), config.release.budget
    return flip_edges(cohort.id, row, neighbour, num_nodes, noise, "edges", epsilon)


# ---- the networks at the server: one undirected graph with tens of millions of edges -----------------------

# The graph is one CSR pattern with int32 indices. It is its own transpose, so gradients use the same rows and
# nothing else of its size is stored. Attention has a number for every edge and head; it is computed for a
# part of the rows at a time, and again in the backward pass. Weights and outputs are those of `nn.backbones`,
# except that attention has no dropout.


@dataclass(frozen=True, eq=False)
class SymmetricGraph:
    """A symmetric adjacency matrix with ones on its diagonal.

    Attributes:
        indptr: [N + 1] int64.
        indices: [E] int32, ascending in each row.
        ones: [E] in the dtype of the features.
        ids: [N] ids of the nodes, for dropout.
    """

    indptr: Tensor
    indices: Tensor
    ones: Tensor
    ids: Tensor

    @property
    def degree(self) -> Tensor:
        """Number of neighbours of every node, itself included, [N] int64."""
        return self.indptr.diff()

    def pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Divide the rows into parts with at most PIECE entries, or of one row: the rows, their indptr
        [n + 1] from 0 and their indices [e].
        """
        start, rows = 0, len(self.ids)
        while start < rows:
            limit = self.indptr[start] + PIECE
            stop = max(start + 1, int(torch.searchsorted(self.indptr, limit, right=True)) - 1)
            first, last = int(self.indptr[start]), int(self.indptr[stop])
            yield (slice(start, stop), self.indptr[start : stop + 1] - first, self.indices[first:last])
            start = stop


def make_symmetric_graph(u: Tensor, v: Tensor, ids: Tensor, dtype: torch.dtype) -> SymmetricGraph:
    """Build the graph of the pairs u, v [E] int32: each pair once, without self-loops."""
    n, device = len(ids), ids.device
    nodes = np.arange(n, dtype=np.int32)
    a, b = u.cpu().numpy(), v.cpu().numpy()
    row, column = np.concatenate([a, b, nodes]), np.concatenate([b, a, nodes])
    matrix = sp.coo_matrix((np.ones(len(row), dtype=np.int8), (row, column)), shape=(n, n)).tocsr()
    # Freed now: with tens of millions of edges each array is hundreds of megabytes.
    del row, column
    # The transpose is the same matrix, with sorted rows.
    matrix = matrix.T.tocsr()
    indices = torch.from_numpy(matrix.indices).int().to(device)
    indptr = torch.from_numpy(matrix.indptr).long().to(device)
    return SymmetricGraph(indptr, indices, torch.ones(len(indices), dtype=dtype, device=device), ids)


def _times(indptr: Tensor, indices: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """Multiply a CSR matrix [n, N] by dense [N, H]; not differentiable."""
    shape = (len(indptr) - 1, len(dense))
    csr = torch.sparse_csr_tensor(indptr.int(), indices, values, shape, check_invariants=False)
    result: Tensor = csr @ dense
    return result


class _Sum(torch.autograd.Function):
    """Sum of h [N, H] over each node's neighbours and itself."""

    @staticmethod
    def forward(ctx: Any, graph: SymmetricGraph, h: Tensor) -> Tensor:
        ctx.graph = graph
        return _times(graph.indptr, graph.indices, graph.ones, h)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        graph = ctx.graph
        return None, _times(graph.indptr, graph.indices, graph.ones, grad.contiguous())


def gcn(weights: dict[str, Tensor], graph: SymmetricGraph, x: Tensor, dropout: Dropout | None) -> Tensor:
    """Run `backbones.gcn_forward` on the features x [N, F] of all nodes."""
    # D^{-1/2} (A + I) D^{-1/2} as a scaling before and after the sum, so that no values are stored at edges.
    scale = graph.degree.to(x.dtype).rsqrt()[:, None]
    layers = _layers(weights)
    h = x
    for layer in range(layers):
        if dropout is not None:
            h = dropout.rows(h, graph.ids, layer)
        h = scale * _Sum.apply(graph, scale * (h @ weights[f"layers.{layer}.weight"]))  # type: ignore[no-untyped-call]
        h = h + weights[f"layers.{layer}.bias"]
        if layer < layers - 1:
            h = h.relu()
    return h


def _layers(weights: dict[str, Tensor]) -> int:
    return sum(name.endswith(".bias") for name in weights)


SLOPE = 0.2  # of GAT's leaky ReLU


class _Attention(torch.autograd.Function):
    """One head of attention.

    From z [N, H] and the scores target [N] and source [N] it computes out_i = sum_j alpha_ij z_j over the
    neighbours j of i and i itself, with alpha_ij = softmax_j(leaky_relu(target_i + source_j)).
    """

    @staticmethod
    def forward(ctx: Any, graph: SymmetricGraph, z: Tensor, target: Tensor, source: Tensor) -> Tensor:
        out, top, total = torch.empty_like(z), torch.empty_like(target), torch.empty_like(target)
        for rows, indptr, indices in graph.pieces():
            counts = indptr.diff()
            source_scores = source.index_select(0, indices)
            # The leaky ReLU is increasing, so the largest source gives the largest score of a row.
            largest_source = torch.segment_reduce(source_scores, "max", offsets=indptr, unsafe=True)
            top[rows] = leaky_relu(target[rows] + largest_source, SLOPE)
            score = leaky_relu(source_scores.add_(_spread(target[rows], counts)), SLOPE)
            # Shifted by the largest score, so that exp does not overflow.
            weight = score.sub_(_spread(top[rows], counts)).exp_()
            total[rows] = torch.segment_reduce(weight, "sum", offsets=indptr, unsafe=True)
            out[rows] = _times(indptr, indices, weight, z) / total[rows, None]
        ctx.graph = graph
        ctx.save_for_backward(z, target, source, out, top, total)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        z, target, source, out, top, total = ctx.saved_tensors
        grad = grad.contiguous()
        mean_inner = (grad * out).sum(1)  # sum_j alpha_ij <grad_i, z_j>
        to_z, to_target, to_source = torch.empty_like(z), torch.zeros_like(target), torch.empty_like(source)
        # Row j of a part is now the source; its neighbours i are the targets to which it contributed.
        for rows, indptr, indices in ctx.graph.pieces():
            score = target.index_select(0, indices).add_(_spread(source[rows], indptr.diff()))
            slope = torch.where(score > 0, 1.0, SLOPE).to(score.dtype)
            alpha = leaky_relu(score, SLOPE).sub_(top.index_select(0, indices)).exp_()
            alpha = alpha.div_(total.index_select(0, indices))
            to_z[rows] = _times(indptr, indices, alpha, grad)
            # <z_j, grad_i> at every entry, then the gradients of the softmax and the leaky ReLU.
            csr = torch.sparse_csr_tensor(
                indptr.int(), indices, alpha, (len(indptr) - 1, len(z)), check_invariants=False
            )
            inner = torch.sparse.sampled_addmm(csr, z[rows], grad.t(), beta=0.0).values()
            to_score = inner.sub(mean_inner.index_select(0, indices)).mul_(alpha).mul_(slope)
            to_source[rows] = torch.segment_reduce(to_score, "sum", offsets=indptr, unsafe=True)
            # A target is in many parts, so its gradient is added up; all entries of a source are in one.
            to_target.index_add_(0, indices, to_score)
        return None, to_z, to_target, to_source


def _spread(values: Tensor, counts: Tensor) -> Tensor:
    """Repeat a row's value for each of its entries."""
    return torch.repeat_interleave(values, counts)


def gat(weights: dict[str, Tensor], graph: SymmetricGraph, x: Tensor, dropout: Dropout | None) -> Tensor:
    """Run `backbones.gat_forward` on the features x [N, F] of all nodes, without dropout on the attention."""
    layers = _layers(weights)
    h = x
    for layer in range(layers):
        if dropout is not None:
            h = dropout.rows(h, graph.ids, layer)
        att_src, att_dst = weights[f"layers.{layer}.att_src"], weights[f"layers.{layer}.att_dst"]
        heads, width = att_src.shape
        z = (h @ weights[f"layers.{layer}.weight"]).view(-1, heads, width)
        source, target = (z * att_src).sum(2), (z * att_dst).sum(2)
        parts = [
            _Attention.apply(graph, z[:, k].contiguous(), target[:, k], source[:, k])  # type: ignore[no-untyped-call]
            for k in range(heads)
        ]
        bias = weights[f"layers.{layer}.bias"]
        h = average_heads(torch.cat(parts, 1), len(bias)) + bias
        if layer < layers - 1:
            h = elu(h)
    return h


NETWORKS = {"gcn": gcn, "gat": gat}


# ---- at the server -----------------------------------------------------------------------------------------


def count_nodes(table: RouteTable) -> dict[str, int]:
    """Count the nodes; InputError if they are not numbered from 0."""
    n = len(table.ids)
    if n and int(table.ids[-1]) != n - 1:
        raise InputError(
            f"naive_fedgnn needs nodes numbered 0..{n - 1}, because every node reports its edges by number; "
            f"there is a node {int(table.ids[-1])}"
        )
    return {"nodes": n}


def collect_release(features: Tensor, edges: Tensor, table: RouteTable) -> dict[str, Tensor]:
    """Collect what was released, in the order of the nodes' ids [U]."""
    arrived = {"features": features, "edges": edges}
    return {name: released.by_node(x, table) for name, x in arrived.items()} | {"ids": table.ids}


def add_labels(released_data: dict[str, Tensor], labels: Tensor, table: RouteTable) -> dict[str, Tensor]:
    """Add the released labels."""
    in_order = released.by_node(labels, table)
    released.check_training(in_order >= 0)
    return released_data | {"labels": in_order}


@dataclass(frozen=True, eq=False)
class ServerData:
    """What the server computes once from the released data.

    Attributes:
        x: [U, F] features.
        training: [n] training nodes; None to predict links.
        target: [n] their classes; None to predict links.
    """

    x: Tensor
    graph: SymmetricGraph
    training: Tensor | None
    target: Tensor | None


def prepare_server(released_data: dict[str, Tensor]) -> ServerData:
    """Build the noised graph."""
    ids, x = released_data["ids"], released_data["features"]
    graph = make_symmetric_graph(*pairs_of_bits(released_data["edges"], ids, len(ids)), ids, x.dtype)
    if "labels" not in released_data:
        return ServerData(x, graph, None, None)
    labels = released_data["labels"].long()
    training = (labels >= 0).nonzero()[:, 0]
    return ServerData(x, graph, training, labels[training])


def draw_pairs(graph: SymmetricGraph, key: int) -> tuple[Tensor, Tensor]:
    """Draw up to PAIRS edges [2, p] of the noised graph and as many pairs [2, q] of different nodes, which
    may be edges too, uniformly with repetition.
    """
    n, entries = len(graph.ids), len(graph.indices)
    # Column 0 draws an entry of the matrix, columns 1 and 2 another pair.
    draws = uniform(key, torch.arange(min(PAIRS, entries), device=graph.ids.device), 3)
    entry = (draws[:, 0] * entries).long().clamp(max=entries - 1)
    # The row whose entries begin at or before the drawn one
    row = torch.searchsorted(graph.indptr, entry, right=True) - 1
    edges = torch.stack([row, graph.indices[entry].long()])
    others = (draws[:, 1:] * n).long().clamp(max=n - 1).t()
    # The diagonal is in the matrix, so self-loops are drawn too and dropped here.
    return edges[:, edges[0] != edges[1]], others[:, others[0] != others[1]]


def select_rows(h: Tensor, released_data: dict[str, Tensor], table: RouteTable) -> Tensor:
    """Select the rows of h [U, H] that a route names, in the order of its table."""
    return h.index_select(0, torch.searchsorted(released_data["ids"], table.ids))


def embed(prepared_data: ServerData, weights: Weights, backbone: str, dropout: Dropout | None) -> Tensor:
    """Compute the last layer's output for every node, [U, H]; to classify, these are logits and H is C."""
    return NETWORKS[backbone](weights, prepared_data.graph, prepared_data.x, dropout)


def train(
    prepared_data: ServerData,
    weights: Weights,
    optimizer: AdamState,
    config: NaiveFedgnnConfig,
    round_number: int,
) -> tuple[Weights, AdamState]:
    """Take the steps of a round."""

    def loss(leaves: Weights, dropout: Dropout | None, step: int) -> Tensor:
        h = embed(prepared_data, leaves, config.network.backbone, dropout)
        if prepared_data.training is None or prepared_data.target is None:
            key = fold(config.run.seed, "pairs", round_number, step)
            edges, others = draw_pairs(prepared_data.graph, key)
            return link_loss(pair_products(h, edges), pair_products(h, others))
        return cross_entropy(h[prepared_data.training], prepared_data.target)

    return released.take_steps(weights, optimizer, config, round_number, loss)


def logits_of(prepared_data: ServerData, weights: Weights, backbone: str) -> Tensor:
    """Compute the output for every node without dropout."""
    with torch.no_grad():
        return embed(prepared_data, weights, backbone, None)


# ---- the program over places -------------------------------------------------------------------------------


def release(fed: Federation, data: Located, route: Route, task: Task, config: NaiveFedgnnConfig) -> Located:
    """Send everything that the clients release, once."""
    n = fed.control(count_nodes, fed.table(route), values={"nodes": int})["nodes"]
    noise, epsilon = noise_of(config.noise), config.release.budget
    fed.log(describe_cost(n, task.num_features, epsilon, config.network.backbone))
    features = fed.upload(
        fed.clients.run(noised_features, data, config),
        route,
        name="naive_fedgnn/features",
        protection=noise.protection(feature_mechanism(task.num_features, config.release, config.bounds)),
        grad=False,
    )
    edges = fed.upload(
        fed.clients.run(noised_edges, data, n, config),
        route,
        name="naive_fedgnn/edges",
        protection=noise.protection(edge_mechanism(epsilon)),
        grad=False,
    )
    released_data = fed.server.run(collect_release, features, edges, fed.table(route))
    # To predict links, labels are not needed and none is released.
    if task.name != CLASSIFICATION:
        return released_data
    labels = fed.upload(
        fed.clients.run(released.noised_labels, data, ("train",), epsilon, config.noise),
        route,
        name="naive_fedgnn/labels",
        protection=noise.protection(label_mechanism(epsilon, task.num_classes)),
        grad=False,
    )
    return fed.server.run(add_labels, released_data, labels, fed.table(route))


def memory_of(num_nodes: int, width: int, epsilon: float) -> float:
    """Estimate the bytes of the false edges and the features at the server."""
    false = expected_edges(num_nodes, 0, epsilon)
    scalar = torch.finfo(torch.get_default_dtype()).bits // 8
    # A directed edge takes 29 bytes while the CSR matrix is built; features are stored twice.
    return max(2 * false * 29, 2 * false * (4 + scalar)) + 2 * num_nodes * width * scalar


def describe_cost(num_nodes: int, width: int, epsilon: float, backbone: str) -> str:
    """Say how many edges there will be, and what they take."""
    false = expected_edges(num_nodes, 0, epsilon)
    memory = memory_of(num_nodes, width, epsilon)
    seconds = 2 * false * SECONDS_PER_EDGE[backbone]
    return (
        f"flipping the bits of {num_nodes} nodes makes about {false:.2g} false edges: about "
        f"{memory / 2**30:.1f} GiB at the server and, on two cores, {seconds:.2g} s an epoch for the edges"
    )


def setup(fed: Federation, data: Located, task: Task, config: NaiveFedgnnConfig) -> State:
    """Release the data and draw the first weights."""
    route = released.node_route(fed, data, task)
    # Everything private is sent here, once; rounds read the server's copy.
    released_data = release(fed, data, route, task, config)
    weights = fed.server.run(initial_weights, task, config.network, config.run.seed, str(fed.device))
    values = {
        "weights": weights,
        "optimizer": fed.server.run(init_state, config.training.optimizer, weights),
        "released": released_data,
    }
    return build_state(fed, data, task, route, values)


def restore(
    fed: Federation, data: Located, task: Task, config: NaiveFedgnnConfig, values: Mapping[str, Located]
) -> State:
    """Rebuild the state of a run that is resumed: nothing is released again, only the nodes' ids are sent."""
    return build_state(fed, data, task, released.node_route(fed, data, task), values)


def build_state(
    fed: Federation, data: Located, task: Task, route: Route, values: Mapping[str, Located]
) -> State:
    """Build the state from the released data, with the routes of scored pairs."""
    prepared_data = fed.server.run(prepare_server, values["released"])
    if task.name == CLASSIFICATION:
        return State(values, Prepared(data, route, prepared_data))
    pairs = {}
    for target in ("val", "test", "all"):
        pair_ids = fed.clients.run(pair_node_ids, data, target)
        pairs[target] = fed.route(pair_ids, name="naive_fedgnn/scored_pairs")
    return State(values, LinkPrepared(data, route, prepared_data, pairs))


@dataclass(frozen=True)
class LinkPrepared(Prepared):
    """What set-up prepares to predict links.

    Attributes:
        pairs: By target: the route of both nodes of the pairs that clients score.
    """

    pairs: Mapping[str, Route]


def pair_node_ids(cohort: Cohort, target: str) -> RowIds:
    """List both nodes of each pair, one after the other."""
    assert cohort.links is not None
    which = cohort.pairs(target)
    row = cohort.links.row[which]
    ids = torch.stack([cohort.id[row], cohort.links.id[which]], 1).flatten()
    return RowIds(ids, cohort.client[row].repeat_interleave(2))


def products(pair_ids: Tensor) -> Tensor:
    """Compute h_u . h_v [n] of rows [2 n, H], the two nodes of each pair one after the other."""
    return (pair_ids[::2] * pair_ids[1::2]).sum(1)


def round(fed: Federation, state: State, config: NaiveFedgnnConfig, round_number: int) -> State:
    """Train for a round at the server."""
    return released.round_at_server(fed, state, train, config, round_number)


def predict(fed: Federation, state: State, config: NaiveFedgnnConfig, target: str) -> Located:
    """Predict at the server and send each client the logits of its nodes, or the embeddings of its pairs."""
    logits = fed.server.run(logits_of, state.prepared.server, state.weights, config.network.backbone)
    if isinstance(state.prepared, LinkPrepared):
        route = state.prepared.pairs[target]
        rows = fed.server.run(select_rows, logits, state.values["released"], fed.table(route))
        pair_ids = fed.download(rows, route, name="naive_fedgnn/embeddings", grad=False)
        return fed.clients.run(products, pair_ids)
    return released.return_logits(fed, state.prepared, logits, target, name="naive_fedgnn/predictions")


MESSAGES = {
    **released.MESSAGES,
    "naive_fedgnn/features": "Every client sends the server, once, all features of every node with Gaussian "
    "noise; with max_set_features the client sets some of them to feature_low before. With a noise_seed the "
    "noise is simulated, and the server could remove it.",
    "naive_fedgnn/edges": "Every client sends the server, once, a bit for each pair of its node and half of "
    "all other nodes: whether they are connected, flipped with probability 1 / (1 + e^epsilon). With a "
    "noise_seed the noise is simulated, and the server could remove it.",
    "naive_fedgnn/labels": "Every client sends the server, once, the class of every training node after "
    "randomised response. With a noise_seed the noise is simulated, and the server could remove it. The "
    "server learns which nodes are trained on.",
    "naive_fedgnn/scored_pairs": "To predict links only: every client sends the server, once for each split, "
    "the ids of both nodes of every pair that it scores. The server reads the pairs, and does not learn "
    "which are edges.",
    "naive_fedgnn/embeddings": "To predict links only: the server sends each client the embeddings of these "
    "nodes.",
    "naive_fedgnn/predictions": "The server sends every client a score of every class for each of its nodes.",
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
    requires=Requirements(
        disjoint=True,
        numbered=True,
        check=check_graph,
        other=("features within feature_low .. feature_high", "edges without weights"),
    ),
    sends=Sent(
        summary="noised features, edges and labels, once; predictions back",
        protection="local differential privacy for features, edges and labels",
        messages=MESSAGES,
    ),
    offers={"backbone": ("gcn", "gat")},
    defaults=released.DEFAULTS,
    paper_settings=released.PAPER,
)
