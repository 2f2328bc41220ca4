"""The classes of a client's training nodes, from the update of the last layer's bias in the first round.

Wainakh et al., "User-level label leakage from gradients in federated learning", PoPETs 2022; Zhao, Mopuri
and Bilen, "iDLG", 2020. With the cross-entropy of a softmax the gradient of the last bias is the mean of
p_i - y_i over the client's training nodes, where y_i is the label as a 0/1 vector. A client that takes E
steps of size eta from the weights it was sent therefore moves its bias by about eta E (s - 1/C), where s are
the shares of its labels among C classes, while the predictions are still near 1/C. The server knows the
weights it sent, those it receives, eta and E, and solves for s:

    s_c  ~  1/C + (b_c - b0_c) / (eta E)      then what is negative is 0, and the sum is 1

Judged by how each client departs from the classes of all: the correlation, over all (client, class) pairs, of
the estimated and the true share, both less the share in all clients together. An estimate that knows the
classes of all and nothing of a client gives 0. The baseline deals the same labels over the clients at random,
1000 times, each client keeping its number of nodes; the p-value is the share of deals that fit the
estimate as well as the truth does. The interval is a percentile bootstrap over clients. With Adam the size of
a step does not follow the gradient, so the estimate keeps its signs only. Where clients send the gradient
itself (rule=fedsgd), it needs no eta and no E."""

import numpy as np

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.data.seeding import generator
from graphfed.methods.config import GraphSettings, LocalStepsSettings, TrainingSettings

__all__ = ["CHECK", "correlation_and_baseline", "estimate_shares"]

DRAWS = 1000


def estimate_shares(bias: np.ndarray, sent: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """Estimated label shares [K, C] from the clients' last biases [K, C] and the one they were sent [C]."""
    shares = np.clip(1 / bias.shape[1] + (bias - sent) / (lr * steps), 0, None)
    total = shares.sum(axis=1, keepdims=True)
    known: np.ndarray = np.where(total > 0, shares / np.where(total > 0, total, 1), 1 / bias.shape[1])
    return known


def correlation_and_baseline(
    estimate: np.ndarray, client: np.ndarray, label: np.ndarray, seed: int = 0
) -> tuple[float, tuple[float, float], float, float]:
    """How well estimated shares [K, C] fit the clients [n] and classes [n] of n training nodes: the
    correlation, its 95 % interval, the mean correlation with labels dealt at random, and the p-value. Every
    client has a node."""
    random = generator(seed, "audit/label_histogram")
    count, classes = estimate.shape
    guessed = _departures(estimate, np.bincount(client, minlength=count))

    def truth(label: np.ndarray) -> np.ndarray:
        histogram = np.bincount(client * classes + label, minlength=count * classes).reshape(count, classes)
        size = histogram.sum(axis=1)
        return _departures(histogram / size[:, None], size)

    actual = truth(label)
    found = _correlation(guessed, actual)
    deals = [truth(random.permutation(label)) for _ in range(DRAWS)]
    dealt = [_correlation(guessed, deal) for deal in deals]
    draws = [random.integers(count, size=count) for _ in range(DRAWS)]
    low, high = np.quantile([_correlation(guessed[d], actual[d]) for d in draws], [0.025, 0.975])
    # The covariance: a deal with smaller departures in the same direction does not fit as well.
    reached = sum((guessed * deal).sum() >= (guessed * actual).sum() for deal in deals)
    return found, (float(low), float(high)), float(np.mean(dealt)), (1 + reached) / (1 + DRAWS)


def _departures(shares: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Shares [K, C] less those of all clients together, who have `size` [K] nodes."""
    difference: np.ndarray = shares - size @ shares / size.sum()
    return difference


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    """The cosine of two arrays of departures, which have mean 0; 0 where one of them does not vary."""
    norm = float(np.sqrt((left**2).sum() * (right**2).sum()))
    return float((left * right).sum()) / norm if norm > 1e-12 else 0.0


def run(audited: AuditedRun) -> Finding:
    """The estimate from the first round's updates, against the true histograms."""
    transcript, training = audited.transcript, audited.config.training
    assert isinstance(training, GraphSettings)
    assert isinstance(training, TrainingSettings)
    assert isinstance(training, LocalStepsSettings)
    gradients = "gradient" in {entry.name for entry in audited.ledger.entries}
    update = transcript.first("gradient" if gradients else "update", "train")
    sent = transcript.first("model", "train", to_server=False).payload
    name = f"layers.{training.layers - 1}.bias"
    cohort, classes = transcript.cohort, transcript.cohort.num_classes
    rows = cohort.rows("train")
    cells = (cohort.client[rows] * classes + cohort.y[rows]).cpu().numpy()
    histogram = np.bincount(cells, minlength=cohort.num_clients * classes).reshape(-1, classes)
    shown = (histogram.sum(axis=1) > 0) & update.present
    if shown.sum() < 2:
        return Finding("fewer than two clients have training nodes", "-", "not measured", None)
    if name not in update.payload or name not in sent:
        return Finding(f"the model has no {name}", "-", "not measured", None)
    told = update.payload[name].cpu().numpy().astype(np.float64)[shown]
    before = sent[name].cpu().numpy().astype(np.float64)
    if gradients:  # a step of size 1
        estimate = estimate_shares(before - told, before, 1.0, 1)
    else:
        estimate = estimate_shares(told, before, training.lr, training.local_steps)
    truth = histogram[shown] / histogram[shown].sum(axis=1, keepdims=True)
    place = np.cumsum(shown) - 1
    client, label = cohort.client[rows].cpu().numpy(), cohort.y[rows].cpu().numpy()
    looked_at = shown[client]
    found, (low, high), by_chance, p = correlation_and_baseline(
        estimate, place[client[looked_at]], label[looked_at]
    )
    distance = float(np.abs(estimate - truth).sum(axis=1).mean() / 2)
    uniform = float(np.abs(1 / classes - truth).sum(axis=1).mean() / 2)
    leaks = p < 0.05
    verdict = (
        "leaks: the updates follow each client's own classes"
        if leaks
        else "no leak found: labels dealt at random fit as well"
    )
    sure = f"95 % interval {low:.2f} to {high:.2f}"
    return Finding(
        result=f"correlation {found:.2f} ({sure}); {100 * distance:.0f} % of a "
        "client's labels put into a wrong class",
        baseline=f"correlation {by_chance:.2f} with labels dealt at random (p = {p:.3f}); "
        f"{100 * uniform:.0f} % wrong when all classes are taken as equal",
        verdict=verdict,
        leaks=leaks,
        value=found,
        interval=(low, high),
        no_signal=by_chance,
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
    tests="the classes of each client's training nodes",
    attacker="the server: the weights it sends and each client's, or its gradient, in the first round",
    run=run,
    transfers=("update", "training_counts"),
    instead=("gradient", "training_counts"),
)
