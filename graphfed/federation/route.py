"""Routes: which rows go where, agreed once by a metered set-up transfer and known at both ends (design
decision 2)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError, PlaceError
from graphfed.federation.ledger import Flow
from graphfed.federation.link import Pair
from graphfed.nn.sparse import SparseMatrix, ranges

__all__ = ["ExchangeIds", "ExchangeRoute", "Route", "RouteTable", "RowIds", "everyone"]


@dataclass(frozen=True)
class RowIds:
    """The ids of the rows a worker's clients send or want, in row order: ids [M] int64, client [M] int64
    (index in the cohort, ascending: rows of one client stand together)."""

    ids: Tensor
    client: Tensor


@dataclass(frozen=True)
class ExchangeIds:
    """What a worker's clients want from other clients: client [M] the owner's client id, ids [M] the wanted
    ids,
    client [M] who wants (index in the cohort); and what they hold: held_ids [N] and held_client [N] of the
    cohort's rows."""

    owner: Tensor
    ids: Tensor
    client: Tensor
    held_ids: Tensor
    held_client: Tensor


@dataclass(frozen=True)
class RouteTable:
    """A route as the server knows it. M rows arrive, in client order; U different ids among them.

    ids [U] int64 ascending; index [M] the position in `ids` of each row's id; client [M] the stable client id
    of each row."""

    ids: Tensor
    index: Tensor
    client: Tensor

    @cached_property
    def holders(self) -> SparseMatrix:
        """The rows of each id: entries (u, m) of a matrix [U, M]."""
        rows = torch.arange(len(self.index), device=self.index.device)
        ones = torch.ones(len(rows), device=rows.device)
        return SparseMatrix.from_coo(self.index, rows, ones, (len(self.ids), len(rows)))


@dataclass(frozen=True)
class Route:
    """Rows between the clients and the server. sizes: rows of each worker (of those here; of all at the
    server); flow: rows of each client whose traffic this process sees, upwards; table: at the server only."""

    name: str
    sizes: dict[int, int]
    flow: Flow
    table: RouteTable | None


@dataclass(frozen=True)
class ExchangeRoute:
    """Rows between clients, for every pair (sending worker a, receiving worker b) with rows of which one is
    here.

    send[a, b] [m_ab]: rows of a's cohort that b wants (a is here); order[b] [M_b]: of the rows that reach b,
    sender after sender, the one that answers each want (b is here; None: as they come). So that some of the
    wants can be asked for again (`Federation.restrict_route`): place[a, b] [m_ab], which of b's wants the
    rows answer (b is here), and links[a, b] [m_ab], the clients of each row, as sender * K + receiver."""

    name: str
    pairs: tuple[Pair, ...]
    send: dict[Pair, Tensor]
    order: dict[int, Tensor | None]
    flow: Flow
    place: dict[Pair, Tensor] = field(default_factory=dict)
    links: dict[Pair, Tensor] = field(default_factory=dict)


def everyone(workers: Sequence[tuple[int, ...]], here: Sequence[int], held: np.ndarray) -> ExchangeRoute:
    """A row from every client to every other one. It follows from who takes part, so nothing crosses for it.

    Rows to send: [K_h * K, ...], by sender and receiver (a client's row to itself stays); they arrive as
    [K_h * (K - 1), ...], by receiver and sender. held [K] bool: the clients in this process."""
    num_clients = len(held)
    pairs: list[Pair] = []
    send: dict[Pair, Tensor] = {}
    arriving: dict[int, list[np.ndarray]] = {b: [] for b in here}
    for a, senders in enumerate(workers):
        for b, receivers in enumerate(workers):
            if a not in here and b not in here:
                continue
            sender, receiver = (grid.ravel() for grid in np.meshgrid(senders, receivers, indexing="ij"))
            others = sender != receiver
            sender, receiver = sender[others], receiver[others]
            if not len(sender):
                continue
            pairs.append((a, b))
            if a in here:
                send[a, b] = torch.from_numpy((sender - senders[0]) * num_clients + receiver)
            if b in here:
                arriving[b].append(receiver * num_clients + sender)
    order = {
        b: torch.from_numpy(np.argsort(np.concatenate([np.zeros(0, np.int64), *codes])))
        for b, codes in arriving.items()
    }
    sender, receiver = np.nonzero(~np.eye(num_clients, dtype=bool))
    links = np.stack([sender, receiver, np.ones(len(sender), dtype=np.int64)], 1)
    return ExchangeRoute("everyone", tuple(pairs), send, dict(order), Flow.peer(links, held))


def row_counts(rows: RowIds, num_clients: int, name: str) -> np.ndarray:
    """Rows of each of a cohort's K clients, [K] int64. Raises PlaceError when `rows` break their contract."""
    ids, client = rows.ids, rows.client
    if ids.ndim != 1 or ids.shape != client.shape or ids.dtype != torch.int64:
        raise PlaceError(
            f"route {name!r}: ids and client must be vectors of one length, ids int64; "
            f"got {ids.dtype} {list(ids.shape)} and {list(client.shape)}"
        )
    sorted_by_client = bool((client.diff() >= 0).all())
    in_range = not len(client) or (int(client[0]) >= 0 and int(client[-1]) < num_clients)
    if not sorted_by_client or not in_range:
        raise PlaceError(
            f"route {name!r}: the rows must be sorted by client, with clients 0..{num_clients - 1}"
        )
    counts: np.ndarray = torch.bincount(client, minlength=num_clients).cpu().numpy()
    return counts


def ids_fit(payload: object, num_clients: int) -> bool:
    """Whether a worker's payload is ids [M] int64 and how many of them each of its clients has, [K_h]
    int64."""
    vectors = _int_vectors(payload)
    if len(vectors) != 2:
        return False
    ids, counts = vectors
    fit = len(counts) == num_clients and bool((counts >= 0).all()) and bool((counts <= len(ids)).all())
    return fit and int(counts.sum()) == len(ids)


def wants_fit(payload: object, worker: tuple[int, ...]) -> bool:
    """Whether what a worker asks another one for is owners, ids and askers, [m] int64 each, and the askers
    are its clients."""
    vectors = _int_vectors(payload)
    if len(vectors) != 3 or len({len(vector) for vector in vectors}) > 1:
        return False
    asker = vectors[2]
    return not len(asker) or (int(asker.min()) >= worker[0] and int(asker.max()) <= worker[-1])


def _int_vectors(payload: object) -> list[Tensor]:
    """The vectors of int64 in a tuple of nothing else; an empty list for any other payload."""
    if not isinstance(payload, tuple):
        return []
    vectors = [x for x in payload if isinstance(x, Tensor) and x.dtype == torch.int64 and x.ndim == 1]
    return vectors if len(vectors) == len(payload) else []


def make_table(arrived: list[tuple[Tensor, Tensor]]) -> tuple[RouteTable, np.ndarray]:
    """The server's table from every worker's (ids, rows of each of its clients), and every client's rows
    [K]."""
    unique, index = torch.unique(torch.cat([ids for ids, _ in arrived]), return_inverse=True)
    every = torch.cat([counts for _, counts in arrived])
    client = torch.repeat_interleave(torch.arange(len(every), device=every.device), every)
    return RouteTable(unique, index, client.to(unique.device)), every.cpu().numpy()


def check_wants(wants: ExchangeIds, worker: tuple[int, ...], num_clients: int, name: str) -> None:
    """Raises PlaceError when what a worker's clients want is out of range, or is their own."""
    owner, client = wants.owner, wants.client
    if not owner.shape == wants.ids.shape == client.shape or owner.ndim != 1:
        raise PlaceError(f"route {name!r}: client, ids and client must be vectors of one length")
    if not len(owner):
        return
    if int(owner.min()) < 0 or int(owner.max()) >= num_clients:
        raise PlaceError(
            f"route {name!r}: rows are wanted from clients {int(owner.min())}..{int(owner.max())}, "
            f"but the clients are 0..{num_clients - 1}"
        )
    if int(client.min()) < 0 or int(client.max()) >= len(worker):
        raise PlaceError(f"route {name!r}: client must index the cohort, 0..{len(worker) - 1}")
    if bool((owner == client + worker[0]).any()):
        own = int(owner[owner == client + worker[0]][0])
        raise PlaceError(f"route {name!r}: client {own} wants a row of its own; what it holds does not cross")


def find_rows(
    held: ExchangeIds, worker: tuple[int, ...], owner: Tensor, ids: Tensor, name: str, asked_by: str
) -> Tensor:
    """The rows of a cohort that hold the wanted (client, id) pairs, [m]; asked_by: for messages.

    Raises InputError when a client of this worker is asked for a node it does not hold."""
    client = owner - worker[0]
    # Ids may be any numbers up to 2^63: a code has the id's place among those held.
    known, place = torch.unique(held.held_ids, return_inverse=True)
    wanted_place = torch.searchsorted(known, ids).clamp(max=max(len(known) - 1, 0))
    wrong = (client < 0) | (client >= len(worker))
    wrong = wrong | (known[wanted_place] != ids if len(known) else torch.ones_like(wrong))
    codes = held.held_client * len(known) + place
    order = torch.argsort(codes)
    wanted = client * len(known) + wanted_place
    row = torch.searchsorted(codes[order], wanted).clamp(max=max(len(codes) - 1, 0))
    if len(codes):
        row = order[row]
        wrong = wrong | (codes[row] != wanted)
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        raise InputError(
            f"route {name!r}: client {int(owner[first])} is asked for node {int(ids[first])}, "
            f"which it does not hold, by {asked_by}"
        )
    return row


def expanded_table(table: RouteTable, counts: Tensor) -> RouteTable:
    """The table of a route with counts[u] rows for each row of id u, [U] int64; the new ids are 0, 1, ..."""
    starts = counts.cumsum(0) - counts
    each = counts[table.index]
    return RouteTable(
        ids=torch.arange(int(counts.sum()), device=counts.device),
        index=ranges(starts[table.index], each),
        client=torch.repeat_interleave(table.client, each),
    )


def is_subset(numbers: object, size: int) -> bool:
    """Whether these are row numbers, some of 0..size - 1, each once and ascending."""
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or numbers.dim() != 1:
        return False
    if not len(numbers):
        return True
    return int(numbers[0]) >= 0 and int(numbers[-1]) < size and bool((numbers.diff() > 0).all())


def sums_of_parts(counts: Tensor, rows: np.ndarray) -> np.ndarray:
    """The sums of consecutive parts of counts [M], of rows[k] each: [K] int64."""
    totals = np.concatenate([[0], np.cumsum(counts.cpu().numpy())])
    ends = np.cumsum(rows)
    sums: np.ndarray = totals[ends] - totals[ends - rows]
    return sums


def in_order(places: Sequence[Tensor]) -> Tensor | None:
    """How to put rows that arrive sender after sender where they are wanted; None: they arrive in order.

    places: of each sender's rows, which want they answer; any different numbers that ascend with the
    wants."""
    place = torch.cat(list(places))
    ascending = len(place) < 2 or bool((place[1:] > place[:-1]).all())
    return None if ascending else torch.argsort(place)


def link_codes(sender: Tensor, receiver: Tensor, num_clients: int) -> Tensor:
    """The clients of each row as one number."""
    return sender * num_clients + receiver


def traffic(links: Tensor, num_clients: int) -> np.ndarray:
    """The pairs of clients with traffic, from the links of each row [m] (`ExchangeRoute.links`): [P, 3]
    (sender, receiver, rows)."""
    if num_clients**2 <= max(len(links), 1000):
        rows = torch.bincount(links, minlength=num_clients**2)
        codes = rows.nonzero()[:, 0]
        rows = rows[codes]
    else:
        codes, rows = torch.unique(links, return_counts=True)
    return torch.stack([codes // num_clients, codes % num_clients, rows], dim=1).cpu().numpy()
