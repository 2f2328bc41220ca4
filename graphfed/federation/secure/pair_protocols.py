"""Two-party protocols between the two ends of pairs of clients.

Every pair has a session of its own (`crypto.ot.TwoParty`), kept for later protocols; its first party is the
client with the lower id. Pairs on two workers go in step, and what they send at a time is one message.

    NAME/session          a pair's set-up, the first time that it needs a session; NAME is that of the pairs
"""

from typing import TypeVar

import numpy as np
from torch import Tensor

from graphfed.crypto.ot import TwoParty, bytes_of_set_up
from graphfed.crypto.session import Ended, Party, bundled, run_both
from graphfed.errors import InputError, PlaceError
from graphfed.federation.core import Federation
from graphfed.federation.ledger import LedgerRecord
from graphfed.federation.secure.pairs import (
    Asked,
    Ints,
    Known,
    Pairs,
    asked_rows,
    flow_between,
    links_coming,
    links_leaving,
    meet,
)
from graphfed.federation.values import Located

Result = TypeVar("Result")

__all__ = ["open_sessions", "record_traffic", "run_asked", "run_pair_protocols", "weigh"]

#: Processor seconds that one end of a session takes to set up (benchmarks/secure.py, both ends: 37 ms), and
#: the memory that it keeps: the ciphers of its columns.
SECONDS_OF_SET_UP, BYTES_OF_END = 0.02, 200_000
#: Bytes of sessions that one process may hold.
MAX_BYTES = 8 * 2**30
#: What takes longer is reported beforehand.
LONG_SECONDS = 3.0


def run_pair_protocols(
    fed: Federation,
    pairs: Pairs,
    parties: Located[list[Party[Result]]],
    which: Located[Tensor],
    *,
    name: str,
    protection: str,
) -> Located[list[Result]]:
    """Run a two-party protocol between the two ends of each of some pairs.

    The ledger counts each pair's messages each way, or what a simulated protocol declares.

    Args:
        parties: A list of n_h parties (`session.Party`) at each worker. The first one of a pair is at the
            client with the lower id.
        which: [n_h] int64, the pairs' positions in the rows, ascending.

    Returns:
        The results of the parties, a list of n_h at each worker.
    """
    asked = fed.clients.run(meet, pairs.at_clients, which)
    return run_asked(fed, pairs, asked, parties, name, protection)


def run_asked(
    fed: Federation,
    pairs: Pairs,
    asked: Located[Asked],
    parties: Located[list[Party[Result]]],
    name: str,
    protection: str,
) -> Located[list[Result]]:
    """As `run_pair_protocols`, of pairs whose other ends are known."""
    known = pairs.at_clients
    near, far = fed.clients.run(begin, known, asked, parties, outputs=2)
    ended = fed.run_worker_protocols(far, name=name)
    results, traffic = fed.clients.run(end, known, asked, near, ended, outputs=2)
    record_traffic(fed, traffic, name, protection)
    return results


def open_sessions(fed: Federation, pairs: Pairs, asked: Located[Asked]) -> None:
    """Set up sessions for those of the asked pairs that have none."""
    known, name = pairs.at_clients, f"{pairs.name}/session"
    fresh = fed.clients.run(unopened, known, asked)
    if fed.simulated:
        traffic = fed.clients.run(weigh, known, fresh, *bytes_of_set_up())
        record_traffic(fed, traffic, name, fed.protection_of("public"))
    else:
        TwoParty(first=True)  # refuses where cryptography is missing, before anything is sent
        ends = sum(len(part.rows) for part in fresh.parts)
        held = (ends + sum(len(part.sessions) for part in known.parts)) * BYTES_OF_END
        if held > MAX_BYTES:
            raise InputError(
                f"{pairs.name}: real sessions between pairs of clients would take {held / 2**30:.0f} GiB "
                f"here (at most {MAX_BYTES / 2**30:g}); use fewer clients, or protocols=simulated"
            )
        if (seconds := ends * SECONDS_OF_SET_UP) > LONG_SECONDS:
            fed.log(
                f"{name}: {ends} ends of sessions between pairs of clients take about {seconds:.0f} s here, "
                f"and {held / 1e6:.0f} MB in all"
            )
        parties = fed.clients.run(opening, known, fresh)
        ended = run_asked(fed, pairs, fresh, parties, name, "public")
        fed.clients.run(keep_sessions, known, fresh, ended)
    fed.clients.run(mark_opened, known, fresh)


def record_traffic(fed: Federation, traffic: Located[tuple[Ints, Ints]], name: str, protection: str) -> None:
    """Record the bytes that clients sent each other.

    Args:
        traffic: At the clients, (links that leave, links that come) with their bytes.
    """
    if fed.here:
        flow = flow_between(fed, traffic.parts)
        fed.ledger.record(LedgerRecord(name, "protocol", "bytes", [], protection, flow, 1))


# ---- at the clients ----------------------------------------------------------------------------------------


def weigh(known: Known, asked: Asked, of_first: int, of_second: int) -> tuple[Ints, Ints]:
    """The links that leave and that come [n, 3], of a protocol with these bytes from the first party and
    from the second."""
    first = known.me[asked.rows] < known.other[asked.rows]
    return (
        links_leaving(known, asked.rows, np.where(first, of_first, of_second)),
        links_coming(known, asked.rows, np.where(first, of_second, of_first)),
    )


def unopened(known: Known, asked: Asked) -> Asked:
    """Those of the asked pairs that have no session yet."""
    fresh = asked.rows[~known.opened[asked.rows]]
    return asked if len(fresh) == len(asked.rows) else asked_rows(known, fresh)


def mark_opened(known: Known, fresh: Asked) -> None:
    known.opened[fresh.rows] = True


def opening(known: Known, fresh: Asked) -> list[Party[TwoParty]]:
    first = (known.me < known.other)[fresh.rows]
    return [TwoParty(first=bool(f)).set_up() for f in first]


def keep_sessions(known: Known, fresh: Asked, ended: list[TwoParty]) -> None:
    known.sessions.update(zip(fresh.rows.tolist(), ended, strict=True))


def begin(
    known: Known, asked: Asked, parties: list[Party[Result]]
) -> tuple[dict[int, Ended[Result]], dict[int, Party[list[Ended[Result]]]]]:
    """What the parties of pairs inside this worker ended with, by place; and for every other worker the
    parties of those it is in, as one."""
    if len(parties) != len(asked.rows):
        raise PlaceError(f"{len(parties)} parties for {len(asked.rows)} rows")
    near: dict[int, Ended[Result]] = {}
    for one, other in enumerate(asked.near.tolist()):
        if one < other:  # rows are sorted, so the one with the lower id comes first
            near[one], near[other] = run_both(parties[one], parties[other])
    return near, {b: bundled([parties[p] for p in places.tolist()]) for b, places in asked.far.items()}


def end(
    known: Known, asked: Asked, near: dict[int, Ended[Result]], ended: dict[int, list[Ended[Result]]]
) -> tuple[list[Result], tuple[Ints, Ints]]:
    """What every party ended with, and what they sent and received."""
    every = dict(near)
    for b, those in ended.items():
        every.update(zip(asked.far[b].tolist(), those, strict=True))
    course = [every[place] for place in range(len(asked.rows))]
    sent, received = (
        np.array(sizes, dtype=np.int64) for sizes in ([e.sent for e in course], [e.received for e in course])
    )
    traffic = links_leaving(known, asked.rows, sent), links_coming(known, asked.rows, received)
    return [e.result for e in course], traffic
