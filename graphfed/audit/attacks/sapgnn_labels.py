"""SAPGNN and PPGNN: training labels, from the gradients that clients send the server for the last embeddings.

The gradient of a training node is (p - y) times the predictor, where p are its predicted probabilities and y
is its label as a 0/1 vector. With predictor=server the last embeddings are the logits; the label is the only
negative coordinate of p - y, so the server reads it. With predictor=clients the server does not have the
predictor. In the first round p is nearly the same for all nodes, so gradients of nodes with one label have
nearly the same direction. The server can group training nodes by label without knowing which label it is.

The first round is run again in this process. Groups are scored by purity: the fraction of nodes whose label
is the most frequent one of their group. A node that several clients train on has a gradient from each; they
are added up, as the server does (docs/papers/sapgnn.md).
"""

import numpy as np
import torch

from graphfed.audit.base import AuditedRun, Check, Finding

__all__ = ["CHECK"]

#: The largest number of nodes that are grouped. The distances between them need memory for its square.
MAX_GROUPED = 3000
#: The transfer of the gradients of the last embeddings, for each method.
GRADIENT_TRANSFERS = {"sapgnn": "sapgnn/global_embedding/grad", "ppgnn": "ppgnn/combined_embedding/grad"}


def run(audited: AuditedRun) -> Finding:
    """Measure how many training labels the server reads, or how purely it groups training nodes by label."""
    transcript = audited.transcript
    cohort = transcript.cohort
    (gradient,) = transcript.first(GRADIENT_TRANSFERS[audited.config.method.name], "train").payload
    ids, row = torch.unique(cohort.id, return_inverse=True)
    gradient = gradient.new_zeros(len(ids), gradient.shape[1]).index_add(0, row, gradient).double().cpu()
    label = torch.full((len(ids),), -1).scatter_reduce(0, row.cpu(), cohort.y.cpu(), "amax").numpy()
    known = gradient.abs().sum(1) > 0
    rows, label = gradient[known].numpy(), label[known.numpy()]
    classes = cohort.num_classes
    largest_class = np.bincount(label, minlength=classes).max() / len(label)
    if audited.config.training.predictor == "server":  # type: ignore[attr-defined]
        right = float((rows.argmin(1) == label).mean())
        result = f"the server reads {100 * right:.1f} % of {len(label)} training labels correctly"
        verdict = (
            "leaks exactly: the server reads the labels and does not need to guess"
            if right > 0.99
            else "leaks in part: the server guesses labels better than by the largest class"
        )
    else:
        rows, label = rows[:MAX_GROUPED], label[:MAX_GROUPED]
        right = purity(group_by_direction(rows, classes), label)
        result = (
            f"the server groups {len(label)} training nodes by label; {100 * right:.1f} % of them are in a "
            "group where their label is the most frequent one (purity)"
        )
        verdict = "leaks which training nodes have the same label, and not which label it is"
    leaks = right > largest_class + 0.05
    return Finding(
        result=result,
        baseline=f"{100 * largest_class:.1f} %: every node is taken to be of the largest class",
        verdict=verdict if leaks else "no leak found: the attack is not better than the largest class",
        leaks=leaks,
        value=right,
        no_signal=float(largest_class),
        details={"training_nodes": len(label), "classes": classes},
    )


def group_by_direction(rows: np.ndarray, count: int) -> np.ndarray:
    """Group rows [n, H] by direction into at most `count` groups, [n] int64 (average linkage)."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(rows) == 1:
        return np.ones(1, dtype=np.int64)
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found: np.ndarray = fcluster(linkage(directions, "average"), count, "maxclust")
    return found


def purity(group: np.ndarray, label: np.ndarray) -> float:
    """Return the fraction of rows whose label is the most frequent one of their group."""
    counts = np.zeros((group.max() + 1, label.max() + 1), dtype=np.int64)
    np.add.at(counts, (group, label), 1)
    return float(counts.max(1).sum() / len(label))


CHECK = Check(
    name="split_labels",
    tests="training labels, from the gradients of the last embeddings",
    attacker="the server: the gradients that clients send it in the first round",
    run=run,
    methods=tuple(GRADIENT_TRANSFERS),
)
