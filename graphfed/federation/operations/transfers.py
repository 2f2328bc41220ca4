"""Payload transfers: which messages are sent, and what the receiver computes from them.

The sender or the receiver computes sums, maxima and the order of rows with operations that autograd knows.
Every transfer raises ReceivedError if another process sends a payload that cannot be used.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

import graphfed.federation.payload as pay
from graphfed.errors import InputError, PlaceError
from graphfed.federation.link import SERVER_INDEX, Pair
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.operations.places import Places
from graphfed.federation.payload import Payload, Rows
from graphfed.federation.route import ExchangeRoute, Route
from graphfed.federation.transfer import Ideal, Options, Transfer, check_rows, form_of
from graphfed.federation.values import ABSENT, CLIENTS, SERVER, Located
from graphfed.nn.sparse import SparseWeights

# ---- clients to server -------------------------------------------------------------------------------------


def upload(delivery: Delivery, x: Located, route: Route, options: Options) -> Located:
    """Implement `Federation.upload`."""
    transfer = Transfer(kind="rows", flow=route.flow, **options)
    return Located(SERVER, transfer.name, _send_route(delivery, x, route, transfer))


def gather(delivery: Delivery, x: Located, options: Options) -> Located:
    """Implement `Federation.gather`."""
    transfer = Transfer(kind="gather", flow=delivery.places.flow, **options)
    delivery.places.check_all_present(transfer.name)
    return _send_client_rows(delivery, x, transfer)


def collect(delivery: Delivery, x: Located, options: Options) -> Located:
    """Implement `Federation.collect`."""
    return _send_client_rows(delivery, x, Transfer(kind="gather", flow=delivery.places.flow, **options))


def add(delivery: Delivery, x: Located, route: Route | None, options: Options) -> Located:
    """Implement `Federation.sum`."""
    places = delivery.places
    if route is not None:
        transfer = Transfer(kind="sum", flow=route.flow, **options)
        arrived = _send_route(delivery, x, route, transfer)
        return Located(SERVER, transfer.name, tuple(pay.add_rows(rows, *_groups(route)) for rows in arrived))
    transfer = Transfer(kind="sum", flow=places.flow, leading=False, **options)
    if transfer.wrap is not None:
        raise PlaceError(
            f"transfer {transfer.name!r}: a sum without a route takes no wrapper, because a worker sends the "
            "total of its clients and not their parts; use average or gather"
        )
    places.check_sent(x, CLIENTS, transfer.name)
    # A worker sends one total [...], so the first dimension counts nothing (`leading=False`).
    got = delivery.move(transfer, _from_workers(places, x), places.up)
    parts = (_total([got[p] for p in places.up]),) if places.server_is_here else ()
    return Located(SERVER, transfer.name, parts)


def maximum(delivery: Delivery, x: Located, route: Route, options: Options) -> Located:
    """Implement `Federation.max`."""
    transfer = Transfer(kind="max", flow=route.flow, **options)
    arrived = _send_route(delivery, x, route, transfer)
    # [M, H] in client order: of equal rows the first is that of the client with the lowest id.
    maxima = tuple(pay.max_rows(rows, route.table.rows_of_ids) for rows in arrived if route.table)
    return Located(SERVER, transfer.name, maxima)


def average(
    delivery: Delivery, x: Located, weights: Located, otherwise: Located | None, options: Options
) -> Located:
    """Implement `Federation.average`."""
    places = delivery.places
    transfer = Transfer(kind="average", flow=places.flow, **options)
    name = transfer.name
    places.check_sent(x, CLIENTS, name)
    places.check_sent(weights, SERVER, name)
    if otherwise is not None:
        places.check_sent(otherwise, SERVER, name)
    payloads = _from_workers(places, x)
    # Inside a process the values of a cohort are sent as stored. Over a link, or in a wrapper, the value of
    # each client that takes part is sent in full.
    in_full = delivery.link is not None or transfer.wrap is not None
    if in_full:
        payloads = {(h, server): pay.parts(m, places.present_in(h)) for (h, server), m in payloads.items()}
    sizes = {(h, server): len(places.present_in(h)) for h, server in places.up}
    if otherwise is not None and otherwise.parts and delivery.link is not None:
        # One client's part looks like the result.
        transfer = transfer._replace(like=pay.tree_map(form_of, otherwise.parts[0]))
    got = delivery.move(transfer, payloads, places.up, sizes)
    if not places.server_is_here:
        return Located(SERVER, name, ())
    # sum_k p_k x_k, worker by worker and then over workers, in client order.
    normalised = _normalise(weights.parts[0], places, name)
    if normalised is None:
        # Checked after the transfer, because the weights are known at the server only.
        if otherwise is None:
            raise InputError(
                f"transfer {name!r}: no client that takes part has a training node (their weights sum "
                "to 0); use fewer clients, a larger fraction, or a split with more training nodes"
            )
        return otherwise
    terms = []
    for h, server in places.up:
        of_worker = normalised[places.clients_of(h)]
        if in_full:
            # Values sent in full are those of present clients only, [P_h, ...]; stored ones are [K_h, ...].
            of_worker = of_worker[places.present_in(h).numpy()]
        for leaf in pay.leaves(got[h, server]):
            if not isinstance(leaf, SparseWeights):
                sender = places.name_of(h)
                check_rows(leaf, len(of_worker), f"transfer {name!r}: from {sender}", "its clients are")
        terms.append(pay.weighted_sum(got[h, server], of_worker))
    return Located(SERVER, name, (_total(terms),))


# ---- server to clients -------------------------------------------------------------------------------------


def broadcast(delivery: Delivery, x: Located, options: Options) -> Located:
    """Implement `Federation.broadcast`."""
    places = delivery.places
    transfer = Transfer(kind="broadcast", flow=places.flow.back, leading=False, **options)
    places.check_sent(x, SERVER, transfer.name)
    if transfer.wrap is not None and transfer.wrap.gradients:
        raise PlaceError(
            f"transfer {transfer.name!r}: the gradient of a broadcast is summed over a cohort before it is "
            "sent, so it cannot be wrapped client by client; use a wrapper that does not wrap gradients"
        )
    payloads = dict.fromkeys(places.down, x.parts[0]) if x.parts else {}
    got = delivery.move(transfer, payloads, places.down)
    return _at_clients(places, transfer.name, got)


def scatter(delivery: Delivery, x: Located, route: Route | None, options: Options) -> Located:
    """Implement `Federation.scatter`."""
    places = delivery.places
    kind, flow = ("scatter", places.flow.back) if route is None else ("rows", route.flow.back)
    transfer = Transfer(kind=kind, flow=flow, **options)
    places.check_sent(x, SERVER, transfer.name)
    if route is None:
        sizes = _sizes_of_present(places)
        why_sent, why_received = "the clients are", "its clients are"
    else:
        places.check_all_present(transfer.name)
        sizes = route.sizes
        why_sent, why_received = f"route {route.name!r} has", f"route {route.name!r} names"
    payloads: dict[Pair, Payload] = {}
    for part in x.parts:
        counts = [sizes[h] for _, h in places.down]
        rows = check_rows(part, sum(counts), f"transfer {transfer.name!r}: {x.name!r}", why_sent)
        payloads = dict(zip(places.down, pay.split_rows(rows, counts), strict=True))
    return _receive_rows(delivery, payloads, sizes, transfer, why_received)


def download(delivery: Delivery, x: Located, route: Route, options: Options) -> Located:
    """Implement `Federation.download`."""
    places = delivery.places
    transfer = Transfer(kind="rows", flow=route.flow.back, **options)
    places.check_sent(x, SERVER, transfer.name)
    places.check_all_present(transfer.name)
    payloads: dict[Pair, Payload] = {}
    for part in x.parts:
        assert route.table is not None
        what, why = f"transfer {transfer.name!r}: {x.name!r}", f"the ids of route {route.name!r} are"
        # [U, ...] -> [M, ...]: a copy of row u for every client that names id u, in client order.
        rows = pay.take_rows(check_rows(part, len(route.table.ids), what, why), route.table.index)
        counts = [route.sizes[h] for _, h in places.down]
        payloads = dict(zip(places.down, pay.split_rows(rows, counts), strict=True))
    return _receive_rows(delivery, payloads, route.sizes, transfer, f"route {route.name!r} names")


def simulate_download(delivery: Delivery, x: Located, ideal: Ideal, options: Options) -> Located:
    """Implement `Federation.simulate_download`."""
    places = delivery.places
    transfer = Transfer(kind="rows", flow=ideal.flow, leading=False, ideal=ideal, **options)
    if delivery.link is not None:
        raise PlaceError(
            f"transfer {transfer.name!r} is simulated, so it must not be sent to another process; run all "
            "participants in one process"
        )
    places.check_sent(x, SERVER, transfer.name)
    places.check_all_present(transfer.name)
    got = delivery.move(transfer, dict.fromkeys(places.down, x.parts[0]), places.down)
    return _at_clients(places, transfer.name, got)


# ---- client to client --------------------------------------------------------------------------------------


def exchange(delivery: Delivery, x: Located, route: ExchangeRoute, options: Options) -> Located:
    """Implement `Federation.exchange`."""
    places = delivery.places
    transfer = Transfer(kind="rows", flow=route.flow, **options)
    name = transfer.name
    places.check_sent(x, CLIENTS, name)
    places.check_all_present(name)
    local: dict[int, Rows] = dict(zip(places.here, x.parts, strict=True))
    payloads = {(a, b): pay.take_rows(local[a], rows) for (a, b), rows in route.send.items()}
    # A route that was not agreed on (`route.everyone`) has no places.
    sizes = {p: len(route.place[p]) for p in route.pairs if p in route.place}
    got = delivery.move(transfer, payloads, route.pairs, sizes)
    # Rows arrive one sending worker after the other; `order` puts them in the order of the wants.
    received = []
    for b in places.here:
        parts = [got[p] for p in route.pairs if p[1] == b]
        # Without a sender, the result still has the form of the rows, with none of them.
        rows = pay.concat_rows(parts) if parts else pay.take_rows(pay.detach(local[b]), torch.arange(0))
        order = route.order[b]
        wanted = rows.shape[0] if order is None else len(order)
        check_rows(rows, wanted, f"transfer {name!r}: from other clients", f"route {route.name!r} names")
        received.append(rows if order is None else pay.take_rows(rows, order))
    return Located(CLIENTS, name, tuple(received), places.roster)


# ---- common ------------------------------------------------------------------------------------------------


def _sizes_of_present(places: Places) -> dict[int, int]:
    """Count the clients that take part, for each worker that takes part."""
    return {h: len(places.present_in(h)) for h, _ in places.up}


def _from_workers(places: Places, x: Located) -> dict[Pair, Payload]:
    """Collect the payloads to the server from the workers in this process that take part."""
    return {(h, SERVER_INDEX): p for h, p in zip(places.here, x.parts, strict=True) if places.is_active(h)}


def _at_clients(places: Places, name: str, got: Mapping[Pair, Payload]) -> Located:
    """Make the value at the clients from the payloads that the server sent."""
    parts = tuple(got.get((SERVER_INDEX, h), ABSENT) for h in places.here)
    return Located(CLIENTS, name, parts, places.roster)


def _send_route(delivery: Delivery, x: Located, route: Route, transfer: Transfer) -> tuple[Rows, ...]:
    """Send the rows of a route. Returns the rows of all clients, in client order, at the server."""
    delivery.places.check_sent(x, CLIENTS, transfer.name)
    delivery.places.check_all_present(transfer.name)
    return _send_rows(delivery, x, route.sizes, transfer, f"route {route.name!r} names")


def _send_client_rows(delivery: Delivery, x: Located, transfer: Transfer) -> Located:
    """Send a row of each client that takes part. Returns the rows in client order, at the server."""
    delivery.places.check_sent(x, CLIENTS, transfer.name)
    sizes = _sizes_of_present(delivery.places)
    return Located(SERVER, transfer.name, _send_rows(delivery, x, sizes, transfer, "its clients are"))


def _send_rows(
    delivery: Delivery, x: Located, sizes: Mapping[int, int], transfer: Transfer, why: str
) -> tuple[Rows, ...]:
    """Send rows of all workers. Returns them in client order, at the server; () elsewhere.

    `sizes` are the rows that each worker sends, if this process knows it; `why` says for errors where they
    come from.
    """
    places, name = delivery.places, transfer.name
    payloads = _from_workers(places, x)
    for (h, _), part in payloads.items():
        check_rows(part, sizes[h], f"transfer {name!r}: {x.name!r}", why)
    agreed = {(h, server): sizes[h] for h, server in places.up if h in sizes}
    got = delivery.move(transfer, payloads, places.up, agreed)
    if not places.server_is_here:
        return ()
    parts = [
        check_rows(got[h, server], sizes[h], f"transfer {name!r}: from {places.name_of(h)}", why)
        for h, server in places.up
    ]
    return (pay.concat_rows(parts),)


def _receive_rows(
    delivery: Delivery,
    payloads: Mapping[Pair, Payload],
    sizes: Mapping[int, int],
    transfer: Transfer,
    why: str,
) -> Located:
    """Receive rows from the server, at the workers in this process. Arguments as in `_send_rows`."""
    places = delivery.places
    agreed = {(server, h): sizes[h] for server, h in places.down if h in sizes}
    got = delivery.move(transfer, payloads, places.down, agreed)
    for (_, h), rows in got.items():
        check_rows(rows, sizes[h], f"transfer {transfer.name!r}: from the server", why)
    return _at_clients(places, transfer.name, got)


def _groups(route: Route) -> tuple[Tensor, int]:
    """Return the position of each arriving row's id in the route's table [M], and the number of ids."""
    assert route.table is not None
    return route.table.index, len(route.table.ids)


def _total(parts: Sequence[Payload]) -> Payload:
    """Sum payloads, in client order."""
    total = parts[0]
    for part in parts[1:]:
        total = pay.add(total, part)
    return total


def _normalise(weights: Tensor, places: Places, name: str) -> np.ndarray | None:
    """Compute p_k of the weighted mean over the roster, [K] float64; None if all weights are 0."""
    given = weights.detach().cpu().double().numpy()
    if given.shape != (places.num_clients,) or not (given >= 0).all():
        raise PlaceError(
            f"transfer {name!r}: weights must be {places.num_clients} numbers of at least 0, got {weights}"
        )
    # An absent client does not count, whatever its weight is.
    given = np.where(places.roster, given, 0.0)
    # In float64 at the server, so that every placement divides by the same number.
    total: float = given.sum()
    return given / total if total > 0 else None
