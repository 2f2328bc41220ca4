"""Files are whole or absent, and hold what was given."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hostile_files import NO_FILE, no_wait

from graphfed import files
from graphfed.errors import InputError
from graphfed.files import contained, copy_files, read_tensors, write_tensors


def test_arrays_keep_their_shapes_of_no_dimension_too(tmp_path: Path) -> None:
    given = {"number": np.array(3.5), "none": np.zeros((0, 2)), "turned": np.arange(6.0).reshape(2, 3).T}
    write_tensors(tmp_path / "file", given)
    read, _ = read_tensors(tmp_path / "file")
    for name, array in given.items():
        assert read[name].shape == array.shape
        assert np.array_equal(read[name], array)


@pytest.mark.parametrize(("private", "mode"), [(False, 0o640), (True, 0o600)])
def test_the_umask_decides_who_reads_a_file_and_does_not_change_for_other_threads(
    private: bool, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("the umask belongs to all threads"))
        for payload in (b"old", b"new"):
            files.write_bytes(tmp_path / "file", payload, private=private)
            assert (tmp_path / "file").read_bytes() == payload
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert os.listdir(tmp_path) == ["file"]


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
