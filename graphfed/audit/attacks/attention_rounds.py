"""attention_sums: the features of other clients' nodes, from the scores and sums of all rounds.

A client receives values of the first layer in every round and evaluation. They are computed from the same
features with weights that differ each time. The client knows the weights, its edges and its nodes' scores.

    scores       a_i = att_dst . W x_i for each head: linear in the features x_i, whichever setting protects
                 the sums. d / heads rounds determine d features. After fewer rounds, sparse features that
                 are not negative are the solution with the smallest sum (non-negative least squares)
    one member   the quotient of the two sums is W x_j: linear in x_j, determined by d / (heads H) rounds
    2 to 4       sum_j e_ij [W x_j, 1] = the sums, heads (H + 1) equations a round, with
                 e_ij = exp(LeakyReLU(a_i + att_src . W x_j) - LeakyReLU(a_i)). Levenberg-Marquardt starts
                 near the mean that the quotients give. The equations do not tell the members apart, so the
                 result is the set of their features

With exchange=secure the sums are totals over the other clients, and the same equations hold. With dropout
only evaluations are used, although its draws follow from the seed, which clients know.

Not tried: later layers. The score of node i there depends on the features of i and of all its neighbours, so
it gives equations for nodes at distance two, not linear ones, one for each head and round.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.base import AuditedRun
from graphfed.audit.scoring import count_remote_pairs, largest_errors, rows_of, sample, spread
from graphfed.audit.transcript import ObservedTransfer, features_of
from graphfed.crypto.sharing import decode
from graphfed.data.seeding import generator
from graphfed.federation.cohort import Cohort
from graphfed.methods.attention_sums.attention import SLOPE
from graphfed.methods.attention_sums.config import AttentionSumsConfig
from graphfed.methods.attention_sums.neighbour_sums import Targets
from graphfed.methods.common.pooled_training import Prepared
from graphfed.runs.progress import stages_of

#: The largest error of recovered features, relative to the largest feature of the node: rounding to float32,
#: enlarged where the equations of d / heads rounds are nearly dependent.
TOLERANCE = 1e-2
#: The largest numbers of attacked pairs, of pairs whose sparse features are searched for, of sums over one
#: member, and of sums over each larger number of members.
PAIRS, SPARSE_PAIRS, ALONE, GROUPS = 10_000, 20, 500, 5
#: The largest number of members, and the multiplications that all groups of one size may take.
MEMBERS, WORK = 4, 1e12
#: Starts and iterations of Levenberg-Marquardt; equations for each unknown, and the fewest passes.
STARTS, ITERATIONS, EQUATIONS, PASSES = 6, 30, 3, 20
#: A singular value below this fraction of the largest one is noise of float32.
NOISE = 1e-7
#: Features count as sparse if at most this fraction of a client's own ones is not 0.
SPARSE = 0.2


@dataclass(frozen=True, eq=False)
class Layer:
    """The weights of the first layer in T passes, each head of each pass in P = T * heads rows.

    Attributes:
        weight: W of each head, [P, H, d].
        source: att_src . W, [P, d].
        target: att_dst . W, [P, d].
    """

    weight: Tensor
    source: Tensor
    target: Tensor
    heads: int

    def rows(self, passes: np.ndarray) -> Tensor:
        """Return the rows of some passes."""
        rows: Tensor = (torch.from_numpy(passes)[:, None] * self.heads + torch.arange(self.heads)).flatten()
        return rows

    def select(self, rows: Tensor) -> "Layer":
        return Layer(self.weight[rows], self.source[rows], self.target[rows], self.heads)


@dataclass(frozen=True, eq=False)
class Received:
    """What clients receive in the first layer, in T passes with different weights.

    Attributes:
        pairs: The number of pairs of a client and a node of another client whose edges they know.
        scored: The number of pairs whose scores are sent.
        nodes: The row of the node of each attacked pair, [S].
        scores: Its scores, [T * heads, S].
        groups: The numbers of sums over 1 to MEMBERS members.
        members: The target's row and the members' rows of each attacked sum, by the number of members.
        sums: These sums, by the number of members: [T * heads, H + 1, G].
    """

    cohort: Cohort
    layer: Layer
    pairs: int
    scored: int
    nodes: np.ndarray
    scores: Tensor
    groups: dict[int, int]
    members: dict[int, list[tuple[int, list[int]]]]
    sums: dict[int, Tensor]

    @property
    def passes(self) -> int:
        """T."""
        return len(self.layer.source) // self.layer.heads

    def features(self, rows: Any) -> Tensor:
        """Return the true features of rows, [n, d]."""
        return features_of(self.cohort, np.asarray(rows))


# ---- recording ---------------------------------------------------------------------------------------------


class _FirstLayer:
    """Keeps some rows of the first layer's scores and sums, and its weights, of every pass with new weights.

    With dropout the passes of training are left out.
    """

    def __init__(self, rows: dict[str, Tensor], dropout: bool) -> None:
        self._rows, self._dropout = rows, dropout
        self._weights: dict[str, Tensor] = {}
        self._due: set[str] = set()

    def __call__(self, transfer: ObservedTransfer) -> Any:
        if transfer.name == "model" and not transfer.to_server:
            weights = {n: w.clone() for n, w in transfer.payload.items() if n.startswith("layers.0.")}
            same = bool(self._weights) and all(torch.equal(w, self._weights[n]) for n, w in weights.items())
            new = not same and not (self._dropout and transfer.phase == "train")
            self._due = set(self._rows) if new else set()
            if new:
                self._weights = weights
            return weights if new else None
        if transfer.name not in self._due:
            return None
        # Only the first transfer after new weights: later layers send under the same name.
        self._due.discard(transfer.name)
        return transfer.payload[self._rows[transfer.name]]


_RECEIVED: WeakKeyDictionary[AuditedRun, Received] = WeakKeyDictionary()


def receive(audited: AuditedRun) -> Received:
    """Run a run again, and return what clients received. Two checks use it; the run is repeated once."""
    if audited not in _RECEIVED:
        _RECEIVED[audited] = _receive(audited)
    return _RECEIVED[audited]


def _receive(audited: AuditedRun) -> Received:
    again = audited.rerun()
    config: AttentionSumsConfig = again.training
    prepared: Prepared = again.setup().prepared
    cohort, task = again.cohort, again.task
    targets: Targets = prepared.exchange.targets.parts[0]
    # With exchange=secure the parts on the wire are masked, and only totals can be attacked.
    drawn = generator(0, "audit/attention_sums")
    totals = prepared.exchange.masks is not None

    pairs = sample(drawn, len(targets.wanted.ids), PAIRS)
    by_size: dict[int, list[tuple[list[int], int, list[int]]]] = defaultdict(list)
    for parts, target, members in sums_received(cohort, targets, totals):
        if len(members) <= MEMBERS:
            by_size[len(members)].append((parts, target, sorted(members)))
    d = int(cohort.num_features)
    heads = config.network.attention_heads[0]
    per_pass = heads * ((config.network.hidden if config.network.layers > 1 else task.num_classes) + 1)
    attacked = {
        m: [groups[at] for at in sample(drawn, len(groups), _most(m, d, per_pass))]
        for m, groups in sorted(by_size.items())
    }
    chosen = [group for groups in attacked.values() for group in groups]
    places = torch.tensor([part for parts, _, _ in chosen for part in parts], dtype=torch.int64)
    group = torch.tensor([g for g, (parts, _, _) in enumerate(chosen) for _ in parts], dtype=torch.int64)

    rows = {"attention_sums/scores": torch.from_numpy(pairs), "attention_sums/parts": places}
    stages_of(audited.on_event)("running the rounds again for the features of other clients' nodes")
    weights: list[dict[str, Tensor]] = []
    scores: list[Tensor] = []
    sums: list[Tensor] = []
    for transfer in audited.record(_FirstLayer(rows, config.network.dropout > 0)).observed_transfers:
        if transfer.name == "model":
            weights.append({name: w.double().cpu() for name, w in transfer.payload.items()})
        elif transfer.name == "attention_sums/scores":
            scores.append(transfer.payload.double().cpu().T)
        else:
            part = transfer.payload.cpu()
            total = part.new_zeros(len(chosen), part.shape[1]).index_add(0, group, part)
            sums.append(decode(total, torch.float64) if totals else total.double())
    layer = _layer(weights)
    width = layer.weight.shape[1] + 1
    rows_of_layer = len(layer.source)
    # Nothing is sent where no node has enough neighbours.
    scores = scores or [torch.zeros(rows_of_layer, 0, dtype=torch.float64)]
    sums = sums or [torch.zeros(0, rows_of_layer * width, dtype=torch.float64)]
    # From [G, T * heads * (H + 1)].
    of_groups = torch.cat(sums, 1).view(len(chosen), rows_of_layer, width).permute(1, 2, 0)
    ends = np.cumsum([0, *(len(groups) for groups in attacked.values())])
    return Received(
        cohort=cohort,
        layer=layer,
        pairs=count_remote_pairs(cohort),
        scored=len(targets.wanted.ids),
        nodes=rows_of(cohort, targets.wanted.ids).cpu().numpy()[pairs],
        scores=torch.cat(scores),
        groups={m: len(groups) for m, groups in sorted(by_size.items())},
        members={m: [(target, members) for _, target, members in groups] for m, groups in attacked.items()},
        sums={m: of_groups[..., a:b] for m, a, b in zip(attacked, ends, ends[1:], strict=False)},
    )


def sums_received(
    cohort: Cohort, targets: Targets, totals: bool
) -> Iterator[tuple[list[int], int, set[int]]]:
    """Yield, for each sum that clients read, its parts, its target's row and its members' rows.

    With `totals` they read totals over the other clients.
    """
    parts: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, (row, owner) in enumerate(
        zip(targets.row.tolist(), targets.asked.owner.tolist(), strict=True)
    ):
        parts[row, -1 if totals else owner].append(place)
    members: dict[tuple[int, int], set[int]] = defaultdict(set)
    neighbours = rows_of(cohort, cohort.cross_id).tolist()
    edges = zip(cohort.cross_row.tolist(), cohort.cross_client.tolist(), neighbours, strict=True)
    for row, owner, neighbour in edges:
        members[row, -1 if totals else owner].add(neighbour)
    for key, places in parts.items():
        yield places, key[0], members[key]


def _most(members: int, d: int, per_pass: int) -> int:
    """Return how many sums over a number of members are attacked, so that the work stays bounded."""
    if members == 1:
        return ALONE
    unknowns = members * d
    each = STARTS * ITERATIONS * max(EQUATIONS * unknowns, PASSES * per_pass) * unknowns**2
    return min(GROUPS, int(WORK / each))


def _layer(passes: list[dict[str, Tensor]]) -> Layer:
    """Arrange the weights of all passes head by head."""
    heads, width = passes[0]["layers.0.att_src"].shape
    d = len(passes[0]["layers.0.weight"])
    weight = torch.cat([p["layers.0.weight"].T.reshape(heads, width, d) for p in passes])
    source, target = (
        (weight * torch.cat([p[f"layers.0.{name}"] for p in passes])[..., None]).sum(1)
        for name in ("att_src", "att_dst")
    )
    return Layer(weight, source, target, heads)


# ---- from scores -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FromScores:
    """The features that clients compute from scores: of `recovered` of the attacked pairs.

    `rank` of the equations are independent, for d `features`. With `sparse` the solution with the smallest
    sum was searched for. `largest_error` is that of recovered features, relative to the node's largest
    feature.
    """

    attacked: int
    recovered: int
    equations: int
    rank: int
    features: int
    sparse: bool
    largest_error: float


def attack_scores(received: Received) -> FromScores:
    """Solve the scores of all passes for the features of their nodes."""
    matrix, scores, nodes = received.layer.target, received.scores, received.nodes
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    # Equations beyond the rank repeat others up to rounding.
    rank = int((s > NOISE * s[0]).sum())
    d = matrix.shape[1]
    own = received.features(np.arange(min(received.cohort.num_rows, 1000)))
    # The client judges by its own nodes whether features are sparse.
    sparse = rank < d and bool((own >= 0).all()) and float((own != 0).double().mean()) <= SPARSE
    if sparse:
        nodes = nodes[:SPARSE_PAIRS]
        # Multiplying by u keeps the equations and drops those that are combinations of others.
        independent, sides = s[:rank, None] * vh[:rank], u[:, :rank].T @ scores[:, : len(nodes)]
        found = torch.stack([_sparse(independent, side) for side in sides.T])
    else:
        found = ((scores.T @ u[:, :rank]) / s[:rank]) @ vh[:rank]
    errors = largest_errors(found, received.features(nodes))
    close = errors[errors <= TOLERANCE]
    worst = float(close.max()) if len(close) else 0.0
    return FromScores(len(nodes), len(close), len(matrix), rank, d, sparse, worst)


def _sparse(matrix: Tensor, scores: Tensor) -> Tensor:
    """Find the solution of matrix x = scores without negative entries that has the smallest sum."""
    from scipy.optimize import nnls

    # The last row is the sum, weighted so little that it only selects among the solutions.
    weight = 1e-3 * float(matrix.square().mean().sqrt())
    a, b = matrix.numpy(), scores.numpy()
    x, _ = nnls(np.vstack([a, np.full(a.shape[1], weight)]), np.append(b, 0.0), maxiter=10 * a.shape[1])
    # The weighted sum biases the entries, so those that are not 0 are solved for without it.
    there = np.flatnonzero(x > 1e-2 * x.max(initial=0.0))
    x = np.zeros_like(x)
    x[there] = np.linalg.lstsq(a[:, there], b, rcond=None)[0]
    return torch.from_numpy(x)


# ---- from sums ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FromSums:
    """The features that clients compute from sums over `members` nodes: from `recovered` of the `attacked`.

    `unknowns` are the features of all members. `largest_error` is that of recovered features, relative to the
    node's largest feature.
    """

    members: int
    sums: int
    attacked: int
    recovered: int
    equations: int
    unknowns: int
    largest_error: float


def attack_sums(received: Received, audited: AuditedRun) -> list[FromSums]:
    """Solve sums over 1 to MEMBERS members for the features of the members."""
    found = []
    for m, groups in received.members.items():
        d, equations = received.layer.source.shape[1], received.layer.weight.shape[:2].numel()
        # The quotients of a single member use up the equation of the sum of weights.
        per_pass = equations // received.passes + (m > 1) * received.layer.heads
        # Fewer equations than this leave several solutions, and more of them take time without need.
        needed = max(PASSES, -(-EQUATIONS * m * d // per_pass))
        passes = spread(range(received.passes), needed)
        at = received.layer.rows(np.array(passes))
        layer = received.layer.select(at)
        tried, errors = 0, []
        if len(groups) and len(passes) * per_pass >= m * d:
            stages_of(audited.on_event)(f"solving {len(groups)} sums over {m} nodes of other clients")
            tried = len(groups)
            sums = received.sums[m][at]
            means = group_means(sums, layer)
            for g, (target, members) in enumerate(groups):
                x = means[g, None]
                if m > 1:
                    own = received.features([target])[0]
                    x = solve_group(sums[..., g], layer, layer.target @ own, means[g], m)
                errors.append(_matched(x, received.features(members)))
        close = [error for error in errors if error <= TOLERANCE]
        found.append(
            FromSums(
                m,
                received.groups[m],
                tried,
                len(close),
                len(passes) * per_pass,
                m * d,
                max(close, default=0.0),
            )
        )
    return found


def group_means(sums: Tensor, layer: Layer) -> Tensor:
    """Solve the quotients of sums [P, H + 1, G] for features [G, d]: of one member, or about the mean."""
    # sum_j e_ij W x_j / sum_j e_ij: of a single member W x_j, of several a weighted mean
    quotients = (sums[:, :-1] / sums[:, -1:]).flatten(0, 1)
    means: Tensor = torch.linalg.lstsq(layer.weight.flatten(0, 1), quotients, driver="gelsd").solution.T
    return means


def solve_group(sums: Tensor, layer: Layer, target: Tensor, mean: Tensor, members: int) -> Tensor:
    """Solve the sums [P, H + 1] over the members of a group for their features, [m, d], in no order.

    `target` [P] are the scores of the sums' target, and the starts are near `mean` [d], about the mean of the
    members' features.
    """
    draw = torch.Generator().manual_seed(0)
    # The members are exchangeable, so starts at their mean itself would never separate them.
    best, least = mean.expand(members, -1), torch.inf
    for start in range(1, STARTS + 1):
        away = torch.randn(members, len(mean), generator=draw, dtype=mean.dtype)
        x, cost = _levenberg_marquardt(mean + 0.3 * start * mean.std() * away, sums, layer, target)
        if cost < least:
            best, least = x, cost
        # The equations are fulfilled, so another start cannot find more.
        if least <= 1e-10 * float(sums.square().sum()):
            break
    return best


def _levenberg_marquardt(x: Tensor, sums: Tensor, layer: Layer, target: Tensor) -> tuple[Tensor, float]:
    """Minimise the squared difference between `sums` and those of members with features x [m, d]."""
    damping, (rest, jacobian) = 1e-2, _residual(x, sums, layer, target)
    cost = float(rest.square().sum())
    for _ in range(ITERATIONS):
        # Damping is relative to the mean diagonal, so it has the same meaning for all groups.
        normal, gradient = jacobian.T @ jacobian, jacobian.T @ rest
        scale = float(normal.diagonal().mean())
        while True:
            damped = normal.clone()
            damped.diagonal().add_(damping * scale)
            # A matrix that is not positive definite is a reason for more damping, and not an error.
            factor, fault = torch.linalg.cholesky_ex(damped)
            step = torch.cholesky_solve(gradient[:, None], factor).view_as(x)
            tried, better = x + step, torch.inf
            if not int(fault):
                better = float(_residual(tried, sums, layer, target, slopes=False)[0].square().sum())
            if better < cost:
                break
            damping *= 4
            if damping > 1e6:
                return x, cost
        done = cost - better <= 1e-9 * cost
        x, cost, damping = tried, better, max(damping / 5, 1e-15)
        if done:
            break
        rest, jacobian = _residual(x, sums, layer, target)
    return x, cost


def _residual(
    x: Tensor, sums: Tensor, layer: Layer, target: Tensor, *, slopes: bool = True
) -> tuple[Tensor, Tensor]:
    """Return what the members do not explain of the sums, [E], and the Jacobian of their sums, [E, m * d]."""
    z = torch.einsum("phd,md->pmh", layer.weight, x)
    one = torch.cat([z, torch.ones_like(z[..., :1])], 2)
    score = target[:, None] + layer.source @ x.T
    slope = torch.where(score > 0, 1.0, SLOPE)
    e = (slope * score - torch.where(target > 0, 1.0, SLOPE)[:, None] * target[:, None]).exp()
    rest = (sums - (e[..., None] * one).sum(1)).flatten()
    if not slopes:
        return rest, rest
    jacobian = torch.einsum("pm,pmk,pd->pkmd", e * slope, one, layer.source)
    jacobian[:, :-1] += torch.einsum("pm,phd->phmd", e, layer.weight)
    return rest, jacobian.reshape(len(rest), -1)


def _matched(found: Tensor, truth: Tensor) -> float:
    """Match found features [m, d] with those of the members, and return the largest relative error."""
    from scipy.optimize import linear_sum_assignment

    errors = torch.stack([largest_errors(each.expand_as(truth), truth) for each in found]).numpy()
    return float(errors[linear_sum_assignment(errors)].max())
