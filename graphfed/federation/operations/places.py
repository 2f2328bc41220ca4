"""The participants of a run: which of them are in this process, and which clients take part in the round."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import InputError, PlaceError
from graphfed.federation.ledger import Flow
from graphfed.federation.link import SERVER_INDEX, Pair
from graphfed.federation.values import CLIENTS, Located, check_arguments


class Places:
    """The workers of a run and its server: which of them are in this process, and which clients take part.

    A participant of a transfer is a worker, by its index, or the server (`SERVER_INDEX`).

    Args:
        workers: The clients of each worker, ascending over all workers.
        here: The workers in this process, ascending (None: all).
        server_here: Whether the server is in this process.
        names: What messages call each worker (None: by its clients).
        device: The torch device of values made here.

    Attributes:
        held: [K] bool, the clients in this process.
        seen: [K] bool, the clients whose traffic with the server this process sees.
        server_is_here: Whether the server is in this process.
        roster: [K] bool, the clients that take part.
        up, down: (sender, receiver) of messages to and from the server, for the workers that take part.
        flow: One unit from each client that takes part to the server; its `back` is from the server.
        everyone_flow: One unit from each client to the server.
        first_client_flow: One unit from client 0 to the server.

    Raises:
        ValueError: For workers that do not hold the clients 0..K-1 in order, or a wrong `here`.
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
        self.server_is_here = server_here
        #: The participants in this process: its workers, and the server if it is here.
        self.local_participants = [*self.here, *([SERVER_INDEX] if server_here else [])]
        self.device, self.num_clients = device, len(flat)
        self._names = None if names is None else tuple(names)
        self.held = np.zeros(self.num_clients, dtype=bool)
        for h in self.here:
            self.held[list(self.workers[h])] = True
        # The server sees the traffic of every client with it, a worker that of its own clients.
        self.seen = self.held | server_here
        self.everyone_flow = Flow.up(self.seen, self.seen)
        # Two-party protocols with the server run at client 0.
        first = self.seen & (np.arange(self.num_clients) == 0)
        self.first_client_flow = Flow.up(first, first)
        self.set_roster(np.ones(self.num_clients, dtype=bool))

    def set_roster(self, present: np.ndarray) -> None:
        """Set which clients take part, [K] bool (see `Federation.set_roster`).

        InputError if no client takes part; ValueError for another shape or dtype.
        """
        # A copy, which only this object can write to.
        present = np.array(present)
        if present.shape != (self.num_clients,) or present.dtype != bool:
            raise ValueError(
                f"a roster is {self.num_clients} booleans; got {present.dtype} of shape {present.shape}"
            )
        if not present.any():
            raise InputError("no client takes part in the round; use a larger fraction of clients")
        # Values keep the roster they were computed under, so nothing may change it.
        present.setflags(write=False)
        self.roster = present
        self._active = [bool(present[h[0] : h[-1] + 1].any()) for h in self.workers]
        self._everyone = bool(present.all())
        active = [h for h, is_active in enumerate(self._active) if is_active]
        self.up = [(h, SERVER_INDEX) for h in active]
        self.down = [(SERVER_INDEX, h) for h in active]
        self.flow = Flow.up(present & self.seen, present & self.seen)

    # ---- participants --------------------------------------------------------------------------------------

    def participants_at(self, place: str) -> list[int]:
        """List the participants of a place in this process."""
        if place == CLIENTS:
            return self.here
        return [SERVER_INDEX] if self.server_is_here else []

    def is_active(self, worker: int) -> bool:
        """Tell whether at least one client of a worker takes part."""
        return self._active[worker]

    def is_remote(self, participant: int) -> bool:
        """Tell whether a participant is in another process."""
        if participant == SERVER_INDEX:
            return not self.server_is_here
        return participant not in self.here

    def name_of(self, participant: int) -> str:
        """Name a participant for a message."""
        if participant == SERVER_INDEX:
            return "server"
        if self._names is not None:
            return self._names[participant]
        first, last = self.workers[participant][0], self.workers[participant][-1]
        return f"client {first}" if first == last else f"clients {first}..{last} (stacked)"

    def clients_of(self, worker: int) -> slice:
        """Return the clients of a worker as a slice of a vector over all clients."""
        return slice(self.workers[worker][0], self.workers[worker][-1] + 1)

    def present_in(self, worker: int) -> Tensor:
        """List the clients of a worker that take part, by index in its cohort, [P_h] int64."""
        return torch.from_numpy(np.flatnonzero(self.roster[self.clients_of(worker)]))

    # ---- checks --------------------------------------------------------------------------------------------

    def check_members(self, value: Located, stage: str) -> None:
        """Check that every client that takes part has a value; PlaceError, which names the stage that uses
        it.
        """
        members = value.members
        # By identity first: the usual value was computed under the present roster.
        if members is None or members is self.roster:
            return
        missing = np.flatnonzero(self.roster & ~members)
        if len(missing):
            raise PlaceError(
                f"{stage}: {value.name!r} is missing at client {missing[0]} ({len(missing)} in all), "
                "which did not take part when it was computed; compute it again with this roster"
            )

    def check_sent(self, x: Located, place: str, transfer: str) -> None:
        """Check that a value can be sent from a place: it lives there and is complete. Else PlaceError."""
        check_arguments(place, f"transfer {transfer!r}", [x])
        if place == CLIENTS:
            self.check_members(x, f"transfer {transfer!r}")

    def check_all_present(self, transfer: str) -> None:
        """Check that every client takes part in a transfer that needs all; else PlaceError."""
        if not self._everyone:
            absent = np.flatnonzero(~self.roster).tolist()
            raise PlaceError(
                f"transfer {transfer!r} needs every client, but clients {absent[:5]} are absent "
                f"({len(absent)} in all); use a transfer that allows absent clients, such as collect"
            )
