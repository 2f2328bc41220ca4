"""Messages that have arrived, until somebody asks for them by sender and key.

A message may come early, late, twice or in any order: it waits here under its key, and a second copy is
dropped, also after the first was taken, and so is what comes of a run that is over."""

import sys
import threading
from collections import Counter
from collections.abc import Hashable

from graphfed.errors import GraphfedError

__all__ = ["MAX_MESSAGE", "PATIENCE", "Mailbox", "PeerLost", "ProcessError", "check_size", "room"]

#: Seconds without any sign of life after which a waiting process gives up.
PATIENCE = 600.0
#: Bytes of the largest message between two processes: 1 GiB. A longer one is refused where it is sent; a
#: length beyond it on arrival is refused before any memory is taken for it.
MAX_MESSAGE = 1 << 30
#: Bytes counted for a message that is kept, beside its contents and its key.
ENTRY = 1 << 10


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
        self._over: set[str] = set()
        self._mail: dict[tuple[Hashable, str], bytes] = {}
        self._taken: set[tuple[Hashable, str]] = set()
        #: how many wait for a message
        self._asked: Counter[tuple[Hashable, str]] = Counter()
        self._held: Counter[Hashable] = Counter()
        #: senders that can be heard no more, and why
        self._closed: dict[Hashable, str] = {}
        self._changed = threading.Condition()

    def begin(self, run: str) -> None:
        """From here on `take` asks for the messages of another run; what is left of earlier ones goes, also
        what comes of them later.

        ProcessError for a run that has been here before: its messages could not be told from those of the
        first."""
        with self._changed:
            if run == self.run or run in self._over:
                raise ProcessError(f"run {run!r} has been here before; give every run a name of its own")
            self._over.add(self.run)
            self.run = run
            self._taken.clear()  # of no run but the last one was anything taken
            self._mail = {box: text for box, text in self._mail.items() if not self._is_over(box[1])}
            self._held.clear()
            for (sender, key), message in self._mail.items():
                self._held[sender] += room(key, message)

    def _is_over(self, key: str) -> bool:
        return key.partition("/")[0] in self._over

    def put(self, sender: Hashable, key: str, message: bytes) -> None:
        """Keep a message; nothing where `knows` says so."""
        with self._changed:
            if not self.knows(sender, key):
                self._mail[sender, key] = message
                self._held[sender] += room(key, message)
                self._changed.notify_all()

    def knows(self, sender: Hashable, key: str) -> bool:
        """Whether a message is of no use any more: it is here already, was taken, or its run is over."""
        box = (sender, key)
        with self._changed:
            return box in self._mail or box in self._taken or self._is_over(key)

    def held(self, sender: Hashable) -> int:
        """Bytes that the messages of this sender take which nobody has asked for yet."""
        with self._changed:
            return self._held[sender]

    def asked(self, sender: Hashable, key: str) -> bool:
        """Whether somebody waits for this message."""
        with self._changed:
            return self._asked[sender, key] > 0

    def close(self, sender: Hashable, reason: str, *, run: str | None = None) -> None:
        """Nothing more comes from this sender: whoever waits for it is told why. The first reason stays.
        run: nothing, where the present run is another one."""
        with self._changed:
            if run is None or run == self.run:
                self._closed.setdefault(sender, reason)
                self._changed.notify_all()

    def reopen(self) -> None:
        """Senders that were closed may be heard again."""
        with self._changed:
            self._closed.clear()

    def closed(self, sender: Hashable) -> bool:
        """Whether nothing more comes from this sender."""
        with self._changed:
            return sender in self._closed

    def check_open(self, sender: Hashable, key: str, name: str) -> None:
        """PeerLost where the sender is closed: sending it `key` has no use."""
        with self._changed:
            if sender in self._closed:
                raise PeerLost(sender, f"{name} {self._closed[sender]}; sending {key}")

    def take(self, sender: Hashable, key: str, name: str) -> bytes:
        """The message of this sender and key in the present run, once it is here; name: of the sender, for
        people.

        PeerLost where the sender is closed, ProcessError where it stays silent for too long."""
        with self._changed:
            box = (sender, f"{self.run}/{key}")
            self._asked[box] += 1
            try:
                self._changed.wait_for(lambda: box in self._mail or sender in self._closed, self.patience)
            finally:
                self._asked[box] -= 1
                if not self._asked[box]:
                    del self._asked[box]
            if box in self._mail:
                self._taken.add(box)
                message = self._mail.pop(box)
                self._held[sender] -= room(box[1], message)
                return message
            if sender in self._closed:
                raise PeerLost(sender, f"{name} {self._closed[sender]}; waiting for {key}")
        raise ProcessError(f"{name} sent nothing for {self.patience:g} s; waiting for {key}")


def room(key: str, content: bytes | memoryview) -> int:
    """Bytes that it takes to keep contents under a key, counted generously."""
    return len(content) + sys.getsizeof(key) + ENTRY


def check_size(message: bytes, what: str, limit: int = MAX_MESSAGE) -> None:
    """ProcessError where a message is too large to cross."""
    if len(message) > limit:
        raise ProcessError(
            f"{what} is a message of {len(message)} bytes, more than the {limit} that cross between two "
            "processes; use runtime 'local', or more clients with fewer rows each"
        )
