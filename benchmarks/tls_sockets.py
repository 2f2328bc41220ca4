"""Bare mutual-TLS sockets, the baseline for transfers over FLARE.

There is one connection from a server to each of its clients, with the certificates of the startup kits."""

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

__all__ = ["Server", "echo_until_closed"]

_LENGTH = 8
#: Seconds for a client to come.
PATIENCE = 60.0


def _context(startup_kit: Path, purpose: ssl.Purpose, name: str) -> ssl.SSLContext:
    """Return the TLS context of one side; as in FLARE, both sides present certificates of the project's
    authority."""
    startup = startup_kit / "startup"
    context = ssl.create_default_context(purpose, cafile=startup / "rootCA.pem")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(startup / f"{name}.crt", startup / f"{name}.key")
    return context


def _send(connection: ssl.SSLSocket, message: bytes) -> None:
    connection.sendall(len(message).to_bytes(_LENGTH, "little"))
    connection.sendall(message)


def _recv(connection: ssl.SSLSocket) -> bytearray | None:
    """Return a whole message, or None if the other side has closed the connection."""
    head = _fill(connection, bytearray(_LENGTH))
    return None if head is None else _fill(connection, bytearray(int.from_bytes(head, "little")))


def _fill(connection: ssl.SSLSocket, buffer: bytearray) -> bytearray | None:
    view = memoryview(buffer)
    while view:
        count = connection.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return buffer


class Server:
    """A server that waits for a number of clients at a port of this machine. Use it as a context manager."""

    def __init__(self, startup_kit: Path, port: int, clients: int) -> None:
        context = _context(startup_kit, ssl.Purpose.CLIENT_AUTH, "server")
        self._connections: list[ssl.SSLSocket] = []
        with socket.create_server(("127.0.0.1", port)) as listener:
            listener.settimeout(PATIENCE)
            for _ in range(clients):
                plain, _address = listener.accept()
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(context.wrap_socket(plain, server_side=True))
        self._threads = ThreadPoolExecutor(clients)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    def round_trip(self, message: bytes) -> list[bytearray | None]:
        """Send the message to every client, each in a thread, and return their answers."""

        def one(connection: ssl.SSLSocket) -> bytearray | None:
            _send(connection, message)
            return _recv(connection)

        return list(self._threads.map(one, self._connections))


def echo_until_closed(startup_kit: Path, port: int) -> threading.Thread:
    """A client that returns whole messages, in a thread that ends when the server closes the connection."""
    context = _context(startup_kit, ssl.Purpose.SERVER_AUTH, "client")

    def work() -> None:
        with context.wrap_socket(_connected(port)) as connection:
            while (message := _recv(connection)) is not None:
                _send(connection, message)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _connected(port: int) -> socket.socket:
    """Return a connection to the server's port, as soon as the server listens."""
    last: OSError | None = None
    for _ in range(int(PATIENCE / 0.1)):
        try:
            connection = socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError as error:
            last = error
            threading.Event().wait(0.1)
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    raise ConnectionRefusedError("the server does not listen") from last
