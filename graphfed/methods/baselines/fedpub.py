"""FED-PUB: Baek, Jeong, Jin, Yoon and Hwang, "Personalized subgraph federated learning", ICML 2023
(arXiv:2206.10206), on graphs without their cross-client edges.

    paper              here
    theta_i            the weights of client i, rows [K, D] where they are sent
    mean theta_i       State.values["received"], at the clients: the server's average for client i
    mu_i               State.values["mask"], at the clients; it is never sent
    lambda_1           mask_l1
    lambda_2           mu / 2
    tau                similarity_scale
    h_i                functional_embedding

Clients whose subgraphs are different communities of one graph are not served well by one common model. Every
client has a model of its own. The server averages the models of all clients for each client, with weights
that grow with the similarity of two models: the cosine of their mean outputs on one random graph. A client
uses and trains only a part of the average, which it chooses by a sparse mask on the weights.

Secure aggregation is not possible: the server compares the models, so it reads each of them. The server
learns the similarities of all pairs of clients.

Differs from the paper: the embedding is the mean output of the last layer, so that it exists for every
network and number of layers; the authors' program takes the last hidden layer. Clients without training nodes
have weight 0 in the averages, and keep the average and the mask that they have. All clients take part in
every round, by full-batch steps. The authors' program computes the two penalties from tensors without
gradients, so that they do not act; here they act. As there, weight decay acts on the masks too, biases have
no mask, and predictions leave out entries of the mask whose magnitude is below mask_l1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.functions import as_leaves, empty_state
from graphfed.federation.transfer import describe_value
from graphfed.methods.averaging.program import MESSAGES, gather_counts
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.baselines.isolated import NETWORKS
from graphfed.methods.common.local_training import (
    Prepared,
    batch_of_all,
    initial_weights,
    own_view,
    predict_personal,
    prepare,
    values_of,
)
from graphfed.methods.common.sizes import GraphExtent, network_numbers, num_moments
from graphfed.methods.parts import (
    ClientOptimizer,
    Inputs,
    Loss,
    Network,
    Run,
    Selection,
    Steps,
    Training,
    keeps_client_state,
)
from graphfed.methods.settings import Only, settings
from graphfed.nn.backbones import Backbone, Weights
from graphfed.nn.batch import Batch, View
from graphfed.nn.layers import Dropout
from graphfed.nn.optim import AdamState, choose_rows, init_state, optimizer_step
from graphfed.nn.sparse import SparseWeights
from graphfed.random import fold, normal, uniform

Tensors = dict[str, Tensor]

#: The random graph: communities, nodes of each, and the probability of an edge inside one.
COMMUNITIES, NODES, EDGE_PROBABILITY = 5, 100, 0.1
#: What the names of masks begin with, in the tensors that the optimiser updates.
MASK = "mask."


@settings
class Similarity:
    """The averages of the server."""

    similarity_scale: float = Field(
        default=3.0,
        ge=0,
        allow_inf_nan=False,
        description="tau: client j has the weight exp(tau * similarity) in the average for client i; 0: all "
        "clients have the same weight",
    )


@settings
class Masking:
    """The masks of the clients."""

    masks: Literal["learned", "none"] = Field(
        default="learned", description="learned: every client trains a mask on its weights; none: no mask"
    )
    mask_l1: Annotated[float, Only("masks", "learned")] = Field(
        default=1e-3,
        ge=0,
        allow_inf_nan=False,
        description="strength of the L1 penalty on the masks; predictions leave out entries below it",
    )


@settings
class Proximity:
    """The proximal term of local training."""

    mu: float = Field(default=2e-3, ge=0, allow_inf_nan=False, description="strength of the proximal term")


@settings
class FedPubConfig:
    """The settings of FED-PUB."""

    run: Run = Run()
    training: Training = Training()
    network: Network = Network()
    inputs: Inputs = Inputs()
    selection: Selection = Selection()
    loss: Loss = Loss()
    steps: Steps = Steps()
    client_optimizer: ClientOptimizer = ClientOptimizer()
    proximity: Proximity = Proximity()
    similarity: Similarity = Similarity()
    masking: Masking = Masking()


@dataclass(frozen=True)
class Clients:
    """What set-up prepares at the clients.

    Attributes:
        prepared: The batches of the clients' subgraphs.
        probe: The batch of the random graph, one copy for each client.
        shapes: The shape of each of one client's weights, by name in ascending order.
    """

    prepared: Prepared
    probe: Batch
    shapes: dict[str, torch.Size]


@dataclass(frozen=True)
class Setup:
    """What rounds only read.

    Attributes:
        clients: `Clients` at the clients.
        counts: At the server: [K] training nodes of each client.
        size: D, the number of one client's weights.
        classes: C, the width of the embeddings.
    """

    clients: Located
    counts: Located
    size: int
    classes: int


# ---- functions run at the clients --------------------------------------------------------------------------


def prepare_own(cohort: Cohort, config: FedPubConfig) -> Prepared:
    """Prepare the batches of every client's own subgraph. Masks act on the rows of every feature."""
    return prepare(cohort, own_view(cohort), None, config, personal=True, every_pair=True)


def begin(
    prepared: Prepared, weights: Tensors, graph: Tensors, config: FedPubConfig
) -> tuple[Clients, Tensor, Tensors]:
    """Copy the first weights, as rows [K, D], and the random graph for every client.

    The masks [K, ...] are 1; {} in a run without masks.
    """
    clients = prepared.view.num_clients
    # Sorted, so that rows of weights have the same order in every process.
    own = {name: weights[name].expand(clients, *weights[name].shape) for name in sorted(weights)}
    shapes = {name: weights[name].shape for name in own}
    # Biases have no mask, as in the authors' program.
    masked = [name for name in own if name.endswith("weight")] if config.masking.masks == "learned" else []
    mask = {name: torch.ones_like(own[name]) for name in masked}
    return Clients(prepared, probe_batch(graph, clients, config.network), shapes), as_rows(own), mask


def probe_batch(graph: Tensors, clients: int, network: Network) -> Batch:
    """Prepare a forward pass on the random graph, with a copy of it for each of the clients."""
    x, edges = graph["x"], graph["edge_index"]
    nodes, copy = len(x), torch.arange(clients, device=x.device)
    view = View(
        x=x.repeat(clients, 1),
        ids=torch.arange(nodes, device=x.device).repeat(clients),
        client=copy.repeat_interleave(nodes),
        num_clients=clients,
        # No label is read: only outputs are compared.
        y=edges.new_zeros(clients * nodes),
        degree=torch.bincount(edges[1], minlength=nodes).to(x.dtype).repeat(clients),
        # A copy of the graph for each client, with its rows shifted: [2, 1, E] + [K, 1] is [2, K, E].
        edges=((edges[:, None] + nodes * copy[:, None]).flatten(1),),
    )
    return batch_of_all(view, network, per_client=True)


def as_rows(weights: Tensors) -> Tensor:
    """Return the weights [K, ...] of the clients as rows [K, D]."""
    return torch.cat([w.flatten(1) for w in weights.values()], 1)


def from_rows(rows: Tensor, shapes: Mapping[str, torch.Size]) -> Tensors:
    """Return rows [K, D] as weights [K, ...]."""
    parts = torch.split(rows, [math.prod(shape) for shape in shapes.values()], 1)
    return {k: part.reshape(-1, *shape) for (k, shape), part in zip(shapes.items(), parts, strict=True)}


def stored(weights: Tensors, batch: Batch, kernel: Backbone) -> Weights:
    """Return weights [K, ...] in the form in which a batch multiplies sparse features."""
    found: Weights = dict(weights)
    for name in kernel.input_weights if batch.pairs is not None else ():
        assert batch.pairs is not None
        w = weights[name]
        # The rows of all pairs, and ghost rows that no row of the batch uses; only these for one client.
        values = torch.cat([w.flatten(0, 1), torch.zeros_like(w[0])]) if len(batch.pairs[0]) else w[0]
        found[name] = SparseWeights(values, *batch.pairs, batch.num_clients)
    return found


def objective(batch: Batch, values: Tensors, received: Tensors, config: FedPubConfig, key: int) -> Tensor:
    """Compute sum_i L_i(theta_i * mu_i) + lambda_1 ||mu_i||_1 + lambda_2 ||theta_i - mean theta_i||^2.

    `values` are the weights and masks [K, ...], and `received` the server's averages [K, ...].
    """
    weights = {k: values[k] * values[MASK + k] if MASK + k in values else values[k] for k in received}
    network = config.network
    dropout = Dropout(network.dropout, key) if network.dropout else None
    logits = network.kernel.forward(stored(weights, batch, network.kernel), batch, dropout)
    loss = (cross_entropy(logits, batch.y, reduction="none") * batch.weight).sum()
    for k, value in values.items():
        if k.startswith(MASK):
            # lambda_1 ||mu_i||_1
            loss = loss + config.masking.mask_l1 * value.abs().sum()
        else:
            # lambda_2 ||theta_i - mean theta_i||^2
            loss = loss + config.proximity.mu / 2 * (value - received[k]).square().sum()
    return loss


def train(
    clients: Clients, rows: Tensor, mask: Tensors, optimizer: AdamState, config: FedPubConfig, number: int
) -> tuple[Tensor, Tensors, AdamState, Tensors]:
    """Take `local_steps` steps of every client that has a training node, on its weights and its mask.

    Args:
        rows: [K, D], the server's averages, from which weights start.
        mask: The masks [K, ...]; {} for a run without masks.
        optimizer: The clients' optimiser states; {} for fresh ones.

    Returns:
        The weights as rows [K, D], the masks, the optimiser states, and the weights [K, ...] under the masks.
    """
    received = from_rows(rows, clients.shapes)
    values = {**received, **{MASK + k: m for k, m in mask.items()}}
    training = config.training
    before, old = optimizer or init_state(training.optimizer, values), values
    state = before
    for step in range(config.steps.local_steps):
        leaves = as_leaves(values)
        # The keys of `local_training.descend`, so that all methods drop the same entries.
        key = fold(config.run.seed, "dropout", number, step)
        loss = objective(clients.prepared.train, leaves, received, config, key)
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        values, state = optimizer_step(
            training.optimizer, values, gradients, state, training.lr, training.weight_decay
        )
    # Penalties and weight decay alone would move the mask of a client without training nodes to 0.
    choose = partial(choose_rows, clients.prepared.counts > 0)
    values = {k: choose(new, old[k]) for k, new in values.items()}
    state = {name: {k: choose(x, before[name][k]) for k, x in part.items()} for name, part in state.items()}
    own, mask = {k: values[k] for k in received}, {k: values[MASK + k] for k in mask}
    kept = state if keeps_client_state(config) else {}
    return as_rows(own), mask, kept, under_mask(own, mask, config.masking.mask_l1)


def under_mask(weights: Tensors, mask: Tensors, threshold: float) -> Tensors:
    """Multiply weights by their masks, in which entries of a magnitude below the threshold are 0."""
    kept = {k: m.masked_fill(m.abs() < threshold, 0.0) for k, m in mask.items()}
    return {k: w * kept[k] if k in kept else w for k, w in weights.items()}


def functional_embedding(clients: Clients, weights: Tensors, network: Network) -> Tensor:
    """Compute the mean output of every client's network on the random graph, [K, C]."""
    with torch.no_grad():
        outputs = network.kernel.forward(dict(weights), clients.probe, None)
    return outputs.view(clients.probe.num_clients, -1, outputs.shape[1]).mean(1)


def predict_masked(clients: Clients, weights: Tensors, network: Network, target: str) -> Tensor:
    """Compute the logits [n, C] of a target, each with its own client's weights under its mask."""
    prepared = clients.prepared
    return predict_personal(prepared, stored(weights, prepared.train, network.kernel), network, target)


# ---- functions run at the server ---------------------------------------------------------------------------


def random_graph(task: Task, seed: int, device: str) -> Tensors:
    """Draw the random graph on which models are compared, a stochastic block model with normal features: "x"
    [P, F] and "edge_index" [2, E], both directions of every edge.
    """
    key, ids = fold(seed, "random_graph"), torch.arange(COMMUNITIES * NODES)
    x = normal(fold(key, "features"), ids, task.num_features)
    # A row draws its edges to the NODES nodes of its own community; there are none between communities.
    row, place = (uniform(fold(key, "edges"), ids, NODES) < EDGE_PROBABILITY).nonzero(as_tuple=True)
    # Each pair once, from its smaller node, and no self-loop
    once = place > row % NODES
    edges = torch.stack([row, row - row % NODES + place])[:, once]
    edges = torch.cat([edges, edges.flip(0)], 1)
    return {"x": x.to(device, torch.get_default_dtype()), "edge_index": edges.to(device)}


def mixing_weights(embeddings: Tensor, counts: Tensor, scale: float) -> Tensor:
    """Compute the weight of every client's model in the average for every client, [K, K].

    Row i has the weights of the average for client i, which add up to 1. `embeddings` [K, C] are the h_i,
    `scale` is tau, and a client without training nodes (`counts` [K]) has weight 0.
    """
    # A model whose outputs are all 0 has similarity 0 with every other one, and not NaN.
    unit = normalize(embeddings, dim=1)
    similarity = unit @ unit.t()  # S(i, j) = h_i . h_j / (|h_i| |h_j|)
    # alpha_ij = exp(tau S(i, j)) / sum_k exp(tau S(i, k)); softmax subtracts the largest exponent first.
    # exp(-inf) = 0: models without training nodes enter no average. One client at least has some.
    return (scale * similarity).masked_fill(counts == 0, -math.inf).softmax(1)


def average_for_each(rows: Tensor, embeddings: Tensor, counts: Tensor, scale: float) -> Tensor:
    """Compute the average of the clients' weights [K, D] for each of them, [K, D]."""
    return mixing_weights(embeddings, counts, scale).to(rows.dtype) @ rows


def accept_width(width: int, rows: Tensor, declared: Mapping[str, Any]) -> str:
    """Check the width of the rows of another process; see `transfer.Accept`."""
    known = rows.is_floating_point() and rows.dim() == 2 and rows.shape[1] == width
    return "" if known else f"{describe_value(rows)} where rows of {width} numbers are expected"


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: FedPubConfig) -> State:
    """Draw the first weights and the random graph at the server, and send both to the clients."""
    prepared = fed.clients.run(prepare_own, data, config)
    counts = gather_counts(fed, prepared)
    network, seed, device = config.network, config.run.seed, str(fed.device)
    fed.expect("model", initial_weights, task, network, seed, device)
    weights = fed.server.run(initial_weights, task, network, seed, device)
    weights = fed.broadcast(weights, name="model", grad=False)
    fed.expect("random_graph", random_graph, task, seed, device)
    graph = fed.server.run(random_graph, task, seed, device)
    graph = fed.broadcast(graph, name="random_graph", grad=False)
    clients, received, mask = fed.clients.run(begin, prepared, weights, graph, config, outputs=3)
    own = fed.clients.run(first_weights, clients, received)
    optimizer = fed.clients.run(empty_state)
    values = {"weights": own, "received": received, "mask": mask, "optimizer": optimizer}
    # Every process draws them, to know the size of what clients send.
    size = sum(w.numel() for w in values_of(initial_weights(task, network, seed, "cpu")).values())
    return State(values, Setup(clients, counts, size, task.num_classes))


def first_weights(clients: Clients, rows: Tensor) -> Tensors:
    """Return the weights [K, ...] before training; the masks are 1."""
    return from_rows(rows, clients.shapes)


def round(fed: Federation, state: State, config: FedPubConfig, number: int) -> State:
    """Run a round: local training under masks, and an average of the weights for each client."""
    known: Setup = state.prepared
    start, mask, optimizer = (state.values[name] for name in ("received", "mask", "optimizer"))
    rows, mask, optimizer, weights = fed.clients.run(
        train, known.clients, start, mask, optimizer, config, number, outputs=4
    )
    embeddings = fed.clients.run(functional_embedding, known.clients, weights, config.network)
    check = partial(accept_width, known.size)
    models = fed.gather(rows, name="personal_update", grad=False, accept=check)
    check = partial(accept_width, known.classes)
    embeddings = fed.gather(embeddings, name="functional_embedding", grad=False, accept=check)
    averages = fed.server.run(
        average_for_each, models, embeddings, known.counts, config.similarity.similarity_scale
    )
    received = fed.scatter(averages, name="personal_model", grad=False, like=rows)
    values = {"weights": weights, "received": received, "mask": mask, "optimizer": optimizer}
    return State(values, known)


def predict(fed: Federation, state: State, config: FedPubConfig, target: str) -> Located:
    """Predict at every client with its own subgraph, weights and mask: logits [n, C]; nothing is sent."""
    known: Setup = state.prepared
    return fed.clients.run(predict_masked, known.clients, state.weights, config.network, target)


def checkpoint(extent: GraphExtent, config: FedPubConfig) -> int:
    """Count the numbers of a checkpoint: weights (also best and received ones), masks, two optimisers."""
    moments = num_moments(config.training.optimizer) if keeps_client_state(config) else 0
    return (4 + 2 * moments) * network_numbers(
        config.network, extent.features, extent.classes, clients=extent.clients
    )


METHOD = Method(
    name="fedpub",
    summary="a model for every client, averaged from those of similar clients, under a mask of its own",
    paper="Baek, Jeong, Jin, Yoon, Hwang: Personalized subgraph federated learning. ICML 2023, "
    "arXiv:2206.10206",
    config=FedPubConfig,
    offers={"backbone": NETWORKS},
    setup=setup,
    round=round,
    predict=predict,
    checkpoint=checkpoint,
    personal=True,
    state=StateValues(
        scratch=("received", "mask", "optimizer"),
    ),
    sends=Sent(
        "weights and mean outputs on a random graph, every round",
        "none: in plaintext; the server compares the clients' models, so it reads each of them and learns "
        "which clients are similar",
        {
            "training_counts": MESSAGES["training_counts"],
            "model": "Once: the server sends every client the first weights.",
            "random_graph": "Once: the server sends every client a random graph, on which models are "
            "compared. It depends on the seed alone.",
            "personal_update": "Every client sends the server its weights after local training, without its "
            "mask. The server reads each client's weights, from which features and labels of training nodes "
            "can in part be inferred.",
            "functional_embedding": "Every client sends the server the mean output of its network on the "
            "random graph. The server reads it and computes from it how similar every two clients are.",
            "personal_model": "The server sends every client the average of the clients' weights that is "
            "made for it. A client can infer in part which clients resemble it.",
        },
    ),
    paper_settings={
        "optimizer": "adam",
        "lr": 0.01,
        "weight_decay": 1e-6,
        "hidden": 128,
        "local_steps": 1,
        "client_state": "keep",
    },
)
