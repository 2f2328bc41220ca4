"""Handles SIGINT and SIGTERM.

While training listens, a signal becomes a stop request, which training obeys between two rounds, after
saving. Otherwise a signal raises KeyboardInterrupt at once.
"""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Interrupted", "StopRequest", "heard_since", "listening", "remember_stop_requests", "stopping"]

#: The signals that ask a program to end.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds after a signal in which further signals are ignored: people often press Ctrl-C twice, and the
#: second one must not interrupt saving or cleaning up.
IGNORED_AFTER_SIGNAL = 2.0


class Interrupted(KeyboardInterrupt):
    """Training obeyed a stop request and has saved its state; the message says how to continue."""


class _Signals:
    """The signals of this process: when the last one came (`time.monotonic`), and whether one came that no
    block has handled yet.
    """

    last = float("-inf")
    pending = False


def heard_since(moment: float) -> bool:
    return _Signals.last > moment


class StopRequest:
    """Whether training should stop."""

    def __init__(self) -> None:
        self.asked = False


@contextlib.contextmanager
def listening(on_ask: Callable[[], None] | None = None) -> Iterator[StopRequest]:
    """Turn the first signal in this block into a stop request, and a second one into KeyboardInterrupt.

    A signal that was ignored before stays ignored: shells keep Ctrl-C from background programs in this way.
    Outside the main thread no signal is handled. `on_ask` is called at once when the first signal comes.
    """
    stop_request = StopRequest()

    def ask() -> None:
        if stop_request.asked:
            raise KeyboardInterrupt
        stop_request.asked = True
        if on_ask is not None:
            on_ask()

    with _handled(ask):
        # A signal that came before this block, as `remember_stop_requests` keeps it.
        if _Signals.pending:
            _Signals.pending = False
            ask()
        yield stop_request


def remember_stop_requests() -> None:
    """Remember a SIGTERM that comes while this process does not listen, for the next `listening` block."""

    def remember(*_: object) -> None:
        _Signals.pending = True

    signal.signal(signal.SIGTERM, remember)


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """Turn SIGTERM in this block into KeyboardInterrupt, like Ctrl-C."""

    def stop() -> None:
        raise KeyboardInterrupt

    with _handled(stop):
        yield


@contextlib.contextmanager
def _handled(act: Callable[[], None]) -> Iterator[None]:
    """Call `act` for every signal in this block, unless it comes right after another one."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(*_: object) -> None:
        now = time.monotonic()
        if now - _Signals.last > IGNORED_AFTER_SIGNAL:
            _Signals.last = now
            act()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    # None is a handler that was not installed from Python, and cannot be restored.
    numbers = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in numbers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
