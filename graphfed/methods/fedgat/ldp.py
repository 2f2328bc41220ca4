"""FedGAT on noised features (ours; the paper has no noise). It limits what the FedGAT message reveals
(`method`).

    x'_j = x_j + N(0, sigma^2 I), ||x_j|| <= 1    at the client, once, before anything is sent
    h_j  = (D^-1/2 A D^-1/2)^K x'_j, length 1     at the server, which has the edges: K = k_x (KProp of LPGNN)
    then FedGAT with h_j in place of the features

Guarantee: the release of one node's features is (epsilon, delta)-private (`privacy.gaussian`, with
sensitivity 2), against the server and all other clients together. Everything that they receive of the
features, including the message, is computed from x'. A client can still compute every h_j exactly from the
message; what h_j reveals about x_j is bounded by epsilon, and `graphfed audit` measures it.

Not protected: the server can read the edges, and with more than two layers clients can read edges around
their nodes. The weights or gradients of every round depend on the labels, and on the features only through
h. Labels are not protected.

The noise of a node is much longer than its features (sigma sqrt(F) against 1). Most of what a model can
learn is therefore the graph, whose smoothing of any numbers distinguishes nodes. docs/reproduce.md compares
the accuracy with that of noise alone.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route
from graphfed.methods.averaging import program
from graphfed.methods.averaging.rules import RULE_SETTINGS
from graphfed.methods.averaging.settings import AveragingSettings
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.common.released import NoiseSeed, by_node, node_route, noise_of
from graphfed.methods.fedgat import method as fedgat
from graphfed.methods.fedgat.client_graphs import kept_edges
from graphfed.methods.fedgat.config import NoisedFeatures, NoisedMoments, PolynomialScores
from graphfed.methods.fedgat.encrypted_moments import ENCRYPTED
from graphfed.methods.fedgat.moment_messages import Pooled
from graphfed.methods.fedgat.pretraining import upload_edges
from graphfed.methods.lumos.lpgnn import propagate, propagation_matrix
from graphfed.privacy.gaussian import gaussian_in_ball, gaussian_sigma, in_ball_mechanism


def noised_features(cohort: Cohort, features: NoisedFeatures, noise: NoiseSeed) -> Tensor:
    """Add Gaussian noise to the features of a client, x' [N, F]."""
    assert cohort.x is not None
    sigma = gaussian_sigma(features.epsilon, features.delta, 2.0)
    return gaussian_in_ball(cohort.x, cohort.id, noise_of(noise), "fedgat_ldp", sigma)


def smoothed(pooled: Pooled, k_x: int) -> Pooled:
    """Smooth the noised features over the edges, h [U, F], each row of length 1."""
    assert isinstance(pooled.x, Tensor)
    neighbourhoods = pooled.neighbourhoods
    centre = torch.repeat_interleave(
        torch.arange(len(neighbourhoods.size), device=neighbourhoods.size.device), neighbourhoods.size
    )
    others = neighbourhoods.member != centre
    edges = torch.stack([neighbourhoods.member, centre])[:, others]
    h = propagate(propagation_matrix(edges, None, neighbourhoods.size - 1), pooled.x, k_x)
    length = torch.linalg.vector_norm(h, dim=1, keepdim=True)
    return Pooled(h / torch.where(length > 0, length, 1), neighbourhoods)


# ---- the program over places -------------------------------------------------------------------------------


def release(fed: Federation, data: Located, nodes: Route, task: Task, config: AveragingSettings) -> Located:
    """Send the noised features to the server, once, and sort them by node id."""
    released: NoisedMoments = config.exchange
    features = released.features
    mechanism = in_ball_mechanism(features.epsilon, features.delta, task.num_features)
    x = fed.upload(
        fed.clients.run(noised_features, data, features, released.noise),
        nodes,
        name="fedgat_ldp/features",
        protection=noise_of(released.noise).protection(mechanism),
        grad=False,
    )
    return fed.server.run(by_node, x, fed.table(nodes))


def pooled_of(
    fed: Federation, data: Located, nodes: Route, released: Located, config: AveragingSettings
) -> Located:
    """Send the edges of the selected graphs to the server, and smooth the released features there."""
    pooled = upload_edges(fed, data, nodes, released)
    return fed.server.run(smoothed, pooled, config.exchange.features.k_x)


def setup(fed: Federation, data: Located, task: Task, config: AveragingSettings) -> State:
    """Release the noised features, and run everything else that happens before the first round."""
    fedgat.check(fed, config)
    data = fed.clients.run(kept_edges, data, config.exchange.edges, config.run.seed)
    nodes = node_route(fed, data, task)
    released = release(fed, data, nodes, task, config)
    pooled = pooled_of(fed, data, nodes, released, config)
    state = fedgat.begin(fed, data, nodes, pooled, task, config)
    return State({**state.values, "released": released}, state.prepared)


def restore(
    fed: Federation, data: Located, task: Task, config: AveragingSettings, values: Mapping[str, Located]
) -> State:
    """Rebuild the state of a run that continues from its saved values. Features are not sent again: the
    released ones are used.
    """
    data = fed.clients.run(kept_edges, data, config.exchange.edges, config.run.seed)
    nodes = node_route(fed, data, task)
    pooled = pooled_of(fed, data, nodes, values["released"], config)
    return State(values, fedgat.begin(fed, data, nodes, pooled, task, config).prepared)


def round(fed: Federation, state: State, config: AveragingSettings, round_number: int) -> State:
    """Run one round of FedGAT."""
    after = fedgat.round(fed, state, config, round_number)
    return State({**after.values, "released": state.values["released"]}, after.prepared)


METHOD = Method(
    name="fedgat_ldp",
    summary="FedGAT on noised features: what other clients can compute of a node is (epsilon, delta)-private",
    paper="ours, on Ambekar, Yao, Li, Joe-Wong: FedGAT, and the propagation of Sajadmanesh, Gatica-Perez: "
    "Locally private graph neural networks. CCS 2021, arXiv:2006.05535",
    config=AveragingSettings,
    parts={"of_rule": RULE_SETTINGS, "network.scores": PolynomialScores, "exchange": NoisedMoments},
    offers={"backbone": ("gat",)},
    check_settings=fedgat.check_settings,
    setup=setup,
    round=round,
    predict=program.predict,
    restore=restore,
    requires=Requirements(disjoint=True),
    state=StateValues(facts="facts", shared_model=True),
    sends=Sent(
        summary="once: noised features and edges to the server, and moments of neighbourhoods to the "
        "clients; every round: gradients or weights",
        protection="local differential privacy for features; the server can read the edges, and labels "
        "are not protected",
        messages={
            **{
                name: description
                for name, description in fedgat.METHOD.sends.messages.items()
                if name != "fedgat/features" and not name.startswith(ENCRYPTED)
            },
            "fedgat_ldp/features": "Each client sends the features of all its nodes with Gaussian noise "
            "to the server, once. The features of each node are (epsilon, delta)-private. With a "
            "noise_seed the noise is simulated, and the server could remove it.",
        },
    ),
    defaults=fedgat.METHOD.defaults,
    paper_settings=fedgat.METHOD.paper_settings,
)
