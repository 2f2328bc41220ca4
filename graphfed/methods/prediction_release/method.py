"""Release a prediction: a network of each node's own features, and the class that it predicts for each node,
sent to the node's neighbours once under local differential privacy.

    training      one network of each node's own features, as in `own_features`: in every round the server
                  sends the weights, adds up the gradients and takes the optimiser's step (`gradients`)
    release       in round `release_round`, once: each client predicts the class of each of its nodes, and
                  sends it under randomised response to every client with a neighbour of the node (`release`)
    combination   log p(k | x_u) + sum_v log p(c_v | k), by the rule of Bayes, for every class k of node u
                  with features x_u and neighbours v of classes c_v. The server estimates p(c | k) from sums
                  of counts over training nodes; it takes the noise into account (`likelihoods`)

Clients send each other nothing else: no feature and no embedding. Before the release there is no evidence of
neighbours, and the predictions are those of the network. Training does not depend on the release, so in every
round the network is that of `own_features` with one step in a round. The best round is selected by validation
nodes, as for every method; if it is before the release, the result is that of own features. That is also so
if training ends before the release, because it has not improved for `patience` evaluations; the default of
release_round prevents this.

What the participants learn. Another client that has an edge to a node learns the node's class after
randomised response, once; and the client of the node is asked for it by the node's id. The server sends all
clients p(c | k). With aggregation=plaintext the server reads each client's gradient in every round, the
number of its training nodes, and its counts. For a client with one training node these show the node's label,
and the released classes of its neighbours but not which neighbour has which. With aggregation=secure it reads
sums over all clients.

The guarantee. Statement: for any weights of the network, any two feature vectors of a node and any set of
outcomes, the probabilities that what all receivers together get from the node's release is in the set differ
by a factor of at most e^epsilon. Assumptions: one client has the node; the noise comes from the operating
system's entropy (no noise_seed). Receivers may collude, and may know all other nodes. Argument: given the
weights, the predicted class is a function of the node's features. `privacy.local.respond` gives every
released class probabilities whose ratio between any two predicted classes is at most e^epsilon, in the
machine's numbers too. The value is drawn once and all receivers get the same one, so together they learn what
one of them learns. What clients compute from it is post-processing. Test:
tests/methods/test_prediction_release.py goes through all outcomes of the noise.

The guarantee does not cover training and evaluation. A client's gradient depends on the features and labels
of its training nodes without noise: with aggregation=plaintext the server reads it, with aggregation=secure
it reads the sum over all clients, and no epsilon bounds either, nor what the weights say about training
nodes. The same holds for the scores of validation and test nodes, which for a client with one node show its
label and its prediction. At a client with several nodes the counts contain predicted classes of nodes at the
same client, without noise. Edges are not hidden from the two clients that have them.

A run that breaks in the round of the release and goes on releases again: the same values, because the noise
is drawn before training and is in the checkpoint, if the machine computes the same weights to the bit.

Differs from the paper: there is no paper. The choices were made on validation nodes (docs/papers/lumos.md,
"Ours: release a prediction").
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import log_softmax

from graphfed.data.graphs.graph import Graph
from graphfed.errors import InputError
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.aggregation import check_contributors, check_sums, messages
from graphfed.methods.base import Method, Requirements, Sent, State, Task
from graphfed.methods.common.local_training import Prepared as Batches
from graphfed.methods.common.local_training import fresh_state, initial_weights, predict_shared, stepped
from graphfed.methods.common.remote_neighbours import remote_ids
from graphfed.methods.parts import Network
from graphfed.methods.prediction_release.config import PredictionReleaseConfig
from graphfed.methods.prediction_release.gradients import NETWORK_GRADIENTS, training_nodes_of_clients
from graphfed.methods.prediction_release.release import draw_words, no_evidence, release
from graphfed.nn.backbones import Weights

NO_WEIGHTS = (
    "prediction_release counts the classes of neighbours, and has no use for edge weights; leave the edge "
    "weights out (in a description: 'weight:' with nothing after it)"
)


@dataclass(frozen=True)
class Prepared:
    """What set-up prepares.

    Attributes:
        batches: The batches of the network, at the clients.
        route: Route from each client's nodes to the clients that have a neighbour of them.
        train: Number of training nodes, at the server; None if every round sums it.
    """

    task: Task
    data: Located
    batches: Located
    route: ExchangeRoute
    train: Located | None


def check_graph(graph: Graph, config: PredictionReleaseConfig) -> None:
    """Raise InputError for a graph with edge weights."""
    if graph.edge_weight is not None:
        raise InputError(f"{graph.name!r}: {NO_WEIGHTS}")


# ---- at the clients ----------------------------------------------------------------------------------------


def check_cohort(cohort: Cohort) -> Cohort:
    """Raise InputError for edges with weights, where no process has the whole graph."""
    if cohort.edge_weight is not None:
        raise InputError(NO_WEIGHTS)
    return cohort


def counts_pairs(cohort: Cohort) -> Tensor:
    """Return whether each client adds to the counts of classes: it has a training node with a neighbour, bool
    [K_h, 1].
    """
    return (cohort.counts(cohort.train & (cohort.degree(with_cross=True) > 0)) > 0)[:, None]


def class_scores(
    batches: Batches, weights: Weights, evidence: Tensor, network: Network, target: str
) -> Tensor:
    """Combine the network's predictions for a target's nodes with the evidence of neighbours, [n, C]."""
    # Bayes: log p(k | x_u) + sum_v log p(c_v | k), up to a constant
    own = log_softmax(predict_shared(batches, weights, network, target), 1)
    return own + evidence[batches.targets[target]]


# ---- the program over places -------------------------------------------------------------------------------


def setup(fed: Federation, data: Located, task: Task, config: PredictionReleaseConfig) -> State:
    """Draw the first weights and the noise of the release."""
    protection = config.sums.aggregation
    check_sums(fed, protection, fed.num_clients)
    # Clients without such a node add zeros: a secure sum over one contributor would show its counts.
    has_pairs = fed.clients.run(counts_pairs, data)
    what = ("training nodes that have neighbours",)
    with fed.phase("eval"):  # no cost of training, as for the other counts of contributors
        check_contributors(fed, has_pairs, what, protection, name="prediction_release/contributors")
    weights = fed.server.run(initial_weights, task, config.network, config.run.seed, str(fed.device))
    values = {
        "weights": weights,
        "optimizer": fed.server.run(fresh_state, weights, config.training),
        # Drawn once, before anything that it hides is known, and kept in checkpoints.
        "words": fed.clients.run(draw_words, data, config.noise),
        "evidence": fed.clients.run(no_evidence, data),
    }
    return restore(fed, data, task, config, values)


def restore(
    fed: Federation, data: Located, task: Task, config: PredictionReleaseConfig, values: Mapping[str, Located]
) -> State:
    """Rebuild the state of a run that is resumed: no noise is drawn again."""
    fed.expect("model", initial_weights, task, config.network, config.run.seed, str(fed.device))
    form = NETWORK_GRADIENTS[config.sums.aggregation]
    # `check_graph` runs only where a process has the whole graph.
    data = fed.clients.run(check_cohort, data)
    batches = fed.clients.run(form.prepare, data, config)
    route = fed.exchange_route(fed.clients.run(remote_ids, data), name="prediction_release/neighbour_ids")
    counts = fed.clients.run(training_nodes_of_clients, batches)
    count = form.count(fed, counts, "prediction_release")
    return State(values, Prepared(task, data, batches, route, count))


def round(fed: Federation, state: State, config: PredictionReleaseConfig, round_number: int) -> State:
    """Train for a round; in the round of the release, predict and release with the weights it begins with."""
    prepared: Prepared = state.prepared
    values = dict(state.values)
    received, gradient = NETWORK_GRADIENTS[config.sums.aggregation].mean(
        fed, prepared.batches, values["weights"], prepared.train, config, round_number
    )
    # The gradient was computed before: the release changes no weight of any round.
    if round_number == config.round_of_release:
        values["evidence"] = release(
            fed,
            prepared.data,
            prepared.batches,
            prepared.route,
            received,
            values["words"],
            prepared.task,
            config,
        )
    values["weights"], values["optimizer"] = fed.server.run(
        stepped, values["weights"], gradient, values["optimizer"], config.training, outputs=2
    )
    return State(values, prepared)


def predict(fed: Federation, state: State, config: PredictionReleaseConfig, target: str) -> Located:
    """Score the target's nodes at the clients; nothing is released."""
    weights = fed.broadcast(state.weights, name="model", grad=False)
    evidence = state.values["evidence"]
    return fed.clients.run(class_scores, state.prepared.batches, weights, evidence, config.network, target)


MESSAGES = {
    "prediction_release/neighbour_ids": "A client sends each other client, once, the ids of that client's "
    "nodes to which it has an edge. That client knows these edges.",
    "prediction_release/training_count": "With aggregation=plaintext every client sends the server, once, "
    "the number of its training nodes. The server reads it for each client.",
    "model": "The server sends the shared weights to every client, in every round and evaluation.",
    "model/grad": "With aggregation=plaintext every client sends the server its gradient of the weights, in "
    "every round. The server reads it. It depends on the features and labels of the client's training nodes, "
    "without noise.",
    **messages(
        "prediction_release/gradient",
        "With aggregation=secure, in every round",
        "a client's gradient of the weights, and the number of its training nodes",
    ),
    **messages(
        "prediction_release/contributors",
        "With aggregation=secure, once before training",
        "1 if a client has a training node with a neighbour and 0 if not",
    ),
    "prediction_release/classes": "A client sends, once, the predicted class of each of its nodes after "
    "randomised response to every other client that has an edge to the node. All receivers get the same "
    "value, from which they can distinguish two feature vectors of the node no better than epsilon allows, "
    "alone or together. With a noise_seed the noise is simulated, and a receiver could remove it.",
    "prediction_release/class_counts": "With aggregation=plaintext every client sends the server, once, how "
    "many neighbours of its training nodes have which class, by the label of the training node: neighbours "
    "at other clients by released class, and those at the client by predicted class, without noise. The "
    "server reads it for each client; from a client with one training node it reads the label.",
    **messages(
        "prediction_release/class_counts",
        "With aggregation=secure, in the round of the release",
        "how many neighbours of a client's training nodes have which class, by the label of the training "
        "node",
    ),
    "prediction_release/likelihoods": "The server sends every client, once, how likely each class of a "
    "neighbour is by the class of the node, estimated from the sum of these counts.",
}


def plans_rounds(config: PredictionReleaseConfig) -> str:
    """Say how training depends on the number of rounds; see `Method.plans_rounds`."""
    given = config.release.release_round is not None
    return "" if given else "without release_round, classes are released after half of the planned rounds"


METHOD = Method(
    name="prediction_release",
    summary="a network of own features, and each node's predicted class, sent to its neighbours once under "
    "randomised response",
    paper="ours: docs/papers/lumos.md",
    config=PredictionReleaseConfig,
    partition="ego",
    setup=setup,
    round=round,
    predict=predict,
    restore=restore,
    plans_rounds=plans_rounds,
    requires=Requirements(disjoint=True, check=check_graph, other=("edges without weights",)),
    sends=Sent(
        summary="a predicted class of each node, once; gradients, every round",
        protection="local differential privacy for the predicted class; gradients in plaintext, with "
        "aggregation=secure only their sum",
        messages=MESSAGES,
    ),
    offers={"backbone": ("mlp",), "local_steps": (1,)},
    # The scale of features would be agreed on from sums of them; the sum of a client with one node is its
    # features.
    defaults={"features": "raw"},
    paper_settings={
        "rounds": 300,
        "optimizer": "adam",
        "lr": 0.01,
        "weight_decay": 0.0,
        "dropout": 0.01,
        "eval_every": 5,
    },
)
