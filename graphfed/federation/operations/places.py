"""Places: the clients and the server of a run, which of them are in this process, and who takes part."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError, PlaceError
from graphfed.federation.ledger import Flow
from graphfed.federation.link import SERVER_INDEX, Pair
from graphfed.federation.values import CLIENTS, Located, check_arguments

__all__ = ["Places"]


class Places:
    """The workers of a run and its server: which of them are in this process, and who takes part.

    A worker is a group of clients stacked in one cohort. Ends of messages are indices of workers, and
    `SERVER_INDEX`.

    Args:
        workers: The clients of each worker, ascending over all workers.
        here: The workers in this process, ascending (None: all).
        server_here: Whether the server is in this process.
        names: What messages call each worker (None: by its clients).
        device: The device of values made here.

    Attributes:
        held: [K] bool, the clients in this process.
        seen: [K] bool, the clients whose traffic with the server this process sees.
        roster: [K] bool, the clients that take part.
        up, down: (sender, receiver) of messages to and from the server, for the workers that take part.
        flow: One unit from each client that takes part to the server; its `back` is the way down.

    Raises:
        ValueError: For workers that do not hold the clients 0..K-1 in order, or `here` that names none of
        them.
    """

    roster: np.ndarray
    up: list[Pair]
    down: list[Pair]
    flow: Flow

    def __init__(
        self,
        workers: Sequence[Sequence[int]],
        here: Sequence[int] | None,
        server_here: bool,
        names: Sequence[str] | None,
        device: torch.device,
    ) -> None:
        self.workers = [tuple(h) for h in workers]
        flat = [k for h in self.workers for k in h]
        if not flat or flat != list(range(len(flat))) or not all(self.workers):
            raise ValueError(
                f"workers must hold the clients 0..K-1 in order, at least one each; got {self.workers}"
            )
        self.here = list(range(len(self.workers))) if here is None else list(here)
        if self.here != sorted({*self.here} & {*range(len(self.workers))}):
            raise ValueError(
                f"here must name some of the {len(self.workers)} workers, ascending; got {self.here}"
            )
        self.server_participants = [SERVER_INDEX] if server_here else []
        self.device, self.num_clients = device, len(flat)
        self._names = None if names is None else tuple(names)
        self.held = np.zeros(self.num_clients, dtype=bool)
        for h in self.here:
            self.held[list(self.workers[h])] = True
        self.seen = self.held | server_here
        self.everyone_flow = Flow.up(self.seen, self.seen)
        first = self.seen & (np.arange(self.num_clients) == 0)
        self.first_client_flow = Flow.up(first, first)
        self.set_roster(np.ones(self.num_clients, dtype=bool))

    def set_roster(self, present: np.ndarray) -> None:
        """See `Federation.set_roster`."""
        present = np.array(present)
        if present.shape != (self.num_clients,) or present.dtype != bool:
            raise ValueError(
                f"a roster is {self.num_clients} booleans; got {present.dtype} of shape {present.shape}"
            )
        if not present.any():
            raise InputError("no client takes part in the round; use a larger fraction of clients")
        present.setflags(write=False)
        self.roster = present
        self._active = [bool(present[h[0] : h[-1] + 1].any()) for h in self.workers]
        self._everyone = bool(present.all())
        active = [h for h, is_active in enumerate(self._active) if is_active]
        self.up = [(h, SERVER_INDEX) for h in active]
        self.down = [(SERVER_INDEX, h) for h in active]
        self.flow = Flow.up(present & self.seen, present & self.seen)

    # ---- ends ----------------------------------------------------------------------------------------------

    def ends(self, place: str) -> list[int]:
        """The ends of a place in this process."""
        return self.here if place == CLIENTS else self.server_participants

    def is_active(self, worker: int) -> bool:
        """Whether a client of the worker takes part."""
        return self._active[worker]

    def is_elsewhere(self, end: int) -> bool:
        """Whether an end is in another process."""
        return end not in (self.server_participants if end == SERVER_INDEX else self.here)

    def name_of(self, end: int) -> str:
        """An end as messages call it."""
        if end == SERVER_INDEX:
            return "server"
        if self._names is not None:
            return self._names[end]
        first, last = self.workers[end][0], self.workers[end][-1]
        return f"client {first}" if first == last else f"clients {first}..{last} (stacked)"

    def clients_of(self, worker: int) -> slice:
        """The clients of a worker, as a slice of a vector over all clients."""
        return slice(self.workers[worker][0], self.workers[worker][-1] + 1)

    def present_in(self, worker: int) -> Tensor:
        """Positions in a worker's cohort of its clients that take part, [P_h] int64."""
        return torch.from_numpy(np.flatnonzero(self.roster[self.clients_of(worker)]))

    # ---- checks --------------------------------------------------------------------------------------------

    def check_members(self, value: Located, stage: str) -> None:
        """Raises PlaceError when a client that takes part has no part of `value`."""
        members = value.members
        if members is None or members is self.roster:
            return
        missing = np.flatnonzero(self.roster & ~members)
        if len(missing):
            raise PlaceError(
                f"{stage}: {value.name!r} is missing at client {missing[0]} ({len(missing)} in all), "
                "which took no part when it was made; make it again with this roster"
            )

    def check_sent(self, x: Located, place: str, transfer: str) -> None:
        """Raises PlaceError unless `x`, which a transfer sends, lives at `place` and has all its parts."""
        check_arguments(place, f"transfer {transfer!r}", [x])
        if place == CLIENTS:
            self.check_members(x, f"transfer {transfer!r}")

    def check_all_present(self, transfer: str) -> None:
        """Raises PlaceError when a client is absent from a transfer that needs every client."""
        if not self._everyone:
            absent = np.flatnonzero(~self.roster).tolist()
            raise PlaceError(
                f"transfer {transfer!r} needs every client; absent: {absent[:5]} ({len(absent)} in all)"
            )
