"""Processes end with their caller, say who died, and keep their data to themselves when they fail."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import runtime_programs
from runtime_programs import SECRET

from graphfed.errors import GraphfedError, InputError
from graphfed.federation import CLIENTS, Federation, wire
from graphfed.federation.link import SERVER_INDEX
from graphfed.runtime import failures, processes
from graphfed.runtime.mailbox import ProcessError
from graphfed.runtime.processes import PipeLink, Workers

pytestmark = pytest.mark.slow

#: Seconds after which a test gives up on a process that should have ended.
LIMIT = 30


def run(sites: Workers, name: str, **arguments: Any) -> dict[int, Any]:
    """Run a program with arguments for single workers only: worker0="..." """
    content = {end: arguments.get(f"worker{end}") for end in [SERVER_INDEX, *range(len(sites.workers))]}
    return sites.run(f"runtime_programs:{name}", content)


def all_ended(started: list[subprocess.Popen[bytes]]) -> bool:
    return all(process.returncode is not None for process in started)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that a test starts; whatever it leaves is killed by its own pid."""
    every: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            every.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    yield every
    for process in every:
        process.kill()
        process.wait()


# ---- the caller ends ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda s: s.name)
def test_processes_end_in_the_middle_of_a_program_when_their_caller_does(how: signal.Signals) -> None:
    """However the caller ends, nothing goes on training; Ctrl-C (sent to the whole group, as a terminal does)
    prints no traceback of a process."""
    caller = subprocess.Popen(
        [sys.executable, runtime_programs.__file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    working: list[int] = []
    try:
        assert caller.stdout is not None
        working = [int(pid) for pid in caller.stdout.readline().split()]
        assert len(working) == 2
        os.killpg(caller.pid, how) if how is signal.SIGINT else caller.send_signal(how)
        # The processes hold the caller's stdout: its end is the end of the last of them.
        out, err = caller.communicate(timeout=LIMIT)
        working = []
    finally:
        for pid in [caller.pid, *working]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        caller.wait()
    assert "Traceback" not in err
    assert out == ("interrupted\n" if how is signal.SIGINT else "")


@pytest.mark.parametrize("when", ["before its program", "at once"])
def test_a_stop_request_is_heard_by_a_program_that_listens_later(when: str) -> None:
    """It comes while the server's process still starts; it neither kills the process nor gets lost."""
    with Workers([(0,)]) as sites:
        if when == "at once":
            sites.interrupt()
        else:
            run(sites, "threads")
            sites.interrupt()
        assert run(sites, "listens")[SERVER_INDEX] == {"asked": True}


# ---- a process ends, fails or stays silent -----------------------------------------------------------------


def test_a_process_that_dies_at_work_is_named_with_its_exit_status(
    started: list[subprocess.Popen[bytes]],
) -> None:
    """Even when the server, which waits for it, reports first; and the processes run nothing after it."""
    with Workers([(0,)], threads=2) as sites:
        # They run with the threads asked for, each in a session of its own.
        answers = run(sites, "threads")
        assert [a["threads"] for a in answers.values()] == [2, 2]
        assert {a["session"] for a in answers.values()} == {a["pid"] for a in answers.values()}
        with pytest.raises(ProcessError, match=r"process of worker 0 died \(exit status -9, Killed\)"):
            run(sites, "exchange", worker0="die")
        assert all_ended(started)
        with pytest.raises(ProcessError, match=r"were stopped by close\(\)"):
            run(sites, "threads")


def test_a_process_that_died_before_a_program_is_named_and_a_stuck_one_is_killed(
    started: list[subprocess.Popen[bytes]],
) -> None:
    with Workers([(0,)]) as sites:
        run(sites, "threads")
        started[0].send_signal(signal.SIGSTOP)  # the server: it cannot end by itself any more
        started[1].send_signal(signal.SIGKILL)
        started[1].wait(LIMIT)
        with pytest.raises(ProcessError, match=r"process of worker 0 died \(exit status -9"):
            run(sites, "threads")
    assert [process.returncode for process in started] == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.parametrize("wrong", [{"threads": 0}, {"patience": 0}, {"patience": float("inf")}])
def test_settings_that_cannot_be_used_are_refused_before_anything_starts(
    wrong: dict[str, Any], started: list[subprocess.Popen[bytes]]
) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} must be .* got"):
        Workers([(0,)], **wrong)
    assert started == []


# ---- the caller's side alone: connections to processes that are only pretended -------------------------


class Pretended:
    """A process that is dead already, or (stubborn) ends by nothing but a kill; waiting moves `clock`."""

    def __init__(self, log: list[str], clock: SimpleNamespace, *, stubborn: bool = False) -> None:
        self.log, self.clock, self.running = log, clock, stubborn

    def wait(self, timeout: float | None = None) -> int:
        self.log.append("wait")
        if self.running:
            assert timeout is not None, "waits for ever"
            self.clock.now += timeout
            raise subprocess.TimeoutExpired("pretended", timeout)
        return -9

    def kill(self) -> None:
        self.log.append("kill")
        self.running = False


@dataclass
class PretendedSites:
    """`Workers` of a server and one worker; far: the processes' ends; log: what was done to the processes."""

    sites: Workers
    far: dict[int, Connection]
    log: list[str]
    clock: SimpleNamespace


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendedSites]:
    clock, log = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Pretended(log, clock))
    sites = Workers([(0,)], patience=0.01)
    far = {}
    for end in [SERVER_INDEX, 0]:
        sites._control[end].close()
        ours, other = socket.socketpair()
        sites._control[end], far[end] = Connection(ours.detach()), Connection(other.detach())
    yield PretendedSites(sites, far, log, clock)
    sites.close()
    for end in far.values():
        end.close()


def test_the_process_that_died_is_named_when_another_one_reports_it_first(pretended: PretendedSites) -> None:
    """The server saw worker 0 go; the caller has not yet."""
    pretended.far[SERVER_INDEX].send_bytes(wire.encode("worker 0 closed its connection", kind="lost", peer=0))
    with pytest.raises(ProcessError, match=r"process of worker 0 died \(exit status -9"):
        run(pretended.sites, "threads")


def test_a_connection_that_is_reset_is_a_process_that_died(
    pretended: PretendedSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that dies before it has read its job resets the connection, where others end it."""

    def wait(connections: list[Connection], timeout: float) -> list[Connection]:
        pretended.far[0].close()
        return [pretended.sites._control[0]]

    monkeypatch.setattr(processes, "wait", wait)
    with pytest.raises(ProcessError, match=r"process of worker 0 died \(exit status -9"):
        run(pretended.sites, "threads")


def test_silence_beyond_the_patience_is_an_error_that_stops_the_processes(
    pretended: PretendedSites, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    def wait(connections: list[Connection], timeout: float) -> list[Connection]:
        waited.append(timeout)
        return []

    monkeypatch.setattr(processes, "wait", wait)
    with pytest.raises(ProcessError, match=r"no process answered for 0\.01 s"):
        run(pretended.sites, "threads")
    assert waited == [0.01]
    assert pretended.log == ["wait", "wait", "kill", "kill", "wait", "wait"]


def test_all_processes_are_asked_to_end_before_any_is_waited_for_and_share_one_deadline(
    pretended: PretendedSites,
) -> None:
    """Processes that end by nothing but a kill get 2 s together; then each is killed and waited for."""
    controls = list(pretended.sites._control.values())
    log, content = pretended.log, []

    class Stubborn(Pretended):
        def wait(self, timeout: float | None = None) -> int:
            content.append([control.closed for control in controls])
            return super().wait(timeout)

    for end in pretended.far:
        pretended.sites._processes[end] = Stubborn(log, pretended.clock, stubborn=True)  # type: ignore[assignment]
    pretended.sites.close()
    assert content[0] == [True, True]
    assert pretended.clock.now == 2.0
    assert log == ["wait", "wait", "kill", "kill", "wait", "wait"]


# ---- descriptors -------------------------------------------------------------------------------------------


def open_files() -> list[int]:
    return sorted(int(name) for name in os.listdir("/dev/fd") if Path("/dev/fd", name).exists())


def test_51_places_start_within_the_usual_limit_of_1024_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every process gets one connection to each other and to nobody else."""
    before, peak, pairs = open_files(), 0, []

    def start(command: list[str], *, pass_fds: list[int], **options: Any) -> Pretended:
        nonlocal peak
        peak = max(peak, len(open_files()))
        content = json.loads(command[-1])
        assert len(set(pass_fds)) == 51
        assert content["patience"] == 7.0
        pairs.extend((content["index"], int(other)) for other in content["peers"])
        return Pretended([], SimpleNamespace(now=0.0))

    monkeypatch.setattr(subprocess, "Popen", start)
    with Workers([(k,) for k in range(50)], patience=7.0):
        assert len(open_files()) - len(before) == 51  # one connection to every process is all that stays
    assert sorted(pairs) == [(a, b) for a in range(-1, 50) for b in range(-1, 50) if a != b]
    assert peak - len(before) < 900
    assert open_files() == before


def test_too_few_open_files_are_one_clear_input_error_that_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is reached when two of the processes run already."""
    log: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: Pretended(log, SimpleNamespace(now=0.0)))
    before = open_files()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # 40 more files: the first two of the processes need 37, the third 46.
    limit = [number for number in range(soft) if number not in before][40]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with pytest.raises(InputError, match=rf"13 processes.*may open {limit}; use fewer clients, or"):
            Workers([(k,) for k in range(12)])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert log == ["wait", "wait", "kill", "kill", "wait", "wait"]
    assert open_files() == before


# ---- what leaves a process that fails ----------------------------------------------------------------------


def test_a_failing_stage_sends_where_it_failed_but_not_what_the_exception_says(
    started: list[subprocess.Popen[bytes]],
) -> None:
    """An exception's message may hold data, and so may the inputs."""
    with Workers([(0,)]) as sites, pytest.raises(ProcessError) as caught:
        run(sites, "fails")
    where = r"worker 0: client 0 failed in 'quotes_its_data' \(phase train, round 7\): KeyError at .*{}:\d+$"
    assert caught.match(where.format(r"runtime_programs\.py"))
    assert "Alice" not in str(caught.value)
    assert all_ended(started)


def test_outside_a_stage_the_message_goes_along_only_where_graphfed_wrote_it() -> None:
    fed = Federation([(0,)])
    with pytest.raises(ValueError, match="Alice") as foreign:
        runtime_programs.fails_outside_a_stage(fed)
    content = failures.what_failed(foreign.value, fed.ledger.round)
    assert content.startswith("failed in round 3, outside a stage: ValueError at ")
    assert "runtime_programs.py:" in content
    assert SECRET not in content
    with pytest.raises(GraphfedError) as ours:
        runtime_programs.refuses(fed)
    assert "GraphfedError: layer 2 needs 4 heads" in failures.what_failed(ours.value, 0)


def test_the_local_runtime_shows_everything() -> None:
    fed = Federation([(0,)])
    with pytest.raises(GraphfedError, match=f"KeyError: '{SECRET}'; inputs: .*{SECRET}"):
        fed.clients.run(runtime_programs.quotes_its_data, fed.locate(CLIENTS, "v", [None]), SECRET)


# ---- the link ----------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[Connection, Connection]]:
    """Two ends of one connection.

    A link's thread may be about to read from an end: it ends before that end is closed under it."""
    before = set(threading.enumerate())
    a, b = (Connection(s.detach()) for s in socket.socketpair())
    yield a, b
    for end in (a, b):
        if not end.closed:
            with socket.socket(fileno=os.dup(end.fileno())) as same, contextlib.suppress(OSError):
                same.shutdown(socket.SHUT_RDWR)
    for thread in set(threading.enumerate()) - before:
        thread.join(LIMIT)
        assert not thread.is_alive()
    a.close()
    b.close()


def test_a_message_over_the_limit_is_refused_where_it_is_sent(pair: tuple[Connection, Connection]) -> None:
    """With its name, its size and the limit; one byte less is sent."""
    ours, second = (PipeLink({0: end}, max_message=10, patience=LIMIT) for end in pair)
    with pytest.raises(ProcessError, match="model/-1>0 is a message of 11 bytes, more than the limit of 10"):
        ours.send(0, "model/-1>0", b"x" * 11)
    ours.send(0, "model/-1>0", b"x" * 10)
    assert second.recv(0, "model/-1>0") == b"x" * 10


def test_a_length_over_the_limit_is_refused_on_arrival(pair: tuple[Connection, Connection]) -> None:
    """Before anything of it is read: what a sender claims costs no memory."""
    link = PipeLink({0: pair[0]}, max_message=10, patience=LIMIT)
    pair[1].send_bytes(b"/key")
    os.write(pair[1].fileno(), (11).to_bytes(4, "big"))
    with pytest.raises(
        ProcessError, match=r"worker 0 sent a message that cannot be read .*at most 10 bytes are read"
    ):
        link.recv(0, "key")


def test_a_participant_that_is_gone_is_an_error_for_who_waits_and_for_who_sends(
    pair: tuple[Connection, Connection],
) -> None:
    link = PipeLink({SERVER_INDEX: pair[0]}, patience=LIMIT)
    pair[1].close()
    with pytest.raises(
        ProcessError, match="the server closed its connection; this process was waiting for key"
    ):
        link.recv(SERVER_INDEX, "key")
    with pytest.raises(ProcessError, match="the server closed its connection; this process was sending key"):
        link.send(SERVER_INDEX, "key", b"x")
