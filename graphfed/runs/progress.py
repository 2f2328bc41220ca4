"""Show the progress of a run on stderr: a bar on a terminal, and a line every few seconds elsewhere."""

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from graphfed.data.dropped import in_one_line
from graphfed.errors import GraphfedWarning
from graphfed.terminal import printable, say

if TYPE_CHECKING:
    from graphfed.runs.train import Event
    from graphfed.tasks.inputs import Inputs

#: Without a terminal: the seconds between two lines, at least. The last round always has a line.
LINE_EVERY = 5.0
#: Without a terminal: the seconds without a line after which the current stage is reported.
SILENCE = 2.0

OnEvent = Callable[["Event"], None]


def human_bytes(count: float) -> str:
    """Write a number of bytes for people, in powers of 1000: ``1536000`` becomes ``'1.5 MB'``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """Write a duration for people: ``75`` becomes ``'1:15'``; below ten seconds ``'4.2 s'``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def stages_of(on_event: OnEvent | None) -> Callable[[str], None]:
    """Return a function that reports, as an event of a run, which stage begins before training."""

    def begin(stage: str) -> None:
        from graphfed.runs.train import Event

        if on_event is not None:
            on_event(Event("stage", note=stage))

    return begin


def _validation(event: "Event") -> str:
    """Return the first validation metric as text."""
    if not event.val:
        return ""
    name, value = next(iter(event.val.items()))
    return f"val {name} {value:.4g}"


@contextmanager
def show_progress(label: str, enabled: bool = True, stream: TextIO | None = None) -> Iterator[OnEvent | None]:
    """Show a run's events on a stream in this block, by the function that is yielded; None shows nothing."""
    stream = sys.stderr if stream is None else stream
    if not enabled or stream is None:
        yield None
    elif stream.isatty():
        with _bar(label, stream) as on_event:
            yield on_event
    else:
        lines = _Lines(label, stream)
        try:
            yield lines
        finally:
            lines.stop_waiting()


def show_message(text: str, enabled: bool = True) -> None:
    """Write a line to stderr; a progress bar that is shown there moves below it."""
    if enabled:
        say(text)


def show_data(inputs: "Inputs", enabled: bool = True) -> None:
    """Write to stderr what the reader of the data left out, the names of features, and its remarks, one line
    each. If not enabled, warn of what was left out and of the remarks.
    """
    dropped = [in_one_line(inputs.dropped)] if inputs.dropped else []
    for line in (*dropped, *inputs.feature_line, *inputs.remarks) if enabled else ():
        show_message(f"{inputs.name}: {line}")
    for line in () if enabled else (*dropped, *inputs.remarks):
        warn(f"{inputs.name}: {line}")


def warn(text: str) -> None:
    """Issue a warning at the line of the program that called graphfed."""
    package = __name__.partition(".")[0]
    frame: FrameType | None = sys._getframe()
    depth = level = 1
    while frame is not None:
        # The outermost frame of graphfed counts, because libraries may lie between two of its frames.
        if frame.f_globals.get("__name__", "").partition(".")[0] == package:
            level = depth + 1
        depth, frame = depth + 1, frame.f_back
    warnings.warn(printable(text), GraphfedWarning, stacklevel=level)


def log_note(event: "Event") -> None:
    """Log a message of a run that is not shown, such as that the next step takes long."""
    if event.phase == "note":
        logging.getLogger("graphfed").info(printable(event.note))


class Expected:
    """An estimate of what a run will take in all, from what set-up and the rounds so far have taken."""

    def __init__(self) -> None:
        self._ready: Event | None = None

    def see(self, event: "Event") -> None:
        """Remember the event that ends set-up, or that begins training in a run that goes on from a
        checkpoint.
        """
        if event.phase == "setup":
            self._ready = event

    def _in_all(self, event: "Event", before: float, now: float) -> float:
        """Extrapolate from `before`, the amount at the start of training, and `now` to the last round."""
        # A run that goes on from a checkpoint has only measured the rounds since then.
        first = 0 if self._ready is None else self._ready.round
        return before + (now - before) * (event.rounds - first) / max(1, event.round - first)

    def seconds(self, event: "Event") -> float:
        """Estimate the seconds of the run."""
        return self._in_all(event, self._ready.seconds if self._ready else 0.0, event.seconds)

    def bytes(self, event: "Event") -> float:
        """Estimate the bytes of set-up and training of the run."""
        return self._in_all(event, self._ready.bytes if self._ready else 0, event.bytes)

    def text(self, event: "Event") -> str:
        """Return the estimate as text: ``about 40 s, 120 MB sent, 1.3 GB of memory in all``.

        "at most" is added if the run may stop early.
        """
        sent = self.bytes(event)
        parts = [f"about {human_seconds(self.seconds(event))}", f"{human_bytes(sent)} sent"]
        parts += [f"{human_bytes(event.memory)} of memory"] if event.memory else []
        return f"{', '.join(parts)} in all{' at most' if event.may_stop else ''}"


class _Lines:
    """Progress in lines. The first line comes as soon as a round has shown how long the run will take."""

    def __init__(self, label: str, stream: TextIO) -> None:
        self._label, self._stream = label, stream
        self._shown_at = time.monotonic()
        self._last_round = 0
        self._expected = Expected()
        self._announced = False
        # The current stage, and the timer that shows it.
        self._stage, self._patience = "", SILENCE
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def __call__(self, event: "Event") -> None:
        self._expected.see(event)
        if event.phase == "stage":
            self._begin(event.note)
            return
        self.stop_waiting()
        if event.note:
            self._print(event.note)
        else:
            self._show_round(event)

    def stop_waiting(self) -> None:
        """Cancel the line about the stages before, which are over."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._patience = None, SILENCE

    def _begin(self, stage: str) -> None:
        """Show a stage, or the one that follows it, unless another event comes soon."""
        with self._lock:
            self._stage = stage
            if self._timer is None:
                self._timer = threading.Timer(self._patience, self._show_stage)
                self._timer.daemon = True
                self._timer.start()

    def _show_stage(self) -> None:
        with self._lock:
            # `stop_waiting` may have come while this waited for the lock.
            if self._timer is not None:
                self._print(self._stage)
                self._timer, self._patience = None, LINE_EVERY

    def _print(self, text: str) -> None:
        print(printable(f"{self._label}: {text}"), file=self._stream, flush=True)

    def _show_round(self, event: "Event") -> None:
        finished = event.phase == "done" or event.round == event.rounds
        began = event.phase == "train" and not finished
        now = time.monotonic()
        # The user of a long run wants to know early how long it will take.
        long = began and not self._announced and self._expected.seconds(event) > LINE_EVERY
        due = now - self._shown_at >= LINE_EVERY or long
        if (finished and event.round == self._last_round) or (not finished and not due):
            return
        self._shown_at, self._last_round = now, event.round
        parts = [f"round {event.round}/{event.rounds}", _validation(event), human_bytes(event.bytes)]
        if began:
            parts.append(f"{human_seconds(self._expected.seconds(event) - event.seconds)} left")
            if not self._announced:
                parts.append(self._expected.text(event))
                self._announced = True
        self._print(", ".join(part for part in parts if part))


@contextmanager
def _bar(label: str, stream: TextIO) -> Iterator[OnEvent]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(file=stream), refresh_per_second=5) as progress:
        task = progress.add_task(printable(label), total=None, status="setting up")

        # A round may have no validation (eval_every); the last value stays on the screen.
        validation = ""
        expected, announced = Expected(), False

        def on_event(event: "Event") -> None:
            nonlocal validation, announced
            expected.see(event)
            if event.phase == "stage":
                progress.update(task, status=printable(event.note))
                return
            if event.note:
                progress.console.print(printable(event.note), markup=False, highlight=False)
                return
            if event.phase == "train" and not announced and expected.seconds(event) > LINE_EVERY:
                progress.console.print(expected.text(event), markup=False, highlight=False)
                announced = True
            validation = _validation(event) or validation
            status = "  ".join(part for part in (validation, human_bytes(event.bytes)) if part)
            total = event.round if event.phase == "done" else event.rounds
            progress.update(task, completed=event.round, total=total, status=printable(status))

        yield on_event
