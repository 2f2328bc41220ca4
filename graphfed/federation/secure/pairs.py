"""Pairs of clients, as the workers of their two ends know them.

Which clients make a pair both of its ends know before (`PairRows`), so nothing is sent to open the pairs, and
the order of rows between two workers is that of (lower client, higher client). An operation on some of the
pairs names their positions in the rows: the same pairs at both ends.

    pair_transfers      rows from one end to the other
    pair_protocols      two-party protocols between the two ends
    compare             comparisons of numbers that neither end shows the other
    notice              notes that nobody waits for
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

__all__ = [
    "Asked",
    "Known",
    "PairRows",
    "Pairs",
    "asked_rows",
    "check_positions",
    "find_mates",
    "flow_between",
    "links_coming",
    "links_leaving",
    "meet",
    "open_pairs",
    "places_by_worker",
]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_NO_LINKS = np.zeros((0, 3), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PairRows:
    """The pairs that a worker's clients are in, sorted by (client, other), each once at both its clients.

    client [C] int64: index in the cohort; other [C] int64: the stable id of the other client."""

    client: Tensor
    other: Tensor


@dataclass(frozen=True, eq=False)
class Known:
    """What a worker knows of its clients' pairs, by row.

    own: the worker; me, other [C]: both clients' stable ids; mate [C]: the row of the pair's other end, -1
    where that is on another worker; worker [C]: of the other client (None: all are on this one). These two
    change, as pairs compare for the first time: opened [C], who have set up a session, and `sessions` by row,
    where they are real."""

    clients: int
    own: int
    me: Ints
    other: Ints
    mate: Ints
    worker: Ints | None
    opened: Bools
    sessions: dict[int, TwoParty] = field(default_factory=dict)


@dataclass(frozen=True)
class Pairs:
    """Opened pairs: a `Known` at each worker of the clients."""

    at_clients: Located[Known]
    name: str


def open_pairs(fed: Federation, rows: Located[PairRows], *, name: str) -> Pairs:
    """Open pairs of clients. Nothing is sent.

    Args:
        rows: A `PairRows` at the clients.
        name: What the ledger calls the pairs' sessions.

    Raises:
        PlaceError: For rows that break their contract.
    """
    starts = tuple(clients[0] for clients in fed.workers)
    known = fed.clients.run(know_pairs, rows, fed.client_ids(), starts, fed.num_clients, name)
    return Pairs(known, name)


# ---- at the clients ----------------------------------------------------------------------------------------


def know_pairs(rows: PairRows, ids: Tensor, starts: tuple[int, ...], clients: int, name: str) -> Known:
    """What a worker knows of its pairs. ids [K_h]: its clients; starts: the first client of every worker."""
    client, other = (t.cpu().numpy() for t in (rows.client, rows.other))
    if client.ndim != 1 or client.shape != other.shape or not client.dtype == other.dtype == np.int64:
        raise PlaceError(
            f"pairs {name!r}: client and other must be int64 vectors of one length; got {client.dtype} "
            f"{list(client.shape)} and {other.dtype} {list(other.shape)}"
        )
    here = ids.cpu().numpy()
    if len(client) and (client.min() < 0 or client.max() >= len(here)):
        raise PlaceError(f"pairs {name!r}: client must index the cohort, 0..{len(here) - 1}")
    if len(other) and (other.min() < 0 or other.max() >= clients):
        raise PlaceError(
            f"pairs {name!r}: other clients are {other.min()}..{other.max()}, but the clients are "
            f"0..{clients - 1}"
        )
    me = here[client]
    if (me == other).any():
        raise PlaceError(f"pairs {name!r}: client {me[me == other][0]} is paired with itself")
    codes = me * clients + other
    if not (np.diff(codes) > 0).all():
        raise PlaceError(f"pairs {name!r}: rows must be sorted by (client, other), each pair once")
    near = (other >= here[0]) & (other <= here[-1])
    mate = np.full(len(me), -1)
    turned = (other * clients + me)[near]
    mate[near] = np.searchsorted(codes, turned)
    if not np.array_equal(np.take(codes, mate[near], mode="clip"), turned):
        lost = np.flatnonzero(near)[np.take(codes, mate[near], mode="clip") != turned][0]
        raise PlaceError(
            f"pairs {name!r}: client {me[lost]} lists client {other[lost]}, which does not list it"
        )
    worker = None if near.all() else np.searchsorted(np.array(starts), other, side="right") - 1
    own = int(np.searchsorted(np.array(starts), here[0]))
    return Known(clients, own, me, other, mate, worker, np.zeros(len(me), dtype=bool))


@dataclass(frozen=True, eq=False)
class Asked:
    """Rows of which something is asked: rows [n] ascending; near [n]: where among them the pair's other end
    is, -1 where on another worker; far: by worker, the places of those whose other end is there, by (lower
    client, higher client)."""

    rows: Ints
    near: Ints
    far: dict[int, Ints]


def meet(known: Known, which: Tensor) -> Asked:
    """The rows at some positions, and where their other ends are."""
    return asked_rows(known, check_positions(known, which))


def asked_rows(known: Known, rows: Ints) -> Asked:
    """As `meet`, of positions that are checked."""
    return Asked(rows, find_mates(known, rows, rows), places_by_worker(known, rows))


def check_positions(known: Known, which: Tensor) -> Ints:
    """Positions in the rows, checked."""
    rows: Ints = which.cpu().numpy()
    if rows.ndim != 1 or rows.dtype != np.int64 or not (rows[1:] > rows[:-1]).all():
        raise PlaceError(
            f"pairs are asked by ascending positions [n] int64; got {rows.dtype} {list(rows.shape)}"
        )
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(known.me)):
        raise PlaceError(f"pairs {rows[0]}..{rows[-1]} are asked of {len(known.me)}")
    return rows


def find_mates(known: Known, rows: Ints, among: Ints) -> Ints:
    """Where among some rows the other end of each of `rows` is, -1 where it is on another worker. Costs what
    the rows take, however many there are besides."""
    mate, size = known.mate[rows], len(known.mate)
    if len(among) == size:
        return mate
    if len(among) * 8 > size:
        places = np.full(size, -1)
        places[among] = np.arange(len(among))
        place = places[mate]
    else:
        place = np.searchsorted(among, mate)
    near = mate >= 0
    found = np.take(among, place, mode="clip") if len(among) else np.full(len(rows), -1)
    wrong = near & (found != mate)
    if wrong.any():
        lost = rows[wrong][0]
        raise PlaceError(
            f"the pair of clients {known.me[lost]} and {known.other[lost]} is asked at one of its ends only"
        )
    return place if known.worker is None else np.where(near, place, -1)


def places_by_worker(known: Known, rows: Ints) -> dict[int, Ints]:
    """By other worker, the places of the rows whose other end is there."""
    if known.worker is None or not len(rows):
        return {}
    worker, me, other = (a[rows] for a in (known.worker, known.me, known.other))
    order = np.lexsort((np.maximum(me, other), np.minimum(me, other), worker))
    workers, starts = np.unique(worker[order], return_index=True)
    places = np.split(order, starts[1:])
    return {int(b): p for b, p in zip(workers, places, strict=True) if b != known.own}


# ---- what is sent between clients, as the ledger counts it -------------------------------------------------


def links_leaving(known: Known, rows: Ints, units: Ints | int) -> Ints:
    """The links [n, 3] from the rows' clients to the others."""
    return np.stack([known.me[rows], known.other[rows], np.broadcast_to(units, rows.shape)]).T


def links_coming(known: Known, rows: Ints, units: Ints | int) -> Ints:
    """The links [m, 3] to the rows' clients, from those on other workers: the others leave clients of this
    one."""
    if known.worker is None:
        return _NO_LINKS
    links = np.stack([known.other[rows], known.me[rows], np.broadcast_to(units, rows.shape)]).T
    return links[known.mate[rows] < 0]


def flow_between(fed: Federation, traffic: Sequence[tuple[Ints, Ints]]) -> Flow:
    """The flow of what clients send each other.

    Args:
        traffic: Of every worker in this process, the links [n, 3] that leave its clients and that come to
        them.
            Those from another worker in this process are counted there.
    """
    links = [leaving for leaving, _ in traffic]
    if len(fed.here) < len(fed.workers):
        links += [coming[~fed.held[coming[:, 0]]] for _, coming in traffic]
    return Flow.peer(links[0] if len(links) == 1 else np.concatenate([_NO_LINKS, *links]), fed.held)
