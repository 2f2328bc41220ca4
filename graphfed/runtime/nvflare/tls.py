"""How the server listens: FLARE's TCP transport with TLS, at one address, not to be held up by one
connection.

FLARE's own accepts TLS connections one after the other: one that is opened and then says nothing keeps all
others out for as long as it stays (measured; its gRPC transport does not have this fault, but took twice the
time and memory for a message of 10 MB). It also listens at every address of the machine, unless it is told
localhost.

FLARE's own also reads frames of up to 2 GiB, takes their memory as soon as 16 bytes of a frame are here, and
keeps every connection for ever. Here memory is taken for bytes that have arrived, and frames, silence and the
number of connections have limits: who has a kit, and nothing else, cannot use up the server's memory or files
with connections alone.
"""

import dataclasses
import logging
import os
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphfed.errors import InputError
from graphfed.files import check_regular

if TYPE_CHECKING:
    from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo

__all__ = [
    "FRAME",
    "HANDSHAKE",
    "IDLE",
    "LISTEN",
    "OPEN",
    "SERVER",
    "Refusal",
    "refusal",
    "use_tls_driver",
]

#: Environment: the address to listen at, where FLARE would take all.
LISTEN = "GRAPHFED_SITE_LISTEN"
#: The server's name in its certificate.
SERVER = "server"
#: Seconds for a TLS handshake, and after it for the first whole frame.
HANDSHAKE = 10.0
FIRST_FRAME = 10.0
#: Seconds from one whole frame of a connection to the next. FLARE asks for a sign of life after 60 s of
#: silence, at both ends, so that a connection in use is never silent for so long.
IDLE = 150.0
#: Bytes of the longest frame that is sent or read: a part of a message (`link.PART`) and as much again for
#: what FLARE puts around it. FLARE's own longest frames, of jobs, are shorter (`coordinator`).
FRAME = 8 << 20
#: Bytes that a buffer has at first for a frame that has begun.
BEGUN = 1 << 16
#: Connections at a time with one certificate, and from one address before its certificate is known. A site
#: has two during a run, and for a moment one more for each that it tries or has lost.
OPEN = 16
UNKNOWN = 64


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why there is no connection. final: the certificates do not fit, so that waiting does not help."""

    reason: str
    final: bool


def refusal(startup: Path, host: str, port: int, timeout: float = 3.0) -> Refusal | None:
    """Try a TLS connection with the certificate in a kit's `startup`; None where there can be one."""
    files = [startup / name for name in ("rootCA.pem", "client.crt", "client.key")]
    try:
        for file in files:
            check_regular(file)
        context = ssl.create_default_context(cafile=files[0])
        # As FLARE does: what counts is the name that the project's authority gave the server.
        context.check_hostname = False
        context.load_cert_chain(files[1], files[2])
    except OSError as error:
        raise InputError(
            f"the certificate in {startup} cannot be used ({error}); copy the kit again"
        ) from None
    try:
        with (
            socket.create_connection((host, port), timeout=timeout) as plain,
            context.wrap_socket(plain) as connection,
        ):
            return _refused_after_handshake(connection)
    except ssl.SSLCertVerificationError as error:
        return Refusal(f"it is not the project's server ({error.verify_message})", True)
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return Refusal(f"it does not take this kit's certificate ({error.reason})", True)
        return Refusal(f"it does not speak TLS ({error.reason or error})", False)
    except OSError as error:
        return Refusal((error.strerror or str(error)).lower(), False)


def _refused_after_handshake(connection: ssl.SSLSocket) -> Refusal | None:
    certificate: Any = connection.getpeercert()
    name = dict(field for part in certificate["subject"] for field in part).get("commonName")
    if name != SERVER:
        return Refusal(f"it is not the project's server, but {name}", True)
    # In TLS 1.3 it is only now that a server's refusal of a certificate arrives. FLARE's server, once it has
    # taken it, waits for a word.
    connection.settimeout(0.5)
    try:
        closed = connection.recv(1) == b""
    except TimeoutError:
        closed = False
    return Refusal("it closes the connection", False) if closed else None


class _Places:
    """Counts who is in, by name, and lets nobody in beyond the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Take a place in this block. ConnectionRefusedError where there is none left."""
        with self._lock:
            if self._taken[name] >= self._limit:
                raise ConnectionRefusedError(f"{name} has {self._limit} connections already")
            self._taken[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[name] -= 1
                if not self._taken[name]:
                    del self._taken[name]


def use_tls_driver() -> None:
    """Have FLARE use the transport below for tcp://, in this process."""
    from nvflare.fuel.f3.comm_error import CommError
    from nvflare.fuel.f3.communicator import driver_mgr
    from nvflare.fuel.f3.drivers.net_utils import get_ssl_context
    from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection
    from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver, TcpStreamServer
    from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
    from nvflare.fuel.hci.security import get_certificate_common_name

    log = logging.getLogger(__name__)

    class Limited(SocketConnection):  # type: ignore[misc]
        """A connection whose frames have a limit. overdue: when it must have brought its next whole frame."""

        def __init__(self, sock: socket.socket, connector: "ConnectorInfo", secure: bool) -> None:
            super().__init__(sock, connector, secure)
            self.overdue = time.monotonic() + FIRST_FRAME

        def read_frame(self) -> bytearray:
            frame = bytearray(PREFIX_LEN)
            self.read_into(frame, 0, PREFIX_LEN)
            length = Prefix.from_bytes(frame).length
            if not PREFIX_LEN <= length <= FRAME:
                # FLARE's formatter takes names in brackets out of a message that has arguments.
                log.warning(f"a frame of {length} bytes (at most {FRAME} are read): closing {self}")
                raise CommError(CommError.BAD_DATA, f"a frame of {length} bytes")
            while (here := len(frame)) < length:
                # Never more than twice as much as has come.
                frame += bytes(min(length - here, max(here, BEGUN)))
                self.read_into(frame, here, len(frame) - here)
            self.overdue = time.monotonic() + IDLE
            return frame

        def send_frame(self, frame: bytes | bytearray | memoryview) -> None:
            if len(frame) > FRAME:
                raise CommError(
                    CommError.BAD_DATA, f"a frame of {len(frame)} bytes cannot be sent (at most {FRAME})"
                )
            super().send_frame(frame)

        def end(self) -> None:
            """Have the thread that reads this connection end it."""
            self.closing = True
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

    class Handler(ConnectionHandler):  # type: ignore[misc]
        def handle(self) -> None:
            # FLARE's own, with the connection above.
            server = self.server
            connection = Limited(self.request, server.connector, bool(server.ssl_context))
            server.driver.add_connection(connection)
            connection.read_loop()
            server.driver.close_connection(connection)

    class Server(TcpStreamServer):  # type: ignore[misc]
        def __init__(self, driver: "TcpDriver", connector: "ConnectorInfo") -> None:
            super().__init__(driver, connector)
            self.RequestHandlerClass = Handler
            self._unknown, self._open = _Places(UNKNOWN), _Places(OPEN)
            if self.ssl_context:
                self.socket.do_handshake_on_connect = False

        def finish_request(self, request: ssl.SSLSocket, client_address: tuple[str, int]) -> None:
            # In a thread of this connection.
            if not self.ssl_context:
                super().finish_request(request, client_address)
                return
            with self._unknown.taken(client_address[0]):
                request.settimeout(HANDSHAKE)
                request.do_handshake()
                request.settimeout(None)
                name = get_certificate_common_name(request.getpeercert())
            with self._open.taken(name):
                super().finish_request(request, client_address)

        def service_actions(self) -> None:
            # The loop that accepts connections calls this twice a second.
            super().service_actions()
            now = time.monotonic()
            with self.driver.conn_lock:
                connections = list(self.driver.connections.values())
            for connection in connections:
                if now > connection.overdue and not connection.closing:
                    log.warning(f"no whole frame for too long: closing {connection}")
                    connection.end()

        def handle_error(self, request: ssl.SSLSocket, client_address: tuple[str, int]) -> None:
            log.warning("refused a connection from %s: %s", client_address, sys.exc_info()[1])

    class Driver(TcpDriver):  # type: ignore[misc]
        def listen(self, connector: "ConnectorInfo") -> None:
            connector.params["host"] = connector.params.get("host") or os.environ.get(LISTEN, "")
            self.connector = connector
            self.server = Server(self, connector)
            self.server.serve_forever()

        def connect(self, connector: "ConnectorInfo") -> None:
            # FLARE's own, with the connection above.
            self.connector = connector
            plain = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            context = get_ssl_context(connector.params, ssl_server=False)
            sock = context.wrap_socket(plain) if context else plain
            sock.connect((connector.params["host"], int(connector.params["port"])))
            connection = Limited(sock, connector, bool(context))
            self.add_connection(connection)
            connection.read_loop()
            self.close_connection(connection)

    driver_mgr.register(Driver)
    # FLARE looks for drivers itself, and would complain that this one is taken.
    driver_mgr.class_cache.add(TcpDriver.__name__)
