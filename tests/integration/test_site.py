"""A real federation on this machine: who gets in, what the coordinator may do, and what stays behind."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from graphfed.cli import main
from graphfed.errors import DONE, FAILED, UNUSABLE

pytest.importorskip("nvflare", reason="the extra 'deploy' (NVIDIA FLARE) is not installed")

import psutil

from graphfed.runtime.nvflare.project import Project, Site
from graphfed.runtime.nvflare.startup_kits import load_startup_kit, provision
from graphfed.runtime.nvflare.status import open_session, status
from graphfed.runtime.nvflare.tls import refusal

pytestmark = pytest.mark.slow

#: Seconds after which a test gives up on what should have happened.
LIMIT = 90


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(true: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < end, f"waited {LIMIT} s in vain: {what}"
        time.sleep(0.05)


class Party:
    """`graphfed site start` with one startup kit, as its owner would type it; what it prints is in a file."""

    def __init__(self, startup_kit: Path, *words: str) -> None:
        self.startup_kit = startup_kit
        self.output = startup_kit.parent / f"{startup_kit.name}.out"
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "graphfed", "site", "start", str(startup_kit), *words],
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def family(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children(recursive=True))

    def says(self, text: str, times: int = 1) -> None:
        def said() -> bool:
            return self.output.read_text().count(text) >= times

        until(said, f"{text!r} in {self.output.name}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT)


def all_gone(processes: list[psutil.Process]) -> bool:
    """Ended, though perhaps nobody has asked how."""
    alive = [p for p in processes if p.is_running()]
    with contextlib.suppress(psutil.NoSuchProcess):
        return all(p.status() == psutil.STATUS_ZOMBIE for p in alive)
    return False


def make(folder: Path, *sites: str) -> dict[str, Path]:
    return provision(Project("trial", tuple(map(Site, sites)), port=free_port()), folder / "startup_kits")


@pytest.fixture(scope="module")
def startup_kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make(tmp_path_factory.mktemp("federation"), "bank_a", "bank_b", "bank_c")


@contextlib.contextmanager
def started(made: dict[str, Path]) -> Iterator[dict[str, Party]]:
    """The server, bank_a and bank_b, connected; at the end none of their processes stays."""
    parties: dict[str, Party] = {}
    try:
        for name in ("server", "bank_a", "bank_b"):
            parties[name] = Party(made[name])
        for name in ("bank_a", "bank_b"):
            parties[name].says("connected to localhost:")
            parties["server"].says(f"{name} is connected")
        yield parties
    finally:
        for party in parties.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in party.family():
                    process.kill()
            party.process.kill()
            party.process.wait()


@pytest.fixture(scope="module")
def federation(startup_kits: dict[str, Path]) -> Iterator[dict[str, Party]]:
    """Three parties; bank_c has not come."""
    with started(startup_kits) as parties:
        yield parties
        family = [process for party in parties.values() for process in party.family()]
        assert len(family) >= len(parties)
        assert [party.stop() for party in parties.values()] == [DONE] * len(parties)
        assert all_gone(family)


def test_status_says_who_is_connected_and_who_is_not(
    federation: dict[str, Party], startup_kits: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", "status", str(startup_kits["coordinator"]), "--json"]) == DONE
    content = json.loads(capsys.readouterr().out)
    assert {name: heard is not None for name, heard in content["sites"].items()} == {
        "bank_a": True, "bank_b": True, "bank_c": False,
    }  # fmt: skip
    assert content["runs"] == []
    assert main(["site", "status", str(startup_kits["coordinator"])]) == DONE
    assert "bank_c" in capsys.readouterr().out


def test_everybody_listens_on_loopback_only_where_nothing_else_was_asked_for(
    federation: dict[str, Party], startup_kits: dict[str, Path]
) -> None:
    listening = {
        name: [c.laddr for p in party.family() for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
        for name, party in federation.items()
    }
    assert {address.ip for addresses in listening.values() for address in addresses} == {"127.0.0.1"}
    assert load_startup_kit(startup_kits["server"]).project.port in {
        address.port for address in listening["server"]
    }


def server_of(startup_kits: dict[str, Path]) -> tuple[str, int]:
    return "127.0.0.1", load_startup_kit(startup_kits["server"]).project.port


def reason(startup_kit: Path, host: str, port: int) -> str:
    found = refusal(startup_kit / "startup", host, port)
    return "" if found is None else found.reason


def test_a_connection_without_a_certificate_is_refused(
    federation: dict[str, Party], startup_kits: dict[str, Path]
) -> None:
    context = ssl.create_default_context(cafile=startup_kits["bank_a"] / "startup" / "rootCA.pem")
    context.check_hostname = False
    with (
        socket.create_connection(server_of(startup_kits), timeout=LIMIT) as plain,
        context.wrap_socket(plain) as connection,
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
    ):
        connection.recv(1)


@pytest.mark.parametrize(
    "hello", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"\0" * 64]
)
def test_what_is_not_tls_gets_no_answer(
    hello: bytes, federation: dict[str, Party], startup_kits: dict[str, Path]
) -> None:
    with socket.create_connection(server_of(startup_kits), timeout=LIMIT) as connection:
        connection.sendall(hello)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while received := connection.recv(1000):
                answer += received
    # At most TLS's own word that this is not TLS: an alert, 7 bytes.
    assert answer[:1] in (b"", b"\x15")
    assert len(answer) <= 7


def test_a_connection_that_says_nothing_does_not_keep_others_out(
    federation: dict[str, Party], startup_kits: dict[str, Path]
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(server_of(startup_kits), timeout=LIMIT))
        assert reason(startup_kits["bank_c"], *server_of(startup_kits)) == ""
        assert status(startup_kits["coordinator"]).sites["bank_a"] is not None


def test_a_site_with_a_certificate_of_another_authority_is_refused_and_says_so(
    federation: dict[str, Party],
    startup_kits: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It believes in this server, even: only its own certificate is wrong."""
    foreign = make(tmp_path, "bank_c")["bank_c"]
    content = json.loads((foreign / "kit.json").read_text())
    content["project"]["server"]["port"] = server_of(startup_kits)[1]
    (foreign / "kit.json").write_text(json.dumps(content))
    (foreign / "startup" / "rootCA.pem").write_bytes(
        (startup_kits["bank_c"] / "startup" / "rootCA.pem").read_bytes()
    )
    assert main(["site", "start", str(foreign)]) == UNUSABLE
    assert "it refuses the certificate of this startup kit" in capsys.readouterr().err
    assert status(startup_kits["coordinator"]).sites["bank_c"] is None


def test_a_server_of_another_authority_is_not_believed(
    federation: dict[str, Party], startup_kits: dict[str, Path], tmp_path: Path
) -> None:
    stranger = make(tmp_path, "bank_a")["bank_a"]
    assert "it is not the server of this project" in reason(stranger, *server_of(startup_kits))


def test_a_site_cannot_pass_for_the_server(startup_kits: dict[str, Path]) -> None:
    """Its certificate is of the right authority, but has its own name."""
    startup = startup_kits["bank_b"] / "startup"
    program = (
        "import socket, ssl, sys; c = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH); "
        "c.load_cert_chain(sys.argv[1], sys.argv[2]); s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); c.wrap_socket(s.accept()[0], server_side=True).recv(1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(startup / "client.crt"), str(startup / "client.key")],
        stdout=subprocess.PIPE,
        text=True,
    ) as pretender:
        assert pretender.stdout is not None
        port = int(pretender.stdout.readline())
        found = reason(startup_kits["bank_a"], "127.0.0.1", port)
        pretender.kill()
    assert found == "it is not the server of this project, but bank_b"


def test_the_coordinator_cannot_read_files_run_commands_or_stop_sites(
    federation: dict[str, Party], startup_kits: dict[str, Path]
) -> None:
    from nvflare.fuel.flare_api.api_spec import AuthorizationError

    secret = startup_kits["bank_a"] / "secret.txt"
    secret.write_text("node 17")
    refusals = set()
    with open_session(load_startup_kit(startup_kits["coordinator"])) as session:
        # Of the server, and of the site: what the server lets pass, the site has no ear for.
        for command in (
            "ls server", "cat server kit.json", "shutdown server", "report_env bank_a",
            "configure_site_log all DEBUG", "cat bank_a secret.txt", "ls bank_a",
            "grep bank_a v secret.txt", "sys_info client bank_a", "shutdown client bank_a",
                "restart client bank_a",
        ):  # fmt: skip
            try:
                answer = json.dumps(session.do_command(command), default=str)
            except AuthorizationError:
                answer = "not authorized"
            assert "node 17" not in answer
            refusals.add(
                next((word for word in ("not authorized", "invalid_request") if word in answer), answer)
            )
    assert refusals == {"not authorized", "invalid_request"}
    assert all(process.is_running() for process in federation["bank_a"].family())


def job(folder: Path, components: list[dict[str, Any]], **files: str) -> str:
    """A job for bank_a and bank_b; the server and the sites wait for each other a while, then give up."""
    executor = {"path": "nvflare.collab.runtime.executor.CollabExecutor", "args": {"client_obj_id": "none"}}
    controller = {
        "path": "nvflare.collab.runtime.controller.CollabController",
        "args": {"server_obj_id": "none"},
    }
    content = {
        "app/config/config_fed_server.json": {"workflows": [{"id": "controller", **controller}]},
        "app/config/config_fed_client.json": {
            "executors": [{"tasks": ["*"], "executor": executor}],
            "components": components,
        },
        "meta.json": {
            "name": "job",
            "resource_spec": {},
            "min_clients": 2,
            "deploy_map": {"app": ["server", "bank_a", "bank_b"]},
        },
    }
    texts = {name: json.dumps({"format_version": 2} | value) for name, value in content.items()} | files
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def test_a_job_that_names_a_class_of_its_own_choice_is_refused_at_the_site(
    federation: dict[str, Party], startup_kits: dict[str, Path], tmp_path: Path
) -> None:
    """Even inside the arguments of one that is allowed. It is FLARE, in the site's process, that says no."""
    touched = tmp_path / "touched"
    popen = {"path": "subprocess.Popen", "args": {"args": ["touch", str(touched)]}}
    allowed = {"id": "x", "path": "graphfed.runtime.nvflare.apps.SiteApp", "args": {"of": popen}}
    with open_session(load_startup_kit(startup_kits["coordinator"])) as session:
        run = session.submit_job(job(tmp_path / "job", [allowed]))
        until(lambda: session.get_job_status(run).startswith("FINISHED"), "the job's end")
        assert session.get_job_status(run) != "FINISHED:COMPLETED"
    for site in ("bank_a", "bank_b"):
        output = (startup_kits[site] / run / "log.txt").read_text()
        assert "Component 'subprocess.Popen'" in output
        assert "is not in allow_list" in output
    assert not touched.exists()


def test_a_job_with_code_or_with_a_question_about_the_site_starts_nowhere(
    federation: dict[str, Party], startup_kits: dict[str, Path], tmp_path: Path
) -> None:
    with open_session(load_startup_kit(startup_kits["coordinator"])) as session:
        for name, components, files in (
            ("code", [], {"app/custom/code.py": "import os"}),
            ("question", [{"id": "x", "path": "a.{$HOME}", "args": {}}], {}),
        ):
            run = session.submit_job(job(tmp_path / name, components, **files))
            until(lambda run=run: session.get_job_status(run).startswith("FINISHED"), "the job's end")
            assert session.get_job_status(run) == "FINISHED:FAILED_TO_RUN"
            assert not (startup_kits["bank_a"] / run).exists()


def test_a_startup_kit_cannot_be_started_twice(
    federation: dict[str, Party], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", "start", str(federation["bank_a"].startup_kit)]) == UNUSABLE
    assert "bank_a is already running" in capsys.readouterr().err


def test_the_server_does_not_start_where_something_listens_already(
    startup_kits: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = provision(Project("other", (Site("a"),), port=port), tmp_path / "startup_kits")["server"]
        assert main(["site", "start", str(server)]) == UNUSABLE
    assert f"cannot listen at 127.0.0.1:{port}: address already in use" in capsys.readouterr().err


def test_the_startup_kit_of_the_coordinator_starts_no_site(
    startup_kits: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["site", "start", str(startup_kits["coordinator"])]) == UNUSABLE
    assert "is the startup kit of the coordinator" in capfd.readouterr().err


@pytest.mark.parametrize(("command", "words", "message"), [
    ("start", ["--methods", "sapgn"], "unknown method 'sapgn'; did you mean 'sapgnn'?"),
    ("start", ["--threads", "0"], "threads=0 cannot be used"),
    # `site start` has `site check` look at the rest, in a process of its own.
    ("check", ["--forbid", "maps"], "--forbid 'maps' cannot be read; write KEY=VALUE"),
    ("check", ["--forbid", "mops=identity"], "no method has the setting 'mops'; did you mean 'maps'?"),
    ("check", ["--forbid", "maps=identty"], "would protect nothing: maps='identty' cannot be used"),
    ("check", ["--forbid", "lr=fast"], "would protect nothing: lr='fast' cannot be used: expected a number"),
    ("check", ["--forbid", "split_seed=1"], "no method has the setting 'split_seed'"),
    ("check", ["--methods", " ,"], "--methods is empty"),
    ("check", ["--device", "gpu"], "unknown device 'gpu'"),
    ("check", ["--data", "nothing.yaml"], "nothing.yaml cannot be read"),
])  # fmt: skip
def test_a_rule_that_would_protect_nothing_is_refused_before_the_site_starts(
    command: str,
    words: list[str],
    message: str,
    startup_kits: dict[str, Path],
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["site", command, str(startup_kits["bank_c"]), *words]) == UNUSABLE
    assert message in capfd.readouterr().err


def test_a_rule_is_checked_even_where_the_data_is_not(
    startup_kits: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    start = ["site", "start", str(startup_kits["bank_c"]), "--data", "nothing.yaml"]
    assert main([*start, "--no-check-data", "--forbid", "maps=identty"]) == UNUSABLE
    assert "maps='identty' cannot be used" in capfd.readouterr().err
    assert main([*start, "--forbid", "maps=identity"]) == UNUSABLE
    assert "nothing.yaml cannot be read" in capfd.readouterr().err


def test_reading_the_data_that_ends_by_a_signal_is_reported(
    startup_kits: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As where the machine has not enough memory for the data."""
    killed = tmp_path / "killed"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(killed))
    assert main(["site", "start", str(startup_kits["bank_c"]), "--data", "any.yaml"]) == FAILED
    assert "was ended by signal 9 (Killed)" in capfd.readouterr().err


def test_status_says_what_is_wrong_where_no_server_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make(tmp_path, "a")
    assert main(["site", "status", str(made["coordinator"])]) == FAILED
    assert "cannot be reached: connection refused" in capsys.readouterr().err
    assert main(["site", "status", str(made["a"])]) == UNUSABLE
    assert "give that of the coordinator" in capsys.readouterr().err


# ---- dying ----


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[dict[str, Path], dict[str, Party]]]:
    """A federation of its own, for those who die."""
    made = make(tmp_path, "bank_a", "bank_b")
    with started(made) as parties:
        yield made, parties


@pytest.mark.parametrize("killed", ["graphfed", "flare"])
def test_a_site_killed_in_a_run_leaves_no_process_is_noticed_and_can_come_again(
    killed: str, two: tuple[dict[str, Path], dict[str, Party]], tmp_path: Path
) -> None:
    made, parties = two
    site = parties["bank_a"]
    with open_session(load_startup_kit(made["coordinator"])) as session:
        session.submit_job(job(tmp_path / "job", []))
        site.says("has started")
        family = site.family()
        assert len(family) == 2  # FLARE's long-lived process, and the run's
        victim = site.process if killed == "graphfed" else family[0]
        os.kill(victim.pid, signal.SIGKILL)
        assert site.process.wait(LIMIT) == (FAILED if killed == "flare" else -signal.SIGKILL)
        until(lambda: all_gone(family), "the end of what the site had started")
        parties["server"].says("bank_a has left")
    parties["bank_a"] = again = Party(made["bank_a"])
    parties["server"].says("bank_a is connected", times=2)
    assert status(made["coordinator"]).sites["bank_a"] is not None
    assert again.stop() == DONE
    # It took its leave: nobody had to miss it.
    parties["server"].says("bank_a has left", times=2)


def test_a_site_waits_for_the_server_and_finds_it_again(
    two: tuple[dict[str, Path], dict[str, Party]],
) -> None:
    made, parties = two
    assert parties["server"].stop() == DONE
    parties["bank_a"].says("(connection refused); trying again")
    parties["server"] = Party(made["server"])
    parties["bank_a"].says("connected to localhost:", times=2)
    parties["server"].says("bank_a is connected", times=2)
