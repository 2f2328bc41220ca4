"""The classes of a client's training nodes, from the update of the last layer's bias in the first round.

Wainakh et al., "User-level label leakage from gradients in federated learning", PoPETs 2022; Zhao, Mopuri
and Bilen, "iDLG", 2020. With the cross-entropy of a softmax the gradient of the last bias is the mean of
p_i - y_i over the client's training nodes, where y_i is the label as a 0/1 vector. While predictions are
near 1/C for each of C classes, a client that takes E steps of size eta moves its bias by about
eta E (s - 1/C), where s_c is the fraction of its labels that are class c. The server knows the weights that
it sent and received, eta and E, and solves for s:

    s_c  ~  1/C + (b_c - b0_c) / (eta E)      then negative values become 0, and s is divided by its sum

The figure says how well the estimate tells clients apart: the correlation, over all pairs of a client and a
class, of the estimated and the true fraction, each minus the fraction in all clients together. An estimate
that knows the classes of all clients together and nothing about a single client gives 0. The baseline
assigns the same labels to clients at random, 1000 times, with each client's number of nodes unchanged; the
p-value is the fraction of assignments that fit the estimate at least as well as the true one. The interval is
a percentile bootstrap over clients. With Adam the size of a step does not follow the gradient, so only the
signs of the estimate are meaningful. If clients send the gradient itself (rule=fedsgd), the estimate does not
need eta and E.
"""

import numpy as np
import torch

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import interval, not_measured
from graphfed.data.seeding import generator
from graphfed.methods.averaging.rules import RULES
from graphfed.methods.settings import value, values

DRAWS = 1000


def estimate_shares(change: np.ndarray, lr: float, steps: int) -> np.ndarray:
    """Estimate the fraction of each class among each client's training labels, [K, C]; rows sum to 1.

    `change` [K, C] is by how much each client has moved the last bias in `steps` steps.
    """
    # The gradient of the last bias is the mean of p - y, and p is about 1/C: s is about 1/C + step / (eta E).
    fractions = np.clip(1 / change.shape[1] + change / (lr * steps), 0, None)
    total = fractions.sum(axis=1, keepdims=True)
    estimate: np.ndarray = np.where(total > 0, fractions / np.where(total > 0, total, 1), 1 / change.shape[1])
    return estimate


def correlation_and_baseline(
    estimate: np.ndarray, client: np.ndarray, label: np.ndarray, seed: int = 0
) -> tuple[float, tuple[float, float], float, float]:
    """Compare estimated fractions of classes [K, C] with true ones and with labels assigned at random.

    `client` and `label` [n] are those of each training node; every client has one. Returns the correlation,
    its 95 % interval, the mean correlation with random assignments, and the p-value.
    """
    random = generator(seed, "audit/label_histogram")
    count, classes = estimate.shape
    # Without the fractions of all clients together, which an average alone would show.
    estimated = _differences(estimate, np.bincount(client, minlength=count))

    def truth(label: np.ndarray) -> np.ndarray:
        histogram = np.bincount(client * classes + label, minlength=count * classes).reshape(count, classes)
        size = histogram.sum(axis=1)
        return _differences(histogram / size[:, None], size)

    actual = truth(label)
    correlation = _correlation(estimated, actual)
    assignments = [truth(random.permutation(label)) for _ in range(DRAWS)]
    random_correlations = [_correlation(estimated, assignment) for assignment in assignments]
    # Whole clients are resampled: the classes of one client are not independent of each other.
    draws = [random.integers(count, size=count) for _ in range(DRAWS)]
    bootstrapped = [_correlation(estimated[d], actual[d]) for d in draws]
    # By covariance: an assignment with smaller differences in the same direction does not fit as well.
    reached = sum((estimated * other).sum() >= (estimated * actual).sum() for other in assignments)
    p = (1 + reached) / (1 + DRAWS)
    return correlation, interval(bootstrapped), float(np.mean(random_correlations)), p


def _differences(fractions: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Return fractions [K, C] minus those of all clients together; size [K]: the clients' nodes."""
    difference: np.ndarray = fractions - size @ fractions / size.sum()
    return difference


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    """Return the cosine of two arrays of differences, which have mean 0; 0 if one of them is 0."""
    norm = float(np.sqrt((left**2).sum() * (right**2).sum()))
    return float((left * right).sum()) / norm if norm > 1e-12 else 0.0


def _sends_changes(config: object) -> bool:
    """Return whether clients send changes of the weights (rule=admm in its first round), not weights."""
    rule = value(config, "rule")
    # Methods that do not average by a rule send weights.
    averages = () if rule is None else RULES[rule].averages
    return any(average.name == "update" and not average.of_model for average in averages)


def run(audited: AuditedRun) -> Finding:
    """Estimate the clients' classes from the first round's updates, and compare with the true ones."""
    transcript, settings = audited.transcript, values(audited.config.settings)
    gradients = "gradient" in audited.transfers
    update = transcript.first("gradient" if gradients else "update", "train")
    sent = transcript.first("model", "train", to_server=False).payload
    name = f"layers.{settings['layers'] - 1}.bias"
    cohort, classes = transcript.cohort, transcript.cohort.num_classes
    rows = cohort.rows("train")
    cells = (cohort.client[rows] * classes + cohort.y[rows]).cpu().numpy()
    histogram = np.bincount(cells, minlength=cohort.num_clients * classes).reshape(-1, classes)
    # A client without training nodes has no fractions, and an absent one sent nothing.
    attacked = (histogram.sum(axis=1) > 0) & update.present
    if attacked.sum() < 2:
        return not_measured("fewer than two clients have training nodes")
    weights = update.payload
    if isinstance(weights, torch.Tensor):
        # With fedgraph's policy=ddpg a client sends all weights as one row, in the order of their names.
        names = sorted(sent)
        weights = dict(
            zip(names, torch.split(weights, [sent[each].numel() for each in names], 1), strict=True)
        )
    if name not in weights or name not in sent:
        return not_measured(f"the model has no weight {name}")
    received = weights[name].cpu().numpy().astype(np.float64)[attacked]
    if gradients:
        estimate = estimate_shares(-received, 1.0, 1)  # a step of size 1
    else:
        before = 0 if _sends_changes(audited.config.settings) else sent[name].cpu().numpy()
        estimate = estimate_shares(received - before, settings["lr"], settings["local_steps"])
    truth = histogram[attacked] / histogram[attacked].sum(axis=1, keepdims=True)
    # Clients that were not attacked have no row in the estimate.
    place = np.cumsum(attacked) - 1
    client, label = cohort.client[rows].cpu().numpy(), cohort.y[rows].cpu().numpy()
    counted = attacked[client]
    found, (low, high), at_random, p = correlation_and_baseline(
        estimate, place[client[counted]], label[counted]
    )
    distance = float(np.abs(estimate - truth).sum(axis=1).mean() / 2)
    uniform = float(np.abs(1 / classes - truth).sum(axis=1).mean() / 2)
    leaks = p < 0.05
    verdict = (
        "leaks: a client's update shows how its training nodes are divided among the classes"
        if leaks
        else "no leak found: labels assigned to clients at random fit the estimate as well"
    )
    return Finding(
        result="estimated and true fractions of classes, compared with those of all clients, correlate with "
        f"{found:.2f} (95 % interval {low:.2f} to {high:.2f}); the estimate puts {100 * distance:.0f} % of a "
        "client's labels into a wrong class",
        baseline=f"correlation {at_random:.2f} with labels assigned at random (p = {p:.3f}); "
        f"{100 * uniform:.0f} % in a wrong class if all classes are estimated to be equally frequent",
        verdict=verdict,
        leaks=leaks,
        value=found,
        interval=(low, high),
        no_signal=at_random,
        details={
            "p": p,
            "clients": int(attacked.sum()),
            "wrong_share": distance,
            "wrong_share_uniform": uniform,
            "estimate": estimate.tolist(),
            "truth": truth.tolist(),
        },
    )


CHECK = Check(
    name="label_histogram",
    tests="the classes of each client's training nodes",
    attacker="the server: in the first round, the weights that it sends, and each client's weights or "
    "gradient",
    run=run,
    transfers=("update", "training_counts"),
    instead=("gradient", "training_counts"),
)
