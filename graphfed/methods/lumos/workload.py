"""What every balancer of Lumos starts from and returns: a device's neighbours and its assigned edges."""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Located
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.assignment import pair_draws

__all__ = [
    "Around",
    "Balance",
    "Kept",
    "all_rows",
    "either",
    "ended",
    "kept_at_first",
    "levels",
    "look_around",
    "moment",
    "rows_changed",
]


@dataclass(frozen=True, eq=False)
class Kept:
    """What a cohort's clients end with, by the rows of their pairs.

    keeps [C] bool: this client keeps that neighbour; kept_by [C] bool: that neighbour keeps this client;
    outcomes [K] int64: outcomes of comparisons that each client has learned; history [R, 2] int64, from the
    start and after every round: the largest workload among these clients, and the outcomes so far. What a
    host sees of itself, nothing that crossed."""

    keeps: Tensor
    kept_by: Tensor
    outcomes: Tensor
    history: Tensor


@dataclass(frozen=True)
class Balance:
    """kept: a `Kept` at the clients. rounds: of balancing; calls: how often every edge would have been
    compared, had every pair compared anew each time; beside: at the server, how many comparisons of other
    pairs there would have been."""

    kept: Located
    rounds: int
    calls: int
    beside: Located

    def comparisons(self) -> tuple[int, int]:
        """How many were made, and how many it would have been, had every pair compared anew each time. For
        whoever holds all places: nobody else knows, and nothing crosses for it, as the number of a device's
        neighbours is in both."""
        outcomes = sum(int(part.outcomes.sum()) for part in self.kept.parts)
        edges = sum(len(part.keeps) for part in self.kept.parts) // 2
        return outcomes // 2, self.calls * edges + int(self.beside.parts[0])


@dataclass(frozen=True, eq=False)
class Around:
    """A cohort's pairs: client [C] index in the cohort, other [C] the neighbour's id, sorted; the pairs of
    client k are rows start[k]..start[k + 1]; ids [K] of the clients; of num_clients in the run."""

    client: Tensor
    other: Tensor
    start: Tensor
    ids: Tensor
    num_clients: int

    @property
    def degree(self) -> Tensor:
        return self.start.diff()

    def rows_of(self, clients: Tensor) -> Tensor:
        """The rows of some clients (ascending), ascending."""
        first, count = self.start[clients], self.degree[clients]
        gap = torch.repeat_interleave(first - count.cumsum(0) + count, count)
        rows: Tensor = gap + torch.arange(len(gap), device=gap.device)
        return rows

    def draws(self, key: int, rows: Tensor) -> Tensor:
        """A draw for each of the pairs, from this end, [p] float64."""
        return pair_draws(key, self.ids[self.client[rows]], self.other[rows], self.num_clients)

    def best_of_each(self, rows: Tensor, draws: Tensor) -> Tensor:
        """Of some rows (ascending) the one with the largest draw of each client, ascending."""
        order = draws.argsort(stable=True)
        order = order[self.client[rows[order]].argsort(stable=True)]
        client = self.client[rows[order]]
        last = torch.ones(len(order), dtype=torch.bool, device=order.device)
        last[:-1] = client[1:] != client[:-1]
        return rows[order[last]]

    def count(self, rows: Tensor) -> Tensor:
        """Rows of each client, [K]."""
        return torch.bincount(self.client[rows], minlength=len(self.ids))


def look_around(rows: PairRows, ids: Tensor, num_clients: int) -> Around:
    counts = torch.bincount(rows.client, minlength=len(ids))
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Around(rows.client, rows.other, start, ids, num_clients)


def all_rows(around: Around) -> Tensor:
    return torch.arange(len(around.other), device=around.other.device)


def levels(around: Around, degree_bits: int) -> Tensor:
    """round(ln deg) for every pair, [C] int64. InputError for a device whose degree needs more bits."""
    degree = around.degree
    if len(degree) and int(degree.max()) >> degree_bits:
        # Not how many: a degree is what this protects, and a message may be read elsewhere.
        raise InputError(
            f"device {int(around.ids[degree.argmax()])} has more than the {2**degree_bits - 1} neighbours "
            f"that degree_bits={degree_bits} allows; use a larger number (at most 31)"
        )
    return degree.clamp(min=1).double().log().round().long()[around.client]


def kept_at_first(around: Around, order: Tensor) -> tuple[Tensor, Tensor]:
    """Alg. 1, l. 4: keep whom has no smaller round(ln deg). order [C]: -1 where this client's is smaller."""
    return order <= 0, order >= 0


def ended(around: Around, keeps: Tensor, kept_by: Tensor, outcomes: Tensor, *history: Tensor) -> Kept:
    return Kept(keeps, kept_by, outcomes, torch.stack(history))


def moment(workload: Tensor, outcomes: Tensor) -> Tensor:
    """A row of `Kept.history`."""
    return torch.stack([workload.max(), outcomes.sum()])


def rows_changed(around: Around, changed: Tensor) -> Tensor:
    return around.rows_of(changed.nonzero()[:, 0])


def either(one: Tensor, other: Tensor) -> Tensor:
    """The rows in one of two lists, ascending."""
    rows: Tensor = torch.unique(torch.cat([one, other]))
    return rows
