"""Two-party protocols: two participants run one party each and send each other the protocol's messages.

The protocols are state machines of `graphfed.crypto`; a party is a `session.Party`.
"""

import itertools
from collections.abc import Mapping
from typing import TypeVar

from graphfed.crypto.session import Ended, Party, run_all, run_both, run_one
from graphfed.errors import PlaceError
from graphfed.federation.ledger import LedgerRecord
from graphfed.federation.link import SERVER_INDEX, Link, Pair
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.values import CLIENTS, SERVER, Located

Result = TypeVar("Result")
Other = TypeVar("Other")


def run_with_first_client(
    delivery: Delivery,
    at_server: Located[Party[Result]],
    at_clients: Located[Party[Other]],
    name: str,
    protection: str,
) -> tuple[Located[Result], Located[Other | None]]:
    """Implement `Federation.run_protocol`."""
    places, link = delivery.places, delivery.link
    places.check_sent(at_server, SERVER, name)
    places.check_sent(at_clients, CLIENTS, name)
    places.check_all_present(name)
    # Taken in every process, also where neither party runs, so that all count transfers alike.
    key = delivery.next_key(name)
    server: Party[Result] | None = at_server.parts[0] if places.server_is_here else None
    client: Party[Other] | None = at_clients.parts[places.here.index(0)] if 0 in places.here else None
    # Inside a process the two parties exchange messages directly; otherwise each process runs its own party.
    server_outcome: Ended[Result] | None = None
    client_outcome: Ended[Other] | None = None
    if server is not None and client is not None:
        server_outcome, client_outcome = run_both(server, client)
    elif server is not None:
        server_outcome = _run_over_link(server, SERVER_INDEX, 0, link, key)
    elif client is not None:
        client_outcome = _run_over_link(client, 0, SERVER_INDEX, link, key)
    # Each process records what it sees. Where both parties are, the server's numbers cover both.
    if server_outcome is not None:
        _record(delivery, name, protection, server_outcome.received, server_outcome.sent)
    elif client_outcome is not None:
        _record(delivery, name, protection, client_outcome.sent, client_outcome.received)
    at_workers = [
        client_outcome.result if client_outcome is not None and h == 0 else None for h in places.here
    ]
    return (
        Located(SERVER, name, () if server_outcome is None else (server_outcome.result,)),
        Located(CLIENTS, name, tuple(at_workers), places.roster),
    )


def _record(delivery: Delivery, name: str, protection: str, up: int, down: int) -> None:
    """Record the bytes between the first client and the server, in both directions."""
    flow = delivery.places.first_client_flow
    for size, direction in ((up, flow), (down, flow.back)):
        delivery.ledger.record(LedgerRecord(name, "protocol", "bytes", [], protection, direction, size))


def run_between_workers(
    delivery: Delivery, at_clients: Located[dict[int, Party[Result]]], name: str
) -> Located[dict[int, Result]]:
    """Implement `Federation.run_worker_protocols`."""
    places = delivery.places
    places.check_sent(at_clients, CLIENTS, name)
    places.check_all_present(name)
    key = delivery.next_key(name)
    local: dict[int, dict[int, Party[Result]]] = dict(zip(places.here, at_clients.parts, strict=True))
    results: dict[int, dict[int, Result]] = {h: {} for h in local}
    remote: dict[Pair, Party[Result]] = {}
    for h, parties in local.items():
        for other, party in parties.items():
            if other not in local:
                remote[h, other] = party
            elif h not in local[other]:
                raise PlaceError(
                    f"{name!r}: {places.name_of(h)} runs a protocol with {places.name_of(other)}, which has "
                    "no party for it; make a party at both"
                )
            # Both parties are here: run the pair once.
            elif h < other:
                one, two = run_both(party, local[other][h])
                results[h][other], results[other][h] = one.result, two.result
    for (h, other), result in _run_all_over_link(remote, delivery.link, key).items():
        results[h][other] = result
    return Located(CLIENTS, name, tuple(results[h] for h in places.here), places.roster)


def _run_over_link(
    party: Party[Result], participant: int, remote: int, link: Link | None, key: str
) -> Ended[Result]:
    """Run a party whose other party is in another process."""
    assert link is not None  # `Delivery` refuses a run in several processes without a link
    # A link finds messages by key, so each gets its number in its direction.
    sent, received = itertools.count(), itertools.count()
    return run_one(
        party,
        lambda message: link.send(remote, f"{key}/{next(sent)}/{participant}>{remote}", message),
        lambda: link.recv(remote, f"{key}/{next(received)}/{remote}>{participant}"),
    )


def _run_all_over_link(
    parties: Mapping[Pair, Party[Result]], link: Link | None, key: str
) -> dict[Pair, Result]:
    """Run parties whose other parties are in other processes, by (worker here, worker there)."""
    if not parties:
        return {}
    assert link is not None
    # The parties take turns, so the n-th message of a pair in each direction has the number n in its key.
    sent, received = dict.fromkeys(parties, 0), dict.fromkeys(parties, 0)

    def send(pair: Pair, message: bytes) -> None:
        link.send(pair[1], f"{key}/{sent[pair]}/{pair[0]}>{pair[1]}", message)
        sent[pair] += 1

    def receive(pair: Pair) -> bytes:
        message = link.recv(pair[1], f"{key}/{received[pair]}/{pair[1]}>{pair[0]}")
        received[pair] += 1
        return message

    return run_all(parties, send, receive)
