"""FedGAT on noised features: the attack on FedGAT's message (`fedgat_features`), repeated.

As on FedGAT, a client computes exactly the rows that the message was made from. Here these rows are features
with noise, added by their clients and smoothed by the server. Two figures say what the rows show of the
features without noise:

    exact     the number of neighbours whose features are computed to within the attack's tolerance
    AUC       the probability that a computed row is more similar (by cosine) to its node's features than to
              those of another node: an attacker that knows a person's features asks whether the row is this
              person's. 0.5 is no signal; FedGAT's message without noise has 1.0. Smoothed rows also show
              features that neighbours have in common

The noise is drawn again from the same distribution (docs/papers/fedgat.md).
"""

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.attacks.fedgat import TOLERANCE, attacked, errors
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import NO_NEIGHBOUR
from graphfed.audit.transcript import dense_rows
from graphfed.methods.fedgat import ldp as fedgat_ldp
from graphfed.methods.fedgat import pretraining
from graphfed.methods.fedgat.client_graphs import kept_edges
from graphfed.methods.fedgat.config import NoisedMoments
from graphfed.methods.fedgat.moment_messages import Pooled

#: The number of other nodes that a row is compared with.
OTHERS = 50


def similarities(rows: Tensor, truth: Tensor, others: Tensor) -> Tensor:
    """Count how often a row [n, F] is more similar to its node's features than to m others' [n, m, F].

    Returns the fraction of comparisons, [n]; ties count half.
    """
    rows, truth, others = (torch.nn.functional.normalize(x, dim=-1) for x in (rows, truth, others))
    to_truth = (rows * truth).sum(-1, keepdim=True)
    to_others = (others @ rows[..., None])[..., 0]
    return ((to_truth > to_others).double() + 0.5 * (to_truth == to_others).double()).mean(-1)


def run(audited: AuditedRun) -> Finding:
    """Compute the rows behind the message, and compare them with the features."""
    again = audited.rerun()
    fed, task, config = again.fed, again.task, again.training
    exchange: NoisedMoments = config.exchange
    epsilon, k_x = exchange.features.epsilon, exchange.features.k_x
    form, degree, seed = exchange.message.form, config.network.scores.degree, config.run.seed
    with fed.phase("setup", round_number=0):
        data = fed.clients.run(kept_edges, again.data, exchange.edges, seed)
        route, plaintext = pretraining.upload(fed, data, task)
        released = fedgat_ldp.release(fed, data, route, task, config)
        noised = fedgat_ldp.pooled_of(fed, data, route, released, config)
    truth: Pooled = plaintext.parts[0]
    pooled: Pooled = noised.parts[0]
    count = len(truth.neighbourhoods.ids)
    elsewhere, exact, computed = 0, 0, torch.zeros(count, dtype=torch.bool)
    rows = torch.zeros(count, truth.x.shape[1], dtype=torch.float64)
    for part in attacked(pooled, fed.table(route).parts[0], form, degree, seed):
        features = _features(truth, part.members)
        # Against features without noise: what would be exact is the person's own data.
        off = errors(part.found, features)[part.apart]
        elsewhere, exact = elsewhere + len(off), exact + int((off <= TOLERANCE[pooled.x.dtype]).sum())
        used, found = _features(pooled, part.members), part.found.double()
        # Which computed row belongs to which node is not known to the attacker; the measurement needs it.
        nearest = torch.cdist(used, found).argmin(2)
        aligned = found.gather(1, nearest[..., None].expand_as(found))[part.apart]
        rows[part.members[part.apart]] = aligned
        computed[part.members[part.apart]] = True
    which = computed.nonzero()[:, 0]
    if not len(which):
        return Finding(NO_NEIGHBOUR, "none", "no leak: the message has no remote features", False)
    rng = np.random.default_rng(0)
    # A shift of 1 to count - 1 never gives the node itself.
    others = (which[:, None] + torch.from_numpy(rng.integers(1, count, (len(which), OTHERS)))) % count
    wins = torch.cat(
        [
            similarities(rows[some], _features(truth, some), _features(truth, there))
            for some, there in zip(torch.split(which, 256), torch.split(others, 256), strict=True)
        ]
    )
    auc, error = float(wins.mean()), float(wins.std() / len(wins) ** 0.5)
    low, high = auc - 1.96 * error, auc + 1.96 * error
    return Finding(
        result=f"clients compute the features of {exact} of {elsewhere} neighbours at other clients exactly. "
        "The rows that they compute have noise; a row is more similar to its node's features than to "
        f"another node's in {100 * auc:.1f} % of comparisons",
        baseline="50 % of comparisons by guessing; without noise, all neighbours' features and 100 %",
        verdict="leaks exactly: clients compute features"
        if exact
        else f"no features are computed exactly; epsilon={epsilon:g} bounds what the rows show",
        leaks=exact > 0,
        value=auc,
        interval=(low, high),
        no_signal=0.5,
        details={"neighbours": elsewhere, "recovered": exact, "epsilon": epsilon, "k_x": k_x},
    )


def _features(pooled: Pooled, nodes: Tensor) -> Tensor:
    """Return the features of nodes [...], [..., F]."""
    return dense_rows(pooled.x, nodes.flatten().numpy()).view(*nodes.shape, -1)


CHECK = Check(
    name="fedgat_ldp_features",
    tests="features of other clients' nodes, from the message before training, made from noised features",
    attacker="a curious client: the message that the server sends it",
    run=run,
    methods=("fedgat_ldp",),
    transfers=("fedgat/sums", "fedgat/scores"),
)
