"""npz files, read array by array: nothing is unpickled, and refusals name the file and the array."""

import zipfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from graphfed.data.messages import brief
from graphfed.errors import InputError
from graphfed.files import check_regular

__all__ = ["NpzFile"]

MAX_BYTES = 2**31  # of all arrays of a file, unpacked


class NpzFile:
    """One open file, to be used in a `with`. fix: what to do about a file that cannot be used, for messages.

    Raises InputError for a file that is not there, is no archive of arrays, or unpacks to more than 2 GiB.
    """

    def __init__(self, path: Path, fix: str) -> None:
        self.path = path
        self._fix = fix
        try:
            check_regular(path)
            # numpy also reads a single array and a pickle; a set is an archive.
            with zipfile.ZipFile(path) as archive:
                unpacked = sum(member.file_size for member in archive.infolist())
            if unpacked > MAX_BYTES:
                raise ValueError(f"its arrays have {unpacked} bytes, more than {MAX_BYTES}")
            self._arrays = np.load(path, allow_pickle=False)
        except Exception as error:  # a file that is no zip archive fails in several ways
            raise InputError(f"{path} cannot be read ({brief(error)}); {fix}") from error

    def __enter__(self) -> "NpzFile":
        return self

    def __exit__(self, *_: Any) -> None:
        self._arrays.close()

    def __contains__(self, key: str) -> bool:
        return key in self._arrays

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._arrays)

    def take(self, key: str) -> np.ndarray:
        """An array; InputError where there is none, or one that is damaged or of Python objects."""
        try:
            array = self._arrays[key]
            if not isinstance(array, np.ndarray):
                raise TypeError("it is no array")
        except Exception as error:  # absent, damaged, or an object array, which numpy refuses to unpickle
            raise InputError(
                f"{self.path}: array {key!r} cannot be read ({brief(error)}); {self._fix}"
            ) from error
        return array

    def refuse(self, why: str) -> NoReturn:
        raise InputError(f"{self.path}: {why}; {self._fix}")
