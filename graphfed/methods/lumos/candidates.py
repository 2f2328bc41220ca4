"""The candidates for the largest workload in a step of Lumos's search, and how they compare with each other
(Alg. 3).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphfed.errors import InputError
from graphfed.federation.route import RouteTable, RowIds
from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.workload import Neighbours

#: Pairs of candidates that may compare at a time: in one process they take about 8 GB.
MAX_PAIRS = 100_000_000


@dataclass(frozen=True, eq=False)
class Chain:
    """A state X_t of the search, with what a cohort's clients know about it.

    Attributes:
        local: [C] bool: whether the edge is in this client's tree; see `workload.Assignment`.
        remote: [C] bool: whether the edge is in the neighbour's tree.
        order: [C] int8: outcome of the last comparison of this client's workload with the neighbour's (-1, 0
            or 1).
        workload: [K] int64: number of edges in each client's tree.
        num_larger: [K] int64: neighbours with a larger workload.
        candidate: [K] bool: whether the client is in CVS: no neighbour has a larger workload.
        column_of: [n] int64: by id, the column of `less` of each candidate that this cohort's candidates know
            (-1: none).
        row_of: [K] int64: the row of `less` of each candidate of the cohort (-1: none).
        less: [R, S] bool: whether the row's workload is less than the column's.
        num_larger_candidates: [K] int64: candidates with a larger workload.
    """

    local: Tensor
    remote: Tensor
    order: Tensor
    workload: Tensor
    num_larger: Tensor
    candidate: Tensor
    column_of: Tensor
    row_of: Tensor
    less: Tensor
    num_larger_candidates: Tensor


@dataclass(frozen=True, eq=False)
class Meeting:
    """The candidates of a step that compare with each other.

    Attributes:
        new: [j] clients of the cohort without any outcome: new candidates, and those with a changed workload.
        staying: [s] the other candidates of the cohort.
        known: [c] ids of all candidates, ascending.
        arrivals: [a] ids of the candidates that are new to the staying ones, ascending.
    """

    new: Tensor
    staying: Tensor
    known: Tensor
    arrivals: Tensor


# ---- along edges -------------------------------------------------------------------------------------------


def workloads_of_rows(neighbours: Neighbours, chain: Chain, which: Tensor) -> Tensor:
    """Return the workload of each row's client.

    Args:
        which: [p] rows.

    Returns:
        [p] int64.
    """
    return chain.workload[neighbours.client[which]]


def update_candidates(
    neighbours: Neighbours, chain: Chain, which: Tensor, order: Tensor
) -> tuple[Chain, Tensor]:
    """Update who is a candidate, from new outcomes along edges.

    Args:
        which: [p] rows that have compared.
        order: [p] their outcomes.

    Returns:
        The state, and which clients were no candidates before, [K] bool.

    Reference:
        Lumos, Alg. 3, l. 14-15.
    """
    client = neighbours.client[which]
    change = (order < 0).long() - (chain.order[which] < 0).long()
    num_larger = chain.num_larger.index_add(0, client, change)
    known = chain.order.clone()
    known[which] = order
    # Alg. 3, l. 15; a client without neighbours is no candidate.
    candidate = (num_larger == 0) & (neighbours.degree > 0)
    return replace(
        chain, order=known, num_larger=num_larger, candidate=candidate
    ), candidate & ~chain.candidate


def split_candidates(now: Chain, joined: Tensor, changed: Tensor) -> tuple[Tensor, Tensor]:
    """Divide the candidates into those that must compare with all others and those that need not.

    Args:
        joined: [K] bool: clients that have just become candidates.
        changed: [K] bool: clients whose workload has changed.

    Returns:
        New candidates and those with a changed workload; and the others. Both are clients of the cohort,
        ascending.
    """
    new = joined | (now.candidate & changed)
    return new.nonzero()[:, 0], (now.candidate & ~new).nonzero()[:, 0]


def client_ids_of(neighbours: Neighbours, clients: Tensor) -> RowIds:
    """Return the ids of some clients of the cohort.

    Args:
        clients: [k] indices in the cohort.
    """
    return RowIds(neighbours.ids[clients], clients)


# ---- at the server -----------------------------------------------------------------------------------------


def list_candidates(before: Tensor, staying: RouteTable, new: RouteTable) -> tuple[Tensor, Tensor, Tensor]:
    """List the candidates at the server (Lumos, Alg. 3, l. 5-9).

    A candidate whose workload has changed counts both as one that has left and as a new one.

    Args:
        before: [c] ids of the candidates before.
        staying: The candidates that stay, as they have reported.

    Returns:
        The ids of all candidates [n]; for each that stays the changes [s, 1 + a + b]: how many have left,
        their ids, and the ids of the new ones; and for each new one the full list [j, n].

    Raises:
        InputError: More than MAX_PAIRS pairs would have to compare.
    """
    now = torch.cat([staying.ids, new.ids]).sort().values
    pairs = len(new.ids) * len(now)
    if pairs > MAX_PAIRS:
        raise InputError(
            f"balancer=mcmc lets {len(now)} clients compare with each other, in {pairs:.3g} pairs, more than "
            f"{MAX_PAIRS:.3g}; use balancer=local, which compares neighbours only"
        )
    left = before[~torch.isin(before, staying.ids)]
    changes = torch.cat([torch.tensor([len(left)], device=left.device), left, new.ids])
    return now, changes.expand(len(staying.ids), -1), now.expand(len(new.ids), -1)


# ---- among candidates --------------------------------------------------------------------------------------


def update_tables(
    chain: Chain, new: Tensor, staying: Tensor, changes: Tensor, full_list: Tensor
) -> tuple[Chain, Meeting]:
    """Update the tables of comparisons among candidates from the server's lists.

    Outcomes of candidates that have left are dropped, and new candidates get a row or a column.

    Args:
        new: [j] clients of the cohort that are new candidates.
        staying: [s] clients of the cohort that are still candidates.
        changes: [s, 1 + a + b] for each staying one: how many candidates have left, their ids, and the ids of
            the new ones.
        full_list: [j, c] for each new one the ids of all candidates.

    Returns:
        The state with its new tables, and the candidates that compare.
    """
    empty = chain.column_of[:0]
    column_of, row_of, num_larger_candidates = (
        chain.column_of.clone(),
        chain.row_of.clone(),
        chain.num_larger_candidates.clone(),
    )
    arrivals = empty
    if len(staying):
        count = int(changes[0, 0])
        left, arrivals = changes[0, 1 : 1 + count], changes[0, 1 + count :]
        num_larger_candidates[staying] -= chain.less[row_of[staying][:, None], column_of[left]].sum(1)
        column_of[left] = -1
        known = torch.cat([(column_of >= 0).nonzero()[:, 0], arrivals]).sort().values
        arriving = arrivals
    else:
        column_of.fill_(-1)
        known = arriving = full_list[0] if len(full_list) else empty
    stays = torch.zeros_like(chain.candidate)
    stays[staying] = True
    row_of[~stays] = -1
    num_larger_candidates[~stays] = 0
    columns, rows = (
        allocate(column_of, arriving, chain.less.shape[1]),
        allocate(row_of, new, chain.less.shape[0]),
    )
    less = chain.less
    if (rows, columns) != tuple(less.shape):
        less = less.new_zeros(rows, columns)
        less[: chain.less.shape[0], : chain.less.shape[1]] = chain.less
    return replace(
        chain, column_of=column_of, row_of=row_of, num_larger_candidates=num_larger_candidates, less=less
    ), Meeting(new, staying, known, arrivals)


def allocate(column_of: Tensor, ids: Tensor, size: int) -> int:
    """Give free places to some candidates.

    Args:
        column_of: [n] the place of each candidate (-1: none); changed in place.
        ids: [a] the candidates that need a place.
    """
    received = torch.zeros(size + len(ids), dtype=torch.bool, device=column_of.device)
    received[column_of[column_of >= 0]] = True
    free = (~received).nonzero()[: len(ids), 0]
    column_of[ids] = free
    # Grow by a quarter, so that the table is not copied for every new candidate.
    return size if not len(free) or int(free[-1]) < size else int(free[-1]) + 1 + size // 4


def pairs_to_compare(neighbours: Neighbours, meeting: Meeting) -> PairRows:
    """Return the pairs of candidates that have to compare: new ones with all, staying ones with new ones.

    Returns:
        The pairs, sorted by client.
    """
    client = torch.cat(
        [
            meeting.new.repeat_interleave(len(meeting.known)),
            meeting.staying.repeat_interleave(len(meeting.arrivals)),
        ]
    )
    other = torch.cat([meeting.known.repeat(len(meeting.new)), meeting.arrivals.repeat(len(meeting.staying))])
    apart = neighbours.ids[client] != other
    client, other = client[apart], other[apart]
    order = client.argsort(stable=True)
    return PairRows(client[order], other[order])


def every_row(rows: PairRows) -> Tensor:
    """Return the rows of all pairs.

    Returns:
        [p] int64.
    """
    return torch.arange(len(rows.client), device=rows.client.device)


def candidate_workloads(chain: Chain, rows: PairRows) -> Tensor:
    """Return the workload of each pair's client.

    Returns:
        [p] int64.
    """
    return chain.workload[rows.client]


def record_comparisons(chain: Chain, rows: PairRows, order: Tensor) -> Chain:
    """Record the outcomes of comparisons among candidates.

    Args:
        order: [p] outcome of each comparison.
    """
    less = chain.less.clone()
    smaller = order < 0
    less[chain.row_of[rows.client], chain.column_of[rows.other]] = smaller
    return replace(
        chain,
        less=less,
        num_larger_candidates=chain.num_larger_candidates.index_add(0, rows.client, smaller.long()),
    )


def largest_candidates(chain: Chain) -> Tensor:
    """Return the candidates with the largest workload.

    Returns:
        Clients in the cohort, ascending.

    Reference:
        Lumos, Alg. 3, l. 17-18.
    """
    # Alg. 3, l. 17-18
    return (chain.candidate & (chain.num_larger_candidates == 0)).nonzero()[:, 0]
