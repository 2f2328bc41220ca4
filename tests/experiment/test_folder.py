"""The folder of a run is whole or absent."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from graphfed.errors import GraphfedError, InputError
from graphfed.experiment.folder import check_free, default_folder, new_folder, plain, read_json, weight_arrays
from graphfed.nn.sparse import SparseWeights


def test_a_folder_appears_only_when_the_block_has_ended(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "run"
    with new_folder(target) as folder:
        (folder / "file").write_text("x")
        assert not target.exists()
    assert [p.name for p in target.iterdir()] == ["file"]
    assert [p.name for p in target.parent.iterdir()] == ["run"]


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt, InputError])
def test_a_failure_in_the_middle_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    def write_and_fail() -> None:
        with new_folder(tmp_path / "run") as folder:
            (folder / "file").write_text("x")
            raise failure("stop")

    with pytest.raises(failure):
        write_and_fail()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_reported_with_the_folder_and_the_reason(tmp_path: Path) -> None:
    with (
        pytest.raises(GraphfedError, match=r"run could not be written: No space left") as failure,
        new_folder(tmp_path / "run"),
    ):
        raise OSError(28, "No space left on device")
    assert failure.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_is_filled_and_a_full_one_refused(tmp_path: Path) -> None:
    target = tmp_path / "run"
    target.mkdir()
    with new_folder(target) as folder:
        (folder / "file").write_text("x")
    with pytest.raises(InputError, match="is not empty"), new_folder(target):
        pass
    assert (target / "file").read_text() == "x"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        check_free(tmp_path / "file")
    with pytest.raises(InputError, match="cannot be made"):
        check_free(tmp_path / "file" / "run")


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
