"""attention_sums: what a client computes of other clients' nodes from the scores and sums that it receives.

`neighbour_scores` solves the scores of all rounds for features, and `neighbour_sums` the sums of all rounds
(`attention_rounds`). In addition `neighbour_sums` attacks one round. For one head and a target i, the client
of i receives sums over groups of its neighbours j at other clients, sum_j e_ij W h_j and sum_j e_ij. With
exchange=plaintext a group is the neighbours at one client, with exchange=secure those at all other clients.
The client knows its edges, so it knows the members of each group.

    alone        a group of one: the quotient of the two sums is W h_j
    subtraction  W h_j of a known j gives c_j = att_src . W h_j and e_ij, so its terms are subtracted from all
                 other groups of the client's nodes, which may leave one member; and so on
    groups       the quotient is the mean with weights e_ij, the guess for every member that is left
    features     if W has at least as many columns as rows, W h_j gives h_j

In this round the sums are those of the first layer for the first weights, as in an evaluation. What is not
recovered here is not shown to be safe.
"""

from collections import defaultdict
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.attacks.attention_rounds import (
    FromSums,
    attack_scores,
    attack_sums,
    receive,
    sums_received,
)
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.rerun import Rerun
from graphfed.audit.scoring import NO_NEIGHBOUR, cosines, count_remote_pairs
from graphfed.federation.cohort import Cohort
from graphfed.methods.attention_sums.attention import SLOPE, transform
from graphfed.methods.attention_sums.config import AttentionSumsConfig
from graphfed.methods.attention_sums.method import parts_of
from graphfed.methods.attention_sums.neighbour_sums import Targets
from graphfed.methods.common.pooled_training import Prepared

#: The largest error of a recovered number of W h, relative to the largest number of the node.
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
    """The sums [heads, H + 1] of a group, without the terms of members that are known."""

    target: int
    members: set[int]
    sums: np.ndarray


def attack_one_round(again: Rerun) -> Found:
    """Run the attack of every client on the sums that it receives in the first layer."""
    fed, state = again.fed, again.setup()
    prepared: Prepared = state.prepared
    with fed.phase("setup", round_number=0):
        # The first weights, without dropout: what every client computes in an evaluation.
        weights = fed.broadcast(state.weights, name="model", grad=False)
        z, source, target = fed.clients.run(transform, prepared.shared, weights, None, None, 0, outputs=3)
        scores = prepared.exchange.send_scores(fed, target, grad=False)
        parts = fed.clients.run(parts_of, prepared.exchange.targets, z, source, scores, None, 0)
        totals = prepared.exchange.masks is not None
        if totals:
            received = prepared.exchange.add_parts(fed, parts, grad=False)
        else:
            received = fed.exchange(parts, prepared.exchange.parts, name="attention_sums/parts", grad=False)
    cohort = again.cohort
    targets: Targets = prepared.exchange.targets.parts[0]
    layer = {name: w.double().numpy() for name, w in weights.parts[0].items() if name.startswith("layers.0.")}
    by_head = _by_head(z.parts[0], len(layer["layers.0.att_src"]))
    groups = _groups(cohort, targets, received.parts[0], totals, by_head.shape[1])
    known = _peel(groups, target.parts[0].double().numpy(), layer["layers.0.att_src"])
    return _compare(cohort, groups, known, by_head, layer["layers.0.weight"])


def _by_head(numbers: Tensor, heads: int) -> np.ndarray:
    array: np.ndarray = numbers.detach().double().numpy().reshape(len(numbers), heads, -1)
    return array


def _groups(
    cohort: Cohort, targets: Targets, received: Tensor, totals: bool, heads: int
) -> dict[int, list[Group]]:
    """List the groups whose sums each client receives, by the index of the client."""
    sums = _by_head(received, heads)
    found: dict[int, list[Group]] = defaultdict(list)
    client = cohort.client.tolist()
    for parts, target, members in sums_received(cohort, targets, totals):
        # A total has a row for each row of the cohort, and a client's sum one for each part.
        (at,) = [target] if totals else parts
        found[client[target]].append(Group(target, members, sums[at].copy()))
    return found


def _peel(
    groups: dict[int, list[Group]], target: np.ndarray, attention: np.ndarray
) -> dict[tuple[int, int], tuple[np.ndarray, bool]]:
    """Compute W h_j of single members, and subtract their terms from the other groups of the client.

    Returns, by client and row of j, W h_j [heads, H] and whether no term had to be subtracted for it.
    """
    # Client by client: clients do not collude.
    known: dict[tuple[int, int], tuple[np.ndarray, bool]] = {}
    for client, own in groups.items():
        containing: dict[int, list[Group]] = defaultdict(list)
        for group in own:
            for member in group.members:
                containing[member].append(group)
        # By identity, because groups change as terms are subtracted.
        whole = {id(group) for group in own if len(group.members) == 1}
        single = [group for group in own if len(group.members) == 1]
        while single:
            group = single.pop()
            if len(group.members) != 1:
                continue  # its member has become known from another group
            (member,) = group.members
            z = group.sums[:, :-1] / group.sums[:, -1:]
            known[client, member] = z, id(group) in whole
            # The client knows att_src, and a_i of its own node, so it can compute e_ij of the member.
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
    return np.where(x > 0, x, SLOPE * x)


def _compare(
    cohort: Cohort,
    groups: dict[int, list[Group]],
    known: dict[tuple[int, int], tuple[np.ndarray, bool]],
    truth: np.ndarray,
    weight: np.ndarray,
) -> Found:
    alone = recovered = 0
    worst = 0.0
    for (_, row), (z, whole) in known.items():
        # A quotient of small sums may be all rounding, so what was computed is checked.
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
    similar = _mean_cosine(guesses, truth)
    without = _mean_cosine({key: own[key[0]] for key in guesses}, truth)
    # W h gives h only if no two features have the same product.
    determined = np.linalg.matrix_rank(weight) == len(weight)
    return Found(
        neighbours=count_remote_pairs(cohort),
        alone=alone,
        recovered=recovered,
        features=recovered if determined else 0,
        similarity=similar,
        no_signal=without,
        largest_error=worst,
    )


def _mean_cosine(guesses: dict[tuple[int, int], np.ndarray], truth: np.ndarray) -> float:
    """Return the mean cosine of guesses for nodes, by client and row, with the truth; nan without guesses."""
    if not guesses:
        return float("nan")
    rows = [row for _, row in guesses]
    found = torch.from_numpy(np.stack([*guesses.values()]))
    return float(cosines(found, torch.from_numpy(truth[rows]).flatten(1)).mean())


# ---- the checks --------------------------------------------------------------------------------------------

#: What an attacker without these messages knows.
BASELINE = "none: without these messages a client has no features of other clients' nodes"


def run_scores(audited: AuditedRun) -> Finding:
    """Count the nodes of other clients whose features a client computes from their scores."""
    received = receive(audited)
    if not received.scored:
        left_out = (
            f"no node of another client's {received.pairs} has enough neighbours for a score to be sent"
        )
        return Finding(left_out, BASELINE, "no leak: no score is sent", False, 0.0, no_signal=0.0)
    found = attack_scores(received)
    sample = "" if found.attacked == received.scored else f" (a sample of {received.scored})"
    how = ", with the knowledge that features are sparse" if found.sparse else ""
    result = (
        f"from the scores of {received.passes} rounds and evaluations ({found.rank} independent equations "
        f"for {found.features} features), clients compute all features of {found.recovered} of "
        f"{found.attacked} nodes{sample} that are neighbours at other clients{how}"
    )
    if found.recovered:
        result += f"; largest error {found.largest_error:.1g} of the node's largest feature"
        verdict = "leaks exactly: clients compute these features; no setting of this method prevents it"
    else:
        verdict = (
            f"leaks exactly: clients compute {found.rank} linear functions of the {found.features} features "
            "of these nodes, and more in every round; no setting of this method prevents it"
        )
    details = {**asdict(found), "scored": received.scored, "neighbours": received.pairs}
    value = found.recovered / found.attacked
    return Finding(result, BASELINE, verdict, True, value, no_signal=0.0, details=details)


def described(found: FromSums) -> str:
    """Describe what sums over one number of members give."""
    which = f"{found.sums} sums over {found.members}"
    if not found.attacked:
        why = "too much work" if found.equations >= found.unknowns else f"{found.equations} equations"
        return f"{which} not attacked ({why}, {found.unknowns} unknowns)"
    worst = f" (largest error {found.largest_error:.1g})" if found.recovered else ""
    return f"{found.recovered} of {found.attacked} attacked of {which} give all features{worst}"


def run(audited: AuditedRun) -> Finding:
    """Count the neighbours at other clients whose transformed features, or features, a client computes."""
    again = audited.rerun()
    config: AttentionSumsConfig = again.training
    found = attack_one_round(again)
    received = receive(audited) if found.neighbours else None
    sizes = [] if received is None else attack_sums(received, audited)
    solved = [each for each in sizes if each.recovered]
    fraction = found.recovered / found.neighbours if found.neighbours else 0.0
    groups, similarity = "", {}
    if not np.isnan(found.similarity):
        similarity = {"similarity": found.similarity, "similarity_without": found.no_signal}
        groups = (
            f"; the guesses for others in groups have cosine similarity {found.similarity:.2f} (the mean of "
            f"the client's own nodes: {found.no_signal:.2f})"
        )
    rounds = ""
    if received is not None:
        rounds = f". From {received.passes} rounds and evaluations: " + ("; ".join(map(described, sizes)))
    width = config.network.attention_heads[0] * (
        config.network.hidden if config.network.layers > 1 else again.task.num_classes
    )
    if found.features:
        verdict = "leaks exactly: clients compute these features from one round"
    elif solved:
        sums = " and ".join(str(each.members) for each in solved)
        verdict = f"leaks exactly: clients compute features from the sums of many rounds over {sums} nodes"
    elif found.recovered:
        verdict = (
            f"leaks exactly: clients compute {width} linear functions of the features of these nodes, and as "
            "many others in every round"
        )
    elif found.neighbours and not any(each.attacked for each in sizes):
        verdict = (
            "not measured: one round shows no single neighbour, and the sums of many rounds were not attacked"
        )
    elif found.neighbours:
        verdict = "no leak found in sums by these attacks, which does not prove that there is none"
    else:
        verdict = f"no leak: {NO_NEIGHBOUR}"
    return Finding(
        result=f"from the sums of the first layer in one round, clients compute W h of {found.recovered} of "
        f"{found.neighbours} neighbours at other clients ({100 * fraction:.1f} %), {found.alone} of them "
        f"from a sum over one neighbour{groups}{rounds}",
        baseline=BASELINE,
        verdict=verdict,
        leaks=None if verdict.startswith("not measured") else bool(found.recovered or solved),
        value=fraction,
        no_signal=0.0,
        details={
            "neighbours": found.neighbours,
            "alone": found.alone,
            "recovered": found.recovered,
            "features": found.features,
            "largest_error": found.largest_error,
            **similarity,
            "rounds": [asdict(each) for each in sizes],
        },
    )


SCORES = Check(
    name="neighbour_scores",
    tests="features of other clients' nodes, from their attention scores",
    attacker="a curious client: the weights and the scores that it receives in all rounds and evaluations",
    run=run_scores,
    methods=("attention_sums",),
    transfers=("attention_sums/scores",),
)
CHECK = Check(
    name="neighbour_sums",
    tests="features of other clients' nodes, from sums over a node's neighbours",
    attacker="a curious client: the sums that it receives for its nodes, in one evaluation and in all rounds",
    run=run,
    methods=("attention_sums",),
    transfers=("attention_sums/parts",),
)
