"""attention_sums: the transformed features of other clients' nodes, which a curious client computes from the
sums that it receives.

For one head and a target i, the client of i receives sums over groups of its neighbours j at other clients,
sum_j e_ij W h_j and sum_j e_ij. With exchange=plaintext a group is the neighbours at one client, with
exchange=secure those at all other clients. The client knows its edges, so it knows the members of each group.

    alone        a group of one: the quotient of the two sums is W h_j
    subtraction  W h_j of a known j gives c_j = att_src . W h_j and e_ij, so its terms are subtracted from all
                 other groups of the client's nodes, which may leave one member; and so on
    groups       the quotient is the mean with weights e_ij, the guess for every member that is left
    features     if W has at least as many columns as rows, W h_j gives h_j; else each further round, whose W
                 differs, gives as many more equations

The set-up is run again, and the sums are those of the first layer for the first weights, as in an evaluation.
Solving for several members of groups of several targets at once, or over rounds, is not tried: what is not
recovered here is not shown to be safe.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.prepared_data import prepared_data
from graphfed.federation import Federation, Located
from graphfed.federation.cohort import Cohort
from graphfed.methods.attention_sums.attention import transform
from graphfed.methods.attention_sums.config import AttentionSumsConfig
from graphfed.methods.attention_sums.method import METHOD, Prepared, parts_of
from graphfed.methods.attention_sums.neighbour_sums import Targets
from graphfed.methods.base import Task
from graphfed.tasks.inputs import local_federation

__all__ = ["CHECK", "Found", "attack_sums"]

#: The largest error of a recovered number, relative to the largest number of the node.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Found:
    """What clients compute of the neighbours of their nodes at other clients.

    Attributes:
        neighbours: Pairs of a client and a node of another client that is a neighbour.
        alone: Pairs whose W h_j the client computes from a group of one.
        recovered: Pairs whose W h_j it computes, by subtraction too.
        features: Pairs whose features it computes in one round.
        similarity: Mean cosine similarity of W h_j and the guess for it, of pairs that are not recovered and
            are in a group; not a number if there are none.
        no_signal: The same for the mean of the client's own nodes.
        largest_error: The largest error of a recovered number, relative to the largest number of its node.
    """

    neighbours: int
    alone: int
    recovered: int
    features: int
    similarity: float
    no_signal: float
    largest_error: float


@dataclass
class Group:
    """The sums of a group, without the terms of members that are known.

    Attributes:
        target: The row of the target.
        members: The rows of the members that are not known.
        sums: [heads, H + 1].
    """

    target: int
    members: set[int]
    sums: np.ndarray


def attack_sums(fed: Federation, data: Located, task: Task, config: AttentionSumsConfig) -> Found:
    """Run the attack of every client on the sums that it receives in the first layer.

    Args:
        fed: A federation with all clients in one cohort.
        data: The data, at its clients.
        task: The task.
        config: The settings.

    Returns:
        What the clients find.
    """
    with fed.phase("setup", round_number=0):
        state = METHOD.setup(fed, data, task, config)
        prepared: Prepared = state.prepared
        weights = fed.broadcast(state.weights, name="model", grad=False)
        z, source, target = fed.clients.run(transform, prepared.shared, weights, None, None, 0, outputs=3)
        scores = prepared.sums.send_scores(fed, target, grad=False)
        parts = fed.clients.run(parts_of, prepared.sums.targets, z, source, scores, None, 0)
        totals = prepared.sums.masks is not None
        if totals:
            received = prepared.sums.add_parts(fed, parts, grad=False)
        else:
            received = fed.exchange(parts, prepared.sums.parts, name="attention_sums/parts", grad=False)
    cohort: Cohort = data.parts[0]
    targets: Targets = prepared.sums.targets.parts[0]
    layer = {name: w.double().numpy() for name, w in weights.parts[0].items() if name.startswith("layers.0.")}
    by_head = _by_head(z.parts[0], len(layer["layers.0.att_src"]))
    groups = _groups(cohort, targets, received.parts[0], totals, by_head.shape[1])
    known = _peel(groups, target.parts[0].double().numpy(), layer["layers.0.att_src"])
    return _compare(cohort, groups, known, by_head, layer["layers.0.weight"])


def _by_head(z: Tensor, heads: int) -> np.ndarray:
    array: np.ndarray = z.detach().double().numpy().reshape(len(z), heads, -1)
    return array


def _groups(
    cohort: Cohort, targets: Targets, received: Tensor, totals: bool, heads: int
) -> dict[int, list[Group]]:
    """List the groups whose sums each client receives, by the index of the client."""
    ids, order = torch.sort(cohort.id)
    neighbour = order[torch.searchsorted(ids, cohort.cross_id)].tolist()
    members: dict[tuple[int, int], set[int]] = defaultdict(set)
    rows, owners = cohort.cross_row.tolist(), cohort.cross_client.tolist()
    for row, owner, other in zip(rows, owners, neighbour, strict=True):
        members[row, -1 if totals else owner].add(other)
    sums = received.detach().double().numpy()
    sums = sums.reshape(len(sums), heads, -1)
    found: dict[int, list[Group]] = defaultdict(list)
    client = cohort.client.tolist()
    pairs = list(zip(targets.row.tolist(), targets.asked.owner.tolist(), strict=True))
    keys = {(row, -1): row for row, _ in pairs} if totals else {pair: at for at, pair in enumerate(pairs)}
    for key, at in keys.items():
        found[client[key[0]]].append(Group(key[0], set(members[key]), sums[at].copy()))
    return found


def _peel(
    groups: dict[int, list[Group]], target: np.ndarray, attention: np.ndarray
) -> dict[tuple[int, int], tuple[np.ndarray, bool]]:
    """Compute W h_j of single members, and subtract their terms from the other groups of the client.

    Returns:
        By client and row of j: W h_j [heads, H], and whether no term had to be subtracted for it.
    """
    known: dict[tuple[int, int], tuple[np.ndarray, bool]] = {}
    for client, own in groups.items():
        containing: dict[int, list[Group]] = defaultdict(list)
        for group in own:
            for member in group.members:
                containing[member].append(group)
        whole = {id(group) for group in own if len(group.members) == 1}
        single = [group for group in own if len(group.members) == 1]
        while single:
            group = single.pop()
            if len(group.members) != 1:
                continue  # its member has become known from another group
            (member,) = group.members
            z = group.sums[:, :-1] / group.sums[:, -1:]
            known[client, member] = z, id(group) in whole
            c = (z * attention).sum(1)
            for other in containing[member]:
                a = target[other.target]
                e = np.exp(_leaky(a + c) - _leaky(a))[:, None]
                other.sums -= e * np.concatenate([z, np.ones((len(z), 1))], 1)
                other.members.discard(member)
                if len(other.members) == 1:
                    single.append(other)
    return known


def _leaky(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x, 0.2 * x)


def _compare(
    cohort: Cohort,
    groups: dict[int, list[Group]],
    known: dict[tuple[int, int], tuple[np.ndarray, bool]],
    truth: np.ndarray,
    weight: np.ndarray,
) -> Found:
    """Compare what clients compute with the truth."""
    alone = recovered = 0
    worst = 0.0
    for (_, row), (z, whole) in known.items():
        off = np.abs(z - truth[row]).max() / max(np.abs(truth[row]).max(), 1e-30)
        if off <= TOLERANCE:
            recovered, alone, worst = recovered + 1, alone + whole, max(worst, float(off))
    own = {k: truth[(cohort.client == k).numpy()].mean(0).ravel() for k in groups}
    guesses: dict[tuple[int, int], np.ndarray] = {}
    for client, list_of in groups.items():
        for group in list_of:
            for member in group.members:
                if (client, member) not in known:
                    guesses[client, member] = (group.sums[:, :-1] / group.sums[:, -1:]).ravel()
    similar = [_cosine(guess, truth[row].ravel()) for (_, row), guess in guesses.items()]
    without = [_cosine(own[client], truth[row].ravel()) for client, row in guesses]
    neighbours = len(
        set(zip(cohort.client[cohort.cross_row].tolist(), cohort.cross_id.tolist(), strict=True))
    )
    determined = np.linalg.matrix_rank(weight) == len(weight)
    return Found(
        neighbours=neighbours,
        alone=alone,
        recovered=recovered,
        features=recovered if determined else 0,
        similarity=float(np.mean(similar)) if similar else float("nan"),
        no_signal=float(np.mean(without)) if without else float("nan"),
        largest_error=worst,
    )


def _cosine(one: np.ndarray, two: np.ndarray) -> float:
    return float(one @ two / max(np.linalg.norm(one) * np.linalg.norm(two), 1e-30))


# ---- the check ---------------------------------------------------------------------------------------------


def run(audited: AuditedRun) -> Finding:
    """Count the neighbours at other clients whose transformed features a client computes."""
    config = audited.config.training
    assert isinstance(config, AttentionSumsConfig)
    fed = local_federation(audited.config, audited.inputs)
    data, task = prepared_data(fed, audited.config, audited.inputs)
    found = attack_sums(fed, data, task, config)
    fraction = found.recovered / found.neighbours if found.neighbours else 0.0
    groups = (
        ""
        if np.isnan(found.similarity)
        else (
            f"; the guesses for others in groups have cosine similarity {found.similarity:.2f} (the mean of "
            f"the client's own nodes: {found.no_signal:.2f})"
        )
    )
    if found.features:
        verdict = "leaks exactly: clients compute these features from one round"
    elif found.recovered:
        width = config.attention_heads[0] * (config.hidden if config.layers > 1 else task.num_classes)
        verdict = (
            f"leaks exactly: clients compute {width} linear functions of the features of these nodes, and as "
            "many others in every round"
        )
    elif found.neighbours:
        verdict = "no single neighbour is computed from one round; sums of several rounds are not attacked"
    else:
        verdict = "no leak: no node has a neighbour at another client"
    return Finding(
        result=f"from the sums of the first layer, clients compute W h of {found.recovered} of "
        f"{found.neighbours} neighbours at other clients ({100 * fraction:.1f} %), {found.alone} of them "
        f"from a sum over one neighbour{groups}",
        baseline="none: without the sums a client has no features of other clients' nodes",
        verdict=verdict,
        leaks=found.recovered > 0,
        value=fraction,
        no_signal=0.0,
        details={
            "neighbours": found.neighbours,
            "alone": found.alone,
            "recovered": found.recovered,
            "features": found.features,
            "largest_error": found.largest_error,
            **(
                {}
                if np.isnan(found.similarity)
                else {"similarity": found.similarity, "similarity_without": found.no_signal}
            ),
        },
    )


CHECK = Check(
    name="neighbour_sums",
    tests="transformed features of other clients' nodes, from sums over a node's neighbours",
    attacker="a curious client: the sums that it receives for its nodes in one evaluation",
    run=run,
    methods=("attention_sums",),
    transfers=("attention_sums/parts",),
)
