"""Rows from one end of pairs of clients to the other.

The rows of a transfer are of one shape, or bytes of different lengths, of which only those that are there are
sent and counted (`send_bytes`)."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.federation.core import Federation
from graphfed.federation.link import Pair
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure.pairs import (
    Ints,
    Known,
    Pairs,
    check_positions,
    find_mates,
    flow_between,
    links_coming,
    links_leaving,
    places_by_worker,
)
from graphfed.federation.transfer import Transfer, check_rows
from graphfed.federation.values import Located
from graphfed.nn.sparse import ranges

__all__ = ["pair_route", "send", "send_bytes", "swap"]


def swap(
    fed: Federation,
    pairs: Pairs,
    x: Located,
    which: Located,
    *,
    name: str,
    protection: str = "clear",
    grad: bool = False,
) -> Located:
    """Swap a row between the two ends of some pairs.

    Args:
        x: [n_h, ...] at each worker, what its ends of the pairs send.
        which: [n_h] int64, the pairs' positions in the rows, ascending; a pair of two clients of one worker
        has
            two.

    Returns:
        [n_h, ...] at each worker, what the other ends sent.

    Raises:
        PlaceError: When a worker is asked for one end of such a pair only.
    """
    return send(fed, pairs, x, which, which, name=name, protection=protection, grad=grad)


def send(
    fed: Federation,
    pairs: Pairs,
    x: Located,
    from_rows: Located,
    to_rows: Located,
    *,
    name: str,
    protection: str = "clear",
    grad: bool = False,
) -> Located:
    """Send a row from one end of some pairs to the other.

    Args:
        x: [n_h, ...] at each worker, a row for each pair that it sends for.
        from_rows: [n_h] int64, the positions of these pairs.
        to_rows: [m_h] int64, the positions of the same pairs at the workers that receive.

    Returns:
        [m_h, ...] at each worker, what arrived for the pairs at `to_rows`.
    """
    route = pair_route(fed, pairs, from_rows, to_rows)
    for rows, part in zip(from_rows.parts, x.parts, strict=True):
        check_rows(part, len(rows), f"transfer {name!r}: {x.name!r}", "the pairs asked are")
    got = fed.exchange(x, route, name=name, protection=protection, grad=grad)
    if fed.here and not route.pairs:
        # Who has no row in a transfer counts it as well: so the ledgers of all placements agree.
        fed.ledger.record(Transfer(name, "rows", route.flow, protection, grad).record_of(x.parts[0]))
    return got


def send_bytes(
    fed: Federation,
    pairs: Pairs,
    flat: Located,
    lengths: Located,
    from_rows: Located,
    to_rows: Located,
    sizes: Located,
    *,
    name: str,
    protection: str,
) -> Located:
    """Send some bytes from one end of some pairs to the other. No gradient is sent back.

    Args:
        flat: [B_h] uint8 at each worker, the bytes it sends, row after row.
        lengths: [n_h] int64, how many bytes each row sent has.
        from_rows, to_rows: The positions of the pairs at the two ends, as in `send`.
        sizes: [m_h] int64, how many bytes each row received has.

    Returns:
        [B'_h] uint8 at each worker, the bytes received, row after row.
    """
    known = pairs.at_clients
    ways = fed.clients.run(find_ways, known, from_rows, to_rows, str(fed.device))
    ways = fed.clients.run(ways_of_bytes, ways, known, from_rows, lengths, to_rows, sizes)
    return fed.exchange(flat, route_along(fed, pairs, ways), name=name, protection=protection, grad=False)


def pair_route(fed: Federation, pairs: Pairs, from_rows: Located, to_rows: Located) -> ExchangeRoute:
    """Return the route of the rows of `send`, for a program that sends on it more than once."""
    ways = fed.clients.run(find_ways, pairs.at_clients, from_rows, to_rows, str(fed.device))
    return route_along(fed, pairs, ways)


def route_along(fed: Federation, pairs: Pairs, ways: Located["Ways"]) -> ExchangeRoute:
    """The route of a `Ways` at each worker."""
    local: dict[int, Ways] = dict(zip(fed.here, ways.parts, strict=True))
    send: dict[Pair, Tensor] = {}
    between: set[Pair] = set()
    for h, way in local.items():
        send |= {(h, b): rows for b, rows in way.send.items()}
        between |= {(h, b) for b in way.send} | {(a, h) for a in way.arrives}
    flow = flow_between(fed, [(way.leaving, way.coming) for way in local.values()])
    order = {h: way.order for h, way in local.items()}
    return ExchangeRoute(pairs.name, tuple(sorted(between)), send, order, flow)


# ---- at the clients ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Ways:
    """The ways of rows between a worker and others: send: of the rows given, those for each worker; order:
    how those that arrive, worker after worker, are put; arrives: the workers they come from; leaving, coming
    [n, 3]: the links."""

    send: dict[int, Tensor]
    order: Tensor | None
    arrives: tuple[int, ...]
    leaving: Ints
    coming: Ints


def find_ways(known: Known, from_rows: Tensor, to_rows: Tensor, device: str) -> Ways:
    given, wanted = check_positions(known, from_rows), check_positions(known, to_rows)
    near = find_mates(known, wanted, given)
    leaving, coming = links_leaving(known, given, 1), links_coming(known, wanted, 1)
    if known.worker is None:
        _check_near(known, given, len(near))
        send = {known.own: near} if len(near) else {}
        return Ways(_as_tensors(send, device), None, tuple(send), leaving, coming)
    staying = np.flatnonzero(near >= 0)
    _check_near(known, given, len(staying))
    send, places = places_by_worker(known, given), places_by_worker(known, wanted)
    if len(staying):
        send[known.own], places[known.own] = near[staying], staying
    arrives = tuple(sorted(places))
    arriving = np.concatenate([wanted[:0], *(places[a] for a in arrives)])
    order = torch.from_numpy(np.argsort(arriving)).to(device)
    return Ways(_as_tensors(send, device), order, arrives, leaving, coming)


def _check_near(known: Known, given: Ints, wanted: int) -> None:
    """Of rows inside a worker as many are given as wanted: each that is wanted is given, so they are the
    same."""
    if (count := int((known.mate[given] >= 0).sum())) != wanted:
        raise PlaceError(f"{count} rows are sent between clients of one worker, which expect {wanted}")


def _as_tensors(places: dict[int, Ints], device: str) -> dict[int, Tensor]:
    return {b: torch.from_numpy(place).to(device) for b, place in places.items()}


def ways_of_bytes(
    ways: Ways, known: Known, from_rows: Tensor, lengths: Tensor, to_rows: Tensor, sizes: Tensor
) -> Ways:
    """The ways of the bytes of rows, from the ways of the rows."""
    starts = lengths.cumsum(0) - lengths
    order = None
    if ways.order is not None:
        arriving = sizes[torch.argsort(ways.order)]
        order = ranges((arriving.cumsum(0) - arriving)[ways.order], sizes)
    return replace(
        ways,
        send={b: ranges(starts[rows], lengths[rows]) for b, rows in ways.send.items()},
        order=order,
        leaving=links_leaving(known, from_rows.cpu().numpy(), lengths.cpu().numpy()),
        coming=links_coming(known, to_rows.cpu().numpy(), sizes.cpu().numpy()),
    )
