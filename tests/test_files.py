"""Files are whole or absent, and hold what was given."""

import os
from pathlib import Path

import numpy as np
import pytest

from graphfed.errors import InputError
from graphfed.files import contained, copy_files, read_tensors, write_tensors


def test_arrays_keep_their_shapes_of_no_dimension_too(tmp_path: Path) -> None:
    given = {"number": np.array(3.5), "none": np.zeros((0, 2)), "turned": np.arange(6.0).reshape(2, 3).T}
    write_tensors(tmp_path / "file", given)
    read, _ = read_tensors(tmp_path / "file")
    for name, array in given.items():
        assert read[name].shape == array.shape
        assert np.array_equal(read[name], array)


@pytest.mark.parametrize("name", ["..", ".", "", "../other", "a/../../other", "/etc/passwd", "out/x"])
def test_a_name_that_leads_out_of_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    (tmp_path / "other").mkdir()
    (folder / "out").symlink_to(tmp_path / "other")
    assert contained(folder, "a") == folder / "a"
    with pytest.raises(InputError, match="is outside the folder"):
        contained(folder, name)


def test_nothing_is_copied_through_a_link_or_a_pipe(tmp_path: Path) -> None:
    source, secret = tmp_path / "source", tmp_path / "secret"
    for folder in (source / "inner", secret):
        folder.mkdir(parents=True)
    (secret / "key").write_text("secret")
    (source / "inner" / "kept").write_text("kept")
    (source / "left").write_text("left out")
    (source / "file").symlink_to(secret / "key")
    (source / "folder").symlink_to(secret)
    os.mkfifo(source / "pipe")
    copy_files(source, tmp_path / "copy", "left")
    copied = [path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*")]
    assert sorted(map(str, copied)) == ["inner", "inner/kept"]
