"""Content hashes: equal arrays give equal hashes, on every machine."""

import hashlib

import numpy as np

__all__ = ["content_hash"]


def content_hash(arrays: dict[str, np.ndarray], text: str = "") -> str:
    """The sha256 (hex) of named arrays and a text: names, dtypes, shapes and values all count.

    Byte order does not: values are hashed in little-endian form, so every machine gets the same hash.
    """
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        # The header frames the bytes, so that two different sets of arrays never feed the same stream.
        digest.update(f"\0{name}:{array.dtype.str}:{array.shape}\0".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()
