"""Membership inference: whether the model was trained on a node's label, from the loss of its prediction.

Yeom, Giacomelli, Fredrikson and Jha, "Privacy risk in machine learning: analyzing the connection to
overfitting", CSF 2018. The attacker takes a node for a training node if the model's loss on it is small. The
figure is the AUC between training and test nodes: the probability that a random training node has a smaller
loss than a random test node.

Nodes are compared within classes. Training nodes are often drawn evenly over classes and test nodes are not,
and the loss differs between classes; without this comparison a model that was never trained would seem to
leak. The AUC of each class is weighted by its number of training nodes. The interval is a percentile
bootstrap of 1000 draws within classes and parts. It treats nodes as independent, which neighbours in a graph
are not exactly.
"""

import numpy as np

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import UNPROVEN, interval, not_measured
from graphfed.data.seeding import generator
from graphfed.runs.folder import read_predictions

DRAWS = 1000
#: The largest number of nodes of a class and part; of more, as many are drawn. This changes at most the third
#: digit of the AUC.
MAX_NODES = 20_000


def membership_auc(
    member_loss: np.ndarray,
    member_class: np.ndarray,
    other_loss: np.ndarray,
    other_class: np.ndarray,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> tuple[float, tuple[float, float]] | None:
    """Compute the AUC of losses between members (training nodes) and others (test nodes) within classes.

    Returns the AUC and its 95 % interval; None if no class has both members and others.
    """
    random = generator(seed, "audit/membership")
    aucs, weights, bootstrapped = [], [], []
    # Classes differ in difficulty and frequency, which would look like membership.
    for c in np.intersect1d(member_class, other_class):
        members, others = (
            _draw_nodes(random, loss[of_class == c])
            for loss, of_class in ((member_loss, member_class), (other_loss, other_class))
        )
        _, rank = np.unique(np.concatenate([members, others]), return_inverse=True)
        a, b = rank[: len(members)], rank[len(members) :]
        width = int(rank.max()) + 1
        aucs.append(_auc(a, b, width))
        # By all members of the class, not by those drawn.
        weights.append((member_class == c).sum())
        bootstrapped.append(
            [_auc(random.choice(a, len(a)), random.choice(b, len(b)), width) for _ in range(draws)]
        )
    if not aucs:
        return None
    weight = np.array(weights) / np.sum(weights)
    return float(weight @ np.array(aucs)), interval(weight @ np.array(bootstrapped))


def _draw_nodes(random: np.random.Generator, losses: np.ndarray) -> np.ndarray:
    return losses if len(losses) <= MAX_NODES else random.choice(losses, MAX_NODES, replace=False)


def _auc(member_rank: np.ndarray, other_rank: np.ndarray, width: int) -> float:
    """Return P(member's loss < other's loss) + P(equal) / 2, from the ranks of losses below `width`."""
    # Counting ranks is faster than sorting, and a bootstrap does it thousands of times.
    members, others = (np.bincount(rank, minlength=width) for rank in (member_rank, other_rank))
    larger = others[::-1].cumsum()[::-1] - others
    return float((members * (larger + others / 2)).sum() / (members.sum() * others.sum()))


def run(audited: AuditedRun) -> Finding:
    """Compare the losses of the run's predictions on training and test nodes."""
    num_classes = audited.inputs.task(audited.config.task).num_classes
    classes = [f"probability_{c}" for c in range(num_classes)]
    kinds = {"label": "integer", "split": "text"} | dict.fromkeys(classes, "number")
    table = read_predictions(audited.folder, kinds)
    label = table["label"].fill_null(-1).to_numpy().astype(np.int64)
    part = np.array(table["split"].to_pylist())
    probability = np.stack([table[name].to_numpy() for name in classes], axis=1)
    known = (label >= 0) & (label < num_classes)
    # Unknown labels get class 0 here and are left out below.
    likelihood = np.take_along_axis(probability, np.where(known, label, 0)[:, None], axis=1)[:, 0]
    with np.errstate(divide="ignore"):
        # A prediction that is not finite gets the largest loss.
        loss = -np.log(np.nan_to_num(likelihood, nan=0.0).astype(np.float64))
    member, other = ((part == name) & known for name in ("train", "test"))
    baseline = "AUC 0.5: guessing at random"
    found = membership_auc(loss[member], label[member], loss[other], label[other])
    if found is None:
        return not_measured("no class has both training and test nodes", baseline)
    auc, (low, high) = found
    if low > 0.5:
        verdict = "leaks: training nodes have smaller losses, which identifies them"
    elif high < 0.5:
        verdict = "no leak found by this attack: training nodes have larger losses than test nodes"
    else:
        verdict = UNPROVEN
    return Finding(
        result=f"a training node has a smaller loss than a test node of its class with probability {auc:.3f} "
        f"(AUC; 95 % interval {low:.3f} to {high:.3f})",
        baseline=baseline,
        verdict=verdict,
        leaks=low > 0.5,
        value=auc,
        interval=(low, high),
        no_signal=0.5,
        details={"training_nodes": int(member.sum()), "test_nodes": int(other.sum())},
    )


CHECK = Check(
    name="membership",
    tests="membership in the training set, from the loss of a prediction",
    attacker="anyone with the predicted class probabilities and the true label of a node",
    run=run,
)
