"""A sweep chooses on validation alone, shows one test score, and goes on where it stopped."""

import io
import json
import signal
from pathlib import Path
from typing import Any

import pytest

import graphfed
from graphfed.errors import GraphfedError, InputError
from graphfed.runs.checkpoint import newest_round
from graphfed.runs.run import Result
from graphfed.runs.train import Event
from graphfed.runtime.interrupts import Interrupted
from graphfed.studies import plan
from graphfed.studies import sweep as module
from graphfed.studies.sweep import Sweep, sweep
from graphfed.tasks.run_config import RunConfig

GRID = {"lr": [0.5, 1e-4], "hidden": [4, 8, 16]}
COMMON: dict[str, Any] = {"clients": 3, "rounds": 3, "threads": 1}


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return sweep("fedavg", grid=GRID, seeds=(0, 1), out=tmp_path_factory.mktemp("swept") / "s", **COMMON)


def shown(finished: Sweep) -> str:
    from rich.console import Console

    screen = Console(file=io.StringIO(), width=200)
    screen.print(finished.table())
    return screen.file.getvalue()


def test_every_combination_is_tried_with_every_seed(tried: Sweep) -> None:
    assert [t["settings"] for t in tried.trials] == [
        {"lr": lr, "hidden": hidden} for lr in GRID["lr"] for hidden in GRID["hidden"]
    ]
    assert all(len(t["val"]["accuracy"]["values"]) == 2 for t in tried.trials)


def test_the_chosen_settings_have_the_highest_mean_validation_accuracy(tried: Sweep) -> None:
    means = [t["val"]["accuracy"]["mean"] for t in tried.trials]
    assert tried.chosen["trial"] == 1 + means.index(max(means))
    # A learning rate of 1e-4 learns nothing in three rounds.
    assert tried.chosen["settings"]["lr"] == 0.5


def test_a_trial_has_the_validation_of_the_single_run_and_the_chosen_one_its_test(tried: Sweep) -> None:
    for seed in (0, 1):
        alone = graphfed.run("fedavg", seed=seed, settings=tried.chosen["settings"], out=False, **COMMON)
        assert tried.chosen["val"]["accuracy"]["values"][seed] == alone.val["accuracy"]
        assert tried.chosen["test"]["accuracy"]["values"][seed] == alone.test["accuracy"]


def test_no_file_of_a_sweep_holds_the_test_metrics_of_a_trial_that_was_not_chosen(tried: Sweep) -> None:
    assert tried.folder is not None
    files = sorted((tried.folder / "trials").iterdir())
    content = json.loads((tried.folder / "sweep.json").read_text())
    assert [json.loads(path.read_text()) for path in files] == content["trials"]
    assert [path.name for path in files] == [f"000{number}.json" for number in range(1, 7)]
    assert all("test" not in json.dumps(trial) for trial in content["trials"])
    assert {p.name for p in tried.folder.iterdir()} == {
        "manifest.json", "sweep.json", "trials", "chosen-seed0", "chosen-seed1"
    }  # fmt: skip
    assert Result.read(tried.folder / "chosen-seed1").test["accuracy"] is not None


def test_the_screen_is_sorted_by_validation_and_has_one_test_score(tried: Sweep) -> None:
    text = shown(tried)
    assert text.count("test accuracy") == 1
    means = [trial["val"]["accuracy"]["mean"] for trial in tried.ranked()]
    assert means == sorted(means, reverse=True)
    rows = [line for line in text.splitlines() if line.startswith("│")]
    assert [int(row.split("│")[1]) for row in rows] == [trial["trial"] for trial in tried.ranked()]


def test_the_best_value_at_the_edge_of_the_grid_is_reported_and_one_inside_is_not() -> None:
    row = plan.Row("", {})
    tried = module.Plan(row, {"lr": [0.1, 0.5, 1.0], "backbone": ["gcn", "gat"]}, {}, None)
    assert module._edges(tried, {"lr": 0.5, "backbone": "gcn"}) == ()
    (warning,) = module._edges(tried, {"lr": 1.0, "backbone": "gcn"})
    assert "lr=1 is at the edge" in warning
    assert "a larger one" in warning
    assert module._edges(module.Plan(row, {"mask": [False, True]}, {}, None), {"mask": True}) == ()
    drawn = module.Plan(row, {}, {"lr": module._checked_range("lr", (0.01, 1.0, "log"))}, 3)
    assert module._edges(drawn, {"lr": 0.1}) == ()
    (warning,) = module._edges(drawn, {"lr": 0.0101})
    assert "a smaller one" in warning


def test_every_seed_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = []
    real = plan.load_inputs
    monkeypatch.setattr(
        plan, "load_inputs", lambda config, *rest: (seeds.append(config.seed), real(config, *rest))[1]
    )
    sweep("fedavg", grid={"lr": [0.1, 0.5]}, seeds=(3, 4), out=False, **{**COMMON, "rounds": 1})
    assert seeds == [3, 4]


@pytest.mark.parametrize("again", [pytest.param("the same command", marks=pytest.mark.slow), "resume"])
def test_a_stopped_sweep_runs_only_what_is_missing_and_ends_alike(
    again: str, tried: Sweep, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, done = plan.execute, []

    def count(config: Any, *args: Any, **kwargs: Any) -> Result:
        done.append(config.seed)
        if len(done) == 6:
            raise KeyboardInterrupt
        return real(config, *args, **kwargs)

    monkeypatch.setattr(plan, "execute", count)
    arguments: dict[str, Any] = {"grid": GRID, "seeds": (0, 1), "out": own_folder / "s", **COMMON}
    with pytest.raises(KeyboardInterrupt, match="graphfed resume"):
        sweep("fedavg", **arguments)
    assert len(list((own_folder / "s/trials").iterdir())) == 3
    ended = graphfed.resume(own_folder / "s") if again == "resume" else sweep("fedavg", **arguments)
    # Left were the second seed of the third trial, three trials and the chosen settings with two seeds each.
    assert len(done) == 6 + 1 + 6 + 2
    assert isinstance(ended, Sweep)
    assert [t["val"] for t in ended.trials] == [t["val"] for t in tried.trials]
    assert ended.chosen["test"] == tried.chosen["test"]
    # Once more: nothing is left to do.
    assert sweep("fedavg", **arguments).to_json() == ended.to_json()
    assert len(done) == 6 + 1 + 6 + 2


def test_a_trial_that_ctrl_c_stops_goes_on_from_its_checkpoint_and_leaves_no_test_metric(
    tried: Sweep, own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = plan.execute

    def stop_in_second_round(config: RunConfig, inputs: Any, *, on_event: Any, **more: Any) -> Result:
        def press_ctrl_c(event: Event) -> None:
            if (config.seed, event.phase, event.round) == (1, "train", 2):
                signal.raise_signal(signal.SIGINT)

        return real(config, inputs, on_event=press_ctrl_c, **more)

    with monkeypatch.context() as patch:
        patch.setattr(plan, "execute", stop_in_second_round)
        with pytest.raises(Interrupted, match="graphfed resume"):
            sweep("fedavg", grid=GRID, seeds=(0, 1), out=own_folder / "s", **COMMON)
    assert newest_round(own_folder / "s/trial0001-seed1", ["local"])[0] == 2
    assert list(own_folder.rglob("result.json")) == []
    ended = graphfed.resume(own_folder / "s")
    assert ended.trials[0]["val"] == tried.trials[0]["val"]
    assert list(own_folder.glob("s/trial0*")) == []


def test_a_trial_that_diverges_is_a_failed_row_and_all_of_them_are_an_error(own_folder: Path) -> None:
    finished = sweep(
        "fedavg", grid={"lr": [0.5, 1e30]}, seeds=(0,), out=own_folder / "s", **{**COMMON, "rounds": 2}
    )
    assert [bool(trial["failed"]) for trial in finished.trials] == [False, True]
    assert "failed" in shown(finished)
    with pytest.raises(GraphfedError, match="no trial gave finite predictions"):
        sweep("fedavg", grid={"lr": [1e30]}, seeds=(0,), out=False, **{**COMMON, "rounds": 2})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing varies"),
        ({"grid": {"lrr": [1]}}, "did you mean 'lr'"),
        ({"grid": {"lr": []}}, "has no value"),
        ({"grid": {"lr": "0.1"}}, "give a list of values"),
        ({"grid": {"lr": [0.1, 0.1]}}, "twice"),
        ({"grid": {"lr": [0.1, -1]}}, "lr=-1"),
        ({"grid": {"lr": [[1]]}}, "no number"),
        ({"grid": [1]}, "give lists"),
        ({"grid": {"partition.beta": [1]}}, "changes what is trained on"),
        ({"grid": {"lr": [0.1]}, "settings": {"lr": 0.2}}, "fixed and varied"),
        ({"grid": {"rounds": [1, 2]}}, "fixed and varied"),
        ({"grid": {"lr": list(range(1, 200)), "hidden": list(range(1, 200))}}, "39601 combinations"),
        ({"ranges": {"lr": (0.1, 1)}}, "needs a search"),
        ({"grid": {"lr": [0.1]}, "ranges": {"lr": (0.1, 1)}, "trials": 2}, "in the grid and has a range"),
        ({"ranges": {"lr": (1, 0.1)}, "trials": 2}, "below the upper one"),
        ({"ranges": {"lr": (0, 1, "log")}, "trials": 2}, "above 0"),
        ({"ranges": {"lr": (0.1,)}, "trials": 2}, "range lr=0.1 needs two ends"),
        ({"ranges": {"lr": 3}, "trials": 2}, "cannot be read"),
        ({"ranges": {"lr": (0.1, 1)}, "trials": 0}, "trials=0"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_is_written(
    arguments: dict[str, Any], message: str, own_folder: Path
) -> None:
    with pytest.raises(InputError) as refusal:
        sweep("fedavg", **{**COMMON, **arguments})
    assert message in str(refusal.value)
    assert list(own_folder.iterdir()) == []


def test_another_sweeps_folder_and_a_foreign_trial_are_refused(own_folder: Path) -> None:
    arguments: dict[str, Any] = {"seeds": (0,), "out": own_folder / "s", **{**COMMON, "rounds": 1}}
    sweep("fedavg", grid={"lr": [0.1]}, **arguments)
    with pytest.raises(InputError, match="holds another run or sweep"):
        sweep("fedavg", grid={"lr": [0.2]}, **arguments)
    (own_folder / "s/sweep.json").unlink()
    trial = own_folder / "s/trials/0001.json"
    written = json.loads(trial.read_text())
    trial.write_text('{"settings": {"lr": 0.1}}')
    with pytest.raises(InputError, match=r"0001\.json is damaged.*: it has no '"):
        sweep("fedavg", grid={"lr": [0.1]}, **arguments)
    trial.write_text(json.dumps({**written, "settings": {"lr": 7}}))
    with pytest.raises(InputError, match="is not this trial"):
        sweep("fedavg", grid={"lr": [0.1]}, **arguments)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("grid", {"lr": [[0.1]]}, "is no number, text or None"),
        ("grid", {"learning": [0.1]}, "has no setting 'learning'"),
        ("ranges", {"lr": [1, 0.5, False]}, "below the upper one"),
        ("trials", 3, "lr is in the grid and has a range"),
    ],
)
def test_a_manifest_with_a_damaged_plan_is_refused_by_name(
    key: str, value: Any, message: str, own_folder: Path
) -> None:
    sweep("fedavg", grid={"lr": [0.1]}, seeds=(0,), out=own_folder / "s", **{**COMMON, "rounds": 1})
    (own_folder / "s/sweep.json").unlink()
    path = own_folder / "s/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["sweep"][key] = value
    if key == "trials":
        manifest["sweep"]["ranges"] = {"lr": [0.1, 0.5, False]}
    path.write_text(json.dumps(manifest))
    with pytest.raises(InputError, match=r"manifest\.json is damaged: ") as refusal:
        graphfed.resume(own_folder / "s")
    assert message in str(refusal.value)


def test_a_search_is_seeded_stays_in_its_ranges_and_can_be_resumed(
    own_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: dict[str, Any] = {
        "grid": {"optimizer": ["sgd", "adam"]},
        "ranges": {"lr": (0.01, 1.0, "log"), "hidden": (4, 8)},
        "trials": 12,
        "seeds": (0,),
        **{**COMMON, "rounds": 1},
    }
    whole = sweep("fedavg", out=False, **arguments)
    for trial in whole.trials:
        assert 0.01 <= trial["settings"]["lr"] <= 1.0
        assert trial["settings"]["hidden"] in range(4, 9)
    real, done = plan.execute, []

    def stop_at_eleven(config: Any, *args: Any, **kwargs: Any) -> Result:
        done.append(config.seed)
        if len(done) == 11:
            raise KeyboardInterrupt
        return real(config, *args, **kwargs)

    monkeypatch.setattr(plan, "execute", stop_at_eleven)
    with pytest.raises(KeyboardInterrupt):
        sweep("fedavg", out=own_folder / "s", **arguments)
    resumed = graphfed.resume(own_folder / "s")
    assert isinstance(resumed, Sweep)
    assert len(done) == 12 + 1 + 1  # one was stopped, and one is of the chosen settings
    # The sampler starts to use what it was given after ten trials.
    assert [t["settings"] for t in resumed.trials] == [t["settings"] for t in whole.trials]


def test_the_command_sweeps_prints_the_table_and_reads_its_options(
    own_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from graphfed.cli import main

    arguments = [
        "sweep",
        "fedavg",
        "--grid",
        "lr=0.1,0.5",
        "--clients",
        "2",
        "--rounds",
        "1",
        "--seeds",
        "0",
        "--out",
        "s",
        "--no-progress",
    ]
    assert main(arguments) == 0
    assert "chosen on validation" in " ".join(capsys.readouterr().out.split())
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == json.loads(
        Path("s/sweep.json").read_text()
    )
    for wrong in (["--grid", "lr"], ["--grid", "lr=1,2"], ["--range", "lr"], ["--optuna", "x"]):
        assert main([*arguments, *wrong]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")
