"""Transfers of rows between the two clients of pairs.

The rows of a transfer have one shape (`send`, `swap`), or they are byte strings of different lengths, of
which only the existing bytes are sent and counted (`send_bytes`).
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.federation.core import Federation
from graphfed.federation.link import Pair
from graphfed.federation.route import ExchangeRoute
from graphfed.federation.secure import pairs as pairing
from graphfed.federation.transfer import Transfer, check_rows
from graphfed.federation.values import Located
from graphfed.nn.sparse import ranges


def swap(
    fed: Federation,
    pairs: pairing.Pairs,
    x: Located,
    which: Located,
    *,
    name: str,
    protection: str = "plaintext",
    grad: bool = False,
) -> Located:
    """Swap a row [n_h, ...] between the two clients of some pairs, at positions in the rows, ascending.

    A pair of two clients of one worker has two positions; PlaceError if only one of them is selected.
    """
    return send(fed, pairs, x, which, which, name=name, protection=protection, grad=grad)


def send(
    fed: Federation,
    pairs: pairing.Pairs,
    x: Located,
    from_rows: Located,
    to_rows: Located,
    *,
    name: str,
    protection: str = "plaintext",
    grad: bool = False,
) -> Located:
    """Send a row from one client of some pairs to the other.

    Args:
        x: [n_h, ...] at each worker, a row for each pair that it sends for.
        from_rows: [n_h] int64, the positions of these pairs in the sender's rows, ascending.
        to_rows: [m_h] int64, the positions of the same pairs in the receiver's rows, ascending.
        grad: Whether gradients are sent back the same way.

    Returns:
        [m_h, ...] at each worker, the rows received for the pairs at `to_rows`.

    Raises:
        PlaceError: If sender and receiver select different pairs, or `x` has not one row for each pair.
    """
    route = pair_route(fed, pairs, from_rows, to_rows)
    for rows, part in zip(from_rows.parts, x.parts, strict=True):
        check_rows(part, len(rows), f"transfer {name!r}: {x.name!r}", "the selected pairs are")
    got = fed.exchange(x, route, name=name, protection=protection, grad=grad)
    if fed.here and not route.pairs:
        # A process without rows records the transfer too, so that the ledgers of all placements agree.
        fed.ledger.record(Transfer(name, "rows", route.flow, protection, grad).record_of(x.parts[0]))
    return got


def send_bytes(
    fed: Federation,
    pairs: pairing.Pairs,
    flat: Located,
    lengths: Located,
    from_rows: Located,
    to_rows: Located,
    sizes: Located,
    *,
    name: str,
    protection: str,
) -> Located:
    """Send byte strings from one client of some pairs to the other, as `send`. No gradient is sent back.

    Args:
        flat: [B_h] uint8 at each worker, the bytes it sends, row after row.
        lengths: [n_h] int64, the number of bytes of each row sent.
        sizes: [m_h] int64, the number of bytes of each row received.

    Returns:
        [B'_h] uint8 at each worker, the bytes received, row after row.
    """
    known = pairs.at_clients
    plans = fed.clients.run(plan_rows, known, from_rows, to_rows, str(fed.device))
    plans = fed.clients.run(plan_bytes, plans, known, from_rows, lengths, to_rows, sizes)
    return fed.exchange(flat, make_route(fed, pairs, plans), name=name, protection=protection, grad=False)


def pair_route(fed: Federation, pairs: pairing.Pairs, from_rows: Located, to_rows: Located) -> ExchangeRoute:
    """Make the route of the rows of `send`, for a program that uses it more than once."""
    plans = fed.clients.run(plan_rows, pairs.at_clients, from_rows, to_rows, str(fed.device))
    return make_route(fed, pairs, plans)


def make_route(fed: Federation, pairs: pairing.Pairs, plans: Located["RowPlan"]) -> ExchangeRoute:
    local: dict[int, RowPlan] = dict(zip(fed.here, plans.parts, strict=True))
    send: dict[Pair, Tensor] = {}
    between: set[Pair] = set()
    for h, plan in local.items():
        send |= {(h, b): rows for b, rows in plan.send.items()}
        # Both directions: a pair sends from here, arrives here, or both.
        between |= {(h, b) for b in plan.send} | {(a, h) for a in plan.senders}
    flow = pairing.flow_between(fed, [(plan.outgoing, plan.incoming) for plan in local.values()])
    order = {h: plan.order for h, plan in local.items()}
    return ExchangeRoute(pairs.name, tuple(sorted(between)), send, order, flow)


# ---- at the clients ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Which rows a worker sends to and receives from each other worker.

    Attributes:
        send: By receiving worker, which of the rows to send go there (positions).
        order: How to order the rows received, which arrive one sending worker after the other. None if they
            arrive in order.
        senders: The workers that send rows to this one.
        outgoing, incoming: The links, as in `pairs.outgoing_links` and `pairs.incoming_links`.
    """

    send: dict[int, Tensor]
    order: Tensor | None
    senders: tuple[int, ...]
    outgoing: pairing.Ints
    incoming: pairing.Ints


def plan_rows(known: pairing.KnownPairs, from_rows: Tensor, to_rows: Tensor, device: str) -> RowPlan:
    """Find where a worker's rows are sent, and where its received rows come from."""
    sent, wanted = pairing.check_positions(known, from_rows), pairing.check_positions(known, to_rows)
    local_rows = pairing.find_partners(known, wanted, sent)
    outgoing, incoming = pairing.outgoing_links(known, sent, 1), pairing.incoming_links(known, wanted, 1)
    if known.other_worker is None:
        # All clients are on this worker: the rows to send are gathered in the order they are wanted in.
        _check_local(known, sent, len(local_rows))
        send = {known.worker: local_rows} if len(local_rows) else {}
        return RowPlan(_as_tensors(send, device), None, tuple(send), outgoing, incoming)
    staying = np.flatnonzero(local_rows >= 0)
    _check_local(known, sent, len(staying))
    send, positions = pairing.positions_by_worker(known, sent), pairing.positions_by_worker(known, wanted)
    if len(staying):
        send[known.worker], positions[known.worker] = local_rows[staying], staying
    senders = tuple(sorted(positions))
    # Rows arrive one sender after the other; each has the position at which it is wanted.
    arriving = np.concatenate([wanted[:0], *(positions[a] for a in senders)])
    order = torch.from_numpy(np.argsort(arriving)).to(device)
    return RowPlan(_as_tensors(send, device), order, senders, outgoing, incoming)


def _check_local(known: pairing.KnownPairs, sent: pairing.Ints, wanted: int) -> None:
    """Check that the pairs of two clients of this worker are the same at both.

    Every wanted row is sent (`find_partners`), so equal numbers mean equal pairs.
    """
    if (count := int((known.other_row[sent] >= 0).sum())) != wanted:
        raise PlaceError(
            f"{count} rows are sent between clients of one worker, but {wanted} are expected; select the "
            "same pairs at the sender and at the receiver"
        )


def _as_tensors(positions: dict[int, pairing.Ints], device: str) -> dict[int, Tensor]:
    return {b: torch.from_numpy(position).to(device) for b, position in positions.items()}


def plan_bytes(
    plan: RowPlan,
    known: pairing.KnownPairs,
    from_rows: Tensor,
    lengths: Tensor,
    to_rows: Tensor,
    sizes: Tensor,
) -> RowPlan:
    """Make the plan of the bytes of rows from the plan of the rows."""
    # The bytes of row i are starts[i], ..., starts[i] + lengths[i] - 1 of the flat bytes.
    starts = lengths.cumsum(0) - lengths
    order = None
    if plan.order is not None:
        # Where each wanted row begins among the arriving bytes: sizes in the order of arrival, added up.
        arriving = sizes[torch.argsort(plan.order)]
        order = ranges((arriving.cumsum(0) - arriving)[plan.order], sizes)
    return replace(
        plan,
        send={b: ranges(starts[rows], lengths[rows]) for b, rows in plan.send.items()},
        order=order,
        outgoing=pairing.outgoing_links(known, from_rows.cpu().numpy(), lengths.cpu().numpy()),
        incoming=pairing.incoming_links(known, to_rows.cpu().numpy(), sizes.cpu().numpy()),
    )
