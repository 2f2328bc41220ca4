"""What a person sees while a run works, on stderr: a bar on a terminal, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from graphfed.experiment.train import Event

__all__ = ["human_bytes", "human_seconds", "show_news", "show_progress"]

#: Without a terminal: at most one line in so many seconds, and always the last round.
LINE_EVERY = 5.0

OnEvent = Callable[["Event"], None]


def human_bytes(count: float) -> str:
    """``1536000`` -> ``'1.5 MB'`` (powers of 1000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    """``75`` -> ``'1:15'``; below ten seconds ``'4.2 s'``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def _validation(event: "Event") -> str:
    """The first validation metric, as text."""
    if not event.val:
        return ""
    name, value = next(iter(event.val.items()))
    return f"val {name} {value:.4g}"


@contextmanager
def show_progress(label: str, enabled: bool = True, stream: TextIO | None = None) -> Iterator[OnEvent | None]:
    """Show a run's events under `label` on `stream` (default: stderr); yields None when not `enabled`."""
    stream = sys.stderr if stream is None else stream
    if not enabled:
        yield None
    elif stream.isatty():
        with _bar(label, stream) as on_event:
            yield on_event
    else:
        yield _lines(label, stream)


def show_news(text: str, enabled: bool = True) -> None:
    """A line on stderr; a bar that is shown there moves on below it."""
    if enabled:
        print(text, file=sys.stderr, flush=True)


def _lines(label: str, stream: TextIO) -> OnEvent:
    last_shown = time.monotonic()
    last_round = 0

    def on_event(event: "Event") -> None:
        nonlocal last_shown, last_round
        if event.note:
            print(f"{label}: {event.note}", file=stream, flush=True)
            return
        finished = event.phase == "done" or event.round == event.rounds
        now = time.monotonic()
        if (finished and event.round == last_round) or (not finished and now - last_shown < LINE_EVERY):
            return
        last_shown, last_round = now, event.round
        left = ""
        if event.round and not finished:
            left = f"{human_seconds(event.seconds / event.round * (event.rounds - event.round))} left"
        told = [f"round {event.round}/{event.rounds}", _validation(event), human_bytes(event.bytes), left]
        print(f"{label}: {', '.join(part for part in told if part)}", file=stream, flush=True)

    return on_event


@contextmanager
def _bar(label: str, stream: TextIO) -> Iterator[OnEvent]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[told]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(file=stream), refresh_per_second=5) as progress:
        task = progress.add_task(label, total=None, told="setting up")

        # A round can lack validation (eval_every): the last value stays on screen.
        validation = ""

        def on_event(event: "Event") -> None:
            nonlocal validation
            if event.note:
                progress.console.print(event.note, markup=False, highlight=False)
                return
            validation = _validation(event) or validation
            told = "  ".join(part for part in (validation, human_bytes(event.bytes)) if part)
            total = event.round if event.phase == "done" else event.rounds
            progress.update(task, completed=event.round, total=total, told=told)

        yield on_event
