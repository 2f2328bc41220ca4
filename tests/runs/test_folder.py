"""The folder of a run is one program's, and says whether it has ended."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import graphfed
from graphfed.errors import GraphfedError, InputError
from graphfed.nn.sparse import SparseWeights
from graphfed.runs import folder as module
from graphfed.runs.folder import (
    LOCK,
    check_free,
    check_space,
    chosen_folder,
    default_folder,
    open_folder,
    plain,
    read_json,
    write_run,
)
from graphfed.runs.model_file import _loaded, weight_arrays
from graphfed.runs.run import Result
from graphfed.runtime.interrupts import Interrupted


def test_an_open_folder_is_locked_and_nothing_of_that_stays(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "run"
    with open_folder(target) as folder:
        (folder / "file").write_text("x")
        for resume in (False, True):
            with (
                pytest.raises(InputError, match=r"not empty|another graphfed"),
                open_folder(target, resume=resume),
            ):
                pytest.fail("two writers")
    assert [p.name for p in target.iterdir()] == ["file"]


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    """A program that is killed leaves the lock file, and nobody holds it."""
    code = (
        "import os, pathlib; from graphfed.runs.folder import open_folder\n"
        f"with open_folder(pathlib.Path({str(tmp_path / 'run')!r})): os._exit(9)"
    )
    found = {**os.environ, "PYTHONPATH": str(Path(graphfed.__file__).parents[1])}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=found).returncode == 9
    assert (tmp_path / "run" / LOCK).exists()
    with open_folder(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, InputError])
def test_a_failure_in_the_middle_leaves_nothing_that_is_not_worth_keeping(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    def write_and_fail(name: str, worth: bool) -> None:
        with open_folder(tmp_path / name, keep=lambda _: worth) as folder:
            (folder / "manifest.json").write_text("x")
            (folder / "checkpoint").mkdir()
            raise failure("stop")

    with pytest.raises(failure):
        write_and_fail("run", False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(failure):
        write_and_fail("run", True)
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["checkpoint", "manifest.json"]


def test_an_interruption_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match=r"graphfed resume .*run"), open_folder(tmp_path / "run"):
        raise KeyboardInterrupt


def test_a_disk_that_refuses_is_reported_with_the_folder_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    with pytest.raises(GraphfedError, match=r"run could not be written \(No space left") as failure:
        write_run(
            tmp_path / "run", method="fedavg", ledger={}, result={}, weights={}, history=[],
        )  # fmt: skip
    assert failure.value.exit_code == 1


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with open_folder(target) as folder:
        (folder / "file").write_text("x")
    with pytest.raises(InputError, match="is not empty"), open_folder(target):
        pass
    assert (target / "file").read_text() == "x"


@pytest.mark.parametrize("last", ["result.json", "comparison.json"])
def test_a_run_that_has_not_ended_is_named_with_the_command_that_goes_on(tmp_path: Path, last: str) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"has not ended: resume it \(graphfed resume"):
        check_free(tmp_path)
    (tmp_path / last).write_text("{}")
    with pytest.raises(InputError, match="is not empty"):
        check_free(tmp_path)


def test_a_disk_that_is_too_small_is_refused_before_the_work(tmp_path: Path) -> None:
    check_space(tmp_path, 1)
    with pytest.raises(InputError, match=r"MB free, and the files of this run need about 1000000000000 MB"):
        check_space(tmp_path, 10**18)


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is not a folder"):
        check_free(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be made"):
        check_free(tmp_path / "file" / "run")


@pytest.fixture
def odd_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with links beside it."""
    (tmp_path / "here").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("x")
    (tmp_path / "link").symlink_to("full")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../link", "is not empty"),
        ("../link/file", "is not a folder"),
        ("../loop/x", "cannot be made"),
        ("..", "is not empty"),
        ("x" * 300, "File name too long"),
        ("new/folders/" + "x" * 300, "File name too long"),
        ("/proc/x", "cannot be made"),
        ("bad\0name", "cannot be made"),
        ("bad\udcffname", "cannot be made"),
    ],
)
def test_a_name_that_cannot_become_a_folder_is_refused_before_the_work_and_leaves_nothing(
    name: str, message: str, odd_places: Path
) -> None:
    before = sorted(odd_places.rglob("*"))
    with pytest.raises(InputError) as refusal, open_folder(Path(name)):
        pytest.fail("the work began")
    assert message in str(refusal.value)
    str(refusal.value).encode()
    assert sorted(odd_places.rglob("*")) == before


def test_a_folder_in_which_nothing_can_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "write_bytes", refuse)
    with pytest.raises(InputError, match="Permission denied"), open_folder(tmp_path / "new" / "run"):
        pytest.fail("the work began")
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_that_the_disk_takes_is_taken(tmp_path: Path) -> None:
    with open_folder(tmp_path / ("x" * 255)) as folder:
        (folder / "file").write_text("x")
    assert [p.name for p in tmp_path.rglob("*")] == ["x" * 255, "file"]


def test_out_is_a_path_or_none_or_false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert chosen_folder(False, "x") is None
    assert chosen_folder("here", "x") == Path("here")
    assert str(chosen_folder(None, "x")).startswith("runs/x-")
    for out in (5, True, ["here"]):
        with pytest.raises(InputError, match=f"out of type {type(out).__name__}"):
            chosen_folder(out, "x")


@pytest.mark.parametrize("label", ["../escaped/x", "/etc", "..", "", "a\0b\nc", "x" * 999, "\U0001f600" * 99])
def test_the_default_folder_is_one_folder_in_runs_whatever_the_data_is_called(
    label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_folder(default_folder(label)) as folder:
        (folder / "file").write_text("x")
    (made,) = (tmp_path / "runs").iterdir()
    assert [p.name for p in made.iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260101-000000")
    with (
        open_folder(default_folder("fedavg-digits")),
        open_folder(default_folder("fedavg-digits")),
        open_folder(default_folder("fedavg-digits")),
    ):
        names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    first = "fedavg-digits-20260101-000000"
    assert names == [first, f"{first}-2", f"{first}-3"]


def test_processes_that_choose_a_folder_at_the_same_time_get_one_each(tmp_path: Path) -> None:
    """Choosing is making: 4 processes that start together choose 25 folders each in one (frozen) second."""
    program = (
        "import time; time.strftime = lambda *_: 'now'\n"
        "from graphfed.runs.folder import default_folder\n"
        "input()\n"
        "for _ in range(25): print(default_folder('fedavg'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(graphfed.__file__).parents[1])}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    try:
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        chosen = [line for process in processes for line in process.communicate(timeout=120)[0].splitlines()]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert len(chosen) == len(set(chosen)) == 100


def test_a_chosen_folder_in_which_nothing_was_kept_is_removed_with_those_made_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError), open_folder(default_folder("x"), keep=lambda _: False):
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_numbers_become_plain_and_what_json_cannot_say_becomes_null() -> None:
    value = {
        1: np.float32(0.5),
        "t": torch.tensor([1.0, math.nan]),
        "a": np.arange(2),
        "n": math.inf,
        "p": Path("x"),
        "s": (np.int64(3), None),
    }
    assert plain(value) == {"1": 0.5, "t": [1.0, None], "a": [0, 1], "n": None, "p": "x", "s": [3, None]}
    json.dumps(plain(value), allow_nan=False)


def test_weights_have_one_name_each_however_they_are_nested() -> None:
    arrays = weight_arrays([{"layer": {"weight": torch.ones(2, 3)}, "bias": (torch.zeros(3), torch.ones(1))}])
    assert {name: a.shape for name, a in arrays.items()} == {
        "layer.weight": (2, 3),
        "bias.0": (3,),
        "bias.1": (1,),
    }


def test_weights_of_clients_one_at_a_time_are_those_of_the_clients_stacked() -> None:
    """A dense leaf is the same array; a sparse one expands to the same [K, F, H]."""
    shared = torch.arange(8.0).view(4, 2)
    pairs = torch.tensor([0, 0, 1]), torch.tensor([1, 3, 0])
    stacked = SparseWeights.expand(shared, *pairs, 2)
    stacked = stacked.with_values(stacked.values + torch.arange(7.0)[:, None])
    alone = []
    for k in range(2):
        rows = pairs[0] == k
        values = torch.cat([stacked.values[:3][rows], stacked.ghost])
        alone.append(SparseWeights(values, torch.zeros_like(pairs[0][rows]), pairs[1][rows], 1))
    dense = torch.rand(2, 3)
    together = weight_arrays([{"w": stacked, "b": dense}])
    apart = weight_arrays([{"w": a, "b": dense[k : k + 1]} for k, a in enumerate(alone)])
    np.testing.assert_array_equal(apart["b"], together["b"])
    np.testing.assert_array_equal(apart["w"], np.stack([stacked.part(k).numpy() for k in range(2)]))
    assert set(together) == {"w.values", "w.pair_client", "w.pair_feature", "w.num_clients", "b"}


def pair_weights() -> dict[str, torch.Tensor | SparseWeights]:
    shared, pairs = torch.arange(8.0).view(4, 2), (torch.tensor([0, 0, 1]), torch.tensor([1, 3, 0]))
    return {"w": SparseWeights.expand(shared, *pairs, 2), "b": torch.rand(2, 3)}


def test_weights_are_loaded_onto_the_device_of_the_run_however_they_are_stored() -> None:
    template = pair_weights()
    loaded = _loaded(template, weight_arrays([template]), "", torch.device("meta"), pooled=False)
    assert [loaded["w"].values.device.type, loaded["b"].device.type] == ["meta", "meta"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("w.pair_client", lambda a: a + 10**6, r"has other net\.w\.pair_client than the data"),
        ("w.pair_feature", lambda a: a[::-1], r"has other net\.w\.pair_feature than the data"),
        ("w.pair_feature", lambda a: a[:-1], r"has other net\.w\.pair_feature than the data"),
        ("w.values", lambda a: a[:-1], r"has net\.w of shape \(6, 2\) where this model has \(7, 2\)"),
        ("w.values", None, r"does not have net\.w\.values"),
        ("w", lambda a: np.zeros((1, 4, 2)), r"has net\.w of shape \(1, 4, 2\) where .* \(2, 4, 2\)"),
        ("b", lambda a: a[0], r"has net\.b of shape \(3,\) where this model has \(2, 3\)"),
    ],
)
def test_weights_of_another_form_than_the_model_s_are_refused(
    name: str, change: Callable[[Any], np.ndarray] | None, message: str
) -> None:
    template = pair_weights()
    arrays = weight_arrays([template])
    if change is None:
        del arrays[name]
    else:
        arrays[name] = change(arrays.get(name))
    with pytest.raises(InputError, match=message):
        _loaded(template, arrays, "net.", torch.device("cpu"), pooled=False)


def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"result\.json cannot be read"):
        read_json(tmp_path / "result.json", Result)
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        read_json(tmp_path / "result.json", Result)
