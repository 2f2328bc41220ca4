"""Keeps messages that have arrived until the program asks for them by sender and key.

Messages may arrive early, late, twice or in any order: each waits here under its key. A second copy is
dropped, even after the first was taken. Messages of runs that are over are dropped, too.
"""

import sys
import threading
from collections import Counter
from collections.abc import Hashable

from graphfed.errors import GraphfedError

#: Seconds without any message after which a waiting process gives up.
PATIENCE = 600.0
#: Bytes of the largest message between two processes: 1 GiB. The sender refuses a longer one. The receiver
#: refuses a longer length before it allocates memory for it.
MAX_MESSAGE = 1 << 30
#: Bytes counted for a kept message in addition to its contents and its key.
ENTRY = 1 << 10


class ProcessError(GraphfedError):
    """A process of the run failed, died, sent nothing for too long, or was stopped."""


class PeerLost(ProcessError):
    """No further message can come from another process, `peer`."""

    def __init__(self, peer: Hashable, message: str) -> None:
        super().__init__(message)
        self.peer = peer


class Mailbox:
    """The messages that one process has received. Several threads may put messages in.

    A key begins with the run to which its message belongs. Messages of later runs wait for their run. `take`
    waits for `patience` seconds.
    """

    def __init__(self, patience: float = PATIENCE) -> None:
        self.patience = patience
        self.run = ""
        self._over: set[str] = set()
        self._mail: dict[tuple[Hashable, str], bytes] = {}
        self._taken: set[tuple[Hashable, str]] = set()
        #: The number of threads that wait for a message.
        self._asked: Counter[tuple[Hashable, str]] = Counter()
        self._held: Counter[Hashable] = Counter()
        #: Senders from which nothing more can come, and why.
        self._closed: dict[Hashable, str] = {}
        self._changed = threading.Condition()

    def begin(self, run: str, *, reopen: bool = False) -> None:
        """Begin another run: drop the messages of earlier runs, those that arrive later included.

        With `reopen`, messages of all senders are accepted again. ProcessError if a run of this name was here
        before, because their messages could not be distinguished.
        """
        with self._changed:
            if run == self.run or run in self._over:
                raise ProcessError(f"a run {run!r} was here before; give every run another name")
            # The name stays known: copies of its messages may still arrive.
            self._over.add(self.run)
            self.run = run
            if reopen:
                self._closed.clear()
            self._taken.clear()  # only messages of the last run were taken
            self._mail = {box: text for box, text in self._mail.items() if not self._is_over(box[1])}
            self._held.clear()
            for (sender, key), message in self._mail.items():
                self._held[sender] += room(key, message)

    def _is_over(self, key: str) -> bool:
        return key.partition("/")[0] in self._over

    def put(self, sender: Hashable, key: str, message: bytes) -> None:
        """Keep a message, unless it is not needed (`knows`)."""
        with self._changed:
            if not self.knows(sender, key):
                self._mail[sender, key] = message
                self._held[sender] += room(key, message)
                self._changed.notify_all()

    def knows(self, sender: Hashable, key: str) -> bool:
        """Return whether a message is not needed: it is already here, was taken, or its run is over."""
        box = (sender, key)
        with self._changed:
            return box in self._mail or box in self._taken or self._is_over(key)

    def held(self, sender: Hashable) -> int:
        """Count the bytes of memory of a sender's messages that were not taken yet."""
        with self._changed:
            return self._held[sender]

    def asked(self, sender: Hashable, key: str) -> bool:
        """Return whether a thread waits in `take` for a message."""
        with self._changed:
            return self._asked[sender, key] > 0

    def close(self, sender: Hashable, reason: str, *, run: str | None = None) -> None:
        """Record that nothing more comes from a sender; threads that wait for it raise `PeerLost`.

        The first reason, the end of a sentence, stays. If `run` is given and not the present run, nothing is
        recorded.
        """
        with self._changed:
            if run is None or run == self.run:
                self._closed.setdefault(sender, reason)
                self._changed.notify_all()

    def closed(self, sender: Hashable) -> bool:
        with self._changed:
            return sender in self._closed

    def check_open(self, sender: Hashable, key: str, name: str) -> None:
        """Raise PeerLost if a process was closed to which something is to be sent."""
        with self._changed:
            if sender in self._closed:
                raise PeerLost(sender, f"{name} {self._closed[sender]}; this process was sending {key}")

    def take(self, sender: Hashable, key: str, name: str) -> bytes:
        """Wait for a message of the present run, and return it.

        `key` does not include the run, and `name` is the name of the sender for people.

        Raises:
            PeerLost: Nothing more can come from the sender.
            ProcessError: The message did not come within the patience.
        """
        with self._changed:
            box = (sender, f"{self.run}/{key}")
            self._asked[box] += 1
            try:
                # A message that came before its sender was closed is still delivered.
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
                raise PeerLost(sender, f"{name} {self._closed[sender]}; this process was waiting for {key}")
        raise ProcessError(f"{name} sent nothing for {self.patience:g} s; this process was waiting for {key}")


def room(key: str, content: bytes | memoryview) -> int:
    """Estimate the bytes of memory that a kept message needs, from above."""
    return len(content) + sys.getsizeof(key) + ENTRY


def check_size(message: bytes, what: str, limit: int = MAX_MESSAGE) -> None:
    """Raise ProcessError if a message is too large to be sent."""
    if len(message) > limit:
        raise ProcessError(
            f"{what} is a message of {len(message)} bytes, more than the limit of {limit} bytes between two "
            "processes; use the runtime 'local', or more clients with fewer rows each"
        )
