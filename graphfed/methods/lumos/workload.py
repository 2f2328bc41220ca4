"""What every balancer of Lumos starts from and returns: the neighbours and the assigned edges of a cohort's
clients.

Shapes: K clients in a cohort, C pairs (client, neighbour) in a cohort. Each edge between two clients has two
pairs, one at each of them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation import Located
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.assignment import pair_draws


@dataclass(frozen=True, eq=False)
class Assignment:
    """The edges that a cohort's clients train on, one row for each pair (client, neighbour).

    Attributes:
        local: [C] bool: whether the neighbour is in this client's tree (v in N_u, x_(u,v) of Lumos, Eq. (9)).
        remote: [C] bool: whether this client is in the neighbour's tree (u in N_v, x_(v,u)).
        outcomes: [K] int64: how many outcomes of comparisons each client has learned.
        history: [R, 2] int64, at the start and after every round: the largest workload among these clients,
            and the outcomes that they have learned so far. It stays in the process that computes it and is
            never sent.
    """

    local: Tensor
    remote: Tensor
    outcomes: Tensor
    history: Tensor


@dataclass(frozen=True)
class Balance:
    """The result of a balancer.

    Attributes:
        assignment: An `Assignment` at the clients.
        rounds: Rounds (balancer=mcmc: steps) of balancing.
        calls: How often every edge would be compared if all pairs compared again each time.
        candidate_pairs: At the server: how many further comparisons between clients that need not be
            neighbours there would be then.
    """

    assignment: Located
    rounds: int
    calls: int
    candidate_pairs: Located

    def comparisons(self) -> tuple[int, int]:
        """Count the comparisons of a run whose places are all in this process.

        No single participant knows these numbers, and nothing is sent to learn them.

        Returns:
            The comparisons that were made, and those that would be made if every pair compared again each
            time.
        """
        outcomes = sum(int(part.outcomes.sum()) for part in self.assignment.parts)
        edges = sum(len(part.local) for part in self.assignment.parts) // 2
        return outcomes // 2, self.calls * edges + int(self.candidate_pairs.parts[0])


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The pairs (client, neighbour) of a cohort, sorted by client and then by neighbour.

    Attributes:
        client: [C] index in the cohort of each pair's client.
        other: [C] id of each pair's neighbour.
        start: [K + 1] the pairs of client k are the rows start[k] to start[k + 1] - 1.
        ids: [K] ids of the clients.
    """

    client: Tensor
    other: Tensor
    start: Tensor
    ids: Tensor
    num_clients: int

    @property
    def degree(self) -> Tensor:
        """Number of neighbours of each client, [K] int64."""
        return self.start.diff()

    def rows_of(self, clients: Tensor) -> Tensor:
        """Return the rows of some clients.

        Args:
            clients: [k] indices in the cohort, ascending.

        Returns:
            [p] rows, ascending.
        """
        first, count = self.start[clients], self.degree[clients]
        shift = torch.repeat_interleave(first - count.cumsum(0) + count, count)
        rows: Tensor = shift + torch.arange(len(shift), device=shift.device)
        return rows

    def draws(self, key: int, rows: Tensor) -> Tensor:
        """Draw a number for each of some pairs, keyed by the ids of client and neighbour in this order.

        Args:
            rows: [p] rows of the pairs.

        Returns:
            [p] float64 in [0, 1).
        """
        return pair_draws(key, self.ids[self.client[rows]], self.other[rows], self.num_clients)

    def best_of_each(self, rows: Tensor, draws: Tensor) -> Tensor:
        """Return for each client the row with its largest draw.

        Args:
            rows: [p] rows, ascending.
            draws: [p] a draw for each of them.

        Returns:
            At most one row for each client, ascending.
        """
        order = draws.argsort(stable=True)
        order = order[self.client[rows[order]].argsort(stable=True)]
        client = self.client[rows[order]]
        last = torch.ones(len(order), dtype=torch.bool, device=order.device)
        last[:-1] = client[1:] != client[:-1]
        return rows[order[last]]

    def count(self, rows: Tensor) -> Tensor:
        """Count the given rows of each client, [K] int64.

        Args:
            rows: [p] rows.

        Returns:
            [K] int64.
        """
        return torch.bincount(self.client[rows], minlength=len(self.ids))


def make_neighbours(rows: PairRows, ids: Tensor, num_clients: int) -> Neighbours:
    """Index the pairs of a cohort by client.

    Args:
        rows: The pairs, sorted by client and neighbour.
        ids: [K] ids of the cohort's clients.
    """
    counts = torch.bincount(rows.client, minlength=len(ids))
    start = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    return Neighbours(rows.client, rows.other, start, ids, num_clients)


def all_rows(neighbours: Neighbours) -> Tensor:
    """Return every row of a cohort's pairs.

    Returns:
        [C] int64.
    """
    return torch.arange(len(neighbours.other), device=neighbours.other.device)


def log_degrees(neighbours: Neighbours, degree_bits: int) -> Tensor:
    """Compute the rounded log-degree round(ln deg) of each pair's client (Lumos, Alg. 1, l. 4).

    Args:
        degree_bits: Bits that hold every degree.

    Returns:
        [C] int64.

    Raises:
        InputError: A client has 2^degree_bits neighbours or more.
    """
    degree = neighbours.degree
    if len(degree) and int(degree.max()) >> degree_bits:
        # The message does not name the degree: comparisons protect it, and others may read the message.
        raise InputError(
            f"client {int(neighbours.ids[degree.argmax()])} has more than the {2**degree_bits - 1} "
            f"neighbours that degree_bits={degree_bits} allows; use a larger number (at most 31)"
        )
    return degree.clamp(min=1).double().log().round().long()[neighbours.client]


def greedy_assignment(neighbours: Neighbours, order: Tensor) -> tuple[Tensor, Tensor]:
    """Assign each edge to the client with the smaller rounded log-degree, with equal ones to both.

    Args:
        order: [C] outcome of each comparison: -1, 0 or 1 where this client's rounded log-degree is smaller
            than, equal to or larger than the neighbour's.

    Returns:
        `Assignment.local` and `Assignment.remote`, [C] bool.

    Reference:
        Lumos, Alg. 1, l. 3-7.
    """
    return order <= 0, order >= 0  # Alg. 1, l. 4-5, at both clients of the edge


def make_assignment(
    neighbours: Neighbours, local: Tensor, remote: Tensor, outcomes: Tensor, *history: Tensor
) -> Assignment:
    """Build an `Assignment` from the rows of its history.

    Args:
        local: [C] bool: see `Assignment`.
        remote: [C] bool.
        outcomes: [K] outcomes learned by each client.
        history: A `history_row` for the start and for every round.
    """
    return Assignment(local, remote, outcomes, torch.stack(history))


def history_row(workload: Tensor, outcomes: Tensor) -> Tensor:
    """Return a row of `Assignment.history`.

    Args:
        workload: [K] workload of each client.
        outcomes: [K] outcomes learned by each client.

    Returns:
        [2] int64.
    """
    return torch.stack([workload.max(), outcomes.sum()])


def rows_changed(neighbours: Neighbours, changed: Tensor) -> Tensor:
    """Return the rows of the clients whose workload has changed.

    Args:
        changed: [K] bool.

    Returns:
        [p] rows, ascending.
    """
    return neighbours.rows_of(changed.nonzero()[:, 0])


def union(first: Tensor, other: Tensor) -> Tensor:
    """Return the rows that are in either of two lists.

    Args:
        first: [p] rows.
        other: [q] rows.

    Returns:
        The rows, ascending and without repetition.
    """
    rows: Tensor = torch.unique(torch.cat([first, other]))
    return rows
