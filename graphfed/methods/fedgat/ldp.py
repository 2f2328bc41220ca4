"""FedGAT on features that were noised before they left their client: the mitigation of what `methods.fedgat`
shows. Ours; the paper has none.

    x'_j = x_j + N(0, sigma^2 I), ||x_j|| <= 1    at the client, once, before anything crosses
    h_j  = (D^-1/2 A D^-1/2)^K x'_j, length 1     at the server, which has the edges: K = k_x (KProp of LPGNN)
    then FedGAT, with h_j for features

What it guarantees: the release of one node's features is (epsilon, delta)-private (`privacy.gaussian`, with
sensitivity 2), against the server and all other clients together: everything that they get of the features,
the message too, is computed from x'. A client still works out every h_j exactly from the message; what that
tells of x_j is bounded by epsilon, and measured by `graphfed audit`.

What it does not: edges are in clear at the server, and for more than two layers at clients. Weights or
gradients in every round depend on labels, and on features only through h. A node's label is not hidden.

The noise of a node is much longer than its features (sigma sqrt(F) against 1), so that most of what is left
to learn from is the graph, whose smoothing of any numbers tells nodes apart: docs/reproduce.md has the
accuracy beside the one of noise alone."""

from collections.abc import Mapping

import torch
from torch import Tensor

from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.federation.route import Route
from graphfed.methods.base import Method, Requirements, Sent, State, StateValues, Task
from graphfed.methods.baselines import fedavg
from graphfed.methods.common.released import by_node, node_route, noise_of
from graphfed.methods.fedgat import method as fedgat
from graphfed.methods.fedgat import pretraining
from graphfed.methods.fedgat.config import FedGATLdpConfig
from graphfed.methods.fedgat.encrypted_moments import ENCRYPTED
from graphfed.methods.fedgat.moment_messages import Pooled
from graphfed.methods.lumos.lpgnn import propagate, propagation_matrix
from graphfed.privacy.gaussian import gaussian_in_ball, gaussian_sigma, in_ball_mechanism

__all__ = ["METHOD", "pooled_of"]


def noised_features(cohort: Cohort, config: FedGATLdpConfig) -> Tensor:
    """x' [N, F]."""
    assert cohort.x is not None
    sigma = gaussian_sigma(config.epsilon, config.delta, 2.0)
    return gaussian_in_ball(cohort.x, cohort.id, noise_of(config), "fedgat_ldp", sigma)


def smoothed(pooled: Pooled, config: FedGATLdpConfig) -> Pooled:
    """h [U, F] in the place of x'."""
    assert isinstance(pooled.x, Tensor)
    neighbourhoods = pooled.neighbourhoods
    centre = torch.repeat_interleave(
        torch.arange(len(neighbourhoods.size), device=neighbourhoods.size.device), neighbourhoods.size
    )
    others = neighbourhoods.member != centre
    edges = torch.stack([neighbourhoods.member, centre])[:, others]
    h = propagate(propagation_matrix(edges, None, neighbourhoods.size - 1), pooled.x, config.k_x)
    length = torch.linalg.vector_norm(h, dim=1, keepdim=True)
    return Pooled(h / torch.where(length > 0, length, 1), neighbourhoods)


# ---- the program over places -------------------------------------------------------------------------------


def release(fed: Federation, data: Located, nodes: Route, task: Task, config: FedGATLdpConfig) -> Located:
    """x' at the server, in the order of the nodes' ids: once."""
    mechanism = in_ball_mechanism(config.epsilon, config.delta, task.num_features)
    x = fed.upload(
        fed.clients.run(noised_features, data, config),
        nodes,
        name="fedgat_ldp/features",
        protection=noise_of(config).protection(mechanism),
        grad=False,
    )
    return fed.server.run(by_node, x, fed.table(nodes))


def pooled_of(
    fed: Federation, data: Located, nodes: Route, released: Located, config: FedGATLdpConfig
) -> Located:
    """What the server makes the message of; data: with the edges that are kept."""
    return fed.server.run(smoothed, pretraining.with_edges(fed, data, nodes, released), config)


def setup(fed: Federation, data: Located, task: Task, config: FedGATLdpConfig) -> State:
    fedgat.check(fed, config)
    data = fed.clients.run(fedgat.kept_edges, data, config)
    nodes = node_route(fed, data, task)
    released = release(fed, data, nodes, task, config)
    pooled = pooled_of(fed, data, nodes, released, config)
    state = fedgat.begin(fed, data, nodes, pooled, task, config, pretraining.READABLE)
    return State({**state.values, "released": released}, state.prepared)


def restore(
    fed: Federation, data: Located, task: Task, config: FedGATLdpConfig, values: Mapping[str, Located]
) -> State:
    """The state of a run that goes on: no feature crosses again, the message is made of what was released."""
    data = fed.clients.run(fedgat.kept_edges, data, config)
    nodes = node_route(fed, data, task)
    pooled = pooled_of(fed, data, nodes, values["released"], config)
    return State(values, fedgat.begin(fed, data, nodes, pooled, task, config, pretraining.READABLE).prepared)


def round(fed: Federation, state: State, config: FedGATLdpConfig, number: int) -> State:
    after = fedgat.round(fed, state, config, number)
    return State({**after.values, "released": state.values["released"]}, after.prepared)


METHOD = Method(
    name="fedgat_ldp",
    summary="FedGAT on features that clients noised: what clients work out is private to epsilon",
    paper="ours, on Ambekar, Yao, Li, Joe-Wong: FedGAT, and the propagation of Sajadmanesh, Gatica-Perez: "
    "Locally private graph neural networks. CCS 2021, arXiv:2006.05535",
    config=FedGATLdpConfig,
    setup=setup,
    round=round,
    predict=fedavg.predict,
    restore=restore,
    memory=fedgat.memory,
    requires=Requirements(
        disjoint=True,
    ),
    state=StateValues(
        facts="facts",
        shared_model=True,
    ),
    sends=Sent(
        summary="noised features and the edges to the server, moments of neighbourhoods back, once; "
        "gradients or weights, every round",
        protection="local differential privacy for features; edges in clear, and what follows from labels",
        messages={
            **{
                name: words
                for name, words in fedgat.METHOD.sends.messages.items()
                if name != "fedgat/features" and not name.startswith(ENCRYPTED)
            },
            "fedgat_ldp/features": "Once, the features of all nodes of a client with Gaussian noise: each "
            "node's are (epsilon, delta)-private. With a noise_seed the noise is simulated and the server "
            "could take it off.",
        },
    ),
    defaults=fedgat.METHOD.defaults,
    paper_settings=fedgat.METHOD.paper_settings,
)
