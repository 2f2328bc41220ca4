"""FLARE's long-lived process of a kit: started as a child, watched, and ended with everything that it
started."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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

__all__ = ["run_parent"]

#: What FLARE's process prints, in the kit.
CONSOLE = "console.txt"
#: Environment of FLARE's processes, where it says nothing else: glibc keeps the memory of a part for the next
#: one instead of giving it back and getting it page by page (a fifth of a large message's processor time,
#: benchmarks/README.md), in one arena for all threads, so that little is kept.
MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
#: Seconds that a process has for ending by itself, once it is asked to.
PATIENCE = 6.0


def run_parent(
    startup_kit: Path,
    *,
    data: Path | None = None,
    threads: int = 1,
    device: str = "cpu",
    allow: Sequence[str] = (),
    methods: Sequence[str] = (),
    forbid: Sequence[str] = (),
    say: Callable[[str], None] = print,
) -> int:
    """Run the process of a server's or a site's kit until SIGTERM, Ctrl-C or KeyboardInterrupt: 0.

    `say` is told of every event, in one line. FLARE's own log is log.txt in the kit. The processes of runs
    find what they need of this site in their environment (`place`). When it returns, and also when it is
    killed, nothing that it started stays.

    InputError where the kit or the data cannot be used; GraphfedError where FLARE's process ends by
    itself."""
    need_nvflare()
    loaded = load_startup_kit(startup_kit)
    if loaded.kind == "coordinator":
        raise InputError(
            f"{startup_kit} is the coordinator's kit, which starts runs; give the server's kit or a site's"
        )
    if data is not None and not data.is_file():
        raise InputError(f"the data's description {data} is not there; name the file of this site's data")
    check_certificate(loaded)
    if loaded.kind == "server":
        _check_address(loaded.project.listen, loaded.project.port)
    else:
        _check_server(loaded)
    place = Place(
        loaded.name, loaded.folder, data, threads, device, tuple(allow), tuple(methods), tuple(forbid)
    )
    with stopping(), _alone(loaded), _started(place, loaded) as (process, events):
        try:
            teller = _Teller(loaded, say)
            for line in events:
                teller.log(*json.loads(line))
        except KeyboardInterrupt:
            say(f"{_who(loaded)}: stopped")
            return DONE
        process.wait()
    last = (loaded.folder / CONSOLE).read_text(errors="replace").strip().splitlines()[-1:]
    raise GraphfedError(
        f"{_who(loaded)}: FLARE's process ended by itself; see {loaded.folder / 'log.txt'}"
        + (f"; its last words: {last[0][:300]}" if last else "")
    )


class _Teller:
    """Says in words what the events of `components.Events` are, and ends what cannot heal by waiting."""

    def __init__(self, startup_kit: StartupKit, say: Callable[[str], None]) -> None:
        self._startup_kit, self._say = startup_kit, say
        #: what was said last, and when the server first refused this site as a copy since it was connected
        self._last, self._refused_at = "", float("inf")

    def log(self, event: str, what: str) -> None:
        """Say an event; InputError where the kit can never connect, or another copy of it stays connected."""
        startup_kit = self._startup_kit
        if event == "connected":
            self._refused_at = float("inf")
        if event == "refused":
            self._refused_at = min(self._refused_at, time.monotonic())
            if time.monotonic() - self._refused_at > SILENCE:
                raise InputError(
                    f"{startup_kit.name} runs already, from another copy of its kit; a kit is for one "
                    f"place: stop "
                    f"one of them; if nobody knows the other, make new kits for all: who has it is "
                    f"{startup_kit.name}"
                )
        if event == "not connected" and self._refused_at < float("inf"):
            return  # which was said
        text = self._words(event, what)
        # The same twice is news of anything but a connection that is still not there.
        if text != self._last or event not in ("not connected", "refused", "copy"):
            self._say(f"{_who(startup_kit)}: {text}")
        self._last = text

    def _words(self, event: str, what: str) -> str:
        startup_kit, address = self._startup_kit, self._startup_kit.project.address
        if event == "not connected":
            refused = refusal(
                startup_kit.folder / "startup", startup_kit.project.host, startup_kit.project.port
            )
            if refused is not None and refused.final:
                raise _cannot_connect(startup_kit, refused)
            reason = "see log.txt in the kit" if refused is None else refused.reason
            return f"no connection to {address} ({reason}); trying again"
        if event == "copy":
            site, standing, other = what.split()
            return (
                f"refused a second connection of {site}, from {other.rpartition(':')[0]}: {site} is "
                f"connected from {standing.rpartition(':')[0]}, with a copy of the same kit"
            )
        listen = f"{startup_kit.project.listen}:{startup_kit.project.port}"
        words = {
            "listening": f"listening at {listen}, waiting for {len(startup_kit.project.sites)} sites",
            "joined": f"{what} is connected",
            "left": f"{what} has left",
            "connected": f"connected to {address}, waiting for runs",
            "refused": "the server refuses this connection: another copy of the kit of "
            f"{startup_kit.name} is connected; trying again for {SILENCE} s",
            "run started": f"run {what} has started",
            "run ended": f"run {what} has ended",
        }
        return words[event]


def _check_address(listen: str, port: int) -> None:
    """InputError where the server could not listen there: FLARE would only go on trying."""
    try:
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((listen, port))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"the server cannot listen at {listen}:{port}: {reason}; end what uses it, or make kits with "
            "another port or address"
        ) from None


def _check_server(startup_kit: StartupKit) -> None:
    """InputError where the server is there, but the certificates do not fit: FLARE would hang."""
    refused = refusal(startup_kit.folder / "startup", startup_kit.project.host, startup_kit.project.port)
    if refused is not None and refused.final:
        raise _cannot_connect(startup_kit, refused)


def _cannot_connect(startup_kit: StartupKit, refused: Refusal) -> InputError:
    return InputError(
        f"{startup_kit.name} cannot connect to {startup_kit.project.address}: {refused.reason}; take a "
        f"kit of the project "
        "that it serves"
    )


def _who(startup_kit: StartupKit) -> str:
    return "server" if startup_kit.kind == "server" else startup_kit.name


@contextlib.contextmanager
def _alone(startup_kit: StartupKit) -> Iterator[None]:
    """In this block nobody else starts the kit."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(startup_kit.folder / ".lock", timeout=0, mode=0o600):
            yield
    except Timeout:
        raise InputError(
            f"{_who(startup_kit)} runs already, from the kit {startup_kit.folder}; stop it first"
        ) from None


@contextlib.contextmanager
def _started(place: Place, startup_kit: StartupKit) -> Iterator[tuple[subprocess.Popen[bytes], IO[str]]]:
    """FLARE's process, and the events that come out of it; at the end all of its processes are ended."""
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
            umask=0o077,  # what a place writes may quote its data: it is for its owner alone
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            start_new_session=True,  # Ctrl-C is for this process; it passes on what it means
        )
    os.close(writing)
    with open(reading, encoding="utf-8") as events:
        try:
            yield process, events
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started: SIGTERM for it, and SIGKILL for who is left."""
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
    # Those that run sites' parts of runs see that it is gone, and end by themselves (`child`).
    for member in psutil.wait_procs(family, timeout=1)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(family, timeout=PATIENCE)
