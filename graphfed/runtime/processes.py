"""The processes runtime: one process for the server and one for every host of clients, on this machine,
talking over pipes.

It proves that a method's one program projects onto separate processes: each process runs the same program,
holds its own data and nothing else, and everything that crosses is bytes that `federation.wire` made and
checked. Deployment on real machines is the `nvflare` runtime; this one is for tests and for trying out.

`Sites` starts the processes once and runs many programs in them. A program is named by "module:function" and
called as ``function(fed, arguments, tell)``: arguments are plain JSON values, `tell` sends a plain value to
the caller while it works, and the result is a payload (tensors and plain values). Nothing is pickled."""

import importlib
import json
import os
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

import torch

from graphfed.errors import GraphfedError, InputError
from graphfed.federation import Federation, wire
from graphfed.federation.tape import SERVER_END

__all__ = ["PipeLink", "ProcessError", "Sites"]

#: Seconds without any sign of life after which a waiting process gives up.
PATIENCE = 600.0


class ProcessError(GraphfedError):
    """A process of the run failed, died or stayed silent."""


class PipeLink:
    """A `Link` over one connection per peer. Threads empty the connections into mailboxes, so that two
    processes that send to each other at once never wait for each other, and messages may arrive in any
    order."""

    def __init__(self, connections: dict[int, Connection]) -> None:
        self.run = ""
        self._connections = connections
        self._mail: dict[tuple[int, str], bytes] = {}
        self._closed: set[int] = set()
        self._arrived = threading.Condition()
        for peer, connection in connections.items():
            threading.Thread(target=self._read, args=(peer, connection), daemon=True).start()

    def _read(self, peer: int, connection: Connection) -> None:
        try:
            while True:
                key = connection.recv_bytes().decode()
                message = connection.recv_bytes()
                with self._arrived:
                    self._mail[peer, key] = message
                    self._arrived.notify_all()
        except (EOFError, OSError):
            with self._arrived:
                self._closed.add(peer)
                self._arrived.notify_all()

    def send(self, to: int, key: str, message: bytes) -> None:
        connection = self._connections[to]
        connection.send_bytes(f"{self.run}/{key}".encode())
        connection.send_bytes(message)

    def recv(self, sender: int, key: str) -> bytes:
        box = (sender, f"{self.run}/{key}")
        with self._arrived:
            there = self._arrived.wait_for(lambda: box in self._mail or sender in self._closed, PATIENCE)
            if box in self._mail:
                return self._mail.pop(box)
        reason = "closed its connection" if there else f"sent nothing for {PATIENCE:.0f} s"
        raise ProcessError(f"{_name(sender)} {reason}; waiting for {key}")


class Sites:
    """The processes of a federation: the server and one per host. Use as a context manager; leaving it stops
    them all.

    hosts: the client ids of every host, as in `Federation`."""

    def __init__(self, hosts: Sequence[Sequence[int]], *, threads: int = 1) -> None:
        self.hosts = [list(h) for h in hosts]
        ends = [SERVER_END, *range(len(self.hosts))]
        ours: dict[int, dict[int, socket.socket]] = {end: {} for end in ends}
        for i, a in enumerate(ends):
            for b in ends[i + 1 :]:
                ours[a][b], ours[b][a] = socket.socketpair()
        self._runs = 0
        self._control: dict[int, Connection] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for end in ends:
                near, far = socket.socketpair()
                peers = {str(peer): s.fileno() for peer, s in ours[end].items()}
                told = {
                    "end": end,
                    "hosts": self.hosts,
                    "control": far.fileno(),
                    "peers": peers,
                    "threads": threads,
                }
                environment = {
                    **os.environ,
                    "OMP_NUM_THREADS": str(threads),
                    "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                }
                self._processes[end] = subprocess.Popen(
                    [sys.executable, "-m", __name__, json.dumps(told)],
                    pass_fds=[far.fileno(), *peers.values()],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                )
                far.close()
                self._control[end] = Connection(near.detach())
        except BaseException:
            self.close()
            raise
        finally:
            for links in ours.values():
                for s in links.values():
                    s.close()

    def run(
        self, program: str, arguments: dict[int, Any], *, on_event: Callable[[Any], None] | None = None
    ) -> dict[int, Any]:
        """Run "module:function" in every process, each with its own plain `arguments` (keyed by host; the
        server is `SERVER_END`). Returns every process's result; `on_event` gets what they tell while working.

        InputError and ProcessError as they happened in a process; after an error the processes are
        stopped."""
        self._runs += 1
        for end, control in self._control.items():
            control.send_bytes(
                json.dumps({"run": self._runs, "program": program, "arguments": arguments[end]}).encode()
            )
        results: dict[int, Any] = {}
        try:
            while len(results) < len(self._control):
                pending = {c: end for end, c in self._control.items() if end not in results}
                ready = wait(list(pending), PATIENCE)
                if not ready:
                    raise ProcessError(f"no process answered for {PATIENCE:.0f} s")
                for connection in ready:
                    end = pending[connection]  # type: ignore[index]
                    self._take(end, connection, results, on_event)  # type: ignore[arg-type]
        except BaseException:
            self.close()
            raise
        return results

    def _take(
        self,
        end: int,
        connection: Connection,
        results: dict[int, Any],
        on_event: Callable[[Any], None] | None,
    ) -> None:
        try:
            payload, header = wire.decode(connection.recv_bytes())
        except EOFError:
            code = self._processes[end].wait()
            raise ProcessError(f"the process of {_name(end)} died (exit status {code})") from None
        if header["kind"] == "event":
            if on_event is not None:
                on_event(payload)
        elif header["kind"] == "result":
            results[end] = payload
        else:
            kind = InputError if header["kind"] == "input" else ProcessError
            raise kind(payload if kind is InputError else f"{_name(end)}: {payload}")

    def close(self) -> None:
        """Stop every process (each by its own pid) and wait for it."""
        for control in self._control.values():
            control.close()
        for process in self._processes.values():
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._control, self._processes = {}, {}

    def __enter__(self) -> "Sites":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _name(end: int) -> str:
    return "the server" if end == SERVER_END else f"host {end}"


def _serve(told: dict[str, Any]) -> None:
    """The life of one process: run programs until the caller closes the control connection."""
    torch.set_num_threads(told["threads"])
    end = told["end"]
    control = Connection(told["control"])
    link = PipeLink({int(peer): Connection(handle) for peer, handle in told["peers"].items()})
    while True:
        try:
            job = json.loads(control.recv_bytes())
        except EOFError:
            # Reader threads are daemons: leaving here ends them with the process.
            return
        link.run = str(job["run"])
        fed = Federation(
            told["hosts"],
            here=[] if end == SERVER_END else [end],
            server_here=end == SERVER_END,
            link=link,
        )

        def tell(value: Any) -> None:
            control.send_bytes(wire.encode(value, kind="event"))

        try:
            module, _, name = job["program"].partition(":")
            result = getattr(importlib.import_module(module), name)(fed, job["arguments"], tell)
            control.send_bytes(wire.encode(result, kind="result"))
        except InputError as error:
            control.send_bytes(wire.encode(str(error), kind="input"))
        except Exception:
            control.send_bytes(wire.encode(traceback.format_exc(), kind="failed"))


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
