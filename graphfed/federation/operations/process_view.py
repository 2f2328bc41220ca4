"""A run as one process sees it: its participants, ledger, progress messages and values that follow from
these.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from graphfed.errors import PlaceError
from graphfed.federation.ledger import SIMULATED, Ledger
from graphfed.federation.link import Link, Message, Pair
from graphfed.federation.operations.delivery import Delivery
from graphfed.federation.operations.places import Places
from graphfed.federation.operations.running import Place
from graphfed.federation.values import ABSENT, CLIENTS, SERVER, Located, ProgramObject, check_arguments

T = TypeVar("T")


class ProcessView(ProgramObject):
    """The part of a `Federation` that sends nothing. Arguments and attributes are described there."""

    def __init__(
        self,
        workers: Sequence[Sequence[int]],
        *,
        here: Sequence[int] | None = None,
        server_here: bool = True,
        link: Link | None = None,
        device: torch.device | str = "cpu",
        names: Sequence[str] | None = None,
        simulated: bool = False,
    ) -> None:
        self.device = torch.device(device)
        self._places = places = Places(workers, here, server_here, names, self.device)
        self.workers, self.here, self.server_is_here = (
            places.workers,
            places.here,
            places.server_is_here,
        )
        self.num_clients, self.held = places.num_clients, places.held
        self.link = link
        self._simulated = simulated
        self._delivery = Delivery(places, Ledger(self.num_clients), link)
        self.received = self._delivery.received
        self.clients, self.server = Place(CLIENTS, self._delivery), Place(SERVER, self._delivery)
        self.on_message: Callable[[str], None] | None = None
        self.on_stage: Callable[[str], None] | None = None

    # ---- secure protocols ----------------------------------------------------------------------------------

    @property
    def simulated(self) -> bool:
        """Whether secure protocols are simulated: same results and bytes, but nothing is hidden."""
        return self._simulated

    def protection_of(self, protocol: str) -> str:
        """Return how the ledger records the messages of a protocol.

        Args:
            protocol: The protection if the protocol is real, such as "encrypted".

        Returns:
            `protocol`, or "simulated" if protocols are simulated.
        """
        return SIMULATED if self._simulated else protocol

    # ---- who takes part, and progress ----------------------------------------------------------------------

    @property
    def ledger(self) -> Ledger:
        """What was sent so far. A resumed run continues with the ledger that it had."""
        return self._delivery.ledger

    @ledger.setter
    def ledger(self, ledger: Ledger) -> None:
        """Continue with a ledger.

        Args:
            ledger: The ledger of the run so far.
        """
        self._delivery.ledger = ledger

    @property
    def roster(self) -> np.ndarray:
        """The clients that take part in the round, [K] bool."""
        return self._places.roster

    def set_roster(self, present: np.ndarray) -> None:
        """Set which clients take part from now on.

        Args:
            present: [K] bool, the same in every process (it came by `control`).

        Raises:
            InputError: If no client takes part.
        """
        self._places.set_roster(present)

    @contextmanager
    def phase(self, name: str, round_number: int | None = None) -> Iterator[None]:
        """Record the transfers of this block in a phase.

        Args:
            round_number: The round from here on, also after the block (None: unchanged).
        """
        if round_number is not None:
            self.ledger.round = round_number
        with self.ledger.in_phase(name):
            yield

    def log(self, message: str) -> None:
        """Report that the next step takes long, or sends or stores much.

        Args:
            message: What every participant knows, never a value of one of them.
        """
        if self.on_message is not None:
            self.on_message(message)

    def begin(self, stage: str) -> None:
        """Report the stage that begins now. A user interface shows it if the stage takes long.

        Args:
            stage: As in "encoding the features of 2708 nodes". It holds only what every participant knows.
        """
        if self.on_stage is not None:
            self.on_stage(stage)

    def observe(self, observer: Callable[[str, Mapping[Pair, Message]], None]) -> None:
        """Observe what is sent, for audits and tests. A method never does this.

        Args:
            observer: Called with the name of each transfer and the messages sent from this process, by
                (sender, receiver), before they are delivered.
        """
        self._delivery.observer = observer

    # ---- values --------------------------------------------------------------------------------------------

    def present(self) -> Located[Tensor]:
        """Make the value of which clients of each worker take part, [K_h] bool at the clients."""
        parts = [torch.tensor(self.roster[list(self.workers[h])], device=self.device) for h in self.here]
        return Located(CLIENTS, "present", tuple(parts))

    def client_ids(self) -> Located[Tensor]:
        """Make the value of the ids of each worker's clients, [K_h] int64 at the clients."""
        ranges = [(self.workers[h][0], self.workers[h][-1] + 1) for h in self.here]
        parts = [torch.arange(first, stop, device=self.device) for first, stop in ranges]
        return Located(CLIENTS, "client ids", tuple(parts))

    def traffic(self) -> Located[Tensor]:
        """Make the value of how many bytes each client sent and received in setup and training so far, [K_h]
        int64 at the clients.
        """
        counted = self.ledger.bytes_of_clients()
        parts = [torch.from_numpy(counted[list(self.workers[h])]).to(self.device) for h in self.here]
        return Located(CLIENTS, "traffic", tuple(parts))

    def is_one_client_per_process(self) -> bool:
        """Return whether every client and the server have a process of their own."""
        return self.link is not None and all(len(worker) == 1 for worker in self.workers)

    def busy_seconds(self) -> Located[Tensor]:
        """Make the value of how many seconds each client has worked so far, by the clock of its machine.

        These are all seconds except those in which it waits for messages. Only differences of two such values
        have a meaning. What is computed for other clients in the same process counts too
        (`is_one_client_per_process`).

        Returns:
            [K_h] float64 at the clients.
        """
        link = self._delivery.link
        seconds = time.perf_counter() - (0.0 if link is None else link.waited)
        parts = [torch.full((len(self.workers[h]),), seconds, dtype=torch.float64) for h in self.here]
        return Located(CLIENTS, "busy seconds", tuple(part.to(self.device) for part in parts))

    def locate(self, place: str, name: str, parts: Sequence[T]) -> Located[T]:
        """Make a located value from what a place holds before anything is sent.

        Args:
            place: `CLIENTS` or `SERVER`.
            parts: One for each participant of the place in this process: each worker, or the server.

        Raises:
            PlaceError: If the number of parts is wrong.
        """
        expected = len(self._places.participants_at(place))
        if place not in (CLIENTS, SERVER) or len(parts) != expected:
            raise PlaceError(
                f"{name!r} at {place}: got {len(parts)} parts, but this process has {expected} participants "
                "of this place; give one part for each"
            )
        return Located(place, name, tuple(parts))

    def expect(self, name: str, fn: Callable[..., Any], *arguments: object) -> None:
        """Say what a transfer from the server to the clients looks like.

        A client in another process than the server checks the form of what it receives with it. In one
        process `fn` does not run.

        Args:
            fn: Returns, at the clients, an example of the payload. Its numbers, and its number of rows if it
                has rows, do not matter.
            arguments: The arguments of `fn`, as in `Place.run`.
        """
        # In the server's own process nothing is received from it, so the example is not computed.
        if not self.server_is_here:
            for example in self.local_parts(self.clients.run(fn, *arguments)):
                self.received.expect(name, example)

    def keep_absent(self, new: Located[T], old: Located) -> Located[T]:
        """Merge new state with the old state of workers that are absent.

        Args:
            new: The state at the workers with a client that takes part.
            old: The state at all workers.

        Returns:
            `new` at the workers with a client that takes part, `old` at the others.
        """
        check_arguments(CLIENTS, "keep_absent", (new, old))
        parts = tuple(o if n is ABSENT else n for n, o in zip(new.parts, old.parts, strict=True))
        # Whoever had the value before or has it now; None means all clients.
        members = None if new.members is None or old.members is None else new.members | old.members
        return Located(CLIENTS, new.name, parts, members)

    def local_parts(self, value: Located[T]) -> tuple[T, ...]:
        """Return the parts of a value in this process, one for each participant of the place.

        Run folders and runtimes read them, a method's program never.
        """
        return tuple(p for p in value.parts if p is not ABSENT)
