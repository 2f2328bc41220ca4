"""SIGINT and SIGTERM: a stop_request that training hears between two rounds, so that everything is saved
first, or KeyboardInterrupt at once."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Interrupted", "StopRequest", "heard_since", "listening", "remember_stop_requests", "stopping"]

#: The signals that ask a program to end.
SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds after a signal in which another is not heard: who is in doubt presses twice, and saving or cleaning
#: up must not be cut short by that.
DEAF = 2.0


class Interrupted(KeyboardInterrupt):
    """Training stopped because it was asked to, after its state was saved; the text says how to go on."""


class _Ear:
    """When this process last heard a signal; whether one came that nobody listened to yet."""

    last = float("-inf")
    pending = False


def heard_since(moment: float) -> bool:
    """Whether a signal was heard after a moment of `time.monotonic`."""
    return _Ear.last > moment


class StopRequest:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.asked = False


@contextlib.contextmanager
def listening(on_ask: Callable[[], None] | None = None) -> Iterator[StopRequest]:
    """In this block the first signal is a stop_request (`on_ask` is called at once), a second one
    KeyboardInterrupt.

    A signal that is ignored stays so: that is how a shell keeps Ctrl-C from programs in the background.
    Outside the main thread nothing is listened to."""
    stop_request = StopRequest()

    def ask() -> None:
        if stop_request.asked:
            raise KeyboardInterrupt
        stop_request.asked = True
        if on_ask is not None:
            on_ask()

    with _handled(ask):
        if _Ear.pending:
            _Ear.pending = False
            ask()
        yield stop_request


def remember_stop_requests() -> None:
    """Keep a SIGTERM that comes while this process does not listen; the next `listening` block hears it at
    once."""

    def remember(*_: object) -> None:
        _Ear.pending = True

    signal.signal(signal.SIGTERM, remember)


@contextlib.contextmanager
def stopping() -> Iterator[None]:
    """In this block SIGTERM is KeyboardInterrupt, as Ctrl-C is."""

    def stop() -> None:
        raise KeyboardInterrupt

    with _handled(stop):
        yield


@contextlib.contextmanager
def _handled(act: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(*_: object) -> None:
        now = time.monotonic()
        if now - _Ear.last > DEAF:
            _Ear.last = now
            act()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    ours = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]
    for number in ours:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])
