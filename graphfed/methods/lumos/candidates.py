"""The candidates of a step of Lumos's Markov chain: who could keep most, and how these compare (Alg. 3)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from graphfed.federation.secure.pairs import PairRows
from graphfed.methods.lumos.workload import Around

__all__ = [
    "MAX_PAIRS",
    "Chain",
    "Meeting",
    "allot",
    "every_row",
    "largest_ones",
    "meet",
    "rank",
    "rivals",
    "workload_of_rivals",
]


#: Most pairs of candidates that compare at a time: what all of them take in one process is about 8 GB.
MAX_PAIRS = 100_000_000


@dataclass(frozen=True, eq=False)
class Chain:
    """A cover, with what the devices know of it.

    Along edges: keeps, kept_by [C] bool; order [C] int8, the own workload against the neighbour's as they
    last compared; workload [K] int64; above [K] int64, neighbours with a larger one; candidate [K] bool.

    Among candidates: place [n] int64, by id, the column of each candidate that this host's candidates know
    of, and row [K] that of its own ones (-1: none); less [R, S] bool, whether the row's workload is less than
    the column's; beaten [K], how many candidates keep more."""

    keeps: Tensor
    kept_by: Tensor
    order: Tensor
    workload: Tensor
    above: Tensor
    candidate: Tensor
    place: Tensor
    row: Tensor
    less: Tensor
    beaten: Tensor


@dataclass(frozen=True, eq=False)
class Meeting:
    """Which candidates meet: new, staying [*], clients in the cohort; known, the ids of all candidates, and
    fresh, of those that are new to the staying ones, ascending."""

    new: Tensor
    staying: Tensor
    known: Tensor
    fresh: Tensor


def meet(chain: Chain, new: Tensor, staying: Tensor, told: Tensor, whole: Tensor) -> tuple[Chain, Meeting]:
    """Take the candidates' list to heart: who has left is forgotten, who is new gets a place."""
    empty = chain.place[:0]
    place, row, beaten = chain.place.clone(), chain.row.clone(), chain.beaten.clone()
    fresh = empty
    if len(staying):
        count = int(told[0, 0])
        left, fresh = told[0, 1 : 1 + count], told[0, 1 + count :]
        beaten[staying] -= chain.less[row[staying][:, None], place[left]].sum(1)
        place[left] = -1
        known = torch.cat([(place >= 0).nonzero()[:, 0], fresh]).sort().values
        arriving = fresh
    else:
        place.fill_(-1)
        known = arriving = whole[0] if len(whole) else empty
    own = torch.zeros_like(chain.candidate)
    own[staying] = True
    row[~own] = -1
    beaten[~own] = 0
    columns, rows = allot(place, arriving, chain.less.shape[1]), allot(row, new, chain.less.shape[0])
    less = chain.less
    if (rows, columns) != tuple(less.shape):
        less = less.new_zeros(rows, columns)
        less[: chain.less.shape[0], : chain.less.shape[1]] = chain.less
    return replace(chain, place=place, row=row, beaten=beaten, less=less), Meeting(new, staying, known, fresh)


def allot(place: Tensor, who: Tensor, size: int) -> int:
    """Give free places to `who`, in place; how many places there are then."""
    taken = torch.zeros(size + len(who), dtype=torch.bool, device=place.device)
    taken[place[place >= 0]] = True
    free = (~taken).nonzero()[: len(who), 0]
    place[who] = free
    # Room for more at a time, so that it does not grow with every newcomer.
    return size if not len(free) or int(free[-1]) < size else int(free[-1]) + 1 + size // 4


def rivals(around: Around, meeting: Meeting) -> PairRows:
    """The pairs of candidates that have to compare: new ones with everybody, the others with the new."""
    client = torch.cat(
        [
            meeting.new.repeat_interleave(len(meeting.known)),
            meeting.staying.repeat_interleave(len(meeting.fresh)),
        ]
    )
    other = torch.cat([meeting.known.repeat(len(meeting.new)), meeting.fresh.repeat(len(meeting.staying))])
    apart = around.ids[client] != other
    client, other = client[apart], other[apart]
    order = client.argsort(stable=True)
    return PairRows(client[order], other[order])


def every_row(rows: PairRows) -> Tensor:
    return torch.arange(len(rows.client), device=rows.client.device)


def workload_of_rivals(chain: Chain, rows: PairRows) -> Tensor:
    return chain.workload[rows.client]


def rank(chain: Chain, rows: PairRows, order: Tensor) -> Chain:
    less = chain.less.clone()
    smaller = order < 0
    less[chain.row[rows.client], chain.place[rows.other]] = smaller
    return replace(chain, less=less, beaten=chain.beaten.index_add(0, rows.client, smaller.long()))


def largest_ones(chain: Chain) -> Tensor:
    """Candidates whom no candidate beats (Alg. 3, operation 2), clients in the cohort."""
    return (chain.candidate & (chain.beaten == 0)).nonzero()[:, 0]
