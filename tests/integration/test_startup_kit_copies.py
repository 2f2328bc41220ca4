"""Startup kits that do not fit, in a real federation: a site that cannot connect says why and ends where
waiting does not help; of two copies of a startup kit one takes part; a run that is refused is refused with
its reason; and what a party keeps is for that party alone."""

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphfed.cli import main
from graphfed.errors import DONE, UNUSABLE

pytest.importorskip("nvflare", reason="the extra 'deploy' (NVIDIA FLARE) is not installed")

from graphfed.runtime.nvflare.loopback import Loopback, free_port
from graphfed.runtime.nvflare.project import Project, Site, Timing
from graphfed.runtime.nvflare.startup_kits import provision

pytestmark = pytest.mark.slow

#: Seconds after which a test gives up on what should have happened.
LIMIT = 180


def project(*sites: str, port: int | None = None) -> Project:
    timing = Timing(give_up=20.0)
    return Project("copies", tuple(map(Site, sites)), port=port or free_port(), timing=timing)


def start(startup_kit: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "graphfed", "site", "start", str(startup_kit), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # for the rule of north
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit code and the output of a process that ends by itself."""
    try:
        out, _ = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out


def until_said(federation: Loopback, name: str, text: str) -> None:
    end = time.monotonic() + LIMIT
    while text not in federation.terminal(name):
        assert time.monotonic() < end, f"{name} has not said {text!r}: {federation.terminal(name)}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    """The server and north, with a umask that hides nothing. North's own rule
    for jobs refuses every one."""
    made, before = project("north"), os.umask(0)
    folder = tmp_path_factory.mktemp("federation") / "startup_kits"
    try:
        startup_kits = provision(made, folder)
        rules = startup_kits["north"] / "local" / "resources.json"
        content = json.loads(rules.read_text())
        content["app_validator"]["path"] = "operator_programs.RefuseEveryJob"
        rules.write_text(json.dumps(content))
        with Loopback(made, folder, {}) as started:
            yield started
    finally:
        os.umask(before)


# ---- copies ------------------------------------------------------------------------------------------------


def test_of_two_copies_of_a_startup_kit_the_second_is_refused_in_words_and_the_first_stays(
    federation: Loopback, tmp_path: Path
) -> None:
    until_said(federation, "north", "north: connected to localhost:")
    copy = shutil.copytree(federation.startup_kits["north"], tmp_path / "copy")
    code, said = ended(start(copy))
    assert code == UNUSABLE
    assert (
        "north: the server refuses this connection: another copy of the startup kit of north is connected"
        in said
    )
    assert "error: north is already running from another copy of its startup kit" in said
    assert "connected to" not in said
    until_said(federation, "server", "server: refused a second connection of north, from 127.0.0.1:")
    assert "no connection" not in federation.terminal("north")
    assert "north has left" not in federation.terminal("server")
    # It was not for the copy itself: it may come where the first has gone.
    pid = federation.pid("north")
    os.kill(pid, signal.SIGTERM)
    until_said(federation, "server", "north has left")
    with start(copy) as again:
        assert again.stdout is not None
        assert any("north: connected to localhost:" in line for line in again.stdout)
        again.send_signal(signal.SIGTERM)
        assert again.wait(LIMIT) == DONE
    federation.start("north")


# ---- other parties' certificates ---------------------------------------------------------------------------


@pytest.mark.parametrize("party", ["south", "coordinator"])
def test_a_startup_kit_with_another_party_s_certificate_is_refused_at_once_and_names_both(
    party: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    startup_kits = provision(project("north", "south"), tmp_path / "startup_kits")
    for file in ("client.crt", "client.key"):
        shutil.copy(startup_kits["north"] / "startup" / file, startup_kits[party] / "startup" / file)
    command = "status" if party == "coordinator" else "start"
    assert main(["site", command, str(startup_kits[party])]) == UNUSABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(
        r"the certificate in .* belongs to 'north', but the startup kit belongs to "
        "'(south|coordinator@.*)'",
        line,
    )


def test_a_startup_kit_whose_key_is_not_its_certificate_s_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    startup_kits = provision(project("north", "south"), tmp_path / "startup_kits")
    shutil.copy(startup_kits["north"] / "startup/client.key", startup_kits["south"] / "startup/client.key")
    assert main(["site", "start", str(startup_kits["south"])]) == UNUSABLE
    assert "client.key does not match the certificate next to it" in capsys.readouterr().err


def test_a_site_that_waits_for_a_server_ends_when_one_of_another_authority_comes(tmp_path: Path) -> None:
    """It tries again for as long as nobody is there, which can heal; this cannot."""
    port = free_port()
    startup_kit = provision(project("north", port=port), tmp_path / "startup_kits")["north"]
    site = start(startup_kit)
    try:
        assert site.stdout is not None
        assert "north: no connection to" in next(iter(site.stdout))
        with Loopback(project("north", port=port), tmp_path / "others", {}):
            code, said = ended(site)
    finally:
        site.kill()
        site.wait()
    assert code == UNUSABLE
    assert "error: north cannot connect to localhost:" in said
    assert "it is not the server of this project" in said


# ---- refused jobs ------------------------------------------------------------------------------------------


def test_a_job_that_a_site_refuses_ends_the_run_at_once_with_the_site_and_the_reason(
    federation: Loopback, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    until_said(federation, "north", "connected to")
    startup_kit = str(federation.startup_kits["coordinator"])
    asked = ["run", "fedavg", "--startup-kit", startup_kit, "--out", str(tmp_path / "out")]
    assert main([*asked, "--no-progress"]) == UNUSABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert "north refuses the run" in line
    assert "this site is closed for stocktaking" in line
    assert not (tmp_path / "out").exists()


# ---- secrets -----------------------------------------------------------------------------------------------

SECRET = re.compile(rb"PRIVATE KEY|password", re.IGNORECASE)


def readable_by_others(root: Path) -> list[Path]:
    return [path for path in (root, *root.rglob("*")) if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def test_every_secret_of_a_provisioned_project_is_its_owner_s_alone(tmp_path: Path) -> None:
    """Whatever the umask. The files are found by what is in them, so one that FLARE adds is among them."""
    (tmp_path / "p.yaml").write_text("name: p\nsites: [north, south]\n")
    command = [sys.executable, "-m", "graphfed", "site", "provision", "p.yaml"]
    subprocess.run(command, cwd=tmp_path, umask=0, check=True, stdout=subprocess.DEVNULL)
    startup_kits = tmp_path / "startup_kits"
    files = [path for path in startup_kits.rglob("*") if path.is_file()]
    secret = {path.relative_to(startup_kits).as_posix() for path in files if SECRET.search(path.read_bytes())}
    assert secret >= {
        "authority/cert.json", "server/startup/server.key",
        *(f"{name}/startup/client.key" for name in ("north", "south", "coordinator")),
    }  # fmt: skip
    assert readable_by_others(startup_kits) == []


def test_what_a_running_place_writes_is_its_owner_s_alone_whatever_the_umask(federation: Loopback) -> None:
    until_said(federation, "north", "connected to")
    for name in ("server", "north"):
        assert (federation.startup_kits[name] / "console.txt").is_file()
        assert (federation.startup_kits[name] / "log.txt").is_file()
        assert readable_by_others(federation.startup_kits[name]) == []
