"""The balanced policy (ours): every client draws as many training nodes as it can within the same time.

A round lasts as long as its slowest client, so time that a faster client leaves unused costs nothing to use.
The server measures each client's seconds in a few rounds with different sizes of the mini-batches, fits a
linear model of them, and solves it for the mini-batches that fit in a round of a given duration. All
neighbours are kept.

    docs/papers/fedgraph.md, "Ours: balance the            here
    clients' times"
    n_k, N                                                 counts, their sum
    s_k, the fraction of its training nodes                fractions
    u, the fraction of all training nodes                  `drawn_fraction`
    t_k, a client's seconds in a round                     seconds
    b_k, o_k, a_k                                          `TimeModel.base`, `own`, `answers`
    T                                                      duration

A client's seconds depend on its own mini-batch and, because it answers requests for embeddings, on those of
all others. The model has the second part in one number u, so that it follows from the seconds alone: the
clients send nothing that they do not send without this policy.
"""

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

__all__ = [
    "MEASURED_ROUNDS",
    "REPEATS",
    "TimeModel",
    "add_measurement",
    "balanced_decision",
    "drawn_fraction",
    "first_balance",
    "fit_time_model",
    "solve_fractions",
]

#: The rounds whose seconds are used: four with planned fractions, and four with the solution so far.
PLANNED_ROUNDS, MEASURED_ROUNDS = 4, 8
#: How often each of them is repeated if its seconds are of a clock. The median counts, so that neither the
#: first round of a process, which takes longer, nor a single disturbance of a machine decides.
REPEATS = 3
#: Halvings of the interval of u, from a length of at most 1.
BISECTIONS = 50
#: The overlaps d that are tried.
OVERLAPS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 13.0, 20.0)


@dataclass(frozen=True)
class TimeModel:
    """The seconds of every client, t_k = b_k + o_k phi_k(s_k) + a_k phi_k(u).

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

    def seconds(self, fractions: Tensor, counts: Tensor) -> Tensor:
        """Compute the seconds of every client.

        Args:
            fractions: s, [K].
            counts: n, the number of training nodes of each client, [K].

        Returns:
            t, [K].
        """
        drawn = drawn_fraction(fractions, counts)
        requested = self.answers * needed_fraction(drawn, self.overlap)
        # Eq. (16)
        return self.base + self.own * needed_fraction(fractions, self.overlap) + requested


def needed_fraction(fractions: Tensor, overlap: Tensor) -> Tensor:
    """Compute phi(x) = 1 - (1 - x)^d.

    Args:
        fractions: x, broadcast with d.
        overlap: d.

    Returns:
        phi(x).
    """
    return 1 - (1 - fractions) ** overlap


def drawn_fraction(fractions: Tensor, counts: Tensor) -> Tensor:
    """Compute u, the fraction of all clients' training nodes that is drawn.

    Args:
        fractions: s, [..., K].
        counts: n, the number of training nodes of each client, [K].

    Returns:
        u, [...].
    """
    # Eq. (15)
    return (fractions * counts).sum(-1) / counts.sum().clamp(min=1)


# ---- measuring ---------------------------------------------------------------------------------------------


def first_balance(counts: Tensor, repeats: int = 1) -> dict[str, Tensor]:
    """Return what the server knows before the first round.

    Args:
        counts: The number of training nodes of each client, [K].
        repeats: How often each measured round is repeated.

    Returns:
        fractions [R, K] and seconds [R, K] of the measured rounds, how many there are (measured), and the
        fractions of the next round (next, [K]): 1, all training nodes.
    """
    clients, device = len(counts), counts.device
    empty = torch.zeros(MEASURED_ROUNDS * repeats, clients, dtype=torch.float64, device=device)
    return {
        "fractions": empty,
        "seconds": empty.clone(),
        "measured": torch.zeros((), dtype=torch.int64, device=device),
        "next": torch.ones(clients, dtype=torch.float64, device=device),
    }


def balanced_decision(balance: dict[str, Tensor], counts: Tensor, layers: int) -> Tensor:
    """Compute the decision of a round: the next fractions, and all neighbours.

    Args:
        balance: What the server knows (`first_balance`).
        counts: n, the number of training nodes of each client, [K].
        layers: L, the layers of the network.

    Returns:
        The decision, [K, 1 + L] float64.
    """
    kappa = (balance["next"] * counts).round().clamp(min=1).minimum(counts.double())
    return torch.cat([kappa[:, None], kappa.new_ones(len(counts), layers)], 1)


def add_measurement(
    balance: dict[str, Tensor], decision: Tensor, seconds: Tensor, counts: Tensor, round_time: float
) -> dict[str, Tensor]:
    """Add the seconds of a round, and choose the fractions of the next one.

    Args:
        balance: What the server knew before the round.
        decision: The decision of the round, [K, 1 + L].
        seconds: The seconds of each client, [K].
        counts: n, the number of training nodes of each client, [K].
        round_time: theta, the duration of a round between the shortest (0) and that with all nodes (1).

    Returns:
        What the server knows after the round; the same if all rounds are measured.
    """
    done = int(balance["measured"])
    if done == len(balance["seconds"]):
        return balance
    fractions, measured = balance["fractions"].clone(), balance["seconds"].clone()
    fractions[done] = decision[:, 0] / counts.clamp(min=1)
    measured[done] = seconds
    number, repeated = divmod(done + 1, len(measured) // MEASURED_ROUNDS)
    if repeated:
        following = balance["next"]
    else:
        drawn = fractions[: done + 1].view(number, -1, len(counts))[:, 0]
        typical = measured[: done + 1].view(number, -1, len(counts)).median(1).values
        following = _next_fractions(drawn, typical, counts, round_time)
    return {
        "fractions": fractions,
        "seconds": measured,
        "measured": balance["measured"] + 1,
        "next": following,
    }


def _next_fractions(fractions: Tensor, seconds: Tensor, counts: Tensor, round_time: float) -> Tensor:
    """Return the fractions to measure after others [R, K] with their seconds [R, K], or to keep, [K]."""
    if len(seconds) < PLANNED_ROUNDS:
        return _planned(len(seconds), seconds[0], counts, round_time)
    # Eq. (17)
    shortest, longest = float(seconds[1].max()), float(seconds[0].max())
    duration = shortest + round_time * (longest - shortest)
    model = fit_time_model(fractions.cpu(), seconds.cpu(), counts.cpu(), duration)
    return solve_fractions(model, counts.cpu(), duration).to(counts.device)


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


# ---- the model ---------------------------------------------------------------------------------------------


def fit_time_model(fractions: Tensor, seconds: Tensor, counts: Tensor, duration: float) -> TimeModel:
    """Fit the model to measured seconds, by least squares with coefficients of at least 0.

    Residuals are relative to the seconds. Seconds are not quite linear in the fractions, so that those near
    the wanted duration count most: with the square of the ratio between both.

    Args:
        fractions: s of R measured rounds, [R, K].
        seconds: t of these rounds, [R, K].
        counts: n, the number of training nodes of each client, [K].
        duration: T.

    Returns:
        The model.
    """
    rounds, clients = seconds.shape
    drawn = drawn_fraction(fractions, counts)[:, None].expand(rounds, clients)
    target = seconds.t().clamp(min=torch.finfo(torch.float64).tiny)
    weight = torch.minimum(target, torch.full_like(target, duration)) / target.clamp(min=duration)
    best = target.new_full((clients,), math.inf)
    found = target.new_zeros(clients, 4)
    # With one overlap and 3 coefficients, all overlaps and all sets of positive coefficients can be tried.
    for overlap, used in product(OVERLAPS, product((False, True), repeat=3)):
        d = torch.tensor(overlap, dtype=torch.float64)
        parts = [torch.ones_like(drawn), needed_fraction(fractions, d), needed_fraction(drawn, d)]
        # Both sides in units of the measured seconds, times the root of the weight
        columns = torch.stack(parts, -1).transpose(0, 1) * (weight / target)[:, :, None]  # [K, R, 3]
        kept = columns * torch.tensor(used, dtype=columns.dtype)
        coefficients = torch.linalg.pinv(kept) @ weight[:, :, None]
        error = (columns @ coefficients - weight[:, :, None]).square().sum((1, 2))
        coefficients = coefficients[:, :, 0]
        # Rounding may leave a coefficient that is 0 slightly below it.
        least = -1e-9 * coefficients.abs().amax(1, keepdim=True)
        is_better = (coefficients >= least).all(1) & (error < best * (1 - 1e-9))
        best = torch.where(is_better, error, best)
        coefficients = torch.cat([coefficients.clamp(min=0), d.expand(clients, 1)], 1)
        found = torch.where(is_better[:, None], coefficients, found)
    return TimeModel(*found.unbind(1))


# ---- the solution ------------------------------------------------------------------------------------------


def solve_fractions(model: TimeModel, counts: Tensor, duration: float) -> Tensor:
    """Solve for the fractions that fit in a round: maximise u, subject to t_k <= T and 1 / n_k <= s_k <= 1.

    For a given u, client k has room for the s_k with phi_k(s_k) = (T - b_k - a_k phi_k(u)) / o_k. The room
    falls with u, so bisection finds the largest u that the clients have room for. If a client that only
    answers is what limits u, the room of the others is more than u; then their fractions are cut at a common
    height.

    Args:
        model: The model of the clients' seconds.
        counts: n, the number of training nodes of each client, [K].
        duration: T. If not even one node at each client fits, the shortest duration in which that does is
            taken in its place.

    Returns:
        s, [K] float64; at least one node of each client, and 1 for a client without training nodes.
    """
    numbers = counts.double()
    least = 1 / numbers.clamp(min=1)
    duration = max(duration, float(model.seconds(least, counts).max()))
    if bool((model.seconds(torch.ones_like(least), counts) <= duration).all()):
        return torch.ones_like(least)
    # One node at each client fits, and all nodes do not.
    # Eq. (18)
    low, high, fractions = float(drawn_fraction(least, counts)), 1.0, least
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        found = _fractions_at(model, numbers, duration, middle, least)
        if found is None:
            high = middle
        else:
            low, fractions = middle, found
    return fractions


def _fractions_at(
    model: TimeModel, numbers: Tensor, duration: float, drawn: float, least: Tensor
) -> Tensor | None:
    """Return fractions of which u is `drawn`, [K]; None if the clients have no room for that."""
    requested = model.answers * needed_fraction(torch.tensor(drawn, dtype=torch.float64), model.overlap)
    left_over = duration - model.base - requested
    needed = torch.where(model.own > 0, left_over / model.own, torch.where(left_over >= 0, 1.0, -1.0))
    room = 1 - (1 - needed.clamp(0, 1)) ** (1 / model.overlap)
    # Rounding must not refuse the duration in which one node just fits.
    has_no_room = (numbers > 0) & ((needed < 0) | (room < least * (1 - 1e-9)))
    if bool(has_no_room.any()):
        return None
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
    return room.clamp(max=cut).maximum(least)
