"""Local training and prediction of a cohort: what the clients of every averaging method do.

These functions run at the clients. They see a cohort's rows and plain settings and never loop over clients:
the weights of all clients are stacked, and one elementwise step of an optimiser is one step for each client.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from graphfed.federation.cohort import Cohort, with_unit_features
from graphfed.methods.base import Task
from graphfed.methods.parts import GraphTraining, Network, Training, keeps_client_state, samples_clients
from graphfed.methods.settings import value
from graphfed.methods.tasks import CLASSIFICATION
from graphfed.nn.backbones import Backbone, Weights
from graphfed.nn.batch import Batch, View, make_batch
from graphfed.nn.directed import EdgeRows
from graphfed.nn.layers import Dropout
from graphfed.nn.optim import AdamState, Pull, choose_rows, init_state, optimizer_step
from graphfed.nn.sparse import SparseMatrix, SparseWeights, pair_columns
from graphfed.random import fold

#: The message where training would leave every model as it is.
NO_TRAINING_NODE = "no client has a training node; use another split or partition"

#: If a smaller fraction of the clients is present, their rows are gathered; otherwise absent ones are masked.
GATHER_BELOW = 0.5


@dataclass(frozen=True)
class Prepared:
    """What a cohort computes once.

    Attributes:
        view: Its view of the graph.
        targets: Rows of the view for "train", "val", "test" and "all".
        counts: [K] training nodes of each client.
        train: The batch of training nodes.
        val: The batch of validation nodes.
        pairs: The (client, feature) pairs whose first-layer weights are stored; None: all.
        class_weights: [C] weights of classes in the loss; None: all 1.
    """

    view: View
    targets: dict[str, Tensor]
    counts: Tensor
    train: Batch
    val: Batch
    pairs: tuple[Tensor, Tensor] | None
    class_weights: Tensor | None = None


def as_configured(cohort: Cohort, config: object) -> Cohort:
    """Return a client's data as a run uses it.

    Returns:
        The cohort. With features=scaled or features=robust its features keep their dtype until they are
        scaled; otherwise they have torch's default dtype, and with features=unit length 1, as soon as they
        have no gaps.
    """
    features = value(config, "features", "scaled")
    # Scaling subtracts large centres in float64, so it must see the numbers as they were read.
    if features in ("scaled", "robust"):
        return cohort
    if isinstance(cohort.x, Tensor):
        cohort = replace(cohort, x=cohort.x.to(torch.get_default_dtype()))
    return with_unit_features(cohort) if features == "unit" and not cohort.filled else cohort


def own_view(cohort: Cohort) -> View:
    """Restrict the graph to each client's own subgraph, without cross-client edges.

    Args:
        cohort: The clients' data; features must be there.

    Returns:
        The view; degrees count the remaining edges only.
    """
    assert cohort.x is not None
    return View(
        cohort.x,
        cohort.id,
        cohort.client,
        cohort.num_clients,
        cohort.y,
        cohort.degree(),
        (cohort.edge_index,),
        edge_weight=None if cohort.edge_weight is None else (cohort.edge_weight,),
        directed=None
        if cohort.directed is None
        else EdgeRows(
            cohort.directed.source,
            cohort.directed.target,
            cohort.directed.attributes,
            cohort.directed.is_symmetric,
        ),
    )


def prepare(
    cohort: Cohort,
    view: View,
    place: Tensor | None,
    config: GraphTraining,
    personal: bool,
    *,
    every_pair: bool = False,
    keeps_values: bool = False,
) -> Prepared:
    """Prepare the batches of a cohort.

    Args:
        cohort: The clients' data, from which splits, labels and class weights are read.
        view: What the clients see of the graph, with M rows.
        place: [N] the view's row of each of the cohort's rows; None if they are the same rows.
        config: The settings, of which the network and the sampling of clients are read.
        personal: Whether every client has weights of its own in validation too.
        every_pair: Whether clients with weights of their own store those of all features, and not only of
            features that they have.
        keeps_values: Whether clients keep values of the form of weights from round to round, in addition to
            the states of their optimisers.

    Returns:
        The batches.
    """
    # An MLP drops the edges here, and some networks aggregate the features once.
    view = config.network.kernel.adapt_view(view)
    targets = {t: cohort.rows(t) for t in ("train", "val", "test", "all")}
    # A view may have more rows than the cohort: remote or generated neighbours.
    if place is not None:
        targets = {t: place[rows] for t, rows in targets.items()}
    pairs = None
    if isinstance(view.x, SparseMatrix):
        if personal:
            # Clients differ in their best rounds, so each stores the rows of every feature it has. Rows of
            # features that a client does not have are those of the last round, in every placement.
            pairs = pair_columns(view.x, view.client, view.num_clients, every_pair=every_pair)
            # One client with every feature: the shared rows alone are its weights.
            if view.num_clients == 1 and len(pairs[0]) == view.x.shape[1]:
                pairs = (pairs[0][:0], pairs[1][:0])
        elif (keeps_values or keeps_client_state(config)) and samples_clients(config):
            # Absent clients have older values than present ones, so no row changes equally at all clients.
            pairs = pair_columns(view.x, view.client, view.num_clients, every_pair=True)
    # Validation losses are not weighted; only training batches get the weights of classes.
    weights = cohort.class_weights
    train = _train_batch(view, targets["train"], config.network, pairs, weights)
    val = _batch(view, targets["val"], config.network, pairs, per_client=personal)
    return Prepared(view, targets, cohort.counts(cohort.train), train, val, train.pairs, weights)


def prepare_own(cohort: Cohort, config: GraphTraining, keeps_values: bool = False) -> Prepared:
    """Prepare the batches of every client's own subgraph; see `prepare`."""
    return prepare(cohort, own_view(cohort), None, config, personal=False, keeps_values=keeps_values)


def prepare_shared(cohort: Cohort, view: View, network: Network) -> Prepared:
    """Prepare the batches of a cohort for weights of which there is one copy, not one for each client.

    The view has the cohort's rows. A training node's weight in the loss is that of its class.
    """
    view = network.kernel.adapt_view(view)
    targets = {t: cohort.rows(t) for t in ("train", "val", "test", "all")}
    weight = cohort.loss_weights(targets["train"])
    train = _batch(view, targets["train"], network, None, weight=weight)
    val = _batch(view, targets["val"], network, None)
    counts = cohort.counts(cohort.train)
    return Prepared(view, targets, counts, train, val, None, cohort.class_weights)


def batch_of_all(view: View, network: Network, *, per_client: bool) -> Batch:
    """Prepare a forward pass of all rows of a view; with `per_client` every client has its own weights."""
    every = torch.arange(len(view.ids), device=view.ids.device)
    return _batch(network.kernel.adapt_view(view), every, network, None, per_client=per_client)


def _batch(
    view: View, targets: Tensor, network: Network, pairs: tuple[Tensor, Tensor] | None, **kwargs: object
) -> Batch:
    make_block = network.kernel.blocks(view.ids, view.degree, network.attention_heads)
    return make_batch(view, targets, network.layers, make_block, pairs=pairs, **kwargs)  # type: ignore[arg-type]


def _train_batch(
    view: View,
    targets: Tensor,
    network: Network,
    pairs: tuple[Tensor, Tensor] | None,
    class_weights: Tensor | None,
) -> Batch:
    """Build the training batch.

    Each client's loss is the mean over its own training nodes, each times the weight of its class; a client
    without training nodes has no loss.
    """
    client = view.client[targets]
    counts = torch.bincount(client, minlength=view.num_clients).to(torch.get_default_dtype())
    # Only clients with training nodes are indexed, so nothing is divided by 0.
    weight = 1 / counts[client]
    if class_weights is not None:
        weight = weight * class_weights[view.y[targets]]
    return _batch(view, targets, network, pairs, weight=weight, per_client=True)


def initial_weights(task: Task, network: Network, seed: int, device: str) -> Weights:
    """Draw the first weights: the same for every method, placement and number of clients.

    Args:
        task: The width of the features, the number of classes and the name of the task.
        network: The settings of the network: its layers, widths and heads.
        seed: The seed of the run, from which all draws follow.
        device: The torch device that the weights are moved to.

    Returns:
        The weights. The outputs are logits [C], in link prediction embeddings [hidden].
    """
    # `fold` names the purpose, so that these draws share nothing with those of dropout.
    last = task.num_classes if task.name == CLASSIFICATION else network.hidden
    widths = [task.num_features, *[network.hidden] * (network.layers - 1), last]
    kernel, key = network.kernel, fold(seed, "weights")
    drawn = kernel.init(key, widths, network.attention_heads)
    if kernel.edge_init is not None:
        drawn |= kernel.edge_init(key, widths, task.edge_features, task.directed)
    return {name: w.to(device) for name, w in drawn.items()}


def personal_weights(shared: Weights, batch: Batch, kernel: Backbone) -> Weights:
    """Copy shared weights for every client of a batch: [K, ...] tensors.

    The first layer of sparse features becomes `SparseWeights` with the batch's pairs of clients and features.
    """
    own: Weights = {}
    for name, w in shared.items():
        assert isinstance(w, Tensor)
        if batch.pairs is not None and name in kernel.input_weights:
            own[name] = SparseWeights.expand(w, *batch.pairs, batch.num_clients)
        else:
            # A view without copies: all clients start from equal weights, and steps make new tensors.
            own[name] = w.expand(batch.num_clients, *w.shape)
    return own


def train_from_shared(
    prepared: Prepared,
    shared: Weights,
    optimizer: AdamState,
    present: Tensor,
    config: GraphTraining,
    number: int,
    proximal: float,
) -> tuple[Weights, AdamState]:
    """Take `local_steps` full-batch steps of every client from the shared weights.

    Args:
        prepared: The batches of the cohort's K clients.
        shared: The weights that all clients have received.
        optimizer: The clients' optimiser states; {} for fresh ones.
        present: [K] bool: the clients that take part. The results of others are meaningless, and the transfer
            that follows leaves them out; their optimiser state does not change.
        config: The settings, with the number of steps and the optimiser.
        number: The round, from which dropout is drawn.
        proximal: mu of FedProx, which adds mu (w - w_start) to the gradient.

    Returns:
        Weights [K, ...] and optimiser states; {} if clients do not keep them.
    """
    batch = _batch_of_present(prepared, present, config)
    weights = personal_weights(shared, batch, config.network.kernel)
    before = optimizer or fresh_state(weights, config.training)
    # FedProx: the pull is towards the received weights.
    pull = Pull(proximal, values_of(weights)) if proximal else None
    trained, after = descend(batch, weights, before, config, number, partial(_class_loss, batch), pull)
    if not keeps_client_state(config):
        return trained, {}
    # The usual case first: with all clients present nothing has to be chosen.
    return trained, after if bool(present.all()) else _untouched_where_absent(after, before, weights, present)


def _batch_of_present(prepared: Prepared, present: Tensor, config: GraphTraining) -> Batch:
    """Gather the rows of present clients if they are few; otherwise keep all rows. Both give the same
    weights.
    """
    if int(present.sum()) >= GATHER_BELOW * len(present):
        return prepared.train
    rows = prepared.targets["train"]
    rows = rows[present[prepared.view.client[rows]]]
    # Kept states have a row for each of these pairs. Without states, pairs of the present rows are enough.
    pairs = prepared.pairs if keeps_client_state(config) else None
    return _train_batch(prepared.view, rows, config.network, pairs, prepared.class_weights)


def gradient_from_shared(
    prepared: Prepared, shared: Weights, present: Tensor, config: GraphTraining, number: int
) -> Weights:
    """Compute every client's gradient of its mean loss at the shared weights, without the L2 penalty.

    Args:
        prepared: The batches of the cohort's K clients.
        shared: The weights that all clients have received.
        present: [K] bool: the clients that take part. The results of others are meaningless.
        config: The settings, of which the network is read.
        number: The round, from which dropout is drawn.

    Returns:
        Gradients [K, ...].
    """
    batch = _batch_of_present(prepared, present, config)
    weights = personal_weights(shared, batch, config.network.kernel)
    return with_values(weights, _gradients(batch, weights, config, number, 0, partial(_class_loss, batch)))


def train_pulled(
    prepared: Prepared,
    weights: Weights,
    optimizer: AdamState,
    pull: Pull,
    config: GraphTraining,
    number: int,
) -> tuple[Weights, AdamState]:
    """Continue training every client's own weights [K, ...], on its loss plus a pull.

    An optimiser state of {} is fresh, and {} is returned if clients do not keep theirs.
    """
    loss = partial(_class_loss, prepared.train)
    trained, after = descend(prepared.train, weights, optimizer, config, number, loss, pull)
    return trained, after if keeps_client_state(config) else {}


def train_personal(
    prepared: Prepared, weights: Weights, optimizer: AdamState, config: GraphTraining, number: int
) -> tuple[Weights, AdamState]:
    """Continue training every client's own weights [K, ...]; nothing is sent.

    An optimiser state of {} is fresh.
    """
    return descend(prepared.train, weights, optimizer, config, number, partial(_class_loss, prepared.train))


def fresh_state(weights: Weights, training: Training) -> AdamState:
    """Return fresh optimiser states."""
    return init_state(training.optimizer, values_of(weights))


def _class_loss(batch: Batch, logits: Tensor, step: int) -> Tensor:
    """Add up the mean cross-entropies of all clients; class weights make the means weighted ones."""
    # A sum: the derivative by one client's copy of the weights is that of its own loss alone.
    return (cross_entropy(logits, batch.y, reduction="none") * batch.weight).sum()


def descend(
    batch: Batch,
    weights: Weights,
    optimizer: AdamState,
    config: GraphTraining,
    number: int,
    loss_of: Callable[[Tensor, int], Tensor],
    pull: Pull | None = None,
) -> tuple[Weights, AdamState]:
    """Take `local_steps` full-batch steps of every client from its weights [K, ...].

    Args:
        optimizer: The clients' optimiser states; {} for fresh ones.
        loss_of: (outputs [N_L, width], step) -> the loss, added up over clients.
        pull: A term that is added to every client's loss; None for none.
    """
    # The clients' losses add up, but no term has weights of two clients: one backward pass is one for each.
    state = optimizer or fresh_state(weights, config.training)
    for step in range(config.steps.local_steps):
        values = values_of(weights)
        gradients = _gradients(batch, weights, config, number, step, loss_of)
        values, state = _step(values, gradients, state, config.training, pull)
        weights = with_values(weights, values)
    return weights, state


def stepped(
    weights: Weights, gradients: Weights, optimizer: AdamState, training: Training
) -> tuple[Weights, AdamState]:
    """Take one step of every client's optimiser, on weights and gradients that are stored alike."""
    values, after = _step(values_of(weights), values_of(gradients), optimizer, training)
    return with_values(weights, values), after


def _step(
    values: dict[str, Tensor],
    gradients: dict[str, Tensor],
    state: AdamState,
    training: Training,
    pull: Pull | None = None,
) -> tuple[dict[str, Tensor], AdamState]:
    return optimizer_step(
        training.optimizer, values, gradients, state, training.lr, training.weight_decay, pull
    )


def _gradients(
    batch: Batch,
    weights: Weights,
    config: GraphTraining,
    number: int,
    step: int,
    loss_of: Callable[[Tensor, int], Tensor],
) -> dict[str, Tensor]:
    # Detached, so that no step keeps the tape of the step before.
    leaves = {k: v.detach().requires_grad_() for k, v in values_of(weights).items()}
    rate = config.network.dropout
    # The draws depend on round, step and the nodes' ids, and not on the placement of clients.
    dropout = Dropout(rate, fold(config.run.seed, "dropout", number, step)) if rate else None
    loss = loss_of(config.network.kernel.forward(with_values(weights, leaves), batch, dropout), step)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def values_of(weights: Weights) -> dict[str, Tensor]:
    """Return the numbers of stored weights as tensors, on which elementwise functions work."""
    return {k: w.values if isinstance(w, SparseWeights) else w for k, w in weights.items()}


def each_value(fn: Callable[..., Tensor], first: Weights, *others: Weights) -> Weights:
    """Apply a function to the numbers of several weights that are stored as `first` is, like the result."""
    arguments = [values_of(weights) for weights in (first, *others)]
    return with_values(first, {k: fn(*(values[k] for values in arguments)) for k in first})


def with_values(weights: Weights, values: dict[str, Tensor]) -> Weights:
    """Store numbers (`values_of`) in the form that other weights have."""
    return {
        k: w.with_values(values[k]) if isinstance(w, SparseWeights) else values[k] for k, w in weights.items()
    }


def _rows_of_client(weight: Tensor | SparseWeights) -> Tensor:
    """Return the client of each leading row of a per-client weight."""
    # If clients may be absent, every client stores every row (`prepare`) and none has the shared rows at the
    # end, which therefore may count as client 0's.
    if isinstance(weight, SparseWeights):
        return torch.cat([weight.pair_client, torch.zeros_like(weight.ghost[:, 0], dtype=torch.int64)])
    return torch.arange(len(weight), device=weight.device)


def _untouched_where_absent(new: AdamState, old: AdamState, weights: Weights, present: Tensor) -> AdamState:
    """Keep the old optimiser state of absent clients."""

    def choose(k: str, a: Tensor, b: Tensor) -> Tensor:
        return choose_rows(present[_rows_of_client(weights[k])], a, b)

    return {part: {k: choose(k, new[part][k], old[part][k]) for k in new[part]} for part in new}


def choose_clients(better: Tensor, new: Weights, old: Weights) -> Weights:
    """Choose the new weights [K, ...] for the clients `better`, [K] bool, and the old ones for the others."""
    chosen: Weights = {}
    for k, w in new.items():
        before = old[k]
        if isinstance(w, SparseWeights):
            assert isinstance(before, SparseWeights)
            # Rows that all clients share change at all of them alike, so the new ones hold for everyone.
            shared = torch.ones_like(w.ghost[:, 0], dtype=torch.bool)
            # Of a single client without pairs they are its own weights.
            if not len(w.pair_client):
                shared = better.expand(len(shared))
            mask = torch.cat([better[w.pair_client], shared])
            chosen[k] = w.with_values(torch.where(mask[:, None], w.values, before.values))
        else:
            assert isinstance(before, Tensor)
            chosen[k] = torch.where(better.view(-1, *[1] * (w.dim() - 1)), w, before)
    return chosen


def predict_shared(prepared: Prepared, weights: Weights, network: Network, target: str) -> Tensor:
    """Compute the logits of a target with weights that all clients share.

    Args:
        prepared: The batches of the cohort's clients.
        weights: One copy of the weights, as the server sends them.
        network: The settings of the network that the weights are of.
        target: "val", "test" or "all", which is every owned node.

    Returns:
        [n, C], in the order of the target's rows.
    """
    batch = (
        # Validation is predicted in every evaluation, other targets once: only its batch is kept.
        prepared.val if target == "val" else _batch(prepared.view, prepared.targets[target], network, None)
    )
    with torch.no_grad():
        return network.kernel.forward(weights, batch, None)


def predict_personal(prepared: Prepared, weights: Weights, network: Network, target: str) -> Tensor:
    """Compute the logits [n, C] of a target, each with its own client's weights [K, ...]."""
    if target == "val":
        batch = prepared.val
    else:
        batch = _batch(prepared.view, prepared.targets[target], network, prepared.pairs, per_client=True)
    with torch.no_grad():
        return network.kernel.forward(weights, batch, None)
