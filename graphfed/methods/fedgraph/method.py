"""FedGraph: Chen, Li, Miyazaki and Wu, "FedGraph: federated graph learning with intelligent sampling", IEEE
Transactions on Parallel and Distributed Systems 33(8), 2022. Silos with edges between them train a GCN; of
other silos a layer sees transformed embeddings, from the second layer on, and the server decides how much
each silo samples.

    paper                      here
    W, W_i                     State.weights at the server; the clients' weights in a round
    P_i = {kappa_i, p_i^(l)}   a row of the decision: `sampling_policies`
    G_i, external edges        silos.ClientGraph: neighbours here, and wants
    V^(l), N_i^(l)(v), Q_i^(l) silos.Layer: rows, and the adjacency of a sample
    L (the input counts)       layers + 1: layer l of the paper is number l - 1 here
    lambda, delta, r, Omega    environment.Reward

1. The server sends the weights and every client its row of the decision (Alg. 3, l. 4-6).
2. In every local step (Alg. 1) a client draws kappa_i of its training nodes and, layer by layer from the
   last, some of their neighbours (Alg. 2). It tells other clients which of their nodes are among them;
   these take them into their own sample, and so on down to the second layer. The first layer's neighbours
   are the client's own only (Eq. 2).
3. Then forwards: from the second layer on a client gets of each such node u the row h(u) W / sqrt(D_uu)
   from u's owner, with the owner's weights (Eq. 3), and takes a step on its own weights. No gradient goes
   back to the owner: what came is a constant.
4. The server takes the mean of the weights by kappa_i (Eq. 8) and decides anew.

Predictions are made with the shared weights and all neighbours, and embeddings cross for them likewise.

**No formal guarantee.** The paper argues that features are hard to infer from embeddings. A row that crosses
is a sum over few nodes where the degree is low, the receiver knows the weights (in evaluations exactly,
and other ones each time), and with layers of equal width the embeddings themselves can be solved for:
`graphfed audit` finds most of the features around other clients' nodes after a hundred rounds.

Differs from the paper: Q has the degrees of all edges, but in the first layer, which sums over the client's
own neighbours only, the degrees of these (the paper: first_degrees=all, by which a node whose neighbours
are elsewhere enters next to nothing of itself); the owner of a neighbour scales by its degree, so nobody is
told degrees. A node is in its own neighbourhood always, unscaled. In the first layer the ratio of Eq. (7)
counts the client's own neighbours. GraphSAGE draws without replacement. Layers have a bias, as our GCN. The
settings that the paper leaves open (local steps, kappa's range, optimiser state) are ours. Time is modelled
(`speed`, `bandwidth`), so that it does not depend on the machine; the program's reward has none. The program
(cfh19980612/FedGraph) has no exchange between clients and is no guide to this method."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import graphfed.federation.payload as pay
from graphfed.federation import Federation, Located, as_leaves
from graphfed.federation.functions import empty_state, full_like
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.aggregation import check_sums, protected_mean
from graphfed.methods.base import Method, Sent, State, StateValues, Task
from graphfed.methods.baselines import fedavg
from graphfed.methods.baselines.fedavg import accept_counts, check_counts
from graphfed.methods.common import averaging
from graphfed.methods.common.local_training import fresh_state, initial_weights, stepped
from graphfed.methods.fedgraph.client_graphs import (
    ClientGraph,
    Layer,
    aggregate,
    answers,
    batch_rows,
    choose,
    entering,
    make_client_graph,
    settle,
    transform,
    wants_of,
    work_of,
)
from graphfed.methods.fedgraph.config import FedGraphConfig
from graphfed.methods.fedgraph.sampling_policies import (
    LEARNED,
    act,
    check_fits,
    fixed_decision,
    project,
    read_policy,
    squash,
)
from graphfed.nn.backbones import Weights
from graphfed.nn.optim import AdamState, init_state
from graphfed.nn.sparse import SparseWeights
from graphfed.random import fold, uniform

__all__ = ["METHOD", "Clients", "begin", "decide", "first_state", "predict", "round", "round_with", "setup"]


# ---- at the clients ----------------------------------------------------------------------------------------


def silo_of(cohort: Any, config: FedGraphConfig) -> ClientGraph:
    return make_client_graph(
        cohort,
        shares=config.sent_embeddings != "none",
        shares_first=config.sends_embeddings(0),
        first_degrees=config.first_degrees,
        importance=config.policy == "fastgcn",
    )


def counts_of(silo: ClientGraph) -> Tensor:
    return silo.counts


def rows_of(cohort: Any, target: str) -> Tensor:
    rows: Tensor = cohort.rows(target)
    return rows


def drawn_batch(silo: ClientGraph, decision: Tensor, key: int) -> Tensor:
    return batch_rows(silo, decision[:, 0].long(), key)


def batch_sizes(decision: Tensor) -> Tensor:
    return decision[:, 0].long()


def chosen_neighbours(
    silo: ClientGraph,
    rows: Tensor,
    decision: Tensor | None,
    layer: int,
    shares: bool,
    config: FedGraphConfig,
    key: int,
) -> tuple[Any, Tensor]:
    amount = None if decision is None else decision[:, 1 + layer]
    return choose(silo, rows, amount, config.sampler, layer, shares, key)


def first_own_weights(silo: ClientGraph, shared: Weights) -> Weights:
    """Every client's weights at the start of a round.  Alg. 1, l. 1"""
    own: Weights = {}
    for name, w in shared.items():
        assert isinstance(w, Tensor)
        if silo.pairs is not None and name == "layers.0.weight":
            own[name] = SparseWeights.expand(w, *silo.pairs, silo.num_clients)
        else:
            own[name] = w.expand(silo.num_clients, *w.shape)
    return own


def loss_of(silo: ClientGraph, layer: Layer, logits: Tensor, sizes: Tensor) -> Tensor:
    """The sum over clients of the mean cross-entropy of each one's batch, each node times the weight of its
    class.  Eq. (5)"""
    losses = cross_entropy(logits, silo.y[layer.out], weight=silo.class_weights, reduction="none")
    return (losses / sizes[silo.client[layer.out]].to(losses.dtype)).sum()


def local_step(
    weights: Weights, gradient: Weights, optimizer: AdamState, config: FedGraphConfig
) -> tuple[Weights, AdamState]:
    """Eq. (6)"""
    return stepped(weights, gradient, optimizer or fresh_state(weights, config), config)


def kept_state(optimizer: AdamState, config: FedGraphConfig) -> AdamState:
    return optimizer if config.client_state == "keep" else {}


def no_work(silo: ClientGraph) -> Tensor:
    return torch.zeros(silo.num_clients, dtype=torch.float64, device=silo.client.device)


def more_work(done: Tensor, silo: ClientGraph, number: int, widths: tuple[int, ...], layer: Layer) -> Tensor:
    return done + work_of(silo, layer, number, widths[number], widths[number + 1])


def modelled_seconds(
    silo: ClientGraph, work: Tensor, before: Tensor, after: Tensor, parameters: int, config: FedGraphConfig
) -> Tensor:
    """What a round takes each client, [K] float64: its operations and its bytes over what it does in a
    second."""
    work = work + STEP_WORK * parameters * config.local_steps
    speed, bandwidth = (
        each * config.spread ** (2 * uniform(fold(0, "fedgraph", of), silo.stable)[:, 0] - 1)
        for of, each in (("speed", config.speed), ("bandwidth", config.bandwidth))
    )
    return work / speed + (after - before).double() / bandwidth


#: Operations of a step of Adam for one weight.
STEP_WORK = 10


def flattened(weights: Weights, like: Weights) -> Tensor:
    """Every client's weights in a row, [K, n_W], in the order of `like`."""
    whole = pay.densify({name: weights[name] for name in sorted(like)})
    return torch.cat([w.flatten(1) for w in whole.values()], 1)


# ---- at the server -----------------------------------------------------------------------------------------


def learned_policy(config: FedGraphConfig, clients: int, weights: Weights) -> dict[str, Tensor]:
    """The tensors of the policy's file; {} where the policy is none that is learned."""
    if config.policy_file is None:
        return {}
    tensors, told = read_policy(config.policy_file)
    size = sum(w.numel() for w in weights.values() if isinstance(w, Tensor))
    check_fits(told, config.policy_file, config.policy, clients, config.layers, size)
    tensors["saw_test"] = torch.tensor(int(told.saw_test))
    return {name: tensor.to(_device(weights)) for name, tensor in tensors.items()}


def saw_test(policy: dict[str, Tensor]) -> dict[str, Any]:
    """Whether the reward of a learned policy was on the test part."""
    return {"policy_saw_test": bool(policy["saw_test"])}


def no_policy() -> dict[str, Tensor]:
    return {}


def _device(weights: Weights) -> torch.device:
    first = next(iter(weights.values()))
    assert isinstance(first, Tensor)
    return first.device


def one_row(weights: Weights) -> Tensor:
    """The weights [n_W], in the order of their names."""
    return torch.cat([w.flatten() for _, w in sorted(weights.items()) if isinstance(w, Tensor)])


def first_sight(weights: Weights, clients: int) -> Tensor:
    """What the server sees before the first round: W_k = W."""
    row = one_row(weights)
    return row.expand(1 + clients, len(row))


def observation(policy: dict[str, Tensor], weights: Tensor) -> Tensor:
    """The weights [1 + K, n_W] as the policy sees them; as they are where there is none yet."""
    return project(policy, weights) if "pca.mean" in policy else weights


def decide(
    policy: dict[str, Tensor], observed: Tensor | None, counts: Tensor, config: FedGraphConfig
) -> Tensor:
    """P_i of every client, [K, 1 + L] float64.  Alg. 3, l. 5"""
    if config.policy not in LEARNED:
        return fixed_decision(
            counts,
            config.policy,
            config.layers,
            config.batch,
            config.probability,
            (config.fan_out, config.inner_fan_out),
            config.layer_size,
        )
    return squash(act(policy, observed if observed is not None else counts, len(counts)), counts)


def mean_of_rows(every: Tensor, decision: Tensor, before: Weights) -> Weights:
    """sum_i kappa_i / sum_j kappa_j W_i of the weights in rows [K, n_W].  Eq. (8)"""
    kappa = decision[:, 0]
    mean = (kappa / kappa.sum()).to(every.dtype) @ every
    sizes = {name: w.numel() for name, w in sorted(before.items()) if isinstance(w, Tensor)}
    parts = dict(zip(sizes, torch.split(mean, list(sizes.values())), strict=True))
    return {name: parts[name].view(w.shape) for name, w in before.items() if isinstance(w, Tensor)}


def seen_weights(mean: Weights, every: Tensor) -> Tensor:
    """s = {W, W_1, ..., W_K}, [1 + K, n_W]."""
    return torch.cat([one_row(mean)[None], every])


def first_facts(policy: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    facts = {"modelled_seconds": torch.zeros((), dtype=torch.float64, device=device)}
    return facts | ({"policy_saw_test": policy["saw_test"]} if "saw_test" in policy else {})


def later_facts(facts: dict[str, Tensor], seconds: Tensor) -> dict[str, Tensor]:
    """A round takes as long as the slowest client."""
    return {**facts, "modelled_seconds": facts["modelled_seconds"] + seconds.max()}


# ---- the program over places -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """What rows go through: of each layer `silos.Layer` at the clients, and the route of what other clients
    send for it, None where it shares nothing."""

    layers: tuple[tuple[Located, ExchangeRoute | None], ...]


@dataclass(frozen=True)
class Clients:
    """silo: `ClientGraph` at the clients; wants: the route of all that they may ask for, None where nothing
    is shared; counts [K]: training nodes, at the server; val: the sample, with all neighbours, of the
    validation nodes; data: the cohorts; widths: of the layers; size: n_W."""

    silo: Located
    wants: ExchangeRoute | None
    counts: Located
    val: Sample
    data: Located
    widths: tuple[int, ...]

    @property
    def size(self) -> int:
        """Weights of the model, with their biases."""
        return sum((a + 1) * b for a, b in zip(self.widths, self.widths[1:], strict=False))


def setup(fed: Federation, data: Located, task: Task, config: FedGraphConfig) -> State:
    check_sums(fed, config.aggregation, fed.num_clients)
    weights = fed.server.run(initial_weights, task, config, str(fed.device))
    policy = fed.server.run(learned_policy, config, fed.num_clients, weights)
    if config.policy in LEARNED and fed.control(saw_test, policy)["policy_saw_test"]:
        fed.log(
            f"the policy in {config.policy_file} was learned by a reward on the test part: the test figures "
            "of this run are not of data that nobody had seen"
        )
    return begin(fed, data, task, config, weights, policy)


def begin(
    fed: Federation, data: Located, task: Task, config: FedGraphConfig, weights: Located, policy: Located
) -> State:
    """The clients agree who may ask whom for what, and tell the server how many training nodes they
    have."""
    silo = fed.clients.run(silo_of, data, config)
    wants = None
    if fed.num_clients > 1 and any(config.sends_embeddings(layer) for layer in range(config.layers)):
        wants = fed.exchange_route(fed.clients.run(wants_of, data), name="fedgraph/neighbours")
    counts = fed.clients.run(counts_of, silo)
    counts = fed.gather(counts, name="training_counts", grad=False, accept=accept_counts)
    counts = fed.server.run(check_counts, counts)
    widths = (task.num_features, *[config.hidden] * (config.layers - 1), task.num_classes)
    with fed.phase("eval"):
        val = draw(fed, silo, wants, fed.clients.run(rows_of, data, "val"), None, config, 0)
    clients = Clients(silo, wants, counts, val, data, widths)
    return first_state(fed, clients, config, weights, policy)


def first_state(
    fed: Federation, clients: Clients, config: FedGraphConfig, weights: Located, policy: Located
) -> State:
    """Before the first round of clients that have agreed; nothing crosses."""
    values = {
        "weights": weights,
        "optimizer": fed.clients.run(empty_state),
        "facts": fed.server.run(first_facts, policy, str(fed.device)),
    }
    if config.at_server:
        values["server_optimizer"] = fed.server.run(init_state, config.optimizer, weights)
    if config.policy in LEARNED:
        values["policy"] = policy
    if config.policy == "ddpg":
        values["observed"] = fed.server.run(
            observation, policy, fed.server.run(first_sight, weights, fed.num_clients)
        )
    return State(values, clients)


def draw(
    fed: Federation,
    silo: Located,
    wants: ExchangeRoute | None,
    rows: Located,
    decision: Located | None,
    config: FedGraphConfig,
    key: int,
) -> Sample:
    """A sample for the logits of `rows`; decision None: with all neighbours.  Alg. 2"""
    layers: list[tuple[Located, ExchangeRoute | None]] = []
    for layer in reversed(range(config.layers)):
        whole = wants if config.sends_embeddings(layer) else None
        shares = whole is not None
        chosen, wanted = fed.clients.run(
            chosen_neighbours, silo, rows, decision, layer, shares, config, fold(key, layer), outputs=2
        )
        route, asked = None, None
        if whole is not None:
            route, asked = fed.restrict_route(whole, wanted, name="fedgraph/wanted")
        here = fed.clients.run(settle, silo, rows, chosen, wanted, asked, layer == 0)
        rows = fed.clients.run(entering, here)
        layers.insert(0, (here, route))
    return Sample(tuple(layers))


def forward(
    fed: Federation,
    silo: Located,
    sample: Sample,
    weights: Located,
    config: FedGraphConfig,
    key: int | None,
    came: list[Located | None] | None = None,
) -> tuple[Located, list[Located | None]]:
    """The logits of the rows that a sample is for, and what came from other clients for each layer.
    Alg. 1, l. 7-13

    key: of dropout, None for none; came: what came before, which is used again and does not cross."""
    h: Located | None = None
    received: list[Located | None] = []
    for number, (layer, route) in enumerate(sample.layers):
        hw = fed.clients.run(transform, silo, layer, weights, h, number, config.dropout, key)
        rows = None
        if route is not None and came is not None:
            rows = came[number]
        elif route is not None:
            told = fed.clients.run(answers, silo, layer, hw)
            name = "fedgraph/embeddings" if number else "fedgraph/transformed_features"
            rows = fed.exchange(told, route, name=name, grad=False)
        received.append(rows)
        last = number == config.layers - 1
        h = fed.clients.run(aggregate, silo, layer, hw, rows, weights, number, last)
    assert h is not None
    return h, received


def round(fed: Federation, state: State, config: FedGraphConfig, number: int) -> State:
    """A round as the policy says."""
    clients: Clients = state.prepared
    policy, observed = state.values.get("policy"), state.values.get("observed")
    if policy is None:
        policy = fed.server.run(no_policy)
    decision = fed.server.run(decide, policy, observed, clients.counts, config)
    return round_with(fed, state, config, number, decision)


def round_with(
    fed: Federation, state: State, config: FedGraphConfig, number: int, decision: Located
) -> State:
    """A round with a decision of the server, [K, 1 + L].  Algs. 1 and 3"""
    clients: Clients = state.prepared
    silo, before = clients.silo, fed.traffic()
    received = fed.broadcast(state.weights, name="model", grad=False)
    told = fed.scatter(decision, name="fedgraph/policy", grad=False)
    sizes = fed.clients.run(batch_sizes, told)
    weights = fed.clients.run(first_own_weights, silo, received)
    optimizer, work = state.values["optimizer"], fed.clients.run(no_work, silo)
    sample: Sample | None = None
    came: list[Located | None] | None = None
    for step in range(config.local_steps):
        if sample is None or config.refresh == "step":
            key = fold(config.seed, "fedgraph", number, step)
            batch = fed.clients.run(drawn_batch, silo, told, fold(key, "batch"))
            sample, came = draw(fed, silo, clients.wants, batch, told, config, key), None
        key = fold(config.seed, "dropout", number, step)
        with fed.tape():
            leaves = fed.clients.run(as_leaves, weights)
            logits, came = forward(fed, silo, sample, leaves, config, key if config.dropout else None, came)
            last, _ = sample.layers[-1]
            fed.backward(fed.clients.run(loss_of, silo, last, logits, sizes))
        gradient = fed.gradients(leaves)
        if not config.at_server:
            weights, optimizer = fed.clients.run(local_step, weights, gradient, optimizer, config, outputs=2)
        for layer, (here, _) in enumerate(sample.layers):
            work = fed.clients.run(more_work, work, silo, layer, clients.widths, here)
    values = dict(state.values)
    values["optimizer"] = fed.clients.run(kept_state, optimizer, config)
    if config.at_server:
        kappa, zero = fed.server.run(batch_sizes, decision), fed.server.run(full_like, state.weights, 0.0)
        mean = protected_mean(fed, gradient, sizes, kappa, zero, config.aggregation, name="gradient")
        mean, values["server_optimizer"] = fed.server.run(
            fedavg.take_step, state.weights, mean, state.values["server_optimizer"], config, outputs=2
        )
    elif config.policy == "ddpg":
        every = fed.gather(fed.clients.run(flattened, weights, received), name="update", grad=False)
        mean = fed.server.run(mean_of_rows, every, decision, state.weights)
        sight = fed.server.run(seen_weights, mean, every)
        values["observed"] = fed.server.run(observation, values["policy"], sight)
    else:
        kappa = fed.server.run(batch_sizes, decision)
        mean = protected_mean(fed, weights, sizes, kappa, state.weights, config.aggregation, name="update")
    values["weights"] = mean
    seconds = fed.clients.run(modelled_seconds, silo, work, before, fed.traffic(), clients.size, config)
    seconds = fed.gather(seconds, name="fedgraph/seconds", grad=False)
    values["facts"] = fed.server.run(later_facts, state.values["facts"], seconds)
    return replace(state, values=values)


def predict(fed: Federation, state: State, config: FedGraphConfig, target: str) -> Located:
    """The shared weights and all neighbours."""
    clients: Clients = state.prepared
    received = fed.broadcast(state.weights, name="model", grad=False)
    sample = clients.val
    if target != "val":
        rows = fed.clients.run(rows_of, clients.data, target)
        sample = draw(fed, clients.silo, clients.wants, rows, None, config, 0)
    logits, _ = forward(fed, clients.silo, sample, received, config, None)
    return logits


MESSAGES: Mapping[str, str] = {
    "training_counts": fedavg.MESSAGES["training_counts"],
    **fedavg.GRADIENT_MESSAGES,
    "fedgraph/neighbours": "Once, between clients with sent_embeddings=hidden or all: the ids of a client's "
    "neighbours at "
    "another one. Each learns which of its nodes the other has an edge to.",
    "model": fedavg.MESSAGES["model"],
    "fedgraph/policy": "From the server, in every round, to each client: how many training nodes to take, "
    "and how much to sample in each layer.",
    "fedgraph/wanted": "Between clients, in every local step (refresh=round: once in a round) and "
    "evaluation: "
    "which of these neighbours are in a client's sample.",
    "fedgraph/embeddings": "Between clients, likewise: of each neighbour that is asked for, what leaves a "
    "layer times the weights of the next, which the other client reads. No formal guarantee: from many "
    "rounds "
    "much of the features around a node can be worked out (`graphfed audit`).",
    "fedgraph/transformed_features": "Between clients, only with sent_embeddings=all: of each neighbour that "
    "is asked for its features times the first layer's weights, which the other client reads and knows: as "
    "good as the features, up to the width of the layer, and after some rounds as good as all of them.",
    "update": "With several local steps (optimizer_at=clients), or a policy learned by DDPG, and "
    "aggregation=plaintext: each client's model weights after local training, averaged at the server by the "
    "size of the batches. The server reads each client's weights; from weights, features and labels of "
    "training nodes can in part be inferred.",
    "fedgraph/seconds": "In every round: how long it takes a client by the time model, one number. It "
    "follows "
    "from the size of its sample, its neighbours' features and what crossed.",
    **averaging.MESSAGES,
}

METHOD = Method(
    name="fedgraph",
    summary="GCN over cross-client edges: embeddings cross from the second layer on; sampling by a policy",
    paper="Chen, Li, Miyazaki, Wu: FedGraph, federated graph learning with intelligent sampling. IEEE "
    "Transactions on Parallel and Distributed Systems 33(8), 2022",
    config=FedGraphConfig,
    setup=setup,
    round=round,
    predict=predict,
    state=StateValues(
        shared_model=True,
        facts="facts",
    ),
    sends=Sent(
        summary="transformed embeddings of neighbours between clients, every step; weights, every round",
        protection=averaging.PROTECTION,
        messages=MESSAGES,
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
