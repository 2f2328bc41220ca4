"""Trackers get every round once, however often they are brought up to date, with the real libraries."""

import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import pytest

import graphfed
from graphfed.errors import InputError
from graphfed.runs.run import Result
from graphfed.studies.track import read_runs, track

METRICS = ("accuracy", "macro_f1", "balanced_accuracy", "loss")


def tensorboard_values(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar that TensorBoard's own reader finds, by tag: (step, value), as written."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture
def tensorboard() -> None:
    pytest.importorskip("tensorboard", reason="the extra 'track' (TensorBoard) is not installed")


@pytest.mark.usefixtures("tensorboard")
def test_tensorboard_gets_every_round_and_the_test_metrics_once(finished: Result, tmp_path: Path) -> None:
    assert finished.folder is not None
    ((run, is_new),) = track([finished.folder], "tensorboard", out=tmp_path / "tb")
    # Three rounds of four metrics, bytes and seconds; nine test metrics.
    assert (len(run.points), is_new) == (3 * 6 + 9, True)
    ((_, is_new),) = track([finished.folder], "tensorboard", out=tmp_path / "tb")
    assert not is_new
    values = tensorboard_values(tmp_path / "tb" / run.name)
    lines = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    for metric in METRICS:
        expected = [(line["round"], pytest.approx(line["val"][metric])) for line in lines]
        assert values[f"val/{metric}"] == expected
        assert values[f"test/{metric}"] == [(finished.best_round, pytest.approx(finished.test[metric]))]


@pytest.mark.usefixtures("tensorboard")
def test_a_run_that_was_written_in_part_is_written_again(finished: Result, tmp_path: Path) -> None:
    assert finished.folder is not None
    (run,) = read_runs([finished.folder])
    (tmp_path / f"{run.name}.partial").mkdir()
    assert [is_new for _, is_new in track([finished.folder], "tensorboard", out=tmp_path)] == [True]
    assert [path.name for path in tmp_path.iterdir()] == [run.name]


def test_runs_that_have_not_ended_are_left_out(finished: Result, own_folder: Path) -> None:
    assert finished.folder is not None
    for name in ("table/ended", "table/begun", "begun"):
        shutil.copytree(finished.folder, name)
    for name in ("table/begun", "begun"):
        Path(name, "result.json").unlink()
    Path("table/manifest.json").write_text('{"reproduce": {}}')
    assert [run.folder.name for run in read_runs(["table"])] == ["ended"]
    with pytest.raises(InputError, match="no run in begun has ended; go on with it: graphfed resume begun"):
        read_runs(["begun"])


def test_a_copy_of_a_folder_is_the_same_run_and_another_run_is_not(finished: Result, tmp_path: Path) -> None:
    assert finished.folder is not None
    shutil.copytree(finished.folder, tmp_path / "run")
    graphfed.run("fedavg", clients=4, rounds=3, seed=2, threads=1, out=tmp_path / "other")
    original, copy, other = read_runs([finished.folder, tmp_path / "run", tmp_path / "other"])
    assert original.id == copy.id != other.id


def test_a_folder_of_several_runs_stands_for_all_of_them(own_folder: Path) -> None:
    graphfed.compare(["fedavg"], clients=2, rounds=1, seeds=(0, 1), threads=1, out="table")
    assert len(read_runs(["table"])) == 6
    graphfed.sweep("fedavg", grid={"lr": [0.1, 0.5]}, clients=2, rounds=1, seeds=(0,), out="swept")
    assert [run.folder.name for run in read_runs(["swept"])] == ["chosen-seed0"]


def test_params_are_the_config_and_tags_the_hashes(finished: Result) -> None:
    assert finished.folder is not None
    (run,) = read_runs([finished.folder])
    assert run.params["training.rounds"] == 3
    assert run.params["partition"] == "label_dirichlet"
    assert run.tags["method"] == "fedavg"
    assert run.tags["hash.split"] == finished.hashes["split"]


@pytest.mark.slow
def test_mlflow_gets_every_round_once_with_params_tags_and_the_end(finished: Result, tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="the extra 'track' (MLflow) is not installed")
    assert finished.folder is not None
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own store warns of what its libraries will drop
        from mlflow.tracking import MlflowClient

        assert [is_new for _, is_new in track([finished.folder], "mlflow", uri=uri)] == [True]
        assert [is_new for _, is_new in track([finished.folder], "mlflow", uri=uri)] == [False]
        client = MlflowClient(tracking_uri=uri)
        (run,) = client.search_runs([client.get_experiment_by_name("graphfed").experiment_id])
        history = client.get_metric_history(run.info.run_id, "val/accuracy")
    assert run.info.status == "FINISHED"
    assert run.data.params["training.rounds"] == "3"
    assert run.data.tags["hash.data"] == finished.hashes["data"]
    assert run.data.metrics["test/accuracy"] == finished.test["accuracy"]
    assert [metric.step for metric in sorted(history, key=lambda m: m.step)] == [1, 2, 3]
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


@pytest.mark.parametrize(("to", "module"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_a_tracker_that_is_not_installed_is_named_with_the_command_that_installs_it(
    to: str, module: str, finished: Result, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    assert finished.folder is not None
    with pytest.raises(InputError, match=r"pip install '\.\[track\]'"):
        track([finished.folder], to, out=tmp_path / "tb", uri="sqlite:///x.db")
    assert not (tmp_path / "tb").exists()


def test_what_cannot_be_tracked_is_refused_in_one_line(
    finished: Result, own_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from graphfed.cli import main

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for arguments, message in (
        ([str(finished.folder), "--to", "tensorbord"], "did you mean 'tensorboard'"),
        ([str(finished.folder), "--to", "mlflow"], "give --uri"),
        (["nowhere", "--to", "tensorboard"], "there is no folder nowhere"),
    ):
        assert main(["track", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
        assert message in line
    assert list(own_folder.iterdir()) == []
