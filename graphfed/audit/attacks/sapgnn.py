"""SAPGNN and PPGNN: features and training labels, which the server computes from messages of the first round.

Features of nodes (`split_features`, SAPGNN), from what clients upload for the first layer. With maps=identity
(the paper's messages) the uploads are the features, and the attack compares them. With linear maps the server
receives, for every node, `hidden` linear mixtures of its features and as many maxima over its neighbours. A
server that knows the features of some nodes can learn to invert the mixtures. Here it knows a tenth of the
nodes, drawn at random. It fits a linear map from uploads to features on them (ridge regression, its strength
chosen by validation). The result is how much of the variance of the other nodes' features the map explains.

Training labels (`split_labels`), from the gradients that clients send the server for the last embeddings. The
gradient of a training node is (p - y) times the predictor, where p are its predicted probabilities and y is
its label as a 0/1 vector. With predictor=server the last embeddings are the logits; the label is the only
negative coordinate of p - y, so the server reads it. With predictor=clients the server does not have the
predictor. In the first round p is nearly the same for all nodes, so gradients of nodes with one label have
nearly the same direction. The server can group training nodes by label without knowing which label it is.
Groups are scored by purity: the fraction of nodes whose label is the most frequent one of their group. A node
that several clients train on has a gradient from each; they are added up, as the server does.

The first round is run again in this process. The attack on features uses uploads pooled over clients. With
pooling=secure the server has nothing else, and the protocol gives it these values to within 2^-17; the round
is then run again with pooling=plaintext (docs/papers/sapgnn.md).
"""

from dataclasses import replace

import numpy as np
import torch

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.transcript import Transcript, dense_rows, record_rounds
from graphfed.federation.secure.protection import PLAINTEXT

__all__ = ["FEATURES", "LABELS"]

#: The fraction of nodes whose features the server knows, and the largest number of nodes in the attack.
KNOWN, MAX_NODES = 0.1, 20_000
#: Candidates for the strength of the regression, relative to the mean variance of the uploads.
RIDGES = (1e-8, 1e-4, 1e-2, 1.0, 100.0)
#: The largest number of nodes that are grouped. The distances between them need memory for its square.
MAX_GROUPED = 3000
#: The transfer of the gradients of the last embeddings, for each method.
GRADIENT_TRANSFERS = {"sapgnn": "sapgnn/global_embedding/grad", "ppgnn": "ppgnn/combined_embedding/grad"}


# ---- features ----------------------------------------------------------------------------------------------


def attack_features(audited: AuditedRun) -> Finding:
    """Measure how many nodes' features the server reads, or how much of them it reconstructs."""
    transcript = transcript_of(audited)
    cohort = transcript.cohort
    ids, first = np.unique(cohort.id.cpu().numpy(), return_index=True)
    chosen = np.sort(np.random.default_rng(0).permutation(len(ids))[:MAX_NODES])
    assert cohort.x is not None
    rows = first[chosen]
    truth = dense_rows(cohort.x, rows)
    if audited.config.training.maps == "identity":  # type: ignore[attr-defined]
        return _read(audited, transcript, rows, truth)
    uploads = transcript.first("sapgnn/local_embedding", "train").payload.double().cpu()
    place = torch.from_numpy(np.searchsorted(ids, cohort.id.cpu().numpy()))
    pooled = torch.full((len(ids), uploads.shape[1]), -torch.inf, dtype=torch.float64)
    pooled = pooled.scatter_reduce(0, place[:, None].expand_as(uploads), uploads, "amax")
    seen = pooled.masked_fill(pooled.isneginf(), 0)[torch.from_numpy(chosen)]
    known = torch.arange(len(rows)) < max(2, round(KNOWN * len(rows)))
    known = known[torch.from_numpy(np.random.default_rng(1).permutation(len(rows)))]
    fraction = explained_variance(seen, truth, known)
    leaks = fraction > 0.01
    return Finding(
        result=f"a server that knows the features of {int(known.sum())} nodes explains {100 * fraction:.1f} "
        f"% of the variance of the features of the other {int((~known).sum())} nodes",
        baseline="0 %: the mean of the known nodes",
        verdict="leaks to a server that knows the features of some nodes; a server without such knowledge "
        "does not know the clients' maps"
        if leaks
        else "no leak found: this attack explains none of the features",
        leaks=leaks,
        value=fraction,
        no_signal=0.0,
        details={"known": int(known.sum()), "others": int((~known).sum())},
    )


def transcript_of(audited: AuditedRun) -> Transcript:
    """Return the first round's messages, with uploads in plaintext."""
    if audited.transfers & {"sapgnn/features", "sapgnn/local_embedding"}:
        return audited.transcript
    plaintext = replace(audited.config.training, pooling=PLAINTEXT)  # type: ignore[call-arg]
    return record_rounds(replace(audited.config, training=plaintext), audited.inputs, rounds=1)


def _read(audited: AuditedRun, transcript: Transcript, rows: np.ndarray, truth: torch.Tensor) -> Finding:
    """Compare the uploads with the features, for identity messages."""
    pooling = "sapgnn/features" if audited.config.training.update != "tropical" else None  # type: ignore[attr-defined]
    name, phase = (pooling, "setup") if pooling else ("sapgnn/local_embedding", "train")
    arrived = dense_rows(transcript.first(name, phase).payload, rows)[:, : truth.shape[1]]
    same = ((arrived.abs() - truth.abs()).abs().amax(1) <= 1e-6 * truth.abs().amax().clamp(min=1)).double()
    fraction = float(same.mean())
    return Finding(
        result=f"the server reads the features of {int(same.sum())} of {len(rows)} nodes "
        f"({100 * fraction:.1f} %)",
        baseline="none: without the uploads the server has no features",
        verdict="leaks exactly: the server reads these features and does not need to guess",
        leaks=fraction > 0,
        value=fraction,
        no_signal=0.0,
        details={"nodes": len(rows), "recovered": int(same.sum())},
    )


def explained_variance(seen: torch.Tensor, truth: torch.Tensor, known: torch.Tensor) -> float:
    """Return how much of the variance of unknown features a ridge regression explains.

    Args:
        seen: The uploads of each node, [n, d].
        truth: The features of each node, [n, F].
        known: Which nodes' features the server knows, [n] bool; the regression is fitted to these.

    Returns:
        A fraction from 0 to 1.
    """
    a, b = seen[known], truth[known]
    half = len(a) // 2
    strength = max(RIDGES, key=lambda r: _fit(a[:half], b[:half], a[half:], b[half:], r))
    return max(0.0, _fit(a, b, seen[~known], truth[~known], strength))


def _fit(
    seen: torch.Tensor, truth: torch.Tensor, test_seen: torch.Tensor, test_truth: torch.Tensor, ridge: float
) -> float:
    """Fit a regression from `seen` to `truth`; return the fraction of the test variance that it explains."""
    seen_mean, truth_mean = seen.mean(0), truth.mean(0)
    a, b = seen - seen_mean, truth - truth_mean
    gram = a.T @ a
    gram += ridge * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    guess = (test_seen - seen_mean) @ torch.linalg.lstsq(gram, a.T @ b).solution + truth_mean
    return 1 - float(((test_truth - guess) ** 2).sum() / ((test_truth - truth_mean) ** 2).sum())


FEATURES = Check(
    name="split_features",
    tests="features, from the uploads of the first layer",
    attacker="the server: the uploads, pooled over clients; with maps=linear also the features of some nodes",
    run=attack_features,
    methods=("sapgnn",),
)


# ---- labels ------------------------------------------------------------------------------------------------


def attack_labels(audited: AuditedRun) -> Finding:
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


LABELS = Check(
    name="split_labels",
    tests="training labels, from the gradients of the last embeddings",
    attacker="the server: the gradients that clients send it in the first round",
    run=attack_labels,
    methods=tuple(GRADIENT_TRANSFERS),
)
