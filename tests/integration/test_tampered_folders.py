"""Whatever somebody writes into the folder of a run, a command that reads it works, or refuses it with exit
code 2 and one line that names the file: never a traceback.

Every JSON file of every kind of folder is tampered with, as a whole and key by key, and every command that
opens the file is run on the result. Which commands those are is observed, not listed: a hook records the
files that each command opens in an untouched folder."""

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_files import NO_FILE, no_wait, replaced

from graphfed.cli import main

pytestmark = pytest.mark.slow

#: JSON values of the wrong type, or that no program writes, as they stand in a file.
VALUES = {
    "null": "null",
    "an empty list": "[]",
    "an empty object": "{}",
    "text": '"\\u001b[31mx[/b]"',
    "true": "true",
    "a negative number": "-1",
    "a fraction": "0.5",
    "an integer of 400 digits": "9" * 400,
    "an infinity": "1e999",
    "NaN": "NaN",
    "a nested object": '{"a": [null, {"b": []}]}',
    "900 levels": "[" * 900 + "]" * 900,
    "100000 levels": "[" * 100_000,
    "a text of 100000 characters": f'"{"x" * 100_000}"',
}
#: What is done with a key.
CHANGES = ["removed", "renamed", *VALUES]
#: The most seconds of a command, and the most characters of its message.
SECONDS, LONGEST = 120, 700
#: Commands by kind of folder. FOLDER is tampered with, OTHER is not.
COMMANDS = {
    "run": (
        "report FOLDER",
        "report FOLDER OTHER --out comparison.html",
        "resume FOLDER",
        "predict FOLDER --out predictions.csv",
        "audit FOLDER",
    ),
    "open": ("resume FOLDER --no-progress", "report FOLDER"),
    "comparison": ("report FOLDER", "resume FOLDER"),
    "open-comparison": ("resume FOLDER --no-progress",),
    "sweep": ("resume FOLDER",),
    "open-sweep": ("resume FOLDER --no-progress",),
    "sensors": ("report FOLDER",),
}
#: The files of each kind of folder whose tampering is not tested with another kind.
FILES = {
    "run": ("manifest.json", "overview.json", "metrics.jsonl", "ledger.json", "result.json", "audit.json"),
    "open": ("manifest.json", "checkpoint/round-00000003/local.json"),
    "comparison": ("manifest.json", "comparison.json"),
    "open-comparison": ("manifest.json",),
    "sweep": ("sweep.json",),
    "open-sweep": ("manifest.json", "trials/0001.json"),
    "sensors": ("manifest.json", "overview.json", "result.json"),
}
Case = tuple[str, str, tuple[str | int, ...], str]


def write_data() -> None:
    nodes = [
        f"v{i},{'xyz'[i % 3]},{i % 5},{'ab'[i % 2]},{['train', 'val', 'test'][i // 3 % 3]}" for i in range(24)
    ]
    Path("nodes.csv").write_text("\n".join(["id,client,age,label,split", *nodes]) + "\n")
    Path("edges.csv").write_text(
        "\n".join(["source,target", *(f"v{i},v{(5 * i + 3) % 24}" for i in range(24))])
    )
    Path("d.yaml").write_text("nodes: nodes.csv\nedges: edges.csv\n")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with an untouched folder of every kind, and one more run."""
    place = tmp_path_factory.mktemp("good")
    before = Path.cwd()
    os.chdir(place)
    write_data()
    common = ["--data", "d.yaml", "--threads", "1", "--no-progress"]
    assert main(["run", "fedgcn", *common, "--rounds", "3", "--checkpoint-every", "0", "--out", "run"]) == 0
    assert main(["run", "fedavg", *common, "--rounds", "1", "--out", "other"]) == 0
    shutil.copytree("run", "open")
    for name in ("result.json", "metrics.jsonl", "model.safetensors", "predictions.parquet", "ledger.json"):
        Path("open", name).unlink()
    assert main(["audit", "run"]) == 0
    assert main(["compare", "fedavg", *common, "--seeds", "0,1", "--rounds", "1", "--out", "comparison"]) == 0
    shutil.copytree("comparison", "open-comparison")
    Path("open-comparison/comparison.json").unlink()
    grid = ["--grid", "lr=0.1,0.5", "--seeds", "0", "--rounds", "1"]
    assert main(["sweep", "fedavg", *common, *grid, "--out", "sweep"]) == 0
    shutil.copytree("sweep", "open-sweep")
    Path("open-sweep/sweep.json").unlink()
    forecast = ["run", "last_value", "--data", "roads", "--threads", "1", "--no-progress", "--out", "sensors"]
    assert main(forecast) == 0
    yield place
    os.chdir(before)


# ---- which commands open which files -----------------------------------------------------------------------

#: What is recorded, while something is.
_records: list[list[str]] = []


def _record(event: str, arguments: tuple[Any, ...]) -> None:
    """What is opened, and what is replaced by a new file."""
    if _records and event in ("open", "os.rename"):
        path = arguments[event == "os.rename"]
        if isinstance(path, str | os.PathLike):
            _records[-1].append(os.path.realpath(path))


def copy_of(good: Path, kind: str) -> Path:
    """A fresh copy of an untouched folder, in the present folder. Files are linked: graphfed replaces whole
    files and writes into none."""
    shutil.rmtree(kind, ignore_errors=True)
    shutil.copytree(good / kind, kind, copy_function=os.link)
    return Path(kind)


def run_command(command: str, good: Path, kind: str) -> int:
    for left in ("events", "predictions.csv", "comparison.html"):
        shutil.rmtree(left, ignore_errors=True)
        Path(left).unlink(missing_ok=True)
    words = {"FOLDER": kind, "OTHER": str(good / "other")}
    return main([words.get(word, word) for word in command.split()])


@pytest.fixture(scope="module")
def readers(good: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[str]]:
    """The commands that open or replace a file of a kind of folder."""
    sys.addaudithook(_record)
    os.chdir(tmp_path_factory.mktemp("observed"))
    found: dict[tuple[str, str], list[str]] = {}
    for kind, commands in COMMANDS.items():
        for command in commands:
            folder = copy_of(good, kind)
            _records.append([])
            run_command(command, good, kind)
            opened = set(_records.pop())
            for path in sorted((good / kind).rglob("*")):
                name = path.relative_to(good / kind)
                if path.is_file() and str(folder.resolve() / name) in opened:
                    found.setdefault((kind, str(name)), []).append(command)
    return found


# ---- tampering ---------------------------------------------------------------------------------------------


def paths_in(value: Any, depth: int) -> Iterator[tuple[str | int, ...]]:
    """Every key of an object and the first item of a list, and those in them, down to a depth."""
    items = (
        value.items()
        if isinstance(value, dict)
        else list(enumerate(value))[:1]
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        yield (key,)
        if depth > 1:
            yield from ((key, *path) for path in paths_in(item, depth - 1))


def tampered(text: str, path: tuple[str | int, ...], change: str) -> bytes:
    """The text of a file after a change to what is at a path; () is the whole file."""
    if not path:
        whole = {"truncated": text[: len(text) // 2], "nothing": "", "not UTF-8": None}
        raw = whole[change] if change in whole else VALUES[change]
        return b"\xff\xfe" if raw is None else raw.encode()
    content = json.loads(text)
    above = content
    for key in path[:-1]:
        above = above[key]
    if change == "removed":
        del above[path[-1]]
        return json.dumps(content).encode()
    if change == "renamed":
        renamed = f"{path[-1]}\x1b[31m" * (1 if len(path) % 2 else 1000)
        if isinstance(above, dict):
            above[renamed] = above.pop(path[-1])
        return json.dumps(content).encode()
    above[path[-1]] = "@@@"
    return json.dumps(content).replace('"@@@"', VALUES[change]).encode()


def text_of(good: Path, kind: str, name: str) -> str:
    return (good / kind / name).read_text()


def cases(good: Path, *, every: bool) -> Iterator[Case]:
    """What is tampered with: kind of folder, file, path in it, change. every: each change of the whole file
    and at each path, else some of the whole file, and at each path the next one in turn."""
    turn = itertools.cycle(CHANGES)
    whole = ["truncated", "nothing", "not UTF-8", "an empty list", "null", "100000 levels"]
    for kind, names in FILES.items():
        for name in names:
            changes = [*whole[:3], *VALUES] if every else whole
            yield from ((kind, name, (), change) for change in changes)
            text = text_of(good, kind, name)
            content = json.loads(text.splitlines()[0] if name.endswith("jsonl") else text)
            for path in paths_in(content, 5 if every else 1 + (name == "result.json")):
                changes = CHANGES if every else [next(turn)]
                yield from ((kind, name, path, change) for change in changes)


def faults_of(case: Case, good: Path, commands: list[str], capsys: Any) -> Iterator[str]:
    """What goes wrong in commands on a folder after a change."""
    kind, name, path, change = case
    original = text_of(good, kind, name)
    if name.endswith("jsonl"):
        first, *rest = original.splitlines(keepends=True)
        content = tampered(first, path, change) + b"\n" + "".join(rest).encode()
    else:
        content = tampered(original, path, change)
    for command in commands:
        file = Path(kind, name)
        if command == commands[0] or kind.startswith("open"):
            copy_of(good, kind)
            file.unlink()
            file.write_bytes(content)
        label = f"{kind}/{name} {'.'.join(map(str, path))}: {change}: {command}"
        try:
            with no_wait(SECONDS):
                code = run_command(command, good, kind)
        except BaseException as error:
            yield f"{label}: {type(error).__name__}: {error}"[:300]
            capsys.readouterr()
            continue
        out, err = capsys.readouterr()
        last = err.splitlines()[-1] if err else ""
        if code == 2 and not (last.startswith("error: ") and kind in last):
            yield f"{label}: neither the file nor its folder is named: {last[:200]}"
        elif code not in (0, 2):
            yield f"{label}: exit code {code}: {last[:200]}"
        elif len(last) > LONGEST:
            yield f"{label}: a message of {len(last)} characters: {last[:200]}"
        elif "\x1b" in out + err:
            yield f"{label}: a control character is printed"


def check_all(good: Path, readers: Any, capsys: Any, *, every: bool) -> int:
    """How many folders were tampered with; AssertionError where something went wrong with one. every: each is
    read by all commands that open the file, else after a change in the file by the next of them in turn."""
    every_case = list(cases(good, every=every))
    wrong: list[str] = []
    for number, case in enumerate(every_case):
        commands = readers[case[:2]]
        if case[2] and not every:
            commands = [commands[number % len(commands)]]
        wrong += faults_of(case, good, commands, capsys)
    assert not wrong, f"{len(wrong)} faults of {len(every_case)} folders:\n" + "\n".join(wrong)
    return len(every_case)


def test_every_file_is_opened_by_some_command(readers: Any) -> None:
    assert readers.keys() >= {(kind, name) for kind, names in FILES.items() for name in names}


@pytest.mark.parametrize(
    ("every", "least"), [(False, 278), pytest.param(True, 279, marks=pytest.mark.on_demand)]
)
def test_no_tampered_folder_ends_a_command_with_a_traceback(
    every: bool,
    least: int,
    good: Path,
    readers: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """every: with any key tampered in any way, more folders than the chosen ones."""
    monkeypatch.chdir(tmp_path)
    assert check_all(good, readers, capsys, every=every) >= least


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.on_demand)])
def test_what_is_no_regular_file_in_a_folder_is_refused_at_once(
    every: bool,
    good: Path,
    readers: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of every file, JSON or not, of the folder of a run, an unfinished run and a forecast: a pipe, for which
    a careless program waits, and another kind in turn; every: each kind."""
    monkeypatch.chdir(tmp_path)
    pipe, *others = NO_FILE
    turn = itertools.cycle(others)
    wrong = []
    for (kind, name), commands in readers.items():
        if kind not in ("run", "open", "sensors"):
            continue
        for command in commands:
            for kind_of_file in NO_FILE if every else (pipe, next(turn)):
                copy_of(good, kind)
                label = f"{kind}/{name} is {kind_of_file}: {command}"
                try:
                    with replaced(Path(kind, name), kind_of_file), no_wait(SECONDS):
                        code = run_command(command, good, kind)
                except BaseException as error:
                    wrong.append(f"{label}: {type(error).__name__}: {error}"[:300])
                    capsys.readouterr()
                    continue
                last = (capsys.readouterr().err.splitlines() or [""])[-1]
                # A folder where a report is written is no input: it is a disk error.
                fine = code in (0, 2) or (code == 1 and "could not be written" in last)
                if not fine or len(last) > LONGEST:
                    wrong.append(f"{label}: exit code {code}: {last[:200]}")
    assert not wrong, "\n".join(wrong)


def test_an_audit_reads_the_folder_before_the_data(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data may take minutes to load."""
    monkeypatch.chdir(tmp_path)

    def load(*_: object, **__: object) -> None:
        raise AssertionError("the data was loaded")

    monkeypatch.setattr("graphfed.audit.run.reopen", load)
    for name, content in {"result.json": b"{}", "manifest.json": b"{}"}.items():
        folder = copy_of(good, "run")
        (folder / name).unlink()
        (folder / name).write_bytes(content)
        assert main(["audit", str(folder)]) == 2
        assert f"{name} is damaged" in capsys.readouterr().err
    (copy_of(good, "run") / "result.json").unlink()
    assert main(["audit", "run"]) == 2
    assert "has not ended" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["audit", "predict"])
def test_a_folder_makes_no_command_download_data(
    command: str,
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A manifest from somebody else names what it likes; without a network the download takes 40 seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRAPHFED_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked: list[object] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *given, **_: asked.append(given))
    folder = copy_of(good, "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["config"] |= {"data": "cora", "data_source": "cora", "data_options": {}}
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert main([command, str(folder)]) == 2
    assert "it was not downloaded before ('graphfed data inspect cora' does)" in capsys.readouterr().err
    assert asked == []


@pytest.mark.parametrize(
    ("kind", "name", "rounds"),
    [("run", "ledger.json", 4), ("run", "result.json", 10**12), ("sensors", "ledger.json", 999_999_999)],
)
def test_a_report_refuses_a_round_that_the_run_did_not_have(
    kind: str,
    name: str,
    rounds: int,
    good: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = copy_of(good, kind)
    content = json.loads((folder / name).read_text())
    if name == "result.json":
        content["rounds"] = rounds
    else:
        content["entries"][0]["rounds"][str(rounds)] = 1
    (folder / name).unlink()
    (folder / name).write_text(json.dumps(content))
    assert main(["report", kind]) == 2
    assert f"{kind} is damaged: result.json has" in capsys.readouterr().err


def test_precision_and_recall_of_classes_are_checked_in_a_result(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = copy_of(good, "run")
    content = json.loads((folder / "result.json").read_text())
    scores = content["details"]["test_classes"][0]
    scores["re\x1b[31mcall"] = scores.pop("recall")
    (folder / "result.json").unlink()
    (folder / "result.json").write_text(json.dumps(content))
    assert main(["report", str(folder)]) == 2
    assert "details.test_classes.0 has no 'recall'" in capsys.readouterr().err
