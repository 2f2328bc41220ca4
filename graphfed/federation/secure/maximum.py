"""The maximum over clients of the rows of each id, at the server, which learns nothing but the maxima
(SAPGNN, eqs. 7 and 19).

The server and the first client, the helper, compute on shares; protocol, argument and assumptions are in
`graphfed.crypto.maximum`. Every client sends a share of its rows to each of the two; they talk; the server
has the maxima. Back: they talk again, and each client gets a share of its gradient from both.

    NAME/session              server - helper   set-up, once a run; NAME/plan: which rows meet, once a route
    NAME/server_shares        client -> server  rows, 4 bytes a number
    NAME/helper_shares        client -> helper  the same
    NAME/protocol             server - helper   comparisons and choices
    NAME/grad/protocol        server - helper   choices
    NAME/grad/server_shares   server -> client  rows, 8 bytes a number
    NAME/grad/helper_shares   helper -> client  the same

Simulated, the shares for the server are the numbers themselves, those for the helper are 0, and the two show
each other all they have: the same results and the same bytes, under the protection `simulated`.

`open_maximum`, `plan_maximum` and `protected_max` are the maximum under the protection that a setting asks
for: in plaintext it is `Federation.max`, which shows the server each row."""

import os
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto import maximum as protocol
from graphfed.crypto.errors import ProtocolError
from graphfed.crypto.ot import TwoParty
from graphfed.crypto.session import Party, Simulated
from graphfed.federation.core import Federation
from graphfed.federation.ledger import Flow
from graphfed.federation.link import Pair
from graphfed.federation.route import ExchangeRoute, Route, RouteTable
from graphfed.federation.secure.protection import needs_parts
from graphfed.federation.values import Located
from graphfed.nn.sparse import SparseMatrix

Session = TwoParty | Simulated
#: What a party has of the maxima: its shares of them, and of who won on every level.
Found = tuple[protocol.Shares, protocol.Bits]

__all__ = [
    "Helped",
    "Meeting",
    "Planned",
    "open_helped",
    "open_maximum",
    "plan_maximum",
    "plan_meeting",
    "protected_max",
    "secure_max",
]


@dataclass(frozen=True)
class Helped:
    """The session of the server and the helper: one end at each."""

    at_server: Located[Session]
    at_clients: Located[Session | None]
    name: str


@dataclass(frozen=True)
class Meeting:
    """The rows of a route that meet: the tournament as the server and the helper know it, and the ways of
    the rows to the helper and back."""

    route: Route
    helped: Helped
    at_server: Located
    at_clients: Located
    there: ExchangeRoute
    back: ExchangeRoute


#: How the rows of a route are prepared for maxima: by the route itself in plaintext.
Planned = Route | Meeting


def open_maximum(fed: Federation, protection: str, *, name: str) -> Helped | None:
    """Prepare maxima under a protection, once a run: None in plaintext, else `open_helped`."""
    return open_helped(fed, name=name) if needs_parts(protection) else None


def plan_maximum(fed: Federation, route: Route, helped: Helped | None) -> Planned:
    """Prepare maxima over the rows of a route, once a route: nothing in plaintext, else `plan_meeting`."""
    return route if helped is None else plan_meeting(fed, route, helped)


def protected_max(fed: Federation, x: Located, planned: Planned, *, name: str, grad: bool = True) -> Located:
    """Take the maximum of the rows of the same id at the server.

    Args:
        x: [M_h, H] at each worker, a row for every id of the route.
        planned: What `plan_maximum` returned.

    Returns:
        [U, H] at the server, in the order of the route's table.
    """
    if isinstance(planned, Meeting):
        return secure_max(fed, x, planned, name=name, grad=grad)
    return fed.max(x, planned, name=name, grad=grad)


def open_helped(fed: Federation, *, name: str) -> Helped:
    """Set up the session, once a run. The transfer is ``name/session``.

    InputError where the extra `secure` is not installed."""
    server = fed.server.run(open_end, True, fed.simulated)
    helper = fed.clients.run(open_end, False, fed.simulated)
    protection = fed.protection_of("public")
    ends = fed.run_protocol(server, helper, name=f"{name}/session", protection=protection)
    return Helped(*ends, name)


def plan_meeting(fed: Federation, route: Route, helped: Helped) -> Meeting:
    """Tell the helper which rows of a route meet, once a route: 4 bytes a row. The transfer is
    ``name/plan``, with the name of the session."""
    server = fed.server.run(send_plan, fed.table(route), fed.num_clients)
    helper = fed.clients.run(receive_plan, fed.num_clients)
    ends = fed.run_protocol(server, helper, name=f"{helped.name}/plan", protection="clear")
    return Meeting(route, helped, *ends, *_ways(fed, route, ends[1]))


def secure_max(fed: Federation, x: Located, meeting: Meeting, *, name: str, grad: bool = True) -> Located:
    """`Federation.max` of the rows [M_h, H] of the same id -> [U, H], by the protocol; of numbers cut to 16
    bits after the point, and gradients to 40.

    InputError for a number that is not below 2^14 in size."""
    helped, kind = meeting.helped, fed.protection_of("shared")
    for_server, for_helper = fed.clients.run(deal, x, fed.simulated, outputs=2)
    at_server = fed.upload(
        for_server, meeting.route, name=f"{name}/server_shares", protection=kind, grad=False
    )
    at_helper = fed.exchange(
        for_helper, meeting.there, name=f"{name}/helper_shares", protection=kind, grad=False
    )
    told, chosen = fed.run_protocol(
        fed.server.run(find_maxima, helped.at_server, meeting.at_server, at_server),
        fed.clients.run(help_maxima, helped.at_clients, meeting.at_clients, for_helper, at_helper),
        name=f"{name}/protocol",
        protection=fed.protection_of("encrypted"),
    )
    found = fed.server.run(opened, told, meeting.at_server, str(fed.device))
    if not grad:
        return found
    return fed.custom_backward(x, found, partial(_back, fed, x, meeting, told, chosen, name))


def _back(
    fed: Federation,
    x: Located,
    meeting: Meeting,
    told: Located,
    chosen: Located,
    name: str,
    gradient: Located,
) -> Located:
    """The gradient of x, from that of the maxima."""
    helped, kind, name = meeting.helped, fed.protection_of("shared"), f"{name}/grad"
    at_server, at_helper = fed.run_protocol(
        fed.server.run(send_back, helped.at_server, meeting.at_server, told, gradient),
        fed.clients.run(help_back, helped.at_clients, meeting.at_clients, chosen),
        name=f"{name}/protocol",
        protection=fed.protection_of("encrypted"),
    )
    rows = fed.server.run(as_words, at_server, str(fed.device))
    mine = fed.scatter(rows, meeting.route, name=f"{name}/server_shares", protection=kind, grad=False)
    kept = fed.clients.run(as_words, at_helper, str(fed.device))
    other = fed.exchange(kept, meeting.back, name=f"{name}/helper_shares", protection=kind, grad=False)
    return fed.clients.run(add_up, mine, kept, other, x)


# ---- at the clients ----------------------------------------------------------------------------------------


def deal(x: Tensor | SparseMatrix, simulated: bool) -> tuple[Tensor, Tensor]:
    """Two shares of every number [M, H], int32: for the server and for the helper."""
    words = protocol.encode(x.to_dense() if isinstance(x, SparseMatrix) else x.detach())
    if simulated:
        return words, torch.zeros_like(words)
    drawn = torch.frombuffer(bytearray(os.urandom(words.nbytes)), dtype=torch.int32)
    drawn = drawn.view(words.shape).to(words.device)
    return words - drawn, drawn


def add_up(mine: Tensor, kept: Tensor | None, other: Tensor, x: Tensor) -> Tensor:
    """The gradient of a worker's rows x [M_h, H], from both shares of each: the server's, and the helper's,
    which keeps those of its own rows, the worker's first."""
    theirs = other if kept is None else torch.cat([kept[: len(mine) - len(other)], other])
    return protocol.decode_gradient(mine + theirs, x.dtype)


# ---- the two parties ---------------------------------------------------------------------------------------


def open_end(first: bool, simulated: bool) -> Party[Session]:
    return protocol.open_session(first=first, simulated=simulated)


@dataclass(frozen=True, eq=False)
class Told:
    """What both know of a meeting. counts [K]: rows of each client; group [U], at the server: the place in
    the tournament's roots of each id."""

    plan: protocol.Plan
    counts: NDArray[np.int64]
    group: NDArray[np.int64] | None


def send_plan(table: RouteTable, clients: int) -> Party[Told]:
    """The server numbers nodes as they come, so that the numbers say nothing else."""
    index = table.index.cpu().numpy()
    _, first = np.unique(index, return_index=True)
    group = np.argsort(np.argsort(first))
    counts = np.bincount(table.client.cpu().numpy(), minlength=clients)
    yield np.concatenate([counts, group[index]]).astype("<u4").tobytes()
    return Told(protocol.make_plan(group[index]), counts, group)


def receive_plan(clients: int) -> Party[Told]:
    message = yield None
    told = np.frombuffer(message[: len(message) // 4 * 4], dtype="<u4").astype(np.int64)
    counts, group = told[:clients], told[clients:]
    numbers = np.unique(group)
    if len(message) % 4 or len(counts) < clients or counts.sum() != len(group):
        raise ProtocolError(f"the plan of a maximum has {len(message)} bytes, which do not fit its counts")
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise ProtocolError("the plan of a maximum does not number its nodes from 0 on")
    return Told(protocol.make_plan(group), counts, None)


def find_maxima(session: Session, told: Told, shares: Tensor) -> Party[Found]:
    return protocol.maxima(session, told.plan, _words(shares))


def help_maxima(session: Session, told: Told, own: Tensor, arrived: Tensor) -> Party[Found]:
    # A generator itself: at the workers of other clients, which have no plan, it is made and never run.
    rows = torch.cat([own[: int(told.counts[0])], arrived])
    return (yield from protocol.maxima(session, told.plan, _words(rows)))


def opened(found: Found, told: Told, device: str) -> Tensor:
    """The maxima [U, H], in the order of the ids."""
    words = torch.from_numpy(found[0].view(np.int32)[told.group])
    return protocol.decode(words, torch.get_default_dtype()).to(device)


def send_back(session: Session, told: Told, found: Found, gradient: Tensor) -> Party[NDArray[np.uint64]]:
    words = protocol.encode_gradient(gradient).cpu().numpy().view(np.uint64)
    assert told.group is not None
    by_root = np.empty_like(words)
    by_root[told.group] = words
    return protocol.send_gradients(session, told.plan, found[1], by_root)


def help_back(session: Session, told: Told, found: Found) -> Party[NDArray[np.uint64]]:
    nothing = np.zeros(found[0].shape, dtype=np.uint64)
    return (yield from protocol.send_gradients(session, told.plan, found[1], nothing))


def as_words(shares: NDArray[np.uint64] | None, device: str) -> Tensor | None:
    return None if shares is None else torch.from_numpy(shares.view(np.int64)).to(device)


def _words(shares: Tensor) -> NDArray[np.uint32]:
    return shares.contiguous().cpu().numpy().view(np.uint32)


# ---- the ways of the rows ----------------------------------------------------------------------------------


def _ways(fed: Federation, route: Route, told: Located) -> tuple[ExchangeRoute, ExchangeRoute]:
    """From every client to the helper and back; the helper's own rows do not cross."""
    rows = route.flow.sent.copy()
    if 0 in fed.here:
        rows = told.parts[fed.here.index(0)].counts
    per_worker = [int(rows[list(clients)].sum()) for clients in fed.workers]
    starts = np.cumsum([0, *per_worker])
    own, near = int(rows[0]), 0 in fed.here
    there: dict[Pair, Tensor] = {}
    back: dict[Pair, Tensor] = {}
    others = [h for h in range(len(fed.workers)) if h or len(fed.workers[0]) > 1]
    pairs = [(h, 0) for h in others if near or h in fed.here]
    for h, _ in pairs:
        first = 0 if h else own
        if h in fed.here:
            there[h, 0] = torch.arange(first, per_worker[h], device=fed.device)
        if near:
            back[0, h] = torch.arange(int(starts[h]) + first, int(starts[h + 1]), device=fed.device)
    links = np.array([[k, 0, n] for k, n in enumerate(rows) if k and n], dtype=np.int64).reshape(-1, 3)
    flow = Flow.peer(links, fed.held)
    turned = tuple((0, h) for h, _ in pairs)
    none: dict[int, Tensor | None] = dict.fromkeys(fed.here)
    return (
        ExchangeRoute(f"{route.name} to the helper", tuple(pairs), there, none, flow),
        ExchangeRoute(f"{route.name} from the helper", turned, back, none, flow.back),
    )
