"""A whole deployment on this machine, for rehearsals and tests.

The server and every site are processes with startup kits, which communicate over loopback with mutual TLS.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from graphfed.runtime.nvflare.coordinator import Coordinator
from graphfed.runtime.nvflare.project import Project
from graphfed.runtime.nvflare.startup_kits import load_startup_kit, provision

#: Seconds in which the processes must end by themselves.
GRACE = 10.0


@dataclass(eq=False)
class Loopback:
    """The processes of a project on this machine.

    Use it as a context manager; leaving it stops all processes.

    Args:
        folder: The folder of the startup kits, in which the participants write; existing kits are used again.
        data: The file of every site by name, and that of the server if it needs one.
        allow: Modules with methods and programs that all participants run.
        environment: Additional environment variables of some participants, by name.
        options: Additional options of `graphfed site start` for some participants, by name.
        rehearsal: Whether the participants accept runs that hide nothing (`Place.rehearsal`).
        check_data: Whether every site reads its data before it starts, which takes a few seconds per site.

    Attributes:
        startup_kits: The startup kit of each participant, by name.
    """

    project: Project
    folder: Path
    data: Mapping[str, Path]
    _: KW_ONLY
    threads: int = 1
    allow: Sequence[str] = ()
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    check_data: bool = True
    rehearsal: bool = False
    startup_kits: dict[str, Path] = field(default_factory=dict, init=False)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)

    def __enter__(self) -> "Loopback":
        if self.folder.exists():
            names = ("server", "coordinator", *(site.name for site in self.project.sites))
            self.startup_kits = {name: self.folder / name for name in names}
            self.project = load_startup_kit(self.startup_kits["coordinator"]).project
        else:
            self.startup_kits = provision(self.project, self.folder)
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
        """Start the process of the server or of a site, whose earlier process must have ended."""
        if name in self._processes:
            self._processes[name].wait(GRACE)
        command = [sys.executable, "-m", "graphfed", "site", "start", str(self.startup_kits[name])]
        command += ["--threads", str(self.threads)]
        for module in self.allow:
            command += ["--allow", module]
        if name in self.data:
            command += ["--data", str(self.data[name])]
            command += [] if self.check_data else ["--no-check-data"]
        command += ["--rehearsal"] if self.rehearsal else []
        command += self.options.get(name, ())
        # The participants can import what this process can, such as the user's own methods, if they are
        # allowed.
        path = os.pathsep.join(path for path in sys.path if path)
        environment = {**os.environ, "PYTHONPATH": path, **self.environment.get(name, {})}
        terminal = self.startup_kits[name] / "terminal.txt"
        terminal.touch(mode=0o600)
        with terminal.open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def coordinator(self) -> Coordinator:
        return Coordinator(load_startup_kit(self.startup_kits["coordinator"]))

    def terminal(self, name: str) -> str:
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
    """Find a TCP port of this machine at which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
