"""What may lie where a file is expected, and would block a program that opens it or never end."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def make_socket(path: Path) -> None:
    # The path of a socket has at most about 100 characters, so it is made from its folder.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


def make_pipe_behind_a_link(path: Path) -> None:
    pipe = path.with_name(f"pipe-{path.name}")
    os.mkfifo(pipe)
    path.symlink_to(pipe)


#: By name: makes it at a path that is free.
NO_FILE: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a pipe behind a link": make_pipe_behind_a_link,
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
}


@contextmanager
def replaced(path: Path, kind: str) -> Iterator[None]:
    """Put something else in the place of a file, for the block."""
    kept = path.with_name(f"kept-{path.name}")
    path.rename(kept)
    extra = path.with_name(f"pipe-{path.name}")
    try:
        NO_FILE[kind](path)
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        extra.unlink(missing_ok=True)
        kept.rename(path)


@contextmanager
def no_wait(seconds: int = 20) -> Iterator[None]:
    """Fail if the block takes longer: it waits for what never comes."""

    def expired(*_: object) -> None:
        raise TimeoutError(f"it waited for {seconds} s")

    before = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
