"""The time of a round (ours): its modelled duration, and the balanced policy, with which every client draws
as many training nodes as it can within the same time.

The paper measures time. The modelled duration does not depend on the machine (docs/papers/fedgraph.md,
"Modelled time").

A round lasts as long as its slowest client, so time that a faster client leaves unused costs nothing to use.
The server measures each client's seconds in a few rounds with different sizes of the mini-batches, fits a
linear model of them, and solves it for the mini-batches that fit in a round of a given duration. Without a
given one it also chooses the duration, and others send fewer requests to a client that is too slow to answer
all. All other neighbours are kept.

    docs/papers/fedgraph.md, "Ours: balance the            here
    clients' times"
    n_k, N                                                 counts, their sum
    s_k, the fraction of its training nodes                fractions
    u, the fraction of all training nodes                  `drawn_fraction`
    t_k, a client's seconds in a round                     seconds
    b_k, o_k, a_k                                          `TimeModel.base`, `own`, `answers`
    q_k, the probability of a request to a client          requests
    T                                                      duration
    v_0, w_0                                               `NOISE`, `OMISSION`

A client's seconds depend on its own mini-batch and, because it answers requests for embeddings, on those of
all others. The model has the second part in one number u, so that it follows from the seconds alone: the
clients send nothing that they do not send without this policy.
"""

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from graphfed.methods.fedgraph.client_graphs import ClientGraph, Layer, fraction_of
from graphfed.methods.fedgraph.config import ModelledTime
from graphfed.random import fold, uniform

#: Operations of a step of Adam for one weight.
STEP_OPERATIONS = 10

#: The rounds whose seconds are used: four with planned fractions, and four with the solution so far.
PLANNED_ROUNDS, MEASURED_ROUNDS = 4, 8
#: How often each of them is repeated if its seconds are of a clock. The median counts, so that neither the
#: first round of a process, which takes longer, nor a single disturbance of a machine decides.
REPEATS = 3
#: The fractions of its training nodes that every client draws in the first rounds, if no duration is given.
FIRST_FRACTIONS = (1.0, 0.1)
#: How the number of rounds to a target grows if less is drawn, and if requests are omitted (`best_balance`).
#: Chosen on validation nodes of seeds that no result uses.
NOISE, OMISSION = 0.1, 0.5
#: The durations that are compared.
DURATIONS = 32
#: The weight of `PRIOR_OVERLAP`, and of own nodes that cost as much as answers, in units of the relative
#: residuals. Few measured rounds do not decide these.
PRIOR, PRIOR_OVERLAP = 0.01, 4.0
#: Halvings of the interval of u, from a length of at most 1.
BISECTIONS = 50
#: The overlaps d that are tried.
OVERLAPS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0, 20.0)


# ---- the modelled duration of a round ----------------------------------------------------------------------


def zero_operations(graph: ClientGraph) -> Tensor:
    """Return the counts of operations at the start of a round: zeros, [K] float64."""
    return torch.zeros(graph.num_clients, dtype=torch.float64, device=graph.client.device)


def add_operations(
    done: Tensor, graph: ClientGraph, number: int, widths: tuple[int, ...], layer: Layer
) -> Tensor:
    """Add the floating-point operations of a layer in a training step, forward and backward.

    A product with its sum counts as two operations.

    Args:
        done: The operations so far of each client, [K] float64.
        number: The number of the layer, from 0.
        widths: The widths of the embeddings that enter each layer and that leave the last one.
    """
    width_in, width_out = widths[number], widths[number + 1]
    enters = _used_rows(graph, layer)
    if number == 0:
        # h W and the gradient of W; the features need no gradient.
        products = 2 * 2 * graph.num_nonzero[enters].double() * width_out
    else:
        products = torch.full_like(enters, 3 * 2 * width_in * width_out).double()
    edges = layer.adjacency.indptr.diff().double() * (2 * 2 * width_out)
    operations = zero_operations(graph)
    operations.index_add_(0, graph.client[enters], products)
    return done + operations.index_add_(0, graph.client[layer.out], edges)


def _used_rows(graph: ClientGraph, layer: Layer) -> Tensor:
    """Return the rows that a layer needs, which are not all that enter it if all rows do (`TAKE_ALL`)."""
    if len(layer.rows) < graph.num_rows:
        return layer.rows
    is_used = torch.zeros(layer.adjacency.shape[1], dtype=torch.bool, device=layer.rows.device)
    is_used[layer.adjacency.indices.long()] = True
    if layer.sent is not None:
        is_used[layer.sent] = True
    return layer.rows[is_used[: len(layer.rows)]]


def modelled_seconds(
    graph: ClientGraph,
    operations: Tensor,
    before: Tensor,
    after: Tensor,
    parameters: int,
    local_steps: int,
    time: ModelledTime,
) -> Tensor:
    """Compute the modelled duration of a round at each client, [K] float64: operations over the client's
    speed, plus bytes over its bandwidth.

    Args:
        operations: The operations of the round's layers, [K].
        before: Bytes that each client had sent and received before the round, [K].
        after: The same after the round, [K].
        parameters: n_W, the number of weights.
    """
    operations = operations + STEP_OPERATIONS * parameters * local_steps
    # Speeds and bandwidths do not depend on the seed of the run.
    speed, bandwidth = (
        median * time.spread ** (2 * uniform(fold(0, "fedgraph", purpose), graph.client_ids)[:, 0] - 1)
        for purpose, median in (("speed", time.speed), ("bandwidth", time.bandwidth))
    )
    return operations / speed + (after - before).double() / bandwidth


def measured_seconds(before: Tensor, after: Tensor) -> Tensor:
    """Compute the measured duration of a round at each client, [K], from the seconds that it had worked
    before and after the round, by its clock.
    """
    return after - before


# ---- the balanced policy: measuring ------------------------------------------------------------------------


def first_balance(counts: Tensor, repeats: int = 1, limits_requests: bool = False) -> dict[str, Tensor]:
    """Return what the server knows before the first round; repeats: how often a measured round is repeated.

    Returns:
        fractions [R, K] and seconds [R, K] of the measured rounds, how many there are (measured), and the
        fractions of the next round (next, [K]). If requests are decided, also these (requests [R, K] and
        next_requests [K]).
    """
    clients, device = len(counts), counts.device
    empty = torch.zeros(MEASURED_ROUNDS * repeats, clients, dtype=torch.float64, device=device)
    balance = {
        "fractions": empty,
        "seconds": empty.clone(),
        "measured": torch.zeros((), dtype=torch.int64, device=device),
        "next": torch.ones(clients, dtype=torch.float64, device=device),
    }
    if limits_requests:
        balance |= {"requests": empty.clone(), "next_requests": balance["next"]}
        balance["next"] = balance["next"] * FIRST_FRACTIONS[0]
    return balance


def balanced_decision(balance: dict[str, Tensor], counts: Tensor, layers: int) -> Tensor:
    """Compute the decision of a round: the next fractions, all neighbours, and the requests if these are
    decided.

    Returns:
        The decision, [K, 1 + L] float64; [K, 1 + L + K] with the requests of each client to every other.
    """
    kappa = fraction_of(counts, balance["next"])
    parts = [kappa[:, None], kappa.new_ones(len(counts), layers)]
    if "next_requests" in balance:
        parts.append(balance["next_requests"].expand(len(counts), -1))
    return torch.cat(parts, 1)


def add_measurement(
    balance: dict[str, Tensor],
    decision: Tensor,
    seconds: Tensor,
    counts: Tensor,
    round_time: float | None = None,
) -> dict[str, Tensor]:
    """Add the seconds of a round, and choose the fractions of the next one.

    Args:
        balance: What the server knew before the round.
        decision: The decision of the round, [K, 1 + L] or [K, 1 + L + K].
        seconds: The seconds of each client, [K].
        round_time: theta, the duration of a round between the shortest (0) and that with all nodes (1).
            None: the best one, with the requests that suit it.

    Returns:
        What the server knows after the round; the same if all rounds are measured.
    """
    done = int(balance["measured"])
    if done == len(balance["seconds"]):
        return balance
    found = {**balance, "measured": balance["measured"] + 1}
    measured = {"fractions": decision[:, 0] / counts.clamp(min=1), "seconds": seconds}
    if round_time is None:
        measured["requests"] = balance["next_requests"]
    for name, values in measured.items():
        found[name] = balance[name].clone()
        found[name][done] = values
    number, repeated = divmod(done + 1, len(balance["seconds"]) // MEASURED_ROUNDS)
    if repeated:
        return found
    # What follows is small, and fits on the CPU whatever the device is.
    counts, device = counts.cpu(), counts.device
    repeats = {name: found[name][: done + 1].view(number, -1, len(counts)).cpu() for name in measured}
    drawn, typical = repeats["fractions"][:, 0], repeats["seconds"].median(1).values
    if round_time is not None:
        return {**found, "next": _next_fractions(drawn, typical, counts, round_time).to(device)}
    fractions, requests = _best_next(drawn, typical, counts, repeats["requests"][:, 0])
    return {**found, "next": fractions.to(device), "next_requests": requests.to(device)}


def _best_next(fractions: Tensor, seconds: Tensor, counts: Tensor, requests: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fractions and requests to measure after others [R, K] with their seconds [R, K], or to keep,
    [K] each.
    """
    if len(seconds) < len(FIRST_FRACTIONS):
        return torch.full_like(fractions[0], FIRST_FRACTIONS[len(seconds)]), requests[0]
    # The last round has nearly the duration that is wanted.
    duration = float(seconds[-1].max())
    return best_balance(fit_time_model(fractions, seconds, counts, duration, requests, PRIOR), counts)


def _next_fractions(fractions: Tensor, seconds: Tensor, counts: Tensor, round_time: float) -> Tensor:
    """Return the fractions to measure after others [R, K] with their seconds [R, K], or to keep, [K]."""
    if len(seconds) < PLANNED_ROUNDS:
        return _planned(len(seconds), seconds[0], counts, round_time)
    # Eq. (17)
    shortest, longest = float(seconds[1].max()), float(seconds[0].max())
    duration = shortest + round_time * (longest - shortest)
    return solve_balance(fit_time_model(fractions, seconds, counts, duration), counts, duration)[0]


def _planned(number: int, first: Tensor, counts: Tensor, round_time: float) -> Tensor:
    """Return the fractions of a planned round after the first one, [K].

    After all nodes come one node at every client, few at every second client and more at the others, and the
    reverse. Only if clients differ in a round can the effects of the own mini-batch and of those of others be
    distinguished. Clients are numbered by first [K], their seconds in the first round, so that each half has
    fast and slow ones, and so that the plan does not depend on their order.
    """
    if number == 1:
        return 1 / counts.double().clamp(min=1)
    few, more = round_time / 2, min(1.0, 2 * round_time)
    rank = torch.argsort(torch.argsort(first, stable=True))
    return torch.where(rank % 2 == number % 2, few, more).double()


# ---- the balanced policy: the model of the seconds ---------------------------------------------------------


@dataclass(frozen=True)
class TimeModel:
    """The seconds of every client, t_k = b_k + o_k phi_k(s_k) + a_k phi_k(q_k u).

    phi_k(x) = 1 - (1 - x)^d_k is the fraction of nodes that are needed: a node that d drawn nodes may have as
    a neighbour is needed with probability phi.

    Attributes:
        base: b, the seconds that do not depend on the mini-batches, [K].
        own: o, the seconds for all of a client's own training nodes, [K].
        answers: a, the seconds for the requests of all training nodes of all clients, [K].
        overlap: d, at least 1, [K].
    """

    base: Tensor
    own: Tensor
    answers: Tensor
    overlap: Tensor

    def seconds(self, fractions: Tensor, counts: Tensor, requests: Tensor | float = 1.0) -> Tensor:
        """Compute t [K] for the fractions s [K] and requests q [K]; counts: n [K]."""
        drawn = drawn_fraction(fractions, counts)
        requested = self.answers * needed_fraction(requests * drawn, self.overlap)
        # Eq. (16)
        return self.base + self.own * needed_fraction(fractions, self.overlap) + requested


def needed_fraction(fractions: Tensor, overlap: Tensor) -> Tensor:
    """Compute phi(x) = 1 - (1 - x)^d for fractions x."""
    return 1 - (1 - fractions) ** overlap


def drawn_fraction(fractions: Tensor, counts: Tensor) -> Tensor:
    """Compute u [...], the fraction of all clients' training nodes that is drawn; fractions: s [..., K]."""
    # Eq. (15)
    return (fractions * counts).sum(-1) / counts.sum().clamp(min=1)


def fit_time_model(
    fractions: Tensor,
    seconds: Tensor,
    counts: Tensor,
    duration: float,
    requests: Tensor | None = None,
    prior: float = 0.0,
) -> TimeModel:
    """Fit the model to measured seconds, by least squares with coefficients of at least 0.

    Residuals are relative to the seconds. Seconds are not quite linear in the fractions, so that those near
    the wanted duration count most: with the square of the ratio between both.

    Args:
        fractions: s of R measured rounds, [R, K].
        seconds: t of these rounds, [R, K].
        duration: T.
        requests: q of these rounds, [R, K]; None: 1.
        prior: The weight of equal o and a, and of an overlap near `PRIOR_OVERLAP`. With fewer than four
            rounds several models fit, and of these the prior selects one.
    """
    rounds, clients = seconds.shape
    drawn = drawn_fraction(fractions, counts)[:, None].expand(rounds, clients)
    if requests is not None:
        drawn = drawn * requests
    target = seconds.t().clamp(min=torch.finfo(torch.float64).tiny)
    weight = torch.minimum(target, torch.full_like(target, duration)) / target.clamp(min=duration)
    best = target.new_full((clients,), math.inf)
    found = target.new_zeros(clients, 4)
    equal = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64) * (prior / target.mean(1))[:, None, None]
    weight_and_0 = torch.cat([weight, target.new_zeros(clients, 1)], 1)[:, :, None]
    # With one overlap and 3 coefficients, all overlaps and all sets of positive coefficients can be tried.
    for overlap, used in product(OVERLAPS, product((False, True), repeat=3)):
        d = torch.tensor(overlap, dtype=torch.float64)
        parts = [torch.ones_like(drawn), needed_fraction(fractions, d), needed_fraction(drawn, d)]
        # Both sides in units of the measured seconds, times the root of the weight
        columns = torch.stack(parts, -1).transpose(0, 1) * (weight / target)[:, :, None]
        columns = torch.cat([columns, equal], 1)  # [K, R + 1, 3]
        kept = columns * torch.tensor(used, dtype=columns.dtype)
        coefficients = torch.linalg.pinv(kept) @ weight_and_0
        error = (columns @ coefficients - weight_and_0).square().sum((1, 2))
        error = error + (prior * math.log(overlap / PRIOR_OVERLAP)) ** 2
        coefficients = coefficients[:, :, 0]
        # Rounding may leave a coefficient that is 0 slightly below it.
        least = -1e-9 * coefficients.abs().amax(1, keepdim=True)
        is_better = (coefficients >= least).all(1) & (error < best * (1 - 1e-9))
        best = torch.where(is_better, error, best)
        coefficients = torch.cat([coefficients.clamp(min=0), d.expand(clients, 1)], 1)
        found = torch.where(is_better[:, None], coefficients, found)
    # A client without training nodes draws none, which says nothing about its coefficient.
    found[:, 1] *= counts > 0
    return TimeModel(*found.unbind(1))


# ---- the balanced policy: the solution ---------------------------------------------------------------------


def best_balance(model: TimeModel, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Choose the duration that promises the shortest training, and solve for its fractions and requests.

    The rounds to a target are taken to grow as 1 + v_0 (1 / u - 1) + w_0 (1 - q), with the mean q of the
    clients' requests, weighted by their training nodes. A round's time that hardly depends on what is drawn
    makes the longest duration the best one, with all nodes and all requests.

    Returns:
        s and q, [K] float64 each.
    """
    every, least = torch.ones_like(model.base), 1 / counts.double().clamp(min=1)
    longest = float(model.seconds(every, counts).max())
    shortest = float(model.seconds(least, counts, 0.0).max())
    best, found = math.inf, (every, every)
    for duration in torch.linspace(longest, shortest, DURATIONS, dtype=torch.float64).tolist():
        fractions, requests = solve_balance(model, counts, duration, least_requests=0.0)
        noise = NOISE * (1 / float(drawn_fraction(fractions, counts)) - 1)
        # Eq. (19)
        needed = duration * (1 + noise + OMISSION * (1 - float(drawn_fraction(requests, counts))))
        if needed < best:
            best, found = needed, (fractions, requests)
    return found


def solve_balance(
    model: TimeModel, counts: Tensor, duration: float, least_requests: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Solve for the fractions that fit in a round: maximise u, subject to t_k <= T and 1 / n_k <= s_k <= 1.

    For a given u, client k has room for the s_k with phi_k(s_k) = (T - b_k - a_k phi_k(u)) / o_k. The room
    falls with u, so bisection finds the largest u that the clients have room for. If a client that only
    answers is what limits u, the room of the others is more than u; then their fractions are cut at a common
    height.

    Args:
        duration: T. If not even one node at each client fits, the shortest duration in which that does is
            taken in its place.
        least_requests: 1, or 0: a client without time to answer all requests and to draw one node then does
            not limit u. It is sent requests with the largest probability q_k that leaves it this time.

    Returns:
        s and q, [K] float64 each; s has at least one node of each client, and is 1 for a client without
        training nodes.
    """
    numbers = counts.double()
    least, every = 1 / numbers.clamp(min=1), torch.ones_like(numbers)
    duration = max(duration, float(model.seconds(least, counts, least_requests).max()))
    if bool((model.seconds(every, counts) <= duration).all()):
        return every, every
    # One node at each client fits, and all nodes do not.
    # Eq. (18)
    low, high = float(drawn_fraction(least, counts)), 1.0
    found = least, every * least_requests
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fits = _fits(model, numbers, duration, middle, least, least_requests)
        if fits is None:
            high = middle
        else:
            low, found = middle, fits
    return found


def _fits(
    model: TimeModel,
    numbers: Tensor,
    duration: float,
    drawn: float,
    least: Tensor,
    least_requests: float,
) -> tuple[Tensor, Tensor] | None:
    """Return fractions of which u is `drawn` and requests, [K] each; None if the clients have no room."""
    u = torch.tensor(drawn, dtype=torch.float64)
    left_over = duration - model.base - model.answers * needed_fraction(u, model.overlap)
    needed = torch.where(model.own > 0, left_over / model.own, torch.where(left_over >= 0, 1.0, -1.0))
    room = _inverse(needed, model.overlap)
    # Rounding must not refuse the duration in which one node just fits.
    has_no_room = (needed < 0) | (room < least * (1 - 1e-9))
    if least_requests and bool((has_no_room & (numbers > 0)).any()):
        return None
    left_over = duration - model.base - model.own * needed_fraction(least, model.overlap)
    answered = _inverse(left_over / model.answers.clamp(min=1e-30), model.overlap) / u
    requests = torch.where(has_no_room, answered.clamp(max=1), 1.0)
    room = torch.where(numbers > 0, room.maximum(least), 1.0)
    if float(drawn_fraction(room, numbers)) < drawn:
        return None
    # The common height: clients with less room than it have all their room.
    order = torch.argsort(room)
    size, height = numbers[order], room[order]
    below = (size * height).cumsum(0) - size * height
    at_least = numbers.sum() - size.cumsum(0) + size
    level = (drawn * numbers.sum() - below) / at_least.clamp(min=1)
    is_cut = level < height
    cut = float(level[is_cut][0]) if bool(is_cut.any()) else 1.0
    return room.clamp(max=cut).maximum(least), requests


def _inverse(needed: Tensor, overlap: Tensor) -> Tensor:
    """Return the fraction x in [0, 1] for which phi(x) is `needed`, or nearest to it."""
    return 1 - (1 - needed.clamp(0, 1)) ** (1 / overlap)
