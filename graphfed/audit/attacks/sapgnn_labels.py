"""Split learning: training labels, from the gradients that clients send back for the last embeddings.

The gradient of a training node is a mixture of its predicted probabilities p less its label: (p - y) times
the predictor. With predictor=server the last embeddings are the logits, and the label is the one coordinate
of p - y below zero: it is read. With predictor=clients the server lacks the predictor, but in the first round
p is nearly the same for all, so that gradients of one label point the same way: the server can group training
nodes by their label, without its name. Both are tried on the first round, which is run again.

Groups are scored by purity: the share of nodes whose label is the most frequent one of their group. Where
every client has the label of a shared node, its gradients come once from each; they are added up, as the
server does."""

import numpy as np
import torch

from graphfed.audit.base import AuditedRun, Check, Finding

__all__ = ["CHECK"]

#: Nodes that are grouped at most: their distances take the square of this.
MOST = 3000
TOP = {"sapgnn": "sapgnn/global_embedding/grad", "ppgnn": "ppgnn/combined_embedding/grad"}


def run(audited: AuditedRun) -> Finding:
    """How many training labels the server reads, or how purely it groups them."""
    transcript = audited.transcript
    cohort = transcript.cohort
    (gradient,) = transcript.first(TOP[audited.config.method.name], "train").payload
    ids, row = torch.unique(cohort.id, return_inverse=True)
    gradient = gradient.new_zeros(len(ids), gradient.shape[1]).index_add(0, row, gradient).double().cpu()
    label = torch.full((len(ids),), -1).scatter_reduce(0, row.cpu(), cohort.y.cpu(), "amax").numpy()
    known = gradient.abs().sum(1) > 0
    rows, label = gradient[known].numpy(), label[known.numpy()]
    classes = cohort.num_classes
    common = np.bincount(label, minlength=classes).max() / len(label)
    if audited.config.training.predictor == "server":  # type: ignore[attr-defined]
        right = float((rows.argmin(1) == label).mean())
        told = f"{100 * right:.1f} % of {len(label)} training labels read"
        verdict = "leaks exactly: the labels are read, not guessed" if right > 0.99 else "labels are guessed"
    else:
        rows, label = rows[:MOST], label[:MOST]
        right = purity(groups(rows, classes), label)
        told = f"{len(label)} training nodes grouped by label with purity {100 * right:.1f} %"
        verdict = "leaks which training nodes have the same label, not which label it is"
    leaks = right > common + 0.05
    return Finding(
        result=told,
        baseline=f"{100 * common:.1f} %: all in one class",
        verdict=verdict if leaks else "nothing was gained",
        leaks=leaks,
        value=right,
        no_signal=float(common),
        details={"training_nodes": len(label), "classes": classes},
    )


def groups(rows: np.ndarray, count: int) -> np.ndarray:
    """Rows [n, H] in at most `count` groups by their direction, [n] int64."""
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(rows) == 1:
        return np.ones(1, dtype=np.int64)
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found: np.ndarray = fcluster(linkage(directions, "average"), count, "maxclust")
    return found


def purity(group: np.ndarray, label: np.ndarray) -> float:
    """The share of rows whose label is the most frequent one of their group."""
    counts = np.zeros((group.max() + 1, label.max() + 1), dtype=np.int64)
    np.add.at(counts, (group, label), 1)
    return float(counts.max(1).sum() / len(label))


CHECK = Check(
    name="split_labels",
    tests="training labels, from the gradients of the last embeddings",
    attacker="the server: the gradients that the clients send in the first round",
    run=run,
    methods=tuple(TOP),
)
