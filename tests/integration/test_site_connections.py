"""What the owner of one startup kit can do to a running server with connections of its own.

The federation is real, on this machine; the test opens sockets with the certificate of a real startup kit."""

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from social_sites import write_parts

from graphfed.deployment.rehearsal import loopback_project, run_on_loopback
from graphfed.methods.registry import get_method
from graphfed.runtime.interrupts import StopRequest

pytest.importorskip("nvflare", reason="deployment needs the extra deploy")

import psutil

from graphfed.runtime.nvflare.loopback import Loopback
from graphfed.runtime.nvflare.status import status
from graphfed.runtime.nvflare.tls import FRAME, IDLE, OPEN

pytestmark = pytest.mark.slow

#: Seconds after which a test gives up on what should have happened.
LIMIT = 240.0
#: FLARE's prefix of a frame: its length, that of its headers, its kind, and five fields more.
PREFIX = struct.Struct(">IHBBHHHH")
DATA, HELLO = 1, 4


def prefix(length: int, kind: int) -> bytes:
    return PREFIX.pack(length, 0, kind, 0, 0, 0, 0, 0)


def hello(name: str) -> bytes:
    """The first frame of a place, as FLARE's own processes send it."""
    import msgpack

    content = msgpack.packb({"endpoint_name": name, "timestamp": 0.0})
    return prefix(PREFIX.size + len(content), HELLO) + content


def until(true: Callable[[], Any], what: str, limit: float = LIMIT) -> None:
    end = time.monotonic() + limit
    while not true():
        assert time.monotonic() < end, f"waited {limit} s in vain: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """A server and two sites with a part of `social` each, all connected."""
    torch.set_default_dtype(torch.float32)
    folder = tmp_path_factory.mktemp("federation")
    project = loopback_project([1, 1])
    data = write_parts(folder, project, 100)
    with Loopback(
        project,
        folder / "startup_kits",
        data,
        allow=["deployment_programs"],
        check_data=False,
        rehearsal=True,
    ) as running:
        for site in data:
            until(lambda site=site: f"{site} is connected" in running.terminal("server"), f"{site} joins")
        yield running


def connect(federation: Loopback, site: str) -> ssl.SSLSocket:
    """A connection to the server with the certificate of a site."""
    startup = federation.startup_kits[site] / "startup"
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    context.check_hostname = False
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    plain = socket.create_connection(("127.0.0.1", federation.project.port), timeout=LIMIT)
    try:
        return context.wrap_socket(plain)
    except BaseException:
        plain.close()
        raise


def is_closed(connection: ssl.SSLSocket, patience: float = 0.01) -> bool:
    """Whether the server has closed a connection; what it has sent before is read."""
    connection.settimeout(patience)
    try:
        while connection.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def memory(federation: Loopback) -> int:
    """Bytes of memory that the server's processes have."""
    family = psutil.Process(federation.pid("server")).children(recursive=True)
    return sum(process.memory_info().rss for process in family)


def connected(federation: Loopback) -> set[str]:
    """The sites that the server has as connected now."""
    sites = status(federation.startup_kits["coordinator"]).sites
    return {name for name, heard in sites.items() if heard is not None}


def train(federation: Loopback, run: str) -> int:
    """Train with all places, and give the number of rounds."""
    method = get_method("fedavg")
    config = method.configure({"rounds": 3, "hidden": 4})
    outcome, _ = run_on_loopback(
        federation, method, config, run=run, checkpoint_every=60.0, stop_request=StopRequest(), on_event=None
    )
    return outcome.rounds_run


@pytest.mark.parametrize("length", [400_000_000, FRAME], ids=["too long", "as long as is read"])
def test_the_header_of_a_frame_takes_no_memory_for_what_has_not_come(
    length: int, federation: Loopback
) -> None:
    before = memory(federation)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(connect(federation, "site-0")) for _ in range(3)]
        for connection in opened:
            connection.sendall(hello("site-0") + prefix(length, DATA))
        if length > FRAME:
            until(lambda: all(map(is_closed, opened)), "the end of connections with a frame too long")
        else:
            time.sleep(2.0)  # nothing says that the server has read a header that it accepts
        assert memory(federation) - before < 20e6
    assert connected(federation) == {"site-0", "site-1"}


def test_connections_that_send_no_frame_are_closed(federation: Loopback) -> None:
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(federation, "site-0")) for _ in range(5)]
        begun = stack.enter_context(connect(federation, "site-0"))
        begun.sendall(hello("site-0")[:20])
        until(lambda: all(map(is_closed, [*silent, begun])), "the end of connections without a frame")
    assert connected(federation) == {"site-0", "site-1"}


def test_a_certificate_has_so_many_connections_and_those_in_use_go_on(federation: Loopback) -> None:
    with contextlib.ExitStack() as stack:
        many = [stack.enter_context(connect(federation, "site-1")) for _ in range(100)]
        until(lambda: sum(map(is_closed, many)) >= 100 - OPEN, "the end of connections above the limit")
        assert connected(federation) == {"site-0", "site-1"}
        assert train(federation, "crowded") == 3


def test_what_a_run_asks_may_be_longer_than_the_longest_frame(federation: Loopback, tmp_path: Path) -> None:
    """As the names of a million clients are."""
    asked = {
        "run": "long",
        "program": "deployment_programs:nothing",
        "arguments": {"run": "long", "roster": "x" * (2 * FRAME)},
        "workers": [[0], [1]],
    }
    with federation.coordinator() as coordinator:
        outcomes = coordinator.run([asked], results=tmp_path)
    assert [(outcome["run"], outcome["kind"]) for outcome in outcomes] == [("long", "done")]


@pytest.mark.on_demand
def test_connections_that_fall_silent_are_closed_and_those_of_sites_stay(federation: Loopback) -> None:
    with connect(federation, "site-0") as connection:
        connection.sendall(hello("site-0.silent"))
        until(lambda: is_closed(connection, 1.0), "the end of a silent connection", IDLE + 30)
    terminal = federation.terminal("server")
    assert "has left" not in terminal
    assert train(federation, "later") == 3
