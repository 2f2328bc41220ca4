"""Two-party protocols between the two clients of pairs.

Every pair has its own session (`crypto.ot.TwoParty`), which later protocols use again. The first party of a
pair is the client with the lower id. The pairs of two workers advance together: what they send in a step is
one message.

    NAME/session          the set-up of a pair, when it first needs a session; NAME is the name of the pairs
"""

from typing import TypeVar

import numpy as np

from graphfed.crypto.ot import TwoParty, bytes_of_set_up
from graphfed.crypto.session import Ended, Party, bundled, run_both
from graphfed.errors import InputError, PlaceError
from graphfed.federation.core import Federation
from graphfed.federation.ledger import LedgerRecord
from graphfed.federation.secure.pairs import (
    Ints,
    KnownPairs,
    Pairs,
    SelectedPairs,
    flow_between,
    incoming_links,
    outgoing_links,
    select_rows,
)
from graphfed.federation.values import Located

Result = TypeVar("Result")

#: Processor seconds that one party takes to set up a session (benchmarks/secure.py: 37 ms for both parties),
#: and the memory that it keeps afterwards, the ciphers of its columns.
SECONDS_OF_SET_UP, BYTES_OF_PARTY = 0.02, 200_000
#: Bytes of sessions that one process may hold.
MAX_BYTES = 8 * 2**30
#: A set-up that is expected to take longer is reported beforehand.
LONG_SECONDS = 3.0


def run_selected(
    fed: Federation,
    pairs: Pairs,
    selected: Located[SelectedPairs],
    parties: Located[list[Party[Result]]],
    name: str,
    protection: str,
) -> Located[list[Result]]:
    """Run a two-party protocol between the two clients of each of some pairs.

    The ledger counts each pair's messages in both directions. For a simulated protocol it counts the bytes
    that the protocol declares. `parties` has a party (`session.Party`) for each selected row; the first party
    of a pair is the client with the lower id. The results are in the same order.
    """
    known = pairs.at_clients
    local_results, remote_parties = fed.clients.run(start_parties, known, selected, parties, outputs=2)
    ended = fed.run_worker_protocols(remote_parties, name=name)
    results, traffic = fed.clients.run(finish_parties, known, selected, local_results, ended, outputs=2)
    record_traffic(fed, traffic, name, protection)
    return results


def open_sessions(fed: Federation, pairs: Pairs, selected: Located[SelectedPairs]) -> None:
    """Set up sessions for the selected pairs that have none. Simulated, only the bytes of the set-up are
    recorded.

    InputError if the extra `secure` is not installed, or the sessions would take more than `MAX_BYTES` of
    memory.
    """
    known, name = pairs.at_clients, f"{pairs.name}/session"
    fresh = fed.clients.run(select_unopened, known, selected)
    if fed.simulated:
        traffic = fed.clients.run(make_links, known, fresh, *bytes_of_set_up())
        record_traffic(fed, traffic, name, fed.protection_of("public"))
    else:
        TwoParty(first=True)  # raises InputError if cryptography is not installed, before anything is sent
        parties_here = sum(len(part.rows) for part in fresh.parts)
        held = (parties_here + sum(len(part.sessions) for part in known.parts)) * BYTES_OF_PARTY
        if held > MAX_BYTES:
            raise InputError(
                f"{pairs.name}: real sessions between pairs of clients would take {held / 2**30:.0f} GiB "
                f"here (at most {MAX_BYTES / 2**30:g}); use fewer clients, or protocols=simulated"
            )
        if (seconds := parties_here * SECONDS_OF_SET_UP) > LONG_SECONDS:
            fed.log(
                f"{name}: setting up {parties_here} parties of sessions between clients takes about "
                f"{seconds:.0f} s in this process; all its sessions take {held / 1e6:.0f} MB"
            )
        parties = fed.clients.run(open_parties, known, fresh)
        ended = run_selected(fed, pairs, fresh, parties, name, "public")
        fed.clients.run(keep_sessions, known, fresh, ended)
    fed.clients.run(mark_opened, known, fresh)


def record_traffic(fed: Federation, traffic: Located[tuple[Ints, Ints]], name: str, protection: str) -> None:
    """Record the bytes that clients sent each other, from the outgoing and the incoming links at the
    clients.
    """
    if fed.here:
        flow = flow_between(fed, traffic.parts)
        fed.ledger.record(LedgerRecord(name, "protocol", "bytes", [], protection, flow, 1))


# ---- at the clients ----------------------------------------------------------------------------------------


def make_links(
    known: KnownPairs, selected: SelectedPairs, of_first: int, of_second: int
) -> tuple[Ints, Ints]:
    """List the outgoing and incoming links, [n, 3] and [m, 3] int64, of a protocol whose parties send
    fixed numbers of bytes.
    """
    first = known.client[selected.rows] < known.other[selected.rows]
    return (
        outgoing_links(known, selected.rows, np.where(first, of_first, of_second)),
        incoming_links(known, selected.rows, np.where(first, of_second, of_first)),
    )


def select_unopened(known: KnownPairs, selected: SelectedPairs) -> SelectedPairs:
    # Sessions are kept: a set-up costs public-key operations, and a second one would say nothing new.
    fresh = selected.rows[~known.opened[selected.rows]]
    return selected if len(fresh) == len(selected.rows) else select_rows(known, fresh)


def mark_opened(known: KnownPairs, fresh: SelectedPairs) -> None:
    known.opened[fresh.rows] = True


def open_parties(known: KnownPairs, fresh: SelectedPairs) -> list[Party[TwoParty]]:
    first = (known.client < known.other)[fresh.rows]
    return [TwoParty(first=bool(f)).set_up() for f in first]


def keep_sessions(known: KnownPairs, fresh: SelectedPairs, ended: list[TwoParty]) -> None:
    known.sessions.update(zip(fresh.rows.tolist(), ended, strict=True))


def start_parties(
    known: KnownPairs, selected: SelectedPairs, parties: list[Party[Result]]
) -> tuple[dict[int, Ended[Result]], dict[int, Party[list[Ended[Result]]]]]:
    """Run the protocols between clients of this worker, and bundle the parties of each pair of workers.

    Returns the outcomes inside this worker by position; and by other worker, its parties bundled into one.
    """
    if len(parties) != len(selected.rows):
        raise PlaceError(
            f"there are {len(parties)} parties for {len(selected.rows)} selected pairs; give one for each"
        )
    # Pairs inside this worker run here; the others advance together, one bundle for each other worker.
    local_results: dict[int, Ended[Result]] = {}
    for one, other in enumerate(selected.local.tolist()):
        # The rows are sorted, so the client with the lower id comes first.
        if one < other:
            local_results[one], local_results[other] = run_both(parties[one], parties[other])
    return local_results, {
        b: bundled([parties[p] for p in positions.tolist()]) for b, positions in selected.remote.items()
    }


def finish_parties(
    known: KnownPairs,
    selected: SelectedPairs,
    local_results: dict[int, Ended[Result]],
    ended: dict[int, list[Ended[Result]]],
) -> tuple[list[Result], tuple[Ints, Ints]]:
    """Collect the results in the order of the selected rows, and the links of the messages."""
    outcomes = dict(local_results)
    for b, results in ended.items():
        outcomes.update(zip(selected.remote[b].tolist(), results, strict=True))
    # Every selected row has an outcome, from inside or from a bundle.
    ordered = [outcomes[position] for position in range(len(selected.rows))]
    sent, received = (
        np.array(sizes, dtype=np.int64)
        for sizes in ([e.sent for e in ordered], [e.received for e in ordered])
    )
    traffic = outgoing_links(known, selected.rows, sent), incoming_links(known, selected.rows, received)
    return [e.result for e in ordered], traffic
