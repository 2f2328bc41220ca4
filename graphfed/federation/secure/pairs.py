"""Pairs of clients, as each worker knows those of its clients.

A pair is two clients that may send each other messages. Both clients of a pair know of it beforehand
(`PairRows`), so opening pairs sends nothing. The two workers of a pair order their common pairs alike, by
(lower client, higher client). An operation on some of the pairs gets their positions in the rows; both
clients of a pair must give the same pairs.

    pair_transfers      send rows from one client of a pair to the other
    pair_protocols      run two-party protocols between the two clients of a pair
    compare             compare numbers that neither client shows the other
    notifications       notify the other clients of some pairs
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto.ot import TwoParty
from graphfed.errors import PlaceError
from graphfed.federation.core import Federation
from graphfed.federation.ledger import Flow
from graphfed.federation.values import Located

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NO_LINKS = np.zeros((0, 3), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PairRows:
    """The pairs of a worker's clients, with a row for each client of the worker that is in the pair.

    The rows are sorted by (client, other). A pair of two clients of the same worker has two rows.

    Attributes:
        client: [C] int64, the client's index in the cohort.
        other: [C] int64, the stable id of the other client of the pair.
    """

    client: Tensor
    other: Tensor


@dataclass(frozen=True, eq=False)
class KnownPairs:
    """What a worker knows of its clients' pairs, by row of its `PairRows`.

    Attributes:
        num_clients: K, of the whole run.
        client, other: [C] int64, the stable ids of the two clients of each row's pair.
        other_row: [C] int64, the row of the same pair for the other client; -1 where the other client is on
            another worker.
        other_worker: [C] int64, the worker of the other client. None if all are on this worker.
        opened: [C] bool, which pairs have set up a session. Changes during the run.
        sessions: The sessions by row, if protocols are real. Changes during the run.
    """

    num_clients: int
    worker: int
    client: Ints
    other: Ints
    other_row: Ints
    other_worker: Ints | None
    opened: Bools
    sessions: dict[int, TwoParty] = field(default_factory=dict)


@dataclass(frozen=True)
class Pairs:
    """Opened pairs of clients, a `KnownPairs` at each worker. `name` is what the ledger calls their
    sessions.
    """

    at_clients: Located[KnownPairs]
    name: str


@dataclass(frozen=True, eq=False)
class SelectedPairs:
    """The rows that an operation works on, and where the other clients of their pairs are.

    Attributes:
        rows: [n] int64, the rows, ascending.
        local: [n] int64, the position in `rows` of the same pair's other row; -1 where the other client is on
            another worker.
        remote: By other worker, the positions in `rows` of the pairs with its clients, in the order of (lower
            client, higher client).
    """

    rows: Ints
    local: Ints
    remote: dict[int, Ints]


def open_pairs(fed: Federation, rows: Located[PairRows], *, name: str) -> Pairs:
    """Open pairs of clients. Nothing is sent.

    PlaceError if the rows are not sorted, a client is paired with itself, or only one of two clients of the
    same worker lists the other.
    """
    starts = tuple(clients[0] for clients in fed.workers)
    known = fed.clients.run(know_pairs, rows, fed.client_ids(), starts, fed.num_clients, name)
    return Pairs(known, name)


# ---- at the clients ----------------------------------------------------------------------------------------


def know_pairs(
    rows: PairRows, ids: Tensor, starts: tuple[int, ...], num_clients: int, name: str
) -> KnownPairs:
    """Check a worker's rows and find where the other clients of its pairs are.

    `ids` [K_h] int64 are the worker's clients, `starts` the first client of every worker.
    """
    index, other = (t.cpu().numpy() for t in (rows.client, rows.other))
    if index.ndim != 1 or index.shape != other.shape or not index.dtype == other.dtype == np.int64:
        raise PlaceError(
            f"pairs {name!r}: client and other must be int64 vectors of one length; got {index.dtype} "
            f"{list(index.shape)} and {other.dtype} {list(other.shape)}"
        )
    here = ids.cpu().numpy()
    if len(index) and (index.min() < 0 or index.max() >= len(here)):
        raise PlaceError(f"pairs {name!r}: client must index the cohort, 0..{len(here) - 1}")
    if len(other) and (other.min() < 0 or other.max() >= num_clients):
        raise PlaceError(
            f"pairs {name!r}: other clients are {other.min()}..{other.max()}, but the clients are "
            f"0..{num_clients - 1}"
        )
    client = here[index]
    if (client == other).any():
        raise PlaceError(f"pairs {name!r}: client {client[client == other][0]} is paired with itself")
    codes = client * num_clients + other
    if not (np.diff(codes) > 0).all():
        raise PlaceError(f"pairs {name!r}: rows must be sorted by (client, other), each pair once")
    # The clients of a worker have consecutive ids.
    local = (other >= here[0]) & (other <= here[-1])
    other_row = np.full(len(client), -1)
    reversed_codes = (other * num_clients + client)[local]
    # Rows are sorted by (client, other), so the pair's other row is found by its reversed code.
    other_row[local] = np.searchsorted(codes, reversed_codes)
    if not np.array_equal(np.take(codes, other_row[local], mode="clip"), reversed_codes):
        wrong = np.take(codes, other_row[local], mode="clip") != reversed_codes
        row = np.flatnonzero(local)[wrong][0]
        raise PlaceError(
            f"pairs {name!r}: client {client[row]} lists client {other[row]}, which does not list it"
        )
    # None spares operations that only concern other workers, when all clients are here.
    other_worker = None if local.all() else np.searchsorted(np.array(starts), other, side="right") - 1
    worker = int(np.searchsorted(np.array(starts), here[0]))
    opened = np.zeros(len(client), dtype=bool)
    return KnownPairs(num_clients, worker, client, other, other_row, other_worker, opened)


def select_pairs(known: KnownPairs, which: Tensor) -> SelectedPairs:
    """Select the rows at positions [n] int64, ascending.

    PlaceError if the positions are not ascending or out of range, or a pair of two clients of this worker is
    selected for one of them only.
    """
    return select_rows(known, check_positions(known, which))


def select_rows(known: KnownPairs, rows: Ints) -> SelectedPairs:
    """Select rows [n] int64 whose positions are checked already."""
    return SelectedPairs(rows, find_partners(known, rows, rows), positions_by_worker(known, rows))


def check_positions(known: KnownPairs, which: Tensor) -> Ints:
    """Return positions in a worker's rows as an array, [n] int64; PlaceError unless they are ascending and
    in range.
    """
    rows: Ints = which.cpu().numpy()
    if rows.ndim != 1 or rows.dtype != np.int64 or not (rows[1:] > rows[:-1]).all():
        raise PlaceError(
            f"pairs are selected by ascending positions [n] int64; got {rows.dtype} {list(rows.shape)}"
        )
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(known.client)):
        raise PlaceError(f"pairs {rows[0]}..{rows[-1]} are selected, but there are {len(known.client)} pairs")
    return rows


def find_partners(known: KnownPairs, rows: Ints, among: Ints) -> Ints:
    """Find the other row of each pair of some rows [n] int64 among others [m], ascending.

    Costs time in proportion to the given rows, however many rows the worker has. Returns [n] int64, positions
    in `among`; -1 where the other client is on another worker. PlaceError if the other row of a pair of two
    clients of this worker is not in `among`.
    """
    partner, size = known.other_row[rows], len(known.other_row)
    if len(among) == size:
        return partner
    # A table of positions is faster for many rows, a binary search for few.
    if len(among) * 8 > size:
        table = np.full(size, -1)
        table[among] = np.arange(len(among))
        position = table[partner]
    else:
        position = np.searchsorted(among, partner)
    local = partner >= 0
    found = np.take(among, position, mode="clip") if len(among) else np.full(len(rows), -1)
    wrong = local & (found != partner)
    if wrong.any():
        row = rows[wrong][0]
        raise PlaceError(
            f"the pair of clients {known.client[row]} and {known.other[row]} is selected for one of the two "
            "only; select it for both"
        )
    return position if known.other_worker is None else np.where(local, position, -1)


def positions_by_worker(known: KnownPairs, rows: Ints) -> dict[int, Ints]:
    """Group rows [n] int64 by the worker of the other client of their pair, as positions in `rows`.

    They are in the order of (lower client, higher client): the other worker has the same pairs in the same
    order.
    """
    if known.other_worker is None or not len(rows):
        return {}
    worker, client, other = (a[rows] for a in (known.other_worker, known.client, known.other))
    # Sorted by worker first, so that each worker's pairs are one slice.
    order = np.lexsort((np.maximum(client, other), np.minimum(client, other), worker))
    workers, starts = np.unique(worker[order], return_index=True)
    positions = np.split(order, starts[1:])
    return {int(w): p for w, p in zip(workers, positions, strict=True) if w != known.worker}


# ---- what is sent between clients, as the ledger counts it -------------------------------------------------


def outgoing_links(known: KnownPairs, rows: Ints, units: Ints | int) -> Ints:
    """List what the clients of some rows send to the others of their pairs, [n, 3] as in
    `ledger.Flow.links`.
    """
    return np.stack([known.client[rows], known.other[rows], np.broadcast_to(units, rows.shape)]).T


def incoming_links(known: KnownPairs, rows: Ints, units: Ints | int) -> Ints:
    """List what the clients of some rows receive from clients of other workers, [m, 3] as in
    `ledger.Flow.links`.

    What clients of this worker send is in `outgoing_links` already.
    """
    if known.other_worker is None:
        return _NO_LINKS
    links = np.stack([known.other[rows], known.client[rows], np.broadcast_to(units, rows.shape)]).T
    return links[known.other_row[rows] < 0]


def flow_between(fed: Federation, traffic: Sequence[tuple[Ints, Ints]]) -> Flow:
    """Make the ledger's flow from the outgoing and the incoming links of every worker in this process."""
    links = [outgoing for outgoing, _ in traffic]
    if len(fed.here) < len(fed.workers):
        # A link from another worker of this process is one of that worker's outgoing links.
        links += [incoming[~fed.held[incoming[:, 0]]] for _, incoming in traffic]
    return Flow.peer(links[0] if len(links) == 1 else np.concatenate([_NO_LINKS, *links]), fed.held)
