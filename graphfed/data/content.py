"""Content hashes: equal arrays give equal hashes, on every machine."""

import hashlib

import numpy as np


def content_hash(arrays: dict[str, np.ndarray], text: str = "") -> str:
    """Hash named arrays, in any order, after a text, to 64 hexadecimal digits of SHA-256.

    Names, dtypes, shapes and values all change the hash. Byte order does not: values are hashed in
    little-endian form, so every machine gets the same hash.
    """
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        # The header delimits the bytes of each array. Without it, two different sets of arrays could give
        # the same stream of bytes.
        digest.update(f"\0{name}:{array.dtype.str}:{array.shape}\0".encode())
        digest.update(array.data if array.size else b"")
    return digest.hexdigest()
