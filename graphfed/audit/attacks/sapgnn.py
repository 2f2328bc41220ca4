"""SAPGNN and PPGNN: features and training labels, which the server computes from messages of several rounds.

Features of nodes (`split_features`), from what clients upload for the first layer. With maps=identity (the
paper's messages) the uploads of SAPGNN are the features, and the attack compares them. With linear maps the
server receives in every round, for every node, `hidden` linear mixtures of its features, other ones each
time, and as many maxima over its neighbours. T rounds give T * hidden mixtures: once these are as many as
there are features, no features are hidden from a server that knows those of enough nodes, however small
`hidden` is. Here it knows a tenth of the nodes, drawn at random. It fits a linear map from the uploads of
several rounds to features on them (ridge regression; its strength, and whether it uses the maxima, are chosen
by validation). The result is how much of the variance of the other nodes' features the map explains. PPGNN
uploads embeddings by every client's own network; the attack is the same.

With aggregation=plaintext the server of SAPGNN needs no known features (`from_gradients`). It reads each
client's gradient of the map of a node's own features, X^T G, and has computed G, the gradients of the
uploads, itself. The T * hidden equations of T rounds for the features of each client's nodes are linear. They
determine the features of a node whose row of G is independent of those of others.

Training labels (`split_labels`), from the gradients that clients send the server for the last embeddings. The
gradient of a training node is (p - y) times the predictor, where p are its predicted probabilities and y is
its label as a 0/1 vector. With predictor=server the last embeddings are the logits; the label is the only
negative coordinate of p - y, so the server reads it. With predictor=clients the server does not have the
predictor. In the first round p is nearly the same for all nodes, so gradients of nodes with one label have
nearly the same direction. The server can group training nodes by label without knowing which label it is.
Groups are scored by purity: the fraction of nodes whose label is the most frequent one of their group. A node
that several clients train on has a gradient from each; they are added up, as the server does.

The first rounds are run again in this process, as many as give MIXTURES mixtures for each feature. The attack
on features uses uploads pooled over clients. With pooling=secure the server has nothing else, and the
protocol gives it these values to within 2^-17; the rounds are then run again with pooling=plaintext
(docs/papers/sapgnn.md).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from graphfed.audit.attacks.least_squares import ridge
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import SERVER_READS, explained, not_measured, sample
from graphfed.audit.transcript import (
    ObservedTransfer,
    Transcript,
    dense_rows,
    features_of,
    keep_payload,
    record_rounds,
)
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.methods.settings import changed, value
from graphfed.nn.maxpool import UPDATES

#: The fraction of nodes whose features the server knows, and the largest number of nodes in the attack.
KNOWN, MAX_NODES = 0.1, 20_000
#: The number of mixtures of a node for each of its features, and the largest number of mixtures.
MIXTURES, MOST_MIXTURES = 4, 2048
#: Singular values below this fraction of the largest one are rounding errors of float32 numbers.
SMALLEST = 1e-5
#: A node is determined by gradients if at most this fraction of it is not; it counts as read if its largest
#: error, relative to the largest feature, is at most CLOSE.
FREE, CLOSE = 1e-6, 1e-3
#: Candidates for the strength of the regression, relative to the mean variance of the uploads.
RIDGES = (1e-8, 1e-4, 1e-2, 1.0, 100.0)
#: The largest number of nodes that are grouped. The distances between them need memory for its square.
MAX_GROUPED = 3000
#: The transfer of the gradients of the last embeddings, for each method.
GRADIENT_TRANSFERS = {"sapgnn": "sapgnn/global_embedding/grad", "ppgnn": "ppgnn/combined_embedding/grad"}


# ---- features ----------------------------------------------------------------------------------------------


def attack_features(audited: AuditedRun) -> Finding:
    """Measure how many nodes' features the server reads, or how much of them it reconstructs."""
    config = audited.config.settings
    if value(config, "maps") == "identity":
        transcript = transcript_of(audited, 1, keep_payload)
        _, rows = nodes_of(transcript)
        return _read(audited, transcript, rows)
    method, hidden = audited.config.method.name, config.network.hidden
    rounds = rounds_used(audited.inputs.task(audited.config.task).num_features, hidden)
    transcript = transcript_of(audited, min(rounds, audited.result.rounds), keep_first_layer)
    cohort = transcript.cohort
    # A batch has a part of the nodes; evaluations have all.
    phase = "train" if value(config, "batch_size") is None else "eval"
    uploads = uploads_of(transcript, f"{method}/local_embedding", phase)
    if not uploads:
        return not_measured("no round was evaluated")
    ids, rows = nodes_of(transcript)
    truth = features_of(cohort, rows)
    place = torch.from_numpy(np.searchsorted(ids, cohort.id.cpu().numpy()))
    chosen = place[rows]
    seen = [_pooled(each.double().cpu(), place, len(ids))[chosen] for each in uploads]
    # At least 2: one to fit the regression, one to select its strength.
    known = torch.arange(len(rows)) < max(2, round(KNOWN * len(rows)))
    known = known[torch.from_numpy(np.random.default_rng(1).permutation(len(rows)))]
    one = explained_variance(seen[0], truth, known)
    # The first `hidden` columns are mixtures of the node's own features, the others maxima over neighbours.
    forms = [seen, [each[:, :hidden] for each in seen]] if method == "sapgnn" else [seen]
    fraction = one
    if len(seen) > 1:
        fraction = best_explained([torch.cat(form, 1) for form in forms], truth, known)
    result = (
        f"a server that knows the features of {int(known.sum())} nodes explains {100 * fraction:.1f} % of "
        f"the variance of the features of the other {int((~known).sum())} nodes, from {len(seen)} "
        f"round{'s' * (len(seen) > 1)} ({100 * one:.1f} % from one): {len(seen) * seen[0].shape[1]} numbers "
        f"for {truth.shape[1]} features"
    )
    verdict = (
        "leaks to a server that knows the features of some nodes; a server without such knowledge does not "
        "know the clients' maps"
        if max(one, fraction) > 0.01
        else "no leak found: this attack explains none of the features"
    )
    details = {
        "known": int(known.sum()),
        "others": int((~known).sum()),
        "rounds": len(seen),
        "one_round": one,
        "mixtures": len(seen) * hidden,
        "features": truth.shape[1],
    }
    read = 0
    if method == "sapgnn" and "sapgnn/local_gradient" in audited.transfers and can_solve(config):
        nodes, read = from_gradients(transcript, hidden, len(seen))
        details |= {"with_gradient": nodes, "read": read}
        result += (
            f". From the clients' gradients it computes, without known features, the features of {read} of "
            f"{nodes} rows that have a gradient, of {cohort.num_rows}"
        )
        if read:
            verdict = "leaks exactly: the server computes features from gradients and does not need to guess"
    return Finding(
        result=result,
        baseline="0 %: the mean of the known nodes",
        verdict=verdict,
        leaks=max(one, fraction) > 0.01 or read > 0,
        value=fraction,
        no_signal=0.0,
        details=details,
    )


def rounds_used(features: int, hidden: int) -> int:
    """Return how many rounds give MIXTURES mixtures for each feature, or MOST_MIXTURES if these are fewer."""
    return max(1, -(-min(MIXTURES * features, MOST_MIXTURES) // hidden))


def keep_first_layer(transfer: ObservedTransfer) -> object:
    """Keep the uploads, and the gradients that the server sends for them."""
    kept = ("/local_embedding", "/local_embedding/grad")
    return transfer.payload if transfer.name.endswith(kept) else None


def nodes_of(transcript: Transcript) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all nodes, ascending, and a row of the cohort for each attacked node."""
    ids, first = np.unique(transcript.cohort.id.cpu().numpy(), return_index=True)
    return ids, first[sample(np.random.default_rng(0), len(ids), MAX_NODES)]


def uploads_of(transcript: Transcript, name: str, phase: str) -> list[torch.Tensor]:
    """Return the first layer's uploads of each round, [N, d] each."""
    first: dict[int, torch.Tensor] = {}
    for transfer in transcript.observed_transfers:
        if (transfer.name, transfer.phase, transfer.to_server) == (name, phase, True):
            # Layers follow one another within a round: the first message is that of the first layer.
            first.setdefault(transfer.round, transfer.payload)
    return [*first.values()]


def _pooled(uploads: torch.Tensor, place: torch.Tensor, count: int) -> torch.Tensor:
    """Take the maximum over the clients of each node; 0 for maxima of nodes without neighbours."""
    pooled = torch.full((count, uploads.shape[1]), -torch.inf, dtype=torch.float64)
    pooled = pooled.scatter_reduce(0, place[:, None].expand_as(uploads), uploads, "amax")
    return pooled.masked_fill(pooled.isneginf(), 0)


def can_solve(config: object) -> bool:
    """Return whether the gradient of the map of a node's own features is linear in the features."""
    options = [value(config, name) for name in ("update", "aggr", "batch_size")]
    return options in (["concat", "max", None], ["sum", "max", None])


def from_gradients(transcript: Transcript, hidden: int, rounds: int) -> tuple[int, int]:
    """Solve each client's gradients of several rounds for the features of its nodes.

    Returns the number of rows that have a gradient, and of those whose features the server computes.
    """
    cohort = transcript.cohort
    last: dict[int, torch.Tensor] = {}
    for transfer in transcript.observed_transfers:
        if transfer.name == "sapgnn/local_embedding/grad" and not transfer.to_server:
            (last[transfer.round],) = transfer.payload  # layers come from the last to the first
    gradients = [last[number][:, :hidden].cpu() for number in sorted(last)[:rounds]]
    total = read = 0
    for client in torch.unique(cohort.client).tolist():
        rows = (cohort.client == client).nonzero()[:, 0].cpu()
        # A node whose gradient is always 0 has no equation.
        rows = rows[torch.stack([g[rows].abs().amax(1) for g in gradients]).amax(0) > 0]
        total += len(rows)
        if not len(rows):
            continue
        x = features_of(cohort, rows.numpy())
        sent = torch.cat([(g[rows].T @ x.to(g)).double() for g in gradients])  # as the client computes it
        read += count_read(torch.cat([g[rows].T for g in gradients]).double(), sent, x)
    return total, read


def count_read(matrix: torch.Tensor, sent: torch.Tensor, x: torch.Tensor) -> int:
    """Solve matrix [m, n] times features [n, F] = sent [m, F]; count determined rows that agree with x."""
    # Equations of rounds with small gradients would be lost among the rounding errors of others.
    size = matrix.norm(dim=1, keepdim=True).clamp(min=1e-30)
    left, values, right = torch.linalg.svd(matrix / size, full_matrices=False)
    large = values > SMALLEST * values[0]
    right = right[large]
    found = right.T @ ((left[:, large].T @ (sent / size)) / values[large, None])
    # A row is determined if its unit vector lies in the span of the solved directions.
    determined = right.square().sum(0) > 1 - FREE
    close = (found - x).abs().amax(1) <= CLOSE * x.abs().amax().clamp(min=1e-30)
    return int((determined & close).sum())


def transcript_of(audited: AuditedRun, rounds: int, keep: Callable[[ObservedTransfer], object]) -> Transcript:
    """Return the messages of set-up and the first rounds, with uploads in plaintext."""
    config = audited.config
    if value(config.settings, "pooling", PLAINTEXT) != PLAINTEXT:
        config = replace(config, settings=changed(config.settings, pooling=PLAINTEXT))
    return record_rounds(config, audited.inputs, rounds=rounds, keep=keep)


def _read(audited: AuditedRun, transcript: Transcript, rows: np.ndarray) -> Finding:
    """Compare the uploads with the features, for identity messages."""
    truth, form = features_of(transcript.cohort, rows), audited.config.settings.form
    if form.aggr == "min" and UPDATES[form.update].odd:
        truth = -truth  # as clients send them
    pooling = "sapgnn/features" if form.update != "tropical" else None
    name, phase = (pooling, "setup") if pooling else ("sapgnn/local_embedding", "train")
    arrived = dense_rows(transcript.first(name, phase).payload, rows)[:, : truth.shape[1]]
    same = ((arrived - truth).abs().amax(1) <= 1e-6 * truth.abs().amax().clamp(min=1)).double()
    fraction = float(same.mean())
    return Finding(
        result=f"the server reads the features of {int(same.sum())} of {len(rows)} nodes "
        f"({100 * fraction:.1f} %)",
        baseline="none: without the uploads the server has no features",
        verdict=SERVER_READS,
        leaks=fraction > 0,
        value=fraction,
        no_signal=0.0,
        details={"nodes": len(rows), "recovered": int(same.sum())},
    )


def explained_variance(seen: torch.Tensor, truth: torch.Tensor, known: torch.Tensor) -> float:
    """Return how much of unknown features [n, F] a ridge regression from uploads [n, d] explains.

    The regression is fitted to the known ones. Returns a fraction from 0 to 1.
    """
    fitted, tested = halves(known)
    _, strength = best_fit(seen, truth, fitted, tested)
    found = ridge(seen[known], truth[known], seen[~known], strength)
    return explained(found, truth[~known], truth[known].mean(0))


def halves(known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Divide the known nodes into those that a regression is fitted to and those that validate it."""
    places = known.nonzero()[:, 0]
    return places[: len(places) // 2], places[len(places) // 2 :]


def best_explained(forms: list[torch.Tensor], truth: torch.Tensor, known: torch.Tensor) -> float:
    """Return `explained_variance` for the form of the uploads that is best on half of the known nodes."""
    best = max(forms, key=lambda form: best_fit(form, truth, *halves(known))[0])
    return explained_variance(best, truth, known)


def best_fit(
    seen: torch.Tensor, truth: torch.Tensor, fitted: torch.Tensor, tested: torch.Tensor
) -> tuple[float, float]:
    """Return how much of the tested rows' features the best of RIDGES explains, and its strength."""

    def fit(strength: float) -> float:
        found = ridge(seen[fitted], truth[fitted], seen[tested], strength)
        return explained(found, truth[tested], truth[fitted].mean(0))

    return max((fit(strength), strength) for strength in RIDGES)


FEATURES = Check(
    name="split_features",
    tests="features, from the uploads of the first layer in several rounds",
    attacker="the server: the uploads, pooled over clients; the features of some nodes, except with "
    "maps=identity; with aggregation=plaintext each client's gradients",
    run=attack_features,
    methods=("sapgnn", "ppgnn"),
)


# ---- labels ------------------------------------------------------------------------------------------------


def attack_labels(audited: AuditedRun) -> Finding:
    """Measure how many training labels the server reads, or how purely it groups training nodes by label."""
    transcript = audited.transcript
    cohort = transcript.cohort
    (gradient,) = transcript.first(GRADIENT_TRANSFERS[audited.config.method.name], "train").payload
    if len(gradient) != cohort.num_rows:
        return not_measured("the gradients of a batch are of a part of the nodes")
    ids, row = torch.unique(cohort.id, return_inverse=True)
    # Nodes that several clients train on have their gradients added up.
    gradient = gradient.new_zeros(len(ids), gradient.shape[1]).index_add(0, row, gradient).double().cpu()
    label = torch.full((len(ids),), -1).scatter_reduce(0, row.cpu(), cohort.y.cpu(), "amax").numpy()
    known = gradient.abs().sum(1) > 0
    rows, label = gradient[known].numpy(), label[known.numpy()]
    classes = cohort.num_classes
    largest_class = np.bincount(label, minlength=classes).max() / len(label)
    if audited.config.settings.predictor.predictor == "server":
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
    # Groups of random directions are a little purer than the largest class; the margin covers that.
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
