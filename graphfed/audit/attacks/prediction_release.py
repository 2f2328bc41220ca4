"""prediction_release: the predicted class of a node, from what its neighbours' clients receive.

The attackers are all receivers of a node's value together. They know epsilon, the probabilities T of
randomised response and the distribution p of the predicted classes over all nodes. Given the received value z
they guess the class y with the largest p_y T_yz, the most likely one; no other guess is right more often. If
receivers of a node should have got different values, they take them for independent ones, and multiply their
probabilities: that is what epsilon would not allow.

Epsilon bounds the probability that a guess is right: sum_z max_y p_y T_yz, with T for the exact epsilon. If
all classes are equally frequent, this is e^epsilon / (e^epsilon + C - 1); guessing without a value is right
with probability max_y p_y. The attack compares its success with both. It does not use what receivers may know
otherwise, such as the classes of other neighbours.

Training is run again in this process up to the release. Without a noise_seed the noise cannot be repeated; it
is drawn again from the same distribution. Secure aggregation is replaced by a plaintext sum, which gives the
same values.
"""

import math
from dataclasses import dataclass

import torch
from scipy.stats import binomtest
from torch import Tensor

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import NO_NEIGHBOUR, OTHER_NOISE, rows_of
from graphfed.methods.common.remote_neighbours import remote_ids
from graphfed.methods.prediction_release.release import predicted_classes

TRANSFER = "prediction_release/classes"


@dataclass(frozen=True, eq=False)
class Received:
    """The values [M] that all receivers together get in the release, and the node of each.

    Nodes are numbers 0..n-1 of the nodes that have a receiver.
    """

    node: Tensor
    value: Tensor


def overhear(audited: AuditedRun) -> tuple[Received, Tensor, Tensor]:
    """Train again up to the release, and record what the receivers get.

    Returns this; and what they do not have: the predicted classes of the n nodes that have a receiver, [n];
    and the number of nodes of each predicted class, [C].
    """
    again = audited.rerun(plaintext=True, simulated=True)
    config, cohort, state = again.training, again.cohort, again.setup()
    with again.exchanges(TRANSFER) as released:
        for number in range(1, config.round_of_release + 1):
            # The release predicts with the weights from before its round.
            weights = state.weights.parts[0]
            state = again.round(state, number)
    classes = predicted_classes(state.prepared.batches.parts[0], weights, config.network).cpu()
    ids, node = torch.unique(remote_ids(cohort).ids.cpu(), return_inverse=True)
    rows = rows_of(cohort, ids.to(cohort.id.device)).cpu()
    frequency = torch.bincount(classes, minlength=again.task.num_classes)
    return Received(node, released[-1].received.long().cpu()), classes[rows], frequency


def response(epsilon: float, num_classes: int) -> Tensor:
    """Compute T for the exact epsilon, [C, C] float64."""
    # In this form nothing overflows for large epsilon.
    other = math.exp(-epsilon) / (1 + (num_classes - 1) * math.exp(-epsilon))
    keep = 1 - (num_classes - 1) * other
    return torch.full((num_classes, num_classes), other, dtype=torch.float64).fill_diagonal_(keep)


def guess(received: Received, prior: Tensor, epsilon: float) -> Tensor:
    """Guess the predicted class of every node [n] from all values that its receivers got.

    `prior` [C] is the probability of each class, and epsilon the privacy budget of a released class.
    """
    n, num_classes = int(received.node.max()) + 1 if len(received.node) else 0, len(prior)
    counts = torch.bincount(received.node * num_classes + received.value, minlength=n * num_classes)
    counts = counts.view(n, num_classes).double()
    # The same value at all receivers was drawn once.
    # Counted as often as it arrived, one draw would look like several independent ones.
    alike = (counts > 0).sum(1) == 1
    counts[alike] = (counts[alike] > 0).double()
    return (prior.double().log() + counts @ response(epsilon, num_classes).log().t()).argmax(1)


def bound(prior: Tensor, epsilon: float) -> float:
    """Compute the largest probability with which a guess from one value is right: sum_z max_y p_y T_yz."""
    return float((prior.double()[:, None] * response(epsilon, len(prior))).amax(0).sum())


def run(audited: AuditedRun) -> Finding:
    """Measure how many nodes' predicted classes all receivers together guess."""
    config = audited.config.settings
    received, truth, frequency = overhear(audited)
    if not len(truth):
        return Finding(NO_NEIGHBOUR, "nothing", "no leak: no class is sent", False)
    # Of all nodes, not only those with a receiver: the attackers are assumed to know it.
    prior = frequency.double() / frequency.sum()
    epsilon, num_classes = config.release.epsilon, len(prior)
    nodes, right = len(truth), int((guess(received, prior, epsilon) == truth).sum())
    found = binomtest(right, nodes).proportion_ci(0.95)
    without = float((truth == int(prior.argmax())).double().mean())
    # The bound holds for any guess; success above it would mean several draws of the mechanism.
    most, alike = bound(prior, epsilon), 1 / (1 + (num_classes - 1) * math.exp(-epsilon))
    if found.low > most:
        verdict = "leaks more than epsilon allows: the values of a node are not one draw of its mechanism"
    elif found.low > without:
        verdict = "leaks what epsilon allows, by design: the class is likelier with its value than without"
    else:
        verdict = "no leak found by this attack: the value does not help to guess the class"
    noise = "" if config.noise.noise_seed is not None else OTHER_NOISE
    return Finding(
        result=f"all receivers together guess the predicted class of {100 * right / nodes:.1f} % of {nodes} "
        f"nodes (95 % interval {100 * found.low:.1f} to {100 * found.high:.1f} %); epsilon {epsilon:g} "
        f"bounds this to {100 * most:.1f} % for these classes, and to {100 * alike:.1f} % for {num_classes} "
        f"equally frequent ones{noise}",
        baseline=f"{100 * without:.1f} %: always the most frequent class",
        verdict=verdict,
        leaks=found.low > without,
        value=right / nodes,
        interval=(float(found.low), float(found.high)),
        no_signal=without,
        details={
            "nodes": nodes,
            "right": right,
            "values": len(received.value),
            "bound": most,
            "bound_of_equal_classes": alike,
            "same_noise": config.noise.noise_seed is not None,
        },
    )


CHECK = Check(
    name="released_classes",
    tests="the predicted class of a node, from the value that its client releases",
    attacker="all clients that have an edge to the node, together: the value that each received; epsilon; "
    "how frequent each predicted class is",
    run=run,
    methods=("prediction_release",),
    transfers=(TRANSFER,),
)
