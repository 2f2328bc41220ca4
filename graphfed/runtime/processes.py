"""The processes runtime: one process for the server and one for every worker, on this machine, over pipes.

It shows that the one program of a method also runs in separate processes: each process runs the same program
with only its own data, and every message is encoded and checked by `federation.wire`. The runtime is meant
for tests and experiments; the runtime `nvflare` runs on several machines.

`Workers` starts the processes once and runs many programs in them. A program is named by "module:function"
and called as ``function(fed, arguments, log)``. The arguments are plain JSON values, `log` sends a plain
value to the caller during the program, and the result is a payload of tensors and plain values. Nothing is
pickled.

No process outlives its caller: a thread of every process watches the connection to the caller, and ends the
process when it closes, for whatever reason the caller ended. Every process has a session of its own, so that
Ctrl-C reaches only the caller, which then stops all processes.

`runtime.failures` decides what a process reports about its failure.
"""

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
from typing import Any, NoReturn

import torch

from graphfed.errors import InputError
from graphfed.federation import Federation, wire
from graphfed.federation.link import SERVER_INDEX
from graphfed.files import JsonObject
from graphfed.runtime.failures import MAX_TEXT, what_failed
from graphfed.runtime.interrupts import remember_stop_requests
from graphfed.runtime.mailbox import MAX_MESSAGE, PATIENCE, Mailbox, PeerLost, ProcessError, check_size

#: The most bytes of the key of a message.
_MAX_KEY = 1 << 12
#: Seconds in which all processes must have ended by themselves.
_GRACE = 2.0
#: The message that asks the server's process to stop; any other message is a job.
_STOP = b""


class PipeLink:
    """A `Link` with one connection per peer.

    Threads read the connections into a mailbox, so that two processes that send to each other at the same
    time never block each other, and messages may arrive in any order. Methods raise ProcessError if a peer is
    gone or sends nothing for `patience` seconds, or if a message has more than `max_message` bytes.
    """

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
        """Begin another run, to which all later messages belong."""
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
            reason = (
                f"sent a message that cannot be read ({error}; at most {self._max_message} bytes are read)"
            )
        self._mailbox.close(peer, reason)

    def send(self, to: int, key: str, message: bytes) -> None:
        """Send a message; PeerLost if the receiver has closed its connection."""
        check_size(message, key, self._max_message)
        connection = self._connections[to]
        try:
            connection.send_bytes(f"{self._mailbox.run}/{key}".encode())
            connection.send_bytes(message)
        except OSError as error:
            raise PeerLost(
                to, f"{_name(to)} closed its connection; this process was sending {key}"
            ) from error

    def recv(self, sender: int, key: str) -> bytes:
        return self._mailbox.take(sender, key, _name(sender))


class Workers:
    """The processes of a federation: one for the server and one per worker.

    Use it as a context manager; leaving it stops all processes. No process is left after an error. `workers`
    are the ids of the clients of every worker, `threads` the number of threads of every process, and
    `patience` the seconds without any message (the start included) after which a run is given up.

    Raises:
        InputError: A number cannot be used, or the pipes need more open files than this process may have.
        ProcessError: A process cannot be started.
    """

    def __init__(
        self, workers: Sequence[Sequence[int]], *, threads: int = 1, patience: float = PATIENCE
    ) -> None:
        if threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}")
        if not 0 < patience <= 1e6:
            raise InputError(f"patience must be above 0 and at most 1000000 seconds, got {patience}")
        self.workers = [list(clients) for clients in workers]
        Federation(self.workers)  # refuses wrong workers before any process starts
        self._threads, self._patience = threads, patience
        self._runs = 0
        self._sending = self._stop_asked = False
        self._control: dict[int, Connection] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        indices = [SERVER_INDEX, *range(len(self.workers))]
        # A connection between two processes is made when the first one starts, and closed here when the
        # second one has started. So at most about n^2 / 4 sockets are open in this process at the same time.
        links: dict[int, dict[int, socket.socket]] = {index: {} for index in indices}
        try:
            for i, index in enumerate(indices):
                for later in indices[i + 1 :]:
                    links[index][later], links[later][index] = socket.socketpair()
                self._start(index, links.pop(index))
        except OSError as error:
            self.close()
            _refuse_start(error, len(indices))
        except BaseException:
            self.close()
            raise
        finally:
            for peers in links.values():
                _close_all(peers)

    def _start(self, index: int, peers: dict[int, socket.socket]) -> None:
        """Start one process and pass it its sockets, which are closed in this process in any case."""
        try:
            local, remote = socket.socketpair()
            self._control[index] = Connection(local.detach())
            with remote:
                description = {
                    "index": index,
                    "control": remote.fileno(),
                    "peers": {str(peer): s.fileno() for peer, s in peers.items()},
                    "threads": self._threads,
                    "patience": self._patience,
                }
                self._processes[index] = subprocess.Popen(
                    [sys.executable, "-m", __name__, json.dumps(description)],
                    pass_fds=[remote.fileno(), *(s.fileno() for s in peers.values())],
                    env={
                        **os.environ,
                        "OMP_NUM_THREADS": str(self._threads),
                        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                        # A process may end at any time; what it has printed must not be lost in a buffer.
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
        """Run a program, "module:function", in every process, with plain values as its `arguments`, by index.

        `on_event` is called with every value that a process logs. With `simulated` the federation simulates
        secure protocols. After any error all processes are stopped, and a further call raises ProcessError.

        Raises:
            InputError: A process raised it.
            ProcessError: A process failed, died (with its exit status) or sent nothing for too long.
        """
        if not self._processes:
            raise ProcessError(
                "the processes were stopped by close() or an earlier error; start new ones with Workers(...)"
            )
        self._runs += 1
        common = {"run": self._runs, "workers": self.workers, "simulated": simulated, "program": program}
        jobs = {
            index: json.dumps({**common, "arguments": arguments[index]}).encode() for index in self._control
        }
        results: dict[int, Any] = {}
        try:
            self._sending = True
            for index, control in self._control.items():
                try:
                    control.send_bytes(jobs[index])
                except OSError:
                    raise self._lost(index) from None
            self._sending = False
            # A signal came while jobs were sent, in the middle of which no stop could be sent.
            if self._stop_asked:
                self._send_stop()
            while len(results) < len(self._control):
                pending = {c: index for index, c in self._control.items() if index not in results}
                ready = wait(list(pending), self._patience)
                if not ready:
                    raise ProcessError(f"no process answered for {self._patience:g} s")
                for connection in ready:
                    index = pending[connection]  # type: ignore[index]
                    self._take(index, connection, results, on_event)  # type: ignore[arg-type]
        except BaseException:
            self.close()
            raise
        return results

    def interrupt(self) -> None:
        """Ask the server's process to stop.

        Its program gets a stop request (`interrupts.listening`), even if it begins to listen only later. A
        signal handler may call this.
        """
        self._stop_asked = True
        if not self._sending:  # a signal may come in the middle of a message
            self._send_stop()

    def _send_stop(self) -> None:
        self._stop_asked = False
        if SERVER_INDEX in self._control:
            with contextlib.suppress(OSError):  # the process is gone; `run` reports it
                self._control[SERVER_INDEX].send_bytes(_STOP)

    def _take(
        self,
        index: int,
        connection: Connection,
        results: dict[int, Any],
        on_event: Callable[[Any], None] | None,
    ) -> None:
        try:
            message = connection.recv_bytes(MAX_MESSAGE)
        except (EOFError, OSError):
            raise self._lost(index) from None
        payload, header = wire.decode(message)
        match header["kind"]:
            case "event":
                if on_event is not None:
                    on_event(payload)
            case "result":
                results[index] = payload
            case "input":
                raise InputError(payload)
            # A process may report the loss of another one before this process has noticed it.
            case "lost" if self._status(header["peer"]) is not None:
                raise self._lost(header["peer"])
            case _:
                raise ProcessError(f"{_name(index)}: {payload}")

    def _status(self, index: int) -> int | None:
        """Return the exit status of a process; None if it is still running."""
        try:
            return self._processes[index].wait(_GRACE)
        except subprocess.TimeoutExpired:
            return None

    def _lost(self, index: int) -> ProcessError:
        status = self._status(index)
        if status is None:
            return ProcessError(f"the process of {_name(index)} closed its connection to the caller")
        by = f", {signal.strsignal(-status)}" if status < 0 else ""
        return ProcessError(f"the process of {_name(index)} died (exit status {status}{by})")

    def close(self) -> None:
        """Stop all processes and wait for them.

        All are asked at once; those that still run after 2 s are killed, each by its own pid.
        """
        for control in self._control.values():
            control.close()
        deadline = time.monotonic() + _GRACE
        try:
            for process in self._processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))
        finally:  # even if Ctrl-C ends the wait
            for process in self._processes.values():
                process.kill()  # does nothing if it has ended
            for process in self._processes.values():
                process.wait()
            self._control, self._processes = {}, {}

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _name(index: int) -> str:
    return "the server" if index == SERVER_INDEX else f"worker {index}"


def _close_all(peers: dict[int, socket.socket]) -> None:
    for s in peers.values():
        s.close()


def _refuse_start(error: OSError, count: int) -> NoReturn:
    if error.errno != errno.EMFILE:
        raise ProcessError(f"the {count} processes cannot be started: {error}") from error
    import resource  # it is missing on systems that do not have these pipes either

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    need = count * count // 4 + 3 * count
    raise InputError(
        f"{count} processes, each connected to every other one, need about {need} open files while they "
        f"start, and this process may open {limit}; use fewer clients, or raise the limit "
        f"(ulimit -n {limit + need})"
    ) from error


# ---- in the processes --------------------------------------------------------------------------------------


def _watch(control: Connection, jobs: "queue.SimpleQueue[bytes]") -> None:
    """Pass on the caller's jobs, and stop requests as SIGTERM; end this process when the caller is gone."""
    try:
        while True:
            message = control.recv_bytes(MAX_MESSAGE)
            if message == _STOP:
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                jobs.put(message)
    finally:
        os._exit(1)


def _serve(description: JsonObject) -> None:
    """Run programs until the caller closes the control connection."""
    index = description["index"]
    control = Connection(description["control"])
    jobs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    # A stop request must not kill a process whose program does not listen yet.
    remember_stop_requests()
    threading.Thread(target=_watch, args=(control, jobs), daemon=True).start()
    torch.set_num_threads(description["threads"])
    link = PipeLink(
        {int(peer): Connection(handle) for peer, handle in description["peers"].items()},
        patience=description["patience"],
    )

    def report(value: object, **header: Any) -> None:
        message = wire.encode(value, **header)
        check_size(message, f"the {header['kind']} of {_name(index)}", MAX_MESSAGE)
        with contextlib.suppress(OSError):  # the caller is gone; the watching thread ends this process
            control.send_bytes(message)

    def log(value: object) -> None:
        report(value, kind="event")

    while True:
        job = json.loads(jobs.get())
        link.begin(str(job["run"]))
        fed = Federation(
            job["workers"],
            here=[] if index == SERVER_INDEX else [index],
            server_here=index == SERVER_INDEX,
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
