"""FedGAT: Ambekar, Yao, Li and Joe-Wong, "FedGAT: a privacy-preserving federated approximation algorithm for
graph attention networks". The server sends one message before training; then a GAT is trained by federated
averaging.

    paper                    here
    N(i), with i itself      Neighbourhoods: size, member
    e(x) = exp(psi(x))       polynomial_gat.score_function
    c_n, p                   score_series, degree
    M1, M2, K1, K2, R_n      moment_messages; at a client nn.moments.Moments
    E_i^(n), F_i^(n)         r . K2 and r . K1 in nn.moments
    H_k                      client_graphs.Neighbourhood: a client's nodes and those within L - 1 hops
    homomorphic encryption   exchange=encrypted: encrypted_moments

1. Each client sends the features and the neighbours of its nodes to the server, in plaintext (Alg. 1, l.
   1).
2. The server computes the message of every node (form=matrix or form=vector). It sends each client the
   messages of its own nodes and of all nodes within L - 1 hops (Alg. 1, l. 2 to 8). So each client can
   compute every layer that its own nodes' logits need, and only weights are sent in training. For L > 2 the
   server also sends the edges among these nodes.
3. The clients train a GAT whose first layer has polynomial scores of degree p (Alg. 2), by any rule of
   averaging (`rule`, `methods.averaging.rules`).

With later=exchange, as in the paper's text, a client receives the messages of its own nodes only. Whenever
weights arrive, to train or to predict, every client computes the embeddings of its nodes after each layer
except the last, layer by layer and without dropout. The embeddings of nodes with a remote neighbour are
sent to the server, in plaintext, and from there to the neighbours' clients. In the local steps the received
embeddings are constants, while a client's own embeddings follow its weights: no gradient is sent to another
client. With the same weights, later=hops (the program's way) and later=exchange predict the same. With
several clients they do not train the same.

**The message hides nothing.** The server has all features and edges. From either form, a client can compute
the exact features of every neighbour of every node whose message it receives; `graphfed audit` does it.
With exchange=encrypted the server has the edges and no features, and the clients can compute the same as
without encryption.

evaluation=direct is a simulation in one process: clients receive the neighbours' features and evaluate the
polynomial of every score. Results are the same to rounding, and the ledger has the bytes of the chosen
form, marked `simulated`.

Differs from the paper (docs/papers/fedgat.md, Differences, has the reasons): a node keeps its only remote
neighbour (the paper drops it: drop_single=True; item 2). The moments of order 0 are halved, as the
identities require (zeroth=doubled is the program; item 3). The domain of the polynomial is a setting (item
4). psi is smoothed, as in the program (item 5); exp(psi) is approximated, where the program approximates
psi (score=plain; item 6). The score vectors are those of GAT, b = W' a (attention=free: weights of their
own, as in the program; item 7). The matrix form is evaluated by the Chebyshev recurrence (item 8).
Gradients are averaged unless another rule is chosen, as in the program; the paper's text averages weights
(item 10). Dropout is off by default and is not applied in the first layer, whose sums are computed before
training (item 12). max_neighbours, which the program has (150), is off by default (item 13). The
encryption, which the paper names and does not build, is of the vector form (item 14). Edge weights are
ignored (item 17).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.route import Route
from graphfed.federation.secure.aggregation import check_sums
from graphfed.methods.averaging import program
from graphfed.methods.averaging.program import Clients
from graphfed.methods.averaging.rules import RULE_SETTINGS
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.fedgat import client_graphs, encrypted_moments
from graphfed.methods.fedgat.client_graphs import (
    exchange_embeddings,
    find_border,
    first_neighbourhood,
    kept_edges,
    without_messages_of_others,
)
from graphfed.methods.fedgat.config import PLAINTEXT_ONLY, Moments, PolynomialScores
from graphfed.methods.fedgat.encrypted_moments import receive_encrypted
from graphfed.methods.fedgat.polynomial_gat import accept_changes, first_facts, range_changes, score_facts
from graphfed.methods.fedgat.pretraining import extend_neighbourhoods, receive, request_messages, upload
from graphfed.methods.parts import clients_in_round, samples_clients
from graphfed.methods.settings import value

#: Whether the server can read the features, by the setting `exchange`. If not, other rows are sent
#: (`encrypted_moments`).
READS_FEATURES = {"plaintext": True, "encrypted": False}


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: AveragingSettings) -> State:
    """Run everything that happens before the first round.

    Reference:
        FedGAT, Alg. 1.
    """
    check(fed, config)
    reads_features = READS_FEATURES[config.exchange.exchange]
    data = fed.clients.run(kept_edges, data, config.exchange.edges, config.run.seed)
    nodes, pooled = upload(fed, data, task, features=reads_features)
    return begin(fed, data, nodes, pooled, task, config, reads_features=reads_features)


def check(fed: Federation, config: AveragingSettings) -> None:
    """Refuse settings that this federation cannot run, before anything is sent."""
    if config.exchange.message.evaluation == "direct" and fed.link is not None:
        raise InputError(
            "evaluation=direct is a simulation: it shows a client the features of other clients' nodes; use "
            "evaluation=message if the clients are separate processes"
        )
    check_sums(fed, config.sums.aggregation, clients_in_round(config, fed.num_clients))


def check_settings(config: AveragingSettings) -> None:
    """Raise InputError if the rule cannot be used, or if absent clients would have to send embeddings."""
    program.check_settings(config)
    if value(config, "later") == "exchange" and samples_clients(config):
        raise InputError(
            "later=exchange needs every client in every round, because other clients use its embeddings; "
            f"fraction must be 1, got {config.clients.fraction}: remove one of the two settings"
        )


@dataclass(frozen=True)
class CheckedClients(Clients):
    """Clients whose scores the server checks.

    Attributes:
        pooled: The graph at the server, or None if the server cannot compute the scores.
    """

    pooled: Located | None = None


def begin(
    fed: Federation,
    data: Located,
    nodes: Route,
    pooled: Located,
    task: Task,
    config: AveragingSettings,
    *,
    reads_features: bool = True,
) -> State:
    """Send the messages to the clients that need them, and start the rule of averaging.

    Args:
        data: The clients' graphs with the selected edges.
        nodes: The route of all nodes.
        pooled: The graph at the server.
        reads_features: Whether the server has the features; else it computes with encrypted ones.
    """
    layers = config.network.layers
    neighbourhood = fed.clients.run(first_neighbourhood, data, layers)
    exchanged = config.exchange.message.later == "exchange" and layers > 1 and fed.num_clients > 1
    if exchanged:
        neighbourhood = fed.clients.run(without_messages_of_others, neighbourhood)
    else:
        for _ in range(layers - 2):
            neighbourhood = extend_neighbourhoods(fed, pooled, neighbourhood)
    fed.begin("asking for the messages of neighbourhoods")
    requests = request_messages(fed, pooled, neighbourhood)
    # Alg. 1, l. 2 to 8
    if reads_features:
        prepared = receive(fed, data, pooled, requests, task, config)
    else:
        prepared = receive_encrypted(fed, data, nodes, pooled, requests, task, config)
    state = program.start(fed, prepared, task, config)
    exchange = None
    if exchanged:
        border = find_border(fed, nodes, neighbourhood, prepared, config.network)
        exchange = partial(exchange_embeddings, border)
    # The server cannot read encrypted features. With features=unit it still knows a bound of their length.
    seen = pooled if reads_features or config.inputs.features == "unit" else None
    facts = fed.server.run(first_facts, str(fed.device))
    return State(
        {**state.values, "facts": facts}, CheckedClients(prepared, state.prepared.counts, exchange, seen)
    )


def round(fed: Federation, state: State, config: AveragingSettings, round_number: int) -> State:
    """Run one round of the rule, and log if scores have left the range that the polynomial approximates.

    Reference:
        FedGAT, Alg. 2.
    """
    clients: CheckedClients = state.prepared
    before, after = state.values["facts"], program.round(fed, state, config, round_number)
    if clients.pooled is None:
        return State({**after.values, "facts": before}, clients)
    scores: PolynomialScores = config.network.scores
    polynomial = scores.polynomial
    facts = fed.server.run(score_facts, clients.pooled, after.weights, before, polynomial)
    changes = fed.control(
        range_changes, before, facts, polynomial, name="fedgat/score_range", accept=accept_changes
    )
    if "outside" in changes:
        fed.log(
            f"scores of the first layer are outside domain={scores.domain:g}, where the polynomial does "
            f"not approximate attention; set domain={changes['outside']}, and a higher degree"
        )
    if "error" in changes:
        most = "100 % or more" if changes["error"] == 100 else f"up to {changes['error']} %"
        fed.log(
            f"the polynomial of degree={scores.degree} and domain={scores.domain:g} has an error "
            f"of {most} for "
            "the scores of this run; set a higher degree, or a smaller domain that still contains them"
        )
    return State({**after.values, "facts": facts}, clients)


#: Added to the messages of averaging.
MESSAGES: Mapping[str, str] = {
    "nodes": "Each client sends the ids of its nodes to the server. The server learns which "
    "client has which node.",
    "fedgat/features": "Each client sends the features of all its nodes to the server. The server can read "
    "them.",
    "fedgat/edges": "Each client sends the server one node id for each edge of its nodes. With "
    "`fedgat/neighbours` the server learns the whole graph.",
    "fedgat/neighbours": "Each client sends the server the neighbour's id for each edge of its nodes, "
    "whether the neighbour is local or remote. The server can read them.",
    "fedgat/border_ids": "With more than two layers: each client sends the server the ids of remote nodes "
    "whose neighbours it needs.",
    "fedgat/neighbour_counts": "With more than two layers: the server sends each client the number of "
    "neighbours of these nodes.",
    "fedgat/neighbourhood_edges": "With more than two layers: the server sends each client the ids of these "
    "neighbours. The client learns the graph around its own nodes.",
    "fedgat/neighbourhood_ids": "Each client sends the server the ids of its nodes and of all nodes "
    "within L - 1 hops, for L layers.",
    "fedgat/sizes": "The server sends each client the size of the neighbourhood of each of these nodes, "
    "which counts the node itself.",
    "fedgat/size": "The server sends every process the total size of the message before training, in "
    "bytes or ciphertexts.",
    "fedgat/score_range": "In every round the server reports whether scores of the first layer have left the "
    "domain of the polynomial, with the largest score rounded up to a whole number. This "
    "number depends on the features of all clients.",
    "fedgat/sums": "The server sends each client, once, K1 and K2 of each of these nodes: sums of the "
    "neighbours' features with random vectors. The client can compute every neighbour's "
    "features from these messages.",
    "fedgat/scores": "The server sends each client, once, M1 and M2 of each of these nodes, from which "
    "the client computes attention. The client can compute every neighbour's features from these messages.",
    "fedgat/decoders": "With form=vector: the server sends each client, once, R_0 to R_p of each of these "
    "nodes. They show which numbers of `fedgat/sums` are a neighbour's features.",
    **client_graphs.MESSAGES,
    **encrypted_moments.MESSAGES,
}

METHOD = Method(
    name="fedgat",
    summary="GAT over cross-client edges after one message; attention is a polynomial of moments",
    paper="Ambekar, Yao, Li, Joe-Wong: FedGAT, a privacy-preserving federated approximation algorithm for "
    "graph attention networks",
    config=AveragingSettings,
    parts={"of_rule": RULE_SETTINGS, "network.scores": PolynomialScores, "exchange": Moments},
    offers={"backbone": ("gat",)},
    plaintext_only=PLAINTEXT_ONLY,
    check_settings=check_settings,
    setup=setup,
    round=round,
    predict=program.predict,
    requires=Requirements(disjoint=True),
    state=StateValues(facts="facts", shared_model=True),
    sends=Sent(
        summary="once: features and edges to the server, and moments of neighbourhoods to the "
        "clients; every round: gradients or weights (rule); with later=exchange also embeddings of "
        "neighbours",
        protection="none: the server can read the graph, and a client can compute every neighbour's "
        "features; with exchange=encrypted the server can read the edges and no features, and all "
        "clients share one key; with aggregation=secure the server can read the sum of the clients' "
        "weights and not each client's",
        messages={**program.RULE_MESSAGES, **MESSAGES},
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
