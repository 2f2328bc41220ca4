"""The classes of a client's training vertices, from the update of the last layer's bias in the first round.

Wainakh et al., "User-level label leakage from gradients in federated learning", PoPETs 2022; Zhao, Mopuri
and Bilen, "iDLG", 2020. With the cross-entropy of a softmax the gradient of the last bias is the mean of
p_i - y_i over the client's training vertices, where y_i is the label as a 0/1 vector. A client that takes E
steps of size eta from the weights it was sent therefore moves its bias by about eta E (s - 1/C), where s are
the shares of its labels among C classes, while the predictions are still near 1/C. The server knows the
weights it sent, those it receives, eta and E, and solves for s:

    s_c  ~  1/C + (b_c - b0_c) / (eta E)      then what is negative is 0, and the sum is 1

Judged by the correlation of the shares of all (client, class) pairs with the true ones. Classes that are
common everywhere would give a correlation without any client leaking, so the baseline is the same estimate
held against the histograms of other clients, shuffled 1000 times; the interval is a percentile bootstrap over
clients. With Adam the step's size does not follow the gradient's, and the estimate keeps its signs only."""

import numpy as np

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.data.seeding import generator

__all__ = ["CHECK", "correlation_and_baseline", "estimate_shares"]

SHUFFLES = 1000


def estimate_shares(bias: np.ndarray, sent: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """Estimated label shares [K, C] from the clients' last biases [K, C] and the one they were sent [C]."""
    shares = np.clip(1 / bias.shape[1] + (bias - sent) / (lr * steps), 0, None)
    total = shares.sum(axis=1, keepdims=True)
    known: np.ndarray = np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / bias.shape[1])
    return known


def correlation_and_baseline(
    estimate: np.ndarray, truth: np.ndarray, seed: int = 0
) -> tuple[float, tuple[float, float], float, float]:
    """Of shares [K, C]: the correlation, its 95 % interval, the mean correlation with shuffled clients, and
    the share of shuffles (the actual order among them) that reach the correlation: a p-value."""
    random = generator(seed, "audit/label_histogram")
    found, count = _correlation(estimate, truth), len(truth)
    shuffled = [_correlation(estimate, truth[random.permutation(count)]) for _ in range(SHUFFLES)]
    draws = [random.integers(count, size=count) for _ in range(SHUFFLES)]
    low, high = np.quantile([_correlation(estimate[d], truth[d]) for d in draws], [0.025, 0.975])
    reached = sum(value >= found for value in shuffled)
    return found, (float(low), float(high)), float(np.mean(shuffled)), (1 + reached) / (1 + SHUFFLES)


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Pearson's, 0 where one of them does not vary."""
    a, b = left.ravel() - left.mean(), right.ravel() - right.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / norm if norm > 0 else 0.0


def run(audited: AuditedRun) -> Finding:
    """The estimate from the first round's updates, against the true histograms."""
    transcript, training = audited.transcript, audited.config.training
    update = transcript.first("update", "train")
    sent = transcript.first("model", "train", to_server=False).payload
    name = f"layers.{training.layers - 1}.bias"
    cohort, classes = transcript.cohort, audited.inputs.graph.num_classes
    rows = cohort.rows("train")
    cells = (cohort.client[rows] * classes + cohort.y[rows]).cpu().numpy()
    histogram = np.bincount(cells, minlength=cohort.num_clients * classes).reshape(-1, classes)
    shown = (histogram.sum(axis=1) > 0) & update.present
    if shown.sum() < 2:
        return Finding("fewer than two clients have training vertices", "-", "not measured", None)
    bias = update.payload[name].cpu().numpy().astype(np.float64)[shown]
    estimate = estimate_shares(
        bias, sent[name].cpu().numpy().astype(np.float64), training.lr, training.local_steps
    )
    truth = histogram[shown] / histogram[shown].sum(axis=1, keepdims=True)
    found, (low, high), shuffled, p = correlation_and_baseline(estimate, truth)
    distance = float(np.abs(estimate - truth).sum(axis=1).mean() / 2)
    uniform = float(np.abs(1 / classes - truth).sum(axis=1).mean() / 2)
    leaks = p < 0.05
    verdict = (
        "leaks: the updates follow each client's own classes"
        if leaks
        else "no leak found: the updates fit other clients' classes as well"
    )
    sure = f"95 % interval {low:.2f} to {high:.2f}"
    return Finding(
        result=f"correlation {found:.2f} ({sure}); {100 * distance:.0f} % of a "
        "client's labels put into a wrong class",
        baseline=f"correlation {shuffled:.2f} with shuffled clients (p = {p:.3f}); {100 * uniform:.0f} % "
        "wrong when all classes are taken as equal",
        verdict=verdict,
        leaks=leaks,
        value=found,
        interval=(low, high),
        no_signal=shuffled,
        details={
            "p": p,
            "clients": int(shown.sum()),
            "wrong_share": distance,
            "wrong_share_uniform": uniform,
            "estimate": estimate.tolist(),
            "truth": truth.tolist(),
        },
    )


CHECK = Check(
    name="label_histogram",
    tests="the classes of each client's training vertices",
    attacker="the server: the weights it sends and each client's in the first round",
    run=run,
    transfers=("update", "training_counts"),
)
