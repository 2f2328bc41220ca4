"""Reading of npz files array by array. Nothing is unpickled, and errors name the file and the array."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from graphfed.data.messages import brief
from graphfed.data.texts import canonical_names
from graphfed.errors import InputError
from graphfed.files import check_regular

MAX_BYTES = 2**31  # the size of all arrays of a file together, uncompressed


class NpzFile:
    """One open npz file, a context manager."""

    def __init__(self, path: Path, fix: str) -> None:
        """Open a file, unless it is missing, no archive of arrays or unpacks to more than 2 GiB.

        `fix` says what the user can do if the file cannot be used; it ends every message.
        """
        self.path = path
        self._fix = fix
        try:
            check_regular(path)
            # np.load alone would also accept a single array or a pickle; only an archive is wanted here.
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
        return list(self._arrays)

    def take(
        self, key: str, kinds: str = "", shape: Sequence[int | None] | None = None, expected: str = ""
    ) -> np.ndarray:
        """Read an array, unless it is missing, damaged, made of Python objects, or of another dtype or shape.

        `kinds` are numpy's letters of the dtypes that it may have, "" for any. In `shape`, None is an axis of
        any length; () is one value with any number of axes. `expected` describes the array in messages.
        """
        try:
            array = self._arrays[key]
            if not isinstance(array, np.ndarray):
                raise TypeError("it is no array")
            # Entries of no bytes may be any number of entries in a small file.
            if array.size and not array.dtype.itemsize:
                raise TypeError(f"its {array.size:,} entries have no bytes")
        except Exception as error:  # absent, damaged, or an object array, which numpy refuses to unpickle
            raise InputError(
                f"{self.path}: array {key!r} cannot be read ({brief(error)}); {self._fix}"
            ) from error
        fits = shape is None or (array.size == 1 if shape == () else len(shape) == array.ndim)
        # An array of another number of axes does not fit already.
        for length, found in zip(shape or (), array.shape, strict=False):
            fits = fits and length in (None, found)
        if not fits or (kinds and array.dtype.kind not in kinds):
            self.refuse(f"array {key!r} has dtype {array.dtype} and shape {array.shape}; expected {expected}")
        return array

    def take_names(self, key: str, count: int | None, expected: str) -> tuple[str, ...]:
        """Read `count` (None: any number of) texts or whole numbers as canonical texts."""
        return canonical_names(map(str, self.take(key, "iuU", (count,), expected).tolist()))

    def refuse(self, why: str) -> NoReturn:
        """Raise an InputError that names the file and ends with the fix."""
        raise InputError(f"{self.path}: {why}; {self._fix}")
