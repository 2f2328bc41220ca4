"""The folder of a run is whole or absent."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from graphfed.errors import GraphfedError, InputError
from graphfed.experiment import folder as module
from graphfed.experiment.folder import (
    check_free,
    chosen_folder,
    claimed_folder,
    default_folder,
    new_folder,
    plain,
    read_json,
    weight_arrays,
    write_run,
)
from graphfed.nn.sparse import SparseWeights


def test_a_folder_appears_only_when_the_block_has_ended(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "run"
    with new_folder(target) as folder:
        (folder.path / "file").write_text("x")
        assert not target.exists()
    assert [p.name for p in target.iterdir()] == ["file"]
    assert [p.name for p in target.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, InputError])
def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    def write_and_fail() -> None:
        with new_folder(tmp_path / "run") as folder:
            (folder.path / "file").write_text("x")
            raise failure("stop")

    with pytest.raises(failure):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_reported_with_the_folder_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_json", full)
    with (
        pytest.raises(GraphfedError, match=r"run could not be written: No space left") as failure,
        new_folder(tmp_path / "run") as folder,
    ):
        write_run(
            folder, manifest={}, history=[], ledger={}, result={}, weights={}, predictions=None, graph=None,
            split=None,
        )  # fmt: skip
    assert failure.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with new_folder(target) as folder:
        (folder.path / "file").write_text("x")
    with pytest.raises(InputError, match="is not empty"), new_folder(target):
        pass
    assert (target / "file").read_text() == "x"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        check_free(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be made"):
        check_free(tmp_path / "file" / "run")


@pytest.fixture
def odd_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in, with links beside it."""
    for name in ("empty", "here", "mounted"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr("os.path.ismount", lambda path: Path(path).name == "mounted")
    return tmp_path


@pytest.mark.parametrize("use", [new_folder, claimed_folder])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("../link", "is a symbolic link"),
        ("../dangling", "is a symbolic link"),
        ("../loop/x", "cannot be made"),
        (".", "is the folder you are in"),
        ("../here", "is the folder you are in"),
        ("..", "is not empty"),
        ("new/..", "is the folder you are in"),
        ("../mounted", "is a mount point"),
        ("x" * 300, "File name too long"),
        ("new/folders/" + "x" * 300, "File name too long"),
        ("/proc/x", "cannot be made"),
        ("bad\0name", "cannot be made"),
        ("bad\udcffname", "cannot be made"),
    ],
)
def test_a_name_that_cannot_become_a_folder_is_refused_before_the_work_and_leaves_nothing(
    use: Any, name: str, told: str, odd_places: Path
) -> None:
    before = sorted(odd_places.rglob("*"))
    with pytest.raises(InputError) as refusal, use(Path(name)):
        pytest.fail("the work began")
    assert told in str(refusal.value)
    str(refusal.value).encode()
    assert sorted(odd_places.rglob("*")) == before


@pytest.mark.parametrize("use", [new_folder, claimed_folder])
def test_a_folder_in_which_nothing_can_be_written_is_refused_before_the_work(
    use: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(module, "write_bytes", refuse)
    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(InputError, match="Permission denied"), use(tmp_path / "new" / "run"):
        pytest.fail("the work began")
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_that_the_disk_takes_is_taken(tmp_path: Path) -> None:
    with new_folder(tmp_path / ("x" * 255)) as folder:
        (folder.path / "file").write_text("x")
    assert [p.name for p in tmp_path.rglob("*")] == ["x" * 255, "file"]


def test_files_whose_folder_was_filled_meanwhile_are_kept_and_the_error_says_where(tmp_path: Path) -> None:
    target = tmp_path / "run"
    making = new_folder(target)
    folder = making.__enter__()
    (folder.path / "file").write_text("x")
    target.mkdir()
    (target / "foreign").write_text("y")
    with pytest.raises(GraphfedError) as failure:
        making.__exit__(None, None, None)
    assert failure.value.exit_code == 1
    assert str(folder.path) in str(failure.value)
    assert (folder.path / "file").read_text() == "x"
    assert [p.name for p in target.iterdir()] == ["foreign"]


def test_a_claimed_folder_cannot_be_claimed_again_and_keeps_what_is_in_it(tmp_path: Path) -> None:
    table = tmp_path / "deep" / "table"

    def fail_in_the_middle() -> None:
        with claimed_folder(table):
            for use in (claimed_folder, new_folder):
                with pytest.raises(InputError, match="is not empty"), use(table):
                    pytest.fail("the work began")
            (table / "run").mkdir()
            raise InputError("stop")

    with pytest.raises(InputError, match="stop"):
        fail_in_the_middle()
    assert [p.name for p in table.iterdir()] == ["run"]


def test_a_claimed_folder_that_stays_empty_goes_if_it_was_made_for_the_claim(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for folder in (mine, tmp_path / "deep" / "table"):
        with pytest.raises(KeyboardInterrupt), claimed_folder(folder):
            raise KeyboardInterrupt
    assert list(tmp_path.rglob("*")) == [mine]


def test_out_is_a_path_or_none_or_false(tmp_path: Path) -> None:
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
    with new_folder(default_folder(label)) as folder:
        (folder.path / "file").write_text("x")
    (made,) = (tmp_path / "runs").iterdir()
    assert [p.name for p in made.iterdir()] == ["file"]
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]


def test_two_runs_that_start_in_one_second_and_overlap_get_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260101-000000")
    with new_folder(default_folder("x")), new_folder(default_folder("x")):
        pass
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_two_runs_in_one_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda _: "20260101-000000")
    names = []
    for _ in range(3):
        folder = default_folder("fedavg-digits")
        folder.mkdir(parents=True)
        names.append(folder.name)
    first = "fedavg-digits-20260101-000000"
    assert names == [first, f"{first}-2", f"{first}-3"]


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
        mine = pairs[0] == k
        values = torch.cat([stacked.values[:3][mine], stacked.ghost])
        alone.append(SparseWeights(values, torch.zeros_like(pairs[0][mine]), pairs[1][mine], 1))
    dense = torch.rand(2, 3)
    together = weight_arrays([{"w": stacked, "b": dense}])
    apart = weight_arrays([{"w": a, "b": dense[k : k + 1]} for k, a in enumerate(alone)])
    np.testing.assert_array_equal(apart["b"], together["b"])
    np.testing.assert_array_equal(apart["w"], np.stack([stacked.part(k).numpy() for k in range(2)]))
    assert set(together) == {"w.values", "w.pair_client", "w.pair_feature", "w.num_clients", "b"}


def test_a_folder_that_is_no_run_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"result\.json cannot be read"):
        read_json(tmp_path / "result.json")
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        read_json(tmp_path / "result.json")
