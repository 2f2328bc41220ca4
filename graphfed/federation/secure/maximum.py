"""The secure maximum over clients of the rows of each id, at the server, which learns only the maxima.

It hides the maxima of SAPGNN, Eq. (7), and their gradients, Eq. (19). The server and a helper, the first
client, compute on shares; `graphfed.crypto.maximum` states the protocol, the argument and the assumptions.
Every client sends a share of its rows to each of the two. The two run the protocol, and the server has the
maxima. For the gradient the two run the protocol again, and each client gets a share of its gradient from
both.

    NAME/session              server - helper   the set-up, once in a run
    NAME/plan                 server - helper   which rows have the same id, once for each route
    NAME/server_shares        client -> server  rows, 4 bytes for each number
    NAME/helper_shares        client -> helper  the same
    NAME/protocol             server - helper   comparisons and choices
    NAME/grad/protocol        server - helper   choices
    NAME/grad/server_shares   server -> client  rows, 8 bytes for each number
    NAME/grad/helper_shares   helper -> client  the same

If the protocol is simulated, the server's shares are the numbers themselves, the helper's shares are 0, and
the two send each other all that they have. The results and the bytes are the same, under the protection
`simulated`.

`open_maximum`, `plan_maximum` and `protected_max` compute the maximum under the protection that a setting
asks for. In plaintext that is `Federation.max`, which shows the server each row.
"""

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
from graphfed.federation.transfer import TensorForm
from graphfed.federation.values import Located
from graphfed.nn.sparse import SparseMatrix

Session = TwoParty | Simulated
#: A party's shares of the maxima, and its shares of which row won on every level of the tournament.
Found = tuple[protocol.Shares, protocol.Bits]


@dataclass(frozen=True)
class HelperSession:
    """The session of the server and the helper. `at_clients` is None at the workers of other clients."""

    at_server: Located[Session]
    at_clients: Located[Session | None]
    name: str


@dataclass(frozen=True)
class PreparedRoute:
    """A route whose rows are prepared for secure maxima.

    Attributes:
        at_server, at_clients: The plan of the tournament, a `SharedPlan` at the server and at the helper.
        to_helper, from_helper: The routes of the rows from the clients to the helper, and back.
    """

    route: Route
    session: HelperSession
    at_server: Located
    at_clients: Located
    to_helper: ExchangeRoute
    from_helper: ExchangeRoute


#: How the rows of a route are prepared for maxima: by the route itself in plaintext.
MaximumRoute = Route | PreparedRoute


def open_maximum(fed: Federation, protection: str, *, name: str) -> HelperSession | None:
    """Set up the session of the server and the helper by the transfer ``name/session``, once in a run.

    In plaintext there is none. InputError if protocols are real and the extra `secure` is not installed.
    """
    if not needs_parts(protection):
        return None
    server = fed.server.run(open_party, True, fed.simulated)
    helper = fed.clients.run(open_party, False, fed.simulated)
    public = fed.protection_of("public")
    return HelperSession(*fed.run_protocol(server, helper, name=f"{name}/session", protection=public), name)


def plan_maximum(fed: Federation, route: Route, session: HelperSession | None) -> MaximumRoute:
    """Prepare maxima over the rows of a route, once for each route; in plaintext there is nothing to do.

    The helper is sent which rows have the same id, 4 bytes a row.
    """
    if session is None:
        return route
    server = fed.server.run(send_plan, fed.table(route), fed.num_clients)
    helper = fed.clients.run(receive_plan, fed.num_clients)
    plans = fed.run_protocol(server, helper, name=f"{session.name}/plan", protection="plaintext")
    return PreparedRoute(route, session, *plans, *_helper_routes(fed, route, plans[1]))


def protected_max(
    fed: Federation, x: Located, planned: MaximumRoute, *, name: str, grad: bool = True
) -> Located:
    """Take the maximum of the rows [M_h, H] of the same id at the server: [U, H], in the order of the table.

    In plaintext the server reads each row, otherwise it learns only the maxima. Then numbers are rounded to
    16 bits after the binary point and gradients to 40, and a number whose size is not below 2^14 is an
    InputError.
    """
    if isinstance(planned, Route):
        return fed.max(x, planned, name=name, grad=grad)
    session, kind = planned.session, fed.protection_of("shared")
    # Neither share says anything about a number without the other.
    for_server, for_helper = fed.clients.run(make_shares, x, fed.simulated, outputs=2)
    at_server = fed.upload(
        for_server, planned.route, name=f"{name}/server_shares", protection=kind, grad=False
    )
    at_helper = fed.exchange(
        for_helper, planned.to_helper, name=f"{name}/helper_shares", protection=kind, grad=False
    )
    found_at_server, found_at_helper = fed.run_protocol(
        fed.server.run(find_maxima, session.at_server, planned.at_server, at_server),
        fed.clients.run(help_maxima, session.at_clients, planned.at_clients, for_helper, at_helper),
        name=f"{name}/protocol",
        protection=fed.protection_of("encrypted"),
    )
    # SAPGNN, Eq. (7)
    maxima = fed.server.run(decode_maxima, found_at_server, planned.at_server, str(fed.device))
    if not grad:
        return maxima
    back = partial(_send_gradients_back, fed, x, planned, found_at_server, found_at_helper, name)
    return fed.custom_backward(x, maxima, back)


def _send_gradients_back(
    fed: Federation,
    x: Located,
    prepared: PreparedRoute,
    found_at_server: Located,
    found_at_helper: Located,
    name: str,
    gradient: Located,
) -> Located:
    # SAPGNN, Eq. (19): the gradient of each maximum goes to the row that won the tournament.
    session, kind, name = prepared.session, fed.protection_of("shared"), f"{name}/grad"
    at_server, at_helper = fed.run_protocol(
        fed.server.run(send_gradients, session.at_server, prepared.at_server, found_at_server, gradient),
        fed.clients.run(help_gradients, session.at_clients, prepared.at_clients, found_at_helper),
        name=f"{name}/protocol",
        protection=fed.protection_of("encrypted"),
    )
    rows = fed.server.run(convert_to_words, at_server, str(fed.device))
    form = TensorForm(torch.int64, (None,))
    from_server = fed.scatter(
        rows, prepared.route, name=f"{name}/server_shares", protection=kind, grad=False, like=form
    )
    kept = fed.clients.run(convert_to_words, at_helper, str(fed.device))
    from_helper = fed.exchange(
        kept, prepared.from_helper, name=f"{name}/helper_shares", protection=kind, grad=False
    )
    return fed.clients.run(add_shares, from_server, kept, from_helper, x)


# ---- at the clients ----------------------------------------------------------------------------------------


def make_shares(x: Tensor | SparseMatrix, simulated: bool) -> tuple[Tensor, Tensor]:
    """Split every number [M, H] into two int32 shares, for the server and for the helper."""
    words = protocol.encode(x.to_dense() if isinstance(x, SparseMatrix) else x.detach())
    if simulated:
        return words, torch.zeros_like(words)
    # A uniform share from the operating system's entropy; the other share is what remains, modulo 2^32.
    drawn = torch.frombuffer(bytearray(os.urandom(words.nbytes)), dtype=torch.int32)
    drawn = drawn.view(words.shape).to(words.device)
    # int32 arithmetic of torch wraps around, which is the difference modulo 2^32.
    return words - drawn, drawn


def add_shares(from_server: Tensor, kept: Tensor | None, from_helper: Tensor, x: Tensor) -> Tensor:
    """Add up both shares of the gradient of a worker's rows x [M_h, H].

    The helper keeps the shares of its own rows, which are the first rows of its worker.
    """
    if kept is not None:
        from_helper = torch.cat([kept[: len(from_server) - len(from_helper)], from_helper])
    return protocol.decode_gradient(from_server + from_helper, x.dtype)


# ---- the two parties ---------------------------------------------------------------------------------------


def open_party(first: bool, simulated: bool) -> Party[Session]:
    return protocol.open_session(first=first, simulated=simulated)


@dataclass(frozen=True, eq=False)
class SharedPlan:
    """What the server and the helper both know of a prepared route.

    Attributes:
        tournament: The tournament of the rows of each id.
        counts: [K] int64, the number of rows of each client.
        group: [U] int64, the position of each id among the roots of the tournament; at the server only.
    """

    tournament: protocol.Plan
    counts: NDArray[np.int64]
    group: NDArray[np.int64] | None


def send_plan(table: RouteTable, clients: int) -> Party[SharedPlan]:
    """Send the plan to the helper.

    Ids are numbered in order of appearance, so the numbers reveal nothing else.
    """
    # The rank of each id by its first row.
    index = table.index.cpu().numpy()
    _, first = np.unique(index, return_index=True)
    group = np.argsort(np.argsort(first))
    counts = np.bincount(table.client.cpu().numpy(), minlength=clients)
    # Little-endian words of 4 bytes: K counts, then the number of each row's id.
    yield np.concatenate([counts, group[index]]).astype("<u4").tobytes()
    return SharedPlan(protocol.make_plan(group[index]), counts, group)


def receive_plan(clients: int) -> Party[SharedPlan]:
    message = yield None
    # Cut to whole words first; a remainder is refused below.
    content = np.frombuffer(message[: len(message) // 4 * 4], dtype="<u4").astype(np.int64)
    counts, group = content[:clients], content[clients:]
    numbers = np.unique(group)
    if len(message) % 4 or len(counts) < clients or counts.sum() != len(group):
        raise ProtocolError(f"the plan of a maximum has {len(message)} bytes, which do not fit its counts")
    if not np.array_equal(numbers, np.arange(len(numbers))):
        raise ProtocolError("the plan of a maximum must number its nodes 0, 1, ..., and does not")
    return SharedPlan(protocol.make_plan(group), counts, None)


def find_maxima(session: Session, plan: SharedPlan, shares: Tensor) -> Party[Found]:
    return protocol.maxima(session, plan.tournament, _words(shares))


def help_maxima(session: Session, plan: SharedPlan, helper_rows: Tensor, arrived: Tensor) -> Party[Found]:
    # A generator, because the workers of other clients, which have no plan, make it and never run it.
    rows = torch.cat([helper_rows[: int(plan.counts[0])], arrived])
    return (yield from protocol.maxima(session, plan.tournament, _words(rows)))


def decode_maxima(found: Found, plan: SharedPlan, device: str) -> Tensor:
    """Decode the maxima [U, H], in the order of the ids."""
    words = torch.from_numpy(found[0].view(np.int32)[plan.group])
    return protocol.decode(words, torch.get_default_dtype()).to(device)


def send_gradients(
    session: Session, plan: SharedPlan, found: Found, gradient: Tensor
) -> Party[NDArray[np.uint64]]:
    words = protocol.encode_gradient(gradient).cpu().numpy().view(np.uint64)
    assert plan.group is not None
    # From the order of the ids to that of the roots.
    by_root = np.empty_like(words)
    by_root[plan.group] = words
    return protocol.send_gradients(session, plan.tournament, found[1], by_root)


def help_gradients(session: Session, plan: SharedPlan, found: Found) -> Party[NDArray[np.uint64]]:
    # The server's share of the gradient is the gradient itself, the helper's is 0.
    nothing = np.zeros(found[0].shape, dtype=np.uint64)
    return (yield from protocol.send_gradients(session, plan.tournament, found[1], nothing))


def convert_to_words(shares: NDArray[np.uint64] | None, device: str) -> Tensor | None:
    return None if shares is None else torch.from_numpy(shares.view(np.int64)).to(device)


def _words(shares: Tensor) -> NDArray[np.uint32]:
    return shares.contiguous().cpu().numpy().view(np.uint32)


# ---- the routes to and from the helper ---------------------------------------------------------------------


def _helper_routes(fed: Federation, route: Route, plan: Located) -> tuple[ExchangeRoute, ExchangeRoute]:
    """Make the routes from every client to the helper and back. The helper's own rows are not sent."""
    rows = route.flow.sent.copy()
    if 0 in fed.here:
        rows = plan.parts[fed.here.index(0)].counts
    per_worker = [int(rows[list(clients)].sum()) for clients in fed.workers]
    # The rows of each worker in client order; the helper has the rows of all clients one after the other.
    starts = np.cumsum([0, *per_worker])
    helper_rows, helper_is_here = int(rows[0]), 0 in fed.here
    to_helper: dict[Pair, Tensor] = {}
    from_helper: dict[Pair, Tensor] = {}
    # The helper is client 0, of worker 0. If it is alone there, worker 0 has no rows to send to it.
    others = [h for h in range(len(fed.workers)) if h or len(fed.workers[0]) > 1]
    pairs = [(h, 0) for h in others if helper_is_here or h in fed.here]
    for h, _ in pairs:
        first = 0 if h else helper_rows
        if h in fed.here:
            to_helper[h, 0] = torch.arange(first, per_worker[h], device=fed.device)
        if helper_is_here:
            from_helper[0, h] = torch.arange(int(starts[h]) + first, int(starts[h + 1]), device=fed.device)
    links = np.array([[k, 0, n] for k, n in enumerate(rows) if k and n], dtype=np.int64).reshape(-1, 3)
    flow = Flow.peer(links, fed.held)
    reversed_pairs = tuple((0, h) for h, _ in pairs)
    none: dict[int, Tensor | None] = dict.fromkeys(fed.here)
    return (
        ExchangeRoute(f"{route.name} to the helper", tuple(pairs), to_helper, none, flow),
        ExchangeRoute(f"{route.name} from the helper", reversed_pairs, from_helper, none, flow.back),
    )
