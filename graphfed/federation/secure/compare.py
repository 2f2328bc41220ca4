"""Pairs of clients that tell each other something, or compare numbers that neither shows the other.

Which clients make a pair both of its ends know before (`PairRows`); so nothing crosses to open the pairs, and
the order of rows between two hosts is that of (lower client, higher client). What is asked of some of the
pairs names their positions in the rows: the same pairs at both ends.

    tell, send            a row from each end to the other, or from one of them
    compare_pairs         whose number is larger: the millionaires' protocol of `graphfed.crypto.compare`
    at_most_pairs         whether a number is accepted in the place of another's: `graphfed.crypto.accept`
    converse_pairs        any two-party protocol

The ledger has, of clients to clients,

    NAME/session          a pair's set-up, when it first compares; NAME is that of the pairs
    NAME/compare          the comparisons; NAME/accept: the acceptances

Real: every pair has a session of its own (`secure.ot.TwoParty`), kept for later comparisons; its first party
is the client with the lower id. Pairs on two hosts go in step, and what they send at a time is one message.
Simulated: the two ends show each other their numbers, all pairs at once; the same outcomes and, to the byte,
the same ledger, under the protection `simulated`.

Each end learns the outcome, and what follows from it and its own number. Who compares again and again, with
numbers that change, closes in on the other's number: the method that asks says how often. Both ends follow
the protocol (semi-honest)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto import accept as acceptance
from graphfed.crypto.compare import (
    MAX_BITS,
    bytes_of_comparison,
    bytes_of_opening,
    bytes_of_opening_less,
    compare,
    is_less,
)
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.ot import TwoParty, bytes_of_set_up
from graphfed.crypto.session import Ended, Party, bundled, run_both
from graphfed.errors import InputError, PlaceError
from graphfed.federation.core import Federation
from graphfed.federation.ledger import Charge, Flow
from graphfed.federation.link import Pair
from graphfed.federation.route import PeerRoute
from graphfed.federation.transfer import Transfer, check_rows
from graphfed.federation.values import Located
from graphfed.random import uniform

__all__ = [
    "Known",
    "PairRows",
    "Pairs",
    "Ways",
    "at_most_pairs",
    "compare_pairs",
    "converse_pairs",
    "find_ways",
    "links_coming",
    "links_leaving",
    "open_pairs",
    "pair_route",
    "route_along",
    "send",
    "tell",
]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Reveal = Literal["order", "greater"]

#: Processor seconds that one end of a session takes to set up (benchmarks/secure.py, both ends: 37 ms), and
#: the memory that it keeps: the ciphers of its columns.
SECONDS_OF_SET_UP, BYTES_OF_END = 0.02, 200_000
#: Bytes of sessions that one process may hold.
MAX_BYTES = 8 * 2**30
#: What takes longer is told beforehand.
LONG_SECONDS = 3.0


@dataclass(frozen=True, eq=False)
class PairRows:
    """The pairs that a host's clients are in, sorted by (client, other), each once at both its clients.

    client [C] int64: index in the cohort; other [C] int64: the stable id of the other client."""

    client: Tensor
    other: Tensor


@dataclass(frozen=True, eq=False)
class Known:
    """What a host knows of its clients' pairs, by row.

    own: the host; me, other [C]: both clients' stable ids; mate [C]: the row of the pair's other end, -1
    where that is on another host; host [C]: of the other client (None: all are on this one). These two
    change, as pairs compare for the first time: opened [C], who have set up a session, and `sessions` by row,
    where they are real."""

    clients: int
    own: int
    me: Ints
    other: Ints
    mate: Ints
    host: Ints | None
    opened: Bools
    sessions: dict[int, TwoParty] = field(default_factory=dict)


@dataclass(frozen=True)
class Pairs:
    """Opened pairs: a `Known` at each host of the clients, and whether their comparisons are simulated."""

    at_clients: Located
    simulated: bool
    name: str

    @property
    def hidden(self) -> str:
        """The protection of what the protocols send."""
        return "simulated" if self.simulated else "encrypted"


def open_pairs(fed: Federation, rows: Located, *, name: str, simulated: bool) -> Pairs:
    """Of a `PairRows` at the clients. Nothing crosses.

    PlaceError for rows that break their contract; InputError where the comparisons are to be real and the
    extra `secure` is not installed."""
    if not simulated:
        TwoParty(first=True)  # refuses where cryptography is missing, before anything is sent
    starts = tuple(clients[0] for clients in fed.hosts)
    known = fed.clients.run(know_pairs, rows, fed.client_ids(), starts, fed.num_clients, name)
    return Pairs(known, simulated, name)


# ---- rows from client to client ----------------------------------------------------------------------------


def tell(
    fed: Federation,
    pairs: Pairs,
    x: Located,
    which: Located,
    *,
    name: str,
    protection: str = "clear",
    grad: bool = False,
) -> Located:
    """Both ends of some pairs tell each other a row: x [n_h, ...] -> [n_h, ...], what the other end gave.

    which [n_h] int64: the pairs' positions in the rows, ascending; a pair of two clients of one host has two.
    PlaceError where a host is asked for one end of such a pair only."""
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
    """One end of some pairs sends the other a row: x [n_h, ...] of the pairs at `from_rows` [n_h] -> [m_h,
    ...] of those at `to_rows` [m_h]. The same pairs, each at its two ends."""
    route = pair_route(fed, pairs, from_rows, to_rows)
    for rows, part in zip(from_rows.parts, x.parts, strict=True):
        check_rows(part, len(rows), f"transfer {name!r}: {x.name!r}", "the pairs asked are")
    got = fed.exchange(x, route, name=name, protection=protection, grad=grad)
    if fed.here and not route.pairs:
        # Who has no row in a transfer counts it as well: so the ledgers of all placements agree.
        fed.ledger.charge(Transfer(name, "rows", route.flow, protection, grad).charge(x.parts[0]))
    return got


def pair_route(fed: Federation, pairs: Pairs, from_rows: Located, to_rows: Located) -> PeerRoute:
    """The way of the rows of `send`, for `Federation.exchange`: for who sends on it more than once."""
    ways = fed.clients.run(find_ways, pairs.at_clients, from_rows, to_rows, str(fed.device))
    return route_along(fed, pairs, ways)


def route_along(fed: Federation, pairs: Pairs, ways: Located) -> PeerRoute:
    """The route of a `Ways` at each host."""
    mine: dict[int, Ways] = dict(zip(fed.here, ways.parts, strict=True))
    send: dict[Pair, Tensor] = {}
    between: set[Pair] = set()
    for h, way in mine.items():
        send |= {(h, b): rows for b, rows in way.send.items()}
        between |= {(h, b) for b in way.send} | {(a, h) for a in way.arrives}
    flow = _flow(fed, [(way.leaving, way.coming) for way in mine.values()])
    order = {h: way.order for h, way in mine.items()}
    return PeerRoute(pairs.name, tuple(sorted(between)), send, order, flow)


def _flow(fed: Federation, traffic: Sequence[tuple[Ints, Ints]]) -> Flow:
    """Of every host here: links [n, 3] that leave its clients, and that come to them. Those from another host
    that is here too are counted there."""
    links = [leaving for leaving, _ in traffic]
    if len(fed.here) < len(fed.hosts):
        links += [coming[~fed.held[coming[:, 0]]] for _, coming in traffic]
    return Flow.peer(links[0] if len(links) == 1 else np.concatenate([_NO_LINKS, *links]), fed.held)


_NO_LINKS = np.zeros((0, 3), dtype=np.int64)


# ---- comparisons -------------------------------------------------------------------------------------------


def compare_pairs(
    fed: Federation,
    pairs: Pairs,
    numbers: Located,
    which: Located,
    *,
    bits: int,
    reveal: Reveal,
    name: str,
    asker: Located | None = None,
) -> Located:
    """Both ends of some pairs compare their numbers [n_h] int64, of at most `bits` bits, and learn the
    outcome, [n_h] int8, and nothing else of the other's number.

    reveal: "order" opens -1, 0 or 1, the own number being less, equal or greater, as each end sees it;
    "greater" opens one bit: 1 where the number of the end that asks is greater than the other's, the same at
    both. asker [n_h] bool: who asks, one end of each pair. which [n_h]: as in `tell`.

    InputError for a number that does not fit, or bits out of 1..32."""
    if reveal not in ("order", "greater") or (reveal == "greater") != (asker is not None):
        raise PlaceError(
            f"{name!r}: reveal is 'order', or 'greater' with the askers; got {reveal!r} "
            f"{'without' if asker is None else 'with'} askers"
        )
    if not 1 <= bits <= MAX_BITS:
        raise InputError(f"numbers of {bits} bits cannot be compared; use 1 to {MAX_BITS}")
    known, device = pairs.at_clients, str(fed.device)
    asked = fed.clients.run(meet, known, which)
    words = fed.clients.run(operands, known, asked, numbers, asker, bits)
    _set_up(fed, pairs, asked)
    if not pairs.simulated:
        parties = fed.clients.run(comparing, known, asked, words, bits, reveal)
        ended = _converse(fed, pairs, asked, parties, f"{name}/compare", pairs.hidden)
        opened: Located = fed.clients.run(opened_outcomes, known, asked, ended, reveal, device)
        return opened
    opening = bytes_of_opening(1) if reveal == "order" else bytes_of_opening_less(1)
    costs = tuple(size + opening for size in bytes_of_comparison(1, bits))
    seen = fed.converse_hosts(fed.clients.run(show, asked, words), name=f"{name}/compare")
    found: Located = fed.clients.run(judge, asked, words, seen, reveal, device)
    _charge(fed, fed.clients.run(weigh, known, asked, *costs), f"{name}/compare", pairs.hidden)
    return found


def at_most_pairs(
    fed: Federation,
    pairs: Pairs,
    numbers: Located,
    which: Located,
    *,
    bits: int,
    asker: Located,
    temperature: float,
    seed: int,
    name: str,
) -> Located:
    """Both ends of some pairs learn whether a new number is accepted in the place of an old one, [n_h] int8
    of 0 and 1, as Metropolis does: with probability min(1, exp(-(new - old) / temperature)), so whether the
    new one is at most the old one and a bit more, drawn at random. Nothing else: neither number, difference
    nor draw (`graphfed.crypto.accept`).

    numbers [n_h] int64 of at most `bits` (1..12) bits; asker [n_h] bool: the end that has the old number, one
    of each pair. Real, the draw is the operating system's, of both ends together; simulated, it is keyed by
    `seed` (another one for every call) and the pair's clients: two runs of different kinds accept with the
    same probability, and not the same moves. The transfer is ``name/accept``.

    InputError for a number that does not fit, or a temperature that is not finite and above 0."""
    if not 1 <= bits <= acceptance.MAX_BITS:
        raise InputError(f"an acceptance takes numbers of 1 to {acceptance.MAX_BITS} bits; got {bits}")
    acceptance.thresholds(np.zeros(0, dtype=np.int64), temperature)
    known, device = pairs.at_clients, str(fed.device)
    asked = fed.clients.run(meet, known, which)
    words = fed.clients.run(operands, known, asked, numbers, asker, bits)
    _set_up(fed, pairs, asked)
    if not pairs.simulated:
        parties = fed.clients.run(accepting, known, asked, words, bits, temperature)
        ended = _converse(fed, pairs, asked, parties, f"{name}/accept", pairs.hidden)
        opened: Located = fed.clients.run(opened_bits, ended, device)
        return opened
    seen = fed.converse_hosts(fed.clients.run(show, asked, words), name=f"{name}/accept")
    found: Located = fed.clients.run(judge_draws, known, asked, words, seen, temperature, seed, device)
    costs = acceptance.bytes_of_accept(bits)
    _charge(fed, fed.clients.run(weigh, known, asked, *costs), f"{name}/accept", pairs.hidden)
    return found


def converse_pairs(
    fed: Federation, pairs: Pairs, parties: Located, which: Located, *, name: str, protection: str
) -> Located:
    """Both ends of some pairs run a two-party protocol: what each party ended with, a list of n_h.

    parties: a list of n_h parties (`session.Party`) at each host; the first one of a pair is at the client
    with the lower id. The ledger counts each pair's messages each way, or what a simulated one declares."""
    asked = fed.clients.run(meet, pairs.at_clients, which)
    return _converse(fed, pairs, asked, parties, name, protection)


def _converse(
    fed: Federation, pairs: Pairs, asked: Located, parties: Located, name: str, protection: str
) -> Located:
    known = pairs.at_clients
    near, far = fed.clients.run(begin, known, asked, parties, outputs=2)
    ended = fed.converse_hosts(far, name=name)
    results, traffic = fed.clients.run(end, known, asked, near, ended, outputs=2)
    _charge(fed, traffic, name, protection)
    return results  # type: ignore[no-any-return]


def _set_up(fed: Federation, pairs: Pairs, asked: Located) -> None:
    """Sessions for those of the asked pairs that have none."""
    known, name = pairs.at_clients, f"{pairs.name}/session"
    fresh = fed.clients.run(unopened, known, asked)
    if pairs.simulated:
        _charge(fed, fed.clients.run(weigh, known, fresh, *bytes_of_set_up()), name, "simulated")
    else:
        ends = sum(len(part.rows) for part in fresh.parts)
        held = (ends + sum(len(part.sessions) for part in known.parts)) * BYTES_OF_END
        if held > MAX_BYTES:
            raise InputError(
                f"{pairs.name}: real sessions between pairs of clients would take {held / 2**30:.0f} GiB "
                f"here (at most {MAX_BYTES / 2**30:g}); use fewer clients, or comparison=simulated"
            )
        if (seconds := ends * SECONDS_OF_SET_UP) > LONG_SECONDS:
            fed.tell(
                f"{name}: {ends} ends of sessions between pairs of clients take about {seconds:.0f} s here, "
                f"and {held / 1e6:.0f} MB in all"
            )
        parties = fed.clients.run(opening, known, fresh)
        ended = _converse(fed, pairs, fresh, parties, name, "public")
        fed.clients.run(keep_sessions, known, fresh, ended)
    fed.clients.run(mark_opened, known, fresh)


def _charge(fed: Federation, traffic: Located, name: str, protection: str) -> None:
    """Of the bytes that a host's clients sent and received: (links that leave, links that come)."""
    if fed.here:
        flow = _flow(fed, traffic.parts)
        fed.ledger.charge(Charge(name, "protocol", "bytes", [], protection, flow, 1))


# ---- at the clients: which rows meet -----------------------------------------------------------------------


def know_pairs(rows: PairRows, ids: Tensor, starts: tuple[int, ...], clients: int, name: str) -> Known:
    """What a host knows of its pairs. ids [K_h]: its clients; starts: the first client of every host."""
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
    host = None if near.all() else np.searchsorted(np.array(starts), other, side="right") - 1
    own = int(np.searchsorted(np.array(starts), here[0]))
    return Known(clients, own, me, other, mate, host, np.zeros(len(me), dtype=bool))


@dataclass(frozen=True, eq=False)
class Asked:
    """Rows of which something is asked: rows [n] ascending; near [n]: where among them the pair's other end
    is, -1 where on another host; far: by host, the places of those whose other end is there, by (lower
    client, higher client)."""

    rows: Ints
    near: Ints
    far: dict[int, Ints]


def meet(known: Known, which: Tensor) -> Asked:
    rows = _positions(known, which)
    return _asked(known, rows)


def _asked(known: Known, rows: Ints) -> Asked:
    return Asked(rows, _mates(known, rows, rows), _by_host(known, rows))


def _positions(known: Known, which: Tensor) -> Ints:
    """Positions in the rows, checked."""
    rows: Ints = which.cpu().numpy()
    if rows.ndim != 1 or rows.dtype != np.int64 or not (rows[1:] > rows[:-1]).all():
        raise PlaceError(
            f"pairs are asked by ascending positions [n] int64; got {rows.dtype} {list(rows.shape)}"
        )
    if len(rows) and (rows[0] < 0 or rows[-1] >= len(known.me)):
        raise PlaceError(f"pairs {rows[0]}..{rows[-1]} are asked of {len(known.me)}")
    return rows


def _mates(known: Known, rows: Ints, among: Ints) -> Ints:
    """Where among some rows the other end of each of `rows` is, -1 where it is on another host. Costs what
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
    return place if known.host is None else np.where(near, place, -1)


def _by_host(known: Known, rows: Ints) -> dict[int, Ints]:
    """By other host, the places of the rows whose other end is there."""
    if known.host is None or not len(rows):
        return {}
    host, me, other = (a[rows] for a in (known.host, known.me, known.other))
    order = np.lexsort((np.maximum(me, other), np.minimum(me, other), host))
    hosts, starts = np.unique(host[order], return_index=True)
    places = np.split(order, starts[1:])
    return {int(b): p for b, p in zip(hosts, places, strict=True) if b != known.own}


@dataclass(frozen=True, eq=False)
class Ways:
    """The ways of rows between a host and others: send: of the rows given, those for each host; order: how
    those that arrive, host after host, are put; arrives: the hosts they come from; leaving, coming [n, 3]:
    the links."""

    send: dict[int, Tensor]
    order: Tensor | None
    arrives: tuple[int, ...]
    leaving: Ints
    coming: Ints


def find_ways(known: Known, from_rows: Tensor, to_rows: Tensor, device: str) -> Ways:
    given, wanted = _positions(known, from_rows), _positions(known, to_rows)
    near = _mates(known, wanted, given)
    leaving, coming = links_leaving(known, given, 1), links_coming(known, wanted, 1)
    if known.host is None:
        _check_near(known, given, len(near))
        send = {known.own: near} if len(near) else {}
        return Ways(_as_tensors(send, device), None, tuple(send), leaving, coming)
    staying = np.flatnonzero(near >= 0)
    _check_near(known, given, len(staying))
    send, places = _by_host(known, given), _by_host(known, wanted)
    if len(staying):
        send[known.own], places[known.own] = near[staying], staying
    arrives = tuple(sorted(places))
    arriving = np.concatenate([wanted[:0], *(places[a] for a in arrives)])
    order = torch.from_numpy(np.argsort(arriving)).to(device)
    return Ways(_as_tensors(send, device), order, arrives, leaving, coming)


def _check_near(known: Known, given: Ints, wanted: int) -> None:
    """Of rows inside a host as many are given as wanted: each that is wanted is given, so they are the
    same."""
    if (count := int((known.mate[given] >= 0).sum())) != wanted:
        raise PlaceError(f"{count} rows are sent between clients of one host, which expect {wanted}")


def _as_tensors(places: dict[int, Ints], device: str) -> dict[int, Tensor]:
    return {b: torch.from_numpy(place).to(device) for b, place in places.items()}


def links_leaving(known: Known, rows: Ints, units: Ints | int) -> Ints:
    """The links [n, 3] from the rows' clients to the others."""
    return np.stack([known.me[rows], known.other[rows], np.broadcast_to(units, rows.shape)]).T


def links_coming(known: Known, rows: Ints, units: Ints | int) -> Ints:
    """The links [m, 3] to the rows' clients, from those on other hosts: the others leave clients of this
    one."""
    if known.host is None:
        return _NO_LINKS
    links = np.stack([known.other[rows], known.me[rows], np.broadcast_to(units, rows.shape)]).T
    return links[known.mate[rows] < 0]


# ---- at the clients: comparisons ---------------------------------------------------------------------------

#: A word has who asks in the bit above the number.
_ASKER = np.int64(MAX_BITS)
_NUMBER = np.int64(2**MAX_BITS - 1)


def operands(known: Known, asked: Asked, numbers: Tensor, asker: Tensor | None, bits: int) -> Ints:
    """The numbers to compare, in words [n]; with who asks."""
    words: Ints = numbers.cpu().numpy()
    if words.shape != asked.rows.shape or words.dtype != np.int64:
        raise PlaceError(
            f"numbers to compare are int64 [{len(asked.rows)}], one a pair; got {words.dtype} "
            f"{list(words.shape)}"
        )
    if len(words) and (words.min() < 0 or int(words.max()) >> bits):
        worst = int(np.argmax(np.where(words < 0, np.iinfo(np.int64).max, words)))
        told = "is negative" if words[worst] < 0 else f"takes {int(words[worst]).bit_length()}"
        raise InputError(
            f"client {known.me[asked.rows[worst]]} has a number that {told}, where numbers to compare have "
            f"{bits} bits; use more bits (at most {MAX_BITS})"
        )
    if asker is None:
        return words
    asks = asker.cpu().numpy()
    if asks.shape != words.shape or asks.dtype != bool:
        raise PlaceError(f"askers are bool [{len(words)}], one a pair; got {asks.dtype} {list(asks.shape)}")
    return words | asks.astype(np.int64) << _ASKER


def show(asked: Asked, words: Ints) -> dict[int, Party[Ints]]:
    """Simulated: the words for each other host."""
    return {b: _swap(words[places]) for b, places in asked.far.items()}


def _swap(mine: Ints) -> Party[Ints]:
    yield mine.tobytes()
    message = yield None
    if len(message) != mine.nbytes:
        raise ProtocolError(
            f"a host shows {len(message)} bytes of numbers where {mine.nbytes} are expected: it is asked for "
            "other pairs"
        )
    return np.frombuffer(message, dtype=np.int64)


def judge(asked: Asked, mine: Ints, seen: dict[int, Ints], reveal: Reveal, device: str) -> Tensor:
    """Simulated: the outcomes [n], of the words of both ends."""
    if reveal == "order":
        outcomes = np.sign(mine - _theirs(asked, mine, seen))
    else:
        asking, other = _by_asker(asked, mine, seen)
        outcomes = asking > other
    return torch.from_numpy(outcomes.astype(np.int8)).to(device)


def judge_draws(
    known: Known,
    asked: Asked,
    mine: Ints,
    seen: dict[int, Ints],
    temperature: float,
    seed: int,
    device: str,
) -> Tensor:
    """Simulated: whether each new number is accepted [n], by a draw of the pair."""
    old, new = _by_asker(asked, mine, seen)
    me, other = known.me[asked.rows], known.other[asked.rows]
    pair = torch.from_numpy(np.minimum(me, other) * known.clients + np.maximum(me, other))
    draws = np.floor(acceptance.DRAWS * uniform(seed, pair)[:, 0].numpy())
    accepted = draws < acceptance.thresholds(new - old, temperature)
    return torch.from_numpy(accepted.astype(np.int8)).to(device)


def _theirs(asked: Asked, mine: Ints, seen: dict[int, Ints]) -> Ints:
    """The words of the other ends [n]."""
    theirs = mine[asked.near]
    for b, words in seen.items():
        theirs[asked.far[b]] = words
    return theirs


def _by_asker(asked: Asked, mine: Ints, seen: dict[int, Ints]) -> tuple[Ints, Ints]:
    """The numbers [n] of the end that asks, and of the other."""
    theirs = _theirs(asked, mine, seen)
    asks = (mine >> _ASKER).astype(bool)
    if not np.array_equal(asks, theirs >> _ASKER == 0):
        raise PlaceError("of each pair that compares one end asks, and the other does not")
    own, others = mine & _NUMBER, theirs & _NUMBER
    return np.where(asks, own, others), np.where(asks, others, own)


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
    return asked if len(fresh) == len(asked.rows) else _asked(known, fresh)


def mark_opened(known: Known, fresh: Asked) -> None:
    known.opened[fresh.rows] = True


def opening(known: Known, fresh: Asked) -> list[Party[TwoParty]]:
    first = (known.me < known.other)[fresh.rows]
    return [TwoParty(first=bool(f)).set_up() for f in first]


def keep_sessions(known: Known, fresh: Asked, ended: list[TwoParty]) -> None:
    known.sessions.update(zip(fresh.rows.tolist(), ended, strict=True))


def comparing(
    known: Known, asked: Asked, words: Ints, bits: int, reveal: Reveal
) -> list[Party[NDArray[Any]]]:
    """A party for every row. What is opened of a "greater" is whether the first one's number is less: where
    the first one asks, both take what their numbers lack to the largest."""
    numbers = words & _NUMBER
    if reveal == "greater":
        first = known.me[asked.rows] < known.other[asked.rows]
        turned = (words >> _ASKER).astype(bool) == first
        numbers = np.where(turned, 2**bits - 1 - numbers, numbers)
    ask = compare if reveal == "order" else is_less
    sessions = [known.sessions[row] for row in asked.rows.tolist()]
    single = numbers.astype(np.uint32).reshape(-1, 1)
    return [ask(session, number, bits) for session, number in zip(sessions, single, strict=True)]


def opened_outcomes(
    known: Known, asked: Asked, ended: list[NDArray[Any]], reveal: Reveal, device: str
) -> Tensor:
    """The outcomes [n], as each end sees them."""
    told = np.concatenate([np.zeros(0, dtype=np.int8), *(one.astype(np.int8) for one in ended)])
    if reveal == "order":
        told = np.where(known.me[asked.rows] < known.other[asked.rows], told, -told)
    return torch.from_numpy(told).to(device)


def accepting(known: Known, asked: Asked, words: Ints, bits: int, temperature: float) -> list[Party[bool]]:
    """A party for every row; who asks has the old number."""
    first = known.me[asked.rows] < known.other[asked.rows]
    old_is_first = (words >> _ASKER).astype(bool) == first
    return [
        acceptance.accept(known.sessions[row], number, bits, old_is_first=of_first, temperature=temperature)
        for row, number, of_first in zip(
            asked.rows.tolist(), (words & _NUMBER).tolist(), old_is_first.tolist(), strict=True
        )
    ]


def opened_bits(ended: list[bool], device: str) -> Tensor:
    return torch.tensor(ended, dtype=torch.int8, device=device)


# ---- at the clients: real protocols ------------------------------------------------------------------------


def begin(
    known: Known, asked: Asked, parties: list[Party[Any]]
) -> tuple[dict[int, Ended[Any]], dict[int, Party[list[Ended[Any]]]]]:
    """What the parties of pairs inside this host ended with, by place; and for every other host the parties
    of those it is in, as one."""
    if len(parties) != len(asked.rows):
        raise PlaceError(f"{len(parties)} parties for {len(asked.rows)} rows")
    near: dict[int, Ended[Any]] = {}
    for one, other in enumerate(asked.near.tolist()):
        if one < other:  # rows are sorted, so the one with the lower id comes first
            near[one], near[other] = run_both(parties[one], parties[other])
    return near, {b: bundled([parties[p] for p in places.tolist()]) for b, places in asked.far.items()}


def end(
    known: Known, asked: Asked, near: dict[int, Ended[Any]], ended: dict[int, list[Ended[Any]]]
) -> tuple[list[Any], tuple[Ints, Ints]]:
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
