"""Lumos: a client's features, from the embeddings that it sends one neighbour.

A client of Lumos has one node. Let client v have the edge to client u in its tree. In every round v sends u
the embedding of the leaf for u. This embedding depends on the features that u sent v, which u knows bit by
bit, and on v's features x_v without noise, which are on another leaf of the same tree. The server sends the
weights to all clients, and dropout follows from the common seed. Each round therefore gives u `hidden`
numbers that are a known function of x_v, a different one in each round. Epsilon covers the bits of features
that v sent. It does not cover these embeddings.

The attacker is u alone; it solves for x_v. If it knows which ReLUs are active, the function is linear in x_v.
It solves a linear least-squares problem within the public bounds that prefers few differences from the public
`unsent_value`, determines the active ReLUs again, and repeats this. The attack succeeds if enough of the
numbers are independent, compared with the number of features and the number of features that differ from the
mean.

Training is run again in this process up to the last round that the attack uses. Without a noise_seed the
noise on features cannot be repeated; it is drawn again from the same distribution. Secure comparisons are
replaced by simulated ones and secure aggregation by a plaintext sum; both give the same values. At most
EQUATIONS numbers are used, from rounds evenly spread over the run. With more features than numbers, a failure
of the attack proves nothing. With three layers u is assumed to know how many edges v has in its tree
(docs/papers/lumos.md).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.attacks.least_squares import bounded
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import OTHER_NOISE, UNPROVEN, explained, not_measured, spread
from graphfed.audit.transcript import all_features, features_of
from graphfed.methods.lumos.client_trees import BitMatrix
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.tree import FUSED_LAYERS, Forest, fused
from graphfed.methods.parts import Network
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.nn.layers import Dropout
from graphfed.random import fold

#: The number of attacked pairs of clients, with few and with many features; and the largest number of
#: equations of one attacker.
PAIRS, FEW_PAIRS, MANY_FEATURES, EQUATIONS = 10, 4, 512, 1600
#: A client's features count as read if the largest error of a feature is below this fraction of the bounds.
CLOSE = 0.05
#: Linearisations with a preference for few differences and then without; steps of ADMM.
STEPS, POLISHING, ITERATIONS = 25, 6, 200
TRANSFER = "lumos/leaf_embeddings"
Weights = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Seen:
    """What S attackers receive in T rounds, each from one client that has the edge to it.

    Attributes:
        forest: The S pairs.
        sent: The attackers' features as the clients received them, [S, F].
        keys: The random key of each round's dropout; None for no dropout.
        embeddings: The embeddings that the attackers receive, [T, S, H].
    """

    forest: Forest
    sent: Tensor
    weights: tuple[Weights, ...]
    keys: tuple[int | None, ...]
    embeddings: Tensor


def overhear(audited: AuditedRun) -> tuple[Seen, Tensor, Tensor]:
    """Train again and record what the attackers receive.

    Returns this; and what they do not have: the features of the attacked clients, [S, F], and the mean over
    all clients, [F].
    """
    again = audited.rerun(plaintext=True, simulated=True)
    config, cohort, state = again.training, again.cohort, again.setup()
    trees = state.prepared.trees.parts[0]
    most = PAIRS if cohort.num_features <= MANY_FEATURES else FEW_PAIRS
    # A fixed seed: an audit of the same run attacks the same pairs.
    pairs = torch.from_numpy(np.random.default_rng(0).permutation(trees.forest.num_pairs)[:most])
    used = rounds_used(audited.result.rounds, config.network.hidden)
    weights, keys, embeddings = [], [], []
    for number in range(1, used[-1] + 1):
        # A round computes embeddings with the weights that it starts from.
        before = state.weights.parts[0]
        with again.exchanges(TRANSFER) as leaves:
            state = again.round(state, number)
        if number in used:
            weights.append({name: w.detach().cpu() for name, w in before.items()})
            keys.append(fold(config.run.seed, "dropout", number) if config.network.dropout else None)
            embeddings.append(leaves[-1].sent.cpu()[pairs])
    # The owner of a leaf sends its embedding to the other client of the pair, which attacks.
    keepers = trees.leaf_owners.cpu()[pairs]
    sent = _bits_of(trees.noised, pairs.tolist()) + trees.unsent_value
    forest = _of_pairs(trees.forest, pairs, keepers)
    seen = Seen(forest, sent, tuple(weights), tuple(keys), torch.stack(embeddings))
    mean = torch.from_numpy(np.asarray(all_features(cohort).mean(0), dtype=np.float64)).flatten()
    return seen, features_of(cohort, keepers.numpy()), mean


def _bits_of(noised: BitMatrix, pairs: list[int]) -> Tensor:
    """Unpack some rows, [S, F]; the whole matrix may not fit into memory."""
    rows = torch.zeros(len(pairs), noised.width)
    for row, pair in zip(rows, pairs, strict=True):
        start, zeros, stop = noised.offsets[2 * pair : 2 * pair + 3].tolist()
        for bits, value in zip((slice(start, zeros), slice(zeros, stop)), noised.values[pair], strict=True):
            row[noised.columns[bits].long().cpu()] = value.cpu()
    return rows


def rounds_used(rounds: int, width: int) -> list[int]:
    """Select rounds, evenly spread over the run, that give at most EQUATIONS numbers together."""
    return spread(range(1, rounds + 1), EQUATIONS // width)


def _of_pairs(forest: Forest, pairs: Tensor, keepers: Tensor) -> Forest:
    """Select some pairs of a forest, each as a tree of its own."""
    exact, noised, parent, root = (ids.cpu() for ids in forest.ids)
    ids = (exact[keepers], noised[pairs], parent[pairs], root[keepers])
    place = torch.arange(len(pairs))
    return Forest(place, forest.workload.cpu()[keepers], place[:0], ids, virtual=True)


# ---- the attack --------------------------------------------------------------------------------------------


def predicted(seen: Seen, number: int, product: Tensor, network: Network) -> Tensor:
    """Compute the embeddings [S, H] of a round from the first layer's product x W [S, H']."""
    weights, key = seen.weights[number], seen.keys[number]
    sent = seen.sent @ weights["layers.0.weight"]
    dropout = None if key is None else Dropout(network.dropout, key)
    leaves = fused(seen.forest, weights, product, sent, network.backbone, network.layers, dropout)
    return leaves.noised


def linearised(seen: Seen, x: Tensor, network: Network) -> tuple[Tensor, Tensor]:
    """Return the derivatives of the embeddings at x [S, F] by the first layer's product, and the residuals.

    Shapes: [S, T, H, H'] and [S, T, H].
    """
    slopes, residuals = [], []
    for number, weights in enumerate(seen.weights):
        # The slopes are those by x W, of width H', and not by x: F may be thousands.
        product = (x.float() @ weights["layers.0.weight"]).requires_grad_()
        found = predicted(seen, number, product, network)
        # Problems are independent, so one backward pass gives the slopes of one number of all of them.
        each = [torch.autograd.grad(h.sum(), product, retain_graph=True)[0] for h in found.unbind(1)]
        slopes.append(torch.stack(each, 1))
        residuals.append(seen.embeddings[number] - found.detach())
    return torch.stack(slopes, 1).double(), torch.stack(residuals, 1).double()


def solve(seen: Seen, config: LumosConfig) -> tuple[Tensor, Tensor]:
    """Solve for the attacked clients' features, [S, F]; count the attackers' independent equations, [S]."""
    first = torch.stack([w["layers.0.weight"] for w in seen.weights]).double()  # [T, F, H]
    # A round's numbers grow with its weights, and so do their rounding errors; rounds are weighted equally.
    scale = torch.tensor([_size(weights) for weights in seen.weights], dtype=torch.float64)
    x = torch.full((len(seen.sent), first.shape[1]), config.encoding.unsent_value, dtype=torch.float64)
    best, smallest = x.clone(), torch.full((len(x),), torch.inf, dtype=torch.float64)
    ranks = torch.zeros(len(x), dtype=torch.int64)
    for step in range(STEPS + POLISHING + 1):
        slopes, residuals = linearised(seen, x, config.network)
        residuals = residuals / scale[:, None]
        error = residuals.flatten(1).norm(dim=1)
        # A later linearisation may fit worse, so the best solution is kept.
        best, smallest = torch.where((error < smallest)[:, None], x, best), torch.minimum(error, smallest)
        for i in range(len(x)):
            # Equations that determine the features need no preference for few differences.
            determined = step >= STEPS and int(ranks[i]) == x.shape[1]
            if step == STEPS + POLISHING or (step >= STEPS and not determined):
                continue
            matrix = torch.einsum("thk,tfk->thf", slopes[i] / scale[:, None, None], first).flatten(0, 1)
            if step == STEPS - 1:
                ranks[i] = _rank(matrix)
            # Later linearisations are more reliable: both penalties fall.
            stay, few = max(1e-8, 10 ** (-1 - 7 * step / STEPS)), 10 ** (-3 - step / STEPS)
            target = residuals[i].flatten() + matrix @ x[i]
            x[i] = bounded(
                matrix,
                target,
                x[i],
                stay=stay,
                few=0.0 if determined else few,
                mean=config.encoding.unsent_value,
                low=config.bounds.feature_low,
                high=config.bounds.feature_high,
                iterations=ITERATIONS,
            )
    return best, ranks


def _size(weights: Weights) -> float:
    """Return the product of the norms of a round's matrices, which its numbers are proportional to."""
    matrices = [w for name, w in weights.items() if name.startswith("layers.") and name.endswith(".weight")]
    return float(torch.stack([w.norm() for w in matrices]).prod())


def _rank(matrix: Tensor) -> int:
    """Return the numerical rank of a matrix of float32 numbers."""
    # The smaller of the two matrices has the same rank.
    gram = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    values = torch.linalg.eigvalsh(gram)
    return int((values > 1e-12 * values[-1]).sum()) if values[-1] > 0 else 0


# ---- the finding -------------------------------------------------------------------------------------------

BASELINE = "0 %: the mean of all clients"


def run(audited: AuditedRun) -> Finding:
    """Measure how many clients' features one neighbour reads, and how much of their variance."""
    config = audited.config.settings
    if not config.trees.virtual_nodes or config.network.layers > FUSED_LAYERS:
        why = f"this attack is for trees with virtual nodes and at most {FUSED_LAYERS} layers"
        return not_measured(why, BASELINE)
    if config.network.layers == 1:
        why = "with one layer the embedding of a leaf depends only on the receiver's features"
        verdict = "no leak: these embeddings say nothing about the sender's features"
        return Finding(why, BASELINE, verdict, False, 0.0, no_signal=0.0)
    seen, truth, mean = overhear(audited)
    if not len(truth):
        return Finding("no client has an edge in its tree", BASELINE, "no leak: no embedding is sent", False)
    found, ranks = solve(seen, config)
    fraction = explained(found, truth, mean)
    close = CLOSE * (config.bounds.feature_high - config.bounds.feature_low)
    read, guessed = (
        int(((guess - truth).abs().amax(1) <= close).sum()) for guess in (found, config.encoding.unsent_value)
    )
    devices, features = truth.shape
    equations = seen.embeddings.shape[0] * seen.embeddings.shape[2]
    rank = float(ranks.double().mean())
    noise = "" if config.noise.noise_seed is not None else OTHER_NOISE
    if read > guessed:
        verdict = (
            "leaks: epsilon covers the features that a client sends, and not the embeddings that it computes "
            "from its features"
        )
    elif fraction > 0.01:
        verdict = (
            "leaks in part: this attack reads no client's features completely; with more rounds or wider "
            "layers it may"
        )
    else:
        verdict = UNPROVEN
    return Finding(
        result=f"one neighbour reads all {features} features of {read} of {devices} clients, and explains "
        f"{100 * fraction:.1f} % of the variance of all clients' features, from {len(seen.weights)} of "
        f"{audited.result.rounds} rounds: {equations} numbers, about {rank:.0f} independent{noise}",
        baseline=f"{guessed} clients by guessing unsent_value for every feature; 0 % by the mean of all "
        "clients",
        verdict=verdict,
        leaks=read > guessed or fraction > 0.01,
        value=fraction,
        no_signal=0.0,
        details={
            "devices": devices,
            "read": read,
            "guessed": guessed,
            "features": features,
            "rounds": len(seen.weights),
            "numbers": equations,
            "rank": rank,
            "same_noise": config.noise.noise_seed is not None,
        },
    )


CHECK = Check(
    name="lumos_features",
    tests="features of a client, from the embeddings that it sends a neighbour",
    attacker="one neighbour, alone: in every round the embedding of its leaf and the weights; the seed of "
    "dropout; the features that it sent itself",
    run=run,
    methods=("lumos",),
    transfers=(TRANSFER,),
    tasks=(CLASSIFICATION, LINK_PREDICTION),
)
