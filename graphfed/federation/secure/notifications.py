"""Notifications: each client selects some of its pairs and notifies the other clients of these.

    NAME     client -> client, 4 bytes a notification: the number of the pair among those of the two workers

Two workers that have pairs in common send each other one message in every call, which may be empty, because
both must run the same steps. So a client also learns that the other clients of its remaining pairs did not
select them.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto.session import Party
from graphfed.federation.core import Federation
from graphfed.federation.ledger import Flow, LedgerRecord
from graphfed.federation.secure.pairs import KnownPairs, Pairs, positions_by_worker
from graphfed.federation.secure.protection import PLAINTEXT
from graphfed.federation.values import Located
from graphfed.federation.wire import WireError

Ints = NDArray[np.int64]
#: Bytes of a notification.
NOTIFICATION_BYTES = 4


def notify(fed: Federation, pairs: Pairs, which: Located, *, name: str) -> Located:
    """Notify the other clients of some pairs, at the positions `which` [n_h] int64 in the rows, ascending.

    Returns [m_h] int64 at the clients, the positions of the rows whose other client sent a notification,
    ascending. WireError if what another worker sends does not name pairs that the two workers have in common.
    """
    known = pairs.at_clients
    arrived = fed.run_worker_protocols(fed.clients.run(write_notifications, known, which), name=name)
    rows, outgoing, incoming = fed.clients.run(
        read_notifications, known, which, arrived, str(fed.device), outputs=3
    )
    if fed.here:
        # A link from another worker of this process is one of that worker's outgoing links.
        remote = [links[~fed.held[links[:, 0]]] for links in incoming.parts]
        flow = Flow.peer(np.concatenate([*outgoing.parts, *remote]), fed.held)
        fed.ledger.record(LedgerRecord(name, "notes", "uint32", [], PLAINTEXT, flow, NOTIFICATION_BYTES))
    return rows


def write_notifications(known: KnownPairs, which: Tensor) -> dict[int, Party[bytes]]:
    """Make the message to each other worker: the numbers of the selected pairs among the common ones."""
    selected = np.zeros(len(known.client), dtype=bool)
    selected[which.cpu().numpy()] = True
    return {
        # Numbers among the common pairs, which both workers list in the same order: 4 bytes name a pair.
        worker: _swap(np.flatnonzero(selected[rows]).astype("<u4").tobytes())
        for worker, rows in _common_pairs(known).items()
    }


def _swap(message: bytes) -> Party[bytes]:
    yield message
    return (yield None)


def read_notifications(
    known: KnownPairs, which: Tensor, arrived: dict[int, bytes], device: str
) -> tuple[Tensor, Ints, Ints]:
    """Find the rows [m] whose other clients sent a notification, and the outgoing and incoming links, [n,
    3] each.
    """
    rows = which.cpu().numpy()
    local = known.other_row[rows]
    notified = [local[local >= 0]]
    for worker, common in _common_pairs(known).items():
        message = arrived[worker]
        whole = message[: len(message) // NOTIFICATION_BYTES * NOTIFICATION_BYTES]
        numbers = np.frombuffer(whole, dtype="<u4").astype(np.int64)
        ascending = bool((np.diff(numbers) > 0).all())
        if len(message) != len(whole) or not ascending or (len(numbers) and numbers[-1] >= len(common)):
            raise WireError(
                f"the notifications from worker {worker} ({len(message)} bytes) do not name some of the "
                f"{len(common)} pairs that the two workers have in common"
            )
        notified.append(common[numbers])
    received = np.sort(np.concatenate(notified))
    return (
        torch.from_numpy(received).to(device),
        _links(known.client[rows], known.other[rows]),
        _links(known.other[received], known.client[received]),
    )


def _links(sender: Ints, receiver: Ints) -> Ints:
    return np.stack([sender, receiver, np.ones_like(sender)], 1)


def _common_pairs(known: KnownPairs) -> dict[int, Ints]:
    """List the rows of the pairs with each other worker's clients; both workers number them alike."""
    return positions_by_worker(known, np.arange(len(known.client)))
