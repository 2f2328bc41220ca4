"""A finished run that is extended ends as a run with so many rounds from the start, or is not extended."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphfed
from graphfed.cli import main
from graphfed.errors import InputError
from graphfed.files import JsonObject, read_tensors
from graphfed.runs.result import Result

SMALL = {"data": "social", "settings": {"data.num_nodes": 80, "data.features": 16}, "threads": 1}


def content(folder: Path) -> tuple[dict[str, np.ndarray], JsonObject, list[JsonObject], list[JsonObject]]:
    """Weights, result, history and ledger, without what measures time. A control message that said to stop
    has another length than one that did not."""
    result = json.loads((folder / "result.json").read_text())
    del result["bytes"]["other_phases"]["control"]
    for key in ("seconds", "peak_rss_mb"):
        del result[key]
    history = [
        {**json.loads(line), "seconds": 0} for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    ledger = json.loads((folder / "ledger.json").read_text())["entries"]
    return (
        read_tensors(folder / "model.safetensors")[0],
        result,
        history,
        [entry for entry in ledger if entry["phase"] != "control"],
    )


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "fedavg", "clients": 3},
        # State that the next round needs: kept moments, absent clients, rounds without evaluation.
        {"method": "fedavg", "clients": 4, "rule": "scaffold", "optimizer": "sgd", "fraction": 0.5},
        {"method": "fedadam", "clients": 3, "client_state": "keep", "eval_every": 2},
        {"method": "isolated", "clients": 3},
        {"method": "lumos", "noise_seed": 1},
        pytest.param({"method": "fedgcn", "clients": 3, "runtime": "processes"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_an_extended_run_is_the_run_with_all_rounds_from_the_start(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    asked = {**SMALL, **asked}
    graphfed.run(**asked, rounds=2, out=tmp_path / "extended")
    (tmp_path / "extended" / "report.html").write_text("of two rounds")
    graphfed.resume(tmp_path / "extended", rounds=4)
    graphfed.run(**asked, rounds=4, out=tmp_path / "whole")
    one, other = content(tmp_path / "extended"), content(tmp_path / "whole")
    assert one[0].keys() == other[0].keys()
    for name, array in one[0].items():
        assert array.tobytes() == other[0][name].tobytes(), name
    assert one[1:] == other[1:]
    assert {path.name for path in (tmp_path / "extended").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }
    assert Result.read(tmp_path / "extended").rounds == 4


def test_an_extension_that_is_interrupted_goes_on_and_a_run_is_extended_more_than_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"method": "fedavg", "clients": 3, **SMALL}
    folder = tmp_path / "run"
    graphfed.run(**asked, rounds=1, out=folder)
    graphfed.resume(folder, rounds=2)
    with monkeypatch.context() as patch:

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr("graphfed.runs.reopen.go_on", interrupted)
        with pytest.raises(KeyboardInterrupt):
            graphfed.resume(folder, rounds=4)
    assert not (folder / "result.json").exists()
    assert main(["resume", str(folder), "--no-progress", "--no-report"]) == 0
    graphfed.run(**asked, rounds=4, out=tmp_path / "whole")
    assert content(folder)[1:] == content(tmp_path / "whole")[1:]


@pytest.mark.parametrize(
    ("asked", "rounds", "message"),
    [
        ({}, 2, "it has 2 rounds already"),
        ({}, "many", "rounds='many' cannot be used: expected a whole number"),
        ({"rounds": 9, "patience": 1, "lr": 1e-12}, 20, "stopped by itself after round 2"),
        ({"rounds": 3, "eval_every": 2}, 20, "round 3 was evaluated only because it was the last one"),
        ({"method": "prediction_release", "clients": None}, 20, "after half of the planned rounds"),
    ],
)
def test_a_run_that_would_differ_from_one_with_all_rounds_is_not_extended(
    asked: dict[str, Any], rounds: Any, message: str, tmp_path: Path
) -> None:
    graphfed.run(**{"method": "fedavg", "clients": 3, "rounds": 2, **SMALL, **asked}, out=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    with pytest.raises(InputError, match=message):
        graphfed.resume(tmp_path / "run", rounds=rounds)
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()} == before


def test_a_folder_of_several_runs_and_one_without_a_checkpoint_are_not_extended(tmp_path: Path) -> None:
    graphfed.compare(["fedavg"], clients=3, rounds=1, seeds=[0], out=tmp_path / "table", **SMALL)
    with pytest.raises(InputError, match="no single run on this machine"):
        graphfed.resume(tmp_path / "table", rounds=2)
    run = tmp_path / "table/fedavg-seed0"
    for file in (run / "checkpoint").rglob("*.json"):
        file.unlink()
    with pytest.raises(InputError, match="its checkpoint is not there"):
        graphfed.resume(run, rounds=2)
    (run / "result.json").unlink()
    with pytest.raises(InputError, match="has not ended; resume it first"):
        graphfed.resume(run, rounds=2)
