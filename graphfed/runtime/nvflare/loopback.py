"""A whole federation on this machine: kits, the server and every site, each a process of its own, talking
over loopback with mutual TLS. For trying out and for tests."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from graphfed.runtime.nvflare.coordinator import Coordinator
from graphfed.runtime.nvflare.project import Project
from graphfed.runtime.nvflare.startup_kits import load_startup_kit, provision

__all__ = ["Loopback", "free_port"]

#: Seconds that the processes have to end by themselves.
GRACE = 10.0


class Loopback:
    """The processes of a project on this machine. Use as a context manager; leaving it stops them all.

    folder: of the kits and of what the places keep; kits that are there already are used again. data: every
    site's file, by the site's name; threads: of each process; allow: modules of other people's methods and
    programs that all places run; environment: of some places, by name, beside this process's; options: of
    `graphfed site start` at some places, by name, after those that all places get; check_data: whether every
    site reads its data before it starts, which takes a few seconds each; False where the caller wrote them.
    """

    def __init__(
        self,
        project: Project,
        folder: Path,
        data: Mapping[str, Path],
        *,
        threads: int = 1,
        allow: Sequence[str] = (),
        environment: Mapping[str, Mapping[str, str]] | None = None,
        options: Mapping[str, Sequence[str]] | None = None,
        check_data: bool = True,
    ) -> None:
        self._options, self._check_data = options or {}, check_data
        self._environment = environment or {}
        self._folder, self._data, self._threads, self._allow = folder, dict(data), threads, tuple(allow)
        self.project = project
        self.startup_kits: dict[str, Path] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Loopback":
        if self._folder.exists():
            names = ("server", "coordinator", *(site.name for site in self.project.sites))
            self.startup_kits = {name: self._folder / name for name in names}
            self.project = load_startup_kit(self.startup_kits["coordinator"]).project
        else:
            self.startup_kits = provision(self.project, self._folder)
        try:
            for name in ("server", *(site.name for site in self.project.sites)):
                self.start(name)
        except BaseException:
            self._stop_all()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_all()

    def start(self, name: str) -> None:
        """Start the process of the server or of a site; one that ran before must have ended."""
        if name in self._processes:
            self._processes.pop(name).wait(GRACE)
        command = [sys.executable, "-m", "graphfed", "site", "start", str(self.startup_kits[name])]
        command += ["--threads", str(self._threads)]
        for module in self._allow:
            command += ["--allow", module]
        if name in self._data:
            command += ["--data", str(self._data[name])]
            command += [] if self._check_data else ["--no-check-data"]
        command += self._options.get(name, ())
        # What this process can import the places can: methods of the user's own, where they are allowed.
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": path, **self._environment.get(name, {})}
        terminal = self.startup_kits[name] / "terminal.txt"
        terminal.touch(mode=0o600)
        with terminal.open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def pid(self, name: str) -> int:
        """The process of `graphfed site start` of a place."""
        return self._processes[name].pid

    def coordinator(self) -> Coordinator:
        """Who starts runs here."""
        return Coordinator(load_startup_kit(self.startup_kits["coordinator"]))

    def terminal(self, name: str) -> str:
        """What a place has said on its terminal."""
        return (self.startup_kits[name] / "terminal.txt").read_text(errors="replace")

    def _stop_all(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens at now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
