"""FLARE's TCP transport with TLS, at one address, such that one connection cannot block or exhaust the
server.

FLARE's own transport accepts TLS connections one after the other: a connection that sends nothing keeps all
others out for as long as it stays (measured; FLARE's gRPC transport does not have this fault, but took twice
the time and memory for a message of 10 MB). It also listens at all addresses of the machine, unless its host
is localhost.

FLARE's transport also reads frames of up to 2 GiB, allocates their memory as soon as 16 bytes of a frame have
arrived, and keeps every connection for ever. Here memory is allocated for bytes that have arrived, and
frames, silence and the number of connections are limited. So nobody who only has a startup kit can exhaust
the server's memory or open files with connections.
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

#: The environment variable with the address to listen at; FLARE would listen at all addresses.
LISTEN = "GRAPHFED_SITE_LISTEN"
#: The server's name in its certificate.
SERVER = "server"
#: Seconds for a TLS handshake, and after it for the first whole frame.
HANDSHAKE = 10.0
FIRST_FRAME = 10.0
#: Seconds from one whole frame of a connection to the next. Both sides of FLARE ask for a sign of life after
#: 60 s of silence, so a connection in use is never silent for so long.
IDLE = 150.0
#: The most bytes of a frame: twice those of a part of a message (`link.PART`), for what FLARE adds to it.
#: FLARE's own longest frames, those of jobs, are shorter (`coordinator`).
FRAME = 8 << 20
#: The first bytes of the buffer of a frame.
BEGUN = 1 << 16
#: The most connections with one certificate, and from one address before its certificate is known. A site has
#: two during a run, and for a moment one more for each that it tries or has lost.
OPEN = 16
UNKNOWN = 64


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why there is no connection: the end of a sentence about the server.

    It is final if the certificates do not match, so that waiting does not help.
    """

    reason: str
    final: bool


def refusal(startup: Path, host: str, port: int, timeout: float = 3.0) -> Refusal | None:
    """Try a TLS connection to a server with the folder `startup` of a startup kit; return why there is none.

    InputError if the certificate in the startup kit cannot be used.
    """
    files = [startup / name for name in ("rootCA.pem", "client.crt", "client.key")]
    try:
        for file in files:
            check_regular(file)
        context = ssl.create_default_context(cafile=files[0])
        # As in FLARE, the name that counts is the one that the authority of the project gave the server.
        context.check_hostname = False
        context.load_cert_chain(files[1], files[2])
    except OSError as error:
        raise InputError(
            f"the certificate in {startup} cannot be used ({error}); copy the startup kit again"
        ) from None
    try:
        with (
            socket.create_connection((host, port), timeout=timeout) as plain,
            context.wrap_socket(plain) as connection,
        ):
            return _refused_after_handshake(connection)
    except ssl.SSLCertVerificationError as error:
        return Refusal(f"it is not the server of this project ({error.verify_message})", True)
    except ssl.SSLError as error:
        if "ALERT" in (error.reason or ""):
            return Refusal(f"it refuses the certificate of this startup kit ({error.reason})", True)
        return Refusal(f"it does not speak TLS ({error.reason or error})", False)
    except OSError as error:
        return Refusal((error.strerror or str(error)).lower(), False)


def _refused_after_handshake(connection: ssl.SSLSocket) -> Refusal | None:
    certificate: Any = connection.getpeercert()
    name = dict(field for part in certificate["subject"] for field in part).get("commonName")
    if name != SERVER:
        return Refusal(f"it is not the server of this project, but {name}", True)
    # In TLS 1.3 it is only now that a server's refusal of a certificate arrives. FLARE's server, once it has
    # taken it, waits for a word.
    connection.settimeout(0.5)
    try:
        closed = connection.recv(1) == b""
    except TimeoutError:
        closed = False
    return Refusal("it closes the connection", False) if closed else None


class _ConnectionLimit:
    """Counts connections by name, and refuses those beyond a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Count a connection during this block; ConnectionRefusedError if there are too many."""
        with self._lock:
            if self._taken[name] >= self._limit:
                raise ConnectionRefusedError(f"{name} already has {self._limit} connections")
            self._taken[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[name] -= 1
                if not self._taken[name]:
                    del self._taken[name]


def use_tls_driver() -> None:
    """Make FLARE use the transport below for tcp://, in this process."""
    from nvflare.fuel.f3.comm_error import CommError
    from nvflare.fuel.f3.communicator import driver_mgr
    from nvflare.fuel.f3.drivers.net_utils import get_ssl_context
    from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection
    from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver, TcpStreamServer
    from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
    from nvflare.fuel.hci.security import get_certificate_common_name

    log = logging.getLogger(__name__)

    class Limited(SocketConnection):  # type: ignore[misc]
        """A connection with limited frames, and a time `overdue` by which the next whole frame must
        arrive.
        """

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
                # The buffer has at most twice the bytes that have arrived.
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
            """Make the thread that reads this connection end it."""
            self.closing = True
            with suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)

    class Handler(ConnectionHandler):  # type: ignore[misc]
        def handle(self) -> None:
            # As FLARE's method, but with the connection above.
            server = self.server
            connection = Limited(self.request, server.connector, bool(server.ssl_context))
            server.driver.add_connection(connection)
            connection.read_loop()
            server.driver.close_connection(connection)

    class Server(TcpStreamServer):  # type: ignore[misc]
        def __init__(self, driver: "TcpDriver", connector: "ConnectorInfo") -> None:
            super().__init__(driver, connector)
            self.RequestHandlerClass = Handler
            self._unknown, self._open = _ConnectionLimit(UNKNOWN), _ConnectionLimit(OPEN)
            if self.ssl_context:
                self.socket.do_handshake_on_connect = False

        def finish_request(self, request: ssl.SSLSocket, client_address: tuple[str, int]) -> None:
            # This runs in a thread of the connection.
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
            # As FLARE's method, but with the connection above.
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
    # FLARE also finds drivers itself, and would report that the name of this one is taken.
    driver_mgr.class_cache.add(TcpDriver.__name__)
