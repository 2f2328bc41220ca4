"""Files are whole or absent, and hold what was given."""

import os
from pathlib import Path

import numpy as np
import pytest
from hostile_files import NO_FILE, no_wait

from graphfed import files
from graphfed.errors import InputError
from graphfed.files import read_tensors, write_tensors


def test_arrays_keep_their_shapes_of_no_dimension_too(tmp_path: Path) -> None:
    given = {"number": np.array(3.5), "none": np.zeros((0, 2)), "turned": np.arange(6.0).reshape(2, 3).T}
    write_tensors(tmp_path / "file", given)
    read, _ = read_tensors(tmp_path / "file")
    for name, array in given.items():
        assert read[name].shape == array.shape
        assert np.array_equal(read[name], array)


@pytest.mark.parametrize("kind", NO_FILE)
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    NO_FILE[kind](path)
    with no_wait():
        for read in (files.check_regular, files.read_regular, files.read_tensors, files.read_metadata):
            with pytest.raises(OSError, match=r"regular|directory|symbolic links|No such file"):
                read(path)
        with pytest.raises(InputError, match="cannot be read: "):
            files.read_start(path, 4)


def test_a_file_that_is_replaced_by_a_pipe_after_the_check_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "file")
    monkeypatch.setattr(files, "check_regular", lambda path: None)
    with no_wait(), pytest.raises(OSError, match="not a regular file but a pipe"):
        files.read_regular(tmp_path / "file")


def test_a_file_larger_than_the_limit_is_not_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    monkeypatch.setattr(files, "MAX_FILE", 5)
    assert files.read_regular(path) == b"12345"
    path.write_bytes(b"123456")
    with pytest.raises(OSError, match="it has more than"):
        files.read_regular(path)
