"""Membership inference: can one tell from a node's prediction that the model was trained on its label?

Yeom, Giacomelli, Fredrikson and Jha, "Privacy risk in machine learning: analyzing the connection to
overfitting", CSF 2018: call a node a member when the model's loss on it is small. The figure is the AUC of
the loss between training and test nodes: the probability that a training node has the smaller loss,
over all thresholds.

Compared within classes: training nodes are often drawn evenly over classes and test nodes are not, and
a model's loss differs between classes, so a model that never saw a label would seem to leak. The AUC of each
class is weighted by its training nodes. The interval is a percentile bootstrap of 1000 draws within
classes and parts; it takes nodes as independent, which neighbours in a graph are not quite."""

import numpy as np

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.data.seeding import generator

__all__ = ["CHECK", "membership_auc"]

DRAWS = 1000
#: Of a class and part: more are drawn down to so many, which changes the third digit at most.
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
    """The AUC within classes and its 95 % interval, from losses [n] and classes [n] of members and others.

    None where no class has both."""
    random = generator(seed, "audit/membership")
    aucs, weights, bootstrapped = [], [], []
    for c in np.intersect1d(member_class, other_class):
        mine, theirs = (
            _at_most(random, loss[of_class == c])
            for loss, of_class in ((member_loss, member_class), (other_loss, other_class))
        )
        _, rank = np.unique(np.concatenate([mine, theirs]), return_inverse=True)
        a, b = rank[: len(mine)], rank[len(mine) :]
        width = int(rank.max()) + 1
        aucs.append(_auc(np.bincount(a, minlength=width), np.bincount(b, minlength=width)))
        weights.append((member_class == c).sum())
        bootstrapped.append(
            [
                _auc(
                    np.bincount(a[random.integers(len(a), size=len(a))], minlength=width),
                    np.bincount(b[random.integers(len(b), size=len(b))], minlength=width),
                )
                for _ in range(draws)
            ]
        )
    if not aucs:
        return None
    share = np.array(weights) / np.sum(weights)
    low, high = np.quantile(share @ np.array(bootstrapped), [0.025, 0.975])
    return float(share @ np.array(aucs)), (float(low), float(high))


def _at_most(random: np.random.Generator, losses: np.ndarray) -> np.ndarray:
    return losses if len(losses) <= MAX_NODES else random.choice(losses, MAX_NODES, replace=False)


def _auc(mine: np.ndarray, theirs: np.ndarray) -> float:
    """P(loss of mine < loss of theirs) + half of P(equal), from how often each distinct loss [U], ascending,
    occurs."""
    larger = theirs[::-1].cumsum()[::-1] - theirs
    return float((mine * (larger + theirs / 2)).sum() / (mine.sum() * theirs.sum()))


def run(audited: AuditedRun) -> Finding:
    """Training against test nodes, by the loss of the run's own predictions."""
    scored = audited.predictions
    known = (scored.label >= 0) & (scored.label < scored.probability.shape[1])
    likelihood = np.take_along_axis(scored.probability, np.where(known, scored.label, 0)[:, None], axis=1)[
        :, 0
    ]
    with np.errstate(divide="ignore"):
        # A prediction that is not finite says nothing: the largest loss.
        loss = -np.log(np.nan_to_num(likelihood, nan=0.0).astype(np.float64))
    member, other = ((scored.part == part) & known for part in ("train", "test"))
    baseline = "0.5: a coin"
    found = membership_auc(loss[member], scored.label[member], loss[other], scored.label[other])
    if found is None:
        return Finding("no class has both training and test nodes", baseline, "not measured", None)
    auc, (low, high) = found
    if low > 0.5:
        verdict = "leaks: small losses give away training nodes"
    elif high < 0.5:
        verdict = "no leak by this attack: training nodes have the larger losses"
    else:
        verdict = "no leak found by this attack, which does not prove that there is none"
    return Finding(
        result=f"AUC {auc:.3f} (95 % interval {low:.3f} to {high:.3f})",
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
    attacker="the class probabilities and the true label of a node",
    run=run,
)
