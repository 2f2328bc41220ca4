"""Do planned runs and other work, one after the other, or several at a time in processes of their own.

The processes get plain values and load their data themselves. They never get Ctrl-C, which reaches every
process of a terminal: the caller receives it and closes a pipe. The pipe also closes if the caller dies. A
process then stops its run, which is saved as by SIGTERM, and ends.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

from graphfed.errors import INTERRUPTED, GraphfedError, InputError, shown
from graphfed.files import JsonObject
from graphfed.plugins import load_plugins
from graphfed.runs.progress import human_seconds, show_progress, stages_of
from graphfed.runs.reopen import config_from_json
from graphfed.runtime.interrupts import heard_since, stopping
from graphfed.studies.plan import Failures, InputCache, run_or_read
from graphfed.tasks.run_config import RunConfig
from graphfed.terminal import say

#: The most processes: each loads torch, which takes about 200 MB.
MAX_JOBS = 256


class Job(Protocol):
    """Work whose results are files."""

    @property
    def name(self) -> str:
        """The name of the job for people."""

    @property
    def seconds(self) -> float:
        """The expected duration, for the remaining time."""

    def do(self, label: str, cache: InputCache, command: str, progress: bool) -> None:
        """Do the work in this process."""

    def sent(self, command: str) -> tuple[Callable[..., None], tuple[object, ...]]:
        """Return how another process does the work: a function of a module, and its plain arguments."""


@dataclass(frozen=True)
class Run:
    """A job that makes one run."""

    name: str
    config: RunConfig
    folder: Path
    seconds: float

    def do(self, label: str, cache: InputCache, command: str, progress: bool) -> None:
        """Make the run in this process."""
        with show_progress(label, progress) as on_event:
            inputs = cache.get(self.config, stages_of(on_event))
            run_or_read(self.config, inputs, self.folder, command, on_event)

    def sent(self, command: str) -> tuple[Callable[..., None], tuple[object, ...]]:
        """Return how another process makes the run."""
        return _run, (self.config.to_json(), str(self.folder), command)


def check_jobs(jobs: object) -> int:
    """Check a number of runs at a time."""
    if isinstance(jobs, bool) or not isinstance(jobs, int) or not 1 <= jobs <= MAX_JOBS:
        raise InputError(f"jobs={shown(jobs)} cannot be used; give a whole number from 1 to {MAX_JOBS}")
    return jobs


def run_all(runs: Sequence[Job], *, jobs: int, cache: InputCache, command: str, progress: bool) -> None:
    """Do all jobs. If one fails, the others go on; if its input is bad, they stop and are saved."""
    at_once = min(jobs, len(runs))
    failures = Failures()
    if at_once > 1:
        _run_in_processes(runs, at_once, command, failures, progress)
    else:
        for number, run in enumerate(runs, 1):
            with failures.noted(run.name):
                run.do(f"[{number}/{len(runs)}] {run.name}", cache, command, progress)
    failures.raise_first()


class _Ended:
    """Reports every job that has ended in one line on stderr, with the time that the others will take."""

    def __init__(self, runs: Sequence[Job]) -> None:
        self._total, self._expected = len(runs), sum(run.seconds for run in runs)
        self._number, self._done, self._before = 0, 0.0, 0.0
        self._began = time.monotonic()

    def report(self, run: Job) -> None:
        self._number += 1
        self._done += run.seconds
        spent = time.monotonic() - self._began
        if self._number == 1:
            # Processes take seconds to start, which is no measure of the runs.
            self._before = max(0.0, spent - run.seconds)
        left = ""
        if self._number < self._total:
            trained = spent - self._before
            left = f", {human_seconds(trained * (self._expected - self._done) / self._done)} left"
        say(f"[{self._number}/{self._total}] {run.name}: {human_seconds(spent)} in all{left}")


def _run_in_processes(
    runs: Sequence[Job], jobs: int, command: str, failures: Failures, progress: bool
) -> None:
    ended = _Ended(runs)
    context = get_context("spawn")
    # Nothing is ever sent through the pipe: that it closes is the request to stop.
    hears, stop = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(jobs, context, _begin, (hears,))
    try:
        with _without_ctrl_c():  # a process starts on submit
            sent = [(run, *run.sent(command)) for run in runs]
            started = {pool.submit(_do, work, *arguments): run for run, work, arguments in sent}
            # The pool notices the death only of the processes that it had when it last received work.
            pool.submit(int)
        for future in as_completed(started):
            run = started[future]
            with failures.noted(run.name):
                future.result()
            if progress:
                ended.report(run)
    except BrokenProcessPool as error:
        raise GraphfedError(
            f"one of {jobs} processes ended before its run did, perhaps for lack of memory; finished runs "
            "are kept; repeat the command with fewer --jobs (a Python script must call this below "
            "if __name__ == '__main__')"
        ) from error
    except BaseException:
        stop.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        stop.close()
        hears.close()


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Start processes in this block that never get Ctrl-C; one that comes meanwhile is heard at its end."""
    # Started first: it would let SIGINT through again.
    resource_tracker.ensure_running()
    if not hasattr(signal, "pthread_sigmask"):  # on Windows, where Ctrl-C reaches the processes
        yield
        return
    # New processes inherit the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ---- in a process of its own -------------------------------------------------------------------------------

_cache = InputCache()


def _begin(hears: Connection) -> None:
    import torch

    # The processes share the cores; each run sets its own number of threads when it trains.
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_caller, args=(hears,), daemon=True).start()


def _end_with_caller(hears: Connection) -> None:
    hears.poll(None)  # nothing is ever sent: it returns when the other end closes
    os.kill(os.getpid(), signal.SIGTERM)


def _run(asked: JsonObject, folder: str, command: str) -> None:
    path = Path(folder)
    load_plugins(asked.get("plugins", ()))
    # After the plug-ins, because the method may come from one.
    config = config_from_json(asked, path)
    run_or_read(config, _cache.get(config), path, command, None)


def _do(work: Callable[..., None], *arguments: object) -> None:
    began = time.monotonic()
    try:
        with stopping():
            work(*arguments)
    finally:
        if heard_since(began):  # a process that returned would be given the next run
            os._exit(INTERRUPTED)
