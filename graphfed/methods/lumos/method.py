"""Lumos: Pan, Zhu and Chu, "Lumos: heterogeneity-aware federated graph learning over decentralized devices",
ICDE 2023 (arXiv:2303.00492).

Every client (the paper: device) is one node. It trains on a tree of itself and some of its neighbours, and
sends the embedding of each leaf to the node that the leaf stands for, which takes the mean of its leaves.

    paper                                here
    N_u, wl(u), Eq. (10)                 Assignment.local, Forest.workload
    r(u), receivers of u                 Assignment.remote: the clients that have u in their tree
    Alg. 1-3                             mcmc; as plain loops assignment.by_greedy, assignment.by_metropolis
    trees, h_mu^l, Eqs. (2), (25)        tree.Forest, tree.general, tree.fused
    x'_u, x''_u, Eqs. (26), (27)         feature_encoding.encode, feature_encoding.received_features
    POOL, Eq. (31)                       pool
    LINEAR, Eq. (32)                     class_scores
    L(h_u), Eq. (33)                     link_loss

In reading order:

    method             set-up, a round, prediction and the losses
    mcmc               the balancer of the paper, Algs. 1-3
    feature_encoding   how features are sent
    tree               the trees and the networks on them: `general` as in the paper, `fused` pair by pair
    client_trees       what clients have when training starts: trees, received features, drawn pairs
    balancing          all balancers; ours are the local rule, the filling of trees and the exact solution
    assignment         the exact solution, and all balancers as plain loops
    config             the settings

In set-up neighbours agree on who trains on each edge (`balancing`), and every client sends a bin of its
noised features to each receiver (`feature_encoding`). In a round, which is an epoch, the server sends the
weights, clients send embeddings of leaves and gradients of them, and the server adds up the gradients of the
weights and takes the step of the optimiser.

What the participants learn. A receiver of u learns the noised bits of one bin (covered by epsilon), the
number of bins, and in every round the gradient of u's loss with respect to the leaf of u. Client u learns in
every round the embedding of its leaf in each receiver's tree. That embedding depends on the receiver's
features without noise, and no epsilon covers it: the paper protects features when they are sent, and not what
embeddings say about them. `balancing` says what becomes known about degrees. With aggregation=plaintext the
server reads each client's gradient, whether its node is for training and, in evaluation, its scores, which
for one node show its label; with aggregation=secure it reads sums over all clients. With
accounting=per_receiver epsilon holds against each receiver alone, and all receivers of u together have r(u)
epsilon.

Differs from the paper (items of docs/papers/lumos.md, "Differences from the paper"): the default balancer is
`local`, the paper's is `mcmc` (16). A client has r(u) bins, with budgets that add up to epsilon also if r(u)
does not divide d, where the paper has wl(u) bins (5). A received bit is read as a shrunk estimate, and 0
stands for a coordinate that was not sent, where the paper decodes without bias and takes the middle of the
bounds (17). A client without any leaf has one of its own (13). Gradients between clients and the sum of the
gradients are exact; the paper does not describe them (12). The loss is a mean over training nodes, and (33)
has log sigma(-s) for pairs that are no edges (8). Trees have training edges only (18).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from graphfed.errors import InputError
from graphfed.federation import Federation, Located, as_leaves
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import constant, detach
from graphfed.federation.route import ExchangeIds, ExchangeRoute
from graphfed.federation.secure.aggregation import check_sums, messages
from graphfed.federation.secure.pair_transfers import pair_route, send, send_bytes
from graphfed.federation.secure.pairs import PairRows, open_pairs
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common.local_training import fresh_state, stepped
from graphfed.methods.common.released import noise_of
from graphfed.methods.common.summed_gradients import GRADIENTS, Weights
from graphfed.methods.lumos import balancing, client_trees, feature_encoding
from graphfed.methods.lumos.client_trees import BitMatrix, ClientTrees, assigned_rows, neighbour_rows
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.mcmc import Assignment
from graphfed.methods.lumos.tree import bias_of_rows, fused, general, multiply
from graphfed.methods.parts import Network
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.nn.layers import Dropout
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.random import fold, glorot

#: Bytes that the gradients of single clients may take in one process.
MAX_BYTES = 4 * 2**30


@dataclass(frozen=True)
class Prepared:
    """What set-up prepares.

    Attributes:
        trees: `ClientTrees` at the clients.
        to_neighbours: Route from each leaf that stands for a neighbour to that neighbour.
        counts: Number of training nodes (to predict links: 1) of each client, at the clients.
        count: Their sum, at the server; None if every round sums it.
        links: The routes of link prediction; None for node classification.
    """

    trees: Located
    to_neighbours: ExchangeRoute
    counts: Located
    count: Located | None
    links: "LinkRoutes | None"


@dataclass(frozen=True)
class LinkRoutes:
    """The routes of link prediction.

    Attributes:
        to_receivers: Route from each client to its receivers.
        scored: By target: route to the client that scores a pair.
        exclusions: `Exclusions` at the clients.
    """

    to_receivers: ExchangeRoute
    scored: Mapping[str, ExchangeRoute]
    exclusions: Located


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: LumosConfig) -> State:
    """Assign the edges, send the features and draw the first weights."""
    check_sums(fed, config.sums.aggregation, fed.num_clients)
    rows = fed.clients.run(neighbour_rows, data)
    fed.begin(f"comparing degrees between neighbours ({fed.num_clients} clients)")
    balanced = balancing.balance(fed, rows, config.balancing, config.run.seed)
    fed.begin("encoding and sending the features")
    # A value of the state: after an interruption nothing is balanced again.
    assignment = fed.clients.run(to_values, balanced.assignment)
    if GRADIENTS[config.sums.aggregation].per_client:
        # Refuse now: once features are sent, their budget is spent.
        fed.clients.run(check_memory, fed.client_ids(), assignment, task, config.network)
    features, sent = send_features(fed, data, rows, assignment, task, config)
    weights = fed.server.run(initial_weights, task, config.network, config.run.seed, str(fed.device))
    values = {
        "weights": weights,
        "optimizer": fed.server.run(fresh_state, weights, config.training),
        "assignment": assignment,
        "features": features,
        "sent": sent,
        "balance": fed.server.run(balance_facts, balanced.candidate_pairs, balanced.rounds, balanced.calls),
    }
    # The rest draws nothing and spends no budget, so a resumed run does the same.
    return restore(fed, data, task, config, values)


def restore(
    fed: Federation, data: Located, task: Task, config: LumosConfig, values: Mapping[str, Located]
) -> State:
    """Rebuild the state of a run whose features have been sent: nothing is balanced or drawn again."""
    fed.begin("building the trees")
    # Clients know from the settings what form of weights the server may send.
    fed.expect("model", initial_weights, task, config.network, config.run.seed, str(fed.device))
    rows, ids = fed.clients.run(neighbour_rows, data), fed.client_ids()
    assignment, features = values["assignment"], values["features"]
    # Checkpoints have the bits as they arrived; decoded features take more memory.
    noised = fed.clients.run(decode_features, data, rows, assignment, features, config)
    trees = fed.clients.run(client_trees.build_trees, data, ids, rows, assignment, noised, config)
    pairs = open_pairs(fed, rows, name="lumos")
    assigned, receivers = fed.clients.run(assigned_rows, assignment, outputs=2)
    to_neighbours = pair_route(fed, pairs, assigned, receivers)
    links = None
    if task.name == LINK_PREDICTION:
        scored = {}
        for target in ("val", "test", "all"):
            remote = fed.clients.run(client_trees.scored_ids, trees, ids, target)
            scored[target] = fed.exchange_route(remote, name="lumos/scored_pairs")
        exclusions = fed.clients.run(client_trees.make_exclusions, rows, ids, fed.num_clients)
        links = LinkRoutes(pair_route(fed, pairs, receivers, assigned), scored, exclusions)
    counts = fed.clients.run(examples, trees)
    if links is None:
        count = GRADIENTS[config.sums.aggregation].count(fed, counts, "lumos")
    else:
        # Every client counts, so nothing is sent.
        count = fed.server.run(constant, fed.num_clients)
    return State(values, Prepared(trees, to_neighbours, counts, count, links))


def send_features(
    fed: Federation, data: Located, rows: Located, assignment: Located, task: Task, config: LumosConfig
) -> tuple[Located, Located]:
    """Send every client's noised features to its receivers, once.

    Returns:
        What has arrived, and the budgets spent, both at the clients.
    """
    pairs = open_pairs(fed, rows, name="lumos")
    assigned, receivers = fed.clients.run(assigned_rows, assignment, outputs=2)
    header, flat, lengths, spent = fed.clients.run(
        encode_features, data, fed.client_ids(), rows, assignment, config, outputs=4
    )
    protection = noise_of(config.noise).protection(feature_encoding.receiver_mechanism(config.encoding))
    headers = send(fed, pairs, header, receivers, assigned, name="lumos/bins", protection="plaintext")
    # Headers first: a receiver must know how many bytes of bits to expect from each client.
    sizes = fed.clients.run(expected_bytes, headers, task.num_features)
    bits = send_bytes(
        fed,
        pairs,
        flat,
        lengths,
        receivers,
        assigned,
        sizes,
        name="lumos/feature_bits",
        protection=protection,
    )
    return fed.clients.run(received_values, headers, bits), spent


def round(fed: Federation, state: State, config: LumosConfig, round_number: int) -> State:
    """Run one epoch."""
    prepared: Prepared = state.prepared
    key = fold(config.run.seed, "dropout", round_number) if config.network.dropout else None
    gradient_sum = GRADIENTS[config.sums.aggregation]
    with fed.tape():
        copy = partial(fed.clients.run, copy_weights, prepared.trees)
        leaves, weights = gradient_sum.broadcast(fed, state.weights, copy)
        h = embeddings(fed, prepared, weights, config.network, key=key, grad=True)
        if prepared.links is None:
            loss = fed.clients.run(class_loss, prepared.trees, h, weights)
        else:
            loss = link_losses(fed, prepared, h, config, round_number)
        fed.backward(loss)
    gradients = gradient_sum.mean(
        fed, fed.gradients(leaves), prepared.counts, prepared.count, state.weights, "lumos"
    )
    values = dict(state.values)
    values["weights"], values["optimizer"] = fed.server.run(
        stepped, values["weights"], gradients, values["optimizer"], config.training, outputs=2
    )
    return State(values, prepared)


def embeddings(
    fed: Federation, prepared: Prepared, weights: Located, network: Network, *, key: int | None, grad: bool
) -> Located:
    """Compute h_u of every client, at the client."""
    own, for_neighbours = fed.clients.run(leaf_embeddings, prepared.trees, weights, network, key, outputs=2)
    arrived = fed.exchange(for_neighbours, prepared.to_neighbours, name="lumos/leaf_embeddings", grad=grad)
    return fed.clients.run(pool, prepared.trees, own, arrived, network, key)


def link_losses(
    fed: Federation, prepared: Prepared, h: Located, config: LumosConfig, round_number: int
) -> Located:
    """Let every client ask the neighbours in its tree and its drawn pairs for their embeddings, and compute
    its loss.
    """
    links = prepared.links
    assert links is not None
    to_send = fed.clients.run(rows_to_send, prepared.trees, h)
    assigned = fed.exchange(to_send, links.to_receivers, name="lumos/assigned_embeddings")
    wanted = fed.clients.run(
        client_trees.draw_negatives,
        prepared.trees,
        links.exclusions,
        fed.client_ids(),
        config.links.negatives,
        fold(config.run.seed, "negatives", round_number),
    )
    route = fed.exchange_route(wanted, name="lumos/negative_ids")
    drawn = fed.exchange(h, route, name="lumos/negative_embeddings")
    return fed.clients.run(link_loss, prepared.trees, wanted, h, assigned, drawn)


def predict(fed: Federation, state: State, config: LumosConfig, target: str) -> Located:
    """Score the target's nodes or pairs at the clients, from their trees and the embeddings that they
    receive.
    """
    prepared: Prepared = state.prepared
    weights = fed.broadcast(state.weights, name="model", grad=False)
    h = fed.clients.run(detach, embeddings(fed, prepared, weights, config.network, key=None, grad=False))
    if prepared.links is None:
        scores = fed.clients.run(class_scores, prepared.trees, h, weights, target)
    else:
        remote = fed.exchange(h, prepared.links.scored[target], name="lumos/scored_embeddings", grad=False)
        scores = fed.clients.run(pair_scores, prepared.trees, h, remote, target)
    return scores


def compute_client_statistics(fed: Federation, state: State, config: LumosConfig) -> Located:
    """Compute every client's statistics."""
    prepared, values = state.prepared, state.values
    negatives = config.links.negatives
    return fed.clients.run(client_figures, prepared.trees, values["assignment"], values["sent"], negatives)


def client_figures(
    trees: ClientTrees, assignment: dict[str, Tensor], sent: dict[str, Tensor], negatives: int
) -> dict[str, Tensor]:
    """Return the columns of clients.parquet.

    neighbours; kept: those in the client's tree, wl(u); receivers, r(u); feature_bits: bits of features sent,
    each counted once; epsilon: budget against the receiver that learns most; epsilon_colluding: against all
    receivers together; comparisons: outcomes learned; embeddings: rounds of communication in an epoch
    (docs/papers/lumos.md, item 14).
    """
    cohort, assigned = trees.cohort, trees.forest.workload
    receivers = torch.bincount(trees.receivers, minlength=len(assigned))
    # Embeddings of leaves, sent and received
    moved = assigned + receivers
    if cohort.links is not None:
        moved = moved + assigned * (1 + negatives)
    return {
        "neighbours": torch.bincount(cohort.cross_row, minlength=len(assigned)),
        "kept": assigned,
        "receivers": receivers,
        "feature_bits": sent["coordinates"],
        "epsilon": sent["epsilon"],
        "epsilon_colluding": sent["colluding"],
        "comparisons": assignment["outcomes"],
        "embeddings": moved,
    }


# ---- at the clients: features ------------------------------------------------------------------------------


def to_values(assignment: Assignment) -> dict[str, Tensor]:
    """Return an assignment as values of the state; its history is not kept."""
    return {"local": assignment.local, "remote": assignment.remote, "outcomes": assignment.outcomes}


def encode_features(
    cohort: Cohort, ids: Tensor, rows: PairRows, assignment: dict[str, Tensor], config: LumosConfig
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Encode the features for all receivers of a cohort's clients."""
    _, receiving = assigned_rows(assignment)
    assert cohort.x is not None
    sent = feature_encoding.encode(cohort.x, ids, rows.client[receiving], rows.other[receiving], config)
    spent = {"epsilon": sent.epsilon, "colluding": sent.colluding, "coordinates": sent.coordinates}
    return sent.header, sent.flat, sent.lengths, spent


def expected_bytes(header: Tensor, width: int) -> Tensor:
    """Return how many bytes of bits follow each header."""
    _, size = feature_encoding.announced_bins(header, width)
    return feature_encoding.bytes_of_bins(size)


def received_values(header: Tensor, flat: Tensor) -> dict[str, Tensor]:
    """Return received features as values of the state."""
    return {"header": header, "flat": flat}


def decode_features(
    cohort: Cohort,
    rows: PairRows,
    assignment: dict[str, Tensor],
    features: dict[str, Tensor],
    config: LumosConfig,
) -> BitMatrix:
    """Decode the features that have arrived for the neighbours in the trees, [P, F]."""
    sender = rows.other[assigned_rows(assignment)[0]]
    return feature_encoding.received_features(
        features["header"], features["flat"], sender, cohort.num_features, config
    )


# ---- at the clients: training ------------------------------------------------------------------------------


def copy_weights(trees: ClientTrees, weights: Weights) -> Weights:
    """Copy the weights for every client, as leaves [n, ...] that collect its own gradient."""
    n = trees.forest.num_clients
    leaves: Weights = as_leaves({name: w.expand(n, *w.shape).contiguous() for name, w in weights.items()})
    return leaves


def examples(trees: ClientTrees) -> Tensor:
    """Count what the mean loss is over at each client, [n] int64: training nodes, or in link prediction the
    client itself.
    """
    cohort = trees.cohort
    if cohort.links is not None:
        return torch.ones(trees.forest.num_clients, dtype=torch.int64, device=cohort.client.device)
    return torch.bincount(cohort.client[cohort.rows("train")], minlength=cohort.num_clients)


def leaf_embeddings(
    trees: ClientTrees, weights: Weights, network: Network, key: int | None
) -> tuple[Tensor, Tensor]:
    """Compute the embeddings of own leaves, and of the leaves that stand for neighbours [P, H]."""
    own, noised = multiply_features(trees, weights["layers.0.weight"])
    dropout = None if key is None else Dropout(network.dropout, key)
    if trees.blocks is None:
        leaves = fused(trees.forest, weights, own, noised, network.backbone, network.layers, dropout)
    else:
        leaves = general(trees.forest, trees.blocks, weights, own, noised, network.backbone, dropout)
    return leaves.own, leaves.noised


def multiply_features(trees: ClientTrees, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Compute x_u W of every client [n, H] and x''_v W of every leaf that stands for a neighbour [P, H]."""
    x, forest = trees.cohort.x, trees.forest
    assert x is not None
    if weight.dim() == 3:  # every client has a copy of its own
        dense = x.to_dense() if isinstance(x, SparseMatrix) else x
        # A `BitMatrix` multiplies by one matrix; copies need the rows themselves.
        received = trees.noised.to_dense() + trees.unsent_value
        return multiply(dense, weight, forest.clients), multiply(received, weight, forest.client)
    own = spmm(x, weight) if isinstance(x, SparseMatrix) else x @ weight
    # x'' deviates from `unsent_value` at the coordinates of the bin only.
    noised = trees.noised @ weight
    return own, noised + trees.unsent_value * weight.sum(0) if trees.unsent_value else noised


def pool(trees: ClientTrees, own: Tensor, arrived: Tensor, network: Network, key: int | None) -> Tensor:
    """Compute h_u [n, H], the mean over all leaves that stand for u. The last dropout acts on h_u, not on
    leaves.
    """
    # Eq. (31)
    h = spmm(trees.own_pool, own) + spmm(trees.received_pool, arrived)
    return (
        h if key is None else Dropout(network.dropout, key).rows(h, trees.forest.ids[0], network.layers - 1)
    )


def class_scores(trees: ClientTrees, h: Tensor, weights: Weights, target: str) -> Tensor:
    """Compute z_u for a target's nodes, [n, C]."""
    rows, bias = trees.cohort.rows(target), weights["predictor.bias"]
    # Eq. (32)
    return multiply(h.index_select(0, rows), weights["predictor.weight"], rows) + bias_of_rows(bias, rows)


def class_loss(trees: ClientTrees, h: Tensor, weights: Weights) -> Tensor:
    """Compute the cohort's sum of cross-entropies over its training nodes, each times the weight of its
    class.
    """
    cohort = trees.cohort
    logits = class_scores(trees, h, weights, "train")
    return cross_entropy(logits, cohort.y[cohort.rows("train")], weight=cohort.class_weights, reduction="sum")


def rows_to_send(trees: ClientTrees, h: Tensor) -> Tensor:
    """Select h_u for every receiver of u, [R, H]."""
    return h.index_select(0, trees.receivers)


def link_loss(
    trees: ClientTrees, wanted: ExchangeIds, h: Tensor, neighbour_embeddings: Tensor, drawn: Tensor
) -> Tensor:
    """Compute the cohort's sum of the loss of link prediction, with log sigma(-s) for a drawn pair where the
    paper prints log(-sigma(s)).

    neighbour_embeddings: [P, H] of the neighbours in the trees. drawn: [Q, H] of the drawn clients.
    """
    positive = (h.index_select(0, trees.leaf_owners) * neighbour_embeddings).sum(1)
    negative = (h.index_select(0, wanted.client) * drawn).sum(1)
    # Eq. (33): -log sigma(s) = softplus(-s) does not overflow for large |s|.
    return softplus(-positive).sum() + softplus(negative).sum()


def pair_scores(trees: ClientTrees, h: Tensor, remote: Tensor, target: str) -> Tensor:
    """Score the pairs of a target by h_u . h_v, [p]; remote: [p, H] h_v of the other clients."""
    links = trees.cohort.links
    assert links is not None
    return (h.index_select(0, links.row[trees.cohort.pairs(target)]) * remote).sum(1)


# ---- at the server, and before anything is sent ------------------------------------------------------------


def initial_weights(task: Task, network: Network, seed: int, device: str) -> Weights:
    """Draw the weights of the network and, to classify, predictor.weight [H, C] and predictor.bias [C]."""
    key = fold(seed, "weights")
    widths = [task.num_features, *[network.hidden] * network.layers]
    weights = network.kernel.init(key, widths, network.attention_heads)
    if task.name == CLASSIFICATION:
        weights["predictor.weight"] = glorot(fold(key, "predictor"), network.hidden, task.num_classes)
        weights["predictor.bias"] = torch.zeros(task.num_classes)
    return {name: w.to(device) for name, w in weights.items()}


def balance_facts(candidate_pairs: Tensor, rounds: int, calls: int) -> dict[str, Tensor]:
    """Return what everyone knows about the balancing; see `Balance`."""
    return {
        "balance_rounds": torch.tensor(rounds),
        "balance_calls": torch.tensor(calls),
        "candidate_pairs": candidate_pairs,
    }


def check_memory(ids: Tensor, assignment: dict[str, Tensor], task: Task, network: Network) -> None:
    """Refuse to start if the weights copied for every client would take more than MAX_BYTES, before features
    are sent.
    """
    weights = initial_weights(task, network, 0, "cpu")
    n, rows = len(ids), len(ids) + int(assignment["local"].sum())
    first = weights["layers.0.weight"]
    # Copies and gradients of all weights; the first layer's are gathered for each row (`tree.multiply`).
    need = (2 * n * sum(w.numel() for w in weights.values()) + 2 * rows * first.numel()) * first.itemsize
    if need > MAX_BYTES:
        raise InputError(
            f"a gradient for every client takes about {need / 1e9:.3g} GB for {n} clients in one process, "
            f"more than {MAX_BYTES / 1e9:.3g}; use aggregation=plaintext, fewer clients or features, or more "
            "workers"
        )


# ---- what the report says ----------------------------------------------------------------------------------


_LINKS = "To predict links only"

#: What the report says of every transfer: who sends what to whom, and who can read it.
MESSAGES = {
    **balancing.MESSAGES,
    "lumos/bins": "A client sends each receiver (a neighbour that has the client in its tree), once, the "
    "number of bins of its features and the number of the bin that this receiver gets. Without pad_bins the "
    "first is the number of its receivers, which is a bound on its degree. The receiver reads both.",
    "lumos/feature_bits": "A client sends each receiver, once, the noised bits of one bin of its features. "
    "The bits alone let the receiver distinguish two feature vectors no better than epsilon allows; with "
    "accounting=per_receiver that holds for each receiver alone, with accounting=coalition for all together.",
    "lumos/training_count": "With aggregation=plaintext every client sends the server, once, whether its "
    "node is for training. The server reads it for each client.",
    "model": "The server sends the shared weights to every client, in every round and evaluation.",
    "model/grad": "With aggregation=plaintext every client sends the server its gradient of the weights, in "
    "every round. The server reads it. It depends on the client's features and label, without noise.",
    **messages(
        "lumos/gradient",
        "With aggregation=secure, in every round",
        "a client's gradient of the weights, and whether its node is for training",
    ),
    "lumos/leaf_embeddings": "A client sends each neighbour in its tree the embedding of the leaf that "
    "stands for this neighbour, in every round and evaluation. The neighbour reads it. It depends on the "
    "sender's features without noise, and on weights that both know; no epsilon covers it.",
    "lumos/leaf_embeddings/grad": "The neighbour sends back the gradient of its loss with respect to that "
    "embedding, in every round. The client that sent the embedding reads it. It depends on the label of the "
    "node (to predict links: on its neighbours), and no epsilon covers it.",
    "lumos/scored_pairs": f"{_LINKS}: a client that scores a pair of nodes announces to the other node's "
    "client, once, that it will ask for its embedding. That client learns who asks, and not whether the two "
    "are neighbours.",
    "lumos/scored_embeddings": f"{_LINKS}: a client sends its embedding to each client that scores a pair "
    "with it, in every evaluation. The receiver reads it. It depends on features without noise.",
    "lumos/assigned_embeddings": f"{_LINKS}: a client sends its embedding to each of its receivers, in every "
    "round. The receiver reads it. It depends on features without noise.",
    "lumos/assigned_embeddings/grad": f"{_LINKS}: the receiver sends back the gradient of its loss with "
    "respect to that embedding, in every round. The client reads it. It is a multiple of the receiver's "
    "embedding.",
    "lumos/negative_ids": f"{_LINKS}: a client asks each client that it has drawn among those that are no "
    "neighbours for its embedding, in every round. That client learns that the two are no neighbours.",
    "lumos/negative_embeddings": f"{_LINKS}: a drawn client sends its embedding to the client that asked, in "
    "every round. The receiver reads it. It depends on features without noise.",
    "lumos/negative_embeddings/grad": f"{_LINKS}: the client that asked sends back the gradient of its loss "
    "with respect to that embedding, in every round. The drawn client reads it. It is a multiple of the "
    "other client's embedding.",
}

#: The column of a client's statistics that counts the recipients of each transfer.
RECIPIENTS = {
    **dict.fromkeys(balancing.BETWEEN_NEIGHBOURS, "neighbours"),
    "lumos/bins": "receivers",
    "lumos/feature_bits": "receivers",
    "lumos/leaf_embeddings": "kept",
    "lumos/leaf_embeddings/grad": "receivers",
    "lumos/assigned_embeddings": "receivers",
    "lumos/assigned_embeddings/grad": "kept",
}

METHOD = Method(
    name="lumos",
    summary="one client for each node; noised features, balanced trees, embeddings between neighbours",
    paper="Pan, Zhu, Chu: Lumos: heterogeneity-aware federated graph learning over decentralized devices. "
    "ICDE 2023, arXiv:2303.00492",
    config=LumosConfig,
    tasks=(CLASSIFICATION, LINK_PREDICTION),
    partition="ego",
    setup=setup,
    round=round,
    predict=predict,
    restore=restore,
    client_statistics=compute_client_statistics,
    requires=Requirements(
        disjoint=True,
        nodes_per_client="one",
        check=client_trees.check_graph,
        other=("features within feature_low .. feature_high", "edges without weights"),
    ),
    state=StateValues(facts="balance"),
    sends=Sent(
        summary="noised features, once; embeddings of leaves and gradients, every round",
        protection="features by local differential privacy, degrees by secure comparisons; embeddings in "
        "plaintext",
        messages=MESSAGES,
        recipients=RECIPIENTS,
    ),
    offers={"backbone": ("gcn", "gat")},
    defaults={"features": "raw", "protocols": "simulated"},
    paper_settings={
        "rounds": 300,
        "optimizer": "adam",
        "lr": 0.01,
        "weight_decay": 0.0,
        "dropout": 0.01,
        "heads": 4,
        "eval_every": 5,
    },
)
