"""Notes between pairs of clients that nobody waits for: of all the pairs that a client is in, it picks some
and tells their other ends "this one"; those that hear nothing know that they were not meant.

    NAME     client -> client, 4 bytes a note: the pair's number among those of the two workers

Programs run in step, so silence is an answer too: workers that share a pair send each other a message every
time, which may be empty. That who was told learns who told it, and that the others learn that they were not
told, is the envelope."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphfed.crypto.session import Party
from graphfed.federation.core import Federation
from graphfed.federation.ledger import Flow, LedgerRecord
from graphfed.federation.secure.pairs import Known, Pairs
from graphfed.federation.values import Located
from graphfed.federation.wire import WireError

__all__ = ["notify"]

Ints = NDArray[np.int64]
#: Bytes of a note.
NOTE = 4


def notify(fed: Federation, pairs: Pairs, which: Located, *, name: str, protection: str = "clear") -> Located:
    """Tell the other ends of some pairs. which [n_h] int64: positions in the rows, ascending -> [m_h] int64,
    the positions of the rows whose other end has told this one, ascending.

    Costs what the notes take where all clients are on one worker."""
    known = pairs.at_clients
    arrived = fed.run_worker_protocols(fed.clients.run(write_notes, known, which), name=name)
    rows, leaving, coming = fed.clients.run(read_notes, known, which, arrived, str(fed.device), outputs=3)
    if fed.here:
        # What comes from another worker that is here too was counted there.
        elsewhere = [links[~fed.held[links[:, 0]]] for links in coming.parts]
        flow = Flow.peer(np.concatenate([*leaving.parts, *elsewhere]), fed.held)
        fed.ledger.record(LedgerRecord(name, "notes", "uint32", [], protection, flow, NOTE))
    return rows


def write_notes(known: Known, which: Tensor) -> dict[int, Party[bytes]]:
    """For each other worker that shares a pair with this one: the pairs that are meant."""
    meant = np.zeros(len(known.me), dtype=bool)
    meant[which.cpu().numpy()] = True
    return {
        worker: _swap(np.flatnonzero(meant[rows]).astype("<u4").tobytes())
        for worker, rows in _shared(known).items()
    }


def _swap(mine: bytes) -> Party[bytes]:
    yield mine
    return (yield None)


def read_notes(
    known: Known, which: Tensor, arrived: dict[int, bytes], device: str
) -> tuple[Tensor, Ints, Ints]:
    """The rows that were told of; and the links [n, 3] of the notes that leave this worker, and that come."""
    rows = which.cpu().numpy()
    mate = known.mate[rows]
    told = [mate[mate >= 0]]
    for worker, theirs in _shared(known).items():
        notes = np.frombuffer(arrived[worker][: len(arrived[worker]) // NOTE * NOTE], dtype="<u4").astype(
            np.int64
        )
        ascending = bool((np.diff(notes) > 0).all())
        if len(arrived[worker]) % NOTE or not ascending or (len(notes) and notes[-1] >= len(theirs)):
            raise WireError(
                f"notes of {len(arrived[worker])} bytes from worker {worker} do not name some of the "
                f"{len(theirs)} pairs that it shares with this one"
            )
        told.append(theirs[notes])
    coming = np.sort(np.concatenate(told))
    return (
        torch.from_numpy(coming).to(device),
        _links(known.me[rows], known.other[rows]),
        _links(known.other[coming], known.me[coming]),
    )


def _links(sender: Ints, receiver: Ints) -> Ints:
    return np.stack([sender, receiver, np.ones_like(sender)], 1)


def _shared(known: Known) -> dict[int, Ints]:
    """By other worker, the rows of the pairs with its clients, by (lower client, higher client): both workers
    number them alike."""
    if known.worker is None:
        return {}
    far = np.flatnonzero(known.mate < 0)
    me, other, worker = known.me[far], known.other[far], known.worker[far]
    order = far[np.lexsort((np.maximum(me, other), np.minimum(me, other), worker))]
    workers, starts = np.unique(known.worker[order], return_index=True)
    parts = np.split(order, starts[1:]) if len(order) else []
    return {int(h): part for h, part in zip(workers, parts, strict=True)}
