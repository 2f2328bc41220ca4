"""Lumos: a device's features, from the embeddings that one neighbour gets.

Device v keeps device u. In every round v sends u the embedding of the leaf that stands for u in v's tree. It
comes from two things: what u sent v of its own features, which u knows bit by bit, and v's features x_v as
they are, on the leaf beside it. The weights are broadcast; dropout follows from the shared seed. So a round
gives u `hidden` numbers that are a known function of x_v, another one in each round. Epsilon covers the bits
of features that v sent; it does not cover these.

The attacker here is u, alone: it solves for x_v. Where it has guessed right which ReLUs are open, the
function is linear in x_v. So it solves a linear least-squares problem within the public bounds, with few
deviations from the public `unsent_value` preferred, guesses the ReLUs again, and goes on. What decides is how
many of the numbers are independent, against how many features there are and how many are not the mean.

Training is run again in this process, up to the last round that is used: nothing is sent to anyone. Without
a noise_seed the noise on the features cannot be drawn again; it is drawn anew, by the same law. Secure
comparisons are replaced by simulated ones and secure aggregation by a sum in clear, which come to the same.
At most EQUATIONS numbers are used, from rounds evenly spread over the run; where there are more features, a
failure proves nothing. With three layers u is taken to know how many neighbours v keeps."""

from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.attacks.least_squares import bounded
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.prepared_data import prepared_data
from graphfed.audit.transcript import dense_rows
from graphfed.federation import Federation, Located
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.federation.transfer import Options
from graphfed.methods.lumos.bit_matrix import BitMatrix
from graphfed.methods.lumos.config import LumosConfig
from graphfed.methods.lumos.tree import FUSED_LAYERS, Forest, fused
from graphfed.methods.tasks import CLASSIFICATION, LINK_PREDICTION
from graphfed.nn.layers import Dropout
from graphfed.nn.sparse import SparseMatrix
from graphfed.random import fold

__all__ = ["CHECK", "Seen", "overhear", "solve"]

#: Pairs of devices that are looked at, fewer where there are more than so many features; and the numbers that
#: one attacker uses.
PAIRS, FEW_PAIRS, MANY_FEATURES, EQUATIONS = 10, 4, 512, 1600
#: A device counts as read where every feature is as close to the truth as this, relative to the bounds.
CLOSE = 0.05
#: How often the ReLUs are guessed again, with a preference among what fits and then without; steps of ADMM.
STEPS, POLISHING, ITERATIONS = 25, 6, 200
TRANSFER = "lumos/leaf_embeddings"
Weights = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Seen:
    """What S attackers have, each of one device that keeps it, from T rounds.

    forest: the S pairs; sent [S, F]: the attackers' features as they arrived; weights: of each round;
    keys: of its dropout; embeddings [T, S, H]: what was sent to the attackers."""

    forest: Forest
    sent: Tensor
    weights: tuple[Weights, ...]
    keys: tuple[int | None, ...]
    embeddings: Tensor


class _Listening(Federation):
    """All clients in one cohort; keeps the leaves' embeddings that crossed last, [P, H] in senders' order."""

    def __init__(self, num_clients: int, device: str) -> None:
        super().__init__([tuple(range(num_clients))], device=device, simulated=True)
        self.leaves = torch.empty(0)

    def exchange(self, x: Located, route: ExchangeRoute, **options: Unpack[Options]) -> Located:
        if options["name"] == TRANSFER:
            self.leaves = x.parts[0].detach()
        return super().exchange(x, route, **options)


def overhear(audited: AuditedRun) -> tuple[Seen, Tensor, Tensor]:
    """Train again and keep what the attackers get; also what they do not have: their neighbours' features
    [S, F], and the mean over all devices [F]."""
    config = audited.config
    assert isinstance(config.training, LumosConfig)
    training = replace(config.training, aggregation=PLAINTEXT)
    fed = _Listening(audited.inputs.clients_of(config.method), config.device)
    data, task = prepared_data(fed, config, audited.inputs)
    cohort = data.parts[0]
    with fed.phase("setup", round_number=0):
        state = config.method.setup(fed, data, task, training)
    trees = state.prepared.trees.parts[0]
    pairs = np.random.default_rng(0).permutation(trees.forest.num_pairs)
    pairs = pairs[: PAIRS if cohort.num_features <= MANY_FEATURES else FEW_PAIRS]
    used = rounds_used(audited.result.rounds, training.hidden)
    weights, keys, embeddings = [], [], []
    for number in range(1, used[-1] + 1):
        before = state.weights.parts[0]
        with fed.phase("train", round_number=number):
            state = config.method.round(fed, state, training, number)
        if number in used:
            weights.append({name: w.detach().cpu() for name, w in before.items()})
            keys.append(fold(training.seed, "dropout", number) if training.dropout else None)
            embeddings.append(fed.leaves[torch.from_numpy(pairs).to(fed.leaves.device)].cpu())
    keepers = trees.leaf_owners.cpu()[torch.from_numpy(pairs)]
    sent = _bits_of(trees.noised, pairs.tolist()) + trees.unsent_value
    forest = _of_pairs(trees.forest, torch.from_numpy(pairs), keepers)
    seen = Seen(forest, sent, tuple(weights), tuple(keys), torch.stack(embeddings))
    x = cohort.x.to_scipy() if isinstance(cohort.x, SparseMatrix) else cohort.x.cpu().numpy()
    mean = torch.from_numpy(np.asarray(x.mean(0), dtype=np.float64)).flatten()
    return seen, dense_rows(cohort.x, keepers.numpy()), mean


def _bits_of(noised: BitMatrix, pairs: list[int]) -> Tensor:
    """Some rows [S, F]; the whole matrix may not fit into memory."""
    rows = torch.zeros(len(pairs), noised.width)
    for row, pair in zip(rows, pairs, strict=True):
        start, zeros, stop = noised.offsets[2 * pair : 2 * pair + 3].tolist()
        for bits, value in zip((slice(start, zeros), slice(zeros, stop)), noised.values[pair], strict=True):
            row[noised.columns[bits].long().cpu()] = value.cpu()
    return rows


def rounds_used(rounds: int, width: int) -> list[int]:
    """Numbers of rounds, evenly spread, that give at most EQUATIONS numbers together."""
    count = max(1, min(rounds, EQUATIONS // width))
    return sorted({round(1 + k * (rounds - 1) / max(1, count - 1)) for k in range(count)})


def _of_pairs(forest: Forest, pairs: Tensor, keepers: Tensor) -> Forest:
    """Some pairs of a forest, each at a device of its own."""
    own, noised, parent, root = (ids.cpu() for ids in forest.ids)
    ids = (own[keepers], noised[pairs], parent[pairs], root[keepers])
    place = torch.arange(len(pairs))
    return Forest(place, forest.workload.cpu()[keepers], place[:0], ids, virtual=True)


# ---- the attack --------------------------------------------------------------------------------------------


def predicted(seen: Seen, number: int, product: Tensor, config: LumosConfig) -> Tensor:
    """The embeddings [S, H] of a round, from what its first layer makes of the features, x W [S, H']."""
    weights, key = seen.weights[number], seen.keys[number]
    sent = seen.sent @ weights["layers.0.weight"]
    dropout = None if key is None else Dropout(config.dropout, key)
    leaves = fused(seen.forest, weights, product, sent, config.backbone, config.layers, dropout)
    return leaves.noised


def linearised(seen: Seen, x: Tensor, config: LumosConfig) -> tuple[Tensor, Tensor]:
    """At x [S, F]: how the embeddings change with the first layer's product, [S, T, H, H'], and what they are
    short of, [S, T, H]."""
    slopes, short = [], []
    for number, weights in enumerate(seen.weights):
        product = (x.float() @ weights["layers.0.weight"]).requires_grad_()
        there = predicted(seen, number, product, config)
        each = [torch.autograd.grad(h.sum(), product, retain_graph=True)[0] for h in there.unbind(1)]
        slopes.append(torch.stack(each, 1))
        short.append(seen.embeddings[number] - there.detach())
    return torch.stack(slopes, 1).double(), torch.stack(short, 1).double()


def solve(seen: Seen, config: LumosConfig) -> tuple[Tensor, Tensor]:
    """The features [S, F] that the attackers find, and how many of each one's numbers are independent [S]."""
    first = torch.stack([w["layers.0.weight"] for w in seen.weights]).double()  # [T, F, H]
    # A round's numbers grow with its weights, and so does their rounding: each counts alike.
    scale = torch.tensor([_size(weights) for weights in seen.weights], dtype=torch.float64)
    x = torch.full((len(seen.sent), first.shape[1]), config.unsent_value, dtype=torch.float64)
    best, least = x.clone(), torch.full((len(x),), torch.inf, dtype=torch.float64)
    ranks = torch.zeros(len(x), dtype=torch.int64)
    for step in range(STEPS + POLISHING + 1):
        slopes, short = linearised(seen, x, config)
        short = short / scale[:, None]
        left = short.flatten(1).norm(dim=1)
        best, least = torch.where((left < least)[:, None], x, best), torch.minimum(left, least)
        for i in range(len(x)):
            # Numbers that determine the features need no preference among those that fit.
            determined = step >= STEPS and int(ranks[i]) == x.shape[1]
            if step == STEPS + POLISHING or (step >= STEPS and not determined):
                continue
            matrix = torch.einsum("thk,tfk->thf", slopes[i] / scale[:, None, None], first).flatten(0, 1)
            if step == STEPS - 1:
                ranks[i] = _rank(matrix)
            # Trust in the guessed ReLUs grows, and the stop_request for few deviations falls.
            stay, few = max(1e-8, 10 ** (-1 - 7 * step / STEPS)), 10 ** (-3 - step / STEPS)
            target = short[i].flatten() + matrix @ x[i]
            x[i] = bounded(
                matrix,
                target,
                x[i],
                stay=stay,
                few=0.0 if determined else few,
                mean=config.unsent_value,
                low=config.feature_low,
                high=config.feature_high,
                iterations=ITERATIONS,
            )
    return best, ranks


def _size(weights: Weights) -> float:
    """How large a round's numbers can get, up to a factor: by the weights of its layers."""
    matrices = [w for name, w in weights.items() if name.startswith("layers.") and name.endswith(".weight")]
    return float(torch.stack([w.norm() for w in matrices]).prod())


def _rank(matrix: Tensor) -> int:
    """As many independent rows as float32 tells apart."""
    gram = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
    values = torch.linalg.eigvalsh(gram)
    return int((values > 1e-12 * values[-1]).sum()) if values[-1] > 0 else 0


# ---- the finding -------------------------------------------------------------------------------------------

BASELINE = "0 %: the mean of all devices"


def run(audited: AuditedRun) -> Finding:
    """How many devices' features one neighbour reads, and how much of them."""
    training = audited.config.training
    assert isinstance(training, LumosConfig)
    if not training.virtual_nodes or training.layers > FUSED_LAYERS:
        return Finding(
            f"this attack is made for trees with virtual nodes and up to {FUSED_LAYERS} layers",
            BASELINE,
            "not measured",
            None,
        )
    if training.layers == 1:
        return Finding(
            "with one layer a leaf's embedding comes from the receiver's own features only",
            BASELINE,
            "no leak in these embeddings",
            False,
            value=0.0,
            no_signal=0.0,
        )
    seen, truth, mean = overhear(audited)
    if not len(truth):
        return Finding("no device keeps a neighbour", BASELINE, "no embedding is sent", False)
    found, ranks = solve(seen, training)
    wrong = found - truth
    share = max(0.0, 1 - float((wrong**2).sum() / ((truth - mean) ** 2).sum().clamp(min=1e-30)))
    close = CLOSE * (training.feature_high - training.feature_low)
    read = int((wrong.abs().amax(1) <= close).sum())
    guessed = int(((truth - training.unsent_value).abs().amax(1) <= close).sum())
    devices, features = truth.shape
    equations = seen.embeddings.shape[0] * seen.embeddings.shape[2]
    rank = float(ranks.double().mean())
    drawn = "" if training.noise_seed is not None else "; noise drawn anew by the same law"
    return Finding(
        result=f"one neighbour reads all {features} features of {read} of {devices} devices, and "
        f"{100 * share:.1f} % of the variance of all of them, from {len(seen.weights)} of "
        f"{audited.result.rounds} rounds: {equations} numbers, about {rank:.0f} independent{drawn}",
        baseline=f"{guessed} devices by guessing unsent_value; 0 % by the mean of all devices",
        verdict="leaks: epsilon covers the features that a device sends, and not the embeddings that it "
        "computes from them"
        if read > guessed
        else "leaks in part: no device is read whole by this attack; more rounds or larger layers may do"
        if share > 0.01
        else "this attack reads nothing, which does not prove that there is nothing to read",
        leaks=read > guessed or share > 0.01,
        value=share,
        no_signal=0.0,
        details={
            "devices": devices,
            "read": read,
            "guessed": guessed,
            "features": features,
            "rounds": len(seen.weights),
            "numbers": equations,
            "rank": rank,
            "same_noise": training.noise_seed is not None,
        },
    )


CHECK = Check(
    name="lumos_features",
    tests="features of a device, from the embeddings that a neighbour gets",
    attacker="one neighbour that a device keeps: its leaf's embedding and the weights of every round; the "
    "seed of dropout; what it sent itself",
    run=run,
    methods=("lumos",),
    transfers=(TRANSFER,),
    tasks=(CLASSIFICATION, LINK_PREDICTION),
)
