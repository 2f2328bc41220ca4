"""FedGraph: what a client finds out about other clients' nodes from the rows that it gets of them.

From the second layer on a client gets h(u) W / sqrt(D_uu) of nodes u next to its own; with
sent_embeddings=all it gets x_u W / sqrt(D_uu) of the first layer too. In evaluations it knows W: the
server has sent it to all clients.

    embeddings   from one message, h(u) up to its scale, which is unknown as D_uu is: the shortest vector
                 that W takes to the row. W with at most as many rows as columns leaves no other
    features     what the first layer adds up, a_u = sum_v Q(u, v) x_v over u and its neighbours at its own
                 client, is the same in every evaluation, and W_t and the first layer's M_t, b_t are not. So

                     row_t = relu(tau a_u M_t + tau b_t) W_t,      tau = 1 / sqrt(D_uu)

                 in every round t, for the same unknown tau a_u and tau. Once it is guessed which ReLUs are
                 active these equations are linear. The client solves them for few entries, within bounds,
                 guesses the ReLUs again, and goes on, trusting the equations more and its first guess less
                 (`least_squares`). With sent_embeddings=all row_t = tau x_u M_t has no ReLU, and x_u is
                 solved for

The paper (section 3.3) holds that features stay hidden, as the receiver does not know Q and as rows are
short. Q need not be known to find which features occur around u, and where u has no neighbour at its client
these are u's own; and rows of many rounds are together longer than x_u.

The first guess, which is also what the attack is compared with, is what a client has without any row: the
mean of the same sums of its own nodes next to u, and of those of all its nodes. Attacked are pairs of a
receiving client and a node, each with what that client alone gets, drawn from nodes with few and with many
neighbours at their own client alike. At most EQUATIONS numbers of each node are used, from evaluations spread
over the run. Training is run again in this process: nothing is sent to anyone. Not used are the rows of
training steps (with sampling and dropout, which follow from the seed that all clients are told), what several
clients get together, and nodes of which a row crosses once only, in the last prediction."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from graphfed.audit.attacks.fedgraph_messages import (
    Opened,
    Pairs,
    Seen,
    edges_to,
    entering_rows,
    features,
    guesses,
    opened,
    overhear,
    true_sums,
)
from graphfed.audit.attacks.least_squares import bounded
from graphfed.audit.base import AuditedRun, Check, Finding
from graphfed.data.seeding import generator
from graphfed.methods.fedgraph.config import FedGraphConfig

__all__ = ["CHECK", "Known", "compare", "embeddings", "solve", "solve_linear"]

#: Pairs of each number of neighbours that are attacked, fewer where there are more than so many features; and
#: the numbers of each node that are used.
PAIRS, MANY_FEATURES, EQUATIONS = 10, 2000, 400
#: Nodes by how many neighbours they have at their own client: at least, at most.
GROUPS = {"0": (0, 0), "1": (1, 1), "2": (2, 2), "3 to 5": (3, 5), "more": (6, 1 << 62)}
#: How often the ReLUs are guessed; iterations of the solver each time, and for equations that are linear.
STEPS, ITERATIONS, LINEAR_ITERATIONS = 12, 50, 200
#: Less than this share of a typical feature is taken for none.
FEW = 0.1
#: A guess of the ReLUs that fits worse than the best by this factor ends the attack.
WORSE = 3.0
#: The largest of what is found that precision is of; and a vector that is off by less, relative to its
#: length after the best scale, counts as read.
LARGEST, CLOSE, EXACT = 10, 0.05, 1e-3
#: Draws of the bootstrap, and of how few nodes nothing is concluded.
DRAWS, FEWEST = 1000, 5


# ---- the attacks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Known:
    """What S receivers know without any row: guess [S, F] of a_u (of x_u with sent_embeddings=all), a typical
    scale 1 / sqrt(D) of their own nodes [S], and the largest that u can have, with the edges to it that they
    know of, [S]; low: the least that a feature can be."""

    guess: Tensor
    scale: Tensor
    most: Tensor
    low: float


def embeddings(rows: Tensor, weight: Tensor) -> Tensor:
    """The shortest vectors [m, H] that a weight [H, H'] takes to rows [m, H']: h(u) up to its scale, where
    the weight has at most as many rows as columns and these are independent."""
    back: Tensor = torch.linalg.pinv(weight.double())
    return rows.double() @ back


def solve(seen: Seen, known: Known) -> Tensor:
    """What the first layer adds up for each node, [S, F], from rows that enter the second one."""
    first, bias, second = (
        torch.stack([w[name] for w in seen.weights])
        for name in ("layers.0.weight", "layers.0.bias", "layers.1.weight")
    )
    # Rows grow with their round's weights, and so does their rounding: all rounds count alike.
    second, rows = _alike(second, seen.rows)
    return torch.stack([_solve_one(rows[:, i], first, bias, second, known, i) for i in range(rows.shape[1])])


def _solve_one(
    rows: Tensor, first: Tensor, bias: Tensor, second: Tensor, known: Known, number: int
) -> Tensor:
    """a_u [F] of one node; rows [T, H'], first [T, F, H], bias [T, H], second [T, H, H']."""
    width, scale = first.shape[1], known.scale[number]
    guess = known.guess[number] * scale
    # The unknowns are tau a_u and tau; of tau no entry is preferred.
    x = torch.cat([guess, scale[None]])
    least = torch.cat([torch.full_like(guess, known.low), x.new_tensor([1e-3])])
    most = torch.cat([torch.full_like(guess, torch.inf), known.most[number, None]])
    few = torch.cat([torch.full_like(guess, FEW * float(_typical(guess))), x.new_zeros(1)])
    target = rows.flatten()
    best, smallest = x, torch.inf
    for step in range(STEPS):
        active = (torch.einsum("f,tfh->th", x[:width], first) + x[width] * bias) > 0
        slopes = active[..., None] * second
        of_tau = torch.einsum("th,thk->tk", bias, slopes).flatten()
        matrix = torch.einsum("tfh,thk->tkf", first, slopes).flatten(0, 1)
        matrix = torch.cat([matrix, of_tau[:, None]], 1)
        off = float((matrix @ x - target).norm())
        if off < smallest:
            best, smallest = x, off
        elif off > WORSE * smallest:
            break
        progress = step / (STEPS - 1)
        rho, stay = 10 ** (-1 - 4 * progress), 10 ** (-1 - 6 * progress)
        limits: dict[str, Any] = {"mean": 0.0, "low": least, "high": most, "few": few * rho}
        x = bounded(matrix, target, x, stay=stay, rho=rho, iterations=ITERATIONS, **limits)
    return best[:width] / best[width]


def solve_linear(seen: Seen, known: Known) -> Tensor:
    """The features of each node, [S, F], up to a scale of each, from rows that enter the first layer."""
    first, rows = _alike(torch.stack([w["layers.0.weight"] for w in seen.weights]), seen.rows)
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


def _alike(weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Weights [T, H, H'] and what they gave [T, S, H'], both divided by the size of each round's weights."""
    size = weights.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-30)
    return weights / size, rows / size


def _typical(guess: Tensor) -> Tensor:
    """The size of a feature that is there, by a guess [F] in which most are small."""
    size: Tensor = guess.square().sum() / guess.abs().sum().clamp(min=1e-30)
    return size


# ---- how well vectors are found ----------------------------------------------------------------------------


def cosines(found: Tensor, truth: Tensor) -> Tensor:
    """Of rows [m, F], [m]; 0 where one of them is 0."""
    lengths = found.norm(dim=1) * truth.norm(dim=1)
    cosine: Tensor = (found * truth).sum(1) / lengths.clamp(min=1e-30)
    return cosine.clamp(-1, 1)


def off_by(found: Tensor, truth: Tensor) -> Tensor:
    """How far rows [m, F] are from the truth after the best scale of each, relative to its length, [m]."""
    scale = (found * truth).sum(1) / found.square().sum(1).clamp(min=1e-30)
    distance: Tensor = (scale[:, None] * found - truth).norm(dim=1) / truth.norm(dim=1).clamp(min=1e-30)
    return distance


def compare(found: Tensor, tie: Tensor, sums: Tensor, own: Tensor) -> dict[str, np.ndarray]:
    """How well each row [F] of `found` tells a node's features, [S] each; NaN where a figure means nothing.

    auc, precision: of the features that occur in its neighbourhood, those that are not 0 in sums [S, F], by
    the size of the entries and among the LARGEST; own_auc: of the node's own ones, own [S, F]; cosine: with
    the sums; read: whether these are found up to their scale. tie [S, F] decides between equal entries."""
    there, its = (truth.abs().numpy() > 0 for truth in (sums, own))
    score = _ordered(found.abs().numpy(), tie.abs().numpy())
    count = np.minimum(there.sum(1), LARGEST)
    order = np.argsort(-score, axis=1, kind="stable")
    hits = np.take_along_axis(there, order, 1).cumsum(1)
    at = np.maximum(count - 1, 0)[:, None]
    precision = np.take_along_axis(hits, at, 1)[:, 0] / np.where(count > 0, count, np.nan)
    return {
        "auc": auc(score, there),
        "precision": np.where(there.all(1), np.nan, precision),
        "own_auc": auc(score, its),
        "cosine": cosines(found, sums).clamp(min=0).numpy(),
        "read": (off_by(found, sums) <= CLOSE).double().numpy(),
    }


def _ordered(score: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Ranks of rows [S, F] by score, then by tie; what is equal in both has one rank."""
    ranks = np.empty_like(score)
    for rank, values, then in zip(ranks, score, tie, strict=True):
        _, first = np.unique(values, return_inverse=True)
        _, second = np.unique(then, return_inverse=True)
        rank[:] = first * (second.max() + 1.0) + second
    return ranks


def auc(score: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Of each row [S, F], over pairs of an entry that is there (bool) and one that is not, the share where
    the first has the larger score, half of ties; NaN where there is no such pair."""
    from scipy.stats import rankdata

    yes, no = there.sum(1).astype(np.float64), (~there).sum(1)
    above = (rankdata(score, axis=1) * there).sum(1) - yes * (yes + 1) / 2
    pairs = yes * no
    share: np.ndarray = np.where(pairs > 0, above / np.where(pairs > 0, pairs, 1), np.nan)
    return share


# ---- what is attacked --------------------------------------------------------------------------------------


def evaluated(config: FedGraphConfig, rounds: int) -> list[int]:
    """The rounds after which a run of so many was evaluated."""
    return [n for n in range(1, rounds + 1) if n % config.eval_every == 0 or n == config.rounds]


def rounds_used(rounds: list[int], width: int) -> list[int]:
    """Of the rounds, evenly spread ones with at most EQUATIONS numbers together, of `width` each."""
    count = min(len(rounds), max(1, EQUATIONS // width))
    places = np.linspace(0, len(rounds) - 1, count).round().astype(int)
    return [rounds[place] for place in places]


def drawn(again: Opened, layer: int) -> Tensor:
    """Which of the rows that cross for a layer are attacked, [S]: up to PAIRS of each of GROUPS."""
    random = generator(0, "audit/fedgraph_embeddings")
    count = max(2, PAIRS * MANY_FEATURES // max(again.cohort.num_features, MANY_FEATURES))
    neighbours = neighbours_at_home(again, again.node[again.crossing[layer]])
    chosen = []
    for least, most in GROUPS.values():
        alike = ((neighbours >= least) & (neighbours <= most)).nonzero()[0]
        chosen.append(np.sort(random.permutation(alike)[:count]))
    return torch.from_numpy(np.concatenate(chosen)).to(again.node.device)


def neighbours_at_home(again: Opened, node: Tensor) -> np.ndarray:
    """How many neighbours nodes have at their own client, [S]."""
    neighbours: np.ndarray = (again.silo.inner[node] - 1).cpu().numpy()
    return neighbours


def what_is_known(again: Opened, pairs: Pairs, *, own: bool) -> Known:
    """What the receivers have without a row; own: the features of nodes are attacked, and not sums."""
    cohort, scale = again.cohort, again.silo.scale.double()
    counts = torch.bincount(cohort.client, minlength=cohort.num_clients)
    typical = torch.zeros(cohort.num_clients, dtype=torch.float64, device=scale.device)
    typical = typical.index_add_(0, cohort.client, scale) / counts.clamp(min=1)
    edges = []
    for receiver, node in zip(pairs.receiver.tolist(), pairs.node.tolist(), strict=True):
        near = edges_to(cohort, receiver, node)
        edges.append(float(len(near) if cohort.cross_weight is None else cohort.cross_weight[near].sum()))
    return Known(
        guess=guesses(again, pairs, own=own),
        scale=typical[pairs.receiver].cpu(),
        most=(1 + torch.tensor(edges, dtype=torch.float64)).rsqrt(),
        low=0.0 if features(cohort).min() >= 0 else -torch.inf,
    )


# ---- the finding -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Embeddings:
    """How well the embeddings that enter a layer are found from one message: width and sent, of how many
    numbers they are and how many cross; cosine: on average over embeddings that are not 0, and by the mean of
    the receiver's own (guess); exact: the share of all that is off by at most EXACT of its length, up to the
    scale."""

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
            f"layer {self.layer} ({self.sent} numbers for {self.width}) with cosine {self.cosine:.2f}{exact}"
        )


def embeddings_by_layer(again: Opened, seen: Seen) -> list[Embeddings]:
    """Of each layer from the second on, from the last evaluation."""
    found = []
    entering = entering_rows(again, seen)
    for number, layer in enumerate(again.layers):
        if number == 0 or number not in again.crossing:
            continue
        h, weight = entering[number].double(), seen.weights[-1][f"layers.{number}.weight"]
        wants = again.crossing[number]
        truth = h[torch.searchsorted(layer.rows, again.node[wants])].cpu()
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
                guess=mean(cosines(own[again.receiver[wants]].cpu(), truth).numpy()[directed]) or 0.0,
                exact=float((off_by(solved, truth) <= EXACT).double().mean()),
            )
        )
    return found


def run(audited: AuditedRun) -> Finding:
    """What clients find out of embeddings and features elsewhere."""
    config, baseline = audited.config.training, "-"
    assert isinstance(config, FedGraphConfig)
    crossed = {entry.name for entry in audited.ledger.entries}
    if not crossed & {"fedgraph/embeddings", "fedgraph/transformed_features"}:
        return Finding(
            "with sent_embeddings=none no row of a node crosses"
            if config.sent_embeddings == "none"
            else "no row of a node crosses between these clients",
            baseline,
            "no leak in embeddings: there are none",
            False,
            value=0.0,
            no_signal=0.0,
        )
    again = opened(audited)
    if not again.crossing:
        few = "no validation node has a neighbour elsewhere, so rows cross in the last prediction only"
        return Finding(few, baseline, "not measured", None)
    layer = min(again.crossing)
    linear = layer == 0
    which = drawn(again, layer)
    wants = again.crossing[layer][which]
    pairs = Pairs(again.receiver[wants], again.node[wants])
    width = again.state.prepared.widths[layer + 1]
    seen = overhear(again, layer, which, rounds_used(evaluated(config, audited.result.rounds), width))
    known = what_is_known(again, pairs, own=linear)
    own = true_sums(again, pairs, own=True)
    sums = own if linear else true_sums(again, pairs, own=False)
    found = solve_linear(seen, known) if linear else solve(seen, known)
    return finding(
        compare(found, known.guess, sums, own),
        compare(known.guess, known.guess, sums, own),
        neighbours_at_home(again, pairs.node),
        embeddings_by_layer(again, seen),
        {
            "attacked": "features" if linear else "neighbourhoods",
            "clients": len(torch.unique(pairs.receiver)),
            "messages": len(seen.weights),
            "evaluations": len(evaluated(config, audited.result.rounds)),
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
    """The figures of `compare`, [S] each, of what was found and of the guess, in words; neighbours [S]: at
    the nodes' own clients."""
    # Where every feature of every node is there, which ones are is no question.
    figure, name = ("auc", "AUC") if mean(found["auc"]) is not None else ("cosine", "cosine")
    value, guessed = mean(found[figure]) or 0.0, mean(guess[figure]) or 0.0
    low, high = bootstrap(found[figure])
    difference = found[figure] - guess[figure]
    gained = int(np.isfinite(difference).sum()) >= FEWEST and bootstrap(difference)[0] > 0
    read = mean(found["read"]) or 0.0
    groups = by_neighbours(found, guess, neighbours)

    if facts["attacked"] == "features":
        what, more, also = "their features", "", ""
    else:
        what, more, also = "the features that occur in their neighbourhood at their own client", "", ""
        if "0" in groups and groups["0"][figure] is not None:
            more = f"; of those without neighbours there {groups['0'][figure]:.3f}"
        if figure == "auc":
            more += f"; of their own features {mean(found['own_auc']) or 0.0:.3f}"
            also = f", of their own features {mean(guess['own_auc']) or 0.0:.3f},"
    result = (
        f"of {len(neighbours)} nodes elsewhere a client finds {what}, from {facts['messages']} of "
        f"{facts['evaluations']} evaluations ({facts['numbers']} numbers for {facts['features']} features): "
        f"{name} {value:.3f} (95 % interval {low:.3f} to {high:.3f}){more}; "
        f"{100 * read:.0f} % are solved for, up to their scale"
    )
    baseline = f"{name} {guessed:.3f}{also} by what the client's own nodes next to them have"
    if layers:
        result += "; from one message embeddings that enter " + ", ".join(str(each) for each in layers)
        baseline += "; " + ", ".join(f"layer {each.layer}: cosine {each.guess:.2f}" for each in layers)
        baseline += " by the mean embedding of the client's own"

    if gained and read > 0.5:
        verdict = "leaks: of most nodes what enters the first layer is computed, not guessed"
    elif gained:
        verdict = "leaks: rows of several evaluations tell more than a client's own nodes do"
    else:
        verdict = "this attack finds no more than the guess, which does not prove that there is no more"
    exact = [str(each.layer) for each in layers if each.exact > 0.5]
    if exact:
        verdict += f"; embeddings that enter layer {' and '.join(exact)} are solved for, up to their scale"
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
    """The means for nodes of each of GROUPS that has some."""
    groups = {}
    for name, (least, most) in GROUPS.items():
        alike = (neighbours >= least) & (neighbours <= most)
        if alike.any():
            parts = ({key: values[alike] for key, values in of.items()} for of in (found, guess))
            groups[name] = {"nodes": int(alike.sum()), **with_guess(*parts)}
    return groups


def with_guess(found: dict[str, np.ndarray], guess: dict[str, np.ndarray]) -> dict[str, float | None]:
    """The mean of each figure, and the guess's beside it."""
    means = {key: mean(values) for key, values in found.items()}
    return means | {f"{key}_by_guess": mean(values) for key, values in guess.items()}


def mean(values: np.ndarray) -> float | None:
    """Of those that mean something; None where none does."""
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else None


def bootstrap(values: np.ndarray) -> tuple[float, float]:
    """Where the mean lies with 95 % confidence, by drawing nodes again."""
    known = values[np.isfinite(values)]
    random = generator(0, "audit/fedgraph_embeddings/bootstrap")
    means = known[random.integers(len(known), size=(DRAWS, len(known)))].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


CHECK = Check(
    name="fedgraph_embeddings",
    tests="features and embeddings of other clients' nodes, from the rows that cross",
    attacker="each client alone: the rows that it gets in evaluations, and the weights that all clients get",
    run=run,
    methods=("fedgraph",),
)
