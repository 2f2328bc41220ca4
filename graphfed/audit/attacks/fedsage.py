"""FedSage+: features of other clients' nodes, which a client computes from the gradients that it receives.

Every client j compares the neighbours V_p z_v that a client generates for its nodes v with its own nodes; the
closest one is u_j(v, p). The client receives the sum of the gradients of the squared distances,

    2 sum_j sum_v (V_p z_v - x_{u_j(v, p)}) z_v^T

over its nodes v with at least p hidden neighbours. It knows its V_p and z_v and the number of the others. It
computes sum_v y_v z_v^T with y_v = sum_j x_{u_j(v, p)}, and solves for the y_v with the pseudo-inverse of the
matrix Z of rows z_v, whose last column is ones. Of m nodes,

    m <= H + 1   the z_v are linearly independent, and every y_v is exact to rounding
    m > H + 1    the solution of least norm is the projection of the y_v on the columns of Z. No guess that is
                 linear in z_v is closer. It explains a fraction H / (m - 1) of the variance on average even
                 if the features have nothing to do with the z_v
    any m        the mean of the y_v is exact to rounding

With two clients y_v are the features of one node; with more, a sum of one node of every other client.

There is a gradient in every step, for another V_p and the same z_v, and the closest nodes change while V_p is
trained. Hence later steps show more:

    m <= H + 1   the new y_v, so that the client computes more and more nodes (or sums) exactly
    m > H + 1    sum_v (y_v - y'_v) z_v^T, the difference of two steps. If at most H closest nodes have
                 changed, only the z_v of changed nodes lie in the span of its rows, so the client sees which
                 they are, and computes each y_v - y'_v exactly (`changes`)

The differences say nothing about the y_v of nodes that never change. The attacker follows the protocol. The
set-up is run again in this process, and every client attacks the gradients of all steps. The range and the
sparsity of features are not used, so what is not computed here is not shown to be safe. The server is not the
attacker here: it receives more.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

import torch
from torch import Tensor

from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.transcript import Transcript, features_of
from graphfed.federation.cohort import Cohort
from graphfed.methods.fedsage.cross_client import CHUNK, closest_rows, known, rows_of_clients
from graphfed.methods.fedsage.generator import counted, squared_lengths
from graphfed.nn.sparse import SparseMatrix, spmm

#: The largest error of a computed feature, relative to the largest feature of its system.
TOLERANCE = 1e-3
#: The rounding error of a number of a gradient, relative to the largest one.
ROUNDING = 4e-7


@dataclass(frozen=True, eq=False)
class System:
    """What one client receives in one step for one of its generators of features, and the truth.

    Attributes:
        generator: The client and p, which are the same in every step.
        z: [m, H + 1], the embeddings of its nodes with at least p hidden neighbours, with the column of ones.
        matrix: V_p, [F, H + 1].
        gradient: The sum of the others' gradients for V_p, [F, H + 1].
        others: How many they are.
        own: The mean of the client's own features, [F].
        truth: y_v, [m, F]; the client does not have it.
        closest: The nodes whose features y_v adds up, [m, others]; the client does not have it.
    """

    generator: tuple[int, int]
    z: Tensor
    matrix: Tensor
    gradient: Tensor
    others: int
    own: Tensor
    truth: Tensor
    closest: Tensor

    @property
    def moments(self) -> Tensor:
        """The sum of y_v z_v^T, which the client computes, [F, H + 1]."""
        # The gradient is 2 (others V S - sum_v y_v z_v^T), with S = sum_v z_v z_v^T.
        return self.others * self.matrix @ (self.z.t() @ self.z) - self.gradient / 2

    @property
    def rounding(self) -> float:
        """The size of the rounding errors of the moments, as a norm."""
        largest = float(self.gradient.abs().amax())
        return largest * ROUNDING * math.sqrt(self.gradient.numel())


@dataclass(frozen=True)
class Found:
    """What all clients compute of the nodes that are closest to their generated neighbours.

    All but the last five attributes are of the first step.

    Attributes:
        neighbours: Pairs (v, p), generated neighbours that are compared with the others' nodes.
        determined: Those whose client knows that y_v is exact: p has at most H + 1 nodes.
        recovered: Those whose y_v is within the tolerance.
        recovered_without: The same for a guess without gradients: the generated features, or the mean of the
            client's own features, whichever is better.
        largest_error: The largest error of a determined y_v, relative to the largest feature of its system.
        mean_error: The same of the mean of the y_v of a system, over all systems.
        explained: Of the y_v that are not recovered, the fraction of the variance around the mean of their
            system that the solution explains; None if all are recovered.
        explained_without: The same for the better guess without gradients, or 0 if the mean is better.
        vectors_first: The different y_v that are within the tolerance in the first step.
        vectors: The same in all steps together.
        changed: Changes of an y_v that is not determined, from a step to the next.
        differences: Those whose y_v - y'_v the client computes within the tolerance.
    """

    neighbours: int
    determined: int
    recovered: int
    recovered_without: int
    largest_error: float
    mean_error: float
    explained: float | None
    explained_without: float | None
    steps: int = 1
    vectors_first: int = 0
    vectors: int = 0
    changed: int = 0
    differences: int = 0


def solve(z: Tensor, moments: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the y_v of least norm, [m, F], and their mean, [F], from moments [F, H + 1]."""
    # The last column of z is ones, so the last column of the moments is the sum of the y_v.
    return (moments @ torch.linalg.pinv(z)).t(), moments[:, -1] / len(z)


def changes(z: Tensor, difference: Tensor, rounding: float) -> tuple[Tensor, Tensor]:
    """Compute which y_v changed between two steps, [n], and by how much, [n, F]; none if that is unknown.

    `difference` is that of the moments of the steps, [F, H + 1], and `rounding` the norm of its rounding
    errors.
    """
    none = torch.zeros(0, dtype=torch.int64), difference.new_zeros(0, len(difference))
    # The row space is spanned by the z_v of changed nodes; its dimension is how many have changed.
    _, size, directions = torch.linalg.svd(difference, full_matrices=False)
    rank = int((size > rounding).sum())
    # As many changes as columns span everything, so every node would seem changed.
    if not 0 < rank < min(z.shape[1], len(z)):
        return none
    span = directions[:rank]
    # The distance of each z_v from that space, 0 for changed nodes
    distance = (z - z @ span.t() @ span).norm(dim=1) / z.norm(dim=1)
    changed = distance.argsort()[:rank]
    of_changed = z[changed]
    found = difference @ torch.linalg.pinv(of_changed)
    # A wrong selection of nodes leaves a part of the difference unexplained.
    explains = float((found @ of_changed - difference).norm()) <= rounding
    return (changed, found.t()) if explains else none


@dataclass
class _Progress:
    """What the clients have computed up to a step: exact y_v by their closest nodes, and figures of `Found`.

    `before` has the last system of each generator.
    """

    vectors: set[bytes] = field(default_factory=set)
    before: dict[tuple[int, int], System] = field(default_factory=dict)
    steps: int = 0
    changed: int = 0
    differences: int = 0

    def follow(self, systems: Iterable[System]) -> None:
        """Solve the systems of one further step."""
        self.steps += 1
        for system in systems:
            scale = TOLERANCE * float(system.truth.abs().amax().clamp(min=1e-30))
            found, _ = solve(system.z, system.moments)
            exact = (found - system.truth).abs().amax(1) <= scale
            # By the nodes that a vector adds up: the same vector may be found in many steps.
            self.vectors.update(nodes.numpy().tobytes() for nodes in system.closest[exact])
            earlier = self.before.get(system.generator)
            # Systems with fewer nodes are solved in each step without differences.
            if earlier is not None and len(system.z) > system.z.shape[1]:
                truth = system.truth - earlier.truth
                self.changed += int((truth.abs().amax(1) > 0).sum())
                moments = system.moments - earlier.moments
                nodes, found = changes(system.z, moments, system.rounding + earlier.rounding)
                right = (found - truth[nodes]).abs().amax(1) <= scale
                self.differences += int((right & (truth[nodes].abs().amax(1) > 0)).sum())
            self.before[system.generator] = system


def attack_steps(steps: Iterable[list[System]]) -> Found:
    """Solve what clients receive in all steps, and compare the solutions with the truth."""
    progress, first, vectors_first = _Progress(), None, 0
    for systems in steps:
        progress.follow(systems)
        if first is None:
            first, vectors_first = attack_gradients(systems), len(progress.vectors)
    return replace(
        first or attack_gradients([]),
        steps=progress.steps,
        vectors_first=vectors_first,
        vectors=len(progress.vectors),
        changed=progress.changed,
        differences=progress.differences,
    )


def attack_gradients(systems: Iterable[System]) -> Found:
    """Solve what clients receive in one step, and compare the solutions with the truth."""
    total, largest, mean_error = Counter[str](), 0.0, 0.0
    for system in systems:
        found, mean = solve(system.z, system.moments)
        truth, scale = system.truth, float(system.truth.abs().amax().clamp(min=1e-30))
        guesses = {
            "found": found,
            "generated": system.others * system.z @ system.matrix.t(),
            "own": (system.others * system.own).expand_as(truth),
        }
        exact = {name: (y - truth).abs().amax(1) <= TOLERANCE * scale for name, y in guesses.items()}
        left = ~exact["found"]
        total.update({f"{name} exact": float(which.sum()) for name, which in exact.items()})
        guesses["mean"] = truth.mean(0).expand_as(truth)
        total.update({name: float((y - truth)[left].square().sum()) for name, y in guesses.items()})
        total["neighbours"] += len(truth)
        mean_error = max(mean_error, float((mean - truth.mean(0)).abs().amax()) / scale)
        if len(truth) <= system.z.shape[1]:
            total["determined"] += len(truth)
            largest = max(largest, float((found - truth).abs().amax()) / scale)
    # The mean is known exactly, so what is explained is measured around it.
    variance = total["mean"]
    # The baseline is the best of the guesses that need no gradient.
    better = min(total["generated"], total["own"], variance)
    return Found(
        neighbours=int(total["neighbours"]),
        determined=int(total["determined"]),
        recovered=int(total["found exact"]),
        recovered_without=int(max(total["generated exact"], total["own exact"])),
        largest_error=largest,
        mean_error=mean_error,
        explained=1 - total["found"] / variance if variance else None,
        explained_without=1 - better / variance if variance else None,
    )


def received_systems(transcript: Transcript, parts: int) -> Iterator[list[System]]:
    """Yield for each step what every client receives for its generators of features with a node."""

    def received(name: str) -> list[Tensor]:
        return transcript.all(f"fedsage/{name}", "setup", to_server=False)

    cohort = transcript.cohort
    (z,), (client,) = received("all_embeddings"), received("all_rows")
    rows = known(z, client)
    # Only clients with taught nodes have a gradient; it is 0 for others.
    holding = sorted(set(rows.client.tolist()))
    own = {
        k: features_of(cohort, (cohort.client == k).nonzero()[:, 0].cpu().numpy()).mean(0) for k in holding
    }
    compared = counted(rows.counts, parts).cpu()
    for generators, gradients in zip(received("all_generators"), received("feature_gradient"), strict=True):
        systems = []
        for client in holding:
            # Clients without nodes send a gradient of 0.
            others = sorted(set(cohort.client.tolist()) - {client})
            if not others:
                continue
            nodes = (rows.client == client).nonzero()[:, 0]
            z, generator = rows.z[nodes], generators[client].double()
            closest = closest_nodes(cohort, z, generator, parts)[:, :, others]
            z, matrix, gradient = z.cpu(), generator.cpu(), gradients[client].double().cpu()
            matrix, gradient = (g.view(-1, parts, z.shape[1]) for g in (matrix, gradient))
            for p in range(parts):
                v = compared[nodes.cpu(), p].nonzero()[:, 0]
                if len(v):
                    chosen = closest[v, p]
                    truth = torch.stack([features_of(cohort, k.numpy()) for k in chosen.t()]).sum(0)
                    systems.append(
                        System(
                            generator=(client, p),
                            z=z[v],
                            matrix=matrix[:, p],
                            gradient=gradient[:, p],
                            others=len(others),
                            own=own[client],
                            truth=truth,
                            closest=chosen,
                        )
                    )
        yield systems


def closest_nodes(cohort: Cohort, z: Tensor, generator: Tensor, parts: int) -> Tensor:
    """Find the row of every client's node that is closest to each generated neighbour, [m, P, K].

    The neighbours are generated from z [m, H + 1] by V of the nodes' client, [F, P * (H + 1)].
    """
    assert cohort.x is not None
    x = cohort.x.to(dtype=torch.float64)
    products = spmm(x, generator) if isinstance(x, SparseMatrix) else x @ generator
    products = products.view(-1, parts, z.shape[1])
    members, lengths = rows_of_clients(cohort.client, cohort.num_clients), squared_lengths(x)
    step = max(1, CHUNK // products[..., 0].numel())
    return torch.cat([closest_rows(some, products, lengths, members) for some in torch.split(z, step)]).cpu()


def run(audited: AuditedRun) -> Finding:
    """Count the closest nodes whose features clients compute, and measure what they compute of the others."""
    transcript = audited.transcript
    found = attack_steps(received_systems(transcript, audited.config.settings.exchange.generated))
    if not found.neighbours:
        result = "no client has a node with a hidden neighbour"
        return Finding(result, "none", "no leak: the gradients are 0", False)
    count, without = found.neighbours, found.recovered_without
    closest, what = (
        ("the features of the other client's closest node", "these features")
        if transcript.cohort.num_clients == 2
        else ("the sum over the other clients of the features of their closest nodes", "these sums")
    )
    remaining = guess = ""
    if found.explained is not None:
        remaining = (
            f"; for the others, the solution of least norm explains {100 * found.explained:.1f} % of the "
            "variance around their mean"
        )
        guess = f", and {100 * (found.explained_without or 0.0):.1f} % of the variance"
    later = ""
    if found.steps > 1:
        later = (
            f". From all {found.steps} steps they compute {found.vectors} different vectors exactly, from "
            f"the first one {found.vectors_first}"
        )
        if found.changed:
            later += (
                f"; of {found.changed} changes of a closest node between steps that one step does not "
                f"determine, they compute the difference of the features exactly for {found.differences}"
            )
    mean_exact = found.mean_error <= TOLERANCE
    return Finding(
        result=f"from the gradients of the first step, clients compute {closest} for {found.recovered} of "
        f"{count} generated neighbours ({100 * found.recovered / count:.1f} %){remaining}. They compute the "
        f"mean with an error of at most {found.mean_error:.0e} of the largest feature{later}",
        baseline=f"{without} of {count}{guess}: the generated features, or the mean of a client's own nodes",
        verdict=_verdict(found, mean_exact, what),
        leaks=mean_exact or found.recovered > without or found.differences > 0 or _is_better(found),
        value=found.recovered / count,
        no_signal=without / count,
        details={name: value for name, value in asdict(found).items() if value is not None},
    )


def _is_better(found: Found) -> bool:
    """Return whether the solution of least norm explains more than a guess without gradients."""
    return found.explained is not None and found.explained > (found.explained_without or 0.0) + 0.01


def _verdict(found: Found, mean_exact: bool, what: str) -> str:
    if found.recovered > found.recovered_without:
        return f"leaks exactly: clients compute {what} and do not need to guess"
    if found.differences:
        return (
            f"leaks exactly: clients compute differences of {what} between steps, and not {what} themselves"
        )
    if _is_better(found):
        return f"leaks in part: clients guess {what} better than without the gradients"
    if mean_exact:
        return f"leaks the mean of {what}; this attack finds no more"
    return "no leak found: this attack computes nothing from the gradients"


CHECK = Check(
    name="fedsage_gradients",
    tests="features of other clients' nodes, from the gradients for generators of missing neighbours",
    attacker="a client that follows the protocol: its embeddings and generators, and the sums of the other "
    "clients' gradients that it receives",
    run=run,
    methods=("fedsage_plus",),
    transfers=("fedsage/feature_gradient",),
)
