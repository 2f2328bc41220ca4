"""How the server listens: FLARE's TCP transport with TLS, at one address, not to be held up by one
connection.

FLARE's own accepts TLS connections one after the other: one that is opened and then says nothing keeps all
others out for as long as it stays (measured; its gRPC transport does not have this fault, but took twice the
time and memory for a message of 10 MB). It also listens at every address of the machine, unless it is told
localhost.
"""

import contextlib
import logging
import os
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

__all__ = ["HANDSHAKE", "LISTEN", "refusal", "use_tls_driver"]

#: Environment: the address to listen at, where FLARE would take all.
LISTEN = "GRAPHFED_SITE_LISTEN"
#: Seconds for a TLS handshake.
HANDSHAKE = 10.0


def refusal(startup: Path, host: str, port: int, timeout: float = 3.0) -> str:
    """Why no TLS connection can be made with the certificate in a kit's `startup`; empty where it can."""
    context = ssl.create_default_context(cafile=startup / "rootCA.pem")
    # As FLARE does: the authority is the project's own and lets nobody but the server be one.
    context.check_hostname = False
    context.load_cert_chain(startup / "client.crt", startup / "client.key")
    try:
        with (
            socket.create_connection((host, port), timeout=timeout) as plain,
            context.wrap_socket(plain) as connection,
        ):
            # In TLS 1.3 it is only now that a server's refusal of a certificate arrives. FLARE waits for a
            # word.
            connection.settimeout(0.5)
            with contextlib.suppress(TimeoutError):
                if connection.recv(1) == b"":
                    return "the server closes the connection"
    except ssl.SSLCertVerificationError as error:
        return f"it is not the project's server: {error.verify_message}"
    except ssl.SSLError as error:
        return f"refused: {error.reason or error}"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


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
