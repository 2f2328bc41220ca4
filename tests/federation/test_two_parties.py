"""Two-party protocols between the server and the first client, and between workers: the same results and
bytes in one process and in several."""

from typing import Any

import numpy as np
import pytest
from placements import SEVERAL_EACH, at_server, run_apart

from graphfed.crypto.session import Party
from graphfed.errors import PlaceError
from graphfed.federation import CLIENTS, Federation, Located
from graphfed.federation.link import SERVER_INDEX

#: The messages that the two parties send in turn. The server sends the first one.
MESSAGES = [b"a", b"bcd", b"ef", b"ghijk", b""]


def run_party(first: bool) -> Party[list[bytes]]:
    """Send every second message, receive the others, and return those received."""
    received = []
    for turn, message in enumerate(MESSAGES):
        if (turn % 2 == 0) == first:
            yield message
        else:
            received.append((yield None))
    return received


def run_with_server(fed: Federation, protection: str = "encrypted") -> tuple[Located, Located]:
    server = fed.server.run(run_party, True)
    return fed.run_protocol(server, fed.clients.run(run_party, False), name="protocol", protection=protection)


@pytest.mark.parametrize("workers", [[(0, 1, 2)], [(0,), (1,), (2,)], [(0, 1), (2,)]], ids=str)
def test_the_server_and_the_first_client_run_a_protocol_in_one_process_and_in_several(
    workers: list[tuple[int, ...]],
) -> None:
    expected = {SERVER_INDEX: MESSAGES[1::2], 0: MESSAGES[::2]}
    fed = Federation(workers)
    at_server, at_clients = run_with_server(fed)
    assert at_server.parts == (expected[SERVER_INDEX],)
    assert at_clients.parts == (expected[0], *[None] * (len(workers) - 1))
    up, down = (sum(map(len, messages)) for messages in (MESSAGES[1::2], MESSAGES[::2]))
    volumes = {entry.direction: (entry.sent + entry.received).tolist() for entry in fed.ledger.entries}
    assert volumes == {"up": [up, 0, 0], "down": [down, 0, 0]}
    assert {entry.protection for entry in fed.ledger.entries} == {"encrypted"}
    apart = run_apart(workers, run_with_server)
    assert apart[SERVER_INDEX][1].ledger.to_json() == fed.ledger.to_json()
    for participant, ((at_server, at_clients), own) in apart.items():
        assert at_server.parts == ((expected[SERVER_INDEX],) if participant == SERVER_INDEX else ())
        assert at_clients.parts == (() if participant == SERVER_INDEX else (expected.get(participant),))
        seen = {entry.direction: (entry.sent + entry.received).tolist() for entry in own.ledger.entries}
        assert seen == (volumes if participant in (SERVER_INDEX, 0) else {})


def pick(parties: dict[int, Any]) -> Any:
    return parties


def parties_of(pairs: set[tuple[int, int]], worker: int) -> dict[int, Party[list[bytes]]]:
    """Make a party of a worker for each other worker; the worker with the lower number sends first."""
    others = [b if a == worker else a for a, b in pairs if worker in (a, b)]
    return {other: run_party(worker < other) for other in others}


def run_between(fed: Federation, pairs: set[tuple[int, int]]) -> Located:
    return fed.run_worker_protocols(
        fed.locate(CLIENTS, "parties", [parties_of(pairs, h) for h in fed.here]), name="protocol"
    )


@pytest.mark.parametrize("pairs", [set(), {(0, 2)}, {(0, 1), (0, 2), (1, 2)}], ids=str)
def test_workers_run_protocols_alike_in_one_process_and_in_several(pairs: set[tuple[int, int]]) -> None:
    expected = [
        {
            other: MESSAGES[1::2] if h < other else MESSAGES[::2]
            for other in range(3)
            if tuple(sorted((h, other))) in pairs
        }
        for h in range(3)
    ]
    assert list(run_between(Federation(SEVERAL_EACH), pairs).parts) == expected
    apart = run_apart(SEVERAL_EACH, lambda fed: run_between(fed, pairs))
    assert [apart[h][0].parts for h in range(3)] == [(received,) for received in expected]


def test_a_worker_whose_partner_has_no_party_is_refused() -> None:
    fed = Federation(SEVERAL_EACH)
    parties = fed.locate(CLIENTS, "parties", [{}, {0: run_party(False)}, {}])
    with pytest.raises(
        PlaceError, match=r"'protocol': client 2 runs a protocol with clients 0\.\.1 \(stacked\), which"
    ):
        fed.run_worker_protocols(parties, name="protocol")


def test_two_party_protocols_need_every_client() -> None:
    fed = Federation(SEVERAL_EACH)
    parties = fed.locate(CLIENTS, "parties", [{}] * 3)
    at = at_server(fed, "party", None)
    fed.set_roster(np.array([True] * 5 + [False]))
    with pytest.raises(
        PlaceError, match=r"transfer 'protocol' needs every client, but clients \[5\] are absent"
    ):
        fed.run_worker_protocols(parties, name="protocol")
    with pytest.raises(
        PlaceError, match=r"transfer 'protocol' needs every client, but clients \[5\] are absent"
    ):
        fed.run_protocol(at, parties, name="protocol", protection="plaintext")


def test_the_parties_of_a_protocol_live_where_it_runs_them() -> None:
    fed = Federation([(0, 1)])
    server, clients = fed.server.run(run_party, True), fed.clients.run(run_party, False)
    for one, other in ((server, server), (clients, clients), (clients, server)):
        with pytest.raises(PlaceError, match="transfer 'protocol'"):
            fed.run_protocol(one, other, name="protocol", protection="plaintext")
    with pytest.raises(PlaceError, match="transfer 'protocol'"):
        fed.run_worker_protocols(at_server(fed, "parties", {}), name="protocol")
