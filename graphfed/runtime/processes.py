"""The processes runtime: one process for the server and one for every host of clients, on this machine,
talking over pipes.

It proves that a method's one program projects onto separate processes: each process runs the same program,
holds its own data and nothing else, and everything that crosses is bytes that `federation.wire` made and
checked. Deployment on real machines is the `nvflare` runtime; this one is for tests and for trying out.

`Workers` starts the processes once and runs many programs in them. A program is named by "module:function"
and
called as ``function(fed, arguments, tell)``: arguments are plain JSON values, `tell` sends a plain value to
the caller while it works, and the result is a payload (tensors and plain values). Nothing is pickled.

No process outlives its caller: a thread of every process watches the connection to the caller and ends the
process when it closes, however the caller ended. A process is in a session of its own, so that Ctrl-C reaches
the caller alone, which then stops them all.

What a process says of its own failure is in `runtime.failures`."""

import contextlib
import errno
import importlib
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, NoReturn

import torch

from graphfed.errors import InputError
from graphfed.federation import Federation, wire
from graphfed.federation.link import SERVER_INDEX
from graphfed.files import JsonObject
from graphfed.runtime.failures import MAX_TEXT, what_failed
from graphfed.runtime.interrupts import remember_stop_requests
from graphfed.runtime.mailbox import MAX_MESSAGE, PATIENCE, Mailbox, PeerLost, ProcessError, check_size

__all__ = ["PipeLink", "Workers"]

#: Bytes of the longest key of a message.
_MAX_KEY = 1 << 12
#: Seconds all processes together have to end by themselves.
_GRACE = 2.0
#: What the caller sends to the server's process in place of a job, to ask it to stop.
_STOP = b""


class PipeLink:
    """A `Link` over one connection per peer. Threads empty the connections into mailboxes, so that two
    processes that send to each other at once never wait for each other, and messages may arrive in any
    order.

    patience: seconds `recv` waits; max_message: bytes of the largest message, sent or received. ProcessError
    when a peer is gone, silent for too long, or a message is too large."""

    def __init__(
        self,
        connections: dict[int, Connection],
        *,
        patience: float = PATIENCE,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self._connections = connections
        self._max_message = max_message
        self._mailbox = Mailbox(patience)
        for peer, connection in connections.items():
            threading.Thread(target=self._read, args=(peer, connection), daemon=True).start()

    def begin(self, run: str) -> None:
        """Messages from here on are those of another run."""
        self._mailbox.begin(run)

    def _read(self, peer: int, connection: Connection) -> None:
        try:
            while True:
                key = connection.recv_bytes(_MAX_KEY).decode()
                message = connection.recv_bytes(self._max_message)
                self._mailbox.put(peer, key, message)
        except (EOFError, ConnectionError):
            reason = "closed its connection"
        except (OSError, ValueError, MemoryError) as error:
            reason = f"sent what cannot be read ({error}; at most {self._max_message} bytes a message)"
        self._mailbox.close(peer, reason)

    def send(self, to: int, key: str, message: bytes) -> None:
        check_size(message, key, self._max_message)
        connection = self._connections[to]
        try:
            connection.send_bytes(f"{self._mailbox.run}/{key}".encode())
            connection.send_bytes(message)
        except OSError as error:
            raise PeerLost(to, f"{_name(to)} closed its connection; sending {key}") from error

    def recv(self, sender: int, key: str) -> bytes:
        return self._mailbox.take(sender, key, _name(sender))


class Workers:
    """The processes of a federation: the server and one per host. Use as a context manager; leaving it stops
    them all.

    hosts: the client ids of every host, as in `Federation`; threads: of every process; patience: seconds
    without any sign of life (starting up included) after which the run is given up.

    InputError for a number that cannot be used and when the pipes need more open files than this process may
    have; ValueError for hosts that `Federation` refuses; ProcessError when a process cannot be started.
    Nothing stays behind then."""

    def __init__(
        self, workers: Sequence[Sequence[int]], *, threads: int = 1, patience: float = PATIENCE
    ) -> None:
        if threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}")
        if not 0 < patience <= 1e6:
            raise InputError(f"patience must be above 0 and at most 1000000 seconds, got {patience}")
        self.workers = [list(h) for h in workers]
        Federation(self.workers)  # refuses bad hosts before anything is started
        self._threads, self._patience = threads, patience
        self._runs = 0
        self._sending = self._stop_asked = False
        self._control: dict[int, Connection] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        ends = [SERVER_INDEX, *range(len(self.workers))]
        # The connections between the processes. Made when the first of two is started and closed here as soon
        # as the second has its own, so at most about a quarter of n^2 ends are open here at once.
        links: dict[int, dict[int, socket.socket]] = {end: {} for end in ends}
        try:
            for i, end in enumerate(ends):
                for later in ends[i + 1 :]:
                    links[end][later], links[later][end] = socket.socketpair()
                self._start(end, links.pop(end))
        except OSError as error:
            self.close()
            _refuse_start(error, len(ends))
        except BaseException:
            self.close()
            raise
        finally:
            for peers in links.values():
                _close_all(peers)

    def _start(self, end: int, peers: dict[int, socket.socket]) -> None:
        """Start one process and hand over its ends of the connections; they are closed here either way."""
        try:
            near, far = socket.socketpair()
            self._control[end] = Connection(near.detach())
            with far:
                told = {
                    "end": end,
                    "control": far.fileno(),
                    "peers": {str(peer): s.fileno() for peer, s in peers.items()},
                    "threads": self._threads,
                    "patience": self._patience,
                }
                self._processes[end] = subprocess.Popen(
                    [sys.executable, "-m", __name__, json.dumps(told)],
                    pass_fds=[far.fileno(), *(s.fileno() for s in peers.values())],
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": str(self._threads),
                        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                        # A process may end at any line: what it printed until then is not lost.
                        "PYTHONUNBUFFERED": "1",
                    },
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        finally:
            _close_all(peers)

    def run(
        self,
        program: str,
        arguments: Mapping[int, object],
        *,
        simulated: bool = False,
        on_event: Callable[[Any], None] | None = None,
    ) -> dict[int, Any]:
        """Run "module:function" in every process, each with its own plain `arguments` (keyed by host; the
        server is `SERVER_INDEX`). Returns every process's result; `on_event` gets what they tell while
        working.
        simulated: whether their federation simulates secure protocols.

        InputError as it happened in a process; ProcessError when a process failed, died (it names the host
        and the exit status) or stayed silent. After any error the processes are stopped, and running again is
        a ProcessError."""
        if not self._processes:
            raise ProcessError(
                "the processes were stopped, by close() or an earlier error; start new ones with Workers(...)"
            )
        self._runs += 1
        common = {"run": self._runs, "workers": self.workers, "simulated": simulated, "program": program}
        jobs = {end: json.dumps({**common, "arguments": arguments[end]}).encode() for end in self._control}
        results: dict[int, Any] = {}
        try:
            self._sending = True
            for end, control in self._control.items():
                try:
                    control.send_bytes(jobs[end])
                except OSError:
                    raise self._lost(end) from None
            self._sending = False
            if self._stop_asked:
                self._send_stop()
            while len(results) < len(self._control):
                pending = {c: end for end, c in self._control.items() if end not in results}
                ready = wait(list(pending), self._patience)
                if not ready:
                    raise ProcessError(f"no process answered for {self._patience:g} s")
                for connection in ready:
                    end = pending[connection]  # type: ignore[index]
                    self._take(end, connection, results, on_event)  # type: ignore[arg-type]
        except BaseException:
            self.close()
            raise
        return results

    def interrupt(self) -> None:
        """Ask the server's process to stop. Its program hears it as a stop request (`interrupts.listening`),
        also where it has not begun to listen yet. A handler of signals may call this."""
        self._stop_asked = True
        if not self._sending:  # a signal may come in the middle of a message
            self._send_stop()

    def _send_stop(self) -> None:
        self._stop_asked = False
        if SERVER_INDEX in self._control:
            with contextlib.suppress(OSError):  # the process is gone, which `run` says
                self._control[SERVER_INDEX].send_bytes(_STOP)

    def _take(
        self,
        end: int,
        connection: Connection,
        results: dict[int, Any],
        on_event: Callable[[Any], None] | None,
    ) -> None:
        """One message from a process."""
        try:
            message = connection.recv_bytes(MAX_MESSAGE)
        except (EOFError, OSError):
            raise self._lost(end) from None
        payload, header = wire.decode(message)
        match header["kind"]:
            case "event":
                if on_event is not None:
                    on_event(payload)
            case "result":
                results[end] = payload
            case "input":
                raise InputError(payload)
            # A process that lost another one may say so before the dead one's own end is seen here.
            case "lost" if self._status(header["peer"]) is not None:
                raise self._lost(header["peer"])
            case _:
                raise ProcessError(f"{_name(end)}: {payload}")

    def _status(self, end: int) -> int | None:
        """The exit status of a process; None when it goes on running."""
        try:
            return self._processes[end].wait(_GRACE)
        except subprocess.TimeoutExpired:
            return None

    def _lost(self, end: int) -> ProcessError:
        """What to say when the connection to a process is gone."""
        status = self._status(end)
        if status is None:
            return ProcessError(f"the process of {_name(end)} closed its connection to the caller")
        by = f", {signal.strsignal(-status)}" if status < 0 else ""
        return ProcessError(f"the process of {_name(end)} died (exit status {status}{by})")

    def close(self) -> None:
        """Stop every process and wait for it: all are told at once, those that still run after 2 s are killed
        (each by its own pid)."""
        for control in self._control.values():
            control.close()
        deadline = time.monotonic() + _GRACE
        try:
            for process in self._processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # also when Ctrl-C ends the wait
            for process in self._processes.values():
                process.kill()  # nothing, where it has ended
            for process in self._processes.values():
                process.wait()
            self._control, self._processes = {}, {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _name(end: int) -> str:
    return "the server" if end == SERVER_INDEX else f"worker {end}"


def _close_all(peers: dict[int, socket.socket]) -> None:
    for s in peers.values():
        s.close()


def _refuse_start(error: OSError, count: int) -> NoReturn:
    """Why `count` processes cannot be started."""
    if error.errno != errno.EMFILE:
        raise ProcessError(f"the {count} processes cannot be started: {error}") from error
    import resource  # not on every system; neither are the pipes

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = count * count // 4 + 3 * count
    raise InputError(
        f"{count} processes, each connected to every other, need about {need} open files while they start, "
        f"and this process may have {limit} in all; use fewer clients, or raise the limit "
        f"(ulimit -n {limit + need})"
    ) from error


# ---- in the processes --------------------------------------------------------------------------------------


def _watch(control: Connection, jobs: "queue.SimpleQueue[bytes]") -> None:
    """Pass the caller's jobs on, and a stop request as SIGTERM; when the caller is gone, end this process at
    once, whatever it is doing."""
    try:
        while True:
            message = control.recv_bytes(MAX_MESSAGE)
            if message == _STOP:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                jobs.put(message)
    finally:
        os._exit(1)


def _serve(told: JsonObject) -> None:
    """The life of one process: run programs until the caller closes the control connection."""
    end = told["end"]
    control = Connection(told["control"])
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # A stop request that comes when no program listens must not kill; the next one to listen hears it.
    remember_stop_requests()
    threading.Thread(target=_watch, args=(control, jobs), daemon=True).start()
    torch.set_num_threads(told["threads"])
    link = PipeLink(
        {int(peer): Connection(handle) for peer, handle in told["peers"].items()}, patience=told["patience"]
    )

    def report(value: object, **header: Any) -> None:
        message = wire.encode(value, **header)
        check_size(message, f"the {header['kind']} of {_name(end)}", MAX_MESSAGE)
        with contextlib.suppress(OSError):  # the caller is gone: the watching thread ends this process
            control.send_bytes(message)

    def log(value: object) -> None:
        report(value, kind="event")

    while True:
        job = json.loads(jobs.get())
        link.begin(str(job["run"]))
        fed = Federation(
            job["workers"],
            here=[] if end == SERVER_INDEX else [end],
            server_here=end == SERVER_INDEX,
            link=link,
            simulated=job["simulated"],
        )
        try:
            module, _, name = job["program"].partition(":")
            report(getattr(importlib.import_module(module), name)(fed, job["arguments"], log), kind="result")
        except InputError as error:
            report(str(error)[:MAX_TEXT], kind="input")
        except PeerLost as error:
            report(str(error)[:MAX_TEXT], kind="lost", peer=error.peer)
        except Exception as error:
            report(what_failed(error, fed.ledger.round), kind="failed")


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
