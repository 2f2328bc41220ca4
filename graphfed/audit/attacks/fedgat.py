"""FedGAT: features of other clients' nodes, which a curious client computes from the message before training.

All attacks use only what the server sends for one node with B neighbours. The notation is that of
docs/papers/fedgat.md:

    vectors   K1 is 1 exactly at a neighbour's key, and K2 has the neighbour's features there. Without K2: M2
              has the features times V_j(t_j), and R_1 has 1 / V_j(t_j)
    matrices  all M2(s) have the same eigenvectors, those of the projectors U_j. They are computed from a
              random combination of the M2(s), which separates the neighbours (the best of several
              combinations is used); h_j(s) is the eigenvalue of M2(s)
    moments   for both forms, with one random b2 and b1 = 0: the power sums F^(n) give the scores x_j by
              Newton's identities and the roots of a polynomial. E^(0) to E^(B - 1) then give the features by
              a linear system. This needs B <= p; the numbers are complex, so that the system is well
              conditioned

The attacks succeed for every choice of U_j, V_j and keys, because the method itself needs the property that
they use. The set-up is run again until the server has the graph in plaintext, and the messages are computed
again. With exchange=encrypted they differ from the run's by the noise of the encryption, which protects
against the server and not against clients. The check runs the first two attacks.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import NO_NEIGHBOUR, sample
from graphfed.audit.transcript import dense_rows
from graphfed.federation.route import RouteTable
from graphfed.methods.fedgat import pretraining
from graphfed.methods.fedgat.client_graphs import kept_edges
from graphfed.methods.fedgat.encrypted_moments import ENCRYPTED
from graphfed.methods.fedgat.moment_messages import Neighbourhoods, Pooled
from graphfed.nn.sparse import SparseMatrix, ranges

#: The numbers of messages that are computed at a time, and the largest number of nodes in the matrix form.
PART, MOST = 1 << 26, 3000
#: The largest error of a recovered feature, relative to the largest feature of the neighbourhood.
TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}


@dataclass(frozen=True, eq=False)
class Message:
    """What a client receives for n nodes with B neighbours each; a node is one of its own neighbours.

    Attributes:
        keys: K1, [n, 2 B].
        sums: K2, [n, 2 B, F].
        scores: M2, [n, 2 B, F], or [n, 2 B, 2 B, F] in the matrix form.
        decoders: R, [n, 2 B, 2 B, p + 1]; None in the matrix form.
    """

    keys: Tensor
    sums: Tensor
    scores: Tensor
    decoders: Tensor | None


@dataclass(frozen=True, eq=False)
class Attacked:
    """The features computed from the messages of n nodes with B neighbours each.

    Attributes:
        members: The neighbours, as numbers of nodes, [n, B].
        apart: Whether each neighbour is at another client than the node, [n, B] bool.
        found: The neighbours' features as computed, in any order, [n, B, F].
    """

    members: Tensor
    apart: Tensor
    found: Tensor


def message_of(pooled: Pooled, rows: Tensor, form: str, degree: int, seed: int) -> Message:
    """Compute the message of some nodes with equally many neighbours."""
    neighbourhoods = pooled.neighbourhoods
    b, starts = int(neighbourhoods.size[rows[0]]), neighbourhoods.size.cumsum(0) - neighbourhoods.size
    # Neighbourhoods of one size, so that their messages are one tensor.
    members = neighbourhoods.member[ranges(starts[rows], neighbourhoods.size[rows])]
    known, place = torch.unique(members, return_inverse=True)
    x = pooled.x.select_rows(known) if isinstance(pooled.x, SparseMatrix) else pooled.x[known]
    x = x.to_dense() if isinstance(x, SparseMatrix) else x
    # Messages are computed for these nodes only; the others are needed for their features.
    part = Neighbourhoods(neighbourhoods.ids[rows], neighbourhoods.size[rows], place)
    (n, width), slots, vectors = (len(rows), x.shape[1]), 2 * b, form == "vector"
    scores = x.new_empty((n, slots, width) if vectors else (n, slots, slots, width))
    sums = x.new_empty(n, slots, 1 + width)
    # Each feature s has its own M1(s), M2(s) and column of K2, so matrices are computed for some at a time.
    step = width if vectors else max(1, PART // (8 * n * slots**2))
    for first in range(0, width, step):
        some = slice(first, first + step)
        k, m, decoders = pretraining.messages_of(Pooled(x[:, some], part), form, degree, seed)
        k, m = k.view(n, slots, -1), m.view(*scores.shape[:-1], -1)
        sums[..., 0] = k[..., 0]
        sums[..., 1:][..., some] = k[..., 1:]
        scores[..., some] = m[..., m.shape[-1] // 2 :]
    return Message(
        keys=sums[..., 0],
        sums=sums[..., 1:],
        scores=scores,
        decoders=None if decoders is None else decoders.view(n, slots, slots, -1),
    )


# ---- the attacks -------------------------------------------------------------------------------------------


def by_keys(message: Message) -> Tensor:
    """Read the neighbours' features, [n, B, F] in any order, from the rows of K2 (vector form)."""
    n, slots, width = message.sums.shape
    return message.sums[message.keys == 1].view(n, slots // 2, width)


def by_decoders(message: Message) -> Tensor:
    """Compute the features without K2, as M2 times the diagonal of R_1 (vector form)."""
    assert message.decoders is not None
    n, slots, width = message.scores.shape
    scaled = message.scores * message.decoders[..., 1].diagonal(dim1=1, dim2=2)[..., None]
    return scaled[message.keys == 1].view(n, slots // 2, width)


def by_eigenvectors(message: Message, draws: int = 4) -> Tensor:
    """Compute the features as eigenvalues of every M2(s) (matrix form).

    Of `draws` random combinations, for each node the one is used whose eigenvectors best diagonalise a
    further combination.
    """
    slots, width = message.scores.shape[2:]
    # The combinations, [draws + 1, n, 2 B, 2 B]; the last one compares the others.
    weights = torch.stack([_draw(seed, width) for seed in range(draws + 1)], 1).to(message.scores)
    *mixed, other = (message.scores @ weights).movedim(-1, 0)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    for matrix in mixed:
        values, vectors = torch.linalg.eig(matrix)
        # There are twice as many slots as neighbours; the other eigenvalues are 0.
        largest = values.abs().argsort(1, descending=True)[:, : slots // 2]
        vectors = vectors.gather(2, largest[:, None].expand(-1, slots, -1))  # [n, 2 B, B]
        dual = torch.linalg.pinv(vectors)
        rest = dual @ other.to(dual.dtype) @ vectors
        rest.diagonal(dim1=1, dim2=2).zero_()
        # Eigenvectors of close eigenvalues are ill-conditioned: they leave the other combination undiagonal.
        off = rest.abs().amax((1, 2))
        if best is not None:
            worse = (off > best[0])[:, None, None]
            vectors, dual = torch.where(worse, best[1], vectors), torch.where(worse, best[2], dual)
            off = torch.minimum(off, best[0])
        best = off, vectors, dual
    assert best is not None
    _, vectors, dual = best
    # h_j(s) is the real part of dual_j M2(s) vector_j, and M2 is real.
    real, imaginary = (
        torch.einsum("nja,nbj->njab", d, v).flatten(2)
        for d, v in ((dual.real, vectors.real), (dual.imag, vectors.imag))
    )
    return (real - imaginary) @ message.scores.flatten(1, 2)


def by_moments(message: Message, draws: int = 16) -> Tensor:
    """Compute the features from power sums (either form); B is at most the degree p of the decoders.

    Of `draws` random b2, for each node the features are used that agree best with the scores that they were
    computed from, x_j = b2 . h_j.
    """
    best: tuple[Tensor, Tensor] | None = None
    for seed in range(draws):
        scores, powers, e, b2 = _power_sums(message, seed)
        features: Tensor = torch.linalg.solve(powers, e)
        off = (scores - (features @ b2[..., None])[..., 0]).abs().amax(1)
        if best is not None:
            features = torch.where((off > best[0])[:, None, None], best[1], features)
            off = torch.minimum(off, best[0])
        best = off, features
    assert best is not None
    return best[1].real


def _power_sums(message: Message, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the power sums of a random b2, all complex.

    Returns the scores x_j [n, B]; their powers x_j^n [n, order, neighbour]; E^(0) to E^(B - 1), [n, order,
    F]; and b2 [n, F], scaled so that scores are at most 1.
    """
    slots, width = message.sums.shape[1:]
    b, kind = slots // 2, torch.complex128
    c = torch.complex(_draw(2 * seed, width), _draw(2 * seed + 1, width)).to(message.sums.device)
    scores, sums = message.scores.to(kind), message.sums.to(kind)
    keys = message.keys.to(kind)
    y = scores @ c
    scale = y.abs().amax(tuple(range(1, y.dim())))
    y = y / scale.view(-1, *[1] * (y.dim() - 1))
    counted = torch.cat([keys[..., None], sums], 2)  # K1 | K2
    moments = []
    if message.decoders is None:
        row = keys[:, None]
        for order in range(b + 1):
            found = row @ counted
            moments.append(found[:, 0] / 2 if order == 0 else found[:, 0])
            row = row @ y
    else:
        decoders = message.decoders.to(kind)
        for order in range(b + 1):
            row = (y**order)[:, None] @ decoders[..., order]
            moments.append((row @ counted)[:, 0])
    # K1 gives the power sums of the scores, K2 the same sums weighted by features.
    f = torch.stack([m[:, 0] for m in moments], 1)  # F^(0) .. F^(B), [n, B + 1]
    e = torch.stack([m[:, 1:] for m in moments[:b]], 1)
    x = _roots(_newton(f))
    powers = x[:, None] ** torch.arange(b, device=x.device)[:, None]
    return x, powers, e, c / scale[:, None]


def _newton(f: Tensor) -> Tensor:
    """Return the coefficients 1, -e_1, e_2, ... [n, B + 1] of prod_j (x - x_j), by Newton's identities.

    The argument has the power sums F^(0) to F^(B), [n, B + 1].
    """
    b = f.shape[1] - 1
    e = [torch.ones_like(f[:, 0])]
    for k in range(1, b + 1):
        terms = [(-1) ** (i - 1) * e[k - i] * f[:, i] for i in range(1, k + 1)]
        e.append(torch.stack(terms).sum(0) / k)
    return torch.stack([(-1) ** k * term for k, term in enumerate(e)], 1)


def _roots(coefficients: Tensor) -> Tensor:
    """Return the roots [n, B] of monic polynomials, as eigenvalues of their companion matrices.

    Coefficients [n, B + 1] begin with that of the highest power.
    """
    n, b = coefficients.shape[0], coefficients.shape[1] - 1
    companion = torch.zeros(n, b, b, dtype=coefficients.dtype, device=coefficients.device)
    companion[:, 0] = -coefficients[:, 1:]
    if b > 1:
        companion[:, torch.arange(1, b), torch.arange(b - 1)] = 1
    roots: Tensor = torch.linalg.eigvals(companion)
    return roots


def _draw(seed: int, count: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(count))


def errors(found: Tensor, truth: Tensor) -> Tensor:
    """Compare each neighbour's features [n, B, F] with the nearest found ones, which are in any order.

    Returns the largest difference of a feature, relative to the largest feature of the neighbourhood, [n, B].
    """
    found, truth = found.double(), truth.double()
    # The attacker knows the set of its neighbours' features; which is whose is not scored.
    nearest = torch.cdist(truth, found).argmin(2)
    closest = found.gather(1, nearest[..., None].expand_as(truth))
    scale = truth.abs().amax((1, 2)).clamp(min=1e-30)
    return (closest - truth).abs().amax(2) / scale[:, None]


def attacked(pooled: Pooled, nodes: RouteTable, form: str, degree: int, seed: int) -> Iterator[Attacked]:
    """Attack the messages of all nodes that have a neighbour at another client, equally large ones at a time.

    In the matrix form at most MOST nodes are attacked.
    """
    neighbourhoods = pooled.neighbourhoods
    client = torch.empty_like(nodes.client).index_copy(0, nodes.index, nodes.client)
    # The vector form shows the features directly, in the rows of K2.
    attack = by_eigenvectors if form == "matrix" else by_keys
    chosen = torch.arange(len(neighbourhoods.ids))
    if form == "matrix":
        chosen = torch.from_numpy(sample(np.random.default_rng(0), len(chosen), MOST))
    starts = neighbourhoods.size.cumsum(0) - neighbourhoods.size
    for b in torch.unique(neighbourhoods.size[chosen]).tolist():
        alike = chosen[neighbourhoods.size[chosen] == b]
        # A message has B^2 numbers for each feature, so large neighbourhoods are attacked a few at a time.
        for rows in torch.split(alike, max(1, PART // (8 * pooled.x.shape[1] * b * b))):
            members = neighbourhoods.member[ranges(starts[rows], neighbourhoods.size[rows])].view(-1, b)
            apart = client[members] != client[rows][:, None]
            if bool(apart.any()):
                yield Attacked(members, apart, attack(message_of(pooled, rows, form, degree, seed)))


# ---- the check ---------------------------------------------------------------------------------------------


def run(audited: AuditedRun) -> Finding:
    """Count the neighbours at other clients whose features a client can compute."""
    again = audited.rerun()
    fed, config = again.fed, again.training
    form, degree, seed = config.exchange.message.form, config.network.scores.degree, config.run.seed
    with fed.phase("setup", round_number=0):
        data = fed.clients.run(kept_edges, again.data, config.exchange.edges, seed)
        route, at_server = pretraining.upload(fed, data, again.task)
    pooled: Pooled = at_server.parts[0]
    elsewhere, recovered, worst = 0, 0, 0.0
    for part in attacked(pooled, fed.table(route).parts[0], form, degree, seed):
        truth = dense_rows(pooled.x, part.members.flatten().numpy())
        off = errors(part.found, truth.view(*part.members.shape, -1))
        exact = (off <= TOLERANCE[pooled.x.dtype]) & part.apart
        elsewhere, recovered = elsewhere + int(part.apart.sum()), recovered + int(exact.sum())
        worst = max(worst, float(off[part.apart].max()))
    fraction = recovered / elsewhere if elsewhere else 0.0
    attacked_nodes = min(MOST, len(pooled.neighbourhoods.ids))
    source = "vectors" if form == "vector" else f"matrices of {attacked_nodes} nodes"
    if recovered:
        verdict = "leaks exactly: clients compute these features and do not need to guess"
    elif elsewhere:
        verdict = "no leak found: this attack computes no features"
    else:
        verdict = f"no leak: {NO_NEIGHBOUR}"
    return Finding(
        result=f"from the {source} in the message, clients compute the features of {recovered} of "
        f"{elsewhere} neighbours at other clients ({100 * fraction:.1f} %); the largest error is {worst:.1e} "
        "of the largest feature",
        baseline="none: without the message a client has no features of other clients' nodes",
        verdict=verdict,
        leaks=recovered > 0,
        value=fraction,
        no_signal=0.0,
        details={"neighbours": elsewhere, "recovered": recovered, "largest_error": worst},
    )


CHECK = Check(
    name="fedgat_features",
    tests="features of other clients' nodes, from the message before training",
    attacker="a curious client: the message that the server sends it",
    run=run,
    methods=("fedgat",),
    transfers=("fedgat/sums", "fedgat/scores"),
    instead=(f"{ENCRYPTED}/products",),
)
