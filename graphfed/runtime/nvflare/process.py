"""Starts FLARE's long-lived process of a startup kit, reports its events, and ends it with all its
children.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import IO

from graphfed.errors import DONE, GraphfedError, InputError
from graphfed.runtime.interrupts import stopping
from graphfed.runtime.nvflare import need_nvflare
from graphfed.runtime.nvflare.child import EVENTS, PARENT
from graphfed.runtime.nvflare.place import Place
from graphfed.runtime.nvflare.rules import HEARTBEAT, SILENCE
from graphfed.runtime.nvflare.startup_kits import (
    ORGANISATION,
    StartupKit,
    check_certificate,
    load_startup_kit,
)
from graphfed.runtime.nvflare.tls import LISTEN, Refusal, refusal

#: The file in the startup kit with the output of FLARE's process.
CONSOLE = "console.txt"
#: Environment variables of FLARE's processes, unless they are already set. glibc keeps the memory of a part
#: for the next one instead of returning it and getting it page by page (a fifth of the processor time of a
#: large message, benchmarks/README.md). One arena for all threads keeps this memory small.
MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
#: Seconds in which a process must end by itself after SIGTERM.
PATIENCE = 6.0


def run_parent(place: Place, say: Callable[[str], None] = print) -> int:
    """Run the process of the server or of a site until SIGTERM, Ctrl-C or KeyboardInterrupt.

    FLARE's own log is log.txt in the startup kit. The processes of runs read the settings of the operator
    from their environment. When this function returns, and also when it is killed, no process that it started
    stays.

    Args:
        place: The settings of the operator; the startup kit determines the name.
        say: Called with a line about every event.

    Raises:
        InputError: The startup kit or the data cannot be used.
        GraphfedError: FLARE's process ended by itself.
    """
    need_nvflare()
    loaded = load_startup_kit(place.startup_kit)
    if loaded.kind == "coordinator":
        raise InputError(
            f"{place.startup_kit} is the startup kit of the coordinator, which has no process; give that of "
            "the server or of a site"
        )
    if place.data is not None and not place.data.is_file():
        raise InputError(f"there is no file {place.data}; give the description (.yaml) of this site's data")
    check_certificate(loaded)
    if loaded.kind == "server":
        _check_address(loaded.project.listen, loaded.project.port)
    else:
        _check_server(loaded)
    place = replace(place, name=loaded.name, startup_kit=loaded.folder)
    with stopping(), _alone(loaded), _started(place, loaded) as (process, events):
        try:
            reporter = _Reporter(loaded, say)
            for line in events:
                reporter.log(*json.loads(line))
            process.wait()
        except KeyboardInterrupt:
            say(f"{_who(loaded)}: stopped")
            return DONE
    last = (loaded.folder / CONSOLE).read_text(errors="replace").strip().splitlines()[-1:]
    raise GraphfedError(
        f"{_who(loaded)}: FLARE's process ended unexpectedly; see {loaded.folder / 'log.txt'}"
        + (f"; the last line of its output: {last[0][:300]}" if last else "")
    )


class _Reporter:
    """Prints a line for each event of `components.Events`, and ends the process if waiting cannot help."""

    def __init__(self, startup_kit: StartupKit, say: Callable[[str], None]) -> None:
        self._startup_kit, self._say = startup_kit, say
        #: The last line, and when the server first refused this site as a copy since its last connection.
        self._last, self._refused_at = "", float("inf")

    def log(self, event: str, what: str) -> None:
        """Print the line of an event; InputError if the startup kit can never connect, or another copy stays
        connected.
        """
        startup_kit = self._startup_kit
        if event == "connected":
            self._refused_at = float("inf")
        if event == "refused":
            self._refused_at = min(self._refused_at, time.monotonic())
            if time.monotonic() - self._refused_at > SILENCE:
                raise InputError(
                    f"{startup_kit.name} is already running from another copy of its startup kit, and a "
                    "startup kit is for one process: stop one of them. If you do not know the other one, "
                    f"make new startup kits for all participants, because its owner can act as "
                    f"{startup_kit.name}"
                )
        if event == "not connected" and self._refused_at < float("inf"):
            return  # the refusal was reported
        text = self._line(event, what)
        # A connection that is still missing or refused is reported once, other events every time.
        if text != self._last or event not in ("not connected", "refused", "copy"):
            self._say(f"{_who(startup_kit)}: {text}")
        self._last = text

    def _line(self, event: str, what: str) -> str:
        startup_kit, address = self._startup_kit, self._startup_kit.project.address
        if event == "not connected":
            refused = refusal(
                startup_kit.folder / "startup", startup_kit.project.host, startup_kit.project.port
            )
            if refused is not None and refused.final:
                raise _cannot_connect(startup_kit, refused)
            reason = "see log.txt in the startup kit" if refused is None else refused.reason
            return f"no connection to {address} ({reason}); trying again"
        if event == "copy":
            site, present, refused_address = what.split()
            return (
                f"refused a second connection of {site}, from {refused_address.rpartition(':')[0]}: {site} "
                f"is connected from {present.rpartition(':')[0]} with another copy of its startup kit"
            )
        listen = f"{startup_kit.project.listen}:{startup_kit.project.port}"
        lines = {
            "listening": f"listening at {listen}, waiting for {len(startup_kit.project.sites)} sites",
            "joined": f"{what} is connected",
            "left": f"{what} has left",
            "connected": f"connected to {address}, waiting for runs",
            "refused": "the server refuses this connection: another copy of the startup kit of "
            f"{startup_kit.name} is connected; trying again for {SILENCE} s",
            "run started": f"run {what} has started",
            "run ended": f"run {what} has ended",
        }
        return lines[event]


def _check_address(listen: str, port: int) -> None:
    """Raise InputError if the server cannot listen at an address: FLARE would only retry for ever."""
    try:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((listen, port))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"the server cannot listen at {listen}:{port}: {reason}; end the program that uses it, or make "
            "startup kits with another port or address"
        ) from None


def _check_server(startup_kit: StartupKit) -> None:
    """Raise InputError if the server answers but the certificates do not match: FLARE would hang."""
    refused = refusal(startup_kit.folder / "startup", startup_kit.project.host, startup_kit.project.port)
    if refused is not None and refused.final:
        raise _cannot_connect(startup_kit, refused)


def _cannot_connect(startup_kit: StartupKit, refused: Refusal) -> InputError:
    return InputError(
        f"{startup_kit.name} cannot connect to {startup_kit.project.address}: {refused.reason}; use a "
        "startup kit of the same project as the server"
    )


def _who(startup_kit: StartupKit) -> str:
    return "server" if startup_kit.kind == "server" else startup_kit.name


@contextlib.contextmanager
def _alone(startup_kit: StartupKit) -> Iterator[None]:
    from filelock import FileLock, Timeout

    try:
        with FileLock(startup_kit.folder / ".lock", timeout=0, mode=0o600):
            yield
    except Timeout:
        raise InputError(
            f"{_who(startup_kit)} is already running from the startup kit {startup_kit.folder}; stop it first"
        ) from None


@contextlib.contextmanager
def _started(place: Place, startup_kit: StartupKit) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """Start FLARE's process; yield it and its events. At the end of the block end it and all its children."""
    reading, writing = os.pipe()
    environment = (
        MEMORY
        | os.environ
        | place.to_environment()
        | {
            PARENT: str(os.getpid()),
            EVENTS: str(writing),
            LISTEN: startup_kit.project.listen,
        }
    )
    app = "server" if startup_kit.kind == "server" else "client"
    command = [
        sys.executable, "-P", "-m", "graphfed.runtime.nvflare.child",
        f"nvflare.private.fed.app.{app}.{app}_train", "-m", str(startup_kit.folder), "-s", f"fed_{app}.json",
        "--set", "secure_train=true", f"uid={startup_kit.name}", f"org={ORGANISATION}",
        "config_folder=config",
        f"heart_beat_interval={HEARTBEAT}",
    ]  # fmt: skip
    console_file = startup_kit.folder / CONSOLE
    console_file.touch(mode=0o600)
    console_file.chmod(0o600)
    with console_file.open("wb") as console:
        process = subprocess.Popen(
            command,
            env=environment,
            umask=0o077,  # the files may quote the data, so only their owner may read them
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            start_new_session=True,  # Ctrl-C goes to this process only, which then ends the child
        )
    os.close(writing)
    with open(reading, encoding="utf-8") as events:
        try:
            yield process, events
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with SIGTERM, and its remaining children with SIGKILL."""
    import psutil

    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # The processes of runs notice that it is gone, and end by themselves (`child`).
    for member in psutil.wait_procs(family, timeout=1)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=PATIENCE)
