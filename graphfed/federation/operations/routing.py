"""Routing: the setup transfers by which the participants agree on the rows of a route."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.federation.ledger import Flow, LedgerRecord
from graphfed.federation.link import SERVER_INDEX, Message, Pair
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.route import (
    ExchangeIds,
    ExchangeRoute,
    Route,
    RowIds,
    check_wants,
    count_rows,
    encode_links,
    expand_table,
    find_order,
    find_rows,
    ids_fit,
    is_subset,
    make_table,
    sum_parts,
    traffic,
    wants_fit,
)
from graphfed.federation.transfer import check_rows
from graphfed.federation.values import CLIENTS, SERVER, Located, check_arguments

_NO_ROWS = torch.zeros(0, dtype=torch.int64)


def agree_on_route(delivery: Delivery, ids: Located[RowIds], name: str, protection: str) -> Route:
    """Implement `Federation.route`."""
    places = delivery.places
    places.check_sent(ids, CLIENTS, name)
    places.check_all_present(name)
    local: dict[int, RowIds] = dict(zip(places.here, ids.parts, strict=True))
    counts = {h: count_rows(rows, len(places.workers[h]), name) for h, rows in local.items()}
    # A worker sends its ids, and how many of them each of its clients has.
    messages = {
        (h, SERVER_INDEX): Message((rows.ids, torch.from_numpy(counts[h]))) for h, rows in local.items()
    }
    got = delivery.deliver(messages, places.up, delivery.next_key(name))
    # A worker knows the rows of its own clients; the server replaces them below by those of all clients.
    rows_of_clients = np.zeros(places.num_clients, dtype=np.int64)
    for h, of_worker in counts.items():
        rows_of_clients[places.clients_of(h)] = of_worker
    table = None
    if places.server_is_here:
        for h, _ in places.up:
            payload = got[h, SERVER_INDEX].payload
            if places.is_remote(h) and not ids_fit(payload, len(places.workers[h])):
                raise delivery.refusal(h, name, "ids that do not fit its clients")
        table, rows_of_clients = make_table([got[p].payload for p in places.up])
        counts = {h: rows_of_clients[places.clients_of(h)] for h in range(len(places.workers))}
    flow = Flow.up(rows_of_clients, places.seen)
    delivery.ledger.record(LedgerRecord(name, "ids", "int64", [], protection, flow, 8))
    return Route(name, {h: int(c.sum()) for h, c in counts.items()}, flow, table)


def expand_route(
    delivery: Delivery, route: Route, at_clients: Located[Tensor], at_server: Located[Tensor], name: str
) -> Route:
    """Implement `Federation.expand_route`."""
    places = delivery.places
    check_arguments(SERVER, f"route {name!r}", [at_server])
    rows, table = expand_flow(delivery, route, at_clients, name).sent, None
    sizes = {h: int(rows[places.clients_of(h)].sum()) for h in places.here}
    for counts in at_server.parts:
        assert route.table is not None
        check_rows(counts, len(route.table.ids), f"route {name!r}: the value at the server", "the ids are")
        table = expand_table(route.table, counts)
        rows = torch.bincount(table.client, minlength=places.num_clients).cpu().numpy()
        # Where server and workers share a process, the two must agree; elsewhere the transfer will check.
        at_all = {h: int(rows[places.clients_of(h)].sum()) for h in range(len(places.workers))}
        if any(at_all[h] != size for h, size in sizes.items()):
            raise PlaceError(f"route {name!r}: the server and the clients expect different numbers of rows")
        sizes = at_all
    return Route(name, sizes, Flow.up(rows, places.seen), table)


def expand_flow(delivery: Delivery, route: Route, at_clients: Located[Tensor], name: str) -> Flow:
    """Implement `Federation.expand_flow`."""
    places = delivery.places
    check_arguments(CLIENTS, f"route {name!r}", [at_clients])
    rows = np.zeros(places.num_clients, dtype=np.int64)
    for h, counts in zip(places.here, at_clients.parts, strict=True):
        check_rows(counts, route.sizes[h], f"route {name!r}: the value at the clients", "the rows are")
        clients = places.clients_of(h)
        rows[clients] = sum_parts(counts, route.flow.sent[clients])
    return Flow.up(rows, places.seen)


def agree_on_exchange_route(
    delivery: Delivery, wants: Located[ExchangeIds], name: str, protection: str
) -> ExchangeRoute:
    """Implement `Federation.exchange_route`."""
    places = delivery.places
    places.check_sent(wants, CLIENTS, name)
    places.check_all_present(name)
    local: dict[int, ExchangeIds] = dict(zip(places.here, wants.parts, strict=True))
    workers = range(len(places.workers))
    worker_of = torch.from_numpy(np.repeat(np.arange(len(places.workers)), [len(h) for h in places.workers]))
    place: dict[Pair, Tensor] = {}
    requests: dict[Pair, Message] = {}
    for b, want in local.items():
        check_wants(want, places.workers[b], places.num_clients, name)
        owner = worker_of.to(want.owner.device)[want.owner]
        asker = want.client + places.workers[b][0]
        for a in workers:
            place[a, b] = (owner == a).nonzero()[:, 0]
            # Every pair of workers exchanges a request, which may be empty: nobody waits for one that does
            # not come.
            requests[b, a] = Message(tuple(column[place[a, b]] for column in (want.owner, want.ids, asker)))
    # The worker that wants a row sends its id to the worker that owns it. Rows are sent in the opposite
    # direction.
    pairs = [(b, a) for a in workers for b in workers if a in local or b in local]
    got = delivery.deliver(requests, pairs, delivery.next_key(name))
    send: dict[Pair, Tensor] = {}
    links: dict[Pair, Tensor] = {}
    for a, held in local.items():
        for b in workers:
            if places.is_remote(b) and not wants_fit(got[b, a].payload, places.workers[b]):
                raise delivery.refusal(b, name, "a request in the name of clients that it does not hold")
            owner, ids, asker = got[b, a].payload
            rows = find_rows(held, places.workers[a], owner, ids, name, places.name_of(b))
            if len(rows):
                send[a, b] = rows
                links[a, b] = encode_links(owner, asker, places.num_clients)
    # The receiver records the links of rows whose sender is in another process.
    for b, want in local.items():
        for a in workers:
            rows = place[a, b]
            if a not in local and len(rows):
                receiver = want.client[rows] + places.workers[b][0]
                links[a, b] = encode_links(want.owner[rows], receiver, places.num_clients)
    return _exchange_route(delivery, [(a, b) for b, a in pairs], send, place, links, name, protection)


def restrict_route(
    delivery: Delivery, route: ExchangeRoute, wanted: Located[Tensor], name: str, protection: str
) -> tuple[ExchangeRoute, Located[Tensor]]:
    """Implement `Federation.restrict_route`."""
    places = delivery.places
    places.check_sent(wanted, CLIENTS, name)
    places.check_all_present(name)
    chosen: dict[Pair, Tensor] = {}
    for b, mask in zip(places.here, wanted.parts, strict=True):
        for p in route.pairs:
            if p[1] == b:
                # Positions among the rows of the pair, which both of its workers number alike.
                chosen[p] = mask[route.place[p]].nonzero()[:, 0]
    requests = {(b, a): Message(numbers) for (a, b), numbers in chosen.items()}
    pairs = [(b, a) for a, b in route.pairs]
    got = delivery.deliver(requests, pairs, delivery.next_key(name))
    send: dict[Pair, Tensor] = {}
    place = {p: route.place[p][numbers] for p, numbers in chosen.items()}
    links = {p: route.links[p][numbers] for p, numbers in chosen.items()}
    requested = []
    for a in places.here:
        # The sender's new rows are those that it is asked for, receiver by receiver; `so_far` counts them.
        rows = [torch.zeros(0, dtype=torch.int64, device=places.device)]
        so_far = 0
        for p in route.pairs:
            if p[0] != a:
                continue
            numbers = got[p[1], a].payload
            if not is_subset(numbers, len(route.send[p])):
                raise delivery.refusal(p[1], name, "numbers of rows that it may not ask for")
            rows.append(route.send[p][numbers])
            links[p] = route.links[p][numbers]
            send[p] = torch.arange(so_far, so_far + len(numbers), device=places.device)
            so_far += len(numbers)
        requested.append(torch.cat(rows))
    restricted = _exchange_route(delivery, route.pairs, send, place, links, name, protection)
    return restricted, Located(CLIENTS, f"rows asked for, {name}", tuple(requested), places.roster)


def _exchange_route(
    delivery: Delivery,
    pairs: Sequence[Pair],
    send: dict[Pair, Tensor],
    place: dict[Pair, Tensor],
    links: dict[Pair, Tensor],
    name: str,
    protection: str,
) -> ExchangeRoute:
    """Make a route between clients, and record its ids on the ledger.

    `pairs` are (sending worker, receiving worker), one of which is in this process; `send`, `place` and
    `links` are those of `ExchangeRoute`, as far as this process knows them.
    """
    places = delivery.places
    # Pairs without rows send nothing later.
    with_rows = tuple(p for p in pairs if len(links.get(p, ())))
    order = {b: find_order([place[p] for p in with_rows if p[1] == b] or [_NO_ROWS]) for b in places.here}
    every = torch.cat([links[p] for p in with_rows] or [_NO_ROWS])
    flow = Flow.peer(traffic(every, places.num_clients), places.held)
    send, place = ({p: x for p, x in of.items() if p in with_rows} for of in (send, place))
    if places.here:
        delivery.ledger.record(LedgerRecord(name, "ids", "int64", [], protection, flow.back, 8))
    return ExchangeRoute(name, with_rows, send, order, flow, place, links)
