"""Files are whole or absent, and hold what was given."""

from pathlib import Path

import numpy as np

from graphfed.files import read_tensors, write_tensors


def test_arrays_keep_their_shapes_of_no_dimension_too(tmp_path: Path) -> None:
    given = {"number": np.array(3.5), "none": np.zeros((0, 2)), "turned": np.arange(6.0).reshape(2, 3).T}
    write_tensors(tmp_path / "file", given)
    read, _ = read_tensors(tmp_path / "file")
    for name, array in given.items():
        assert read[name].shape == array.shape
        assert np.array_equal(read[name], array)
