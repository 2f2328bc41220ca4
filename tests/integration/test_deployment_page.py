"""The page on deployment does what it says: its commands are typed one after the other, with every process
that it asks for, on a free port of this machine; its tables are those of the places' folders and rules."""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import Block, among, every_block, parse

from graphfed.deployment import participant
from graphfed.methods.common.entity_alignment import OWNER_MESSAGES
from graphfed.methods.registry import get_method
from graphfed.runs import train

pytest.importorskip("nvflare", reason="the extra 'deploy' (NVIDIA FLARE) is not installed")

from graphfed.runtime.nvflare import rules
from graphfed.runtime.nvflare.loopback import free_port
from graphfed.runtime.nvflare.project import PORT, Timing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/deployment.md").read_text()
VISIBILITY = (ROOT / "docs/visibility.md").read_text()
SITES = ("northbank", "harbour_trust", "union_savings")
#: What a block says that needs the processes of the page.
TYPED_HERE = "tests/integration/test_deployment_page.py"
#: Seconds after which a test gives up on what should have happened.
LIMIT = 300


@dataclass
class Walk:
    """What typing the page gave. folder: where; printed: by each command that ended by itself; terminals:
    what the others had printed, by the name of the startup kit; codes: what these ended with at SIGTERM;
    made: what of the startup kits must not change."""

    folder: Path
    printed: dict[str, str] = field(default_factory=dict)
    terminals: dict[str, str] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    made: dict[Path, bytes] = field(default_factory=dict)

    def runs(self, place: str) -> list[Path]:
        return [path for path in (self.folder / "startup_kits" / place / "runs").iterdir() if path.is_dir()]


def walk() -> list[Block]:
    """The blocks of the three banks, in order; test_docs.py runs the trial before them."""
    blocks = every_block("deployment.md")
    first = next(i for i, block in enumerate(blocks) if "make_data.py" in block.text)
    last = max(i for i, block in enumerate(blocks) if TYPED_HERE in block.mark)
    return blocks[first : last + 1]


def console_lines(block: Block) -> list[str]:
    return (
        [line.removeprefix("$ ") for line in block.text.splitlines()] if block.language == "console" else []
    )


def program(line: str, folder: Path) -> dict[str, Any]:
    """The line as this Python runs it in a folder: arguments of subprocess's functions."""
    environment = dict(os.environ)
    key = re.match(r"GRAPHFED_CLIENTS_KEY=\$\(cat ([\w.]+)\) ", line)
    if key:
        environment["GRAPHFED_CLIENTS_KEY"] = (folder / key[1]).read_text().strip()
    words = shlex.split(line.removeprefix(key[0]) if key else line)
    if words[0] == "(umask":  # a line for the shell
        command = ["sh", "-c", line.replace("python", shlex.quote(sys.executable), 1)]
    elif words[0] == "python":
        command = [sys.executable, str(ROOT / words[1]), *words[2:]]
    else:
        command = [sys.executable, "-m", *words]
    return {"args": command, "cwd": folder, "env": environment}


def until_said(path: Path, words: str, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + LIMIT
    while words not in path.read_text():
        assert process.poll() is None, path.read_text()
        assert time.monotonic() < end, f"waited {LIMIT} s for {words!r}; {path.name} says {path.read_text()}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    """The page's commands, all of them, as shown; when this is handed out every process has ended."""
    done = Walk(tmp_path_factory.mktemp("walk"))
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for block in walk():
            if block.language == "yaml":
                (done.folder / block.mark.removeprefix("file: ")).write_text(block.text)
            for line in console_lines(block):
                started = re.search(r"graphfed site start startup_kits/(\w+)", line)
                if started:
                    with (done.folder / started[1]).open("wb") as file:
                        processes[started[1]] = subprocess.Popen(
                            **program(line, done.folder), stdin=subprocess.DEVNULL, stdout=file, stderr=file
                        )
                    continue
                ended = subprocess.run(
                    **program(line, done.folder), capture_output=True, text=True, timeout=LIMIT, check=False
                )
                assert ended.returncode == 0, f"{line}: {ended.stderr}"
                done.printed[line] = ended.stdout
                if line.startswith("graphfed site init"):
                    use_port(done.folder / "graphfed-project.yaml", free_port())
                if line.startswith("graphfed site provision"):
                    done.made = unchanging(done.folder / "startup_kits")
            if "site start" in block.text:
                for name, process in processes.items():
                    until_said(done.folder / name, "waiting for", process)
                for name in SITES:
                    until_said(done.folder / "server", f"{name} is connected", processes["server"])
        for name, process in reversed(processes.items()):
            process.terminate()
            done.codes[name] = process.wait(60)
            done.terminals[name] = (done.folder / name).read_text()
        yield done
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def use_port(project: Path, port: int) -> None:
    """All that differs from the page, where another program may have the port."""
    text = project.read_text()
    assert f"port: {PORT}," in text
    project.write_text(text.replace(f"port: {PORT},", f"port: {port},"))


def unchanging(startup_kits: Path) -> dict[Path, bytes]:
    """Certificates, keys, rules and the project in all startup kits."""
    parts = [
        path
        for startup_kit in startup_kits.iterdir()
        for path in (startup_kit / "startup", startup_kit / "local", startup_kit / "kit.json")
    ]
    files = [file for path in parts for file in (path.rglob("*") if path.is_dir() else [path])]
    return {file: file.read_bytes() for file in files if file.is_file()}


def test_every_command_of_the_page_does_what_it_promises(walked: Walk) -> None:
    assert {line.split()[1] for line in walked.printed if line.startswith("graphfed")} == {
        "site",
        "run",
        "predict",
    }
    assert walked.codes == dict.fromkeys(("server", *SITES), 0)
    (status,) = [text for line, text in walked.printed.items() if line.startswith("graphfed site status")]
    assert [len(re.findall(rf"{name} +│ yes", status)) for name in SITES] == [1, 1, 1]
    (sent,) = [text for line, text in walked.printed.items() if line.startswith("graphfed site sent")]
    assert "protection: a keyed hash" in sent
    run = json.loads((walked.folder / "run/result.json").read_text())
    assert (walked.folder / "run/report.html").exists()
    assert {path.name for place in ("server", *SITES) for path in walked.runs(place)} == {
        run["details"]["run"]
    }


def test_the_clients_key_is_readable_by_its_owner_alone(walked: Walk) -> None:
    assert (walked.folder / "clients.key").stat().st_mode & 0o077 == 0


def test_the_texts_on_the_page_are_what_is_printed(walked: Walk) -> None:
    port = yaml.safe_load((walked.folder / "graphfed-project.yaml").read_text())["server"]["port"]
    everything = "\n".join([*walked.terminals.values(), *walked.printed.values()]).replace(
        str(port), str(PORT)
    )
    # A site that starts before a slow server listens says that too.
    everything = re.sub(r".*: no connection to .*; trying again\n", "", everything)
    shown = [block.text for block in walk() if block.language == "text"]
    assert len(shown) == 2
    for text in shown:
        assert among(text, everything, 5), text


def test_every_place_keeps_the_files_that_the_page_names_and_no_other(walked: Walk) -> None:
    table = re.findall(r"^\| `([\w.]+)` \| (all|sites|the server) \|", PAGE, re.MULTILINE)
    for place in ("server", *SITES):
        here = ("all", "the server" if place == "server" else "sites")
        (folder,) = walked.runs(place)
        later = [path.name for path in folder.iterdir() if re.search(r"-\d{8}-\d{6}\.", path.name)]
        assert sorted(name.partition("-")[0] for name in later) == (
            ["ledger", "request"] if place == "server" else ["ledger", "predictions", "request"]
        )
        kept = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {*later}
        assert kept == {name for name, at in table if at in here}, place


def test_logs_are_where_the_page_on_visibility_says(walked: Walk) -> None:
    rows = VISIBILITY.partition("| file in a startup kit |")[2]
    named = re.findall(r"^\| `([\w.]+)` \|", rows, re.MULTILINE)
    assert named == ["log.txt", "audit.log", "console.txt", "runs"]
    for place in ("server", *SITES):
        startup_kit = walked.folder / "startup_kits" / place
        assert [name for name in named if not (startup_kit / name).exists()] == []
        logs = {path.name for path in startup_kit.iterdir() if path.suffix in (".txt", ".log")}
        assert logs == {*named} - {"runs"}


def test_nothing_is_sent_that_the_page_on_visibility_has_not_in_its_tables(walked: Walk) -> None:
    content: dict[str, Any] = {
        **participant.MESSAGES, **train.MESSAGES, **OWNER_MESSAGES, **get_method("sapgnn").sends.messages
    }  # fmt: skip
    for place in ("server", *SITES):
        (folder,) = walked.runs(place)
        for ledger in folder.glob("ledger*.json"):
            entries = json.loads(ledger.read_text())["entries"]
            assert {entry["name"] for entry in entries} - {*content} == set()
            assert len(entries) > 5


def test_all_certificates_are_valid_for_as_long_as_the_page_says(walked: Walk) -> None:
    from cryptography import x509

    (days,) = re.findall(r"are valid for (\d+) days", PAGE)
    files = [path for path in walked.made if path.suffix in (".crt", ".pem")]
    assert len(files) == 2 * (2 + len(SITES))
    for path in files:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        valid = found.not_valid_after_utc - found.not_valid_before_utc
        # None outlives the authority's own, which was made a moment before.
        assert round(valid / timedelta(days=1)) == int(days), path


def test_no_startup_kits_certificates_rules_or_project_change_while_it_is_used(walked: Walk) -> None:
    """So that a container may mount them for reading only."""
    assert len(walked.made) > 40
    assert unchanging(walked.folder / "startup_kits") == walked.made


def test_the_example_writes_the_description_that_the_page_shows(tmp_path: Path) -> None:
    script = ROOT / "examples/shared_customers/make_data.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    (shown,) = [block.text for block in walk() if block.mark.endswith("bank.yaml")]
    assert {(tmp_path / name / "bank.yaml").read_text() for name in SITES} == {shown}


# ---- what the pages say of rules and limits ----------------------------------------------------------------


def test_the_times_on_the_page_are_those_of_a_project_that_names_none() -> None:
    (block,) = [block for block in every_block("deployment.md") if block.mark == "file: timing.yaml"]
    shown: Mapping[str, float] = yaml.safe_load(block.text)["timing"]
    assert Timing(**shown) == Timing()


def test_the_page_on_visibility_lists_the_coordinator_s_rights_and_a_job_s_classes_and_no_other() -> None:
    (rights,) = re.findall(r"has these rights and no others: (.*?)\. Not among", VISIBILITY, re.DOTALL)
    assert tuple(re.findall(r"`(\w+)`", rights)) == rules.RIGHTS
    (classes,) = re.findall(r"It may name four classes: (.*?)\. FLARE", VISIBILITY, re.DOTALL)
    names = re.findall(r"`([\w.]+)`", classes)
    assert len(names) == len(rules.ALLOWED_CLASSES) == 4
    assert all(full.endswith(name) for full, name in zip(rules.ALLOWED_CLASSES, names, strict=True))


def test_the_service_on_the_page_starts_a_command_of_graphfed() -> None:
    (unit,) = [b.text for b in every_block("deployment.md") if b.text.startswith("[Unit]")]
    (command,) = re.findall(r"^ExecStart=\S+/graphfed (.*)$", unit, re.MULTILINE)
    parse(shlex.split(command))
    (writable,) = re.findall(r"^ReadWritePaths=(.*)$", unit, re.MULTILINE)
    assert shlex.split(command)[2] == writable
