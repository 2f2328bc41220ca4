"""How the server listens: FLARE's TCP transport with TLS, at one address, not to be held up by one
connection.

FLARE's own accepts TLS connections one after the other: one that is opened and then says nothing keeps all
others out for as long as it stays (measured; its gRPC transport does not have this fault, but took twice the
time and memory for a message of 10 MB). It also listens at every address of the machine, unless it is told
localhost.
"""

import dataclasses
import logging
import os
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

__all__ = ["HANDSHAKE", "LISTEN", "SERVER", "Refusal", "refusal", "use_tls_driver"]

#: Environment: the address to listen at, where FLARE would take all.
LISTEN = "GRAPHFED_SITE_LISTEN"
#: The server's name in its certificate.
SERVER = "server"
#: Seconds for a TLS handshake.
HANDSHAKE = 10.0


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why there is no connection. final: the certificates do not fit, so that waiting does not help."""

    reason: str
    final: bool


def refusal(startup: Path, host: str, port: int, timeout: float = 3.0) -> Refusal | None:
    """Try a TLS connection with the certificate in a kit's `startup`; None where there can be one."""
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    # As FLARE does: what counts is the name that the project's authority gave the server.
    context.check_hostname = False
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
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


def use_tls_driver() -> None:
    """Have FLARE use the transport below for tcp://, in this process."""
    from nvflare.fuel.f3.communicator import driver_mgr
    from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver, TcpStreamServer

    class Server(TcpStreamServer):  # type: ignore[misc]
        def __init__(self, driver: Any, connector: Any) -> None:
            super().__init__(driver, connector)
            if self.ssl_context:
                self.socket.do_handshake_on_connect = False

        def finish_request(self, request: Any, client_address: Any) -> None:
            # In a thread of this connection.
            if self.ssl_context:
                request.settimeout(HANDSHAKE)
                request.do_handshake()
                request.settimeout(None)
            super().finish_request(request, client_address)

        def handle_error(self, request: Any, client_address: Any) -> None:
            logging.getLogger(__name__).warning(
                "refused a connection from %s: %s", client_address, sys.exc_info()[1]
            )

    class Driver(TcpDriver):  # type: ignore[misc]
        def listen(self, connector: Any) -> None:
            connector.params["host"] = connector.params.get("host") or os.environ.get(LISTEN, "")
            self.connector = connector
            self.server = Server(self, connector)
            self.server.serve_forever()

    driver_mgr.register(Driver)
    # FLARE looks for drivers itself, and would complain that this one is taken.
    driver_mgr.class_cache.add(TcpDriver.__name__)
