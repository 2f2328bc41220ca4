"""FedGAT on noised features: what the attack on its message (`fedgat_features`) is worth there.

The attack runs as it does on FedGAT, and gives every row that the message was made of, exactly. These rows
were noised at their client and smoothed at the server. Two figures of what they tell of the features:

    exact     how many neighbours' features are computed to within the attack's tolerance
    AUC       of the similarity (cosine) of a computed row to its node's own features and to those of
              others: what an attacker has who holds somebody's features and asks whether this is the node.
              0.5 is no signal; FedGAT's own message has 1.0. Smoothed rows tell of the neighbourhood, so of
              features that neighbours share

Both are measured on the run's graph with noise drawn anew by the same law."""

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.attacks.fedgat import TOLERANCE, attacked, errors, opened
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.transcript import dense_rows
from graphfed.methods.fedgat import ldp as fedgat_ldp
from graphfed.methods.fedgat import method as fedgat
from graphfed.methods.fedgat import pretraining
from graphfed.methods.fedgat.config import FedGATLdpConfig
from graphfed.methods.fedgat.moment_messages import Pooled

__all__ = ["CHECK", "similarities"]

#: Other nodes that a row is compared with.
OTHERS = 50


def similarities(rows: Tensor, own: Tensor, others: Tensor) -> Tensor:
    """Of each row [n, F], how often it is more similar to its node's own features [n, F] than to those of
    others [n, m, F], ties counted half: [n]."""
    rows, own, others = (torch.nn.functional.normalize(x, dim=-1) for x in (rows, own, others))
    mine = (rows * own).sum(-1, keepdim=True)
    theirs = (others @ rows[..., None])[..., 0]
    return ((mine > theirs).double() + 0.5 * (mine == theirs).double()).mean(-1)


def run(audited: AuditedRun) -> Finding:
    fed, data, config, task = opened(audited)
    assert isinstance(config, FedGATLdpConfig)
    with fed.phase("setup", round_number=0):
        data = fed.clients.run(fedgat.kept_edges, data, config)
        route, in_clear = pretraining.upload(fed, data, task)
        released = fedgat_ldp.release(fed, data, route, task, config)
        noised = fedgat_ldp.pooled_of(fed, data, route, released, config)
    truth: Pooled = in_clear.parts[0]
    pooled: Pooled = noised.parts[0]
    count = len(truth.neighbourhoods.ids)
    elsewhere, exact, computed = 0, 0, torch.zeros(count, dtype=torch.bool)
    rows = torch.zeros(count, truth.x.shape[1], dtype=torch.float64)
    for part in attacked(pooled, fed.table(route).parts[0], config):
        features = dense_rows(truth.x, part.members.flatten().numpy()).view(*part.members.shape, -1)
        off = errors(part.found, features)[part.apart]
        elsewhere, exact = elsewhere + len(off), exact + int((off <= TOLERANCE[pooled.x.dtype]).sum())
        used = dense_rows(pooled.x, part.members.flatten().numpy()).view(*part.members.shape, -1)
        found = part.found.double()
        nearest = torch.cdist(used, found).argmin(2)  # whose each row is: for the measurement only
        aligned = found.gather(1, nearest[..., None].expand_as(found))[part.apart]
        rows[part.members[part.apart]] = aligned
        computed[part.members[part.apart]] = True
    which = computed.nonzero()[:, 0]
    if not len(which):
        return _nothing_apart()
    rng = np.random.default_rng(0)
    others = (which[:, None] + torch.from_numpy(rng.integers(1, count, (len(which), OTHERS)))) % count
    wins = torch.cat(
        [
            similarities(
                rows[some],
                dense_rows(truth.x, some.numpy()),
                dense_rows(truth.x, there.flatten().numpy()).view(len(some), OTHERS, -1),
            )
            for some, there in zip(torch.split(which, 256), torch.split(others, 256), strict=True)
        ]
    )
    auc, error = float(wins.mean()), float(wins.std() / len(wins) ** 0.5)
    low, high = auc - 1.96 * error, auc + 1.96 * error
    return Finding(
        result=f"from the messages clients compute the features of {exact} of {elsewhere} neighbours "
        f"at other clients; what they compute is noised, and more similar to its node's features than to "
        f"another's in "
        f"{100 * auc:.1f} % of comparisons",
        baseline="50 % of comparisons; without the noise every neighbour, and 100 %",
        verdict="leaks exactly: features are computed"
        if exact
        else f"no features are computed; what the rows tell is bounded by epsilon={config.epsilon:g}",
        leaks=exact > 0,
        value=auc,
        interval=(low, high),
        no_signal=0.5,
        details={"neighbours": elsewhere, "recovered": exact, "epsilon": config.epsilon, "k_x": config.k_x},
    )


def _nothing_apart() -> Finding:
    return Finding(
        result="no node has a neighbour at another client",
        baseline="none",
        verdict="nothing to attack",
        leaks=False,
    )


CHECK = Check(
    name="fedgat_ldp_features",
    tests="features of other clients' nodes, from the message before training on noised ones",
    attacker="a curious client: what the server sends it",
    run=run,
    methods=("fedgat_ldp",),
    transfers=("fedgat/sums", "fedgat/scores"),
)
