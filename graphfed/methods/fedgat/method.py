"""FedGAT: Ambekar, Yao, Li and Joe-Wong, "FedGAT: a privacy-preserving federated approximation algorithm for
graph attention networks". One message before training, then federated training of a GAT.

    paper                    here
    N(i), with i itself      Neighbourhoods: size, member
    e(x) = exp(psi(x))       nn.polynomial_gat.score_function
    c_n, p                   score_series, degree
    M1, M2, K1, K2, R_n      methods.moment_messages; as the client has them nn.moments.Moments
    E_i^(n), F_i^(n)         r . K2 and r . K1 in nn.moments
    B_L                      Neighbourhood: a client's nodes and those within L - 1 hops of them
    homomorphic encryption   exchange=encrypted: methods.encrypted_moments

1. Clients send the features and the neighbours of their nodes to the server, in clear (Alg. 1, l. 1).
2. The server makes the message of every node (form=matrix or vector) and sends each client those of its
   own nodes and of all within L - 1 hops: so a client works out every layer that its own nodes' logits
   need, and in training only weights cross. For L > 2 it also sends who is whose neighbour there.
3. Training is that of a GAT with the scores of the first layer in a polynomial of degree p (Alg. 2), by any
   rule of averaging (`rule`, `methods.rules`).

later=exchange, as in the paper: a client gets the messages of its own nodes only. Whenever weights have
come, to train or to predict, every client works out what leaves each layer but the last of its nodes, one
layer after the other and without dropout; the rows of those with a neighbour elsewhere cross to the server,
in clear, and on to the neighbours' clients. In the local steps what came stays as it was, while a client's
own rows follow its weights: no gradient goes to another client. So with several clients it does not train as
later=hops does (the program's way); from the same weights it predicts the same.

**It hides nothing.** The server has all features and edges. A client can work out the exact features of every
neighbour of every node that it gets a message of, from either form: `graphfed audit`, which does it. With
exchange=encrypted the server has the edges and no features; the clients read what they read without it.

evaluation=direct is a simulation, in one process only: clients get the neighbours' features and evaluate the
polynomial of every score; the same results to rounding, the ledger of the chosen form, marked `simulated`.

Differs from the paper: a node keeps the only neighbour elsewhere that it has (the paper: drop_single=True,
Alg. 1, which protects nothing: see above). E^(0) and F^(0) are halved, as the identities need (zeroth=doubled
is the program). The matrix form's polynomial is summed by its Chebyshev recurrence. The scores' vectors are
those of GAT, b = W a (attention=free: weights of their own, as in the program). psi is smoothed, as in the
program, which approximates psi and not exp(psi) (score=plain). The clients' gradients are averaged unless
another rule is asked for, as in the program, which calls that FedAvg: the paper's text averages weights.
Dropout, off unless it is asked for, has no part in the first layer, whose sums are made before training. A
graph's edge weights have none. The encryption, which the paper names and nobody has built, is of the vector
form; max_neighbours, which the program has (150), is off unless it is asked for."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route
from graphfed.federation.secure.aggregation import check_sums
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.baselines import fedavg
from graphfed.methods.baselines.fedavg import Clients
from graphfed.methods.common import aggregation_rules
from graphfed.methods.common.memory import NUMBER, GraphExtent
from graphfed.methods.config import clients_in_round
from graphfed.methods.fedgat import embedding_exchange, encrypted_moments
from graphfed.methods.fedgat.config import AnyFedGATConfig, FedGATConfig
from graphfed.methods.fedgat.moment_messages import (
    Pooled,
    numbers,
)
from graphfed.methods.fedgat.pretraining import EXCHANGES, Exchange, ask, extend, memory_of, upload
from graphfed.methods.fedgat.receptive_fields import (
    first_neighbourhood,
    without_messages_of_others,
)
from graphfed.methods.fedgat.score_range import first_facts, message_of, score_facts
from graphfed.nn.sparse import SparseMatrix, ranges
from graphfed.random import entry_words, fold, uniform

__all__ = ["METHOD", "Pooled", "kept_edges", "memory", "setup", "without_singles"]

Rows = Tensor | SparseMatrix


# ---- at the clients ----------------------------------------------------------------------------------------


def without_singles(cohort: Cohort, config: AnyFedGATConfig) -> Cohort:
    """The cohort as its nodes see it: without the only neighbour elsewhere of those that have one."""
    if not config.drop_single:
        return cohort
    elsewhere = torch.bincount(cohort.cross_row, minlength=cohort.num_rows)
    kept = elsewhere[cohort.cross_row] > 1
    weight = None if cohort.cross_weight is None else cohort.cross_weight[kept]
    return replace(
        cohort,
        cross_row=cohort.cross_row[kept],
        cross_client=cohort.cross_client[kept],
        cross_id=cohort.cross_id[kept],
        cross_weight=weight,
    )


def kept_edges(cohort: Cohort, config: AnyFedGATConfig) -> Cohort:
    """The cohort as its nodes see it: `without_singles`, and with at most `max_neighbours` of each."""
    cohort = without_singles(cohort, config)
    if config.max_neighbours is None:
        return cohort
    inside, most = cohort.edge_index.shape[1], config.max_neighbours
    row = torch.cat([cohort.edge_index[1], cohort.cross_row])
    neighbour = torch.cat([cohort.id[cohort.edge_index[0]], cohort.cross_id])
    draw = uniform(fold(config.seed, "fedgat", "neighbours"), entry_words(cohort.id[row], neighbour))[:, 0]
    order = torch.argsort(draw, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    degree = torch.bincount(row, minlength=cohort.num_rows)
    kept = torch.zeros_like(row, dtype=torch.bool)
    kept[order] = ranges(torch.zeros_like(degree), degree) < most
    within, across = kept[:inside], kept[inside:]
    return replace(
        cohort,
        edge_index=cohort.edge_index[:, within],
        edge_weight=None if cohort.edge_weight is None else cohort.edge_weight[within],
        cross_row=cohort.cross_row[across],
        cross_client=cohort.cross_client[across],
        cross_id=cohort.cross_id[across],
        cross_weight=None if cohort.cross_weight is None else cohort.cross_weight[across],
    )


# ---- the program over places -------------------------------------------------------------------------------


def memory(extent: GraphExtent, config: AnyFedGATConfig) -> float:
    """The message before training, as made and as received, with the places of its entries; of the simulation
    the features of all neighbours."""
    size = torch.from_numpy(extent.sizes)
    if config.evaluation == "direct":
        return 3 * NUMBER * float(size.sum()) * extent.features
    sent = NUMBER * numbers(config.form, size, extent.features, config.degree)
    places = 3 * 8 * 4 * float((size.double() ** 2).sum())
    return memory_of(sent, sent, together=True) + places


def setup(fed: Federation, data: Located, task: Task, config: FedGATConfig) -> State:
    check(fed, config)
    data, exchange = fed.clients.run(kept_edges, data, config), EXCHANGES[config.exchange]
    nodes, pooled = upload(fed, data, task, features=exchange.reads_features)
    return begin(fed, data, nodes, pooled, task, config, exchange)


def check(fed: Federation, config: AnyFedGATConfig) -> None:
    """InputError, before anything crosses, for what these places cannot do."""
    if config.evaluation == "direct" and fed.link is not None:
        raise InputError(
            "evaluation=direct is a simulation: it shows a client the features of other clients' nodes; use "
            "evaluation=message where clients are apart"
        )
    check_sums(fed, config.aggregation, clients_in_round(config, fed.num_clients))


def begin(
    fed: Federation,
    data: Located,
    nodes: Route,
    pooled: Located,
    task: Task,
    config: AnyFedGATConfig,
    exchange: Exchange,
) -> State:
    """From what the server has, `Pooled`: the message before training, and the first weights. data: with the
    edges that are kept."""
    state = with_message(fed, data, nodes, pooled, task, config, exchange)
    # Of encrypted features the server knows at most the length, with features=unit.
    seen = pooled if exchange.reads_features or config.features == "unit" else None
    return watched(fed, state, seen)


def with_message(
    fed: Federation,
    data: Located,
    nodes: Route,
    pooled: Located,
    task: Task,
    config: AnyFedGATConfig,
    exchange: Exchange,
) -> State:
    neighbourhood = fed.clients.run(first_neighbourhood, data, config.layers)
    exchanged = config.later == "exchange" and config.layers > 1 and fed.num_clients > 1
    if exchanged:
        neighbourhood = fed.clients.run(without_messages_of_others, neighbourhood)
    for _ in range(0 if exchanged else config.layers - 2):
        neighbourhood = extend(fed, pooled, neighbourhood)
    fed.begin("asking for the messages of neighbourhoods")
    asked = ask(fed, pooled, neighbourhood)
    prepared = exchange.receive(fed, data, nodes, pooled, asked, task, config)
    state = aggregation_rules.start(fed, prepared, task, config)
    if not exchanged:
        return state
    border = embedding_exchange.find_border(fed, nodes, neighbourhood, prepared, config)
    again = partial(embedding_exchange.exchange, border)
    return replace(state, prepared=replace(state.prepared, exchange=again))


@dataclass(frozen=True)
class Watched(Clients):
    """pooled: what the server has, to see the scores; None where it cannot."""

    pooled: Located | None = None


def watched(fed: Federation, state: State, seen: Located | None) -> State:
    """The state with what is known of the scores, from what the server has to see them."""
    clients: Clients = state.prepared
    facts = fed.server.run(first_facts, str(fed.device))
    prepared = Watched(clients.prepared, clients.counts, clients.exchange, seen)
    return State({**state.values, "facts": facts}, prepared)


def round(fed: Federation, state: State, config: AnyFedGATConfig, number: int) -> State:
    """A round of the rule, and word where scores are no more those that the polynomial is for."""
    clients: Watched = state.prepared
    before, after = state.values["facts"], aggregation_rules.round(fed, state, config, number)
    if clients.pooled is None:
        return State({**after.values, "facts": before}, clients)
    polynomial = config.polynomial
    facts = fed.server.run(score_facts, clients.pooled, after.weights, before, polynomial)
    told = fed.control(message_of, before, facts, polynomial, name="fedgat/score_range")
    if "outside" in told:
        fed.log(
            f"scores of the first layer are beyond domain={config.domain:g}, where the polynomial is "
            f"no approximation of attention; set domain={told['outside']}, and with it a higher degree"
        )
    if "error" in told:
        most = "100 % or more" if told["error"] == 100 else f"up to {told['error']} %"
        fed.log(
            f"the polynomial of degree={config.degree} and domain={config.domain:g} is off by {most} for the "
            "scores that there are; set a higher degree, or a domain nearer to them"
        )
    return State({**after.values, "facts": facts}, clients)


#: Beside those of averaging.
MESSAGES: Mapping[str, str] = {
    "nodes": "The ids of a client's nodes: the server learns who has which.",
    "fedgat/features": "The features of all nodes of a client, which the server reads.",
    "fedgat/edges": "For every edge of a client's nodes, the node: with `fedgat/neighbours` the server "
    "learns the whole graph.",
    "fedgat/neighbours": "For every edge of a client's nodes, the neighbour, here or at another client.",
    "fedgat/border_ids": "With more than two layers: the ids of nodes elsewhere whose neighbours a client "
    "needs.",
    "fedgat/neighbour_counts": "With more than two layers, from the server: how many neighbours these have.",
    "fedgat/neighbourhood_edges": "With more than two layers, from the server: who they are. A client "
    "learns the graph "
    "around its own nodes.",
    "fedgat/neighbourhood_ids": "The ids of a client's nodes and of those within L - 1 hops, of L layers.",
    "fedgat/sizes": "From the server: how many neighbours each of these nodes has, with itself.",
    "fedgat/size": "From the server: how many bytes, or ciphertexts, the message before training has in all.",
    "fedgat/score_range": "From the server, in every round: whether scores of the first layer have left the "
    "domain of the polynomial, and the whole number above the largest. It follows from all clients' "
    "features.",
    "fedgat/sums": "From the server, once, of each of these nodes: K1 and K2, sums of the neighbours' "
    "features under random vectors. From these messages a client can work out every neighbour's features.",
    "fedgat/scores": "From the server, once, of each of these nodes: M1 and M2, from which attention is "
    "worked out. From these messages a client can work out every neighbour's features.",
    "fedgat/decoders": "From the server, once, of each of these nodes, with form=vector: R_0 to R_p. They "
    "show which numbers of `fedgat/sums` are a neighbour's features.",
    **embedding_exchange.MESSAGES,
    **encrypted_moments.MESSAGES,
}

METHOD = Method(
    name="fedgat",
    summary="GAT over cross-client edges after one message; attention as a polynomial of moments",
    paper="Ambekar, Yao, Li, Joe-Wong: FedGAT, a privacy-preserving federated approximation algorithm for "
    "graph attention networks",
    config=FedGATConfig,
    setup=setup,
    round=round,
    predict=fedavg.predict,
    memory=memory,
    requires=Requirements(
        disjoint=True,
    ),
    state=StateValues(
        facts="facts",
        shared_model=True,
    ),
    sends=Sent(
        summary="features and edges to the server, moments of neighbourhoods back, once; gradients (rule: or "
        "weights), every round; with later=exchange embeddings of neighbours too",
        protection="none: the server reads the graph, and a curious client every neighbour's features; with "
        "exchange=encrypted the server reads the edges and no features, under one key of the clients; with "
        "aggregation=secure the server reads the sum of the weights, not each client's",
        messages={**aggregation_rules.MESSAGES, **MESSAGES},
    ),
    defaults={
        "hidden": 8,
        "features": "unit",
        "rule": "fedsgd",
        "lr": 0.02,
        "weight_decay": 5e-3,
        "dropout": 0.0,
    },
    paper_settings={"drop_single": True, "local_steps": 1, "optimizer": "adam"},
)
