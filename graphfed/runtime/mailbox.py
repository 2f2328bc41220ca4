"""Messages that have arrived, until somebody asks for them by sender and key.

A message may come early, late, twice or in any order: it waits here under its key, and a second copy is
dropped, also after the first was taken."""

import threading
from collections.abc import Hashable

from graphfed.errors import GraphfedError

__all__ = ["MAX_MESSAGE", "PATIENCE", "Mailbox", "PeerLost", "ProcessError", "check_size"]

#: Seconds without any sign of life after which a waiting process gives up.
PATIENCE = 600.0
#: Bytes of the largest message between two processes: 1 GiB. A longer one is refused where it is sent; a
#: length beyond it on arrival is refused before any memory is taken for it.
MAX_MESSAGE = 1 << 30


class ProcessError(GraphfedError):
    """A process of the run failed, died, stayed silent or was stopped."""


class PeerLost(ProcessError):
    """Another process can be heard no more."""

    def __init__(self, peer: Hashable, message: str) -> None:
        super().__init__(message)
        self.peer = peer


class Mailbox:
    """The messages of one process; several threads may put them in. Keys begin with the run that a message
    belongs to; those of runs to come wait for their turn.

    patience: seconds `take` waits."""

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.run = ""
        self._mail: dict[tuple[Hashable, str], bytes] = {}
        self._taken: set[tuple[Hashable, str]] = set()
        #: senders that can be heard no more, and why
        self._closed: dict[Hashable, str] = {}
        self._changed = threading.Condition()

    def begin(self, run: str) -> None:
        """From here on `take` asks for the messages of another run; what is left of the last one goes."""
        last, self.run = f"{self.run}/", run
        with self._changed:
            self._taken = {box for box in self._taken if not box[1].startswith(last)}
            self._mail = {box: text for box, text in self._mail.items() if not box[1].startswith(last)}

    def put(self, sender: Hashable, key: str, message: bytes) -> None:
        """Keep a message; nothing where it is a copy of one that arrived before."""
        box = (sender, key)
        with self._changed:
            if box not in self._taken:
                self._mail.setdefault(box, message)
                self._changed.notify_all()

    def close(self, sender: Hashable, reason: str) -> None:
        """Nothing more comes from this sender: whoever waits for it is told why. The first reason stays."""
        with self._changed:
            self._closed.setdefault(sender, reason)
            self._changed.notify_all()

    def reopen(self) -> None:
        """Senders that were closed may be heard again."""
        with self._changed:
            self._closed.clear()

    def check_open(self, sender: Hashable, key: str, name: str) -> None:
        """PeerLost where the sender is closed: sending it `key` has no use."""
        with self._changed:
            if sender in self._closed:
                raise PeerLost(sender, f"{name} {self._closed[sender]}; sending {key}")

    def take(self, sender: Hashable, key: str, name: str) -> bytes:
        """The message of this sender and key in the present run, once it is here; name: of the sender, for
        people.

        PeerLost where the sender is closed, ProcessError where it stays silent for too long."""
        box = (sender, f"{self.run}/{key}")
        with self._changed:
            self._changed.wait_for(lambda: box in self._mail or sender in self._closed, self.patience)
            if box in self._mail:
                self._taken.add(box)
                return self._mail.pop(box)
            if sender in self._closed:
                raise PeerLost(sender, f"{name} {self._closed[sender]}; waiting for {key}")
        raise ProcessError(f"{name} sent nothing for {self.patience:g} s; waiting for {key}")


def check_size(message: bytes, what: str, limit: int = MAX_MESSAGE) -> None:
    """ProcessError where a message is too large to cross."""
    if len(message) > limit:
        raise ProcessError(
            f"{what} is a message of {len(message)} bytes, more than the {limit} that cross between two "
            "processes; use runtime 'local', or more clients with fewer rows each"
        )
