"""A run that is killed at any moment goes on to the bits of one that was never interrupted."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import graphfed
from graphfed.cli import main
from graphfed.files import read_tensors
from graphfed.runs import folder as files
from graphfed.runs.checkpoint import VERSION, newest_round

#: Of a run: long enough to be killed in the middle of it.
ROUNDS = 300
#: Kills of every method; of the third tier 20 in all on graphs.
KILLS = {"fedavg": 2, "cnfgnn": 1}
MANY_KILLS = {"fedavg": 7, "isolated": 7, "fedadam": 6, "cnfgnn": 3}
CASES = [
    *(pytest.param(*case, marks=pytest.mark.slow) for case in KILLS.items()),
    *(pytest.param(*case, marks=pytest.mark.on_demand) for case in MANY_KILLS.items()),
]
#: Of a run that forecasts: few windows of few sensors.
FORECASTING = [
    "data.sensors=4", "data.weeks=1", "lags=4", "horizon=3", "every=60", "hidden=8", "patience=none",
    "client_state=keep", "eval_every=2",
]  # fmt: skip


def command(arguments: list[str]) -> list[str]:
    return [sys.executable, "-c", f"import sys; from graphfed.cli import main; sys.exit(main({arguments!r}))"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(graphfed.__file__).parents[1])}


def found(folder: Path) -> dict[str, Any]:
    """What must not depend on interruptions: weights, predictions, metrics, and the ledger."""
    result = json.loads((folder / "result.json").read_text())
    arrays, _ = read_tensors(folder / "model.safetensors")
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": {name: array.tobytes() for name, array in arrays.items()},
        "predictions": (folder / "predictions.parquet").read_bytes(),
        **{key: result[key] for key in ("val", "test", "best_round", "rounds", "bytes", "privacy")},
        "details": {key: value for key, value in result["details"].items() if key.startswith("test")},
        "history": [{key: line[key] for key in ("round", "val", "bytes")} for line in history],
        "ledger": json.loads((folder / "ledger.json").read_text()),
    }


@pytest.mark.parametrize(("method", "moments"), CASES)
def test_a_run_killed_at_random_moments_ends_with_the_bits_of_an_uninterrupted_one(
    method: str, moments: int, tmp_path: Path
) -> None:
    """The moments are uniform over the time that the whole command takes, drawn from a fixed seed."""
    # Adam that is kept and clients that are absent: the state that is hardest to bring back.
    kept = ["optimizer=adam", "lr=0.01", "client_state=keep"]
    if method != "isolated":
        kept.append("fraction=0.5")
    options = ["--no-progress", "--checkpoint-every", "0"]
    if method == "cnfgnn":
        kept = FORECASTING
        options += ["--rounds", "60"]
    else:
        options += ["--rounds", str(ROUNDS), "--clients", "4"]
    options += [part for pair in kept for part in ("--set", pair)]
    began = time.monotonic()
    whole = tmp_path / "whole"
    subprocess.run(
        command(["run", method, *options, "--out", str(whole)]), env=environment(), check=True,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    took = time.monotonic() - began
    expected = found(whole)
    draw = random.Random(f"kill {method}")
    # Each run that is killed is resumed, and may be killed again.
    folder, killed = tmp_path / "killed", 0
    arguments = ["run", method, *options, "--out", str(folder)]
    while killed < moments:
        with subprocess.Popen(command(arguments), env=environment(), stdout=subprocess.DEVNULL) as process:
            try:
                process.wait(draw.uniform(0, took))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
        if process.returncode == -signal.SIGKILL:
            killed += 1
        else:
            assert process.returncode == 0
            assert found(folder) == expected
            folder = tmp_path / f"killed-{killed}"
        arguments = ["resume", str(folder), "--no-progress"]
        if not (folder / "manifest.json").exists():
            arguments = ["run", method, *options, "--out", str(folder)]
    done = subprocess.run(command(arguments), env=environment(), stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0
    assert found(folder) == expected


RUN = ["run", "fedavg", "--rounds", "4", "--clients", "2", "--no-progress", "--checkpoint-every", "0"]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def unfinished(name: str = "run") -> Path:
    """A run that was cut off after its last round."""
    assert main([*RUN, "--out", name]) == 0
    folder = Path(name)
    (folder / "result.json").unlink()
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        "cut short",
        "one byte",
        "no json",
        "not json",
        "another layout",
        "missing",
        "deep nesting",
        "a wrong type",
    ],
)
@pytest.mark.slow
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(
    damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--out", "whole"]) == 0
    folder = unfinished()
    older, newer = sorted((folder / "checkpoint").iterdir())
    tensors, described = newer / "local.safetensors", newer / "local.json"
    content = tensors.read_bytes()
    match damage:
        case "cut short":
            tensors.write_bytes(content[: len(content) // 2])
        case "one byte":
            tensors.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "no json":
            described.unlink()
        case "not json":
            described.write_text("{")
        case "deep nesting":
            described.write_text("[" * 100_000)
        case "a wrong type":
            described.write_text(json.dumps({**json.loads(described.read_text()), "history": [None]}))
        case "another layout":
            described.write_text(described.read_text().replace(f'"version": {VERSION}', '"version": 99'))
        case "missing":
            tensors.unlink()
    capsys.readouterr()
    assert main(["resume", "run", "--no-progress"]) == 0
    warned = capsys.readouterr().err
    assert warned.startswith(f"warning: {newer}: ")
    assert f"going back to round {int(older.name.removeprefix('round-'))}" in warned
    assert found(folder) == found(Path("whole"))


@pytest.mark.slow
def test_without_any_whole_checkpoint_a_run_starts_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--out", "whole"]) == 0
    folder = unfinished()
    for path in (folder / "checkpoint").glob("*/local.json"):
        path.write_text("")
    assert main(["resume", "run", "--no-progress"]) == 0
    assert "going back to the beginning" in capsys.readouterr().err
    assert found(folder) == found(Path("whole"))


@pytest.mark.slow
def test_a_checkpoint_counts_only_when_every_process_has_its_part(tmp_path: Path) -> None:
    arguments = [*RUN, "--runtime", "processes"]
    assert main([*arguments, "--out", "whole"]) == 0
    assert main([*arguments, "--out", "run"]) == 0
    Path("run/result.json").unlink()
    names = ["server", "worker0", "worker1"]
    assert newest_round(Path("run"), names) == (4, [])
    Path("run/checkpoint/round-00000004/worker1.json").unlink()
    assert newest_round(Path("run"), names)[0] == 3
    assert main(["resume", "run", "--no-progress"]) == 0
    assert found(Path("run")) == found(Path("whole"))


@pytest.mark.slow
def test_a_comparison_goes_on_with_the_runs_that_have_not_ended(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", "fedavg", "--rounds", "3", "--clients", "2", "--seeds", "0,1", "--no-progress"]
    assert main([*arguments, "--checkpoint-every", "0", "--out", "table"]) == 0
    whole = json.loads(Path("table/comparison.json").read_text())
    runs = [
        "fedavg-seed0",
        "fedavg-seed1",
        "central-seed0",
        "central-seed1",
        "isolated-seed0",
        "isolated-seed1",
    ]
    expected = {name: found(Path("table") / name) for name in runs}
    # As if killed during the second run, with one folder made and nothing in it but the lock.
    Path("table/comparison.json").unlink()
    Path("table/fedavg-seed1/result.json").unlink()
    for name in runs[2:]:
        for path in sorted(Path("table", name).rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
    Path("table/central-seed0", files.LOCK).touch()
    started = json.loads(Path("table/fedavg-seed0/manifest.json").read_text())["started"]
    assert main(["resume", "table", "--no-progress"]) == 0
    assert {name: found(Path("table") / name) for name in runs} == expected
    again = json.loads(Path("table/comparison.json").read_text())
    for row, before in zip(again["rows"], whole["rows"], strict=True):
        assert row["test"] == before["test"]
    assert json.loads(Path("table/fedavg-seed0/manifest.json").read_text())["started"] == started
    assert "resumed" in json.loads(Path("table/fedavg-seed1/manifest.json").read_text())


def test_what_has_ended_is_shown_again_and_not_touched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--out", "run"]) == 0
    shown = capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    assert main(["resume", "run"]) == 0
    assert capsys.readouterr().out == shown
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        ("rm run/manifest.json", "manifest.json cannot be read"),
        (
            "echo '[]' > run/manifest.json",
            "manifest.json is damaged, or of another version of graphfed: it must be an object",
        ),
        ('sed -i \'s/"data": "653b/"data": "ffff/\' run/manifest.json', "the data is not the one"),
        ('sed -i \'s/"method": "fedavg"/"method": "fedgvg"/\' run/manifest.json', "unknown method"),
    ],
)
@pytest.mark.slow
def test_a_folder_that_cannot_go_on_is_refused_in_one_line_and_stays_as_it_is(
    break_it: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    unfinished()
    subprocess.run(break_it, shell=True, check=True)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["resume", "run"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_a_disk_that_refuses_a_checkpoint_is_a_warning_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("graphfed.runs.checkpoint.write_tensors", full)
    assert main([*RUN, "--out", "run"]) == 0
    warned = capsys.readouterr().err.splitlines()
    assert warned[0] == (
        "warning: the checkpoint run/checkpoint/round-00000000 could not be written "
        "(No space left on device); training goes on, the newest checkpoint is none"
    )
    assert Path("run/result.json").exists()
