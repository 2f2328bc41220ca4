"""Whatever graphfed waits for, one SIGTERM or Ctrl-C ends the wait: real processes get a real signal while
they wait, and end with the exit codes of docs/errors.md. Both have one handler
(`runtime.interrupts`), so that each wait gets one of them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from endless_reproduction import PROGRAM

from graphfed.errors import DONE, INTERRUPTED

pytest.importorskip("nvflare", reason="the extra 'deploy' (NVIDIA FLARE) is not installed")

from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site, Timing
from graphfed.runtime.nvflare.startup_kits import provision

pytestmark = pytest.mark.slow

#: Seconds after which a test gives up; a process that has not heard would live on for ten minutes.
LIMIT = 300
LONG = ("run", "fedavg", "--clients", "2", "--rounds", "1000000", "--set", "patience=null", "--out", "r")


class Command:
    """A command of graphfed in a process of its own, whose output is read while it runs."""

    def __init__(self, *words: str, folder: Path) -> None:
        self.lines: list[str] = []
        code = "from graphfed.runs import progress; progress.LINE_EVERY = 0.1; import sys; "
        code += f"from graphfed.cli import main; sys.exit(main({list(words)!r}))"
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def family(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def until(self, true: Callable[[], object], what: str) -> None:
        end = time.monotonic() + LIMIT
        while not true():
            assert self.process.poll() is None, f"it ended before {what}: {self.lines}"
            assert time.monotonic() < end, f"waited {LIMIT} s in vain for {what}: {self.lines}"
            time.sleep(0.02)

    def says(self, text: str) -> None:
        self.until(lambda: any(text in line for line in list(self.lines)), repr(text))

    def ends_by(self, number: signal.Signals) -> int:
        """The exit code after one signal, and no second one."""
        self.process.send_signal(number)
        code = self.process.wait(LIMIT)
        self._reader.join(LIMIT)
        return code

    def kill(self) -> None:
        for process in [*self.family(), self.process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        self._reader.join(LIMIT)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Starts commands in the test's folder; those that still run at its end are killed by pid."""
    started: list[Command] = []

    def begin(*words: str) -> Command:
        started.append(Command(*words, folder=tmp_path))
        return started[-1]

    yield begin
    for command in started:
        command.kill()


def interrupted_and_resumable(command: Command, folder: Path) -> bool:
    said = [line for line in command.lines if line.startswith("interrupted")]
    return said == [f"interrupted; go on with: graphfed resume {folder.name}\n"] and folder.is_dir()


# ---- the processes runtime ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runtime", "number"), [("processes", signal.SIGINT), ("nvflare", signal.SIGTERM)], ids=str
)
def test_a_run_in_processes_that_have_not_begun_yet_ends_at_the_first_signal_with_all_of_them(
    runtime: str, number: signal.Signals, start: Callable[..., Command]
) -> None:
    run = start(*LONG, "--runtime", runtime)
    run.until(lambda: len(run.family()) >= 3, "the processes of the server and of two sites")
    family = run.family()
    assert run.ends_by(number) == INTERRUPTED
    assert psutil.wait_procs(family, timeout=LIMIT)[1] == []
    assert any(line.startswith(("interrupted", "stopped before")) for line in run.lines), run.lines


# ---- a reproduction in the background ----------------------------------------------------------------------


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_reproduction_that_a_shell_has_put_into_the_background_hears_sigterm_and_leaves_ctrl_c_to_others(
    jobs: str, tmp_path: Path
) -> None:
    """A shell without job control starts background jobs with SIGINT ignored, which stays so."""
    (tmp_path / "endless.py").write_text(PROGRAM)
    words = f"endless.py reproduce endless small --seeds 0,1 --jobs {jobs} --out r"
    script = f"{sys.executable} {words} & echo $!; wait $!; echo code $?"
    with subprocess.Popen(
        ["sh", "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None
        pid = int(shell.stdout.readline())
        try:
            end = time.monotonic() + LIMIT
            while not list(tmp_path.glob("r/small/*/checkpoint/round-*/local.json")):
                assert shell.poll() is None, shell.communicate()
                assert time.monotonic() < end, "no run of the reproduction was saved"
                time.sleep(0.05)
            os.kill(pid, signal.SIGINT)
            with pytest.raises(subprocess.TimeoutExpired):
                shell.wait(5)
            os.kill(pid, signal.SIGTERM)
            out, said = shell.communicate(timeout=LIMIT)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
                    process.kill()
    assert out == f"code {INTERRUPTED}\n"
    assert "interrupted; go on with: graphfed resume r\n" in said


# ---- deployments -------------------------------------------------------------------------------------------


def project() -> Project:
    return Project("waits", (Site("north"),), port=free_port(), timing=Timing(give_up=20.0))


def test_a_coordinator_that_waits_for_the_server_ends_at_the_first_signal_and_can_be_resumed(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    startup_kit = provision(project(), tmp_path / "startup_kits")["coordinator"]
    run = start("run", "fedavg", "--startup-kit", str(startup_kit), "--out", "r")
    run.says("waiting for the server")
    assert run.ends_by(signal.SIGTERM) == INTERRUPTED
    assert interrupted_and_resumable(run, tmp_path / "r"), run.lines
    again = start("resume", "r")
    again.says("waiting for the server")
    assert again.ends_by(signal.SIGINT) == INTERRUPTED


def test_a_site_that_waits_for_the_server_ends_at_the_first_signal_with_all_that_it_started(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    startup_kit = provision(project(), tmp_path / "startup_kits")["north"]
    site = start("site", "start", str(startup_kit))
    site.says("(connection refused); trying again")
    family = site.family()
    assert family
    assert site.ends_by(signal.SIGINT) == DONE
    assert psutil.wait_procs(family, timeout=LIMIT)[1] == []


def test_a_question_to_a_server_that_never_answers_ends_at_the_first_signal(
    start: Callable[..., Command], tmp_path: Path
) -> None:
    made = project()
    startup_kit = provision(made, tmp_path / "startup_kits")["coordinator"]
    with socket.create_server(("127.0.0.1", made.port)) as silent:
        silent.settimeout(LIMIT)
        status = start("site", "status", str(startup_kit))
        with silent.accept()[0]:
            assert status.ends_by(signal.SIGTERM) == INTERRUPTED


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """The server and one site, with a graph of 60 nodes."""
    folder = tmp_path_factory.mktemp("federation")
    rng = np.random.default_rng(0)
    rows = [f"n{i},{rng.normal() + i % 2:.3f},{'ab'[i % 2]}" for i in range(60)]
    (folder / "nodes.csv").write_text("\n".join(["id,x,y", *rows]) + "\n")
    edges = [f"n{i},n{(i * 7 + 1) % 60}" for i in range(60)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    (folder / "data.yaml").write_text(
        "nodes: nodes.csv\nedges: edges.csv\nid: id\nlabel: y\nclasses: [a, b]\n"
        "source: source\ntarget: target\n"
    )
    with Loopback(project(), folder / "startup_kits", {"north": folder / "data.yaml"}) as started:
        yield started


def test_a_coordinator_whose_run_waits_in_the_queue_ends_at_the_first_signal_and_disturbs_no_other(
    federation: Loopback, start: Callable[..., Command], tmp_path: Path
) -> None:
    startup_kit = str(federation.startup_kits["coordinator"])
    running = start(
        "run",
        "fedavg",
        "--startup-kit",
        startup_kit,
        "--rounds",
        "1000000",
        "--set",
        "patience=null",
        "--out",
        "running",
    )
    running.says("accuracy")
    queued = start("run", "fedavg", "--startup-kit", startup_kit, "--out", "queued")
    queued.says("all sites are connected")
    assert queued.ends_by(signal.SIGTERM) == INTERRUPTED
    assert interrupted_and_resumable(queued, tmp_path / "queued"), queued.lines
    before = len(running.lines)
    running.until(lambda: len(running.lines) > before, "another round of the first run")
    assert running.ends_by(signal.SIGINT) == INTERRUPTED
    assert interrupted_and_resumable(running, tmp_path / "running"), running.lines
    assert list(federation.startup_kits["north"].glob("runs/*/checkpoint/round-*/worker0.json"))
