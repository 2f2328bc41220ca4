"""FedGraph: features and embeddings of other clients' nodes, from the rows that a client receives.

From the second layer on a client receives h(u) W / sqrt(D_uu) for nodes u that are neighbours of its own.
With sent_embeddings=all it also receives x_u W / sqrt(D_uu) for the first layer. In evaluations it knows W,
because the server has sent W to all clients.

    embeddings   from one message, h(u) up to its scale, because D_uu is unknown: the shortest vector that W
                 maps to the row. It is unique if W has at most as many rows as columns
    features     the first layer's sum a_u = sum_v Q(u, v) x_v over u and its neighbours at its client is the
                 same in every evaluation; W_t and the first layer's M_t, b_t differ. Hence

                     row_t = relu(tau a_u M_t + tau b_t) W_t,      tau = 1 / sqrt(D_uu)

                 in every round t, for the same unknown tau a_u and tau. For given active ReLUs these
                 equations are linear. The client solves them within bounds with a preference for few entries,
                 determines the active ReLUs again, and repeats this with more weight on the equations and
                 less on its first guess (`least_squares`). If there are more equations than unknowns, it
                 continues by Gauss-Newton steps, each on a random part of the rounds, until the equations
                 fit to rounding; such a solution is the true one. With sent_embeddings=all row_t =
                 tau x_u M_t has no ReLU, and the client solves for x_u

The paper (section 3.3) argues that features are hidden because the receiver does not know Q and because rows
are short. The receiver does not need Q to find the features that occur in the neighbourhood of u, and if u
has no neighbour at its client these are u's features. The rows of many rounds together have more numbers than
x_u.

The first guess is also the baseline: what a client can estimate without any row, from its own nodes that are
neighbours of u and from all its nodes (`guesses`). Pairs of a receiving client and a node are attacked, each
with the rows of this client alone. They are drawn equally from nodes with few and with many neighbours at
their client. At most EQUATIONS numbers of each node are used, or OVERDETERMINED for each unknown if there
are at most FEW_FEATURES features, from evaluations spread over the run. Training is run again in this
process. The attack does not use the rows of training steps (their sampling and dropout follow from the seed,
which all clients know), several clients together, and nodes whose row is sent only once, in the last
prediction (docs/papers/fedgraph.md).
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.attacks import fedgraph_messages as messages
from graphfed.audit.attacks.fedgraph_messages import Opened, Pairs, Seen
from graphfed.audit.attacks.least_squares import bounded, gauss_newton
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.audit.scoring import cosines, interval, not_measured, spread
from graphfed.audit.transcript import all_features
from graphfed.data.seeding import generator

#: The number of attacked pairs in each group of GROUPS, with up to MANY_FEATURES features (fewer with more);
#: and the largest number of equations for a node.
PAIRS, MANY_FEATURES, EQUATIONS = 10, 2000, 400
#: Groups of nodes by their number of neighbours at their own client: at least, at most.
GROUPS = {"0": (0, 0), "1": (1, 1), "2": (2, 2), "3 to 5": (3, 5), "more": (6, 1 << 62)}
#: The number of features up to which the equations are solved by Gauss-Newton steps; the largest number of
#: equations for an unknown then, the number of steps, the fraction of the rounds in a step, and the residual
#: of a solution, relative to the rows, which have rounding errors.
FEW_FEATURES, OVERDETERMINED, NEWTON_STEPS, PART_OF_ROUNDS, FITS = 200, 10, 150, 0.6, 3e-6
#: Linearisations; iterations of the solver for each, and for equations without ReLU.
STEPS, ITERATIONS, LINEAR_ITERATIONS = 12, 50, 200
#: Entries below this fraction of a typical feature are treated as 0.
FEW = 0.1
#: The attack ends if a linearisation fits worse than the best one by this factor.
WORSE = 3.0
#: Precision is computed among the LARGEST entries. A vector counts as read if its error, relative to its
#: length and after the best scaling, is at most CLOSE, and as exact if it is at most EXACT.
LARGEST, CLOSE, EXACT = 10, 0.05, 1e-3
#: Draws of the bootstrap; with fewer than FEWEST nodes nothing is concluded.
DRAWS, FEWEST = 1000, 5


# ---- the attacks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Known:
    """What S receivers know without any row.

    Attributes:
        guess: Their estimate of a_u, or of x_u with sent_embeddings=all, [S, F].
        scale: A typical scale 1 / sqrt(D) of their own nodes, [S].
        most: The largest scale that u can have, given the edges to it that they know, [S].
        low: The smallest possible feature.
    """

    guess: Tensor
    scale: Tensor
    most: Tensor
    low: float


def embeddings(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the shortest vectors [m, H] that a weight [H, H'] maps to the rows [m, H'] of one message.

    They are h(u) up to its scale if the rows of the weight are independent.
    """
    # The pseudo-inverse gives the shortest of all solutions if there are several.
    inverse: Tensor = torch.linalg.pinv(weight.double())
    return rows.double() @ inverse


def solve(seen: Seen, known: Known) -> Tensor:
    """Solve for the first layer's sum a_u of each node, [S, F], from rows of the second layer."""
    first, bias, second = (
        torch.stack([w[name] for w in seen.weights])
        for name in ("layers.0.weight", "layers.0.bias", "layers.1.weight")
    )
    # Rows grow with their round's weights, and so do their rounding errors; rounds are weighted equally.
    second, rows = _normalise(second, seen.rows)
    # [S, F + 1]: tau a_u and tau of each node
    x = torch.stack([_solve_one(rows[:, i], first, bias, second, known, i) for i in range(rows.shape[1])])
    unknowns = x.shape[1]
    if unknowns <= FEW_FEATURES and len(rows) * rows.shape[2] > unknowns:

        def linearise(_: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            h = torch.einsum("sf,tfh->sth", x[:, :-1], first) + x[:, -1, None, None] * bias
            slopes = (h > 0)[..., None] * second
            of_sum = torch.einsum("tfh,sthk->stkf", first, slopes)
            of_tau = torch.einsum("th,sthk->stk", bias, slopes)
            return torch.einsum("sth,thk->stk", h.relu(), second), torch.cat([of_sum, of_tau[..., None]], 3)

        found, residual = gauss_newton(
            linearise,
            rows.transpose(0, 1),
            x,
            tolerance=FITS,
            fraction=PART_OF_ROUNDS,
            iterations=NEWTON_STEPS,
        )
        # A wrong local minimum does not fit to rounding, so only such solutions replace the first ones.
        fits = (residual <= FITS) & (found[:, -1] > 0)
        x = torch.where(fits[:, None], found, x)
    # (tau a_u) / tau
    return x[:, :-1] / x[:, -1:]


def _solve_one(
    rows: Tensor, first: Tensor, bias: Tensor, second: Tensor, known: Known, number: int
) -> Tensor:
    """Solve for tau a_u and tau, [F + 1], of one node.

    Shapes: rows [T, H'], first [T, F, H], bias [T, H], second [T, H, H'].
    """
    width, scale = first.shape[1], known.scale[number]
    guess = known.guess[number] * scale
    # The unknowns are tau a_u and tau; the preference for few entries does not apply to tau.
    x = torch.cat([guess, scale[None]])
    least = torch.cat([torch.full_like(guess, known.low), x.new_tensor([1e-3])])
    most = torch.cat([torch.full_like(guess, torch.inf), known.most[number, None]])
    few = torch.cat([torch.full_like(guess, FEW * float(_typical(guess))), x.new_zeros(1)])
    target = rows.flatten()
    best, smallest = x, torch.inf
    for step in range(STEPS):
        # [T, H]; for these ReLUs the equations are linear in tau a_u and tau, but not in a_u and tau.
        active = (torch.einsum("f,tfh->th", x[:width], first) + x[width] * bias) > 0
        slopes = active[..., None] * second
        of_tau = torch.einsum("th,thk->tk", bias, slopes).flatten()
        matrix = torch.einsum("tfh,thk->tkf", first, slopes).flatten(0, 1)
        matrix = torch.cat([matrix, of_tau[:, None]], 1)
        error = float((matrix @ x - target).norm())
        if error < smallest:
            best, smallest = x, error
        elif error > WORSE * smallest:
            break
        progress = step / (STEPS - 1)
        # First guesses are poor: they count less in every linearisation, and the equations more.
        rho, stay = 10 ** (-1 - 4 * progress), 10 ** (-1 - 6 * progress)
        limits: dict[str, Any] = {"mean": 0.0, "low": least, "high": most, "few": few * rho}
        x = bounded(matrix, target, x, stay=stay, rho=rho, iterations=ITERATIONS, **limits)
    return best


def solve_linear(seen: Seen, known: Known) -> Tensor:
    """Solve for the features of each node, [S, F] up to a scale, from rows of the first layer."""
    first, rows = _normalise(torch.stack([w["layers.0.weight"] for w in seen.weights]), seen.rows)
    guess = (known.guess * known.scale[:, None]).T
    rho = 1e-5
    few = FEW * rho * torch.stack([_typical(column) for column in guess.unbind(1)])
    found = bounded(
        first.transpose(1, 2).flatten(0, 1),
        rows.transpose(1, 2).flatten(0, 1),
        guess,
        stay=1e-7,
        few=few,
        mean=0.0,
        low=known.low,
        high=torch.inf,
        rho=rho,
        iterations=LINEAR_ITERATIONS,
    )
    return (found / known.scale).T


def _normalise(weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Divide weights [T, H, H'] and rows [T, S, H'] by the size of each round's weights."""
    size = weights.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-30)
    return weights / size, rows / size


def _typical(guess: Tensor) -> Tensor:
    """Return the typical size of a nonzero feature, from a guess [F] in which most entries are small."""
    # The mean size, weighted by size: many small entries do not pull it down.
    size: Tensor = guess.square().sum() / guess.abs().sum().clamp(min=1e-30)
    return size


# ---- how well vectors are found ----------------------------------------------------------------------------


def relative_error(found: Tensor, truth: Tensor) -> Tensor:
    """Return the error of rows [m, F] after the best scaling of each, relative to the truth's length, [m]."""
    # The scale of a row is unknown (D_uu), so it is not an error.
    scale = (found * truth).sum(1) / found.square().sum(1).clamp(min=1e-30)
    distance: Tensor = (scale[:, None] * found - truth).norm(dim=1) / truth.norm(dim=1).clamp(min=1e-30)
    return distance


def compare(found: Tensor, tie: Tensor, sums: Tensor, own: Tensor) -> dict[str, np.ndarray]:
    """Compare what was found for each node, [S, F], with the true sums and the node's own features.

    A feature occurs in a node's neighbourhood if it is not 0 in the node's sum. The attacker predicts the
    features that occur by the size of the entries that it found; `tie` [S, F] decides between equal ones.

    Returns figures by name, each [S], NaN if it is not defined. auc: of predicting the features that occur in
    the neighbourhood. precision: among the LARGEST entries. own_auc: of predicting the node's own nonzero
    features. cosine: with the sums. read: 1 if the sums are found up to their scale, else 0.
    """
    occurs, own_occurs = (truth.abs().numpy() > 0 for truth in (sums, own))
    score = _ordered(found.abs().numpy(), tie.abs().numpy())
    count = np.minimum(occurs.sum(1), LARGEST)
    order = np.argsort(-score, axis=1, kind="stable")
    hits = np.take_along_axis(occurs, order, 1).cumsum(1)
    last = np.maximum(count - 1, 0)[:, None]
    precision = np.take_along_axis(hits, last, 1)[:, 0] / np.where(count > 0, count, np.nan)
    return {
        "auc": auc(score, occurs),
        "precision": np.where(occurs.all(1), np.nan, precision),
        "own_auc": auc(score, own_occurs),
        "cosine": cosines(found, sums).clamp(min=0).numpy(),
        "read": (relative_error(found, sums) <= CLOSE).double().numpy(),
    }


def _ordered(score: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Rank the entries of rows [S, F] by score, then by tie; entries equal in both have one rank."""
    ranks = np.empty_like(score)
    for rank, values, then in zip(ranks, score, tie, strict=True):
        _, first = np.unique(values, return_inverse=True)
        _, second = np.unique(then, return_inverse=True)
        # Lexicographic: the score decides, and `tie` between equal scores.
        rank[:] = first * (second.max() + 1.0) + second
    return ranks


def auc(score: np.ndarray, occurs: np.ndarray) -> np.ndarray:
    """Return the AUC of each row of scores [S, F] for the entries that occur, [S, F] bool; or NaN.

    It is the fraction of pairs of an entry that occurs and one that does not where the first has the larger
    score; ties count half.
    """
    from scipy.stats import rankdata

    yes, no = occurs.sum(1).astype(np.float64), (~occurs).sum(1)
    above = (rankdata(score, axis=1) * occurs).sum(1) - yes * (yes + 1) / 2
    pairs = yes * no
    area: np.ndarray = np.where(pairs > 0, above / np.where(pairs > 0, pairs, 1), np.nan)
    return area


# ---- what is attacked --------------------------------------------------------------------------------------


def evaluated(every: int, planned: int, rounds: int) -> list[int]:
    """Return the rounds after which a run of `rounds` of its planned rounds was evaluated."""
    return [n for n in range(1, rounds + 1) if n % every == 0 or n == planned]


def rounds_used(rounds: list[int], width: int, features: int) -> list[int]:
    """Select rounds, evenly spread, with a limited number of numbers together, `width` in each."""
    most = max(EQUATIONS, OVERDETERMINED * features if features < FEW_FEATURES else 0)
    return spread(rounds, most // width)


def drawn(again: Opened, layer: int) -> Tensor:
    """Draw the rows of a layer that are attacked, [S]: up to PAIRS of each of GROUPS."""
    random = generator(0, "audit/fedgraph_embeddings")
    # The work for a pair grows with the number of features.
    count = max(2, PAIRS * MANY_FEATURES // max(again.cohort.num_features, MANY_FEATURES))
    neighbours = local_neighbours(again, again.node[again.sent_rows[layer]])
    chosen = []
    for least, most in GROUPS.values():
        alike = ((neighbours >= least) & (neighbours <= most)).nonzero()[0]
        chosen.append(np.sort(random.permutation(alike)[:count]))
    return torch.from_numpy(np.concatenate(chosen)).to(again.node.device)


def local_neighbours(again: Opened, node: Tensor) -> np.ndarray:
    """Count the neighbours that nodes have at their own client, [S]."""
    neighbours: np.ndarray = (again.graph.num_internal[node] - 1).cpu().numpy()
    return neighbours


def what_is_known(again: Opened, pairs: Pairs, *, own: bool) -> Known:
    """Compute what receivers know without a row; own: whether features are attacked instead of sums."""
    cohort, scale = again.cohort, again.graph.scale.double()
    counts = torch.bincount(cohort.client, minlength=cohort.num_clients)
    typical = torch.zeros(cohort.num_clients, dtype=torch.float64, device=scale.device)
    typical = typical.index_add_(0, cohort.client, scale) / counts.clamp(min=1)
    edges = []
    for receiver, node in zip(pairs.receiver.tolist(), pairs.node.tolist(), strict=True):
        to_node = messages.edges_to(cohort, receiver, node)
        weight = cohort.cross_weight
        edges.append(float(len(to_node) if weight is None else weight[to_node].sum()))
    return Known(
        guess=messages.guesses(again, pairs, own=own),
        scale=typical[pairs.receiver].cpu(),
        most=(1 + torch.tensor(edges, dtype=torch.float64)).rsqrt(),
        low=0.0 if all_features(cohort).min() >= 0 else -torch.inf,
    )


# ---- the finding -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Embeddings:
    """How well the embeddings that enter a layer (numbered from 1) are found from one message.

    Attributes:
        width: The numbers of an embedding.
        sent: The numbers that are sent for it.
        cosine: The mean cosine of what is found with the embeddings that are not 0.
        guess: The same for the mean of the receiver's own embeddings.
        exact: The fraction of embeddings whose relative error is at most EXACT, up to the scale.
    """

    layer: int
    nodes: int
    width: int
    sent: int
    cosine: float
    guess: float
    exact: float

    def __str__(self) -> str:
        exact = f", {100 * self.exact:.0f} % exactly" if self.exact > 0 else ""
        return (
            f"layer {self.layer} ({self.sent} numbers sent for {self.width}) with cosine {self.cosine:.2f}"
            f"{exact}"
        )


def embeddings_by_layer(again: Opened, seen: Seen) -> list[Embeddings]:
    """Solve for the embeddings that enter each layer from the second on, in the last evaluation."""
    found = []
    entering = messages.entering_rows(again, seen)
    for number, layer in enumerate(again.layers):
        # What enters layer 0 are features, which `solve_linear` attacks.
        if number == 0 or number not in again.sent_rows:
            continue
        h, weight = entering[number].double(), seen.weights[-1][f"layers.{number}.weight"]
        requests = again.sent_rows[number]
        truth = h[torch.searchsorted(layer.rows, again.node[requests])].cpu()
        client = again.cohort.client[layer.rows]
        own = h.new_zeros(again.cohort.num_clients, h.shape[1]).index_add_(0, client, h)
        solved = embeddings(seen.last[number].cpu(), weight)
        directed = truth.any(1).numpy()  # a vector of zeros has no direction
        found.append(
            Embeddings(
                layer=number + 1,
                nodes=len(truth),
                width=weight.shape[0],
                sent=weight.shape[1],
                cosine=mean(cosines(solved, truth).numpy()[directed]) or 0.0,
                guess=mean(cosines(own[again.receiver[requests]].cpu(), truth).numpy()[directed]) or 0.0,
                exact=float((relative_error(solved, truth) <= EXACT).double().mean()),
            )
        )
    return found


def run(audited: AuditedRun) -> Finding:
    """Attack the rows that clients receive, and compare with what they know without them."""
    config = audited.config.settings
    if not audited.transfers & {"fedgraph/embeddings", "fedgraph/transformed_features"}:
        why = "these clients send each other no rows of nodes"
        if config.sharing.sent_embeddings == "none":
            why = "with sent_embeddings=none clients send no rows of nodes"
        return Finding(why, "-", "no leak: there are no rows to attack", False, 0.0, no_signal=0.0)
    again = messages.opened(audited)
    if not again.sent_rows:
        few = (
            "no validation node has a neighbour at another client; rows are sent only in the last prediction"
        )
        return not_measured(few)
    layer = min(again.sent_rows)
    linear = layer == 0
    which = drawn(again, layer)
    # Each pair is attacked with the rows of its receiver alone: clients do not collude.
    requests = again.sent_rows[layer][which]
    pairs = Pairs(again.receiver[requests], again.node[requests])
    width = again.state.prepared.widths[layer + 1]
    evaluations = evaluated(config.training.eval_every, config.run.rounds, audited.result.rounds)
    used = rounds_used(evaluations, width, again.cohort.num_features)
    seen = messages.record_rows(again, layer, which, used)
    known = what_is_known(again, pairs, own=linear)
    own = messages.true_sums(again, pairs, own=True)
    sums = own if linear else messages.true_sums(again, pairs, own=False)
    found = solve_linear(seen, known) if linear else solve(seen, known)
    return finding(
        compare(found, known.guess, sums, own),
        compare(known.guess, known.guess, sums, own),
        local_neighbours(again, pairs.node),
        embeddings_by_layer(again, seen),
        {
            "attacked": "features" if linear else "neighbourhoods",
            "clients": len(torch.unique(pairs.receiver)),
            "messages": len(seen.weights),
            "evaluations": len(evaluations),
            "numbers": len(seen.weights) * width,
            "features": sums.shape[1],
        },
    )


def finding(
    found: dict[str, np.ndarray],
    guess: dict[str, np.ndarray],
    neighbours: np.ndarray,
    layers: list[Embeddings],
    facts: dict[str, Any],
) -> Finding:
    """Describe the figures of `compare` for what was found and for the guess.

    `neighbours` [S] are the nodes' numbers of neighbours at their own clients.
    """
    # The AUC is not defined if every feature occurs at every node.
    figure, name = ("auc", "AUC") if mean(found["auc"]) is not None else ("cosine", "cosine")
    value, guessed = mean(found[figure]) or 0.0, mean(guess[figure]) or 0.0
    low, high = bootstrap(found[figure])
    difference = found[figure] - guess[figure]
    # A paired comparison: nodes differ more from one another than the attack from the guess.
    gained = int(np.isfinite(difference).sum()) >= FEWEST and bootstrap(difference)[0] > 0
    read = mean(found["read"]) or 0.0
    gained = gained or found["read"].sum() >= guess["read"].sum() + FEWEST
    groups = by_neighbours(found, guess, neighbours)

    content, more, more_guessed = "their features", "", ""
    if facts["attacked"] != "features":
        content = "the features that occur in their neighbourhood there"
        if "0" in groups and groups["0"][figure] is not None:
            more = f"; for nodes without neighbours there {groups['0'][figure]:.3f}"
        if figure == "auc":
            more += f"; for their own features {mean(found['own_auc']) or 0.0:.3f}"
            more_guessed = f", and {mean(guess['own_auc']) or 0.0:.3f} for their own features,"
    result = (
        f"for {len(neighbours)} nodes of other clients, a client finds {content} with {name} {value:.3f} "
        f"(95 % interval {low:.3f} to {high:.3f}){more}. It uses {facts['messages']} of "
        f"{facts['evaluations']} evaluations ({facts['numbers']} numbers for {facts['features']} features) "
        f"and solves for {100 * read:.0f} % of the nodes, up to a scale"
    )
    baseline = (
        f"{name} {guessed:.3f}{more_guessed} by the features of the client's own nodes that are neighbours"
    )
    if layers:
        result += ". From one message it finds the embeddings that enter "
        result += ", ".join(str(each) for each in layers)
        baseline += "; " + ", ".join(f"layer {each.layer}: cosine {each.guess:.2f}" for each in layers)
        baseline += " by the mean of the client's own embeddings"

    if gained and read > 0.5:
        verdict = "leaks: for most nodes a client computes what enters the first layer"
    elif gained:
        verdict = "leaks: rows of several evaluations show more than a client's own nodes do"
    else:
        verdict = (
            "no leak found: the attack is not better than the guess, which does not prove that there is none"
        )
    exact = [str(each.layer) for each in layers if each.exact > 0.5]
    if exact:
        verdict += f"; a client computes the embeddings that enter layer {' and '.join(exact)}, up to a scale"
    return Finding(
        result=result,
        baseline=baseline,
        verdict=verdict,
        leaks=gained or bool(exact),
        value=value,
        interval=(low, high),
        no_signal=guessed,
        details={
            **facts,
            **with_guess(found, guess),
            "by_neighbours": groups,
            "embeddings": [asdict(each) for each in layers],
        },
    )


def by_neighbours(
    found: dict[str, np.ndarray], guess: dict[str, np.ndarray], neighbours: np.ndarray
) -> dict[str, dict[str, Any]]:
    """Compute the means of the figures for each of GROUPS that has nodes."""
    groups = {}
    for name, (least, most) in GROUPS.items():
        alike = (neighbours >= least) & (neighbours <= most)
        if alike.any():
            parts = ({key: values[alike] for key, values in of.items()} for of in (found, guess))
            groups[name] = {"nodes": int(alike.sum()), **with_guess(*parts)}
    return groups


def with_guess(found: dict[str, np.ndarray], guess: dict[str, np.ndarray]) -> dict[str, float | None]:
    """Compute the mean of each figure, for what was found and for the guess."""
    means = {key: mean(values) for key, values in found.items()}
    return means | {f"{key}_by_guess": mean(values) for key, values in guess.items()}


def mean(values: np.ndarray) -> float | None:
    """Return the mean of the finite values; None if there is none."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def bootstrap(values: np.ndarray) -> tuple[float, float]:
    """Return the 95 % interval of the mean, by a bootstrap over nodes."""
    known = values[np.isfinite(values)]
    random = generator(0, "audit/fedgraph_embeddings/bootstrap")
    means = known[random.integers(len(known), size=(DRAWS, len(known)))].mean(1)
    return interval(means)


CHECK = Check(
    name="fedgraph_embeddings",
    tests="features and embeddings of other clients' nodes, from the rows that clients send each other",
    attacker="each client alone: the rows that it receives in evaluations, and the weights that all clients "
    "receive",
    run=run,
    methods=("fedgraph",),
)
