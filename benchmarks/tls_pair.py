"""Run the two parties of a protocol in two processes over loopback with mutual TLS, for benchmarks and tests.

Each direction has its own connection, so that neither party has to wait for the other one to send. The second
party runs in a process that the first one starts and stops."""

import contextlib
import datetime
import importlib
import queue
import socket
import ssl
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["End", "accept", "certify", "connect", "listen", "run_apart"]

_LENGTH = 8
#: Seconds that anything may take before a side gives up.
PATIENCE = 120.0
#: Seconds that a party whose connection has closed gives the other's process to end.
LAST_WORDS = 10.0


def certify(folder: Path, *names: str) -> None:
    """Make an authority in `folder`, and a certificate and a key for each name."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.datetime.now(datetime.UTC)
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    for name in ("authority", *names):
        key = authority if name == "authority" else ec.generate_private_key(ec.SECP256R1())
        subject = (
            issuer if name == "authority" else x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        )
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "authority", path_length=None), critical=True)
            # Python 3.13 refuses certificates without these.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(identifier, critical=False)
            .add_extension(_usage(x509, authority=name == "authority"), critical=True)
            .sign(authority, hashes.SHA256())
        )
        (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / f"{name}.key").write_bytes(secret)


def _usage(x509: Any, *, authority: bool) -> Any:
    """Return the permitted uses of a key: an authority signs certificates only; the others sign what they
    send."""
    of_keys = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
        **dict.fromkeys(of_keys, False),
    )


def _context(folder: Path, name: str, *, server: bool) -> ssl.SSLContext:
    purpose = ssl.Purpose.CLIENT_AUTH if server else ssl.Purpose.SERVER_AUTH
    context = ssl.create_default_context(purpose, cafile=folder / "authority.crt")
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


class End:
    """One party's end of two connections. It queues what it sends, and receives whole messages."""

    def __init__(self, sending: ssl.SSLSocket, receiving: ssl.SSLSocket) -> None:
        self._sending, self._receiving = sending, receiving
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def send(self, message: bytes) -> None:
        """Queue a message for the other party."""
        self._queue.put(message)

    def receive(self) -> bytes:
        """Return the next message of the other party."""
        size = int.from_bytes(self._fill(_LENGTH), "little")
        return self._fill(size)

    def _fill(self, size: int) -> bytes:
        buffer = bytearray(size)
        view = memoryview(buffer)
        while view:
            count = self._receiving.recv_into(view)
            if not count:
                raise ConnectionError("the other party has closed the connection")
            view = view[count:]
        return bytes(buffer)

    def _work(self) -> None:
        while (message := self._queue.get()) is not None:
            self._sending.sendall(len(message).to_bytes(_LENGTH, "little") + message)

    def close(self) -> None:
        """Close both connections, after the other party has read what was sent or has ended.

        If a socket is closed while it contains unread bytes, such as the session tickets of TLS, its
        connection is reset and data under way is lost. So each party declares that it sends no more, and
        waits until the other one has declared the same."""
        self._queue.put(None)
        self._thread.join(PATIENCE)
        with contextlib.suppress(OSError):  # the other party has ended
            self._receiving.shutdown(socket.SHUT_WR)
            self._sending.shutdown(socket.SHUT_WR)
            while self._sending.recv(4096):  # below TLS, which the shutdown has ended
                pass
        self._sending.close()
        self._receiving.close()


def listen() -> socket.socket:
    """Return a socket of this machine that listens at a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(PATIENCE)
    return listener


def accept(listener: socket.socket, folder: Path, name: str) -> End:
    """Return the first party's end. Raise ssl.SSLError if the authority did not sign the other's
    certificate."""
    return _end(lambda: listener.accept()[0], _context(folder, name, server=True), server=True)


def connect(port: int, folder: Path, name: str) -> End:
    """Return the second party's end."""
    address = ("127.0.0.1", port)
    return _end(lambda: socket.create_connection(address), _context(folder, name, server=False), server=False)


def _end(opened: Callable[[], socket.socket], context: ssl.SSLContext, *, server: bool) -> End:
    with contextlib.ExitStack() as undone:
        found = []
        for _ in range(2):
            plain = undone.enter_context(opened())
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.settimeout(PATIENCE)
            found.append(undone.enter_context(context.wrap_socket(plain, server_side=server)))
        undone.pop_all()
    return End(*(found if server else found[::-1]))


def _second(port: int, folder: str, name: str, path: list[str], work: str, arguments: dict[str, Any]) -> None:
    sys.path[:] = path
    module, _, function = work.partition(":")
    end = connect(port, Path(folder), name)
    try:
        result = getattr(importlib.import_module(module), function)(end, **arguments)
    except BaseException:
        # Before the connections close, so that the first party, which then also fails, can read the reason.
        _failure_of(Path(folder), name).write_text(traceback.format_exc())
        raise
    finally:
        end.close()
    np.savez(Path(folder) / f"{name}.npz", **result)


def _failure_of(folder: Path, name: str) -> Path:
    """Return the file with the traceback of a second party that failed."""
    return folder / f"{name}-failure.txt"


def run_apart(
    folder: Path,
    first: Callable[[End], Any],
    second: str,
    name: str = "second",
    **arguments: Any,
) -> tuple[Any, dict[str, np.ndarray]]:
    """Run `first` here and the function "module:function" in another process, each with its end of the
    connection.

    Args:
        name: Of the second party's certificate in `folder`.

    Returns:
        The results of both; the second is a dictionary of arrays.

    Raises:
        RuntimeError: If the second party fails, with its traceback if there is one.
    """
    failure = _failure_of(folder, name)
    failure.unlink(missing_ok=True)
    listener = listen()
    port = listener.getsockname()[1]
    work = (port, str(folder), name, list(sys.path), second, arguments)
    process = get_context("spawn").Process(target=_second, args=work, daemon=True)
    process.start()
    try:
        with listener:
            end = accept(listener, folder, "first")
        try:
            with contextlib.closing(end):
                result = first(end)
        except ConnectionError as error:
            process.join(LAST_WORDS)
            raise RuntimeError(_second_failed(process.exitcode, failure)) from error
        process.join(PATIENCE)
        if process.exitcode != 0:
            raise RuntimeError(_second_failed(process.exitcode, failure))
        with np.load(folder / f"{name}.npz") as arrays:
            return result, dict(arrays)
    finally:
        process.kill()
        process.join()


def _second_failed(code: int | None, failure: Path) -> str:
    """Describe the failure of a second party. code: its exit code, negative for a signal."""
    text = failure.read_text() if failure.exists() else "it left no traceback\n"
    return f"the second party ended with {code}:\n{text}"
