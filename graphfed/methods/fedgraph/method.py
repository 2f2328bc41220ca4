"""FedGraph: Chen, Li, Miyazaki and Wu, "FedGraph: federated graph learning with intelligent sampling", IEEE
Transactions on Parallel and Distributed Systems 33(8), 2022 (arXiv:2111.01370).

Clients whose graphs have edges to each other train a GCN. From the second layer on, a layer sums over
transformed embeddings of other clients' nodes, and the server decides how much each client samples.

    paper                          here
    W, W_i                         State.weights at the server; `weights` of the clients in a round
    P_i = {kappa_i, p_i^(l)}       a row of the decision (`fixed_decision`)
    G_i, external edges            client_graphs.ClientGraph, remote neighbours
    V_i^(l), N_i^(l)(v), Q_i^(l)   client_graphs.Layer, client_graphs.SampledNeighbours
    L (the input counts)           layers + 1: layer l of the paper is number l - 1 here
    lambda, delta, r, Omega        policy.ddpg.Reward

1. The server sends the weights to all clients and each client its row of the decision (Alg. 3, l. 6).
2. In every local step (Alg. 1) a client draws kappa_i of its training nodes and, layer by layer from the
   last, some of their neighbours (Alg. 2). It requests the sampled remote neighbours from their owners, which
   add them to their own samples of the layers below. The neighbours of the first layer are internal (Eq. 2).
3. From the second layer on, the owner of a requested node u sends the row h(u) W / sqrt(D_uu), with its own
   weights (Eq. 3). The client takes a step on its own weights. No gradient returns to the owner: a received
   row is a constant.
4. The server averages the weights by kappa_i (Eq. 8) and decides again.

Predictions use the global weights and all neighbours, and embeddings are sent for them too.

What the participants learn. There is no formal guarantee. The paper argues that features are hard to infer
from embeddings. A row is a sum over few nodes where the degree is low, and the receiver knows the weights (in
an evaluation exactly, and other ones each time). With layers of equal width it can solve for the embeddings:
`graphfed audit` finds most of the features around other clients' nodes after a hundred rounds.

Differs from the paper (items of docs/papers/fedgraph.md, "Differences from the paper"): by default the first
layer has the degrees of internal edges, which it sums over, where the paper has all degrees
(first_degrees=all), with which a node with mostly remote neighbours keeps little of its own embedding (1).
The owner of a node scales its row, so no client learns degrees (2). A node is always in its own sum, unscaled
(3), and in the first layer the ratio of Eq. (7) counts internal neighbours. Layers have a bias (6). GraphSAGE
draws without replacement (18). Time is modelled (`speed`, `bandwidth`), so that it does not depend on the
machine (10). The number of local steps, the range of kappa and the state of the optimiser are ours (8, 14).
The authors' program (cfh19980612/FedGraph) has no exchange between clients and was no guide (20).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import graphfed.federation.payload as pay
from graphfed.errors import InputError
from graphfed.federation import Federation, Located, TensorForm, as_leaves
from graphfed.federation.functions import empty_state, full_like
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.aggregation import check_sums, protected_mean
from graphfed.methods.averaging import program as averaging
from graphfed.methods.averaging.program import accept_counts, check_counts
from graphfed.methods.averaging.rules import fedsgd
from graphfed.methods.base import Method, PlaintextOnly, Sent, State, StateValues, Task
from graphfed.methods.common.local_training import fresh_state, initial_weights, stepped
from graphfed.methods.common.remote_neighbours import remote_ids
from graphfed.methods.fedgraph.client_graphs import (
    ClientGraph,
    Layer,
    build_graph,
    build_layer,
    fraction_of,
    sample_batch,
    sample_neighbours,
)
from graphfed.methods.fedgraph.config import FedGraphConfig, Sampling
from graphfed.methods.fedgraph.learned_policy import (
    first_view,
    learned_decision,
    load_policy,
    project,
    saw_test,
    stack_view,
)
from graphfed.methods.fedgraph.round_time import (
    REPEATS,
    add_measurement,
    add_operations,
    balanced_decision,
    first_balance,
    measured_seconds,
    modelled_seconds,
    zero_operations,
)
from graphfed.methods.parts import ClientOptimizer, Training
from graphfed.nn.backbones import Weights
from graphfed.nn.layers import Dropout, tiled
from graphfed.nn.optim import AdamState
from graphfed.nn.sparse import SparseMatrix, SparseWeights, ranges, spmm
from graphfed.nn.tiles import make_tiles
from graphfed.random import fold

#: A sample of all layers: for each layer, from the first, `client_graphs.Layer` at the clients, and the route
#: of the rows that other clients send for it; None if the layer has no remote neighbours.
Sample = tuple[tuple[Located, ExchangeRoute | None], ...]


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clients:
    """What set-up prepares.

    Attributes:
        graph: `ClientGraph` at the clients.
        route: The route of all remote neighbours; None if no layer has remote neighbours.
        counts: The number of training nodes of each client, [K], at the server.
        val: The sample with all neighbours for the validation nodes.
        data: The cohorts, at the clients.
        widths: The widths of the embeddings that enter each layer and that leave the last one.
    """

    graph: Located
    route: ExchangeRoute | None
    counts: Located
    val: Sample
    data: Located
    widths: tuple[int, ...]

    @property
    def size(self) -> int:
        """n_W, the number of weights of the model, biases included."""
        return sum((a + 1) * b for a, b in zip(self.widths, self.widths[1:], strict=False))


def setup(fed: Federation, data: Located, task: Task, config: FedGraphConfig) -> State:
    """Draw the first weights, read the policy, and let the clients agree on their remote neighbours.

    Raises:
        InputError: The policy file cannot be used, the federation is too small for secure aggregation, or
            clients that share a process should measure their seconds.

    Reference:
        FedGraph, Alg. 3, line 1.
    """
    sampling, layers = config.sampling, config.network.layers
    check_sums(fed, config.sums.aggregation, fed.num_clients)
    if sampling.measures_seconds and not fed.is_one_client_per_process():
        raise InputError(
            "clock=wall cannot be used where clients share a process: expected a process for each client, "
            "whose seconds are its own; set runtime=processes or runtime=nvflare, or clock=modelled"
        )
    first = (initial_weights, task, config.network, config.run.seed, str(fed.device))
    fed.expect("model", *first)
    weights = fed.server.run(*first)
    policy = fed.server.run(load_policy, sampling, layers, fed.num_clients, weights)
    if (
        sampling.policy == "ddpg"
        and fed.control(saw_test, policy, values={"policy_saw_test": bool})["policy_saw_test"]
    ):
        fed.log(
            f"the policy in {sampling.policy_file} was learned with a reward on test nodes: the test metrics "
            "of this run are not measured on unseen data"
        )
    return first_state(fed, agree(fed, data, task, config), config, weights, policy)


def agree(fed: Federation, data: Located, task: Task, config: FedGraphConfig) -> Clients:
    """Let the clients agree on the rows that they can request from each other, and send the server their
    numbers of training nodes.
    """
    graph = fed.clients.run(build_graph, data, config.sharing, config.sampling.policy == "fastgcn")
    route = None
    if fed.num_clients > 1 and any(
        config.sharing.sends_embeddings(layer) for layer in range(config.network.layers)
    ):
        route = fed.exchange_route(fed.clients.run(remote_ids, data), name="fedgraph/neighbours")
    counts = fed.clients.run(num_train, graph)
    counts = fed.gather(counts, name="training_counts", grad=False, accept=accept_counts)
    counts = fed.server.run(check_counts, counts)
    widths = (task.num_features, *[config.network.hidden] * (config.network.layers - 1), task.num_classes)
    with fed.phase("eval"):
        val = draw_sample(fed, graph, route, fed.clients.run(target_rows, data, "val"), None, config, 0)
    return Clients(graph, route, counts, val, data, widths)


def first_state(
    fed: Federation, clients: Clients, config: FedGraphConfig, weights: Located, policy: Located
) -> State:
    """Return the state before the first round, after the clients have agreed. Nothing is sent; policy: the
    tensors of a learned policy, at the server; empty for none.
    """
    sampling = config.sampling
    values = {
        "weights": weights,
        "optimizer": fed.clients.run(empty_state),
        "facts": fed.server.run(first_facts, policy, str(fed.device), sampling.measures_seconds),
    }
    if config.at_server():
        values["server"] = fed.server.run(fedsgd.first, weights, config)
    if sampling.policy == "balanced":
        values["balance"] = fed.server.run(
            first_balance,
            clients.counts,
            REPEATS if sampling.measures_seconds else 1,
            sampling.limits_requests,
        )
    if sampling.policy == "ddpg":
        values["policy"] = policy
        values["observed"] = fed.server.run(
            project, policy, fed.server.run(first_view, weights, fed.num_clients)
        )
    return State(values, clients)


def draw_sample(
    fed: Federation,
    graph: Located,
    route: ExchangeRoute | None,
    rows: Located,
    decision: Located | None,
    config: FedGraphConfig,
    key: int,
) -> Sample:
    """Draw a sample for the logits of `rows`; with all neighbours if there is no decision (Alg. 2)."""
    sample: Sample = ()
    num_layers = config.network.layers
    # Alg. 2, l. 2
    for number in reversed(range(num_layers)):
        whole = route if config.sharing.sends_embeddings(number) else None
        has_remote = whole is not None
        # Alg. 2, l. 3-6
        sampled, is_requested = fed.clients.run(
            draw_neighbours,
            graph,
            rows,
            decision,
            number,
            has_remote,
            config.sampling,
            num_layers,
            fold(key, number),
            outputs=2,
        )
        restricted, requested = None, None
        if whole is not None:
            restricted, requested = fed.restrict_route(whole, is_requested, name="fedgraph/wanted")
        # Alg. 2, l. 7
        layer, rows = fed.clients.run(
            build_layer, graph, rows, sampled, is_requested, requested, number == 0, outputs=2
        )
        sample = ((layer, restricted), *sample)
    return sample


def forward(
    fed: Federation,
    graph: Located,
    sample: Sample,
    weights: Located,
    dropout: float,
    key: int | None,
    earlier: list[Located | None] | None = None,
) -> tuple[Located, list[Located | None]]:
    """Compute the logits of a sample's rows, and return the rows received for each layer (Alg. 1, l. 7-13).

    key: of dropout; None for no dropout. earlier: rows that were received before, for each layer, which are
    used again, so that nothing is sent.
    """
    h: Located | None = None
    received: list[Located | None] = []
    # Alg. 1, l. 7
    for number, (layer, route) in enumerate(sample):
        hw = fed.clients.run(transform, graph, layer, weights, h, number, dropout, key)
        rows = None
        # Alg. 1, l. 10
        if route is not None and earlier is not None:
            rows = earlier[number]
        elif route is not None:
            sent = fed.clients.run(rows_to_send, graph, layer, hw)
            name = "fedgraph/embeddings" if number else "fedgraph/transformed_features"
            rows = fed.exchange(sent, route, name=name, grad=False)
        received.append(rows)
        last = number == len(sample) - 1
        # Alg. 1, l. 9-11
        h = fed.clients.run(aggregate, graph, layer, hw, rows, weights, number, last)
    assert h is not None
    return h, received


def round(fed: Federation, state: State, config: FedGraphConfig, round_number: int) -> State:
    """Run one round with the decision of the policy (Algs. 1 and 3)."""
    values, counts = state.values, state.prepared.counts
    sampling, layers = config.sampling, config.network.layers
    # Alg. 3, l. 5
    if sampling.policy == "balanced":
        decision = fed.server.run(balanced_decision, values["balance"], counts, layers)
    elif sampling.policy == "ddpg":
        decision = fed.server.run(learned_decision, values["policy"], values["observed"], counts)
    else:
        decision = fed.server.run(fixed_decision, counts, sampling, layers)
    return round_with(fed, state, config, round_number, decision)


def decision_form(num_clients: int, config: FedGraphConfig) -> TensorForm:
    """Return the form of a client's row of a decision (see `balanced_decision`)."""
    width = 1 + config.network.layers + num_clients * config.sampling.limits_requests
    return TensorForm(torch.float64, (width,))


def round_with(
    fed: Federation, state: State, config: FedGraphConfig, round_number: int, decision: Located
) -> State:
    """Run one round with a decision [K, 1 + L] at the server; [K, 1 + L + K] if it limits requests."""
    clients: Clients = state.prepared
    graph, sampling, dropout = clients.graph, config.sampling, config.network.dropout
    bytes_before, seconds_before = fed.traffic(), fed.busy_seconds() if sampling.measures_seconds else None
    # Alg. 3, l. 6, and Alg. 1, l. 1
    received = fed.broadcast(state.weights, name="model", grad=False)
    client_decision = fed.scatter(
        decision, name="fedgraph/policy", grad=False, like=decision_form(fed.num_clients, config)
    )
    sizes = fed.clients.run(batch_sizes, client_decision)
    weights = fed.clients.run(copy_weights, graph, received)
    optimizer, operations = state.values["optimizer"], fed.clients.run(zero_operations, graph)
    sample: Sample | None = None
    remote: list[Located | None] | None = None
    # Alg. 1, l. 2
    for step in range(config.steps.local_steps):
        if sample is None or config.sharing.refresh == "step":
            # Alg. 1, l. 3
            key = fold(config.run.seed, "fedgraph", round_number, step)
            batch = fed.clients.run(sample_batch, graph, sizes, fold(key, "batch"))
            sample = draw_sample(fed, graph, clients.route, batch, client_decision, config, key)
            remote = None
        key = fold(config.run.seed, "dropout", round_number, step)
        with fed.tape():
            leaves = fed.clients.run(as_leaves, weights)
            # Alg. 1, l. 4-13
            logits, remote = forward(fed, graph, sample, leaves, dropout, key if dropout else None, remote)
            # Alg. 1, l. 14
            last, _ = sample[-1]
            fed.backward(fed.clients.run(compute_loss, graph, last, logits, sizes))
        gradient = fed.gradients(leaves)
        if not config.at_server():
            # Alg. 1, l. 15
            weights, optimizer = fed.clients.run(
                local_step, weights, gradient, optimizer, config.training, outputs=2
            )
        for number, (layer, _) in enumerate(sample):
            operations = fed.clients.run(add_operations, operations, graph, number, clients.widths, layer)
    values = {**state.values, "optimizer": fed.clients.run(keep_state, optimizer, config.client_optimizer)}
    # Alg. 1, l. 17, and Alg. 3, l. 3-4
    if config.at_server():
        kappa, zero = fed.server.run(batch_sizes, decision), fed.server.run(full_like, state.weights, 0.0)
        mean = protected_mean(fed, gradient, sizes, kappa, zero, config.sums.aggregation, name="gradient")
        mean, values["server"] = fed.server.run(
            fedsgd.step, state.weights, values["server"], mean, config, outputs=2
        )
    elif sampling.policy == "ddpg":
        rows = fed.gather(fed.clients.run(flatten_weights, weights, received), name="update", grad=False)
        mean = fed.server.run(average_rows, rows, decision, state.weights)
        view = fed.server.run(stack_view, mean, rows)
        values["observed"] = fed.server.run(project, values["policy"], view)
    else:
        kappa = fed.server.run(batch_sizes, decision)
        mean = protected_mean(
            fed, weights, sizes, kappa, state.weights, config.sums.aggregation, name="update"
        )
    values["weights"] = mean
    seconds = fed.clients.run(
        modelled_seconds,
        graph,
        operations,
        bytes_before,
        fed.traffic(),
        clients.size,
        config.steps.local_steps,
        config.modelled_time,
    )
    seconds = fed.gather(seconds, name="fedgraph/seconds", grad=False)
    values["facts"] = fed.server.run(add_seconds, values["facts"], seconds, "modelled_seconds")
    if seconds_before is not None:
        seconds = fed.clients.run(measured_seconds, seconds_before, fed.busy_seconds())
        seconds = fed.gather(seconds, name="fedgraph/measured_seconds", grad=False)
        values["facts"] = fed.server.run(add_seconds, values["facts"], seconds, "measured_seconds")
    if sampling.policy == "balanced":
        values["balance"] = fed.server.run(
            add_measurement, values["balance"], decision, seconds, clients.counts, sampling.round_time
        )
    return replace(state, values=values)


def predict(fed: Federation, state: State, config: FedGraphConfig, target: str) -> Located:
    """Predict with the global weights and all neighbours.

    Args:
        target: The part of the split: "train", "val", "test" or "all".

    Returns:
        The logits of the target's rows at the clients, [n, C].
    """
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    sample = clients.val
    if target != "val":
        rows = fed.clients.run(target_rows, clients.data, target)
        sample = draw_sample(fed, clients.graph, clients.route, rows, None, config, 0)
    logits, _ = forward(fed, clients.graph, sample, received, config.network.dropout, None)
    return logits


# ---- at the clients ----------------------------------------------------------------------------------------


def num_train(graph: ClientGraph) -> Tensor:
    """Return the number of training nodes of each client, [K]."""
    return graph.num_train


def target_rows(cohort: Any, target: str) -> Tensor:
    """Select the rows of a part of the split."""
    rows: Tensor = cohort.rows(target)
    return rows


def batch_sizes(decision: Tensor) -> Tensor:
    """Return kappa of each client, [K] int64."""
    return decision[:, 0].long()


def draw_neighbours(
    graph: ClientGraph,
    rows: Tensor,
    decision: Tensor | None,
    layer: int,
    has_remote: bool,
    sampling: Sampling,
    layers: int,
    key: int,
) -> tuple[Any, Tensor]:
    """Draw the neighbours of a layer; all of them without a decision (`sample_neighbours`)."""
    if decision is None:
        return sample_neighbours(graph, rows, None, sampling.sampler, layer, has_remote, key)
    requests = decision[:, 1 + layers :] if sampling.limits_requests else None
    return sample_neighbours(
        graph, rows, decision[:, 1 + layer], sampling.sampler, layer, has_remote, key, requests
    )


def copy_weights(graph: ClientGraph, shared: Weights) -> Weights:
    """Give every client a copy of the global weights."""
    copies: Weights = {}
    # Alg. 1, l. 1
    for name, w in shared.items():
        assert isinstance(w, Tensor)
        if graph.weight_pairs is not None and name == "layers.0.weight":
            copies[name] = SparseWeights.expand(w, *graph.weight_pairs, graph.num_clients)
        else:
            copies[name] = w.expand(graph.num_clients, *w.shape)
    return copies


def transform(
    graph: ClientGraph,
    layer: Layer,
    weights: Weights,
    h: Tensor | None,
    number: int,
    p: float,
    key: int | None,
) -> Tensor:
    """Multiply the embeddings that enter a layer by its weights.

    Args:
        weights: The weights: of each client, or the same for all.
        h: The embeddings, [n_in, H]; None in the first layer, which takes the features.
        number: The number of the layer, from 0.
        p: The probability of dropout.
        key: The key of dropout; None for no dropout.

    Returns:
        h W of the rows that enter, each with the weights of its client, [n_in, H'].
    """
    weight, dropout = weights[f"layers.{number}.weight"], None if key is None else Dropout(p, key)
    rows = layer.rows
    if h is None and isinstance(graph.x, SparseMatrix):
        x, words = graph.x, graph.x_words
        if isinstance(weight, SparseWeights):
            assert graph.x_by_client is not None
            x, weight = graph.x_by_client, weight.values
        assert words is not None
        if len(rows) < graph.num_rows:
            words = words[ranges(x.indptr[rows].long(), graph.num_nonzero[rows])]
            x = x.select_rows(rows)
        return spmm(x if dropout is None else dropout.entries(x, words, number), weight)
    if h is None:
        assert isinstance(graph.x, Tensor)
        h = graph.x if len(rows) == graph.num_rows else graph.x[rows]
    if dropout is not None:
        h = dropout.rows(h, graph.ids[rows], number)
    assert isinstance(weight, Tensor)
    if weight.dim() == 2:
        return h @ weight
    if graph.num_clients == 1:
        return h @ weight[0]
    return tiled(h, weight, make_tiles(graph.client[rows], graph.num_clients))


def rows_to_send(graph: ClientGraph, layer: Layer, hw: Tensor) -> Tensor:
    """Compute the rows that other clients have requested, h W / sqrt(D_uu) of each requested row u, without
    gradients, [A, H'].
    """
    assert layer.sent is not None
    return hw.detach()[layer.sent] * graph.scale[layer.rows[layer.sent], None]


def aggregate(
    graph: ClientGraph,
    layer: Layer,
    hw: Tensor,
    received: Tensor | None,
    weights: Weights,
    number: int,
    last: bool,
) -> Tensor:
    """Sum over the sampled neighbours of each row that leaves a layer.

    Args:
        hw: h W of the rows that enter, [n_in, H'].
        received: The rows of remote neighbours, [m, H']; None if the layer has none.
        weights: The weights: of each client, or the same for all.
        number: The number of the layer, from 0.
        last: Whether it is the last layer, which has no activation.

    Returns:
        The embeddings that leave the layer, [n, H'].
    """
    bias = weights[f"layers.{number}.bias"]
    assert isinstance(bias, Tensor)
    # Eq. (2) in the first layer, Eq. (3) in the others
    z = spmm(layer.adjacency, hw if received is None else torch.cat([hw, received]))
    if bias.dim() == 2:
        bias = bias[0] if graph.num_clients == 1 else bias.index_select(0, graph.client[layer.out])
    z = z + bias
    # Eq. (4)
    return z if last else z.relu()


def compute_loss(graph: ClientGraph, layer: Layer, logits: Tensor, sizes: Tensor) -> Tensor:
    """Compute the sum over clients of the mean cross-entropy of each one's batch, each node times the weight
    of its class.
    """
    # Eq. (5)
    losses = cross_entropy(logits, graph.y[layer.out], weight=graph.class_weights, reduction="none")
    return (losses / sizes[graph.client[layer.out]].to(losses.dtype)).sum()


def local_step(
    weights: Weights, gradient: Weights, optimizer: AdamState, training: Training
) -> tuple[Weights, AdamState]:
    """Take a step on every client's weights."""
    # Eq. (6)
    return stepped(weights, gradient, optimizer or fresh_state(weights, training), training)


def keep_state(optimizer: AdamState, clients: ClientOptimizer) -> AdamState:
    """Return the optimisers' state for the next round; empty unless client_state=keep."""
    return optimizer if clients.client_state == "keep" else {}


def flatten_weights(weights: Weights, like: Weights) -> Tensor:
    """Flatten the weights of each client to a row, [K, n_W], with the names of `like` in sorted order."""
    whole = pay.densify({name: weights[name] for name in sorted(like)})
    return torch.cat([w.flatten(1) for w in whole.values()], 1)


# ---- at the server -----------------------------------------------------------------------------------------


def fixed_decision(counts: Tensor, sampling: Sampling, layers: int) -> Tensor:
    """Compute the decision of policy=full, constant, graphsage or fastgcn, which is the same in every round.

    Args:
        counts: The number of training nodes of each client, [K].
        layers: L, the layers of the network.

    Returns:
        The decision [K, 1 + L] float64, with a row P_i = {kappa_i, p_i^(1), ..., p_i^(L)} for each client:
        the number of training nodes of a step, and for each layer, from the first, how much is sampled there.
        That is the sampling probability of a neighbour, for graphsage the number of neighbours, and for
        fastgcn the number of draws.
    """
    kappa = counts if sampling.policy == "full" else counts.clamp(max=sampling.batch)
    if sampling.policy == "constant" and sampling.batch_fraction is not None:
        kappa = fraction_of(counts, torch.full_like(counts, sampling.batch_fraction, dtype=torch.float64))
    amounts = {
        "full": [1.0] * layers,
        "constant": [sampling.probability] * layers,
        "graphsage": [float(sampling.inner_fan_out)] * (layers - 1) + [float(sampling.fan_out)],
        "fastgcn": [float(sampling.layer_size)] * layers,
    }[sampling.policy]
    of_layers = torch.tensor(amounts, dtype=torch.float64, device=counts.device).expand(len(counts), layers)
    return torch.cat([kappa.double()[:, None], of_layers], 1)


def average_rows(rows: Tensor, decision: Tensor, before: Weights) -> Weights:
    """Average the clients' weights by kappa_i.

    Args:
        rows: The weights of each client in the order of their names, [K, n_W].
        decision: The decision, [K, 1 + L].
        before: The weights before the round, with the names and shapes of the result.
    """
    kappa = decision[:, 0]
    # Eq. (8)
    mean = (kappa / kappa.sum()).to(rows.dtype) @ rows
    sizes = {name: w.numel() for name, w in sorted(before.items()) if isinstance(w, Tensor)}
    parts = dict(zip(sizes, torch.split(mean, list(sizes.values())), strict=True))
    return {name: parts[name].view(w.shape) for name, w in before.items() if isinstance(w, Tensor)}


def first_facts(policy: dict[str, Tensor], device: str, has_measured: bool) -> dict[str, Tensor]:
    """Return the facts of a run before its first round: modelled_seconds and, if clients measure them,
    measured_seconds, 0 in float64; and policy_saw_test for a learned policy.
    """
    names = ("modelled_seconds", *["measured_seconds"] * has_measured)
    facts = {name: torch.zeros((), dtype=torch.float64, device=device) for name in names}
    return facts | ({"policy_saw_test": policy["saw_test"]} if "saw_test" in policy else {})


def add_seconds(facts: dict[str, Tensor], seconds: Tensor, name: str) -> dict[str, Tensor]:
    """Add the duration of a round, which lasts as long as the slowest client, to a fact; seconds: [K]."""
    return {**facts, name: facts[name] + seconds.max()}


MESSAGES: Mapping[str, str] = {
    "training_counts": averaging.MESSAGES["training_counts"],
    **fedsgd.RULE.messages,
    "fedgraph/neighbours": "With sent_embeddings=hidden or all a client sends another client, once, the ids "
    "of its neighbours there. Each learns which of its nodes the other has an edge to.",
    "model": averaging.MESSAGES["model"],
    "fedgraph/policy": "The server sends each client, in every round, its number of training nodes in a "
    "step, and how much to sample in each layer. With policy=balanced and no round_time it also sends, for "
    "each client, the share of requests that others send it, which shows how slow it is.",
    "fedgraph/wanted": "A client sends another client, in every local step (refresh=round: once in a round) "
    "and evaluation, which of these neighbours are in its sample. The other client reads it.",
    "fedgraph/embeddings": "The other client answers with a row for each of these neighbours: the embedding "
    "that leaves a layer times the weights of the next layer. The client reads it. No formal guarantee: from "
    "the rows of many rounds much of the features around a node can be computed (`graphfed audit`).",
    "fedgraph/transformed_features": "With sent_embeddings=all the other client also answers with the "
    "features of each of these neighbours times the weights of the first layer. The client reads it and "
    "knows the weights, so it learns as many numbers of the features as the layer is wide, and after some "
    "rounds all features.",
    "update": "With several local steps (optimizer_at=clients), or with policy=ddpg, and with "
    "aggregation=plaintext, each client sends the server its model weights after local training. The server "
    "averages them by the size of the batches and reads each client's weights, from which features and "
    "labels of training nodes can in part be inferred.",
    "fedgraph/seconds": "Each client sends the server, in every round, its duration by the time model, one "
    "number. The server reads it. It follows from the size of the client's sample, the features of its "
    "neighbours and the bytes that it sent and received. With policy=balanced the server decides by it how "
    "many training nodes the client draws.",
    "fedgraph/measured_seconds": "With policy=balanced and clock=wall each client also sends the server, in "
    "every round, the seconds in which it computed and sent, by its clock. The server reads them and decides "
    "by them in the place of the modelled ones. They show how fast the client's machine is and how busy.",
    **averaging.SECURE_UPDATE,
}

METHOD = Method(
    name="fedgraph",
    summary="GCN over cross-client edges; embeddings are sent from the second layer on; sampling by a policy",
    paper="Chen, Li, Miyazaki, Wu: FedGraph, federated graph learning with intelligent sampling. IEEE "
    "Transactions on Parallel and Distributed Systems 33(8), 2022",
    config=FedGraphConfig,
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(shared_model=True, facts="facts"),
    sends=Sent(
        summary="transformed embeddings of neighbours between clients, every step; weights, every round",
        protection=averaging.PROTECTION,
        messages=MESSAGES,
    ),
    offers={"backbone": ("gcn",)},
    plaintext_only=(
        PlaintextOnly(
            "aggregation",
            "policy",
            "ddpg",
            "the policy observes every client's weights, which the server must read",
        ),
    ),
    paper_settings={
        "first_degrees": "all",
        "optimizer": "adam",
        "lr": 0.01,
        "local_steps": 1,
        "rounds": 300,
        "client_state": "keep",
    },
)
