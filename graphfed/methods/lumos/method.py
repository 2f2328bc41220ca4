"""Lumos: Pan, Zhu and Chu, "Lumos: heterogeneity-aware federated graph learning over decentralized
devices", ICDE 2023 (arXiv:2303.00492). One device for each node, which knows its own features, label and
neighbours: it learns on a tree of itself and the neighbours that it keeps; a leaf's embedding goes to the
node that it stands for, which pools those it gets.

    paper                                here
    N_u, wl(u)                           Kept.keeps, Forest.workload
    r(u): who keeps u                    Kept.kept_by
    Alg. 1-3, problem (10)               balancing.balance
    trees, h_mu^l                        tree.Forest, fused or general
    x'_u, x''_u (26), (27)               feature_encoding.encode and received_features
    POOL (31)                            pool
    LINEAR (32), cross-entropy           predictor.weight and .bias; class_loss
    L(h_u) (33)                          link_loss

Once: neighbours agree who keeps an edge (`balancing`), and every device sends a bin of its features, noised,
to each device that keeps it (`feature_encoding`). In a round, which is an epoch: the weights come from the
server, leaves' embeddings go to the nodes that they stand for and their gradients back, and the gradients
of the weights add up at the server, which takes the step.

What it shows. To a device that keeps it a node shows the noised bits of one bin (epsilon), how many bins it
has, and in every round, as the gradient that it sends back, how its loss changes with that leaf. It gets,
from every device that keeps it, the embedding of the leaf that stands for it; and that comes from that
device's own features, without noise: two layers above them, with weights that both know, anew in every round.
No epsilon covers it. The paper counts features as protected because they are noised when they are sent; it
does not count what goes back in embeddings. Degrees: see `balancing`. With aggregation=plaintext the server
gets each device's gradient, whether it is trained on and, from the run's evaluation, its scores, which for
one node are its label; with aggregation=secure it gets sums of all three over the devices, and no label
crosses. With accounting=per_receiver epsilon holds against each receiver alone: all r(u) of them together
have r(u) epsilon.

Differs from the paper (reasons: docs/papers/lumos.md): the balancer is `local` (the paper: mcmc). Bins are
for the r(u) receivers, with a budget that adds up to epsilon also where r(u) does not divide d (the paper:
wl(u) bins). A received bit is read as a shrunk estimate (the paper: decode=unbiased), and 0 stands for a
coordinate that was not sent (the paper: the middle of the bounds); `feature_encoding` says why both matter. A
device without any leaf has one of its own. The backward pass and the sum of the gradients, of which the paper
does not speak, are exact. The loss is a mean over training nodes, and (33) has log sigma(-s) for pairs
that are no edges. Trees have training edges only."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import detach
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.aggregation import check_sums, messages
from graphfed.federation.secure.pair_transfers import pair_route, send, send_bytes
from graphfed.federation.secure.pairs import PairRows, open_pairs
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common.memory import NUMBER, GraphExtent
from graphfed.methods.common.split_learning import initial_optimizer, step
from graphfed.methods.lumos import balancing, feature_encoding
from graphfed.methods.lumos.balancing import balance
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.devices import Devices, check_graph, neighbour_rows
from graphfed.methods.lumos.feature_encoding import (
    announced_sizes,
    bytes_of_bins,
    encode,
    received_features,
)
from graphfed.methods.lumos.gradients import GRADIENTS, Weights
from graphfed.methods.lumos.links import (
    draw_negatives,
    link_loss,
    look_around,
    pair_scores,
    rows_to_send,
    scored_ends,
)
from graphfed.methods.lumos.tree import FUSED_LAYERS, at, fused, general, make_forest, times
from graphfed.methods.lumos.workload import Kept
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.nn.layers import Dropout
from graphfed.nn.sparse import SparseMatrix, spmm
from graphfed.privacy.noise import Noise
from graphfed.random import fold, glorot

__all__ = ["METHOD"]

#: Of every device's own gradient, in one process.
MAX_BYTES = 4 * 2**30


# ---- what a cohort's devices know --------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """What set-up left: devices, at the clients; to_receivers: from the leaves that stand for a neighbour to
    that neighbour; train: how many nodes are trained on, at the server, None where every round sums them
    anew; links: None to classify."""

    devices: Located
    to_receivers: ExchangeRoute
    train: Located | None
    links: "LinkRoutes | None"


@dataclass(frozen=True)
class LinkRoutes:
    """Of link prediction: to_keepers: from each device to those that keep it; scored: to the device that
    scores a pair, by target; around: at the clients, whom not to draw."""

    to_keepers: ExchangeRoute
    scored: Mapping[str, ExchangeRoute]
    around: Located


def positions(kept: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The rows of neighbours that a device keeps [P], and of those that keep it [R], ascending."""
    return kept["keeps"].nonzero()[:, 0], kept["kept_by"].nonzero()[:, 0]


def as_values(kept: Kept) -> dict[str, Tensor]:
    return {"keeps": kept.keeps, "kept_by": kept.kept_by, "outcomes": kept.outcomes}


def prepare(
    cohort: Cohort,
    ids: Tensor,
    rows: PairRows,
    trees: dict[str, Tensor],
    received: dict[str, Tensor],
    config: LumosConfig,
) -> Devices:
    """ids [n]: of the cohort's clients."""
    keeps, kept_by = positions(trees)
    device, receivers, other = rows.client[keeps], rows.client[kept_by], rows.other[keeps]
    workload, arriving = (torch.bincount(r, minlength=len(ids)) for r in (device, receivers))
    lone = ((workload + arriving) == 0).nonzero()[:, 0]
    forest = make_forest(device, ids[device], other, lone, ids, virtual=config.virtual_nodes)
    blocks = None
    if not is_fused(config):
        blocks = forest.blocks(config.backbone, config.heads, config.layers)
    noised = received_features(received["header"], received["flat"], other, cohort.num_features, config)
    own = torch.cat([device, lone]) if config.virtual_nodes else torch.arange(len(ids), device=ids.device)
    leaves = torch.bincount(own, minlength=len(ids)) + arriving
    return Devices(
        cohort,
        forest,
        blocks,
        noised,
        config.unsent_value,
        pool_matrix(own, leaves),
        pool_matrix(receivers, leaves),
        device,
        receivers,
    )


def pool_matrix(rows: Tensor, leaves: Tensor) -> SparseMatrix:
    """[n, m]: for each of m leaves the share of the node rows[m] that it stands for; leaves [n]: how many
    each node has."""
    share = 1 / leaves[rows].to(torch.get_default_dtype())
    column = torch.arange(len(rows), device=rows.device)
    return SparseMatrix.from_coo(rows, column, share, (len(leaves), len(rows)))


def is_fused(config: LumosConfig) -> bool:
    return config.trainer == "fused" and config.virtual_nodes and config.layers <= FUSED_LAYERS


# ---- at the devices: embeddings ----------------------------------------------------------------------------


def leaf_embeddings(
    devices: Devices, weights: Weights, config: LumosConfig, key: int | None
) -> tuple[Tensor, Tensor]:
    """Embeddings of own leaves, and of the leaves [P, H] that stand for neighbours."""
    own, noised = first_products(devices, weights["layers.0.weight"])
    dropout = None if key is None else Dropout(config.dropout, key)
    if devices.blocks is None:
        leaves = fused(devices.forest, weights, own, noised, config.backbone, config.layers, dropout)
    else:
        leaves = general(devices.forest, devices.blocks, weights, own, noised, config.backbone, dropout)
    return leaves.own, leaves.noised


def first_products(devices: Devices, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x_u W of every device [n, H], and x''_v W of every kept pair [P, H]."""
    x, forest = devices.cohort.x, devices.forest
    assert x is not None
    if weight.dim() == 3:  # every device's own copy
        dense = x.to_dense() if isinstance(x, SparseMatrix) else x
        received = devices.noised.to_dense() + devices.unsent_value
        return times(dense, weight, forest.devices), times(received, weight, forest.device)
    own = spmm(x, weight) if isinstance(x, SparseMatrix) else x @ weight
    # x'' deviates from `unsent_value` at the coordinates of the bin only.
    noised = devices.noised @ weight
    return own, noised + devices.unsent_value * weight.sum(0) if devices.unsent_value else noised


def pool(devices: Devices, own: Tensor, arrived: Tensor, config: LumosConfig, key: int | None) -> Tensor:
    """Eq. (31): h_u [n, H], the mean over all leaves that stand for u; with dropout, of a node in the place
    of its leaves."""
    h = spmm(devices.own_pool, own) + spmm(devices.received_pool, arrived)
    return (
        h if key is None else Dropout(config.dropout, key).rows(h, devices.forest.ids[0], config.layers - 1)
    )


def logits_of(devices: Devices, h: Tensor, weights: Weights, target: str) -> Tensor:
    """Eq. (32) of a target's rows, [n, C]."""
    rows, bias = devices.cohort.rows(target), weights["predictor.bias"]
    return times(h.index_select(0, rows), weights["predictor.weight"], rows) + at(bias, rows)


def check_memory(ids: Tensor, trees: dict[str, Tensor], task: Task, config: LumosConfig) -> None:
    """InputError where `copies` would take more than MAX_BYTES. Before features are released."""
    weights = initial_weights(task, config, "cpu")
    n, rows = len(ids), len(ids) + int(trees["keeps"].sum())
    first = weights["layers.0.weight"]
    need = (2 * n * sum(w.numel() for w in weights.values()) + 2 * rows * first.numel()) * first.itemsize
    if need > MAX_BYTES:
        raise InputError(
            f"every device's own gradient takes about {need / 1e9:.3g} GB for {n} devices in one process, "
            f"more than {MAX_BYTES / 1e9:.3g}; use aggregation=plaintext, fewer devices or features, or more "
            "processes"
        )


def class_loss(devices: Devices, h: Tensor, weights: Weights) -> Tensor:
    """The cohort's sum over its training nodes, each times the weight of its class."""
    cohort = devices.cohort
    logits = logits_of(devices, h, weights, "train")
    return cross_entropy(logits, cohort.y[cohort.rows("train")], weight=cohort.class_weights, reduction="sum")


# ---- at the server -----------------------------------------------------------------------------------------


def initial_weights(task: Task, config: LumosConfig, device: str) -> Weights:
    """Those of the backbone; predictor.weight [H, C] and .bias [C] to classify."""
    key = fold(config.seed, "weights")
    widths = [task.num_features, *[config.hidden] * config.layers]
    weights = config.network.init(key, widths, config.heads)
    if task.name == CLASSIFICATION:
        weights["predictor.weight"] = glorot(fold(key, "predictor"), config.hidden, task.num_classes)
        weights["predictor.bias"] = torch.zeros(task.num_classes)
    return {name: w.to(device) for name, w in weights.items()}


def counts_of(beside: Tensor, rounds: int, calls: int) -> dict[str, Tensor]:
    """What everyone knows of balancing (`Balance`)."""
    return {
        "balance_rounds": torch.tensor(rounds),
        "balance_calls": torch.tensor(calls),
        "candidate_pairs": beside,
    }


# ---- the program over places -------------------------------------------------------------------------------


def memory(extent: GraphExtent, config: LumosConfig) -> float:
    """The leaves of the trees: a device's own and one for each of its neighbours, with features."""
    width = config.hidden * (config.heads if config.backbone == "gat" else 1)
    return extent.closure * NUMBER * (2 * extent.features + 12 * width)


def setup(fed: Federation, data: Located, task: Task, config: LumosConfig) -> State:
    check_sums(fed, config.aggregation, fed.num_clients)
    rows = fed.clients.run(neighbour_rows, data)
    fed.begin(f"comparing degrees between the neighbours of {fed.num_clients} devices")
    balanced = balance(fed, rows, config)
    fed.begin("encoding and sending the features")
    trees = fed.clients.run(as_values, balanced.kept)
    if GRADIENTS[config.aggregation].apart:
        fed.clients.run(check_memory, fed.client_ids(), trees, task, config)
    features, sent = send_features(fed, data, rows, trees, task, config)
    weights = fed.server.run(initial_weights, task, config, str(fed.device))
    values = {
        "weights": weights,
        "optimizer": fed.server.run(initial_optimizer, weights, config),
        "trees": trees,
        "features": features,
        "sent": sent,
        "balance": fed.server.run(counts_of, balanced.beside, balanced.rounds, balanced.calls),
    }
    return restore(fed, data, task, config, values)


def restore(
    fed: Federation, data: Located, task: Task, config: LumosConfig, values: Mapping[str, Located]
) -> State:
    """The state of a run whose features were sent before: nothing is balanced or drawn again."""
    fed.begin("making the trees")
    rows, ids = fed.clients.run(neighbour_rows, data), fed.client_ids()
    devices = fed.clients.run(prepare, data, ids, rows, values["trees"], values["features"], config)
    pairs = open_pairs(fed, rows, name="lumos")
    kept, receivers = fed.clients.run(positions, values["trees"], outputs=2)
    to_receivers = pair_route(fed, pairs, kept, receivers)
    links = None
    if task.name == LINK_PREDICTION:
        scored = {}
        for target in ("val", "test", "all"):
            ends = fed.clients.run(scored_ends, devices, ids, target)
            scored[target] = fed.exchange_route(ends, name="lumos/scored_pairs")
        around = fed.clients.run(look_around, rows, ids, fed.num_clients)
        links = LinkRoutes(pair_route(fed, pairs, receivers, kept), scored, around)
    train = GRADIENTS[config.aggregation].count(fed, devices, task)
    return State(values, Prepared(devices, to_receivers, train, links))


def send_features(
    fed: Federation, data: Located, rows: Located, trees: Located, task: Task, config: LumosConfig
) -> tuple[Located, Located]:
    """Every device's features to those that keep it, once: what arrived, and what was spent, at the
    clients."""
    pairs = open_pairs(fed, rows, name="lumos")
    kept, receivers = fed.clients.run(positions, trees, outputs=2)
    header, flat, lengths, spent = fed.clients.run(
        encoded, data, fed.client_ids(), rows, trees, config, outputs=4
    )
    protection = Noise(config.noise_seed).protection(feature_encoding.receiver_mechanism(config))
    told = send(fed, pairs, header, receivers, kept, name="lumos/bins", protection="clear")
    sizes = fed.clients.run(expected_bytes, told, task.num_features)
    bits = send_bytes(
        fed, pairs, flat, lengths, receivers, kept, sizes, name="lumos/feature_bits", protection=protection
    )
    return fed.clients.run(received, told, bits), spent


def encoded(
    cohort: Cohort, ids: Tensor, rows: PairRows, trees: dict[str, Tensor], config: LumosConfig
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    _, kept_by = positions(trees)
    assert cohort.x is not None
    sent = encode(cohort.x, ids, rows.client[kept_by], rows.other[kept_by], config)
    spent = {"epsilon": sent.epsilon, "colluding": sent.colluding, "coordinates": sent.coordinates}
    return sent.header, sent.flat, sent.lengths, spent


def expected_bytes(header: Tensor, width: int) -> Tensor:
    return bytes_of_bins(announced_sizes(header, width))


def received(header: Tensor, flat: Tensor) -> dict[str, Tensor]:
    return {"header": header, "flat": flat}


def embeddings(
    fed: Federation, prepared: Prepared, weights: Located, config: LumosConfig, *, key: int | None, grad: bool
) -> Located:
    """h_u of every device, at the device."""
    own, stand_in = fed.clients.run(leaf_embeddings, prepared.devices, weights, config, key, outputs=2)
    arrived = fed.exchange(stand_in, prepared.to_receivers, name="lumos/leaf_embeddings", grad=grad)
    return fed.clients.run(pool, prepared.devices, own, arrived, config, key)


def link_losses(fed: Federation, prepared: Prepared, h: Located, config: LumosConfig, number: int) -> Located:
    """Every device asks those that it keeps, and as many that are no neighbours, for their embeddings."""
    links = prepared.links
    assert links is not None
    there = fed.clients.run(rows_to_send, prepared.devices, h)
    kept = fed.exchange(there, links.to_keepers, name="lumos/assigned_embeddings")
    wanted = fed.clients.run(draw_negatives, prepared.devices, links.around, fed.client_ids(), config, number)
    route = fed.exchange_route(wanted, name="lumos/negative_ids")
    drawn = fed.exchange(h, route, name="lumos/negative_embeddings")
    return fed.clients.run(link_loss, prepared.devices, wanted, h, kept, drawn)


def round(fed: Federation, state: State, config: LumosConfig, number: int) -> State:
    prepared: Prepared = state.prepared
    key = fold(config.seed, "dropout", number) if config.dropout else None
    gradient_sum = GRADIENTS[config.aggregation]
    with fed.tape():
        leaves, weights = gradient_sum.broadcast(fed, prepared.devices, state.weights)
        h = embeddings(fed, prepared, weights, config, key=key, grad=True)
        if prepared.links is None:
            loss = fed.clients.run(class_loss, prepared.devices, h, weights)
        else:
            loss = link_losses(fed, prepared, h, config, number)
        fed.backward(loss)
    gradients = gradient_sum.mean(fed, prepared.devices, fed.gradients(leaves), prepared.train, state.weights)
    values = dict(state.values)
    values["weights"], values["optimizer"] = fed.server.run(
        step, values["weights"], gradients, values["optimizer"], config, outputs=2
    )
    return State(values, prepared)


def predict(fed: Federation, state: State, config: LumosConfig, target: str) -> Located:
    """Every device with its tree, and the leaves that others send."""
    prepared: Prepared = state.prepared
    weights = fed.broadcast(state.weights, name="model", grad=False)
    h = fed.clients.run(detach, embeddings(fed, prepared, weights, config, key=None, grad=False))
    if prepared.links is None:
        scores = fed.clients.run(logits_of, prepared.devices, h, weights, target)
    else:
        ends = fed.exchange(h, prepared.links.scored[target], name="lumos/scored_embeddings", grad=False)
        scores = fed.clients.run(pair_scores, prepared.devices, h, ends, target)
    return scores


def account(fed: Federation, state: State, config: LumosConfig) -> Located:
    """What every device can say of itself."""
    prepared, values = state.prepared, state.values
    return fed.clients.run(own_figures, prepared.devices, values["trees"], values["sent"], config)


def own_figures(
    devices: Devices, trees: dict[str, Tensor], sent: dict[str, Tensor], config: LumosConfig
) -> dict[str, Tensor]:
    """neighbours; kept: those in its tree; receivers: those that keep it; feature_bits that it sent, each
    once; epsilon against the receiver that learns most, epsilon_colluding against all together; comparisons
    whose outcomes it learned; embeddings: leaves' embeddings that it sends and gets in an epoch, with those
    that the unsupervised loss asks for (a round of communication each: docs/papers/lumos.md,
    Differences from the paper, item 14)."""
    cohort, kept = devices.cohort, devices.forest.workload
    receivers = torch.bincount(devices.receivers, minlength=len(kept))
    moved = kept + receivers
    if cohort.links is not None:
        moved = moved + kept * (1 + config.negatives)
    return {
        "neighbours": torch.bincount(cohort.cross_row, minlength=len(kept)),
        "kept": kept,
        "receivers": receivers,
        "feature_bits": sent["coordinates"],
        "epsilon": sent["epsilon"],
        "epsilon_colluding": sent["colluding"],
        "comparisons": trees["outcomes"],
        "embeddings": moved,
    }


_LINKS = "Only to predict links"

#: For the report: every transfer, and what its receiver can read.
MESSAGES = {
    **balancing.MESSAGES,
    "lumos/bins": "Once, from a device to each neighbour that keeps it: into how many bins its features are "
    "dealt, and the number of the one that this neighbour gets. Without pad_bins the first is how many "
    "neighbours keep the device, and with those that the receiver knows of, a bound on its degree.",
    "lumos/feature_bits": "Once, from a device to each neighbour that keeps it: the noised bits of one bin "
    "of its features. What the neighbour can tell from them alone has the bound epsilon; with "
    "accounting=per_receiver all these neighbours together can tell so much each, with coalition no more "
    "than epsilon in all.",
    "lumos/training_count": "With aggregation=plaintext, once: whether a device's node is trained on, a "
    "number of each device, which the server reads.",
    "model": "The shared weights, from the server to every device, in every round and evaluation.",
    "model/grad": "With aggregation=plaintext: each device's gradient of the weights, in every round. The "
    "server reads it, and it depends on the device's own features and label, without noise.",
    **messages(
        "lumos/gradient",
        "With aggregation=secure, in every round",
        "a device's gradient of the weights, and whether its node is trained on",
    ),
    "lumos/leaf_embeddings": "In every round and evaluation, from a device to each neighbour that it keeps: "
    "the embedding of the leaf that stands for this neighbour. It is made from the sender's own features, "
    "without noise, with weights that both know; the neighbour reads it, and no epsilon covers it.",
    "lumos/leaf_embeddings/grad": "In every round, back to the device that sent a leaf's embedding: how the "
    "receiver's loss changes with it. The device reads it; it depends on the label of the node (to predict "
    "links: on its neighbours), and no epsilon covers it.",
    "lumos/scored_pairs": f"{_LINKS}, once, for evaluation: from a device that scores a pair of nodes to "
    "the other one: that it will ask. The other learns who asks, and not whether they are neighbours.",
    "lumos/scored_embeddings": f"{_LINKS}, in every evaluation: the node's embedding, to each device that "
    "scores a pair with it, which reads it. It is made from features without noise.",
    "lumos/assigned_embeddings": f"{_LINKS}, in every round: the node's embedding, to each device that keeps "
    "it. It is made from its own features and from what those that keep it sent, without noise; the receiver "
    "reads it.",
    "lumos/assigned_embeddings/grad": f"{_LINKS}, in every round: the gradients of kept_embeddings, back "
    "to the "
    "node. It reads them, and they are multiples of the receiver's embedding.",
    "lumos/negative_ids": f"{_LINKS}, in every round: from a device to each node that it has drawn from "
    "all that are no neighbours: that it asks. The other learns that the two are no neighbours.",
    "lumos/negative_embeddings": f"{_LINKS}, in every round: the embedding of a node that was drawn, to "
    "the device that drew it, which reads it. It is made from features without noise.",
    "lumos/negative_embeddings/grad": f"{_LINKS}, in every round: the gradients of negative_embeddings, back "
    "to the node. It reads them, and they are multiples of the receiver's embedding.",
}

#: To whom a device sends, as a column of its account.
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
    summary="one device for each node; noised features, balanced trees, embeddings between neighbours",
    paper="Pan, Zhu, Chu: Lumos: heterogeneity-aware federated graph learning over decentralized devices. "
    "ICDE 2023, arXiv:2303.00492",
    config=LumosConfig,
    tasks=(CLASSIFICATION, LINK_PREDICTION),
    partition="ego",
    setup=setup,
    round=round,
    predict=predict,
    restore=restore,
    client_statistics=account,
    memory=memory,
    requires=Requirements(
        disjoint=True,
        nodes_per_client="one",
        check=check_graph,
        other=(
            "features within feature_low .. feature_high",
            "edges without weights",
        ),
    ),
    state=StateValues(
        facts="balance",
    ),
    sends=Sent(
        summary="noised features once; embeddings of leaves and gradients every round",
        protection="features by local differential privacy, degrees by comparisons; embeddings in clear",
        messages=MESSAGES,
        recipients=RECIPIENTS,
    ),
    defaults={"features": "raw"},
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
