"""Routes: which rows are sent where.

The participants agree on a route once, by a setup transfer that the ledger counts; afterwards sender and
receiver both know the rows.
"""

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


@dataclass(frozen=True)
class RowIds:
    """The ids of the rows that a worker's clients send or want, in row order.

    Attributes:
        ids: [M] int64.
        client: [M] int64, the index in the cohort of each row's client, ascending.
    """

    ids: Tensor
    client: Tensor


@dataclass(frozen=True)
class ExchangeIds:
    """The rows that a worker's clients want from other clients, and the rows that they hold.

    Attributes:
        owner: [M] int64, the id of the client that owns each wanted row.
        ids: [M] int64, the ids of the wanted rows.
        client: [M] int64, the index in the cohort of the client that wants it.
        held_ids: [N] int64, the ids of the cohort's rows.
        held_client: [N] int64, the index in the cohort of the client that holds each of them.
    """

    owner: Tensor
    ids: Tensor
    client: Tensor
    held_ids: Tensor
    held_client: Tensor


@dataclass(frozen=True)
class RouteTable:
    """A route as the server knows it: M rows arrive in client order, with U different ids.

    Attributes:
        ids: [U] int64, ascending.
        index: [M] int64, the position in `ids` of each row's id.
        client: [M] int64, the stable id of each row's client.
    """

    ids: Tensor
    index: Tensor
    client: Tensor

    @cached_property
    def rows_of_ids(self) -> SparseMatrix:
        """The rows of each id, as entries (u, m) of a matrix [U, M]."""
        rows = torch.arange(len(self.index), device=self.index.device)
        # Only the pattern counts: maxima are taken over the entries of a row.
        ones = torch.ones(len(rows), device=rows.device)
        return SparseMatrix.from_coo(self.index, rows, ones, (len(self.ids), len(rows)))


@dataclass(frozen=True)
class Route:
    """Rows that are sent between the clients and the server.

    Attributes:
        name: The name of the transfer that agreed on it.
        sizes: The number of rows of each worker; at the server of all workers, elsewhere of those in this
            process.
        flow: The rows of each client, towards the server, as this process sees them.
        table: The server's table; None in other processes.
    """

    name: str
    sizes: dict[int, int]
    flow: Flow
    table: RouteTable | None


@dataclass(frozen=True)
class ExchangeRoute:
    """Rows that clients send each other.

    Pairs (a, b) of sending and receiving worker have rows to send, and one of the two is in this process.

    Attributes:
        name: The name of the transfer that agreed on it.
        pairs: The pairs (a, b).
        send: If a is in this process, [m_ab] int64: the rows of a's cohort that b wants.
        order: If b is in this process, [M_b] int64: for each of b's wants, which of the received rows answers
            it, with the rows of one sender after those of another. None if they arrive in order.
        flow: The rows between clients, as this process sees them.
        place: If b is in this process, [m_ab] int64: which of b's wants the rows answer. Used to restrict the
            route (`Federation.restrict_route`).
        links: [m_ab] int64, the clients of each row, as sender * K + receiver. Used to restrict the route.
    """

    name: str
    pairs: tuple[Pair, ...]
    send: dict[Pair, Tensor]
    order: dict[int, Tensor | None]
    flow: Flow
    place: dict[Pair, Tensor] = field(default_factory=dict)
    links: dict[Pair, Tensor] = field(default_factory=dict)


def everyone(workers: Sequence[tuple[int, ...]], here: Sequence[int], held: np.ndarray) -> ExchangeRoute:
    """Make the route of one row from every client to every other client. `held` [K] bool are the clients in
    this process. It follows from who takes part, so the participants need not agree on it.

    A sending worker has rows [K_h * K, ...], by sender and receiver; a client's row to itself is not sent. A
    receiving worker gets [K_h * (K - 1), ...], by receiver and sender.
    """
    num_clients = len(held)
    pairs: list[Pair] = []
    send: dict[Pair, Tensor] = {}
    arriving: dict[int, list[np.ndarray]] = {b: [] for b in here}
    for a, senders in enumerate(workers):
        for b, receivers in enumerate(workers):
            if a not in here and b not in here:
                continue
            # Every (sender, receiver) of the two workers, except from a client to itself.
            sender, receiver = (grid.ravel() for grid in np.meshgrid(senders, receivers, indexing="ij"))
            others = sender != receiver
            sender, receiver = sender[others], receiver[others]
            if not len(sender):
                continue
            pairs.append((a, b))
            if a in here:
                # The clients of a worker have consecutive ids, so the difference is the index in its cohort.
                send[a, b] = torch.from_numpy((sender - senders[0]) * num_clients + receiver)
            if b in here:
                arriving[b].append(receiver * num_clients + sender)
    # Rows arrive sorted by sending worker; the order sorts them by receiver and sender.
    order = {
        b: torch.from_numpy(np.argsort(np.concatenate([np.zeros(0, np.int64), *codes])))
        for b, codes in arriving.items()
    }
    sender, receiver = np.nonzero(~np.eye(num_clients, dtype=bool))
    links = np.stack([sender, receiver, np.ones(len(sender), dtype=np.int64)], 1)
    return ExchangeRoute("everyone", tuple(pairs), send, dict(order), Flow.peer(links, held))


def count_rows(rows: RowIds, num_clients: int, name: str) -> np.ndarray:
    """Count the rows of each client of a cohort, [K_h] int64.

    Raises:
        PlaceError: If the rows are not sorted by client, or not vectors of one length.
    """
    ids, client = rows.ids, rows.client
    if ids.ndim != 1 or ids.shape != client.shape or ids.dtype != torch.int64:
        raise PlaceError(
            f"route {name!r}: ids and client must be vectors of one length, ids int64; "
            f"got {ids.dtype} {list(ids.shape)} and {list(client.shape)}"
        )
    # The ledger and the server count rows by client, so rows must be contiguous for each.
    sorted_by_client = bool((client.diff() >= 0).all())
    in_range = not len(client) or (int(client[0]) >= 0 and int(client[-1]) < num_clients)
    if not sorted_by_client or not in_range:
        raise PlaceError(
            f"route {name!r}: the rows must be sorted by client, with clients 0..{num_clients - 1}"
        )
    counts: np.ndarray = torch.bincount(client, minlength=num_clients).cpu().numpy()
    return counts


def ids_fit(payload: object, num_clients: int) -> bool:
    """Tell whether a worker's payload is ids [M] and how many of them each of its clients has [K_h], all
    int64.
    """
    vectors = _int_vectors(payload)
    if len(vectors) != 2:
        return False
    ids, counts = vectors
    # Each count is bounded before the sum, which huge counts could overflow.
    fit = len(counts) == num_clients and bool((counts >= 0).all()) and bool((counts <= len(ids)).all())
    return fit and int(counts.sum()) == len(ids)


def wants_fit(payload: object, worker: tuple[int, ...]) -> bool:
    """Tell whether a worker's request is owners, ids and askers.

    They must be [m] int64 each, and the askers must be clients of the worker.
    """
    vectors = _int_vectors(payload)
    if len(vectors) != 3 or len({len(vector) for vector in vectors}) > 1:
        return False
    asker = vectors[2]
    return not len(asker) or (int(asker.min()) >= worker[0] and int(asker.max()) <= worker[-1])


def _int_vectors(payload: object) -> list[Tensor]:
    """The int64 vectors of a tuple; an empty list if the payload is anything else."""
    if not isinstance(payload, tuple):
        return []
    vectors = [x for x in payload if isinstance(x, Tensor) and x.dtype == torch.int64 and x.ndim == 1]
    return vectors if len(vectors) == len(payload) else []


def make_table(arrived: list[tuple[Tensor, Tensor]]) -> tuple[RouteTable, np.ndarray]:
    """Make the server's table, and the rows of each client [K] int64, from every worker's (ids, number of
    rows of each client).
    """
    unique, index = torch.unique(torch.cat([ids for ids, _ in arrived]), return_inverse=True)
    client_rows = torch.cat([counts for _, counts in arrived])
    # Workers arrive in client order, so row m belongs to the client whose count covers m.
    client = torch.repeat_interleave(torch.arange(len(client_rows), device=client_rows.device), client_rows)
    return RouteTable(unique, index, client.to(unique.device)), client_rows.cpu().numpy()


def check_wants(wants: ExchangeIds, worker: tuple[int, ...], num_clients: int, name: str) -> None:
    """Check what a worker's clients want.

    Raises:
        PlaceError: If a client or an owner is out of range, or a client wants its own row.
    """
    owner, client = wants.owner, wants.client
    if not owner.shape == wants.ids.shape == client.shape or owner.ndim != 1:
        raise PlaceError(f"route {name!r}: owner, ids and client must be vectors of one length")
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
        client_id = int(owner[owner == client + worker[0]][0])
        raise PlaceError(
            f"route {name!r}: client {client_id} wants a row that it owns; a client can ask others only"
        )


def find_rows(
    held: ExchangeIds, worker: tuple[int, ...], owner: Tensor, ids: Tensor, name: str, asked_by: str
) -> Tensor:
    """Find the rows of a cohort that hold wanted (owner, id) pairs, [m] int64.

    Args:
        held: The rows that the cohort holds.
        owner: [m] int64, the client that is asked.
        ids: [m] int64, the id that is asked for.
        name: The name of the route, for messages.

    Raises:
        InputError: If a client of this worker is asked for a row that it does not hold.
    """
    client = owner - worker[0]
    # Ids may be any numbers up to 2^63, so a code uses the position of an id among the held ids.
    known, place = torch.unique(held.held_ids, return_inverse=True)
    wanted_place = torch.searchsorted(known, ids).clamp(max=max(len(known) - 1, 0))
    # The request may come from another process: whatever it names, no index leaves its range.
    wrong = (client < 0) | (client >= len(worker))
    wrong = wrong | (known[wanted_place] != ids if len(known) else torch.ones_like(wrong))
    # One number for each (client, id) that the cohort holds, to find wanted pairs by binary search.
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


def expand_table(table: RouteTable, counts: Tensor) -> RouteTable:
    """Make the table of a route with counts[u] rows for each row of id u. The new ids are 0, 1, ..."""
    starts = counts.cumsum(0) - counts
    each = counts[table.index]
    return RouteTable(
        ids=torch.arange(int(counts.sum()), device=counts.device),
        index=ranges(starts[table.index], each),
        client=torch.repeat_interleave(table.client, each),
    )


def is_subset(numbers: object, size: int) -> bool:
    """Tell whether a value is row numbers out of 0..size - 1, ascending, each once."""
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or numbers.dim() != 1:
        return False
    if not len(numbers):
        return True
    return int(numbers[0]) >= 0 and int(numbers[-1]) < size and bool((numbers.diff() > 0).all())


def sum_parts(counts: Tensor, rows: np.ndarray) -> np.ndarray:
    """Sum consecutive parts of counts [M], of rows[k] numbers each: [K] int64."""
    # Differences of running totals: one pass, however many parts, and parts may be empty.
    totals = np.concatenate([[0], np.cumsum(counts.cpu().numpy())])
    stops = np.cumsum(rows)
    sums: np.ndarray = totals[stops] - totals[stops - rows]
    return sums


def find_order(places: Sequence[Tensor]) -> Tensor | None:
    """Find how to order rows that arrive one sender after the other. None if they arrive in order.

    `places` has for each sender's rows which want they answer: different numbers that ascend with the wants.
    """
    place = torch.cat(list(places))
    ascending = len(place) < 2 or bool((place[1:] > place[:-1]).all())
    return None if ascending else torch.argsort(place)


def encode_links(sender: Tensor, receiver: Tensor, num_clients: int) -> Tensor:
    """Encode the sender and the receiver of each row as one number."""
    return sender * num_clients + receiver


def traffic(links: Tensor, num_clients: int) -> np.ndarray:
    """Count the rows of each pair of clients: [P, 3] int64, (sender, receiver, rows) of the pairs with rows.

    `links` [m] int64 has the clients of each row (`ExchangeRoute.links`).
    """
    # A table of all pairs of clients is faster than sorting, but only if it is not larger than the input.
    if num_clients**2 <= max(len(links), 1000):
        rows = torch.bincount(links, minlength=num_clients**2)
        codes = rows.nonzero()[:, 0]
        rows = rows[codes]
    else:
        codes, rows = torch.unique(links, return_counts=True)
    return torch.stack([codes // num_clients, codes % num_clients, rows], dim=1).cpu().numpy()
